//! Which results may reuse the memory of an operand whose live range ends when the result is
//! computed.
//!
//! As in XLA's heap simulator: result and operand have the same shape, layout and memory space,
//! neither already shares a buffer, and the instruction reads each element of the operand before it
//! writes the same element of the result. In addition to XLA's generic rule, all-reduces run in
//! place, as on XLA's backends.

use super::alias::Sets;
use super::ranges::Ranges;
use super::schedule::NONE;
use super::values::Reader;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row, ShapeId};
use memchr::memmem::Finder;
use smallvec::SmallVec;
use std::sync::LazyLock;

/// Joins results with the operand whose memory they may reuse.
pub(super) fn join_shared(reader: &Reader<'_>, values: &[u32], ranges: &Ranges, sets: &mut Sets) {
    let mut is_alone = alone(values, sets);
    let mut fused = FusedUses::default();
    let module = reader.module;
    let mut parts: Vec<ShapeId> = Vec::new();
    // Operands whose last use is this instruction: index and node.
    let mut candidates: Vec<(usize, u32)> = Vec::new();
    for (step, row) in (0u32..).zip(&reader.steps.rows) {
        let opcode = module.opcode(Row(*row));
        if !may_share(opcode) {
            continue;
        }
        let shape = module.shape(Row(*row));
        let nodes = reader.nodes.of(step);
        let operands = module.operands(Row(*row));
        // Whether the last use of an operand is this instruction, and its node.
        let ending = |operand: u32, is_alone: &[bool]| {
            let from = reader.steps.of(operand).filter(|from| *from < step)?;
            let node = reader.nodes.of(from).start;
            let is_ending = values[node as usize] == node
                && is_alone[node as usize]
                && ranges.ends[node as usize] == step
                && module.opcode(Row(operand)) != Opcode::Constant;
            is_ending.then_some(node)
        };
        // Fast path: most results have one part.
        if nodes.len() == 1 {
            let node = nodes.start;
            if values[node as usize] == node
                && is_alone[node as usize]
                && module.shapes().tuple(shape).is_none()
            {
                let taken = operands.iter().enumerate().find_map(|(index, operand)| {
                    if module.shape(Row(*operand)) != shape {
                        return None;
                    }
                    let candidate = ending(*operand, &is_alone)?;
                    overwrites(module, *row, opcode, index, 0, operands, &mut fused)
                        .then_some(candidate)
                });
                if let Some(candidate) = taken {
                    sets.join(candidate, node);
                    is_alone[candidate as usize] = false;
                }
            }
            continue;
        }
        parts.clear();
        super::nodes::node_shapes(module, shape, &mut parts);
        candidates.clear();
        for (index, operand) in operands.iter().enumerate() {
            candidates.extend(ending(*operand, &is_alone).map(|node| (index, node)));
        }
        // For results with many parts and operands, limits the work in proportion to the sum of
        // both.
        let mut tries = MOST_TRIES.max(16 * (parts.len() + operands.len()));
        // Index of the first candidate that is still free.
        let mut first = 0;
        for (node, part) in nodes.zip(&parts) {
            if first == candidates.len() || tries == 0 {
                break;
            }
            if values[node as usize] != node
                || !is_alone[node as usize]
                || module.shapes().tuple(*part).is_some()
            {
                continue;
            }
            let element = element_of(reader, shape, step, node);
            while candidates.get(first).is_some_and(|candidate| candidate.1 == NONE) {
                first += 1;
            }
            let taken = candidates.iter_mut().skip(first).find(|(index, candidate)| {
                tries = tries.saturating_sub(1);
                tries > 0
                    && *candidate != NONE
                    && module.shape(Row(operands[*index])) == *part
                    && overwrites(module, *row, opcode, *index, element, operands, &mut fused)
            });
            if let Some((_, candidate)) = taken {
                let candidate = std::mem::replace(candidate, NONE);
                sets.join(candidate, node);
                // No other result may take the operand; a later instruction may take this result.
                is_alone[candidate as usize] = false;
            }
        }
    }
}

