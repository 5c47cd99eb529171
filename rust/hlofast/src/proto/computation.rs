//! `HloComputationProto`: its instructions as lines, in the order of the file, and then the whole
//! in the order of text.

use super::metadata::clean_name;
use super::module::Context;
use super::out::Out;
use super::record::{Record, Store};
use super::wire::{Fault, Fields, Read, Value};
use super::{Map, instruction, shape};
use crate::ir::Opcode;
use crate::text::{Outline, OutlinedCall, OutlinedHeader, OutlinedLine, Span};
use std::borrow::Cow;

/// What stands before every line.
const INDENT: &[u8] = b"  ";
const ROOT: &[u8] = b"ROOT ";

/// An instruction whose line has been written.
pub(super) struct Line<'a> {
    /// Where the line is in the scratch text, without indentation and `ROOT`: it begins with `%`
    /// and the name.
    start: u32,
    end: u32,
    parts: Parts,
    /// Where its operands and calls end in those of the module; they begin where those of the line
    /// before end.
    ends: Ends,
    /// Its id. Within a computation XLA looks at the low 32 bits only.
    id: i64,
    /// Its result.
    shape: &'a [u8],
}

/// Where the parts of a line are in the scratch text.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) name_length: u32,
    pub(super) shape_end: u32,
    /// The parentheses around the operands.
    pub(super) open: u32,
    pub(super) close: u32,
    /// The value of its metadata, or `u32::MAX`.
    pub(super) metadata: u32,
    /// The number of its shape among the texts that were written once.
    pub(super) shape: u32,
    /// Whether operands and computations are all that it refers to.
    pub(super) is_plain: bool,
}

/// A computation whose lines have been written.
pub(super) struct Computation<'a> {
    pub(super) id: i64,
    pub(super) name: Cow<'a, [u8]>,
    /// The computations it calls, in the order of its instructions' ids.
    pub(super) calls: Vec<usize>,
    lines: Vec<Line<'a>>,
    /// The order of lines in the text, if it is another.
    schedule: Option<Vec<u32>>,
    root: usize,
    /// Numbers of parameters and their lines, in the order of the numbers.
    parameters: Vec<(i64, u32)>,
    thread: &'a [u8],
    /// Where what its lines refer to begins in that of the module.
    first: Ends,
}

/// What lines refer to.
#[derive(Default)]
pub(super) struct References {
    /// Operands, as numbers of lines in the order of the file.
    pub(super) operands: Vec<u32>,
    /// Where in the scratch text computations are called.
    pub(super) calls: Vec<OutlinedCall>,
}

/// How far `References` belong to the lines so far.
#[derive(Clone, Copy)]
struct Ends {
    operands: u32,
    calls: u32,
}

impl References {
    fn ends(&self) -> Ends {
        Ends { operands: self.operands.len() as u32, calls: self.calls.len() as u32 }
    }
}

/// Which instruction of a computation has a local id.
#[derive(Default)]
pub(super) struct Places {
    /// Indices by id; `u32::MAX` where there is none.
    dense: Vec<u32>,
    /// The same for ids far beyond the number of instructions.
    sparse: Map<u32, u32>,
}

impl Places {
    fn clear(&mut self) {
        self.dense.clear();
        self.sparse.clear();
    }

    /// Takes note of instruction `index`; whether its id is new.
    #[inline]
    fn insert(&mut self, local: u32, index: u32) -> bool {
        let at = local as usize;
        if at >= 8 * index as usize + 1024 {
            return self.sparse.insert(local, index).is_none();
        }
        if at >= self.dense.len() {
            self.dense.resize(at + 1, u32::MAX);
        }
        let earlier = std::mem::replace(&mut self.dense[at], index);
        // A late instruction may be dense where an early one with its id was not.
        earlier == u32::MAX && (self.sparse.is_empty() || !self.sparse.contains_key(&local))
    }

    #[inline]
    fn find(&self, id: i64) -> Option<usize> {
        let local = id as u32;
        match self.dense.get(local as usize) {
            Some(place) if *place != u32::MAX => Some(*place as usize),
            _ if self.sparse.is_empty() => None,
            _ => self.sparse.get(&local).map(|index| *index as usize),
        }
    }
}

/// What reading a computation needs beside the module.
#[derive(Default)]
pub(super) struct Scratch {
    places: Places,
    store: Store,
    /// Instructions and the computations they call.
    calls: Vec<(u32, usize)>,
    /// What the lines of all computations so far refer to.
    pub(super) references: References,
}

