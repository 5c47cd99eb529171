//! What else changes in memory once f32 arrays have 16 bits: the same values in other shapes, and their 16-bit copies.
//!
//! Where a program converts f32 values to 16 bits for its matmuls, both lie in memory: the f32 values, which sums
//! still need, and the 16-bit copy. Once the values have 16 bits, the conversion changes nothing, and XLA removes it.

use super::float32_residuals::{is_f32, moves, settle};
use super::program::{Program, is_narrow};
use super::site::Site;
use crate::flow::origin::Path;
use crate::flow::walk::{Trail, Use, conversions, uses_within};
use crate::flow::{Phase, Place};
use crate::ir::{CallRole, Module, Opcode, Row, ShapeId};
use crate::memory::{Resized, Spared};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Limits on the rows between a copy and the array that it is a copy of, and on the arrays that a fusion returns.
const MOST_STEPS: usize = 64;
const MOST_RESULTS: usize = 256;
/// Limit on the moves between two shapes of the same values: a step has few.
const MOST_MOVES: usize = 16;
/// An operation that computes an array element by element has no more operands.
const MOST_OPERANDS: usize = 3;

/// The rows that the compiler schedules.
fn scheduled(module: &Module) -> impl Iterator<Item = Row> + '_ {
    let inside = module.computations_in_fusions();
    let is_own = move |at: usize| inside.get(at) != Some(&true);
    let own = module.computations().iter().enumerate().filter(move |(at, _)| is_own(*at));
    own.flat_map(|(_, own)| own.rows()).map(Row)
}

/// Gives all that shrinks with the residuals of one key to the first of them. The account knows arrays by shape: of
/// the bytes that several residuals of a key leave to one shape, the least count, as all of them shrink.
pub(super) fn share_changes(program: &Program<'_>, sites: &mut [Site], stacks: &HashSet<ShapeId>) {
    let mut first: HashMap<u64, (usize, BTreeMap<ShapeId, u64>)> = HashMap::new();
    for (at, site) in sites.iter_mut().enumerate() {
        let (_, bytes) = first.entry(site.key).or_insert_with(|| (at, BTreeMap::new()));
        for own in std::mem::take(&mut site.change.resized) {
            bytes
                .entry(own.shape)
                .and_modify(|left| *left = own.bytes.min(*left))
                .or_insert(own.bytes);
        }
    }
    let known = first.values().flat_map(|(_, bytes)| bytes.keys().copied()).collect();
    if first.values().all(|(_, bytes)| bytes.is_empty()) {
        return;
    }
    let moved = moved(program, &known);
    let kept = by_chance(program.module, stacks);
    let mut sorted: Vec<Place> = kept.iter().cloned().collect();
    sorted.sort_by(|a, b| (a.row, &a.path).cmp(&(b.row, &b.path)));
    let narrow = narrow(program.module);
    for (at, mut bytes) in first.into_values() {
        add_moved(program.module, &mut bytes, &moved);
        let wide = bytes.keys().copied().collect();
        let copies = Copies { program, wide, kept: &kept };
        let change = &mut sites[at].change;
        change.spared = copies.of(&narrow);
        change.kept.clone_from(&sorted);
        change.resized = bytes.into_iter().map(|(shape, bytes)| Resized { shape, bytes }).collect();
    }
}

/// The pairs of f32 shapes between which the program moves values with as many elements as one of `known` has: before
/// and after an all-to-all, say, or with two dimensions in one.
fn moved(program: &Program<'_>, known: &HashSet<ShapeId>) -> BTreeSet<(ShapeId, ShapeId)> {
    let (module, shapes) = (program.module, program.module.shapes());
    let elements = |shape: ShapeId| shapes.array(shape).and_then(|array| array.elements());
    let sizes: HashSet<u64> = known.iter().filter_map(|shape| elements(*shape)).collect();
    let is_wide = |row: Row| {
        is_f32(module, row) && elements(module.shape(row)).is_some_and(|own| sizes.contains(&own))
    };
    let passes = |opcode| moves(opcode) || opcode == Opcode::AllToAll;
    let mut found = BTreeSet::new();
    for row in scheduled(module).filter(|row| is_wide(*row)) {
        let mut trail = Trail::new(row);
        // What lies before the next array is found from there.
        while trail.step(module, passes) {
            let is_array = trail.path().is_empty() && trail.calls().is_empty();
            if is_array && is_wide(trail.row) {
                found.insert((module.shape(row), module.shape(trail.row)));
                break;
            }
        }
    }
    found
}

