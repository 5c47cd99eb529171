//! Parameters that could be donated but are not: results of the same shape and layout are computed
//! from them, and these results do not take the buffer of any parameter.
//!
//! A step computes the new state from the old state element by element (`w - rate * update`) or by
//! updating slices (caches). Every such result is followed back to the parameters, and each
//! parameter is matched with one result. Results of the backward pass are gradients, which do not
//! replace a parameter. Without a backward pass, element-by-element results are activations rather
//! than state, unless they replace most of the parameters.

use crate::flow::origin::{
    DEEPEST_PATH, End, MOST_STEPS, Path, Place, Places, Through, fan_out, step,
};
use crate::flow::{Attribution, Phase};
use crate::ir::decode::{Alias, HeaderValue, ShapeIndex, decode_header};
use crate::ir::intern::BuildMix;
use crate::ir::size::ShapeCost;
use crate::ir::{Module, Opcode, Row, ShapeId};
use hashbrown::{HashMap, HashSet};
use smallvec::smallvec;

/// An array of a parameter that could be donated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Donatable {
    /// The parameter.
    pub row: Row,
    /// Bytes on a device.
    pub bytes: i64,
    /// The parameter's number and the path to the array, with the path of the result that would take
    /// its memory.
    pub alias: Alias,
}

/// Limit on the steps of all walks together.
const MOST_STEPS_TOGETHER: usize = 1 << 21;
/// Limit on the arrays among parameters and results; beyond it, nothing is matched.
const MOST_ARRAYS: usize = 1 << 16;

/// An array of a parameter or of the result.
struct Array {
    /// The place of the array, with tuple indices innermost first.
    place: Place,
    shape: ShapeId,
    /// The numbers that identify the array in the header: the parameter number, then the path from
    /// the outermost tuple.
    index: ShapeIndex,
}

/// The parameters of `module` that could be donated, in the order of their rows.
///
/// Bytes are those of the shapes, which cover all devices before partitioning.
pub fn donatable(module: &Module, attribution: &Attribution) -> Vec<Donatable> {
    let (taken_results, given) = donations(module);
    let mut parameters: Vec<Array> = Vec::new();
    for row in module.parameters(module.entry()) {
        let number = module.parameter_number(row).and_then(|n| i64::try_from(n).ok());
        let Some(number) = number else { continue };
        arrays(module, row, smallvec![number], &mut parameters);
    }
    let root = module.computation(module.entry());
    if root.rows().is_empty() || parameters.len() > MOST_ARRAYS {
        return Vec::new();
    }
    let mut results: Vec<Array> = Vec::new();
    arrays(module, Row(root.root), ShapeIndex::new(), &mut results);
    if results.len() > MOST_ARRAYS {
        return Vec::new();
    }
    parameters.retain(|array| !given.contains(&array.index));
    results.retain(|array| !taken_results.contains(&array.index));
    if parameters.is_empty() || results.is_empty() {
        return Vec::new();
    }
    let costs = module.shape_costs();
    let sizes = parameters.iter().map(|array| bytes(costs, array.shape));
    let whole = sizes.fold(0, i64::saturating_add);
    let gradients = |row: Row| attribution.phase.get(row.0 as usize) == Some(&Phase::Backward);
    let pairs = matched(module, &parameters, &results, costs, &|row| !gradients(row));
    let is_step =
        attribution.phase.iter().any(|phase| matches!(phase, Phase::Backward | Phase::Optimizer));
    if is_step {
        return pairs;
    }
    // Without phases, a training step is recognised by the parameters that it replaces besides
    // caches.
    let caches = matched(module, &parameters, &results, costs, &|_| false);
    let sum = |entries: &[Donatable]| {
        entries.iter().map(|entry| entry.bytes).fold(0, i64::saturating_add)
    };
    let replaced = sum(&pairs).saturating_sub(sum(&caches));
    if pairs.len() > caches.len() + 1 && replaced > whole / 2 { pairs } else { caches }
}

/// Bytes on a device of all parameters of `module`, counted like [`Donatable::bytes`].
pub fn parameter_bytes(module: &Module) -> i64 {
    let costs = module.shape_costs();
    let leaves = module.parameters(module.entry()).into_iter();
    let leaves = leaves.flat_map(|row| module.shapes().leaves(module.shape(row)));
    leaves.map(|leaf| bytes(costs, leaf)).fold(0, i64::saturating_add)
}

