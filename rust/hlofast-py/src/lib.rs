//! Python bindings of hlofast: the only code that knows PyO3.

use pyo3::prelude::*;

/// The compiled part of the package `hlofast`.
#[pymodule]
mod _core {}
