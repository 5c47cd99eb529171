//! Which arrays stay in fast memory when they grow.
//!
//! The compiler fills fast memory, and chooses the arrays anew for every program. Here those that do
//! not grow stay, and of the others as many as there is room for at every step, small and short-lived
//! ones first.

use crate::ir::{FAST_SPACE, Module, Opcode, Row};
use crate::memory::{LiveValue, Memory, Options, Rule, Space, memory};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Fast memory that a program may use even if it did not: the smallest of any TPU (v4's, see
/// `devices.toml`).
const LEAST: i64 = 1 << 25;
/// The share of what the program used at most up to which arrays that grow fill it: they need gaps
/// of their size, so not all of it. The share itself is assumed; `tests/fixtures/what_if/fast.jsonl`
/// has what XLA allocates in HBM with other batches.
const FILLED: f64 = 0.95;

/// Arrays, by row and number, that leave fast memory for HBM.
#[derive(Debug, Default)]
pub(super) struct Leaving(HashSet<(Row, usize)>);

impl Leaving {
    /// What leaves the fast memory of `new`, the changed `old` with all arrays where they were.
    pub fn new(old: &Module, new: &Module) -> Self {
        let options =
            Options { rule: Rule::Xla, space: Space::One(FAST_SPACE), ..Options::default() };
        let (Ok(before), Ok(after)) = (memory(old, &options), memory(new, &options)) else {
            return Self::default();
        };
        let highest = before.highest().bytes;
        if after.highest().bytes <= highest.max(LEAST) {
            return Self::default();
        }
        let (before, values) = (before.all_values(old), after.all_values(new));
        if before.len() != values.len() {
            return Self::default();
        }
        let mut buffers: HashMap<u32, Buffer> = HashMap::new();
        for (before, value) in before.iter().zip(values) {
            if value.memory_space == FAST_SPACE && value.bytes > 0 {
                let own = buffers.entry(value.buffer).or_default();
                own.grows |= value.bytes > before.bytes;
                own.values.push(value);
            }
        }
        let mut order: Vec<(u32, Buffer)> = buffers.into_iter().collect();
        order.sort_by_cached_key(|(number, own)| {
            (own.grows, own.bytes(), own.byte_steps(), *number)
        });
        let limit = (highest.max(LEAST) as f64 * FILLED) as i64;
        let mut room = Room::new(after.sequence().len() + 2);
        let mut leaving = HashSet::new();
        for (number, own) in order {
            own.values.iter().for_each(|value| room.add(value, value.bytes));
            if own.grows && own.values.iter().any(|value| room.most(value) > limit) {
                own.values.iter().for_each(|value| room.add(value, -value.bytes));
                leaving.insert(number);
            }
        }
        Self::of_buffers(new, &after, &leaving)
    }

    /// All arrays in these buffers, and those inside fusions that are the same.
    fn of_buffers(module: &Module, memory: &Memory, buffers: &HashSet<u32>) -> Self {
        let mut found = Self::default();
        if buffers.is_empty() {
            return found;
        }
        for row in module.rows() {
            for (leaf, part) in parts(module, row).into_iter().enumerate() {
                if memory.buffer_of(row, part).is_some_and(|own| buffers.contains(&own)) {
                    found.0.insert((row, leaf));
                }
            }
        }
        // Callers are written after what they call.
        for row in module.rows().rev() {
            let opcode = module.opcode(row);
            if !matches!(opcode, Opcode::Fusion | Opcode::AsyncStart) {
                continue;
            }
            let Some(call) = module.calls(row).first() else { continue };
            let operands: Vec<Row> = module.operands(row).iter().map(|own| Row(*own)).collect();
            let mut taken = 0;
            for (operand, parameter) in operands.iter().zip(module.parameters(call.computation)) {
                let count = leaves(module, *operand);
                for leaf in (0..count).filter(|leaf| found.has(*operand, *leaf)).collect::<Vec<_>>()
                {
                    found.0.insert((parameter, leaf));
                }
                taken += count;
            }
            let first = if opcode == Opcode::AsyncStart { taken } else { 0 };
            let root = Row(module.computation(call.computation).root);
            for leaf in 0..leaves(module, root) {
                if found.has(row, first + leaf) {
                    found.0.insert((root, leaf));
                }
            }
        }
        found
    }

    /// Whether array `leaf` of `row` leaves.
    pub fn has(&self, row: Row, leaf: usize) -> bool {
        self.0.contains(&(row, leaf))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Values that share memory.
#[derive(Debug, Default)]
struct Buffer {
    grows: bool,
    values: Vec<LiveValue>,
}

impl Buffer {
    fn bytes(&self) -> i64 {
        self.values.iter().map(|value| value.bytes).max().unwrap_or(0)
    }

    fn byte_steps(&self) -> i64 {
        let steps =
            |value: &LiveValue| i64::from(value.last_step) - i64::from(value.first_step) + 1;
        self.values.iter().fold(0, |sum: i64, own| {
            sum.saturating_add(own.bytes.saturating_mul(steps(own).max(0)))
        })
    }
}

fn leaves(module: &Module, row: Row) -> usize {
    module.shapes().leaf_count(module.shape(row)) as usize
}

/// By array of `row`: the number of the part of its result, tuples counted before their elements.
fn parts(module: &Module, row: Row) -> Vec<u32> {
    let (mut open, mut parts, mut number) = (vec![module.shape(row)], Vec::new(), 0);
    while let Some(shape) = open.pop() {
        match module.shapes().tuple(shape) {
            Some(elements) => open.extend(elements.iter().rev()),
            None => parts.push(number),
        }
        number += 1;
    }
    parts
}

/// Bytes in use by step: a tree of the largest sums.
struct Room {
    /// Of a power of two of steps.
    steps: usize,
    /// By node: what it adds to all steps below it, and the most below it with that.
    nodes: Vec<[i64; 2]>,
}

impl Room {
    fn new(steps: usize) -> Self {
        let steps = steps.next_power_of_two();
        Self { steps, nodes: vec![[0; 2]; 2 * steps] }
    }

    /// The most in use while a value is live.
    fn most(&self, value: &LiveValue) -> i64 {
        let wanted = value.first_step as usize..(value.last_step as usize + 1).min(self.steps);
        self.most_below(1, 0..self.steps, &wanted)
    }

    fn most_below(&self, node: usize, own: Range<usize>, wanted: &Range<usize>) -> i64 {
        let Some([added, most]) = self.nodes.get(node) else { return 0 };
        if wanted.end <= own.start || own.end <= wanted.start {
            return 0;
        }
        if wanted.start <= own.start && own.end <= wanted.end {
            return *most;
        }
        let middle = own.start.midpoint(own.end);
        let first = self.most_below(2 * node, own.start..middle, wanted);
        added + first.max(self.most_below(2 * node + 1, middle..own.end, wanted))
    }

    fn add(&mut self, value: &LiveValue, bytes: i64) {
        let (first, last) = (value.first_step as usize, value.last_step as usize);
        self.add_below(1, 0..self.steps, &(first..(last + 1).min(self.steps)), bytes);
    }

    fn add_below(&mut self, node: usize, own: Range<usize>, wanted: &Range<usize>, bytes: i64) {
        if wanted.end <= own.start || own.end <= wanted.start {
            return;
        }
        let is_inside = wanted.start <= own.start && own.end <= wanted.end;
        if !is_inside {
            let middle = own.start.midpoint(own.end);
            self.add_below(2 * node, own.start..middle, wanted, bytes);
            self.add_below(2 * node + 1, middle..own.end, wanted, bytes);
        }
        let most = |node: usize| self.nodes.get(node).map_or(0, |[_, most]| *most);
        let below = if is_inside { 0 } else { most(2 * node).max(most(2 * node + 1)) };
        if let Some([added, most]) = self.nodes.get_mut(node) {
            if is_inside {
                *added += bytes;
                *most += bytes;
            } else {
                *most = *added + below;
            }
        }
    }
}
