//! What follows from gathers of activations along the axes of the batch, for `batch-gathered`.
//!
//! The gradient of a weight contracts the batch. Where the forward pass has gathered one of its sides, the
//! partitioner gathers the other one in the backward pass, and each device computes its part of the
//! gradient from the whole batch. With the batch sharded, devices reduce the gradient instead. Gathers whose
//! other side the backward pass gathers too are the partitioner's own choice and stay. The gradient of a value
//! has the constraint of the value, so it is gathered too.
//!
//! Collectives along other axes send what all devices along the axes of the batch hold: with the batch
//! sharded, they send one part of it. So does what is left of a gather along several axes.
//!
//! Where nothing shards the batch again, weights that are sharded along its axes (FSDP) are not gathered: devices
//! multiply their parts, and reduce and gather activations with the rows of all. With the batch sharded, weights are
//! sent instead.

use super::batch_gathered::{is_float, is_spelled};
use super::cut::{gathered_dimension, results};
use super::program::Program;
use crate::comms::bits;
use crate::comms::{Collective, CollectiveKind, Moved};
use crate::comms::{Varying, axes_text};
use crate::flow::Phase;
use crate::flow::walk::{Trail, conversions, converts, copies_part, is_concatenation, uses};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, Opcode, Row};
use std::collections::{HashMap, HashSet};

/// A gather that is reported.
#[derive(Clone, Copy)]
pub(super) struct Gather {
    /// The number of the collective.
    pub number: usize,
    /// The axes of the batch along which it gathers.
    pub axes: u64,
}

/// What goes with a gather.
#[derive(Clone, Debug, Default)]
pub(super) struct Follows {
    /// Payload of collectives that send less, or nothing, in all executions: by collective.
    pub saved: Vec<(usize, u64)>,
    /// Payload of reductions of gradients, and of gathers of weights, that take their place.
    pub added: u64,
    /// The part of it of weights that are sharded along the axes: gathers, and reductions of their gradients.
    pub weights: u64,
}

/// Limit on the rows between a matmul and what makes its operand.
const MOST_STEPS: u32 = 128;
/// The least payload of one repeated collective per step: statistics are small.
const LEAST: u64 = 1 << 16;

/// The payload that gather `number` sends more than with the batch sharded along `axes`, in all executions.
pub(super) fn saved_by(program: &Program<'_>, number: usize, axes: u64) -> Option<u64> {
    let collective = program.collectives.collectives.get(number)?;
    let payload = program.runs_of(collective).times(collective.payload()?)?;
    let (_, devices) = axes_text(program.mesh(), axes);
    match bits(program.parts(number).iter()) & !axes {
        0 => Some(payload),
        _ => Some(payload - payload / devices.max(1)),
    }
}

/// By gather of `reported`: what follows from it.
pub(super) fn follows(program: &Program<'_>, reported: &[Gather]) -> Vec<Follows> {
    let mut all = vec![Follows::default(); reported.len()];
    let Some(varying) = program.varying().filter(|_| !reported.is_empty()) else { return all };
    let finder = Finder::new(program, varying, reported);
    let (mut seen, mut whole) = (HashSet::new(), Vec::new());
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        if reported.iter().any(|own| own.number == number) {
            continue;
        }
        if let Some((at, product)) = finder.partner(number, collective) {
            let (Some(own), Some(gather)) = (all.get_mut(at), reported.get(at)) else { continue };
            // With the batch sharded along all its axes, no matmul needs the rows of other devices.
            let axes = varying.of_batch(program.parts(number));
            own.saved.extend(saved_by(program, number, axes).map(|saved| (number, saved)));
            if seen.insert((finder.written(product), program.module.shape(product))) {
                own.added = own.added.saturating_add(finder.reduced(product, gather.axes));
            }
        } else if let Some(at) = finder.gradient(number, collective)
            && let (Some(own), Some(gather)) = (all.get_mut(at), reported.get(at))
        {
            own.saved.extend(saved_by(program, number, gather.axes).map(|saved| (number, saved)));
        } else if let Some((at, saved)) = finder.feeding(number, collective)
            && let Some(own) = all.get_mut(at)
        {
            own.saved.push((number, saved));
        } else if let Some((at, saved)) = finder.repeated(collective, &all)
            && let Some(own) = all.get_mut(at)
        {
            own.saved.push((number, saved));
        } else if let Some(own) = finder.whole(number, collective) {
            whole.push(own);
        }
    }
    // Sums of what devices multiply with their parts of weights show that weights are not gathered.
    whole.sort_by_key(|own| own.at);
    for own in whole.chunk_by(|own, other| own.at == other.at) {
        let Some(at) = own.first().map(|own| own.at) else { continue };
        let sums = own.iter().filter(|own| own.is_sum);
        let lines: HashSet<Written<'_>> = sums.map(|own| own.line).collect();
        if let Some(follows) = all.get_mut(at).filter(|_| !lines.is_empty()) {
            follows.saved.extend(own.iter().map(|own| (own.number, own.payload)));
            follows.weights = finder.weights(at, &lines);
            follows.added = follows.added.saturating_add(follows.weights);
        }
    }
    // Gradients that all devices compute from the whole batch are not reduced yet.
    for product in finder.products.values().flatten() {
        let equal = varying.equal_operands(program.module, *product);
        let at = reported.iter().position(|own| own.axes & !equal == 0);
        if let Some((own, gather)) = at.and_then(|at| Some((all.get_mut(at)?, reported.get(at)?)))
            && seen.insert((finder.written(*product), program.module.shape(*product)))
        {
            own.added = own.added.saturating_add(finder.reduced(*product, gather.axes));
        }
    }
    all
}

