//! Scans of modules that XLA has not scheduled: the order of execution and the live ranges that such
//! a module would get.
//!
//! The text before optimisation has neither a schedule nor fusions, and its shapes may cover all
//! devices. The model gives each value of the graph a step, in text order with the bodies of the
//! loops in their places; work whose result only goes into a stack runs as soon as its operands are
//! there. As in the model of scheduled texts, values of products, kernels and reductions are in
//! memory until the last expensive operation that reads them, also through cheap work, which XLA
//! repeats in fusions. A loop holds the elements of its state that its body changes. Bytes are those
//! of one device, as the shardings of the text imply them.

use super::base::{Timeline, add};
use super::graph::{Graph, MOST_ROWS};
use super::recomputed::Recomputed;
use super::scans::{Read, Scan, Stack, is_heavy, is_weight, stacked};
use crate::cost::Cost;
use crate::flow::{Attribution, Contexts, Phase, multiplicities};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use crate::shares::Local;
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// Limit on the loops of a module whose scans are looked for.
const MOST_LOOPS: usize = 1 << 10;
/// Limit on the depth of loops around scans.
const DEEPEST: u32 = 4;
/// Limit on the nodes between the index of a slice and the counter of a loop.
const MOST_STEPS: usize = 16;

/// What is known of a module before optimisation.
#[derive(Debug)]
pub struct Before {
    /// By row of a product: FLOPs that one device executes in a step.
    flops: HashMap<Row, i64, BuildMix>,
    /// Whether shapes cover several devices, so that the partitioner's collectives are unknown.
    pub is_whole: bool,
}

impl Before {
    /// FLOPs of a product in a step on one device.
    pub fn flops(&self, row: Row) -> Option<i64> {
        self.flops.get(&row).copied()
    }
}

/// A pair of loops.
struct Pair {
    forward: Row,
    backward: Row,
    /// Elements of the forward result and of the backward state.
    read: Vec<(u32, u32)>,
}

/// The loops of a module and what contains them.
struct Places {
    pairs: Vec<Pair>,
    /// The computations that contain scans, and the loops of these that are not opened.
    graphs: HashMap<ComputationId, Graph, BuildMix>,
}

/// The scans of an unscheduled module, the bytes at each step and FLOPs of one device. None if there
/// are no scans, or if the module is too large.
pub fn scans_before(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    local: &Local,
    is_whole: bool,
) -> Option<(Vec<Scan>, Timeline, Before)> {
    let mut budget = MOST_ROWS;
    let places = find(module, cost, attribution, &mut budget)?;
    let mut layout = Layout {
        module,
        cost,
        local,
        places,
        budget,
        changes: Vec::new(),
        rows: Vec::new(),
        bodies: HashMap::default(),
        changed: HashMap::default(),
        scans: Vec::new(),
    };
    let entry = layout.places.graphs.remove(&module.entry())?;
    let steps = layout.run(&entry, 0)?;
    layout.hold_arguments(&entry, &steps);
    let Layout { mut changes, rows, mut scans, .. } = layout;
    scans.sort_by_key(|scan| scan.forward);
    let mut sum = 0i64;
    for change in &mut changes {
        sum = sum.saturating_add(*change);
        *change = sum;
    }
    changes.truncate(rows.len());
    let timeline = Timeline::of_steps(changes, rows);
    let before = Before { flops: flops(module, cost, local), is_whole };
    (!scans.is_empty()).then_some((scans, timeline, before))
}

/// FLOPs of one device in all calls of each product.
fn flops(module: &Module, cost: &Cost, local: &Local) -> HashMap<Row, i64, BuildMix> {
    let contexts = Contexts::by_call(module);
    let times = |call: usize| cost.call_times.get(call).map(|link| link.times);
    let counts = multiplicities(&contexts, times);
    let mut flops = HashMap::default();
    for row in module.rows() {
        let Some(product) = local.product(row) else { continue };
        // A computation that several callers share runs as often for each as for the busiest.
        let nodes = contexts.nodes_of(module.computation_of(row));
        let calls = nodes.filter_map(|node| counts.get(node as usize).copied().flatten()).max();
        let calls = calls.and_then(|calls| i64::try_from(calls).ok());
        if let Some(own) = calls.and_then(|calls| product.flops.checked_mul(calls)) {
            flops.insert(row, own);
        }
    }
    flops
}

