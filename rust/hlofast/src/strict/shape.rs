//! Shapes, token by token.

use super::Checker;
use super::lexer::Kind;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::{ElementKind, ElementType, Module, Row, ShapeId};
use crate::parse::shape::{MAX_DEPTH, parse_shape};
use crate::text::{Cursor, Span};

impl<'a> Checker<'a> {
    /// Whether the current token may start a shape.
    #[inline]
    pub(super) fn starts_shape(&self) -> bool {
        match self.kind() {
            Kind::Type | Kind::LeftParen => true,
            Kind::Ident => {
                self.lexer.word() == b"b" && self.lexer.look_ahead() == Kind::LeftParen
            }
            _ => false,
        }
    }

    /// Reads a shape; its text.
    pub(super) fn shape(&mut self) -> Result<Span> {
        let start = self.lexer.start;
        let mut end = self.lexer.end;
        let mut opens: Vec<bool> = Vec::new();
        loop {
            if self.kind() == Kind::LeftParen {
                opens.push(false);
                self.shape_depth(opens.len())?;
                self.advance();
                if self.kind() != Kind::RightParen {
                    continue;
                }
            } else if self.kind() == Kind::Ident && self.starts_shape() {
                self.advance();
                opens.push(true);
                self.shape_depth(opens.len())?;
                self.advance();
                self.array_shape(&mut end)?;
            } else {
                self.array_shape(&mut end)?;
            }
            loop {
                let Some(is_buffer) = opens.last() else {
                    return Ok(Span::new(start, end));
                };
                if self.kind() == Kind::Comma && !is_buffer {
                    self.advance();
                    break;
                }
                end = self.lexer.end;
                self.expect(Kind::RightParen, "')' at the end of a tuple shape")?;
                opens.pop();
            }
        }
    }

    fn shape_depth(&self, depth: usize) -> Result<()> {
        if depth <= MAX_DEPTH {
            return Ok(());
        }
        Err(ParseError::new(
            ErrorKind::TooDeep,
            self.lexer.span(),
            format!("shapes nest deeper than {MAX_DEPTH} levels"),
        ))
    }

    /// `f32[2,3]{1,0}`; moves `end` behind its last token.
    fn array_shape(&mut self, end: &mut usize) -> Result<()> {
        let start = self.lexer.start;
        if self.kind() != Kind::Type {
            return Err(self.error(ErrorKind::InvalidShape, "expected an element type"));
        }
        let element_type = ElementType::from_bytes(self.lexer.word());
        self.advance();
        let mut has_dimensions = false;
        self.expect(Kind::LeftSquare, "'[' after an element type")?;
        let mut rank = 0;
        if self.kind() != Kind::RightSquare {
            loop {
                self.dimension()?;
                rank += 1;
                has_dimensions = true;
                if !self.eat(Kind::Comma) {
                    break;
                }
            }
        }
        *end = self.lexer.end;
        self.expect(Kind::RightSquare, "',' or ']' in the dimensions of a shape")?;
        let is_opaque = element_type.is_some_and(|t| t.kind() == ElementKind::Opaque);
        if is_opaque && has_dimensions {
            return Err(ParseError::new(
                ErrorKind::InvalidShape,
                Span::new(start, *end),
                "a token or opaque value has no dimensions",
            ));
        }
        if self.kind() == Kind::LeftBrace
            && matches!(self.lexer.look_ahead(), Kind::Int | Kind::Colon)
        {
            let at = self.lexer.start;
            let ordered = self.layout(end)?;
            if ordered != rank {
                return Err(ParseError::new(
                    ErrorKind::InvalidLayout,
                    Span::new(at, *end),
                    format!("the shape has {rank} dimensions, but its layout orders {ordered}"),
                ));
            }
            if is_opaque {
                return Ok(());
            }
        }
        Ok(())
    }

    fn dimension(&mut self) -> Result<()> {
        if self.eat(Kind::Question) {
            return Ok(());
        }
        self.eat(Kind::LessEqual);
        let place = self.lexer.span();
        let size = self.integer()?;
        if size < 0 {
            return Err(ParseError::new(
                ErrorKind::InvalidShape,
                place,
                "a dimension size is negative or beyond 63 bits",
            ));
        }
        Ok(())
    }

