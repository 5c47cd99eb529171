//! Residuals: values that forward code computes and backward code reads.

use super::described::describe;
use crate::cost::{Backend, Cost, device_sizes};
use crate::flow::moved::{moves, step_back, wrapped};
use crate::flow::origin::{End, Place, Through, origins};
use crate::flow::{Attribution, Phase, Whose};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, ElementType, HOST_SPACE, Module, Opcode, Row, ShapeId};
use hashbrown::HashMap;

/// The kind of a residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ResidualKind {
    /// A converted or rearranged copy of parameters, which could be recomputed from them.
    WeightCopy,
    /// The result of an all-gather of parameters.
    GatheredWeight,
    /// The result of an all-gather of a computed value.
    GatheredActivation,
    /// Any other computed value.
    Activation,
}

impl ResidualKind {
    /// Every kind, by its code.
    pub const ALL: [ResidualKind; 4] = [
        ResidualKind::WeightCopy,
        ResidualKind::GatheredWeight,
        ResidualKind::GatheredActivation,
        ResidualKind::Activation,
    ];

    /// The name used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            ResidualKind::WeightCopy => "weight_copy",
            ResidualKind::GatheredWeight => "gathered_weight",
            ResidualKind::GatheredActivation => "gathered_activation",
            ResidualKind::Activation => "activation",
        }
    }
}

/// A value that forward code computes and backward code reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residual {
    /// The part of a result that holds the value; for residuals of a scan, a part of the loop's
    /// result.
    pub place: Place,
    /// Its shape.
    pub shape: ShapeId,
    /// Bytes in the device's layout; -1 if unknown.
    pub bytes: i64,
    /// The farthest memory space that the value passes between its producer and its readers: 5 (the
    /// host) is farther than 0 (HBM), and 0 is farther than any other.
    pub memory_space: i64,
    /// The first and the last row that read the value after the forward pass.
    pub uses: (Row, Row),
    /// Number of rows of the computation between the row that makes the value and the last row that
    /// reads it.
    pub span: u32,
    /// Its kind.
    pub kind: ResidualKind,
    /// The row that computes the kept value, before rows that only pass it on.
    pub made_by: Row,
    /// The row that computes the value before conversions (for residuals of a scan, a row in the
    /// loop's body), or the parameter that the value copies.
    pub source: Row,
    /// For a copy of a weight in a wider type: the weight's element type.
    pub widened_from: Option<ElementType>,
    /// If a loop stacks it: the trip count, if known.
    pub stacked: Option<Option<u64>>,
    /// Whether the name of the producer marks it as forward work; if not, the only evidence is that
    /// it runs before all backward work.
    pub is_named: bool,
    /// Whether an all-gather is still writing the value: a fusion in forward code starts the
    /// gather, and a fusion in backward code ends it.
    pub is_in_flight: bool,
}

/// The residuals of `module`, by computation and row. Parameters, and rows that only pass
/// parameters on, do not count, because they are kept anyway.
pub fn residuals(module: &Module, cost: &Cost, attribution: &Attribution) -> Vec<Residual> {
    let whose = attribution.whose(module);
    let mut finder = Finder {
        module,
        attribution,
        whose,
        sizes: device_sizes(module, Backend::of_module(module)),
        invariant: HashMap::default(),
        before: HashMap::default(),
    };
    let mut residuals = Vec::new();
    for id in (0..module.computations().len() as u32).map(ComputationId) {
        if is_scheduled_by_itself(module, id) {
            finder.of_computation(id, &mut residuals);
        }
    }
    let mut steps = MOST_STEPS_OF_ALL;
    residuals.retain_mut(|residual| describe(module, cost, attribution, residual, &mut steps));
    residuals.sort_by(|a, b| {
        let (a, b) = (&a.place, &b.place);
        a.row.cmp(&b.row).then_with(|| a.path.iter().rev().cmp(b.path.iter().rev()))
    });
    residuals
}

/// Whether the rows of computation `id` are scheduled one by one: it is not inside a fusion and is
/// not applied to elements.
fn is_scheduled_by_itself(module: &Module, id: ComputationId) -> bool {
    use Opcode::{Call, Conditional, While};
    let callers = module.callers(id).iter().map(|row| module.opcode(Row(*row)));
    id == module.entry()
        || callers.into_iter().any(|opcode| matches!(opcode, Call | Conditional | While))
}

