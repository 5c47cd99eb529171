//! `Columns`: a module's data as NumPy arrays over the memory of the module.

use crate::column::Column;
use crate::held::Stage;
use hlofast::ir::{Module, Row};
use pyo3::exceptions::{PyAttributeError, PyKeyError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyIterator, PyList, PyTuple};
use std::ops::Range;
use std::sync::Arc;

/// Read-only NumPy arrays, as attributes and as items.
///
/// The arrays share memory with the module and stay valid after it is deleted. The columns of a
/// computation are the slices of its rows; row numbers and offsets still count from the module's
/// first row. `describe()` documents each column.
#[pyclass(frozen, dict, mapping, module = "hlofast._core")]
pub struct Columns {
    core: Arc<Module>,
    stage: Arc<Stage>,
    rows: Option<Range<usize>>,
    arrays: PyOnceLock<Py<PyDict>>,
}

/// The name and description of every column.
const COLUMNS: [(&str, &str); 26] = [
    ("opcode", "index into hlofast.opcodes"),
    (
        "flags",
        "bits: 1 root, 2 implicit, 4 shape inferred, 8 async sugar, 16 marked ROOT, 32 folded operands",
    ),
    ("shape", "index into module.shapes"),
    ("computation", "index into module.computations"),
    ("element_type", "index into hlofast.element_types; 254 for tuples, 255 for buffers"),
    ("rank", "number of dimensions; -1 for tuples and buffers"),
    ("elements", "number of elements; -1 if unknown or not an array"),
    ("shape_bytes", "unpadded bytes of the result; -1 if unknown"),
    ("parameter_number", "parameter number; -1 for other instructions"),
    ("op_name", "index into module.op_names; -1 if none"),
    ("source_file", "index into module.source_files; -1 if none"),
    ("source_line", "1-based line; 0 if unknown"),
    ("name_starts", "byte offset of the name in the text; at least text_bytes for implicit rows"),
    ("name_lengths", "length of the name in bytes; 255 means 255 or more"),
    ("tail_starts", "byte offset after the operands; implicit rows as in name_starts"),
    ("tail_ends", "byte offset of the instruction's end; implicit rows as in name_starts"),
    ("operand_offsets", "start of each row's operands in `operands`; one entry more than rows"),
    ("operands", "rows of all operands, for the whole module"),
    ("user_offsets", "start of each row's users in `users`; one entry more than rows"),
    ("users", "rows of all users, for the whole module"),
    ("leaf_offsets", "number of each row's first leaf; one entry more than rows"),
    ("call_row", "row of each call's caller, for the whole module"),
    ("call_computation", "callee of each call: index into module.computations"),
    ("call_role", "index into hlofast.call_roles"),
    ("control_row", "rows with control predecessors, for the whole module"),
    ("control_predecessor", "row of the control predecessor"),
];

impl Columns {
    /// The columns of the module `core` of `stage`, or of the given rows.
    pub fn new(core: &Arc<Module>, stage: &Arc<Stage>, rows: Option<Range<u32>>) -> Self {
        let rows = rows.map(|rows| rows.start as usize..rows.end as usize);
        let (core, stage) = (Arc::clone(core), Arc::clone(stage));
        Self { core, stage, rows, arrays: PyOnceLock::new() }
    }

