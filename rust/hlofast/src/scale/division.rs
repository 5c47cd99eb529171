//! Whether the mesh divides the new sizes of entry parameters. JAX demands that it does, evenly.

use super::size::Sizes;
use super::symbols::Seed;
use super::{Attributed, ScaleError};
use crate::comms::Mesh;
use crate::ir::{Module, Row};
use crate::shares::{Written, written};
use std::collections::HashMap;
use std::rc::Rc;

/// The devices over which a written sharding divides a dimension of an entry parameter whose shape
/// is that of all devices together.
pub(super) struct Tile {
    /// Index of the parameter's dimension.
    seed: usize,
    devices: i64,
    /// Names of the mesh axes; empty if unknown.
    axes: String,
}

/// The tiles of entry parameters.
pub(super) fn tiles(module: &Module, mesh: &Mesh, seeds: &[Seed]) -> Vec<Tile> {
    let mut known: HashMap<Row, Option<Rc<Vec<Option<Written>>>>> = HashMap::new();
    let mut found = Vec::new();
    for (number, seed) in seeds.iter().enumerate() {
        let leaves = module.shapes().leaf_count(module.shape(seed.row)) as usize;
        let own = known.entry(seed.row).or_insert_with(|| written(module, mesh, seed.row, leaves));
        let own = own.as_ref().and_then(|own| own.get(seed.leaf)?.as_ref());
        let Some(own) = own else { continue };
        let devices = own.tiles.get(seed.dimension).and_then(|tiles| i64::try_from(*tiles).ok());
        let Some(devices) = devices.filter(|devices| *devices > 1) else { continue };
        let axes = own.axes.as_ref().and_then(|axes| axes.get(seed.dimension));
        let axes = axes.into_iter().flatten().map(|part| part.axis);
        found.push(Tile { seed: number, devices, axes: names(mesh, axes) });
    }
    found
}

/// `data×model`.
fn names(mesh: &Mesh, axes: impl Iterator<Item = usize>) -> String {
    let names = axes.filter_map(|axis| Some(mesh.axes().get(axis)?.name.as_str()));
    names.collect::<Vec<_>>().join("×")
}

impl Attributed<'_> {
    /// Refuses sizes of entry parameters that the mesh does not divide evenly.
    pub(super) fn check_division(&self, sizes: &Sizes<'_>) -> Result<(), ScaleError> {
        for seed in &self.seeds.all {
            let product = seed.axes.iter().try_fold(1i64, |product, axis| {
                product.checked_mul(sizes.axes.get(*axis).map_or(1, |(_, new)| *new))
            });
            let Some(product) = product else { return Err(too_large()) };
            let was = seed.axes.iter().fold(1i64, |product, axis| {
                product.saturating_mul(sizes.axes.get(*axis).map_or(1, |(old, _)| *old))
            });
            let axes = || {
                let mesh = self.spread.mesh;
                mesh.map_or_else(String::new, |mesh| names(mesh, seed.axes.iter().copied()))
            };
            self.check(seed, sizes, [was, product], axes)?;
        }
        for tile in &self.tiles {
            if let Some(seed) = self.seeds.all.get(tile.seed) {
                self.check(seed, sizes, [tile.devices; 2], || tile.axes.clone())?;
            }
        }
        Ok(())
    }

    /// Refuses the new size of a dimension that `devices`, as compiled and after the change, divide
    /// evenly as compiled only.
    fn check(
        &self,
        seed: &Seed,
        sizes: &Sizes<'_>,
        devices: [i64; 2],
        axes: impl Fn() -> String,
    ) -> Result<(), ScaleError> {
        let size = sizes.of_symbol(seed.symbol, 0).ok_or_else(too_large)?;
        let old = self.spread.symbols.all.get(seed.symbol as usize).map_or(0, |own| own.size);
        let [was, devices] = devices;
        if devices <= 1 || size % devices == 0 || (was > 1 && old % was != 0) {
            return Ok(());
        }
        let axes = axes();
        let along = if axes.is_empty() { String::new() } else { format!(" along {axes}") };
        Err(ScaleError::Refused(format!(
            "dimension {} of {} would be {size}, which does not divide over {devices} devices{along}",
            seed.dimension, seed.name,
        )))
    }
}

fn too_large() -> ScaleError {
    ScaleError::Refused("the new sizes are too large".to_owned())
}
