//! Attributes that the cost rules need, decoded once per module.
//!
//! XLA decodes attributes while parsing; hlofast decodes them when the first cost is requested. A
//! fact holds an attribute in the form that the rules use.

use super::convolution::convolution_flops;
use super::custom_call::{CustomCallCost, custom_call_cost, custom_call_target};
use super::matmul::{Alike, alike, contraction};
use crate::flow::trip_count::{TripCount, trip_counts};
use crate::ir::decode::{AttributeValue, ReplicaGroups, WindowDimension, decode};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Csr, Module, Opcode, Row, ShapeId};
use hashbrown::HashMap;

/// The decoded attributes of one instruction.
#[derive(Clone, Debug)]
pub enum Fact {
    /// For a dot: product of the left side's contracted dimensions.
    Contracted(i128),
    /// FLOPs of a ragged dot, as XLA counts them and as executed.
    RaggedDot {
        /// FLOPs by XLA's rule.
        xla: i128,
        /// FLOPs when every row is multiplied with the weights of one group; None if unknown.
        executed: Option<i128>,
    },
    /// FLOPs of a convolution.
    Flops(i128),
    /// A window.
    Window(Vec<WindowDimension>),
    /// For a gather or scatter: sizes of one slice, by dimension of operand 0.
    Slice(Vec<i64>),
    /// For a transpose that moves no data.
    IsBitcast,
    /// For a fusion.
    Fusion {
        /// The fused computation.
        callee: ComputationId,
        /// Whether the fusion has `kind=kCustom`.
        is_custom: bool,
    },
    /// `fft_length`.
    FftLengths(Vec<i64>),
    /// Size of the dimension that is sorted.
    SortedDimension(i64),
    /// The cost of a custom call.
    CustomCall(Box<CustomCallCost>),
    /// Devices in one group of a collective; None if the text does not tell.
    Participants(Option<u64>),
    /// Trip count of a loop.
    TripCount(TripCount),
}

/// The facts of a module's rows, ascending by row; rows without a fact are left out.
#[derive(Clone, Debug)]
pub struct Facts {
    entries: Vec<(u32, Fact)>,
    /// For each computation the index of its first entry; then the number of entries.
    starts: Vec<u32>,
    /// Rows of parameters by computation, in order of parameter number; None if those of the module
    /// are all.
    parameters: Option<Csr>,
    /// Rows of constants with more than one element, by computation.
    constants: Csr,
    /// By computation; empty without asynchronous collectives.
    async_bodies: Vec<AsyncBody>,
}

/// The part of an asynchronous collective that a fused computation of a TPU program plays; each of
/// these computations contains the collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AsyncBody {
    /// The computation contains no asynchronous collective, or the whole of one.
    #[default]
    None,
    /// The computation starts the collective.
    Start,
    /// The computation does other work while the collective runs.
    Overlapped,
    /// The computation waits for the end of the collective.
    Done,
}

impl Facts {
    /// Decodes the attributes of `module`. An unreadable attribute gives no fact, and its
    /// instruction counts as unknown.
    pub fn of_module(module: &Module) -> Self {
        let mut loops = trip_counts(module).into_iter();
        let mut groups = GroupSize::new(module);
        let mut known: HashMap<Alike<'_>, Option<i128>, BuildMix> = HashMap::default();
        // Layers without a loop repeat the same matmuls.
        let mut once = |row: Row, of: fn(&Module, Row) -> Option<i128>| match alike(module, row) {
            Some(key) => *known.entry(key).or_insert_with(|| of(module, row)),
            None => of(module, row),
        };
        let mut fact = |row: Row| {
            let fact = match module.opcode(row) {
                Opcode::While => Fact::TripCount(loops.next()?.1),
                Opcode::Dot | Opcode::ScaledDot => Fact::Contracted(once(row, contracted)?),
                Opcode::Convolution => Fact::Flops(once(row, |module, row| {
                    convolution_flops(module, row).map(i128::from)
                })?),
                _ => fact_of(module, row, &mut groups)?,
            };
            Some((row.0, fact))
        };
        // Facts are large: their column does not grow by copying.
        let opcodes = &module.columns().opcodes;
        let most = opcodes.iter().filter(|opcode| has_fact(**opcode)).count();
        let mut entries: Vec<(u32, Fact)> = Vec::with_capacity(most);
        let with_fact = (0u32..).zip(opcodes).filter(|(_, opcode)| has_fact(**opcode));
        entries.extend(with_fact.filter_map(|(row, _)| fact(Row(row))));
        debug_assert!(module.rows().all(|row| {
            has_fact(module.opcode(row)) || fact_of(module, row, &mut groups).is_none()
        }));
        let rows: Vec<u32> = entries.iter().map(|entry| entry.0).collect();
        let starts = module.starts_by_computation(&rows);
        let constants = large_constants(module);
        let async_bodies = async_bodies(module);
        Self { entries, starts, parameters: parameters(module), constants, async_bodies }
    }

