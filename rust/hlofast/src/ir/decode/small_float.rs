//! Bits of floating-point numbers of every element type, rounded to nearest, ties to even.

use super::scan::decimal_text;
use crate::ir::ElementType;

/// The meaning of the largest bit patterns of a format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// The largest exponent holds infinity and NaNs.
    Ieee,
    /// No infinity; the pattern of all ones is NaN.
    AllOnes,
    /// No infinity, no negative zero; the pattern of negative zero is NaN.
    NegativeZero,
    /// The format has neither infinity nor NaN.
    None,
}

#[derive(Clone, Copy)]
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i64,
    special: Special,
}

impl Format {
    const fn new(exponent_bits: u32, mantissa_bits: u32, special: Special) -> Self {
        let mut bias = (1 << (exponent_bits - 1)) - 1;
        if matches!(special, Special::NegativeZero) {
            bias += 1;
        }
        Self { exponent_bits, mantissa_bits, bias, special }
    }

    fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    fn largest(self) -> u64 {
        match self.special {
            Special::Ieee => self.infinity() - 1,
            Special::AllOnes => self.sign() - 2,
            Special::NegativeZero | Special::None => self.sign() - 1,
        }
    }

    fn nan(self, payload: Option<u64>) -> Option<u64> {
        match (self.special, payload) {
            (Special::Ieee, None) => Some(self.infinity() | 1 << (self.mantissa_bits - 1)),
            (Special::Ieee, Some(payload)) => {
                let valid = payload > 0 && payload < 1 << self.mantissa_bits;
                valid.then(|| self.infinity() | payload)
            }
            (Special::AllOnes, None) => Some(self.sign() - 1),
            // For formats without NaN, the conversion that XLA uses gives negative zero.
            (Special::NegativeZero | Special::None, None) => Some(self.sign()),
            _ => None,
        }
    }
}

fn format(element_type: ElementType) -> Option<Format> {
    use ElementType as T;
    Some(match element_type {
        T::F64 => Format::new(11, 52, Special::Ieee),
        T::F32 => Format::new(8, 23, Special::Ieee),
        T::Bf16 => Format::new(8, 7, Special::Ieee),
        T::F16 => Format::new(5, 10, Special::Ieee),
        T::F8e5m2 => Format::new(5, 2, Special::Ieee),
        T::F8e4m3 => Format::new(4, 3, Special::Ieee),
        T::F8e3m4 => Format::new(3, 4, Special::Ieee),
        T::F8e4m3fn => Format::new(4, 3, Special::AllOnes),
        T::F8e4m3b11fnuz => Format { bias: 11, ..Format::new(4, 3, Special::NegativeZero) },
        T::F8e5m2fnuz => Format::new(5, 2, Special::NegativeZero),
        T::F8e4m3fnuz => Format::new(4, 3, Special::NegativeZero),
        T::F4e2m1fn => Format::new(2, 1, Special::None),
        T::F6e3m2fn => Format::new(3, 2, Special::None),
        T::F6e2m3fn => Format::new(2, 3, Special::None),
        _ => return None,
    })
}

/// Why a type cannot represent a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloatFault {
    /// The text is not a number.
    NotANumber,
    /// A finite number beyond the type's range.
    OutOfRange,
    /// The type lacks this value: a NaN with a payload, or an infinity.
    NoSuchValue,
}

/// The bits of the number `text` in `element_type`.
pub(crate) fn float_bits(text: &[u8], element_type: ElementType) -> Result<u64, FloatFault> {
    let (negative, magnitude) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let word = match magnitude {
        b"inf" => Some(Err(())),
        b"nan" => Some(Ok(None)),
        _ => match magnitude.strip_prefix(b"nan(0x").and_then(|rest| rest.strip_suffix(b")")) {
            Some(digits) => {
                let digits = std::str::from_utf8(digits).map_err(|_| FloatFault::NotANumber)?;
                let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
                let payload = u64::from_str_radix(digits, 16).ok().filter(|_| plain);
                Some(Ok(Some(payload.ok_or(FloatFault::NotANumber)?)))
            }
            None => None,
        },
    };
    if element_type == ElementType::F8e8m0fnu {
        return match word {
            Some(Ok(Some(_))) => Err(FloatFault::NoSuchValue),
            Some(_) => Ok(SCALE_NAN),
            None => scale_bits(text),
        };
    }
    let format = format(element_type).ok_or(FloatFault::NoSuchValue)?;
    let sign = if negative { format.sign() } else { 0 };
    match word {
        Some(Ok(payload)) => match format.nan(payload) {
            Some(bits) if format.special == Special::None => Ok(bits ^ sign),
            // The pattern of negative zero is the only NaN.
            Some(bits) if format.special == Special::NegativeZero => Ok(bits),
            Some(bits) => Ok(bits | sign),
            None => Err(FloatFault::NoSuchValue),
        },
        Some(Err(())) => match format.special {
            Special::Ieee => Ok(format.infinity() | sign),
            Special::None => Ok(format.largest() | sign),
            Special::AllOnes => Ok((format.sign() - 1) | sign),
            Special::NegativeZero => Ok(format.sign()),
        },
        None => {
            let bits = finite_bits(text, element_type, format)?;
            Ok(if format.special == Special::NegativeZero && bits == format.sign() {
                0
            } else {
                bits
            })
        }
    }
}

