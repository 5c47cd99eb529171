//! Device numbers as mixed-radix numbers.
//!
//! Dividing devices into groups along mesh axes lets some digits of the device number vary within a
//! group and fixes all others. There are few digits however many devices there are, so groups over
//! 10^9 devices are compared without expanding them.

use crate::ir::decode::{DeviceOrder, Iota};
use smallvec::SmallVec;

/// One digit: the `size` numbers `0, stride, 2 * stride, ...`. As an interval of divisors, the
/// digit is `[stride, stride * size)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Digit {
    pub stride: u64,
    pub size: u64,
}

impl Digit {
    /// The stride of the next more significant digit.
    pub fn end(self) -> u64 {
        self.stride.saturating_mul(self.size)
    }

    fn between(start: u64, end: u64) -> Self {
        Self { stride: start, size: end / start }
    }
}

/// Product of the sizes.
pub(super) fn product(digits: &[Digit]) -> u64 {
    digits.iter().fold(1, |product, digit| product.saturating_mul(digit.size))
}

/// The digits, major first, with adjacent digits merged and digits of size 1 dropped. None if
/// digits overlap or do not divide one another.
pub(super) fn normalise(mut digits: Vec<Digit>) -> Option<Vec<Digit>> {
    digits.retain(|digit| digit.size != 1);
    digits.sort_unstable();
    let mut merged: Vec<Digit> = Vec::with_capacity(digits.len());
    for digit in digits {
        match merged.last_mut() {
            Some(below) if below.end() == digit.stride => {
                below.size = below.size.checked_mul(digit.size)?;
            }
            Some(below) if !digit.stride.is_multiple_of(below.end()) => return None,
            _ => merged.push(digit),
        }
    }
    merged.reverse();
    Some(merged)
}

/// The digits of `0..total` that are not in `digits` (normalised), major first. None if `digits` do
/// not divide `total`.
pub(super) fn complement(digits: &[Digit], total: u64) -> Option<Vec<Digit>> {
    let mut rest = Vec::with_capacity(digits.len() + 1);
    let mut above = total;
    for digit in digits {
        let end = digit.end();
        if end == 0 || !above.is_multiple_of(end) {
            return None;
        }
        if above != end {
            rest.push(Digit::between(end, above));
        }
        above = digit.stride;
    }
    if above != 1 {
        rest.push(Digit::between(1, above));
    }
    Some(rest)
}

/// The intersection of two digits; None if they do not overlap, `Some(None)` if one of them is not a
/// multiple of the overlap.
fn cut(digit: Digit, other: Digit) -> Option<Option<Digit>> {
    let (start, end) = (digit.stride.max(other.stride), digit.end().min(other.end()));
    if start >= end {
        return None;
    }
    let divides = start.is_multiple_of(digit.stride)
        && start.is_multiple_of(other.stride)
        && end.is_multiple_of(start)
        && digit.end().is_multiple_of(end)
        && other.end().is_multiple_of(end);
    Some(divides.then(|| Digit::between(start, end)))
}

/// Parts of digits, each with the index of the digit of the chain that contains it.
type Parts = SmallVec<[(usize, Digit); 4]>;

/// Cuts every digit at the borders of `chain`; returns pairs of (index in `chain`, part). None if a
/// border does not divide a digit.
pub(super) fn refine(digits: &[Digit], chain: &[Digit]) -> Option<Parts> {
    let mut parts = Parts::new();
    for digit in digits {
        let mut covered = 1u64;
        for (i, other) in chain.iter().enumerate() {
            if let Some(part) = cut(*digit, *other) {
                let part = part?;
                covered = covered.checked_mul(part.size)?;
                parts.push((i, part));
            }
        }
        if covered != digit.size {
            return None;
        }
    }
    Some(parts)
}

/// A permutation of `0..total` that only permutes digits: maps digits of the position to digits of
/// the device number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permutation {
    positions: Vec<Digit>,
    /// The same sizes as `positions`, in the same order.
    devices: Vec<Digit>,
    total: u64,
}

impl Permutation {
    pub fn identity(total: u64) -> Self {
        let digits = if total > 1 { vec![Digit { stride: 1, size: total }] } else { Vec::new() };
        Self { positions: digits.clone(), devices: digits, total }
    }

