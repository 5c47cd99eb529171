//! Phases that names leave open: data flow, pipeline markers, and totals of seeds and fixtures.

use crate::support::reading;
use hlofast::flow::{Attribution, AttributionOptions, Phase, attribution, sections, source_of};
use hlofast::ir::{Module, Opcode, Row};
use hlofast::text::OpenOptions;
use serde_json::Value;
use std::collections::BTreeMap;

fn parse(text: &str) -> Module {
    reading::parse(text.as_bytes()).unwrap()
}

fn attribute(module: &Module) -> Attribution {
    attribution(module, &AttributionOptions::default())
}

fn find(module: &Module, name: &str) -> Row {
    Row(module.find_instructions(name.as_bytes())[0])
}

fn phases<const N: usize>(module: &Module, names: [&str; N]) -> [Phase; N] {
    let attribution = attribute(module);
    names.map(|name| attribution.phase[find(module, name).0 as usize])
}

/// The first module of a file among the fixtures.
fn fixture(path: &str) -> Module {
    let bytes = reading::read(&reading::tests_folder().join("fixtures").join(path));
    let options = OpenOptions { path: Some(path), max_bytes: None };
    let modules = hlofast::text::open(bytes.into(), &options).unwrap();
    let source = modules.into_iter().next().unwrap().source;
    hlofast::parse(source, &hlofast::Options::default()).unwrap()
}

/// The seed whose file name begins with `number`; prints a note and returns None without seeds.
fn seed(number: &str) -> Option<Module> {
    reading::seeds().map(|folder| reading::seed(&folder, number))
}

fn dimensions(module: &Module, row: u32) -> Vec<u128> {
    let array = module.shapes().array(module.shape(Row(row))).unwrap();
    array.dimensions().map(|d| u128::try_from(d.bound().unwrap()).unwrap()).collect()
}

/// 2 x elements of the result x contracted elements of a dot or a cuBLAS call.
fn gemm_flops(module: &Module, row: Row) -> Option<u128> {
    let contracted: Vec<usize> = match module.opcode(row) {
        Opcode::Dot => {
            let text = module.attribute_bytes(row, "lhs_contracting_dims")?;
            let text = std::str::from_utf8(text).unwrap().trim_matches(['{', '}']).to_string();
            text.split(',').filter_map(|number| number.trim().parse().ok()).collect()
        }
        Opcode::CustomCall => {
            if module.attribute_bytes(row, "custom_call_target")? != b"\"__cublas$gemm\"" {
                return None;
            }
            let text = module.attribute_bytes(row, "backend_config")?;
            let text: String = serde_json::from_slice(text).unwrap();
            let config: Value = serde_json::from_str(&text).unwrap();
            let list = &config["dot_dimension_numbers"]["lhs_contracting_dimensions"];
            let number = |value: &Value| value.as_str().unwrap().parse().unwrap();
            list.as_array().unwrap().iter().map(number).collect()
        }
        _ => return None,
    };
    let left = dimensions(module, module.operands(row)[0]);
    let result: u128 = dimensions(module, row.0).iter().product();
    Some(2 * result * contracted.iter().map(|d| left[*d]).product::<u128>())
}

/// Count and FLOPs of matmuls by phase.
fn gemms(module: &Module) -> BTreeMap<Phase, (usize, u128)> {
    let attribution = attribute(module);
    let mut sums = BTreeMap::new();
    for row in module.rows() {
        if let Some(flops) = gemm_flops(module, row) {
            let sum: &mut (usize, u128) =
                sums.entry(attribution.phase[row.0 as usize]).or_default();
            *sum = (sum.0 + 1, sum.1 + flops);
        }
    }
    sums
}

#[test]
fn old_jax_splits_recomputed_from_backward_products() {
    let facts = reading::tests_folder().join("fixtures/seedlike/gpu_train_step.facts.json");
    let facts: Value = serde_json::from_slice(&reading::read(&facts)).unwrap();
    let sums = gemms(&fixture("seedlike/gpu_train_step.txt.gz"));
    let of = |phase: Phase| sums.get(&phase).map_or(0, |sum| sum.1);
    for phase in [Phase::Forward, Phase::Recompute, Phase::Backward] {
        let expected = facts["gemm_flops"][phase.as_str()].as_u64().unwrap();
        assert_eq!(of(phase), u128::from(expected), "{}", phase.as_str());
    }
    assert_eq!(sums.len(), 3, "{sums:?}");
}

