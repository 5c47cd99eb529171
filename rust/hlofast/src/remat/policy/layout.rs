//! The steps that the rows of an unscheduled module would run at, and the bytes at each of them.

use super::NoPolicies;
use super::base::add;
use super::chip::Chip;
use super::graph::Graph;
use super::groups::chain;
use super::laid_checkpoints::Outside;
use super::laid_groups::{Around, Laid, mark_slices};
use super::laid_loops::share_states;
use super::pairs::{DEEPEST, Pair, Places, looped, trips_of};
use super::run_order::{Transfers, order, shared};
use super::scans::{Scan, is_heavy};
use super::stacks::stacked;
use super::value::Value;
use super::widened::Widened;
use crate::cost::Cost;
use crate::flow::Phase;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, Module, Opcode, Row};
use crate::shares::Local;
use hashbrown::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::rc::Rc;

/// Limit on the operands of a node among which the value that it changes is looked for.
const MOST_READ: usize = 8;
/// Limit on the nodes between a gathered value and the value that devices gather.
const MOST_STEPS: usize = 16;

/// A module that is laid out.
pub struct LaidOut {
    /// The changes of bytes from each step to the next.
    pub changes: Vec<i64>,
    /// The row of each step.
    pub rows: Vec<u32>,
    pub scans: Vec<Scan>,
    /// Whether XLA may let gradients of weights wait until the end of a layer, or not.
    pub may_wait: bool,
    /// The steps and bytes of what a list makes before it is read (`Policies::listed_before`).
    pub early: Vec<(RangeInclusive<u32>, i64)>,
}

/// Lays out a module. An error if it is too large, or if its layers are in groups that the model does not cover.
pub fn lay_out(mut layout: Layout<'_>) -> Result<LaidOut, NoPolicies> {
    let entry = layout.places.graphs.remove(&layout.module.entry()).ok_or(NoPolicies::NoLayers)?;
    let steps = layout.run(&entry, false, 0).ok_or(NoPolicies::NoLayers)?;
    layout.hold_arguments(&steps);
    let may_wait = layout.may_wait && !layout.converts_weights;
    let Layout { changes, rows, scans, unknown, early, .. } = layout;
    match unknown {
        Some(reason) => Err(reason),
        None => Ok(LaidOut { changes, rows, scans, may_wait, early }),
    }
}

/// The steps of the nodes of a graph.
pub struct Steps {
    /// By node: the step at which it runs; for loops the last step.
    pub runs: Vec<u32>,
    /// By node: its first step.
    pub first: Vec<u32>,
    /// By node: the last step that reads it; None if nothing does.
    pub last: Vec<Option<u32>>,
    /// Values that take the memory of others as these end.
    pub in_place: HashSet<u32, BuildMix>,
    /// By node of a loop in a layer: the first step of the loop, which holds its results from then on.
    began: HashMap<u32, u32, BuildMix>,
    /// By loop and element of its result: the node that takes the element.
    parts: HashMap<(u32, u32), u32, BuildMix>,
    /// The products that are in memory in a wider type.
    pub widened: Vec<Widened>,
    /// The steps of the whole graph.
    pub all: RangeInclusive<u32>,
}

impl Steps {
    /// No steps yet; `start` is the first.
    pub fn new(graph: &Graph, start: u32) -> Self {
        let count = graph.nodes.len();
        Steps {
            runs: vec![0; count],
            first: vec![0; count],
            last: vec![None; count],
            in_place: HashSet::default(),
            began: HashMap::default(),
            parts: HashMap::default(),
            widened: Vec::new(),
            all: start..=start,
        }
    }

    /// The first step at which the value of a node takes memory of its own.
    pub fn held_from(&self, node: u32) -> u32 {
        if let Some(began) = self.began.get(&node) {
            return *began;
        }
        self.runs[node as usize].saturating_add(u32::from(self.in_place.contains(&node)))
    }

    /// The step at which a value is used for the last time to make this node or what reads it.
    pub fn of_use(&self, graph: &Graph, node: u32) -> u32 {
        let at = node as usize;
        match stays(graph, node) {
            true => self.runs[at],
            false => self.last[at].unwrap_or(self.runs[at]),
        }
    }
}

/// Whether the value of a node is in memory: others are computed where they are read.
pub fn stays(graph: &Graph, node: u32) -> bool {
    let opcode = graph.nodes[node as usize].opcode;
    is_heavy(opcode) || opcode == Opcode::DynamicUpdateSlice || graph.shared.contains(&node)
}

