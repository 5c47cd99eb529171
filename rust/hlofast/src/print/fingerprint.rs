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
    /// By shape and small number: the digest of a parameter without attributes; 0 if not known yet.
    /// Most parameters are those of fused computations.
    parameters: Vec<Digest>,
}

/// Parameters with smaller numbers share their digests.
const SHARED_PARAMETERS: usize = 4;

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

    fn add_row(&mut self, row: Row, all: &mut Vec<Digest>) {
        let digest = self.row(row);
        if let Some(slot) = self.rows.get_mut(row.0 as usize) {
            *slot = digest;
        }
        all.push(digest);
    }

    fn row(&mut self, row: Row) -> Digest {
        let shared = self.shared_parameter(row);
        let known = shared.and_then(|place| self.parameters.get(place));
        if let Some(digest) = known.copied().filter(|digest| *digest != 0) {
            return digest;
        }
        let digest = self.row_alone(row);
        if let Some(slot) = shared.and_then(|place| self.parameters.get_mut(place)) {
            *slot = digest;
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

    fn row_alone(&mut self, row: Row) -> Digest {
        let module = self.module;
        let opcode = self.opcode(row);
        let shape = self.shapes.get(module.shape(row).0 as usize).copied().unwrap_or_default();
        let record = &mut self.record;
        record.begin(2);
        record.digest(opcode);
        record.digest(shape);
        match module.opcode(row) {
            Opcode::Parameter => record.word(module.parameter_number(row).unwrap_or(u64::MAX)),
            Opcode::Constant => {
                let payload = module.bytes(module.opcode_and_payload(row).1);
                record.written(|out| write_literal(out, payload, Spacing::Tight));
            }
            _ => {}
        }
        let operands = module.operands(row);
        record.word(operands.len() as u64);
        for operand in operands {
            record.digest(self.rows.get(*operand as usize).copied().unwrap_or_default());
        }
        let calls = module.calls(row);
        self.calls(calls);
        self.attributes(row, calls);
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
        let is_bare = module.tail(row).is_empty();
        if is_bare || !self.options.metadata && module.has_only_metadata(row) {
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
            } else {
                record.written(|out| write_value(out, key, value, Spacing::Tight));
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
            rows.for_each(|row| self.add_row(Row(row), &mut all));
        } else {
            row_order(module, id).into_iter().for_each(|row| self.add_row(row, &mut all));
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
        all.iter().for_each(|digest| record.digest(*digest));
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
