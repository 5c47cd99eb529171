//! libtpu's account of a compiled program, `CompiledMemoryStats`.
//!
//! Parameters, constants and results that alias no parameter stay allocated throughout. All other
//! values lie in heaps, one per memory space; a value in main memory may use the memory of a
//! donated parameter or a result while that is unused. libtpu's peak adds the largest heap, even if
//! that heap is in fast memory. Found by comparison with programs compiled ahead of time for v5e,
//! v5p and v6e; see `tests/memory_tpu.rs`.

use super::alias::{Donations, Sets};
use super::nodes::node_shapes;
use super::peak::memory_space;
use super::ranges::{Buffers, Ranges};
use super::schedule::NONE;
use super::values::Reader;
use super::{Frame, MemoryError, Rule};
use crate::cost::Backend;
use crate::cost::size::shape_costs;
use crate::ir::{ComputationId, Module, Opcode, Row, ShapeId};
use std::collections::BTreeMap;

/// The memory space of host memory in TPU programs.
const HOST: i64 = 5;
/// The memory space of fast on-chip memory.
const FAST: i64 = 1;

/// How a device rounds the pointer table of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// 8 bytes per element.
    Pointers,
    /// 4 bytes per element, rounded up to this many bytes.
    Rounded(u32),
}

impl Tables {
    /// What the text implies: 512 bytes on TPU, but 32 on chips with two cores (v5p). v6e has 32 as
    /// well, without its text saying so.
    pub fn of_module(module: &Module, backend: Backend) -> Self {
        if backend != Backend::Tpu {
            return Tables::Pointers;
        }
        match memchr::memmem::find(module.text(), b"megacore") {
            Some(_) => Tables::Rounded(32),
            None => Tables::Rounded(512),
        }
    }

    fn bytes(self, elements: usize) -> i64 {
        match self {
            Tables::Pointers => (elements as i64).saturating_mul(8),
            Tables::Rounded(to) => {
                let bytes = (elements as u64).saturating_mul(4);
                bytes.checked_next_multiple_of(u64::from(to.max(1))).unwrap_or(bytes) as i64
            }
        }
    }
}

/// Bytes of device or host memory for a program's parameters and results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Bytes of the parameters.
    pub argument: i64,
    /// Bytes of the results, and of the pointer table of their tuple.
    pub output: i64,
    /// Bytes of results that alias parameters.
    pub alias: i64,
}

impl Signature {
    /// Bytes of parameters and results together.
    pub fn total(&self) -> i64 {
        self.argument + self.output - self.alias
    }
}

/// The account of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XlaAccount {
    /// Parameters and results in device memory.
    pub device: Signature,
    /// Parameters and results in host memory.
    pub host: Signature,
    /// Bytes of constants.
    pub constants: i64,
    /// The peak of live bytes in one heap.
    pub heap: i64,
    /// The memory space of that heap.
    pub heap_space: i64,
    /// The step of that peak.
    pub heap_step: u32,
    /// What XLA calls the peak.
    pub peak: i64,
}

/// The purpose of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Temporary,
    Parameter,
    Result,
    Constant,
}

/// XLA's account of `module`, whose text order is the schedule.
pub fn xla_account(module: &Module, tables: Option<Tables>) -> Result<XlaAccount, MemoryError> {
    let mut frame = Frame::new(module, None, Rule::Xla)?;
    let ranges = std::mem::take(&mut frame.ranges);
    let sets = std::mem::replace(&mut frame.sets, Sets::new(0));
    account_of(module, &frame, sets, ranges, tables)
}

