//! The lines of all computations of a module: written once in file order, then copied into the
//! text.

use super::out::Out;
use super::wire::Read;
use crate::text::{Outline, OutlinedCall, OutlinedLine, Span};
use std::ops::Range;

/// The prefix of every line.
pub(super) const INDENT: &[u8] = b"  ";
const ROOT: &[u8] = b"ROOT ";

/// Instructions whose lines are written, with their operands and calls.
#[derive(Default)]
pub(super) struct Lines<'a> {
    pub(super) list: Vec<Line<'a>>,
    /// Operands, as line numbers within the computation.
    pub(super) operands: Vec<u32>,
    /// Positions of calls in the scratch text.
    pub(super) calls: Vec<OutlinedCall>,
}

/// The line of one instruction.
#[derive(Default)]
pub(super) struct Line<'a> {
    /// The positions of its parts in the scratch text, without indentation and `ROOT`, and its
    /// index in the computation in file order.
    pub(super) at: OutlinedLine,
    /// Whether the instruction refers only to operands and computations.
    pub(super) is_plain: bool,
    /// Its id. Within a computation, XLA only uses the low 32 bits.
    pub(super) id: i64,
    /// The shape of its result.
    pub(super) shape: &'a [u8],
}

impl Line<'_> {
    /// The range of its name in the scratch text.
    pub(super) fn name(&self) -> Range<usize> {
        self.at.name as usize..self.at.name_end as usize
    }

    /// The range of the line in the scratch text, including its newline.
    fn range(&self) -> Range<usize> {
        self.at.start as usize..self.at.end as usize + 1
    }
}

/// The offsets from the scratch text to the text, and from `Lines` to `Outline`.
#[derive(Clone, Copy)]
struct Shift {
    text: u32,
    operands: u32,
    calls: u32,
}

impl Shift {
    #[inline(always)]
    fn line(self, line: &OutlinedLine) -> OutlinedLine {
        let moved = |at: u32| at.wrapping_add(self.text);
        OutlinedLine {
            start: moved(line.start),
            row: line.row,
            name: moved(line.name),
            name_end: moved(line.name_end),
            shape_end: moved(line.shape_end),
            shape: line.shape,
            open: moved(line.open),
            close: moved(line.close),
            metadata: if line.metadata == u32::MAX { u32::MAX } else { moved(line.metadata) },
            end: moved(line.end),
            operands_end: line.operands_end.wrapping_add(self.operands),
            calls_end: line.calls_end.wrapping_add(self.calls),
        }
    }

    fn call(self, call: &OutlinedCall) -> OutlinedCall {
        let moved = |at: u32| at.wrapping_add(self.text);
        let moved = |span: Span| Span { start: moved(span.start), end: moved(span.end) };
        OutlinedCall { key: moved(call.key), name: moved(call.name) }
    }

    fn behind_root(self) -> Shift {
        Shift { text: self.text.wrapping_add(ROOT.len() as u32), ..self }
    }
}