    /// The part of an asynchronous collective that computation `id` plays.
    pub(super) fn async_body(&self, id: ComputationId) -> AsyncBody {
        self.async_bodies.get(id.0 as usize).copied().unwrap_or_default()
    }

    /// The constants of computation `id` that have more than one element.
    pub(super) fn constants(&self, id: ComputationId) -> &[u32] {
        self.constants.get(id.0)
    }

    /// The parameters of computation `id` of `module`, by number; those without a number are first.
    pub(super) fn parameters<'a>(&'a self, module: &'a Module, id: ComputationId) -> &'a [u32] {
        self.parameters.as_ref().map_or_else(|| module.parameter_rows(id), |all| all.get(id.0))
    }

    /// The facts of computation `id`.
    fn within(&self, id: ComputationId) -> &[(u32, Fact)] {
        let at = id.0 as usize;
        &self.entries[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// The fact of `row`.
    pub(super) fn get(&self, row: u32) -> Option<&Fact> {
        let at = self.entries.binary_search_by_key(&row, |entry| entry.0).ok()?;
        Some(&self.entries[at].1)
    }

    /// Every row with a fact.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Row, &Fact)> {
        self.entries.iter().map(|(row, fact)| (Row(*row), fact))
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(u32, Fact)>()
            + self.parameters.as_ref().map_or(0, Csr::heap_bytes)
            + self.starts.capacity() * size_of::<u32>()
            + self.constants.heap_bytes()
            + self.async_bodies.capacity()
    }
}

/// Facts of consecutive rows.
pub(super) struct FactCursor<'a> {
    rest: &'a [(u32, Fact)],
}

impl<'a> FactCursor<'a> {
    /// A cursor at the first fact of computation `id`.
    pub fn new(facts: &'a Facts, id: ComputationId) -> Self {
        Self { rest: facts.within(id) }
    }

    /// The fact of `row`; rows must be asked for in ascending order.
    #[inline]
    pub fn take(&mut self, row: u32) -> Option<&'a Fact> {
        let (first, rest) = self.rest.split_first()?;
        if first.0 != row {
            return None;
        }
        self.rest = rest;
        Some(&first.1)
    }
}

fn large_constants(module: &Module) -> Csr {
    let is_large = |row: &u32| {
        let row = Row(*row);
        module.opcode(row) == Opcode::Constant && module.shape_elements(module.shape(row)) > 1
    };
    let rows = (0..module.row_count() as u32).filter(is_large);
    let rows = rows.map(|row| (module.computation_of(Row(row)).0, row));
    Csr::from_sorted(module.computations().len(), rows)
}

fn async_bodies(module: &Module) -> Vec<AsyncBody> {
    let mut bodies = Vec::new();
    let count = module.computations().len();
    for row in module.rows().filter(|row| module.opcode(*row) == Opcode::CustomCall) {
        let body = match custom_call_target(module, row).as_deref() {
            Some(b"AsyncCollectiveStart") => AsyncBody::Start,
            Some(b"AsyncCollectiveDone") => AsyncBody::Done,
            _ => continue,
        };
        bodies.resize(count, AsyncBody::None);
        bodies[module.computation_of(row).0 as usize] = body;
    }
    if !bodies.is_empty() {
        for (id, body) in (0u32..).map(ComputationId).zip(&mut bodies) {
            let name = module.computation_name(id);
            if *body == AsyncBody::None && name.starts_with(b"async_collective_fusion") {
                *body = AsyncBody::Overlapped;
            }
        }
    }
    bodies
}

fn parameters(module: &Module) -> Option<Csr> {
    if module.is_numbered() {
        return None;
    }
    let numbers = module.parameter_number_column();
    let mut pairs: Vec<(u32, i64, u32)> = Vec::new();
    for (id, computation) in (0u32..).zip(module.computations()) {
        let rows = computation.rows();
        let parameters = rows.filter(|row| module.opcode(Row(*row)) == Opcode::Parameter);
        let start = pairs.len();
        pairs.extend(parameters.map(|row| (id, numbers[row as usize], row)));
        pairs[start..].sort_unstable();
    }
    let rows = pairs.into_iter().map(|(id, _, row)| (id, row));
    Some(Csr::from_sorted(module.computations().len(), rows))
}

/// Whether rows of `opcode` may have a fact.
#[inline]
fn has_fact(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        AllReduce
            | AllReduceDone
            | Convolution
            | CustomCall
            | Dot
            | Fft
            | Fusion
            | Gather
            | RaggedDot
            | ReduceScatter
            | ReduceWindow
            | ScaledDot
            | Scatter
            | SelectAndScatter
            | Sort
            | Transpose
            | While
    )
}

