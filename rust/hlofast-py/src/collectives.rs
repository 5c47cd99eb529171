//! `CollectivesData`: the core's collectives of a module, which `hlofast._collectives` puts into
//! tables.

use crate::held::{Held, Stage};
use crate::mesh::Mesh;
use crate::table_builder::to_list;
use hlofast::comms::{alpa_counters, grad_sync_channel_ids, host_transfers};
use hlofast::ir::Module;
use hlofast::table::{Columns, Origin, Sent, number, row_or_none};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// The collectives of a module.
#[pyclass(frozen, module = "hlofast._core")]
pub struct CollectivesData {
    stage: Arc<Stage>,
    /// The mesh that was given, or the one the module speaks of.
    mesh: Option<Mesh>,
}

impl CollectivesData {
    /// Without `mesh` it is that of `held`.
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
        self.sent().found.collectives.len()
    }

    /// Names and columns of the table: one row per collective and phase.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, py.detach(|| self.sent().columns(self.core())))
    }

    /// Names and columns of the table of the arrays that collectives move.
    fn pieces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let module = self.core();
        let origin = py.detach(|| Origin::new(module));
        let mut built = Columns::default();
        let each = || {
            self.sent().found.collectives.iter().flat_map(|collective| {
                let range = collective.pieces.start as usize..collective.pieces.end as usize;
                self.sent().found.pieces[range].iter().map(move |piece| (collective, piece))
            })
        };
        built.rows("instruction", each().map(|(c, _)| c.row));
        built.rows("array", each().map(|(_, piece)| piece.row));
        built.numbers("payload_in", each().map(|(_, piece)| number(Some(piece.bytes))));
        built.texts("moved", each().map(|(_, piece)| piece.moved.as_str()));
        built.numbers("source", each().map(|(_, piece)| row_or_none(piece.source)));
        built.texts("tensor", each().map(|(_, piece)| origin.tensor(piece)));
        to_list(py, built)
    }

    /// Names and columns of the table of all instructions that collectives are written as.
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut built = Columns::default();
        let each = || {
            self.sent().found.collectives.iter().flat_map(|collective| {
                let range = collective.members.start as usize..collective.members.end as usize;
                self.sent().found.members[range].iter().map(move |row| (collective.row, *row))
            })
        };
        built.rows("instruction", each().map(|(first, _)| first));
        built.rows("member", each().map(|(_, row)| row));
        to_list(py, built)
    }

    /// The mesh, given or derived.
    #[getter]
    fn mesh(&self) -> Option<Mesh> {
        self.mesh.clone()
    }

    /// By row of the table: the numbers of the axes, each once.
    fn axis_numbers(&self) -> Vec<Vec<usize>> {
        let of = |number: usize| {
            let parts =
                self.sent().along.get(number).map(|found| &found.parts[..]).unwrap_or_default();
            let mut axes: Vec<usize> = parts.iter().map(|part| part.axis).collect();
            axes.dedup();
            axes
        };
        self.sent().entries().map(|(number, _, _)| of(number)).collect()
    }

    /// By row of the table: why there are no axes, empty where there are.
    fn mismatches(&self) -> Vec<String> {
        let of = |number: usize| Some(self.sent().along.get(number)?.mismatch?.to_string());
        self.sent().entries().map(|(number, _, _)| of(number).unwrap_or_default()).collect()
    }

    /// Rows that send to the host or receive from it.
    fn host_transfers(&self) -> Vec<u32> {
        host_transfers(self.core()).into_iter().map(|row| row.0).collect()
    }

    /// Alpa's counters: total, all-reduce, all-gather, reduce-scatter, all-to-all.
    fn alpa_counters(&self, ignore_scalars: bool) -> (u64, u64, u64, u64, u64) {
        let found = alpa_counters(self.core(), ignore_scalars);
        let (gathers, scatters) = (found.all_gather, found.reduce_scatter);
        (found.total, found.all_reduce, gathers, scatters, found.all_to_all)
    }

    /// The channels of gradient synchronisation, in Alpa's form.
    fn grad_sync_channel_ids(&self) -> String {
        grad_sync_channel_ids(self.core())
    }
}
