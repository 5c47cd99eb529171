//! What forward code computes and backward code reads: kept in memory from one to the other.

use crate::cost::{Backend, Cost, device_sizes};
use crate::flow::origin::{End, Place, Through, origins};
use crate::flow::{Attribution, Phase};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, ElementType, Module, Opcode, Row, ShapeId};
use hashbrown::HashMap;

/// What a residual is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ResidualKind {
    /// A converted or rearranged copy of parameters: it could be made again from what is there.
    WeightCopy,
    /// What an all-gather of parameters makes.
    GatheredWeight,
    /// What an all-gather of a computed value makes.
    GatheredActivation,
    /// Anything else that is computed.
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

    /// The word tables use.
    pub fn as_str(self) -> &'static str {
        match self {
            ResidualKind::WeightCopy => "weight_copy",
            ResidualKind::GatheredWeight => "gathered_weight",
            ResidualKind::GatheredActivation => "gathered_activation",
            ResidualKind::Activation => "activation",
        }
    }
}

/// A value that forward code makes and backward code reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residual {
    /// What makes it, in the computation where it is kept: of a scan's residuals the loop.
    pub place: Place,
    /// Its shape.
    pub shape: ShapeId,
    /// Its bytes in the device's layout; -1 if unknown.
    pub bytes: i64,
    /// The first and the last row that read it after the forward pass.
    pub uses: (Row, Row),
    /// Rows of its computation between the one that makes it and the last that reads it.
    pub span: u32,
    /// What it is.
    pub kind: ResidualKind,
    /// The row that computes it as it is kept, before what only hands it on.
    pub made_by: Row,
    /// The row that computes what is kept, conversions looked through (of a scan's residuals, in the loop's body), or the
    /// parameter that it copies.
    pub source: Row,
    /// Of a copy of a weight in a wider type: the weight's element type.
    pub widened_from: Option<ElementType>,
    /// A loop stacks it: how often that runs, if known.
    pub stacked: Option<Option<u64>>,
    /// Whether names say that it is forward work. Otherwise it only stands before all backward
    /// work.
    pub is_named: bool,
    /// It is what an all-gather is still writing: a fusion of forward code has started it, one of
    /// backward code ends it.
    pub is_in_flight: bool,
}

/// The residuals of `module`, by computation and row. Parameters, and what only hands them on,
/// are none: they are kept in any case.
pub fn residuals(module: &Module, cost: &Cost, attribution: &Attribution) -> Vec<Residual> {
    let mut finder = Finder {
        module,
        attribution,
        sizes: device_sizes(module, Backend::of_module(module)),
        invariant: HashMap::default(),
    };
    let mut found = Vec::new();
    for id in (0..module.computations().len() as u32).map(ComputationId) {
        if is_scheduled_by_itself(module, id) {
            finder.of_computation(id, &mut found);
        }
    }
    found.retain_mut(|residual| describe(module, cost, attribution, residual));
    found.sort_by(|a, b| {
        let path = |residual: &'_ Residual| residual.place.path.iter().rev().copied().collect();
        let paths: (Vec<u32>, Vec<u32>) = (path(a), path(b));
        a.place.row.cmp(&b.place.row).then_with(|| paths.0.cmp(&paths.1))
    });
    found
}

/// Whether the rows of computation `id` run one by one: it is no fusion's, and nothing that is
/// applied to elements.
fn is_scheduled_by_itself(module: &Module, id: ComputationId) -> bool {
    use Opcode::{Call, Conditional, While};
    let callers = module.callers(id).iter().map(|row| module.opcode(Row(*row)));
    id == module.entry()
        || callers.into_iter().any(|opcode| matches!(opcode, Call | Conditional | While))
}

/// Tuples in tuples are opened up to this many elements per computation.
const MOST_ELEMENTS: usize = 1 << 20;
/// How many rows that hand a value on are looked through.
const MOST_STEPS: usize = 4096;

struct Finder<'a> {
    module: &'a Module,
    attribution: &'a Attribution,
    /// By shape.
    sizes: Vec<i64>,
    /// Whether a loop leaves an element of its state alone.
    invariant: HashMap<Place, bool, BuildMix>,
}

