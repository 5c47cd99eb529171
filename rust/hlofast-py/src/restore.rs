//! Views of a module made again from their numbers: what unpickling them calls.

use crate::computation::Computation;
use crate::instruction::Instruction;
use crate::module::Module;
use crate::shape::Shape;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Item `number` of `count`, for views made by number.
fn checked(number: u32, count: usize, what: &str) -> PyResult<u32> {
    match (number as usize) < count {
        true => Ok(number),
        false => Err(PyValueError::new_err(format!("the module has {count} {what}, not {number}"))),
    }
}

/// What unpickling an instruction calls.
#[pyfunction]
pub fn _restore_instruction(module: &Bound<'_, Module>, row: u32) -> PyResult<Instruction> {
    let held = Arc::clone(&module.get().held);
    let row = checked(row, held.core.row_count(), "instructions")?;
    Ok(Instruction { held, row })
}

/// What unpickling a computation calls.
#[pyfunction]
pub fn _restore_computation(module: &Bound<'_, Module>, number: u32) -> PyResult<Computation> {
    let held = Arc::clone(&module.get().held);
    let number = checked(number, held.core.computations().len(), "computations")?;
    Ok(Computation { held, id: hlofast::ir::ComputationId(number) })
}

/// What unpickling a shape calls.
#[pyfunction]
pub fn _restore_shape(module: &Bound<'_, Module>, number: u32) -> PyResult<Shape> {
    let held = Arc::clone(&module.get().held);
    let number = checked(number, held.core.shapes().len(), "shapes")?;
    Ok(Shape { held, id: hlofast::ir::ShapeId(number) })
}
