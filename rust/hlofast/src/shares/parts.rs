//! The parts of mesh axes that shardings use, as bits.

use crate::comms::{AxisPart, Mesh};
use std::collections::BTreeSet;

/// A set of parts, one bit each.
pub(super) type Mask = u64;

/// The finest parts of mesh axes that any sharding distinguishes.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    parts: Vec<AxisPart>,
}

impl Parts {
    /// The parts of `mesh` that express all axes in `used`; None if there are more than 64 parts.
    pub fn new<'a>(mesh: &Mesh, used: impl Iterator<Item = &'a AxisPart>) -> Option<Self> {
        let whole = |size: u64| BTreeSet::from([1, size]);
        let mut borders: Vec<BTreeSet<u64>> =
            mesh.axes().iter().map(|axis| whole(axis.size)).collect();
        for part in used {
            let size = mesh.axes().get(part.axis)?.size;
            let inner = [part.before, part.before.checked_mul(part.size)?];
            let fits = inner.iter().all(|border| *border > 0 && size.is_multiple_of(*border));
            if fits {
                borders.get_mut(part.axis)?.extend(inner);
            }
        }
        let mut parts = Vec::new();
        for (axis, borders) in borders.iter().enumerate() {
            let ends = borders.iter().skip(1);
            for (before, end) in borders.iter().zip(ends) {
                if !end.is_multiple_of(*before) {
                    return None;
                }
                parts.push(AxisPart { axis, before: *before, size: end / before });
            }
        }
        (parts.len() <= Mask::BITS as usize).then_some(Self { parts })
    }

    /// The set of `parts`; None if it cannot be expressed.
    pub fn mask(&self, parts: &[AxisPart]) -> Option<Mask> {
        let mut mask = 0;
        for part in parts {
            let end = part.before.checked_mul(part.size)?;
            let mut size = 1;
            for (bit, own) in self.parts.iter().enumerate() {
                if own.axis == part.axis && own.before >= part.before && own.before < end {
                    mask |= 1 << bit;
                    size *= own.size;
                }
            }
            if size != part.size {
                return None;
            }
        }
        Some(mask)
    }

    /// Number of devices that differ in these parts.
    pub fn size(&self, mask: Mask) -> u64 {
        let within = self.parts.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
        within.map(|(_, part)| part.size).product()
    }
}
