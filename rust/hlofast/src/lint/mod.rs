//! Findings: savings that a change to the model, its sharding or its checkpoint policy would bring,
//! with the instructions concerned and the bytes or FLOPs at stake.
//!
//! Start at [`lint()`]. Each rule is a file with a code, a description, a message and a remedy. A
//! new rule needs a file, a line in `RULES` and a test. Everything else, including the README's
//! table of codes, is generated from `RULES`.

mod batch_follows;
mod batch_gathered;
mod constraint;
mod copied_parameter;
mod cut;
mod finding;
mod float32_activations;
mod float32_residuals;
mod full_rematerialisation;
mod gathered_twice;
mod gathers_again;
mod logits_in_full;
mod loop_changes;
mod loop_invariant_collective;
mod low_precision_in_f32;
mod missed_reduce_scatter;
mod narrowed;
mod narrowed_copies;
mod not_overlapped;
mod offload_waited;
mod one_hot_matmul;
mod padding_waste;
mod program;
mod recomputed_collectives;
mod recomputed_twice;
mod reduced_twice;
mod replicated_compute;
mod replicated_parameter;
mod resharded_scores;
mod site;
mod small_updates;
mod stacked_masks;
mod undonated_state;
mod widened_operands;
mod widened_payload;
mod widened_weights_kept;

pub use finding::{Falls, Figure, Finding, Findings, Measure};

use crate::comms::{Along, Collectives, Mesh};
use crate::cost::Cost;
use crate::flow::{Attribution, Sources};
use crate::ir::{Module, Row};
use crate::memory::Change;
use crate::summary;
use crate::time::Time;
use program::Program;
use site::{Rule, Site};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

/// Thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The least share of the step's total that a finding must have at stake: a share of the
    /// payload or wire bytes of all collectives, or of the FLOPs of all matmuls. For a replicated
    /// parameter, the share of the bytes of all parameters.
    pub min_share: f64,
    /// Replicated parameters are a finding if sharding them saves at least this share of the bytes
    /// of all parameters. Masks that loops keep are one if the peak falls by at least this share of it.
    pub min_replicated_share: f64,
    /// State that is not donated is a finding from this many bytes.
    pub min_undonated_bytes: u64,
    /// An asynchronous collective counts as overlapped if at least this many FLOPs are scheduled
    /// between start and done for each byte it sends around a ring.
    pub overlap_flops_per_byte: f64,
    /// Findings are sorted as if a byte took as long as this many FLOPs.
    pub order_flops_per_byte: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            min_share: 0.001,
            min_replicated_share: 0.02,
            min_undonated_bytes: 1 << 20,
            overlap_flops_per_byte: 1.0,
            order_flops_per_byte: 1000,
        }
    }
}

/// The rules. Findings with equal stakes come in this order.
const RULES: &[Rule] = &[
    missed_reduce_scatter::RULE,
    reduced_twice::RULE,
    gathered_twice::RULE,
    recomputed_collectives::RULE,
    low_precision_in_f32::RULE,
    one_hot_matmul::RULE,
    replicated_parameter::RULE,
    not_overlapped::RULE,
    full_rematerialisation::RULE,
    loop_invariant_collective::RULE,
    widened_weights_kept::RULE,
    widened_payload::RULE,
    undonated_state::RULE,
    replicated_compute::RULE,
    recomputed_twice::RULE,
    batch_gathered::RULE,
    logits_in_full::RULE,
    padding_waste::RULE,
    offload_waited::RULE,
    float32_activations::RULE,
    float32_residuals::RULE,
    small_updates::RULE,
    copied_parameter::RULE,
    resharded_scores::RULE,
    stacked_masks::RULE,
];

/// The mesh of a program, computed only when a rule asks for it.
pub type MeshOf<'a> = dyn Fn() -> Option<&'a Mesh> + 'a;