    /// The permutation of an iota order; None if the order is invalid or too long.
    pub fn of_iota(order: &Iota) -> Option<Self> {
        let total = order.len().filter(|total| *total > 0 && i64::try_from(*total).is_ok())?;
        let mut strides = vec![0u64; order.reshape.len()];
        let mut stride = 1u64;
        for (slot, size) in strides.iter_mut().zip(&order.reshape).rev() {
            *slot = stride;
            stride = stride.checked_mul(u64::try_from(*size).ok()?)?;
        }
        if order.transpose.len() != order.reshape.len() {
            return None;
        }
        let mut permutation = Self { positions: Vec::new(), devices: Vec::new(), total };
        let mut stride = 1u64;
        for axis in order.transpose.iter().rev() {
            let slot = strides.get_mut(*axis as usize)?;
            // A zeroed stride marks a used axis; an order that repeats an axis is not a
            // permutation.
            let device_stride = std::mem::replace(slot, 0);
            if device_stride == 0 {
                return None;
            }
            let size = u64::try_from(*order.reshape.get(*axis as usize)?).ok()?;
            permutation.push(stride, device_stride, size);
            stride = stride.checked_mul(size)?;
        }
        Some(permutation)
    }

    /// Adds a digit above all other digits. Digits adjacent on both sides are merged, so that equal
    /// permutations compare equal.
    fn push(&mut self, position_stride: u64, device_stride: u64, size: u64) {
        if size == 1 {
            return;
        }
        if let (Some(position), Some(device)) = (self.positions.last_mut(), self.devices.last_mut())
            && device.end() == device_stride
        {
            position.size *= size;
            device.size *= size;
            return;
        }
        self.positions.push(Digit { stride: position_stride, size });
        self.devices.push(Digit { stride: device_stride, size });
    }

    /// The permutation of a listed order, if it is made of digits. Linear in the list.
    pub fn of_list(list: &[u64]) -> Option<Self> {
        let total = list.len() as u64;
        let mut permutation = Self { positions: Vec::new(), devices: Vec::new(), total };
        let mut stride = 1u64;
        for digit in runs(list)? {
            permutation.push(stride, digit.stride, digit.size);
            stride = stride.checked_mul(digit.size)?;
        }
        let all = normalise(permutation.devices.clone())?;
        (stride == total && complement(&all, total)?.is_empty()).then_some(permutation)
    }

