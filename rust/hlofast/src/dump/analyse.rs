//! The tables of one module.

use super::kind::words;
use super::names::AxisNames;
use crate::Provenance;
use crate::analyses::{Analyses, Context};
use crate::comms::{Mesh, fits};
use crate::flow::SourceOptions;
use crate::ir::{Module, Opcode};
use crate::memory::{self, FileKind, XlaAccount};
use crate::print::{FingerprintOptions, fingerprint};
use crate::summary::{self, Identity};
use crate::table::{self, Columns, Field, Sent, common, narrow};
use crate::time::{self, Device};
use std::time::Instant;

words! {
    /// The tables of a scan.
    TableKind {
        /// Every file and its outcome.
        #[default]
        Files = "files",
        /// Modules with their totals.
        Modules = "modules",
        /// Computations.
        Computations = "computations",
        /// Instructions.
        Instructions = "instructions",
        /// Collectives, by phase.
        Collectives = "collectives",
        /// Matmuls, by phase.
        Matmuls = "matmuls",
        /// Values live at the peak.
        Buffers = "buffers",
        /// Recomputed instructions and residuals.
        Remat = "remat",
        /// Findings.
        Lint = "lint",
    }
}

/// The requested tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables(u16);

impl Tables {
    /// Only files, no tables of modules.
    pub const FILES: Tables = Tables(1);

    /// Adds `table`.
    #[must_use]
    pub fn with(self, table: TableKind) -> Self {
        Self(self.0 | 1 << table as u16)
    }

    /// Whether `table` is requested.
    pub fn has(self, table: TableKind) -> bool {
        self.0 & 1 << table as u16 != 0
    }
}

/// How modules are analysed.
#[derive(Clone, Debug)]
pub struct AnalysisOptions {
    /// The requested tables.
    pub tables: Tables,
    /// The mesh of all modules that it fits; the others, and all modules without it, have the mesh
    /// that they imply, with axis names from [`Beside::names`].
    pub mesh: Option<Mesh>,
    /// The frame of a stack that tables show, and which files belong to libraries.
    pub sources: SourceOptions,
    /// Whether scopes leave out the numbers of layers.
    pub merges_layers: bool,
}

impl AnalysisOptions {
    /// Options for `tables`, with nothing known about the modules.
    pub fn new(tables: Tables) -> Self {
        Self { tables, mesh: None, sources: SourceOptions::default(), merges_layers: false }
    }
}

/// The file and the program that a module belongs to.
#[derive(Clone, Debug, Default)]
pub struct Place<'a> {
    /// The path of the file, as shown to people.
    pub path: &'a str,
    /// Its program.
    pub program: &'a str,
    /// The line where the module begins, from 1.
    pub line: u64,
    /// The name by which a log announces the module.
    pub label: &'a str,
    /// The stage of compilation; empty if the name does not tell.
    pub stage: &'a str,
    /// The number of the pass.
    pub step: Option<u32>,
    /// The pass that ran before.
    pub after: &'a str,
}

/// Information about a module besides its text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside<'a> {
    /// XLA's memory files about the module.
    pub memory_files: &'a [Vec<u8>],
    /// The chip to time the module for; left out if it does not fit the module's backend.
    pub device: Option<&'a Device>,
    /// Names for mesh axes that the text does not name.
    pub names: Option<AxisNames<'a>>,
}

/// The tables of a module. A module may occur in several places.
#[derive(Clone, Debug, Default)]
pub struct ModuleTables {
    name: Vec<u8>,
    tables: Vec<(TableKind, Columns)>,
    /// Whether axis names were needed from elsewhere, because neither the options nor the text give
    /// them.
    pub(super) lacks_axis_names: bool,
}

