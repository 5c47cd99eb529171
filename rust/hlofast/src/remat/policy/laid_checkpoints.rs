//! Checkpointed layers of a module that is not scheduled, as if they were not checkpointed.
//!
//! The backward body of such layers recomputes the forward pass before it uses its values. Here it reads these values
//! from stacks instead, as it would without `jax.checkpoint`, so that both texts of a program give the same peaks. A
//! value of the backward body is one of the forward body if the same operations make both from the same stacks,
//! weights and constants. Cheap values that only gradients need have no equal there: the backward body still computes
//! them, from those that have one. XLA for GPUs writes more where the backward pass recomputes scores
//! (`hold_wide_gradients`): its texts stay as they are.

use super::graph::keys::UNLIKE;
use super::graph::without::Given;
use super::graph::{Graph, Value};
use super::layout::Layout;
use super::named::{components, is_checkpointed, is_step, loops_around};
use super::recomputed::{again, runs_again};
use super::scans::is_heavy;
use super::stacks::{is_unchanged, stacked};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use hashbrown::HashMap;
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_128;

/// Marks the numbers of nodes around the loops.
const OUTSIDE: u32 = 1 << 31;
/// Components of the operation name of a product that tell it apart from others of the same operands.
const COMPONENTS: usize = 1;

type Nodes = HashMap<u32, u32, BuildMix>;

impl Layout<'_> {
    /// The body `back` of the loop `node` of `around`; if that is the backward loop of checkpointed layers, without
    /// what it recomputes. Returns `back` unchanged if the values of the forward body are not found.
    pub fn without_recomputation(&mut self, around: &Graph, node: u32, back: Graph) -> Graph {
        let backward = around.nodes[node as usize].row;
        match self.reading_stacks(around, node, &back) {
            Some((own, residuals)) => {
                self.residuals.insert(backward, residuals);
                own
            }
            None => back,
        }
    }

    fn reading_stacks(
        &mut self,
        around: &Graph,
        node: u32,
        back: &Graph,
    ) -> Option<(Graph, Vec<(u32, u32)>)> {
        let (module, backward) = (self.module, around.nodes[node as usize].row);
        let forward = self.forward_of(backward)?;
        let (fore, _) = self.bodies.get(&forward)?;
        let is_forward = |own: &&u32| around.nodes[**own as usize].row == forward;
        let whole = *around.states.keys().find(is_forward)?;
        let loops = loops_around(module, backward);
        let is_again = again(module, back, loops);
        if !is_checkpointed(module, back, loops) && !runs_again(back, &is_again) {
            return None;
        }
        let place = around.rows().start;
        let known = self.outside.take().filter(|(own, _)| *own == place);
        let outside = match known {
            Some((_, own)) => own,
            None => {
                self.budget = self.budget.checked_sub(around.nodes.len())?;
                Rc::new(Outside::new(module, around))
            }
        };
        self.outside = Some((place, Rc::clone(&outside)));
        let values = Values::new(module, around, whole, fore, outside);
        values.equals(back, node, &is_again).reading_stacks(back, &is_again)
    }
}

/// The values of the nodes around the loops. Equal ones have the same number, which `OUTSIDE` marks.
#[derive(Debug, Default)]
pub struct Outside {
    of: Vec<u32>,
    known: HashMap<u128, u32, BuildMix>,
}

impl Outside {
    fn new(module: &Module, around: &Graph) -> Self {
        let mut own = Outside::default();
        let mut digests = Digests::default();
        for number in 0..around.nodes.len() as u32 {
            let of = |node: u32| Some(own.of[node as usize]);
            let key = digests.key(module, around, number, of);
            let value = number | OUTSIDE;
            own.of.push(key.map_or(value, |key| *own.known.entry(key).or_insert(value)));
        }
        own
    }
}

