//! Values that late users see through a tuple and an optimization barrier, as openxla/xla pull
//! request 19163 has them: the late users get copies, and the barrier hands on what those are made
//! from.

use crate::support::mutate::Random;
use crate::support::round_trip::{check_round_trip, parse};
use crate::support::{mutate, symbolic};
use hlofast::ir::{Module, Opcode, Row};
use hlofast::remat::{Recompute, RewriteError, Use, rewrite};
use std::fmt::Write;

/// A module of one computation, whose lines between parameters and root are `body`.
fn module(body: &str, root: &str) -> Module {
    let scheduled = format!(
        "HloModule m, is_scheduled=true\n\nENTRY %e {{
  %shard = f32[2,4]{{1,0}} parameter(0)
  %other = f32[8,4]{{1,0}} parameter(1)
  %gather = f32[8,4]{{1,0}} all-gather(%shard), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, use_global_device_ids=true
  %early = f32[8,4]{{1,0}} multiply(%gather, %other)
{body}
  ROOT %root = {root}
}}\n"
    );
    parse(scheduled.as_bytes())
}

fn row(module: &Module, name: &str) -> Row {
    Row(*module.find_instructions(name.as_bytes()).first().expect(name))
}

fn line(module: &Module, name: &str) -> String {
    String::from_utf8_lossy(module.instruction_text(row(module, name))).into_owned()
}

fn is_there(module: &Module, name: &str) -> bool {
    !module.find_instructions(name.as_bytes()).is_empty()
}

fn gather_for(module: &Module, uses: &[(&str, usize)]) -> Recompute {
    let uses =
        uses.iter().map(|(user, operand)| Use { user: row(module, user), operand: *operand });
    Recompute::ForUsers { producer: row(module, "gather"), chain: Vec::new(), uses: uses.collect() }
}

/// The module rewritten, which computes the same.
fn checked(module: &Module, wanted: &[Recompute]) -> Module {
    let after = rewrite(module, wanted).unwrap_or_else(|error| panic!("{error}")).module;
    let canonical = |module: &Module| parse(&check_round_trip(module, &Default::default()));
    assert_eq!(symbolic::of_module(&canonical(module)), symbolic::of_module(&canonical(&after)));
    for row in after.rows().filter(|row| !after.is_implicit(*row)) {
        assert!(after.operands(row).iter().all(|operand| *operand < row.0));
    }
    after
}

const PAIR: &str = "  %inputs = (f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(%gather, %early)
  %barrier = (f32[8,4]{1,0}, f32[8,4]{1,0}) opt-barrier(%inputs)
  %kept = f32[8,4]{1,0} get-tuple-element(%barrier), index=0
  %seed = f32[8,4]{1,0} get-tuple-element(%barrier), index=1
  %middle = f32[8,4]{1,0} sine(%seed)
  %late = f32[8,4]{1,0} multiply(%kept, %middle)";

#[test]
fn the_barrier_hands_on_the_shard() {
    let module = module(PAIR, "f32[8,4]{1,0} add(%kept, %late)");
    let after = checked(&module, &[gather_for(&module, &[("late", 0), ("root", 0)])]);
    let text = String::from_utf8_lossy(after.text()).into_owned();
    let expected = "
  %inputs = (f32[2,4]{1,0}, f32[8,4]{1,0}) tuple(%shard, %early)
  %barrier = (f32[2,4]{1,0}, f32[8,4]{1,0}) opt-barrier(%inputs)
  %seed = f32[8,4]{1,0} get-tuple-element(%barrier), index=1
  %middle = f32[8,4]{1,0} sine(%seed)
  %gather.remat_inputs = (f32[2,4]{1,0}, f32[8,4]{1,0}) tuple(%shard, %middle)
";
    assert!(text.contains(expected), "{text}");
    assert!(line(&after, "late").contains("multiply(%gather.remat, %middle)"));
    assert!(line(&after, "root").contains("add(%gather.remat, %late)"));
    assert!(!is_there(&after, "kept"));
}

#[test]
fn an_element_that_somebody_reads_stays() {
    let module = module(PAIR, "f32[8,4]{1,0} add(%kept, %late)");
    let after = checked(&module, &[gather_for(&module, &[("root", 0)])]);
    assert!(line(&after, "inputs").contains("tuple(%gather, %early)"));
    assert!(line(&after, "late").contains("multiply(%kept, %middle)"));
    assert!(line(&after, "root").contains("add(%gather.remat, %late)"));
    // Two copies, and nobody is left.
    let near = gather_for(&module, &[("late", 0)]);
    let far = gather_for(&module, &[("root", 0)]);
    let after = checked(&module, &[near, far]);
    assert!(line(&after, "inputs").contains("tuple(%shard, %early)"));
    assert!(line(&after, "root").contains("add(%gather.remat2, %late)"));
}

