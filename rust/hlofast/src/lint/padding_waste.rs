//! `padding-waste`: arrays in TPU memory whose tiles are mostly padding.
//!
//! TPU layouts store the two minor dimensions in tiles, usually of 8 by 128 elements (for bf16 16 by
//! 128), and pad both to whole tiles.
//!
//! Rows of a table whose width is sharded are left out: each device has few columns of it, whatever the
//! order of dimensions (`columns_last` and `columns_first` in `tests/oracle/judge_advice.py`), and more
//! columns on each device are as many bytes. So are arrays that only the compiler knows: it makes masks
//! without a name where it expands an operation, such as the groups of a ragged matmul.
//!
//! Padding costs memory where the peak is, and time wherever it is read and written: arrays that do neither
//! are left out.

use super::finding::Measure;
use super::program::{Program, bytes, counted, form};
use super::site::{Rule, Site};
use crate::cost::Backend;
use crate::flow::walk::{Trail, converts};
use crate::ir::decode::{AttributeValue, LeafSharding, decode};
use crate::ir::size::device_sizes;
use crate::ir::{ComputationId, Module, Opcode, Row, ShapeId, ShapeView};
use crate::memory::Resized;
use std::collections::BTreeMap;

pub(super) const RULE: Rule = Rule {
    code: "padding-waste",
    what: "arrays whose tiles in TPU memory are mostly padding",
    measure: Measure::Memory,
    find,
    message,
    remedy: "keep long dimensions last: merge small trailing dimensions (heads and head size) \
             into one, and use sizes that are multiples of 128 for the last dimension and of 8 \
             (16 for bf16) for the one before; for one stacked scalar per position, keep the \
             positions last",
};

/// Padding counts if the array takes at least this many times its own bytes. Heads of 64 take twice
/// theirs.
const LEAST_FACTOR: u64 = 3;
/// The least padding of one array that is reported, and the least by which the peak falls without it.
const LEAST: u64 = 1 << 20;
/// The least share of the bytes that the step moves, where the peak does not fall.
const LEAST_SHARE: f64 = 0.01;

/// Whether `row` names an array that another row holds, or is passed in by a caller.
fn is_view(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        GetTupleElement
            | Tuple
            | Bitcast
            | While
            | Call
            | Conditional
            | OptBarrier
            | CopyDone
            | AsyncStart
            | AsyncUpdate
            | AsyncDone
    )
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    if program.cost.backend != Backend::Tpu || !module.is_scheduled() {
        return;
    }
    let sizes = device_sizes(module, Backend::Tpu);
    let fused = module.computations_in_fusions();
    // By shape: entry parameters, and other rows that make an array of it.
    let mut rows: BTreeMap<ShapeId, (Vec<Row>, Vec<Row>)> = BTreeMap::new();
    let mut wasteful = vec![None; sizes.len()];
    for id in module.shapes().ids() {
        wasteful[id.0 as usize] = waste(program, id, &sizes);
    }
    if wasteful.iter().all(Option::is_none) {
        return;
    }
    let ids = (0u32..).map(ComputationId).zip(module.computations()).zip(&fused);
    let unfused = ids.filter(|(_, is_fused)| !**is_fused);
    let unfused = unfused.flat_map(|((id, own), _)| own.rows().map(move |row| (id, Row(row))));
    for (id, row) in unfused {
        let is_parameter = module.opcode(row) == Opcode::Parameter;
        if is_view(module.opcode(row)) || (is_parameter && id != module.entry()) {
            continue;
        }
        for leaf in module.shapes().leaves(module.shape(row)).take(MOST_LEAVES) {
            if wasteful.get(leaf.0 as usize).copied().flatten().is_none()
                || is_lookup_in_shard(module, row)
            {
                continue;
            }
            let (parameters, others) = rows.entry(leaf).or_default();
            if is_parameter { parameters.push(row) } else { others.push(row) }
        }
    }
    for (shape, (parameters, others)) in rows {
        let Some((held, logical)) = wasteful.get(shape.0 as usize).copied().flatten() else {
            continue;
        };
        // All parameters are live at once; of other arrays of a shape at least one is.
        let live = (parameters.len() as u64).max(1);
        let mut all: Vec<Row> = parameters.iter().chain(&others).copied().collect();
        // Compilers name few of the copies that they add.
        let is_nameless =
            |row: &Row| program.sources().place(module.metadata_columns(), *row).0 < 0;
        all.sort_by_key(is_nameless);
        let Some(first) = all.first().copied() else { continue };
        let is_own = parameters.is_empty() && !all.iter().any(|row| moves(module, *row));
        if is_own && is_nameless(&first) && program.has_phases() {
            continue;
        }
        let mut site = Site::new(first).runs(&program.runs(first));
        site.bytes = (held - logical).checked_mul(live);
        site = site
            .sum("tiled_bytes", held.saturating_mul(live))
            .sum("logical_bytes", logical.saturating_mul(live));
        site.change.resized.push(Resized { shape, bytes: logical });
        // Each array is written and read.
        let passes =
            |row: &Row| program.runs(*row).times(1 + module.users().get(row.0).len() as u64);
        let passes = others.iter().filter_map(passes).fold(0, u64::saturating_add);
        let moved = passes.saturating_mul(held - logical);
        if (moved as f64) < LEAST_SHARE * program.traffic() as f64 {
            site.falls = program.memory_falls(&site.change);
            if site.peak().is_some_and(|peak| peak < LEAST) {
                continue;
            }
        }
        site.places = all.len() as u64;
        all.truncate(MOST_ROWS);
        site.subjects = all;
        site.key = u64::from(shape.0) + 1;
        site.is_anywhere = true;
        sites.push(site);
    }
}

