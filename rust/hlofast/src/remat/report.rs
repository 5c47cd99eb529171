//! Recomputed instructions, residuals and the fate of gathered arrays.

use super::residuals::{Residual, residuals};
use super::twins::twins;
use crate::comms::{CollectiveKind, Collectives, Moved};
use crate::cost::{Cost, Executions};
use crate::flow::{Attribution, Phase, is_compiler_clone};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Module, Opcode, Row};
use hashbrown::HashMap;

/// The origin of a recomputation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RecomputedBy {
    /// The program: `jax.checkpoint`, according to operation names.
    Program,
    /// The compiler: the instruction's name ends in `.remat`.
    Compiler,
    /// No name marks the recomputation, but an earlier instruction computes an equal value from
    /// equal inputs.
    Twin,
}

impl RecomputedBy {
    /// Every origin, in the order of the codes.
    pub const ALL: [RecomputedBy; 3] =
        [RecomputedBy::Program, RecomputedBy::Compiler, RecomputedBy::Twin];

    /// The name used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            RecomputedBy::Program => "program",
            RecomputedBy::Compiler => "compiler",
            RecomputedBy::Twin => "twin",
        }
    }
}

/// An instruction that runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recomputed {
    /// The instruction.
    pub row: Row,
    /// The origin of the recomputation.
    pub by: RecomputedBy,
    /// Executions as recomputation; None beyond 64 bits.
    pub executions: Option<i64>,
    /// For a twin: the row that it repeats.
    pub twin: Option<Row>,
    /// Whether it is a collective, which sends its payload again.
    pub is_collective: bool,
}

/// How the result of an all-gather is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum GatherFate {
    /// Its result, or a copy of it, is kept from forward to backward.
    Kept,
    /// The array is gathered again for the backward pass.
    Recomputed,
    /// The gather belongs to the forward pass alone.
    Forward,
    /// The gather belongs to the backward pass alone.
    Backward,
    /// The gather belongs to the optimizer, or its phase is unknown.
    Other,
}

impl GatherFate {
    /// All fates, in the order of their codes.
    pub const ALL: [GatherFate; 5] = [
        GatherFate::Kept,
        GatherFate::Recomputed,
        GatherFate::Forward,
        GatherFate::Backward,
        GatherFate::Other,
    ];

    /// The name used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            GatherFate::Kept => "kept",
            GatherFate::Recomputed => "recomputed",
            GatherFate::Forward => "forward",
            GatherFate::Backward => "backward",
            GatherFate::Other => "other",
        }
    }
}

/// An all-gather and the fate of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// Its index in [`Collectives::collectives`].
    pub collective: u32,
    /// The fate of its result.
    pub fate: GatherFate,
    /// If kept: the residual that holds it.
    pub residual: Option<u32>,
}

/// The report.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Recomputed instructions, by row.
    pub recomputed: Vec<Recomputed>,
    /// Values that forward code computes and backward code reads.
    pub residuals: Vec<Residual>,
    /// The all-gathers.
    pub gathers: Vec<Gather>,
    /// Where JAX marks values that are named or saved: rows of `reduce-precision` instructions, the
    /// only trace that `checkpoint_name` leaves.
    pub named: Vec<Row>,
    /// Barriers of `jax.checkpoint` around residuals.
    pub barriers: Vec<Row>,
    /// Rows of sharding constraints (or their transposes) in code under `jax.checkpoint`, according
    /// to operation names.
    pub constraints: Vec<Row>,
    /// Instructions in the text by phase, in the order of `Phase::ALL`.
    pub instructions: [u64; Phase::ALL.len()],
}

/// The recomputation and residuals of `module`.
pub fn report(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    collectives: &Collectives,
) -> Report {
    let mut report = Report {
        residuals: residuals(module, cost, attribution),
        recomputed: recomputed(module, cost, attribution),
        ..Report::default()
    };
    report.gathers = gathers(collectives, &report.residuals, module);
    report.constraints = constraints(module);
    for row in module.rows().filter(|row| !module.is_implicit(*row)) {
        report.instructions[attribution.phase[row.0 as usize] as usize] += 1;
        match module.opcode(row) {
            Opcode::ReducePrecision => report.named.push(row),
            Opcode::OptBarrier => report.barriers.push(row),
            _ => {}
        }
    }
    report
}

fn constraints(module: &Module) -> Vec<Row> {
    let columns = module.metadata_columns();
    let is_constraint: Vec<bool> = columns
        .op_names
        .iter()
        .map(|name| {
            let mut parts = module.bytes(*name).split(|byte| *byte == b'/');
            parts.next_back() == Some(b"sharding_constraint")
                && parts.any(|part| {
                    let holds = |word: &[u8]| part.windows(word.len()).any(|at| at == word);
                    holds(b"checkpoint") || holds(b"remat")
                })
        })
        .collect();
    let rows = columns.op_name.iter().zip(0..);
    rows.filter(|(name, row)| {
        let id = usize::try_from(**name).ok();
        id.and_then(|id| is_constraint.get(id)).copied().unwrap_or(false)
            && !module.is_implicit(Row(*row))
    })
    .map(|(_, row)| Row(row))
    .collect()
}

