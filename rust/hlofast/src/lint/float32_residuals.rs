//! `float32-residuals`: activations that the backward pass finds in f32 although the program computes
//! in 16 bits.
//!
//! Three kinds count. Results of matmuls of an activation with a weight: their operands were
//! converted to f32. The state that a loop over layers hands on, if each layer adds the result of
//! such a matmul to it, or a norm of the result: one f32 value in a sum of 16-bit ones makes the sum f32.
//! And 16-bit results of such matmuls that an f32 weight multiplies: JAX converts them first, and the
//! gradient of the weight needs the converted value. What goes through a maximum into a softmax is f32
//! on purpose (scores of attention, logits, routers). So are the statistics of norms, and the sums of
//! attention in blocks, to which products of activations are added.
//!
//! Converted copies of 16-bit values do not count alone: compilers make and drop those by themselves. Nor
//! do programs whose collectives show the same fault (`float32-activations`), which promises the fall of memory then,
//! unless the program converts to 16 bits all that collectives send in f32: such values are f32 on their way only, and
//! neither rule promises memory.

use super::constraint::is_constraint;
use super::finding::Measure;
use super::float32_activations;
use super::low_precision_in_f32::is_widened_by_compiler;
use super::narrowed::{Stored, alike, halved};
use super::narrowed_copies::share_changes;
use super::program::{Program, bytes, counted, element_type, form, percent};
use super::site::{Rule, Site};
use super::widened_operands::{
    WidenedOperands, is_of_rows, is_widened_sum, kept_twice, made_for, spared,
};
use crate::flow::Phase;
use crate::flow::walk::{Trail, Use, conversions, converts, is_kept, is_maximum, uses_within};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, Dimension, ElementKind, ElementType, Module, Opcode, Row, ShapeId};
use crate::memory::{Change, Resized};
use crate::remat::{Residual, ResidualKind};
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

pub(super) const RULE: Rule = Rule {
    code: "float32-residuals",
    what: "activations kept for the backward pass in f32 although most matmuls are 16-bit",
    measure: Measure::Arrays,
    find,
    message,
    remedy: "convert to 16 bits what goes into these matmuls, and their weights \
             (x.astype(jnp.bfloat16); in Flax, dtype=jnp.bfloat16), and convert the result of the \
             embedding and the f32 results of norms back, so that what layers add to is 16-bit; \
             activations are then rounded to 16 bits",
};

/// The size of the smallest residuals that are reported.
const LEAST: u64 = 1 << 20;
/// Residuals that are smaller than this part of all residuals are left out, such as scores of routers. Of what a
/// matmul reads in f32, and of layers that no loop runs, all residuals of one shape count together, as they shrink
/// together.
const LEAST_PART: u64 = 32;
/// The key of sites whose values are kept twice.
const TWICE: u64 = 1 << 63;
/// How deep sums of sums are followed.
const DEEPEST: u32 = 6;

pub(super) fn is_f32(module: &Module, row: Row) -> bool {
    element_type(module, row) == Some(ElementType::F32)
}

/// A line of the source with the name of the operation, which matmuls of all layers share.
pub(super) type Written<'a> = (i32, i32, &'a [u8]);

/// Whether most matmuls of the forward pass return 16-bit values, whatever type the parameters have.
/// Lines of the source are counted, because one large matmul, such as a lookup by one-hot rows that
/// the compiler converted, says little of a program. The types of operands tell less: compilers for
/// TPUs convert f32 operands to 16 bits on their own.
pub(super) fn computes_in_16_bits(program: &Program<'_>) -> bool {
    let module = program.module;
    let mut lines: HashMap<Written<'_>, bool> = HashMap::new();
    for row in program.products() {
        let array = module.shapes().leaves(module.shape(row)).next();
        let Some(own) = array.and_then(|leaf| module.shapes().array(leaf)) else { continue };
        let is_float = own.element_type.kind() == ElementKind::Float;
        if program.runs(row).phase != Phase::Forward || !is_float {
            continue;
        }
        *lines.entry(program.written(row)).or_insert(true) &= own.element_type.bits() <= 16;
    }
    let narrow = lines.values().filter(|is_narrow| **is_narrow).count();
    2 * narrow > lines.len()
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let shown = float32_activations::streams(program);
    if !shown.iter().any(|site| program.matters(site, float32_activations::RULE.measure)) {
        sites.extend(found(program, &HashSet::new()));
    }
}

