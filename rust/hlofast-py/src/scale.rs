//! `ScaleData`: the symbols of a module's dimensions, and the module with other sizes.

use crate::held::Held;
use crate::mesh::Mesh;
use crate::module::Module;
use hlofast::Options;
use hlofast::scale::{Attributed, Change, ScaleError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Role and why, size, what is added to the parameter's dimension, parameters with their dimensions,
/// axes, number of dimensions, number of loops.
type SymbolFields =
    ((&'static str, &'static str), i64, i64, Vec<(String, usize)>, Vec<String>, usize, usize);

/// Rows of matmuls with the factor of their work, and rows of matmuls whose work is unsure.
type Work = (Vec<(u32, f64)>, Vec<u32>);

/// A changed module, the number of rounded dimensions, rows of loops whose trip count is assumed,
/// rows of collectives whose groups stay, and work that shapes do not tell.
type Changed<'py> = (Bound<'py, Module>, usize, Vec<u32>, Vec<u32>, Work);

/// What the dimensions of a module are made of.
#[pyclass(frozen, module = "hlofast._core")]
pub struct ScaleData {
    held: Arc<Held>,
}

/// Attributes the dimensions of `module` on `mesh`, by default the mesh of its text.
#[pyfunction]
#[pyo3(signature = (module, mesh=None))]
pub fn _scale(module: &Bound<'_, Module>, mesh: Option<&Mesh>) -> ScaleData {
    ScaleData { held: module.get().held.on_mesh(mesh.map(|mesh| &mesh.core)) }
}

fn value_error(error: ScaleError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

impl ScaleData {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Attributed<'_>) -> Result<T, ScaleError> + Send,
    ) -> PyResult<T> {
        let (core, mesh) = (&self.held.core, self.held.stage.mesh());
        let attributed = || match self.is_whole() {
            true => Attributed::before_partitioning(core, mesh),
            false => Attributed::new(core, mesh),
        };
        py.detach(|| read(&attributed()?)).map_err(value_error)
    }

    /// The mesh whose axes divide dimensions; None before partitioning, where none does.
    fn mesh(&self) -> Option<&hlofast::comms::Mesh> {
        self.held.stage.mesh().filter(|_| !self.is_whole())
    }

    /// Whether shapes are those of all devices together.
    fn is_whole(&self) -> bool {
        self.held.stage.devices_together() > 1
    }
}

/// Unsure collectives, those of them that are attributed to nothing, lookups, and whether there are
/// arrays of positions by positions.
type Choices = (Vec<u32>, Vec<u32>, Vec<(i64, Vec<String>)>, bool);

/// Dimensions, those followed, assumed and constant, contradictions, and parameters without a sharding.
type Coverage = (usize, usize, usize, usize, usize, Vec<u32>, usize);

#[pymethods]
impl ScaleData {
    /// The symbols, those with a role first.
    ///
    /// Raises `ValueError` if the module has too many dimensions.
    fn symbols(&self, py: Python<'_>) -> PyResult<Vec<SymbolFields>> {
        let mesh = self.mesh();
        self.with(py, |attributed| {
            let fields = attributed.found.iter().map(|found| {
                let name = |axis: &usize| Some(mesh?.axes().get(*axis)?.name.clone());
                let axes = found.axes.iter().filter_map(name).collect();
                let parameters = found.parameters.clone();
                let role = (found.role.as_str(), found.evidence.as_str());
                (role, found.size, found.shift, parameters, axes, found.dimensions, found.loops)
            });
            Ok(fields.collect())
        })
    }

    /// Rows of collectives whose size is not followed from parameters; of these, rows of those whose
    /// size is not assumed to follow either; by lookup in a table, the table's rows and the axes that
    /// divide its other dimension; whether arrays of positions by positions are in memory.
    fn choices(&self, py: Python<'_>) -> PyResult<Choices> {
        let mesh = self.mesh();
        self.with(py, |attributed| {
            let rows = |own: Vec<hlofast::ir::Row>| own.into_iter().map(|row| row.0).collect();
            let (unsure, open) = (rows(attributed.unsure()), rows(attributed.unattributed()));
            let name = |axis: &usize| Some(mesh?.axes().get(*axis)?.name.clone());
            let lookups = attributed.lookups().into_iter();
            let lookups = lookups.map(|own| (own.rows, own.axes.iter().filter_map(name).collect()));
            Ok((unsure, open, lookups.collect(), attributed.is_quadratic()))
        })
    }

    /// Dimensions larger than 1: all, followed, assumed, constant; instructions that contradict each
    /// other, and the first of them; entry parameters without a known sharding.
    fn coverage(&self, py: Python<'_>) -> PyResult<Coverage> {
        self.with(py, |attributed| {
            let own = attributed.coverage();
            let first = attributed.conflicts().iter().take(64).map(|row| row.0).collect();
            let (all, followed) = (own.dimensions, own.followed);
            Ok((all, followed, own.assumed, own.constant, own.conflicts, first, own.unsharded))
        })
    }

    /// The module with new sizes of symbols, by their number, and another mesh.
    ///
    /// Raises `ValueError` if the change is impossible, with the reason.
    #[pyo3(signature = (symbols, mesh=None))]
    fn apply<'py>(
        &self,
        py: Python<'py>,
        symbols: Vec<(usize, i64)>,
        mesh: Option<&Mesh>,
    ) -> PyResult<Changed<'py>> {
        let change = Change { symbols, mesh: mesh.map(|mesh| mesh.core.clone()) };
        let scaled = self.with(py, |attributed| attributed.apply(&change))?;
        let options = Options { strictness: self.held.strictness, ..Options::default() };
        let held = Held::new(scaled.module, &options);
        let rows = |rows: Vec<hlofast::ir::Row>| rows.into_iter().map(|row| row.0).collect();
        let module = Module::object(py, &held)?;
        let mut factors: Vec<(u32, f64)> =
            scaled.work.factors.into_iter().map(|(row, factor)| (row.0, factor)).collect();
        factors.sort_by_key(|(row, _)| *row);
        let mut unsure: Vec<u32> = rows(scaled.work.unsure.into_iter().collect());
        unsure.sort_unstable();
        let (loops, groups) = (rows(scaled.assumed_loops), rows(scaled.unchanged_groups));
        Ok((module, scaled.rounded, loops, groups, (factors, unsure)))
    }
}
