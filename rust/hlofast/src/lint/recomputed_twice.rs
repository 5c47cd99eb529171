//! `recomputed-twice`: matmuls that a checkpoint inside a checkpoint computes three times.
//!
//! JAX names what the outer checkpoint recomputes `checkpoint/rematted_computation/…`, also inside the
//! inner one, and what the inner one recomputes after that `checkpoint/checkpoint/
//! rematted_computation/…`. Without these two words both names are equal.

use super::finding::Measure;
use super::program::{Program, counted, grouped, percent};
use super::site::{Rule, Site};
use crate::ir::Row;
use crate::ir::intern::BuildMix;
use std::collections::HashMap;

pub(super) const RULE: Rule = Rule {
    code: "recomputed-twice",
    what: "matmuls that nested checkpoints recompute twice",
    measure: Measure::None,
    find,
    message,
    remedy: "remove the inner or the outer jax.checkpoint, or let the outer one keep what the \
             inner one returns (name it with checkpoint_name and use \
             policy=jax.checkpoint_policies.save_only_these_names); the backward pass then holds \
             the values that the removed checkpoint recomputes, or the named value",
};

const CHECKPOINT: &[u8] = b"checkpoint";
const RECOMPUTED: &[u8] = b"rematted_computation";

/// Which of the two checkpoints recomputes an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The outer one, or the only one.
    Outer,
    /// One inside another.
    Inner,
}

/// Name without the words of checkpoints, source file and line.
pub(super) type Likeness = (Vec<u8>, i32, i32);

/// The checkpoint that recomputes `row`, and its name and line without the words that say so.
pub(super) fn nested(program: &Program<'_>, row: Row) -> Option<(By, Likeness)> {
    let module = program.module;
    let name = program.op_name(row)?;
    let mut by = None;
    let mut checkpoints = 0;
    let mut plain = Vec::with_capacity(name.len() + 1);
    let mut parts = name.split(|byte| *byte == b'/').peekable();
    while let Some(part) = parts.next() {
        match part {
            CHECKPOINT => {
                let is_recomputed = parts.next_if(|next| *next == RECOMPUTED).is_some();
                by = match (by, is_recomputed) {
                    (None, true) if checkpoints == 0 => Some(By::Outer),
                    (None, true) => Some(By::Inner),
                    (by, _) => by,
                };
                checkpoints += 1;
            }
            part => {
                plain.extend_from_slice(part);
                plain.push(b'/');
            }
        }
    }
    let (file, line) = program.sources().place(module.metadata_columns(), row);
    Some((by?, (plain, file, line)))
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let mut known: HashMap<Likeness, [Vec<Row>; 2], BuildMix> = HashMap::default();
    for row in program.products() {
        if let Some((by, key)) = nested(program, row) {
            known.entry(key).or_default()[usize::from(by == By::Inner)].push(row);
        }
    }
    for [outer, inner] in known.into_values() {
        let flops = |row: &Row| program.runs(*row).times(program.product_flops(*row)?);
        let sum =
            |rows: &[Row]| rows.iter().try_fold(0u64, |sum, row| sum.checked_add(flops(row)?));
        let (Some(first), Some(second), Some(row)) = (sum(&outer), sum(&inner), outer.first())
        else {
            continue;
        };
        if inner.is_empty() {
            continue;
        }
        let mut site = Site::new(*row).runs(&program.runs(*row));
        site.subjects = outer;
        site.evidence = inner;
        site.flops = Some(first.min(second));
        site.places = site.subjects.len() as u64;
        site.is_anywhere = true;
        sites.push(site);
    }
    sites.sort_by_key(|site| site.subjects.first().map(|row| program.place(*row)));
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let flops = site.flops.unwrap_or(0);
    let together = program.together();
    format!(
        "{} recomputed by the outer checkpoint and again by the inner one: {} FLOPs per step{together}, {} \
         of all matmul FLOPs, for the second time",
        counted(site.places, "matmul is", "matmuls are"),
        grouped(flops),
        percent(flops, program.matmul_flops()),
    )
}
