//! Pipeline stages as Alpa writes them: sections between markers, the values that sections, stages
//! and meshes exchange, and the memory of each further micro-batch in flight.
//!
//! Start at [`stages`]. The sections themselves are found in `flow/markers.rs`.

mod boundary;
mod elements;
mod memory;
mod micro_batches;

pub use boundary::{Boundary, Cut};
pub use memory::StageMemory;
pub use micro_batches::{Division, MicroBatches};

use crate::comms::{CrossMeshReduction, cross_mesh_reduction, is_cross_mesh_reduce};
use crate::cost::Cost;
use crate::cost::matmul::contraction;
use crate::flow::markers::{Reached, markers, name_and_mark, through_calls};
use crate::flow::{self, Attribution, Phase, source_of};
use crate::ir::decode::marker_sizes;
use crate::ir::{ElementType, Module, Opcode, Row, ShapeId};
use crate::remat::{Residual, ResidualKind, residuals};
use elements::{Elements, Source};
use std::collections::HashMap;

/// Options of the analysis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The largest share of the forward section's FLOPs that an alternative cut may move to the
    /// previous stage.
    pub most_moved: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { most_moved: 0.5 }
    }
}

/// A pipeline marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The row of the entry that is the marker or leads to it through calls.
    pub place: Row,
    /// The row of the marker.
    pub row: Row,
    /// The number of calls between `place` and `row`.
    pub calls: u32,
    /// The name of the marker's section; empty without a section.
    pub name: String,
    /// `start`, `end` or another mark; empty without a mark.
    pub mark: String,
    /// The sizes in its `backend_config`; None if it holds no list of 64-bit integers.
    pub sizes: Option<Vec<i64>>,
    /// Bytes of the arrays that pass through it; empty if there are far too many.
    pub leaves: Vec<Option<u64>>,
}

/// A section between two markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name, phase and markers.
    pub bounds: flow::Section,
    /// Number of instructions in the entry.
    pub instructions: u64,
    /// Matmuls and convolutions, including called computations.
    pub products: u64,
    /// FLOPs of matmuls and convolutions.
    pub product_flops: i128,
    /// FLOPs of all instructions.
    pub flops: i128,
    /// Bytes of the arrays that enter through its first marker; None if unbounded.
    pub bytes_in: Option<u64>,
    /// Bytes of the arrays that leave through its last marker; None if unbounded.
    pub bytes_out: Option<u64>,
}

/// The kind of a value that the backward section reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StashKind {
    /// Computed by the forward section.
    Kept(ResidualKind),
    /// An input of the micro-batch, read again.
    Input,
    /// A constant.
    Constant,
    /// A parameter that the stage holds anyway.
    State,
}

impl StashKind {
    /// The name used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            StashKind::Kept(kind) => kind.as_str(),
            StashKind::Input => "input",
            StashKind::Constant => "constant",
            StashKind::State => "state",
        }
    }
}

/// A value kept from the forward to the backward section of a micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StashItem {
    /// Its index at the backward section's first marker.
    pub index: u32,
    /// Its index at the forward section's last marker; None if the value does not pass through this
    /// marker.
    pub forward_index: Option<u32>,
    /// The backward section that reads it.
    pub section: u32,
    /// Its shape.
    pub shape: ShapeId,
    /// Bytes; None if unbounded.
    pub bytes: Option<u64>,
    /// Its kind.
    pub kind: StashKind,
    /// The row that computes it.
    pub source: Row,
    /// For a copy of a weight: the parameter.
    pub weight: Option<Row>,
    /// For a copy in a wider type: the weight's element type.
    pub widened_from: Option<ElementType>,
}

/// A cross-mesh reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossMesh {
    /// The custom call.
    pub row: Row,
    /// The row of the entry that is the custom call or leads to it through calls.
    pub place: Row,
    /// The section that contains it.
    pub section: Option<u32>,
    /// The operation and the meshes; None if the text cannot be read.
    pub reduction: Option<CrossMeshReduction>,
    /// The array that is reduced.
    pub shape: ShapeId,
    /// Bytes of the array.
    pub bytes: Option<u64>,
}

