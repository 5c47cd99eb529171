//! The share of one device in a module whose shapes cover all devices together. Written shardings
//! determine a part of the shares; the rest has bounds.
//!
//! Parameters, results and annotated values follow from their own shardings. Matmuls follow from
//! the shardings of their operands and results, which [`shares`] spreads over the module as XLA's
//! propagation does. A product whose result is split n ways and whose contraction is split m ways
//! costs each device 1/(n m) of the whole.

mod constant;
mod exchanged;
mod factors;
mod local;
mod parts;
mod settle;
mod spread;
mod ties;
mod written;

pub use local::{Local, LocalProduct};

use crate::comms::{DerivedMesh, Mesh, MeshSource};
use crate::cost::Cost;
use crate::cost::matmul::{contraction, dot_dimensions};
use crate::flow::{Contexts, NodeId, multiplicities};
use crate::ir::decode::{DimensionLabel, DimensionLabels};
use crate::ir::{Module, Opcode, Row, ShapeId, ShapeView};
use crate::summary::Status;
use parts::Mask;
use spread::{Known, Spread};
use std::ops::Range;
pub(crate) use written::{Written, written};

/// Number of devices that the shapes of a module cover together; 1 if they are the shapes of one
/// device. `mesh` is the mesh derived from the text.
///
/// Before partitioning, shapes cover all partitions. In text that no compiler pass has printed,
/// only the shardings show the number of partitions.
pub fn devices_together<'a>(
    module: &Module,
    status: Status,
    mesh: impl FnOnce() -> Option<&'a DerivedMesh>,
) -> u64 {
    if !matches!(status, Status::Unoptimised | Status::Annotated) {
        return 1;
    }
    if module.header_attribute("num_partitions").is_some() {
        return u64::try_from(module.num_partitions().unwrap_or(1)).unwrap_or(1).max(1);
    }
    // Groups of collectives may consist of replicas, each with arrays of its own.
    let written = mesh().filter(|mesh| mesh.source != MeshSource::ReplicaGroups);
    written.map_or(1, |derived| derived.mesh.device_count())
}

/// The evidence for the bytes of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The sharding that the module writes for the array.
    Written,
    /// Shardings of other values; XLA may choose another sharding.
    Implied,
    /// There is no evidence.
    Unknown,
}

impl Source {
    /// The name used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Written => "written",
            Source::Implied => "implied",
            Source::Unknown => "unknown",
        }
    }
}

/// Bytes of an array, of all devices and of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// The whole array.
    pub whole: i64,
    /// Bytes on each device; the bytes of the whole array if unknown.
    pub device: i64,
    /// The fewest bytes that a device may hold.
    pub least: i64,
    /// The most bytes that a device may hold.
    pub most: i64,
    /// The evidence for `device`.
    pub source: Source,
}

/// An array of the module: a leaf of a parameter, of the result or of an annotated value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Its row.
    pub row: Row,
    /// The number of the leaf.
    pub leaf: u32,
    /// Its shape.
    pub shape: ShapeId,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A matmul or convolution and its executions in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Its row.
    pub row: Row,
    /// FLOPs of all devices together.
    pub whole: i128,
    /// The fewest FLOPs of a device.
    pub least: i128,
    /// The most FLOPs of a device; equal to `least` if the shardings determine the share.
    pub most: i128,
}

impl Product {
    /// Whether the shardings determine the FLOPs of a device.
    pub fn is_determined(&self) -> bool {
        self.least == self.most
    }
}

/// The share of one device.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    /// Number of devices that the shapes cover together.
    pub devices: u64,
    /// Arrays of the entry's parameters.
    pub parameters: Vec<Array>,
    /// Arrays of the entry's result; their row is the root.
    pub results: Vec<Array>,
    /// Other arrays whose shardings are written.
    pub annotated: Vec<Array>,
    /// Matmuls and convolutions, by row.
    pub products: Vec<Product>,
    /// Whether the module writes any sharding that splits or replicates a value.
    pub is_written: bool,
}

