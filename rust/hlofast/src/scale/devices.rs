//! Device groups, transfers and loops over devices on a mesh with other axis sizes.

use super::Attributed;
use super::size::Sizes;
use crate::comms::{AxisPart, DeviceGroups, Mesh, PermuteMatch};
use crate::flow::trip_count::TripCount;
use crate::ir::{CallRole, ComputationId, Opcode, Row};
use std::collections::HashSet;

/// Most devices for which transfers are listed.
const MOST_DEVICES: u64 = 1 << 16;

/// How the trip count of a loop over devices follows the number of devices n along an axis: n / k
/// plus a constant. XLA's windowed matmuls pass shards around a ring, in one direction or in two, and
/// libtpu 0.0.42.1 takes two steps per iteration: n / 4 in every program of `what_if_models.py`.
const LOOPS: [(i64, i64); 5] = [(1, 0), (2, 0), (4, 0), (1, -1), (2, -1)];

/// The new trip count of a loop.
pub(super) struct NewTrips {
    pub count: i64,
    /// The count before it is rounded up to whole iterations, at least one.
    pub exact: f64,
    /// Whether it follows the size of a mesh axis by assumption.
    pub is_assumed: bool,
}

/// The parts of axes in the new mesh; None if a part has no counterpart.
fn parts_in(old: &Mesh, new: &Mesh, parts: &[AxisPart]) -> Option<Vec<AxisPart>> {
    let moved = |part: &AxisPart| {
        let (old, new) = (old.axes().get(part.axis)?.size, new.axes().get(part.axis)?.size);
        if old == new {
            return Some(*part);
        }
        if part.size == old {
            return Some(AxisPart { size: new, ..*part });
        }
        // A part at one end of the axis keeps its size or takes the change.
        let rest =
            new.checked_div(part.before).filter(|rest| new % part.before == 0 && *rest > 0)?;
        let is_minor = part.before.checked_mul(part.size) == Some(old);
        let size = if is_minor { rest } else { part.size };
        (rest % size == 0).then_some(AxisPart { size, ..*part })
    };
    let parts: Option<Vec<AxisPart>> = parts.iter().map(moved).collect();
    Some(parts?.into_iter().filter(|part| part.size > 1).collect())
}