/// The account from `sets` and `ranges` of `frame`.
pub(super) fn account_of(
    module: &Module,
    frame: &Frame,
    mut sets: Sets,
    mut ranges: Ranges,
    tables: Option<Tables>,
) -> Result<XlaAccount, MemoryError> {
    let buffers = Buffers::new(&frame.values, &mut sets);
    let reader = frame.reader(module);
    let backend = Backend::of_module(module);
    let sizes = Sizes::new(&reader, backend);
    ranges.take_turns(&buffers, |ranges, first, second| {
        // In fast memory XLA allocates the replacement of a value before it frees the value; values
        // carried by loops and branches count as one.
        let row = Row(reader.steps.rows[reader.nodes.steps[second] as usize]);
        sizes.spaces[second] != FAST
            || ranges.starts[first] == ranges.starts[second]
            || matches!(module.opcode(row), Opcode::Parameter | Opcode::While | Opcode::Conditional)
    });
    let tables = tables.unwrap_or_else(|| Tables::of_module(module, backend));
    let mut account = XlaAccount::default();
    signature(&reader, &frame.donations, &sizes, tables, &mut account)?;
    account.constants = constants(&reader, &sizes)?;
    let kinds = kinds(&reader, &frame.values, &buffers);
    let mut heap = Heap { reader: &reader, buffers: &buffers, ranges: &ranges, sizes: &sizes };
    let reused = heap.reused(&kinds, &frame.donations);
    (account.heap, account.heap_space, account.heap_step) = heap.largest(&kinds, &reused)?;
    let parts = [account.device.total(), account.host.total(), account.constants, account.heap];
    let sum = parts.iter().try_fold(0i64, |sum, part| sum.checked_add(*part));
    account.peak = sum.ok_or(MemoryError::TooLarge)?;
    Ok(account)
}

/// Bytes and memory space of every node; pointer tables of tuples take none.
struct Sizes {
    by_shape: Vec<i64>,
    bytes: Vec<i64>,
    spaces: Vec<i64>,
}

impl Sizes {
    fn new(reader: &Reader<'_>, backend: Backend) -> Self {
        let module = reader.module;
        let costs = shape_costs(module.shapes(), backend, false);
        let by_shape: Vec<i64> = module
            .shapes()
            .ids()
            .zip(&costs)
            .map(
                |(id, cost)| if module.shapes().tuple(id).is_some() { 0 } else { cost.size.max(0) },
            )
            .collect();
        let mut sizes = Sizes { by_shape, bytes: Vec::new(), spaces: Vec::new() };
        let mut shapes: Vec<ShapeId> = Vec::new();
        for row in &reader.steps.rows {
            let shape = module.shape(Row(*row));
            shapes.clear();
            if reader.shapes.count(shape) == 1 {
                shapes.push(shape);
            } else {
                node_shapes(module, shape, &mut shapes);
            }
            for shape in &shapes {
                sizes.bytes.push(sizes.of(*shape));
                sizes.spaces.push(memory_space(module, *shape));
            }
        }
        sizes
    }

    fn of(&self, shape: ShapeId) -> i64 {
        self.by_shape.get(shape.0 as usize).copied().unwrap_or(0)
    }
}

fn signature(
    reader: &Reader<'_>,
    donations: &Donations,
    sizes: &Sizes,
    tables: Tables,
    account: &mut XlaAccount,
) -> Result<(), MemoryError> {
    let module = reader.module;
    let entry = module.computation(module.entry());
    let mut totals = [[0i128; 3]; 2];
    let mut add = |node: u32, column: usize| {
        let is_host = sizes.spaces[node as usize] == HOST;
        totals[usize::from(is_host)][column] += i128::from(sizes.bytes[node as usize]);
    };
    for row in entry.rows() {
        if module.opcode(Row(row)) == Opcode::Parameter
            && let Some(step) = reader.steps.of(row)
        {
            reader.nodes.of(step).for_each(|node| add(node, 0));
        }
    }
    let root = reader.steps.of(entry.root);
    if let Some(step) = root {
        reader.nodes.of(step).for_each(|node| add(node, 1));
    }
    for (result, _) in &donations.pairs {
        add(*result, 2);
    }
    if root.is_some()
        && let Some(elements) = module.shapes().tuple(module.shape(Row(entry.root)))
    {
        totals[0][1] += i128::from(tables.bytes(elements.len()));
    }
    for (signature, totals) in [&mut account.device, &mut account.host].into_iter().zip(totals) {
        let narrow = |value: i128| i64::try_from(value).map_err(|_| MemoryError::TooLarge);
        *signature = Signature {
            argument: narrow(totals[0])?,
            output: narrow(totals[1])?,
            alias: narrow(totals[2])?,
        };
    }
    Ok(())
}

/// What libtpu allocates for a scalar without tiles.
const UNTILED_SCALAR: i64 = 4096;

