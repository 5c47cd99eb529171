//! All-gathers that a TPU compiler overlaps with other work: one fusion starts the gather, further
//! fusions run while it is in flight, and a last fusion ends it. Each of these fusions
//! has the gather in its body. A copy of such a gather is a plain all-gather.

use super::copyable::target;
use crate::ir::{CallRole, Module, Opcode, Row};
use crate::remat::handed_on::member;

/// A gather and the fusion that ends it.
#[derive(Clone, Copy, Debug)]
pub(in crate::remat) struct AsyncGather {
    /// The gather, in the fusion's body.
    pub gather: Row,
    /// The parameter that the gather reads in the fusion's body.
    pub parameter: Row,
    /// The operand of the fusion for that parameter.
    pub operand: Row,
}

/// The gather that fusion `row` ends, if the fusion does nothing else.
pub(in crate::remat) fn async_gather(module: &Module, row: Row) -> Option<AsyncGather> {
    if module.opcode(row) != Opcode::Fusion {
        return None;
    }
    let body = module.computation(module.called(row, CallRole::Calls)?);
    if target(module, Row(body.root)) != Some(b"AsyncCollectiveDone") {
        return None;
    }
    let mut gathers = body
        .rows()
        .map(Row)
        .filter(|row| !matches!(module.opcode(*row), Opcode::Parameter | Opcode::CustomCall));
    let (gather, None) = (gathers.next()?, gathers.next()) else { return None };
    let [read] = module.operands(gather) else { return None };
    let parameter = Row(*read);
    let number = usize::try_from(module.parameter_number(parameter)?).ok()?;
    let operand = Row(*module.operands(row).get(number)?);
    let array = |row| module.shapes().array(module.shape(row));
    let is_result = array(gather)?.is_compatible(&array(row)?)
        && array(parameter)?.is_compatible(&array(operand)?);
    let is_gather = module.opcode(gather) == Opcode::AllGather && is_result;
    is_gather.then_some(AsyncGather { gather, parameter, operand })
}

/// The operands of a copy of `row`. For an operand that is copied too, this is the original, even
/// if `row` reads the operand behind a barrier.
pub(in crate::remat) fn reads(
    module: &Module,
    row: Row,
    is_copied: impl Fn(Row) -> bool,
) -> Vec<Row> {
    match async_gather(module, row) {
        Some(gather) => vec![member(module, gather.operand, is_copied)],
        None => {
            let operands = module.operands(row).iter();
            operands.map(|operand| member(module, Row(*operand), &is_copied)).collect()
        }
    }
}
