//! Operand lists: names with and without types, nested instructions, slots that XLA drops.

use super::Checker;
use super::instruction::Facts;
use super::lexer::{Kind, is_reserved};
use super::newer::Newer;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::{Module, Row};
use crate::text::{Span, is_identifier_start};

/// The row of an operand that only strict reading sees.
pub(super) const NO_ROW: u32 = u32::MAX;

impl<'a> Checker<'a> {
    /// Reads an operand list in XLA's printed form, `(%a, f32[2]{0} %b)`, with types whose text
    /// passed before. Returns false, with nothing read, for any other form.
    #[inline]
    pub(super) fn plain_operands(&mut self, row: Row) -> bool {
        if self.kind() != Kind::LeftParen || self.single {
            return false;
        }
        let module: &'a Module = self.module;
        let rows = module.operands(row);
        let current = self.rows.next.saturating_sub(1);
        let mut at = self.lexer.position();
        for (index, operand) in rows.iter().enumerate() {
            if index > 0 {
                if self.text.get(at) != Some(&b',') || self.text.get(at + 1) != Some(&b' ') {
                    return false;
                }
                at += 2;
                if self.text.get(at) == Some(&b'/') {
                    match self.index_comment(at) {
                        Some(end) => at = end,
                        None => return false,
                    }
                }
            }
            let name = module.name_span(Row(*operand));
            let Some(spelled) = self.text.get(name.range()) else { return false };
            let mut marked = false;
            match self.text.get(at) {
                Some(b'%') => {
                    marked = true;
                    at += 1;
                }
                // The operand is a name, unless a type starts here.
                Some(byte) if is_identifier_start(*byte) && self.ends_name(at, spelled) => {}
                _ => match self.spelled_at(at, Row(*operand)) {
                    Some(end)
                        if self.passed.get(module.shape(Row(*operand)).0 as usize)
                            == Some(&true) =>
                    {
                        marked = self.text.get(end + 1) == Some(&b'%');
                        at = end + 1 + usize::from(marked);
                    }
                    _ => return false,
                },
            }
            if *operand >= current
                || !self.ends_name(at, spelled)
                || !marked && is_reserved(spelled)
            {
                return false;
            }
            at += spelled.len();
        }
        if self.text.get(at) != Some(&b')') {
            return false;
        }
        self.operands.extend_from_slice(rows);
        self.lexer.resume(at + 1);
        true
    }

    /// Whether exactly the name `spelled` is at `at` as an operand, not a longer one.
    #[inline]
    fn ends_name(&self, at: usize, spelled: &[u8]) -> bool {
        self.text.get(at..).is_some_and(|rest| rest.starts_with(spelled))
            && matches!(self.text.get(at + spelled.len()), Some(b',' | b')'))
    }

    /// The end of `/*index=5*/` at `at`.
    #[inline]
    fn index_comment(&self, at: usize) -> Option<usize> {
        let rest = self.text.get(at..)?.strip_prefix(b"/*index=")?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let end = at + 8 + digits;
        (self.text.get(end..end + 2) == Some(b"*/")).then_some(end + 2)
    }

    /// Reads `(...)` and pushes the operands' rows onto `self.operands`. `row` is NO_ROW if the
    /// tolerant reader did not see this instruction.
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
            match self.plain_operand(known) {
                Ok(Some(operand)) => {
                    self.operands.push(operand);
                    index += usize::from(operand == known);
                }
                Ok(None) | Err(_) => {
                    self.lexer = place;
                    let base = self.operands.len();
                    let nested = self.nested_operand(known);
                    self.operands.truncate(base);
                    match nested {
                        Ok(()) => {
                            self.operands.push(known);
                            index += 1;
                        }
                        // XLA drops a slot that it cannot read if its reader stops at the end of
                        // the slot.
                        Err(_) if matches!(self.kind(), Kind::Comma | Kind::RightParen) => {}
                        Err(error) => return Err(self.operand_error(&place, known, error)),
                    }
                }
            }
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightParen, "',' or ')' after an operand")
    }

    /// The more informative of the two errors for an operand.
    #[cold]
    fn operand_error(
        &mut self,
        place: &super::lexer::Lexer<'a>,
        known: u32,
        nested: ParseError,
    ) -> ParseError {
        let stopped = self.lexer;
        self.lexer = *place;
        let plain = self.plain_operand(known);
        self.lexer = stopped;
        match plain {
            Err(error) if error.kind() != ErrorKind::ExpectedName => error,
            _ => nested,
        }
    }

    /// Reads `shape? name`; returns the row with this name, or None if the operand does not end
    /// after the name. `known` is the next operand row found by tolerant reading.
    #[inline]
    fn plain_operand(&mut self, known: u32) -> Result<Option<u32>> {
        let mut declared = None;
        if self.starts_shape() {
            declared = Some(self.shape()?);
            let ends = matches!(self.kind(), Kind::Comma | Kind::RightParen);
            if ends && self.single && self.depth == 0 {
                return Ok(Some(known));
            }
        }
        let name = self.name()?;
        let mut is_path = false;
        if self.kind() == Kind::Octothorp && self.allows(Newer::CompactOperands) {
            is_path = true;
            while self.eat(Kind::Octothorp) {
                self.integer()?;
            }
        }
        if !matches!(self.kind(), Kind::Comma | Kind::RightParen) {
            return Ok(None);
        }
        let mut row = known;
        if !is_path
            && (known == NO_ROW || self.module.instruction_name(Row(known)) != self.bytes(name))
        {
            row = self.find_row(name);
        }
        if row >= self.rows.next.saturating_sub(1) {
            return Err(self.undefined(name, row));
        }
        if let Some(declared) = declared
            && !self.is_compatible(declared, Row(row))?
        {
            let first = self.module.name_span(Row(row));
            return Err(ParseError::new(
                ErrorKind::ShapeMismatch,
                declared,
                "the operand's declared shape differs from its definition",
            )
            .with_related(first));
        }
        Ok(Some(row))
    }

    /// The earlier row with the name `name`. Tolerant reading drops some operand slots; strict
    /// reading looks up the names in these slots here.
    #[cold]
    fn find_row(&mut self, name: Span) -> u32 {
        let module: &'a Module = self.module;
        let current = self.rows.next.saturating_sub(1);
        if self.names_of != self.rows.first {
            self.names.clear();
            self.names_of = self.rows.first;
            self.names_until = self.rows.first;
        }
        for row in self.names_until..current {
            self.names.insert(module.instruction_name(Row(row)), row);
        }
        self.names_until = self.names_until.max(current);
        self.names.get(self.bytes(name)).copied().unwrap_or(NO_ROW)
    }

    #[cold]
    fn undefined(&self, name: Span, known: u32) -> ParseError {
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

    /// Reads an instruction in place of an operand.
    fn nested_operand(&mut self, row: u32) -> Result<()> {
        self.deeper(|checker| checker.right_hand_side(Row(row), false, &mut Facts::default()))
    }
}
