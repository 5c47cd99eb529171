//! Stacks in loop state hold what their values are computed from.

use crate::support::round_trip::{check_round_trip, parse};
use hlofast::ir::{Module, Row};
use hlofast::memory::{Options, memory};
use hlofast::print::structurally_equal;
use hlofast::remat::{Recompute, Rewritten, rewrite};

/// Two loops as a TPU compiler leaves them: the stack is written in a fusion, read in a nested one,
/// and the shard is overwritten before the stack is written.
const FUSED: &str = r#"HloModule m, is_scheduled=true

%write (stack: f32[6,64,4], at: s32[], whole: f32[64,4]) -> f32[6,64,4] {
  %stack = f32[6,64,4]{2,1,0} parameter(0)
  %whole = f32[64,4]{1,0:S(1)} parameter(2)
  %wide = f32[1,64,4]{2,1,0} bitcast(%whole)
  %at = s32[] parameter(1)
  %none = s32[] constant(0)
  ROOT %update = f32[6,64,4]{2,1,0} dynamic-update-slice(%stack, %wide, %at, %none, %none), metadata={op_name="stack"}
}

%forward (state: (s32[], f32[8,4], f32[6,64,4])) -> (s32[], f32[8,4], f32[6,64,4]) {
  %state = (s32[], f32[8,4]{1,0}, f32[6,64,4]{2,1,0}) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %shard = f32[8,4]{1,0} get-tuple-element(%state), index=1
  %gather = f32[64,4]{1,0:S(1)} all-gather(%shard), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %part = f32[8,4]{1,0} slice(%gather), slice={[0:8], [0:4]}
  %kept = f32[6,64,4]{2,1,0} get-tuple-element(%state), index=2
  %written = f32[6,64,4]{2,1,0} fusion(%kept, %count, %gather), kind=kLoop, calls=%write
  %one = s32[] constant(1)
  %next = s32[] add(%count, %one)
  ROOT %turned = (s32[], f32[8,4]{1,0}, f32[6,64,4]{2,1,0}) tuple(%next, %part, %written)
}

%going (state.1: (s32[], f32[8,4], f32[6,64,4])) -> pred[] {
  %state.1 = (s32[], f32[8,4]{1,0}, f32[6,64,4]{2,1,0}) parameter(0)
  %count.1 = s32[] get-tuple-element(%state.1), index=0
  %six = s32[] constant(6)
  ROOT %less = pred[] compare(%count.1, %six), direction=LT
}

%read (from: f32[6,64,4], where: s32[]) -> f32[64,4] {
  %from = f32[6,64,4]{2,1,0} parameter(0)
  %where = s32[] parameter(1)
  %zero = s32[] constant(0)
  %taken = f32[1,64,4]{2,1,0} dynamic-slice(%from, %where, %zero, %zero), dynamic_slice_sizes={1,64,4}, metadata={op_name="take"}
  ROOT %narrow = f32[64,4]{1,0} bitcast(%taken)
}

%product (left: f32[64,4], stacked: f32[6,64,4], number: s32[]) -> f32[64,4] {
  %left = f32[64,4]{1,0} parameter(0)
  %stacked = f32[6,64,4]{2,1,0} parameter(1)
  %number = s32[] parameter(2)
  %slice = f32[64,4]{1,0} fusion(%stacked, %number), kind=kLoop, calls=%read
  ROOT %times = f32[64,4]{1,0} multiply(%left, %slice)
}

%backward (state.2: (s32[], f32[64,4], f32[6,64,4])) -> (s32[], f32[64,4], f32[6,64,4]) {
  %state.2 = (s32[], f32[64,4]{1,0}, f32[6,64,4]{2,1,0}) parameter(0)
  %count.2 = s32[] get-tuple-element(%state.2), index=0
  %carry = f32[64,4]{1,0} get-tuple-element(%state.2), index=1
  %stack.2 = f32[6,64,4]{2,1,0} get-tuple-element(%state.2), index=2
  %fusion = f32[64,4]{1,0} fusion(%carry, %stack.2, %count.2), kind=kLoop, calls=%product, backend_config={"window":1}
  %one.2 = s32[] constant(1)
  %next.2 = s32[] add(%count.2, %one.2)
  ROOT %turned.2 = (s32[], f32[64,4]{1,0}, f32[6,64,4]{2,1,0}) tuple(%next.2, %fusion, %stack.2)
}

