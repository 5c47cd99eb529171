//! `Mesh`, the placement of groups and shardings on it, and the mesh derived from a module.

use crate::classes::restorer;
use crate::errors::to_python;
use crate::held::Stage;
use crate::instruction::Instruction;
use hlofast::comms::{
    AxisMatch as CoreMatch, AxisPart, DerivedMesh, DeviceGroups, DimensionSpec, GroupContext,
    Mesh as CoreMesh, PartitionSpec as CoreSpec, PermuteMatch,
};
use hlofast::ir::Row;
use hlofast::ir::decode::{DeviceOrder, Iota, LeafSharding};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyTuple};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Devices with coordinates along named axes; the last axis varies fastest.
///
/// `axes` is a mapping of axis names to sizes or an iterable of such pairs, major first; the
/// `shape` of a JAX mesh works too. Devices have the numbers that HLO text uses: positions in the
/// program's device assignment, which for JAX are row-major positions in its mesh. `device_order`
/// lists the devices in mesh order if that is not 0, 1, 2, ... `hosts` and `slices` are counts;
/// each host and each slice has equally many consecutive devices.
///
/// Raises `ValueError` for an impossible mesh and says why.
#[pyclass(frozen, module = "hlofast._core")]
#[derive(Clone)]
pub struct Mesh {
    pub core: CoreMesh,
    derived: Option<Derivation>,
}

/// How a mesh was derived.
#[derive(Clone)]
struct Derivation {
    source: String,
    invented_names: bool,
    evidence: u64,
    ignored: u64,
}

/// The result of `Mesh.__reduce__`: axes, device order, hosts, slices, derivation.
type Parts =
    (Vec<(String, i64)>, Option<Order>, Option<u64>, Option<u64>, Option<(String, bool, u64, u64)>);

/// A device order as plain values: a list, or an iota with transposition.
#[derive(FromPyObject, IntoPyObject)]
pub enum Order {
    Iota((Vec<i64>, Vec<u32>)),
    List(Vec<i64>),
}

fn value_error(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

impl From<DerivedMesh> for Mesh {
    fn from(derived: DerivedMesh) -> Self {
        let derivation = Derivation {
            source: derived.source.as_str().to_owned(),
            invented_names: derived.invented_names,
            evidence: derived.evidence,
            ignored: derived.ignored,
        };
        Self { core: derived.mesh, derived: Some(derivation) }
    }
}

impl Mesh {
    /// The mesh of `stage`: the given mesh, otherwise the mesh derived from the text.
    pub fn of(stage: &Stage) -> Option<Self> {
        match &stage.context().mesh {
            Some(core) => Some(Self { core: core.clone(), derived: None }),
            None => stage.derived_mesh().cloned().map(Self::from),
        }
    }

    fn order_text(&self) -> Option<String> {
        Some(match self.core.device_order()? {
            DeviceOrder::Iota(iota) => {
                let mut text = Vec::new();
                iota.write(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            }
            DeviceOrder::List(list) => {
                let shown: Vec<String> = list.iter().take(16).map(i64::to_string).collect();
                let end = if list.len() > shown.len() { ", ..." } else { "" };
                format!("({}{end})", shown.join(", "))
            }
        })
    }

    fn parts<'py>(&self, py: Python<'py>, parts: &[AxisPart]) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, parts.iter().map(|part| self.core.part_text(part)))
    }
}

/// Reads (name, size) pairs from a mapping or an iterable of pairs.
fn axes_of(axes: &Bound<'_, PyAny>) -> PyResult<Vec<(String, i64)>> {
    let pairs = match axes.cast::<PyMapping>() {
        Ok(mapping) => mapping.items()?.into_any(),
        Err(_) => axes.clone(),
    };
    let mut named_sizes = Vec::new();
    for pair in pairs.try_iter()? {
        let pair = pair?;
        let pair = pair.extract::<(String, i64)>().map_err(|_| {
            let message = "axes must be a mapping of names to sizes, or (name, size) pairs";
            PyTypeError::new_err(message)
        })?;
        named_sizes.push(pair);
    }
    Ok(named_sizes)
}

/// Places `core` on the given number of hosts and slices.
fn placed(mut core: CoreMesh, hosts: Option<i64>, slices: Option<i64>) -> PyResult<Mesh> {
    // Negative counts fail like 0.
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    if let Some(hosts) = hosts {
        core = core.with_hosts(count(hosts)).map_err(value_error)?;
    }
    if let Some(slices) = slices {
        core = core.with_slices(count(slices)).map_err(value_error)?;
    }
    Ok(Mesh { core, derived: None })
}