impl Attributed<'_> {
    /// `replica_groups` of a collective on the new mesh; None if they follow no axes.
    pub(super) fn groups(&self, row: Row, new: &Mesh) -> Option<Vec<u8>> {
        let old = self.spread.mesh?;
        let groups = DeviceGroups::of_row(self.spread.module, row, &self.spread.context).ok()?;
        let axes = old.axes_of(&groups);
        let parts = parts_in(old, new, axes.parts())?;
        if parts.is_empty() {
            // Every device is a group of its own.
            let alone = new.device_count() <= MOST_DEVICES && groups.group_size()? == 1;
            let each = (0..new.device_count()).map(|device| format!("{{{device}}}"));
            let all = axes.parts();
            return (alone || all.iter().any(|part| part.size > 1))
                .then(|| format!("{{{}}}", each.collect::<Vec<_>>().join(",")).into_bytes());
        }
        Some(new.groups_along(&parts)?.to_text().into_bytes())
    }

    /// `source_target_pairs` on the new mesh; None if they follow no axes.
    pub(super) fn pairs(&self, row: Row, new: &Mesh) -> Option<Vec<u8>> {
        let old = self.spread.mesh?;
        let found = old.permute_of_row(self.spread.module, row, &self.spread.context).ok()?;
        let (by, wraps) = match &found {
            PermuteMatch::Shift { by, wraps, .. } => (*by, *wraps),
            PermuteMatch::Axes { .. } => (1, true),
            _ => return None,
        };
        let parts = parts_in(old, new, found.parts())?;
        let count = new.device_count();
        if count > MOST_DEVICES {
            return None;
        }
        let group = new.groups_along(&parts)?;
        let lists = if parts.is_empty() { Vec::new() } else { group.expand(count as usize)? };
        let mut pairs = Vec::new();
        for list in lists {
            let size = i64::try_from(list.len()).ok()?;
            for (place, source) in list.iter().enumerate() {
                let to = place as i64 + by;
                if !wraps && !(0..size).contains(&to) {
                    continue;
                }
                let target = list.get(usize::try_from(to.rem_euclid(size)).ok()?)?;
                pairs.push((*source, *target));
            }
        }
        pairs.sort_unstable();
        let words: Vec<String> = pairs.iter().map(|(s, t)| format!("{{{s},{t}}}")).collect();
        Some(format!("{{{}}}", words.join(",")).into_bytes())
    }

    /// The new trip count of a loop; None if it does not change.
    pub(super) fn trips(&self, row: Row, trip: &TripCount, sizes: &Sizes<'_>) -> Option<NewTrips> {
        if let Some(root) = self.looped.get(&row) {
            let new = sizes.of_symbol(*root, 0)?;
            let old = self.spread.symbols.all.get(*root as usize)?.size;
            let own = NewTrips { count: new, exact: new as f64, is_assumed: false };
            return (new != old).then_some(own);
        }
        let count = i64::try_from(trip.count?).ok()?;
        let axis = self.axis_of_loop(row)?;
        let (old, new) = sizes.axes.get(axis).copied()?;
        if old == new {
            return None;
        }
        let (parts, shift) = LOOPS
            .into_iter()
            .find(|(parts, shift)| old % parts == 0 && old / parts + shift == count)?;
        let count = ((new + parts - 1) / parts + shift).max(1);
        Some(NewTrips { count, exact: new as f64 / parts as f64 + shift as f64, is_assumed: true })
    }

    /// The only axis along which a loop passes values on.
    pub(super) fn axis_of_loop(&self, row: Row) -> Option<usize> {
        let (module, mesh) = (self.spread.module, self.spread.mesh?);
        let body = module.called(row, CallRole::Body)?;
        let (mut open, mut seen) = (vec![body], HashSet::from([body]));
        let mut axis: Option<usize> = None;
        while let Some(computation) = open.pop() {
            for row in module.computation(computation).rows().map(Row) {
                let opcode = module.opcode(row);
                if opcode == Opcode::While {
                    return None;
                }
                if matches!(opcode, Opcode::CollectivePermute | Opcode::CollectivePermuteStart) {
                    let found = mesh.permute_of_row(module, row, &self.spread.context).ok()?;
                    let [part] = found.parts() else { return None };
                    if axis.is_some_and(|axis| axis != part.axis) {
                        return None;
                    }
                    axis = Some(part.axis);
                }
                let called = module.calls(row).iter().map(|call| call.computation);
                let new: Vec<ComputationId> = called.filter(|id| seen.insert(*id)).collect();
                open.extend(new);
            }
        }
        axis
    }

    /// The sharding of an entry parameter on the new mesh, if its devices are in order.
    pub(super) fn sharding(&self, row: Row, rank: usize, new: &Mesh) -> Option<Vec<u8>> {
        let old = self.spread.mesh?;
        if !old.is_in_order() || !new.is_in_order() {
            return None;
        }
        let mut tiles = vec![1u64; rank];
        let mut order: Vec<usize> = Vec::new();
        let own = self.seeds.all.iter().filter(|seed| seed.row == row);
        for seed in own {
            for axis in &seed.axes {
                *tiles.get_mut(seed.dimension)? *= new.axes().get(*axis)?.size;
                order.push(*axis);
            }
        }
        if order.is_empty() {
            return Some(b"{replicated}".to_vec());
        }
        let rest: Vec<usize> = (0..new.axes().len()).filter(|axis| !order.contains(axis)).collect();
        let copies: u64 =
            rest.iter().filter_map(|axis| Some(new.axes().get(*axis)?.size)).product();
        order.extend(rest);
        let join = |numbers: Vec<String>| numbers.join(",");
        let mut tiles: Vec<String> = tiles.iter().map(u64::to_string).collect();
        let last = if copies > 1 {
            tiles.push(copies.to_string());
            " last_tile_dim_replicate"
        } else {
            ""
        };
        let sizes = join(new.axes().iter().map(|axis| axis.size.to_string()).collect());
        let order = join(order.iter().map(usize::to_string).collect());
        Some(format!("{{devices=[{}]<=[{sizes}]T({order}){last}}}", join(tiles)).into_bytes())
    }
}
