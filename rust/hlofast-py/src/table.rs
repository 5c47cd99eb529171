//! The instruction table: rows of a module as named columns.

use crate::column::Column;
use crate::field::Field;
use crate::instruction::opcode_bytes;
use crate::module::Module;
use crate::shape::shape_text;
use crate::text_column::TextColumn;
use hlofast::ir::decode::unescape;
use hlofast::ir::{ComputationId, Opcode, Row};
use hlofast::table::common;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

type Texts = Vec<Box<[u8]>>;

/// Returns field and column of every fact in the instruction table.
#[pyfunction]
pub fn _instruction_columns<'py>(module: &Bound<'py, Module>) -> PyResult<Bound<'py, PyList>> {
    let py = module.py();
    let held = Arc::clone(&module.get().held);
    let core = &held.core;
    let column =
        |project: for<'a> fn(&'a hlofast::ir::Module) -> &'a [u32]| Column::project(core, project);
    let ids =
        |project: for<'a> fn(&'a hlofast::ir::Module) -> &'a [i32]| Column::project(core, project);
    let names: Texts = core.rows().map(|row| core.instruction_name(row).into()).collect();
    let (opcodes, opcode_texts) = opcodes(core);
    let computations: Texts = (0..core.computations().len() as u32)
        .map(|id| core.computation_name(ComputationId(id)).into())
        .collect();
    // Shapes in the text stay far below this limit; inferred shapes share parts, so their texts may
    // be of any length.
    let mut left = core.text().len().saturating_mul(8).saturating_add(1 << 20);
    let shape = |id| {
        let text = shape_text(&held, id, left.max(256));
        left = left.saturating_sub(text.len());
        text.into_bytes().into_boxed_slice()
    };
    let shapes: Texts = core.shapes().ids().map(shape).collect();
    let sources = py.detach(|| held.stage.sources());
    let metadata = core.metadata_columns();
    let op_names: Texts = metadata
        .op_names
        .iter()
        .map(|span| {
            let raw = core.bytes(*span);
            unescape(raw).map_or_else(|_| raw.into(), |name| name.into_owned().into_boxed_slice())
        })
        .collect();
    let files: Texts = sources.files(metadata).map(Into::into).collect();
    let places = || core.rows().map(|row| sources.place(metadata, row));
    let list = PyList::empty(py);
    let described = |core| Bound::new(py, Field { core });
    let text = |values: Texts, codes: Option<Column>| -> PyResult<Bound<'py, PyAny>> {
        let codes = codes.map(|codes| Py::new(py, codes)).transpose()?;
        Ok(Bound::new(py, TextColumn::new_from(values.into_iter().collect(), codes))?.into_any())
    };
    let number =
        |column: Column| -> PyResult<Bound<'py, PyAny>> { Ok(Bound::new(py, column)?.into_any()) };
    list.append((
        described(common::instruction())?,
        number(Column::of((0..core.row_count() as u32).collect()))?,
    ))?;
    list.append((described(common::name())?, text(names, None)?))?;
    list.append((described(common::opcode())?, text(opcode_texts, Some(opcodes))?))?;
    list.append((
        described(common::computation())?,
        text(computations, Some(column(|m| m.computation_column())))?,
    ))?;
    let shape_ids = Column::project(core, |m: &hlofast::ir::Module| &m.columns().shapes[..]);
    list.append((described(common::shape())?, text(shapes, Some(shape_ids))?))?;
    let bytes = Column::project(core, |m: &hlofast::ir::Module| m.shape_bytes_column());
    list.append((described(common::shape_bytes())?, number(bytes)?))?;
    list.append((
        described(common::op_name())?,
        text(op_names, Some(ids(|m| &m.metadata_columns().op_name)))?,
    ))?;
    list.append((
        described(common::source_file())?,
        text(files, Some(Column::of(places().map(|(file, _)| file).collect::<Vec<i32>>())))?,
    ))?;
    let line = |line: i32| if line > 0 { i64::from(line) } else { -1 };
    let lines: Vec<i64> = places().map(|(_, own)| line(own)).collect();
    list.append((described(common::source_line())?, number(Column::of(lines))?))?;
    Ok(list)
}

/// Opcode codes and names; unknown opcodes get codes after the known ones.
fn opcodes(core: &Arc<hlofast::ir::Module>) -> (Column, Texts) {
    let mut names: Texts =
        Opcode::ALL.iter().map(|opcode| opcode.as_str().as_bytes().into()).collect();
    if !core.columns().opcodes.contains(&Opcode::Unknown) {
        return (Column::project(core, |m: &hlofast::ir::Module| &m.columns().opcodes[..]), names);
    }
    let mut unknown: std::collections::HashMap<Vec<u8>, u32> = std::collections::HashMap::new();
    let code = |row: Row| match core.opcode(row) {
        Opcode::Unknown => {
            let written = opcode_bytes(core, row);
            *unknown.entry(written.to_vec()).or_insert_with(|| {
                names.push(written.into());
                names.len() as u32 - 1
            })
        }
        opcode => opcode as u32,
    };
    let codes: Vec<u32> = core.rows().map(code).collect();
    (Column::of(codes), names)
}
