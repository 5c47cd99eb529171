//! A stable 128-bit fingerprint of the computation in a module.
//!
//! The algorithm (version 5) gives equal results on every machine and in every run:
//!
//! * A *digest* is the XXH3-128 of a record: numbers in 64 bits and digests in 128 bits, least byte
//!   first; texts with their length before them. Every record starts with the version and its kind.
//! * A *shape* is the digest of an array's canonical text, with the default layout where there is
//!   none, or of the digests of a tuple's elements.
//! * An *instruction* is the digest of: opcode, result shape, payload (parameter number, or literal
//!   text with one spelling for negative zeros), the digests of its operands in order, the digests
//!   of the computations it calls by role in order, and its attributes sorted by key, values
//!   without optional whitespace. `control-predecessors` count as edges.
//! * A *computation* is the digest of its root, its execution thread, and all its instructions: in
//!   text order if `schedule` is set, the module is scheduled and not only fusions call the
//!   computation; otherwise sorted by digest, so that text order does not matter. Its sorted
//!   control edges follow.
//! * A *module* is the digest of the entry computation and the header attributes sorted by key,
//!   except attributes with their default value; if the entry's layout is absent, the layouts of
//!   its parameters and result count instead. Computations that the entry does not reach do not
//!   count.
//!
//! Folding in the text (`%x#0`, asynchronous sugar, nested operands) makes no difference.

use super::implied::header_attributes;
use super::names::Names;
use super::order::{is_in_order, row_order};
use super::shape::write_array_meaning;
use super::value::{
    Spacing, is_opaque, is_tight, write_literal, write_value, write_without_layouts,
};
use super::{implicit_callers, is_metadata, thread_of};
use crate::ir::intern::BuildMix;
use crate::ir::{Call, CallRole, ComputationId, Module, Opcode, Row, ShapeId, ShapeView};
use hashbrown::HashMap;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_128;

/// Properties that the fingerprint includes besides the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FingerprintOptions {
    /// Names of the module, its computations and instructions.
    pub names: bool,
    /// `channel_id`, numbers that only have to differ within a module.
    pub channel_ids: bool,
    /// `metadata` and `origin`.
    pub metadata: bool,
    /// Layouts of results, of the entry computation and in attributes.
    pub layouts: bool,
    /// `backend_config`.
    pub backend_config: bool,
    /// The order of instructions in scheduled modules.
    pub schedule: bool,
}

impl Default for FingerprintOptions {
    fn default() -> Self {
        Self {
            names: false,
            channel_ids: false,
            metadata: false,
            layouts: true,
            backend_config: true,
            schedule: true,
        }
    }
}

const VERSION: u64 = 5;

/// The fingerprint of `module`.
pub fn fingerprint(module: &Module, options: &FingerprintOptions) -> [u8; 16] {
    let mut hasher = Hasher {
        module,
        options,
        names: options.names.then(|| Names::new(module, false)),
        rows: vec![0; module.row_count()],
        computations: vec![0; module.computations().len()],
        shapes: Vec::with_capacity(module.shapes().len()),
        is_fused: module.computations_in_fusions(),
        record: Record::default(),
        opcodes: [None; Opcode::ALL.len()],
        attributes: Vec::new(),
        digests: Vec::new(),
        spare: Vec::new(),
        parameters: vec![0; module.shapes().len() * SHARED_PARAMETERS],
        shared: Vec::new(),
        constants: HashMap::default(),
        spaced: HashMap::default(),
        tight: Vec::new(),
    };
    hasher.shapes();
    let callers = implicit_callers(module);
    for id in module.computation_post_order().iter().copied() {
        let thread = module.bytes(thread_of(module, id, &callers));
        let digest = hasher.computation(id, thread);
        if let Some(slot) = hasher.computations.get_mut(id.0 as usize) {
            *slot = digest;
        }
    }
    hasher.module()
}

type Digest = u128;

/// The bytes of which a digest is made.
#[derive(Default)]
struct Record {
    bytes: Vec<u8>,
}

impl Record {
    fn begin(&mut self, kind: u64) {
        self.bytes.clear();
        self.word(VERSION << 32 | kind);
    }

    fn word(&mut self, word: u64) {
        self.bytes.extend_from_slice(&word.to_le_bytes());
    }