#[pymethods]
impl Mesh {
    #[new]
    #[pyo3(signature = (axes, *, device_order=None, hosts=None, slices=None))]
    fn new(
        axes: &Bound<'_, PyAny>,
        device_order: Option<&Bound<'_, PyAny>>,
        hosts: Option<i64>,
        slices: Option<i64>,
    ) -> PyResult<Self> {
        let mut core = CoreMesh::new(axes_of(axes)?).map_err(value_error)?;
        if let Some(order) = device_order {
            let list: Vec<i64> =
                order.try_iter()?.map(|device| device?.extract()).collect::<PyResult<_>>()?;
            core = core.with_device_order(&DeviceOrder::List(list)).map_err(value_error)?;
        }
        placed(core, hosts, slices)
    }

    /// Reads a mesh from text such as `data=2,model=4`.
    ///
    /// Raises `ValueError` if the text or the counts are invalid.
    #[staticmethod]
    #[pyo3(signature = (text, /, *, hosts=None, slices=None))]
    fn parse(text: &str, hosts: Option<i64>, slices: Option<i64>) -> PyResult<Self> {
        placed(CoreMesh::parse(text).map_err(value_error)?, hosts, slices)
    }

    /// Returns the same mesh on another number of hosts and slices; an omitted count is kept.
    ///
    /// Raises `ValueError` if the counts do not fit the mesh.
    #[pyo3(signature = (*, hosts=None, slices=None))]
    fn placed(&self, hosts: Option<i64>, slices: Option<i64>) -> PyResult<Self> {
        Ok(Self { derived: self.derived.clone(), ..placed(self.core.clone(), hosts, slices)? })
    }

    /// The names of the axes, major first.
    #[getter]
    fn axis_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.core.axes().iter().map(|axis| &axis.name))
    }

    /// Axis sizes by name, major first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let shape = PyDict::new(py);
        for axis in self.core.axes() {
            shape.set_item(&axis.name, axis.size)?;
        }
        Ok(shape)
    }

    /// Number of devices.
    #[getter]
    fn device_count(&self) -> u64 {
        self.core.device_count()
    }

    /// Number of hosts; None if not given.
    #[getter]
    fn hosts(&self) -> Option<u64> {
        self.core.hosts()
    }

    /// Number of slices; None if not given.
    #[getter]
    fn slices(&self) -> Option<u64> {
        self.core.slices()
    }

    /// The source of a derived mesh: `shardy_meshes`, `named_shardings`, `entry_shardings`,
    /// `shardings` or `replica_groups`; None for a given mesh.
    #[getter]
    fn source(&self) -> Option<&str> {
        self.derived.as_ref().map(|derived| derived.source.as_str())
    }

    /// Whether the axis names are not in the text, or were invented by the compiler.
    #[getter]
    fn invented_names(&self) -> bool {
        self.derived.as_ref().is_some_and(|derived| derived.invented_names)
    }

    /// Number of attributes in the text that support a derived mesh; 0 for a given mesh.
    #[getter]
    fn evidence(&self) -> u64 {
        self.derived.as_ref().map_or(0, |derived| derived.evidence)
    }

    /// Number of attributes of that kind that do not fit a derived mesh; 0 for a given mesh.
    #[getter]
    fn ignored(&self) -> u64 {
        self.derived.as_ref().map_or(0, |derived| derived.ignored)
    }

    /// Returns the device numbers in mesh order; the last axis varies fastest.
    ///
    /// Raises `ValueError` if the mesh has more than `limit` devices.
    #[pyo3(signature = (limit=4_194_304))]
    fn devices<'py>(&self, py: Python<'py>, limit: u64) -> PyResult<Bound<'py, PyTuple>> {
        let count = self.core.device_count();
        if count > limit {
            return Err(PyValueError::new_err("the mesh has more devices than the limit"));
        }
        let devices = (0..count).map_while(|position| self.core.device(position));
        PyTuple::new(py, devices.collect::<Vec<_>>())
    }

    /// Returns the coordinates of `device`, by axis name.
    ///
    /// Raises `ValueError` for a device that is not in the mesh.
    fn coordinates<'py>(&self, py: Python<'py>, device: i64) -> PyResult<Bound<'py, PyDict>> {
        let position = u64::try_from(device).ok().and_then(|device| self.core.position(device));
        let unknown = || PyValueError::new_err(format!("the mesh has no device {device}"));
        let position = position.ok_or_else(unknown)?;
        let coordinates = PyDict::new(py);
        for (number, axis) in self.core.axes().iter().enumerate() {
            let stride = self.core.stride(number).unwrap_or(1);
            coordinates.set_item(&axis.name, position / stride % axis.size)?;
        }
        Ok(coordinates)
    }

    /// Returns the mesh axes of the collective `instruction`.
    ///
    /// Raises `ValueError` for instructions without groups and source-target pairs, `ParseError` if
    /// they cannot be read.
    fn axes_of(&self, py: Python<'_>, instruction: &Instruction) -> PyResult<AxisMatch> {
        let module = &*instruction.held.core;
        let row = Row(instruction.row);
        let context = GroupContext::of(module).with_mesh(&self.core);
        let failed = |error| to_python(module.source(), &error);
        if module.attribute(row, "source_target_pairs").is_some() {
            let matched = self.core.permute_of_row(module, row, &context).map_err(failed)?;
            return self.permute(py, &matched);
        }
        if !DeviceGroups::has_groups(module.opcode(row)) {
            let message = "the instruction has neither groups nor source-target pairs";
            return Err(PyValueError::new_err(message));
        }
        let groups = DeviceGroups::of_row(module, row, &context).map_err(failed)?;
        let matched = self.core.axes_of(&groups);
        let (reason, is_everything) = match &matched {
            CoreMatch::Nothing => (None, false),
            CoreMatch::Axes { everything, .. } => (None, *everything),
            CoreMatch::NoSubset(reason) => (Some(reason.to_string()), false),
        };
        Ok(AxisMatch {
            axes: self.parts(py, matched.parts())?.unbind(),
            is_everything,
            reason,
            groups: Some(groups.to_text()),
            shift: None,
            wraps: None,
            text: self.core.match_text(&matched),
        })
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Mesh>().is_ok_and(|other| self.core == other.get().core)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.core.axes(), self.core.hosts(), self.core.slices()).hash(&mut hasher);
        hasher.finish()
    }

    fn __str__(&self) -> String {
        self.core.to_text()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = format!("Mesh({}", self.shape(py)?.repr()?);
        if let Some(order) = self.order_text() {
            text += &format!(", device_order={order}");
        }
        if let Some(hosts) = self.core.hosts() {
            text += &format!(", hosts={hosts}");
        }
        if let Some(slices) = self.core.slices() {
            text += &format!(", slices={slices}");
        }
        text.push(')');
        if let Some(source) = self.source() {
            text = format!("<{text} from {source}>");
        }
        Ok(text)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let axes = self.core.axes().iter();
        let axes: Vec<_> = axes.map(|axis| (axis.name.clone(), axis.size)).collect();
        let order = self.core.device_order().map(|order| match order {
            DeviceOrder::Iota(iota) => Order::Iota((iota.reshape, iota.transpose)),
            DeviceOrder::List(list) => Order::List(list),
        });
        let derived = self.derived.clone();
        let derived = derived.map(|d| (d.source, d.invented_names, d.evidence, d.ignored));
        let builder = restorer(py, "_restore_mesh")?;
        let parts = (axes, order, self.core.hosts(), self.core.slices(), derived);
        Ok((builder, (parts,)).into_pyobject(py)?.into_any())
    }

    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }
}