%going.2 (state.3: (s32[], f32[64,4], f32[6,64,4])) -> pred[] {
  %state.3 = (s32[], f32[64,4]{1,0}, f32[6,64,4]{2,1,0}) parameter(0)
  %count.3 = s32[] get-tuple-element(%state.3), index=0
  %six.3 = s32[] constant(6)
  ROOT %less.3 = pred[] compare(%count.3, %six.3), direction=LT
}

ENTRY %e (x: f32[8,4], y: f32[64,4]) -> f32[64,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %y = f32[64,4]{1,0} parameter(1)
  %begin = s32[] constant(0)
  %empty = f32[6,64,4]{2,1,0} custom-call(), custom_call_target="AllocateBuffer"
  %start = (s32[], f32[8,4]{1,0}, f32[6,64,4]{2,1,0}) tuple(%begin, %x, %empty)
  %while = (s32[], f32[8,4]{1,0}, f32[6,64,4]{2,1,0}) while(%start), condition=%going, body=%forward
  %filled = f32[6,64,4]{2,1,0} get-tuple-element(%while), index=2
  %start.2 = (s32[], f32[64,4]{1,0}, f32[6,64,4]{2,1,0}) tuple(%begin, %y, %filled)
  %while.2 = (s32[], f32[64,4]{1,0}, f32[6,64,4]{2,1,0}) while(%start.2), condition=%going.2, body=%backward
  ROOT %result = f32[64,4]{1,0} get-tuple-element(%while.2), index=1
}
"#;

fn row(module: &Module, name: &str) -> Row {
    Row(*module.find_instructions(name.as_bytes()).first().expect(name))
}

fn line(module: &Module, name: &str) -> String {
    String::from_utf8_lossy(module.instruction_text(row(module, name))).into_owned()
}

fn restacked(text: &str, update: &str, source: &str) -> Result<Rewritten, String> {
    let module = parse(text.as_bytes());
    let wanted =
        Recompute::FromStack { update: row(&module, update), source: row(&module, source) };
    rewrite(&module, &[wanted]).map_err(|error| error.to_string())
}

#[test]
fn a_fused_stack_holds_shards() {
    let after = restacked(FUSED, "update", "shard").unwrap().module;
    let printed = check_round_trip(&after, &Default::default());
    assert!(structurally_equal(&after, &parse(&printed)).is_ok());
    // Written where the shard still is, without the fusion.
    assert_eq!(
        line(&after, "written"),
        "%written = f32[6,8,4]{2,1,0} dynamic-update-slice(%kept_stack, %written_shard, %count, \
         %count, %count)"
    );
    assert!(row(&after, "written") < row(&after, "gather"));
    assert!(after.find_computation(b"write").is_none());
    // Gathered in the other loop, straight into the memory the fusion reads, and passed to it.
    let gathered = line(&after, "gather.remat");
    assert!(
        gathered
            .starts_with("%gather.remat = f32[64,4]{1,0} all-gather(%shard.remat), channel_id=2")
    );
    assert!(
        line(&after, "fusion")
            .ends_with("fusion(%carry, %wide.remat, %count.2), kind=kLoop, calls=%product")
    );
    assert_eq!(
        line(&after, "taken"),
        "%taken = f32[1,64,4]{2,1,0} bitcast(%from), metadata={op_name=\"take\"}"
    );
    for (name, shape) in [
        ("state", "(s32[], f32[8,4]{1,0}, f32[6,8,4]{2,1,0}) "),
        ("state.1", "(s32[], f32[8,4]{1,0}, f32[6,8,4]{2,1,0}) "),
        ("while.2", "(s32[], f32[64,4]{1,0}, f32[6,8,4]{2,1,0}) "),
        ("stacked", "f32[1,64,4]{2,1,0} "),
    ] {
        assert!(
            line(&after, name).contains(&format!("%{name} = {shape}")),
            "{}",
            line(&after, name)
        );
    }
    let product = after.find_computation(b"product").unwrap();
    assert_eq!(
        after.bytes(after.computation(product).signature),
        b"(left: f32[64,4], stacked: f32[1,64,4], number: s32[]) -> f32[64,4]"
    );
    let no_old_stack = String::from_utf8_lossy(after.text()).matches("f32[6,64,4]").count();
    assert_eq!(no_old_stack, 0);
    // Six slices of 64 rows became six of 8.
    let peak = |module: &Module| memory(module, &Options::default()).unwrap().peak.bytes;
    let before = peak(&parse(FUSED.as_bytes()));
    assert!(before - peak(&after) >= 6 * (64 - 8) * 4 * 4 - 2 * 64 * 4 * 4, "{before}");
}

