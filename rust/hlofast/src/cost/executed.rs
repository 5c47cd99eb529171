//! Cost as executed: XLA's rules without their gaps, with loops multiplied along each call path.

use super::custom_call::CustomCallCost;
use super::facts::{AsyncBody, Fact, FactCursor, Facts};
use super::rules::{Class, Rules, Work, class_of};
use super::traffic::{SpaceBytes, Traffic};
use crate::Provenance;
use crate::ir::{Call, CallRole, ComputationId, Module, Opcode, Row};

/// A row and the cost that the user gives for it, which replaces the cost from the text.
pub type Override = (u32, CustomCallCost);

/// Sums over executions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Floating-point and integer operations.
    pub flops: i128,
    /// Transcendental functions.
    pub transcendentals: i128,
    /// Bytes read from memory space 0.
    pub bytes_read: i128,
    /// Bytes written to memory space 0.
    pub bytes_written: i128,
    /// Bytes read from other memory spaces.
    pub other_bytes_read: i128,
    /// Bytes written to other memory spaces.
    pub other_bytes_written: i128,
}

impl Totals {
    /// Bytes read and written in all memory spaces.
    pub fn bytes_accessed(&self) -> i128 {
        self.bytes_read
            .saturating_add(self.bytes_written)
            .saturating_add(self.other_bytes_read)
            .saturating_add(self.other_bytes_written)
    }

    /// Adds `times` executions of `other`. Its bytes are added `unfused` times, because only
    /// executions outside fusions move bytes.
    pub(super) fn add(&mut self, other: &Totals, times: i128, unfused: i128) {
        let add = |sum: &mut i128, value: i128, times: i128| {
            *sum = sum.saturating_add(value.saturating_mul(times));
        };
        add(&mut self.flops, other.flops, times);
        add(&mut self.transcendentals, other.transcendentals, times);
        add(&mut self.bytes_read, other.bytes_read, unfused);
        add(&mut self.bytes_written, other.bytes_written, unfused);
        add(&mut self.other_bytes_read, other.other_bytes_read, unfused);
        add(&mut self.other_bytes_written, other.other_bytes_written, unfused);
    }
}

/// One branch of a conditional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The conditional.
    pub row: Row,
    /// Number of the branch.
    pub index: u32,
    /// The branch computation.
    pub computation: ComputationId,
    /// Whether the totals count this branch.
    pub is_counted: bool,
}

/// Columns over rows and computations.
#[derive(Clone, Debug, Default)]
pub(super) struct Executed {
    pub flops: Vec<i64>,
    pub transcendentals: Vec<i64>,
    pub bytes_read: Vec<i64>,
    pub bytes_written: Vec<i64>,
    pub provenance: Vec<Provenance>,
    pub other_memory: Vec<SpaceBytes>,
    /// One execution of each computation, with everything it calls.
    pub computations: Vec<Totals>,
    /// Executions of each computation; None beyond 64 bits.
    pub executions: Vec<Option<i64>>,
    /// The part of `executions` outside fusions.
    pub unfused_executions: Vec<Option<i64>>,
    pub branches: Vec<Branch>,
    pub call_times: Vec<CallTimes>,
    /// Rows whose bytes are unknown.
    pub unknown_bytes: Vec<u32>,
}

/// How one execution of a caller runs a callee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// How often the callee runs. 0 if the callee is applied to elements (its work counts with the
    /// caller), is a branch that is not counted, or has an unknown role.
    pub times: u64,
    /// Whether the callee is fused: it computes, but its values never reach memory.
    pub is_fused: bool,
}

impl CallTimes {
    const ONCE: CallTimes = CallTimes { times: 1, is_fused: false };
    const FUSED: CallTimes = CallTimes { times: 1, is_fused: true };
    const APART: CallTimes = CallTimes { times: 0, is_fused: false };
}

