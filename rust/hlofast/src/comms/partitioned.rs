//! The program of one device among those of a mesh.

use super::axis_bits::MOST_AXES;
use super::offsets::is_slice_id;
use super::{Collectives, Mesh};
use crate::ir::Module;

/// A program with its mesh and collectives.
#[derive(Clone, Copy)]
pub(crate) struct Partitioned<'a> {
    pub module: &'a Module,
    pub mesh: Option<&'a Mesh>,
    pub collectives: &'a Collectives,
    /// Whether the module is the program of one device, so that its shapes are shapes of shards.
    pub is_partitioned: bool,
}

impl Partitioned<'_> {
    /// Whether the module is the program of one slice of several: it does not say what differs between
    /// slices.
    pub fn is_part(&self) -> bool {
        let Some(mesh) = self.mesh else { return true };
        let partitions = self.module.num_partitions().and_then(|count| u64::try_from(count).ok());
        mesh.slices().is_some_and(|slices| slices > 1)
            || partitions.is_some_and(|count| count != mesh.device_count())
            || self.module.rows().any(|row| is_slice_id(self.module, row))
    }
}

/// Names and number of devices of the axes `mask`: `data×model`.
pub(crate) fn axes_text(mesh: Option<&Mesh>, mask: u64) -> (String, u64) {
    let axes = mesh.map(|mesh| mesh.axes()).unwrap_or_default().iter().enumerate();
    let chosen = axes.filter(|(axis, _)| *axis < MOST_AXES && mask & (1 << axis) != 0);
    let (mut names, mut devices) = (Vec::new(), 1u64);
    for (_, axis) in chosen {
        names.push(axis.name.as_str());
        devices = devices.saturating_mul(axis.size);
    }
    (names.join("×"), devices)
}

/// The numbers of the parameters whose memory results take over, ascending.
pub(crate) fn donated(module: &Module) -> Vec<u64> {
    let aliases = module.aliases().unwrap_or_default();
    let numbers = aliases.iter().map(|alias| u64::try_from(alias.number).ok());
    let mut numbers: Vec<u64> = numbers.flatten().collect();
    numbers.sort_unstable();
    numbers
}
