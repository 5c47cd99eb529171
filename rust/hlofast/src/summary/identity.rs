//! The compilation status and the backend of a module. Both are inferred from traces of compiler
//! passes in the text, so each comes with its evidence.

use super::{ComputationUse, Role, unquoted};
use crate::ir::{Module, Opcode, Row, ShapeView};
use memchr::memmem;
use std::collections::BTreeMap;

/// How far a module has been compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The text is as the framework wrote it: for one device, or without shardings that partition
    /// it.
    Unoptimised,
    /// The text has shardings that say how to partition it.
    Annotated,
    /// The module is the program of one device, with collectives.
    Partitioned,
    /// The module has fusions or library calls.
    Optimised,
    /// Text order is execution order.
    Scheduled,
}

impl Status {
    /// The word used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Unoptimised => "unoptimised",
            Status::Annotated => "annotated",
            Status::Partitioned => "partitioned",
            Status::Optimised => "optimised",
            Status::Scheduled => "scheduled",
        }
    }
}

/// The backend that a program was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// XLA:CPU.
    Cpu,
    /// XLA:GPU.
    Gpu,
    /// XLA:TPU.
    Tpu,
    /// AWS Neuron.
    Neuron,
}

impl Backend {
    /// The word used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Gpu => "gpu",
            Backend::Tpu => "tpu",
            Backend::Neuron => "neuron",
        }
    }

    /// Whether times on a device of `backend`, as in the table of devices, mean something for a
    /// program of this backend. Programs for CPUs fit any device, because people compile for CPUs
    /// where they lack the device.
    pub fn fits(self, backend: &str) -> bool {
        self == Backend::Cpu || matches!(backend, "" | "other") || backend == self.as_str()
    }
}

/// A conclusion and its evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guess<T> {
    /// The conclusion.
    pub value: T,
    /// The evidence, in words.
    pub reason: String,
}

fn guess<T>(value: T, reason: impl Into<String>) -> Guess<T> {
    Guess { value, reason: reason.into() }
}

/// Facts from one pass over the instructions.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) fusion_kinds: BTreeMap<Vec<u8>, usize>,
    pub(super) custom_call_targets: BTreeMap<Vec<u8>, usize>,
    fusions: usize,
    collectives: usize,
    /// A dot or convolution outside fusions.
    plain_product: Option<Row>,
}

impl Facts {
    pub(super) fn of(module: &Module, computations: &[ComputationUse]) -> Self {
        let mut facts = Self::default();
        for usage in computations {
            for row in module.computation(usage.computation).rows().map(Row) {
                if is_telling(module.opcode(row)) && !module.is_implicit(row) {
                    facts.count(module, row, usage.role);
                }
            }
        }
        facts
    }

    fn count(&mut self, module: &Module, row: Row, role: Role) {
        match module.opcode(row) {
            Opcode::Fusion => {
                self.fusions += 1;
                let kind = module.attribute_bytes(row, "kind").unwrap_or(b"unknown");
                add(&mut self.fusion_kinds, kind);
            }
            Opcode::CustomCall => {
                let target = module.attribute_bytes(row, "custom_call_target").unwrap_or_default();
                add(&mut self.custom_call_targets, unquoted(target));
            }
            Opcode::Dot | Opcode::Convolution if role != Role::Fusion => {
                self.plain_product.get_or_insert(row);
            }
            opcode if is_collective(opcode) => {
                self.collectives += usize::from(module.attribute(row, "channel_id").is_some());
            }
            _ => {}
        }
    }

    /// The first custom-call target that starts with one of `prefixes`, as evidence.
    fn target(&self, prefixes: &[&str]) -> Option<String> {
        let matching = self.custom_call_targets.iter().find(|(target, _)| {
            prefixes.iter().any(|prefix| target.starts_with(prefix.as_bytes()))
        });
        let (target, count) = matching?;
        let calls = if *count == 1 { "call" } else { "calls" };
        Some(format!("{count} {calls} to {}", String::from_utf8_lossy(target)))
    }
}

