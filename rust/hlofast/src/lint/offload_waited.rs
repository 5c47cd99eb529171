//! `offload-waited`: arrays that are copied to host memory and back with no work meanwhile.
//!
//! The array takes the same device memory again at once, and the step waits for the copies, even if
//! the scheduler lets other work run before the second one ends. A copy whose array starts back much later,
//! such as a residual's, is what offloading is for; so is the copy of the last layer's residual, which
//! starts back at once, beside those of the layers before.

use super::finding::Measure;
use super::program::{Program, bytes, counted, grouped};
use super::site::{Rule, Site};
use crate::comms::LoopPlaces;
use crate::ir::{ComputationId, HOST_SPACE, Module, Opcode, Row, ShapeId};

pub(super) const RULE: Rule = Rule {
    code: "offload-waited",
    what: "arrays copied to host memory and back without work in between",
    measure: Measure::Traffic,
    find,
    message,
    remedy: "keep the array on the device: remove the pair of jax.device_put, or offload only what \
             is needed again after other layers have run",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    if !module.is_scheduled() {
        return;
    }
    let places = LoopPlaces::new(module, program.cost);
    // Computations and shapes of arrays that stay away while other work runs.
    let mut stay: Vec<(ComputationId, ShapeId)> = Vec::new();
    let from = sites.len();
    for away in module.rows().filter(|row| module.opcode(*row) == Opcode::CopyStart) {
        let (Some(source), Some(target)) = ends(module, away) else { continue };
        let size = target.bytes;
        if source.is_host || !target.is_host {
            continue;
        }
        let Some((there, back, end)) = back(module, away) else { continue };
        let Some(overlap) = places.overlap(away, back) else { continue };
        let is_hidden =
            |flops: i128| flops as f64 >= program.options.overlap_flops_per_byte * size as f64;
        if is_hidden(overlap.flops) {
            stay.push(of(module, there));
            continue;
        }
        let runs = program.runs(away);
        let mut site = Site::new(away).runs(&runs);
        site.evidence.extend([back, end]);
        site.bytes = runs.times(size).and_then(|size| size.checked_mul(2));
        let is_waited = |start: Row, end: Row| {
            places.overlap(start, end).is_none_or(|overlap| !is_hidden(overlap.flops))
        };
        let waits = [(away, there), (back, end)].into_iter().filter(|(a, b)| is_waited(*a, *b));
        let waited = size.saturating_mul(waits.count() as u64);
        site.seconds = runs.times(waited).and_then(|bytes| program.host_seconds(bytes));
        site = site.sum("overlapped_flops", u64::try_from(overlap.flops).unwrap_or(0));
        sites.push(site);
    }
    stay.sort_unstable();
    let mut number = 0;
    sites.retain(|site| {
        number += 1;
        let there = site.subjects.first().and_then(|away| done(module, *away));
        number <= from || there.is_none_or(|there| stay.binary_search(&of(module, there)).is_err())
    });
}

fn of(module: &Module, row: Row) -> (ComputationId, ShapeId) {
    (module.computation_of(row), module.shape(row))
}

/// One end of a copy.
struct End {
    /// Whether the array is in host memory.
    is_host: bool,
    bytes: u64,
}

/// Source and target of copy-start `row`.
fn ends(module: &Module, row: Row) -> (Option<End>, Option<End>) {
    let end = |shape| {
        let array = module.shapes().array(shape)?;
        let space = array.layout.map_or(0, |layout| layout.memory_space);
        Some(End { is_host: space == HOST_SPACE, bytes: array.logical_bytes()? })
    };
    let source = module.operands(row).first().map(|row| module.shape(Row(*row)));
    let target = module.shapes().leaves(module.shape(row)).next();
    (source.and_then(end), target.and_then(end))
}

fn done(module: &Module, start: Row) -> Option<Row> {
    let mut users = module.users().get(start.0).iter().map(|row| Row(*row));
    users.find(|row| module.opcode(*row) == Opcode::CopyDone)
}

/// The end of `away`, the copy that brings its array back, and the end of that.
fn back(module: &Module, away: Row) -> Option<(Row, Row, Row)> {
    let there = done(module, away)?;
    let users = module.users().get(there.0).iter().map(|row| Row(*row));
    let mut starts = users.filter(|row| {
        let ends = ends(module, *row);
        module.opcode(*row) == Opcode::CopyStart
            && ends.0.is_some_and(|end| end.is_host)
            && ends.1.is_some_and(|end| !end.is_host)
    });
    let back = starts.next()?;
    Some((there, back, done(module, back)?))
}

fn message(_: &Program<'_>, site: &Site) -> String {
    let meanwhile = match site.figure("overlapped_flops") {
        0 => "no computation".to_owned(),
        1 => "only 1 FLOP".to_owned(),
        flops => format!("only {} FLOPs", grouped(flops)),
    };
    format!(
        "{} copied to host memory and back with {meanwhile} in between: {} between host and \
         device per step",
        counted(site.places, "array is", "arrays are"),
        bytes(site.bytes.unwrap_or(0)),
    )
}