#[test]
fn stacks_that_something_needs_as_they_are_are_refused() {
    let cases = [
        ("", "", "next", "shard", "%next: it does not write a slice into a stack"),
        ("", "", "update", "x", "%x: it is not in the computation where the stack is written"),
        ("", "", "update", "gather", ""),
        ("", "", "update", "count", "%state: the stacked value also depends on this parameter"),
        ("bitcast(%whole)", "bitcast(%whole), backend_config={}", "update", "shard", ""),
        (
            "ROOT %result = f32[64,4]{1,0} get-tuple-element(%while.2), index=1",
            "ROOT %result = f32[6,64,4]{2,1,0} get-tuple-element(%while.2), index=2",
            "update",
            "shard",
            "%result: it returns the stack",
        ),
        (
            "%filled = f32[6,64,4]{2,1,0} get-tuple-element(%while), index=2\n",
            "%filled = f32[6,64,4]{2,1,0} get-tuple-element(%while), index=2\n  %sum = f32[6,64,4]{2,1,0} negate(%filled)\n",
            "update",
            "shard",
            "%sum: it needs the stack in its original shape",
        ),
        (
            "%empty = f32[6,64,4]{2,1,0} custom-call(), custom_call_target=\"AllocateBuffer\"",
            "%seven = f32[] constant(7)\n  %empty = f32[6,64,4]{2,1,0} broadcast(%seven), dimensions={}",
            "update",
            "shard",
            "%empty: the stack comes from it, and it is not loop state",
        ),
        (
            "%narrow = f32[64,4]{1,0} bitcast(%taken)",
            "%other = f32[1,64,4]{2,1,0} dynamic-slice(%from, %zero, %zero, %zero), dynamic_slice_sizes={1,64,4}\n  ROOT %narrow = f32[64,4]{1,0} bitcast(%taken)",
            "update",
            "shard",
            "%other: it needs the stack in its original shape",
        ),
        (
            "%part = f32[8,4]{1,0} slice(%gather), slice={[0:8], [0:4]}",
            "%part = f32[8,4]{1,0} slice(%gather), slice={[0:8], [0:4]}\n  %again = f32[6,64,4]{2,1,0} get-tuple-element(%state), index=2\n  %noise = f32[6,64,4]{2,1,0} add(%again, %again)",
            "update",
            "shard",
            "%noise: it needs the stack in its original shape",
        ),
        (
            "all-gather(%shard), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}",
            "custom-call(%shard), custom_call_target=\"x\", custom_call_has_side_effect=true",
            "update",
            "shard",
            "%gather: it has a side effect",
        ),
    ];
    for (old, new, update, source, expected) in cases {
        let text = FUSED.replacen(old, new, usize::from(!old.is_empty()));
        let text = text.replace("ROOT %other", "%other");
        let refusal = restacked(&text, update, source).err().unwrap_or_default();
        assert_eq!(refusal, expected, "{update} {source}");
    }
}

/// A stack that starts with zeros may be read where nothing was written.
#[test]
fn what_starts_as_zero_stays_zero() {
    let zeros = FUSED.replace(
        "%empty = f32[6,64,4]{2,1,0} custom-call(), custom_call_target=\"AllocateBuffer\"",
        "%nothing = f32[] constant(0)\n  %empty = f32[6,64,4]{2,1,0} broadcast(%nothing), dimensions={}",
    );
    let after = restacked(&zeros, "update", "shard").unwrap().module;
    assert!(line(&after, "empty.remat").contains("f32[6,8,4]{2,1,0} broadcast(%empty.remat_zero)"));
    let shifted =
        zeros.replace("%part = ", "%moved = f32[64,4]{1,0:S(1)} cosine(%gather)\n  %part = ");
    let shifted =
        shifted.replace("fusion(%kept, %count, %gather)", "fusion(%kept, %count, %moved)");
    assert_eq!(
        restacked(&shifted, "update", "shard").err().unwrap(),
        "%moved: a slice that no iteration writes would not stay zero"
    );
}
