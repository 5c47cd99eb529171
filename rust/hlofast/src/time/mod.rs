//! Seconds of instructions on a device, and the step time of the program.
//!
//! Start at [`time`]. `work.rs` gives the work of a row, `windows.rs` the TPU compiler's notes
//! about it; `tpu.rs`, `gpu.rs` (with `gpu_products.rs`) and `roofline.rs` turn both into seconds;
//! `collective.rs` and `gpu_collectives.rs` time one collective, `communication.rs` all collectives
//! of a module, with their place on a torus (`place.rs`, `torus.rs`, `strategy.rs`); `simulate.rs`
//! plays the schedule on links (`links.rs`, `transfer.rs`) and, on request, records the use of time
//! (`recording.rs`).

pub mod collective;
mod communication;
mod device;
mod gpu;
pub mod gpu_collectives;
mod gpu_products;
mod host;
mod kernels;
mod links;
mod place;
mod pressure;
mod recording;
mod roofline;
mod simulate;
mod simulation;
mod split;
mod strategy;
pub mod torus;
mod tpu;
mod transfer;
mod utilization;
mod windows;
mod work;

pub use communication::{ALL_LINKS, Communication, Model, communications};
pub use device::{Device, Topology};
pub use place::Lane;
pub use pressure::{Pressure, pressure};
pub use recording::{Recording, Resource, Stretch};
pub use roofline::{Bound, Rows, rows};
pub use simulate::{record, simulate};
pub use simulation::{OTHER_SLICES, Simulation};
pub use split::Split;
pub use utilization::{AtPeak, flops_by_peak};
pub use windows::{Windows, windows};

use crate::Provenance;
use crate::comms::{Collectives, Mesh};
use crate::cost::Cost;
use crate::ir::{ComputationId, Module, Row};
use std::collections::HashMap;

/// The source of the seconds of instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Estimates {
    /// This crate's model of the device.
    #[default]
    Model,
    /// The longer of two times: computing at the peak, and moving HBM bytes at full bandwidth.
    Roofline,
    /// The compiler's estimate for instructions that have one, otherwise the model.
    Compiler,
}

/// Options of the timing.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The chip.
    pub device: Device,
    /// The mesh, which names the axes and divides devices into hosts and slices.
    pub mesh: Option<Mesh>,
    /// The source of the seconds of instructions.
    pub estimates: Estimates,
    /// The formulas for collectives.
    pub model: Model,
    /// Measured seconds of single collectives, ascending by index.
    pub measured: Vec<(u32, f64)>,
}

/// The time of a module.
#[derive(Clone, Debug, Default)]
pub struct Time {
    /// Seconds of each row on its own.
    pub rows: Rows,
    /// Seconds of each collective on its own, in the order of [`Collectives::collectives`].
    pub communications: Vec<Communication>,
    /// The simulated schedule.
    pub simulation: Simulation,
}

/// Times `module`, given its cost and collectives.
pub fn time(module: &Module, cost: &Cost, collectives: &Collectives, options: &Options) -> Time {
    let mut rows = rows(module, cost, &options.device);
    choose(&mut rows, options.estimates);
    let mesh = options.mesh.as_ref();
    let mut communications =
        communications(module, collectives, &options.device, mesh, options.model);
    for (number, seconds) in &options.measured {
        if let Some(entry) = communications.get_mut(*number as usize) {
            entry.estimate.seconds = *seconds;
            entry.missing = None;
        }
    }
    for entry in &communications {
        if let Some(missing) = entry.missing
            && !rows.unknown_figures.iter().any(|figure| figure == missing)
        {
            rows.unknown_figures.push(missing.to_owned());
        }
    }
    let mut simulation =
        simulate(module, cost, &options.device, &rows, collectives, &communications);
    let slices = mesh.and_then(Mesh::slices).unwrap_or(1);
    let has_unit = options.model != Model::Alpa;
    if has_unit && slices > 1 && matches!(options.device.topology, Some(Topology::Torus(_))) {
        match options.device.slice_wait {
            Some(wait) => {
                simulation.wait_for_slices((wait * (slices as f64).log2()).exp_m1());
            }
            None => rows.unknown_figures.push("slice_wait".to_owned()),
        }
    }
    charge(&mut rows, collectives, &communications);
    assume(module, &simulation, &mut rows);
    Time { rows, communications, simulation }
}