impl Finder<'_> {
    fn phase(&self, row: Row) -> Phase {
        self.attribution.phase[row.0 as usize]
    }

    fn is_late(&self, row: Row) -> bool {
        matches!(self.phase(row), Phase::Backward | Phase::Recompute)
    }

    fn of_computation(&mut self, id: ComputationId, found: &mut Vec<Residual>) {
        let module = self.module;
        let rows = module.computation(id).rows();
        let Some(first_late) = rows.clone().find(|row| self.is_late(Row(*row))) else { return };
        let mut here: HashMap<Place, usize, BuildMix> = HashMap::default();
        let mut opened = 0;
        for late in (first_late..rows.end).map(Row) {
            if !self.is_late(late) || hands_on(module.opcode(late)) {
                continue;
            }
            let mut stack: Vec<Place> =
                module.operands(late).iter().map(|row| Place::from(Row(*row))).collect();
            while let Some(place) = stack.pop() {
                opened += 1;
                if opened > MOST_ELEMENTS {
                    return;
                }
                if module.opcode(place.row) == Opcode::Tuple && place.path.is_empty() {
                    stack.extend(module.operands(place.row).iter().map(|row| Row(*row).into()));
                    continue;
                }
                let Some(made) = self.maker(place) else { continue };
                let phase = self.phase(made.row);
                let is_named = phase == Phase::Forward;
                let is_before = phase == Phase::Unattributed && made.row.0 < first_late;
                if !is_named && !is_before || is_free(module, made.row) {
                    continue;
                }
                if let Some(index) = here.get(&made) {
                    let residual: &mut Residual = &mut found[*index];
                    residual.uses.1 = late;
                    residual.span = late.0.saturating_sub(residual.place.row.0);
                    continue;
                }
                let Some(shape) = shape_at(module, &made) else { continue };
                if module.shapes().tuple(shape).is_some() {
                    continue;
                }
                here.insert(made.clone(), found.len());
                found.push(Residual {
                    shape,
                    bytes: self.sizes[shape.0 as usize],
                    uses: (late, late),
                    span: late.0.saturating_sub(made.row.0),
                    kind: ResidualKind::Activation,
                    made_by: made.row,
                    source: made.row,
                    widened_from: None,
                    stacked: None,
                    is_named,
                    is_in_flight: false,
                    place: made,
                });
            }
        }
    }

    /// What makes `place`, looking through what hands it on within its computation.
    fn maker(&mut self, place: Place) -> Option<Place> {
        let module = self.module;
        let mut at = place;
        for _ in 0..MOST_STEPS {
            let first = module.operands(at.row).first().map(|row| Row(*row));
            match module.opcode(at.row) {
                Opcode::GetTupleElement => {
                    at.path.push(u32::try_from(module.tuple_index(at.row)?).ok()?);
                    at.row = first?;
                }
                Opcode::Tuple => {
                    let index = at.path.pop()?;
                    at.row = Row(*module.operands(at.row).get(index as usize)?);
                }
                Opcode::CopyDone => {
                    at.path.push(0);
                    at.row = first?;
                }
                Opcode::CopyStart => {
                    at.path.pop()?;
                    at.row = first?;
                }
                Opcode::OptBarrier | Opcode::Bitcast | Opcode::Copy | Opcode::Domain => {
                    at.row = first?;
                }
                Opcode::CustomCall if crate::flow::markers::is_marker(module, at.row) => {
                    at.row = first?;
                }
                Opcode::While if self.is_invariant(&at) => at.row = first?,
                _ => return Some(at),
            }
        }
        None
    }

    /// Whether each iteration of a loop hands on element `path` of its state as it got it.
    fn is_invariant(&mut self, place: &Place) -> bool {
        if let Some(known) = self.invariant.get(place) {
            return *known;
        }
        let module = self.module;
        let body = module.called(place.row, CallRole::Body);
        let is = body.is_some_and(|body| {
            let root = Place { row: Row(module.computation(body).root), path: place.path.clone() };
            // Unknown until it is known, should text be so broken that loops hold themselves.
            self.invariant.insert(place.clone(), false);
            let made = self.maker(root);
            made.is_some_and(|made| {
                module.opcode(made.row) == Opcode::Parameter && made.path == place.path
            })
        });
        self.invariant.insert(place.clone(), is);
        is
    }
}

fn hands_on(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::GetTupleElement
            | Opcode::Tuple
            | Opcode::CopyDone
            | Opcode::CopyStart
            | Opcode::OptBarrier
            | Opcode::Bitcast
            | Opcode::Copy
            | Opcode::Domain
    )
}

/// Whether `row` is there in any case, or is made of nothing.
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