impl<'a> Computation<'a> {
    /// Reads `message` and writes its lines to `out`.
    pub(super) fn read(
        message: &'a [u8],
        module: &Context<'a>,
        out: &mut Out<'a>,
        scratch: &mut Scratch,
    ) -> Read<Computation<'a>> {
        let (mut name, mut thread): (&[u8], &[u8]) = (b"", b"");
        let (mut id, mut root) = (0, 0);
        let mut parameters = Vec::new();
        let first = scratch.references.ends();
        scratch.places.clear();
        scratch.calls.clear();
        // A guess that is mostly enough.
        let mut lines: Vec<Line<'a>> = Vec::with_capacity(message.len() / 72 + 2);
        let mut fields = Fields::new(message);
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                (1, Value::Bytes(text)) => name = text,
                (2, Value::Bytes(instruction)) => {
                    let fields = scratch.store.read(instruction, instruction::REPEATED)?;
                    let index = lines.len() as u32;
                    let opcode = opcode_of(&fields);
                    if opcode == Opcode::Parameter {
                        parameters.push((fields.integer(9), index));
                    }
                    out.push(INDENT);
                    let start = out.text.len() as u32;
                    let (lines_before, places) = (&lines[..], &scratch.places);
                    let (calls, references) = (&mut scratch.calls, &mut scratch.references);
                    let mut scope =
                        Scope { module, lines: lines_before, places, calls, references };
                    let parts = instruction::write(out, &mut scope, opcode, &fields)?;
                    out.check()?;
                    let line = Line {
                        start,
                        end: out.text.len() as u32,
                        parts,
                        ends: scratch.references.ends(),
                        id: id_of(&fields)?,
                        shape: fields.bytes(3).unwrap_or_default(),
                    };
                    if !scratch.places.insert(line.id as u32, index) {
                        let message = format!("two instructions with id {}", line.id);
                        return Err(Fault::new(instruction, message));
                    }
                    lines.push(line);
                }
                (5, Value::Varint(value)) => id = value as i64,
                (6, Value::Varint(value)) => root = value as i64,
                (8, Value::Bytes(text)) => thread = text,
                _ => {}
            }
        }
        if lines.is_empty() {
            return Err(Fault::new(message, "a computation without instructions"));
        }
        let Some(root) = scratch.places.find(root) else {
            return Err(Fault::new(message, format!("no instruction with the root's id {root}")));
        };
        let schedule = match module.schedule.get(&id) {
            Some(schedule) => Some(scheduled(schedule, &scratch.places, lines.len())?),
            None => None,
        };
        parameters.sort_by_key(|(number, _)| *number);
        // Stable, so that the calls of one instruction keep their order.
        scratch.calls.sort_by_key(|(index, _)| lines[*index as usize].id as u32);
        let calls = scratch.calls.iter().map(|(_, callee)| *callee).collect();
        let name = if name.is_empty() {
            Cow::Owned(format!("computation.{id}").into_bytes())
        } else {
            clean_name(name)
        };
        Ok(Computation { id, name, calls, lines, schedule, root, parameters, thread, first })
    }

    /// The number of its instructions.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Ids and names of its instructions.
    pub(super) fn names<'s>(&self, scratch: &'s [u8]) -> impl Iterator<Item = (i64, &'s [u8])> {
        self.lines.iter().map(|line| (line.id, &scratch[line.name()]))
    }

    /// Appends the computation to `out`, with the lines that stand in `scratch`, and where their
    /// parts are then to `outline`. `references` are those of all lines of the module.
    pub(super) fn write(
        &self,
        out: &mut Out<'a>,
        scratch: &[u8],
        is_entry: bool,
        references: &References,
        outline: &mut Outline,
    ) -> Read<()> {
        self.header(out, scratch, is_entry, outline)?;
        let references_of = |index: usize| {
            let first = index.checked_sub(1).map_or(self.first, |before| self.lines[before].ends);
            let end = self.lines[index].ends;
            (
                &references.operands[first.operands as usize..end.operands as usize],
                &references.calls[first.calls as usize..end.calls as usize],
            )
        };
        match &self.schedule {
            Some(rows) => {
                let mut places = vec![0; rows.len()];
                for (place, row) in rows.iter().enumerate() {
                    places[*row as usize] = place as u32;
                }
                for (place, row) in rows.iter().enumerate() {
                    let index = *row as usize;
                    let line = &self.lines[index];
                    out.push(INDENT);
                    let start = out.text.len();
                    if index == self.root {
                        out.push(ROOT);
                    }
                    let (operands, calls) = references_of(index);
                    let operands = operands.iter().map(|row| places[*row as usize]);
                    line.outline((place, start), out.text.len(), operands, calls, outline);
                    out.push(&scratch[line.start as usize..line.end as usize]);
                }
            }
            // As they stand in the scratch text already.
            None => {
                let root = self.lines[self.root].start as usize;
                let first = self.lines.first().map_or(root, |line| line.start as usize);
                let end = self.lines.last().map_or(root, |line| line.end as usize);
                let start = out.text.len() + INDENT.len();
                out.push(&scratch[first - INDENT.len()..root]);
                out.push(ROOT);
                out.push(&scratch[root..end]);
                for (index, line) in self.lines.iter().enumerate() {
                    let before = line.start as usize - first + start;
                    let at = before + if index >= self.root { ROOT.len() } else { 0 };
                    let from = if index == self.root { before } else { at };
                    let (operands, calls) = references_of(index);
                    line.outline((index, from), at, operands.iter().copied(), calls, outline);
                }
            }
        }
        out.byte(b'}');
        if !matches!(self.thread, b"" | b"main") {
            out.push(b", execution_thread=");
            out.string(self.thread);
        }
        out.byte(b'\n');
        Ok(())
    }

    /// `ENTRY %name (x: f32[2]) -> f32[2] {`, parameters in the order of their numbers.
    fn header(
        &self,
        out: &mut Out<'a>,
        scratch: &[u8],
        is_entry: bool,
        outline: &mut Outline,
    ) -> Read<()> {
        let start = out.text.len();
        out.push(if is_entry { b"ENTRY %" } else { b"%" });
        let name = out.text.len();
        out.push(&self.name);
        let name = Span::new(name, out.text.len());
        out.push(b" (");
        for (index, (_, row)) in self.parameters.iter().enumerate() {
            if index > 0 {
                out.push(b", ");
            }
            let line = &self.lines[*row as usize];
            out.push(&scratch[line.name()]);
            out.push(b": ");
            out.shape(line.shape, shape::Style::Plain)?;
        }
        out.push(b") -> ");
        let result = out.text.len() as u32;
        let shape = out.shape(self.lines[self.root].shape, shape::Style::Plain)?;
        let signature = Span::new(name.end as usize + 1, out.text.len());
        out.push(b" {\n");
        let whole = Span::new(start, out.text.len() - 1);
        outline.headers.push(OutlinedHeader { whole, name, signature, result, shape });
        Ok(())
    }
}

