//! `Computation`: a named list of instructions.

use crate::classes::restorer;
use crate::columns::Columns;
use crate::held::{Held, hash_of, same_module, text};
use crate::instruction::Instruction;
use crate::sequence::{Ids, InstructionIterator, InstructionSequence};
use hlofast::ir::{Computation as Record, ComputationId, Row};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use std::sync::Arc;

/// A computation of a module: a light view, created on access, and a sequence of instructions.
#[pyclass(frozen, module = "hlofast._core")]
pub struct Computation {
    pub held: Arc<Held>,
    pub id: ComputationId,
}

impl Computation {
    fn record(&self) -> &Record {
        self.held.core.computation(self.id)
    }

    fn sequence(&self) -> InstructionSequence {
        let rows = self.record().rows();
        InstructionSequence { held: Arc::clone(&self.held), ids: Ids::Range(rows.start, rows.end) }
    }

    fn list(&self, rows: impl Iterator<Item = u32>) -> InstructionSequence {
        InstructionSequence { held: Arc::clone(&self.held), ids: Ids::List(rows.collect()) }
    }
}

#[pymethods]
impl Computation {
    /// The name, without `%`.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, self.held.core.computation_name(self.id))
    }

    /// The module it belongs to.
    #[getter]
    fn module<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, crate::module::Module>> {
        crate::module::Module::object(py, &self.held)
    }

    /// The position in `module.computations`.
    #[getter]
    fn index(&self) -> u32 {
        self.id.0
    }

    /// Its instructions in text order.
    #[getter]
    fn instructions(&self) -> InstructionSequence {
        self.sequence()
    }

    /// The root; None for an empty computation.
    #[getter]
    fn root(&self) -> Option<Instruction> {
        let record = self.record();
        let row = record.root;
        record.rows().contains(&row).then(|| Instruction { held: Arc::clone(&self.held), row })
    }

    /// Its parameters, ordered by number.
    #[getter]
    fn parameters(&self) -> InstructionSequence {
        self.list(self.held.core.parameters(self.id).into_iter().map(|row| row.0))
    }

    /// Whether it is the module's entry computation.
    #[getter]
    fn is_entry(&self) -> bool {
        self.held.core.entry() == self.id
    }

    /// Whether it is implicit: it is not in the text, as with async sugar.
    #[getter]
    fn is_implicit(&self) -> bool {
        self.record().is_implicit
    }

    /// Whether it is written inline, inside the instruction that calls it.
    #[getter]
    fn is_inline(&self) -> bool {
        self.record().is_inline
    }

    /// The execution thread; None for the main thread.
    #[getter]
    fn execution_thread<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        let quoted = self.held.core.bytes(self.record().execution_thread);
        let content = quoted.get(1..quoted.len().saturating_sub(1)).filter(|c| !c.is_empty());
        content
            .map(|c| text(py, &hlofast::ir::decode::unescape(c).unwrap_or_else(|_| c.into())))
            .transpose()
    }

    /// `(parameters) -> shape` as written; empty if the text is in short form.
    #[getter]
    fn signature<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, self.held.core.bytes(self.record().signature))
    }

    /// The instructions that call it.
    #[getter]
    fn callers(&self) -> InstructionSequence {
        self.list(self.held.core.callers(self.id).iter().copied())
    }

    /// The rows of this computation in the module's columns.
    #[getter]
    fn columns(&self) -> Columns {
        let held = &self.held;
        Columns::new(&held.core, &held.stage, Some(self.record().rows()))
    }

    /// Returns its instructions, operands before users, otherwise in text order.
    fn post_order(&self) -> InstructionSequence {
        self.list(self.held.core.post_order(self.id).into_iter())
    }

    /// Returns the names of all instructions.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        crate::names::instruction_names(py, &self.held, self.record().rows())
    }

    /// Returns the opcodes of all instructions.
    fn opcodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        crate::names::instruction_opcodes(py, &self.held, self.record().rows())
    }

    /// Returns the operand names of each instruction: a list of lists.
    fn operand_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        crate::names::operand_names(py, &self.held, self.record().rows())
    }

    /// Its text, byte for byte; None for implicit computations.
    #[getter(text)]
    fn text_<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        let record = self.record();
        if record.is_implicit {
            return Ok(None);
        }
        let whole =
            if record.header.is_empty() { record.body } else { record.header.to(record.body) };
        text(py, self.held.core.bytes(whole)).map(Some)
    }

    /// The 1-based line of the file on which its text starts; None for implicit computations.
    #[getter]
    fn text_line(&self, py: Python<'_>) -> Option<u64> {
        let record = self.record();
        let place = if record.header.is_empty() { record.body } else { record.header };
        (!record.is_implicit).then(|| self.held.line_of(py, place.start as usize))
    }

    fn __len__(&self) -> usize {
        self.record().rows().len()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        InstructionSequence::item(&Bound::new(key.py(), self.sequence())?, key)
    }

    fn __contains__(&self, item: &Bound<'_, PyAny>) -> bool {
        self.sequence().holds(item)
    }

    fn __iter__(&self) -> InstructionIterator {
        self.sequence().iterator()
    }

    fn __reversed__(&self) -> InstructionIterator {
        self.sequence().reverse_iterator()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Computation>().is_ok_and(|other| {
            let other = other.get();
            self.id == other.id && same_module(&self.held, &other.held)
        })
    }

    fn __hash__(&self) -> u64 {
        hash_of(&self.held, 2, self.id.0)
    }

    fn __repr__(&self) -> String {
        let core = &self.held.core;
        let name = String::from_utf8_lossy(core.computation_name(self.id)).into_owned();
        let count = self.record().rows().len();
        let entry = if self.is_entry() { ", entry" } else { "" };
        let plural = if count == 1 { "" } else { "s" };
        let root = self.root().map_or(String::new(), |root| {
            let root = core.instruction_name(Row(root.row));
            format!(", root {}", String::from_utf8_lossy(root))
        });
        format!("<Computation {name}: {count} instruction{plural}{root}{entry}>")
    }

    fn _repr_html_(&self) -> String {
        let rows: Vec<u32> = self.record().rows().collect();
        crate::html::instruction_table(&self.held, &rows)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let builder = restorer(py, "_restore_computation")?;
        Ok((builder, (self.module(py)?, self.id.0)).into_pyobject(py)?.into_any())
    }

    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }
}
