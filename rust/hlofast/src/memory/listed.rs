//! The orders of instructions by XLA's memory schedulers.
//!
//! XLA orders a module by three of them and takes the order with the lowest peak (`hlo_memory_scheduler.cc`): a
//! list scheduler, which always runs what frees most, and two that walk from the results to the operands
//! (`walk.rs`). `benches/scheduler_orders.py` compares them with compiled programs, on the texts that XLA schedules.
//! Here they are those of compiled texts, without what XLA adds after scheduling: moves to fast memory, and clones that
//! it rematerialises. Control dependencies are not followed.

mod scheduled;
mod walk;

pub use scheduled::Scheduled;

use super::order::post_order;
use super::peak::memory_space;
use super::ranges::joins_in_place;
use crate::flow::{has_compiler_clones, without_clone_number};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, HOST_SPACE, Module, Opcode, Row, ShapeId};
use hashbrown::HashMap;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Limit on the rows of a computation that only slices an array.
const MOST_SLICED: usize = 64;

/// One of XLA's memory schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// Always runs what frees most.
    List,
    /// Walks from the results to the operands, to those first that much else reads.
    DepthFirst,
    /// Walks from the results to the operands in their order.
    PostOrder,
}

impl Scheduler {
    /// All of them. Of orders with equal peaks, XLA takes the first.
    pub const ALL: [Self; 3] = [Self::List, Self::DepthFirst, Self::PostOrder];
}

/// Bytes that a row frees, less those that it defines; then the number of its users.
type Priority = (i64, usize);

/// The rows of one computation as the scheduler sees them: as they were before arrays moved to fast memory.
/// All numbers of rows are relative to the first.
struct Graph {
    /// By row: the rows that it reads and that read it, each once.
    operands: Vec<Vec<u32>>,
    users: Vec<Vec<u32>>,
    /// By row: the rows that it reads, in the order of its operands.
    ordered: Vec<Vec<u32>>,
    /// By row: the values of the arrays of its result, and those that it reads, each once.
    results: Vec<Vec<u32>>,
    reads: Vec<Vec<u32>>,
    /// By row: bytes that it defines.
    defines: Vec<i64>,
    /// By row: whether its result is one number.
    is_scalar: Vec<bool>,
    /// By row: whether it only moves an array to or from fast memory, or is a clone of another row.
    is_move: Vec<bool>,
    /// By row: the row that makes what it moves, or itself.
    source: Vec<u32>,
    /// By value: bytes; 0 if no row frees them.
    bytes: Vec<i64>,
    /// By shape of a tuple: the number of arrays before each of its elements.
    starts: HashMap<u32, Vec<usize>, BuildMix>,
    /// Limit on the arrays that rows make and read.
    left: usize,
}

/// The rows of `module`, computation by computation: those of the computations `is_listed` in the order of
/// `scheduler`, others in text order. Arrays of one constant are made where they are read if they `are_deferred`, as by
/// a later pass of XLA. `sizes` are the bytes of shapes. None if rows read more arrays than a program does.
pub(super) fn listed(
    module: &Module,
    sizes: &[i64],
    (scheduler, are_deferred): (Scheduler, bool),
    is_listed: impl Fn(ComputationId) -> bool,
) -> Option<Vec<u32>> {
    let has_clones = has_compiler_clones(module);
    let mut order = Vec::with_capacity(module.row_count());
    let mut is_seen = vec![false; module.row_count()];
    for id in (0..module.computations().len() as u32).map(ComputationId) {
        let rows = module.computation(id).rows();
        match is_listed(id) {
            true => {
                let graph = Graph::new(module, rows.clone(), sizes, has_clones)?;
                let root = module.computation(id).root.checked_sub(rows.start);
                let name = |at: u32| module.instruction_name(Row(rows.start + at));
                let listed = graph.order(scheduler, root, name);
                // Rows that the graph leaves out come before the rows that read them.
                let is_root = |at: &u32| Some(*at) == root;
                let rest = (0..rows.len() as u32).filter(|at| !is_root(at)).chain(root);
                let is_deferred =
                    |at: u32| are_deferred && is_constant(module, Row(rows.start + at));
                let listed = listed.into_iter().filter(|at| !is_root(at) && !is_deferred(*at));
                let own = listed.chain(rest);
                let starts = own.map(|at| rows.start + at);
                post_order(module, rows.clone(), starts, &mut is_seen, &mut order);
            }
            false => order.extend(rows),
        }
    }
    Some(order)
}

