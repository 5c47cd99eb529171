//! `full-rematerialisation`: an array gathered in full on every device and then sliced.
//!
//! XLA gathers the array when it cannot convert one sharding into another directly ("involuntary
//! full rematerialization"); each device then takes the part it needs. All uses of the gathered
//! array are then dynamic-slices whose start depends on the device.

use super::cut::{Cut, same_parts};
use super::finding::Measure;
use super::offsets::{Offsets, devices};
use super::program::{Program, bytes, counted};
use super::site::{Rule, Site};
use crate::comms::CollectiveKind;

pub(super) const RULE: Rule = Rule {
    code: "full-rematerialisation",
    what: "arrays gathered in full and then sliced",
    measure: Measure::Payload,
    find,
    message,
    remedy: "choose producer and consumer shardings that XLA can convert by all-to-all or \
             collective-permute: with_sharding_constraint with a spec that keeps the mesh axis on \
             one dimension, or an intermediate constraint that changes one dimension at a time",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let offsets = Offsets::new(program.module);
    let cuts = Cut::all(program, CollectiveKind::AllGather);
    sites.extend(cuts.filter_map(|cut| cut_again(program, &offsets, &cut)));
}

fn cut_again(program: &Program<'_>, offsets: &Offsets<'_>, cut: &Cut<'_>) -> Option<Site> {
    let devices = devices(program, 0..program.device_count()?);
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
    let wire = CollectiveKind::AllGather.ring_wire_bytes(live, cut.group_size);
    let mut site = cut
        .site(program)?
        .sum("payload_bytes", runs.times(live)?)
        .sum("wire_bytes", runs.times(wire)?)
        .sum("live_bytes", live)
        .sum("live_bytes_after", largest);
    site.bytes = runs.times(live);
    Some(site)
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let along = site.collective(program);
    format!(
        "{} in full {}, but each device then uses only a slice, {} of {}: {} of payload gathered \
         per step, {} on the wire",
        counted(site.places, "array is gathered", "arrays are gathered"),
        along.map(|collective| program.along(collective)).unwrap_or_default(),
        bytes(site.figure("live_bytes_after")),
        bytes(site.figure("live_bytes")),
        bytes(site.figure("payload_bytes")),
        bytes(site.figure("wire_bytes")),
    )
}