/// Says what a residual is made of. False if it is none: a parameter as it is, or nameless work
/// that does not come from forward work.
fn describe(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    residual: &mut Residual,
) -> bool {
    if module.opcode(residual.place.row) == Opcode::While && is_stacked(module, &residual.place) {
        let row = residual.place.row;
        let found = cost.loops.binary_search_by_key(&row, |entry| entry.row).ok();
        residual.stacked = Some(found.and_then(|at| cost.loops.get(at)?.trip_count.count));
    }
    let kept = Through { conversions: true, slices: true, gathers: false };
    let found = origins(module, residual.place.clone(), kept);
    let made = found.ends.iter().find_map(|end| match end {
        End::Computed(row) => Some(*row),
        _ => None,
    });
    let parameter = |ends: &[End]| {
        ends.iter().find_map(|end| match end {
            End::Parameter(row) => Some(*row),
            _ => None,
        })
    };
    let unchanged = origins(module, residual.place.clone(), Through::default()).ends;
    let makers = unchanged.iter().filter_map(|end| match end {
        End::Computed(row) => Some(*row),
        _ => None,
    });
    residual.made_by = makers.clone().next().unwrap_or(residual.made_by);
    match (made, parameter(&found.ends)) {
        (Some(row), _) if is_under_way(module, row) => {
            // Only what is gathered counts, not the rest of the state of a collective.
            let Some(gather) = started_gather(module, row, residual.shape) else { return false };
            if attribution.phase[gather.0 as usize] != Phase::Forward {
                return false;
            }
            residual.source = gather;
            residual.made_by = gather;
            residual.is_in_flight = true;
            residual.kind = kind_of_gathered(module, gather.into());
        }
        (Some(row), _) => {
            residual.source = row;
            let is_forward = attribution.phase[row.0 as usize] == Phase::Forward;
            if !residual.is_named && !is_forward {
                return false;
            }
            if gathers(module, row) && is_part(module, residual, row) {
                // Only the part that the device has had before.
                let all = origins(module, residual.place.clone(), Through::EVERYTHING);
                let computed = all.ends.iter().find_map(|end| match end {
                    End::Computed(row) => Some(*row),
                    _ => None,
                });
                residual.source = computed.unwrap_or(row);
            } else if gathers(module, row) {
                residual.kind = kind_of_gathered(module, residual.place.clone());
            }
        }
        (None, Some(row)) => {
            if unchanged.iter().all(|end| matches!(end, End::Parameter(_))) {
                return false;
            }
            residual.source = row;
            residual.kind = ResidualKind::WeightCopy;
            residual.widened_from = widened_from(module, residual);
        }
        (None, None) if !residual.is_named => return false,
        (None, None) => {}
    }
    true
}

/// Whether `row` is the start of a collective that fusions carry along.
fn is_under_way(module: &Module, row: Row) -> bool {
    module.opcode(row) == Opcode::CustomCall
        && module.attribute_bytes(row, "custom_call_target") == Some(b"\"AsyncCollectiveStart\"")
}

/// What the fusion around `start` begins to gather, if that is an array of `shape`.
fn started_gather(module: &Module, start: Row, shape: ShapeId) -> Option<Row> {
    let gather = Row(*module.operands(start).first()?);
    let shapes = module.shapes();
    let is_it = module.opcode(gather) == Opcode::AllGather
        && shapes.array(module.shape(gather))?.is_compatible(&shapes.array(shape)?);
    is_it.then_some(gather)
}

/// Whether parameters alone are gathered at `place`.
fn kind_of_gathered(module: &Module, place: Place) -> ResidualKind {
    let ends = origins(module, place, Through::EVERYTHING).ends;
    let is_computed = ends.iter().any(|end| matches!(end, End::Computed(_)));
    let is_weight = ends.iter().any(|end| matches!(end, End::Parameter(_)));
    match !is_computed && is_weight {
        true => ResidualKind::GatheredWeight,
        false => ResidualKind::GatheredActivation,
    }
}

/// Whether what is kept has fewer elements than `gather` makes.
fn is_part(module: &Module, residual: &Residual, gather: Row) -> bool {
    let shapes = module.shapes();
    let elements = |shape: ShapeId| shapes.array(shape)?.elements();
    let made = shapes.leaves(module.shape(gather)).filter_map(elements).max();
    let kept = elements(residual.shape).and_then(|count| match residual.stacked {
        Some(_) => {
            let slots = shapes.array(residual.shape)?.dimension(0)?.bound()?;
            count.checked_div(u64::try_from(slots).ok()?)
        }
        None => Some(count),
    });
    matches!((kept, made), (Some(kept), Some(made)) if kept < made)
}

/// Of a copy of a weight in a wider type: the weight's.
fn widened_from(module: &Module, residual: &Residual) -> Option<ElementType> {
    let element_type = |shape: ShapeId| {
        let leaf = module.shapes().leaves(shape).next()?;
        Some(module.shapes().array(leaf)?.element_type)
    };
    let weight = element_type(module.shape(residual.source))?;
    let copy = element_type(shape_at(module, &residual.place)?)?;
    (weight.bits() < copy.bits()).then_some(weight)
}

/// Whether a loop puts a part into an element of its state in each iteration.
fn is_stacked(module: &Module, place: &Place) -> bool {
    let found = origins(module, place.clone(), Through { conversions: true, ..Through::default() });
    found.ends.iter().any(|end| match end {
        End::Computed(row) => module.opcode(*row) == Opcode::DynamicUpdateSlice,
        _ => false,
    })
}

/// Whether `row` is where an all-gather's result comes from.
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