impl Graph {
    fn new(module: &Module, rows: Range<u32>, sizes: &[i64], has_clones: bool) -> Option<Self> {
        let count = rows.len();
        let mut graph = Graph {
            operands: vec![Vec::new(); count],
            users: vec![Vec::new(); count],
            ordered: vec![Vec::new(); count],
            results: vec![Vec::new(); count],
            reads: vec![Vec::new(); count],
            defines: vec![0; count],
            is_scalar: vec![false; count],
            is_move: vec![false; count],
            source: (0..count as u32).collect(),
            bytes: Vec::new(),
            starts: HashMap::default(),
            left: module.text().len().saturating_mul(16).saturating_add(1 << 20),
        };
        let mut originals: HashMap<&[u8], u32, BuildMix> = HashMap::default();
        // Text order is a schedule.
        for row in rows.clone() {
            let at = (row - rows.start) as usize;
            if has_clones {
                let name = without_clone_number(module.instruction_name(Row(row)));
                let original = originals.get(name).copied();
                let is_whole =
                    |of: &u32| module.shape(Row(rows.start + of)) == module.shape(Row(row));
                if let Some(of) = original.filter(is_whole) {
                    graph.stand_for(at, of);
                    continue;
                }
                // The result of what has started is another one.
                if !starts(module.opcode(Row(row))) {
                    originals.entry(name).or_insert(at as u32);
                }
            }
            let operands = module.operands(Row(row)).iter();
            let own: Vec<u32> = operands.filter_map(|own| own.checked_sub(rows.start)).collect();
            graph.add(module, Row(row), at, own, sizes)?;
        }
        Some(graph)
    }

    /// Lets a row stand for another, whose result it moves or recomputes.
    fn stand_for(&mut self, at: usize, other: u32) {
        self.is_move[at] = true;
        self.source[at] = self.source[other as usize];
        self.operands[at] = vec![other];
    }

    fn add(
        &mut self,
        module: &Module,
        row: Row,
        at: usize,
        own: Vec<u32>,
        sizes: &[i64],
    ) -> Option<()> {
        let mut own: Vec<u32> = own.into_iter().filter(|from| (*from as usize) < at).collect();
        let opcode = module.opcode(row);
        if let Some(from) = own.first().filter(|from| self.moves(module, row, **from)) {
            self.stand_for(at, *from);
            return Some(());
        }
        own.iter_mut().for_each(|from| *from = self.source[*from as usize]);
        let leaves: Vec<ShapeId> = module.shapes().leaves(module.shape(row)).collect();
        let first = match opcode {
            Opcode::GetTupleElement => self.first_array(module, row).unwrap_or(usize::MAX),
            _ => 0,
        };
        let read = match opcode {
            Opcode::GetTupleElement => 0,
            _ => own.iter().map(|from| self.results[*from as usize].len()).sum(),
        };
        self.left = self.left.checked_sub(leaves.len())?.checked_sub(read)?;
        let mut results = self.handed_on(module, row, &own, (first, leaves.len()));
        results.truncate(leaves.len());
        let first_new = self.bytes.len() as u32;
        for (number, leaf) in leaves.iter().enumerate() {
            if results.len() > number {
                continue;
            }
            results.push(self.bytes.len() as u32);
            let bytes = size_of(module, *leaf, sizes);
            let is_freed = !matches!(opcode, Opcode::Parameter | Opcode::Constant);
            self.bytes.push(if is_freed { bytes } else { 0 });
        }
        self.defines[at] = (first_new..self.bytes.len() as u32)
            .fold(0i64, |sum, value| sum.saturating_add(self.bytes[value as usize]));
        let array = module.shapes().array(module.shape(row));
        self.is_scalar[at] = array.and_then(|own| own.elements()) == Some(1);
        let mut reads: Vec<u32> = match opcode {
            Opcode::GetTupleElement => results.clone(),
            _ => own.iter().flat_map(|from| &self.results[*from as usize]).copied().collect(),
        };
        reads.sort_unstable();
        reads.dedup();
        self.results[at] = results;
        self.reads[at] = reads;
        self.ordered[at].clone_from(&own);
        own.sort_unstable();
        own.dedup();
        own.iter().for_each(|from| self.users[*from as usize].push(at as u32));
        self.operands[at] = own;
        Some(())
    }

