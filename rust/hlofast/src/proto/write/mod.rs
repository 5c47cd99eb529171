//! Converts a module to `HloModuleProto`; the inverse of reading one.
//!
//! Every attribute is decoded and its field written. Text without a field is an error with its
//! location. The exception is information that XLA itself loses between text and protobuf, which
//! [`Written::left_out`] lists.

mod convolution;
mod header;
mod instruction;
mod keys;
mod literal;
mod metadata;
mod names;
mod own;
mod shape;
mod sharding;
mod wire;

use crate::error::{ParseError, Result};
use crate::ir::decode::unescape;
use crate::ir::{CallRole, ComputationId, Flags, Module, Opcode, Row};
use crate::print::{Callers, Names, implicit_callers, row_order, thread_of};
use crate::text::Span;
use names::UniqueNames;
use shape::{Shapes, too_large};
use wire::Message;

/// Parts of the text that a protobuf cannot hold and that are lost in the conversion.
pub const NOT_IN_PROTO: &[(&str, &str)] = &[
    ("allow_spmd_sharding_propagation_to_parameters", "a compiler option"),
    ("allow_spmd_sharding_propagation_to_output", "a compiler option"),
    ("alias_passthrough_params", "a compiler option"),
    ("input_output_alias", "all aliases of a part of the result but the first, as in XLA"),
    ("mode", "for collectives; follows from channel_id and use_global_device_ids"),
    ("channel_id", "if below 1, which means none"),
    ("slice_sizes", "the grouping of the numbers, for a collective-permute of tuples"),
];

/// Maximum bytes of protobuf per byte of text. The protobufs of real modules are smaller than their
/// text.
const GROWTH: usize = 32;
const FLOOR: usize = 16 << 20;

/// The maximum size of a protobuf.
const MOST: usize = i32::MAX as usize;

/// A module as a protobuf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The `HloModuleProto`.
    pub bytes: Vec<u8>,
    /// The parts of the text that are in [`NOT_IN_PROTO`]: span and description.
    pub left_out: Vec<(Span, String)>,
}

/// Converts `module` to an `HloModuleProto` that XLA loads.
///
/// Instructions come after their operands and callees before their callers. If several instructions
/// or computations share a name, all but the first get a numbered name. A constant whose value the
/// text elides has no value in the protobuf either; XLA prints it as `{...}` again.
/// `num_partitions` and `replica_count` become a device assignment in the default order. The bytes
/// depend only on the text.
pub fn from_module(module: &Module) -> Result<Written> {
    module_proto(module, 0)
}

/// Wraps `module`, an `HloModuleProto`, in the `HloProto` that XLA dumps.
pub fn wrapped(module: &[u8]) -> Vec<u8> {
    let mut message = Message::default();
    message.element(1, module);
    message.finish()
}

fn module_proto(module: &Module, depth: u32) -> Result<Written> {
    let names = Names::new(module, false);
    let limit = module.text().len().saturating_mul(GROWTH).saturating_add(FLOOR).min(MOST);
    let mut writer = Writer {
        module,
        names: UniqueNames::new(module, &names),
        shapes: Shapes::new(module.shapes(), limit),
        orders: Vec::new(),
        places: vec![0; module.row_count()],
        owners: vec![0; module.row_count()],
        written: vec![false; module.computations().len()],
        callers: implicit_callers(module),
        limit,
        left_out: Vec::new(),
    };
    let bytes = writer.module(depth)?;
    Ok(Written { bytes, left_out: writer.left_out })
}

/// State shared by the parts of a module.
struct Writer<'m> {
    module: &'m Module,
    names: UniqueNames<'m>,
    shapes: Shapes<'m>,
    /// The rows of each computation in the order of writing.
    orders: Vec<Vec<Row>>,
    /// The position of each row in the order of writing.
    places: Vec<u32>,
    owners: Vec<u32>,
    /// The computations that are already written.
    written: Vec<bool>,
    /// The callers of implicit computations.
    callers: Callers,
    limit: usize,
    left_out: Vec<(Span, String)>,
}

