//! Reshapes and bitcasts: groups of dimensions with the same elements on both sides.
//!
//! A reshape keeps the row-major order of elements. A bitcast keeps the order in memory, in which a
//! tiled dimension is two: the tiles along it, and the elements of a tile, which lie further in. So
//! both sides are lists of pieces of dimensions; the smallest groups with equally many elements
//! hold the same factors in the same order.

use super::places::Slot;
use super::size::{CONSTANT, Dim, Factor, split, tidy};
use super::spread::{Spread, Trust};
use crate::ir::Row;
use std::collections::BTreeMap;

/// A dimension, or the part of it outside or inside tiles.
#[derive(Clone, Copy, Debug)]
struct Piece {
    dim: u32,
    size: i64,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Outside,
    Inside,
}

impl Spread<'_> {
    pub(super) fn reshape(&mut self, row: Row, is_bitcast: bool) {
        let Some(from) = self.module.operands(row).first().map(|row| Row(*row)) else { return };
        let (Some(operand), Some(result)) = (self.places.array(from), self.places.array(row))
        else {
            return;
        };
        let is_odd = |dim: u32| self.places.size(dim) <= 0;
        if operand.dims().chain(result.dims()).any(is_odd) {
            return;
        }
        let bits = |row: Row| {
            let array = self.module.shapes().array(self.module.shape(row));
            array.map_or(0, |array| i64::from(array.element_type.storage_bits()))
        };
        if is_bitcast && bits(from) != bits(row) {
            self.bytes(from, row, bits(from), bits(row));
            self.bytes(row, from, bits(row), bits(from));
            return;
        }
        let tiled =
            if is_bitcast { self.tiled(from, operand).zip(self.tiled(row, result)) } else { None };
        let (a, b) = match tiled {
            Some(pieces) => pieces,
            None if is_bitcast => (
                self.whole(&self.places.by_memory(from, operand)),
                self.whole(&self.places.by_memory(row, result)),
            ),
            None => (
                self.whole(&operand.dims().collect::<Vec<_>>()),
                self.whole(&result.dims().collect::<Vec<_>>()),
            ),
        };
        self.regroup(&a, &b);
    }

    fn may_cut(&self) -> bool {
        self.trust > Trust::Same
    }

    /// The compiler copies arrays as bytes: one dimension with all elements, each several bytes long.
    fn bytes(&mut self, from: Row, to: Row, wide: i64, narrow: i64) {
        let (Some(source), Some(target)) = (self.places.array(from), self.places.array(to)) else {
            return;
        };
        let dims = self.places.by_memory(from, source);
        let known = dims.iter().map(|dim| self.get(*dim).map(<[Factor]>::to_vec));
        let Some(known) = known.collect::<Option<Vec<Dim>>>() else { return };
        let mut all: Dim = known.into_iter().flatten().collect();
        if target.len() == 1 && narrow > 0 && wide % narrow == 0 {
            all.push(Factor::constant(wide / narrow));
            if let Some(dim) = target.at(0) {
                self.set(dim, tidy(all));
            }
        } else if source.len() == 1 && wide > 0 && narrow % wide == 0 {
            let bytes = narrow / wide;
            let Some(place) = all.iter().rposition(|own| own.scaled(1, bytes).is_some()) else {
                return;
            };
            if let Some(own) = all.get_mut(place)
                && let Some(scaled) = own.scaled(1, bytes)
            {
                *own = scaled;
            }
            let dims = self.places.by_memory(to, target);
            let sizes: Vec<i64> = dims.iter().map(|dim| self.places.size(*dim)).collect();
            let values = split(&tidy(all), &sizes, self.may_cut()).unwrap_or_default();
            for (dim, value) in dims.into_iter().zip(values) {
                if self.get(dim).is_none() {
                    self.set(dim, value);
                }
            }
        }
    }

    fn whole(&self, dims: &[u32]) -> Vec<Piece> {
        let piece =
            |dim: &u32| Piece { dim: *dim, size: self.places.size(*dim), part: Part::Outside };
        dims.iter().map(piece).collect()
    }

    /// The pieces in memory, major first; None without tiles, or if a tile is padded.
    fn tiled(&self, row: Row, slot: Slot) -> Option<Vec<Piece>> {
        let shapes = self.module.shapes();
        let layout = shapes.array(self.module.shape(row))?.layout?;
        let tile = layout.tiles.first()?;
        let dims = self.places.by_memory(row, slot);
        let first = dims.len().checked_sub(tile.len())?;
        let (leading, tiled) = dims.split_at(first);
        let mut pieces = self.whole(leading);
        let mut inside = Vec::new();
        for (dim, edge) in tiled.iter().zip(tile.iter()) {
            let size = self.places.size(*dim);
            if *edge <= 0 || size % edge != 0 {
                return None;
            }
            pieces.push(Piece { dim: *dim, size: size / edge, part: Part::Outside });
            inside.push(Piece { dim: *dim, size: *edge, part: Part::Inside });
        }
        pieces.extend(inside);
        Some(pieces)
    }

    fn regroup(&mut self, a: &[Piece], b: &[Piece]) {
        let mut found: BTreeMap<(u32, Part), Dim> = BTreeMap::new();
        let (mut i, mut j) = (0, 0);
        while i < a.len() || j < b.len() {
            let (from_a, from_b) = (i, j);
            let (mut p, mut q) = (1i128, 1i128);
            if let Some(piece) = a.get(i) {
                p = piece.size.into();
                i += 1;
            }
            if let Some(piece) = b.get(j) {
                q = piece.size.into();
                j += 1;
            }
            while p != q {
                let (list, at, product) =
                    if p < q { (a, &mut i, &mut p) } else { (b, &mut j, &mut q) };
                let Some(piece) = list.get(*at) else { return };
                let Some(more) = product.checked_mul(piece.size.into()) else { return };
                *product = more;
                *at += 1;
            }
            let own = (a.get(from_a..i).unwrap_or_default(), b.get(from_b..j).unwrap_or_default());
            if let ([a], [b]) = own
                && a.size == self.places.size(a.dim)
                && b.size == self.places.size(b.dim)
            {
                self.same(a.dim, b.dim);
                continue;
            }
            self.group(own.0, own.1, &mut found);
            self.group(own.1, own.0, &mut found);
        }
        for piece in a.iter().chain(b) {
            if self.get(piece.dim).is_some() {
                continue;
            }
            let whole = self.places.size(piece.dim);
            let outside = found.get(&(piece.dim, Part::Outside));
            let inside = found.get(&(piece.dim, Part::Inside));
            let value = match (outside, inside) {
                (Some(outside), Some(inside)) => {
                    tidy(outside.iter().chain(inside).copied().collect())
                }
                (Some(outside), None) => outside.clone(),
                _ => continue,
            };
            if super::size::size_of(&value) == Some(whole) {
                self.set(piece.dim, value);
            }
        }
    }

    /// The factors of a piece.
    fn piece(&self, piece: &Piece) -> Option<Dim> {
        let dim = self.get(piece.dim)?;
        let whole = self.places.size(piece.dim);
        if piece.size == whole && piece.part == Part::Outside {
            return Some(dim.to_vec());
        }
        let (outside, inside) = match piece.part {
            Part::Outside => (piece.size, whole / piece.size.max(1)),
            Part::Inside => (whole / piece.size.max(1), piece.size),
        };
        let mut parts = split(dim, &[outside, inside], self.may_cut())?.into_iter();
        let first = parts.next();
        if piece.part == Part::Outside { first } else { parts.next() }
    }

    /// What the factors of `from` say about the pieces `to`.
    fn group(&self, from: &[Piece], to: &[Piece], found: &mut BTreeMap<(u32, Part), Dim>) {
        let mut factors = Vec::new();
        for piece in from {
            let Some(own) = self.piece(piece) else { return };
            factors.extend(own);
        }
        let known: Vec<Option<Dim>> = to.iter().map(|piece| self.piece(piece)).collect();
        let open: Vec<usize> =
            known.iter().enumerate().filter(|(_, own)| own.is_none()).map(|(at, _)| at).collect();
        // What is known is divided out first: a split by size alone would give it to the others.
        let others: Vec<Factor> = known.into_iter().flatten().flatten().collect();
        let size = |at: &usize| to.get(*at).map_or(0, |piece| piece.size);
        let sizes: Vec<i64> = open.iter().map(size).collect();
        let rest =
            if others.is_empty() { Some(factors) } else { quotient(self, &factors, &others) };
        // Where both sides have their factors from different parameters, which may be equal, pieces
        // of one element hold none.
        let is_one = self.trust == Trust::Dealt && sizes.iter().all(|size| *size == 1);
        let Some(rest) = rest.or_else(|| is_one.then(|| vec![Factor::constant(1)])) else {
            return;
        };
        let values = open.into_iter().zip(split(&rest, &sizes, self.may_cut()).unwrap_or_default());
        for (at, value) in values {
            if let Some(piece) = to.get(at)
                && super::size::size_of(&value) == Some(piece.size)
            {
                found.entry((piece.dim, piece.part)).or_insert(value);
            }
        }
    }
}

