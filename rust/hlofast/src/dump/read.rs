//! Reads one file, splits it into modules and analyses them; gives a reason on failure.

use super::analyse::{
    AnalysisOptions, Beside, ModuleTables, Place, TableKind, analyse, hexadecimal,
};
use super::kind::{Kind, Status};
use super::name::{self, FileName};
use super::names::AxisNames;
use super::repeated::Repeated;
use super::sniff::{Content, HEAD, sniff};
use super::survey::{Survey, head};
use super::walk::{Found, Trouble, reason};
use crate::error::ParseError;
use crate::ir::Module;
use crate::table::{Columns, Field};
use crate::text::{
    Compression, ErrorPlace, FoundModule, OpenOptions, Source, decompress_head, modules,
    starts_with_module,
};
use crate::time::Device;
use crate::{Options, parse, unpack};
use memchr::memmem;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_128;

/// Files of more bytes are looked at before they are read as a whole.
const LARGE: u64 = 8 << 20;
/// What a log contains if it contains modules.
const MODULE: &[u8] = b"HloModule ";
const OTHER_TEXT: &str = "not HLO: other text";

/// How files are read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// How modules are analysed.
    pub analysis: AnalysisOptions,
    /// Maximum size of a file.
    pub max_bytes: u64,
    /// Maximum size after decompression.
    pub max_text_bytes: u64,
    /// Maximum time for one file.
    pub max_seconds: Option<Duration>,
    /// Results shared by files with identical bytes.
    pub repeated: Arc<Repeated>,
    /// Uses the portable scanning kernels even if the CPU has faster kernels (for tests).
    pub force_scalar: bool,
}

/// The outcome of one file.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Its number in the survey.
    pub file: u32,
    /// Read, failed or skipped.
    pub status: Status,
    /// The kind of the file, corrected if its content shows more than its name.
    pub kind: Kind,
    /// Why the file failed or was skipped; empty if it was read.
    pub reason: String,
    /// Line and column of the fault, from 1.
    pub place: Option<(u64, u64)>,
    /// Digest of the file's bytes; None if the file was not read to the end.
    pub digest: Option<[u8; 16]>,
    /// Number of modules read.
    pub modules: u32,
    /// Bytes of text, after decompression.
    pub text_bytes: u64,
    /// Whether its text lacks axis names, so that its rows also depend on
    /// [`Survey::mesh_before`].
    pub lacks_axis_names: bool,
    /// Whether the file is unchanged since its rows were made. An unchanged file has no rows here.
    pub is_unchanged: bool,
    /// The rows of its modules.
    pub tables: Vec<(TableKind, Columns)>,
}

impl Outcome {
    /// Approximate bytes of the rows.
    pub fn heap_bytes(&self) -> u64 {
        let rows: usize = self.tables.iter().map(|(_, columns)| columns.heap_bytes()).sum();
        rows as u64 + 512
    }

    fn failed(mut self, reason: impl Into<String>) -> Self {
        (self.status, self.reason) = (Status::Failed, reason.into());
        self
    }

    fn skipped(mut self, reason: impl Into<String>) -> Self {
        (self.status, self.reason) = (Status::Skipped, reason.into());
        self
    }

    fn fault(self, source: &Source, error: &ParseError) -> Self {
        let place = ErrorPlace::new(source, error);
        let has_place = !place.excerpt.is_empty();
        let mut failed = self.failed(error.message());
        failed.place = has_place.then_some((place.line, place.column));
        failed
    }

    /// The outcome of a file that exceeded the time limit at `stage`.
    pub fn timed_out(file: u32, kind: Kind, limit: Duration, stage: &str) -> Self {
        let reason = format!("not done within {} s (the time cap): {stage}", limit.as_secs_f64());
        Self { file, kind, ..Self::default() }.failed(reason)
    }

    /// The outcome of a file whose analysis panicked.
    pub fn panicked(file: u32, kind: Kind, message: &str) -> Self {
        Self { file, kind, ..Self::default() }.failed(format!("internal error: {message}"))
    }
}

/// Reads the file with this number. `is_known` tells whether rows for a file with this digest
/// exist; such a file is only hashed.
pub fn read(
    survey: &Survey,
    file: u32,
    options: &ReadOptions,
    device: Option<&Device>,
    is_known: impl Fn(&[u8; 16]) -> bool,
) -> Outcome {
    let (outcome, bytes) = match bytes_of(survey, file, options) {
        Ok(all) => all,
        Err(outcome) => return outcome,
    };
    let digest = xxh3_128(&bytes).to_be_bytes();
    let mut outcome = Outcome { digest: Some(digest), ..outcome };
    if is_known(&digest) {
        (outcome.status, outcome.is_unchanged) = (Status::Read, true);
        return outcome;
    }
    let deadline = options.max_seconds.and_then(|limit| Instant::now().checked_add(limit));
    let path = survey.found[file as usize].text();
    let names = AxisNames { survey, file };
    let context = Context { survey, options, device, names, path: &path, deadline };
    // Results are not shared for modules in logs, because each has a place of its own, and for
    // modules with facts in neighbouring files.
    let may_repeat = outcome.kind == Kind::Module && survey.memory_files(file).next().is_none();
    if may_repeat && let Some(result) = options.repeated.get(&digest, device, names) {
        outcome.text_bytes = result.text_bytes;
        return context.rows(outcome, result.analysed.clone(), None);
    }
    context.content(outcome, bytes)
}

