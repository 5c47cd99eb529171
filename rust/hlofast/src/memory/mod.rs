//! Values, buffers, live ranges and the memory peak.
//!
//! Start at [`memory`]. Results are split into parts (`nodes.rs`), parts are traced to the values
//! they hold (`values.rs`), values that must share memory form buffers (`alias.rs`), instructions
//! form one sequence of steps (`schedule.rs`), and every value is live from the step that defines
//! it to its last use (`ranges.rs`); all of that is a `Frame` (`frame.rs`). `share.rs` decides which
//! values may also share memory. XLA's account (`xla.rs`) follows its buffer assignment (`assign.rs`,
//! `allocations.rs`) and its heap (`pack.rs`); `change.rs` repeats it for the program after a change.

mod alias;
mod allocations;
mod assign;
mod change;
mod class;
mod donation;
mod files;
mod frame;
mod in_place;
mod listed;
mod nodes;
mod options;
mod order;
mod pack;
mod peak;
mod ranges;
mod schedule;
mod share;
mod values;
mod xla;

pub use assign::Heap;
pub use change::{Alike, Change, Needed, Resized, Spared, memory_after};
pub use class::{Class, Classes};
pub use donation::{Donatable, donatable, parameter_bytes};
pub use files::{FileError, FileKind, FileRow, XlaFile, read_file};
pub use frame::Frame;
use frame::Layout;
pub use listed::{Scheduled, Scheduler, is_constant, only_slices, size_of};
pub use options::{Constants, Options, Rule, Sizes, Space};
pub use peak::{LiveValue, Peak};
pub use ranges::joins_in_place;
pub use schedule::Order;
pub use xla::{
    Packing, Signature, Tables, XlaAccount, account_from, allocated_from, overwriting,
    packing_from, xla_account,
};

use crate::cost::Backend;
use crate::ir::{ComputationId, Module, Opcode, Row};
use ranges::{Buffers, Ranges};
use std::sync::Arc;

/// Why memory cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// The shapes have far more parts than the text could have written.
    TooManyParts,
    /// The sizes add up to more than 64 bits hold.
    TooLarge,
}

impl std::fmt::Display for MemoryError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            MemoryError::TooManyParts => "the results have too many parts to follow them all",
            MemoryError::TooLarge => "the sizes add up to more than 64 bits hold",
        })
    }
}

impl std::error::Error for MemoryError {}

/// Problems of the module, and omissions from the figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// The module does not say that it is scheduled.
    pub is_unscheduled: bool,
    /// Number of instructions before one of their operands.
    pub disordered: u32,
    /// Number of parts of results whose origin could not be followed because shapes do not match.
    pub mismatched: u32,
    /// Number of entries of `input_output_alias` that contradict the shapes or name missing parts.
    pub contradictory_aliases: u32,
    /// `input_output_alias` could not be read.
    pub has_unreadable_aliases: bool,
    /// Rows of unknown size, ascending; they count as 0 bytes.
    pub unknown_sizes: Vec<u32>,
    /// Rows that call a computation which another row calls too, ascending.
    pub repeated_calls: Vec<u32>,
    /// Whether array shapes lack a layout in a module whose other shapes have tiles.
    pub lacks_layouts: bool,
}

/// Live ranges and live bytes at every step.
#[derive(Clone, Debug)]
pub struct Memory {
    /// How memory was counted.
    pub options: Options,
    /// The order that was used.
    pub order: Order,
    /// The backend whose sizes were used.
    pub backend: Backend,
    /// Problems and omissions.
    pub doubts: Doubts,
    /// Live bytes at every step.
    pub timeline: Vec<i64>,
    /// The peak.
    pub peak: Peak,
    layout: Arc<Layout>,
    ranges: Ranges,
    buffers: Buffers,
    /// By node: bytes of the value it defines, in the requested memory spaces.
    bytes: Vec<i64>,
}

/// Analyses the live values of `module`.
pub fn memory(module: &Module, options: &Options) -> Result<Memory, MemoryError> {
    let permutation = order::permutation(module, options.order);
    let frame = Frame::new(module, permutation.as_deref(), options.rule)?;
    memory_of(module, &frame, options)
}

