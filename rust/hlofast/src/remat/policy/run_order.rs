//! The order in which the operations of an unscheduled module would run, and which cheap values would
//! be in memory.
//!
//! XLA overlaps transfers with products. Where weights are gathered from a few devices only, it fuses
//! the transfers with the products, and with the cheap work before them: a value that several products
//! read takes the place of what it is made from, and gradients of weights are computed at once. Where
//! weights come from many devices, gradients of weights wait until the layer's other work is done, and
//! what they read stays in memory.

use super::graph::Graph;
use super::groups::chain;
use super::scans::{is_heavy, is_rearrangement};
use super::stacks::is_unchanged;
use super::value::Value;
use crate::cost::matmul::contraction;
use crate::ir::intern::BuildMix;
use crate::ir::{ElementType, Module, Opcode, Row};
use crate::shares::Local;
use hashbrown::HashMap;

/// Devices from which weights are gathered one after another, and not in one exchange. Fitted on the
/// programs of `benches/policy_accuracy.py`, of which some gather from 2 and others from 4 or more.
pub const MANY: i64 = 4;
/// The most devices around which XLA makes a ring for the weights of an entry computation. Of libtpu 0.0.42: programs
/// for 8 and 32 devices have rings, those for 64 (`drawn116`, `drawn122`, `drawn128`, `drawn146`) have none.
pub const MOST_IN_RING: i64 = 32;
/// Limit on the nodes between a value and what it is made from.
const MOST_STEPS: usize = 16;
/// Limit on the operands of a node that are looked at.
const MOST_READ: usize = 8;
/// Limit on the nodes among which a value whose memory is free is looked for.
const MOST_OPENED: usize = 64;

/// From how many devices the weights that a body multiplies are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfers {
    None,
    Few,
    Many,
    /// From all devices, where layers are not in a loop.
    All,
}

impl Transfers {
    /// Those of a body, or of an entry computation that repeats layers (`is_entry`).
    pub fn of(graph: &Graph, local: &Local, is_entry: bool) -> Self {
        let ways = gathered_weights(graph, local, is_entry).map(|own| own.ways).max();
        match ways.unwrap_or(1) {
            ..2 => Transfers::None,
            2..MANY => Transfers::Few,
            // XLA then adds up gradients of weights in loops around a ring, and puts these last
            // (`layer_order.rs`).
            MANY..=MOST_IN_RING
                if is_entry
                    && ways.and_then(|own| u64::try_from(own).ok()) == Some(local.devices) =>
            {
                Transfers::All
            }
            MANY.. => Transfers::Many,
        }
    }
}

/// A weight that a device gathers before it multiplies it.
pub struct Gathered {
    /// The product.
    pub product: u32,
    /// The weight, or its slice of one layer.
    pub weight: u32,
    /// Bytes of the whole.
    pub bytes: i64,
    /// The devices it is gathered from.
    pub ways: i64,
    /// Whether each device has a part of what the product contracts, as far as is known.
    pub adds_up: bool,
}

/// The weights that devices gather for the products of a graph; in the entry, all arguments are weights.
pub fn gathered_weights<'a>(
    graph: &'a Graph,
    local: &'a Local,
    is_entry: bool,
) -> impl Iterator<Item = Gathered> + 'a {
    let is_weight = move |node: u32| {
        let is_argument = is_entry && graph.nodes[node as usize].element.is_some();
        is_argument || is_unchanged(graph, node)
    };
    let products = (0u32..).zip(&graph.nodes).filter(|(_, own)| own.opcode.is_matmul());
    let products = products.filter_map(|(node, own)| Some((node, local.product(own.row)?)));
    products.flat_map(move |(product, own)| {
        let operands = graph.operands(product).iter().copied().zip(own.gathered).zip(own.ways);
        operands.filter_map(move |((operand, bytes), ways)| {
            let weight = chain(graph, operand).last().copied()?;
            let is_moved = is_rearrangement(graph.nodes[weight as usize].opcode);
            let source = graph.operands(weight).first().copied().filter(|_| is_moved);
            let is_its = bytes > 0 && is_weight(source.unwrap_or(weight));
            is_its.then_some(Gathered { product, weight, bytes, ways, adds_up: true })
        })
    })
}

