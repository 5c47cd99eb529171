//! Spreads the written shardings over the values of a module, as XLA's propagation does.

use super::constant::constants;
use super::factors::Ties;
use super::parts::{Mask, Parts};
use super::settle::settle;
use super::ties::Collector;
use super::written::{Leaves, written};
use crate::comms::Mesh;
use crate::flow::{Contexts, NodeId, Values};
use crate::ir::{Module, Opcode, Row, ShapeView};
use std::collections::HashMap;
use std::ops::Range;

/// How every value is split.
pub(super) struct Spread<'a> {
    pub module: &'a Module,
    pub values: Values<'a>,
    pub parts: Parts,
    /// By value: its first dimension; then the number of dimensions.
    first: Vec<u32>,
    /// By dimension: its size, 0 if unknown.
    pub sizes: Vec<i64>,
    /// By dimension: the parts of the mesh along which it is split.
    pub masks: Vec<Mask>,
    /// By dimension: whether its sharding is written and closed to propagation.
    pub closed: Vec<bool>,
    /// By dimension: its value.
    pub owners: Vec<u32>,
    /// By dimension: the number of tiles in the text; 1 without a sharding.
    pub tiles: Vec<u64>,
    /// By value: the evidence for its sharding.
    pub known: Vec<Known>,
    /// By value: the parts along which its shape already is the shape of one device.
    pub local: Vec<Mask>,
    /// By value: whether every user recomputes it, so that it passes no sharding on.
    pub constant: Vec<bool>,
}

/// The evidence for the sharding of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Known {
    /// Other values imply the sharding.
    #[default]
    Implied,
    /// The sharding is written.
    Written,
    /// The sharding is written, but does not follow axes of the mesh.
    Irregular,
}

impl<'a> Spread<'a> {
    /// The written shardings of `module`, spread over its values. None if there are none, or if the
    /// module is too large.
    pub fn new(module: &'a Module, contexts: &'a Contexts, mesh: &Mesh) -> Option<Self> {
        let values = Values::new(module, contexts);
        if !values.is_split() {
            return None;
        }
        let all = Texts::of(module, mesh);
        let used = all.by_row.values().flat_map(|leaves| leaves.iter().flatten());
        let axes =
            used.flat_map(|written| written.axes.iter().flatten().flatten().chain(&written.manual));
        let parts = Parts::new(mesh, axes)?;
        let mut spread = Self {
            module,
            first: Vec::with_capacity(values.count + 1),
            sizes: Vec::new(),
            masks: Vec::new(),
            closed: Vec::new(),
            owners: Vec::new(),
            tiles: Vec::new(),
            known: vec![Known::Implied; values.count],
            local: vec![0; values.count],
            constant: Vec::new(),
            values,
            parts,
        };
        spread.measure(contexts)?;
        for node in 0..contexts.nodes.len() as NodeId {
            for row in module.computation(contexts.nodes[node as usize].computation).rows() {
                if let Some(leaves) = all.by_row.get(&row) {
                    spread.write(node, row, leaves);
                }
            }
        }
        spread.constrain(contexts);
        spread.constant = constants(&spread, contexts);
        let mut collector = Collector { module, spread: &spread, ties: Ties::default() };
        collector.program();
        let ties = collector.ties;
        settle(&mut spread, &ties);
        Some(spread)
    }

    /// Splits what is constrained as its constraint says, unless it has a sharding or other constraints, or a
    /// loop or call passes it on (`apply_sharding_constraints.cc` of Shardy).
    fn constrain(&mut self, contexts: &Contexts) {
        let module = self.module;
        for (node, own) in contexts.nodes.iter().enumerate() {
            let node = node as NodeId;
            let mut constraints: HashMap<u32, Option<u32>> = HashMap::new();
            for row in
                module.computation(own.computation).rows().filter(|row| is_constraint(module, *row))
            {
                if let [operand] = module.operands(Row(row)) {
                    let only = constraints.entry(*operand).or_insert(Some(row));
                    *only = only.filter(|first| *first == row);
                }
            }
            for (operand, constraint) in constraints {
                let Some(constraint) = constraint else { continue };
                let passed =
                    [Opcode::Parameter, Opcode::GetTupleElement, Opcode::OptBarrier, Opcode::Call];
                if passed.contains(&module.opcode(Row(operand))) {
                    continue;
                }
                let (from, to) = (self.values.of(node, constraint), self.values.of(node, operand));
                for (from, to) in from.zip(to) {
                    let (theirs, own) = (self.dimensions(from), self.dimensions(to));
                    if self.known[from] == Known::Written
                        && self.known[to] == Known::Implied
                        && theirs.len() == own.len()
                    {
                        self.masks.copy_within(theirs.clone(), own.start);
                        self.closed.copy_within(theirs, own.start);
                    }
                }
            }
        }
    }

