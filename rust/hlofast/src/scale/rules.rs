//! Which dimensions of an instruction's result are which dimensions of its operands.

use super::places::Slot;
use super::size::{Factor, fraction_of};
use super::spread::{Spread, Trust};
use crate::ir::decode::{AttributeValue, DimensionLabel, WindowDimension, decode};
use crate::ir::{Opcode, Row};

/// The dimensions of a matmul.
#[derive(Default)]
pub(super) struct Product {
    /// Of both operands and the result: one matmul per element.
    pub batch: Vec<[u32; 3]>,
    /// Of the first operand and the result.
    pub left: Vec<(u32, u32)>,
    /// Of the second operand and the result.
    pub right: Vec<(u32, u32)>,
    /// Of both operands, summed.
    pub summed: Vec<(u32, u32)>,
    /// Dimensions of one element that a convolution's result has for summed ones.
    windows: Vec<u32>,
}

impl Product {
    /// Dimensions that are the same.
    fn pairs(&self) -> Vec<(u32, u32)> {
        let batch = self.batch.iter().flat_map(|[l, r, o]| [(*l, *r), (*l, *o), (*r, *o)]);
        let others = self.left.iter().chain(&self.right).chain(&self.summed).copied();
        batch.chain(others).collect()
    }
}

impl Spread<'_> {
    /// The integers of an attribute.
    pub(super) fn integers(&self, row: Row, key: &str) -> Vec<i64> {
        let Some(value) = self.module.attribute_bytes(row, key) else { return Vec::new() };
        match decode(key.as_bytes(), self.module.opcode(row), value) {
            Ok(AttributeValue::Integers(list)) => list,
            Ok(AttributeValue::Integer(number)) => vec![number],
            _ => Vec::new(),
        }
    }

    pub(super) fn operand(&self, row: Row, index: usize) -> Option<Slot> {
        let operand = *self.module.operands(row).get(index)?;
        self.places.array(Row(operand))
    }

    /// Spreads through one instruction.
    pub(super) fn rule(&mut self, row: Row) {
        use Opcode as O;
        match self.module.opcode(row) {
            O::Parameter
            | O::Constant
            | O::Iota
            | O::GetTupleElement
            | O::Tuple
            | O::While
            | O::Call
            | O::Fusion
            | O::Conditional
            | O::AsyncStart
            | O::AsyncUpdate
            | O::AsyncDone => {}
            O::Broadcast => self.broadcast(row),
            O::Transpose => self.transpose(row),
            O::Reshape | O::DynamicReshape => self.reshape(row, false),
            O::Bitcast => self.reshape(row, true),
            O::Reduce => self.reduce(row),
            O::Dot => self.dot(row),
            O::Convolution => self.convolution(row),
            O::Slice => self.slice(row),
            O::DynamicSlice => self.dynamic_slice(row),
            O::DynamicUpdateSlice => self.update(row),
            O::Pad | O::ReduceWindow => self.equal_sizes(row),
            O::AllToAll => self.exchange(row),
            O::Concatenate => self.concatenate(row),
            O::Gather => self.gather(row),
            O::Scatter => self.scatter(row),
            O::AllGather | O::AllGatherStart | O::ReduceScatter => self.collective(row),
            O::CollectivePermuteStart | O::CopyStart => self.start(row),
            O::CopyDone | O::CollectivePermuteDone | O::AllGatherDone => self.done(row),
            O::CustomCall => self.custom_call(row),
            _ => self.elementwise(row),
        }
    }

    /// Operands and results with the same sizes have the same dimensions.
    pub(super) fn elementwise(&mut self, row: Row) {
        for index in 0..self.module.operands(row).len() {
            let leaves = self.places.leaves(row);
            let result = match leaves {
                1 => self.places.leaf(row, 0),
                _ => self.places.leaf(row, index),
            };
            if let (Some(operand), Some(result)) = (self.operand(row, index), result)
                && self.places.sizes(operand) == self.places.sizes(result)
            {
                self.same_arrays(operand, result);
            }
        }
    }

    /// Dimensions of the first operand that have the size of the result's.
    fn equal_sizes(&mut self, row: Row) {
        let (Some(operand), Some(result)) = (self.operand(row, 0), self.places.array(row)) else {
            return;
        };
        if operand.rank == result.rank {
            self.same_arrays(operand, result);
        }
    }

    fn broadcast(&mut self, row: Row) {
        let (Some(operand), Some(result)) = (self.operand(row, 0), self.places.array(row)) else {
            return;
        };
        for (from, to) in operand.dims().zip(self.integers(row, "dimensions")) {
            if let Some(to) = usize::try_from(to).ok().and_then(|to| result.at(to)) {
                self.same(from, to);
            }
        }
    }

    fn transpose(&mut self, row: Row) {
        let (Some(operand), Some(result)) = (self.operand(row, 0), self.places.array(row)) else {
            return;
        };
        for (to, from) in result.dims().zip(self.integers(row, "dimensions")) {
            if let Some(from) = usize::try_from(from).ok().and_then(|from| operand.at(from)) {
                self.same(from, to);
            }
        }
    }

    fn reduce(&mut self, row: Row) {
        let reduced = self.integers(row, "dimensions");
        for leaf in 0..self.places.leaves(row) {
            let (Some(operand), Some(result)) =
                (self.operand(row, leaf), self.places.leaf(row, leaf))
            else {
                return;
            };
            let kept = operand.dims().enumerate();
            let kept = kept.filter(|(index, _)| !reduced.contains(&(*index as i64)));
            for ((_, from), to) in kept.collect::<Vec<_>>().into_iter().zip(result.dims()) {
                self.same(from, to);
            }
        }
    }

    fn dot(&mut self, row: Row) {
        for (a, b) in self.dot_dims(row).map(|own| own.pairs()).unwrap_or_default() {
            self.same(a, b);
        }
    }

    fn dot_dims(&self, row: Row) -> Option<Product> {
        let (lhs, rhs) = (self.operand(row, 0)?, self.operand(row, 1)?);
        let result = self.places.array(row)?;
        let list = |key| -> Vec<usize> {
            let all = self.integers(row, key);
            all.into_iter().filter_map(|dim| usize::try_from(dim).ok()).collect()
        };
        let (batch_l, batch_r) = (list("lhs_batch_dims"), list("rhs_batch_dims"));
        let (sum_l, sum_r) = (list("lhs_contracting_dims"), list("rhs_contracting_dims"));
        let both = |l: &[usize], r: &[usize]| -> Vec<(u32, u32)> {
            let pairs = l.iter().zip(r);
            pairs.filter_map(|(l, r)| lhs.at(*l).zip(rhs.at(*r))).collect()
        };
        let free = |slot: Slot, batch: &[usize], sum: &[usize]| -> Vec<u32> {
            let all = slot.dims().enumerate();
            let all = all.filter(|(index, _)| !batch.contains(index) && !sum.contains(index));
            all.map(|(_, dim)| dim).collect()
        };
        let mut of_result = result.dims();
        let shared = both(&batch_l, &batch_r);
        let batch = shared.into_iter().zip(of_result.by_ref()).map(|((l, r), o)| [l, r, o]);
        Some(Product {
            batch: batch.collect(),
            left: free(lhs, &batch_l, &sum_l).into_iter().zip(of_result.by_ref()).collect(),
            right: free(rhs, &batch_r, &sum_r).into_iter().zip(of_result).collect(),
            summed: both(&sum_l, &sum_r),
            windows: Vec::new(),
        })
    }

    fn convolution(&mut self, row: Row) {
        let Some(product) = self.convolution_dims(row) else { return };
        for dim in &product.windows {
            self.set(*dim, vec![Factor::constant(1)]);
        }
        for (a, b) in product.pairs() {
            if self.places.size(a) != 1 || self.places.size(b) != 1 {
                self.same(a, b);
            }
        }
    }

    /// TPU programs write matmuls as convolutions: a spatial dimension is a batch dimension, a
    /// contracted dimension or a dimension of one operand, and the sizes tell which.
    fn convolution_dims(&self, row: Row) -> Option<Product> {
        let (lhs, rhs) = (self.operand(row, 0)?, self.operand(row, 1)?);
        let result = self.places.array(row)?;
        let value = self.module.attribute_bytes(row, "dim_labels")?;
        let Ok(AttributeValue::DimensionLabels(labels)) =
            decode(b"dim_labels", Opcode::Convolution, value)
        else {
            return None;
        };
        let place = |list: &[DimensionLabel], slot: Slot, label| {
            list.iter().position(|own| *own == label).and_then(|index| slot.at(index))
        };
        use DimensionLabel as L;
        let left = |label| place(&labels.lhs, lhs, label);
        let right = |label| place(&labels.rhs, rhs, label);
        let output = |label| place(&labels.output, result, label);
        let mut product = Product::default();
        product.left.extend(left(L::Batch).zip(output(L::Batch)));
        product.right.extend(right(L::OutputFeature).zip(output(L::Feature)));
        product.summed.extend(left(L::Feature).zip(right(L::InputFeature)));
        let window = match self.module.attribute_bytes(row, "window") {
            Some(value) => decode(b"window", Opcode::Convolution, value).ok(),
            None => None,
        };
        let window = match window {
            Some(AttributeValue::Window(dims)) => dims,
            _ => Vec::new(),
        };
        for number in 0..labels.spatial_rank() {
            let label = L::Spatial(number as _);
            let (Some(l), Some(r), Some(o)) = (left(label), right(label), output(label)) else {
                continue;
            };
            let size = |dim: u32| self.places.size(dim);
            let dim = window.get(number);
            let is_strided = |dim: &WindowDimension| {
                dim.stride > 1 && [l, r, o].iter().all(|own| size(*own) == dim.stride)
            };
            if dim.is_some_and(|dim| dim.base_dilation > 1 || is_strided(dim)) {
                product.batch.push([l, r, o]);
            } else if dim.is_some_and(|dim| dim.padding_low > 0 || dim.padding_high > 0) {
                // A dimension of the second operand only.
                if size(l) == 1 {
                    product.right.push((r, o));
                }
            } else if size(r) == 1 {
                product.left.push((l, o));
            } else if size(o) == 1 {
                // The window covers the dimension, which is summed.
                product.summed.push((l, r));
                product.windows.push(o);
            }
        }
        Some(product)
    }

    /// The dimensions of a matmul by what it does with them.
    pub(super) fn product(&self, row: Row) -> Option<Product> {
        match self.module.opcode(row) {
            Opcode::Dot => self.dot_dims(row),
            Opcode::Convolution => self.convolution_dims(row),
            _ => None,
        }
    }

    fn slice(&mut self, row: Row) {
        let (Some(operand), Some(result)) = (self.operand(row, 0), self.places.array(row)) else {
            return;
        };
        for (from, to) in operand.dims().zip(result.dims()) {
            if self.places.size(from) == self.places.size(to) {
                self.same(from, to);
            } else if self.get(to).is_none() {
                if self.tiles.contains_key(&row) {
                    self.share(from, to);
                } else if self.trust == Trust::Dealt || self.places.size(to) == 1 {
                    self.cut(from, to);
                }
            }
        }
    }

    /// Dimension `to` is a fixed fraction of dimension `from`.
    fn share(&mut self, from: u32, to: u32) {
        let (whole, part) = (self.places.size(from), self.places.size(to));
        if let Some(value) = self.get(from).and_then(|own| fraction_of(own, part, whole)) {
            self.set(to, value);
        }
    }

    /// Dimension `to` is a part of dimension `from`: one element, all but a few, or a fraction.
    pub(super) fn cut(&mut self, from: u32, to: u32) {
        let (whole, part) = (self.places.size(from), self.places.size(to));
        let Some(factors) = self.get(from).map(<[Factor]>::to_vec) else { return };
        if part == 1 {
            self.set(to, vec![Factor::constant(1)]);
            return;
        }
        let difference = part - whole;
        if let [mut factor] = factors[..]
            && (factor.times, factor.parts) == (1, 1)
            && factor.axes == [0; _]
            && difference.abs() <= FEW
            && part > 2 * FEW
        {
            factor.shift += difference;
            factor.size = part;
            self.set(to, vec![factor]);
        } else if let Some(value) = fraction_of(&factors, part, whole) {
            self.set(to, value);
        }
    }

    fn dynamic_slice(&mut self, row: Row) {
        let (Some(operand), Some(result)) = (self.operand(row, 0), self.places.array(row)) else {
            return;
        };
        if self.trust == Trust::Dealt {
            self.shard(row, operand, result);
        }
        self.part_of(row, operand, result);
    }

    fn update(&mut self, row: Row) {
        let (Some(operand), Some(update), Some(result)) =
            (self.operand(row, 0), self.operand(row, 1), self.places.array(row))
        else {
            return;
        };
        self.same_arrays(operand, result);
        if self.trust == Trust::Dealt {
            self.shard(row, result, update);
        }
        self.part_of(row, result, update);
    }

    /// `part` lies somewhere in `whole`.
    fn part_of(&mut self, row: Row, whole: Slot, part: Slot) {
        for (from, to) in whole.dims().zip(part.dims()) {
            if self.places.size(from) == self.places.size(to) {
                self.same(from, to);
            } else if self.places.size(to) == 1 {
                let known = self.get(from);
                if known.is_none() && self.places.size(from) > 1 {
                    self.open_slices.insert((from, self.module.computation_of(row)));
                } else if let Some([factor]) = known
                    && !factor.is_constant()
                {
                    let found = (factor.symbol, self.module.computation_of(row));
                    if !self.sliced.contains(&found) {
                        self.sliced.push(found);
                    }
                }
                self.set(to, vec![Factor::constant(1)]);
            }
        }
    }

    fn concatenate(&mut self, row: Row) {
        let along = self.integers(row, "dimensions").first().copied().unwrap_or(0);
        let Ok(along) = usize::try_from(along) else { return };
        self.join(row, along);
    }

    /// The operands lie one after another along a dimension of the result.
    pub(super) fn join(&mut self, row: Row, along: usize) {
        let Some(result) = self.places.array(row) else { return };
        let count = self.module.operands(row).len();
        let slots: Vec<Slot> = (0..count).filter_map(|index| self.operand(row, index)).collect();
        if slots.len() != count || slots.iter().any(|slot| slot.rank != result.rank) {
            return;
        }
        for slot in &slots {
            for (index, (from, to)) in slot.dims().zip(result.dims()).enumerate() {
                if index != along {
                    self.same(from, to);
                }
            }
        }
        let Some(to) = result.at(along) else { return };
        let parts: Vec<u32> = slots.iter().filter_map(|slot| slot.at(along)).collect();
        if self.get(to).is_some() {
            return;
        }
        if let Some(source) = self.tiled_by(row).and_then(|source| self.places.array(source)) {
            if let Some(from) = source.at(along) {
                self.same(from, to);
            }
            return;
        }
        if self.trust < Trust::Dealt {
            return;
        }
        let known: Option<Vec<_>> =
            parts.iter().map(|dim| self.get(*dim).map(<[Factor]>::to_vec)).collect();
        let Some(known) = known else { return };
        let size = self.places.size(to);
        let is_alike = known.windows(2).all(|pair| pair.first() == pair.get(1));
        if let (true, Some(first)) = (is_alike, known.first()) {
            if let Some(value) = fraction_of(first, count as i64, 1) {
                self.set(to, value);
            }
        } else if known.iter().flatten().all(Factor::is_constant) {
            self.set(to, vec![Factor::constant(size)]);
        } else {
            let sum = self.sum(known, size);
            self.set(to, vec![sum]);
        }
    }

    /// Which dimensions of a result of `rank` are those of the start indices, and of a window.
    fn batch_dims(slot: Slot, window: &[i64]) -> (Vec<u32>, Vec<u32>) {
        let is_window = |index: usize| window.contains(&(index as i64));
        let all: Vec<(usize, u32)> = slot.dims().enumerate().collect();
        let pick = |wanted: bool| {
            let own = all.iter().filter(|(index, _)| is_window(*index) == wanted);
            own.map(|(_, dim)| *dim).collect::<Vec<u32>>()
        };
        (pick(false), pick(true))
    }

    fn gather(&mut self, row: Row) {
        let keys = ["offset_dims", "collapsed_slice_dims", "operand_batching_dims"];
        self.windows(row, self.places.array(row), keys);
    }

    fn scatter(&mut self, row: Row) {
        let keys = ["update_window_dims", "inserted_window_dims", "input_batching_dims"];
        let count = self.module.operands(row).len();
        if count == 3 {
            if let (Some(operand), Some(result)) = (self.operand(row, 0), self.places.array(row)) {
                self.same_arrays(operand, result);
            }
            self.windows(row, self.operand(row, 2), keys);
        }
    }

    /// `windows` are slices of the first operand at the indices in the second operand.
    fn windows(&mut self, row: Row, windows: Option<Slot>, keys: [&str; 3]) {
        let (Some(operand), Some(indices), Some(windows)) =
            (self.operand(row, 0), self.operand(row, 1), windows)
        else {
            return;
        };
        let [window, dropped, batching] = keys.map(|key| self.integers(row, key));
        let vector = self.integers(row, "index_vector_dim").first().copied().unwrap_or(-1);
        let (batch, inside) = Self::batch_dims(windows, &window);
        let of_indices = indices.dims().enumerate();
        let of_indices = of_indices.filter(|(index, _)| *index as i64 != vector);
        let of_operand = operand.dims().enumerate();
        let of_operand = of_operand.filter(|(index, _)| {
            !dropped.contains(&(*index as i64)) && !batching.contains(&(*index as i64))
        });
        let mut pairs: Vec<(u32, u32)> = of_indices.map(|(_, dim)| dim).zip(batch).collect();
        pairs.extend(of_operand.map(|(_, dim)| dim).zip(inside));
        for (a, b) in pairs {
            self.same(a, b);
        }
    }

    fn start(&mut self, row: Row) {
        // Results and operands of both have the same shape.
        for leaf in 0..2 {
            if let (Some(operand), Some(own)) = (self.operand(row, 0), self.places.leaf(row, leaf))
            {
                self.same_arrays(operand, own);
            }
        }
    }

    fn done(&mut self, row: Row) {
        let Some(start) = self.module.operands(row).first().map(|row| Row(*row)) else { return };
        // The start of a copy has its destination first, that of a collective its operand.
        let leaf = usize::from(self.module.opcode(row) != Opcode::CopyDone);
        if let (Some(from), Some(to)) = (self.places.leaf(start, leaf), self.places.leaf(row, 0)) {
            self.same_arrays(from, to);
        }
    }

    fn custom_call(&mut self, row: Row) {
        let target = self.module.attribute_bytes(row, "custom_call_target").unwrap_or_default();
        let operands: Vec<Row> = self.module.operands(row).iter().map(|row| Row(*row)).collect();
        match target {
            b"\"ConcatBitcast\"" => {
                if let Some(whole) = self.tiled_by(row).and_then(|whole| self.places.array(whole))
                    && let Some(result) = self.places.array(row)
                {
                    self.same_arrays(whole, result);
                    return;
                }
                let (Some(first), Some(result)) = (self.operand(row, 0), self.places.array(row))
                else {
                    return;
                };
                let differs = |(a, b): (u32, u32)| self.places.size(a) != self.places.size(b);
                let along = first.dims().zip(result.dims()).position(differs);
                self.join(row, along.unwrap_or(0));
            }
            b"\"AsyncCollectiveStart\"" => {
                // The second result is the collective's, the first its operand.
                let Some(collective) = operands.first() else { return };
                let own = self.module.operands(*collective).first().map(|row| Row(*row));
                for (leaf, from) in [own, Some(*collective)].into_iter().enumerate() {
                    let from = from.and_then(|row| self.places.array(row));
                    if let (Some(from), Some(to)) = (from, self.places.leaf(row, leaf)) {
                        self.same_arrays(from, to);
                    }
                }
            }
            b"\"AsyncCollectiveDone\"" => {
                let is_collective = |row: &&Row| {
                    matches!(
                        self.module.opcode(**row),
                        Opcode::AllGather | Opcode::AllReduce | Opcode::ReduceScatter
                    )
                };
                let collective = operands.iter().find(is_collective);
                let from = collective.and_then(|row| self.places.array(*row));
                if let (Some(from), Some(to)) = (from, self.places.leaf(row, 0)) {
                    self.same_arrays(from, to);
                }
            }
            b"\"AssumeGatherIndicesInBound\""
            | b"\"Sharding\""
            | b"\"LayoutConstraint\""
            | b"\"MoveToHost\""
            | b"\"MoveToDevice\""
            | b"\"GatherScatterIndicesBitpacked\"" => {
                self.elementwise(row);
            }
            _ => {}
        }
    }
}

/// A slice that leaves out at most so many elements of a dimension stays that much smaller: the
/// shifted tokens of a language model, for example.
const FEW: i64 = 2;
