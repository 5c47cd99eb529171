//! Classes of the package that compiled code needs. The package registers them here, so compiled
//! code does not import its modules.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyType};

/// The extension module, whose functions restore pickled objects.
static CORE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
static MODULE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static PARSE_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Makes every later module an instance of `class_`, a subclass of `_core.Module`.
#[pyfunction]
pub fn _register_module_class(py: Python<'_>, class_: Py<PyType>) {
    // The first registration is kept, so that a reload does not create a second class.
    let _ = MODULE.set(py, class_);
}

/// Makes every later fault an instance of `class_`.
#[pyfunction]
pub fn _register_error_class(py: Python<'_>, class_: Py<PyType>) {
    let _ = PARSE_ERROR.set(py, class_);
}

/// Keeps the extension module; called once, during its initialisation.
pub fn register_core(module: &Bound<'_, PyModule>) {
    let _ = CORE.set(module.py(), module.clone().unbind());
}

/// The registered subclass of `_core.Module`.
pub fn module_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    registered(py, &MODULE)
}

/// The registered class of errors.
pub fn error_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    registered(py, &PARSE_ERROR)
}

/// The function of this extension module that restores a pickled object.
pub fn restorer<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    registered(py, &CORE)?.getattr(name)
}

fn registered<'a, 'py, T>(
    py: Python<'py>,
    place: &'a PyOnceLock<Py<T>>,
) -> PyResult<&'a Bound<'py, T>> {
    let missing = "the package hlofast has not registered its classes";
    let class = place.get(py).ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err(missing))?;
    Ok(class.bind(py))
}
