//! `one-hot-matmul`: matmuls with a one-hot matrix on one side.
//!
//! A one-hot matrix is converted from, or selected by, an equality between an iota (perhaps
//! shifted) along a dimension and values that do not count up. Two such iotas make the identity
//! matrix or a mask instead.

use super::finding::Measure;
use super::program::{Program, counted, grouped, percent};
use super::site::{Rule, Site};
use super::walk::{Trail, converts};
use crate::ir::{Module, Opcode, Row};

pub(super) const RULE: Rule = Rule {
    code: "one-hot-matmul",
    what: "matmuls with a one-hot matrix, where a gather would do",
    measure: Measure::None,
    find,
    message,
    remedy: "look up rows instead of multiplying: jnp.take(table, indices, axis=0) (in Flax, \
             nn.Embed) is a gather and its gradient a scatter; if the table is sharded along its \
             rows, look up locally in shard_map and combine with psum",
};

fn keeps(opcode: Opcode) -> bool {
    converts(opcode) || matches!(opcode, Opcode::Slice | Opcode::DynamicSlice)
}

fn spreads(opcode: Opcode) -> bool {
    keeps(opcode) || opcode == Opcode::Broadcast
}

/// How deep sums of iotas and shifts are followed.
const DEEPEST_SUM: usize = 4;

/// The compare that makes the array at `trail` one-hot.
fn one_hot(module: &Module, trail: Trail) -> Option<Row> {
    let trail = trail.follow(module, keeps);
    let compare = match module.opcode(trail.row) {
        Opcode::Compare => trail,
        Opcode::Select => trail.operand(module, 0)?.follow(module, spreads),
        _ => return None,
    };
    let is_equality = module.opcode(compare.row) == Opcode::Compare
        && module.attribute_bytes(compare.row, "direction") == Some(b"EQ");
    if !is_equality {
        return None;
    }
    let counts = |index| Some(counts_up(module, compare.operand(module, index)?, 0));
    (counts(0)? != counts(1)?).then_some(compare.row)
}

/// Whether the values at `trail` are an iota, perhaps shifted.
fn counts_up(module: &Module, trail: Trail, depth: usize) -> bool {
    let trail = trail.follow(module, spreads);
    match module.opcode(trail.row) {
        Opcode::Iota => true,
        Opcode::Add | Opcode::Subtract if depth < DEEPEST_SUM => {
            let side = |index| {
                let side = trail.operand(module, index);
                side.is_some_and(|side| counts_up(module, side, depth + 1))
            };
            side(0) || side(1)
        }
        _ => false,
    }
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    for row in program.products() {
        let mut sides = module.operands(row).iter().take(2);
        let Some(compare) = sides.find_map(|side| one_hot(module, Trail::new(Row(*side)))) else {
            continue;
        };
        let Some(flops) = program.product_flops(row) else { continue };
        let runs = program.runs(row);
        let mut site = Site::new(row).runs(&runs).common("matmul_flops", program.matmul_flops());
        site.evidence.push(compare);
        site.flops = runs.times(flops);
        site.provenance = program.cost.provenance.get(row.0 as usize).copied().unwrap_or_default();
        sites.push(site);
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let flops = site.flops.unwrap_or(0);
    format!(
        "{} by a one-hot matrix: {} FLOPs per step, {} of all matmul FLOPs, which a gather does \
         not need",
        counted(site.places, "matmul multiplies", "matmuls multiply"),
        grouped(flops),
        percent(flops, program.matmul_flops()),
    )
}
