//! Reads one instruction: result shape, opcode, operands or payload, attributes.

use super::Checker;
use super::lexer::Kind;
use super::operands::NO_ROW;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::attribute::{self, Key, Set};
use crate::ir::{Arity, ComputationId, Module, Opcode, Row};
use crate::text::Span;

/// Facts about an instruction that later checks need.
#[derive(Clone, Default)]
pub(super) struct Facts {
    /// The attributes present.
    pub seen: Set,
    /// The span of the opcode.
    pub word: Span,
    /// Whether the result shape is written in the text.
    pub has_shape: bool,
    /// Number of integers in `dimensions`.
    pub dimensions: usize,
    pub channel_id: Option<i64>,
    pub use_global_device_ids: bool,
    /// The computation of `to_apply` or `calls`.
    pub callee: Option<ComputationId>,
    pub branches: usize,
    pub index: i64,
    /// `async_execution_thread`, with quotes.
    pub thread: Option<Span>,
    /// The shapes of `operand_layout_constraints`.
    pub constraints: Option<Vec<Span>>,
    /// Number of leaves in `parameter_replication`.
    pub replication: Option<usize>,
}

/// How an opcode is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    Start(Opcode),
    Update(Opcode),
    Done(Opcode),
}

/// The instruction being checked.
#[derive(Clone, Copy)]
pub(super) struct Subject {
    /// `Row(NO_ROW)` if the tolerant reader did not see this instruction.
    pub row: Row,
    pub opcode: Opcode,
    pub form: Form,
    /// The index in `Checker::operands` of its first operand.
    pub first_operand: usize,
}

impl Subject {
    /// The opcode whose attributes and rules apply; for a start written as async sugar, the wrapped
    /// opcode.
    pub fn described(self) -> Opcode {
        match self.form {
            Form::Start(stem) => stem,
            _ => self.opcode,
        }
    }
}

impl<'a> Checker<'a> {
    /// Reads `shape? opcode(...)` and, if `attributes`, any number of `, key=value`.
    pub(super) fn right_hand_side(
        &mut self,
        row: Row,
        attributes: bool,
        facts: &mut Facts,
    ) -> Result<()> {
        if self.starts_shape() {
            self.result_shape(row)?;
            facts.has_shape = true;
        }
        let (opcode, form) = self.opcode()?;
        facts.word = self.lexer.span();
        self.advance();
        if !facts.has_shape && !opcode.is_inferable() {
            return Err(ParseError::new(
                ErrorKind::CannotInferShape,
                facts.word,
                format!("{} needs its result shape written", opcode.as_str()),
            ));
        }
        self.operation(row, opcode, form, attributes, facts)
    }

    /// Skips ` = shape opcode` after the name that ends at `end`, if the text is in XLA's printed
    /// form and the shape's text passed before. The current token is then the parenthesis.
    #[inline]
    pub(super) fn plain_head(&mut self, row: Row, end: usize, facts: &mut Facts) -> bool {
        let module: &'a Module = self.module;
        if self.text.get(end..end + 3) != Some(b" = ")
            || self.passed.get(module.shape(row).0 as usize) != Some(&true)
        {
            return false;
        }
        let Some(shape_end) = self.spelled_at(end + 3, row) else { return false };
        let opcode = module.opcode(row);
        let word = opcode.as_str().as_bytes();
        let start = shape_end + 1;
        let spelled = opcode != Opcode::Unknown
            && self.text.get(start..).is_some_and(|rest| rest.starts_with(word))
            && self.text.get(start + word.len()) == Some(&b'(');
        if spelled {
            facts.word = Span::new(start, start + word.len());
            facts.has_shape = true;
            self.lexer.resume(start + word.len());
        }
        spelled
    }

    /// Reads `(...)` and the attributes.
    pub(super) fn operation(
        &mut self,
        row: Row,
        opcode: Opcode,
        form: Form,
        attributes: bool,
        facts: &mut Facts,
    ) -> Result<()> {
        let first_operand = self.operands.len();
        let subject = Subject { row, opcode, form, first_operand };
        match opcode {
            Opcode::Parameter => self.parameter_payload()?,
            Opcode::Constant => self.constant_payload(row, facts)?,
            _ if row.0 != NO_ROW && self.plain_operands(row) => {}
            _ => self.operand_list(row.0)?,
        }
        if matches!(form, Form::Start(Opcode::Parameter | Opcode::Constant)) {
            return Err(ParseError::new(
                ErrorKind::UnknownOpcode,
                facts.word,
                "this operation cannot run asynchronously",
            ));
        }
        let count = self.operands.len() - first_operand;
        if !opcode.arity().accepts(count) {
            return Err(self.wrong_count(subject, count, facts.word));
        }
        self.check_operands(subject, facts)?;
        let (allowed, required) = self.expected_attributes(subject);
        if attributes {
            self.attributes(subject, allowed, facts)?;
        }
        let missing = required & !facts.seen;
        if missing != 0 {
            return Err(missing_attribute(subject, missing, facts.word));
        }
        let result = self.check_instruction(subject, facts);
        self.operands.truncate(first_operand);
        result
    }

