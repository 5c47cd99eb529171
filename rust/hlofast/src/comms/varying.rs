//! The mesh axes along which devices hold different values of an array.
//!
//! A parameter of the entry differs along the axes that shard it. Any other value differs along the
//! axes of its operands; an all-reduce or all-gather makes it equal along its own axes, and what is
//! cut by the number of a device differs along the axes on which the offset depends. A value that
//! could not be followed differs along all axes, so that "equal along an axis" is always proved.

use super::axis_bits::{Covered, MOST_AXES, apart, bits, devices, groups};
use super::moves::Moves;
use super::offsets::{Device, Offsets};
use super::partitioned::{Partitioned, donated};
use super::{AxisPart, Mesh};
use crate::cost::custom_call::{CustomCallKind, custom_call_target, known_target};
use crate::flow::markers::is_marker;
use crate::flow::walk::Trail;
use crate::ir::decode::{AttributeValue, LeafSharding, decode};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, ElementKind, Module, Opcode, Row, ShapeView};
use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

/// The bit of values that are computed from the batch.
const INPUT: u64 = 1 << 63;
/// How deep computations call each other.
const DEEPEST: usize = 64;
/// Visits of leaves: per leaf of the module, and the least. A loop inside loops is visited several
/// times.
const VISITS_PER_LEAF: usize = 64;
const FEWEST_VISITS: usize = 1 << 20;
/// The rank of stacked batches of tokens.
const STACKED_RANK: usize = 3;
/// More leaves than this many per row are not followed.
const LEAVES_PER_ROW: u64 = 64;

/// By value: the axes along which devices hold different arrays.
pub(crate) struct Varying {
    /// By leaf, as in `Module::leaf_offsets`: a bit for each axis of the mesh, and `INPUT`.
    masks: Vec<u64>,
    /// By computation: whether the entry reaches it.
    is_reached: Vec<bool>,
    /// The axes with more than one device.
    all: u64,
    /// The axes that shard the batch of the inputs.
    batch: u64,
    /// By collective: the axes of its groups.
    groups: HashMap<Row, Covered, BuildMix>,
}

impl Varying {
    /// None without a mesh, if the program is not partitioned, or if it is too large to follow.
    pub fn new(program: &Partitioned<'_>) -> Option<Self> {
        program.is_partitioned.then(|| Self::follow(program, u64::MAX)).flatten()
    }

    /// The same with the axes along which values surely come from different devices: those that could not be
    /// followed do not differ.
    pub fn least(program: &Partitioned<'_>) -> Option<Self> {
        program.is_partitioned.then(|| Self::follow(program, 0)).flatten()
    }

    /// What is computed from the inputs, and the axes of the batch, of a program that is not partitioned.
    /// Which devices hold the same is not known there.
    pub fn of_inputs(program: &Partitioned<'_>) -> Option<Self> {
        Some(Self { all: 0, ..Self::follow(program, u64::MAX)? })
    }

    fn follow(program: &Partitioned<'_>, unknown: u64) -> Option<Self> {
        let module = program.module;
        let mesh = program.mesh?;
        let leaves = *module.leaf_offsets().last()?;
        let most = LEAVES_PER_ROW.saturating_mul(module.row_count() as u64).max(1 << 16);
        if mesh.axes().len() > MOST_AXES || leaves > most {
            return None;
        }
        let is_other = program.is_partitioned && program.is_part();
        if module.replica_count().is_some_and(|count| count > 1) || is_other {
            return None;
        }
        let mut all = 0;
        for (axis, own) in mesh.axes().iter().enumerate() {
            all |= if own.size > 1 { 1 << axis } else { 0 };
        }
        let leaves = usize::try_from(leaves).ok()?;
        let visits = leaves.saturating_mul(VISITS_PER_LEAF).max(FEWEST_VISITS);
        let count = module.computations().len();
        let mut follower = Follower {
            program,
            places: module.leaf_offsets(),
            groups: groups(program, all),
            offsets: Offsets::new(module),
            devices: OnceCell::new(),
            all,
            unknown: all & unknown,
            visits: Cell::new(visits),
            has_run: vec![false; count],
            arguments: vec![0; leaves],
            orders: if module.is_ordered() { Vec::new() } else { vec![None; count] },
            masks: vec![0; leaves],
            sources: HashMap::default(),
            moves: Moves::new(program),
        };
        let batch = follower.entry()?;
        follower.run(module.entry(), 0)?;
        let Follower { masks, has_run: is_reached, groups, .. } = follower;
        Some(Self { masks, is_reached, all, batch, groups })
    }

