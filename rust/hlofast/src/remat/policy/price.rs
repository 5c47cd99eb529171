//! The cost of running rows of a loop's body again.

use crate::comms::Collectives;
use crate::cost::Cost;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};

/// Limit on the depth of nested loops and fusions.
const DEEPEST: u32 = 8;

/// The cost of a module, by row.
pub struct Prices<'a> {
    /// FLOPs and executions.
    pub cost: &'a Cost,
    /// The collectives.
    pub collectives: &'a Collectives,
    /// Seconds of one execution of each row; NaN if unknown. None without a device.
    pub seconds: Option<&'a [f64]>,
}

impl Prices<'_> {
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
        let all = &self.collectives.collectives;
        let collective =
            all.iter().find(|own| own.row == row || own.outer == row).or_else(|| {
                all.iter().find(|own| {
                    let members = own.members.start as usize..own.members.end as usize;
                    self.collectives.members.get(members).is_some_and(|rows| rows.contains(&row))
                })
            })?;
        let bytes = i64::try_from(collective.ring_wire_bytes()?).ok()?;
        bytes.checked_mul(self.runs(module.computation_of(row))?)
    }

    /// Seconds of all executions of a row, without overlap; None if unknown.
    pub fn seconds_of(&self, module: &Module, row: Row, depth: u32) -> Option<f64> {
        let seconds = self.seconds?;
        if module.opcode(row) == Opcode::While && depth < DEEPEST {
            let body = module.called(row, CallRole::Body)?;
            let rows = module.computation(body).rows().map(Row);
            let known = rows.filter_map(|row| self.seconds_of(module, row, depth + 1));
            return Some(known.sum());
        }
        let own = seconds.get(row.0 as usize).copied().filter(|own| own.is_finite())?;
        Some(own * self.runs(module.computation_of(row))? as f64)
    }
}