/// Adds the shapes that values of the shapes in `bytes` are `moved` to and from. All arrays of a shape count, whatever
/// they hold; other arrays have so many elements only by chance. They shrink by the part of the shape that they are
/// moved to or from; of several, by the smallest part.
fn add_moved(
    module: &Module,
    bytes: &mut BTreeMap<ShapeId, u64>,
    moved: &BTreeSet<(ShapeId, ShapeId)>,
) {
    let whole = |shape: ShapeId| module.shapes().logical_bytes(shape).unwrap_or(0);
    for _ in 0..MOST_MOVES {
        let mut next: BTreeMap<ShapeId, u64> = BTreeMap::new();
        for (from, to) in moved.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]) {
            let Some(left) = bytes.get(&from).filter(|_| !bytes.contains_key(&to)) else {
                continue;
            };
            let left = u128::from(*left) * u128::from(whole(to)) / u128::from(whole(from).max(1));
            let left = u64::try_from(left).unwrap_or(whole(to));
            next.entry(to).and_modify(|most| *most = left.max(*most)).or_insert(left);
        }
        if next.is_empty() {
            break;
        }
        bytes.extend(next);
    }
}

/// The arrays of fusions that have the shape of one of `stacks`, which loops write, by chance.
fn by_chance(module: &Module, stacks: &HashSet<ShapeId>) -> HashSet<Place> {
    let is_stack = |made: Row, row: Row| {
        let made = settle(module, Trail::within(made, &[row]), moves).row;
        matches!(module.opcode(made), Opcode::DynamicUpdateSlice | Opcode::Broadcast)
    };
    let mut found = HashSet::new();
    for row in scheduled(module).filter(|row| module.opcode(*row) == Opcode::Fusion) {
        for result in results(module, row).filter(|own| stacks.contains(&own.shape)) {
            if !is_stack(result.made, row) {
                found.insert(Place { row, path: result.path });
            }
        }
    }
    found
}

/// One array that a fusion returns.
struct Returned {
    shape: ShapeId,
    path: Path,
    /// The row inside the fusion.
    made: Row,
}

/// The arrays that the fusion `row` returns.
fn results(module: &Module, row: Row) -> impl Iterator<Item = Returned> {
    let root = module.called(row, CallRole::Calls).map(|own| Row(module.computation(own).root));
    let shape = module.shape(row);
    let mut found = Vec::new();
    match (root, module.shapes().tuple(shape)) {
        (Some(root), Some(shapes)) if module.opcode(root) == Opcode::Tuple => {
            let arrays = shapes.iter().zip(module.operands(root)).take(MOST_RESULTS);
            for ((shape, made), at) in arrays.zip(0u32..) {
                let path = Path::from_slice(&[at]);
                found.push(Returned { shape: *shape, path, made: Row(*made) });
            }
        }
        (Some(made), None) => found.push(Returned { shape, path: Path::new(), made }),
        _ => {}
    }
    found.into_iter()
}

/// A 16-bit array that the compiler makes.
struct Narrow {
    row: Row,
    shape: ShapeId,
    /// Its value.
    value: Trail,
}

/// The 16-bit arrays that the compiler makes by conversions, copies and fusions.
fn narrow(module: &Module) -> Vec<Narrow> {
    let mut found = Vec::new();
    for row in scheduled(module) {
        let mut add = |shape: ShapeId, value: Trail| {
            let array = module.shapes().array(shape);
            if array.is_some_and(|array| is_narrow(array.element_type)) {
                found.push(Narrow { row, shape, value });
            }
        };
        match module.opcode(row) {
            Opcode::Convert => add(module.shape(row), Trail::new(row)),
            Opcode::CopyStart => {
                let first = module.shapes().tuple(module.shape(row)).and_then(|own| own.first());
                let before = module.operands(row).first().map(|row| Trail::new(Row(*row)));
                if let Some((shape, before)) = first.zip(before) {
                    add(*shape, before);
                }
            }
            Opcode::Fusion => {
                for own in results(module, row) {
                    add(own.shape, Trail::within(own.made, &[row]));
                }
            }
            _ => {}
        }
    }
    found
}

