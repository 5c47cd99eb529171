//! The attributes of an opcode, in XLA's order: the table of attributes writes regular values;
//! other values have their own functions.

use super::computation::Scope;
use super::out::Out;
use super::record::{Record, Store, repeated};
use super::wire::{Fault, Read};
use super::{convolution, instruction, literal, metadata, shape, sharding};
use crate::ir::attribute::{self, Form, Grammar, PRECISIONS, Use};
use crate::ir::{ElementKind, Opcode};

/// Appends `, key=`.
pub(super) fn key(out: &mut Out<'_>, name: &str) {
    out.push(b", ");
    out.push(name.as_bytes());
    out.byte(b'=');
}

/// Appends the attributes of an instruction whose opcode is `opcode`.
#[inline]
pub(super) fn write<'a>(
    out: &mut Out<'a>,
    scope: &mut Scope<'a, '_>,
    opcode: Opcode,
    fields: &Record<'a, '_>,
) -> Read<()> {
    if fields.has_any(attribute::fields(opcode)) || attribute::is_always_printed(opcode) {
        return own(out, scope, opcode, fields);
    }
    // A fault if the opcode does not call computations.
    if fields.has(instruction::CALLS) {
        return instruction::calls(out, scope, opcode, fields);
    }
    Ok(())
}

fn own<'a>(
    out: &mut Out<'a>,
    scope: &mut Scope<'a, '_>,
    opcode: Opcode,
    fields: &Record<'a, '_>,
) -> Read<()> {
    let mut uses = attribute::uses(opcode);
    let mut has_called = false;
    while let Some(first) = uses.next() {
        let path = first.field.path;
        if path == [0, 0] {
            if matches!(first.grammar, Grammar::Computation | Grammar::Computations) {
                // All these attributes together determine the calls and their names.
                if !has_called {
                    instruction::calls(out, scope, opcode, fields)?;
                }
                has_called = true;
            } else {
                write_attribute(out, scope, first, fields, fields)?;
            }
            continue;
        }
        // Attributes in the same message are adjacent.
        let rest = uses.clone().take_while(|next| next.field.path == path);
        let lists = rest.clone().chain([first]).filter(|attribute| attribute.is_repeated());
        let lists = lists.fold(0, |set, attribute| set | 1 << attribute.field.number);
        let mut outer = Store::default();
        let mut message = fields.bytes(path[0].into()).unwrap_or_default();
        if path[1] != 0 {
            let numbers = outer.read(message, lists)?;
            message = numbers.bytes(path[1].into()).unwrap_or_default();
        }
        let mut store = Store::default();
        let message = store.read(message, lists)?;
        write_attribute(out, scope, first, &message, fields)?;
        for next in rest {
            write_attribute(out, scope, next, &message, fields)?;
            uses.next();
        }
    }
    if !has_called && fields.has(instruction::CALLS) {
        instruction::calls(out, scope, opcode, fields)?;
    }
    Ok(())
}

