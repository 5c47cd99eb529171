//! Traces as JSON in the Trace Event Format: a complete event (`X`) per slice, counter events (`C`)
//! for live bytes, metadata events (`M`) for names. Times are in microseconds.

use super::arguments::{Described, Value};
use super::events::{Event, events};
use super::{Sample, Slice};
use crate::table::json_text;
use std::io::{Result, Write};

/// Writes `described` as one JSON object.
pub fn write_chrome(described: &Described<'_>, out: &mut dyn Write) -> Result<()> {
    let trace = described.trace;
    let mut line = b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n".to_vec();
    named(&mut line, "process_name", None, &String::from_utf8_lossy(described.module.name()));
    for (number, track) in (1usize..).zip(&trace.tracks) {
        line.extend_from_slice(b",\n");
        named(&mut line, "thread_name", Some(number), &track.name);
        line.extend_from_slice(b",\n");
        let order = format!(
            "{{\"ph\":\"M\",\"pid\":1,\"tid\":{number},\"name\":\"thread_sort_index\",\
             \"args\":{{\"sort_index\":{number}}}}}"
        );
        line.extend_from_slice(order.as_bytes());
    }
    out.write_all(&line)?;
    for (_, event) in events(trace) {
        line.clear();
        match event {
            Event::Begin(number) => match trace.slices.get(number as usize) {
                Some(slice) => complete(&mut line, described, slice),
                None => continue,
            },
            Event::Sample(number) => match trace.samples.get(number as usize) {
                Some(sample) => counter(&mut line, sample),
                None => continue,
            },
            Event::End(_) => continue,
        }
        out.write_all(&line)?;
    }
    out.write_all(b"\n]}\n")
}

/// Writes nanoseconds as exact microseconds.
fn microseconds(line: &mut Vec<u8>, nanoseconds: u64) {
    let (whole, part) = (nanoseconds / 1000, nanoseconds % 1000);
    line.extend_from_slice(format!("{whole}.{part:03}").as_bytes());
}

fn named(line: &mut Vec<u8>, kind: &str, track: Option<usize>, name: &str) {
    let track = track.map_or(String::new(), |track| format!("\"tid\":{track},"));
    let open = format!("{{\"ph\":\"M\",\"pid\":1,{track}\"name\":\"{kind}\",\"args\":{{\"name\":");
    line.extend_from_slice(open.as_bytes());
    json_text(name.as_bytes(), line);
    line.extend_from_slice(b"}}");
}

fn complete(line: &mut Vec<u8>, described: &Described<'_>, slice: &Slice) {
    let track = slice.track + 1;
    let open = format!(",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{track},\"ts\":");
    line.extend_from_slice(open.as_bytes());
    microseconds(line, slice.begin);
    line.extend_from_slice(b",\"dur\":");
    microseconds(line, slice.end - slice.begin);
    line.extend_from_slice(b",\"name\":");
    json_text(described.name(slice).as_bytes(), line);
    line.extend_from_slice(b",\"cat\":");
    json_text(described.category(slice).as_bytes(), line);
    line.extend_from_slice(b",\"args\":{");
    for (number, (name, value)) in described.arguments(slice).into_iter().enumerate() {
        if number > 0 {
            line.push(b',');
        }
        json_text(name.as_bytes(), line);
        line.push(b':');
        match value {
            Value::Text(text) => json_text(&text, line),
            Value::Integer(value) => line.extend_from_slice(value.to_string().as_bytes()),
            Value::Real(value) => line.extend_from_slice(format!("{value:?}").as_bytes()),
        }
    }
    line.extend_from_slice(b"}}");
}

fn counter(line: &mut Vec<u8>, sample: &Sample) {
    line.extend_from_slice(b",\n{\"ph\":\"C\",\"pid\":1,\"ts\":");
    microseconds(line, sample.at);
    let rest = format!(",\"name\":\"live bytes\",\"args\":{{\"bytes\":{}}}}}", sample.bytes);
    line.extend_from_slice(rest.as_bytes());
}
