//! Windows, paddings, slices and dimension labels.

use super::scan::{Trailing, integer, invalid_since, key, list, whole};
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::{Cursor, Span, is_identifier_byte};

/// One dimension of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowDimension {
    /// Size of the window.
    pub size: i64,
    /// Step between windows.
    pub stride: i64,
    /// Padding before the first element; negative crops.
    pub padding_low: i64,
    /// Padding after the last element; negative crops.
    pub padding_high: i64,
    /// Dilation of the input: holes between its elements.
    pub base_dilation: i64,
    /// Dilation of the window.
    pub window_dilation: i64,
    /// Whether the window is read backwards.
    pub reversal: bool,
}

impl Default for WindowDimension {
    fn default() -> Self {
        Self {
            size: 1,
            stride: 1,
            padding_low: 0,
            padding_high: 0,
            base_dilation: 1,
            window_dilation: 1,
            reversal: false,
        }
    }
}

/// `padding=` of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaddingDimension {
    /// Elements added before the first; negative crops.
    pub low: i64,
    /// Elements added after the last; negative crops.
    pub high: i64,
    /// Elements added between neighbours.
    pub interior: i64,
}

/// `slice=` of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceDimension {
    /// First index.
    pub start: i64,
    /// One past the last index.
    pub limit: i64,
    /// Step.
    pub stride: i64,
}

/// The role of one dimension of a convolution's operand or result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimensionLabel {
    /// `b`: batch of the input or output.
    Batch,
    /// `f`: feature of the input or output.
    Feature,
    /// `i`: input feature of the kernel.
    InputFeature,
    /// `o`: output feature of the kernel.
    OutputFeature,
    /// A digit: this spatial dimension.
    Spatial(u8),
    /// `?`: no role.
    Unmapped,
}

/// `dim_labels=lhs_rhs->output`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimensionLabels {
    /// Labels of the input.
    pub lhs: Vec<DimensionLabel>,
    /// Labels of the kernel.
    pub rhs: Vec<DimensionLabel>,
    /// Labels of the result.
    pub output: Vec<DimensionLabel>,
}

impl DimensionLabels {
    /// The number of the dimension labelled `label`.
    pub fn position(labels: &[DimensionLabel], label: DimensionLabel) -> Option<usize> {
        labels.iter().position(|other| *other == label)
    }

    /// Number of spatial dimensions.
    pub fn spatial_rank(&self) -> usize {
        self.lhs.iter().filter(|label| matches!(label, DimensionLabel::Spatial(_))).count()
    }
}

fn attribute_error(cursor: &Cursor<'_>, start: usize, message: &str) -> ParseError {
    invalid_since(cursor, start, ErrorKind::InvalidAttribute, message)
}

/// `3x3` or `3`.
fn sizes(cursor: &mut Cursor<'_>) -> Result<Vec<i64>> {
    let mut values = vec![integer(cursor)?];
    while cursor.peek() == b'x' {
        cursor.advance(1);
        values.push(unspaced_integer(cursor)?);
    }
    Ok(values)
}

fn unspaced_integer(cursor: &mut Cursor<'_>) -> Result<i64> {
    match cursor.peek() {
        b'-' | b'0'..=b'9' => match cursor.integer()? {
            Some(value) => Ok(value),
            None => Err(cursor.expected("an integer", "")),
        },
        _ => Err(cursor.expected("an integer", "")),
    }
}

/// `low_high[_interior]` joined by `x`, without spaces.
fn paddings(cursor: &mut Cursor<'_>) -> Result<Vec<PaddingDimension>> {
    cursor.skip_space()?;
    let mut values = Vec::new();
    loop {
        let low = unspaced_integer(cursor)?;
        if !cursor.eat_bytes(b"_") {
            return Err(cursor.expected("_", "after the low padding"));
        }
        let high = unspaced_integer(cursor)?;
        let interior = if cursor.eat_bytes(b"_") { unspaced_integer(cursor)? } else { 0 };
        values.push(PaddingDimension { low, high, interior });
        if !cursor.eat_bytes(b"x") {
            break;
        }
    }
    if is_identifier_byte(cursor.peek()) {
        return Err(cursor.expected("x", "between the paddings of two dimensions"));
    }
    Ok(values)
}

/// `padding=0_0_0x2_-1_1`. The empty text, which XLA prints for scalars, has no dimensions.
pub(crate) fn decode_padding(value: &[u8]) -> Result<Vec<PaddingDimension>> {
    whole(value, |cursor| {
        cursor.skip_space()?;
        if cursor.is_at_end() { Ok(Vec::new()) } else { paddings(cursor) }
    })
}

/// `slice={[0:3], [0:4:2]}`.
pub(crate) fn decode_slice(value: &[u8]) -> Result<Vec<SliceDimension>> {
    let mut dimensions = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            cursor.expect(b'[', "at the start of a dimension's slice")?;
            let start = integer(cursor)?;
            cursor.expect(b':', "after the start")?;
            let limit = integer(cursor)?;
            let stride = if cursor.eat(b':')? { integer(cursor)? } else { 1 };
            cursor.expect(b']', "at the end of a dimension's slice")?;
            dimensions.push(SliceDimension { start, limit, stride });
            Ok(())
        })
    })?;
    Ok(dimensions)
}

