//! Matches the instructions of two modules.
//!
//! Computations are matched from the entry down, along the calls of matched instructions. Within a
//! pair of computations, rows are matched in steps, each of which only considers rows without a
//! partner and only keys that occur once on either side:
//!
//! 1. equal below and above: everything unaffected by a change;
//! 2. equal below: computed from unchanged values; equal above: used by unchanged instructions;
//!    equal near: islands between changes;
//! 3. operands and users of matched rows, as long as they agree.
//!
//! These steps run first over instructions that are equal except for names, then over instructions
//! with equal opcode and shape, then over instructions with equal opcode. Operation names and
//! finally the position between matched rows decide the rest. Every step visits each row and edge a
//! bounded number of times, or sorts them.

use super::digest::Digests;
use super::side::{Level, NONE, Side, callees};
use crate::ir::{ComputationId, Opcode};
use std::collections::{HashMap, VecDeque};

/// How often the steps of a level are repeated while they find pairs.
const ROUNDS: usize = 3;
/// How often the steps are repeated for dead code.
const DEAD_ROUNDS: usize = 8;
/// Limit on the single-operand instructions skipped to find the source of a value.
const LONGEST_CHAIN: usize = 8;

/// The pairs found so far.
pub(super) struct Matcher<'a> {
    pub(super) a: Side<'a>,
    pub(super) b: Side<'a>,
    /// For each row of `a` its partner in `b`, and vice versa.
    pub(super) to_b: Vec<u32>,
    pub(super) to_a: Vec<u32>,
    /// For each computation of `a` its partner in `b`, and vice versa.
    pub(super) computations_to_b: Vec<u32>,
    pub(super) computations_to_a: Vec<u32>,
    /// By level; the first always exists.
    digests: [Option<(Digests, Digests)>; 3],
    refined: Option<(Vec<u64>, Vec<u64>)>,
    queue: VecDeque<(u32, u32)>,
    pairs_found: usize,
    /// Remaining budget of operands to examine when deciding whether one instruction replaces
    /// another. An instruction with many users would otherwise be examined once per user.
    looks: std::cell::Cell<usize>,
}

impl<'a> Matcher<'a> {
    pub(super) fn new(a: Side<'a>, b: Side<'a>) -> Self {
        let digests = (Digests::new(&a, Level::Exact), Digests::new(&b, Level::Exact));
        Self {
            to_b: vec![NONE; a.module.row_count()],
            to_a: vec![NONE; b.module.row_count()],
            computations_to_b: vec![NONE; a.module.computations().len()],
            computations_to_a: vec![NONE; b.module.computations().len()],
            digests: [Some(digests), None, None],
            refined: None,
            queue: VecDeque::new(),
            pairs_found: 0,
            looks: std::cell::Cell::new((1 << 20) + 16 * a.module.columns().operands.len()),
            a,
            b,
        }
    }

    /// Finds all pairs.
    pub(super) fn run(&mut self) {
        self.pair_computations(self.a.module.entry().0, self.b.module.entry().0);
        self.drain();
        // Computations called by instructions without a partner, or not called at all.
        let (of_a, of_b) = self.computation_digests();
        let left = |partners: &[u32], keys: &[u64]| -> Vec<(u64, u32)> {
            let ids = (0..partners.len() as u32).zip(partners).filter(|(_, other)| **other == NONE);
            let mut left: Vec<_> =
                ids.map(|(id, _)| (keys.get(id as usize).copied().unwrap_or(0), id)).collect();
            left.sort_unstable();
            left
        };
        let left_a = left(&self.computations_to_b, &of_a);
        let left_b = left(&self.computations_to_a, &of_b);
        for (group_a, group_b) in common(&left_a, &left_b) {
            for (a, b) in group_a.iter().zip(group_b) {
                self.pair_computations(a.1, b.1);
            }
        }
        self.drain();
        self.pair_uncalled_by_name();
        self.drain();
    }

    pub(super) fn computation_digests(&self) -> (Vec<u64>, Vec<u64>) {
        let digests = self.digests[0].as_ref();
        digests.map_or_else(Default::default, |(a, b)| {
            (a.computations.clone(), b.computations.clone())
        })
    }