impl ModuleTables {
    /// The tables of the module at `place`, including those without rows.
    pub fn at(self, place: &Place<'_>) -> impl Iterator<Item = (TableKind, Columns)> {
        self.tables.into_iter().map(move |(kind, columns)| {
            let mut lead = Columns::default();
            lead.same(Field::path("path", "The file."), place.path.as_bytes(), columns.len());
            lead.same(
                Field::name(
                    "program",
                    "The program that the file belongs to: folder, module number and name.",
                )
                .nullable(),
                place.program.as_bytes(),
                columns.len(),
            );
            lead.same(Field::name("module", "The name of the module."), &self.name, columns.len());
            if kind == TableKind::Modules {
                let number = std::iter::once::<i64>;
                lead.numbers(
                    Field::index("line", "The line of the file where the module begins."),
                    number(place.line as i64),
                );
                lead.texts(
                    Field::text("label", "The module's name in a log.").nullable(),
                    std::iter::once(place.label),
                );
                lead.texts(
                    Field::word("stage", "The stage of compilation: before, a pass, after.")
                        .nullable(),
                    std::iter::once(place.stage),
                );
                lead.numbers(
                    Field::index("step", "The number of the pass.").nullable(),
                    number(place.step.map_or(-1, i64::from)),
                );
                lead.texts(
                    Field::name("after_pass", "The pass that ran before the module was written.")
                        .nullable(),
                    std::iter::once(place.after),
                );
            }
            (kind, lead.before(columns))
        })
    }

    /// A copy without the tables that have no rows.
    pub(super) fn with_rows(&self) -> Self {
        let tables = self.tables.iter().filter(|(_, columns)| !columns.is_empty());
        let (name, tables) = (self.name.clone(), tables.cloned().collect());
        Self { name, tables, lacks_axis_names: self.lacks_axis_names }
    }

    /// Approximate bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        let rows: usize = self.tables.iter().map(|(_, columns)| columns.heap_bytes()).sum();
        rows + self.name.len()
    }
}

/// The time limit was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfTime {
    /// The next analysis.
    pub before: &'static str,
}

