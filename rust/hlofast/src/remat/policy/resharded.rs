//! Scores of attention that run again, and of which devices exchange the exponentials before gradients read them.
//!
//! Where the residual stream is split by positions and attention by heads, the gradient of the attention weights is
//! split by queries, and the exponentials by heads: an all-to-all brings them together. Without checkpointing the
//! exponentials come out of a stack, and the text holds them twice while it exchanges them. Where they run again,
//! XLA's partitioner exchanges more (as dumps of libtpu 0.0.42 after `tpu-spmd-partitioning` show):
//!
//! * With one query head for each key head, the gradient reads the sums of the softmax that the forward pass has
//!   broadcast, and the broadcast is exchanged in full. For v6e, XLA widens the gradient of the weights before it adds
//!   the dimension for the heads of a group. The gradient then has a broadcast of its own, and only the sums are
//!   exchanged.
//! * With several, gradients read the exponentials in two orders of their dimensions, and both are exchanged.
//!
//! Judged by `benches/policy_accuracy.py` on `scattered_*` and on the programs of `policy_exchanged.py`.

use super::base::Timeline;
use super::chip::Chip;
use super::counted::OrderOf;
use super::graph::{Graph, Node};
use super::scans::Scan;
use super::scores::sizes;
use super::softmax::{Softmax, between, mixed_by};
use super::stacks::Stack;
use crate::ir::{Module, Opcode, ShapeId};
use crate::memory::Scheduler;
use std::ops::RangeInclusive;

/// Values of fewer bytes do not matter.
const LEAST: i64 = 1 << 20;
/// Limit on the scores of a scan: for each, the nodes of the backward body are looked through once.
const MOST_SCORES: usize = 64;

/// Scores of attention whose exponentials devices exchange.
#[derive(Clone, Debug)]
pub struct Resharded {
    /// The node of the exponentials.
    pub exponentials: u32,
    /// The node of the product.
    pub product: u32,
    /// The product that reads the weights.
    mixed: Option<u32>,
    /// The steps from where the text reads the exponentials, to exchange them, to the gradient of the scores.
    pub steps: RangeInclusive<u32>,
    /// Bytes of the exponentials of a layer.
    bytes: i64,
    /// Whether XLA writes exponentials in place of the product (`softmax.rs`).
    is_written: bool,
    /// Twice the exponentials minus the bytes that the text holds there.
    less: i64,
    /// Bytes of as many numbers in the type of the product, as the gradient of the weights takes.
    narrow: i64,
    form: Form,
    chip: Option<Chip>,
    order: OrderOf,
}

/// What is exchanged besides the exponentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Nothing of their size.
    Alone,
    /// The broadcast sums.
    WithSums,
    /// The exponentials in another order.
    Twice,
}

impl Resharded {
    /// The bytes at [`Self::steps`] beyond those of the text, where the exponentials run again, with those of
    /// [`Self::read`], which takes `size` bytes. `is_kept` tells which nodes a policy keeps.
    ///
    /// On v5e the gradient of the values, which reads the product, waits for that of the scores. Elsewhere it runs
    /// first, but then the gradient of the weights is in memory before the sums are exchanged, unless exponentials
    /// are written in place of the product; on v6e then too in the order of the list scheduler. Of two orders of
    /// dimensions, XLA frees one before it makes the other. Where nothing is exchanged besides exponentials, the product
    /// is still there for the product by the weights if that runs again too. An unknown chip counts as v5e, which
    /// needs the most.
    ///
    /// As XLA's memory scheduler has it, on all chips, a list exchanges one array after the other, and in the other
    /// orders the gradient of the weights is there before the sums are exchanged.
    pub fn beyond(&self, size: i64, is_kept: impl Fn(u32) -> bool) -> i64 {
        let kept = if is_kept(self.product) { size } else { 0 };
        let all = self.bytes.saturating_add(size);
        let is_listed = self.order == OrderOf::Compiled(Scheduler::List);
        let more = match (self.form, self.chip) {
            (Form::Alone, _) if self.mixed.is_some_and(&is_kept) => kept,
            (Form::Alone, _) => size,
            _ if self.order == OrderOf::Scheduled(Scheduler::List) => self.bytes,
            (Form::WithSums, _) if matches!(self.order, OrderOf::Scheduled(_)) => {
                all.saturating_add(self.narrow)
            }
            (_, Some(Chip::V5e)) | (Form::WithSums, None) => all,
            (Form::WithSums, Some(Chip::V6e)) if self.is_written && is_listed => {
                self.bytes.saturating_add(self.narrow)
            }
            (Form::WithSums, _) if self.is_written => self.bytes,
            (Form::WithSums, _) => self.bytes.saturating_add(self.narrow).saturating_add(kept),
            (Form::Twice, _) => self.bytes,
        };
        self.less.saturating_add(more)
    }