pub(super) fn analyse(rules: Rules<'_>, facts: &Facts, overrides: &[Override]) -> Executed {
    let module = rules.module;
    let rows = module.row_count();
    let count = module.computations().len();
    let mut engine = Engine {
        rules,
        facts,
        overrides,
        traffic: Traffic::new(rules, facts),
        links: vec![CallTimes::APART; module.all_calls().len()],
        is_fused_only: module.computations_in_fusions(),
        has_unknown: vec![false; count],
        own: vec![Totals::default(); count],
        result: Executed {
            flops: vec![0; rows],
            transcendentals: vec![0; rows],
            bytes_read: vec![0; rows],
            bytes_written: vec![0; rows],
            provenance: vec![Provenance::Exact; rows],
            computations: vec![Totals::default(); count],
            ..Executed::default()
        },
    };
    for id in module.computation_post_order() {
        engine.computation(*id);
    }
    engine.executions(module.computation_post_order());
    let Engine { traffic, links, mut result, .. } = engine;
    result.call_times = links;
    result.unknown_bytes.sort_unstable();
    result.other_memory = traffic.other;
    // Ascending already within each computation, so that a stable sort has few runs to merge.
    result.other_memory.sort_by_key(|entry| (entry.row, entry.memory_space));
    result
}

struct Engine<'a> {
    rules: Rules<'a>,
    facts: &'a Facts,
    overrides: &'a [Override],
    traffic: Traffic<'a>,
    /// Parallel to the module's calls.
    links: Vec<CallTimes>,
    is_fused_only: Vec<bool>,
    /// By computation: whether it contains a row of unknown work.
    has_unknown: Vec<bool>,
    /// Totals of each computation's own rows, without callees.
    own: Vec<Totals>,
    result: Executed,
}

