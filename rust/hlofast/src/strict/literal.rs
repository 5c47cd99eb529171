//! Literals: element counts, ranges, and other text that XLA accepts inside braces.

use super::Checker;
use super::lexer::Kind;
use super::number;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::shape::ArrayShape;
use crate::ir::{Dimension, ElementKind, ElementType, ShapeId, ShapeTable, ShapeView};
use crate::text::Span;

/// Limit on the nesting of braces that is counted without using the heap.
const INLINE_RANK: usize = 8;

impl<'a> Checker<'a> {
    /// Reads a literal of shape `id` of `shapes`.
    pub(super) fn literal(&mut self, shapes: &'a ShapeTable, id: ShapeId) -> Result<()> {
        match shapes.get(id) {
            ShapeView::Tuple(elements) => {
                self.deeper(|checker| checker.tuple_literal(shapes, elements))
            }
            ShapeView::Buffer(inner) => match shapes.array(inner) {
                Some(array) => self.array_literal(array),
                None => Err(self.error(ErrorKind::InvalidLiteral, "this shape has no literals")),
            },
            ShapeView::Array(array) => self.array_literal(array),
        }
    }

    /// Reads `(literal, literal)`; the commas between elements are optional.
    fn tuple_literal(&mut self, shapes: &'a ShapeTable, elements: &'a [ShapeId]) -> Result<()> {
        self.expect(Kind::LeftParen, "'(' before the elements of a tuple")?;
        if self.eat(Kind::RightParen) {
            return Ok(());
        }
        for (index, element) in elements.iter().enumerate() {
            if index > 0 {
                self.eat(Kind::Comma);
            }
            self.literal(shapes, *element)?;
        }
        self.expect(Kind::RightParen, "')' after the elements of a tuple")
    }

    fn array_literal(&mut self, array: ArrayShape<'_>) -> Result<()> {
        let kind = array.element_type.kind();
        if kind == ElementKind::Opaque {
            return Err(self.error(ErrorKind::InvalidLiteral, "a token has no literals"));
        }
        self.check_constant_layout(&array)?;
        if array.rank() == 0 {
            return self.scalar_literal(array.element_type);
        }
        let mut inline = [(0i64, 0i64); INLINE_RANK];
        let mut spilled = Vec::new();
        let counts: &mut [(i64, i64)] = match inline.get_mut(..array.rank()) {
            Some(counts) => counts,
            None => {
                spilled.resize(array.rank(), (0, 0));
                &mut spilled
            }
        };
        for (count, dimension) in counts.iter_mut().zip(array.dimensions()) {
            count.1 = dimension.bound().unwrap_or(i64::MIN);
        }
        self.nested_literal(array.element_type, counts, element_count(&array))
    }