impl Lines<'_> {
    /// The ranges in `operands` and `calls` of the references of line `index`.
    fn references(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let ends = |index: usize| {
            let line = self.list[index].at;
            (line.operands_end as usize, line.calls_end as usize)
        };
        let first = index.checked_sub(1).map_or((0, 0), ends);
        let end = ends(index);
        (first.0..end.0, first.1..end.1)
    }

    /// The shift for the references of lines from `first` on, if these references come next in
    /// `outline`.
    fn shift(&self, first: usize, outline: &Outline) -> Shift {
        let (operands, calls) = self.references(first);
        let distance = |to: usize, from: usize| (to as u32).wrapping_sub(from as u32);
        Shift {
            text: 0,
            operands: distance(outline.operands.len(), operands.start),
            calls: distance(outline.calls.len(), calls.start),
        }
    }

    /// Appends the lines `range` as they are in `scratch`, and their new positions to the outline.
    pub(super) fn write_in_order(
        &self,
        range: Range<usize>,
        root: usize,
        scratch: &[u8],
        out: &mut Out<'_>,
        outline: &mut Outline,
    ) {
        let (lines, root_line) = (&self.list[range.clone()], &self.list[root]);
        let (Some(first), Some(last)) = (lines.first(), lines.last()) else { return };
        let start = first.range().start - INDENT.len();
        let text = (out.text.len() as u32).wrapping_sub(start as u32);
        out.push(&scratch[start..root_line.range().start]);
        out.push(ROOT);
        out.push(&scratch[root_line.range().start..last.range().end]);
        if !lines.iter().all(|line| line.is_plain) {
            for (index, line) in range.zip(lines) {
                let text = if index > root { text.wrapping_add(ROOT.len() as u32) } else { text };
                self.outline(index, line.at.row, text, index == root, |row| row, outline);
            }
            return;
        }
        let before = Shift { text, ..self.shift(range.start, outline) };
        let behind = before.behind_root();
        let (to_root, from_root) = lines.split_at(root - range.start);
        outline.lines.extend(to_root.iter().map(|line| before.line(&line.at)));
        let at_root = outline.lines.len();
        outline.lines.extend(from_root.iter().map(|line| behind.line(&line.at)));
        outline.lines[at_root].start -= ROOT.len() as u32;
        let (of_first, of_root) = (self.references(range.start), self.references(root));
        let (operands, calls) = self.references(range.end - 1);
        outline.operands.extend(&self.operands[of_first.0.start..operands.end]);
        let to_root = &self.calls[of_first.1.start..of_root.1.start];
        outline.calls.extend(to_root.iter().map(|call| before.call(call)));
        let from_root = &self.calls[of_root.1.start..calls.end];
        outline.calls.extend(from_root.iter().map(|call| behind.call(call)));
    }

    /// Appends lines in another order: `rows` are line numbers in the computation.
    pub(super) fn write_scheduled(
        &self,
        range: Range<usize>,
        root: usize,
        rows: &[u32],
        scratch: &[u8],
        out: &mut Out<'_>,
        outline: &mut Outline,
    ) {
        let mut places = vec![0; rows.len()];
        for (place, row) in rows.iter().enumerate() {
            places[*row as usize] = place as u32;
        }
        for (place, row) in rows.iter().enumerate() {
            let index = range.start + *row as usize;
            let line = self.list[index].range();
            out.push(INDENT);
            let text = (out.text.len() as u32).wrapping_sub(line.start as u32);
            if index == root {
                out.push(ROOT);
            }
            out.push(&scratch[line]);
            let place_of = |row: u32| places[row as usize];
            self.outline(index, place as u32, text, index == root, place_of, outline);
        }
    }

    /// Adds line `index` to the outline as row `row` of its computation, shifted by `text` in the
    /// text, if the line refers only to operands and computations.
    fn outline(
        &self,
        index: usize,
        row: u32,
        text: u32,
        is_root: bool,
        place_of: impl Fn(u32) -> u32,
        outline: &mut Outline,
    ) {
        let line = &self.list[index];
        if !line.is_plain {
            return;
        }
        let mut shift = Shift { text, ..self.shift(index, outline) };
        if is_root {
            shift = shift.behind_root();
        }
        let moved = shift.line(&line.at);
        let start = line.at.start.wrapping_add(text);
        outline.lines.push(OutlinedLine { start, row, ..moved });
        let (operands, calls) = self.references(index);
        outline.operands.extend(self.operands[operands].iter().map(|row| place_of(*row)));
        outline.calls.extend(self.calls[calls].iter().map(|call| shift.call(call)));
    }

    /// Appends the name of line `index`.
    #[inline]
    pub(super) fn refer(&self, out: &mut Out<'_>, index: usize) -> Read<()> {
        out.copy(self.list[index].name())
    }
}
