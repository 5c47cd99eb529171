//! The time of matmuls on GPUs by shape and element type.
//!
//! A matmul is cut into tiles of the result. The cores compute one tile each at a time, so the
//! number of tiles is rounded up to whole waves; a tile takes its multiply-adds at a share of the
//! peak that depends on its size, plus a depth of `k` to fill and drain it. A long `k` may be
//! split over several cores, which add their partial results. The fastest choice of tile and split
//! counts, or the time to move the operands and the result if that is longer.
//!
//! The constants are fitted on XLA's measured matmuls of H100 and B200
//! (`default_matmul_perf_table.txtpb`, Copyright The OpenXLA Authors, Apache License 2.0) by
//! `benches/fit_gpu.py`, every fifth entry left out. Other chips use the nearest generation's with
//! their own cores and peaks; `matmul_efficiency` scales the shares.

use super::device::Device;
use crate::cost::matmul::Contraction;

/// The constants of one element type.
#[derive(Clone, Copy, Debug)]
struct Products {
    /// Seconds before and after the tiles.
    start: f64,
    /// Depth of `k` that filling and draining a tile costs.
    depth: f64,
    /// Seconds of splitting `k` once in two.
    split: f64,
    /// Share of the HBM bandwidth that operands and result reach.
    memory: f64,
    /// Shares of the peak of tiles of 4096, 8192, 16384 and 32768 elements.
    shares: [f64; 4],
}

/// The constants of one generation.
struct Generation {
    bf16: Products,
    tf32: Products,
    f8: Products,
}

/// H100 (`sm_90`). Of its 375 entries of 8-bit floats, 29 are above the chip's peak; they count as
/// at the peak.
const HOPPER: Generation = Generation {
    bf16: Products {
        start: 5.0e-06,
        depth: 220.7,
        split: 9.29e-07,
        memory: 0.986,
        shares: [0.580, 0.684, 0.884, 0.912],
    },
    tf32: Products {
        start: 5.89e-06,
        depth: 56.2,
        split: 0.0,
        memory: 0.658,
        shares: [0.292, 0.382, 0.205, 0.666],
    },
    f8: Products {
        start: 5.33e-06,
        depth: 0.0,
        split: 0.0,
        memory: 1.0,
        shares: [0.914, 0.892, 1.0, 1.0],
    },
};

/// B200 (`sm_100_B200`).
const BLACKWELL: Generation = Generation {
    bf16: Products {
        start: 5.04e-06,
        depth: 285.8,
        split: 6.44e-03,
        memory: 0.989,
        shares: [0.412, 0.590, 0.746, 0.811],
    },
    tf32: Products {
        start: 6.59e-06,
        depth: 216.5,
        split: 2.85e-06,
        memory: 0.750,
        shares: [0.505, 0.718, 0.775, 0.798],
    },
    f8: Products {
        start: 5.29e-06,
        depth: 523.9,
        split: 5.47e-02,
        memory: 0.735,
        shares: [0.398, 0.607, 0.792, 0.831],
    },
};

/// Rows and columns of a tile, and the index of its share.
const TILES: [(u64, u64, usize); 6] =
    [(64, 64, 0), (128, 64, 1), (64, 128, 1), (128, 128, 2), (128, 256, 3), (256, 128, 3)];
/// Cores that share one tile's `k`.
const SPLITS: [u64; 5] = [1, 2, 4, 8, 16];
/// Bytes of a partial result, written and read.
const PARTIAL: f64 = 8.0;
const BLACKWELL_CAPABILITY: f64 = 10.0;
/// The launch that the measured starts contain; a chip's own launch replaces it.
const LAUNCH: f64 = 2.14e-6;

/// The seconds of a product on the matrix units, and before and after them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    /// Seconds of the tiles.
    pub tiles: f64,
    /// Seconds that a kernel with this product takes beyond the launch of any kernel.
    pub start: f64,
    /// Share of the HBM bandwidth that operands and result reach.
    pub memory: f64,
}

impl Spent {
    /// Adds the products of another instruction of the same kernel.
    pub(super) fn add(&mut self, other: &Spent) {
        self.tiles += other.tiles;
        self.start = self.start.max(other.start);
        self.memory = self.memory.max(other.memory);
    }
}

/// The time of the `flops` of `product` at `peak` operations per second, whose name is `kind`; None
/// if the device lacks cores.
pub(super) fn spent(
    device: &Device,
    product: &Contraction,
    (flops, peak): (f64, f64),
    kind: &[&str],
) -> Option<Spent> {
    let cores = device.share(device.cores)?;
    let is_blackwell = device.compute_capability.is_some_and(|at| at >= BLACKWELL_CAPABILITY);
    let generation = if is_blackwell { &BLACKWELL } else { &HOPPER };
    let table = match kind.first() {
        Some(&"tf32") => &generation.tf32,
        Some(&("f8" | "s8" | "f4" | "s4")) => &generation.f8,
        _ => &generation.bf16,
    };
    let reference = generation.bf16.shares.iter().copied().fold(0.0, f64::max);
    let scale = device.matmul_efficiency.unwrap_or(reference) / reference;
    let bandwidth = device.share(device.hbm_bandwidth);
    let result = product.batch as f64 * product.m as f64 * product.n as f64;
    let mut best = f64::INFINITY;
    for (rows, columns, share) in TILES {
        let share = (table.shares.get(share).copied().unwrap_or(1.0) * scale).min(1.0);
        let tiles = product.batch as f64
            * product.m.div_ceil(rows) as f64
            * product.n.div_ceil(columns) as f64;
        for split in SPLITS {
            if split > 1 && bandwidth.is_none() {
                continue;
            }
            let split = split as f64;
            let waves = (tiles * split / cores).ceil();
            let depth = product.k as f64 / split + table.depth;
            let work = 2.0 * (rows * columns) as f64 * depth;
            let mut seconds = waves * work * cores / (peak * share);
            if split > 1.0 {
                let moved = PARTIAL * split * result;
                seconds += table.split * split.log2();
                seconds += bandwidth.map_or(0.0, |rate| moved / (rate * table.memory));
            }
            best = best.min(seconds);
        }
    }
    // A convolution skips padding.
    let whole = 2.0 * result * product.k as f64;
    let tiles = if whole > 0.0 { best * (flops / whole).min(1.0) } else { best };
    let start = (table.start - LAUNCH).max(0.0);
    tiles.is_finite().then_some(Spent { tiles, start, memory: table.memory })
}
