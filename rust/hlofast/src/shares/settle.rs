//! Spreads shardings from instruction to instruction, in the order and by the rules of Shardy, which XLA
//! propagates shardings with (github.com/openxla/shardy, `shardy/dialect/sdy/transforms/propagation`).

use super::factors::{Factor, Kind, Ties};
use super::parts::Mask;
use super::spread::Spread;

/// Limit on the sweeps that spread what shapes of one device are.
const MOST_SWEEPS: usize = 64;

/// Limit on the visits of an instruction, on average.
const MOST_VISITS: usize = 256;

/// The rounds of `op_priority_propagation.cc`, each until nothing changes.
const ROUNDS: u32 = 3;

/// From where to where a factor passes shardings on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Both,
    Forward,
    Backward,
}

impl Kind {
    /// What a factor of such an instruction does in a round.
    fn direction(self, round: u32, is_through: bool) -> Option<Direction> {
        let both = Some(Direction::Both);
        match (self, round) {
            (Kind::Simple, _) | (_, 2..) => both,
            (Kind::Slice, 0) => Some(Direction::Forward),
            (Kind::Broadcast, 1) => Some(Direction::Backward),
            (Kind::Slice | Kind::Other, 1) => both.filter(|_| is_through),
            _ => None,
        }
    }
}

/// Spreads the written shardings of `spread` over all values.
pub(super) fn settle(spread: &mut Spread<'_>, ties: &Ties) {
    spread_local(spread, ties);
    let touching = Touching::new(spread, ties);
    for round in 0..ROUNDS {
        // A stack, as of MLIR's greedy rewriter: what changes is looked at next.
        let mut waiting: Vec<u32> = (0..ties.len() as u32).rev().collect();
        let mut is_waiting = vec![true; ties.len()];
        let mut visits = ties.len().saturating_mul(MOST_VISITS);
        let mut changed = Vec::new();
        while let Some(at) = waiting.pop() {
            is_waiting[at as usize] = false;
            visits = visits.saturating_sub(1);
            if visits == 0 {
                break;
            }
            changed.clear();
            apply(spread, ties, at as usize, round, &mut changed);
            for value in &changed {
                for next in touching.of(*value) {
                    if *next != at && !std::mem::replace(&mut is_waiting[*next as usize], true) {
                        waiting.push(*next);
                    }
                }
            }
        }
    }
    split_constants(spread, ties);
}

/// Constants are split as the first user of each is, and so is what they are made of.
fn split_constants(spread: &mut Spread<'_>, ties: &Ties) {
    for at in (0..ties.len()).rev() {
        for factor in ties.of(at) {
            let mut results = factor.results.iter().map(|own| *own as usize);
            if results.any(|own| spread.constant[spread.owners[own] as usize]) {
                let most = factor.results.first().map_or(0, |own| spread.masks[*own as usize]);
                for dimension in factor.operands {
                    extend(spread, *dimension, most, factor.size);
                }
            }
        }
    }
}

/// The instructions that read or make a value, in the order in which they are put on the stack: the one that
/// makes it, and then those that read it, the first on top.
struct Touching {
    first: Vec<u32>,
    instructions: Vec<u32>,
}

