//! Follows values through tuples and optimization barriers.
//!
//! `jax.checkpoint` puts the residuals of its backward pass into a tuple, passes the tuple through
//! an `opt-barrier` and takes the residuals out again: a late user of a value does not read the
//! value's own row, but a row behind the barrier with the same value.

use crate::flow::origin::{Path, Place};
use crate::ir::{Flags, Module, Opcode, Row};
use std::collections::HashSet;

/// Limit on the passing rows that are followed in either direction.
const MOST_STEPS: usize = 4096;
/// Limit on the users of these rows that are examined.
const MOST_USERS: usize = 1 << 14;

/// The rows whose value reaches `row` through tuples and at least one barrier, nearest first.
pub(super) fn before_barrier(module: &Module, row: Row) -> Vec<Row> {
    let mut values = Vec::new();
    let mut path: Vec<usize> = Vec::new();
    let mut is_behind = false;
    let mut at = row;
    for _ in 0..MOST_STEPS {
        let operands = module.operands(at);
        let next = match module.opcode(at) {
            Opcode::GetTupleElement => match module.tuple_index(at) {
                Some(index) => {
                    path.push(index);
                    operands.first()
                }
                None => None,
            },
            Opcode::OptBarrier => {
                is_behind = true;
                operands.first()
            }
            Opcode::Tuple => path.pop().and_then(|index| operands.get(index)),
            _ => None,
        };
        let Some(next) = next else { break };
        at = Row(*next);
        if is_behind && path.is_empty() && is_value(module.opcode(at)) {
            values.push(at);
        }
    }
    values
}

/// Whether rows with `opcode` do more than pass values into or out of barriers.
fn is_value(opcode: Opcode) -> bool {
    !matches!(opcode, Opcode::OptBarrier | Opcode::Tuple)
}

/// The member whose value `row` has; `row` itself if there is none.
pub(super) fn member(module: &Module, row: Row, is_member: impl Fn(Row) -> bool) -> Row {
    if is_member(row) || !matches!(module.opcode(row), Opcode::GetTupleElement | Opcode::OptBarrier)
    {
        return row;
    }
    before_barrier(module, row).into_iter().find(|row| is_member(*row)).unwrap_or(row)
}

/// Whether tuple `row` is only used to pass its elements through barriers.
pub(super) fn is_for_barriers(module: &Module, row: Row) -> bool {
    let mut pending = vec![row];
    let mut seen = HashSet::new();
    while let Some(row) = pending.pop() {
        let users = module.users().get(row.0);
        if users.is_empty() || is_bound(module, row) || seen.len() > MOST_STEPS {
            return false;
        }
        for user in users.iter().map(|user| Row(*user)) {
            match module.opcode(user) {
                Opcode::OptBarrier => {}
                Opcode::Tuple if seen.insert(user) => pending.push(user),
                Opcode::Tuple => {}
                _ => return false,
            }
        }
    }
    true
}

/// Whether `row` is the result of its computation, or only implied by the text.
fn is_bound(module: &Module, row: Row) -> bool {
    module.flags(row) & Flags::ROOT != 0 || module.is_implicit(row)
}

/// The rows to which barriers pass on one element of a tuple, or one array.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// The tuples and barriers that hold the element, with its index in each.
    pub held: Vec<Place>,
    /// The rows behind the barriers that have the element's value.
    pub rows: Vec<Row>,
    /// The readers of `rows`: user and operand.
    pub reads: Vec<(Row, usize)>,
}