impl Mesh {
    fn permute(&self, py: Python<'_>, matched: &PermuteMatch) -> PyResult<AxisMatch> {
        let (mut shift, mut wraps, mut reason) = (None, None, None);
        match matched {
            PermuteMatch::Shift { by, wraps: around, .. } => {
                (shift, wraps) = (Some(*by), Some(*around));
            }
            PermuteMatch::NoSubset(mismatch) => reason = Some(mismatch.to_string()),
            PermuteMatch::Nothing | PermuteMatch::Axes { .. } => {}
        }
        let parts = matched.parts();
        let sizes = parts.iter().try_fold(1u64, |size, part| size.checked_mul(part.size));
        Ok(AxisMatch {
            axes: self.parts(py, parts)?.unbind(),
            is_everything: !parts.is_empty() && sizes == Some(self.core.device_count()),
            reason,
            groups: None,
            shift,
            wraps,
            text: self.core.permute_text(matched),
        })
    }

    /// The placement of a leaf of a sharding on this mesh.
    pub fn spec(&self, py: Python<'_>, leaf: &LeafSharding<'_>) -> PyResult<PartitionSpec> {
        match self.core.partition_spec(leaf) {
            Ok(spec) => self.mapped(py, &spec),
            Err(reason) => {
                let mut text = Vec::new();
                leaf.write(&mut text);
                let none = || PyTuple::empty(py).unbind();
                Ok(PartitionSpec {
                    dimensions: none(),
                    unreduced: none(),
                    manual: none(),
                    reduction: None,
                    reason: Some(reason.to_string()),
                    text: String::from_utf8_lossy(&text).into_owned(),
                })
            }
        }
    }

