//! Contexts of called computations, multiplicities, scopes and phases by name.

use crate::support::reading;
use hlofast::flow::{
    Attribution, AttributionOptions, Contexts, Phase, Rules, ScopeTree, attribution, multiplicities,
};
use hlofast::ir::{Module, Row};

fn parse(text: &str) -> Module {
    reading::parse(text.as_bytes()).unwrap()
}

fn attribute(module: &Module) -> Attribution {
    attribution(module, &AttributionOptions::default())
}

fn find(module: &Module, name: &str) -> Row {
    Row(module.find_instructions(name.as_bytes())[0])
}

/// Path and phase of the row `name` in each context of its computation.
fn contexts_of(module: &Module, attribution: &Attribution, name: &str) -> Vec<(String, Phase)> {
    let row = find(module, name);
    let nodes = attribution.contexts.nodes_of(module.computation_of(row));
    nodes
        .map(|node| {
            let at = attribution.contexts.position(module, node, row);
            let path = attribution.scopes.path(module, attribution.scope[at]);
            (String::from_utf8(path).unwrap(), attribution.phase[at])
        })
        .collect()
}

fn column(module: &Module, attribution: &Attribution, name: &str) -> Phase {
    attribution.phase[find(module, name).0 as usize]
}

/// A function shared by forward and backward, as JAX lowers it.
const SHARED: &str = r#"HloModule jit_step

%add (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %applied = f32[] add(%p, %q), metadata={op_name="reduce_sum"}
}

%where (w: f32[4]) -> f32[4] {
  %w = f32[4] parameter(0)
  ROOT %select = f32[4] negate(%w), metadata={op_name="select_n"}
}

%silu (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  %exp = f32[4] exponential(%x), metadata={op_name="exp"}
  ROOT %inner = f32[4] call(%exp), to_apply=%where, metadata={op_name="jit(_where)"}
}

%body (s: f32[4]) -> f32[4] {
  %s = f32[4] parameter(0)
  %t = f32[4] call(%s), to_apply=%silu, metadata={op_name="jit(step)/jvp()/while/body/closed_call"}
  ROOT %u = f32[4] negate(%t), metadata={op_name="while/body/neg"}
}

%condition (c: f32[4]) -> pred[] {
  %c = f32[4] parameter(0)
  ROOT %go = pred[] constant(false)
}

%unreached (z: f32[4]) -> f32[4] {
  %z = f32[4] parameter(0)
  ROOT %lost = f32[4] negate(%z), metadata={op_name="jit(step)/jvp()/neg"}
}

ENTRY %main (a: f32[4]) -> f32[] {
  %a = f32[4] parameter(0), metadata={op_name="params['w']"}
  %f = f32[4] call(%a), to_apply=%silu, metadata={op_name="jit(step)/jvp(M)/jit(silu)"}
  %b = f32[4] call(%f), to_apply=%silu, metadata={op_name="jit(step)/transpose(jvp(M))/jit(silu)"}
  %g = f32[4] while(%b), condition=%condition, body=%body, metadata={op_name="jit(step)/jvp()/while"}
  %zero = f32[] constant(0)
  ROOT %sum = f32[] reduce(%g, %zero), dimensions={0}, to_apply=%add, metadata={op_name="jit(step)/jvp()/reduce_sum"}
}
"#;

#[test]
fn a_shared_function_belongs_to_each_of_its_callers() {
    let module = parse(SHARED);
    let attribution = attribute(&module);
    let mut contexts = contexts_of(&module, &attribution, "exp");
    contexts.sort();
    let expected = [
        ("jit(step)/jvp()/while/body/closed_call/exp", Phase::Forward),
        ("jit(step)/jvp(M)/jit(silu)/exp", Phase::Forward),
        ("jit(step)/transpose(jvp(M))/jit(silu)/exp", Phase::Backward),
    ];
    assert_eq!(contexts, expected.map(|(path, phase)| (path.to_string(), phase)));
    // `jit(_where)` looks like a complete name but continues its callers'.
    let mut contexts = contexts_of(&module, &attribution, "select");
    contexts.sort();
    let expected = [
        ("jit(step)/jvp()/while/body/closed_call/jit(_where)/select_n", Phase::Forward),
        ("jit(step)/jvp(M)/jit(silu)/jit(_where)/select_n", Phase::Forward),
        ("jit(step)/transpose(jvp(M))/jit(silu)/jit(_where)/select_n", Phase::Backward),
    ];
    assert_eq!(contexts, expected.map(|(path, phase)| (path.to_string(), phase)));
}