impl Line<'_> {
    /// Where its name is in the scratch text.
    fn name(&self) -> std::ops::Range<usize> {
        let start = self.start as usize + 1;
        start..start + self.parts.name_length as usize
    }

    /// Notes where its parts are in a text in which it is line `row` of its computation and begins
    /// at `start`, without `ROOT` at `at`. Its operands are lines of its computation too.
    fn outline(
        &self,
        (row, start): (usize, usize),
        at: usize,
        operands: impl Iterator<Item = u32>,
        calls: &[OutlinedCall],
        outline: &mut Outline,
    ) {
        let parts = &self.parts;
        if !parts.is_plain {
            return;
        }
        let shift = (at as u32).wrapping_sub(self.start);
        let moved = |offset: u32| offset.wrapping_add(shift);
        let moved_span = |span: Span| Span { start: moved(span.start), end: moved(span.end) };
        outline.operands.extend(operands);
        outline.calls.extend(
            calls.iter().map(|call| OutlinedCall {
                key: moved_span(call.key),
                name: moved_span(call.name),
            }),
        );
        outline.lines.push(OutlinedLine {
            start: start as u32,
            row: row as u32,
            name: at as u32 + 1,
            name_end: at as u32 + 1 + parts.name_length,
            shape_end: moved(parts.shape_end),
            shape: parts.shape,
            open: moved(parts.open),
            close: moved(parts.close),
            metadata: match parts.metadata {
                u32::MAX => u32::MAX,
                metadata => moved(metadata),
            },
            end: moved(self.end) - 1,
            operands_end: outline.operands.len() as u32,
            calls_end: outline.calls.len() as u32,
        });
    }
}

