//! The bytes at each step of the text, as far as they do not depend on the policy.
//!
//! XLA rematerialises by itself when a program does not fit: it recomputes values (`x.remat`) that a
//! program which fits keeps. So the live ranges of clones of one value are joined, and an
//! expensive value that a product before and a product after the backward loop both read counts as
//! kept between them.

use super::counted::counted_once;
use super::graph::{Graph, MOST_ROWS};
use super::scans::{Scan, node_of};
use crate::flow::{has_compiler_clones, is_compiler_clone, without_clone_number};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Module, Opcode, Row};
use crate::memory::{LiveValue, Memory};
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// Values of fewer bytes do not matter.
const LEAST: i64 = 1 << 20;

/// Bytes at each step.
#[derive(Debug)]
pub struct Timeline {
    bytes: Vec<i64>,
    /// By step: the row that runs.
    rows: Vec<u32>,
    /// The bytes that were added at each step.
    pub beyond: i64,
    /// Whether XLA has rematerialised by itself.
    is_pressed: bool,
}

/// Bytes at each step under a policy.
pub struct Changes<'a> {
    timeline: &'a Timeline,
    /// By step: the change from the step before.
    changes: Vec<i64>,
    /// The amounts of all changes: no sum of changes exceeds it.
    total: i64,
}

impl Timeline {
    /// The bytes at each step of `memory`, without those that it counts `twice`, raised so that their peak is `peak`.
    pub fn new(
        module: &Module,
        memory: &Memory,
        values: &[LiveValue],
        scans: &[Scan],
        (peak, twice): (i64, &[(u32, i64)]),
    ) -> Option<Self> {
        let counted = counted_once(memory, twice);
        let beyond = peak.checked_sub(counted.iter().copied().max()?)?;
        let is_pressed = has_compiler_clones(module);
        let bytes: Option<Vec<i64>> =
            counted.iter().map(|bytes| bytes.checked_add(beyond)).collect();
        let mut timeline =
            Timeline { bytes: bytes?, rows: memory.sequence().to_vec(), beyond, is_pressed };
        if !is_pressed {
            return Some(timeline);
        }
        let mut budget = MOST_ROWS;
        let mut loops: Vec<Row> = scans.iter().flat_map(Scan::outer).collect();
        loops.sort_unstable();
        let mut places: Vec<ComputationId> = Vec::new();
        let mut changes = vec![0i64; timeline.bytes.len() + 1];
        for scan in scans {
            for (graph, id) in [(&scan.body, scan.body_id), (&scan.back, scan.back_id)] {
                join_clones(module, graph, id, (values, u32::MAX), &mut changes);
            }
            let place = module.computation_of(scan.outer()[0]);
            if places.contains(&place) {
                continue;
            }
            places.push(place);
            if let Some(graph) = Graph::new(module, place, &loops, &mut budget) {
                let behind = *scan.back_steps.end();
                join_clones(module, &graph, place, (values, behind), &mut changes);
                join_outputs(module, &graph, place, (values, behind), &mut changes);
            }
        }
        timeline.apply(&changes);
        Some(timeline)
    }

    /// The sums of these changes of the bytes from each step to the next; `rows` run there.
    pub fn of_changes(mut changes: Vec<i64>, rows: Vec<u32>) -> Self {
        let mut sum = 0i64;
        for change in &mut changes {
            sum = sum.saturating_add(*change);
            *change = sum;
        }
        changes.truncate(rows.len());
        Timeline { bytes: changes, rows, beyond: 0, is_pressed: false }
    }

    /// The bytes at each step of a module whose layers are in the computation `place`; rows run at the steps
    /// `new`, and `moved` are the changes by live ranges that have moved.
    pub fn of_entry(
        module: &Module,
        memory: &Memory,
        values: &[LiveValue],
        graph: &Graph,
        (new, moved): (&[u32], &[i64]),
        (place, peak): (ComputationId, i64),
    ) -> Option<Self> {
        let mut timeline = Self::new(module, memory, values, &[], (peak, &[]))?;
        for (row, new) in memory.sequence().iter().zip(new) {
            timeline.rows[*new as usize] = *row;
        }
        timeline.apply(moved);
        if timeline.is_pressed {
            let mut changes = vec![0i64; timeline.bytes.len() + 1];
            join_clones(module, graph, place, (values, u32::MAX), &mut changes);
            timeline.apply(&changes);
        }
        Some(timeline)
    }

