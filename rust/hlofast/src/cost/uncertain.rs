//! The uncertain parts of a module's totals: loops of unknown trip count and matmuls of unknown
//! size.

use super::custom_call::CustomCallKind;
use super::facts::{Fact, Facts};
use super::matmul::{Alike, Contraction, alike, contraction};
use super::{Branch, Cost};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Module, Opcode, Row};
use hashbrown::HashMap;

/// By computation: the counted executions inside loops of unknown trip count; such loops count one
/// iteration.
pub fn uncertain_executions(module: &Module, cost: &Cost) -> Vec<i128> {
    executions_below(module, cost, &open_loops(cost))
}

/// By computation: the counted executions outside such loops that rest on the choice of a branch.
pub fn assumed_executions(module: &Module, cost: &Cost) -> Vec<i128> {
    let branches = assumed_conditionals(cost);
    if branches.is_empty() {
        return vec![0; module.computations().len()];
    }
    let open = open_loops(cost);
    let inside = executions_below(module, cost, &open);
    let mut both = [open, branches].concat();
    both.sort_unstable();
    let both = executions_below(module, cost, &both);
    both.iter().zip(&inside).map(|(both, inside)| (both - inside).max(0)).collect()
}

/// Loops of unknown trip count, ascending.
pub(super) fn open_loops(cost: &Cost) -> Vec<Row> {
    let open = cost.loops.iter().filter(|entry| entry.trip_count.count.is_none());
    open.map(|entry| entry.row).collect()
}

/// Conditionals whose branches differ in FLOPs, ascending: which of them runs is assumed.
pub fn assumed_conditionals(cost: &Cost) -> Vec<Row> {
    let flops = |id: ComputationId| cost.computations.get(id.0 as usize).map(|own| own.flops);
    let of_one = cost.branches.chunk_by(|one, next| one.row == next.row);
    let differing = of_one.filter_map(|branches| {
        let first = branches.first()?;
        let is_same = |branch: &Branch| flops(branch.computation) == flops(first.computation);
        (!branches.iter().all(is_same)).then_some(first.row)
    });
    differing.collect()
}

/// By computation: the counted executions that `rows` call, directly or through others.
fn executions_below(module: &Module, cost: &Cost, rows: &[Row]) -> Vec<i128> {
    let mut uncertain = vec![0i128; module.computations().len()];
    if rows.is_empty() {
        return uncertain;
    }
    let is_unknown = |row: Row| rows.binary_search(&row).is_ok();
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

/// A matmul or convolution, library calls included.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// The instruction.
    pub row: Row,
    /// Its sizes; None if they are not known.
    pub contraction: Option<Contraction>,
    /// Whether its FLOPs are not known either. Calls with an estimate of FLOPs are known.
    pub is_unknown: bool,
}

/// The matmuls and convolutions of a module, in row order.
pub fn products(module: &Module, facts: &Facts) -> Vec<Product> {
    let mut known: HashMap<Alike<'_>, Option<Contraction>, BuildMix> = HashMap::default();
    let product = |(row, opcode): (Row, &Opcode)| match opcode {
        opcode if opcode.is_matmul() => {
            // Layers without a loop repeat the same matmuls.
            let contraction = match alike(module, row) {
                Some(key) => *known.entry(key).or_insert_with(|| contraction(module, row)),
                None => contraction(module, row),
            };
            Some(Product { row, contraction, is_unknown: contraction.is_none() })
        }
        Opcode::CustomCall => {
            let Some(Fact::CustomCall(call)) = facts.get(row.0) else { return None };
            let contraction = call.contraction;
            let is_unknown = call.flops.is_none() && contraction.is_none() && is_product(call.kind);
            let product = Product { row, contraction, is_unknown };
            (contraction.is_some() || is_unknown).then_some(product)
        }
        _ => None,
    };
    let may_be =
        |(_, opcode): &(Row, &Opcode)| opcode.is_matmul() || **opcode == Opcode::CustomCall;
    module.rows().zip(&module.columns().opcodes).filter(may_be).filter_map(product).collect()
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
