//! The table of matrix products and convolutions.

use super::{Columns, Origin, ScopeTexts};
use crate::cost::matmul::{Contraction, contraction};
use crate::cost::{Cost, Executions, PhaseExecutions};
use crate::flow::Attribution;
use crate::ir::{ElementType, Module, Row};

/// One row per contraction and phase it is executed in, in row order. `uncertain` has, by
/// computation, the executions inside loops of unknown trip count.
pub fn matmuls(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    uncertain: &[i128],
) -> Columns {
    let executions = Executions::new(module, cost, attribution);
    let mut found: Vec<(Row, Contraction, PhaseExecutions)> = Vec::new();
    for row in module.rows() {
        let Some(contraction) = contraction(module, row) else { continue };
        let runs = executions.of(row).into_iter();
        found.extend(runs.map(|entry| (row, contraction, entry)));
    }
    let scopes = ScopeTexts::new(module, &attribution.scopes);
    let origin = Origin::new(module);
    let each = || found.iter();
    let mut table = Columns::default();
    table.rows("instruction", each().map(|(row, _, _)| *row));
    table.texts("name", each().map(|(row, _, _)| module.instruction_name(*row)));
    table.texts("kind", each().map(|(_, c, _)| c.kind.as_str()));
    let mut sizes = |name, of: fn(&Contraction) -> u64| {
        let whole = |c: &Contraction| i64::try_from(of(c)).unwrap_or(i64::MAX);
        table.numbers(name, each().map(|(_, c, _)| whole(c)));
    };
    sizes("batch", |c| c.batch);
    sizes("m", |c| c.m);
    sizes("n", |c| c.n);
    sizes("k", |c| c.k);
    let mut types = |name, of: fn(&Contraction) -> ElementType| {
        table.texts(name, each().map(|(_, c, _)| of(c).as_str()));
    };
    types("lhs_dtype", |c| c.lhs_type);
    types("rhs_dtype", |c| c.rhs_type);
    types("output_dtype", |c| c.output_type);
    types("accumulation_dtype", |c| c.accumulation_type);
    table.numbers("multiplicity", each().map(|(_, _, entry)| entry.count.unwrap_or(-1)));
    let is_open = |row: Row| uncertain.get(module.computation_of(row).0 as usize) > Some(&0);
    let is_lower = each().map(|(row, _, entry)| is_open(*row) || entry.count.is_none());
    table.flags("is_lower_bound", is_lower);
    table.numbers("flops_once", each().map(|(_, c, _)| c.flops));
    let total = |c: &Contraction, entry: &PhaseExecutions| {
        c.flops.saturating_mul(entry.count.unwrap_or(-1).max(0))
    };
    table.numbers("flops", each().map(|(_, c, entry)| total(c, entry)));
    table.texts("phase", each().map(|(_, _, entry)| entry.phase.as_str()));
    table.texts("scope", each().map(|(_, _, entry)| scopes.text(entry.scope)));
    let file = |row: Row| origin.source_file(row).unwrap_or_default();
    table.texts("source_file", each().map(|(row, _, _)| file(*row)));
    table.numbers("source_line", each().map(|(row, _, _)| origin.source_line(*row)));
    table.texts("provenance", each().map(|(_, c, _)| c.provenance.as_str()));
    table
}
