//! Collectives and findings of hostile texts: bounded work, nothing lost.

use hlofast::Analyses;
use hlofast::comms::{Collectives, Moved};
use hlofast::ir::Module;
use hlofast::lint::Findings;
use hlofast::text::Source;
use std::fmt::Write;

const ADD: &str = "HloModule m, num_partitions=4, is_scheduled=true\n\nadd {\n  \
                   x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  \
                   ROOT s = f32[] add(x, y)\n}\n\n";
const GROUPS: &str =
    "channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=add";

fn read(text: &str) -> (Module, Collectives, Findings) {
    let source = Source::from_slice(text.as_bytes());
    let module = hlofast::parse(source, &hlofast::Options::default()).unwrap();
    let analyses = Analyses::new(&module);
    let (all, lint) = (Collectives::clone(analyses.collectives()), analyses.lint().clone());
    (module, all, lint)
}

/// Executions of each collective, all phases together.
fn executions(all: &Collectives) -> Vec<i64> {
    let of = |entries: &[hlofast::cost::PhaseExecutions]| {
        entries.iter().map(|entry| entry.count.unwrap()).sum()
    };
    all.collectives.iter().map(|collective| of(&collective.executions)).collect()
}

/// A computation with one parameter and the body `lines`, whose last line is the root.
fn computation(head: &str, lines: &[String]) -> String {
    let mut text = format!("{head} {{\n  p = f32[4] parameter(0)\n");
    for (index, line) in lines.iter().enumerate() {
        let root = if index + 1 == lines.len() { "ROOT " } else { "" };
        let _ = writeln!(text, "  {root}{line}");
    }
    text + "}\n\n"
}

fn all_reduce(name: &str, of: &str) -> String {
    format!("{name} = f32[4] all-reduce({of}), {GROUPS}")
}

fn fusions(count: usize, of: &str) -> Vec<String> {
    (0..count)
        .map(|number| format!("f{number} = f32[4] fusion(p), kind=kLoop, calls={of}"))
        .collect()
}

fn reduced() -> String {
    computation("c0", &[all_reduce("a", "p")])
}

#[test]
fn fusions_in_fusions_multiply() {
    // 64^8 executions of one collective.
    let mut text = ADD.to_owned() + &reduced();
    for level in 1..=8 {
        text += &computation(&format!("c{level}"), &fusions(64, &format!("c{}", level - 1)));
    }
    text += &computation("ENTRY e", &fusions(1, "c8"));
    let (_, all, _) = read(&text);
    assert_eq!(executions(&all), [1 << 48]);
}

#[test]
fn deep_nests_are_not_lost() {
    let mut text = ADD.to_owned() + &reduced();
    for level in 1..=40 {
        text += &computation(&format!("c{level}"), &fusions(1, &format!("c{}", level - 1)));
    }
    text += &computation("ENTRY e", &fusions(1, "c40"));
    let (_, all, _) = read(&text);
    assert_eq!(executions(&all), [1]);
}

#[test]
fn every_way_of_calling_counts() {
    // Called by a fusion and by a call: two executions.
    let lines = ["f = f32[4] fusion(p), kind=kLoop, calls=c0", "g = f32[4] call(f), to_apply=c0"];
    let entry = computation("ENTRY e", &lines.map(str::to_owned));
    let (_, all, _) = read(&(ADD.to_owned() + &reduced() + &entry));
    assert_eq!(executions(&all).iter().sum::<i64>(), 2);
    // Reached twice from one fusion.
    let twice = computation("c1", &fusions(2, "c0"));
    let entry = computation("ENTRY e", &fusions(1, "c1"));
    let (_, all, _) = read(&(ADD.to_owned() + &reduced() + &twice + &entry));
    assert_eq!(executions(&all).iter().sum::<i64>(), 2);
}

#[test]
fn many_collectives_at_many_places() {
    let lines: Vec<String> =
        (0..3000).map(|number| all_reduce(&format!("a{number}"), "p")).collect();
    let entry = computation("ENTRY e", &fusions(3000, "c0"));
    let (_, all, _) = read(&(ADD.to_owned() + &computation("c0", &lines) + &entry));
    assert_eq!(executions(&all), [3000; 3000]);
}

