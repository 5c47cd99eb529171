//! Live ranges against XLA's own: every value's first and last step, the order of steps, the peak
//! and what is alive there, of the CPU programs in `fixtures/live_ranges/`.

use crate::support::reading;
use hlofast::ir::Module;
use hlofast::memory::{LiveValue, Memory, Options, Rule, Space, memory};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a live-range file says.
#[derive(Debug, Default, PartialEq)]
struct Account {
    sequence: Vec<String>,
    ranges: BTreeMap<String, (u32, u32)>,
    peak_step: u32,
    /// Bytes of what is alive at the peak.
    live: BTreeMap<String, i64>,
}

fn xla_account(text: &str) -> Account {
    let mut account = Account::default();
    let mut part = 0;
    for line in text.lines() {
        let entry = line.strip_prefix("    ");
        match (part, entry) {
            (_, None) if line.contains("InstructionSequence:") => part = 1,
            (_, None) if line.contains("BufferLiveRange:") => part = 2,
            (_, None) if line.contains("Live ranges at ") => {
                account.peak_step = line.split_whitespace().nth(3).unwrap().parse().unwrap();
                part = 3;
            }
            (_, None) => part = 4,
            (1, Some(entry)) => account.sequence.push(entry.split_once(':').unwrap().1.to_string()),
            (2, Some(entry)) => {
                let (name, range) = entry.split_once(':').unwrap();
                let (first, last) = range.split_once('-').unwrap();
                let range = (first.parse().unwrap(), last.parse().unwrap());
                assert!(account.ranges.insert(name.to_string(), range).is_none());
            }
            (3, Some(entry)) => {
                let (name, rest) = entry.split_once(": ").unwrap();
                let bytes = rest.split_whitespace().next().unwrap().parse().unwrap();
                account.live.insert(name.to_string(), bytes);
            }
            _ => {}
        }
    }
    account
}

fn own_account(module: &Module, memory: &Memory) -> Account {
    let name = |value: &LiveValue| {
        let path: Vec<String> = value.path.iter().map(u32::to_string).collect();
        let name = String::from_utf8_lossy(module.instruction_name(value.row)).into_owned();
        format!("{name}{{{}}}", path.join(","))
    };
    let row_name = |row: &u32| {
        String::from_utf8_lossy(module.instruction_name(hlofast::ir::Row(*row))).into_owned()
    };
    Account {
        sequence: memory.sequence().iter().map(row_name).collect(),
        ranges: memory
            .all_values(module)
            .iter()
            .map(|value| (name(value), (value.first_step, value.last_step)))
            .collect(),
        peak_step: memory.peak.step,
        live: memory
            .live_at(module, memory.peak.step)
            .iter()
            .map(|value| (name(value), value.bytes))
            .collect(),
    }
}

fn programs() -> Vec<PathBuf> {
    let folder = reading::tests_folder().join("fixtures/live_ranges");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}

#[test]
fn every_range_is_the_one_of_xla() {
    let programs = programs();
    assert!(programs.len() >= 45, "{}", programs.len());
    for program in programs {
        let text = reading::read(&program.join("after_optimizations.txt.gz"));
        let module = reading::parse(&text).unwrap();
        let options = Options { rule: Rule::Values, space: Space::All, ..Options::default() };
        let memory = memory(&module, &options).unwrap();
        let file = reading::read(&program.join("live-range.txt.gz"));
        let xla = xla_account(std::str::from_utf8(&file).unwrap());
        assert!(!xla.ranges.is_empty(), "{}", program.display());
        assert_eq!(own_account(&module, &memory), xla, "{}", program.display());
        assert_eq!(memory.peak.bytes, xla.live.values().sum::<i64>(), "{}", program.display());
    }
}

/// Sharing memory can only lower what is alive, and what is alive adds up to the timeline.
#[test]
fn sharing_lowers_the_timeline() {
    let mut is_lower = 0;
    for program in programs() {
        let text = reading::read(&program.join("after_optimizations.txt.gz"));
        let module = reading::parse(&text).unwrap();
        let count = |rule| {
            let options = Options { rule, space: Space::All, ..Options::default() };
            memory(&module, &options).unwrap()
        };
        let (values, in_place) = (count(Rule::Values), count(Rule::InPlace));
        let pairs = values.timeline.iter().zip(&in_place.timeline);
        assert!(pairs.clone().all(|(values, shared)| shared <= values), "{}", program.display());
        is_lower += usize::from(pairs.into_iter().any(|(values, shared)| shared < values));
        assert_eq!(in_place.timeline.iter().max(), Some(&in_place.peak.bytes));
        for step in [0, in_place.peak.step, in_place.timeline.len() as u32 / 2] {
            let live = in_place.live_at(&module, step);
            let sum: i64 = live.iter().map(|value| value.bytes).sum();
            assert_eq!(sum, in_place.timeline[step as usize], "{} {step}", program.display());
            let mut buffers: Vec<u32> = live.iter().map(|value| value.buffer).collect();
            buffers.sort_unstable();
            let count = buffers.len();
            buffers.dedup();
            assert_eq!(buffers.len(), count, "a buffer counts twice at {step}");
        }
    }
    assert!(is_lower > 30, "{is_lower}");
}
