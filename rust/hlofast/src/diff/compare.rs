//! Finds the differences between partners, and marks differences that follow from others.

use super::matching::Matcher;
use super::meaning::Meaning;
use super::shapes::{ASPECTS, DIMENSIONS, STRUCTURE, ShapeComparison};
use super::side::{Level, NONE, Side, callees};
use super::{Change, Kind, Options, cut, left_out};
use crate::flow::trip_count::trip_counts;
use crate::ir::{ComputationId, Module, Opcode, Row};
use crate::print::{Seen, Spacing, shape_to_text_within, write_literal, write_value};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Limit on the length of shape texts; longer texts are shortened.
const LONGEST_SHAPE: usize = 1 << 10;

/// Collects the differences between matched modules.
pub(super) struct Comparison<'m, 'a> {
    matcher: &'m Matcher<'a>,
    /// Sorted pairs of rows in different computations, and the same pairs from the second module to
    /// the first.
    moved: &'m [(u32, u32)],
    moved_back: HashMap<u32, u32>,
    options: Options,
    shapes: ShapeComparison<'a>,
    /// By row of the first module: the aspects in which its shape differs.
    shape_bits: Vec<u8>,
    /// Hashes of computations, on either side.
    digests: (Vec<u64>, Vec<u64>),
    meaning: Meaning,
    changes: Vec<Change>,
}

impl<'m, 'a> Comparison<'m, 'a> {
    pub(super) fn new(
        matcher: &'m Matcher<'a>,
        moved: &'m [(u32, u32)],
        classes: (Vec<usize>, Vec<usize>),
        options: Options,
    ) -> Self {
        let tables = (matcher.a.module.shapes(), matcher.b.module.shapes());
        Self {
            moved,
            moved_back: moved.iter().map(|(a, b)| (*b, *a)).collect(),
            options,
            shapes: ShapeComparison::new(tables, classes, options.layouts),
            shape_bits: vec![0; matcher.to_b.len()],
            digests: matcher.computation_digests(),
            meaning: Meaning::default(),
            changes: Vec::new(),
            matcher,
        }
    }

    pub(super) fn run(&mut self) {
        let pairs: Vec<(u32, u32)> = self.pairs().collect();
        for (a, b) in &pairs {
            let shapes = (self.a().shape(Row(*a)), self.b().shape(Row(*b)));
            if let Some(bits) = self.shape_bits.get_mut(*a as usize) {
                *bits = self.shapes.differ(shapes.0, shapes.1);
            }
        }
        self.vanished();
        self.appeared();
        self.moved();
        let first_pair = self.changes.len();
        for (a, b) in &pairs {
            self.compare(*a, *b);
        }
        self.control();
        self.roots();
        self.trip_counts();
        if let Some(changed) = self.changes.get_mut(first_pair..) {
            changed.sort_by_key(|change| change.after);
        }
    }

