//! Which meshes fit a module, and which mesh supplies the axis names that its text lacks.

use super::derive::DerivedMesh;
use super::mesh::Mesh;
use crate::ir::Module;

/// The number of devices of a module: partitions times replicas. Older programs show the number
/// only in the groups of their collectives; `derived`, the mesh derived from the text, has it then.
pub fn device_count<'a>(module: &Module, derived: impl FnOnce() -> Option<&'a DerivedMesh>) -> u64 {
    let count = |written: Option<i64>| u64::try_from(written.unwrap_or(1)).unwrap_or(0);
    let compiled = count(module.num_partitions()).saturating_mul(count(module.replica_count()));
    match module.header_attribute("num_partitions") {
        Some(_) => compiled,
        None => derived().map_or(compiled, |derived| compiled.max(derived.mesh.device_count())),
    }
}

/// Whether `mesh` fits a module for `devices` devices. A module that is not partitioned yet fits
/// any mesh; a program for several slices is the program of one slice and does not mention the
/// other slices.
pub fn fits(devices: u64, mesh: &Mesh) -> bool {
    let given = mesh.device_count();
    devices == 1
        || given == devices
        || devices.checked_mul(mesh.slices().unwrap_or(1)) == Some(given)
}

/// Whether `before`, the mesh of the module before optimisation, names the axes of a module for
/// `devices` devices: the text implies a mesh (`derived`) without names, and `before` has names and
/// fits.
pub fn is_named_by(derived: &DerivedMesh, devices: u64, before: &DerivedMesh) -> bool {
    derived.invented_names && !before.invented_names && fits(devices, &before.mesh)
}
