//! libtpu's account of a compiled program, `CompiledMemoryStats`.
//!
//! Parameters, constants and results that alias no parameter stay allocated throughout. All other
//! values lie in heaps, one per memory space; a value in HBM may use the memory of a donated
//! parameter or a result while that memory is unused (`assign.rs`). libtpu's peak adds the largest
//! heap, even if that heap is in fast memory. With the memory of the chip libtpu compares the bytes
//! it allocates in HBM, fragmentation included (`pack.rs`). Found by comparison with programs
//! compiled ahead of time for v4, v5e, v5p and v6e; see `tests/memory_tpu.rs`.

use super::alias::Donations;
use super::assign::{Assigned, Assignment, Buffered, Heap, Kind, kinds};
use super::frame::Shaped;
use super::ranges::{Buffers, Ranges};
use super::values::Reader;
use super::{Frame, MemoryError, Rule};
use crate::cost::Backend;
use crate::ir::size::ShapeCost;
use crate::ir::{ArrayShape, ComputationId, FAST_SPACE, HOST_SPACE, Module, Opcode, Row, ShapeId};

/// The memory space of HBM.
const HBM: i64 = 0;
/// The memory space of the common memory of v4, which libtpu uses as fast memory.
const COMMON: i64 = 3;

/// How a device rounds the pointer table of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// 8 bytes per element.
    Pointers,
    /// 4 bytes per element, rounded up to this many bytes.
    Rounded(u32),
}

impl Tables {
    /// The rounding that the text implies: 512 bytes on TPU, but 32 on v5p, recognised by its
    /// megacore of two cores. v4 also has a megacore, and is recognised by its common memory, space
    /// 3. v6e has tables of 32 bytes too, but nothing in its text shows that.
    pub fn of_module(module: &Module, backend: Backend) -> Self {
        if backend != Backend::Tpu {
            return Tables::Pointers;
        }
        let is_common = |array: ArrayShape<'_>| {
            array.layout.is_some_and(|layout| layout.memory_space == COMMON)
        };
        let shapes = module.shapes();
        let has_common = || shapes.ids().any(|id| shapes.array(id).is_some_and(is_common));
        let has_megacore = || memchr::memmem::find(module.text(), b"megacore").is_some();
        Tables::Rounded(if !has_common() && has_megacore() { 32 } else { 512 })
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
        self.argument.saturating_add(self.output).saturating_sub(self.alias)
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
    /// The peak of live bytes in the largest heap.
    pub heap: i64,
    /// The memory space of the largest heap.
    pub heap_space: i64,
    /// The step of the peak of the largest heap.
    pub heap_step: u32,
    /// XLA's `peak_memory_in_bytes`: the largest heap of any memory space, plus everything that
    /// stays allocated.
    pub peak: i64,
    /// The peak of live bytes in the HBM heap.
    pub hbm: Heap,
    /// The peak of live bytes in the heap of fast on-chip memory: VMEM, or the common memory of v4.
    pub fast: Heap,
    /// The peak of live bytes in the heap of host memory.
    pub on_host: Heap,
}

impl XlaAccount {
    /// The peak in HBM: parameters, results, constants and the HBM heap.
    pub fn hbm_peak(&self) -> i64 {
        self.device.total() + self.constants + self.hbm.bytes
    }

    /// The peak in fast memory, which holds neither parameters nor results.
    pub fn fast_peak(&self) -> i64 {
        self.fast.bytes
    }

    /// The peak in host memory: parameters and results in host memory, and its heap.
    pub fn host_peak(&self) -> i64 {
        self.host.total() + self.on_host.bytes
    }
}

/// XLA's account of `module`, whose text order is the schedule.
pub fn xla_account(module: &Module, tables: Option<Tables>) -> Result<XlaAccount, MemoryError> {
    account_from(module, &Frame::new(module, None, Rule::Xla)?, tables)
}

/// [`xla_account`] of a module whose frame is known.
pub fn account_from(
    module: &Module,
    frame: &Frame,
    tables: Option<Tables>,
) -> Result<XlaAccount, MemoryError> {
    let frame = frame.marked();
    account_with(module, frame, Sizes::new(module, frame, |_, bytes| bytes), tables)
}