/// Limit on the elements of nested tuples that are followed per computation.
const MOST_ELEMENTS: usize = 1 << 20;
/// Limit on the passing rows that are followed.
pub(super) const MOST_STEPS: usize = 4096;
/// Limit on the steps to the origins of all residuals together; beyond it their kinds stay unknown.
const MOST_STEPS_OF_ALL: usize = 1 << 22;

struct Finder<'a> {
    module: &'a Module,
    attribution: &'a Attribution,
    whose: &'a Whose,
    /// By shape: bytes.
    sizes: Vec<i64>,
    /// Whether a loop leaves an element of its state unchanged.
    invariant: HashMap<Place, bool, BuildMix>,
    /// By element of the result of a loop that leaves it unchanged: its producer, and the memory spaces
    /// that it passes before the loop.
    before: HashMap<Place, (Option<Place>, Spaces), BuildMix>,
}

impl Finder<'_> {
    fn phase(&self, row: Row) -> Phase {
        self.whose.phase[row.0 as usize]
    }

    fn is_late(&self, row: Row) -> bool {
        matches!(self.phase(row), Phase::Backward | Phase::Recompute)
    }

    /// The first row of the backward part of computation `id`, and whether that row is the turn of
    /// the schedule.
    fn first_late(&self, id: ComputationId) -> Option<(u32, bool)> {
        let turn = self.whose.turn.get(id.0 as usize).copied().flatten();
        let mut rows = self.module.computation(id).rows();
        turn.map(|row| (row.0, true)).or_else(|| {
            let is_first = |row: &u32| self.is_late(Row(*row)) && !moves(self.module, Row(*row));
            rows.find(is_first).map(|row| (row, false))
        })
    }

    fn of_computation(&mut self, id: ComputationId, residuals: &mut Vec<Residual>) {
        let module = self.module;
        let rows = module.computation(id).rows();
        let Some((first_late, is_turn)) = self.first_late(id) else { return };
        let mut here: HashMap<Place, usize, BuildMix> = HashMap::default();
        let mut opened = 0;
        let mut stack: Vec<Place> = Vec::new();
        // By row after the turn: the last late row whose operands depend on it.
        let mut replaced_for = vec![None; (rows.end - first_late) as usize];
        for late in (first_late..rows.end).map(Row) {
            if !self.is_late(late) || moves(module, late) {
                continue;
            }
            stack.extend(module.operands(late).iter().map(|row| Place::from(Row(*row))));
            while let Some(place) = stack.pop() {
                opened += 1;
                if opened > MOST_ELEMENTS {
                    return;
                }
                if module.opcode(place.row) == Opcode::Tuple && place.path.is_empty() {
                    stack.extend(module.operands(place.row).iter().map(|row| Row(*row).into()));
                    continue;
                }
                let mut spaces = Spaces::default();
                let Some(made) = self.maker(place, &mut spaces) else { continue };
                if self.is_late(made.row) || is_free(module, made.row) {
                    continue;
                }
                if is_turn && made.row.0 >= first_late {
                    // Forward work that runs after the turn: its operands were kept.
                    let before = &mut replaced_for[(made.row.0 - first_late) as usize];
                    if before.replace(late) != Some(late) {
                        let operands = module.operands(made.row).iter();
                        stack.extend(operands.map(|row| Place::from(Row(*row))));
                    }
                    continue;
                }
                let is_forward = self.phase(made.row) == Phase::Forward;
                let is_before =
                    self.phase(made.row) == Phase::Unattributed && made.row.0 < first_late;
                if !is_forward && !is_before {
                    continue;
                }
                if let Some(index) = here.get(&made) {
                    let residual: &mut Residual = &mut residuals[*index];
                    residual.uses.1 = late;
                    residual.span = late.0.saturating_sub(residual.place.row.0);
                    spaces.add(residual.memory_space);
                    residual.memory_space = spaces.farthest();
                    continue;
                }
                let Some(shape) = shape_at(module, &made) else { continue };
                if module.shapes().tuple(shape).is_some() {
                    continue;
                }
                here.insert(made.clone(), residuals.len());
                residuals.push(Residual {
                    shape,
                    bytes: self.sizes[shape.0 as usize],
                    memory_space: spaces.farthest(),
                    uses: (late, late),
                    span: late.0.saturating_sub(made.row.0),
                    kind: ResidualKind::Activation,
                    made_by: made.row,
                    source: made.row,
                    widened_from: None,
                    stacked: None,
                    is_named: self.attribution.phase[made.row.0 as usize] == Phase::Forward,
                    is_in_flight: false,
                    place: made,
                });
            }
        }
    }

    /// The producer of the value at `place`, looking through rows of the computation that only move
    /// the value, and the memory spaces on the way.
    fn maker(&mut self, place: Place, spaces: &mut Spaces) -> Option<Place> {
        let module = self.module;
        let mut at = place;
        // The loops that hand the value on, with the spaces before each: what lies before a loop is
        // found once, however many loops come after it.
        let mut passed: Vec<(Place, Spaces)> = Vec::new();
        let mut made = None;
        for _ in 0..MOST_STEPS {
            crate::ir::work::count(1);
            passed.last_mut().map_or(&mut *spaces, |(_, own)| own).add_place(module, &at);
            if step_back(module, &mut at) {
                continue;
            }
            if matches!(module.opcode(at.row), Opcode::GetTupleElement | Opcode::Tuple) {
                break;
            }
            if module.opcode(at.row) != Opcode::While || !self.is_invariant(&at) {
                made = Some(at);
                break;
            }
            if let Some((known, own)) = self.before.get(&at) {
                made.clone_from(known);
                passed.push((at, *own));
                break;
            }
            let Some(state) = module.operands(at.row).first() else { break };
            let state = Place { row: Row(*state), path: at.path.clone() };
            passed.push((std::mem::replace(&mut at, state), Spaces::default()));
        }
        let mut all = Spaces::default();
        for (place, own) in passed.into_iter().rev() {
            all.merge(own);
            self.before.insert(place, (made.clone(), all));
        }
        spaces.merge(all);
        made
    }

    /// Whether every iteration of a loop passes element `path` of its state on unchanged.
    fn is_invariant(&mut self, place: &Place) -> bool {
        if let Some(known) = self.invariant.get(place) {
            return *known;
        }
        let module = self.module;
        let body = module.called(place.row, CallRole::Body);
        let is = body.is_some_and(|body| {
            let root = Place { row: Row(module.computation(body).root), path: place.path.clone() };
            // A provisional answer, which stops the recursion if malformed text makes a loop
            // contain itself.
            self.invariant.insert(place.clone(), false);
            let made = self.maker(root, &mut Spaces::default());
            made.is_some_and(|made| {
                module.opcode(made.row) == Opcode::Parameter && made.path == place.path
            })
        });
        self.invariant.insert(place.clone(), is);
        is
    }
}

