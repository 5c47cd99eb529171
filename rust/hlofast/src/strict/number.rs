//! Range checks of numbers by element type.

use crate::ir::{ElementKind, ElementType};

/// The value of a decimal token, including `nan`; None if it exceeds a double.
pub(super) fn parse(word: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(word).ok()?;
    let value = if text.contains('n') { f64::NAN } else { text.parse::<f64>().ok()? };
    (!value.is_infinite()).then_some(value)
}

/// Whether an integer that was wrapped to 64 bits fits the type. XLA accepts every bit pattern for
/// the 64-bit types.
pub(super) fn fits_integer(element_type: ElementType, value: i64) -> bool {
    let bits = element_type.bits();
    if bits >= 64 {
        return true;
    }
    match element_type.kind() {
        ElementKind::Signed => (-(1i64 << (bits - 1))..1i64 << (bits - 1)).contains(&value),
        _ => (0..1i64 << bits).contains(&value),
    }
}

/// Whether a finite value stays finite when rounded to the type. NaN always fits.
pub(super) fn fits_float(element_type: ElementType, value: f64) -> bool {
    use ElementType::*;
    if value.is_nan() {
        return true;
    }
    let size = value.abs();
    // The smallest value that no longer rounds to the largest finite value. It lies halfway to the
    // next representable value, and the tie rounds to even, away from the largest finite value.
    let limit = match element_type {
        F16 => return f64::from(value as f32).abs() < 65520.0,
        Bf16 => return f64::from((value as f32).abs()) < 2f64.powi(128) * (1.0 - 2f64.powi(-9)),
        F32 => return (value as f32).is_finite(),
        F8e5m2 | F8e5m2fnuz => 61440.0,
        F8e4m3 | F8e4m3fnuz => 248.0,
        F8e3m4 => 15.75,
        F8e4m3b11fnuz => 31.0,
        F8e4m3fn => return size <= 464.0,
        F8e8m0fnu => return value > 0.0 && value < 1.5 * 2f64.powi(127),
        _ => return true,
    };
    size < limit
}

/// The largest NaN payload of the type; 0 if its NaN does not have a payload.
pub(super) fn nan_payload_mask(element_type: ElementType) -> u64 {
    use ElementType::*;
    match element_type {
        F16 => 0x3ff,
        Bf16 => 0x7f,
        F32 => 0x7f_ffff,
        F64 => 0xf_ffff_ffff_ffff,
        F8e5m2 => 0x3,
        F8e4m3 => 0x7,
        F8e3m4 => 0xf,
        _ => 0,
    }
}