/// Appends the attribute whose field is in `message`; `fields` holds the whole instruction.
fn write_attribute<'a>(
    out: &mut Out<'a>,
    scope: &Scope<'a, '_>,
    attribute: &'static Use,
    message: &Record<'a, '_>,
    fields: &Record<'a, '_>,
) -> Read<()> {
    let Use { key: name, grammar, field, .. } = *attribute;
    let number = u32::from(field.number);
    let may_stand = field.is_always_printed || field.with != 0 || message.has(number);
    if !may_stand || number == 0 || field.is_only_written {
        return Ok(());
    }
    match grammar {
        Grammar::Integer | Grammar::Int32 => {
            if let Some(value) = integer(attribute, message)? {
                key(out, name);
                out.integer(value);
            }
        }
        Grammar::Boolean => {
            let (is_true, is_false) = match field.form {
                Form::ThreeValued => (message.integer(number) == 1, message.integer(number) == 2),
                _ => (message.is_set(number), field.is_always_printed),
            };
            if is_true || is_false {
                key(out, name);
                out.push(if is_true { b"true" } else { b"false" });
            }
        }
        Grammar::Integers => list(out, attribute, message)?,
        Grammar::IntegerLists => slice_sizes(out, scope, attribute, fields)?,
        Grammar::Float => {
            key(out, name);
            literal::write_single(out, message.float(number));
        }
        Grammar::Text => {
            let text = message.bytes(number).unwrap_or_default();
            let is_usual = text.is_empty() || field.form == Form::Thread && text == b"main";
            if field.is_always_printed || !is_usual {
                key(out, name);
                out.string(text);
            }
        }
        Grammar::Word(_) if field.form == Form::Spelled => {
            if let Some(word) = message.text(number)
                && (name != "type" || word != usual_type(scope, fields)?)
            {
                key(out, name);
                out.push(&metadata::clean_name(word));
            }
        }
        Grammar::Word(words) => {
            // Codes below the code for absence also mean absence.
            let code = message.integer(number);
            let is_usual = code == field.absent || code < field.absent && field.absent > 0;
            if field.is_always_printed || !is_usual {
                let word = word(name, message, code, words.names)?;
                key(out, name);
                out.push(word.as_bytes());
            }
        }
        Grammar::Booleans => replication(out, message.bytes(number).unwrap_or_default())?,
        Grammar::Slice => slice(out, message, number)?,
        Grammar::Padding => pad(out, message.bytes(number).unwrap_or_default())?,
        Grammar::Precision => precision(out, message, number)?,
        Grammar::Window => convolution::window(out, message.bytes(number).unwrap_or_default())?,
        Grammar::DimLabels => {
            if let Some(numbers) = message.bytes(number) {
                convolution::dimension_labels(out, numbers)?;
            }
        }
        Grammar::Sparsity => convolution::sparsity(out, message.bytes(number).unwrap_or_default())?,
        Grammar::Shapes => shapes(out, attribute, message)?,
        Grammar::Shape => {
            if let Some(value) = message.bytes(number) {
                key(out, name);
                shape::write(out, value, shape::Style::Full, 0)?;
            }
        }
        Grammar::Literal => {
            if let Some(value) = message.bytes(number) {
                key(out, name);
                literal::write(out, value, true, 0)?;
            }
        }
        Grammar::Aliasing => aliasing(out, attribute, message)?,
        Grammar::Groups => {
            key(out, name);
            sharding::write_groups(out, fields)?;
        }
        Grammar::Pairs => pairs(out, attribute, message)?,
        Grammar::Domain => {
            // The first field describes the operand's side, which the text calls `exit`.
            for (number, name) in [
                (field.with, &b", domain={kind=\"sharding\", entry="[..]),
                (field.number, b", exit="),
            ] {
                out.push(name);
                sharding::write(out, message.bytes(number.into()).unwrap_or_default(), 0)?;
            }
            out.byte(b'}');
        }
        Grammar::Accuracy => result_accuracy(out, message.bytes(number).unwrap_or_default())?,
        // `own` writes computations; attributes of all opcodes come after the opcode's own
        // attributes.
        Grammar::Computation
        | Grammar::Computations
        | Grammar::Names
        | Grammar::Sharding
        | Grammar::Frontend
        | Grammar::Statistics
        | Grammar::Origin
        | Grammar::Metadata
        | Grammar::BackendConfig => {}
    }
    Ok(())
}

/// The value of an integer, if the text has it.
#[inline]
fn integer(attribute: &Use, message: &Record<'_, '_>) -> Read<Option<i64>> {
    let field = attribute.field;
    let (number, with) = (u32::from(field.number), u32::from(field.with));
    let value = match field.form {
        Form::OneOfList => message.list(number)?.first().copied(),
        Form::Presence => {
            (message.has(number) || message.is_set(with)).then(|| message.integer(number))
        }
        _ => {
            let other = if with == 0 { i64::MIN } else { message.integer(with) };
            let value = message.integer(number).max(other);
            (value > field.absent || field.is_always_printed).then_some(value)
        }
    };
    Ok(value.or(field.is_always_printed.then_some(0)))
}

/// Writes `{1,2}`.
#[inline]
fn list(out: &mut Out<'_>, attribute: &Use, message: &Record<'_, '_>) -> Read<()> {
    let start = out.text.len();
    key(out, attribute.key);
    out.byte(b'{');
    let mut count = 0;
    message.integers(attribute.field.number.into(), |value| {
        if count > 0 {
            out.byte(b',');
        }
        count += 1;
        out.integer(value);
        Ok(())
    })?;
    out.byte(b'}');
    if count == 0 && !attribute.field.is_always_printed {
        out.text.truncate(start);
    }
    Ok(())
}

