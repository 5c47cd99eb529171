//! Spreads the written shardings over the values of a module, as XLA's propagation does.

use super::parts::{Mask, Parts};
use super::ties::{Collector, Ties};
use super::written::{Leaves, written};
use crate::comms::Mesh;
use crate::flow::{Contexts, NodeId, Values};
use crate::ir::{Module, Row, ShapeView};
use std::collections::HashMap;
use std::ops::Range;

/// Limit on the sweeps over all instructions; in each sweep, shardings spread along the text.
const MOST_SWEEPS: usize = 64;

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
    closed: Vec<bool>,
    /// By dimension: its value.
    owners: Vec<u32>,
    /// By dimension: the number of tiles in the text; 1 without a sharding.
    pub tiles: Vec<u64>,
    /// By value: the evidence for its sharding.
    pub known: Vec<Known>,
    /// By value: the parts along which its shape already is the shape of one device.
    pub local: Vec<Mask>,
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
        let mut collector = Collector { module, spread: &spread, ties: Ties::default() };
        for node in 0..contexts.nodes.len() as NodeId {
            collector.node(node);
        }
        let ties = collector.ties;
        spread.settle(&ties);
        Some(spread)
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

    /// Applies all instructions until nothing changes. Instructions that only pass elements on come
    /// first.
    fn settle(&mut self, ties: &Ties) {
        for only_simple in [true, false] {
            for sweep in 0..MOST_SWEEPS {
                let mut is_changed = false;
                for step in 0..ties.len() {
                    let at = if sweep % 2 == 0 { step } else { ties.len() - 1 - step };
                    if !only_simple || ties.is_simple(at) {
                        is_changed |= self.apply_all(ties, at);
                    }
                }
                if !is_changed {
                    break;
                }
            }
        }
    }

    /// Applies the factors of instruction `at`. Of factors that want the same parts of the mesh, Shardy first
    /// applies the one whose split the largest array has (`aggressive_factor_propagation.cc`): a lookup is
    /// split as its table is, not as its indices are.
    fn apply_all(&mut self, ties: &Ties, at: usize) -> bool {
        let all = |spread: &Self, factor: &[u32]| -> Mask {
            factor.iter().fold(0, |all, own| all | spread.masks[*own as usize])
        };
        let (mut seen, mut are_apart) = (0, true);
        for factor in ties.of(at) {
            let own = all(self, factor);
            are_apart &= seen & own == 0;
            seen |= own;
        }
        let mut is_changed = false;
        if are_apart {
            for factor in ties.of(at) {
                is_changed |= self.apply(factor);
            }
            return is_changed;
        }
        let mut factors: Vec<(i128, &[u32])> = ties
            .of(at)
            .map(|factor| {
                let most = all(self, factor);
                let has = |own: &&u32| most != 0 && self.masks[**own as usize] == most;
                let sources = factor.iter().filter(has).map(|own| self.elements(*own));
                (sources.max().unwrap_or(0), factor)
            })
            .collect();
        factors.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
        for (_, factor) in factors {
            is_changed |= self.apply(factor);
        }
        is_changed
    }

    /// Elements of the value that a dimension belongs to.
    fn elements(&self, dimension: u32) -> i128 {
        let sizes = &self.sizes[self.dimensions(self.owners[dimension as usize] as usize)];
        sizes.iter().fold(1i128, |product, size| product.saturating_mul(i128::from(*size)))
    }

    /// Gives all open dimensions of a factor the split of the dimension that is split most.
    fn apply(&mut self, factor: &[u32]) -> bool {
        let mut most: Mask = 0;
        let mut local: Mask = 0;
        for dimension in factor {
            let mask = self.masks[*dimension as usize];
            if mask | most != mask && mask | most != most {
                return false;
            }
            most |= mask;
            local |= self.local[self.owners[*dimension as usize] as usize];
        }
        let mut is_changed = false;
        let tiles = self.parts.size(most);
        for dimension in factor {
            let at = *dimension as usize;
            let value = self.owners[at] as usize;
            if self.local[value] | local != self.local[value] {
                self.local[value] |= local;
                is_changed = true;
            }
            let own = self.masks[at];
            if own == most || self.closed[at] {
                continue;
            }
            let is_divisible = u64::try_from(self.sizes[at]).is_ok_and(|size| size % tiles == 0);
            if is_divisible
                && (self.used(value) & !own) & most == 0
                && self.local[value] & most == 0
            {
                self.masks[at] = most;
                is_changed = true;
            }
        }
        is_changed
    }
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