    /// Whether a row with the first operand `from` only moves an array between HBM and fast memory: XLA adds
    /// such rows to the schedule.
    fn moves(&self, module: &Module, row: Row, from: u32) -> bool {
        let mut leaves = module.shapes().leaves(module.shape(row));
        match module.opcode(row) {
            Opcode::CopyStart => !leaves.any(|leaf| is_on_host(module, leaf)),
            Opcode::AsyncStart => only_slices(module, row),
            Opcode::CopyDone | Opcode::AsyncUpdate | Opcode::AsyncDone => {
                self.is_move[from as usize]
            }
            Opcode::CustomCall => joins_in_place(module, row),
            _ => false,
        }
    }

    /// The number of arrays before the element that a row takes out of a tuple.
    fn first_array(&mut self, module: &Module, row: Row) -> Option<usize> {
        let index = module.tuple_index(row)?;
        let tuple = module.shape(Row(*module.operands(row).first()?));
        let parts = module.shapes().tuple(tuple)?;
        let starts = self.starts.entry(tuple.0).or_insert_with(|| {
            let counts = parts.iter().map(|part| module.shapes().leaves(*part).count());
            let before = |sum: &mut usize, own| Some(std::mem::replace(sum, *sum + own));
            counts.scan(0, before).collect()
        });
        starts.get(index).copied()
    }

    /// The values of a result of `count` arrays that its operands hold; of those of a tuple from `first`.
    fn handed_on(
        &self,
        module: &Module,
        row: Row,
        own: &[u32],
        (first, count): (usize, usize),
    ) -> Vec<u32> {
        let of =
            |number: usize| own.get(number).map(|from| self.results[*from as usize].as_slice());
        match module.opcode(row) {
            Opcode::Bitcast | Opcode::OptBarrier => of(0).unwrap_or_default().to_vec(),
            Opcode::Tuple => {
                own.iter().flat_map(|from| &self.results[*from as usize]).copied().collect()
            }
            Opcode::GetTupleElement => {
                let inside = of(0).and_then(|own| own.get(first..first.checked_add(count)?));
                inside.unwrap_or_default().to_vec()
            }
            // The operand and the result of what has started.
            opcode if starts(opcode) && count > 1 => {
                of(0).and_then(|own| own.first()).copied().into_iter().collect()
            }
            opcode if ends(opcode) && count == 1 => {
                of(0).and_then(|own| own.get(1)).copied().into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Rows that move nothing, in the order in which `scheduler` runs them.
    fn order<'a>(
        &self,
        scheduler: Scheduler,
        root: Option<u32>,
        name: impl Fn(u32) -> &'a [u8],
    ) -> Vec<u32> {
        match scheduler {
            Scheduler::List => self.list(root),
            Scheduler::DepthFirst => self.depth_first(root, name),
            Scheduler::PostOrder => self.post_order(),
        }
    }

    /// The same in the order of the list scheduler.
    fn list(&self, root: Option<u32>) -> Vec<u32> {
        let count = self.operands.len();
        // By value: how often it is still read, once at the end if it is a result; and by which rows.
        let mut unread = vec![0u32; self.bytes.len()];
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); self.bytes.len()];
        for (at, reads) in (0u32..).zip(&self.reads) {
            for value in reads {
                unread[*value as usize] += 1;
                readers[*value as usize].push(at);
            }
        }
        let source = |root: u32| self.source[root as usize] as usize;
        let mut results = root.map_or(Vec::new(), |root| self.results[source(root)].clone());
        results.sort_unstable();
        results.dedup();
        results.iter().for_each(|value| unread[*value as usize] += 1);
        // By row: bytes of the values that only it still reads.
        let mut freed = vec![0i64; count];
        for (value, rows) in readers.iter().enumerate() {
            if let (1, [only]) = (unread[value], &rows[..]) {
                freed[*only as usize] = freed[*only as usize].saturating_add(self.bytes[value]);
            }
        }
        let mut missing: Vec<usize> = self.operands.iter().map(Vec::len).collect();
        let mut is_done = vec![false; count];
        let mut queue = Queue { queued: vec![None; count], heap: BinaryHeap::new(), pushed: 0 };
        for at in (0..count as u32).filter(|at| missing[*at as usize] == 0) {
            queue.push(at, self.priority(at, &freed));
        }
        let mut order = Vec::with_capacity(count);
        while let Some(at) = queue.pop() {
            is_done[at as usize] = true;
            order.push(at);
            let mut changed: Vec<u32> = Vec::new();
            for value in &self.reads[at as usize] {
                let left = &mut unread[*value as usize];
                *left = left.saturating_sub(1);
                let mut rows = readers[*value as usize].iter().filter(|_| *left == 1);
                if let Some(last) = rows.find(|own| !is_done[**own as usize]) {
                    let own = &mut freed[*last as usize];
                    *own = own.saturating_add(self.bytes[*value as usize]);
                    changed.push(*last);
                }
            }
            for user in &self.users[at as usize] {
                missing[*user as usize] -= 1;
                if missing[*user as usize] == 0 {
                    queue.push(*user, self.priority(*user, &freed));
                }
            }
            // XLA looks only at the users of the operands.
            for user in changed {
                let new = self.priority(user, &freed);
                let (own, its) = (&self.operands[at as usize], &self.operands[user as usize]);
                let (few, many) = if own.len() < its.len() { (own, its) } else { (its, own) };
                if queue.queued[user as usize].is_some_and(|(old, _)| old != new)
                    && few.iter().any(|from| many.binary_search(from).is_ok())
                {
                    queue.push(user, new);
                }
            }
        }
        order
    }