/// Whether [`Facts::count`] looks at instructions of `opcode`.
#[inline]
fn is_telling(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, Fusion | CustomCall | Dot | Convolution) || is_collective(opcode)
}

fn add(counts: &mut BTreeMap<Vec<u8>, usize>, name: &[u8]) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(counts.insert(name.to_vec(), 1)),
    }
}

fn is_collective(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        AllGather
            | AllGatherStart
            | AllReduce
            | AllReduceStart
            | AllToAll
            | CollectiveBroadcast
            | CollectivePermute
            | CollectivePermuteStart
            | RaggedAllToAll
            | ReduceScatter
    )
}

/// The values in the text that a sharding divides, except parameters.
fn split_values(module: &Module) -> usize {
    let in_use = ["sharding", "frontend_attributes"].map(|key| module.may_have(key));
    if in_use == [false; 2] {
        return 0;
    }
    let is_own = |row: &Row| !module.is_implicit(*row) && module.opcode(*row) != Opcode::Parameter;
    module.rows().filter(|row| is_own(row) && is_split(module, *row, in_use)).count()
}

/// Whether a sharding or its Shardy form divides the value; `{replicated}` and the like do not.
/// `in_use` tells whether rows of the module may have a sharding and frontend attributes.
fn is_split(module: &Module, row: Row, in_use: [bool; 2]) -> bool {
    let splits = |value: &[u8]| {
        memmem::find(value, b"devices=").is_some() || memmem::find(value, b"{'").is_some()
    };
    let shardy = |value: &[u8]| {
        memmem::find(value, b"sdy.sharding").is_some() && memmem::find(value, b"{\\\"").is_some()
    };
    in_use[0] && module.attribute_bytes(row, "sharding").is_some_and(splits)
        || in_use[1] && module.attribute_bytes(row, "frontend_attributes").is_some_and(shardy)
}

/// Keys that only one backend writes.
const CONFIG_KEYS: [(&[u8], Backend); 9] = [
    (b"\"flag_configs\"", Backend::Tpu),
    (b"\"window_config\"", Backend::Tpu),
    (b"\"estimated_cycles\"", Backend::Tpu),
    (b"\"fusion_backend_config\"", Backend::Gpu),
    (b"\"gemm_backend_config\"", Backend::Gpu),
    (b"\"operation_queue_id\"", Backend::Gpu),
    (b"\"cudnn_conv_backend_config\"", Backend::Gpu),
    (b"\"outer_dimension_partitions\"", Backend::Cpu),
    (b"\"onednn_matmul_config\"", Backend::Cpu),
];

fn backend_of_config(module: &Module, row: Row) -> Option<Guess<Backend>> {
    let value = module.attribute_bytes(row, "backend_config")?;
    // Quoted configs write the quotes of their JSON with a backslash.
    let plain: Vec<u8> = value.iter().copied().filter(|byte| *byte != b'\\').collect();
    let entry = CONFIG_KEYS.iter().find(|(key, _)| memmem::find(&plain, key).is_some());
    entry.map(|(key, backend)| {
        let reason = format!("backend_config with {}", String::from_utf8_lossy(key));
        guess(*backend, reason)
    })
}

const LIBRARY_CALLS: [&str; 6] =
    ["__cublas$", "__cudnn$", "__cusolver$", "__cub$", "__onednn$", "__triton"];
/// Calls that the partitioner removes.
const BEFORE_PARTITIONING: [&str; 4] =
    ["Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy."];

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

