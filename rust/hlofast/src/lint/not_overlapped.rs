//! `not-overlapped`: asynchronous collectives between whose start and end nothing is computed.

use super::finding::Measure;
use super::program::{Program, bytes, counted, grouped};
use super::site::{Rule, Site};

pub(super) const RULE: Rule = Rule {
    code: "not-overlapped",
    what: "asynchronous collectives with nothing scheduled between start and end",
    measure: Measure::Payload,
    find,
    message,
    remedy: "give the scheduler independent work: check that what the collective needs is ready \
             early and that what uses its result can wait (no data dependence, no optimization \
             barrier in between), and that the latency-hiding scheduler is on; in a loop over \
             layers, gather the weights of the next layer while this one is computed",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    if !program.module.is_scheduled() {
        return;
    }
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        let (Some(overlap), Some(done)) = (collective.overlap, collective.done) else { continue };
        let (Some(payload), Some(wire)) = (collective.payload(), collective.ring_wire_bytes())
        else {
            continue;
        };
        if wire == 0 || overlap.flops as f64 >= program.options.overlap_flops_per_byte * wire as f64
        {
            continue;
        }
        let runs = program.runs_of(collective);
        let (Some(all), Some(sent)) = (runs.times(payload), runs.times(wire)) else { continue };
        let mut site = Site::new(collective.row)
            .runs(&runs)
            .sum("payload_bytes", all)
            .sum("wire_bytes", sent)
            .sum("overlapped_flops", u64::try_from(overlap.flops).unwrap_or(0))
            .of(number);
        site.evidence.push(done);
        site.bytes = Some(all);
        site.key = collective.kind as u64;
        sites.push(site);
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let Some(collective) = site.collective(program) else {
        return String::new();
    };
    let meanwhile = match site.figure("overlapped_flops") {
        0 => "nothing is computed".to_owned(),
        1 => "no more than one FLOP is computed".to_owned(),
        flops => format!("only {} FLOPs are computed", grouped(flops)),
    };
    let kind = collective.kind.as_str();
    let along = program.along(collective);
    format!(
        "{} over {along}: {meanwhile} between start and end while {} are sent",
        counted(site.places, &format!("asynchronous {kind}"), &format!("asynchronous {kind}s")),
        bytes(site.figure("wire_bytes")),
    )
}
