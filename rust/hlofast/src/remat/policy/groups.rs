//! Scans over groups of layers, in each of which a loop runs over the layers of the group.
//!
//! The loops over layers are in the bodies of the loops over groups, and the policy is that of a
//! layer, as in trainers that checkpoint each layer. The values that a policy keeps then have three
//! buffers: the inner forward loop stacks those of one group, the body of a group writes them into
//! the stack of all groups, and the backward body of a group takes its slice of that stack out, which
//! the inner backward loop reads. So the pair of inner loops is a scan as any other, whose stacks are
//! that large, and live that long, and which adds the buffers of one group in each body.
//!
//! A group may have layers beside its inner loop: in a loop of one iteration, which is another inner
//! loop, or in its own body. Those are a scan over groups in which the results of inner loops are
//! inputs that are kept.
//!
//! Where groups are under `jax.checkpoint`, the backward body of a group runs the inner forward loop
//! again and then the inner backward loop. These two, in one computation, are a scan of their own,
//! whose forward loop is recomputed work under any policy; the stacks of the loop over groups, which
//! hold the inputs of groups, stay as they are.

use super::NoPolicies;
use super::graph::Graph;
use super::pairs::{looped, trips_of};
use super::scans::{Finder, Scan, Stack, is_rearrangement, steps_of};
use super::stacks::{is_unchanged, stacked, written_by};
use super::unknown::{is_kept_apart, loops_over_layers_of};
use crate::flow::origin::Place;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Limit on the rows that rearrange a value one after another.
const MOST_STEPS: usize = 16;
/// Limit on the loops around a loop.
const DEEPEST: usize = 64;

/// The groups of layers of a scan.
#[derive(Clone, Debug)]
pub struct Group {
    /// The loops over groups of the forward and of the backward pass.
    pub outer: [Row; 2],
    /// Layers in a group.
    pub layers: i64,
    /// The steps of both loops over groups.
    pub steps: RangeInclusive<u32>,
    /// The last step of the forward loop over groups.
    pub forward_end: u32,
    /// The steps at which the forward body holds the values of one group.
    pub fore: RangeInclusive<u32>,
    /// The steps at which the backward body holds the values of one group.
    pub aft: RangeInclusive<u32>,
}

/// The body of a loop over groups.
struct Body {
    id: ComputationId,
    graph: Graph,
    /// By node: the buffers of its values.
    buffers: HashMap<u32, Vec<u32>, BuildMix>,
}

/// Bytes and live ranges of buffers.
pub type Spans = Vec<(i64, RangeInclusive<u32>)>;

/// What an inner forward loop hands to the backward pass.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Made {
    /// An element of its result.
    Result(u32),
    /// An element of its initial state: the input of its one layer.
    Input(u32),
}

/// A value that an inner loop hands to the backward pass, the element of the inner backward loop's
/// state that reads it, and the element of the forward loop over groups that stacks it.
pub struct Link {
    pub made: Made,
    pub read_as: u32,
    pub outer: u32,
    /// The values between the inner loops and the stack of all groups, in both bodies.
    pub chains: [Vec<u32>; 2],
}