/// The share of one device of `devices` in `module`, whose arrays lie on `mesh`.
pub fn shares(module: &Module, cost: &Cost, mesh: Option<&Mesh>, devices: u64) -> Shares {
    let contexts = Contexts::by_call(module);
    let devices = devices.max(1);
    // `{replicated}` names no devices.
    let line = i64::try_from(devices).ok();
    let line = line.and_then(|count| Mesh::new(vec![("devices".to_owned(), count)]).ok());
    let fitting = mesh.filter(|mesh| mesh.device_count() == devices).or(line.as_ref());
    let spread = fitting.and_then(|mesh| Spread::new(module, &contexts, mesh));
    let is_written =
        |spread: &Spread<'_>| spread.known.iter().any(|known| *known != Known::Implied);
    let spread = spread.filter(is_written);
    let mut shares = Shares { devices, ..Shares::default() };
    let Some(spread) = spread else {
        shares.products = products(module, cost, &contexts, |_, _, _| None, devices);
        let entry = module.computation(module.entry());
        let rows = module.parameters(module.entry());
        shares.parameters = rows.iter().flat_map(|row| unknown(module, *row, devices)).collect();
        shares.results = unknown(module, Row(entry.root), devices);
        return shares;
    };
    shares.is_written = true;
    let entry = module.entry();
    for row in module.parameters(entry) {
        shares.parameters.extend(arrays(&spread, row, spread.values.of(0, row.0), devices));
    }
    // XLA chooses the shardings of other parameters.
    let is_complete = shares.parameters.iter().all(|own| own.bytes.source == Source::Written);
    shares.products = products(
        module,
        cost,
        &contexts,
        |node, row, flops| product(&spread, node, row, flops, (devices, is_complete)),
        devices,
    );
    let root = Row(module.computation(entry).root);
    shares.results = results(&spread, root, devices);
    for row in module.rows() {
        let computation = module.computation_of(row);
        if row == root || computation == entry && module.opcode(row) == Opcode::Parameter {
            continue;
        }
        let values = spread.values.of(contexts.first_node(computation), row.0);
        if values.clone().any(|value| spread.known[value] != Known::Implied) {
            let all = arrays(&spread, row, values, devices);
            shares.annotated.extend(all.filter(|array| array.bytes.source == Source::Written));
        }
    }
    shares
}

/// The arrays of `row`, with unknown shares.
fn unknown(module: &Module, row: Row, devices: u64) -> Vec<Array> {
    let shapes = module.shapes();
    let leaves = shapes.leaves(module.shape(row)).enumerate();
    leaves
        .map(|(leaf, shape)| {
            let whole = whole_bytes(module, shape);
            let is_scalar = shapes.array(shape).is_some_and(|array| array.rank() == 0);
            let bytes = if is_scalar { replicated(whole) } else { unsure(whole, devices) };
            Array { row, leaf: leaf as u32, shape, bytes }
        })
        .collect()
}

fn whole_bytes(module: &Module, shape: ShapeId) -> i64 {
    module.shapes().logical_bytes(shape).and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(0)
}

fn replicated(whole: i64) -> Bytes {
    Bytes { whole, device: whole, least: whole, most: whole, source: Source::Written }
}

fn unsure(whole: i64, devices: u64) -> Bytes {
    let devices = i64::try_from(devices).unwrap_or(i64::MAX).max(1);
    let least = whole / devices + i64::from(whole % devices != 0);
    Bytes { whole, device: whole, least, most: whole, source: Source::Unknown }
}

/// The arrays of `row`, whose values are `values`.
fn arrays<'s>(
    spread: &'s Spread<'_>,
    row: Row,
    values: Range<usize>,
    devices: u64,
) -> impl Iterator<Item = Array> + 's {
    let shapes = spread.module.shapes();
    let leaves = shapes.leaves(spread.module.shape(row)).zip(values).enumerate();
    leaves.map(move |(leaf, (shape, value))| {
        let bytes = bytes(spread, shape, value, devices);
        Array { row, leaf: leaf as u32, shape, bytes }
    })
}

fn bytes(spread: &Spread<'_>, shape: ShapeId, value: usize, devices: u64) -> Bytes {
    let local = i64::try_from(spread.parts.size(spread.local[value])).unwrap_or(1);
    let written = whole_bytes(spread.module, shape);
    let whole = written.saturating_mul(local);
    let ShapeView::Array(array) = spread.module.shapes().get(shape) else {
        return replicated(whole);
    };
    if array.rank() == 0 {
        return replicated(whole);
    }
    let dimensions = spread.dimensions(value);
    let (tiles, source): (Vec<u64>, Source) = match spread.known[value] {
        Known::Written | Known::Irregular => {
            (spread.tiles[dimensions.clone()].to_vec(), Source::Written)
        }
        Known::Implied => {
            let sizes = spread.masks[dimensions.clone()].iter();
            (sizes.map(|mask| spread.parts.size(*mask)).collect(), Source::Implied)
        }
    };
    // Tiles at the end of an uneven dimension are padded.
    let tile = |(size, tiles): (&i64, &u64)| Some(u64::try_from(*size).ok()?.div_ceil(*tiles));
    let per_tile: Option<u64> = spread.sizes[dimensions]
        .iter()
        .zip(&tiles)
        .map(tile)
        .try_fold(1u64, |product, size| product.checked_mul(size?));
    let elements = array.elements().filter(|elements| *elements > 0);
    let device = per_tile.zip(elements).map(|(tile, elements)| {
        i64::try_from(i128::from(written) * i128::from(tile) / i128::from(elements))
            .unwrap_or(whole)
    });
    match (device, source) {
        (Some(device), Source::Written) => {
            Bytes { whole, device, least: device, most: device, source }
        }
        (Some(device), source) => Bytes { device, source, ..unsure(whole, devices) },
        (None, _) => Bytes { source, ..unsure(whole, devices) },
    }
}

