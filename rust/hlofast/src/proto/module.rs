//! `HloModuleProto` as text: header, tables, and computations in text order.

use super::computation::{Computation, Scratch, Written};
use super::metadata::{self, clean_name};
use super::out::Out;
use super::record::{Record, Store, repeated};
use super::wire::{Fault, Fields, Read, Value};
use super::{Map, Translation, assignment, shape};
use crate::print::needs_percent;
use crate::text::Outline;

/// State shared by all computations of a module.
pub(super) struct Context<'a> {
    pub(super) computations: Vec<Computation<'a>>,
    /// Computation indices by id.
    pub(super) numbers: Map<i64, usize>,
    /// The index of the entry computation.
    pub(super) entry: usize,
    /// The instruction sequence of each scheduled computation, by the computation's id.
    pub(super) schedule: Map<i64, &'a [u8]>,
    /// Strings to which other fields refer by index.
    pub(super) payloads: Vec<&'a [u8]>,
    /// The contents of the computations.
    written: Written<'a>,
}

const REPEATED: u128 = repeated(&[3, 10, 13, 14, 22, 24]);

/// Maximum nesting of modules inside modules: each level escapes its contents.
const MAX_MODULES: u32 = 4;

/// The texts of the module `message`, which is nested `depth` levels in other modules, and of the
/// `BufferAssignmentProto` beside the module.
pub(super) fn to_text(message: &[u8], assignment: Option<&[u8]>, depth: u32) -> Read<Translation> {
    if depth > MAX_MODULES {
        return Err(Fault::new(message, "modules nested more than 4 deep"));
    }
    let mut store = Store::default();
    let fields = store.read(message, REPEATED)?;
    // Lines in file order; each line refers only to earlier lines.
    let mut lines = Out::new(message.len());
    let context = Context::read(&fields, &mut lines)?;
    let scratch = std::mem::take(&mut lines.text);
    let mut out = Out::new(0);
    out.text.reserve(scratch.len() + scratch.len() / 8 + 4096);
    out.raise_limit(scratch.len().saturating_add(message.len().saturating_mul(16)));
    out.number_from(&lines);
    header(&mut out, &fields, depth)?;
    out.byte(b'\n');
    if let Some(index) = fields.text(17) {
        tables(&mut out, index)?;
    }
    let mut outline = Outline::default();
    let written = &context.written;
    outline.lines.reserve(written.lines.list.len());
    outline.operands.reserve(written.lines.operands.len());
    outline.calls.reserve(written.lines.calls.len());
    for number in context.text_order() {
        out.byte(b'\n');
        let computation = &context.computations[number];
        let is_entry = number == context.entry;
        computation.write(&mut out, &scratch, is_entry, written, &mut outline)?;
        out.check()?;
    }
    let buffer_assignment = match assignment {
        Some(assignment) => Some(assignment::to_text(assignment, &context, &scratch)?),
        None => None,
    };
    Ok(Translation { text: out.text, buffer_assignment, outline })
}

impl<'a> Context<'a> {
    fn read(fields: &Record<'a, '_>, out: &mut Out<'a>) -> Read<Context<'a>> {
        let mut context = Context {
            computations: Vec::new(),
            numbers: Map::default(),
            entry: 0,
            schedule: schedule(fields.bytes(7).unwrap_or_default())?,
            payloads: fields.messages(22).collect(),
            written: Written::default(),
        };
        let mut scratch = Scratch::default();
        // An estimate that is usually sufficient.
        scratch.written.lines.list.reserve(fields.message().len() / 128);
        for message in fields.messages(3) {
            let computation = Computation::read(message, &context, out, &mut scratch)?;
            let number = context.computations.len();
            if context.numbers.insert(computation.id, number).is_some() {
                let text = format!("two computations with id {}", computation.id);
                return Err(Fault::new(message, text));
            }
            context.computations.push(computation);
        }
        let id = fields.integer(6);
        let Some(entry) = context.numbers.get(&id) else {
            let message = format!("no computation with the entry's id {id}");
            return Err(Fault::new(fields.message(), message));
        };
        context.entry = *entry;
        context.written = scratch.written;
        Ok(context)
    }

    /// The names of instructions by id.
    pub(super) fn names<'s>(&self, scratch: &'s [u8]) -> Map<i64, &'s [u8]> {
        self.written.lines.list.iter().map(|line| (line.id, &scratch[line.name()])).collect()
    }

    /// Computations in text order: depth first, callees before callers. Computations without
    /// callers are ordered by id, callees by the ids of the calling instructions, because XLA's
    /// text follows ids although its protos do not.
    fn text_order(&self) -> Vec<usize> {
        let mut is_called = vec![false; self.computations.len()];
        let callees = |number: usize| self.computations[number].callees(&self.written);
        for callee in (0..self.computations.len()).flat_map(callees) {
            is_called[*callee] = true;
        }
        let mut roots: Vec<usize> =
            (0..self.computations.len()).filter(|number| !is_called[*number]).collect();
        roots.sort_by_key(|number| self.computations[*number].id);
        let mut order = Vec::with_capacity(self.computations.len());
        let mut is_met = vec![false; self.computations.len()];
        let mut open: Vec<(usize, usize)> = Vec::new();
        for root in roots {
            is_met[root] = true;
            open.push((root, 0));
            while let Some((number, next)) = open.last_mut() {
                match callees(*number).get(*next) {
                    Some(callee) => {
                        *next += 1;
                        if !std::mem::replace(&mut is_met[*callee], true) {
                            open.push((*callee, 0));
                        }
                    }
                    None => {
                        order.push(*number);
                        open.pop();
                    }
                }
            }
        }
        order
    }
}

