//! Arrays that are copied in parts and put together again, as the compiler prefetches large arrays,
//! perhaps as bytes.

use super::spread::Spread;
use crate::ir::{Opcode, Row};
use std::collections::HashMap;

impl Spread<'_> {
    /// Finds the slices that together are their whole source.
    pub(super) fn find_tiles(&mut self) {
        let mut tiles = HashMap::new();
        for row in self.module.rows() {
            if let Some((source, slices)) = self.tiling(row) {
                tiles.extend(slices.into_iter().map(|slice| (slice, source)));
            }
        }
        self.tiles = tiles;
    }

    /// The source whose slices `row` puts together to the whole.
    pub(super) fn tiled_by(&self, row: Row) -> Option<Row> {
        self.tiling(row).map(|(source, _)| source)
    }

    fn tiling(&self, row: Row) -> Option<(Row, Vec<Row>)> {
        let module = self.module;
        let is_join = match module.opcode(row) {
            Opcode::Concatenate => true,
            Opcode::CustomCall => {
                module.attribute_bytes(row, "custom_call_target") == Some(b"\"ConcatBitcast\"")
            }
            _ => false,
        };
        let operands = module.operands(row);
        if !is_join || operands.len() < 2 {
            return None;
        }
        let found = operands.iter().map(|part| self.slice_of(Row(*part)));
        let found = found.collect::<Option<Vec<(Row, Row)>>>()?;
        let source = found.first()?.0;
        if found.iter().any(|(own, _)| *own != source) {
            return None;
        }
        let slices: Vec<Row> = found.iter().map(|(_, slice)| *slice).collect();
        let result = self.places.array(row)?;
        let is_whole = |own: &Row| {
            let own = self.places.array(*own);
            own.is_some_and(|own| self.places.sizes(own) == self.places.sizes(result))
        };
        // Large arrays are copied as bytes.
        let of_bytes = || {
            let is_view = module.opcode(source) == Opcode::Bitcast;
            module.operands(source).first().filter(|_| is_view).map(|own| Row(*own))
        };
        let whole = Some(source).filter(is_whole).or_else(|| of_bytes().filter(is_whole))?;
        Some((whole, slices))
    }

    /// The source of a slice, perhaps an asynchronous one, and the slice.
    fn slice_of(&self, row: Row) -> Option<(Row, Row)> {
        let module = self.module;
        match module.opcode(row) {
            Opcode::Slice => Some((Row(*module.operands(row).first()?), row)),
            Opcode::AsyncDone => {
                let start = self.start_of(row)?;
                let call = module.calls(start).first()?;
                let slice = Row(module.computation(call.computation).root);
                if module.opcode(slice) != Opcode::Slice {
                    return None;
                }
                let number = module.parameter_number(Row(*module.operands(slice).first()?))?;
                let operands = module.operands(start);
                Some((Row(*operands.get(usize::try_from(number).ok()?)?), slice))
            }
            _ => None,
        }
    }
}
