//! Checkpointed layers of a module that is not scheduled, as if they were not checkpointed.
//!
//! The backward body of such layers recomputes the forward pass before it uses its values. Here it reads these values
//! from stacks instead, as it would without `jax.checkpoint`, so that both texts of a program give the same peaks. A
//! value of the backward body is one of the forward body if the same operations make both from the same stacks,
//! weights and constants. Cheap values that only gradients need have no equal there: the backward body still computes
//! them, from those that have one. XLA for GPUs writes more where scores run again (`hold_wide_gradients`): its texts
//! stay as they are.

use super::graph::without::Given;
use super::graph::{Graph, Value};
use super::layout::Layout;
use super::named::{is_checkpointed, loops_around};
use super::recomputed::{again, is_counter, runs_again};
use super::scans::is_heavy;
use super::stacks::{is_unchanged, stacked};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, Module, Opcode, Row};
use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_128;

/// Attributes in which equal rows of both bodies differ, and references to computations.
const UNLIKE: [&[u8]; 6] =
    [b"metadata", b"frontend_attributes", b"sharding", b"channel_id", b"to_apply", b"calls"];
/// Marks the numbers of nodes around the loops.
const OUTSIDE: u32 = 1 << 31;

type Nodes = HashMap<u32, u32, BuildMix>;

impl Layout<'_> {
    /// The body `back` of the loop `node` of `around`, without what it recomputes if it is the backward loop of
    /// checkpointed layers. As it is if the values of the forward body are not found.
    pub fn opened(&mut self, around: &Graph, node: u32, back: Graph) -> Graph {
        let backward = around.nodes[node as usize].row;
        match self.without_recomputed(around, node, &back) {
            Some((own, residuals)) => {
                self.residuals.insert(backward, residuals);
                own
            }
            None => back,
        }
    }

    fn without_recomputed(
        &mut self,
        around: &Graph,
        node: u32,
        back: &Graph,
    ) -> Option<(Graph, Vec<(u32, u32)>)> {
        let (module, backward) = (self.module, around.nodes[node as usize].row);
        let forward = self.forward_of(backward).filter(|_| !self.is_gpu())?;
        let (fore, _) = self.bodies.get(&forward)?;
        let is_forward = |own: &&u32| around.nodes[**own as usize].row == forward;
        let whole = *around.states.keys().find(is_forward)?;
        let loops = loops_around(module, backward);
        let is_again = again(module, back, loops);
        if !is_checkpointed(module, back, loops) && !runs_again(back, &is_again) {
            return None;
        }
        self.budget = self.budget.checked_sub(around.nodes.len())?;
        let values = Values::new(module, around, whole, fore);
        values.twins(back, node, &is_again).open(back, &is_again)
    }
}

/// The values of a forward body and of what is around it. Equal ones have the same number.
struct Values<'a> {
    module: &'a Module,
    around: &'a Graph,
    /// The node of the forward loop.
    whole: u32,
    fore: &'a Graph,
    /// By what a node computes: its value.
    known: HashMap<u128, u32, BuildMix>,
    /// By node around the loops, and of the forward body: its value.
    outside: Vec<u32>,
    of: Vec<u32>,
    /// By value of a weight: the value of the part that a layer takes of it.
    slices: Nodes,
    /// By value: a node of the forward body.
    nodes: Nodes,
    /// By element of the state of the forward loop: its node in the body.
    leaves: Nodes,
    /// The value that counts the iterations.
    counter: Option<u32>,
}

impl<'a> Values<'a> {
    fn new(module: &'a Module, around: &'a Graph, whole: u32, fore: &'a Graph) -> Self {
        let mut own = Values {
            module,
            around,
            whole,
            fore,
            known: HashMap::default(),
            outside: Vec::with_capacity(around.nodes.len()),
            of: Vec::with_capacity(fore.nodes.len()),
            slices: Nodes::default(),
            nodes: Nodes::default(),
            leaves: Nodes::default(),
            counter: None,
        };
        // JAX takes out of the forward body what depends on no layer, but not out of the backward body.
        for number in 0..around.nodes.len() as u32 {
            let key = key(module, around, number, |node| Some(own.outside[node as usize]));
            let value = number | OUTSIDE;
            own.outside.push(key.map_or(value, |key| *own.known.entry(key).or_insert(value)));
        }
        for number in 0..fore.nodes.len() as u32 {
            let value = own.value(number);
            own.of.push(value);
            own.nodes.entry(value).or_insert(number);
        }
        own
    }