    /// Adds changes of the bytes at each step from the step before.
    pub fn apply(&mut self, changes: &[i64]) {
        let mut sum = 0i64;
        for (bytes, change) in self.bytes.iter_mut().zip(changes) {
            sum = sum.saturating_add(*change);
            *bytes = bytes.saturating_add(sum);
        }
    }

    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.bytes.len()
    }

    /// Whether a step needs so many bytes more than the step before.
    pub fn rises(&self, step: u32, bytes: i64) -> bool {
        let at = |step: u32| self.bytes.get(step as usize).copied().unwrap_or(0);
        at(step).saturating_sub(at(step.saturating_sub(1))) >= bytes
    }

    /// The row that runs at `step`.
    pub fn row(&self, step: usize) -> Option<Row> {
        self.rows.get(step).map(|row| Row(*row))
    }

    /// No changes yet.
    pub fn changes(&self) -> Changes<'_> {
        Changes { timeline: self, changes: vec![0; self.bytes.len() + 1], total: 0 }
    }
}

impl Changes<'_> {
    /// Adds `bytes` at each of `steps`.
    pub fn add(&mut self, steps: RangeInclusive<u32>, bytes: i64) {
        self.total = self.total.saturating_add(bytes.saturating_abs());
        add(&mut self.changes, steps, bytes);
    }

    /// The opposite change at each step from the step before.
    pub fn negated(self) -> Vec<i64> {
        self.changes.into_iter().map(i64::saturating_neg).collect()
    }

    /// The most bytes and their step. `prefixes` are work before a step: the most bytes that it
    /// needs, and those of them that the step itself counts.
    pub fn highest(&self, prefixes: &[(u32, (i64, i64))]) -> (i64, usize) {
        let mut starts: Vec<(usize, i64)> = prefixes
            .iter()
            .map(|(start, (most, counted))| (*start as usize, most.saturating_sub(*counted).max(0)))
            .collect();
        starts.sort_unstable();
        // Sums that saturate take three times as long, since each waits for the one before.
        match self.total < i64::MAX {
            true => self.highest_of(starts, i64::wrapping_add),
            false => self.highest_of(starts, i64::saturating_add),
        }
    }

    fn highest_of(
        &self,
        starts: Vec<(usize, i64)>,
        plus: impl Fn(i64, i64) -> i64,
    ) -> (i64, usize) {
        let mut starts = starts.into_iter().peekable();
        let (mut most, mut step, mut sum) = (i64::MIN, 0, 0i64);
        let (bytes, changes) = (&self.timeline.bytes, &self.changes);
        let mut from = 0;
        while from < bytes.len() {
            // Work runs only before some steps.
            let mut more = 0;
            while let Some((_, own)) = starts.next_if(|(start, _)| *start <= from) {
                more = more.max(own);
            }
            let to = starts.peek().map_or(bytes.len(), |(start, _)| (*start).min(bytes.len()));
            for (at, (bytes, change)) in
                (from..to).zip(bytes[from..to].iter().zip(&changes[from..]))
            {
                sum = plus(sum, *change);
                let own = bytes.saturating_add(sum).saturating_add(more);
                more = 0;
                if own > most {
                    (most, step) = (own, at);
                }
            }
            from = to;
        }
        (most.max(0), step)
    }
}

/// Bytes while values are recomputed: the most, and those that backward work still needs. Of each value: its
/// node, its bytes, and the last recomputed node that reads it if no backward work does.
pub fn prefix(values: &[(u32, i64, Option<u32>)]) -> (i64, i64) {
    let (mut live, mut most, mut left) = (0i64, 0i64, 0i64);
    let mut ends: Vec<(u32, i64)> = Vec::new();
    for (_, size, read_by) in values {
        match read_by {
            Some(end) => ends.push((*end, *size)),
            None => left = left.saturating_add(*size),
        }
    }
    ends.sort_unstable();
    let mut ended = ends.iter().peekable();
    for (node, size, _) in values {
        live = live.saturating_add(*size);
        most = most.max(live);
        while let Some((_, size)) = ended.next_if(|(end, _)| end <= node) {
            live = live.saturating_sub(*size);
        }
    }
    (most, left)
}

