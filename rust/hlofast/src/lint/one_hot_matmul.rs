//! `one-hot-matmul`: matmuls with a one-hot matrix on one side.
//!
//! A one-hot matrix is converted from, or selected by, an equality between an iota (perhaps
//! shifted) along a dimension and values that do not count up. Two such iotas make the identity
//! matrix or a mask instead. Multiplied by something else it picks the same rows, with weights: experts
//! collect their tokens by the product of two one-hot matrices, one of experts and one of places.
//!
//! What replaces the matmul takes time too. If the matmul contracts the dimension of the iota, a gather
//! reads rows of the other operand and writes the result. If the dimension stays, as in the gradient of
//! a lookup or where experts collect their tokens, a scatter clears the result and reads and writes it
//! again for the rows that it adds. Neither computes its operand as it goes, as a fusion around a
//! matmul does: an operand that is computed there is then written to memory and read back. The
//! seconds of a finding are those of the matmul less these bytes at the bandwidth of memory; where
//! nothing is left, nothing is reported. Without a device no seconds are known, and only FLOPs count. All
//! matmuls with one matrix are one finding: a gather in the forward pass makes its gradient a scatter.

use super::finding::Measure;
use super::program::{Program, bytes, counted, grouped, percent};
use super::reduced_twice::adds;
use super::resharded_scores::sizes;
use super::site::{Rule, Site};
use crate::flow::Phase;
use crate::flow::walk::{Trail, converts};
use crate::ir::{CallRole, Dimension, Module, Opcode, Row};
use std::collections::{HashMap, HashSet};

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

/// The remedy for matrices that a router chooses: they send tokens to experts, and multiply no table of rows.
const SEND_ROWS: &str = "send rows instead of multiplying: number the slots of all experts, where = \
                         expert * capacity + place, beyond the last for tokens without a place; \
                         collect with jnp.zeros((experts * capacity, width), x.dtype).at[where].set(x, \
                         mode='drop') and bring the results back with made.at[where].get(mode='fill', \
                         fill_value=0), which is weighted by the router's scores (under jax.vmap, for \
                         each row of the batch)";

fn keeps(opcode: Opcode) -> bool {
    converts(opcode) || matches!(opcode, Opcode::Slice | Opcode::DynamicSlice)
}

fn repeats(opcode: Opcode) -> bool {
    keeps(opcode) || opcode == Opcode::Broadcast
}

/// What keeps elements, repeats them, or adds zeros or the elements of other devices to them.
fn spreads(opcode: Opcode) -> bool {
    use Opcode::*;
    repeats(opcode) || matches!(opcode, Pad | AllGather | AllGatherStart | AllGatherDone)
}

/// How deep sums of iotas and shifts are followed.
const DEEPEST_SUM: usize = 4;

/// How deep products of one-hot matrices are followed.
const DEEPEST_PRODUCT: usize = 4;

/// What a loop writes into a stack of which the value at `trail` is the result: the one-hot matrix of one
/// layer, if the backward pass reads it from there.
fn stacked(module: &Module, trail: &Trail) -> Option<Trail> {
    let &[element] = trail.path() else { return None };
    let body = module.called(trail.row, CallRole::Body)?;
    let root = Row(module.computation(body).root);
    let state = Some(root).filter(|root| module.opcode(*root) == Opcode::Tuple)?;
    let next = *module.operands(state).get(element as usize)?;
    let written = Trail::new(Row(next)).follow(module, converts);
    let is_update = module.opcode(written.row) == Opcode::DynamicUpdateSlice;
    is_update.then(|| written.operand(module, 1)).flatten()
}

/// The compare that makes the array at `trail` one-hot, and the size in that array of the dimension along
/// which its iota counts.
fn one_hot(module: &Module, trail: Trail, depth: usize) -> Option<(Row, u64)> {
    let mut resizing = Vec::new();
    let trail = follow(module, trail, &mut resizing);
    let found = made_one_hot(module, trail, depth)?;
    let size = resizing.iter().rev().fold(found.1, |size, row| resized(module, *row, size));
    Some((found.0, size))
}

