//! `ProfileData`: the profile of a run, its tables, and its files as lazy views.

use crate::column::Column;
use crate::errors::to_python;
use crate::field::Field;
use crate::held::text;
use crate::loading::{PathText, bytes_of, file_error};
use crate::table_builder::to_list;
use crate::text_column::TextColumn;
use hlofast::profile::xplane::{Event, Line, Plane, Space, Stats, Value};
use hlofast::profile::{File, Loaded, NONE, Names, load};
use hlofast::table::{self, Field as CoreField};
use hlofast::text::{SharedBytes, Source, decompress};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyList};
use std::sync::Arc;

/// Most bytes of a compressed text in a stat.
const MOST_TEXT: u64 = 64 << 20;

/// What ran on devices, from the files of one run, created by `hlofast.load_profile`.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ProfileData {
    pub loaded: Arc<Loaded>,
    paths: Vec<Option<String>>,
}

impl ProfileData {
    /// A profile that comes from no file of its own.
    pub fn of(loaded: Loaded) -> Self {
        Self { loaded: Arc::new(loaded), paths: Vec::new() }
    }
}

/// Reads the profile in `files`, one per host: paths or bytes, with the name of each in messages.
///
/// Raises `ParseError` for a file that is not a profile, `OSError` for one that cannot be read.
#[pyfunction]
#[pyo3(signature = (files, *, max_bytes=None))]
pub fn _load_profile(
    py: Python<'_>,
    files: Vec<(Bound<'_, PyAny>, Option<String>)>,
    max_bytes: Option<u64>,
) -> PyResult<ProfileData> {
    let (mut opened, mut paths) = (Vec::new(), Vec::new());
    for (given, name) in files {
        let bytes: SharedBytes = match given.extract::<std::path::PathBuf>() {
            Ok(path) if !given.is_instance_of::<PyBytes>() => {
                let name = path.to_string_lossy().into_owned();
                let read = py.detach(|| std::fs::read(&path));
                read.map_err(|error| file_error(py, error, &name))?.into()
            }
            _ => bytes_of(&given)?,
        };
        opened.push(File { bytes, path: name.as_deref().map(Into::into) });
        paths.push(name);
    }
    let loaded = py.detach(|| load(&opened, max_bytes));
    let loaded = loaded.map_err(|(number, error)| {
        let file = opened.get(number);
        let source = file.map_or(Source::from_slice(b""), |file| {
            // Places are those of the decompressed content, if there is any.
            let content = decompress(&file.bytes, max_bytes).ok().flatten();
            let content = content.map_or_else(|| file.bytes.clone(), SharedBytes::from);
            let source = Source::new(content);
            file.path.as_deref().map_or(source.clone(), |path| source.with_path(path))
        });
        to_python(&source, &error)
    })?;
    Ok(ProfileData { loaded: Arc::new(loaded), paths })
}

/// Whether a file that begins with `head` (at least 64 KiB, or all of it) is a profile.
#[pyfunction]
pub fn _is_profile(head: &[u8]) -> bool {
    hlofast::profile::is_profile(head)
}

/// Returns the runs below a folder, the oldest first: name, folder, and the files of its hosts.
///
/// Raises `OSError` if the folder cannot be read.
#[pyfunction]
pub fn _profile_runs(
    py: Python<'_>,
    folder: std::path::PathBuf,
) -> PyResult<Vec<(String, PathText, Vec<PathText>)>> {
    let name = folder.to_string_lossy().into_owned();
    let runs = py.detach(|| hlofast::dump::profiles(&folder));
    let runs = runs.map_err(|error| file_error(py, error, &name))?;
    let text = |path: std::path::PathBuf| path.into_os_string();
    Ok(runs
        .into_iter()
        .map(|run| (run.name, text(run.folder), run.files.into_iter().map(text).collect()))
        .collect())
}

type Listed<'py> = PyResult<Bound<'py, PyList>>;

/// A column of texts, by their numbers in `values`; -1 is unknown.
fn coded(py: Python<'_>, values: Vec<Box<[u8]>>, codes: Vec<i32>) -> PyResult<TextColumn> {
    Ok(TextColumn::new_from(values.into_iter().collect(), Some(Py::new(py, Column::of(codes))?)))
}

fn texts<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<Box<[u8]>> {
    texts.map(|text| text.as_bytes().into()).collect()
}

fn code(number: u32) -> i32 {
    if number == NONE { -1 } else { i32::try_from(number).unwrap_or(-1) }
}

fn all(names: &Names) -> Vec<Box<[u8]>> {
    texts((0..names.len() as u32).filter_map(|number| names.get(number)))
}

#[pymethods]
impl ProfileData {
    /// Names of the hosts.
    #[getter]
    fn hosts(&self) -> Vec<String> {
        self.loaded.profile.hosts.iter().map(|name| name.to_string()).collect()
    }

    /// What went wrong while the profile was recorded: pairs of host and message.
    #[getter]
    fn errors(&self) -> Vec<(String, String)> {
        self.said(&self.loaded.errors)
    }

    /// What the profiler warns of: pairs of host and message.
    #[getter]
    fn warnings(&self) -> Vec<(String, String)> {
        self.said(&self.loaded.warnings)
    }

    /// Begin of the first event or launch and end of the last, in picoseconds; None without any.
    #[getter]
    fn span(&self) -> Option<(i64, i64)> {
        let profile = &self.loaded.profile;
        let events = profile.events.start_ps.iter().zip(&profile.events.duration_ps);
        let launches = profile.launches.iter().map(|own| (&own.start_ps, &own.duration_ps));
        let each = || events.clone().chain(launches.clone());
        let first = each().map(|(start, _)| *start).min()?;
        let last = each().map(|(start, length)| start.saturating_add(*length)).max()?;
        Some((first, last))
    }

    /// Number of events on the tracks of devices.
    #[getter]
    fn event_count(&self) -> usize {
        self.loaded.profile.events.len()
    }

    /// Returns a table with one row per event of a device.
    fn events<'py>(&self, py: Python<'py>) -> Listed<'py> {
        let profile = &*self.loaded.profile;
        let events = &profile.events;
        let device = |track: u32| profile.tracks.get(track as usize).map(|track| track.device);
        let host = |device: u32| profile.devices.get(device as usize).map(|device| device.host);
        let device_of: Vec<i32> =
            (0..profile.tracks.len() as u32).map(|at| device(at).map_or(-1, code)).collect();
        let host_of: Vec<i32> = (0..profile.tracks.len() as u32)
            .map(|at| device(at).and_then(host).map_or(-1, code))
            .collect();
        let by_track = |of: &[i32]| -> Vec<i32> {
            events
                .track
                .iter()
                .map(|track| of.get(*track as usize).copied().unwrap_or(-1))
                .collect()
        };
        let codes = |column: &[u32]| -> Vec<i32> { column.iter().copied().map(code).collect() };
        let list = PyList::empty(py);
        let push = |field: CoreField, column: Bound<'py, PyAny>| {
            list.append((Bound::new(py, Field { core: field })?, column))
        };
        let hosts = coded(py, texts(profile.hosts.iter().map(|name| &**name)), by_track(&host_of))?;
        push(table::host_field(), Bound::new(py, hosts)?.into_any())?;
        let devices = texts(profile.devices.iter().map(|own| &*own.name));
        let devices = coded(py, devices, by_track(&device_of))?;
        push(table::device_field(), Bound::new(py, devices)?.into_any())?;
        let tracks = texts(profile.tracks.iter().map(|own| &*own.name));
        let tracks = coded(py, tracks, codes(&events.track))?;
        let field = CoreField::name("track", "The stream, thread or line of the device.");
        push(field, Bound::new(py, tracks)?.into_any())?;
        let programs = texts(profile.programs.iter().map(|own| &*own.name));
        let programs = coded(py, programs, codes(&events.program))?;
        let field = CoreField::name("program", "The module's name.").nullable();
        push(field, Bound::new(py, programs)?.into_any())?;
        let ops = coded(py, all(&profile.names), codes(&events.op))?;
        let doc = "The instruction; unknown for an event of none, such as a copy to the host.";
        let field = CoreField::name("instruction", doc).nullable();
        push(field, Bound::new(py, ops)?.into_any())?;
        let labels = coded(py, all(&profile.names), codes(&events.label))?;
        let doc = "The event's own name: that of a kernel, or the instruction's.";
        push(CoreField::name("label", doc).nullable(), Bound::new(py, labels)?.into_any())?;
        let seconds = |times: &[i64]| -> Vec<f64> {
            times.iter().map(|time| table::seconds(*time)).collect()
        };
        let starts = Column::of(seconds(&events.start_ps));
        push(table::start_field(), Bound::new(py, starts)?.into_any())?;
        let durations = Column::of(seconds(&events.duration_ps));
        push(table::duration_field(), Bound::new(py, durations)?.into_any())?;
        Ok(list)
    }

    /// Returns a table with one row per device.
    fn devices<'py>(&self, py: Python<'py>) -> Listed<'py> {
        to_list(py, py.detach(|| table::profiled_devices(&self.loaded)))
    }

    /// Returns a table with one row per program.
    fn programs<'py>(&self, py: Python<'py>) -> Listed<'py> {
        to_list(py, py.detach(|| table::profiled_programs(&self.loaded)))
    }

    /// Returns a table with one row per execution of a program on a device.
    fn launches<'py>(&self, py: Python<'py>) -> Listed<'py> {
        to_list(py, table::profiled_launches(&self.loaded.profile))
    }

    /// Returns a table with one row per step.
    fn steps<'py>(&self, py: Python<'py>) -> Listed<'py> {
        to_list(py, table::profiled_steps(&self.loaded.profile))
    }

    /// Returns a table with one row per module in the profile.
    fn modules<'py>(&self, py: Python<'py>) -> Listed<'py> {
        to_list(py, table::profiled_modules(&self.loaded))
    }

    /// Returns a table with one row per line of the files.
    fn lines<'py>(&self, py: Python<'py>) -> Listed<'py> {
        to_list(py, py.detach(|| table::profiled_lines(&self.loaded)))
    }

    /// The planes of the files.
    #[getter]
    fn planes(&self) -> Vec<ProfilePlane> {
        let spaces = self.loaded.spaces.iter().zip(&self.loaded.hosts);
        let planes = spaces.flat_map(|(space, host)| {
            let host = self.loaded.profile.hosts.get(*host as usize).cloned().unwrap_or_default();
            (0..space.planes().len()).map(move |plane| ProfilePlane {
                space: Arc::clone(space),
                host: host.clone(),
                plane,
            })
        });
        planes.collect()
    }

    /// Paths of the files, None for bytes.
    #[getter]
    fn paths(&self) -> Vec<Option<String>> {
        self.paths.clone()
    }

    /// Returns the text of the module `index` of `modules`, and the path of its file.
    ///
    /// Raises `ParseError` if it cannot be read, `IndexError` without such a module.
    fn module_text<'py>(
        &self,
        py: Python<'py>,
        index: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Option<String>)> {
        let module = self.loaded.modules.get(index);
        let module = module.ok_or_else(|| PyIndexError::new_err("no such module"))?;
        let file = self.loaded.files.get(module.space);
        let path = file.and_then(|file| self.paths.get(*file)).cloned().flatten();
        let read = py.detach(|| self.loaded.module_text(module, path.as_deref()));
        match read {
            Ok(source) => Ok((PyBytes::new(py, source.bytes()), path)),
            Err(error) => {
                let source = Source::from_slice(b"");
                let source = path.map_or(source.clone(), |path| source.with_path(&path));
                Err(to_python(&source, &error))
            }
        }
    }
}

