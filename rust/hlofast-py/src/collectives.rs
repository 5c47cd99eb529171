//! `CollectivesData`: the core's collectives of a module, which `hlofast._collectives` puts into
//! tables.

use crate::held::Held;
use crate::mesh::Mesh;
use crate::scopes::ScopeTexts;
use crate::table_builder::{Origin, TableBuilder, number, row_or_none};
use hlofast::comms::{
    Along, Collective, Collectives, along, alpa_counters, derive_mesh, grad_sync_channel_ids,
    host_transfers,
};
use hlofast::cost::PhaseExecutions;
use hlofast::graph::Attribution;
use hlofast::ir::Row;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// The collectives of a module.
#[pyclass(frozen, module = "hlofast._core")]
pub struct CollectivesData {
    pub held: Arc<Held>,
    pub found: Arc<Collectives>,
    /// Scope of each entry of each collective's executions.
    scopes: Vec<Vec<u8>>,
    /// Of each collective: whether it may be executed more often than that.
    is_lower_bound: Vec<bool>,
    /// The mesh that was given, or the one the module speaks of.
    mesh: Option<Mesh>,
    /// Where on the mesh each collective goes.
    pub along: Vec<Along>,
}

impl CollectivesData {
    /// `uncertain` has, by computation, the executions inside loops of unknown trip count. Without
    /// `mesh` it is the one that the module speaks of.
    pub fn new(
        held: Arc<Held>,
        found: Arc<Collectives>,
        attribution: &Attribution,
        uncertain: &[i128],
        mesh: Option<Mesh>,
    ) -> Self {
        let texts = ScopeTexts::new(&held.core, &attribution.scopes);
        let executions = found.collectives.iter().flat_map(|collective| &collective.executions);
        let scopes = executions.map(|entry| texts.text(entry.scope)).collect();
        let is_open = |collective: &Collective| {
            let place = held.core.computation_of(collective.outer).0 as usize;
            uncertain.get(place).is_some_and(|runs| *runs > 0)
        };
        let is_lower_bound = found.collectives.iter().map(is_open).collect();
        let mesh = mesh.or_else(|| derive_mesh(&held.core).map(Mesh::from));
        let along = match &mesh {
            Some(mesh) => along(&held.core, &mesh.core, &found),
            None => vec![Along::default(); found.collectives.len()],
        };
        Self { held, found, scopes, is_lower_bound, mesh, along }
    }

    /// Devices that take part in one exchange, the mesh's where the text does not say.
    pub fn group_size(&self, number: usize) -> Option<u64> {
        let own = self.found.collectives.get(number).and_then(|found| found.group_size);
        own.or_else(|| self.along.get(number)?.group_size)
    }

    /// Bytes each device sends in one execution, around a ring of the group; -1 if unknown.
    pub fn wire_bytes(&self, index: usize) -> i64 {
        let bytes = || {
            let collective = self.found.collectives.get(index)?;
            if collective.kind.is_point_to_point() {
                return collective.payload();
            }
            Some(collective.kind.ring_wire_bytes(collective.payload()?, self.group_size(index)?))
        };
        number(bytes())
    }

    /// What people call the first of the arrays that `collective` moves most bytes of.
    pub fn tensor(&self, origin: &Origin<'_>, collective: &Collective) -> Vec<u8> {
        let range = collective.pieces.start as usize..collective.pieces.end as usize;
        let pieces = self.found.pieces.get(range).unwrap_or_default();
        let piece = pieces.iter().find(|piece| piece.moved == collective.moved);
        piece.map(|piece| origin.tensor(piece)).unwrap_or_default()
    }

    /// One entry per collective and phase in which it is executed.
    fn entries(&self) -> impl Iterator<Item = (usize, &Collective, &PhaseExecutions)> + Clone {
        self.found.collectives.iter().enumerate().flat_map(|(number, collective)| {
            collective.executions.iter().map(move |entry| (number, collective, entry))
        })
    }
}

/// What executing something of `size` bytes `count` times moves; -1 if either is not known.
fn total(size: i64, count: Option<i64>) -> i64 {
    match count {
        Some(count) if size >= 0 => size.saturating_mul(count),
        _ => -1,
    }
}

