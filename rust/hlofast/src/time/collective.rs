//! The time of one collective: wire bytes and seconds by topology, with the parameters used.
//!
//! `B` is the full buffer of one device: the result of an all-gather, the operand of an all-reduce,
//! reduce-scatter, all-to-all or permute. `n` devices take part.
//!
//! * Ring and switch, per device and direction: all-gather, reduce-scatter and all-to-all move
//!   `(n-1)/n B`, an all-reduce moves twice as much, other kinds move `B`.
//! * Torus (How to Scale Your Model, part 3): a side that wraps around uses both directions;
//!   without wraparound, the last chip receives all bytes over one link. An all-to-all crosses
//!   `n/4` links of a side on average. Several sides share the work. A permute by `k` devices
//!   crosses `k` links, each of which carries `k` arrays.
//! * Between slices every device sends to all others at once through its network port.
//! * Several levels: a reduce-scatter inside each group, the collective itself between groups on
//!   the shards, and an all-gather inside each group.

use super::device::{Device, Topology};
use super::torus::{Side, Sides, box_of};

/// The kind of a collective; kinds with equal time formulas are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every device gets the sum.
    AllReduce,
    /// Every device gets the concatenation.
    AllGather,
    /// Every device gets a shard of the sum.
    ReduceScatter,
    /// Devices exchange parts, ragged or not.
    AllToAll,
    /// A device sends to one other device: permutes, sends, receives.
    Permute,
    /// One device sends to all others.
    Broadcast,
}

impl Kind {
    /// The kind for an HLO opcode name; `ragged-all-to-all`, `send` and `recv` map to the nearest
    /// kind.
    pub fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "all-reduce" => Kind::AllReduce,
            "all-gather" => Kind::AllGather,
            "reduce-scatter" => Kind::ReduceScatter,
            "all-to-all" | "ragged-all-to-all" => Kind::AllToAll,
            "collective-permute" | "send" | "recv" => Kind::Permute,
            "collective-broadcast" => Kind::Broadcast,
            _ => return None,
        })
    }

    /// Bytes that each device sends divided by the bytes of the buffer, in a ring or over a switch.
    pub fn wire_share(self, group: u64) -> f64 {
        if group <= 1 {
            return 0.0;
        }
        let others = (group - 1) as f64 / group as f64;
        match self {
            Kind::AllReduce => 2.0 * others,
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => others,
            Kind::Permute | Kind::Broadcast => 1.0,
        }
    }
}

/// The network between the devices of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Network {
    /// A closed chain of neighbours; `directions` is 1 or 2.
    Ring {
        /// Bytes per second of one link, one way.
        bandwidth: f64,
        /// Seconds per hop.
        latency: f64,
        /// Directions in use at the same time.
        directions: f64,
    },
    /// A box of devices of a torus.
    Torus {
        /// Bytes per second of one link, one way.
        bandwidth: f64,
        /// Seconds per hop.
        latency: f64,
        /// The sides of the box.
        sides: Sides,
        /// Links that a permute crosses.
        hops: f64,
    },
    /// Every device sends to all others at once through one port.
    Direct {
        /// Bytes per second of one device, one way.
        bandwidth: f64,
        /// Seconds per exchange.
        latency: f64,
    },
    /// Every device at full bandwidth to every other, through a switch.
    Switch {
        /// Bytes per second of one device, one way.
        bandwidth: f64,
        /// Seconds per message.
        latency: f64,
    },
    /// A link to every other device.
    FullyConnected {
        /// Bytes per second of one link, one way.
        bandwidth: f64,
        /// Seconds per message.
        latency: f64,
    },
}

/// The time of a collective and its components.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Total seconds.
    pub seconds: f64,
    /// Bytes that each device sends.
    pub wire_bytes: f64,
    /// The part of the seconds that does not depend on the size (alpha).
    pub latency: f64,
    /// Wire bytes per second of the remaining time (1 / beta); 0 if nothing is sent.
    pub bandwidth: f64,
}

impl Estimate {
    pub(super) fn of(wire_bytes: f64, transfer: f64, latency: f64) -> Self {
        let bandwidth = if transfer > 0.0 { wire_bytes / transfer } else { 0.0 };
        Self { seconds: latency + transfer, wire_bytes, latency, bandwidth }
    }

    pub(super) fn then(self, next: Self) -> Self {
        let transfer = self.seconds - self.latency + next.seconds - next.latency;
        let wire = self.wire_bytes + next.wire_bytes;
        Self::of(wire, transfer, self.latency + next.latency)
    }
}

