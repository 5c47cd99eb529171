//! A module at a glance: compilation status, backend, entry signature and contents.

mod donation;
mod identity;

use crate::ir::{CallRole, ComputationId, Flags, Module, Opcode, Row, ShapeId, ShapeView};
use std::collections::BTreeMap;
use std::ops::Range;

pub use donation::Donation;
pub use identity::{Backend, Guess, Status};

/// How much to list.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Limit on the largest shapes that are listed.
    pub shapes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { shapes: 10 }
    }
}

/// How often one opcode occurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpcodeCount {
    /// The opcode as the text writes it.
    pub opcode: String,
    /// Instructions with this opcode in the whole module.
    pub instructions: usize,
    /// Instructions with this opcode in the entry computation.
    pub entry_instructions: usize,
}

/// A distinct result shape of instructions that are not inside a fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeCount {
    /// The shape.
    pub shape: ShapeId,
    /// Unpadded bytes.
    pub bytes: u64,
    /// How many instructions have it.
    pub instructions: usize,
    /// The first instruction with the shape.
    pub first: Row,
}

/// How often a kind or a target occurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameCount {
    /// The kind or the target.
    pub name: Vec<u8>,
    /// How many instructions have it.
    pub instructions: usize,
}

/// The role of a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Not called, and not the entry.
    Unused,
    /// The computation inside a fusion.
    Fusion,
    /// Applied to elements, by reductions, sorts, scatters and collectives.
    Applied,
    /// Run by an asynchronous instruction.
    Async,
    /// Called by a `call`, a custom call or an unknown opcode.
    Call,
    /// A branch of a conditional.
    Branch,
    /// The condition of a loop.
    Condition,
    /// The body of a loop.
    Body,
    /// The entry computation.
    Entry,
}

impl Role {
    /// The word used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Unused => "unused",
            Role::Fusion => "fusion",
            Role::Applied => "applied",
            Role::Async => "async",
            Role::Call => "call",
            Role::Branch => "branch",
            Role::Condition => "condition",
            Role::Body => "body",
            Role::Entry => "entry",
        }
    }

    fn of_call(opcode: Opcode, role: CallRole) -> Self {
        match (role, opcode) {
            (CallRole::Condition, _) => Role::Condition,
            (CallRole::Body, _) => Role::Body,
            (CallRole::Branch | CallRole::TrueComputation | CallRole::FalseComputation, _) => {
                Role::Branch
            }
            (_, Opcode::Fusion) => Role::Fusion,
            (_, Opcode::AsyncStart | Opcode::AsyncUpdate | Opcode::AsyncDone)
            | (CallRole::Wrapped, _) => Role::Async,
            (CallRole::ToApply, Opcode::Call) => Role::Call,
            (CallRole::ToApply | CallRole::Select | CallRole::Scatter, _) => Role::Applied,
            (CallRole::Calls | CallRole::Called, _) => Role::Call,
        }
    }
}

/// A computation and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputationUse {
    /// The computation.
    pub computation: ComputationId,
    /// Instructions written in the text.
    pub instructions: usize,
    /// The most specific role that its callers give it.
    pub role: Role,
    /// Number of call edges that lead to the computation.
    pub callers: usize,
}

/// A value that enters or leaves the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Parameter number, or index into the result.
    pub number: u64,
    /// The parameter, or the row that computes this part of the result. None if the root is not a
    /// tuple with one operand per part.
    pub row: Option<Row>,
    /// Its shape.
    pub shape: ShapeId,
    /// Unpadded bytes; -1 if unknown.
    pub bytes: i64,
}

/// The entry computation's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// The parameters, ordered by number.
    pub parameters: Vec<Port>,
    /// The elements of the result tuple, or the single result.
    pub outputs: Vec<Port>,
}