/// Writes `slice_sizes={{1,2},{1,2}}` of a collective-permute, whose field concatenates the lists.
/// Each list has one number per dimension of the sliced array (`CreateFromProto` in XLA's
/// hlo_instruction.cc reads them this way); the remaining numbers form one more list.
fn slice_sizes(
    out: &mut Out<'_>,
    scope: &Scope<'_, '_>,
    attribute: &Use,
    fields: &Record<'_, '_>,
) -> Read<()> {
    let sizes = fields.list(attribute.field.number.into())?;
    let mut rest: &[i64] = &sizes;
    if rest.is_empty() {
        return Ok(());
    }
    key(out, attribute.key);
    let mut separator: &[u8] = b"{";
    let mut push = |list: &[i64]| {
        out.push(separator);
        out.integers(list);
        separator = b",";
    };
    let input = scope.operand_shape(fields, 0)?;
    let starts = shape::elements(scope.operand_shape(fields, 2)?)?;
    match shape::type_code(input)? {
        shape::TUPLE => {
            for (index, element) in shape::elements(input)?.into_iter().enumerate() {
                // A tuple of starts here means that several slices are taken from this element.
                let several = match starts.get(index) {
                    Some(starts) => shape::elements(starts)?,
                    None => Vec::new(),
                };
                let is_several = match several.first() {
                    Some(first) => shape::type_code(first)? == shape::TUPLE,
                    None => false,
                };
                let rank = shape::rank(element)?;
                for _ in 0..if is_several { several.len() } else { 1 } {
                    if let Some((list, behind)) = rest.split_at_checked(rank)
                        && rank > 0
                    {
                        push(list);
                        rest = behind;
                    }
                }
            }
        }
        _ => {
            let lists = rest.chunks_exact(shape::rank(input)?.max(1));
            rest = lists.remainder();
            lists.for_each(&mut push);
        }
    }
    if !rest.is_empty() {
        push(rest);
    }
    out.byte(b'}');
    Ok(())
}

/// The word with the number `code`; an unknown number is a fault.
fn word<'w>(name: &str, message: &Record<'_, '_>, code: i64, words: &[&'w str]) -> Read<&'w str> {
    let known = usize::try_from(code).ok().and_then(|code| words.get(code));
    known
        .copied()
        .ok_or_else(|| Fault::new(message.message(), format!("{name} of unknown value {code}")))
}

/// The comparison type implied by the operands.
fn usual_type(scope: &Scope<'_, '_>, fields: &Record<'_, '_>) -> Read<&'static [u8]> {
    let code = scope.operand_type(fields)?;
    Ok(match shape::element_type(code).map(|element_type| element_type.kind()) {
        Some(ElementKind::Float | ElementKind::Complex) => b"FLOAT",
        Some(ElementKind::Signed) => b"SIGNED",
        Some(ElementKind::Unsigned | ElementKind::Predicate) => b"UNSIGNED",
        _ => b"",
    })
}

fn replication(out: &mut Out<'_>, replication: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let mut count = 0;
    store.read(replication, repeated(&[1]))?.integers(1, |flag| {
        out.push(if count == 0 { b", parameter_replication={" } else { b"," });
        count += 1;
        out.push(if flag != 0 { b"true" } else { b"false" });
        Ok(())
    })?;
    if count > 0 {
        out.byte(b'}');
    }
    Ok(())
}

fn slice(out: &mut Out<'_>, fields: &Record<'_, '_>, number: u32) -> Read<()> {
    let mut ranges = Vec::new();
    for range in fields.messages(number) {
        let mut store = Store::default();
        let range = store.read(range, 0)?;
        ranges.push((range.integer(1), range.integer(2), range.integer(3)));
    }
    let has_strides = ranges.iter().any(|(.., stride)| *stride != 1);
    key(out, "slice");
    out.byte(b'{');
    for (index, (start, limit, stride)) in ranges.into_iter().enumerate() {
        out.push(if index == 0 { b"[" } else { b", [" });
        out.integer(start);
        out.byte(b':');
        out.integer(limit);
        if has_strides {
            out.byte(b':');
            out.integer(stride);
        }
        out.byte(b']');
    }
    out.byte(b'}');
    Ok(())
}

