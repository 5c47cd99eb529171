//! `Module`: a parsed HLO module. Its analyses are methods of the Python class over it.

use crate::attributes::Attributes;
use crate::classes::{module_class, restorer};
use crate::columns::{Columns, as_array};
use crate::computation::Computation;
use crate::held::{Held, same_module, text};
use crate::loading::strict_argument;
use crate::mesh::Mesh;
use crate::names::{instruction_names, instruction_opcodes, operand_names};
use crate::select::{Conditions, rows_where};
use crate::sequence::{ComputationSequence, Ids, InstructionIterator, InstructionSequence};
use crate::shape::Shape;
use hlofast::ir::decode::unescape;
use hlofast::print::{self, EqualityOptions, FingerprintOptions, Form, PrintOptions};
use hlofast::text::Span;
use hlofast::{ErrorKind, ParseError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// A parsed HLO module: frozen, shared, a sequence of instructions. `hlofast.Module` adds the
/// analyses.
#[pyclass(frozen, subclass, weakref, module = "hlofast._core")]
pub struct Module {
    pub held: Arc<Held>,
}

impl Module {
    /// The object of the package's class for `held`.
    pub fn object<'py>(py: Python<'py>, held: &Arc<Held>) -> PyResult<Bound<'py, Self>> {
        let base = Bound::new(py, Self { held: Arc::clone(held) })?;
        Ok(module_class(py)?.call1((base,))?.cast_into::<Self>()?)
    }

    fn core(&self) -> &hlofast::ir::Module {
        &self.held.core
    }

    fn sequence(&self) -> InstructionSequence {
        let ids = Ids::Range(0, self.core().row_count() as u32);
        InstructionSequence { held: Arc::clone(&self.held), ids }
    }

    fn all_rows(&self) -> std::ops::Range<u32> {
        0..self.core().row_count() as u32
    }

    fn name_text(&self) -> String {
        String::from_utf8_lossy(self.core().name()).into_owned()
    }
}

#[pymethods]
impl Module {
    /// A view of `module`, in another context if `context` is given.
    #[new]
    #[pyo3(signature = (module, context=None))]
    fn new(module: &Bound<'_, Self>, context: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self { held: module.get().held.told(context)? })
    }

