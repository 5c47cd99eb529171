//! What is planned to be computed again, what is refused and why, and that new modules need at the
//! peak what was announced.

use crate::support::mutate::Random;
use crate::support::remat::{Asked, Reported, by};
use crate::support::round_trip::parse;
use crate::support::{generate, mutate};
use hlofast::ir::Module;
use hlofast::memory::{Options, Rule, memory, xla_account};
use hlofast::parse::Strictness;
use hlofast::remat::{Counting, Entry, Plan, PlanOptions, rewrite};
use hlofast::text::Source;
use std::fmt::Write;

const RULES: [Rule; 3] = [Rule::InPlace, Rule::Values, Rule::Xla];

/// The same module, read from its text as strictly as the newest XLA reads.
fn read_strictly(module: &Module) -> Module {
    let options = hlofast::Options { strictness: Strictness::Newest, ..Default::default() };
    hlofast::parse(Source::from_slice(module.text()), &options).unwrap_or_else(|error| {
        panic!("{}\n{}", error.message(), String::from_utf8_lossy(module.text()))
    })
}

/// Bytes at the peak, counted by nothing that the planner uses but the rule.
fn peak(module: &Module, rule: Rule) -> i64 {
    let options = Options { rule, ..Options::default() };
    match rule {
        Rule::Xla => xla_account(module, None).unwrap().hbm_peak(),
        _ => memory(module, &options).unwrap().peak.bytes,
    }
}

/// Every rewriting that is announced, made and counted again.
fn check(reported: &Reported, plan: &Plan, rule: Rule) {
    assert_eq!(plan.before, peak(reported.module(), rule));
    for (number, entry) in plan.entries.iter().enumerate() {
        let Some(announced) = entry.peak else {
            assert!(entry.refusal.is_some() && entry.no_saving.is_none());
            assert_eq!(entry.chosen, None);
            continue;
        };
        assert_eq!(entry.no_saving.is_some(), announced >= plan.before);
        let asked = plan.recomputes(&[number]).unwrap();
        let new = rewrite(reported.module(), &asked).unwrap().module;
        assert_eq!(peak(&read_strictly(&new), rule), announced);
    }
    let all = [plan.before].into_iter().chain(plan.steps.iter().copied());
    assert!(all.collect::<Vec<_>>().windows(2).all(|pair| pair[1] < pair[0]));
    match &plan.rewritten {
        Some(rewritten) => assert_eq!(peak(&read_strictly(&rewritten.module), rule), plan.after()),
        None => assert!(plan.steps.is_empty()),
    }
    assert_eq!(
        plan.entries.iter().filter(|entry| entry.chosen.is_some()).count(),
        plan.steps.len()
    );
}

fn entry<'a>(reported: &Reported, plan: &'a Plan, name: &str) -> &'a Entry {
    let row = reported.row(name);
    let residuals = &reported.remat().residuals;
    let is_it = |entry: &&Entry| residuals[entry.candidate.residual as usize].place.row == row;
    plan.entries.iter().find(is_it).expect(name)
}

const FORWARD: &str = r#"metadata={op_name="jit(f)/jvp()/x"}"#;
const BACKWARD: &str = r#"metadata={op_name="jit(f)/transpose(jvp())/x"}"#;
const GROUPS: &str =
    "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, use_global_device_ids=true";

/// A gather that forward code reads, a barrier that is `named`, and a late user behind it.
fn behind_barrier(layout: &str, named: &str) -> Reported {
    let (whole, shard) = (format!("f32[512,128]{layout}"), format!("f32[64,128]{layout}"));
    let text = format!(
        "HloModule m, is_scheduled=true

ENTRY %e {{
  %shard = {shard} parameter(0)
  %gather = {whole} all-gather(%shard), channel_id=1, {GROUPS}, {FORWARD}
  %early = {whole} cosine(%gather), {FORWARD}
  %inputs = ({whole}, {whole}) tuple(%gather, %early), {named}
  %barrier = ({whole}, {whole}) opt-barrier(%inputs), {named}
  %kept = {whole} get-tuple-element(%barrier), index=0, {named}
  %seed = {whole} get-tuple-element(%barrier), index=1, {named}
  %first = {whole} sine(%seed), {BACKWARD}
  %more = {whole} exponential(%first), {BACKWARD}
  %middle = {whole} add(%first, %more), {BACKWARD}
  %late = {whole} multiply(%kept, %middle), {BACKWARD}
  ROOT %last = {whole} negate(%late), {BACKWARD}
}}
"
    );
    Reported::new(parse(text.as_bytes()))
}

