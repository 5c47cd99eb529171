//! `widened-weights-kept`: copies of parameters in a wider type that are kept from the forward to
//! the backward pass, though a convert would recompute them.
//!
//! Only copies of at least 1 MiB count. Programs that XLA compiled for CPUs are left out: the
//! compiler widens 16-bit matmuls there.

use super::finding::Measure;
use super::low_precision_in_f32::is_widened_by_compiler;
use super::program::{Program, bytes, counted, form, percent};
use super::site::{Rule, Site};
use crate::flow::Phase;
use crate::ir::{Module, Row, ShapeId};
use crate::remat::ResidualKind;

pub(super) const RULE: Rule = Rule {
    code: "widened-weights-kept",
    what: "copies of weights in a wider type, kept from forward to backward",
    measure: Measure::Arrays,
    find,
    message,
    remedy: "convert again in the backward pass: wrap the matmul and its conversion in a separate \
             jax.checkpoint, whose residuals are the activation and the unconverted weight (a \
             policy that excludes a name given after the conversion still saves the converted \
             weight); or multiply in the type of the weights",
};

/// The size of the smallest copies that are reported.
const LEAST: u64 = 1 << 20;
/// How many times larger padding makes an array at most: a tile of 8 by 128 with one element.
const MOST_PADDING: u64 = 1 << 10;

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    if is_widened_by_compiler(program) || !can_widen(program.module) {
        return;
    }
    let residuals = program.residuals();
    let size = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    let total =
        residuals.iter().fold(0u64, |sum, residual| sum.saturating_add(size(residual.bytes)));
    for residual in residuals {
        let held = size(residual.bytes);
        let is_copy = residual.kind == ResidualKind::WeightCopy && residual.widened_from.is_some();
        if !is_copy || held < LEAST {
            continue;
        }
        let mut site =
            Site::new(residual.made_by).sum("copied_bytes", held).common("residual_bytes", total);
        site.evidence = vec![residual.source, residual.uses.1];
        site.bytes = Some(held);
        site.phases = vec![Phase::Forward];
        site.is_anywhere = true;
        sites.push(site);
    }
}

/// Whether a large array has a wider type than a parameter of the entry. Most programs widen no weights, and
/// need no residuals to know it.
fn can_widen(module: &Module) -> bool {
    let shapes = module.shapes();
    let bits = |shape: ShapeId| Some(shapes.array(shape)?.element_type.bits());
    let arrays = |row: &u32| shapes.leaves(module.shape(Row(*row)));
    let parameters = module.parameter_rows(module.entry()).iter().flat_map(arrays);
    let is_weight = |shape: &ShapeId| shapes.array(*shape).is_some_and(|array| array.rank() > 0);
    let narrowest = parameters.filter(is_weight).filter_map(bits).min();
    narrowest.is_some_and(|narrowest| {
        shapes.ids().any(|shape| {
            bits(shape) > Some(narrowest)
                && shapes.logical_bytes(shape).is_none_or(|size| size >= LEAST / MOST_PADDING)
        })
    })
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let copied = site.figure("copied_bytes");
    let total = site.figure("residual_bytes");
    format!(
        "{} of weights in a wider type {} kept from forward to backward: {}, {} of the {} of \
         all residuals{}",
        counted(site.places, "copy", "copies"),
        form(site.places, "is", "are"),
        bytes(copied),
        percent(copied, total),
        bytes(total),
        program.together(),
    )
}
