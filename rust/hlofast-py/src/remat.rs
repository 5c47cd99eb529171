//! `RematData`: the core's report of what is recomputed and kept, which `hlofast._remat` puts into
//! words and tables.

use crate::collectives::CollectivesData;
use crate::counted::Counted;
use crate::plan::PlanData;
use crate::table_builder::{Origin, TableBuilder, number, row_or_none};
use crate::time::TimeData;
use hlofast::graph::Phase;
use hlofast::ir::{Module, Row, ShapeId};
use hlofast::print::plain_shape_within;
use hlofast::remat::{Analysed, Gather, PlanOptions, Report, parameters_read, plan};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// Characters of a shape in a table; of longer ones the middle is left out.
const SHAPE_LIMIT: usize = 120;

/// What a module recomputes and keeps.
#[pyclass(frozen, module = "hlofast._core")]
pub struct RematData {
    pub counted: Arc<Counted>,
    pub report: Report,
    pub sent: CollectivesData,
}

impl RematData {
    fn module(&self) -> &Module {
        &self.sent.held.core
    }

    fn shape(&self, shape: Option<ShapeId>) -> Vec<u8> {
        let text = |shape| plain_shape_within(self.module().shapes(), shape, SHAPE_LIMIT);
        shape.map(text).unwrap_or_default()
    }

    fn texts_of<'a>(
        &'a self,
        rows: impl Iterator<Item = Row> + Clone + 'a,
        table: &TableBuilder<'_>,
    ) -> PyResult<()> {
        let module = self.module();
        let origin = Origin::new(module);
        table.texts("op_name", rows.clone().map(|row| origin.op_name(row).unwrap_or_default()))?;
        let file = |row: Row| origin.source_file(row).unwrap_or_default();
        table.texts("source_file", rows.clone().map(file))?;
        table.numbers("source_line", rows.map(|row| origin.source_line(row)))
    }
}

