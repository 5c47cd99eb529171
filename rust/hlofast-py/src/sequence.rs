//! Lazy sequences of instructions and of computations.

use crate::classes::restorer;
use crate::computation::Computation;
use crate::held::{Held, hash_of, same_module, text};
use crate::instruction::Instruction;
use crate::names::{instruction_names, instruction_opcodes, operand_names};
use hlofast::ir::{ComputationId, Row};
use pyo3::exceptions::{PyIndexError, PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyRange, PySlice, PyString};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The rows (or computation ids) of a sequence, in order.
#[derive(Clone)]
pub enum Ids {
    /// `start..end`.
    Range(u32, u32),
    /// The operands of a row.
    Operands(u32),
    /// The users of a row.
    Users(u32),
    /// An explicit list.
    List(Arc<[u32]>),
}

impl Ids {
    fn len(&self, held: &Held) -> usize {
        match self {
            Ids::Range(start, end) => (end - start) as usize,
            Ids::Operands(row) => held.core.operands(Row(*row)).len(),
            Ids::Users(row) => held.core.users().get(*row).len(),
            Ids::List(list) => list.len(),
        }
    }

    #[inline]
    fn get(&self, held: &Held, index: usize) -> Option<u32> {
        match self {
            Ids::Range(start, end) => {
                let id = u32::try_from(index).ok()?.checked_add(*start)?;
                (id < *end).then_some(id)
            }
            Ids::Operands(row) => held.core.operands(Row(*row)).get(index).copied(),
            Ids::Users(row) => held.core.users().get(*row).get(index).copied(),
            Ids::List(list) => list.get(index).copied(),
        }
    }

    fn contains(&self, held: &Held, id: u32) -> bool {
        match self {
            Ids::Range(start, end) => (*start..*end).contains(&id),
            Ids::Operands(row) => held.core.operands(Row(*row)).contains(&id),
            Ids::Users(row) => held.core.users().get(*row).contains(&id),
            Ids::List(list) => list.contains(&id),
        }
    }

    /// Iterates over all ids in order.
    pub fn iter<'a>(&'a self, held: &'a Held) -> impl ExactSizeIterator<Item = u32> + 'a {
        (0..self.len(held)).map(|index| self.get(held, index).unwrap_or(u32::MAX))
    }

    /// Makes a sequence of `numbers`; consecutive numbers are stored as a range.
    pub fn of(numbers: Vec<u32>) -> Ids {
        let follow = numbers.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        match (numbers.first(), numbers.last().and_then(|last| last.checked_add(1))) {
            (Some(first), Some(end)) if follow => Ids::Range(*first, end),
            _ => Ids::List(numbers.into()),
        }
    }

    /// The numbers as a `range` or list, for pickling.
    fn to_python<'py>(&self, py: Python<'py>, held: &Held) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Ids::Range(start, end) => PyRange::new(py, *start as isize, *end as isize)?.into_any(),
            _ => PyList::new(py, self.to_vec(held))?.into_any(),
        })
    }

    /// Copies the ids to a vector.
    pub fn to_vec(&self, held: &Held) -> Vec<u32> {
        match self {
            Ids::Range(start, end) => (*start..*end).collect(),
            Ids::Operands(row) => held.core.operands(Row(*row)).to_vec(),
            Ids::Users(row) => held.core.users().get(*row).to_vec(),
            Ids::List(list) => list.to_vec(),
        }
    }

    fn slice(&self, held: &Held, slice: &Bound<'_, PySlice>) -> PyResult<Ids> {
        let indices = slice.indices(self.len(held) as isize)?;
        if let (Ids::Range(start, end), 1) = (self, indices.step) {
            let from = start + indices.start as u32;
            return Ok(Ids::Range(from.min(*end), from.min(*end) + indices.slicelength as u32));
        }
        let position = |k: usize| (indices.start + k as isize * indices.step) as usize;
        let ids = (0..indices.slicelength).filter_map(|k| self.get(held, position(k)));
        Ok(Ids::List(ids.collect()))
    }

    fn at(&self, held: &Held, index: isize, what: &str) -> PyResult<u32> {
        let position = if index < 0 { index + self.len(held) as isize } else { index };
        let id = usize::try_from(position).ok().and_then(|i| self.get(held, i));
        id.ok_or_else(|| PyIndexError::new_err(format!("{what} index out of range")))
    }
}

/// A lazy, immutable sequence of instructions.
///
/// Index it with a position, a slice or a name. An unknown or ambiguous name raises `KeyError`.
#[pyclass(frozen, module = "hlofast._core")]
pub struct InstructionSequence {
    pub held: Arc<Held>,
    pub ids: Ids,
}

