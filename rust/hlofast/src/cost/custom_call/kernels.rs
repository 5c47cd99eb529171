//! Hand-written kernels known by name: attention (splash, flash, paged, Pallas on GPU) and ragged
//! dots. Their work follows from their operands; names and operand orders are those of JAX 0.10.2,
//! `jax/experimental/pallas/ops`.

use super::{Call, CustomCallCost, CustomCallKind, operand_array, words};
use crate::Provenance;
use crate::cost::matmul::{
    Contraction, ContractionKind, DotDimensions, DotShapes, dot_of, library_accumulation,
};
use crate::ir::{ArrayShape, ElementKind, Module, Row};

const MASKED: &str =
    "attention kernel known by name: matmuls of queries, keys and values; causal mask assumed";
const UNMASKED: &str =
    "attention kernel known by name: matmuls of queries, keys and values, every block";
const PAGED: &str = "attention kernel known by name; every sequence is assumed to fill its pages";
const RAGGED: &str = "2MNK, each row in one group";
const GROUPS: &str = "offsets of groups of rows; integers only";

/// The gradients that a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    /// Gradient of the queries.
    Queries,
    /// Gradients of keys and values.
    KeysValues,
    /// All gradients.
    Backward,
}

/// The conventions of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Splash attention: mask blocks as integers first, if there is a mask; then queries, keys,
    /// values as heads, positions, features.
    Splash,
    /// Flash attention: queries, keys and values as batch, heads, positions, features.
    Flash,
    /// Pallas on GPU: queries, keys and values as batch, positions, heads, features.
    Gpu,
    /// Pages of keys and values, addressed by integers.
    Paged,
}

/// Words of kernel names; the first match applies.
const FAMILIES: [(&str, Family); 6] = [
    ("splash_mha", Family::Splash),
    ("splash_mqa", Family::Splash),
    ("paged_attention", Family::Paged),
    ("flash_mha", Family::Flash),
    ("flash_attention", Family::Flash),
    ("mha_", Family::Gpu),
];

/// The cost of `row` if it is a kernel known by name.
pub(super) fn cost(module: &Module, row: Row, call: &Call<'_>) -> Option<CustomCallCost> {
    let names = [module.instruction_name(row), kernel_scope(call.metadata.unwrap_or_default())];
    let is_ragged =
        |name: &&[u8]| name.starts_with(b"ragged-dot") || matches!(stem(name), b"gmm" | b"tgmm");
    if names.first().is_some_and(|name| name.starts_with(b"ragged-dot-metadata")) {
        let kind = CustomCallKind::DataMovement;
        return Some(CustomCallCost::without_arithmetic(kind, GROUPS));
    }
    if names.iter().any(is_ragged) {
        return ragged_dot(module, row);
    }
    let (family, pass) = names.iter().find_map(|name| known(name))?;
    match family {
        Family::Paged => paged(module, row),
        _ => attention(module, row, call, family, pass),
    }
}

/// A name without the number that makes it unique.
fn stem(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == b'.').next().unwrap_or(name)
}

