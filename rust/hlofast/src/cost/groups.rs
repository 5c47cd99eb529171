//! Totals by phase, scope, source, opcode, element type or computation. Every execution belongs to
//! exactly one group, so groups add up to the module.

use super::executed::Totals;
use super::uncertain::{assumed_conditionals, open_loops};
use super::{Cost, SpaceBytes};
use crate::Provenance;
use crate::flow::{Attribution, Phase, ScopeTree, Sources, multiplicities, without_layer_numbers};
use crate::ir::decode::unescape;
use crate::ir::{ComputationId, ElementType, Flags, Module, Opcode, Row, ShapeView};
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;
use std::collections::HashMap;

/// The key that instructions are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKey {
    /// Forward, backward, recompute, optimizer, unattributed.
    Phase,
    /// The first components of the full operation name.
    Scope {
        /// The number of components.
        depth: u32,
        /// Whether scopes that differ only in layer numbers form one group.
        merges_layers: bool,
    },
    /// Source file and line.
    Source,
    /// Source file.
    SourceFile,
    /// Opcode.
    Opcode,
    /// Element type of the result; for tuples, of the first array.
    ElementType,
    /// Computation.
    Computation,
}

/// The instructions that share a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The key as text; empty for instructions without one.
    pub label: Vec<u8>,
    /// Instructions in the text, each counted once.
    pub instructions: u64,
    /// Cost of all their executions.
    pub totals: Totals,
    /// The exact part of the FLOPs: no figures that are modelled, unknown or from configuration,
    /// and none inside loops of unknown trip count or assumed branches.
    pub exact_flops: i128,
}

/// Totals of all calls by `key`, in order of first occurrence.
pub fn group(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    sources: &Sources,
    key: GroupKey,
) -> Vec<Group> {
    let (codes, list) = (HashMap::new(), Vec::new());
    let mut groups = Groups { module, attribution, sources, key, codes, list };
    let scopes = match key {
        GroupKey::Scope { depth, merges_layers } => {
            let mut scopes = attribution.scopes.all_at_depth(depth);
            if merges_layers {
                let merged = attribution.scopes.merged_layers(module);
                scopes.iter_mut().for_each(|scope| *scope = merged[*scope as usize]);
            }
            scopes
        }
        _ => Vec::new(),
    };
    let contexts = &attribution.contexts;
    let unfused = node_executions(cost, attribution, true);
    let runs = node_executions(cost, attribution, false);
    let known = known_executions(module, cost, attribution).unwrap_or_else(|| runs.clone());
    for (node, ((runs, unfused), known)) in runs.into_iter().zip(unfused).zip(known).enumerate() {
        let id = contexts.nodes[node].computation;
        let is_first = contexts.first_node(id) as usize == node;
        let other = cost.other_memory_of(module, id);
        let mut other = other.iter().peekable();
        for row in module.computation(id).rows().map(Row) {
            let position = contexts.position(module, node as u32, row);
            let code = groups.code(row, position, &scopes);
            let group = groups.of(code, row);
            if is_first && module.flags(row) & Flags::IMPLICIT == 0 {
                group.instructions += 1;
            }
            let mut totals = cost.row_totals(row);
            while let Some(entry) = other.next_if(|entry| entry.row == row.0) {
                totals.other_bytes_read += i128::from(entry.read);
                totals.other_bytes_written += i128::from(entry.written);
            }
            group.totals.add(&totals, runs, unfused);
            if cost.provenance[row.0 as usize] == Provenance::Exact {
                let exact = totals.flops.saturating_mul(known);
                group.exact_flops = group.exact_flops.saturating_add(exact);
            }
        }
    }
    groups.list
}

/// How often a row is executed in one phase, and its scope there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseExecutions {
    /// The phase.
    pub phase: Phase,
    /// Executions; None beyond 64 bits.
    pub count: Option<i64>,
    /// The row's first scope in this phase.
    pub scope: u32,
}

/// The executions of a row; most rows run in one phase.
pub type RowExecutions = SmallVec<[PhaseExecutions; 1]>;

/// Executions of a module's rows by phase; a computation called from several phases belongs to each
/// of them.
pub struct Executions<'a> {
    module: &'a Module,
    attribution: &'a Attribution,
    runs: Vec<i128>,
}

impl<'a> Executions<'a> {
    /// The executions that `cost` counts.
    pub fn new(module: &'a Module, cost: &Cost, attribution: &'a Attribution) -> Self {
        Self { module, attribution, runs: node_executions(cost, attribution, false) }
    }