    pub(super) fn finish(mut self) -> (Vec<Change>, Option<bool>) {
        let scheduled = self.a().is_scheduled() && self.b().is_scheduled();
        let reordered = if scheduled { self.reordered() } else { Vec::new() };
        if self.options.schedule {
            for (a, b) in &reordered {
                let text = |side: &Side<'_>, row: u32| {
                    side.module.computation_name(side.module.computation_of(Row(row))).to_vec()
                };
                let texts = (text(&self.matcher.a, *a), text(&self.matcher.b, *b));
                self.change((*a, *b), "schedule", texts, false);
            }
        }
        (self.changes, scheduled.then_some(reordered.is_empty()))
    }

    fn a(&self) -> &'a Module {
        self.matcher.a.module
    }

    fn b(&self) -> &'a Module {
        self.matcher.b.module
    }

    fn pairs(&self) -> impl Iterator<Item = (u32, u32)> + use<'m, 'a> {
        let pairs = (0..).zip(&self.matcher.to_b);
        pairs.filter(|(_, b)| **b != NONE).map(|(a, b)| (a, *b))
    }

    fn change(
        &mut self,
        (a, b): (u32, u32),
        aspect: &str,
        (before, after): (Vec<u8>, Vec<u8>),
        is_consequence: bool,
    ) {
        self.changes.push(Change {
            kind: Kind::Changed,
            aspect: aspect.to_owned(),
            before: Some(Row(a)),
            after: Some(Row(b)),
            before_text: cut(&before),
            after_text: cut(&after),
            is_consequence,
        });
    }

    fn vanished(&mut self) {
        let matcher = self.matcher;
        let is_left = |row: u32| {
            matcher.partner(row).is_none()
                && self.moved.binary_search_by_key(&row, |pair| pair.0).is_err()
        };
        let partners = &matcher.computations_to_b;
        let known =
            left_computations(&matcher.a, partners, (&self.digests.0, &self.digests.1), |row| {
                matcher.partner(row).is_some()
            });
        let mut changes = Vec::new();
        for row in (0..matcher.to_b.len() as u32).filter(|row| is_left(*row)) {
            let Some(is_consequence) = is_brought_along(&matcher.a, row, &known, is_left) else {
                continue;
            };
            changes.push(Change {
                kind: Kind::Vanished,
                aspect: String::new(),
                before: Some(Row(row)),
                after: None,
                before_text: shape_text(self.a(), row),
                after_text: Vec::new(),
                is_consequence,
            });
        }
        self.changes.extend(changes);
    }

    fn appeared(&mut self) {
        let matcher = self.matcher;
        let has_partner = |row: u32| matcher.to_a.get(row as usize).is_some_and(|a| *a != NONE);
        let is_left = |row: u32| !has_partner(row) && !self.moved_back.contains_key(&row);
        let partners = &matcher.computations_to_a;
        let known = left_computations(
            &matcher.b,
            partners,
            (&self.digests.1, &self.digests.0),
            has_partner,
        );
        let mut changes = Vec::new();
        for row in (0..matcher.to_a.len() as u32).filter(|row| is_left(*row)) {
            let Some(is_consequence) = is_brought_along(&matcher.b, row, &known, is_left) else {
                continue;
            };
            changes.push(Change {
                kind: Kind::Appeared,
                aspect: String::new(),
                before: None,
                after: Some(Row(row)),
                before_text: Vec::new(),
                after_text: shape_text(self.b(), row),
                is_consequence,
            });
        }
        self.changes.extend(changes);
    }

    fn moved(&mut self) {
        for (a, b) in self.moved {
            let (ca, cb) = (self.a().computation_of(Row(*a)), self.b().computation_of(Row(*b)));
            if self.matcher.computations_to_b.get(ca.0 as usize) == Some(&cb.0) {
                continue;
            }
            self.changes.push(Change {
                kind: Kind::Moved,
                aspect: String::new(),
                before: Some(Row(*a)),
                after: Some(Row(*b)),
                before_text: self.a().computation_name(ca).to_vec(),
                after_text: self.b().computation_name(cb).to_vec(),
                is_consequence: false,
            });
        }
    }

    fn compare(&mut self, a: u32, b: u32) {
        self.compare_shapes(a, b);
        self.compare_operands(a, b);
        self.compare_callees(a, b);
        let matcher = self.matcher;
        if matcher.a.label(Level::Exact, a) == matcher.b.label(Level::Exact, b) {
            return;
        }
        let (ra, rb) = (Row(a), Row(b));
        let opcodes = (opcode(self.a(), ra), opcode(self.b(), rb));
        if opcodes.0 != opcodes.1 {
            self.change((a, b), "opcode", (opcodes.0.to_vec(), opcodes.1.to_vec()), false);
        }
        let both = (self.a().opcode(ra), self.b().opcode(rb));
        if both == (Opcode::Constant, Opcode::Constant) {
            let literals = (literal(self.a(), ra), literal(self.b(), rb));
            if literals.0 != literals.1 {
                self.change((a, b), "constant", literals, false);
            }
        }
        if both == (Opcode::Parameter, Opcode::Parameter) {
            let numbers = (self.a().parameter_number(ra), self.b().parameter_number(rb));
            if numbers.0 != numbers.1 {
                let text = |number: Option<u64>| {
                    number.map(|number| number.to_string().into_bytes()).unwrap_or_default()
                };
                let renumbered = self.parameters_came_or_went(a, b);
                let texts = (text(numbers.0), text(numbers.1));
                self.change((a, b), "parameter_number", texts, renumbered);
            }
        }
        // Attributes of an operation that replaces another are not changes.
        if opcodes.0 == opcodes.1 {
            self.compare_attributes(a, b);
        }
    }

    fn compare_shapes(&mut self, a: u32, b: u32) {
        let bits = self.shape_bits.get(a as usize).copied().unwrap_or(0);
        if bits == 0 {
            return;
        }
        let explained = self.explained_bits(a, b);
        for (bit, aspect) in ASPECTS {
            if bits & bit != 0 {
                let texts = (shape_text(self.a(), a), shape_text(self.b(), b));
                let is_consequence = explained & (bit | STRUCTURE) != 0;
                self.change((a, b), aspect, texts, is_consequence);
            }
        }
    }

    /// The aspects that differences of other shapes explain, because the shape of `a` follows from
    /// those shapes.
    fn explained_bits(&self, a: u32, b: u32) -> u8 {
        let side = &self.matcher.a;
        if side.opcode(a) == Opcode::Tuple && self.matcher.b.opcode(b) == Opcode::Tuple {
            return u8::MAX;
        }
        let bits = |row: u32| self.shape_bits.get(row as usize).copied().unwrap_or(0);
        let of_operands =
            |row: u32| side.operands(row).iter().fold(0, |sum, operand| sum | bits(*operand));
        let mut explained = of_operands(a);
        for (_, callee) in callees(side.module, a) {
            let root = side.module.computation(ComputationId(callee)).root;
            explained |= match self.matcher.partner(root) {
                Some(_) => bits(root),
                None => u8::MAX,
            };
        }
        if side.opcode(a) == Opcode::Parameter {
            let callers = side.module.callers(side.module.computation_of(Row(a)));
            for caller in callers {
                explained |= of_operands(*caller);
                // A different operand has a different shape.
                if side.operands(*caller).iter().any(|row| self.matcher.partner(*row).is_none()) {
                    explained = u8::MAX;
                }
            }
        }
        explained
    }

    fn compare_operands(&mut self, a: u32, b: u32) {
        let matcher = self.matcher;
        let (operands, others) = (matcher.a.operands(a), matcher.b.operands(b));
        let same = |x: u32, y: u32| matcher.to_b.get(x as usize) == Some(&y);
        if operands.len() == others.len() && operands.iter().zip(others).all(|(x, y)| same(*x, *y))
        {
            return;
        }
        let went = |row: u32| matcher.partner(row).is_none();
        let came = |row: u32| matcher.to_a.get(row as usize) == Some(&NONE);
        let is_consequence = if operands.len() == others.len() {
            let mut pairs = operands.iter().zip(others);
            pairs.all(|(x, y)| same(*x, *y) || went(*x) || came(*y))
        } else {
            let stayed = operands.iter().filter_map(|row| matcher.partner(*row));
            stayed.eq(others.iter().copied().filter(|row| !came(*row)))
        };
        let texts = (names(self.a(), operands), names(self.b(), others));
        self.change((a, b), "operands", texts, is_consequence);
    }

    fn compare_callees(&mut self, a: u32, b: u32) {
        let (of_a, of_b) = (callees(self.a(), a), callees(self.b(), b));
        for (x, y) in of_a.iter().zip(&of_b) {
            let is_partner = self.matcher.computations_to_b.get(x.1 as usize) == Some(&y.1);
            let digests = (self.digests.0.get(x.1 as usize), self.digests.1.get(y.1 as usize));
            if !is_partner && digests.0 != digests.1 {
                let name =
                    |module: &Module, id| module.computation_name(ComputationId(id)).to_vec();
                let texts = (name(self.a(), x.1), name(self.b(), y.1));
                self.change((a, b), x.0, texts, false);
            }
        }
        if of_a.len() != of_b.len() && self.a().opcode(Row(a)) == self.b().opcode(Row(b)) {
            let list = |module: &Module, calls: &[(&str, u32)]| {
                let names: Vec<&[u8]> =
                    calls.iter().map(|c| module.computation_name(ComputationId(c.1))).collect();
                names.join(&b", "[..])
            };
            let texts = (list(self.a(), &of_a), list(self.b(), &of_b));
            self.change((a, b), "called_computations", texts, false);
        }
    }

    fn compare_attributes(&mut self, a: u32, b: u32) {
        let of_a = attributes(self.a(), a, &self.options);
        let of_b = attributes(self.b(), b, &self.options);
        let mut keys: Vec<&[u8]> = of_a.keys().chain(of_b.keys()).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        let operand_bits = self.matcher.a.operands(a).iter().fold(0, |sum, operand| {
            sum | self.shape_bits.get(*operand as usize).copied().unwrap_or(0)
        });
        for key in keys {
            let (x, y) = (of_a.get(key), of_b.get(key));
            if x == y {
                continue;
            }
            let text = |value: Option<&Vec<u8>>| value.cloned().unwrap_or_default();
            let (x, y) = (text(x), text(y));
            if self.meaning.is_same(key, &x, &y) {
                continue;
            }
            let is_consequence = match key {
                b"slice" | b"dynamic_slice_sizes" | b"slice_sizes" | b"window" | b"padding" => {
                    operand_bits & (DIMENSIONS | STRUCTURE) != 0
                }
                b"operand_layout_constraints" => operand_bits != 0,
                b"index" => operand_bits & STRUCTURE != 0,
                _ => false,
            };
            self.change((a, b), &String::from_utf8_lossy(key), (x, y), is_consequence);
        }
    }

    fn parameters_came_or_went(&self, a: u32, b: u32) -> bool {
        let of = |module: &Module, row| module.computation_of(Row(row));
        let count = |module: &Module, row| module.parameters(of(module, row)).len();
        count(self.a(), a) != count(self.b(), b)
    }

    /// Control edges between instructions of both modules that only one module has.
    fn control(&mut self) {
        let matcher = self.matcher;
        let mut only_a: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut only_b: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let of_b: BTreeSet<(u32, u32)> =
            self.b().control_predecessors().iter().map(|(row, p)| (row.0, p.0)).collect();
        let mut met = BTreeSet::new();
        for (row, predecessor) in self.a().control_predecessors() {
            let Some(b) = matcher.partner(row.0) else { continue };
            let edge = (b, matcher.partner(predecessor.0).unwrap_or(NONE));
            if of_b.contains(&edge) {
                met.insert(edge);
            } else {
                only_a.entry(b).or_default().push(predecessor.0);
            }
        }
        for (row, predecessor) in of_b.difference(&met) {
            only_b.entry(*row).or_default().push(*predecessor);
        }
        let rows: BTreeSet<u32> = only_a.keys().chain(only_b.keys()).copied().collect();
        for b in rows {
            let a = matcher.to_a.get(b as usize).copied().unwrap_or(NONE);
            if a == NONE {
                continue;
            }
            let left = only_a.remove(&b).unwrap_or_default();
            let new = only_b.remove(&b).unwrap_or_default();
            let is_consequence = left.iter().all(|row| matcher.partner(*row).is_none())
                && new.iter().all(|row| matcher.to_a.get(*row as usize) == Some(&NONE));
            let texts = (names(self.a(), &left), names(self.b(), &new));
            self.change((a, b), "control-predecessors", texts, is_consequence);
        }
    }

    /// Computations whose result is a different instruction.
    fn roots(&mut self) {
        let matcher = self.matcher;
        for (id, other) in (0..).zip(&matcher.computations_to_b) {
            if *other == NONE {
                continue;
            }
            let a = self.a().computation(ComputationId(id)).root;
            let b = self.b().computation(ComputationId(*other)).root;
            if matcher.partner(a) != Some(b) {
                let is_consequence =
                    matcher.partner(a).is_none() || matcher.to_a.get(b as usize) == Some(&NONE);
                let texts = (names(self.a(), &[a]), names(self.b(), &[b]));
                self.change((a, b), "root", texts, is_consequence);
            }
        }
    }

    /// Loops with a different trip count, which always follows from another change.
    fn trip_counts(&mut self) {
        let of_b: HashMap<u32, _> =
            trip_counts(self.b()).into_iter().map(|(row, count)| (row.0, count.count)).collect();
        for (row, count) in trip_counts(self.a()) {
            let Some(b) = self.matcher.partner(row.0) else { continue };
            let Some(other) = of_b.get(&b) else { continue };
            if count.count != *other {
                let text = |count: Option<u64>| {
                    count
                        .map_or_else(|| "unknown".to_owned(), |count| count.to_string())
                        .into_bytes()
                };
                self.change((row.0, b), "trip_count", (text(count.count), text(*other)), true);
            }
        }
    }

    /// The first partners in a different order, for each pair of computations.
    fn reordered(&self) -> Vec<(u32, u32)> {
        let mut pairs = Vec::new();
        // The order within a fusion has no meaning.
        let is_fused = self.a().computations_in_fusions();
        for ((id, other), is_fused) in (0..).zip(&self.matcher.computations_to_b).zip(is_fused) {
            if *other == NONE || is_fused {
                continue;
            }
            let rows = self.a().computation(ComputationId(id)).rows();
            let mut last = 0;
            for a in rows {
                let Some(b) = self.matcher.partner(a) else { continue };
                if b < last {
                    pairs.push((a, b));
                    break;
                }
                last = b;
            }
        }
        pairs
    }
}

