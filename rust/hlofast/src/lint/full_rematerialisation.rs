//! `full-rematerialisation`: an array gathered in full on every device and then sliced.
//!
//! XLA gathers the array when it cannot convert one sharding into another directly ("involuntary
//! full rematerialization"); each device then takes the part it needs. All uses of the gathered
//! array are then dynamic-slices whose start depends on the device.
//!
//! A constraint in between that has the axes of both shardings avoids the gather in full: devices
//! first slice what they hold, or exchange parts by an all-to-all, and then gather only the part that
//! they need (`tests/oracle/judge_advice.py` compiles both for TPUs and CPUs).
//!
//! Where each device takes back its own part, nothing needs to be sent: a constraint that leaves out axes stands
//! between two shardings that have them. The compiler may drop its gather of the value but not that of the gradient.
//!
//! Activations that are gathered along the axis of the batch are left to `batch-gathered`. Gathers for
//! matmuls of the backward pass, and gathers without a name in a program with names, are left out:
//! partitioners make them for the shards of a weight's gradient, also in reductions over several slices,
//! where no constraint of the program can stand in between.

use super::batch_gathered;
use super::cut::{Cut, gathered_dimension, same_parts};
use super::finding::Measure;
use super::program::{Program, bytes, counted};
use super::site::{Rule, Site};
use crate::comms::CollectiveKind;
use crate::comms::{Offsets, devices};
use crate::flow::Phase;
use crate::flow::walk::Use;
use crate::ir::Row;

pub(super) const RULE: Rule = Rule {
    code: "full-rematerialisation",
    what: "arrays gathered in full and then sliced",
    measure: Measure::Payload,
    find,
    message,
    remedy: "add a constraint between the two shardings that has both the old and the new axis: \
             between P('a', None) and P(None, 'b'), use jax.lax.with_sharding_constraint with \
             P('a', 'b'); each device then gathers only the slice that it needs; or give producer \
             and consumer the same sharding",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let offsets = Offsets::new(program.module);
    let cuts = Cut::all(program, CollectiveKind::AllGather);
    let cuts = cuts.filter(|cut| {
        !is_for_gradient(program, cut) && batch_gathered::gathered(program, cut.number) == 0
    });
    sites.extend(cuts.filter_map(|cut| cut_again(program, &offsets, &cut)));
}

/// Whether the gather is one for a matmul of the backward pass or for a sum of gradients, which no line of
/// the program computes, or has no name where others have.
fn is_for_gradient(program: &Program<'_>, cut: &Cut<'_>) -> bool {
    let Some(name) = program.op_name(cut.collective.row) else { return program.has_phases() };
    let is_backward = program.runs_of(cut.collective).phase == Phase::Backward;
    // JAX names sums of gradients `add_any`.
    is_backward && (name.ends_with(b"/dot_general") || name.ends_with(b"/add_any"))
}

fn cut_again(program: &Program<'_>, offsets: &Offsets<'_>, cut: &Cut<'_>) -> Option<Site> {
    let devices = devices(&program.collectives.context, 0..program.device_count()?);
    let mut largest = 0;
    for used in &cut.slices {
        if program.elements(used.row)? >= cut.elements {
            return None;
        }
        largest = largest.max(program.bytes(used.row));
        same_parts(offsets, std::slice::from_ref(used), &devices)?;
    }
    let runs = program.runs_of(cut.collective);
    let live = program.bytes(cut.result);
    let is_own = takes_back(program, offsets, cut);
    let after = if is_own { 0 } else { after(program, offsets, cut, live, largest) };
    let wire = CollectiveKind::AllGather.ring_wire_bytes(live, cut.group_size);
    let mut site = cut
        .site(program)?
        .sum("payload_bytes", runs.times(live)?)
        .sum("payload_bytes_after", runs.times(after)?)
        .sum("wire_bytes", runs.times(wire)?)
        .sum("live_bytes", live)
        .sum("live_bytes_after", largest);
    site.bytes = runs.times(live.saturating_sub(after));
    if is_own {
        site.key |= OWN;
        site.remedy = Some(
            "give the value one sharding: a constraint on the value, which JAX also applies to its gradient, leaves \
             out these axes while those before and after it have them: add the axes or drop the constraint",
        );
    }
    Some(site)
}

/// The part of the key of arrays of which each device takes back its own part.
const OWN: u64 = 1 << 32;

/// Whether each device of every group takes back the part that it gave.
fn takes_back(program: &Program<'_>, offsets: &Offsets<'_>, cut: &Cut<'_>) -> bool {
    let groups = program.groups(cut.collective).unwrap_or_default();
    let is_own = |group: &Vec<u64>| takes_back_within(program, offsets, cut, group) == Some(true);
    !groups.is_empty() && groups.iter().all(is_own)
}

/// Like `takes_back`, of the devices of one group.
fn takes_back_within(
    program: &Program<'_>,
    offsets: &Offsets<'_>,
    cut: &Cut<'_>,
    group: &[u64],
) -> Option<bool> {
    let module = program.module;
    let members = devices(&program.collectives.context, group.iter().copied());
    let (dimension, starts) = same_parts(offsets, &cut.slices, &members)?;
    let size =
        |row: Row| module.shapes().array(module.shape(row))?.dimensions().nth(dimension)?.bound();
    let whole = size(cut.result)?;
    let part = whole / i64::try_from(starts.len()).ok().filter(|count| *count > 0)?;
    let is_alike = |used: &Use| {
        let before = module.operands(used.row).first().and_then(|row| size(Row(*row)));
        before == Some(whole) && size(used.row) == Some(part)
    };
    let in_order = (0..).zip(&starts).all(|(at, start)| *start == i128::from(part) * at);
    let is_same = gathered_dimension(module, cut.collective) == Some(dimension);
    Some(is_same && in_order && cut.slices.iter().all(is_alike))
}

/// Payload of what is left when the new axes are added before the old axes go: an all-to-all of a
/// device's part, if devices of one group need different slices, and an all-gather of the slice, if
/// several need the same slice.
fn after(
    program: &Program<'_>,
    offsets: &Offsets<'_>,
    cut: &Cut<'_>,
    live: u64,
    largest: u64,
) -> u64 {
    let slices = || {
        let members =
            devices(&program.collectives.context, program.members(cut.collective)?.iter().copied());
        let (_, mut starts) = same_parts(offsets, cut.slices.get(..1)?, &members)?;
        starts.sort_unstable();
        starts.dedup();
        u64::try_from(starts.len()).ok()
    };
    let slices = slices().unwrap_or(1).max(1);
    // Axes along which the group does not differ cut the part before it is sent.
    let cut_before = (live / largest.max(1) / slices).max(1);
    let exchanged = if slices > 1 { live / cut.group_size / cut_before } else { 0 };
    let gathered = if slices < cut.group_size { largest } else { 0 };
    exchanged.saturating_add(gathered)
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let along = site.collective(program);
    let (used, rest) = match site.key & OWN {
        0 => {
            let enough = bytes(site.figure("payload_bytes_after"));
            ("uses only a slice", format!("; {enough} are enough"))
        }
        _ => ("takes back the part that it gave", ", for nothing".to_owned()),
    };
    format!(
        "{} in full {}, but each device then {used}, {} of {}: {} of payload gathered per step, \
         {} on the wire{rest}",
        counted(site.places, "array is gathered", "arrays are gathered"),
        along.map(|collective| program.along(collective)).unwrap_or_default(),
        bytes(site.figure("live_bytes_after")),
        bytes(site.figure("live_bytes")),
        bytes(site.figure("payload_bytes")),
        bytes(site.figure("wire_bytes")),
    )
}
