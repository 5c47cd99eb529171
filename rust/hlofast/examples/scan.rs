//! What a scan of dump directories does, in parts, for profilers, counters and comparisons of two
//! versions: `scan MODE THREADS FOLDER...`.
//!
//! `all` reads everything and encodes the usual tables as Parquet, as a scan does, and `each` without
//! results that files with the same bytes share; `shared` and `digest` read all tables and print a
//! hash of each table of each file. `analyses` times every analysis on one thread.

use hlofast::dump::bulk::{Bulk, Limits, Next, Work};
use hlofast::dump::{
    AnalysisOptions, Beside, Kind, Outcome, ReadOptions, Repeated, Survey, TableKind, Tables,
    analyse, read,
};
use hlofast::print::{FingerprintOptions, fingerprint};
use hlofast::table::{self, Columns, json_lines, parquet};
use hlofast::text::{OpenOptions, modules};
use hlofast::{Analyses, Options, parse, summary, unpack};
use std::error::Error;
use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_128;

const MOST: u64 = 64 << 20;
/// Bytes of text in one part of a dataset.
const PART: u64 = 32 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(mode), Some(threads)) = (arguments.next(), arguments.next()) else {
        return Err("usage: scan (all|each|shared|digest|analyses) THREADS FOLDER...".into());
    };
    let folders: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let survey = Survey::new(&folders);
    match mode.as_str() {
        "analyses" => analyses(&survey),
        "digest" | "shared" | "all" | "each" => scan(survey, &mode, threads.parse()?),
        _ => Err("the mode is digest, shared, analyses, all or each".into()),
    }
}

struct Files {
    survey: Survey,
    options: ReadOptions,
}

impl Work for Files {
    type Result = Outcome;

    fn len(&self) -> usize {
        self.survey.found.len()
    }

    fn cost(&self, job: usize) -> u64 {
        3 * self.survey.found[job].bytes
    }

    fn weight(&self, result: &Outcome) -> u64 {
        result.heap_bytes()
    }

    fn together(&self, job: usize) -> usize {
        self.survey.alike(job)
    }

    fn run(&self, job: usize) -> Outcome {
        read(&self.survey, job as u32, &self.options, None, |_| false)
    }

    fn panicked(&self, job: usize, message: &str) -> Outcome {
        Outcome::panicked(job as u32, Kind::default(), message)
    }

    fn timed_out(&self, job: usize, limit: Duration) -> Outcome {
        Outcome::timed_out(job as u32, Kind::default(), limit, "")
    }
}

fn scan(survey: Survey, mode: &str, threads: usize) -> Result<(), Box<dyn Error>> {
    let is_digest = matches!(mode, "digest" | "shared");
    let is_shared = matches!(mode, "shared" | "all");
    let mut wanted = Tables::FILES;
    let usual =
        [TableKind::Modules, TableKind::Collectives, TableKind::Matmuls, TableKind::Buffers];
    for table in if is_digest { TableKind::ALL } else { &usual[..] } {
        wanted = wanted.with(*table);
    }
    let options = ReadOptions {
        analysis: AnalysisOptions::new(wanted),
        max_bytes: u64::MAX,
        max_text_bytes: MOST,
        max_seconds: None,
        repeated: Arc::new(Repeated::new(if is_shared { Repeated::USUAL } else { 0 })),
        force_scalar: false,
    };
    let begin = Instant::now();
    let files = Arc::new(Files { survey, options });
    let limits = Limits { threads, memory: 128 << 20, collected: PART, time: None };
    let mut bulk = Bulk::new(Arc::clone(&files), limits);
    let (mut text_bytes, mut parquet_bytes) = (0, 0);
    let mut part = Part::default();
    let mut out = std::io::stdout().lock();
    loop {
        match bulk.next(Duration::from_secs(1)) {
            Next::Pending => {}
            Next::End => break,
            Next::Result(outcome) => {
                text_bytes += outcome.text_bytes;
                if is_digest {
                    bulk.release();
                    let path = files.survey.found[outcome.file as usize].text();
                    writeln!(out, "{path} {} {}", outcome.status.as_str(), outcome.reason)?;
                    for (kind, columns) in &outcome.tables {
                        let digest = xxh3_128(&json_lines(columns, None));
                        writeln!(out, "  {} {digest:032x}", kind.as_str())?;
                    }
                } else {
                    part.add(outcome);
                    if part.text_bytes.max(part.heap_bytes) >= PART {
                        parquet_bytes += std::mem::take(&mut part).encoded()?;
                        bulk.release();
                    }
                }
            }
        }
    }
    parquet_bytes += part.encoded()?;
    let seconds = begin.elapsed().as_secs_f64();
    if !is_digest {
        let rate = text_bytes as f64 / seconds / 1e6;
        let sizes = format!("{text_bytes} bytes of text, {parquet_bytes} bytes of Parquet");
        writeln!(out, "{sizes}, {seconds:.3} s, {rate:.1} MB/s")?;
    }
    Ok(())
}

/// The rows of some files, which a scan writes together.
#[derive(Default)]
struct Part {
    tables: Vec<(TableKind, Columns)>,
    text_bytes: u64,
    heap_bytes: u64,
}

