//! Meshes with named axes: the newest form of shardings and replica groups.

use super::Checker;
use super::lexer::Kind;
use super::newer::Newer;
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::Span;

/// A mesh: axis names (with quotes) and sizes; a maximal mesh has no axes.
#[derive(Default)]
struct Mesh {
    axes: Vec<(Span, i64)>,
    is_maximal: bool,
}

/// A part of an axis: `pre` is the product of the sizes before it, `end` is `pre` times its own
/// size.
struct Part {
    axis: usize,
    pre: i64,
    end: i64,
}

impl Checker<'_> {
    /// Reads the text after `{` in a sharding with a mesh.
    pub(super) fn named_sharding(&mut self) -> Result<()> {
        let mesh = self.mesh()?;
        if mesh.is_maximal {
            return self.expect(Kind::RightBrace, "'}' after a maximal mesh");
        }
        self.eat(Kind::Comma);
        for word in [b"replicated".as_slice(), b"manual", b"unreduced"] {
            if self.eat_keyword(word) {
                return self.expect(Kind::RightBrace, "'}' after a sharding");
            }
        }
        let mut parts = Vec::new();
        if self.allows(Newer::UnreducedKinds) && self.kind() == Kind::AttributeName {
            self.axis_set(&mesh, &mut parts)?;
            return self.expect(Kind::RightBrace, "'}' after a sharding");
        }
        self.list(Kind::LeftSquare, Kind::RightSquare, |checker| {
            checker.expect(Kind::LeftBrace, "'{' before the axes of a dimension")?;
            if checker.kind() != Kind::RightBrace {
                loop {
                    if checker.eat(Kind::Question) {
                        break;
                    }
                    checker.axis(&mesh, &mut parts)?;
                    if !checker.eat(Kind::Comma) {
                        break;
                    }
                }
            }
            checker.expect(Kind::RightBrace, "',' or '}' after an axis")
        })?;
        // If a list is given twice, the second replaces the first.
        let dimensions = parts.len();
        let mut sets: [Vec<Part>; 3] = Default::default();
        while self.eat(Kind::Comma) {
            if self.kind() == Kind::AttributeName && self.lexer.word() == b"metadata" {
                self.advance();
                self.metadata_list()?;
                continue;
            }
            let mut set = Vec::new();
            let index = self.axis_set(&mesh, &mut set)?;
            if let Some(known) = sets.get_mut(index) {
                *known = set;
            }
        }
        parts.truncate(dimensions);
        parts.extend(sets.into_iter().flatten());
        self.check_overlap(&parts)?;
        self.expect(Kind::RightBrace, "',' or '}' in a sharding")
    }

    /// Reads `replicated={'a'}` or a similar set; returns the kind of set.
    fn axis_set(&mut self, mesh: &Mesh, parts: &mut Vec<Part>) -> Result<usize> {
        let (_, index) = self.attribute_key(&[b"replicated", b"unreduced", b"manual"])?;
        if index == 1 && self.allows(Newer::UnreducedKinds) && self.kind() == Kind::Ident {
            self.word_of(&["sum", "max", "min"], false)?;
        }
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| checker.axis(mesh, parts))?;
        Ok(index)
    }

    /// Reads `mesh['a'=2], device_ids=(...) {'a'}`.
    pub(super) fn mesh_groups(&mut self) -> Result<()> {
        let place = self.lexer.span();
        let mesh = self.mesh()?;
        let mut parts = Vec::new();
        let mut size = 1i64;
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| checker.axis(&mesh, &mut parts))?;
        for part in &parts {
            size = size.saturating_mul(if part.pre > 0 { part.end / part.pre } else { 0 });
        }
        if parts.is_empty() || size <= 1 {
            return Err(ParseError::new(
                ErrorKind::InvalidAttribute,
                place,
                "replica groups over a mesh need more than one device each",
            ));
        }
        self.check_overlap(&parts)
    }

    /// Reads a mesh and its device order; a comma without a device order after it is consumed too.
    fn mesh(&mut self) -> Result<Mesh> {
        let mut mesh = Mesh { is_maximal: self.lexer.word() == b"maximal_mesh", ..Mesh::default() };
        let place = self.lexer.span();
        self.advance();
        self.expect(Kind::LeftSquare, "'[' after a mesh")?;
        if mesh.is_maximal {
            self.attribute_key(&[b"device_id"])?;
            self.integer()?;
            self.expect(Kind::RightSquare, "']' after a mesh")?;
            return Ok(mesh);
        }
        if self.kind() != Kind::RightSquare {
            loop {
                let name = self.string()?;
                self.expect(Kind::Equal, "'=' after the name of an axis")?;
                let size = self.integer()?;
                if mesh.axes.iter().any(|(known, _)| self.inside(*known) == self.inside(name)) {
                    return Err(ParseError::new(
                        ErrorKind::InvalidSharding,
                        name,
                        "the mesh has two axes with this name",
                    ));
                }
                mesh.axes.push((name, size));
                if !self.eat(Kind::Comma) {
                    break;
                }
            }
        }
        self.expect(Kind::RightSquare, "',' or ']' after an axis")?;
        if self.eat(Kind::Comma)
            && self.kind() == Kind::AttributeName
            && self.lexer.word() == b"device_ids"
        {
            self.advance();
            self.device_order(&mesh, place)?;
        }
        Ok(mesh)
    }

    /// Reads `([2,4]T(1,0))` or `(0,2,1,3)`.
    fn device_order(&mut self, mesh: &Mesh, place: Span) -> Result<()> {
        self.expect(Kind::LeftParen, "'(' before device numbers")?;
        if self.kind() == Kind::LeftSquare {
            let (rank, _) = self.iota_dimensions()?;
            if rank > 1 {
                self.permutation(rank)?;
            }
            return self.expect(Kind::RightParen, "')' after device numbers");
        }
        let mut devices = Vec::new();
        if self.kind() != Kind::RightParen {
            loop {
                devices.push(self.integer()?);
                if !self.eat(Kind::Comma) {
                    break;
                }
            }
        }
        self.expect(Kind::RightParen, "',' or ')' after a device number")?;
        let total =
            mesh.axes.iter().try_fold(1i64, |product, (_, size)| product.checked_mul(*size));
        let count = devices.len() as i64;
        devices.sort_unstable();
        let is_permutation = devices.iter().zip(0..).all(|(device, number)| *device == number);
        if total != Some(count) || !is_permutation {
            return Err(ParseError::new(
                ErrorKind::InvalidSharding,
                place,
                "the device numbers must be those of the mesh, each exactly once",
            ));
        }
        Ok(())
    }

    /// Reads `'a'` or `'a':(2)4`.
    fn axis(&mut self, mesh: &Mesh, parts: &mut Vec<Part>) -> Result<()> {
        let place = self.string()?;
        let name = self.inside(place);
        let by_name = mesh.axes.iter().position(|(known, _)| self.inside(*known) == name);
        let by_number = || {
            let number = std::str::from_utf8(name).ok()?.trim().parse::<usize>().ok()?;
            (number < mesh.axes.len()).then_some(number)
        };
        let index = by_name.or_else(by_number);
        let Some((axis, size)) = index.and_then(|at| Some((at, mesh.axes.get(at)?.1))) else {
            return Err(ParseError::new(
                ErrorKind::InvalidSharding,
                place,
                "the mesh has no axis with this name",
            ));
        };
        let mut part = Part { axis, pre: 1, end: size };
        if self.eat(Kind::Colon) {
            self.expect(Kind::LeftParen, "'(' before the size that precedes a part of an axis")?;
            part.pre = self.integer()?;
            self.expect(Kind::RightParen, "')' after the size that precedes a part of an axis")?;
            let length = self.integer()?;
            part.end = part.pre.checked_mul(length).unwrap_or(0);
            if part.pre < 1 || length < 1 || part.end < 1 || size % part.end != 0 {
                return Err(ParseError::new(
                    ErrorKind::InvalidSharding,
                    place,
                    "this part does not divide its axis",
                ));
            }
        }
        parts.push(part);
        Ok(())
    }

    /// The content of a string without its quotes, as written.
    fn inside(&self, span: Span) -> &[u8] {
        self.bytes(Span { start: span.start + 1, end: span.end - 1 })
    }

    /// Checks that parts of an axis do not overlap.
    fn check_overlap(&self, parts: &[Part]) -> Result<()> {
        for (index, part) in parts.iter().enumerate() {
            let overlaps = parts.iter().take(index).any(|other| {
                other.axis == part.axis
                    && (other.pre.max(part.pre) < other.end.min(part.end)
                        || (other.pre, other.end) == (part.pre, part.end))
            });
            if overlaps {
                return Err(
                    self.error(ErrorKind::InvalidSharding, "an axis of the mesh is used twice")
                );
            }
        }
        Ok(())
    }
}