/// The cheap values that several products read, which XLA computes once: not slices of stacks, which
/// are in memory already. `are_together` tells whether two products that read a value use
/// what one step computes. On GPUs also those that one product reads: libraries of matmuls read buffers.
pub fn shared(
    module: &Module,
    graph: &Graph,
    is_gpu: bool,
    are_together: impl Fn(u32, u32, u32) -> bool,
) -> Vec<u32> {
    let is_wide = |node: u32| {
        let array = module.shapes().array(graph.nodes[node as usize].shape);
        array.is_some_and(|own| own.element_type == ElementType::F32)
    };
    let is_product = |user: &&u32| graph.nodes[**user as usize].opcode.is_matmul();
    let are_several = |node: u32| {
        let mut products = graph.users(node).iter().filter(is_product);
        if is_gpu {
            return products.next().is_some();
        }
        let mut rest = products.clone().skip(1);
        products.zip(&mut rest).any(|(a, b)| are_together(node, *a, *b))
    };
    let is_shared = |node: &u32| {
        let own = &graph.nodes[*node as usize];
        let is_cheap = own.element.is_none() && !is_heavy(own.opcode);
        if !is_cheap || !are_several(*node) || is_wide(*node) {
            return false;
        }
        let mut at = *node;
        for _ in 0..MOST_STEPS {
            if graph.nodes[at as usize].element.is_some() {
                return false;
            }
            match graph.operands(at).first() {
                Some(first) if is_rearrangement(graph.nodes[at as usize].opcode) => at = *first,
                _ => {
                    return !graph.operands(at).is_empty()
                        && !is_heavy(graph.nodes[at as usize].opcode);
                }
            }
        }
        false
    };
    (0..graph.nodes.len() as u32).filter(is_shared).collect()
}

/// Whether a shared value takes the memory of a value that it is made from, elementwise. `ends` tells
/// whether a value that is in memory is read for the last time; None if it is in no memory.
pub fn is_in_place(
    module: &Module,
    graph: &Graph,
    node: u32,
    transfers: Transfers,
    ends: impl Fn(u32) -> Option<bool>,
) -> bool {
    if transfers == Transfers::None {
        return false;
    }
    let array = |node: u32| module.shapes().array(graph.nodes[node as usize].shape);
    let bytes = |node: u32| array(node).and_then(|own| own.logical_bytes());
    let count = array(node).and_then(|own| own.elements());
    // Exponentials that the forward loop stacks.
    let is_wide = |at: u32| {
        graph.nodes[at as usize].opcode == Opcode::DynamicSlice
            && bytes(at).zip(bytes(node)).is_some_and(|(own, made)| own > made)
    };
    let (mut is_over_product, mut is_from_wide) = (false, false);
    let mut open: Vec<u32> = graph.operands(node).iter().take(MOST_READ).copied().collect();
    for _ in 0..MOST_OPENED {
        let Some(at) = open.pop() else { break };
        let own = &graph.nodes[at as usize];
        if array(at).and_then(|own| own.elements()) != count {
            continue;
        }
        is_from_wide |= is_wide(at);
        if own.element.is_some() {
            continue;
        }
        match ends(at) {
            Some(true) => {
                let is_any = transfers == Transfers::Few || !own.opcode.is_matmul();
                if is_any {
                    return true;
                }
                is_over_product |= has_two_sides(module, graph, at);
            }
            Some(false) => {}
            None => open.extend(graph.operands(at).iter().take(MOST_READ)),
        }
    }
    // XLA writes the gradient of scores over no product if it computes it from exponentials in a wider type.
    is_over_product && !is_from_wide
}

/// Whether each side of a product has one dimension that the other side has not: XLA writes others in
/// another order of dimensions than their readers want.
fn has_two_sides(module: &Module, graph: &Graph, node: u32) -> bool {
    let own = &graph.nodes[node as usize];
    let Some(product) = contraction(module, own.row) else { return false };
    let Some(array) = module.shapes().array(own.shape) else { return false };
    let has = |size: u64| {
        let mut sizes = array.dimensions().filter_map(|own| own.bound());
        sizes.any(|own| u64::try_from(own) == Ok(size))
    };
    has(product.m) && has(product.n)
}

