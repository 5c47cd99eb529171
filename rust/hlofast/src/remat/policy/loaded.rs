//! The rows of a backward body that read stacks.
//!
//! A policy that keeps a value no longer also saves taking it out of its stack: rows that only slice it
//! out, copy it into another layout or widen it go, and rows that also compute no longer wait for a slice
//! whose layout is not that of their other operands.

use super::graph::Graph;
use super::late::Late;
use super::scans::{Finder, MOST_REARRANGED, MOST_STEPS, is_rearrangement, node_of};
use super::stacks::Read;
use super::stored::only_moves;
use crate::flow::is_compiler_clone;
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Dimension, Module, Opcode, Row, ShapeId};
use crate::memory::LiveValue;
use hashbrown::{HashMap, HashSet};

/// Limit on the rows that read one stack, through rows that move its slices. Beyond it none is known.
const MOST_READERS: usize = 256;

impl Finder<'_> {
    /// How the node `user` of a backward body reads a stack; `end` is the last step of the body.
    pub fn read(&self, back: &Graph, user: u32, late: &Late, end: u32) -> Read {
        let node = &back.nodes[user as usize];
        let step = self.memory.step_of(node.outer).unwrap_or(end);
        let mut read = Read {
            step,
            last: step,
            late: 0,
            feeds_product: false,
            for_loop: false,
            copies: None,
            exchanged: None,
        };
        let mut stack = vec![(user, 0)];
        let mut opened = 0;
        while let Some((at, depth)) = stack.pop() {
            opened += 1;
            let node = &back.nodes[at as usize];
            let step = self.memory.step_of(node.outer).unwrap_or(end);
            read.last = read.last.max(step);
            read.late = read.late.max(late.read_at(node.outer, step));
            read.feeds_product |= node.opcode.is_matmul();
            if node.opcode == Opcode::AllToAll {
                let is_known = read.exchanged.as_ref().is_some_and(|(known, _)| *known == at);
                let users = back.users(at).iter().map(|user| back.nodes[*user as usize].outer);
                let steps =
                    users.filter(|_| !is_known).filter_map(|user| self.memory.step_of(user));
                if let Some(last) = steps.max() {
                    read.exchanged = Some((at, read.step..=last.max(step)));
                }
            }
            if is_rearrangement(node.opcode) && depth < MOST_REARRANGED && opened < MOST_STEPS {
                stack.extend(back.users(at).iter().map(|user| (*user, depth + 1)));
            }
        }
        // A fusion may take several slices out for a loop in the layer.
        let is_for_loop = || {
            back.users(user).iter().any(|own| back.within.contains_key(own)) && {
                let mut made = Vec::new();
                back.result(node.outer).leaves(&mut made, &mut 0);
                made.contains(&user)
            }
        };
        read.for_loop = node.opcode == Opcode::DynamicSlice && is_for_loop();
        let is_copy = node.opcode == Opcode::DynamicSlice
            && (back.result(node.outer).node() == Some(user) || read.for_loop);
        if is_copy {
            let same = self.numbered(self.by_row.get(&node.outer));
            let same = same.filter(|value| node_of(back, value) == Some(user));
            let moved = self.copied(node.outer);
            let copies =
                same.chain(moved).map(|value| (value.bytes, value.first_step..=value.last_step));
            read.copies = Some(copies.collect());
        }
        read
    }

    /// The values of the rows that copy the result of `row` into another layout.
    fn copied(&self, row: Row) -> impl Iterator<Item = &LiveValue> {
        let mut copies = Vec::new();
        let mut open = vec![row];
        for _ in 0..MOST_REARRANGED {
            let Some(at) = open.pop() else { break };
            for user in self.module.users().get(at.0).iter().map(|user| Row(*user)) {
                match self.module.opcode(user) {
                    Opcode::Copy => copies.push(user),
                    Opcode::Bitcast => {}
                    _ => continue,
                }
                open.push(user);
            }
        }
        copies.into_iter().flat_map(|row| self.numbered(self.by_row.get(&row)))
    }

    /// By node of `graph`, which is that of computation `id`: the buffers of its values.
    pub fn buffers_of(&self, graph: &Graph, id: ComputationId) -> HashMap<u32, Vec<u32>, BuildMix> {
        let rows = self.module.computation(id).rows();
        let values = self.values.iter().filter(|own| own.bytes > 0 && rows.contains(&own.row.0));
        let mut found: HashMap<u32, Vec<u32>, BuildMix> = HashMap::default();
        for value in values {
            if let Some(node) = node_of(graph, value) {
                found.entry(node).or_default().push(value.buffer);
            }
        }
        for own in found.values_mut() {
            own.sort_unstable();
            own.dedup();
        }
        found
    }
}

/// The rows of a backward body that read the elements `read_as` of its state, with whether they only
/// take slices out and copy them, ascending. What reshapes a slice belongs to the gradients that read
/// it. Rows that XLA has cloned for lack of memory are left out: what they take is not a cost of the
/// stack.
pub fn readers(module: &Module, back: ComputationId, read_as: &[u32]) -> Vec<(Row, bool)> {
    let element = |row: Row| {
        let index = module.tuple_index(row).and_then(|index| u32::try_from(index).ok());
        index.filter(|index| read_as.contains(index))
    };
    let parameter = module.parameter_rows(back).first().copied();
    let users = |row: u32| module.users().get(row).iter().copied().map(Row);
    // Rows, and the sizes of one slice of their stack.
    let mut open: Vec<(Row, Vec<i64>)> = Vec::new();
    for row in parameter.into_iter().flat_map(users).filter(|row| element(*row).is_some()) {
        if let Some(sizes) = sizes(module, module.shape(row)) {
            open.push((row, sizes.get(1..).unwrap_or_default().to_vec()));
        }
    }
    let mut found: Vec<(Row, bool)> = Vec::new();
    let mut seen: HashSet<Row, BuildMix> = HashSet::default();
    while let Some((at, slice)) = open.pop() {
        for user in users(at.0) {
            if !seen.insert(user) {
                continue;
            }
            if seen.len() > MOST_READERS {
                return Vec::new();
            }
            match module.opcode(user) {
                Opcode::GetTupleElement | Opcode::Bitcast => open.push((user, slice.clone())),
                Opcode::Tuple | Opcode::While | Opcode::Conditional | Opcode::Call => {}
                _ => {
                    let is_move = only_moves(module, user) && shows(module, user, &slice);
                    if !is_compiler_clone(module, user) {
                        found.push((user, is_move));
                    }
                    if is_move {
                        open.push((user, slice.clone()));
                    }
                }
            }
        }
    }
    found.sort_unstable();
    found
}

/// The sizes of an array; None if one is not fixed.
fn sizes(module: &Module, shape: ShapeId) -> Option<Vec<i64>> {
    let array = module.shapes().array(shape)?;
    let size = |own| match own {
        Dimension::Static(size) => Some(size),
        _ => None,
    };
    array.dimensions().map(size).collect()
}

/// Whether an array of the row's result has the sizes of a slice, in any order.
fn shows(module: &Module, row: Row, slice: &[i64]) -> bool {
    let sorted = |sizes: &[i64]| {
        let mut sizes: Vec<i64> = sizes.iter().copied().filter(|size| *size != 1).collect();
        sizes.sort_unstable();
        sizes
    };
    let slice = sorted(slice);
    let mut leaves = module.shapes().leaves(module.shape(row));
    leaves.any(|leaf| sizes(module, leaf).is_some_and(|own| sorted(&own) == slice))
}