/// The requested tables of `module`. The deadline is checked between analyses.
pub fn analyse(
    module: &Module,
    beside: Beside<'_>,
    options: &AnalysisOptions,
    deadline: Option<Instant>,
) -> Result<ModuleTables, OutOfTime> {
    let in_time = |before: &'static str| match deadline {
        Some(deadline) if Instant::now() >= deadline => Err(OutOfTime { before }),
        _ => Ok(()),
    };
    let wants = |table: TableKind| options.tables.has(table);
    let device = beside.device.filter(|device| {
        summary::backend(module).is_none_or(|compiled| compiled.value.fits(&device.backend))
    });
    let (name, device) = (device.map_or("", |device| device.name.as_str()), device.cloned());
    let mesh = options.mesh.clone();
    let (sources, merges_layers) = (options.sources.clone(), options.merges_layers);
    let context = Context { mesh, device, sources, merges_layers, ..Context::default() };
    let mut analyses = Analyses::with(module, context);
    // With a mesh of other devices, no group would have axes.
    let is_of_others = |mesh: &Mesh| !fits(analyses.device_count(), mesh);
    if options.mesh.as_ref().is_some_and(is_of_others) {
        analyses = analyses.with_context(Context { mesh: None, ..analyses.context().clone() });
    }
    let lacks_axis_names = analyses.context().mesh.is_none() && analyses.lacks_axis_names();
    if lacks_axis_names
        && let Some(before) = beside.names.and_then(AxisNames::mesh)
        && analyses.is_named_by(before)
    {
        let mesh = Some(before.mesh.clone());
        analyses = analyses.with_context(Context { mesh, ..analyses.context().clone() });
    }
    in_time("costs")?;
    let (counted, uncertain) = (analyses.cost(), analyses.uncertain());
    in_time("phases and scopes")?;
    let attribution = analyses.attribution();
    in_time("collectives")?;
    let (collectives, mesh, sent) = (analyses.collectives(), analyses.mesh(), analyses.sent());
    in_time("memory")?;
    let (in_memory, account) = (analyses.memory(), analyses.account());
    let origin = analyses.origin();
    let mut tables: Vec<(TableKind, Columns)> = Vec::new();
    let mut add = |kind: TableKind, columns: Columns| tables.push((kind, columns));
    if wants(TableKind::Modules) {
        in_time("time")?;
        let timed = analyses.time();
        let Identity { status, backend, .. } = analyses.identity();
        let mut row = Columns::default();
        let number = std::iter::once::<i64>;
        let text = |text: &str| std::iter::once(text.to_owned());
        row.texts(Field::word("status", "The stage of compilation according to the text: unoptimised, annotated, partitioned, optimised or scheduled."), text(status.value.as_str()));
        let backend = backend.as_ref().map_or("", |backend| backend.value.as_str());
        row.texts(
            Field::word("backend", "The backend: cpu, gpu or tpu.").nullable(),
            text(backend),
        );
        row.flags(
            Field::flag("is_scheduled", "Whether instructions run in the order of the text.")
                .label("scheduled"),
            std::iter::once(module.is_scheduled()),
        );
        row.numbers(
            Field::count("num_partitions", "Number of partitions in the header.")
                .label("partitions")
                .nullable(),
            number(module.num_partitions().unwrap_or(-1)),
        );
        row.numbers(
            Field::count("replica_count", "Number of replicas in the header.")
                .label("replicas")
                .nullable(),
            number(module.replica_count().unwrap_or(-1)),
        );
        let together = analyses.devices_together();
        // The partitioner, which adds most collectives, has not run on the program of all devices.
        let added = |figure: i64| if together > 1 { -1 } else { figure };
        row.numbers(
            Field::count(
                "devices_together",
                "Devices that the figures of the module cover together: all devices before \
                 partitioning, 1 for the program of one device.",
            )
            .label("devices together"),
            number(together as i64),
        );
        row.numbers(
            Field::bytes("text_bytes", "Bytes of the module as text.").summed(),
            number(module.text().len() as i64),
        );
        row.numbers(common::instructions(), number(module.instruction_count() as i64));
        row.numbers(
            Field::count("computations", "Computations.").summed(),
            number(module.computation_count() as i64),
        );
        let digest = fingerprint(module, &FingerprintOptions::default());
        row.texts(
            Field::text("fingerprint", "A digest of the program, excluding names and metadata."),
            text(&hexadecimal(&digest)),
        );
        let totals = &counted.totals;
        row.numbers(common::flops(), number(narrow(totals.flops)));
        row.numbers(common::transcendentals(), number(narrow(totals.transcendentals)));
        row.numbers(common::bytes_read(), number(narrow(totals.bytes_read)));
        row.numbers(common::bytes_written(), number(narrow(totals.bytes_written)));
        let is_open = uncertain.iter().any(|runs| *runs > 0);
        row.flags(common::is_lower_bound(), std::iter::once(is_open));
        let is_unpriced = |row: &crate::ir::Row| {
            counted.provenance[row.0 as usize] == Provenance::Unknown
                && module.opcode(*row) == Opcode::CustomCall
        };
        row.numbers(
            Field::count("unknown_calls", "Custom calls whose FLOPs are unknown.").summed(),
            number(module.rows().filter(is_unpriced).count() as i64),
        );
        row.numbers(
            Field::count(
                "collectives",
                "Collectives; each counts once, also as a start/done pair. Unknown before the \
                 partitioner has added them.",
            )
            .nullable()
            .summed(),
            number(added(collectives.collectives.len() as i64)),
        );
        let (payload, wire, unknown) = moved(sent);
        row.numbers(
            Field::bytes("payload", "Known payload of all calls of collectives.")
                .nullable()
                .summed(),
            number(added(payload)),
        );
        row.numbers(
            Field::bytes("wire_bytes", "Known bytes that each device sends in collectives.")
                .label("wire B")
                .nullable()
                .summed(),
            number(added(wire)),
        );
        row.numbers(
            Field::count(
                "unknown_collectives",
                "Collectives whose payload or wire bytes are unknown.",
            )
            .summed(),
            number(unknown),
        );
        row.texts(
            Field::text("mesh", "The mesh: the one given, or the one that the text implies, with the axis names of the module before optimisation if the text has none.")
                .nullable(),
            text(&mesh.map(Mesh::to_text).unwrap_or_default()),
        );
        let peak = in_memory.map_or(-1, |memory| memory.peak.bytes);
        row.numbers(
            Field::bytes("live_peak", "Peak of live bytes (memory space 0).")
                .label("live peak B")
                .nullable(),
            number(peak),
        );
        let of = |get: fn(&XlaAccount) -> i64| account.map_or(-1, get);
        row.numbers(
            Field::bytes("xla_peak", "XLA's peak memory, counted by XLA's rules.")
                .label("XLA peak B")
                .nullable(),
            number(of(|account| account.peak)),
        );
        row.numbers(
            Field::bytes("hbm_peak", "The peak in HBM, counted by XLA's rules.")
                .label("HBM peak B")
                .nullable(),
            number(of(XlaAccount::hbm_peak)),
        );
        row.numbers(
            Field::bytes("fast_peak", "The peak in fast on-chip memory.")
                .label("fast memory peak B")
                .nullable(),
            number(of(XlaAccount::fast_peak)),
        );
        row.numbers(
            Field::bytes("host_peak", "The peak in the host's memory.")
                .label("host memory peak B")
                .nullable(),
            number(of(XlaAccount::host_peak)),
        );
        row.numbers(
            Field::bytes("argument_bytes", "Bytes of the arguments.").nullable(),
            number(of(|account| account.device.argument)),
        );
        row.numbers(
            Field::bytes("output_bytes", "Bytes of the results.").nullable(),
            number(of(|account| account.device.output)),
        );
        row.numbers(
            Field::bytes("alias_bytes", "Bytes of the results that alias donated arguments.")
                .nullable(),
            number(of(|account| account.device.alias)),
        );
        let files = MemoryFiles::read(module, beside.memory_files);
        row.numbers(
            Field::bytes(
                "allocated_bytes",
                "Bytes that XLA allocated, from the buffer assignment next to the module.",
            )
            .nullable(),
            number(files.allocated_bytes.unwrap_or(-1)),
        );
        row.numbers(
            Field::bytes(
                "allocated_hbm_bytes",
                "Bytes that XLA allocated in HBM, from the file next to the module.",
            )
            .nullable(),
            number(files.allocated_hbm_bytes.unwrap_or(-1)),
        );
        row.numbers(
            Field::bytes("live_range_peak", "The peak in XLA's live-range file.").nullable(),
            number(files.live_range_peak.unwrap_or(-1)),
        );
        row.numbers(
            Field::bytes("usage_report_bytes", "The total in XLA's memory usage report.")
                .nullable(),
            number(files.usage_report_bytes.unwrap_or(-1)),
        );
        let refused = in_memory.err().or(account.err());
        row.texts(
            Field::text("memory_error", "Why memory could not be analysed.").nullable(),
            text(&refused.map(|error| error.to_string()).unwrap_or_default()),
        );
        row.texts(
            Field::name(
                "device",
                "The chip that the times are for; unknown if it does not fit the module's backend.",
            )
            .nullable(),
            text(name),
        );
        let step = timed.map(|timed| &timed.simulation.step);
        let seconds = |get: fn(&time::Split) -> f64| step.map_or(f64::NAN, get);
        row.reals(
            Field::seconds("step_seconds", "Modelled time of one step.").label("step s").nullable(),
            std::iter::once(seconds(|step| step.seconds)),
        );
        row.reals(
            Field::seconds("compute_seconds", "Modelled time bound by compute.")
                .label("compute s")
                .nullable(),
            std::iter::once(seconds(|step| step.compute)),
        );
        row.reals(
            Field::seconds("memory_seconds", "Modelled time bound by memory bandwidth.")
                .label("memory s")
                .nullable(),
            std::iter::once(seconds(|step| step.memory)),
        );
        row.reals(
            Field::seconds("exposed_seconds", "Exposed communication time of one step.")
                .label("exposed s")
                .nullable(),
            std::iter::once(seconds(|step| step.exposed.iter().sum())),
        );
        let missing = timed.map(|timed| timed.rows.unknown_figures.join(" "));
        row.texts(
            Field::text(
                "unknown_figures",
                "Device figures that are unknown; the modelled times leave out their contribution.",
            )
            .nullable(),
            text(&missing.unwrap_or_default()),
        );
        add(TableKind::Modules, row);
    }
    if wants(TableKind::Computations) {
        let summary = analyses.summary_with(&summary::Options { shapes: 0 });
        add(TableKind::Computations, table::computations(module, counted, &summary));
    }
    if wants(TableKind::Instructions) {
        add(TableKind::Instructions, table::instructions(&origin, counted, attribution));
    }
    if wants(TableKind::Collectives) {
        add(TableKind::Collectives, sent.columns(&origin));
    }
    if wants(TableKind::Matmuls) {
        add(
            TableKind::Matmuls,
            table::matmuls(&origin, analyses.products(), counted, attribution, uncertain),
        );
    }
    if wants(TableKind::Buffers)
        && let Ok(memory) = in_memory
    {
        let values = memory.live_at(module, memory.peak.step);
        add(TableKind::Buffers, table::buffers(&origin, memory, attribution, &values));
    }
    if wants(TableKind::Remat) {
        in_time("rematerialisation")?;
        add(TableKind::Remat, table::remat(&origin, counted, analyses.remat()));
    }
    if wants(TableKind::Lint) {
        in_time("findings")?;
        add(
            TableKind::Lint,
            table::findings(&origin, &analyses.callers(), &analyses.lint().findings),
        );
    }
    in_time("the end")?;
    Ok(ModuleTables { name: module.name().to_vec(), tables, lacks_axis_names })
}

