//! `missed-reduce-scatter`: an all-reduce of which each device uses only its own slice.
//!
//! An all-reduce is a reduce-scatter followed by an all-gather. Where all uses of the result are
//! dynamic-slices whose start differs between the devices of a group, the all-gather is wasted.

use super::cut::{Cut, same_parts};
use super::finding::Measure;
use super::offsets::{Offsets, devices};
use super::program::{Program, bytes, counted};
use super::site::{Rule, Site};
use crate::Provenance;
use crate::comms::CollectiveKind;

pub(super) const RULE: Rule = Rule {
    code: "missed-reduce-scatter",
    what: "an all-reduce of which each device uses only its own slice",
    measure: Measure::Wire,
    find,
    message,
    remedy: "constrain the result to the sharding of its consumers where it is computed \
             (with_sharding_constraint on the output of the matmul), or use psum_scatter instead \
             of psum in shard_map, so that XLA emits a reduce-scatter",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let offsets = Offsets::new(program.module);
    let cuts = Cut::all(program, CollectiveKind::AllReduce);
    sites.extend(cuts.filter_map(|cut| missed(program, &offsets, &cut)));
}

fn missed(program: &Program<'_>, offsets: &Offsets<'_>, cut: &Cut<'_>) -> Option<Site> {
    let size = cut.group_size;
    for used in &cut.slices {
        if program.elements(used.row)?.checked_mul(size)? != cut.elements {
            return None;
        }
    }
    let devices = devices(program, program.members(cut.collective)?.iter().copied());
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
    site.provenance = Provenance::Modelled;
    Some(site)
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
