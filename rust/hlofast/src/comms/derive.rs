//! Derives a module's mesh: from axis names if the text has them, otherwise from shardings and
//! collective groups.

use super::digits::{Digit, Permutation};
use super::groups::{DeviceGroups, Form, GroupContext};
use super::mesh::Mesh;
use super::shardy::shardy_meshes;
use crate::ir::decode::{
    AttributeValue, DeviceOrder, HeaderValue, Mesh as WrittenMesh, Placement, ReplicaGroups, Tiles,
    decode, decode_header,
};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use std::collections::{BTreeMap, HashMap};

/// The source of a derived mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MeshSource {
    /// `xla.sdy.meshes` in the module's header.
    ShardyMeshes,
    /// Shardings or groups that name mesh axes.
    NamedShardings,
    /// Tile shardings of the entry computation's parameters and result.
    EntryShardings,
    /// Tile shardings of other instructions.
    Shardings,
    /// Groups of collectives.
    ReplicaGroups,
}

impl MeshSource {
    /// The name used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            MeshSource::ShardyMeshes => "shardy_meshes",
            MeshSource::NamedShardings => "named_shardings",
            MeshSource::EntryShardings => "entry_shardings",
            MeshSource::Shardings => "shardings",
            MeshSource::ReplicaGroups => "replica_groups",
        }
    }
}

/// A mesh and the evidence for it in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedMesh {
    /// The mesh.
    pub mesh: Mesh,
    /// The source of the mesh.
    pub source: MeshSource,
    /// Whether the axis names (`axis_0`, ...) are not in the text or were invented by the compiler.
    pub invented_names: bool,
    /// Number of attributes that agree with the mesh.
    pub evidence: u64,
    /// Number of attributes of the same kind that imply another mesh.
    pub ignored: u64,
}

/// The mesh of `module`; None if the module does not name several devices.
///
/// The first source that names several devices is used, in this order: Shardy's meshes in the
/// header; meshes in named shardings and groups, unless their axes are the compiler's `axis_0`,
/// `axis_1`, ...; tile shardings of the entry's parameters and result, then of all instructions;
/// groups of collectives. Without names, the mesh has the coarsest axes that express all tilings
/// (or groups), in the order of the device number. If that is a single axis, a later source with
/// several axes over the same number of devices is preferred.
///
/// A multi-slice program is written for one slice: if the mesh has a multiple of the header's
/// devices, that multiple is the number of slices.
pub fn derive_mesh(module: &Module) -> Option<DerivedMesh> {
    let mut derived = derive(module)?;
    let context = GroupContext::of(module);
    if !context.header_is_silent()
        && let Some(devices) = context.devices()
        && devices > 1
        && devices < derived.mesh.device_count()
        && let Ok(mesh) = derived.mesh.clone().with_slices(derived.mesh.device_count() / devices)
        && derived.mesh.device_count().is_multiple_of(devices)
    {
        derived.mesh = mesh;
    }
    Some(derived)
}

fn derive(module: &Module) -> Option<DerivedMesh> {
    if let Some(derived) = of_header(module) {
        return Some(derived);
    }
    let entry = module.computation(module.entry()).rows().map(Row);
    let ends = entry.filter(|row| {
        module.opcode(*row) == Opcode::Parameter || module.flags(*row) & crate::ir::Flags::ROOT != 0
    });
    let ends = distinct(module, ends, "sharding");
    let entry = of_shardings(&ends, MeshSource::EntryShardings);
    let is_enough =
        |derived: &DerivedMesh| derived.mesh.axes().len() > 1 || !derived.invented_names;
    if let Some(derived) = entry.clone().filter(is_enough) {
        return Some(derived);
    }
    let all = distinct(module, module.rows_that_may_have("sharding"), "sharding");
    let finer = [of_shardings(&all, MeshSource::Shardings), of_groups(module)];
    let mut finer: Vec<DerivedMesh> = finer.into_iter().flatten().collect();
    // A single axis over all devices tells little, so a source that divides it is preferred.
    let better = |derived: &DerivedMesh| {
        let count = entry.as_ref().map(|entry| entry.mesh.device_count());
        is_enough(derived) && count.is_none_or(|count| count == derived.mesh.device_count())
    };
    if let Some(at) = finer.iter().position(better) {
        return Some(finer.swap_remove(at));
    }
    entry.or_else(|| finer.into_iter().next())
}

fn of_header(module: &Module) -> Option<DerivedMesh> {
    let span = module.header_attribute("frontend_attributes")?;
    let value = decode_header(b"frontend_attributes", module.bytes(span)).ok()?;
    let HeaderValue::Plain(AttributeValue::FrontendAttributes(attributes)) = value else {
        return None;
    };
    let text = attributes.iter().rfind(|attribute| attribute.key == b"xla.sdy.meshes")?;
    let meshes = shardy_meshes(&text.value);
    let counted = meshes.into_iter().map(|mesh| (mesh, 1)).collect();
    most_devices(counted, MeshSource::ShardyMeshes)
}