/// The rows of `module` that write over values that they read, with the bytes of these values.
pub fn overwriting(module: &Module, frame: &Frame) -> Result<Vec<(Row, i64)>, MemoryError> {
    let frame = frame.marked();
    let sizes = Sizes::new(module, frame, |_, bytes| bytes);
    assigned(module, frame, sizes, |_, assignment, placed| Ok(assignment.overwriting(placed)))
}

/// The account of the program if its values had other sizes.
pub(super) fn account_with(
    module: &Module,
    frame: &Frame,
    sizes: Sizes<'_>,
    tables: Option<Tables>,
) -> Result<XlaAccount, MemoryError> {
    assigned(module, frame, sizes, |reader, assignment, placed| {
        counted(reader, frame, assignment, placed, tables)
    })
}

/// The account and the packing of the program if its values had other sizes, on a device with `usable` bytes of
/// HBM, if it is known. No packing where [`packing_from`] has none, for a peak of more than `most` bytes, and for a
/// heap that XLA packs with care, which takes long and leaves few gaps.
pub(super) fn packed_account(
    module: &Module,
    frame: &Frame,
    sizes: Sizes<'_>,
    (tables, usable): (Option<Tables>, Option<i64>),
    most: i64,
) -> Result<(XlaAccount, Option<Packing>), MemoryError> {
    assigned(module, frame, sizes, |reader, assignment, placed| {
        let account = counted(reader, frame, assignment, placed, tables)?;
        if account.hbm_peak() > most || !is_packed(module) {
            return Ok((account, None));
        }
        Ok((account, packed_fast(assignment, placed, &account, usable)))
    })
}

/// The bytes that XLA allocates in HBM for the program as it is, whose account is known; None where
/// `packed_account` has no packing.
pub fn allocated_from(
    module: &Module,
    frame: &Frame,
    account: &XlaAccount,
    usable: Option<i64>,
) -> Option<i64> {
    let frame = frame.marked();
    let sizes = Sizes::new(module, frame, |_, bytes| bytes);
    let packing = assigned(module, frame, sizes, |_, assignment, placed| {
        let packed = || packed_fast(assignment, placed, account, usable);
        Ok(is_packed(module).then(packed).flatten())
    });
    packing.ok()??.allocated(account)
}

/// The packing of an assignment, unless XLA packs its heap with care.
fn packed_fast(
    assignment: &Assignment<'_>,
    placed: &Assigned,
    account: &XlaAccount,
    usable: Option<i64>,
) -> Option<Packing> {
    let room = Room::new(assignment, placed, account, usable);
    let is_fast = account.hbm.bytes <= room.most;
    is_fast.then(|| packing(assignment, placed, account, room)).flatten()
}

/// The account of an assignment.
fn counted(
    reader: &Reader<'_>,
    frame: &Frame,
    assignment: &Assignment<'_>,
    placed: &Assigned,
    tables: Option<Tables>,
) -> Result<XlaAccount, MemoryError> {
    let tables = tables.unwrap_or_else(|| frame.tables(reader.module));
    let mut account = XlaAccount::default();
    signature(reader, &frame.donations, assignment.sizes, tables, &mut account)?;
    account.constants = constants(reader, assignment.sizes)?;
    for (space, heap) in assignment.heaps(placed)? {
        match space {
            HBM => account.hbm = heap,
            FAST_SPACE | COMMON if heap.bytes > account.fast.bytes => account.fast = heap,
            HOST_SPACE => account.on_host = heap,
            _ => {}
        }
        if heap.bytes > account.heap {
            account.heap = heap.bytes;
            (account.heap_space, account.heap_step) = (space, heap.step);
        }
    }
    let parts = [account.device.total(), account.host.total(), account.constants, account.heap];
    let sum = parts.iter().try_fold(0i64, |sum, part| sum.checked_add(*part));
    account.peak = sum.ok_or(MemoryError::TooLarge)?;
    Ok(account)
}

