//! XLA's buffer assignment: which values use the memory of results and donated parameters, and
//! which values share the heap.
//!
//! Follows `BufferAssigner` of XLA's `buffer_assignment.cc`. A buffer is a set of values that must
//! share memory. Buffers are assigned largest first; among equal sizes, results of the program come
//! first. A result or a donated parameter opens an allocation. A later buffer goes into the first
//! allocation that is large enough and free whenever one of the buffer's values is live. If a value
//! begins in the step in which another ends, the instruction must be able to run in place.
//! Temporaries that fit no allocation go to the heap of their memory space.

use super::MemoryError;
use super::alias::Donations;
use super::allocations::{Allocations, Use};
use super::in_place::InPlace;
use super::order::post_orders;
use super::pack::{Block, Span, packed_in_turn, packed_with_care};
use super::ranges::{Buffers, Ranges};
use super::schedule::NONE;
use super::share::{FEW, element_of};
use super::values::Reader;
use super::xla::Sizes;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use std::collections::BTreeMap;

/// Memory spaces of backends have smaller numbers; that of the host is 5.
const SPACES: usize = 8;

/// The place of rows without one in the order of assignment. A text of 4 GiB has fewer rows.
const LAST: u32 = u32::MAX >> 1;

/// The purpose of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Temporary,
    Parameter,
    Result,
    Constant,
}

/// The purpose of every buffer.
pub(super) fn kinds(reader: &Reader<'_>, values: &[u32], buffers: &Buffers) -> Vec<Kind> {
    let module = reader.module;
    let entry = module.computation(module.entry());
    let mut kinds = vec![Kind::Temporary; buffers.len()];
    let mut mark = |row: u32, kind: Kind| {
        for node in reader.steps.of(row).map_or(0..0, |step| reader.nodes.of(step)) {
            let buffer = buffers.of[values[node as usize] as usize];
            if let Some(slot) = kinds.get_mut(buffer as usize) {
                *slot = kind;
            }
        }
    };
    mark(entry.root, Kind::Result);
    for row in &reader.steps.rows {
        if module.opcode(Row(*row)) == Opcode::Constant {
            mark(*row, Kind::Constant);
        }
    }
    for row in entry.rows() {
        if module.opcode(Row(row)) == Opcode::Parameter {
            mark(row, Kind::Parameter);
        }
    }
    kinds
}

/// The buffers of a program, and when their values are live.
#[derive(Debug)]
pub(super) struct Buffered {
    buffers: Buffers,
    ranges: Ranges,
    kinds: Vec<Kind>,
    /// By buffer: the place of its first value in the order of assignment.
    firsts: Vec<u32>,
}

impl Buffered {
    pub fn new(reader: &Reader<'_>, values: &[u32], buffers: Buffers, ranges: Ranges) -> Self {
        let module = reader.module;
        // By row: its place among all rows that have a step, computations before those they call.
        let has_steps = |id: &ComputationId| reader.steps.spans[id.0 as usize].0 != NONE;
        let callers_first = module.computation_post_order().iter().copied().rev();
        let mut places = vec![LAST; module.row_count()];
        for (place, row) in (0..).zip(post_orders(module, callers_first.filter(has_steps))) {
            places[row as usize] = place;
        }
        let place = |value: &u32| {
            let step = reader.nodes.steps[*value as usize];
            places[reader.steps.rows[step as usize] as usize]
        };
        let first = |buffer| buffers.values(buffer).iter().map(place).min().unwrap_or(LAST);
        let firsts = (0..buffers.len()).map(first).collect();
        let kinds = kinds(reader, values, &buffers);
        Buffered { buffers, ranges, kinds, firsts }
    }
}

/// The buffers of a program, to be assigned.
pub(super) struct Assignment<'a> {
    reader: &'a Reader<'a>,
    values: &'a [u32],
    buffers: &'a Buffers,
    ranges: &'a Ranges,
    pub sizes: &'a Sizes<'a>,
    kinds: &'a [Kind],
    firsts: &'a [u32],
    in_place: InPlace<'a>,
}

/// What an assignment gives.
#[derive(Debug)]
pub(super) struct Assigned {
    /// By buffer: whether it lies in a heap.
    is_in_heap: Vec<bool>,
    /// Values in the HBM heap, each with the value that overwrites it. As in XLA's heap simulation, both are alone
    /// in their buffers.
    overwrites: Vec<(u32, u32)>,
}

