//! Custom calls: known costs, and unknown ones.

use crate::support::reading;
use hlofast::Provenance;
use hlofast::cost::custom_call::{
    CustomCallCost, CustomCallKind, KNOWN_TARGETS, custom_call_cost, custom_call_target,
    known_target,
};
use hlofast::cost::matmul::{Contraction, ContractionKind};
use hlofast::ir::{ElementType, Module, Opcode, Row};
use std::collections::BTreeMap;

/// The cost of a call with parameters of the given shapes.
fn cost(result: &str, operands: &[&str], target: &str, attributes: &str) -> CustomCallCost {
    let mut text = String::from("HloModule m\nENTRY main {\n");
    for (n, shape) in operands.iter().enumerate() {
        text += &format!("  p{n} = {shape} parameter({n})\n");
    }
    let names: Vec<String> = (0..operands.len()).map(|n| format!("p{n}")).collect();
    text += &format!(
        "  ROOT call = {result} custom-call({}), custom_call_target=\"{target}\"{attributes}\n}}\n",
        names.join(", ")
    );
    let module = reading::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    let row = Row(operands.len() as u32);
    assert_eq!(custom_call_target(&module, row).unwrap(), target.as_bytes());
    custom_call_cost(&module, row)
}

fn dimensions(product: &Contraction) -> (u64, u64, u64, u64) {
    (product.batch, product.m, product.n, product.k)
}

const DIMENSIONS: &str = r#""dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"],"rhs_batch_dimensions":["0"]}"#;

#[test]
fn matrix_products_of_every_age() {
    let escaped = format!("{{\"alpha_real\":1,{DIMENSIONS}}}").replace('"', "\\\"");
    let old = format!(", backend_config=\"{escaped}\"");
    let new = format!(
        ", backend_config={{\"operation_queue_id\":\"0\",\"gemm_backend_config\":{{\"alpha_real\":1,{DIMENSIONS}}}}}"
    );
    let operands = ["f16[3,8,16]", "f16[3,16,32]", "f16[3,8,32]"];
    for (target, attributes, result) in [
        ("__cublas$gemm", &old, "f16[3,8,32]"),
        ("__cublas$gemm", &new, "(f16[3,8,32], s8[4194304])"),
        ("__cublas$lt$matmul", &new, "(f16[3,8,32], s8[33554432])"),
    ] {
        let estimate = cost(result, &operands, target, attributes);
        let flops = 2 * 3 * 8 * 16 * 32;
        assert_eq!((estimate.flops, estimate.transcendentals), (Some(flops), Some(0)), "{target}");
        assert_eq!(estimate.kind, CustomCallKind::Gemm);
        assert_eq!(estimate.provenance, Provenance::FromBackendConfig);
        let product = estimate.contraction.unwrap();
        assert_eq!(dimensions(&product), (3, 8, 32, 16));
        assert_eq!(product.kind, ContractionKind::Gemm);
        assert_eq!((product.lhs_type, product.output_type), (ElementType::F16, ElementType::F16));
        assert_eq!(product.accumulation_type, ElementType::F32);
        // The workspace is not data: it is neither read nor written.
        let read = 2 * (3 * 8 * 16 + 3 * 16 * 32 + 3 * 8 * 32);
        assert_eq!(
            (estimate.bytes_read, estimate.bytes_written),
            (Some(read), Some(2 * 3 * 8 * 32))
        );
    }
    // Scaled 8-bit floats have their scales as operands and may return the largest value.
    let numbers = r#", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]}}}"#;
    let estimate = cost(
        "(bf16[64,128], f32[], s8[100])",
        &["f8e4m3fn[64,256]", "f8e4m3fn[128,256]", "f32[]", "f32[]"],
        "__cublas$lt$matmul$f8",
        numbers,
    );
    assert_eq!(estimate.flops, Some(2 * 64 * 128 * 256));
    assert_eq!(estimate.bytes_written, Some(64 * 128 * 2 + 4));
    assert_eq!(estimate.contraction.unwrap().accumulation_type, ElementType::F32);
    // Each row is multiplied with one group of the right side.
    let config = r#", backend_config={"gemm_backend_config":{"beta":0},"ragged_dot_dimension_numbers":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]},"lhs_ragged_dimensions":["0"],"rhs_group_dimensions":["0"]}}"#;
    let operands_of_groups = ["bf16[19,64]", "bf16[4,64,128]", "s32[4]"];
    let result = "(bf16[19,128], s8[100])";
    let estimate = cost(result, &operands_of_groups, "__cublas$lt$groupedMatmul", config);
    assert_eq!((estimate.flops, estimate.kind), (Some(311_296), CustomCallKind::GroupedGemm));
    // Without dimensions the cost is unknown; bytes are those of operands and outputs.
    for attributes in [
        "",
        ", backend_config={}",
        ", backend_config=\"{\"",
        ", backend_config={\"gemm_backend_config\":{\"dot_dimension_numbers\":{\"lhs_contracting_dimensions\":[\"7\"]}}}",
    ] {
        let estimate = cost("f16[3,8,32]", &operands, "__cublas$gemm", attributes);
        assert_eq!((estimate.flops, estimate.bytes_read), (None, None), "{attributes}");
        assert_eq!(estimate.provenance, Provenance::Unknown);
    }
    let estimate = cost(
        "f32[4,8,32]",
        &["f32[4,16,8]", "f32[16,32]"],
        "__onednn$matmul",
        r#", backend_config={"onednn_matmul_config":{"transpose_a":true}}"#,
    );
    assert_eq!(dimensions(&estimate.contraction.unwrap()), (4, 8, 32, 16));
}