    /// Reads the opcode at the current token.
    #[inline]
    fn opcode(&mut self) -> Result<(Opcode, Form)> {
        if self.kind() != Kind::Ident {
            return Err(self.error(ErrorKind::ExpectedOpcode, "expected an opcode"));
        }
        let word = self.lexer.word();
        if let Some(opcode) = Opcode::from_bytes(word) {
            return Ok((opcode, Form::Plain));
        }
        type Wrap = fn(Opcode) -> Form;
        let forms: [(&[u8], Opcode, Wrap); 3] = [
            (b"-start", Opcode::AsyncStart, Form::Start),
            (b"-update", Opcode::AsyncUpdate, Form::Update),
            (b"-done", Opcode::AsyncDone, Form::Done),
        ];
        for (suffix, opcode, wrap) in forms {
            if let Some(stem) = word.strip_suffix(suffix).and_then(Opcode::from_bytes)
                && stem.may_be_wrapped()
            {
                return Ok((opcode, wrap(stem)));
            }
        }
        let shown = String::from_utf8_lossy(word);
        Err(self.error(ErrorKind::UnknownOpcode, &format!("XLA does not know the opcode {shown}")))
    }

    fn parameter_payload(&mut self) -> Result<()> {
        self.expect(Kind::LeftParen, "'(' before a parameter's number")?;
        let place = self.lexer.span();
        if self.integer()? < 0 {
            return Err(ParseError::new(
                ErrorKind::InvalidOperand,
                place,
                "a parameter's number must not be negative",
            ));
        }
        self.expect(Kind::RightParen, "')' after a parameter's number")
    }

    fn constant_payload(&mut self, row: Row, facts: &Facts) -> Result<()> {
        self.expect(Kind::LeftParen, "'(' before a constant's value")?;
        if row.0 == NO_ROW {
            return Err(ParseError::new(
                ErrorKind::InvalidLiteral,
                facts.word,
                "the shape of this constant cannot be read",
            ));
        }
        let module: &'a Module = self.module;
        self.literal(module.shapes(), module.shape(row))?;
        self.expect(Kind::RightParen, "')' after a constant's value")
    }

    /// The attributes that the subject may have, and the attributes that it must have.
    fn expected_attributes(&self, subject: Subject) -> (Set, Set) {
        let newest = self.is_newest();
        const THREAD: Set = Key::of("async_execution_thread").only();
        const ALIASING: Set = Key::of("output_to_operand_aliasing").only();
        let opcode = match subject.form {
            Form::Plain => subject.opcode,
            Form::Start(stem) => {
                let (mut allowed, required) = self.attributes_of(stem, subject, newest);
                allowed |= THREAD | ALIASING;
                return (allowed, required);
            }
            Form::Update(_) => {
                return (attribute::COMMON | THREAD | if newest { ALIASING } else { 0 }, 0);
            }
            Form::Done(_) => return (attribute::COMMON | THREAD, 0),
        };
        self.attributes_of(opcode, subject, newest)
    }

    fn attributes_of(&self, opcode: Opcode, subject: Subject, newest: bool) -> (Set, Set) {
        let mut allowed = attribute::taken(opcode, newest);
        let mut required = attribute::needed(opcode);
        match opcode {
            Opcode::Conditional => {
                const BRANCHES: Set = Key::of("branch_computations").only();
                const TWO: Set =
                    Key::of("true_computation").only() | Key::of("false_computation").only();
                let is_two = self.selects_by_predicate(subject);
                allowed &= !if is_two { BRANCHES } else { TWO };
                required |= if is_two { TWO } else { BRANCHES };
            }
            Opcode::Broadcast if !self.is_scalar_operand(subject) => {
                required |= const { Key::of("dimensions").only() };
            }
            _ => {}
        }
        (allowed, required)
    }

    /// Reads any number of `, key=value`.
    #[inline]
    fn attributes(&mut self, subject: Subject, allowed: Set, facts: &mut Facts) -> Result<()> {
        while self.eat(Kind::Comma) {
            if self.kind() != Kind::AttributeName {
                return Err(
                    self.error(ErrorKind::ExpectedName, "expected an attribute's name and '='")
                );
            }
            let key = self.lexer.span();
            let attribute = Key::from_bytes(self.lexer.word());
            let Some(attribute) = attribute.filter(|key| allowed & key.only() != 0) else {
                return Err(self.unexpected(key, subject, attribute));
            };
            if facts.seen & attribute.only() != 0 {
                return Err(self.repeated_attribute(key));
            }
            facts.seen |= attribute.only();
            self.advance();
            self.value(attribute, subject, facts)?;
        }
        Ok(())
    }

    #[cold]
    fn unexpected(&self, key: Span, subject: Subject, known: Option<Key>) -> ParseError {
        let error = self.unexpected_attribute(key, subject.opcode.as_str());
        let newer = attribute::newer(subject.opcode);
        if !self.is_newest() && known.is_some_and(|known| newer & known.only() != 0) {
            return error
                .with_help("XLA newer than jaxlib 0.10.2 accepts it: use strict=\"newest\"");
        }
        error
    }

    #[cold]
    fn wrong_count(&self, subject: Subject, count: usize, word: Span) -> ParseError {
        let wanted = match subject.opcode.arity() {
            Arity::Exactly(1) => "1 operand".to_string(),
            Arity::Exactly(n) => format!("{n} operands"),
            Arity::AtLeast(n) => format!("at least {n} operands"),
            Arity::Even => "an even number of operands".to_string(),
            Arity::Odd => "an odd number of operands".to_string(),
            Arity::Any | Arity::Payload => "other operands".to_string(),
        };
        ParseError::new(
            ErrorKind::OperandCount,
            word,
            format!("{} takes {wanted}, but has {count}", subject.opcode.as_str()),
        )
    }
}

#[cold]
fn missing_attribute(subject: Subject, missing: Set, word: Span) -> ParseError {
    let name = Key::first(missing).map_or("", Key::as_str);
    let opcode = match subject.form {
        Form::Start(stem) => stem,
        _ => subject.opcode,
    };
    ParseError::new(
        ErrorKind::MissingAttribute,
        word,
        format!("{} needs the attribute {name}", opcode.as_str()),
    )
}