    fn column(&self, name: &str) -> Option<Column> {
        let core = &self.core;
        let range = self.rows.clone().unwrap_or(0..core.row_count());
        let with_end = range.start..range.end + 1;
        // `$of` and `$field` name a column: a method of the module, or a field of its result.
        macro_rules! part {
            ($range:expr, $of:ident $(, $field:ident)?) => {
                Column::project(core, |core: &Module| {
                    core.$of()$(.$field)?.get($range).unwrap_or_default()
                })
            };
        }
        macro_rules! whole {
            ($of:ident $(, $field:ident)?) => {
                Column::project(core, |core: &Module| &core.$of()$(.$field)?[..])
            };
        }
        Some(match name {
            "opcode" => part!(range, columns, opcodes),
            "flags" => part!(range, columns, flags),
            "shape" => part!(range, columns, shapes),
            "computation" => part!(range, computation_column),
            "element_type" => part!(range, element_type_column),
            "rank" => part!(range, rank_column),
            "elements" => part!(range, elements_column),
            "shape_bytes" => part!(range, shape_bytes_column),
            "parameter_number" => part!(range, parameter_number_column),
            "op_name" => {
                part!(range, metadata_columns, op_name)
            }
            "source_file" | "source_line" if !self.stage.sources().is_as_written() => {
                let (sources, columns) = (self.stage.sources(), core.metadata_columns());
                let places = range.map(|row| sources.place(columns, Row(row as u32)));
                Column::of(match name {
                    "source_file" => places.map(|(file, _)| file).collect::<Vec<i32>>(),
                    _ => places.map(|(_, line)| line).collect(),
                })
            }
            "source_file" => {
                part!(range, metadata_columns, source_file)
            }
            "source_line" => {
                part!(range, metadata_columns, source_line)
            }
            "name_starts" => {
                part!(range, columns, name_starts)
            }
            "name_lengths" => {
                part!(range, columns, name_lengths)
            }
            "tail_starts" => {
                part!(range, columns, tail_starts)
            }
            "tail_ends" => part!(range, columns, tail_ends),
            "operand_offsets" => {
                part!(with_end, columns, operand_offsets)
            }
            "operands" => whole!(columns, operands),
            "user_offsets" => {
                part!(with_end, users, offsets)
            }
            "users" => whole!(users, items),
            "leaf_offsets" => part!(with_end, leaf_offsets),
            "call_row" => Column::of(core.all_calls().iter().map(|call| call.row.0).collect()),
            "call_computation" => {
                Column::of(core.all_calls().iter().map(|call| call.computation.0).collect())
            }
            "call_role" => {
                Column::of(core.all_calls().iter().map(|call| call.role as u8).collect())
            }
            "control_row" => {
                Column::of(core.control_predecessors().iter().map(|(row, _)| row.0).collect())
            }
            "control_predecessor" => {
                Column::of(core.control_predecessors().iter().map(|(_, before)| before.0).collect())
            }
            _ => return None,
        })
    }

    /// The array `name`, created once.
    fn array<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, this) = (slf.py(), slf.get());
        let arrays = this.arrays.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
        if let Some(array) = arrays.get_item(name)? {
            return Ok(Some(array));
        }
        let Some(column) = py.detach(|| this.column(name)) else { return Ok(None) };
        let array = as_array(Bound::new(py, column)?)?;
        // Two threads may both get here. The first array is kept, so that all threads see one
        // array.
        Ok(Some(arrays.call_method1("setdefault", (name, array))?))
    }
}

/// The NumPy array over `column`.
pub fn as_array(column: Bound<'_, Column>) -> PyResult<Bound<'_, PyAny>> {
    static AS_ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    AS_ARRAY.import(column.py(), "numpy", "asarray")?.call1((column,))
}

#[pymethods]
impl Columns {
    fn __getattr__<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let array = Self::array(slf, name)?;
        let array =
            array.ok_or_else(|| PyAttributeError::new_err(format!("no column {name:?}")))?;
        // Later accesses find the array in the instance dictionary and do not get here.
        slf.getattr("__dict__")?.set_item(name, &array)?;
        Ok(array)
    }

    fn __setattr__(&self, name: &str, _value: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(PyAttributeError::new_err(format!("columns are read-only: {name}")))
    }

    fn __delattr__(&self, name: &str) -> PyResult<()> {
        Err(PyAttributeError::new_err(format!("columns are read-only: {name}")))
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        Self::array(slf, name)?.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    fn __contains__(&self, name: &str) -> bool {
        COLUMNS.iter().any(|(known, _)| *known == name)
    }

    fn __len__(&self) -> usize {
        COLUMNS.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.try_iter()
    }

    /// Returns the names of all columns.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, COLUMNS.iter().map(|(name, _)| *name))
    }

    /// Returns a description of each column, by name.
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (name, meaning) in COLUMNS {
            all.set_item(name, meaning)?;
        }
        Ok(all)
    }

    /// Returns the column as a buffer, for code without NumPy.
    ///
    /// Raises `KeyError` for an unknown name.
    fn buffer(&self, py: Python<'_>, name: &str) -> PyResult<Column> {
        let column = py.detach(|| self.column(name));
        column.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    fn __dir__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let names = COLUMNS.iter().map(|(name, _)| *name);
        PyList::new(py, names.chain(["keys", "describe", "buffer"]))
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        let rows = self.rows.clone().map_or(self.core.row_count(), |rows| rows.len());
        format!("<Columns of {rows} rows: {}>", names.join(", "))
    }
}
