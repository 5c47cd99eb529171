//! Contractions: batch, M, N, K and FLOPs of everything that multiplies and adds.

use crate::support::reading;
use hlofast::Provenance;
use hlofast::cost::convolution::convolution_flops;
use hlofast::cost::matmul::{Contraction, ContractionKind, contraction};
use hlofast::ir::{ElementType, Module, Opcode, Row};

fn find(result: &str, opcode: &str, operands: &[&str], attributes: &str) -> Contraction {
    let text = module_text(result, opcode, operands, attributes);
    let module = reading::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    let row = Row(operands.len() as u32);
    contraction(&module, row).unwrap_or_else(|| panic!("{text}"))
}

fn module_text(result: &str, opcode: &str, operands: &[&str], attributes: &str) -> String {
    let mut text = String::from("HloModule m\nENTRY main {\n");
    for (n, shape) in operands.iter().enumerate() {
        text += &format!("  p{n} = {shape} parameter({n})\n");
    }
    let names: Vec<String> = (0..operands.len()).map(|n| format!("p{n}")).collect();
    text + &format!("  ROOT r = {result} {opcode}({}), {attributes}\n}}\n", names.join(", "))
}

fn dimensions(product: &Contraction) -> (u64, u64, u64, u64) {
    (product.batch, product.m, product.n, product.k)
}

#[test]
fn dots() {
    let attributes = "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}";
    let product = find("f32[8,64,16]", "dot", &["bf16[8,64,32]", "bf16[8,32,16]"], attributes);
    assert_eq!((dimensions(&product), product.flops), ((8, 64, 16, 32), 524_288));
    assert_eq!(product.accumulation_type, ElementType::F32);
    assert_eq!((product.kind, product.provenance), (ContractionKind::Dot, Provenance::Exact));
    let attributes =
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_bf16_bf16_f32_x3";
    let product = find("bf16[128,512]", "dot", &["bf16[128,256]", "bf16[256,512]"], attributes);
    assert_eq!((product.flops, product.accumulation_type), (33_554_432, ElementType::F32));
    // Several contracted and free dimensions; an outer product contracts nothing.
    let attributes = "lhs_contracting_dims={1,3}, rhs_contracting_dims={0,2}";
    let product = find("f32[2,4,7]", "dot", &["f32[2,3,4,5]", "f32[3,7,5]"], attributes);
    assert_eq!((dimensions(&product), product.flops), ((1, 8, 7, 15), 2 * 8 * 7 * 15));
    let product = find(
        "f32[2,3]",
        "dot",
        &["f32[2]", "f32[3]"],
        "lhs_contracting_dims={}, rhs_contracting_dims={}",
    );
    assert_eq!((dimensions(&product), product.flops), ((1, 2, 3, 1), 12));
}

#[test]
fn ragged_dots_meet_one_group_per_element() {
    let groups = "lhs_ragged_dims={0}, rhs_group_dims={0}";
    let operands = ["bf16[19,64]", "bf16[4,64,128]", "s32[4]"];
    let attributes = format!("lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, {groups}");
    let product = find("bf16[19,128]", "ragged-dot", &operands, &attributes);
    assert_eq!((dimensions(&product), product.flops), ((1, 19, 128, 64), 311_296));
    assert_eq!(product.kind, ContractionKind::RaggedDot);
    // The ragged dimension is summed over: each group sums its own part.
    let attributes = "lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}";
    let operands = ["bf16[19,64]", "bf16[19,128]", "s32[4]"];
    let product = find("bf16[4,64,128]", "ragged-dot", &operands, attributes);
    assert_eq!((dimensions(&product), product.flops), ((1, 64, 128, 19), 311_296));
}

/// result, operands, attributes, dimensions, flops
type Case<'a> = (&'a str, [&'a str; 2], &'a str, (u64, u64, u64, u64), i64);

