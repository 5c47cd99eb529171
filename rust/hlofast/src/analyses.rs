//! The analyses of one module, each computed once, on first use.
//!
//! Start at [`Analyses::new`] or, with a mesh, a device, phase rules or costs of custom calls, at
//! [`Analyses::with`]. Methods without arguments cache their result; methods that end in `_with`
//! take options and compute a new result on every call. This file does not compute results itself.
//! It is the only place that knows which analysis depends on which.

mod context;

pub use context::Context;

use crate::comms::{
    Collectives, DerivedMesh, Mesh, Partitioned, collectives, derive_mesh, device_count,
    is_named_by,
};
use crate::cost::{
    Backend, Cost, Facts, Group, GroupKey, Product, cost, group, products, uncertain_executions,
};
use crate::flow::{Attribution, Callers, Sources, attribution};
use crate::ir::{Module, Opcode, Row};
use crate::lint::{self, Findings};
use crate::memory::{self, Change, Frame, Memory, MemoryError, Packing, Tables, XlaAccount};
use crate::remat::policy::{Chip, Counted, How, NoPolicies, OrderOf, Policies};
use crate::remat::{self, Plan, PlanOptions, Report};
use crate::shares::{self, Local, Shares, shares};
use crate::stages::{self, Stages};
use crate::summary::{self, Identity, Status, Summary, summarise};
use crate::table::{Origin, Sent};
use crate::time::{self, Device, Time, record};
use crate::trace::{self, Trace, TraceError};
use std::borrow::Borrow;
use std::sync::{Arc, OnceLock};

/// A result, shared by contexts whose differences do not affect it.
type Slot<T> = Arc<OnceLock<T>>;

/// A module, the context of its run and the results computed so far.
///
/// `M` is how the module is held: `&Module` to borrow it, `Arc<Module>` to share it.
#[derive(Debug)]
pub struct Analyses<M> {
    module: M,
    context: Context,
    // Results that depend on the module alone.
    facts: Slot<Facts>,
    products: Slot<Vec<Product>>,
    summary: Slot<Summary>,
    identity: Slot<Identity>,
    derived_mesh: Slot<Option<DerivedMesh>>,
    frame: Slot<Result<Frame, MemoryError>>,
    memory: Slot<Result<Arc<Memory>, MemoryError>>,
    // Results that depend on the module and the device.
    account: Slot<Result<XlaAccount, MemoryError>>,
    // Results that depend on the module, the libraries and the frame that is shown.
    sources: Slot<Sources>,
    // Results that depend on the module and phase rules.
    attribution: Slot<Attribution>,
    // Results that depend on the module and cost options.
    cost: Slot<Cost>,
    uncertain: Slot<Vec<i128>>,
    multiplicity: Slot<Vec<i64>>,
    bytes_accessed: Slot<Vec<i64>>,
    shares: Slot<Option<Shares>>,
    // Results that depend on phase rules and cost options.
    collectives: Slot<Arc<Collectives>>,
    remat: Slot<Report>,
    stages: Slot<Stages>,
    // Results that depend on phase rules, cost options, the mesh and how layers are named.
    sent: Slot<Sent>,
    // Results that depend on phase rules, cost options, the mesh, the device and sources.
    lint: Slot<Findings>,
    // Results that depend on phase rules, cost options, the mesh and the device.
    time: Slot<Option<Time>>,
}

impl<M: Borrow<Module>> Analyses<M> {
    /// Analyses of `module`, with nothing known about its run.
    pub fn new(module: M) -> Self {
        Self::with(module, Context::default())
    }

    /// Analyses of `module`, run as `context` says.
    pub fn with(module: M, context: Context) -> Self {
        Self {
            module,
            context,
            facts: Slot::default(),
            products: Slot::default(),
            summary: Slot::default(),
            identity: Slot::default(),
            derived_mesh: Slot::default(),
            frame: Slot::default(),
            memory: Slot::default(),
            account: Slot::default(),
            sources: Slot::default(),
            attribution: Slot::default(),
            cost: Slot::default(),
            uncertain: Slot::default(),
            multiplicity: Slot::default(),
            bytes_accessed: Slot::default(),
            shares: Slot::default(),
            collectives: Slot::default(),
            remat: Slot::default(),
            stages: Slot::default(),
            sent: Slot::default(),
            lint: Slot::default(),
            time: Slot::default(),
        }
    }