/// The largest mesh; on a tie, the mesh named most often, then the first.
fn most_devices(meshes: Vec<(Mesh, u64)>, source: MeshSource) -> Option<DerivedMesh> {
    let all: u64 = meshes.iter().map(|(_, count)| count).sum();
    let rank = |(mesh, count): &(Mesh, u64)| (mesh.device_count(), *count);
    let (mesh, evidence) = meshes.into_iter().rev().max_by_key(rank)?;
    Some(DerivedMesh { mesh, source, invented_names: false, evidence, ignored: all - evidence })
}

/// The distinct values of attribute `key` with their number of instructions, in text order.
fn distinct<'m>(
    module: &'m Module,
    rows: impl Iterator<Item = Row>,
    key: &str,
) -> Vec<(&'m [u8], u64)> {
    let mut values: Vec<(&[u8], u64)> = Vec::new();
    let mut places: HashMap<&[u8], usize, BuildMix> = HashMap::default();
    for row in rows {
        let Some(value) = module.attribute_bytes(row, key) else { continue };
        let place = *places.entry(value).or_insert_with(|| {
            values.push((value, 0));
            values.len() - 1
        });
        if let Some((_, count)) = values.get_mut(place) {
            *count += 1;
        }
    }
    values
}

fn of_shardings(values: &[(&[u8], u64)], source: MeshSource) -> Option<DerivedMesh> {
    let mut named: Vec<(Mesh, u64)> = Vec::new();
    let mut tilings = Tilings::default();
    for (value, count) in values {
        let Ok(AttributeValue::Sharding(sharding)) = decode(b"sharding", Opcode::Add, value) else {
            continue;
        };
        for leaf in sharding.leaves() {
            match &leaf.placement {
                Placement::Named(placement) => add_named(&mut named, &placement.mesh, *count),
                Placement::Tiled(tiles) => tilings.add(tiles, *count),
                _ => {}
            }
        }
    }
    if named.iter().any(|(mesh, _)| mesh.device_count() > 1) {
        return most_devices(named, MeshSource::NamedShardings);
    }
    tilings.mesh(source)
}

fn add_named(named: &mut Vec<(Mesh, u64)>, mesh: &WrittenMesh<'_>, count: u64) {
    let Some(mesh) = of_written(mesh) else { return };
    match named.iter_mut().find(|(known, _)| *known == mesh) {
        Some((_, total)) => *total += count,
        None => named.push((mesh, count)),
    }
}

/// The mesh that an attribute names; None for single devices and invalid meshes.
pub(super) fn of_written(mesh: &WrittenMesh<'_>) -> Option<Mesh> {
    if mesh.maximal.is_some() || mesh.axes.is_empty() {
        return None;
    }
    let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let axes = mesh.axes.iter().map(|(axis, size)| (name(axis), *size)).collect();
    let unordered = Mesh::new(axes).ok()?;
    match &mesh.device_ids {
        Some(order) => unordered.with_device_order(order).ok(),
        None => Some(unordered),
    }
}

/// Whether all axes are named `axis_0`, `axis_1`, ..., as XLA's partitioner invents them.
fn is_invented(mesh: &Mesh) -> bool {
    let invented = |(i, name): (usize, &str)| {
        name.strip_prefix("axis_").and_then(|number| number.parse().ok()) == Some(i)
    };
    mesh.axes().iter().map(|axis| axis.name.as_str()).enumerate().all(invented)
}

fn of_groups(module: &Module) -> Option<DerivedMesh> {
    let context = GroupContext::of(module);
    let rows = module.rows().filter(|row| DeviceGroups::has_groups(module.opcode(*row)));
    let mut named: Vec<(Mesh, u64)> = Vec::new();
    let mut tilings = Tilings::default();
    let mut seen: HashMap<(&[u8], Opcode), Option<DeviceGroups>, BuildMix> = HashMap::default();
    for row in rows {
        let Some(value) = module.attribute_bytes(row, "replica_groups") else { continue };
        let opcode = module.opcode(row);
        let groups = seen.entry((value, opcode)).or_insert_with(|| {
            let decoded = decode(b"replica_groups", opcode, value);
            if let Ok(AttributeValue::ReplicaGroups(ReplicaGroups::Mesh { mesh, .. })) = &decoded {
                add_named(&mut named, mesh, 1);
            }
            DeviceGroups::of_row(module, row, &context).ok()
        });
        if let Some(groups) = groups {
            tilings.add_groups(groups);
        }
    }
    named.retain(|(mesh, _)| !is_invented(mesh));
    if named.iter().any(|(mesh, _)| mesh.device_count() > 1) {
        return most_devices(named, MeshSource::NamedShardings);
    }
    tilings.mesh(MeshSource::ReplicaGroups)
}

/// Tilings of the devices, each stored as the borders between the digits of the device number.
#[derive(Default)]
struct Tilings {
    /// By number of devices: the borders seen.
    by_total: BTreeMap<u64, Borders>,
    /// The first irregular tiling: sizes and device order.
    irregular: Option<(Vec<u64>, DeviceOrder)>,
    irregular_count: u64,
}

