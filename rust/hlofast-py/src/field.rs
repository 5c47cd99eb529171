//! `Field`: the description of a column, and access to its values, with None for unknown values.

use crate::classes::restorer;
use crate::column::Column;
use crate::text_column::TextColumn;
use hlofast::table::{self, Kind};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The description of a column or fact.
///
/// A field has a name, the kind and unit of the values, a heading and one sentence of
/// documentation. It also tells whether values may be unknown and whether they add up.
#[pyclass(frozen, module = "hlofast._core")]
#[derive(Clone)]
pub struct Field {
    pub core: table::Field,
}

#[pymethods]
impl Field {
    /// A field of `kind` (see `hlofast.kinds`) named `name`; `doc` describes its values.
    ///
    /// Raises `ValueError` for an unknown kind.
    #[new]
    #[pyo3(signature = (kind, name, doc, *, label="", nullable=false, signed=false, adds_up=false))]
    fn new(
        kind: &str,
        name: &str,
        doc: &str,
        label: &str,
        nullable: bool,
        signed: bool,
        adds_up: bool,
    ) -> PyResult<Self> {
        let kind = Kind::from_word(kind)
            .ok_or_else(|| PyValueError::new_err(format!("unknown kind of field {kind:?}")))?;
        let mut core = table::Field::of(kind, name.into(), doc.into(), label.into());
        (core.is_nullable, core.is_signed, core.adds_up) = (nullable, signed, adds_up);
        Ok(Self { core })
    }

    /// The name, identical wherever the values are shown.
    #[getter]
    fn name(&self) -> &str {
        &self.core.name
    }

    /// The kind of the values: one of `hlofast.kinds`.
    #[getter]
    fn kind(&self) -> &'static str {
        self.core.kind.as_str()
    }

    /// The unit of the values: B, FLOP, s; or empty.
    #[getter]
    fn unit(&self) -> &'static str {
        self.core.kind.unit()
    }

    /// The heading in tables.
    #[getter]
    fn label(&self) -> String {
        self.core.heading().into_owned()
    }

    /// One sentence that describes the values.
    #[getter]
    fn doc(&self) -> &str {
        &self.core.doc
    }

    /// Whether a value may be unknown or absent: None, a null or a masked entry.
    #[getter]
    fn nullable(&self) -> bool {
        self.core.is_nullable
    }

    /// Whether negative numbers are valid values.
    #[getter]
    fn signed(&self) -> bool {
        self.core.is_signed
    }

    /// Whether the sum over all rows is meaningful.
    #[getter]
    fn adds_up(&self) -> bool {
        self.core.adds_up
    }

    /// The integer stored for a masked entry; None if there is none. Floats use NaN.
    #[getter]
    fn unknown(&self) -> Option<i64> {
        self.core.unknown().filter(|_| !self.core.kind.is_real())
    }

    /// Whether the values are texts.
    #[getter]
    fn is_text(&self) -> bool {
        self.core.kind.is_text()
    }

    /// Whether the values are amounts, which can be added.
    #[getter]
    fn is_amount(&self) -> bool {
        self.core.kind.is_amount()
    }

    /// Returns a copy of the field with other properties.
    #[pyo3(signature = (*, name=None, doc=None, label=None, nullable=None, adds_up=None))]
    fn replace(
        &self,
        name: Option<String>,
        doc: Option<String>,
        label: Option<String>,
        nullable: Option<bool>,
        adds_up: Option<bool>,
    ) -> Self {
        let own = &self.core;
        let name = name.unwrap_or_else(|| own.name.to_string());
        let doc = doc.unwrap_or_else(|| own.doc.to_string());
        let label = label.unwrap_or_else(|| own.label.to_string());
        let mut core = table::Field::of(own.kind, name, doc, label);
        core.is_signed = own.is_signed;
        core.is_nullable = nullable.unwrap_or(own.is_nullable);
        core.adds_up = adds_up.unwrap_or(own.adds_up);
        Self { core }
    }

    /// Returns the values of a column of this field as a list, with None for unknown values.
    fn values<'py>(&self, column: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        if let Ok(texts) = column.cast::<TextColumn>() {
            return texts.get().list(column.py(), self.core.is_nullable);
        }
        let numbers = column
            .cast::<Column>()
            .map_err(|_| PyTypeError::new_err("a table's columns are Column or TextColumn"))?;
        let (list, numbers) = (numbers.get().list(column.py())?, numbers.get());
        if self.core.is_nullable {
            for at in (0..numbers.len()).filter(|at| !numbers.is_known(*at, &self.core)) {
                list.set_item(at, column.py().None())?;
            }
        }
        Ok(list)
    }

    /// Returns the value in row `index` of a column of this field; None if it is unknown.
    fn value<'py>(
        &self,
        column: &Bound<'py, PyAny>,
        index: isize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = column.get_item(index)?;
        let is_known = match column.cast::<Column>() {
            Ok(numbers) => {
                let at = if index < 0 { index + numbers.get().len() as isize } else { index };
                numbers.get().is_known(at as usize, &self.core)
            }
            Err(_) => !(self.core.is_nullable && value.len().is_ok_and(|length| length == 0)),
        };
        Ok(Some(value).filter(|value| is_known && !value.is_none()))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let own = &self.core;
        let properties = (
            self.kind(),
            &*own.name,
            &*own.doc,
            &*own.label,
            (own.is_nullable, own.is_signed, own.adds_up),
        );
        (restorer(py, "_restore_field")?, properties).into_pyobject(py)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Field>().is_ok_and(|other| other.get().core == self.core)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.core.name, self.core.kind, &self.core.doc).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        let null = if self.core.is_nullable { ", nullable" } else { "" };
        format!("<Field {}: {}{null}; {}>", self.core.name, self.kind(), self.core.doc)
    }
}

/// Restores a field from the result of `Field.__reduce__`.
#[pyfunction]
pub fn _restore_field(
    kind: &str,
    name: &str,
    doc: &str,
    label: &str,
    properties: (bool, bool, bool),
) -> PyResult<Field> {
    Field::new(kind, name, doc, label, properties.0, properties.1, properties.2)
}
