//! Rows that meet conditions, found in one pass over the columns.

use crate::ir::{ComputationId, Flags, Module, Opcode, Row, ShapeId};
use std::ops::Range;

/// Conditions on rows. All must hold; None imposes no condition.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Opcode names, as in the graph or as in the text.
    pub opcodes: Option<Vec<Box<[u8]>>>,
    /// Only rows of these computations.
    pub computations: Option<Vec<ComputationId>>,
    /// Which entries of `MetadataColumns::op_names` are wanted.
    pub op_names: Option<Vec<bool>>,
    /// Which source files are wanted, by the numbers that `place` gives.
    pub source_files: Option<Vec<bool>>,
    /// Source lines.
    pub source_lines: Option<Range<i32>>,
    /// Which shapes are wanted, by id.
    pub shapes: Option<Vec<bool>>,
    /// At least this many unpadded bytes; results of unknown size are left out.
    pub min_bytes: Option<i64>,
    /// At most this many unpadded bytes.
    pub max_bytes: Option<i64>,
    /// A part of the name.
    pub name: Option<Box<[u8]>>,
    /// Whether the row is a root.
    pub is_root: Option<bool>,
    /// Whether the text only implies the row.
    pub is_implicit: Option<bool>,
}

impl Module {
    /// The rows that meet `selection`, ascending. `place` gives source file and line of a row.
    pub fn rows_where(&self, selection: &Selection, place: &dyn Fn(Row) -> (i32, i32)) -> Vec<u32> {
        let mut rows: Vec<u32> = match &selection.computations {
            None => (0..self.row_count() as u32).collect(),
            Some(ids) => {
                let mut ids = ids.clone();
                ids.sort_unstable();
                ids.dedup();
                ids.iter().flat_map(|id| self.computation(*id).rows()).collect()
            }
        };
        if let Some(names) = &selection.opcodes {
            self.keep_opcodes(&mut rows, names);
        }
        let flag = |rows: &mut Vec<u32>, bit: u8, wanted: Option<bool>| {
            if let Some(wanted) = wanted {
                rows.retain(|row| (self.flags(Row(*row)) & bit != 0) == wanted);
            }
        };
        flag(&mut rows, Flags::ROOT, selection.is_root);
        flag(&mut rows, Flags::IMPLICIT, selection.is_implicit);
        if let Some(wanted) = &selection.shapes {
            rows.retain(|row| is_wanted(wanted, self.shape(Row(*row)).0 as usize));
        }
        if selection.min_bytes.is_some() || selection.max_bytes.is_some() {
            let bytes = self.shape_bytes_column();
            let range =
                selection.min_bytes.unwrap_or(0).max(0)..=selection.max_bytes.unwrap_or(i64::MAX);
            rows.retain(|row| bytes.get(*row as usize).is_some_and(|size| range.contains(size)));
        }
        if let Some(wanted) = &selection.op_names {
            keep_ids(&mut rows, &self.metadata_columns().op_name, wanted);
        }
        if let Some(wanted) = &selection.source_files {
            let is_known = |file: i32| usize::try_from(file).is_ok_and(|id| is_wanted(wanted, id));
            rows.retain(|row| is_known(place(Row(*row)).0));
        }
        if let Some(lines) = &selection.source_lines {
            rows.retain(|row| lines.contains(&place(Row(*row)).1));
        }
        if let Some(part) = &selection.name {
            let finder = memchr::memmem::Finder::new(part);
            rows.retain(|row| finder.find(self.instruction_name(Row(*row))).is_some());
        }
        rows
    }

    /// Known opcodes are compared by code; the text is read only where it may differ.
    fn keep_opcodes(&self, rows: &mut Vec<u32>, names: &[Box<[u8]>]) {
        let mut codes = [false; 256];
        for opcode in names.iter().filter_map(|name| Opcode::from_bytes(name)) {
            codes[opcode as usize] = true;
        }
        codes[Opcode::Unknown as usize] = false;
        rows.retain(|row| {
            let row = Row(*row);
            let opcode = self.opcode(row);
            codes[opcode as usize]
                || ((opcode == Opcode::Unknown || self.flags(row) & Flags::SUGAR != 0)
                    && names.iter().any(|name| &name[..] == self.opcode_text(row)))
        });
    }

    /// For each shape, whether `test` holds.
    pub fn shapes_where(&self, mut test: impl FnMut(ShapeId) -> bool) -> Vec<bool> {
        self.shapes.ids().map(&mut test).collect()
    }
}

fn is_wanted(wanted: &[bool], index: usize) -> bool {
    wanted.get(index).copied().unwrap_or(false)
}

fn keep_ids(rows: &mut Vec<u32>, column: &[i32], wanted: &[bool]) {
    rows.retain(|row| {
        let id = column.get(*row as usize).and_then(|id| usize::try_from(*id).ok());
        id.is_some_and(|id| is_wanted(wanted, id))
    });
}