/// Whether an element of the state of a loop starts as a constant in all places.
fn is_zero(graph: &Graph, whole: u32, element: u32) -> bool {
    let state = graph.states.get(&whole).and_then(|own| own.get(element as usize));
    let node = state.and_then(Value::node);
    node.is_some_and(|node| graph.nodes[node as usize].opcode == Opcode::Broadcast)
}

/// Lays out the steps of a module and counts the bytes at each of them.
pub struct Layout<'a> {
    pub module: &'a Module,
    pub cost: &'a Cost,
    pub local: &'a Local,
    /// The chip, if it is known and matters.
    pub chip: Option<Chip>,
    places: Places,
    pub budget: usize,
    /// By step: the change from the step before.
    pub changes: Vec<i64>,
    /// By step: the row that runs.
    pub rows: Vec<u32>,
    /// By loop: the graph of its body and its steps.
    pub bodies: HashMap<Row, Laid, BuildMix>,
    /// By loop: whether each element of its state has a buffer in device memory of its own.
    changed: HashMap<Row, Vec<bool>, BuildMix>,
    /// By loop: bytes of the values that it stacks, by element of its state.
    stacked: HashMap<Row, HashMap<u32, i64, BuildMix>, BuildMix>,
    pub scans: Vec<Scan>,
    /// By backward loop of checkpointed layers: the values of the forward body that it gets in the layout, with the
    /// elements of its state (`laid_checkpoints.rs`).
    pub residuals: HashMap<Row, Vec<(u32, u32)>, BuildMix>,
    /// The first row of a computation with such loops, and its values.
    pub outside: Option<(u32, Rc<Outside>)>,
    /// Whether gradients of weights wait until the end of a layer, if they may.
    pub wait: bool,
    may_wait: bool,
    pub early: Vec<(RangeInclusive<u32>, i64)>,
    converts_weights: bool,
    /// By row: its phase, in a module whose layers are in loops.
    pub phases: &'a [Phase],
    /// Why the model does not cover the module.
    unknown: Option<NoPolicies>,
}

impl<'a> Layout<'a> {
    /// Nothing is laid out yet.
    pub fn new(
        module: &'a Module,
        cost: &'a Cost,
        local: &'a Local,
        places: Places,
        budget: usize,
    ) -> Self {
        Layout {
            module,
            cost,
            local,
            chip: None,
            places,
            budget,
            changes: Vec::new(),
            rows: Vec::new(),
            bodies: HashMap::default(),
            changed: HashMap::default(),
            stacked: HashMap::default(),
            scans: Vec::new(),
            residuals: HashMap::default(),
            outside: None,
            wait: true,
            may_wait: false,
            early: Vec::new(),
            converts_weights: false,
            phases: &[],
            unknown: None,
        }
    }
}

