//! What makes two rows of a computation equal.

use super::Builder;
use crate::ir::{CallRole, Opcode, Row, ShapeId};
use xxhash_rust::xxh3::xxh3_128;

/// Attributes in which clones of a row differ, and references to computations.
pub const UNLIKE: [&[u8]; 8] = [
    b"metadata",
    b"frontend_attributes",
    b"sharding",
    b"channel_id",
    b"to_apply",
    b"calls",
    b"control-predecessors",
    b"statistics",
];
/// Limit on the bytes of a constant that distinguish two rows.
const MOST_BYTES: usize = 256;

impl Builder<'_, '_> {
    /// What a row computes: its opcode, operands, element type, sizes without their order (clones of
    /// a product differ in layout and in dimensions of one element) and what else tells rows of one
    /// opcode apart. None for rows that are unlike any other.
    pub(super) fn key_of(
        &mut self,
        row: Row,
        opcode: Opcode,
        shape: ShapeId,
        read: &[u32],
    ) -> Option<u128> {
        use Opcode::{Conditional, Infeed, Parameter, Recv, RecvDone, Rng, RngBitGenerator, While};
        let module = self.module;
        match opcode {
            Parameter | Rng | RngBitGenerator | While | Conditional | Infeed | Recv | RecvDone => {
                return None;
            }
            _ => {}
        }
        self.key.clear();
        self.key.extend_from_slice(&(opcode as u16).to_le_bytes());
        for operand in read {
            self.key.extend_from_slice(&operand.to_le_bytes());
        }
        self.key.push(0);
        if let Some(array) = module.shapes().array(shape) {
            self.key.push(array.element_type as u8);
            let mut sizes: Vec<i64> =
                array.dimensions().filter_map(|size| size.bound()).filter(|n| *n != 1).collect();
            sizes.sort_unstable();
            sizes.iter().for_each(|size| self.key.extend_from_slice(&size.to_le_bytes()));
        }
        // Clones of a product differ in how its dimensions are written, but stem from one line.
        if opcode.is_matmul() {
            let columns = module.metadata_columns();
            let at = row.0 as usize;
            for column in [&columns.op_name, &columns.source_line, &columns.frame] {
                let value = column.get(at).copied().unwrap_or(-1);
                self.key.extend_from_slice(&value.to_le_bytes());
            }
        }
        match module.opcode(row) {
            Opcode::Constant => {
                let text = module.bytes(module.opcode_and_payload(row).1);
                self.key.extend_from_slice(&text[..text.len().min(MOST_BYTES)]);
                if text.len() > MOST_BYTES {
                    self.key.extend_from_slice(&row.0.to_le_bytes());
                }
            }
            Opcode::Convolution | Opcode::Dot => {}
            Opcode::Map | Opcode::Scatter | Opcode::Sort | Opcode::ReduceWindow => {
                self.key.extend_from_slice(&row.0.to_le_bytes());
            }
            _ => {
                for attribute in module.attributes(row) {
                    let name = module.bytes(attribute.key);
                    if !UNLIKE.contains(&name) {
                        let digest = xxh3_128(module.bytes(attribute.value));
                        self.key.extend_from_slice(name);
                        self.key.extend_from_slice(&digest.to_le_bytes());
                    }
                }
            }
        }
        if module.opcode(row) == Opcode::Reduce
            && let Some(applied) = module.called(row, CallRole::ToApply)
        {
            let root = Row(module.computation(applied).root);
            self.key.extend_from_slice(&(module.opcode(root) as u16).to_le_bytes());
        }
        Some(xxh3_128(&self.key))
    }
}
