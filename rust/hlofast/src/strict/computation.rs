//! Computations, bodies, blocks, and texts that are a single instruction.

use super::Checker;
use super::instruction::{Facts, Form};
use super::lexer::{Kind, is_type};
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::{ComputationId, Flags, Opcode, Row};
use crate::text::Span;

/// The rows of the instructions being read.
#[derive(Clone, Copy, Default)]
pub(super) struct Rows {
    pub first: u32,
    /// One past the row of the instruction being read.
    pub next: u32,
    end: u32,
}

impl Checker<'_> {
    /// Reads `ENTRY? name signature? { ... }`.
    pub(super) fn computation(&mut self) -> Result<()> {
        self.eat_keyword(b"ENTRY");
        let name = self.name()?;
        let signature = if self.kind() == Kind::LeftParen { Some(self.signature()?) } else { None };
        let known = self.module.computations();
        let written = |c: &crate::ir::Computation| !c.is_inline && !c.is_implicit;
        let ahead = known.get(self.next_computation..).unwrap_or_default().iter();
        let next = ahead.clone().position(written).map(|skip| self.next_computation + skip);
        let Some(id) = next.filter(|id| known.get(*id).is_some_and(|c| c.name == name)) else {
            return Err(ParseError::new(
                ErrorKind::InvalidComputation,
                name,
                "XLA reads another computation here",
            ));
        };
        self.next_computation = id + 1;
        let id = ComputationId(id as u32);
        self.body(id)?;
        if let Some(result) = signature {
            let root = Row(self.module.computation(id).root);
            if !self.is_compatible(result, root)? {
                return Err(ParseError::new(
                    ErrorKind::ShapeMismatch,
                    result,
                    "the result in the signature is not the shape of the root instruction",
                )
                .with_related(self.module.name_span(root)));
            }
        }
        let mut thread = false;
        while self.eat(Kind::Comma) {
            let (key, _) = self.attribute_key(&[b"execution_thread"])?;
            if std::mem::replace(&mut thread, true) {
                return Err(self.repeated_attribute(key));
            }
            self.string()?;
        }
        self.computations.insert(self.bytes(name), id);
        Ok(())
    }

    /// Reads `(name: shape, ...) -> shape`; returns the span of the result shape.
    fn signature(&mut self) -> Result<Span> {
        self.list(Kind::LeftParen, Kind::RightParen, |checker| {
            checker.name()?;
            checker.shape().map(drop)
        })?;
        self.expect(Kind::Arrow, "'->' after a computation's parameters")?;
        self.shape()
    }

    /// Reads `{ instruction+ }` of computation `id`.
    fn body(&mut self, id: ComputationId) -> Result<()> {
        self.expect(Kind::LeftBrace, "'{' at the beginning of a computation's body")?;
        let computation = self.module.computation(id);
        let rows = Rows {
            first: computation.first_row,
            next: computation.first_row,
            end: computation.end_row,
        };
        let outer = std::mem::replace(&mut self.rows, rows);
        loop {
            self.instruction()?;
            if self.kind() == Kind::RightBrace {
                break;
            }
        }
        self.advance();
        self.rows = outer;
        self.check_parameters(id)
    }

    /// Reads `ROOT? name = ...`.
    fn instruction(&mut self) -> Result<()> {
        self.eat_keyword(b"ROOT");
        if !matches!(self.kind(), Kind::Name | Kind::Ident) {
            return Err(self.error(ErrorKind::ExpectedName, "expected an instruction's name"));
        }
        let name = self.lexer.span();
        let row = self.row_named(name)?;
        self.check_name(name)?;
        let mut facts = Facts::default();
        if self.plain_head(row, name.end as usize, &mut facts) {
            let opcode = self.module.opcode(row);
            return self.operation(row, opcode, Form::Plain, true, &mut facts);
        }
        self.advance();
        self.expect(Kind::Equal, "'=' after an instruction's name")?;
        self.right_hand_side(row, true, &mut facts)
    }

    /// XLA changes a name that it would print differently, and then rejects the changed name.
    fn check_name(&self, name: Span) -> Result<()> {
        let word = self.bytes(name);
        let is_reserved = word.starts_with(b"__") && !word.starts_with(b"__xla_");
        if !is_reserved && !is_type(word) {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(word);
        Err(ParseError::new(
            ErrorKind::InvalidName,
            name,
            format!("XLA would rename an instruction called {shown}"),
        ))
    }

    /// Returns the next row that is written in the text; it must be called `name`.
    #[inline]
    fn row_named(&mut self, name: Span) -> Result<Row> {
        let columns = self.module.columns();
        while self.rows.next < self.rows.end {
            let row = Row(self.rows.next);
            self.rows.next += 1;
            if columns.flags[row.0 as usize] & Flags::IMPLICIT == 0 {
                if columns.name_starts[row.0 as usize] == name.start {
                    return Ok(row);
                }
                break;
            }
        }
        Err(ParseError::new(ErrorKind::ExpectedName, name, "XLA reads another instruction here"))
    }

    /// Reads a block in place of a computation's name.
    pub(super) fn block(&mut self) -> Result<Option<ComputationId>> {
        let Some(id) = self.blocks.get(&(self.lexer.start as u32)).copied() else {
            return Err(self.expected("a computation's name"));
        };
        self.deeper(|checker| checker.body(id))?;
        Ok(Some(id))
    }

    /// Checks that parameter numbers are 0, 1, 2, ... without gaps.
    fn check_parameters(&self, id: ComputationId) -> Result<()> {
        let columns = self.module.columns();
        let rows = self.module.computation(id).rows();
        let codes = columns.opcodes.get(rows.start as usize..rows.end as usize).unwrap_or_default();
        let parameters =
            || codes.iter().enumerate().filter(|(_, opcode)| **opcode == Opcode::Parameter);
        let count = parameters().count() as u64;
        for (offset, _) in parameters() {
            let row = Row(rows.start + offset as u32);
            if self.module.parameter_number(row).is_none_or(|number| number >= count) {
                return Err(ParseError::new(
                    ErrorKind::ParameterGap,
                    self.module.name_span(row),
                    format!("the numbers of the {count} parameters must be 0, 1, 2, ..."),
                ));
            }
        }
        Ok(())
    }

    /// Reads text that is a single instruction.
    pub(super) fn single_instruction(&mut self) -> Result<()> {
        let id = self.module.entry();
        let computation = self.module.computation(id);
        self.rows = Rows {
            first: computation.first_row,
            next: computation.root + 1,
            end: computation.end_row,
        };
        self.single = true;
        self.eat_keyword(b"ROOT");
        if self.starts_shape() {
            let mut facts = Facts::default();
            self.right_hand_side(Row(computation.root), true, &mut facts)?;
        } else {
            let name = self.name()?;
            self.expect(Kind::Equal, "'=' after an instruction's name")?;
            self.check_name(name)?;
            let row = Row(computation.root);
            let mut facts = Facts::default();
            self.right_hand_side(row, true, &mut facts)?;
        }
        if self.kind() != Kind::End {
            return Err(self.error(
                ErrorKind::TrailingText,
                "expected the end of the text after a single instruction",
            ));
        }
        Ok(())
    }
}