/// The product of `all` divided by the product of `known`; None if it is not a product of factors.
fn quotient(spread: &Spread<'_>, all: &[Factor], known: &[Factor]) -> Option<Dim> {
    let mut rest: Vec<Factor> = all.to_vec();
    let id = |factor: &Factor| match factor.symbol {
        CONSTANT => (CONSTANT, 0),
        symbol => {
            let (root, shift) = spread.symbols.root(symbol);
            (root, shift + factor.shift)
        }
    };
    let divide = |from: &Factor, by: &Factor, symbol: u32| {
        if by.size == 0 || from.size % by.size != 0 {
            return None;
        }
        let mut value = Factor {
            symbol,
            shift: if symbol == CONSTANT { 0 } else { from.shift },
            times: from.times.checked_mul(by.parts)?,
            parts: from.parts.checked_mul(by.times)?,
            axes: from.axes,
            size: from.size / by.size,
        };
        for (own, other) in value.axes.iter_mut().zip(by.axes) {
            *own = own.checked_sub(other)?;
        }
        Some(value.reduced())
    };
    for factor in known {
        if factor.size == 1 && factor.is_constant() {
            continue;
        }
        let same = rest.iter().position(|own| id(own) == id(factor) && own.size % factor.size == 0);
        let (at, symbol) = match same {
            Some(at) => (at, CONSTANT),
            None if factor.symbol == CONSTANT => {
                let at = rest.iter().position(|own| own.size % factor.size.max(1) == 0)?;
                (at, rest.get(at)?.symbol)
            }
            None => return None,
        };
        let value = divide(rest.get(at)?, factor, symbol)?;
        // What remains of a symbol beside a number of its size is not known.
        if value.size == 1 && symbol != CONSTANT && factor.symbol == CONSTANT && factor.size > 1 {
            return None;
        }
        if let Some(slot) = rest.get_mut(at) {
            *slot = value;
        }
    }
    Some(tidy(rest))
}
