//! `SurveyData` and `ScanData`: dump directories, which `hlofast._scan` turns into datasets.

use crate::arrow::stream_of;
use crate::classes::restorer;
use crate::heap::trim_after;
use crate::held::source_options;
use crate::mesh::Mesh;
use crate::programs::program_files;
use crate::scan_rows::faulty;
use crate::survey::{PackedSurvey, packed, store, unpacked};
use crate::table_builder::to_list;
use crate::time::{DeviceParts, device_of};
use hlofast::dump::bulk::{Bulk, Limits, Next, Work};
use hlofast::dump::walk::sort;
use hlofast::dump::{
    AnalysisOptions, AxisNames, Found, Kind, Outcome, ReadOptions, Repeated, Stage, Status, Survey,
    TableKind, Tables, Trouble, file_rows, hexadecimal, program_rows, read,
};
use hlofast::table::{Columns, csv, json_lines, parquet};
use hlofast::time::Device;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyTuple};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The files below some paths, and the programs that they belong to.
#[pyclass(frozen, module = "hlofast._core")]
pub struct SurveyData {
    survey: Arc<Survey>,
}

/// Finds all files below `paths` and the programs that they belong to.
#[pyfunction]
pub fn _survey(py: Python<'_>, paths: Vec<PathBuf>) -> SurveyData {
    SurveyData { survey: Arc::new(py.detach(|| Survey::new(&paths))) }
}

/// Surveys files that the caller has listed below `roots`.
///
/// An entry is a path, its size in bytes, its modification time in nanoseconds since 1970 (0 if
/// unknown) and the reason it cannot be read (None if it can).
///
/// The contents are read from disk, or by `read(path, most)`, which returns at most the first
/// `most` bytes of the file. `read` may be called on any thread; its exceptions become the reasons
/// that files failed.
#[pyfunction]
#[pyo3(signature = (entries, roots, read=None))]
pub fn _survey_listing(
    py: Python<'_>,
    entries: Vec<(PathBuf, u64, u64, Option<String>)>,
    roots: Vec<String>,
    read: Option<Py<PyAny>>,
) -> SurveyData {
    let files = entries.into_iter().map(|(path, bytes, modified, reason)| {
        let trouble = reason.map(Trouble::Failed);
        Found { bytes, modified, trouble, ..Found::listed(path, &roots) }
    });
    let mut files: Vec<Found> = files.collect();
    sort(&mut files);
    let survey = py.detach(|| Survey::from_listing(files, &roots, store(read)));
    SurveyData { survey: Arc::new(survey) }
}

/// Restores a survey from the result of `SurveyData.part`.
///
/// `read` is as for `_survey_listing`. Raises `ValueError` if the parts do not fit together.
#[pyfunction]
#[pyo3(signature = (part, read=None))]
pub fn _survey_part(part: PackedSurvey, read: Option<Py<PyAny>>) -> PyResult<SurveyData> {
    let survey = unpacked(part, store(read));
    let survey = survey.ok_or_else(|| PyValueError::new_err("not a part of a survey"))?;
    Ok(SurveyData { survey: Arc::new(survey) })
}

/// Returns the names of the tables of a scan, the kinds of files and the stages of modules.
#[pyfunction]
pub fn _scan_words(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let tables: Vec<&str> = TableKind::ALL.iter().map(|table| table.as_str()).collect();
    let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    let stages: Vec<&str> = Stage::ALL.iter().map(|stage| stage.as_str()).collect();
    PyTuple::new(py, [tables, kinds, stages])
}

#[pymethods]
impl SurveyData {
    fn __len__(&self) -> usize {
        self.survey.found.len()
    }

