//! `CostData`: the core's cost of a module, which `hlofast._cost` formats as text and tables.

use crate::collectives::CollectivesData;
use crate::column::Column;
use crate::held::{Held, text};
use crate::mesh::Mesh;
use crate::module::Module;
use crate::remat::RematData;
use crate::stages::StagesData;
use crate::table_builder::to_list;
use crate::time::{DeviceParts, device_of};
use hlofast::Provenance;
use hlofast::cost::custom_call::{CustomCallCost, CustomCallKind};
use hlofast::cost::explain::explain;
use hlofast::cost::{self, Backend, Cost, GroupKey, Options};
use hlofast::flow::{Phase, Rules};
use hlofast::ir::{Module as CoreModule, Opcode, Row};
use hlofast::table::{self, Field, common};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::Arc;

/// Figures that a user states for a row: row, FLOPs, transcendentals, bytes read, bytes written.
pub type Stated = (u32, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

/// The cost of a module, as counted by `Module.cost`.
#[pyclass(frozen, module = "hlofast._core")]
pub struct CostData {
    held: Arc<Held>,
}

impl CostData {
    fn core(&self) -> &CoreModule {
        self.held.stage.module()
    }

    fn cost(&self) -> &Cost {
        self.held.stage.cost()
    }
}

/// Counts the cost of `module`; omitted options come from its context.
#[pyfunction]
#[pyo3(signature = (module, *, xla=false, backend=None, float32=false, custom_calls=None, rules=None))]
pub fn _cost(
    module: &Bound<'_, Module>,
    xla: bool,
    backend: Option<&str>,
    float32: bool,
    custom_calls: Option<Vec<Stated>>,
    rules: Option<Vec<(String, String)>>,
) -> PyResult<CostData> {
    let py = module.py();
    let backend = backend.map(backend_of).transpose()?;
    let rules = rules.map(read_rules).transpose()?;
    let held = module.get().held.with_context(|context| {
        let told = &mut context.cost;
        (told.is_xla, told.is_float32) = (xla, float32);
        told.backend = backend.or(told.backend);
        if let Some(calls) = custom_calls {
            told.overrides = overrides(calls);
        }
        if let Some(rules) = rules {
            context.attribution.rules = rules;
        }
    });
    py.detach(|| held.stage.cost());
    Ok(CostData { held })
}

fn backend_of(word: &str) -> PyResult<Backend> {
    let backend = Backend::ALL.into_iter().find(|backend| backend.as_str() == word);
    backend.ok_or_else(|| PyValueError::new_err("backend must be \"cpu\", \"gpu\" or \"tpu\""))
}

fn read_rules(rules: Vec<(String, String)>) -> PyResult<Rules> {
    let mut read: Vec<(&str, Phase)> = Vec::with_capacity(rules.len());
    for (pattern, phase) in &rules {
        let phase = Phase::from_word(phase).ok_or_else(|| {
            let phases = Phase::ALL.map(Phase::as_str).join(", ");
            PyValueError::new_err(format!("unknown phase {phase:?}; phases are {phases}"))
        })?;
        read.push((pattern, phase));
    }
    Rules::new(read).map_err(|error| {
        let pattern = rules.get(error.index).map_or("", |rule| &rule.0);
        PyValueError::new_err(format!("pattern {pattern:?}: {}", error.message))
    })
}

/// A peak and four numbers of FLOPs.
type FlopsAtPeak = (f64, i128, i128, i128, i128);

/// The costs that the caller states, ascending by row.
pub fn overrides(stated: Vec<Stated>) -> Vec<cost::Override> {
    let mut calls: Vec<cost::Override> = stated.into_iter().map(overridden).collect();
    calls.sort_unstable_by_key(|entry| entry.0);
    calls
}

fn overridden(stated: Stated) -> cost::Override {
    let (row, flops, transcendentals, bytes_read, bytes_written) = stated;
    let provenance = if flops.is_some() { Provenance::Modelled } else { Provenance::Unknown };
    let call = CustomCallCost {
        flops,
        transcendentals,
        bytes_read,
        bytes_written,
        provenance,
        contraction: None,
        kind: CustomCallKind::Unknown,
        reason: "stated by the caller",
    };
    (row, call)
}

#[pymethods]
impl CostData {
    /// The backend whose shape sizes were counted: cpu, gpu or tpu.
    #[getter]
    fn backend(&self) -> &'static str {
        self.cost().backend.as_str()
    }

    /// Returns FLOPs, transcendentals and bytes read and written in memory space 0, then bytes read
    /// and written in the other spaces.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let totals = &self.cost().totals;
        PyTuple::new(
            py,
            [
                totals.flops,
                totals.transcendentals,
                totals.bytes_read,
                totals.bytes_written,
                totals.other_bytes_read,
                totals.other_bytes_written,
            ],
        )
    }

    /// Returns FLOPs, transcendentals, bytes accessed and optimal seconds as XLA's 32-bit floats;
    /// None unless requested.
    fn float32_totals(&self) -> Option<(f32, f32, f32, f32)> {
        let (totals, _) = self.cost().float32.as_ref()?;
        Some((totals.flops, totals.transcendentals, totals.bytes_accessed, totals.optimal_seconds))
    }

    /// XLA's `optimal_seconds` for a client without a device: -1 per custom call.
    #[getter]
    fn optimal_seconds(&self) -> i128 {
        self.cost().optimal_seconds
    }

    /// Returns XLA's sums by operand and by result; None if there are too many.
    fn operand_sums(&self, py: Python<'_>) -> Option<Vec<(String, f64)>> {
        let cost = self.cost();
        py.detach(|| {
            let options = Options {
                is_xla: true,
                is_float32: cost.float32.is_some(),
                backend: Some(cost.backend),
                ..Options::default()
            };
            cost::operand_sums(self.core(), self.held.stage.facts(), &options)
        })
    }

    /// Whether the scopes of some computation were merged because it has too many call sites.
    #[getter]
    fn is_merged(&self, py: Python<'_>) -> bool {
        py.detach(|| self.held.stage.attribution().contexts.is_merged)
    }

    /// Returns the per-instruction column `name`.
    fn column(&self, py: Python<'_>, name: &str) -> PyResult<Column> {
        let stage = &self.held.stage;
        py.detach(|| {
            Ok(match name {
                "flops" => Column::project(stage, |s| &s.cost().flops[..]),
                "transcendentals" => Column::project(stage, |s| &s.cost().transcendentals[..]),
                "bytes_accessed" => Column::project(stage, |s| s.bytes_accessed()),
                "bytes_read" if !stage.cost().is_xla => {
                    Column::project(stage, |s| &s.cost().bytes_read[..])
                }
                "bytes_written" if !stage.cost().is_xla => {
                    Column::project(stage, |s| &s.cost().bytes_written[..])
                }
                "multiplicity" => Column::project(stage, |s| s.multiplicity()),
                "provenance" => Column::project(stage, |s| &s.cost().provenance[..]),
                "phase" => Column::project(stage, |s| s.attribution().phases(s.module())),
                "scope" => {
                    Column::project(stage, |s| &s.attribution().scope[..s.module().row_count()])
                }
                _ => return Err(PyKeyError::new_err(name.to_owned())),
            })
        })
    }

    /// Whether any instruction has a scope.
    #[getter]
    fn has_scopes(&self, py: Python<'_>) -> bool {
        py.detach(|| self.held.stage.attribution().scopes.len() > 1)
    }

    /// Returns the scopes by the codes of column `scope`; empty for scopes without instructions.
    fn scopes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (shown, texts) = py.detach(|| {
            let core = self.core();
            let attribution = self.held.stage.attribution();
            let count = attribution.scopes.len();
            let origin = self.held.stage.origin();
            let scopes = origin.scopes(attribution);
            let mut shown: Vec<Option<u32>> = vec![None; count];
            let mut texts: Vec<Option<Vec<u8>>> = vec![None; count];
            for scope in attribution.scope.iter().take(core.row_count()) {
                let text = scopes.shown(*scope);
                shown[*scope as usize] = Some(text);
                texts[text as usize].get_or_insert_with(|| scopes.text(*scope));
            }
            (shown, texts)
        });
        let empty = text(py, b"")?;
        let made = texts.iter().map(|bytes| match bytes {
            Some(bytes) => text(py, bytes),
            None => Ok(empty.clone()),
        });
        let made = made.collect::<PyResult<Vec<_>>>()?;
        let of = |text: &Option<u32>| text.and_then(|text| made.get(text as usize));
        PyList::new(py, shown.iter().map(|text| of(text).unwrap_or(&empty)))
    }

    /// Returns a table of totals by `key`; `depth` limits the depth of scopes.
    fn group<'py>(&self, py: Python<'py>, key: &str, depth: u32) -> PyResult<Bound<'py, PyList>> {
        let merges_layers = self.held.stage.context().merges_layers;
        let (key, field) = match key {
            "phase" => (GroupKey::Phase, common::phase()),
            "scope" => (GroupKey::Scope { depth, merges_layers }, common::scope()),
            "source" => (GroupKey::Source, Field::path("source", "Source file and line.")),
            "source_file" => (GroupKey::SourceFile, common::source_file()),
            "opcode" => (GroupKey::Opcode, common::opcode()),
            "dtype" => {
                (GroupKey::ElementType, Field::word("dtype", "The element type of the result."))
            }
            "computation" => (GroupKey::Computation, common::computation()),
            _ => return Err(PyKeyError::new_err(key.to_owned())),
        };
        let groups = py.detach(|| self.held.stage.cost_by(key));
        to_list(py, table::cost_groups(field, &groups, self.cost().is_xla))
    }

    /// Returns a table of computations: the cost of one execution, and the call count in the
    /// totals.
    fn computations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::computation_costs(self.core(), self.cost()))
    }

    /// Returns a table of loops with their trip counts.
    fn loops<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::loops(self.core(), self.cost(), self.held.stage.multiplicity()))
    }

    /// The names of the loops of unknown trip count.
    fn endless_loops(&self) -> Vec<String> {
        let is_endless = |entry: &&cost::Loop| table::number(entry.trip_count.count) < 0;
        let endless = self.cost().loops.iter().filter(is_endless);
        let names = endless.map(|entry| self.core().instruction_name(entry.row));
        names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    /// Returns a table of branches of conditionals: the cost of one execution, and whether the
    /// totals count the branch.
    fn branches<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::branches(self.core(), self.cost()))
    }

    /// Returns a table of custom calls with unknown FLOPs, by target.
    fn unpriced<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::unpriced(self.core(), self.cost(), self.held.stage.multiplicity()))
    }

    /// Returns the rows with unknown bytes, and rows other than custom calls with unknown FLOPs.
    fn unknown_rows(&self) -> Column {
        let (core, cost) = (self.core(), self.cost());
        let is_unknown = |row: &Row| {
            cost.provenance[row.0 as usize] == Provenance::Unknown
                && core.opcode(*row) != Opcode::CustomCall
                || cost.unknown_bytes.binary_search(&row.0).is_ok()
        };
        Column::of(core.rows().filter(is_unknown).map(|row| row.0).collect::<Vec<u32>>())
    }

    /// Returns the rows whose results are not used.
    fn dead_rows(&self, py: Python<'_>) -> Column {
        let rows = py.detach(|| cost::dead_rows(self.core()));
        Column::of(rows.into_iter().map(|row| row.0).collect::<Vec<u32>>())
    }

    /// Returns the rows of products in fusions that repeat another product.
    fn repeated_products(&self, py: Python<'_>) -> Column {
        let attribution = self.held.stage.attribution();
        let rows = py.detach(|| cost::repeated_products(self.core(), attribution));
        Column::of(rows.into_iter().map(|row| row.0).collect::<Vec<u32>>())
    }

    /// Returns a table of bytes by memory space.
    fn memory_spaces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::memory_spaces(self.core(), self.cost()))
    }

    /// Returns a table of the differences between executed cost and XLA's, with instruction counts.
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::departures(&py.detach(|| explain(self.core()))))
    }

    /// Returns the rows of matmuls and convolutions of unknown size.
    fn unknown_products(&self, py: Python<'_>) -> Column {
        let rows = py.detach(|| self.held.stage.unknown_products());
        Column::of(rows.into_iter().map(|row| row.0).collect::<Vec<u32>>())
    }

    /// Returns executed FLOPs by provenance; FLOPs inside loops of unknown trip count are separate.
    fn flops_by_provenance(&self, py: Python<'_>) -> Vec<(&'static str, i128)> {
        let (core, cost) = (self.core(), self.cost());
        py.detach(|| {
            let mut sums = [0i128; Provenance::ALL.len()];
            let mut open = 0i128;
            let uncertain = self.held.stage.uncertain();
            let assumed = cost::assumed_executions(core, cost);
            for (at, computation) in core.computations().iter().enumerate() {
                let runs = i128::from(cost.executions[at].unwrap_or(0));
                let inside = uncertain[at].min(runs);
                let assumed = assumed[at].min(runs - inside);
                for row in computation.rows().map(|row| row as usize) {
                    let flops = i128::from(cost.flops[row]);
                    let sum = &mut sums[cost.provenance[row] as usize];
                    *sum = sum.saturating_add(flops.saturating_mul(runs - inside - assumed));
                    let sum = &mut sums[Provenance::Assumed as usize];
                    *sum = sum.saturating_add(flops.saturating_mul(assumed));
                    open = open.saturating_add(flops.saturating_mul(inside));
                }
            }
            let known = Provenance::ALL.iter().map(|p| p.as_str()).zip(sums);
            known.chain([("unknown_trip_count", open)]).collect()
        })
    }

    /// Returns a table of matmuls and convolutions with their call counts.
    fn matmuls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let columns = py.detach(|| {
            let (attribution, uncertain) =
                (self.held.stage.attribution(), self.held.stage.uncertain());
            table::matmuls(
                &self.held.stage.origin(),
                self.held.stage.products(),
                self.cost(),
                attribution,
                uncertain,
            )
        });
        to_list(py, columns)
    }

    /// Returns the collectives with their call counts and mesh axes.
    #[pyo3(signature = (mesh=None))]
    fn collectives(&self, py: Python<'_>, mesh: Option<&Bound<'_, Mesh>>) -> CollectivesData {
        let mesh = mesh.map(|mesh| mesh.get().clone());
        py.detach(|| CollectivesData::new(&self.held, mesh))
    }

    /// Returns the findings, largest stake first: in seconds on `device` if it is given.
    #[pyo3(signature = (mesh=None, device=None, **options))]
    fn lint<'py>(
        &self,
        py: Python<'py>,
        mesh: Option<&Bound<'py, Mesh>>,
        device: Option<DeviceParts>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        let held = self.held.on_mesh(mesh.map(|mesh| &mesh.get().core));
        let held = match device {
            Some(device) => held.with_context(|context| context.device = Some(device_of(device))),
            None => held,
        };
        crate::lint::findings(py, &held.stage, options)
    }

    /// Returns the recomputed instructions and the residuals.
    #[pyo3(signature = (mesh=None))]
    fn remat(&self, py: Python<'_>, mesh: Option<&Bound<'_, Mesh>>) -> RematData {
        let held = self.held.on_mesh(mesh.map(|mesh| &mesh.get().core));
        py.detach(|| RematData::new(held))
    }

    /// Returns the pipeline stages; `most_moved` is the largest share of FLOPs that a cheaper cut
    /// may move to the previous stage.
    #[pyo3(signature = (most_moved=None))]
    fn stages(&self, py: Python<'_>, most_moved: Option<f64>) -> PyResult<StagesData> {
        py.detach(|| StagesData::new(Arc::clone(&self.held.stage), most_moved))
    }

    /// Returns FLOPs by the peak of their types on one JAX device: the peak, then FLOPs of matmuls,
    /// of those that run again, of all operations, of those that run again. None if the bfloat16 peak
    /// is unknown.
    fn flops_by_peak(&self, py: Python<'_>, device: DeviceParts) -> Option<Vec<FlopsAtPeak>> {
        let (core, cost, device) = (self.core(), self.cost(), device_of(device));
        let attribution = self.held.stage.attribution();
        let sums = py.detach(|| hlofast::time::flops_by_peak(core, cost, attribution, &device))?;
        let known = sums.into_iter();
        let parts =
            known.map(|sum| (sum.peak, sum.matmul, sum.matmul_again, sum.all, sum.all_again));
        Some(parts.collect())
    }

    /// Returns the FLOPs of reductions between devices: in total, and in recomputation.
    fn collective_flops(&self, py: Python<'_>) -> (i128, i128) {
        let (core, cost) = (self.core(), self.cost());
        let opcodes = [
            Opcode::AllReduce,
            Opcode::AllReduceStart,
            Opcode::AllReduceDone,
            Opcode::ReduceScatter,
        ];
        let sums =
            py.detach(|| cost::flops_by_phase(core, cost, self.held.stage.attribution(), &opcodes));
        (sums.iter().sum(), sums[Phase::Recompute as usize])
    }
}