/// Whether the array that a row computes may be new state.
type IsNew<'a> = &'a dyn Fn(Row) -> bool;

fn bytes(costs: &[ShapeCost], shape: ShapeId) -> i64 {
    costs.get(shape.0 as usize).map_or(0, |cost| cost.size.max(0))
}

type Indices = HashSet<ShapeIndex, BuildMix>;

/// The paths of results that take a parameter's buffer, and the donated arrays: parameter numbers
/// with paths.
fn donations(module: &Module) -> (Indices, Indices) {
    let (mut results, mut parameters) = (Indices::default(), Indices::default());
    let with = |number: i64, path: &[i64]| -> ShapeIndex {
        std::iter::once(number).chain(path.iter().copied()).collect()
    };
    for alias in module.aliases().unwrap_or_default() {
        parameters.insert(with(alias.number, &alias.index));
        results.insert(alias.output_index.clone());
    }
    const KEY: &str = "buffer_donor";
    let donors = module.header_attribute(KEY).map(|span| module.bytes(span));
    let donors = donors.and_then(|value| decode_header(KEY.as_bytes(), value).ok());
    if let Some(HeaderValue::BufferDonors(donors)) = donors {
        parameters.extend(donors.iter().map(|donor| with(donor.parameter, &donor.index)));
    }
    (results, parameters)
}

/// Appends the arrays of the result of `row` that have dimensions, with their indices after
/// `index`.
fn arrays(module: &Module, row: Row, index: ShapeIndex, found: &mut Vec<Array>) {
    let shapes = module.shapes();
    let mut stack = vec![(module.shape(row), index.clone(), Path::new())];
    while let Some((shape, index, path)) = stack.pop() {
        if found.len() > MOST_ARRAYS || path.len() > DEEPEST_PATH {
            return;
        }
        if let Some(elements) = shapes.tuple(shape) {
            for (at, element) in elements.iter().enumerate().rev() {
                let mut index = ShapeIndex::from_slice(&index);
                index.push(at as i64);
                let mut path = Path::from_slice(&path);
                path.insert(0, at as u32);
                stack.push((*element, index, path));
            }
        } else if shapes.array(shape).is_some_and(|array| array.rank() > 0) {
            found.push(Array { place: Place { row, path }, shape, index });
        }
    }
}

/// Matches each parameter with a result of its shape that is computed from it.
fn matched(
    module: &Module,
    parameters: &[Array],
    results: &[Array],
    costs: &[ShapeCost],
    is_new: IsNew<'_>,
) -> Vec<Donatable> {
    let mut by_place: HashMap<&Place, usize, BuildMix> = HashMap::default();
    let mut shapes: HashSet<ShapeId, BuildMix> = HashSet::default();
    for (number, array) in parameters.iter().enumerate() {
        by_place.insert(&array.place, number);
        shapes.insert(array.shape);
    }
    let mut order: Vec<&Array> =
        results.iter().filter(|array| shapes.contains(&array.shape)).collect();
    order.sort_by_key(|array| std::cmp::Reverse(bytes(costs, array.shape)));
    let mut steps = MOST_STEPS_TOGETHER;
    let mut seen = Seen::new(module);
    // For each result the parameters that it could replace, and its path.
    let mut sources: Vec<(Vec<usize>, &[i64])> = Vec::with_capacity(order.len());
    let mut demand = vec![0u32; parameters.len()];
    for result in order {
        let reached = reached(module, &result.place, is_new, &mut steps, &mut seen);
        let mut of_shape: Vec<usize> = reached
            .iter()
            .filter_map(|place| by_place.get(place).copied())
            .filter(|number| parameters[*number].shape == result.shape)
            .collect();
        of_shape.sort_unstable();
        of_shape.dedup();
        of_shape.iter().for_each(|number| demand[*number] += 1);
        sources.push((of_shape, &result.index));
    }
    // Results with the fewest sources choose first, and choose the parameter that the fewest other
    // results could take: a new moment depends on its old value alone, a new weight on its old
    // value and all moments.
    sources.sort_by_key(|(of_shape, _)| of_shape.len());
    // By parameter: the path of the result that takes its memory.
    let mut taken_by: Vec<Option<&[i64]>> = vec![None; parameters.len()];
    for (of_shape, path) in sources {
        let free = of_shape.into_iter().filter(|number| taken_by[*number].is_none());
        if let Some(number) = free.min_by_key(|number| demand[*number]) {
            taken_by[number] = Some(path);
        }
    }
    let entry = |(array, path): (&Array, Option<&[i64]>)| {
        let (number, index) = array.index.split_first()?;
        let (output_index, index) = (path?.into(), index.into());
        let alias = Alias { output_index, number: *number, index, must_alias: false };
        Some(Donatable { row: array.place.row, bytes: bytes(costs, array.shape), alias })
    };
    let mut donatable: Vec<Donatable> = parameters.iter().zip(taken_by).filter_map(entry).collect();
    donatable.sort_by_key(|entry| entry.row);
    donatable
}

