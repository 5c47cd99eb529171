//! Columns of a table under construction.

use crate::column::Column;
use crate::text_column::TextColumn;
use hlofast::comms::Piece;
use hlofast::ir::{MetadataColumns, Module, Row, decode::unescape};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Collects names and columns.
pub struct TableBuilder<'py> {
    py: Python<'py>,
    list: Bound<'py, PyList>,
}

impl<'py> TableBuilder<'py> {
    /// No column yet.
    pub fn new(py: Python<'py>) -> Self {
        Self { py, list: PyList::empty(py) }
    }

    /// A column of 64-bit integers.
    pub fn numbers(&self, name: &str, values: impl Iterator<Item = i64>) -> PyResult<()> {
        let column = Column::of(values.collect::<Vec<i64>>());
        self.list.append((name, Bound::new(self.py, column)?))
    }

    /// A column of 64-bit floating-point numbers.
    pub fn reals(&self, name: &str, values: impl Iterator<Item = f64>) -> PyResult<()> {
        let column = Column::of(values.collect::<Vec<f64>>());
        self.list.append((name, Bound::new(self.py, column)?))
    }

    /// A column of flags: 0 or 1.
    pub fn flags(&self, name: &str, values: impl Iterator<Item = bool>) -> PyResult<()> {
        let column = Column::of(values.map(u8::from).collect::<Vec<u8>>());
        self.list.append((name, Bound::new(self.py, column)?))
    }

    /// A column of texts.
    pub fn texts(&self, name: &str, values: impl Iterator<Item = Vec<u8>>) -> PyResult<()> {
        let column = TextColumn::new_from(values.map(Vec::into_boxed_slice).collect(), None);
        self.list.append((name, Bound::new(self.py, column)?))
    }

    /// A column of instruction rows.
    pub fn rows(&self, name: &str, values: impl Iterator<Item = Row>) -> PyResult<()> {
        let column = Column::of(values.map(|row| row.0).collect::<Vec<u32>>());
        self.list.append((name, Bound::new(self.py, column)?))
    }

    /// What `hlofast.table.Table` is made of.
    pub fn finish(self) -> Bound<'py, PyList> {
        self.list
    }
}

/// An unsigned number as a signed one; -1 if it is unknown or too large.
pub fn number(value: Option<u64>) -> i64 {
    value.and_then(|value| i64::try_from(value).ok()).unwrap_or(-1)
}

/// The number of a row; -1 without one.
pub fn row_or_none(row: Option<Row>) -> i64 {
    row.map_or(-1, |row| i64::from(row.0))
}

/// Where rows come from.
pub struct Origin<'a> {
    module: &'a Module,
    columns: &'a MetadataColumns,
}

impl<'a> Origin<'a> {
    /// Of the rows of `module`.
    pub fn new(module: &'a Module) -> Self {
        Self { module, columns: module.metadata_columns() }
    }

    /// The operation name of `row`.
    pub fn op_name(&self, row: Row) -> Option<Vec<u8>> {
        let id = usize::try_from(self.columns.op_name[row.0 as usize]).ok()?;
        let text = self.module.bytes(*self.columns.op_names.get(id)?);
        Some(unescape(text).map_or_else(|_| text.to_vec(), |name| name.into_owned()))
    }

    /// The source file of `row`.
    pub fn source_file(&self, row: Row) -> Option<Vec<u8>> {
        let id = usize::try_from(self.columns.source_file[row.0 as usize]).ok()?;
        self.columns.source_files.get(id).map(|file| file.to_vec())
    }

    /// The source line of `row`; 0 without one.
    pub fn source_line(&self, row: Row) -> i64 {
        i64::from(self.columns.source_line[row.0 as usize])
    }

    /// What people call the array of a piece: of a parameter its name in the program.
    pub fn tensor(&self, piece: &Piece) -> Vec<u8> {
        let Some(row) = piece.source else { return Vec::new() };
        self.op_name(row).unwrap_or_else(|| self.module.instruction_name(row).to_vec())
    }
}
