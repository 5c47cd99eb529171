//! `RematData`: the core's report of recomputation and residuals, which `hlofast._remat` formats as
//! text and tables.

use crate::held::Held;
use crate::memory::rule_called;
use crate::plan::PlanData;
use crate::policy::PolicyData;
use crate::table_builder::to_list;
use crate::time::TimeData;
use hlofast::flow::Phase;
use hlofast::ir::{Module, Row};
use hlofast::memory::{Options, Tables};
use hlofast::remat::policy::Chip;
use hlofast::remat::{Counting, PlanOptions, Report, parameters_read};
use hlofast::table;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// The recomputation and the residuals of a module.
#[pyclass(frozen, module = "hlofast._core")]
pub struct RematData {
    held: Arc<Held>,
}

impl RematData {
    pub fn new(held: Arc<Held>) -> Self {
        held.stage.remat();
        held.stage.sent();
        Self { held }
    }

    fn module(&self) -> &Module {
        self.held.stage.module()
    }

    fn report(&self) -> &Report {
        self.held.stage.remat()
    }
}

#[pymethods]
impl RematData {
    /// Fields and columns of the table of recomputed instructions.
    fn recomputed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let columns =
            || table::recomputed(&self.held.stage.origin(), self.held.stage.cost(), self.report());
        to_list(py, py.detach(columns))
    }

    /// Fields and columns of the table of residuals.
    fn residuals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, py.detach(|| table::residuals(&self.held.stage.origin(), self.report())))
    }

    /// Fields and columns of the table of all-gathers.
    fn gathers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let stage = &self.held.stage;
        let columns = || table::gathers(&stage.origin(), self.report(), stage.sent());
        to_list(py, py.detach(columns))
    }

    /// Number of instructions in the text, by phase.
    fn instructions(&self) -> Vec<(&'static str, u64)> {
        Phase::ALL.iter().map(|phase| phase.as_str()).zip(self.report().instructions).collect()
    }

    /// Rows of JAX's marks for named or saved values, of barriers around residuals, and of sharding
    /// constraints in code under `jax.checkpoint`.
    fn marks(&self) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let rows = |rows: &[Row]| rows.iter().map(|row| row.0).collect();
        let report = self.report();
        (rows(&report.named), rows(&report.barriers), rows(&report.constraints))
    }

    /// Operation name, source file and source line of each of `rows`; empty if unknown.
    fn places(&self, rows: Vec<u32>) -> Vec<(String, String, i64)> {
        let module = self.module();
        let origin = self.held.stage.origin();
        let text =
            |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        let known = rows.into_iter().filter(|row| (*row as usize) < module.row_count()).map(Row);
        known
            .map(|row| {
                let line = origin.source_line(row);
                (text(origin.op_name(row).as_deref()), text(origin.source_file(row)), line)
            })
            .collect()
    }

    /// Plans which values to recompute so that the peak fits `budget` bytes, or is as low as
    /// possible.
    ///
    /// Without `rule`, peaks are counted as users compare them. `table_bytes` is the size to which
    /// a device rounds the pointer tables of tuples, if known. Raises `ValueError` if memory cannot
    /// be counted.
    #[pyo3(signature = (budget=None, time=None, *, rule=None, table_bytes=None))]
    fn plan(
        &self,
        py: Python<'_>,
        budget: Option<i64>,
        time: Option<&Bound<'_, TimeData>>,
        rule: Option<&str>,
        table_bytes: Option<u32>,
    ) -> PyResult<PlanData> {
        let seconds = time.map(|time| time.get().seconds_alone());
        let rule = rule.map(rule_called).transpose()?;
        let tables = table_bytes.map(Tables::Rounded);
        let (plan, options) = py.detach(|| {
            let counting = match rule {
                Some(rule) => Counting { memory: Options { rule, ..Options::default() }, tables },
                None => Counting::usual(self.module(), tables),
            };
            let options = PlanOptions { counting, budget, ..PlanOptions::default() };
            (self.held.stage.plan(seconds.as_deref(), &options), options)
        });
        let plan = plan.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PlanData::new(Arc::clone(&self.held), options, plan))
    }

    /// The scans over layers, and what they need under other checkpoint policies; `time` gives the
    /// seconds of recomputed work. `host` are the bytes per second between a device and its host in
    /// one direction, and the bytes of host memory for a device, if known. With `apart`, each function of
    /// a layer without a loop is taken by itself, if the text does not tell how they are checkpointed.
    /// `device` is the name of the device and its backend, whose compiler may write other values.
    ///
    /// Raises `ValueError` with a word that says why if the model covers no layers.
    #[pyo3(signature = (time=None, host=None, apart=false, device=None))]
    fn policies(
        &self,
        py: Python<'_>,
        time: Option<&Bound<'_, TimeData>>,
        host: Option<(f64, Option<i64>)>,
        apart: bool,
        device: Option<(String, String)>,
    ) -> PyResult<PolicyData> {
        let timing = time.map(|time| time.get().timing());
        let chip = device.and_then(|(name, backend)| Chip::of(&name, &backend));
        let found =
            py.detach(|| PolicyData::new(Arc::clone(&self.held), timing, host, (chip, apart)));
        found.map_err(|reason| match reason.row() {
            Some(row) => PyValueError::new_err((reason.as_str(), row.0)),
            None => PyValueError::new_err(reason.as_str()),
        })
    }

    /// The entry parameters that `rows` depend on; None if there are too many instructions to
    /// follow.
    fn parameters_read(&self, py: Python<'_>, rows: Vec<u32>) -> Option<Vec<u32>> {
        let module = self.module();
        let known = |row: &u32| (*row as usize) < module.row_count();
        let rows: Vec<Row> = rows.into_iter().filter(known).map(Row).collect();
        let parameters = py.detach(|| parameters_read(module, &rows))?;
        Some(parameters.into_iter().map(|row| row.0).collect())
    }
}