/// The search for 16-bit copies of f32 arrays.
///
/// A copy is a conversion, or what backward code computes element by element of one such array and converts: of 16-bit
/// values, XLA computes it inside what reads it, which are matmuls for the most part; readers are not told apart, so
/// that an array which a collective sends counts too. It stays where loops read it, as those do that pass shards around
/// a ring, where it leaves its computation, where its readers are too many to follow, and in another layout.
struct Copies<'a, 'p> {
    program: &'a Program<'p>,
    /// The shapes of the f32 arrays.
    wide: HashSet<ShapeId>,
    /// Arrays that have one of these shapes by chance.
    kept: &'a HashSet<Place>,
}

impl Copies<'_, '_> {
    /// Those of `narrow` that are copies.
    fn of(&self, narrow: &[Narrow]) -> Vec<Spared> {
        let spared = |own: &Narrow| {
            let from = self.source(own.row, own.value.clone())?;
            Some(Spared { row: own.row, shape: own.shape, from })
        };
        narrow.iter().filter_map(spared).collect()
    }

    /// The array that the 16-bit value at `trail`, which `row` passes on, is a copy of.
    fn source(&self, row: Row, trail: Trail) -> Option<Place> {
        let module = self.program.module;
        let copy = settle(module, trail, |opcode| moves(opcode) && opcode != Opcode::Copy);
        let converted = copy.operand(module, 0);
        let mut value = converted.filter(|_| module.opcode(copy.row) == Opcode::Convert)?;
        let maker = copy.calls().first().copied().unwrap_or(copy.row);
        let is_inlined = || {
            let is_backward =
                |row| matches!(self.program.runs(row).phase, Phase::Backward | Phase::Recompute);
            is_backward(maker) && is_backward(row) && stays_inside(self.program, &copy)
        };
        let mut is_plain = true;
        for _ in 0..MOST_STEPS {
            if let Some(place) = self.held(&value) {
                let is_copy = !self.kept.contains(&place) && (is_plain || is_inlined());
                return is_copy.then_some(place);
            }
            if !value.step(module, moves) {
                value = only_large(module, &value)?;
                is_plain = false;
            }
        }
        None
    }

    /// Where the value at `trail` lies in memory, if its shape is one of those.
    fn held(&self, trail: &Trail) -> Option<Place> {
        let module = self.program.module;
        let (row, path) = (trail.row, trail.path());
        let place = match (trail.calls(), path) {
            ([], _) if module.opcode(row) != Opcode::GetTupleElement => {
                Place { row, path: path.into() }
            }
            ([fusion], []) if is_f32(module, row) => {
                let own = results(module, *fusion).find(|own| own.made == row)?;
                Place { row: *fusion, path: own.path }
            }
            _ => return None,
        };
        let shape = match place.path[..] {
            [] => module.shape(place.row),
            [at] => *module.shapes().tuple(module.shape(place.row))?.get(at as usize)?,
            _ => return None,
        };
        self.wide.contains(&shape).then_some(place)
    }
}

/// Whether all that reads the value at `copy` is in its computation, and none of it is a loop.
fn stays_inside(program: &Program<'_>, copy: &Trail) -> bool {
    let module = program.module;
    let is_inside = |used: &Use| !matches!(module.opcode(used.row), Opcode::Tuple | Opcode::While);
    uses_within(&program.walk, copy.row, copy.calls(), conversions, is_inside).is_some()
}

/// The only array among the operands of what computes the value at `trail` element by element, or slices it.
fn only_large(module: &Module, trail: &Trail) -> Option<Trail> {
    let opcode = module.opcode(trail.row);
    if opcode == Opcode::DynamicSlice {
        return trail.operand(module, 0);
    }
    let is_large = |own: &Trail| {
        let value = settle(module, own.clone(), moves);
        !matches!(module.opcode(value.row), Opcode::Broadcast | Opcode::Constant)
    };
    let count = module.operands(trail.row).len();
    if count > MOST_OPERANDS || !opcode.is_elementwise() {
        return None;
    }
    let operands = (0..count).filter_map(|at| trail.operand(module, at));
    let mut large = operands.filter(is_large);
    let first = large.next()?;
    large.next().is_none().then_some(first)
}
