//! Cost of custom calls by target: library calls, kernels with an estimate, markers. Other calls
//! are reported as unknown.

mod attention;
mod estimate;
mod gemm;
mod kernels;
mod targets;
mod words;

pub use targets::{CustomCallKind, KNOWN_TARGETS, KnownTarget, known_target};

use super::convolution::Convolution;
use super::matmul::{Contraction, convolution_contraction, operand_array};
use crate::Provenance;
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{ArrayShape, Module, Opcode, Row, ShapeView};
use std::borrow::Cow;

/// The cost of a custom call. Where bytes are None, the sizes of operands and outputs count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CustomCallCost {
    /// FLOPs.
    pub flops: Option<i64>,
    /// Transcendental operations.
    pub transcendentals: Option<i64>,
    /// Bytes read from memory.
    pub bytes_read: Option<i64>,
    /// Bytes written to memory.
    pub bytes_written: Option<i64>,
    /// Where the figures come from; `Unknown` if the FLOPs are unknown.
    pub provenance: Provenance,
    /// The matmul or convolution that the call performs, if any.
    pub contraction: Option<Contraction>,
    /// The kind of work that the call does.
    pub kind: CustomCallKind,
    /// How the call was counted, or why it was not.
    pub reason: &'static str,
}

impl CustomCallCost {
    fn unknown(kind: CustomCallKind, reason: &'static str) -> Self {
        Self {
            flops: None,
            transcendentals: None,
            bytes_read: None,
            bytes_written: None,
            provenance: Provenance::Unknown,
            contraction: None,
            kind,
            reason,
        }
    }

    /// The cost of a call without arithmetic, with the bytes of operands and outputs.
    fn without_arithmetic(kind: CustomCallKind, reason: &'static str) -> Self {
        let (flops, transcendentals) = (Some(0), Some(0));
        let provenance = Provenance::Exact;
        Self { flops, transcendentals, provenance, ..Self::unknown(kind, reason) }
    }

    fn of_contraction(
        kind: CustomCallKind,
        reason: &'static str,
        contraction: Contraction,
        bytes: Bytes,
    ) -> Self {
        Self {
            flops: Some(contraction.flops),
            transcendentals: Some(0),
            bytes_read: bytes.read,
            bytes_written: bytes.written,
            provenance: contraction.provenance,
            contraction: Some(contraction),
            kind,
            reason,
        }
    }
}

/// The target of custom call `row`, unquoted and unescaped.
pub fn custom_call_target(module: &Module, row: Row) -> Option<Cow<'_, [u8]>> {
    decode_target(module.attribute_bytes(row, "custom_call_target")?)
}

fn decode_target(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    match decode(b"custom_call_target", Opcode::CustomCall, text).ok()? {
        AttributeValue::Text(target) => Some(target),
        _ => None,
    }
}

/// The attributes that identify a custom call, read in one pass.
#[derive(Default)]
struct Call<'a> {
    target: Cow<'a, [u8]>,
    /// `backend_config` as written.
    config: Option<&'a [u8]>,
    /// `metadata` as written.
    metadata: Option<&'a [u8]>,
    /// `frontend_attributes` as written.
    frontend: Option<&'a [u8]>,
}

impl<'a> Call<'a> {
    fn read(module: &'a Module, row: Row) -> Self {
        let mut call = Self::default();
        for attribute in module.attributes(row) {
            match module.bytes(attribute.key) {
                b"custom_call_target" => {
                    let text = module.bytes(attribute.value);
                    call.target = decode_target(text).unwrap_or_default();
                }
                b"backend_config" => call.config = Some(module.bytes(attribute.value)),
                b"metadata" => call.metadata = Some(module.bytes(attribute.value)),
                b"frontend_attributes" => call.frontend = Some(module.bytes(attribute.value)),
                _ => {}
            }
        }
        call
    }
}

