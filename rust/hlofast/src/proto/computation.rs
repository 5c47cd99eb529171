//! `HloComputationProto`: writes its instructions as lines in file order, then the whole
//! computation in text order.

use super::lines::{INDENT, Line, Lines};
use super::metadata::clean_name;
use super::module::Context;
use super::out::Out;
use super::record::{Record, Store};
use super::wire::{Fault, Fields, Read, Value};
use super::{Map, instruction, shape};
use crate::ir::Opcode;
use crate::text::{Outline, OutlinedCall, OutlinedHeader, Span};
use std::borrow::Cow;
use std::ops::Range;

/// The positions of a line's parts in the scratch text.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) name_end: u32,
    pub(super) shape_end: u32,
    /// The parentheses around the operands.
    pub(super) open: u32,
    pub(super) close: u32,
    /// The value of its metadata; `u32::MAX` without metadata.
    pub(super) metadata: u32,
    /// The number of its shape; equal texts share a number.
    pub(super) shape: u32,
    /// Whether the instruction refers only to operands and computations.
    pub(super) is_plain: bool,
}

/// A computation whose lines are written.
pub(super) struct Computation<'a> {
    pub(super) id: i64,
    pub(super) name: Cow<'a, [u8]>,
    /// Its range in `Written::lines`.
    lines: Range<usize>,
    /// Its range in `Written::parameters`.
    parameters: Range<usize>,
    /// Its range in `Written::callees`.
    callees: Range<usize>,
    /// The order of lines in the text, if it differs from the file.
    schedule: Option<Vec<u32>>,
    /// The line of its root.
    root: usize,
    thread: &'a [u8],
}

/// The contents of a module's computations, one after the other.
#[derive(Default)]
pub(super) struct Written<'a> {
    pub(super) lines: Lines<'a>,
    /// Parameter numbers and lines, counted from the first line of the computation, ordered by
    /// number.
    parameters: Vec<(i64, u32)>,
    /// The computations that each computation calls, ordered by the ids of its instructions.
    callees: Vec<usize>,
}

/// Finds the instruction with a local id in a computation.
#[derive(Default)]
pub(super) struct Places {
    /// Indices by id; `u32::MAX` if absent.
    dense: Vec<u32>,
    /// Indices by id, for ids far above the number of instructions.
    sparse: Map<u32, u32>,
}

impl Places {
    fn clear(&mut self) {
        self.dense.clear();
        self.sparse.clear();
    }

    /// Adds instruction `index`; returns whether its id is new.
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
        // A late instruction may be in the dense table although an earlier instruction with the
        // same id is in the sparse table.
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

/// State for reading computations, besides the module.
#[derive(Default)]
pub(super) struct Scratch<'a> {
    places: Places,
    store: Store,
    /// Instructions, and the computations they call.
    calls: Vec<(u32, usize)>,
    /// The computations written so far.
    pub(super) written: Written<'a>,
}

