//! `Sharding` and `ReplicaGroups`: the placement of arrays and the device groups of collectives, in
//! compact form.

use crate::held::{Held, text};
use crate::instruction::typed;
use crate::mesh::{Mesh, PartitionSpec};
use hlofast::ir::Opcode;
use hlofast::ir::decode::{
    AttributeValue, LeafSharding, Placement, ReplicaGroups as CoreGroups, Sharding as CoreSharding,
};
use hlofast::text::Span;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The default limit on devices; larger lists are expanded only with an explicit limit.
const DEFAULT_LIMIT: usize = 1 << 22;

fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// The placement of arrays on devices: one sharding, or one per leaf of a tuple.
#[pyclass(frozen, module = "hlofast._core")]
pub struct Sharding {
    pub held: Arc<Held>,
    pub span: Span,
    /// The index of a written leaf; None for all leaves.
    pub leaf: Option<usize>,
}

impl Sharding {
    fn read(&self) -> PyResult<CoreSharding<'_>> {
        match typed(&self.held, b"sharding", Opcode::Unknown, self.span)? {
            AttributeValue::Sharding(sharding) => Ok(sharding),
            _ => Err(PyValueError::new_err("not a sharding")),
        }
    }

    /// Reads the only leaf; None if there are several.
    fn with_leaf<T>(&self, read: impl FnOnce(&LeafSharding<'_>) -> T) -> PyResult<Option<T>> {
        let sharding = self.read()?;
        let leaves = sharding.leaves();
        Ok(match (self.leaf, leaves) {
            (Some(index), _) => leaves.get(index).map(read),
            (None, [only]) => Some(read(only)),
            (None, _) => None,
        })
    }

    fn bytes(&self) -> &[u8] {
        self.held.core.bytes(self.span)
    }
}

#[pymethods]
impl Sharding {
    /// `replicated`, `manual`, `unknown`, `unreduced`, `maximal`, `tiled`, `named` or `tuple`.
    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        let kind = self.with_leaf(|leaf| match &leaf.placement {
            Placement::Replicated => "replicated",
            Placement::Manual => "manual",
            Placement::Unknown => "unknown",
            Placement::Unreduced(_) => "unreduced",
            Placement::Maximal(_) => "maximal",
            Placement::Tiled(_) => "tiled",
            Placement::Named(_) => "named",
        })?;
        Ok(kind.unwrap_or("tuple"))
    }

    /// The shardings as written: one, or one per leaf of a tuple.
    #[getter]
    fn leaves<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let count = if self.leaf.is_some() { 1 } else { self.read()?.leaves().len() };
        let leaf = |index| Sharding {
            held: Arc::clone(&self.held),
            span: self.span,
            leaf: Some(self.leaf.unwrap_or(index)),
        };
        let leaves: PyResult<Vec<_>> =
            (0..count).map(|index| Bound::new(py, leaf(index))).collect();
        PyTuple::new(py, leaves?)
    }

    /// Whether every device holds the whole array.
    #[getter]
    fn is_replicated(&self) -> PyResult<bool> {
        match self.with_leaf(|leaf| leaf.is_replicated())? {
            Some(replicated) => Ok(replicated),
            None => Ok(self.read()?.is_replicated()),
        }
    }

    /// Number of tiles along each dimension of the array; None if it is not divided.
    #[getter]
    fn tile_dimensions<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let dimensions = self.with_leaf(|leaf| leaf.tile_dimensions())?.flatten();
        dimensions.map(|dimensions| PyTuple::new(py, dimensions)).transpose()
    }

    /// Number of devices named by the sharding; None if it names none.
    #[getter]
    fn device_count(&self) -> PyResult<Option<u64>> {
        Ok(self.with_leaf(|leaf| leaf.device_count())?.flatten())
    }

    /// Returns the sharding in terms of the axes of `mesh`: the same tiles on the same devices.
    ///
    /// If this is impossible, the result shows the sharding as written, and `reason` explains why.
    /// Raises `ValueError` for several leaves: each has a spec of its own.
    fn spec(&self, py: Python<'_>, mesh: &Mesh) -> PyResult<PartitionSpec> {
        match self.with_leaf(|leaf| mesh.spec(py, leaf))? {
            Some(spec) => spec,
            None => Err(PyValueError::new_err("several leaves: use the spec of each leaf")),
        }
    }

    /// Returns the devices in row-major order of the tile grid; None if the sharding names none.
    ///
    /// Raises `ValueError` for more than `limit` devices.
    #[pyo3(signature = (limit=4_194_304))]
    fn devices<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let count = self.device_count()?;
        let devices = self.with_leaf(|leaf| leaf.devices(limit))?.flatten();
        if devices.is_none() && count.is_some_and(|count| count > limit as u64) {
            return Err(PyValueError::new_err("the sharding has more devices than the limit"));
        }
        devices.map(|devices| PyTuple::new(py, devices)).transpose()
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(if self.leaf.is_some() { 1 } else { self.read()?.leaves().len() })
    }

    fn __str__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, self.bytes())
    }

    fn __repr__(&self) -> String {
        let leaf = self.leaf.map_or(String::new(), |leaf| format!(" leaf {leaf} of"));
        format!("<Sharding{leaf} {}>", String::from_utf8_lossy(self.bytes()))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Sharding>().is_ok_and(|other| {
            let other = other.get();
            self.leaf == other.leaf && self.bytes() == other.bytes()
        })
    }

    fn __hash__(&self) -> u64 {
        hash_bytes(self.bytes())
    }
}

