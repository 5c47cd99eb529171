//! The loops in a layer: over blocks of attention, over time, over experts.
//!
//! To the graph of a layer such a loop is a few values: the elements of its result, and the products in its
//! body that no element stacks. A policy saves those like any other product, stacked for all iterations, but
//! while a layer runs they are one iteration's working memory. What an element reads goes through the
//! elements of the iteration before, back to what the loop gets; products are taken to read the initial state.

use super::graph::{Graph, Value};
use super::named::components;
use super::products::Products;
use super::scans::is_rearrangement;
use super::stacks::stacked;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row, ShapeId};
use hashbrown::HashMap;

/// Limit on the rows that rearrange a product before it is stacked.
const MOST_STEPS: usize = 16;

/// A product in the body of a loop.
pub struct Product {
    /// Its value in the body.
    pub node: u32,
    /// The matmuls whose sum it is.
    pub rows: Vec<Row>,
    /// Its shape in one iteration.
    pub shape: ShapeId,
    /// What it reads.
    pub read: Read,
}

/// What an element of a loop's result or a product in it is made from.
#[derive(Clone, Default)]
pub struct Read {
    /// Elements of the state.
    pub elements: Vec<u32>,
    /// Products of the loop.
    pub products: Vec<u32>,
}

/// An element of a loop's result that the loop makes.
pub struct Made {
    /// The product that it stacks.
    pub product: Option<u32>,
    /// What it reads.
    pub read: Read,
}

/// What a loop computes.
pub struct Opened {
    pub products: Vec<Product>,
    /// By element of the result; None for one that the loop does not make.
    pub results: Vec<Option<Made>>,
}

/// Whether a loop is a program's own, and not one that the partitioner writes for a product: that one has
/// the product's name. Without names, loops that exchange values in every iteration are the partitioner's.
pub fn is_of_program(module: &Module, row: Row, body: &Graph) -> bool {
    match components(module, row).next().unwrap_or_default() {
        b"while" => true,
        b"" => !body.nodes.iter().any(|own| own.opcode == Opcode::CollectivePermute),
        _ => false,
    }
}

/// What a loop with this body and so many elements in its result computes; None if the budget is spent.
pub fn open(module: &Module, body: &Graph, count: usize, budget: &mut usize) -> Option<Opened> {
    let known = Products::new(module, body);
    let is_value = |node: u32| {
        let at = node as usize;
        known.of[at].is_some() && !known.is_part[at] && body.nodes[at].element.is_none()
    };
    let values: Vec<u32> = (0..body.nodes.len() as u32).filter(|node| is_value(*node)).collect();
    let number: HashMap<u32, u32, BuildMix> =
        (0u32..).zip(&values).map(|(number, node)| (*node, number)).collect();
    let mut walk = Walk { body, number: &number, visited: vec![0; body.nodes.len()], visits: 0 };
    let narrow = narrowed(module, body);
    let mut products = Vec::with_capacity(values.len());
    for node in values.iter().copied() {
        let mut rows = Vec::new();
        if body.nodes[node as usize].opcode.is_matmul() {
            rows.push(body.nodes[node as usize].row);
            rows.extend(body.further(node));
        }
        let read = walk.read(body.operands(node), &mut rows, budget)?;
        let shape = body.nodes[narrow.get(&node).map_or(node as usize, |own| *own as usize)].shape;
        rows.sort_unstable();
        rows.dedup();
        products.push(Product { node, rows, shape, read });
    }
    let mut results = Vec::with_capacity(count);
    for index in 0..count {
        let made = body.root.element(index).node();
        let is_own = |own: &u32| body.nodes[*own as usize].element != u32::try_from(index).ok();
        let Some(made) = made.filter(is_own) else {
            results.push(None);
            continue;
        };
        let product = stacked(body, index as u32).and_then(|value| {
            let mut at = value;
            for _ in 0..MOST_STEPS {
                if number.contains_key(&at) || !is_rearrangement(body.nodes[at as usize].opcode) {
                    break;
                }
                at = *body.operands(at).first()?;
            }
            number.get(&at).copied()
        });
        let read = walk.read(&[made], &mut Vec::new(), budget)?;
        results.push(Some(Made { product, read }));
    }
    hand_on(&mut results, budget)?;
    Some(Opened { products, results })
}

