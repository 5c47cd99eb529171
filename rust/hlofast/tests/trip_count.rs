//! Trip counts: noted by the compiler, inferred from condition and body, and unknown.

use crate::support::loops::{Loop, only};
use crate::support::reading;
use hlofast::Provenance;
use hlofast::flow::trip_count::{inferred_trip_count, trip_count, trip_counts};
use hlofast::ir::Opcode;

#[test]
fn every_direction_and_sign() {
    let cases = [
        ("LT", 0, 10, 3, Some(4)),
        ("LT", 0, 9, 3, Some(3)),
        ("LE", 0, 9, 3, Some(4)),
        ("LE", 0, 10, 3, Some(4)),
        ("GT", 10, 0, -3, Some(4)),
        ("GE", 9, 0, -3, Some(4)),
        ("NE", 0, 9, 3, Some(3)),
        ("NE", 9, 0, -3, Some(3)),
        ("NE", 0, 10, 3, None),
        ("NE", 5, 5, 3, Some(0)),
        ("EQ", 5, 5, 3, Some(1)),
        ("EQ", 4, 5, 3, Some(0)),
        ("LT", 10, 10, 1, Some(0)),
        ("LT", 11, 10, -1, Some(0)),
        ("LE", 11, 10, 1, Some(0)),
        // The variable moves away from the bound: the loop would only end by wrapping around.
        ("LT", 0, 10, -1, None),
        ("GT", 5, 0, 1, None),
        // The variable never changes.
        ("LT", 0, 10, 0, None),
        ("EQ", 5, 5, 0, None),
        // One iteration, although the step does not divide the bound.
        ("LT", 0, 1, 2, Some(1)),
        ("LT", i128::from(i32::MAX) - 1, i128::from(i32::MAX), 1, Some(1)),
        ("LE", 0, i128::from(i32::MAX), 1, None),
        ("LT", 0, i128::from(i32::MAX), 2, None),
        ("LT", i128::from(i32::MIN), i128::from(i32::MAX), 1, Some(u64::from(u32::MAX))),
    ];
    for (direction, init, bound, step, expected) in cases {
        let condition = format!("ROOT c = pred[] compare(i, n), direction={direction}");
        let body = format!("s = T[] constant({step})\n next = T[] add(s, i)");
        let case = Loop { condition: &condition, body: &body, init, bound, ..Loop::default() };
        assert_eq!(case.count(), expected, "{direction} {init} {bound} {step}");
        // The same with the bound on the left.
        let swapped = direction.replace('L', "#").replace('G', "L").replace('#', "G");
        let condition = format!("ROOT c = pred[] compare(n, i), direction={swapped}");
        let case = Loop { condition: &condition, body: &body, init, bound, ..Loop::default() };
        assert_eq!(case.count(), expected, "{direction} {init} {bound} {step} swapped");
    }
}

#[test]
fn every_integer_type() {
    for ty in ["s4", "s8", "s16", "s32", "s64", "u4", "u8", "u16", "u32", "u64"] {
        assert_eq!(Loop { ty, bound: 7, ..Loop::default() }.count(), Some(7), "{ty}");
    }
    let max = i128::from(u64::MAX);
    let big = Loop { ty: "u64", init: max - 5, bound: max, ..Loop::default() };
    assert_eq!(big.count(), Some(5));
    let from_zero = Loop { ty: "u64", bound: max, ..Loop::default() };
    assert_eq!(from_zero.count(), Some(u64::MAX));
    // XLA turns `i - 1` into an addition of the largest value.
    let body = "m = T[] constant(4294967295)\n next = T[] add(i, m)";
    let condition = "ROOT c = pred[] compare(i, n), direction=GT";
    let down = Loop { ty: "u32", init: 9, bound: 2, body, condition, ..Loop::default() };
    assert_eq!(down.count(), Some(7));
    // Unsigned values are never less than zero.
    let condition = "ROOT c = pred[] compare(i, n), direction=GE";
    let below = Loop { ty: "u32", init: 9, bound: 0, body, condition, ..Loop::default() };
    assert_eq!(below.count(), None);
    assert_eq!(Loop { ty: "f32", bound: 7, ..Loop::default() }.count(), None);
}

