//! Traces where a value comes from, through instructions that only pass it on and across calls.
//!
//! A computation is followed to all its callers, so the answer for a shared computation includes
//! the ends of all callers.

use super::markers::is_marker;
use crate::ir::intern::BuildMix;
use crate::ir::{Call, CallRole, Module, Opcode, Row};
use hashbrown::HashSet;
use smallvec::{SmallVec, smallvec};

/// Limit on the steps of one query, and on the nesting of tuples.
pub(crate) const MOST_STEPS: usize = 4096;
pub(crate) const DEEPEST_PATH: usize = 32;

/// Tuple indices, innermost first. Few tuples are nested, so that most paths need no allocation.
pub type Path = SmallVec<[u32; 4]>;

/// Places still to follow; mostly few.
pub(crate) type Places = SmallVec<[Place; 4]>;

/// A part of a row's result.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The row.
    pub row: Row,
    /// Tuple indices, innermost first; empty for the whole result.
    pub path: Path,
}

impl Clone for Place {
    /// Copies the path in one piece; `SmallVec::clone` copies it number by number.
    #[inline]
    fn clone(&self) -> Self {
        Place { row: self.row, path: Path::from_slice(&self.path) }
    }
}

impl From<Row> for Place {
    fn from(row: Row) -> Place {
        Place { row, path: Path::new() }
    }
}

/// Instructions to look through, besides tuples, calls, loops and barriers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Through {
    /// Instructions that keep every element: converts, copies, bitcasts, reshapes, transposes,
    /// pads.
    pub conversions: bool,
    /// Slices, and updates of slices.
    pub slices: bool,
    /// All-gathers.
    pub gathers: bool,
}

impl Through {
    /// Looks through all of these instructions.
    pub const EVERYTHING: Through = Through { conversions: true, slices: true, gathers: true };
}

/// Where following a value ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A parameter of the entry computation or of a computation that nothing calls.
    Parameter(Row),
    /// A constant or a broadcast constant.
    Constant(Row),
    /// The row that computes the value.
    Computed(Row),
}

/// The origins of a value.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// The distinct ends, in the order found.
    pub ends: SmallVec<[End; 2]>,
    /// Whether the value was too complex to follow, so that ends may be missing.
    pub is_partial: bool,
}

/// The ends of `place`.
pub fn origins(module: &Module, place: Place, through: Through) -> Origins {
    let mut steps = MOST_STEPS;
    origins_within(module, place, through, &mut steps)
}

/// The ends of `place`, found in at most `steps` steps; deducts the steps taken.
pub(crate) fn origins_within(
    module: &Module,
    place: Place,
    through: Through,
    steps: &mut usize,
) -> Origins {
    let mut origins = Origins::default();
    // Most values pass only a few places.
    const FEW: usize = 16;
    let mut few: SmallVec<[Place; FEW]> = SmallVec::new();
    let mut seen: HashSet<Place, BuildMix> = HashSet::default();
    let mut stack: Places = smallvec![place];
    while let Some(place) = stack.pop() {
        if few.contains(&place) || seen.contains(&place) {
            continue;
        }
        let cost = fan_out(module, place.row);
        if *steps < cost || place.path.len() > DEEPEST_PATH {
            origins.is_partial = true;
            break;
        }
        *steps -= cost;
        let before = stack.len();
        match step(module, &place, through, &mut stack) {
            Some(end) if !origins.ends.contains(&end) => origins.ends.push(end),
            Some(_) => {}
            // Visit the first operand first.
            None => stack[before..].reverse(),
        }
        if stack.is_empty() {
            break;
        }
        if few.len() < FEW {
            few.push(place);
        } else {
            if seen.is_empty() {
                seen.reserve(4 * FEW);
            }
            seen.insert(place);
        }
    }
    origins
}

