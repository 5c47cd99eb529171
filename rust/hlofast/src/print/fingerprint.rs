//! A stable 128-bit fingerprint of the computation in a module.
//!
//! The algorithm (version 4) gives equal results on every machine and in every run:
//!
//! * A *digest* absorbs a sequence of 64-bit words into two lanes with multiplications that keep
//!   both halves of the product; bytes are absorbed as their length and little-endian words, or, if
//!   there are 64 or more, as their length and the two words of their XXH3-128.
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
use super::order::row_order;
use super::shape::write_array_meaning;
use super::value::{
    Spacing, is_opaque, is_tight, write_literal, write_value, write_without_layouts,
};
use super::{Seen, implicit_callers, is_metadata, thread_of};
use crate::ir::{Call, CallRole, ComputationId, Module, Opcode, Row, ShapeId, ShapeView};
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

const VERSION: u64 = 4;

/// Bytes from which XXH3 is faster.
const LONG: usize = 64;

/// The fingerprint of `module`.
pub fn fingerprint(module: &Module, options: &FingerprintOptions) -> [u8; 16] {
    let mut hasher = Hasher {
        module,
        options,
        names: options.names.then(|| Names::new(module, false)),
        rows: vec![(0, 0); module.row_count()],
        computations: vec![(0, 0); module.computations().len()],
        shapes: Vec::with_capacity(module.shapes().len()),
        is_fused: module.computations_in_fusions(),
        buffer: Vec::new(),
        begun: [None; Opcode::ALL.len()],
        attributes: Vec::new(),
        seen: Seen::default(),
    };
    hasher.shapes();
    let callers = implicit_callers(module);
    for id in module.computation_post_order() {
        let thread = module.bytes(thread_of(module, id, &callers));
        let digest = hasher.computation(id, thread);
        if let Some(slot) = hasher.computations.get_mut(id.0 as usize) {
            *slot = digest;
        }
    }
    hasher.module()
}

/// Two 64-bit lanes.
#[derive(Clone, Copy)]
struct Digest(u64, u64);

type Lanes = (u64, u64);

