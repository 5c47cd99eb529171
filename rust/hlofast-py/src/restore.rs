//! Restores views of a pickled module from their numbers.

use crate::attributes::Attributes;
use crate::computation::Computation;
use crate::held::Held;
use crate::instruction::Instruction;
use crate::metadata::Metadata;
use crate::module::Module;
use crate::sequence::{ComputationSequence, Ids, InstructionSequence};
use crate::shape::Shape;
use hlofast::ir::Row;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Checks that `number` is below `count`.
fn checked(number: u32, count: usize, what: &str) -> PyResult<u32> {
    match (number as usize) < count {
        true => Ok(number),
        false => Err(PyValueError::new_err(format!("the module has {count} {what}, not {number}"))),
    }
}

fn checked_row(module: &Bound<'_, Module>, row: u32) -> PyResult<(Arc<Held>, Row)> {
    let held = Arc::clone(&module.get().held);
    let row = checked(row, held.core.row_count(), "instructions")?;
    Ok((held, Row(row)))
}

/// Checks that all `numbers` are below `count`.
fn checked_all(numbers: Vec<u32>, count: usize, what: &str) -> PyResult<Ids> {
    if let Some(most) = numbers.iter().max() {
        checked(*most, count, what)?;
    }
    Ok(Ids::of(numbers))
}

/// Restores a pickled instruction.
#[pyfunction]
pub fn _restore_instruction(module: &Bound<'_, Module>, row: u32) -> PyResult<Instruction> {
    let (held, Row(row)) = checked_row(module, row)?;
    Ok(Instruction { held, row })
}

/// Restores pickled attributes; the header's attributes have no row.
#[pyfunction]
pub fn _restore_attributes(module: &Bound<'_, Module>, row: Option<u32>) -> PyResult<Attributes> {
    let held = Arc::clone(&module.get().held);
    let row = row.map(|row| checked(row, held.core.row_count(), "instructions")).transpose()?;
    Ok(Attributes { held, row })
}

/// Restores pickled metadata.
#[pyfunction]
pub fn _restore_metadata(module: &Bound<'_, Module>, row: u32) -> PyResult<Metadata> {
    let (held, row) = checked_row(module, row)?;
    let metadata = Metadata::of_row(&held, row)?;
    metadata.ok_or_else(|| PyValueError::new_err(format!("instruction {} has no metadata", row.0)))
}

/// Restores a pickled sequence of instructions.
#[pyfunction]
pub fn _restore_instructions(
    module: &Bound<'_, Module>,
    rows: Vec<u32>,
) -> PyResult<InstructionSequence> {
    let held = Arc::clone(&module.get().held);
    let ids = checked_all(rows, held.core.row_count(), "instructions")?;
    Ok(InstructionSequence { held, ids })
}

/// Restores a pickled sequence of computations.
#[pyfunction]
pub fn _restore_computations(
    module: &Bound<'_, Module>,
    numbers: Vec<u32>,
) -> PyResult<ComputationSequence> {
    let held = Arc::clone(&module.get().held);
    let ids = checked_all(numbers, held.core.computations().len(), "computations")?;
    Ok(ComputationSequence { held, ids })
}

/// Restores a pickled computation.
#[pyfunction]
pub fn _restore_computation(module: &Bound<'_, Module>, number: u32) -> PyResult<Computation> {
    let held = Arc::clone(&module.get().held);
    let number = checked(number, held.core.computations().len(), "computations")?;
    Ok(Computation { held, id: hlofast::ir::ComputationId(number) })
}

/// Restores a pickled shape.
#[pyfunction]
pub fn _restore_shape(module: &Bound<'_, Module>, number: u32) -> PyResult<Shape> {
    let held = Arc::clone(&module.get().held);
    let number = checked(number, held.core.shapes().len(), "shapes")?;
    Ok(Shape { held, id: hlofast::ir::ShapeId(number) })
}