    fn mask(&self, module: &Module, row: Row) -> Option<u64> {
        let is_reached = self.is_reached.get(module.computation_of(row).0 as usize);
        let leaves = self.masks.get(leaves(module, row))?;
        is_reached?.then(|| leaves.iter().fold(0, |mask, leaf| mask | leaf))
    }

    /// The axes along which all devices compute the same from the operands of `row`; 0 if unknown.
    pub fn equal_operands(&self, module: &Module, row: Row) -> u64 {
        let operands = module.operands(row).iter();
        let mask = operands.map(|row| self.mask(module, Row(*row)));
        match mask.reduce(|a, b| Some(a? | b?)).flatten() {
            Some(mask) => self.all & !mask,
            None => 0,
        }
    }

    /// The axes along which all devices hold the same `row`; 0 if unknown.
    pub fn equal(&self, module: &Module, row: Row) -> u64 {
        self.mask(module, row).map_or(0, |mask| self.all & !mask)
    }

    /// The axes along which devices may hold different values of `row`; None if unknown.
    pub fn differing(&self, module: &Module, row: Row) -> Option<u64> {
        Some(self.mask(module, row)? & self.all)
    }

    /// The axes along which a reduction adds up what devices hold; all if they are unknown.
    pub fn along(&self, row: Row) -> u64 {
        self.groups.get(&row).map_or(self.all, |covered| covered.any)
    }

    /// The axes with more than one device.
    pub fn all(&self) -> u64 {
        self.all
    }

    /// Whether `row` is computed from the inputs of the step.
    pub fn is_from_batch(&self, module: &Module, row: Row) -> bool {
        self.mask(module, row).is_some_and(|mask| mask & INPUT != 0)
    }

    /// The axes that shard the batch.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Those of `parts` that shard the batch.
    pub fn of_batch(&self, parts: &[AxisPart]) -> u64 {
        bits(parts.iter()) & self.batch
    }
}

/// The leaves of `row` in columns by leaf.
fn leaves(module: &Module, row: Row) -> Range<usize> {
    let offsets = module.leaf_offsets();
    let at = |index: usize| offsets.get(index).map_or(0, |offset| *offset as usize);
    at(row.0 as usize)..at(row.0 as usize + 1)
}

/// The axes of a sharding of one array.
#[derive(Clone, Copy)]
struct Sharded {
    /// Axes along which devices hold different parts, or of which nothing is known.
    mask: u64,
    /// Axes that cut the dimension of the batch: the first one, or the second of stacked batches.
    first: u64,
}

/// Follows values through the program.
struct Follower<'a, 'b> {
    program: &'b Partitioned<'a>,
    /// By row: where its leaves start in columns by leaf.
    places: &'a [u64],
    groups: HashMap<Row, Covered, BuildMix>,
    offsets: Offsets<'a>,
    /// The devices of the mesh by position.
    devices: OnceCell<Vec<Device>>,
    all: u64,
    /// Those along which a value differs that could not be followed.
    unknown: u64,
    /// Visits of leaves that are left.
    visits: Cell<usize>,
    /// By computation: whether it has run.
    has_run: Vec<bool>,
    /// By leaf of a parameter: its mask at the last run of its computation.
    arguments: Vec<u64>,
    /// By computation: its rows, operands first; empty if the text has them in that order.
    orders: Vec<Option<Rc<[u32]>>>,
    masks: Vec<u64>,
    /// By row that starts an offset: the axes along which the offset differs.
    sources: HashMap<Row, u64, BuildMix>,
    /// What collective-permutes move.
    moves: Moves,
}