/// The instruction sequence of each scheduled computation, by the computation's id.
fn schedule(message: &[u8]) -> Read<Map<i64, &[u8]>> {
    let mut sequences = Map::default();
    let mut entries = Fields::new(message);
    while let Some((number, value)) = entries.next()? {
        if let (1, Some(sequence)) = (number, value.bytes()) {
            let mut store = Store::default();
            let sequence = store.read(sequence, 0)?;
            // Of duplicate keys, the last counts.
            sequences.insert(sequence.integer(1), sequence.bytes(2).unwrap_or_default());
        }
    }
    Ok(sequences)
}

fn header<'a>(out: &mut Out<'a>, fields: &Record<'a, '_>, depth: u32) -> Read<()> {
    out.push(b"HloModule ");
    let name = clean_name(fields.bytes(1).unwrap_or_default());
    if needs_percent(&name) {
        out.byte(b'%');
    }
    out.push(&name);
    if fields.has(7) {
        out.push(b", is_scheduled=true");
    }
    aliases(out, fields.bytes(8).unwrap_or_default())?;
    donors(out, fields.bytes(18).unwrap_or_default())?;
    if let Some(shape) = fields.text(4) {
        entry_layout(out, shape)?;
    }
    if let Some(assignment) = fields.bytes(15) {
        let mut store = Store::default();
        let assignment = store.read(assignment, repeated(&[3]))?;
        for (number, name) in [(1, &b", replica_count="[..]), (2, b", num_partitions=")] {
            if assignment.integer(number) > 1 {
                out.push(name);
                out.integer(assignment.integer(number));
            }
        }
    }
    if let Some(attributes) = fields.text(19) {
        metadata::write_frontend(out, b", frontend_attributes=", attributes)?;
    }
    match fields.text(20) {
        Some(table) => recovery(out, table, depth),
        None => Ok(()),
    }
}

/// Writes `, origin_recovery_table={ {"a"} : {"b"}, "HloModule ..." }` on several lines.
fn recovery(out: &mut Out<'_>, message: &[u8], depth: u32) -> Read<()> {
    out.push(b", origin_recovery_table={\n");
    let mut fields = Fields::new(message);
    while let Some((number, value)) = fields.next()? {
        let (1, Some(entry)) = (number, value.bytes()) else { continue };
        let mut store = Store::default();
        let entry = store.read(entry, 0)?;
        out.push(b"  ");
        metadata::write_array(out, entry.bytes(1).unwrap_or_default())?;
        out.push(b" : ");
        metadata::write_array(out, entry.bytes(2).unwrap_or_default())?;
        if let Some(module) = entry.bytes(3) {
            out.push(b",\n  \"\n");
            for line in to_text(module, None, depth + 1)?.text.split(|byte| *byte == b'\n') {
                if !line.is_empty() {
                    out.push(b"    ");
                    out.escaped(line);
                }
                out.byte(b'\n');
            }
            out.push(b"  \"");
            out.check()?;
        }
        out.byte(b'\n');
    }
    out.byte(b'}');
    Ok(())
}