/// The rows to which barriers pass on operand `operand` of `user`, a tuple or a barrier. None if no
/// barrier passes the operand on, or if a tuple that holds it has any other use.
pub(super) fn behind(module: &Module, user: Row, operand: usize) -> Option<Behind> {
    let mut behind = Behind::default();
    let mut is_behind = false;
    let mut pending = Vec::new();
    enter(module, user, operand, &[], &mut pending)?;
    let mut seen: HashSet<Place> = HashSet::new();
    let mut looked_at = 0;
    while let Some(at) = pending.pop() {
        let users = module.users().get(at.row.0);
        looked_at += users.len() + 1;
        if looked_at > MOST_USERS || is_bound(module, at.row) {
            return None;
        }
        if !seen.insert(at.clone()) {
            continue;
        }
        is_behind |= module.opcode(at.row) == Opcode::OptBarrier;
        if at.path.is_empty() {
            behind.rows.push(at.row);
        } else {
            behind.held.push(at.clone());
        }
        for user in users.iter().map(|user| Row(*user)) {
            let operands = module.operands(user).iter().enumerate();
            for (operand, _) in operands.filter(|(_, row)| **row == at.row.0) {
                match module.opcode(user) {
                    Opcode::GetTupleElement => {
                        let (index, rest) = at.path.split_last()?;
                        if module.tuple_index(user)? == *index as usize {
                            pending.push(Place { row: user, path: Path::from_slice(rest) });
                        }
                    }
                    Opcode::OptBarrier => {
                        enter(module, user, operand, &at.path, &mut pending)?;
                    }
                    Opcode::Tuple if !at.path.is_empty() || is_for_barriers(module, user) => {
                        enter(module, user, operand, &at.path, &mut pending)?;
                    }
                    _ if at.path.is_empty() => behind.reads.push((user, operand)),
                    _ => return None,
                }
            }
        }
    }
    behind.reads.sort_unstable();
    behind.reads.dedup();
    is_behind.then_some(behind)
}

/// Continues into `user`, whose operand holds the value at `path`.
fn enter(
    module: &Module,
    user: Row,
    operand: usize,
    path: &[u32],
    pending: &mut Vec<Place>,
) -> Option<()> {
    let mut path = Path::from_slice(path);
    match module.opcode(user) {
        Opcode::Tuple => path.push(u32::try_from(operand).ok()?),
        Opcode::OptBarrier => {}
        _ => return None,
    }
    pending.push(Place { row: user, path });
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module() -> Module {
        let text = "HloModule m
ENTRY e {
  p = f32[8] parameter(0)
  v = f32[8] sine(p)
  inner = (f32[8], f32[8]) tuple(p, v)
  outer = ((f32[8], f32[8]), f32[8]) tuple(inner, v)
  barrier = ((f32[8], f32[8]), f32[8]) opt-barrier(outer)
  pair = (f32[8], f32[8]) get-tuple-element(barrier), index=0
  again = f32[8] get-tuple-element(pair), index=1
  other = f32[8] get-tuple-element(barrier), index=1
  alone = f32[8] opt-barrier(other)
  sum = f32[8] add(again, alone)
  plain = (f32[8]) tuple(v)
  same = f32[8] get-tuple-element(plain), index=0
  ROOT last = f32[8] add(sum, same)
}";
        let source = crate::text::Source::from_slice(text.as_bytes());
        crate::parse(source, &crate::Options::default()).expect("a module")
    }

    fn row(module: &Module, name: &str) -> Row {
        Row(module.find_instructions(name.as_bytes())[0])
    }

    #[test]
    fn values_are_followed_back_through_barriers() {
        let module = module();
        let before = |name| before_barrier(&module, row(&module, name));
        let value = row(&module, "v");
        assert_eq!(before("again"), [value]);
        assert_eq!(before("alone"), [row(&module, "other"), value]);
        // A tuple without a barrier does not count.
        assert!(before("same").is_empty() && before("v").is_empty());
        assert_eq!(member(&module, row(&module, "alone"), |row| row == value), value);
        let same = row(&module, "same");
        assert_eq!(member(&module, same, |row| row == value), same);
    }

    #[test]
    fn what_is_behind_a_barrier_is_found_from_its_tuples() {
        let module = module();
        let inner = behind(&module, row(&module, "inner"), 1).expect("it is behind a barrier");
        assert_eq!(inner.rows, [row(&module, "again")]);
        assert_eq!(inner.reads, [(row(&module, "sum"), 0)]);
        let mut held: Vec<Row> = inner.held.iter().map(|place| place.row).collect();
        held.sort_unstable();
        let names = ["inner", "outer", "barrier", "pair"].map(|name| row(&module, name));
        assert_eq!(held, names);
        let outer = behind(&module, row(&module, "outer"), 1).expect("it is behind a barrier");
        assert_eq!(outer.reads, [(row(&module, "sum"), 1)]);
        assert!(behind(&module, row(&module, "plain"), 0).is_none());
        assert!(is_for_barriers(&module, row(&module, "inner")));
        assert!(!is_for_barriers(&module, row(&module, "plain")));
    }
}
