//! The cost of running rows of a loop's body again, and of values in host memory.

use super::scans::Scan;
use crate::comms::Collectives;
use crate::cost::Cost;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use hashbrown::HashMap;
use std::cell::RefCell;

/// Limit on the depth of nested loops and fusions.
const DEEPEST: u32 = 8;

/// The share of its time by which a move that nothing waits for slows other work: it takes HBM
/// bandwidth, which is about fifty times that of the link to the host (`devices.toml`).
const SLOWS: f64 = 0.02;

/// The share of a layer's work that hides its moves: of 0.3 to 0.7 in steps of 0.1, the one with the least
/// median and mean error of step times from texts without checkpointing to 8 texts that offload (medians
/// 3.6 %; 4.0 to 6.9 % with others; `benches/policy_accuracy.py` prints them). XLA for TPUs starts the moves with the layer and waits for many in its
/// middle.
const HIDES: f64 = 0.5;

/// The host of a device.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Bytes per second between the device and the host, in one direction.
    pub bandwidth: f64,
    /// Bytes of host memory for each device; None if unknown.
    pub bytes: Option<i64>,
}

/// The cost of a module, by row.
pub struct Prices<'a> {
    cost: &'a Cost,
    pub(super) seconds: Option<&'a [f64]>,
    /// By row of a collective: the row that stands for it, and the bytes that each device sends around
    /// rings in one execution; None if unknown.
    sent: HashMap<Row, (Row, Option<i64>), BuildMix>,
    /// By body of a loop: seconds of all its executions.
    bodies: RefCell<HashMap<ComputationId, f64, BuildMix>>,
    /// None if values cannot be moved to the host, or the time of that is unknown.
    pub(super) host: Option<Host>,
    /// By computation: seconds of one run in the played schedule, what runs beside it left out.
    played: Option<&'a [f64]>,
    /// By row: the bound of its time by bytes and FLOPs.
    bounds: Option<&'a [f64]>,
    /// By row: the bound by FLOPs, and that by bytes.
    parts: Option<[&'a [f64]; 2]>,
    /// HBM bytes per second.
    pub(super) bytes_per_second: Option<f64>,
    /// By row that writes stacks: whether it goes with them.
    pub(super) only_stores: RefCell<HashMap<Row, bool, BuildMix>>,
}

impl<'a> Prices<'a> {
    /// The cost of a module. `seconds` are those of one execution of each row, NaN if unknown; None
    /// without a device.
    pub fn new(cost: &'a Cost, collectives: &Collectives, seconds: Option<&'a [f64]>) -> Self {
        let mut sent = HashMap::default();
        for collective in &collectives.collectives {
            let bytes = collective.ring_wire_bytes().and_then(|own| i64::try_from(own).ok());
            let members = collective.members.start as usize..collective.members.end as usize;
            let members = collectives.members.get(members).unwrap_or_default();
            for row in members.iter().chain([&collective.outer, &collective.row]) {
                sent.insert(*row, (collective.row, bytes));
            }
        }
        Self {
            cost,
            seconds,
            sent,
            bodies: RefCell::default(),
            host: None,
            played: None,
            bounds: None,
            parts: None,
            bytes_per_second: None,
            only_stores: RefCell::default(),
        }
    }