impl ProfileData {
    fn said(&self, messages: &[(u32, Box<str>)]) -> Vec<(String, String)> {
        let hosts = &self.loaded.profile.hosts;
        let host = |at: u32| hosts.get(at as usize).map(|name| name.to_string());
        messages
            .iter()
            .map(|(at, message)| (host(*at).unwrap_or_default(), message.to_string()))
            .collect()
    }
}

/// The value of stats by name; the last of a name counts.
fn stats_of<'py>(
    py: Python<'py>,
    plane: &Plane,
    whole: &[u8],
    stats: Stats<'_>,
) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for stat in stats {
        let value = match stat.value {
            None => py.None().into_bound(py),
            Some(Value::Real(value)) => PyFloat::new(py, value).into_any(),
            Some(Value::Unsigned(value)) => PyInt::new(py, value).into_any(),
            Some(Value::Signed(value)) => PyInt::new(py, value).into_any(),
            Some(Value::Text(value)) => text(py, value)?.into_any(),
            Some(Value::Bytes(value)) => PyBytes::new(py, value).into_any(),
            Some(Value::Reference(id)) => text(py, plane.stat_name(whole, id as i64))?.into_any(),
            Some(Value::Packed(packed)) => match decompress(packed, Some(MOST_TEXT)) {
                Ok(Some(unpacked)) => text(py, &unpacked)?.into_any(),
                _ => PyBytes::new(py, packed).into_any(),
            },
        };
        let name = plane.stat_name(whole, stat.id);
        let name = match name.is_empty() {
            true => stat.id.to_string().into_bytes(),
            false => name.to_vec(),
        };
        found.set_item(text(py, &name)?, value)?;
    }
    Ok(found)
}

