//! The analyses of a module in one place: each is made when it is first asked for, once.
//!
//! Start at [`Analyses::new`] or, with a mesh, a device, phase rules or costs of custom calls, at
//! [`Analyses::with`]. A method without arguments keeps its result; one that ends in `_with` takes
//! options and makes its result anew. Nothing is computed here: this file knows which analysis
//! needs which, so that nobody else has to.

mod context;

pub use context::Context;

use crate::comms::{Collectives, DerivedMesh, Mesh, collectives, derive_mesh};
use crate::cost::{
    Cost, Facts, Group, GroupKey, cost, group, uncertain_executions, unknown_products,
};
use crate::flow::{Attribution, attribution};
use crate::ir::{Module, Row};
use crate::lint::{self, Findings};
use crate::memory::{self, Memory, MemoryError, XlaAccount, memory, memory_and_account};
use crate::remat::{self, Plan, PlanOptions, Report};
use crate::stages::{self, Stages};
use crate::summary::{self, Summary, summarise};
use crate::table::Sent;
use crate::time::{self, Device, Time, record};
use crate::trace::{self, Trace, TraceError};
use std::borrow::Borrow;
use std::sync::{Arc, OnceLock};

/// A result that contexts share where it does not depend on what they differ in.
type Slot<T> = Arc<OnceLock<T>>;

/// A module, what is told about its run, and what has been found so far.
///
/// `M` is how the module is held: `&Module` to borrow it, `Arc<Module>` to share it.
#[derive(Debug)]
pub struct Analyses<M> {
    module: M,
    context: Context,
    // Of the module alone.
    facts: Slot<Facts>,
    summary: Slot<Summary>,
    derived_mesh: Slot<Option<DerivedMesh>>,
    memory: Slot<Result<Arc<Memory>, MemoryError>>,
    account: Slot<Result<XlaAccount, MemoryError>>,
    // With phase rules.
    attribution: Slot<Attribution>,
    // With options of costs.
    cost: Slot<Cost>,
    uncertain: Slot<Vec<i128>>,
    multiplicity: Slot<Vec<i64>>,
    bytes_accessed: Slot<Vec<i64>>,
    // With both.
    collectives: Slot<Arc<Collectives>>,
    remat: Slot<Report>,
    stages: Slot<Stages>,
    // With these and a mesh.
    sent: Slot<Sent>,
    lint: Slot<Findings>,
    // With all of it.
    time: Slot<Option<Time>>,
}

impl<M: Borrow<Module>> Analyses<M> {
    /// Of `module`, of whose run nothing is known.
    pub fn new(module: M) -> Self {
        Self::with(module, Context::default())
    }

    /// Of `module`, run as `context` says.
    pub fn with(module: M, context: Context) -> Self {
        Self {
            module,
            context,
            facts: Slot::default(),
            summary: Slot::default(),
            derived_mesh: Slot::default(),
            memory: Slot::default(),
            account: Slot::default(),
            attribution: Slot::default(),
            cost: Slot::default(),
            uncertain: Slot::default(),
            multiplicity: Slot::default(),
            bytes_accessed: Slot::default(),
            collectives: Slot::default(),
            remat: Slot::default(),
            stages: Slot::default(),
            sent: Slot::default(),
            lint: Slot::default(),
            time: Slot::default(),
        }
    }

    /// Of the same module in another context. The two share every result that the difference does
    /// not change, whichever of them makes it.
    pub fn with_context(&self, context: Context) -> Self
    where
        M: Clone,
    {
        fn keep<T>(slot: &Slot<T>, is_same: bool) -> Slot<T> {
            if is_same { Arc::clone(slot) } else { Slot::default() }
        }
        let phases = context.attribution == self.context.attribution;
        let costs = context.cost == self.context.cost;
        let both = phases && costs;
        let placed = both && context.mesh == self.context.mesh;
        let timed = placed && context.device == self.context.device;
        Self {
            module: self.module.clone(),
            facts: keep(&self.facts, true),
            summary: keep(&self.summary, true),
            derived_mesh: keep(&self.derived_mesh, true),
            memory: keep(&self.memory, true),
            account: keep(&self.account, true),
            attribution: keep(&self.attribution, phases),
            cost: keep(&self.cost, costs),
            uncertain: keep(&self.uncertain, costs),
            multiplicity: keep(&self.multiplicity, costs),
            bytes_accessed: keep(&self.bytes_accessed, costs),
            collectives: keep(&self.collectives, both),
            remat: keep(&self.remat, both),
            stages: keep(&self.stages, both),
            sent: keep(&self.sent, placed),
            lint: keep(&self.lint, placed),
            time: keep(&self.time, timed),
            context,
        }
    }