/// The memory spaces that a value passes.
#[derive(Clone, Copy, Debug, Default)]
struct Spaces {
    farthest: Option<i64>,
}

impl Spaces {
    fn add_place(&mut self, module: &Module, place: &Place) {
        let array = shape_at(module, place).and_then(|shape| module.shapes().array(shape));
        if let Some(array) = array {
            self.add(array.layout.map_or(0, |layout| layout.memory_space));
        }
    }

    fn add(&mut self, space: i64) {
        let distance = |space: i64| match space {
            HOST_SPACE => 2,
            0 => 1,
            _ => 0,
        };
        if self.farthest.is_none_or(|known| distance(space) > distance(known)) {
            self.farthest = Some(space);
        }
    }

    fn merge(&mut self, other: Spaces) {
        other.farthest.into_iter().for_each(|space| self.add(space));
    }

    fn farthest(self) -> i64 {
        self.farthest.unwrap_or(0)
    }
}

/// Whether `row` is kept anyway, or is computed without operands.
fn is_free(module: &Module, row: Row) -> bool {
    match module.opcode(row) {
        Opcode::Parameter | Opcode::Constant | Opcode::Iota | Opcode::PartitionId => true,
        Opcode::Broadcast => {
            let ends = origins(module, row.into(), Through::default()).ends;
            matches!(ends[..], [End::Constant(_)])
        }
        _ => false,
    }
}

pub(super) fn shape_at(module: &Module, place: &Place) -> Option<ShapeId> {
    let shapes = module.shapes();
    let shape = module.shape(place.row);
    place
        .path
        .iter()
        .rev()
        .try_fold(shape, |shape, index| shapes.tuple(shape)?.get(*index as usize).copied())
}

