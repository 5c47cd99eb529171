//! `StagesData`: the core's pipeline stages, which `hlofast._stages` formats as tables.

use crate::held::Stage;
use crate::table_builder::to_list;
use hlofast::ir::{Module, Row};
use hlofast::stages::{Options, Stages};
use hlofast::table;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::Arc;

/// The pipeline stages of a module.
#[pyclass(frozen, module = "hlofast._core")]
pub struct StagesData {
    stage: Arc<Stage>,
    stages: Stages,
}

impl StagesData {
    pub fn new(stage: Arc<Stage>, most_moved: Option<f64>) -> PyResult<Self> {
        let mut options = Options::default();
        if let Some(share) = most_moved {
            if !(0.0..=1.0).contains(&share) {
                let text = format!("most_moved must be between 0 and 1, not {share}");
                return Err(PyValueError::new_err(text));
            }
            options.most_moved = share;
        }
        let stages = stage.stages_with(&options);
        Ok(Self { stage, stages })
    }

    fn module(&self) -> &Module {
        self.stage.module()
    }

    fn values<'py>(&self, py: Python<'py>, rows: &[Row]) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::stage_values(&self.stage.origin(), rows))
    }
}

#[pymethods]
impl StagesData {
    /// Fields and columns of the table of markers.
    fn markers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::markers(self.module(), &self.stages))
    }

    /// The sizes in the configuration of each marker.
    fn marker_sizes(&self) -> Vec<Option<Vec<i64>>> {
        self.stages.markers.iter().map(|marker| marker.sizes.clone()).collect()
    }

    /// Fields and columns of the table of sections.
    fn sections<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::sections(&self.stages))
    }

    /// Fields and columns of the table of values kept from forward to backward.
    fn stash<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::stash(&self.stage.origin(), &self.stages))
    }

    /// Fields and columns of the table of reductions over meshes.
    fn cross_mesh<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::cross_mesh(self.module(), &self.stages))
    }

    /// Fields and columns of the table of divisions by the number of micro-batches.
    fn divisions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::divisions(&self.stage.origin(), &self.stages))
    }

    /// Number of micro-batches per step; None if unknown.
    #[getter]
    fn micro_batches(&self) -> Option<u64> {
        self.stages.micro_batches.count
    }

    /// The values that the first forward section receives, and the cheapest cut nearby; None
    /// without such a section.
    fn boundary<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(boundary) = &self.stages.boundary else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("section", &self.stages.sections[boundary.section as usize].bounds.name)?;
        dict.set_item("received", self.values(py, &boundary.received)?)?;
        dict.set_item("received_bytes", boundary.received_bytes)?;
        dict.set_item("inputs", self.values(py, &boundary.inputs)?)?;
        dict.set_item("input_bytes", boundary.input_bytes)?;
        dict.set_item("flops", boundary.flops)?;
        dict.set_item("is_partial", boundary.is_partial)?;
        let cut = match &boundary.cut {
            None => None,
            Some(cut) => {
                let record = PyDict::new(py);
                record.set_item("after", cut.after.0)?;
                record.set_item("values", self.values(py, &cut.values)?)?;
                record.set_item("bytes", cut.bytes)?;
                record.set_item("moved_flops", cut.moved_flops)?;
                record.set_item("moved_instructions", cut.moved)?;
                Some(record)
            }
        };
        dict.set_item("cut", cut)?;
        Ok(Some(dict))
    }

    /// Bytes of state, of stash, of weight copies in the stash, and of the peak of a micro-batch
    /// without the state; None if memory cannot be analysed.
    fn memory(&self) -> Option<(u64, u64, u64, Option<i64>)> {
        let memory = self.stages.memory.as_ref()?;
        Some((memory.state, memory.stash, memory.weight_copies, memory.working_peak))
    }
}