    fn digest(&mut self, digest: Digest) {
        self.bytes.extend_from_slice(&digest.to_le_bytes());
    }

    /// Begins a record of two digests.
    fn begin_with(&mut self, kind: u64, one: Digest, other: Digest) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&head(kind, one, other));
    }

    /// Adds `digests` in one piece.
    fn digests(&mut self, digests: &[Digest]) {
        let start = self.bytes.len();
        self.bytes.resize(start + size_of_val(digests), 0);
        let (places, _) = self.bytes[start..].as_chunks_mut();
        for (place, digest) in places.iter_mut().zip(digests) {
            *place = digest.to_le_bytes();
        }
    }

    /// Adds the number of `rows` and the digest of each.
    fn digests_of(&mut self, rows: &[u32], digests: &[Digest]) {
        let of = |row: u32| digests.get(row as usize).copied().unwrap_or_default().to_le_bytes();
        let count = (rows.len() as u64).to_le_bytes();
        // In one piece: most rows have one operand or two.
        match *rows {
            [one] => {
                let mut list = [0; 24];
                list[..8].copy_from_slice(&count);
                list[8..].copy_from_slice(&of(one));
                self.bytes.extend_from_slice(&list);
            }
            [one, other] => {
                let mut list = [0; 40];
                list[..8].copy_from_slice(&count);
                list[8..24].copy_from_slice(&of(one));
                list[24..].copy_from_slice(&of(other));
                self.bytes.extend_from_slice(&list);
            }
            _ => {
                self.bytes.extend_from_slice(&count);
                rows.iter().for_each(|row| self.bytes.extend_from_slice(&of(*row)));
            }
        }
    }

    fn text(&mut self, text: &[u8]) {
        self.word(text.len() as u64);
        self.bytes.extend_from_slice(text);
    }

    /// Adds the text that `write` appends.
    fn written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.word(0);
        write(&mut self.bytes);
        let length = (self.bytes.len() - start - 8) as u64;
        self.bytes[start..start + 8].copy_from_slice(&length.to_le_bytes());
    }

    fn finish(&self) -> Digest {
        xxh3_128(&self.bytes)
    }
}

/// The start of a record of two digests.
fn head(kind: u64, one: Digest, other: Digest) -> [u8; 40] {
    let mut head = [0; 40];
    head[..8].copy_from_slice(&(VERSION << 32 | kind).to_le_bytes());
    head[8..24].copy_from_slice(&one.to_le_bytes());
    head[24..].copy_from_slice(&other.to_le_bytes());
    head
}

/// The digest of an instruction with `operands`, and with neither payload nor calls, attributes or a name. Many
/// instructions are such, and their record of `LENGTH` bytes, 64 and 16 for each operand, needs no list.
fn plain<const LENGTH: usize>(opcode: Digest, shape: Digest, operands: &[Digest]) -> Digest {
    let mut record = [0; LENGTH];
    record[..40].copy_from_slice(&head(2, opcode, shape));
    record[40..48].copy_from_slice(&(operands.len() as u64).to_le_bytes());
    let (places, _) = record[48..].as_chunks_mut();
    for (place, operand) in places.iter_mut().zip(operands) {
        *place = operand.to_le_bytes();
    }
    xxh3_128(&record)
}

/// Sorts digests. They are spread evenly over all numbers, so a group for each value of their first
/// bits has few of them.
fn sort(digests: &mut Vec<Digest>, spare: &mut Vec<Digest>) {
    const FEW: usize = 64;
    const MOST_GROUPS: u32 = 16;
    if digests.len() < FEW {
        return digests.sort_unstable();
    }
    let shift = Digest::BITS - digests.len().ilog2().min(MOST_GROUPS);
    let group = |digest: &Digest| (digest >> shift) as usize;
    let mut starts = vec![0u32; (1 << (Digest::BITS - shift)) + 1];
    digests.iter().for_each(|digest| starts[group(digest) + 1] += 1);
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    spare.clear();
    spare.resize(digests.len(), 0);
    for digest in digests.iter() {
        let place = &mut starts[group(digest)];
        spare[*place as usize] = *digest;
        *place += 1;
    }
    std::mem::swap(digests, spare);
    // Each start has moved to the end of its group.
    let mut first = 0;
    for end in starts.into_iter().map(|end| end as usize) {
        if end > first + 1 {
            digests[first..end].sort_unstable();
        }
        first = end;
    }
}

