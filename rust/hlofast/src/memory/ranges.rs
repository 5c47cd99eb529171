//! Live ranges of values.

use super::alias::{Donations, Sets};
use super::schedule::nth_call;
use super::values::Reader;
use crate::ir::{Module, Opcode, Row};

/// The live range of every value; entries of nodes that define no value are meaningless.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    /// By node: the first step.
    pub starts: Vec<u32>,
    /// By node: the last step, inclusive.
    pub ends: Vec<u32>,
}

/// When the result of each step is read last.
struct Uses {
    /// By step: the last use of all parts.
    whole: Vec<u32>,
    /// By step: the last use of the outermost part only.
    top: Vec<u32>,
}

impl Uses {
    fn new(reader: &Reader<'_>) -> Self {
        let count = reader.steps.rows.len();
        let mut uses = Uses { whole: vec![0; count], top: vec![0; count] };
        for (step, row) in (0u32..).zip(&reader.steps.rows) {
            let opcode = reader.module.opcode(Row(*row));
            let (column, at) = match opcode {
                // These opcodes pass operands on and do not read them.
                Opcode::Tuple | Opcode::Domain => continue,
                // The callee has steps of its own and reads the operands there.
                Opcode::Call if is_first_caller(reader, *row) => continue,
                Opcode::GetTupleElement | Opcode::Copy => (&mut uses.top, step),
                // The loop's own values take over as soon as its body begins.
                Opcode::While => (&mut uses.whole, loop_start(reader, *row).unwrap_or(step)),
                _ => (&mut uses.whole, step),
            };
            for operand in reader.module.operands(Row(*row)) {
                if let Some(of) = reader.steps.of(*operand) {
                    let last = &mut column[of as usize];
                    *last = (*last).max(at);
                }
            }
        }
        uses
    }
}

fn is_first_caller(reader: &Reader<'_>, row: u32) -> bool {
    let callee = nth_call(reader.module, Row(row), Opcode::Call, 0);
    callee.is_some_and(|id| reader.steps.callers[id.0 as usize].0 == row)
}

/// The step of the parameter of a loop's body.
fn loop_start(reader: &Reader<'_>, row: u32) -> Option<u32> {
    let body = nth_call(reader.module, Row(row), Opcode::While, 1)?;
    if reader.steps.callers[body.0 as usize].0 != row {
        return None;
    }
    let mut rows = reader.module.computation(body).rows();
    let parameter = rows.find(|row| reader.module.opcode(Row(*row)) == Opcode::Parameter)?;
    reader.steps.of(parameter)
}

impl Ranges {
    /// The ranges before sharing of buffers is taken into account.
    pub fn new(reader: &Reader<'_>, values: &[u32], donations: &Donations) -> Self {
        let steps = reader.steps;
        let uses = Uses::new(reader);
        let of_nodes = reader.nodes.steps.iter();
        let starts = of_nodes.clone().map(|step| steps.starts[*step as usize]).collect();
        let mut ends: Vec<u32> = of_nodes.map(|step| steps.ends[*step as usize]).collect();
        let last = steps.ends.iter().zip(&uses.whole).zip(&uses.top);
        for (((end, whole), top), nodes) in last.zip(reader.nodes.firsts.array_windows()) {
            let position = *end.max(whole);
            let mut at = position.max(*top);
            let [first, after] = *nodes;
            for value in &values[first as usize..after as usize] {
                let end = &mut ends[*value as usize];
                *end = (*end).max(at);
                at = position;
            }
        }
        let mut ranges = Ranges { starts, ends };
        ranges.keep_parameters(reader, values, donations);
        ranges
    }

    /// Entry parameters stay live to the end, unless results alias them.
    fn keep_parameters(&mut self, reader: &Reader<'_>, values: &[u32], donations: &Donations) {
        let mut donated: Vec<u32> = donations.pairs.iter().map(|pair| pair.1).collect();
        donated.sort_unstable();
        let module = reader.module;
        let last = reader.steps.len();
        for row in module.computation(module.entry()).rows() {
            if module.opcode(Row(row)) != Opcode::Parameter {
                continue;
            }
            let Some(step) = reader.steps.of(row) else { continue };
            for node in reader.nodes.of(step) {
                if values[node as usize] == node && donated.binary_search(&node).is_err() {
                    self.ends[node as usize] = last;
                }
            }
        }
    }