/// The cost of one execution of custom call `row`.
pub fn custom_call_cost(module: &Module, row: Row) -> CustomCallCost {
    use CustomCallKind as Kind;
    let call = Call::read(module, row);
    let unlisted = KnownTarget {
        pattern: "",
        kind: Kind::Unknown,
        reason: "unknown target; state its cost or add a cost_estimate",
    };
    let known = known_target(&call.target).unwrap_or(&unlisted);
    let (kind, reason) = (known.kind, known.reason);
    // A kernel author's estimate takes precedence over the target's name.
    let named = if kind == Kind::Kernel { kernels::cost(module, row, &call) } else { None };
    if let Some(estimate) = call.config.and_then(estimate::find) {
        return estimate.cost(module, row, kind, named);
    }
    let cost = match kind {
        Kind::Gemm | Kind::GroupedGemm => gemm::cost(module, row, &call, known),
        Kind::Convolution => convolution(module, row, &call.target, known),
        Kind::AttentionForward | Kind::AttentionBackward => attention::cost(module, row, known),
        Kind::TopK => top_k(module, row, &call.target, known),
        Kind::Marker => Some(CustomCallCost {
            bytes_read: Some(0),
            bytes_written: Some(0),
            ..CustomCallCost::without_arithmetic(kind, reason)
        }),
        Kind::DataMovement | Kind::HostTransfer | Kind::Communication => {
            Some(CustomCallCost::without_arithmetic(kind, reason))
        }
        Kind::Sort => Some(CustomCallCost {
            provenance: Provenance::Modelled,
            ..CustomCallCost::without_arithmetic(kind, reason)
        }),
        Kind::Kernel => named,
        Kind::LinearAlgebra
        | Kind::Library
        | Kind::RandomNumbers
        | Kind::HostCallback
        | Kind::Unknown => None,
    };
    cost.unwrap_or_else(|| CustomCallCost::unknown(kind, reason))
}

/// The result array of a library call: the whole result, or the first tuple element, which precedes
/// by-products and the workspace.
fn first_output(module: &Module, row: Row) -> Option<ArrayShape<'_>> {
    let shapes = module.shapes();
    match shapes.get(module.shape(row)) {
        ShapeView::Array(array) => Some(array),
        ShapeView::Tuple(children) => shapes.array(*children.first()?),
        ShapeView::Buffer(inner) => shapes.array(inner),
    }
}

/// Bytes that a library call reads and writes, workspace excluded.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    read: Option<i64>,
    written: Option<i64>,
}

/// All operands are read; the first `outputs` elements of a tuple result, or the whole result, are
/// written.
fn bytes_without_workspace(module: &Module, row: Row, outputs: usize) -> Bytes {
    let shapes = module.shapes();
    let sum = |total: i64, bytes: Option<u64>| total.checked_add(i64::try_from(bytes?).ok()?);
    let operands = module.operands(row).iter().map(|operand| module.shape(Row(*operand)));
    let read = operands.map(|shape| shapes.logical_bytes(shape)).try_fold(0, sum);
    let written = match shapes.tuple(module.shape(row)) {
        Some(children) => {
            let kept = children.iter().take(outputs);
            kept.map(|shape| shapes.logical_bytes(*shape)).try_fold(0, sum)
        }
        None => sum(0, shapes.logical_bytes(module.shape(row))),
    };
    Bytes { read, written }
}

/// A cuDNN convolution. Its attributes describe the forward convolution even if the call computes
/// the gradient of the input or the kernel.
fn convolution(
    module: &Module,
    row: Row,
    target: &[u8],
    known: &KnownTarget,
) -> Option<CustomCallCost> {
    if !target.starts_with(b"__cudnn$") {
        return None;
    }
    let first = operand_array(module, row, 0)?;
    let second = operand_array(module, row, 1)?;
    let result = first_output(module, row)?;
    let (input, kernel, output) = match target {
        b"__cudnn$convBackwardInput" => (result, second, first),
        b"__cudnn$convBackwardFilter" => (first, result, second),
        _ => (first, second, result),
    };
    let convolution = Convolution::new(module, row, input, kernel, output)?;
    let contraction = convolution_contraction(&convolution, Provenance::Exact)?;
    let bytes = bytes_without_workspace(module, row, 1);
    Some(CustomCallCost::of_contraction(known.kind, known.reason, contraction, bytes))
}

/// Comparisons of a top-k selection. A heap of the k largest takes up to `ceil(log2(k + 1))` per
/// element; approximate variants keep one element per bin and compare once.
fn top_k(module: &Module, row: Row, target: &[u8], known: &KnownTarget) -> Option<CustomCallCost> {
    let elements = i64::try_from(operand_array(module, row, 0)?.elements()?).ok()?;
    let per_element = if matches!(target, b"ApproxTopK" | b"PartialReduce") {
        1
    } else {
        let output = first_output(module, row)?;
        let last = output.rank().checked_sub(1)?;
        let k = u64::try_from(output.dimension(last)?.bound()?).ok()?;
        i64::from(u64::BITS - k.leading_zeros())
    };
    Some(CustomCallCost {
        flops: Some(elements.checked_mul(per_element)?),
        provenance: Provenance::Modelled,
        ..CustomCallCost::without_arithmetic(known.kind, known.reason)
    })
}
