//! `Instruction`: one row of a module.

use crate::attributes::{Attributes, attribute_value, decoded};
use crate::classes::restorer;
use crate::computation::Computation;
use crate::held::{Held, hash_of, same_module, text};
use crate::literal::Literal;
use crate::metadata::{Metadata, SourceLocation};
use crate::names::opcode_of;
use crate::sequence::{ComputationSequence, Ids, InstructionSequence};
use crate::shape::{Shape, shape_text};
use hlofast::ir::decode::{AttributeValue, decode};
use hlofast::ir::{Flags, Module, Opcode, Row};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use std::sync::Arc;

/// An instruction of a module: a light view, created on access.
#[pyclass(frozen, module = "hlofast._core")]
pub struct Instruction {
    pub held: Arc<Held>,
    pub row: u32,
}

/// The opcode as bytes; unknown opcodes as written.
pub fn opcode_bytes(module: &Module, row: Row) -> &[u8] {
    match module.opcode(row) {
        Opcode::Unknown => module.opcode_text(row),
        opcode => opcode.as_str().as_bytes(),
    }
}

impl Instruction {
    fn core(&self) -> &Module {
        &self.held.core
    }

    fn id(&self) -> Row {
        Row(self.row)
    }

    fn flag(&self, flag: u8) -> bool {
        self.core().flags(self.id()) & flag != 0
    }

    /// The span of the instruction in the text, `ROOT` and `%` included; None for implicit ones.
    fn span(&self) -> Option<std::ops::Range<usize>> {
        if self.core().is_implicit(self.id()) {
            return None;
        }
        let text = self.core().text();
        let end = self.core().tail(self.id()).end as usize;
        let mut start = self.core().name_span(self.id()).start as usize;
        let before = text.get(..start)?;
        if before.ends_with(b"%") {
            start -= 1;
        }
        if self.flag(Flags::MARKED_ROOT) {
            let trimmed = text.get(..start)?.trim_ascii_end();
            if trimmed.ends_with(b"ROOT") {
                start = trimmed.len() - 4;
            }
        }
        Some(start..end)
    }

    fn attribute(&self, key: &str) -> Option<&[u8]> {
        self.core().attribute_bytes(self.id(), key)
    }

    fn name_text(&self) -> String {
        String::from_utf8_lossy(self.core().instruction_name(self.id())).into_owned()
    }
}