/// Constants of all computations except fused ones, including those that are applied to elements.
fn constants(reader: &Reader<'_>, sizes: &Sizes) -> Result<i64, MemoryError> {
    let module = reader.module;
    let is_tpu = Backend::of_module(module) == Backend::Tpu;
    let mut is_reached = vec![false; module.computations().len()];
    let mut stack = vec![module.entry().0];
    let mut sum = 0i128;
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut is_reached[id as usize], true) {
            continue;
        }
        for row in module.computation(ComputationId(id)).rows() {
            if module.opcode(Row(row)) == Opcode::Constant {
                let shape = module.shape(Row(row));
                let bytes = sizes.of(shape);
                let array = module.shapes().array(shape);
                let is_untiled = array.is_some_and(|array| {
                    array.rank() == 0 && array.layout.is_none_or(|layout| layout.tiles.is_empty())
                });
                sum += i128::from(if is_tpu && is_untiled { UNTILED_SCALAR } else { bytes });
            }
        }
        for index in module.calls_within(ComputationId(id)) {
            let Some(call) = module.all_calls().get(index) else { break };
            if module.opcode(call.row) != Opcode::Fusion {
                stack.push(call.computation.0);
            }
        }
    }
    i64::try_from(sum).map_err(|_| MemoryError::TooLarge)
}

