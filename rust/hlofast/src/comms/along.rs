//! Mesh axes and network of each collective.

use super::axes::{AxisMatch, AxisPart, Mismatch};
use super::collective::{Collective, Collectives};
use super::digits::Digit;
use super::find::frontend_attribute;
use super::groups::{DeviceGroups, GroupMode, GroupSpan};
use super::mesh::Mesh;
use super::permute::PermuteMatch;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The slowest network between the devices of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Network {
    /// The devices are on one host.
    WithinHost,
    /// The devices are on several hosts (of one slice, if the mesh has slices).
    BetweenHosts,
    /// The devices are in one slice; the number of hosts is unknown.
    WithinSlice,
    /// The devices are in several slices.
    BetweenSlices,
}

impl Network {
    /// The text used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Network::WithinHost => "within a host",
            Network::BetweenHosts => "between hosts",
            Network::WithinSlice => "within a slice",
            Network::BetweenSlices => "between slices",
        }
    }
}

/// Mesh axes and network of one collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Along {
    /// The axes, in mesh order; empty for groups of one device and on a mismatch.
    pub parts: Vec<AxisPart>,
    /// The axes as text: `data×model`, `no axis subset`; empty without axes.
    pub axes: String,
    /// For a permute: the axes and the distance, `model +1`.
    pub shift: String,
    /// For a permute by one distance: the distance along `parts`, from -n/2 to n/2.
    pub distance: Option<i64>,
    /// Why the groups or pairs do not fit the mesh.
    pub mismatch: Option<Mismatch>,
    /// The network used; None if the mesh does not say or groups differ.
    pub network: Option<Network>,
    /// Devices in one group; None if unknown.
    pub group_size: Option<u64>,
}

/// Axes and network on `mesh` of each collective in `all`. Linear in the distinct groups and pairs.
/// Collectives share what their groups have in common.
pub fn along(module: &Module, mesh: &Mesh, all: &Collectives) -> Vec<Arc<Along>> {
    let of_groups: Vec<Arc<Along>> =
        all.groups.iter().map(|groups| Arc::new(of_groups(mesh, groups))).collect();
    let mut permuted: HashMap<(Range<u32>, bool), Along, BuildMix> = HashMap::default();
    let place = |collective: &Collective| {
        if let Some(along) = collective.groups.and_then(|index| of_groups.get(index as usize)) {
            return Arc::clone(along);
        }
        let size = collective.group_size;
        let along = if is_between_slices(module, collective.row) {
            of_slices(mesh)
        } else {
            // Collectives with the same pairs share their range.
            let has_channel = module.attribute(collective.row, "channel_id").is_some();
            let of_pairs = || {
                let range = collective.pairs.start as usize..collective.pairs.end as usize;
                of_pairs(mesh, all.pairs.get(range).unwrap_or_default(), has_channel, all)
            };
            let key = (collective.pairs.clone(), has_channel);
            permuted.entry(key).or_insert_with(of_pairs).clone()
        };
        Arc::new(Along { group_size: size.or(along.group_size), ..along })
    };
    all.collectives.iter().map(place).collect()
}

fn of_groups(mesh: &Mesh, groups: &DeviceGroups) -> Along {
    let axis_match = mesh.axes_of(groups);
    let axes = mesh.match_text(&axis_match);
    let everyone = groups.is_everyone().then(|| mesh.device_count());
    let group_size = groups.group_size().or(everyone);
    // A group of all devices without a stated count: the mesh's device count.
    let (hosts, slices) = if groups.group_size().is_none() && groups.is_everyone() {
        let all = |blocks: Option<u64>| {
            let per_block = mesh.device_count() / blocks?;
            Some(GroupSpan { blocks: blocks?, per_block })
        };
        (all(mesh.hosts()), all(mesh.slices()))
    } else {
        (mesh.host_span(groups), mesh.slice_span(groups))
    };
    let network = network(mesh, hosts.map(|span| span.blocks), slices.map(|span| span.blocks));
    match axis_match {
        AxisMatch::NoSubset(mismatch) => {
            Along { axes, mismatch: Some(mismatch), network, group_size, ..Along::default() }
        }
        axis_match => {
            let parts = axis_match.parts().to_vec();
            let is_exchange = !parts.is_empty();
            let network = network.filter(|_| is_exchange);
            Along { parts, axes, network, group_size, ..Along::default() }
        }
    }
}

/// The network of a group that touches this many hosts and slices.
fn network(mesh: &Mesh, hosts: Option<u64>, slices: Option<u64>) -> Option<Network> {
    match (mesh.slices(), slices, mesh.hosts(), hosts) {
        (Some(_), None, ..) => None,
        (_, Some(slices), ..) if slices > 1 => Some(Network::BetweenSlices),
        (_, _, Some(_), Some(hosts)) if hosts > 1 => Some(Network::BetweenHosts),
        (_, _, Some(_), Some(_)) => Some(Network::WithinHost),
        (_, Some(_), ..) => Some(Network::WithinSlice),
        _ => None,
    }
}

fn of_pairs(mesh: &Mesh, pairs: &[(i64, i64)], has_channel: bool, all: &Collectives) -> Along {
    if pairs.is_empty() {
        return Along::default();
    }
    let mode = GroupMode::from_attributes(has_channel, None);
    let permute_match = mesh.permute_of(pairs, mode, &all.context);
    let shift = mesh.permute_text(&permute_match);
    if let PermuteMatch::NoSubset(mismatch) = permute_match {
        return Along { axes: shift, mismatch: Some(mismatch), ..Along::default() };
    }
    let distance = match &permute_match {
        PermuteMatch::Shift { by, .. } => Some(*by),
        _ => None,
    };
    let parts = permute_match.parts().to_vec();
    let axes = mesh.parts_text(&parts);
    let touched = |blocks: Option<u64>| {
        let per_block = mesh.device_count() / blocks?;
        let block = |device: i64| u64::try_from(device).ok().map(|device| device / per_block);
        let crosses = pairs.iter().any(|(source, target)| block(*source) != block(*target));
        Some(if crosses { 2 } else { 1 })
    };
    let network = network(mesh, touched(mesh.hosts()), touched(mesh.slices()));
    Along { parts, axes, shift, distance, network, ..Along::default() }
}

/// Whether a send or receive goes between the slices of a TPU system.
fn is_between_slices(module: &Module, row: Row) -> bool {
    matches!(module.opcode(row), Opcode::Send | Opcode::Recv)
        && frontend_attribute(module, row, b"_xla_megascale_transfer_type").is_some()
}

/// Groups of the devices at the same position in every slice.
fn of_slices(mesh: &Mesh) -> Along {
    let along = mesh.slices().filter(|slices| *slices > 1).map(|slices| {
        let digit = Digit { stride: mesh.device_count() / slices, size: slices };
        of_groups(mesh, &DeviceGroups::regular(vec![digit], mesh.device_count()))
    });
    Along { network: Some(Network::BetweenSlices), ..along.unwrap_or_default() }
}
