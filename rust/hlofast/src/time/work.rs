//! The work of rows and computations, split by hardware unit.

use super::device::Device;
use super::gpu_products;
use super::kernels::{efficiency, is_kernel, multiplied_type};
use crate::Provenance;
use crate::cost::Cost;
use crate::cost::custom_call::{CustomCallCost, custom_call_cost};
use crate::cost::matmul::{Contraction, contraction};
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{CallRole, ComputationId, ElementType, Module, Opcode, Row};

/// Work of one execution, including fused computations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// FLOPs of matmuls.
    pub matrix_flops: f64,
    /// Seconds of matmuls at the peak of their element types.
    pub matrix_seconds: f64,
    /// Seconds of matmuls on a GPU, by shape.
    pub product: gpu_products::Spent,
    /// Cycles of the systolic arrays, with dimensions padded to their size; 0 without arrays.
    pub matrix_cycles: f64,
    /// Seconds of the matmuls of hand-written kernels at the rate that they are assumed to reach.
    pub kernel_seconds: f64,
    /// The peak of the last matmul's type, in operations per second of one JAX device.
    pub peak: Option<f64>,
    /// Operations and transcendentals of all other instructions.
    pub vector_operations: f64,
    /// Hardware vector operations before the first matmul of a fusion; transcendentals count as
    /// many operations as they take.
    pub prologue_operations: f64,
    /// Whether the peak for some matmul is unknown.
    pub lacks_peak: bool,
    /// Whether some FLOPs are unknown.
    pub is_unknown: bool,
    /// Whether some FLOPs rest on an assumption.
    pub is_assumed: bool,
}

impl Work {
    fn add(&mut self, other: &Work) {
        self.matrix_seconds += other.matrix_seconds;
        self.product.add(&other.product);
        self.matrix_cycles += other.matrix_cycles;
        self.kernel_seconds += other.kernel_seconds;
        // Rows are added in text order; work after a matmul does not delay the matmul.
        if self.matrix_flops <= 0.0 {
            self.prologue_operations += other.prologue_operations;
        }
        self.matrix_flops += other.matrix_flops;
        self.vector_operations += other.vector_operations;
        self.lacks_peak |= other.lacks_peak;
        self.is_unknown |= other.is_unknown;
        self.is_assumed |= other.is_assumed;
    }
}

/// Vector operations of one transcendental before a matmul, and of a transcendental with argument
/// reduction (sine, cosine); measured like the constants in `tpu.rs`.
const TRANSCENDENTAL: f64 = 4.0;
const PERIODIC: f64 = 144.0;
/// Rows and columns of a vector register.
const SUBLANES: f64 = 8.0;
const LANES: f64 = 128.0;

/// Computes the work of rows and computations.
pub struct Works<'a> {
    module: &'a Module,
    cost: &'a Cost,
    device: &'a Device,
    /// By computation: work of its rows, including fused computations.
    computations: Vec<Work>,
}

impl<'a> Works<'a> {
    /// Sums the work of every computation in `module`, callees first.
    pub fn new(module: &'a Module, cost: &'a Cost, device: &'a Device) -> Self {
        let computations = vec![Work::default(); module.computations().len()];
        let mut works = Self { module, cost, device, computations };
        for id in module.computation_post_order().iter().copied() {
            let mut sum = Work::default();
            for row in module.computation(id).rows() {
                sum.add(&works.row(Row(row)));
            }
            works.computations[id.0 as usize] = sum;
        }
        works
    }

    /// The work of `row`; for a fusion, the work of the fused computation.
    pub fn row(&self, row: Row) -> Work {
        if self.module.opcode(row) == Opcode::Fusion {
            let called = self.module.called(row, CallRole::Calls);
            let work = called.and_then(|id: ComputationId| self.computations.get(id.0 as usize));
            return work.copied().unwrap_or_default();
        }
        self.own(row)
    }

    /// The work of `row` itself.
    pub fn own(&self, row: Row) -> Work {
        let at = row.0 as usize;
        let opcode = self.module.opcode(row);
        let flops = self.cost.flops.get(at).copied().unwrap_or(0) as f64;
        let transcendentals = self.cost.transcendentals.get(at).copied().unwrap_or(0) as f64;
        let provenance = self.cost.provenance.get(at).copied().unwrap_or_default();
        let is_unknown = provenance == Provenance::Unknown;
        let is_assumed = provenance == Provenance::Assumed;
        let product = match opcode {
            opcode if opcode.is_matmul() => contraction(self.module, row),
            Opcode::CustomCall => {
                let call = custom_call_cost(self.module, row);
                if flops > 0.0 && is_kernel(self.module, row, &call) {
                    return self.kernel(row, &call, flops, transcendentals, provenance);
                }
                call.contraction
            }
            _ => None,
        };
        let Some(product) = product else {
            let weight = match opcode {
                Opcode::Sine | Opcode::Cosine => PERIODIC,
                _ => TRANSCENDENTAL,
            };
            return Work {
                vector_operations: flops + transcendentals,
                prologue_operations: flops + weight * transcendentals,
                is_unknown,
                is_assumed,
                ..Work::default()
            };
        };
        let (names, passes) = self.peak_of(row, &product);
        let peak = self.device.peak(names);
        let seconds = peak.map(|peak| passes * flops / peak);
        let cycles = self.matrix_cycles(&product, names, passes, flops);
        let known = peak.filter(|_| self.device.is_gpu && flops > 0.0);
        let kernel =
            known.and_then(|peak| gpu_products::spent(self.device, &product, (flops, peak), names));
        Work {
            matrix_flops: flops,
            matrix_seconds: seconds.unwrap_or(0.0),
            matrix_cycles: cycles.unwrap_or(0.0),
            product: kernel.unwrap_or_default(),
            vector_operations: transcendentals,
            peak,
            lacks_peak: seconds.is_none(),
            is_unknown,
            is_assumed,
            ..Work::default()
        }
    }