impl Assigned {
    fn in_heap(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.is_in_heap.len()).filter(|buffer| self.is_in_heap[*buffer])
    }
}

impl<'a> Assignment<'a> {
    pub fn new(
        reader: &'a Reader<'a>,
        values: &'a [u32],
        buffered: &'a Buffered,
        sizes: &'a Sizes<'a>,
    ) -> Self {
        let Buffered { buffers, ranges, kinds, firsts } = buffered;
        let in_place = InPlace::new(reader, values, sizes.shapes);
        Assignment { reader, values, buffers, ranges, sizes, kinds, firsts, in_place }
    }

    fn bytes(&self, buffer: usize) -> i64 {
        let values = self.buffers.values(buffer);
        values.iter().map(|value| self.sizes.bytes[*value as usize]).max().unwrap_or(0)
    }

    fn space(&self, buffer: usize) -> i64 {
        let first = self.buffers.values(buffer).first();
        first.map_or(0, |value| self.sizes.spaces[*value as usize])
    }

    fn uses(&self, buffer: usize) -> impl Iterator<Item = Use> + '_ {
        let use_of = |value: &u32| Use {
            start: self.ranges.starts[*value as usize],
            end: self.ranges.ends[*value as usize],
            value: *value,
        };
        self.buffers.values(buffer).iter().map(use_of).filter(|alive| alive.start <= alive.end)
    }

    /// Assigns the buffers.
    pub fn assigned(&self, donations: &Donations) -> Assigned {
        let is_in_heap = self.temporaries(donations);
        let mut overwrites = Vec::new();
        self.each_overwrite(&is_in_heap, |operand, user| overwrites.push((operand, user)));
        Assigned { is_in_heap, overwrites }
    }

    /// By buffer: whether it lies in a heap.
    fn temporaries(&self, donations: &Donations) -> Vec<bool> {
        let order = self.order(donations);
        let mut is_in_heap: Vec<bool> =
            self.kinds.iter().map(|kind| *kind == Kind::Temporary).collect();
        // Few programs need this many tries.
        let tries = MOST_TRIES.max(64 * order.len());
        let mut allocations = Allocations::new(self.reader.steps.rows.len(), tries);
        // By buffer: its allocation.
        let mut allocated = vec![usize::MAX; self.kinds.len()];
        let mut uses = Vec::new();
        for (bytes, buffer) in order {
            let kind = self.kinds[buffer];
            // Temporaries that are larger than all results come before the first allocation.
            if allocations.is_empty() && kind == Kind::Temporary {
                continue;
            }
            uses.clear();
            self.uses(buffer).for_each(|alive| uses.push(alive));
            // A result needs memory of exactly its own size.
            let fit = |own: i64| match kind {
                Kind::Temporary => own >= bytes,
                _ => own == bytes,
            };
            let shares = |operand, user| self.in_place.shares(operand, user);
            let mut place = None;
            if kind != Kind::Parameter && !uses.iter().any(|alive| self.is_gathered(alive.value)) {
                allocations.ask(&uses);
                self.each_operand(buffer, |operand| {
                    let index = allocated.get(operand as usize).copied().unwrap_or(usize::MAX);
                    let is_free =
                        index != usize::MAX && allocations.is_free(index, &uses, fit, shares);
                    place = is_free.then_some(index);
                    is_free
                });
                if place.is_none() {
                    place = allocations.find_last(&uses, fit, shares);
                }
            }
            let index = match place {
                Some(index) => index,
                None if kind == Kind::Temporary => continue,
                None => allocations.open(bytes),
            };
            allocations.extend(index, &uses);
            allocated[buffer] = index;
            is_in_heap[buffer] = false;
        }
        is_in_heap
    }

    /// Bytes and buffer in the order of assignment: largest first; among equal sizes, results of
    /// the program first, then callers before callees, then the earliest.
    fn order(&self, donations: &Donations) -> Vec<(i64, usize)> {
        let mut is_donated = vec![false; self.kinds.len()];
        for (_, parameter) in &donations.pairs {
            if let Some(slot) = is_donated.get_mut(self.buffers.of[*parameter as usize] as usize) {
                *slot = true;
            }
        }
        let mut order: Vec<u128> = Vec::with_capacity(self.kinds.len());
        for (buffer, kind) in self.kinds.iter().enumerate() {
            let is_assigned = match kind {
                Kind::Constant => false,
                Kind::Parameter => is_donated[buffer],
                Kind::Result | Kind::Temporary => true,
            };
            if !is_assigned || self.space(buffer) != 0 {
                continue;
            }
            let bytes = self.bytes(buffer);
            if bytes > 0 {
                // One number for all, which sorts faster.
                let is_temporary = u64::from(*kind == Kind::Temporary) << 63;
                let place = is_temporary | u64::from(self.firsts[buffer]) << 32 | buffer as u64;
                order.push(u128::from(!(bytes as u64)) << 64 | u128::from(place));
            }
        }
        order.sort_unstable();
        let own = |key: u128| (!((key >> 64) as u64) as i64, key as u32 as usize);
        order.into_iter().map(own).collect()
    }

    /// Calls `is_found` with the buffers of the operands that arrays in `buffer` are computed from, until
    /// it says so. Their allocations are tried first.
    fn each_operand(&self, buffer: usize, mut is_found: impl FnMut(u32) -> bool) {
        let Reader { module, steps, nodes, .. } = *self.reader;
        for value in self.buffers.values(buffer) {
            let step = nodes.steps[*value as usize];
            if nodes.of(step).len() != 1 {
                continue;
            }
            for operand in module.operands(Row(steps.rows[step as usize])) {
                let Some(from) = steps.of(*operand).filter(|from| *from < step) else { continue };
                let value = self.values[nodes.of(from).start as usize];
                let buffer = self.buffers.of.get(value as usize);
                if buffer.is_some_and(|buffer| is_found(*buffer)) {
                    return;
                }
            }
        }
    }

    /// Whether an all-gather, possibly started by a fusion, writes the value. libtpu never puts
    /// such values into the memory of results (`must_not_live_out`; observed in its buffer
    /// assignments).
    fn is_gathered(&self, value: u32) -> bool {
        let Reader { module, steps, nodes, .. } = *self.reader;
        let step = nodes.steps[value as usize];
        let row = Row(steps.rows[step as usize]);
        match module.opcode(row) {
            Opcode::AllGather | Opcode::AllGatherStart => true,
            Opcode::Fusion => {
                let element = element_of(self.reader, module.shape(row), step, value);
                element > 0 && starts_all_gather(module, row)
            }
            _ => false,
        }
    }

    /// The heap of each memory space.
    pub fn heaps(&self, assigned: &Assigned) -> Result<BTreeMap<i64, Heap>, MemoryError> {
        let mut over = vec![false; self.values.len()];
        for (operand, _) in &assigned.overwrites {
            over[*operand as usize] = true;
        }
        // By memory space and step: what its heap grows by. Lists for spaces that no backend has, of which
        // a text may name any number.
        let mut grows: [Vec<i64>; SPACES] = Default::default();
        let mut others: BTreeMap<i64, Vec<(u32, i64)>> = BTreeMap::new();
        let steps = self.reader.steps.rows.len();
        let mut total = 0i128;
        for buffer in assigned.in_heap() {
            for mut alive in self.uses(buffer) {
                if over[alive.value as usize] {
                    // The value that overwrites this one begins in its last step.
                    alive.end = alive.end.saturating_sub(1);
                }
                let bytes = self.sizes.bytes[alive.value as usize];
                if bytes > 0 && alive.start <= alive.end {
                    total += i128::from(bytes);
                    if total > i128::from(i64::MAX) {
                        return Err(MemoryError::TooLarge);
                    }
                    let (start, after) = (alive.start, alive.end.saturating_add(1));
                    let space = self.sizes.spaces[alive.value as usize];
                    match usize::try_from(space).ok().and_then(|space| grows.get_mut(space)) {
                        Some(own) => {
                            if own.is_empty() {
                                *own = vec![0; steps + 2];
                            }
                            own[start as usize] += bytes;
                            own[after as usize] -= bytes;
                        }
                        None => {
                            let own = others.entry(space).or_default();
                            own.extend([(start, bytes), (after, -bytes)]);
                        }
                    }
                }
            }
        }
        let known = (0..).zip(grows).filter(|(_, grows)| !grows.is_empty());
        let known = known.map(|(space, grows)| (space, Heap::largest((0..).zip(grows))));
        let mut heaps: BTreeMap<i64, Heap> = known.collect();
        heaps.extend(others.into_iter().map(|(space, mut grows)| {
            // Ends come before beginnings.
            grows.sort_unstable();
            (space, Heap::largest(grows))
        }));
        Ok(heaps)
    }

    /// The rows that write over values in the heap that they read, with the bytes of these values.
    pub fn overwriting(&self, assigned: &Assigned) -> Vec<(Row, i64)> {
        let found = |(operand, user): &(u32, u32)| {
            let step = self.reader.nodes.steps[*user as usize];
            let row = Row(self.reader.steps.rows[step as usize]);
            (row, self.sizes.bytes[*operand as usize])
        };
        assigned.overwrites.iter().map(found).collect()
    }

    /// Calls `each` with every value in the HBM heap and the value that overwrites it.
    fn each_overwrite(&self, is_in_heap: &[bool], mut each: impl FnMut(u32, u32)) {
        let Reader { module, steps, nodes, .. } = *self.reader;
        let is_alone = |value: u32| {
            let buffer = self.buffers.of[value as usize] as usize;
            is_in_heap.get(buffer) == Some(&true)
                && self.buffers.values(buffer).len() == 1
                // Another pass assigns fast memory and shares no buffers there.
                && self.sizes.spaces[value as usize] == 0
        };
        let ends_at = |step: u32, index: usize| {
            let operand = self.reader.operand(step, index)?.start;
            let is_ending = self.values[operand as usize] == operand
                && self.ranges.ends[operand as usize] == step
                && is_alone(operand);
            is_ending.then_some(operand)
        };
        let mut taken: Vec<u32> = Vec::new();
        for (step, row) in (0u32..).zip(&steps.rows) {
            // XLA never writes a copy over its operand.
            if module.opcode(Row(*row)) == Opcode::Copy {
                continue;
            }
            let is_written = |node: &u32| {
                self.values[*node as usize] == *node
                    && is_alone(*node)
                    && self.sizes.bytes[*node as usize] != 0
            };
            // Most values are outside the heap.
            if !nodes.of(step).any(|node| is_written(&node)) {
                continue;
            }
            let count = module.operands(Row(*row)).len();
            let users = nodes.of(step).filter(is_written);
            if count > FEW && nodes.of(step).len() > FEW {
                let operands = (0..count).filter_map(|index| Some((index, ends_at(step, index)?)));
                let operands = operands.take_while(|_| self.in_place.is_looked_at(1)).collect();
                self.in_place.each_of_many(users, operands, &mut each);
                continue;
            }
            taken.clear();
            for user in users {
                let operand = (0..count).find_map(|index| {
                    let operand = ends_at(step, index).filter(|_| self.in_place.is_looked_at(1))?;
                    let is_free =
                        !taken.contains(&operand) && self.in_place.is_written_over(index, user);
                    is_free.then_some(operand)
                });
                if let Some(operand) = operand {
                    taken.push(operand);
                    each(operand, user);
                }
            }
        }
    }

    /// Bytes of the pointer tables of tuples inside the program; tables do not share memory.
    pub fn table_bytes(&self, assigned: &Assigned) -> i64 {
        let is_table = |value: &u32| {
            let module = self.reader.module;
            module.shapes().tuple(self.in_place.shape_of(*value)).is_some()
        };
        let tables =
            assigned.in_heap().filter(|buffer| self.buffers.values(*buffer).iter().any(is_table));
        (tables.count() as i64).saturating_mul(HEAP_ALIGNMENT)
    }

    /// Bytes of the heap in HBM when its values are packed, with care if it has more than `most` bytes
    /// otherwise; None if that takes too long.
    pub fn packed(&self, assigned: &Assigned, most: i64) -> Option<i64> {
        let count = assigned.is_in_heap.len();
        let mut block_of: Vec<u32> = (0..count as u32).collect();
        // Operands come before their users, so a chain of overwrites ends in one block.
        for (operand, user) in &assigned.overwrites {
            let operand = self.buffers.of[*operand as usize] as usize;
            block_of[self.buffers.of[*user as usize] as usize] = block_of[operand];
        }
        let mut alive: Vec<Use> = Vec::new();
        for buffer in assigned.in_heap() {
            if self.space(buffer) != 0 || self.bytes(buffer) == 0 {
                continue;
            }
            let first = alive.len();
            alive.extend(self.uses(buffer));
            alive[first..].sort_unstable();
            for at in first + 1..alive.len() {
                // The earlier value is freed after the later value is allocated.
                if alive[at - 1].end.saturating_add(1) == alive[at].start {
                    alive[at - 1].end = alive[at].start;
                }
            }
        }
        alive.sort_unstable_by_key(|own| (own.pair(), own.value));
        let block = |own: &Use| block_of[self.buffers.of[own.value as usize] as usize] as usize;
        // By block: its place among the spans, one more.
        let mut places = vec![0u32; count];
        let mut spans: Vec<Span> = Vec::new();
        for own in &alive {
            let bytes = self.bytes(self.buffers.of[own.value as usize] as usize);
            let place = &mut places[block(own)];
            match spans.get_mut((*place as usize).wrapping_sub(1)) {
                Some(span) => {
                    span.bytes = span.bytes.max(bytes);
                    span.last = span.last.max(own.end);
                }
                None => {
                    spans.push(Span { bytes, first: own.start, last: own.end });
                    *place = spans.len() as u32;
                }
            }
        }
        let fast = packed_in_turn(&spans, HEAP_ALIGNMENT)?;
        if fast <= most {
            return Some(fast);
        }
        let mut blocks = vec![Block::default(); count];
        for (life, own) in event_times(&alive).into_iter().zip(&alive) {
            let bytes = self.bytes(self.buffers.of[own.value as usize] as usize);
            let block = &mut blocks[block(own)];
            block.bytes = block.bytes.max(bytes);
            block.lives.push(life);
        }
        blocks.iter_mut().for_each(Block::join_lives);
        packed_with_care(&blocks, HEAP_ALIGNMENT)
    }
}

