//! Library matmuls.

use super::words::integers_after;
use super::{
    Call, CustomCallCost, CustomCallKind, KnownTarget, bytes_without_workspace, first_output,
    operand_array,
};
use crate::Provenance;
use crate::cost::matmul::{
    Contraction, ContractionKind, DotDimensions, DotShapes, dot_of, library_accumulation,
    product_flops,
};
use crate::ir::{Module, Row};
use serde_json::Value;

pub(super) fn cost(
    module: &Module,
    row: Row,
    call: &Call<'_>,
    known: &KnownTarget,
) -> Option<CustomCallCost> {
    let contraction = match (call.target.as_ref(), known.kind) {
        (b"__onednn$matmul", _) => from_shapes(module, row)?,
        (_, CustomCallKind::GroupedGemm) => {
            from_dimensions(module, row, call.config?, ContractionKind::GroupedGemm)?
        }
        _ => from_dimensions(module, row, call.config?, ContractionKind::Gemm)?,
    };
    // Results that cublasLt computes besides the matmul (an auxiliary output, a maximum) count as
    // outputs; the last tuple element, raw bytes, is the workspace.
    let outputs = output_count(module, row);
    let bytes = bytes_without_workspace(module, row, outputs);
    Some(CustomCallCost::of_contraction(known.kind, known.reason, contraction, bytes))
}

/// The number of results without the workspace, which is a rank-1 byte array at the end.
fn output_count(module: &Module, row: Row) -> usize {
    let shapes = module.shapes();
    let Some(children) = shapes.tuple(module.shape(row)) else { return 1 };
    let is_workspace = children.len() > 1
        && children.last().and_then(|shape| shapes.array(*shape)).is_some_and(|array| {
            array.rank() == 1 && matches!(array.element_type.as_str(), "s8" | "u8")
        });
    children.len() - usize::from(is_workspace)
}

/// Reads `dot_dimension_numbers` in backend_config: at the top level in old texts, nested in new
/// texts.
fn from_dimensions(
    module: &Module,
    row: Row,
    config: &[u8],
    kind: ContractionKind,
) -> Option<Contraction> {
    let start = memchr::memmem::find(config, b"dot_dimension_numbers")?;
    let numbers = config.get(start..)?;
    // The braces contain only lists, so the first closing brace ends the value.
    let numbers = numbers.get(..memchr::memchr(b'}', numbers)?)?;
    let rhs_group = match kind {
        ContractionKind::GroupedGemm => integers_after(config, b"rhs_group_dimensions")?,
        _ => Vec::new(),
    };
    let dimensions = DotDimensions {
        lhs_contracting: integers_after(numbers, b"lhs_contracting_dimensions")?,
        rhs_contracting: integers_after(numbers, b"rhs_contracting_dimensions")?,
        lhs_batch: integers_after(numbers, b"lhs_batch_dimensions")?,
        rhs_batch: integers_after(numbers, b"rhs_batch_dimensions")?,
        rhs_group,
    };
    let output = first_output(module, row)?.element_type;
    let lhs = operand_array(module, row, 0)?;
    let shapes = DotShapes { lhs, rhs: operand_array(module, row, 1)?, output };
    let contraction = dot_of(&shapes, &dimensions, kind, Provenance::FromBackendConfig)?;
    let accumulation_type = library_accumulation(contraction.lhs_type, output);
    Some(Contraction { accumulation_type, ..contraction })
}

/// oneDNN multiplies the last two dimensions, which backend_config may transpose. The right side
/// may be packed, so the number of columns is read from the result.
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