/// The bytes that XLA allocates for the HBM heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// Bytes of the heap when its values are placed.
    pub heap: i64,
    /// Bytes that placing values adds to the peak of live bytes: gaps that no value fits.
    pub fragmentation: i64,
    /// Bytes of the pointer tables of tuples, which are placed one by one behind the heap.
    pub tables: i64,
}

impl Packing {
    /// The bytes that XLA allocates in HBM: the HBM peak of `account`, fragmentation and tables.
    pub fn allocated(&self, account: &XlaAccount) -> Option<i64> {
        account.hbm_peak().checked_add(self.fragmentation)?.checked_add(self.tables)
    }
}

/// What a program must leave free of the usable HBM so that libtpu packs it fast, bytes: 2.5 GiB and 1/8192 of what
/// is usable. The limit lies between 14,224,742,400 and 14,226,790,400 B on v5e, and between 30,861,678,592 and
/// 30,866,790,400 B on v6e, with 15.75 and 31.25 GiB (one program in several sizes; `limit_room` in
/// `tests/fixtures/peak_catalogue.py` has some of them).
fn spare(usable: i64) -> i64 {
    (5 << 29) + usable / 8192
}

/// The least usable HBM of a JAX device, a core of v4: what leaves room there does so everywhere.
const LEAST_USABLE: i64 = 61 << 28;

/// Places the values of the HBM heap as XLA does for a scheduled TPU module on a device with `usable`
/// bytes of HBM, if it is known. None for other modules, whose heaps are packed in other ways, and
/// for a module that has too many values.
pub fn packing_from(
    module: &Module,
    frame: &Frame,
    usable: Option<i64>,
) -> Result<Option<Packing>, MemoryError> {
    if !is_packed(module) {
        return Ok(None);
    }
    let frame = frame.marked();
    let sizes = Sizes::new(module, frame, |_, bytes| bytes);
    assigned(module, frame, sizes, |reader, assignment, placed| {
        let account = counted(reader, frame, assignment, placed, None)?;
        let room = Room::new(assignment, placed, &account, usable);
        Ok(packing(assignment, placed, &account, room))
    })
}

fn is_packed(module: &Module) -> bool {
    Backend::of_module(module) == Backend::Tpu && module.is_scheduled()
}

/// What else lies in HBM, and how large a heap may be that is packed fast, bytes.
#[derive(Clone, Copy)]
struct Room {
    tables: i64,
    most: i64,
}

impl Room {
    fn new(
        assignment: &Assignment<'_>,
        placed: &Assigned,
        account: &XlaAccount,
        usable: Option<i64>,
    ) -> Self {
        let tables = assignment.table_bytes(placed);
        let others = account.device.total().saturating_add(account.constants);
        let usable = usable.unwrap_or(LEAST_USABLE);
        let most = usable.saturating_sub(spare(usable)).saturating_sub(others);
        Room { tables, most: most.saturating_sub(tables) }
    }
}

/// The packing of an assignment with this account; None if there are too many values.
fn packing(
    assignment: &Assignment<'_>,
    placed: &Assigned,
    account: &XlaAccount,
    Room { tables, most }: Room,
) -> Option<Packing> {
    let heap = assignment.packed(placed, most)?;
    Some(Packing { heap, fragmentation: (heap - account.hbm.bytes).max(0), tables })
}

/// Calls `then` with the assignment of buffers, and what it gives.
fn assigned<T>(
    module: &Module,
    frame: &Frame,
    sizes: Sizes<'_>,
    then: impl FnOnce(&Reader<'_>, &Assignment<'_>, &Assigned) -> Result<T, MemoryError>,
) -> Result<T, MemoryError> {
    let reader = frame.reader(module);
    let values = &frame.layout.values;
    // No change of sizes changes these: they depend on memory spaces alone.
    let buffered = frame.buffered.get_or_init(|| {
        let buffers = Buffers::new(values, &mut frame.sets.clone());
        let mut ranges = frame.ranges.clone();
        ranges.take_turns(&buffers, |ranges, first, second| {
            // In fast memory XLA allocates the replacement of a value before it frees the value;
            // values carried by loops and branches count as one.
            let row = Row(reader.steps.rows[reader.nodes.steps[second] as usize]);
            let opcode = module.opcode(row);
            sizes.spaces[second] != FAST_SPACE
                || ranges.starts[first] == ranges.starts[second]
                || matches!(opcode, Opcode::Parameter | Opcode::While | Opcode::Conditional)
        });
        Buffered::new(&reader, values, buffers, ranges)
    });
    let assignment = Assignment::new(&reader, values, buffered, &sizes);
    let find = || assignment.assigned(&frame.donations);
    let (own, changed);
    let placed = if sizes.is_changed {
        changed = find();
        &changed
    } else {
        own = frame.assigned.get_or_init(find);
        own
    };
    then(&reader, &assignment, placed)
}

