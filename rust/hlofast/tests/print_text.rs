//! Canonical text in detail, what comparing tells apart, what fingerprints ignore.

use crate::support::round_trip::{all_print_options, check_round_trip, parse};
use hlofast::ir::{Module, Row};
use hlofast::print::{
    EqualityOptions, FingerprintOptions, Form, PrintOptions, fingerprint, structurally_equal,
    structurally_equal_with, to_text,
};

fn long(text: &str) -> String {
    let module = parse(text.as_bytes());
    for options in all_print_options() {
        check_round_trip(&module, &options);
    }
    String::from_utf8(to_text(&module, &PrintOptions::default())).expect("text")
}

fn with(text: &str, options: PrintOptions) -> String {
    String::from_utf8(to_text(&parse(text.as_bytes()), &options)).expect("text")
}

const MODULE: &str = "HloModule m, is_scheduled=true,
  entry_computation_layout={(f32[2]{0:T(256)}, (s32[], f32[2]))->f32[2]{0}}

FileNames
1 \"a.py\"
FunctionNames
1 \"f\"
FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=2 end_column=9}
StackFrames
1 {file_location_id=1, parent_frame_id=1}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  r = f32[] add(a, /* b */ b)
}

ENTRY main {
  t = (s32[], f32[2]) parameter(1)
  inf.1 = f32[2]{0:T(256)} parameter(0), sharding={replicated}
  ROOT all-reduce = f32[2]{0} all-reduce(inf.1),
     to_apply=sum, channel_id=3, metadata={op_name=\"x\" stack_frame_id=1}, backend_config={\"a\": 1}
  last = f32[2] copy(all-reduce), control-predecessors={t}
}
";

#[test]
fn the_long_form() {
    assert_eq!(
        long(MODULE),
        "HloModule m, is_scheduled=true, \
         entry_computation_layout={(f32[2]{0:T(256)}, (s32[], f32[2]))->f32[2]{0}}

FileNames
1 \"a.py\"

FunctionNames
1 \"f\"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=2 end_column=9}

StackFrames
1 {file_location_id=1, parent_frame_id=1}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %r = f32[] add(%a, %b)
}

ENTRY %main (inf.1: f32[2], t: (s32[], f32[2])) -> f32[2] {
  %t = (s32[], f32[2]) parameter(1)
  %inf.1 = f32[2]{0:T(256)} parameter(0), sharding={replicated}
  ROOT %all-reduce = f32[2]{0} all-reduce(%inf.1), to_apply=%sum, channel_id=3, \
  metadata={op_name=\"x\" stack_frame_id=1}, backend_config={\"a\": 1}
  %last = f32[2] copy(%all-reduce), control-predecessors={%t}
}
"
    );
}

#[test]
fn the_short_form_without_extras() {
    let options = PrintOptions {
        form: Form::Short,
        layouts: false,
        metadata: false,
        backend_config: false,
        operand_shapes: true,
        fold: false,
    };
    assert_eq!(
        with(MODULE, options),
        "HloModule m, is_scheduled=true, \
         entry_computation_layout={(f32[2],(s32[],f32[2]))->f32[2]}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(f32[] a, f32[] b)
}

ENTRY main {
  t = (s32[], f32[2]) parameter(1)
  inf.1 = f32[2] parameter(0), sharding={replicated}
  ROOT all-reduce = f32[2] all-reduce(f32[2] inf.1), to_apply=sum, channel_id=3
  last = f32[2] copy(f32[2] all-reduce), control-predecessors={t}
}
"
    );
}

#[test]
fn names_that_are_words_keep_their_mark() {
    let text =
        "HloModule m\nENTRY %true { %inf = f32[] parameter(0)\n %ROOT = f32[] negate(%inf) }";
    let short = with(text, PrintOptions { form: Form::Short, ..PrintOptions::default() });
    assert!(short.contains("ENTRY %true {\n  %inf = "), "{short}");
    assert!(short.contains("ROOT %ROOT = f32[] negate(%inf)"), "{short}");
    long(text);
}