#[test]
fn a_late_user_behind_a_barrier_gets_a_copy() {
    let unnamed = r#"metadata={op_name="jit(f)/remat2"}"#;
    for named in [FORWARD, BACKWARD, unnamed] {
        let reported = behind_barrier("{1,0}", named);
        let plan = reported.planned(&by(Rule::InPlace));
        check(&reported, &plan, Rule::InPlace);
        let gather = entry(&reported, &plan, "gather");
        assert_eq!(gather.refusal, None, "{named}");
        assert_eq!(gather.chosen, Some(0), "{named}");
        assert!(gather.is_alive);
        assert_eq!(gather.candidate.kept_instead, 0, "the shard is a parameter");
        // While the seed is used, the gathered array is not there.
        assert_eq!(plan.before - plan.after(), 512 * 128 * 4, "{named}");
        let text = String::from_utf8_lossy(plan.rewritten.as_ref().unwrap().module.text());
        assert!(text.contains("tuple(%shard, %early)"), "{text}");
        assert!(text.contains("multiply(%gather.remat, %middle)"), "{text}");
    }
}

#[test]
fn what_is_not_in_main_memory_saves_none_of_it() {
    for (space, reason) in [(1, "kept in fast memory"), (5, "kept in host memory")] {
        let reported = behind_barrier("{1,0:T(8,128)}", FORWARD);
        let text = String::from_utf8_lossy(reported.module().text()).into_owned();
        let there = format!("{{1,0:T(8,128)S({space})}}");
        let elsewhere = |line: &str| match line {
            line if line.contains("%gather =") || line.contains("%kept =") => {
                line.replacen("{1,0:T(8,128)}", &there, 1)
            }
            line if line.contains("%inputs =") || line.contains("%barrier =") => {
                line.replacen("{1,0:T(8,128)}", &there, 1)
            }
            line => line.to_owned(),
        };
        let text: Vec<String> = text.lines().map(elsewhere).collect();
        let reported = Reported::new(parse(text.join("\n").as_bytes()));
        let plan = reported.planned(&by(Rule::InPlace));
        check(&reported, &plan, Rule::InPlace);
        let gather = entry(&reported, &plan, "gather");
        assert_eq!(gather.no_saving, Some(reason));
        assert_eq!(gather.peak, Some(plan.before));
        assert!(plan.rewritten.is_none() && !gather.is_alive);
    }
}

/// A gather that a fusion starts, one runs beside, and one ends; `late` is what ends it.
fn in_flight(started: &str, ended: &str) -> Reported {
    let (whole, shard) = ("f32[512,128]{1,0:T(8,128)}", "f32[64,128]{1,0:T(8,128)}");
    let state = format!("({shard}, {whole}, u32[]{{:S(2)}})");
    let gather = format!("channel_id=1, {GROUPS}, {started}");
    let text = format!(
        "HloModule m, is_scheduled=true

%start (p: f32[64,128]) -> (f32[64,128], f32[512,128], u32[]) {{
  %p = {shard} parameter(0)
  %g = {whole} all-gather(%p), {gather}
  ROOT %c = {state} custom-call(%g), custom_call_target=\"AsyncCollectiveStart\"
}}

%end (p.1: f32[64,128], q.1: f32[512,128], r.1: u32[]) -> f32[512,128] {{
  %p.1 = {shard} parameter(0)
  %q.1 = {whole} parameter(1)
  %r.1 = u32[]{{:S(2)}} parameter(2)
  %g.1 = {whole} all-gather(%p.1), {gather}
  ROOT %c.1 = {whole} custom-call(%g.1, %q.1, %r.1), custom_call_target=\"AsyncCollectiveDone\"
}}

ENTRY %e {{
  %other = {whole} parameter(0)
  %shard = {shard} parameter(1)
  %starting = {state} fusion(%shard), kind=kCustom, output_to_operand_aliasing={{{{0}}: (0, {{}})}}, calls=%start
  %state0 = {shard} get-tuple-element(%starting), index=0
  %state1 = {whole} get-tuple-element(%starting), index=1
  %state2 = u32[]{{:S(2)}} get-tuple-element(%starting), index=2
  %early = {whole} cosine(%other), {FORWARD}
  %gathered = {whole} fusion(%state0, %state1, %state2), kind=kCustom, output_to_operand_aliasing={{{{}}: (1, {{}})}}, calls=%end, {ended}
  %use = {whole} multiply(%gathered, %early), {ended}
  %first = {whole} sine(%use), {BACKWARD}
  %more = {whole} exponential(%first), {BACKWARD}
  %most = {whole} tanh(%first), {BACKWARD}
  %sum = {whole} add(%more, %most), {BACKWARD}
  %middle = {whole} add(%sum, %first), {BACKWARD}
  %late = {whole} multiply(%gathered, %middle), {BACKWARD}
  ROOT %last = {whole} negate(%late), {BACKWARD}
}}
"
    );
    Reported::new(parse(text.as_bytes()))
}

