//! `narrow-matmul`: matmuls on TPUs with a dimension far below the size of the matrix unit.
//!
//! The matrix unit of TPUs up to v5 multiplies blocks of 128 by 128 (later ones 256 by 256): the
//! summed dimension and one free dimension are padded to whole blocks, the other free dimension to
//! 8 rows. A matmul with a shorter dimension takes as long as one with the padded dimension, unless
//! memory is slower still: with one short dimension it usually is, with two it is not.

use super::finding::Measure;
use super::program::{Program, counted, grouped, percent};
use super::site::{Rule, Site};
use crate::Provenance;
use crate::cost::Backend;
use crate::cost::matmul::{ContractionKind, contraction};

pub(super) const RULE: Rule = Rule {
    code: "narrow-matmul",
    what: "matmuls that fill the TPU's matrix unit mostly with padding",
    measure: Measure::None,
    find,
    message,
    remedy: "give the matrix unit dimensions of at least 128: fewer and wider heads, or several \
             narrow matmuls joined into one (fewer groups, or a block-diagonal weight)",
};

/// The side of the matrix unit (v2 to v5; v6 has 256).
const SIDE: u64 = 128;
/// Rows of a vector register.
const ROWS: u64 = 8;
/// Padding counts if the unit does at least this many times the work.
const LEAST_FACTOR: u64 = 4;

/// FLOPs that the matrix unit does while memory moves a byte: those of v5e, 197e12 per second beside
/// 819e9 B. v4 and v5p have less (224, 166), v6e has 560.
const FLOPS_PER_BYTE: u64 = 240;

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    if program.cost.backend != Backend::Tpu {
        return;
    }
    for row in program.products() {
        let Some(own) = contraction(module, row) else { continue };
        let is_dot = matches!(own.kind, ContractionKind::Dot | ContractionKind::ConvolutionAsDot);
        let Some(flops) = program.product_flops(row).filter(|_| is_dot) else { continue };
        let (wide, narrow) = (own.m.max(own.n), own.m.min(own.n));
        let padded = |size: u64, unit: u64| size.div_ceil(unit).checked_mul(unit);
        // The wide dimension streams past the block that the other two fill.
        let work = || {
            let block = padded(own.k, SIDE)?.checked_mul(padded(narrow, SIDE)?)?;
            let all = block.checked_mul(padded(wide, ROWS)?)?.checked_mul(own.batch)?;
            all.checked_mul(2)
        };
        let Some(work) = work() else { continue };
        // Operands that were fetched into fast memory were read from HBM by another instruction.
        let traffic = program.row_traffic(program.scheduled(row));
        let is_waited_for = traffic.is_some_and(|bytes| work / FLOPS_PER_BYTE >= bytes);
        if flops == 0 || work / flops < LEAST_FACTOR || !is_waited_for {
            continue;
        }
        let runs = program.runs(row);
        let mut site = Site::new(row).runs(&runs);
        site.flops = runs.times(work - flops);
        site = site
            .sum("useful_flops", runs.times(flops).unwrap_or(0))
            .common("narrowest", own.k.min(narrow));
        site.key = own.k.min(narrow);
        site.provenance = Provenance::Modelled;
        sites.push(site);
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let padding = site.flops.unwrap_or(0);
    format!(
        "{} a dimension of {}: the matrix unit pads it to {SIDE} and multiplies {} FLOPs of \
         padding per step beside {} of the program, which takes {} of all matmul FLOPs",
        counted(site.places, "matmul has", "matmuls have"),
        site.figure("narrowest"),
        grouped(padding),
        grouped(site.figure("useful_flops")),
        percent(site.figure("useful_flops"), program.matmul_flops()),
    )
}
