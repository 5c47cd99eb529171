//! `HloInstructionProto` as a line of text.

use super::computation::{Parts, Scope};
use super::out::{Meaning, Out};
use super::record::{Record, repeated};
use super::wire::{Fault, Read};
use super::{literal, metadata, shape, sharding};
use crate::ir::attribute::{self, field_of, second_field_of};
use crate::ir::{CallRole, Opcode};
use crate::text::Span;

/// Fields that are in the messages of all opcodes.
const OPERANDS: u32 = 36;
pub(super) const CALLS: u32 = field_of("calls");
const SHARDING: u32 = field_of("sharding");
const FRONTEND_ATTRIBUTES: u32 = field_of("frontend_attributes");
const PREDECESSORS: u32 = field_of("control-predecessors");
const STATISTICS: u32 = field_of("statistics");
const ORIGIN: u32 = field_of("origin");
const METADATA: u32 = field_of("metadata");
const CONFIGURATION: u32 = field_of("backend_config");
const CONFIGURATION_PAYLOAD: u32 = second_field_of("backend_config");

/// The repeated fields.
pub(super) const REPEATED: u128 = attribute::REPEATED
    | repeated(&[
        OPERANDS, 49, 57, // Fields of earlier years.
        4, 5, 6, 44, 64, 86,
    ]);

/// Fields that refer to instructions other than operands.
const REFERENCES: u128 = repeated(&[PREDECESSORS]);

const PREDICATE: i64 = 1;

/// Literals up to this many bytes are mostly scalars with few distinct values.
const SMALL: usize = 64;

/// Appends the line of `fields`, without indentation and `ROOT`; returns the positions of its
/// parts.
#[inline(always)]
pub(super) fn write<'a>(
    out: &mut Out<'a>,
    scope: &mut Scope<'a, '_>,
    opcode: Opcode,
    fields: &Record<'a, '_>,
) -> Read<Parts> {
    let Some(name) = fields.text(1) else {
        return Err(Fault::new(fields.message(), "an instruction without a name"));
    };
    let name = metadata::clean_name(name);
    out.byte(b'%');
    out.push(&name);
    let name_end = out.text.len() as u32;
    out.push(b" = ");
    let Some(result) = fields.bytes(3) else {
        return Err(Fault::new(fields.message(), "an instruction without a shape"));
    };
    let shape = out.shape(result, shape::Style::Full)?;
    let shape_end = out.text.len() as u32;
    out.byte(b' ');
    let mut comparison = None;
    if opcode == Opcode::Unknown {
        let word = fields.bytes(2).unwrap_or_default();
        comparison = old_comparison(word);
        match comparison {
            Some(_) => out.push(b"compare"),
            None => out.push(&metadata::clean_name(word)),
        }
    } else {
        out.push(opcode.as_str().as_bytes());
    }
    let open = out.text.len() as u32;
    out.byte(b'(');
    match opcode {
        Opcode::Parameter => out.integer(fields.integer(9)),
        Opcode::Constant => match fields.bytes(8) {
            Some(value) if value.len() <= SMALL => {
                out.again(value, Meaning::Literal, |out, value| {
                    literal::write(out, value, false, 0)
                })?;
            }
            Some(value) => literal::write(out, value, false, 0)?,
            None => out.push(b"{...}"),
        },
        _ => operands(out, scope, fields)?,
    }
    let close = out.text.len() as u32;
    out.byte(b')');
    if let Some(direction) = comparison {
        out.push(b", direction=");
        out.push(direction);
    }
    super::attributes::write(out, scope, opcode, fields)?;
    let metadata = common(out, scope, fields)?;
    out.byte(b'\n');
    Ok(Parts {
        name_end,
        shape_end,
        open,
        close,
        metadata,
        shape,
        is_plain: opcode != Opcode::Unknown && !fields.has_any(REFERENCES),
    })
}

/// The comparison direction in an opcode that is older than `compare`.
fn old_comparison(word: &[u8]) -> Option<&'static [u8]> {
    Some(match word {
        b"equal-to" => b"EQ",
        b"not-equal-to" => b"NE",
        b"greater-than-or-equal-to" => b"GE",
        b"greater-than" => b"GT",
        b"less-than-or-equal-to" => b"LE",
        b"less-than" => b"LT",
        _ => return None,
    })
}

fn operands<'a>(out: &mut Out<'a>, scope: &mut Scope<'a, '_>, fields: &Record<'a, '_>) -> Read<()> {
    let mut count = 0;
    fields.integers(OPERANDS, |id| {
        if count > 0 {
            out.push(b", ");
            shape::index_comment(out, count);
        }
        count += 1;
        out.byte(b'%');
        scope.operand(out, id, fields.message())
    })
}

