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

/// The runs on a device without marks, whose events `inside` are: start, end, row. The instructions
/// of the entry computation run once in each run, so the one that runs first and as often as most
/// others opens each run. What precedes its first event belongs to a run that began before the
/// profile, and is left out.
fn repeated(module: &Module, device: u32, mut inside: Vec<(i64, i64, u32)>) -> Vec<Run> {
    inside.sort_unstable();
    let entry = module.computation(module.entry()).rows();
    // How often each instruction of the entry ran, in order of first event.
    let mut order: Vec<u32> = Vec::new();
    let mut times: HashMap<u32, u64> = HashMap::new();
    for (_, _, row) in &inside {
        if entry.contains(row) {
            let count = times.entry(*row).or_default();
            if *count == 0 {
                order.push(*row);
            }
            *count += 1;
        }
    }
    let mut frequent: HashMap<u64, usize> = HashMap::new();
    for count in times.values() {
        *frequent.entry(*count).or_default() += 1;
    }
    let usual = frequent.into_iter().max_by_key(|(count, rows)| (*rows, *count));
    let Some((usual, _)) = usual else { return Vec::new() };
    let Some(first) = order.iter().find(|row| times[*row] == usual) else { return Vec::new() };
    let mut runs: Vec<Run> = Vec::new();
    for (start, end, row) in inside {
        if row == *first {
            runs.push(Run { device, start_ps: start, ..Run::default() });
        }
        if let Some(run) = runs.last_mut() {
            run.duration_ps = run.duration_ps.max(end.saturating_sub(run.start_ps));
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
