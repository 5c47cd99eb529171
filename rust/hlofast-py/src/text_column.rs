//! `TextColumn`: a table's column of texts, stored as codes into distinct texts or one by one.

use crate::column::Column;
use crate::held::text;
use hlofast::table::Texts;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// A read-only column of texts; absent texts are None.
#[pyclass(frozen, module = "hlofast._core")]
pub struct TextColumn {
    values: Texts,
    /// None if `values` holds the texts in row order.
    codes: Option<Py<Column>>,
}

impl TextColumn {
    /// A column of `values`, indexed by `codes` if given.
    pub fn new_from(values: Texts, codes: Option<Py<Column>>) -> Self {
        Self { values, codes }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.codes.as_ref().map_or(self.values.len(), |codes| codes.get().len())
    }

    /// The text of row `index`.
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        let index = match &self.codes {
            None => index,
            Some(codes) => usize::try_from(codes.get().integer(index)?).ok()?,
        };
        self.values.get(index)
    }

    /// The texts as a list of str; with `is_nullable`, empty texts become None.
    pub fn list<'py>(&self, py: Python<'py>, is_nullable: bool) -> PyResult<Bound<'py, PyList>> {
        let made = |value: &[u8]| match value.is_empty() && is_nullable {
            true => Ok(None),
            false => Ok(Some(text(py, value)?.into_any())),
        };
        let values = self.values.iter().map(made).collect::<PyResult<Vec<_>>>()?;
        let Some(codes) = &self.codes else { return PyList::new(py, values) };
        let codes = codes.get();
        let of = |row: usize| {
            let code = codes.integer(row).and_then(|code| usize::try_from(code).ok());
            code.and_then(|code| values.get(code)).cloned().flatten()
        };
        PyList::new(py, (0..self.len()).map(of))
    }

    /// Codes and distinct texts, if the column has codes.
    pub fn dictionary(&self) -> Option<(&Column, &Texts)> {
        self.codes.as_ref().map(|codes| (codes.get(), &self.values))
    }
}

#[pymethods]
impl TextColumn {
    /// A column of `values`, indexed by `codes` if given; a code out of range is None.
    #[new]
    #[pyo3(signature = (values, codes=None))]
    fn new(values: Vec<String>, codes: Option<Py<Column>>) -> PyResult<Self> {
        if codes
            .as_ref()
            .is_some_and(|codes| codes.get().integer(0).is_none() && codes.get().len() > 0)
        {
            return Err(PyValueError::new_err("codes must be integers"));
        }
        Ok(Self { values: values.into_iter().collect(), codes })
    }

    fn __len__(&self) -> usize {
        self.len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: isize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let length = self.len() as isize;
        let position = if index < 0 { index + length } else { index };
        if !(0..length).contains(&position) {
            return Err(PyIndexError::new_err("column index out of range"));
        }
        self.bytes(position as usize).map(|bytes| Ok(text(py, bytes)?.into_any())).transpose()
    }

    /// Returns the texts as a list of str, with None for absent texts.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.list(py, false)
    }

    /// Returns the texts of `rows`, as a column.
    ///
    /// Raises `IndexError` for a row that does not exist.
    fn take(&self, py: Python<'_>, rows: Vec<usize>) -> PyResult<Self> {
        if rows.iter().any(|row| *row >= self.len()) {
            return Err(PyIndexError::new_err("row out of range"));
        }
        Ok(match &self.codes {
            None => {
                let values = rows.iter().filter_map(|row| self.values.get(*row)).collect();
                Self { values, codes: None }
            }
            Some(codes) => {
                let codes = codes.get().take(rows)?;
                Self { values: self.values.clone(), codes: Some(Py::new(py, codes)?) }
            }
        })
    }

    fn __repr__(&self) -> String {
        format!("<hlofast.TextColumn of {} texts>", self.len())
    }
}