impl Finder<'_> {
    /// The loops over layers in the bodies of two loops; None if the budget is spent.
    pub fn loops_in(&mut self, forward: Row, backward: Row) -> Option<[Vec<Row>; 2]> {
        let (module, cost) = (self.module, self.cost);
        let mut loops: Vec<Row> = cost.loops.iter().map(|own| own.row).collect();
        loops.sort_unstable();
        let [Some(fore), Some(aft)] =
            [forward, backward].map(|row| module.called(row, CallRole::Body))
        else {
            return None;
        };
        loops_over_layers_of(module, cost, [fore, aft], &loops, &mut self.budget)
    }

    /// Whether a loop of one iteration is a layer of its own.
    pub fn is_one_layer(&self, row: Row) -> bool {
        trips_of(self.cost, row) == Some(1) && is_kept_apart(self.module, row)
    }

    /// The elements of the state of a loop over one layer that the backward loop reads too, from
    /// where `sources` says, and their elements there: XLA stacks no input of one layer.
    pub fn inputs(
        &mut self,
        forward: Row,
        backward: Row,
        sources: &[(u32, Place)],
    ) -> Vec<(u32, u32)> {
        if !self.is_one_layer(forward) || !self.is_one_layer(backward) {
            return Vec::new();
        }
        let own: HashMap<Place, u32, BuildMix> =
            self.sources(forward).into_iter().map(|(element, place)| (place, element)).collect();
        let pairs =
            sources.iter().filter_map(|(element, place)| Some((*own.get(place)?, *element)));
        pairs.collect()
    }

    /// The scans over layers in the two loops over groups `outer`; `read` pairs elements of the forward
    /// result with elements of the backward state, `loops` are the loops over layers in the bodies. An error
    /// if the model does not cover them.
    pub fn groups(
        &mut self,
        outer: [Row; 2],
        read: &[(u32, u32)],
        loops: &[Vec<Row>; 2],
    ) -> Result<Vec<Scan>, NoPolicies> {
        let found = self.scans_of_groups(outer, read, loops);
        found.ok_or(NoPolicies::Nested(outer[0]))
    }

    fn scans_of_groups(
        &mut self,
        outer: [Row; 2],
        read: &[(u32, u32)],
        loops: &[Vec<Row>; 2],
    ) -> Option<Vec<Scan>> {
        let mut fore = self.body(outer[0], &loops[0])?;
        // Other loops read the forward loop's last value.
        if !read.iter().any(|(element, _)| stacked(&fore.graph, *element).is_some()) {
            return Some(Vec::new());
        }
        let mut aft = self.body(outer[1], &loops[1])?;
        let is_alone = |row: Row| trips_of(self.cost, row) == Some(1);
        let links = links(&fore.graph, &aft.graph, read, is_alone);
        let mut scans = Vec::new();
        for (pair, own) in &links {
            scans.push(self.inner(outer, *pair, [&fore, &aft], own)?);
        }
        if has_layers_beside(&aft.graph) {
            // Groups under `jax.checkpoint` recompute such layers, which the model does not know.
            if links.is_empty() {
                return None;
            }
            fore.graph.cut();
            aft.graph.cut();
            scans.push(self.beside(outer, fore.graph, aft.graph, &read_beside(&links, read))?);
        }
        Some(scans)
    }

    fn body(&mut self, row: Row, closed: &[Row]) -> Option<Body> {
        let id = self.module.called(row, CallRole::Body)?;
        let graph = Graph::new(self.module, id, closed, &mut self.budget)?;
        let buffers = self.buffers_of(&graph, id);
        Some(Body { id, graph, buffers })
    }

    /// The scan of a pair of inner loops.
    fn inner(
        &mut self,
        outer: [Row; 2],
        pair: [Row; 2],
        bodies: [&Body; 2],
        links: &[Link],
    ) -> Option<Scan> {
        let module = self.module;
        let trips = pair.map(|row| trips_of(self.cost, row));
        let layers = trips[0].filter(|_| trips[0] == trips[1])?;
        let all = trips_of(self.cost, outer[0])?.checked_mul(layers)?;
        let id = module.called(pair[0], CallRole::Body)?;
        let body = Graph::new(module, id, &[], &mut self.budget)?;
        let whole = |link: &Link| self.stack(outer[0], link.outer);
        let fore = |link: &Link, element: u32| {
            let mut own = self.buffers(bodies[0], &link.chains[0]);
            own.extend(self.stack(pair[0], element));
            own.dedup();
            own
        };
        let aft = |link: &Link| self.buffers(bodies[1], &link.chains[1]);
        let rows = |link: &Link| self.rows_of([outer[0], pair[0]], bodies, &body, link);
        let stacks = stacks(&body, layers, links, (whole, fore, aft, rows));
        let of_loop = |row: Row| {
            let id = module.called(row, CallRole::Body)?;
            steps_of(module, self.memory, id)
        };
        let steps = [0, 1].map(|at| steps_of(module, self.memory, bodies[at].id));
        let [Some(fore_steps), Some(aft_steps)] = steps else { return None };
        let group = Group {
            outer,
            layers: i64::try_from(layers).ok()?,
            steps: *fore_steps.start()..=*aft_steps.end(),
            forward_end: *fore_steps.end(),
            fore: span(&stacks, |stack| &stack.fore).or_else(|| of_loop(pair[0]))?,
            aft: span(&stacks, |stack| &stack.aft).or_else(|| of_loop(pair[1]))?,
        };
        let id = module.called(pair[1], CallRole::Body)?;
        let back = Graph::new(module, id, &[], &mut self.budget)?;
        let mut scan = self.joined(pair, [body, back], stacks, [all, all])?;
        scan.group = Some(group);
        Some(scan)
    }

    /// The rows that fill, write and copy the stacks of a value: of one group and of all groups.
    fn rows_of(
        &self,
        [outer, inner]: [Row; 2],
        [fore, aft]: [&Body; 2],
        body: &Graph,
        link: &Link,
    ) -> Vec<Row> {
        let moved = |graph: &Graph, nodes: &[u32]| -> Vec<Row> {
            nodes.iter().map(|node| graph.nodes[*node as usize].outer).collect()
        };
        // The last of a chain of the forward body is what makes the value.
        let [there, here] = &link.chains;
        let mut rows = moved(&fore.graph, &there[..there.len().saturating_sub(1)]);
        rows.extend(moved(&aft.graph, here));
        rows.extend(written_by(&fore.graph, link.outer));
        rows.extend(self.filled_by(outer, link.outer));
        if let Made::Result(element) = link.made {
            rows.extend(written_by(body, element));
            rows.extend(self.filled_by(inner, element));
        }
        rows
    }

    /// The scan over the layers that are in the bodies of the loops over groups themselves.
    fn beside(
        &self,
        outer: [Row; 2],
        body: Graph,
        back: Graph,
        read: &[(u32, u32)],
    ) -> Option<Scan> {
        let mut stacks: BTreeMap<u32, Stack> = BTreeMap::new();
        for (element, read_as) in read {
            if let Some(stack) = stacks.get_mut(element) {
                stack.read_as.push(*read_as);
                continue;
            }
            let Some(node) = stacked(&body, *element) else { continue };
            let Some((bytes, live)) = self.stack(outer[0], *element) else { continue };
            let mut own = Stack::new(&body, node, *read_as, bytes, live);
            own.rows.extend(written_by(&body, *element));
            own.rows.extend(self.filled_by(outer[0], *element));
            stacks.insert(*element, own);
        }
        let stacks = stacks.into_values().collect();
        let trips = trips_of(self.cost, outer[0])?;
        self.joined(outer, [body, back], stacks, [trips, trips])
    }

    /// Bytes and live ranges of the buffers of some values in a body.
    fn buffers(&self, body: &Body, nodes: &[u32]) -> Vec<(i64, RangeInclusive<u32>)> {
        let mut found: Vec<u32> =
            nodes.iter().filter_map(|node| body.buffers.get(node)).flatten().copied().collect();
        found.sort_unstable();
        found.dedup();
        found.into_iter().filter_map(|buffer| self.buffer(buffer)).collect()
    }
}