#[test]
fn convolutions_that_are_dots() {
    let cases: &[Case<'_>] = &[
        // Line 10 of the cost reference's section 7, and its checks 5.
        (
            "bf16[512,1024]",
            ["bf16[512,4096]", "bf16[4096,1024]"],
            "dim_labels=bf_io->bf",
            (1, 512, 1024, 4096),
            4_294_967_296,
        ),
        (
            "f32[1024,512]",
            ["f32[4096,512]", "f32[1024,4096]"],
            "dim_labels=fb_oi->fb",
            (1, 512, 1024, 4096),
            4_294_967_296,
        ),
        (
            "bf16[8,256,384]",
            ["bf16[8,256,512]", "bf16[8,512,384]"],
            "window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf",
            (8, 256, 384, 512),
            805_306_368,
        ),
        // Other spellings of batch dimensions: reversed, of size 2, two at once.
        (
            "bf16[4,256,384]",
            ["bf16[4,256,512]", "bf16[4,512,384]"],
            "window={size=4 stride=4 pad=3_3 lhs_dilate=3 rhs_reversal=1}, dim_labels=0bf_0io->0bf",
            (4, 256, 384, 512),
            402_653_184,
        ),
        (
            "bf16[4,2,8,16]",
            ["bf16[4,2,8,32]", "bf16[4,2,32,16]"],
            "window={size=4x2 stride=3x1 lhs_dilate=4x2}, dim_labels=01bf_01io->01bf",
            (8, 8, 16, 32),
            65_536,
        ),
        // Free dimensions of the left side, of the right side, and summed ones.
        (
            "bf16[4,512,128]",
            ["bf16[4,512,64]", "bf16[1,64,128]"],
            "window={size=1}, dim_labels=0bf_0io->0bf",
            (1, 2048, 128, 64),
            33_554_432,
        ),
        (
            "f32[4,8,16]",
            ["f32[1,8,32]", "f32[4,32,16]"],
            "window={size=4 pad=3_3 rhs_reversal=1}, dim_labels=0bf_0io->0bf",
            (1, 8, 64, 32),
            32_768,
        ),
        (
            "f32[8,16,1]",
            ["f32[4,8,32]", "f32[4,32,16]"],
            "window={size=4}, dim_labels=0bf_0io->bf0",
            (1, 8, 16, 128),
            32_768,
        ),
        // Feature groups are independent matmuls.
        (
            "f32[8,64]",
            ["f32[8,32]", "f32[8,64]"],
            "dim_labels=bf_io->bf, feature_group_count=4",
            (4, 8, 16, 8),
            8192,
        ),
    ];
    for (result, operands, attributes, expected, flops) in cases {
        let product = find(result, "convolution", operands, attributes);
        assert_eq!(product.kind, ContractionKind::ConvolutionAsDot, "{attributes}");
        assert_eq!((dimensions(&product), product.flops), (*expected, *flops), "{attributes}");
        assert_eq!(product.provenance, Provenance::Exact);
    }
}

#[test]
fn convolutions_over_neighbourhoods_leave_padding_out() {
    let cases: &[Case<'_>] = &[
        // Lines 11 and 12 of the cost reference's section 7, and its checks 3 and 4.
        (
            "f32[8,56,56,128]",
            ["f32[8,56,56,64]", "f32[3,3,64,128]"],
            "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
            (1, 25088, 128, 576),
            3_611_820_032,
        ),
        (
            "f32[2,15,15,6]",
            ["f32[2,8,8,4]", "f32[3,3,4,6]"],
            "window={size=3x3 pad=1_1x1_1 lhs_dilate=2x2}, dim_labels=b01f_01io->b01f",
            (1, 450, 6, 36),
            46_464,
        ),
        (
            "f32[1,8,8,32]",
            ["f32[1,10,10,32]", "f32[3,3,1,32]"],
            "window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=32",
            (32, 64, 1, 9),
            36_864,
        ),
        (
            "f32[1,14,14,768]",
            ["f32[1,224,224,3]", "f32[16,16,3,768]"],
            "window={size=16x16 stride=16x16}, dim_labels=b01f_01io->b01f",
            (1, 196, 768, 768),
            231_211_008,
        ),
    ];
    for (result, operands, attributes, expected, flops) in cases {
        let product = find(result, "convolution", operands, attributes);
        assert_eq!(product.kind, ContractionKind::Convolution, "{attributes}");
        assert_eq!((dimensions(&product), product.flops), (*expected, *flops), "{attributes}");
    }
}