/// The bits of a decimal number; the sign is taken from the text, so that `-0` keeps it.
fn finite_bits(text: &[u8], element_type: ElementType, format: Format) -> Result<u64, FloatFault> {
    let text = decimal_text(text).ok_or(FloatFault::NotANumber)?;
    match element_type {
        ElementType::F32 => {
            let value: f32 = text.parse().map_err(|_| FloatFault::NotANumber)?;
            if value.is_finite() { Ok(value.to_bits().into()) } else { Err(FloatFault::OutOfRange) }
        }
        ElementType::F64 => {
            let value: f64 = text.parse().map_err(|_| FloatFault::NotANumber)?;
            if value.is_finite() { Ok(value.to_bits()) } else { Err(FloatFault::OutOfRange) }
        }
        _ => {
            let value: f64 = text.parse().map_err(|_| FloatFault::NotANumber)?;
            round(value, format).ok_or(FloatFault::OutOfRange)
        }
    }
}

/// Mantissa and exponent with `value = mantissa * 2^exponent` and a 53-bit mantissa; the
/// magnitude of a finite number other than zero.
fn parts(value: f64) -> (u64, i64) {
    let bits = value.to_bits();
    let field = (bits >> 52 & 0x7ff) as i64;
    let fraction = bits & ((1 << 52) - 1);
    if field > 0 {
        return (fraction | 1 << 52, field - 1075);
    }
    let shift = fraction.leading_zeros().saturating_sub(11);
    (fraction << shift, -1074 - i64::from(shift))
}

fn round(value: f64, format: Format) -> Option<u64> {
    let sign = if value.is_sign_negative() { format.sign() } else { 0 };
    if value == 0.0 {
        return Some(sign);
    }
    if !value.is_finite() {
        return None;
    }
    let (mantissa, exponent) = parts(value);
    let field = (exponent + 52 + format.bias).max(1);
    let unit = field - format.bias - i64::from(format.mantissa_bits);
    let shift = unit - exponent;
    let count = match shift {
        // All formats here have far fewer than 53 bits, so some bits are always cut off.
        1..=63 => {
            let floor = mantissa >> shift;
            let rest = mantissa & ((1 << shift) - 1);
            let half = 1u64 << (shift - 1);
            floor + u64::from(rest > half || (rest == half && floor & 1 == 1))
        }
        _ => 0,
    };
    // Carries run from the mantissa into the exponent, and the mantissa's leading bit adds one to
    // the exponent.
    let bits = ((field as u64 - 1) << format.mantissa_bits) + count;
    match format.special {
        // Formats without infinity and NaN saturate.
        Special::None => Some(bits.min(format.largest()) | sign),
        _ => (bits <= format.largest()).then_some(bits | sign),
    }
}

const SCALE_NAN: u64 = 0xff;

/// The code of a power of two between 2^-127 and 2^127. As in the conversion XLA uses, ties round
/// up, smaller numbers become the smallest one, and numbers that are not positive become NaN.
fn scale_bits(text: &[u8]) -> Result<u64, FloatFault> {
    let text = decimal_text(text).ok_or(FloatFault::NotANumber)?;
    let value: f64 = text.parse().map_err(|_| FloatFault::NotANumber)?;
    if value <= 0.0 {
        return Ok(SCALE_NAN);
    }
    if !value.is_finite() {
        return Err(FloatFault::OutOfRange);
    }
    let (mantissa, exponent) = parts(value);
    let code = exponent + 52 + 127 + i64::from(mantissa >= 3 << 51);
    u64::try_from(code.max(0)).ok().filter(|code| *code < SCALE_NAN).ok_or(FloatFault::OutOfRange)
}

/// The value of a finite bit pattern, computed from the definition of the format.
fn value(bits: u64, format: Format) -> Option<f64> {
    if bits & !format.sign() > format.largest()
        || (format.special == Special::NegativeZero && bits == format.sign())
    {
        return None;
    }
    let magnitude = bits & !format.sign();
    let field = (magnitude >> format.mantissa_bits) as i64;
    let fraction = (magnitude & ((1 << format.mantissa_bits) - 1)) as f64;
    let scale = 2f64.powi(-(format.mantissa_bits as i32));
    let value = if field == 0 {
        fraction * scale * 2f64.powi((1 - format.bias) as i32)
    } else {
        (1.0 + fraction * scale) * 2f64.powi((field - format.bias) as i32)
    };
    Some(if bits & format.sign() != 0 { -value } else { value })
}