impl Touching {
    fn new(spread: &Spread<'_>, ties: &Ties) -> Self {
        let mut pairs: Vec<(u32, bool, std::cmp::Reverse<u32>)> = Vec::new();
        for at in 0..ties.len() {
            for factor in ties.of(at) {
                for (members, is_read) in [(factor.results, false), (factor.operands, true)] {
                    let values = members.iter().map(|own| spread.owners[*own as usize]);
                    let values = values.filter(|value| !spread.constant[*value as usize]);
                    pairs
                        .extend(values.map(|value| (value, is_read, std::cmp::Reverse(at as u32))));
                }
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut first = vec![0u32; spread.values.count + 1];
        for (value, ..) in &pairs {
            first[*value as usize + 1] += 1;
        }
        for value in 0..spread.values.count {
            first[value + 1] += first[value];
        }
        Self { first, instructions: pairs.into_iter().map(|(_, _, at)| at.0).collect() }
    }

    fn of(&self, value: u32) -> &[u32] {
        let at = value as usize;
        &self.instructions[self.first[at] as usize..self.first[at + 1] as usize]
    }
}

/// Applies the factors of instruction `at`; `changed` receives the values whose shardings change. Of factors
/// that want the same parts of the mesh, Shardy first applies the one whose split the largest array has
/// (`aggressive_factor_propagation.cc`): a lookup is split as its table is, not as its indices are.
fn apply(spread: &mut Spread<'_>, ties: &Ties, at: usize, round: u32, changed: &mut Vec<u32>) {
    let kind = ties.kind(at);
    let mut wanted: Vec<(i128, Mask, Factor<'_>)> = Vec::new();
    for factor in ties.of(at) {
        let Some(direction) = kind.direction(round, factor.is_through) else { continue };
        let parts = compatible(spread, &factor, direction);
        if parts != 0 {
            wanted.push((0, parts, factor));
        }
    }
    if wanted.len() > 1 {
        for (size, parts, factor) in &mut wanted {
            let has = |own: &u32| source(spread, *own, factor.size) == *parts;
            let sources = factor.members().filter(has).map(|own| elements(spread, own));
            *size = sources.max().unwrap_or(0);
        }
        wanted.sort_by_key(|(size, ..)| std::cmp::Reverse(*size));
    }
    for (_, parts, factor) in wanted {
        for dimension in factor.members() {
            let value = spread.owners[dimension as usize];
            if extend(spread, dimension, parts, factor.size)
                && !spread.constant[value as usize]
                && !changed.contains(&value)
            {
                changed.push(value);
            }
        }
    }
}

/// Elements of the value that a dimension belongs to.
fn elements(spread: &Spread<'_>, dimension: u32) -> i128 {
    let sizes = &spread.sizes[spread.dimensions(spread.owners[dimension as usize] as usize)];
    sizes.iter().fold(1i128, |product, size| product.saturating_mul(i128::from(*size)))
}

/// The parts along which the share of a dimension in a factor is split: none of a constant.
fn source(spread: &Spread<'_>, dimension: u32, size: i64) -> Mask {
    let at = dimension as usize;
    if spread.constant[spread.owners[at] as usize] {
        return 0;
    }
    let mask = spread.masks[at];
    if size == 0 || size == spread.sizes[at] {
        return mask;
    }
    // A dimension that a reshape merges of several: its first parts split the first of them.
    let (mut kept, mut ways) = (0, 1u64);
    for part in bits(mask) {
        ways = ways.saturating_mul(spread.parts.size(part));
        if !u64::try_from(size).is_ok_and(|size| size.is_multiple_of(ways)) {
            break;
        }
        kept |= part;
    }
    kept
}

/// The parts that a factor passes on: the longest that none of its dimensions contradicts
/// (`basic_factor_propagation.cc`).
fn compatible(spread: &Spread<'_>, factor: &Factor<'_>, direction: Direction) -> Mask {
    let (first, second) = match direction {
        Direction::Backward => (factor.results, factor.operands),
        Direction::Both | Direction::Forward => (factor.operands, factor.results),
    };
    let (mut parts, mut may_grow) = (0, true);
    for (side, members) in [first, second].into_iter().enumerate() {
        if side == 1 && direction != Direction::Both {
            may_grow = false;
        }
        for dimension in members {
            let own = source(spread, *dimension, factor.size);
            if is_prefix(parts, own) {
                parts = if may_grow { own } else { parts };
            } else if !is_prefix(own, parts) {
                parts = common(parts, own);
                may_grow = false;
            }
        }
    }
    parts
}

/// Splits a dimension along the first of `parts` that it can be split along. Whether it changes.
fn extend(spread: &mut Spread<'_>, dimension: u32, parts: Mask, size: i64) -> bool {
    let at = dimension as usize;
    let value = spread.owners[at] as usize;
    let own = spread.masks[at];
    if own == parts || spread.closed[at] {
        return false;
    }
    let others = spread.used(value) & !own | spread.local[value];
    let is_merged = size != 0 && size != spread.sizes[at];
    let (mut kept, mut ways) = (0, 1u64);
    for part in bits(parts) {
        ways = ways.saturating_mul(spread.parts.size(part));
        let divides = || u64::try_from(size).is_ok_and(|size| size.is_multiple_of(ways));
        if others & part != 0 || own & part == 0 && is_merged && !divides() {
            break;
        }
        kept |= part;
    }
    let is_longer = kept != own && is_prefix(own, kept);
    if is_longer {
        spread.masks[at] = kept;
    }
    is_longer
}

/// The single parts of a set, the most major first.
fn bits(mut mask: Mask) -> impl Iterator<Item = Mask> {
    std::iter::from_fn(move || {
        let lowest = mask & mask.wrapping_neg();
        mask ^= lowest;
        (lowest != 0).then_some(lowest)
    })
}

/// Whether `a` has the most major parts of `b`.
fn is_prefix(a: Mask, b: Mask) -> bool {
    common(a, b) == a
}

/// The most major parts that both have.
fn common(a: Mask, b: Mask) -> Mask {
    let differing = a ^ b;
    let first = differing & differing.wrapping_neg();
    if first == 0 { a } else { a & (first - 1) }
}

/// Spreads that shapes are those of one device.
fn spread_local(spread: &mut Spread<'_>, ties: &Ties) {
    for sweep in 0..MOST_SWEEPS {
        let mut is_changed = false;
        for step in 0..ties.len() {
            let at = if sweep % 2 == 0 { step } else { ties.len() - 1 - step };
            for factor in ties.of(at) {
                let value = |own: u32| spread.owners[own as usize] as usize;
                let sources = factor.members().map(value).filter(|own| !spread.constant[*own]);
                let local = sources.fold(0, |all, own| all | spread.local[own]);
                for own in factor.members() {
                    let own = spread.owners[own as usize] as usize;
                    is_changed |= spread.local[own] | local != spread.local[own];
                    spread.local[own] |= local;
                }
            }
        }
        if !is_changed {
            break;
        }
    }
}