/// Finds pairs of a forward and a backward loop in the entry and in the bodies of its loops.
fn find(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    budget: &mut usize,
) -> Option<Places> {
    let all: Vec<Row> = cost.loops.iter().map(|own| own.row).collect();
    if all.is_empty() || all.len() > MOST_LOOPS || !all.is_sorted() {
        return None;
    }
    let phases = attribution.phases(module);
    let phase = |row: Row| phases.get(row.0 as usize).copied().unwrap_or_default();
    let mut places = Places { pairs: Vec::new(), graphs: HashMap::default() };
    // By loop that contains scans: the computation that contains it.
    let mut closed: Vec<Row> = Vec::new();
    let mut found: Vec<ComputationId> = Vec::new();
    // Loops and the loops around them.
    let mut around: Vec<(ComputationId, Vec<Row>)> = vec![(module.entry(), Vec::new())];
    while let Some((place, outer)) = around.pop() {
        let graph = Graph::new(module, place, &all, budget)?;
        let loops: Vec<u32> = looped(&graph).collect();
        let own = pairs(module, cost, &graph, &loops, phase, budget)?;
        if own.is_empty() {
            let deeper = outer.len() < DEEPEST as usize;
            for row in loops.iter().map(|node| graph.nodes[*node as usize].row).filter(|_| deeper) {
                let body = module.called(row, CallRole::Body);
                let path = outer.iter().copied().chain([row]).collect();
                around.extend(body.map(|body| (body, path)));
            }
            continue;
        }
        closed.extend(outer.iter().copied());
        closed.extend(own.iter().flat_map(|pair| [pair.forward, pair.backward]));
        found.push(place);
        found.extend(outer.iter().map(|row| module.computation_of(*row)));
        places.pairs.extend(own);
    }
    closed.sort_unstable();
    closed.dedup();
    found.push(module.entry());
    for place in found {
        if !places.graphs.contains_key(&place) {
            places.graphs.insert(place, Graph::new(module, place, &closed, budget)?);
        }
    }
    (!places.pairs.is_empty()).then_some(places)
}

/// The loops of a graph that are not opened.
fn looped(graph: &Graph) -> impl Iterator<Item = u32> + '_ {
    let nodes = (0u32..).zip(&graph.nodes);
    nodes.filter(|(at, _)| graph.states.contains_key(at)).map(|(at, _)| at)
}

/// The pairs of loops of a graph of which one stacks what the other reads.
fn pairs(
    module: &Module,
    cost: &Cost,
    graph: &Graph,
    loops: &[u32],
    phase: impl Fn(Row) -> Phase,
    budget: &mut usize,
) -> Option<Vec<Pair>> {
    let mut pairs: Vec<Pair> = Vec::new();
    // By forward loop: which elements of its result are stacks.
    let mut stacked: HashMap<Row, Vec<bool>, BuildMix> = HashMap::default();
    for back in loops {
        let backward = graph.nodes[*back as usize].row;
        let direction = phase(backward);
        if matches!(direction, Phase::Forward | Phase::Optimizer) {
            continue;
        }
        // By forward loop: the elements that this loop reads.
        let mut read: Vec<(u32, Vec<(u32, u32)>)> = Vec::new();
        for (element, value) in (0u32..).zip(&graph.states[back]) {
            let Some(node) = value.node() else { continue };
            let source = graph.nodes[node as usize].whole.zip(graph.indices.get(&node));
            let Some((forward, index)) = source.filter(|(own, _)| loops.contains(own)) else {
                continue;
            };
            match read.iter_mut().find(|(known, _)| *known == forward) {
                Some((_, elements)) => elements.push((*index, element)),
                None => read.push((forward, vec![(*index, element)])),
            }
        }
        for (forward, read) in read {
            let forward = graph.nodes[forward as usize].row;
            if !stacked.contains_key(&forward) {
                let body = module.called(forward, CallRole::Body)?;
                let body = Graph::new(module, body, &[], budget)?;
                let count = module.shapes().tuple(module.shape(forward)).map_or(0, <[_]>::len);
                let own = (0..count as u32).map(|own| self::stacked(&body, own).is_some());
                stacked.insert(forward, own.collect());
            }
            let own: &Vec<bool> = &stacked[&forward];
            // A later loop may read the forward loop's last value.
            if !read.iter().any(|(element, _)| own.get(*element as usize) == Some(&true)) {
                continue;
            }
            let is_known = pairs.iter().any(|pair| pair.forward == forward);
            let trips = trips_of(cost, forward).zip(trips_of(cost, backward));
            let is_equal = trips.is_some_and(|(a, b)| a == b);
            if is_known || !is_equal || phase(forward) == Phase::Backward {
                continue;
            }
            let is_told = matches!(direction, Phase::Backward | Phase::Recompute);
            if is_told || reads_backwards(module, backward, &read, budget)? {
                pairs.push(Pair { forward, backward, read });
            }
        }
    }
    Some(pairs)
}