    /// The executions of `row`, in the order of contexts; for a row that is never executed, one
    /// entry with a count of 0.
    pub fn of(&self, row: Row) -> RowExecutions {
        let contexts = &self.attribution.contexts;
        let narrow = |runs| i64::try_from(runs).ok().filter(|runs| *runs < i64::MAX);
        let entry = |(phase, runs, scope)| PhaseExecutions { phase, count: narrow(runs), scope };
        let of_node = |node: u32| {
            let position = contexts.position(self.module, node, row);
            let phase = self.attribution.phase_at(self.module, position, row);
            (phase, self.runs[node as usize], self.attribution.scope[position])
        };
        let nodes = contexts.nodes_of(self.module.computation_of(row));
        // Fast path: most computations have one context.
        if nodes.len() == 1 {
            return smallvec![entry(of_node(nodes.start))];
        }
        let mut by_phase: Vec<(Phase, i128, u32)> = Vec::new();
        for (phase, runs, scope) in nodes.map(of_node) {
            match by_phase.iter_mut().find(|entry| entry.0 == phase) {
                Some(entry) if entry.1 > 0 => entry.1 = entry.1.saturating_add(runs),
                Some(entry) => *entry = (phase, runs, scope),
                None => by_phase.push((phase, runs, scope)),
            }
        }
        if by_phase.iter().any(|entry| entry.1 > 0) {
            by_phase.retain(|entry| entry.1 > 0);
        } else {
            by_phase.truncate(1);
        }
        by_phase.into_iter().map(entry).collect()
    }
}

/// FLOPs by phase of all calls of rows with these opcodes.
pub fn flops_by_phase(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    opcodes: &[Opcode],
) -> [i128; Phase::ALL.len()] {
    let executions = Executions::new(module, cost, attribution);
    let mut sums = [0i128; Phase::ALL.len()];
    for row in module.rows().filter(|row| opcodes.contains(&module.opcode(*row))) {
        let flops = i128::from(cost.flops[row.0 as usize]);
        for entry in executions.of(row) {
            let count = i128::from(entry.count.unwrap_or(i64::MAX));
            let sum = &mut sums[entry.phase as usize];
            *sum = sum.saturating_add(flops.saturating_mul(count));
        }
    }
    sums
}

/// Executions of every node outside loops of unknown trip count and assumed branches; None if there
/// are none.
fn known_executions(module: &Module, cost: &Cost, attribution: &Attribution) -> Option<Vec<i128>> {
    let mut open = [open_loops(cost), assumed_conditionals(cost)].concat();
    open.sort_unstable();
    if open.is_empty() {
        return None;
    }
    let calls = module.all_calls();
    let times = |call: usize| {
        let is_open = calls.get(call).is_some_and(|call| open.binary_search(&call.row).is_ok());
        let times = cost.call_times.get(call)?.times;
        Some(if is_open { 0 } else { times })
    };
    let counts = multiplicities(&attribution.contexts, times).into_iter();
    Some(counts.map(|count| count.map_or(i128::from(i64::MAX), i128::from)).collect())
}

/// Executions of every node; saturates at 64 bits.
fn node_executions(cost: &Cost, attribution: &Attribution, unfused: bool) -> Vec<i128> {
    let times = |call: usize| {
        let link = cost.call_times.get(call)?;
        Some(if link.is_fused && unfused { 0 } else { link.times })
    };
    let counts = multiplicities(&attribution.contexts, times);
    counts.into_iter().map(|count| count.map_or(i128::from(i64::MAX), i128::from)).collect()
}

struct Groups<'a> {
    module: &'a Module,
    attribution: &'a Attribution,
    sources: &'a Sources,
    key: GroupKey,
    /// Index of each group by the key's code.
    codes: HashMap<u64, usize>,
    list: Vec<Group>,
}