/// The bytes of a file, or the outcome of a file that is not to be read.
fn bytes_of(
    survey: &Survey,
    file: u32,
    options: &ReadOptions,
) -> Result<(Outcome, Vec<u8>), Outcome> {
    let entry = &survey.found[file as usize];
    let kind = survey.kinds[file as usize];
    let mut outcome = Outcome { file, kind, ..Outcome::default() };
    match &entry.trouble {
        Some(Trouble::Failed(reason)) => return Err(outcome.failed(reason)),
        Some(Trouble::Skipped(reason)) => return Err(outcome.skipped(reason)),
        None => {}
    }
    if let Some(why) = not_to_read(kind) {
        // The content overrides the name if the bytes are a module.
        let content = match head(entry, &*survey.store) {
            Ok(head) => sniff(&head),
            Err(error) => return Err(outcome.failed(reason(&error))),
        };
        match content {
            Content::Hlo => outcome.kind = Kind::Module,
            // A log may begin with other text.
            Content::Text if kind == Kind::Other => {}
            content if kind == Kind::Other => {
                return Err(outcome.skipped(format!("not HLO: {}", content.describe())));
            }
            _ => return Err(outcome.skipped(why)),
        }
    }
    if entry.bytes > options.max_bytes {
        let cap = options.max_bytes;
        let reason = format!("{} bytes, more than {cap} (the size cap)", entry.bytes);
        return Err(outcome.failed(reason));
    }
    // What cannot be HLO takes no memory.
    if entry.bytes > LARGE {
        let looked = head(entry, &*survey.store).and_then(|head| {
            let content = sniff(&head);
            let is_log = kind != Kind::Other
                || content != Content::Text
                || survey.store.contains(entry, options.max_bytes, MODULE)?;
            Ok((refusal(content), is_log))
        });
        match looked {
            Ok((Some(why), _)) => return Err(outcome.failed(why)),
            Ok((None, false)) => return Err(outcome.skipped(OTHER_TEXT)),
            Ok((None, true)) => {}
            Err(error) => return Err(outcome.failed(reason(&error))),
        }
    }
    match read_within(survey, entry, options.max_bytes) {
        Ok(bytes) => Ok((outcome, bytes)),
        Err(error) => Err(outcome.failed(reason(&error))),
    }
}

/// Why content of this form is not read.
fn refusal(content: Content) -> Option<String> {
    match content {
        Content::Archive => Some("an archive, not HLO".to_owned()),
        Content::Binary(what) => Some(format!("{what}, not HLO")),
        _ => None,
    }
}

/// Why files of this kind are not read.
fn not_to_read(kind: Kind) -> Option<&'static str> {
    if kind == Kind::Other { Some("not HLO") } else { kind.why_skipped() }
}

/// The bytes of a file; more than `limit` are an error, because the file may grow while it is read.
fn read_within(survey: &Survey, entry: &Found, limit: u64) -> io::Result<Vec<u8>> {
    let bytes = survey.store.read(entry, limit.saturating_add(1))?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("more than {limit} bytes (the size cap)")));
    }
    Ok(bytes)
}

/// The position of a module in a file, and the name by which a log announces it.
struct Section {
    line: u64,
    label: Option<Box<str>>,
}

struct Context<'a> {
    survey: &'a Survey,
    options: &'a ReadOptions,
    device: Option<&'a Device>,
    names: AxisNames<'a>,
    path: &'a str,
    deadline: Option<Instant>,
}

