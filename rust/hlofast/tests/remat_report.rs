//! What is said to be recomputed, kept and gathered.

use crate::support::remat::{Asked, Reported};
use crate::support::round_trip::parse;
use hlofast::comms::Moved;
use hlofast::flow::Phase;
use hlofast::remat::{GatherFate, RecomputedBy, ResidualKind};

const FORWARD: &str = r#"metadata={op_name="jit(f)/jvp()/x"}"#;
const BACKWARD: &str = r#"metadata={op_name="jit(f)/transpose(jvp())/x"}"#;
const AGAIN: &str =
    r#"metadata={op_name="jit(f)/transpose(jvp())/checkpoint/rematted_computation/x"}"#;

/// The report of an entry computation; F, B and R stand for names of forward, backward and
/// recomputed work.
fn reported(entry: &str) -> Reported {
    let named = |line: &str| {
        let line = line.trim();
        for (letter, metadata) in [(" F", FORWARD), (" B", BACKWARD), (" R", AGAIN)] {
            if let Some(rest) = line.strip_suffix(letter) {
                return format!("  {rest}, {metadata}\n");
            }
        }
        format!("  {line}\n")
    };
    let lines: String = entry.trim().lines().map(named).collect();
    let text = format!(
        "HloModule m, is_scheduled=true

%squares (q: f32[8,4]) -> f32[8,4] {{
  %q = f32[8,4]{{1,0}} parameter(0)
  ROOT %square = f32[8,4]{{1,0}} multiply(%q, %q), {FORWARD}
}}

ENTRY %e {{
{lines}}}
"
    );
    Reported::new(parse(text.as_bytes()))
}

fn phase(reported: &Reported, name: &str) -> Phase {
    reported.attribution().phase[reported.row(name).0 as usize]
}

fn recomputed(reported: &Reported) -> Vec<(String, RecomputedBy)> {
    let all = reported.remat().recomputed.iter();
    all.map(|entry| (reported.name(entry.row), entry.by)).collect()
}

fn kept(reported: &Reported) -> Vec<(String, ResidualKind)> {
    let all = reported.remat().residuals.iter();
    all.map(|residual| (reported.name(residual.place.row), residual.kind)).collect()
}

fn fates(reported: &Reported) -> Vec<(String, GatherFate)> {
    let all = reported.remat().gathers.iter();
    let name = |number: u32| reported.name(reported.collectives().collectives[number as usize].row);
    all.map(|gather| (name(gather.collective), gather.fate)).collect()
}

#[test]
fn names_tell_what_the_program_and_what_the_compiler_repeats() {
    let reported = reported(
        "%x = f32[8,4]{1,0} parameter(0)
         %a = f32[8,4]{1,0} sine(%x) F
         %b = f32[8,4]{1,0} cosine(%a) F
         %c = f32[8,4]{1,0} negate(%b) B
         %again = f32[8,4]{1,0} sine(%x) R
         %a.remat = f32[8,4]{1,0} sine(%x) F
         %c.remat2 = f32[8,4]{1,0} negate(%b) B
         %d = f32[8,4]{1,0} add(%again, %a.remat) B
         ROOT %e = f32[8,4]{1,0} add(%c.remat2, %d) B",
    );
    let expected = [
        ("again", RecomputedBy::Program),
        ("a.remat", RecomputedBy::Compiler),
        ("c.remat2", RecomputedBy::Compiler),
    ];
    assert_eq!(recomputed(&reported), expected.map(|(name, by)| (name.to_owned(), by)));
    assert!(reported.remat().recomputed.iter().all(|entry| entry.executions == Some(1)));
    assert_eq!(reported.remat().instructions[Phase::Recompute as usize], 2);
    // A copy of backward work is backward work.
    assert_eq!(phase(&reported, "c.remat2"), Phase::Backward);
}