    /// What is in memory to compute the exponentials and the weights from: the product, or exponentials.
    pub fn read(&self) -> u32 {
        if self.is_written { self.exponentials } else { self.product }
    }
}

/// The scores of a scan whose exponentials devices exchange.
pub fn resharded(
    module: &Module,
    scan: &Scan,
    softmaxes: &[Softmax],
    timeline: &Timeline,
    (chip, order): (Option<Chip>, OrderOf),
) -> Vec<Resharded> {
    let body = &scan.body;
    let of_stack = |stack: &Stack| {
        let node = stack.node;
        if body.nodes[node as usize].opcode != Opcode::Exponential {
            return None;
        }
        let (exchange, steps) = stack.reads.iter().find_map(|read| read.exchanged.clone())?;
        let (product, _) = between(module, body, node, |own| own.opcode.is_matmul())?;
        let bytes = stack.bytes.checked_div(i64::try_from(scan.trips).ok()?)?;
        if bytes < LEAST {
            return None;
        }
        let narrow = narrow(module, body, [product, node], bytes);
        // Before optimisation, the account has no exchange. The gradient of the scores may reuse the memory of the
        // gradient of the weights.
        let less = if module.is_scheduled() {
            0
        } else {
            let rises = timeline.rises(*steps.end(), narrow / 2);
            let gradients = narrow.saturating_mul(if rises { 2 } else { 1 });
            bytes.saturating_sub(gradients).max(0)
        };
        let is_its = |own: &Softmax| own.exponentials == node && own.is_written;
        let is_written = softmaxes.iter().any(is_its);
        let form = form(module, scan, [product, node], exchange, chip);
        Some(Resharded {
            exponentials: node,
            product,
            mixed: mixed_by(module, body, product),
            steps,
            bytes,
            narrow,
            is_written,
            less,
            form,
            chip,
            order,
        })
    };
    let mut found: Vec<Resharded> = Vec::new();
    for own in scan.stacks.iter().filter_map(of_stack).take(MOST_SCORES) {
        // XLA may compute the exponentials of a product twice; its scores are exchanged once.
        if found.iter().all(|other| other.product != own.product) {
            found.push(own);
        }
    }
    found
}

/// The bytes of as many numbers as the exponentials `own`, which take `bytes`, in the type of the product.
fn narrow(module: &Module, body: &Graph, [product, own]: [u32; 2], bytes: i64) -> i64 {
    let bits = |node: u32| {
        let array = module.shapes().array(body.nodes[node as usize].shape)?;
        Some(i64::from(array.element_type.bits()))
    };
    let part = bits(product).zip(bits(own)).filter(|(_, own)| *own > 0);
    part.map_or(bytes, |(product, own)| bytes.saturating_mul(product) / own)
}

/// What is exchanged besides exponentials that are exchanged at the node `exchange` of the backward body.
fn form(
    module: &Module,
    scan: &Scan,
    [product, own]: [u32; 2],
    exchange: u32,
    chip: Option<Chip>,
) -> Form {
    let (body, back) = (&scan.body, &scan.back);
    let shape = |graph: &Graph, node: u32| graph.nodes[node as usize].shape;
    if sizes(module, shape(body, product)) != sizes(module, shape(body, own)) {
        return Form::Twice;
    }
    let rank = |shape: ShapeId| module.shapes().array(shape).map(|array| array.dimensions().len());
    if !module.is_scheduled() {
        let is_whole =
            sizes(module, shape(body, own)).map(|own| own.len()) == rank(shape(body, own));
        return if is_whole || chip != Some(Chip::V6e) { Form::WithSums } else { Form::Alone };
    }
    // The gradient of the weights is divided by the sums, in a fusion that reads the exponentials.
    let elements = |shape: ShapeId| module.shapes().array(shape)?.elements();
    let Some(count) = elements(shape(back, exchange)) else { return Form::Alone };
    let mut outers: Vec<_> =
        back.users(exchange).iter().map(|user| back.nodes[*user as usize].outer).collect();
    outers.sort_unstable();
    let is_divided = |node: &&Node| {
        node.opcode == Opcode::Divide
            && outers.binary_search(&node.outer).is_ok()
            && elements(node.shape) == Some(count)
    };
    let divided = back.nodes.iter().rfind(is_divided);
    match divided.is_some_and(|node| rank(node.shape) == rank(shape(body, own))) {
        true => Form::WithSums,
        false => Form::Alone,
    }
}
