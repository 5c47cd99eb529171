//! The module's own fields: header attributes and tables.

use super::shape::{Shapes, Style};
use super::wire::Message;
use super::{Writer, at, metadata};
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::decode::{
    self, AttributeValue as V, BufferDonor, HeaderValue as H, OriginRecovery, StackFrames,
};
use crate::ir::shape_text::parse_shape;
use crate::ir::{Row, ShapeInterner};
use crate::text::{Source, Span};
use std::collections::HashSet;

/// Maximum of replicas times partitions: the format lists every device.
const MAX_DEVICES: i64 = 1 << 20;

/// Maximum nesting of modules inside modules, as in the reader.
const MAX_MODULES: u32 = 4;

impl Writer<'_> {
    /// Appends the fields of the header and its tables.
    pub(super) fn header(&mut self, fields: &mut Message, depth: u32) -> Result<()> {
        let module = self.module;
        fields.text(1, module.name());
        let (mut replicas, mut partitions) = (None, None);
        let mut has_layout = false;
        let mut seen: HashSet<&[u8]> = HashSet::new();
        for (key_span, span) in &module.header().attributes {
            let (key, value) = (module.bytes(*key_span), module.bytes(*span));
            let name = String::from_utf8_lossy(key);
            if !seen.insert(key) {
                let message = format!("{name} is given twice");
                return Err(ParseError::new(ErrorKind::DuplicateAttribute, *key_span, message));
            }
            let value =
                decode::decode_header(key, value).map_err(|error| error.shifted(span.start))?;
            match (key, value) {
                (b"is_scheduled", H::Plain(V::Boolean(_))) => {}
                (b"replica_count", H::Plain(V::Integer(count))) => replicas = Some((count, *span)),
                (b"num_partitions", H::Plain(V::Integer(count))) => {
                    partitions = Some((count, *span));
                }
                (b"frontend_attributes", H::Plain(V::FrontendAttributes(attributes))) => {
                    fields.message(19, metadata::frontend_attributes(&attributes));
                }
                (b"input_output_alias", H::Aliases(aliases)) => {
                    fields.message(8, input_output_aliases(&aliases));
                    if decode::first_duplicate_alias(&aliases).is_some() {
                        self.leave_out(*span, "a second alias of the same part of the result");
                    }
                }
                (b"buffer_donor", H::BufferDonors(donors)) => {
                    fields.message(18, buffer_donors(&donors));
                }
                (b"entry_computation_layout", H::EntryLayout(layout)) => {
                    has_layout = true;
                    let program = self.entry_layout(&layout);
                    fields.message(4, program.map_err(|error| at(error, *span))?);
                }
                (b"origin_recovery_table", H::OriginRecovery(entries)) => {
                    let table = self.recovery(&entries, depth);
                    fields.message(20, table.map_err(|error| at(error, *span))?);
                }
                (
                    b"allow_spmd_sharding_propagation_to_parameters"
                    | b"allow_spmd_sharding_propagation_to_output"
                    | b"alias_passthrough_params",
                    _,
                ) => self.leave_out(*key_span, &format!("{name}, a compiler option")),
                _ => {
                    let message = format!("a protobuf has no field for {name} of a module");
                    let kind = ErrorKind::UnexpectedAttribute;
                    return Err(ParseError::new(kind, *key_span, message));
                }
            }
        }
        if !has_layout {
            let (parameters, root) = (module.parameters(module.entry()), self.root(module.entry()));
            let program = self.program_shape(&parameters, root)?;
            fields.message(4, program);
        }
        if let Some(devices) = device_assignment(replicas, partitions)? {
            fields.message(15, devices);
        }
        if module.header().has_tables {
            let tables = StackFrames::of_module(module)?;
            let message = metadata::stack_frames(&tables);
            fields.message(17, message.map_err(|e| at(e, module.header().stack_frames))?);
        }
        Ok(())
    }

    /// The `ProgramShapeProto` of parameters and a root.
    pub(super) fn program_shape(&mut self, parameters: &[Row], root: Row) -> Result<Message> {
        let mut message = Message::default();
        for parameter in parameters {
            message.element(1, self.shapes.get(self.module.shape(*parameter), Style::Full)?);
            message.element(3, self.names.row(*parameter));
        }
        message.element(2, self.shapes.get(self.module.shape(root), Style::Full)?);
        Ok(message)
    }

    fn entry_layout(&self, layout: &decode::EntryLayout<'_>) -> Result<Message> {
        let mut interner = ShapeInterner::default();
        let (parameters, result) =
            layout.intern(&mut interner, parse_shape).map_err(super::without_place)?;
        let mut shapes = Shapes::new(&interner.table, self.limit);
        let mut message = Message::default();
        for (number, id) in parameters.into_iter().enumerate() {
            message.element(1, shapes.get(id, Style::Full).map_err(super::without_place)?);
            message.element(3, format!("p{number}").as_bytes());
        }
        message.element(2, shapes.get(result, Style::Full).map_err(super::without_place)?);
        Ok(message)
    }

    fn recovery(&mut self, entries: &[OriginRecovery<'_>], depth: u32) -> Result<Message> {
        let mut table = Message::default();
        for entry in entries {
            let mut message = Message::default();
            for (number, value) in [(1, &entry.removed), (2, &entry.replacing)] {
                if let Some(value) = value {
                    message.message(number, metadata::original_array(value));
                }
            }
            if let Some(text) = &entry.module {
                if depth >= MAX_MODULES {
                    let text = format!("modules nested more than {MAX_MODULES} deep");
                    return Err(ParseError::new(ErrorKind::TooDeep, Span::EMPTY, text));
                }
                let source = Source::from_slice(text);
                let inner = crate::parse(source, &crate::Options::default())
                    .map_err(super::without_place)?;
                let inner = super::module_proto(&inner, depth + 1).map_err(super::without_place)?;
                message.element(3, &inner.bytes);
            }
            table.message(1, message);
        }
        Ok(table)
    }
}

