//! The runs of one program on each device: those that the profile marks, else those that the order
//! of its instructions shows.

use super::Run;
use super::join::Joined;
use crate::ir::Module;
use crate::profile::Profile;
use std::collections::{HashMap, HashSet};

/// The runs of `joined.program`, sorted by device and start.
pub(super) fn runs(module: &Module, profile: &Profile, joined: &Joined) -> Vec<Run> {
    let mut runs: Vec<Run> = profile
        .launches
        .iter()
        .filter(|launch| launch.program == joined.program && launch.duration_ps > 0)
        .map(|launch| Run {
            device: launch.device,
            start_ps: launch.start_ps,
            duration_ps: launch.duration_ps,
            ..Run::default()
        })
        .collect();
    let marked: HashSet<u32> = runs.iter().map(|run| run.device).collect();
    let mut inside: HashMap<u32, Vec<(i64, i64, u32)>> = HashMap::new();
    let events = &profile.events;
    for at in 0..events.len() {
        let device = profile.tracks[events.track[at] as usize].device;
        if events.program[at] == joined.program && !marked.contains(&device) {
            let end = events.start_ps[at].saturating_add(events.duration_ps[at]);
            let event = (events.start_ps[at], end, joined.row(events.op[at]));
            inside.entry(device).or_default().push(event);
        }
    }
    for (device, events) in inside {
        runs.extend(repeated(module, device, events));
    }
    runs.sort_by_key(|run| (run.device, run.start_ps));
    for at in 1..runs.len() {
        let (before, run) = (runs[at - 1].clone(), &mut runs[at]);
        if before.device == run.device {
            let end = before.start_ps.saturating_add(before.duration_ps);
            run.gap_ps = Some(run.start_ps.saturating_sub(end).max(0));
        }
    }
    runs
}

/// The runs on a device without marks, whose events `inside` are: start, end, row.
///
/// The instructions of the entry computation run once in each run, with the same number of events
/// every time. So most of them have as many events as there are runs, or a multiple. The last of
/// them in the schedule closes a run, and what begins after it belongs to the next. A run without the
/// first instruction began before the profile, and what follows the last closing event ended after
/// it; both are left out.
fn repeated(module: &Module, device: u32, mut inside: Vec<(i64, i64, u32)>) -> Vec<Run> {
    inside.sort_unstable();
    let entry = module.computation(module.entry()).rows();
    let mut counts: HashMap<u32, usize> = HashMap::new();
    // The place of each instruction: its row if text order is the schedule, else its first event.
    let mut places: HashMap<u32, usize> = HashMap::new();
    for (at, (_, _, row)) in inside.iter().enumerate() {
        if entry.contains(row) {
            *counts.entry(*row).or_default() += 1;
            let place = if module.is_scheduled() { *row as usize } else { at };
            places.entry(*row).or_insert(place);
        }
    }
    let mut frequent: HashMap<usize, usize> = HashMap::new();
    for count in counts.values() {
        *frequent.entry(*count).or_default() += 1;
    }
    let usual = frequent.into_iter().max_by_key(|(count, rows)| (*rows, *count));
    let Some((usual, _)) = usual else { return Vec::new() };
    let place = |row: &u32| places[row];
    let regular = counts.keys().filter(|row| counts[*row].is_multiple_of(usual)).copied();
    let Some(last) = regular.max_by_key(place) else { return Vec::new() };
    let often = counts.keys().filter(|row| counts[*row] + 1 >= usual).copied();
    let first = often.min_by_key(place).unwrap_or(last);
    let events_of_last = counts[&last] / usual;

    let mut runs: Vec<Run> = Vec::new();
    let mut run: Option<(i64, i64)> = None;
    let (mut has_first, mut events_seen) = (false, 0);
    for (start, end, row) in inside {
        let (begin, close) = run.unwrap_or((start, end));
        let close = close.max(end);
        run = Some((begin, close));
        has_first |= row == first;
        events_seen += usize::from(row == last);
        if events_seen == events_of_last {
            if has_first {
                let duration_ps = close.saturating_sub(begin);
                runs.push(Run { device, start_ps: begin, duration_ps, ..Run::default() });
            }
            (run, has_first, events_seen) = (None, false, 0);
        }
    }
    // The end of one run may lie behind the start of the next: asynchronous work.
    for at in 1..runs.len() {
        let next = runs[at].start_ps;
        let run = &mut runs[at - 1];
        run.duration_ps = run.duration_ps.min(next.saturating_sub(run.start_ps)).max(0);
    }
    runs.retain(|run| run.duration_ps > 0);
    runs
}