/// The order in which the nodes of a graph run: text order, but products, and what only goes into a
/// stack, run as soon as their operands are there. `is_late` tells whether products that nothing else in
/// the graph needs, which are gradients of weights, run last; `is_forward` whether a row is of the forward
/// pass. What is scattered by labels alone, for the gradient of a loss, keeps its place.
pub fn order(graph: &Graph, is_late: bool, is_forward: impl Fn(Row) -> bool) -> Vec<u32> {
    let count = graph.nodes.len();
    // Whether a node is a product or stacks a value, or only serves such nodes.
    let mut is_sink = vec![false; count];
    // Whether other products, or what the body hands on, need a node.
    let mut is_needed = vec![false; count];
    // Whether products or loops need a node, and whether it is made from any.
    let mut serves = vec![false; count];
    let mut is_made = vec![false; count];
    for node in 0..count as u32 {
        let is_work = |own: u32| {
            graph.nodes[own as usize].opcode.is_matmul() || graph.states.contains_key(&own)
        };
        let mut operands = graph.operands(node).iter();
        is_made[node as usize] = is_work(node) || operands.any(|own| is_made[*own as usize]);
    }
    let is_stacking = |node: u32| graph.nodes[node as usize].opcode == Opcode::DynamicUpdateSlice;
    let mut ends = Vec::new();
    graph.root.leaves(&mut ends, &mut 0);
    for end in ends {
        is_needed[end as usize] |= !is_stacking(end);
    }
    for node in (0..count as u32).rev() {
        let users = graph.users(node);
        let own = &graph.nodes[node as usize];
        let is_in_loop = graph.within.contains_key(&node);
        let is_product = own.opcode.is_matmul() && !is_in_loop;
        is_sink[node as usize] = own.element.is_none()
            && !is_in_loop
            && match own.opcode {
                Opcode::DynamicUpdateSlice => users.is_empty(),
                // Products free their operands, such as the logits in the gradient of a head.
                _ if is_product => true,
                // So do sums of products that only the loss needs, which the text has last.
                Opcode::Reduce if is_made[node as usize] && is_forward(own.row) => {
                    !serves[node as usize]
                        || users.iter().all(|user| is_sink[*user as usize]) && !users.is_empty()
                }
                _ => !users.is_empty() && users.iter().all(|user| is_sink[*user as usize]),
            };
        if serves[node as usize] || is_product || is_in_loop || graph.states.contains_key(&node) {
            graph.operands(node).iter().for_each(|own| serves[*own as usize] = true);
            let states = graph.states.get(&node).into_iter().flatten();
            states.filter_map(Value::node).for_each(|own| serves[own as usize] = true);
        }
        if is_needed[node as usize] || is_product || is_in_loop {
            graph.operands(node).iter().for_each(|own| is_needed[*own as usize] = true);
        }
    }
    // By loop in a layer: the last of its nodes, which are in one place.
    let mut last: HashMap<Row, u32, BuildMix> = HashMap::default();
    for (node, row) in &graph.within {
        let own = last.entry(*row).or_insert(*node);
        *own = (*own).max(*node);
    }
    // By node: the node after whose step it runs.
    let mut after: Vec<u32> = (0..count as u32).collect();
    for node in 0..count as u32 {
        let at = node as usize;
        if let Some(last) = graph.within.get(&node).and_then(|row| last.get(row)) {
            after[at] = *last;
            continue;
        }
        let operands = graph.operands(node).iter();
        let ready = operands.map(|own| after[*own as usize]).max().unwrap_or(0);
        let is_product = graph.nodes[at].opcode.is_matmul();
        if is_late && is_product && !is_needed[at] {
            after[at] = count as u32;
        } else if is_sink[at] && (is_made[at] || graph.nodes[at].opcode != Opcode::Scatter) {
            after[at] = ready;
        } else {
            after[at] = ready.max(node);
        }
    }
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.sort_by_key(|node| (after[*node as usize], *node));
    order
}