/// The rows of all devices, which a gather brings together.
struct Rows {
    /// The size of the dimension along which it gathers.
    size: i64,
    /// Whether the array is a matrix, whose rows may be those of two dimensions.
    is_of_matrix: bool,
}

fn rows_of_all(program: &Program<'_>, gather: &Gather) -> Option<Rows> {
    let module = program.module;
    let collective = program.collectives.collectives.get(gather.number)?;
    let result = *results(module, collective).first()?;
    let array = module.shapes().array(module.shape(result))?;
    let size = array.dimensions().nth(gathered_dimension(module, collective)?)?.bound()?;
    Some(Rows { size, is_of_matrix: array.rank() == 2 })
}

/// A line of the source with the name of the operation.
type Written<'a> = (i32, i32, &'a [u8]);

/// A collective that sends activations with the rows of all devices.
struct Whole<'a> {
    number: usize,
    /// The reported gather.
    at: usize,
    /// In all executions.
    payload: u64,
    /// Whether the collective is a sum of the forward pass.
    is_sum: bool,
    /// The line of the matmul whose result or operand it sends.
    line: Written<'a>,
}

struct Finder<'a, 'b> {
    program: &'a Program<'b>,
    varying: &'a Varying,
    reported: &'a [Gather],
    /// By instruction of a collective: its number.
    numbers: HashMap<Row, usize, BuildMix>,
    /// By reported gather: the rows of all devices.
    rows: Vec<Option<Rows>>,
    /// The lines of all matmuls.
    matmuls: HashSet<Written<'a>>,
    /// The matmuls of the backward pass that multiply activations with activations.
    products: HashMap<Written<'a>, Vec<Row>>,
}

impl<'a, 'b> Finder<'a, 'b> {
    fn new(program: &'a Program<'b>, varying: &'a Varying, reported: &'a [Gather]) -> Self {
        let mut numbers = HashMap::default();
        for (number, collective) in program.collectives.collectives.iter().enumerate() {
            let range = collective.members.start as usize..collective.members.end as usize;
            let members = program.collectives.members.get(range).unwrap_or_default();
            let rows = members.iter().copied().chain([collective.row]).chain(collective.done);
            numbers.extend(rows.map(|row| (row, number)));
        }
        let rows = reported.iter().map(|own| rows_of_all(program, own)).collect();
        let (products, matmuls) = (HashMap::new(), HashSet::new());
        let mut own = Self { program, varying, reported, numbers, rows, matmuls, products };
        own.matmuls = program.products().map(|row| own.written(row)).collect();
        let mut products: HashMap<Written<'a>, Vec<Row>> = HashMap::new();
        for row in program.products().filter(|row| own.computes_gradient(*row)) {
            products.entry(own.written(row)).or_default().push(row);
        }
        own.products = products;
        own
    }