    /// Reads the braces of a literal. `counts` holds, per dimension, the elements seen and the
    /// size.
    fn nested_literal(
        &mut self,
        element_type: ElementType,
        counts: &mut [(i64, i64)],
        total: i64,
    ) -> Result<()> {
        let rank = counts.len();
        let is_complex = element_type.kind() == ElementKind::Complex;
        let mut level = 0usize;
        let mut stored = 0i64;
        loop {
            match self.kind() {
                Kind::Comma => self.advance(),
                Kind::LeftBrace => {
                    level += 1;
                    if level > rank {
                        return Err(self.nested_wrongly(rank));
                    }
                    if let Some((seen, size)) = level.checked_sub(2).and_then(|i| counts.get_mut(i))
                    {
                        *seen += 1;
                        if *seen > *size {
                            return Err(self.wrong_elements(level - 1, *size, None));
                        }
                    }
                    self.advance();
                }
                Kind::RightBrace => {
                    let Some((seen, size)) = level.checked_sub(1).and_then(|i| counts.get_mut(i))
                    else {
                        return Err(self.error(
                            ErrorKind::InvalidLiteral,
                            "this '}' has no matching '{' in the literal",
                        ));
                    };
                    if *seen != *size {
                        return Err(self.wrong_elements(level, *size, Some(*seen)));
                    }
                    *seen = 0;
                    level -= 1;
                    self.advance();
                }
                Kind::Dots => {
                    if level != 1 {
                        return Err(self.error(
                            ErrorKind::InvalidLiteral,
                            "'...' is only allowed in place of elements of the first dimension",
                        ));
                    }
                    if let Some((seen, size)) = counts.first_mut() {
                        *seen = *size;
                    }
                    self.advance();
                }
                Kind::LeftParen if is_complex && level != rank => {
                    return Err(self.nested_wrongly(rank));
                }
                _ => {
                    // XLA stores every number, but counts only numbers at the proper nesting level.
                    if level == rank
                        && let Some((seen, size)) = counts.last_mut()
                    {
                        *seen += 1;
                        if *seen > *size {
                            return Err(self.wrong_elements(level, *size, None));
                        }
                    }
                    let place = self.lexer.span();
                    self.element(element_type)?;
                    if stored >= total {
                        return Err(ParseError::new(
                            ErrorKind::InvalidLiteral,
                            place,
                            format!("the shape has only {total} elements"),
                        ));
                    }
                    stored += 1;
                }
            }
            if level == 0 {
                return Ok(());
            }
        }
    }

    fn scalar_literal(&mut self, element_type: ElementType) -> Result<()> {
        match self.kind() {
            // XLA reads a lone comma as the default value.
            Kind::Comma => {
                self.advance();
                Ok(())
            }
            Kind::LeftBrace => Err(self.nested_wrongly(0)),
            _ => self.element(element_type),
        }
    }

    #[cold]
    fn nested_wrongly(&self, rank: usize) -> ParseError {
        let message = format!("expected an array of {rank} dimensions");
        self.error(ErrorKind::InvalidLiteral, &message)
    }

    #[cold]
    fn wrong_elements(&self, level: usize, size: i64, seen: Option<i64>) -> ParseError {
        let message = match seen {
            Some(seen) => {
                format!("dimension {} has {size} elements, but {seen} are given", level - 1)
            }
            None => format!("dimension {} has {size} elements, but more are given", level - 1),
        };
        self.error(ErrorKind::InvalidLiteral, &message)
    }

    /// Reads one element.
    #[inline]
    fn element(&mut self, element_type: ElementType) -> Result<()> {
        let place = self.lexer.span();
        let kind = element_type.kind();
        let out_of_range = || {
            ParseError::new(
                ErrorKind::InvalidLiteral,
                place,
                format!("this value does not fit {}", element_type.as_str()),
            )
        };
        if kind == ElementKind::Complex {
            if self.kind() != Kind::LeftParen {
                return Err(self.error(
                    ErrorKind::InvalidLiteral,
                    "write a complex element as (real, imaginary)",
                ));
            }
            return self.complex_element(element_type, place);
        }
        match self.kind() {
            Kind::Keyword if kind == ElementKind::Predicate && self.lexer.word() != b"inf" => {
                self.boolean().map(drop)
            }
            Kind::Int => {
                let value = self.lexer.value;
                let fits = match kind {
                    ElementKind::Float => number::fits_float(element_type, value as f64),
                    ElementKind::Predicate => true,
                    _ => number::fits_integer(element_type, value),
                };
                if !fits {
                    return Err(out_of_range());
                }
                self.advance();
                Ok(())
            }
            Kind::Decimal | Kind::NegativeInf | Kind::Keyword if kind == ElementKind::Float => {
                let value = self.double()?;
                let Some((value, payload)) = value else { return Ok(()) };
                if let Some(payload) = payload
                    && payload > number::nan_payload_mask(element_type)
                {
                    return Err(ParseError::new(
                        ErrorKind::InvalidLiteral,
                        place,
                        format!("{} has no NaN with this payload", element_type.as_str()),
                    ));
                }
                if payload.is_none() && !number::fits_float(element_type, value) {
                    return Err(out_of_range());
                }
                Ok(())
            }
            _ => Err(self.error(
                ErrorKind::InvalidLiteral,
                &format!("expected an element of type {}", element_type.as_str()),
            )),
        }
    }