fn input_output_aliases(aliases: &[decode::Alias]) -> Message {
    let mut message = Message::default();
    let mut seen = HashSet::new();
    // If a part of the result has several aliases, XLA reads the first.
    for alias in aliases.iter().filter(|alias| seen.insert(&alias.output_index)) {
        let mut entry = Message::default();
        entry.integers(1, alias.output_index.iter().copied());
        entry.integer(2, alias.number);
        entry.integers(3, alias.index.iter().copied());
        entry.integer(4, if alias.must_alias { 2 } else { 1 });
        message.message(1, entry);
    }
    message
}

fn buffer_donors(donors: &[BufferDonor]) -> Message {
    let mut message = Message::default();
    for donor in donors {
        let mut entry = Message::default();
        entry.integer(1, donor.parameter);
        entry.integers(2, donor.index.iter().copied());
        message.message(1, entry);
    }
    message
}

/// A `DeviceAssignmentProto`, the only field that holds the counts of replicas and partitions. Text
/// does not list the devices, so they get the numbers that XLA assigns by default.
fn device_assignment(
    replicas: Option<(i64, Span)>,
    partitions: Option<(i64, Span)>,
) -> Result<Option<Message>> {
    let Some(span) = partitions.or(replicas).map(|(_, span)| span) else { return Ok(None) };
    let count = |given: Option<(i64, Span)>| given.map_or(1, |(count, _)| count);
    let (replicas, partitions) = (count(replicas), count(partitions));
    let total = replicas.checked_mul(partitions).filter(|total| *total <= MAX_DEVICES);
    if replicas < 1 || partitions < 1 || total.is_none() {
        let message = format!(
            "{replicas} replicas of {partitions} partitions: a protobuf lists every device, \
             which is done for 1 to {MAX_DEVICES}"
        );
        return Err(ParseError::new(ErrorKind::InvalidHeader, span, message));
    }
    let mut message = Message::default();
    message.integer(1, replicas);
    message.integer(2, partitions);
    for partition in 0..partitions {
        let mut devices = Message::default();
        devices.integers(1, (0..replicas).map(|replica| partition * replicas + replica));
        message.message(3, devices);
    }
    Ok(Some(message))
}