/// The places that one walk has seen; most of them are whole results.
struct Seen {
    /// The number of the walk.
    walk: u32,
    /// By row: the last walk that saw its whole result.
    rows: Vec<u32>,
    /// Parts of results.
    parts: HashSet<Place, BuildMix>,
}

impl Seen {
    fn new(module: &Module) -> Self {
        Self { walk: 0, rows: vec![0; module.row_count()], parts: HashSet::default() }
    }

    /// Starts another walk.
    fn clear(&mut self) {
        self.walk += 1;
        self.parts.clear();
    }

    /// Adds a place; false if this walk saw it before.
    fn insert(&mut self, place: &Place) -> bool {
        if !place.path.is_empty() {
            return self.parts.insert(place.clone());
        }
        let row = self.rows.get_mut(place.row.0 as usize);
        row.is_some_and(|last| std::mem::replace(last, self.walk) != self.walk)
    }
}

/// The places in entry parameters from which the array at `place` is computed, looking through
/// instructions that pass values on, updates of slices and elementwise instructions. Empty if
/// `is_new` rejects the row that computes the array.
fn reached(
    module: &Module,
    place: &Place,
    is_new: IsNew<'_>,
    steps: &mut usize,
    seen: &mut Seen,
) -> Vec<Place> {
    let mut ends = Vec::new();
    // A parameter that is returned unchanged does not count as new state.
    let mut is_changed = false;
    // Whether the row that computes the array may be new state; None until the row is reached.
    let mut elementwise = None;
    let mut own = MOST_STEPS.min(*steps);
    let before = own;
    seen.clear();
    let mut stack: Places = smallvec![place.clone()];
    while let Some(place) = stack.pop() {
        let cost = fan_out(module, place.row);
        if own < cost || place.path.len() > DEEPEST_PATH {
            break;
        }
        if !seen.insert(&place) {
            continue;
        }
        own -= cost;
        is_changed |= module.opcode(place.row) == Opcode::DynamicUpdateSlice;
        match step(module, &place, Through::EVERYTHING, &mut stack) {
            Some(End::Parameter(_)) => ends.push(place),
            Some(End::Computed(row)) => {
                let elementwise = *elementwise.get_or_insert_with(|| is_new(row));
                let before = stack.len();
                stack.extend(sources_of(module, row, elementwise).map(Place::from));
                is_changed |= stack.len() > before;
            }
            Some(End::Constant(_)) | None => {}
        }
    }
    *steps -= before - own;
    if !is_changed {
        ends.clear();
    }
    ends
}

/// The operands that the array in `row` replaces element by element.
fn sources_of(module: &Module, row: Row, elementwise: bool) -> impl Iterator<Item = Row> + '_ {
    let opcode = module.opcode(row);
    let operands = module.operands(row);
    let all = match opcode {
        Opcode::Scatter => &operands[..operands.len().min(1)],
        _ if elementwise && opcode.is_elementwise() => operands,
        _ => &[],
    };
    let shapes = module.shapes();
    let elements = |row: Row| shapes.array(module.shape(row)).and_then(|array| array.elements());
    let wanted = elements(row);
    all.iter().map(|row| Row(*row)).filter(move |row| elements(*row) == wanted)
}