/// The change of memory once all residuals that are f32 have 16 bits, functions of matmuls at the places `wide` among
/// them.
pub(super) fn narrowed(program: &Program<'_>, wide: &HashSet<Place>) -> Change {
    let mut change = Change::default();
    for site in found(program, wide).into_iter().filter(|site| site.key & TWICE == 0) {
        change.add(site.change);
    }
    change
}

/// The residuals that count, whatever collectives show, and functions of matmuls at the places `wide`.
fn found(program: &Program<'_>, wide: &HashSet<Place>) -> Vec<Site> {
    let module = program.module;
    let mut sites = Vec::new();
    if is_widened_by_compiler(program) || !has_large_f32(module) || !computes_in_16_bits(program) {
        return sites;
    }
    let residuals = program.residuals();
    let size = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    let total = residuals.iter().fold(0u64, |sum, own| sum.saturating_add(size(own.bytes)));
    // By element type and dimensions, whatever the layout: the bytes of all.
    let mut alike: HashMap<(ElementType, Vec<Dimension>), u64> = HashMap::new();
    let kind = |shape: ShapeId| {
        let array = module.shapes().array(shape)?;
        Some((array.element_type, array.dimensions().collect()))
    };
    for own in residuals.iter().filter(|own| own.kind == ResidualKind::Activation) {
        let Some(kind) = kind(own.shape) else { continue };
        *alike.entry(kind).or_default() += size(own.bytes);
    }
    let mut keys: HashMap<Vec<Dimension>, u64> = HashMap::new();
    let mut stacks: HashSet<ShapeId> = HashSet::new();
    let products = Products::new(program);
    let operands = OnceCell::new();
    let mut unstacked: HashMap<ShapeId, Vec<Resized>> = HashMap::new();
    for residual in residuals {
        let held = size(residual.bytes);
        let Some(kind) = kind(residual.shape).filter(|kind| kind.0 == ElementType::F32) else {
            continue;
        };
        let all = alike.get(&kind).copied().unwrap_or_default();
        if residual.kind != ResidualKind::Activation || held < LEAST {
            continue;
        }
        if all < total / LEAST_PART {
            continue;
        }
        let operands = || operands.get_or_init(|| WidenedOperands::new(program, &products));
        // Layers that are written one by one keep an array each, which shrink together.
        let is_large = held >= total / LEAST_PART || residual.stacked.is_none();
        let made = is_large.then(|| made_in_f32(program, &products, residual, residuals));
        let made = made.flatten().or_else(|| made_for(program, operands(), residual));
        let made = made.or_else(|| made_at_places(program, residual, wide));
        let Some(made) = made else { continue };
        let mut site = site(made, residual, total);
        // Arrays that no loop stacks shrink alike, if their shape is one.
        let resized = || halved(program, residual, residuals);
        site.change.resized = match residual.stacked {
            Some(_) => resized(),
            None => unstacked.entry(residual.shape).or_insert_with(resized).clone(),
        };
        // Arrays of one shape shrink together, and so do layers of a stack outside it.
        stacks.extend(residual.stacked.map(|_| residual.shape));
        let layer = kind.1.get(usize::from(residual.stacked.is_some())..).unwrap_or_default();
        site.key = *keys.entry(layer.to_vec()).or_insert(u64::from(residual.shape.0) + 1);
        sites.push(site);
    }
    share_changes(program, &mut sites, &stacks);
    let twice = kept_twice(program, &products, residuals);
    for (reader, residual) in twice.iter().copied() {
        let held = size(residual.bytes);
        // All of its bytes go, of an f32 value half.
        if held < LEAST || held.saturating_mul(2) < total / LEAST_PART {
            continue;
        }
        let mut site = Site::new(reader).sum("kept_bytes", held).common("residual_bytes", total);
        site.evidence = vec![residual.made_by, residual.uses.1];
        site.bytes = Some(held);
        site.change.resized = spared(module, residual, (&twice, residuals));
        site.key = TWICE | u64::from(residual.shape.0);
        site.is_anywhere = true;
        site.phases = vec![Phase::Forward];
        sites.push(site);
    }
    sites
}