/// The time of `kind` for `bytes` among `group` devices of one network.
pub fn on_network(kind: Kind, bytes: f64, group: u64, network: Network) -> Estimate {
    if group <= 1 {
        return Estimate::default();
    }
    let n = group as f64;
    let wire = kind.wire_share(group) * bytes;
    let rounds = if kind == Kind::AllReduce { 2.0 } else { 1.0 };
    match network {
        Network::Ring { bandwidth, latency, directions } => {
            let hops = match kind {
                Kind::Permute => 1.0,
                Kind::Broadcast => n - 1.0,
                _ => rounds * ((n - 1.0) / directions).ceil(),
            };
            let lanes = if kind == Kind::Permute { 1.0 } else { directions };
            Estimate::of(wire, wire / (lanes * bandwidth), hops * latency)
        }
        Network::Torus { bandwidth, latency, sides, hops } => {
            let transfer = match kind {
                Kind::AllToAll => {
                    let across = |side: Side| side.length / if side.wraps { 8.0 } else { 4.0 };
                    sides.iter().map(across).fold(0.0, f64::max) * bytes / bandwidth
                }
                Kind::Permute => hops * bytes / bandwidth,
                _ => wire / (sides.lanes * bandwidth),
            };
            let hops = if kind == Kind::Permute { hops } else { rounds * sides.reach().max(1.0) };
            Estimate::of(wire, transfer, hops * latency)
        }
        Network::Direct { bandwidth, latency } => {
            Estimate::of(wire, wire / bandwidth, rounds * latency)
        }
        Network::Switch { bandwidth, latency } => {
            let messages = match kind {
                Kind::AllReduce => 2.0 * (n - 1.0),
                Kind::Permute | Kind::Broadcast => 1.0,
                _ => n - 1.0,
            };
            Estimate::of(wire, wire / bandwidth, messages * latency)
        }
        Network::FullyConnected { bandwidth, latency } => {
            let transfer = match kind {
                Kind::Permute | Kind::Broadcast => bytes / bandwidth,
                _ => rounds * bytes / n / bandwidth,
            };
            Estimate::of(wire, transfer, rounds * latency)
        }
    }
}

/// The time among `inner * outer` devices: `near` connects the `inner` devices of a host or slice,
/// and `far` connects `outer` such groups. The inner exchange runs first and last; the outer
/// exchange runs in between, on the shard of each device.
pub fn on_two_levels(
    kind: Kind,
    bytes: f64,
    (inner, near): (u64, Network),
    (outer, far): (u64, Network),
) -> Estimate {
    if outer <= 1 {
        return on_network(kind, bytes, inner, near);
    }
    if inner <= 1 {
        return on_network(kind, bytes, outer, far);
    }
    let shard = bytes / inner as f64;
    match kind {
        Kind::AllReduce => on_network(Kind::ReduceScatter, bytes, inner, near)
            .then(on_network(kind, shard, outer, far))
            .then(on_network(Kind::AllGather, bytes, inner, near)),
        Kind::AllGather => {
            on_network(kind, shard, outer, far).then(on_network(kind, bytes, inner, near))
        }
        Kind::ReduceScatter => {
            on_network(kind, bytes, inner, near).then(on_network(kind, shard, outer, far))
        }
        Kind::AllToAll | Kind::Broadcast => {
            on_network(kind, bytes, outer, far).then(on_network(kind, bytes, inner, near))
        }
        Kind::Permute => on_network(kind, bytes, outer, far),
    }
}

/// How the devices of one group are placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Devices that take part.
    pub size: u64,
    /// Devices of the group in one host (switch) or slice (torus).
    pub near: u64,
    /// The box of the near devices on a torus; None counts as one side.
    pub sides: Option<Sides>,
    /// Links of a torus that a permute crosses.
    pub hops: u64,
}

/// Whether a side of `length` devices of `device` wraps around; the error names the missing figure.
pub fn wraps(device: &Device, length: u64) -> Result<bool, &'static str> {
    let multiple = device.wraparound_multiple.ok_or("wraparound_multiple")?;
    Ok(length > 1 && length as f64 % multiple == 0.0)
}

/// A box of `count` devices on `axes` sides of the torus of `device`; None for other topologies.
pub fn sides_on(device: &Device, count: u64, axes: u64) -> Result<Option<Sides>, &'static str> {
    let Some(Topology::Torus(dimensions)) = device.topology else { return Ok(None) };
    let axes = axes.clamp(1, u64::from(dimensions)) as u8;
    sides_of(device, &box_of(count, axes), None).map(Some)
}

