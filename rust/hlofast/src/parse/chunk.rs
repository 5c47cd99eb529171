//! Parses one text with several threads: the text is cut where computations end, and the parts are
//! read separately and joined. The result equals the single-threaded one, id for id. If reading in
//! parts fails (an error in the text, a brace line inside a string), one thread reads the text
//! again.

use super::Options;
use super::reader::Reader;
use crate::error::Result;
use crate::ir::module::NO_METADATA;
use crate::ir::{Call, Columns, ComputationId, Dimension, Row, ShapeId, ShapeView};
use crate::text::Span;

/// The default minimum size for several threads; one thread reads shorter texts.
const DEFAULT_MIN_BYTES: usize = 8 << 20;

/// Upper limit on threads per text, regardless of the options.
const MAX_THREADS: usize = 64;

/// Reads `text` with several threads; None if a single thread has to read it.
pub(super) fn read_parallel<'a>(text: &'a [u8], options: &Options) -> Option<Reader<'a>> {
    let least = match options.parallel_from {
        0 => DEFAULT_MIN_BYTES,
        bytes => bytes,
    };
    // An additional thread pays off only if it gets at least an eighth of the minimum size.
    let threads = options.threads.min(MAX_THREADS).min(1 + text.len() / (least / 8).max(1));
    if threads < 2 || text.len() < least {
        return None;
    }
    let mut first = Reader::new(text, *options);
    let mut cursor = first.cursor(0);
    first.read_header(&mut cursor).ok()?;
    let start = cursor.position();
    let cuts = cuts(text, start, threads);
    if cuts.is_empty() {
        return None;
    }
    let mut ends = cuts.clone();
    ends.push(text.len());
    let read = |mut reader: Reader<'a>, from: usize| -> Option<Reader<'a>> {
        let mut cursor = reader.cursor(from);
        let read: Result<()> = reader.read_computations(&mut cursor);
        (read.is_ok() && reader.errors.is_empty()).then_some(reader)
    };
    let parts: Option<Vec<Reader<'a>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = cuts
            .iter()
            .zip(&ends[1..])
            .map(|(from, end)| {
                let reader = Reader::of_part(text, *from..*end, *options);
                scope.spawn(move || read(reader, *from))
            })
            .collect();
        first.text = &text[..ends[0]];
        let first = read(first, start);
        let rest: Vec<Option<Reader<'a>>> =
            threads.into_iter().map(|thread| thread.join().ok().flatten()).collect();
        std::iter::once(first).chain(rest).collect()
    });
    let mut parts = parts?.into_iter();
    let mut whole = parts.next()?;
    whole.text = text;
    whole.append(parts.collect())?;
    Some(whole)
}

/// Offsets just after lines that contain only `}`, as close as possible to equal shares of
/// `text[start..]`.
fn cuts(text: &[u8], start: usize, threads: usize) -> Vec<usize> {
    let share = (text.len() - start) / threads;
    let mut cuts: Vec<usize> = Vec::new();
    for index in 1..threads {
        let from = cuts.last().copied().unwrap_or(start) + share / 8;
        let to = text.len() - share / 8;
        if let Some(cut) = nearest_cut(text, start + share * index, share / 4, from, to) {
            cuts.push(cut);
        }
    }
    cuts
}

/// The offset between `from` and `to`, just after a line that contains only `}`, that is closest to
/// `target` and at most about `reach` away.
fn nearest_cut(text: &[u8], target: usize, reach: usize, from: usize, to: usize) -> Option<usize> {
    const LINE: &[u8] = b"\n}\n";
    let line = memchr::memmem::Finder::new(LINE);
    // Searches in rings around the target, each as wide as all rings inside it, so that a nearby
    // cut is found quickly. Rings overlap by a line because a line may cross their border.
    let (mut inner, mut outer) = (0, 1 << 12);
    while inner < reach {
        let ring = |start: usize, end: usize| {
            let start = start.max(from);
            (start, text.get(start..end.min(to)).unwrap_or_default())
        };
        let (at, before) = ring(target.saturating_sub(outer + LINE.len()), target - inner);
        let last = line.find_iter(before).last().map(|offset| at + offset + LINE.len());
        let (at, after) = ring(target + inner - LINE.len(), target + outer);
        let first = line.find(after).map(|offset| at + offset + LINE.len());
        let nearest = [last, first].into_iter().flatten().min_by_key(|cut| cut.abs_diff(target));
        if nearest.is_some() {
            return nearest;
        }
        (inner, outer) = (outer, (2 * outer).min(reach.max(outer + 1)));
    }
    None
}

/// The amounts added to the ids and offsets of a part when it follows other parts.
#[derive(Clone, Copy)]
struct Shift {
    rows: u32,
    computations: u32,
    operands: u32,
    values: u32,
    calls: u32,
    /// The start of the arena, and the amount added to offsets in it.
    arena: (u32, u32),
}

impl Shift {
    /// Shifts an offset into text or arena.
    fn offset(&self, at: u32) -> u32 {
        if at >= self.arena.0 { at + self.arena.1 } else { at }
    }

    fn span(&self, span: Span) -> Span {
        Span { start: self.offset(span.start), end: self.offset(span.end) }
    }

    /// Appends a column of offsets, shifted if an offset can point into the arena.
    fn append_offsets(&self, to: &mut Vec<u32>, from: &[u32], has_arena: bool) {
        if has_arena {
            to.extend(from.iter().map(|at| self.offset(*at)));
        } else {
            to.extend_from_slice(from);
        }
    }
}

