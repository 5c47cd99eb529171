//! Device orders: lists of device numbers, and `arange(n).reshape(dims).transpose(perm)`, stored
//! as `dims` and `perm` however large `n` is.

use super::scan::{Trailing, integer, invalid_since, list};
use crate::error::{ErrorKind, Result};
use crate::text::Cursor;

/// `arange(product).reshape(reshape).transpose(transpose)`, flattened. XLA's parser accepts
/// negative sizes and repeated axes; such an order is kept as data but has no devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iota {
    /// Sizes before the transposition.
    pub reshape: Vec<i64>,
    /// The permutation, as long as `reshape`.
    pub transpose: Vec<u32>,
}

/// The product of `sizes`; None if one is negative or the product does not fit.
pub(crate) fn product(sizes: impl IntoIterator<Item = i64>) -> Option<u64> {
    let mut product = 1u64;
    let mut overflow = false;
    for size in sizes {
        let size = u64::try_from(size).ok()?;
        if size == 0 {
            return Some(0);
        }
        match product.checked_mul(size) {
            Some(next) => product = next,
            // After an overflow, a zero still makes the whole product zero.
            None => overflow = true,
        }
    }
    (!overflow).then_some(product)
}

impl Iota {
    /// Number of devices; None if it does not fit 64 bits.
    pub fn len(&self) -> Option<u64> {
        product(self.reshape.iter().copied())
    }

    /// Whether there is no device.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Whether the order is 0, 1, 2, ...: axes of size 1 may move freely.
    pub fn is_identity(&self) -> bool {
        let size = |axis: u32| self.reshape.get(axis as usize).copied().unwrap_or(1);
        let mut moved = self.transpose.iter().copied().filter(|axis| size(*axis) != 1);
        let mut last = None;
        moved.all(|axis| last.replace(axis).is_none_or(|last| last < axis))
    }

    /// The device at flat position `index`, in time proportional to the rank.
    pub fn get(&self, index: u64) -> Option<u64> {
        self.reader()?.get(index)
    }

    /// A reader for many look-ups; None if the order repeats an axis, has a negative size or does
    /// not fit 64 bits.
    pub(crate) fn reader(&self) -> Option<IotaReader> {
        let mut seen = vec![false; self.reshape.len()];
        let once = self.transpose.iter().all(|axis| {
            seen.get_mut(*axis as usize).is_some_and(|seen| !std::mem::replace(seen, true))
        });
        if !once || self.transpose.len() != self.reshape.len() {
            return None;
        }
        let mut strides = vec![1u64; self.reshape.len()];
        let mut stride = 1u64;
        let length = self.len()?;
        for (slot, size) in strides.iter_mut().zip(&self.reshape).rev() {
            *slot = stride;
            // Saturation can happen only if another size is zero, and then no device is looked up.
            stride = stride.saturating_mul(u64::try_from(*size).ok()?);
        }
        let mut axes = Vec::with_capacity(self.transpose.len());
        for axis in self.transpose.iter().rev() {
            let size = u64::try_from(*self.reshape.get(*axis as usize)?).ok()?;
            axes.push((size, *strides.get(*axis as usize)?));
        }
        Some(IotaReader { axes, length })
    }

    /// Appends the canonical text: `[2,4]T(1,0)`, or `[8]` for the plain order.
    pub fn write(&self, text: &mut Vec<u8>) {
        text.push(b'[');
        write_list(text, self.reshape.iter().copied());
        text.push(b']');
        if self.reshape.len() > 1 {
            text.extend_from_slice(b"T(");
            write_list(text, self.transpose.iter().map(|axis| i64::from(*axis)));
            text.push(b')');
        }
    }
}

/// Size and stride of each axis, fastest-varying first.
pub(crate) struct IotaReader {
    axes: Vec<(u64, u64)>,
    length: u64,
}

impl IotaReader {
    /// The device at flat position `index`.
    pub fn get(&self, index: u64) -> Option<u64> {
        if index >= self.length {
            return None;
        }
        let mut rest = index;
        let mut device = 0u64;
        for (size, stride) in &self.axes {
            device += rest.checked_rem(*size)? * stride;
            rest /= size;
        }
        Some(device)
    }
}

/// An order of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOrder {
    /// An order given by a formula.
    Iota(Iota),
    /// An order written out as a list.
    List(Vec<i64>),
}

impl DeviceOrder {
    /// Number of devices; None if it does not fit 64 bits.
    pub fn len(&self) -> Option<u64> {
        match self {
            DeviceOrder::Iota(iota) => iota.len(),
            DeviceOrder::List(list) => Some(list.len() as u64),
        }
    }

    /// Whether there is no device.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The device at flat position `index`.
    pub fn get(&self, index: u64) -> Option<i64> {
        match self {
            DeviceOrder::Iota(iota) => i64::try_from(iota.get(index)?).ok(),
            DeviceOrder::List(list) => list.get(usize::try_from(index).ok()?).copied(),
        }
    }
}

/// Appends `1,2,3`.
pub(crate) fn write_list(text: &mut Vec<u8>, values: impl IntoIterator<Item = i64>) {
    for (i, value) in values.into_iter().enumerate() {
        if i > 0 {
            text.push(b',');
        }
        text.extend_from_slice(value.to_string().as_bytes());
    }
}

/// `[1,2,3]`.
pub(crate) fn square_list(cursor: &mut Cursor<'_>) -> Result<Vec<i64>> {
    let mut values = Vec::new();
    list(cursor, (b'[', b']'), Trailing::Nothing, |cursor| {
        values.push(integer(cursor)?);
        Ok(())
    })?;
    Ok(values)
}

/// Reads `[2,4]T(1,0)` or `[8]`, the part after `<=`.
pub(crate) fn iota(cursor: &mut Cursor<'_>, kind: ErrorKind) -> Result<Iota> {
    cursor.skip_space()?;
    let start = cursor.position();
    let reshape = square_list(cursor)?;
    cursor.skip_space()?;
    let mut transpose = Vec::new();
    if cursor.peek() == b'T' {
        cursor.advance(1);
        list(cursor, (b'(', b')'), Trailing::Nothing, |cursor| {
            let at = cursor.position();
            match u32::try_from(integer(cursor)?) {
                Ok(axis) => transpose.push(axis),
                Err(_) => {
                    return Err(invalid_since(cursor, at, kind, "an axis number is out of range"));
                }
            }
            Ok(())
        })?;
    } else if reshape.len() == 1 {
        transpose.push(0);
    } else {
        return Err(cursor.expected("T", "and a permutation after several sizes"));
    }
    if transpose.iter().any(|axis| *axis as usize >= reshape.len()) {
        let message = "T(...) must be a permutation of the axes before it";
        return Err(invalid_since(cursor, start, kind, message));
    }
    Ok(Iota { reshape, transpose })
}
