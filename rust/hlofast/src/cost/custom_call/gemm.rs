//! Matrix products of libraries.

use super::{
    CustomCallCost, CustomCallKind, KnownTarget, bytes_without_workspace, first_output,
    operand_array,
};
use crate::Provenance;
use crate::cost::matmul::{
    Contraction, ContractionKind, DotDimensions, DotShapes, dot_of, library_accumulation,
    product_flops,
};
use crate::ir::backend_config::json_integer;
use crate::ir::{Module, Row};
use serde_json::Value;

pub(super) fn cost(
    module: &Module,
    row: Row,
    target: &[u8],
    known: &KnownTarget,
) -> Option<CustomCallCost> {
    let contraction = match (target, known.kind) {
        (b"__onednn$matmul", _) => from_shapes(module, row)?,
        (_, CustomCallKind::GroupedGemm) => {
            from_dimensions(module, row, ContractionKind::GroupedGemm)?
        }
        _ => from_dimensions(module, row, ContractionKind::Gemm)?,
    };
    // What cublasLt computes beside the product (an auxiliary output, a maximum) is an output;
    // the last part of its result, raw bytes, is the workspace.
    let outputs = output_count(module, row);
    let bytes = bytes_without_workspace(module, row, outputs);
    Some(CustomCallCost::of_contraction(known.kind, known.reason, contraction, bytes))
}

/// The number of parts of the result that are not a workspace: a rank-1 array of bytes at the end.
fn output_count(module: &Module, row: Row) -> usize {
    let shapes = module.shapes();
    let Some(children) = shapes.tuple(module.shape(row)) else { return 1 };
    let is_workspace = children.len() > 1
        && children.last().and_then(|shape| shapes.array(*shape)).is_some_and(|array| {
            array.rank() == 1 && matches!(array.element_type.as_str(), "s8" | "u8")
        });
    children.len() - usize::from(is_workspace)
}

/// From `dot_dimension_numbers` in backend_config, at the top or in `gemm_backend_config`.
fn from_dimensions(module: &Module, row: Row, kind: ContractionKind) -> Option<Contraction> {
    let config = module.backend_config_json(row)?;
    let nested = ["gemm_backend_config", "grouped_gemm_backend_config"];
    let config = nested.iter().find_map(|key| config.get(key)).unwrap_or(&config);
    let numbers = config
        .get("dot_dimension_numbers")
        .or_else(|| config.get("gemm_backend_config")?.get("dot_dimension_numbers"))
        .or_else(|| config.get("ragged_dot_dimension_numbers")?.get("dot_dimension_numbers"))?;
    let ragged = config.get("ragged_dot_dimension_numbers");
    let dimensions = DotDimensions {
        lhs_contracting: integers(numbers.get("lhs_contracting_dimensions"))?,
        rhs_contracting: integers(numbers.get("rhs_contracting_dimensions"))?,
        lhs_batch: integers(numbers.get("lhs_batch_dimensions"))?,
        rhs_batch: integers(numbers.get("rhs_batch_dimensions"))?,
        rhs_group: integers(ragged.and_then(|ragged| ragged.get("rhs_group_dimensions")))?,
    };
    let output = first_output(module, row)?.element_type;
    let lhs = operand_array(module, row, 0)?;
    let shapes = DotShapes { lhs, rhs: operand_array(module, row, 1)?, output };
    let found = dot_of(&shapes, &dimensions, kind, Provenance::FromBackendConfig)?;
    let accumulation_type = library_accumulation(found.lhs_type, output);
    Some(Contraction { accumulation_type, ..found })
}

/// A list that protobuf's JSON leaves out if it is empty.
fn integers(list: Option<&Value>) -> Option<Vec<i64>> {
    match list {
        None => Some(Vec::new()),
        Some(list) => list.as_array()?.iter().map(json_integer).collect(),
    }
}

/// oneDNN: the last two dimensions, either of which backend_config may transpose; the right side
/// may be packed, so columns are those of the result.
fn from_shapes(module: &Module, row: Row) -> Option<Contraction> {
    let config = module.backend_config_json(row).unwrap_or(Value::Null);
    let transposed = config
        .get("onednn_matmul_config")
        .and_then(|config| config.get("transpose_a"))
        .is_some_and(|value| value.as_bool() == Some(true));
    let (lhs, rhs) = (operand_array(module, row, 0)?, operand_array(module, row, 1)?);
    let output = first_output(module, row)?;
    let size = |array: &crate::ir::ArrayShape<'_>, from_end: usize| {
        let dimension = array.dimension(array.rank().checked_sub(from_end)?)?;
        u64::try_from(dimension.bound()?).ok()
    };
    let k = size(&lhs, if transposed { 2 } else { 1 })?;
    let (m, n) = (size(&output, 2)?, size(&output, 1)?);
    let rows = m.checked_mul(n)?;
    let batch = output.elements()?.checked_div(rows).unwrap_or(0);
    Some(Contraction {
        batch,
        m,
        n,
        k,
        lhs_type: lhs.element_type,
        rhs_type: rhs.element_type,
        output_type: output.element_type,
        accumulation_type: library_accumulation(lhs.element_type, output.element_type),
        flops: product_flops(batch, m, n, k)?,
        kind: ContractionKind::Gemm,
        provenance: Provenance::FromBackendConfig,
    })
}
