//! Sizes of dimensions, dynamic ones included, and the order of element types.

use super::request::{Array, Context};
use crate::error::Result;
use crate::ir::{Dimension, ElementKind, ElementType};

/// Whether both can be the size of one dimension: equal bounds, or at least one unbounded.
pub(super) fn agree(a: Dimension, b: Dimension) -> bool {
    a == Dimension::Unbounded || b == Dimension::Unbounded || a.bound() == b.bound()
}

/// Whether two lists of dimensions have equal length and all sizes agree.
pub(super) fn all_agree(a: &[Dimension], b: &[Dimension]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| agree(*a, *b))
}

/// Combines two descriptions of a dimension; None if they contradict each other.
pub(super) fn most_specific(a: Dimension, b: Dimension) -> Option<Dimension> {
    use Dimension::*;
    match (a, b) {
        (Unbounded, other) | (other, Unbounded) => Some(other),
        _ if a.bound() != b.bound() => None,
        (Bounded(_), _) => Some(a),
        _ => Some(b),
    }
}

/// Whether the size is only known at run time.
pub(super) fn is_dynamic(dimension: Dimension) -> bool {
    !matches!(dimension, Dimension::Static(_))
}

/// The bound, or XLA's marker for unbounded sizes, which XLA uses in comparisons.
pub(super) fn raw(dimension: Dimension) -> i64 {
    dimension.bound().unwrap_or(i64::MIN)
}

impl Context<'_, '_> {
    /// `dimension` with another size; it stays dynamic if it was. `size` is None if it does not fit
    /// 64 bits.
    pub fn resized(&self, dimension: Dimension, size: Option<i64>) -> Result<Dimension> {
        let size = size
            .filter(|size| *size >= 0)
            .ok_or_else(|| self.mismatch("a dimension of the result is negative or too large"))?;
        Ok(match dimension {
            Dimension::Static(_) => Dimension::Static(size),
            _ => Dimension::Bounded(size),
        })
    }

    /// A static dimension; `size` is None if it does not fit 64 bits.
    pub fn sized(&self, size: Option<i64>) -> Result<Dimension> {
        self.resized(Dimension::Static(0), size)
    }

    /// The element type in which XLA computes when operands have both types.
    pub fn wider(&self, a: ElementType, b: ElementType) -> Result<ElementType> {
        if a == b {
            return Ok(a);
        }
        match precision(a).cmp(&precision(b)) {
            std::cmp::Ordering::Less => Ok(b),
            std::cmp::Ordering::Greater => Ok(a),
            std::cmp::Ordering::Equal => Err(self.mismatch(format_args!(
                "neither of {} and {} has higher precision",
                a.as_str(),
                b.as_str()
            ))),
        }
    }

    /// The error for different element types.
    pub fn different_types(&self, a: &Array, b: &Array) -> crate::error::ParseError {
        self.mismatch(format_args!("different element types: {a} and {b}"))
    }
}

/// Whether two element types are equal, or both real floating-point types.
pub(super) fn same_type(a: ElementType, b: ElementType) -> bool {
    a == b || (a.kind() == ElementKind::Float && b.kind() == ElementKind::Float)
}

/// The component type of a complex type; other types are returned unchanged.
pub(super) fn component(element_type: ElementType) -> ElementType {
    match element_type {
        ElementType::C64 => ElementType::F32,
        ElementType::C128 => ElementType::F64,
        other => other,
    }
}

/// Orders element types by complexity, range, precision, width, and signedness.
fn precision(element_type: ElementType) -> (bool, i32, i32, u32, bool) {
    let component = component(element_type);
    let (exponent, digits) = float_limits(component).unwrap_or((-1, -1));
    let is_signed = component.kind() == ElementKind::Signed;
    (component != element_type, exponent, digits, component.bits(), is_signed)
}

/// The exponent at which a floating-point type overflows, and its binary digits.
fn float_limits(element_type: ElementType) -> Option<(i32, i32)> {
    use ElementType::*;
    Some(match element_type {
        F64 => (1024, 53),
        F32 => (128, 24),
        Bf16 => (128, 8),
        F8e8m0fnu => (128, 1),
        F16 => (16, 11),
        F8e5m2 | F8e5m2fnuz => (16, 3),
        F8e4m3fn => (9, 4),
        F8e4m3 | F8e4m3fnuz => (8, 4),
        F8e4m3b11fnuz => (5, 4),
        F6e3m2fn => (5, 3),
        F8e3m4 => (4, 5),
        F6e2m3fn => (3, 4),
        F4e2m1fn => (3, 2),
        _ => return None,
    })
}
