//! What all policies of a scan have in common. A search asks for thousands of outcomes, so this is
//! worked out once.

use super::graph::Graph;
use super::kernels::kept_bytes;
use super::passes::{Pass, passes};
use super::resharded::Resharded;
use super::savable::{Savable, SavableKind};
use super::scans::{Scan, is_heavy};
use super::scores::Scores;
use super::softmax::{Softmax, softmaxes};
use super::stored::{only_moves, writes_stack};
use crate::cost::Backend;
use crate::ir::csr::Csr;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// Limit on the nodes between a product and what its fusion makes of it.
const MOST_BETWEEN: usize = 64;

/// What no policy changes about a scan.
#[derive(Debug)]
pub struct Fixed {
    /// Whether the text is of XLA for TPUs, its layers are in no groups, and no forward loop runs again as a whole.
    pub is_tpu: bool,
    /// The nodes of the forward body that an outcome visits, ascending. Cheap work that one other
    /// node reads counts as part of that node.
    pub visited: Vec<u32>,
    /// By visited node: the visited nodes that it reads.
    pub operands: Csr,
    /// By node of the forward body: its bytes, of a product what is in memory when it runs again.
    pub bytes: Vec<i64>,
    /// By node: whether XLA keeps its value in memory.
    pub is_heavy: Vec<bool>,
    /// By node: whether it is what a layer gets from the layer before.
    pub is_input: Vec<bool>,
    /// By node: the widest narrower form that the program makes of it, which is read in its place if a
    /// policy keeps that form alone. One in fewer bits does not hold what the other readers need.
    pub narrow: Vec<Option<u32>>,
    /// By node: its number among the savable values of the module.
    pub savable: Vec<Option<u32>>,
    /// The nodes that a policy could keep, with the bytes of what is kept.
    pub kept_bytes: Vec<(u32, i64)>,
    /// The rows of the loop's body that compute products, ascending.
    pub products: Vec<Row>,
    /// The rows among them that also reduce what they compute, ascending; empty as the next two except where `is_tpu`.
    pub passes: Vec<Pass>,
    /// Rows of the body that only bring a value into another layout, or take a part of it out, with its node.
    pub rearranging: Vec<(Row, u32)>,
    /// Exponentials that the fusion of a product leaves, with the product.
    pub left: Vec<(u32, u32)>,
    /// The nodes that the text recomputes and a policy could keep.
    pub twins: Vec<u32>,
    /// Live ranges in the backward body that are not needed whatever a policy keeps.
    pub superfluous: Vec<(i64, RangeInclusive<u32>)>,
    /// Softmaxes of which more is in memory than products when they run again.
    pub softmaxes: Vec<Softmax>,
    /// Softmaxes of heads in groups whose weights are in another order than their scores.
    pub grouped: Vec<Softmax>,
    /// Scores in another form that XLA for TPUs writes otherwise than the text when they run again.
    pub scores: Vec<Scores>,
    /// Scores whose exponentials devices exchange.
    pub resharded: Vec<Resharded>,
}

impl Fixed {
    /// What no policy changes, by scan; `sizes` are the bytes of shapes. A module that is not scheduled names no
    /// backend, and is taken as one for TPUs.
    pub fn of_scans(
        module: &Module,
        scans: &[Scan],
        savable: &[Savable],
        sizes: &[i64],
    ) -> Vec<Self> {
        let is_tpu = sizes.is_empty() || Backend::of_module(module) == Backend::Tpu;
        let of_scan = |(number, scan)| {
            let (softmaxes, grouped) =
                if is_tpu { softmaxes(module, scan) } else { <_>::default() };
            let fixed = Fixed { softmaxes, ..Fixed::new(scan, number, savable, sizes) };
            // In groups of layers, what runs again besides is part of `PASSES_ANEW_IN_GROUPS`, which was fitted, or of
            // the forward loop that runs again as a whole.
            match is_tpu && scan.group.is_none() && !scan.is_again {
                true => Fixed { is_tpu, grouped, rearranging: rearranging(module, scan), ..fixed },
                false => Fixed { passes: Vec::new(), left: Vec::new(), ..fixed },
            }
        };
        (0u32..).zip(scans).map(of_scan).collect()
    }

