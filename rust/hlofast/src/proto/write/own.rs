//! The fields of attributes: the table of attributes writes regular values; other values have their
//! own functions.

use super::keys::{Keys, code_of};
use super::shape::Style;
use super::wire::Message;
use super::{Writer, convolution, literal, metadata, sharding};
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::attribute::{self, Form, Grammar, PRECISIONS, Use};
use crate::ir::decode::{Alias, AttributeValue as V, ResultAccuracy};
use crate::ir::{Opcode, Row};
use crate::text::Span;

/// Appends the fields of the attributes that every opcode may have.
pub(super) fn common(
    writer: &mut Writer<'_>,
    fields: &mut Message,
    keys: &mut Keys<'_>,
    row: Row,
) -> Result<()> {
    attribute::common()
        .try_for_each(|attribute| write_attribute(writer, fields, keys, row, attribute))
}

/// Appends the fields of the opcode's attributes.
pub(super) fn write(
    writer: &mut Writer<'_>,
    fields: &mut Message,
    keys: &mut Keys<'_>,
    row: Row,
) -> Result<()> {
    let mut uses = attribute::uses(writer.module.opcode(row)).peekable();
    while let Some(first) = uses.next() {
        let [outer, inner] = first.field.path.map(u32::from);
        if outer == 0 {
            write_attribute(writer, fields, keys, row, first)?;
            continue;
        }
        // Attributes in the same message are adjacent; the message is written even if it is empty.
        let mut message = Message::default();
        let mut innermost = Message::default();
        let is_nested = inner != 0;
        write_attribute(
            writer,
            if is_nested { &mut innermost } else { &mut message },
            keys,
            row,
            first,
        )?;
        while let Some(next) = uses.next_if(|next| u32::from(next.field.path[0]) == outer) {
            let is_inner = is_nested && next.field.path[1] != 0;
            write_attribute(
                writer,
                if is_inner { &mut innermost } else { &mut message },
                keys,
                row,
                next,
            )?;
        }
        if is_nested {
            message.message(inner, innermost);
        }
        fields.message(outer, message);
    }
    Ok(())
}

/// Appends the field of one attribute to the message that contains it.
fn write_attribute(
    writer: &mut Writer<'_>,
    fields: &mut Message,
    keys: &mut Keys<'_>,
    row: Row,
    attribute: &Use,
) -> Result<()> {
    let Use { grammar, field, .. } = *attribute;
    let number = u32::from(field.number);
    let Some(span) = keys.take(attribute.id) else { return absent(writer, fields, row, attribute) };
    if matches!(grammar, Grammar::Names) {
        fields.integers(number, writer.predecessors(row));
        return Ok(());
    }
    if number == 0 {
        if let Some(what) = field.loses {
            writer.leave_out(span, what);
        }
        return Ok(());
    }
    keys.read(attribute, span, |value| {
        match (grammar, value) {
            (Grammar::Integer | Grammar::Int32, V::Integer(value)) => match field.form {
                Form::Small if i32::try_from(value).is_err() => return Ok(false),
                Form::OneOfList => fields.integers(number, [value]),
                Form::Presence => fields.present(number, value),
                _ => {
                    if let Some(what) = field.loses.filter(|_| value <= field.absent) {
                        writer.leave_out(span, what);
                    }
                    fields.integer(number, value);
                }
            },
            (Grammar::Boolean, V::Boolean(value)) => {
                let is_three_valued = field.form == Form::ThreeValued;
                fields.integer(number, if is_three_valued && !value { 2 } else { value.into() });
            }
            (Grammar::Integers, V::Integers(value)) => fields.integers(number, value),
            (Grammar::IntegerLists, V::IntegerLists(lists)) => {
                // Readers divide the numbers into lists by the rank of the sliced array.
                let operand = writer.module.operands(row).first();
                let array = operand.and_then(|operand| {
                    writer.module.shapes().array(writer.module.shape(Row(*operand)))
                });
                let is_cut = array.is_some_and(|a| lists.iter().all(|list| list.len() == a.rank()));
                if let Some(what) = field.loses.filter(|_| lists.len() > 1 && !is_cut) {
                    writer.leave_out(span, what);
                }
                fields.integers(number, lists.items);
            }
            (Grammar::Float, V::Float(value)) => fields.single(number, value as f32),
            (Grammar::Text, V::Text(text)) => fields.text(number, &text),
            (Grammar::Word(_), V::Word(word)) if field.form == Form::Spelled => {
                fields.text(number, word);
            }
            (Grammar::Word(words), V::Word(word)) => {
                fields.integer(number, code_of(word, words.names)?.max(field.absent));
            }
            (Grammar::Precision, V::Words(words)) => {
                let codes = words.into_iter().map(|word| code_of(word, PRECISIONS.names));
                fields.integers(number, codes.collect::<Result<Vec<i64>>>()?);
            }
            (Grammar::Booleans, V::Booleans(flags)) => {
                let mut message = Message::default();
                message.integers(1, flags.into_iter().map(i64::from));
                fields.message(number, message);
            }
            (Grammar::Slice, V::Slice(ranges)) => {
                for range in ranges {
                    fields.message(number, numbers([range.start, range.limit, range.stride]));
                }
            }
            (Grammar::Padding, V::Padding(dimensions)) => {
                let mut config = Message::default();
                for dimension in dimensions {
                    config.message(1, numbers([dimension.low, dimension.high, dimension.interior]));
                }
                fields.message(number, config);
            }
            (Grammar::Pairs, V::SourceTargetPairs(pairs)) => {
                for (source, target) in pairs {
                    fields.message(number, numbers([source, target]));
                }
            }
            (Grammar::Aliasing, V::Aliases(aliases)) => {
                for Alias { output_index, number: operand, index, .. } in aliases {
                    let mut message = Message::default();
                    message.integers(1, output_index);
                    message.integer(2, operand);
                    message.integers(3, index);
                    fields.message(number, message);
                }
            }
            (Grammar::Window, V::Window(window)) => {
                fields.message(number, convolution::window(window));
            }
            (Grammar::DimLabels, V::DimensionLabels(labels)) => {
                fields.message(number, convolution::dimension_numbers(&labels));
            }
            (Grammar::Sparsity, V::SparsityConfig(config)) => {
                fields.message(number, convolution::sparsity(config));
            }
            (Grammar::Groups, V::ReplicaGroups(groups)) => {
                sharding::replica_groups(fields, &groups)?;
            }
            (Grammar::Shape, V::Shape(text)) => {
                fields.element(number, &writer.shape_of_text(text)?);
            }
            (Grammar::Shapes, V::Shapes(shapes)) => {
                fields.flag(number, true);
                for text in shapes {
                    // Locations within a list of shapes are unknown.
                    let shape = writer.shape_of_text(text).map_err(super::without_place)?;
                    fields.element(field.with.into(), &shape);
                }
            }
            (Grammar::Literal, V::Literal(text)) => {
                fields.message(number, literal::typed(text, writer.limit)?);
            }
            (Grammar::Domain, V::Domain(domain)) if domain.kind.as_ref() == b"sharding" => {
                // The field named `entry` describes the operand's side, which the text calls
                // `exit`.
                fields.message(number, sharding::sharding(&domain.exit)?);
                fields.message(field.with.into(), sharding::sharding(&domain.entry)?);
            }
            (Grammar::Accuracy, V::ResultAccuracy(accuracy)) => {
                fields.message(number, accuracy_proto(&accuracy)?);
            }
            (Grammar::Sharding, V::Sharding(value)) => {
                fields.message(number, sharding::sharding(&value)?);
            }
            (Grammar::Frontend, V::FrontendAttributes(value)) => {
                fields.message(number, metadata::frontend_attributes(&value));
            }
            (Grammar::Statistics, V::Statistics(value)) => {
                let message = value.as_ref().map(metadata::statistics);
                message.into_iter().for_each(|message| fields.message(number, message));
            }
            (Grammar::Origin, V::Origin(value)) => {
                fields.message(number, metadata::origin(&value)?);
            }
            (Grammar::Metadata, V::Metadata(value)) => {
                fields.message(number, metadata::metadata(&value)?);
            }
            (Grammar::BackendConfig, V::Dictionary(value)) => fields.text(number, value),
            (Grammar::BackendConfig, V::Text(value)) => fields.text(number, &value),
            // A form that only old text has.
            _ => return Ok(false),
        }
        Ok(true)
    })
}