/// Goes back through what keeps elements or repeats them, and adds rows that change sizes to `resizing`.
fn follow(module: &Module, mut trail: Trail, resizing: &mut Vec<Row>) -> Trail {
    use Opcode::*;
    loop {
        let row = trail.row;
        if matches!(module.opcode(row), Slice | DynamicSlice | AllGather | AllGatherStart | Pad) {
            resizing.push(row);
        }
        if !trail.step(module, spreads) {
            return trail;
        }
    }
}

/// The size in the result of `row` of a dimension that has `size` in its operand.
fn resized(module: &Module, row: Row, size: u64) -> u64 {
    let array = |row: Row| module.shapes().array(module.shape(row));
    let before = module.operands(row).first().and_then(|row| array(Row(*row)));
    let after = match module.opcode(row) {
        // The result of an asynchronous gather is the second element of its tuple.
        Opcode::AllGatherStart => {
            let parts = module.shapes().tuple(module.shape(row));
            parts.and_then(|parts| module.shapes().array(*parts.get(1)?))
        }
        _ => array(row),
    };
    let (Some(before), Some(after)) = (before, after) else { return size };
    let bound = |at: Option<Dimension>| u64::try_from(at?.bound()?).ok();
    let sizes = before.dimensions().zip(after.dimensions());
    let mut sizes = sizes.map(|(before, after)| (bound(Some(before)), bound(Some(after))));
    let found = sizes.find(|(before, after)| *before == Some(size) && before != after);
    found.and_then(|(_, after)| after).unwrap_or(size)
}

/// As of `one_hot`, for what neither moves elements nor repeats them.
fn made_one_hot(module: &Module, trail: Trail, depth: usize) -> Option<(Row, u64)> {
    let is_pad = |index| {
        let side: Trail = trail.operand(module, index)?.follow(module, keeps);
        (module.opcode(side.row) == Opcode::Pad).then_some(side)
    };
    let compare = match module.opcode(trail.row) {
        Opcode::Compare => trail,
        Opcode::Multiply | Opcode::And if depth < DEEPEST_PRODUCT => {
            let side = |index| one_hot(module, trail.operand(module, index)?, depth + 1);
            return side(0).or_else(|| side(1));
        }
        // The parts of a matrix that a matmul takes at once, of which shards go both ways around a ring, lie
        // side by side: a sum of padded parts.
        Opcode::Add | Opcode::Or | Opcode::Maximum if depth < DEEPEST_PRODUCT => {
            let (first, _) = is_pad(0).zip(is_pad(1))?;
            return one_hot(module, first, depth + 1);
        }
        // A token goes to several experts: the sum of their matrices.
        Opcode::Reduce if depth < DEEPEST_PRODUCT && adds(module, trail.row) => {
            return one_hot(module, trail.operand(module, 0)?, depth + 1);
        }
        Opcode::Select => trail.operand(module, 0)?.follow(module, spreads),
        Opcode::While if depth < DEEPEST_PRODUCT => {
            return one_hot(module, stacked(module, &trail)?, depth + 1);
        }
        _ => return None,
    };
    let is_equality = module.opcode(compare.row) == Opcode::Compare
        && module.attribute_bytes(compare.row, "direction") == Some(b"EQ");
    if !is_equality {
        return None;
    }
    let counts = |index| Some(counts_up(module, compare.operand(module, index)?, 0));
    match (counts(0)?, counts(1)?) {
        (Some(size), None) | (None, Some(size)) => Some((compare.row, size)),
        _ => None,
    }
}

/// Limit on the rows from which the choice of a router is computed.
const MOST_ROUTED: usize = 512;

