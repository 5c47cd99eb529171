//! `Metadata`, `SourceLocation` and `StackFrame`: the origin of instructions in the source program.

use crate::classes::restorer;
use crate::held::{Held, text, text_or_bytes};
use crate::instruction::typed;
use hlofast::ir::decode::{AttributeValue, Metadata as CoreMetadata};
use hlofast::ir::{Opcode, Row};
use hlofast::text::Span;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// The origin of an instruction in the source program. Absent values are None.
#[pyclass(frozen, module = "hlofast._core")]
pub struct Metadata {
    held: Arc<Held>,
    row: Row,
    span: Span,
}

impl Metadata {
    /// The metadata of `row`; None if it is absent.
    pub fn of_row(held: &Arc<Held>, row: Row) -> PyResult<Option<Self>> {
        let Some(span) = held.core.attribute(row, "metadata") else { return Ok(None) };
        let metadata = Self::at(held, row, span);
        metadata.read()?;
        Ok(Some(metadata))
    }

    /// The metadata of `row` whose braces are at `span`.
    pub fn at(held: &Arc<Held>, row: Row, span: Span) -> Self {
        Self { held: Arc::clone(held), row, span }
    }

    fn read(&self) -> PyResult<Box<CoreMetadata<'_>>> {
        match typed(&self.held, b"metadata", Opcode::Unknown, self.span)? {
            AttributeValue::Metadata(metadata) => Ok(metadata),
            _ => Ok(Box::default()),
        }
    }

    fn string<'py>(
        &self,
        py: Python<'py>,
        field: impl for<'m> Fn(&'m CoreMetadata<'_>) -> Option<&'m [u8]>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let metadata = self.read()?;
        field(&metadata).map(|bytes| Ok(text(py, bytes)?.into_any())).transpose()
    }

    /// File and line as written, otherwise of the innermost stack frame.
    pub fn location(&self) -> Option<SourceLocation> {
        let metadata = self.read().ok()?;
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if let Some(file) = metadata.source_file.as_deref() {
            let line = metadata.source_line.unwrap_or(0).max(0);
            return Some(SourceLocation { file: lossy(file), line });
        }
        let frame = self.held.core.frame_tables().frame(metadata.stack_frame_id?)?;
        let known = !frame.file.is_empty();
        known.then(|| SourceLocation { file: lossy(frame.file), line: frame.positions.line })
    }
}

#[pymethods]
impl Metadata {
    /// The framework's name stack, such as `jit(f)/while/body/dot_general`.
    #[getter]
    fn op_name<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.string(py, |m| m.op_name.as_deref())
    }

    /// The framework's operation type.
    #[getter]
    fn op_type<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.string(py, |m| m.op_type.as_deref())
    }

    /// Source file as written, otherwise of the innermost stack frame.
    #[getter]
    fn source_file(&self) -> Option<String> {
        self.location().map(|location| location.file)
    }

    /// First line in the file.
    #[getter]
    fn source_line(&self) -> PyResult<Option<i64>> {
        let written = self.read()?.source_line;
        Ok(self.location().map(|location| location.line).filter(|line| *line != 0).or(written))
    }

    /// Last line in the file.
    #[getter]
    fn source_end_line(&self) -> PyResult<Option<i64>> {
        Ok(self.read()?.source_end_line)
    }

    /// First column.
    #[getter]
    fn source_column(&self) -> PyResult<Option<i64>> {
        Ok(self.read()?.source_column)
    }

    /// Last column.
    #[getter]
    fn source_end_column(&self) -> PyResult<Option<i64>> {
        Ok(self.read()?.source_end_column)
    }

    /// The kinds of profile guidance that were applied.
    #[getter]
    fn profile_type<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.read()?.profile_type.as_deref().map(|kinds| PyTuple::new(py, kinds)).transpose()
    }

    /// The name of the instruction that it was deduplicated into.
    #[getter]
    fn deduplicated_name<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.string(py, |m| m.deduplicated_name.as_deref())
    }

    /// The name used by the scheduler.
    #[getter]
    fn scheduling_name<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.string(py, |m| m.scheduling_name.as_deref())
    }

    /// The number of its stack frame in the module's tables.
    #[getter]
    fn stack_frame_id(&self) -> PyResult<Option<i64>> {
        Ok(self.read()?.stack_frame_id)
    }

    /// The call stack, innermost frame first; empty if there is none.
    #[getter]
    fn stack_frames<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let id = self.read()?.stack_frame_id.unwrap_or(0);
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let frames = self.held.core.frame_tables().resolve(id).map(|frame| {
            let positions = frame.positions;
            let frame = StackFrame {
                file: lossy(frame.file),
                function: lossy(frame.function),
                line: positions.line,
                end_line: positions.end_line,
                column: positions.column,
                end_column: positions.end_column,
            };
            Bound::new(py, frame)
        });
        PyTuple::new(py, frames.collect::<PyResult<Vec<_>>>()?)
    }

    /// Free-form payload; `bytes` if it is binary.
    #[getter]
    fn metadata_payload<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.read()?.metadata_payload.as_deref().map(|bytes| text_or_bytes(py, bytes)))
    }

    /// Unknown keys, with their values as written.
    #[getter]
    fn other<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for (key, value) in &self.read()?.other {
            fields.set_item(text(py, key)?, text(py, value)?)?;
        }
        Ok(fields)
    }

    fn __str__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(text(py, self.held.core.bytes(self.span))?.into_any())
    }

    fn __repr__(&self) -> String {
        format!("<Metadata {}>", String::from_utf8_lossy(self.held.core.bytes(self.span)))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Metadata>().is_ok_and(|other| {
            let other = other.get();
            self.held.core.bytes(self.span) == other.held.core.bytes(other.span)
        })
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.held.core.bytes(self.span).hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let builder = restorer(py, "_restore_metadata")?;
        let module = crate::module::Module::object(py, &self.held)?;
        Ok((builder, (module, self.row.0)).into_pyobject(py)?.into_any())
    }
}

/// A line of a source file.
#[pyclass(frozen, eq, hash, get_all, module = "hlofast._core")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SourceLocation {
    /// File name.
    pub file: String,
    /// 1-based line; 0 if unknown.
    pub line: i64,
}

#[pymethods]
impl SourceLocation {
    fn __str__(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    fn __repr__(&self) -> String {
        format!("<SourceLocation {}:{}>", self.file, self.line)
    }
}

/// One frame of a call stack.
#[pyclass(frozen, eq, hash, get_all, module = "hlofast._core")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// File name.
    pub file: String,
    /// Function name.
    pub function: String,
    /// First line.
    pub line: i64,
    /// Last line.
    pub end_line: i64,
    /// First column.
    pub column: i64,
    /// Last column.
    pub end_column: i64,
}

#[pymethods]
impl StackFrame {
    fn __repr__(&self) -> String {
        format!("<StackFrame {} at {}:{}>", self.function, self.file, self.line)
    }
}