impl Groups<'_> {
    /// A number that identifies the key of `row`.
    fn code(&self, row: Row, position: usize, scopes: &[u32]) -> u64 {
        let module = self.module;
        match self.key {
            GroupKey::Phase => self.attribution.phase_at(module, position, row) as u64,
            GroupKey::Scope { .. } => {
                let scope = self.attribution.scope[position] as usize;
                u64::from(scopes.get(scope).copied().unwrap_or(ScopeTree::ROOT))
            }
            GroupKey::Source => {
                let (file, line) = self.sources.place(module.metadata_columns(), row);
                if file < 0 { u64::MAX } else { (file as u64) << 32 | line as u64 }
            }
            GroupKey::SourceFile => self.sources.place(module.metadata_columns(), row).0 as u64,
            GroupKey::Opcode => module.opcode(row) as u64,
            GroupKey::ElementType => {
                let mut leaves = module.shapes().leaves(module.shape(row));
                leaves.next().map_or(u64::MAX, |leaf| u64::from(module.shapes().code(leaf)))
            }
            GroupKey::Computation => module.computation_of(row).0.into(),
        }
    }

    fn of(&mut self, code: u64, row: Row) -> &mut Group {
        let at = match self.codes.get(&code) {
            Some(at) => *at,
            None => {
                let label = self.label(code, row);
                self.list.push(Group { label, ..Group::default() });
                self.codes.insert(code, self.list.len() - 1);
                self.list.len() - 1
            }
        };
        &mut self.list[at]
    }

    /// The path of `scope`, as written in the text.
    fn path(&self, scope: u32, merges_layers: bool) -> Vec<u8> {
        let (scopes, module) = (&self.attribution.scopes, self.module);
        if !merges_layers {
            return scopes.path(module, scope);
        }
        let above = |at: &u32| Some(scopes.parent(*at)).filter(|above| *above != ScopeTree::ROOT);
        let first = Some(scope).filter(|scope| *scope != ScopeTree::ROOT);
        let mut parts: Vec<Cow<'_, [u8]>> = std::iter::successors(first, above)
            .map(|at| without_layer_numbers(scopes.component(module, at)))
            .collect();
        parts.reverse();
        parts.join(&b'/')
    }

    fn label(&self, code: u64, row: Row) -> Vec<u8> {
        let module = self.module;
        match self.key {
            GroupKey::Phase => {
                Phase::ALL.get(code as usize).map_or("", |phase| phase.as_str()).into()
            }
            GroupKey::Scope { merges_layers, .. } => {
                let path = self.path(code as u32, merges_layers);
                unescape(&path).map(Cow::into_owned).unwrap_or(path)
            }
            GroupKey::Source | GroupKey::SourceFile => {
                let metadata = module.metadata_columns();
                let (file, line) = self.sources.place(metadata, row);
                let Some(name) = self.sources.file(metadata, file) else { return Vec::new() };
                let mut label = name.to_vec();
                if self.key == GroupKey::Source {
                    label.extend(format!(":{line}").bytes());
                }
                label
            }
            GroupKey::Opcode => Opcode::from_code(code as u8).as_str().into(),
            GroupKey::ElementType => {
                let leaf = module.shapes().leaves(module.shape(row)).next();
                let array = leaf.map(|leaf| match module.shapes().get(leaf) {
                    ShapeView::Buffer(inner) => inner,
                    _ => leaf,
                });
                let array = array.and_then(|id| module.shapes().array(id));
                array.map_or("", |array| ElementType::as_str(array.element_type)).into()
            }
            GroupKey::Computation => module.computation_name(ComputationId(code as u32)).into(),
        }
    }
}

impl Cost {
    /// The entries of `other_memory` in computation `id`.
    fn other_memory_of(&self, module: &Module, id: ComputationId) -> &[SpaceBytes] {
        let rows = module.computation(id).rows();
        let start = self.other_memory.partition_point(|entry| entry.row < rows.start);
        let length = self.other_memory[start..].partition_point(|entry| entry.row < rows.end);
        &self.other_memory[start..start + length]
    }

    /// One execution of `row`, memory space 0 only. XLA does not distinguish reads from writes;
    /// with XLA's counting, all bytes count as read.
    fn row_totals(&self, row: Row) -> Totals {
        let at = row.0 as usize;
        let of = |column: &[i64]| column.get(at).copied().map_or(0, i128::from);
        Totals {
            flops: of(&self.flops),
            transcendentals: of(&self.transcendentals),
            bytes_read: of(if self.is_xla { &self.bytes_accessed } else { &self.bytes_read }),
            bytes_written: of(&self.bytes_written),
            ..Totals::default()
        }
    }

    /// Bytes of all calls by memory space: (space, read, written), ascending by space.
    pub fn memory_spaces(&self, module: &Module) -> Vec<(u8, i128, i128)> {
        let mut spaces: Vec<(u8, i128, i128)> =
            vec![(0, self.totals.bytes_read, self.totals.bytes_written)];
        for id in (0..module.computations().len() as u32).map(ComputationId) {
            let times = self.unfused_executions[id.0 as usize].map_or(0, i128::from);
            for entry in self.other_memory_of(module, id) {
                let at = match spaces.binary_search_by_key(&entry.memory_space, |space| space.0) {
                    Ok(at) => at,
                    Err(at) => {
                        spaces.insert(at, (entry.memory_space, 0, 0));
                        at
                    }
                };
                let (_, read, written) = &mut spaces[at];
                *read = read.saturating_add(i128::from(entry.read).saturating_mul(times));
                *written = written.saturating_add(i128::from(entry.written).saturating_mul(times));
            }
        }
        spaces
    }
}
