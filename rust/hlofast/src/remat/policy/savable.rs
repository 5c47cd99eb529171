//! The values of a layer that a policy could save.

use super::graph::Node;
use super::kernels::{has_stacked_slice, is_named_inside, kept_bytes};
use super::named;
use super::scans::{Scan, is_heavy};
use super::stacks::is_unchanged;
use super::{LEAST, is_collective};
use crate::cost::custom_call::{CustomCallKind, custom_call_cost};
use crate::ir::{Module, Opcode, Row, ShapeId};

/// The kind of a value that a policy could save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SavableKind {
    /// A matmul without batch dimensions.
    Product,
    /// A matmul with batch dimensions, or a convolution of the program.
    BatchedProduct,
    /// A matmul under `jax.vmap` of which the text does not tell whether it has batch dimensions.
    MappedProduct,
    /// A matmul by groups of rows (`jax.lax.ragged_dot`), which JAX's policies of matmuls do not save.
    RaggedProduct,
    /// The results of a hand-written kernel, such as attention.
    Kernel,
    /// The result of a collective.
    Collective,
    /// Another value that the step as it is keeps, or would keep without `jax.checkpoint`.
    Other,
    /// What a layer gets from the layer before: kept in any case, on the device or in host memory.
    Input,
}

impl SavableKind {
    /// The kind of a product: JAX saves a `dot_general` without batch dimensions under both of its policies
    /// of matmuls, one with them and a convolution under `dots_saveable` alone, and others under neither
    /// (`DotsSaveable` in `jax/_src/ad_checkpoint.py`).
    pub(super) fn of_product(module: &Module, row: Row) -> Self {
        if module.opcode(row) == Opcode::RaggedDot {
            return SavableKind::RaggedProduct;
        }
        match named::is_convolution(module, row) || named::is_batched(module, row) {
            true => SavableKind::BatchedProduct,
            false => SavableKind::Product,
        }
    }

    /// The name used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            SavableKind::Product => "matmul",
            SavableKind::BatchedProduct => "batched_matmul",
            SavableKind::MappedProduct => "mapped_matmul",
            SavableKind::RaggedProduct => "ragged_matmul",
            SavableKind::Kernel => "kernel",
            SavableKind::Collective => "collective",
            SavableKind::Other => "other",
            SavableKind::Input => "input",
        }
    }
}

/// A value of a layer that a policy could save.
#[derive(Clone, Copy, Debug)]
pub struct Savable {
    /// Its scan: an index of [`Policies::loops`](super::Policies::loops).
    pub scan: u32,
    /// The row that computes it.
    pub row: Row,
    /// Bytes of the values of all layers on one device.
    pub bytes: i64,
    /// Its shape in one layer.
    pub shape: ShapeId,
    /// Its kind.
    pub kind: SavableKind,
    /// Whether the step as it is keeps it.
    pub is_kept: bool,
    /// Its node of the forward body.
    pub(super) node: u32,
}

impl Savable {
    /// Whether a name in the program reaches the value, so that a policy of names can save it or move
    /// it to host memory. A policy can save the results of other kernels by their primitive.
    pub fn is_nameable(&self, module: &Module) -> bool {
        self.kind != SavableKind::Kernel || is_named_inside(module, self.row)
    }
}

/// The values that a policy could save, by scan and text order; `sizes` are the bytes of shapes.
pub fn find_savable(module: &Module, scans: &[Scan], sizes: &[i64]) -> Vec<Savable> {
    let mut savable = Vec::new();
    for (number, scan) in (0u32..).zip(scans) {
        let body = &scan.body;
        let count = body.nodes.len();
        let (mut is_needed, mut is_stacked) = (vec![false; count], vec![false; count]);
        let (products, is_fixed) = (&scan.recomputed.products, &scan.recomputed.is_fixed);
        for stack in scan.stacks.iter().filter(|stack| !stack.is_weight) {
            is_needed[stack.node as usize] |= stack.is_read;
            is_stacked[stack.node as usize] = true;
        }
        for (node, _) in &scan.recomputed.needs {
            is_needed[*node as usize] = true;
        }
        let is_argument = arguments(scan, sizes);
        let from = savable.len();
        let mut inputs = Vec::new();
        for node in (0..count as u32).rev() {
            let at = node as usize;
            let opcode = body.nodes[at].opcode;
            if is_needed[at] && (is_input(scan, node, sizes) || is_argument[at]) {
                inputs.push(node);
                continue;
            }
            if !is_needed[at] || body.nodes[at].element.is_some() {
                continue;
            }
            body.operands(node).iter().for_each(|operand| is_needed[*operand as usize] = true);
            let bytes = kept_bytes(body, node, sizes);
            // Each result of a kernel is a value; the kernel itself stands for those that only the
            // backward body reads.
            let of_kernel = body.nodes[at].whole.unwrap_or(node);
            is_stacked[at] |= has_stacked_slice(body, node, &is_stacked);
            let kind = match products.of[at] {
                _ if products.is_part[at] => None,
                Some(of) => Some(SavableKind::of_product(module, body.nodes[of as usize].row)),
                None if opcode == Opcode::CustomCall => {
                    kind_of_kernel(module, body.nodes[of_kernel as usize].row)
                }
                // Backward code gathers weights in any case.
                None if is_value(opcode) && !is_fixed[at] => Some(SavableKind::Collective),
                None if is_stacked[at] => Some(SavableKind::Other),
                None => None,
            };
            if let Some(kind) = kind.filter(|_| bytes >= LEAST) {
                let bytes = bytes.saturating_mul(i64::try_from(scan.trips).unwrap_or(i64::MAX));
                let row = body.nodes[of_kernel as usize].row;
                let shape = body.nodes[at].shape;
                let is_kept = is_stacked[at];
                savable.push(Savable { scan: number, row, bytes, shape, kind, is_kept, node });
            }
        }
        savable[from..].reverse();
        savable.extend(inputs.into_iter().rev().map(|node| {
            let own = &body.nodes[node as usize];
            let trips = i64::try_from(scan.trips).unwrap_or(i64::MAX);
            let bytes = body.bytes(node, sizes).saturating_mul(trips);
            let row = if own.element.is_some() { taker(module, own) } else { own.row };
            let kind = SavableKind::Input;
            Savable { scan: number, row, bytes, shape: own.shape, kind, is_kept: true, node }
        }));
    }
    savable
}