impl Signature {
    fn of(module: &Module, shape_bytes: &[i64]) -> Self {
        let port = |number, row, shape: ShapeId| Port {
            number,
            row,
            shape,
            bytes: shape_bytes.get(shape.0 as usize).copied().unwrap_or(-1),
        };
        let entry = module.entry();
        let parameters = module.parameters(entry).into_iter().filter_map(|row| {
            Some(port(module.parameter_number(row)?, Some(row), module.shape(row)))
        });
        let parameters = parameters.collect();
        if module.computation(entry).rows().is_empty() {
            return Self { parameters, outputs: Vec::new() };
        }
        let root = Row(module.computation(entry).root);
        let shape = module.shape(root);
        let outputs = match module.shapes().get(shape) {
            ShapeView::Tuple(elements) => {
                let operands = match module.opcode(root) {
                    Opcode::Tuple => module.operands(root),
                    _ => &[],
                };
                let parts = elements.iter().enumerate();
                parts
                    .map(|(i, element)| {
                        port(i as u64, operands.get(i).map(|row| Row(*row)), *element)
                    })
                    .collect()
            }
            _ => vec![port(0, Some(root), shape)],
        };
        Self { parameters, outputs }
    }
}

/// The summary of a module. Counts exclude implicit rows.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The compilation status.
    pub status: Guess<Status>,
    /// The backend that the program was compiled for, if the text shows it.
    pub backend: Option<Guess<Backend>>,
    /// Instructions written in the text.
    pub instructions: usize,
    /// Rows that the text only implies.
    pub implicit_instructions: usize,
    /// Parameters and results of the entry computation.
    pub signature: Signature,
    /// Donated and aliased parameters.
    pub donation: Donation,
    /// Counts by opcode, most frequent first.
    pub opcodes: Vec<OpcodeCount>,
    /// Largest first.
    pub shapes: Vec<ShapeCount>,
    /// Fusions by kind, most frequent first.
    pub fusions: Vec<NameCount>,
    /// Custom calls by target, most frequent first.
    pub custom_calls: Vec<NameCount>,
    /// The computations, in text order.
    pub computations: Vec<ComputationUse>,
}

/// What one pass over the instructions tells of a module.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The compilation status.
    pub status: Guess<Status>,
    /// The backend that the program was compiled for, if the text shows it.
    pub backend: Option<Guess<Backend>>,
    computations: Vec<ComputationUse>,
    facts: identity::Facts,
}

impl Identity {
    /// The identity of `module`.
    pub fn of(module: &Module) -> Self {
        let computations = computation_uses(module);
        let facts = identity::Facts::of(module, &computations);
        let status = identity::status(module, &facts);
        let backend = identity::backend(module, &facts);
        Self { status, backend, computations, facts }
    }
}

/// Summarises `module`, whose identity is known.
pub fn summarise(module: &Module, identity: &Identity, options: &Options) -> Summary {
    let Identity { status, backend, computations, facts } = identity;
    let shape_bytes = module.shapes().all_logical_bytes();
    let instructions = module.instruction_count();
    Summary {
        status: status.clone(),
        backend: backend.clone(),
        instructions,
        implicit_instructions: module.row_count() - instructions,
        signature: Signature::of(module, &shape_bytes),
        donation: Donation::of(module, &shape_bytes),
        opcodes: opcode_counts(module),
        shapes: largest_shapes(module, computations, &shape_bytes, options.shapes),
        fusions: name_counts(&facts.fusion_kinds),
        custom_calls: name_counts(&facts.custom_call_targets),
        computations: computations.clone(),
    }
}

/// The backend that `module` was compiled for, as [`Identity`] has it; much cheaper for programs
/// with tiled layouts or library calls.
pub fn backend(module: &Module) -> Option<Guess<Backend>> {
    identity::backend_alone(module)
}

fn is_written(module: &Module, row: u32) -> bool {
    module.flags(Row(row)) & Flags::IMPLICIT == 0
}

/// How many of `rows` the text writes.
fn written_rows(module: &Module, rows: Range<u32>) -> usize {
    let flags = &module.columns().flags[rows.start as usize..rows.end as usize];
    flags.iter().filter(|flags| **flags & Flags::IMPLICIT == 0).count()
}

