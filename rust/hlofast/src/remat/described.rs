//! What kind of value a residual is, and what it was made from.

use super::residuals::{
    MOST_STEPS, Residual, ResidualKind, gathers, is_stacked, shape_at, stack_of,
};
use crate::cost::Cost;
use crate::flow::origin::{End, Place, Through, origins, origins_within};
use crate::flow::{Attribution, Phase};
use crate::ir::{ElementType, Module, Opcode, Row, ShapeId};

/// Fills in the kind and source of a residual. False if the value is not a residual: an unchanged
/// parameter, or nameless work that does not depend on forward work.
pub(super) fn describe(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    residual: &mut Residual,
    steps: &mut usize,
) -> bool {
    let mut origins = |place: Place, through: Through| {
        let before = MOST_STEPS.min(*steps);
        let mut left = before;
        let found = origins_within(module, place, through, &mut left);
        crate::ir::work::count(before - left);
        *steps -= before - left;
        found
    };
    let stack = stack_of(module, &residual.place);
    if module.opcode(stack.row) == Opcode::While && is_stacked(module, &stack) {
        let row = stack.row;
        let position = cost.loops.binary_search_by_key(&row, |entry| entry.row).ok();
        residual.stacked = Some(position.and_then(|at| cost.loops.get(at)?.trip_count.count));
    }
    let phase = |row: Row| attribution.whose(module).phase[row.0 as usize];
    let kept = Through { conversions: true, slices: true, gathers: false };
    let kept_origins = origins(residual.place.clone(), kept);
    let computed = kept_origins.ends.iter().filter_map(|end| match end {
        End::Computed(row) => Some(*row),
        _ => None,
    });
    // A stack of what a loop passes on holds its first value once; the others are computed in the loop.
    let is_other = |row: &Row| !gathers(module, *row) && !is_filled(module, *row);
    let is_stack = residual.stacked.is_some();
    let other = computed.clone().find(is_other).filter(|_| is_stack);
    let made = other.or(computed.clone().next());
    let parameter = |ends: &[End]| {
        ends.iter().find_map(|end| match end {
            End::Parameter(row) => Some(*row),
            _ => None,
        })
    };
    let unchanged = origins(residual.place.clone(), Through::default()).ends;
    let makers = unchanged.iter().filter_map(|end| match end {
        End::Computed(row) => Some(*row),
        _ => None,
    });
    residual.made_by = makers.clone().next().unwrap_or(residual.made_by);
    match (made, parameter(&kept_origins.ends)) {
        (Some(row), _) if is_under_way(module, row) => {
            // Only the gathered array counts, not the rest of the collective's state.
            let Some(gather) = started_gather(module, row, residual.shape) else { return false };
            if phase(gather) != Phase::Forward {
                return false;
            }
            residual.source = gather;
            residual.made_by = gather;
            residual.is_in_flight = true;
            residual.kind = kind_of_gathered(module, gather.into());
        }
        (Some(row), _) => {
            residual.source = row;
            let is_forward = phase(row) == Phase::Forward;
            if !residual.is_named && !is_forward {
                return false;
            }
            if gathers(module, row) && is_part(module, residual, row) {
                // The value is only the device's own part of the array.
                let all = origins(residual.place.clone(), Through::EVERYTHING);
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

/// Whether `row` is the memory that a stack begins with.
fn is_filled(module: &Module, row: Row) -> bool {
    match module.opcode(row) {
        Opcode::Broadcast | Opcode::Constant => true,
        Opcode::CustomCall => {
            module.attribute_bytes(row, "custom_call_target") == Some(b"\"AllocateBuffer\"")
        }
        _ => false,
    }
}

/// Whether `row` starts a collective that fusions overlap with other work.
fn is_under_way(module: &Module, row: Row) -> bool {
    module.opcode(row) == Opcode::CustomCall
        && module.attribute_bytes(row, "custom_call_target") == Some(b"\"AsyncCollectiveStart\"")
}

/// The gather that the fusion around `start` begins, if its result has `shape`.
fn started_gather(module: &Module, start: Row, shape: ShapeId) -> Option<Row> {
    let gather = Row(*module.operands(start).first()?);
    let shapes = module.shapes();
    let is_it = module.opcode(gather) == Opcode::AllGather
        && shapes.array(module.shape(gather))?.is_compatible(&shapes.array(shape)?);
    is_it.then_some(gather)
}

/// The kind of a gathered array: whether only parameters are gathered at `place`.
fn kind_of_gathered(module: &Module, place: Place) -> ResidualKind {
    let ends = origins(module, place, Through::EVERYTHING).ends;
    let is_computed = ends.iter().any(|end| matches!(end, End::Computed(_)));
    let is_weight = ends.iter().any(|end| matches!(end, End::Parameter(_)));
    match !is_computed && is_weight {
        true => ResidualKind::GatheredWeight,
        false => ResidualKind::GatheredActivation,
    }
}

/// Whether the residual has fewer elements than `gather` returns.
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

/// For a copy of a weight in a wider type: the weight's element type.
fn widened_from(module: &Module, residual: &Residual) -> Option<ElementType> {
    let element_type = |shape: ShapeId| {
        let leaf = module.shapes().leaves(shape).next()?;
        Some(module.shapes().array(leaf)?.element_type)
    };
    let weight = element_type(module.shape(residual.source))?;
    let copy = element_type(shape_at(module, &residual.place)?)?;
    (weight.bits() < copy.bits()).then_some(weight)
}