/// Of scans that are laid out as if they were not checkpointed: takes only what the text keeps as kept.
pub fn keep_as_in_text(scans: &[Scan], savable: &mut [Savable]) {
    for (number, scan) in (0u32..).zip(scans).filter(|(_, scan)| scan.residuals.is_some()) {
        let mut is_stacked = vec![false; scan.body.nodes.len()];
        scan.stacks_of_text().for_each(|stack| is_stacked[stack.node as usize] = true);
        for node in (0..scan.body.nodes.len() as u32).rev() {
            is_stacked[node as usize] |= has_stacked_slice(&scan.body, node, &is_stacked);
        }
        for value in savable.iter_mut().filter(|value| value.scan == number) {
            value.is_kept &= value.kind == SavableKind::Input || is_stacked[value.node as usize];
        }
    }
}

/// By node of a body: whether it is what checkpointed layers get, made by cheap work from several values
/// that the iteration before hands on. So a pipeline selects what a stage gets, from the stage before or
/// from the batch. It is kept, and nothing that it is made from.
fn arguments(scan: &Scan, sizes: &[i64]) -> Vec<bool> {
    let body = &scan.body;
    let mut is_argument = vec![false; body.nodes.len()];
    if !scan.is_checkpointed() {
        return is_argument;
    }
    let stacks = || scan.stacks_of_text().filter(|stack| !stack.is_weight);
    let mut is_stacked = vec![false; body.nodes.len()];
    stacks().for_each(|stack| is_stacked[stack.node as usize] = true);
    // By node: the first and the last of the inputs, none of them kept, from which cheap work makes it.
    let mut made_of: Vec<Option<(u32, u32)>> = Vec::with_capacity(body.nodes.len());
    for (number, node) in (0u32..).zip(&body.nodes) {
        let is_own = node.element.is_some() && is_input(scan, number, sizes);
        let mut found = is_own.then_some((number, number));
        let is_cheap = node.element.is_none() && !is_heavy(node.opcode);
        let operands = body.operands(number).iter().map(|own| *own as usize);
        for own in operands.filter(|own| is_cheap && !scan.recomputed.is_fixed[*own]) {
            let Some((first, last)) = made_of[own].filter(|_| !is_stacked[own]) else {
                found = None;
                break;
            };
            let (low, high) = found.unwrap_or((first, last));
            found = Some((low.min(first), high.max(last)));
        }
        made_of.push(found);
    }
    for stack in stacks().filter(|stack| stack.is_read) {
        let at = stack.node as usize;
        let is_of_several = made_of[at].is_some_and(|(first, last)| first < last);
        is_argument[at] = is_of_several && body.bytes(stack.node, sizes) >= LEAST;
    }
    is_argument
}

/// Whether a node is an element of the state that a layer gets from the layer before.
fn is_input(scan: &Scan, node: u32, sizes: &[i64]) -> bool {
    let body = &scan.body;
    body.nodes[node as usize].element.is_some()
        && !is_unchanged(body, node)
        && body.bytes(node, sizes) >= LEAST
}

/// The row that takes an element out of the state of a loop; the state if none does.
fn taker(module: &Module, node: &Node) -> Row {
    let element = node.element.and_then(|element| usize::try_from(element).ok());
    let mut users = module.users().get(node.row.0).iter().map(|user| Row(*user));
    let takes = |row: &Row| {
        module.opcode(*row) == Opcode::GetTupleElement && module.tuple_index(*row) == element
    };
    users.find(takes).unwrap_or(node.row)
}

/// What a custom call is to a policy; None for calls that do no work worth saving. Other products of
/// libraries are matmuls of the graph.
fn kind_of_kernel(module: &Module, row: Row) -> Option<SavableKind> {
    match custom_call_cost(module, row).kind {
        CustomCallKind::GroupedGemm => Some(SavableKind::RaggedProduct),
        CustomCallKind::AttentionForward
        | CustomCallKind::Kernel
        | CustomCallKind::Library
        | CustomCallKind::Unknown => Some(SavableKind::Kernel),
        _ => None,
    }
}

/// Whether a program can name the result of a collective; permutes pass on parts of arrays.
pub fn is_value(opcode: Opcode) -> bool {
    is_collective(opcode) && opcode != Opcode::CollectivePermute
}
