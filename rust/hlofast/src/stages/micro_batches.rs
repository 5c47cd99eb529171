//! The number of micro-batches in a step: the divisor of accumulated gradients in the update.

use super::constant_of;
use super::elements::{Elements, Source};
use crate::flow::{Phase, source_of};
use crate::ir::{Module, Opcode, Row};

/// A value that the update receives and divides by a literal.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// The division.
    pub row: Row,
    /// The constant.
    pub constant: Row,
    /// The value of the constant.
    pub divisor: f64,
}

/// The number of micro-batches in a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatches {
    /// The whole number by which gradients are divided; None if there is none or several.
    pub count: Option<u64>,
    /// The divisions by this number.
    pub divisions: Vec<Division>,
}

/// Alpa's update section divides each accumulated gradient, and the loss, by the number of
/// micro-batches.
pub(super) fn micro_batches(elements: &Elements<'_>) -> MicroBatches {
    let module = elements.module;
    let mut divisions = Vec::new();
    for row in elements.rows().filter(|row| module.opcode(*row) == Opcode::Divide) {
        let [value, by, ..] = *module.operands(row) else { continue };
        if elements.section(row).is_none_or(|id| !is_update(elements, id))
            || !is_accumulated(elements, Row(value))
        {
            continue;
        }
        let constant = constant_of(module, Row(by));
        let Some((constant, divisor)) = constant.and_then(|at| Some((at, number(module, at)?)))
        else {
            continue;
        };
        divisions.push(Division { row, constant, divisor });
    }
    let first = divisions.first().map(|division| division.divisor);
    let is_whole = |count: &f64| (1.0..9.0e15).contains(count) && count.fract() == 0.0;
    let is_one = divisions.iter().all(|division| Some(division.divisor) == first);
    let count = first.filter(|first| is_one && is_whole(first)).map(|count| count as u64);
    MicroBatches { count, divisions }
}

fn is_update(elements: &Elements<'_>, id: u32) -> bool {
    let section = elements.sections.sections.get(id as usize);
    section.is_some_and(|section| section.phase == Phase::Optimizer)
}

/// Whether `value` comes from an update section's first marker and is not state.
fn is_accumulated(elements: &Elements<'_>, value: Row) -> bool {
    let module = elements.module;
    let mut at = value;
    while matches!(module.opcode(at), Opcode::Convert | Opcode::Bitcast | Opcode::Reshape) {
        let Some(operand) = module.operands(at).first() else { return false };
        if *operand >= at.0 {
            return false;
        }
        at = Row(*operand);
    }
    let sections = elements.sections.sections.iter();
    let mut starts =
        sections.filter(|section| section.phase == Phase::Optimizer).map(|section| section.start);
    let is_element = starts.any(|start| elements.index_in(at, start).is_some());
    is_element && elements.source(source_of(module, at, false)) != Source::State
}

fn number(module: &Module, constant: Row) -> Option<f64> {
    let (_, payload) = module.opcode_and_payload(constant);
    let text = std::str::from_utf8(module.bytes(payload)).ok()?.trim();
    let text = text.strip_prefix('(').unwrap_or(text);
    text.strip_suffix(')').unwrap_or(text).trim().parse().ok()
}
