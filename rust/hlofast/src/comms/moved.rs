//! What a collective moves: weights, gradients of weights, activations.

use crate::flow::origin::{
    DEEPEST_PATH, End, MOST_STEPS, Origins, Place, Through, fan_out, origins_within, step,
};
use crate::flow::{Attribution, Phase};
use crate::ir::decode::{Alias, HeaderValue, decode_header};
use crate::ir::intern::BuildMix;
use crate::ir::{ElementKind, Module, Opcode, Row};
use hashbrown::{HashMap, HashSet};
use std::cell::{Cell, RefCell};

/// What an array is to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Moved {
    /// A parameter of the program (or part of one), as it is or converted.
    Weight,
    /// What the optimizer is given, or what the results that replace parameters are made of.
    Gradient,
    /// Anything else that is computed.
    Activation,
    /// Scalars, constants, integer parameters, and what could not be followed.
    #[default]
    Other,
}

impl Moved {
    /// Every one, by its code.
    pub const ALL: [Moved; 4] = [Moved::Weight, Moved::Gradient, Moved::Activation, Moved::Other];

    /// The word tables use.
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
    /// The row it is, in the computation of the collective or in a fusion before it.
    pub row: Row,
    /// Its bytes on each device.
    pub bytes: u64,
    /// What it is.
    pub moved: Moved,
    /// Of a weight: the parameter it is or is part of. Otherwise the row that computes it.
    pub source: Option<Row>,
}

/// Tells what arrays are.
pub(super) struct Mover<'a> {
    module: &'a Module,
    attribution: &'a Attribution,
    gradients: HashSet<Place, BuildMix>,
    /// Steps that may still be taken to follow values, of all collectives together.
    steps: Cell<usize>,
    /// Arrays that may still be told apart inside concatenations.
    parts: Cell<usize>,
    /// By row: where it comes from, as a whole.
    known: RefCell<HashMap<Row, (Moved, Option<Row>), BuildMix>>,
    /// By row: what computes it, conversions aside.
    computed: RefCell<HashMap<Row, Option<End>, BuildMix>>,
}

/// Steps for each row of the module that values are followed at least: many collectives at the end
/// of one long chain are not worth the length of it each.
const STEPS_PER_ROW: usize = 32;
const FEWEST_STEPS: usize = 1 << 20;

