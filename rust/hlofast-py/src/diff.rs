//! `DiffData`: the core's differences of two modules as columns, for `hlofast._diff`.

use crate::held::Held;
use crate::module::Module;
use crate::table_builder::to_list;
use hlofast::diff::{Change, Diff, Options, diff};
use hlofast::ir::Row;
use hlofast::table::{Columns, Origin, row_or_none};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// What differs between two modules.
#[pyclass(frozen, module = "hlofast._core")]
pub struct DiffData {
    before: Arc<Held>,
    after: Arc<Held>,
    found: Diff,
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
    let found = py.detach(|| diff(&before.core, &after.core, &options));
    DiffData { before, after, found }
}

#[pymethods]
impl DiffData {
    #[getter]
    fn compares_layouts(&self) -> bool {
        self.found.compares_layouts
    }

    #[getter]
    fn same_schedule(&self) -> Option<bool> {
        self.found.same_schedule
    }

    /// Names and columns of the table of changes: all, or those that no other brought about.
    fn changes<'py>(&self, py: Python<'py>, only_causes: bool) -> PyResult<Bound<'py, PyList>> {
        let changes = self.found.changes.iter();
        let each = || changes.clone().filter(|change| !(only_causes && change.is_consequence));
        let mut table = Columns::default();
        let (a, b) = (&self.before.core, &self.after.core);
        py.detach(|| (a.metadata_columns(), b.metadata_columns()));
        let origins = (Origin::new(a), Origin::new(b));
        // What the second module says of an instruction, where it has it.
        let told =
            |change: &Change, tell: &dyn Fn(&Origin<'_>, &hlofast::ir::Module, Row) -> Vec<u8>| {
                match (change.before, change.after) {
                    (_, Some(row)) => tell(&origins.1, b, row),
                    (Some(row), None) => tell(&origins.0, a, row),
                    (None, None) => Vec::new(),
                }
            };
        table.texts("kind", each().map(|change| change.kind.as_str()));
        table.texts("aspect", each().map(|change| change.aspect.clone().into_bytes()));
        let opcode = |change| told(change, &|_, module, row| module.opcode_text(row).to_vec());
        table.texts("opcode", each().map(opcode));
        table.texts("before", each().map(|change| change.before_text.clone()));
        table.texts("after", each().map(|change| change.after_text.clone()));
        table.flags("is_consequence", each().map(|change| change.is_consequence));
        let before = ["name_before", "computation_before", "instruction_before"];
        let after = ["name_after", "computation_after", "instruction_after"];
        for (names, module, is_before) in [(before, a, true), (after, b, false)] {
            let row = |change: &Change| if is_before { change.before } else { change.after };
            let name = |row: Row| module.instruction_name(row).to_vec();
            let place = |row: Row| module.computation_name(module.computation_of(row)).to_vec();
            let text = |tell: &dyn Fn(Row) -> Vec<u8>| -> Vec<Vec<u8>> {
                each().map(|change| row(change).map(tell).unwrap_or_default()).collect()
            };
            table.texts(names[0], text(&name).into_iter());
            table.texts(names[1], text(&place).into_iter());
            table.numbers(names[2], each().map(|change| row_or_none(row(change))));
        }
        let op_name =
            |change| told(change, &|origin, _, row| origin.op_name(row).unwrap_or_default());
        table.texts("op_name", each().map(op_name));
        let file =
            |change| told(change, &|origin, _, row| origin.source_file(row).unwrap_or_default());
        table.texts("source_file", each().map(file));
        let line = |change: &Change| match (change.before, change.after) {
            (_, Some(row)) => origins.1.source_line(row),
            (Some(row), None) => origins.0.source_line(row),
            (None, None) => 0,
        };
        table.numbers("source_line", each().map(line));
        to_list(py, table)
    }

    /// Names and columns of the table of pairs.
    fn pairs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut table = Columns::default();
        table.rows("instruction_before", self.found.pairs.iter().map(|pair| pair.0));
        table.rows("instruction_after", self.found.pairs.iter().map(|pair| pair.1));
        to_list(py, table)
    }
}
