//! Scans over layers: pairs of a forward and a backward loop, and the stacks between them.

use super::NoPolicies;
use super::graph::{Graph, MOST_ROWS, Value};
use super::groups::{Group, leaf, leave_recurrences, made_by};
use super::hosted::{self, Host};
use super::inner::is_only_stacked;
use super::late::{Late, is_in_rings};
use super::loaded::readers;
use super::named::loops_around;
use super::pairs::{most_read, trips_of};
use super::recomputed::{Origin, Recomputed};
use super::stacks::handed_on;
pub use super::stacks::{Read, Stack};
use super::stacks::{is_unchanged, stacked, written_by};
use super::turned::turn_back;
use super::widened::{Widened, widened};
use crate::cost::{Backend, Cost};
use crate::flow::moved::step_back;
use crate::flow::origin::{Path, Place};
use crate::flow::{Attribution, Phase};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use crate::memory::{LiveValue, Memory};
use crate::remat::counted::part;
use crate::remat::residuals::stack_of;
use hashbrown::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// Limit on the pairs of loops that are compared.
const MOST_PAIRS: usize = 1 << 12;
/// Limit on the rows that are followed from a loop's state to another loop.
pub const MOST_STEPS: usize = 256;
/// Limit on the elements of a loop's state that are followed.
const MOST_ELEMENTS: usize = 1 << 16;
/// Limit on the rows that rearrange a value one after another.
pub const MOST_REARRANGED: u32 = 8;

/// A forward loop, its backward loop and what lies between.
#[derive(Debug)]
pub struct Scan {
    /// The loop of the forward pass.
    pub forward: Row,
    /// The loop of the backward pass.
    pub backward: Row,
    /// Layers: the iterations, in all groups, and layers that the compiler has taken out of the loop.
    pub trips: u64,
    /// Iterations of the loop, in all groups.
    pub in_loop: u64,
    /// The groups of layers whose values are kept together; None if one loop runs over all layers.
    pub group: Option<Group>,
    /// Whether the forward loop itself repeats work, because groups are under `jax.checkpoint`.
    pub is_again: bool,
    /// The forward body.
    pub body: Graph,
    /// The backward body.
    pub back: Graph,
    /// The computation of the forward body.
    pub body_id: ComputationId,
    /// The computation of the backward body.
    pub back_id: ComputationId,
    /// The stacks, by element of the forward loop's result.
    pub stacks: Vec<Stack>,
    /// The rows that store stacks, ascending; none before optimisation, where storing has no cost.
    pub stack_rows: Vec<Row>,
    /// The nodes of all stacks, ascending; none before optimisation.
    pub stack_nodes: Vec<u32>,
    /// What the backward body recomputes.
    pub recomputed: Recomputed,
    /// The steps of the forward body.
    pub body_steps: RangeInclusive<u32>,
    /// The steps of the backward body.
    pub back_steps: RangeInclusive<u32>,
    /// The gradients of weights that wait in the text, or would under other policies; none but on TPUs.
    pub late: Late,
    /// Whether products run in loops around rings.
    pub is_in_rings: bool,
    /// The steps at which stacks count twice, because a loop takes them over; none by most rules.
    pub handed_on: Vec<RangeInclusive<u32>>,
    /// The products that the forward body writes in a wider type.
    pub widened: Vec<Widened>,
    /// If checkpointed layers are laid out as if they were not (`laid_checkpoints.rs`): the nodes of the forward body
    /// that have stacks here and none in the text, ascending.
    pub residuals: Option<Vec<u32>>,
}

impl Scan {
    /// Whether layers are under `jax.checkpoint` in the text.
    pub fn is_checkpointed(&self) -> bool {
        self.recomputed.is_checkpointed || self.residuals.is_some()
    }

    /// The stacks that the text has.
    pub fn stacks_of_text(&self) -> impl Iterator<Item = &Stack> {
        let residuals = self.residuals.as_deref().unwrap_or_default();
        self.stacks.iter().filter(|own| residuals.binary_search(&own.node).is_err())
    }

    /// The forward and the backward loop that run over all layers.
    pub fn outer(&self) -> [Row; 2] {
        self.group.as_ref().map_or([self.forward, self.backward], |group| group.outer)
    }