#[test]
fn barriers_of_nothing_else_go() {
    let body = "  %inputs = (f32[8,4]{1,0}) tuple(%gather)
  %barrier = (f32[8,4]{1,0}) opt-barrier(%inputs)
  %kept = f32[8,4]{1,0} get-tuple-element(%barrier), index=0
  %middle = f32[8,4]{1,0} sine(%early)";
    let single = module(body, "f32[8,4]{1,0} multiply(%kept, %middle)");
    let after = checked(&single, &[gather_for(&single, &[("root", 0)])]);
    assert!(!is_there(&after, "inputs") && !is_there(&after, "barrier"));
    // An array by itself.
    let body = "  %barrier = f32[8,4]{1,0} opt-barrier(%gather)
  %middle = f32[8,4]{1,0} sine(%early)";
    let alone = module(body, "f32[8,4]{1,0} multiply(%barrier, %middle)");
    let after = checked(&alone, &[gather_for(&alone, &[("root", 0)])]);
    assert!(!is_there(&after, "barrier"));
}

#[test]
fn nested_tuples_and_barriers_behind_barriers() {
    let body = "  %inner = (f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(%early, %gather)
  %outer = (f32[8,4]{1,0}, (f32[8,4]{1,0}, f32[8,4]{1,0}), f32[8,4]{1,0}) tuple(%gather, %inner, %other)
  %barrier = (f32[8,4]{1,0}, (f32[8,4]{1,0}, f32[8,4]{1,0}), f32[8,4]{1,0}) opt-barrier(%outer)
  %pair = (f32[8,4]{1,0}, f32[8,4]{1,0}) get-tuple-element(%barrier), index=1
  %again = (f32[8,4]{1,0}, f32[8,4]{1,0}) opt-barrier(%pair)
  %kept = f32[8,4]{1,0} get-tuple-element(%again), index=1
  %seed = f32[8,4]{1,0} get-tuple-element(%again), index=0
  %first = f32[8,4]{1,0} get-tuple-element(%barrier), index=0
  %middle = f32[8,4]{1,0} sine(%seed)
  %late = f32[8,4]{1,0} multiply(%kept, %middle)";
    let module = module(body, "f32[8,4]{1,0} add(%first, %late)");
    let after = checked(&module, &[gather_for(&module, &[("late", 0), ("root", 0)])]);
    let shard = "(f32[8,4]{1,0}, f32[2,4]{1,0})";
    assert!(line(&after, "inner").contains(&format!("{shard} tuple(%early, %shard)")));
    let all = format!("(f32[2,4]{{1,0}}, {shard}, f32[8,4]{{1,0}})");
    assert!(line(&after, "barrier").contains(&format!("{all} opt-barrier(%outer)")));
    assert!(line(&after, "again").contains(&format!("{shard} opt-barrier(%pair)")));
    // Only one of the two places is read by copies.
    let after = checked(&module, &[gather_for(&module, &[("late", 0)])]);
    assert!(line(&after, "outer").contains("tuple(%gather, %inner, %other)"));
    assert!(line(&after, "inner").contains("tuple(%early, %shard)"));
    assert!(is_there(&after, "first") && !is_there(&after, "kept"));
}

