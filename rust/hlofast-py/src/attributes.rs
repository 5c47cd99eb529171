//! `Attributes`: the attributes of an instruction or of the module header, as a mapping.

use crate::classes::restorer;
use crate::errors::to_python;
use crate::held::{Held, text, text_or_bytes};
use crate::instruction::typed;
use crate::values;
use hlofast::ir::Row;
use hlofast::ir::decode::decode_header;
use hlofast::text::Span;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyString};
use std::collections::HashSet;
use std::sync::Arc;

/// Attributes by key, in text order. Values are decoded on access.
#[pyclass(frozen, mapping, module = "hlofast._core")]
pub struct Attributes {
    pub held: Arc<Held>,
    /// The instruction; None for the module header.
    pub row: Option<u32>,
}

/// An attribute that was found but not decoded.
pub struct Found {
    pub row: Option<Row>,
    pub key: Span,
    pub value: Span,
}

/// Finds attribute `key` of `row`.
pub fn attribute_value(held: &Held, row: Row, key: &str) -> PyResult<Found> {
    let mut all = held.core.attributes(row);
    let attribute = all.find(|attribute| held.core.bytes(attribute.key) == key.as_bytes());
    attribute
        .map(|attribute| Found { row: Some(row), key: attribute.key, value: attribute.value })
        .ok_or_else(|| PyKeyError::new_err(key.to_owned()))
}

/// Decodes an attribute's value to a Python object.
pub fn decoded<'py>(
    py: Python<'py>,
    held: &Arc<Held>,
    attribute: Found,
) -> PyResult<Bound<'py, PyAny>> {
    let Found { row, key, value } = attribute;
    let key = held.core.bytes(key);
    match row {
        Some(row) => {
            let decoded = typed(held, key, held.core.opcode(row), value)?;
            values::to_python(py, held, Some(row), key, value, decoded)
        }
        None => {
            let decoded = decode_header(key, held.core.bytes(value))
                .map_err(|error| to_python(held.core.source(), &error.shifted(value.start)))?;
            values::header_to_python(py, held, key, value, decoded)
        }
    }
}

impl Attributes {
    /// All attributes in text order; for duplicate keys only the first.
    fn all(&self) -> Vec<Found> {
        let core = &self.held.core;
        let attribute = |row, key, value| Found { row, key, value };
        let mut all: Vec<Found> = match self.row.map(Row) {
            Some(row) => {
                core.attributes(row).map(|a| attribute(Some(row), a.key, a.value)).collect()
            }
            None => core
                .header()
                .attributes
                .iter()
                .map(|(key, value)| attribute(None, *key, *value))
                .collect(),
        };
        let mut seen: HashSet<&[u8]> = HashSet::with_capacity(all.len());
        all.retain(|attribute| seen.insert(core.bytes(attribute.key)));
        all
    }

    fn find(&self, key: &str) -> Option<Found> {
        let core = &self.held.core;
        self.all().into_iter().find(|attribute| core.bytes(attribute.key) == key.as_bytes())
    }

    fn required(&self, key: &Bound<'_, PyAny>) -> PyResult<Found> {
        let attribute =
            key.cast::<PyString>().ok().and_then(|key| self.find(&key.to_string_lossy()));
        attribute.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    fn key<'py>(&self, py: Python<'py>, attribute: &Found) -> PyResult<Bound<'py, PyString>> {
        text(py, self.held.core.bytes(attribute.key))
    }
}

#[pymethods]
impl Attributes {
    fn __len__(&self) -> usize {
        self.all().len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        decoded(py, &self.held, self.required(key)?)
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> bool {
        self.required(key).is_ok()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.try_iter()
    }

    /// Returns the value of `key`, or `default`.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.required(key) {
            Ok(attribute) => decoded(py, &self.held, attribute).map(Some),
            Err(_) => Ok(default),
        }
    }

    /// Returns the keys, in text order.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys: PyResult<Vec<_>> =
            self.all().iter().map(|attribute| self.key(py, attribute)).collect();
        PyList::new(py, keys?)
    }

    /// Returns the decoded values, in text order.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let values = self.all().into_iter().map(|attribute| decoded(py, &self.held, attribute));
        PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns pairs of key and decoded value, in text order.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let items = self.all().into_iter().map(|attribute| {
            (self.key(py, &attribute)?, decoded(py, &self.held, attribute)?).into_pyobject(py)
        });
        PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the value of `key` as written; `bytes` if it is binary.
    ///
    /// Raises `KeyError` if there is no such attribute.
    fn raw<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Ok(text_or_bytes(py, self.held.core.bytes(self.required(key)?.value)))
    }

    /// Returns all values as written, by key.
    fn texts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let texts = PyDict::new(py);
        for attribute in self.all() {
            texts.set_item(
                self.key(py, &attribute)?,
                text(py, self.held.core.bytes(attribute.value))?,
            )?;
        }
        Ok(texts)
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        match other.cast::<Attributes>() {
            Ok(other) => self.texts(py)?.eq(other.get().texts(py)?),
            Err(_) => PyDict::from_sequence(self.items(py)?.as_any())?.eq(other),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut parts = Vec::new();
        for attribute in self.all() {
            let lossy = |span| String::from_utf8_lossy(self.held.core.bytes(span)).into_owned();
            let mut value = lossy(attribute.value);
            if value.len() > 80 {
                value.truncate(value.floor_char_boundary(77));
                value.push_str("...");
            }
            parts.push(format!("{}={value}", self.key(py, &attribute)?.to_string_lossy()));
        }
        Ok(format!("<Attributes {}>", parts.join(", ")))
    }

    fn _repr_html_(&self) -> String {
        let rows = self.all().into_iter().map(|attribute| {
            let bytes = |span| self.held.core.bytes(span).to_vec();
            vec![bytes(attribute.key), bytes(attribute.value)]
        });
        crate::html::table("attributes", &["key", "value"], rows)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let builder = restorer(py, "_restore_attributes")?;
        let module = crate::module::Module::object(py, &self.held)?;
        Ok((builder, (module, self.row)).into_pyobject(py)?.into_any())
    }
}