#[test]
fn a_shared_concatenation() {
    const COUNT: usize = 3000;
    let mut lines = vec![format!(
        "c = f32[{}] concatenate({}), dimensions={{0}}",
        4 * COUNT,
        vec!["p"; COUNT].join(", ")
    )];
    let of = |number| format!("a{number} = f32[{}] all-reduce(c), {GROUPS}", 4 * COUNT);
    lines.extend((0..COUNT).map(of));
    let (module, all, _) = read(&(ADD.to_owned() + &computation("ENTRY e", &lines)));
    // The arrays listed are bounded by the text, but the bytes of each collective are complete.
    assert!(all.pieces.len() <= 2 * module.columns().operands.len() + COUNT);
    for collective in &all.collectives {
        let pieces = &all.pieces[collective.pieces.start as usize..collective.pieces.end as usize];
        let sum: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        assert_eq!(Some(sum), collective.payload_in);
        let is_apart = pieces.len() == COUNT;
        assert_eq!(collective.moved, if is_apart { Moved::Weight } else { Moved::Other });
    }
    assert_eq!(all.collectives[0].moved, Moved::Weight);
}

#[test]
fn a_chain_with_a_collective_at_every_link() {
    let mut lines = Vec::new();
    let mut last = "p".to_owned();
    for number in 0..100_000 {
        lines.push(format!("b{number} = f32[4] copy({last})"));
        last = format!("b{number}");
        lines.push(all_reduce(&format!("a{number}"), &last));
    }
    let (_, all, _) = read(&(ADD.to_owned() + &computation("ENTRY e", &lines)));
    assert_eq!(all.collectives.len(), 100_000);
    assert_eq!(all.collectives[0].moved, Moved::Weight);
    // Values beyond the step limit are not guessed.
    assert_eq!(all.collectives[99_999].moved, Moved::Other);
}

/// Each link in a loop belongs to the one chain in flight around the loop. Comparing every link with
/// every start of a chain would be 4·10^8 comparisons.
#[test]
fn a_chain_that_starts_often_with_links_in_loops() {
    const COUNT: usize = 20_000;
    let gather = "f32[4] all-gather(p), channel_id=1, replica_groups={{0},{1},{2},{3}}, \
                  dimensions={0}, frontend_attributes={chain_id=\"7\"}, \
                  backend_config={\"async_collective_fusion_config\":{}}";
    let link = |name: &str, target: &str| {
        let mut lines = vec![format!("g = {gather}")];
        if !target.is_empty() {
            lines.push(format!("c = f32[4] custom-call(g), custom_call_target=\"{target}\""));
        }
        computation(name, &lines)
    };
    let fusion =
        |name: String, calls: &str| format!("{name} = f32[4] fusion(p), kind=kLoop, calls={calls}");
    let body: Vec<String> = (0..COUNT).map(|at| fusion(format!("m{at}"), "middle")).collect();
    let mut middles = String::new();
    let mut links = Vec::new();
    // Beyond the limit on call sites a fused collective counts once: 64 call sites each.
    for (part, lines) in body.chunks(64).enumerate() {
        middles += &link(&format!("middle{part}"), "");
        links.extend(lines.iter().map(|line| line.replace("middle", &format!("middle{part}"))));
    }
    let mut entry = Vec::new();
    let (mut starts, mut ends) = (String::new(), String::new());
    for at in 0..COUNT {
        let part = at / 64;
        if at % 64 == 0 {
            starts += &link(&format!("start{part}"), "AsyncCollectiveStart");
            ends += &link(&format!("end{part}"), "AsyncCollectiveDone");
        }
        entry.push(fusion(format!("s{at}"), &format!("start{part}")));
        if at + 1 == COUNT {
            entry.push("w = f32[4] while(p), condition=condition, body=body".to_owned());
        }
        entry.push(fusion(format!("d{at}"), &format!("end{part}")));
    }
    let condition = computation("condition", &["k = pred[] constant(true)".to_owned()]);
    let text = [
        ADD,
        &starts,
        &middles,
        &ends,
        &computation("body", &links),
        &condition,
        &computation("ENTRY e", &entry),
    ]
    .concat();
    let (module, all, _) = read(&text);
    assert_eq!(all.collectives.len(), COUNT);
    let name = |row| String::from_utf8_lossy(module.instruction_name(row)).into_owned();
    let last = all.collectives.last().unwrap();
    assert_eq!(name(last.outer), format!("s{}", COUNT - 1));
    assert_eq!(last.members.len(), COUNT + 2);
    assert!(all.collectives.iter().take(COUNT - 1).all(|other| other.members.len() == 2));
}