#[test]
fn what_passes_values_on_is_looked_through() {
    let bodies = [
        "one = T[] constant(1)\n c = T[] copy(i)\n a = T[] add(one, c)\n next = T[] copy(a)",
        "l = T[] subtract(n, k)\n nine = T[] constant(9)\n one = T[] subtract(l, nine)\n next = T[] add(i, one)",
        "m = T[] constant(-1)\n next = T[] subtract(i, m)",
        "one = T[] constant(1)\n next = T[] fusion(i, one), kind=kLoop, calls=plus",
        "one = T[] constant(1)\n next = T[] call(one, i), to_apply=plus",
        "pair = (f32[8], T[]) fusion(x, i), kind=kLoop, calls=both\n next = T[] get-tuple-element(pair), index=1",
        "two = T[] constant(2)\n one = T[] constant(1)\n s = T[] subtract(two, one)\n next = T[] add(i, s)",
        "l = s64[] convert(i)\n one = s64[] constant(1)\n a = s64[] add(l, one)\n next = T[] convert(a)",
        "b = T[1] reshape(i)\n one = T[] constant(1)\n o = T[1] broadcast(one), dimensions={}\n a = T[1] add(b, o)\n next = T[] bitcast(a)",
        "one = T[] constant(1)\n s = (T[], u32[]) copy-start(i)\n d = T[] copy-done(s)\n next = T[] add(d, one)",
        "one = T[] constant(1)\n t = (T[], T[]) tuple(one, i)\n o = (T[], T[]) opt-barrier(t)\n a = T[] get-tuple-element(o), index=0\n b = T[] get-tuple-element(o), index=1\n next = T[] add(a, b)",
        "one = T[] constant(1)\n a = T[] add(i, one)\n next = T[] custom-call(a), custom_call_target=\"Sharding\"",
    ];
    let extra = "
plus {\n a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT s = T[] add(a, b)\n}
both {\n x = f32[8] parameter(0)\n i = T[] parameter(1)\n one = T[] constant(1)\n n = T[] add(i, one)\n ROOT t = (f32[8], T[]) tuple(x, n)\n}";
    for body in bodies {
        assert_eq!(Loop { body, extra, ..Loop::default() }.count(), Some(10), "{body}");
    }
    let conditions = [
        "ROOT f = pred[] fusion(i, n), kind=kLoop, calls=less",
        "c = pred[] compare(i, n), direction=GE\n ROOT f = pred[] not(c)",
        "c = pred[] compare(i, n), direction=LT\n t = pred[] constant(true)\n ROOT f = pred[] and(t, c)",
        "c = pred[] compare(i, n), direction=GE\n t = pred[] constant(false)\n o = pred[] or(t, c)\n ROOT f = pred[] not(o)",
        "c = pred[] compare(i, n), direction=LT\n big = T[] constant(50)\n d = pred[] compare(i, big), direction=LT\n ROOT f = pred[] and(d, c)",
        "one = T[] constant(1)\n j = T[] add(i, one)\n ROOT c = pred[] compare(j, n), direction=LE",
        "two = T[] constant(2)\n j = T[] multiply(i, two)\n m = T[] multiply(two, n)\n ROOT c = pred[] compare(j, m), direction=LT",
        "d = T[] subtract(n, i)\n z = T[] constant(0)\n ROOT c = pred[] compare(d, z), direction=GT",
        "a = f32[] constant(1)\n r = T[] constant(10)\n ROOT c = pred[] compare(i, r), direction=LT",
    ];
    let extra = "less {\n a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT s = pred[] compare(a, b), direction=LT\n}";
    for condition in conditions {
        assert_eq!(Loop { condition, extra, ..Loop::default() }.count(), Some(10), "{condition}");
    }
}

