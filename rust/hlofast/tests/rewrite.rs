//! Rewriting gives modules in which values are computed again for late users.

use crate::support::round_trip::{check_round_trip, parse};
use hlofast::edit::EditError;
use hlofast::ir::{Module, Row};
use hlofast::remat::{Recompute, RewriteError, Use, rewrite};

const GATHERED: &str = r#"HloModule m, is_scheduled=true

%add { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y) }

%squares (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0:T(8,128)} parameter(0)
  ROOT %square = f32[8,4]{1,0:T(8,128)} multiply(%p, %p), metadata={op_name="square"}
}

ENTRY %e (shard: f32[2,4], other: f32[8,4]) -> f32[] {
  %shard = f32[2,4]{1,0:T(8,128)} parameter(0)
  %other = f32[8,4]{1,0:T(8,128)} parameter(1)
  %zero = f32[] constant(0)
  %all-gather = f32[8,4]{1,0:T(8,128)S(1)} all-gather(%shard), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(f)/jvp()/gather" stack_frame_id=3}
  %early = f32[8,4]{1,0:T(8,128)} multiply(%all-gather, %other)
  %fusion = f32[8,4]{1,0:T(8,128)} fusion(%early), kind=kLoop, calls=%squares
  %middle = f32[8,4]{1,0:T(8,128)} add(%fusion, %early)
  %late = f32[8,4]{1,0:T(8,128)} multiply(%all-gather, %middle)
  %later = f32[8,4]{1,0:T(8,128)} multiply(%fusion, %late)
  %sum = f32[8,4]{1,0:T(8,128)} add(%all-gather, %later)
  ROOT %total = f32[] reduce(%sum, %zero), dimensions={0,1}, to_apply=%add
}
"#;

fn row(module: &Module, name: &str) -> Row {
    Row(*module.find_instructions(name.as_bytes()).first().expect(name))
}

fn line(module: &Module, name: &str) -> String {
    String::from_utf8_lossy(module.instruction_text(row(module, name))).into_owned()
}

fn for_users(module: &Module, producer: &str, chain: &[&str], uses: &[(&str, usize)]) -> Recompute {
    Recompute::ForUsers {
        producer: row(module, producer),
        chain: chain.iter().map(|name| row(module, name)).collect(),
        uses: uses
            .iter()
            .map(|(user, operand)| Use { user: row(module, user), operand: *operand })
            .collect(),
    }
}

/// The module rewritten, read again and printed without a difference.
fn rewritten(module: &Module, recomputes: &[Recompute]) -> Module {
    let result = rewrite(module, recomputes).unwrap();
    let printed = check_round_trip(&result.module, &Default::default());
    assert!(hlofast::print::structurally_equal(&result.module, &parse(&printed)).is_ok());
    result.module
}

fn reason(module: &Module, recompute: Recompute) -> String {
    rewrite(module, &[recompute]).expect_err("a refusal").to_string()
}

#[test]
fn a_gather_is_repeated_behind_a_barrier() {
    let module = parse(GATHERED.as_bytes());
    let wanted = for_users(&module, "all-gather", &[], &[("late", 0), ("sum", 0)]);
    let after = rewritten(&module, &[wanted]);
    let text = String::from_utf8_lossy(after.text()).into_owned();
    let expected = r#"
  %all-gather.remat_inputs = (f32[2,4]{1,0:T(8,128)}, f32[8,4]{1,0:T(8,128)}) tuple(%shard, %middle), metadata={op_name="jit(f)/jvp()/gather" stack_frame_id=3}
  %all-gather.remat_barrier = (f32[2,4]{1,0:T(8,128)}, f32[8,4]{1,0:T(8,128)}) opt-barrier(%all-gather.remat_inputs), metadata={op_name="jit(f)/jvp()/gather" stack_frame_id=3}
  %all-gather.remat_input = f32[2,4]{1,0:T(8,128)} get-tuple-element(%all-gather.remat_barrier), index=0, metadata={op_name="jit(f)/jvp()/gather" stack_frame_id=3}
  %all-gather.remat = f32[8,4]{1,0:T(8,128)S(1)} all-gather(%all-gather.remat_input), channel_id=8, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(f)/jvp()/gather" stack_frame_id=3}
  %late = f32[8,4]{1,0:T(8,128)} multiply(%all-gather.remat, %middle)
"#;
    assert!(text.contains(expected), "{text}");
    assert!(line(&after, "sum").contains("add(%all-gather.remat, %later)"));
    assert!(line(&after, "early").contains("multiply(%all-gather, %other)"));
    assert_eq!(after.row_count(), module.row_count() + 4);
}