/// The scope that Pallas opens around a kernel: the component before `pallas_call` in `op_name`.
fn kernel_scope(metadata: &[u8]) -> &[u8] {
    let Some(name) = words::value_after(metadata, b"op_name") else { return b"" };
    let end = memchr::memchr(b'"', name).unwrap_or(name.len());
    let name = name.get(..end).unwrap_or_default();
    let Some(scopes) = name.strip_suffix(b"/pallas_call") else { return b"" };
    scopes.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// The family and pass that a kernel's name tells. Splash puts block sizes after the pass, under
/// names that contain the words of other passes, so the first word counts.
fn known(name: &[u8]) -> Option<(Family, Pass)> {
    let (at, word, family) = FAMILIES.iter().find_map(|(word, family)| {
        Some((memchr::memmem::find(name, word.as_bytes())?, word, *family))
    })?;
    // `mha_forward` must begin the name: other libraries end theirs with `mha_...`.
    if family == Family::Gpu && at > 0 {
        return None;
    }
    let rest = name.get(at + word.len()..)?;
    let mut rest = rest.split(|byte| !byte.is_ascii_alphanumeric());
    let pass = loop {
        match rest.next() {
            Some(b"fwd" | b"forward") => break Pass::Forward,
            Some(b"dq") => break Pass::Queries,
            Some(b"dkv") => break Pass::KeysValues,
            Some(b"bwd" | b"backward") => {
                break match rest.next() {
                    Some(b"dq") => Pass::Queries,
                    Some(b"dkv") => Pass::KeysValues,
                    _ => Pass::Backward,
                };
            }
            Some(_) => {}
            // Kernels of other kinds, such as `mha_preprocess`, say no pass.
            None if family == Family::Gpu => return None,
            None => break Pass::Forward,
        }
    };
    Some((family, pass))
}

/// Queries, keys and values: the first three operands that are floats of rank 2 or more.
fn floats(module: &Module, row: Row) -> impl Iterator<Item = ArrayShape<'_>> {
    let operands = 0..module.operands(row).len();
    let arrays = operands.filter_map(move |index| operand_array(module, row, index));
    arrays.filter(|array| array.rank() >= 2 && array.element_type.kind() == ElementKind::Float)
}

fn size(array: &ArrayShape<'_>, from_end: usize) -> Option<u64> {
    let dimension = array.dimension(array.rank().checked_sub(from_end)?)?;
    u64::try_from(dimension.bound()?).ok().filter(|size| *size > 0)
}

/// Forward multiplies queries by keys and scores by values. The gradient of queries repeats the
/// first and adds two (`_flash_attention_dq_kernel`: scores, their gradient, the gradient of
/// queries); the gradients of keys and values repeat it and add three. A fused backward kernel of
/// splash attention also computes the gradient of queries (`_flash_attention_dkv_kernel` with
/// `dq_scratch_ref`); `mha_backward` on GPU computes scores and their gradient twice.
fn attention(
    module: &Module,
    row: Row,
    call: &Call<'_>,
    family: Family,
    pass: Pass,
) -> Option<CustomCallCost> {
    let mut arrays = floats(module, row);
    let (queries, keys, values) = (arrays.next()?, arrays.next()?, arrays.next()?);
    // QKVLayout.SEQ_MINOR, the value 2, swaps the last two dimensions.
    let is_swapped = |key: &[u8]| {
        let attributes = call.frontend.unwrap_or_default();
        words::value_after(attributes, key).is_some_and(|value| value.starts_with(b"2"))
    };
    let place = |is_swapped: bool| if is_swapped { (1, 2) } else { (2, 1) };
    let ((positions, features), (key_positions, key_features), (_, value_features)) = match family {
        Family::Gpu => ((3, 1), (3, 1), (3, 1)),
        Family::Splash => (
            place(is_swapped(b"q_layout")),
            place(is_swapped(b"k_layout")),
            place(is_swapped(b"v_layout")),
        ),
        _ => ((2, 1), (2, 1), (2, 1)),
    };
    let (m, k) = (size(&queries, positions)?, size(&queries, features)?);
    let (n, value_size) = (size(&keys, key_positions)?, size(&values, value_features)?);
    if size(&keys, key_features)? != k {
        return None;
    }
    let batch = queries.elements()?.checked_div(m.checked_mul(k)?)?;
    let is_fused = pass == Pass::KeysValues && gradients(module, row, &keys) > 2;
    let (over_keys, over_values) = match pass {
        Pass::Forward => (1, 1),
        Pass::Queries => (2, 1),
        Pass::KeysValues if is_fused => (3, 2),
        Pass::KeysValues => (2, 2),
        Pass::Backward if family == Family::Gpu => (4, 3),
        Pass::Backward => (3, 2),
    };
    let blocks = blocks(module, row, call, (family, pass), (m, n));
    let scores = i128::from(batch).checked_mul(i128::from(m))?.checked_mul(i128::from(n))?;
    // Scores fit a double: their count only has to be right to rounding.
    let scores = (scores as f64 * blocks.unwrap_or(1.0)).round();
    let summed = over_keys as f64 * k as f64 + over_values as f64 * value_size as f64;
    let whole = |value: f64| (value < 9e18).then_some(value as i64);
    let provenance = if blocks.is_some() { Provenance::Assumed } else { Provenance::Modelled };
    let flops = whole(2.0 * scores * summed)?;
    let kind = match pass {
        Pass::Forward => CustomCallKind::AttentionForward,
        _ => CustomCallKind::AttentionBackward,
    };
    let contraction = fused(&queries, &keys, (batch, m, n, k), flops, provenance);
    Some(CustomCallCost {
        flops: Some(flops),
        transcendentals: Some(whole(scores)?),
        provenance,
        contraction: Some(contraction),
        ..CustomCallCost::unknown(kind, if blocks.is_some() { MASKED } else { UNMASKED })
    })
}