struct Hasher<'a> {
    module: &'a Module,
    options: &'a FingerprintOptions,
    /// The names of canonical text, if names count. Rows that the text only implies need names too,
    /// because printing must not change the fingerprint.
    names: Option<Names>,
    rows: Vec<Digest>,
    computations: Vec<Digest>,
    shapes: Vec<Digest>,
    /// By computation: whether only fusions call it.
    is_fused: Vec<bool>,
    /// The record of which a digest is being made.
    record: Record,
    /// By opcode: the digest of its text.
    opcodes: [Option<Digest>; Opcode::ALL.len()],
    /// The attributes of one row.
    attributes: Vec<(&'a [u8], &'a [u8])>,
    /// The digests of the rows of one computation.
    digests: Vec<Digest>,
    /// Room for sorting them.
    spare: Vec<Digest>,
    /// By shape and small number: the place in `shared`, from 1, of the digest of a parameter without
    /// attributes; 0 if not known yet. Most parameters are those of fused computations.
    parameters: Vec<u32>,
    shared: Vec<Digest>,
    /// By shape and literal: the digest of a constant without attributes.
    constants: HashMap<(ShapeId, &'a [u8]), Digest, BuildMix>,
    /// Values with spaces: where their form without them is in `tight`. Layers without a loop repeat them.
    spaced: HashMap<&'a [u8], Range<usize>, BuildMix>,
    tight: Vec<u8>,
}

/// Parameters with smaller numbers share their digests.
const SHARED_PARAMETERS: usize = 4;

/// Limit on the bytes of literals and values that are looked up; most are much shorter.
const LONGEST_SHARED: usize = 256;

impl<'a> Hasher<'a> {
    /// Computes the digests of all shapes; the digest of a tuple is computed from the digests of
    /// its elements.
    fn shapes(&mut self) {
        let table = self.module.shapes();
        for id in table.ids() {
            let of = |id: ShapeId| self.shapes.get(id.0 as usize).copied().unwrap_or_default();
            let record = &mut self.record;
            record.begin(1);
            match table.get(id) {
                ShapeView::Array(_) => {
                    record.written(|out| write_array_meaning(out, table, id, self.options.layouts));
                }
                ShapeView::Buffer(inner) => {
                    record.text(b"b");
                    record.digest(of(inner));
                }
                ShapeView::Tuple(elements) => {
                    record.word(elements.len() as u64);
                    elements.iter().for_each(|element| record.digest(of(*element)));
                }
            }
            self.shapes.push(record.finish());
        }
    }

    /// Computes the digest of `row`, whose calls are `calls`.
    fn add_row(&mut self, row: Row, calls: &[Call], all: &mut Vec<Digest>) {
        let digest = self.row(row, calls);
        if let Some(slot) = self.rows.get_mut(row.0 as usize) {
            *slot = digest;
        }
        all.push(digest);
    }

    fn row(&mut self, row: Row, calls: &[Call]) -> Digest {
        match self.module.opcode(row) {
            Opcode::Parameter => self.parameter(row, calls),
            Opcode::Constant => self.constant(row, calls),
            _ => self.row_alone(row, calls),
        }
    }

    /// Whether neither attributes nor a name count for `row`.
    #[inline]
    fn is_bare(&self, row: Row) -> bool {
        self.module.tail(row).is_empty()
            || !self.options.metadata && self.module.has_only_metadata(row)
    }

    fn constant(&mut self, row: Row, calls: &[Call]) -> Digest {
        let module = self.module;
        let literal = module.bytes(module.opcode_and_payload(row).1);
        let is_shared = literal.len() <= LONGEST_SHARED
            && calls.is_empty()
            && self.names.is_none()
            && self.is_bare(row);
        if !is_shared {
            return self.row_alone(row, calls);
        }
        let key = (module.shape(row), literal);
        if let Some(digest) = self.constants.get(&key) {
            return *digest;
        }
        let digest = self.row_alone(row, calls);
        self.constants.insert(key, digest);
        digest
    }