    fn pair_uncalled_by_name(&mut self) {
        let uncalled = |side: &Side<'_>, partners: &[u32]| -> Vec<u32> {
            let ids = 0..partners.len() as u32;
            ids.filter(|id| partners.get(*id as usize) == Some(&NONE))
                .filter(|id| side.module.callers(ComputationId(*id)).is_empty())
                .collect()
        };
        let in_a = uncalled(&self.a, &self.computations_to_b);
        let in_b = uncalled(&self.b, &self.computations_to_a);
        let (of_a, of_b) = (self.a.module, self.b.module);
        let named: HashMap<&[u8], u32> =
            in_b.into_iter().map(|id| (of_b.computation_name(ComputationId(id)), id)).collect();
        for id in in_a {
            if let Some(other) = named.get(of_a.computation_name(ComputationId(id))) {
                self.pair_computations(id, *other);
            }
        }
    }

    fn pair_computations(&mut self, a: u32, b: u32) {
        let (Some(to_b), Some(to_a)) = (
            self.computations_to_b.get_mut(a as usize),
            self.computations_to_a.get_mut(b as usize),
        ) else {
            return;
        };
        if *to_b == NONE && *to_a == NONE {
            (*to_b, *to_a) = (b, a);
            self.queue.push_back((a, b));
        }
    }

    fn drain(&mut self) {
        while let Some((a, b)) = self.queue.pop_front() {
            self.match_rows(a, b);
            let rows: Vec<u32> = self.a.rows(a).to_vec();
            for row in rows {
                let Some(other) = self.partner(row) else { continue };
                let calls = callees(self.a.module, row);
                let others = callees(self.b.module, other);
                if calls.len() == others.len() {
                    for (x, y) in calls.into_iter().zip(others) {
                        self.pair_computations(x.1, y.1);
                    }
                } else {
                    // Pairs callees by role, if both callers have the role.
                    for (role, callee) in calls {
                        if let Some(same_role) = others.iter().find(|other| other.0 == role) {
                            self.pair_computations(callee, same_role.1);
                        }
                    }
                }
            }
        }
    }

    /// The partner of row `a`.
    pub(super) fn partner(&self, a: u32) -> Option<u32> {
        self.to_b.get(a as usize).copied().filter(|b| *b != NONE)
    }

    pub(super) fn is_open(&self, a: u32, b: u32) -> bool {
        self.to_b.get(a as usize) == Some(&NONE) && self.to_a.get(b as usize) == Some(&NONE)
    }

    pub(super) fn pair(&mut self, a: u32, b: u32) {
        if let (Some(to_b), Some(to_a)) =
            (self.to_b.get_mut(a as usize), self.to_a.get_mut(b as usize))
        {
            (*to_b, *to_a) = (b, a);
            self.pairs_found += 1;
        }
    }

    fn match_rows(&mut self, ca: u32, cb: u32) {
        let mut open = Open { a: self.a.rows(ca).to_vec(), b: self.b.rows(cb).to_vec() };
        for level in [Level::Exact, Level::Shape, Level::Opcode] {
            for _ in 0..ROUNDS {
                open.refresh(self);
                if open.is_done() || !self.steps(ca, level, &mut open) {
                    break;
                }
            }
        }
        open.refresh(self);
        if !open.is_done() {
            self.by_operation_name(&mut open);
        }
        for _ in 0..ROUNDS {
            if open.is_done() || !self.by_source(&mut open) {
                break;
            }
        }
        for level in [Level::Opcode, Level::Place] {
            for _ in 0..ROUNDS {
                open.refresh(self);
                if open.is_done() || !self.spread_from_all(ca, level) {
                    break;
                }
            }
        }
    }

    /// Returns whether a pair was found.
    fn steps(&mut self, ca: u32, level: Level, open: &mut Open) -> bool {
        let slot = level as usize;
        if self.digests.get(slot).is_some_and(Option::is_none) {
            let digests = (Digests::new(&self.a, level), Digests::new(&self.b, level));
            self.digests[slot] = Some(digests);
        }
        let Some(Some((da, db))) = self.digests.get_mut(slot).map(Option::take) else {
            return false;
        };
        let of = |column: &[u64], row: u32| column.get(row as usize).copied().unwrap_or_default();
        let mixer = self.a.mixer;
        let mut has_paired =
            self.unique(open, |row| da.both(mixer, row), |row| db.both(mixer, row));
        if !open.is_done() && level == Level::Exact {
            let refined = self.refined.take();
            let refined = refined.unwrap_or_else(|| (da.refined(&self.a), db.refined(&self.b)));
            has_paired |= self.interchangeable(open, &refined.0, &refined.1);
            self.refined = Some(refined);
        }
        if !open.is_done() {
            let key = |digests: &Digests, row| of(&digests.below, row);
            has_paired |= self.unique(open, |row| key(&da, row), |row| key(&db, row));
        }
        if !open.is_done() {
            let key = |side: &Side<'_>, digests: &Digests, row| {
                let mut hash = mixer.start(9);
                hash.word(of(&digests.above, row));
                hash.word(side.label(level, row));
                hash.finish()
            };
            let keys_a: Vec<u64> = open.a.iter().map(|row| key(&self.a, &da, *row)).collect();
            let keys_b: Vec<u64> = open.b.iter().map(|row| key(&self.b, &db, *row)).collect();
            has_paired |= self.unique_keys(open, &keys_a, &keys_b);
        }
        if !open.is_done() {
            let key = |digests: &Digests, row| of(&digests.near, row);
            has_paired |= self.unique(open, |row| key(&da, row), |row| key(&db, row));
        }
        if !open.is_done() {
            has_paired |= self.spread_from_all(ca, level);
        }
        if let Some(digests) = self.digests.get_mut(slot) {
            *digests = Some((da, db));
        }
        has_paired
    }

    /// Pairs rows whose key occurs once on either side.
    fn unique(
        &mut self,
        open: &mut Open,
        key_a: impl Fn(u32) -> u64,
        key_b: impl Fn(u32) -> u64,
    ) -> bool {
        let keys_a: Vec<u64> = open.a.iter().map(|row| key_a(*row)).collect();
        let keys_b: Vec<u64> = open.b.iter().map(|row| key_b(*row)).collect();
        self.unique_keys(open, &keys_a, &keys_b)
    }

    fn unique_keys(&mut self, open: &mut Open, keys_a: &[u64], keys_b: &[u64]) -> bool {
        let mut has_paired = false;
        let (in_a, in_b) = (keyed(keys_a, &open.a), keyed(keys_b, &open.b));
        for (group_a, group_b) in common(&in_a, &in_b) {
            if let ([a], [b]) = (group_a, group_b) {
                self.pair(a.1, b.1);
                has_paired = true;
            }
        }
        if has_paired {
            open.refresh(self);
        }
        has_paired
    }

    /// Pairs rows that differ only in the position of their operands: repeated dead code. Some
    /// pairs determine other pairs, so rows whose operands have found partners in this round wait
    /// for the next round.
    fn interchangeable(&mut self, open: &mut Open, of_a: &[u64], of_b: &[u64]) -> bool {
        let key_a = |row: u32| of_a.get(row as usize).copied().unwrap_or_default();
        let key_b = |row: u32| of_b.get(row as usize).copied().unwrap_or_default();
        let mut has_paired = false;
        for _ in 0..DEAD_ROUNDS {
            let keys_a: Vec<u64> =
                open.a.iter().map(|row| key_a(*row) ^ self.operands_in_b(*row)).collect();
            let keys_b: Vec<u64> =
                open.b.iter().map(|row| key_b(*row) ^ self.operands_with_partners(*row)).collect();
            let (in_a, in_b) = (keyed(&keys_a, &open.a), keyed(&keys_b, &open.b));
            let mut groups: Vec<_> =
                common(&in_a, &in_b).into_iter().filter(|(a, b)| a.len() == b.len()).collect();
            // Users come first; pairing them pairs their operands.
            groups.sort_by_key(|(a, _)| std::cmp::Reverse(a.last().map(|entry| entry.1)));
            let before = self.pairs_found;
            for (group_a, group_b) in groups {
                let mut partners = group_b.iter();
                for (key, a) in group_a {
                    if self.partner(*a).is_some() || key_a(*a) ^ self.operands_in_b(*a) != *key {
                        continue;
                    }
                    let fits = |(key, b): &&(u64, u32)| {
                        self.is_open(*a, *b) && key_b(*b) ^ self.operands_with_partners(*b) == *key
                    };
                    let Some((_, b)) = partners.find(fits) else { break };
                    self.pair(*a, *b);
                    self.spread(vec![(*a, *b)], Level::Exact, false);
                }
            }
            if self.pairs_found == before {
                break;
            }
            has_paired = true;
            open.refresh(self);
        }
        has_paired
    }

    /// A hash of the partners of the operands of row `a`.
    fn operands_in_b(&self, a: u32) -> u64 {
        let mut hash = self.a.mixer.start(15);
        for operand in self.a.operands(a) {
            hash.word(u64::from(self.partner(*operand).unwrap_or(NONE)));
        }
        hash.finish()
    }

    /// A hash of the operands of row `b`, comparable with `operands_in_b`: equal if the operands
    /// are partners.
    fn operands_with_partners(&self, b: u32) -> u64 {
        let mut hash = self.b.mixer.start(15);
        for operand in self.b.operands(b) {
            let has_partner = self.to_a.get(*operand as usize).is_some_and(|a| *a != NONE);
            hash.word(u64::from(if has_partner { *operand } else { NONE }));
        }
        hash.finish()
    }

    fn spread_from_all(&mut self, ca: u32, level: Level) -> bool {
        let rows = self.a.rows(ca).iter();
        let seeds: Vec<_> = rows.filter_map(|a| Some((*a, self.partner(*a)?))).collect();
        let roots = (
            self.a.module.computation(ComputationId(ca)).root,
            self.computations_to_b.get(ca as usize).copied().filter(|id| *id != NONE),
        );
        let mut has_paired = false;
        let mut seeds = seeds;
        if let (a, Some(cb)) = roots {
            let b = self.b.module.computation(ComputationId(cb)).root;
            if self.may_pair(a, b, level) {
                self.pair(a, b);
                seeds.push((a, b));
                has_paired = true;
            }
        }
        self.spread(seeds, level, true) || has_paired
    }

    /// Pairs operands, and with `upwards` also users, of the pairs in `stack`, and continues from
    /// the new pairs.
    fn spread(&mut self, mut stack: Vec<(u32, u32)>, level: Level, upwards: bool) -> bool {
        let mut has_paired = false;
        while let Some((a, b)) = stack.pop() {
            let (operands, others) = (self.a.operands(a), self.b.operands(b));
            for (x, y) in operands.iter().zip(others) {
                if self.may_pair(*x, *y, level) {
                    self.pair(*x, *y);
                    stack.push((*x, *y));
                    has_paired = true;
                }
            }
            if upwards {
                let before = stack.len();
                self.pair_users(a, b, level, &mut stack);
                has_paired |= stack.len() > before;
            }
        }
        has_paired
    }

    /// Pairs users of `a` and `b` with a label and operand number that occur once.
    fn pair_users(&mut self, a: u32, b: u32, level: Level, stack: &mut Vec<(u32, u32)>) {
        let mixer = self.a.mixer;
        let keys = |side: &Side<'_>, row: u32, partners: &[u32]| -> Vec<(u64, u32)> {
            let open = side
                .uses(row)
                .iter()
                .filter(|(user, _)| partners.get(*user as usize) == Some(&NONE));
            let mut keys: Vec<_> = open
                .map(|(user, index)| {
                    let mut hash = mixer.start(10);
                    hash.word(side.label(level, *user));
                    hash.word(u64::from(*index));
                    (hash.finish(), *user)
                })
                .collect();
            keys.sort_unstable();
            keys
        };
        let of_a = keys(&self.a, a, &self.to_b);
        if of_a.is_empty() {
            return;
        }
        let of_b = keys(&self.b, b, &self.to_a);
        for (group_a, group_b) in common(&of_a, &of_b) {
            if let ([x], [y]) = (group_a, group_b)
                && self.may_pair(x.1, y.1, level)
            {
                self.pair(x.1, y.1);
                stack.push((x.1, y.1));
            }
        }
    }

    fn may_pair(&self, a: u32, b: u32, level: Level) -> bool {
        if !self.is_open(a, b) {
            return false;
        }
        if level == Level::Place {
            return self.takes_the_place(a, b);
        }
        self.a.label(level, a) == self.b.label(level, b)
    }

    /// Whether `b` replaces `a`: a different operation with the same operands and a result of the
    /// same shape.
    fn takes_the_place(&self, a: u32, b: u32) -> bool {
        let is_parameter = |side: &Side<'_>, row| side.opcode(row) == Opcode::Parameter;
        let (operands, others) = (self.a.operands(a), self.b.operands(b));
        if operands.len() != others.len()
            || is_parameter(&self.a, a) != is_parameter(&self.b, b)
            // An instruction that is now inside a fusion has moved; the fusion does not replace it.
            || self.a.is_transparent(a) != self.b.is_transparent(b)
            || self.a.plain_shape(a) != self.b.plain_shape(b)
        {
            return false;
        }
        let Some(left) = self.looks.get().checked_sub(operands.len()) else { return false };
        self.looks.set(left);
        let mut known = operands.is_empty();
        for (x, y) in operands.iter().zip(others) {
            match (self.partner(*x), self.to_a.get(*y as usize)) {
                (Some(partner), _) if partner == *y => known = true,
                (None, Some(&NONE)) => {}
                _ => return false,
            }
        }
        known
    }

    /// Pairs rows with equal opcode that work on the same values, ignoring converts, copies and
    /// reshapes in between.
    fn by_source(&mut self, open: &mut Open) -> bool {
        let mixer = self.a.mixer;
        let key = |side: &Side<'_>, row: u32, in_b: &dyn Fn(u32) -> Option<u32>| {
            let mut hash = mixer.start(14);
            hash.word(side.label(Level::Opcode, row));
            let mut is_known = false;
            for operand in side.operands(row) {
                let mut source = *operand;
                for _ in 0..LONGEST_CHAIN {
                    match side.operands(source) {
                        [input] if in_b(source).is_none() => source = *input,
                        _ => break,
                    }
                }
                is_known |= in_b(source).is_some();
                hash.word(in_b(source).map_or(u64::MAX, u64::from));
            }
            is_known.then(|| hash.finish())
        };
        let has_partner =
            |row: u32| self.to_a.get(row as usize).is_some_and(|a| *a != NONE).then_some(row);
        let keys = |side: &Side<'_>, rows: &[u32], in_b: &dyn Fn(u32) -> Option<u32>| {
            let mut keys: Vec<_> =
                rows.iter().filter_map(|row| Some((key(side, *row, in_b)?, *row))).collect();
            keys.sort_unstable();
            keys
        };
        let of_a = keys(&self.a, &open.a, &|row| self.partner(row));
        let of_b = keys(&self.b, &open.b, &has_partner);
        let mut has_paired = false;
        for (group_a, group_b) in common(&of_a, &of_b) {
            if let ([a], [b]) = (group_a, group_b) {
                self.pair(a.1, b.1);
                has_paired = true;
            }
        }
        open.refresh(self);
        has_paired
    }

    /// Pairs rows with equal opcode whose operation name is unique for that opcode.
    fn by_operation_name(&mut self, open: &mut Open) {
        let mixer = self.a.mixer;
        let keys = |side: &Side<'_>, rows: &[u32]| -> Vec<(u64, u32)> {
            let metadata = side.module.metadata_columns();
            let key = |row: u32| {
                let id = usize::try_from(*metadata.op_name.get(row as usize)?).ok()?;
                let name = side.module.bytes(*metadata.op_names.get(id)?);
                let mut hash = mixer.start(11);
                hash.word(side.label(Level::Opcode, row));
                hash.bytes(name);
                (!name.is_empty()).then(|| hash.finish())
            };
            let mut keys: Vec<_> = rows.iter().filter_map(|row| Some((key(*row)?, *row))).collect();
            keys.sort_unstable();
            keys
        };
        let (of_a, of_b) = (keys(&self.a, &open.a), keys(&self.b, &open.b));
        for (group_a, group_b) in common(&of_a, &of_b) {
            if let ([a], [b]) = (group_a, group_b) {
                self.pair(a.1, b.1);
            }
        }
        open.refresh(self);
    }
}

