//! Text from modules: the original bytes, canonical text, fingerprints, structural comparison.
//!
//! Canonical text is text that XLA's parser reads: every result shape is written out, definitions
//! precede uses, every computation has its own block, and every instruction its own line. Reading
//! it gives a module that is structurally equal to the printed one.

mod copy;
mod equal;
mod fingerprint;
mod implied;
mod instruction;
mod names;
mod order;
mod shape;
mod value;
mod verbatim;

pub(crate) use copy::{CopyPrinter, Renaming};
pub use equal::{Difference, EqualityOptions, structurally_equal, structurally_equal_with};
pub use fingerprint::{FingerprintOptions, fingerprint};

use crate::ir::intern::BuildMix;
use crate::ir::{
    CallRole, ComputationId, ElementKind, Flags, Layout, Module, Opcode, Row, ShapeId, ShapeTable,
};
use crate::text::{Cursor, Span};
pub(crate) use names::Names;
pub(crate) use names::needs_percent;
pub(crate) use order::row_order;
pub(crate) use shape::shape_classes;
use shape::{number, write_index_comment, write_shape};
use std::collections::{HashMap, HashSet};
pub(crate) use value::{Spacing, write_literal, write_value};
use value::{with_signed_zeros, write_without_layouts};

/// XLA's two ways to write a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Names with `%`, computations with signatures, numbered list elements.
    #[default]
    Long,
    /// Bare names, no signatures.
    Short,
}

/// The contents of canonical text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrintOptions {
    /// Long or short.
    pub form: Form,
    /// Each operand with its shape.
    pub operand_shapes: bool,
    /// Layouts in shapes.
    pub layouts: bool,
    /// `metadata` and `origin` of instructions, stack-frame tables, recovery tables.
    pub metadata: bool,
    /// `backend_config`.
    pub backend_config: bool,
    /// Write implied tuple elements as `%x#0` (which jaxlib 0.10.2 cannot read) and asynchronous
    /// operations as sugar where the text did; otherwise as separate instructions.
    pub fold: bool,
}

impl Default for PrintOptions {
    fn default() -> Self {
        Self {
            form: Form::Long,
            operand_shapes: false,
            layouts: true,
            metadata: true,
            backend_config: true,
            fold: false,
        }
    }
}

/// The canonical text of `module`.
pub fn to_text(module: &Module, options: &PrintOptions) -> Vec<u8> {
    let mut printer = Printer::new(module, options);
    printer.header();
    for id in module.computation_post_order().iter().copied() {
        let caller = printer.callers.get(&id.0).copied();
        if !caller.is_some_and(|row| printer.keeps_sugar(row)) {
            printer.out.push(b'\n');
            printer.computation(id);
        }
    }
    printer.out
}

/// The canonical text of one instruction, without indentation and line break.
pub fn instruction_to_text(module: &Module, row: Row, options: &PrintOptions) -> Vec<u8> {
    let mut printer = Printer::new(module, options);
    printer.instruction(row);
    printer.out
}

/// The canonical text of one computation, without the computations it calls.
pub fn computation_to_text(module: &Module, id: ComputationId, options: &PrintOptions) -> Vec<u8> {
    let mut printer = Printer::new(module, options);
    printer.computation(id);
    printer.out
}

/// The text of shape `id` of `module`.
pub fn shape_to_text(module: &Module, id: ShapeId, layouts: bool) -> Vec<u8> {
    let mut out = Vec::new();
    write_shape(&mut out, module.shapes(), id, layouts, false);
    out
}

/// The text of array shape `id` in memory space `space`.
pub(crate) fn array_to_text_in(module: &Module, id: ShapeId, space: i64) -> Vec<u8> {
    let mut out = Vec::new();
    shape::write_array_in(&mut out, module.shapes(), id, space);
    out
}

/// XLA's text of shape `id`, with tuple elements numbered; cut soon after `limit` bytes.
pub fn shape_to_text_within(table: &ShapeTable, id: ShapeId, limit: usize) -> Vec<u8> {
    let mut out = Vec::new();
    shape::write_shape_within(&mut out, table, id, true, true, limit);
    out
}

/// The text of shape `id` without layouts and element numbers; cut soon after `limit` bytes.
pub fn plain_shape_within(table: &ShapeTable, id: ShapeId, limit: usize) -> Vec<u8> {
    let mut out = Vec::new();
    shape::write_shape_within(&mut out, table, id, false, false, limit);
    out
}

/// The text of a layout; empty where it has no items.
pub fn layout_to_text(layout: &Layout) -> Vec<u8> {
    let mut out = Vec::new();
    shape::write_layout(&mut out, layout);
    out
}

/// The literal of constant `row`, spelled so that XLA's parser keeps the signs of zeros; None if
/// the text stays the same.
pub(crate) fn literal_with_signs(module: &Module, row: Row) -> Option<Vec<u8>> {
    let array = module.shapes().array(module.shape(row))?;
    let has_signed_zeros =
        matches!(array.element_type.kind(), ElementKind::Float | ElementKind::Complex);
    let payload = module.bytes(module.opcode_and_payload(row).1);
    if has_signed_zeros { with_signed_zeros(payload, b"-0.0") } else { None }
}