/// The stack that `place` completes, because XLA may move the last write of a stack out of the
/// loop; otherwise `place` itself.
pub(super) fn stack_of(module: &Module, place: &Place) -> Place {
    if wrapped(module, place.row) != Some(Opcode::DynamicUpdateSlice) {
        return place.clone();
    }
    let mut at = place.clone();
    for _ in 0..MOST_STEPS {
        let first = match module.opcode(at.row) {
            Opcode::AsyncDone | Opcode::AsyncUpdate | Opcode::AsyncStart => {
                module.operands(at.row).first()
            }
            _ => None,
        };
        match first {
            Some(row) => at = Place::from(Row(*row)),
            None if step_back(module, &mut at) => {}
            None => break,
        }
    }
    at
}

/// Whether a loop writes a slice of an element of its state in each iteration.
pub(super) fn is_stacked(module: &Module, place: &Place) -> bool {
    let origins =
        origins(module, place.clone(), Through { conversions: true, ..Through::default() });
    origins.ends.iter().any(|end| match end {
        End::Computed(row) => module.opcode(*row) == Opcode::DynamicUpdateSlice,
        _ => false,
    })
}

/// Whether `row` is, or ends, an all-gather.
pub(super) fn gathers(module: &Module, row: Row) -> bool {
    match module.opcode(row) {
        Opcode::AllGather | Opcode::AllGatherStart | Opcode::AllGatherDone => true,
        Opcode::CustomCall => {
            let target = module.attribute_bytes(row, "custom_call_target");
            let operands = module.operands(row).iter().map(|row| module.opcode(Row(*row)));
            target == Some(b"\"AsyncCollectiveDone\"")
                && operands.into_iter().any(|opcode| opcode == Opcode::AllGather)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::residuals;
    use crate::ir::work::steps_of;
    use crate::{cost, flow, parse, text};

    /// Numbers of residuals and of steps where forward loops hand on what one row makes, and backward
    /// rows read every element of every loop's result.
    fn found(loops: usize, width: usize) -> (usize, usize) {
        let list =
            |item: &dyn Fn(usize) -> String| (0..width).map(item).collect::<Vec<_>>().join(", ");
        let lines = |item: &dyn Fn(usize) -> String| (0..width).map(item).collect::<String>();
        let shape = format!("({})", list(&|_| "f32[8]".to_owned()));
        let taken = lines(&|at| format!("g{at} = f32[8] get-tuple-element(p), index={at}\n"));
        let next = list(&|at| format!("g{at}"));
        let first = list(&|_| "y".to_owned());
        let mut program = format!(
            "HloModule m, is_scheduled=true\nb {{\np = {shape} parameter(0)\n{taken}ROOT t = {shape} \
             tuple({next})\n}}\nc {{\nq = {shape} parameter(0)\nROOT l = pred[] constant(true)\n}}\n\
             ENTRY e {{\nx = f32[8] parameter(0)\ny = f32[8] sine(x), \
             metadata={{op_name=\"jit(s)/jvp(a)/sin\"}}\nw0 = {shape} tuple({first})\n"
        );
        for at in 0..loops {
            program += &format!(
                "w{} = {shape} while(w{at}), condition=c, body=b, \
                 metadata={{op_name=\"jit(s)/jvp(a)/while\"}}\n",
                at + 1
            );
        }
        for at in 1..=loops {
            program += &lines(&|k| {
                format!(
                    "h{at}.{k} = f32[8] get-tuple-element(w{at}), index={k}\na{at}.{k} = f32[8] \
                     add(h{at}.{k}, x), metadata={{op_name=\"jit(s)/transpose(jvp(a))/add\"}}\n"
                )
            });
        }
        program += "ROOT r = f32[8] copy(x)\n}\n";
        let source = text::Source::from_slice(program.as_bytes());
        let module = parse(source, &crate::Options::default()).unwrap();
        let facts = cost::Facts::of_module(&module);
        let cost = cost::cost(&module, &facts, &cost::Options::default());
        let attribution = flow::attribution(&module, &flow::AttributionOptions::default());
        let (steps, found) = steps_of(|| residuals(&module, &cost, &attribution));
        (found.len(), steps)
    }

    #[test]
    fn loops_that_hand_a_value_on_take_linear_work() {
        let ((few, less), (many, more)) = (found(100, 2), found(400, 2));
        assert_eq!((few, many), (1, 1));
        assert!(more < 5 * less, "{less} steps for 100 loops, {more} for 400");
    }
}
