//! The table of collectives: one row per collective and phase.

use super::{Columns, Field, Origin, Texts, Values, common, number, row_or_none};
use crate::comms::{Along, Collective, Collectives, Mesh, along};
use crate::cost::PhaseExecutions;
use crate::flow::Attribution;
use crate::ir::{ElementType, Module, Row};
use smallvec::SmallVec;
use std::sync::Arc;

/// The collectives of a module and their places on a mesh.
#[derive(Debug)]
pub struct Sent {
    /// The collectives.
    pub collectives: Arc<Collectives>,
    /// The place of each collective on the mesh.
    pub along: Vec<Arc<Along>>,
    /// Scope of each entry of each collective's executions.
    scopes: Texts,
    /// By collective: whether there may be more executions than counted.
    is_lower_bound: Vec<bool>,
}

impl Sent {
    /// Builds the table. `uncertain` gives, by computation, the executions inside loops of unknown
    /// trip count.
    pub fn new(
        origin: &Origin<'_>,
        collectives: Arc<Collectives>,
        attribution: &Attribution,
        uncertain: &[i128],
        mesh: Option<&Mesh>,
    ) -> Self {
        let module = origin.module;
        let texts = origin.scopes(attribution);
        let executions =
            collectives.collectives.iter().flat_map(|collective| &collective.executions);
        let mut scopes = Texts::default();
        executions.for_each(|entry| scopes.push_written(|out| texts.write(entry.scope, out)));
        let is_open = |collective: &Collective| {
            let place = module.computation_of(collective.outer).0 as usize;
            uncertain.get(place).is_some_and(|runs| *runs > 0)
        };
        let is_lower_bound = collectives.collectives.iter().map(is_open).collect();
        let along = match mesh {
            Some(mesh) => along(module, mesh, &collectives),
            None => vec![Arc::default(); collectives.collectives.len()],
        };
        Self { collectives, along, scopes, is_lower_bound }
    }

    /// Bytes held on the heap, excluding the collectives and their places on the mesh.
    pub fn heap_bytes(&self) -> usize {
        self.along.capacity() * size_of::<Arc<Along>>()
            + self.scopes.heap_bytes()
            + self.is_lower_bound.capacity()
    }

    /// Devices in one exchange; the mesh's device count if the text does not tell.
    pub fn group_size(&self, number: usize) -> Option<u64> {
        let own =
            self.collectives.collectives.get(number).and_then(|collective| collective.group_size);
        own.or_else(|| self.along.get(number)?.group_size)
    }

    /// Bytes that each device sends in one execution, around a ring of the group; -1 if unknown.
    pub fn wire_bytes(&self, index: usize) -> i64 {
        let bytes = || {
            let collective = self.collectives.collectives.get(index)?;
            if collective.kind.is_point_to_point() {
                return collective.payload();
            }
            Some(collective.kind.ring_wire_bytes(collective.payload()?, self.group_size(index)?))
        };
        number(bytes())
    }

    /// Appends the display name of the first array of the tensor kind that makes up most of `collective`'s
    /// bytes.
    pub fn write_tensor(&self, origin: &Origin<'_>, collective: &Collective, out: &mut Vec<u8>) {
        let range = collective.pieces.start as usize..collective.pieces.end as usize;
        let mut pieces = self.collectives.pieces.get(range).unwrap_or_default().iter();
        if let Some(piece) = pieces.find(|piece| piece.moved == collective.moved) {
            origin.write_tensor(piece, out);
        }
    }

    /// One entry per collective and phase that executes it.
    pub fn entries(&self) -> impl Iterator<Item = (usize, &Collective, &PhaseExecutions)> + Clone {
        self.collectives.collectives.iter().enumerate().flat_map(|(number, collective)| {
            collective.executions.iter().map(move |entry| (number, collective, entry))
        })
    }

    /// Payload and wire bytes of all calls of an entry; -1 if unknown.
    pub fn totals(&self, entry: (usize, &Collective, &PhaseExecutions)) -> (i64, i64) {
        let (index, collective, runs) = entry;
        let payload = total(number(collective.payload()), runs.count);
        (payload, total(self.wire_bytes(index), runs.count))
    }

