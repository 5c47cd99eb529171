//! The details of a slice: name, category, and arguments from its instruction.

use super::{Shown, Slice, Trace};
use crate::Provenance;
use crate::comms::Collectives;
use crate::cost::Cost;
use crate::ir::{CallRole, Module, Opcode, Row};
use crate::table::{Origin, narrow};
use crate::time::{Communication, Resource};
use std::borrow::Cow;

/// An argument of a slice.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Text from the module; not necessarily valid UTF-8.
    Text(Cow<'a, [u8]>),
    /// An integer.
    Integer(i64),
    /// A finite number of seconds.
    Real(f64),
}

/// A trace with the analyses that its slices refer to.
pub struct Described<'a> {
    /// The module of the trace.
    pub module: &'a Module,
    /// Cost of its instructions.
    pub cost: &'a Cost,
    /// Its collectives.
    pub collectives: &'a Collectives,
    /// Time of each collective.
    pub communications: &'a [Communication],
    /// The slices.
    pub trace: &'a Trace,
    /// Arguments of the module's slice: names and texts.
    pub facts: &'a [(String, String)],
    origin: Origin<'a>,
    /// By computation: whether it contains an instruction of unknown FLOPs.
    is_unknown: Vec<bool>,
}

/// The value shown for an unknown figure.
const UNKNOWN: Value<'static> = Value::Text(Cow::Borrowed(b"unknown"));

fn text(text: String) -> Value<'static> {
    Value::Text(Cow::Owned(text.into_bytes()))
}

fn integer(value: u64) -> Value<'static> {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn real(value: f64) -> Value<'static> {
    if value.is_finite() { Value::Real(value) } else { UNKNOWN }
}

impl<'a> Described<'a> {
    /// Describes `trace` of the module of `origin`, given its cost, collectives and their times.
    pub fn new(
        origin: Origin<'a>,
        cost: &'a Cost,
        collectives: &'a Collectives,
        communications: &'a [Communication],
        trace: &'a Trace,
        facts: &'a [(String, String)],
    ) -> Self {
        let module = origin.module;
        let mut is_unknown = vec![false; module.computations().len()];
        for id in module.computation_post_order().iter().copied() {
            let holds = module.computation(id).rows().any(|row| {
                let own = cost.provenance.get(row as usize) == Some(&Provenance::Unknown);
                let fused = fused(module, Row(row));
                own || fused.is_some_and(|id| is_unknown.get(id.0 as usize) == Some(&true))
            });
            is_unknown[id.0 as usize] = holds;
        }
        Self { module, cost, collectives, communications, trace, facts, origin, is_unknown }
    }

