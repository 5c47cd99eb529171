//! FLOPs by the peak of their types: FLOPs over peaks are the seconds that MFU is a share of.

use super::device::Device;
use super::work::Works;
use crate::cost::matmul::contraction;
use crate::cost::{Cost, Executions, repeated_products};
use crate::flow::{Attribution, Phase};
use crate::ir::{Module, Opcode};

/// FLOPs of all executions of operations with one peak.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AtPeak {
    /// The peak in operations per second of one JAX device.
    pub peak: f64,
    /// Matmuls and convolutions.
    pub matmul: i128,
    /// The part of `matmul` that runs again: recomputation, and copies of products in fusions.
    pub matmul_again: i128,
    /// All operations but the additions of collectives.
    pub all: i128,
    /// The part of `all` that runs again.
    pub all_again: i128,
}

/// The FLOPs of `module` by the peak that they count at. A matmul counts at the peak of the type
/// that it multiplies; every other operation, and a matmul whose peak is unknown, at the bfloat16
/// peak. None if that peak is unknown.
pub fn flops_by_peak(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    device: &Device,
) -> Option<Vec<AtPeak>> {
    let other = device.peak(&["bf16"])?;
    let works = Works::new(module, cost, device);
    let executions = Executions::new(module, cost, attribution);
    let again = repeated_products(module, attribution);
    let mut sums = vec![AtPeak { peak: other, ..AtPeak::default() }];
    for row in module.rows() {
        let flops = i128::from(cost.flops.get(row.0 as usize).copied().unwrap_or(0));
        let opcode = module.opcode(row);
        if flops <= 0 || is_reduction_between_devices(opcode) {
            continue;
        }
        let work = works.own(row);
        let peak = work.peak.unwrap_or(other);
        let at = sums.iter().position(|sum| sum.peak == peak).unwrap_or(sums.len());
        if at == sums.len() {
            sums.push(AtPeak { peak, ..AtPeak::default() });
        }
        let Some(sum) = sums.get_mut(at) else { continue };
        let is_product = match opcode {
            Opcode::CustomCall => contraction(module, row).is_some(),
            _ => work.matrix_flops > 0.0,
        };
        let is_again = again.binary_search(&row).is_ok();
        for entry in executions.of(row) {
            let runs = entry.count.unwrap_or(i64::MAX);
            let flops = flops.saturating_mul(i128::from(runs));
            let repeated = if is_again || entry.phase == Phase::Recompute { flops } else { 0 };
            sum.all = sum.all.saturating_add(flops);
            sum.all_again = sum.all_again.saturating_add(repeated);
            if is_product {
                sum.matmul = sum.matmul.saturating_add(flops);
                sum.matmul_again = sum.matmul_again.saturating_add(repeated);
            }
        }
    }
    Some(sums)
}

fn is_reduction_between_devices(opcode: Opcode) -> bool {
    use Opcode::{AllReduce, AllReduceDone, AllReduceStart, ReduceScatter};
    matches!(opcode, AllReduce | AllReduceStart | AllReduceDone | ReduceScatter)
}
