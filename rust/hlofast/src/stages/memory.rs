//! The memory of a stage, and of each micro-batch in flight.

use super::elements::Elements;
use super::{StashItem, StashKind, row_bytes};
use crate::flow::Phase;
use crate::ir::Row;
use crate::memory::{Options, memory};
use crate::remat::ResidualKind;

/// Bytes of a stage with one micro-batch in flight, after Alpa's `stage_profiling`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageMemory {
    /// Parameters that the update reads: weights, masters, moments. Alpa calls them initial.
    pub state: u64,
    /// Values kept from the forward to the backward section of a micro-batch, excluding state. Alpa
    /// calls them intermediate.
    pub stash: u64,
    /// The part of the stash that is copies of weights, the same for all micro-batches.
    pub weight_copies: u64,
    /// By section: its live peak, including state; None if none of its instructions has a step.
    pub peaks: Vec<Option<i64>>,
    /// The live peak of the forward and backward sections, excluding state.
    pub working_peak: Option<i64>,
}

pub(super) fn stage_memory(elements: &Elements<'_>, stash: &[StashItem]) -> Option<StageMemory> {
    let module = elements.module;
    let sections = &elements.sections.sections;
    if sections.is_empty() {
        return None;
    }
    let mut state = 0u64;
    for row in elements.state() {
        state = state.checked_add(row_bytes(module, *row)?)?;
    }
    let sum = |is_counted: fn(&StashKind) -> bool| {
        let counted = stash.iter().filter(|item| is_counted(&item.kind));
        counted.map(|item| item.bytes).try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))
    };
    let kept = sum(|kind| *kind != StashKind::State)?;
    let weight_copies = sum(|kind| *kind == StashKind::Kept(ResidualKind::WeightCopy))?;
    let alive = memory(module, &Options::default()).ok()?;
    let mut peaks: Vec<Option<i64>> = vec![None; sections.len()];
    for (row, bytes) in alive.sequence().iter().zip(&alive.timeline) {
        let section = elements.section(Row(*row)).and_then(|id| peaks.get_mut(id as usize));
        if let Some(peak) = section {
            *peak = (*peak).max(Some(*bytes));
        }
    }
    let is_per_batch = |phase| matches!(phase, Phase::Forward | Phase::Backward);
    let per_batch = sections.iter().zip(&peaks).filter(|(section, _)| is_per_batch(section.phase));
    let highest = per_batch.filter_map(|(_, peak)| *peak).max();
    let working_peak = highest.and_then(|peak| peak.checked_sub(i64::try_from(state).ok()?));
    Some(StageMemory { state, stash: kept, weight_copies, peaks, working_peak })
}