    /// The name of the slice.
    pub fn name(&self, slice: &Slice) -> Cow<'a, str> {
        let name = String::from_utf8_lossy(self.module.instruction_name(slice.row));
        match slice.shown {
            Shown::Module => String::from_utf8_lossy(self.module.name()),
            Shown::Instruction => name,
            Shown::Iteration(number) => Cow::Owned(format!("{name}, iteration {number}")),
            Shown::Rest(_) if !self.is_loop(slice.row) => Cow::Owned(format!("{name}, as a whole")),
            Shown::Rest(1) => Cow::Owned(format!("{name}, 1 more iteration")),
            Shown::Rest(times) => Cow::Owned(format!("{name}, {times} more iterations")),
        }
    }

    /// The category of the slice: an opcode, `module`, `iteration` or `aggregate`.
    pub fn category(&self, slice: &Slice) -> Cow<'a, str> {
        match slice.shown {
            Shown::Module => Cow::Borrowed("module"),
            Shown::Instruction => String::from_utf8_lossy(self.module.opcode_text(slice.row)),
            Shown::Iteration(_) => Cow::Borrowed("iteration"),
            Shown::Rest(_) => Cow::Borrowed("aggregate"),
        }
    }

    /// The arguments of the slice: names and values.
    pub fn arguments(&self, slice: &Slice) -> Vec<(&'a str, Value<'a>)> {
        let mut arguments: Vec<(&'a str, Value<'a>)> = vec![("seconds", real(slice.seconds))];
        match slice.shown {
            Shown::Module => {
                let facts = self.facts.iter();
                let told = |(name, fact): &'a (String, String)| {
                    (name.as_str(), Value::Text(Cow::Borrowed(fact.as_bytes())))
                };
                arguments.extend(facts.map(told));
            }
            Shown::Iteration(number) => arguments.push(("iteration", integer(number))),
            Shown::Rest(times) => arguments.push(("executions", integer(times))),
            Shown::Instruction => self.instruction(slice, &mut arguments),
        }
        arguments
    }

    fn instruction(&self, slice: &Slice, arguments: &mut Vec<(&'a str, Value<'a>)>) {
        let (module, row) = (self.module, slice.row);
        arguments.push(("opcode", Value::Text(Cow::Borrowed(module.opcode_text(row)))));
        let computation = module.computation_name(module.computation_of(row));
        arguments.push(("computation", Value::Text(Cow::Borrowed(computation))));
        if let Some(name) = self.origin.op_name(row) {
            arguments.push(("op_name", Value::Text(name)));
        }
        if let Some(file) = self.origin.source_file(row) {
            let mut place = file.to_vec();
            let line = self.origin.source_line(row);
            if line > 0 {
                place.extend_from_slice(format!(":{line}").as_bytes());
            }
            arguments.push(("source", Value::Text(Cow::Owned(place))));
        }
        match self.resource(slice) {
            Resource::Called => self.called(row, arguments),
            Resource::Exposed(_) => self.collective(slice, arguments),
            Resource::Links(_) => {
                self.collective(slice, arguments);
                let number = slice.collective.map(|number| number as usize);
                let collective = number.and_then(|number| self.collectives.collectives.get(number));
                arguments.push((
                    "flops",
                    self.flops(collective.map_or(row, |collective| collective.row)),
                ));
            }
            _ => {
                arguments.push(("flops", self.flops(row)));
                arguments.push(("bytes", self.bytes(row)));
            }
        }
    }

    fn called(&self, row: Row, arguments: &mut Vec<(&'a str, Value<'a>)>) {
        let loops = &self.trace.loops;
        if let Ok(at) = loops.binary_search_by_key(&row, |entry| entry.row)
            && let Some(shown_loop) = loops.get(at)
        {
            let unknown = || text("unknown, counted once".to_owned());
            arguments.push(("trip_count", shown_loop.trip_count.map_or_else(unknown, integer)));
            arguments.push(("iterations_shown", integer(shown_loop.shown)));
        }
    }

    fn collective(&self, slice: &Slice, arguments: &mut Vec<(&'a str, Value<'a>)>) {
        let Some(number) = slice.collective.map(|number| number as usize) else { return };
        let Some(collective) = self.collectives.collectives.get(number) else { return };
        arguments.push(("kind", text(collective.kind.as_str().to_owned())));
        arguments.push(("bytes", collective.payload().map_or(UNKNOWN, integer)));
        if let Some(entry) = self.communications.get(number) {
            arguments.push(("axes", text(entry.axes.clone())));
            arguments.push(("wire_bytes", integer(entry.estimate.wire_bytes as u64)));
        }
        if let Some(size) = collective.group_size {
            arguments.push(("group_size", integer(size)));
        }
    }

    fn flops(&self, row: Row) -> Value<'static> {
        let at = row.0 as usize;
        let fused = fused(self.module, row).map(|id| id.0 as usize);
        let is_unknown = self.cost.provenance.get(at) == Some(&Provenance::Unknown)
            || fused.is_some_and(|id| self.is_unknown.get(id) == Some(&true));
        if is_unknown {
            return UNKNOWN;
        }
        let own = i128::from(self.cost.flops.get(at).copied().unwrap_or(0));
        let inside = fused.and_then(|id| self.cost.computations.get(id));
        Value::Integer(narrow(own.saturating_add(inside.map_or(0, |totals| totals.flops))))
    }

    fn bytes(&self, row: Row) -> Value<'static> {
        if self.cost.unknown_bytes.binary_search(&row.0).is_ok() {
            return UNKNOWN;
        }
        let of = |column: &[i64]| column.get(row.0 as usize).copied().unwrap_or(0);
        let moved = of(&self.cost.bytes_read).saturating_add(of(&self.cost.bytes_written));
        Value::Integer(moved)
    }

    fn resource(&self, slice: &Slice) -> Resource {
        let track = self.trace.tracks.get(slice.track as usize);
        track.map_or(Resource::Other, |track| track.resource)
    }

    fn is_loop(&self, row: Row) -> bool {
        self.module.opcode(row) == Opcode::While
    }
}

/// The fused computation of `row`, if it is a fusion.
fn fused(module: &Module, row: Row) -> Option<crate::ir::ComputationId> {
    let is_fusion = module.opcode(row) == Opcode::Fusion;
    is_fusion.then(|| module.called(row, CallRole::Calls)).flatten()
}