#[test]
fn without_names_twins_tell() {
    let reported = reported(
        "%x = f32[8,4]{1,0} parameter(0)
         %a = f32[8,4]{1,0} fusion(%x), kind=kLoop, calls=%squares F
         %b = f32[8,4]{1,0} cosine(%a) F
         %again = f32[8,4]{1,0} fusion(%x), kind=kLoop, calls=%squares B
         ROOT %c = f32[8,4]{1,0} add(%again, %b) B",
    );
    assert_eq!(recomputed(&reported), [("again".to_owned(), RecomputedBy::Twin)]);
    assert_eq!(reported.remat().recomputed[0].twin, Some(reported.row("a")));
}

/// A compiler's copy has its original's name; its users say when it runs.
#[test]
fn a_copy_that_only_backward_work_uses_is_recomputed_work() {
    let reported = reported(
        "%x = f32[8,4]{1,0} parameter(0)
         %shard = f32[2,4]{1,0} parameter(1)
         %a = f32[8,4]{1,0} fusion(%x), kind=kLoop, calls=%squares F
         %g = f32[8,4]{1,0} all-gather(%shard), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true F
         %use = f32[8,4]{1,0} add(%a, %g) F
         %near.remat = f32[8,4]{1,0} sine(%x) F
         %sum = f32[8,4]{1,0} add(%use, %near.remat) F
         %both.remat = f32[8,4]{1,0} cosine(%x) F
         %next = f32[8,4]{1,0} add(%sum, %both.remat) F
         %start = f32[8,4]{1,0} negate(%next) B
         %g.remat = f32[8,4]{1,0} all-gather(%shard), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true F
         %nameless.remat3 = f32[8,4]{1,0} tanh(%g.remat)
         %pair = (f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(%nameless.remat3, %both.remat)
         %barrier = (f32[8,4]{1,0}, f32[8,4]{1,0}) opt-barrier(%pair)
         %late = f32[8,4]{1,0} get-tuple-element(%barrier), index=0
         %d = f32[8,4]{1,0} add(%late, %start) B
         ROOT %e = f32[8,4]{1,0} multiply(%d, %both.remat) B",
    );
    assert_eq!(phase(&reported, "near.remat"), Phase::Forward);
    assert_eq!(phase(&reported, "both.remat"), Phase::Forward, "forward work uses it too");
    assert_eq!(phase(&reported, "g.remat"), Phase::Recompute);
    assert_eq!(phase(&reported, "nameless.remat3"), Phase::Recompute);
    assert_eq!(
        fates(&reported),
        [("g".to_owned(), GatherFate::Forward), ("g.remat".to_owned(), GatherFate::Recomputed)]
    );
    // Copies are not kept for anything; what both passes use is.
    let names: Vec<String> = kept(&reported).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["both.remat", "next"]);
    assert!(recomputed(&reported).iter().all(|(_, by)| *by == RecomputedBy::Compiler));
    assert_eq!(recomputed(&reported).len(), 4);
}

#[test]
fn what_is_in_a_copied_fusion_is_recomputed_with_it() {
    let text = format!(
        "HloModule m, is_scheduled=true

%squares (q: f32[8,4]) -> f32[8,4] {{
  %q = f32[8,4]{{1,0}} parameter(0)
  ROOT %square = f32[8,4]{{1,0}} multiply(%q, %q), {FORWARD}
}}

%squares.remat (r: f32[8,4]) -> f32[8,4] {{
  %r = f32[8,4]{{1,0}} parameter(0)
  ROOT %square.again = f32[8,4]{{1,0}} multiply(%r, %r), {FORWARD}
}}

ENTRY %e {{
  %x = f32[8,4]{{1,0}} parameter(0)
  %a = f32[8,4]{{1,0}} fusion(%x), kind=kLoop, calls=%squares, {FORWARD}
  %b = f32[8,4]{{1,0}} cosine(%a), {BACKWARD}
  %a.remat = f32[8,4]{{1,0}} fusion(%x), kind=kLoop, calls=%squares.remat, {FORWARD}
  ROOT %c = f32[8,4]{{1,0}} add(%a.remat, %b), {BACKWARD}
}}
"
    );
    let reported = Reported::new(parse(text.as_bytes()));
    assert_eq!(phase(&reported, "square"), Phase::Forward);
    assert_eq!(phase(&reported, "square.again"), Phase::Recompute);
    let again = reported.cost().flops[reported.row("square.again").0 as usize];
    assert_eq!(again, 32);
    // Both computations shared: it is what it was.
    let shared = text.replace("calls=%squares.remat", "calls=%squares");
    let reported = Reported::new(parse(shared.as_bytes()));
    assert_eq!(phase(&reported, "square"), Phase::Forward);
    assert_eq!(phase(&reported, "a.remat"), Phase::Recompute);
}

