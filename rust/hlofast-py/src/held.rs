//! State shared by all views of one module.

use crate::names::Names;
use hlofast::comms::Mesh;
use hlofast::flow::{FrameChoice, SourceOptions};
use hlofast::ir::{Module, Opcode};
use hlofast::parse::Strictness;
use hlofast::text::LineIndex;
use hlofast::{Analyses, Context, Options};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// The analyses of a module, shared by all of its views.
pub type Stage = Analyses<Arc<Module>>;

/// A module and its analyses in one context. Views hold an `Arc` of it.
pub struct Held {
    shown: Arc<Shown>,
    /// The results computed so far.
    pub stage: Arc<Stage>,
    /// The Python side of the context.
    pub run: Arc<Run>,
    /// Python objects that depend on the choice of frames. They hold the stage, which does not hold
    /// Python objects.
    pub placed: Arc<Placed>,
}

/// Python objects with source files, cached for the modules that show the same frames.
pub struct Placed {
    /// The `Columns` object of the whole module.
    pub columns: PyOnceLock<Py<PyAny>>,
    /// The distinct source file names as a tuple of str.
    pub source_files: PyOnceLock<Py<PyAny>>,
}

impl Default for Placed {
    fn default() -> Self {
        Self { columns: PyOnceLock::new(), source_files: PyOnceLock::new() }
    }
}

/// The `hlofast.Context` of a module. It does not hold the module, so reference cycles cannot form.
pub struct Run {
    told: Option<Py<PyAny>>,
    /// The given context, completed from other sources.
    pub context: PyOnceLock<Py<PyAny>>,
}

impl Run {
    fn new(told: Option<Py<PyAny>>) -> Self {
        Self { told, context: PyOnceLock::new() }
    }

    /// The context given by the caller.
    pub fn told<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.told.as_ref().map(|told| told.bind(py).clone())
    }
}

/// A module and the Python objects cached for it, independent of its context. The cached objects
/// hold only `core`, so reference cycles cannot form.
pub struct Shown {
    pub core: Arc<Module>,
    /// The distinct `op_name` texts as a list of str.
    pub op_names: PyOnceLock<Py<PyAny>>,
    /// The instruction names created so far.
    pub names: Names,
    /// The line starts of the text, for `text_line`.
    lines: OnceLock<LineIndex>,
    /// The strictness with which the module was read, for pickling.
    pub strictness: Strictness,
    pub collects_errors: bool,
    /// A digest of the text.
    digest: OnceLock<u64>,
    /// The module that was last found to have an equal text.
    twin: Mutex<Weak<Shown>>,
}

impl Deref for Held {
    type Target = Shown;

    fn deref(&self) -> &Shown {
        &self.shown
    }
}

impl Held {
    /// Wraps `module` and the options with which it was read, without a context.
    pub fn new(module: Module, options: &Options) -> Arc<Self> {
        let core = Arc::new(module);
        let stage = Arc::new(Analyses::new(Arc::clone(&core)));
        let shown = Arc::new(Shown {
            core,
            op_names: PyOnceLock::new(),
            names: Names::default(),
            lines: OnceLock::new(),
            strictness: options.strictness,
            collects_errors: options.collect_errors,
            digest: OnceLock::new(),
            twin: Mutex::new(Weak::new()),
        });
        Arc::new(Self { shown, stage, run: Arc::new(Run::new(None)), placed: Arc::default() })
    }

    /// The same module with its context changed by `change`. It shares the Python objects, and all
    /// past and future results that do not depend on the change.
    pub fn with_context(self: &Arc<Self>, change: impl FnOnce(&mut Context)) -> Arc<Self> {
        let mut context = self.stage.context().clone();
        change(&mut context);
        if context == *self.stage.context() {
            return Arc::clone(self);
        }
        let placed = match context.sources == self.stage.context().sources {
            true => Arc::clone(&self.placed),
            false => Arc::default(),
        };
        let stage = Arc::new(self.stage.with_context(context));
        let (shown, run) = (Arc::clone(&self.shown), Arc::clone(&self.run));
        Arc::new(Self { shown, stage, run, placed })
    }

    /// The same module in the context `told`, a `hlofast.Context`.
    pub fn told(self: &Arc<Self>, told: Option<Bound<'_, PyAny>>) -> PyResult<Arc<Self>> {
        let Some(told) = told else { return Ok(Arc::clone(self)) };
        let mesh: Option<PyRef<'_, crate::mesh::Mesh>> = told.getattr("mesh")?.extract()?;
        let frame: Option<String> = told.getattr("frame")?.extract()?;
        let sources = source_options(frame.as_deref(), told.getattr("libraries")?.extract()?)?;
        let merges_layers = told.getattr("merge_layers")?.extract::<Option<_>>()?.unwrap_or(false);
        let changed = self.with_context(|context| {
            if let Some(mesh) = &mesh {
                context.mesh = Some(mesh.core.clone());
            }
            (context.sources, context.merges_layers) = (sources, merges_layers);
        });
        let run = Arc::new(Run::new(Some(told.unbind())));
        let (shown, stage) = (Arc::clone(&self.shown), Arc::clone(&changed.stage));
        Ok(Arc::new(Self { shown, stage, run, placed: Arc::clone(&changed.placed) }))
    }

