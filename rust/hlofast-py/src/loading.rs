//! `load`, `loads` and `find_modules`: read files and texts as modules.

use crate::errors::{object, to_python};
use crate::held::Held;
use crate::module::Module;
use hlofast::parse::Strictness;
use hlofast::profile::xplane::Space;
use hlofast::text::{
    LineOrigin, OpenOptions, Pieces, SharedBytes, Source, Span, fragment, modules, read_one,
    starts_with_module,
};
use hlofast::{ErrorKind, Opened, Options, ParseError, open, parse};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString};
use std::sync::{Arc, OnceLock};

/// Limit on the threads if the caller does not request a number.
const MOST_THREADS: usize = 8;

/// Limit on the threads that a caller may request.
const THREAD_LIMIT: usize = 64;

/// Minimum bytes of text per thread.
const BYTES_PER_THREAD: usize = 1 << 20;

type Fault = (ParseError, Source);

/// A module's text, its label, and the module or why it cannot be read.
type Read = (Source, Option<Box<str>>, Result<Arc<Held>, ParseError>);

/// A path as Python represents it.
pub type PathText = std::ffi::OsString;

/// The options common to all three functions.
struct Request {
    options: Options,
    max_bytes: Option<u64>,
    module: Option<Wanted>,
}

enum Wanted {
    Name(String),
    Number(usize),
}

impl Wanted {
    /// The error where `names`, none or several of `count` modules, answer. Names that tell the
    /// modules apart are not empty.
    #[cold]
    fn not_one(&self, count: usize, names: Vec<String>) -> ParseError {
        let what = match self {
            Wanted::Name(name) => format!("{name:?}"),
            Wanted::Number(number) => format!("number {number}"),
        };
        if names.is_empty() {
            let message = format!("no module {what} among {count}");
            return ParseError::new(ErrorKind::NoModule, Span::EMPTY, message);
        }
        let message = format!("{} modules are called {what}", names.len());
        let error = ParseError::new(ErrorKind::SeveralModules, Span::EMPTY, message);
        match names.iter().any(String::is_empty) {
            true => error.with_help("choose one by its number"),
            false => error.with_help(format!("choose one of {}", names.join(", "))),
        }
    }
}

fn strictness(value: Option<&Bound<'_, PyAny>>) -> PyResult<Strictness> {
    let Some(value) = value else { return Ok(Strictness::Tolerant) };
    if let Ok(strict) = value.extract::<bool>() {
        return Ok(if strict { Strictness::Jaxlib } else { Strictness::Tolerant });
    }
    match value.extract::<PyBackedStr>().as_deref() {
        Ok("newest") => Ok(Strictness::Newest),
        _ => Err(PyValueError::new_err("strict must be False, True or \"newest\"")),
    }
}