/// Attributes that `PrintOptions::metadata` governs, of instructions and of the header.
#[inline]
pub(crate) fn is_metadata(key: &[u8]) -> bool {
    matches!(key, b"metadata" | b"origin" | b"origin_recovery_table" | b"debug_attributes")
}

/// The keys seen so far in a list of attributes; the first of repeated keys counts.
#[derive(Default)]
pub(crate) struct Seen<'a> {
    few: Vec<&'a [u8]>,
    many: HashSet<&'a [u8]>,
}

impl<'a> Seen<'a> {
    pub(crate) fn is_new(&mut self, key: &'a [u8]) -> bool {
        if self.few.contains(&key) {
            return false;
        }
        if self.few.len() < 32 {
            self.few.push(key);
            return true;
        }
        self.many.insert(key)
    }
}

/// The computation that a sugared asynchronous start wraps.
fn wrapped(module: &Module, row: Row) -> Option<ComputationId> {
    let is_start = module.opcode(row) == Opcode::AsyncStart;
    let is_sugar = module.flags(row) & (Flags::SUGAR | Flags::IMPLICIT) == Flags::SUGAR;
    if is_start && is_sugar { module.called(row, CallRole::Wrapped) } else { None }
}

/// The execution thread of a computation; an implicit computation has the thread of its
/// asynchronous start.
pub(crate) fn thread_of(module: &Module, id: ComputationId, callers: &Callers) -> Span {
    let computation = module.computation(id);
    if !computation.is_implicit {
        return computation.execution_thread;
    }
    let caller = callers.get(&id.0);
    caller.and_then(|row| module.attribute(*row, "async_execution_thread")).unwrap_or_default()
}

/// Rows by the number of the computation that they call.
pub(crate) type Callers = HashMap<u32, Row, BuildMix>;

/// The callers of implicit computations; each computation has one caller.
pub(crate) fn implicit_callers(module: &Module) -> Callers {
    let calls = module.all_calls().iter();
    calls.filter(|call| call.role == CallRole::Wrapped).map(|c| (c.computation.0, c.row)).collect()
}

struct Printer<'a> {
    module: &'a Module,
    options: &'a PrintOptions,
    names: Names,
    /// Callers of implicit computations.
    callers: Callers,
    /// Lengths of the texts of all shapes.
    lengths: Vec<u64>,
    /// Remaining budget of bytes for shapes that the original text omits.
    budget: u64,
    /// Whether to print a copy, which is never a root and has no control predecessors.
    is_copy: bool,
    /// Whether literals are spelled so that XLA's parser keeps the signs of zeros.
    keeps_signs: bool,
    out: Vec<u8>,
}

impl<'a> Printer<'a> {
    fn new(module: &'a Module, options: &'a PrintOptions) -> Self {
        let names = Names::new(module, options.fold);
        Self {
            module,
            options,
            names,
            callers: implicit_callers(module),
            lengths: shape::text_lengths(module.shapes(), options.layouts),
            budget: (1 << 20) + 16 * module.text().len() as u64,
            is_copy: false,
            keeps_signs: false,
            out: Vec::new(),
        }
    }

    /// Whether the budget allows writing a shape that the original text omits at this place. Large
    /// tuples could make the printed text larger than the original by any factor; small shapes
    /// cannot.
    fn affords(&mut self, id: ShapeId) -> bool {
        let length = self.lengths.get(id.0 as usize).copied().unwrap_or(u64::MAX);
        if length > 256 {
            match self.budget.checked_sub(length) {
                Some(left) => self.budget = left,
                None => return false,
            }
        }
        true
    }

    /// Whether an asynchronous operation is written as `X-start`, `X-update`, `X-done`: if `fold`
    /// asks for it, or if sugar takes operands that `X` itself does not.
    fn keeps_sugar(&self, row: Row) -> bool {
        let module = self.module;
        if module.flags(row) & (Flags::SUGAR | Flags::IMPLICIT) != Flags::SUGAR {
            return false;
        }
        self.options.fold
            || wrapped(module, row).is_some_and(|id| {
                let inner = Row(module.computation(id).root);
                let operands = module.operands(inner).len();
                let elements = module.shapes().tuple(module.shape(inner)).map(<[ShapeId]>::len);
                operands != module.operands(row).len()
                    || !module.opcode(inner).arity().accepts(operands)
                    || module.opcode(inner) == Opcode::Tuple && elements != Some(operands)
            })
    }

    fn is_long(&self) -> bool {
        self.options.form == Form::Long
    }