const UNKNOWN_FIELD: &str =
    "unknown field of a window: expected size, stride, pad, lhs_dilate, rhs_dilate or rhs_reversal";

/// `window={size=3x3 pad=1_1x1_1}`.
pub(crate) fn decode_window(value: &[u8]) -> Result<Vec<WindowDimension>> {
    whole(value, |cursor| {
        cursor.expect(b'{', "at the start of the window")?;
        let mut fields: [Option<Vec<i64>>; 5] = Default::default();
        let mut padding: Option<Vec<PaddingDimension>> = None;
        while !cursor.eat(b'}')? {
            let start = cursor.position();
            let key = key(cursor)?;
            let index = match key {
                b"size" => 0,
                b"stride" => 1,
                b"lhs_dilate" => 2,
                b"rhs_dilate" => 3,
                b"rhs_reversal" => 4,
                b"pad" => {
                    if padding.is_some() {
                        return Err(attribute_error(cursor, start, "pad= is given twice"));
                    }
                    let start = cursor.position();
                    let values = paddings(cursor)?;
                    if values.iter().any(|p| p.interior != 0) {
                        let message = "a window's padding has no interior";
                        return Err(attribute_error(cursor, start, message));
                    }
                    padding = Some(values);
                    continue;
                }
                _ => return Err(attribute_error(cursor, start, UNKNOWN_FIELD)),
            };
            let values = sizes(cursor)?;
            if let Some(field) = fields.get_mut(index)
                && field.replace(values).is_some()
            {
                return Err(attribute_error(cursor, start, "a field of the window is given twice"));
            }
        }
        let [size, stride, base, dilation, reversal] = fields.map(Option::unwrap_or_default);
        let rank = size.len();
        let mut dimensions = vec![WindowDimension::default(); rank];
        let padding = padding.unwrap_or_default();
        // XLA does not compare the length of `rhs_reversal`: values beyond the rank mean nothing.
        let reversed = reversal.len().min(rank);
        for length in [stride.len(), base.len(), dilation.len(), reversed, padding.len()] {
            if length != 0 && length != rank {
                let message = "the fields of the window differ in their number of dimensions";
                return Err(attribute_error(cursor, 0, message));
            }
        }
        for (i, dimension) in dimensions.iter_mut().enumerate() {
            let pick = |values: &[i64], default: i64| values.get(i).copied().unwrap_or(default);
            dimension.size = pick(&size, 1);
            dimension.stride = pick(&stride, 1);
            dimension.base_dilation = pick(&base, 1);
            dimension.window_dilation = pick(&dilation, 1);
            dimension.reversal = pick(&reversal, 0) == 1;
            if let Some(padding) = padding.get(i) {
                dimension.padding_low = padding.low;
                dimension.padding_high = padding.high;
            }
        }
        Ok(dimensions)
    })
}

fn labels(cursor: &mut Cursor<'_>, letters: [u8; 2]) -> Result<Vec<DimensionLabel>> {
    let start = cursor.position();
    let kernel = letters == *b"io";
    let mut labels = Vec::new();
    let mut seen = 0u32;
    loop {
        let byte = cursor.peek();
        let (label, bit) = match byte {
            b'?' => (DimensionLabel::Unmapped, None),
            b'0'..=b'9' => (DimensionLabel::Spatial(byte - b'0'), Some(byte - b'0')),
            _ if byte == letters[0] && kernel => (DimensionLabel::InputFeature, Some(10)),
            _ if byte == letters[0] => (DimensionLabel::Batch, Some(10)),
            _ if byte == letters[1] && kernel => (DimensionLabel::OutputFeature, Some(11)),
            _ if byte == letters[1] => (DimensionLabel::Feature, Some(11)),
            _ => break,
        };
        cursor.advance(1);
        if let Some(bit) = bit {
            if seen >> bit & 1 == 1 {
                return Err(attribute_error(cursor, start, "a dimension label is given twice"));
            }
            seen |= 1 << bit;
        }
        labels.push(label);
    }
    if labels.len() < 2 {
        let message = if kernel {
            "expected labels of i, o and digits"
        } else {
            "expected labels of b, f and digits"
        };
        return Err(attribute_error(cursor, start, message));
    }
    Ok(labels)
}

/// `dim_labels=b01f_01io->b01f`.
pub(crate) fn decode_dimension_labels(value: &[u8]) -> Result<DimensionLabels> {
    whole(value, |cursor| {
        cursor.skip_space()?;
        let lhs = labels(cursor, *b"bf")?;
        if !cursor.eat_bytes(b"_") {
            return Err(cursor.expected("_", "after the labels of the left-hand side"));
        }
        let rhs = labels(cursor, *b"io")?;
        if !cursor.eat_bytes(b"->") {
            return Err(cursor.expected("->", "after the labels of the right-hand side"));
        }
        let output = labels(cursor, *b"bf")?;
        let spatial = |labels: &[DimensionLabel]| {
            labels.iter().filter(|label| matches!(label, DimensionLabel::Spatial(_))).count()
        };
        if spatial(&lhs) != spatial(&rhs) || spatial(&lhs) != spatial(&output) {
            return Err(ParseError::new(
                ErrorKind::InvalidAttribute,
                Span::new(0, value.len()),
                "the three sides differ in their number of spatial dimensions",
            ));
        }
        Ok(DimensionLabels { lhs, rhs, output })
    })
}