/// By product: the narrower form that the body makes of it, in which it would be kept.
fn narrowed(module: &Module, body: &Graph) -> HashMap<u32, u32, BuildMix> {
    let bits = |node: u32| {
        let array = module.shapes().array(body.nodes[node as usize].shape);
        array.map_or(0, |array| array.element_type.bits())
    };
    let converts = (0u32..).zip(&body.nodes).filter(|(_, own)| own.opcode == Opcode::Convert);
    let pairs = converts.filter_map(|(node, _)| Some((*body.operands(node).first()?, node)));
    pairs.filter(|(wide, narrow)| bits(*narrow) < bits(*wide)).collect()
}

/// Adds to what each element reads the products that make what the iteration before hands on.
fn hand_on(results: &mut [Option<Made>], budget: &mut usize) -> Option<()> {
    loop {
        let mut is_changed = false;
        for index in 0..results.len() {
            let Some(own) = &results[index] else { continue };
            let mut products = own.read.products.clone();
            for element in &own.read.elements {
                let from = results.get(*element as usize).and_then(Option::as_ref);
                products.extend(from.into_iter().flat_map(|from| &from.read.products));
            }
            *budget = budget.checked_sub(products.len() + own.read.elements.len() + 1)?;
            products.sort_unstable();
            products.dedup();
            let Some(own) = &mut results[index] else { continue };
            if products.len() > own.read.products.len() {
                own.read.products = products;
                is_changed = true;
            }
        }
        if !is_changed {
            return Some(());
        }
    }
}

struct Walk<'a> {
    body: &'a Graph,
    /// By node: the product that it is.
    number: &'a HashMap<u32, u32, BuildMix>,
    /// By node: the number of the last walk that has visited it.
    visited: Vec<u32>,
    visits: u32,
}

impl Walk<'_> {
    /// The elements of the state and the products that nodes are made from. Adds the matmuls on the way, which
    /// are parts of sums, to `rows`. None if the budget is spent.
    fn read(&mut self, from: &[u32], rows: &mut Vec<Row>, budget: &mut usize) -> Option<Read> {
        self.visits += 1;
        let mut read = Read::default();
        let mut open = from.to_vec();
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut self.visited[at as usize], self.visits) == self.visits {
                continue;
            }
            *budget = budget.checked_sub(1)?;
            let own = &self.body.nodes[at as usize];
            if let Some(element) = own.element {
                read.elements.push(element);
            } else if let Some(product) = self.number.get(&at) {
                read.products.push(*product);
            } else {
                if own.opcode.is_matmul() {
                    rows.push(own.row);
                }
                open.extend(self.body.operands(at));
            }
        }
        read.elements.sort_unstable();
        read.products.sort_unstable();
        Some(read)
    }
}

/// Whether a node is a stack that a loop in a layer makes for the stack of all layers alone.
pub fn is_only_stacked(body: &Graph, node: u32) -> bool {
    let mut users = body.users(node).iter();
    let is_stacking = |user: &u32| {
        let is_update = body.nodes[*user as usize].opcode == Opcode::DynamicUpdateSlice;
        is_update && body.operands(*user).get(1) == Some(&node)
    };
    body.within.contains_key(&node) && users.all(is_stacking)
}

/// The nodes that an element or a product reads, given the elements of the loop's initial state and the nodes
/// of its products.
pub fn nodes_read(read: &Read, state: &Value, products: &[Option<u32>]) -> Vec<u32> {
    let mut nodes: Vec<u32> = Vec::new();
    for element in &read.elements {
        state.element(*element as usize).leaves(&mut nodes, &mut 0);
    }
    nodes.extend(
        read.products.iter().filter_map(|own| products.get(*own as usize).copied().flatten()),
    );
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}