fn fact_of<'a>(module: &'a Module, row: Row, groups: &mut GroupSize<'a>) -> Option<Fact> {
    let opcode = module.opcode(row);
    match opcode {
        Opcode::Fusion => {
            let callee = module.called(row, CallRole::Calls)?;
            let is_custom = module.attribute_bytes(row, "kind") == Some(b"kCustom");
            Some(Fact::Fusion { callee, is_custom })
        }
        Opcode::CustomCall => Some(Fact::CustomCall(Box::new(custom_call_cost(module, row)))),
        Opcode::Transpose => is_bitcast(module, row).then_some(Fact::IsBitcast),
        Opcode::RaggedDot => ragged_dot(module, row),
        Opcode::ReduceWindow | Opcode::SelectAndScatter => match value(module, row, "window") {
            Some(AttributeValue::Window(window)) => Some(Fact::Window(window)),
            // XLA prints no window for scalars: it has no dimensions.
            None if module.attribute_bytes(row, "window").is_none() => {
                Some(Fact::Window(Vec::new()))
            }
            _ => None,
        },
        Opcode::Gather => integers(module, row, "slice_sizes").map(Fact::Slice),
        Opcode::Scatter => scattered_slice(module, row).map(Fact::Slice),
        Opcode::Fft => integers(module, row, "fft_length").map(Fact::FftLengths),
        Opcode::Sort => sorted_dimension(module, row).map(Fact::SortedDimension),
        Opcode::AllReduce | Opcode::ReduceScatter => {
            Some(Fact::Participants(participants(module, row, groups)))
        }
        Opcode::AllReduceDone => {
            let start = start_of(module, row)?;
            Some(Fact::Participants(participants(module, start, groups)))
        }
        _ => None,
    }
}

fn value<'a>(module: &'a Module, row: Row, key: &str) -> Option<AttributeValue<'a>> {
    let bytes = module.attribute_bytes(row, key)?;
    decode(key.as_bytes(), module.opcode(row), bytes).ok()
}

/// The integers of attribute `key` of `row`; None if it is absent or holds others.
pub(crate) fn integers(module: &Module, row: Row, key: &str) -> Option<Vec<i64>> {
    match value(module, row, key)? {
        AttributeValue::Integers(values) => Some(values),
        AttributeValue::Integer(value) => Some(vec![value]),
        _ => None,
    }
}

/// The integers of attribute `key`: empty if the attribute is absent, None if it is unreadable.
fn listed(module: &Module, row: Row, key: &str) -> Option<Vec<i64>> {
    match module.attribute(row, key) {
        Some(_) => integers(module, row, key),
        None => Some(Vec::new()),
    }
}

/// Size of dimension `index` of array shape `shape`.
fn dimension(module: &Module, shape: ShapeId, index: i64) -> Option<i64> {
    module.shapes().array(shape)?.dimension(usize::try_from(index).ok()?)?.bound()
}

fn operand_shape(module: &Module, row: Row, index: usize) -> Option<ShapeId> {
    module.operands(row).get(index).map(|operand| module.shape(Row(*operand)))
}

fn contracted(module: &Module, row: Row) -> Option<i128> {
    let lhs = operand_shape(module, row, 0)?;
    let dimensions = listed(module, row, "lhs_contracting_dims")?;
    dimensions.iter().try_fold(1i128, |product, index| {
        product.checked_mul(i128::from(dimension(module, lhs, *index)?))
    })
}

/// XLA multiplies the sizes of the result's dimensions after the group dimensions, which leaves out
/// the ragged dimension. As executed, every row is multiplied with the weights of one group.
fn ragged_dot(module: &Module, row: Row) -> Option<Fact> {
    let contracted = contracted(module, row)?;
    let groups = listed(module, row, "rhs_group_dims")?.len();
    let result = module.shapes().array(module.shape(row))?;
    let product = result
        .dimensions()
        .skip(groups)
        .try_fold(2i128, |product, size| product.checked_mul(i128::from(size.bound()?)));
    let executed = contraction(module, row).map(|contraction| contraction.flops.into());
    Some(Fact::RaggedDot { xla: product?.checked_mul(contracted)?, executed })
}

/// The slice of operand 0 that one scatter update covers: the update's window dimensions, and 1 for
/// inserted and batching dimensions.
fn scattered_slice(module: &Module, row: Row) -> Option<Vec<i64>> {
    let operands = module.operands(row);
    let target = module.shapes().array(operand_shape(module, row, 0)?)?;
    let update = operand_shape(module, row, operands.len().checked_sub(1)? / 2 + 1)?;
    let mut windows = listed(module, row, "update_window_dims")?.into_iter();
    let mut inserted = listed(module, row, "inserted_window_dims")?;
    inserted.extend(listed(module, row, "input_batching_dims")?);
    inserted.sort_unstable();
    let size = |index: usize| {
        if inserted.binary_search(&(index as i64)).is_ok() {
            return Some(1);
        }
        dimension(module, update, windows.next()?)
    };
    (0..target.rank()).map(size).collect()
}