#[test]
fn names_that_xla_refuses_are_changed() {
    let text = "HloModule m\nENTRY e { %f32 = f32[] parameter(0)\n %__x = f32[] negate(%f32)\n \
                %_x = f32[] negate(%__x) }";
    let printed = long(text);
    assert!(printed.contains("%f32_ = f32[] parameter(0)"), "{printed}");
    assert!(printed.contains("%_x.1 = f32[] negate(%f32_)"), "{printed}");
    assert!(printed.contains("%_x = f32[] negate(%_x.1)"), "{printed}");
}

#[test]
fn everything_is_defined_before_it_is_used() {
    let text = "HloModule m\nENTRY e {\n  a = f32[] call(bb), to_apply=g\n  bb = f32[] negate(p)\n  \
                p = f32[] parameter(0)\n  ROOT c = f32[] add(a, bb), control-predecessors={d}\n  \
                d = f32[] copy(p)\n}\ng { q = f32[] parameter(0)\n ROOT r = f32[] call(q), \
                to_apply=h }\nh { z = f32[] parameter(0) }";
    let printed = long(text);
    let place = |part: &str| printed.find(part).expect(part);
    assert!(place("%h (") < place("%g (") && place("%g (") < place("ENTRY %e"));
    assert!(place("%p =") < place("%bb =") && place("%bb =") < place("%a ="));
    assert!(place("%d =") < place("%c ="));
}

#[test]
fn what_the_text_implies_is_written_out_or_folded() {
    let text = "HloModule m\nENTRY e {\n  t = (f32[2], (s32[], f32[3])) parameter(0)\n  t_0 = f32[2] \
                copy(t#0)\n  n = f32[3] add(t#1#1, f32[3] negate(t#1#1))\n  s = ((f32[3]), f32[3], \
                u32[]) custom-call-start(n), custom_call_target=\"x\", \
                async_execution_thread=\"side\", metadata={op_name=\"o\"}\n  ROOT d = f32[3] \
                custom-call-done(s)\n}";
    let printed = long(text);
    for part in [
        "%async_wrapped.s (async_wrapped.s.param_0: f32[3]) -> f32[3] {",
        "}, execution_thread=\"side\"\n",
        "%t_0.1 = f32[2] get-tuple-element(%t), index=0",
        "%t_0 = f32[2] copy(%t_0.1)",
        "%t_1_1 = f32[3] get-tuple-element(%t_1), index=1",
        "%n = f32[3] add(%t_1_1, %negate.anon",
        "async-start(%n), calls=%async_wrapped.s, async_execution_thread=\"side\"",
        "ROOT %d = f32[3] async-done(%s)",
    ] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
    let folded = with(text, PrintOptions { fold: true, ..PrintOptions::default() });
    for part in [
        "%t_0 = f32[2] copy(%t#0)",
        "%n = f32[3] add(%t#1#1, %negate.anon",
        "custom-call-start(%n), custom_call_target=\"x\", async_execution_thread=\"side\"",
        "ROOT %d = f32[3] custom-call-done(%s)",
    ] {
        assert!(folded.contains(part), "{part}\n{folded}");
    }
    assert!(!folded.contains("async_wrapped"));
}

#[test]
fn other_beginnings_get_a_header() {
    let printed = long("ENTRY %e (x: f32[]) -> f32[] { ROOT %x = f32[] parameter(0) }");
    assert!(printed.starts_with("HloModule module_e\n\nENTRY %e (x: f32[]) -> f32[] {\n"));
    let printed = long("f32[2] add(f32[2] a, f32[2] b)");
    assert!(printed.contains("ROOT %add = f32[2] add(%a, %b)"), "{printed}");
    let printed = long("f32[] constant(1)");
    assert!(printed.contains("ROOT %constant = f32[] constant(1)"), "{printed}");
}

