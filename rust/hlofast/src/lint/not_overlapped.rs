//! `not-overlapped`: asynchronous collectives with too little computation between start and done.
//!
//! Permutes that the compiler made of another collective or of a matmul are left out: where they start
//! is its own choice, and no change to the program moves them. JAX names those that a program spells
//! `ppermute`.

use super::finding::Measure;
use super::program::{Program, bytes, counted, form, grouped};
use super::site::{Rule, Site};
use crate::comms::{Collective, CollectiveKind};

pub(super) const RULE: Rule = Rule {
    code: "not-overlapped",
    what: "asynchronous collectives with too little computation between start and done",
    measure: Measure::Payload,
    find,
    message,
    remedy: "give the scheduler independent work: make the operands of the collective available \
             early and use its result late (no data dependence and no optimization barrier in \
             between): in a ring, send a part before the matmul that reads it, not after; in a loop \
             over layers, gather the weights of the next layer while the current layer computes, \
             which keeps the weights of two layers; on GPUs, enable the latency-hiding scheduler",
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
        if collective.kind == CollectiveKind::CollectivePermute && is_compilers(program, collective)
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

/// Whether a permute has the name of another operation, or none in a program with names.
fn is_compilers(program: &Program<'_>, collective: &Collective) -> bool {
    let Some(name) = program.op_name(collective.row) else { return program.has_phases() };
    let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    memchr::memmem::find(last, b"permute").is_none()
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let Some(collective) = site.collective(program) else {
        return String::new();
    };
    let meanwhile = match site.figure("overlapped_flops") {
        0 => "no computation".to_owned(),
        1 => "only 1 FLOP".to_owned(),
        flops => format!("only {} FLOPs", grouped(flops)),
    };
    let kind = collective.kind.as_str();
    let along = program.along(collective);
    format!(
        "{} {along} {} {} on the wire per step with {meanwhile} between start and done",
        counted(site.places, &format!("asynchronous {kind}"), &format!("asynchronous {kind}s")),
        form(site.places, "sends", "send"),
        bytes(site.figure("wire_bytes")),
    )
}