/// Sequences up to this length are searched linearly instead of through the name index.
const SCAN: usize = 64;

impl InstructionSequence {
    /// The rows named `name`, in sequence order.
    fn named(&self, name: &str) -> Vec<u32> {
        let core = &self.held.core;
        if self.ids.len(&self.held) <= SCAN {
            let rows = self.ids.to_vec(&self.held).into_iter();
            return rows.filter(|r| core.instruction_name(Row(*r)) == name.as_bytes()).collect();
        }
        let rows = core.find_instructions(name.as_bytes()).into_iter();
        rows.filter(|row| self.ids.contains(&self.held, *row)).collect()
    }

    fn one_named(&self, name: &str) -> PyResult<u32> {
        let mut rows = self.named(name);
        rows.dedup();
        match rows[..] {
            [row] => Ok(row),
            [] => Err(PyKeyError::new_err(no_such("instruction", name))),
            _ => Err(PyKeyError::new_err(ambiguous(&self.held, name, &rows))),
        }
    }

    /// `sequence[key]`.
    pub fn item<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (this, py) = (slf.get(), slf.py());
        if let Ok(index) = key.extract::<isize>() {
            let row = this.ids.at(&this.held, index, "instruction")?;
            return Ok(Bound::new(py, this.instruction(row))?.into_any());
        }
        if let Ok(slice) = key.cast::<PySlice>() {
            let ids = this.ids.slice(&this.held, slice)?;
            let held = Arc::clone(&this.held);
            return Ok(Bound::new(py, InstructionSequence { held, ids })?.into_any());
        }
        if let Ok(name) = key.cast::<PyString>() {
            let row = this.one_named(&name.to_string_lossy())?;
            return Ok(Bound::new(py, this.instruction(row))?.into_any());
        }
        Err(PyTypeError::new_err("instructions are indexed by position, slice or name"))
    }

    /// `item in sequence`.
    pub fn holds(&self, item: &Bound<'_, PyAny>) -> bool {
        if let Ok(name) = item.cast::<PyString>() {
            return !self.named(&name.to_string_lossy()).is_empty();
        }
        item.cast::<Instruction>().is_ok_and(|other| {
            let other = other.get();
            same_module(&self.held, &other.held) && self.ids.contains(&self.held, other.row)
        })
    }

    /// Iterates from first to last.
    pub fn iterator(&self) -> InstructionIterator {
        let (held, ids) = (Arc::clone(&self.held), self.ids.clone());
        InstructionIterator { held, ids, next: AtomicUsize::new(0) }
    }

    /// Iterates from last to first.
    pub fn reverse_iterator(&self) -> InstructionIterator {
        let mut rows = self.ids.to_vec(&self.held);
        rows.reverse();
        let (held, ids) = (Arc::clone(&self.held), Ids::List(rows.into()));
        InstructionIterator { held, ids, next: AtomicUsize::new(0) }
    }

    fn instruction(&self, row: u32) -> Instruction {
        Instruction { held: Arc::clone(&self.held), row }
    }
}

/// The message for an unknown name.
pub fn no_such(what: &str, name: &str) -> String {
    format!("no {what} is called {name:?}")
}

/// The message for a name that occurs in several computations.
pub fn ambiguous(held: &Held, name: &str, rows: &[u32]) -> String {
    const SHOWN: usize = 8;
    let place = |row: &u32| {
        let id = held.core.computation_of(Row(*row));
        String::from_utf8_lossy(held.core.computation_name(id)).into_owned()
    };
    let mut places: Vec<String> = rows.iter().take(SHOWN).map(place).collect();
    if rows.len() > SHOWN {
        places.push(format!("{} more", rows.len() - SHOWN));
    }
    format!("{name:?} is ambiguous: it occurs in the computations {}", places.join(", "))
}

