//! Operand lists: names with and without types, nested instructions, slots that XLA drops.

use super::Checker;
use super::instruction::Facts;
use super::lexer::Kind;
use super::table::Newer;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::{Module, Row};

/// The row of an operand that only strict reading sees.
pub(super) const NO_ROW: u32 = u32::MAX;

impl<'a> Checker<'a> {
    /// Reads `(...)` and pushes the operands' rows onto `self.operands`. `row` is NO_ROW where
    /// the tolerant reader saw no such instruction.
    pub(super) fn operand_list(&mut self, row: u32) -> Result<()> {
        let module: &'a Module = self.module;
        let rows = if row == NO_ROW { &[] } else { module.operands(Row(row)) };
        self.expect(Kind::LeftParen, "'(' at the beginning of operands")?;
        if self.eat(Kind::RightParen) {
            return Ok(());
        }
        let mut index = 0;
        loop {
            let place = self.lexer;
            let known = rows.get(index).copied().unwrap_or(NO_ROW);
            match self.plain_operand(known, row) {
                Ok(true) => {
                    self.operands.push(known);
                    index += 1;
                }
                Ok(false) | Err(_) => {
                    self.lexer = place;
                    let base = self.operands.len();
                    let nested = self.nested_operand(known);
                    self.operands.truncate(base);
                    match nested {
                        Ok(()) => {
                            self.operands.push(known);
                            index += 1;
                        }
                        // XLA forgets a slot that it could not read if it stopped at its end.
                        Err(_) if matches!(self.kind(), Kind::Comma | Kind::RightParen) => {}
                        Err(error) => return Err(self.operand_error(&place, known, row, error)),
                    }
                }
            }
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightParen, "',' or ')' after an operand")
    }

    /// The better of the two errors about an operand.
    #[cold]
    fn operand_error(
        &mut self,
        place: &super::lexer::Lexer<'a>,
        known: u32,
        row: u32,
        nested: ParseError,
    ) -> ParseError {
        let stopped = self.lexer;
        self.lexer = *place;
        let plain = self.plain_operand(known, row);
        self.lexer = stopped;
        match plain {
            Err(error) if error.kind() != ErrorKind::ExpectedName => error,
            _ => nested,
        }
    }

    /// Reads `shape? name`; whether that is all of the operand.
    #[inline]
    fn plain_operand(&mut self, known: u32, row: u32) -> Result<bool> {
        let mut declared = None;
        if self.starts_shape() {
            declared = Some(self.shape()?);
            let ends = matches!(self.kind(), Kind::Comma | Kind::RightParen);
            if ends && self.single && self.depth == 0 {
                return Ok(true);
            }
        }
        let name = self.name()?;
        let mut is_path = false;
        if self.allows(Newer::CompactOperands) && self.kind() == Kind::Octothorp {
            is_path = true;
            while self.eat(Kind::Octothorp) {
                self.integer()?;
            }
        }
        if !matches!(self.kind(), Kind::Comma | Kind::RightParen) {
            return Ok(false);
        }
        if known >= row || known == NO_ROW {
            return Err(self.undefined(name, known));
        }
        if !is_path && self.module.instruction_name(Row(known)) != self.bytes(name) {
            return Err(self.undefined(name, NO_ROW));
        }
        if let Some(declared) = declared
            && !self.is_compatible(declared, Row(known))?
        {
            let first = self.module.name_span(Row(known));
            return Err(ParseError::new(
                ErrorKind::ShapeMismatch,
                declared,
                "the operand's declared shape is not that of its definition",
            )
            .with_related(first));
        }
        Ok(true)
    }

    #[cold]
    fn undefined(&self, name: crate::text::Span, known: u32) -> ParseError {
        let shown = String::from_utf8_lossy(self.bytes(name));
        if known == NO_ROW {
            return ParseError::new(
                ErrorKind::UnknownInstruction,
                name,
                format!("no instruction of this computation is called {shown}"),
            );
        }
        ParseError::new(
            ErrorKind::ForwardReference,
            name,
            format!("{shown} is used before its definition"),
        )
        .with_related(self.module.name_span(Row(known)))
    }

    /// Reads an instruction that stands where an operand is expected.
    fn nested_operand(&mut self, row: u32) -> Result<()> {
        self.deeper()?;
        let mut facts = Facts::default();
        let result = self.right_hand_side(Row(row), false, &mut facts);
        self.depth -= 1;
        result
    }
}
