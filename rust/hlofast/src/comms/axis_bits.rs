//! Mesh axes as bits: those that the groups of collectives cover, and the places of devices along them.

use super::offsets::Device;
use super::partitioned::Partitioned;
use super::{AxisPart, Collective, CollectiveKind, Mesh, PermuteMatch};
use crate::ir::Row;
use crate::ir::intern::BuildMix;
use std::collections::HashMap;

/// Meshes with more axes are not followed: one bit of a mask stands for the batch.
pub(crate) const MOST_AXES: usize = 60;
/// Meshes with more devices are not followed device by device.
pub(super) const MOST_DEVICES: u64 = 1024;

/// The bits of some axes.
pub(crate) fn bits<'a>(parts: impl Iterator<Item = &'a AxisPart>) -> u64 {
    parts.filter(|part| part.axis < MOST_AXES).fold(0, |mask, part| mask | 1 << part.axis)
}

/// The axes of a collective's groups.
#[derive(Clone, Copy)]
pub(crate) struct Covered {
    /// Axes that the groups cover in full.
    pub whole: u64,
    /// Axes of which the groups cover anything.
    pub any: u64,
}

/// By instruction of a collective: the axes of its groups.
pub(crate) fn groups(program: &Partitioned<'_>, all: u64) -> HashMap<Row, Covered, BuildMix> {
    let mut axes = HashMap::default();
    let collectives = program.collectives;
    let Some(mesh) = program.mesh else { return axes };
    let permutes = |own: &&Collective| own.kind == CollectiveKind::CollectivePermute;
    for collective in collectives.collectives.iter().filter(|own| !permutes(own)) {
        let Some(groups) = collective.groups.and_then(|at| collectives.groups.get(at as usize))
        else {
            continue;
        };
        let matched = mesh.axes_of(groups);
        let size = |axis: usize| mesh.axes().get(axis).map(|axis| axis.size);
        let whole = matched.parts().iter().filter(|part| size(part.axis) == Some(part.size));
        let any = match matched.parts() {
            [] if groups.group_size() != Some(1) => all,
            parts => bits(parts.iter()),
        };
        let covered = Covered { whole: bits(whole), any };
        let range = collective.members.start as usize..collective.members.end as usize;
        for row in collectives.members.get(range).unwrap_or_default() {
            axes.insert(*row, covered);
        }
        axes.insert(collective.row, covered);
    }
    axes
}

/// By collective-permute: the axes along which it shifts values, if all devices shift them by the same distance.
pub(crate) fn shifts(program: &Partitioned<'_>) -> HashMap<Row, u64, BuildMix> {
    let permutes = program.collectives.collectives.iter();
    let permutes = permutes.filter(|own| own.kind == CollectiveKind::CollectivePermute);
    let of = |row: Row| Some((row, shifted(program, program.mesh?, row)?));
    permutes.filter_map(|own| of(own.row)).collect()
}

/// The axes along which all devices shift a value by the same distance; None if they do not.
fn shifted(program: &Partitioned<'_>, mesh: &Mesh, row: Row) -> Option<u64> {
    let context = &program.collectives.context;
    match mesh.permute_of_row(program.module, row, context) {
        Ok(PermuteMatch::Shift { parts, complete: true, .. }) => Some(bits(parts.iter())),
        _ => None,
    }
}

/// The devices of the mesh by position; empty if there are too many.
pub(crate) fn devices(program: &Partitioned<'_>) -> Vec<Device> {
    let Some(mesh) = program.mesh.filter(|mesh| mesh.device_count() <= MOST_DEVICES) else {
        return Vec::new();
    };
    let device = |position: u64| {
        let (partition, replica) = program.collectives.context.place_of(mesh.device(position)?);
        Some(Device { partition, replica })
    };
    (0..mesh.device_count()).map(device).collect::<Option<_>>().unwrap_or_default()
}

/// The axes along which neighbours have different values; `values` are by position of a device in the mesh.
pub(super) fn apart<T: PartialEq>(mesh: &Mesh, values: &[T]) -> u64 {
    let mut axes = 0;
    for (axis, own) in mesh.axes().iter().enumerate().take(MOST_AXES) {
        let sizes = [mesh.stride(axis).unwrap_or(1), own.size];
        let [stride, size] = sizes.map(|own| usize::try_from(own).unwrap_or(usize::MAX).max(1));
        // Neighbours along the axis are a stride apart, within blocks of all its devices.
        let differs = |block: &[T]| {
            let next = block.get(stride..).unwrap_or_default();
            next.iter().zip(block).any(|(value, before)| value != before)
        };
        if values.chunks(stride.saturating_mul(size)).any(differs) {
            axes |= 1 << axis;
        }
    }
    axes
}
