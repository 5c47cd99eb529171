//! Tensor kinds of the arrays that a collective moves: weights, gradients of weights, activations.

use crate::flow::origin::{
    DEEPEST_PATH, End, MOST_STEPS, Origins, Path, Place, Places, Through, fan_out, origins_within,
    step,
};
use crate::flow::{Attribution, Phase};
use crate::ir::decode::Alias;
use crate::ir::intern::BuildMix;
use crate::ir::{ElementKind, Module, Opcode, Row};
use hashbrown::{HashMap, HashSet};
use std::cell::{Cell, RefCell};

/// The tensor kind of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Moved {
    /// A parameter of the program or a part of one, possibly converted.
    Weight,
    /// An input of the optimizer, or an array from which results that replace parameters are
    /// computed.
    Gradient,
    /// Any other computed array.
    Activation,
    /// Scalars, constants, integer parameters, and arrays that could not be followed.
    #[default]
    Other,
}

impl Moved {
    /// Every kind, by its code.
    pub const ALL: [Moved; 4] = [Moved::Weight, Moved::Gradient, Moved::Activation, Moved::Other];

    /// The name used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Moved::Weight => "weight",
            Moved::Gradient => "gradient",
            Moved::Activation => "activation",
            Moved::Other => "other",
        }
    }
}

/// One array that a collective moves: an operand, or a part of a concatenation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The row of the array, in the computation of the collective or in a fusion before it.
    pub row: Row,
    /// Bytes on each device.
    pub bytes: u64,
    /// Tensor kind.
    pub moved: Moved,
    /// For a weight, the parameter it comes from; otherwise the row that computes it.
    pub source: Option<Row>,
}

/// Determines the tensor kind of arrays.
pub(super) struct Mover<'a> {
    module: &'a Module,
    attribution: &'a Attribution,
    gradients: Reached,
    /// Remaining steps for following values, shared by all collectives.
    steps: Cell<usize>,
    /// Remaining parts that may be listed separately inside concatenations.
    parts: Cell<usize>,
    /// By row: its tensor kind and source.
    known: RefCell<HashMap<Row, (Moved, Option<Row>), BuildMix>>,
    /// By row: its single origin, looking through conversions.
    computed: RefCell<HashMap<Row, Option<End>, BuildMix>>,
}

/// Step budget for following values: steps per row of the module, and the minimum. The budget
/// bounds the work when many collectives end one long chain.
const STEPS_PER_ROW: usize = 32;
const FEWEST_STEPS: usize = 1 << 20;

impl<'a> Mover<'a> {
    /// `transfers` maps each receive to its send.
    pub fn new(
        module: &'a Module,
        attribution: &'a Attribution,
        transfers: &HashMap<Row, Row, BuildMix>,
    ) -> Self {
        let operands = module.columns().operands.len();
        let steps = module.row_count().saturating_mul(STEPS_PER_ROW).max(FEWEST_STEPS);
        Self {
            module,
            attribution,
            gradients: gradients(module, attribution, transfers),
            steps: Cell::new(steps),
            // Every operand counts once, and once more if collectives share a concatenation.
            parts: Cell::new(operands.saturating_mul(2)),
            known: RefCell::default(),
            computed: RefCell::default(),
        }
    }

    fn origins(&self, row: Row, through: Through) -> Origins {
        let most = self.steps.get().min(MOST_STEPS);
        let mut left = most;
        let origins = origins_within(self.module, row.into(), through, &mut left);
        self.steps.set(self.steps.get() - (most - left));
        origins
    }

    /// The single origin of `row`, looking through conversions; None if there are several or it is
    /// unknown.
    pub fn one_origin(&self, row: Row) -> Option<End> {
        if let Some(known) = self.computed.borrow().get(&row) {
            return *known;
        }
        let through = Through { conversions: true, ..Through::default() };
        let origins = self.origins(row, through);
        let origin = match origins.ends[..] {
            [end] if !origins.is_partial => Some(end),
            _ => None,
        };
        self.computed.borrow_mut().insert(row, origin);
        origin
    }

