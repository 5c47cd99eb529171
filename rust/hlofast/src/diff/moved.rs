//! Finds instructions that moved into or out of a called computation, for example by fusion.

use super::matching::Matcher;
use super::side::{Level, NONE, Side, callees};
use crate::ir::{ComputationId, Opcode, Row};
use std::collections::{HashMap, HashSet, VecDeque};

/// Limit on the calls and parameters through which a value is followed.
const LONGEST_WAY: usize = 64;
/// How often the rows are visited: callees may come before or after their callers.
const ROUNDS: usize = 4;

/// Sorted pairs of rows without partners that are equal except for their computation and the names
/// of their operands.
pub(super) fn find(matcher: &Matcher<'_>) -> Vec<(u32, u32)> {
    let open = |side: &Side<'_>, partners: &[u32]| -> Vec<u32> {
        let is_open = |row: &&u32| {
            partners.get(**row as usize) == Some(&NONE)
                && !matches!(side.opcode(**row), Opcode::Parameter | Opcode::Tuple)
        };
        side.order.iter().filter(is_open).copied().collect()
    };
    let (mut open_a, mut open_b) =
        (open(&matcher.a, &matcher.to_b), open(&matcher.b, &matcher.to_a));
    let mut pairs: HashMap<u32, u32> = HashMap::new();
    for level in [Level::Exact, Level::Shape] {
        let mut by_key: HashMap<u64, VecDeque<u32>> = HashMap::new();
        for row in &open_b {
            if let Some(key) = key(&matcher.b, level, *row, Some) {
                by_key.entry(key).or_default().push_back(*row);
            }
        }
        let mut taken: HashSet<u32> = HashSet::new();
        for _ in 0..ROUNDS {
            let before = pairs.len();
            for row in &open_a {
                if pairs.contains_key(row) {
                    continue;
                }
                let partner = |row: u32| pairs.get(&row).copied().or(matcher.partner(row));
                let other = key(&matcher.a, level, *row, partner)
                    .and_then(|key| by_key.get_mut(&key)?.pop_front());
                if let Some(other) = other {
                    pairs.insert(*row, other);
                    taken.insert(other);
                }
            }
            if pairs.len() == before {
                break;
            }
        }
        open_a.retain(|row| !pairs.contains_key(row));
        open_b.retain(|row| !taken.contains(row));
    }
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_unstable();
    pairs
}

/// A hash of the label of `row` and its operands, as rows of the second module; None if an operand
/// has no partner there.
fn key(side: &Side<'_>, level: Level, row: u32, in_b: impl Fn(u32) -> Option<u32>) -> Option<u64> {
    let mut hash = side.mixer.start(12);
    hash.word(side.label(level, row));
    for operand in side.operands(row) {
        hash.word(u64::from(in_b(source(side, *operand))?));
    }
    Some(hash.finish())
}

/// The row that computes the value of `row`: outside its computation for a parameter, inside the
/// callee for a call.
fn source(side: &Side<'_>, mut row: u32) -> u32 {
    let module = side.module;
    for _ in 0..LONGEST_WAY {
        let next = match side.opcode(row) {
            Opcode::Parameter => {
                let [caller] = module.callers(module.computation_of(Row(row))) else { break };
                if !side.is_transparent(*caller) {
                    break;
                }
                let number = module.parameter_number(Row(row));
                let number = number.and_then(|number| usize::try_from(number).ok());
                number.and_then(|number| side.operands(*caller).get(number).copied())
            }
            Opcode::GetTupleElement => {
                let tuple = side.operands(row).first().copied().unwrap_or(row);
                let root = root_of(side, tuple);
                let index = module.attribute_bytes(Row(row), "index");
                let index = index.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
                let index: Option<usize> = index;
                root.filter(|root| side.opcode(*root) == Opcode::Tuple)
                    .and_then(|root| side.operands(root).get(index?).copied())
            }
            _ => root_of(side, row),
        };
        match next {
            Some(next) => row = next,
            None => break,
        }
    }
    row
}

fn root_of(side: &Side<'_>, row: u32) -> Option<u32> {
    if !side.is_transparent(row) {
        return None;
    }
    let (_, callee) = callees(side.module, row).first().copied()?;
    Some(side.module.computation(ComputationId(callee)).root)
}