/// [`memory`] of a module whose frame in text order is known; other orders do not use it.
pub fn memory_from(
    module: &Module,
    frame: &Frame,
    options: &Options,
) -> Result<Memory, MemoryError> {
    match (options.order, options.rule) {
        (Order::Text, Rule::InPlace) => memory_of(module, frame, options),
        (Order::Text, _) => memory_of(module, frame.marked(), options),
        _ => memory(module, options),
    }
}

/// The memory of `module`, by a rule, if its instructions ran in the order of one of XLA's schedulers. Arrays of one
/// constant are made where they are read if they are deferred, as by a later pass of XLA. `own` is the memory in the
/// text's order, `sizes` are the bytes of shapes.
pub fn memory_listed(
    module: &Module,
    own: &Memory,
    sizes: &[i64],
    (scheduler, rule, are_deferred): (Scheduler, Rule, bool),
) -> Result<Memory, MemoryError> {
    let has_steps = |id: ComputationId| {
        own.layout.steps.spans.get(id.0 as usize).is_some_and(|span| span.0 != schedule::NONE)
    };
    let how = (scheduler, are_deferred);
    let order = listed::listed(module, sizes, how, has_steps).ok_or(MemoryError::TooLarge)?;
    let frame = Frame::new(module, Some(&order), rule)?;
    memory_of(module, &frame, &Options { rule, ..own.options })
}

fn memory_of(module: &Module, frame: &Frame, options: &Options) -> Result<Memory, MemoryError> {
    let (mut ranges, mut sets) = (frame.ranges.clone(), frame.sets.clone());
    let layout = &frame.layout;
    let reader = frame.reader(module);
    let count = reader.steps.len();
    if options.rule == Rule::InPlace {
        share::join_shared(&reader, &layout.values, &ranges, &mut sets);
    }
    let is_static = options.constants == Constants::Program || options.rule == Rule::Xla;
    if is_static {
        ranges.keep_constants(&reader);
    }
    let buffers = Buffers::new(&layout.values, &mut sets);
    ranges.take_turns(&buffers, |_, _, _| options.rule != Rule::Values);
    if options.rule == Rule::Xla {
        xla::keep_results(&reader, &layout.values, &buffers, &mut ranges);
    }
    let backend = Backend::of_module(module);
    let sized = peak::Sized::new(&reader, &layout.values, options, backend);
    let mut doubts = Doubts {
        is_unscheduled: !module.is_scheduled(),
        disordered: reader.steps.disordered,
        mismatched: layout.mismatched,
        contradictory_aliases: frame.donations.contradictory,
        has_unreadable_aliases: frame.donations.is_unreadable,
        unknown_sizes: sized.unknown.clone(),
        repeated_calls: reader.steps.repeated.clone(),
        lacks_layouts: backend == Backend::Tpu && peak::lacks_layouts(&reader),
    };
    doubts.repeated_calls.sort_unstable();
    doubts.repeated_calls.dedup();
    let timeline = peak::timeline(&ranges, &sized.bytes, count)?;
    let at = match options.rule {
        Rule::Values => peak::moment_of_xla(&ranges, &sized, count),
        Rule::InPlace | Rule::Xla => peak::highest(&timeline),
    };
    let peak = Peak { step: at, bytes: timeline.get(at as usize).copied().unwrap_or(0) };
    Ok(Memory {
        options: *options,
        order: options.order,
        backend,
        doubts,
        timeline,
        peak,
        layout: Arc::clone(layout),
        ranges,
        buffers,
        bytes: sized.bytes,
    })
}

impl Memory {
    /// The row of every step.
    pub fn sequence(&self) -> &[u32] {
        &self.layout.steps.rows
    }

    /// The step at which `row` runs; None for rows without a step, such as rows inside fusions.
    pub fn step_of(&self, row: Row) -> Option<u32> {
        self.layout.steps.of(row.0)
    }

    /// The instruction, and the part of its result, that define the value in part `part` of `row`.
    pub fn maker_of(&self, row: Row, part: u32) -> Option<(Row, u32)> {
        let nodes = self.layout.nodes.of(self.layout.steps.of(row.0)?);
        let node = nodes.start.checked_add(part).filter(|node| *node < nodes.end)?;
        let value = *self.layout.values.get(node as usize)?;
        let step = *self.layout.nodes.steps.get(value as usize)?;
        let maker = Row(*self.layout.steps.rows.get(step as usize)?);
        Some((maker, value - self.layout.nodes.of(step).start))
    }