/// Writes `, input_output_alias={ {0}: (0, {}, may-alias) }`.
fn aliases(out: &mut Out<'_>, message: &[u8]) -> Read<()> {
    let mut fields = Fields::new(message);
    let mut count = 0;
    while let Some((number, value)) = fields.next()? {
        let (1, Some(entry)) = (number, value.bytes()) else { continue };
        let mut store = Store::default();
        let entry = store.read(entry, repeated(&[1, 3]))?;
        out.push(if count == 0 { b", input_output_alias={ " } else { b", " });
        count += 1;
        out.integers(&entry.list(1)?);
        out.push(b": (");
        out.integer(entry.integer(2));
        out.push(b", ");
        out.integers(&entry.list(3)?);
        out.push(if entry.integer(4) == 1 { b", may-alias)" } else { b", must-alias)" });
    }
    if count > 0 {
        out.push(b" }");
    }
    Ok(())
}

/// Writes `, buffer_donor={ (0, {}) }`.
fn donors(out: &mut Out<'_>, message: &[u8]) -> Read<()> {
    let mut fields = Fields::new(message);
    let mut count = 0;
    while let Some((number, value)) = fields.next()? {
        let (1, Some(entry)) = (number, value.bytes()) else { continue };
        let mut store = Store::default();
        let entry = store.read(entry, repeated(&[2]))?;
        out.push(if count == 0 { b", buffer_donor={ (" } else { b", (" });
        count += 1;
        out.integer(entry.integer(1));
        out.push(b", ");
        out.integers(&entry.list(2)?);
        out.byte(b')');
    }
    if count > 0 {
        out.push(b" }");
    }
    Ok(())
}

/// Writes `, entry_computation_layout={(f32[2]{0})->f32[2]{0}}`.
fn entry_layout<'a>(out: &mut Out<'a>, message: &'a [u8]) -> Read<()> {
    let mut store = Store::default();
    let program = store.read(message, repeated(&[1, 3]))?;
    let Some(result) = program.bytes(2) else { return Ok(()) };
    out.push(b", entry_computation_layout={(");
    for (index, parameter) in program.messages(1).enumerate() {
        if index > 0 {
            out.push(b", ");
            shape::index_comment(out, index);
        }
        shape::write(out, parameter, shape::Style::Full, 0)?;
    }
    out.push(b")->");
    shape::write(out, result, shape::Style::Full, 0)?;
    out.byte(b'}');
    Ok(())
}

/// Writes the tables of source locations. Parent ids are one higher in the text, where 1 means no
/// parent.
fn tables(out: &mut Out<'_>, message: &[u8]) -> Read<()> {
    let sections: [(u32, &[u8]); 4] =
        [(1, b"FileNames"), (2, b"FunctionNames"), (3, b"FileLocations"), (4, b"StackFrames")];
    const LOCATION: [(u32, &[u8]); 6] = [
        (1, b"file_name_id="),
        (2, b" function_name_id="),
        (3, b" line="),
        (5, b" end_line="),
        (4, b" column="),
        (6, b" end_column="),
    ];
    for (section, keyword) in sections {
        out.byte(b'\n');
        out.push(keyword);
        out.byte(b'\n');
        let mut count = 0;
        let mut fields = Fields::new(message);
        while let Some((number, value)) = fields.next()? {
            let Value::Bytes(entry) = value else { continue };
            if number != section {
                continue;
            }
            count += 1;
            out.unsigned(count);
            out.byte(b' ');
            if section < 3 {
                out.string(entry);
            } else {
                let mut numbers = [0i64; 7];
                let mut entry = Fields::new(entry);
                while let Some((number, value)) = entry.next()? {
                    if let Some(place) = numbers.get_mut(number as usize) {
                        *place = i64::from(value.integer().unwrap_or_default() as i32);
                    }
                }
                out.byte(b'{');
                if section == 3 {
                    for (number, name) in LOCATION {
                        out.push(name);
                        out.integer(numbers[number as usize]);
                    }
                } else {
                    out.push(b"file_location_id=");
                    out.integer(numbers[1]);
                    out.push(b" parent_frame_id=");
                    out.integer(numbers[2] + 1);
                }
                out.byte(b'}');
            }
            out.byte(b'\n');
        }
    }
    out.byte(b'\n');
    Ok(())
}
