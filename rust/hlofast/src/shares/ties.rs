//! Finds, for each instruction, the dimensions of operands and results that are split together.
//!
//! As in XLA's propagation, an instruction is a list of factors. A factor is a set of dimensions of
//! operands and results that are split together. A dot has the factors batch, M, N and K.

use super::spread::Spread;
use crate::cost::matmul::{DotDimensions, dimensions, dot_dimensions};
use crate::flow::NodeId;
use crate::ir::decode::{AttributeValue, DimensionLabel, DimensionLabels, decode};
use crate::ir::{CallRole, Module, Opcode, Row};

/// The factors of all instructions.
#[derive(Debug, Default)]
pub(super) struct Ties {
    /// Dimensions, factor by factor.
    members: Vec<u32>,
    /// The end of each factor in `members`.
    factors: Vec<u32>,
    /// The end of each instruction in `factors`, and whether it only passes elements on.
    instructions: Vec<(u32, bool)>,
}

impl Ties {
    /// Number of instructions.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Whether instruction `at` only passes elements on or is elementwise.
    pub fn is_simple(&self, at: usize) -> bool {
        self.instructions[at].1
    }

    /// The factors of instruction `at`.
    pub fn of(&self, at: usize) -> impl Iterator<Item = &[u32]> {
        let start = at.checked_sub(1).map_or(0, |before| self.instructions[before].0 as usize);
        (start..self.instructions[at].0 as usize).map(|factor| {
            let first = factor.checked_sub(1).map_or(0, |before| self.factors[before] as usize);
            &self.members[first..self.factors[factor] as usize]
        })
    }

    fn factor(&mut self, members: impl IntoIterator<Item = Option<u32>>) {
        let before = self.members.len();
        self.members.extend(members.into_iter().flatten());
        if self.members.len() > before + 1 {
            self.factors.push(self.members.len() as u32);
        } else {
            self.members.truncate(before);
        }
    }

    fn end(&mut self, is_simple: bool) {
        let last = self.instructions.last().map_or(0, |(end, _)| *end);
        let end = self.factors.len() as u32;
        if end > last {
            self.instructions.push((end, is_simple));
        }
    }
}

/// The dimensions of one array value.
#[derive(Clone, Copy)]
struct Array<'s> {
    first: u32,
    sizes: &'s [i64],
}

impl Array<'_> {
    fn rank(&self) -> usize {
        self.sizes.len()
    }

    fn at(&self, dimension: usize) -> Option<u32> {
        (dimension < self.rank()).then(|| self.first + dimension as u32)
    }

    fn listed(&self, dimensions: &[i64], index: usize) -> Option<u32> {
        self.at(usize::try_from(*dimensions.get(index)?).ok()?)
    }

    /// The dimensions that are in none of `lists`.
    fn free(&self, lists: &[&[i64]]) -> Vec<u32> {
        let is_free =
            |dimension: &usize| !lists.iter().any(|list| list.contains(&(*dimension as i64)));
        (0..self.rank()).filter(is_free).filter_map(|dimension| self.at(dimension)).collect()
    }
}

/// Collects the factors of every instruction.
pub(super) struct Collector<'s, 'a> {
    pub module: &'a Module,
    pub spread: &'s Spread<'a>,
    pub ties: Ties,
}