    /// Whether the result of collective `row` for operand `index` reaches the optimizer's input
    /// element by element.
    pub fn is_gradient(&self, row: Row, index: u32) -> bool {
        self.gradients.holds(&Place { row, path: Path::from_slice(&[index]) })
            || self.gradients.holds_all_of(row)
    }

    /// Appends the arrays that make up `operand` of a collective: the parts of a concatenation, or
    /// the operand itself. `is_gradient`: whether the collective's result is a gradient.
    pub fn pieces(&self, operand: Row, is_gradient: bool, pieces: &mut Vec<Piece>) {
        let module = self.module;
        if let Some(End::Computed(row)) = self.one_origin(operand)
            && module.opcode(row) == Opcode::Concatenate
        {
            let Some(left) = self.parts.get().checked_sub(module.operands(row).len()) else {
                // Too many parts to list, so the tensor kind stays unknown.
                let whole = self.piece(operand, is_gradient);
                pieces.push(Piece { moved: Moved::Other, source: None, ..whole });
                return;
            };
            self.parts.set(left);
            for part in module.operands(row) {
                pieces.push(self.piece(Row(*part), is_gradient));
            }
            return;
        }
        pieces.push(self.piece(operand, is_gradient));
    }

    /// `row` as a single array.
    pub fn piece(&self, row: Row, is_gradient: bool) -> Piece {
        let module = self.module;
        let bytes = module.shapes().logical_bytes(module.shape(row)).unwrap_or(0);
        let known = self.known.borrow().get(&row).copied();
        let (moved, source) = known.unwrap_or_else(|| {
            let traced = self.moved(&self.origins(row, Through::EVERYTHING));
            self.known.borrow_mut().insert(row, traced);
            traced
        });
        let is_scalar = module.elements_column()[row.0 as usize] == 1;
        let moved = match moved {
            _ if is_scalar => Moved::Other,
            Moved::Activation if is_gradient => Moved::Gradient,
            moved => moved,
        };
        Piece { row, bytes, moved, source }
    }

    fn moved(&self, origins: &Origins) -> (Moved, Option<Row>) {
        let module = self.module;
        let mut parameter = None;
        for end in &origins.ends {
            match *end {
                // Results of the optimizer are the next step's weights.
                End::Computed(row) => {
                    let phase = self.attribution.phase[row.0 as usize];
                    let is_new = phase == Phase::Optimizer;
                    let moved = if is_new { Moved::Weight } else { Moved::Activation };
                    return (moved, Some(row));
                }
                End::Parameter(row) => parameter = parameter.or(Some(row)),
                End::Constant(_) => {}
            }
        }
        match parameter {
            Some(row) if !origins.is_partial => {
                let is_weight = is_floating(module, row);
                (if is_weight { Moved::Weight } else { Moved::Other }, Some(row))
            }
            parameter => (Moved::Other, parameter),
        }
    }
}

/// Whether an entry parameter, or the first array in it, is of a floating-point type.
fn is_floating(module: &Module, row: Row) -> bool {
    let shapes = module.shapes();
    let leaf = shapes.leaves(module.shape(row)).next();
    let array = leaf.and_then(|leaf| shapes.array(leaf));
    array.is_some_and(|array| array.element_type.kind() == ElementKind::Float)
}

/// The places that were reached. Most of them are whole results.
struct Reached {
    /// By row: whether its whole result was reached.
    rows: Vec<bool>,
    /// Parts of results.
    parts: HashSet<Place, BuildMix>,
}

impl Reached {
    fn holds_all_of(&self, row: Row) -> bool {
        self.rows.get(row.0 as usize) == Some(&true)
    }