    /// The value of the next node of the forward body.
    fn value(&mut self, number: u32) -> u32 {
        let (module, fore) = (self.module, self.fore);
        if let Some(element) = fore.nodes[number as usize].element {
            self.leaves.insert(element, number);
            if self.counter.is_none() && is_counter(module, fore, number) {
                self.counter = Some(number);
            }
            let given = self.given(self.whole, element).filter(|_| is_unchanged(fore, number));
            return given.map_or(number, |node| self.outside[node as usize]);
        }
        // The backward loop takes the parts of a weight from the other end.
        if let Some(leaf) = sliced(module, fore, number) {
            return *self.slices.entry(self.of[leaf as usize]).or_insert(number);
        }
        let key = key(module, fore, number, |node| Some(self.of[node as usize]));
        key.map_or(number, |key| *self.known.entry(key).or_insert(number))
    }

    /// The node around a loop that gives an element of its state.
    fn given(&self, whole: u32, element: u32) -> Option<u32> {
        self.around.states.get(&whole)?.get(element as usize)?.node()
    }

    /// What the nodes of the body of the backward loop `whole` are in the forward body.
    fn twins(&self, back: &Graph, whole: u32, is_again: &[bool]) -> Twins<'a> {
        let count = back.nodes.len();
        let mut found = Twins {
            fore: self.fore,
            of: vec![None; count],
            is_fixed: vec![false; count],
            is_slice: vec![false; count],
        };
        let mut values: Vec<Option<u32>> = vec![None; count];
        // By element that is a stack: the node of the forward body whose value it holds.
        let mut stacks = Nodes::default();
        for (number, node) in (0u32..).zip(&back.nodes) {
            let at = number as usize;
            if !is_again[at] {
                continue;
            }
            let leaf = sliced(self.module, back, number);
            if let Some(element) = node.element {
                let given = self.given(whole, element);
                let is_result =
                    |own: &u32| self.around.nodes[*own as usize].whole == Some(self.whole);
                let index = given.filter(is_result).and_then(|own| self.around.indices.get(&own));
                if let Some(value) = index.and_then(|index| stacked(self.fore, *index)) {
                    stacks.insert(number, value);
                    continue;
                }
                found.is_fixed[at] = true;
                let passed = index.and_then(|index| self.leaves.get(index).copied());
                let passed = passed.filter(|own| is_unchanged(self.fore, *own));
                values[at] = match (is_unchanged(back, number), passed) {
                    (false, _) => self.counter,
                    (true, Some(own)) => Some(self.of[own as usize]),
                    (true, None) => given.map(|own| self.outside[own as usize]),
                };
            } else if let Some(value) = leaf.and_then(|leaf| stacks.get(&leaf)) {
                found.is_slice[at] = true;
                values[at] = Some(self.of[*value as usize]);
            } else {
                let mut operands = back.operands(number).iter();
                found.is_fixed[at] = operands.all(|own| found.is_fixed[*own as usize]);
                values[at] = match leaf {
                    Some(leaf) => {
                        values[leaf as usize].and_then(|own| self.slices.get(&own).copied())
                    }
                    None => key(self.module, back, number, |own| values[own as usize])
                        .and_then(|key| self.known.get(&key).copied()),
                };
            }
            found.of[at] = values[at].and_then(|own| self.nodes.get(&own).copied());
        }
        found
    }
}

/// What the nodes of a backward body are in the forward body.
struct Twins<'a> {
    fore: &'a Graph,
    /// By node of the backward body: the node of the forward body that is the same value.
    of: Vec<Option<u32>>,
    /// By node: whether it is made from weights and constants alone.
    is_fixed: Vec<bool>,
    /// By node: whether it is a slice of a stack that the text has.
    is_slice: Vec<bool>,
}

