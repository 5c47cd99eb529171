//! Begins, ends and samples as time passes.

use super::{Slice, Trace};

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A slice begins: its number.
    Begin(u32),
    /// It ends.
    End(u32),
    /// Bytes alive change: the number of the sample.
    Sample(u32),
}

/// Every event with its moment, in nanoseconds. Those of one moment are in an order in which the
/// slices of each track nest.
pub fn events(trace: &Trace) -> Vec<(u64, Event)> {
    let mut events = Vec::with_capacity(2 * trace.slices.len() + trace.samples.len());
    let mut open: Vec<(u32, &Slice)> = Vec::new();
    let mut track = 0;
    for (number, slice) in (0u32..).zip(&trace.slices) {
        while let Some((top, outer)) = open.last()
            && (slice.track != track || outer.end <= slice.begin)
        {
            events.push((outer.end, Event::End(*top)));
            open.pop();
        }
        track = slice.track;
        events.push((slice.begin, Event::Begin(number)));
        open.push((number, slice));
    }
    while let Some((top, outer)) = open.pop() {
        events.push((outer.end, Event::End(top)));
    }
    let samples = (0u32..).zip(&trace.samples);
    events.extend(samples.map(|(number, sample)| (sample.at, Event::Sample(number))));
    events.sort_by_key(|event| event.0);
    events
}