/// The values of a forward body. Equal ones have the same number.
struct Values<'a> {
    module: &'a Module,
    around: &'a Graph,
    /// The node of the forward loop.
    whole: u32,
    fore: &'a Graph,
    /// JAX takes what depends on no layer out of the forward body, but not out of the backward body.
    outside: Rc<Outside>,
    /// By what a node of the body computes: its value.
    known: HashMap<u128, u32, BuildMix>,
    /// By node of the body: its value.
    inside: Vec<u32>,
    /// By value of an array that no iteration changes: the part that a layer takes of it; None if it takes several.
    parts: HashMap<u32, Option<u32>, BuildMix>,
    /// By value: a node of the body, a stacked one if there is any.
    nodes: Nodes,
    /// By element of the state of the forward loop: its node in the body.
    leaves: Nodes,
    digests: Digests,
}

impl<'a> Values<'a> {
    fn new(
        module: &'a Module,
        around: &'a Graph,
        whole: u32,
        fore: &'a Graph,
        outside: Rc<Outside>,
    ) -> Self {
        let mut own = Values {
            module,
            around,
            whole,
            fore,
            outside,
            known: HashMap::default(),
            inside: Vec::with_capacity(fore.nodes.len()),
            parts: HashMap::default(),
            nodes: Nodes::default(),
            leaves: Nodes::default(),
            digests: Digests::default(),
        };
        for number in 0..fore.nodes.len() as u32 {
            if let Some(leaf) = sliced(module, fore, number) {
                let part = own.parts.entry(own.inside[leaf as usize]);
                part.and_modify(|known| *known = None).or_insert(Some(number));
            }
            let value = own.value(number);
            own.inside.push(value);
        }
        let elements = own.around.states.get(&whole).map_or(0, Vec::len) as u32;
        let stacks = (0..elements).filter_map(|element| stacked(fore, element));
        for number in stacks.chain(0..fore.nodes.len() as u32) {
            own.nodes.entry(own.inside[number as usize]).or_insert(number);
        }
        own
    }

    /// The value of the next node of the forward body.
    fn value(&mut self, number: u32) -> u32 {
        let (module, fore) = (self.module, self.fore);
        if let Some(element) = fore.nodes[number as usize].element {
            self.leaves.insert(element, number);
            let given = self.given(self.whole, element).filter(|_| is_unchanged(fore, number));
            return given.map_or(number, |node| self.outside.of[node as usize]);
        }
        // The backward loop takes the layers' parts from the other end.
        if sliced(module, fore, number).is_some() {
            return number;
        }
        let of = |node: u32| Some(self.inside[node as usize]);
        let Some(key) = self.digests.key(module, fore, number, of) else { return number };
        let known = self.outside.known.get(&key).copied();
        known.unwrap_or_else(|| *self.known.entry(key).or_insert(number))
    }

    /// The node around a loop that gives an element of its state.
    fn given(&self, whole: u32, element: u32) -> Option<u32> {
        self.around.states.get(&whole)?.get(element as usize)?.node()
    }