impl Digest {
    fn new(kind: u64) -> Self {
        let mut digest = Self(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
        digest.word(VERSION);
        digest.word(kind);
        digest
    }

    fn word(&mut self, word: u64) {
        let fold = |value: u64, factor: u64| {
            let product = u128::from(value) * u128::from(factor);
            (product as u64) ^ ((product >> 64) as u64)
        };
        let (first, second) = (self.0, self.1);
        self.0 = fold(first ^ word, 0x9e37_79b9_7f4a_7c15).wrapping_add(second.rotate_left(23));
        self.1 = fold(second ^ word.rotate_left(32), 0xd6e8_feb8_6659_fd93)
            .wrapping_add(first.rotate_left(41));
    }

    fn lanes(&mut self, lanes: Lanes) {
        self.word(lanes.0);
        self.word(lanes.1);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        if bytes.len() >= LONG {
            let digest = xxh3_128(bytes);
            self.word(digest as u64);
            self.word((digest >> 64) as u64);
            return;
        }
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            self.word(rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    fn finish(mut self) -> Lanes {
        self.word(0);
        self.word(u64::MAX);
        (self.0, self.1)
    }
}

struct Hasher<'a> {
    module: &'a Module,
    options: &'a FingerprintOptions,
    /// The names of canonical text, if names count. Rows that the text only implies need names too,
    /// because printing must not change the fingerprint.
    names: Option<Names>,
    rows: Vec<Lanes>,
    computations: Vec<Lanes>,
    shapes: Vec<Lanes>,
    /// By computation: whether only fusions call it.
    is_fused: Vec<bool>,
    buffer: Vec<u8>,
    /// By opcode: the digest from which the digests of its rows start.
    begun: [Option<Digest>; Opcode::ALL.len()],
    /// The attributes of one row.
    attributes: Vec<(&'a [u8], &'a [u8])>,
    seen: Seen<'a>,
}

impl<'a> Hasher<'a> {
    /// Computes the digests of all shapes; the digest of a tuple is computed from the digests of
    /// its elements.
    fn shapes(&mut self) {
        let table = self.module.shapes();
        for id in table.ids() {
            let of = |id: ShapeId| self.shapes.get(id.0 as usize).copied().unwrap_or_default();
            let mut digest = Digest::new(1);
            match table.get(id) {
                ShapeView::Array(_) => {
                    self.buffer.clear();
                    write_array_meaning(&mut self.buffer, table, id, self.options.layouts);
                    digest.bytes(&self.buffer);
                }
                ShapeView::Buffer(inner) => {
                    digest.bytes(b"b");
                    digest.lanes(of(inner));
                }
                ShapeView::Tuple(elements) => {
                    digest.word(elements.len() as u64);
                    elements.iter().for_each(|element| digest.lanes(of(*element)));
                }
            }
            self.shapes.push(digest.finish());
        }
    }

    fn row(&mut self, row: Row) -> Lanes {
        let module = self.module;
        let mut digest = self.begin(row);
        let shape = self.shapes.get(module.shape(row).0 as usize);
        digest.lanes(shape.copied().unwrap_or_default());
        match module.opcode(row) {
            Opcode::Parameter => digest.word(module.parameter_number(row).unwrap_or(u64::MAX)),
            Opcode::Constant => {
                self.buffer.clear();
                let payload = module.bytes(module.opcode_and_payload(row).1);
                write_literal(&mut self.buffer, payload, Spacing::Tight);
                digest.bytes(&self.buffer);
            }
            _ => {}
        }
        let operands = module.operands(row);
        digest.word(operands.len() as u64);
        for operand in operands {
            digest.lanes(self.rows.get(*operand as usize).copied().unwrap_or_default());
        }
        let calls = module.calls(row);
        self.calls(calls, &mut digest);
        self.attributes(row, calls, &mut digest);
        if let Some(names) = &self.names {
            digest.bytes(names.row(module, row));
        }
        digest.finish()
    }

    /// The digest of the opcode of `row`, to be continued.
    fn begin(&mut self, row: Row) -> Digest {
        let begin = |text: &[u8]| {
            let mut digest = Digest::new(2);
            digest.bytes(text);
            digest
        };
        match self.module.opcode(row) {
            Opcode::Unknown => begin(self.module.opcode_text(row)),
            opcode => match self.begun.get_mut(opcode as usize) {
                Some(known) => *known.get_or_insert_with(|| begin(opcode.as_str().as_bytes())),
                None => begin(opcode.as_str().as_bytes()),
            },
        }
    }

    /// Absorbs calls sorted by role; the computations of one role stay in text order.
    fn calls(&self, calls: &[Call], digest: &mut Digest) {
        digest.word(calls.len() as u64);
        let mut add = |call: &Call| {
            let callee = self.computations.get(call.computation.0 as usize);
            digest.bytes(call.role.as_str().as_bytes());
            digest.lanes(callee.copied().unwrap_or_default());
        };
        if calls.is_sorted_by_key(|call| call.role.as_str()) {
            calls.iter().for_each(add);
        } else {
            let mut sorted: Vec<&Call> = calls.iter().collect();
            sorted.sort_by_key(|call| call.role.as_str());
            sorted.into_iter().for_each(&mut add);
        }
    }

    fn attributes(&mut self, row: Row, calls: &[Call], digest: &mut Digest) {
        let module = self.module;
        let mut attributes = std::mem::take(&mut self.attributes);
        let mut seen = std::mem::take(&mut self.seen);
        attributes.clear();
        seen.clear();
        for attribute in module.attributes(row) {
            let key = module.bytes(attribute.key);
            if !seen.is_new(key) {
                continue;
            }
            let is_edge = key == b"control-predecessors"
                || !calls.is_empty()
                    && CallRole::from_key(key).is_some_and(|role| {
                        calls.iter().any(|call| call.role.as_str() == role.as_str())
                    });
            let is_left_out = !self.options.metadata && is_metadata(key)
                || !self.options.backend_config && key == b"backend_config"
                || !self.options.channel_ids && key == b"channel_id"
                || !self.options.layouts && key == b"operand_layout_constraints";
            if !is_edge && !is_left_out {
                attributes.push((key, module.bytes(attribute.value)));
            }
        }
        attributes.sort_unstable();
        digest.word(attributes.len() as u64);
        for (key, value) in &attributes {
            digest.bytes(key);
            self.buffer.clear();
            if *key == b"outfeed_shape" && !self.options.layouts {
                write_without_layouts(&mut self.buffer, value);
            } else if is_opaque(key, value) || is_tight(value) {
                digest.bytes(value);
                continue;
            } else {
                write_value(&mut self.buffer, key, value, Spacing::Tight);
            }
            digest.bytes(&self.buffer);
        }
        (self.attributes, self.seen) = (attributes, seen);
    }

    fn computation(&mut self, id: ComputationId, thread: &[u8]) -> Lanes {
        let module = self.module;
        let rows = row_order(module, id);
        for row in &rows {
            let lanes = self.row(*row);
            if let Some(slot) = self.rows.get_mut(row.0 as usize) {
                *slot = lanes;
            }
        }
        let of = |row: Row| self.rows.get(row.0 as usize).copied().unwrap_or_default();
        let mut all: Vec<Lanes> = rows.iter().map(|row| of(*row)).collect();
        let is_fused = self.is_fused.get(id.0 as usize) == Some(&true);
        if is_fused || !(self.options.schedule && module.is_scheduled()) {
            all.sort_unstable();
        }
        let computation = module.computation(id);
        let mut digest = Digest::new(3);
        digest.lanes(of(Row(computation.root)));
        let thread = thread.get(1..thread.len().saturating_sub(1)).unwrap_or_default();
        digest.bytes(if thread == b"main" { b"" } else { thread });
        if let Some(names) = &self.names {
            digest.bytes(names.computation(module, id));
        }
        digest.word(all.len() as u64);
        all.into_iter().for_each(|lanes| digest.lanes(lanes));
        let pairs = module.control_predecessors();
        let from = pairs.partition_point(|(row, _)| row.0 < computation.first_row);
        let to = pairs.partition_point(|(row, _)| row.0 < computation.end_row);
        let edges = pairs.get(from..to).unwrap_or_default().iter();
        let mut edges: Vec<(Lanes, Lanes)> = edges.map(|(row, p)| (of(*row), of(*p))).collect();
        edges.sort_unstable();
        digest.word(edges.len() as u64);
        for (row, predecessor) in edges {
            digest.lanes(row);
            digest.lanes(predecessor);
        }
        digest.finish()
    }

    fn module(&mut self) -> [u8; 16] {
        let module = self.module;
        let mut digest = Digest::new(4);
        let entry = self.computations.get(module.entry().0 as usize);
        digest.lanes(entry.copied().unwrap_or_default());
        if self.options.names {
            digest.bytes(module.name());
        }
        for (key, value) in header_attributes(module, self.options.layouts, self.options.metadata) {
            let is_left_out = !self.options.schedule && key == b"is_scheduled"
                || !self.options.layouts && key == b"entry_computation_layout";
            if !is_left_out {
                digest.bytes(key);
                digest.bytes(&value);
            }
        }
        let (first, second) = digest.finish();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..].copy_from_slice(&second.to_be_bytes());
        bytes
    }
}
