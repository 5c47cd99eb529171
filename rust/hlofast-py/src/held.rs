//! What every view of one module shares.

use crate::names::Names;
use hlofast::Options;
use hlofast::comms::{Collectives, collectives};
use hlofast::cost::{self, Cost, Facts, cost};
use hlofast::flow::{Attribution, AttributionOptions, attribution};
use hlofast::ir::{Module, Opcode};
use hlofast::parse::Strictness;
use hlofast::text::LineIndex;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A module in its context. Views hold an `Arc` of this, so they all know the same context.
pub struct Held {
    shared: Arc<Shared>,
    /// What was told of where the module runs: a `hlofast.Context`. It holds no module.
    pub told: Option<Py<PyAny>>,
    /// The context with what was found besides.
    pub context: PyOnceLock<Py<PyAny>>,
}

impl Deref for Held {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Held {
    /// `module` and the options it was read with.
    pub fn new(module: Module, options: &Options) -> Arc<Self> {
        let shared = Arc::new(Shared::new(module, options));
        Arc::new(Self { shared, told: None, context: PyOnceLock::new() })
    }

    /// The same module in another context; nothing is read or computed again.
    pub fn with_context(&self, told: Option<Py<PyAny>>) -> Arc<Self> {
        let shared = Arc::clone(&self.shared);
        Arc::new(Self { shared, told, context: PyOnceLock::new() })
    }
}

/// A module and the Python objects cached for it, whatever its context. The cached objects hold only
/// `core`, so no reference cycle can form.
pub struct Shared {
    pub core: Arc<Module>,
    /// The `Columns` object of the whole module.
    pub columns: PyOnceLock<Py<PyAny>>,
    /// The distinct `op_name` texts as a list of str.
    pub op_names: PyOnceLock<Py<PyAny>>,
    /// The distinct source file names as a list of str.
    pub source_files: PyOnceLock<Py<PyAny>>,
    /// The instruction names made so far.
    pub names: Names,
    /// Where the lines of the text start, for `text_line`.
    lines: OnceLock<LineIndex>,
    /// The attributes that cost rules need, decoded.
    cost_facts: OnceLock<Facts>,
    /// Phases and scopes by the conventions of frameworks.
    attribution: OnceLock<Attribution>,
    /// What is executed, as the text alone says.
    cost: OnceLock<Arc<Cost>>,
    /// The collectives, as the text alone says.
    collectives: OnceLock<Arc<Collectives>>,
    /// How it was read, for pickling.
    pub strictness: Strictness,
    pub collects_errors: bool,
    /// A digest of the text.
    digest: OnceLock<u64>,
    /// The module of the last comparison that found equal texts.
    twin: Mutex<Weak<Shared>>,
}

impl Shared {
    fn new(module: Module, options: &Options) -> Self {
        Self {
            core: Arc::new(module),
            columns: PyOnceLock::new(),
            op_names: PyOnceLock::new(),
            source_files: PyOnceLock::new(),
            names: Names::default(),
            lines: OnceLock::new(),
            cost_facts: OnceLock::new(),
            attribution: OnceLock::new(),
            cost: OnceLock::new(),
            collectives: OnceLock::new(),
            strictness: options.strictness,
            collects_errors: options.collect_errors,
            digest: OnceLock::new(),
            twin: Mutex::new(Weak::new()),
        }
    }

    /// The name of `row`.
    #[inline]
    pub fn name<'py>(&self, py: Python<'py>, row: u32) -> PyResult<Bound<'py, PyString>> {
        Ok(self.names.get(py, &self.core, row)?.bind(py).clone())
    }

    /// The attributes that cost rules need.
    pub fn cost_facts(&self) -> &Facts {
        self.cost_facts.get_or_init(|| Facts::of_module(&self.core))
    }

    /// Phases and scopes by the conventions of frameworks.
    pub fn attribution(&self) -> &Attribution {
        self.attribution.get_or_init(|| attribution(&self.core, &AttributionOptions::default()))
    }

    /// What is executed, without anything a user says about it.
    pub fn cost(&self) -> &Arc<Cost> {
        let count = || cost(&self.core, self.cost_facts(), &cost::Options::default());
        self.cost.get_or_init(|| Arc::new(count()))
    }

    /// The collectives, without anything a user says about costs or phases.
    pub fn collectives(&self) -> &Arc<Collectives> {
        let find = || collectives(&self.core, self.cost(), self.attribution());
        self.collectives.get_or_init(|| Arc::new(find()))
    }

    /// Bytes that the module takes beyond its text, with what was computed so far.
    pub fn heap_bytes(&self, py: Python<'_>) -> usize {
        self.core.heap_bytes()
            + self.names.heap_bytes(py, &self.core)
            + self.cost_facts.get().map_or(0, Facts::heap_bytes)
            + self.attribution.get().map_or(0, Attribution::heap_bytes)
            + self.cost.get().map_or(0, |cost| cost.heap_bytes())
            + self.collectives.get().map_or(0, |found| found.heap_bytes())
    }

    fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            self.core.text().hash(&mut hasher);
            hasher.finish()
        })
    }

    fn twin(&self) -> MutexGuard<'_, Weak<Shared>> {
        // The pointer is whole at any time, so a panic elsewhere leaves nothing half done.
        self.twin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The 1-based line of the file that holds byte `offset` of the text.
    pub fn line_of(&self, py: Python<'_>, offset: usize) -> u64 {
        let text = self.core.text();
        let index = py.detach(|| self.lines.get_or_init(|| LineIndex::new(text)));
        self.core.source().lines_before() + index.place(text, offset).0
    }
}

/// Whether two views show equal modules: the same object, or the same text.
pub fn same_module(a: &Held, b: &Held) -> bool {
    let (a, b) = (&a.shared, &b.shared);
    if Arc::ptr_eq(a, b) {
        return true;
    }
    if a.core.row_count() != b.core.row_count() || a.core.text().len() != b.core.text().len() {
        return false;
    }
    // Whole texts are compared once per pair, not at every comparison of two views.
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

/// A hash that equal (module, id) pairs share.
pub fn hash_of(held: &Held, kind: u8, id: u32) -> u64 {
    let length = held.core.text().len() as u64;
    let mixed = (length << 8 | u64::from(kind)) ^ (u64::from(id) << 32 | u64::from(id));
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1
}

/// Text as `str`; bytes that are not UTF-8 become surrogate escapes, so that nothing is lost.
pub fn text<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(PyString::new(py, text)),
        Err(_) => Ok(PyBytes::new(py, bytes)
            .call_method1("decode", ("utf-8", "surrogateescape"))?
            .cast_into::<PyString>()?),
    }
}

/// `str` where the bytes are UTF-8, else `bytes`.
pub fn text_or_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyAny> {
    match std::str::from_utf8(bytes) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, bytes).into_any(),
    }
}

/// The names of all opcodes by code, made once.
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
