//! cuDNN's fused attention: matmuls over a score matrix that is never stored.

use super::{CustomCallCost, CustomCallKind, KnownTarget, operand_array};
use crate::Provenance;
use crate::cost::matmul::{Contraction, ContractionKind, library_accumulation};
use crate::ir::backend_config::json_integer;
use crate::ir::{Module, Row};

/// The scores have the shape batch, heads, queries, keys (`intermediate_tensor_shape`). Forward has
/// two matmuls: queries by keys, and scores by values. Backward has five: queries by keys again,
/// and two gradients of each forward matmul. Queries are operand 0 and values operand 2; their last
/// dimension is the head size.
pub(super) fn cost(module: &Module, row: Row, known: &KnownTarget) -> Option<CustomCallCost> {
    let config = module.backend_config_json(row)?;
    let config = config.get("cudnn_fmha_backend_config").unwrap_or(&config);
    let scores = config.get("intermediate_tensor_shape")?.get("dimensions")?.as_array()?;
    let size = |index: usize| u64::try_from(json_integer(scores.get(index)?)?).ok();
    let (batch, queries, keys) = (size(0)?.checked_mul(size(1)?)?, size(2)?, size(3)?);
    if scores.len() != 4 {
        return None;
    }
    let operand = |index: usize| operand_array(module, row, index);
    let head = |index: usize| {
        let array = operand(index)?;
        let size = array.dimension(array.rank().checked_sub(1)?)?.bound()?;
        u64::try_from(size).ok()
    };
    let (query_head, value_head) = (head(0)?, head(2)?);
    let (over_query_head, over_value_head) = match known.kind {
        CustomCallKind::AttentionBackward => (3, 2),
        _ => (1, 1),
    };
    let scores = i128::from(batch).checked_mul(i128::from(queries))?;
    let scores = scores.checked_mul(i128::from(keys))?;
    // cuDNN skips the blocks that a causal mask hides: half of a square.
    let mask = config.get("mask_type").and_then(|mask| mask.as_str()).unwrap_or_default();
    let is_causal = mask.contains("CAUSAL") && queries == keys;
    let scores = if is_causal { scores / 2 } else { scores };
    let summed =
        over_query_head * i128::from(query_head) + over_value_head * i128::from(value_head);
    let flops = i64::try_from(scores.checked_mul(2)?.checked_mul(summed)?).ok()?;
    let (lhs, rhs) = (operand(0)?, operand(1)?);
    let contraction = Contraction {
        batch,
        m: queries,
        n: keys,
        k: query_head,
        lhs_type: lhs.element_type,
        rhs_type: rhs.element_type,
        output_type: lhs.element_type,
        accumulation_type: library_accumulation(lhs.element_type, lhs.element_type),
        flops,
        kind: ContractionKind::FusedAttention,
        provenance: Provenance::Modelled,
    };
    Some(CustomCallCost {
        flops: Some(flops),
        transcendentals: Some(i64::try_from(scores).ok()?),
        provenance: Provenance::Modelled,
        contraction: Some(contraction),
        ..CustomCallCost::unknown(known.kind, known.reason)
    })
}
