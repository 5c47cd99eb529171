//! Stacks that are written and read inside fusions, as in compiled programs.

use super::RewriteError;
use crate::ir::{CallRole, ComputationId, Flags, Module, Opcode, Row};

/// Writes slices into a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    /// The dynamic-update-slice, or the fusion that does nothing else.
    pub row: Row,
    /// The operand position of the stack, and the row of the stack.
    pub operand: usize,
    pub stack: Row,
    /// The index of the slice, in the computation of `row`.
    pub index: Row,
    /// The index for all other dimensions, which slices span in full.
    pub rest: Row,
    /// The stacked value, in the computation of `row`.
    pub value: Row,
    /// The slice, in the computation of the dynamic-update-slice.
    pub slice: Row,
    /// In a fusion: the parameter for `value`.
    pub parameter: Option<Row>,
}

/// Reads slices of a stack.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    /// The dynamic-slice, or a fusion around dynamic-slices.
    pub row: Row,
    /// The index of the slice, in the computation of `row`.
    pub index: Row,
    /// The index for all other dimensions, which slices span in full.
    pub rest: Row,
    /// A dynamic-slice whose shape the slices have.
    pub slice: Row,
    /// Inside a fusion.
    pub inside: Option<Inside>,
}

/// Where a fusion takes slices.
#[derive(Clone, Debug)]
pub(super) struct Inside {
    /// The operand position of the stack at the fusion.
    pub operand: usize,
    /// The parameters that hold the stack, in the fusion and in nested fusions.
    pub parameters: Vec<Row>,
    /// The dynamic-slices, each with the parameter it reads.
    pub slices: Vec<(Row, Row)>,
}

/// How deep fusions inside fusions are examined.
const DEEPEST: usize = 4;

/// Whether `row` has the size of one whole slice of `stack` along the first dimension.
pub(super) fn is_slice(module: &Module, stack: Row, row: Row) -> bool {
    let array = |row| module.shapes().array(module.shape(row));
    match (array(stack), array(row)) {
        (Some(stack), Some(slice)) => {
            slice.rank() == stack.rank()
                && slice.dimension(0).and_then(|size| size.bound()) == Some(1)
                && slice.dimensions().skip(1).eq(stack.dimensions().skip(1))
        }
        _ => false,
    }
}

/// The fusion with body `id`, if it is the only caller.
fn only_fusion(module: &Module, id: ComputationId) -> Option<Row> {
    match module.callers(id) {
        [caller] if module.opcode(Row(*caller)) == Opcode::Fusion => Some(Row(*caller)),
        _ => None,
    }
}

/// The operand of fusion `row` for parameter `parameter` of its body.
fn outside(module: &Module, row: Row, parameter: Row) -> Option<(usize, Row)> {
    let number = usize::try_from(module.parameter_number(parameter)?).ok()?;
    Some((number, Row(*module.operands(row).get(number)?)))
}