/// Adds `bytes` at each of `steps`.
pub fn add(changes: &mut [i64], steps: RangeInclusive<u32>, bytes: i64) {
    let last = changes.len().saturating_sub(1);
    let (start, end) = (*steps.start() as usize, (*steps.end() as usize).saturating_add(1));
    if start < last && start < end {
        changes[start] = changes[start].saturating_add(bytes);
        changes[end.min(last)] = changes[end.min(last)].saturating_sub(bytes);
    }
}

/// Joins the live ranges of clones of one value, but not those before the step `behind` with those after it: a
/// text that XLA had to rematerialise has clones of the logits behind the backward loop, for the gradient of the
/// head. In a step that fits, this gradient mostly runs before the loop (not so in `sgd_v5p_8`).
fn join_clones(
    module: &Module,
    graph: &Graph,
    id: ComputationId,
    (values, behind): (&[LiveValue], u32),
    changes: &mut [i64],
) {
    for clones in clones_of(module, graph, id, values, behind) {
        let (steps, bytes) = joined(values, &clones);
        add(changes, steps, bytes);
        for value in clones.into_iter().map(|at| &values[at]) {
            add(changes, value.first_step..=value.last_step, -value.bytes);
        }
    }
}

/// Lets all results of a row begin where it runs first: a clone that XLA rematerialises (`fusion.7.remat`) may have
/// only some of them, and others are not kept until then. In a program that fits, one row makes all.
fn join_outputs(
    module: &Module,
    graph: &Graph,
    id: ComputationId,
    (values, behind): (&[LiveValue], u32),
    changes: &mut [i64],
) {
    let rows = module.computation(id).rows();
    let is_large = |own: &&LiveValue| {
        own.bytes >= LEAST && rows.contains(&own.row.0) && own.first_step <= behind
    };
    // By row, known by its name without the number of the clone: where it runs first, and whether it has clones.
    let mut runs: HashMap<&[u8], (u32, bool), BuildMix> = HashMap::default();
    let mut first: HashMap<u32, (&[u8], u32, i64), BuildMix> = HashMap::default();
    for value in values.iter().filter(is_large) {
        let name = module.instruction_name(value.row);
        let own = without_clone_number(name);
        let known = runs.entry(own).or_insert((value.first_step, false));
        *known = (known.0.min(value.first_step), known.1 | (own.len() < name.len()));
        if let Some(node) = node_of(graph, value) {
            let known = first.entry(node).or_insert((own, value.first_step, value.bytes));
            known.1 = known.1.min(value.first_step);
        }
    }
    for (name, step, bytes) in first.into_values() {
        if let Some((start, true)) = runs.get(name).copied().filter(|own| own.0 < step) {
            add(changes, start..=step - 1, bytes);
        }
    }
}

/// The numbers of values of a computation that are clones of each other, none before the step `behind` with one
/// after it.
pub fn clones_of(
    module: &Module,
    graph: &Graph,
    id: ComputationId,
    values: &[LiveValue],
    behind: u32,
) -> Vec<Vec<usize>> {
    let rows = module.computation(id).rows();
    let mut same: HashMap<(u32, bool), Vec<usize>, BuildMix> = HashMap::default();
    for (at, value) in values.iter().enumerate() {
        let is_state = matches!(module.opcode(value.row), Opcode::Parameter | Opcode::While);
        if is_state || value.bytes < LEAST || !rows.contains(&value.row.0) {
            continue;
        }
        let Some(node) = node_of(graph, value) else { continue };
        if graph.nodes[node as usize].opcode != Opcode::DynamicUpdateSlice {
            same.entry((node, value.first_step > behind)).or_default().push(at);
        }
    }
    let is_clone = |at: &usize| is_compiler_clone(module, values[*at].row);
    let is_cloned = |clones: &Vec<usize>| clones.len() > 1 && clones.iter().any(is_clone);
    same.into_values().filter(is_cloned).collect()
}

/// The steps and bytes of clones that are one value.
pub fn joined(values: &[LiveValue], clones: &[usize]) -> (RangeInclusive<u32>, i64) {
    let each = || clones.iter().map(|at| &values[*at]);
    let first = each().map(|value| value.first_step).min().unwrap_or(0);
    let last = each().map(|value| value.last_step).max().unwrap_or(0);
    (first..=last, each().map(|value| value.bytes).max().unwrap_or(0))
}
