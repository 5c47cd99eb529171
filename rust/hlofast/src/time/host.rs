//! Asynchronous transfers between a device and its host. They take the link to the host, which is far
//! slower than HBM, in one of its two directions.

use crate::ir::{CallRole, HOST_SPACE, Module, Opcode, Row, ShapeId};

/// Directions of the link.
const TO_HOST: usize = 0;
const FROM_HOST: usize = 1;

/// The direction in which a copy or slice that `row` starts takes the link to the host, and its bytes;
/// None if both ends are on the device, or both on the host.
pub fn host_bytes(module: &Module, row: Row) -> Option<(usize, u64)> {
    let shape = |row: u32| module.shape(Row(row));
    let operands = |row: Row| module.operands(row);
    if module.opcode(row) == Opcode::CopyStart {
        let target = module.shapes().leaves(module.shape(row)).next()?;
        return between(module, shape(*operands(row).first()?), target, target);
    }
    let called = |role| module.called(row, role);
    let body = called(CallRole::Calls).or_else(|| called(CallRole::Wrapped))?;
    module.computation(body).rows().map(Row).find_map(|own| {
        let (operands, whole) = (operands(own), module.shape(own));
        match module.opcode(own) {
            Opcode::DynamicUpdateSlice => {
                let update = shape(*operands.get(1)?);
                between(module, update, whole, update)
            }
            Opcode::DynamicSlice | Opcode::Slice | Opcode::Copy => {
                between(module, shape(*operands.first()?), whole, whole)
            }
            _ => None,
        }
    })
}

fn between(module: &Module, from: ShapeId, to: ShapeId, moved: ShapeId) -> Option<(usize, u64)> {
    let is_host = |shape| {
        let array = module.shapes().array(shape)?;
        Some(array.layout.is_some_and(|layout| layout.memory_space == HOST_SPACE))
    };
    let lane = match (is_host(from)?, is_host(to)?) {
        (false, true) => TO_HOST,
        (true, false) => FROM_HOST,
        _ => return None,
    };
    Some((lane, module.shapes().array(moved)?.logical_bytes()?))
}