impl Engine<'_> {
    fn computation(&mut self, id: ComputationId) {
        let module = self.rules.module;
        let rows = module.computation(id).rows();
        let is_fused = self.is_fused_only[id.0 as usize];
        let mut own = Totals::default();
        let mut cursor = FactCursor::new(self.facts, id);
        let other = self.traffic.other.len();
        for row in rows.clone() {
            let fact = cursor.take(row);
            let opcode = module.opcode(Row(row));
            let class = class_of(opcode);
            // The columns are 0 and exact from the start.
            if class == Class::Free || is_fused && class == Class::Moves {
                continue;
            }
            let index = row as usize;
            let bytes = if is_fused {
                Some((0, 0))
            } else if let Some(stated) = self.stated_bytes(row) {
                Some(stated)
            } else {
                self.traffic.of(Row(row), opcode, fact)
            };
            let (flops, transcendentals, provenance) = match class {
                Class::Free | Class::Moves => (0, 0, Provenance::Exact),
                Class::Elementwise | Class::Transcendental => {
                    let shape = self.rules.shape(Row(row));
                    let provenance = match shape.elements {
                        ..0 => Provenance::Unknown,
                        _ if shape.is_bound => Provenance::Modelled,
                        _ => Provenance::Exact,
                    };
                    let elements = shape.elements.max(0);
                    let is_flops = class == Class::Elementwise;
                    (
                        if is_flops { elements } else { 0 },
                        if is_flops { 0 } else { elements },
                        provenance,
                    )
                }
                Class::Special => self.special_row(Row(row), opcode, fact),
            };
            if provenance != Provenance::Exact {
                self.result.provenance[index] = provenance;
                self.has_unknown[id.0 as usize] |= provenance == Provenance::Unknown;
            }
            if bytes.is_none() {
                self.result.unknown_bytes.push(row);
            }
            let (read, written) = bytes.unwrap_or((0, 0));
            self.result.flops[index] = flops;
            self.result.transcendentals[index] = transcendentals;
            self.result.bytes_read[index] = read;
            self.result.bytes_written[index] = written;
            own.flops += i128::from(flops);
            own.transcendentals += i128::from(transcendentals);
            own.bytes_read += i128::from(read);
            own.bytes_written += i128::from(written);
        }
        for entry in &self.traffic.other[other..] {
            own.other_bytes_read += i128::from(entry.read);
            own.other_bytes_written += i128::from(entry.written);
        }
        self.own[id.0 as usize] = own;
        let calls = module.calls_within(id);
        let mut inclusive = own;
        self.link(calls.clone());
        for (call, link) in module.all_calls()[calls.clone()].iter().zip(&self.links[calls]) {
            let callee = self.result.computations[call.computation.0 as usize];
            let times = i128::from(link.times);
            inclusive.add(&callee, times, if link.is_fused { 0 } else { times });
        }
        self.result.computations[id.0 as usize] = inclusive;
    }

    /// The user's cost for `row`.
    fn stated(&self, row: u32) -> Option<&CustomCallCost> {
        let at = self.overrides.binary_search_by_key(&row, |entry| entry.0).ok()?;
        self.overrides.get(at).map(|entry| &entry.1)
    }

    /// Bytes read and written that the user gives for `row`; if only one is given, the other is 0.
    fn stated_bytes(&self, row: u32) -> Option<(i64, i64)> {
        let stated = self.stated(row)?;
        let is_stated = stated.bytes_read.is_some() || stated.bytes_written.is_some();
        is_stated.then(|| (stated.bytes_read.unwrap_or(0), stated.bytes_written.unwrap_or(0)))
    }

    /// FLOPs and transcendentals of an instruction with its own rule.
    fn special_row(
        &mut self,
        row: Row,
        opcode: Opcode,
        fact: Option<&Fact>,
    ) -> (i64, i64, Provenance) {
        let work = self.special(row, opcode, fact);
        let (Some(flops), Some(transcendentals)) =
            (narrow(work.flops), narrow(work.transcendentals))
        else {
            return (0, 0, Provenance::Unknown);
        };
        let is_bound = self.rules.shape(row).is_bound || self.rules.operand(row, 0).is_bound;
        let provenance = match work.provenance {
            Provenance::Exact if is_bound => Provenance::Modelled,
            provenance => provenance,
        };
        (flops, transcendentals, provenance)
    }

    /// Work of an instruction with its own rule, including the computations that it applies to
    /// elements.
    fn special(&mut self, row: Row, opcode: Opcode, fact: Option<&Fact>) -> Work {
        if opcode == Opcode::CustomCall {
            let call = match (self.stated(row.0), fact) {
                (Some(stated), _) => stated,
                (None, Some(Fact::CustomCall(call))) => call,
                _ => return Work { provenance: Provenance::Unknown, ..Work::default() },
            };
            let provenance =
                if call.flops.is_none() { Provenance::Unknown } else { call.provenance };
            return Work {
                flops: i128::from(call.flops.unwrap_or(0)),
                transcendentals: i128::from(call.transcendentals.unwrap_or(0)),
                provenance,
            };
        }
        let is_reduction = matches!(opcode, Opcode::AllReduce | Opcode::ReduceScatter);
        let body = |module: &Module| self.facts.async_body(module.computation_of(row));
        if is_reduction
            && matches!(body(self.rules.module), AsyncBody::Start | AsyncBody::Overlapped)
        {
            // The fusion that waits for the collective also contains the collective, and counts it.
            return Work::default();
        }
        let mut work = self.rules.work(row, opcode, fact);
        let Some(applications) = self.rules.applications(row, opcode, fact) else {
            return Work { provenance: Provenance::Unknown, ..work };
        };
        for (computation, count) in applications.into_iter().flatten() {
            let applied = &self.result.computations[computation.0 as usize];
            if self.has_unknown[computation.0 as usize] {
                work.provenance = Provenance::Unknown;
            }
            work.flops = work.flops.saturating_add(applied.flops.saturating_mul(count));
            work.transcendentals =
                work.transcendentals.saturating_add(applied.transcendentals.saturating_mul(count));
        }
        work
    }

    /// Fills in `links` for these calls of one computation; its callees are already counted.
    fn link(&mut self, calls: std::ops::Range<usize>) {
        let module = self.rules.module;
        let mut at = calls.start;
        while at < calls.end {
            let call = module.all_calls()[at];
            let same = module.all_calls()[at..calls.end].iter();
            let end = at + same.take_while(|other| other.row == call.row).count();
            match module.opcode(call.row) {
                Opcode::Fusion => self.links[at..end].fill(CallTimes::FUSED),
                Opcode::Call | Opcode::AsyncStart => self.links[at..end].fill(CallTimes::ONCE),
                Opcode::While => self.link_loop(at..end),
                Opcode::Conditional => self.link_branches(at..end),
                _ => {}
            }
            at = end;
        }
    }

    fn link_loop(&mut self, calls: std::ops::Range<usize>) {
        let module = self.rules.module;
        for at in calls {
            let call = module.all_calls()[at];
            let count = match self.facts.get(call.row.0) {
                Some(Fact::TripCount(trips)) => trips.count,
                _ => None,
            };
            let times = match (call.role, count) {
                (CallRole::Body, Some(count)) => count,
                // The condition also runs once to end the loop.
                (CallRole::Condition, Some(count)) => count.saturating_add(1),
                (CallRole::Body | CallRole::Condition, None) => 1,
                _ => 0,
            };
            self.links[at] = CallTimes { times, is_fused: false };
        }
    }

    /// Counts the branch with the most FLOPs; on a tie, the first.
    fn link_branches(&mut self, calls: std::ops::Range<usize>) {
        let module = self.rules.module;
        let flops = |call: &Call| self.result.computations[call.computation.0 as usize].flops;
        let branches = &module.all_calls()[calls.clone()];
        let mut counted = 0;
        for (index, call) in branches.iter().enumerate() {
            if flops(call) > flops(&branches[counted]) {
                counted = index;
            }
        }
        for (index, call) in branches.iter().enumerate() {
            let is_counted = index == counted;
            self.links[calls.start + index] =
                if is_counted { CallTimes::ONCE } else { CallTimes::APART };
            let (row, computation) = (call.row, call.computation);
            self.result.branches.push(Branch { row, index: index as u32, computation, is_counted });
        }
    }

    /// Counts executions of every computation along each call path; callees come first in `order`.
    fn executions(&mut self, order: &[ComputationId]) {
        let module = self.rules.module;
        let count = module.computations().len();
        let mut executions = vec![Some(0i64); count];
        let mut unfused = vec![Some(0i64); count];
        for start in module.starts() {
            let start = start.0 as usize;
            (executions[start], unfused[start]) = (Some(1), Some(1));
        }
        let add = |table: &mut [Option<i64>], callee: usize, caller: Option<i64>, times: u64| {
            let more = match caller {
                Some(0) => Some(0),
                _ if times == 0 => Some(0),
                _ => caller.zip(i64::try_from(times).ok()).and_then(|(n, t)| n.checked_mul(t)),
            };
            table[callee] = table[callee].zip(more).and_then(|(sum, more)| sum.checked_add(more));
        };
        for id in order.iter().rev() {
            let (caller, caller_unfused) = (executions[id.0 as usize], unfused[id.0 as usize]);
            let calls = module.calls_within(*id);
            for at in calls {
                let callee = module.all_calls()[at].computation.0 as usize;
                let CallTimes { times, is_fused } = self.links[at];
                if times > 0 {
                    add(&mut executions, callee, caller, times);
                    add(&mut unfused, callee, caller_unfused, if is_fused { 0 } else { times });
                }
            }
        }
        self.result.executions = executions;
        self.result.unfused_executions = unfused;
        self.result.branches.sort_unstable_by_key(|branch| (branch.row, branch.index));
    }
}

fn narrow(value: i128) -> Option<i64> {
    i64::try_from(value).ok()
}