#[test]
fn literals_lose_comments_and_repeated_shapes() {
    let printed = long(
        "HloModule m\nENTRY e {\n c = f32[2,2] constant(f32[2,2] { /*i0=0*/ { 1, 2 },\n { 3, nan } \
         })\n ROOT d = f32[2] constant({...})\n}",
    );
    assert!(printed.contains("constant({ { 1, 2 }, { 3, nan } })"), "{printed}");
    assert!(printed.contains("constant({...})"), "{printed}");
}

#[test]
fn comparing_finds_every_kind_of_difference() {
    let original = parse(MODULE.as_bytes());
    for (from, to) in [
        ("HloModule m", "HloModule n"),
        ("is_scheduled=true,", "is_scheduled=false,"),
        ("line=3", "line=4"),
        ("add(a, /* b */ b)", "add(b, a)"),
        ("add(a, /* b */ b)", "multiply(a, b)"),
        ("a = f32[] parameter(0)", "a = f32[] parameter(7)"),
        ("inf.1 = f32[2]{0:T(256)}", "inf.1 = f32[2]{0:T(128)}"),
        ("inf.1 = f32[2]{0:T(256)}", "inf.1 = f32[2]"),
        ("sharding={replicated}", "sharding={manual}"),
        (", sharding={replicated}", ""),
        ("channel_id=3", "channel_id=4"),
        ("op_name=\"x\"", "op_name=\"x \""),
        ("{\"a\": 1}", "{\"a\":1}"),
        ("ROOT all-reduce =", "all-reduce ="),
        ("control-predecessors={t}", "control-predecessors={inf.1}"),
        (", control-predecessors={t}", ""),
        ("  r = f32[] add", "  s = f32[] add"),
        ("  last = f32[2]", "  other = f32[2]"),
        ("copy(all-reduce)", "copy(inf.1)"),
        ("ENTRY main", "ENTRY other"),
        ("copy(all-reduce), control-predecessors={t}", "copy(all-reduce)\n  x = f32[] constant(1)"),
    ] {
        assert!(MODULE.contains(from), "{from}");
        let changed = parse(MODULE.replacen(from, to, 1).as_bytes());
        assert!(structurally_equal(&original, &changed).is_err(), "{from} and {to} are the same");
        assert!(structurally_equal(&changed, &original).is_err(), "{to} and {from} are the same");
    }
    structurally_equal(&original, &parse(MODULE.as_bytes())).expect("the same text");
    let bare = EqualityOptions { layouts: false, metadata: false, backend_config: false };
    let other = MODULE.replace(":T(256)", "").replace("\"x\"", "\"y\"").replace("\"a\": 1", "");
    structurally_equal_with(&original, &parse(other.as_bytes()), &bare).expect("the same but");
}

#[test]
fn fingerprints_take_in_what_they_are_asked_to() {
    let all = FingerprintOptions {
        names: true,
        channel_ids: true,
        metadata: true,
        layouts: true,
        backend_config: true,
        schedule: true,
    };
    let none = FingerprintOptions {
        names: false,
        channel_ids: false,
        metadata: false,
        layouts: false,
        backend_config: false,
        schedule: false,
    };
    let of = |text: &str, options| fingerprint(&parse(text.as_bytes()), options);
    let renamed = MODULE.replace("all-reduce)", "ar.7)").replace("ROOT all-reduce", "ROOT ar.7");
    let moved = {
        let (before, after) = MODULE.split_once("  t = ").expect("t");
        let (t, rest) = after.split_once('\n').expect("a line");
        let (inf, rest) = rest.split_once('\n').expect("a line");
        format!("{before}{inf}\n  t = {t}\n{rest}")
    };
    for text in [
        renamed,
        moved,
        MODULE.replace("channel_id=3", "channel_id=5"),
        MODULE.replace("op_name=\"x\"", "op_name=\"y\""),
        MODULE.replace("inf.1 = f32[2]{0:T(256)}", "inf.1 = f32[2]{0}"),
        MODULE.replace("{\"a\": 1}", "{\"a\": 2}"),
    ] {
        assert_ne!(of(MODULE, &all), of(&text, &all), "{text}");
        assert_eq!(of(MODULE, &none), of(&text, &none), "{text}");
    }
    for text in [
        MODULE.replace("f32[] add(", "f32[] multiply("),
        MODULE.replace("copy(all-reduce)", "copy(inf.1)"),
        MODULE.replace("ROOT all-reduce", "all-reduce"),
        MODULE.replace(", control-predecessors={t}", ""),
        MODULE.replace("{replicated}", "{manual}"),
        MODULE.replace("f32[2] copy", "f32[3] copy"),
    ] {
        assert_ne!(of(MODULE, &none), of(&text, &none), "{text}");
    }
}