/// The links of a pair of inner loops.
pub type Links = BTreeMap<[Row; 2], Vec<Link>>;

/// Whether the backward body of a group also computes beside its inner loops.
pub fn has_layers_beside(aft: &Graph) -> bool {
    aft.nodes.iter().any(|node| node.opcode.is_matmul())
}

/// What the backward loop over groups reads of the forward one, but for what its inner loops read.
pub fn read_beside(links: &Links, read: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let inner: HashSet<u32, BuildMix> = links.values().flatten().map(|own| own.outer).collect();
    read.iter().filter(|(element, _)| !inner.contains(element)).copied().collect()
}

/// The stacks of a pair of inner loops over `layers` of `body`. The functions give, for a link: bytes and
/// live range of the stack of all groups; the buffers of a group in the forward body, also given the
/// element of the inner loop's result; those in the backward body; the rows that store it.
pub fn stacks(
    body: &Graph,
    layers: u64,
    links: &[Link],
    (whole, fore, aft, rows): (
        impl Fn(&Link) -> Option<(i64, RangeInclusive<u32>)>,
        impl Fn(&Link, u32) -> Spans,
        impl Fn(&Link) -> Spans,
        impl Fn(&Link) -> Vec<Row>,
    ),
) -> Vec<Stack> {
    let mut stacks: BTreeMap<Made, Stack> = BTreeMap::new();
    for link in links {
        if let Some(stack) = stacks.get_mut(&link.made) {
            stack.read_as.push(link.read_as);
            stack.aft.extend(aft(link));
            stack.rows.extend(rows(link));
            continue;
        }
        let node = match link.made {
            Made::Result(element) => made_by(body, element, layers),
            Made::Input(element) => leaf(body, element),
        };
        let Some((node, (bytes, live))) = node.zip(whole(link)) else { continue };
        let mut stack = Stack::new(body, node, link.read_as, bytes, live);
        // What makes the input of a layer holds it in any case.
        if let Made::Result(element) = link.made {
            stack.fore = fore(link, element);
        }
        stack.aft = aft(link);
        stack.rows = rows(link);
        stacks.insert(link.made, stack);
    }
    stacks.into_values().collect()
}

/// From the first to the last step of some buffers of stacks; None without any.
pub fn span(stacks: &[Stack], of: fn(&Stack) -> &Spans) -> Option<RangeInclusive<u32>> {
    let own = stacks.iter().filter(|stack| !stack.is_weight).flat_map(of);
    let own = own.map(|(_, steps)| (*steps.start(), *steps.end()));
    own.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).map(|(first, last)| first..=last)
}