    fn holds(&self, place: &Place) -> bool {
        if place.path.is_empty() {
            self.holds_all_of(place.row)
        } else {
            self.parts.contains(place)
        }
    }

    /// Adds a place; false if it was there.
    fn insert(&mut self, place: &Place) -> bool {
        if !place.path.is_empty() {
            return self.parts.insert(place.clone());
        }
        let row = self.rows.get_mut(place.row.0 as usize);
        row.is_some_and(|is_reached| !std::mem::replace(is_reached, true))
    }
}

/// Limit on the values followed back from the optimizer.
const MOST_VALUES: usize = 1 << 20;

/// Places that reach the optimizer's inputs element by element; without a known optimizer, places
/// that reach results that replace parameters.
///
/// `transfers` maps each receive to its send.
fn gradients(
    module: &Module,
    attribution: &Attribution,
    transfers: &HashMap<Row, Row, BuildMix>,
) -> Reached {
    let is_optimizer = |row: Row| attribution.phase[row.0 as usize] == Phase::Optimizer;
    let mut stack: Vec<Place> = Vec::new();
    for row in module.rows().filter(|row| is_optimizer(*row)) {
        let operands = module.operands(row).iter().map(|operand| Row(*operand));
        stack.extend(operands.filter(|operand| !is_optimizer(*operand)).map(Place::from));
    }
    if stack.is_empty() {
        stack = replacing_results(module);
    }
    let mut seen = Reached { rows: vec![false; module.row_count()], parts: HashSet::default() };
    let mut next = Places::new();
    let mut steps = 0;
    while let Some(place) = stack.pop() {
        if steps >= MOST_VALUES || place.path.len() > DEEPEST_PATH || !seen.insert(&place) {
            continue;
        }
        let row = place.row;
        let many = fan_out(module, row);
        steps += many;
        if many > MOST_STEPS {
            continue;
        }
        if keeps_elements(module.opcode(row)) {
            let mut path = place.path;
            let operands = module.operands(row);
            // A tuple result has one array per operand.
            let range = match path.pop() {
                Some(index) if operands.len() > 1 => index as usize..index as usize + 1,
                Some(index) => {
                    path.push(index);
                    0..operands.len()
                }
                None => 0..operands.len(),
            };
            let operands = operands.get(range).unwrap_or_default().iter();
            stack.extend(
                operands.map(|row| Place { row: Row(*row), path: Path::from_slice(&path) }),
            );
            continue;
        }
        let operand = || module.operands(row).first().map(|row| Row(*row));
        match module.opcode(row) {
            Opcode::RecvDone => {
                stack.extend(operand().map(|row| Place { row, path: place.path }));
                continue;
            }
            Opcode::Recv => {
                let send = transfers.get(&row);
                stack.extend(send.map(|row| Place { row: *row, path: place.path }));
                continue;
            }
            Opcode::Send => {
                stack.extend(operand().map(Place::from));
                continue;
            }
            _ => {}
        }
        next.clear();
        if step(module, &place, Through::EVERYTHING, &mut next).is_none() {
            stack.extend(next.drain(..));
        }
    }
    seen
}

/// The results of the entry that are aliased to a parameter.
fn replacing_results(module: &Module) -> Vec<Place> {
    let aliases = module.aliases().unwrap_or_default();
    let row = Row(module.computation(module.entry()).root);
    let place = |alias: &Alias| {
        let path = alias.output_index.iter().rev().map(|index| u32::try_from(*index).ok());
        Some(Place { row, path: path.collect::<Option<_>>()? })
    };
    aliases.iter().filter_map(place).collect()
}

/// Whether each result element depends only on the operands' elements at the same index (for a
/// collective, also on other devices).
fn keeps_elements(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Add | Multiply
            | Divide
            | Subtract
            | Select
            | Negate
            | Concatenate
            | AllReduce
            | AllReduceStart
            | AllReduceDone
            | ReduceScatter
            | CollectivePermute
            | AllToAll
    )
}