/// The place of a residual that 16-bit values halve, and that `made` makes.
fn site(made: Row, residual: &Residual, total: u64) -> Site {
    let held = u64::try_from(residual.bytes).unwrap_or(0);
    let mut site = Site::new(made).sum("kept_bytes", held).common("residual_bytes", total);
    site.evidence = vec![residual.made_by, residual.uses.1];
    site.bytes = Some(held / 2);
    // What the backward pass computes from 16-bit values takes half too.
    site.is_lower_bound = true;
    site.is_anywhere = true;
    site.phases = vec![Phase::Forward];
    site
}

/// Whether an array is large enough for a residual that counts.
fn has_large_f32(module: &Module) -> bool {
    let shapes = module.shapes();
    shapes.ids().any(|shape| {
        let array = shapes.array(shape);
        array.is_some_and(|array| array.element_type == ElementType::F32)
            && shapes.logical_bytes(shape).is_none_or(|size| size >= LEAST)
    })
}

/// The row that makes `residual` from matmuls at the places `wide`.
fn made_at_places(
    program: &Program<'_>,
    residual: &Residual,
    wide: &HashSet<Place>,
) -> Option<Row> {
    let module = program.module;
    let made = match residual.stacked {
        Some(_) => update(module, residual)?.operand(module, 1)?,
        None => Trail::new(residual.source),
    };
    float32_activations::is_made_at(program, wide, settle(module, made, added))
        .then_some(residual.source)
}

/// The row that makes `residual` in f32, if it is one of the kinds that count.
fn made_in_f32(
    program: &Program<'_>,
    products: &Products<'_>,
    residual: &Residual,
    all: &[Residual],
) -> Option<Row> {
    let module = program.module;
    let source = residual.source;
    // A 16-bit result is converted because it meets an f32 value: on purpose, or in what layers add to.
    let is_on_purpose =
        products.is_sum_of_narrow(program, source) && !hands_on_f32(module, residual);
    if !is_on_purpose && is_f32(module, source) && is_product(program, products, source) {
        return (!enters_softmax(program, source)).then_some(source);
    }
    if residual.stacked.is_none() {
        return is_widened_sum(program, products, source).then_some(source);
    }
    let stack = update(module, residual)?;
    if let Some(made) = scaled(program, products, &stack) {
        return Some(made);
    }
    // What a norm makes of the state is kept, and so is the state in f32, which the norm converts anyway.
    let is_norm = |own: &Stored| *own == Stored::Norm;
    let is_kept_anyway = alike(program, residual, all).iter().any(is_norm);
    added_to(program, products, stack).filter(|_| !is_kept_anyway)
}

/// The update of the stack that `residual` is. The way there starts at the loop, because functions that
/// several loops share may make it.
pub(super) fn update(module: &Module, residual: &Residual) -> Option<Trail> {
    let place = &residual.place;
    let &[element] = &place.path[..] else { return Some(Trail::new(residual.made_by)) };
    let Some(body) = module.called(place.row, CallRole::Body) else {
        return Some(Trail::new(residual.made_by));
    };
    let root = Row(module.computation(body).root);
    let stack = Row(*module.operands(root).get(element as usize)?);
    Some(Trail::new(stack).follow(module, moves))
}

/// Whether the loop whose stack `residual` is hands on an f32 value with as many elements as one layer of it.
fn hands_on_f32(module: &Module, residual: &Residual) -> bool {
    let elements = |shape| module.shapes().array(shape)?.elements();
    let first = || module.shapes().array(residual.shape)?.dimension(0)?.bound();
    let layers = || u64::try_from(first()?).ok().filter(|layers| *layers > 0);
    let layer = || Some(elements(residual.shape)? / layers()?);
    let Some(body) = module.called(residual.place.row, CallRole::Body) else { return false };
    let Some(layer) = layer() else { return false };
    let next = module.operands(Row(module.computation(body).root)).iter().enumerate();
    let mut large = next.filter(|(_, row)| {
        is_f32(module, Row(**row)) && elements(module.shape(Row(**row))) == Some(layer)
    });
    large.any(|(at, _)| !is_kept(module, body, at))
}

