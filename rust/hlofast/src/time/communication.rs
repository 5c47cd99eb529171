//! The time and the links of each collective of a module.

use super::collective::{Estimate, Group, Kind, alpa, speed_of_light};
use super::device::{Device, Topology};
use super::gpu_collectives::{default_near, on_device};
use super::place::{Lane, Place, Slice};
use crate::comms::{
    Along, Collective, CollectiveKind, Collectives, DeviceGroups, Mesh, Network, along,
};
use crate::ir::Module;
use std::sync::Arc;

/// The formulas to use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Model {
    /// Latency and bandwidth by the device's topology.
    #[default]
    Topology,
    /// XLA's estimate between GPU hosts, and the topology within a host.
    SpeedOfLight,
    /// Alpa's costs, which have no unit: only their sum is meaningful, not seconds.
    Alpa,
}

/// The time of one collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Communication {
    /// The mesh axes that the collective crosses, or `all links` without a mesh. Collectives with
    /// the same text share links.
    pub axes: String,
    /// Seconds and their components; zeros if a figure is missing.
    pub estimate: Estimate,
    /// The missing figure, if any.
    pub missing: Option<&'static str>,
    /// The directions of the links that it occupies.
    pub lane: Lane,
}

/// Text for the links if the axes are unknown.
pub const ALL_LINKS: &str = "all links";

impl Kind {
    /// The kind as which a collective is timed.
    pub fn of(kind: CollectiveKind) -> Self {
        match kind {
            CollectiveKind::AllReduce | CollectiveKind::CrossMeshAllReduce => Kind::AllReduce,
            CollectiveKind::AllGather => Kind::AllGather,
            CollectiveKind::ReduceScatter => Kind::ReduceScatter,
            CollectiveKind::AllToAll | CollectiveKind::RaggedAllToAll => Kind::AllToAll,
            CollectiveKind::CollectivePermute | CollectiveKind::SendReceive => Kind::Permute,
            CollectiveKind::CollectiveBroadcast => Kind::Broadcast,
        }
    }
}

/// Times every collective, in order. The `mesh` names the axes and divides devices into
/// hosts and slices. Without hosts, GPUs fill hosts of their kind in order; devices of a torus are
/// on one level.
pub fn communications(
    module: &Module,
    collectives: &Collectives,
    device: &Device,
    mesh: Option<&Mesh>,
    model: Model,
) -> Vec<Communication> {
    let nowhere = Along::default();
    let places = mesh.map(|mesh| along(module, mesh, collectives)).unwrap_or_default();
    let near = |groups| {
        let known = mesh.and_then(|mesh| near_of_groups(groups, device, mesh));
        known.or_else(|| near_in_order(groups, device))
    };
    let near: Vec<Option<u64>> = collectives.groups.iter().map(near).collect();
    let slice = Slice::new(module, collectives, device, mesh);
    let times = |(number, collective): (usize, &Collective)| {
        let place = places.get(number).map_or(&nowhere, Arc::as_ref);
        let near = match collective.groups {
            Some(at) => near.get(at as usize).copied().flatten(),
            None if place.network.is_none() => {
                let pairs = collective.pairs.start as usize..collective.pairs.end as usize;
                let pairs = collectives.pairs.get(pairs).unwrap_or_default();
                leaves_host_in_order(pairs, device).then_some(1)
            }
            None => is_far(place.network, device).then_some(1),
        };
        communication(collectives, collective, place, near, device, mesh, model, &slice)
    };
    collectives.collectives.iter().enumerate().map(times).collect()
}