/// The device groups of a collective; expanded on demand.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ReplicaGroups {
    pub held: Arc<Held>,
    pub span: Span,
}

impl ReplicaGroups {
    fn read(&self) -> PyResult<CoreGroups<'_>> {
        match typed(&self.held, b"replica_groups", Opcode::Unknown, self.span)? {
            AttributeValue::ReplicaGroups(groups) => Ok(groups),
            _ => Err(PyValueError::new_err("not replica groups")),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.held.core.bytes(self.span)
    }
}

#[pymethods]
impl ReplicaGroups {
    /// `everyone`, `lists`, `iota` or `mesh`.
    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        Ok(match self.read()? {
            CoreGroups::Everyone => "everyone",
            CoreGroups::Lists(_) => "lists",
            CoreGroups::Iota { .. } => "iota",
            CoreGroups::Mesh { .. } => "mesh",
        })
    }

    /// Number of groups; None for a single group of all devices.
    #[getter]
    fn group_count(&self) -> PyResult<Option<u64>> {
        Ok(self.read()?.group_count())
    }

    /// Devices per group; None if the groups differ in size or the text does not list them.
    #[getter]
    fn group_size(&self) -> PyResult<Option<u64>> {
        Ok(self.read()?.group_size())
    }

    /// Returns all groups as tuples; None for a single group of all devices.
    ///
    /// Raises `ValueError` for more than `limit` devices.
    #[pyo3(signature = (limit=4_194_304))]
    fn expand<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let groups = self.read()?;
        if matches!(groups, CoreGroups::Everyone) {
            return Ok(None);
        }
        let lists = groups.expand(limit);
        let lists = lists
            .ok_or_else(|| PyValueError::new_err("device count unknown or above the limit"))?;
        let tuples: PyResult<Vec<_>> = lists.iter().map(|group| PyTuple::new(py, group)).collect();
        PyTuple::new(py, tuples?).map(Some)
    }

    fn __len__(&self) -> PyResult<usize> {
        let count = self.read()?.group_count().unwrap_or(0);
        usize::try_from(count).map_err(|_| PyValueError::new_err("too many groups"))
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyTuple>> {
        let groups = self.read()?;
        let count = i64::try_from(groups.group_count().unwrap_or(0)).unwrap_or(i64::MAX);
        let position = if index < 0 { index as i64 + count } else { index as i64 };
        if !(0..count).contains(&position) {
            return Err(PyIndexError::new_err("group index out of range"));
        }
        if let CoreGroups::Lists(lists) = &groups {
            return PyTuple::new(py, lists.get(position as usize).unwrap_or_default());
        }
        let size = groups.group_size().unwrap_or(0);
        if size > DEFAULT_LIMIT as u64 {
            return Err(PyValueError::new_err("too many devices in a group"));
        }
        PyTuple::new(
            py,
            (0..size).map_while(|i| groups.device(position as u64, i)).collect::<Vec<_>>(),
        )
    }

    fn __str__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, self.bytes())
    }

    fn __repr__(&self) -> String {
        format!("<ReplicaGroups {}>", String::from_utf8_lossy(self.bytes()))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<ReplicaGroups>().is_ok_and(|other| self.bytes() == other.get().bytes())
    }

    fn __hash__(&self) -> u64 {
        hash_bytes(self.bytes())
    }
}
