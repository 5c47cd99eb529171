//! Faults of the core, as Python's `hlofast.ParseError`.

use hlofast::text::{ErrorPlace, Source, render};
use hlofast::{ErrorKind, ParseError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Creates the `ParseError` object for `error` in `source`.
pub fn object<'py>(
    py: Python<'py>,
    source: &Source,
    error: &ParseError,
) -> PyResult<Bound<'py, PyAny>> {
    let place = ErrorPlace::new(source, error);
    let fields = PyDict::new(py);
    fields.set_item("path", source.path())?;
    fields.set_item("line", place.line)?;
    fields.set_item("column", place.column)?;
    fields.set_item("offset", place.offset)?;
    fields.set_item("end_offset", place.end_offset)?;
    fields.set_item("kind", error.kind().as_str())?;
    fields.set_item("excerpt", place.excerpt)?;
    fields.set_item("help", error.help())?;
    fields.set_item("rendering", render(source, error, false))?;
    crate::classes::error_class(py)?.call((error.message(),), Some(&fields))
}

/// The Python exception for `error` in `source`.
#[cold]
pub fn to_python(source: &Source, error: &ParseError) -> PyErr {
    Python::attach(|py| match object(py, source, error) {
        Ok(object) => PyErr::from_value(object),
        Err(failure) => failure,
    })
}

/// All kinds of faults, by their stable names.
pub fn kinds() -> Vec<&'static str> {
    ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect()
}