/// XLA's heap counts time in allocations and releases: each step first allocates values and then
/// releases the values that end in the step.
fn event_times(alive: &[Use]) -> Vec<(u32, u32)> {
    let mut events: Vec<(u32, bool, u32)> = Vec::with_capacity(2 * alive.len());
    for (known, number) in alive.iter().zip(0..) {
        events.extend([(known.start, false, number), (known.end, true, number)]);
    }
    events.sort_unstable();
    let mut times = vec![(0, 0); alive.len()];
    for ((_, is_release, number), time) in events.into_iter().zip(0..) {
        let life: &mut (u32, u32) = &mut times[number as usize];
        *(if is_release { &mut life.1 } else { &mut life.0 }) = time;
    }
    times
}

/// The largest sum of live bytes in a heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// The bytes.
    pub bytes: i64,
    /// The step at which these bytes are live.
    pub step: u32,
}

impl Heap {
    /// The heap that grows by some bytes at some steps, in their order.
    fn largest(grows: impl IntoIterator<Item = (u32, i64)>) -> Self {
        let (mut alive, mut largest) = (0, Heap::default());
        for (step, bytes) in grows {
            alive += bytes;
            if alive > largest.bytes {
                largest = Heap { bytes: alive, step };
            }
        }
        largest
    }
}

/// The alignment of values that libtpu places in HBM; observed in its buffer assignments for v4,
/// v5e, v5p and v6e.
const HEAP_ALIGNMENT: i64 = 16384;

/// Whether a fusion is the start of an asynchronous all-gather; its element 0 is the operand.
fn starts_all_gather(module: &Module, row: Row) -> bool {
    const TARGET: &[u8] = b", custom_call_target=\"AsyncCollectiveStart\"";
    let Some(callee) = module.called(row, CallRole::Calls) else { return false };
    let root = Row(module.computation(callee).root);
    module.opcode(root) == Opcode::CustomCall
        && module.bytes(module.tail(root)).starts_with(TARGET)
        && module
            .operands(root)
            .iter()
            .any(|operand| module.opcode(Row(*operand)) == Opcode::AllGather)
}

const MOST_TRIES: usize = 1 << 20;