    /// Total size of all files in bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.survey.found.iter().map(|entry| entry.bytes).sum()
    }

    /// Returns the paths of all files.
    fn paths(&self) -> Vec<String> {
        self.survey.found.iter().map(|entry| entry.text()).collect()
    }

    /// Returns the size in bytes and modification time (nanoseconds since 1970) of every file, by
    /// path.
    fn stamps(&self) -> Vec<(String, (u64, u64))> {
        let files = self.survey.found.iter();
        files.map(|entry| (entry.text(), (entry.bytes, entry.modified))).collect()
    }

    /// Returns files `first` to `last` (exclusive) as plain values for `_survey_part`, in any
    /// process, and the numbers of their programs in this survey.
    fn part(&self, first: usize, last: usize) -> (PackedSurvey, Vec<u32>) {
        let (part, numbers) = self.survey.part(first..last);
        (packed(part), numbers)
    }

    /// Returns the table of programs.
    ///
    /// Programs take their figures from `modules`, the table of modules.
    #[pyo3(signature = (modules=None))]
    fn programs(&self, py: Python<'_>, modules: Option<&Bound<'_, ScanTable>>) -> ScanTable {
        let modules = modules.map(|table| Arc::clone(&table.get().columns)).unwrap_or_default();
        ScanTable { columns: Arc::new(py.detach(|| program_rows(&self.survey, &modules))) }
    }

    /// Returns the programs that have modules to read, each with its modules by stage.
    fn program_files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        program_files(py, &self.survey)
    }

    /// Returns the files and directories that cannot be opened, each with the reason.
    fn refused(&self) -> Vec<(String, String)> {
        let refused = |entry: &Found| match &entry.trouble {
            Some(Trouble::Failed(reason)) => Some((entry.text(), reason.clone())),
            _ => None,
        };
        self.survey.found.iter().filter_map(refused).collect()
    }

    /// Returns the chip that each program is compiled for, according to its files; None if they do
    /// not tell.
    fn targets(&self, py: Python<'_>) -> Vec<Option<String>> {
        py.detach(|| self.survey.targets())
    }

    /// Starts reading the files.
    ///
    /// `devices` holds, for each program, an index into `chips`. `known` holds the states of files
    /// read by an earlier scan, by path. `stamps` holds sizes and modification times of files; a
    /// file counts as unchanged if both are equal.
    #[pyo3(signature = (*, tables, chips, devices, mesh, frame, libraries, merge_layers, known, stamps, workers, memory, max_bytes, max_text_bytes, max_seconds, batch_bytes))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn scan(
        &self,
        tables: Vec<String>,
        chips: Vec<DeviceParts>,
        devices: Vec<Option<usize>>,
        mesh: Option<&Bound<'_, Mesh>>,
        frame: Option<&str>,
        libraries: Option<Vec<String>>,
        merge_layers: bool,
        known: HashMap<String, String>,
        stamps: HashMap<String, (u64, u64)>,
        workers: usize,
        memory: u64,
        max_bytes: u64,
        max_text_bytes: u64,
        max_seconds: Option<f64>,
        batch_bytes: u64,
    ) -> PyResult<ScanData> {
        let mut wanted = Tables::FILES;
        for name in &tables {
            wanted = wanted.with(table_kind(name)?);
        }
        let time = match max_seconds {
            None => None,
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .map_err(|error| PyValueError::new_err(format!("max_seconds: {error}")))?,
            ),
        };
        let mesh = mesh.map(|mesh| mesh.get().core.clone());
        let force_scalar = std::env::var_os("HLOFAST_FORCE_SCALAR").is_some_and(|v| v == "1");
        let options = ReadOptions {
            analysis: AnalysisOptions {
                mesh,
                sources: source_options(frame, libraries)?,
                merges_layers: merge_layers,
                ..AnalysisOptions::new(wanted)
            },
            max_bytes,
            max_text_bytes,
            max_seconds: time,
            repeated: Arc::new(Repeated::new(Repeated::USUAL)),
            force_scalar,
        };
        let chips = chips.into_iter().map(device_of).collect();
        let survey = Arc::clone(&self.survey);
        let files = Files { survey, options, chips, devices, known, stamps };
        let files = Arc::new(files);
        // Files normally stop between two analyses; the thread is abandoned only after this longer
        // limit.
        let time = time.map(|time| time.saturating_mul(2) + Duration::from_secs(1));
        let limits = Limits { threads: workers, memory, collected: batch_bytes, time };
        let bulk = Bulk::new(Arc::clone(&files), limits);
        let (part, is_done) = (Part::default(), false);
        let run = Run { bulk, part, handed_out: 0, is_done, files: 0, bytes: 0 };
        Ok(ScanData { files, batch_bytes, run: Mutex::new(run) })
    }
}

fn table_kind(name: &str) -> PyResult<TableKind> {
    let table = TableKind::ALL.iter().find(|table| table.as_str() == name);
    table.copied().ok_or_else(|| PyValueError::new_err(format!("no table {name:?}")))
}

