//! Seconds of instructions on a device, and the step time of the program.
//!
//! Start at [`time`]. `work.rs` gives the work of a row, `windows.rs` the TPU compiler's notes
//! about it; `tpu.rs`, `gpu.rs` (with `gpu_products.rs`) and `roofline.rs` turn both into seconds;
//! `collective.rs` and `gpu_collectives.rs` time one collective, `communication.rs` all collectives of a module; `simulate.rs` plays the schedule
//! and, on request, records the use of time (`recording.rs`).

pub mod collective;
mod communication;
mod device;
mod gpu;
pub mod gpu_collectives;
mod gpu_products;
mod recording;
mod roofline;
mod simulate;
mod tpu;
mod windows;
mod work;

pub use communication::{ALL_LINKS, Communication, Model, communications};
pub use device::{Device, Topology};
pub use recording::{Recording, Resource, Stretch};
pub use roofline::{Bound, Rows, rows};
pub use simulate::{Simulation, Split, record, simulate};
pub use windows::{Windows, windows};

use crate::Provenance;
use crate::comms::{Collectives, Mesh};
use crate::cost::Cost;
use crate::ir::Module;

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
    let simulation = simulate(module, cost, &options.device, &rows, collectives, &communications);
    Time { rows, communications, simulation }
}

/// Copies the chosen estimate into `seconds`.
fn choose(rows: &mut Rows, estimates: Estimates) {
    match estimates {
        Estimates::Model => {}
        Estimates::Roofline => rows.seconds.clone_from(&rows.roofline_seconds),
        Estimates::Compiler => {
            for at in 0..rows.seconds.len() {
                if rows.compiler_seconds[at].is_finite() {
                    rows.seconds[at] = rows.compiler_seconds[at];
                    rows.provenance[at] = Provenance::FromBackendConfig;
                    if rows.bound[at] == Bound::None {
                        rows.bound[at] = Bound::Memory;
                    }
                }
            }
        }
    }
}
