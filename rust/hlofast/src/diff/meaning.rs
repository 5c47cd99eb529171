//! Attribute values that can be spelled in several ways.

use crate::ir::Opcode;
use crate::ir::decode::{
    AttributeValue, LeafSharding, Placement, ReplicaGroups, Sharding, SubgroupKind, decode,
};

/// Compares the meaning of values. Devices are enumerated up to a limit; beyond the limit, values
/// are equal only if their texts are equal.
pub(super) struct Meaning {
    devices_left: u64,
}

impl Default for Meaning {
    fn default() -> Self {
        Self { devices_left: 1 << 24 }
    }
}

impl Meaning {
    /// Whether two values of attribute `key` mean the same: device groups and shardings as lists or
    /// as a rule, with or without mesh axes.
    pub(super) fn is_same(&mut self, key: &[u8], a: &[u8], b: &[u8]) -> bool {
        if !matches!(key, b"replica_groups" | b"sharding") {
            return false;
        }
        let read = |value| decode(key, Opcode::AllReduce, value).ok();
        match (read(a), read(b)) {
            (Some(AttributeValue::ReplicaGroups(a)), Some(AttributeValue::ReplicaGroups(b))) => {
                self.same_groups(&a, &b)
            }
            (Some(AttributeValue::Sharding(a)), Some(AttributeValue::Sharding(b))) => {
                self.same_sharding(&a, &b)
            }
            _ => false,
        }
    }

    /// Whether this many devices may be enumerated on either side.
    fn affords(&mut self, devices: Option<u64>) -> Option<usize> {
        let devices = devices?;
        self.devices_left = self.devices_left.checked_sub(devices)?;
        usize::try_from(devices).ok()
    }

    fn same_groups(&mut self, a: &ReplicaGroups<'_>, b: &ReplicaGroups<'_>) -> bool {
        let count = |groups: &ReplicaGroups<'_>| {
            groups.group_count()?.max(1).checked_mul(groups.group_size().unwrap_or(1).max(1))
        };
        let Some(limit) = self.affords(count(a).max(count(b))) else { return false };
        let lists = (a.expand(limit), b.expand(limit));
        lists.0.is_some() && lists.0 == lists.1
    }

    fn same_sharding(&mut self, a: &Sharding<'_>, b: &Sharding<'_>) -> bool {
        let (x, y) = (a.leaves(), b.leaves());
        let same_form = matches!(a, Sharding::Single(_)) == matches!(b, Sharding::Single(_));
        same_form && x.len() == y.len() && x.iter().zip(y).all(|(x, y)| self.same_leaf(x, y))
    }

    fn same_leaf(&mut self, a: &LeafSharding<'_>, b: &LeafSharding<'_>) -> bool {
        if a.group != b.group {
            return false;
        }
        if a.placement == b.placement || a.is_replicated() && b.is_replicated() {
            return true;
        }
        let (tiles, others) = (a.tile_dimensions(), b.tile_dimensions());
        if tiles.is_none() || tiles != others || subgroups(a) != subgroups(b) {
            return false;
        }
        let count = a.device_count();
        if count != b.device_count() {
            return false;
        }
        let Some(limit) = self.affords(count) else { return false };
        let devices = (a.devices(limit), b.devices(limit));
        devices.0.is_some() && devices.0 == devices.1
    }
}

/// The meaning of a grid's trailing dimensions, excluding replication.
fn subgroups(leaf: &LeafSharding<'_>) -> Option<Vec<SubgroupKind>> {
    match &leaf.placement {
        Placement::Tiled(tiles) => Some(
            tiles.subgroups.iter().copied().filter(|k| *k != SubgroupKind::Replicated).collect(),
        ),
        Placement::Named(named) if named.manual.is_empty() && named.unreduced.is_none() => {
            Some(Vec::new())
        }
        _ => None,
    }
}