#[test]
fn groups_of_users_get_copies_of_their_own() {
    let module = parse(GATHERED.as_bytes());
    let near = for_users(&module, "all-gather", &[], &[("late", 0)]);
    let far = for_users(&module, "all-gather", &[], &[("sum", 0)]);
    let after = rewritten(&module, &[near, far]);
    assert!(line(&after, "all-gather.remat").contains("channel_id=8,"));
    assert!(line(&after, "all-gather.remat2").contains("channel_id=9,"));
    assert!(line(&after, "sum").contains("add(%all-gather.remat2, %later)"));
    // Each copy waits for what was made last before it.
    assert!(line(&after, "all-gather.remat2_inputs").contains("tuple(%shard, %later)"));
    // A module that was rewritten before is no exception.
    let near = for_users(&module, "all-gather", &[], &[("late", 0)]);
    let once = rewritten(&module, &[near]);
    let far = for_users(&once, "all-gather", &[], &[("sum", 0)]);
    let twice = rewritten(&once, &[far]);
    assert_eq!(line(&twice, "all-gather.remat2"), line(&after, "all-gather.remat2"));
}

#[test]
fn a_fusion_brings_its_computation_and_a_chain_what_it_reads() {
    let module = parse(GATHERED.as_bytes());
    let chain = &["early", "all-gather"];
    let wanted = for_users(&module, "fusion", chain, &[("later", 0)]);
    let result = rewrite(&module, &[wanted]).unwrap();
    let names: Vec<String> =
        result.copies.iter().map(|c| String::from_utf8_lossy(&c.name).into_owned()).collect();
    assert_eq!(names, ["all-gather.remat", "early.remat", "fusion.remat"]);
    let after = result.module;
    check_round_trip(&after, &Default::default());
    assert!(
        line(&after, "fusion.remat")
            .contains("fusion(%early.remat), kind=kLoop, calls=%squares.remat")
    );
    assert!(line(&after, "fusion.remat_inputs").contains("tuple(%shard, %other, %late)"));
    let squares = after.find_computation(b"squares.remat").expect("a copy");
    assert_eq!(after.computation(squares).rows().len(), 2);
    assert!(line(&after, "square.remat").starts_with("ROOT %square.remat = "));
    assert!(
        line(&after, "early.remat").contains("multiply(%all-gather.remat, %fusion.remat_input.1)")
    );
}

/// XLA's parser takes `-0` for the integer 0.
#[test]
fn signs_of_zeros_are_written_so_that_xla_reads_them() {
    let text = GATHERED.replace("f32[] constant(0)", "f32[] constant(-0)").replace(
        "ROOT %square = f32[8,4]{1,0:T(8,128)} multiply(%p, %p)",
        "%none = s32[] constant(-0)\n  %least = f32[] constant(-0)\n  \
         %all = f32[8,4]{1,0:T(8,128)} broadcast(%least), dimensions={}\n  \
         ROOT %square = f32[8,4]{1,0:T(8,128)} add(%p, %all)",
    );
    let module = parse(text.as_bytes());
    let again = rewritten(&module, &[for_users(&module, "fusion", &[], &[("later", 0)])]);
    for name in ["zero", "least", "least.remat"] {
        assert!(line(&again, name).ends_with("= f32[] constant(-0.0)"), "{name}");
    }
    assert!(line(&again, "none").ends_with("= s32[] constant(-0)"));
}

