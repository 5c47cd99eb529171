//! Where on a mesh collectives go: along which axes, and over which network.

use super::axes::{AxisMatch, AxisPart, Mismatch};
use super::collective::{Collective, Collectives};
use super::digits::Digit;
use super::find::frontend_attribute;
use super::groups::{DeviceGroups, GroupMode, GroupSpan};
use super::mesh::Mesh;
use super::permute::PermuteMatch;
use crate::ir::{Module, Opcode, Row};

/// The slowest network that the devices of one exchange need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Network {
    /// They are on one host.
    WithinHost,
    /// They are on several hosts, of one slice where the mesh has slices.
    BetweenHosts,
    /// They are in one slice; on how many hosts is not known.
    WithinSlice,
    /// They are in several slices.
    BetweenSlices,
}

impl Network {
    /// The words tables use.
    pub fn as_str(self) -> &'static str {
        match self {
            Network::WithinHost => "within a host",
            Network::BetweenHosts => "between hosts",
            Network::WithinSlice => "within a slice",
            Network::BetweenSlices => "between slices",
        }
    }
}

/// Where on a mesh a collective goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Along {
    /// The axes, in the order of the mesh; none for groups of one device and where there is a
    /// mismatch.
    pub parts: Vec<AxisPart>,
    /// The axes in words: `data×model`, `no axis subset`; empty if that says nothing.
    pub axes: String,
    /// Of a permute: the axes and how far, `model +1`.
    pub shift: String,
    /// Why there are no axes, if the groups or pairs do not fit the mesh.
    pub mismatch: Option<Mismatch>,
    /// What the exchange goes over; None if the mesh does not say or groups differ.
    pub network: Option<Network>,
    /// Devices of an exchange; None if that is not known.
    pub group_size: Option<u64>,
}

/// Where on `mesh` each collective of `all` goes. Linear in the distinct groups and in the pairs.
pub fn along(module: &Module, mesh: &Mesh, all: &Collectives) -> Vec<Along> {
    let of_groups: Vec<Along> = all.groups.iter().map(|groups| of_groups(mesh, groups)).collect();
    let place = |collective: &Collective| {
        if let Some(found) = collective.groups.and_then(|index| of_groups.get(index as usize)) {
            return found.clone();
        }
        let size = collective.group_size;
        let found = if is_between_slices(module, collective.row) {
            of_slices(mesh)
        } else {
            let pairs = collective.pairs.start as usize..collective.pairs.end as usize;
            let pairs = all.pairs.get(pairs).unwrap_or_default();
            of_pairs(module, mesh, collective.row, pairs, all)
        };
        Along { group_size: size.or(found.group_size), ..found }
    };
    all.collectives.iter().map(place).collect()
}

fn of_groups(mesh: &Mesh, groups: &DeviceGroups) -> Along {
    let found = mesh.axes_of(groups);
    let axes = mesh.match_text(&found);
    let everyone = groups.is_everyone().then(|| mesh.device_count());
    let group_size = groups.group_size().or(everyone);
    // Everyone of a number of devices that the text does not say: the mesh's.
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
    match found {
        AxisMatch::NoSubset(mismatch) => {
            Along { axes, mismatch: Some(mismatch), network, group_size, ..Along::default() }
        }
        found => {
            let parts = found.parts().to_vec();
            let is_exchange = !parts.is_empty();
            let network = network.filter(|_| is_exchange);
            Along { parts, axes, network, group_size, ..Along::default() }
        }
    }
}

/// From the hosts and slices that an exchange touches.
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

fn of_pairs(
    module: &Module,
    mesh: &Mesh,
    row: Row,
    pairs: &[(i64, i64)],
    all: &Collectives,
) -> Along {
    if pairs.is_empty() {
        return Along::default();
    }
    let has_channel = module.attribute(row, "channel_id").is_some();
    let mode = GroupMode::from_attributes(has_channel, None);
    let found = mesh.permute_of(pairs, mode, &all.context);
    let shift = mesh.permute_text(&found);
    if let PermuteMatch::NoSubset(mismatch) = found {
        return Along { axes: shift, mismatch: Some(mismatch), ..Along::default() };
    }
    let parts = found.parts().to_vec();
    let axes = mesh.parts_text(&parts);
    let touched = |blocks: Option<u64>| {
        let per_block = mesh.device_count() / blocks?;
        let block = |device: i64| u64::try_from(device).ok().map(|device| device / per_block);
        let crosses = pairs.iter().any(|(source, target)| block(*source) != block(*target));
        Some(if crosses { 2 } else { 1 })
    };
    let network = network(mesh, touched(mesh.hosts()), touched(mesh.slices()));
    Along { parts, axes, shift, network, ..Along::default() }
}

/// Whether a send or receive is one between the slices of a TPU system.
fn is_between_slices(module: &Module, row: Row) -> bool {
    matches!(module.opcode(row), Opcode::Send | Opcode::Recv)
        && frontend_attribute(module, row, b"_xla_megascale_transfer_type").is_some()
}

/// Exchanges of the devices at the same place in all slices.
fn of_slices(mesh: &Mesh) -> Along {
    let found = mesh.slices().filter(|slices| *slices > 1).map(|slices| {
        let digit = Digit { stride: mesh.device_count() / slices, size: slices };
        of_groups(mesh, &DeviceGroups::regular(vec![digit], mesh.device_count()))
    });
    Along { network: Some(Network::BetweenSlices), ..found.unwrap_or_default() }
}