fn trips_of(cost: &Cost, row: Row) -> Option<u64> {
    let at = cost.loops.binary_search_by_key(&row, |entry| entry.row).ok()?;
    cost.loops[at].trip_count.count.filter(|count| *count > 0)
}

/// Whether a loop reads slices of one of these elements of its state from the last to the first.
/// None if the budget is spent.
fn reads_backwards(
    module: &Module,
    row: Row,
    read: &[(u32, u32)],
    budget: &mut usize,
) -> Option<bool> {
    let Some(body) = module.called(row, CallRole::Body) else { return Some(false) };
    let graph = Graph::new(module, body, &[], budget)?;
    let is_read = |element| read.iter().any(|(_, own)| Some(*own) == element);
    let slices = (0u32..).zip(&graph.nodes).filter(|(_, node)| node.opcode == Opcode::DynamicSlice);
    for (slice, _) in slices {
        let [stack, indices @ ..] = graph.operands(slice) else { continue };
        if !is_read(graph.nodes[*stack as usize].element) {
            continue;
        }
        let mut open: Vec<u32> = indices.to_vec();
        for _ in 0..MOST_STEPS {
            let Some(at) = open.pop() else { break };
            let operands = graph.operands(at);
            // The counter is subtracted from a constant.
            let is_from = graph.nodes[at as usize].opcode == Opcode::Subtract
                && operands.get(1).is_some_and(|own| graph.nodes[*own as usize].element.is_some());
            if is_from {
                return Some(true);
            }
            open.extend(operands);
        }
    }
    Some(false)
}

/// The steps of the nodes of a graph.
struct Steps {
    /// By node: the step at which it runs; for loops the last step.
    runs: Vec<u32>,
    /// By node: its first step.
    first: Vec<u32>,
    /// By node: the last step that reads it; None if nothing does.
    last: Vec<Option<u32>>,
    /// The steps of the whole graph.
    all: RangeInclusive<u32>,
}

impl Steps {
    /// The step at which a value is used for the last time to make this node or what reads it.
    fn of_use(&self, graph: &Graph, node: u32) -> u32 {
        let at = node as usize;
        match stays(graph, node) {
            true => self.runs[at],
            false => self.last[at].unwrap_or(self.runs[at]),
        }
    }
}

/// Whether the value of a node is in memory: others are computed where they are read.
fn stays(graph: &Graph, node: u32) -> bool {
    let opcode = graph.nodes[node as usize].opcode;
    is_heavy(opcode) || opcode == Opcode::DynamicUpdateSlice
}

/// Lays out the steps of a module and counts the bytes at each of them.
struct Layout<'a> {
    module: &'a Module,
    cost: &'a Cost,
    local: &'a Local,
    places: Places,
    budget: usize,
    /// By step: the change from the step before.
    changes: Vec<i64>,
    /// By step: the row that runs.
    rows: Vec<u32>,
    /// By loop: the graph of its body and its steps.
    bodies: HashMap<Row, (Graph, Steps), BuildMix>,
    /// By loop: whether each element of its state has a buffer in device memory of its own.
    changed: HashMap<Row, Vec<bool>, BuildMix>,
    scans: Vec<Scan>,
}