/// The stages of a module.
#[derive(Clone, Debug, Default)]
pub struct Stages {
    /// In the order in which the entry reaches them.
    pub markers: Vec<Marker>,
    /// In the order of their first markers.
    pub sections: Vec<Section>,
    /// By backward section, in the order of its first marker.
    pub stash: Vec<StashItem>,
    /// The values that the first forward section receives from the previous stage.
    pub boundary: Option<Boundary>,
    /// Cross-mesh reductions.
    pub cross_mesh: Vec<CrossMesh>,
    /// The number of micro-batches in a step.
    pub micro_batches: MicroBatches,
    /// The memory of the stage; None if it cannot be analysed.
    pub memory: Option<StageMemory>,
}

/// Analyses the stages of `module`. Without markers most of the result is empty.
pub fn stages(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    options: &Options,
) -> Stages {
    let elements = Elements::new(module, &attribution.sections);
    let costs = RowCosts::new(module, cost, attribution);
    let residuals = residuals(module, cost, attribution);
    let stash = stash(&elements, &residuals);
    let memory = memory::stage_memory(&elements, &stash);
    Stages {
        markers: all_markers(module),
        sections: sections(&elements, &costs),
        boundary: boundary::boundary(&elements, &costs, options),
        cross_mesh: cross_mesh(&elements),
        micro_batches: micro_batches::micro_batches(&elements),
        memory,
        stash,
    }
}

/// Bytes of the result of `row`; None if unbounded.
fn row_bytes(module: &Module, row: Row) -> Option<u64> {
    let bytes = module.shape_bytes_column().get(row.0 as usize)?;
    u64::try_from(*bytes).ok()
}

/// Limit on the arrays of markers that are examined in a module.
const MOST_LEAVES: u32 = 1 << 20;

fn all_markers(module: &Module) -> Vec<Marker> {
    let shapes = module.shapes();
    let array_bytes = |leaf| shapes.array(leaf).and_then(|array| array.logical_bytes());
    let mut left = MOST_LEAVES;
    let describe = |reached: Reached| {
        let (name, mark) = name_and_mark(module, reached.row).unwrap_or_default();
        let config = module.backend_config(reached.row);
        let shape = module.shape(reached.row);
        let rest = left.checked_sub(shapes.leaf_count(shape));
        left = rest.unwrap_or(0);
        Marker {
            place: reached.place,
            row: reached.row,
            calls: reached.calls,
            name,
            mark,
            sizes: config.and_then(|config| marker_sizes(&config)),
            leaves: rest.map_or(Vec::new(), |_| shapes.leaves(shape).map(array_bytes).collect()),
        }
    };
    markers(module).into_iter().map(describe).collect()
}

/// Costs of rows of the entry, including called computations.
#[derive(Clone, Debug, Default)]
struct RowCost {
    products: u64,
    product_flops: i128,
    flops: i128,
}

impl RowCost {
    fn add(&mut self, other: &RowCost, times: i128) {
        let times_u64 = u64::try_from(times).unwrap_or(u64::MAX);
        self.products = self.products.saturating_add(other.products.saturating_mul(times_u64));
        let product_flops = other.product_flops.saturating_mul(times);
        self.product_flops = self.product_flops.saturating_add(product_flops);
        self.flops = self.flops.saturating_add(other.flops.saturating_mul(times));
    }
}

/// By row of the entry, from the entry's first row on.
struct RowCosts {
    first: u32,
    of: Vec<RowCost>,
}

impl RowCosts {
    fn new(module: &Module, cost: &Cost, attribution: &Attribution) -> Self {
        let contexts = &attribution.contexts;
        let entry = module.computation(module.entry()).rows();
        let mut of = vec![RowCost::default(); entry.len()];
        let mut of_nodes = vec![RowCost::default(); contexts.nodes.len()];
        let of_row = |row: u32| {
            let product = contraction(module, Row(row));
            RowCost {
                products: u64::from(product.is_some()),
                product_flops: product.map_or(0, |product| i128::from(product.flops)),
                flops: cost.flops.get(row as usize).copied().map_or(0, i128::from),
            }
        };
        // Nodes come after their callers.
        for node in (0..contexts.nodes.len()).rev() {
            for row in module.computation(contexts.nodes[node].computation).rows() {
                let own = of_row(row);
                match node {
                    0 => of[(row - entry.start) as usize].add(&own, 1),
                    _ => of_nodes[node].add(&own, 1),
                }
            }
            for edge in contexts.edges_of(node as u32) {
                let Some(times) = cost.call_times.get(edge.call as usize) else { continue };
                let callee = of_nodes[edge.callee as usize].clone();
                let row = module.all_calls()[edge.call as usize].row.0;
                match node {
                    0 => of[(row - entry.start) as usize].add(&callee, i128::from(times.times)),
                    _ => of_nodes[node].add(&callee, i128::from(times.times)),
                }
            }
        }
        RowCosts { first: entry.start, of }
    }