    /// The context that was told; None if nothing was.
    #[getter]
    fn _told<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.held.run.told(py)
    }

    /// The whole context: what `find` returns, which is called once.
    fn _context<'py>(&self, find: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = find.py();
        let context = &self.held.run.context;
        let found = context.get_or_try_init(py, || find.call0().map(Bound::unbind))?;
        Ok(found.bind(py).clone())
    }

    /// The name.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, self.core().name())
    }

    /// The file it was read from; None for texts without one.
    #[getter]
    fn path(&self) -> Option<&str> {
        self.core().source().path()
    }

    /// XLA's account of buffers, where the module came in a protobuf that has one: what the file
    /// `-buffer-assignment.txt` says, for `Memory.file`. None otherwise.
    #[getter]
    fn buffer_assignment<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.core().source().buffer_assignment().map(|text| PyBytes::new(py, text))
    }

    /// Number of partitions (devices that share the work of one program); 1 if the header does not
    /// say. A `ParseError` if what it says is no 64-bit integer.
    #[getter]
    fn num_partitions(&self) -> PyResult<i64> {
        header_count(self.core(), "num_partitions", self.core().num_partitions())
    }

    /// Number of replicas (devices that run the same program on other data); as for
    /// `num_partitions`.
    #[getter]
    fn replica_count(&self) -> PyResult<i64> {
        header_count(self.core(), "replica_count", self.core().replica_count())
    }

    /// Whether text order is the order of execution.
    #[getter]
    fn is_scheduled(&self) -> bool {
        self.core().is_scheduled()
    }

    /// The entry computation.
    #[getter]
    fn entry(&self) -> Computation {
        Computation { held: Arc::clone(&self.held), id: self.core().entry() }
    }

    /// The computations in text order.
    #[getter]
    fn computations(&self) -> ComputationSequence {
        let ids = Ids::Range(0, self.core().computations().len() as u32);
        ComputationSequence { held: Arc::clone(&self.held), ids }
    }

    /// All instructions in text order, implied ones included.
    #[getter]
    fn instructions(&self) -> InstructionSequence {
        self.sequence()
    }

    /// Number of instructions that the text writes.
    #[getter]
    fn instruction_count(&self) -> usize {
        self.core().instruction_count()
    }

    /// Number of computations that the text writes.
    #[getter]
    fn computation_count(&self) -> usize {
        self.core().computation_count()
    }

    /// The distinct shapes by number.
    #[getter]
    fn shapes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let shapes = self.core().shapes().ids();
        let shapes = shapes.map(|id| Bound::new(py, Shape { held: Arc::clone(&self.held), id }));
        PyTuple::new(py, shapes.collect::<PyResult<Vec<_>>>()?)
    }

    /// The header's attributes, decoded on access.
    #[getter]
    fn header(&self) -> Attributes {
        Attributes { held: Arc::clone(&self.held), row: None }
    }

    /// Faults that were passed over; only with `on_error="collect"`.
    #[getter]
    fn errors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let source = self.core().source();
        let errors = self.core().errors().iter();
        let errors = errors.map(|error| crate::errors::object(py, source, error));
        PyTuple::new(py, errors.collect::<PyResult<Vec<_>>>()?)
    }

    /// What is wrong if the text seems to end before its entry computation: none is marked as
    /// ENTRY, and the last one, which `entry` therefore is, has other parameters or another result
    /// than `entry_computation_layout` in the header says. None for other modules, and with faults
    /// in `errors`. XLA reads such text without a word.
    #[getter]
    fn missing_entry<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let source = self.core().source();
        let fault = self.core().missing_entry();
        fault.map(|error| crate::errors::object(py, source, &error)).transpose()
    }

    /// Read-only NumPy arrays over the module's memory.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let columns = self.held.columns.get_or_try_init(py, || {
            Ok::<_, PyErr>(Py::new(py, Columns::new(&self.held.core, None))?.into_any())
        })?;
        Ok(columns.bind(py).clone())
    }

    /// The distinct operation names that `columns.op_name` counts.
    #[getter]
    fn op_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let core = self.core();
        let names = self.held.op_names.get_or_try_init(py, || {
            let spans = py.detach(|| &core.metadata_columns().op_names);
            let names = spans.iter().map(|span| {
                let raw = core.bytes(*span);
                text(py, &unescape(raw).unwrap_or(raw.into()))
            });
            Ok::<_, PyErr>(
                PyTuple::new(py, names.collect::<PyResult<Vec<_>>>()?)?.unbind().into_any(),
            )
        })?;
        Ok(names.bind(py).clone())
    }

    /// The distinct source files that `columns.source_file` counts.
    #[getter]
    fn source_files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let core = self.core();
        let files = self.held.source_files.get_or_try_init(py, || {
            let files = py.detach(|| &core.metadata_columns().source_files);
            let files = files.iter().map(|name| text(py, name));
            Ok::<_, PyErr>(
                PyTuple::new(py, files.collect::<PyResult<Vec<_>>>()?)?.unbind().into_any(),
            )
        })?;
        Ok(files.bind(py).clone())
    }

    /// The names of all instructions.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        instruction_names(py, &self.held, self.all_rows())
    }

    /// The opcodes of all instructions.
    fn opcodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        instruction_opcodes(py, &self.held, self.all_rows())
    }

    /// For each instruction the names of its operands.
    fn operand_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        operand_names(py, &self.held, self.all_rows())
    }

    /// The computations, callees before callers, otherwise in text order.
    fn post_order(&self) -> ComputationSequence {
        let ids = self.core().computation_post_order().into_iter().map(|id| id.0);
        ComputationSequence { held: Arc::clone(&self.held), ids: Ids::List(ids.collect()) }
    }

    /// What `hlofast.Summary` is made of; `shapes` is how many of the largest shapes to list.
    #[pyo3(signature = (*, shapes=10))]
    fn _summary<'py>(&self, py: Python<'py>, shapes: usize) -> PyResult<Bound<'py, PyDict>> {
        crate::summary::summary(py, &self.held, shapes)
    }

    /// The mesh that the text speaks of: its source, and whether the names of the axes are in the
    /// text, are in the result. None if nothing in it names several devices.
    fn mesh(&self, py: Python<'_>) -> Option<Mesh> {
        py.detach(|| self.held.stage.derived_mesh().cloned()).map(Mesh::from)
    }

    /// The rows that meet every condition given, as a NumPy array of row numbers. `opcode`,
    /// `computation`, `shape` and `element_type` take one value or several; `op_name` and
    /// `source_file` a part of the text or a compiled regular expression.
    #[pyo3(
        name = "where",
        signature = (*, opcode=None, computation=None, name=None, op_name=None, source_file=None,
            source_line=None, shape=None, element_type=None, min_bytes=None, max_bytes=None,
            is_root=None, is_implicit=None)
    )]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python method")]
    fn where_<'py>(
        slf: &Bound<'py, Self>,
        opcode: Option<&Bound<'py, PyAny>>,
        computation: Option<&Bound<'py, PyAny>>,
        name: Option<&Bound<'py, PyString>>,
        op_name: Option<&Bound<'py, PyAny>>,
        source_file: Option<&Bound<'py, PyAny>>,
        source_line: Option<i32>,
        shape: Option<&Bound<'py, PyAny>>,
        element_type: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = crate::select::clamped)] min_bytes: Option<i64>,
        #[pyo3(from_py_with = crate::select::clamped)] max_bytes: Option<i64>,
        is_root: Option<bool>,
        is_implicit: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let conditions = Conditions {
            opcode,
            computation,
            name,
            op_name,
            source_file,
            source_line,
            shape,
            element_type,
            min_bytes,
            max_bytes,
            is_root,
            is_implicit,
        };
        let op_names = || Ok(this.op_names(py)?.unbind());
        let source_files = || Ok(this.source_files(py)?.unbind());
        let rows = rows_where(py, &this.held, op_names, source_files, &conditions)?;
        as_array(Bound::new(py, rows)?)
    }

    /// Bytes that the representation takes beyond the text, with what was computed so far.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> usize {
        self.held.heap_bytes(py)
    }

    /// Bytes of the text.
    #[getter]
    fn text_bytes(&self) -> usize {
        self.core().text().len()
    }

    /// The module as text: `form` is `long` or `short` for XLA's canonical forms, `original` for
    /// the bytes it was read from.
    #[pyo3(signature = (*, form="long", metadata=true, backend_config=true, layouts=true))]
    fn to_text<'py>(
        &self,
        py: Python<'py>,
        form: &str,
        metadata: bool,
        backend_config: bool,
        layouts: bool,
    ) -> PyResult<Bound<'py, PyString>> {
        let Some(options) = print_options(form, metadata, backend_config, layouts)? else {
            return self.text_(py);
        };
        text(py, &py.detach(|| print::to_text(self.core(), &options)))
    }

    /// The module as the bytes of an `HloModuleProto`, which XLA loads; with `wrapped` of the
    /// `HloProto` around it that XLA dumps. Reading them gives the same program.
    ///
    /// Names that several instructions share become unique, constants whose values the text elides
    /// have none, device numbers are the usual ones. A `ParseError` at what has no field; what XLA
    /// itself loses (options of the compiler in the header, a `channel_id` below 1, the grouping of
    /// `slice_sizes` that tuples are cut by) is left out, or with `strict` an error too.
    #[pyo3(signature = (*, wrapped=false, strict=false))]
    fn to_proto<'py>(
        &self,
        py: Python<'py>,
        wrapped: bool,
        strict: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        crate::proto::to_proto(py, &self.held, wrapped, strict)
    }

    /// A stable digest, as 32 hexadecimal digits, of what the module computes: equal for modules
    /// that differ only in what is left out here.
    #[pyo3(signature = (*, names=false, channel_ids=false, metadata=false, layouts=true,
        backend_config=true, schedule=true))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python method")]
    fn fingerprint(
        &self,
        py: Python<'_>,
        names: bool,
        channel_ids: bool,
        metadata: bool,
        layouts: bool,
        backend_config: bool,
        schedule: bool,
    ) -> String {
        let options =
            FingerprintOptions { names, channel_ids, metadata, layouts, backend_config, schedule };
        let digest = py.detach(|| print::fingerprint(self.core(), &options));
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether `other` is the same program: names, opcodes, shapes, operands, calls, attributes,
    /// header. Spacing, comments and what the text leaves implied do not matter, nor does the
    /// order of rows unless they are scheduled. `==` compares texts instead.
    #[pyo3(signature = (other, *, layouts=true, metadata=true))]
    fn same_program(
        &self,
        py: Python<'_>,
        other: &Bound<'_, Module>,
        layouts: bool,
        metadata: bool,
    ) -> bool {
        let options = EqualityOptions { layouts, metadata, ..EqualityOptions::default() };
        let (a, b) = (self.core(), other.get().core());
        py.detach(|| print::structurally_equal_with(a, b, &options).is_ok())
    }

    /// The text, byte for byte.
    #[getter(text)]
    fn text_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, self.core().text())
    }

    fn __len__(&self) -> usize {
        self.core().row_count()
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        InstructionSequence::item(&Bound::new(key.py(), self.sequence())?, key)
    }

    fn __contains__(&self, item: &Bound<'_, PyAny>) -> bool {
        self.sequence().holds(item)
    }

    fn __iter__(&self) -> InstructionIterator {
        self.sequence().iterator()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Module>().is_ok_and(|other| same_module(&self.held, &other.get().held))
    }

    fn __hash__(&self) -> u64 {
        let text = self.core().text();
        let mut hasher = DefaultHasher::new();
        (text.len(), text.get(..text.len().min(4096))).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let errors = match self.core().errors().len() {
            0 => String::new(),
            n => format!(", {}", count(n, "error")),
        };
        format!(
            "<Module {}: {} in {}{errors}>",
            self.name_text(),
            count(self.core().instruction_count(), "instruction"),
            count(self.core().computation_count(), "computation"),
        )
    }

    fn _repr_html_(&self) -> String {
        let ids: Vec<u32> = (0..self.core().computations().len() as u32).collect();
        let head = crate::html::escape(self.__repr__().trim_matches(['<', '>']).as_bytes());
        format!("<p>{head}</p>{}", crate::html::computation_table(&self.held, &ids))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let source = self.core().source();
        let options = PyDict::new(py);
        options.set_item("path", source.path())?;
        options.set_item("strict", strict_argument(py, self.held.strictness)?)?;
        options
            .set_item("on_error", if self.held.collects_errors { "collect" } else { "raise" })?;
        options.set_item("context", self.held.run.told(py))?;
        options.set_item("lines_before", source.lines_before())?;
        let origins = source.line_origins();
        let origins = origins.iter().map(|line| (line.start, line.offset, line.removed));
        options.set_item("origins", origins.collect::<Vec<_>>())?;
        let builder = restorer(py, "_restore_module")?;
        let bytes = PyBytes::new(py, source.bytes());
        Ok((builder, (bytes, options)).into_pyobject(py)?.into_any())
    }

    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }
}

/// What to print; None for the original text.
fn print_options(
    form: &str,
    metadata: bool,
    backend_config: bool,
    layouts: bool,
) -> PyResult<Option<PrintOptions>> {
    let form = match form {
        "long" => Form::Long,
        "short" => Form::Short,
        "original" => return Ok(None),
        _ => return Err(PyValueError::new_err("form is \"long\", \"short\" or \"original\"")),
    };
    let options = PrintOptions::default();
    Ok(Some(PrintOptions { form, metadata, backend_config, layouts, ..options }))
}

/// A count of the header, or the fault that keeps it from being read.
pub fn header_count(core: &hlofast::ir::Module, key: &str, count: Option<i64>) -> PyResult<i64> {
    count.ok_or_else(|| {
        let span = core.header_attribute(key).unwrap_or(Span::EMPTY);
        let message = format!("{key} is no 64-bit integer");
        let error = ParseError::new(ErrorKind::InvalidNumber, span, message);
        crate::errors::to_python(core.source(), &error)
    })
}
