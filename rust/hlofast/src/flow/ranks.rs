//! Phases as numbers in the order of a training step, and how the phases of several rows make that of one.

use super::phase::Phase;

/// Phases in the order of a training step; `NONE` if there is none.
pub(super) const FORWARD: u8 = 0;
pub(super) const RECOMPUTE: u8 = 1;
pub(super) const BACKWARD: u8 = 2;
const OPTIMIZER: u8 = 3;
pub(super) const NONE: u8 = 4;
/// The bits of the phases after the forward pass.
pub(super) const LATE: u8 = 1 << RECOMPUTE | 1 << BACKWARD;

#[inline]
pub(super) fn rank(phase: Phase) -> u8 {
    match phase {
        Phase::Forward => FORWARD,
        Phase::Recompute => RECOMPUTE,
        Phase::Backward => BACKWARD,
        Phase::Optimizer => OPTIMIZER,
        Phase::Unattributed => NONE,
    }
}

/// The bit of a phase in a set of ranks; 0 if there is none.
#[inline]
pub(super) fn bit(phase: Phase) -> u8 {
    // A table in one word: a byte per phase.
    const BITS: u64 = {
        let mut bits = 0;
        let mut at = 0;
        while at < Phase::ALL.len() {
            let own: u8 = match Phase::ALL[at] {
                Phase::Forward => 1 << FORWARD,
                Phase::Recompute => 1 << RECOMPUTE,
                Phase::Backward => 1 << BACKWARD,
                Phase::Optimizer => 1 << OPTIMIZER,
                Phase::Unattributed => 0,
            };
            bits |= (own as u64) << (8 * Phase::ALL[at] as u64);
            at += 1;
        }
        bits
    };
    (BITS >> (8 * phase as u32)) as u8
}

#[inline]
pub(super) fn phase_of(rank: u8) -> Phase {
    match rank {
        FORWARD => Phase::Forward,
        RECOMPUTE => Phase::Recompute,
        BACKWARD => Phase::Backward,
        OPTIMIZER => Phase::Optimizer,
        _ => Phase::Unattributed,
    }
}

/// The phases of rows inside a computation, one bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Inside {
    pub all: u8,
    /// The phases of matmuls and convolutions inside the computation.
    pub products: u8,
}

/// The rank of a phase and the row that gives it.
pub(super) type Bound = (u8, u32);
pub(super) const NO_BOUND: Bound = (NONE, u32::MAX);

/// The phase of a row, given the phases of its operands and users.
pub(super) fn between(low: Bound, high: Bound, is_after_turn: bool) -> Bound {
    match (low.0, high.0) {
        (NONE, _) => high,
        (_, NONE) => low,
        (low_rank, high_rank) if low_rank >= high_rank => low,
        _ if is_after_turn => high,
        _ => low,
    }
}

/// The phase of a fusion, given the phases `inside` it. A fusion may overlap its matmuls with a
/// collective of another phase.
pub(super) fn of_fusion(inside: Inside) -> u8 {
    match inside.products.count_ones() {
        1 => latest(inside.products),
        _ => latest(inside.all),
    }
}

fn latest(phases: u8) -> u8 {
    (FORWARD..NONE).rev().find(|rank| phases & (1 << rank) != 0).unwrap_or(NONE)
}

/// The phase of a loop, a branch or a call, given the phases `inside` it: the only phase, or
/// backward if there is both backward and recomputed work. Forward rows without matmuls are
/// ignored, because the compiler may have moved them in.
pub(super) fn of_loop(inside: Inside) -> u8 {
    const F: u8 = 1 << FORWARD;
    const R: u8 = 1 << RECOMPUTE;
    const B: u8 = 1 << BACKWARD;
    if inside.all & (1 << OPTIMIZER) != 0 {
        return if inside.all & !(1 << OPTIMIZER) == 0 { OPTIMIZER } else { NONE };
    }
    match inside.all {
        0 => NONE,
        F => FORWARD,
        R => RECOMPUTE,
        all if all & B != 0 && inside.products & F == 0 => BACKWARD,
        all if all & (B | F) == F && inside.products & F == 0 => RECOMPUTE,
        _ => NONE,
    }
}
