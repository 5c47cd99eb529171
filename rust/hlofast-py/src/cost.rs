//! `CostData`: the core's cost of a module, which `hlofast._cost` puts into words and tables.

use crate::collectives::CollectivesData;
use crate::column::Column;
use crate::held::{Held, text};
use crate::mesh::Mesh;
use crate::module::Module;
use crate::remat::RematData;
use crate::stages::StagesData;
use crate::table_builder::to_list;
use crate::text_column::TextColumn;
use hlofast::Provenance;
use hlofast::cost::custom_call::{CustomCallCost, CustomCallKind, custom_call_target};
use hlofast::cost::explain::explain;
use hlofast::cost::{self, Backend, Cost, GroupKey, Options, Totals};
use hlofast::flow::{Phase, Rules};
use hlofast::ir::{ComputationId, Module as CoreModule, Opcode, Row};
use hlofast::table::{self, ScopeTexts, narrow};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::collections::BTreeMap;
use std::sync::Arc;

type Texts = Vec<Box<[u8]>>;

/// Row, FLOPs, transcendentals, bytes read, bytes written, as a user states them.
type Stated = (u32, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

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

/// Counts the cost of `module`. What is not given is that of its context.
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
            told.overrides = calls.into_iter().map(overridden).collect();
            told.overrides.sort_unstable_by_key(|entry| entry.0);
        }
        if let Some(rules) = rules {
            context.attribution.rules = rules;
        }
    });
    py.detach(|| held.stage.cost());
    Ok(CostData { held })
}

fn backend_of(word: &str) -> PyResult<Backend> {
    let found = Backend::ALL.into_iter().find(|backend| backend.as_str() == word);
    found.ok_or_else(|| PyValueError::new_err("backend is \"cpu\", \"gpu\" or \"tpu\""))
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

/// Columns for `hlofast.table.Table`, by name.
struct TableColumns<'py> {
    list: Bound<'py, PyList>,
}

impl<'py> TableColumns<'py> {
    fn new(py: Python<'py>) -> Self {
        Self { list: PyList::empty(py) }
    }

    fn number(&self, name: &str, column: Column) -> PyResult<&Self> {
        self.list.append((name, Bound::new(self.list.py(), column)?))?;
        Ok(self)
    }

    fn texts(&self, name: &str, texts: Texts) -> PyResult<&Self> {
        let column = TextColumn::new_from(texts, None);
        self.list.append((name, Bound::new(self.list.py(), column)?))?;
        Ok(self)
    }

    fn words<'a>(&self, name: &str, words: impl Iterator<Item = &'a str>) -> PyResult<&Self> {
        self.texts(name, words.map(|word| word.as_bytes().into()).collect())
    }

    /// FLOPs, transcendentals and bytes of `totals`.
    fn totals(&self, totals: &[Totals], is_xla: bool) -> PyResult<&Self> {
        let column = |of: fn(&Totals) -> i128| {
            Column::of(totals.iter().map(|totals| narrow(of(totals))).collect())
        };
        self.number("flops", column(|t| t.flops))?;
        self.number("transcendentals", column(|t| t.transcendentals))?;
        self.number("bytes_accessed", column(Totals::bytes_accessed))?;
        if !is_xla {
            self.number("bytes_read", column(|t| t.bytes_read))?;
            self.number("bytes_written", column(|t| t.bytes_written))?;
            self.number("other_bytes_read", column(|t| t.other_bytes_read))?;
            self.number("other_bytes_written", column(|t| t.other_bytes_written))?;
        }
        Ok(self)
    }
}