/// A plane of a profile file: a device, the threads of a host, or metadata.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ProfilePlane {
    space: Arc<Space>,
    host: Box<str>,
    plane: usize,
}

impl ProfilePlane {
    fn own(&self) -> &Plane {
        &self.space.planes()[self.plane]
    }
}

#[pymethods]
impl ProfilePlane {
    /// The name, such as `/device:TPU:0`.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(text(py, self.own().name(self.space.bytes()))?.into_any())
    }

    /// The host whose file it is in.
    #[getter]
    fn host(&self) -> &str {
        &self.host
    }

    /// The plane's number.
    #[getter]
    fn id(&self) -> i64 {
        self.own().id
    }

    /// The stats of the plane, such as capabilities of a device.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (plane, whole) = (self.own(), self.space.bytes());
        stats_of(py, plane, whole, plane.own_stats(whole))
    }

    /// The lines.
    #[getter]
    fn lines(&self) -> Vec<ProfileLine> {
        let line = |line| ProfileLine { space: Arc::clone(&self.space), plane: self.plane, line };
        (0..self.own().lines().len()).map(line).collect()
    }

    fn __repr__(&self) -> String {
        let name = String::from_utf8_lossy(self.own().name(self.space.bytes()));
        format!("<ProfilePlane {name:?}: {} lines>", self.own().lines().len())
    }
}

