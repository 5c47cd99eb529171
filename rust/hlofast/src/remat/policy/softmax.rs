//! What XLA for TPUs writes of a softmax of attention that runs again.
//!
//! Where the scores are the product as it is (`bqhd,bkhd->bhqk`), one fusion makes the weights and the gradient of
//! the scores, if both end in a conversion to 16 bits; else one makes the weights and their gradient. It computes from
//! the exponentials if anything but a conversion lies between the product and the softmax (a mask, a scale), else from
//! the product in its own type. A kernel may make both the softmax and its product of scores without a mask
//! (`online-softmax`). Where they are the product with its dimensions in another order
//! (`bqghd,bkgd->bghqk`), each reader makes what it needs from the product. `tests/fixtures/make_softmaxes.py`
//! compiles the cases.

use super::graph::{Graph, Node};
use super::scans::{Scan, is_heavy};
use super::stacks::Stack;
use super::stepped::Held;
use super::widened::Widened;
use crate::ir::intern::BuildMix;
use crate::ir::{ArrayShape, Module, Opcode, Row, ShapeId};
use hashbrown::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// Limit on the nodes between a product and the weights made from it.
const MOST_BETWEEN: usize = 64;
/// Limit on the users of a node that are looked at.
const MOST_USERS: usize = 64;
/// How libtpu names its kernel of a softmax and the product by its weights.
const KERNEL: &[u8] = b"online-softmax";
/// The most keys with which XLA makes the exponentials from a product that is kept; with more
/// it writes scores in their type between them. Of libtpu 0.0.42 for v5e and v5p (`make_softmaxes.py` with 3,072 and
/// 4,096 positions). For v6e, see `spread.rs`.
pub const MOST_KEYS: u64 = 3072;

/// A softmax between two products, whose exponentials and weights the forward loop stacks.
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    /// The node of the product.
    pub product: u32,
    /// The node of the exponentials.
    pub exponentials: u32,
    /// The node of the weights.
    pub weights: u32,
    /// Whether the exponentials are written.
    pub is_written: bool,
    /// The node of the product that reads the weights, or of a kernel.
    pub mixed: Option<u32>,
    /// Whether a kernel computes that product from the scores (`online-softmax` of libtpu). Then no fusion writes the
    /// weights.
    pub is_in_kernel: bool,
    /// Whether the gradient of the scores is written (`scores.rs`).
    pub writes_gradient: bool,
    /// Whether one fusion makes the weights and the gradient of the scores, so that both are in memory at its end.
    pub has_shared_fusion: bool,
    /// Whether what leads to the gradient of the scores needs the product besides the exponentials.
    needs_product: bool,
    /// The last step that reads the exponentials: the gradient of the scores.
    pub gradient: u32,
    /// The last step of a product that reads the weights.
    multiplied: u32,
}

impl Softmax {
    /// The steps from `start` at which exponentials are in memory. If the product is kept, the fusion that
    /// multiplies by the weights makes these from the exponentials.
    pub fn exponential_steps(&self, start: u32, is_kept: bool) -> RangeInclusive<u32> {
        start..=if is_kept { self.gradient.max(self.multiplied) } else { self.gradient }
    }

    /// The steps from `start` at which the product is in memory, if it runs again; None without.
    pub fn product_steps(&self, start: u32) -> Option<RangeInclusive<u32>> {
        let last = self.gradient.checked_sub(1).filter(|_| self.needs_product);
        last.map(|last| start..=last)
    }

    /// The steps at which the weights are in memory, if no recomputed product reads them: where the gradient of the
    /// scores is made too, or before, beside the gradient of the weights.
    pub fn weight_steps(&self) -> RangeInclusive<u32> {
        match self.has_shared_fusion {
            true => self.gradient..=self.multiplied.max(self.gradient),
            false => {
                let before = self.gradient.saturating_sub(1);
                before..=before
            }
        }
    }
}

