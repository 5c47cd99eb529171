//! `missed-reduce-scatter`: an all-reduce of which each device uses only its own slice.
//!
//! An all-reduce is a reduce-scatter followed by an all-gather. Where all uses of the result are
//! dynamic-slices whose start differs between the devices of a group, the all-gather is wasted.
//!
//! Constraints do not help: a sharding constraint before a matmul constrains the gradient to the
//! same sharding, and where the partitioner does write a reduction and a slice, the compiler makes a
//! reduce-scatter of them if it can. On TPUs it does not in two cases, even for a psum_scatter
//! (libtpu 0.0.42 for v5e, v6e and v5p; `tests/oracle/judge_advice.py` compiles them):
//!
//! * The array has a dimension of size 1. Without the dimension there is a reduce-scatter.
//! * The group spans several dimensions of the torus. The all-reduce then uses the links of all of
//!   them, a reduce-scatter only those of one, and takes as long as the all-reduce. There is nothing
//!   to gain, so such reductions are not reported, nor others whose cause on TPUs is unknown.
//!
//! XLA for CPUs makes no reduce-scatter at all, so what it compiled is left out: of the same program
//! XLA for TPUs makes them by itself (`tests/fixtures/make_planted.py` compiles both).

use super::cut::{Cut, same_parts};
use super::finding::Measure;
use super::program::{Program, bytes, counted};
use super::site::{Rule, Site};
use crate::Provenance;
use crate::comms::CollectiveKind;
use crate::comms::{Offsets, devices};
use crate::cost::Backend;
use crate::ir::Row;
use crate::summary;
use memchr::memmem;

pub(super) const RULE: Rule = Rule {
    code: "missed-reduce-scatter",
    what: "an all-reduce where each device uses only its own slice of the result",
    measure: Measure::Wire,
    find,
    message,
    remedy: "compute the matmul in shard_map and reduce its result with jax.lax.psum_scatter(..., \
             tiled=True) instead of psum; for the gradient of an array that a matmul reads in full, \
             gather the array in shard_map with jax.lax.all_gather(..., tiled=True), whose gradient \
             is a psum_scatter",
};

/// The remedy for arrays with a dimension of size 1 on TPUs.
const SQUEEZE: &str = "the TPU compiler turns a reduce-scatter of an array with a dimension of \
                       size 1, such as a batch of 1 per device, into an all-reduce and a slice: \
                       run the matmul in shard_map without this dimension (x[0]) and reduce its \
                       result with jax.lax.psum_scatter(..., tiled=True), or gather its operand \
                       with jax.lax.all_gather(..., tiled=True), whose gradient is a \
                       psum_scatter; or make the dimension larger than 1 on each device";

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let offsets = Offsets::new(program.module);
    let cuts = Cut::all(program, CollectiveKind::AllReduce);
    let mut missed = cuts.filter_map(|cut| missed(program, &offsets, &cut)).peekable();
    if missed.peek().is_some() && !is_compiled_for_cpu(program) {
        sites.extend(missed);
    }
}

fn is_compiled_for_cpu(program: &Program<'_>) -> bool {
    program.cost.backend == Backend::Cpu && program.compiled_for() == Some(summary::Backend::Cpu)
}

fn missed(program: &Program<'_>, offsets: &Offsets<'_>, cut: &Cut<'_>) -> Option<Site> {
    let size = cut.group_size;
    for used in &cut.slices {
        if program.elements(used.row)?.checked_mul(size)? != cut.elements {
            return None;
        }
    }
    let is_tpu = program.cost.backend == Backend::Tpu;
    let has_size_1 = has_size_1(program, cut.result);
    if is_tpu && (!has_size_1 || spans_torus(program, cut.collective.row)) {
        return None;
    }
    let devices =
        devices(&program.collectives.context, program.members(cut.collective)?.iter().copied());
    let (_, mut starts) = same_parts(offsets, &cut.slices, &devices)?;
    let count = starts.len();
    starts.sort_unstable();
    starts.dedup();
    if starts.len() != count {
        return None;
    }
    let runs = program.runs_of(cut.collective);
    let live = program.bytes(cut.result);
    let wire = CollectiveKind::AllReduce.ring_wire_bytes(live, size);
    let after = CollectiveKind::ReduceScatter.ring_wire_bytes(live, size);
    let mut site = cut
        .site(program)?
        .sum("wire_bytes", runs.times(wire)?)
        .sum("wire_bytes_after", runs.times(after)?)
        .sum("live_bytes", live)
        .sum("live_bytes_after", live / size);
    site.bytes = runs.times(wire.saturating_sub(after));
    if is_tpu {
        site.remedy = Some(SQUEEZE);
        site.key |= 1 << 32;
    }
    site.provenance = Provenance::Modelled;
    Some(site)
}

/// Whether libtpu chose an algorithm for several dimensions of the torus.
fn spans_torus(program: &Program<'_>, row: Row) -> bool {
    let config = program.module.attribute_bytes(row, "backend_config").unwrap_or_default();
    [&b"StrategyND"[..], b"NDRingStrategy"].iter().any(|name| memmem::find(config, name).is_some())
}

fn has_size_1(program: &Program<'_>, row: Row) -> bool {
    let array = program.module.shapes().array(program.module.shape(row));
    array.is_some_and(|array| array.dimensions().any(|dimension| dimension.bound() == Some(1)))
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let figure = |name| bytes(site.figure(name));
    let along = site.collective(program);
    format!(
        "{} {}, but each device uses only its own slice of the result: a reduce-scatter sends {} \
         on the wire per step instead of {} and leaves {} in memory instead of {}",
        counted(site.places, "array is all-reduced", "arrays are all-reduced"),
        along.map(|collective| program.along(collective)).unwrap_or_default(),
        figure("wire_bytes_after"),
        figure("wire_bytes"),
        figure("live_bytes_after"),
        figure("live_bytes"),
    )
}
