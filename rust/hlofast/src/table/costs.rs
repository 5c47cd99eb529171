//! The tables of costs: groups, computations, loops, branches and calls of unknown cost.

use super::common::{self, once};
use super::{Columns, Field, narrow, number};
use crate::Provenance;
use crate::cost::custom_call::custom_call_target;
use crate::cost::explain::Departure;
use crate::cost::{Branch, Cost, FloatTotals, Group, Totals};
use crate::ir::{ComputationId, Module, Opcode, Row};
use std::collections::BTreeMap;

/// Adds FLOPs, transcendentals and bytes; with XLA's counting, bytes are not split.
fn add_totals(table: &mut Columns, totals: &[Totals], is_xla: bool, each: fn(Field) -> Field) {
    // XLA counts -1 for calls of unknown cost.
    let signed = |field: Field| if is_xla { field.signed() } else { field };
    let mut add = |field: Field, of: fn(&Totals) -> i128| {
        table.numbers(signed(each(field)), totals.iter().map(|totals| narrow(of(totals))));
    };
    add(common::flops(), |totals| totals.flops);
    add(common::transcendentals(), |totals| totals.transcendentals);
    add(common::bytes_accessed(), Totals::bytes_accessed);
    if !is_xla {
        add(common::bytes_read(), |totals| totals.bytes_read);
        add(common::bytes_written(), |totals| totals.bytes_written);
        add(common::other_bytes_read(), |totals| totals.other_bytes_read);
        add(common::other_bytes_written(), |totals| totals.other_bytes_written);
    }
}

/// One row per group of costs, by the key that `field` describes.
pub fn cost_groups(field: Field, groups: &[Group], is_xla: bool) -> Columns {
    let mut table = Columns::default();
    table.texts(field.nullable(), groups.iter().map(|group| &group.label));
    let instructions = groups.iter().map(|group| group.instructions as i64);
    table.numbers(common::instructions(), instructions);
    let totals: Vec<Totals> = groups.iter().map(|group| group.totals).collect();
    add_totals(&mut table, &totals, is_xla, |field| field);
    if !is_xla {
        let doc = "FLOPs that are exact: not modelled, not from configuration, not inside a loop of unknown trip count.";
        let field = Field::flops("exact_flops", doc).summed().label("exact FLOP");
        table.numbers(field, groups.iter().map(|group| narrow(group.exact_flops)));
    }
    table
}

/// One row per computation: the cost of one execution including callees, and how often the totals
/// count it.
pub fn computation_costs(module: &Module, cost: &Cost) -> Columns {
    let ids = (0..module.computations().len() as u32).map(ComputationId);
    let mut table = Columns::default();
    let computation = common::computation().renamed("computation", "The name of the computation.");
    table.texts(computation, ids.map(|id| module.computation_name(id)));
    let executions = cost.executions.iter().map(|count| count.unwrap_or(-1));
    table.numbers(common::multiplicity(), executions);
    match &cost.float32 {
        Some((_, floats)) => {
            let mut add = |name, doc, of: fn(&FloatTotals) -> f32| {
                let values = floats.iter().map(|value| f64::from(of(value)));
                table.reals(Field::number(name, doc).summed(), values);
            };
            add("flops", "FLOPs of one execution, summed as 32-bit floats.", |f| f.flops);
            let doc = "Transcendental functions of one execution, summed as 32-bit floats.";
            add("transcendentals", doc, |floats| floats.transcendentals);
            let doc = "Bytes of one execution, summed as 32-bit floats.";
            add("bytes_accessed", doc, |floats| floats.bytes_accessed);
        }
        None => add_totals(&mut table, &cost.computations, cost.is_xla, once),
    }
    table
}