/// The softmaxes of a scan of which one fusion makes the weights and the gradient of the scores; and those of heads in
/// groups whose weights are in another order than the product.
pub fn softmaxes(module: &Module, scan: &Scan) -> (Vec<Softmax>, Vec<Softmax>) {
    let body = &scan.body;
    let is_exponential = |own: &&Stack| body.nodes[own.node as usize].opcode == Opcode::Exponential;
    let stacks = scan.stacks.iter().filter(is_exponential).map(|own| (own.node, own));
    let stacks: HashMap<u32, &Stack, BuildMix> = stacks.collect();
    if stacks.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let elements = scan.back.nodes.iter().filter_map(|own| Some((own.element?, own.shape)));
    let elements: HashMap<u32, ShapeId, BuildMix> = elements.collect();
    let of_weights = |weights: &Stack| {
        let own = &body.nodes[weights.node as usize];
        let is_end = |own: &Node| own.opcode == Opcode::Exponential;
        let (node, _) = match own.opcode {
            Opcode::Convert => between(module, body, weights.node, is_end)?,
            _ => return None,
        };
        let exponentials = stacks.get(&node)?;
        let (product, ways) = between(module, body, node, |own| own.opcode.is_matmul())?;
        let gradient = exponentials.reads.iter().map(|read| read.last).max()?;
        let multiplied = weights.reads.iter().map(|read| read.last).max()?;
        let stack = *elements.get(weights.read_as.first()?)?;
        let is_plain_form = is_layer_of(module, body.nodes[product as usize].shape, stack);
        if !is_plain_form && !is_in_groups(module, exponentials) {
            return None;
        }
        let shape = |node: u32| body.nodes[node as usize].shape;
        let mixed = mixed_by(module, body, product);
        let own = Softmax {
            product,
            exponentials: node,
            weights: weights.node,
            mixed,
            is_in_kernel: mixed.is_some_and(|own| is_kernel(module, body, own)),
            writes_gradient: true,
            is_written: is_written(module, body, node),
            has_shared_fusion: ends_in_conversion(module, body, (product, node), &ways, || {
                let rows = exponentials.readers.iter().filter(|own| !own.1).map(|own| own.0);
                let is_alike = |row: &Row| is_alike(module, module.shape(*row), shape(node));
                is_apart(module, &scan.back, rows.filter(is_alike))
            }),
            needs_product: needs_product(body, product, &ways),
            gradient,
            multiplied,
        };
        Some((own, is_plain_form))
    };
    let (plain, grouped): (Vec<_>, Vec<_>) =
        scan.stacks.iter().filter_map(of_weights).partition(|(_, is_plain)| *is_plain);
    let all = |own: Vec<(Softmax, bool)>| own.into_iter().map(|(own, _)| own).collect();
    (all(plain), all(grouped))
}

/// Whether rows that compute with a stack of exponentials, as the gradient of the scores does, have the order batch,
/// heads, group, query, key. The product makes the group last.
fn is_in_groups(module: &Module, stack: &Stack) -> bool {
    let is_grouped = |row: Row| {
        let Some(array) = module.shapes().array(module.shape(row)) else { return false };
        let sizes = array.dimensions().filter_map(|size| size.bound()).filter(|own| *own != 1);
        let sizes: Vec<i64> = sizes.collect();
        matches!(sizes[..], [_, _, group, query, key] if group < query && group < key)
    };
    stack.readers.iter().any(|(row, is_move)| !is_move && is_grouped(*row))
}

/// A softmax of a layer without a loop.
#[derive(Debug)]
pub struct InLayer {
    /// The number of the layer.
    pub layer: u32,
    pub softmax: Softmax,
    /// What the text writes of the scores in the forward pass in a wider type than the product.
    pub widened: Vec<Widened>,
}

/// The forward and the backward pass of layers without a loop.
#[derive(Clone, Copy)]
pub struct Passes<'a> {
    pub module: &'a Module,
    pub graph: &'a Graph,
    /// By node of the forward pass: its layer.
    pub layer: &'a [Option<u32>],
    /// By node: its step.
    pub steps: &'a [u32],
    /// The first step of the backward pass.
    pub back: u32,
    pub held: &'a [Held],
}

