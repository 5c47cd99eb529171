//! Trip counts of loops: from the compiler's note, or from the condition and the induction
//! variable.
//!
//! Loops are never simulated. A variable that changes by a constant per iteration follows a
//! straight line, and a division gives the iteration in which the line crosses the bound. The trip
//! count is unknown if the variable would wrap around, the bound changes unpredictably or the
//! condition depends on data.

use super::follow::{Place, Reason, TOO_COMPLEX, Tracer};
use super::linear::{Motion, Series};
use super::origin::Path;
use crate::Provenance;
use crate::ir::backend_config::json_integer;
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{CallRole, Module, Opcode, Row};

/// The trip count of a loop: how often its body runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TripCount {
    /// The number of iterations; None if unknown.
    pub count: Option<u64>,
    /// An upper bound; None if unknown. A loop with two conditions of which only one can be
    /// analysed has a bound but no count.
    pub at_most: Option<u64>,
    /// `FromBackendConfig`, `Exact` (inferred from condition and body) or `Unknown`.
    pub provenance: Provenance,
    /// How the count was found, or why it is unknown.
    pub reason: &'static str,
}

impl TripCount {
    fn known(count: u64, provenance: Provenance, reason: Reason) -> Self {
        Self { count: Some(count), at_most: Some(count), provenance, reason }
    }

    fn unknown(reason: Reason, at_most: Option<u64>) -> Self {
        Self { count: None, at_most, provenance: Provenance::Unknown, reason }
    }
}

/// Budget of values followed for one loop.
const BUDGET: usize = 20_000;

/// How often the body of `while` instruction `row` runs per execution of the instruction.
pub fn trip_count(module: &Module, row: Row) -> TripCount {
    noted(module, row).unwrap_or_else(|| infer(&mut Tracer::new(module, BUDGET), row))
}

/// Every `while` of the module in row order, with its trip count per execution.
pub fn trip_counts(module: &Module) -> Vec<(Row, TripCount)> {
    // One budget for all loops keeps the work linear in the text.
    let mut tracer = Tracer::new(module, BUDGET + 64 * module.row_count());
    let loops = module.rows().filter(|row| module.opcode(*row) == Opcode::While);
    loops.map(|row| (row, noted(module, row).unwrap_or_else(|| infer(&mut tracer, row)))).collect()
}

/// The trip count of `row` from the graph alone, ignoring the compiler's note.
pub fn inferred_trip_count(module: &Module, row: Row) -> TripCount {
    infer(&mut Tracer::new(module, BUDGET), row)
}

/// The trip count in `backend_config`: `{"known_trip_count":{"n":"10"}}`, also inside a string.
fn noted(module: &Module, row: Row) -> Option<TripCount> {
    const KEY: &str = "known_trip_count";
    // Most loops of TPU programs have long configurations without it.
    memchr::memmem::find(module.attribute_bytes(row, "backend_config")?, KEY.as_bytes())?;
    let config = module.backend_config_json(row)?;
    let count = json_integer(config.get(KEY)?.get("n")?)?;
    let count = u64::try_from(count).ok()?;
    let reason = "known_trip_count in backend_config";
    Some(TripCount::known(count, Provenance::FromBackendConfig, reason))
}

fn infer(tracer: &mut Tracer<'_>, row: Row) -> TripCount {
    if tracer.module.opcode(row) != Opcode::While {
        return TripCount::unknown("the instruction is not a while", None);
    }
    let Some(condition) = tracer.module.called(row, CallRole::Condition) else {
        return TripCount::unknown("the loop has no condition", None);
    };
    let root = tracer.root_in_loop(row, condition, Path::new());
    match end(tracer, row, root, true, 0) {
        End::After(count) => {
            let reason = "inferred from the condition and the induction variable";
            TripCount::known(count, Provenance::Exact, reason)
        }
        End::Never => TripCount::unknown("the condition never becomes false", None),
        End::Unknown { reason, at_most } => TripCount::unknown(reason, at_most),
    }
}

/// The iteration after which a condition ends its loop.
enum End {
    /// After this many iterations.
    After(u64),
    /// The condition never ends the loop.
    Never,
    Unknown {
        reason: Reason,
        at_most: Option<u64>,
    },
}

fn unknown(reason: Reason) -> End {
    End::Unknown { reason, at_most: None }
}

const MOST_NESTED_CONDITIONS: u32 = 16;

/// The first iteration of loop `row` in which `place`, its condition or a part of the condition,
/// differs from `wanted`.
fn end(tracer: &mut Tracer<'_>, row: Row, place: Place, wanted: bool, depth: u32) -> End {
    if depth > MOST_NESTED_CONDITIONS {
        return unknown(TOO_COMPLEX);
    }
    let place = match tracer.computed(place) {
        Ok(place) => place,
        Err(reason) => return unknown(reason),
    };
    let module = tracer.module;
    let mut part = |index: usize, wanted: bool| match tracer.operand(&place, index) {
        Some(operand) => end(tracer, row, operand, wanted, depth + 1),
        None => unknown("an operand is missing"),
    };
    match module.opcode(place.row) {
        Opcode::Not => part(0, !wanted),
        Opcode::And if wanted => first(part(0, true), part(1, true)),
        Opcode::Or if !wanted => first(part(0, false), part(1, false)),
        Opcode::Constant => match tracer.boolean(place.row) {
            Some(value) if value == wanted => End::Never,
            Some(_) => End::After(0),
            None => unknown("the condition is not a boolean"),
        },
        Opcode::Compare => compare(tracer, row, &place, wanted).unwrap_or_else(unknown),
        _ => unknown("the condition depends on data"),
    }
}

