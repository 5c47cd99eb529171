//! Shapes, token by token.

use super::Checker;
use super::lexer::Kind;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::shape_text::{MAX_DEPTH, parse_shape};
use crate::ir::{ElementKind, ElementType, Module, Row, ShapeId, ShapeTable, ShapeView};
use crate::text::{Cursor, Span, is_identifier_start};

impl<'a> Checker<'a> {
    /// Whether the current token can start a shape.
    #[inline]
    pub(super) fn starts_shape(&self) -> bool {
        match self.kind() {
            Kind::Type | Kind::LeftParen => true,
            Kind::Ident => self.lexer.word() == b"b" && self.lexer.look_ahead() == Kind::LeftParen,
            _ => false,
        }
    }

    /// Returns the end of the module's text for the shape of `row`, if it is at `position` and
    /// followed by a space and a word.
    #[inline]
    pub(super) fn spelled_at(&self, position: usize, row: Row) -> Option<usize> {
        let module: &'a Module = self.module;
        let known = module.shapes().text(module.shape(row));
        let end = position + known.len();
        let here = self.text.get(position..end)?;
        let known = self.text.get(known.range())?;
        let ends = self.text.get(end) == Some(&b' ')
            && self
                .text
                .get(end + 1)
                .is_some_and(|byte| is_identifier_start(*byte) || *byte == b'%');
        (ends && !here.is_empty() && here == known).then_some(end)
    }

    /// Reads the result shape of `row`; text that passed before is skipped.
    #[inline]
    pub(super) fn result_shape(&mut self, row: Row) -> Result<()> {
        if row.0 == super::operands::NO_ROW {
            return self.shape().map(drop);
        }
        let id = self.module.shape(row).0 as usize;
        let Some(end) = self.spelled_at(self.lexer.start, row) else {
            return self.shape().map(drop);
        };
        if self.passed.get(id) == Some(&true) {
            self.lexer.resume(end);
            return Ok(());
        }
        let read = self.shape()?;
        if read.end as usize == end
            && let Some(passed) = self.passed.get_mut(id)
        {
            *passed = true;
        }
        Ok(())
    }