impl Passes<'_> {
    /// The softmaxes of which one fusion makes the weights and the gradient of the scores.
    pub fn softmaxes(self) -> Vec<InLayer> {
        let nodes = 0..self.graph.nodes.len() as u32;
        let own = nodes.filter(|node| self.opcode(*node) == Opcode::Exponential);
        own.filter(|node| self.is_summed(*node)).filter_map(|node| self.softmax(node)).collect()
    }

    /// Whether a sum reads a value, as one does of the exponentials of a softmax and none of those of an activation.
    fn is_summed(self, node: u32) -> bool {
        let mut users = self.graph.users(node).iter().take(MOST_USERS);
        users.any(|own| matches!(self.opcode(*own), Opcode::Reduce | Opcode::ReduceWindow))
    }

    fn opcode(self, node: u32) -> Opcode {
        self.graph.nodes[node as usize].opcode
    }

    fn elements(self, node: u32) -> Option<u64> {
        self.module.shapes().array(self.graph.nodes[node as usize].shape)?.elements()
    }

    /// The softmax whose exponentials are this node.
    fn softmax(self, exponentials: u32) -> Option<InLayer> {
        let Self { module, graph, layer, steps, back, held } = self;
        let own_layer = layer[exponentials as usize]?;
        let (product, ways) = between(module, graph, exponentials, |own| own.opcode.is_matmul())?;
        let shape = |node: u32| graph.nodes[node as usize].shape;
        if !is_alike(module, shape(product), shape(exponentials)) {
            return None;
        }
        let count = self.elements(exponentials);
        let is_other =
            |own: &Node| own.opcode.is_matmul() && own.row != graph.nodes[product as usize].row;
        let mut weights_gradient = None;
        // What the forward pass makes of the exponentials, and what reads that in the backward pass.
        let (mut weights, mut mixed) = (None, None);
        let (mut gradient, mut multiplied) = (None, None);
        // The rows that compute with the exponentials in the backward pass.
        let mut outers = Vec::new();
        let mut known = HashSet::<u32, BuildMix>::default();
        let mut open = vec![exponentials];
        while let Some(at) = open.pop() {
            if known.len() >= MOST_BETWEEN || !known.insert(at) {
                continue;
            }
            for user in graph.users(at).iter().copied().take(MOST_USERS) {
                let step = steps[user as usize];
                if self.opcode(user).is_matmul() {
                    if step >= back {
                        multiplied = multiplied.max(Some(step));
                    } else if self.opcode(at) == Opcode::Convert {
                        (weights, mixed) = (Some(at), Some(user));
                    }
                } else if self.elements(user) == count && !is_heavy(self.opcode(user)) {
                    match layer[user as usize] {
                        Some(_) => open.push(user),
                        None => {
                            gradient = gradient.max(Some(step));
                            outers.push(graph.nodes[user as usize].outer);
                            let other = between(module, graph, user, is_other);
                            weights_gradient = weights_gradient.or(other.map(|(node, _)| node));
                        }
                    }
                }
            }
        }
        // XLA may write the product with its dimensions in another order than the gradient of the weights.
        if weights_gradient.is_some_and(|own| !has_order_of(module, shape(product), shape(own))) {
            return None;
        }
        let (weights, gradient) = (weights?, gradient?);
        let outer = |node: u32| graph.nodes[node as usize].outer;
        let is_of_product = |node: u32| outer(node) == outer(product);
        let is_forward = |own: &&Held| *own.steps.end() < back;
        let is_wide = |own: &&Held| ways.contains(&own.node) && is_of_product(own.node);
        let keys = row_length(graph, product, |node| self.elements(node));
        let is_short = keys.is_none_or(|keys| keys <= MOST_KEYS);
        let wide = held.iter().filter(|_| is_short).filter(is_forward).filter(is_wide);
        let softmax = Softmax {
            product,
            exponentials,
            weights,
            mixed,
            is_in_kernel: false,
            writes_gradient: true,
            is_written: is_written(module, graph, exponentials),
            has_shared_fusion: ends_in_conversion(
                module,
                graph,
                (product, exponentials),
                &ways,
                || is_apart(module, graph, outers.into_iter()),
            ),
            needs_product: needs_product(graph, product, &ways),
            gradient,
            multiplied: multiplied?,
        };
        let widened = wide.map(|own| (product, own.bytes, own.steps.clone())).collect();
        Some(InLayer { layer: own_layer, softmax, widened })
    }
}

/// Whether XLA writes the exponentials, because more is done in their type before them than to convert and to subtract
/// the maximum. What the program does in a narrower type, such as a scale before a softmax in float32, is part of the
/// product: XLA for TPUs computes it in float32 and converts each result.
fn is_written(module: &Module, graph: &Graph, exponentials: u32) -> bool {
    let size = |node: u32| {
        let own = module.shapes().array(graph.nodes[node as usize].shape)?;
        Some((own.elements()?, own.logical_bytes()?))
    };
    let Some((count, bytes)) = size(exponentials) else { return true };
    let mut known = HashSet::<u32, BuildMix>::default();
    let mut open = graph.operands(exponentials).to_vec();
    while let Some(at) = open.pop() {
        let own = &graph.nodes[at as usize];
        let is_alike = size(at).is_none_or(|own| own.0 == count && own.1 >= bytes);
        if own.element.is_some() || is_heavy(own.opcode) || !is_alike || !known.insert(at) {
            continue;
        }
        if !is_plain(own.opcode) || known.len() > MOST_BETWEEN {
            return true;
        }
        open.extend(graph.operands(at));
    }
    false
}

