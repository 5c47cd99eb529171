//! The table of matmuls: dots and convolutions.

use super::{Columns, Field, Origin, common};
use crate::cost::matmul::Contraction;
use crate::cost::{Cost, Executions, PhaseExecutions, Product};
use crate::flow::Attribution;
use crate::ir::{ElementType, Row};

/// One row per contraction in `found` and phase that executes it, in row order. `uncertain` gives, by
/// computation, the executions inside loops of unknown trip count.
pub fn matmuls(
    origin: &Origin<'_>,
    found: &[Product],
    cost: &Cost,
    attribution: &Attribution,
    uncertain: &[i128],
) -> Columns {
    let module = origin.module;
    let executions = Executions::new(module, cost, attribution);
    let mut products: Vec<(Row, Contraction, PhaseExecutions)> = Vec::new();
    for Product { row, contraction, .. } in found.iter().copied() {
        let Some(contraction) = contraction else { continue };
        let runs = executions.of(row).into_iter();
        products.extend(runs.map(|entry| (row, contraction, entry)));
    }
    let scopes = origin.scopes(attribution);
    let each = || products.iter();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|(row, _, _)| *row));
    table.texts(common::name(), each().map(|(row, _, _)| module.instruction_name(*row)));
    table.texts(
        Field::word("kind", "The kind of matmul: dot, convolution, library call or kernel."),
        each().map(|(_, c, _)| c.kind.as_str()),
    );
    let mut sizes = |field, of: fn(&Contraction) -> u64| {
        let whole = |c: &Contraction| i64::try_from(of(c)).unwrap_or(i64::MAX);
        table.numbers(field, each().map(|(_, c, _)| whole(c)));
    };
    sizes(Field::count("batch", "Independent matmuls in one execution."), |c| c.batch);
    sizes(Field::count("m", "Rows of the result."), |c| c.m);
    sizes(Field::count("n", "Columns of the result."), |c| c.n);
    sizes(Field::count("k", "The contracted size."), |c| c.k);
    let mut types = |field, of: fn(&Contraction) -> ElementType| {
        table.texts(field, each().map(|(_, c, _)| of(c).as_str()));
    };
    types(Field::word("lhs_dtype", "Element type of the left operand."), |c| c.lhs_type);
    types(Field::word("rhs_dtype", "Element type of the right operand."), |c| c.rhs_type);
    types(Field::word("output_dtype", "Element type of the result."), |c| c.output_type);
    types(Field::word("accumulation_dtype", "Element type of the sums."), |c| c.accumulation_type);
    table.numbers(common::multiplicity(), each().map(|(_, _, entry)| entry.count.unwrap_or(-1)));
    let is_open = |row: Row| uncertain.get(module.computation_of(row).0 as usize) > Some(&0);
    let is_lower = each().map(|(row, _, entry)| is_open(*row) || entry.count.is_none());
    table.flags(common::is_lower_bound(), is_lower);
    table.numbers(
        Field::flops("flops_once", "FLOPs of one execution: 2 x batch x m x n x k.")
            .label("FLOP per call"),
        each().map(|(_, c, _)| c.flops),
    );
    let total = |c: &Contraction, entry: &PhaseExecutions| {
        entry.count.map_or(-1, |runs| c.flops.saturating_mul(runs))
    };
    table.numbers(common::flops().nullable(), each().map(|(_, c, entry)| total(c, entry)));
    table.texts(common::phase(), each().map(|(_, _, entry)| entry.phase.as_str()));
    table.written(common::scope(), each(), |(_, _, entry), out| scopes.write(entry.scope, out));
    let file = |row: Row| origin.source_file(row).unwrap_or_default();
    table.texts(common::source_file(), each().map(|(row, _, _)| file(*row)));
    table.numbers(common::source_line(), each().map(|(row, _, _)| origin.source_line(*row)));
    table.texts(common::provenance(), each().map(|(_, c, _)| c.provenance.as_str()));
    table
}