#[test]
fn what_depends_on_data_stays_unknown() {
    let bodies = [
        ("next = T[] add(i, i)", "next"),
        ("two = T[] constant(2)\n next = T[] multiply(i, two)", "next"),
        ("next = T[] constant(3)", "next"),
        ("next = T[] negate(i)", "next"),
        ("next = T[] copy(i)", "next"),
        (
            "one = T[] constant(1)\n a = T[] add(i, one)\n f = f32[1] slice(x), slice={[0:1]}\n g = f32[] reshape(f)\n z = f32[] constant(0)\n p = pred[] compare(g, z), direction=GT\n next = T[] select(p, a, i)",
            "next",
        ),
        (
            "z = f32[1] slice(x), slice={[0:1]}\n f = f32[] reshape(z)\n next = T[] convert(f)",
            "next",
        ),
        // The step is another element that changes: here the bound itself counts down.
        (
            "one = T[] constant(1)\n next = T[] add(i, one)\n m = T[] subtract(n, i)",
            "next, m, k, y) /*",
        ),
        (
            "one = T[] constant(1)\n a = T[] add(i, one)\n p = pred[] compare(a, n), direction=LT\n next = T[] conditional(p, a, i), true_computation=same, false_computation=same",
            "next",
        ),
    ];
    let extra = "same {\n ROOT a = T[] parameter(0)\n}";
    for (body, next) in bodies {
        let mut text = Loop { body, next, extra, ..Loop::default() }.text();
        text = text.replace("/*, n, k, y)", "");
        assert_eq!(only(&text).count, None, "{body}");
    }
    let conditions = [
        "s = f32[1] slice(x), slice={[0:1]}\n f = f32[] reshape(s)\n z = f32[] constant(0)\n ROOT c = pred[] compare(f, z), direction=GT",
        "q = T[] multiply(i, i)\n ROOT c = pred[] compare(q, n), direction=LT",
        "c = pred[] compare(i, n), direction=LT\n z = T[] constant(3)\n d = pred[] compare(i, z), direction=LT\n ROOT o = pred[] or(c, d)",
        "ROOT c = pred[] constant(true)",
    ];
    for condition in conditions {
        assert_eq!(Loop { condition, ..Loop::default() }.count(), None, "{condition}");
    }
    // Bounds that come from outside.
    let traced = Loop::default().text().replace("tuple(first, limit,", "tuple(first, d,");
    let trip_count = only(&traced);
    assert_eq!(trip_count.count, None);
    assert!(trip_count.reason.contains("entry"), "{}", trip_count.reason);
    // An upper bound is known if one of two conditions can be analysed.
    let condition = "c = pred[] compare(i, n), direction=LT\n s = f32[1] slice(x), slice={[0:1]}\n f = f32[] reshape(s)\n z = f32[] constant(0)\n d = pred[] compare(f, z), direction=GT\n ROOT b = pred[] and(d, c)";
    let trip_count = only(&Loop { condition, ..Loop::default() }.text());
    assert_eq!((trip_count.count, trip_count.at_most), (None, Some(10)));
}

#[test]
fn an_element_that_lags_behind() {
    let body = "one = T[] constant(1)\n next = T[] add(i, one)";
    let condition = "ROOT c = pred[] compare(k, n), direction=LT";
    // k holds i's previous value: 0, 0, 1, 2, ... from the same start is not a straight line.
    let lagging = Loop { body, condition, next: "next, n, i, y) /*", ..Loop::default() };
    let text = lagging.text().replace("/*, n, k, y)", "");
    assert_eq!(only(&text).count, None);
    // With k lagging by one from the start, it is a straight line.
    let text = text.replace("limit = T[]", "limit = s32[]");
    let text = text.replace("limit, first, p", "limit, before, p").replace(
        "p = f32[8] parameter(0)\n  d",
        "before = s32[] constant(-1)\n  p = f32[8] parameter(0)\n  d",
    );
    assert_eq!(only(&text).count, Some(11), "{text}");
}