/// One timeline of a plane: a stream, a thread, the modules of a core.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ProfileLine {
    space: Arc<Space>,
    plane: usize,
    line: usize,
}

impl ProfileLine {
    fn own(&self) -> &Line {
        &self.space.planes()[self.plane].lines()[self.line]
    }
}

#[pymethods]
impl ProfileLine {
    /// The name, such as `XLA Ops`.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(text(py, self.own().name(self.space.bytes()))?.into_any())
    }

    /// The name that viewers show instead; may be empty.
    #[getter]
    fn display_name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(text(py, self.own().display_name(self.space.bytes()))?.into_any())
    }

    /// The line's number.
    #[getter]
    fn id(&self) -> i64 {
        self.own().id
    }

    /// Begin in nanoseconds; events are relative to it.
    #[getter]
    fn timestamp_ns(&self) -> i64 {
        self.own().timestamp_ns
    }

    /// Length in picoseconds; 0 if the profiler does not say.
    #[getter]
    fn duration_ps(&self) -> i64 {
        self.own().duration_ps
    }

    /// The events, in the order of the file.
    #[getter]
    fn events(&self) -> ProfileEvents {
        ProfileEvents { space: Arc::clone(&self.space), plane: self.plane, line: self.line }
    }

    fn __repr__(&self) -> String {
        let name = String::from_utf8_lossy(self.own().name(self.space.bytes()));
        format!("<ProfileLine {name:?}: {} events>", self.own().event_count())
    }
}