    fn mapped(&self, py: Python<'_>, spec: &CoreSpec) -> PyResult<PartitionSpec> {
        let dimension = |dimension: &DimensionSpec| -> PyResult<Py<PyAny>> {
            Ok(match dimension.axes.as_slice() {
                [] => py.None(),
                [only] => self.core.part_text(only).into_pyobject(py)?.into_any().unbind(),
                axes => self.parts(py, axes)?.into_any().unbind(),
            })
        };
        let dimensions: Vec<_> = spec.dimensions.iter().map(dimension).collect::<PyResult<_>>()?;
        let reduction = (!spec.unreduced.is_empty()).then(|| spec.reduction.as_str());
        Ok(PartitionSpec {
            dimensions: PyTuple::new(py, dimensions)?.unbind(),
            unreduced: self.parts(py, &spec.unreduced)?.unbind(),
            manual: self.parts(py, &spec.manual)?.unbind(),
            reduction,
            reason: None,
            text: self.core.spec_text(spec),
        })
    }
}

/// Restores a mesh from the result of `Mesh.__reduce__`.
#[pyfunction]
pub fn _restore_mesh(parts: Parts) -> PyResult<Mesh> {
    let (axes, order, hosts, slices, derived) = parts;
    let mut core = CoreMesh::new(axes).map_err(value_error)?;
    let order = order.map(|order| match order {
        Order::Iota((reshape, transpose)) => DeviceOrder::Iota(Iota { reshape, transpose }),
        Order::List(list) => DeviceOrder::List(list),
    });
    if let Some(order) = order {
        core = core.with_device_order(&order).map_err(value_error)?;
    }
    if let Some(hosts) = hosts {
        core = core.with_hosts(hosts).map_err(value_error)?;
    }
    if let Some(slices) = slices {
        core = core.with_slices(slices).map_err(value_error)?;
    }
    let derived = derived.map(|(source, invented_names, evidence, ignored)| Derivation {
        source,
        invented_names,
        evidence,
        ignored,
    });
    Ok(Mesh { core, derived })
}

/// The mesh axes of a collective.
#[pyclass(frozen, module = "hlofast._core")]
pub struct AxisMatch {
    /// Axes in mesh order. A part of an axis is written `model:(2)4`: 4 is its size, 2 the product
    /// of the sizes before it within the axis. Empty for groups of one device, and if `reason` is
    /// set.
    #[pyo3(get)]
    axes: Py<PyTuple>,
    /// Whether the axes make up the whole mesh.
    #[pyo3(get)]
    is_everything: bool,
    /// Why the groups do not follow mesh axes; None if they do.
    #[pyo3(get)]
    reason: Option<String>,
    /// The groups as canonical text: equal sets give equal text. None for permutes.
    #[pyo3(get)]
    groups: Option<String>,
    /// The shift of a permute along its axes; None for groups and for pairs with different shifts.
    #[pyo3(get)]
    shift: Option<i64>,
    /// Whether the shift wraps around the ends of the axes; None if `shift` is.
    #[pyo3(get)]
    wraps: Option<bool>,
    text: String,
}

#[pymethods]
impl AxisMatch {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        match &self.reason {
            Some(reason) => format!("<AxisMatch {}: {reason}>", self.text),
            None if self.text.is_empty() => "<AxisMatch of single devices>".to_owned(),
            None => format!("<AxisMatch {}>", self.text),
        }
    }
}

/// The placement of an array on a mesh: the axes that divide each dimension.
#[pyclass(frozen, module = "hlofast._core")]
pub struct PartitionSpec {
    /// For each dimension, None, the name of an axis or a tuple of names, major first.
    #[pyo3(get)]
    dimensions: Py<PyTuple>,
    /// Axes along which devices hold partial results.
    #[pyo3(get)]
    unreduced: Py<PyTuple>,
    /// Axes that the program itself manages (manual sharding).
    #[pyo3(get)]
    manual: Py<PyTuple>,
    /// How partial results are combined: `sum`, `max` or `min`; None without partial results.
    #[pyo3(get)]
    reduction: Option<&'static str>,
    /// Why the sharding cannot be expressed on the mesh; None if it can.
    #[pyo3(get)]
    reason: Option<String>,
    text: String,
}

#[pymethods]
impl PartitionSpec {
    fn __len__(&self, py: Python<'_>) -> usize {
        self.dimensions.bind(py).len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let dimensions = self.dimensions.bind(py);
        let length = dimensions.len() as isize;
        let place = if index < 0 { index + length } else { index };
        let outside = || PyIndexError::new_err("dimension out of range");
        dimensions.get_item(usize::try_from(place).map_err(|_| outside())?).map_err(|_| outside())
    }

    /// `P('data', None)`; the sharding as written if `reason` is set.
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        match &self.reason {
            Some(reason) => format!("<PartitionSpec of {}: {reason}>", self.text),
            None => self.text.clone(),
        }
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PartitionSpec>().is_ok_and(|other| self.text == other.get().text)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        hasher.finish()
    }
}