    /// What the nodes of the body of the backward loop `whole` are in the forward body.
    fn equals(mut self, back: &Graph, whole: u32, is_again: &[bool]) -> Equals<'a> {
        let (module, fore) = (self.module, self.fore);
        let count = back.nodes.len();
        let mut found = Equals {
            fore,
            of: vec![None; count],
            is_fixed: vec![false; count],
            is_part: vec![false; count],
        };
        // By element of the state: how many parts of it the body takes.
        let mut taken: HashMap<u32, u32, BuildMix> = HashMap::default();
        for leaf in (0..count as u32).filter_map(|number| sliced(module, back, number)) {
            *taken.entry(leaf).or_default() += 1;
        }
        let elements = |graph: &Graph, node: u32| {
            let array = module.shapes().array(graph.nodes[node as usize].shape);
            array.and_then(|own| own.elements())
        };
        let mut values: Vec<Option<u32>> = vec![None; count];
        // By element that is a stack: the node of the forward body whose value it holds.
        let mut stacks = Nodes::default();
        for (number, node) in (0u32..).zip(&back.nodes) {
            let at = number as usize;
            if !is_again[at] {
                continue;
            }
            let leaf = sliced(module, back, number);
            let is_only = leaf.is_some_and(|leaf| taken.get(&leaf) == Some(&1));
            if let Some(element) = node.element {
                let given = self.given(whole, element);
                let is_result =
                    |own: &u32| self.around.nodes[*own as usize].whole == Some(self.whole);
                let index = given.filter(is_result).and_then(|own| self.around.indices.get(&own));
                if let Some(value) = index.and_then(|index| stacked(fore, *index)) {
                    stacks.insert(number, value);
                    continue;
                }
                found.is_fixed[at] = true;
                let passed = index.and_then(|index| self.leaves.get(index).copied());
                let passed = passed.filter(|own| is_unchanged(fore, *own));
                values[at] = match passed {
                    _ if !is_unchanged(back, number) => None,
                    Some(own) => Some(self.inside[own as usize]),
                    None => given.map(|own| self.outside.of[own as usize]),
                };
            } else if let Some(value) = leaf.and_then(|leaf| stacks.get(&leaf).copied()) {
                found.is_part[at] = true;
                let is_whole = is_only && elements(back, number) == elements(fore, value);
                values[at] = is_whole.then(|| self.inside[value as usize]);
            } else {
                let mut operands = back.operands(number).iter();
                found.is_fixed[at] = operands.all(|own| found.is_fixed[*own as usize]);
                values[at] = match leaf.filter(|_| is_only) {
                    Some(leaf) => {
                        let part = values[leaf as usize].and_then(|own| self.parts.get(&own));
                        let part = part.copied().flatten();
                        part.filter(|own| elements(fore, *own) == elements(back, number))
                    }
                    None if leaf.is_some() => None,
                    None => {
                        let of = |node: u32| values[node as usize];
                        let key = self.digests.key(module, back, number, of);
                        let outside = &self.outside.known;
                        let of = |key| outside.get(&key).or_else(|| self.known.get(&key)).copied();
                        key.and_then(of)
                    }
                };
            }
            found.of[at] = values[at].and_then(|own| self.nodes.get(&own).copied());
        }
        found
    }
}

/// What the nodes of a backward body are in the forward body.
struct Equals<'a> {
    fore: &'a Graph,
    /// By node of the backward body: the node of the forward body that is the same value.
    of: Vec<Option<u32>>,
    /// By node: whether it is made from weights and constants alone.
    is_fixed: Vec<bool>,
    /// By node: whether it is a layer's part of a stack that the text has.
    is_part: Vec<bool>,
}

impl Equals<'_> {
    /// The backward body with what gradients read as parts of stacks, and by such stack the node of the forward body
    /// and the element of the state. None if gradients read an expensive value that the forward body does not have.
    fn reading_stacks(&self, back: &Graph, is_again: &[bool]) -> Option<(Graph, Vec<(u32, u32)>)> {
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
            let is_read_here = self.is_fixed[at] || self.is_part[at];
            let is_value = |own: &u32| {
                self.fore.nodes[*own as usize].element.is_none()
                    && !self.fore.within.contains_key(own)
            };
            if let Some(value) = self.of[at].filter(|own| !is_read_here && is_value(own)) {
                is_given[at] = true;
                given.push((node, value));
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
        let elements = back.nodes.iter().filter_map(|node| node.element?.checked_add(1));
        let first = u32::try_from(root.elements.len()).ok()?.max(elements.max().unwrap_or(0));
        let mut residuals: Vec<(u32, u32)> = Vec::new();
        let mut known = Nodes::default();
        let mut stack_of = |(node, value): (u32, u32)| {
            let next = first.saturating_add(known.len() as u32);
            let element = *known.entry(value).or_insert_with(|| {
                residuals.push((value, next));
                next
            });
            Given { node, element, row: self.fore.nodes[value as usize].row }
        };
        let given: Vec<Given> = given.into_iter().map(&mut stack_of).collect();
        Some((back.without(&is_kept, &is_early, &given)?, residuals))
    }
}