/// What a barrier hands on goes through another one with something else.
#[test]
fn an_element_goes_on_into_another_barrier() {
    let body = "  %inputs = (f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(%gather, %early)
  %barrier = (f32[8,4]{1,0}, f32[8,4]{1,0}) opt-barrier(%inputs)
  %there = f32[8,4]{1,0} get-tuple-element(%barrier), index=0
  %seed = f32[8,4]{1,0} get-tuple-element(%barrier), index=1
  %further = (f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(%seed, %there)
  %second = (f32[8,4]{1,0}, f32[8,4]{1,0}) opt-barrier(%further)
  %kept = f32[8,4]{1,0} get-tuple-element(%second), index=1
  %next = f32[8,4]{1,0} get-tuple-element(%second), index=0
  %middle = f32[8,4]{1,0} sine(%next)";
    let module = module(body, "f32[8,4]{1,0} multiply(%kept, %middle)");
    let after = checked(&module, &[gather_for(&module, &[("root", 0)])]);
    assert!(line(&after, "there").contains("f32[2,4]{1,0} get-tuple-element(%barrier), index=0"));
    assert!(line(&after, "second").contains("(f32[8,4]{1,0}, f32[2,4]{1,0}) opt-barrier"));
    assert!(!is_there(&after, "kept"));
}

#[test]
fn a_chain_behind_a_barrier_is_copied_with_what_is_before_it() {
    let body = format!(
        "{PAIR}
  %wide = f32[8,4]{{1,0}} cosine(%kept)
  %later = f32[8,4]{{1,0}} add(%wide, %late)"
    );
    let module = module(&body, "f32[8,4]{1,0} multiply(%wide, %later)");
    let wanted = Recompute::ForUsers {
        producer: row(&module, "wide"),
        chain: vec![row(&module, "gather")],
        uses: vec![Use { user: row(&module, "root"), operand: 0 }],
    };
    let after = checked(&module, &[wanted]);
    assert!(line(&after, "wide.remat").contains("cosine(%gather.remat)"));
    assert!(line(&after, "wide.remat_inputs").contains("tuple(%shard, %later)"));
    assert!(line(&after, "inputs").contains("tuple(%gather, %early)"));
}

#[test]
fn what_else_happens_to_a_tuple_keeps_it_whole() {
    let body = format!(
        "{PAIR}
  %sum = f32[8,4]{{1,0}} add(%kept, %late)"
    );
    // The barrier, the tuple, or an element of it leaves the computation.
    let roots = [
        "((f32[8,4]{1,0}, f32[8,4]{1,0}), f32[8,4]{1,0}) tuple(%barrier, %sum)",
        "((f32[8,4]{1,0}, f32[8,4]{1,0}), f32[8,4]{1,0}) tuple(%inputs, %sum)",
        "(f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(%kept, %sum)",
    ];
    for root in roots {
        let module = module(&body, root);
        let after = checked(&module, &[gather_for(&module, &[("late", 0), ("sum", 0)])]);
        assert!(line(&after, "inputs").contains("tuple(%gather, %early)"), "{root}");
        assert!(line(&after, "sum").contains("add(%gather.remat, %late)"), "{root}");
    }
    // Somebody waits for what is taken out.
    let body = format!(
        "{PAIR}
  %sum = f32[8,4]{{1,0}} add(%late, %late), control-predecessors={{%kept}}"
    );
    let module = module(&body, "f32[8,4]{1,0} negate(%sum)");
    let after = checked(&module, &[gather_for(&module, &[("late", 0)])]);
    assert!(line(&after, "inputs").contains("tuple(%gather, %early)"));
}

#[test]
fn no_barrier_is_no_way() {
    let body = "  %inputs = (f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(%gather, %early)
  %kept = f32[8,4]{1,0} get-tuple-element(%inputs), index=0
  %middle = f32[8,4]{1,0} sine(%early)";
    let module = module(body, "f32[8,4]{1,0} multiply(%kept, %middle)");
    let error = rewrite(&module, &[gather_for(&module, &[("root", 0)])]).unwrap_err();
    let reason = "%root: its operand is not the instruction to copy";
    assert_eq!(error.to_string(), reason);
}

/// A random graph in which values pass through barriers of all forms.
fn random_text(random: &mut Random, count: usize) -> String {
    let scheduled = if random.below(2) == 0 { ", is_scheduled=true" } else { "" };
    let mut text = format!("HloModule m{scheduled}\n\nENTRY %e {{\n");
    text.push_str("  %v0 = f32[8]{0} parameter(0)\n  %v1 = f32[8]{0} parameter(1)\n");
    let mut arrays = vec!["v0".to_owned(), "v1".to_owned()];
    let (a, pair) = ("f32[8]{0}", "(f32[8]{0}, f32[8]{0})");
    for number in 2..count {
        let mut pick = || {
            let far = random.below(arrays.len()).min(random.below(arrays.len()));
            arrays[arrays.len() - 1 - far].clone()
        };
        let (x, y, z) = (pick(), pick(), pick());
        let name = format!("v{number}");
        match random.below(6) {
            0 => writeln!(text, "  %{name} = {a} opt-barrier(%{x})").unwrap(),
            1 => {
                writeln!(text, "  %{name}t = {pair} tuple(%{x}, %{y})").unwrap();
                writeln!(text, "  %{name}b = {pair} opt-barrier(%{name}t)").unwrap();
                writeln!(text, "  %{name} = {a} get-tuple-element(%{name}b), index=0").unwrap();
                writeln!(text, "  %{name}o = {a} get-tuple-element(%{name}b), index=1").unwrap();
                arrays.push(format!("{name}o"));
            }
            2 => {
                let nested = format!("({pair}, {a})");
                writeln!(text, "  %{name}t = {pair} tuple(%{x}, %{y})").unwrap();
                writeln!(text, "  %{name}n = {nested} tuple(%{name}t, %{z})").unwrap();
                writeln!(text, "  %{name}b = {nested} opt-barrier(%{name}n)").unwrap();
                writeln!(text, "  %{name}p = {pair} get-tuple-element(%{name}b), index=0").unwrap();
                writeln!(text, "  %{name} = {a} get-tuple-element(%{name}p), index=1").unwrap();
                writeln!(text, "  %{name}o = {a} get-tuple-element(%{name}b), index=1").unwrap();
                arrays.push(format!("{name}o"));
            }
            3 => writeln!(text, "  %{name} = {a} sine(%{x})").unwrap(),
            _ => writeln!(text, "  %{name} = {a} add(%{x}, %{y})").unwrap(),
        }
        arrays.push(name);
    }
    let last: Vec<String> = arrays.iter().rev().take(3).map(|name| format!("%{name}")).collect();
    let shape = vec![a; last.len()].join(", ");
    writeln!(text, "  ROOT %all = ({shape}) tuple({})\n}}", last.join(", ")).unwrap();
    text
}

/// What reads the value of `producer`, directly and behind barriers.
fn reads(module: &Module, producer: Row) -> Vec<Use> {
    let mut uses = Vec::new();
    let mut pending = vec![(producer, Vec::new())];
    while let Some((row, path)) = pending.pop() {
        for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
            for (operand, _) in
                module.operands(user).iter().enumerate().filter(|(_, read)| **read == row.0)
            {
                let mut path: Vec<usize> = path.clone();
                match module.opcode(user) {
                    Opcode::Tuple if user.0 != module.computation(module.entry()).root => {
                        path.push(operand);
                        pending.push((user, path));
                    }
                    Opcode::OptBarrier => pending.push((user, path)),
                    Opcode::GetTupleElement => {
                        if path.pop() == module.tuple_index(user) {
                            pending.push((user, path));
                        }
                    }
                    _ => uses.push(Use { user, operand }),
                }
            }
        }
    }
    uses
}