const MOST_TRIES: usize = 1 << 12;

/// Operands that are faster to look through than to sort.
pub(super) const FEW: usize = 16;

/// By node: whether it defines a value that has a buffer to itself.
fn alone(values: &[u32], sets: &mut Sets) -> Vec<bool> {
    let mut is_alone = vec![true; values.len()];
    for node in 0..values.len() as u32 {
        let first = sets.find(node);
        if first != node {
            is_alone[first as usize] = false;
            is_alone[node as usize] = false;
        }
    }
    is_alone
}

/// The element of the result's tuple that contains `node`; 0 if the result is an array.
#[inline]
pub(super) fn element_of(reader: &Reader<'_>, shape: ShapeId, step: u32, node: u32) -> u32 {
    reader.shapes.element_of(reader.module, shape, node - reader.nodes.of(step).start)
}

/// Opcodes that `overwrites` may allow.
#[inline]
pub(super) fn may_share(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::AllReduce | Opcode::Fusion | Opcode::Sort | Opcode::TriangularSolve)
        || opcode.is_elementwise()
}

/// Whether element `element` of `row` may be written over operand `index`.
pub(super) fn overwrites(
    module: &Module,
    row: u32,
    opcode: Opcode,
    index: usize,
    element: u32,
    operands: &[u32],
    fused: &mut FusedUses,
) -> bool {
    let operand = operands[index];
    let is_once = |fused: &mut FusedUses| !fused.repeats.has(row, operands, operand);
    match opcode {
        Opcode::Fusion => match fusion_kind(module, Row(row)) {
            b"kLoop" | b"kInput" => fused.is_elementwise(module, row, index),
            b"kOutput" => adds_to_product(module, row, index),
            _ => false,
        },
        Opcode::AllReduce => index == element as usize && is_once(fused),
        Opcode::TriangularSolve => index == 1 && is_once(fused),
        Opcode::Sort => {
            let is_only_use = module.users().get(operand).len() == 1;
            let is_its = operands.len() == 1 || index == element as usize;
            is_only_use && is_its && is_once(fused)
        }
        _ => true,
    }
}

/// Where libtpu's lists of operands that results take the memory of begin.
static LISTS: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(b"\"aliasing_operands\":{\"lists\":["));

/// Whether libtpu's own list puts operand `operand` and element `element` of the result into one
/// buffer; the list numbers results after operands.
///
/// `lists` is what [`lists_of`] gives for the row, which has `operands` operands.
pub(super) fn is_listed(lists: &[u8], operands: usize, operand: usize, element: u32) -> bool {
    let output = operands as u64 + u64::from(element);
    let mut group: SmallVec<[u64; 8]> = SmallVec::new();
    let mut number: Option<u64> = None;
    for byte in lists {
        match byte {
            b'0'..=b'9' => {
                let digit = u64::from(byte - b'0');
                number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
            }
            b'}' => {
                if group.contains(&(operand as u64)) && group.contains(&output) {
                    return true;
                }
                group.clear();
            }
            // The end of a group's indices, then of all groups.
            b']' if group.is_empty() && number.is_none() => break,
            _ => {}
        }
        if !byte.is_ascii_digit() {
            group.extend(number.take());
        }
    }
    false
}

/// The text after the start of libtpu's list of operands that results of `row` take the memory of. None without
/// a list, as in programs of other compilers and before buffer assignment.
pub(super) fn lists_of(module: &Module, row: Row) -> Option<&[u8]> {
    let config = module.attribute_bytes(row, "backend_config")?;
    let start = LISTS.find(config)? + LISTS.needle().len();
    config.get(start..)
}

/// The value of `kind=`; empty if the attribute is absent.
fn fusion_kind(module: &Module, row: Row) -> &[u8] {
    match module.bytes(module.tail(row)).strip_prefix(b", kind=") {
        Some(rest) => {
            let length = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
            &rest[..length]
        }
        None => module.attribute_bytes(row, "kind").unwrap_or_default(),
    }
}

