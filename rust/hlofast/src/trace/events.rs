//! Begin, end and sample events in time order.

use super::{Slice, Trace};

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A slice begins; its index.
    Begin(u32),
    /// A slice ends; its index.
    End(u32),
    /// Live bytes change; the index of the sample.
    Sample(u32),
}

/// Every event with its time in nanoseconds. Events at the same time are ordered so that the slices
/// of each track nest.
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