/// The fate of a computation without a partner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nothing to report: the computation has a partner, or its caller has a partner that calls
    /// another computation.
    No,
    /// The computation appeared or vanished with its callers.
    WithCallers,
    /// The other module has an equal computation.
    Copied,
}

fn left_computations(
    side: &Side<'_>,
    partners: &[u32],
    (own, others): (&[u64], &[u64]),
    has_partner: impl Fn(u32) -> bool,
) -> Vec<Left> {
    let others: std::collections::HashSet<u64> = others.iter().copied().collect();
    let left = |(id, partner): (u32, &u32)| {
        if *partner != NONE {
            return Left::No;
        }
        if own.get(id as usize).is_some_and(|digest| others.contains(digest)) {
            return Left::Copied;
        }
        let callers = side.module.callers(ComputationId(id));
        if !callers.is_empty() && !callers.iter().any(|caller| has_partner(*caller)) {
            Left::WithCallers
        } else {
            Left::No
        }
    };
    (0..).zip(partners).map(left).collect()
}

/// Whether another difference explains why `row` appeared or vanished; None if its absence is not a
/// difference.
fn is_brought_along(
    side: &Side<'_>,
    row: u32,
    computations: &[Left],
    is_left: impl Fn(u32) -> bool,
) -> Option<bool> {
    let id = side.module.computation_of(Row(row));
    match computations.get(id.0 as usize) {
        Some(Left::Copied) => None,
        Some(Left::WithCallers) => Some(true),
        _ => Some(match side.opcode(row) {
            // A parameter appears or vanishes when callers gain or lose an operand.
            Opcode::Parameter => id != side.module.entry(),
            Opcode::GetTupleElement => side.operands(row).iter().any(|operand| is_left(*operand)),
            _ => false,
        }),
    }
}