impl Reader<'_> {
    /// Appends the results of other readers, whose parts of the text follow in order; None if names
    /// clash.
    fn append(&mut self, mut parts: Vec<Self>) -> Option<()> {
        let mut shift = Shift {
            rows: self.next_row(),
            computations: self.computations.len() as u32,
            operands: self.columns.operands.len() as u32,
            values: self.columns.value_ends.len() as u32,
            calls: self.calls.len() as u32,
            arena: (self.arena_base() as u32, self.arena.len() as u32),
        };
        let mut shifts = Vec::with_capacity(parts.len());
        let mut maps = Vec::with_capacity(parts.len());
        for part in &parts {
            if part.entry.is_some() && self.entry.is_some() {
                return None;
            }
            self.has_late_calls |= part.has_late_calls;
            self.entry = self.entry.or(part.entry.map(|entry| entry + shift.computations));
            maps.push(self.import_shapes(part));
            self.arena.extend_from_slice(&part.arena);
            shifts.push(shift);
            shift.rows += part.next_row();
            shift.computations += part.computations.len() as u32;
            shift.operands += part.columns.operands.len() as u32;
            shift.values += part.columns.value_ends.len() as u32;
            shift.calls += part.calls.len() as u32;
            shift.arena.1 += part.arena.len() as u32;
        }
        // Most of the time goes into page faults for new memory, which several threads can take at
        // once.
        let mut columns = std::mem::take(&mut self.columns);
        let taken: Vec<Columns> =
            parts.iter_mut().map(|part| std::mem::take(&mut part.columns)).collect();
        let arenas: Vec<bool> = parts.iter().map(|part| !part.arena.is_empty()).collect();
        let known = std::thread::scope(|scope| {
            let Columns {
                opcodes,
                flags,
                shapes,
                name_starts,
                name_lengths,
                tail_starts,
                tail_ends,
                metadata_starts,
                value_ends,
                value_offsets,
                operand_offsets,
                operands,
            } = &mut columns;
            let (taken, shifts) = (&taken, &shifts);
            scope.spawn(move || {
                for ((part, shift), has_arena) in taken.iter().zip(shifts).zip(arenas) {
                    name_lengths.extend_from_slice(&part.name_lengths);
                    shift.append_offsets(name_starts, &part.name_starts, has_arena);
                    shift.append_offsets(tail_starts, &part.tail_starts, has_arena);
                    shift.append_offsets(tail_ends, &part.tail_ends, has_arena);
                    value_ends.extend_from_slice(&part.value_ends);
                    value_offsets.extend(part.value_offsets[1..].iter().map(|o| o + shift.values));
                    metadata_starts.extend(part.metadata_starts.iter().map(|at| match *at {
                        NO_METADATA => NO_METADATA,
                        at => shift.offset(at),
                    }));
                }
            });
            for ((part, shift), map) in taken.iter().zip(shifts).zip(&maps) {
                opcodes.extend_from_slice(&part.opcodes);
                flags.extend_from_slice(&part.flags);
                shapes.extend(part.shapes.iter().map(|shape| map[shape.0 as usize]));
                operand_offsets
                    .extend(part.operand_offsets[1..].iter().map(|o| o + shift.operands));
                operands.extend(part.operands.iter().map(|row| row + shift.rows));
            }
            parts
                .into_iter()
                .zip(shifts)
                .try_for_each(|(part, shift)| self.append_records(part, *shift))
        });
        self.columns = columns;
        known
    }

    /// Appends another reader's computations, calls and control dependencies; None if names clash.
    fn append_records(&mut self, part: Self, shift: Shift) -> Option<()> {
        let row = |row: Row| Row(row.0 + shift.rows);
        let pairs = part.control_predecessors.iter().map(|(a, b)| (row(*a), row(*b)));
        self.control_predecessors.extend(pairs);
        self.calls.extend(part.calls.iter().map(|call| {
            let computation = match call.computation {
                ComputationId(u32::MAX) => call.computation,
                ComputationId(id) => ComputationId(id + shift.computations),
            };
            Call { row: row(call.row), computation, ..*call }
        }));
        let pending = part.pending_calls.iter().map(|(call, name)| (call + shift.calls, *name));
        self.pending_calls.extend(pending);
        let names = part.computation_names.iter();
        self.computation_names.extend(names.map(|(at, length)| (shift.offset(*at), *length)));
        self.computations.extend(part.computations.into_iter().map(|mut computation| {
            computation.first_row += shift.rows;
            computation.end_row += shift.rows;
            computation.root += shift.rows;
            computation.name = shift.span(computation.name);
            computation
        }));
        self.computation_scope.insert_all(
            &self.computation_names[..],
            self.whole,
            &part.computation_scope,
            shift.computations,
        )
    }

    /// Adds the shapes of another reader's table to this reader's table; returns the new ids.
    fn import_shapes(&mut self, part: &Reader<'_>) -> Vec<ShapeId> {
        let table = &part.shapes.table;
        let mut map: Vec<ShapeId> = Vec::with_capacity(table.len());
        let mut dimensions: Vec<Dimension> = Vec::new();
        let mut children: Vec<ShapeId> = Vec::new();
        for id in table.ids() {
            let text = table.text(id);
            let new = match table.get(id) {
                ShapeView::Array(array) => {
                    dimensions.clear();
                    dimensions.extend(array.dimensions());
                    self.shapes.array(array.element_type, &dimensions, array.layout.cloned(), text)
                }
                ShapeView::Buffer(inner) => self.shapes.buffer(map[inner.0 as usize], text),
                ShapeView::Tuple(elements) => {
                    children.clear();
                    children.extend(elements.iter().map(|element| map[element.0 as usize]));
                    self.shapes.tuple(&children, text)
                }
            };
            map.push(new);
        }
        map
    }
}