    /// The columns of the table.
    pub fn columns(&self, origin: &Origin<'_>) -> Columns {
        let module = origin.module;
        let all = &self.collectives;
        let mut built = Columns::default();
        let entries = || self.entries();
        let each = || entries().map(|(_, collective, _)| collective);
        built.rows(common::instruction(), each().map(|c| c.row));
        built.texts(common::name(), each().map(|c| module.instruction_name(c.row)));
        built.texts(
            common::computation(),
            each().map(|c| module.computation_name(module.computation_of(c.outer))),
        );
        built.rows(
            Field::instruction(
                "scheduled_as",
                "The row in the schedule: the collective itself, or the instruction that wraps it.",
            ),
            each().map(|c| c.outer),
        );
        built.numbers(
            Field::instruction("done", "The row that completes an asynchronous collective.")
                .nullable(),
            each().map(|c| row_or_none(c.done)),
        );
        built.texts(Field::word("kind", "The kind of collective: all-reduce, all-gather, reduce-scatter, all-to-all, collective-permute and so on."), each().map(|c| c.kind.as_str()));
        built.texts(
            Field::word(
                "written_as",
                "The kind of collective written in the text; its effect may be another kind.",
            ),
            each().map(|c| c.written_as.as_str()),
        );
        built.numbers(common::channel_id(), each().map(|c| c.channel.unwrap_or(-1)));
        let of_groups: Vec<String> = all.groups.iter().map(|groups| groups.to_text()).collect();
        let groups = |c: &Collective| c.groups.and_then(|index| of_groups.get(index as usize));
        built.texts(
            Field::text("groups", "The groups of devices that communicate with each other.")
                .nullable(),
            each().map(|c| groups(c).map_or("", String::as_str)),
        );
        let along = |number: usize| self.along.get(number);
        let axes = entries().map(|(n, _, _)| along(n).map(|a| &a.axes[..]));
        built.texts(common::axes(), axes.map(Option::unwrap_or_default));
        let shift = entries().map(|(n, _, _)| along(n).map(|a| &a.shift[..]));
        built.texts(
            Field::text("shift", "For a permute: the mesh axes and the shift along each.")
                .nullable(),
            shift.map(Option::unwrap_or_default),
        );
        let network = |n: usize| along(n)?.network.map(|network| network.as_str());
        built.texts(
            Field::word(
                "network",
                "The slowest network level that the collective uses, \
            if the mesh has hosts or slices.",
            )
            .nullable(),
            entries().map(|(n, _, _)| network(n).unwrap_or_default()),
        );
        let sizes = entries().map(|(n, _, _)| number(self.group_size(n)));
        built.numbers(common::group_size(), sizes);
        built.numbers(common::payload_in(), each().map(|c| number(c.payload_in)));
        built.numbers(common::payload_out(), each().map(|c| number(c.payload_out)));
        built.numbers(
            Field::bytes(
                "payload",
                "Bytes of the whole array: the result for an all-gather, the operands for other kinds.",
            )
            .nullable(),
            each().map(|c| number(c.payload())),
        );
        built.numbers(common::wire_bytes(), entries().map(|(n, _, _)| self.wire_bytes(n)));
        built.numbers(common::multiplicity(), entries().map(|(_, _, e)| e.count.unwrap_or(-1)));
        let open = entries().map(|(number, _, _)| self.is_lower_bound[number]);
        built.flags(common::is_lower_bound(), open);
        built.numbers(
            Field::bytes("total_payload", "Payload of all calls.")
                .label("payload B")
                .nullable()
                .summed(),
            entries().map(|entry| self.totals(entry).0),
        );
        built.numbers(
            Field::bytes("total_wire_bytes", "Wire bytes of all calls.")
                .label("wire B")
                .nullable()
                .summed(),
            entries().map(|entry| self.totals(entry).1),
        );
        let trips = |c: &Collective| if c.is_in_loop { number(c.trip_count) } else { 1 };
        built.numbers(common::trip_count(), each().map(trips));
        let peeled = |c: &Collective| {
            let in_loop = all.collectives.get(c.peeled_from? as usize)?;
            Some(in_loop.row)
        };
        built.numbers(
            Field::instruction(
                "peeled_from",
                "The row in the loop from which this collective was peeled.",
            )
            .nullable(),
            each().map(|c| row_or_none(peeled(c))),
        );
        built.texts(common::tensor_kind(), each().map(|c| c.moved.as_str()));
        let pieces = |c: &Collective| &all.pieces[c.pieces.start as usize..c.pieces.end as usize];
        built.texts(
            Field::word("dtype", "The element type of most of the payload.").nullable(),
            each().map(|c| most_of(module, c.row).map_or("", ElementType::as_str)),
        );
        built.numbers(
            Field::count("tensors", "Arrays in one call.").label("arrays"),
            each().map(|c| pieces(c).len() as i64),
        );
        built.written(common::tensor(), each(), |c, out| self.write_tensor(origin, c, out));
        built.texts(common::phase(), entries().map(|(_, _, e)| e.phase.as_str()));
        built.flags(
            Field::flag(
                "is_phase_inferred",
                "Whether the phase is inferred from the \
            array's users or producers, because the collective has no operation name.",
            ),
            each().map(|c| c.is_phase_inferred),
        );
        built.push(common::scope(), Values::Texts(self.scopes.clone()));
        let named = |c: &Collective| named(origin, c);
        let file = |c: &Collective| origin.source_file(named(c)).unwrap_or_default();
        built.written(common::op_name(), each(), |c, out| origin.write_op_name(named(c), out));
        built.texts(common::source_file(), each().map(file));
        built.numbers(common::source_line(), each().map(|c| origin.source_line(named(c))));
        let between = |c: &Collective| c.overlap.map_or(-1, |o| i64::from(o.instructions));
        built.numbers(
            Field::count("instructions_between", "Instructions scheduled between start and done.")
                .label("overlapped instructions")
                .nullable(),
            each().map(between),
        );
        let flops =
            |c: &Collective| c.overlap.map_or(-1, |o| i64::try_from(o.flops).unwrap_or(i64::MAX));
        built.numbers(
            Field::flops("flops_between", "FLOPs scheduled between start and done.")
                .label("overlapped FLOP")
                .nullable(),
            each().map(flops),
        );
        built
    }