/// The events of a line: a sequence that decodes each when it is asked for.
#[pyclass(frozen, sequence, module = "hlofast._core")]
pub struct ProfileEvents {
    space: Arc<Space>,
    plane: usize,
    line: usize,
}

impl ProfileEvents {
    fn at(&self, index: usize) -> Option<ProfileEvent> {
        let line = self.space.planes().get(self.plane)?.lines().get(self.line)?;
        (index < line.event_count()).then(|| ProfileEvent {
            space: Arc::clone(&self.space),
            plane: self.plane,
            line: self.line,
            index,
        })
    }

    fn count(&self) -> usize {
        self.space.planes()[self.plane].lines()[self.line].event_count()
    }
}

#[pymethods]
impl ProfileEvents {
    fn __len__(&self) -> usize {
        self.count()
    }

    fn __getitem__(&self, index: isize) -> PyResult<ProfileEvent> {
        let position = if index < 0 { index + self.count() as isize } else { index };
        let found = usize::try_from(position).ok().and_then(|position| self.at(position));
        found.ok_or_else(|| PyIndexError::new_err("event index out of range"))
    }

    fn __repr__(&self) -> String {
        format!("<ProfileEvents: {}>", self.count())
    }
}

/// One event of a line.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ProfileEvent {
    space: Arc<Space>,
    plane: usize,
    line: usize,
    index: usize,
}

impl ProfileEvent {
    fn own(&self) -> (&Plane, &Line, Event<'_>) {
        let plane = &self.space.planes()[self.plane];
        let line = &plane.lines()[self.line];
        (plane, line, line.event(self.space.bytes(), self.index).unwrap_or_default())
    }

    fn named(&self, shown: bool) -> &[u8] {
        let (plane, _, event) = self.own();
        let whole = self.space.bytes();
        let at = plane.metadata_of(event.metadata_id);
        at.and_then(|at| plane.event_metadata().get(at)).map_or(b"", |metadata| {
            if shown { metadata.display_name(whole) } else { metadata.name(whole) }
        })
    }
}

#[pymethods]
impl ProfileEvent {
    /// The name: the instruction as text, a kernel, a function.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(text(py, self.named(false))?.into_any())
    }

    /// The name that viewers show instead; may be empty.
    #[getter]
    fn display_name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(text(py, self.named(true))?.into_any())
    }

    /// Begin in picoseconds from the line's timestamp.
    #[getter]
    fn offset_ps(&self) -> i64 {
        self.own().2.offset_ps
    }

    /// Length in picoseconds.
    #[getter]
    fn duration_ps(&self) -> i64 {
        self.own().2.duration_ps
    }

    /// Begin in nanoseconds on the clock of the host.
    #[getter]
    fn start_ns(&self) -> f64 {
        let (_, line, event) = self.own();
        line.timestamp_ns as f64 + event.offset_ps as f64 / 1000.0
    }

    /// Length in nanoseconds.
    #[getter]
    fn duration_ns(&self) -> f64 {
        self.own().2.duration_ps as f64 / 1000.0
    }

    /// How often it occurred, for an aggregated event; None for an event with a begin.
    #[getter]
    fn occurrences(&self) -> Option<i64> {
        self.own().2.occurrences
    }

    /// The stats of this event, by name.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (plane, _, event) = self.own();
        stats_of(py, plane, self.space.bytes(), event.stats())
    }

    /// The stats that all events of this kind share, by name.
    #[getter]
    fn shared_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (plane, _, event) = self.own();
        let whole = self.space.bytes();
        match plane.metadata_of(event.metadata_id).and_then(|at| plane.event_metadata().get(at)) {
            Some(metadata) => stats_of(py, plane, whole, metadata.stats(whole)),
            None => Ok(PyDict::new(py)),
        }
    }

    fn __repr__(&self) -> String {
        let name = String::from_utf8_lossy(self.named(false));
        format!("<ProfileEvent {name:?}: {} ps>", self.duration_ps())
    }
}