/// Rows in the order of `schedule`: instruction ids.
fn scheduled(schedule: &[u8], places: &Places, count: usize) -> Read<Vec<u32>> {
    let mut rows = Vec::with_capacity(count);
    let mut seen = vec![false; count];
    let mut fields = Fields::new(schedule);
    while let Some((number, value)) = fields.next()? {
        if number != 1 {
            continue;
        }
        value.integers(|id| {
            let Some(index) = places.find(id) else {
                let message = format!("the schedule has an instruction of unknown id {id}");
                return Err(Fault::new(schedule, message));
            };
            if std::mem::replace(&mut seen[index], true) {
                return Err(Fault::new(schedule, "the schedule has an instruction twice"));
            }
            rows.push(index as u32);
            Ok(())
        })?;
    }
    if rows.len() != count {
        let message = format!("the schedule has {} of {count} instructions", rows.len());
        return Err(Fault::new(schedule, message));
    }
    Ok(rows)
}

fn opcode_of(fields: &Record<'_, '_>) -> Opcode {
    let (message, word) = (fields.message(), fields.bytes(2).unwrap_or_default());
    let start = (word.as_ptr() as usize).wrapping_sub(message.as_ptr() as usize);
    let found = start.checked_add(word.len()).and_then(|end| {
        // Reads the word where it stands, which is quicker than as a slice of its own.
        Opcode::from_text(message, start, end)
    });
    found.unwrap_or(Opcode::Unknown)
}

fn id_of(fields: &Record<'_, '_>) -> Read<i64> {
    let id = fields.integer(35);
    if id < 0 {
        return Err(Fault::new(fields.message(), format!("an instruction of negative id {id}")));
    }
    Ok(id)
}

/// The computation being read, as its next instruction sees it.
pub(super) struct Scope<'a, 's> {
    pub(super) module: &'s Context<'a>,
    /// The instructions before.
    lines: &'s [Line<'a>],
    places: &'s Places,
    calls: &'s mut Vec<(u32, usize)>,
    references: &'s mut References,
}

impl<'a> Scope<'a, '_> {
    /// The line of the instruction with `id`, which must stand before this one: no cycles.
    #[inline]
    fn find(&self, id: i64, message: &[u8]) -> Read<usize> {
        self.places.find(id).ok_or_else(|| {
            let text = format!("id {id} is no instruction before this one in its computation");
            Fault::new(message, text)
        })
    }

    /// Appends the name of the instruction with `id`.
    pub(super) fn refer(&self, out: &mut Out<'a>, id: i64, message: &[u8]) -> Read<()> {
        out.copy(self.lines[self.find(id, message)?].name())
    }

    /// Appends the name of an operand, and takes note of it.
    #[inline]
    pub(super) fn operand(&mut self, out: &mut Out<'a>, id: i64, message: &[u8]) -> Read<()> {
        let found = self.find(id, message)?;
        self.references.operands.push(found as u32);
        out.copy(self.lines[found].name())
    }

    /// `PrimitiveType` of the first operand of `fields`.
    pub(super) fn operand_type(&self, fields: &Record<'_, '_>) -> Read<i64> {
        let first = fields.list(36)?.first().copied();
        match first.and_then(|id| self.places.find(id)) {
            Some(index) => shape::type_code(self.lines[index].shape),
            None => Ok(0),
        }
    }

    /// Takes note that this instruction calls the computations `ids`, in that order.
    pub(super) fn note_calls(&mut self, ids: &[i64]) {
        let row = self.lines.len() as u32;
        let numbers = ids.iter().filter_map(|id| self.module.numbers.get(id));
        self.calls.extend(numbers.map(|number| (row, *number)));
    }

    /// Appends the name of the computation with `id`, which must stand before this one: no
    /// recursion. The line calls it by `key`, a range of the text.
    pub(super) fn call(
        &mut self,
        out: &mut Out<'a>,
        key: Span,
        id: i64,
        message: &[u8],
    ) -> Read<()> {
        let Some(number) = self.module.numbers.get(&id) else {
            let text = format!("id {id} is no computation before this one");
            return Err(Fault::new(message, text));
        };
        let start = out.text.len();
        out.refer(&self.module.computations[*number].name)?;
        let name = Span::new(start, out.text.len());
        self.references.calls.push(OutlinedCall { key, name });
        Ok(())
    }
}
