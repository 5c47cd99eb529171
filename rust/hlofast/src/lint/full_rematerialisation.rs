//! `full-rematerialisation`: an array made whole on every device only to be cut again.
//!
//! XLA does this where it finds no way from one sharding to another ("involuntary full
//! rematerialization"): it gathers, then each device takes the part it needs. All uses of the
//! gathered array are then dynamic-slices whose start depends on the device.

use super::finding::{Code, Measure};
use super::missed_reduce_scatter::{results, same_parts, slices};
use super::offsets::{Device, Offsets};
use super::program::{Program, bytes, counted};
use super::site::{Rule, Site};
use crate::comms::{Collective, CollectiveKind};
use crate::ir::Row;

pub(super) const RULE: Rule = Rule {
    code: Code::FullRematerialisation,
    measure: Measure::Payload,
    find,
    message,
    remedy: "give producer and consumer shardings between which XLA can move by all-to-all or \
             collective-permute: with_sharding_constraint to a spec that keeps the axis on one \
             dimension, or an intermediate constraint that changes one dimension at a time",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let offsets = Offsets::new(program.module);
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        if collective.kind != CollectiveKind::AllGather {
            continue;
        }
        for result in results(program.module, collective) {
            sites.extend(cut_again(program, &offsets, number, collective, result));
        }
    }
}

/// How many devices are asked for the part they take.
const MOST_DEVICES: u64 = 64;

fn cut_again(
    program: &Program<'_>,
    offsets: &Offsets<'_>,
    number: usize,
    collective: &Collective,
    result: Row,
) -> Option<Site> {
    let size = collective.group_size.filter(|size| *size > 1)?;
    let slices = slices(&program.walk, result)?;
    let whole = program.elements(result)?;
    let devices: Vec<Device> = (0..program.device_count()?.min(MOST_DEVICES))
        .map(|device| program.place_of(device))
        .map(|(partition, replica)| Device { partition, replica })
        .collect();
    let mut largest = 0;
    for used in &slices {
        let part = program.elements(used.row)?;
        if part >= whole {
            return None;
        }
        largest = largest.max(program.bytes(used.row));
        same_parts(offsets, std::slice::from_ref(used), &devices)?;
    }
    let runs = program.runs_of(collective);
    let live = program.bytes(result);
    let mut site = Site::new(collective.row)
        .runs(&runs)
        .sum("payload_bytes", runs.times(live)?)
        .sum("wire_bytes", runs.times(CollectiveKind::AllGather.ring_wire_bytes(live, size))?)
        .sum("live_bytes", live)
        .sum("live_bytes_after", largest)
        .common("group_size", size)
        .of(number);
    site.evidence.extend(slices.iter().map(|used| *used.calls.first().unwrap_or(&used.row)));
    site.bytes = runs.times(live);
    site.key = u64::from(collective.groups?);
    Some(site)
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let along = site.collective(program);
    format!(
        "{} over {}, but each device then takes only a part of it again, {} of {}: {} are \
         gathered in a step, {} around the ring",
        counted(site.places, "array is gathered", "arrays are gathered"),
        along.map(|collective| program.along(collective)).unwrap_or_default(),
        bytes(site.figure("live_bytes_after")),
        bytes(site.figure("live_bytes")),
        bytes(site.figure("payload_bytes")),
        bytes(site.figure("wire_bytes")),
    )
}