/// By pair of inner loops: what the forward one stacks and the backward one reads.
pub fn links(
    fore: &Graph,
    aft: &Graph,
    read: &[(u32, u32)],
    is_alone: impl Fn(Row) -> bool,
) -> Links {
    let mut links = Links::new();
    let inputs = inputs_of_one(fore, is_alone);
    let made: HashMap<u32, u32, BuildMix> =
        read.iter().map(|(made, read)| (*read, *made)).collect();
    for (node, state) in &aft.states {
        let backward = aft.nodes[*node as usize].row;
        for (element, value) in (0u32..).zip(state) {
            let Some(first) = value.node() else { continue };
            let chain = chain(aft, first);
            let read = chain
                .last()
                .filter(|last| aft.nodes[**last as usize].opcode == Opcode::DynamicSlice);
            let source = read.and_then(|last| aft.operands(*last).first());
            let source = source.and_then(|own| aft.nodes[*own as usize].element);
            let Some(outer) = source.and_then(|own| made.get(&own)).copied() else { continue };
            let Some(value) = stacked(fore, outer) else { continue };
            let there = self::chain(fore, value);
            let Some(last) = there.last().copied() else { continue };
            let Some((forward, made)) = maker(fore, last, &inputs) else { continue };
            let (read_as, chains) = (element, [there, chain]);
            let own = links.entry([forward, backward]).or_default();
            own.push(Link { made, read_as, outer, chains });
        }
    }
    for own in links.values_mut() {
        own.sort_by_key(|link| (link.made, link.read_as));
    }
    links
}

/// By node that a loop of one iteration gets: the first such loop and the element of its state. What
/// another loop hands to it is its input.
fn inputs_of_one(
    fore: &Graph,
    is_alone: impl Fn(Row) -> bool,
) -> HashMap<u32, (Row, u32), BuildMix> {
    let mut inputs: HashMap<u32, (Row, u32), BuildMix> = HashMap::default();
    for (row, own) in looped(fore).into_iter().filter(|(row, _)| is_alone(*row)) {
        for (element, value) in (0u32..).zip(&fore.states[&own]) {
            if let Some(node) = value.node() {
                inputs.entry(node).or_insert((row, element));
            }
        }
    }
    inputs
}

/// The inner loop of whose result, or input, a node is an element.
fn maker(
    fore: &Graph,
    node: u32,
    inputs: &HashMap<u32, (Row, u32), BuildMix>,
) -> Option<(Row, Made)> {
    if let Some((row, element)) = inputs.get(&node) {
        return Some((*row, Made::Input(*element)));
    }
    let own = &fore.nodes[node as usize];
    let whole = own.whole.filter(|whole| fore.states.contains_key(whole))?;
    Some((fore.nodes[whole as usize].row, Made::Result(*fore.indices.get(&node)?)))
}

/// Removes the scans in a layer of another scan: recurrences, such as those over chunks of linear
/// attention, run for each layer. A policy asked of them leaves them as they are in the text.
pub fn leave_recurrences(module: &Module, scans: &mut Vec<Scan>) {
    let bodies: HashSet<ComputationId, BuildMix> =
        scans.iter().flat_map(|scan| [scan.body_id, scan.back_id]).collect();
    scans.retain(|scan| {
        let mut id = module.computation_of(scan.outer()[0]);
        for _ in 0..DEEPEST {
            if bodies.contains(&id) {
                return false;
            }
            let Some(caller) = module.callers(id).first() else { break };
            id = module.computation_of(Row(*caller));
        }
        true
    });
}

/// The node of an element of the state.
pub fn leaf(body: &Graph, element: u32) -> Option<u32> {
    let node = body.nodes.iter().position(|node| node.element == Some(element))?;
    u32::try_from(node).ok()
}

/// A value and those that it is only rearranged from, down to a slice of an element of the state or
/// to what is made.
pub fn chain(graph: &Graph, node: u32) -> Vec<u32> {
    let mut chain = vec![node];
    let mut at = node;
    for _ in 0..MOST_STEPS {
        let own = &graph.nodes[at as usize];
        let Some(first) = graph.operands(at).first() else { break };
        let is_moved = is_rearrangement(own.opcode) && own.whole.is_none();
        if !is_moved || graph.nodes[*first as usize].element.is_some() {
            break;
        }
        at = *first;
        chain.push(at);
    }
    chain
}

/// The node whose value an inner loop gives to an element of its result in every iteration.
pub fn made_by(body: &Graph, element: u32, trips: u64) -> Option<u32> {
    stacked(body, element).or_else(|| {
        let own = body.root.element(element as usize).node().filter(|_| trips == 1)?;
        (!is_unchanged(body, own)).then_some(own)
    })
}