fn kinds(reader: &Reader<'_>, values: &[u32], buffers: &Buffers) -> Vec<Kind> {
    let module = reader.module;
    let entry = module.computation(module.entry());
    let mut kinds = vec![Kind::Temporary; buffers.len()];
    let mut mark = |row: u32, kind: Kind| {
        for node in reader.steps.of(row).map_or(0..0, |step| reader.nodes.of(step)) {
            let buffer = buffers.of[values[node as usize] as usize];
            if let Some(buffer_kind) = kinds.get_mut(buffer as usize) {
                *buffer_kind = kind;
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

/// Under the rule `xla`, parameters and results stay from beginning to end; of the values that
/// share their memory, the first represents all.
pub(super) fn keep_results(
    reader: &Reader<'_>,
    values: &[u32],
    buffers: &Buffers,
    ranges: &mut Ranges,
) {
    for (buffer, kind) in kinds(reader, values, buffers).iter().enumerate() {
        if !matches!(kind, Kind::Parameter | Kind::Result) {
            continue;
        }
        let Some((first, others)) = buffers.values(buffer).split_first() else { continue };
        ranges.starts[*first as usize] = 0;
        ranges.ends[*first as usize] = reader.steps.len();
        for value in others {
            ranges.starts[*value as usize] = 1;
            ranges.ends[*value as usize] = 0;
        }
    }
}

struct Heap<'a> {
    reader: &'a Reader<'a>,
    buffers: &'a Buffers,
    ranges: &'a Ranges,
    sizes: &'a Sizes,
}

/// Memory that stays allocated, and when it is in use.
struct Allocation {
    bytes: i64,
    /// First and last step of each use, ascending.
    uses: Vec<(u32, u32)>,
}

impl Allocation {
    fn is_free(&self, (start, end): (u32, u32)) -> bool {
        let before = self.uses.partition_point(|used| used.0 <= end);
        before.checked_sub(1).is_none_or(|at| self.uses[at].1 < start)
    }

    /// Of uses that begin together, the last one counts.
    fn extend(&mut self, uses: &[(u32, u32)]) {
        for used in uses {
            match self.uses.binary_search_by_key(&used.0, |known| known.0) {
                Ok(at) => self.uses[at] = *used,
                Err(at) => self.uses.insert(at, *used),
            }
        }
    }
}

impl Heap<'_> {
    fn bytes(&self, buffer: usize) -> i64 {
        let values = self.buffers.values(buffer);
        values.iter().map(|value| self.sizes.bytes[*value as usize]).max().unwrap_or(0)
    }

    fn space(&self, buffer: usize) -> i64 {
        let first = self.buffers.values(buffer).first();
        first.map_or(0, |value| self.sizes.spaces[*value as usize])
    }

    fn uses(&self, buffer: usize) -> impl Iterator<Item = (u32, u32)> + '_ {
        let range = |value: &u32| {
            let value = *value as usize;
            (self.ranges.starts[value], self.ranges.ends[value])
        };
        self.buffers.values(buffer).iter().map(range).filter(|(start, end)| start <= end)
    }

    /// By buffer: whether it is a temporary that uses permanent memory.
    fn reused(&mut self, kinds: &[Kind], donations: &Donations) -> Vec<bool> {
        let mut is_donated = vec![false; kinds.len()];
        for (_, parameter) in &donations.pairs {
            if let Some(is_buffer_donated) =
                is_donated.get_mut(self.buffers.of[*parameter as usize] as usize)
            {
                *is_buffer_donated = true;
            }
        }
        // XLA's order of assignment: largest first, then callers before callees, then earliest.
        let module = self.reader.module;
        let mut ranks = vec![0u32; module.computations().len()];
        for (id, rank) in module.computation_post_order().into_iter().rev().zip(0..) {
            if let Some(slot) = ranks.get_mut(id.0 as usize) {
                *slot = rank;
            }
        }
        let mut order: Vec<(i64, (u32, u32), usize)> = Vec::new();
        for (buffer, kind) in kinds.iter().enumerate() {
            let bytes = self.bytes(buffer);
            let is_free = match kind {
                Kind::Constant => false,
                Kind::Parameter => is_donated[buffer],
                Kind::Result | Kind::Temporary => true,
            };
            if bytes > 0 && is_free && self.space(buffer) == 0 {
                let place = |value: &u32| {
                    let step = self.reader.nodes.steps[*value as usize];
                    let row = Row(self.reader.steps.rows[step as usize]);
                    (ranks[module.computation_of(row).0 as usize], row.0)
                };
                let first = self.buffers.values(buffer).iter().map(place).min();
                order.push((-bytes, first.unwrap_or((NONE, NONE)), buffer));
            }
        }
        order.sort_unstable();
        let mut allocations: Vec<Allocation> = Vec::new();
        let mut reused = vec![false; kinds.len()];
        // Each try examines one allocation; few programs need this many.
        let mut tries = MOST_TRIES.max(64 * order.len());
        let mut uses = Vec::new();
        for (bytes, _, buffer) in order {
            uses.clear();
            uses.extend(self.uses(buffer));
            let is_temporary = kinds[buffer] == Kind::Temporary;
            let bytes = -bytes;
            let mut free = None;
            if kinds[buffer] != Kind::Parameter {
                for (index, allocation) in allocations.iter().enumerate().rev() {
                    if tries == 0 {
                        break;
                    }
                    tries -= 1;
                    // A result only fits memory of exactly its size.
                    let fits = is_temporary || allocation.bytes == bytes;
                    if fits && uses.iter().all(|used| allocation.is_free(*used)) {
                        free = Some(index);
                        break;
                    }
                }
            }
            match free {
                Some(index) => {
                    allocations[index].extend(&uses);
                    reused[buffer] = is_temporary;
                }
                None if !is_temporary => {
                    let mut allocation = Allocation { bytes, uses: Vec::new() };
                    allocation.extend(&uses);
                    allocations.push(allocation);
                }
                None => {}
            }
        }
        reused
    }

    /// The largest heap: its bytes, memory space and step.
    fn largest(&self, kinds: &[Kind], reused: &[bool]) -> Result<(i64, i64, u32), MemoryError> {
        let mut heaps: BTreeMap<i64, Vec<(u32, i64)>> = BTreeMap::new();
        let mut total = 0i128;
        for (buffer, kind) in kinds.iter().enumerate() {
            if *kind != Kind::Temporary || reused[buffer] {
                continue;
            }
            for value in self.buffers.values(buffer) {
                let value = *value as usize;
                let (start, end) = (self.ranges.starts[value], self.ranges.ends[value]);
                let bytes = self.sizes.bytes[value];
                if bytes > 0 && start <= end {
                    total += i128::from(bytes);
                    let heap = heaps.entry(self.sizes.spaces[value]).or_default();
                    heap.extend([(start, bytes), (end.saturating_add(1), -bytes)]);
                }
            }
        }
        if total > i128::from(i64::MAX) {
            return Err(MemoryError::TooLarge);
        }
        let mut largest = (0, 0, 0);
        for (space, mut events) in heaps {
            // Sorting puts ends before beginnings.
            events.sort_unstable();
            let mut alive = 0;
            for (step, bytes) in events {
                alive += bytes;
                if alive > largest.0 {
                    largest = (alive, space, step);
                }
            }
        }
        Ok(largest)
    }
}

const MOST_TRIES: usize = 1 << 20;