    /// What no policy changes about the scan `number`, without its softmaxes.
    fn new(scan: &Scan, number: u32, savable: &[Savable], sizes: &[i64]) -> Self {
        let body = &scan.body;
        let nodes = 0..body.nodes.len() as u32;
        let mut savable_of = vec![None; body.nodes.len()];
        for (at, own) in (0u32..).zip(savable).filter(|(_, own)| own.scan == number) {
            savable_of[own.node as usize] = Some(at);
        }
        let keepable = nodes.clone().filter(|node| savable_of[*node as usize].is_some());
        let products = body.nodes.iter().filter(|node| node.opcode.is_matmul());
        let mut products: Vec<Row> = products.map(|node| node.outer).collect();
        products.sort_unstable();
        let narrow = narrow_forms(body, sizes);
        let mut is_part = parts(scan, &narrow);
        savable_of.iter().zip(&mut is_part).for_each(|(own, is_part)| *is_part &= own.is_none());
        let (visited, operands) = contracted(body, &is_part);
        let mut twins = scan.recomputed.twins();
        twins.retain(|node| savable_of[*node as usize].is_some());
        twins.sort_unstable();
        twins.dedup();
        let is_input = |own: u32| savable[own as usize].kind == SavableKind::Input;
        Fixed {
            is_tpu: false,
            visited,
            operands,
            bytes: nodes.map(|node| bytes_again(scan, node, sizes)).collect(),
            is_heavy: body.nodes.iter().map(|node| is_heavy(node.opcode)).collect(),
            is_input: savable_of.iter().map(|own| own.is_some_and(is_input)).collect(),
            narrow,
            kept_bytes: keepable.map(|node| (node, kept_bytes(body, node, sizes))).collect(),
            savable: savable_of,
            products,
            passes: passes(body, |node| body.bytes(node, sizes)),
            rearranging: Vec::new(),
            left: left(scan),
            twins,
            superfluous: scan.recomputed.superfluous(&scan.back, |_| false).collect(),
            softmaxes: Vec::new(),
            grouped: Vec::new(),
            scores: Vec::new(),
            resharded: Vec::new(),
        }
    }

    /// Whether devices exchange these exponentials.
    pub fn is_resharded(&self, exponentials: u32) -> bool {
        self.resharded.iter().any(|own| own.exponentials == exponentials)
    }

    /// Bytes of what is kept of a node that a policy could keep.
    pub fn kept_bytes_of(&self, node: u32) -> i64 {
        let at = self.kept_bytes.binary_search_by_key(&node, |(node, _)| *node);
        at.map_or(0, |at| self.kept_bytes[at].1)
    }
}

/// By node: the widest narrower form that the program makes of it.
fn narrow_forms(body: &Graph, sizes: &[i64]) -> Vec<Option<u32>> {
    let size = |node: u32| body.size(node, sizes);
    let mut widest: Vec<Option<u32>> = vec![None; body.nodes.len()];
    for (narrow, node) in (0u32..).zip(&body.nodes) {
        let wide = body.operands(narrow).first().filter(|_| node.opcode == Opcode::Convert);
        let Some(wide) = wide.copied().filter(|wide| size(narrow) <= size(*wide)) else { continue };
        let other = &mut widest[wide as usize];
        if other.is_none_or(|other| size(other) <= size(narrow)) {
            *other = Some(narrow);
        }
    }
    widest
}

/// By node: whether what a policy changes about it follows from the one node that reads it.
fn parts(scan: &Scan, narrow: &[Option<u32>]) -> Vec<bool> {
    let body = &scan.body;
    let mut is_part: Vec<bool> = (0u32..)
        .zip(&body.nodes)
        .map(|(number, node)| {
            let is_own = node.element.is_some() || node.whole.is_some() || is_heavy(node.opcode);
            let is_in_text = scan.recomputed.step_of(number).is_some();
            !is_own && !is_in_text && body.users(number).len() == 1
        })
        .collect();
    let needs = scan.recomputed.needs.iter().map(|(node, _)| *node);
    let own = needs.chain(scan.stacks.iter().map(|stack| stack.node));
    own.for_each(|node| is_part[node as usize] = false);
    for (wide, narrow) in narrow.iter().enumerate() {
        if let Some(narrow) = narrow {
            is_part[wide] = false;
            is_part[*narrow as usize] = false;
        }
    }
    is_part
}