/// Writes the called computations, by their roles.
pub(super) fn calls<'a>(
    out: &mut Out<'a>,
    scope: &mut Scope<'a, '_>,
    opcode: Opcode,
    fields: &Record<'a, '_>,
) -> Read<()> {
    if !fields.has(CALLS) {
        return Ok(());
    }
    let ids = fields.list(CALLS)?;
    scope.note_calls(&ids);
    use Opcode as O;
    match (opcode, &ids[..]) {
        (O::While, [body, condition]) => {
            write_call(out, scope, CallRole::Condition, *condition, fields)?;
            write_call(out, scope, CallRole::Body, *body, fields)
        }
        (O::SelectAndScatter, [select, scatter]) => {
            write_call(out, scope, CallRole::Select, *select, fields)?;
            write_call(out, scope, CallRole::Scatter, *scatter, fields)
        }
        (O::Conditional, [yes, no]) if scope.operand_type(fields)? == PREDICATE => {
            write_call(out, scope, CallRole::TrueComputation, *yes, fields)?;
            write_call(out, scope, CallRole::FalseComputation, *no, fields)
        }
        (O::Conditional, _) => list(out, scope, CallRole::Branch, &ids, fields),
        (O::CustomCall, _) => list(out, scope, CallRole::Called, &ids, fields),
        // The text leaves the callee out because the operand names it; only old dumps repeat it.
        (O::AsyncUpdate | O::AsyncDone, _) => Ok(()),
        (O::Fusion | O::AsyncStart | O::Unknown, [callee]) => {
            write_call(out, scope, CallRole::Calls, *callee, fields)
        }
        (_, [callee]) if opcode.may_call() || opcode == O::Topk => {
            write_call(out, scope, CallRole::ToApply, *callee, fields)
        }
        _ => {
            let word = String::from_utf8_lossy(fields.bytes(2).unwrap_or_default()).into_owned();
            let message = format!("a {word} that calls {} computations", ids.len());
            Err(Fault::new(fields.message(), message))
        }
    }
}

/// Writes `, role=%name`.
fn write_call<'a>(
    out: &mut Out<'a>,
    scope: &mut Scope<'a, '_>,
    role: CallRole,
    id: i64,
    fields: &Record<'a, '_>,
) -> Read<()> {
    let key = role_key(out, role);
    out.push(b"=%");
    scope.call(out, key, id, fields.message())
}

/// Writes `, role={%a, %b}`.
fn list<'a>(
    out: &mut Out<'a>,
    scope: &mut Scope<'a, '_>,
    role: CallRole,
    ids: &[i64],
    fields: &Record<'a, '_>,
) -> Read<()> {
    let mut key = Span::EMPTY;
    for (index, id) in ids.iter().enumerate() {
        if index == 0 {
            key = role_key(out, role);
            out.byte(b'=');
        }
        out.push(if index == 0 { b"{%" } else { b", %" });
        scope.call(out, key, *id, fields.message())?;
    }
    if !ids.is_empty() {
        out.byte(b'}');
    }
    Ok(())
}

/// Appends `, role`; returns the span of the role.
fn role_key(out: &mut Out<'_>, role: CallRole) -> Span {
    out.push(b", ");
    let start = out.text.len();
    out.push(role.as_str().as_bytes());
    Span::new(start, out.text.len())
}

/// Writes the attributes that every opcode may have. Returns the start of the metadata's value, or
/// `u32::MAX` without metadata.
fn common<'a>(out: &mut Out<'a>, scope: &Scope<'a, '_>, fields: &Record<'a, '_>) -> Read<u32> {
    if let Some(value) = fields.bytes(SHARDING) {
        out.push(b", sharding=");
        out.again(value, Meaning::Sharding, |out, value| sharding::write(out, value, 0))?;
    }
    if let Some(value) = fields.text(FRONTEND_ATTRIBUTES) {
        metadata::write_frontend(out, b", frontend_attributes=", value)?;
    }
    let mut count = 0;
    fields.integers(PREDECESSORS, |id| {
        out.push(if count == 0 { b", control-predecessors={%" } else { b", %" });
        count += 1;
        scope.refer(out, id, fields.message())
    })?;
    if count > 0 {
        out.byte(b'}');
    }
    if let Some(value) = fields.text(STATISTICS) {
        metadata::write_statistics(out, value)?;
    }
    if let Some(value) = fields.bytes(ORIGIN) {
        metadata::write_origin(out, value)?;
    }
    let mut metadata_at = u32::MAX;
    if let Some(value) = fields.text(METADATA) {
        let start = out.text.len();
        let payloads = &scope.module.payloads;
        out.again(value, Meaning::Metadata, |out, value| {
            metadata::write_attribute(out, value, payloads)
        })?;
        if out.text.len() > start {
            metadata_at = (start + metadata::KEY.len()) as u32;
        }
    }
    let config = match fields.bytes(CONFIGURATION_PAYLOAD) {
        Some(value) => {
            let value = metadata::payload(value, &scope.module.payloads)?;
            out.limit_reference(value)?;
            Some(value)
        }
        None => fields.text(CONFIGURATION),
    };
    if let Some(config) = config.filter(|config| !config.is_empty()) {
        out.push(b", backend_config=");
        out.again(config, Meaning::Configuration, |out, config| {
            metadata::write_opaque(out, config);
            Ok(())
        })?;
    }
    Ok(metadata_at)
}