/// By collective: its place on the mesh, computed only when a rule asks for it. Empty without a
/// mesh.
pub type AlongOf<'a> = dyn Fn() -> &'a [Arc<Along>] + 'a;

/// The modelled time of a program, computed only when findings are there to be timed. None without a
/// device, or if shapes cover all devices together.
pub type TimeOf<'a> = dyn Fn() -> Option<&'a Time> + 'a;

/// Facts that are known besides the module.
pub struct Known<'a> {
    /// The mesh, whose axes messages name.
    pub mesh: &'a MeshOf<'a>,
    /// Places on the mesh.
    pub along: &'a AlongOf<'a>,
    /// The source of each row.
    pub sources: &'a Sources,
    /// Seconds on a device.
    pub time: &'a TimeOf<'a>,
    /// Whether shapes are those of one device: the partitioner has run.
    pub is_partitioned: bool,
    /// The backend that the module was compiled for, if the text shows it.
    pub backend: Option<summary::Backend>,
    /// By how much memory falls after a change of the program's values; None if unknown.
    pub memory_falls: &'a dyn Fn(&Change) -> Option<Falls>,
    /// The peak of memory that `memory_falls` starts from; None if unknown.
    pub peak: &'a dyn Fn() -> Option<u64>,
    /// The memory of the device that the step leaves free, negative if the step does not fit; None if unknown.
    pub free: &'a dyn Fn() -> Option<i64>,
}

/// All codes with descriptions, in the order of the rules.
pub fn rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    RULES.iter().map(|rule| (rule.code, rule.what))
}

/// The findings in `module`; findings with more seconds at stake come first, then the others, those
/// with more bytes and FLOPs at stake first. In a step that does not fit, findings about memory lead.
pub fn lint<'a>(
    module: &'a Module,
    cost: &'a Cost,
    attribution: &'a Attribution,
    collectives: &'a Collectives,
    known: &'a Known<'a>,
    options: &'a Options,
) -> Findings {
    let program = Program::new(module, cost, attribution, collectives, known, options);
    let mut findings = Vec::new();
    let mut sites: Vec<Site> = Vec::new();
    for rule in RULES {
        (rule.find)(&program, &mut sites);
        for site in &mut sites {
            site.complete(&program, rule.measure);
        }
        for site in site::merge(&program, &mut sites) {
            // What takes the place of the work may take longer.
            let is_faster = site.seconds.is_none_or(|seconds| seconds > 0.0);
            if is_faster && program.matters(&site, rule.measure) {
                findings.push(site::finding(&program, rule, site));
            }
        }
    }
    // A matmul that a gather replaces need not be divided.
    let replaced = findings.iter().filter(|finding| finding.code == one_hot_matmul::RULE.code);
    let replaced: HashSet<Row> =
        replaced.flat_map(|finding| finding.rows.iter().copied()).collect();
    findings.retain(|finding| {
        finding.code != replicated_compute::RULE.code
            // Not all rows are known then.
            || finding.rows.len() >= site::MOST_ROWS
            || !finding.rows.iter().all(|row| replaced.contains(row))
    });
    let weight = |finding: &Finding| {
        let bytes = u128::from(finding.bytes.unwrap_or(0));
        let flops = u128::from(finding.flops.unwrap_or(0));
        flops.saturating_add(bytes.saturating_mul(u128::from(options.order_flops_per_byte)))
    };
    // The stable sort keeps findings of one rule in the order in which calls reach them.
    findings.sort_by_key(|finding| Reverse(weight(finding)));
    let seconds = |finding: &Finding| finding.seconds.unwrap_or(-1.0);
    findings.sort_by(|first, second| seconds(second).total_cmp(&seconds(first)));
    let is_about_memory = |finding: &Finding| finding.measure.is_memory();
    if findings.iter().any(is_about_memory) && (known.free)().is_some_and(|free| free < 0) {
        findings.sort_by_key(|finding| !is_about_memory(finding));
    }
    Findings { findings }
}
