//! Loop integers: values that depend linearly on one element of a loop's state, in the wrap-around
//! arithmetic of their type.

use super::origin::Path;
use crate::ir::{ElementKind, ElementType};

/// An integer type. All arithmetic on it is modulo 2 to the power of `bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IntegerType {
    bits: u32,
    is_signed: bool,
}

impl IntegerType {
    pub(super) fn new(element_type: ElementType) -> Option<Self> {
        match element_type.kind() {
            ElementKind::Signed => Some(Self { bits: element_type.bits(), is_signed: true }),
            ElementKind::Unsigned => Some(Self { bits: element_type.bits(), is_signed: false }),
            _ => None,
        }
    }

    fn modulus(self) -> i128 {
        1 << self.bits
    }

    /// The value of this type that is congruent to `value`.
    pub(super) fn wrap(self, value: i128) -> i128 {
        let value = value.rem_euclid(self.modulus());
        if self.is_signed && value >= self.modulus() / 2 { value - self.modulus() } else { value }
    }

    /// The congruent number nearest to zero, the most likely meaning of a step or factor. The
    /// choice does not affect the result, because ranges are checked afterwards.
    pub(super) fn nearest(self, value: i128) -> i128 {
        Self { bits: self.bits, is_signed: true }.wrap(value)
    }

    /// Whether `value` is a value of this type.
    pub(super) fn holds(self, value: i128) -> bool {
        self.wrap(value) == value
    }
}

/// `factor * element + offset`, modulo the size of the type. Factor and offset are within half the
/// modulus on either side of zero, so a product of two fits 128 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Linear {
    pub(super) integer_type: IntegerType,
    pub(super) factor: i128,
    pub(super) offset: i128,
    /// The element of the loop's state; empty and meaningless if the factor is 0.
    pub(super) element: Path,
    /// Forms of the same element that were widened; this form is valid only if none of them wraps.
    pub(super) guards: Vec<Guard>,
}

/// Requires that `factor * element + offset` is in the range of the type without wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    integer_type: IntegerType,
    factor: i128,
    offset: i128,
}

const MOST_GUARDS: usize = 4;

impl Linear {
    pub(super) fn constant(integer_type: IntegerType, value: i128) -> Self {
        Self::new(integer_type, 0, value, Path::new(), Vec::new())
    }

    pub(super) fn state(integer_type: IntegerType, element: Path) -> Self {
        Self::new(integer_type, 1, 0, element, Vec::new())
    }

    fn new(
        integer_type: IntegerType,
        factor: i128,
        offset: i128,
        element: Path,
        guards: Vec<Guard>,
    ) -> Self {
        let factor = integer_type.nearest(factor);
        let offset = integer_type.nearest(offset);
        if factor == 0 {
            return Self { integer_type, factor, offset, element: Path::new(), guards: Vec::new() };
        }
        Self { integer_type, factor, offset, element, guards }
    }

    /// The value, if it does not depend on the loop's state.
    pub(super) fn as_constant(&self) -> Option<i128> {
        (self.factor == 0).then(|| self.integer_type.wrap(self.offset))
    }

    /// Whether the form is the element itself.
    pub(super) fn is_element(&self, element: &[u32]) -> bool {
        // Widening the element itself and narrowing it back has no effect.
        let own = Guard { integer_type: self.integer_type, factor: 1, offset: 0 };
        self.factor == 1
            && self.offset == 0
            && self.guards.iter().all(|guard| *guard == own)
            && self.element.as_slice() == element
    }

    /// `self + sign * other`.
    pub(super) fn plus(self, other: Linear, sign: i128) -> Option<Linear> {
        if self.integer_type != other.integer_type
            || self.factor != 0 && other.factor != 0 && self.element != other.element
        {
            return None;
        }
        let mut guards = self.guards;
        guards.extend(other.guards);
        if guards.len() > MOST_GUARDS {
            return None;
        }
        let element = if self.factor == 0 { other.element } else { self.element };
        let factor = self.factor + sign * other.factor;
        let offset = self.offset + sign * other.offset;
        Some(Linear::new(self.integer_type, factor, offset, element, guards))
    }