    fn header(&mut self) {
        let module = self.module;
        self.out.extend_from_slice(b"HloModule ");
        if needs_percent(module.name()) {
            self.out.push(b'%');
        }
        self.out.extend_from_slice(module.name());
        let mut seen = Seen::default();
        for (key, value) in &module.header().attributes {
            let (key, value) = (module.bytes(*key), module.bytes(*value));
            if !seen.is_new(key) || !self.options.metadata && is_metadata(key) {
                continue;
            }
            self.out.extend_from_slice(b", ");
            self.out.extend_from_slice(key);
            self.out.push(b'=');
            if key == b"entry_computation_layout" && !self.options.layouts {
                write_without_layouts(&mut self.out, value);
            } else {
                write_value(&mut self.out, key, value, Spacing::Readable);
            }
        }
        self.out.push(b'\n');
        if module.header().has_tables && self.options.metadata {
            self.tables();
        }
    }

    fn tables(&mut self) {
        let header = self.module.header();
        for (keyword, section) in [
            ("FileNames", header.file_names),
            ("FunctionNames", header.function_names),
            ("FileLocations", header.file_locations),
            ("StackFrames", header.stack_frames),
        ] {
            number(&mut self.out, format_args!("\n{keyword}\n"));
            let mut cursor = Cursor::new(self.module.bytes(section));
            // XLA accepts entries without content, so they are kept.
            while let Ok(Some(entry)) = cursor.integer() {
                number(&mut self.out, format_args!("{entry} "));
                let _ = cursor.skip_space();
                let start = cursor.position();
                let read = match cursor.peek() {
                    b'{' => cursor.balanced(),
                    b'"' | b'\'' => cursor.string(),
                    _ => Ok(Span::EMPTY),
                };
                if read.is_err() {
                    break;
                }
                write_value(&mut self.out, b"", cursor.since(start), Spacing::Readable);
                self.out.push(b'\n');
            }
        }
    }

    fn computation(&mut self, id: ComputationId) {
        if self.module.entry() == id {
            self.out.extend_from_slice(b"ENTRY ");
        }
        self.computation_name(id);
        self.out.push(b' ');
        if self.is_long() && !self.is_signature_unsafe(id) {
            let parameters = self.module.parameters(id);
            let root = Row(self.module.computation(id).root);
            let mut rows = parameters.iter().chain([&root]);
            if rows.all(|row| self.affords(self.module.shape(*row))) {
                self.signature(&parameters, root);
            }
        }
        self.out.extend_from_slice(b"{\n");
        for row in row_order(self.module, id) {
            if !(self.options.fold && names::is_tuple_path(self.module, row)) {
                self.out.extend_from_slice(b"  ");
                self.instruction(row);
                self.out.push(b'\n');
            }
        }
        self.out.push(b'}');
        let thread = self.module.bytes(thread_of(self.module, id, &self.callers));
        if !matches!(thread, b"" | b"\"main\"" | b"'main'") {
            self.out.extend_from_slice(b", execution_thread=");
            write_value(&mut self.out, b"", thread, Spacing::Readable);
        }
        self.out.push(b'\n');
    }

    /// XLA replaces the shapes of some results, whatever the text says, and then compares the
    /// signature with the new shape. For such roots, a signature is written only if the text had
    /// one.
    fn is_signature_unsafe(&self, id: ComputationId) -> bool {
        use Opcode::*;
        let computation = self.module.computation(id);
        let root = Row(computation.root);
        let is_fixed_up = match self.module.opcode(root) {
            AddDependency | AfterAll | Infeed | Outfeed | Recv | RecvDone | Send | SendDone => true,
            Constant => self.module.shapes().array(self.module.shape(root)).is_none(),
            _ => false,
        };
        is_fixed_up && computation.signature.is_empty()
    }

    /// `(parameters) -> shape `, in the order of parameter numbers, without layouts.
    fn signature(&mut self, parameters: &[Row], root: Row) {
        let module = self.module;
        self.out.push(b'(');
        for (index, row) in parameters.iter().copied().enumerate() {
            if index > 0 {
                self.out.extend_from_slice(b", ");
            }
            self.out.extend_from_slice(self.names.row(module, row));
            self.out.extend_from_slice(b": ");
            write_shape(&mut self.out, module.shapes(), module.shape(row), false, true);
        }
        self.out.extend_from_slice(b") -> ");
        write_shape(&mut self.out, module.shapes(), module.shape(root), false, true);
        self.out.push(b' ');
    }

    fn computation_name(&mut self, id: ComputationId) {
        let name = self.names.computation(self.module, id);
        if self.options.form == Form::Long || needs_percent(name) {
            self.out.push(b'%');
        }
        self.out.extend_from_slice(name);
    }

    fn name(&mut self, row: Row) {
        let name = self.names.row(self.module, row);
        if self.options.form == Form::Long || needs_percent(name) {
            self.out.push(b'%');
        }
        self.out.extend_from_slice(name);
    }

    fn separator(&mut self, index: usize) {
        if index > 0 {
            self.out.extend_from_slice(b", ");
            let comments = self.is_long();
            write_index_comment(&mut self.out, index, comments);
        }
    }
}