#[test]
fn convolutions_of_a_library_count_as_their_forward_form() {
    let attributes = ", window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f";
    let (input, kernel, output) = ("f32[8,56,56,64]", "f32[3,3,64,128]", "f32[8,56,56,128]");
    // Line 3 of the cost reference's checks.
    let flops = Some(3_611_820_032);
    for (target, result, operands) in [
        ("__cudnn$convForward", output, [input, kernel]),
        ("__cudnn$convBackwardInput", input, [output, kernel]),
        ("__cudnn$convBackwardFilter", kernel, [input, output]),
    ] {
        let result = format!("({result}, u8[1048576])");
        let estimate = cost(&result, &operands, target, attributes);
        assert_eq!(
            (estimate.flops, estimate.kind),
            (flops, CustomCallKind::Convolution),
            "{target}"
        );
        let product = estimate.contraction.unwrap();
        assert_eq!(product.kind, ContractionKind::Convolution);
        assert_eq!(dimensions(&product), (1, 8 * 56 * 56, 128, 9 * 64));
    }
}

#[test]
fn fused_attention_is_two_products_forward_and_five_backward() {
    let config = r#", backend_config={"cudnn_fmha_backend_config":{"fmha_scale":0.125,"intermediate_tensor_shape":{"element_type":"BF16","dimensions":["2","4","128","256"]},"mask_type":"NO_MASK"}}"#;
    let (query, key) = ("bf16[2,128,4,64]", "bf16[2,256,4,64]");
    let product = 2 * 2 * 4 * 128 * 256 * 64;
    let scores = 2 * 4 * 128 * 256;
    let result = "(bf16[2,4,128,64], f32[2,4,128], u8[0])";
    for (target, operands, products) in [
        ("__cudnn$fmhaSoftmax", vec![query, key, key], 2),
        ("__cudnn$fmhaScaleBiasSoftmaxDropout", vec![query, key, key, "bf16[1]"], 2),
        ("__cudnn$fmhaSoftmaxBackward", vec![query, key, key, query, query], 5),
        ("__cudnn$fmhaSoftmaxBackwardF8", vec![query, key, key, query, query], 5),
    ] {
        let estimate = cost(result, &operands, target, config);
        assert_eq!(estimate.flops, Some(products * product), "{target}");
        assert_eq!(estimate.transcendentals, Some(scores));
        assert_eq!(estimate.provenance, Provenance::Modelled);
        assert_eq!(dimensions(&estimate.contraction.unwrap()), (8, 128, 256, 64));
    }
    assert_eq!(cost(result, &[query, key, key], "__cudnn$fmhaSoftmax", "").flops, None);
}

#[test]
fn estimates_of_authors_are_taken() {
    let config = r#", backend_config={"custom_call_config":{"body":"AA==","cost_estimate":{"flops":"268435456","transcendentals":"3145728","bytes_accessed":"1000"}}}"#;
    let estimate = cost("f32[8]", &["f32[64]"], "tpu_custom_call", config);
    assert_eq!((estimate.flops, estimate.transcendentals), (Some(268_435_456), Some(3_145_728)));
    // The output is written, the rest is read.
    assert_eq!((estimate.bytes_read, estimate.bytes_written), (Some(968), Some(32)));
    assert_eq!(
        (estimate.kind, estimate.provenance),
        (CustomCallKind::Kernel, Provenance::FromBackendConfig)
    );
    // Also for an unknown target.
    let estimate = cost("f32[8]", &["f32[64]"], "my_kernel", config);
    assert_eq!((estimate.flops, estimate.kind), (Some(268_435_456), CustomCallKind::Unknown));
    for target in [
        "tpu_custom_call",
        "__gpu$xla.gpu.triton",
        "triton_kernel_call",
        "my_kernel",
        "lapack_spotrf_ffi",
        "xla_ffi_python_cpu_callback",
    ] {
        let estimate = cost("f32[8]", &["f32[64]"], target, "");
        assert_eq!((estimate.flops, estimate.transcendentals), (None, None), "{target}");
        assert_eq!(
            (estimate.bytes_read, estimate.provenance),
            (None, Provenance::Unknown),
            "{target}"
        );
        assert!(!estimate.reason.is_empty());
    }
}

