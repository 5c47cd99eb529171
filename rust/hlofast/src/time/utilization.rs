//! The seconds that a program's operations would take at the peaks of their types: what MFU is a
//! share of.

use super::device::Device;
use super::work::Works;
use crate::cost::matmul::contraction;
use crate::cost::{Cost, Executions};
use crate::flow::{Attribution, Phase};
use crate::ir::{Module, Opcode};

/// Seconds at the peak, over all executions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ideal {
    /// Matmuls and convolutions.
    pub matmul: f64,
    /// The recomputed part of `matmul`.
    pub matmul_recomputed: f64,
    /// All operations but the additions of collectives.
    pub all: f64,
    /// The recomputed part of `all`.
    pub all_recomputed: f64,
}

/// The ideal seconds of `module`. A matmul takes its FLOPs over the peak of the type that it
/// multiplies; every other operation, and a matmul whose peak is unknown, counts at the bfloat16
/// peak. None if that peak is unknown.
pub fn ideal(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    device: &Device,
) -> Option<Ideal> {
    let other = device.peak(&["bf16"])?;
    let works = Works::new(module, cost, device);
    let executions = Executions::new(module, cost, attribution);
    let mut sum = Ideal::default();
    for row in module.rows() {
        let flops = cost.flops.get(row.0 as usize).copied().unwrap_or(0) as f64;
        let opcode = module.opcode(row);
        if flops <= 0.0 || is_reduction_between_devices(opcode) {
            continue;
        }
        let work = works.own(row);
        let peak = work.peak.unwrap_or(other);
        let seconds = flops / peak;
        let is_product = match opcode {
            Opcode::CustomCall => contraction(module, row).is_some(),
            _ => work.matrix_flops > 0.0,
        };
        for entry in executions.of(row) {
            let seconds = seconds * entry.count.map_or(f64::INFINITY, |count| count as f64);
            let repeated = if entry.phase == Phase::Recompute { seconds } else { 0.0 };
            sum.all += seconds;
            sum.all_recomputed += repeated;
            if is_product {
                sum.matmul += seconds;
                sum.matmul_recomputed += repeated;
            }
        }
    }
    Some(sum)
}

fn is_reduction_between_devices(opcode: Opcode) -> bool {
    use Opcode::{AllReduce, AllReduceDone, AllReduceStart, ReduceScatter};
    matches!(opcode, AllReduce | AllReduceStart | AllReduceDone | ReduceScatter)
}