/// Number of places, at least 1, to which a step back from `row` may lead. A parameter leads to all
/// callers.
pub(crate) fn fan_out(module: &Module, row: Row) -> usize {
    let calls = |row: Row| module.calls(row).len();
    let places = match module.opcode(row) {
        Opcode::Parameter => {
            let callers = module.callers(module.computation_of(row));
            // The number of callers alone may exceed the limit.
            match callers.len() {
                many if many > MOST_STEPS => many,
                _ => callers.iter().map(|caller| calls(Row(*caller))).sum(),
            }
        }
        Opcode::CustomCall if is_many(module, row) => module.operands(row).len(),
        opcode if !opcode.may_call() => 1,
        _ => calls(row),
    };
    places.max(1)
}

/// Appends the places whose value `place` receives unchanged to `next`, or returns the end.
pub(crate) fn step(
    module: &Module,
    place: &Place,
    through: Through,
    next: &mut Places,
) -> Option<End> {
    let before = next.len();
    let end = hand_on(module, place, through, next);
    end.or_else(|| (next.len() == before).then_some(End::Computed(place.row)))
}

/// Like `step`, but returns None for rows that compute.
fn hand_on(module: &Module, place: &Place, through: Through, next: &mut Places) -> Option<End> {
    use Opcode::*;
    let row = place.row;
    let operand = |index: usize, path: Path| {
        module.operands(row).get(index).map(|operand| Place { row: Row(*operand), path })
    };
    let callee = |role: fn(CallRole) -> bool| {
        let calls = module.calls(row).iter().filter(move |call| role(call.role));
        calls.map(|call| Place {
            row: Row(module.computation(call.computation).root),
            path: Path::from_slice(&place.path),
        })
    };
    let same = || Path::from_slice(&place.path);
    match module.opcode(row) {
        GetTupleElement => {
            let mut path = same();
            path.push(u32::try_from(module.tuple_index(row)?).ok()?);
            add(next, operand(0, path));
        }
        Tuple => {
            let mut path = same();
            if let Some(index) = path.pop() {
                add(next, operand(index as usize, path));
            }
        }
        OptBarrier | Domain | AddDependency => add(next, operand(0, same())),
        CopyStart => {
            let mut path = same();
            if path.pop().is_some_and(|index| index < 2) {
                add(next, operand(0, path));
            }
        }
        CopyDone => {
            let mut path = same();
            path.push(0);
            add(next, operand(0, path));
        }
        AsyncUpdate => add(next, operand(0, same())),
        AsyncDone => {
            let mut path = same();
            path.push(1);
            add(next, operand(0, path));
        }
        AsyncStart => {
            let mut path = same();
            match path.pop() {
                Some(0) => {
                    if let Some(index) = path.pop() {
                        add(next, operand(index as usize, path));
                    }
                }
                Some(1) => {
                    let roots = module.calls(row).iter();
                    next.extend(roots.map(|call| Place {
                        row: Row(module.computation(call.computation).root),
                        path: Path::from_slice(&path),
                    }));
                }
                _ => {}
            }
        }
        Call | Fusion => next.extend(callee(|role| {
            matches!(role, CallRole::Calls | CallRole::ToApply | CallRole::Called)
        })),
        // The body's parameter also leads to the loop's initial state.
        While => next.extend(callee(|role| role == CallRole::Body)),
        Conditional => next.extend(callee(|role| {
            let branches =
                [CallRole::Branch, CallRole::TrueComputation, CallRole::FalseComputation];
            branches.contains(&role)
        })),
        CustomCall if is_marker(module, row) => add(next, operand(0, same())),
        CustomCall => return tpu_call(module, place, through, next),
        Parameter => {
            let id = module.computation_of(row);
            let number = module.parameter_number(row).and_then(|n| usize::try_from(n).ok());
            let callers = module.callers(id);
            if callers.is_empty() {
                return Some(End::Parameter(row));
            }
            for caller in callers.iter().map(|caller| Row(*caller)) {
                let number = number?;
                let calls = module.calls(caller).iter().enumerate();
                for (index, call) in calls.filter(|(_, call)| call.computation == id) {
                    let given = argument(module, caller, call, index, number);
                    add(next, given.map(|row| Place { row, path: same() }));
                }
                if let Some(body) = module.called(caller, CallRole::Body) {
                    let root = Row(module.computation(body).root);
                    next.push(Place { row: root, path: same() });
                }
            }
        }
        Bitcast | Convert | Copy | Reshape | Transpose | ReducePrecision | Pad
            if through.conversions =>
        {
            add(next, operand(0, same()));
        }
        Slice | DynamicSlice if through.slices => add(next, operand(0, same())),
        DynamicUpdateSlice if through.slices => {
            add(next, operand(0, same()));
            add(next, operand(1, same()));
        }
        AllGather if through.gathers && module.operands(row).len() == 1 => {
            add(next, operand(0, same()));
        }
        AllGatherDone if through.gathers => {
            let mut path = same();
            path.push(1);
            add(next, operand(0, path));
        }
        AllGatherStart if through.gathers => {
            let mut path = same();
            path.pop();
            let index = if module.operands(row).len() > 1 { path.pop()? } else { 0 };
            add(next, operand(index as usize, path));
        }
        Constant | Iota => return Some(End::Constant(row)),
        Broadcast => {
            let source = Row(*module.operands(row).first()?);
            if matches!(module.opcode(source), Constant) {
                return Some(End::Constant(row));
            }
        }
        _ => {}
    }
    None
}