/// Gives the scheduled row of every collective the time on the links, and its other rows no time of
/// their own, as the schedule is played.
fn charge(rows: &mut Rows, collectives: &Collectives, communications: &[Communication]) {
    let mut charged: HashMap<Row, (f64, bool)> = HashMap::new();
    for (collective, entry) in collectives.collectives.iter().zip(communications) {
        let members = collective.members.start as usize..collective.members.end as usize;
        let members = collectives.members.get(members).unwrap_or_default();
        for row in members.iter().chain(&collective.done) {
            charged.entry(*row).or_default();
        }
        let (seconds, is_unknown) = charged.entry(collective.outer).or_default();
        *seconds += entry.estimate.seconds;
        *is_unknown |= entry.missing.is_some();
    }
    for (row, (seconds, is_unknown)) in charged {
        let at = row.0 as usize;
        let columns = [
            (&mut rows.seconds, seconds),
            (&mut rows.compute_seconds, 0.0),
            (&mut rows.memory_seconds, 0.0),
        ];
        for (column, value) in columns {
            if let Some(place) = column.get_mut(at) {
                *place = value;
            }
        }
        if let (Some(bound), Some(how)) = (rows.bound.get_mut(at), rows.provenance.get_mut(at)) {
            *bound = if is_unknown { Bound::Unknown } else { Bound::Communication };
            if seconds > 0.0 && *how == Provenance::Exact {
                *how = Provenance::Modelled;
            }
        }
    }
}

/// Copies the chosen estimate into `seconds`, and what it is made of into the split and the bound.
fn choose(rows: &mut Rows, estimates: Estimates) {
    match estimates {
        Estimates::Model => {}
        Estimates::Roofline => {
            for at in 0..rows.seconds.len() {
                let (compute, memory) = (rows.peak_seconds[at], rows.bandwidth_seconds[at]);
                rows.seconds[at] = rows.roofline_seconds[at];
                rows.compute_seconds[at] = compute;
                rows.memory_seconds[at] = memory;
                if matches!(rows.bound[at], Bound::Compute | Bound::Memory | Bound::Launch) {
                    rows.bound[at] = if compute > memory { Bound::Compute } else { Bound::Memory };
                }
            }
        }
        Estimates::Compiler => {
            for at in 0..rows.seconds.len() {
                if rows.compiler_seconds[at].is_finite() {
                    // No estimate can be below the peak of the units that do the work.
                    let seconds = rows.compiler_seconds[at].max(rows.peak_seconds[at]);
                    // The compiler does not split its estimate: the model's shares apply.
                    let share = seconds / rows.seconds[at];
                    if share.is_finite() {
                        rows.compute_seconds[at] *= share;
                        rows.memory_seconds[at] *= share;
                    }
                    rows.seconds[at] = seconds;
                    rows.provenance[at] = Provenance::FromBackendConfig;
                    if rows.bound[at] == Bound::None {
                        (rows.bound[at], rows.memory_seconds[at]) = (Bound::Memory, seconds);
                    }
                }
            }
        }
    }
}

/// Marks the rows below a branch that is assumed to run, because other branches take another time.
fn assume(module: &Module, simulation: &Simulation, rows: &mut Rows) {
    let seconds =
        |id: ComputationId| simulation.computations.get(id.0 as usize).map(|split| split.seconds);
    let mut below = vec![false; module.computations().len()];
    for (row, taken) in &simulation.branches {
        let calls = module.calls_within(module.computation_of(*row));
        let calls = module.all_calls().get(calls).unwrap_or_default();
        let mut others = calls.iter().filter(|call| call.row == *row);
        if others.any(|call| seconds(call.computation) != seconds(*taken))
            && let Some(place) = below.get_mut(taken.0 as usize)
        {
            *place = true;
        }
    }
    if !below.contains(&true) {
        return;
    }
    for id in module.computation_post_order().iter().copied().rev() {
        if below.get(id.0 as usize) != Some(&true) {
            continue;
        }
        let calls = module.calls_within(id);
        for call in module.all_calls().get(calls).unwrap_or_default() {
            if let Some(place) = below.get_mut(call.computation.0 as usize) {
                *place = true;
            }
        }
        for row in module.computation(id).rows() {
            if let Some(how) = rows.provenance.get_mut(row as usize)
                && *how != Provenance::Unknown
                && rows.seconds.get(row as usize).is_some_and(|seconds| *seconds > 0.0)
            {
                *how = Provenance::Assumed;
            }
        }
    }
}