/// The arrays of the entry's result. The sharding of a result may be written on the root or on the
/// root's operand.
fn results(spread: &Spread<'_>, root: Row, devices: u64) -> Vec<Array> {
    let own: Vec<Array> = arrays(spread, root, spread.values.of(0, root.0), devices).collect();
    if spread.module.opcode(root) != Opcode::Tuple {
        return own;
    }
    let operands = spread.module.operands(root).iter();
    let theirs = operands.flat_map(|row| {
        let values = spread.values.of(0, *row);
        arrays(spread, Row(*row), values, devices).map(|array| array.bytes)
    });
    let better = |(own, theirs): (&Array, Bytes)| match (own.bytes.source, theirs.source) {
        (Source::Written, _) => *own,
        (_, Source::Written) => Array { bytes: theirs, ..*own },
        _ => *own,
    };
    own.iter().zip(theirs).map(better).collect()
}

/// All matmuls and convolutions. `share` gives the FLOPs of one call.
fn products(
    module: &Module,
    cost: &Cost,
    contexts: &Contexts,
    share: impl Fn(NodeId, Row, i128) -> Option<Product>,
    devices: u64,
) -> Vec<Product> {
    let times = |call: usize| cost.call_times.get(call).map(|link| link.times);
    let counts = multiplicities(contexts, times);
    let mut products = Vec::new();
    for row in module.rows() {
        let Some(contraction) = contraction(module, row) else { continue };
        let flops = i128::from(contraction.flops);
        let mut all = Product { row, whole: 0, least: 0, most: 0 };
        for node in contexts.nodes_of(module.computation_of(row)) {
            let count = i128::from(counts.get(node as usize).copied().flatten().unwrap_or(0));
            let unsure =
                Product { row, whole: flops, least: flops / i128::from(devices), most: flops };
            let product = share(node, row, flops).unwrap_or(unsure);
            all.whole += product.whole * count;
            all.least += product.least * count;
            all.most += product.most * count;
        }
        products.push(all);
    }
    products
}

/// The share of one device in `flops`, the FLOPs of one call of product `row` as written.
/// `is_complete` tells whether the module writes the shardings of all parameters.
fn product(
    spread: &Spread<'_>,
    node: NodeId,
    row: Row,
    flops: i128,
    (devices, is_complete): (u64, bool),
) -> Option<Product> {
    let module = spread.module;
    let value = |row: u32| {
        let values = spread.values.of(node, row);
        (values.len() == 1).then_some(values.start)
    };
    let [lhs, rhs] = module.operands(row) else { return None };
    let (lhs, rhs, out) = (value(*lhs)?, value(*rhs)?, value(row.0)?);
    let all = [lhs, rhs, out];
    if all.iter().any(|value| spread.known[*value] == Known::Irregular) {
        return None;
    }
    let along = |value: usize, dimensions: &[usize]| -> Mask {
        let masks = &spread.masks[spread.dimensions(value)];
        dimensions.iter().filter_map(|at| masks.get(*at)).fold(0, |all, mask| all | mask)
    };
    let (left, right) = contracted(module, row)?;
    // Devices sum over axes along which both sides are contracted. XLA may gather an axis that only
    // one side has.
    let certain = spread.used(out) | along(lhs, &left) & along(rhs, &right);
    let possible = spread.used(out) | spread.used(lhs) | spread.used(rhs);
    let local = all.iter().fold(0, |mask, value| mask | spread.local[*value]);
    let ways = |mask: Mask| i128::from(spread.parts.size(mask)).max(1);
    let whole = flops * ways(local);
    let most = flops / ways(certain & !local);
    let is_known = certain == possible && is_complete || ways(certain | local) == devices.into();
    let least = if is_known { most } else { whole / i128::from(devices) };
    Some(Product { row, whole, least: least.min(most), most })
}

/// The contracted dimensions of the operands.
fn contracted(module: &Module, row: Row) -> Option<(Vec<usize>, Vec<usize>)> {
    match module.opcode(row) {
        Opcode::Dot => {
            let lists = dot_dimensions(module, row)?;
            let read = |list: &[i64]| -> Option<Vec<usize>> {
                list.iter().map(|at| usize::try_from(*at).ok()).collect()
            };
            Some((read(&lists.lhs_contracting)?, read(&lists.rhs_contracting)?))
        }
        Opcode::Convolution => {
            let labels = ties::labels(module, row)?;
            let at = |list: &[DimensionLabel], label| {
                DimensionLabels::position(list, label).into_iter().collect()
            };
            let left = at(&labels.lhs, DimensionLabel::Feature);
            Some((left, at(&labels.rhs, DimensionLabel::InputFeature)))
        }
        _ => None,
    }
}