#[test]
fn pairs_are_copied_as_pairs() {
    let module = parse(
        br#"HloModule m, is_scheduled=true
ENTRY %e {
  %shard = f32[2,4]{1,0} parameter(0)
  %start = (f32[2,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%shard), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  %other = f32[2,4]{1,0} negate(%shard)
  %done = f32[8,4]{1,0} all-gather-done(%start), control-predecessors={%other}
  %swap-start = ((f32[8,4]{1,0}), f32[8,4]{1,0}, s32[]) all-to-all-start(%done), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  %swap = f32[8,4]{1,0} all-to-all-done(%swap-start)
  %sine = f32[8,4]{1,0} sine(%done)
  %cosine = f32[8,4]{1,0} cosine(%sine)
  %product = f32[8,4]{1,0} multiply(%done, %cosine)
  ROOT %sum = f32[8,4]{1,0} add(%product, %swap)
}
"#,
    );
    let wanted = for_users(&module, "done", &[], &[("product", 0)]);
    let after = rewritten(&module, &[wanted]);
    assert!(
        line(&after, "start.remat").contains("all-gather-start(%done.remat_input), channel_id=2,")
    );
    assert_eq!(
        line(&after, "done.remat"),
        "%done.remat = f32[8,4]{1,0} all-gather-done(%start.remat)"
    );
    // The same channel twice, as in programs of shard_map: copies differ from both.
    let wanted = for_users(&module, "swap", &[], &[("sum", 1)]);
    let after = rewritten(&module, &[wanted]);
    assert!(
        line(&after, "swap-start.remat")
            .contains("all-to-all-start(%swap.remat_input), channel_id=2,")
    );
    assert!(after.find_instructions(b"swap").is_empty(), "nothing reads it any more");
    assert!(after.find_instructions(b"swap-start").is_empty());
}

/// As TPU compilers write gathers that run beside something else.
const BESIDE: &str = r#"HloModule m, is_scheduled=true

%start (p: f32[2,4]) -> (f32[2,4], f32[8,4], u32[]) {
  %p = f32[2,4]{1,0} parameter(0)
  %gather.1 = f32[8,4]{1,0} all-gather(%p), channel_id=4, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %start.call = (f32[2,4]{1,0}, f32[8,4]{1,0}, u32[]{:S(2)}) custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}

%done (q: f32[2,4], r: f32[8,4], s: u32[]) -> f32[8,4] {
  %q = f32[2,4]{1,0} parameter(0)
  %r = f32[8,4]{1,0} parameter(1)
  %s = u32[]{:S(2)} parameter(2)
  %gather.2 = f32[8,4]{1,0} all-gather(%q), channel_id=4, replica_groups={{0,1,2,3}}, dimensions={0}, frontend_attributes={chain_id="0"}, backend_config={"a":1}
  ROOT %done.call = f32[8,4]{1,0:S(1)} custom-call(%q, %r, %gather.2, %s), custom_call_target="AsyncCollectiveDone"
}

ENTRY %e {
  %shard = f32[2,4]{1,0} parameter(0)
  %other = f32[8,4]{1,0} parameter(1)
  %async-start = (f32[2,4]{1,0}, f32[8,4]{1,0}, u32[]{:S(2)}) fusion(%shard), kind=kCustom, output_to_operand_aliasing={{0}: (0, {})}, calls=%start
  %part = f32[2,4]{1,0} get-tuple-element(%async-start), index=0
  %whole = f32[8,4]{1,0} get-tuple-element(%async-start), index=1
  %flag = u32[]{:S(2)} get-tuple-element(%async-start), index=2
  %gathered = f32[8,4]{1,0:S(1)} fusion(%part, %whole, %flag), kind=kCustom, calls=%done
  %early = f32[8,4]{1,0} multiply(%gathered, %other)
  %middle = f32[8,4]{1,0} sine(%early)
  ROOT %late = f32[8,4]{1,0} multiply(%gathered, %middle)
}
"#;

#[test]
fn a_gather_that_runs_beside_something_is_repeated_by_itself() {
    let module = parse(BESIDE.as_bytes());
    let after = rewritten(&module, &[for_users(&module, "gathered", &[], &[("late", 0)])]);
    // With the fusion's memory space, and without notes about the fusion.
    assert_eq!(
        line(&after, "gathered.remat"),
        "%gathered.remat = f32[8,4]{1,0:S(1)} all-gather(%gathered.remat_input), channel_id=5, \
         replica_groups={{0,1,2,3}}, dimensions={0}"
    );
    assert!(line(&after, "gathered.remat_inputs").contains("tuple(%part, %middle)"));
    assert_eq!(after.computations().len(), module.computations().len());
    // What was started is still waited for when nobody reads it any more.
    let all = [("early", 0), ("late", 0)];
    let reason = reason(&module, for_users(&module, "gathered", &[], &all));
    assert!(
        reason.starts_with("%gathered: no value that could delay a copy is computed"),
        "{reason}"
    );
    let start = for_users(&module, "async-start", &[], &[("part", 0)]);
    assert!(rewrite(&module, &[start]).is_err());
}

#[test]
fn unscheduled_copies_wait_for_the_deepest_value() {
    let module = parse(
        br#"HloModule m
ENTRY %e {
  %shard = f32[2,4] parameter(0)
  %all-gather = f32[8,4] all-gather(%shard), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  %transpose = f32[4,8] transpose(%all-gather), dimensions={1,0}
  %early = f32[8,4] sine(%all-gather)
  %later = f32[8,4] cosine(%early)
  ROOT %dot = f32[4,4] dot(%transpose, %later), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"#,
    );
    let wanted = for_users(&module, "all-gather", &[], &[("transpose", 0)]);
    let after = rewritten(&module, &[wanted]);
    assert!(line(&after, "all-gather.remat_inputs").contains("tuple(%shard, %later)"));
    for row in after.rows() {
        assert!(after.operands(row).iter().all(|operand| *operand < row.0));
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_a_reason() {
    let module = parse(GATHERED.as_bytes());
    let uses = [("late", 0)];
    let cases = [
        (for_users(&module, "other", &[], &[("early", 1)]), "%other: it is a parameter"),
        (for_users(&module, "all-gather", &[], &[]), "%all-gather: no user was named for the copy"),
        (
            for_users(&module, "all-gather", &[], &[("late", 1)]),
            "%late: its operand is not the instruction to copy",
        ),
        (
            for_users(&module, "all-gather", &[], &[("late", 0), ("late", 0)]),
            "%late: two copies are requested for one of its operands",
        ),
        (
            for_users(&module, "all-gather", &["fusion"], &uses),
            "%fusion: no other instruction to copy depends on it",
        ),
        (
            for_users(&module, "all-gather", &["square"], &uses),
            "%square: it is not in the computation of the other instructions to copy",
        ),
        (
            for_users(&module, "all-gather", &[], &[("square", 0)]),
            "%square: it is not in the computation of the instruction to copy",
        ),
        (
            for_users(&module, "zero", &[], &[("total", 1)]),
            "%zero: it has no operands, so no barrier can delay a copy of it",
        ),
        (
            for_users(&module, "all-gather", &[], &[("early", 0)]),
            "%all-gather: no value that could delay a copy is computed between it and its late users",
        ),
    ];
    for (wanted, expected) in cases {
        assert_eq!(reason(&module, wanted), expected);
    }
    let nowhere = Recompute::ForUsers { producer: Row(1000), chain: vec![], uses: vec![] };
    assert!(matches!(rewrite(&module, &[nowhere]), Err(RewriteError::NoSuchInstruction { .. })));
}

#[test]
fn what_must_not_run_twice_is_refused() {
    let text = r#"HloModule m, is_scheduled=true
%body { s = (f32[4]) parameter(0)
  g = f32[4] get-tuple-element(s), index=0
  n = f32[4] negate(g)
  ROOT t = (f32[4]) tuple(n) }
%condition { s = (f32[4]) parameter(0)
  ROOT c = pred[] constant(false) }
%noisy { q = f32[4] parameter(0)
  u = f32[] constant(1)
  r = f32[4] rng(u, u), distribution=rng_uniform
  ROOT a = f32[4] add(q, r) }
ENTRY %e {
  %p = f32[4] parameter(0)
  %state = (f32[4]) tuple(%p)
  %while = (f32[4]) while(%state), condition=%condition, body=%body
  %call = f32[4] custom-call(%p), custom_call_target="x", custom_call_has_side_effect=true
  %bound = f32[4] custom-call(%p), custom_call_target="AsyncCollectiveStart"
  %fusion = f32[4] fusion(%p), kind=kLoop, calls=%noisy
  %start = (f32[4], f32[4], u32[]) copy-start(%p)
  %done = f32[4] copy-done(%start)
  %sine = f32[4] sine(%done)
  %last = (f32[4]) get-tuple-element(%while), index=0
  ROOT %all = (f32[4], f32[4], f32[4], f32[4], f32[4]) tuple(%sine, %call, %bound, %fusion, %last)
}
"#;
    let module = parse(text.as_bytes());
    let cases = [
        ("while", ("last", 0), "%while: it is a loop"),
        ("call", ("all", 1), "%call: it has a side effect"),
        ("bound", ("all", 2), "%bound: it belongs to other instructions"),
        ("fusion", ("all", 3), "%fusion: it gives different numbers each time"),
        ("start", ("done", 0), "%start: it is only the start of an asynchronous operation"),
    ];
    for (producer, reader, expected) in cases {
        assert_eq!(reason(&module, for_users(&module, producer, &[], &[reader])), expected);
    }
}

#[test]
fn operands_that_are_overwritten_in_between_are_refused() {
    let text = r#"HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }
%body { s = (f32[4], s32[]) parameter(0)
  carry = f32[4] get-tuple-element(s), index=0
  count = s32[] get-tuple-element(s), index=1
  wide = f32[8] concatenate(carry, carry), dimensions={0}
  early = f32[8] sine(wide)
  next = f32[4] slice(early), slice={[0:4]}
  product = f32[8] multiply(early, wide)
  small = f32[1] slice(product), slice={[0:1]}
  ROOT t = (f32[4], s32[]) tuple(next, count) }
%condition { s = (f32[4], s32[]) parameter(0)
  ROOT c = pred[] constant(false) }
ENTRY %e {
  donated = f32[4] parameter(0)
  table = f32[8] parameter(1)
  index = s32[] parameter(2)
  own = f32[8] negate(table)
  doubled = f32[8] concatenate(donated, donated), dimensions={0}
  halved = f32[4] slice(own), slice={[0:4]}
  output = f32[4] cosine(halved)
  squared = f32[8] multiply(own, own)
  updated = f32[8] dynamic-update-slice(own, output, index)
  before = f32[8] add(doubled, updated)
  after = f32[8] add(squared, before)
  again = f32[8] add(updated, after)
  state = (f32[4], s32[]) tuple(halved, index)
  while = (f32[4], s32[]) while(state), condition=%condition, body=%body
  ROOT all = (f32[4], f32[8], (f32[4], s32[])) tuple(output, again, while)
}
"#;
    let module = parse(text.as_bytes());
    let cases = [
        // A donated parameter, whose memory the output has by then.
        (
            "doubled",
            ("before", 0),
            "%donated: %output takes its memory before a copy could read it",
        ),
        // A table updated in place.
        ("squared", ("after", 0), "%own: %updated takes its memory before a copy could read it"),
        ("updated", ("again", 0), "%updated: it overwrites its operand, and a copy must not"),
        // A loop's state, which the next iteration's has replaced.
        ("wide", ("product", 1), "%carry: %next takes its memory before a copy could read it"),
    ];
    for (producer, reader, expected) in cases {
        assert_eq!(reason(&module, for_users(&module, producer, &[], &[reader])), expected);
    }
    // Without a schedule copies are inserted later, and nothing is in the way.
    let loose = parse(text.replace(", is_scheduled=true", "").as_bytes());
    for (producer, reader, _) in cases {
        rewritten(&loose, &[for_users(&loose, producer, &[], &[reader])]);
    }
}

#[test]
fn what_the_text_only_implies_cannot_be_edited() {
    let module = parse(
        b"HloModule m\nENTRY e { p = (f32[4], f32[4]) parameter(0)\n a = f32[4] add(p#0, p#1)\n b = f32[4] sine(a)\n ROOT c = f32[4] multiply(a, b) }",
    );
    let wanted = for_users(&module, "a", &[], &[("c", 0)]);
    assert!(matches!(rewrite(&module, &[wanted]), Err(RewriteError::NoSuchInstruction { .. })));
    let error = RewriteError::Edit(EditError::NotInText { edit: 0, reason: "why" });
    assert_eq!(error.to_string(), "edit 0: why");
}
