//! `small-updates`: many small parameters of one shape that the optimizer updates one by one.
//!
//! A kernel takes a fixed time however few bytes it moves (1.2 µs on a TPU v5e by the compiler's own
//! estimate). One stack of the parameters has one kernel. Concatenating the parameters inside the step
//! does not help: the copies take longer than the kernels (`tests/oracle/judge_advice.py`).
//!
//! Where devices use only a part of each parameter, the kernels that cut the parts go too.
//!
//! Only kernels of a train step's optimizer count, at least `FEWEST` of one size on one source line, and only
//! where the modelled time says that most of it is not for moving bytes.

use super::finding::Measure;
use super::program::{Program, bytes, counted, grouped};
use super::site::{Rule, Site, parameter};
use crate::flow::Phase;
use crate::ir::intern::BuildMix;
use crate::ir::{Opcode, Row};
use std::collections::{BTreeMap, BTreeSet, HashSet};

pub(super) const RULE: Rule = Rule {
    code: "small-updates",
    what: "many small parameters of one shape that the optimizer updates one by one",
    measure: Measure::None,
    find,
    message,
    remedy: "store the parameters that every layer has as one array with the layers on its first \
             dimension (scan over layers, or index the array in each layer), so that one kernel \
             updates all of them; slicing and stacking their gradients costs part of the gain; do \
             not concatenate parameters inside the step (optax.flatten): the copies take longer \
             than the kernels",
};

/// The least number of kernels.
const FEWEST: usize = 16;
/// Kernels that read and write more bytes than this take their time for the bytes.
const MOST_BYTES: u64 = 1 << 18;
/// The least share of the step's time that one kernel instead of many saves.
const LEAST_SHARE: f64 = 0.01;
/// Figures are whole numbers.
const NANOSECONDS_PER_SECOND: f64 = 1e9;

/// Kernels with their seconds, and the names of the stacks that their parameters would make.
type Alike = (Vec<(Row, f64)>, BTreeSet<Vec<u8>>);

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    let Some(step) = program.step_seconds().filter(|_| module.is_scheduled()) else { return };
    let products: HashSet<Row, BuildMix> =
        program.products().map(|row| program.scheduled(row)).collect();
    let columns = module.metadata_columns();
    // By bytes and source line.
    let mut kernels: BTreeMap<(u64, i32, i32), Alike> = BTreeMap::new();
    for row in module.computation(module.entry()).rows().map(Row) {
        let is_update = match program.attribution.phase.get(row.0 as usize) {
            Some(Phase::Optimizer) => true,
            Some(Phase::Unattributed) => !program.has_phases(),
            _ => false,
        };
        if !is_update || module.opcode(row) != Opcode::Fusion || products.contains(&row) {
            continue;
        }
        let read = module.operands(row).iter().map(|row| program.bytes(Row(*row)));
        let moved = read.fold(program.bytes(row), u64::saturating_add);
        let (file, line) = program.sources().place(columns, row);
        if let Some(seconds) = program.seconds(row).filter(|_| moved <= MOST_BYTES) {
            let (kernels, stacks) = kernels.entry((moved, file, line)).or_default();
            kernels.push((row, seconds));
            stacks.insert(stack(program, row));
        }
    }
    for ((moved, ..), (mut kernels, stacks)) in kernels {
        if kernels.len() < FEWEST {
            continue;
        }
        kernels.sort_by(|first, second| second.1.total_cmp(&first.1));
        let all: f64 = kernels.iter().map(|kernel| kernel.1).sum();
        let longest = kernels.first().map_or(0.0, |kernel| kernel.1);
        let Some(moving) = program.moving_seconds(moved) else { continue };
        // One kernel updates a stack, another one slices it for the layers.
        let left = 2.0 * longest * stacks.len() as f64;
        let own = all - left - moving * kernels.len() as f64;
        if own < all / 2.0 {
            continue;
        }
        let read = kernels.iter().flat_map(|kernel| module.operands(kernel.0));
        let read: HashSet<Row, BuildMix> =
            read.filter_map(|row| parameter(program, Row(*row))).collect();
        let cuts = cuts(program).filter(|(whole, _)| read.contains(whole));
        let cuts: Vec<f64> = cuts.map(|(_, seconds)| seconds).collect();
        let longest = cuts.iter().copied().fold(0.0, f64::max);
        let saved = own + (cuts.iter().sum::<f64>() - longest * stacks.len() as f64).max(0.0);
        if saved < LEAST_SHARE * step {
            continue;
        }
        let Some((first, _)) = kernels.first() else { continue };
        let mut site = Site::new(*first).runs(&program.runs(*first));
        site.places = kernels.len() as u64;
        site.subjects = kernels.iter().take(MOST_ROWS).map(|kernel| kernel.0).collect();
        site.seconds = Some(saved);
        site = site
            .sum("kernels", kernels.len() as u64)
            .sum("kernel_nanoseconds", (all * NANOSECONDS_PER_SECOND) as u64)
            .sum("stacks", stacks.len() as u64)
            .sum("cuts", cuts.len() as u64)
            .common("bytes_each", moved);
        site.key = moved;
        sites.push(site);
    }
}

/// Kernels of the entry that cut a parameter for a device, by parameter.
fn cuts<'a>(program: &'a Program<'_>) -> impl Iterator<Item = (Row, f64)> + 'a {
    let module = program.module;
    let rows = module.computation(module.entry()).rows().map(Row);
    rows.filter(move |row| module.opcode(*row) == Opcode::DynamicSlice).filter_map(move |row| {
        let whole = parameter(program, Row(*module.operands(row).first()?))?;
        Some((whole, program.seconds(row)?))
    })
}

/// The name of the parameter that kernel `row` updates, without numbers: parameters of different
/// layers have equal names. Empty if unknown.
fn stack(program: &Program<'_>, row: Row) -> Vec<u8> {
    let operands = program.module.operands(row).iter();
    let name = operands.map(|row| parameter(program, Row(*row))).find_map(|found| {
        let name = program.op_name(found?)?;
        Some(name.iter().copied().filter(|byte| !byte.is_ascii_digit()).collect())
    });
    name.unwrap_or_default()
}

/// How many kernels a finding lists.
const MOST_ROWS: usize = 64;

fn message(_: &Program<'_>, site: &Site) -> String {
    let kernels = site.figure("kernels");
    let cut = match site.figure("cuts") {
        0 => String::new(),
        cuts => {
            format!("; {} slice the parameters for one device", counted(cuts, "kernel", "kernels"))
        }
    };
    format!(
        "{} of the optimizer {} {} each, so that most of their {} ns per step is the fixed time of a \
         kernel{cut}",
        counted(kernels, "kernel", "kernels"),
        if kernels == 1 { "moves" } else { "move" },
        bytes(site.figure("bytes_each")),
        grouped(site.figure("kernel_nanoseconds")),
    )
}