/// The product with a weight that the update of a stack, `update`, converts from 16 bits, and that an f32 weight
/// multiplies.
fn scaled(program: &Program<'_>, products: &Products<'_>, update: &Trail) -> Option<Row> {
    let (module, varying) = (program.module, program.varying()?);
    if module.opcode(update.row) != Opcode::DynamicUpdateSlice {
        return None;
    }
    let value = settle(module, update.operand(module, 1)?, added);
    let is_convert = module.opcode(value.row) == Opcode::Convert && is_f32(module, value.row);
    let end = settle(module, value.operand(module, 0).filter(|_| is_convert)?, reduces);
    let made = product_of(module, &end);
    let is_narrow = !is_f32(module, made) || products.is_sum_of_narrow(program, made);
    if !is_narrow || !products.is_weighted(program, made) {
        return None;
    }
    // A walk ends at the first such multiplication.
    let seen = std::cell::Cell::new(false);
    let is_other = |used: &Use| {
        let other = module.operands(used.row).get(1 - used.operand.min(1));
        let is_scale = module.opcode(used.row) == Opcode::Multiply
            && is_f32(module, used.row)
            && other.is_some_and(|other| !varying.is_from_batch(module, Row(*other)));
        seen.set(seen.get() || is_scale);
        !seen.get()
    };
    for row in taken(module, &end) {
        uses_within(&program.walk, row, &around(module, row), conversions, is_other);
    }
    seen.get().then_some(made)
}

/// The rows that have the value at `trail`.
fn taken(module: &Module, trail: &Trail) -> Vec<Row> {
    let &[element] = trail.path() else { return vec![trail.row] };
    let users = module.users().get(trail.row.0).iter().map(|user| Row(*user));
    users.filter(|user| module.tuple_index(*user) == Some(element as usize)).collect()
}

/// The row that makes the value at `trail`: a loop that passes shards around a ring writes the parts of a matmul's
/// result into its state.
pub(super) fn product_of(module: &Module, trail: &Trail) -> Row {
    let made = || {
        let &[element] = trail.path() else { return None };
        let body = module.called(trail.row, CallRole::Body)?;
        let next = *module.operands(Row(module.computation(body).root)).get(element as usize)?;
        Some(settle(module, Trail::new(Row(next)), reduces).row)
    };
    made().unwrap_or(trail.row)
}

/// The fusions and calls around `row`, outermost first.
fn around(module: &Module, row: Row) -> Vec<Row> {
    let mut calls = Vec::new();
    let mut inner = row;
    while let &[caller] = module.callers(module.computation_of(inner))
        && matches!(module.opcode(Row(caller)), Opcode::Fusion | Opcode::Call)
    {
        inner = Row(caller);
        calls.insert(0, inner);
    }
    calls
}

/// Goes back through what changes no value, constraints of shardings among it.
pub(super) fn settle(module: &Module, mut trail: Trail, through: fn(Opcode) -> bool) -> Trail {
    loop {
        trail = trail.follow(module, through);
        match trail.operand(module, 0).filter(|_| is_constraint(module, trail.row)) {
            Some(before) => trail = before,
            None => return trail,
        }
    }
}

/// The sum that makes the next value of the state which the update of a stack, `update`, writes as it is.
fn added_to(program: &Program<'_>, products: &Products<'_>, update: Trail) -> Option<Row> {
    let module = program.module;
    if module.opcode(update.row) != Opcode::DynamicUpdateSlice {
        return None;
    }
    let state = settle(module, update.operand(module, 1)?, added);
    let &[element] = state.path() else { return None };
    let body = module.computation_of(state.row);
    let &[outer] = module.callers(body) else { return None };
    let is_state = module.opcode(state.row) == Opcode::Parameter
        && module.opcode(Row(outer)) == Opcode::While
        && module.called(Row(outer), CallRole::Body) == Some(body)
        && !is_kept(module, body, element as usize);
    let root = Row(module.computation(body).root);
    let next = is_state.then(|| module.operands(root).get(element as usize))??;
    let sum = settle(module, Trail::new(Row(*next)), moves);
    let is_sum = module.opcode(sum.row) == Opcode::Add && is_f32(module, sum.row);
    let row = sum.row;
    (is_sum && adds_product(program, products, sum, DEEPEST)).then_some(row)
}

/// What changes no value.
pub(super) fn moves(opcode: Opcode) -> bool {
    converts(opcode) && opcode != Opcode::Convert
}

/// What puts a value into a stack: a dimension of size 1 is added.
pub(super) fn added(opcode: Opcode) -> bool {
    moves(opcode) || opcode == Opcode::Broadcast
}