/// Whether what `compare` compares with an iota is chosen by a router: it comes from a sort, the largest of
/// some values, or a count of earlier choices. Labels and tokens come from the batch.
fn is_routed(module: &Module, compare: Row) -> bool {
    use Opcode::*;
    let mut seen = HashSet::new();
    let start = Trail::new(compare);
    let operands = |trail: &Trail| {
        let count = module.operands(trail.row).len();
        (0..count).filter_map(|at| trail.operand(module, at)).collect::<Vec<_>>()
    };
    let mut waiting = operands(&start);
    while let Some(trail) = waiting.pop() {
        let trail = trail.follow(module, spreads);
        let row = trail.row;
        if seen.len() == MOST_ROUTED || !seen.insert(row) {
            continue;
        }
        let is_choice = match module.opcode(row) {
            Sort | Topk | ReduceWindow => true,
            // The place of the largest value comes with the value.
            Reduce => module.operands(row).len() > 2,
            CustomCall => module.attribute_bytes(row, "custom_call_target") == Some(b"\"TopK\""),
            _ => false,
        };
        if is_choice {
            return true;
        }
        if module.opcode(row).is_elementwise()
            || matches!(module.opcode(row), Pad | Concatenate | Reduce)
        {
            waiting.extend(operands(&trail));
        }
    }
    false
}

/// How far the values at `trail` count if they are an iota, perhaps shifted.
fn counts_up(module: &Module, trail: Trail, depth: usize) -> Option<u64> {
    let trail = trail.follow(module, repeats);
    match module.opcode(trail.row) {
        Opcode::Iota => {
            let text = module.attribute_bytes(trail.row, "iota_dimension")?;
            let dimension: usize = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
            let array = module.shapes().array(module.shape(trail.row))?;
            u64::try_from(array.dimension(dimension)?.bound()?).ok()
        }
        Opcode::Add | Opcode::Subtract if depth < DEEPEST_SUM => {
            let side = |index| counts_up(module, trail.operand(module, index)?, depth + 1);
            side(0).or_else(|| side(1))
        }
        _ => None,
    }
}

/// Whether the matmul in `row` contracts the dimension of `size` along which its matrix is one-hot, so that it picks
/// rows of `other`.
fn is_lookup(program: &Program<'_>, row: Row, other: Row, size: u64) -> bool {
    let has = |row: Row| {
        let array = program.module.shapes().array(program.module.shape(row));
        array.is_some_and(|array| {
            let mut sizes = (0..array.rank()).filter_map(|at| array.dimension(at)?.bound());
            sizes.any(|own| u64::try_from(own) == Ok(size))
        })
    };
    has(other) && !has(row)
}

/// Bytes that a gather or scatter instead of the matmul in `row` moves, whose operand `other` is not
/// one-hot. `size` is that of the dimension along which the other is.
fn moved(program: &Program<'_>, row: Row, other: Row, size: u64) -> u64 {
    let module = program.module;
    let (result, read) = (program.bytes(row), program.bytes(other));
    let is_lookup = is_lookup(program, row, other, size);
    let rows = match is_lookup {
        true => result.saturating_mul(2),
        false => result.saturating_mul(3).saturating_add(read),
    };
    let mut from = other;
    while converts(module.opcode(from))
        && let Some(before) = module.operands(from).first()
    {
        from = Row(*before);
    }
    let is_fused = program.scheduled(row) != row;
    let is_computed = is_fused && module.opcode(from) != Opcode::Parameter;
    let written = if is_computed { read } else { 0 };
    rows.saturating_add(written.saturating_mul(if is_lookup { 1 } else { 2 }))
}

/// The line of the source on which the one-hot matrix at `trail` is compared.
pub(super) fn line(program: &Program<'_>, trail: Trail) -> Option<(i32, i32)> {
    let (compare, _) = one_hot(program.module, trail, 0)?;
    Some(program.sources().place(program.module.metadata_columns(), compare))
}