/// The documented algorithm, fixed: a change of these bytes needs a new version number.
#[test]
fn fingerprints_are_the_same_in_every_run() {
    let module = parse(MODULE.as_bytes());
    let hex = |options: &FingerprintOptions| {
        fingerprint(&module, options).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!(hex(&FingerprintOptions::default()), "b97023c954c60ab1143929f17126159e");
}

/// Fusions have no schedule: XLA prints their instructions in an order of its own.
#[test]
fn the_order_of_instructions_in_fusions_means_nothing() {
    let text = |is_sorted: bool, opcode: &str| {
        let (p, c) = ("  p = f32[] parameter(0)\n", "  c = f32[] constant(1)\n");
        let first = if is_sorted { [p, c] } else { [c, p] }.concat();
        let called = match opcode {
            "fusion" => "kind=kLoop, calls=f",
            _ => "to_apply=f",
        };
        format!(
            "HloModule m, is_scheduled=true\n\nf {{\n{first}  ROOT r = f32[] add(p, c)\n}}\n\n\
             ENTRY e {{\n  x = f32[] parameter(0)\n  ROOT y = f32[] {opcode}(x), {called}\n}}\n"
        )
    };
    let options = FingerprintOptions::default();
    for (opcode, is_same) in [("fusion", true), ("call", false)] {
        let (a, b) = (text(true, opcode), text(false, opcode));
        let (a, b) = (parse(a.as_bytes()), parse(b.as_bytes()));
        assert_eq!(fingerprint(&a, &options) == fingerprint(&b, &options), is_same);
        assert_eq!(structurally_equal(&a, &b).is_ok(), is_same);
    }
}

/// XLA prints zeros with a sign in one spelling, and reads another.
#[test]
fn zeros_with_a_sign_are_the_same_in_every_spelling() {
    let text = |zero: &str| format!("HloModule m\nENTRY e {{ ROOT c = f32[] constant({zero}) }}");
    let options = FingerprintOptions::default();
    let first = parse(text("-0").as_bytes());
    for (zero, is_same) in [("-0.0", true), ("-0.", true), ("0", false), ("-0.5", false)] {
        let other = parse(text(zero).as_bytes());
        assert_eq!(fingerprint(&first, &options) == fingerprint(&other, &options), is_same);
        assert_eq!(structurally_equal(&first, &other).is_ok(), is_same, "{zero}");
    }
    assert!(long(&text("-0")).contains("constant(-0)"));
}

/// Inferred tuples share their parts; their text would be larger than the module by any factor.
#[test]
fn text_stays_in_proportion_to_what_was_read() {
    let mut text = "HloModule m\nENTRY e {\n  t0 = f32[2] parameter(0)\n".to_string();
    for index in 1..15 {
        text.push_str(&format!("  t{index} = tuple(t{0}, t{0})\n", index - 1));
    }
    for index in 0..300 {
        text.push_str(&format!("  u{index} = copy(t14)\n"));
    }
    text.push('}');
    let module = parse(text.as_bytes());
    for options in all_print_options() {
        let printed = check_round_trip(&module, &options);
        assert!(printed.len() < (3 << 20) + 20 * text.len(), "{}", printed.len());
        let again = parse(&printed);
        let options = FingerprintOptions { layouts: options.layouts, ..Default::default() };
        assert_eq!(fingerprint(&module, &options), fingerprint(&again, &options));
    }
}

#[test]
fn text_of_rows_is_verbatim() {
    let module = parse(MODULE.as_bytes());
    let row = |name: &str| Row(module.find_instructions(name.as_bytes())[0]);
    assert_eq!(module.instruction_text(row("r")), b"r = f32[] add(a, /* b */ b)");
    assert!(module.instruction_text(row("all-reduce")).starts_with(b"ROOT all-reduce = "));
    let single = parse(b"ROOT %r = f32[2] add(f32[2] a, f32[2] b)");
    let root = Row(single.computation(single.entry()).root);
    assert_eq!(single.instruction_text(root), b"ROOT %r = f32[2] add(f32[2] a, f32[2] b)");
    let nameless = parse(b"f32[2] negate(f32[2] a)");
    let root = Row(nameless.computation(nameless.entry()).root);
    assert_eq!(nameless.instruction_text(root), b"f32[2] negate(f32[2] a)");
}

#[test]
fn what_is_implied_makes_no_other_program() {
    let entry = |layout: &str, result: &str| {
        format!(
            "ENTRY e {{\n  p = f32[4,2]{layout} parameter(0)\n  q = f32[] parameter(1)\n  \
             ROOT t = (f32[4,2]{layout}, f32[]) tuple(p, q)\n}}\n{result}"
        )
    };
    let plain = parse(format!("HloModule m\n\n{}", entry("", "")).as_bytes());
    let headers = [
        "HloModule m, entry_computation_layout={(f32[4,2]{1,0}, f32[])->(f32[4,2]{1,0}, f32[])}",
        "HloModule m, entry_computation_layout={(f32[4,2], f32[])->(f32[4,2], f32[])}",
        "HloModule m, replica_count=1, num_partitions=1, is_scheduled=false",
        "HloModule m, input_output_alias={ }, allow_spmd_sharding_propagation_to_output={false}",
    ];
    let names = FingerprintOptions { names: true, ..FingerprintOptions::default() };
    let same = |a: &Module, b: &Module| {
        let are_equal = structurally_equal(a, b).is_ok();
        for options in [FingerprintOptions::default(), names] {
            assert_eq!(fingerprint(a, &options) == fingerprint(b, &options), are_equal);
        }
        are_equal
    };
    for header in headers {
        for layout in ["", "{1,0}"] {
            let text = format!("{header}\n\n{}", entry(layout, ""));
            assert!(same(&plain, &parse(text.as_bytes())), "{text}");
        }
    }
    for other in [
        format!("HloModule m\n\n{}", entry("{0,1}", "")),
        format!("HloModule m, replica_count=2\n\n{}", entry("", "")),
        format!(
            "HloModule m, entry_computation_layout={{(f32[4,2]{{0,1}}, f32[])->(f32[4,2], f32[])}}\n\n{}",
            entry("", "")
        ),
    ] {
        assert!(!same(&plain, &parse(other.as_bytes())), "{other}");
    }
}

#[test]
fn printing_keeps_the_fingerprint_with_names() {
    let text = "HloModule m\n\nENTRY e {\n  p = f32[4]{0} parameter(0)\n  z = f32[] constant(0)\n  \
                r = f32[] reduce(p, z), dimensions={0}, to_apply={\n    a = f32[] parameter(0)\n    \
                b = f32[] parameter(1)\n    ROOT c = f32[] add(a, b)\n  }\n  \
                ROOT n = f32[] negate(f32[] negate(r))\n}\n";
    let options = FingerprintOptions { names: true, ..FingerprintOptions::default() };
    let module = parse(text.as_bytes());
    let printed = parse(long(text).as_bytes());
    assert_eq!(fingerprint(&module, &options), fingerprint(&printed, &options));
    let renamed = parse(text.replace("z", "y").as_bytes());
    assert_ne!(fingerprint(&module, &options), fingerprint(&renamed, &options));
}
