//! The uncertain parts of a module's totals: loops of unknown trip count and matmuls of unknown
//! size.

use super::Cost;
use super::custom_call::{CustomCallKind, custom_call_cost};
use super::matmul::contraction;
use crate::ir::{Module, Opcode, Row};

/// By computation: the counted executions inside loops of unknown trip count; such loops count one
/// iteration.
pub fn uncertain_executions(module: &Module, cost: &Cost) -> Vec<i128> {
    let mut uncertain = vec![0i128; module.computations().len()];
    let is_unknown = |row: Row| {
        let at = cost.loops.binary_search_by_key(&row, |entry| entry.row).ok();
        at.is_some_and(|at| cost.loops[at].trip_count.count.is_none())
    };
    if cost.loops.iter().all(|entry| entry.trip_count.count.is_some()) {
        return uncertain;
    }
    let calls = module.all_calls();
    // Callees come first in this order; reversed, callers come before their callees.
    for id in module.computation_post_order().iter().rev() {
        let caller = id.0 as usize;
        let made = module.calls_within(*id);
        for (call, link) in calls[made.clone()].iter().zip(&cost.call_times[made]) {
            let times = i128::from(link.times);
            let runs = if is_unknown(call.row) {
                cost.executions[caller].map_or(i128::from(i64::MAX), i128::from)
            } else {
                uncertain[caller]
            };
            let sum = &mut uncertain[call.computation.0 as usize];
            *sum = sum.saturating_add(runs.saturating_mul(times));
        }
    }
    uncertain
}

/// Matmuls and convolutions of unknown size, including library calls. Calls with FLOPs from an
/// estimate or from the user are known; `stated` lists the rows with user-given FLOPs, ascending.
pub fn unknown_products(module: &Module, stated: &[u32]) -> Vec<Row> {
    let is_unknown = |row: &Row| match module.opcode(*row) {
        Opcode::Dot | Opcode::ScaledDot | Opcode::RaggedDot | Opcode::Convolution => {
            contraction(module, *row).is_none()
        }
        Opcode::CustomCall if stated.binary_search(&row.0).is_err() => {
            let call = custom_call_cost(module, *row);
            call.flops.is_none() && call.contraction.is_none() && is_product(call.kind)
        }
        _ => false,
    };
    module.rows().filter(is_unknown).collect()
}

fn is_product(kind: CustomCallKind) -> bool {
    matches!(
        kind,
        CustomCallKind::Gemm
            | CustomCallKind::GroupedGemm
            | CustomCallKind::Convolution
            | CustomCallKind::AttentionForward
            | CustomCallKind::AttentionBackward
    )
}