#[test]
fn a_loop_body_is_a_part_of_the_function_around_it() {
    let module = parse(SHARED);
    let attribution = attribute(&module);
    let names = contexts_of(&module, &attribution, "u");
    assert_eq!(names, [("while/body/neg".to_string(), Phase::Unattributed)]);
    // A computation applied to elements has one context, named like its caller.
    let names = contexts_of(&module, &attribution, "applied");
    assert_eq!(names, [("jit(step)/jvp()/reduce_sum".to_string(), Phase::Forward)]);
    let names = contexts_of(&module, &attribution, "a");
    assert_eq!(names, [("params['w']".to_string(), Phase::Unattributed)]);
}

#[test]
fn multiplicities_multiply_along_call_paths() {
    let module = parse(SHARED);
    let calls = module.all_calls();
    let times = |trips: Option<u64>| {
        move |call: usize| match calls[call].role.as_str() {
            "body" => trips,
            "condition" => trips.and_then(|n| n.checked_add(1)),
            _ => Some(1),
        }
    };
    let count = |contexts: &Contexts, trips: Option<u64>, row: &str| {
        let counts = multiplicities(contexts, times(trips));
        let nodes = contexts.nodes_of(module.computation_of(find(&module, row)));
        let mut counts: Vec<_> = nodes.map(|node| counts[node as usize]).collect();
        counts.sort();
        counts
    };
    let named = attribute(&module).contexts;
    let plain = Contexts::plain(&module);
    assert_eq!(plain.nodes.len(), module.computations().len());
    assert_eq!(count(&named, Some(7), "exp"), [Some(1), Some(1), Some(7)]);
    assert_eq!(count(&plain, Some(7), "exp"), [Some(9)]);
    assert_eq!(count(&plain, Some(7), "go"), [Some(8)]);
    assert_eq!(count(&plain, Some(7), "lost"), [Some(0)]);
    assert_eq!(count(&plain, None, "exp"), [None]);
    assert_eq!(count(&plain, None, "lost"), [Some(0)]);
    assert_eq!(count(&plain, Some(u64::MAX), "exp"), [None]);
    assert_eq!(count(&plain, Some(u64::MAX - 2), "exp"), [Some(u64::MAX)]);
    for contexts in [&named, &plain] {
        assert!(contexts.edges.iter().all(|edge| edge.caller < edge.callee));
        assert!(contexts.edges.is_sorted_by_key(|edge| edge.caller));
        let entry = contexts.nodes[0];
        assert_eq!((entry.computation, entry.prefix), (module.entry(), ScopeTree::ROOT));
    }
}

#[test]
fn calls_in_a_cycle_end() {
    let text = r#"HloModule m
%one (x: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  ROOT %c = f32[] call(%x), to_apply=%two, metadata={op_name="a"}
}
%two (y: f32[]) -> f32[] {
  %y = f32[] parameter(0)
  ROOT %d = f32[] call(%y), to_apply=%one, metadata={op_name="b"}
}
ENTRY %main (z: f32[]) -> f32[] {
  %z = f32[] parameter(0)
  ROOT %e = f32[] call(%z), to_apply=%one, metadata={op_name="jit(f)/jvp()/c"}
}
"#;
    // The reader rejects such a text; when collecting errors, it drops the call that closes the
    // cycle.
    assert!(reading::parse(text.as_bytes()).is_err());
    let module = reading::parse_all(text.as_bytes()).unwrap();
    let attribution = attribute(&module);
    let counts = multiplicities(&attribution.contexts, |_| Some(1));
    assert_eq!(counts, [Some(1), Some(1), Some(1)]);
}

/// An entry that calls `level0`, after the computations in `text`.
fn with_entry(text: &str) -> String {
    format!(
        r#"HloModule m
{text}ENTRY %main (x: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  ROOT %y = f32[] call(%x), to_apply=%level0, metadata={{op_name="jit(f)/jvp()/c"}}
}}
"#
    )
}

/// Computations that call the next one twice each, with different names.
fn doubling(levels: usize) -> String {
    let mut text = String::new();
    for level in (0..levels).rev() {
        let next = level + 1;
        let body = if next == levels {
            r#"  ROOT %y = f32[] negate(%x), metadata={op_name="neg"}"#.to_string()
        } else {
            format!(
                r#"  %a = f32[] call(%x), to_apply=%level{next}, metadata={{op_name="a"}}
  ROOT %b = f32[] call(%a), to_apply=%level{next}, metadata={{op_name="b"}}"#
            )
        };
        text += &format!(
            "%level{level} (x: f32[]) -> f32[] {{\n  %x = f32[] parameter(0)\n{body}\n}}\n"
        );
    }
    with_entry(&text)
}