#[pymethods]
impl CostData {
    /// Whose sizes of shapes were counted: cpu, gpu or tpu.
    #[getter]
    fn backend(&self) -> &'static str {
        self.cost().backend.as_str()
    }

    /// FLOPs, transcendentals, bytes read and written in memory space 0, then in the others.
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

    /// FLOPs, transcendentals, bytes accessed, optimal seconds as 32-bit floats, if asked for.
    fn float32_totals(&self) -> Option<(f32, f32, f32, f32)> {
        let (totals, _) = self.cost().float32.as_ref()?;
        Some((totals.flops, totals.transcendentals, totals.bytes_accessed, totals.optimal_seconds))
    }

    /// XLA's `optimal_seconds` of a client without a device: -1 per custom call.
    #[getter]
    fn optimal_seconds(&self) -> i128 {
        self.cost().optimal_seconds
    }

    /// XLA's sums by operand and by result; None if there would be too many.
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

    /// Whether some computation had too many call sites to tell their scopes apart.
    #[getter]
    fn is_merged(&self, py: Python<'_>) -> bool {
        py.detach(|| self.held.stage.attribution().contexts.is_merged)
    }

    /// The column over instructions called `name`.
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
                "phase" => {
                    Column::project(stage, |s| &s.attribution().phase[..s.module().row_count()])
                }
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

    /// The texts that the column `scope` numbers; empty for scopes that no row is in.
    fn scopes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let core = self.core();
        let (shown, texts) = py.detach(|| {
            let attribution = self.held.stage.attribution();
            let count = attribution.scopes.len();
            let scopes = ScopeTexts::new(core, &attribution.scopes);
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

    /// Totals by `key`; `depth` is that of scopes.
    fn group<'py>(&self, py: Python<'py>, key: &str, depth: u32) -> PyResult<Bound<'py, PyList>> {
        let key = match key {
            "phase" => GroupKey::Phase,
            "scope" => GroupKey::Scope { depth },
            "source" => GroupKey::Source,
            "source_file" => GroupKey::SourceFile,
            "opcode" => GroupKey::Opcode,
            "dtype" => GroupKey::ElementType,
            "computation" => GroupKey::Computation,
            _ => return Err(PyKeyError::new_err(key.to_owned())),
        };
        let groups = py.detach(|| self.held.stage.cost_by(key));
        let columns = TableColumns::new(py);
        columns.texts("key", groups.iter().map(|group| group.label.clone().into()).collect())?;
        let instructions = groups.iter().map(|group| group.instructions as i64).collect();
        columns.number("instructions", Column::of::<i64>(instructions))?;
        let totals: Vec<Totals> = groups.iter().map(|group| group.totals).collect();
        columns.totals(&totals, self.cost().is_xla)?;
        if !self.cost().is_xla {
            let exact = groups.iter().map(|group| narrow(group.exact_flops)).collect();
            columns.number("exact_flops", Column::of::<i64>(exact))?;
        }
        Ok(columns.list)
    }

    /// One execution of each computation, and how often the totals count it.
    fn computations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (core, cost) = (self.core(), self.cost());
        let ids = (0..core.computations().len() as u32).map(ComputationId);
        let columns = TableColumns::new(py);
        columns.texts("computation", ids.map(|id| core.computation_name(id).into()).collect())?;
        let executions = cost.executions.iter().map(|count| count.unwrap_or(-1));
        columns.number("multiplicity", Column::of::<i64>(executions.collect()))?;
        match &cost.float32 {
            Some((_, floats)) => {
                let column = |of: fn(&cost::FloatTotals) -> f32| {
                    Column::of::<f64>(floats.iter().map(|value| f64::from(of(value))).collect())
                };
                columns.number("flops", column(|value| value.flops))?;
                columns.number("transcendentals", column(|value| value.transcendentals))?;
                columns.number("bytes_accessed", column(|value| value.bytes_accessed))?;
            }
            None => {
                columns.totals(&cost.computations, cost.is_xla)?;
            }
        }
        Ok(columns.list)
    }

    /// The loops and how often they run.
    fn loops<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (core, cost) = (self.core(), self.cost());
        let loops = &cost.loops;
        let columns = TableColumns::new(py);
        columns.number("instruction", Column::of(loops.iter().map(|l| l.row.0).collect()))?;
        columns
            .texts("name", loops.iter().map(|l| core.instruction_name(l.row).into()).collect())?;
        let count = |count: Option<u64>| count.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
        let counts = loops.iter().map(|l| count(l.trip_count.count));
        columns.number("trip_count", Column::of::<i64>(counts.collect()))?;
        columns.words("provenance", loops.iter().map(|l| l.trip_count.provenance.as_str()))?;
        columns.words("reason", loops.iter().map(|l| l.trip_count.reason))?;
        let multiplicity = self.held.stage.multiplicity();
        let runs = loops.iter().map(|l| multiplicity[l.row.0 as usize]);
        columns.number("multiplicity", Column::of::<i64>(runs.collect()))?;
        Ok(columns.list)
    }

    /// The branches of conditionals, what one execution of each costs, and which is counted.
    fn branches<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (core, cost) = (self.core(), self.cost());
        let branches = &cost.branches;
        let columns = TableColumns::new(py);
        columns.number("instruction", Column::of(branches.iter().map(|b| b.row.0).collect()))?;
        let names = branches.iter().map(|b| core.instruction_name(b.row).into());
        columns.texts("name", names.collect())?;
        columns.number("branch", Column::of(branches.iter().map(|b| b.index).collect()))?;
        let computations = branches.iter().map(|b| core.computation_name(b.computation).into());
        columns.texts("computation", computations.collect())?;
        let counted = branches.iter().map(|b| u8::from(b.is_counted));
        columns.number("is_counted", Column::of::<u8>(counted.collect()))?;
        let of = |b: &cost::Branch| cost.computations[b.computation.0 as usize];
        let totals: Vec<Totals> = branches.iter().map(of).collect();
        columns.totals(&totals, cost.is_xla)?;
        Ok(columns.list)
    }

    /// Custom calls whose FLOPs are not known, by target.
    fn unpriced<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (core, cost) = (self.core(), self.cost());
        let multiplicity = self.held.stage.multiplicity();
        let mut targets: BTreeMap<Box<[u8]>, (i64, i64, u32)> = BTreeMap::new();
        let is_unknown = |row: &Row| {
            cost.provenance[row.0 as usize] == Provenance::Unknown
                && core.opcode(*row) == Opcode::CustomCall
        };
        for row in core.rows().filter(is_unknown) {
            let target = custom_call_target(core, row).unwrap_or_default();
            let entry = targets.entry(target.as_ref().into()).or_insert((0, 0, row.0));
            entry.0 += 1;
            entry.1 = entry.1.saturating_add(multiplicity[row.0 as usize].max(0));
        }
        let columns = TableColumns::new(py);
        columns.texts("target", targets.keys().cloned().collect())?;
        columns.number("instructions", Column::of(targets.values().map(|t| t.0).collect()))?;
        columns.number("executions", Column::of(targets.values().map(|t| t.1).collect()))?;
        columns.number("instruction", Column::of(targets.values().map(|t| t.2).collect()))?;
        Ok(columns.list)
    }

    /// Instructions whose bytes are not known, and others than custom calls whose FLOPs are not.
    fn unknown_rows(&self) -> Column {
        let (core, cost) = (self.core(), self.cost());
        let is_unknown = |row: &Row| {
            cost.provenance[row.0 as usize] == Provenance::Unknown
                && core.opcode(*row) != Opcode::CustomCall
                || cost.unknown_bytes.binary_search(&row.0).is_ok()
        };
        Column::of(core.rows().filter(is_unknown).map(|row| row.0).collect::<Vec<u32>>())
    }

    /// Instructions whose results nothing needs.
    fn dead_rows(&self, py: Python<'_>) -> Column {
        let rows = py.detach(|| cost::dead_rows(self.core()));
        Column::of(rows.into_iter().map(|row| row.0).collect::<Vec<u32>>())
    }

    /// Bytes by memory space.
    fn memory_spaces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let spaces = self.cost().memory_spaces(self.core());
        let columns = TableColumns::new(py);
        columns.number("memory_space", Column::of(spaces.iter().map(|s| s.0).collect()))?;
        let read = spaces.iter().map(|s| narrow(s.1)).collect();
        columns.number("bytes_read", Column::of::<i64>(read))?;
        let written = spaces.iter().map(|s| narrow(s.2)).collect();
        columns.number("bytes_written", Column::of::<i64>(written))?;
        Ok(columns.list)
    }

    /// Where executed cost departs from XLA's, and how many instructions that concerns.
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let core = self.core();
        let departures = py.detach(|| explain(core));
        let columns = TableColumns::new(py);
        columns.words("rule", departures.iter().map(|(departure, _)| departure.rule))?;
        columns.words("xla", departures.iter().map(|(departure, _)| departure.xla))?;
        columns.words("executed", departures.iter().map(|(departure, _)| departure.executed))?;
        let counts = departures.iter().map(|(_, count)| *count as i64);
        columns.number("instructions", Column::of::<i64>(counts.collect()))?;
        Ok(columns.list)
    }

    /// Matrix products and convolutions whose size is not known.
    fn unknown_products(&self, py: Python<'_>) -> Column {
        let rows = py.detach(|| self.held.stage.unknown_products());
        Column::of(rows.into_iter().map(|row| row.0).collect::<Vec<u32>>())
    }

    /// FLOPs of executions by provenance; those inside loops of unknown trip count apart.
    fn flops_by_provenance(&self, py: Python<'_>) -> Vec<(&'static str, i128)> {
        let (core, cost) = (self.core(), self.cost());
        py.detach(|| {
            let mut sums = [0i128; Provenance::ALL.len()];
            let mut open = 0i128;
            let uncertain = self.held.stage.uncertain();
            for (at, computation) in core.computations().iter().enumerate() {
                let runs = i128::from(cost.executions[at].unwrap_or(0));
                let inside = uncertain[at].min(runs);
                for row in computation.rows().map(|row| row as usize) {
                    let flops = i128::from(cost.flops[row]);
                    let sum = &mut sums[cost.provenance[row] as usize];
                    *sum = sum.saturating_add(flops.saturating_mul(runs - inside));
                    open = open.saturating_add(flops.saturating_mul(inside));
                }
            }
            let known = Provenance::ALL.iter().map(|p| p.as_str()).zip(sums);
            known.chain([("unknown_trip_count", open)]).collect()
        })
    }

    /// The matrix products and convolutions, and how often each is executed.
    fn matmuls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let columns = py.detach(|| {
            let (attribution, uncertain) =
                (self.held.stage.attribution(), self.held.stage.uncertain());
            table::matmuls(self.core(), self.cost(), attribution, uncertain)
        });
        to_list(py, columns)
    }

    /// The collectives, how often each is executed, and where on a mesh it goes.
    #[pyo3(signature = (mesh=None))]
    fn collectives(&self, py: Python<'_>, mesh: Option<&Bound<'_, Mesh>>) -> CollectivesData {
        let mesh = mesh.map(|mesh| mesh.get().clone());
        py.detach(|| CollectivesData::new(&self.held, mesh))
    }

    /// The findings, those with most at stake first.
    #[pyo3(signature = (mesh=None, **options))]
    fn lint<'py>(
        &self,
        py: Python<'py>,
        mesh: Option<&Bound<'py, Mesh>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let held = self.held.on_mesh(mesh.map(|mesh| &mesh.get().core));
        crate::lint::findings(py, &held.stage, options)
    }

    /// What is recomputed, and what is kept instead.
    #[pyo3(signature = (mesh=None))]
    fn remat(&self, py: Python<'_>, mesh: Option<&Bound<'_, Mesh>>) -> RematData {
        let held = self.held.on_mesh(mesh.map(|mesh| &mesh.get().core));
        py.detach(|| RematData::new(held))
    }

    /// Pipeline stages; `most_moved` is the share of FLOPs that a cheaper cut may move.
    #[pyo3(signature = (most_moved=None))]
    fn stages(&self, py: Python<'_>, most_moved: Option<f64>) -> PyResult<StagesData> {
        py.detach(|| StagesData::new(Arc::clone(&self.held.stage), most_moved))
    }

    /// FLOPs of reductions between devices: all, and those of recomputation.
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