/// The value of the bits of `element_type`, and the payload of a NaN other than the default one:
/// the inverse of [`float_bits`].
pub(crate) fn float_value(bits: u64, element_type: ElementType) -> (f64, Option<u64>) {
    match element_type {
        ElementType::F8e8m0fnu if bits == SCALE_NAN => return (f64::NAN, None),
        ElementType::F8e8m0fnu => return (2f64.powi(bits as i32 - 127), None),
        ElementType::F64 if f64::from_bits(bits).is_finite() => {
            return (f64::from_bits(bits), None);
        }
        ElementType::F32 if f32::from_bits(bits as u32).is_finite() => {
            return (f64::from(f32::from_bits(bits as u32)), None);
        }
        _ => {}
    }
    let Some(format) = format(element_type) else { return (f64::NAN, None) };
    let bits = bits & (format.sign() | (format.sign() - 1));
    if let Some(value) = value(bits, format) {
        return (value, None);
    }
    let (magnitude, is_negative) = (bits & !format.sign(), bits & format.sign() != 0);
    if format.special == Special::Ieee && magnitude == format.infinity() {
        return (if is_negative { f64::NEG_INFINITY } else { f64::INFINITY }, None);
    }
    let payload = magnitude ^ format.infinity();
    let is_usual = format.special != Special::Ieee || format.nan(None) == Some(magnitude);
    (f64::NAN.copysign(if is_negative { -1.0 } else { 1.0 }), (!is_usual).then_some(payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_types() -> impl Iterator<Item = (ElementType, Format)> {
        let types = ElementType::ALL.iter().copied().filter(|t| t.bits() <= 16);
        types.filter_map(|t| Some((t, format(t)?)))
    }

    #[test]
    fn every_pattern_reads_back() {
        for (element_type, format) in small_types() {
            for bits in 0..2 * format.sign() {
                let Some(value) = value(bits, format) else { continue };
                let text = format!("{value:e}");
                assert_eq!(
                    float_bits(text.as_bytes(), element_type),
                    Ok(bits),
                    "{element_type:?} {text}"
                );
            }
        }
    }

    #[test]
    fn middles_go_to_the_even_pattern() {
        for (element_type, format) in small_types() {
            for bits in 0..format.largest() {
                let (Some(low), Some(high)) = (value(bits, format), value(bits + 1, format)) else {
                    continue;
                };
                let middle = (low + high) / 2.0;
                let even = if bits % 2 == 0 { bits } else { bits + 1 };
                let read = |value: f64| float_bits(format!("{value:e}").as_bytes(), element_type);
                assert_eq!(read(middle), Ok(even), "{element_type:?} {middle}");
                assert_eq!(read(middle * (1.0 - 1e-12)), Ok(bits));
                assert_eq!(read(middle * (1.0 + 1e-12)), Ok(bits + 1));
            }
        }
    }

    #[test]
    fn specials() {
        use ElementType as T;
        let read = |text: &str, element_type| float_bits(text.as_bytes(), element_type).ok();
        assert_eq!(read("nan", T::F32), Some(0x7fc0_0000));
        assert_eq!(read("-nan", T::F64), Some(0xfff8_0000_0000_0000));
        assert_eq!(read("nan(0x7f)", T::Bf16), Some(0x7fff));
        assert_eq!(read("-nan(0x1)", T::F16), Some(0xfc01));
        assert_eq!(read("nan(0x0)", T::F32), None);
        assert_eq!(read("nan(0x80)", T::Bf16), None);
        assert_eq!(read("nan(0x1)", T::F8e4m3fn), None);
        assert_eq!(read("-inf", T::F8e5m2), Some(0xfc));
        assert_eq!(read("-nan", T::F8e4m3fnuz), Some(0x80));
        assert_eq!(read("-0", T::F8e4m3fnuz), Some(0));
        assert_eq!(read("-0", T::F32), Some(0x8000_0000));
        assert_eq!(read("nan", T::F8e8m0fnu), Some(0xff));
        assert_eq!(read("1", T::F8e8m0fnu), Some(127));
        assert_eq!(read("3", T::F8e8m0fnu), Some(129));
        assert_eq!(read("1e-39", T::F8e8m0fnu), Some(0));
        assert_eq!(read("0", T::F8e8m0fnu), Some(0xff));
        assert_eq!(read("-inf", T::F8e4m3fn), Some(0xff));
        assert_eq!(read("nan", T::F4e2m1fn), Some(8));
        assert_eq!(read("-nan", T::F4e2m1fn), Some(0));
        assert_eq!(read("-7", T::F4e2m1fn), Some(0xf));
        assert_eq!(read("inf", T::F6e2m3fn), Some(0x1f));
        assert_eq!(read("nan(0x1)", T::F4e2m1fn), None);
        assert_eq!(read("65519", T::F16), Some(0x7bff));
        assert_eq!(read("-65520", T::F16), None);
        assert_eq!(read("1e39", T::F32), None);
        assert_eq!(read("448", T::F8e4m3fn), Some(0x7e));
        assert_eq!(read("1e5", T::F8e4m3fn), None);
        for bad in ["", "x", "infinity", "+1", "1_0", "0x1p3", "nan(7)", "1e"] {
            assert_eq!(float_bits(bad.as_bytes(), T::F32), Err(FloatFault::NotANumber), "{bad}");
        }
        // One rounding, not two: the number lies just above the middle of two singles.
        assert_eq!(read("1.00000005960464477540", T::F32), Some(0x3f80_0001));
    }
}
