//! Finds the row that computes a value, looking through instructions that only pass it on.

use super::markers::is_marker;
use crate::ir::{Module, Opcode, Row};

/// Limits on the rows, nested tuples and nested calls that are followed.
const MOST_STEPS: usize = 4096;
const DEEPEST_PATH: usize = 64;
const DEEPEST_CALLS: usize = 16;

/// The row of the same computation that computes the value of `row`. Looks through
/// get-tuple-elements of tuples, optimization barriers, pipeline markers, calls that return an
/// argument and, with `through_bitcasts`, bitcasts. Returns `row` if `row` computes its value, and
/// the last get-tuple-element if a loop, a fusion or another instruction computes the tuple.
pub fn source_of(module: &Module, row: Row, through_bitcasts: bool) -> Row {
    let mut source = row;
    let mut at = row;
    // The tuple indices into `at`, outermost last, and the calls around it.
    let mut path: Vec<usize> = Vec::new();
    let mut calls: Vec<Row> = Vec::new();
    for _ in 0..MOST_STEPS {
        if path.is_empty() && calls.is_empty() {
            source = at;
        }
        let operand = |index: usize| module.operands(at).get(index).map(|row| Row(*row));
        let next = match module.opcode(at) {
            Opcode::GetTupleElement if path.len() < DEEPEST_PATH => {
                module.tuple_index(at).and_then(|index| {
                    path.push(index);
                    operand(0)
                })
            }
            Opcode::Tuple => path.pop().and_then(operand),
            Opcode::OptBarrier => operand(0),
            Opcode::Bitcast if through_bitcasts => operand(0),
            Opcode::CustomCall if is_marker(module, at) => operand(0),
            Opcode::Call if calls.len() < DEEPEST_CALLS => module.calls(at).first().map(|call| {
                calls.push(at);
                Row(module.computation(call.computation).root)
            }),
            Opcode::Parameter => calls.pop().and_then(|call| {
                let number = usize::try_from(module.parameter_number(at)?).ok()?;
                module.operands(call).get(number).map(|row| Row(*row))
            }),
            _ => None,
        };
        match next {
            Some(next) => at = next,
            None => break,
        }
    }
    source
}