impl<'a> Computation<'a> {
    /// Reads `message` and writes its lines to `out`.
    pub(super) fn read(
        message: &'a [u8],
        module: &Context<'a>,
        out: &mut Out<'a>,
        scratch: &mut Scratch<'a>,
    ) -> Read<Computation<'a>> {
        let (mut name, mut thread): (&[u8], &[u8]) = (b"", b"");
        let (mut id, mut root) = (0, 0);
        let Scratch { places, store, calls, written } = scratch;
        let first = written.lines.list.len();
        let (first_parameter, first_callee) = (written.parameters.len(), written.callees.len());
        places.clear();
        calls.clear();
        let mut fields = Fields::new(message);
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                (1, Value::Bytes(text)) => name = text,
                (2, Value::Bytes(instruction)) => {
                    let fields = store.read(instruction, instruction::REPEATED)?;
                    let lines = &mut written.lines;
                    let row = (lines.list.len() - first) as u32;
                    let opcode = opcode_of(&fields);
                    if opcode == Opcode::Parameter {
                        written.parameters.push((fields.integer(9), row));
                    }
                    out.push(INDENT);
                    let start = out.text.len() as u32;
                    let mut scope = Scope { module, lines, first, places, calls };
                    let parts = instruction::write(out, &mut scope, opcode, &fields)?;
                    out.check()?;
                    let id = id_of(&fields)?;
                    if !places.insert(id as u32, row) {
                        let message = format!("two instructions with id {id}");
                        return Err(Fault::new(instruction, message));
                    }
                    let ends = (lines.operands.len() as u32, lines.calls.len() as u32);
                    // The line is filled in place; a copy would require a complete line first.
                    let line = lines.list.push_mut(Line::default());
                    line.at.start = start;
                    line.at.row = row;
                    line.at.name = start + 1;
                    line.at.name_end = parts.name_end;
                    line.at.shape_end = parts.shape_end;
                    line.at.shape = parts.shape;
                    line.at.open = parts.open;
                    line.at.close = parts.close;
                    line.at.metadata = parts.metadata;
                    line.at.end = out.text.len() as u32 - 1;
                    (line.at.operands_end, line.at.calls_end) = ends;
                    line.is_plain = parts.is_plain;
                    line.id = id;
                    line.shape = fields.bytes(3).unwrap_or_default();
                }
                (5, Value::Varint(value)) => id = value as i64,
                (6, Value::Varint(value)) => root = value as i64,
                (8, Value::Bytes(text)) => thread = text,
                _ => {}
            }
        }
        let lines = first..written.lines.list.len();
        if lines.is_empty() {
            return Err(Fault::new(message, "a computation without instructions"));
        }
        let Some(root) = places.find(root) else {
            return Err(Fault::new(message, format!("no instruction with the root's id {root}")));
        };
        let schedule = match module.schedule.get(&id) {
            Some(schedule) => Some(scheduled(schedule, places, lines.len())?),
            None => None,
        };
        written.parameters[first_parameter..].sort_by_key(|(number, _)| *number);
        // The sort is stable, so calls of one instruction keep their order.
        calls.sort_by_key(|(row, _)| written.lines.list[first + *row as usize].id as u32);
        written.callees.extend(calls.iter().map(|(_, callee)| *callee));
        let name = if name.is_empty() {
            Cow::Owned(format!("computation.{id}").into_bytes())
        } else {
            clean_name(name)
        };
        let parameters = first_parameter..written.parameters.len();
        let callees = first_callee..written.callees.len();
        let root = first + root;
        Ok(Computation { id, name, lines, parameters, callees, schedule, root, thread })
    }

    /// The computations it calls, ordered by the ids of its instructions.
    pub(super) fn callees<'s>(&self, written: &'s Written<'a>) -> &'s [usize] {
        &written.callees[self.callees.clone()]
    }

    /// Appends the computation to `out`, with its lines from `scratch`, and the new positions of
    /// their parts to `outline`.
    pub(super) fn write(
        &self,
        out: &mut Out<'a>,
        scratch: &[u8],
        is_entry: bool,
        written: &Written<'a>,
        outline: &mut Outline,
    ) -> Read<()> {
        self.header(out, scratch, is_entry, written, outline)?;
        let (lines, own) = (&written.lines, self.lines.clone());
        match &self.schedule {
            Some(rows) => lines.write_scheduled(own, self.root, rows, scratch, out, outline),
            None => lines.write_in_order(own, self.root, scratch, out, outline),
        }
        out.byte(b'}');
        if !matches!(self.thread, b"" | b"main") {
            out.push(b", execution_thread=");
            out.string(self.thread);
        }
        out.byte(b'\n');
        Ok(())
    }

    /// Writes `ENTRY %name (x: f32[2]) -> f32[2] {`, with parameters ordered by number.
    fn header(
        &self,
        out: &mut Out<'a>,
        scratch: &[u8],
        is_entry: bool,
        written: &Written<'a>,
        outline: &mut Outline,
    ) -> Read<()> {
        let lines = &written.lines.list;
        let start = out.text.len();
        out.push(if is_entry { b"ENTRY %" } else { b"%" });
        let name = out.text.len();
        out.push(&self.name);
        let name = Span::new(name, out.text.len());
        out.push(b" (");
        for (index, (_, row)) in written.parameters[self.parameters.clone()].iter().enumerate() {
            if index > 0 {
                out.push(b", ");
            }
            let line = &lines[self.lines.start + *row as usize];
            out.push(&scratch[line.name()]);
            out.push(b": ");
            out.shape(line.shape, shape::Style::Plain)?;
        }
        out.push(b") -> ");
        let result = out.text.len() as u32;
        let shape = out.shape(lines[self.root].shape, shape::Style::Plain)?;
        let signature = Span::new(name.end as usize + 1, out.text.len());
        out.push(b" {\n");
        let whole = Span::new(start, out.text.len() - 1);
        outline.headers.push(OutlinedHeader { whole, name, signature, result, shape });
        Ok(())
    }
}