/// Returns the argument `strict` for `strictness`.
pub fn strict_argument(py: Python<'_>, strictness: Strictness) -> PyResult<Bound<'_, PyAny>> {
    Ok(match strictness {
        Strictness::Tolerant => PyBool::new(py, false).to_owned().into_any(),
        Strictness::Jaxlib => PyBool::new(py, true).to_owned().into_any(),
        Strictness::Newest => PyString::new(py, "newest").into_any(),
    })
}

impl Request {
    fn new(
        module: Option<&Bound<'_, PyAny>>,
        strict: Option<&Bound<'_, PyAny>>,
        on_error: &str,
        max_bytes: Option<u64>,
        threads: Option<usize>,
    ) -> PyResult<Self> {
        let collect_errors = match on_error {
            "raise" => false,
            "collect" => true,
            _ => return Err(PyValueError::new_err("on_error must be \"raise\" or \"collect\"")),
        };
        let module = match module {
            None => None,
            Some(value) => match (value.cast::<PyString>(), value.extract::<usize>()) {
                (Ok(name), _) => Some(Wanted::Name(name.to_string_lossy().into_owned())),
                (_, Ok(number)) => Some(Wanted::Number(number)),
                _ => return Err(PyTypeError::new_err("module must be a name or a number from 0")),
            },
        };
        let threads = threads.unwrap_or_else(default_threads);
        // With this variable, tests force the portable kernels and compare the results.
        let force_scalar = std::env::var_os("HLOFAST_FORCE_SCALAR").is_some_and(|v| v == "1");
        let strictness = strictness(strict)?;
        let options =
            Options { strictness, collect_errors, threads, force_scalar, ..Options::default() };
        Ok(Self { options, max_bytes, module })
    }

    fn open(&self, bytes: SharedBytes, path: Option<&str>) -> Result<Opened, Fault> {
        let options = OpenOptions { path, max_bytes: self.max_bytes };
        open(bytes.clone(), &options).map_err(|error| {
            let source = Source::new(bytes);
            (error, path.map_or(source.clone(), |path| source.with_path(path)))
        })
    }

    /// The options for `source`, with at most as many threads as the text has work for.
    fn options_for(&self, source: &Source) -> Options {
        let most = THREAD_LIMIT.min(source.bytes().len() / BYTES_PER_THREAD);
        Options { threads: self.options.threads.min(most).max(1), ..self.options }
    }

    /// Parses `source` as the text of one module.
    fn parse(&self, source: Source) -> Result<Arc<Held>, ParseError> {
        let options = self.options_for(&source);
        Ok(Held::new(parse(source, &options)?, &options))
    }

    /// Parses the whole text as one module, as XLA does. XLA accepts a single instruction without a
    /// computation as a module, but the search for modules in a text does not recognise it.
    fn parse_alone(&self, source: Source) -> Result<Arc<Held>, ParseError> {
        let options = Options { collect_errors: false, ..self.options_for(&source) };
        Ok(Held::new(parse(source, &options)?, &options))
    }

    fn read(&self, bytes: SharedBytes, path: Option<&str>) -> Result<Arc<Held>, Fault> {
        let source = match self.open(bytes, path)? {
            Opened::Text(source) => source,
            Opened::Profile(space) => return self.read_from(&space, path),
        };
        match &self.module {
            // Strict modes check the whole text, as XLA does.
            None if self.options.strictness != Strictness::Tolerant => {
                self.parse(source.clone()).map_err(|error| (error, source))
            }
            None if starts_with_module(source.bytes()) => {
                read_one(&source, |source| self.parse(source))
                    .or_else(|fault| self.pieces(&source).ok_or(fault))
            }
            // In a text without a header, the shape of lines does not always show where
            // computations end.
            None => self
                .parse_alone(source.clone())
                .or_else(|_| read_one(&source, |source| self.parse(source)))
                .or_else(|fault| self.pieces(&source).ok_or(fault)),
            Some(wanted) => self.read_wanted(&source, wanted),
        }
    }

    /// Reads the wanted module of a profile, or its only one.
    fn read_from(&self, space: &Space, path: Option<&str>) -> Result<Arc<Held>, Fault> {
        let whole = Source::from_slice(b"");
        let whole = path.map_or(whole.clone(), |path| whole.with_path(path));
        let refused = |error| (error, whole.clone());
        let module = match &self.module {
            None => space.only_module().map_err(refused)?,
            Some(wanted) => {
                let modules = space.modules();
                let count = modules.len();
                let matching =
                    modules.into_iter().enumerate().filter(|(at, module)| match wanted {
                        Wanted::Number(number) => number == at,
                        Wanted::Name(name) => module.is_called(name),
                    });
                let mut matching: Vec<_> = matching.map(|(_, module)| module).collect();
                match (matching.pop(), matching.is_empty()) {
                    (Some(only), true) => only,
                    (last, _) => {
                        let labels = matching.iter().chain(&last);
                        let labels = labels.map(|module| module.label.to_string()).collect();
                        return Err(refused(wanted.not_one(count, labels)));
                    }
                }
            }
        };
        let source = space.module_text(&module, path).map_err(refused)?;
        self.parse(source.clone()).map_err(|error| (error, source))
    }

    /// Reads every module of a profile; each comes with the profiler's name for it.
    fn all_of(&self, space: &Space, path: Option<&str>) -> Vec<Read> {
        let modules = space.modules();
        let read = |module: &hlofast::profile::xplane::Embedded| {
            let label = Some(module.label.clone());
            match space.module_text(module, path) {
                Ok(source) => (source.clone(), label, self.parse(source)),
                Err(error) => {
                    let source = Source::from_slice(b"");
                    let source = path.map_or(source.clone(), |path| source.with_path(path));
                    (source, label, Err(error))
                }
            }
        };
        modules.iter().map(read).collect()
    }

    /// The pieces of a module in `source`, if it is such a text and reading is tolerant.
    fn pieces(&self, source: &Source) -> Option<Arc<Held>> {
        if self.options.strictness != Strictness::Tolerant {
            return None;
        }
        self.parse(fragment(source)?).ok()
    }

    fn read_wanted(&self, source: &Source, wanted: &Wanted) -> Result<Arc<Held>, Fault> {
        let modules = modules(source).map_err(|error| (error, source.clone()))?;
        let count = modules.len();
        let mut matching = Vec::new();
        for (number, module) in modules.into_iter().enumerate() {
            let matches = match wanted {
                Wanted::Number(wanted) => *wanted == number,
                Wanted::Name(name) => header_name(module.source.bytes()) == name.as_bytes(),
            };
            if matches {
                matching.push(module.source);
            }
        }
        match &matching[..] {
            [only] => self.parse(only.clone()).map_err(|error| (error, only.clone())),
            several => {
                let names = several.iter().map(|_| String::new()).collect();
                Err((wanted.not_one(count, names), source.clone()))
            }
        }
    }
}

/// Computed once: the query takes longer than reading a small module.
fn default_threads() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        std::thread::available_parallelism().map_or(1, |count| count.get().min(MOST_THREADS))
    })
}