/// A loop with two conditions ends when the first one fails.
fn first(a: End, b: End) -> End {
    match (a, b) {
        (End::After(0), _) | (_, End::After(0)) => End::After(0),
        (End::After(a), End::After(b)) => End::After(a.min(b)),
        (End::Never, other) | (other, End::Never) => other,
        (End::After(count), End::Unknown { reason, at_most })
        | (End::Unknown { reason, at_most }, End::After(count)) => {
            let at_most = Some(at_most.map_or(count, |limit| limit.min(count)));
            End::Unknown { reason, at_most }
        }
        (End::Unknown { reason, at_most: a }, End::Unknown { at_most: b, .. }) => {
            End::Unknown { reason, at_most: a.into_iter().chain(b).min() }
        }
    }
}

fn compare(tracer: &mut Tracer<'_>, row: Row, place: &Place, wanted: bool) -> Result<End, Reason> {
    let text = tracer.module.attribute_bytes(place.row, "direction");
    let direction = text.and_then(|text| decode(b"direction", Opcode::Compare, text).ok());
    let Some(AttributeValue::Word(word)) = direction else {
        return Err("the comparison has no direction");
    };
    let direction = Direction::from_word(word).ok_or("the comparison has no direction")?;
    let direction = if wanted { direction } else { direction.opposite() };
    let mut side = |index: usize| {
        let operand = tracer.operand(place, index).ok_or("an operand is missing")?;
        let value = tracer.linear(operand)?;
        let motion = match value.as_constant() {
            Some(_) => None,
            None => Some(motion(tracer, row, &value.element, 0)?),
        };
        Series::new(value, motion).ok_or(TOO_COMPLEX)
    };
    let (left, right) = (side(0)?, side(1)?);
    let Some(count) = crossing(left.first - right.first, left.slope - right.slope, direction)
    else {
        let constant = left.slope == 0 && right.slope == 0;
        return if constant { Ok(End::Never) } else { Err("the induction variable wraps around") };
    };
    if !left.holds_through(count) || !right.holds_through(count) {
        return Err("the induction variable wraps around");
    }
    u64::try_from(count).map(End::After).map_err(|_| TOO_COMPLEX)
}

const MOST_LAGGING_ELEMENTS: u32 = 8;

/// How element `path` of the state of loop `row` changes by iteration.
fn motion(tracer: &mut Tracer<'_>, row: Row, path: &Path, depth: u32) -> Result<Motion, Reason> {
    if depth > MOST_LAGGING_ELEMENTS {
        return Err(TOO_COMPLEX);
    }
    let step = tracer.step(row, path)?;
    let start = tracer.start(row, path)?;
    let integer_type = step.integer_type;
    let not_constant = "the initial value is not constant";
    let first = start.as_constant().ok_or(not_constant)?;
    if let Some(value) = step.as_constant() {
        if value == first {
            return Ok(Motion { integer_type, first, step: 0, guards: Vec::new() });
        }
        return Err("the body sets the induction variable to a constant");
    }
    if step.factor != 1 {
        return Err("the induction variable does not change by a constant");
    }
    if step.element == *path {
        return Ok(Motion { integer_type, first, step: step.offset, guards: step.guards });
    }
    // The element takes the previous value of another element and so lags by one iteration.
    let leader = motion(tracer, row, &step.element, depth + 1)?;
    let before = leader.first - leader.step + step.offset;
    if leader.integer_type != integer_type
        || integer_type.wrap(before) != first
        || !leader.guards.is_empty()
        || !step.guards.is_empty()
    {
        return Err("the induction variable does not change by a constant");
    }
    Ok(Motion { first, ..leader })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

impl Direction {
    fn from_word(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"LT" => Direction::Less,
            b"LE" => Direction::LessOrEqual,
            b"GT" => Direction::Greater,
            b"GE" => Direction::GreaterOrEqual,
            b"EQ" => Direction::Equal,
            b"NE" => Direction::NotEqual,
            _ => return None,
        })
    }

    fn opposite(self) -> Self {
        match self {
            Direction::Less => Direction::GreaterOrEqual,
            Direction::LessOrEqual => Direction::Greater,
            Direction::Greater => Direction::LessOrEqual,
            Direction::GreaterOrEqual => Direction::Less,
            Direction::Equal => Direction::NotEqual,
            Direction::NotEqual => Direction::Equal,
        }
    }
}

/// The first iteration in which `start + slope * iteration` compared with zero no longer satisfies
/// `direction`; None if it always does.
fn crossing(start: i128, slope: i128, direction: Direction) -> Option<i128> {
    match direction {
        Direction::Less if start >= 0 => Some(0),
        Direction::Less => (slope > 0).then(|| (-start + slope - 1) / slope),
        Direction::LessOrEqual if start > 0 => Some(0),
        Direction::LessOrEqual => (slope > 0).then(|| -start / slope + 1),
        Direction::Greater => crossing(-start, -slope, Direction::Less),
        Direction::GreaterOrEqual => crossing(-start, -slope, Direction::LessOrEqual),
        Direction::Equal if start != 0 => Some(0),
        Direction::Equal => (slope != 0).then_some(1),
        Direction::NotEqual if start == 0 => Some(0),
        Direction::NotEqual => {
            (slope != 0 && start % slope == 0 && -start / slope > 0).then(|| -start / slope)
        }
    }
}