/// Rows in the order of `schedule`, a list of instruction ids.
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
                let message = format!("the schedule has an instruction with unknown id {id}");
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
    let opcode = start.checked_add(word.len()).and_then(|end| {
        // Reads the word in place, which is faster than as a separate slice.
        Opcode::from_text(message, start, end)
    });
    opcode.unwrap_or(Opcode::Unknown)
}

fn id_of(fields: &Record<'_, '_>) -> Read<i64> {
    let id = fields.integer(35);
    if id < 0 {
        return Err(Fault::new(fields.message(), format!("an instruction with negative id {id}")));
    }
    Ok(id)
}

/// The current computation, as seen by its next instruction.
pub(super) struct Scope<'a, 's> {
    pub(super) module: &'s Context<'a>,
    /// The instructions read so far; the instructions of this computation start at `first`.
    lines: &'s mut Lines<'a>,
    first: usize,
    places: &'s Places,
    calls: &'s mut Vec<(u32, usize)>,
}

impl<'a> Scope<'a, '_> {
    /// The index of the instruction with `id` in its computation. It must precede the current
    /// instruction, which excludes cycles.
    #[inline]
    fn find(&self, id: i64, message: &[u8]) -> Read<usize> {
        self.places.find(id).ok_or_else(|| {
            let text = format!("id {id} is not an instruction before this one in its computation");
            Fault::new(message, text)
        })
    }

    /// Appends the name of the instruction with `id`.
    pub(super) fn refer(&self, out: &mut Out<'a>, id: i64, message: &[u8]) -> Read<()> {
        self.lines.refer(out, self.first + self.find(id, message)?)
    }

    /// Appends the name of an operand and records the operand.
    #[inline]
    pub(super) fn operand(&mut self, out: &mut Out<'a>, id: i64, message: &[u8]) -> Read<()> {
        let place = self.find(id, message)?;
        self.lines.operands.push(place as u32);
        self.lines.refer(out, self.first + place)
    }

    /// The `PrimitiveType` of the first operand of `fields`.
    pub(super) fn operand_type(&self, fields: &Record<'_, '_>) -> Read<i64> {
        shape::type_code(self.operand_shape(fields, 0)?)
    }

    /// The shape of operand `index` of `fields`; empty if there is none.
    pub(super) fn operand_shape(&self, fields: &Record<'_, '_>, index: usize) -> Read<&'a [u8]> {
        let id = fields.list(36)?.get(index).copied();
        let place = id.and_then(|id| self.places.find(id));
        Ok(place.map_or(&[], |place| self.lines.list[self.first + place].shape))
    }

    /// Records that this instruction calls the computations `ids`, in that order.
    pub(super) fn note_calls(&mut self, ids: &[i64]) {
        let row = (self.lines.list.len() - self.first) as u32;
        let numbers = ids.iter().filter_map(|id| self.module.numbers.get(id));
        self.calls.extend(numbers.map(|number| (row, *number)));
    }

    /// Appends the name of the computation with `id`, which must precede the current computation,
    /// so that recursion is impossible. `key` is the range of the calling attribute in the text.
    pub(super) fn call(
        &mut self,
        out: &mut Out<'a>,
        key: Span,
        id: i64,
        message: &[u8],
    ) -> Read<()> {
        let Some(number) = self.module.numbers.get(&id) else {
            let text = format!("id {id} is not a computation before this one");
            return Err(Fault::new(message, text));
        };
        let start = out.text.len();
        out.refer(&self.module.computations[*number].name)?;
        let name = Span::new(start, out.text.len());
        self.lines.calls.push(OutlinedCall { key, name });
        Ok(())
    }
}