impl Layout<'_> {
    /// Whether XLA compiles the module for a GPU.
    pub fn is_gpu(&self) -> bool {
        self.chip == Some(Chip::Gpu)
    }

    pub fn add(&mut self, steps: RangeInclusive<u32>, bytes: i64) {
        if self.changes.len() <= self.rows.len() + 1 {
            self.changes.resize(self.rows.len() + 2, 0);
        }
        add(&mut self.changes, steps, bytes);
    }

    /// Adds a step.
    pub fn step(&mut self, row: Row) -> u32 {
        self.rows.push(row.0);
        self.rows.len() as u32 - 1
    }

    /// The bytes of a node's value on one device, in the type in which XLA keeps it.
    pub fn bytes(&self, graph: &Graph, node: u32) -> i64 {
        if graph.own_bytes.get(&node) == Some(&0) {
            return 0;
        }
        let own = self.own_bytes(graph, node) / graph.wider.get(&node).copied().unwrap_or(1);
        let bits = |node: u32| self.bits(graph, node);
        let users = graph.users(node).iter();
        let narrow = users.filter(|user| graph.nodes[**user as usize].opcode == Opcode::Convert);
        match narrow.map(|user| bits(*user)).filter(|narrow| *narrow < bits(node)).max() {
            Some(narrow) => own / bits(node) * narrow,
            _ => own,
        }
    }

    /// Bits of an element of a value.
    pub fn bits(&self, graph: &Graph, node: u32) -> i64 {
        let array = self.module.shapes().array(graph.nodes[node as usize].shape);
        array.map_or(1, |array| i64::from(array.element_type.bits()).max(1))
    }

    pub fn elements(&self, graph: &Graph, node: u32) -> Option<u64> {
        self.module.shapes().array(graph.nodes[node as usize].shape)?.elements()
    }

    /// The value of a written sharding that a cheap value of as many elements is made from.
    pub fn written_source(&self, graph: &Graph, node: u32) -> Option<u32> {
        let count = self.elements(graph, node)?;
        let mut at = node;
        for _ in 0..MOST_STEPS {
            let own = &graph.nodes[at as usize];
            if own.element.is_some() || is_heavy(own.opcode) {
                return None;
            }
            let mut read = graph.operands(at).iter().take(MOST_READ).copied();
            at = read.find(|own| self.elements(graph, *own) == Some(count))?;
            if graph.written.contains_key(&at) {
                return Some(at);
            }
        }
        None
    }

    pub fn own_bytes(&self, graph: &Graph, node: u32) -> i64 {
        let own = &graph.nodes[node as usize];
        let (module, shapes) = (self.module, self.module.shapes());
        if let Some(row) = graph.written.get(&node) {
            return self.local.bytes(module, *row, 0);
        }
        // Cheap values are split as the value that they are made from, if its sharding is written.
        if let Some(source) = self.written_source(graph, node) {
            let row = graph.written[&source];
            let bytes =
                i128::from(self.local.bytes(module, row, 0)) * i128::from(self.bits(graph, node));
            return i64::try_from(bytes / i128::from(self.bits(graph, source))).unwrap_or(i64::MAX);
        }
        let shape = module.shape(own.row);
        // An element of the result of a loop in a layer has a place in the loop's tuple, too.
        let is_result = graph.within.get(&node) == Some(&own.row);
        let index = graph.indices.get(&node).copied().filter(|_| is_result);
        let index = own.element.or(index);
        let leaf = index.and_then(|element| shapes.first_leaf(shape, element as usize));
        let leaf = leaf.unwrap_or(0) as usize;
        let held = self.local.bytes(module, own.row, leaf);
        let whole = |shape| shapes.logical_bytes(shape).and_then(|own| i64::try_from(own).ok());
        let (wanted, of) = (whole(own.shape).unwrap_or(0), whole(shape).unwrap_or(0));
        if index.is_some() || shape == own.shape || of == 0 {
            return held;
        }
        // The sum that a loop adds up is split as its products are.
        i64::try_from(i128::from(held) * i128::from(wanted) / i128::from(of)).unwrap_or(wanted)
    }

    /// Gives the nodes of a graph their steps, with the bodies of loops in their places, and adds
    /// the bytes of their values. None if the module is too large.
    pub fn run(&mut self, graph: &Graph, is_backward: bool, depth: u32) -> Option<Steps> {
        let transfers = Transfers::of(graph, self.local, false);
        let start = self.rows.len() as u32;
        let mut steps = Steps::new(graph, start);
        let may_wait = is_backward && transfers == Transfers::Many;
        self.may_wait |= may_wait;
        // By loop in a layer: the step at which it begins.
        let mut began: HashMap<Row, u32, BuildMix> = HashMap::default();
        let phases = self.phases;
        let is_forward = |row: Row| phases.get(row.0 as usize) == Some(&Phase::Forward);
        for node in order(graph, may_wait && self.wait, is_forward) {
            let own = graph.nodes[node as usize];
            if let Some(row) = graph.within.get(&node).copied()
                && !began.contains_key(&row)
            {
                began.insert(row, self.rows.len() as u32);
                self.iteration_of(row, is_backward, depth)?;
            }
            steps.first[node as usize] = self.rows.len() as u32;
            if graph.states.contains_key(&node) {
                self.body_of(graph, node, depth)?;
            }
            steps.runs[node as usize] = self.step(own.row);
        }
        for (part, own) in (0u32..).zip(&graph.nodes) {
            let whole = own.whole.filter(|whole| graph.states.contains_key(whole));
            if let Some((whole, index)) = whole.zip(graph.indices.get(&part)) {
                steps.parts.insert((whole, *index), part);
            }
        }
        let of_loops = graph.within.iter();
        steps.began = of_loops.filter_map(|(node, row)| Some((*node, *began.get(row)?))).collect();
        let end = (self.rows.len() as u32).saturating_sub(1).max(start);
        steps.all = start..=end;
        self.find_last(graph, &mut steps);
        steps.in_place = self.in_place(graph, &steps, transfers);
        self.hold(graph, &steps);
        self.hold_gathered(graph, &steps, depth == 0);
        if !is_backward {
            let until = |product: u32| steps.last[product as usize].or(Some(0));
            let widened = self.hold_exponentials(graph, &steps, until);
            steps.widened = if self.is_gpu() { Vec::new() } else { widened };
        } else if self.is_gpu() {
            self.hold_wide_gradients(graph, &steps);
        }
        let loops = looped(graph);
        let place = |row: Row| loops.binary_search_by_key(&row, |own| own.0).ok();
        let is_own = |own: &Pair| place(own.forward).is_some();
        let (own, rest): (Vec<Pair>, Vec<Pair>) =
            std::mem::take(&mut self.places.pairs).into_iter().partition(is_own);
        self.places.pairs = rest;
        for pair in own {
            let Some(whole) = place(pair.forward).map(|at| loops[at].1) else { continue };
            let around = Around { graph, steps: &steps, whole, pair: &pair };
            if !pair.inner.iter().all(Vec::is_empty) {
                let found = self.add_groups(&around);
                self.unknown = self.unknown.or(found.err());
                continue;
            }
            let bodies = [pair.forward, pair.backward].map(|row| self.bodies.remove(&row));
            if let [Some(body), Some(back)] = bodies {
                if self.is_plain(&pair) {
                    self.hold_narrowed(&around, [&body, &back]);
                }
                let scan = self.between(&around, &pair.read, [body, back]);
                // The values that the backward body does not recompute here are in no stack.
                if self.residuals.remove(&pair.backward).is_some() {
                    self.unknown = self.unknown.or(Some(NoPolicies::NoLayers));
                }
                self.scans.extend(scan.map(|scan| Scan { is_again: pair.is_again, ..scan }));
            }
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
    pub fn changes_element(&self, row: Row, element: u32) -> bool {
        let known = self.changed.get(&row).and_then(|own| own.get(element as usize));
        known.copied().unwrap_or(true)
    }

    /// Bytes of an element of a loop's result: for a stack, those of the values in it, whose shardings
    /// are written more often.
    fn held_bytes(&self, graph: &Graph, part: u32, whole: u32, element: u32) -> i64 {
        let row = graph.nodes[whole as usize].row;
        let known = self.stacked.get(&row).and_then(|own| own.get(&element)).copied();
        let trips = trips_of(self.cost, row).and_then(|trips| i64::try_from(trips).ok());
        match known.zip(trips) {
            Some((bytes, trips)) => bytes.saturating_mul(trips),
            None => self.own_bytes(graph, part),
        }
    }

    /// Adds the bytes of the values of a graph.
    fn hold(&mut self, graph: &Graph, steps: &Steps) {
        if self.is_gpu() {
            self.hold_taken(graph, steps);
        }
        for node in 0..graph.nodes.len() as u32 {
            let at = node as usize;
            let own = &graph.nodes[at];
            let is_part = own.whole.is_some_and(|whole| graph.states.contains_key(&whole));
            let last = steps.last[at].unwrap_or(steps.runs[at]);
            if is_part {
                let (whole, index) = (own.whole.unwrap_or(0), graph.indices.get(&node));
                let row = graph.nodes[whole as usize].row;
                if index.is_some_and(|index| self.changes_element(row, *index)) {
                    let bytes = self.held_bytes(graph, node, whole, index.copied().unwrap_or(0));
                    let first = steps.first[whole as usize];
                    self.add(first..=last, bytes);
                    let starts_as_zero = is_zero(graph, whole, index.copied().unwrap_or(0));
                    if starts_as_zero && first > 0 && self.is_backward(row) {
                        self.early.push((*steps.all.start()..=first - 1, bytes));
                    }
                }
            } else if own.element.is_none()
                && stays(graph, node)
                && own.opcode != Opcode::DynamicUpdateSlice
            {
                let bytes = self.bytes(graph, node);
                self.add(steps.held_from(node)..=last, bytes);
            }
        }
    }

    /// Lays out the body of a loop.
    fn body_of(&mut self, graph: &Graph, node: u32, depth: u32) -> Option<()> {
        let row = graph.nodes[node as usize].row;
        let body = self.module.called(row, CallRole::Body)?;
        let own = match self.places.graphs.remove(&body) {
            Some(mut inner) if depth < DEEPEST => {
                if self.places.groups.binary_search(&row).is_ok() {
                    self.mark_transfers(&mut inner);
                    let own = shared(self.module, &inner, self.is_gpu(), |_, _, _| true);
                    inner.shared.extend(own);
                    mark_slices(&mut inner);
                }
                inner
            }
            Some(_) => return None,
            None => {
                let own = Graph::new(self.module, body, &[], &mut self.budget)?;
                let mut graph = self.without_recomputation(graph, node, own);
                self.mark_transfers(&mut graph);
                let own = shared(self.module, &graph, self.is_gpu(), |_, _, _| true);
                graph.shared.extend(own);
                share_states(&mut graph);
                graph
            }
        };
        let count = graph.states[&node].len() as u32;
        let is_same = |element: u32| match own.root.element(element as usize).node() {
            Some(made) => own.nodes[made as usize].element == Some(element),
            None => false,
        };
        // Stacks in host memory take no buffer either.
        let is_hosted =
            |element: u32| stacked(&own, element).is_some_and(|value| own.on_host.contains(&value));
        let is_held = |element: u32| !is_same(element) && !is_hosted(element);
        self.changed.insert(row, (0..count).map(is_held).collect());
        let steps = self.run(&own, self.is_backward(row), depth + 1)?;
        self.converts_weights |= self.converts_weights(&own);
        let values = (0..count).filter_map(|element| Some((element, stacked(&own, element)?)));
        let known =
            values.filter_map(|(element, value)| Some((element, self.stacked_bytes(&own, value)?)));
        let known = known.collect();
        self.stacked.insert(row, known);
        self.bodies.insert(row, (own, steps));
        Some(())
    }

    /// Bytes of a value that a loop stacks, if its sharding is written, or if it is a stack itself of
    /// such values.
    fn stacked_bytes(&self, graph: &Graph, value: u32) -> Option<i64> {
        if graph.written.contains_key(&value) || self.written_source(graph, value).is_some() {
            return Some(self.own_bytes(graph, value));
        }
        let part = chain(graph, value).last().copied()?;
        let whole = graph.nodes[part as usize].whole?;
        let row = graph.nodes[whole as usize].row;
        let bytes = self.stacked.get(&row)?.get(graph.indices.get(&part)?)?;
        let trips = trips_of(self.cost, row).and_then(|trips| i64::try_from(trips).ok())?;
        Some(bytes.saturating_mul(trips))
    }

    /// The forward loop of a pair that `is_plain`.
    pub fn forward_of(&self, backward: Row) -> Option<Row> {
        let pair = self.places.pairs.iter().find(|own| own.backward == backward)?;
        self.is_plain(pair).then_some(pair.forward)
    }

    /// Whether it is known what XLA moves out of the loops of a pair: if it compiles for TPUs, and the layers are in
    /// no groups.
    pub fn is_plain(&self, pair: &Pair) -> bool {
        !pair.is_of_groups() && !self.is_gpu()
    }

    /// Whether a loop is the backward loop of a pair, or of layers in it: not one that runs forward again.
    fn is_backward(&self, row: Row) -> bool {
        let pairs = || self.places.pairs.iter();
        let is_its =
            |pair: &Pair| pair.backward == row || pair.inner[1].binary_search(&row).is_ok();
        pairs().any(is_its) && !pairs().any(|pair| pair.is_again && pair.forward == row)
    }

    /// Adds the arguments of the module, and the results that take no argument's place.
    pub fn hold_arguments(&mut self, steps: &Steps) {
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
    }

    /// Bytes and steps of an element of the result of a loop; None if nothing takes it.
    pub fn held(
        &self,
        graph: &Graph,
        steps: &Steps,
        whole: u32,
        element: u32,
    ) -> Option<(i64, RangeInclusive<u32>)> {
        let part = *steps.parts.get(&(whole, element))?;
        let last = steps.last[part as usize].unwrap_or(steps.runs[part as usize]);
        let is_held = self.changes_element(graph.nodes[whole as usize].row, element);
        let bytes = if is_held { self.held_bytes(graph, part, whole, element) } else { 0 };
        Some((bytes, steps.first[whole as usize]..=last))
    }
}
