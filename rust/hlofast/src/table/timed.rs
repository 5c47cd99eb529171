//! The tables of modelled time: collectives, tracks of the schedule, and loops of the schedule.

use super::{Columns, Field, common, number};
use crate::comms::Collective;
use crate::ir::Module;
use crate::time::{Communication, Time};
use crate::trace::{ShownLoop, Track};

/// One row per collective: its time and its exposed time. `multiplicity` has a value for each row.
pub fn communications(
    module: &Module,
    time: &Time,
    collectives: &[Collective],
    multiplicity: &[i64],
) -> Columns {
    let each = || collectives.iter();
    let estimates = || time.communications.iter();
    let mut table = Columns::default();
    let doc = "The scheduled row: the collective, or the fusion or call that contains it.";
    table.rows(common::instruction().renamed("instruction", doc), each().map(|c| c.outer));
    table.texts(common::name(), each().map(|c| module.instruction_name(c.outer)));
    let field = Field::name("collective", "The name of the collective itself.");
    table.texts(field, each().map(|c| module.instruction_name(c.row)));
    let field = Field::word("kind", "The kind of collective: all-reduce, all-gather and so on.");
    table.texts(field, each().map(|c| c.kind.as_str()));
    table.texts(common::axes(), estimates().map(|c| &c.axes));
    let field = Field::bytes("payload", "Bytes of the whole array.").nullable();
    table.numbers(field, each().map(|c| number(c.payload())));
    table.numbers(common::group_size(), each().map(|c| number(c.group_size)));
    let is_sized = |c: &Communication| c.missing.is_none() || c.estimate.wire_bytes > 0.0;
    let wire = |c: &Communication| if is_sized(c) { c.estimate.wire_bytes } else { f64::NAN };
    table.reals(common::wire_bytes().nullable(), estimates().map(wire));
    let mut add = |field: Field, of: fn(&Communication) -> f64| {
        let known = |c: &Communication| if c.missing.is_some() { f64::NAN } else { of(c) };
        table.reals(field.nullable(), estimates().map(known));
    };
    add(Field::seconds("seconds", "Time of one execution."), |c| c.estimate.seconds);
    let doc = "Latency: the part of the time that does not depend on the size.";
    add(Field::seconds("alpha_seconds", doc).label("latency s"), |c| c.estimate.latency);
    let doc = "Bandwidth: wire bytes divided by the rest of the time, in bytes per second.";
    add(Field::number("bytes_per_second", doc).label("B/s"), |c| c.estimate.bandwidth);
    let waited = time.simulation.collectives.iter().zip(estimates());
    let waited = waited.map(|(entry, c)| if c.missing.is_some() { f64::NAN } else { entry.1 });
    let doc = "Exposed time of one execution, for which the step waits.";
    table.reals(Field::seconds("exposed_seconds", doc).nullable().label("exposed s"), waited);
    let doc = "Part of the exposed time in which concurrent loops used the links of the \
        collective.";
    let queued = time.simulation.queued.iter().copied();
    table.reals(Field::seconds("queued_seconds", doc).nullable().label("queued s"), queued);
    let runs = |c: &Collective| multiplicity.get(c.outer.0 as usize).copied().unwrap_or(-1);
    table.numbers(common::multiplicity(), each().map(runs));
    let field =
        Field::text("unknown", "The missing figure, without which the time is unknown.").nullable();
    table.texts(field, estimates().map(|c| c.missing.unwrap_or("")));
    table
}

/// One row per track of a timeline.
pub fn tracks(tracks: &[Track]) -> Columns {
    let each = || tracks.iter();
    let mut table = Columns::default();
    table.texts(Field::name("track", "The track."), each().map(|track| &track.name));
    let field = Field::count("slices", "Slices on the track.").summed();
    table.numbers(field, each().map(|track| track.slices as i64));
    let field = Field::seconds("seconds", "Total time of the slices.").summed();
    table.reals(field, each().map(|track| track.seconds));
    let field = Field::count("left_out", "Slices of iterations that are not shown.").summed();
    table.numbers(field.label("left out"), each().map(|track| track.left_out as i64));
    let field =
        Field::seconds("left_out_seconds", "Time of the slices that are not shown.").summed();
    table.reals(field.label("left out s"), each().map(|track| track.left_out_seconds));
    table
}

/// One row per loop of a timeline.
pub fn shown_loops(module: &Module, loops: &[ShownLoop]) -> Columns {
    let each = || loops.iter();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|shown| shown.row));
    table.texts(common::name(), each().map(|shown| module.instruction_name(shown.row)));
    let field = Field::count("trip_count", "Iterations of the loop.").nullable();
    table.numbers(field, each().map(|shown| number(shown.trip_count)));
    let field = Field::count("shown", "Iterations that the timeline shows.");
    table.numbers(field, each().map(|shown| i64::try_from(shown.shown).unwrap_or(i64::MAX)));
    table
}
