//! The values of attributes.

use super::Checker;
use super::instruction::{Facts, Subject};
use super::lexer::Kind;
use super::memory::PassedValue;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::attribute::{Grammar, Key, PRECISIONS, Words};
use crate::ir::{ComputationId, Module, Row};
use crate::text::Span;

/// The grammar of a value in a `{key=value key=value}` list.
#[derive(Clone, Copy)]
pub(super) enum SubAttribute {
    Int32,
    Text,
    Profile,
    Sharding,
    DomainKind,
}

const METADATA_KEYS: [&[u8]; 12] = [
    b"op_type",
    b"op_name",
    b"source_file",
    b"source_line",
    b"source_end_line",
    b"source_column",
    b"source_end_column",
    b"profile_type",
    b"deduplicated_name",
    b"scheduling_name",
    b"stack_frame_id",
    b"metadata_payload",
];

impl<'a> Checker<'a> {
    /// Reads the value of `attribute`, or skips a value that passed before.
    #[inline]
    pub(super) fn value(
        &mut self,
        attribute: Key,
        subject: Subject,
        facts: &mut Facts,
    ) -> Result<()> {
        let grammar = attribute.grammar(subject.described());
        match self.passed_value(attribute, grammar, subject) {
            PassedValue::Skipped => return Ok(()),
            PassedValue::Unknown => return self.read_value(attribute, grammar, subject, facts),
            PassedValue::Slot { slot, start } => {
                self.read_value(attribute, grammar, subject, facts)?;
                self.remember_value(attribute, slot, start);
            }
        }
        Ok(())
    }