fn opcode(module: &Module, row: Row) -> &[u8] {
    match module.opcode(row) {
        Opcode::Unknown => module.opcode_text(row),
        known => known.as_str().as_bytes(),
    }
}

fn literal(module: &Module, row: Row) -> Vec<u8> {
    let mut out = Vec::new();
    let payload = module.bytes(module.opcode_and_payload(row).1);
    write_literal(&mut out, payload, Spacing::Tight);
    out
}

fn shape_text(module: &Module, row: u32) -> Vec<u8> {
    shape_to_text_within(module.shapes(), module.shape(Row(row)), LONGEST_SHAPE)
}

/// The first few names of `rows`.
fn names(module: &Module, rows: &[u32]) -> Vec<u8> {
    const SHOWN: usize = 64;
    let mut names: Vec<&[u8]> =
        rows.iter().take(SHOWN).map(|row| module.instruction_name(Row(*row))).collect();
    if rows.len() > SHOWN {
        names.push("…".as_bytes());
    }
    names.join(&b", "[..])
}

/// The attributes to compare, by key, without optional whitespace.
fn attributes<'a>(module: &'a Module, row: u32, options: &Options) -> BTreeMap<&'a [u8], Vec<u8>> {
    let mut attributes = BTreeMap::new();
    let mut seen = Seen::default();
    for attribute in module.attributes(Row(row)) {
        let key = module.bytes(attribute.key);
        if !left_out(module, Row(row), key, options) && seen.is_new(key) {
            let mut value = Vec::new();
            write_value(&mut value, key, module.bytes(attribute.value), Spacing::Tight);
            attributes.insert(key, value);
        }
    }
    attributes
}