    /// Reads a shape; returns its span.
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
                if self.array_shape(&mut end, false)? {
                    return Err(ParseError::new(
                        ErrorKind::InvalidShape,
                        Span::new(start, end),
                        "a buffer must contain exactly one array shape",
                    ));
                }
            } else {
                self.array_shape(&mut end, opens.contains(&false))?;
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

    /// Reads `f32[2,3]{1,0}` and sets `end` to the end of its last token; returns whether the type
    /// is `token` or `opaque`. XLA validates layouts only inside tuples.
    fn array_shape(&mut self, end: &mut usize, in_tuple: bool) -> Result<bool> {
        let start = self.lexer.start;
        if self.kind() != Kind::Type {
            return Err(self.error(ErrorKind::InvalidShape, "expected an element type"));
        }
        let element_type = ElementType::from_bytes(self.lexer.word());
        self.advance();
        self.expect(Kind::LeftSquare, "'[' after an element type")?;
        let mut rank = 0;
        let mut negative = None;
        if self.kind() != Kind::RightSquare {
            loop {
                self.dimension(&mut negative)?;
                rank += 1;
                if !self.eat(Kind::Comma) {
                    break;
                }
            }
        }
        *end = self.lexer.end;
        self.expect(Kind::RightSquare, "',' or ']' in the dimensions of a shape")?;
        if let Some(place) = negative {
            return Err(ParseError::new(
                ErrorKind::InvalidShape,
                place,
                "a dimension size is negative or beyond 63 bits",
            ));
        }
        let mut has_layout = false;
        if self.kind() == Kind::LeftBrace
            && matches!(self.lexer.look_ahead(), Kind::Int | Kind::Colon)
        {
            let at = self.lexer.start;
            has_layout = true;
            let (ordered, is_permutation) = self.layout(end)?;
            if ordered == rank && in_tuple && !is_permutation {
                return Err(ParseError::new(
                    ErrorKind::InvalidLayout,
                    Span::new(at, *end),
                    "the layout of an array in a tuple must order each dimension once",
                ));
            }
            if ordered != rank {
                return Err(ParseError::new(
                    ErrorKind::InvalidLayout,
                    Span::new(at, *end),
                    format!("the layout orders {ordered} dimensions, but the shape has {rank}"),
                ));
            }
        }
        let is_opaque = element_type.is_some_and(|t| t.kind() == ElementKind::Opaque);
        if is_opaque && (rank > 0 || has_layout) {
            return Err(ParseError::new(
                ErrorKind::InvalidShape,
                Span::new(start, *end),
                "a token or opaque value must not have dimensions or a layout",
            ));
        }
        Ok(is_opaque)
    }

    /// Reads a dimension. A negative size becomes an error only after all dimensions are read.
    fn dimension(&mut self, negative: &mut Option<Span>) -> Result<()> {
        if self.eat(Kind::Question) {
            return Ok(());
        }
        let is_bounded = self.eat(Kind::LessEqual);
        let place = self.lexer.span();
        let size = self.integer()?;
        // XLA stores `?` as the smallest integer.
        if size < 0 && !(is_bounded && size == i64::MIN) {
            negative.get_or_insert(place);
        }
        Ok(())
    }

    /// Reads `{1,0:T(8,128)}`; returns the number of dimensions that the layout orders, and whether
    /// each occurs once.
    fn layout(&mut self, end: &mut usize) -> Result<(usize, bool)> {
        self.advance();
        let mut ordered = 0;
        let mut numbers: Vec<i64> = Vec::new();
        if self.kind() == Kind::Int {
            loop {
                numbers.push(self.integer()?);
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
        numbers.sort_unstable();
        Ok((ordered, numbers.into_iter().eq(0..ordered as i64)))
    }

    /// If XLA cannot read an item, it tries the next kind of item from the place where it stopped;
    /// only the closing brace is required.
    fn layout_items(&mut self) -> Result<()> {
        if self.eat_word(b"D") {
            let _ = self.list(Kind::LeftParen, Kind::RightParen, Self::level_type);
        }
        if self.eat_word(b"T") {
            self.tiles()?;
        }
        if self.eat_word(b"L") {
            let place = self.lexer.span();
            if self.parenthesised_integer().is_ok_and(|alignment| alignment < 1) {
                return Err(ParseError::new(
                    ErrorKind::InvalidLayout,
                    place,
                    "an alignment must be at least 1",
                ));
            }
        }
        for symbol in [Kind::Octothorp, Kind::Asterisk] {
            if self.eat(symbol) {
                self.eat(Kind::LeftParen);
                self.eat(Kind::Type);
                self.eat(Kind::RightParen);
            }
        }
        for item in [b"E", b"S"] {
            if self.eat_word(item) {
                let _ = self.parenthesised_integer();
            }
        }
        if self.eat_word(b"SC") {
            let _ = self.splits();
        }
        if self.kind() == Kind::Ident && self.lexer.word() == b"P" {
            return Err(self.error(
                ErrorKind::InvalidLayout,
                "a physical shape is only for sparse arrays, which XLA no longer has",
            ));
        }
        if self.eat_word(b"M") {
            let _ = self.parenthesised_integer();
        }
        Ok(())
    }

    fn level_type(&mut self) -> Result<()> {
        let known = matches!(self.lexer.word(), b"D" | b"C" | b"S" | b"H");
        if self.kind() != Kind::Ident || !known {
            return Err(self.expected("a dimension level type: D, C, S or H"));
        }
        self.advance();
        self.eat(Kind::Plus);
        self.eat(Kind::Tilde);
        Ok(())
    }

    fn tiles(&mut self) -> Result<()> {
        let mut negative = None;
        while self.kind() == Kind::LeftParen {
            let read = self.list(Kind::LeftParen, Kind::RightParen, |checker| {
                if checker.eat(Kind::Asterisk) {
                    return Ok(());
                }
                let place = checker.lexer.span();
                if checker.integer()? < 0 {
                    negative.get_or_insert(place);
                }
                Ok(())
            });
            if read.is_err() {
                break;
            }
        }
        match negative {
            None => Ok(()),
            Some(place) => Err(ParseError::new(
                ErrorKind::InvalidLayout,
                place,
                "the size of a tile must not be negative",
            )),
        }
    }

    fn splits(&mut self) -> Result<()> {
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
                return Ok(());
            }
        }
    }

    fn parenthesised_integer(&mut self) -> Result<i64> {
        self.expect(Kind::LeftParen, "'(' in a layout item")?;
        let value = self.integer()?;
        self.expect(Kind::RightParen, "')' in a layout item")?;
        Ok(value)
    }

    /// The id, in `self.declared`, of the shape spelled by `span`.
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

    /// Whether the shape spelled by `span` is compatible with the shape of `row`.
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
        let fits = is_compatible(&self.declared.table, declared, module.shapes(), actual);
        if fits {
            self.compatible.insert((declared, actual));
        }
        Ok(fits)
    }
}

/// Whether structure, element types and dimensions agree; a dimension without a bound agrees with
/// any other.
fn is_compatible(a: &ShapeTable, first: ShapeId, b: &ShapeTable, second: ShapeId) -> bool {
    let mut stack = vec![(first, second)];
    while let Some((x, y)) = stack.pop() {
        match (a.get(x), b.get(y)) {
            (ShapeView::Array(x), ShapeView::Array(y)) => {
                let agrees = x.element_type == y.element_type
                    && x.rank() == y.rank()
                    && x.dimensions().zip(y.dimensions()).all(|(x, y)| {
                        x.bound() == y.bound() || x.bound().is_none() || y.bound().is_none()
                    });
                if !agrees {
                    return false;
                }
            }
            (ShapeView::Buffer(x), ShapeView::Buffer(y)) => stack.push((x, y)),
            (ShapeView::Tuple(x), ShapeView::Tuple(y)) if x.len() == y.len() => {
                stack.extend(x.iter().copied().zip(y.iter().copied()));
            }
            _ => return false,
        }
    }
    true
}