impl<'a> Mover<'a> {
    /// `transfers` are the collectives that are written as a send and a receive.
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
            // Each operand once, and once more where collectives share a concatenation.
            parts: Cell::new(operands.saturating_mul(2)),
            known: RefCell::default(),
            computed: RefCell::default(),
        }
    }

    fn origins(&self, row: Row, through: Through) -> Origins {
        let most = self.steps.get().min(MOST_STEPS);
        let mut left = most;
        let found = origins_within(self.module, row.into(), through, &mut left);
        self.steps.set(self.steps.get() - (most - left));
        found
    }

    /// The one row that `row` is but for conversions; None if there are several or it is not known.
    pub fn one_origin(&self, row: Row) -> Option<End> {
        if let Some(known) = self.computed.borrow().get(&row) {
            return *known;
        }
        let through = Through { conversions: true, ..Through::default() };
        let found = self.origins(row, through);
        let one = match found.ends[..] {
            [end] if !found.is_partial => Some(end),
            _ => None,
        };
        self.computed.borrow_mut().insert(row, one);
        one
    }

    /// Whether what collective `row` makes of its operand `index` becomes, element by element, what
    /// the optimizer is given.
    pub fn is_gradient(&self, row: Row, index: u32) -> bool {
        let element = Place { row, path: vec![index] };
        self.gradients.contains(&element) || self.gradients.contains(&Place::from(row))
    }

    /// The arrays that `operand` of a collective puts together. `is_gradient` says what the
    /// collective's result is.
    pub fn pieces(&self, operand: Row, is_gradient: bool, pieces: &mut Vec<Piece>) {
        let module = self.module;
        if let Some(End::Computed(row)) = self.one_origin(operand)
            && module.opcode(row) == Opcode::Concatenate
        {
            let Some(left) = self.parts.get().checked_sub(module.operands(row).len()) else {
                // Too much to tell apart, so what most of it is stays unknown.
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

    /// `row` as a whole.
    pub fn piece(&self, row: Row, is_gradient: bool) -> Piece {
        let module = self.module;
        let bytes = module.shapes().logical_bytes(module.shape(row)).unwrap_or(0);
        let known = self.known.borrow().get(&row).copied();
        let (moved, source) = known.unwrap_or_else(|| {
            let found = self.moved(&self.origins(row, Through::EVERYTHING));
            self.known.borrow_mut().insert(row, found);
            found
        });
        let is_scalar = module.elements_column()[row.0 as usize] == 1;
        let moved = match moved {
            _ if is_scalar => Moved::Other,
            Moved::Activation if is_gradient => Moved::Gradient,
            other => other,
        };
        Piece { row, bytes, moved, source }
    }

    fn moved(&self, found: &Origins) -> (Moved, Option<Row>) {
        let module = self.module;
        let mut parameter = None;
        for end in &found.ends {
            match *end {
                // The optimizer makes the next step's weights.
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
            Some(row) if !found.is_partial => {
                let is_weight = is_floating(module, row);
                (if is_weight { Moved::Weight } else { Moved::Other }, Some(row))
            }
            other => (Moved::Other, other),
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

/// How many values are followed back from the optimizer.
const MOST_VALUES: usize = 1 << 20;

/// What becomes, element by element, what the optimizer is given; if nothing is known to be an
/// optimizer, what the results are made of that replace parameters.
///
/// `transfers` gives for each receive the send whose array comes back.
fn gradients(
    module: &Module,
    attribution: &Attribution,
    transfers: &HashMap<Row, Row, BuildMix>,
) -> HashSet<Place, BuildMix> {
    let is_optimizer = |row: Row| attribution.phase[row.0 as usize] == Phase::Optimizer;
    let mut stack: Vec<Place> = Vec::new();
    for row in module.rows().filter(|row| is_optimizer(*row)) {
        let operands = module.operands(row).iter().map(|operand| Row(*operand));
        stack.extend(operands.filter(|operand| !is_optimizer(*operand)).map(Place::from));
    }
    if stack.is_empty() {
        stack = replacing_results(module);
    }
    let mut seen: HashSet<Place, BuildMix> = HashSet::default();
    let mut next = Vec::new();
    let mut steps = 0;
    while let Some(place) = stack.pop() {
        if steps >= MOST_VALUES || place.path.len() > DEEPEST_PATH || !seen.insert(place.clone()) {
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
            // A result of several arrays has one for each operand.
            let range = match path.pop() {
                Some(index) if operands.len() > 1 => index as usize..index as usize + 1,
                Some(index) => {
                    path.push(index);
                    0..operands.len()
                }
                None => 0..operands.len(),
            };
            let operands = operands.get(range).unwrap_or_default().iter();
            stack.extend(operands.map(|row| Place { row: Row(*row), path: path.clone() }));
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
            stack.append(&mut next);
        }
    }
    seen
}

/// The results of the entry that take the place of a parameter.
fn replacing_results(module: &Module) -> Vec<Place> {
    const KEY: &str = "input_output_alias";
    let value = module.header_attribute(KEY).map(|span| module.bytes(span));
    let value = value.and_then(|value| decode_header(KEY.as_bytes(), value).ok());
    let Some(HeaderValue::Aliases(aliases)) = value else { return Vec::new() };
    let row = Row(module.computation(module.entry()).root);
    let place = |alias: &Alias| {
        let path = alias.output_index.iter().rev().map(|index| u32::try_from(*index).ok());
        Some(Place { row, path: path.collect::<Option<_>>()? })
    };
    aliases.iter().filter_map(place).collect()
}

/// Whether each element of the result is made of the operands' elements at the same place (or, of
/// a collective, at that of other devices).
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