/// Writes the fields of an attribute that is absent in the text.
fn absent(writer: &mut Writer<'_>, fields: &mut Message, row: Row, attribute: &Use) -> Result<()> {
    let number = u32::from(attribute.field.number);
    match attribute.grammar {
        Grammar::Integer | Grammar::Boolean | Grammar::Word(_) => {
            fields.integer(number, attribute.field.absent);
        }
        // XLA requires these fields; text omits them if they are empty.
        Grammar::Window if writer.module.opcode(row) == Opcode::Convolution => {
            fields.message(number, Message::default());
        }
        // A composite call is only read with frontend attributes, even if they are empty.
        Grammar::Frontend | Grammar::Sparsity | Grammar::Padding => {
            fields.message(number, Message::default())
        }
        Grammar::Shape => {
            // Without a shape, XLA sends the shape of the operand.
            if let Some(sent) = writer.module.operands(row).first() {
                let shape = writer.module.shape(Row(*sent));
                fields.element(number, writer.shapes.get(shape, Style::Full)?);
            }
        }
        _ => {}
    }
    Ok(())
}

/// A message whose fields 1, 2 and so on hold `values`.
fn numbers<const N: usize>(values: [i64; N]) -> Message {
    let mut message = Message::default();
    for (number, value) in (1..).zip(values) {
        message.integer(number, value);
    }
    message
}

fn accuracy_proto(accuracy: &ResultAccuracy<'_>) -> Result<Message> {
    let mut message = Message::default();
    match accuracy {
        ResultAccuracy::Mode(word) => {
            message.present(1, code_of(word, &["default", "highest"])?);
        }
        ResultAccuracy::Tolerance { atol, rtol, ulps } => {
            let whole = *ulps as i64;
            if whole as f64 != *ulps {
                let text = format!("ulps={ulps} must be a whole number");
                return Err(ParseError::new(ErrorKind::InvalidAttribute, Span::EMPTY, text));
            }
            let mut tolerance = Message::default();
            tolerance.double(1, *atol);
            tolerance.double(2, *rtol);
            tolerance.integer(3, whole);
            message.message(2, tolerance);
        }
    }
    Ok(message)
}
