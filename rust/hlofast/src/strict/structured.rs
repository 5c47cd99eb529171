//! Values with their own grammar: windows, labels, slices, origins, accuracies.

use super::Checker;
use super::lexer::Kind;
use super::value::SubAttribute;
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::Span;

impl Checker<'_> {
    /// Reads `{size=1x3 pad=0_0x1_1}`: fields in any order, without commas.
    pub(super) fn window(&mut self) -> Result<()> {
        const FIELDS: [&[u8]; 6] =
            [b"size", b"stride", b"pad", b"lhs_dilate", b"rhs_dilate", b"rhs_reversal"];
        let place = self.lexer.span();
        self.expect(Kind::LeftBrace, "'{' before a window")?;
        let mut lengths: [Option<usize>; 6] = [None; 6];
        while self.kind() != Kind::RightBrace {
            let (key, index) = self.attribute_key(&FIELDS)?;
            let length = if index == 2 { self.pads(false)? } else { self.sizes()? };
            if lengths.get_mut(index).is_some_and(|known| known.replace(length).is_some()) {
                return Err(self.repeated_attribute(key));
            }
        }
        let end = self.lexer.end;
        self.advance();
        let rank = lengths[0].unwrap_or(0);
        if lengths.iter().flatten().any(|length| *length != rank) {
            return Err(ParseError::new(
                ErrorKind::InvalidAttribute,
                Span::new(place.start as usize, end),
                format!("every list of this window needs {rank} numbers, like size="),
            ));
        }
        Ok(())
    }

    /// Reads `3` or `1x3`; returns the number of sizes.
    fn sizes(&mut self) -> Result<usize> {
        let count = match self.kind() {
            Kind::Int => 1,
            Kind::Dxd => {
                let parts = self.lexer.word().split(|byte| *byte == b'x');
                let mut count = 0;
                for part in parts {
                    self.check_number(part)?;
                    count += 1;
                }
                count
            }
            _ => {
                return Err(self.error(ErrorKind::InvalidAttribute, "expected sizes such as 2x3"));
            }
        };
        self.advance();
        Ok(count)
    }

    /// Reads `0_1x2_3`, with interior padding if `interior`; returns the number of dimensions.
    fn pads(&mut self, interior: bool) -> Result<usize> {
        if self.kind() != Kind::Pad {
            return Err(self.error(ErrorKind::InvalidAttribute, "expected padding such as 0_1x2_3"));
        }
        let mut count = 0;
        for dimension in self.lexer.word().split(|byte| *byte == b'x') {
            let mut numbers = 0;
            for number in dimension.split(|byte| *byte == b'_') {
                self.check_number(number)?;
                numbers += 1;
            }
            if numbers != 2 && !interior {
                return Err(self.error(
                    ErrorKind::InvalidAttribute,
                    "the padding of a window is low_high per dimension",
                ));
            }
            count += 1;
        }
        self.advance();
        Ok(count)
    }

    fn check_number(&self, digits: &[u8]) -> Result<()> {
        let fits = std::str::from_utf8(digits).is_ok_and(|text| text.parse::<i64>().is_ok());
        if fits {
            return Ok(());
        }
        Err(self.error(ErrorKind::InvalidNumber, "an integer does not fit 64 bits"))
    }

    pub(super) fn padding(&mut self) -> Result<()> {
        self.pads(true).map(drop)
    }

    /// Reads `bf01_io01->bf01`: each letter and digit once per side, with equally many digits per
    /// side.
    pub(super) fn dim_labels(&mut self) -> Result<()> {
        if self.kind() != Kind::DimLabels {
            return Err(self.error(
                ErrorKind::InvalidAttribute,
                "expected dimension labels such as bf01_io01->bf01",
            ));
        }
        let sides = self.lexer.word().split(|byte| matches!(byte, b'_' | b'-'));
        let mut digits = [0usize; 3];
        for (side, count) in sides.zip(&mut digits) {
            let labels = || side.iter().filter(|label| !matches!(label, b'?' | b'>'));
            for (index, label) in labels().enumerate() {
                if labels().take(index).any(|other| other == label) {
                    return Err(self.error(
                        ErrorKind::InvalidAttribute,
                        "a label occurs twice on one side of the dimension labels",
                    ));
                }
            }
            *count = labels().filter(|label| label.is_ascii_digit()).count();
        }
        if digits[0] != digits[1] || digits[0] != digits[2] {
            return Err(self.error(
                ErrorKind::InvalidAttribute,
                "input, kernel and output have different numbers of spatial dimensions",
            ));
        }
        self.advance();
        Ok(())
    }

    /// Reads `{[0:2], [0:4:2]}`.
    pub(super) fn slice(&mut self) -> Result<()> {
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
            let place = checker.lexer.span();
            checker.expect(Kind::LeftSquare, "'[' before a range")?;
            let mut count = 0;
            if checker.kind() != Kind::RightSquare {
                loop {
                    checker.integer()?;
                    count += 1;
                    if !checker.eat(Kind::Colon) {
                        break;
                    }
                }
            }
            checker.expect(Kind::RightSquare, "':' or ']' in a range")?;
            if !matches!(count, 2 | 3) {
                return Err(ParseError::new(
                    ErrorKind::InvalidAttribute,
                    place,
                    "a range must be [start:limit] or [start:limit:stride]",
                ));
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Reads `{"name" {0,1}}` or `{}`.
    pub(super) fn original_array(&mut self) -> Result<()> {
        self.expect(Kind::LeftBrace, "'{' before an original array")?;
        if self.eat(Kind::String) && self.kind() == Kind::LeftBrace {
            self.shape_index(&mut Vec::new())?;
        }
        self.expect(Kind::RightBrace, "'}' after an original array")
    }

    /// Reads `{({"a"}, {"b"})}` or `{[synthetic_call]}`. XLA does not check that the parentheses match.
    pub(super) fn origin(&mut self) -> Result<()> {
        self.expect(Kind::LeftBrace, "'{' before an origin")?;
        if self.eat(Kind::LeftSquare) {
            self.word_of(&["synthetic_call"], false)?;
            self.expect(Kind::RightSquare, "']' after synthetic_call")?;
            return self.expect(Kind::RightBrace, "'}' after an origin");
        }
        let mut depth = 0usize;
        loop {
            match self.kind() {
                Kind::RightBrace => break,
                Kind::LeftParen => {
                    depth += 1;
                    self.advance();
                }
                Kind::Comma if depth > 0 => self.advance(),
                Kind::RightParen if depth > 0 => {
                    depth -= 1;
                    self.advance();
                }
                Kind::LeftBrace => self.original_array()?,
                _ => {
                    return Err(self.error(
                        ErrorKind::InvalidAttribute,
                        "expected original arrays, or [synthetic_call]",
                    ));
                }
            }
        }
        self.advance();
        Ok(())
    }

    /// Reads `{visualizing_index=1,name=0.5}`.
    pub(super) fn statistics(&mut self) -> Result<()> {
        let mut first = true;
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
            if checker.kind() != Kind::AttributeName {
                return Err(checker.error(ErrorKind::ExpectedName, "expected a name and '='"));
            }
            checker.advance();
            if std::mem::replace(&mut first, false) {
                return checker.integer().map(drop);
            }
            if !matches!(checker.kind(), Kind::Int | Kind::Decimal) {
                return Err(checker.error(ErrorKind::InvalidAttribute, "expected a number"));
            }
            checker.double().map(drop)
        })?;
        Ok(())
    }

    /// Reads `{mode=highest}` or `{tolerance={atol=1}}`.
    pub(super) fn accuracy(&mut self) -> Result<()> {
        self.expect(Kind::LeftBrace, "'{' before an accuracy")?;
        let (_, index) = self.attribute_key(&[b"mode", b"tolerance"])?;
        if index == 0 {
            self.word_of(&["default", "highest"], true)?;
        } else {
            self.list(Kind::LeftBrace, Kind::RightBrace, |checker| {
                checker.attribute_key(&[b"atol", b"rtol", b"ulps"])?;
                let place = checker.lexer.span();
                let is_negative = checker.kind() == Kind::NegativeInf;
                let value = checker.double()?;
                if is_negative || value.is_some_and(|(value, _)| value < 0.0) {
                    return Err(ParseError::new(
                        ErrorKind::InvalidAttribute,
                        place,
                        "a tolerance must not be negative",
                    ));
                }
                Ok(())
            })?;
        }
        self.expect(Kind::RightBrace, "'}' after an accuracy")
    }

    /// Reads `{{0}: (1, {})}`: a trailing comma is allowed, alias kinds are not.
    pub(super) fn operand_aliasing(&mut self) -> Result<()> {
        let mut index = Vec::new();
        self.expect(Kind::LeftBrace, "'{' before aliases")?;
        while self.kind() != Kind::RightBrace {
            self.shape_index(&mut index)?;
            self.expect(Kind::Colon, "':' after an output's index")?;
            self.expect(Kind::LeftParen, "'(' before an operand's number")?;
            self.integer()?;
            self.expect(Kind::Comma, "',' after an operand's number")?;
            self.shape_index(&mut index)?;
            self.expect(Kind::RightParen, "')' after an alias")?;
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightBrace, "'}' after aliases")
    }

    /// Reads `{kind="sharding", entry={...}, exit={...}}`.
    pub(super) fn domain(&mut self) -> Result<()> {
        self.sub_attributes(&[b"kind", b"entry", b"exit"], 0b111, |key| match key {
            0 => SubAttribute::DomainKind,
            _ => SubAttribute::Sharding,
        })
    }

    /// Reads `{ lhs={sparsity=2x4 dimension=1 stride=1} rhs={...} }`.
    pub(super) fn sparsity(&mut self) -> Result<()> {
        self.expect(Kind::LeftBrace, "'{' before a sparsity configuration")?;
        while self.kind() != Kind::RightBrace {
            self.attribute_key(&[b"lhs", b"rhs"])?;
            self.expect(Kind::LeftBrace, "'{' before one side's sparsity")?;
            while self.kind() != Kind::RightBrace {
                let (key, index) = self.attribute_key(&[b"sparsity", b"dimension", b"stride"])?;
                if index == 0 {
                    if self.sizes()? != 2 {
                        return Err(ParseError::new(
                            ErrorKind::InvalidAttribute,
                            key,
                            "sparsity must have the form NxM",
                        ));
                    }
                } else {
                    self.integer()?;
                }
            }
            self.advance();
        }
        self.advance();
        Ok(())
    }
}
