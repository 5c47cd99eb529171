//! The time of one collective among GPUs.
//!
//! Inside a host (or a rack that one switch connects), the time follows a formula fitted on XLA's
//! measured collectives (`default_collective_perf_table.txtpb`, Copyright The OpenXLA Authors,
//! Apache License 2.0) by `benches/fit_gpu.py`, every fifth entry left out. For `n` devices that
//! each send `w` MiB:
//!
//! `seconds^s = latency(n)^s + (scale * w^growth * n^crowd)^s` with sharpness `s`.
//!
//! Permutes follow the medians of the table by size. Chips without a table of their own use the
//! nearest generation's, scaled to their figures: the latencies by `collective_latency`, the
//! transfer by the links' bandwidth and `link_efficiency`.
//!
//! Groups of several hosts combine this with the network as `collective.rs` does.

use super::collective::{self, Estimate, Group, Kind, Network, on_network};
use super::device::{Device, Topology};

/// The constants of one kind of collective; times in microseconds.
struct Curve {
    scale: f64,
    growth: f64,
    crowd: f64,
    sharpness: f64,
    /// By number of devices.
    latencies: &'static [(f64, f64)],
}

/// The collectives of one kind of host.
struct Table {
    all_reduce: Curve,
    all_gather: Curve,
    reduce_scatter: Curve,
    all_to_all: Curve,
    /// Microseconds of a permute of 1 KiB, 4 KiB and so on.
    permute: &'static [f64],
    /// The figures of the measured chip: bytes per second of its links, the share that an
    /// all-reduce of 1 GiB among all devices of a host reaches, and the seconds of one of a few
    /// bytes.
    links: f64,
    efficiency: f64,
    latency: f64,
}

/// Among 8 H100 (`sm_90`).
const HOPPER: Table = Table {
    all_reduce: Curve {
        scale: 6.197,
        growth: 0.982,
        crowd: -0.363,
        sharpness: 0.757,
        latencies: &[(2.0, 18.7), (4.0, 25.7), (8.0, 36.8)],
    },
    all_gather: Curve {
        scale: 5.581,
        growth: 0.963,
        crowd: -0.222,
        sharpness: 0.802,
        latencies: &[(2.0, 15.2), (4.0, 18.7), (8.0, 29.1)],
    },
    reduce_scatter: Curve {
        scale: 11.264,
        growth: 0.924,
        crowd: -0.376,
        sharpness: 1.316,
        latencies: &[(2.0, 18.7), (4.0, 27.7), (8.0, 30.0)],
    },
    all_to_all: Curve {
        scale: 3.857,
        growth: 0.975,
        crowd: -0.066,
        sharpness: 0.741,
        latencies: &[(2.0, 29.0), (4.0, 30.6), (8.0, 34.9)],
    },
    permute: &[11.7, 11.9, 12.7, 13.9, 26.9, 36.3, 54.2, 196.7, 650.0, 979.5, 3701.6, 7349.0],
    links: 450e9,
    efficiency: 0.885,
    latency: 36.8e-6,
};

/// Among 8 B200 (`sm_100_B200`).
const BLACKWELL: Table = Table {
    all_reduce: Curve {
        scale: 3.459,
        growth: 0.948,
        crowd: -0.161,
        sharpness: 0.835,
        latencies: &[(2.0, 25.3), (4.0, 32.9), (8.0, 49.8)],
    },
    all_gather: Curve {
        scale: 3.314,
        growth: 0.976,
        crowd: -0.277,
        sharpness: 0.810,
        latencies: &[(2.0, 20.5), (4.0, 27.7), (8.0, 33.8)],
    },
    reduce_scatter: Curve {
        scale: 4.181,
        growth: 0.934,
        crowd: -0.216,
        sharpness: 1.139,
        latencies: &[(2.0, 30.6), (4.0, 30.7), (8.0, 38.1)],
    },
    all_to_all: Curve {
        scale: 6.802,
        growth: 0.885,
        crowd: -0.345,
        sharpness: 0.889,
        latencies: &[(2.0, 32.7), (4.0, 34.7), (8.0, 38.3)],
    },
    permute: &[14.7, 15.2, 16.9, 21.5, 26.8, 39.2, 62.9, 180.6, 534.1, 889.1, 1461.4, 4092.9],
    links: 900e9,
    efficiency: 0.669,
    latency: 49.8e-6,
};