#[test]
fn what_costs_nothing_and_what_only_moves() {
    for target in [
        "AllocateBuffer",
        "CreateBuffer",
        "AsyncCollectiveStart",
        "AsyncCollectiveDone",
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.FuncResultSharding",
        "annotate_device_placement",
        "pipeline_marker",
        "xla_fallback_pipeline_marker",
        "LayoutConstraint",
        "AssumeGatherIndicesInBound",
        "ConcatBitcast",
    ] {
        let estimate = cost("f32[64]", &["f32[64]"], target, "");
        assert_eq!(estimate.kind, CustomCallKind::Marker, "{target}");
        assert_eq!(
            (estimate.flops, estimate.bytes_read, estimate.bytes_written),
            (Some(0), Some(0), Some(0))
        );
    }
    for target in [
        "MoveToHost",
        "MoveToDevice",
        "PadToStatic",
        "SliceToDynamic",
        "X64Combine",
        "__builtin$CrossMeshAllReduce",
    ] {
        let estimate = cost("f32[64]", &["f32[64]"], target, "");
        assert_eq!((estimate.flops, estimate.bytes_read), (Some(0), None), "{target}");
    }
}

#[test]
fn selections_compare() {
    let estimate = cost("(f32[64,7], s32[64,7])", &["f32[64,64]"], "TopK", "");
    assert_eq!((estimate.flops, estimate.provenance), (Some(64 * 64 * 3), Provenance::Modelled));
    let estimate = cost("(f32[64,8], s32[64,8])", &["f32[64,64]"], "TopK", "");
    assert_eq!(estimate.flops, Some(64 * 64 * 4));
    let result = "(f32[8,256], s32[8,256])";
    let estimate =
        cost(result, &["f32[8,1024]", "s32[8,1024]", "f32[]", "s32[]"], "PartialReduce", "");
    assert_eq!(estimate.flops, Some(8 * 1024));
}

#[test]
fn the_table_is_one_truth() {
    for (index, known) in KNOWN_TARGETS.iter().enumerate() {
        assert!(!known.reason.is_empty() && known.reason.len() < 90, "{}", known.pattern);
        let example = known.pattern.replace('*', "X");
        let first = known_target(example.as_bytes()).unwrap();
        assert_eq!(first, known, "{} is hidden by {}", known.pattern, first.pattern);
        let twice = KNOWN_TARGETS[..index].iter().any(|other| other.pattern == known.pattern);
        assert!(!twice, "{}", known.pattern);
    }
    assert_eq!(known_target(b""), None);
    assert_eq!(known_target(b"__cublas$gemmX"), None);
}

fn custom_calls(module: &Module) -> impl Iterator<Item = Row> {
    module.rows().filter(|row| module.opcode(*row) == Opcode::CustomCall)
}

#[test]
fn every_target_among_the_dumps_is_known() {
    let mut kinds: BTreeMap<CustomCallKind, usize> = BTreeMap::new();
    let mut estimated = 0;
    for (name, source) in reading::modules() {
        let module = hlofast::parse(source, &hlofast::Options::default()).unwrap();
        for row in custom_calls(&module) {
            let estimate = custom_call_cost(&module, row);
            let target = custom_call_target(&module, row).unwrap();
            let target = String::from_utf8_lossy(&target).into_owned();
            assert_ne!(estimate.kind, CustomCallKind::Unknown, "{name}: {target}");
            assert_eq!(
                estimate.flops.is_none(),
                estimate.provenance == Provenance::Unknown,
                "{target}"
            );
            if estimate.kind == CustomCallKind::Gemm {
                assert!(estimate.contraction.is_some(), "{name}: {target}");
            }
            estimated += usize::from(
                estimate.kind == CustomCallKind::Kernel && estimate.bytes_read.is_some(),
            );
            *kinds.entry(estimate.kind).or_default() += 1;
        }
    }
    assert!(kinds[&CustomCallKind::Gemm] >= 30 && estimated >= 2, "{kinds:?} {estimated}");
    assert!(kinds.len() >= 5, "{kinds:?}");
}

#[test]
fn seed_documents() {
    let Some(folder) = reading::seeds() else { return };
    for (prefix, count, total, kind) in [
        ("001", 8, 0, None),
        ("002", 151, 631_360_192_512, Some(CustomCallKind::Gemm)),
        ("003", 0, 0, None),
    ] {
        let module = reading::seed(&folder, prefix);
        let calls: Vec<CustomCallCost> =
            custom_calls(&module).map(|row| custom_call_cost(&module, row)).collect();
        assert_eq!(calls.len(), count, "{prefix}");
        let flops: i64 = calls.iter().map(|call| call.flops.unwrap()).sum();
        assert_eq!(flops, total, "{prefix}");
        assert!(kind.is_none_or(|kind| calls.iter().all(|call| call.kind == kind)));
    }
}
