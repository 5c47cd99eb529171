//! The tables of measured time: runs of a program, collectives, events without an instruction.

use super::{Columns, Field, Sent, common, number};
use crate::comms::Collective;
use crate::ir::Module;
use crate::measure::{Measured, Parts, Run};
use crate::profile::Profile;

/// One row per run and device.
pub fn runs(measured: &Measured, profile: &Profile) -> Columns {
    let each = || measured.runs.iter();
    let device = |run: &Run| profile.devices.get(run.device as usize);
    let mut table = Columns::default();
    let host = |run: &Run| {
        let host = device(run).and_then(|device| profile.hosts.get(device.host as usize));
        host.map_or("", |name| &**name)
    };
    table.texts(Field::name("host", "The host.").nullable(), each().map(host));
    let name = |run: &Run| device(run).map_or("", |device| &*device.name);
    table.texts(Field::name("device", "The device."), each().map(name));
    let mut last = (u32::MAX, 0);
    let numbers = each().map(|run| {
        last = if last.0 == run.device { (last.0, last.1 + 1) } else { (run.device, 0) };
        last.1
    });
    let field = Field::index("run", "The number of the run on its device, in order of time.");
    table.numbers(field, numbers);
    let doc = "Start of the run, on the clock of the device's host.";
    let start = |run: &Run| run.start_ps as f64 * 1e-12;
    table.reals(Field::seconds("start_seconds", doc).label("start s"), each().map(start));
    let mut add = |field: Field, of: fn(&Parts) -> f64| {
        table.reals(field, each().map(|run| of(&run.parts)));
    };
    add(Field::seconds("seconds", "From the first event of the run to the last."), |p| p.duration);
    let doc = "At least one instruction computes.";
    add(Field::seconds("compute_seconds", doc).label("compute s"), |p| p.compute);
    let doc = "At least one collective runs.";
    add(Field::seconds("communication_seconds", doc).label("communication s"), |p| p.communication);
    let doc = "A collective runs and nothing computes.";
    add(Field::seconds("exposed_seconds", doc).label("exposed s"), |p| p.exposed);
    let doc = "A copy runs or is waited for, and nothing computes or communicates.";
    add(Field::seconds("copy_seconds", doc).label("copies s"), |p| p.copies);
    let doc = "Only a loop, conditional or call runs, between the instructions in it.";
    add(Field::seconds("other_seconds", doc).label("other s"), |p| p.other);
    add(Field::seconds("idle_seconds", "Nothing runs.").label("idle s"), |p| p.idle);
    let doc = "From the end of the previous run on the device to the start of this one.";
    let gap = |run: &Run| run.gap_ps.map_or(f64::NAN, |gap| gap as f64 * 1e-12);
    let field = Field::seconds("gap_seconds", doc).nullable().label("gap s");
    table.reals(field, each().map(gap));
    let mut is_typical = vec![false; measured.runs.len()];
    for run in &measured.typical {
        is_typical[*run as usize] = true;
    }
    let doc = "Whether the run is the one of median length on its device.";
    table.flags(Field::flag("is_median", doc).label("median"), is_typical.into_iter());
    table
}

/// One row per name of events in runs that belong to no instruction, longest first.
pub fn unjoined(measured: &Measured) -> Columns {
    let each = || measured.unjoined.iter();
    let mut table = Columns::default();
    table.texts(Field::name("label", "The name of the events."), each().map(|e| &e.label));
    let field = Field::count("events", "Number of events, over all runs and devices.").summed();
    table.numbers(field, each().map(|entry| entry.events as i64));
    let field = Field::seconds("seconds", "Time of the events, over all runs and devices.");
    table.reals(field.summed(), each().map(|entry| entry.seconds));
    table
}

/// One row per collective with its measured time per step; unknown where the profile has no event
/// of it.
pub fn measured_collectives(module: &Module, sent: &Sent, measured: &Measured) -> Columns {
    let each = || sent.collectives.collectives.iter();
    let mut table = Columns::default();
    let doc = "The scheduled row: the collective, or the fusion or call that contains it.";
    table.rows(common::instruction().renamed("instruction", doc), each().map(|c| c.outer));
    table.texts(common::name(), each().map(|c| module.instruction_name(c.outer)));
    let field = Field::word("kind", "The kind of collective: all-reduce, all-gather and so on.");
    table.texts(field, each().map(|c| c.kind.as_str()));
    table.texts(common::axes(), sent.along.iter().map(|along| &along.axes));
    let field = Field::bytes("payload", "Bytes of the whole array.").nullable();
    table.numbers(field, each().map(|c| number(c.payload())));
    let numbers = 0..sent.collectives.collectives.len();
    table.numbers(common::wire_bytes(), numbers.map(|at| sent.wire_bytes(at)));
    let calls = |c: &Collective| {
        let members = c.members.start as usize..c.members.end as usize;
        let members = sent.collectives.members.get(members).unwrap_or_default();
        let rows = members.iter().chain([&c.row, &c.outer]);
        let calls = rows.filter_map(|row| measured.rows.calls.get(row.0 as usize));
        // NaN where a row has no event; the start and the done instruction may both have one.
        calls.copied().fold(f64::NAN, f64::max)
    };
    let field = Field::number("calls", "Calls in the step: events of one of its instructions.");
    table.reals(field.nullable(), each().map(calls));
    let times = || measured.collectives.iter();
    let doc = "Measured seconds of all calls in the step, from start to end.";
    let field = Field::seconds("measured_seconds", doc).label("measured s");
    table.reals(field.nullable().summed(), times().map(|pair| pair.0));
    let doc = "The part of them in which nothing computes.";
    let field = Field::seconds("measured_exposed_seconds", doc).label("measured exposed s");
    table.reals(field.nullable().summed(), times().map(|pair| pair.1));
    table
}