#[test]
fn residuals_are_told_apart() {
    let reported = reported(
        "%x = f32[8,4]{1,0} parameter(0)
         %weight = bf16[8,4]{1,0} parameter(1)
         %shard = f32[2,4]{1,0} parameter(2)
         %wide = f32[8,4]{1,0} convert(%weight) F
         %whole = f32[8,4]{1,0} all-gather(%shard), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true F
         %part = f32[2,4]{1,0} slice(%x), slice={[0:2],[0:4]} F
         %wave = f32[2,4]{1,0} sine(%part) F
         %sequence = f32[8,4]{1,0} all-gather(%wave), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true F
         %alone = f32[8,4]{1,0} all-gather(%wave), channel_id=3, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true F
         %y = f32[8,4]{1,0} cosine(%alone) F
         %moved = f32[8,4]{1,0:S(1)} copy(%y) F
         %d0 = f32[8,4]{1,0} multiply(%moved, %x) B
         %d1 = f32[8,4]{1,0} multiply(%d0, %wide) B
         %d2 = f32[8,4]{1,0} multiply(%d1, %whole) B
         %d3 = f32[8,4]{1,0} multiply(%d2, %sequence) B
         ROOT %d4 = f32[8,4]{1,0} multiply(%d3, %x) B",
    );
    let expected = [
        ("wide", ResidualKind::WeightCopy),
        ("whole", ResidualKind::GatheredWeight),
        ("sequence", ResidualKind::GatheredActivation),
        ("y", ResidualKind::Activation),
    ];
    assert_eq!(kept(&reported), expected.map(|(name, kind)| (name.to_owned(), kind)));
    let wide = &reported.remat().residuals[0];
    assert_eq!(wide.widened_from.map(|from| from.as_str()), Some("bf16"));
    assert_eq!(reported.name(wide.source), "weight");
    assert_eq!((reported.name(wide.uses.0), wide.bytes), ("d1".to_owned(), 128));
    assert_eq!(
        fates(&reported),
        [
            ("whole", GatherFate::Kept),
            ("sequence", GatherFate::Kept),
            ("alone", GatherFate::Forward)
        ]
        .map(|(name, fate)| (name.to_owned(), fate))
    );
    let report = reported.remat();
    let kept_weights = report.gathers_of(reported.collectives(), Moved::Weight, GatherFate::Kept);
    assert_eq!(kept_weights.count(), 1);
    assert!(!report.has_no_forward());
}

#[test]
fn without_backward_work_nothing_is_kept_and_nothing_repeated() {
    let reported = reported(
        "%x = f32[8,4]{1,0} parameter(0)
         %a.remat = f32[8,4]{1,0} sine(%x) F
         ROOT %b = f32[8,4]{1,0} cosine(%a.remat) F",
    );
    assert!(reported.remat().residuals.is_empty() && reported.remat().gathers.is_empty());
    assert_eq!(phase(&reported, "a.remat"), Phase::Forward);
    assert_eq!(recomputed(&reported), [("a.remat".to_owned(), RecomputedBy::Compiler)]);
}