#[pymethods]
impl InstructionSequence {
    fn __len__(&self) -> usize {
        self.ids.len(&self.held)
    }

    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::item(slf, key)
    }

    fn __contains__(&self, item: &Bound<'_, PyAny>) -> bool {
        self.holds(item)
    }

    fn __iter__(&self) -> InstructionIterator {
        self.iterator()
    }

    fn __reversed__(&self) -> InstructionIterator {
        self.reverse_iterator()
    }

    /// Returns the position of an instruction, or of the first instruction with the given name.
    ///
    /// Raises `ValueError` if it is not in the sequence.
    fn index(&self, item: &Bound<'_, PyAny>) -> PyResult<usize> {
        let row = match item.cast::<PyString>() {
            Ok(name) => self.named(&name.to_string_lossy()).first().copied(),
            Err(_) => item.cast::<Instruction>().ok().and_then(|other| {
                let other = other.get();
                same_module(&self.held, &other.held).then_some(other.row)
            }),
        };
        let rows = self.ids.to_vec(&self.held);
        let position = row.and_then(|row| rows.iter().position(|r| *r == row));
        position.ok_or_else(|| PyValueError::new_err("instruction is not in the sequence"))
    }

    /// Returns how often an instruction occurs in the sequence.
    fn count(&self, item: &Bound<'_, PyAny>) -> usize {
        let Ok(other) = item.cast::<Instruction>() else { return 0 };
        let other = other.get();
        let rows = self.ids.to_vec(&self.held);
        let same = same_module(&self.held, &other.held);
        rows.iter().filter(|row| same && **row == other.row).count()
    }

    /// Returns the names of all instructions.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        instruction_names(py, &self.held, self.ids.iter(&self.held))
    }

    /// Returns the opcodes of all instructions.
    fn opcodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        instruction_opcodes(py, &self.held, self.ids.iter(&self.held))
    }

    /// Returns the operand names of each instruction: a list of lists.
    fn operand_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        operand_names(py, &self.held, self.ids.iter(&self.held))
    }

    /// The row numbers, as a column of uint32.
    #[getter]
    fn rows(&self) -> crate::column::Column {
        crate::column::Column::of(self.ids.to_vec(&self.held))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<InstructionSequence>().is_ok_and(|other| {
            let other = other.get();
            same_module(&self.held, &other.held)
                && self.ids.to_vec(&self.held) == other.ids.to_vec(&other.held)
        })
    }

    fn __hash__(&self) -> u64 {
        let first = self.ids.get(&self.held, 0).unwrap_or(u32::MAX);
        hash_of(&self.held, 3, first ^ (self.ids.len(&self.held) as u32).rotate_left(16))
    }

    fn __repr__(&self) -> String {
        let names = self.ids.to_vec(&self.held).into_iter().take(6).map(|row| {
            String::from_utf8_lossy(self.held.core.instruction_name(Row(row))).into_owned()
        });
        let mut names: Vec<String> = names.collect();
        let length = self.ids.len(&self.held);
        if length > names.len() {
            names.push("...".to_owned());
        }
        let noun = if length == 1 { "instruction" } else { "instructions" };
        format!("<{length} {noun}: [{}]>", names.join(", "))
    }

    fn _repr_html_(&self) -> String {
        crate::html::instruction_table(&self.held, &self.ids.to_vec(&self.held))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let builder = restorer(py, "_restore_instructions")?;
        let module = crate::module::Module::object(py, &self.held)?;
        let numbers = self.ids.to_python(py, &self.held)?;
        Ok((builder, (module, numbers)).into_pyobject(py)?.into_any())
    }
}

/// Iterator over a sequence of instructions.
#[pyclass(frozen, module = "hlofast._core")]
pub struct InstructionIterator {
    held: Arc<Held>,
    ids: Ids,
    next: AtomicUsize,
}

#[pymethods]
impl InstructionIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self) -> Option<Instruction> {
        let index = self.next.load(Ordering::Relaxed);
        self.next.store(index + 1, Ordering::Relaxed);
        let row = self.ids.get(&self.held, index)?;
        Some(Instruction { held: Arc::clone(&self.held), row })
    }

    fn __length_hint__(&self) -> usize {
        self.ids.len(&self.held).saturating_sub(self.next.load(Ordering::Relaxed))
    }
}

/// A lazy, immutable sequence of computations.
///
/// Index it with a position, a slice or a name. An unknown name raises `KeyError`.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ComputationSequence {
    pub held: Arc<Held>,
    pub ids: Ids,
}

impl ComputationSequence {
    fn computation(&self, id: u32) -> Computation {
        Computation { held: Arc::clone(&self.held), id: ComputationId(id) }
    }

    fn named(&self, name: &str) -> Option<u32> {
        let id = self.held.core.find_computation(name.as_bytes())?.0;
        self.ids.contains(&self.held, id).then_some(id)
    }
}