impl<'s> Collector<'s, '_> {
    fn array(&self, node: NodeId, row: u32) -> Option<Array<'s>> {
        let values = self.spread.values.of(node, row);
        (values.len() == 1).then(|| self.leaf(values.start))
    }

    fn leaf(&self, value: usize) -> Array<'s> {
        let dimensions = self.spread.dimensions(value);
        Array { first: dimensions.start as u32, sizes: &self.spread.sizes[dimensions] }
    }

    /// Adds factors for values of equal shape whose dimensions are split together.
    fn same(&mut self, values: &[usize], is_simple: bool) {
        let arrays: Vec<Array<'_>> = values.iter().map(|value| self.leaf(*value)).collect();
        let Some(first) = arrays.first() else { return };
        for dimension in 0..first.rank() {
            let alike = arrays.iter().filter(|array| array.rank() == first.rank());
            self.ties.factor(alike.map(|array| array.at(dimension)));
        }
        self.ties.end(is_simple);
    }

    /// Ties each leaf of one range to the corresponding leaf of the other.
    fn pairs(&mut self, a: std::ops::Range<usize>, b: std::ops::Range<usize>) {
        if a.len() == b.len() {
            for (a, b) in a.zip(b) {
                self.same(&[a, b], true);
            }
        }
    }

    /// Adds the factors of all instructions of `node`, and of its calls.
    pub fn node(&mut self, node: NodeId) {
        let contexts = self.spread.values.contexts;
        let computation = contexts.nodes[node as usize].computation;
        if contexts.nodes[node as usize].is_applied {
            return;
        }
        for row in self.module.computation(computation).rows() {
            self.row(node, row);
        }
        let mut branch = (u32::MAX, 0);
        for edge in contexts.edges_of(node) {
            let call = &self.module.all_calls()[edge.call as usize];
            let row = call.row.0;
            branch = if branch.0 == row { (row, branch.1 + 1) } else { (row, 0) };
            let Some(arguments) = self.spread.values.arguments(edge, branch.1) else { continue };
            let callee = contexts.nodes[edge.callee as usize].computation;
            for parameter in self.module.parameters(callee) {
                if let Some(operand) = arguments.of_parameter(self.module, parameter.0) {
                    let theirs = self.spread.values.of(edge.callee, parameter.0);
                    self.pairs(self.spread.values.of(node, operand), theirs);
                }
            }
            if call.role != CallRole::Condition {
                let root = self.module.computation(callee).root;
                let theirs = self.spread.values.of(edge.callee, root);
                self.pairs(theirs, self.spread.values.of(node, row));
            }
            if self.module.opcode(call.row) == Opcode::While && call.role == CallRole::Body {
                for operand in self.module.operands(call.row).iter().take(1) {
                    let theirs = self.spread.values.of(node, *operand);
                    self.pairs(theirs, self.spread.values.of(node, row));
                }
            }
        }
    }

    fn row(&mut self, node: NodeId, row: u32) -> Option<()> {
        let module = self.module;
        let opcode = module.opcode(Row(row));
        let operands = module.operands(Row(row));
        let values = &self.spread.values;
        use Opcode::*;
        match opcode {
            Tuple => {
                let mut at = values.of(node, row).start;
                for operand in operands {
                    let theirs = values.of(node, *operand);
                    let count = theirs.len();
                    self.pairs(theirs, at..at + count);
                    at += count;
                }
                return Some(());
            }
            GetTupleElement => {
                let theirs = values.element(values.within(node), row, *operands.first()?);
                self.pairs(theirs, values.of(node, row));
                return Some(());
            }
            OptBarrier | Domain | Copy => {
                let theirs = values.of(node, *operands.first()?);
                self.pairs(theirs, values.of(node, row));
                return Some(());
            }
            CustomCall if is_identity(module, Row(row)) => {
                let theirs = values.of(node, *operands.first()?);
                self.pairs(theirs, values.of(node, row));
                return Some(());
            }
            Reduce => return self.reduce(node, row),
            Sort => return self.sort(node, row),
            _ => {}
        }
        let result = self.array(node, row)?;
        let array = |index: usize| self.array(node, *operands.get(index)?);
        match opcode {
            Transpose | Broadcast => {
                let operand = array(0)?;
                let map = dimensions(module, Row(row), "dimensions")?;
                // A transpose lists the operand's dimensions, a broadcast the result's.
                let (listed, other) =
                    if opcode == Transpose { (operand, result) } else { (result, operand) };
                for index in 0..map.len() {
                    let at = usize::try_from(*map.get(index)?).ok()?;
                    if listed.sizes.get(at) == other.sizes.get(index) {
                        self.ties.factor([listed.listed(&map, index), other.at(index)]);
                    }
                }
                self.ties.end(opcode == Transpose);
            }
            Reshape | Bitcast => {
                let operand = array(0)?;
                for (a, b) in aligned(operand.sizes, result.sizes) {
                    self.ties.factor([operand.at(a), result.at(b)]);
                }
                self.ties.end(true);
            }
            Dot => {
                let lists = dot_dimensions(module, Row(row))?;
                let (lhs, rhs) = (array(0)?, array(1)?);
                self.dot(&lists, lhs, rhs, result);
            }
            Convolution => self.convolution(Row(row), array(0)?, array(1)?, result)?,
            Gather => self.gather(Row(row), array(0)?, array(1)?, result)?,
            Scatter => self.scatter(Row(row), array(0)?, array(1)?, array(2)?, result)?,
            Concatenate | Slice | DynamicSlice | DynamicUpdateSlice | Pad | Reverse
            | ReduceWindow | SelectAndScatter => {
                let count = match opcode {
                    Concatenate => operands.len(),
                    DynamicUpdateSlice | SelectAndScatter => 2,
                    _ => 1,
                };
                let arrays: Vec<Array<'_>> = (0..count).filter_map(array).chain([result]).collect();
                for dimension in 0..result.rank() {
                    let size = result.sizes.get(dimension);
                    let alike = |array: &&Array<'_>| array.sizes.get(dimension) == size;
                    // A slice at an index may start anywhere, so that dimension is not tied. XLA splits one at
                    // a constant as the whole, such as the gates of a recurrence.
                    if opcode == Slice {
                        self.ties.factor(arrays.iter().map(|array| array.at(dimension)));
                    } else if opcode == DynamicUpdateSlice || arrays.iter().all(|own| alike(&own)) {
                        let members = arrays.iter().filter(alike);
                        self.ties.factor(members.map(|array| array.at(dimension)));
                    }
                }
                self.ties.end(false);
            }
            _ if opcode.is_elementwise() => {
                let mut all = vec![values.of(node, row).start];
                for operand in operands {
                    let theirs = values.of(node, *operand);
                    if theirs.len() == 1 && self.leaf(theirs.start).sizes == result.sizes {
                        all.push(theirs.start);
                    }
                }
                self.same(&all, true);
            }
            _ => {}
        }
        Some(())
    }

    fn dot(&mut self, lists: &DotDimensions, lhs: Array<'_>, rhs: Array<'_>, out: Array<'_>) {
        let batches = lists.lhs_batch.len();
        for index in 0..batches {
            self.ties.factor([
                lhs.listed(&lists.lhs_batch, index),
                rhs.listed(&lists.rhs_batch, index),
                out.at(index),
            ]);
        }
        let rows = lhs.free(&[&lists.lhs_batch, &lists.lhs_contracting]);
        let columns = rhs.free(&[&lists.rhs_batch, &lists.rhs_contracting]);
        for (index, dimension) in rows.iter().chain(&columns).enumerate() {
            self.ties.factor([Some(*dimension), out.at(batches + index)]);
        }
        for index in 0..lists.lhs_contracting.len() {
            self.ties.factor([
                lhs.listed(&lists.lhs_contracting, index),
                rhs.listed(&lists.rhs_contracting, index),
            ]);
        }
        self.ties.end(false);
    }

    fn convolution(
        &mut self,
        row: Row,
        lhs: Array<'_>,
        rhs: Array<'_>,
        out: Array<'_>,
    ) -> Option<()> {
        let labels = labels(self.module, row)?;
        let at = |array: Array<'_>, list: &[DimensionLabel], label| {
            array.at(DimensionLabels::position(list, label)?)
        };
        use DimensionLabel::{Batch, Feature, InputFeature, OutputFeature};
        let grouped = |key| self.module.attribute(row, key).is_some();
        // In grouped convolutions, features and batches run over groups as well.
        if !grouped("batch_group_count") {
            self.ties.factor([at(lhs, &labels.lhs, Batch), at(out, &labels.output, Batch)]);
        }
        if !grouped("feature_group_count") && !grouped("batch_group_count") {
            self.ties
                .factor([at(rhs, &labels.rhs, OutputFeature), at(out, &labels.output, Feature)]);
            self.ties.factor([at(lhs, &labels.lhs, Feature), at(rhs, &labels.rhs, InputFeature)]);
        }
        self.ties.end(false);
        Some(())
    }

    fn reduce(&mut self, node: NodeId, row: u32) -> Option<()> {
        let removed = dimensions(self.module, Row(row), "dimensions")?;
        let operands = self.module.operands(Row(row));
        let results = self.spread.values.of(node, row);
        let inputs = operands.get(..results.len())?;
        let first = self.array(node, *inputs.first()?)?;
        for (index, kept) in (0..first.rank())
            .filter(|dimension| !removed.contains(&(*dimension as i64)))
            .enumerate()
        {
            let theirs = inputs.iter().map(|row| self.array(node, *row)?.at(kept));
            let own = results.clone().map(|value| self.leaf(value).at(index));
            let members: Vec<Option<u32>> = theirs.chain(own).collect();
            self.ties.factor(members);
        }
        self.ties.end(false);
        Some(())
    }

    fn sort(&mut self, node: NodeId, row: u32) -> Option<()> {
        let sorted = dimensions(self.module, Row(row), "dimensions")?;
        let operands = self.module.operands(Row(row));
        let results = self.spread.values.of(node, row);
        let rank = self.leaf(results.start).rank();
        for dimension in (0..rank).filter(|dimension| !sorted.contains(&(*dimension as i64))) {
            let theirs = operands.iter().map(|row| self.array(node, *row)?.at(dimension));
            let own = results.clone().map(|value| self.leaf(value).at(dimension));
            let members: Vec<Option<u32>> = theirs.chain(own).collect();
            self.ties.factor(members);
        }
        self.ties.end(false);
        Some(())
    }

    fn gather(
        &mut self,
        row: Row,
        operand: Array<'_>,
        indices: Array<'_>,
        out: Array<'_>,
    ) -> Option<()> {
        let list = |key| dimensions(self.module, row, key);
        let (offsets, collapsed) = (list("offset_dims")?, list("collapsed_slice_dims")?);
        let batching = list("operand_batching_dims")?;
        let sizes = list("slice_sizes")?;
        let places = Places::of(self.module, row, "start_indices_batching_dims", indices)?;
        let own = out.free(&[&offsets]);
        for (index, dimension) in own.iter().enumerate() {
            self.ties.factor([
                Some(*dimension),
                places.dimensions.get(index).copied(),
                places.batching_of(index, &batching, operand),
            ]);
        }
        let kept = operand.free(&[&collapsed, &batching]);
        for (index, dimension) in kept.iter().enumerate() {
            let at = (*dimension - operand.first) as usize;
            if sizes.get(at) == operand.sizes.get(at) {
                self.ties.factor([Some(*dimension), out.listed(&offsets, index)]);
            }
        }
        self.ties.end(false);
        Some(())
    }

    fn scatter(
        &mut self,
        row: Row,
        operand: Array<'_>,
        indices: Array<'_>,
        updates: Array<'_>,
        out: Array<'_>,
    ) -> Option<()> {
        let list = |key| dimensions(self.module, row, key);
        let (windows, inserted) = (list("update_window_dims")?, list("inserted_window_dims")?);
        let batching = list("input_batching_dims")?;
        let places = Places::of(self.module, row, "scatter_indices_batching_dims", indices)?;
        let kept = operand.free(&[&inserted, &batching]);
        let scattered = updates.free(&[&windows]);
        for dimension in 0..operand.rank() {
            let id = operand.at(dimension)?;
            let window = kept.iter().position(|own| *own == id);
            let update = window.and_then(|index| updates.listed(&windows, index));
            let size = |id: u32| updates.sizes.get((id - updates.first) as usize);
            let update = update.filter(|id| size(*id) == operand.sizes.get(dimension));
            self.ties.factor([Some(id), out.at(dimension), update]);
        }
        for (index, dimension) in scattered.iter().enumerate() {
            self.ties.factor([
                Some(*dimension),
                places.dimensions.get(index).copied(),
                places.batching_of(index, &batching, operand),
            ]);
        }
        self.ties.end(false);
        Some(())
    }
}