    /// Numbers the dimensions of all values. None if there are far more than the text has bytes.
    fn measure(&mut self, contexts: &Contexts) -> Option<()> {
        let limit = self.module.text().len().saturating_mul(64).saturating_add(1 << 22);
        let shapes = self.module.shapes();
        // Rows of a node follow each other, and so do the values of nodes.
        let mut places: Vec<(usize, u32)> = Vec::new();
        for (node, record) in contexts.nodes.iter().enumerate() {
            for row in self.module.computation(record.computation).rows() {
                places.push((self.values.of(node as NodeId, row).start, row));
            }
        }
        places.sort_unstable();
        for (start, row) in places {
            if start != self.first.len()
                && self.values.module.shapes().leaf_count(self.module.shape(Row(row))) > 0
            {
                return None;
            }
            for leaf in shapes.leaves(self.module.shape(Row(row))) {
                let value = self.first.len() as u32;
                self.first.push(self.sizes.len() as u32);
                if let ShapeView::Array(array) = shapes.get(leaf) {
                    for dimension in array.dimensions() {
                        self.sizes.push(dimension.bound().unwrap_or(0));
                        self.owners.push(value);
                    }
                }
                if self.sizes.len() > limit {
                    return None;
                }
            }
        }
        (self.first.len() == self.values.count).then_some(())?;
        self.first.push(self.sizes.len() as u32);
        self.masks = vec![0; self.sizes.len()];
        self.tiles = vec![1; self.sizes.len()];
        self.closed = vec![false; self.sizes.len()];
        Some(())
    }

    /// The dimensions of `value`.
    pub fn dimensions(&self, value: usize) -> Range<usize> {
        self.first[value] as usize..self.first[value + 1] as usize
    }

    /// The parts along which `value` is split.
    pub fn used(&self, value: usize) -> Mask {
        self.masks[self.dimensions(value)].iter().fold(0, |all, mask| all | mask)
    }

    fn write(&mut self, node: NodeId, row: u32, leaves: &Leaves) {
        for (value, leaf) in self.values.of(node, row).zip(leaves.iter()) {
            let Some(leaf) = leaf else { continue };
            let dimensions = self.dimensions(value);
            if !leaf.tiles.is_empty() && leaf.tiles.len() != dimensions.len() {
                self.known[value] = Known::Irregular;
                continue;
            }
            let masks: Option<Vec<Mask>> = leaf
                .axes
                .as_ref()
                .and_then(|axes| axes.iter().map(|parts| self.parts.mask(parts)).collect());
            let local = self.parts.mask(&leaf.manual);
            let (Some(masks), Some(local)) = (masks, local) else {
                self.known[value] = Known::Irregular;
                for (at, tiles) in dimensions.zip(&leaf.tiles) {
                    self.tiles[at] = *tiles;
                    self.closed[at] = true;
                }
                continue;
            };
            self.known[value] = Known::Written;
            self.local[value] = local;
            for (index, at) in dimensions.enumerate() {
                self.tiles[at] = leaf.tiles.get(index).copied().unwrap_or(1);
                self.masks[at] = masks.get(index).copied().unwrap_or(0);
                self.closed[at] = !leaf.open.get(index).copied().unwrap_or(false);
            }
        }
    }
}

/// Whether an instruction only says how its operand is split.
fn is_constraint(module: &Module, row: u32) -> bool {
    let target = module.attribute_bytes(Row(row), "custom_call_target");
    module.opcode(Row(row)) == Opcode::CustomCall && target == Some(b"\"Sharding\"")
}

/// Sharding, frontend attributes and number of arrays of an instruction.
type Written<'a> = (&'a [u8], &'a [u8], u32);

/// The distinct shardings that the module writes, by row.
struct Texts {
    by_row: HashMap<u32, Leaves>,
}

impl Texts {
    fn of(module: &Module, mesh: &Mesh) -> Self {
        let finder = memchr::memmem::Finder::new(b"sharding");
        let mut known: HashMap<Written<'_>, Option<Leaves>> = HashMap::new();
        let mut by_row = HashMap::new();
        for row in module.rows() {
            if finder.find(module.bytes(module.tail(row))).is_none() {
                continue;
            }
            let own = |key| module.attribute_bytes(row, key).unwrap_or_default();
            let leaves = module.shapes().leaf_count(module.shape(row));
            let key = (own("sharding"), own("frontend_attributes"), leaves);
            let has_config = module.attribute(row, "backend_config").is_some();
            let sharding = match known.get(&key).filter(|_| !has_config) {
                Some(sharding) => sharding.clone(),
                None => {
                    let sharding = written(module, mesh, row, leaves as usize);
                    if !has_config {
                        known.insert(key, sharding.clone());
                    }
                    sharding
                }
            };
            if let Some(sharding) = sharding {
                by_row.insert(row.0, sharding);
            }
        }
        Self { by_row }
    }
}