impl Part {
    fn add(&mut self, outcome: Outcome) {
        self.text_bytes += outcome.text_bytes;
        self.heap_bytes += outcome.heap_bytes();
        for (kind, columns) in outcome.tables {
            match self.tables.iter_mut().find(|(own, _)| *own == kind) {
                Some((_, all)) => all.append(columns),
                None => self.tables.push((kind, columns)),
            }
        }
    }

    /// Bytes of the tables as Parquet.
    fn encoded(self) -> Result<usize, Box<dyn Error>> {
        let mut bytes = 0;
        for (_, columns) in &self.tables {
            bytes += parquet(columns).map_err(|error| error.to_string())?.len();
        }
        Ok(bytes)
    }
}

/// Seconds by analysis.
#[derive(Default)]
struct Clock {
    list: Vec<(&'static str, Duration)>,
}

impl Clock {
    fn time<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let begin = processor_time();
        let result = black_box(work());
        let spent = processor_time().saturating_sub(begin);
        match self.list.iter_mut().find(|(own, _)| *own == name) {
            Some((_, sum)) => *sum += spent,
            None => self.list.push((name, spent)),
        }
        result
    }
}

/// What this thread has used of its processor; on systems that do not tell, time since the start.
fn processor_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let used = told.and_then(|text| text.split(' ').next()?.parse().ok());
    used.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

fn analyses(survey: &Survey) -> Result<(), Box<dyn Error>> {
    let mut clock = Clock::default();
    let (mut bytes, mut rows) = (0, 0);
    let is_module = |number: &usize| {
        survey.kinds[*number] == Kind::Module && survey.found[*number].trouble.is_none()
    };
    for number in (0..survey.found.len()).filter(is_module) {
        let Ok(data) = std::fs::read(&survey.found[number].path) else { continue };
        clock.time("digest of the file", || xxh3_128(&data));
        let open = OpenOptions { path: None, max_bytes: Some(MOST) };
        let Ok(source) = clock.time("unpack", || unpack(data.into(), &open)) else { continue };
        for part in modules(&source).unwrap_or_default() {
            let parsed = clock.time("parse", || parse(part.source.clone(), &Options::default()));
            let Ok(module) = parsed else { continue };
            bytes += module.text().len();
            rows += module.row_count();
            let module = &module;
            clock.time("users and columns", || {
                black_box((module.users(), module.computation_column()));
                black_box(module.shape_bytes_column());
            });
            let analyses = Analyses::new(module);
            clock.time("facts", || analyses.facts());
            let counted = clock.time("cost", || analyses.cost());
            let uncertain = clock.time("uncertain", || analyses.uncertain());
            let attributed = clock.time("attribution", || analyses.attribution());
            clock.time("collectives", || analyses.collectives());
            clock.time("mesh", || analyses.mesh());
            let origin = clock.time("sources", || analyses.origin());
            let sent = clock.time("sent", || analyses.sent());
            clock.time("table of collectives", || sent.columns(&origin));
            let in_memory = clock.time("memory", || analyses.memory());
            clock.time("XLA's memory accounting", || analyses.account().is_ok());
            let again = Analyses::new(module);
            clock.time("memory and account", || again.memory().is_ok() && again.account().is_ok());
            let options = summary::Options { shapes: 0 };
            let summary = clock.time("summary", || analyses.summary_with(&options));
            clock.time("fingerprint", || fingerprint(module, &FingerprintOptions::default()));
            clock.time("table of matmuls", || {
                table::matmuls(&origin, analyses.products(), counted, attributed, uncertain)
            });
            if let Ok(memory) = in_memory {
                clock.time("table of buffers", || {
                    let values = memory.live_at(module, memory.peak.step);
                    table::buffers(&origin, memory, attributed, &values)
                });
            }
            let report = clock.time("remat", || analyses.remat());
            clock.time("table of remat", || table::remat(&origin, counted, report));
            let findings = clock.time("lint", || &analyses.lint().findings);
            clock.time("table of lint", || table::findings(&origin, &analyses.callers(), findings));
            clock.time("table of computations", || table::computations(module, counted, &summary));
            clock.time("table of instructions", || {
                table::instructions(&origin, counted, attributed)
            });
            let wanted = [
                TableKind::Modules,
                TableKind::Collectives,
                TableKind::Matmuls,
                TableKind::Buffers,
            ];
            let tables = wanted.into_iter().fold(Tables::FILES, Tables::with);
            let fresh = parse(found_again(module), &Options::default())?;
            clock.time("ALL OF A SCAN", || {
                let options = AnalysisOptions::new(tables);
                analyse(&fresh, Beside::default(), &options, None).is_ok()
            });
        }
    }
    println(&format!("{bytes} bytes, {rows} instructions"))?;
    for (name, spent) in &clock.list {
        let each = spent.as_nanos() as f64 / rows as f64;
        let rate = bytes as f64 / spent.as_secs_f64() / 1e6;
        println(&format!("{each:9.1} ns {:8.3} s {rate:9.1} MB/s  {name}", spent.as_secs_f64()))?;
    }
    Ok(())
}

fn found_again(module: &hlofast::ir::Module) -> hlofast::text::Source {
    hlofast::text::Source::from_slice(module.text())
}

fn println(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")
}
