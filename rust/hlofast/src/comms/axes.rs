//! Which axes of a mesh a set of groups goes along.

use super::digits::{Digit, normalise, product, refine, regular};
use super::groups::{DeviceGroups, EXPANSION_LIMIT, Form};
use super::mesh::{Mesh, Order};
use std::fmt;

/// An axis of a mesh, or a part of one: coordinates along an axis of size 8 are numbers of three
/// bits, and a part is some of the neighbouring bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisPart {
    /// Number of the axis.
    pub axis: usize,
    /// Product of the sizes in front of the part within the axis; 1 for a whole axis.
    pub before: u64,
    /// Size of the part; that of the axis for a whole one.
    pub size: u64,
}

/// Why groups go along no axes of a mesh, or a sharding cuts along none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// The groups, or the sharding, hold another number of devices than the mesh.
    DeviceCount {
        /// Devices in the groups.
        groups: u64,
        /// Devices of the mesh.
        mesh: u64,
    },
    /// A device that the mesh does not have.
    UnknownDevice(i64),
    /// Groups of several sizes.
    Uneven,
    /// The devices of a group are not those that differ in some coordinates only.
    Irregular,
    /// The text makes no sense.
    Malformed,
    /// A sharding that names one device.
    SingleDevice(i64),
    /// A sharding that is not known yet.
    Unknown,
    /// Groups or mesh have no pattern and too many devices to compare them one by one.
    TooLarge,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::DeviceCount { groups, mesh } => {
                write!(f, "it names {groups} devices, the mesh has {mesh}")?;
                // A program for several slices is written for one of them.
                if *groups > 1 && groups < mesh && mesh.is_multiple_of(*groups) {
                    write!(
                        f,
                        " (if the program is for one slice of several, the mesh lies on {} slices)",
                        mesh / groups
                    )?;
                }
                Ok(())
            }
            Mismatch::UnknownDevice(device) => write!(f, "the mesh has no device {device}"),
            Mismatch::Uneven => f.write_str("the groups differ in size"),
            Mismatch::Irregular => f.write_str("it follows no axes of the mesh"),
            Mismatch::Malformed => f.write_str("it makes no sense"),
            Mismatch::SingleDevice(device) => write!(f, "it names device {device} only"),
            Mismatch::Unknown => f.write_str("it is not known yet"),
            Mismatch::TooLarge => f.write_str("too many devices without a pattern"),
        }
    }
}

/// What groups are on a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AxisMatch {
    /// Groups of one device.
    Nothing,
    /// The devices of a group are those that differ along these axes only.
    Axes {
        /// In the order of the mesh, without axes of size 1.
        parts: Vec<AxisPart>,
        /// Whether that is the whole mesh.
        everything: bool,
    },
    /// Neither.
    NoSubset(Mismatch),
}

impl AxisMatch {
    /// The axes; none if there are none to name.
    pub fn parts(&self) -> &[AxisPart] {
        match self {
            AxisMatch::Axes { parts, .. } => parts,
            _ => &[],
        }
    }
}

impl Mesh {
    /// The axes along which the devices of each group differ. Groups are compared as sets: neither
    /// the order within a group nor that of groups matters.
    ///
    /// Groups over the devices of one slice only, in a mesh of several slices, stand for the same
    /// groups on every slice (a program for several slices is written for one of them).
    pub fn axes_of(&self, groups: &DeviceGroups) -> AxisMatch {
        if groups.group_size() == Some(1) {
            return AxisMatch::Nothing;
        }
        let count = self.device_count();
        let all = || vec![Digit { stride: 1, size: count }];
        let total = match groups.form() {
            Form::Everyone => return self.axes_of_positions(&normalise(all()).unwrap_or_default()),
            _ => groups.device_count(),
        };
        let Some(total) = total else { return AxisMatch::NoSubset(Mismatch::Malformed) };
        if total != count {
            let per_slice = self.slices().map(|slices| count / slices);
            if per_slice != Some(total) {
                let mismatch = Mismatch::DeviceCount { groups: total, mesh: count };
                return AxisMatch::NoSubset(mismatch);
            }
        }
        if !groups.is_uniform() {
            return AxisMatch::NoSubset(Mismatch::Uneven);
        }
        if let (Form::Regular { digits, .. }, Order::Digits(order)) = (groups.form(), self.order())
            && let Some(positions) = order.positions_of(digits)
        {
            return self.axes_of_positions(&positions);
        }
        self.axes_of_lists(groups, total)
    }