/// The dimensions of the indices of a gather or scatter that list places.
struct Places {
    dimensions: Vec<u32>,
    /// Dimensions that are batching dimensions of the operand too.
    batching: Vec<u32>,
}

impl Places {
    fn of(module: &Module, row: Row, key: &str, indices: Array<'_>) -> Option<Self> {
        let text = module.attribute_bytes(row, "index_vector_dim")?;
        let Ok(AttributeValue::Integer(vector)) =
            decode(b"index_vector_dim", module.opcode(row), text)
        else {
            return None;
        };
        let batching = dimensions(module, row, key)?;
        let batching = (0..batching.len()).filter_map(|at| indices.listed(&batching, at));
        Some(Self { dimensions: indices.free(&[&[vector]]), batching: batching.collect() })
    }

    /// The batching dimension of `operand` for place `index`.
    fn batching_of(&self, index: usize, batching: &[i64], operand: Array<'_>) -> Option<u32> {
        let own = self.dimensions.get(index)?;
        let at = self.batching.iter().position(|dimension| dimension == own)?;
        operand.listed(batching, at)
    }
}

pub(super) fn labels(module: &Module, row: Row) -> Option<DimensionLabels> {
    let text = module.attribute_bytes(row, "dim_labels")?;
    match decode(b"dim_labels", Opcode::Convolution, text).ok()? {
        AttributeValue::DimensionLabels(labels) => Some(labels),
        _ => None,
    }
}