    fn priority(&self, at: u32, freed: &[i64]) -> Priority {
        match self.is_scalar[at as usize] {
            true => (i64::MAX, usize::MAX),
            false => {
                let less = freed[at as usize].saturating_sub(self.defines[at as usize]);
                (less, self.users[at as usize].len())
            }
        }
    }
}

/// The rows whose operands are there. Of those with the highest priority the last that came goes first.
struct Queue {
    /// By row: its entry.
    queued: Vec<Option<(Priority, usize)>>,
    heap: BinaryHeap<(Priority, usize, u32)>,
    pushed: usize,
}

impl Queue {
    /// Adds a row, or changes its priority.
    fn push(&mut self, at: u32, priority: Priority) {
        self.queued[at as usize] = Some((priority, self.pushed));
        self.heap.push((priority, self.pushed, at));
        self.pushed += 1;
    }

    fn pop(&mut self) -> Option<u32> {
        loop {
            let (priority, number, at) = self.heap.pop()?;
            let own = &mut self.queued[at as usize];
            if *own == Some((priority, number)) {
                *own = None;
                return Some(at);
            }
        }
    }
}

/// Whether a row makes an array of one constant.
pub fn is_constant(module: &Module, row: Row) -> bool {
    let from = module.operands(row).first().map(|own| module.opcode(Row(*own)));
    module.opcode(row) == Opcode::Broadcast && from == Some(Opcode::Constant)
}

/// Bytes of an array; none in host memory.
pub fn size_of(module: &Module, leaf: ShapeId, sizes: &[i64]) -> i64 {
    match is_on_host(module, leaf) {
        true => 0,
        false => sizes.get(leaf.0 as usize).copied().unwrap_or(0).max(0),
    }
}

fn is_on_host(module: &Module, leaf: ShapeId) -> bool {
    memory_space(module, leaf) == HOST_SPACE
}

fn starts(opcode: Opcode) -> bool {
    use Opcode::{AllGatherStart, AllReduceStart, AsyncStart, CollectivePermuteStart, CopyStart};
    matches!(
        opcode,
        AllGatherStart | AllReduceStart | AsyncStart | CollectivePermuteStart | CopyStart
    )
}

fn ends(opcode: Opcode) -> bool {
    use Opcode::{AllGatherDone, AllReduceDone, AsyncDone, CollectivePermuteDone, CopyDone};
    matches!(opcode, AllGatherDone | AllReduceDone | AsyncDone | CollectivePermuteDone | CopyDone)
}

/// Whether what a row starts only takes a part of an array: XLA fetches parts into fast memory so.
pub fn only_slices(module: &Module, start: Row) -> bool {
    use Opcode::{Bitcast, Constant, DynamicSlice, Parameter, Slice};
    let [call] = module.calls(start) else { return false };
    let mut rows = module.computation(call.computation).rows();
    let moves = |row| {
        matches!(module.opcode(Row(row)), Bitcast | Constant | DynamicSlice | Parameter | Slice)
    };
    rows.len() <= MOST_SLICED && rows.all(moves)
}