#[allow(clippy::too_many_arguments, reason = "one caller")]
fn communication(
    collectives: &Collectives,
    collective: &Collective,
    place: &Along,
    near: Option<u64>,
    device: &Device,
    mesh: Option<&Mesh>,
    model: Model,
    slice: &Slice<'_>,
) -> Communication {
    let kind = Kind::of(collective.kind);
    let axes = if place.axes.is_empty() { ALL_LINKS.to_owned() } else { place.axes.clone() };
    let unknown = |missing| Communication {
        axes: axes.clone(),
        estimate: Estimate::default(),
        missing,
        lane: Lane::Both,
    };
    let Some(bytes) = collective.payload().map(|bytes| bytes as f64) else {
        return unknown(Some("payload"));
    };
    let size = match kind {
        Kind::Permute => 2,
        _ => match collective.group_size.or(place.group_size) {
            Some(size) => size,
            None => return unknown(Some("group size")),
        },
    };
    let near = near.unwrap_or_else(|| default_near(device, size)).min(size);
    let Place { sides, hops, lane } = match slice.place(collective, place, near) {
        Ok(place) => place,
        Err(missing) => return unknown(Some(missing)),
    };
    let group = Group { size, near, sides, hops };
    let outer = size.div_ceil(near.max(1));
    let estimate = match model {
        Model::SpeedOfLight if outer > 1 => {
            let groups = collective.groups.and_then(|at| collectives.groups.get(at as usize));
            let communicators = groups.and_then(|groups| groups.group_count()).unwrap_or(1);
            speed_of_light(device, kind, bytes, outer, communicators).map(|seconds| {
                let wire_bytes = kind.wire_share(size) * bytes;
                Estimate { seconds, wire_bytes, ..Estimate::default() }
            })
        }
        Model::Alpa => {
            // Dimension 0 of Alpa's meshes is the slow dimension.
            let is_slow = mesh.is_some_and(|mesh| {
                mesh.axes().first().is_some_and(|axis| axes.split('×').any(|a| a == axis.name))
            });
            let beta = if is_slow { 1.0 } else { 0.1 };
            let seconds = alpa(kind, bytes, size, 1.0, beta);
            let wire_bytes = kind.wire_share(size) * bytes;
            let estimate = |seconds| Estimate { seconds, wire_bytes, ..Estimate::default() };
            seconds.map(estimate).ok_or("an Alpa formula")
        }
        _ => on_device(device, kind, bytes, group),
    };
    match estimate {
        Ok(estimate) => Communication { axes, estimate, missing: None, lane },
        // The bytes are known without the figure.
        Err(missing) => {
            let wire_bytes = kind.wire_share(size) * bytes;
            let estimate = Estimate { wire_bytes, ..Estimate::default() };
            Communication { estimate, ..unknown(Some(missing)) }
        }
    }
}

/// Whether `network` leaves the slice (torus) or the host (other devices).
fn is_far(network: Option<Network>, device: &Device) -> bool {
    match device.topology {
        Some(Topology::Torus(_)) => network == Some(Network::BetweenSlices),
        _ => matches!(network, Some(Network::BetweenSlices | Network::BetweenHosts)),
    }
}

/// Devices of a group within one slice (torus) or one host (other devices).
fn near_of_groups(groups: &DeviceGroups, device: &Device, mesh: &Mesh) -> Option<u64> {
    let span = match device.topology {
        Some(Topology::Torus(_)) => mesh.slice_span(groups),
        _ => mesh.host_span(groups).or_else(|| mesh.slice_span(groups)),
    };
    Some(span?.per_block)
}

/// JAX devices of one host of GPUs; None for a torus, or if the number of chips is unknown.
fn devices_of_host(device: &Device) -> Option<u64> {
    let chips = match device.topology? {
        Topology::Torus(_) => return None,
        Topology::Switch | Topology::FullyConnected => device.chips_per_host?,
    };
    Some((chips * device.jax_devices.unwrap_or(1.0)) as u64).filter(|block| *block > 0)
}

/// Devices of a group within one host if devices fill hosts in order.
fn near_in_order(groups: &DeviceGroups, device: &Device) -> Option<u64> {
    Some(groups.span(devices_of_host(device)?)?.per_block)
}

/// Whether a permute leaves a host if devices fill hosts in order.
fn leaves_host_in_order(pairs: &[(i64, i64)], device: &Device) -> bool {
    let Some(block) = devices_of_host(device).and_then(|block| i64::try_from(block).ok()) else {
        return false;
    };
    let host = |device: i64| device.div_euclid(block);
    pairs.iter().any(|(source, target)| host(*source) != host(*target))
}