/// Custom calls that return their operand.
fn is_identity(module: &Module, row: Row) -> bool {
    let Some(target) = module.attribute_bytes(row, "custom_call_target") else { return false };
    let target = target.strip_prefix(b"\"").unwrap_or(target);
    let target = target.strip_suffix(b"\"").unwrap_or(target);
    const TARGETS: [&[u8]; 8] = [
        b"Sharding",
        b"xla.sdy.FuncResultSharding",
        b"xla.sdy.PropagationBarrier",
        b"annotate_device_placement",
        b"MoveToHost",
        b"MoveToDevice",
        b"LayoutConstraint",
        b"xla.sdy.ShardingGroup",
    ];
    TARGETS.contains(&target) && module.operands(row).len() == 1
}

/// Pairs of dimensions of two shapes with equal elements in equal order, for which splitting one is
/// the same as splitting the other: equal dimensions, and the first of merged dimensions.
fn aligned(a: &[i64], b: &[i64]) -> Vec<(usize, usize)> {
    let own = |sizes: &[i64]| -> Vec<usize> {
        (0..sizes.len()).filter(|at| sizes.get(*at).is_some_and(|size| *size != 1)).collect()
    };
    let (left, right) = (own(a), own(b));
    let size = |sizes: &[i64], list: &[usize], at: usize| {
        Some(*sizes.get(*list.get(at)?)?).filter(|size| *size > 0)
    };
    let mut pairs = Vec::new();
    let (mut i, mut j) = (0, 0);
    while let (Some(first), Some(second)) = (size(a, &left, i), size(b, &right, j)) {
        pairs.extend(left.get(i).zip(right.get(j)).map(|(i, j)| (*i, *j)));
        let (mut own, mut other) = (first, second);
        while own != other {
            let (product, next) = if own < other {
                i += 1;
                (&mut own, size(a, &left, i))
            } else {
                j += 1;
                (&mut other, size(b, &right, j))
            };
            match next.and_then(|next| product.checked_mul(next)) {
                Some(larger) => *product = larger,
                None => return pairs,
            }
        }
        i += 1;
        j += 1;
    }
    pairs
}