/// Finds repetitions by the program and the compiler first, by their names, and then twins.
fn recomputed(module: &Module, cost: &Cost, attribution: &Attribution) -> Vec<Recomputed> {
    let executions = Executions::new(module, cost, attribution);
    let is_within = within_clones(module);
    let mut recomputed = Vec::new();
    let mut has_phase = false;
    let is_collective = |row: Row| CollectiveKind::of_opcode(module.opcode(row)).is_some();
    for row in module.rows() {
        let is_clone = is_compiler_clone(module, row);
        let is_again = attribution.phase[row.0 as usize] == Phase::Recompute;
        has_phase |= is_again && !is_clone;
        let by = if is_clone || (is_again && is_within[module.computation_of(row).0 as usize]) {
            RecomputedBy::Compiler
        } else if is_again {
            RecomputedBy::Program
        } else {
            continue;
        };
        let phases = executions.of(row);
        let runs = phases
            .iter()
            .filter(|entry| by == RecomputedBy::Compiler || entry.phase == Phase::Recompute);
        let executions =
            runs.map(|entry| entry.count).try_fold(0i64, |sum, count| sum.checked_add(count?));
        let is_collective = is_collective(row);
        recomputed.push(Recomputed { row, by, executions, twin: None, is_collective });
    }
    if has_phase {
        return recomputed;
    }
    for (row, twin) in twins(module, attribution) {
        let executions =
            executions.of(row).iter().try_fold(0i64, |sum, entry| sum.checked_add(entry.count?));
        let is_collective = is_collective(row);
        let by = RecomputedBy::Twin;
        recomputed.push(Recomputed { row, by, executions, twin: Some(twin), is_collective });
    }
    recomputed.sort_by_key(|entry| (entry.row, entry.by));
    recomputed.dedup_by_key(|entry| entry.row);
    recomputed
}

/// By computation: whether only copies that the compiler made call it, directly or not.
fn within_clones(module: &Module) -> Vec<bool> {
    let mut is_within = vec![false; module.computations().len()];
    // A computation stands before its callers.
    for id in (0..is_within.len() as u32).rev().map(ComputationId) {
        let callers = module.callers(id);
        is_within[id.0 as usize] = !callers.is_empty()
            && callers.iter().map(|caller| Row(*caller)).all(|caller| {
                is_compiler_clone(module, caller)
                    || is_within[module.computation_of(caller).0 as usize]
            });
    }
    is_within
}

fn gathers(collectives: &Collectives, residuals: &[Residual], module: &Module) -> Vec<Gather> {
    let mut kept: HashMap<Row, u32, BuildMix> = HashMap::default();
    for (number, residual) in residuals.iter().enumerate() {
        kept.entry(residual.source).or_insert(number as u32);
    }
    let mut gathers = Vec::new();
    for (number, collective) in collectives.collectives.iter().enumerate() {
        if collective.kind != CollectiveKind::AllGather {
            continue;
        }
        let range = collective.members.start as usize..collective.members.end as usize;
        let members = collectives.members[range].iter().copied();
        // The source of a gathered residual is the end of the gather: a done row or, inside the
        // fusion that ends the gather, the custom call whose operand is the gather.
        let ends = members.chain(collective.done).chain([collective.outer]);
        let residual = ends
            .flat_map(|row| {
                let users = module.users().get(row.0).iter().map(|user| Row(*user));
                let marks = users.filter(|user| super::residuals::gathers(module, *user));
                marks.chain([row])
            })
            .find_map(|row| kept.get(&row).copied());
        let has = |phase: Phase| collective.executions.iter().any(|entry| entry.phase == phase);
        let fate = if residual.is_some() {
            GatherFate::Kept
        } else if has(Phase::Recompute) {
            GatherFate::Recomputed
        } else if has(Phase::Forward) {
            GatherFate::Forward
        } else if has(Phase::Backward) {
            GatherFate::Backward
        } else {
            GatherFate::Other
        };
        gathers.push(Gather { collective: number as u32, fate, residual });
    }
    gathers
}

impl Report {
    /// Bytes held on the heap, excluding the paths of residuals.
    pub fn heap_bytes(&self) -> usize {
        let rows = self.named.capacity() + self.barriers.capacity() + self.constraints.capacity();
        self.recomputed.capacity() * size_of::<Recomputed>()
            + self.residuals.capacity() * size_of::<Residual>()
            + self.gathers.capacity() * size_of::<Gather>()
            + rows * size_of::<Row>()
    }

    /// Whether no forward work is left, as in gradients that do not depend on any forward value.
    pub fn has_no_forward(&self) -> bool {
        self.instructions[Phase::Forward as usize] == 0
            && self.instructions[Phase::Backward as usize] > 0
    }

    /// The gathers of one kind of array with one fate.
    pub fn gathers_of<'a>(
        &'a self,
        collectives: &'a Collectives,
        moved: Moved,
        fate: GatherFate,
    ) -> impl Iterator<Item = &'a Gather> {
        self.gathers.iter().filter(move |gather| {
            let collective = &collectives.collectives[gather.collective as usize];
            gather.fate == fate && collective.moved == moved
        })
    }
}