/// The nodes that are not parts of others, and what they and their parts read.
fn contracted(body: &Graph, is_part: &[bool]) -> (Vec<u32>, Csr) {
    let nodes = 0..body.nodes.len() as u32;
    let visited: Vec<u32> = nodes.filter(|node| !is_part[*node as usize]).collect();
    let mut operands = Csr { offsets: vec![0], items: Vec::new() };
    // By node: the last visited node that has reached it. A node may read another one twice.
    let mut reached = vec![u32::MAX; body.nodes.len()];
    let mut open = Vec::new();
    for node in &visited {
        open.push(*node);
        while let Some(at) = open.pop() {
            for operand in body.operands(at) {
                if std::mem::replace(&mut reached[*operand as usize], *node) == *node {
                    continue;
                }
                match is_part[*operand as usize] {
                    true => open.push(*operand),
                    false => operands.items.push(*operand),
                }
            }
        }
        operands.offsets.push(operands.items.len() as u32);
    }
    (visited, operands)
}

/// The bytes that are in memory when a node runs again. Where one fusion makes scores of attention, their maxima
/// and the exponentials, it leaves the exponentials and not the scores. With a mask, XLA for TPUs writes the
/// scores when they run again, although one fusion makes all three in the forward pass; more is written of
/// softmaxes in the form of `softmax.rs`.
fn bytes_again(scan: &Scan, node: u32, sizes: &[i64]) -> i64 {
    let body = &scan.body;
    let own = &body.nodes[node as usize];
    let exponentials = scan.stack_nodes.iter().copied().filter(|stack| {
        let other = &body.nodes[*stack as usize];
        other.opcode == Opcode::Exponential && other.outer == own.outer
    });
    let is_made = |stack: &u32| own.opcode.is_matmul() && is_of_one_kernel(body, *stack, node);
    let bytes = exponentials.filter(is_made).map(|stack| body.bytes(stack, sizes)).max();
    bytes.unwrap_or_else(|| body.bytes(node, sizes))
}

/// Rows that only rearrange values and write no stack, with the nodes of the values.
fn rearranging(module: &Module, scan: &Scan) -> Vec<(Row, u32)> {
    use Opcode::{Copy, Fusion, Reshape, Slice, Transpose};
    let rows = module.computation(scan.body_id).rows().map(Row);
    let rows = rows.filter(|row| {
        matches!(module.opcode(*row), Copy | Fusion | Reshape | Slice | Transpose)
            && !writes_stack(scan, *row)
            && only_moves(module, *row)
    });
    rows.filter_map(|row| Some((row, scan.body.result(row).node()?))).collect()
}

/// The exponentials that fusions of products leave, with the products.
fn left(scan: &Scan) -> Vec<(u32, u32)> {
    let body = &scan.body;
    let opcode = |node: u32| body.nodes[node as usize].opcode;
    let exponentials = scan.stack_nodes.iter().copied();
    let exponentials = exponentials.filter(|node| opcode(*node) == Opcode::Exponential);
    let mut products: HashMap<Row, Vec<u32>, BuildMix> = HashMap::default();
    for (node, own) in (0u32..).zip(&body.nodes).filter(|(_, own)| own.opcode.is_matmul()) {
        products.entry(own.outer).or_default().push(node);
    }
    let mut found = Vec::new();
    for node in exponentials {
        let own = products.get(&body.nodes[node as usize].outer).into_iter().flatten().copied();
        found.extend(own.filter(|own| is_of_one_kernel(body, node, *own)).map(|own| (node, own)));
    }
    found.sort_unstable();
    found
}

/// Whether the fusion of a product makes the maxima that `exponential` needs too, and no mask lies between.
fn is_of_one_kernel(body: &Graph, exponential: u32, product: u32) -> bool {
    let outer = body.nodes[product as usize].outer;
    let (mut has_maxima, mut opened) = (false, 0);
    let mut open = vec![exponential];
    while let Some(at) = open.pop() {
        let own = &body.nodes[at as usize];
        if at == product || own.element.is_some() {
            continue;
        }
        opened += 1;
        let is_apart = is_heavy(own.opcode) && own.outer != outer;
        if opened > MOST_BETWEEN || is_apart || own.opcode == Opcode::Select {
            return false;
        }
        has_maxima |= matches!(own.opcode, Opcode::Reduce | Opcode::ReduceWindow);
        open.extend(body.operands(at));
    }
    has_maxima
}