/// Whether a term of the sum at `trail` is the result of a matmul with a weight.
fn adds_product(program: &Program<'_>, products: &Products<'_>, trail: Trail, depth: u32) -> bool {
    let module = program.module;
    (0..module.operands(trail.row).len()).any(|index| {
        let Some(term) = trail.operand(module, index) else { return false };
        let term = settle(module, term, reduces);
        let is_sum = module.opcode(term.row) == Opcode::Add && depth > 0;
        products.is_weighted(program, product_of(module, &term))
            || is_scaled(program, products, &term)
            || is_sum && adds_product(program, products, term, depth - 1)
    })
}

/// Whether the value at `trail` is the result of a matmul with a weight that another weight multiplies, or a norm of
/// such a result.
fn is_scaled(program: &Program<'_>, products: &Products<'_>, trail: &Trail) -> bool {
    let (module, Some(varying)) = (program.module, program.varying()) else { return false };
    let Some(sides) = factors(module, trail) else { return false };
    let is_own = |made: &Trail, scale: &Trail| {
        let normal = factors(module, made).and_then(|own| norm_of(module, own));
        !varying.is_from_batch(module, product_of(module, scale))
            && is_stream(program, products, normal.as_ref().unwrap_or(made))
    };
    is_own(&sides.0, &sides.1) || is_own(&sides.1, &sides.0)
}

/// The operands of the multiplication at `trail`.
fn factors(module: &Module, trail: &Trail) -> Option<(Trail, Trail)> {
    let side = |index| Some(settle(module, trail.operand(module, index)?, reduces));
    let is_multiply = module.opcode(trail.row) == Opcode::Multiply;
    side(0).zip(side(1)).filter(|_| is_multiply)
}

/// The one of two factors that is multiplied by one number for each row of features, as in a norm.
fn norm_of(module: &Module, (first, second): (Trail, Trail)) -> Option<Trail> {
    let is_statistic =
        |own: &Trail| module.opcode(own.row) == Opcode::Broadcast && is_of_rows(module, own.row);
    match (is_statistic(&first), is_statistic(&second)) {
        (false, true) => Some(first),
        (true, false) => Some(second),
        _ => None,
    }
}

/// Whether the value at `trail` is the result of a matmul with a weight, or a sum with one.
pub(super) fn is_stream(program: &Program<'_>, products: &Products<'_>, trail: &Trail) -> bool {
    let trail = settle(program.module, trail.clone(), reduces);
    let is_sum = program.module.opcode(trail.row) == Opcode::Add;
    products.is_weighted(program, product_of(program.module, &trail))
        || is_sum && adds_product(program, products, trail, DEEPEST)
}

/// Whether f32 `row` is the f32 result of a matmul, or that and a bias.
fn is_product(program: &Program<'_>, products: &Products<'_>, row: Row) -> bool {
    let module = program.module;
    let is_own = |index: usize| {
        let term = Trail::new(row).operand(module, index);
        let term = term.map(|term| settle(module, term, moves).row);
        term.is_some_and(|term| is_f32(module, term) && products.is_weighted(program, term))
    };
    products.is_weighted(program, row)
        || module.opcode(row) == Opcode::Add && (0..module.operands(row).len()).any(is_own)
}

/// What lies between a matmul and the sum that its result is added to.
pub(super) fn reduces(opcode: Opcode) -> bool {
    use Opcode::*;
    converts(opcode)
        || matches!(
            opcode,
            AllReduce
                | AllReduceStart
                | AllReduceDone
                | ReduceScatter
                | AllGather
                | Slice
                | DynamicSlice
        )
}

/// Whether a maximum is taken of what `row` makes, scaled, shifted or masked.
pub(super) fn enters_softmax(program: &Program<'_>, row: Row) -> bool {
    let module = program.module;
    let passes = |module: &Module, row: Row, operand: usize| {
        use Opcode::*;
        let opcode = module.opcode(row);
        let is_scaled = matches!(opcode, Multiply | Divide | Add | Subtract | Select | Tanh);
        is_scaled || operand == 0 && (reduces(opcode) || opcode == AllToAll)
    };
    // The walk ends at the first use that is not wanted: the maximum.
    let seen = std::cell::Cell::new(false);
    uses_within(&program.walk, row, &around(module, row), passes, |used| {
        seen.set(seen.get() || is_maximum(module, used.row));
        !seen.get()
    });
    seen.get()
}

/// A file and a line of the source.
pub(super) type Place = (i32, i32);

