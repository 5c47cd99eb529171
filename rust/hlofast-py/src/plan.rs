//! `PlanData`: the values to recompute instead of keeping them, which `hlofast._remat` formats as
//! tables.

use crate::held::Held;
use crate::module::Module;
use crate::table_builder::to_list;
use hlofast::Options;
use hlofast::remat::{Entry, Plan, PlanOptions, Rewritten, measure};
use hlofast::table::{candidates, row_or_none};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::{Arc, Mutex, PoisonError};

/// A plan, and the rewritten module.
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

/// A rewritten module as Python sees it, with the strictness of the original.
fn view(held: &Held, rewritten: Rewritten) -> Arc<Held> {
    let options = Options { strictness: held.strictness, ..Options::default() };
    Held::new(rewritten.module, &options)
}

#[pymethods]
impl PlanData {
    /// Returns the module in which these candidates are recomputed, and its bytes at the peak.
    ///
    /// Raises `IndexError` for a number without a candidate, and `ValueError` if the rewrite is
    /// impossible, with the reason.
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

    /// Bytes at the peak, originally and with the chosen candidates.
    fn peaks(&self) -> (i64, i64) {
        self.with(|plan| (plan.before, plan.after()))
    }

    /// The row that runs at the peak; -1 if there is none.
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

    /// Bytes at the peak after each chosen candidate.
    fn steps(&self) -> Vec<i64> {
        self.with(|plan| plan.steps.clone())
    }

    /// Whether the plan meets the budget; None without a budget.
    fn fits(&self) -> Option<bool> {
        self.with(|plan| plan.fits)
    }

    /// Why the plan chooses nothing, whatever candidates save; None if it may choose.
    fn refusal(&self) -> Option<&'static str> {
        self.with(|plan| plan.refusal)
    }

    /// The rewritten module; None if nothing was chosen.
    fn module<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Module>>> {
        self.new.as_ref().map(|held| self.object(py, held)).transpose()
    }

    /// The recomputed rows of each candidate.
    fn again(&self) -> Vec<Vec<u32>> {
        let rows = |entry: &Entry| entry.candidate.again.iter().map(|row| row.0).collect();
        self.with(|plan| plan.entries.iter().map(rows).collect())
    }

    /// Fields and columns of the table of candidates.
    fn candidates<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.with(|plan| to_list(py, candidates(&self.held.core, plan)))
    }
}
