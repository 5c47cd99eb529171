//! Shardings that a program writes, before partitioning: constraints, and what they change.

use super::program::Program;
use crate::comms::bits;
use crate::flow::walk::{Trail, converts};
use crate::ir::{CallRole, Module, Opcode, Row};
use crate::shares::written;

/// Limit on the rows between two constraints.
const MOST_STEPS: u32 = 256;

/// How a written sharding splits an array.
#[derive(Clone, Debug)]
pub(super) struct Stated {
    /// By dimension: the axes that split it.
    pub axes: Vec<u64>,
    /// By dimension: whether propagation may add axes.
    pub open: Vec<bool>,
}

impl Stated {
    /// All axes that split the array.
    pub fn all(&self) -> u64 {
        self.axes.iter().fold(0, |all, own| all | own)
    }

    /// Whether propagation may split dimension `at` further.
    pub fn is_open(&self, at: usize) -> bool {
        self.open.get(at).copied().unwrap_or(false)
    }
}

/// Whether `row` is a sharding constraint.
pub(super) fn is_constraint(module: &Module, row: Row) -> bool {
    module.opcode(row) == Opcode::CustomCall
        && module.attribute_bytes(row, "custom_call_target") == Some(b"\"Sharding\"")
}

/// The sharding that the text states for the array `row`; None without one, or inside a manual
/// computation.
pub(super) fn stated(program: &Program<'_>, row: Row) -> Option<Stated> {
    let module = program.module;
    let rank = module.shapes().array(module.shape(row))?.rank();
    let leaves = written(module, program.mesh()?, row, 1)?;
    let leaf = leaves.first()?.as_ref().filter(|leaf| leaf.manual.is_empty())?;
    let axes = leaf.axes.as_ref()?;
    let of = |at: usize| axes.get(at).map_or(0, |parts| bits(parts.iter()));
    Some(Stated { axes: (0..rank).map(of).collect(), open: leaf.open.clone() })
}

/// The size of the first dimension of `row`.
pub(super) fn first_size(module: &Module, row: Row) -> Option<i64> {
    module.shapes().array(module.shape(row))?.dimension(0)?.bound()
}

/// The sharding that the text states for a value whose first dimension is that of the value at `trail`,
/// and from which that value is computed: element by element, by a matmul, by a lookup, or in the iteration
/// before.
pub(super) fn stated_before(program: &Program<'_>, trail: Trail) -> Option<Stated> {
    let size = first_size(program.module, trail.row)?;
    search(program, trail, size, &mut { MOST_STEPS })
}

fn keeps(opcode: Opcode) -> bool {
    converts(opcode) && !matches!(opcode, Opcode::Transpose | Opcode::Reshape)
}

fn search(program: &Program<'_>, trail: Trail, size: i64, left: &mut u32) -> Option<Stated> {
    use Opcode::*;
    *left = left.checked_sub(1)?;
    let module = program.module;
    let trail = trail.follow(module, keeps);
    let row = trail.row;
    let opcode = module.opcode(row);
    if opcode == While || opcode == Parameter && module.computation_of(row) != module.entry() {
        let body = match opcode {
            While => module.called(row, CallRole::Body)?,
            _ => module.computation_of(row),
        };
        let &[element] = trail.path() else { return None };
        let root = Row(module.computation(body).root);
        let next = Row(*module.operands(root).get(element as usize)?);
        let is_loop = opcode == While
            || matches!(module.callers(body), &[around] if module.opcode(Row(around)) == While);
        return is_loop.then(|| search(program, Trail::new(next), size, left)).flatten();
    }
    if first_size(module, row) != Some(size) {
        return None;
    }
    if is_constraint(module, row) || opcode == Parameter {
        return stated(program, row);
    }
    let mut operand = |index| search(program, trail.operand(module, index)?, size, left);
    match opcode {
        Reshape | Slice => operand(0),
        Gather => operand(1),
        Dot if !contracts_first(module, row) => operand(0),
        _ if opcode.is_elementwise() => (0..module.operands(row).len()).find_map(operand),
        _ => None,
    }
}

/// Whether matmul `row` contracts the first dimension of its first operand.
fn contracts_first(module: &Module, row: Row) -> bool {
    let text = module.attribute_bytes(row, "lhs_contracting_dims").unwrap_or_default();
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.trim_matches(['{', '}']).split(',').any(|dimension| dimension.trim() == "0")
}