/// The files of a survey, as jobs.
struct Files {
    survey: Arc<Survey>,
    options: ReadOptions,
    chips: Vec<Device>,
    devices: Vec<Option<usize>>,
    known: HashMap<String, String>,
    stamps: HashMap<String, (u64, u64)>,
}

impl Files {
    fn device(&self, file: u32) -> Option<&Device> {
        let program = *self.survey.programs.of_file.get(file as usize)?;
        self.chips.get((*self.devices.get(program as usize)?)?)
    }

    /// The state of a file. While the state is unchanged, the file need not be read again.
    fn state(&self, outcome: &Outcome) -> String {
        let Some(digest) = outcome.digest else {
            return format!("{}: {}", outcome.status.as_str(), outcome.reason);
        };
        let mut state = hexadecimal(&digest) + &self.surroundings(outcome.file);
        if outcome.lacks_axis_names {
            state += &format!("~{}", self.names(outcome.file).digest());
        }
        state
    }

    /// The facts, besides the file's bytes, on which the rows of a file depend.
    fn surroundings(&self, file: u32) -> String {
        let device = self.device(file).map_or("", |device| device.name.as_str());
        let beside: u64 = self.survey.memory_files(file).map(|entry| entry.bytes).sum();
        format!("@{device}+{beside}")
    }

    /// Whether the state `known` still applies if the bytes of the file are unchanged, because the
    /// file was read or is not to be read. Files that failed are tried again.
    fn holds(&self, file: u32, known: &str) -> bool {
        let surroundings = self.surroundings(file);
        let is_current = |(own, names): (&str, &str)| {
            own.ends_with(&surroundings) && names == self.names(file).digest()
        };
        known.ends_with(&surroundings)
            || known.starts_with(Status::Skipped.as_str())
            || known.rsplit_once('~').is_some_and(is_current)
    }

    fn names(&self, file: u32) -> AxisNames<'_> {
        AxisNames { survey: &self.survey, file }
    }

    /// Whether a file may be taken as unchanged without reading it.
    fn is_stamped(&self, entry: &Found) -> bool {
        self.stamps.get(&entry.text()) == Some(&(entry.bytes, entry.modified))
    }
}

impl Work for Files {
    type Result = Outcome;

    fn len(&self) -> usize {
        self.survey.own
    }

    fn cost(&self, job: usize) -> u64 {
        let Some(entry) = self.survey.found.get(job) else { return 0 };
        // Memory for text, columns and results; compressed text is expanded first.
        let is_packed = hlofast::dump::name::without_compression(&entry.name) != entry.name;
        let factor = if is_packed { 24 } else { 3 };
        match self.survey.kinds.get(job) {
            Some(Kind::Module | Kind::Fragment | Kind::Log) => {
                entry.bytes.min(self.options.max_bytes).saturating_mul(factor)
            }
            _ => 1 << 14,
        }
    }

    fn weight(&self, result: &Outcome) -> u64 {
        result.heap_bytes()
    }

    fn together(&self, job: usize) -> usize {
        self.survey.alike(job)
    }

    fn run(&self, job: usize) -> Outcome {
        let file = job as u32;
        let entry = self.survey.found.get(job);
        let known = entry.and_then(|entry| self.known.get(&entry.text()));
        let holds = |known: &String| self.holds(file, known);
        if entry.is_some_and(|entry| self.is_stamped(entry)) && known.is_some_and(holds) {
            return Outcome { file, is_unchanged: true, ..Outcome::default() };
        }
        let is_known = |digest: &[u8; 16]| {
            known.is_some_and(|known| known.starts_with(&hexadecimal(digest)) && holds(known))
        };
        let mut outcome = read(&self.survey, file, &self.options, self.device(file), is_known);
        outcome.is_unchanged |= known.is_some_and(|known| *known == self.state(&outcome));
        trim_after(outcome.text_bytes);
        outcome
    }

    fn panicked(&self, job: usize, message: &str) -> Outcome {
        let kind = self.survey.kinds.get(job).copied().unwrap_or_default();
        Outcome::panicked(job as u32, kind, message)
    }

    fn timed_out(&self, job: usize, _limit: Duration) -> Outcome {
        let kind = self.survey.kinds.get(job).copied().unwrap_or_default();
        let cap = self.options.max_seconds.unwrap_or_default();
        Outcome::timed_out(job as u32, kind, cap, "given up")
    }
}

