//! Names, opcodes and operand names as Python strings, one by one or as lists.

use crate::held::{Held, opcode_name, text};
use hlofast::ir::{Module, Opcode, Row};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyString};
use std::sync::OnceLock;

/// Names are created in chunks of this many rows: small enough for cheap single accesses, large
/// enough to amortise the bookkeeping.
const CHUNK: usize = 32;

/// Bytes of a CPython `str` besides its characters.
const STR_HEADER: usize = 49;

type Chunk = PyOnceLock<Box<[Py<PyString>]>>;

/// The instruction names of a module, each created once: a name is used by its instruction and by
/// every user, and a cached string remembers its hash.
#[derive(Default)]
pub struct Names {
    chunks: OnceLock<Box<[Chunk]>>,
}

impl Names {
    /// The name of `row`.
    #[inline]
    pub fn get<'a>(
        &'a self,
        py: Python<'_>,
        core: &Module,
        row: u32,
    ) -> PyResult<&'a Py<PyString>> {
        let (number, place) = (row as usize / CHUNK, row as usize % CHUNK);
        let chunk = match self.chunks(core).get(number) {
            Some(chunk) => match chunk.get(py) {
                Some(made) => made,
                None => chunk.get_or_try_init(py, || made(py, core, number))?,
            },
            None => &[][..],
        };
        chunk.get(place).ok_or_else(|| PyIndexError::new_err("row out of range"))
    }

    /// Creates all names at once.
    fn make_all(&self, py: Python<'_>, core: &Module) -> PyResult<()> {
        if core.row_count() == 0 || self.chunks(core).iter().any(|chunk| chunk.get(py).is_some()) {
            return Ok(());
        }
        let mut joined = Vec::with_capacity(16 * core.row_count());
        for row in core.rows() {
            joined.extend_from_slice(core.instruction_name(row));
            joined.push(b'\n');
        }
        joined.pop();
        let Ok(joined) = std::str::from_utf8(&joined) else { return Ok(()) };
        // Splitting one string in Python is faster than passing many strings to Python.
        let names = PyString::new(py, joined).call_method1("split", ("\n",))?;
        let names = names.cast_into::<PyList>()?;
        // Names should not contain line ends; if one does, the names are created one by one.
        if names.len() == core.row_count() {
            let mut names = names.iter().map(|name| Ok(name.cast_into::<PyString>()?.unbind()));
            for (number, chunk) in self.chunks(core).iter().enumerate() {
                let part = names.by_ref().take(rows_of(core, number).len());
                // If another thread was faster, its names are kept.
                let _ = chunk.set(py, part.collect::<PyResult<_>>()?);
            }
        }
        Ok(())
    }

    #[inline]
    fn chunks(&self, core: &Module) -> &[Chunk] {
        self.chunks
            .get_or_init(|| (0..core.row_count().div_ceil(CHUNK)).map(|_| Chunk::new()).collect())
    }

    /// Bytes of the names created so far.
    pub fn heap_bytes(&self, py: Python<'_>, core: &Module) -> usize {
        let Some(chunks) = self.chunks.get() else { return 0 };
        let made = chunks.iter().enumerate().filter(|(_, chunk)| chunk.get(py).is_some());
        let strings = made.flat_map(|(number, _)| rows_of(core, number)).map(|row| {
            size_of::<Py<PyString>>()
                + (core.instruction_name(Row(row)).len() + STR_HEADER).next_multiple_of(16)
        });
        size_of_val(&chunks[..]) + strings.sum::<usize>()
    }
}

fn rows_of(core: &Module, chunk: usize) -> std::ops::Range<u32> {
    let start = chunk * CHUNK;
    start as u32..core.row_count().min(start + CHUNK) as u32
}

#[cold]
fn made(py: Python<'_>, core: &Module, chunk: usize) -> PyResult<Box<[Py<PyString>]>> {
    rows_of(core, chunk)
        .map(|row| Ok(text(py, core.instruction_name(Row(row)))?.unbind()))
        .collect()
}

/// The opcode of `row`; unknown opcodes as written.
#[inline]
pub fn opcode_of<'py>(py: Python<'py>, core: &Module, row: Row) -> PyResult<Bound<'py, PyString>> {
    let opcode = core.opcode(row);
    if opcode != Opcode::Unknown
        && let Some(name) = opcode_name(py, opcode)
    {
        return Ok(name.bind(py).clone());
    }
    text(py, core.opcode_text(row))
}

/// List elements, created in place while the list is filled.
struct Name<'a>(&'a Held, u32);
struct OpcodeName<'a>(&'a Held, u32);
struct OperandNames<'a>(&'a Held, u32);

impl<'py> IntoPyObject<'py> for Name<'_> {
    type Target = PyString;
    type Output = Bound<'py, PyString>;
    type Error = PyErr;

    #[inline]
    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        self.0.name(py, self.1)
    }
}

impl<'py> IntoPyObject<'py> for OpcodeName<'_> {
    type Target = PyString;
    type Output = Bound<'py, PyString>;
    type Error = PyErr;

    #[inline]
    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        opcode_of(py, &self.0.core, Row(self.1))
    }
}

impl<'py> IntoPyObject<'py> for OperandNames<'_> {
    type Target = PyList;
    type Output = Bound<'py, PyList>;
    type Error = PyErr;

    #[inline]
    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let operands = self.0.core.operands(Row(self.1));
        PyList::new(py, operands.iter().map(|row| Name(self.0, *row)))
    }
}

/// Names of `rows`.
pub fn instruction_names<'py>(
    py: Python<'py>,
    held: &Held,
    rows: impl ExactSizeIterator<Item = u32>,
) -> PyResult<Bound<'py, PyList>> {
    if rows.len() == held.core.row_count() {
        held.names.make_all(py, &held.core)?;
    }
    PyList::new(py, rows.map(|row| Name(held, row)))
}

/// Opcodes of `rows`.
pub fn instruction_opcodes<'py>(
    py: Python<'py>,
    held: &Held,
    rows: impl ExactSizeIterator<Item = u32>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, rows.map(|row| OpcodeName(held, row)))
}

/// The operand names of each of `rows`.
pub fn operand_names<'py>(
    py: Python<'py>,
    held: &Held,
    rows: impl ExactSizeIterator<Item = u32>,
) -> PyResult<Bound<'py, PyList>> {
    if rows.len() == held.core.row_count() {
        held.names.make_all(py, &held.core)?;
    }
    PyList::new(py, rows.map(|row| OperandNames(held, row)))
}
