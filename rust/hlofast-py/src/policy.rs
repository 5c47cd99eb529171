//! `PolicyData`: what a step would need under other checkpoint policies, which `hlofast._policies`
//! formats as tables.

use crate::held::Held;
use crate::table_builder::to_list;
use hlofast::remat::policy::{
    Chip, Fate, Host, NoPolicies, Outcome, Policies, Prices, choose, frontier,
};
use hlofast::table::{row_or_none, savable};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::Arc;

/// A function of a layer: the kind of layers, its name, the file and line of the call, and its own file.
type Called = (u32, String, String, i64, String);

/// The layers of a module.
#[pyclass(frozen, module = "hlofast._core")]
pub struct PolicyData {
    held: Arc<Held>,
    policies: Policies,
    timing: Option<Timing>,
    host: Option<Host>,
}

/// What the time model gives for policies.
pub struct Timing {
    /// By row: seconds of one execution; for collectives, seconds on the network.
    pub seconds: Vec<f64>,
    /// By computation: seconds of one run in the played schedule.
    pub played: Vec<f64>,
    /// By row: the bound of its time by bytes and FLOPs.
    pub bounds: Vec<f64>,
    /// By row: the bound by FLOPs alone.
    pub flop_bounds: Vec<f64>,
    /// By row: the bound by bytes alone.
    pub byte_bounds: Vec<f64>,
    /// HBM bytes per second, if known.
    pub bytes_per_second: Option<f64>,
    /// Seconds of a step that it would not take if its memory sufficed.
    pub pressure: f64,
}

impl PolicyData {
    pub fn new(
        held: Arc<Held>,
        timing: Option<Timing>,
        host: Option<(f64, Option<i64>)>,
        (chip, is_apart): (Option<Chip>, bool),
    ) -> Result<Self, NoPolicies> {
        let policies = held.stage.policies(chip, is_apart)?;
        let host = host.filter(|_| !policies.is_grouped());
        let host = host.map(|(bandwidth, bytes)| Host { bandwidth, bytes });
        Ok(Self { held, policies, timing, host })
    }

    /// The cost of recomputing values, and with a host that of moving them.
    fn prices(&self, host: Option<Host>) -> Prices<'_> {
        let stage = &self.held.stage;
        let timing = self.timing.as_ref();
        let seconds = timing.map(|own| own.seconds.as_slice());
        let prices = Prices::new(stage.cost(), stage.collectives(), seconds).with_host(host);
        match timing {
            Some(own) => prices
                .with_memory(
                    &own.bounds,
                    [&own.flop_bounds, &own.byte_bounds],
                    own.bytes_per_second,
                )
                .with_schedule(&own.played),
            None => prices,
        }
    }
}

fn fate_of(code: u8) -> PyResult<Fate> {
    match code {
        0 => Ok(Fate::Recomputed),
        1 => Ok(Fate::Saved),
        2 => Ok(Fate::Offloaded),
        _ => Err(PyValueError::new_err("a fate is 0, 1 or 2")),
    }
}

fn to_dict<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    figures.set_item("peak", outcome.peak)?;
    figures.set_item("at", row_or_none(outcome.at))?;
    figures.set_item("kept", outcome.kept)?;
    figures.set_item("on_host", outcome.on_host)?;
    figures.set_item("saved", outcome.saved.clone())?;
    let again: Vec<u32> = outcome.again.iter().map(|row| row.0).collect();
    figures.set_item("again", again)?;
    figures.set_item("flops", outcome.flops)?;
    figures.set_item("wire_bytes", outcome.wire_bytes)?;
    let sent = PyDict::new(py);
    for (row, bytes) in &outcome.sent {
        sent.set_item(row.0, bytes)?;
    }
    figures.set_item("sent", sent)?;
    figures.set_item("seconds", outcome.seconds)?;
    figures.set_item("moving", outcome.moving)?;
    figures.set_item("waiting", outcome.waiting)?;
    figures.set_item("storing", outcome.storing)?;
    Ok(figures)
}

#[pymethods]
impl PolicyData {
    /// Row and iterations of each forward loop.
    fn loops(&self) -> Vec<(u32, u64)> {
        self.policies.loops().map(|(row, trips)| (row.0, trips)).collect()
    }