/// The writer for dynamic-update-slice `update`, as seen from the loop's body.
pub(super) fn writer(module: &Module, update: Row) -> Result<Writer, RewriteError> {
    let refused = |reason| Err(RewriteError::new(module, update, reason));
    if module.opcode(update) != Opcode::DynamicUpdateSlice {
        return refused("it does not write a slice into a stack");
    }
    let [stack, slice, index, others @ ..] = module.operands(update) else {
        return refused("its stack has no dimensions");
    };
    let rest = others.first().map(|rest| Row(*rest));
    let (stack, slice, index) = (Row(*stack), Row(*slice), Row(*index));
    let id = module.computation_of(update);
    let Some(row) = only_fusion(module, id) else {
        let (row, value, rest) = (update, slice, rest.unwrap_or(index));
        return Ok(Writer { row, operand: 0, stack, index, rest, value, slice, parameter: None });
    };
    let is_alone = module.flags(update) & Flags::ROOT != 0
        && module.users().get(stack.0) == [update.0]
        && module.shape(row) == module.shape(update);
    let outer = (outside(module, row, stack), outside(module, row, index));
    let (true, (Some((operand, stack)), Some((_, index)))) = (is_alone, outer) else {
        return refused("the fusion around it does more than write into the stack");
    };
    // The only parameter that the slice is computed from.
    let mut reached = Vec::new();
    let mut pending = vec![slice];
    let mut met = std::collections::HashSet::new();
    while let Some(at) = pending.pop() {
        if met.insert(at) {
            match module.opcode(at) {
                Opcode::Parameter => reached.push(at),
                Opcode::Fusion => return refused("there are fusions in the fusion around it"),
                _ => pending.extend(module.operands(at).iter().map(|operand| Row(*operand))),
            }
        }
    }
    let value = match reached.as_slice() {
        [parameter] => outside(module, row, *parameter).map(|(_, value)| (*parameter, value)),
        _ => None,
    };
    match value {
        Some((parameter, value)) => {
            let (rest, parameter) = (index, Some(parameter));
            Ok(Writer { row, operand, stack, index, rest, value, slice, parameter })
        }
        None => refused("the fusion around it computes the stacked value from several operands"),
    }
}

/// Where fusion `row` takes slices of operand `operand`. An error for any other use.
pub(super) fn fused_reader(
    module: &Module,
    row: Row,
    operand: usize,
) -> Result<Reader, RewriteError> {
    let refused =
        |at| Err(RewriteError::new(module, at, "it needs the stack in its original shape"));
    let mut inside = Inside { operand, parameters: Vec::new(), slices: Vec::new() };
    let mut index = None;
    // Fusions, outermost first, and the operand of the innermost one that is the stack.
    let mut pending = vec![(vec![row], operand)];
    while let Some((fusions, operand)) = pending.pop() {
        let Some(fusion) = fusions.last().copied() else { continue };
        let body = module.called(fusion, CallRole::Calls);
        let Some(body) = body.filter(|id| only_fusion(module, *id) == Some(fusion)) else {
            return refused(fusion);
        };
        let parameters = module.parameters(body);
        let Some(parameter) = parameters.get(operand).copied() else { return refused(fusion) };
        if module.parameter_number(parameter) != u64::try_from(operand).ok()
            || module.flags(parameter) & Flags::ROOT != 0
        {
            return refused(fusion);
        }
        inside.parameters.push(parameter);
        for user in module.users().get(parameter.0).iter().map(|user| Row(*user)) {
            let uses = module.operands(user).iter().enumerate();
            for (number, _) in uses.filter(|(_, read)| **read == parameter.0) {
                match module.opcode(user) {
                    Opcode::DynamicSlice if number == 0 && is_slice(module, parameter, user) => {
                        let number = module.operands(user).get(1).map(|number| Row(*number));
                        let number = number.and_then(|at| outermost(module, &fusions, at));
                        if number.is_none() || index.is_some() && index != number {
                            return refused(user);
                        }
                        index = number;
                        inside.slices.push((user, parameter));
                    }
                    Opcode::Fusion if fusions.len() < DEEPEST => {
                        pending.push(([&fusions[..], &[user]].concat(), number));
                    }
                    _ => return refused(user),
                }
            }
        }
    }
    let slice = inside.slices.first().map(|(slice, _)| *slice);
    let is_one = slice.is_some_and(|first| {
        inside.slices.iter().all(|(slice, _)| module.shape(*slice) == module.shape(first))
    });
    match (index, slice) {
        (Some(index), Some(slice)) if is_one => {
            Ok(Reader { row, index, rest: index, slice, inside: Some(inside) })
        }
        _ => refused(row),
    }
}

/// The row outside all `fusions` that corresponds to `row` in the innermost fusion.
fn outermost(module: &Module, fusions: &[Row], mut row: Row) -> Option<Row> {
    for fusion in fusions.iter().rev() {
        row = outside(module, *fusion, row)?.1;
    }
    Some(row)
}