#[test]
fn seed_002_products_by_phase() {
    let Some(module) = seed("002_") else { return };
    let expected = [
        (Phase::Forward, (39, 198_642_237_440)),
        (Phase::Backward, (76, 342_523_641_856)),
        (Phase::Recompute, (36, 90_194_313_216)),
    ];
    assert_eq!(gemms(&module), BTreeMap::from(expected));
}

#[test]
fn seed_001_products_by_section() {
    let Some(module) = seed("001_") else { return };
    let expected =
        [(Phase::Forward, (3, 1_132_797_624_320)), (Phase::Backward, (6, 2_265_595_248_640))];
    assert_eq!(gemms(&module), BTreeMap::from(expected));
}

#[test]
fn seed_003_recomputes_and_runs_nothing_forward() {
    let Some(module) = seed("003_") else { return };
    let attribution = attribute(&module);
    let rows = module.rows().filter(|row| !module.is_implicit(*row));
    let mut counts: BTreeMap<Phase, usize> = BTreeMap::new();
    rows.for_each(|row| *counts.entry(attribution.phase[row.0 as usize]).or_default() += 1);
    assert_eq!(counts.get(&Phase::Forward), None);
    assert_eq!(counts.get(&Phase::Optimizer), None);
    assert_eq!(counts[&Phase::Recompute], 13);
    assert_eq!(counts[&Phase::Backward], 43);
}

#[test]
fn sections_between_markers_behind_calls() {
    let module = fixture("seedlike/pipeline_stage.txt.gz");
    let sections = sections(&module);
    let named: Vec<_> = sections.sections.iter().map(|s| (s.name.as_str(), s.phase)).collect();
    let expected = [
        ("layer_1", Phase::Forward),
        ("layer_1_backward", Phase::Backward),
        ("1_apply_grad", Phase::Optimizer),
    ];
    assert_eq!(named, expected);
    for section in &sections.sections {
        let end = section.end.unwrap();
        assert_eq!(module.opcode(section.start), Opcode::Call);
        assert_eq!(module.opcode(end), Opcode::Call);
        assert_eq!(sections.section_of(&module, section.start), Some(section));
        assert_eq!(sections.section_of(&module, end), Some(section));
        // A marker passes its operands on one by one.
        for user in module.users().get(end.0).iter().map(|row| Row(*row)) {
            let index: usize = std::str::from_utf8(module.attribute_bytes(user, "index").unwrap())
                .unwrap()
                .parse()
                .unwrap();
            let source = source_of(&module, user, false);
            let operand = Row(module.operands(end)[index]);
            assert_eq!(source, source_of(&module, operand, false));
            assert_ne!(module.opcode(source), Opcode::Tuple);
        }
    }
    let facts = reading::tests_folder().join("fixtures/seedlike/pipeline_stage.facts.json");
    let facts: Value = serde_json::from_slice(&reading::read(&facts)).unwrap();
    let sums = gemms(&module);
    let total: u128 = sums.values().map(|sum| sum.1).sum();
    assert_eq!(total, u128::from(facts["dot_flops"].as_u64().unwrap()));
    assert_eq!((sums[&Phase::Forward].0, sums[&Phase::Backward].0, sums.len()), (3, 6, 2));
    assert_eq!(2 * sums[&Phase::Forward].1, sums[&Phase::Backward].1);
}

#[test]
fn markers_in_the_entry_itself() {
    let text = r#"HloModule m
ENTRY %main (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  %glue = f32[] negate(%x)
  %in = (f32[], f32[]) tuple(%glue, %y)
  %start = (f32[], f32[]) custom-call(%in), custom_call_target="pipeline_marker", metadata={op_name="a_backward$start"}
  %g = f32[] get-tuple-element(%start), index=1
  %one = f32[] constant(1)
  %sum = f32[] add(%g, %one)
  %out = (f32[]) tuple(%sum)
  %end = (f32[]) custom-call(%out), custom_call_target="pipeline_marker", metadata={op_name="a_backward$end"}
  %h = f32[] get-tuple-element(%end), index=0
  ROOT %last = f32[] negate(%h)
}
"#;
    let module = parse(text);
    use Phase::*;
    let names = ["x", "glue", "in", "start", "g", "one", "sum", "out", "end", "h", "last"];
    let (no, back) = (Unattributed, Backward);
    let expected = [no, no, no, back, back, back, back, back, back, no, no];
    assert_eq!(phases(&module, names), expected);
    assert_eq!(source_of(&module, find(&module, "g"), false), find(&module, "y"));
    assert_eq!(source_of(&module, find(&module, "h"), false), find(&module, "sum"));
}