#[pymethods]
impl ComputationSequence {
    fn __len__(&self) -> usize {
        self.ids.len(&self.held)
    }

    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (this, py) = (slf.get(), slf.py());
        if let Ok(index) = key.extract::<isize>() {
            let id = this.ids.at(&this.held, index, "computation")?;
            return Ok(Bound::new(py, this.computation(id))?.into_any());
        }
        if let Ok(slice) = key.cast::<PySlice>() {
            let ids = this.ids.slice(&this.held, slice)?;
            let held = Arc::clone(&this.held);
            return Ok(Bound::new(py, ComputationSequence { held, ids })?.into_any());
        }
        if let Ok(name) = key.cast::<PyString>() {
            let name = name.to_string_lossy();
            let id = this.named(&name);
            let id = id.ok_or_else(|| PyKeyError::new_err(no_such("computation", &name)))?;
            return Ok(Bound::new(py, this.computation(id))?.into_any());
        }
        Err(PyTypeError::new_err("computations are indexed by position, slice or name"))
    }

    fn __contains__(&self, item: &Bound<'_, PyAny>) -> bool {
        if let Ok(name) = item.cast::<PyString>() {
            return self.named(&name.to_string_lossy()).is_some();
        }
        item.cast::<Computation>().is_ok_and(|other| {
            let other = other.get();
            same_module(&self.held, &other.held) && self.ids.contains(&self.held, other.id.0)
        })
    }

    fn __iter__(&self) -> ComputationIterator {
        ComputationIterator {
            held: Arc::clone(&self.held),
            ids: self.ids.clone(),
            next: AtomicUsize::new(0),
        }
    }

    fn __reversed__(&self) -> ComputationIterator {
        let mut ids = self.ids.to_vec(&self.held);
        ids.reverse();
        let ids = Ids::List(ids.into());
        ComputationIterator { held: Arc::clone(&self.held), ids, next: AtomicUsize::new(0) }
    }

    /// Returns the position of a computation, or of the computation with the given name.
    ///
    /// Raises `ValueError` if it is not in the sequence.
    fn index(&self, item: &Bound<'_, PyAny>) -> PyResult<usize> {
        let id = match item.cast::<PyString>() {
            Ok(name) => self.named(&name.to_string_lossy()),
            Err(_) => item.cast::<Computation>().ok().and_then(|other| {
                let other = other.get();
                same_module(&self.held, &other.held).then_some(other.id.0)
            }),
        };
        let ids = self.ids.to_vec(&self.held);
        let position = id.and_then(|id| ids.iter().position(|i| *i == id));
        position.ok_or_else(|| PyValueError::new_err("computation is not in the sequence"))
    }

    /// Returns how often a computation occurs in the sequence.
    fn count(&self, item: &Bound<'_, PyAny>) -> usize {
        let Ok(other) = item.cast::<Computation>() else { return 0 };
        let other = other.get();
        let same = same_module(&self.held, &other.held);
        let ids = self.ids.to_vec(&self.held);
        ids.iter().filter(|id| same && **id == other.id.0).count()
    }

    /// Returns the names of all computations.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for id in self.ids.to_vec(&self.held) {
            list.append(text(py, self.held.core.computation_name(ComputationId(id)))?)?;
        }
        Ok(list)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<ComputationSequence>().is_ok_and(|other| {
            let other = other.get();
            same_module(&self.held, &other.held)
                && self.ids.to_vec(&self.held) == other.ids.to_vec(&other.held)
        })
    }

    fn __hash__(&self) -> u64 {
        let first = self.ids.get(&self.held, 0).unwrap_or(u32::MAX);
        hash_of(&self.held, 4, first ^ (self.ids.len(&self.held) as u32).rotate_left(16))
    }

    fn __repr__(&self) -> String {
        let names = self.ids.to_vec(&self.held).into_iter().take(6).map(|id| {
            let name = self.held.core.computation_name(ComputationId(id));
            String::from_utf8_lossy(name).into_owned()
        });
        let mut names: Vec<String> = names.collect();
        let length = self.ids.len(&self.held);
        if length > names.len() {
            names.push("...".to_owned());
        }
        let noun = if length == 1 { "computation" } else { "computations" };
        format!("<{length} {noun}: [{}]>", names.join(", "))
    }

    fn _repr_html_(&self) -> String {
        crate::html::computation_table(&self.held, &self.ids.to_vec(&self.held))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let builder = restorer(py, "_restore_computations")?;
        let module = crate::module::Module::object(py, &self.held)?;
        let numbers = self.ids.to_python(py, &self.held)?;
        Ok((builder, (module, numbers)).into_pyobject(py)?.into_any())
    }
}

/// Iterator over a sequence of computations.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ComputationIterator {
    held: Arc<Held>,
    ids: Ids,
    next: AtomicUsize,
}

#[pymethods]
impl ComputationIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self) -> Option<Computation> {
        let index = self.next.load(Ordering::Relaxed);
        self.next.store(index + 1, Ordering::Relaxed);
        let id = self.ids.get(&self.held, index)?;
        Some(Computation { held: Arc::clone(&self.held), id: ComputationId(id) })
    }

    fn __length_hint__(&self) -> usize {
        self.ids.len(&self.held).saturating_sub(self.next.load(Ordering::Relaxed))
    }
}