    pub fn from_order(order: &DeviceOrder) -> Option<Self> {
        match order {
            DeviceOrder::Iota(iota) => Self::of_iota(iota),
            DeviceOrder::List(list) => Self::of_list(&numbers(list)?),
        }
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Maps digits of the position to digits of the device number. None if a digit is cut unevenly.
    pub fn devices_of(&self, positions: &[Digit]) -> Option<Vec<Digit>> {
        moved(positions, &self.positions, &self.devices)
    }

    /// Like `devices_of` for one digit, with its parts in order of significance and not merged.
    pub fn devices_in_order(&self, position: Digit) -> Option<Vec<Digit>> {
        let mut parts = refine(&[position], &self.positions)?;
        parts.sort_unstable_by_key(|(_, part)| std::cmp::Reverse(part.stride));
        let moved = |(i, part): (usize, Digit)| {
            let offset = part.stride / self.positions.get(i)?.stride;
            let stride = self.devices.get(i)?.stride.checked_mul(offset)?;
            Some(Digit { stride, size: part.size })
        };
        parts.into_iter().map(moved).collect()
    }

    /// Composes this permutation with the inverse of `order`. `order` may be longer; its upper
    /// positions are then unused. None if digits are cut unevenly.
    pub fn then(&self, order: &Permutation) -> Option<Permutation> {
        let mut chained = Self { positions: Vec::new(), devices: Vec::new(), total: self.total };
        let mut stride = 1u64;
        for device in &self.devices {
            let mut parts = refine(std::slice::from_ref(device), &order.devices)?;
            parts.sort_unstable_by_key(|(_, part)| part.stride);
            for (i, part) in parts {
                let offset = part.stride / order.devices.get(i)?.stride;
                let position = order.positions.get(i)?.stride.checked_mul(offset)?;
                chained.push(stride, position, part.size);
                stride = stride.checked_mul(part.size)?;
            }
        }
        Some(chained)
    }

    /// Maps digits of the device number to digits of the position.
    pub fn positions_of(&self, devices: &[Digit]) -> Option<Vec<Digit>> {
        moved(devices, &self.devices, &self.positions)
    }

    /// The device at a position below `total`.
    pub fn device(&self, position: u64) -> u64 {
        renumber(position, &self.positions, &self.devices)
    }

    /// The position of a device below `total`.
    pub fn position(&self, device: u64) -> u64 {
        renumber(device, &self.devices, &self.positions)
    }

    pub fn is_identity(&self) -> bool {
        self.positions == self.devices
    }

    /// The permutation in HLO's iota form.
    pub fn to_iota(&self) -> Iota {
        let mut major_first: Vec<usize> = (0..self.devices.len()).collect();
        major_first.sort_unstable_by_key(|i| std::cmp::Reverse(self.devices.get(*i)));
        let mut iota = Iota { reshape: Vec::new(), transpose: vec![0; self.devices.len()] };
        for (axis, i) in major_first.iter().enumerate() {
            iota.reshape.push(self.devices.get(*i).map_or(1, |digit| digit.size as i64));
            let from_major = self.devices.len() - 1 - i;
            if let Some(slot) = iota.transpose.get_mut(from_major) {
                *slot = axis as u32;
            }
        }
        if iota.reshape.is_empty() {
            iota = Iota { reshape: vec![1], transpose: vec![0] };
        }
        iota
    }
}

fn moved(digits: &[Digit], from: &[Digit], to: &[Digit]) -> Option<Vec<Digit>> {
    let mut result = Vec::with_capacity(digits.len());
    for (i, part) in refine(digits, from)? {
        let offset = part.stride / from.get(i)?.stride;
        result.push(Digit { stride: to.get(i)?.stride.checked_mul(offset)?, size: part.size });
    }
    normalise(result)
}

fn renumber(number: u64, from: &[Digit], to: &[Digit]) -> u64 {
    let pairs = from.iter().zip(to);
    pairs.map(|(from, to)| number / from.stride % from.size * to.stride).sum()
}

/// Device numbers as unsigned; None if one is negative.
pub(super) fn numbers(list: &[i64]) -> Option<Vec<u64>> {
    list.iter().map(|device| u64::try_from(*device).ok()).collect()
}

/// The digits that enumerate `list`, minor first; None if `list` does not start with 0 or is
/// irregular.
fn runs(list: &[u64]) -> Option<Vec<Digit>> {
    if *list.first()? != 0 {
        return None;
    }
    let mut digits = Vec::new();
    let mut step = 1usize;
    // Each round takes the longest run of equal differences as the next digit; every element must
    // then equal its block's first element plus its offset in the run.
    while step < list.len() {
        let stride = *list.get(step)?;
        let mut size = 1usize;
        while let Some(value) = list.get(size * step) {
            if (size as u64).checked_mul(stride) != Some(*value) {
                break;
            }
            size += 1;
        }
        if stride == 0 || !list.len().is_multiple_of(step * size) {
            return None;
        }
        let block = step * size;
        for start in (0..list.len()).step_by(block) {
            let base = *list.get(start)?;
            for i in 1..size {
                let expected = (i as u64).checked_mul(stride)?.checked_add(base)?;
                if *list.get(start + i * step)? != expected {
                    return None;
                }
            }
        }
        digits.push(Digit { stride, size: size as u64 });
        step = block;
    }
    Some(digits)
}

/// The digits that vary within each of `groups`, and the number of devices. None unless the groups
/// hold 0, 1, 2, ... exactly once and differ only in their first device. Order within groups and of
/// groups is ignored.
pub(super) fn regular(groups: &mut [Vec<u64>]) -> Option<(Vec<Digit>, u64)> {
    let total: usize = groups.iter().map(Vec::len).sum();
    let mut seen = vec![false; total];
    for device in groups.iter().flatten() {
        let slot = seen.get_mut(usize::try_from(*device).ok()?)?;
        if std::mem::replace(slot, true) {
            return None;
        }
    }
    for group in groups.iter_mut() {
        group.sort_unstable();
    }
    let pattern = groups.iter().find(|group| group.first() == Some(&0))?;
    let digits = normalise(runs(pattern)?)?;
    complement(&digits, total as u64)?;
    let same = groups.iter().all(|group| {
        let base = group.first().copied().unwrap_or(0);
        group.len() == pattern.len()
            && group.iter().zip(pattern).all(|(device, offset)| *device == base + offset)
    });
    same.then_some((digits, total as u64))
}
