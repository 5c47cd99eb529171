//! `replicated-compute`: matmuls that all devices along a mesh axis compute from equal operands.
//!
//! Only matmuls of what is computed from the batch count: a matmul of weights alone, or of the
//! constant gradient of a mean, has no batch to divide. Findings all of whose matmuls `one-hot-matmul` names are
//! left out: a gather replaces these matmuls.

use super::finding::{Figure, Measure};
use super::program::{Program, counted, grouped, percent};
use super::site::{Rule, Site};
use crate::comms::axes_text;
use crate::flow::Phase;
use crate::ir::Row;
use std::collections::{HashMap, HashSet};

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
        let (_, devices) = axes_text(program.mesh(), axes);
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
    gradients(program, sites);
}

/// Adds the gradients of weights that axes divide less than they could. With a weight whole along an axis, the
/// partitioner divides the matmul of its gradient as far as that costs no transfer, often along a part of the axis.
/// With the weight divided, each device has its part of all three matmuls: in the forward pass and of both gradients.
fn gradients(program: &Program<'_>, sites: &mut [Site]) {
    let columns = program.module.metadata_columns();
    let place = |row: Row| program.sources().place(columns, row);
    let replicated: HashSet<Row> =
        sites.iter().flat_map(|own| own.subjects.first()).copied().collect();
    let mut own: HashMap<(i32, i32), Vec<usize>> = HashMap::new();
    for (index, site) in sites.iter().enumerate() {
        let Some(row) = site.subjects.first() else { continue };
        own.entry(place(*row)).or_default().push(index);
    }
    own.retain(|place, own| place.0 >= 0 && own.len() == 2);
    let mut others: HashMap<(i32, i32), Vec<Row>> = HashMap::new();
    for row in program.products().filter(|row| !replicated.contains(row)) {
        if own.contains_key(&place(row)) {
            others.entry(place(row)).or_default().push(row);
        }
    }
    for (place, own) in own {
        // The forward pass and the gradient of the activation take as long; a third matmul is the weight's gradient.
        let (Some([gradient]), &[first, second]) =
            (others.get(&place).map(Vec::as_slice), &own[..])
        else {
            continue;
        };
        let of = |row: Row| program.runs(row).times(program.product_flops(row)?);
        let is_backward = program.runs(*gradient).phase == Phase::Backward;
        let sides = sites[first].subjects.first().zip(sites[second].subjects.first());
        let Some(flops) = sides.map(|(first, second)| (of(*first), of(*second))) else { continue };
        let (Some(whole), Some(part)) = (flops.0.filter(|_| flops.0 == flops.1), of(*gradient))
        else {
            continue;
        };
        let devices = sites[first].figure("devices").max(1);
        let least = whole / devices;
        if !is_backward || sites[second].key != sites[first].key || part <= least || part >= whole {
            continue;
        }
        let site = &mut sites[first];
        site.flops = site.flops.and_then(|flops| flops.checked_add(part - least));
        site.sums.push(Figure { name: "gradient_flops", value: part - least });
        site.evidence.push(*gradient);
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let (axes, devices) = axes_text(program.mesh(), site.key);
    let gradient = site.figure("gradient_flops");
    let saved = site.flops.unwrap_or(0).saturating_sub(gradient);
    let with_gradient = match gradient {
        0 => String::new(),
        flops => format!(", and {} more of the gradient of the weight", grouped(flops)),
    };
    format!(
        "{} the same operands on all {devices} devices along {axes}: {} FLOPs per step and device, \
         of which {}, {} of all matmul FLOPs, repeat what another device computes{with_gradient}",
        counted(site.places, "matmul multiplies", "matmuls multiply"),
        grouped(site.figure("replicated_flops")),
        grouped(saved),
        percent(saved, program.matmul_flops()),
    )
}