pub(super) fn status(module: &Module, facts: &Facts) -> Guess<Status> {
    if module.is_scheduled() {
        return guess(Status::Scheduled, "is_scheduled=true");
    }
    if facts.fusions > 0 {
        return guess(Status::Optimised, plural(facts.fusions, "fusion"));
    }
    if let Some(reason) = facts.target(&LIBRARY_CALLS) {
        return guess(Status::Optimised, reason);
    }
    // Dumps from inside the partitioner still have shardings. It renames the entry; and where a
    // program has collectives of its own, calls like these surround them before partitioning.
    let is_renamed = module.computation_name(module.entry()).ends_with(b"_spmd");
    if let Some(reason) = facts.target(&BEFORE_PARTITIONING).filter(|_| !is_renamed) {
        return guess(Status::Annotated, reason);
    }
    let is_partitioned = is_renamed || facts.collectives > 0;
    let split = if is_partitioned { 0 } else { split_values(module) };
    if split > 0 {
        return guess(Status::Annotated, plural(split, "sharded value"));
    }
    if facts.collectives > 0 {
        let reason = plural(facts.collectives, "collective");
        return guess(Status::Partitioned, format!("{reason} with channel_id"));
    }
    if is_renamed {
        return guess(Status::Partitioned, "the entry computation's name ends in _spmd");
    }
    guess(Status::Unoptimised, "no fusions, no collectives, no shardings beyond parameters")
}

const GPU_CALLS: [&str; 7] =
    ["__cublas", "__cudnn", "__cusolver", "__cub$", "__triton", "triton_kernel_call", "__gpu$"];
const TPU_CALLS: [&str; 2] = ["tpu_custom_call", "AsyncCollective"];
const CPU_CALLS: [&str; 2] = ["__onednn", "lapack_"];
const NEURON_CALLS: [&str; 1] = ["AwsNeuron"];

/// The backend; other facts are not examined if layouts or custom calls identify it.
pub(super) fn backend_alone(module: &Module) -> Option<Guess<Backend>> {
    let mut calls = Facts::default();
    for row in module.rows().filter(|row| module.opcode(*row) == Opcode::CustomCall) {
        if !module.is_implicit(row) {
            calls.count(module, row, Role::Entry);
        }
    }
    by_layouts(module)
        .or_else(|| by_calls(&calls))
        .or_else(|| backend(module, &Facts::of(module, &super::computation_uses(module))))
}

pub(super) fn backend(module: &Module, facts: &Facts) -> Option<Guess<Backend>> {
    if let Some(guess) = by_layouts(module).or_else(|| by_calls(facts)) {
        return Some(guess);
    }
    let has_configs = module.may_have("backend_config");
    let written = module.rows().filter(|row| has_configs && !module.is_implicit(*row));
    let by_config = written.filter_map(|row| backend_of_config(module, row)).next();
    if by_config.is_some() {
        return by_config;
    }
    if facts.fusion_kinds.contains_key(b"kInput".as_slice()) {
        return Some(guess(Backend::Gpu, "kInput fusions without tiled layouts"));
    }
    let row = facts.plain_product.filter(|_| module.is_scheduled())?;
    let opcode = module.opcode(row).as_str();
    Some(guess(
        Backend::Cpu,
        format!("scheduled with a {opcode} outside fusions, no tiled layouts"),
    ))
}

fn by_layouts(module: &Module) -> Option<Guess<Backend>> {
    let shapes = module.shapes();
    let tiled = shapes.ids().find(|id| match shapes.get(*id) {
        ShapeView::Array(array) => array.layout.is_some_and(|layout| !layout.tiles.is_empty()),
        _ => false,
    });
    let text = module.bytes(shapes.text(tiled?));
    let text = String::from_utf8_lossy(text.get(..80).unwrap_or(text));
    Some(guess(Backend::Tpu, format!("tiled layouts such as {text}")))
}

fn by_calls(facts: &Facts) -> Option<Guess<Backend>> {
    let calls: [(&[&str], Backend); 4] = [
        (&GPU_CALLS, Backend::Gpu),
        (&TPU_CALLS, Backend::Tpu),
        (&NEURON_CALLS, Backend::Neuron),
        (&CPU_CALLS, Backend::Cpu),
    ];
    calls.into_iter().find_map(|(prefixes, backend)| Some(guess(backend, facts.target(prefixes)?)))
}