impl Follower<'_, '_> {
    /// Sets the masks of the entry's parameters. Returns the axes that shard the batch: those of
    /// the dimension of the batch of integer inputs; without any, if the step donates its state, of the
    /// other inputs.
    fn entry(&mut self) -> Option<u64> {
        let module = self.program.module;
        let mesh = self.program.mesh?;
        let donated = donated(module);
        let mut first = [0u64; 2];
        let mut inputs = [Vec::new(), Vec::new()];
        // By input of floating-point numbers: the axes and the size of its first dimension.
        let mut leading = Vec::new();
        let mut tokens = Vec::new();
        // By text of a sharding: the axes of each leaf. Many parameters share one.
        let mut known: HashMap<&[u8], Vec<Sharded>, BuildMix> = HashMap::default();
        for row in module.parameters(module.entry()) {
            let range = leaves(module, row);
            let text = module.attribute_bytes(row, "sharding").unwrap_or_default();
            let sharded: &[Sharded] = known.entry(text).or_insert_with(|| self.sharded(mesh, text));
            let number = module.parameter_number(row).unwrap_or(u64::MAX);
            let is_state = donated.binary_search(&number).is_ok();
            let shapes = module.shapes().leaves(module.shape(row));
            for (index, (leaf, shape)) in range.zip(shapes).enumerate() {
                let own = sharded.get(index.min(sharded.len().saturating_sub(1)));
                let own = own.copied().unwrap_or(Sharded { mask: self.unknown, first: 0 });
                *self.masks.get_mut(leaf)? = own.mask;
                let ShapeView::Array(array) = module.shapes().get(shape) else { continue };
                if is_state || array.rank() == 0 {
                    continue;
                }
                let kind = match array.element_type.kind() {
                    ElementKind::Signed | ElementKind::Unsigned => 0,
                    ElementKind::Float if !donated.is_empty() => 1,
                    _ => continue,
                };
                inputs[kind].push(leaf);
                let axes = own.first;
                first[kind] |= axes;
                let size = array.dimension(0).and_then(|dimension| dimension.bound());
                match kind {
                    0 => tokens.push((axes, size)),
                    _ => leading.push((leaf, (axes, size))),
                }
            }
        }
        let chosen = usize::from(inputs[0].is_empty());
        // Beside tokens, images and features are inputs too, frozen weights are not: an input has the
        // batch of the tokens on its first dimension.
        let beside = leading.iter().filter(|(_, own)| own.0 != 0 && tokens.contains(own));
        let beside = beside.map(|(leaf, _)| leaf);
        for leaf in inputs[chosen].iter().chain(beside) {
            *self.masks.get_mut(*leaf)? |= INPUT;
        }
        Some(first[chosen] & self.all)
    }