    /// The buffer of the value in part `part` of `row`.
    pub fn buffer_of(&self, row: Row, part: u32) -> Option<u32> {
        let nodes = self.layout.nodes.of(self.layout.steps.of(row.0)?);
        let node = nodes.start.checked_add(part).filter(|node| *node < nodes.end)?;
        let value = *self.layout.values.get(node as usize)?;
        self.buffers.of.get(value as usize).copied().filter(|buffer| *buffer != u32::MAX)
    }

    /// The parts of its result that `row` itself defines.
    pub fn makes(&self, row: Row) -> impl Iterator<Item = u32> + '_ {
        let nodes =
            self.layout.steps.of(row.0).map(|step| self.layout.nodes.of(step)).unwrap_or_default();
        let start = nodes.start;
        nodes
            .filter(|node| self.layout.values.get(*node as usize) == Some(node))
            .map(move |n| n - start)
    }

    /// The row that runs at the peak; None for a module without instructions.
    pub fn peak_row(&self) -> Option<Row> {
        self.layout.steps.rows.get(self.peak.step as usize).map(|row| Row(*row))
    }

    /// The values live at `step`, largest first, then by row and part.
    pub fn live_at(&self, module: &Module, step: u32) -> Vec<LiveValue> {
        let mut live: Vec<LiveValue> = Vec::new();
        for node in 0..self.layout.values.len() as u32 {
            if self.layout.values[node as usize] == node
                && self.ranges.starts[node as usize] <= step
                && step <= self.ranges.ends[node as usize]
            {
                live.push(self.live_value(module, node));
            }
        }
        live.sort_by(|a, b| {
            b.bytes.cmp(&a.bytes).then(a.row.cmp(&b.row)).then(a.part.cmp(&b.part))
        });
        live
    }

    /// The maximum of the timeline. Under the rule `values`, the peak may be at another step,
    /// because it follows XLA's live-range file.
    pub fn highest(&self) -> Peak {
        let step = peak::highest(&self.timeline);
        Peak { step, bytes: self.timeline.get(step as usize).copied().unwrap_or(0) }
    }

    /// The row whose metadata describe the result of `row`. Parameters of loops, branches and calls
    /// have no metadata; their callers do.
    pub fn described_by(&self, module: &Module, row: Row) -> Row {
        if module.opcode(row) != Opcode::Parameter {
            return row;
        }
        let computation = module.computation_of(row);
        let caller = self.layout.steps.callers.get(computation.0 as usize);
        caller.filter(|caller| caller.0 != schedule::NONE).map_or(row, |caller| Row(caller.0))
    }

    /// The peak that would result, and its step, if the values in `buffer` took no memory.
    pub fn peak_without(&self, buffer: u32) -> Peak {
        let mut timeline = self.timeline.clone();
        let is_one = (buffer as usize) < self.buffers.len();
        let values = if is_one { self.buffers.values(buffer as usize) } else { &[] };
        for value in values {
            let value = *value as usize;
            let (start, end) = (self.ranges.starts[value], self.ranges.ends[value]);
            let last = (end as usize + 1).min(timeline.len());
            if let Some(steps) = timeline.get_mut(start as usize..last) {
                steps.iter_mut().for_each(|bytes| *bytes -= self.bytes[value]);
            }
        }
        let step = peak::highest(&timeline);
        Peak { step, bytes: timeline.get(step as usize).copied().unwrap_or(0) }
    }

    /// Every value, by step and part.
    pub fn all_values(&self, module: &Module) -> Vec<LiveValue> {
        let nodes = 0..self.layout.values.len() as u32;
        let made = nodes.filter(|node| self.layout.values[*node as usize] == *node);
        made.map(|node| self.live_value(module, node)).collect()
    }

    fn live_value(&self, module: &Module, node: u32) -> LiveValue {
        let step = self.layout.nodes.steps[node as usize];
        let row = Row(self.layout.steps.rows[step as usize]);
        let part = node - self.layout.nodes.of(step).start;
        let shape = self.layout.shapes.shape_at(module, module.shape(row), part);
        LiveValue {
            row,
            part,
            path: self.layout.shapes.path(module, module.shape(row), part),
            shape,
            bytes: self.bytes[node as usize],
            memory_space: peak::memory_space(module, shape),
            first_step: self.ranges.starts[node as usize],
            last_step: self.ranges.ends[node as usize],
            buffer: self.buffers.of[node as usize],
        }
    }
}