impl Layout<'_> {
    fn add(&mut self, steps: RangeInclusive<u32>, bytes: i64) {
        if self.changes.len() <= self.rows.len() + 1 {
            self.changes.resize(self.rows.len() + 2, 0);
        }
        add(&mut self.changes, steps, bytes);
    }

    fn step(&mut self, row: Row) -> u32 {
        self.rows.push(row.0);
        self.rows.len() as u32 - 1
    }

    /// The bytes of a node's value on one device, in the type in which XLA keeps it.
    fn bytes(&self, graph: &Graph, node: u32) -> i64 {
        if graph.own_bytes.get(&node) == Some(&0) {
            return 0;
        }
        let own = self.own_bytes(graph, node) / graph.wider.get(&node).copied().unwrap_or(1);
        let bits = |node: u32| {
            let array = self.module.shapes().array(graph.nodes[node as usize].shape);
            array.map_or(1, |array| i64::from(array.element_type.bits()).max(1))
        };
        let users = graph.users(node).iter();
        let narrow = users.filter(|user| graph.nodes[**user as usize].opcode == Opcode::Convert);
        match narrow.map(|user| bits(*user)).min() {
            Some(narrow) if narrow < bits(node) => own / bits(node) * narrow,
            _ => own,
        }
    }

    fn own_bytes(&self, graph: &Graph, node: u32) -> i64 {
        let own = &graph.nodes[node as usize];
        let (module, shapes) = (self.module, self.module.shapes());
        if let Some(row) = graph.written.get(&node) {
            return self.local.bytes(module, *row, 0);
        }
        let shape = module.shape(own.row);
        let leaf = match (own.element, shapes.tuple(shape)) {
            (Some(element), Some(elements)) => {
                let before = elements.iter().take(element as usize);
                before.map(|shape| shapes.leaf_count(*shape) as usize).sum()
            }
            _ => 0,
        };
        let held = self.local.bytes(module, own.row, leaf);
        let whole = |shape| shapes.logical_bytes(shape).and_then(|own| i64::try_from(own).ok());
        let (wanted, of) = (whole(own.shape).unwrap_or(0), whole(shape).unwrap_or(0));
        if own.element.is_some() || shape == own.shape || of == 0 {
            return held;
        }
        // The sum that a loop adds up is split as its products are.
        i64::try_from(i128::from(held) * i128::from(wanted) / i128::from(of)).unwrap_or(wanted)
    }

    /// Gives the nodes of a graph their steps, with the bodies of loops in their places, and adds
    /// the bytes of their values. None if the module is too large.
    fn run(&mut self, graph: &Graph, depth: u32) -> Option<Steps> {
        let count = graph.nodes.len();
        let start = self.rows.len() as u32;
        let mut steps = Steps {
            runs: vec![0; count],
            first: vec![0; count],
            last: vec![None; count],
            all: start..=start,
        };
        for node in order(graph) {
            let own = graph.nodes[node as usize];
            steps.first[node as usize] = self.rows.len() as u32;
            if graph.states.contains_key(&node) {
                self.body_of(graph, node, depth)?;
            }
            steps.runs[node as usize] = self.step(own.row);
        }
        let end = (self.rows.len() as u32).saturating_sub(1).max(start);
        steps.all = start..=end;
        self.find_last(graph, &mut steps);
        self.hold(graph, &steps);
        let is_own = |own: &Pair| {
            looped(graph).any(|node| graph.nodes[node as usize].row == own.forward)
        };
        let (own, rest): (Vec<Pair>, Vec<Pair>) =
            std::mem::take(&mut self.places.pairs).into_iter().partition(is_own);
        self.places.pairs = rest;
        for pair in own {
            let scan = self.scan(graph, &steps, &pair);
            self.scans.extend(scan);
        }
        Some(steps)
    }

    /// Finds the last step that reads each value.
    fn find_last(&self, graph: &Graph, steps: &mut Steps) {
        let end = *steps.all.end();
        let mut ends = Vec::new();
        graph.root.leaves(&mut ends, &mut 0);
        for node in ends {
            // Values in stacks are the stacks'.
            if graph.nodes[node as usize].opcode != Opcode::DynamicUpdateSlice {
                steps.last[node as usize] = Some(end);
            }
        }
        for node in (0..graph.nodes.len() as u32).rev() {
            let read = Some(steps.of_use(graph, node));
            if let Some(state) = graph.states.get(&node) {
                // A loop takes over the buffers of the elements that it changes.
                let first = Some(steps.first[node as usize]);
                for (element, value) in (0u32..).zip(state) {
                    let Some(at) = value.node() else { continue };
                    let is_own = self.changes_element(graph.nodes[node as usize].row, element);
                    let last = &mut steps.last[at as usize];
                    *last = (*last).max(if is_own { first } else { read });
                }
                continue;
            }
            if steps.last[node as usize].is_none() && !stays(graph, node) {
                continue;
            }
            for operand in graph.operands(node) {
                let last = &mut steps.last[*operand as usize];
                *last = (*last).max(read);
            }
        }
    }

    /// Whether an element of a loop's state has a buffer of its own, because its body changes it.
    fn changes_element(&self, row: Row, element: u32) -> bool {
        let known = self.changed.get(&row).and_then(|own| own.get(element as usize));
        known.copied().unwrap_or(true)
    }

    /// Adds the bytes of the values of a graph.
    fn hold(&mut self, graph: &Graph, steps: &Steps) {
        for node in 0..graph.nodes.len() as u32 {
            let at = node as usize;
            let own = &graph.nodes[at];
            if let Some(product) = self.local.product(own.row).filter(|_| own.opcode.is_matmul()) {
                let gathered = product.gathered[0].saturating_add(product.gathered[1]);
                let gathered = gathered * knob(2);
                self.add(steps.runs[at]..=steps.runs[at], gathered);
            }
            let is_part = own.whole.is_some_and(|whole| graph.states.contains_key(&whole));
            let last = steps.last[at].unwrap_or(steps.runs[at]);
            if is_part {
                let (whole, index) = (own.whole.unwrap_or(0), graph.indices.get(&node));
                let row = graph.nodes[whole as usize].row;
                if index.is_some_and(|index| self.changes_element(row, *index)) {
                    let bytes = self.own_bytes(graph, node);
                    if std::env::var("HLODBG").is_ok() && bytes > 1 << 24 {
                        eprintln!("DBG state {index:?} {:.3} GiB {}..{last}", bytes as f64 / 1.0737e9, steps.first[whole as usize]);
                    }
                    self.add(steps.first[whole as usize]..=last, bytes);
                }
            } else if own.element.is_none() && is_heavy(own.opcode) {
                let bytes = self.bytes(graph, node);
                if std::env::var("HLODBG").is_ok() && bytes > 1 << 24 {
                    let name = String::from_utf8_lossy(self.module.instruction_name(own.row)).into_owned();
                    eprintln!("DBG {name} {:.3} GiB {}..{last}", bytes as f64 / 1.0737e9, steps.runs[at]);
                }
                let extra = graph.wide.get(&node).copied().unwrap_or(0) * knob(1);
                self.add(steps.runs[at]..=last, bytes.saturating_add(extra));
            }
        }
    }

    /// Finds the products that are widened at once and that have more dimensions than a matmul of TPUs
    /// writes in any order.
    fn find_wide(&self, graph: &mut Graph) {
        let shapes = self.module.shapes();
        let mut wide = Vec::new();
        for (at, node) in (0u32..).zip(&graph.nodes) {
            let array = shapes.array(node.shape).filter(|_| node.opcode.is_matmul());
            let Some(array) = array else { continue };
            let long = array.dimensions().filter(|size| size.bound().is_some_and(|n| n > 1));
            let bits = |node: u32| {
                let array = shapes.array(graph.nodes[node as usize].shape);
                array.map_or(1, |array| i64::from(array.element_type.bits()).max(1))
            };
            let users = graph.users(at).iter();
            let users = users.filter(|user| graph.nodes[**user as usize].opcode == Opcode::Convert);
            let widest = users.map(|user| bits(*user)).max().unwrap_or(0);
            if long.count() > 4 && widest > bits(at) {
                wide.push((at, self.bytes(graph, at)));
            }
        }
        graph.wide.extend(wide);
    }

    /// Marks cheap values that devices gather, because their sharding and that of the value which
    /// they are made from are written and differ: they are in memory, as collectives' results are.
    fn mark_gathers(&self, graph: &mut Graph) {
        let elements = |node: u32| {
            let array = self.module.shapes().array(graph.nodes[node as usize].shape);
            let elements = array.and_then(|array| array.elements()).unwrap_or(0);
            (elements, array.map_or(1, |array| i64::from(array.element_type.bits()).max(1)))
        };
        let mut gathered = Vec::new();
        for node in graph.written.keys().copied() {
            let (count, bits) = elements(node);
            let mut at = node;
            if is_heavy(graph.nodes[at as usize].opcode) || graph.operands(at).is_empty() {
                continue;
            }
            for _ in 0..MOST_STEPS {
                let same = graph.operands(at).iter().copied().find(|own| elements(*own).0 == count);
                let Some(next) = same else { break };
                at = next;
                if graph.written.contains_key(&at) {
                    let (_, own) = elements(at);
                    let held = i128::from(self.own_bytes(graph, at)) * i128::from(bits);
                    if held < i128::from(self.own_bytes(graph, node)) * i128::from(own) {
                        gathered.push(node);
                    }
                    break;
                }
            }
        }
        for node in gathered {
            graph.nodes[node as usize].opcode = Opcode::AllGather;
        }
    }

    /// Lays out the body of a loop.
    fn body_of(&mut self, graph: &Graph, node: u32, depth: u32) -> Option<()> {
        let row = graph.nodes[node as usize].row;
        let body = self.module.called(row, CallRole::Body)?;
        let own = match self.places.graphs.remove(&body) {
            Some(inner) if depth < DEEPEST => inner,
            Some(_) => return None,
            None => {
                let mut graph = Graph::new(self.module, body, &[], &mut self.budget)?;
                self.mark_gathers(&mut graph);
                self.find_wide(&mut graph);
                graph
            }
        };
        let count = graph.states[&node].len() as u32;
        let is_same = |element: u32| match own.root.element(element as usize).node() {
            Some(made) => own.nodes[made as usize].element == Some(element),
            None => false,
        };
        // Stacks in host memory take no buffer either.
        let is_hosted = |element: u32| {
            stacked(&own, element).is_some_and(|value| own.on_host.contains(&value))
        };
        let is_held = |element: u32| !is_same(element) && !is_hosted(element);
        self.changed.insert(row, (0..count).map(is_held).collect());
        let steps = self.run(&own, depth + 1)?;
        self.bodies.insert(row, (own, steps));
        Some(())
    }

    /// Adds the arguments of the module, and the results that take no argument's place.
    fn hold_arguments(&mut self, entry: &Graph, steps: &Steps) {
        let module = self.module;
        let bytes_of = |row: Row| -> i64 {
            let leaves = 0..module.shapes().leaf_count(module.shape(row)) as usize;
            let leaves = leaves.map(|leaf| self.local.bytes(module, row, leaf));
            leaves.fold(0, i64::saturating_add)
        };
        let arguments = module.parameters(module.entry()).into_iter().map(bytes_of);
        let arguments = arguments.fold(0, i64::saturating_add);
        let root = Row(module.computation(module.entry()).root);
        let is_donated = ["input_output_alias", "buffer_donor"];
        let is_donated = is_donated.iter().any(|own| module.header_attribute(own).is_some());
        let results = if is_donated { 0 } else { bytes_of(root) };
        let end = *steps.all.end();
        self.add(0..=end, arguments);
        self.add(end..=end, results);
        let _ = entry;
    }

    /// The scan of two loops of a graph.
    fn scan(&mut self, graph: &Graph, steps: &Steps, pair: &Pair) -> Option<Scan> {
        let module = self.module;
        let (mut body, body_steps) = self.bodies.remove(&pair.forward)?;
        let (mut back, back_steps) = self.bodies.remove(&pair.backward)?;
        let whole = looped(graph).find(|node| graph.nodes[*node as usize].row == pair.forward)?;
        for own in [&mut body, &mut back] {
            let bytes: Vec<(u32, i64)> =
                (0..own.nodes.len() as u32).map(|node| (node, self.bytes(own, node))).collect();
            own.own_bytes.extend(bytes);
        }
        let mut stacks: Vec<(u32, Stack)> = Vec::new();
        for (element, read_as) in &pair.read {
            if let Some((_, stack)) = stacks.iter_mut().find(|(known, _)| known == element) {
                stack.read_as.push(*read_as);
                continue;
            }
            let Some(node) = stacked(&body, *element) else { continue };
            let part = graph.users(whole).iter().copied();
            let part = part.filter(|part| graph.nodes[*part as usize].whole == Some(whole));
            let Some(part) = part.into_iter().find(|part| graph.indices.get(part) == Some(element))
            else {
                continue;
            };
            let last = steps.last[part as usize].unwrap_or(steps.runs[part as usize]);
            let first = steps.first[whole as usize];
            let is_held = self.changes_element(pair.forward, *element);
            let bytes = if is_held { self.own_bytes(graph, part) } else { 0 };
            stacks.push((
                *element,
                Stack {
                    node,
                    read_as: vec![*read_as],
                    bytes,
                    live: first..=last,
                    is_weight: is_weight(&body, node),
                    reads: Vec::new(),
                    is_read: false,
                },
            ));
        }
        if stacks.is_empty() {
            return None;
        }
        let use_of = |node: usize| back_steps.of_use(&back, node as u32);
        let mut recomputed = Recomputed::new(module, use_of, &mut body, &back, (&[], true));
        for node in 0..back.nodes.len() as u32 {
            if is_heavy(back.nodes[node as usize].opcode) {
                let runs = back_steps.runs[node as usize];
                let last = back_steps.last[node as usize].unwrap_or(runs);
                recomputed.add_live(&back, node, self.bytes(&back, node), runs..=last);
            }
        }
        let mut leaves: HashMap<u32, u32, BuildMix> = HashMap::default();
        for (number, node) in (0u32..).zip(&back.nodes) {
            leaves.extend(node.element.map(|element| (element, number)));
        }
        let mut stacks: Vec<Stack> = stacks.into_iter().map(|(_, stack)| stack).collect();
        for stack in &mut stacks {
            let leaves = stack.read_as.iter().filter_map(|element| leaves.get(element));
            stack.is_read = leaves.clone().any(|leaf| recomputed.is_read(*leaf));
            let users = leaves.flat_map(|leaf| back.users(*leaf));
            let read = |user: &u32| {
                let step = back_steps.of_use(&back, *user);
                Read { step, last: step, feeds_product: false, copies: None }
            };
            stack.reads = users.map(read).collect();
        }
        Some(Scan {
            forward: pair.forward,
            backward: pair.backward,
            trips: trips_of(self.cost, pair.forward)?,
            body,
            back,
            body_id: module.called(pair.forward, CallRole::Body)?,
            back_id: module.called(pair.backward, CallRole::Body)?,
            stacks,
            recomputed,
            body_steps: body_steps.all,
            back_steps: back_steps.all,
        })
    }
}

