//! Phases of a program without operation names, from its data flow alone.
//!
//! A program trains if some results replace weights, and another result, the loss, depends on these
//! weights but not on the matmuls that compute the new weights. In such a program
//!
//! * rows that the loss depends on are forward work;
//! * a row that computes a result from the parameter that the result replaces is optimizer work;
//! * all other rows that the new weights depend on, and that depend on data, are backward work,
//!   recomputed rows included.
//!
//! If no result is a loss, the rows that all new weights depend on are forward work, provided that
//! there are also matmuls that only some new weights depend on. A program without any result that
//! may be a gradient or a new weight is all forward work. The phases of any other program stay
//! unknown.

use super::moved::{moves, step_back};
use super::origin::Place;
use super::phase::Phase;
use crate::ir::{ComputationId, ElementKind, Module, Opcode, Row, ShapeId};

/// The evidence for the phases of nameless rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Basis {
    /// Operation names give phases to some rows.
    #[default]
    Names,
    /// No name gives a phase; the data flow shows a training step.
    Training,
    /// No name gives a phase; the data flow shows no gradients.
    Inference,
    /// No name gives a phase, and the data flow does not tell forward from backward work.
    Unknown,
}

impl Basis {
    /// The word in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Basis::Names => "names",
            Basis::Training => "training",
            Basis::Inference => "inference",
            Basis::Unknown => "unknown",
        }
    }
}

/// Limit on the results, and on the new weights, that are followed one by one.
const MOST: usize = 64;

struct Step<'a> {
    module: &'a Module,
    /// The entry's first row, and its number of rows.
    first: u32,
    count: usize,
    /// By row of the entry: whether it multiplies matrices or convolves.
    products: Vec<bool>,
    /// By row of the entry: the results that depend on it, one bit for each of `followed`.
    results: Vec<u64>,
    /// By row of the entry: the new weights that depend on it, one bit for each weight that is
    /// followed.
    weights: Vec<u64>,
    /// By row of the entry: whether any result that replaces a parameter depends on it.
    is_for_state: Vec<bool>,
}

/// A result of the entry.
struct Made {
    /// The row that computes the result.
    maker: Row,
    /// The parameter that the result replaces.
    replaces: Option<Row>,
    shape: ShapeId,
}

/// The phases of the entry's rows, from `first` on; `is_data` says which parameters hold data and
/// `ids` lists the computations, callers first.
pub(super) fn phases(
    module: &Module,
    ids: &[ComputationId],
    is_data: &[bool],
) -> (Vec<Phase>, Basis) {
    let rows = module.computation(module.entry()).rows();
    let unknown = (vec![Phase::Unattributed; rows.len()], Basis::Unknown);
    if rows.is_empty() {
        return unknown;
    }
    let made = results(module);
    let mut step = Step {
        module,
        first: rows.start,
        count: rows.len(),
        products: products(module, ids),
        results: vec![0; rows.len()],
        weights: vec![0; rows.len()],
        is_for_state: vec![false; rows.len()],
    };
    let depends = step.depends(is_data);
    let others: Vec<&Made> =
        made.iter().filter(|made| made.replaces.is_none()).take(MOST).collect();
    let seeds = others.iter().enumerate().map(|(bit, made)| (made.maker, 1 << bit));
    step.results = step.reach(seeds);
    let replaced = || made.iter().filter(|made| made.replaces.is_some());
    let for_state = step.reach(replaced().map(|made| (made.maker, 1)));
    step.is_for_state = for_state.iter().map(|bits| *bits != 0).collect();
    // New weights: results that matmuls contribute to and that replace a parameter.
    let trained: Vec<&Made> =
        replaced().filter(|made| is_float(module, made.shape)).take(MOST).collect();
    let seeds = trained.iter().enumerate().map(|(bit, made)| (made.maker, 1 << bit));
    step.weights = step.reach(seeds);
    let forward = step.forward(&others, &trained, &depends);
    let Some(forward) = forward else {
        let may_be_gradient = made.iter().enumerate().any(|(index, own)| {
            step.may_be_gradient(own)
                && !made.iter().enumerate().any(|(other, of)| {
                    other != index && !step.may_be_gradient(of) && step.leads(own.maker, of.maker)
                })
        });
        if may_be_gradient {
            return unknown;
        }
        return (vec![Phase::Forward; rows.len()], Basis::Inference);
    };
    let mut phases = unknown.0;
    for (at, row) in rows.clone().enumerate() {
        let opcode = module.opcode(Row(row));
        if matches!(opcode, Opcode::Parameter | Opcode::Constant | Opcode::Iota)
            || moves(module, Row(row))
        {
            continue;
        }
        phases[at] = if forward[at] {
            Phase::Forward
        } else if depends[at] {
            Phase::Backward
        } else {
            Phase::Unattributed
        };
    }
    for made in replaced() {
        let Some(at) = step.at(made.maker) else { continue };
        if !forward[at] && made.replaces.is_some_and(|parameter| step.reads(made.maker, parameter))
        {
            phases[at] = Phase::Optimizer;
        }
    }
    (phases, Basis::Training)
}