/// Whether a fusion is a matmul plus this operand.
fn adds_to_product(module: &Module, row: u32, index: usize) -> bool {
    let Some(callee) = module.called(Row(row), CallRole::Calls) else { return false };
    let root = Row(module.computation(callee).root);
    let &[left, right] = module.operands(root) else { return false };
    let is_product =
        |row: u32| matches!(module.opcode(Row(row)), Opcode::Convolution | Opcode::Dot);
    let added = match (is_product(left), is_product(right)) {
        (true, _) => right,
        (_, true) => left,
        _ => return false,
    };
    module.opcode(root) == Opcode::Add
        && left != right
        && module.parameter_number(Row(added)) == Some(index as u64)
        && module.users().get(added).len() == 1
}

const UNKNOWN: u32 = u32::MAX;

/// Tells how an instruction reads its operands: whether all computation from a parameter of a fused
/// computation is elementwise, and which operands it has more than once.
#[derive(Default)]
pub(super) struct FusedUses {
    /// By row: whether it is elementwise, for the fused computations visited so far.
    is_elementwise: Vec<bool>,
    /// By computation: start and number of its parameters in `parameters`.
    known: Vec<(u32, u32)>,
    /// (number, row), by computation and number.
    parameters: Vec<(u64, u32)>,
    repeats: Repeats,
}

/// The operands that one instruction has more than once.
#[derive(Default)]
struct Repeats {
    row: Option<u32>,
    /// Ascending.
    operands: Vec<u32>,
}

impl Repeats {
    /// Whether `operand` is among the operands of `row` more than once.
    fn has(&mut self, row: u32, operands: &[u32], operand: u32) -> bool {
        if operands.len() <= FEW {
            return operands.iter().filter(|other| **other == operand).count() > 1;
        }
        if self.row != Some(row) {
            self.row = Some(row);
            let mut sorted = operands.to_vec();
            sorted.sort_unstable();
            let pairs = sorted.array_windows().filter(|[own, next]| own == next);
            self.operands = pairs.map(|[own, _]| *own).collect();
        }
        self.operands.binary_search(&operand).is_ok()
    }
}

impl FusedUses {
    fn is_elementwise(&mut self, module: &Module, row: u32, index: usize) -> bool {
        let Some(callee) = module.called(Row(row), CallRole::Calls) else { return false };
        self.look_at(module, callee);
        let (first, count) = self.known[callee.0 as usize];
        let parameters = &self.parameters[first as usize..(first + count) as usize];
        let position = parameters.binary_search_by_key(&(index as u64), |entry| entry.0).ok();
        position.is_some_and(|at| self.is_elementwise[parameters[at].1 as usize])
    }

    /// One pass from the root to the parameters.
    fn look_at(&mut self, module: &Module, id: ComputationId) {
        if self.known.is_empty() {
            self.known = vec![(UNKNOWN, 0); module.computations().len()];
            self.is_elementwise = vec![true; module.row_count()];
        }
        if self.known[id.0 as usize].0 != UNKNOWN {
            return;
        }
        let first = self.parameters.len();
        let numbered = |row| Some((module.parameter_number(Row(row))?, row));
        self.parameters.extend(module.computation(id).rows().filter_map(numbered));
        self.parameters[first..].sort_unstable();
        self.known[id.0 as usize] = (first as u32, (self.parameters.len() - first) as u32);
        for row in module.computation(id).rows().rev() {
            let opcode = module.opcode(Row(row));
            let is_kept = self.is_elementwise[row as usize];
            for (index, operand) in module.operands(Row(row)).iter().enumerate() {
                let passes = match opcode {
                    Opcode::Tuple => true,
                    Opcode::DynamicUpdateSlice => index == 0,
                    _ => opcode.is_elementwise() || opcode == Opcode::Copy,
                };
                if !(passes && is_kept) {
                    self.is_elementwise[*operand as usize] = false;
                }
            }
        }
    }
}