/// The module name in the `HloModule` header.
fn header_name(text: &[u8]) -> &[u8] {
    let rest = text.trim_ascii_start().strip_prefix(b"HloModule").unwrap_or_default();
    let rest = rest.trim_ascii_start();
    let rest = rest.strip_prefix(b"%").unwrap_or(rest);
    let end = rest.iter().position(|byte| !hlofast::text::is_identifier_byte(*byte));
    rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()
}

/// The bytes of a Python object: `bytes` and `str` are borrowed, other buffers are copied.
pub fn bytes_of(value: &Bound<'_, PyAny>) -> PyResult<SharedBytes> {
    if value.is_instance_of::<PyBytes>() {
        let bytes = value.extract::<PyBackedBytes>()?;
        return Ok(SharedBytes::from_owner(bytes));
    }
    if value.is_instance_of::<PyString>() {
        if let Ok(text) = value.extract::<PyBackedStr>() {
            return Ok(SharedBytes::from_owner(text));
        }
        // Surrogate escapes represent bytes that were not UTF-8.
        let encoded = value.call_method1("encode", ("utf-8", "surrogateescape"))?;
        return bytes_of(&encoded);
    }
    let buffer = PyBuffer::<u8>::get(value)
        .map_err(|_| PyTypeError::new_err("expected str, bytes or another buffer of bytes"))?;
    Ok(buffer.to_vec(value.py())?.into())
}

fn finish<'py>(
    py: Python<'py>,
    result: Result<Arc<Held>, Fault>,
    context: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, Module>> {
    match result {
        Ok(held) => Module::object(py, &held.told(context)?),
        Err((error, source)) => Err(to_python(&source, &error)),
    }
}

/// Reads the module in the local file `path`, with the arguments of `hlofast.load`.
#[pyfunction]
#[pyo3(signature = (path, *, module=None, strict=None, on_error="raise", max_bytes=None, threads=None, context=None))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub fn _load<'py>(
    py: Python<'py>,
    path: std::path::PathBuf,
    module: Option<&Bound<'py, PyAny>>,
    strict: Option<&Bound<'py, PyAny>>,
    on_error: &str,
    max_bytes: Option<u64>,
    threads: Option<usize>,
    context: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, Module>> {
    let request = Request::new(module, strict, on_error, max_bytes, threads)?;
    let name = path.to_string_lossy().into_owned();
    let read = py.detach(|| {
        let bytes = std::fs::read(&path)?;
        Ok(request.read(bytes.into(), Some(&name)))
    });
    match read {
        Ok(result) => finish(py, result, context),
        Err(error) => Err(file_error(py, error, &name)),
    }
}

/// An `OSError` with the file name, as raised by Python's `open`.
pub fn file_error(py: Python<'_>, error: std::io::Error, name: &str) -> PyErr {
    let Some(code) = error.raw_os_error() else { return error.into() };
    let strerror = py.import("os").and_then(|os| os.call_method1("strerror", (code,)));
    match strerror.and_then(|text| text.extract::<String>()) {
        Ok(text) => pyo3::exceptions::PyOSError::new_err((code, text, name.to_owned())),
        Err(failure) => failure,
    }
}

/// Reads the module in `text`, with the arguments of `hlofast.loads`.
#[pyfunction]
#[pyo3(signature = (text, *, path=None, module=None, strict=None, on_error="raise", max_bytes=None, threads=None, context=None))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub fn _loads<'py>(
    py: Python<'py>,
    text: &Bound<'py, PyAny>,
    path: Option<&str>,
    module: Option<&Bound<'py, PyAny>>,
    strict: Option<&Bound<'py, PyAny>>,
    on_error: &str,
    max_bytes: Option<u64>,
    threads: Option<usize>,
    context: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, Module>> {
    let request = Request::new(module, strict, on_error, max_bytes, threads)?;
    let bytes = bytes_of(text)?;
    finish(py, py.detach(|| request.read(bytes, path)), context)
}