#[test]
fn a_gather_that_fusions_start_and_end_is_repeated_as_a_plain_one() {
    let reported = in_flight(FORWARD, FORWARD);
    for rule in RULES {
        let plan = reported.planned(&by(rule));
        check(&reported, &plan, rule);
        let gathered = entry(&reported, &plan, "gathered");
        assert_eq!((gathered.refusal.as_deref(), gathered.chosen), (None, Some(0)), "{rule:?}");
        assert_eq!(gathered.price.wire_bytes, Some(7 * 64 * 128 * 4));
        assert_eq!(gathered.price.bytes, Some((64 + 512) * 128 * 4));
        let text = String::from_utf8_lossy(plan.rewritten.as_ref().unwrap().module.text());
        assert!(
            text.contains("%gathered.remat = f32[512,128]{1,0:T(8,128)} all-gather("),
            "{text}"
        );
    }
}

#[test]
fn what_is_still_being_gathered_is_refused_with_a_reason() {
    let reported = in_flight(FORWARD, BACKWARD);
    let residuals = reported.remat().residuals.iter().filter(|residual| residual.is_in_flight);
    let residuals: Vec<_> = residuals.collect();
    assert_eq!(residuals.len(), 1);
    assert_eq!(reported.name(residuals[0].source), "g");
    assert_eq!(residuals[0].bytes, 512 * 128 * 4);
    let plan = reported.planned(&by(Rule::InPlace));
    check(&reported, &plan, Rule::InPlace);
    let reason = entry(&reported, &plan, "starting").refusal.as_deref();
    assert!(reason.unwrap().contains("still in flight"), "{reason:?}");
}

#[test]
fn the_usual_rule_is_what_one_compares_with_the_memory_of_a_device() {
    let rule = |module: &Module| Counting::usual(module, None).memory.rule;
    let tpu = behind_barrier("{1,0:T(8,128)}", FORWARD);
    assert_eq!(rule(tpu.module()), Rule::Xla);
    assert_eq!(rule(behind_barrier("{1,0}", FORWARD).module()), Rule::InPlace);
    let text = String::from_utf8_lossy(tpu.module().text()).replace(", is_scheduled=true", "");
    assert_eq!(rule(&parse(text.as_bytes())), Rule::InPlace);
    // More in fast memory than in main memory: the peak of HBM counts all the same.
    let text = String::from_utf8_lossy(tpu.module().text()).replace("T(8,128)}", "T(8,128)S(1)}");
    let fast = parse(text.as_bytes());
    assert_eq!(xla_account(&fast, None).unwrap().heap_space, 1);
    assert_eq!(rule(&fast), Rule::Xla);
    let hbm_peak = xla_account(&fast, None).unwrap().hbm_peak();
    let plan = Reported::new(fast).planned(&by(Rule::Xla));
    assert_eq!((plan.space, plan.before), (0, hbm_peak));
}