#[derive(Default)]
struct Borders {
    counts: BTreeMap<u64, u64>,
    /// Each tiling's borders and its number of attributes.
    tilings: Vec<(Vec<u64>, u64)>,
}

impl Tilings {
    fn add(&mut self, tiles: &Tiles, count: u64) {
        let sizes: Option<Vec<u64>> =
            tiles.dimensions.iter().map(|size| u64::try_from(*size).ok()).collect();
        let Some(sizes) = sizes else { return };
        let total = sizes.iter().try_fold(1u64, |total, size| total.checked_mul(*size));
        let Some(total) = total.filter(|total| *total > 1 && i64::try_from(*total).is_ok()) else {
            return;
        };
        if tiles.devices.len() != Some(total) {
            return;
        }
        let mut digits = Vec::with_capacity(sizes.len());
        let mut stride = total;
        for size in &sizes {
            stride /= size;
            digits.push(Digit { stride, size: *size });
        }
        let moved = Permutation::from_order(&tiles.devices).and_then(|order| {
            let of_digit = |digit: &Digit| match digit.size {
                1 => Some(Vec::new()),
                _ => order.devices_of(&[*digit]),
            };
            digits.iter().map(of_digit).collect::<Option<Vec<_>>>()
        });
        match moved {
            Some(moved) => self.add_digits(moved.iter().flatten().copied(), total, count),
            None => {
                self.irregular_count += count;
                self.irregular.get_or_insert_with(|| (sizes, tiles.devices.clone()));
            }
        }
    }

    fn add_groups(&mut self, groups: &DeviceGroups) {
        if let Form::Regular { digits, device_count } = groups.form()
            && *device_count > 1
        {
            self.add_digits(digits.iter().copied(), *device_count, 1);
        } else {
            self.irregular_count += 1;
        }
    }

    fn add_digits(&mut self, digits: impl Iterator<Item = Digit>, total: u64, count: u64) {
        let inner = |border: &u64| *border > 1 && *border < total;
        let mut borders: Vec<u64> =
            digits.flat_map(|digit| [digit.stride, digit.end()]).filter(inner).collect();
        borders.sort_unstable();
        borders.dedup();
        let seen = self.by_total.entry(total).or_default();
        for border in &borders {
            *seen.counts.entry(*border).or_default() += count;
        }
        seen.tilings.push((borders, count));
    }

    /// The coarsest axes that express all tilings over the largest number of devices. If tilings
    /// contradict each other, borders in more attributes win.
    fn mesh(self, source: MeshSource) -> Option<DerivedMesh> {
        let others: u64 = self.irregular_count;
        let Some((total, borders)) = self.by_total.last_key_value() else {
            return self.irregular_mesh(source);
        };
        let mut by_count: Vec<(u64, u64)> =
            borders.counts.iter().map(|(border, count)| (*border, *count)).collect();
        by_count.sort_by_key(|(border, count)| (std::cmp::Reverse(*count), *border));
        let mut chain: Vec<u64> = Vec::new();
        for (border, _) in by_count {
            let at = chain.partition_point(|other| *other < border);
            let below = at.checked_sub(1).and_then(|below| chain.get(below));
            let above = chain.get(at).unwrap_or(total);
            let fits = below.is_none_or(|below| border.is_multiple_of(*below))
                && above.is_multiple_of(border);
            if fits {
                chain.insert(at, border);
            }
        }
        let (mut evidence, mut ignored) = (0, others);
        for (total, borders) in self.by_total.iter().rev() {
            for (tiling, count) in &borders.tilings {
                let fits = Some(total) == self.by_total.keys().next_back()
                    && tiling.iter().all(|border| chain.binary_search(border).is_ok());
                *(if fits { &mut evidence } else { &mut ignored }) += count;
            }
        }
        let mut sizes = Vec::with_capacity(chain.len() + 1);
        let mut above = *total;
        for border in chain.iter().rev().chain([&1]) {
            sizes.push(above / border);
            above = *border;
        }
        let mesh = unnamed(&sizes)?;
        Some(DerivedMesh { mesh, source, invented_names: true, evidence, ignored })
    }

    fn irregular_mesh(self, source: MeshSource) -> Option<DerivedMesh> {
        let (sizes, order) = self.irregular?;
        let sizes: Vec<u64> = sizes.into_iter().filter(|size| *size > 1).collect();
        let mesh = unnamed(&sizes)?.with_device_order(&order).ok()?;
        let (evidence, ignored) = (1, self.irregular_count.saturating_sub(1));
        Some(DerivedMesh { mesh, source, invented_names: true, evidence, ignored })
    }
}

fn unnamed(sizes: &[u64]) -> Option<Mesh> {
    let axis = |(i, size): (usize, &u64)| Some((format!("axis_{i}"), i64::try_from(*size).ok()?));
    Mesh::new(sizes.iter().enumerate().map(axis).collect::<Option<_>>()?).ok()
}
