//! The table of collectives: one row per collective and phase.

use super::{Columns, Origin, ScopeTexts, number, row_or_none};
use crate::comms::{Along, Collective, Collectives, Mesh, along};
use crate::cost::PhaseExecutions;
use crate::flow::Attribution;
use crate::ir::{Module, Row};
use std::sync::Arc;

/// The collectives of a module, and where on a mesh each goes.
#[derive(Debug)]
pub struct Sent {
    /// The collectives.
    pub found: Arc<Collectives>,
    /// Where on the mesh each goes.
    pub along: Vec<Along>,
    /// Scope of each entry of each collective's executions.
    scopes: Vec<Vec<u8>>,
    /// Of each collective: whether it may be executed more often than that.
    is_lower_bound: Vec<bool>,
}

impl Sent {
    /// `uncertain` has, by computation, the executions inside loops of unknown trip count.
    pub fn new(
        module: &Module,
        found: Arc<Collectives>,
        attribution: &Attribution,
        uncertain: &[i128],
        mesh: Option<&Mesh>,
    ) -> Self {
        let texts = ScopeTexts::new(module, &attribution.scopes);
        let executions = found.collectives.iter().flat_map(|collective| &collective.executions);
        let scopes = executions.map(|entry| texts.text(entry.scope)).collect();
        let is_open = |collective: &Collective| {
            let place = module.computation_of(collective.outer).0 as usize;
            uncertain.get(place).is_some_and(|runs| *runs > 0)
        };
        let is_lower_bound = found.collectives.iter().map(is_open).collect();
        let along = match mesh {
            Some(mesh) => along(module, mesh, &found),
            None => vec![Along::default(); found.collectives.len()],
        };
        Self { found, along, scopes, is_lower_bound }
    }

    /// Bytes held on the heap, without those of the collectives and of texts of axes.
    pub fn heap_bytes(&self) -> usize {
        let texts = self.scopes.iter().map(|text| text.capacity() + size_of::<Vec<u8>>());
        self.along.capacity() * size_of::<Along>()
            + texts.sum::<usize>()
            + self.is_lower_bound.capacity()
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
    pub fn entries(&self) -> impl Iterator<Item = (usize, &Collective, &PhaseExecutions)> + Clone {
        self.found.collectives.iter().enumerate().flat_map(|(number, collective)| {
            collective.executions.iter().map(move |entry| (number, collective, entry))
        })
    }

    /// Bytes of all executions of an entry: payload, and what each device sends; -1 if unknown.
    pub fn totals(&self, entry: (usize, &Collective, &PhaseExecutions)) -> (i64, i64) {
        let (index, collective, runs) = entry;
        let payload = total(number(collective.payload()), runs.count);
        (payload, total(self.wire_bytes(index), runs.count))
    }

    /// The columns of the table.
    pub fn columns(&self, module: &Module) -> Columns {
        let origin = Origin::new(module);
        let all = &self.found;
        let mut built = Columns::default();
        let entries = || self.entries();
        let each = || entries().map(|(_, collective, _)| collective);
        built.rows("instruction", each().map(|c| c.row));
        built.texts("name", each().map(|c| module.instruction_name(c.row).to_vec()));
        built.texts(
            "computation",
            each().map(|c| module.computation_name(module.computation_of(c.outer)).to_vec()),
        );
        built.rows("scheduled_as", each().map(|c| c.outer));
        built.numbers("done", each().map(|c| row_or_none(c.done)));
        built.texts("kind", each().map(|c| c.kind.as_str()));
        built.texts("written_as", each().map(|c| c.written_as.as_str()));
        built.numbers("channel_id", each().map(|c| c.channel.unwrap_or(-1)));
        let groups = |c: &Collective| {
            c.groups.and_then(|index| all.groups.get(index as usize)).map(|found| found.to_text())
        };
        built.texts("groups", each().map(|c| groups(c).unwrap_or_default()));
        let along = |number: usize| self.along.get(number);
        let axes = entries().map(|(n, _, _)| along(n).map(|a| a.axes.clone()));
        built.texts("axes", axes.map(Option::unwrap_or_default));
        let shift = entries().map(|(n, _, _)| along(n).map(|a| a.shift.clone()));
        built.texts("shift", shift.map(Option::unwrap_or_default));
        let network = |n: usize| along(n)?.network.map(|network| network.as_str());
        built.texts("network", entries().map(|(n, _, _)| network(n).unwrap_or_default()));
        let sizes = entries().map(|(n, _, _)| number(self.group_size(n)));
        built.numbers("group_size", sizes);
        built.numbers("payload_in", each().map(|c| number(c.payload_in)));
        built.numbers("payload_out", each().map(|c| number(c.payload_out)));
        built.numbers("payload", each().map(|c| number(c.payload())));
        built.numbers("wire_bytes", entries().map(|(n, _, _)| self.wire_bytes(n)));
        built.numbers("multiplicity", entries().map(|(_, _, e)| e.count.unwrap_or(-1)));
        let open = entries().map(|(number, _, _)| self.is_lower_bound[number]);
        built.flags("is_lower_bound", open);
        built.numbers("total_payload", entries().map(|entry| self.totals(entry).0));
        built.numbers("total_wire_bytes", entries().map(|entry| self.totals(entry).1));
        let trips = |c: &Collective| if c.is_in_loop { number(c.trip_count) } else { 1 };
        built.numbers("trip_count", each().map(trips));
        let peeled = |c: &Collective| {
            let found = all.collectives.get(c.peeled_from? as usize)?;
            Some(found.row)
        };
        built.numbers("peeled_from", each().map(|c| row_or_none(peeled(c))));
        built.texts("moved", each().map(|c| c.moved.as_str()));
        let pieces = |c: &Collective| &all.pieces[c.pieces.start as usize..c.pieces.end as usize];
        built.numbers("tensors", each().map(|c| pieces(c).len() as i64));
        built.texts("tensor", each().map(|c| self.tensor(&origin, c)));
        built.texts("phase", entries().map(|(_, _, e)| e.phase.as_str()));
        built.flags("is_phase_inferred", each().map(|c| c.is_phase_inferred));
        built.texts("scope", self.scopes.iter().cloned());
        let named = |c: &Collective| named(&origin, c);
        let file = |c: &Collective| origin.source_file(named(c)).unwrap_or_default();
        built.texts("op_name", each().map(|c| origin.op_name(named(c)).unwrap_or_default()));
        built.texts("source_file", each().map(file));
        built.numbers("source_line", each().map(|c| origin.source_line(named(c))));
        let between = |c: &Collective| c.overlap.map_or(-1, |o| i64::from(o.instructions));
        built.numbers("instructions_between", each().map(between));
        let flops =
            |c: &Collective| c.overlap.map_or(-1, |o| i64::try_from(o.flops).unwrap_or(i64::MAX));
        built.numbers("flops_between", each().map(flops));
        built
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