/// Among up to 72 GB200 or GB300 of one rack (`sm_100_GB200` and `sm_103`, which agree).
const RACK: Table = Table {
    all_reduce: Curve {
        scale: 2.439,
        growth: 0.937,
        crowd: -0.034,
        sharpness: 0.748,
        latencies: &[(4.0, 17.6), (8.0, 28.7), (16.0, 40.6), (32.0, 51.1), (64.0, 55.1)],
    },
    all_gather: Curve {
        scale: 1.885,
        growth: 0.992,
        crowd: -0.042,
        sharpness: 0.799,
        latencies: &[(4.0, 17.0), (8.0, 18.2), (16.0, 29.2), (32.0, 45.5), (64.0, 97.4)],
    },
    reduce_scatter: Curve {
        scale: 1.625,
        growth: 1.003,
        crowd: -0.042,
        sharpness: 0.684,
        latencies: &[(4.0, 17.0), (8.0, 18.0), (16.0, 29.2), (32.0, 51.8), (64.0, 95.9)],
    },
    all_to_all: Curve {
        scale: 1.601,
        growth: 1.002,
        crowd: -0.004,
        sharpness: 0.612,
        latencies: &[(4.0, 22.1), (8.0, 11.4), (16.0, 11.6), (32.0, 19.4), (64.0, 55.6)],
    },
    permute: &[
        11.4, 11.8, 13.0, 22.4, 60.3, 64.4, 151.0, 429.5, 747.6, 769.9, 1633.0, 4801.4, 25343.5,
    ],
    links: 900e9,
    efficiency: 0.827,
    latency: 55.1e-6,
};

/// Devices of the largest host that is not a rack.
const HOST: f64 = 8.0;
/// The compute capability from which chips are like Blackwell.
const BLACKWELL_CAPABILITY: f64 = 10.0;
const MICRO: f64 = 1e-6;
const MIB: f64 = 1024.0 * 1024.0;

/// The value at `x` of the line through `points`, ascending by x; constant outside.
fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let (mut x0, mut y0) = points.first().copied().unwrap_or_default();
    for (x1, y1) in points {
        if x <= *x1 {
            if x <= x0 || *x1 <= x0 {
                return if x <= x0 { y0 } else { *y1 };
            }
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
        }
        (x0, y0) = (*x1, *y1);
    }
    y0
}

impl Curve {
    /// Seconds independent of the size, and seconds of the transfer as if it were alone.
    fn parts(&self, devices: f64, wire: f64) -> (f64, f64) {
        // Latencies grow evenly with each doubling of the devices, in logarithms.
        let points: Vec<(f64, f64)> =
            self.latencies.iter().map(|(n, micros)| (n.ln(), micros.ln())).collect();
        let latency = between(&points, devices.ln()).exp() * MICRO;
        let transfer = (wire / MIB).powf(self.growth) * devices.powf(self.crowd);
        (latency, self.scale * transfer * MICRO)
    }
}

impl Table {
    /// The table for `device`; None for chips that no table describes.
    fn of(device: &Device) -> Option<&'static Table> {
        let is_blackwell = device.compute_capability? >= BLACKWELL_CAPABILITY;
        Some(match is_blackwell {
            true if device.chips_per_host.is_some_and(|chips| chips > HOST) => &RACK,
            true => &BLACKWELL,
            false => &HOPPER,
        })
    }

    /// The time of `kind` for `bytes` among `group` devices, with latencies and transfers longer by
    /// these factors.
    fn time(&self, kind: Kind, bytes: f64, group: u64, latencies: f64, transfers: f64) -> Estimate {
        let wire = kind.wire_share(group) * bytes;
        if kind == Kind::Permute {
            return self.permute(wire, latencies, transfers);
        }
        let curve = match kind {
            Kind::AllReduce => &self.all_reduce,
            Kind::ReduceScatter => &self.reduce_scatter,
            Kind::AllToAll => &self.all_to_all,
            Kind::AllGather | Kind::Broadcast | Kind::Permute => &self.all_gather,
        };
        let (latency, transfer) = curve.parts(group as f64, wire);
        let (latency, transfer) = (latency * latencies, transfer * transfers);
        let sharpness = curve.sharpness;
        let seconds = (latency.powf(sharpness) + transfer.powf(sharpness)).powf(1.0 / sharpness);
        Estimate::of(wire, seconds - latency, latency)
    }

    /// The medians of the table by size; larger sizes at the rate of the largest.
    fn permute(&self, wire: f64, latencies: f64, transfers: f64) -> Estimate {
        let knots = self.permute.iter().enumerate();
        let knots = knots.map(|(at, micros)| ((at as f64 + 5.0) * 4f64.ln(), micros.ln()));
        let points: Vec<(f64, f64)> = knots.collect();
        let size = wire.max(1.0).ln();
        let beyond = (size - points.last().map_or(size, |last| last.0)).max(0.0);
        let latency = self.permute.first().copied().unwrap_or(0.0) * MICRO;
        let seconds = (between(&points, size) + beyond).exp() * MICRO;
        let transfer = (seconds - latency).max(0.0) * transfers;
        Estimate::of(wire, transfer, latency * latencies)
    }
}

