//! What compiled code needs of the package's Python side. The package registers its classes here,
//! so compiled code imports none of its modules.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyType};

/// The extension module itself, whose functions pickles name.
static CORE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
static MODULE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static PARSE_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Make every module from now on an object of `class_`, a subclass of `_core.Module`.
#[pyfunction]
pub fn _register_module_class(py: Python<'_>, class_: Py<PyType>) {
    // The first registration stays, so that a reload leaves one class.
    let _ = MODULE.set(py, class_);
}

/// Make every fault from now on an object of `class_`.
#[pyfunction]
pub fn _register_error_class(py: Python<'_>, class_: Py<PyType>) {
    let _ = PARSE_ERROR.set(py, class_);
}

/// Keep the extension module; called once, while it is made.
pub fn register_core(module: &Bound<'_, PyModule>) {
    let _ = CORE.set(module.py(), module.clone().unbind());
}

/// The registered subclass of `_core.Module`.
pub fn module_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    registered(py, &MODULE)
}

/// The registered class of faults.
pub fn error_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    registered(py, &PARSE_ERROR)
}

/// The function of this extension module that rebuilds a pickled object.
pub fn restorer<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    registered(py, &CORE)?.getattr(name)
}

fn registered<'a, 'py, T>(
    py: Python<'py>,
    place: &'a PyOnceLock<Py<T>>,
) -> PyResult<&'a Bound<'py, T>> {
    let missing = "the package hlofast has not registered its classes";
    let found = place.get(py).ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err(missing))?;
    Ok(found.bind(py))
}