/// Whether `row` moves an array that another row makes.
fn moves(module: &Module, row: Row) -> bool {
    converts(module.opcode(row))
        || matches!(module.opcode(row), Opcode::CopyStart | Opcode::Slice | Opcode::DynamicSlice)
}

/// Whether `row` looks up rows of a parameter that is sharded along its last dimension.
fn is_lookup_in_shard(module: &Module, row: Row) -> bool {
    let gather = Trail::new(row).follow(module, converts);
    if module.opcode(gather.row) != Opcode::Gather {
        return false;
    }
    let Some(table) = gather.operand(module, 0) else { return false };
    let table = table.follow(module, converts).row;
    let text = module.attribute_bytes(table, "sharding");
    let decoded = text.and_then(|text| decode(b"sharding", Opcode::Parameter, text).ok());
    let Some(AttributeValue::Sharding(sharding)) = decoded else { return false };
    let cuts_last = |leaf: &LeafSharding<'_>| {
        leaf.tile_dimensions().and_then(|tiles| tiles.last().copied()).is_some_and(|n| n > 1)
    };
    sharding.leaves().iter().any(cuts_last)
}

/// How many leaves of a result are examined.
const MOST_LEAVES: usize = 256;
/// How many arrays of one shape a finding lists.
const MOST_ROWS: usize = 64;

/// The bytes of `shape` in HBM with and without padding, if padding dominates.
fn waste(program: &Program<'_>, shape: ShapeId, sizes: &[i64]) -> Option<(u64, u64)> {
    let ShapeView::Array(array) = program.module.shapes().get(shape) else { return None };
    if array.layout.is_none_or(|layout| layout.tiles.is_empty() || layout.memory_space != 0) {
        return None;
    }
    let held = u64::try_from(*sizes.get(shape.0 as usize)?).ok()?;
    let logical = array.logical_bytes().filter(|bytes| *bytes > 0)?;
    let is_wasteful = held / LEAST_FACTOR >= logical && held - logical >= LEAST;
    is_wasteful.then_some((held, logical))
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let shapes = program.module.shapes();
    let shape = u32::try_from(site.key.saturating_sub(1)).unwrap_or(0);
    let text = program.module.bytes(shapes.text(ShapeId(shape)));
    let (tiled, logical) = (site.figure("tiled_bytes"), site.figure("logical_bytes"));
    format!(
        "{} of shape {} {} mostly of padding: {} in tiles for {} of elements, {:.1} times as much{}",
        counted(site.places, "array", "arrays"),
        String::from_utf8_lossy(text),
        form(site.places, "consists", "consist"),
        bytes(tiled),
        bytes(logical),
        tiled as f64 / logical.max(1) as f64,
        site.peak().map(falls).unwrap_or_default(),
    )
}

/// By how much the peak falls without the padding.
fn falls(peak: u64) -> String {
    match peak {
        0 => "; the peak of memory is where other values are live, and stays: the padding takes time \
              where it is read and written"
            .to_owned(),
        peak => format!("; without it, the peak of memory falls by {}", bytes(peak)),
    }
}