/// The time of a collective inside a host of `device`; the error names the missing figure.
fn near(device: &Device, kind: Kind, bytes: f64, group: u64) -> Result<Estimate, &'static str> {
    if group <= 1 {
        return Ok(Estimate::default());
    }
    let link = device.link_bandwidth.ok_or("link_bandwidth")?;
    if let Some(latency) = device.link_latency {
        // A device whose table has a latency per message.
        let share = device.link_efficiency.unwrap_or(1.0);
        let device = Device { link_bandwidth: Some(share * link), ..device.clone() };
        let group = Group { size: group, near: group, sides: None, hops: 1 };
        let network = match collective::near_network(&device, group)? {
            Network::Switch { bandwidth, .. } => Network::Switch { bandwidth, latency },
            other => other,
        };
        return Ok(on_network(kind, bytes, group.size, network));
    }
    if device.topology == Some(Topology::FullyConnected) {
        let latency = device.collective_latency.ok_or("collective_latency")?;
        let bandwidth = link * device.link_efficiency.unwrap_or(1.0);
        let network = Network::FullyConnected { bandwidth, latency: 0.0 };
        let alone = on_network(kind, bytes, group, network);
        return Ok(Estimate::of(alone.wire_bytes, alone.seconds, latency));
    }
    let links = link * device.link_count.ok_or("link_count")?;
    let table = match Table::of(device) {
        Some(table) => table,
        None if device.collective_latency.is_some() => &HOPPER,
        None => return Err("collective_latency"),
    };
    let latencies = device.collective_latency.unwrap_or(table.latency) / table.latency;
    let rate = links * device.link_efficiency.unwrap_or(table.efficiency);
    let transfers = table.links * table.efficiency / rate;
    Ok(table.time(kind, bytes, group, latencies, transfers))
}

/// Chips that one switch connects; `size` if their number is unknown.
pub fn default_near(device: &Device, size: u64) -> u64 {
    match (device.topology, device.chips_per_host, device.jax_devices) {
        (Some(Topology::Torus(_)) | None, ..) | (_, None, _) => size,
        (_, Some(chips), share) => size.min((chips * share.unwrap_or(1.0)).max(1.0) as u64),
    }
}

/// The time of a collective on `device`: among GPUs by the formulas of this file, otherwise by
/// those of [`collective::on_device`]. The error names the missing figure.
pub fn on_device(
    device: &Device,
    kind: Kind,
    bytes: f64,
    group: Group,
) -> Result<Estimate, &'static str> {
    let is_torus = matches!(device.topology, Some(Topology::Torus(_)));
    if !device.is_gpu || is_torus || device.topology.is_none() {
        return collective::on_device(device, kind, bytes, group);
    }
    let size = group.size.max(1);
    let inner = group.near.clamp(1, size);
    let outer = size.div_ceil(inner);
    if outer <= 1 {
        return near(device, kind, bytes, inner);
    }
    let round_trip = device.network_round_trip.map(|seconds| seconds / 2.0);
    let latency = device.network_latency.or(round_trip).ok_or("network_latency")?;
    let bandwidth = device.network_bandwidth.ok_or("network_bandwidth")?;
    let network = Network::Switch { bandwidth, latency };
    let far = |bytes| on_network(kind, bytes, outer, network);
    if inner <= 1 {
        return Ok(far(bytes));
    }
    let shard = bytes / inner as f64;
    Ok(match kind {
        Kind::AllReduce => near(device, Kind::ReduceScatter, bytes, inner)?
            .then(far(shard))
            .then(near(device, Kind::AllGather, bytes, inner)?),
        Kind::AllGather => far(shard).then(near(device, kind, bytes, inner)?),
        Kind::ReduceScatter => near(device, kind, bytes, inner)?.then(far(shard)),
        Kind::AllToAll | Kind::Broadcast => far(bytes).then(near(device, kind, bytes, inner)?),
        Kind::Permute => far(bytes),
    })
}
