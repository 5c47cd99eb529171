//! Seconds of one instruction on a TPU, as its compiler estimates them.
//!
//! The compiler cuts an instruction into windows that fit VMEM. Each window waits for its data
//! (`hbm_latency`), moves bytes at the rate the compiler assumes, and computes. The formulas and
//! constants were found by compiling single operations of many sizes ahead of time for v4, v5e,
//! v5p, v6e and 7x (libtpu 0.0.42.1) and reading `estimated_cycles`:
//!
//! * elementwise and similar instructions: the time of every window is the latency plus the
//!   transfer of its bytes, read and written; computing overlaps with the transfers of the next
//!   window;
//! * element types narrower than 32 bits add the bytes of a 32-bit result; reductions add the bytes
//!   of the array they reduce;
//! * matmuls: the first read and the last write wait; between them, all windows take the larger of
//!   their matmuls and their transfers; if a contracted dimension is split over several windows,
//!   vector registers accumulate the result.

use super::device::Device;
use super::windows::Windows;
use super::work::Work;

/// The bytes and work of one instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub hbm_read: f64,
    pub hbm_written: f64,
    pub fast_read: f64,
    /// Bytes of the common memory of TPU v4 (space 3), which moves at the rate of HBM.
    pub common_read: f64,
    pub common_written: f64,
    /// Elements of the padded result, and bits per element.
    pub result_elements: f64,
    pub result_bits: f64,
    /// Whether the result fills whole vector registers of 32-bit values.
    pub is_native: bool,
    /// Whether the result has the layout of vector registers, even if it does not fill them.
    pub is_tiled: bool,
    /// Whether there are several results, as of a matmul that also reduces its rows.
    pub is_tuple: bool,
    pub is_copy: bool,
    /// Whether it is a copy that changes the minor dimension, the one along the lanes.
    pub is_transposition: bool,
    pub is_fusion: bool,
    pub transcendentals: f64,
    pub work: Work,
}

/// Seconds by resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub seconds: f64,
    pub compute: f64,
    pub memory: f64,
}

/// Elements of a vector register.
const VECTOR: f64 = 1024.0;
/// Cycles that every instruction takes.
const START_CYCLES: f64 = 16.0;
/// Bytes counted for scalar operands, which arrive with the instruction.
const SCALAR_BYTES: f64 = 4096.0;
/// Cycles of one window of a copy within VMEM that transposes lanes. Copies that keep the lanes cost
/// what other instructions cost: 512 windows of `bf16[8,2,256,3584]` to tiles of (2,128) wait 512 times
/// and unpack every element.
const COPY_CYCLES: f64 = 100.0;
/// Vector operations that storing an element takes: 0.4 to 0.75 cycles per register of 1024
/// elements, where 4 operations are one cycle.
const STORE_OPERATIONS: f64 = 2.0;
/// Bytes of all windows together, if the compiler does not give them: the compiler's usual choice.
const WINDOW_BYTES: f64 = 4.0 * 1024.0 * 1024.0;