    /// For groups or orders without a pattern: the groups are written out and looked up. Work is
    /// bounded by the text of the lists on either side, or by a constant.
    fn axes_of_lists(&self, groups: &DeviceGroups, total: u64) -> AxisMatch {
        let is_listed = matches!(self.order(), Order::Table { .. });
        if !groups.is_written_out() && !is_listed && total > EXPANSION_LIMIT as u64 {
            return AxisMatch::NoSubset(Mismatch::TooLarge);
        }
        let Ok(limit) = usize::try_from(total) else {
            return AxisMatch::NoSubset(Mismatch::TooLarge);
        };
        let Some(mut lists) = groups.expand(limit) else {
            return AxisMatch::NoSubset(Mismatch::Malformed);
        };
        for device in lists.iter_mut().flatten() {
            match self.position(*device) {
                Some(position) => *device = position,
                None => {
                    let device = i64::try_from(*device).unwrap_or(i64::MAX);
                    return AxisMatch::NoSubset(Mismatch::UnknownDevice(device));
                }
            }
        }
        match regular(&mut lists) {
            Some((positions, _)) => self.axes_of_positions(&positions),
            None => AxisMatch::NoSubset(Mismatch::Irregular),
        }
    }

    /// The axes whose coordinates are these digits of the position.
    fn axes_of_positions(&self, positions: &[Digit]) -> AxisMatch {
        match self.parts_of_positions(positions) {
            Some(parts) if parts.is_empty() => AxisMatch::Nothing,
            Some(parts) => {
                let everything = product(positions) == self.device_count();
                AxisMatch::Axes { parts, everything }
            }
            None => AxisMatch::NoSubset(Mismatch::Irregular),
        }
    }

    /// The axes and parts of axes that make up these digits of the position, in mesh order.
    pub(super) fn parts_of_positions(&self, positions: &[Digit]) -> Option<Vec<AxisPart>> {
        let mut parts = refine(positions, self.digits())?;
        parts.sort_unstable_by_key(|(axis, digit)| (*axis, std::cmp::Reverse(*digit)));
        let mut merged: Vec<(usize, Digit)> = Vec::with_capacity(parts.len());
        for (axis, digit) in parts {
            match merged.last_mut() {
                Some((last, above)) if *last == axis && above.stride == digit.end() => {
                    *above = Digit { stride: digit.stride, size: above.size * digit.size };
                }
                _ => merged.push((axis, digit)),
            }
        }
        let part = |(axis, digit): (usize, Digit)| {
            let whole = self.digits().get(axis)?;
            Some(AxisPart { axis, before: whole.end() / digit.end(), size: digit.size })
        };
        merged.into_iter().map(part).collect()
    }

    /// The digit of the position that is this axis or part; None if the mesh has no such part.
    pub(super) fn position_digit(&self, part: &AxisPart) -> Option<Digit> {
        let whole = self.digits().get(part.axis)?;
        let cut = part.before.checked_mul(part.size).filter(|cut| *cut > 0)?;
        whole
            .size
            .is_multiple_of(cut)
            .then(|| Digit { stride: whole.stride * (whole.size / cut), size: part.size })
    }

    /// `data`, or `data:(2)4` for a part: the sizes in front of it, and its own.
    pub fn part_text(&self, part: &AxisPart) -> String {
        let Some(axis) = self.axes().get(part.axis) else { return String::new() };
        if (part.before, part.size) == (1, axis.size) {
            return axis.name.clone();
        }
        format!("{}:({}){}", axis.name, part.before, part.size)
    }

    /// `data×model`.
    pub fn parts_text(&self, parts: &[AxisPart]) -> String {
        let words: Vec<String> = parts.iter().map(|part| self.part_text(part)).collect();
        words.join("×")
    }

    /// `data×model`; empty for groups of one device, `no axis subset` where that is so.
    pub fn match_text(&self, found: &AxisMatch) -> String {
        match found {
            AxisMatch::Nothing => String::new(),
            AxisMatch::Axes { parts, .. } => self.parts_text(parts),
            AxisMatch::NoSubset(_) => "no axis subset".to_owned(),
        }
    }

    /// The groups whose devices differ along `parts` only; None if the mesh has no such parts or
    /// two of them overlap.
    pub fn groups_along(&self, parts: &[AxisPart]) -> Option<DeviceGroups> {
        let digits: Vec<Digit> =
            parts.iter().map(|part| self.position_digit(part)).collect::<Option<_>>()?;
        let digits = normalise(digits)?;
        match self.order() {
            Order::Digits(order) => {
                let devices = order.devices_of(&digits)?;
                Some(DeviceGroups::regular(devices, self.device_count()))
            }
            Order::Table { .. } => Some(DeviceGroups::of_lists(self.lines(&digits)?)),
        }
    }
}
