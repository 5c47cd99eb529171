//! `OpMetadata`, frontend attributes, statistics, original values and the tables of source
//! locations.

use super::shape::MAX_DEPTH;
use super::wire::Message;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::decode::{
    FrontendAttribute, Metadata, Origin, OriginPart, OriginalValue, StackFrames, Statistics,
};
use crate::text::Span;
use std::collections::BTreeMap;

/// Checks that `value` fits the 32 bits of its field.
fn small(name: &str, value: i64) -> Result<i64> {
    i32::try_from(value).map(i64::from).map_err(|_| {
        let message = format!("{name} {value} does not fit its 32-bit field");
        ParseError::new(ErrorKind::InvalidAttribute, Span::EMPTY, message)
    })
}

/// Encodes `OpMetadata`.
pub(super) fn metadata(metadata: &Metadata<'_>) -> Result<Message> {
    let mut message = Message::default();
    if let Some((key, _)) = metadata.other.first() {
        let text =
            format!("a protobuf has no field for {} in metadata", String::from_utf8_lossy(key));
        return Err(ParseError::new(ErrorKind::UnexpectedAttribute, Span::EMPTY, text));
    }
    for (number, text) in [
        (1, &metadata.op_type),
        (2, &metadata.op_name),
        (3, &metadata.source_file),
        (12, &metadata.deduplicated_name),
        (16, &metadata.scheduling_name),
    ] {
        message.text(number, text.as_deref().unwrap_or_default());
    }
    for (number, name, value) in [
        (4, "source_line", metadata.source_line),
        (15, "stack_frame_id", metadata.stack_frame_id),
        (17, "source_end_line", metadata.source_end_line),
        (18, "source_column", metadata.source_column),
        (19, "source_end_column", metadata.source_end_column),
    ] {
        message.integer(number, small(name, value.unwrap_or_default())?);
    }
    message.integers(5, metadata.profile_type.iter().flatten().copied());
    if let Some(payload) = &metadata.metadata_payload {
        let mut value = Message::default();
        value.element(1, payload);
        message.message(20, value);
    }
    Ok(message)
}

/// Encodes `FrontendAttributes`; of equal keys, the last counts.
pub(super) fn frontend_attributes(attributes: &[FrontendAttribute<'_>]) -> Message {
    let sorted: BTreeMap<&[u8], &[u8]> =
        attributes.iter().map(|attribute| (attribute.key, attribute.value.as_ref())).collect();
    let mut message = Message::default();
    for (key, value) in sorted {
        let mut entry = Message::default();
        entry.text(1, key);
        entry.text(2, value);
        message.message(1, entry);
    }
    message
}

/// Encodes `StatisticsViz`.
pub(super) fn statistics(statistics: &Statistics<'_>) -> Message {
    let mut message = Message::default();
    message.integer(1, statistics.visualizing_index);
    for (name, value) in &statistics.values {
        let mut statistic = Message::default();
        statistic.text(1, name);
        statistic.double(2, *value);
        message.message(2, statistic);
    }
    message
}

/// Encodes an `OriginalArrayProto`.
pub(super) fn original_array((name, index): &OriginalValue<'_>) -> Message {
    let mut message = Message::default();
    message.text(1, name);
    message.integers(2, index.iter().copied());
    message
}

/// Encodes an `OriginalValueProto`: one element per leaf, with its tuple path.
pub(super) fn origin(origin: &Origin<'_>) -> Result<Message> {
    let mut message = Message::default();
    let parts = match origin {
        Origin::SyntheticCall => {
            message.flag(2, true);
            return Ok(message);
        }
        Origin::Tree(parts) => parts,
    };
    let mut place: Vec<i64> = Vec::new();
    for part in parts {
        match part {
            OriginPart::Open => {
                place.push(0);
                if place.len() > MAX_DEPTH {
                    let text = format!("an origin nested deeper than {MAX_DEPTH}");
                    return Err(ParseError::new(ErrorKind::TooDeep, Span::EMPTY, text));
                }
                continue;
            }
            OriginPart::Close => {
                place.pop();
            }
            OriginPart::Leaf(value) => {
                let mut element = Message::default();
                element.integers(1, place.iter().copied());
                if let Some(value) = value {
                    element.message(2, original_array(value));
                }
                message.message(1, element);
            }
        }
        if let Some(last) = place.last_mut() {
            *last += 1;
        }
    }
    Ok(message)
}

/// Encodes a `StackFrameIndexProto`; parents are numbered from 1, and 0 means none.
pub(super) fn stack_frames(tables: &StackFrames) -> Result<Message> {
    let mut message = Message::default();
    for (number, names) in [(1, &tables.file_names), (2, &tables.function_names)] {
        names.iter().for_each(|name| message.element(number, name));
    }
    let places = tables.location_files.iter().zip(&tables.location_functions);
    for ((file, function), positions) in places.zip(&tables.location_positions) {
        let mut location = Message::default();
        for (number, name, value) in [
            (1, "file_name_id", *file),
            (2, "function_name_id", *function),
            (3, "line", positions.line),
            (4, "column", positions.column),
            (5, "end_line", positions.end_line),
            (6, "end_column", positions.end_column),
        ] {
            location.integer(number, small(name, value)?);
        }
        message.message(3, location);
    }
    for (location, parent) in tables.frame_locations.iter().zip(&tables.frame_parents) {
        let mut frame = Message::default();
        frame.integer(1, small("file_location_id", *location)?);
        frame.integer(2, small("parent_frame_id", *parent)?);
        message.message(4, frame);
    }
    Ok(message)
}