/// The element of the state that no iteration changes and of which a node takes a part.
fn sliced(module: &Module, graph: &Graph, number: u32) -> Option<u32> {
    let is_slice = module.opcode(graph.nodes[number as usize].row) == Opcode::DynamicSlice;
    let first = graph.operands(number).first().copied().filter(|_| is_slice)?;
    (graph.nodes[first as usize].element.is_some() && is_unchanged(graph, first)).then_some(first)
}

/// What rows compute, without their operands.
#[derive(Debug, Default)]
struct Digests {
    /// By computation that a row applies.
    applied: HashMap<ComputationId, Option<u128>, BuildMix>,
}

impl Digests {
    /// What a node computes, of operands that `of` numbers; None for what is unlike any other.
    fn key(
        &mut self,
        module: &Module,
        graph: &Graph,
        number: u32,
        of: impl Fn(u32) -> Option<u32>,
    ) -> Option<u128> {
        use Opcode::{
            AsyncStart, Call, Conditional, Fusion, Infeed, Parameter, Recv, RecvDone, Rng,
            RngBitGenerator, RngGetAndUpdateState, While,
        };
        let node = &graph.nodes[number as usize];
        let opcode = module.opcode(node.row);
        match opcode {
            AsyncStart | Call | Conditional | Fusion | Infeed | Parameter | Recv | RecvDone
            | Rng | RngBitGenerator | RngGetAndUpdateState | While => return None,
            _ => {}
        }
        let mut key: Vec<u8> = Vec::new();
        for operand in graph.operands(number) {
            key.extend_from_slice(&of(*operand)?.to_le_bytes());
        }
        key.push(0);
        if let Some(index) = graph.indices.get(&number) {
            key.extend_from_slice(&index.to_le_bytes());
        }
        match module.shapes().array(node.shape) {
            Some(array) => {
                key.push(array.element_type as u8);
                for size in array.dimensions() {
                    key.extend_from_slice(&size.bound().unwrap_or(-1).to_le_bytes());
                }
            }
            None => key.extend_from_slice(&node.shape.0.to_le_bytes()),
        }
        if opcode.is_matmul() {
            let scopes = components(module, node.row).filter(|name| !is_step(name));
            for name in scopes.take(COMPONENTS) {
                key.extend_from_slice(&xxh3_128(name).to_le_bytes());
            }
        }
        key.extend_from_slice(&written(module, node.row).to_le_bytes());
        if let Some(id) = module.called(node.row, CallRole::ToApply) {
            let known = self.applied.entry(id);
            let applied = *known.or_insert_with(|| applied(module, id));
            key.extend_from_slice(&applied?.to_le_bytes());
        }
        Some(xxh3_128(&key))
    }
}

/// The opcode, the constant and the attributes of a row.
fn written(module: &Module, row: Row) -> u128 {
    let mut key: Vec<u8> = (module.opcode(row) as u16).to_le_bytes().to_vec();
    if matches!(module.opcode(row), Opcode::Constant | Opcode::Parameter) {
        let text = module.bytes(module.opcode_and_payload(row).1);
        key.extend_from_slice(&xxh3_128(text).to_le_bytes());
    }
    for attribute in module.attributes(row) {
        let name = module.bytes(attribute.key);
        if !UNLIKE.contains(&name) {
            key.extend_from_slice(&xxh3_128(name).to_le_bytes());
            key.extend_from_slice(&xxh3_128(module.bytes(attribute.value)).to_le_bytes());
        }
    }
    xxh3_128(&key)
}

/// What a computation computes of its parameters; None if it calls others.
fn applied(module: &Module, id: ComputationId) -> Option<u128> {
    let computation = module.computation(id);
    let rows = computation.rows();
    let mut key: Vec<u8> = computation.root.wrapping_sub(rows.start).to_le_bytes().to_vec();
    for row in rows.clone() {
        if !module.calls(Row(row)).is_empty() {
            return None;
        }
        key.extend_from_slice(&written(module, Row(row)).to_le_bytes());
        for operand in module.operands(Row(row)) {
            key.extend_from_slice(&operand.wrapping_sub(rows.start).to_le_bytes());
        }
    }
    Some(xxh3_128(&key))
}