impl Context<'_> {
    fn content(&self, mut outcome: Outcome, bytes: Vec<u8>) -> Outcome {
        if bytes.is_empty() {
            return outcome.failed("the file is empty");
        }
        let open =
            OpenOptions { path: Some(self.path), max_bytes: Some(self.options.max_text_bytes) };
        let head = bytes.get(..HEAD).unwrap_or(&bytes);
        let refused = match Compression::of(head) {
            Some(_) => refusal(sniff(&decompress_head(&bytes, HEAD))),
            None => refusal(sniff(head)),
        };
        if let Some(why) = refused {
            return outcome.failed(why);
        }
        let shared = crate::text::SharedBytes::from(bytes);
        let source = match unpack(shared.clone(), &open) {
            Ok(source) => source,
            Err(error) => {
                return match outcome.kind {
                    Kind::Other => outcome.skipped(OTHER_TEXT),
                    _ => outcome.fault(&Source::new(shared), &error),
                };
            }
        };
        if outcome.kind == Kind::Other {
            if memmem::find(source.bytes(), MODULE).is_none() {
                return outcome.skipped(OTHER_TEXT);
            }
            outcome.kind = Kind::Log;
        }
        outcome.text_bytes = source.bytes().len() as u64;
        self.text(outcome, &source)
    }

    fn text(&self, mut outcome: Outcome, source: &Source) -> Outcome {
        if source.bytes().trim_ascii().is_empty() {
            return outcome.failed("the file is empty");
        }
        let reading = Options { force_scalar: self.options.force_scalar, ..Options::default() };
        // Most files consist of one module, so no search is needed.
        if starts_with_module(source.bytes())
            && let Ok(module) = parse_whole(source, &reading)
        {
            return self.module(outcome, &module, None);
        }
        let sections = match modules(source) {
            Ok(sections) => sections,
            Err(error) => return outcome.fault(source, &error),
        };
        let several = sections.len() > 1 || sections.iter().any(|module| module.label.is_some());
        if several && outcome.kind != Kind::Fragment {
            outcome.kind = Kind::Log;
        }
        let mut faults = 0u32;
        for FoundModule { source, label } in sections {
            match parse_whole(&source, &reading) {
                Ok(module) => {
                    let section = Section { line: source.lines_before() + 1, label };
                    outcome = self.module(outcome, &module, Some(section));
                }
                Err(error) => {
                    faults += 1;
                    if faults == 1 {
                        outcome = outcome.fault(&source, &error);
                    }
                }
            }
        }
        if faults > 1 {
            outcome.reason = format!("{} ({faults} modules unreadable)", outcome.reason);
        }
        outcome
    }

    /// XLA's memory files about the module in a file, excluding unreadable files.
    fn memory_files(&self, file: u32) -> Vec<Vec<u8>> {
        let read = |entry: &Found| {
            let bytes = read_within(self.survey, entry, self.options.max_bytes).ok()?;
            match crate::text::decompress(&bytes, Some(self.options.max_text_bytes)) {
                Ok(text) => Some(text.unwrap_or(bytes)),
                Err(_) => None,
            }
        };
        self.survey.memory_files(file).filter_map(read).collect()
    }

    /// Analyses a module and adds its rows. `section` is None if the module is the whole file.
    fn module(&self, outcome: Outcome, module: &Module, section: Option<Section>) -> Outcome {
        let memory_files = self.memory_files(outcome.file);
        let names = Some(self.names);
        let beside = Beside { memory_files: &memory_files, device: self.device, names };
        match analyse(module, beside, &self.options.analysis, self.deadline) {
            Ok(analysed) => {
                if let (None, true, Some(digest)) =
                    (&section, memory_files.is_empty(), outcome.digest)
                {
                    let repeated = &self.options.repeated;
                    let text_bytes = outcome.text_bytes;
                    repeated.put(digest, self.device, self.names, &analysed, text_bytes);
                }
                self.rows(outcome, analysed, section)
            }
            Err(stop) => {
                let limit = self.options.max_seconds.unwrap_or_default();
                let stage = format!("stopped before {}", stop.before);
                let timed_out = Outcome::timed_out(outcome.file, outcome.kind, limit, &stage);
                let (digest, text_bytes) = (outcome.digest, outcome.text_bytes);
                Outcome { digest, text_bytes, ..timed_out }
            }
        }
    }

    /// Adds the rows of an analysed module.
    fn rows(
        &self,
        mut outcome: Outcome,
        analysed: ModuleTables,
        section: Option<Section>,
    ) -> Outcome {
        let Section { line, label } = section.unwrap_or(Section { line: 1, label: None });
        let label = label.as_deref();
        let own = self.survey.name(outcome.file);
        let announced = label.map(name::parse);
        let name: &FileName<'_> = announced.as_ref().unwrap_or(&own);
        let program = match label {
            Some(label) => self.survey.label_key(outcome.file, label),
            None => self.survey.program_of(outcome.file).map_or("", |p| p.key.as_str()).to_owned(),
        };
        let place = Place {
            path: self.path,
            program: &program,
            line,
            label: label.unwrap_or_default(),
            stage: name.stage.map_or("", |stage| stage.as_str()),
            step: name.step,
            after: name.after,
        };
        outcome.modules += 1;
        outcome.lacks_axis_names |= analysed.lacks_axis_names;
        for (kind, columns) in analysed.at(&place).filter(|(_, columns)| !columns.is_empty()) {
            match outcome.tables.iter_mut().find(|(own, _)| *own == kind) {
                Some((_, all)) => all.append(columns),
                None => outcome.tables.push((kind, columns)),
            }
        }
        if outcome.status == Status::Skipped {
            outcome.status = Status::Read;
        }
        outcome
    }
}