fn fused(
    queries: &ArrayShape<'_>,
    keys: &ArrayShape<'_>,
    (batch, m, n, k): (u64, u64, u64, u64),
    flops: i64,
    provenance: Provenance,
) -> Contraction {
    let (lhs_type, rhs_type) = (queries.element_type, keys.element_type);
    Contraction {
        batch,
        m,
        n,
        k,
        lhs_type,
        rhs_type,
        output_type: lhs_type,
        accumulation_type: library_accumulation(lhs_type, lhs_type),
        flops,
        kind: ContractionKind::FusedAttention,
        provenance,
    }
}

/// The number of gradients that a kernel returns: results that are at least as large as `keys`. The
/// fused backward kernel returns a partial gradient of queries for every block of keys. Scratch
/// space, which is returned too, has fewer dimensions.
fn gradients(module: &Module, row: Row, keys: &ArrayShape<'_>) -> usize {
    let shapes = module.shapes();
    let leaves = shapes.leaves(module.shape(row));
    let arrays = leaves.filter_map(|leaf| shapes.array(leaf));
    let is_large =
        |array: &ArrayShape<'_>| array.rank() >= keys.rank() && array.elements() >= keys.elements();
    arrays.filter(is_large).count()
}

/// The share of blocks of scores that a kernel computes under a causal mask; None if it computes
/// all of them. Splash gets the blocks of its mask as 8-, 16- or 32-bit integers of rank 3 (heads,
/// blocks of queries, blocks of keys) before the queries, and without a mask gets none. Flash does
/// not tell its mask: it is assumed to be causal if queries and keys are as long.
///
/// With `n` blocks along the longer block size, a causal kernel computes `(n + 1) / 2n` of them. A
/// narrow mask (a local one) lists fewer blocks than there are.
fn blocks(
    module: &Module,
    row: Row,
    call: &Call<'_>,
    (family, pass): (Family, Pass),
    (m, n): (u64, u64),
) -> Option<f64> {
    if family != Family::Splash {
        return (m == n).then_some(0.5);
    }
    let mask = operand_array(module, row, 0)?;
    if mask.rank() != 3 || mask.element_type.kind() != ElementKind::Signed {
        return None;
    }
    let (rows, columns) = (size(&mask, 2)? as f64, size(&mask, 1)? as f64);
    // Pallas writes the block sizes as `xprof_metadata`.
    let (of_queries, of_keys): (&[u8], &[u8]) = match pass {
        Pass::Forward => (b"block_q", b"block_kv"),
        Pass::Queries => (b"block_q_dq", b"block_kv_dq"),
        _ => (b"block_q_dkv", b"block_kv_dkv"),
    };
    let block = |key: &[u8]| integer(words::value_after(call.frontend?, key)?);
    let Some((query, key)) = block(of_queries).zip(block(of_keys)) else {
        let fewest = rows.min(columns);
        return Some((fewest + 1.0) / (2.0 * fewest));
    };
    let (query, key) = (query as f64 / m as f64, key as f64 / n as f64);
    let causal = (1.0 + query.max(key).min(1.0)) / 2.0;
    Some(causal.min(rows * columns * query.min(1.0) * key.min(1.0)))
}

/// The positive integer at the start of `text`.
fn integer(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let digits = std::str::from_utf8(text.get(..digits)?).ok()?;
    digits.parse().ok().filter(|size| *size > 0)
}