/// A box with sides of these lengths, whole sides of a slice of `device`; side `chip` joins the
/// devices of one chip.
pub fn sides_of(
    device: &Device,
    lengths: &[u64],
    chip: Option<usize>,
) -> Result<Sides, &'static str> {
    let side = |(at, length): (usize, &u64)| {
        let is_chip = chip == Some(at);
        let wraps = !is_chip && wraps(device, *length)?;
        Ok(Side { length: *length as f64, wraps, is_chip })
    };
    let sides = lengths.iter().enumerate().map(side);
    Ok(Sides::new(sides.collect::<Result<Vec<Side>, &'static str>>()?))
}

/// The network inside a host or slice of `device`; the error names the missing figure.
pub fn near_network(device: &Device, group: Group) -> Result<Network, &'static str> {
    let bandwidth = device.link_bandwidth.ok_or("link_bandwidth")?;
    let topology = device.topology.ok_or("topology")?;
    let latency = device.link_latency.ok_or("link_latency")?;
    Ok(match topology {
        Topology::Torus(_) => {
            let sides = match group.sides {
                Some(sides) => sides,
                None => sides_of(device, &[group.near], None)?,
            };
            Network::Torus { bandwidth, latency, sides, hops: group.hops.max(1) as f64 }
        }
        Topology::Switch => {
            let links = device.link_count.ok_or("link_count")?;
            Network::Switch { bandwidth: links * bandwidth, latency }
        }
        Topology::FullyConnected => Network::FullyConnected { bandwidth, latency },
    })
}

/// The network between the hosts or slices of `device`; the error names the missing figure.
pub fn far_network(device: &Device) -> Result<Network, &'static str> {
    let bandwidth = device.network_bandwidth.ok_or("network_bandwidth")?;
    let latency = device.network_latency.ok_or("network_latency")?;
    Ok(match device.topology {
        Some(Topology::Torus(_)) => Network::Direct { bandwidth, latency },
        _ => Network::Switch { bandwidth, latency },
    })
}

/// The time on `device`; the error names the missing figure.
pub fn on_device(
    device: &Device,
    kind: Kind,
    bytes: f64,
    group: Group,
) -> Result<Estimate, &'static str> {
    let near = group.near.clamp(1, group.size.max(1));
    let outer = group.size.max(1).div_ceil(near);
    let near_group = Group { near, ..group };
    if group.size <= 1 {
        return Ok(Estimate::default());
    }
    if outer <= 1 {
        return Ok(on_network(kind, bytes, near, near_network(device, near_group)?));
    }
    let far = far_network(device)?;
    if near <= 1 {
        return Ok(on_network(kind, bytes, outer, far));
    }
    Ok(on_two_levels(kind, bytes, (near, near_network(device, near_group)?), (outer, far)))
}

/// XLA's estimate for collectives between hosts of GPUs (`sol_gpu_cost_model.cc`): a ring of 4 MiB
/// chunks with 2.5 % of headers, without the time in HBM.
pub fn speed_of_light(
    device: &Device,
    kind: Kind,
    bytes: f64,
    hosts: u64,
    communicators: u64,
) -> Result<f64, &'static str> {
    const CHUNK: f64 = 4.0 * 1024.0 * 1024.0;
    let rate = device.network_achieved_bandwidth.ok_or("network_achieved_bandwidth")?;
    let preparation = device.network_chunk_preparation.ok_or("network_chunk_preparation")?;
    let round_trip = device.network_round_trip.ok_or("network_round_trip")?;
    let launch = device.network_launch.ok_or("network_launch")?;
    let per_host = device.chips_per_host.ok_or("chips_per_host")?;
    let hosts = hosts as f64;
    let ranks = match kind {
        Kind::Permute => 2.0,
        _ => (hosts * per_host / (communicators.max(1) as f64)).max(2.0),
    };
    let bracket =
        |message: f64| 1.025 * message / rate + (message / CHUNK).ceil() * preparation + round_trip;
    Ok(match kind {
        Kind::AllToAll => ranks / hosts * (hosts - 1.0) * bracket(bytes / (ranks - 1.0)) + launch,
        Kind::Permute => bracket(bytes) * (ranks - 1.0) + launch,
        _ => {
            let rounds = if kind == Kind::AllReduce { 2.0 } else { 1.0 };
            bracket(bytes / ranks) * (ranks - 1.0) / (ranks / hosts) * rounds + launch
        }
    })
}

/// Alpa's cost of a collective along one mesh dimension, in its own unit
/// (`LogicalDeviceMesh` of alpa 0.2.3). Alpa's `alpha` is 1, and its `beta` is 1 along
/// dimension 0 and 0.1 along dimension 1.
pub fn alpa(kind: Kind, bytes: f64, group: u64, alpha: f64, beta: f64) -> Option<f64> {
    let n = group.max(1) as f64;
    let share = (n - 1.0) / n;
    Some(match kind {
        Kind::AllGather => alpha + beta * share * bytes + 0.1,
        Kind::AllReduce => alpha + 2.0 * beta * share * bytes + 0.01,
        Kind::ReduceScatter => alpha + beta * share * bytes + 0.001,
        Kind::AllToAll => alpha + beta * share / n * bytes * (n / 2.0) + 0.001,
        Kind::Permute | Kind::Broadcast => return None,
    })
}