    /// The columns of the table of arrays that collectives move.
    pub fn pieces(&self, origin: &Origin<'_>) -> Columns {
        let all = &self.collectives;
        let each = || {
            all.collectives.iter().flat_map(|collective| {
                let range = collective.pieces.start as usize..collective.pieces.end as usize;
                let pieces = all.pieces.get(range).unwrap_or_default();
                pieces.iter().map(move |piece| (collective, piece))
            })
        };
        let mut built = Columns::default();
        built.rows(common::instruction(), each().map(|(collective, _)| collective.row));
        let field = Field::instruction("array", "The row number of the array.");
        built.rows(field, each().map(|(_, piece)| piece.row));
        let field = Field::bytes("payload_in", "Bytes of the array.").nullable().summed();
        built.numbers(field, each().map(|(_, piece)| number(Some(piece.bytes))));
        built.texts(common::tensor_kind(), each().map(|(_, piece)| piece.moved.as_str()));
        let doc = "The parameter for a weight, otherwise the row that computes the array.";
        let field = Field::instruction("source", doc).nullable();
        built.numbers(field, each().map(|(_, piece)| row_or_none(piece.source)));
        built.written(common::tensor(), each(), |(_, piece), out| origin.write_tensor(piece, out));
        built
    }

    /// The columns of the table of all instructions that make up collectives.
    pub fn members(&self) -> Columns {
        let all = &self.collectives;
        let each = || {
            all.collectives.iter().flat_map(|collective| {
                let range = collective.members.start as usize..collective.members.end as usize;
                let members = all.members.get(range).unwrap_or_default();
                members.iter().map(move |row| (collective.row, *row))
            })
        };
        let mut built = Columns::default();
        built.rows(common::instruction(), each().map(|(first, _)| first));
        let field =
            Field::instruction("member", "The row number of an instruction of the collective.");
        built.rows(field, each().map(|(_, row)| row));
        built
    }
}

/// Bytes that `count` executions of `size` bytes move; -1 if either is unknown.
fn total(size: i64, count: Option<i64>) -> i64 {
    match count {
        Some(count) if size >= 0 => size.saturating_mul(count),
        _ => -1,
    }
}

/// The element type of most bytes of the result of `row`. The result of a start also includes the
/// operands, of the same element types, and small counters or a token, of other types.
fn most_of(module: &Module, row: Row) -> Option<ElementType> {
    let shapes = module.shapes();
    let mut sums: SmallVec<[(ElementType, u64); 4]> = SmallVec::new();
    for leaf in shapes.leaves(module.shape(row)) {
        let Some(array) = shapes.array(leaf) else { continue };
        let bytes = shapes.logical_bytes(leaf).unwrap_or(0);
        match sums.iter_mut().find(|(of, _)| *of == array.element_type) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => sums.push((array.element_type, bytes)),
        }
    }
    sums.into_iter().rev().max_by_key(|(_, sum)| *sum).map(|(of, _)| of)
}

/// The row that names the origin of `collective`: its wrapper if the collective itself has no
/// origin.
fn named(origin: &Origin<'_>, collective: &Collective) -> Row {
    let has_file = origin.source_file(collective.row).is_some();
    if has_file || origin.has_op_name(collective.row) { collective.row } else { collective.outer }
}