    fn parameter(&mut self, row: Row, calls: &[Call]) -> Digest {
        let Some(place) = self.shared_parameter(row) else { return self.row_alone(row, calls) };
        let known = self
            .parameters
            .get(place)
            .and_then(|own| self.shared.get((*own as usize).checked_sub(1)?));
        if let Some(digest) = known {
            return *digest;
        }
        let digest = self.row_alone(row, calls);
        self.shared.push(digest);
        if let Some(slot) = self.parameters.get_mut(place) {
            *slot = self.shared.len() as u32;
        }
        digest
    }

    /// The place in `parameters` of `row`; None if other properties than shape and number count.
    fn shared_parameter(&self, row: Row) -> Option<usize> {
        let module = self.module;
        let is_plain = module.opcode(row) == Opcode::Parameter
            && self.names.is_none()
            && module.tail(row).is_empty();
        let number = usize::try_from(module.parameter_number(row).filter(|_| is_plain)?).ok()?;
        let shape = module.shape(row).0 as usize;
        (number < SHARED_PARAMETERS).then_some(shape * SHARED_PARAMETERS + number)
    }

    fn row_alone(&mut self, row: Row, calls: &[Call]) -> Digest {
        let module = self.module;
        let opcode = self.opcode(row);
        let shape = self.shapes.get(module.shape(row).0 as usize).copied().unwrap_or_default();
        let is_plain = calls.is_empty() && self.names.is_none() && self.is_bare(row);
        let has_payload = matches!(module.opcode(row), Opcode::Parameter | Opcode::Constant);
        if is_plain && !has_payload {
            let of = |row: u32| self.rows.get(row as usize).copied().unwrap_or_default();
            match *module.operands(row) {
                [one] => return plain::<80>(opcode, shape, &[of(one)]),
                [one, other] => return plain::<96>(opcode, shape, &[of(one), of(other)]),
                _ => {}
            }
        }
        let record = &mut self.record;
        record.begin_with(2, opcode, shape);
        match module.opcode(row) {
            Opcode::Parameter => record.word(module.parameter_number(row).unwrap_or(u64::MAX)),
            Opcode::Constant => {
                let payload = module.bytes(module.opcode_and_payload(row).1);
                record.written(|out| write_literal(out, payload, Spacing::Tight));
            }
            _ => {}
        }
        record.digests_of(module.operands(row), &self.rows);
        if is_plain {
            // Neither calls nor attributes.
            self.record.bytes.extend_from_slice(&[0; 16]);
        } else {
            self.calls(calls);
            self.attributes(row, calls);
        }
        if let Some(names) = &self.names {
            self.record.text(names.row(module, row));
        }
        self.record.finish()
    }

    /// The digest of the text of the opcode of `row`.
    fn opcode(&mut self, row: Row) -> Digest {
        match self.module.opcode(row) {
            Opcode::Unknown => xxh3_128(self.module.opcode_text(row)),
            opcode => match self.opcodes.get_mut(opcode as usize) {
                Some(known) => *known.get_or_insert_with(|| xxh3_128(opcode.as_str().as_bytes())),
                None => xxh3_128(opcode.as_str().as_bytes()),
            },
        }
    }

    /// Adds calls sorted by role; the computations of one role stay in text order.
    fn calls(&mut self, calls: &[Call]) {
        self.record.word(calls.len() as u64);
        let mut add = |call: &Call| {
            let callee = self.computations.get(call.computation.0 as usize);
            self.record.text(call.role.as_str().as_bytes());
            self.record.digest(callee.copied().unwrap_or_default());
        };
        if calls.is_sorted_by_key(|call| call.role.as_str()) {
            calls.iter().for_each(add);
        } else {
            let mut sorted: Vec<&Call> = calls.iter().collect();
            sorted.sort_by_key(|call| call.role.as_str());
            sorted.into_iter().for_each(&mut add);
        }
    }

