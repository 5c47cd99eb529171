//! `missed-reduce-scatter`: an all-reduce of whose result each device uses only its own part.
//!
//! An all-reduce is a reduce-scatter and an all-gather. Where all uses of the result are
//! dynamic-slices whose start differs between the devices of a group, the second half is sent for
//! nothing.

use super::finding::{Code, Measure};
use super::offsets::{Device, Offsets, devices};
use super::program::{Program, bytes, counted};
use super::site::{Rule, Site};
use super::walk::{Trail, Use, Walk, conversions, uses};
use crate::Provenance;
use crate::comms::{Collective, CollectiveKind};
use crate::ir::{Module, Opcode, Row};

pub(super) const RULE: Rule = Rule {
    code: Code::MissedReduceScatter,
    measure: Measure::Wire,
    find,
    message,
    remedy: "constrain the result to the sharding of what uses it directly where it is made \
             (with_sharding_constraint on the output of the product), or use psum_scatter instead \
             of psum in shard_map, so that XLA makes a reduce-scatter of it",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let offsets = Offsets::new(program.module);
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        if collective.kind != CollectiveKind::AllReduce {
            continue;
        }
        for result in results(program.module, collective) {
            sites.extend(missed(program, &offsets, number, collective, result));
        }
    }
}

/// The arrays that `collective` makes, in the computation it is scheduled in.
pub(super) fn results(module: &Module, collective: &Collective) -> Vec<Row> {
    let row = collective.done.unwrap_or(collective.outer);
    if module.shapes().tuple(module.shape(row)).is_none() {
        return vec![row];
    }
    let users = module.users().get(row.0).iter().map(|user| Row(*user));
    users.filter(|user| module.tuple_index(*user).is_some()).collect()
}

/// The dynamic-slices that are all that becomes of `row`.
pub(super) fn slices(walk: &Walk<'_>, row: Row) -> Option<Vec<Use>> {
    let is_slice =
        |used: &Use| used.operand == 0 && walk.module.opcode(used.row) == Opcode::DynamicSlice;
    uses(walk, row, conversions, is_slice).filter(|found| !found.is_empty())
}

/// Along which dimension, and at which places, all of `slices` cut on `devices`; None if they
/// differ or if that is not known.
pub(super) fn same_parts(
    offsets: &Offsets<'_>,
    slices: &[Use],
    devices: &[Device],
) -> Option<(usize, Vec<i128>)> {
    let mut parts =
        slices.iter().map(|used| offsets.parts(&Trail::within(used.row, &used.calls), devices));
    let first = parts.next()??;
    parts.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

fn missed(
    program: &Program<'_>,
    offsets: &Offsets<'_>,
    number: usize,
    collective: &Collective,
    result: Row,
) -> Option<Site> {
    let size = collective.group_size.filter(|size| *size > 1)?;
    let slices = slices(&program.walk, result)?;
    let whole = program.elements(result)?;
    for used in &slices {
        if program.elements(used.row)?.checked_mul(size)? != whole {
            return None;
        }
    }
    let devices = devices(program, program.members(collective)?);
    let (_, mut starts) = same_parts(offsets, &slices, &devices)?;
    let count = starts.len();
    starts.sort_unstable();
    starts.dedup();
    if starts.len() != count {
        return None;
    }
    let runs = program.runs_of(collective);
    let live = program.bytes(result);
    let wire = CollectiveKind::AllReduce.ring_wire_bytes(live, size);
    let after = CollectiveKind::ReduceScatter.ring_wire_bytes(live, size);
    let mut site = Site::new(collective.row)
        .runs(&runs)
        .sum("wire_bytes", runs.times(wire)?)
        .sum("wire_bytes_after", runs.times(after)?)
        .sum("live_bytes", live)
        .sum("live_bytes_after", live / size)
        .common("group_size", size)
        .of(number);
    site.evidence.extend(slices.iter().map(|used| *used.calls.first().unwrap_or(&used.row)));
    site.bytes = runs.times(wire.saturating_sub(after));
    site.provenance = Provenance::Modelled;
    site.key = u64::from(collective.groups?);
    Some(site)
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let figure = |name| bytes(site.figure(name));
    let along = site.collective(program);
    format!(
        "{} over {}, but each device uses only its own part of the result: a reduce-scatter sends \
         {} around the ring instead of {} and leaves {} instead of {}",
        counted(site.places, "array is all-reduced", "arrays are all-reduced"),
        along.map(|collective| program.along(collective)).unwrap_or_default(),
        figure("wire_bytes_after"),
        figure("wire_bytes"),
        figure("live_bytes_after"),
        figure("live_bytes"),
    )
}