/// One row per loop, with its call count. `multiplicity` has a value for each row.
pub fn loops(module: &Module, cost: &Cost, multiplicity: &[i64]) -> Columns {
    let each = || cost.loops.iter();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|entry| entry.row));
    table.texts(common::name(), each().map(|entry| module.instruction_name(entry.row)));
    let doc = "Iterations; a loop of unknown trip count is counted once.";
    let trips = Field::count("trip_count", doc).nullable();
    table.numbers(trips, each().map(|entry| number(entry.trip_count.count)));
    let doc = "Provenance of the trip count.";
    let provenance = each().map(|entry| entry.trip_count.provenance.as_str());
    table.texts(Field::word("provenance", doc), provenance);
    let doc = "The source of the trip count, or why it is unknown.";
    let reasons = each().map(|entry| entry.trip_count.reason);
    table.texts(Field::text("reason", doc).nullable(), reasons);
    let runs = |row: Row| multiplicity.get(row.0 as usize).copied().unwrap_or(-1);
    table.numbers(common::multiplicity(), each().map(|entry| runs(entry.row)));
    table
}

/// One row per branch of a conditional: the cost of one execution and whether the totals count it.
pub fn branches(module: &Module, cost: &Cost) -> Columns {
    let each = || cost.branches.iter();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|branch| branch.row));
    table.texts(common::name(), each().map(|branch| module.instruction_name(branch.row)));
    let field = Field::index("branch", "The position of the branch.");
    table.numbers(field, each().map(|branch| i64::from(branch.index)));
    let computation =
        common::computation().renamed("computation", "The computation of the branch.");
    table.texts(computation, each().map(|branch| module.computation_name(branch.computation)));
    let doc = "Whether the totals count this branch: the one with the most FLOPs.";
    let field = Field::flag("is_counted", doc).label("counted");
    table.flags(field, each().map(|branch| branch.is_counted));
    let of = |branch: &Branch| cost.computations[branch.computation.0 as usize];
    let totals: Vec<Totals> = each().map(of).collect();
    add_totals(&mut table, &totals, cost.is_xla, once);
    table
}

/// One row per target of custom calls whose FLOPs are unknown.
pub fn unpriced(module: &Module, cost: &Cost, multiplicity: &[i64]) -> Columns {
    let mut targets: BTreeMap<Box<[u8]>, (i64, i64, Row)> = BTreeMap::new();
    let is_unknown = |row: &Row| {
        cost.provenance[row.0 as usize] == Provenance::Unknown
            && module.opcode(*row) == Opcode::CustomCall
    };
    for row in module.rows().filter(is_unknown) {
        let target = custom_call_target(module, row).unwrap_or_default();
        let entry = targets.entry(target.as_ref().into()).or_insert((0, 0, row));
        entry.0 += 1;
        let runs = multiplicity.get(row.0 as usize).copied().unwrap_or(0);
        entry.1 = entry.1.saturating_add(runs.max(0));
    }
    let mut table = Columns::default();
    table.texts(Field::name("target", "The target of the calls.").nullable(), targets.keys());
    table.numbers(common::instructions(), targets.values().map(|entry| entry.0));
    let field = Field::count("executions", "Calls per step.").summed().label("calls");
    table.numbers(field, targets.values().map(|entry| entry.1));
    let first = common::instruction().renamed("instruction", "The row number of the first call.");
    table.rows(first, targets.values().map(|entry| entry.2));
    table
}

/// One row per memory space.
pub fn memory_spaces(module: &Module, cost: &Cost) -> Columns {
    let spaces = cost.memory_spaces(module);
    let mut table = Columns::default();
    let doc = "The memory space of layouts, S(n); 0 is HBM.";
    let field = Field::index("memory_space", doc);
    table.numbers(field, spaces.iter().map(|space| i64::from(space.0)));
    let field = Field::bytes("bytes_read", "Bytes read from the memory space.").summed();
    table.numbers(field, spaces.iter().map(|space| narrow(space.1)));
    let field = Field::bytes("bytes_written", "Bytes written to the memory space.").summed();
    table.numbers(field, spaces.iter().map(|space| narrow(space.2)));
    table
}

/// One row per rule by which executed costs differ from XLA's.
pub fn departures(departures: &[(&Departure, u64)]) -> Columns {
    let each = || departures.iter();
    let mut table = Columns::default();
    table.texts(Field::word("rule", "The rule."), each().map(|(rule, _)| rule.rule));
    table.texts(Field::text("xla", "How XLA counts it."), each().map(|(rule, _)| rule.xla));
    let field = Field::text("executed", "How hlofast counts it.");
    table.texts(field, each().map(|(rule, _)| rule.executed));
    table.numbers(common::instructions(), each().map(|(_, count)| *count as i64));
    table
}