    /// The steps at which a value of all layers is kept.
    pub fn kept_steps(&self) -> RangeInclusive<u32> {
        match &self.group {
            Some(group) => group.steps.clone(),
            None => *self.body_steps.start()..=*self.back_steps.end(),
        }
    }

    /// The last step of the forward pass.
    pub fn forward_end(&self) -> u32 {
        self.group.as_ref().map_or(*self.body_steps.end(), |group| group.forward_end)
    }

    /// What all layers take, if the iterations of the loop take `amount` together.
    pub fn of_layers(&self, amount: i64) -> Option<i64> {
        let all = i128::from(amount) * i128::from(self.trips) / i128::from(self.in_loop.max(1));
        i64::try_from(all).ok()
    }

    /// The layers, for each iteration of the loop.
    pub fn share(&self) -> f64 {
        self.trips as f64 / self.in_loop.max(1) as f64
    }
}

/// The first and the last step of a computation's own rows.
pub fn steps_of(
    module: &Module,
    memory: &Memory,
    id: ComputationId,
) -> Option<RangeInclusive<u32>> {
    let rows = module.computation(id).rows();
    let mut steps = rows.filter_map(|row| memory.step_of(Row(row)));
    let first = steps.next()?;
    let (low, high) = steps.fold((first, first), |(a, b), step| (a.min(step), b.max(step)));
    Some(low..=high)
}

/// The scans of `module`. Empty if there are none or the module is too large; an error if layers
/// are scanned in groups that the model does not cover.
pub fn scans(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    memory: &Memory,
    values: &[LiveValue],
    sizes: &[i64],
) -> Result<Vec<Scan>, NoPolicies> {
    let mut loops: HashMap<ComputationId, Vec<Row>, BuildMix> = HashMap::default();
    for entry in &cost.loops {
        loops.entry(module.computation_of(entry.row)).or_default().push(entry.row);
    }
    let mut places: Vec<ComputationId> = loops.keys().copied().collect();
    places.sort_unstable_by_key(|id| id.0);
    let mut by_row: HashMap<Row, Vec<u32>, BuildMix> = HashMap::default();
    let mut by_buffer: HashMap<u32, Vec<u32>, BuildMix> = HashMap::default();
    for (number, value) in (0u32..).zip(values) {
        by_row.entry(value.row).or_default().push(number);
        by_buffer.entry(value.buffer).or_default().push(number);
    }
    let budget = MOST_ROWS;
    let is_tpu = Backend::of_module(module) == Backend::Tpu;
    let turned = HashMap::default();
    let mut finder =
        Finder { module, cost, memory, values, sizes, by_row, by_buffer, turned, is_tpu, budget };
    let phases = &attribution.whose(module).phase;
    let phase = |row: Row| phases.get(row.0 as usize).copied().unwrap_or(Phase::Unattributed);
    let mut scans: Vec<Scan> = Vec::new();
    // Loops over the layers of a group in backward bodies.
    let mut inner: Vec<Row> = Vec::new();
    for place in places {
        let loops = &loops[&place];
        if loops.len().saturating_mul(loops.len()) > MOST_PAIRS {
            continue;
        }
        let is_late = |row: &&Row| matches!(phase(**row), Phase::Backward | Phase::Recompute);
        let backs: Vec<Row> = loops.iter().filter(is_late).copied().collect();
        let sources: Vec<_> = backs.iter().map(|back| finder.sources(*back)).collect();
        let most = most_read(&sources);
        for (back, sources) in backs.iter().zip(&sources) {
            for forward in loops.iter().filter(|row| **row < *back) {
                let read: Vec<(u32, u32)> = sources
                    .iter()
                    .filter(|(_, source)| source.row == *forward)
                    .filter_map(|(element, source)| Some((*source.path.last()?, *element)))
                    .collect();
                // A forward loop has one backward loop; others only read its results.
                let is_known = scans.iter().any(|scan| scan.outer()[0] == *forward);
                let is_others = most.get(forward).is_some_and(|most| read.len() < *most);
                if is_known || is_others || phase(*forward) == Phase::Backward {
                    continue;
                }
                let inputs = finder.inputs(*forward, *back, sources);
                if read.is_empty() && inputs.is_empty() {
                    continue;
                }
                let Some(loops) = finder.loops_in(*forward, *back) else { continue };
                if loops.iter().all(Vec::is_empty) {
                    let is_again = phase(*forward) == Phase::Recompute;
                    scans.extend(finder.scan([*forward, *back], &read, &inputs, is_again));
                    continue;
                }
                inner.extend(&loops[1]);
                scans.extend(finder.groups([*forward, *back], &read, &loops)?);
            }
        }
    }
    let is_covered = |row: &Row| {
        scans.iter().any(|scan| scan.backward == *row || scan.forward == *row && scan.is_again)
    };
    if let Some(row) = inner.iter().find(|row| !is_covered(row)) {
        return Err(NoPolicies::Nested(*row));
    }
    // Peaks of layers in groups are nearer without: `benches/policy_accuracy.py`.
    if scans.iter().any(|scan| scan.group.is_some() || scan.is_again) {
        scans.iter_mut().for_each(|scan| scan.late = Late::default());
    }
    leave_recurrences(module, &mut scans);
    Ok(scans)
}