impl Twins<'_> {
    /// The backward body with what gradients read as slices of stacks, and by such stack the node of the forward body
    /// and the element of the state. None if the forward body does not have all of that.
    fn open(&self, back: &Graph, is_again: &[bool]) -> Option<(Graph, Vec<(u32, u32)>)> {
        let count = back.nodes.len();
        let mut is_kept: Vec<bool> =
            (0..count).map(|at| !is_again[at] || back.nodes[at].element.is_some()).collect();
        let mut is_given = vec![false; count];
        let mut given: Vec<(u32, u32)> = Vec::new();
        let mut open: Vec<u32> = Vec::new();
        back.root.leaves(&mut open, &mut 0);
        let rest = (0..count as u32).filter(|number| !is_again[*number as usize]);
        open.extend(rest.flat_map(|number| back.operands(number)));
        while let Some(node) = open.pop() {
            let at = node as usize;
            if is_kept[at] || is_given[at] {
                continue;
            }
            let is_read_here = self.is_fixed[at] || self.is_slice[at];
            let is_value = |twin: &u32| {
                self.fore.nodes[*twin as usize].element.is_none()
                    && !self.fore.within.contains_key(twin)
            };
            if let Some(twin) = self.of[at].filter(|twin| !is_read_here && is_value(twin)) {
                is_given[at] = true;
                given.push((node, twin));
                continue;
            }
            let own = &back.nodes[at];
            let is_cheap = !is_heavy(own.opcode) && own.whole.is_none();
            if back.within.contains_key(&node) || !is_read_here && !is_cheap {
                return None;
            }
            is_kept[at] = true;
            open.extend(back.operands(node));
        }
        let mut is_early = is_given;
        for (number, node) in (0u32..).zip(&back.nodes) {
            let at = number as usize;
            let is_ready = || back.operands(number).iter().all(|own| is_early[*own as usize]);
            is_early[at] |= node.element.is_some() || is_again[at] && is_kept[at] && is_ready();
        }
        given.sort_unstable();
        let Value::Many(root) = &back.root else { return None };
        let first = u32::try_from(root.elements.len()).ok()?;
        let mut residuals: Vec<(u32, u32)> = Vec::new();
        let mut elements = Nodes::default();
        let mut stack_of = |(node, twin): (u32, u32)| {
            let next = first + elements.len() as u32;
            let element = *elements.entry(twin).or_insert_with(|| {
                residuals.push((twin, next));
                next
            });
            Given { node, element, row: self.fore.nodes[twin as usize].row }
        };
        let given: Vec<Given> = given.into_iter().map(&mut stack_of).collect();
        Some((back.without(&is_kept, &is_early, &given)?, residuals))
    }
}

/// The element of the state of which a node is a slice at an index.
fn sliced(module: &Module, graph: &Graph, number: u32) -> Option<u32> {
    let is_slice = module.opcode(graph.nodes[number as usize].row) == Opcode::DynamicSlice;
    let first = graph.operands(number).first().copied().filter(|_| is_slice);
    first.filter(|own| graph.nodes[*own as usize].element.is_some())
}

/// What a node computes, of operands that `of` numbers; None for what is unlike any other.
fn key(
    module: &Module,
    graph: &Graph,
    number: u32,
    of: impl Fn(u32) -> Option<u32>,
) -> Option<u128> {
    use Opcode::{Conditional, Infeed, Parameter, Recv, RecvDone, Rng, RngBitGenerator, While};
    let node = &graph.nodes[number as usize];
    let opcode = module.opcode(node.row);
    let is_unlike = matches!(
        opcode,
        Conditional | Infeed | Parameter | Recv | RecvDone | Rng | RngBitGenerator | While
    );
    if is_unlike {
        return None;
    }
    let mut key: Vec<u8> = (opcode as u16).to_le_bytes().to_vec();
    for operand in graph.operands(number) {
        key.extend_from_slice(&of(*operand)?.to_le_bytes());
    }
    key.push(0);
    if let Some(index) = graph.indices.get(&number) {
        key.extend_from_slice(&index.to_le_bytes());
    }
    if let Some(array) = module.shapes().array(node.shape) {
        key.push(array.element_type as u8);
        for size in array.dimensions() {
            key.extend_from_slice(&size.bound().unwrap_or(-1).to_le_bytes());
        }
    }
    if opcode == Opcode::Constant {
        key.extend_from_slice(module.bytes(module.opcode_and_payload(node.row).1));
    }
    for attribute in module.attributes(node.row) {
        let name = module.bytes(attribute.key);
        if !UNLIKE.contains(&name) {
            key.extend_from_slice(name);
            key.extend_from_slice(module.bytes(attribute.value));
        }
    }
    if let Some(applied) = module.called(node.row, CallRole::ToApply) {
        let root = Row(module.computation(applied).root);
        key.extend_from_slice(&(module.opcode(root) as u16).to_le_bytes());
    }
    Some(xxh3_128(&key))
}
