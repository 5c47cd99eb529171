//! Converts spellings of groups to digits of the device number.

use super::digits::{Digit, Permutation, normalise, numbers, regular};
use super::groups::{DeviceGroups, Form, GroupMode, all};
use crate::ir::decode::{AxisReference, IntegerLists, Iota, Mesh as WrittenMesh, ReplicaGroups};
use std::borrow::Cow;

/// Converts numbers as `mode` defines them to devices.
pub(super) struct Lift {
    pub mode: GroupMode,
    pub counts: Option<(u64, u64)>,
}

impl Lift {
    /// The number of participants that numbers in groups can name.
    pub fn members(&self) -> Option<u64> {
        let (replicas, partitions) = self.counts?;
        Some(match self.mode {
            GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => replicas,
            GroupMode::CrossPartition => partitions,
            GroupMode::FlattenedId => replicas * partitions,
        })
    }

    /// Converts digits of the numbers below `members`, as `mode` defines these numbers, to digits
    /// of the device number.
    pub fn regular(&self, digits: &[Digit], members: u64) -> Form {
        let Some((replicas, partitions)) = self.counts else {
            return Form::Regular { digits: digits.to_vec(), device_count: members };
        };
        let device_count = replicas * partitions;
        let raised = |digit: &Digit| Digit { stride: digit.stride * partitions, ..*digit };
        let digits = match self.mode {
            GroupMode::FlattenedId | GroupMode::CrossPartition => digits.to_vec(),
            GroupMode::CrossReplica => digits.iter().map(raised).collect(),
            GroupMode::CrossReplicaAndPartition => {
                let within = Digit { stride: 1, size: partitions };
                let digits = digits.iter().map(raised).chain([within]).collect();
                normalise(digits).unwrap_or_default()
            }
        };
        Form::Regular { digits, device_count }
    }

    /// Regular groups over `members` numbers.
    pub fn sized(
        &self,
        digits: Vec<Digit>,
        members: u64,
        written: &ReplicaGroups<'_>,
    ) -> DeviceGroups {
        let groups = |form, counts| DeviceGroups::from_parts(form, self.mode, counts);
        match (self.members(), self.counts) {
            (Some(known), Some(counts)) if known == members => {
                groups(self.regular(&digits, members), counts)
            }
            // Some HLO producers use device numbers although the attributes say otherwise.
            (Some(_), Some((replicas, partitions))) if replicas * partitions == members => {
                groups(Form::Regular { digits, device_count: members }, (1, 1))
            }
            (Some(_), counts) => match written {
                ReplicaGroups::Lists(lists) => {
                    let lists = sorted(lists).unwrap_or_default();
                    groups(Form::Lists(lists), counts.unwrap_or((1, 1)))
                }
                _ => groups(Form::Written(owned(written)), counts.unwrap_or((1, 1))),
            },
            (None, _) => groups(Form::Regular { digits, device_count: members }, (1, 1)),
        }
    }

    pub fn lists(&self, lists: &IntegerLists, written: &ReplicaGroups<'_>) -> DeviceGroups {
        let counts = self.counts.unwrap_or((1, 1));
        let Some(mut groups) = sorted(lists) else {
            let form = Form::Written(owned(written));
            return DeviceGroups::from_parts(form, self.mode, counts);
        };
        match regular(&mut groups) {
            Some((digits, members)) => self.sized(digits, members, written),
            None => DeviceGroups::from_parts(Form::Lists(groups), self.mode, counts),
        }
    }
}

/// Lists in ascending order; None if a number is negative.
fn sorted(lists: &IntegerLists) -> Option<Vec<Vec<u64>>> {
    let mut groups: Vec<Vec<u64>> = lists.iter().map(numbers).collect::<Option<_>>()?;
    for group in &mut groups {
        group.sort_unstable();
    }
    groups.sort_unstable();
    Some(groups)
}

/// The digits that vary within iota or mesh groups, and the number of numbers; None if a group does
/// not end between digits or the groups are invalid.
pub(super) fn pattern(groups: &ReplicaGroups<'_>) -> Option<(Vec<Digit>, u64)> {
    match groups {
        ReplicaGroups::Iota { groups, group_size, order } => {
            let order = Permutation::of_iota(order)?;
            let size = u64::try_from(*group_size).ok().filter(|size| *size > 0)?;
            let count = u64::try_from(*groups).ok()?;
            if count.checked_mul(size)? != order.total() {
                return None;
            }
            let digits = order.devices_of(&normalise(all(size))?)?;
            Some((digits, order.total()))
        }
        ReplicaGroups::Mesh { mesh, axes } => {
            let split = mesh.split(axes)?;
            let total = mesh.device_count().filter(|total| i64::try_from(*total).is_ok())?;
            let order = match (&mesh.device_ids, mesh.maximal) {
                (_, Some(_)) => return None,
                (Some(order), None) => Permutation::from_order(order)?,
                (None, None) => Permutation::identity(total),
            };
            if order.total() != total || total == 0 {
                return None;
            }
            let mut stride = total;
            let mut chain = Vec::with_capacity(split.sizes.len());
            for size in &split.sizes {
                let size = u64::try_from(*size).ok()?;
                stride = stride.checked_div(size)?;
                chain.push(Digit { stride, size });
            }
            let within = split.dimensions.iter().map(|at| chain.get(*at as usize).copied());
            let digits = normalise(within.collect::<Option<Vec<Digit>>>()?)?;
            Some((order.devices_of(&digits)?, total))
        }
        _ => None,
    }
}

/// An owned copy of the groups.
pub(super) fn owned(groups: &ReplicaGroups<'_>) -> ReplicaGroups<'static> {
    fn name(name: &[u8]) -> Cow<'static, [u8]> {
        Cow::Owned(name.to_vec())
    }
    match groups {
        ReplicaGroups::Everyone => ReplicaGroups::Everyone,
        ReplicaGroups::Lists(lists) => ReplicaGroups::Lists(lists.clone()),
        ReplicaGroups::Iota { groups, group_size, order } => {
            let order = Iota { reshape: order.reshape.clone(), transpose: order.transpose.clone() };
            ReplicaGroups::Iota { groups: *groups, group_size: *group_size, order }
        }
        ReplicaGroups::Mesh { mesh, axes } => ReplicaGroups::Mesh {
            mesh: WrittenMesh {
                axes: mesh.axes.iter().map(|(axis, size)| (name(axis), *size)).collect(),
                device_ids: mesh.device_ids.clone(),
                maximal: mesh.maximal,
            },
            axes: axes
                .iter()
                .map(|axis| AxisReference { name: name(&axis.name), part: axis.part })
                .collect(),
        },
    }
}