    /// Whether `row` is a matmul of the backward pass, both sides of which are computed from the batch, and
    /// which sums over the batch: the gradient of a weight. Other such matmuls keep the batch.
    fn computes_gradient(&self, row: Row) -> bool {
        let (program, module) = (self.program, self.program.module);
        let &[first, second, ..] = module.operands(row) else { return false };
        let sides = [Row(first), Row(second)];
        let is_batch = |side: &Row| self.varying.is_from_batch(module, *side);
        let sums_all = || {
            let elements = |row: Row| program.elements(row).map(u128::from);
            let result = elements(row)?;
            let summed = u128::from(program.product_flops(row)?) / 2 / result.max(1);
            let read = elements(sides[0])?.checked_mul(elements(sides[1])?)?;
            Some(read == result.checked_mul(summed)?.checked_mul(summed)?)
        };
        module.opcode(row).is_matmul()
            && program.runs(row).phase == Phase::Backward
            && sides.iter().all(is_batch)
            && sums_all() == Some(true)
    }

    fn written(&self, row: Row) -> Written<'a> {
        let (file, line) =
            self.program.sources().place(self.program.module.metadata_columns(), row);
        (file, line, self.program.op_name(row).unwrap_or_default())
    }

    /// The axes of the batch along which `collective` gathers activations.
    fn gathers(&self, number: usize, collective: &Collective) -> u64 {
        match (collective.kind, collective.moved) {
            (CollectiveKind::AllGather, Moved::Activation) => {
                self.varying.of_batch(self.program.parts(number))
            }
            _ => 0,
        }
    }

    /// For a gather of the backward pass: the reported gather that made the other side of its matmul, and
    /// that matmul.
    fn partner(&self, number: usize, collective: &Collective) -> Option<(usize, Row)> {
        let axes = self.gathers(number, collective);
        let is_backward = self.program.runs_of(collective).phase == Phase::Backward;
        if axes == 0 || !is_backward || is_spelled(self.program, collective) {
            return None;
        }
        let module = self.program.module;
        // A gather that is overlapped with its matmul has its name; another one is an operand of it.
        let named = self.products.get(&self.written(collective.row)).into_iter().flatten().copied();
        let read = results(module, collective).into_iter().flat_map(|row| {
            let uses = uses(&self.program.walk, row, conversions, |_| true).unwrap_or_default();
            uses.into_iter().map(|used| used.row)
        });
        named.chain(read).filter(|product| self.computes_gradient(*product)).find_map(|product| {
            let sides = module.operands(product).iter().take(2);
            let mut found = sides.filter_map(|side| {
                self.maker(Trail::new(Row(*side)), &mut { MOST_STEPS })
                    .filter(|at| self.reported.get(*at).is_some_and(|own| own.axes & axes != 0))
            });
            found.next().map(|at| (at, product))
        })
    }

    /// For a gather of the backward pass: the reported gather of as many elements, of whose value it gathers
    /// the gradient.
    fn gradient(&self, number: usize, collective: &Collective) -> Option<usize> {
        let (program, module) = (self.program, self.program.module);
        let axes = self.gathers(number, collective);
        if axes == 0 || program.runs_of(collective).phase != Phase::Backward {
            return None;
        }
        let size = program.elements(collective.row).filter(|_| is_float(module, collective.row))?;
        self.reported.iter().position(|own| {
            let reported = program.collectives.collectives.get(own.number);
            let is_same = |own: &Collective| program.elements(own.row) == Some(size);
            own.axes & axes != 0 && reported.is_some_and(is_same)
        })
    }

    /// The reported gather whose result, or a function of each element of it, is the value at `trail`,
    /// perhaps after a loop has stacked it.
    fn maker(&self, trail: Trail, left: &mut u32) -> Option<usize> {
        *left = left.checked_sub(1)?;
        let module = self.program.module;
        let trail = trail.follow(module, moves);
        let row = trail.row;
        if let Some(number) = self.numbers.get(&row) {
            let reported = self.reported.iter().position(|own| own.number == *number);
            let moved =
                || self.program.collectives.collectives.get(*number).filter(|own| exchanges(own));
            let before = || Some(Row(*module.operands(moved()?.row).first()?));
            return reported.or_else(|| self.maker(Trail::new(before()?), left));
        }
        match module.opcode(row) {
            Opcode::While => {
                let body = module.called(row, CallRole::Body)?;
                let &[element] = trail.path() else { return None };
                let root = Row(module.computation(body).root);
                let stack = Row(*module.operands(root).get(element as usize)?);
                let update = Trail::new(stack).follow(module, moves);
                let is_update = module.opcode(update.row) == Opcode::DynamicUpdateSlice;
                self.maker(update.operand(module, 1).filter(|_| is_update)?, left)
            }
            Opcode::AsyncDone | Opcode::AsyncUpdate => self.maker(trail.operand(module, 0)?, left),
            Opcode::AsyncStart if copies_part(module, row) => {
                self.maker(trail.operand(module, 0)?, left)
            }
            Opcode::CustomCall if is_concatenation(module, row) => {
                self.maker(trail.operand(module, 0)?, left)
            }
            Opcode::DynamicUpdateSlice => self.maker(trail.operand(module, 1)?, left),
            opcode if opcode.is_elementwise() => (0..module.operands(row).len())
                .find_map(|index| self.maker(trail.operand(module, index)?, left)),
            _ => None,
        }
    }

    /// Payload of the reduction of the gradient that `product` computes, with the batch sharded along
    /// `axes`.
    fn reduced(&self, product: Row, axes: u64) -> u64 {
        let (_, devices) = axes_text(self.program.mesh(), axes);
        let is_whole = self.varying.equal(self.program.module, product) & axes == axes;
        let size = self.program.bytes(product).saturating_mul(if is_whole { 1 } else { devices });
        self.program.runs(product).times(size).unwrap_or(0)
    }

    /// For an exchange of activations: the reported gather of what it sends, or of what it sends a part of, and
    /// its payload. Devices change places where a gather leaves out one of two axes; devices that have gathered
    /// the rows along one of two axes exchange parts of them along the other.
    fn feeding(&self, number: usize, collective: &Collective) -> Option<(usize, u64)> {
        let (program, module) = (self.program, self.program.module);
        if !exchanges(collective) || collective.moved != Moved::Activation {
            return None;
        }
        let feeds = |own: &Gather| {
            let gather = program.collectives.collectives.get(own.number);
            let operand = gather.and_then(|gather| module.operands(gather.row).first().copied());
            operand.is_some_and(|row| {
                let from = Trail::new(Row(row)).follow(module, moves).row;
                self.numbers.get(&from) == Some(&number)
            })
        };
        let payload = program.runs_of(collective).times(collective.payload()?)?;
        let sends_part = || {
            let axes = self.varying.of_batch(program.parts(number));
            let operand = module.operands(collective.row).first().filter(|_| axes != 0)?;
            self.maker(Trail::new(Row(*operand)), &mut { MOST_STEPS })
        };
        let at = self.reported.iter().position(feeds).or_else(sends_part)?;
        Some((at, payload))
    }

    /// For a collective along other axes that sends what devices along the axes of a reported gather all
    /// hold: the gather, and the payload that it sends again.
    fn repeated(&self, collective: &Collective, all: &[Follows]) -> Option<(usize, u64)> {
        use CollectiveKind::*;
        let module = self.program.module;
        let is_wanted = matches!(collective.kind, AllReduce | ReduceScatter | AllToAll | AllGather)
            && collective.moved == Moved::Activation;
        let runs = self.program.runs_of(collective);
        if !is_wanted || !matches!(runs.phase, Phase::Forward | Phase::Recompute | Phase::Backward)
        {
            return None;
        }
        let payload = runs.times(collective.payload()?).filter(|payload| *payload >= LEAST)?;
        let operands = module.operands(collective.row);
        let is_batch = |row: &u32| self.varying.is_from_batch(module, Row(*row));
        let equal = operands.iter().map(|row| self.varying.equal(module, Row(*row)));
        let equal = equal.reduce(|a, b| a & b).filter(|_| operands.iter().all(is_batch))?;
        // The gather after which most follows is the one that most likely causes it.
        let of_axes = |at: &usize| self.reported.get(*at).is_some_and(|own| own.axes & !equal == 0);
        let most = |at: &usize| all.get(*at).map_or(0, |own| own.saved.len());
        let at = (0..self.reported.len()).filter(of_axes).max_by_key(most)?;
        let (_, devices) = axes_text(self.program.mesh(), self.reported.get(at)?.axes);
        Some((at, payload - payload / devices.max(1)))
    }
}