    /// `{1,0:T(8,128)}`; the number of dimensions it orders.
    fn layout(&mut self, end: &mut usize) -> Result<usize> {
        self.advance();
        let mut ordered = 0;
        if self.kind() == Kind::Int {
            loop {
                self.integer()?;
                ordered += 1;
                if !self.eat(Kind::Comma) {
                    break;
                }
            }
        }
        if self.eat(Kind::Colon) {
            self.layout_items()?;
        }
        *end = self.lexer.end;
        if self.kind() != Kind::RightBrace {
            return Err(self.error(ErrorKind::InvalidLayout, "expected '}' at the end of a layout"));
        }
        self.advance();
        Ok(ordered)
    }

    fn layout_items(&mut self) -> Result<()> {
        if self.eat_word(b"D") {
            self.list(Kind::LeftParen, Kind::RightParen, |checker| {
                if checker.kind() != Kind::Ident
                    || !matches!(checker.lexer.word(), b"D" | b"C" | b"S" | b"H")
                {
                    return Err(checker.error(
                        ErrorKind::InvalidLayout,
                        "expected a dimension level type: D, C, S or H",
                    ));
                }
                checker.advance();
                checker.eat(Kind::Plus);
                checker.eat(Kind::Tilde);
                Ok(())
            })?;
        }
        if self.eat_word(b"T") {
            while self.kind() == Kind::LeftParen {
                self.list(Kind::LeftParen, Kind::RightParen, |checker| {
                    if checker.eat(Kind::Asterisk) {
                        return Ok(());
                    }
                    checker.integer().map(drop)
                })?;
            }
        }
        if self.eat_word(b"L") {
            self.parenthesised_integer()?;
        }
        for symbol in [Kind::Octothorp, Kind::Asterisk] {
            if self.eat(symbol) {
                self.expect(Kind::LeftParen, "'(' after a sparse layout item")?;
                let found = (self.kind() == Kind::Type)
                    .then(|| ElementType::from_bytes(self.lexer.word()))
                    .flatten()
                    .is_some_and(|t| t.kind() == ElementKind::Unsigned);
                if !found {
                    return Err(
                        self.error(ErrorKind::InvalidLayout, "expected an unsigned element type")
                    );
                }
                self.advance();
                self.expect(Kind::RightParen, "')' after an element type")?;
            }
        }
        for item in [b"E", b"S"] {
            if self.eat_word(item) {
                self.parenthesised_integer()?;
            }
        }
        if self.eat_word(b"SC") {
            loop {
                self.expect(Kind::LeftParen, "'(' before a split")?;
                self.integer()?;
                self.expect(Kind::Colon, "':' after the dimension of a split")?;
                if self.kind() != Kind::RightParen {
                    loop {
                        self.integer()?;
                        if !self.eat(Kind::Comma) {
                            break;
                        }
                    }
                }
                self.expect(Kind::RightParen, "')' after a split")?;
                if self.kind() != Kind::LeftParen {
                    break;
                }
            }
        }
        if self.kind() == Kind::Ident && self.lexer.word() == b"P" {
            return Err(self.error(
                ErrorKind::InvalidLayout,
                "a physical shape is only for sparse arrays, which XLA no longer has",
            ));
        }
        if self.eat_word(b"M") {
            self.parenthesised_integer()?;
        }
        Ok(())
    }

    fn parenthesised_integer(&mut self) -> Result<()> {
        self.expect(Kind::LeftParen, "'(' in a layout item")?;
        self.integer()?;
        self.expect(Kind::RightParen, "')' in a layout item")
    }

    /// The id, in `self.declared`, of the shape that `span` spells.
    pub(super) fn declared_shape(&mut self, span: Span) -> Result<ShapeId> {
        let text = self.bytes(span);
        if let Some(id) = self.declared_texts.get(text) {
            return Ok(*id);
        }
        let mut cursor = Cursor::within(self.text, span);
        let id = parse_shape(&mut cursor, &mut self.declared)?;
        self.declared_texts.insert(text, id);
        Ok(id)
    }

    /// Whether the shape that `span` spells is compatible with that of `row`.
    pub(super) fn is_compatible(&mut self, span: Span, row: Row) -> Result<bool> {
        let declared = self.declared_shape(span)?;
        let module: &'a Module = self.module;
        if super::semantics::is_always_token(module.opcode(row)) {
            let array = self.declared.table.array(declared);
            return Ok(array.is_some_and(|a| a.element_type == ElementType::Token));
        }
        let actual = module.shape(row);
        if self.compatible.contains(&(declared, actual)) {
            return Ok(true);
        }
        let found = self.declared.table.is_compatible(declared, module.shapes(), actual);
        if found {
            self.compatible.insert((declared, actual));
        }
        Ok(found)
    }
}