    /// Analyses of the same module in another context. Results that do not depend on the difference
    /// are shared, whichever object computes them first.
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
        let named = context.sources == self.context.sources;
        let merged = context.merges_layers == self.context.merges_layers;
        let placed = both && context.mesh == self.context.mesh;
        let same_device = context.device == self.context.device;
        let timed = placed && same_device;
        Self {
            module: self.module.clone(),
            facts: keep(&self.facts, true),
            products: keep(&self.products, true),
            summary: keep(&self.summary, true),
            identity: keep(&self.identity, true),
            derived_mesh: keep(&self.derived_mesh, true),
            frame: keep(&self.frame, true),
            memory: keep(&self.memory, true),
            account: keep(&self.account, same_device),
            sources: keep(&self.sources, named),
            attribution: keep(&self.attribution, phases),
            cost: keep(&self.cost, costs),
            uncertain: keep(&self.uncertain, costs),
            multiplicity: keep(&self.multiplicity, costs),
            bytes_accessed: keep(&self.bytes_accessed, costs),
            shares: keep(&self.shares, costs),
            collectives: keep(&self.collectives, both),
            remat: keep(&self.remat, both),
            stages: keep(&self.stages, both),
            sent: keep(&self.sent, placed && merged),
            lint: keep(&self.lint, timed && named),
            time: keep(&self.time, timed),
            context,
        }
    }

    /// The module.
    pub fn module(&self) -> &Module {
        self.module.borrow()
    }

    /// The context of the run.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The attributes that cost rules need, decoded.
    pub fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| Facts::of_module(self.module()))
    }

    /// The source file and line of each row.
    pub fn sources(&self) -> &Sources {
        let options = &self.context.sources;
        self.sources.get_or_init(|| Sources::new(self.module(), options))
    }

    /// Where lines of shared functions are called from.
    pub fn callers(&self) -> Callers<'_> {
        Callers::new(self.module(), self.sources(), &self.context.sources)
    }

    /// The names that tables give for rows.
    pub fn origin(&self) -> Origin<'_> {
        Origin::new(self.module(), self.sources(), self.context.merges_layers)
    }

    /// The phase and scope of each row.
    pub fn attribution(&self) -> &Attribution {
        let options = &self.context.attribution;
        self.attribution.get_or_init(|| attribution(self.module(), options))
    }

    /// The cost of each instruction.
    pub fn cost(&self) -> &Cost {
        let options = &self.context.cost;
        self.cost.get_or_init(|| cost(self.module(), self.facts(), options))
    }

    /// By computation: counted executions that lie inside loops of unknown trip count.
    pub fn uncertain(&self) -> &[i128] {
        self.uncertain.get_or_init(|| uncertain_executions(self.module(), self.cost()))
    }

    /// By row: the call count in cost totals; -1 beyond 64 bits.
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

    /// Cost totals grouped by `key`.
    pub fn cost_by(&self, key: GroupKey) -> Vec<Group> {
        group(self.module(), self.cost(), self.attribution(), self.sources(), key)
    }

    /// Matmuls and convolutions of unknown size for which the context gives no FLOPs.
    pub fn unknown_products(&self) -> Vec<Row> {
        let told = |row: Row| {
            let own = self.context.cost.overrides.iter().find(|(own, _)| *own == row.0);
            own.is_some_and(|(_, call)| call.flops.is_some())
        };
        let unknown = self.products().iter().filter(|product| product.is_unknown);
        unknown.map(|product| product.row).filter(|row| !told(*row)).collect()
    }

    /// The matmuls and convolutions.
    pub fn products(&self) -> &[Product] {
        self.products.get_or_init(|| products(self.module(), self.facts()))
    }

    /// The collectives.
    pub fn collectives(&self) -> &Arc<Collectives> {
        let find = || collectives(self.module(), self.cost(), self.attribution());
        self.collectives.get_or_init(|| Arc::new(find()))
    }

    /// The mesh derived from the text.
    pub fn derived_mesh(&self) -> Option<&DerivedMesh> {
        self.derived_mesh.get_or_init(|| derive_mesh(self.module())).as_ref()
    }

    /// The given mesh, otherwise the mesh derived from the text.
    pub fn mesh(&self) -> Option<&Mesh> {
        let given = self.context.mesh.as_ref();
        given.or_else(|| self.derived_mesh().map(|derived| &derived.mesh))
    }

    /// The number of devices of the module, if the text tells it.
    pub fn device_count(&self) -> u64 {
        device_count(self.module(), || self.derived_mesh())
    }

    /// Number of devices that share the arrays of a module before partitioning; 1 if shapes are the
    /// shapes of one device. Figures may be compared with one device's capacity only if this is 1.
    pub fn devices_together(&self) -> u64 {
        let status = self.identity().status.value;
        shares::devices_together(self.module(), status, || self.derived_mesh())
    }

    /// Whether the partitioner has run, or a later pass. Without annotations, `partition-id` tells; with
    /// them it is `jax.lax.axis_index` in a `shard_map`.
    pub fn is_partitioned(&self) -> bool {
        match self.identity().status.value {
            Status::Annotated => false,
            Status::Unoptimised => self.module().columns().opcodes.contains(&Opcode::PartitionId),
            _ => true,
        }
    }

    /// The share of one device; None if shapes already are the shapes of one device.
    pub fn shares(&self) -> Option<&Shares> {
        let find = || {
            let devices = self.devices_together();
            let mesh = self.derived_mesh().map(|derived| &derived.mesh);
            (devices > 1).then(|| shares(self.module(), self.cost(), mesh, devices))
        };
        self.shares.get_or_init(find).as_ref()
    }

    /// Whether the mesh derived from the text has axes but no names for them.
    pub fn lacks_axis_names(&self) -> bool {
        self.derived_mesh().is_some_and(|derived| derived.invented_names)
    }

    /// Whether `before`, the mesh of the module before optimisation, names the axes of this module.
    pub fn is_named_by(&self, before: &DerivedMesh) -> bool {
        let derived = self.derived_mesh();
        derived.is_some_and(|derived| is_named_by(derived, self.device_count(), before))
    }

    /// Where the mesh comes from: `given`, the part of the text it was derived from, or `none`.
    pub fn mesh_source(&self) -> &'static str {
        match &self.context.mesh {
            Some(_) => "given",
            None => self.derived_mesh().map_or("none", |derived| derived.source.as_str()),
        }
    }

    /// The collectives, with the mesh axes that each runs along.
    pub fn sent(&self) -> &Sent {
        self.sent.get_or_init(|| {
            let collectives = Arc::clone(self.collectives());
            let (attribution, uncertain) = (self.attribution(), self.uncertain());
            Sent::new(&self.origin(), collectives, attribution, uncertain, self.mesh())
        })
    }

    /// What all accounts of memory start from.
    fn frame(&self) -> Result<&Frame, MemoryError> {
        let frame = self.frame.get_or_init(|| Frame::of_text(self.module()));
        frame.as_ref().map_err(|error| *error)
    }

    /// Live values over the schedule, counted as [`memory::Options::default`] says.
    pub fn memory(&self) -> Result<&Arc<Memory>, MemoryError> {
        let find = || self.memory_with(&memory::Options::default()).map(Arc::new);
        self.memory.get_or_init(find).as_ref().map_err(|error| *error)
    }

    /// Live values over the schedule, counted as `options` say.
    pub fn memory_with(&self, options: &memory::Options) -> Result<Memory, MemoryError> {
        match options.order {
            memory::Order::Text => memory::memory_from(self.module(), self.frame()?, options),
            _ => memory::memory(self.module(), options),
        }
    }

    /// XLA's own account of the compiled program's memory.
    pub fn account(&self) -> Result<&XlaAccount, MemoryError> {
        let find = || memory::account_from(self.module(), self.frame()?, self.tables());
        self.account.get_or_init(find).as_ref().map_err(|error| *error)
    }

    /// How the context's device rounds pointer tables, if it is known.
    fn tables(&self) -> Option<Tables> {
        let bytes = self.context.device.as_ref()?.tuple_table_bytes?;
        (bytes >= 1.0).then_some(Tables::Rounded(bytes as u32))
    }

    /// The packing of the HBM heap of a device with `usable` bytes, if they are known; see
    /// [`memory::packing_from`].
    pub fn packing_with(&self, usable: Option<i64>) -> Result<Option<Packing>, MemoryError> {
        memory::packing_from(self.module(), self.frame()?, usable)
    }

    /// Recomputed values, and residuals kept instead of recomputing them.
    pub fn remat(&self) -> &Report {
        self.remat.get_or_init(|| {
            let (cost, attribution) = (self.cost(), self.attribution());
            remat::report(self.module(), cost, attribution, self.collectives())
        })
    }

    /// The layers, and what they would need under other checkpoint policies; why not, if memory cannot
    /// be counted or the model covers no layers. The functions of a layer without a loop are taken by themselves
    /// if `is_apart` and the text does not tell whether they are checkpointed together. `chip` is that of the
    /// device, if it is known and matters.
    pub fn policies(&self, chip: Option<Chip>, is_apart: bool) -> Result<Policies, NoPolicies> {
        if !self.module().is_scheduled() {
            let devices = self.devices_together();
            let mesh = self.derived_mesh().map(|derived| &derived.mesh);
            let local = Local::new(self.module(), mesh, devices).ok_or(NoPolicies::Memory)?;
            let (cost, attribution) = (self.cost(), self.attribution());
            let how = How { is_whole: devices > 1, is_apart, chip };
            return Policies::before_schedule(self.module(), cost, attribution, &local, how);
        }
        let peak = self.counted_peak().ok_or(NoPolicies::Memory)?;
        let memory = self.memory().map_err(|_| NoPolicies::Memory)?;
        let overwriting = match memory.backend {
            Backend::Tpu => self.frame().and_then(|own| memory::overwriting(self.module(), own)),
            _ => Ok(Vec::new()),
        };
        let overwriting = overwriting.unwrap_or_default();
        let order = OrderOf::Text;
        let how = Counted { peak, overwriting: &overwriting, is_apart, chip, order };
        let (cost, attribution) = (self.cost(), self.attribution());
        let mut policies = Policies::new(self.module(), cost, attribution, memory, how)?;
        let (module, mesh) = (self.module(), self.mesh());
        let (collectives, is_partitioned) = (self.collectives(), self.is_partitioned());
        let own = Partitioned { module, mesh, collectives, is_partitioned };
        policies.find_batches(&own);
        Ok(policies)
    }

    /// Bytes at the peak, as in `Counting::usual`: XLA's own account of scheduled TPU modules,
    /// otherwise live bytes. None if memory cannot be counted.
    fn counted_peak(&self) -> Option<i64> {
        let (memory, account) = (self.memory().ok()?, self.account());
        let is_tpu = memory.backend == Backend::Tpu;
        let counted = account.ok().filter(|_| is_tpu).map(XlaAccount::hbm_peak);
        Some(counted.unwrap_or(memory.peak.bytes))
    }

    /// What to recompute to fit the budget in `options` or, without one, the memory in the context.
    /// `seconds` is the time of each row on a device, if known.
    pub fn plan(
        &self,
        seconds: Option<&[f64]>,
        options: &PlanOptions,
    ) -> Result<Plan, MemoryError> {
        // Shapes that cover all devices together may exceed the memory of one device.
        let own = self.context.hbm.filter(|_| self.devices_together() == 1);
        let options = PlanOptions { budget: options.budget.or(own), ..*options };
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

    /// The findings, with the default thresholds.
    pub fn lint(&self) -> &Findings {
        self.lint.get_or_init(|| self.lint_with(&lint::Options::default()))
    }

    /// The findings, with the thresholds of `options`.
    pub fn lint_with(&self, options: &lint::Options) -> Findings {
        let (cost, attribution) = (self.cost(), self.attribution());
        let (mesh, along) = (|| self.mesh(), || &self.sent().along[..]);
        // Shapes that cover all devices together take the time of all of them.
        let time = || self.time().filter(|_| self.devices_together() == 1);
        let sources = self.sources();
        let free = || self.free();
        let is_partitioned = self.is_partitioned();
        let allocated = OnceLock::new();
        let memory_falls = |change: &Change| self.memory_falls(change, &allocated);
        let peak = || u64::try_from(self.account().ok()?.hbm_peak()).ok();
        let known = lint::Known {
            mesh: &mesh,
            along: &along,
            sources,
            time: &time,
            is_partitioned,
            backend: self.identity().backend.as_ref().map(|guess| guess.value),
            memory_falls: &memory_falls,
            peak: &peak,
            free: &free,
        };
        lint::lint(self.module(), cost, attribution, self.collectives(), &known, options)
    }

    /// By how much memory falls after `change`, in XLA's account; 0 where it would rise. `allocated` holds what
    /// XLA allocates before, once it is asked for. None for modules without a schedule, and if memory cannot be
    /// counted.
    fn memory_falls(
        &self,
        change: &Change,
        allocated: &OnceLock<Option<i64>>,
    ) -> Option<lint::Falls> {
        let is_counted = self.module().is_scheduled() && self.devices_together() == 1;
        let account = self.account().ok().filter(|_| is_counted)?;
        let before = account.hbm_peak();
        let after = self.needed(change, before)?;
        let less =
            |before: i64, after: i64| u64::try_from(before.saturating_sub(after)).unwrap_or(0);
        let as_is =
            || memory::allocated_from(self.module(), self.frame().ok()?, account, self.usable());
        let falls = after.allocated.and_then(|after| {
            let now = (*allocated.get_or_init(as_is))?;
            Some((less(now, after), less(now, before)))
        });
        let (allocated, gaps) = (falls.map(|own| own.0), falls.map(|own| own.1));
        Some(lint::Falls { peak: less(before, after.peak), allocated, gaps })
    }

    /// The memory after `change` of a program whose peak is `peak`.
    fn needed(&self, change: &Change, peak: i64) -> Option<memory::Needed> {
        let (frame, of_device) = (self.frame().ok()?, (self.tables(), self.usable()));
        memory::memory_after(self.module(), frame, of_device, change, peak).ok()
    }

    /// The HBM for programs on one JAX device of the context's chip, if it is known.
    fn usable(&self) -> Option<i64> {
        let device = self.context.device.as_ref()?;
        let bytes = device.share(device.hbm_usable_bytes)?;
        (bytes >= 1.0).then_some(bytes as i64)
    }

    /// The memory of the device that the step leaves free; None if either is unknown.
    fn free(&self) -> Option<i64> {
        let most = self.usable().filter(|_| self.devices_together() == 1)?;
        Some(most.saturating_sub(self.counted_peak()?))
    }

    /// The pipeline stages.
    pub fn stages(&self) -> &Stages {
        self.stages.get_or_init(|| self.stages_with(&stages::Options::default()))
    }

    /// The pipeline stages, divided as `options` say.
    pub fn stages_with(&self, options: &stages::Options) -> Stages {
        stages::stages(self.module(), self.cost(), self.attribution(), options)
    }

    /// The modelled time of the module on the context's device; None without a device.
    pub fn time(&self) -> Option<&Time> {
        let time = || {
            let device = self.context.device.clone()?;
            Some(self.time_with(&time::Options { device, ..time::Options::default() }))
        };
        self.time.get_or_init(time).as_ref()
    }

    /// The modelled time of the module as `options` say; uses [`Analyses::mesh`] if `options` have
    /// no mesh.
    pub fn time_with(&self, options: &time::Options) -> Time {
        let (module, cost, collectives) = (self.module(), self.cost(), self.collectives());
        match (&options.mesh, self.mesh()) {
            (None, Some(mesh)) => {
                let options = time::Options { mesh: Some(mesh.clone()), ..options.clone() };
                time::time(module, cost, collectives, &options)
            }
            _ => time::time(module, cost, collectives, options),
        }
    }

    /// The schedule that `time` simulated on `device`, as slices; with `memory`, also live bytes.
    pub fn trace(
        &self,
        time: &Time,
        device: &Device,
        memory: Option<&Memory>,
        options: &trace::Options,
    ) -> Result<Trace, TraceError> {
        let (module, cost, collectives) = (self.module(), self.cost(), self.collectives());
        let recording = record(module, cost, device, &time.rows, collectives, &time.communications);
        trace::trace(module, cost, &time.simulation, &recording, memory, options)
    }

    /// Status, backend, signature and counts of the module.
    pub fn summary(&self) -> &Summary {
        self.summary.get_or_init(|| self.summary_with(&summary::Options::default()))
    }

    /// Status and backend; much cheaper than the whole summary.
    pub fn identity(&self) -> &Identity {
        self.identity.get_or_init(|| Identity::of(self.module()))
    }

    /// The summary, with the limits of `options`.
    pub fn summary_with(&self, options: &summary::Options) -> Summary {
        summarise(self.module(), self.identity(), options)
    }

    /// Heap bytes of the columns, phases, collectives and recomputation report computed so far.
    pub fn heap_bytes(&self) -> usize {
        self.facts.get().map_or(0, Facts::heap_bytes)
            + self.sources.get().map_or(0, Sources::heap_bytes)
            + self.attribution.get().map_or(0, Attribution::heap_bytes)
            + self.cost.get().map_or(0, Cost::heap_bytes)
            + self.collectives.get().map_or(0, |collectives| collectives.heap_bytes())
            + self.remat.get().map_or(0, Report::heap_bytes)
            + self.sent.get().map_or(0, Sent::heap_bytes)
            + self.uncertain.get().map_or(0, |column| 16 * column.capacity())
            + self.multiplicity.get().map_or(0, |column| 8 * column.capacity())
            + self.bytes_accessed.get().map_or(0, |column| 8 * column.capacity())
    }
}