#[test]
fn sources_of_values() {
    let text = r#"HloModule m
%pass (p: f32[4], q: f32[4]) -> (f32[4], f32[4]) {
  %p = f32[4] parameter(0)
  %q = f32[4] parameter(1)
  %n = f32[4] negate(%p)
  ROOT %r = (f32[4], f32[4]) tuple(%q, %n)
}
ENTRY %main (x: f32[4], y: f32[4]) -> f32[2,2] {
  %x = f32[4] parameter(0)
  %y = f32[4] parameter(1)
  %inner = (f32[4], f32[4]) tuple(%x, %y)
  %outer = ((f32[4], f32[4]), f32[4]) tuple(%inner, %x)
  %barrier = ((f32[4], f32[4]), f32[4]) opt-barrier(%outer)
  %first = (f32[4], f32[4]) get-tuple-element(%barrier), index=0
  %second = f32[4] get-tuple-element(%first), index=1
  %cast = f32[2,2] bitcast(%second)
  %called = (f32[4], f32[4]) call(%x, %second), to_apply=%pass
  %handed = f32[4] get-tuple-element(%called), index=0
  %made = f32[4] get-tuple-element(%called), index=1
  %far = f32[4] get-tuple-element(%called), index=7
  ROOT %end = f32[2,2] bitcast(%handed)
}
"#;
    let module = reading::parse_all(text.as_bytes()).unwrap();
    let source = |name, bitcasts| {
        let row = source_of(&module, find(&module, name), bitcasts);
        String::from_utf8_lossy(module.instruction_name(row)).into_owned()
    };
    assert_eq!(source("second", false), "y");
    assert_eq!(source("first", false), "inner");
    assert_eq!(source("cast", false), "cast");
    assert_eq!(source("cast", true), "y");
    assert_eq!(source("handed", false), "y");
    assert_eq!(source("end", true), "y");
    assert_eq!(source("made", false), "made");
    assert_eq!(source("far", false), "far");
    assert_eq!(source("x", false), "x");
}