#[pymethods]
impl Instruction {
    /// The name, without `%`.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.held.name(py, self.row)
    }

    /// The opcode in XLA's graph; unknown opcodes as written.
    #[getter]
    fn opcode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        opcode_of(py, self.core(), self.id())
    }

    /// The opcode as the text writes it, e.g. `all-to-all-start` for an `async-start`.
    #[getter]
    fn opcode_text<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let written = self.core().opcode_text(self.id());
        if written.is_empty() {
            return self.opcode(py);
        }
        text(py, written)
    }

    /// The module it belongs to.
    #[getter]
    fn module<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, crate::module::Module>> {
        crate::module::Module::object(py, &self.held)
    }

    /// The computation it belongs to.
    #[getter]
    fn computation(&self) -> Computation {
        Computation { held: Arc::clone(&self.held), id: self.core().computation_of(self.id()) }
    }

    /// The row number: its index in the module's columns.
    #[getter]
    fn row(&self) -> u32 {
        self.row
    }

    /// The position within its computation.
    #[getter]
    fn index(&self) -> u32 {
        let computation = self.core().computation_of(self.id());
        self.row - self.core().computation(computation).first_row
    }

    /// The shape of the result.
    #[getter]
    fn shape(&self) -> Shape {
        Shape { held: Arc::clone(&self.held), id: self.core().shape(self.id()) }
    }

    /// The operands.
    #[getter]
    fn operands(&self) -> InstructionSequence {
        InstructionSequence { held: Arc::clone(&self.held), ids: Ids::Operands(self.row) }
    }

    /// The instructions that use the result, without duplicates.
    #[getter]
    fn users(&self, py: Python<'_>) -> InstructionSequence {
        let core = &self.held.core;
        py.detach(|| core.users());
        InstructionSequence { held: Arc::clone(&self.held), ids: Ids::Users(self.row) }
    }

    /// The computations it calls, in text order.
    #[getter]
    fn called_computations(&self) -> ComputationSequence {
        let ids = self.core().calls(self.id()).iter().map(|call| call.computation.0);
        ComputationSequence { held: Arc::clone(&self.held), ids: Ids::List(ids.collect()) }
    }

    /// Its calls as pairs `(role, computation)`; the role is the attribute's name.
    #[getter]
    fn calls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let calls = self.core().calls(self.id()).iter().map(|call| {
            let computation = Computation { held: Arc::clone(&self.held), id: call.computation };
            (call.role.as_str(), computation).into_pyobject(py)
        });
        PyTuple::new(py, calls.collect::<PyResult<Vec<_>>>()?)
    }

    /// The instructions that must run before it although it does not read them.
    #[getter]
    fn control_predecessors(&self) -> InstructionSequence {
        let pairs = self.core().control_predecessors();
        let start = pairs.partition_point(|(row, _)| row.0 < self.row);
        let rows = pairs[start..].iter().take_while(|(row, _)| row.0 == self.row);
        let ids = Ids::List(rows.map(|(_, predecessor)| predecessor.0).collect());
        InstructionSequence { held: Arc::clone(&self.held), ids }
    }

    /// The instructions that have it as a control predecessor.
    #[getter]
    fn control_successors(&self) -> InstructionSequence {
        let pairs = self.core().control_predecessors().iter();
        let rows = pairs.filter(|(_, predecessor)| predecessor.0 == self.row);
        let ids = Ids::List(rows.map(|(row, _)| row.0).collect());
        InstructionSequence { held: Arc::clone(&self.held), ids }
    }

    /// The attributes: a mapping whose values are decoded on access.
    #[getter]
    fn attributes(&self) -> Attributes {
        Attributes { held: Arc::clone(&self.held), row: Some(self.row) }
    }

    /// Operation name, source location and more; None if the text gives no metadata.
    #[getter]
    fn metadata(&self) -> PyResult<Option<Metadata>> {
        Metadata::of_row(&self.held, self.id())
    }

    /// Source file and line, from the metadata or the frame of its stack that the context selects;
    /// None if unknown.
    #[getter]
    fn source(&self, py: Python<'_>) -> PyResult<Option<SourceLocation>> {
        let Some(metadata) = Metadata::of_row(&self.held, self.id())? else { return Ok(None) };
        let held = &self.held;
        let sources = py.detach(|| held.stage.sources());
        if sources.is_as_written() {
            return Ok(metadata.location());
        }
        let columns = held.core.metadata_columns();
        let (file, line) = sources.place(columns, self.id());
        let file = sources.file(columns, file);
        let file = file.map(|file| String::from_utf8_lossy(file).into_owned());
        Ok(file.map(|file| SourceLocation { file, line: line.into() }))
    }

    /// The sharding of the result; None if the text gives none.
    #[getter]
    fn sharding<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.attribute("sharding").is_some().then(|| self.value(py, "sharding")).transpose()
    }

    /// The framework's own attributes, as a dictionary; empty if there are none.
    #[getter]
    fn frontend_attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.attribute("frontend_attributes") {
            Some(_) => self.value(py, "frontend_attributes"),
            None => Ok(PyDict::new(py).into_any()),
        }
    }

    /// The backend configuration; None if there is none.
    ///
    /// The content of a string (`bytes` if it is binary), or a dictionary as written.
    #[getter]
    fn backend_config<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.attribute("backend_config")
            .is_some()
            .then(|| self.value(py, "backend_config"))
            .transpose()
    }

    /// `backend_config` parsed as JSON; None if it is absent or not JSON.
    #[getter]
    fn backend_config_json<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(value) = self.backend_config(py)? else { return Ok(None) };
        let json = py.import("json")?;
        match json.call_method1("loads", (value,)) {
            Ok(parsed) => Ok(Some(parsed)),
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyValueError>(py) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The values of a constant; None for other instructions.
    #[getter]
    fn literal(&self) -> Option<Literal> {
        Literal::of(&self.held, self.id())
    }

    /// The parameter number; None for other instructions.
    #[getter]
    fn parameter_number(&self) -> Option<u64> {
        self.core().parameter_number(self.id())
    }

    /// Whether it is the root of its computation.
    #[getter]
    fn is_root(&self) -> bool {
        self.flag(Flags::ROOT)
    }

    /// Whether it is implicit: the text only implies it.
    #[getter]
    fn is_implicit(&self) -> bool {
        self.flag(Flags::IMPLICIT)
    }

    /// Its text, byte for byte; None for implicit instructions.
    #[getter(text)]
    fn text_<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        let span = self.span().and_then(|span| self.core().text().get(span));
        span.map(|bytes| text(py, bytes)).transpose()
    }

    /// The 1-based line of the file on which its text starts; None for implicit instructions.
    #[getter]
    fn text_line(&self, py: Python<'_>) -> Option<u64> {
        let start = self.span()?.start;
        Some(self.held.line_of(py, start))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Instruction>().is_ok_and(|other| {
            let other = other.get();
            self.row == other.row && same_module(&self.held, &other.held)
        })
    }

    fn __hash__(&self) -> u64 {
        hash_of(&self.held, 1, self.row)
    }

    fn __repr__(&self) -> String {
        let opcode = String::from_utf8_lossy(opcode_bytes(self.core(), self.id())).into_owned();
        let shape = shape_text(&self.held, self.core().shape(self.id()), 60);
        format!("<Instruction {}: {shape} {opcode}>", self.name_text())
    }

    fn _repr_html_(&self) -> String {
        crate::html::instruction_table(&self.held, &[self.row])
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let builder = restorer(py, "_restore_instruction")?;
        Ok((builder, (self.module(py)?, self.row)).into_pyobject(py)?.into_any())
    }

    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }
}

impl Instruction {
    fn value<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        let value = attribute_value(&self.held, self.id(), key)?;
        decoded(py, &self.held, value)
    }
}

/// Decodes an attribute's bytes; errors become Python exceptions.
pub fn typed<'a>(
    held: &'a Held,
    key: &[u8],
    opcode: Opcode,
    span: hlofast::text::Span,
) -> PyResult<AttributeValue<'a>> {
    decode(key, opcode, held.core.bytes(span))
        .map_err(|error| crate::errors::to_python(held.core.source(), &error.shifted(span.start)))
}