    fn complex_element(&mut self, element_type: ElementType, place: Span) -> Result<()> {
        let part =
            if element_type == ElementType::C64 { ElementType::F32 } else { ElementType::F64 };
        self.advance();
        let real = self.double()?;
        self.expect(Kind::Comma, "',' after the real part")?;
        let imaginary = self.double()?;
        self.expect(Kind::RightParen, "')' after the imaginary part")?;
        let fits = [real, imaginary]
            .into_iter()
            .flatten()
            .all(|(value, payload)| payload.is_some() || number::fits_float(part, value));
        let payload = real.and_then(|(_, payload)| payload).unwrap_or(0);
        if !fits || payload > number::nan_payload_mask(part) {
            return Err(ParseError::new(
                ErrorKind::InvalidLiteral,
                place,
                format!("this value does not fit {}", element_type.as_str()),
            ));
        }
        Ok(())
    }

    /// Reads a number: its value and NaN payload; None for infinities.
    pub(super) fn double(&mut self) -> Result<Option<(f64, Option<u64>)>> {
        let value = match self.kind() {
            Kind::Int => Some((self.lexer.value as f64, None)),
            Kind::NegativeInf => None,
            Kind::Keyword if self.lexer.word() == b"inf" => None,
            Kind::Decimal => match number::parse(self.lexer.word()) {
                Some(value) => Some((value, self.lexer.nan_payload)),
                None => {
                    return Err(
                        self.error(ErrorKind::InvalidNumber, "this number does not fit a double")
                    );
                }
            },
            _ => return Err(self.error(ErrorKind::InvalidNumber, "expected a number")),
        };
        self.advance();
        Ok(value)
    }

    /// The layout of a constant must order each dimension once; XLA aborts otherwise.
    fn check_constant_layout(&self, array: &ArrayShape<'_>) -> Result<()> {
        let Some(layout) = array.layout else { return Ok(()) };
        let rank = array.rank();
        let order = &layout.minor_to_major;
        let is_permutation =
            order.len() == rank && (0..rank as i64).all(|dimension| order.contains(&dimension));
        if is_permutation {
            return Ok(());
        }
        Err(self.error(
            ErrorKind::InvalidLayout,
            "the layout of a constant must order every dimension once",
        ))
    }

    /// Reads the value of `literal=`: shape and value, or a tuple of these.
    pub(super) fn typed_literal(&mut self) -> Result<()> {
        if self.eat(Kind::LeftParen) {
            self.deeper(|checker| {
                while checker.kind() != Kind::RightParen {
                    checker.typed_literal()?;
                    checker.eat(Kind::Comma);
                }
                Ok(())
            })?;
            self.advance();
            return Ok(());
        }
        let span = self.shape()?;
        let id = self.declared_shape(span)?;
        let Some(array) = self.declared.table.array(id) else {
            return Err(self.error(ErrorKind::InvalidLiteral, "this shape has no literals"));
        };
        let element_type = array.element_type;
        if element_type.kind() == ElementKind::Opaque {
            return Err(self.error(ErrorKind::InvalidLiteral, "a token has no literals"));
        }
        self.check_constant_layout(&array)?;
        if array.rank() == 0 {
            return self.scalar_literal(element_type);
        }
        let total = element_count(&array);
        let mut counts: Vec<(i64, i64)> =
            array.dimensions().map(|d| (0, d.bound().unwrap_or(i64::MIN))).collect();
        self.nested_literal(element_type, &mut counts, total)
    }
}

fn element_count(array: &ArrayShape<'_>) -> i64 {
    if array.dimensions().any(|dimension| dimension == Dimension::Unbounded) {
        return 0;
    }
    array.elements().map_or(i64::MAX, |count| i64::try_from(count).unwrap_or(i64::MAX))
}