/// Reads a module; a text that ends before its entry is an error, because the figures of its
/// remaining computations would pass for figures of the program.
fn parse_whole(source: &Source, options: &Options) -> crate::error::Result<Module> {
    let module = parse(source.clone(), options)?;
    module.missing_entry().map_or(Ok(module), Err)
}

/// The `files` table for some outcomes.
pub fn file_rows(survey: &Survey, outcomes: &[Outcome]) -> Columns {
    let each = || outcomes.iter();
    let entry = |outcome: &Outcome| &survey.found[outcome.file as usize];
    // Parsed once: the names of small files take as long as their rows.
    let names: Vec<FileName<'_>> = each().map(|own| name::parse(&entry(own).name)).collect();
    let named = || names.iter();
    let program = |outcome: &Outcome| survey.program_of(outcome.file);
    let number = |value: Option<u64>| crate::table::number(value);
    let mut table = Columns::default();
    table.texts(Field::path("path", "The file."), each().map(|outcome| entry(outcome).text()));
    table.texts(
        Field::name("program", "The program that the file belongs to.").nullable(),
        each().map(|o| program(o).map_or("", |p| p.key.as_str())),
    );
    table.texts(
        Field::word("status", "The outcome: read, failed or skipped."),
        each().map(|outcome| outcome.status.as_str()),
    );
    table.texts(
        Field::text("reason", "Why the file failed or was skipped.").nullable(),
        each().map(|outcome| &outcome.reason),
    );
    table.numbers(
        Field::index("line", "The line of the error.").nullable(),
        each().map(|outcome| outcome.place.map_or(-1, |place| place.0 as i64)),
    );
    let column = |outcome: &Outcome| outcome.place.map_or(-1, |place| place.1 as i64);
    table
        .numbers(Field::index("column", "The column of the error.").nullable(), each().map(column));
    table.texts(
        Field::word("kind", "The kind of file."),
        each().map(|outcome| outcome.kind.as_str()),
    );
    table.texts(
        Field::word("stage", "The stage of compilation, according to the file name.").nullable(),
        named().map(|name| name.stage.map_or("", |s| s.as_str())),
    );
    table.numbers(
        Field::index("step", "The number of the pass.").nullable(),
        named().map(|name| name.step.map_or(-1, i64::from)),
    );
    table.texts(
        Field::name("pipeline", "The pipeline of passes.").nullable(),
        named().map(|name| name.pipeline),
    );
    table.texts(
        Field::name("after_pass", "The pass that ran before the file was written.").nullable(),
        named().map(|name| name.after),
    );
    table.texts(
        Field::name("before_pass", "The pass that ran after the file was written.").nullable(),
        named().map(|name| name.before),
    );
    table.numbers(
        Field::index("timestamp", "The time in the file name, in seconds since 1970.").nullable(),
        named().map(|name| number(name.timestamp)),
    );
    table.numbers(
        Field::index("module_id", "The number of the module in the process.").nullable(),
        named().map(|name| number(name.module_id)),
    );
    let of_module = |outcome: &Outcome| survey.module_of(outcome.file);
    let module_path = |file: u32| survey.found[file as usize].text();
    table.texts(
        Field::path("module_path", "The module file that a memory file belongs to.").nullable(),
        each().map(|o| of_module(o).map_or(String::new(), module_path)),
    );
    let module_name = |o: &Outcome| program(o).map_or("", |program| &program.module_name);
    table.texts(
        Field::name("module_name", "The name of the module.").nullable(),
        each().map(module_name),
    );
    table.numbers(
        Field::index("changelist", "The compiler's source version in the file name.").nullable(),
        named().map(|name| number(name.changelist)),
    );
    table.texts(
        Field::name("host", "The host that wrote the file.").nullable(),
        each().map(|o| program(o).map_or("", |program| &program.host)),
    );
    table.numbers(
        Field::bytes("bytes", "Bytes of the file.").summed(),
        each().map(|outcome| entry(outcome).bytes as i64),
    );
    let text_bytes = |o: &Outcome| if o.modules > 0 { o.text_bytes as i64 } else { -1 };
    table.numbers(
        Field::bytes("text_bytes", "Bytes of the file's modules as text.").nullable().summed(),
        each().map(text_bytes),
    );
    table.numbers(
        Field::count("modules", "Modules in the file.").summed(),
        each().map(|outcome| i64::from(outcome.modules)),
    );
    let digest = |o: &Outcome| o.digest.map(|digest| hexadecimal(&digest)).unwrap_or_default();
    table.texts(
        Field::text("digest", "A digest of the file's bytes.").nullable(),
        each().map(digest),
    );
    table
}
