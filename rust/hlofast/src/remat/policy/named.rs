//! Which values are the products that checkpoint policies of JAX name, known by operation names.

use super::graph::Graph;
use super::scans::is_rearrangement;
use crate::cost::matmul::contraction;
use crate::flow::Phase;
use crate::flow::scope::STEPS;
use crate::ir::{Module, Opcode, Row};

/// Limit on the nodes that are followed from a value to its product.
const MOST_STEPS: usize = 12;
/// The last component of the operation name of a product.
const PRODUCTS: [&[u8]; 3] = [b"dot_general", b"conv_general_dilated", b"ragged_dot"];

/// The component of operation names by which JAX marks recomputation.
const RECOMPUTED: &[u8] = b"rematted_computation";
/// The component of operation names that names a loop.
const LOOP: &[u8] = b"while";

/// Whether a component of an operation name is that of `jax.checkpoint` in JAX of 2022 and 2023:
/// `remat(core_fn)`, around recomputed and backward work alike.
pub fn is_early_checkpoint(component: &[u8]) -> bool {
    component.starts_with(b"remat(")
}

/// Whether a component of an operation name names no scope of the program.
pub fn is_step(component: &[u8]) -> bool {
    STEPS.contains(&component) || is_early_checkpoint(component)
}

/// Whether the operation name of a row tells by itself that `jax.checkpoint` recomputes it, outside of
/// further loops than the first `loops`.
pub fn is_named_recomputed(module: &Module, row: Row, loops: usize) -> bool {
    outside(name_of(module, row), loops).any(|name| name == RECOMPUTED)
}

/// The loops around the body of a loop, according to the loop's operation name: itself and those around it.
/// `usize::MAX` if the loop has no name.
pub fn loops_around(module: &Module, row: Row) -> usize {
    let own = components(module, row).filter(|name| *name == LOOP).count();
    if own == 0 { usize::MAX } else { own }
}

/// The components of an operation name, the first one first, up to a further loop than the first `loops`:
/// what is checkpointed in a loop of a layer is not the layer.
fn outside(name: &[u8], loops: usize) -> impl Iterator<Item = &[u8]> {
    let mut entered = 0;
    name.split(|byte| *byte == b'/').take_while(move |part| {
        entered += usize::from(*part == LOOP);
        entered <= loops
    })
}

/// Whether `jax.checkpoint` recomputes a row, whose phase tells it where the name does not.
pub fn is_recomputed(module: &Module, row: Row, phase: Phase) -> bool {
    components(module, row)
        .any(|name| name == RECOMPUTED || phase == Phase::Recompute && is_early_checkpoint(name))
}

/// The components of a row's operation name, the last one first; none if it is unknown.
pub fn components(module: &Module, row: Row) -> impl Iterator<Item = &[u8]> {
    name_of(module, row).rsplit(|byte| *byte == b'/')
}

/// The operation name of a row; empty if it is unknown.
fn name_of(module: &Module, row: Row) -> &[u8] {
    let columns = module.metadata_columns();
    let id = columns.op_name.get(row.0 as usize).and_then(|id| usize::try_from(*id).ok());
    let name = id.and_then(|id| columns.op_names.get(id)).map(|span| module.bytes(*span));
    name.unwrap_or_default()
}

/// Whether work of a backward body, in which names have `loops` loops, is under `jax.checkpoint`, according
/// to its operation names.
pub fn is_checkpointed(module: &Module, back: &Graph, loops: usize) -> bool {
    let columns = module.metadata_columns();
    let mut is_known = vec![false; columns.op_names.len()];
    (0..back.nodes.len() as u32).any(|number| {
        let row = back.named_by(number);
        let id = columns.op_name.get(row.0 as usize).copied().unwrap_or(-1);
        let Some(id) = usize::try_from(id).ok().filter(|id| *id < is_known.len()) else {
            return false;
        };
        let mut parts = outside(module.bytes(columns.op_names[id]), loops);
        !std::mem::replace(&mut is_known[id], true)
            && parts.any(|part| {
                part == b"checkpoint" || part == RECOMPUTED || is_early_checkpoint(part)
            })
    })
}

/// Whether a row has the name of a product.
pub fn is_named_product(module: &Module, row: Row) -> bool {
    components(module, row).next().is_some_and(|last| PRODUCTS.contains(&last))
}

/// Whether a multiplication is a `dot_general` of the program that sums up nothing, such as an einsum takes
/// between two others of three operands: JAX's policies save it as any other.
pub fn is_product_without_sum(module: &Module, graph: &Graph, node: u32) -> bool {
    let is_named = |node: u32, opcode: Opcode| {
        let own = &graph.nodes[node as usize];
        own.opcode == opcode && is_named_product(module, own.row)
    };
    is_named(node, Opcode::Multiply)
        && !graph.users(node).iter().any(|user| is_named(*user, Opcode::Reduce))
}

/// The product of whose value `node` is the last step. The partitioner adds up partial products, and
/// a product whose operands arrive in parts is written in parts, under the name of the product.
pub fn product_of(module: &Module, graph: &Graph, node: u32) -> Option<u32> {
    match is_rearrangement(graph.nodes[node as usize].opcode) {
        true => None,
        false => product_in(module, graph, node),
    }
}

/// The product that `node` is a step of: the product itself, a sum of its parts, or one of these
/// rearranged.
pub fn product_in(module: &Module, graph: &Graph, node: u32) -> Option<u32> {
    use Opcode::{Add, AllReduce, Concatenate, CustomCall, DynamicUpdateSlice, ReduceScatter};
    let mut at = node;
    for _ in 0..MOST_STEPS {
        let own = &graph.nodes[at as usize];
        if own.opcode.is_matmul() {
            return Some(at);
        }
        let is_step = match own.opcode {
            AllReduce | ReduceScatter => true,
            Add | Concatenate | DynamicUpdateSlice | CustomCall => {
                is_named_product(module, own.row)
            }
            opcode => is_rearrangement(opcode),
        };
        if !is_step || own.element.is_some() {
            return None;
        }
        // The largest operand number is the operand that was computed last.
        at = *graph.operands(at).iter().max()?;
    }
    None
}

/// Whether a product is a convolution of the program; XLA for TPUs writes every product as one.
pub fn is_convolution(module: &Module, row: Row) -> bool {
    components(module, row).next() == Some(PRODUCTS[1])
}

/// Whether a product has batch dimensions: dimensions that both operands and the result share.
pub fn is_batched(module: &Module, row: Row) -> bool {
    if let Some(batched) = equation(module, row).and_then(shares_letters) {
        return batched;
    }
    // Each device may have one element of such a dimension in a program that is partitioned by hand.
    let is_written =
        || module.attribute_bytes(row, "lhs_batch_dims").is_some_and(|own| own != b"{}");
    contraction(module, row).is_some_and(|product| product.batch > 1) || is_written()
}

/// The equation of the einsum that a product is of.
pub fn equation(module: &Module, row: Row) -> Option<&[u8]> {
    components(module, row).nth(1).filter(|part| shares_letters(part).is_some())
}

/// Whether an einsum equation such as `bqhd,bkhd->bhqk` has letters in both operands and the
/// result; None if `equation` is none.
fn shares_letters(equation: &[u8]) -> Option<bool> {
    let arrow = equation.windows(2).position(|pair| pair == b"->")?;
    let comma = equation[..arrow].iter().position(|byte| *byte == b',')?;
    let (left, right) = (&equation[..comma], &equation[comma + 1..arrow]);
    let result = &equation[arrow + 2..];
    Some(left.iter().any(|letter| right.contains(letter) && result.contains(letter)))
}