/// Whether the gradient of scores ends in a conversion to the type of the product, as the weights do: XLA for TPUs then
/// makes both in one fusion. It does not where the program scales or masks the product in a narrower type than that
/// of the exponentials, nor where both are float32 and the products that read the gradient convert it. What is added
/// changes no gradient. `is_written_apart` tells whether a row without a product writes the gradient.
fn ends_in_conversion(
    module: &Module,
    graph: &Graph,
    (product, exponentials): (u32, u32),
    ways: &[u32],
    is_written_apart: impl FnOnce() -> bool,
) -> bool {
    let opcode = |node: u32| graph.nodes[node as usize].opcode;
    let sizes = |node: u32| {
        let array = module.shapes().array(graph.nodes[node as usize].shape)?;
        Some((array.elements()?, array.logical_bytes()?))
    };
    let Some(((count, own), (_, wide))) = sizes(product).zip(sizes(exponentials)) else {
        return true;
    };
    if own >= wide {
        // XLA multiplies in float32 what the program multiplies in 16 bits, if a softmax in 16 bits reads it.
        return own < count.saturating_mul(4) || is_written_apart();
    }
    let is_narrow = |node: u32| sizes(node).is_some_and(|size| size.1 == own);
    // XLA converts the constants of work in 16 bits to float32, and not what they are broadcast from.
    let is_constant = |node: &u32| {
        let at = match (opcode(*node), graph.operands(*node).first()) {
            (Opcode::Convert, Some(first)) => *first,
            _ => *node,
        };
        opcode(at) == Opcode::Broadcast && is_narrow(at)
    };
    let is_work = |node: &&u32| !is_plain(opcode(**node)) && opcode(**node) != Opcode::Add;
    let mut work = ways.iter().filter(is_work);
    !work.any(|node| is_narrow(*node) || graph.operands(*node).iter().any(is_constant))
}

/// Whether a fusion without a product is among these rows.
fn is_apart(module: &Module, graph: &Graph, mut rows: impl Iterator<Item = Row>) -> bool {
    let matmuls = graph.nodes.iter().filter(|own| own.opcode.is_matmul());
    let multiplying: HashSet<Row, BuildMix> = matmuls.map(|own| own.outer).collect();
    rows.any(|row| module.opcode(row) == Opcode::Fusion && !multiplying.contains(&row))
}

/// Whether a node is libtpu's kernel of a softmax and its product.
fn is_kernel(module: &Module, graph: &Graph, node: u32) -> bool {
    let own = &graph.nodes[node as usize];
    own.opcode == Opcode::CustomCall && module.instruction_name(own.row).starts_with(KERNEL)
}

/// The first product that multiplies by what cheap work makes of the elements of `product`: by the weights of its
/// softmax, which fusions may compute each for themselves; or a kernel that does both.
pub fn mixed_by(module: &Module, graph: &Graph, product: u32) -> Option<u32> {
    let elements = |node: u32| module.shapes().array(graph.nodes[node as usize].shape)?.elements();
    let count = elements(product);
    let mut known = HashSet::<u32, BuildMix>::default();
    let mut open = vec![product];
    let mut found: Option<u32> = None;
    while let Some(at) = open.pop() {
        for user in graph.users(at).iter().copied().take(MOST_USERS) {
            let opcode = graph.nodes[user as usize].opcode;
            if opcode.is_matmul() || is_kernel(module, graph, user) {
                found = Some(found.map_or(user, |own| own.min(user)));
            } else if elements(user) == count
                && !is_heavy(opcode)
                && known.len() < MOST_BETWEEN
                && known.insert(user)
            {
                open.push(user);
            }
        }
    }
    found
}

/// Whether what leads to the gradient of the scores needs the product besides the exponentials.
fn needs_product(graph: &Graph, product: u32, ways: &[u32]) -> bool {
    let is_tanh = |own: &u32| graph.nodes[*own as usize].opcode == Opcode::Tanh;
    ways.iter().any(is_tanh) && graph.copies(product).is_empty()
}