/// The lines of all one-hot matrices that matmuls multiply.
pub(super) fn lines(program: &Program<'_>) -> HashSet<(i32, i32)> {
    let sides = |row: Row| program.module.operands(row).iter().take(2);
    let lines = program.products().flat_map(sides);
    lines.filter_map(|side| line(program, Trail::new(Row(*side)))).collect()
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    let mut matrices = Matrices::new();
    let mut routed = HashSet::new();
    for row in program.products() {
        let &[first, second, ..] = module.operands(row) else { continue };
        let sides = [(first, second), (second, first)];
        let found = sides.iter().find_map(|(side, other)| {
            let (compare, size) = one_hot(module, Trail::new(Row(*side)), 0)?;
            Some((compare, size, Row(*other)))
        });
        let Some((compare, size, other)) = found else { continue };
        let Some(flops) = program.product_flops(row) else { continue };
        let runs = program.runs(row);
        let mut site = Site::new(row).runs(&runs).common("matmul_flops", program.matmul_flops());
        site.evidence.push(compare);
        site.flops = runs.times(flops);
        site.provenance = program.cost.provenance.get(row.0 as usize).copied().unwrap_or_default();
        // May be negative: a scatter can take longer than the matmul whose gather is faster.
        let moved = runs.times(moved(program, row, other, size));
        let spent = moved.and_then(|bytes| program.moving_seconds(bytes));
        let seconds = site.modelled_seconds(program, RULE.measure);
        site.seconds = seconds.zip(spent).map(|(matmul, spent)| matmul - spent);
        let (file, line) = program.sources().place(module.metadata_columns(), compare);
        if let (Ok(file), Ok(line)) = (u32::try_from(file), u32::try_from(line)) {
            site.key = u64::from(file) << 32 | u64::from(line);
            site.is_anywhere = true;
        }
        site = site.sum("replacing_bytes", moved.unwrap_or(0));
        // A gradient collects rows too; experts do in the forward pass.
        let is_sent = runs.phase != Phase::Backward && !is_lookup(program, row, other, size);
        if is_sent && (routed.contains(&site.key) || is_routed(module, compare)) {
            routed.insert(site.key);
        }
        let side = if other == Row(first) { second } else { first };
        let written = program.sources().place(module.metadata_columns(), row);
        matrices.entry((written, sizes(program, Row(side)))).or_insert(site.key);
        sites.push(site);
    }
    if !matrices.is_empty() {
        gradients(program, &matrices, sites);
    }
    for site in sites.iter_mut().filter(|site| routed.contains(&site.key)) {
        site.remedy = Some(SEND_ROWS);
    }
}

/// By line of the source with a matmul by a one-hot matrix, and sizes of the matrix: the key of its places.
type Matrices = HashMap<((i32, i32), Vec<u64>), u64>;

/// Adds backward matmuls on these lines that compute the gradient of such a matrix, as where experts are weighted by
/// scores. With a gather, that gradient is one product with the rows read.
fn gradients(program: &Program<'_>, matrices: &Matrices, sites: &mut Vec<Site>) {
    let columns = program.module.metadata_columns();
    let known: HashSet<Row> =
        sites.iter().filter_map(|site| site.subjects.first().copied()).collect();
    for row in program.products().filter(|row| !known.contains(row)) {
        let written = program.sources().place(columns, row);
        let runs = program.runs(row);
        if written.0 < 0 || runs.phase != Phase::Backward {
            continue;
        }
        let Some(key) = matrices.get(&(written, sizes(program, row))) else { continue };
        let Some(flops) = program.product_flops(row) else { continue };
        let mut site = Site::new(row).runs(&runs).common("matmul_flops", program.matmul_flops());
        site.flops = runs.times(flops);
        site.provenance = program.cost.provenance.get(row.0 as usize).copied().unwrap_or_default();
        let read = program.module.operands(row).iter().map(|row| program.bytes(Row(*row)));
        let moved = runs.times(read.fold(0, u64::saturating_add));
        let spent = moved.and_then(|bytes| program.moving_seconds(bytes));
        let seconds = site.modelled_seconds(program, RULE.measure);
        site.seconds = seconds.zip(spent).map(|(matmul, spent)| matmul - spent);
        site.key = *key;
        site.is_anywhere = true;
        site = site.sum("replacing_bytes", moved.unwrap_or(0));
        sites.push(site);
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let flops = site.flops.unwrap_or(0);
    let together = program.together();
    format!(
        "{} by a one-hot matrix: {} FLOPs per step{together}, {} of all matmul FLOPs, which a gather does \
         not need; it moves {} of memory instead",
        counted(site.places, "matmul multiplies", "matmuls multiply"),
        grouped(flops),
        percent(flops, program.matmul_flops()),
        bytes(site.figure("replacing_bytes")),
    )
}