/// The figures of XLA's memory files for a module; files of other modules are ignored.
#[derive(Default)]
struct MemoryFiles {
    allocated_bytes: Option<i64>,
    allocated_hbm_bytes: Option<i64>,
    live_range_peak: Option<i64>,
    usage_report_bytes: Option<i64>,
}

impl MemoryFiles {
    fn read(module: &Module, files: &[Vec<u8>]) -> Self {
        let mut figures = Self::default();
        for file in files.iter().filter_map(|text| memory::read_file(module, text).ok()) {
            match file.kind {
                FileKind::BufferAssignment => {
                    figures.allocated_bytes = file.total_bytes;
                    figures.allocated_hbm_bytes = file.default_bytes;
                }
                FileKind::LiveRange => figures.live_range_peak = file.peak_bytes,
                FileKind::UsageReport => {
                    figures.usage_report_bytes = file.total_bytes;
                    let known = figures.allocated_hbm_bytes;
                    figures.allocated_hbm_bytes = known.or(file.default_bytes);
                }
            }
        }
        figures
    }
}

/// Known payload and wire bytes of all calls, and the number of entries where they are
/// unknown.
fn moved(sent: &Sent) -> (i64, i64, i64) {
    let mut sums = (0i64, 0i64, 0i64);
    for entry in sent.entries() {
        let (payload, wire) = sent.totals(entry);
        sums.0 = sums.0.saturating_add(payload.max(0));
        sums.1 = sums.1.saturating_add(wire.max(0));
        sums.2 += i64::from(payload < 0 || wire < 0);
    }
    sums
}

/// The hexadecimal digits of some bytes.
pub fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