/// The matmuls of an activation with a weight.
pub(super) struct Products<'a> {
    /// By row.
    rows: HashSet<Row, BuildMix>,
    /// By name: compilers that overlap a matmul with its collective split it into parts, whose sum has
    /// its name.
    names: HashSet<&'a [u8], BuildMix>,
    /// The names of those that return 16-bit values.
    narrow: HashSet<&'a [u8], BuildMix>,
}

impl<'a> Products<'a> {
    pub fn new(program: &'a Program<'_>) -> Self {
        let mut own = Self {
            rows: Default::default(),
            names: Default::default(),
            narrow: Default::default(),
        };
        let weighted = program.products().filter(|row| has_weight(program, *row));
        for row in weighted {
            own.rows.insert(row);
            own.names.extend(program.op_name(row));
            if !is_f32(program.module, row) {
                own.narrow.extend(program.op_name(row));
            }
        }
        own
    }

    /// The places of matmuls of the forward pass whose results are f32 and enter no softmax.
    pub fn wide(&self, program: &Program<'_>) -> HashSet<Place> {
        let columns = program.module.metadata_columns();
        let is_wide = |row: &&Row| {
            is_f32(program.module, **row)
                && program.runs(**row).phase == Phase::Forward
                && !enters_softmax(program, **row)
        };
        let rows = self.rows.iter().filter(is_wide);
        rows.map(|row| program.sources().place(columns, *row)).filter(|own| own.0 >= 0).collect()
    }

    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.rows.iter().copied()
    }

    /// Whether `row` adds up parts of a matmul, which return 16-bit values: the compiler adds them in f32 and
    /// rounds the sum, which has 16 bits in the program, as has what is computed from it.
    fn is_sum_of_narrow(&self, program: &Program<'_>, row: Row) -> bool {
        let name = program.op_name(row);
        !self.rows.contains(&row) && name.is_some_and(|name| self.narrow.contains(name))
    }

    pub fn is_weighted(&self, program: &Program<'_>, row: Row) -> bool {
        let is_part = |opcode| matches!(opcode, Opcode::Add | Opcode::DynamicUpdateSlice);
        self.rows.contains(&row)
            || is_part(program.module.opcode(row))
                && program.op_name(row).is_some_and(|name| self.names.contains(name))
    }
}

/// Whether one side of the matmul `row` is a weight and the other is not.
fn has_weight(program: &Program<'_>, row: Row) -> bool {
    let module = program.module;
    let sides = || module.operands(row).iter().take(2).map(|row| Row(*row));
    if let Some(varying) = program.varying() {
        return sides().filter(|side| varying.is_from_batch(module, *side)).count() == 1;
    }
    let is_weight = |side: &Row| {
        let origin = Trail::new(*side).follow(module, is_part_of).row;
        module.opcode(origin) == Opcode::Parameter
            && module.computation_of(origin) == module.entry()
    };
    sides().filter(is_weight).count() == 1
}

fn is_part_of(opcode: Opcode) -> bool {
    use Opcode::*;
    converts(opcode)
        || matches!(opcode, Slice | DynamicSlice | AllGather | AllGatherStart | AllGatherDone)
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let kept = site.figure("kept_bytes");
    let total = site.figure("residual_bytes");
    let (how, remedy, falls_by) = match site.key & TWICE {
        0 => (
            "in f32 although most matmuls return 16-bit values",
            "16-bit values take half of it",
            ["at least ", ", with the f32 values of a layer"],
        ),
        _ => (
            "twice, as the program also converts the values to f32 for a matmul",
            "a matmul that reads the 16-bit values keeps them once",
            ["", ""],
        ),
    };
    format!(
        "{} {} kept from forward to backward {how}: {}, {} of the {} of all residuals{}; {remedy}{}",
        counted(site.places, "activation", "activations"),
        form(site.places, "is", "are"),
        bytes(kept),
        percent(kept, total),
        bytes(total),
        program.together(),
        site.peak().map(|peak| falls(peak, falls_by)).unwrap_or_default(),
    )
}

/// By how much the peak falls.
fn falls(peak: u64, [bound, with]: [&str; 2]) -> String {
    match peak {
        0 => "; the peak of memory is where other values are live, and stays".to_owned(),
        peak => format!("; the peak of memory falls by {bound}{}{with}", bytes(peak)),
    }
}