pub struct Finder<'a> {
    pub module: &'a Module,
    pub cost: &'a Cost,
    pub memory: &'a Memory,
    pub values: &'a [LiveValue],
    /// By shape: bytes.
    pub sizes: &'a [i64],
    /// By row that makes them: values.
    pub by_row: HashMap<Row, Vec<u32>, BuildMix>,
    /// By buffer: the values that share it.
    by_buffer: HashMap<u32, Vec<u32>, BuildMix>,
    /// By loop and element of its state: copies in another order that are made of the element before.
    turned: HashMap<(Row, u32), Vec<Place>, BuildMix>,
    /// Whether the text is of XLA for TPUs.
    is_tpu: bool,
    /// Rows that may still be opened or followed.
    pub budget: usize,
}

impl Finder<'_> {
    pub fn numbered<'b>(
        &'b self,
        numbers: Option<&'b Vec<u32>>,
    ) -> impl Iterator<Item = &'b LiveValue> {
        numbers.into_iter().flatten().filter_map(|number| self.values.get(*number as usize))
    }

    /// By element of a loop's initial state: where it comes from.
    pub fn sources(&mut self, back: Row) -> Vec<(u32, Place)> {
        let module = self.module;
        let Some(state) = module.operands(back).first().map(|row| Row(*row)) else {
            return Vec::new();
        };
        let count = module.shapes().tuple(module.shape(state)).map_or(0, <[_]>::len);
        let mut budget = self.budget;
        let mut to_loop = |place: &mut Place, turned: &mut Vec<Place>| {
            for _ in 0..MOST_STEPS.min(budget) {
                if module.opcode(place.row) == Opcode::While {
                    break;
                }
                if !step_back(module, place) {
                    let copy = place.clone();
                    if !turn_back(module, place) {
                        break;
                    }
                    turned.push(copy);
                }
                budget -= 1;
            }
        };
        let turned = &mut self.turned;
        let mut source = |element: u32| {
            let mut place = Place { row: state, path: Path::from_slice(&[element]) };
            let mut copies = Vec::new();
            to_loop(&mut place, &mut copies);
            if module.opcode(place.row) != Opcode::While {
                place = stack_of(module, &place);
                to_loop(&mut place, &mut copies);
            }
            if module.opcode(place.row) == Opcode::While && !copies.is_empty() {
                turned.insert((back, element), copies);
            }
            (element, place)
        };
        let sources = (0..count.min(MOST_ELEMENTS) as u32).map(&mut source).collect();
        self.budget = budget;
        sources
    }

    /// The scan of two loops; `read` pairs elements of the forward result with elements of the
    /// backward state, `inputs` elements of the forward loop's own state with these.
    fn scan(
        &mut self,
        [forward, backward]: [Row; 2],
        read: &[(u32, u32)],
        inputs: &[(u32, u32)],
        is_again: bool,
    ) -> Option<Scan> {
        let module = self.module;
        let body_id = module.called(forward, CallRole::Body)?;
        let back_id = module.called(backward, CallRole::Body)?;
        let in_loop = trips_of(self.cost, forward)?;
        let mut trips = in_loop;
        let mut body = Graph::new(module, body_id, &[], &mut self.budget)?;
        let back = Graph::new(module, back_id, &[], &mut self.budget)?;
        let mut stacks: Vec<(u32, Stack)> = Vec::new();
        let mut buffers: HashSet<u32, BuildMix> = HashSet::default();
        for (element, read_as) in read {
            let copies = self.turned.get(&(backward, *read_as)).map_or(&[][..], Vec::as_slice);
            // Elements of the state may share a copy, and a copy the memory of its stack.
            let own = self.buffer_at(&Place { row: forward, path: Path::from_slice(&[*element]) });
            buffers.extend(own);
            let buffer = |place: &Place| self.buffer_at(place).filter(|own| buffers.insert(*own));
            let turned: Vec<u32> = copies.iter().filter_map(buffer).collect();
            let turned: Vec<_> = turned.into_iter().filter_map(|own| self.buffer(own)).collect();
            let copies = copies.iter().map(|place| place.row);
            if let Some((_, stack)) = stacks.iter_mut().find(|(known, _)| known == element) {
                stack.read_as.push(*read_as);
                stack.turned.extend(turned);
                stack.rows.extend(copies);
                continue;
            }
            let node = match self.is_one_layer(forward) {
                true => made_by(&body, *element, trips),
                false => stacked(&body, *element),
            };
            let Some(node) = node else { continue };
            if hosted::is_host(module, module.shape(forward), *element) {
                let host = Host { body: &body, back: &back, element: *element, read_as: *read_as };
                let (node, written_as) = host.value(node);
                trips = trips.max(host.layers(module, forward, node, in_loop));
                let (read_as, fetched_as) = host.fetched();
                // Other ways to move values are not modelled.
                let is_host = written_as.is_some() || !fetched_as.is_empty();
                let mut moving = self.moving(forward, written_as, Some((&body, node)));
                for element in fetched_as {
                    moving.extend(self.moving(backward, Some(element), None));
                }
                body.on_host.insert(node);
                let own = Stack::new(&body, node, 0, 0, 0..=0);
                let own = Stack { read_as, is_weight: false, is_host, moving, ..own };
                stacks.push((*element, own));
                continue;
            }
            let Some((bytes, live)) = self.stack(forward, *element) else { continue };
            let own = Stack::new(&body, node, *read_as, bytes, live);
            let written = written_by(&body, *element);
            let rows = copies.chain(written).chain(self.filled_by(forward, *element)).collect();
            let place = Place { row: forward, path: Path::from_slice(&[*element]) };
            let twice = self.buffer_at(&place).map_or(Vec::new(), |own| self.overlaps(own));
            stacks.push((*element, Stack { turned, rows, twice, ..own }));
        }
        for (element, read_as) in inputs {
            let node = leaf(&body, *element).filter(|node| !is_unchanged(&body, *node));
            let state = module.operands(forward).first().map(|row| Row(*row));
            let known = state.and_then(|state| self.stack(state, *element));
            let steps = steps_of(module, self.memory, body_id);
            let (Some(node), Some((bytes, live)), Some(steps)) = (node, known, steps) else {
                continue;
            };
            // What makes the input of a layer holds it before.
            let live = (*live.start()).max(*steps.start())..=*live.end();
            stacks.push((u32::MAX, Stack::new(&body, node, *read_as, bytes, live)));
        }
        if stacks.is_empty() {
            return None;
        }
        let stacks = stacks.into_iter().map(|(_, stack)| stack).collect();
        let mut scan = self.joined([forward, backward], [body, back], stacks, [trips, in_loop])?;
        scan.is_again = is_again;
        Some(scan)
    }

    /// The scan of a forward and a backward loop with the graphs of their bodies, the number of layers
    /// and that of iterations.
    pub fn joined(
        &self,
        [forward, backward]: [Row; 2],
        [mut body, back]: [Graph; 2],
        mut stacks: Vec<Stack>,
        [trips, in_loop]: [u64; 2],
    ) -> Option<Scan> {
        let module = self.module;
        let body_id = module.called(forward, CallRole::Body)?;
        let back_id = module.called(backward, CallRole::Body)?;
        let body_steps = steps_of(module, self.memory, body_id)?;
        let back_steps = steps_of(module, self.memory, back_id)?;
        let mut leaves: HashMap<u32, u32, BuildMix> = HashMap::default();
        for (number, node) in (0u32..).zip(&back.nodes) {
            leaves.extend(node.element.map(|element| (element, number)));
        }
        let end = *back_steps.end();
        let step_of = |node: usize| self.memory.step_of(back.nodes[node].outer).unwrap_or(end);
        let loops = loops_around(module, backward);
        let text = (self.sizes, Origin::Scheduled, loops);
        let mut recomputed = Recomputed::new(module, step_of, &mut body, &back, text);
        body.keep_passing(self.cost, body_id, |body, node| {
            let shape = body.nodes[node as usize].shape;
            self.sizes.get(shape.0 as usize).copied().unwrap_or(0).max(0)
        });
        let rows = module.computation(back_id).rows();
        recomputed.find_live(&back, self.values.iter().filter(|own| rows.contains(&own.row.0)));
        let is_in_rings = is_in_rings(module, &body);
        let (late, widened) = match self.is_tpu {
            true => {
                let loops = ([&body, &back], backward);
                let late = Late::new(module, self.memory, loops, &recomputed, self.values);
                (late, widened(module, (&body, body_id), self.values, self.sizes))
            }
            // On GPUs, peaks are nearer without: `benches/h100_steps.py`.
            false => (Late::default(), Vec::new()),
        };
        let needs_fore =
            |own: &Stack, body: &Graph| own.fore.is_empty() && is_only_stacked(body, own.node);
        let buffers = match stacks.iter().any(|own| needs_fore(own, &body)) {
            true => self.buffers_of(&body, body_id),
            false => HashMap::default(),
        };
        for stack in &mut stacks {
            if needs_fore(stack, &body) {
                let own = buffers.get(&stack.node).into_iter().flatten();
                stack.fore = own.filter_map(|own| self.buffer(*own)).collect();
            }
            let leaves = stack.read_as.iter().filter_map(|element| leaves.get(element));
            stack.is_read = leaves.clone().any(|leaf| recomputed.is_read(*leaf));
            let users = leaves.flat_map(|leaf| back.users(*leaf));
            stack.reads = users.map(|user| self.read(&back, *user, &late, end)).collect();
            stack.readers = readers(module, back_id, &stack.read_as);
            // Several elements of the state may share a row.
            stack.rows.sort_unstable();
            stack.rows.dedup();
        }
        let mut stack_rows: Vec<Row> = stacks.iter().flat_map(|own| own.rows.clone()).collect();
        stack_rows.sort_unstable();
        let mut stack_nodes: Vec<u32> = stacks.iter().map(|own| own.node).collect();
        stack_nodes.sort_unstable();
        Some(Scan {
            forward,
            backward,
            trips,
            in_loop,
            handed_on: handed_on(&stacks),
            group: None,
            is_again: false,
            body,
            back,
            body_id,
            back_id,
            stacks,
            stack_rows,
            stack_nodes,
            recomputed,
            body_steps,
            back_steps,
            late,
            is_in_rings,
            widened,
            residuals: None,
        })
    }

    /// The row that fills an element of a loop's state before the loop.
    pub fn filled_by(&self, forward: Row, element: u32) -> Option<Row> {
        let module = self.module;
        let state = module.operands(forward).first().map(|row| Row(*row))?;
        let mut place = Place { row: state, path: Path::from_slice(&[element]) };
        for _ in 0..MOST_STEPS {
            if !step_back(module, &mut place) {
                break;
            }
        }
        matches!(module.opcode(place.row), Opcode::Broadcast | Opcode::Fusion).then_some(place.row)
    }

    /// Bytes and steps of the values that share a buffer with an element of a loop's result. Those in
    /// which the value of a node of the loop's body is used there are left out.
    fn moving(
        &self,
        row: Row,
        element: Option<u32>,
        used: Option<(&Graph, u32)>,
    ) -> Vec<(i64, RangeInclusive<u32>)> {
        let known = || {
            let place = Place { row, path: Path::from_slice(&[element?]) };
            let (row, part) = self.memory.maker_of(row, part(self.module, &place)?)?;
            self.numbered(self.by_row.get(&row)).find(|value| value.part == part)
        };
        let Some(known) = known() else { return Vec::new() };
        let same = self.numbered(self.by_buffer.get(&known.buffer));
        let same: Vec<&LiveValue> = same.filter(|own| own.bytes > 0).collect();
        let bytes = same.iter().map(|value| value.bytes).max().unwrap_or(0);
        let steps = same.into_iter().map(|value| {
            let own = used.filter(|(body, node)| node_of(body, value) == Some(*node));
            let users = own.into_iter().flat_map(|(body, node)| {
                body.users(node).iter().map(|user| body.nodes[*user as usize].outer)
            });
            let last = users.filter_map(|user| self.memory.step_of(user)).max();
            let first = last.map_or(value.first_step, |last| last.saturating_add(1));
            first.max(value.first_step)..=value.last_step
        });
        hosted::joined(steps.collect()).into_iter().map(|steps| (bytes, steps)).collect()
    }

    /// Bytes of the stack in element `element` of a loop's result, and the steps at which the
    /// values of its buffer are live.
    pub fn stack(&self, forward: Row, element: u32) -> Option<(i64, RangeInclusive<u32>)> {
        self.buffer(self.buffer_at(&Place { row: forward, path: Path::from_slice(&[element]) })?)
    }

    /// The steps at which two values of a buffer are live.
    fn overlaps(&self, buffer: u32) -> Vec<RangeInclusive<u32>> {
        let same = self.numbered(self.by_buffer.get(&buffer)).filter(|value| value.bytes > 0);
        let mut same: Vec<_> = same.map(|value| (value.first_step, value.last_step)).collect();
        same.sort_unstable();
        let pairs = same.windows(2).filter(|own| own[1].0 <= own[0].1);
        pairs.map(|own| own[1].0..=own[0].1.min(own[1].1)).collect()
    }

    /// The buffer of a value.
    fn buffer_at(&self, place: &Place) -> Option<u32> {
        let (row, part) = self.memory.maker_of(place.row, part(self.module, place)?)?;
        let mut same = self.numbered(self.by_row.get(&row));
        same.find(|value| value.part == part).map(|value| value.buffer)
    }

    /// Bytes of a buffer, and the steps at which its values are live.
    pub fn buffer(&self, buffer: u32) -> Option<(i64, RangeInclusive<u32>)> {
        let same = self.numbered(self.by_buffer.get(&buffer));
        let same = same.filter(|value| value.bytes > 0);
        let (mut first, mut last, mut bytes) = (u32::MAX, 0, 0);
        for value in same {
            first = first.min(value.first_step);
            last = last.max(value.last_step);
            bytes = bytes.max(value.bytes);
        }
        (bytes > 0).then_some((bytes, first..=last))
    }
}

