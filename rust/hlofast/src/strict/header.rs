//! The module header and the stack-frame tables.

use super::Checker;
use super::lexer::{Kind, Lexer};
use super::value::SubAttribute;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::attribute::{HEADER, HeaderGrammar};
use crate::ir::{ShapeId, ShapeView};
use crate::parse::{Options, read};
use crate::text::{Source, Span};

impl Checker<'_> {
    /// Reads everything from the start to the end of the text.
    pub(super) fn module(&mut self) -> Result<()> {
        let has_header = self.lexer.is_keyword(b"HloModule");
        if has_header {
            self.header()?;
        } else {
            let starts_computation =
                self.lexer.is_keyword(b"ENTRY") || self.lexer.look_ahead() == Kind::LeftBrace;
            if !starts_computation {
                return self.single_instruction();
            }
        }
        loop {
            self.computation()?;
            if self.kind() == Kind::End {
                break;
            }
        }
        self.check_aliases()
    }

    fn header(&mut self) -> Result<()> {
        self.advance();
        self.name()?;
        let mut seen = 0u32;
        while self.eat(Kind::Comma) {
            let (key, index) = self.attribute_key(&HEADER.map(|(key, ..)| key.as_bytes()))?;
            let Some((_, grammar, is_newer)) = HEADER.get(index) else { continue };
            if *is_newer && !self.is_newest() {
                return Err(self.unexpected_attribute(key, "a module"));
            }
            if seen >> index & 1 != 0 {
                return Err(self.repeated_attribute(key));
            }
            seen |= 1 << index;
            self.header_value(*grammar)?;
        }
        self.tables()
    }

    /// Reads an attribute's name; returns its span and its index in `known`.
    pub(super) fn attribute_key(&mut self, known: &[&[u8]]) -> Result<(Span, usize)> {
        if self.kind() != Kind::AttributeName {
            return Err(self.error(ErrorKind::ExpectedName, "expected an attribute's name and '='"));
        }
        let key = self.lexer.span();
        let Some(index) = known.iter().position(|name| *name == self.lexer.word()) else {
            return Err(self.unexpected_attribute(key, "this place"));
        };
        self.advance();
        Ok((key, index))
    }

    #[cold]
    pub(super) fn unexpected_attribute(&self, key: Span, of: &str) -> ParseError {
        let shown = String::from_utf8_lossy(self.bytes(key));
        ParseError::new(
            ErrorKind::UnexpectedAttribute,
            key,
            format!("{of} has no attribute {shown}"),
        )
    }

    #[cold]
    pub(super) fn repeated_attribute(&self, key: Span) -> ParseError {
        let shown = String::from_utf8_lossy(self.bytes(key));
        ParseError::new(
            ErrorKind::DuplicateAttribute,
            key,
            format!("attribute {shown} is given twice"),
        )
    }

    fn header_value(&mut self, grammar: HeaderGrammar) -> Result<()> {
        match grammar {
            HeaderGrammar::Boolean => self.boolean().map(drop),
            HeaderGrammar::Integer => self.integer().map(drop),
            HeaderGrammar::Propagation => self.boolean_or_list(),
            HeaderGrammar::Frontend => self.frontend_attributes(),
            HeaderGrammar::Aliases => self.aliases(),
            HeaderGrammar::Donors => self.donors(),
            HeaderGrammar::EntryLayout => self.entry_layout(),
            HeaderGrammar::Recovery => self.recovery_table(),
            HeaderGrammar::Debug => self.debug_attributes(),
        }
    }

    fn aliases(&mut self) -> Result<()> {
        let mut index = Vec::new();
        self.expect(Kind::LeftBrace, "'{' before aliases")?;
        while self.kind() != Kind::RightBrace {
            self.shape_index(&mut index)?;
            self.expect(Kind::Colon, "':' after an output's index")?;
            self.expect(Kind::LeftParen, "'(' before a parameter's number")?;
            self.parameter_number()?;
            self.expect(Kind::Comma, "',' after a parameter's number")?;
            self.shape_index(&mut index)?;
            if self.eat(Kind::Comma) {
                let kind = self.name()?;
                if !matches!(self.bytes(kind), b"may-alias" | b"must-alias") {
                    return Err(ParseError::new(
                        ErrorKind::InvalidHeader,
                        kind,
                        "an alias must be may-alias or must-alias",
                    ));
                }
            }
            self.expect(Kind::RightParen, "')' after an alias")?;
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightBrace, "'}' after aliases")
    }

    fn parameter_number(&mut self) -> Result<()> {
        let place = self.lexer.span();
        if self.integer()? < 0 {
            return Err(ParseError::new(
                ErrorKind::InvalidHeader,
                place,
                "a parameter's number must not be negative",
            ));
        }
        Ok(())
    }

    fn donors(&mut self) -> Result<()> {
        let mut index = Vec::new();
        self.expect(Kind::LeftBrace, "'{' before donors")?;
        while self.kind() != Kind::RightBrace {
            self.expect(Kind::LeftParen, "'(' before a parameter's number")?;
            self.parameter_number()?;
            self.expect(Kind::Comma, "',' after a parameter's number")?;
            self.shape_index(&mut index)?;
            self.expect(Kind::RightParen, "')' after a donor")?;
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightBrace, "'}' after donors")
    }

    fn entry_layout(&mut self) -> Result<()> {
        self.expect(Kind::LeftBrace, "'{' before the entry's layout")?;
        self.expect(Kind::LeftParen, "'(' before the parameters' shapes")?;
        while self.kind() != Kind::RightParen {
            self.shape()?;
            if self.kind() == Kind::RightParen {
                break;
            }
            self.expect(Kind::Comma, "',' between the parameters' shapes")?;
        }
        self.expect(Kind::RightParen, "')' after the parameters' shapes")?;
        self.expect(Kind::Arrow, "'->' before the result's shape")?;
        self.shape()?;
        self.expect(Kind::RightBrace, "'}' after the entry's layout")
    }

    fn boolean_or_list(&mut self) -> Result<()> {
        if self.kind() != Kind::LeftBrace {
            return self.boolean().map(drop);
        }
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| checker.boolean().map(drop))?;
        Ok(())
    }

    /// Reads `{ {"a" {0}} : {"b"}, "HloModule ..." }`.
    fn recovery_table(&mut self) -> Result<()> {
        self.expect(Kind::LeftBrace, "'{' before the recovery table")?;
        while self.kind() != Kind::RightBrace {
            self.original_array()?;
            self.expect(Kind::Colon, "':' after an original array")?;
            self.original_array()?;
            if self.eat(Kind::Comma) {
                let text = self.string()?;
                self.recovery_module(text)?;
            }
        }
        self.advance();
        Ok(())
    }

    /// Checks a module inside a string with the same strictness.
    fn recovery_module(&mut self, place: Span) -> Result<()> {
        let inside = Span { start: place.start + 1, end: place.end - 1 };
        let text = crate::ir::decode::unescape(self.bytes(inside))?;
        let options = Options { strictness: self.strictness, ..Options::default() };
        let nested = read(Source::from_slice(&text), &options)
            .and_then(|module| super::check(&module, options.strictness));
        nested.map_err(|error| {
            ParseError::new(
                ErrorKind::InvalidHeader,
                place,
                format!("the module in this string cannot be read: {}", error.message()),
            )
        })
    }

    fn debug_attributes(&mut self) -> Result<()> {
        self.expect(Kind::LeftBrace, "'{' before debug attributes")?;
        while self.kind() != Kind::RightBrace {
            self.original_array()?;
            self.expect(Kind::Colon, "':' after an original array")?;
            if self.kind() == Kind::LeftParen {
                self.list(Kind::LeftParen, Kind::RightParen, Self::debug_attribute)?;
            } else {
                self.debug_attribute()?;
            }
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightBrace, "'}' after debug attributes")
    }

    fn debug_attribute(&mut self) -> Result<()> {
        const KEYS: [&[u8]; 4] = [b"log_mode", b"callback_id", b"partitioned", b"op_id"];
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
            let (_, index) = checker.attribute_key(&KEYS)?;
            match index {
                0 => {
                    if !matches!(checker.lexer.word(), b"default" | b"fusion_debugger") {
                        return Err(checker.expected("default or fusion_debugger"));
                    }
                    checker.advance();
                    Ok(())
                }
                2 => checker.boolean().map(drop),
                _ => checker.integer().map(drop),
            }
        })?;
        Ok(())
    }

    fn tables(&mut self) -> Result<()> {
        if !self.eat_keyword(b"FileNames") {
            return Ok(());
        }
        while self.eat(Kind::Int) {
            self.string()?;
        }
        self.table_keyword(b"FunctionNames")?;
        while self.eat(Kind::Int) {
            // The name is optional in XLA.
            self.eat(Kind::String);
        }
        self.table_keyword(b"FileLocations")?;
        const LOCATION: [&[u8]; 6] =
            [b"file_name_id", b"function_name_id", b"line", b"end_line", b"column", b"end_column"];
        while self.eat(Kind::Int) {
            self.sub_attributes(&LOCATION, 0b11_1111, |_| SubAttribute::Int32)?;
        }
        self.table_keyword(b"StackFrames")?;
        const FRAME: [&[u8]; 2] = [b"file_location_id", b"parent_frame_id"];
        while self.eat(Kind::Int) {
            self.sub_attributes(&FRAME, 0b11, |_| SubAttribute::Int32)?;
        }
        Ok(())
    }

    fn table_keyword(&mut self, word: &[u8]) -> Result<()> {
        if self.eat_keyword(word) {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(word);
        Err(self.error(ErrorKind::InvalidHeader, &format!("expected the table {shown}")))
    }

    /// Checks that aliased outputs exist in the entry's result.
    fn check_aliases(&mut self) -> Result<()> {
        let module = self.module;
        let Some(value) = module.header_attribute("input_output_alias") else { return Ok(()) };
        let after = std::mem::replace(&mut self.lexer, Lexer::new(self.text, value.start as usize));
        let entry = module.computation(module.entry());
        let result = module.shape(crate::ir::Row(entry.root));
        let mut index = Vec::new();
        self.advance();
        while self.kind() == Kind::LeftBrace {
            let place = self.lexer.span();
            self.shape_index(&mut index)?;
            if !self.has_index(result, &index) {
                return Err(ParseError::new(
                    ErrorKind::InvalidHeader,
                    place,
                    "the entry's result has no element at this index",
                ));
            }
            while !matches!(self.kind(), Kind::RightParen | Kind::End | Kind::Error) {
                self.advance();
            }
            self.advance();
            self.eat(Kind::Comma);
        }
        self.lexer = after;
        Ok(())
    }

    /// Whether `index` selects a part of shape `id`.
    pub(super) fn has_index(&self, id: ShapeId, index: &[i64]) -> bool {
        let shapes = self.module.shapes();
        let mut shape = id;
        for element in index {
            let ShapeView::Tuple(children) = shapes.get(shape) else { return false };
            let child = usize::try_from(*element).ok().and_then(|at| children.get(at));
            let Some(child) = child else { return false };
            shape = *child;
        }
        true
    }
}
