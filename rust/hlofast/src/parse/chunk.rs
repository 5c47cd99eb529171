//! Several threads on one text: it is cut where computations end, the parts are read on their
//! own and joined. The result is the one-thread result, id for id; whatever does not fit that
//! (an error, a brace line inside a string) is read again by one thread.

use super::Options;
use super::reader::Reader;
use crate::error::Result;
use crate::ir::module::NO_METADATA;
use crate::ir::{ComputationId, Dimension, Row, ShapeId, ShapeView};
use crate::text::Span;

/// Texts below this are read by one thread.
const DEFAULT_MIN_BYTES: usize = 8 << 20;

/// Threads for one text, whatever was asked for.
const MAX_THREADS: usize = 64;

/// Reads `text` with several threads; None if it is to be read by one.
pub(super) fn read_parallel<'a>(text: &'a [u8], options: &Options) -> Option<Reader<'a>> {
    let least = match options.parallel_from {
        0 => DEFAULT_MIN_BYTES,
        bytes => bytes,
    };
    // A thread is worth its start for a share of the least size, not for less.
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
    for part in parts {
        whole.append(part)?;
    }
    Some(whole)
}

/// Offsets just after lines that are only `}`, near equal shares of `text[start..]`.
fn cuts(text: &[u8], start: usize, threads: usize) -> Vec<usize> {
    let share = (text.len() - start) / threads;
    let mut cuts: Vec<usize> = Vec::new();
    for index in 1..threads {
        let target = (start + share * index).max(cuts.last().copied().unwrap_or(start));
        let Some(found) = memchr::memmem::find(&text[target..], b"\n}\n") else { break };
        let cut = target + found + 3;
        if text.len() - cut > share / 8 {
            cuts.push(cut);
        }
    }
    cuts
}

impl Reader<'_> {
    /// Appends what another reader found in the text after this one's; None if names clash.
    fn append(&mut self, mut part: Reader<'_>) -> Option<()> {
        let rows = self.next_row();
        let computations = self.computations.len() as u32;
        let operands = self.columns.operands.len() as u32;
        let calls = self.calls.len() as u32;
        if part.entry.is_some() && self.entry.is_some() {
            return None;
        }
        self.has_late_calls |= part.has_late_calls;
        self.entry = self.entry.or(part.entry.map(|entry| entry + computations));

        let base = self.arena_base() as u32;
        let delta = self.arena.len() as u32;
        let shift = |at: u32| if at >= base { at + delta } else { at };
        let shift_span = |span: Span| Span { start: shift(span.start), end: shift(span.end) };
        if !part.arena.is_empty() {
            for at in part
                .columns
                .name_starts
                .iter_mut()
                .chain(&mut part.columns.tail_starts)
                .chain(&mut part.columns.tail_ends)
            {
                *at = shift(*at);
            }
            for at in &mut part.columns.metadata_starts {
                *at = if *at == NO_METADATA { NO_METADATA } else { shift(*at) };
            }
            self.arena.append(&mut part.arena);
        }

        let map = self.import_shapes(&part);
        let columns = &mut self.columns;
        columns.opcodes.append(&mut part.columns.opcodes);
        columns.flags.append(&mut part.columns.flags);
        columns.shapes.extend(part.columns.shapes.iter().map(|shape| map[shape.0 as usize]));
        columns.name_starts.append(&mut part.columns.name_starts);
        columns.name_lengths.append(&mut part.columns.name_lengths);
        columns.tail_starts.append(&mut part.columns.tail_starts);
        columns.tail_ends.append(&mut part.columns.tail_ends);
        columns.metadata_starts.append(&mut part.columns.metadata_starts);
        columns
            .operand_offsets
            .extend(part.columns.operand_offsets[1..].iter().map(|o| o + operands));
        columns.operands.extend(part.columns.operands.iter().map(|row| row + rows));

        self.control_predecessors.extend(
            part.control_predecessors.iter().map(|(a, b)| (Row(a.0 + rows), Row(b.0 + rows))),
        );
        self.calls.extend(part.calls.iter().map(|call| {
            let mut call = *call;
            call.row.0 += rows;
            if call.computation.0 != u32::MAX {
                call.computation = ComputationId(call.computation.0 + computations);
            }
            call
        }));
        self.pending_calls
            .extend(part.pending_calls.iter().map(|(call, name)| (call + calls, *name)));
        for mut computation in part.computations {
            computation.first_row += rows;
            computation.end_row += rows;
            computation.root += rows;
            computation.name = shift_span(computation.name);
            self.register_computation(computation)?;
        }
        Some(())
    }

    /// Adds the shapes of another reader's table to this one's; the new ids.
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