fn sorted_dimension(module: &Module, row: Row) -> Option<i64> {
    let shape = operand_shape(module, row, 0)?;
    let along = integers(module, row, "dimensions")?;
    dimension(module, shape, *along.first()?)
}

/// Whether a transpose keeps the physical order and so only renames dimensions.
fn is_bitcast(module: &Module, row: Row) -> bool {
    let same_order = || {
        let input = module.shapes().array(operand_shape(module, row, 0)?)?;
        let output = module.shapes().array(module.shape(row))?;
        let dimensions = integers(module, row, "dimensions")?;
        let rank = input.rank();
        if input.element_type != output.element_type
            || rank != output.rank()
            || rank != dimensions.len()
        {
            return None;
        }
        let order = |array: &crate::ir::ArrayShape<'_>, position: usize| match array.layout {
            Some(layout) if layout.minor_to_major.len() == rank => {
                layout.minor_to_major.get(position).copied()
            }
            _ => Some((rank - 1 - position) as i64),
        };
        (0..rank)
            .all(|position| {
                let renamed = order(&output, position)
                    .and_then(|index| dimensions.get(usize::try_from(index).ok()?).copied());
                renamed.is_some() && renamed == order(&input, position)
            })
            .then_some(())
    };
    same_order().is_some()
}

/// The `-start` that a `-done` waits for; None if it is not in the same computation.
pub(super) fn start_of(module: &Module, row: Row) -> Option<Row> {
    let mut row = Row(*module.operands(row).first()?);
    // Updates form a chain towards earlier rows; in malformed text the chain may be a cycle.
    for _ in 0..64 {
        match module.opcode(row) {
            Opcode::AllReduceStart
            | Opcode::AllGatherStart
            | Opcode::CollectivePermuteStart
            | Opcode::CopyStart
            | Opcode::Send
            | Opcode::Recv
            | Opcode::AsyncStart => return Some(row),
            Opcode::AsyncUpdate => row = Row(*module.operands(row).first()?),
            _ => return None,
        }
    }
    None
}

/// Devices in one group of a collective. Without groups all devices take part: the replicas, or
/// replicas times partitions if the collective crosses partitions (it has a channel).
fn participants<'a>(module: &'a Module, row: Row, groups: &mut GroupSize<'a>) -> Option<u64> {
    let (replicas, partitions) = (groups.replicas?, groups.partitions?);
    let has_channel = module.attribute(row, "channel_id").is_some();
    let is_global = module.attribute_bytes(row, "use_global_device_ids") == Some(b"true");
    match groups.of(module, row)? {
        Some(size) if has_channel && !is_global => size.checked_mul(partitions),
        Some(size) => Some(size),
        None if has_channel || is_global => replicas.checked_mul(partitions),
        None => Some(replicas),
    }
}

/// Sizes of groups. Modules have few distinct groups, and many collectives.
struct GroupSize<'a> {
    replicas: Option<u64>,
    partitions: Option<u64>,
    /// The texts of groups read so far, and their sizes.
    known: HashMap<&'a [u8], Option<u64>, BuildMix>,
}

impl<'a> GroupSize<'a> {
    fn new(module: &Module) -> Self {
        let count = |value: Option<i64>| u64::try_from(value?).ok();
        let (replicas, partitions) = (module.replica_count(), module.num_partitions());
        let known = HashMap::default();
        Self { replicas: count(replicas), partitions: count(partitions), known }
    }

    /// The size of the groups of `row`: `Some(None)` without groups, None if the attribute holds
    /// something else.
    fn of(&mut self, module: &'a Module, row: Row) -> Option<Option<u64>> {
        let Some(text) = module.attribute_bytes(row, "replica_groups") else {
            return Some(None);
        };
        if let Some(size) = self.known.get(text) {
            return Some(*size);
        }
        let size = match decode(b"replica_groups", module.opcode(row), text) {
            Ok(AttributeValue::ReplicaGroups(groups)) => group_size(&groups),
            Ok(_) => return None,
            Err(_) => None,
        };
        self.known.insert(text, size);
        Some(size)
    }
}

/// Size of the largest group; None without groups.
fn group_size(groups: &ReplicaGroups<'_>) -> Option<u64> {
    const MOST_DEVICES: usize = 1 << 20;
    let uneven = || groups.expand(MOST_DEVICES)?.iter().map(|group| group.len() as u64).max();
    groups.group_size().or_else(uneven).filter(|size| *size > 0)
}
