//! `replicated-compute`: matmuls that all devices along a mesh axis compute from equal operands.
//!
//! Only matmuls of what is computed from the batch count: a matmul of weights alone, or of the
//! constant gradient of a mean, has no batch to divide.

use super::finding::Measure;
use super::program::{Program, counted, grouped, percent};
use super::site::{Rule, Site};
use super::varying::axes_text;
use crate::ir::Row;

pub(super) const RULE: Rule = Rule {
    code: "replicated-compute",
    what: "matmuls that every device along a mesh axis repeats with equal operands",
    measure: Measure::None,
    find,
    message,
    remedy: "divide the matmul along these axes: constrain the batch or sequence dimension of its \
             activation to them (jax.lax.with_sharding_constraint), or shard a dimension of its \
             weight along them in the PartitionSpec of the parameter; sharding the weight along \
             the contracted dimension adds an all-reduce of the result",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let Some(varying) = program.varying() else { return };
    for row in program.products() {
        let operands = program.module.operands(row);
        if !operands.iter().any(|row| varying.is_from_batch(program.module, Row(*row))) {
            continue;
        }
        let axes = varying.equal_operands(program.module, row);
        let (_, devices) = axes_text(program, axes);
        let Some(flops) = program.product_flops(row).filter(|_| axes != 0 && devices > 1) else {
            continue;
        };
        let runs = program.runs(row);
        let mut site = Site::new(row).runs(&runs).common("devices", devices);
        let all = runs.times(flops);
        site = site.sum("replicated_flops", all.unwrap_or(0));
        site.flops = all.map(|all| all - all / devices);
        site.key = axes;
        site.provenance = program.cost.provenance.get(row.0 as usize).copied().unwrap_or_default();
        sites.push(site);
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let (axes, devices) = axes_text(program, site.key);
    let saved = site.flops.unwrap_or(0);
    format!(
        "{} the same operands on all {devices} devices along {axes}: {} FLOPs per step and device, \
         of which {}, {} of all matmul FLOPs, repeat what another device computes",
        counted(site.places, "matmul multiplies", "matmuls multiply"),
        grouped(site.figure("replicated_flops")),
        grouped(saved),
        percent(saved, program.matmul_flops()),
    )
}