#[test]
fn nested_loops_take_bounds_from_outside() {
    let text = "HloModule m
inner_condition {
  s = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT c = pred[] compare(i, n), direction=LT
}
inner_body {
  s = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], s32[]) tuple(j, n)
}
run {
  bound = s32[] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], s32[]) tuple(zero, bound)
  ROOT w = (s32[], s32[]) while(t), condition=inner_condition, body=inner_body
}
outer_condition {
  s = (s32[], s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT c = pred[] compare(i, three), direction=LT
}
outer_body {
  s = (s32[], s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  w = (s32[], s32[]) call(n), to_apply=run
  m = s32[] get-tuple-element(w), index=1
  k = s32[] get-tuple-element(w), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], s32[], s32[]) tuple(j, m, k)
}
ENTRY main {
  zero = s32[] constant(0)
  four = s32[] constant(4)
  t = (s32[], s32[], s32[]) tuple(zero, four, zero)
  ROOT w = (s32[], s32[], s32[]) while(t), condition=outer_condition, body=outer_body
}
";
    let counts = |text: &str| -> Vec<Option<u64>> {
        let module = reading::parse(text.as_bytes()).unwrap();
        trip_counts(&module).into_iter().map(|(_, trip_count)| trip_count.count).collect()
    };
    assert_eq!(counts(text), [Some(4), Some(3)]);
    // A triangular loop runs a different number of times each time.
    assert_eq!(counts(&text.replace("call(n)", "call(i)")), [None, Some(3)]);
    // Two call sites with the same bound agree, with different bounds they do not.
    let twice = |bound: &str| {
        let more = format!(
            "seven = s32[] constant(7)\n  extra = (s32[], s32[]) call({bound}), to_apply=run\n  ROOT w = (s32[], s32[], s32[]) while"
        );
        text.replace("ROOT w = (s32[], s32[], s32[]) while", &more)
    };
    assert_eq!(counts(&twice("four")), [Some(4), Some(3)]);
    assert_eq!(counts(&twice("seven")), [None, Some(3)]);
}

#[test]
fn what_the_compiler_noted_comes_first() {
    let noted = |config: &str| {
        let text = Loop::default().text();
        only(&text.replace("body=body", &format!("body=body, backend_config={config}")))
    };
    for config in [
        r#"{"known_trip_count":{"n":"12"},"known_init_step":{"init":"0","step":"1"}}"#,
        r#"{"known_trip_count":{"n":12}}"#,
        r#""{\"known_trip_count\":{\"n\":\"12\"}}""#,
        r#"'{"known_trip_count": {"n": "12"}}'"#,
    ] {
        let trip_count = noted(config);
        assert_eq!(
            (trip_count.count, trip_count.provenance),
            (Some(12), Provenance::FromBackendConfig)
        );
    }
    for config in [
        r#"{"known_trip_count":{"n":"-1"}}"#,
        r#"{"known_trip_count":{"n":"many"}}"#,
        r#"{"known_trip_count":{}}"#,
        r#"{"known_trip_count":12"#.trim_end_matches("12"),
        r#""known_trip_count""#,
        "{}",
    ] {
        if config.ends_with(':') {
            continue;
        }
        let trip_count = noted(config);
        assert_eq!(
            (trip_count.count, trip_count.provenance),
            (Some(10), Provenance::Exact),
            "{config}"
        );
    }
}

#[test]
fn inference_agrees_with_every_note_among_the_dumps() {
    let (mut noted, mut resolved) = (0, 0);
    let mut limits = Vec::new();
    // Trip counts that really depend on data: convergence, rejection sampling, decoding until the
    // end of a text, bounds from outside, triangular loops.
    let dynamic = [
        "a bound changes in the surrounding loop",
        "a compared value is not an integer",
        "the trip count depends on an entry parameter",
        "the condition depends on data",
    ];
    for (name, source) in reading::modules() {
        let module = hlofast::parse(source, &hlofast::Options::default()).unwrap();
        for (row, trip_count) in trip_counts(&module) {
            let inferred = inferred_trip_count(&module, row);
            if trip_count.provenance == Provenance::FromBackendConfig {
                assert_eq!(inferred.count, trip_count.count, "{name}: {}", inferred.reason);
                noted += 1;
            }
            let label = String::from_utf8_lossy(module.instruction_name(row)).into_owned();
            match inferred.count {
                Some(_) => resolved += 1,
                None => {
                    let expected = ["numerics", "decode", "control_flow"];
                    assert!(expected.iter().any(|part| name.contains(part)), "{name} {label}");
                    assert!(dynamic.contains(&inferred.reason), "{name} {label} {inferred:?}");
                    limits.extend(inferred.at_most);
                }
            }
        }
    }
    assert!(noted >= 35 && resolved >= 70, "{noted} {resolved}");
    // A loop that also counts to 10, and decoding of at most 32 tokens.
    assert!(limits.contains(&10) && limits.contains(&32), "{limits:?}");
}