#[test]
fn states_of_one_body_in_many_loops() {
    // The body moves each element of its state to the previous one.
    const COUNT: usize = 1500;
    let element = |index| format!("g{index} = f32[4] get-tuple-element(p), index={index}");
    let mut lines: Vec<String> = (0..COUNT).map(element).collect();
    let names: Vec<String> = (1..COUNT).map(|index| format!("g{index}")).collect();
    let shape = format!("({})", vec!["f32[4]"; COUNT].join(", "));
    lines.push(format!("t = {shape} tuple({}, g0)", names.join(", ")));
    let state = |text: String| text.replace("p = f32[4]", &format!("p = {shape}"));
    let condition = state(computation("condition", &["k = pred[] constant(true)".to_owned()]));
    let mut entry: Vec<String> = (0..COUNT)
        .map(|number| format!("w{number} = ({shape}) while(p), condition=condition, body=b"))
        .map(|line| line.replace("((", "(").replace("))", ")"))
        .collect();
    entry.push("g = f32[4] get-tuple-element(w0), index=0".to_owned());
    entry.push(all_reduce("a", "g"));
    let text = ADD.to_owned()
        + &state(computation("b", &lines))
        + &condition
        + &state(computation("ENTRY e", &entry));
    let (_, all, _) = read(&text);
    assert_eq!(all.collectives[0].moved, Moved::Other);
}

#[test]
fn branches_that_share_a_computation() {
    const COUNT: usize = 20_000;
    let call = format!(
        "r = f32[4] conditional(n, {}), branch_computations={{{}}}",
        vec!["p"; COUNT].join(", "),
        vec!["c0"; COUNT].join(", ")
    );
    let lines = ["n = s32[] partition-id()".to_owned(), call];
    let (_, all, _) = read(&(ADD.to_owned() + &reduced() + &computation("ENTRY e", &lines)));
    assert_eq!(all.collectives.len(), 1);
}

#[test]
fn a_call_may_give_something_else_each_time() {
    let state = "(s32[], f32[4])";
    let findings = |callee: &str| {
        let text = format!(
            "{ADD}{}body {{\n  p = {state} parameter(0)\n  \
             i = s32[] get-tuple-element(p), index=0\n  one = s32[] constant(1)\n  \
             j = s32[] add(i, one)\n  x = f32[4] get-tuple-element(p), index=1\n  \
             y = f32[4] call(x), to_apply=callee\n  {}\n  \
             ROOT t = {state} tuple(j, x)\n}}\n\n\
             condition {{\n  p = {state} parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  \
             k = s32[] constant(9)\n  ROOT c = pred[] compare(i, k), direction=LT\n}}\n\n\
             ENTRY e {{\n  p = {state} parameter(0)\n  \
             ROOT w = {state} while(p), condition=condition, body=body\n}}\n",
            computation("callee", &[callee.to_owned()]),
            all_reduce("a", "y"),
        );
        let (_, _, lint) = read(&text);
        lint.findings.iter().map(|finding| finding.code).collect::<Vec<_>>()
    };
    assert_eq!(findings("r = f32[4] negate(p)"), ["loop-invariant-collective"]);
    assert!(findings("r = f32[4] rng(p, p), distribution=rng_uniform").is_empty());
}

#[test]
fn one_tuple_of_all_results() {
    const COUNT: usize = 20_000;
    let mut lines: Vec<String> =
        (0..COUNT).map(|number| all_reduce(&format!("a{number}"), "p")).collect();
    let names: Vec<String> = (0..COUNT).map(|number| format!("a{number}")).collect();
    let shape = format!("({})", vec!["f32[4]"; COUNT].join(", "));
    lines.push(format!("t = {shape} tuple({})", names.join(", ")));
    lines.extend(
        (0..COUNT).map(|number| format!("g{number} = f32[4] get-tuple-element(t), index={number}")),
    );
    let (_, all, _) = read(&(ADD.to_owned() + &computation("ENTRY e", &lines)));
    assert_eq!(all.collectives.len(), COUNT);
}

#[test]
fn iterations_that_are_all_alike() {
    const COUNT: usize = 20_000;
    let metadata = "metadata={op_name=\"jit(f)/while/body/psum\"}";
    let of = |number| format!("{}, {metadata}", all_reduce(&format!("a{number}"), "p"));
    let lines: Vec<String> = (0..COUNT).map(of).collect();
    let mut entry = lines.clone();
    entry.push("w = f32[4] while(p), condition=condition, body=b".to_owned());
    let condition = computation("condition", &["k = pred[] constant(true)".to_owned()]);
    let text =
        ADD.to_owned() + &computation("b", &lines) + &condition + &computation("ENTRY e", &entry);
    let (_, all, _) = read(&text);
    let peeled =
        all.collectives.iter().filter(|collective| collective.peeled_from.is_some()).count();
    assert_eq!(peeled, COUNT);
}