    fn of(&self, row: Row) -> RowCost {
        let at = row.0.checked_sub(self.first).map(|at| at as usize);
        at.and_then(|at| self.of.get(at)).cloned().unwrap_or_default()
    }
}

fn sections(elements: &Elements<'_>, costs: &RowCosts) -> Vec<Section> {
    let module = elements.module;
    let bytes = |row| row_bytes(module, row);
    let mut sections: Vec<Section> = elements
        .sections
        .sections
        .iter()
        .map(|section| Section {
            bounds: section.clone(),
            instructions: 0,
            products: 0,
            product_flops: 0,
            flops: 0,
            bytes_in: bytes(section.start),
            bytes_out: section.end.and_then(bytes),
        })
        .collect();
    for row in elements.rows() {
        let section = elements.section(row).and_then(|id| sections.get_mut(id as usize));
        let Some(section) = section else { continue };
        let cost = costs.of(row);
        section.instructions += 1;
        section.products = section.products.saturating_add(cost.products);
        section.product_flops = section.product_flops.saturating_add(cost.product_flops);
        section.flops = section.flops.saturating_add(cost.flops);
    }
    sections
}

fn stash(elements: &Elements<'_>, residuals: &[Residual]) -> Vec<StashItem> {
    let module = elements.module;
    let made: HashMap<Row, &Residual> =
        residuals.iter().map(|residual| (residual.made_by, residual)).collect();
    let mut items = Vec::new();
    let sections = elements.sections.sections.iter().enumerate();
    for (id, section) in sections.filter(|(_, section)| section.phase == Phase::Backward) {
        for (index, element) in elements.of_marker(section.start).into_iter().enumerate() {
            let source = source_of(module, element, false);
            let residual = made.get(&source);
            let kind = match elements.source(source) {
                Source::State => StashKind::State,
                Source::Input => StashKind::Input,
                Source::Constant => StashKind::Constant,
                // Values of other backward sections are not kept from the forward section.
                Source::Section(id) if !elements.is_forward(id) => continue,
                Source::Section(_) | Source::Elsewhere => StashKind::Kept(
                    residual.map_or(ResidualKind::Activation, |residual| residual.kind),
                ),
            };
            let is_copy = kind == StashKind::Kept(ResidualKind::WeightCopy);
            items.push(StashItem {
                index: index as u32,
                forward_index: elements.forward_index(element),
                section: id as u32,
                shape: module.shape(element),
                bytes: row_bytes(module, element),
                kind,
                source,
                weight: residual.filter(|_| is_copy).map(|residual| residual.source),
                widened_from: residual.and_then(|residual| residual.widened_from),
            });
        }
    }
    items
}

fn cross_mesh(elements: &Elements<'_>) -> Vec<CrossMesh> {
    let module = elements.module;
    let rows = module.rows().filter(|row| is_cross_mesh_reduce(module, *row));
    let describe = |reached: &Reached| CrossMesh {
        row: reached.row,
        place: reached.place,
        section: elements.section(reached.place),
        reduction: cross_mesh_reduction(module, reached.row),
        shape: module.shape(reached.row),
        bytes: row_bytes(module, reached.row),
    };
    through_calls(module, rows).iter().map(describe).collect()
}

/// Whether `row` is a constant or a broadcast of one.
fn constant_of(module: &Module, row: Row) -> Option<Row> {
    match module.opcode(row) {
        Opcode::Constant => Some(row),
        Opcode::Broadcast | Opcode::Convert | Opcode::Reshape | Opcode::Bitcast => {
            let operand = Row(*module.operands(row).first()?);
            (module.opcode(operand) == Opcode::Constant).then_some(operand)
        }
        _ => None,
    }
}
