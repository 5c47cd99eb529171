//! How long instructions take on a device, and how long the program takes with them.
//!
//! Start at [`time`]. `work.rs` says what a row computes, `windows.rs` what the TPU compiler wrote
//! about it; `tpu.rs` and `roofline.rs` turn that into seconds; `collective.rs` times one
//! collective, `communication.rs` those of a module; `simulate.rs` plays the schedule, and keeps what
//! time is spent on (`recording.rs`) where that is asked for.

pub mod collective;
mod communication;
mod device;
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

/// Whose seconds of instructions count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Estimates {
    /// This crate's model of the device.
    #[default]
    Model,
    /// Computing at the peak and moving HBM bytes at full bandwidth, whichever is longer.
    Roofline,
    /// What the compiler expects, where it says so; else the model.
    Compiler,
}

/// What to time, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The chip.
    pub device: Device,
    /// Names the axes, and says where hosts and slices end.
    pub mesh: Option<Mesh>,
    /// Whose seconds of instructions count.
    pub estimates: Estimates,
    /// Whose seconds of collectives count.
    pub model: Model,
    /// Seconds of single collectives that are known better, by their number; ascending.
    pub measured: Vec<(u32, f64)>,
}

/// The time of a module.
#[derive(Clone, Debug, Default)]
pub struct Time {
    /// Every row by itself.
    pub rows: Rows,
    /// Every collective by itself, in the order of [`Collectives::collectives`].
    pub communications: Vec<Communication>,
    /// All of it, scheduled.
    pub simulation: Simulation,
}

/// Times `module`, whose cost and collectives are given.
pub fn time(module: &Module, cost: &Cost, found: &Collectives, options: &Options) -> Time {
    let mut rows = rows(module, cost, &options.device);
    choose(&mut rows, options.estimates);
    let mesh = options.mesh.as_ref();
    let mut communications = communications(module, found, &options.device, mesh, options.model);
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
    let simulation = simulate(module, cost, &options.device, &rows, found, &communications);
    Time { rows, communications, simulation }
}

/// Puts the seconds that count into `seconds`.
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