/// Old JAX: a loop whose state holds a cotangent next to the inputs of the recompute.
#[test]
fn the_flow_of_cotangents_through_loops_fusions_and_barriers() {
    let text = r#"HloModule m
%fused (a: f32[4], b: f32[4]) -> (f32[4], f32[4]) {
  %a = f32[4] parameter(0)
  %b = f32[4] parameter(1)
  %again = f32[4] sine(%a), metadata={op_name="jit(f)/transpose(jvp(M))/remat(core)/sin"}
  %product = f32[4] multiply(%again, %b), metadata={op_name="jit(f)/transpose(jvp(M))/remat(core)/mul"}
  ROOT %both = (f32[4], f32[4]) tuple(%again, %product)
}
%body (s: (f32[4], f32[4])) -> (f32[4], f32[4]) {
  %s = (f32[4], f32[4]) parameter(0)
  %saved = f32[4] get-tuple-element(%s), index=0
  %carry = f32[4] get-tuple-element(%s), index=1
  %held = (f32[4], f32[4]) tuple(%saved, %carry)
  %barrier = (f32[4], f32[4]) opt-barrier(%held), metadata={op_name="jit(f)/transpose(jvp(M))/remat(core)/optimization_barrier"}
  %saved2 = f32[4] get-tuple-element(%barrier), index=0
  %carry2 = f32[4] get-tuple-element(%barrier), index=1
  %cosine = f32[4] cosine(%saved2), metadata={op_name="jit(f)/transpose(jvp(M))/remat(core)/cos"}
  %both = (f32[4], f32[4]) fusion(%cosine, %carry2), kind=kLoop, calls=%fused
  %left = f32[4] get-tuple-element(%both), index=0
  %right = f32[4] get-tuple-element(%both), index=1
  %used = f32[4] negate(%left), metadata={op_name="jit(f)/transpose(jvp(M))/remat(core)/neg"}
  %next = f32[4] negate(%right), metadata={op_name="jit(f)/transpose(jvp(M))/remat(core)/neg"}
  ROOT %result = (f32[4], f32[4]) tuple(%used, %next)
}
%condition (c: (f32[4], f32[4])) -> pred[] {
  %c = (f32[4], f32[4]) parameter(0)
  ROOT %go = pred[] constant(false)
}
ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  %mask = f32[4] negate(%x), metadata={op_name="jit(f)/neg"}
  %rate = f32[4] negate(%x), metadata={op_name="jit(f)/rate"}
  %alone = f32[4] negate(%x), metadata={op_name="jit(f)/alone"}
  %primal = f32[4] sine(%mask), metadata={op_name="jit(f)/jvp(M)/sin"}
  %seed = f32[4] cosine(%primal), metadata={op_name="jit(f)/transpose(jvp(M))/cos"}
  %state = (f32[4], f32[4]) tuple(%mask, %seed)
  %loop = (f32[4], f32[4]) while(%state), condition=%condition, body=%body, metadata={op_name="jit(f)/transpose(jvp(M))/while"}
  %kept = f32[4] get-tuple-element(%loop), index=0
  %gradient = f32[4] get-tuple-element(%loop), index=1
  %metric = f32[4] negate(%kept), metadata={op_name="jit(f)/metric"}
  %scaled = f32[4] multiply(%gradient, %rate), metadata={op_name="jit(f)/mul"}
  ROOT %update = f32[4] add(%scaled, %alone), metadata={op_name="jit(f)/add"}
}
"#;
    let module = parse(text);
    use Phase::*;
    let inside = ["again", "product", "cosine", "used", "next"];
    let expected = [Recompute, Backward, Recompute, Recompute, Backward];
    assert_eq!(phases(&module, inside), expected);
    let outside = ["mask", "rate", "alone", "primal", "seed", "metric", "scaled", "update"];
    let expected =
        [Forward, Optimizer, Optimizer, Forward, Backward, Forward, Optimizer, Optimizer];
    assert_eq!(phases(&module, outside), expected);
}