/// A training step of `layers` layers: gathered, converted or computed values, some of them behind
/// barriers, that the backward pass reads in reverse order.
fn training_step(random: &mut Random, layers: usize) -> String {
    let is_tpu = random.below(2) == 0;
    let mut one_of = |all: &[&str]| all[random.below(all.len())].to_owned();
    let plain = if is_tpu { "{1,0:T(8,128)}" } else { "{1,0}" };
    let scheduled = one_of(&[", is_scheduled=true", ", is_scheduled=true", ""]);
    let mut text = format!("HloModule m{scheduled}\n\nENTRY %e {{\n");
    let wide = format!("f32[512,128]{plain}");
    writeln!(text, "  %x0 = {wide} parameter(0)\n  %w = bf16[512,128]{plain} parameter(1)")
        .unwrap();
    let mut kept = Vec::new();
    for i in 0..layers {
        let fast =
            if is_tpu { one_of(&[plain, plain, "{1,0:T(8,128)S(1)}"]) } else { plain.into() };
        let value = format!("f32[512,128]{fast}");
        let input = format!("%x{i}");
        match one_of(&["gather", "gather", "convert", "sine"]).as_str() {
            "gather" => {
                let shard = format!("f32[64,128]{plain}");
                writeln!(
                    text,
                    "  %shard{i} = {shard} slice({input}), slice={{[0:64],[0:128]}}, {FORWARD}"
                )
                .unwrap();
                writeln!(
                    text,
                    "  %g{i} = {value} all-gather(%shard{i}), channel_id={}, {GROUPS}, {FORWARD}",
                    i + 1
                )
                .unwrap();
            }
            "convert" => writeln!(text, "  %g{i} = {value} convert(%w), {FORWARD}").unwrap(),
            _ => writeln!(text, "  %g{i} = {value} sine({input}), {FORWARD}").unwrap(),
        }
        writeln!(text, "  %x{} = {wide} multiply(%g{i}, {input}), {FORWARD}", i + 1).unwrap();
        let pair = format!("({value}, {wide})");
        match one_of(&["", "barrier", "array"]).as_str() {
            "barrier" => {
                writeln!(text, "  %t{i} = {pair} tuple(%g{i}, %x{})", i + 1).unwrap();
                writeln!(text, "  %b{i} = {pair} opt-barrier(%t{i})").unwrap();
                writeln!(text, "  %k{i} = {value} get-tuple-element(%b{i}), index=0").unwrap();
                kept.push(format!("%k{i}"));
            }
            "array" => {
                writeln!(text, "  %k{i} = {value} opt-barrier(%g{i})").unwrap();
                kept.push(format!("%k{i}"));
            }
            _ => kept.push(format!("%g{i}")),
        }
    }
    writeln!(text, "  %d{layers} = {wide} cosine(%x{layers}), {BACKWARD}").unwrap();
    for (i, value) in kept.iter().enumerate().rev() {
        writeln!(text, "  %m{i} = {wide} sine(%d{}), {BACKWARD}", i + 1).unwrap();
        writeln!(text, "  %d{i} = {wide} multiply({value}, %m{i}), {BACKWARD}").unwrap();
    }
    writeln!(text, "  ROOT %root = {wide} negate(%d0), {BACKWARD}\n}}").unwrap();
    text
}

#[test]
fn plans_hold_for_random_training_steps() {
    let (mut chosen, mut refused) = (0, 0);
    for seed in 0..120 {
        let mut random = Random(seed);
        let layers = 1 + random.below(6);
        let text = training_step(&mut random, layers);
        let reported = Reported::new(parse(text.as_bytes()));
        let rule = RULES[seed as usize % RULES.len()];
        let everything = reported.planned(&by(rule));
        check(&reported, &everything, rule);
        chosen += everything.steps.len();
        refused += everything.entries.iter().filter(|entry| entry.refusal.is_some()).count();
        // Half of what can be saved.
        let budget = (everything.before + everything.after()) / 2;
        let plan = reported.planned(&PlanOptions { budget: Some(budget), ..by(rule) });
        check(&reported, &plan, rule);
        assert_eq!(plan.fits, Some(plan.after() <= budget));
        assert!(plan.steps.len() <= everything.steps.len(), "seed {seed}");
        // What was copied is recomputed work, and no residual of its own.
        if let Some(rewritten) = everything.rewritten {
            let again = Reported::new(rewritten.module);
            for copy in &rewritten.copies {
                let row = again.row(std::str::from_utf8(&copy.name).unwrap());
                assert!(again.remat().recomputed.iter().any(|entry| entry.row == row), "{text}");
                assert!(
                    again.remat().residuals.iter().all(|residual| residual.place.row != row),
                    "{text}"
                );
            }
        }
    }
    assert!(chosen > 60 && refused > 20, "{chosen} {refused}");
}

/// Whatever the text: an answer or an error.
#[test]
fn hostile_texts_are_planned_for() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let text = match seed % 2 {
            0 => training_step(&mut random, 4),
            _ => generate::generate(seed, 12).text,
        };
        let text = mutate::mutate(text.as_bytes(), &mut random);
        let Ok(module) = hlofast::parse(Source::from_slice(&text), &hlofast::Options::default())
        else {
            continue;
        };
        let reported = Reported::new(module);
        for rule in RULES {
            let few = PlanOptions { most_measured: 8, budget: Some(1), ..by(rule) };
            let _ = reported.plan(None, &few);
        }
    }
}