    fn attributes(&mut self, row: Row, calls: &[Call]) {
        let module = self.module;
        if self.is_bare(row) {
            self.record.word(0);
            return;
        }
        let mut attributes = std::mem::take(&mut self.attributes);
        attributes.clear();
        let options = self.options;
        let mut add = |key: &'a [u8], value: &'a [u8]| {
            let is_left_out = match key {
                b"control-predecessors" => true,
                b"backend_config" => !options.backend_config,
                b"channel_id" => !options.channel_ids,
                b"operand_layout_constraints" => !options.layouts,
                _ if !options.metadata && is_metadata(key) => true,
                _ if calls.is_empty() => false,
                _ => CallRole::from_key(key).is_some_and(|role| {
                    calls.iter().any(|call| call.role.as_str() == role.as_str())
                }),
            };
            if !is_left_out {
                attributes.push((key, value));
            }
        };
        match module.printed_attributes(row, options.metadata) {
            Some(printed) => printed.for_each(|(key, value)| add(key, value)),
            None => {
                for attribute in module.attributes(row) {
                    add(module.bytes(attribute.key), module.bytes(attribute.value));
                }
            }
        }
        if attributes.len() > 1 {
            // Stable: the first of repeated keys counts.
            attributes.sort_by_key(|(key, _)| *key);
            attributes.dedup_by_key(|(key, _)| *key);
        }
        let record = &mut self.record;
        record.word(attributes.len() as u64);
        for (key, value) in &attributes {
            record.text(key);
            if *key == b"outfeed_shape" && !self.options.layouts {
                record.written(|out| write_without_layouts(out, value));
            } else if is_opaque(key, value) || is_tight(value) {
                record.text(value);
            } else if *key == b"frontend_attributes" || value.len() > LONGEST_SHARED {
                record.written(|out| write_value(out, key, value, Spacing::Tight));
            } else {
                let tight = &mut self.tight;
                let place = self.spaced.entry(*value).or_insert_with(|| {
                    let start = tight.len();
                    write_value(tight, key, value, Spacing::Tight);
                    start..tight.len()
                });
                record.text(tight.get(place.clone()).unwrap_or_default());
            }
        }
        self.attributes = attributes;
    }

    fn computation(&mut self, id: ComputationId, thread: &[u8]) -> Digest {
        let module = self.module;
        let mut all = std::mem::take(&mut self.digests);
        all.clear();
        if is_in_order(module, id) {
            let rows = module.computation(id).rows();
            all.reserve(rows.len());
            // The calls of the rows that follow.
            let mut calls = &module.all_calls()[module.calls_within(id)];
            for row in rows.map(Row) {
                let own = calls.iter().take_while(|call| call.row == row).count();
                let (own, others) = calls.split_at(own);
                calls = others;
                self.add_row(row, own, &mut all);
            }
        } else {
            for row in row_order(module, id) {
                self.add_row(row, module.calls(row), &mut all);
            }
        }
        let of = |row: Row| self.rows.get(row.0 as usize).copied().unwrap_or_default();
        let is_fused = self.is_fused.get(id.0 as usize) == Some(&true);
        if is_fused || !(self.options.schedule && module.is_scheduled()) {
            sort(&mut all, &mut self.spare);
        }
        let computation = module.computation(id);
        let record = &mut self.record;
        record.begin(3);
        record.digest(of(Row(computation.root)));
        let thread = thread.get(1..thread.len().saturating_sub(1)).unwrap_or_default();
        record.text(if thread == b"main" { b"" } else { thread });
        if let Some(names) = &self.names {
            record.text(names.computation(module, id));
        }
        record.word(all.len() as u64);
        record.digests(&all);
        self.digests = all;
        let pairs = module.control_predecessors();
        let from = pairs.partition_point(|(row, _)| row.0 < computation.first_row);
        let to = pairs.partition_point(|(row, _)| row.0 < computation.end_row);
        let edges = pairs.get(from..to).unwrap_or_default().iter();
        let mut edges: Vec<(Digest, Digest)> = edges.map(|(row, p)| (of(*row), of(*p))).collect();
        edges.sort_unstable();
        record.word(edges.len() as u64);
        for (row, predecessor) in edges {
            record.digest(row);
            record.digest(predecessor);
        }
        record.finish()
    }

    fn module(&mut self) -> [u8; 16] {
        let module = self.module;
        let entry = self.computations.get(module.entry().0 as usize);
        let record = &mut self.record;
        record.begin(4);
        record.digest(entry.copied().unwrap_or_default());
        if self.options.names {
            record.text(module.name());
        }
        for (key, value) in header_attributes(module, self.options.layouts, self.options.metadata) {
            let is_left_out = !self.options.schedule && key == b"is_scheduled"
                || !self.options.layouts && key == b"entry_computation_layout";
            if !is_left_out {
                record.text(key);
                record.text(&value);
            }
        }
        record.finish().to_be_bytes()
    }
}
