//! `PlanData`: what to compute again instead of keeping it, which `hlofast._remat` puts into tables.

use crate::held::Held;
use crate::module::Module;
use crate::table_builder::to_list;
use hlofast::Options;
use hlofast::ir::Row;
use hlofast::remat::{Entry, Plan, PlanOptions, Rewritten, measure};
use hlofast::table::{Columns, row_or_none};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::{Arc, Mutex, PoisonError};

/// A plan, and the module it makes.
#[pyclass(frozen, module = "hlofast._core")]
pub struct PlanData {
    held: Arc<Held>,
    options: PlanOptions,
    plan: Mutex<Plan>,
    new: Option<Arc<Held>>,
}

impl PlanData {
    pub fn new(held: Arc<Held>, options: PlanOptions, mut plan: Plan) -> Self {
        let rewritten = plan.rewritten.take();
        let new = rewritten.map(|rewritten| view(&held, rewritten));
        Self { held, options, plan: Mutex::new(plan), new }
    }

    /// A new module in the context of the old one.
    fn object<'py>(&self, py: Python<'py>, new: &Arc<Held>) -> PyResult<Bound<'py, Module>> {
        Module::object(py, &new.told(self.held.run.told(py))?)
    }

    fn with<T>(&self, read: impl FnOnce(&Plan) -> T) -> T {
        read(&self.plan.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A new module as Python sees it, read as strictly as the old one.
fn view(held: &Held, rewritten: Rewritten) -> Arc<Held> {
    let options = Options { strictness: held.strictness, ..Options::default() };
    Held::new(rewritten.module, &options)
}

#[pymethods]
impl PlanData {
    /// The module in which these candidates are computed again, and its bytes at the peak. A
    /// ValueError says what is in the way.
    fn apply<'py>(
        &self,
        py: Python<'py>,
        numbers: Vec<usize>,
    ) -> PyResult<(Bound<'py, Module>, i64)> {
        let recomputes = self.with(|plan| plan.recomputes(&numbers));
        let recomputes = recomputes.ok_or_else(|| PyIndexError::new_err("no such candidate"))?;
        let core = &*self.held.core;
        let made = py.detach(|| measure(core, &recomputes, &self.options));
        let (peak, rewritten) = made.map_err(PyValueError::new_err)?;
        Ok((self.object(py, &view(&self.held, rewritten))?, peak))
    }

    /// Bytes at the peak: as it is, and with what was chosen.
    fn peaks(&self) -> (i64, i64) {
        self.with(|plan| (plan.before, plan.after()))
    }

    /// The row that runs at the peak; -1 without one.
    fn at(&self) -> i64 {
        self.with(|plan| row_or_none(plan.at))
    }

    /// The rule by which peaks are counted.
    fn rule(&self) -> &'static str {
        self.options.counting.memory.rule.as_str()
    }

    /// The number of the memory space that is fullest at the peak.
    fn space(&self) -> i64 {
        self.with(|plan| plan.space)
    }

    /// Bytes at the peak after each of the chosen ones.
    fn steps(&self) -> Vec<i64> {
        self.with(|plan| plan.steps.clone())
    }

    /// Whether the budget is met; None without one.
    fn fits(&self) -> Option<bool> {
        self.with(|plan| plan.fits)
    }

    /// The new module; None if nothing was chosen.
    fn module<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Module>>> {
        self.new.as_ref().map(|held| self.object(py, held)).transpose()
    }

    /// Of each candidate: the rows that run again.
    fn again(&self) -> Vec<Vec<u32>> {
        let rows = |entry: &Entry| entry.candidate.again.iter().map(|row| row.0).collect();
        self.with(|plan| plan.entries.iter().map(rows).collect())
    }

    /// Names and columns of the table of candidates.
    fn candidates<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let module = &*self.held.core;
        self.with(|plan| {
            let each = || plan.entries.iter();
            let mut table = Columns::default();
            table.numbers("residual", each().map(|entry| entry.candidate.residual.into()));
            let words = |rows: &[Row]| {
                let names = rows.iter().map(|row| module.instruction_name(*row));
                names.collect::<Vec<_>>().join(&b" "[..])
            };
            table.texts("again", each().map(|entry| words(&entry.candidate.again)));
            let stacked = |entry: &Entry| {
                let asked = &entry.candidate.recomputes;
                asked.iter().any(|one| matches!(one, hlofast::remat::Recompute::FromStack { .. }))
            };
            table.flags("is_stack", each().map(stacked));
            let kept = |entry: &Entry| match entry.candidate.recomputes.is_empty() {
                true => -1,
                false => entry.candidate.kept_instead,
            };
            table.numbers("kept_instead", each().map(kept));
            table.flags("is_alive_at_peak", each().map(|entry| entry.is_alive));
            table.numbers("peak", each().map(|entry| entry.peak.unwrap_or(-1)));
            let saved = |entry: &Entry| entry.peak.map_or(0, |peak| plan.before - peak);
            table.numbers("saved", each().map(saved));
            let known = |entry: &Entry| !entry.candidate.recomputes.is_empty();
            let figure =
                |entry: &Entry, figure: Option<i64>| figure.filter(|_| known(entry)).unwrap_or(-1);
            table.numbers("flops", each().map(|entry| figure(entry, entry.price.flops)));
            table.numbers("bytes_moved", each().map(|entry| figure(entry, entry.price.bytes)));
            let wire = |entry: &Entry| figure(entry, entry.price.wire_bytes);
            table.numbers("wire_bytes", each().map(wire));
            let seconds =
                |entry: &Entry| entry.price.seconds.filter(|_| known(entry)).unwrap_or(f64::NAN);
            table.reals("seconds", each().map(seconds));
            let order = |entry: &Entry| entry.chosen.map_or(-1, i64::from);
            table.numbers("chosen", each().map(order));
            let refusal = |entry: &Entry| entry.refusal.clone().unwrap_or_default().into_bytes();
            table.texts("refusal", each().map(refusal));
            let no_saving = |entry: &Entry| entry.no_saving.unwrap_or_default().as_bytes().to_vec();
            table.texts("no_saving", each().map(no_saving));
            to_list(py, table)
        })
    }
}
