//! Matches device groups with the axes of a mesh.

use super::digits::{Digit, normalise, product, refine, regular};
use super::groups::{DeviceGroups, EXPANSION_LIMIT, Form};
use super::mesh::{Mesh, Order};
use std::fmt;

/// A mesh axis or a part of one: coordinates along an axis of size 8 are three-bit numbers, and a
/// part is a run of adjacent bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisPart {
    /// Index of the axis.
    pub axis: usize,
    /// Product of the sizes before the part within the axis; 1 for a whole axis.
    pub before: u64,
    /// Size of the part; the axis size for a whole axis.
    pub size: u64,
}

/// Why groups or a sharding do not follow the axes of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// The groups or the sharding have a different number of devices than the mesh.
    DeviceCount {
        /// Devices in the groups.
        groups: u64,
        /// Devices of the mesh.
        mesh: u64,
    },
    /// A device is not in the mesh.
    UnknownDevice(i64),
    /// The groups differ in size.
    Uneven,
    /// A group lacks some of the devices that share the remaining coordinates.
    Irregular,
    /// Sizes, axes or devices in the text contradict each other or are out of range.
    Malformed,
    /// The sharding names a single device.
    SingleDevice(i64),
    /// The sharding is not known yet.
    Unknown,
    /// Groups or mesh are irregular and have too many devices to compare one by one.
    TooLarge,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::DeviceCount { groups, mesh } => {
                write!(f, "it names {groups} devices, the mesh has {mesh}")?;
                // A multi-slice program is written for one slice.
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
            Mismatch::Malformed => {
                f.write_str("malformed: its sizes, axes and devices do not match")
            }
            Mismatch::SingleDevice(device) => write!(f, "it names device {device} only"),
            Mismatch::Unknown => f.write_str("the sharding is not known yet"),
            Mismatch::TooLarge => f.write_str("too many devices in an irregular order"),
        }
    }
}

/// The mesh axes of device groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AxisMatch {
    /// Groups of one device.
    Nothing,
    /// Each group holds the devices that differ only along these axes.
    Axes {
        /// In mesh order, without axes of size 1.
        parts: Vec<AxisPart>,
        /// Whether the axes cover the whole mesh.
        everything: bool,
    },
    /// The groups do not follow the axes.
    NoSubset(Mismatch),
}

impl AxisMatch {
    /// The axes; empty if the groups follow none.
    pub fn parts(&self) -> &[AxisPart] {
        match self {
            AxisMatch::Axes { parts, .. } => parts,
            _ => &[],
        }
    }
}

impl Mesh {
    /// The axes along which the devices of each group differ. Groups are compared as sets: order
    /// within a group and order of groups are ignored.
    ///
    /// In a mesh of several slices, groups over the devices of one slice apply to every slice (a
    /// multi-slice program is written for one slice).
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

    /// For irregular groups or device orders: expands the groups and looks devices up. Work is
    /// bounded by the length of the lists in the text, or by a constant.
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

    /// The axes that these digits of the position make up.
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

    /// The digit of the position for this axis or part; None if the mesh does not have it.
    pub(super) fn position_digit(&self, part: &AxisPart) -> Option<Digit> {
        let whole = self.digits().get(part.axis)?;
        let cut = part.before.checked_mul(part.size).filter(|cut| *cut > 0)?;
        whole
            .size
            .is_multiple_of(cut)
            .then(|| Digit { stride: whole.stride * (whole.size / cut), size: part.size })
    }

    /// `data`, or `data:(2)4` for a part: the product of the sizes before it, then its own size.
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

    /// `data×model`; empty for groups of one device, `no axis subset` on a mismatch.
    pub fn match_text(&self, axis_match: &AxisMatch) -> String {
        match axis_match {
            AxisMatch::Nothing => String::new(),
            AxisMatch::Axes { parts, .. } => self.parts_text(parts),
            AxisMatch::NoSubset(_) => "no axis subset".to_owned(),
        }
    }

    /// The groups whose devices differ only along `parts`; None if the mesh does not have these
    /// parts or two of them overlap.
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