    /// The functions of layers without a loop, in order: kind of layers, name, the file and line of the call,
    /// and the file of the function, as far as known. Then whether several are taken as one layer because the
    /// text does not tell how they are checkpointed.
    fn units(&self) -> (Vec<Called>, bool) {
        let tables = self.held.stage.module().frame_tables();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (units, is_ambiguous) = self.policies.units();
        let known = units.iter().filter_map(|unit| {
            let inner = tables.frame(i64::from(unit.inner))?;
            let call = tables.frame(i64::from(unit.call));
            let (file, line) =
                call.map_or_else(Default::default, |own| (text(own.file), own.positions.line));
            Some((unit.kind, text(inner.function), file, line, text(inner.file)))
        });
        (known.collect(), is_ambiguous)
    }

    /// By value of layers without a loop: the number of the parameter that its product in one layer
    /// multiplies by. Empty for loops.
    fn weights(&self) -> Vec<Option<u32>> {
        self.policies.weights().to_vec()
    }

    /// Seconds that the step loses for lack of memory; None without a device.
    fn pressure_seconds(&self) -> Option<f64> {
        self.timing.as_ref().map(|timing| timing.pressure)
    }

    /// Bytes at the peak of the module as it is.
    fn peak(&self) -> i64 {
        self.policies.peak
    }

    /// Bytes that the module as it is keeps from forward to backward loops.
    fn kept(&self) -> i64 {
        self.policies.kept()
    }

    /// Whether layers are checkpointed in the module as it is.
    fn is_checkpointed(&self) -> bool {
        self.policies.is_checkpointed()
    }

    /// What an iteration of the forward loops is: `layer`, `time step`, `pipeline tick`.
    fn iteration(&self) -> &'static str {
        self.policies.iteration(self.held.stage.module()).as_str()
    }

    /// Whether a loop of the program runs in each layer.
    fn has_loops(&self) -> bool {
        self.policies.has_loops()
    }

    /// Whether such a loop is under `jax.checkpoint` inside.
    fn checkpoints_in_loops(&self) -> bool {
        self.policies.checkpoints_in_loops()
    }

    /// How layers are scanned in groups: `no`, `yes`, `checkpointed` (the groups themselves).
    fn grouped(&self) -> &'static str {
        match (self.policies.is_grouped(), self.policies.repeats_groups()) {
            (true, _) => "yes",
            (_, true) => "checkpointed",
            _ => "no",
        }
    }

    /// Whether the module is not scheduled, so that its own bytes are modelled too.
    fn is_modelled(&self) -> bool {
        self.policies.is_modelled()
    }

    /// Fields and columns of the table of values that a policy could save.
    fn savable<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, savable(&self.held.stage.origin(), &self.policies))
    }

    /// What the step needs if the savable values have these fates: 0 recomputed, 1 saved, 2
    /// moved to host memory.
    ///
    /// Raises `ValueError` for another fate.
    fn outcome<'py>(&self, py: Python<'py>, fates: Vec<u8>) -> PyResult<Bound<'py, PyDict>> {
        let fates: Vec<Fate> = fates.into_iter().map(fate_of).collect::<PyResult<_>>()?;
        let module = self.held.stage.module();
        let outcome = py.detach(|| self.policies.outcome(module, &fates, &self.prices(self.host)));
        to_dict(py, &outcome)
    }

    /// The fate of each savable value in the module as it is.
    fn as_is(&self) -> Vec<u8> {
        self.policies.as_is().into_iter().map(|fate| fate as u8).collect()
    }

    /// The policy that takes least time and fits `budget` bytes, otherwise the one with the lowest
    /// peak: the fate of each savable value. Without `offloads`, no value is moved to host memory.
    /// `most_tried` limits the policies that are tried.
    #[pyo3(signature = (budget, offloads = true, most_tried = None))]
    fn choose(
        &self,
        py: Python<'_>,
        budget: i64,
        offloads: bool,
        most_tried: Option<usize>,
    ) -> Vec<u8> {
        let module = self.held.stage.module();
        let chosen = py.detach(|| {
            let prices = self.prices(self.host.filter(|_| offloads));
            choose(&self.policies, module, &prices, budget, most_tried)
        });
        chosen.into_iter().map(|fate| fate as u8).collect()
    }

    /// The policies that no other one beats in both peak and time, by ascending peak; with the best
    /// one within `budget` bytes.
    #[pyo3(signature = (budget = None))]
    fn frontier(&self, py: Python<'_>, budget: Option<i64>) -> Vec<Vec<u8>> {
        let module = self.held.stage.module();
        let found = py.detach(|| frontier(&self.policies, module, &self.prices(self.host), budget));
        found.into_iter().map(|fates| fates.into_iter().map(|fate| fate as u8).collect()).collect()
    }
}