#[test]
fn what_is_unknown_is_not_guessed() {
    let cases = [
        (
            "f32[2,2]",
            "dot",
            ["f32[2,?]", "f32[?,2]"],
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ),
        (
            "f32[2,2]",
            "dot",
            ["f32[2,3]", "f32[3,2]"],
            "lhs_contracting_dims={5}, rhs_contracting_dims={0}",
        ),
        (
            "f32[4294967296,4294967296]",
            "dot",
            ["f32[4294967296,4294967296]", "f32[4294967296,4294967296]"],
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ),
        (
            "f32[2,2]",
            "convolution",
            ["f32[2,3]", "f32[3,2]"],
            "window={size=3}, dim_labels=bf_io->bf",
        ),
        ("f32[2,2]", "add", ["f32[2,2]", "f32[2,2]"], "metadata={}"),
    ];
    for (result, opcode, operands, attributes) in cases {
        let text = module_text(result, opcode, &operands, attributes);
        let Ok(module) = reading::parse(text.as_bytes()) else { continue };
        assert_eq!(contraction(&module, Row(2)), None, "{text}");
    }
}

#[test]
fn ranks_of_any_length_are_read_once() {
    let rank = 30_000;
    let ones = vec!["1"; rank].join(",");
    let all = (0..rank).map(|d| d.to_string()).collect::<Vec<_>>().join(",");
    let shape = format!("f32[{ones}]");
    let attributes = format!("lhs_contracting_dims={{{all}}}, rhs_contracting_dims={{{all}}}");
    let product = find("f32[]", "dot", &[&shape, &shape], &attributes);
    assert_eq!((dimensions(&product), product.flops), ((1, 1, 1, 1), 2));
}

fn contractions(module: &Module) -> Vec<Contraction> {
    module.rows().filter_map(|row| contraction(module, row)).collect()
}

#[test]
fn every_dot_and_convolution_of_the_dumps_is_read() {
    let mut kinds = std::collections::BTreeMap::new();
    for (name, source) in reading::modules() {
        let module = hlofast::parse(source, &hlofast::Options::default()).unwrap();
        for row in module.rows() {
            let is_one = matches!(
                module.opcode(row),
                Opcode::Dot | Opcode::Convolution | Opcode::RaggedDot | Opcode::ScaledDot
            );
            let Some(contraction) = contraction(&module, row) else {
                assert!(
                    !is_one,
                    "{name}: {:?}",
                    String::from_utf8_lossy(module.instruction_name(row))
                );
                continue;
            };
            // Only convolutions over neighbourhoods skip anything.
            let product =
                2 * (contraction.batch * contraction.m * contraction.n * contraction.k) as i64;
            match contraction.kind {
                ContractionKind::Convolution => assert!(contraction.flops <= product),
                ContractionKind::FusedAttention => {}
                _ => assert_eq!(contraction.flops, product, "{name}"),
            }
            *kinds.entry(contraction.kind.as_str()).or_insert(0) += 1;
        }
    }
    for kind in ["dot", "convolution_as_dot", "convolution", "gemm"] {
        assert!(kinds.contains_key(kind), "{kinds:?}");
    }
}

/// Convolutions with random windows and XLA's count, in 32-bit floats.
#[test]
fn convolutions_equal_xla() {
    let path = reading::tests_folder().join("fixtures/convolution_flops.jsonl");
    let lines = String::from_utf8(reading::read(&path)).unwrap();
    let mut count = 0;
    for line in lines.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = case["text"].as_str().unwrap();
        let module = reading::parse(text.as_bytes()).unwrap();
        let row = module.rows().find(|row| module.opcode(*row) == Opcode::Convolution).unwrap();
        let flops = convolution_flops(&module, row).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(flops as f32, case["flops"].as_f64().unwrap() as f32, "{text}");
        count += 1;
    }
    assert!(count >= 400, "{count}");
}

#[test]
fn seed_documents() {
    let Some(folder) = reading::seeds() else { return };
    for (prefix, count, total, kind) in [
        ("001", 9, 3_398_392_872_960, ContractionKind::Dot),
        ("002", 151, 631_360_192_512, ContractionKind::Gemm),
        ("003", 2, 8_589_934_592, ContractionKind::ConvolutionAsDot),
    ] {
        let products = contractions(&reading::seed(&folder, prefix));
        assert_eq!(products.len(), count, "{prefix}");
        assert_eq!(products.iter().map(|product| product.flops).sum::<i64>(), total, "{prefix}");
        assert!(products.iter().all(|product| product.kind == kind), "{prefix}");
    }
    let products = contractions(&reading::seed(&folder, "003"));
    assert!(products.iter().all(|product| product.flops == 4_294_967_296));
}