    /// The axes of each leaf that sharding `text` has.
    fn sharded(&self, mesh: &Mesh, text: &[u8]) -> Vec<Sharded> {
        let of_leaf = |own: &LeafSharding<'_>| {
            let Ok(spec) = mesh.partition_spec(own) else {
                return Sharded { mask: self.unknown, first: 0 };
            };
            let parts = spec.dimensions.iter().flat_map(|dimension| &dimension.axes);
            let mask = bits(parts.chain(&spec.unreduced).chain(&spec.manual)) & self.all;
            let of = |at: usize| spec.dimensions.get(at).map_or(0, |cut| bits(cut.axes.iter()));
            // The batches of several microbatches are stacked along the first dimension.
            let first =
                if spec.dimensions.len() == STACKED_RANK && of(0) == 0 { of(1) } else { of(0) };
            Sharded { mask, first }
        };
        match decode(b"sharding", Opcode::Parameter, text) {
            Ok(AttributeValue::Sharding(sharding)) => {
                sharding.leaves().iter().map(of_leaf).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The leaves of `row` in columns by leaf.
    #[inline]
    fn leaves(&self, row: Row) -> Range<usize> {
        match self.places.get(row.0 as usize..row.0 as usize + 2) {
            Some([start, end]) => *start as usize..*end as usize,
            _ => 0..0,
        }
    }

    #[inline]
    fn set(&mut self, row: Row, mask: u64) {
        let range = self.leaves(row);
        match self.masks.get_mut(range).unwrap_or_default() {
            [leaf] => *leaf |= mask,
            leaves => leaves.iter_mut().for_each(|leaf| *leaf |= mask),
        }
    }

    #[inline]
    fn of(&self, row: Row) -> u64 {
        let masks = self.masks.get(self.leaves(row)).unwrap_or_default();
        // Most rows have one leaf, for which the vectorised loop is slow.
        if let [mask] = masks {
            return *mask;
        }
        self.spend(masks.len());
        masks.iter().fold(0, |mask, leaf| mask | leaf)
    }

    /// Takes `visits` from those that are left.
    fn spend(&self, visits: usize) {
        self.visits.set(self.visits.get().saturating_sub(visits));
    }

    /// Adds the leaves `from` to the leaves `to`, one by one if there are equally many.
    fn pass(&mut self, from: Range<usize>, to: Range<usize>) {
        self.spend(from.len().max(to.len()));
        // Most values are one leaf.
        if (from.len(), to.len()) == (1, 1)
            && let Some(mask) = self.masks.get(from.start).copied()
            && let Some(to) = self.masks.get_mut(to.start)
        {
            *to |= mask;
            return;
        }
        if from.len() != to.len() {
            let from = self.masks.get(from).unwrap_or_default();
            let mask = from.iter().fold(0, |all, leaf| all | leaf);
            let to = self.masks.get_mut(to).unwrap_or_default();
            return to.iter_mut().for_each(|leaf| *leaf |= mask);
        }
        // Ranges that do not overlap are added without a check of every leaf.
        let (lower, upper) = if from.start < to.start { (&from, &to) } else { (&to, &from) };
        if lower.end > upper.start || upper.end > self.masks.len() {
            for (from, to) in from.zip(to) {
                let mask = self.masks.get(from).copied().unwrap_or(self.all);
                if let Some(to) = self.masks.get_mut(to) {
                    *to |= mask;
                }
            }
            return;
        }
        let (below, above) = self.masks.split_at_mut(upper.start);
        let (below, above) = (&mut below[lower.clone()], &mut above[..upper.len()]);
        let (from, to) = if from.start < to.start { (below, above) } else { (above, below) };
        to.iter_mut().zip(from).for_each(|(to, from)| *to |= *from);
    }

    /// Follows the values of computation `id`; None if the work becomes too much.
    fn run(&mut self, id: ComputationId, depth: usize) -> Option<()> {
        let module = self.program.module;
        if depth > DEEPEST {
            return None;
        }
        if !self.is_news(id)? {
            return Some(());
        }
        let rows = module.computation(id).rows();
        let (first, end) = (Row(rows.start), Row(rows.end.saturating_sub(1)));
        let leaves = self.leaves(end).end.saturating_sub(self.leaves(first).start);
        let work = rows.len() + module.operand_count(rows.clone()) + leaves;
        self.visits.set(self.visits.get().checked_sub(work)?);
        let Some(order) = self.orders.get_mut(id.0 as usize) else {
            return rows.clone().try_for_each(|row| self.row(Row(row), depth));
        };
        let order = Rc::clone(order.get_or_insert_with(|| module.post_order(id).into()));
        order.iter().try_for_each(|row| self.row(Row(*row), depth))
    }

    /// Whether the parameters of computation `id` have other masks than at its last run, which become
    /// those of the last run.
    fn is_news(&mut self, id: ComputationId) -> Option<bool> {
        let mut is_news = !std::mem::replace(self.has_run.get_mut(id.0 as usize)?, true);
        let mut known = 0;
        for row in self.program.module.parameter_rows(id) {
            let leaves = self.leaves(Row(*row));
            known += leaves.len();
            let own = self.masks.get(leaves.clone())?;
            for (before, mask) in self.arguments.get_mut(leaves)?.iter_mut().zip(own) {
                is_news |= std::mem::replace(before, *mask) != *mask;
            }
        }
        self.visits.set(self.visits.get().checked_sub(known)?);
        Some(is_news)
    }

    /// Runs computation `id` with `operands`, and adds its result to `row`.
    fn call(&mut self, row: Row, id: ComputationId, operands: &[u32], depth: usize) -> Option<()> {
        let module = self.program.module;
        for parameter in module.parameter_rows(id).iter().map(|row| Row(*row)) {
            let number = module.parameter_number(parameter);
            let number = number.and_then(|number| usize::try_from(number).ok());
            if let Some(operand) = number.and_then(|number| operands.get(number)) {
                self.pass(self.leaves(Row(*operand)), self.leaves(parameter));
            }
        }
        self.run(id, depth + 1)?;
        let root = Row(module.computation(id).root);
        self.pass(self.leaves(root), self.leaves(row));
        Some(())
    }

    fn row(&mut self, row: Row, depth: usize) -> Option<()> {
        use Opcode::*;
        let module = self.program.module;
        let operands = module.operands(row);
        let joined = |own: &Self| operands.iter().fold(0, |mask, row| mask | own.of(Row(*row)));
        match module.opcode(row) {
            Parameter | Constant | Iota | AfterAll => {}
            PartitionId | ReplicaId => self.set(row, self.all),
            Rng | RngGetAndUpdateState | Infeed | Recv | RecvDone | Unknown => {
                self.set(row, self.unknown);
            }
            GetTupleElement => {
                let tuple = Row(*operands.first()?);
                let index = module.tuple_index(row);
                let first =
                    index.and_then(|index| module.shapes().first_leaf(module.shape(tuple), index));
                let to = self.leaves(row);
                let from = self.leaves(tuple);
                let start = from.start.saturating_add(first.unwrap_or(0) as usize);
                let end = start.saturating_add(to.len());
                if first.is_some() && end <= from.end {
                    self.pass(start..end, to);
                } else {
                    self.pass(from, to);
                }
            }
            Tuple => {
                let to = self.leaves(row);
                let mut at = to.start;
                for operand in operands {
                    let from = self.leaves(Row(*operand));
                    let end = at.saturating_add(from.len()).min(to.end);
                    self.pass(from, at..end);
                    at = end;
                }
            }
            OptBarrier => self.pass(self.leaves(Row(*operands.first()?)), self.leaves(row)),
            Call | Fusion => {
                let id = module.calls(row).first()?.computation;
                self.call(row, id, operands, depth)?;
            }
            While => self.repeat(row, depth)?,
            Conditional => {
                let chosen = self.of(Row(*operands.first()?));
                let branches = module.calls(row).iter().zip(operands.get(1..)?);
                for (branch, operand) in branches {
                    self.call(row, branch.computation, &[*operand], depth)?;
                }
                self.set(row, chosen);
            }
            AsyncStart => {
                let id = module.calls(row).first()?.computation;
                self.call(row, id, operands, depth)?;
                self.set(row, joined(self));
            }
            AsyncDone => self.async_result(row),
            AllReduce | AllReduceStart | AllGather | AllGatherStart | CollectiveBroadcast => {
                let along = self.groups.get(&row).map_or(0, |along| along.whole);
                let mask = joined(self);
                self.set(row, mask & !along);
            }
            ReduceScatter | AllToAll | RaggedAllToAll => {
                let along = self.groups.get(&row).map_or(self.unknown, |along| along.any);
                self.set(row, joined(self) | along);
            }
            CollectivePermute | CollectivePermuteStart => {
                let mask = joined(self);
                let (moved, work) = self.moves.differing(self.program, row, mask & self.all);
                self.spend(work);
                self.set(row, mask & INPUT | moved.unwrap_or(mask | self.unknown) & self.all);
            }
            // An element of a table by the number of the device.
            DynamicSlice if self.is_number(row) => {
                let mask = joined(self);
                let mask = if mask & self.all == 0 { mask } else { self.offset(row, mask) };
                self.set(row, mask);
            }
            DynamicSlice | DynamicUpdateSlice => {
                let arrays = if module.opcode(row) == DynamicSlice { 1 } else { 2 };
                let mut mask = 0;
                for (index, operand) in operands.iter().enumerate() {
                    let own = self.of(Row(*operand));
                    let is_offset = index >= arrays && own & self.all != 0;
                    mask |= if is_offset { self.offset(Row(*operand), own) } else { own };
                }
                self.set(row, mask);
            }
            CustomCall => {
                let mask = joined(self) | if self.is_alike(row) { 0 } else { self.unknown };
                self.set(row, mask);
            }
            _ => self.set(row, joined(self)),
        }
        (self.visits.get() > 0).then_some(())
    }

    /// The state of a loop, and its result.
    fn repeat(&mut self, row: Row, depth: usize) -> Option<()> {
        let module = self.program.module;
        let body = module.called(row, CallRole::Body)?;
        let condition = module.called(row, CallRole::Condition)?;
        let operands = module.operands(row);
        let own = self.leaves(row);
        self.pass(self.leaves(Row(*operands.first()?)), own.clone());
        loop {
            let before: Vec<u64> = self.masks.get(own.clone())?.to_vec();
            // The state is the argument and the result of the body.
            self.call(row, body, &[row.0], depth)?;
            for parameter in module.parameter_rows(condition) {
                self.pass(own.clone(), self.leaves(Row(*parameter)));
            }
            self.run(condition, depth + 1)?;
            let root = self.of(Row(module.computation(condition).root));
            if root & self.all != 0 {
                self.set(row, root);
            }
            if self.masks.get(own.clone())? == before.as_slice() {
                return Some(());
            }
        }
    }

    /// The result of the computation that an asynchronous start calls.
    fn async_result(&mut self, row: Row) {
        let module = self.program.module;
        let mut start = row;
        for _ in 0..DEEPEST {
            let Some(before) = module.operands(start).first() else { break };
            start = Row(*before);
            if module.opcode(start) == Opcode::AsyncStart {
                break;
            }
        }
        match module.calls(start).first() {
            Some(call) if module.opcode(start) == Opcode::AsyncStart => {
                let root = Row(module.computation(call.computation).root);
                self.pass(self.leaves(root), self.leaves(row));
            }
            _ => self.set(row, self.unknown),
        }
    }

    /// Whether `row` is one whole number.
    fn is_number(&self, row: Row) -> bool {
        let array = self.program.module.shapes().array(self.program.module.shape(row));
        array.is_some_and(|array| {
            let kind = array.element_type.kind();
            array.elements() == Some(1)
                && matches!(kind, ElementKind::Signed | ElementKind::Unsigned)
        })
    }

    /// The axes along which the offset `row` differs; `mask` if it depends on more than the device.
    fn offset(&mut self, row: Row, mask: u64) -> u64 {
        if let Some(known) = self.sources.get(&row) {
            return *known;
        }
        let own = self.offset_axes(row).map(|axes| axes | mask & INPUT);
        let axes = own.unwrap_or(mask & (self.unknown | !self.all));
        self.sources.insert(row, axes);
        axes
    }

    fn offset_axes(&self, row: Row) -> Option<u64> {
        let devices = self.devices.get_or_init(|| devices(self.program));
        if devices.is_empty() {
            return None;
        }
        let values = self.offsets.values(Trail::new(row), devices)?;
        Some(apart(self.program.mesh?, &values))
    }

    /// Whether custom call `row` gives the same on all devices with the same operands.
    fn is_alike(&self, row: Row) -> bool {
        use CustomCallKind::*;
        let module = self.program.module;
        if is_marker(module, row) {
            return true;
        }
        let known = custom_call_target(module, row).and_then(|target| known_target(&target));
        let says = |word: &[u8]| {
            let config = module.attribute_bytes(row, "backend_config").unwrap_or_default();
            memchr::memmem::find(config, word).is_some()
        };
        known.is_some_and(|known| match known.kind {
            Gemm | GroupedGemm | Convolution | AttentionForward | AttentionBackward | TopK
            | Sort | LinearAlgebra | DataMovement | HostTransfer | Marker => true,
            // A kernel that talks to other devices says so.
            Kernel => !says(b"has_communication") && !says(b"collective_id"),
            _ => false,
        })
    }
}