/// The row that says where `collective` comes from: what wraps it if it has no origin itself.
fn named(origin: &Origin<'_>, collective: &Collective) -> Row {
    let has_file = origin.source_file(collective.row).is_some();
    if has_file || origin.op_name(collective.row).is_some() {
        collective.row
    } else {
        collective.outer
    }
}

#[pymethods]
impl CollectivesData {
    fn __len__(&self) -> usize {
        self.found.collectives.len()
    }

    /// Names and columns of the table: one row per collective and phase.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let module = &*self.held.core;
        let origin = py.detach(|| Origin::new(module));
        let all = &self.found;
        let built = TableBuilder::new(py);
        let entries = || self.entries();
        let each = || entries().map(|(_, collective, _)| collective);
        built.rows("instruction", each().map(|c| c.row))?;
        built.texts("name", each().map(|c| module.instruction_name(c.row).to_vec()))?;
        built.texts(
            "computation",
            each().map(|c| module.computation_name(module.computation_of(c.outer)).to_vec()),
        )?;
        built.rows("scheduled_as", each().map(|c| c.outer))?;
        built.numbers("done", each().map(|c| row_or_none(c.done)))?;
        built.texts("kind", each().map(|c| c.kind.as_str().into()))?;
        built.texts("written_as", each().map(|c| c.written_as.as_str().into()))?;
        built.numbers("channel_id", each().map(|c| c.channel.unwrap_or(-1)))?;
        let groups = |c: &Collective| {
            c.groups.and_then(|index| all.groups.get(index as usize)).map(|found| found.to_text())
        };
        built.texts("groups", each().map(|c| groups(c).unwrap_or_default().into_bytes()))?;
        let along = |number: usize| self.along.get(number);
        let axes = entries().map(|(n, _, _)| along(n).map(|a| a.axes.clone().into_bytes()));
        built.texts("axes", axes.map(Option::unwrap_or_default))?;
        let shift = entries().map(|(n, _, _)| along(n).map(|a| a.shift.clone().into_bytes()));
        built.texts("shift", shift.map(Option::unwrap_or_default))?;
        let network = |n: usize| along(n)?.network.map(|network| network.as_str().into());
        built.texts("network", entries().map(|(n, _, _)| network(n).unwrap_or_default()))?;
        let sizes = entries().map(|(n, _, _)| number(self.group_size(n)));
        built.numbers("group_size", sizes)?;
        built.numbers("payload_in", each().map(|c| number(c.payload_in)))?;
        built.numbers("payload_out", each().map(|c| number(c.payload_out)))?;
        built.numbers("payload", each().map(|c| number(c.payload())))?;
        built.numbers("wire_bytes", entries().map(|(n, _, _)| self.wire_bytes(n)))?;
        built.numbers("multiplicity", entries().map(|(_, _, e)| e.count.unwrap_or(-1)))?;
        let open = entries().map(|(number, _, _)| self.is_lower_bound[number]);
        built.flags("is_lower_bound", open)?;
        built.numbers(
            "total_payload",
            entries().map(|(_, c, e)| total(number(c.payload()), e.count)),
        )?;
        built.numbers(
            "total_wire_bytes",
            entries().map(|(n, _, e)| total(self.wire_bytes(n), e.count)),
        )?;
        let trips = |c: &Collective| if c.is_in_loop { number(c.trip_count) } else { 1 };
        built.numbers("trip_count", each().map(trips))?;
        let peeled = |c: &Collective| {
            let found = all.collectives.get(c.peeled_from? as usize)?;
            Some(found.row)
        };
        built.numbers("peeled_from", each().map(|c| row_or_none(peeled(c))))?;
        built.texts("moved", each().map(|c| c.moved.as_str().into()))?;
        let pieces = |c: &Collective| &all.pieces[c.pieces.start as usize..c.pieces.end as usize];
        built.numbers("tensors", each().map(|c| pieces(c).len() as i64))?;
        built.texts("tensor", each().map(|c| self.tensor(&origin, c)))?;
        built.texts("phase", entries().map(|(_, _, e)| e.phase.as_str().into()))?;
        built.flags("is_phase_inferred", each().map(|c| c.is_phase_inferred))?;
        built.texts("scope", self.scopes.iter().cloned())?;
        let named = |c: &Collective| named(&origin, c);
        let file = |c: &Collective| origin.source_file(named(c)).unwrap_or_default();
        built.texts("op_name", each().map(|c| origin.op_name(named(c)).unwrap_or_default()))?;
        built.texts("source_file", each().map(file))?;
        built.numbers("source_line", each().map(|c| origin.source_line(named(c))))?;
        let between = |c: &Collective| c.overlap.map_or(-1, |o| i64::from(o.instructions));
        built.numbers("instructions_between", each().map(between))?;
        let flops =
            |c: &Collective| c.overlap.map_or(-1, |o| i64::try_from(o.flops).unwrap_or(i64::MAX));
        built.numbers("flops_between", each().map(flops))?;
        Ok(built.finish())
    }

    /// Names and columns of the table of the arrays that collectives move.
    fn pieces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let module = &*self.held.core;
        let origin = py.detach(|| Origin::new(module));
        let built = TableBuilder::new(py);
        let each = || {
            self.found.collectives.iter().flat_map(|collective| {
                let range = collective.pieces.start as usize..collective.pieces.end as usize;
                self.found.pieces[range].iter().map(move |piece| (collective, piece))
            })
        };
        built.rows("instruction", each().map(|(c, _)| c.row))?;
        built.rows("array", each().map(|(_, piece)| piece.row))?;
        built.numbers("payload_in", each().map(|(_, piece)| number(Some(piece.bytes))))?;
        built.texts("moved", each().map(|(_, piece)| piece.moved.as_str().into()))?;
        built.numbers("source", each().map(|(_, piece)| row_or_none(piece.source)))?;
        built.texts("tensor", each().map(|(_, piece)| origin.tensor(piece)))?;
        Ok(built.finish())
    }

    /// Names and columns of the table of all instructions that collectives are written as.
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let built = TableBuilder::new(py);
        let each = || {
            self.found.collectives.iter().flat_map(|collective| {
                let range = collective.members.start as usize..collective.members.end as usize;
                self.found.members[range].iter().map(move |row| (collective.row, *row))
            })
        };
        built.rows("instruction", each().map(|(first, _)| first))?;
        built.rows("member", each().map(|(_, row)| row))?;
        Ok(built.finish())
    }

    /// The mesh, given or derived.
    #[getter]
    fn mesh(&self) -> Option<Mesh> {
        self.mesh.clone()
    }

    /// By row of the table: the numbers of the axes, each once.
    fn axis_numbers(&self) -> Vec<Vec<usize>> {
        let of = |number: usize| {
            let parts = self.along.get(number).map(|found| &found.parts[..]).unwrap_or_default();
            let mut axes: Vec<usize> = parts.iter().map(|part| part.axis).collect();
            axes.dedup();
            axes
        };
        self.entries().map(|(number, _, _)| of(number)).collect()
    }

    /// By row of the table: why there are no axes, empty where there are.
    fn mismatches(&self) -> Vec<String> {
        let of = |number: usize| Some(self.along.get(number)?.mismatch?.to_string());
        self.entries().map(|(number, _, _)| of(number).unwrap_or_default()).collect()
    }

    /// Rows that send to the host or receive from it.
    fn host_transfers(&self) -> Vec<u32> {
        host_transfers(&self.held.core).into_iter().map(|row| row.0).collect()
    }

    /// Alpa's counters: total, all-reduce, all-gather, reduce-scatter, all-to-all.
    fn alpa_counters(&self, ignore_scalars: bool) -> (u64, u64, u64, u64, u64) {
        let found = alpa_counters(&self.held.core, ignore_scalars);
        let (gathers, scatters) = (found.all_gather, found.reduce_scatter);
        (found.total, found.all_reduce, gathers, scatters, found.all_to_all)
    }

    /// The channels of gradient synchronisation, in Alpa's form.
    fn grad_sync_channel_ids(&self) -> String {
        grad_sync_channel_ids(&self.held.core)
    }
}