    /// The module.
    pub fn module(&self) -> &Module {
        self.module.borrow()
    }

    /// What is told about the run.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The attributes that cost rules need, decoded.
    pub fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| Facts::of_module(self.module()))
    }

    /// Phases and scopes.
    pub fn attribution(&self) -> &Attribution {
        let options = &self.context.attribution;
        self.attribution.get_or_init(|| attribution(self.module(), options))
    }

    /// What instructions cost.
    pub fn cost(&self) -> &Cost {
        let options = &self.context.cost;
        self.cost.get_or_init(|| cost(self.module(), self.facts(), options))
    }

    /// By computation: executions, of those that costs count, inside loops of unknown trip count.
    pub fn uncertain(&self) -> &[i128] {
        self.uncertain.get_or_init(|| uncertain_executions(self.module(), self.cost()))
    }

    /// By row: how often the totals of costs count it; -1 beyond 64 bits.
    pub fn multiplicity(&self) -> &[i64] {
        self.multiplicity.get_or_init(|| {
            let module = self.module();
            let mut column = Vec::with_capacity(module.row_count());
            for (computation, count) in module.computations().iter().zip(&self.cost().executions) {
                column.resize(computation.end_row as usize, count.unwrap_or(-1));
            }
            column
        })
    }

    /// By row: bytes read and written by one execution, in all memory spaces.
    pub fn bytes_accessed(&self) -> &[i64] {
        let cost = self.cost();
        if cost.is_xla {
            return &cost.bytes_accessed;
        }
        self.bytes_accessed.get_or_init(|| {
            let both = cost.bytes_read.iter().zip(&cost.bytes_written);
            let mut column: Vec<i64> =
                both.map(|(read, written)| read.saturating_add(*written)).collect();
            for entry in &cost.other_memory {
                if let Some(bytes) = column.get_mut(entry.row as usize) {
                    *bytes = bytes.saturating_add(entry.read).saturating_add(entry.written);
                }
            }
            column
        })
    }

    /// The totals of costs by `key`.
    pub fn cost_by(&self, key: GroupKey) -> Vec<Group> {
        group(self.module(), self.cost(), self.attribution(), key)
    }

    /// Matrix products and convolutions whose size is not known, nor told by the context.
    pub fn unknown_products(&self) -> Vec<Row> {
        let told = self.context.cost.overrides.iter().filter(|(_, call)| call.flops.is_some());
        let rows: Vec<u32> = told.map(|(row, _)| *row).collect();
        unknown_products(self.module(), &rows)
    }

    /// The collectives.
    pub fn collectives(&self) -> &Arc<Collectives> {
        let find = || collectives(self.module(), self.cost(), self.attribution());
        self.collectives.get_or_init(|| Arc::new(find()))
    }

    /// The mesh that the text speaks of.
    pub fn derived_mesh(&self) -> Option<&DerivedMesh> {
        self.derived_mesh.get_or_init(|| derive_mesh(self.module())).as_ref()
    }

    /// The mesh that was given, or else the one that the text speaks of.
    pub fn mesh(&self) -> Option<&Mesh> {
        let given = self.context.mesh.as_ref();
        given.or_else(|| self.derived_mesh().map(|derived| &derived.mesh))
    }

    /// Where the mesh comes from: `given`, what of the text speaks of it, or `none`.
    pub fn mesh_source(&self) -> &'static str {
        match &self.context.mesh {
            Some(_) => "given",
            None => self.derived_mesh().map_or("none", |derived| derived.source.as_str()),
        }
    }

    /// The collectives and where on the mesh each goes.
    pub fn sent(&self) -> &Sent {
        self.sent.get_or_init(|| {
            let found = Arc::clone(self.collectives());
            let (attribution, uncertain) = (self.attribution(), self.uncertain());
            Sent::new(self.module(), found, attribution, uncertain, self.mesh())
        })
    }

    /// What is alive when, counted as [`memory::Options::default`] says.
    pub fn memory(&self) -> Result<&Arc<Memory>, MemoryError> {
        let find = || self.memory_with(&memory::Options::default()).map(Arc::new);
        self.memory.get_or_init(find).as_ref().map_err(|error| *error)
    }

    /// What is alive when, counted as `options` say.
    pub fn memory_with(&self, options: &memory::Options) -> Result<Memory, MemoryError> {
        memory(self.module(), options)
    }

    /// XLA's account of the compiled program.
    pub fn account(&self) -> Result<&XlaAccount, MemoryError> {
        let find = || memory::xla_account(self.module(), None);
        self.account.get_or_init(find).as_ref().map_err(|error| *error)
    }

    /// [`Analyses::memory`] and [`Analyses::account`], which take less time together.
    pub fn memory_and_account(
        &self,
    ) -> (Result<&Arc<Memory>, MemoryError>, Result<&XlaAccount, MemoryError>) {
        if self.memory.get().is_none() && self.account.get().is_none() {
            let found = memory_and_account(self.module(), &memory::Options::default());
            // Where threads race for it, the first result stays. They are equal.
            self.memory.set(found.0.map(Arc::new)).ok();
            self.account.set(found.1).ok();
        }
        (self.memory(), self.account())
    }

    /// What is computed again, and what is kept instead.
    pub fn remat(&self) -> &Report {
        self.remat.get_or_init(|| {
            let (cost, attribution) = (self.cost(), self.attribution());
            remat::report(self.module(), cost, attribution, self.collectives())
        })
    }

    /// What to compute again so that the budget of `options` is met, or else that of the context.
    /// `seconds` are those of each row on a device, if they are known.
    pub fn plan(
        &self,
        seconds: Option<&[f64]>,
        options: &PlanOptions,
    ) -> Result<Plan, MemoryError> {
        let options = PlanOptions { budget: options.budget.or(self.context.hbm), ..*options };
        remat::plan(
            self.module(),
            self.cost(),
            self.attribution(),
            self.collectives(),
            &self.remat().residuals,
            seconds,
            &options,
        )
    }

    /// The findings, from the usual thresholds on.
    pub fn lint(&self) -> &Findings {
        self.lint.get_or_init(|| self.lint_with(&lint::Options::default()))
    }

    /// The findings, from the thresholds of `options` on.
    pub fn lint_with(&self, options: &lint::Options) -> Findings {
        let (cost, attribution) = (self.cost(), self.attribution());
        let (mesh, along) = (|| self.mesh(), || &self.sent().along[..]);
        lint::lint(self.module(), cost, attribution, self.collectives(), &mesh, &along, options)
    }

    /// The pipeline stages.
    pub fn stages(&self) -> &Stages {
        self.stages.get_or_init(|| self.stages_with(&stages::Options::default()))
    }

    /// The pipeline stages, cut as `options` say.
    pub fn stages_with(&self, options: &stages::Options) -> Stages {
        stages::stages(self.module(), self.cost(), self.attribution(), options)
    }

    /// How long the module takes on the context's device; None without one.
    pub fn time(&self) -> Option<&Time> {
        let time = || {
            let device = self.context.device.clone()?;
            Some(self.time_with(&time::Options { device, ..time::Options::default() }))
        };
        self.time.get_or_init(time).as_ref()
    }

    /// How long the module takes as `options` say; without a mesh in them, on that of
    /// [`Analyses::mesh`].
    pub fn time_with(&self, options: &time::Options) -> Time {
        let (module, cost, found) = (self.module(), self.cost(), self.collectives());
        match (&options.mesh, self.mesh()) {
            (None, Some(mesh)) => {
                let options = time::Options { mesh: Some(mesh.clone()), ..options.clone() };
                time::time(module, cost, found, &options)
            }
            _ => time::time(module, cost, found, options),
        }
    }

    /// The schedule that `time` played on `device`, as slices and, with `memory`, bytes alive.
    pub fn trace(
        &self,
        time: &Time,
        device: &Device,
        memory: Option<&Memory>,
        options: &trace::Options,
    ) -> Result<Trace, TraceError> {
        let (module, cost, found) = (self.module(), self.cost(), self.collectives());
        let recording = record(module, cost, device, &time.rows, found, &time.communications);
        trace::trace(module, cost, &time.simulation, &recording, memory, options)
    }

    /// What the module is: status, backend, signature and counts.
    pub fn summary(&self) -> &Summary {
        self.summary.get_or_init(|| self.summary_with(&summary::Options::default()))
    }

    /// The same, as much of it as `options` say.
    pub fn summary_with(&self, options: &summary::Options) -> Summary {
        summarise(self.module(), options)
    }

    /// Bytes of columns, phases, collectives and the report of what is computed again, as far as
    /// they were found.
    pub fn heap_bytes(&self) -> usize {
        self.facts.get().map_or(0, Facts::heap_bytes)
            + self.attribution.get().map_or(0, Attribution::heap_bytes)
            + self.cost.get().map_or(0, Cost::heap_bytes)
            + self.collectives.get().map_or(0, |found| found.heap_bytes())
            + self.remat.get().map_or(0, Report::heap_bytes)
            + self.sent.get().map_or(0, Sent::heap_bytes)
            + self.uncertain.get().map_or(0, |column| 16 * column.capacity())
            + self.multiplicity.get().map_or(0, |column| 8 * column.capacity())
            + self.bytes_accessed.get().map_or(0, |column| 8 * column.capacity())
    }
}
