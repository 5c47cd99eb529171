//! The cost of running rows of a loop's body again.

use crate::comms::Collectives;
use crate::cost::Cost;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use hashbrown::HashMap;
use std::cell::RefCell;

/// Limit on the depth of nested loops and fusions.
const DEEPEST: u32 = 8;

/// The cost of a module, by row.
pub struct Prices<'a> {
    cost: &'a Cost,
    pub(super) seconds: Option<&'a [f64]>,
    /// By row of a collective: bytes that each device sends around rings in one execution.
    sent: HashMap<Row, u64, BuildMix>,
    /// By body of a loop: seconds of all its executions.
    bodies: RefCell<HashMap<ComputationId, f64, BuildMix>>,
}

impl<'a> Prices<'a> {
    /// The cost of a module. `seconds` are those of one execution of each row, NaN if unknown; None
    /// without a device.
    pub fn new(cost: &'a Cost, collectives: &Collectives, seconds: Option<&'a [f64]>) -> Self {
        let mut sent = HashMap::default();
        for collective in &collectives.collectives {
            let Some(bytes) = collective.ring_wire_bytes() else { continue };
            let members = collective.members.start as usize..collective.members.end as usize;
            let members = collectives.members.get(members).unwrap_or_default();
            for row in members.iter().chain([&collective.outer, &collective.row]) {
                sent.insert(*row, bytes);
            }
        }
        Self { cost, seconds, sent, bodies: RefCell::default() }
    }

    fn runs(&self, id: ComputationId) -> Option<i64> {
        self.cost.executions.get(id.0 as usize).copied().flatten()
    }

    /// FLOPs of all executions of a product; None beyond 64 bits.
    pub fn flops(&self, module: &Module, row: Row) -> Option<i64> {
        let own = self.cost.flops.get(row.0 as usize).copied().filter(|flops| *flops >= 0)?;
        own.checked_mul(self.runs(module.computation_of(row))?)
    }

    /// Bytes that each device sends around rings in all executions of a collective; None if unknown.
    pub fn wire_bytes(&self, module: &Module, row: Row) -> Option<i64> {
        let bytes = i64::try_from(*self.sent.get(&row)?).ok()?;
        bytes.checked_mul(self.runs(module.computation_of(row))?)
    }

    /// Seconds of all executions of a row, without overlap; None if unknown.
    pub fn seconds_of(&self, module: &Module, row: Row, depth: u32) -> Option<f64> {
        let seconds = self.seconds?;
        if module.opcode(row) == Opcode::While && depth < DEEPEST {
            let body = module.called(row, CallRole::Body)?;
            if let Some(known) = self.bodies.borrow().get(&body) {
                return Some(*known);
            }
            let rows = module.computation(body).rows().map(Row);
            let sum = rows.filter_map(|row| self.seconds_of(module, row, depth + 1)).sum();
            self.bodies.borrow_mut().insert(body, sum);
            return Some(sum);
        }
        let own = seconds.get(row.0 as usize).copied().filter(|own| own.is_finite())?;
        Some(own * self.runs(module.computation_of(row))? as f64)
    }
}