/// The time of `load`; None if the device lacks a figure.
pub(super) fn spent(device: &Device, load: &Load, windows: Option<&Windows>) -> Option<Spent> {
    let clock = device.clock?;
    let all_cores = device.share(device.cores)?;
    // One core alone computes and moves at its own rate (libtpu's estimates of instructions without
    // a split are twice those with one on v5p).
    let cores = if windows.is_some_and(|w| !w.is_split) { 1.0 } else { all_cores };
    let part = cores / all_cores;
    let rate = part * device.share(device.hbm_achieved_bandwidth.or(device.hbm_bandwidth))? / clock;
    let fast_rate =
        device.share(device.fast_memory_bandwidth).map_or(rate, |rate| part * rate / clock);
    let latency = device.hbm_latency? * clock;
    let vectors = VECTOR * device.vector_operations? * cores;
    let is_product = load.work.matrix_cycles > 0.0;
    let load = &Load {
        // Products read operands from the common memory at about 4 TB/s (libtpu's estimates of a
        // decoder on v4), which hides behind their work.
        hbm_read: load.hbm_read + if is_product { 0.0 } else { load.common_read },
        hbm_written: load.hbm_written + load.common_written,
        ..*load
    };
    let bytes = load.hbm_read + load.hbm_written + load.fast_read;
    let all = windows.map_or_else(|| (bytes / WINDOW_BYTES).ceil(), |w| w.iterations).max(1.0);
    // Windows of a reduction are windows of the reduced array.
    let seen = windows.map_or(0.0, |windows| windows.output * all);
    let is_reduced =
        seen > 1.5 * load.result_elements && load.work.matrix_cycles <= 0.0 && !load.is_copy;
    // Windows of a copy to smaller tiles are windows of the padded operand.
    let written = match seen > 0.0 && !is_reduced && !load.is_copy {
        true => load.result_elements.min(seen),
        false => seen.max(load.result_elements),
    };
    let result = if is_reduced { load.result_elements } else { written };
    let of_narrow = if load.result_bits < 32.0 { 4.0 * result } else { 0.0 };
    let unpacked = of_narrow + if is_reduced { 4.0 * written } else { 0.0 };
    let iterations = (all / cores).ceil();
    let operations = match load.is_fusion {
        true => load.work.prologue_operations,
        false => load.work.vector_operations,
    };
    // Values that stay in VMEM are stored even if nothing computes them.
    let is_inside = load.hbm_read + load.hbm_written <= 0.0;
    let stored = if is_inside { STORE_OPERATIONS * load.result_elements } else { 0.0 };
    let vector = operations.max(stored) / vectors;
    // If VMEM is not faster than HBM, both share one path to the compute units.
    let is_in_place = fast_rate > rate;
    if load.work.matrix_cycles <= 0.0 {
        let transferred = load.hbm_read + load.hbm_written + unpacked;
        // An instruction that only broadcasts or generates its result has no data to wait for.
        let read = load.hbm_read + load.fast_read;
        let reads = is_reduced || read >= 0.5 * written * load.result_bits / 8.0;
        // Copies of whole 32-bit registers within VMEM wait for nothing.
        let is_moved = is_inside && load.is_copy && load.is_tiled && load.result_bits == 32.0;
        let waits = !is_moved && (reads || !load.is_native || load.hbm_written > 0.0);
        if load.is_transposition && load.hbm_read + load.hbm_written <= 0.0 {
            let seconds = iterations * COPY_CYCLES / clock;
            return Some(Spent { seconds, compute: 0.0, memory: seconds });
        }
        let memory = transferred / rate + load.fast_read / fast_rate;
        let waiting = START_CYCLES + if waits { iterations * latency } else { 0.0 };
        let overlapped = memory.min(vector) / iterations;
        let cycles = waiting + memory.max(vector) + overlapped;
        return Some(Spent {
            seconds: cycles / clock,
            compute: vector / clock,
            memory: (waiting + memory) / clock,
        });
    }
    // Windows of the result; further windows accumulate into them.
    let results = match windows {
        Some(w) if w.output > 0.0 => (load.result_elements / w.output).ceil().clamp(1.0, all),
        _ => all,
    };
    let results = (results / cores).ceil().min(iterations);
    let window_elements = windows.map_or(written / all, |w| w.output);
    let add_up = 2.0 * window_elements / vectors * cores;
    // Vector units prepare operands while the systolic arrays work.
    let product = (load.work.matrix_cycles / cores).max(load.work.prologue_operations / vectors);
    let product = product / iterations;
    let read = load.hbm_read / rate / iterations;
    // Where VMEM has its own path, results that stay there, and matmuls with several results, are
    // packed in registers (v6e: 378 us for 537 MB, which are 364 us of transfer).
    let is_packed = is_in_place && (load.hbm_written <= 0.0 || load.is_tuple);
    let leaves = if is_packed { 0.0 } else { unpacked };
    let write = (load.hbm_written + leaves) / rate / results;
    let restart = device.matrix_unit_restart.unwrap_or(0.0);
    let reads = load.hbm_read > SCALAR_BYTES;
    let writes = write > 0.0 || !(is_in_place || load.is_tiled);
    let read_wait = if reads { latency + read } else { 0.0 };
    let write_wait = if writes { latency + write } else { 0.0 };
    // The wait for data hides part of the time to fill the arrays.
    let start = match reads {
        true => START_CYCLES + device.matrix_unit_latency.unwrap_or(restart),
        false => restart,
    };
    // Windows are double-buffered: while one computes, others move. Only the first read and the
    // last write have nothing to hide behind. The compiler's own formula also waits a latency in
    // every window, which makes products up to twice as long as their computing; steps that
    // trainers published at 80 to 89 % of the peak, recomputation counted, show that hardware does
    // not.
    let compute =
        product * iterations + restart * (iterations - 1.0) + add_up * (iterations - results);
    let moved = read * (iterations - 1.0) + write * (results - 1.0);
    let waited = start + read_wait + write_wait;
    let cycles = waited + compute.max(product + moved);
    let memory = waited + moved;
    Some(Spent { seconds: cycles / clock, compute: compute / clock, memory: memory / clock })
}
