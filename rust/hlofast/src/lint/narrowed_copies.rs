//! What else changes in memory once f32 arrays have 16 bits: the same values in other shapes, and their 16-bit copies.
//!
//! Where a program converts f32 values to 16 bits for its matmuls, both lie in memory: the f32 values, which sums
//! still need, and the 16-bit copy. Once the values have 16 bits, the conversion changes nothing, and XLA removes it.

use super::float32_residuals::{is_f32, moves, settle};
use super::program::{Program, is_narrow};
use super::site::Site;
use crate::flow::origin::Path;
use crate::flow::walk::Trail;
use crate::flow::{Phase, Place};
use crate::ir::{CallRole, Module, Opcode, Row, ShapeId};
use crate::memory::{Resized, Spared};
use std::collections::{HashMap, HashSet};

/// Limits on the rows between a copy and the array that it is a copy of, on the arrays that a fusion returns,
/// and on the users of a row.
const MOST_STEPS: usize = 64;
const MOST_RESULTS: usize = 256;
const MOST_USERS: usize = 256;
/// An operation that computes an array element by element has no more operands.
const MOST_OPERANDS: usize = 3;

/// The rows that the compiler schedules.
fn scheduled(module: &Module) -> impl Iterator<Item = Row> + '_ {
    let inside = module.computations_in_fusions();
    let is_own = move |at: usize| inside.get(at) != Some(&true);
    let own = module.computations().iter().enumerate().filter(move |(at, _)| is_own(*at));
    own.flat_map(|(_, own)| own.rows()).map(Row)
}

/// Gives all that shrinks with the residuals of one key to the first of them.
pub(super) fn share_changes(program: &Program<'_>, sites: &mut [Site], stacks: &HashSet<ShapeId>) {
    let mut first: HashMap<u64, usize> = HashMap::new();
    for at in 0..sites.len() {
        let to = *first.entry(sites[at].key).or_insert(at);
        for own in std::mem::take(&mut sites[at].change.resized) {
            let resized = &mut sites[to].change.resized;
            match resized.iter_mut().find(|other| other.shape == own.shape) {
                Some(other) => other.bytes = other.bytes.min(own.bytes),
                None => resized.push(own),
            }
        }
    }
    for at in first.into_values() {
        let change = &mut sites[at].change;
        change.resized = with_moved(program, std::mem::take(&mut change.resized));
        change.kept = by_chance(program, stacks);
        change.spared = copies(program, &change.resized, &change.kept);
    }
}

/// The arrays of `resized`, and those that hold the same f32 values in other shapes: before an all-to-all, say, or
/// with two dimensions in one.
fn with_moved(program: &Program<'_>, mut resized: Vec<Resized>) -> Vec<Resized> {
    let (module, shapes) = (program.module, program.module.shapes());
    let elements = |shape: ShapeId| shapes.array(shape).and_then(|array| array.elements());
    let sizes: HashSet<u64> = resized.iter().filter_map(|own| elements(own.shape)).collect();
    let mut known: HashSet<ShapeId> = resized.iter().map(|own| own.shape).collect();
    let passes = |opcode| moves(opcode) || opcode == Opcode::AllToAll;
    for row in scheduled(module).filter(|_| !sizes.is_empty()) {
        let is_wide = |row: Row| {
            is_f32(module, row)
                && elements(module.shape(row)).is_some_and(|own| sizes.contains(&own))
        };
        if !is_wide(row) {
            continue;
        }
        let mut trail = Trail::new(row);
        let mut found = vec![module.shape(row)];
        while trail.step(module, passes) {
            let is_array = trail.path().is_empty() && trail.calls().is_empty();
            if is_array && is_wide(trail.row) {
                found.push(module.shape(trail.row));
            }
        }
        if !found.iter().any(|shape| known.contains(shape)) {
            continue;
        }
        for shape in found {
            if known.insert(shape) {
                let bytes = shapes.logical_bytes(shape).unwrap_or(0) / 2;
                resized.push(Resized { shape, bytes });
            }
        }
    }
    resized
}

/// The arrays that have the shape of one of `stacks`, which loops write, by chance.
fn by_chance(program: &Program<'_>, stacks: &HashSet<ShapeId>) -> Vec<Place> {
    let module = program.module;
    let is_stack = |made: Row, row: Row| {
        let made = settle(module, Trail::within(made, &[row]), moves).row;
        matches!(module.opcode(made), Opcode::DynamicUpdateSlice | Opcode::Broadcast)
    };
    let mut found = Vec::new();
    for row in scheduled(module).filter(|row| module.opcode(*row) == Opcode::Fusion) {
        for result in results(module, row).filter(|own| stacks.contains(&own.shape)) {
            if !is_stack(result.made, row) {
                found.push(Place { row, path: result.path });
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

/// The 16-bit copies of the f32 arrays of the shapes `resized`, but those at `kept`.
///
/// A copy is a conversion, or what backward code computes element by element of one such array and converts for
/// matmuls: of 16-bit values, XLA computes it inside the matmuls that read it. It stays where loops read it, as those
/// do that pass shards around a ring, and in another layout.
fn copies(program: &Program<'_>, resized: &[Resized], kept: &[Place]) -> Vec<Spared> {
    let module = program.module;
    let copies = Copies { program, wide: resized.iter().map(|own| own.shape).collect(), kept };
    let mut found = Vec::new();
    for row in scheduled(module).filter(|_| !copies.wide.is_empty()) {
        let mut add = |shape: ShapeId, value: Trail| {
            let array = module.shapes().array(shape);
            let is_narrow = array.is_some_and(|array| is_narrow(array.element_type));
            let from = is_narrow.then(|| copies.source(row, value)).flatten();
            found.extend(from.map(|from| Spared { row, shape, from }));
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

/// The search for copies.
struct Copies<'a, 'p> {
    program: &'a Program<'p>,
    /// The shapes of the f32 arrays.
    wide: HashSet<ShapeId>,
    /// Arrays that have one of these shapes by chance.
    kept: &'a [Place],
}

impl Copies<'_, '_> {
    /// The array that the 16-bit value at `trail`, which `row` passes on, is a copy of.
    fn source(&self, row: Row, trail: Trail) -> Option<Place> {
        let module = self.program.module;
        let copy = settle(module, trail, |opcode| moves(opcode) && opcode != Opcode::Copy);
        let converted = copy.operand(module, 0);
        let mut value = converted.filter(|_| module.opcode(copy.row) == Opcode::Convert)?;
        let maker = copy.calls().first().copied().unwrap_or(copy.row);
        let is_in_matmuls = || {
            let is_backward = |row| self.program.runs(row).phase != Phase::Forward;
            is_backward(maker) && is_backward(row) && !enters_loop(module, maker)
        };
        let mut is_plain = true;
        for _ in 0..MOST_STEPS {
            if let Some(place) = self.held(&value) {
                let is_copy = !self.kept.contains(&place) && (is_plain || is_in_matmuls());
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
            ([fusion], []) => {
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

/// Whether a loop reads what `row` makes, whatever moves it there.
fn enters_loop(module: &Module, row: Row) -> bool {
    let mut rows = vec![row];
    for at in 0..MOST_STEPS {
        let Some(own) = rows.get(at).copied() else { break };
        let users = module.users().get(own.0).iter().take(MOST_USERS);
        for user in users.map(|user| Row(*user)) {
            match module.opcode(user) {
                Opcode::While => return true,
                Opcode::Tuple
                | Opcode::GetTupleElement
                | Opcode::Bitcast
                | Opcode::CopyStart
                | Opcode::CopyDone => rows.push(user),
                _ => {}
            }
        }
    }
    false
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