/// Reads every module in `text`, with the arguments of `hlofast.find_modules`.
#[pyfunction]
#[pyo3(signature = (text, *, path=None, strict=None, on_error="raise", max_bytes=None, threads=None, context=None))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub fn _find_modules<'py>(
    py: Python<'py>,
    text: &Bound<'py, PyAny>,
    path: Option<&str>,
    strict: Option<&Bound<'py, PyAny>>,
    on_error: &str,
    max_bytes: Option<u64>,
    threads: Option<usize>,
    context: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let request = Request::new(None, strict, on_error, max_bytes, threads)?;
    let bytes = bytes_of(text)?;
    let results = py.detach(|| {
        let source = match request.open(bytes, path)? {
            Opened::Text(source) => source,
            Opened::Profile(space) => return Ok(request.all_of(&space, path)),
        };
        let pieces = || {
            let held = request.pieces(&source)?;
            Some(vec![(held.core.source().clone(), None, Ok(held))])
        };
        let modules = match modules(&source) {
            Ok(modules) => modules,
            Err(error) => return pieces().ok_or((error, source)),
        };
        let read: Vec<_> = modules
            .into_iter()
            .map(|module| {
                let result = request.parse(module.source.clone());
                (module.source, module.label, result)
            })
            .collect();
        // The pieces of one module may look like several that cannot be read.
        let is_read = read.iter().all(|(_, _, result)| result.is_ok());
        Ok(if is_read { read } else { pieces().unwrap_or(read) })
    });
    let results: Vec<_> = results.map_err(|(error, source): Fault| to_python(&source, &error))?;
    let list = PyList::empty(py);
    for (source, label, result) in results {
        let line = source.lines_before() + 1;
        let offset = source.offset();
        let (module, error) = match result {
            Ok(held) => (Some(Module::object(py, &held.told(context.clone())?)?.unbind()), None),
            Err(error) => (None, Some(object(py, &source, &error)?.unbind())),
        };
        let label = label.map(String::from);
        list.append(Bound::new(py, FoundModule { module, error, line, offset, label })?)?;
    }
    Ok(list)
}

/// Returns facts about the module at `path` from neighbouring files.
///
/// The facts are the chip with the file that names it, and the file of the module before
/// optimisation; None for unknown facts.
#[pyfunction]
pub fn _neighbours(
    py: Python<'_>,
    path: std::path::PathBuf,
) -> (Option<(String, PathText)>, Option<PathText>) {
    let neighbours = py.detach(|| hlofast::dump::Neighbours::of(&path));
    let target = neighbours.target.map(|(chip, file)| (chip, file.into_os_string()));
    (target, neighbours.before.map(std::path::PathBuf::into_os_string))
}

/// Restores a pickled module: parses `text` with its original options and its place in the file.
#[pyfunction]
pub fn _restore_module<'py>(
    py: Python<'py>,
    text: &Bound<'py, PyAny>,
    options: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, Module>> {
    let option = |key: &str| options.as_any().get_item(key);
    let (strict, on_error) = (option("strict")?, option("on_error")?.extract::<String>()?);
    let request = Request::new(None, Some(&strict), &on_error, None, None)?;
    let path = option("path")?.extract::<Option<String>>()?;
    let origins = option("origins")?.extract::<Vec<(u32, usize, u32)>>()?.into_iter();
    let origins = origins.map(|(start, offset, removed)| LineOrigin { start, offset, removed });
    let context = options.get_item("context")?.filter(|told| !told.is_none());
    let lines = option("lines_before")?.extract::<u64>()?;
    let whole = Source::from_slice(b"");
    let whole = path.map_or(whole.clone(), |path| whole.with_path(&path));
    let bytes = (*bytes_of(text)?).as_ref().to_vec();
    let source = whole.cleaned_part(bytes, origins.collect(), lines);
    let pieces = option("pieces")?.extract::<Option<(u64, u64, u64, u64)>>()?;
    let source = match pieces {
        Some((instructions, gaps, cut, others)) => {
            source.with_pieces(Pieces { instructions, gaps, cut, others })
        }
        None => source,
    };
    let read = py.detach(|| request.parse(source.clone()).map_err(|error| (error, source)));
    finish(py, read, context)
}

/// A module found in a text, or the fault that prevents reading it.
#[pyclass(frozen, get_all, module = "hlofast._core")]
pub struct FoundModule {
    /// The module; None if it cannot be read.
    pub module: Option<Py<Module>>,
    /// The `ParseError`; None if the module was read.
    pub error: Option<Py<PyAny>>,
    /// 1-based line where its text starts.
    pub line: u64,
    /// Byte offset where its text starts.
    pub offset: usize,
    /// The file name announced by a framed dump; None for other texts.
    pub label: Option<String>,
}

#[pymethods]
impl FoundModule {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let what = match (&self.module, &self.error) {
            (Some(module), _) => module.bind(py).repr()?.to_string(),
            (None, Some(_)) => "unreadable".to_owned(),
            (None, None) => "nothing".to_owned(),
        };
        Ok(format!("<FoundModule at line {}: {what}>", self.line))
    }
}