/// Paged attention: each query multiplies the keys and values of its own sequence. The integers
/// are, among others, one length per sequence and the pages of all sequences
/// (`paged_attention_kernel.py`: lengths, page indices; `ragged_paged_attention/kernel.py`: lengths,
/// pages of each sequence). Pages are the second float operand: pages by positions by features,
/// with heads before pages (paged) or after positions (ragged).
fn paged(module: &Module, row: Row) -> Option<CustomCallCost> {
    let mut arrays = floats(module, row);
    let (queries, pages) = (arrays.next()?, arrays.next()?);
    let operands = 0..module.operands(row).len();
    let integers: Vec<ArrayShape<'_>> = operands
        .filter_map(|index| operand_array(module, row, index))
        .filter(|array| array.element_type.kind() == ElementKind::Signed)
        .collect();
    let sequences = integers.iter().find(|array| array.rank() == 1)?.elements()?;
    let listed = integers.iter().filter_map(ArrayShape::elements).max()?;
    let features = size(&queries, 1)?;
    let is_ragged = memchr::memmem::find(module.instruction_name(row), b"ragged").is_some();
    let page = if is_ragged { size(&pages, 3)? } else { size(&pages, 2)? };
    let keys = listed.checked_div(sequences)?.checked_mul(page)?;
    let rows = queries.elements()?.checked_div(features)?;
    let scores = i128::from(rows).checked_mul(i128::from(keys))?;
    let flops = scores.checked_mul(4)?.checked_mul(i128::from(features))?;
    let flops = i64::try_from(flops).ok()?;
    let sizes = (1, rows, keys, features);
    let contraction = fused(&queries, &pages, sizes, flops, Provenance::Assumed);
    Some(CustomCallCost {
        flops: Some(flops),
        transcendentals: Some(i64::try_from(scores).ok()?),
        provenance: Provenance::Assumed,
        contraction: Some(contraction),
        ..CustomCallCost::unknown(CustomCallKind::AttentionForward, PAGED)
    })
}

/// A ragged dot that XLA or megablox writes as a kernel: rows by groups of weights,
/// `[m, k] x [g, k, n]`, or its gradient by weights, `[m, k] x [m, n]` to `[g, k, n]`.
fn ragged_dot(module: &Module, row: Row) -> Option<CustomCallCost> {
    let mut arrays = floats(module, row).filter(|array| array.rank() <= 3);
    let (lhs, rhs) = (arrays.next()?, arrays.next()?);
    let result = super::first_output(module, row)?;
    let numbers = |lhs_contracting: i64, rhs_contracting: i64, rhs_group: Vec<i64>| DotDimensions {
        lhs_contracting: vec![lhs_contracting],
        rhs_contracting: vec![rhs_contracting],
        rhs_group,
        ..DotDimensions::default()
    };
    let dimensions = match (lhs.rank(), rhs.rank(), result.rank()) {
        (2, 3, 2) if size(&lhs, 1) == size(&rhs, 2) && size(&rhs, 1) == size(&result, 1) => {
            numbers(1, 1, vec![0])
        }
        // Weights may be stored transposed.
        (2, 3, 2) if size(&lhs, 1) == size(&rhs, 1) => numbers(1, 2, vec![0]),
        (2, 2, 3) if size(&lhs, 2) == size(&rhs, 2) => numbers(0, 0, Vec::new()),
        (2, 2, 3) if size(&lhs, 1) == size(&rhs, 2) => numbers(1, 0, Vec::new()),
        _ => return None,
    };
    let output = result.element_type;
    let shapes = DotShapes { lhs, rhs, output };
    let kind = ContractionKind::RaggedDot;
    let contraction = dot_of(&shapes, &dimensions, kind, Provenance::Modelled)?;
    Some(CustomCallCost {
        flops: Some(contraction.flops),
        transcendentals: Some(0),
        provenance: Provenance::Modelled,
        contraction: Some(contraction),
        ..CustomCallCost::unknown(CustomCallKind::GroupedGemm, RAGGED)
    })
}