#[pymethods]
impl RematData {
    /// Names and columns of the table of instructions that are executed again.
    fn recomputed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let module = self.module();
        let each = || self.report.recomputed.iter();
        let table = TableBuilder::new(py);
        table.rows("instruction", each().map(|entry| entry.row))?;
        let name = |row: Row| module.instruction_name(row).to_vec();
        table.texts("name", each().map(|entry| name(entry.row)))?;
        let place = |row: Row| module.computation_name(module.computation_of(row)).to_vec();
        table.texts("computation", each().map(|entry| place(entry.row)))?;
        table.texts("opcode", each().map(|entry| module.opcode_text(entry.row).to_vec()))?;
        table.texts("by", each().map(|entry| entry.by.as_str().into()))?;
        table.numbers("twin", each().map(|entry| row_or_none(entry.twin)))?;
        table.flags("is_collective", each().map(|entry| entry.is_collective))?;
        table.numbers("multiplicity", each().map(|entry| entry.executions.unwrap_or(-1)))?;
        let cost = &self.counted.cost;
        let once = [&cost.flops, &cost.bytes_read, &cost.bytes_written];
        for (name, once) in ["flops", "bytes_read", "bytes_written"].iter().zip(once) {
            let total = |entry: &hlofast::remat::Recomputed| {
                let once = once.get(entry.row.0 as usize).copied().unwrap_or(0);
                entry.executions.map_or(-1, |runs| once.saturating_mul(runs))
            };
            table.numbers(name, each().map(total))?;
        }
        self.texts_of(each().map(|entry| entry.row), &table)?;
        Ok(table.finish())
    }

    /// Names and columns of the table of what is kept from forward to backward.
    fn residuals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let module = self.module();
        let each = || self.report.residuals.iter();
        let table = TableBuilder::new(py);
        table.rows("instruction", each().map(|entry| entry.place.row))?;
        let name = |row: Row| module.instruction_name(row).to_vec();
        table.texts("name", each().map(|entry| name(entry.place.row)))?;
        let path = |entry: &hlofast::remat::Residual| {
            let steps: Vec<String> = entry.place.path.iter().rev().map(u32::to_string).collect();
            format!("{{{}}}", steps.join(",")).into_bytes()
        };
        table.texts("index", each().map(path))?;
        table.texts("kind", each().map(|entry| entry.kind.as_str().into()))?;
        table.texts("shape", each().map(|entry| self.shape(Some(entry.shape))))?;
        table.numbers("bytes", each().map(|entry| entry.bytes))?;
        table.numbers("span", each().map(|entry| i64::from(entry.span)))?;
        table.rows("first_use", each().map(|entry| entry.uses.0))?;
        table.rows("last_use", each().map(|entry| entry.uses.1))?;
        let widened = |entry: &hlofast::remat::Residual| {
            entry.widened_from.map_or("", |from| from.as_str()).into()
        };
        table.texts("widened_from", each().map(widened))?;
        table.flags("is_stacked", each().map(|entry| entry.stacked.is_some()))?;
        table.numbers("trip_count", each().map(|entry| number(entry.stacked.flatten())))?;
        table.rows("made_by", each().map(|entry| entry.made_by))?;
        table.rows("source", each().map(|entry| entry.source))?;
        table.texts("source_name", each().map(|entry| name(entry.source)))?;
        table.flags("is_named", each().map(|entry| entry.is_named))?;
        self.texts_of(each().map(|entry| entry.source), &table)?;
        Ok(table.finish())
    }

    /// Names and columns of the table of all-gathers.
    fn gathers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let module = self.module();
        let origin = Origin::new(module);
        let each = || self.report.gathers.iter();
        let index = |gather: &Gather| gather.collective as usize;
        let of = |gather: &Gather| &self.sent.found.collectives[index(gather)];
        let along = |gather: &Gather| self.sent.along.get(index(gather));
        let table = TableBuilder::new(py);
        table.rows("instruction", each().map(|gather| of(gather).row))?;
        let name = |row: Row| module.instruction_name(row).to_vec();
        table.texts("name", each().map(|gather| name(of(gather).row)))?;
        let place = |row: Row| module.computation_name(module.computation_of(row)).to_vec();
        table.texts("computation", each().map(|gather| place(of(gather).outer)))?;
        table.texts("fate", each().map(|gather| gather.fate.as_str().into()))?;
        table.texts("moved", each().map(|gather| of(gather).moved.as_str().into()))?;
        table.texts("tensor", each().map(|gather| self.sent.tensor(&origin, of(gather))))?;
        let result = |gather: &Gather| result_shape(module, of(gather).row);
        table.texts("shape", each().map(|gather| self.shape(result(gather))))?;
        let axes = |gather: &Gather| along(gather).map(|found| found.axes.clone().into_bytes());
        table.texts("axes", each().map(|gather| axes(gather).unwrap_or_default()))?;
        let size = |gather: &Gather| number(self.sent.group_size(index(gather)));
        table.numbers("group_size", each().map(size))?;
        table.numbers("payload_in", each().map(|gather| number(of(gather).payload_in)))?;
        table.numbers("payload_out", each().map(|gather| number(of(gather).payload_out)))?;
        let wire = |gather: &Gather| self.sent.wire_bytes(index(gather));
        table.numbers("wire_bytes", each().map(wire))?;
        let runs = |gather: &Gather| {
            let mut counts = of(gather).executions.iter().map(|entry| entry.count);
            counts.try_fold(0i64, |sum, count| sum.checked_add(count?)).unwrap_or(-1)
        };
        table.numbers("multiplicity", each().map(runs))?;
        let residual = |gather: &Gather| gather.residual.map_or(-1, i64::from);
        table.numbers("residual", each().map(residual))?;
        self.texts_of(each().map(|gather| of(gather).row), &table)?;
        Ok(table.finish())
    }

    /// Written instructions by phase.
    fn instructions(&self) -> Vec<(&'static str, u64)> {
        Phase::ALL.iter().map(|phase| phase.as_str()).zip(self.report.instructions).collect()
    }

    /// Rows where JAX marks named or saved values, of barriers around residuals, and of sharding
    /// constraints in code under `jax.checkpoint`.
    fn marks(&self) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let rows = |rows: &[Row]| rows.iter().map(|row| row.0).collect();
        let report = &self.report;
        (rows(&report.named), rows(&report.barriers), rows(&report.constraints))
    }

    /// Of `rows`: operation name, source file and line, as far as they are known.
    fn places(&self, rows: Vec<u32>) -> Vec<(String, String, i64)> {
        let module = self.module();
        let origin = Origin::new(module);
        let text = |bytes: Option<Vec<u8>>| {
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        };
        let known = rows.into_iter().filter(|row| (*row as usize) < module.row_count()).map(Row);
        known
            .map(|row| {
                let line = origin.source_line(row);
                (text(origin.op_name(row)), text(origin.source_file(row)), line)
            })
            .collect()
    }

    /// What to compute again so that at most `budget` bytes are needed at the peak, or as few as
    /// possible.
    #[pyo3(signature = (budget=None, time=None))]
    fn plan(
        &self,
        py: Python<'_>,
        budget: Option<i64>,
        time: Option<&Bound<'_, TimeData>>,
    ) -> PyResult<PlanData> {
        let counted = &self.counted;
        let seconds = time.map(|time| time.get().seconds_alone());
        let options = PlanOptions { budget, ..PlanOptions::default() };
        let found = py.detach(|| {
            let analysed = Analysed {
                module: self.module(),
                cost: &counted.cost,
                attribution: counted.attribution(),
                collectives: &self.sent.found,
                residuals: &self.report.residuals,
                seconds: seconds.as_deref(),
            };
            plan(&analysed, &options)
        });
        let found = found.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PlanData::new(Arc::clone(&counted.held), options, found))
    }

    /// The entry's parameters that `rows` depend on; None if there is too much to follow.
    fn parameters_read(&self, py: Python<'_>, rows: Vec<u32>) -> Option<Vec<u32>> {
        let module = self.module();
        let known = |row: &u32| (*row as usize) < module.row_count();
        let rows: Vec<Row> = rows.into_iter().filter(known).map(Row).collect();
        let found = py.detach(|| parameters_read(module, &rows))?;
        Some(found.into_iter().map(|row| row.0).collect())
    }
}

/// The array that a gather makes: of one with a start the second element of that.
fn result_shape(module: &Module, row: Row) -> Option<ShapeId> {
    let shape = module.shape(row);
    match module.shapes().tuple(shape) {
        Some(elements) => elements.get(1).copied(),
        None => Some(shape),
    }
}