    /// The product; None if neither side is constant.
    pub(super) fn times(self, other: Linear) -> Option<Linear> {
        if self.integer_type != other.integer_type {
            return None;
        }
        let (by, of) = if self.factor == 0 { (self, other) } else { (other, self) };
        if by.factor != 0 {
            return None;
        }
        let (factor, offset) = (of.factor * by.offset, of.offset * by.offset);
        Some(Linear::new(of.integer_type, factor, offset, of.element, of.guards))
    }

    /// The number in another type: narrower types wrap, wider types keep the value.
    pub(super) fn converted(self, to: IntegerType) -> Option<Linear> {
        if let Some(value) = self.as_constant() {
            return Some(Linear::constant(to, value));
        }
        let mut guards = self.guards;
        if to.bits > self.integer_type.bits {
            let Linear { integer_type, factor, offset, .. } = self;
            guards.push(Guard { integer_type, factor, offset });
        }
        if guards.len() > MOST_GUARDS {
            return None;
        }
        Some(Linear::new(to, self.factor, self.offset, self.element, guards))
    }

    /// The bits as another type of the same width.
    pub(super) fn reinterpreted(self, to: IntegerType) -> Option<Linear> {
        (self.integer_type.bits == to.bits)
            .then(|| Linear::new(to, self.factor, self.offset, self.element, self.guards))
    }
}

/// How an element of a loop's state changes: `first + step * iteration`, while the sum is in the
/// range of its type.
#[derive(Clone, Debug)]
pub(super) struct Motion {
    pub(super) integer_type: IntegerType,
    pub(super) first: i128,
    pub(super) step: i128,
    /// Forms that the body must compute without wrapping.
    pub(super) guards: Vec<Guard>,
}

impl Motion {
    /// Whether the element and its `guards` stay in range in iterations 0 to `last`.
    fn keeps(&self, guards: &[Guard], last: i128) -> bool {
        if guards.is_empty() {
            return true;
        }
        let at = |iteration: i128| self.step.checked_mul(iteration)?.checked_add(self.first);
        // If a linear form is in range in the first and the last iteration, it is in range in every
        // iteration.
        [Some(self.first), at(last)].into_iter().all(|value| {
            value.is_some_and(|value| {
                self.integer_type.holds(value)
                    && guards.iter().all(|guard| {
                        let scaled = guard.factor.checked_mul(value);
                        let sum = scaled.and_then(|scaled| scaled.checked_add(guard.offset));
                        sum.is_some_and(|sum| guard.integer_type.holds(sum))
                    })
            })
        })
    }
}

/// A value by iteration: `first + slope * iteration`, while the sum does not wrap.
#[derive(Clone, Debug)]
pub(super) struct Series {
    integer_type: IntegerType,
    pub(super) first: i128,
    pub(super) slope: i128,
    source: Option<(Motion, Vec<Guard>)>,
}

impl Series {
    /// The series of `value`, whose element changes by `motion` (not needed for constants).
    pub(super) fn new(value: Linear, motion: Option<Motion>) -> Option<Series> {
        let integer_type = value.integer_type;
        if let Some(first) = value.as_constant() {
            return Some(Series { integer_type, first, slope: 0, source: None });
        }
        let motion = motion?;
        let scaled = value.factor.checked_mul(motion.first)?;
        let first = integer_type.wrap(scaled.checked_add(value.offset)?);
        let slope = integer_type.nearest(value.factor.checked_mul(motion.step)?);
        Some(Series { integer_type, first, slope, source: Some((motion, value.guards)) })
    }

    /// Whether neither the value nor its inputs wrap while a loop runs `count` times.
    pub(super) fn holds_through(&self, count: i128) -> bool {
        let last = self.slope.checked_mul(count).and_then(|way| way.checked_add(self.first));
        last.is_some_and(|last| self.integer_type.holds(last))
            && self.source.as_ref().is_none_or(|(motion, guards)| {
                // The condition runs in iterations 0 to `count`, the body in iterations 0 to `count
                // - 1`.
                motion.keeps(guards, count)
                    && (count == 0 || motion.keeps(&motion.guards, count - 1))
            })
    }
}