impl Step<'_> {
    fn at(&self, row: Row) -> Option<usize> {
        let at = row.0.checked_sub(self.first)? as usize;
        (at < self.count).then_some(at)
    }

    /// By row: whether it depends on a parameter that holds data.
    fn depends(&self, is_data: &[bool]) -> Vec<bool> {
        let module = self.module;
        let mut depends = vec![false; self.count];
        for at in 0..self.count {
            let row = Row(self.first + at as u32);
            depends[at] = if module.opcode(row) == Opcode::Parameter {
                let number = module.parameter_number(row);
                let number = number.and_then(|number| usize::try_from(number).ok());
                number.and_then(|number| is_data.get(number)).copied().unwrap_or(true)
            } else {
                let operands = module.operands(row).iter().filter_map(|row| self.at(Row(*row)));
                operands.into_iter().any(|operand| depends[operand])
            };
        }
        depends
    }

    /// By row: the union of the bits of the seeds that depend on it.
    fn reach(&self, seeds: impl Iterator<Item = (Row, u64)>) -> Vec<u64> {
        let mut bits = vec![0; self.count];
        for (row, bit) in seeds {
            if let Some(at) = self.at(row) {
                bits[at] |= bit;
            }
        }
        for at in (0..self.count).rev() {
            let own = bits[at];
            if own == 0 {
                continue;
            }
            for operand in self.module.operands(Row(self.first + at as u32)) {
                // An operand that comes later in the text belongs to a program that cannot run.
                if let Some(operand) = self.at(Row(*operand)).filter(|operand| *operand < at) {
                    bits[operand] |= own;
                }
            }
        }
        bits
    }

    /// Whether the result of `later` depends on `row`.
    fn leads(&self, row: Row, later: Row) -> bool {
        let bits = self.reach(std::iter::once((later, 1)));
        row != later && self.at(row).is_some_and(|at| bits[at] != 0)
    }

    /// By row of the entry: whether the row is forward work. None if nothing shows that the program
    /// trains.
    fn forward(&self, others: &[&Made], trained: &[&Made], depends: &[bool]) -> Option<Vec<bool>> {
        let every = self.weights.iter().fold(0, |all, bits| all | bits);
        if every == 0 {
            return None;
        }
        let some_need = |at: usize| self.weights[at] != 0 && self.weights[at] != every;
        let rows = 0..self.count;
        // The results that do not depend on matmuls which only some new weights depend on.
        let spoiled = rows
            .clone()
            .filter(|at| self.products[*at] && depends[*at] && some_need(*at))
            .fold(0, |all, at| all | self.results[at]);
        let mut losses = 0u64;
        for bit in 0..others.len() {
            let bit = 1u64 << bit;
            if spoiled & bit == 0 && self.trains(bit, trained) {
                losses |= bit;
            }
        }
        if losses != 0 {
            return Some(self.results.iter().map(|bits| bits & losses != 0).collect());
        }
        let is_split = rows.clone().any(|at| self.products[at] && depends[at] && some_need(at));
        let is_common = |at: usize| self.weights[at] == every && depends[at];
        let has_common = rows.clone().any(|at| self.products[at] && is_common(at));
        (is_split && has_common && trained.len() > 1).then(|| rows.map(is_common).collect())
    }

    /// Whether most new weights replace weights that result `bit` depends on, and depend on matmuls
    /// that result `bit` does not.
    fn trains(&self, bit: u64, trained: &[&Made]) -> bool {
        let leads = |row: Row| self.at(row).is_some_and(|at| self.results[at] & bit != 0);
        // New weights that depend on a matmul on which the result does not depend.
        let beside = (0..self.count)
            .filter(|at| self.products[*at] && self.results[*at] & bit == 0)
            .fold(0, |all, at| all | self.weights[at]);
        let is_weight = |made: &Made| made.replaces.is_some_and(leads);
        let weights = trained.iter().filter(|made| is_weight(made)).count();
        let learn = trained.iter().enumerate().filter(|(index, made)| {
            is_weight(made) && !leads(made.maker) && beside & (1 << index) != 0
        });
        let learn = learn.count();
        learn > 0 && 2 * learn >= weights
    }

    /// Whether the shape of `made` fits a floating-point matrix among the parameters: the same
    /// rank, and dimensions that are equal, or multiples or fractions because of different
    /// sharding.
    fn may_be_gradient(&self, made: &Made) -> bool {
        let module = self.module;
        let shapes = module.shapes();
        let Some(own) = shapes.array(made.shape) else { return true };
        if own.rank() < 2 || own.element_type.kind() != ElementKind::Float {
            return false;
        }
        let fits = |left: Option<i64>, right: Option<i64>| match (left, right) {
            (Some(left @ 1..), Some(right @ 1..)) => left % right == 0 || right % left == 0,
            _ => true,
        };
        let rows = (self.first..self.first + self.count as u32).map(Row);
        rows.filter(|row| module.opcode(*row) == Opcode::Parameter).any(|row| {
            shapes.leaves(module.shape(row)).take(MOST * MOST).any(|leaf| {
                shapes.array(leaf).is_some_and(|array| {
                    let sizes = array.dimensions().map(|size| size.bound());
                    let mut pairs = sizes.zip(own.dimensions().map(|size| size.bound()));
                    array.rank() == own.rank()
                        && array.element_type.kind() == ElementKind::Float
                        && pairs.all(|(left, right)| fits(left, right))
                })
            })
        })
    }

    /// Whether `row` reads `parameter`, through rows that move it.
    fn reads(&self, row: Row, parameter: Row) -> bool {
        let operands = self.module.operands(row).iter().map(|row| Row(*row));
        operands.into_iter().any(|operand| source(self.module, operand).row == parameter)
    }
}