fn pad(out: &mut Out<'_>, config: &[u8]) -> Read<()> {
    let mut dimensions = Vec::new();
    let mut store = Store::default();
    let config = store.read(config, repeated(&[1]))?;
    for dimension in config.messages(1) {
        let mut store = Store::default();
        let dimension = store.read(dimension, 0)?;
        dimensions.push((dimension.integer(1), dimension.integer(2), dimension.integer(3)));
    }
    let has_interior = dimensions.iter().any(|(.., interior)| *interior != 0);
    key(out, "padding");
    for (index, (low, high, interior)) in dimensions.into_iter().enumerate() {
        if index > 0 {
            out.byte(b'x');
        }
        out.integer(low);
        out.byte(b'_');
        out.integer(high);
        if has_interior {
            out.byte(b'_');
            out.integer(interior);
        }
    }
    Ok(())
}

/// Writes `operand_precision={high,default}`, unless all precisions are the default.
fn precision(out: &mut Out<'_>, config: &Record<'_, '_>, number: u32) -> Read<()> {
    let operands = config.list(number)?;
    if operands.iter().all(|code| *code == 0) {
        return Ok(());
    }
    key(out, "operand_precision");
    for (index, code) in operands.iter().enumerate() {
        out.byte(if index == 0 { b'{' } else { b',' });
        out.push(word("a precision", config, *code, PRECISIONS.names)?.as_bytes());
    }
    out.byte(b'}');
    Ok(())
}

fn shapes<'a>(out: &mut Out<'a>, attribute: &Use, fields: &Record<'a, '_>) -> Read<()> {
    if !fields.is_set(attribute.field.number.into()) {
        return Ok(());
    }
    key(out, attribute.key);
    out.byte(b'{');
    for (index, operand) in fields.messages(attribute.field.with.into()).enumerate() {
        if index > 0 {
            out.push(b", ");
        }
        shape::write(out, operand, shape::Style::Full, 0)?;
    }
    out.byte(b'}');
    Ok(())
}

fn pairs(out: &mut Out<'_>, attribute: &Use, fields: &Record<'_, '_>) -> Read<()> {
    key(out, attribute.key);
    out.byte(b'{');
    for (index, pair) in fields.messages(attribute.field.number.into()).enumerate() {
        let mut store = Store::default();
        let pair = store.read(pair, 0)?;
        out.push(if index == 0 { b"" } else { b"," });
        out.integers(&[pair.integer(1), pair.integer(2)]);
    }
    out.byte(b'}');
    Ok(())
}

/// Writes `output_to_operand_aliasing={{0}: (1, {})}`.
fn aliasing(out: &mut Out<'_>, attribute: &Use, fields: &Record<'_, '_>) -> Read<()> {
    key(out, attribute.key);
    out.byte(b'{');
    for (index, alias) in fields.messages(attribute.field.number.into()).enumerate() {
        let mut store = Store::default();
        let alias = store.read(alias, repeated(&[1, 3]))?;
        if index > 0 {
            out.push(b", ");
        }
        out.integers(&alias.list(1)?);
        out.push(b": (");
        out.integer(alias.integer(2));
        out.push(b", ");
        out.integers(&alias.list(3)?);
        out.byte(b')');
    }
    out.byte(b'}');
    Ok(())
}

/// Writes `result_accuracy={mode=highest}`, or its tolerance.
fn result_accuracy(out: &mut Out<'_>, message: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let accuracy = store.read(message, 0)?;
    if let Some(tolerance) = accuracy.bytes(2) {
        let mut store = Store::default();
        let tolerance = store.read(tolerance, 0)?;
        out.push(b", result_accuracy={tolerance={atol=");
        literal::write_figure(out, tolerance.double(1));
        out.push(b",rtol=");
        literal::write_figure(out, tolerance.double(2));
        out.push(b",ulps=");
        out.integer(tolerance.integer(3));
        out.push(b"}}");
    } else if accuracy.integer(1) == 1 {
        out.push(b", result_accuracy={mode=highest}");
    }
    Ok(())
}