fn computation_uses(module: &Module) -> Vec<ComputationUse> {
    let mut uses: Vec<ComputationUse> = module
        .computations()
        .iter()
        .enumerate()
        .map(|(index, computation)| ComputationUse {
            computation: ComputationId(index as u32),
            instructions: written_rows(module, computation.rows()),
            role: Role::Unused,
            callers: 0,
        })
        .collect();
    for call in module.all_calls() {
        let role = Role::of_call(module.opcode(call.row), call.role);
        if let Some(callee) = uses.get_mut(call.computation.0 as usize) {
            callee.callers += 1;
            callee.role = callee.role.max(role);
        }
    }
    if let Some(entry) = uses.get_mut(module.entry().0 as usize) {
        entry.role = Role::Entry;
    }
    uses
}

fn opcode_counts(module: &Module) -> Vec<OpcodeCount> {
    let entry = module.computation(module.entry()).rows();
    let mut known = [(0usize, 0usize); Opcode::ALL.len()];
    let mut written: BTreeMap<&[u8], (usize, usize)> = BTreeMap::new();
    let columns = module.columns();
    let rows = (0u32..).zip(columns.opcodes.iter().zip(&columns.flags));
    for (row, (opcode, flags)) in rows.filter(|(_, (_, flags))| **flags & Flags::IMPLICIT == 0) {
        // Sugar and unknown opcodes are counted under the word in the text.
        let plain = *opcode != Opcode::Unknown && *flags & Flags::SUGAR == 0;
        let count = match known.get_mut(*opcode as usize) {
            Some(count) if plain => count,
            _ => written.entry(module.opcode_text(Row(row))).or_default(),
        };
        count.0 += 1;
        count.1 += usize::from(entry.contains(&row));
    }
    let known = Opcode::ALL.iter().map(|opcode| opcode.as_str().as_bytes()).zip(known);
    let mut all: Vec<(&[u8], (usize, usize))> = known.filter(|(_, count)| count.0 > 0).collect();
    written.retain(|opcode, _| all.iter().all(|(known, _)| known != opcode));
    all.extend(written);
    all.sort_unstable_by_key(|(opcode, count)| (std::cmp::Reverse(count.0), *opcode));
    all.into_iter()
        .map(|(opcode, (instructions, entry_instructions))| OpcodeCount {
            opcode: String::from_utf8_lossy(opcode).into_owned(),
            instructions,
            entry_instructions,
        })
        .collect()
}

fn largest_shapes(
    module: &Module,
    computations: &[ComputationUse],
    shape_bytes: &[i64],
    limit: usize,
) -> Vec<ShapeCount> {
    let mut uses: Vec<Option<(usize, u32)>> = vec![None; shape_bytes.len()];
    for usage in computations.iter().filter(|c| !matches!(c.role, Role::Fusion | Role::Applied)) {
        let rows = module.computation(usage.computation).rows();
        for row in rows.filter(|row| is_written(module, *row)) {
            if let Some(slot) = uses.get_mut(module.shape(Row(row)).0 as usize) {
                slot.get_or_insert((0, row)).0 += 1;
            }
        }
    }
    let mut counts: Vec<ShapeCount> = module
        .shapes()
        .ids()
        .zip(uses)
        .filter_map(|(shape, usage)| {
            let (instructions, first) = usage?;
            let bytes = u64::try_from(*shape_bytes.get(shape.0 as usize)?).ok()?;
            module.shapes().array(shape)?;
            Some(ShapeCount { shape, bytes, instructions, first: Row(first) })
        })
        .collect();
    counts.sort_by_key(|count| (std::cmp::Reverse(count.bytes), count.first));
    counts.truncate(limit);
    counts
}

fn name_counts(names: &BTreeMap<Vec<u8>, usize>) -> Vec<NameCount> {
    let mut counts: Vec<NameCount> = names
        .iter()
        .map(|(name, instructions)| NameCount { name: name.clone(), instructions: *instructions })
        .collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.instructions));
    counts
}

/// `value` without its quotes, if it has them.
pub(crate) fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value)
}