#[inline]
fn add(next: &mut Places, place: Option<Place>) {
    if let Some(place) = place {
        next.push(place);
    }
}

/// Whether `row` is a TPU compiler call that passes on several values.
fn is_many(module: &Module, row: Row) -> bool {
    let target = module.attribute_bytes(row, "custom_call_target");
    matches!(target, Some(b"\"ConcatBitcast\"" | b"\"AsyncCollectiveDone\""))
}

/// Appends the places whose value a result of a TPU compiler call receives unchanged.
fn tpu_call(module: &Module, place: &Place, through: Through, next: &mut Places) -> Option<End> {
    let operands = || module.operands(place.row).iter().map(|operand| Row(*operand));
    match module.attribute_bytes(place.row, "custom_call_target")? {
        // Slices that were fetched one by one are joined into their array.
        b"\"ConcatBitcast\"" if through.slices => {
            next.extend(operands().map(|row| Place { row, path: Path::from_slice(&place.path) }));
        }
        // The borders of `shard_map`: each result is the share of one device of an operand, or the whole.
        b"\"xla.sdy.GlobalToLocalShape\"" | b"\"xla.sdy.LocalToGlobalShape\"" => {
            let mut path = Path::from_slice(&place.path);
            let is_many = module.operands(place.row).len() > 1;
            let index = if is_many { path.pop()? as usize } else { 0 };
            next.extend(operands().nth(index).map(|row| Place { row, path }));
        }
        // A buffer without content.
        b"\"AllocateBuffer\"" => return Some(End::Constant(place.row)),
        // The start of an asynchronous collective returns its operand, then its result.
        b"\"AsyncCollectiveStart\"" => {
            let mut path = Path::from_slice(&place.path);
            let sent = operands().next()?;
            let row = match path.pop()? {
                0 => Row(*module.operands(sent).first()?),
                1 if through.gathers => sent,
                _ => return None,
            };
            next.push(Place { row, path });
        }
        // The end of an asynchronous collective has the collective among its operands.
        b"\"AsyncCollectiveDone\"" if through.gathers => {
            let gathers = operands().filter(|row| module.opcode(*row) == Opcode::AllGather);
            next.extend(gathers.map(|row| Place { row, path: Path::from_slice(&place.path) }));
        }
        _ => {}
    }
    None
}

/// The operand of `caller` that becomes parameter `number` of `call`; `place` is the index of
/// `call` among the caller's calls.
fn argument(module: &Module, caller: Row, call: &Call, place: usize, number: usize) -> Option<Row> {
    let index = match (module.opcode(caller), call.role) {
        (Opcode::Fusion | Opcode::Call | Opcode::AsyncStart | Opcode::CustomCall, _) => number,
        (Opcode::While, _) if number == 0 => 0,
        (Opcode::Conditional, CallRole::TrueComputation) if number == 0 => 1,
        (Opcode::Conditional, CallRole::FalseComputation) if number == 0 => 2,
        (Opcode::Conditional, _) if number == 0 => 1 + place,
        _ => return None,
    };
    module.operands(caller).get(index).map(|row| Row(*row))
}