/// Whether XLA keeps the value of such an operation in memory. Other operations are cheap to repeat
/// in the fusions that read them. A `reduce-window` on TPU broadcasts a reduction, and counts as
/// cheap.
pub fn is_heavy(opcode: Opcode) -> bool {
    use Opcode::{
        AllGather, AllReduce, AllToAll, AsyncStart, Call, Cholesky, CollectiveBroadcast,
        CollectivePermute, Conditional, CustomCall, Fft, Fusion, Gather, RaggedAllToAll, Reduce,
        ReduceScatter, Rng, RngBitGenerator, Scatter, SelectAndScatter, Sort, Topk,
        TriangularSolve, While,
    };
    opcode.is_matmul()
        || matches!(
            opcode,
            AllGather
                | AllReduce
                | AllToAll
                | AsyncStart
                | Call
                | Cholesky
                | CollectiveBroadcast
                | CollectivePermute
                | Conditional
                | CustomCall
                | Fft
                | Fusion
                | Gather
                | RaggedAllToAll
                | Reduce
                | ReduceScatter
                | Rng
                | RngBitGenerator
                | Scatter
                | SelectAndScatter
                | Sort
                | Topk
                | TriangularSolve
                | While
        )
}

/// Whether the operation only converts or rearranges a value.
pub fn is_rearrangement(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Convert | Opcode::DynamicSlice | Opcode::Slice)
}

/// The value that a live value of the memory analysis is in a graph.
pub fn node_of(graph: &Graph, value: &LiveValue) -> Option<u32> {
    let path: Vec<u32> = value.path.iter().rev().copied().collect();
    match graph.result(value.row).at(&path) {
        Value::One(node) => Some(node),
        _ => None,
    }
}
