//! `CollectivesData`: the core's collectives of a module, which `hlofast._collectives` formats as
//! tables.

use crate::held::{Held, Stage};
use crate::mesh::Mesh;
use crate::table_builder::to_list;
use hlofast::comms::{alpa_counters, grad_sync_channel_ids, host_transfers};
use hlofast::ir::Module;
use hlofast::table::Sent;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// The collectives of a module.
#[pyclass(frozen, module = "hlofast._core")]
pub struct CollectivesData {
    stage: Arc<Stage>,
    /// The given mesh, otherwise the mesh derived from the module.
    mesh: Option<Mesh>,
}

impl CollectivesData {
    /// Without `mesh`, the mesh of `held` is used.
    pub fn new(held: &Arc<Held>, mesh: Option<Mesh>) -> Self {
        let stage = Arc::clone(&held.on_mesh(mesh.as_ref().map(|mesh| &mesh.core)).stage);
        stage.sent();
        let mesh = mesh.or_else(|| Mesh::of(&stage));
        Self { stage, mesh }
    }

    fn sent(&self) -> &Sent {
        self.stage.sent()
    }

    fn core(&self) -> &Module {
        self.stage.module()
    }
}

#[pymethods]
impl CollectivesData {
    fn __len__(&self) -> usize {
        self.sent().collectives.collectives.len()
    }

    /// Fields and columns of the table: one row per collective and phase.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, py.detach(|| self.sent().columns(&self.stage.origin())))
    }

    /// Fields and columns of the table of the arrays that collectives exchange.
    fn pieces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, py.detach(|| self.sent().pieces(&self.stage.origin())))
    }

    /// Fields and columns of the table of all instructions that implement collectives.
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, py.detach(|| self.sent().members()))
    }

    /// The mesh, given or derived; None if there is neither.
    #[getter]
    fn mesh(&self) -> Option<Mesh> {
        self.mesh.clone()
    }

    /// The axis numbers of each row of the table, without duplicates.
    fn axis_numbers(&self) -> Vec<Vec<usize>> {
        let of = |number: usize| {
            let parts =
                self.sent().along.get(number).map(|along| &along.parts[..]).unwrap_or_default();
            let mut axes: Vec<usize> = parts.iter().map(|part| part.axis).collect();
            axes.dedup();
            axes
        };
        self.sent().entries().map(|(number, _, _)| of(number)).collect()
    }

    /// For each row of the table, the reason why it has no axes; empty if it has axes.
    fn mismatches(&self) -> Vec<String> {
        let of = |number: usize| Some(self.sent().along.get(number)?.mismatch?.to_string());
        self.sent().entries().map(|(number, _, _)| of(number).unwrap_or_default()).collect()
    }

    /// Rows that send to or receive from the host.
    fn host_transfers(&self) -> Vec<u32> {
        host_transfers(self.core()).into_iter().map(|row| row.0).collect()
    }

    /// Alpa's counters: total, all-reduce, all-gather, reduce-scatter, all-to-all.
    fn alpa_counters(&self, ignore_scalars: bool) -> (u64, u64, u64, u64, u64) {
        let counters = alpa_counters(self.core(), ignore_scalars);
        let (gathers, scatters) = (counters.all_gather, counters.reduce_scatter);
        (counters.total, counters.all_reduce, gathers, scatters, counters.all_to_all)
    }

    /// The channel ids of gradient synchronisation, in Alpa's format.
    fn grad_sync_channel_ids(&self) -> String {
        grad_sync_channel_ids(self.core())
    }
}