/// Results that have not been handed out yet.
#[derive(Default)]
struct Part {
    outcomes: Vec<Outcome>,
    states: Vec<(String, String)>,
    unchanged: Vec<String>,
    tables: Vec<(TableKind, Columns)>,
    text_bytes: u64,
    heap_bytes: u64,
}

struct Run {
    bulk: Bulk<Files>,
    part: Part,
    /// Bytes of the rows that the caller works on.
    handed_out: u64,
    is_done: bool,
    files: u64,
    bytes: u64,
}

/// A running scan.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ScanData {
    files: Arc<Files>,
    batch_bytes: u64,
    run: Mutex<Run>,
}

impl Run {
    /// Takes results until a part is full or time is up; returns whether the part is full.
    fn fill(&mut self, files: &Files, batch_bytes: u64, timeout: Duration) -> bool {
        let until = std::time::Instant::now() + timeout;
        loop {
            let rest = until.saturating_duration_since(std::time::Instant::now());
            match self.bulk.next(rest) {
                Next::Result(outcome) => self.take(files, outcome),
                Next::Pending => return false,
                Next::End => {
                    self.is_done = true;
                    return true;
                }
            }
            // Rows may need more memory than the text they come from.
            if self.part.text_bytes.max(self.part.heap_bytes) >= batch_bytes {
                return true;
            }
        }
    }

    /// Returns the results taken so far as a part.
    fn hand_out(&mut self, files: &Files) -> ScanPart {
        let Part { outcomes, states, unchanged, mut tables, text_bytes, heap_bytes } =
            std::mem::take(&mut self.part);
        if !outcomes.is_empty() {
            tables.insert(0, (TableKind::Files, file_rows(&files.survey, &outcomes)));
        }
        tables.sort_by_key(|(kind, _)| *kind);
        let tables = tables.into_iter().map(|(kind, columns)| (kind, Arc::new(columns))).collect();
        ScanPart { states, unchanged, tables, size: text_bytes.max(heap_bytes) }
    }

    fn take(&mut self, files: &Files, mut outcome: Outcome) {
        let entry = &files.survey.found[outcome.file as usize];
        self.files += 1;
        self.bytes += entry.bytes;
        let part = &mut self.part;
        if outcome.is_unchanged {
            part.unchanged.push(entry.text());
            return;
        }
        part.states.push((entry.text(), files.state(&outcome)));
        part.text_bytes += outcome.text_bytes;
        part.heap_bytes += outcome.heap_bytes();
        for (kind, columns) in outcome.tables.drain(..) {
            match part.tables.iter_mut().find(|(own, _)| *own == kind) {
                Some((_, all)) => all.append(columns),
                None => part.tables.push((kind, columns)),
            }
        }
        part.outcomes.push(outcome);
    }
}

impl Drop for ScanData {
    fn drop(&mut self) {
        let run = self.run.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A thread that reads through Python needs the interpreter lock to end, so this thread
        // releases it.
        Python::attach(|py| py.detach(|| run.bulk.end()));
    }
}

#[pymethods]
impl ScanData {
    /// Returns the next part; None if none is ready after `seconds`, or if all were handed out
    /// (`is_done`). The caller keeps no part that it got before, or the memory of both is in use.
    fn next(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<ScanPart>> {
        let timeout = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        py.detach(|| {
            let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
            trim_after(std::mem::take(&mut run.handed_out));
            run.bulk.release();
            if run.is_done || !run.fill(&self.files, self.batch_bytes, timeout) {
                return Ok(None);
            }
            run.handed_out = run.part.heap_bytes;
            Ok(Some(run.hand_out(&self.files)))
        })
    }

    /// Ends the scan; returns the results that are ready as a last part.
    fn stop(&self, py: Python<'_>) -> ScanPart {
        py.detach(|| {
            let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
            run.bulk.cancel();
            run.is_done = true;
            run.hand_out(&self.files)
        })
    }

    /// Whether all parts were handed out.
    #[getter]
    fn is_done(&self) -> bool {
        self.run.lock().unwrap_or_else(PoisonError::into_inner).is_done
    }

    /// Returns the number of finished files and their bytes.
    fn progress(&self) -> (u64, u64) {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        (run.files, run.bytes)
    }
}

/// Some of the files, with the rows of their modules.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ScanPart {
    states: Vec<(String, String)>,
    unchanged: Vec<String>,
    tables: Vec<(TableKind, Arc<Columns>)>,
    size: u64,
}

