//! Scans of modules that XLA has not scheduled: the order of execution and the live ranges that such
//! a module would get.
//!
//! The text before optimisation has neither a schedule nor fusions, and its shapes may cover all
//! devices. The model gives each value of the graph a step, in text order with the bodies of the
//! loops in their places; products, and work whose result only goes into a stack, run as soon as their
//! operands are there, but gradients of weights that come from many devices run last. As in the model of
//! scheduled texts, values of products, kernels and reductions are in memory until the last expensive
//! operation that reads them, also through cheap work, which XLA repeats in fusions; cheap values that
//! several products read are computed once. A loop holds the elements of its state that its body changes.
//! Bytes are those of one device, as the shardings of the text imply them; what devices gather or exchange
//! is in memory, too.

use super::NoPolicies;
use super::base::Timeline;
use super::chip::Chip;
use super::graph::MOST_ROWS;
use super::layout::{LaidOut, Layout, lay_out};
use super::pairs::find;
use super::scans::Scan;
use crate::cost::Cost;
use crate::flow::{Attribution, Contexts, multiplicities};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row};
use crate::shares::Local;
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// What is known of a module before optimisation.
#[derive(Debug)]
pub struct Before {
    /// By row of a product: FLOPs that one device executes in a step.
    flops: HashMap<Row, i64, BuildMix>,
    /// Whether shapes cover several devices, so that the partitioner's collectives are unknown.
    pub is_whole: bool,
}

impl Before {
    /// That of a module whose shapes cover several devices if `is_whole`.
    pub fn new(module: &Module, cost: &Cost, local: &Local, is_whole: bool) -> Self {
        Before { flops: flops(module, cost, local), is_whole }
    }

    /// FLOPs of a product in a step on one device.
    pub fn flops(&self, row: Row) -> Option<i64> {
        self.flops.get(&row).copied()
    }
}

/// How a module that is not scheduled is taken.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Whether its shapes cover several devices.
    pub is_whole: bool,
    /// Of layers without a loop: whether each function is taken by itself if the text does not tell whether they are
    /// checkpointed together.
    pub is_apart: bool,
    /// The chip, if it is known and matters.
    pub chip: Option<Chip>,
}

/// Scans of an unscheduled module in one order.
pub struct LaidScans {
    pub scans: Vec<Scan>,
    /// The bytes at each step.
    pub timeline: Timeline,
    /// Whether gradients of weights may wait until the end of a layer.
    pub may_wait: bool,
    /// The steps and bytes of what a list makes before it is read (`Policies::listed_before`).
    pub early: Vec<(RangeInclusive<u32>, i64)>,
}

/// The scans of an unscheduled module, in which gradients of weights wait until the end of a layer if they may
/// and `wait`. An error if the model covers no scan, or if the module is too large.
pub fn scans_before(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    local: &Local,
    how: How,
    wait: bool,
) -> Result<LaidScans, NoPolicies> {
    let mut budget = MOST_ROWS;
    let places = find(module, cost, attribution, &mut budget).ok_or(NoPolicies::NoLayers)?;
    let mut layout = Layout::new(module, cost, local, places, budget);
    (layout.phases, layout.wait) = (attribution.phases(module), wait);
    layout.chip = how.chip;
    let LaidOut { changes, rows, mut scans, may_wait, early } = lay_out(layout)?;
    scans.sort_by_key(|scan| scan.forward);
    match scans.is_empty() {
        true => Err(NoPolicies::NoLayers),
        false => {
            let timeline = Timeline::of_changes(changes, rows);
            Ok(LaidScans { scans, timeline, may_wait, early })
        }
    }
}

/// FLOPs of one device in all calls of each product.
fn flops(module: &Module, cost: &Cost, local: &Local) -> HashMap<Row, i64, BuildMix> {
    let contexts = Contexts::by_call(module);
    let times = |call: usize| cost.call_times.get(call).map(|link| link.times);
    let counts = multiplicities(&contexts, times);
    let mut flops = HashMap::default();
    for row in module.rows() {
        let Some(product) = local.product(row) else { continue };
        // A computation that several callers share runs as often for each as for the busiest.
        let nodes = contexts.nodes_of(module.computation_of(row));
        let calls = nodes.filter_map(|node| counts.get(node as usize).copied().flatten()).max();
        let calls = calls.and_then(|calls| i64::try_from(calls).ok());
        if let Some(own) = calls.and_then(|calls| product.flops.checked_mul(calls)) {
            flops.insert(row, own);
        }
    }
    flops
}