#[test]
fn contexts_that_double_are_merged_in_time() {
    let module = parse(&doubling(10));
    let attribution = attribute(&module);
    assert_eq!(attribution.contexts.nodes.len(), 1 + (1 << 10) - 1);
    assert!(!attribution.contexts.is_merged);
    let module = parse(&doubling(60));
    let attribution = attribute(&module);
    assert!(attribution.contexts.is_merged);
    assert_eq!(attribution.contexts.nodes.len(), module.computations().len());
    assert_eq!(attribution.phase.len(), module.row_count());
    let counts = multiplicities(&attribution.contexts, |_| Some(1));
    assert_eq!(counts.last(), Some(&Some(1 << 59)));
}

#[test]
fn a_long_chain_of_calls_does_not_grow_names_without_bound() {
    let mut text = String::new();
    let name = "n".repeat(100);
    for level in (0..3000).rev() {
        let call = format!("call(%x), to_apply=%level{}", level + 1);
        let operation = if level == 2999 { "negate(%x)" } else { &call };
        text += &format!("%level{level} (x: f32[]) -> f32[] {{\n  %x = f32[] parameter(0)\n");
        text += &format!("  ROOT %y = f32[] {operation}, metadata={{op_name=\"{name}\"}}\n}}\n");
    }
    let text = with_entry(&text);
    let module = parse(&text);
    let attribution = attribute(&module);
    assert!(attribution.phase.iter().filter(|phase| **phase == Phase::Forward).count() >= 3000);
    let longest =
        (0..attribution.scopes.len() as u32).map(|id| attribution.scopes.path(&module, id).len());
    assert!(longest.max().unwrap() < 5000);
}

/// An entry whose rows have the given names.
fn named_rows(names: &[&str]) -> String {
    let mut text = String::from("HloModule m\nENTRY %main (x: f32[]) -> f32[] {\n");
    text += "  %x = f32[] parameter(0)\n";
    for (index, name) in names.iter().enumerate() {
        let root = if index + 1 == names.len() { "ROOT " } else { "" };
        text += &format!("  {root}%r{index} = f32[] negate(%x), metadata={{op_name=\"{name}\"}}\n");
    }
    text + "}\n"
}

fn phases(names: &[&str]) -> Vec<Phase> {
    let module = parse(&named_rows(names));
    attribute(&module).phase[1..].to_vec()
}

#[test]
fn phases_by_name() {
    use Phase::*;
    let cases = [
        ("jit(f)/jit(main)/jvp(M)/layer/mul", Forward),
        ("jit(f)/transpose(jvp(M))/layer/mul", Backward),
        ("jit(f)/vmap(transpose(jvp(M)))/mul", Backward),
        ("jit(f)/transpose(jvp(checkpoint))/rematted_computation/mul", Recompute),
        ("jit(f)/transpose(jvp())/while/body/checkpoint/rematted_computation/mul", Recompute),
        ("jit(f)/transpose(jvp())/checkpoint/mul", Backward),
        ("jit(f)/jvp()/checkpoint/mul", Forward),
        ("jit(f)/transpose(jvp())/remat2", Backward),
        ("jit(f)/jit(main)/remat2", Unattributed),
        ("jit(f)/jvp()/transpose[permutation=(1, 0)]", Forward),
        ("jit(f)/jvp()/reshape;jit(f)/transpose(jvp())/mul", Forward),
        ("jit(f)/(transpose(jvp())/reduce_sum:reduce_sum)", Backward),
        ("jit(f)/(jvp(M)/a/mul:transpose(jvp())/mul)", Forward),
        ("jit(f)/transpose(jvp(rematted_computation))/mul", Recompute),
        ("broadcast.5;jit(f)/transpose(jvp())/mul", Backward),
        ("aten__mm.12", Unattributed),
        ("model/dense/MatMul", Unattributed),
        ("", Unattributed),
        ("/add", Unattributed),
        ("jit(f", Unattributed),
        ("transpose(", Backward),
    ];
    let names: Vec<&str> = cases.iter().map(|(name, _)| *name).collect();
    for ((name, expected), phase) in cases.iter().zip(phases(&names)) {
        assert_eq!(phase, *expected, "{name}");
    }
    // Without backward work, undifferentiated work is the program itself.
    assert_eq!(phases(&["jit(f)/mul", "aten__mm"]), [Forward, Unattributed]);
    assert_eq!(phases(&["jit(f)/mul", "jit(f)/jvp()/sin"]), [Forward, Forward]);
}