/// How many values a softmax of a product sums up: the number of keys. `elements` are those of nodes.
pub fn row_length(
    graph: &Graph,
    product: u32,
    elements: impl Fn(u32) -> Option<u64>,
) -> Option<u64> {
    reduced(graph, product, elements).map(|(_, keys)| keys)
}

/// The first node made from a product, or the product, that is reduced to fewer elements, such as scores to their
/// maxima; and how many of its elements become one.
pub fn reduced(
    graph: &Graph,
    product: u32,
    elements: impl Fn(u32) -> Option<u64>,
) -> Option<(u32, u64)> {
    let count = elements(product)?;
    let mut known = HashSet::<u32, BuildMix>::default();
    let mut open = vec![product];
    while let Some(at) = open.pop() {
        for user in graph.users(at).iter().copied().take(MOST_USERS) {
            let opcode = graph.nodes[user as usize].opcode;
            let Some(own) = elements(user) else { continue };
            let is_reduction = matches!(opcode, Opcode::Reduce | Opcode::ReduceWindow);
            if is_reduction && own > 0 && own < count {
                return Some((at, count / own));
            }
            if own == count && !is_heavy(opcode) && known.len() < MOST_BETWEEN && known.insert(user)
            {
                open.push(user);
            }
        }
    }
    None
}

/// The one node for which `is_end` holds that cheap work makes `node` from, element by element, and the nodes of
/// that work.
pub fn between(
    module: &Module,
    body: &Graph,
    node: u32,
    is_end: impl Fn(&Node) -> bool,
) -> Option<(u32, Vec<u32>)> {
    let shapes = module.shapes();
    let elements = |node: u32| shapes.array(body.nodes[node as usize].shape)?.elements();
    let count = elements(node);
    let mut end = None;
    let mut ways = Vec::new();
    let mut open = body.operands(node).to_vec();
    while let Some(at) = open.pop() {
        let own = &body.nodes[at as usize];
        if is_end(own) {
            if end.is_some_and(|end| end != at) {
                return None;
            }
            end = Some(at);
            continue;
        }
        if own.element.is_some() || is_heavy(own.opcode) || elements(at) != count {
            continue;
        }
        if ways.len() >= MOST_BETWEEN {
            return None;
        }
        ways.push(at);
        open.extend(body.operands(at));
    }
    end.map(|end| (end, ways))
}

/// Whether work masks what it makes: it selects elements, or adds a mask or a bias.
pub fn has_mask(body: &Graph, ways: &[u32]) -> bool {
    ways.iter().any(|own| matches!(body.nodes[*own as usize].opcode, Opcode::Select | Opcode::Add))
}

/// Whether this work between a product and the exponentials keeps the product what is read.
fn is_plain(opcode: Opcode) -> bool {
    use Opcode::{Broadcast, Constant, Convert, Subtract};
    matches!(opcode, Broadcast | Constant | Convert | Subtract)
}

/// Whether two shapes have the same dimensions, in the same order.
fn is_alike(module: &Module, one: ShapeId, other: ShapeId) -> bool {
    let sizes = |shape| {
        let array = module.shapes().array(shape)?;
        Some(array.dimensions().map(|size| size.bound()).collect::<Vec<_>>())
    };
    sizes(one).is_some_and(|own| Some(own) == sizes(other))
}

/// Whether the dimensions of two arrays are in the same order in memory, as far as the text tells.
fn has_order_of(module: &Module, one: ShapeId, other: ShapeId) -> bool {
    let order = |shape| {
        let layout = module.shapes().array(shape)?.layout?;
        Some(layout.minor_to_major.clone())
    };
    order(one).zip(order(other)).is_none_or(|(one, other)| one == other)
}

/// Whether a shape has the dimensions of one layer of a stack, in their order.
fn is_layer_of(module: &Module, layer: ShapeId, stack: ShapeId) -> bool {
    let array = |shape| module.shapes().array(shape);
    let (Some(layer), Some(stack)) = (array(layer), array(stack)) else { return false };
    let sizes = |own: ArrayShape<'_>| own.dimensions().map(|size| size.bound()).collect::<Vec<_>>();
    sizes(stack).get(1..) == Some(&sizes(layer)[..])
}