    /// A concatenation that moves no data takes over the memory of its operands: an operand that is
    /// used last by the concatenation ends one step earlier.
    pub fn hand_over_joined(&mut self, reader: &Reader<'_>, values: &[u32]) {
        for (step, row) in (0u32..).zip(&reader.steps.rows) {
            let module = reader.module;
            if module.opcode(Row(*row)) != Opcode::CustomCall || !joins_in_place(module, Row(*row))
            {
                continue;
            }
            for operand in module.operands(Row(*row)) {
                let Some(from) = reader.steps.of(*operand) else { continue };
                for node in reader.nodes.of(from) {
                    let value = values[node as usize] as usize;
                    if self.ends[value] == step && self.starts[value] < step {
                        self.ends[value] = step - 1;
                    }
                }
            }
        }
    }

    /// Keeps constants live for the whole program.
    pub fn keep_constants(&mut self, reader: &Reader<'_>) {
        for (step, row) in (0u32..).zip(&reader.steps.rows) {
            if reader.module.opcode(Row(*row)) == Opcode::Constant {
                for node in reader.nodes.of(step) {
                    self.starts[node as usize] = 0;
                    self.ends[node as usize] = reader.steps.len();
                }
            }
        }
    }

    /// Among values that share a buffer, each ends where the next begins, and no value ends before
    /// an earlier value. `is_once` tells whether two such values do not overlap even in the step in
    /// which the second takes over.
    pub fn take_turns(&mut self, buffers: &Buffers, is_once: impl Fn(&Self, usize, usize) -> bool) {
        let mut members: Vec<u32> = Vec::new();
        for buffer in 0..buffers.len() {
            let values = buffers.values(buffer);
            if values.len() < 2 {
                continue;
            }
            members.clear();
            members.extend_from_slice(values);
            members.sort_by_key(|value| {
                let value = *value as usize;
                (self.starts[value], self.ends[value], value)
            });
            for pair in members.windows(2) {
                let (first, second) = (pair[0] as usize, pair[1] as usize);
                let start = self.starts[second];
                self.ends[second] = self.ends[second].max(self.ends[first]);
                self.ends[first] = self.ends[first].min(start);
                if self.ends[first] >= start && is_once(self, first, second) {
                    // The range is empty if both values begin together.
                    self.ends[first] = start.saturating_sub(1);
                    if start == self.starts[first] {
                        self.starts[first] = start.saturating_add(1);
                        self.ends[first] = start;
                    }
                }
            }
        }
    }
}

/// The values of every buffer.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers {
    offsets: Vec<u32>,
    values: Vec<u32>,
    /// By node: the buffer of the value that the node defines; `u32::MAX` if it defines no value.
    pub of: Vec<u32>,
}

impl Buffers {
    pub fn new(values: &[u32], sets: &mut Sets) -> Self {
        let mut of = vec![u32::MAX; values.len()];
        let mut counts: Vec<u32> = Vec::with_capacity(values.len() / 2);
        for (node, value) in (0u32..).zip(values) {
            if *value != node {
                continue;
            }
            let first = sets.find(node);
            // The first member represents its set, so it already has a number.
            if first == node {
                of[node as usize] = counts.len() as u32;
                counts.push(1);
            } else {
                let buffer = of[first as usize];
                of[node as usize] = buffer;
                counts[buffer as usize] += 1;
            }
        }
        let mut offsets = Vec::with_capacity(counts.len() + 1);
        let mut sum = 0;
        offsets.push(0);
        for count in &counts {
            sum += count;
            offsets.push(sum);
        }
        let mut next = offsets.clone();
        let mut members = vec![0; sum as usize];
        for (node, buffer) in of.iter().enumerate().filter(|entry| *entry.1 != u32::MAX) {
            members[next[*buffer as usize] as usize] = node as u32;
            next[*buffer as usize] += 1;
        }
        Self { offsets, values: members, of }
    }

    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    pub fn values(&self, buffer: usize) -> &[u32] {
        &self.values[self.offsets[buffer] as usize..self.offsets[buffer + 1] as usize]
    }
}

/// Whether a row is a concatenation that moves no data, which TPU compilers write as a custom call.
pub fn joins_in_place(module: &Module, row: Row) -> bool {
    const TARGET: &[u8] = b", custom_call_target=\"ConcatBitcast\"";
    module.opcode(row) == Opcode::CustomCall && module.bytes(module.tail(row)).starts_with(TARGET)
}