    /// The same module on `mesh`, if given.
    pub fn on_mesh(self: &Arc<Self>, mesh: Option<&Mesh>) -> Arc<Self> {
        self.with_context(|context| {
            if let Some(mesh) = mesh {
                context.mesh = Some(mesh.clone());
            }
        })
    }

    /// Bytes of memory beyond the text, including the results computed so far.
    pub fn heap_bytes(&self, py: Python<'_>) -> usize {
        self.core.heap_bytes() + self.names.heap_bytes(py, &self.core) + self.stage.heap_bytes()
    }
}

impl Shown {
    /// The name of `row`.
    #[inline]
    pub fn name<'py>(&self, py: Python<'py>, row: u32) -> PyResult<Bound<'py, PyString>> {
        Ok(self.names.get(py, &self.core, row)?.bind(py).clone())
    }

    fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            self.core.text().hash(&mut hasher);
            hasher.finish()
        })
    }

    fn twin(&self) -> MutexGuard<'_, Weak<Shown>> {
        // The pointer is valid at any time, so a panic in another thread cannot leave it half
        // written.
        self.twin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The 1-based line of the file that holds byte `offset` of the text.
    pub fn line_of(&self, py: Python<'_>, offset: usize) -> u64 {
        let text = self.core.text();
        let index = py.detach(|| self.lines.get_or_init(|| LineIndex::new(text)));
        self.core.source().lines_before() + index.place(text, offset).0
    }
}

/// Reads the options of a context about sources.
pub fn source_options(
    frame: Option<&str>,
    libraries: Option<Vec<String>>,
) -> PyResult<SourceOptions> {
    let frame = frame.map(|word| {
        FrameChoice::from_word(word).ok_or_else(|| {
            let words = FrameChoice::ALL.map(FrameChoice::as_str).join(", ");
            PyValueError::new_err(format!("frame must be one of {words}, not {word:?}"))
        })
    });
    let frame = frame.transpose()?.unwrap_or_default();
    Ok(SourceOptions { frame, libraries: libraries.unwrap_or_default() })
}

/// Whether two views show equal modules: the same object, or equal texts. The context is ignored.
pub fn same_module(a: &Held, b: &Held) -> bool {
    let (a, b) = (&a.shown, &b.shown);
    if Arc::ptr_eq(a, b) {
        return true;
    }
    if a.core.row_count() != b.core.row_count() || a.core.text().len() != b.core.text().len() {
        return false;
    }
    // Texts are compared once per pair of modules, not at every comparison of two views.
    if std::ptr::eq(a.twin().as_ptr(), Arc::as_ptr(b)) {
        return true;
    }
    let same = a.digest() == b.digest()
        && a.core.text() == b.core.text()
        && a.core.arena() == b.core.arena();
    if same {
        *a.twin() = Arc::downgrade(b);
    }
    same
}

/// A hash of (module, kind, id); equal modules give equal hashes.
pub fn hash_of(held: &Held, kind: u8, id: u32) -> u64 {
    let length = held.core.text().len() as u64;
    let mixed = (length << 8 | u64::from(kind)) ^ (u64::from(id) << 32 | u64::from(id));
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1
}

/// Bytes as `str`; bytes that are not UTF-8 become surrogate escapes, so nothing is lost.
pub fn text<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(PyString::new(py, text)),
        Err(_) => Ok(PyBytes::new(py, bytes)
            .call_method1("decode", ("utf-8", "surrogateescape"))?
            .cast_into::<PyString>()?),
    }
}

/// `str` if the bytes are UTF-8, otherwise `bytes`.
pub fn text_or_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyAny> {
    match std::str::from_utf8(bytes) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, bytes).into_any(),
    }
}

/// The names of all opcodes by code, created once.
fn opcode_names(py: Python<'_>) -> &Vec<Py<PyString>> {
    static NAMES: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();
    NAMES.get_or_init(py, || {
        let names = Opcode::ALL.iter();
        names.map(|opcode| PyString::intern(py, opcode.as_str()).unbind()).collect()
    })
}

/// The cached name of a known opcode.
pub fn opcode_name(py: Python<'_>, opcode: Opcode) -> Option<&Py<PyString>> {
    opcode_names(py).get(opcode as usize)
}
