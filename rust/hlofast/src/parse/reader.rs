//! The state of a parse: the columns so far, the scopes, and the references still to be resolved.

use super::Options;
use super::fragment::Missing;
use super::infer::Signatures;
use super::names::{HashKeys, InstructionNames, Scope, equal};
use super::shape::parse_shape;
use super::unclosed::Unclosed;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::{
    Call, CallRole, Columns, Computation, ComputationId, Flags, Header, Opcode, Row, ShapeId,
    ShapeInterner,
};
use crate::text::kernel::{KernelChoice, LineMasks};
use crate::text::{Cursor, Outline, Span, is_identifier_byte};
use std::collections::VecDeque;
use std::ops::Range;

/// An operand or control predecessor named before its definition.
pub(super) struct Pending {
    pub row: u32,
    /// Index into `columns.operands`, or `None` for a control predecessor.
    pub slot: Option<u32>,
    pub name: Span,
}

/// A computation that is read after the computation that contains it.
pub(super) enum Queued {
    /// A block `{...}` in place of a name, nested in `depth` others.
    Inline { call: u32, body: Span, depth: u32 },
    /// The computation wrapped by async sugar: `opcode` with the attributes in `tail`. `blocks` are
    /// the indices of `calls` that are blocks.
    Wrapped {
        depth: u32,
        call: u32,
        start: Row,
        opcode: Opcode,
        tail: Span,
        calls: Vec<(Span, CallRole)>,
        blocks: Vec<usize>,
    },
}

/// Distinct shape texts and their ids.
#[derive(Default)]
pub(super) struct ShapeTexts {
    scope: Option<Scope>,
    spans: Vec<(u32, u32)>,
    ids: Vec<ShapeId>,
}

/// Everything that a parse builds.
pub(super) struct Reader<'a> {
    /// The text up to the end of this reader's part.
    pub text: &'a [u8],
    /// The whole text; the arena's offsets follow the offsets of the text.
    pub whole: &'a [u8],
    pub options: Options,
    pub kernel: KernelChoice,
    pub keys: HashKeys,
    /// Scratch space of the fast path.
    pub masks: LineMasks,
    pub arena: Vec<u8>,
    pub header: Header,
    pub columns: Columns,
    pub calls: Vec<Call>,
    pub control_predecessors: Vec<(Row, Row)>,
    pub computations: Vec<Computation>,
    pub entry: Option<u32>,
    pub shapes: ShapeInterner,
    pub shape_texts: ShapeTexts,
    /// The last few tuple types written before operands: start and length.
    pub tuple_types: [(usize, usize); 6],
    pub errors: Vec<ParseError>,
    /// Instruction names of the computation being read.
    pub scope: Scope,
    /// Computation names.
    pub computation_scope: Scope,
    pub computation_names: Vec<(u32, u32)>,
    /// Calls of computations that are not defined yet: index into `calls`, name.
    pub pending_calls: Vec<(u32, Span)>,
    pub pending: Vec<Pending>,
    pub queue: VecDeque<Queued>,
    /// (number, row) of the parameters of the computation being read.
    pub parameters: Vec<(u64, u32)>,
    /// Position in `parameters` by number, for the first `indexed_parameters` entries; only filled
    /// if operand lists contain parameters.
    pub parameter_index: hashbrown::HashMap<u64, usize, crate::ir::intern::BuildMix>,
    pub indexed_parameters: usize,
    /// Implicit get-tuple-elements of the computation being read, by (operand row, index).
    pub tuple_elements: hashbrown::HashMap<(u32, u32), u32, crate::ir::intern::BuildMix>,
    /// The keys of `tuple_elements` in the order of insertion, to undo insertions.
    pub tuple_element_keys: Vec<(u32, u32)>,
    /// Rows of nested instructions of the computation being read, by their generated names.
    pub anonymous: hashbrown::HashMap<Box<[u8]>, u32, crate::ir::intern::BuildMix>,
    /// The keys of `anonymous` in the order of their rows.
    pub anonymous_keys: Vec<Box<[u8]>>,
    /// First row of the computation being read.
    pub first_row: u32,
    pub root: Option<u32>,
    /// The fast path failed on text below this offset.
    pub general_until: usize,
    /// Whether a computation was read after the computation that contains its text; it may call
    /// that computation.
    pub has_late_calls: bool,
    /// Number of blocks around the computation being read.
    pub depth: u32,
    /// Bytes that deeply nested blocks may still contain, counted once per level.
    pub block_budget: usize,
    /// Bytes that may still be read again after faults; the limit keeps the collection of faults
    /// linear.
    pub budget: usize,
    /// Operand slots that start below this offset cannot be dropped.
    pub undroppable: usize,
    /// Unclosed brackets found so far, if the reader follows brackets before it reads instructions.
    pub unclosed: Unclosed,
    /// Positions in the text that are known in advance, and the next line.
    pub outline: Outline,
    pub outlined: usize,
    pub outlined_headers: usize,
    /// The shapes by the outline's numbers; `u32::MAX` for shapes that have not occurred yet.
    pub outlined_shapes: Vec<ShapeId>,
    /// Where the general path stopped in the last instruction.
    pub reached: usize,
    /// Whether this reader's part is the beginning of the text.
    pub is_first_part: bool,
    /// Whether unknown typed operands become parameters (single-instruction text).
    pub single_instruction: bool,
    /// Rows of the parameters that unknown operands became, by name.
    pub single_parameters: hashbrown::HashMap<Box<[u8]>, u32, crate::ir::intern::BuildMix>,
    /// Set while the text is read as pieces of a module.
    pub missing: Option<Box<Missing<'a>>>,
    /// Signatures of computations that shape inference asked for.
    pub signatures: Signatures,
    /// How many readers wait for the signature of the block that this reader reads.
    pub block_level: u8,
    /// Bytes that deeply nested blocks may still contain, counted once per reading for a signature.
    pub signature_budget: usize,
}