/// The rows of a pair of computations that have no partner yet.
struct Open {
    a: Vec<u32>,
    b: Vec<u32>,
}

impl Open {
    fn refresh(&mut self, matcher: &Matcher<'_>) {
        self.a.retain(|row| matcher.to_b.get(*row as usize) == Some(&NONE));
        self.b.retain(|row| matcher.to_a.get(*row as usize) == Some(&NONE));
    }

    fn is_done(&self) -> bool {
        self.a.is_empty() || self.b.is_empty()
    }
}

fn keyed(keys: &[u64], rows: &[u32]) -> Vec<(u64, u32)> {
    let mut keyed: Vec<_> = keys.iter().copied().zip(rows.iter().copied()).collect();
    keyed.sort_unstable();
    keyed
}

type Group<'g> = &'g [(u64, u32)];

/// The groups of equal keys that both sorted lists contain.
pub(super) fn common<'g>(mut a: Group<'g>, mut b: Group<'g>) -> Vec<(Group<'g>, Group<'g>)> {
    let mut groups = Vec::new();
    while let (Some((x, _)), Some((y, _))) = (a.first(), b.first()) {
        if x == y {
            let length = |list: Group<'_>| list.iter().take_while(|entry| entry.0 == *x).count();
            let ((group_a, rest_a), (group_b, rest_b)) =
                (a.split_at(length(a)), b.split_at(length(b)));
            groups.push((group_a, group_b));
            (a, b) = (rest_a, rest_b);
        } else if x < y {
            a = a.get(1..).unwrap_or_default();
        } else {
            b = b.get(1..).unwrap_or_default();
        }
    }
    groups
}