impl Writer<'_> {
    fn module(&mut self, depth: u32) -> Result<Vec<u8>> {
        let module = self.module;
        self.number();
        let mut fields = Message::default();
        self.header(&mut fields, depth)?;
        fields.text(2, self.names.computation(module.entry()));
        fields.integer(6, self.computation_id(module.entry()));
        let is_fused = fused(module);
        for id in module.computation_post_order().iter().copied() {
            let is_fused = is_fused.get(id.0 as usize) == Some(&true);
            let computation = self.computation(id, is_fused, fields.len())?;
            fields.message(3, computation);
            if let Some(written) = self.written.get_mut(id.0 as usize) {
                *written = true;
            }
            if fields.len() > self.limit {
                return Err(too_large(module.computation(id).header, self.limit));
            }
        }
        if module.is_scheduled() {
            fields.message(7, self.schedule(&is_fused));
        }
        if fields.len() > self.limit {
            return Err(too_large(Span::EMPTY, self.limit));
        }
        Ok(fields.finish())
    }

    /// Numbers the rows.
    fn number(&mut self) {
        for index in 0..self.module.computations().len() as u32 {
            let order = row_order(self.module, ComputationId(index));
            for (place, row) in order.iter().enumerate() {
                if let (Some(slot), Some(owner)) =
                    (self.places.get_mut(row.0 as usize), self.owners.get_mut(row.0 as usize))
                {
                    (*slot, *owner) = (place as u32, index);
                }
            }
            self.orders.push(order);
        }
    }

    /// The id of a computation: from 1, in text order.
    fn computation_id(&self, id: ComputationId) -> i64 {
        i64::from(id.0) + 1
    }

    /// The id of an instruction: the computation's id in the high half, then a number from 1.
    fn id(&self, row: Row) -> i64 {
        let index = row.0 as usize;
        let owner = self.owners.get(index).copied().unwrap_or_default();
        let place = self.places.get(index).copied().unwrap_or_default();
        self.computation_id(ComputationId(owner)) << 32 | i64::from(place + 1)
    }

    fn root(&self, id: ComputationId) -> Row {
        Row(self.module.computation(id).root)
    }

    fn is_written(&self, id: ComputationId) -> bool {
        self.written.get(id.0 as usize) == Some(&true)
    }

    /// The location of `row` in the text; for an implicit row, of the instruction that implies it.
    fn place(&self, row: Row) -> Span {
        let owner = self.owners.get(row.0 as usize).copied().unwrap_or_default();
        let caller = self.callers.get(&owner).map(|caller| self.module.name_span(*caller));
        let header = self.module.computation(ComputationId(owner)).header;
        let spans = [Some(self.module.name_span(row)), caller, Some(header)];
        let is_inside = |span: &Span| span.end as usize <= self.module.text().len();
        spans.into_iter().flatten().find(is_inside).unwrap_or(Span::EMPTY)
    }

    fn leave_out(&mut self, span: Span, what: &str) {
        self.left_out.push((span, what.to_owned()));
    }

    /// Encodes an `HloComputationProto`; `before` bytes of the module are already written.
    fn computation(&mut self, id: ComputationId, is_fused: bool, before: usize) -> Result<Message> {
        let module = self.module;
        let mut fields = Message::default();
        fields.text(1, self.names.computation(id));
        let order = self.orders.get_mut(id.0 as usize).map(std::mem::take).unwrap_or_default();
        for row in &order {
            let instruction = self.instruction(*row).map_err(|error| {
                // Implicit text lies outside the module's text.
                let is_inside = error.span().end as usize <= module.text().len();
                if is_inside { error } else { moved(&error, self.place(*row)) }
            })?;
            fields.message(2, instruction);
            if before + fields.len() > self.limit {
                return Err(too_large(self.place(*row), self.limit));
            }
        }
        if let Some(place) = self.orders.get_mut(id.0 as usize) {
            *place = order;
        }
        let (parameters, root) = (module.parameters(id), self.root(id));
        let program = self.program_shape(&parameters, root)?;
        fields.message(4, program);
        fields.integer(5, self.computation_id(id));
        fields.integer(6, self.id(root));
        fields.flag(7, is_fused);
        let span = thread_of(module, id, &self.callers);
        let text = module.bytes(span);
        let thread = unescape(text.get(1..text.len().saturating_sub(1)).unwrap_or_default())
            .map_err(|error| error.shifted(span.start + 1))?;
        if thread.as_ref() != b"main" {
            fields.text(8, &thread);
        }
        Ok(fields)
    }

    /// Encodes the `HloScheduleProto`: the order of every computation that is not fused.
    fn schedule(&self, is_fused: &[bool]) -> Message {
        let mut schedule = Message::default();
        for (index, order) in self.orders.iter().enumerate() {
            if is_fused.get(index) == Some(&true) {
                continue;
            }
            let mut sequence = Message::default();
            sequence.integers(1, order.iter().map(|row| self.id(*row)));
            let mut entry = Message::default();
            entry.integer(1, self.computation_id(ComputationId(index as u32)));
            entry.message(2, sequence);
            schedule.message(1, entry);
        }
        schedule
    }
}

/// For each computation, whether it is the body of a fusion.
fn fused(module: &Module) -> Vec<bool> {
    let mut is_fused = vec![false; module.computations().len()];
    for call in module.all_calls() {
        if module.opcode(call.row) == Opcode::Fusion
            && call.role == CallRole::Calls
            && let Some(slot) = is_fused.get_mut(call.computation.0 as usize)
        {
            *slot = true;
        }
    }
    is_fused
}

/// Whether async sugar wraps `row`, so that its control predecessors belong to the start.
fn is_wrapped(module: &Module, row: Row) -> bool {
    module.flags(row) & (Flags::SUGAR | Flags::IMPLICIT) == Flags::SUGAR | Flags::IMPLICIT
}

/// Removes the span of `error`, which refers to a text other than the module's.
fn without_place(error: ParseError) -> ParseError {
    moved(&error, Span::EMPTY)
}

/// Places `error` at `span`, unless it has a location of its own.
fn at(error: ParseError, span: Span) -> ParseError {
    if error.span() == Span::EMPTY { moved(&error, span) } else { error }
}

fn moved(error: &ParseError, span: Span) -> ParseError {
    let moved = ParseError::new(error.kind(), span, error.message());
    match error.help() {
        Some(help) => moved.with_help(help),
        None => moved,
    }
}