/// Programs with a hand-written twin without loops.
#[test]
fn programs_whose_loops_were_unrolled() {
    let path = reading::tests_folder().join("fixtures/costs/loops.jsonl.gz");
    let lines = String::from_utf8(reading::read(&path)).unwrap();
    for line in lines.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let module = reading::parse(case["looped"].as_str().unwrap().as_bytes()).unwrap();
        let mut counts: Vec<Option<u64>> = Vec::new();
        for (row, _) in trip_counts(&module) {
            counts.push(inferred_trip_count(&module, row).count);
        }
        let listed = case["trip_counts"].as_array().unwrap();
        let mut expected: Vec<Option<u64>> = listed.iter().map(|n| n.as_u64()).collect();
        expected.sort();
        counts.sort();
        let what = ["name", "backend", "stage"].map(|key| case[key].as_str().unwrap());
        assert_eq!(counts, expected, "{what:?}");
    }
    assert!(lines.lines().count() >= 30);
}

#[test]
fn hostile_loops_end_quickly() {
    // Sums that double: 2 to the power of 400 operands if each were followed.
    let mut body = String::from("a0 = T[] add(i, i)\n");
    for n in 1..400 {
        body += &format!("a{n} = T[] add(a{}, a{})\n", n - 1, n - 1);
    }
    body += "next = T[] add(a399, i)";
    assert_eq!(Loop { body: &body, ..Loop::default() }.count(), None);
    // A long chain of copies is fine; a long chain of additions may be given up.
    let mut body = String::from("a0 = T[] copy(i)\n");
    for n in 1..3000 {
        body += &format!("a{n} = T[] copy(a{})\n", n - 1);
    }
    body += "one = T[] constant(1)\n next = T[] add(a2999, one)";
    assert_eq!(Loop { body: &body, ..Loop::default() }.count(), Some(10));
    // Many loops that all look at an instruction with a very long text.
    let long = format!("index=0, metadata={{op_name=\"{}\"}}", "x".repeat(200_000));
    let mut text = format!(
        "HloModule m\ncond {{\n s = (s32[]) parameter(0)\n i = s32[] get-tuple-element(s), {long}\n n = s32[] constant(2)\n ROOT c = pred[] compare(i, n), direction=LT\n}}\nbody {{\n ROOT s = (s32[]) parameter(0)\n}}\nENTRY main {{\n w0 = (s32[]) parameter(0)\n"
    );
    for n in 1..20_000 {
        text += &format!("w{n} = (s32[]) while(w{}), condition=cond, body=body\n", n - 1);
    }
    text += "}\n";
    let module = reading::parse(text.as_bytes()).unwrap();
    assert!(trip_counts(&module).iter().all(|(_, trip_count)| trip_count.count.is_none()));
    // Loops nested deeper than the limit.
    let mut text = String::from(
        "HloModule m\ncond {\n s = (s32[]) parameter(0)\n i = s32[] get-tuple-element(s), index=0\n n = s32[] constant(2)\n ROOT c = pred[] compare(i, n), direction=LT\n}\nbody0 {\n ROOT s = (s32[]) parameter(0)\n}\n",
    );
    for n in 1..2000 {
        text += &format!(
            "body{n} {{\n s = (s32[]) parameter(0)\n ROOT w = (s32[]) while(s), condition=cond, body=body{}\n}}\n",
            n - 1
        );
    }
    text += "ENTRY main {\n z = s32[] constant(0)\n t = (s32[]) tuple(z)\n ROOT w = (s32[]) while(t), condition=cond, body=body1999\n}\n";
    let module = reading::parse(text.as_bytes()).unwrap();
    let counts = trip_counts(&module);
    assert_eq!(counts.len(), 2000);
    assert!(counts.iter().all(|(_, trip_count)| trip_count.count.is_none()));
}

#[test]
fn other_instructions_have_no_count() {
    let module = reading::parse(Loop::default().text().as_bytes()).unwrap();
    for row in module.rows().filter(|row| module.opcode(*row) != Opcode::While) {
        assert_eq!(trip_count(&module, row).provenance, Provenance::Unknown);
    }
}