/// Bytes and memory space of every node; pointer tables of tuples take none.
pub(super) struct Sizes<'a> {
    by_shape: Vec<i64>,
    /// Whether a shape has other bytes than in the text.
    is_changed: bool,
    pub bytes: Vec<i64>,
    pub spaces: &'a [i64],
    pub shapes: &'a [ShapeId],
}

impl<'a> Sizes<'a> {
    /// `changed` gives the bytes of a shape from those that it has.
    pub fn new(module: &Module, frame: &'a Frame, changed: impl Fn(ShapeId, i64) -> i64) -> Self {
        let mut is_changed = false;
        let size = |(id, cost): (ShapeId, &ShapeCost)| match module.shapes().tuple(id) {
            Some(_) => 0,
            None => {
                let bytes = on_one_core(module, id, cost.size);
                let changed = changed(id, bytes);
                is_changed |= changed != bytes;
                changed
            }
        };
        let by_shape: Vec<i64> =
            module.shapes().ids().zip(module.shape_costs()).map(size).collect();
        let Shaped { shapes, spaces } = frame.layout.shaped(module);
        let of = |shape: &ShapeId| by_shape.get(shape.0 as usize).copied().unwrap_or(0);
        let bytes = shapes.iter().map(of).collect();
        Sizes { by_shape, is_changed, bytes, spaces, shapes }
    }

    /// Values of `nodes` that take no memory.
    pub fn leave_out(&mut self, nodes: impl Iterator<Item = u32>) {
        for node in nodes {
            self.bytes[node as usize] = 0;
            self.is_changed = true;
        }
    }

    fn of(&self, shape: ShapeId) -> i64 {
        self.by_shape.get(shape.0 as usize).copied().unwrap_or(0)
    }
}

/// Bytes of an array on the core that holds most of it. Chips with two cores split arrays in fast
/// memory, at the indices in the layout's `SC(dimension:index,..)`.
fn on_one_core(module: &Module, shape: ShapeId, bytes: i64) -> i64 {
    let splits = module.shapes().array(shape).and_then(|array| {
        let (dimension, indices) = array.layout?.splits.first()?;
        let length = array.dimension(usize::try_from(*dimension).ok()?)?.bound()?;
        Some((length, indices))
    });
    let Some((length, indices)) = splits else { return bytes.max(0) };
    let (mut start, mut most) = (0, 0);
    for end in indices.iter().chain([&length]) {
        most = most.max(end.saturating_sub(start));
        start = *end;
    }
    let part =
        i128::from(bytes.max(0)) * i128::from(most.clamp(0, length)) / i128::from(length.max(1));
    i64::try_from(part).unwrap_or(bytes)
}

fn signature(
    reader: &Reader<'_>,
    donations: &Donations,
    sizes: &Sizes<'_>,
    tables: Tables,
    account: &mut XlaAccount,
) -> Result<(), MemoryError> {
    let module = reader.module;
    let entry = module.computation(module.entry());
    let mut totals = [[0i128; 3]; 2];
    let mut add = |node: u32, column: usize| {
        let is_host = sizes.spaces[node as usize] == HOST_SPACE;
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

/// Bytes that libtpu allocates for a scalar without tiles.
const UNTILED_SCALAR: i64 = 4096;

/// Bytes of the constants of all computations except fused ones; computations applied to elements
/// count too.
fn constants(reader: &Reader<'_>, sizes: &Sizes<'_>) -> Result<i64, MemoryError> {
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

/// Under the rule `xla`, parameters and results stay allocated from beginning to end; the first
/// value in their buffer stands for all values that share it.
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
