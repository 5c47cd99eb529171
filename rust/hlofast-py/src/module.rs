//! `Module`: a parsed HLO module. Its analyses are methods of the Python subclass.

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
use hlofast::flow::is_library;
use hlofast::ir::decode::unescape;
use hlofast::print::{self, EqualityOptions, FingerprintOptions, Form, PrintOptions};
use hlofast::text::Span;
use hlofast::{ErrorKind, ParseError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// A parsed HLO module: immutable, shared between threads, a sequence of instructions.
///
/// `hlofast.Module` adds the analyses.
#[pyclass(frozen, subclass, weakref, module = "hlofast._core")]
pub struct Module {
    pub held: Arc<Held>,
}

impl Module {
    /// Wraps `held` in an instance of the package's `Module` class.
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
    /// A view of `module`, with its context replaced if `context` is given.
    #[new]
    #[pyo3(signature = (module, context=None))]
    fn new(module: &Bound<'_, Self>, context: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self { held: module.get().held.told(context)? })
    }

    /// The context given by the caller; None if there is none.
    #[getter]
    fn _told<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.held.run.told(py)
    }

    /// Returns the whole context.
    ///
    /// `find` computes the context and is called once.
    fn _context<'py>(&self, find: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = find.py();
        let context = &self.held.run.context;
        let context = context.get_or_try_init(py, || find.call0().map(Bound::unbind))?;
        Ok(context.bind(py).clone())
    }

    /// The name of the module.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, self.core().name())
    }

    /// The file that it was read from; None for text without a file.
    #[getter]
    fn path(&self) -> Option<&str> {
        self.core().source().path()
    }

    /// XLA's buffer assignment as bytes, if the module was read from a protobuf that has one;
    /// otherwise None.
    ///
    /// It holds the same facts as the file `-buffer-assignment.txt`; `Memory.file` reads it.
    #[getter]
    fn buffer_assignment<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.core().source().buffer_assignment().map(|text| PyBytes::new(py, text))
    }

    /// Number of partitions (devices that share the work of one program); 1 if the header does not
    /// say.
    ///
    /// Raises `ParseError` if the header's value is not a 64-bit integer.
    #[getter]
    fn num_partitions(&self) -> PyResult<i64> {
        header_count(self.core(), "num_partitions", self.core().num_partitions())
    }

    /// Number of replicas (devices that run the same program on other data); 1 if the header does
    /// not say.
    ///
    /// Raises `ParseError` if the header's value is not a 64-bit integer.
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

    /// All instructions in text order, including implicit ones.
    #[getter]
    fn instructions(&self) -> InstructionSequence {
        self.sequence()
    }

    /// Number of instructions written in the text.
    #[getter]
    fn instruction_count(&self) -> usize {
        self.core().instruction_count()
    }

    /// Number of computations written in the text.
    #[getter]
    fn computation_count(&self) -> usize {
        self.core().computation_count()
    }

    /// The distinct shapes, by shape number.
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

    /// The faults that were passed over; empty unless `on_error="collect"`.
    #[getter]
    fn errors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let source = self.core().source();
        let errors = self.core().errors().iter();
        let errors = errors.map(|error| crate::errors::object(py, source, error));
        PyTuple::new(py, errors.collect::<PyResult<Vec<_>>>()?)
    }

    /// The fault if the text seems to end before its entry computation; otherwise None.
    ///
    /// This is the case if no computation is marked as ENTRY, and the last computation, which
    /// `entry` then returns, has other parameters or another result than `entry_computation_layout`
    /// in the header. XLA reads such text without an error. None if `errors` is not empty.
    #[getter]
    fn missing_entry<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let source = self.core().source();
        let fault = self.core().missing_entry();
        fault.map(|error| crate::errors::object(py, source, &error)).transpose()
    }

    /// Whether the text has pieces of a program rather than a module.
    ///
    /// Such text is instruction lines without a module, computations with lines left out, lines of
    /// `--xla_hlo_profile`, the body of a fusion alone, or lines cut at the right edge, as people
    /// paste them. Operands that no line defines are placeholders (implicit parameters without a
    /// number), of the shape that their use gives or else `opaque[?]`. Step time, memory and other
    /// figures of a whole program are unknown for a fragment. A module that ends before its entry
    /// is not one: see `missing_entry`.
    #[getter]
    fn is_fragment(&self) -> bool {
        self.core().fragment().is_some()
    }

    /// What a fragment lacks, as counts by name; None for a module.
    #[getter]
    fn _lacks<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(fragment) = self.core().fragment() else { return Ok(None) };
        let lacks = PyDict::new(py);
        lacks.set_item("operands", fragment.operands)?;
        lacks.set_item("computations", fragment.computations)?;
        lacks.set_item("gaps", fragment.pieces.gaps)?;
        lacks.set_item("cut", fragment.pieces.cut)?;
        lacks.set_item("unread", fragment.unread)?;
        lacks.set_item("others", fragment.pieces.others)?;
        Ok(Some(lacks))
    }

    /// Read-only NumPy arrays over the module's memory.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let columns = self.held.placed.columns.get_or_try_init(py, || {
            let columns = Columns::new(&self.held.core, &self.held.stage, None);
            Ok::<_, PyErr>(Py::new(py, columns)?.into_any())
        })?;
        Ok(columns.bind(py).clone())
    }

    /// The distinct operation names, by the codes in `columns.op_name`.
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

    /// Whether a source file belongs to a library, in the context of the module.
    fn _is_library(&self, file: &str) -> bool {
        is_library(file.as_bytes(), &self.held.stage.context().sources.libraries)
    }

    /// The distinct source files, by the codes in `columns.source_file`.
    #[getter]
    fn source_files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let core = self.core();
        let files = self.held.placed.source_files.get_or_try_init(py, || {
            let sources = py.detach(|| self.held.stage.sources());
            let files = sources.files(core.metadata_columns()).map(|name| text(py, name));
            Ok::<_, PyErr>(
                PyTuple::new(py, files.collect::<PyResult<Vec<_>>>()?)?.unbind().into_any(),
            )
        })?;
        Ok(files.bind(py).clone())
    }

    /// Returns the names of all instructions.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        instruction_names(py, &self.held, self.all_rows())
    }

    /// Returns the opcodes of all instructions.
    fn opcodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        instruction_opcodes(py, &self.held, self.all_rows())
    }

    /// Returns the operand names of each instruction: a list of lists.
    fn operand_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        operand_names(py, &self.held, self.all_rows())
    }

    /// Returns the computations, callees before callers, otherwise in text order.
    fn post_order(&self) -> ComputationSequence {
        let ids = self.core().computation_post_order().iter().copied().map(|id| id.0);
        ComputationSequence { held: Arc::clone(&self.held), ids: Ids::List(ids.collect()) }
    }

    /// Returns the facts of `hlofast.Summary`.
    fn _summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        crate::summary::summary(py, &self.held)
    }

    /// Returns the rows of a table of `hlofast.Summary`.
    fn _summary_rows<'py>(&self, py: Python<'py>, table: &str) -> PyResult<Bound<'py, PyList>> {
        crate::summary::rows(py, &self.held, table)
    }

    /// Returns the backend that the module was compiled for, as `hlofast.Summary.backend` does, if
    /// it does not fit a device of `backend`; otherwise None.
    fn _misfit(&self, py: Python<'_>, backend: &str) -> Option<&'static str> {
        let compiled = py.detach(|| hlofast::summary::backend(self.core()))?.value;
        (!compiled.fits(backend)).then(|| compiled.as_str())
    }

    /// Returns the number of devices: partitions times replicas, or the devices in the groups of
    /// collectives if the header has no partition count.
    ///
    /// Raises `ParseError` if a count in the header is not a 64-bit integer.
    fn _device_count(&self, py: Python<'_>) -> PyResult<u64> {
        self.num_partitions()?;
        self.replica_count()?;
        Ok(py.detach(|| self.held.stage.device_count()))
    }

    /// Returns whether `mesh` fits a module for `devices` devices.
    #[staticmethod]
    fn _fits(devices: u64, mesh: &Mesh) -> bool {
        hlofast::comms::fits(devices, &mesh.core)
    }

    /// Returns the mesh in the header of the module at `path` if it names the axes of this module's
    /// mesh.
    fn _mesh_named_in(&self, py: Python<'_>, path: std::path::PathBuf) -> Option<Mesh> {
        py.detach(|| {
            let before = hlofast::dump::header_mesh(&path)?;
            self.held.stage.is_named_by(&before).then(|| Mesh::from(before))
        })
    }

    /// Returns the mesh derived from the text; None if nothing in the text names several devices.
    ///
    /// The result says how it was derived (`source`) and whether the axis names are in the text
    /// (`invented_names`).
    fn mesh(&self, py: Python<'_>) -> Option<Mesh> {
        py.detach(|| self.held.stage.derived_mesh().cloned()).map(Mesh::from)
    }

    /// Returns the rows that meet all given conditions, as a NumPy array of row numbers (uint32).
    ///
    /// `opcode`, `computation`, `shape` and `element_type` take one value or several; `op_name` and
    /// `source_file` take a substring or a compiled regular expression; `min_bytes` and `max_bytes`
    /// are bytes of the result.
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

    /// Bytes of memory beyond the text, including the results computed so far.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> usize {
        self.held.heap_bytes(py)
    }

    /// Bytes of the text.
    #[getter]
    fn text_bytes(&self) -> usize {
        self.core().text().len()
    }

    /// Returns the module as text.
    ///
    /// `form` is `long` or `short` for XLA's canonical forms, `original` for the bytes it was read
    /// from.
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

    /// Returns the module as a serialised `HloModuleProto`, which XLA loads.
    ///
    /// With `wrapped`, the result is an `HloProto`, which XLA dumps. Reading the bytes gives the
    /// same program.
    ///
    /// Names shared by several instructions are made unique, constants elided in the text have no
    /// values, and the device assignment is the default one. Raises `ParseError` for anything
    /// without a field in the protobuf. What XLA itself loses (compiler options in the header, a
    /// `channel_id` below 1, the grouping of `slice_sizes` that slice tuples) is left out; with
    /// `strict` it raises `ParseError` too.
    #[pyo3(signature = (*, wrapped=false, strict=false))]
    fn to_proto<'py>(
        &self,
        py: Python<'py>,
        wrapped: bool,
        strict: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        crate::proto::to_proto(py, &self.held, wrapped, strict)
    }

    /// Returns a stable digest of the computation of the module, as 32 hexadecimal digits.
    ///
    /// Modules that differ only in properties left out here have equal digests.
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

    /// Returns whether `other` is the same program.
    ///
    /// Names, opcodes, shapes, operands, calls, attributes and header are compared. Spacing,
    /// comments, implied text and, unless the module is scheduled, the order of rows do not matter.
    /// `==` compares texts instead.
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
        let pieces = source.pieces();
        let pieces = pieces.map(|own| (own.instructions, own.gaps, own.cut, own.others));
        options.set_item("pieces", pieces)?;
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

/// The print options; None for the original text.
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
        _ => return Err(PyValueError::new_err("form must be \"long\", \"short\" or \"original\"")),
    };
    let options = PrintOptions::default();
    Ok(Some(PrintOptions { form, metadata, backend_config, layouts, ..options }))
}

/// Returns a count in the header, or the fault that prevents reading it.
pub fn header_count(core: &hlofast::ir::Module, key: &str, count: Option<i64>) -> PyResult<i64> {
    count.ok_or_else(|| {
        let span = core.header_attribute(key).unwrap_or(Span::EMPTY);
        let message = format!("{key} is not a 64-bit integer");
        let error = ParseError::new(ErrorKind::InvalidNumber, span, message);
        crate::errors::to_python(core.source(), &error)
    })
}