/// The lengths of the columns before an instruction, to remove the instruction after a fault.
pub(super) struct Mark {
    rows: usize,
    operands: usize,
    calls: usize,
    pending: usize,
    pending_calls: usize,
    control: usize,
    queue: usize,
    parameters: usize,
    tuple_elements: usize,
    anonymous: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a [u8], options: Options) -> Self {
        let mut reader = Self {
            text,
            whole: text,
            options,
            kernel: KernelChoice::detect(options.force_scalar),
            keys: HashKeys::new(),
            masks: LineMasks::default(),
            arena: Vec::new(),
            header: Header::default(),
            columns: Columns::default(),
            calls: Vec::new(),
            control_predecessors: Vec::new(),
            computations: Vec::new(),
            entry: None,
            shapes: ShapeInterner::default(),
            shape_texts: ShapeTexts::default(),
            tuple_types: [(0, 0); 6],
            errors: Vec::new(),
            scope: Scope::new(),
            computation_scope: Scope::new(),
            computation_names: Vec::new(),
            pending_calls: Vec::new(),
            pending: Vec::new(),
            queue: VecDeque::new(),
            parameters: Vec::new(),
            parameter_index: hashbrown::HashMap::default(),
            indexed_parameters: 0,
            tuple_elements: hashbrown::HashMap::default(),
            tuple_element_keys: Vec::new(),
            anonymous: hashbrown::HashMap::default(),
            anonymous_keys: Vec::new(),
            first_row: 0,
            root: None,
            general_until: if options.force_general { usize::MAX } else { 0 },
            has_late_calls: false,
            depth: 0,
            block_budget: block_budget(text.len()),
            budget: text.len().saturating_mul(16).saturating_add(1 << 20),
            outline: Outline::default(),
            outlined: 0,
            outlined_headers: 0,
            outlined_shapes: Vec::new(),
            reached: 0,
            undroppable: 0,
            unclosed: Unclosed::UNCHECKED,
            is_first_part: true,
            single_instruction: false,
            single_parameters: hashbrown::HashMap::default(),
            missing: None,
            signatures: Signatures::default(),
            block_level: 0,
            signature_budget: block_budget(text.len()),
        };
        reader.columns.value_offsets.push(0);
        reader.columns.operand_offsets.push(0);
        reader
    }

    /// A reader of `part` of `whole`; offsets count from the start of `whole`.
    pub fn of_part(whole: &'a [u8], part: Range<usize>, options: Options) -> Self {
        let mut reader = Self::new(&[], options);
        reader.text = &whole[..part.end];
        reader.whole = whole;
        reader.block_budget = block_budget(part.len());
        reader.signature_budget = reader.block_budget;
        reader.is_first_part = false;
        reader.reserve(part.len());
        reader
    }

    /// The offset of the arena's first byte.
    pub fn arena_base(&self) -> usize {
        self.whole.len()
    }

    /// Sizes the columns for the text from `position` on, where the first computation begins. Text
    /// that is not a module therefore takes no memory.
    pub fn reserve_from(&mut self, position: usize) {
        if self.columns.opcodes.capacity() == 0 {
            self.reserve(self.text.len().saturating_sub(position));
        }
    }

    /// Sizes the columns for `bytes` of text, so that they rarely grow; unused capacity is released
    /// at the end.
    fn reserve(&mut self, bytes: usize) {
        let rows = bytes / 72;
        let columns = &mut self.columns;
        columns.opcodes.reserve(rows);
        columns.flags.reserve(rows);
        columns.shapes.reserve(rows);
        columns.name_starts.reserve(rows);
        columns.name_lengths.reserve(rows);
        columns.tail_starts.reserve(rows);
        columns.tail_ends.reserve(rows);
        columns.metadata_starts.reserve(rows);
        columns.value_ends.reserve(2 * rows);
        columns.value_offsets.reserve(rows);
        columns.operand_offsets.reserve(rows);
        columns.operands.reserve(rows + rows / 2);
    }

    pub fn cursor(&self, position: usize) -> Cursor<'a> {
        let mut cursor = Cursor::new(self.text);
        cursor.set_position(position);
        cursor
    }

    /// The row that the next `push_row` will get.
    pub fn next_row(&self) -> u32 {
        self.columns.opcodes.len() as u32
    }

    /// Appends a row; its operands must already be in `columns.operands`, the ends of its attribute
    /// values, if they are known, in `columns.value_ends`.
    #[inline(always)]
    pub fn push_row(
        &mut self,
        opcode: Opcode,
        flags: u8,
        shape: ShapeId,
        name: (usize, usize),
        tail: Span,
        metadata: u32,
    ) {
        let columns = &mut self.columns;
        columns.opcodes.push(opcode);
        columns.flags.push(flags);
        columns.shapes.push(shape);
        columns.name_starts.push(name.0 as u32);
        columns.name_lengths.push(name.1.min(255) as u8);
        columns.tail_starts.push(tail.start);
        columns.tail_ends.push(tail.end);
        columns.metadata_starts.push(metadata);
        columns.value_offsets.push(columns.value_ends.len() as u32);
        columns.operand_offsets.push(columns.operands.len() as u32);
    }

    /// Inserts the name of the next row; an error if it is taken.
    #[inline(always)]
    pub fn define(&mut self, name: (usize, usize)) -> Result<()> {
        let hash = self.keys.hash(self.text, name.0, name.1);
        self.define_hashed(name, hash)
    }

    /// Like `define`, with a known hash.
    #[inline(always)]
    pub fn define_hashed(&mut self, name: (usize, usize), hash: u32) -> Result<()> {
        let names = InstructionNames {
            starts: &self.columns.name_starts,
            lengths: &self.columns.name_lengths,
        };
        let row = self.columns.opcodes.len() as u32;
        match self.scope.insert(&names, self.text, name, hash, row) {
            None => Ok(()),
            Some(known) => Err(self.duplicate_instruction(name, known)),
        }
    }

    #[cold]
    #[inline(never)]
    pub fn duplicate_instruction(&self, name: (usize, usize), known: u32) -> ParseError {
        let span = Span::new(name.0, name.0 + name.1);
        let shown = String::from_utf8_lossy(&self.text[span.range()]);
        let first = self.columns.name_starts[known as usize] as usize;
        ParseError::new(
            ErrorKind::DuplicateInstruction,
            span,
            format!("instruction {shown} is defined twice in this computation"),
        )
        .with_related(Span::new(first, first + name.1))
    }

    /// Whether `row` of the computation being read has this name.
    #[inline(always)]
    pub fn is_named(&self, row: u32, name: (usize, usize)) -> bool {
        let columns = &self.columns;
        let (Some(start), Some(length)) =
            (columns.name_starts.get(row as usize), columns.name_lengths.get(row as usize))
        else {
            return false;
        };
        row >= self.first_row
            && *length < u8::MAX
            && *length as usize == name.1
            && columns.flags[row as usize] & Flags::IMPLICIT == 0
            && equal(self.text, *start as usize, name.0, name.1)
    }

    /// The span of the name of `row`.
    pub fn row_name(&self, row: u32) -> Span {
        let start = self.columns.name_starts[row as usize] as usize;
        match self.columns.name_lengths[row as usize] {
            u8::MAX => {
                let base = self.arena_base();
                let end = if start < base { base } else { base + self.arena.len() };
                let rest = self.bytes(Span::new(start, end)).iter();
                let length = rest.take_while(|b| is_identifier_byte(**b) || **b == b'#').count();
                Span::new(start, start + length)
            }
            length => Span::new(start, start + length as usize),
        }
    }

    /// The row with this name in the computation being read.
    #[inline(always)]
    pub fn lookup(&self, name: (usize, usize)) -> Option<u32> {
        let hash = self.keys.hash(self.text, name.0, name.1);
        let names = InstructionNames {
            starts: &self.columns.name_starts,
            lengths: &self.columns.name_lengths,
        };
        self.scope.find(&names, self.text, name, hash)
    }

    /// Adds an operand that is used before its definition to the row being read.
    #[cold]
    #[inline(never)]
    pub fn push_pending(&mut self, name: (usize, usize)) {
        self.pending.push(Pending {
            row: self.next_row(),
            slot: Some(self.columns.operands.len() as u32),
            name: Span::new(name.0, name.0 + name.1),
        });
        self.columns.operands.push(u32::MAX);
    }

    /// The id of the shape spelled by `text[start..end]`, if it is exactly a shape.
    #[inline(always)]
    pub fn shape_of_text(&mut self, start: usize, end: usize) -> Option<ShapeId> {
        let length = end - start;
        let hash = self.keys.hash(self.text, start, length);
        let texts = &mut self.shape_texts;
        if let Some(scope) = &texts.scope
            && let Some(id) = scope.find(&texts.spans[..], self.text, (start, length), hash)
        {
            return texts.ids.get(id as usize).copied();
        }
        self.new_shape_text(start, end, hash)
    }

    #[cold]
    #[inline(never)]
    fn new_shape_text(&mut self, start: usize, end: usize, hash: u32) -> Option<ShapeId> {
        let mut cursor = Cursor::within(self.text, Span::new(start, end));
        let shape = parse_shape(&mut cursor, &mut self.shapes).ok()?;
        if !cursor.is_at_end() {
            return None;
        }
        let texts = &mut self.shape_texts;
        let id = texts.spans.len() as u32;
        texts.spans.push((start as u32, (end - start) as u32));
        texts.ids.push(shape);
        let scope = texts.scope.get_or_insert_with(Scope::new);
        scope.insert(&texts.spans[..], self.text, (start, end - start), hash, id);
        Some(shape)
    }

    /// Adds a call edge to the row being read, resolved now if the computation is known.
    pub fn push_call(&mut self, name: Span, role: CallRole) {
        let row = Row(self.next_row());
        let index = self.calls.len() as u32;
        let computation = match self.find_computation(name) {
            Some(id) => ComputationId(id),
            None => {
                self.pending_calls.push((index, name));
                ComputationId(u32::MAX)
            }
        };
        self.calls.push(Call { row, computation, role });
    }

    /// The computation named `text[name]`.
    pub fn find_computation(&self, name: Span) -> Option<u32> {
        let at = (name.start as usize, name.len());
        let hash = self.keys.hash(self.text, at.0, at.1);
        self.computation_scope.find(&self.computation_names[..], self.text, at, hash)
    }

    /// Appends `bytes` to the arena; returns their span.
    pub fn append_to_arena(&mut self, bytes: &[u8]) -> Result<Span> {
        let start = self.arena_base() + self.arena.len();
        if start + bytes.len() >= u32::MAX as usize {
            return Err(ParseError::new(
                ErrorKind::TooLarge,
                Span::EMPTY,
                "the module needs more than 4 GiB of text",
            ));
        }
        self.arena.extend_from_slice(bytes);
        Ok(Span::new(start, start + bytes.len()))
    }

    /// The bytes of a span of text or arena.
    pub fn bytes(&self, span: Span) -> &[u8] {
        crate::ir::module::bytes_of(self.whole, &self.arena, span)
    }

    pub fn mark(&self) -> Mark {
        Mark {
            rows: self.columns.opcodes.len(),
            operands: self.columns.operands.len(),
            calls: self.calls.len(),
            pending: self.pending.len(),
            pending_calls: self.pending_calls.len(),
            control: self.control_predecessors.len(),
            queue: self.queue.len(),
            parameters: self.parameters.len(),
            tuple_elements: self.tuple_element_keys.len(),
            anonymous: self.anonymous_keys.len(),
        }
    }

    /// Undoes everything after `mark`. Names stay in the scope only if their rows stay.
    pub fn take_back(&mut self, mark: &Mark) {
        let columns = &mut self.columns;
        columns.opcodes.truncate(mark.rows);
        columns.flags.truncate(mark.rows);
        columns.shapes.truncate(mark.rows);
        columns.name_starts.truncate(mark.rows);
        columns.name_lengths.truncate(mark.rows);
        columns.tail_starts.truncate(mark.rows);
        columns.tail_ends.truncate(mark.rows);
        columns.metadata_starts.truncate(mark.rows);
        columns.value_offsets.truncate(mark.rows + 1);
        columns.value_ends.truncate(columns.value_offsets.last().map_or(0, |end| *end as usize));
        columns.operand_offsets.truncate(mark.rows + 1);
        columns.operands.truncate(mark.operands);
        self.calls.truncate(mark.calls);
        self.pending.truncate(mark.pending);
        self.pending_calls.truncate(mark.pending_calls);
        self.control_predecessors.truncate(mark.control);
        self.queue.truncate(mark.queue);
        self.parameters.truncate(mark.parameters);
        self.indexed_parameters = self.indexed_parameters.min(mark.parameters);
        while self.anonymous_keys.len() > mark.anonymous {
            if let Some(key) = self.anonymous_keys.pop() {
                self.anonymous.remove(&key);
            }
        }
        while self.tuple_element_keys.len() > mark.tuple_elements {
            let key = self.tuple_element_keys.pop().unwrap_or_default();
            self.tuple_elements.remove(&key);
        }
    }

    /// Adds a fault; the number kept is limited in proportion to the text.
    pub fn keep(&mut self, error: ParseError) {
        let most = 1000 + self.whole.len() / 64;
        if self.errors.len() < most {
            self.errors.push(error);
        } else if self.errors.len() == most {
            let message = "more faults than are listed";
            self.errors.push(ParseError::new(ErrorKind::TooLarge, error.span(), message));
        }
    }

    /// Marks row `row` as the root; an error if there is one already.
    pub fn mark_root(&mut self, row: u32, at: Span) -> Result<()> {
        if let Some(first) = self.root {
            let start = self.columns.name_starts[first as usize] as usize;
            return Err(ParseError::new(
                ErrorKind::DuplicateRoot,
                at,
                "this computation already has a ROOT",
            )
            .with_related(Span::new(start, start + 1)));
        }
        self.root = Some(row);
        self.columns.flags[row as usize] |= Flags::MARKED_ROOT;
        Ok(())
    }
}

/// Bytes that computations in place of names may contain in total beyond the twelfth level, for a
/// text of `length` bytes. Each level reads its text once more and takes memory, which
/// `parse_hostile.rs` limits to 40 bytes per byte of text. Within 512 KiB, a small text may nest a
/// hundred levels, as XLA allows.
fn block_budget(length: usize) -> usize {
    (512_usize << 10).saturating_sub(length) + length / 2
}