    /// The work of a hand-written kernel.
    fn kernel(
        &self,
        row: Row,
        call: &CustomCallCost,
        flops: f64,
        transcendentals: f64,
        provenance: Provenance,
    ) -> Work {
        let names = multiplied_type(self.module, row).map(|kind| self.device.peak_names(kind));
        let peak = self.device.peak(names.unwrap_or_default());
        let seconds = peak.map_or(0.0, |peak| flops / peak);
        Work {
            matrix_flops: flops,
            matrix_seconds: seconds,
            kernel_seconds: seconds / efficiency(call, self.device.is_tpu),
            vector_operations: transcendentals,
            peak,
            lacks_peak: peak.is_none(),
            is_unknown: provenance == Provenance::Unknown,
            // The rate is assumed, whatever is known of the FLOPs.
            is_assumed: true,
            ..Work::default()
        }
    }

    /// The names of the peak that limits a matmul, and the number of passes at that peak.
    fn peak_of(&self, row: Row, product: &Contraction) -> (&'static [&'static str], f64) {
        let wider = |a: ElementType, b: ElementType| if a.bits() >= b.bits() { a } else { b };
        let operand = match wider(product.lhs_type, product.rhs_type) {
            // Complex numbers are multiplied as pairs of floats.
            ElementType::C64 => ElementType::F32,
            ElementType::C128 => ElementType::F64,
            operand => operand,
        };
        let names = self.device.peak_names(operand);
        if operand != ElementType::F32 {
            return (names, 1.0);
        }
        // On TPU, XLA multiplies 32-bit floats in one 16-bit pass by default, in 3 passes at high
        // and in 6 at highest precision. On GPU, high and highest precision do not use TF32.
        match (self.precision(row), self.device.is_tpu) {
            (Precision::Default, _) => (names, 1.0),
            (Precision::High, true) => (names, 3.0),
            (Precision::Highest, true) => (names, 6.0),
            (_, false) => (&["f32"], 1.0),
        }
    }

    fn precision(&self, row: Row) -> Precision {
        let Some(bytes) = self.module.attribute_bytes(row, "operand_precision") else {
            return Precision::Default;
        };
        let opcode = self.module.opcode(row);
        let Ok(AttributeValue::Words(words)) = decode(b"operand_precision", opcode, bytes) else {
            return Precision::Default;
        };
        let has = |word: &str| words.contains(&word.as_bytes());
        if has("highest") {
            Precision::Highest
        } else if has("high") {
            Precision::High
        } else {
            Precision::Default
        }
    }

    /// Cycles of all systolic arrays of one core. One array holds a square of one operand (the
    /// weights) while rows of the other operand stream through it. Contracted and output dimensions
    /// are therefore padded to whole squares; with few rows, loading the weights dominates.
    fn matrix_cycles(
        &self,
        product: &Contraction,
        names: &[&str],
        passes: f64,
        flops: f64,
    ) -> Option<f64> {
        let device = self.device;
        let (size, clock, cores) = (device.matrix_unit_size?, device.clock?, device.cores?);
        let peak = device.peak(names)? * device.jax_devices?;
        let rows_per_cycle = peak / (2.0 * size * size * clock * cores);
        let minimum = device.matrix_unit_minimum_rows.unwrap_or(0.0);
        let squares = |length: u64| (length as f64 / size).ceil();
        // Loading weights narrower than a register takes proportionally less.
        let part = |length: u64| (length as f64 / LANES).min(1.0);
        let cycles = |rows: u64, columns: u64| {
            let held = squares(product.k) * squares(columns);
            let least = minimum * part(product.k) * part(columns);
            let rows = (rows as f64 / SUBLANES).ceil() * SUBLANES;
            held * rows.max(least) / rows_per_cycle
        };
        // The array may hold either operand.
        let best = cycles(product.m, product.n).min(cycles(product.n, product.m));
        let whole = 2.0 * product.batch as f64 * product.m as f64;
        let whole = whole * product.n as f64 * product.k as f64;
        // Taps that a convolution skips take no cycles.
        let share = if whole > 0.0 { (flops / whole).min(1.0) } else { 0.0 };
        Some(best * product.batch as f64 * passes * share)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Precision {
    Default,
    High,
    Highest,
}