#[test]
fn scopes_are_paths_of_components_outside_brackets() {
    let module = parse(&named_rows(&[
        "jit(f)/jvp(a/b)/dot_general[x=(1/2)]",
        "jit(f)/jvp(a/b)/sin",
        "jit(f)//jvp(a/b)/",
        "jit(f)/jvp(a/b",
    ]));
    let attribution = attribute(&module);
    let tree = &attribution.scopes;
    let component = |scope| String::from_utf8_lossy(tree.component(&module, scope)).into_owned();
    let [first, second, third, fourth] = attribution.scope[1..] else { panic!("four rows") };
    assert_eq!(component(first), "dot_general[x=(1/2)]");
    assert_eq!((tree.depth(first), tree.depth(third), tree.depth(fourth)), (3, 2, 2));
    assert_eq!(tree.parent(first), third);
    assert_eq!(tree.at_depth(second, 2), third);
    assert_eq!(tree.at_depth(second, 9), second);
    assert_eq!(tree.at_depth(second, 0), ScopeTree::ROOT);
    assert_eq!(component(fourth), "jvp(a/b");
    assert_eq!(tree.path(&module, second), b"jit(f)/jvp(a/b)/sin");
    assert_eq!(tree.all_at_depth(2)[first as usize], third);
    assert_eq!(attribution.scope[0], ScopeTree::ROOT);
}

#[test]
fn rules_come_first() {
    let module = parse(&named_rows(&["aten__mm.1", "jit(f)/transpose(jvp())/mul", "adam/mul"]));
    let rules =
        [("^aten__", Phase::Forward), ("adam/", Phase::Optimizer), ("mul$", Phase::Forward)];
    let options = AttributionOptions { rules: Rules::new(rules).unwrap() };
    let attribution = attribution(&module, &options);
    assert_eq!(attribution.phase[1..], [Phase::Forward, Phase::Forward, Phase::Optimizer]);
    let error = Rules::new([("a", Phase::Forward), ("(", Phase::Forward)]).unwrap_err();
    assert_eq!(error.index, 1);
    assert!(error.to_string().starts_with("rule 1: "), "{error}");
    for phase in Phase::ALL {
        assert_eq!(Phase::from_word(phase.as_str()), Some(phase));
    }
}

#[test]
fn a_fusion_without_a_name_goes_by_its_root() {
    let text = r#"HloModule m
%fused (p: f32[4]) -> (f32[4], f32[4]) {
  %p = f32[4] parameter(0)
  %n = f32[4] negate(%p)
  %e = f32[4] exponential(%p), metadata={op_name="jit(f)/transpose(jvp())/exp"}
  ROOT %both = (f32[4], f32[4]) tuple(%n, %e)
}
ENTRY %main (x: f32[4]) -> (f32[4], f32[4]) {
  %x = f32[4] parameter(0)
  %s = f32[4] sine(%x), metadata={op_name="jit(f)/jvp()/sin"}
  ROOT %fusion = (f32[4], f32[4]) fusion(%s), kind=kLoop, calls=%fused
}
"#;
    let module = parse(text);
    let attribution = attribute(&module);
    assert_eq!(column(&module, &attribution, "fusion"), Phase::Backward);
    assert_eq!(column(&module, &attribution, "n"), Phase::Unattributed);
    assert_eq!(
        attribution.scope[find(&module, "fusion").0 as usize],
        attribution.scope[find(&module, "e").0 as usize]
    );
}

#[test]
fn every_fixture_has_one_place_for_every_row_and_node() {
    let modules = reading::modules();
    let parsed = modules.into_iter().filter_map(|(name, source)| {
        Some((name, hlofast::parse(source, &hlofast::Options::default()).ok()?))
    });
    let parsed: Vec<(String, Module)> = parsed.collect();
    assert!(parsed.len() > 20);
    for (name, module) in parsed {
        let attribution = attribute(&module);
        let contexts = &attribution.contexts;
        assert_eq!(attribution.phase.len(), contexts.positions, "{name}");
        let mut is_taken = vec![false; contexts.positions];
        for (id, node) in contexts.nodes.iter().enumerate() {
            for row in module.computation(node.computation).rows() {
                let at = contexts.position(&module, id as u32, Row(row));
                assert!(!std::mem::replace(&mut is_taken[at], true), "{name}");
                if contexts.first_node(node.computation) == id as u32 {
                    assert_eq!(at, row as usize, "{name}");
                }
            }
        }
        assert!(is_taken.iter().all(|taken| *taken), "{name}");
        let counts = multiplicities(contexts, |_| Some(1));
        for (node, count) in counts.iter().enumerate() {
            let is_run = count.is_some_and(|count| count > 0);
            assert_eq!(is_run, contexts.is_reached(node as u32), "{name}");
        }
    }
}