/// XLA's rewriting moves the name of a matmul to the next instruction.
#[test]
fn products_without_a_name_go_by_their_neighbours() {
    let text = r#"HloModule m
%fused (a: f32[4,4], b: f32[4,4]) -> f32[4,4] {
  %a = f32[4,4] parameter(0)
  %b = f32[4,4] parameter(1)
  ROOT %inner = f32[4,4] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY %main (x: f32[4,4]) -> (f32[4,4], f32[4,4], f32[4,4]) {
  %x = f32[4,4] parameter(0)
  %first = f32[4,4] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %moved = f32[4,4] copy(%first)
  %again = f32[4,4] sine(%moved), metadata={op_name="jit(f)/transpose(jvp())/checkpoint/rematted_computation/sin"}
  %fusion = f32[4,4] fusion(%again, %moved), kind=kCustom, calls=%fused
  %turned = f32[4,4] transpose(%fusion), dimensions={1,0}, metadata={op_name="jit(f)/transpose(jvp())/dot_general"}
  %late = f32[4,4] multiply(%turned, %moved), metadata={op_name="jit(f)/transpose(jvp())/mul"}
  %lost = f32[4,4] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %last = f32[4,4] dot(%late, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %result = (f32[4,4], f32[4,4], f32[4,4]) tuple(%late, %lost, %last)
}
"#;
    let module = parse(text);
    use Phase::*;
    let names = ["first", "moved", "inner", "fusion", "last", "lost"];
    let expected = [Recompute, Unattributed, Backward, Backward, Backward, Unattributed];
    assert_eq!(phases(&module, names), expected);
    let mut inferred = ["inner", "first", "fusion", "last"].map(|name| find(&module, name).0);
    inferred.sort();
    assert_eq!(attribute(&module).inferred, inferred);
}

#[test]
fn every_product_of_a_fixture_with_names_has_a_phase() {
    let mut products = BTreeMap::new();
    for (name, source) in reading::modules() {
        let Ok(module) = hlofast::parse(source, &hlofast::Options::default()) else { continue };
        if module.metadata_columns().op_names.is_empty() {
            continue;
        }
        let attribution = attribute(&module);
        for (id, node) in attribution.contexts.nodes.iter().enumerate() {
            for row in module.computation(node.computation).rows().map(Row) {
                let opcode = module.opcode(row);
                if !matches!(opcode, Opcode::Dot | Opcode::Convolution) {
                    continue;
                }
                let phase =
                    attribution.phase[attribution.contexts.position(&module, id as u32, row)];
                let row = String::from_utf8_lossy(module.instruction_name(row)).into_owned();
                assert_ne!(phase, Phase::Unattributed, "{name}: {row}");
                *products.entry(phase).or_insert(0) += 1;
            }
        }
    }
    assert!(products[&Phase::Forward] > 100, "{products:?}");
    assert!(products[&Phase::Backward] > products[&Phase::Forward], "{products:?}");
    assert!(products[&Phase::Recompute] > 10, "{products:?}");
}

/// The matmuls of a step keep their phases when XLA optimises it.
#[test]
fn products_have_the_same_phases_before_and_after_optimisation() {
    let counts = |path: &str| {
        let module = fixture(path);
        let attribution = attribute(&module);
        let mut counts: BTreeMap<Phase, usize> = BTreeMap::new();
        for row in module.rows().filter(|row| module.opcode(*row) == Opcode::Dot) {
            *counts.entry(attribution.phase[row.0 as usize]).or_default() += 1;
        }
        counts
    };
    let before = counts("dumps/cpu_train_step.before.txt.gz");
    assert_eq!(before, counts("dumps/cpu_train_step.after.txt.gz"));
    assert_eq!(before, counts("dumps/cpu_train_step.partitioned.txt.gz"));
    assert!(before[&Phase::Backward] > before[&Phase::Forward], "{before:?}");
}

/// Many calls of one computation whose arguments differ, and results with very many leaves.
#[test]
fn wide_and_often_called_texts_end_in_time() {
    let elements = 400;
    let list =
        |item: &dyn Fn(usize) -> String| (0..elements).map(item).collect::<Vec<_>>().join(", ");
    let shape = format!("({})", list(&|_| "f32[]".to_string()));
    let mut text = String::from("HloModule m\n");
    text += &format!("%pass (s: {shape}) -> {shape} {{\n  ROOT %s = {shape} parameter(0)\n}}\n");
    text += &format!("ENTRY %main (x: f32[]) -> {shape} {{\n  %x = f32[] parameter(0)\n");
    text += "  %ct = f32[] negate(%x), metadata={op_name=\"jit(f)/transpose(jvp())/neg\"}\n";
    for call in 0..elements {
        let item = |at: usize| if at == call { "%ct".to_string() } else { "%x".to_string() };
        text += &format!("  %t{call} = {shape} tuple({})\n", list(&item));
        text += &format!("  %c{call} = {shape} call(%t{call}), to_apply=%pass\n");
    }
    text += &format!("  %g = f32[] get-tuple-element(%c{}), index=0\n", elements - 1);
    text += "  %u = f32[] negate(%g), metadata={op_name=\"jit(f)/update\"}\n";
    text += &format!("  ROOT %r = {shape} tuple({})\n}}\n", list(&|_| "%u".to_string()));
    let module = parse(&text);
    assert_eq!(phases(&module, ["ct", "u"]), [Phase::Backward, Phase::Optimizer]);
}

#[test]
fn no_readable_text_is_too_odd() {
    let mut modules = 0;
    for probe in reading::probes() {
        let Ok(module) = reading::parse_all(probe.text.as_bytes()) else { continue };
        modules += 1;
        reading::with_context(&probe.id, probe.text.as_bytes(), || {
            let attribution = attribute(&module);
            assert_eq!(attribution.phase.len(), attribution.contexts.positions);
            assert_eq!(attribution.scope.len(), attribution.contexts.positions);
            for row in module.rows() {
                let source = source_of(&module, row, true);
                assert_eq!(module.computation_of(source), module.computation_of(row));
            }
        });
    }
    assert!(modules > 1000);
}