/// The place from which the value of `row` was moved.
fn source(module: &Module, row: Row) -> Place {
    let mut at = Place::from(row);
    for _ in 0..MOST {
        if !step_back(module, &mut at) {
            break;
        }
    }
    at
}

fn is_float(module: &Module, shape: ShapeId) -> bool {
    let array = module.shapes().array(shape);
    array.is_some_and(|array| array.element_type.kind() == ElementKind::Float && array.rank() > 0)
}

/// The results of the entry.
fn results(module: &Module) -> Vec<Made> {
    let entry = module.computation(module.entry());
    let root = Row(entry.root);
    let parameters: Vec<Row> =
        entry.rows().map(Row).filter(|row| module.opcode(*row) == Opcode::Parameter).collect();
    let numbered = |number: i64| {
        let number = u64::try_from(number).ok();
        let is = |row: &&Row| module.parameter_number(**row) == number;
        parameters.iter().find(is).copied()
    };
    let aliases = module.aliases().unwrap_or_default();
    let operands = match module.opcode(root) {
        Opcode::Tuple => module.operands(root).to_vec(),
        _ => vec![root.0],
    };
    let made = |(index, operand): (usize, u32)| {
        let place = source(module, Row(operand));
        let shape = module.shape(Row(operand));
        let alias = aliases.iter().find(|alias| {
            alias.output_index[..] == [index as i64] || alias.output_index.is_empty()
        });
        let replaces = match alias {
            Some(alias) => numbered(alias.number),
            None if aliases.is_empty() => replaced(module, place.row, shape),
            None => None,
        };
        Made { maker: place.row, replaces, shape }
    };
    operands.into_iter().enumerate().map(made).collect()
}

/// A parameter with the result's shape that is read by the row that computes the result.
fn replaced(module: &Module, maker: Row, shape: ShapeId) -> Option<Row> {
    if !is_float(module, shape) {
        return None;
    }
    let array = module.shapes().array(shape)?;
    let operands = module.operands(maker).iter().take(MOST).map(|row| Row(*row));
    operands.map(|row| source(module, row).row).find(|row| {
        let own = module.shapes().array(module.shape(*row));
        module.opcode(*row) == Opcode::Parameter && own.is_some_and(|own| own.is_compatible(&array))
    })
}

/// By row of the entry: whether it multiplies matrices or convolves.
fn products(module: &Module, ids: &[ComputationId]) -> Vec<bool> {
    let mut has = vec![false; module.computations().len()];
    let is_product = |row: Row, has: &[bool]| match module.opcode(row) {
        Opcode::Dot | Opcode::Convolution => true,
        Opcode::CustomCall => {
            let target = module.attribute_bytes(row, "custom_call_target").unwrap_or_default();
            target == b"\"tpu_custom_call\"" || target.windows(4).any(|part| part == b"gemm")
        }
        _ => module.calls(row).iter().any(|call| has[call.computation.0 as usize]),
    };
    // Callees first.
    for id in ids.iter().rev() {
        let mut rows = module.computation(*id).rows();
        has[id.0 as usize] = rows.any(|row| is_product(Row(row), &has));
    }
    let rows = module.computation(module.entry()).rows();
    rows.map(|row| is_product(Row(row), &has)).collect()
}