/// Restores a part from its contents.
#[pyfunction]
pub fn _scan_part(
    states: Vec<(String, String)>,
    unchanged: Vec<String>,
    tables: Vec<(String, Bound<'_, ScanTable>)>,
    size: u64,
) -> PyResult<ScanPart> {
    let tables = tables.iter().map(|(name, table)| {
        let columns = Arc::clone(&table.get().columns);
        Ok((table_kind(name)?, columns))
    });
    Ok(ScanPart { states, unchanged, tables: tables.collect::<PyResult<_>>()?, size })
}

#[pymethods]
impl ScanPart {
    /// Bytes of the text or of the rows, whichever is larger.
    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let make = restorer(py, "_scan_part")?;
        let tables = self
            .tables
            .iter()
            .map(|(kind, columns)| (kind.as_str(), ScanTable { columns: Arc::clone(columns) }));
        let tables: Vec<_> = tables.collect();
        (make, (self.states.clone(), self.unchanged.clone(), tables, self.size)).into_pyobject(py)
    }

    /// Returns the files with their states, which tell the next scan whether to read them again.
    fn states(&self) -> Vec<(String, String)> {
        self.states.clone()
    }

    /// Returns the paths of unchanged files, whose rows are not included.
    fn unchanged(&self) -> Vec<String> {
        self.unchanged.clone()
    }

    /// Returns the names of the tables that have rows.
    fn tables(&self) -> Vec<&'static str> {
        self.tables.iter().map(|(kind, _)| kind.as_str()).collect()
    }

    /// Returns the rows of the table `name`.
    fn table(&self, name: &str) -> PyResult<ScanTable> {
        let table = self.tables.iter().find(|(kind, _)| kind.as_str() == name);
        let columns = table.map(|(_, columns)| Arc::clone(columns));
        let columns = columns.ok_or_else(|| PyRuntimeError::new_err("no such table"))?;
        Ok(ScanTable { columns })
    }
}

/// The rows of one table.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ScanTable {
    pub(crate) columns: Arc<Columns>,
}

/// Concatenates the rows of several tables of one kind.
#[pyfunction]
pub fn _concatenated(parts: Vec<Bound<'_, ScanTable>>) -> ScanTable {
    let mut columns = Columns::default();
    for part in parts {
        columns.append(Columns::clone(&part.get().columns));
    }
    ScanTable { columns: Arc::new(columns) }
}

/// Restores a table from its bytes; raises `ValueError` if they are invalid.
#[pyfunction]
pub fn _scan_table(py: Python<'_>, bytes: &[u8]) -> PyResult<ScanTable> {
    let columns = py.detach(|| Columns::from_bytes(bytes));
    let columns = columns.ok_or_else(|| PyValueError::new_err("not the bytes of a table"))?;
    Ok(ScanTable { columns: Arc::new(columns) })
}

#[pymethods]
impl ScanTable {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let make = restorer(py, "_scan_table")?;
        let bytes = py.detach(|| self.columns.to_bytes());
        (make, (PyBytes::new(py, &bytes),)).into_pyobject(py)
    }

    fn __len__(&self) -> usize {
        self.columns.len()
    }

    /// Returns fields and columns, as `hlofast.table.Table` takes them.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, Columns::clone(&self.columns))
    }

    /// Returns the rows as JSON, one object per line.
    ///
    /// With `label`, each object has a key `table` with that value.
    #[pyo3(signature = (label=None))]
    fn json_lines<'py>(&self, py: Python<'py>, label: Option<&str>) -> Bound<'py, PyBytes> {
        let text = py.detach(|| json_lines(&self.columns, label));
        PyBytes::new(py, &text)
    }

    /// Returns the rows as comma-separated values.
    fn csv<'py>(&self, py: Python<'py>, header: bool) -> Bound<'py, PyBytes> {
        let text = py.detach(|| csv(&self.columns, header));
        PyBytes::new(py, &text)
    }

    /// Returns the rows as a Parquet file.
    fn parquet<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let file = py.detach(|| parquet(&self.columns)).map_err(faulty)?;
        Ok(PyBytes::new(py, &file))
    }

    /// Exports the rows as a stream of one record batch; unknown and absent values are null.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        stream_of(py, &self.columns)
    }
}