    #[inline]
    fn read_value(
        &mut self,
        attribute: Key,
        grammar: Grammar,
        subject: Subject,
        facts: &mut Facts,
    ) -> Result<()> {
        const DIMENSIONS: Key = Key::of("dimensions");
        const GLOBAL_IDS: Key = Key::of("use_global_device_ids");
        const CHANNEL: Key = Key::of("channel_id");
        const INDEX: Key = Key::of("index");
        const CARRIES: Key = Key::of("num_carries");
        const THREAD: Key = Key::of("async_execution_thread");
        const TO_APPLY: Key = Key::of("to_apply");
        const CALLS: Key = Key::of("calls");
        match grammar {
            Grammar::Metadata => self.metadata(),
            Grammar::Integers => {
                let count = self.integer_list()?;
                if attribute == DIMENSIONS {
                    facts.dimensions = count;
                }
                Ok(())
            }
            Grammar::IntegerLists => self.integer_lists(),
            Grammar::Sharding => self.sharding(),
            Grammar::Frontend => self.frontend_attributes(),
            Grammar::BackendConfig => self.backend_config(),
            Grammar::Boolean => {
                let value = self.boolean()?;
                if attribute == GLOBAL_IDS {
                    facts.use_global_device_ids = value;
                }
                Ok(())
            }
            Grammar::Booleans => {
                let count = self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
                    checker.boolean().map(drop)
                })?;
                facts.replication = Some(count);
                Ok(())
            }
            Grammar::Integer => {
                let value = self.integer()?;
                match attribute {
                    CHANNEL => facts.channel_id = Some(value),
                    INDEX | CARRIES => facts.index = value,
                    _ => {}
                }
                Ok(())
            }
            Grammar::Int32 => self.int32(),
            Grammar::Float => self.float(),
            Grammar::Text => {
                let text = self.string()?;
                if attribute == THREAD {
                    facts.thread = Some(text);
                }
                Ok(())
            }
            Grammar::Pairs => self.pairs(),
            Grammar::Computation => {
                let callee = self.computation_name()?;
                if matches!(attribute, TO_APPLY | CALLS) {
                    facts.callee = callee;
                }
                Ok(())
            }
            Grammar::Computations => {
                facts.branches = self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
                    checker.computation_name().map(drop)
                })?;
                Ok(())
            }
            Grammar::Names => self.predecessors(subject),
            Grammar::Statistics => self.statistics(),
            Grammar::Origin => self.origin(),
            Grammar::Accuracy => self.accuracy(),
            Grammar::Groups => self.replica_groups(),
            Grammar::Window => self.window(),
            Grammar::DimLabels => self.dim_labels(),
            Grammar::Padding => self.padding(),
            Grammar::Slice => self.slice(),
            Grammar::Aliasing => self.operand_aliasing(),
            Grammar::Shapes => {
                let mut shapes = Vec::new();
                self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
                    shapes.push(checker.shape()?);
                    Ok(())
                })?;
                facts.constraints = Some(shapes);
                Ok(())
            }
            Grammar::Shape => self.shape().map(drop),
            Grammar::Literal => self.typed_literal(),
            Grammar::Domain => self.domain(),
            Grammar::Sparsity => self.sparsity(),
            Grammar::Precision => {
                self.list(Kind::LeftBrace, Kind::RightBrace, |checker| checker.word(&PRECISIONS))?;
                Ok(())
            }
            Grammar::Word(words) => self.word(words),
        }
    }

    fn word(&mut self, words: &Words) -> Result<()> {
        self.word_but(words.names, words.refused, words.any_case)
    }

    /// Reads one of `words`.
    pub(super) fn word_of(&mut self, words: &[&str], any_case: bool) -> Result<()> {
        self.word_but(words, &[], any_case)
    }

    fn word_but(&mut self, words: &[&str], refused: &[&str], any_case: bool) -> Result<()> {
        let word = self.lexer.word();
        let mut words = words.iter().filter(|known| !refused.contains(known));
        let known = self.kind() == Kind::Ident
            && words.clone().any(|known| {
                known.as_bytes() == word || any_case && known.as_bytes().eq_ignore_ascii_case(word)
            });
        if !known {
            let mut message = format!("expected one of {}", words.next().unwrap_or(&""));
            words.for_each(|word| message.extend([", ", word]));
            return Err(self.error(ErrorKind::InvalidAttribute, &message));
        }
        self.advance();
        Ok(())
    }

    pub(super) fn int32(&mut self) -> Result<()> {
        let place = self.lexer.span();
        if i32::try_from(self.integer()?).is_err() {
            return Err(ParseError::new(
                ErrorKind::InvalidNumber,
                place,
                "this integer does not fit 32 bits",
            ));
        }
        Ok(())
    }

    fn float(&mut self) -> Result<()> {
        let place = self.lexer.span();
        let fits = match self.double()? {
            Some((value, _)) => value.is_nan() || (value as f32).is_finite(),
            None => false,
        };
        if !fits {
            return Err(ParseError::new(
                ErrorKind::InvalidNumber,
                place,
                "this number does not fit a 32-bit float",
            ));
        }
        Ok(())
    }

    fn integer_lists(&mut self) -> Result<()> {
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| checker.integer_list().map(drop))?;
        Ok(())
    }

    fn pairs(&mut self) -> Result<()> {
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
            let place = checker.lexer.span();
            if checker.integer_list()? != 2 {
                return Err(ParseError::new(
                    ErrorKind::InvalidAttribute,
                    place,
                    "expected a pair of source and target",
                ));
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Reads the name of a computation defined earlier, or a block.
    fn computation_name(&mut self) -> Result<Option<ComputationId>> {
        if self.kind() == Kind::LeftBrace {
            return self.block();
        }
        let name = self.name()?;
        if let Some(id) = self.computations.get(self.bytes(name)) {
            return Ok(Some(*id));
        }
        let shown = String::from_utf8_lossy(self.bytes(name)).into_owned();
        let later = self
            .module
            .computations()
            .iter()
            .find(|c| !c.is_inline && !c.is_implicit && self.bytes(c.name) == self.bytes(name));
        Err(match later {
            Some(later) => ParseError::new(
                ErrorKind::ForwardReference,
                name,
                format!("computation {shown} is used before its definition"),
            )
            .with_related(later.name),
            None => ParseError::new(
                ErrorKind::UnknownComputation,
                name,
                format!("no computation before this place is called {shown}"),
            ),
        })
    }

    /// Reads `{a, b}`: at least one instruction defined earlier.
    fn predecessors(&mut self, subject: Subject) -> Result<()> {
        self.expect(Kind::LeftBrace, "'{' before control predecessors")?;
        let module: &'a Module = self.module;
        let all = module.control_predecessors();
        let start = all.partition_point(|(row, _)| *row < subject.row);
        // The module lists predecessors defined earlier in text order.
        let mut own = all.iter().skip(start).take_while(|(row, _)| *row == subject.row);
        loop {
            let name = self.name()?;
            self.check_predecessor(subject, name, own.next().map(|(_, predecessor)| *predecessor))?;
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightBrace, "',' or '}' after a control predecessor")
    }

    fn check_predecessor(
        &self,
        subject: Subject,
        name: Span,
        predecessor: Option<Row>,
    ) -> Result<()> {
        let word = self.bytes(name);
        if predecessor
            .is_some_and(|row| row < subject.row && self.module.instruction_name(row) == word)
        {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(word);
        Err(ParseError::new(
            ErrorKind::ForwardReference,
            name,
            format!("no instruction before this one is called {shown}"),
        ))
    }

    pub(super) fn backend_config(&mut self) -> Result<()> {
        self.string_or_dictionary().map(drop)
    }

    /// Reads `"text"` or `{anything with balanced braces}`.
    fn string_or_dictionary(&mut self) -> Result<Span> {
        if self.kind() == Kind::LeftBrace {
            self.lexer.dictionary();
        }
        self.string()
    }

    /// Reads `{key="text",key={...}}`.
    pub(super) fn frontend_attributes(&mut self) -> Result<()> {
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
            if checker.kind() != Kind::AttributeName {
                return Err(checker.error(ErrorKind::ExpectedName, "expected a key and '='"));
            }
            checker.advance();
            checker.string_or_dictionary().map(drop)
        })?;
        Ok(())
    }

    /// Skips metadata in XLA's printed form: each key once, single spaces, no escapes. Returns
    /// false, with nothing read, for any other form.
    #[inline]
    fn plain_metadata(&mut self) -> bool {
        if self.kind() != Kind::LeftBrace {
            return false;
        }
        let mut at = self.lexer.position();
        let mut seen = 0u32;
        loop {
            let Some(rest) = self.text.get(at..) else { return false };
            let length = rest.iter().take(20).take_while(|byte| **byte != b'=').count();
            let Some(key) = rest.get(..length).and_then(metadata_key) else { return false };
            if seen >> key & 1 != 0 {
                return false;
            }
            seen |= 1 << key;
            at += length + 1;
            let Some(value) = rest.get(length + 1..) else { return false };
            if is_metadata_number(key) {
                let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
                if !(1..=9).contains(&digits) {
                    return false;
                }
                at += digits;
            } else {
                let Some(content) = value.strip_prefix(b"\"") else { return false };
                let Some(end) = memchr::memchr2(b'"', b'\\', content) else { return false };
                let plain = content.get(end) == Some(&b'"')
                    && content.get(..end).is_some_and(<[u8]>::is_ascii);
                if !plain {
                    return false;
                }
                at += end + 2;
            }
            match self.text.get(at) {
                Some(b' ') => at += 1,
                Some(b'}') => break,
                _ => return false,
            }
        }
        self.lexer.resume(at + 1);
        true
    }

    pub(super) fn metadata(&mut self) -> Result<()> {
        if self.plain_metadata() {
            return Ok(());
        }
        self.sub_attributes(&METADATA_KEYS, 0, |key| match key {
            7 => SubAttribute::Profile,
            key if is_metadata_number(key) => SubAttribute::Int32,
            _ => SubAttribute::Text,
        })
    }

    /// Reads `{key=value key=value}`: a comma is allowed before each key. `required` is a set of
    /// indices into `keys`.
    pub(super) fn sub_attributes(
        &mut self,
        keys: &[&[u8]],
        required: u32,
        grammar: impl Fn(usize) -> SubAttribute,
    ) -> Result<()> {
        let start = self.lexer.span();
        self.expect(Kind::LeftBrace, "'{' before attributes")?;
        let mut seen = 0u32;
        while self.kind() != Kind::RightBrace {
            self.eat(Kind::Comma);
            let (key, index) = self.attribute_key(keys)?;
            if seen >> index & 1 != 0 {
                return Err(self.repeated_attribute(key));
            }
            seen |= 1 << index;
            match grammar(index) {
                SubAttribute::Int32 => self.int32()?,
                SubAttribute::Text => {
                    self.string()?;
                }
                SubAttribute::Profile => {
                    self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
                        let place = checker.lexer.span();
                        if !(0..4).contains(&checker.integer()?) {
                            return Err(ParseError::new(
                                ErrorKind::InvalidAttribute,
                                place,
                                "a profile type must be 0, 1, 2 or 3",
                            ));
                        }
                        Ok(())
                    })?;
                }
                SubAttribute::Sharding => self.sharding()?,
                SubAttribute::DomainKind => {
                    let place = self.string()?;
                    let word = self.bytes(place);
                    if word.get(1..word.len() - 1) != Some(b"sharding") {
                        return Err(ParseError::new(
                            ErrorKind::InvalidAttribute,
                            place,
                            "the only kind of domain is \"sharding\"",
                        ));
                    }
                }
            }
        }
        self.advance();
        let missing = required & !seen;
        if missing != 0 {
            let key = keys.get(missing.trailing_zeros() as usize).copied().unwrap_or_default();
            let shown = String::from_utf8_lossy(key).into_owned();
            return Err(ParseError::new(
                ErrorKind::MissingAttribute,
                start,
                format!("{shown}= is missing"),
            ));
        }
        Ok(())
    }
}

/// The index in `METADATA_KEYS` of a key that XLA prints.
#[inline]
fn metadata_key(word: &[u8]) -> Option<usize> {
    Some(match word {
        b"op_type" => 0,
        b"op_name" => 1,
        b"source_file" => 2,
        b"source_line" => 3,
        b"source_end_line" => 4,
        b"source_column" => 5,
        b"source_end_column" => 6,
        b"deduplicated_name" => 8,
        b"scheduling_name" => 9,
        b"stack_frame_id" => 10,
        _ => return None,
    })
}

fn is_metadata_number(key: usize) -> bool {
    matches!(key, 3..=6 | 10)
}