#[test]
fn random_barriers_compute_the_same_after_rewriting() {
    let (mut done, mut emptied) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed);
        let count = 4 + random.below(30);
        let module = parse(random_text(&mut random, count).as_bytes());
        let mut wanted = Vec::new();
        for row in
            module.rows().filter(|row| matches!(module.opcode(*row), Opcode::Sine | Opcode::Add))
        {
            let mut uses = reads(&module, row);
            if random.below(2) == 0 {
                uses.retain(|_| random.below(3) > 0);
            }
            let recompute = Recompute::ForUsers { producer: row, chain: Vec::new(), uses };
            let result = rewrite(&module, std::slice::from_ref(&recompute));
            assert!(!matches!(result, Err(RewriteError::Edit(_))), "seed {seed}: {result:?}");
            if result.is_ok() {
                let after = checked(&module, std::slice::from_ref(&recompute));
                let barriers = |module: &Module| {
                    let tuples = module.rows().filter(|row| module.opcode(*row) == Opcode::Tuple);
                    tuples.map(|row| module.instruction_text(row).to_vec()).collect::<Vec<_>>()
                };
                let now = barriers(&after);
                emptied += usize::from(barriers(&module).iter().any(|text| !now.contains(text)));
                wanted.push(recompute);
                done += 1;
            }
        }
        // All at once; in unscheduled modules some may have to wait for each other.
        match rewrite(&module, &wanted) {
            Ok(_) => drop(checked(&module, &wanted)),
            Err(error) => {
                let is_cut = matches!(error, RewriteError::Edit(_));
                assert!(!is_cut || !module.is_scheduled(), "seed {seed}: {error}");
            }
        }
    }
    assert!(done > 200 && emptied > 40, "{done} {emptied}");
}

/// Whatever the text and whatever is asked: an answer or an error.
#[test]
fn hostile_barriers_are_answered() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let text = random_text(&mut random, 16);
        let text = mutate::mutate(text.as_bytes(), &mut random);
        let source = hlofast::text::Source::from_slice(&text);
        let Ok(module) = hlofast::parse(source, &hlofast::Options::default()) else { continue };
        for _ in 0..20 {
            let mut row = || Row(random.below(module.row_count() + 2) as u32);
            let recompute = Recompute::ForUsers {
                producer: row(),
                chain: vec![row()],
                uses: vec![Use { user: row(), operand: 0 }],
            };
            let _ = rewrite(&module, &[recompute]);
        }
    }
}
