//! The cost of instructions: FLOPs, transcendentals, bytes.
//!
//! Start at [`cost`]. There are two engines over the same per-opcode rules (`rules.rs`):
//! `executed.rs` counts executed work (loops times their trip count, library calls, memory spaces);
//! `xla.rs` reproduces XLA's `HloCostAnalysis`, quirks included.

pub mod convolution;
pub mod custom_call;
mod dead;
mod executed;
pub mod explain;
mod facts;
mod groups;
pub mod matmul;
mod repeated;
mod rules;
mod traffic;
mod uncertain;
mod xla;
mod xla_fusion;
mod xla_operands;

pub use crate::ir::size::{Backend, ShapeCost, device_sizes, packed_costs, shape_costs};
pub use dead::dead_rows;
pub use executed::{Branch, CallTimes, Override, Totals};
pub use facts::Facts;
pub(crate) use facts::integers;
pub use groups::{
    Executions, Group, GroupKey, PhaseExecutions, RowExecutions, flops_by_phase, group,
};
pub use repeated::repeated_products;
pub use traffic::SpaceBytes;
pub use uncertain::{
    Product, assumed_conditionals, assumed_executions, products, uncertain_executions,
};

use crate::Provenance;
use crate::flow::trip_count::TripCount;
use crate::ir::size::unpacked_sizes;
use crate::ir::{Module, Row};
use facts::Fact;
use rules::Rules;
use xla::Properties;

/// How to count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Counts as XLA does instead of as executed.
    pub is_xla: bool,
    /// With `is_xla`: adds up in 32-bit floats, in XLA's order.
    pub is_float32: bool,
    /// The backend whose shape sizes are used; None uses the module's own backend.
    pub backend: Option<Backend>,
    /// Costs that the user gives for single custom calls, ascending by row. Ignored with `is_xla`.
    pub overrides: Vec<Override>,
}

/// Totals in 32-bit floats, bit for bit equal to XLA's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FloatTotals {
    /// `flops`.
    pub flops: f32,
    /// `transcendentals`.
    pub transcendentals: f32,
    /// `bytes accessed`.
    pub bytes_accessed: f32,
    /// `optimal_seconds`.
    pub optimal_seconds: f32,
}

/// A loop and its trip count.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// The while instruction.
    pub row: Row,
    /// The number of iterations and its provenance.
    pub trip_count: TripCount,
}

/// The cost of a module.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Whether the figures follow XLA's counting.
    pub is_xla: bool,
    /// The backend whose shape sizes were used.
    pub backend: Backend,
    /// FLOPs of one execution of each row. As executed, without called and fused computations; as
    /// XLA counts, with them.
    pub flops: Vec<i64>,
    /// Transcendentals of one execution of each row, counted like `flops`.
    pub transcendentals: Vec<i64>,
    /// Bytes that one execution of each row reads from memory space 0; empty with `is_xla`.
    pub bytes_read: Vec<i64>,
    /// Bytes that one execution of each row writes to memory space 0; empty with `is_xla`.
    pub bytes_written: Vec<i64>,
    /// XLA's `bytes accessed` of each row; empty without `is_xla`.
    pub bytes_accessed: Vec<i64>,
    /// Bytes in memory spaces other than 0, by row and space.
    pub other_memory: Vec<SpaceBytes>,
    /// Provenance of each row's FLOPs.
    pub provenance: Vec<Provenance>,
    /// One execution of each computation, with everything it calls.
    pub computations: Vec<Totals>,
    /// How often the totals count each computation; None beyond 64 bits.
    pub executions: Vec<Option<i64>>,
    /// The part of `executions` outside fusions; only these move bytes.
    pub unfused_executions: Vec<Option<i64>>,
    /// Rows whose bytes are unknown, ascending.
    pub unknown_bytes: Vec<u32>,
    /// For each of the module's calls, in order: how often one execution of the caller makes the
    /// call.
    pub call_times: Vec<CallTimes>,
    /// The whole module.
    pub totals: Totals,
    /// XLA's `optimal_seconds`: -1 for each custom call.
    pub optimal_seconds: i128,
    /// 32-bit totals: of the module, then of its computations by id.
    pub float32: Option<(FloatTotals, Vec<FloatTotals>)>,
    /// The loops, by row.
    pub loops: Vec<Loop>,
    /// The branches of conditionals, by row and index.
    pub branches: Vec<Branch>,
}

impl Cost {
    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        let columns = [
            &self.flops,
            &self.transcendentals,
            &self.bytes_read,
            &self.bytes_written,
            &self.bytes_accessed,
        ];
        columns.iter().map(|column| 8 * column.capacity()).sum::<usize>()
            + self.provenance.capacity()
            + self.other_memory.capacity() * size_of::<SpaceBytes>()
            + self.computations.capacity() * size_of::<Totals>()
            + (self.executions.capacity() + self.unfused_executions.capacity()) * 16
            + self.call_times.capacity() * size_of::<CallTimes>()
    }
}

/// Counts the cost of `module`. `facts` are the module's decoded attributes, which do not depend on
/// `options`.
pub fn cost(module: &Module, facts: &Facts, options: &Options) -> Cost {
    with_rules(module, options, |rules| {
        let backend = rules.backend;
        let mut cost = if options.is_xla {
            let mut cost = as_xla(rules, facts, backend);
            if options.is_float32 {
                cost.float32 = Some(as_float32(rules, facts, backend));
            }
            cost
        } else {
            as_executed(rules, facts, backend, &options.overrides)
        };
        let as_loop = |(row, fact)| match fact {
            &Fact::TripCount(trip_count) => Some(Loop { row, trip_count }),
            _ => None,
        };
        cost.loops = facts.iter().filter_map(as_loop).collect();
        cost
    })
}