/// The order in which the nodes of a graph run: text order, but products, and what only goes into a
/// stack, run as soon as their operands are there.
fn order(graph: &Graph) -> Vec<u32> {
    let count = graph.nodes.len();
    // Whether a node is a product or stacks a value, or only serves such nodes.
    let mut is_sink = vec![false; count];
    for node in (0..count as u32).rev() {
        let users = graph.users(node);
        let own = &graph.nodes[node as usize];
        is_sink[node as usize] = own.element.is_none()
            && match own.opcode {
                Opcode::DynamicUpdateSlice => users.is_empty(),
                // Products free their operands, such as the logits in the gradient of a head.
                opcode if opcode.is_matmul() => true,
                _ => !users.is_empty() && users.iter().all(|user| is_sink[*user as usize]),
            };
    }
    // By node: the node after whose step it runs.
    let mut after: Vec<u32> = (0..count as u32).collect();
    for node in 0..count as u32 {
        if is_sink[node as usize] {
            let operands = graph.operands(node).iter();
            after[node as usize] = operands.map(|own| after[*own as usize]).max().unwrap_or(0);
        }
    }
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.sort_by_key(|node| (after[*node as usize], *node));
    order
}

pub fn knob(at: usize) -> i64 {
    let all = std::env::var("HLOK").unwrap_or_else(|_| "0,0,1".into());
    all.split(',').nth(at).and_then(|own| own.parse().ok()).unwrap_or(0)
}