/// A batch that is whole, and stays so.
impl<'a> Finder<'a, '_> {
    /// Whether `row` has a dimension of the rows that the reported gather `at` makes whole, or two of them where it
    /// gathers a matrix.
    fn is_whole(&self, at: usize, row: Row) -> bool {
        let Some(Some(rows)) = self.rows.get(at) else { return false };
        let module = self.program.module;
        let Some(array) = module.shapes().array(module.shape(row)) else { return false };
        let sizes: Vec<Option<i64>> = array.dimensions().map(|own| own.bound()).collect();
        let is_pair = |pair: &[Option<i64>]| match pair {
            [Some(first), Some(second)] => first.checked_mul(*second) == Some(rows.size),
            _ => false,
        };
        sizes.contains(&Some(rows.size)) || rows.is_of_matrix && sizes.windows(2).any(is_pair)
    }

    /// For a collective along the axes of a reported gather that sends what matmuls read or return, with the rows of
    /// all devices: the partitioner multiplies the parts of weights where they lie.
    fn whole(&self, number: usize, collective: &Collective) -> Option<Whole<'a>> {
        use CollectiveKind::*;
        let (program, module) = (self.program, self.program.module);
        let runs = program.runs_of(collective);
        let is_sum = matches!(collective.kind, AllReduce | ReduceScatter);
        let is_wanted = (is_sum || collective.kind == AllGather)
            && collective.moved == Moved::Activation
            && !is_spelled(program, collective)
            && matches!(runs.phase, Phase::Forward | Phase::Recompute | Phase::Backward);
        let axes = bits(program.parts(number).iter());
        let payload = runs.times(collective.payload()?).filter(|payload| *payload >= LEAST)?;
        // Reductions that are written as fusions have the line of the fusion.
        let own = [collective.row, program.scheduled(collective.row)];
        let lines = own.into_iter().map(|row| self.written(row));
        let line =
            lines.into_iter().find(|line| self.matmuls.contains(line)).filter(|_| is_wanted)?;
        // The fusion around a reduction may flatten and pad its operand.
        let operands = own.map(|row| module.operands(row));
        let is_like = |at: usize, row: Row| {
            is_float(module, row)
                && self.varying.is_from_batch(module, row)
                && self.is_whole(at, row)
        };
        let at = (0..self.reported.len()).filter(|_| axes != 0).find(|at| {
            let is_along = self.reported.get(*at).is_some_and(|own| axes & !own.axes == 0);
            let all_like =
                |rows: &&[u32]| !rows.is_empty() && rows.iter().all(|row| is_like(*at, Row(*row)));
            is_along && operands.iter().any(all_like)
        })?;
        let is_sum = is_sum && runs.phase == Phase::Forward;
        Some(Whole { number, at, payload, is_sum, line })
    }

    /// Payload of the weights of which matmuls of `lines` read the part of a device: with the batch sharded along the
    /// axes of the reported gather `at`, they are gathered forward and back, and their gradient is reduced.
    fn weights(&self, at: usize, lines: &HashSet<Written<'_>>) -> u64 {
        let (program, module) = (self.program, self.program.module);
        let Some(axes) = self.reported.get(at).map(|own| own.axes) else { return 0 };
        let (_, devices) = axes_text(program.mesh(), axes);
        let is_batch = |row: Row| self.varying.is_from_batch(module, row);
        let part = |row: Row| {
            let &[first, second, ..] = module.operands(row) else { return None };
            let (rows, weight) = match (is_batch(Row(first)), is_batch(Row(second))) {
                (true, false) => (Row(first), Row(second)),
                (false, true) => (Row(second), Row(first)),
                _ => return None,
            };
            let is_own = program.runs(row).phase == Phase::Forward
                && module.opcode(row).is_matmul()
                && lines.contains(&self.written(row))
                && self.varying.equal(module, weight) & axes == 0
                && self.is_whole(at, rows);
            is_own.then(|| program.runs(row).times(program.bytes(weight)))?
        };
        let parts = program.products().filter_map(part).fold(0, u64::saturating_add);
        parts.saturating_mul(devices).saturating_mul(3)
    }
}

/// Whether devices exchange arrays or parts of them.
fn exchanges(collective: &Collective) -> bool {
    matches!(collective.kind, CollectiveKind::AllToAll | CollectiveKind::CollectivePermute)
}

/// What keeps elements, or a part of them.
fn moves(opcode: Opcode) -> bool {
    converts(opcode) || matches!(opcode, Opcode::Slice | Opcode::DynamicSlice)
}