/// XLA's sums by operand and by result, under XLA's names (`bytes accessed0{}`, `utilization0{}`,
/// `bytes accessedout{1}`); sums of 0 are left out. With `is_float32`, adds up in 32-bit floats in
/// XLA's order.
///
/// None if following nested calls exceeds the step budget, a multiple of the module's operand
/// count.
pub fn operand_sums(
    module: &Module,
    facts: &Facts,
    options: &Options,
) -> Option<Vec<(String, f64)>> {
    let options = Options { is_xla: true, ..options.clone() };
    with_rules(module, &options, |rules| {
        let engine = xla::Engine::new(rules, facts, rules.backend);
        let limit = traffic::budget(module);
        if options.is_float32 {
            xla_operands::operand_sums::<f32>(&engine, limit)
        } else {
            xla_operands::operand_sums::<f64>(&engine, limit)
        }
    })
}

fn with_rules<T>(module: &Module, options: &Options, count: impl FnOnce(Rules<'_>) -> T) -> T {
    let backend = options.backend.unwrap_or_else(|| Backend::of_module(module));
    let shapes = match options.is_xla {
        true => shape_costs(module.shapes(), backend, false),
        false => packed_costs(module, backend),
    };
    let is_reparsed = options.is_xla && backend != Backend::Tpu;
    let constant_sizes = if is_reparsed { unpacked_sizes(module.shapes(), &shapes) } else { None };
    count(Rules {
        module,
        shapes: &shapes,
        backend,
        is_xla: options.is_xla,
        constant_sizes: constant_sizes.as_deref(),
    })
}

fn as_executed(rules: Rules<'_>, facts: &Facts, backend: Backend, overrides: &[Override]) -> Cost {
    let executed = executed::analyse(rules, facts, overrides);
    let mut totals = Totals::default();
    for start in rules.module.starts() {
        totals.add(&executed.computations[start.0 as usize], 1, 1);
    }
    Cost {
        is_xla: false,
        backend,
        flops: executed.flops,
        transcendentals: executed.transcendentals,
        bytes_read: executed.bytes_read,
        bytes_written: executed.bytes_written,
        bytes_accessed: Vec::new(),
        other_memory: executed.other_memory,
        provenance: executed.provenance,
        totals,
        computations: executed.computations,
        executions: executed.executions,
        unfused_executions: executed.unfused_executions,
        optimal_seconds: 0,
        float32: None,
        loops: Vec::new(),
        branches: executed.branches,
        call_times: executed.call_times,
        unknown_bytes: executed.unknown_bytes,
    }
}

fn as_xla(rules: Rules<'_>, facts: &Facts, backend: Backend) -> Cost {
    let module = rules.module;
    let cost = xla::analyse::<i128>(rules, facts, backend);
    let narrow = |value: i128| i64::try_from(value).unwrap_or(i64::MAX);
    let column = |of: fn(&Properties<i128>) -> i128| -> Vec<i64> {
        cost.rows.iter().map(|row| narrow(of(row))).collect()
    };
    let totals = |properties: &Properties<i128>| Totals {
        flops: properties.flops,
        transcendentals: properties.transcendentals,
        // XLA does not distinguish reads from writes.
        bytes_read: properties.bytes,
        ..Totals::default()
    };
    let entry = module.entry().0 as usize;
    // XLA counts called computations where the entry calls them. A fragment has several entries.
    let mut executions = vec![Some(0); module.computations().len()];
    let mut sum = Totals::default();
    for start in module.starts() {
        executions[start.0 as usize] = Some(1);
        sum.add(&totals(&cost.computations[start.0 as usize]), 1, 1);
    }
    Cost {
        is_xla: true,
        backend,
        flops: column(|row| row.flops),
        transcendentals: column(|row| row.transcendentals),
        bytes_read: Vec::new(),
        bytes_written: Vec::new(),
        bytes_accessed: column(|row| row.bytes),
        other_memory: Vec::new(),
        provenance: vec![Provenance::Exact; module.row_count()],
        totals: sum,
        computations: cost.computations.iter().map(totals).collect(),
        unfused_executions: executions.clone(),
        executions,
        optimal_seconds: cost.computations[entry].optimal_seconds,
        float32: None,
        loops: Vec::new(),
        branches: Vec::new(),
        call_times: vec![CallTimes::default(); module.all_calls().len()],
        unknown_bytes: Vec::new(),
    }
}

fn as_float32(
    rules: Rules<'_>,
    facts: &Facts,
    backend: Backend,
) -> (FloatTotals, Vec<FloatTotals>) {
    let cost = xla::analyse::<f32>(rules, facts, backend);
    let totals = |properties: &Properties<f32>| FloatTotals {
        flops: properties.flops,
        transcendentals: properties.transcendentals,
        bytes_accessed: properties.bytes,
        optimal_seconds: properties.optimal_seconds,
    };
    let computations: Vec<FloatTotals> = cost.computations.iter().map(totals).collect();
    (computations[rules.module.entry().0 as usize], computations)
}