    /// With the HBM of the device: the bound of each row's time by bytes and FLOPs, its `parts` by FLOPs and
    /// by bytes alone, and bytes per second.
    pub fn with_memory(
        mut self,
        bounds: &'a [f64],
        parts: [&'a [f64]; 2],
        rate: Option<f64>,
    ) -> Self {
        self.bounds = Some(bounds);
        self.parts = Some(parts);
        self.bytes_per_second = rate.filter(|rate| *rate > 0.0);
        self
    }

    /// With the played schedule: by computation, seconds of one run.
    pub fn with_schedule(mut self, played: &'a [f64]) -> Self {
        self.played = Some(played);
        self
    }

    /// The bound of the time of all executions of a row by its bytes and FLOPs; None if unknown.
    fn bound_of(&self, module: &Module, row: Row) -> Option<f64> {
        let own = self.bounds?.get(row.0 as usize).copied().filter(|own| *own > 0.0)?;
        Some(own * self.runs(module.computation_of(row))? as f64)
    }

    /// The same if the row moved fewer bytes by `less`, in all its executions.
    pub(super) fn bound_without(&self, module: &Module, row: Row, less: f64) -> Option<f64> {
        let all = self.bound_of(module, row)?;
        let runs = self.runs(module.computation_of(row))? as f64;
        let [flops, bytes] = self.parts?.map(|part| part.get(row.0 as usize).copied());
        let moved = bytes? * runs - less / self.bytes_per_second?;
        Some(moved.max(flops? * runs).clamp(0.0, all))
    }

    /// With a host that can keep values. Without seconds of rows it is left out, because the cost of
    /// moving a value cannot be compared with that of computing it.
    pub fn with_host(mut self, host: Option<Host>) -> Self {
        self.host = host.filter(|host| self.seconds.is_some() && host.bandwidth > 0.0);
        self
    }

    /// Whether the host's memory holds so many bytes of the device.
    pub(super) fn holds(&self, bytes: i64) -> bool {
        self.host.and_then(|host| host.bytes).is_none_or(|most| bytes <= most)
    }

    /// Seconds in which `bytes` of each iteration of a scan move to the host and back in a step, and
    /// the seconds by which they lengthen the step. The moves of a layer run while the forward or
    /// the backward body of one layer runs, and XLA for TPUs waits for them before the layer ends, so
    /// that only a part of it hides them. `more` are the seconds by which the policy makes all
    /// iterations of the bodies longer.
    pub(super) fn moves(
        &self,
        module: &Module,
        scan: &Scan,
        bytes: i64,
        more: Option<[f64; 2]>,
    ) -> Option<(f64, f64)> {
        if bytes == 0 {
            return Some((0.0, 0.0));
        }
        let runs = self.runs(scan.body_id)?;
        let seconds = bytes as f64 * runs as f64 * scan.share() / self.host?.bandwidth;
        let mut waiting = 0.0;
        for (body, more) in [scan.body_id, scan.back_id].into_iter().zip(more?) {
            let work = (self.body_seconds(module, body, 0) * scan.share() + more).max(0.0);
            waiting += (seconds - HIDES * work).max(SLOWS * seconds);
        }
        Some((2.0 * seconds, waiting))
    }

    /// Seconds of all executions of a loop's body: as they are played, or without a schedule the sum of
    /// its rows of known time.
    fn body_seconds(&self, module: &Module, body: ComputationId, depth: u32) -> f64 {
        let played = self.played.and_then(|played| played.get(body.0 as usize)).copied();
        if let Some(all) = played.zip(self.runs(body)).map(|(own, runs)| own * runs as f64) {
            return all;
        }
        if let Some(known) = self.bodies.borrow().get(&body) {
            return *known;
        }
        let rows = module.computation(body).rows().map(Row);
        let sum = rows.filter_map(|row| self.seconds_of(module, row, depth)).sum();
        self.bodies.borrow_mut().insert(body, sum);
        sum
    }

    pub(super) fn runs(&self, id: ComputationId) -> Option<i64> {
        self.cost.executions.get(id.0 as usize).copied().flatten()
    }

    /// FLOPs of all executions of a product; None beyond 64 bits.
    pub fn flops(&self, module: &Module, row: Row) -> Option<i64> {
        let own = self.cost.flops.get(row.0 as usize).copied().filter(|flops| *flops >= 0)?;
        own.checked_mul(self.runs(module.computation_of(row))?)
    }

    /// The row that stands for the collective to which a row belongs: its first one.
    pub fn collective_of(&self, row: Row) -> Row {
        self.sent.get(&row).map_or(row, |own| own.0)
    }

    /// Whether a row belongs to a collective.
    pub fn sends(&self, row: Row) -> bool {
        self.sent.contains_key(&row)
    }

    /// Bytes that each device sends around rings in all executions of a collective; None if unknown.
    pub fn wire_bytes(&self, module: &Module, row: Row) -> Option<i64> {
        let bytes = self.sent.get(&row)?.1?;
        bytes.checked_mul(self.runs(module.computation_of(row))?)
    }

    /// Seconds of all executions of a row, without overlap; None if unknown.
    pub fn seconds_of(&self, module: &Module, row: Row, depth: u32) -> Option<f64> {
        let seconds = self.seconds?;
        if module.opcode(row) == Opcode::While && depth < DEEPEST {
            let body = module.called(row, CallRole::Body)?;
            return Some(self.body_seconds(module, body, depth + 1));
        }
        let own = seconds.get(row.0 as usize).copied().filter(|own| own.is_finite())?;
        Some(own * self.runs(module.computation_of(row))? as f64)
    }
}
