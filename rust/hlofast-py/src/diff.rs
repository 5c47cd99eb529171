//! `DiffData`: the core's comparison of two modules, for `hlofast._diff`.

use crate::held::Held;
use crate::module::Module;
use crate::table_builder::to_list;
use hlofast::diff::{Diff, Options, diff};
use hlofast::table::{changes, pairs};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// The differences between two modules.
#[pyclass(frozen, module = "hlofast._core")]
pub struct DiffData {
    before: Arc<Held>,
    after: Arc<Held>,
    differences: Diff,
}

/// Compares two modules.
#[pyfunction]
#[pyo3(signature = (before, after, *, layouts, backend_config, schedule))]
pub fn _diff(
    py: Python<'_>,
    before: &Bound<'_, Module>,
    after: &Bound<'_, Module>,
    layouts: bool,
    backend_config: bool,
    schedule: bool,
) -> DiffData {
    let (before, after) = (Arc::clone(&before.get().held), Arc::clone(&after.get().held));
    let options = Options { layouts, backend_config, schedule };
    let differences = py.detach(|| diff(&before.core, &after.core, &options));
    DiffData { before, after, differences }
}

#[pymethods]
impl DiffData {
    /// Whether layouts count as differences.
    #[getter]
    fn compares_layouts(&self) -> bool {
        self.differences.compares_layouts
    }

    /// Whether both modules run in the same order; None if the order was not compared.
    #[getter]
    fn same_schedule(&self) -> Option<bool> {
        self.differences.same_schedule
    }

    /// Fields and columns of the table of changes: all changes, or only changes that do not follow
    /// from others.
    fn changes<'py>(&self, py: Python<'py>, only_causes: bool) -> PyResult<Bound<'py, PyList>> {
        let (before, after) = (&self.before.stage, &self.after.stage);
        let made = || changes(&before.origin(), &after.origin(), &self.differences, only_causes);
        to_list(py, py.detach(made))
    }

    /// Fields and columns of the table of pairs.
    fn pairs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, py.detach(|| pairs(&self.differences)))
    }
}
