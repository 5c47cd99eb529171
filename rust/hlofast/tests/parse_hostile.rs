//! Texts made to hurt. Each is about a megabyte: work that grows with the square of the text would
//! not end while anyone waits, recursion would meet the end of the stack, and what is allocated is
//! counted and held against the text.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[path = "support/allocations.rs"]
mod allocations;
#[allow(dead_code, reason = "this program uses a part")]
mod support;

use allocations::Counting;
use hlofast::text::Source;
use hlofast::{ErrorKind, Options, parse};
use std::sync::{Mutex, MutexGuard, PoisonError};
use support::exercise::exercise;
use support::invariants::check_invariants;
use support::mutate::{Random, mutate};

#[global_allocator]
static HEAP: Counting = Counting::new();

/// One test at a time, so that each counts its own memory.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Heap bytes that reading may take, per byte of text and at least.
const BYTES_PER_BYTE: usize = 40;
const AT_LEAST: usize = 256 << 10;

/// Reads `text` in four ways; the kinds of the first faults found.
fn survive(what: &str, text: &[u8]) -> Vec<Option<ErrorKind>> {
    survive_with(what, text, BYTES_PER_BYTE)
}

fn survive_with(what: &str, text: &[u8], bytes_per_byte: usize) -> Vec<Option<ErrorKind>> {
    let source = Source::from_slice(text);
    let mut kinds = Vec::new();
    for bits in 0..4 {
        let options = Options {
            collect_errors: bits & 1 != 0,
            force_general: bits & 2 != 0,
            ..Options::default()
        };
        let (peak, read) = HEAP.peak_of(|| parse(source.clone(), &options));
        let bound = text.len() * bytes_per_byte + AT_LEAST;
        assert!(peak <= bound, "{what}: {peak} bytes of heap for {} of text", text.len());
        if let Ok(module) = &read {
            check_invariants(module);
            exercise(module);
        }
        kinds.push(match read {
            Ok(module) => module.errors().first().map(|error| error.kind()),
            Err(error) => Some(error.kind()),
        });
    }
    assert_eq!(kinds[0], kinds[2], "{what}: the paths differ");
    assert_eq!(kinds[1], kinds[3], "{what}: the paths differ");
    kinds
}

/// `piece` as often as it fits in `bytes`.
fn fill(piece: &str, bytes: usize) -> String {
    piece.repeat(bytes / piece.len() + 1)
}

/// A module whose entry holds `lines`.
fn entry(lines: &str) -> String {
    format!("HloModule m\n\nENTRY e {{\n  p = f32[2] parameter(0)\n{lines}\n}}\n")
}

const SIZE: usize = 1 << 20;

#[test]
fn unclosed_brackets_of_every_kind_and_place() {
    let _alone = alone();
    type Place = fn(&str) -> String;
    let places: [(&str, Place); 9] = [
        ("text", |bomb| bomb.to_string()),
        ("header", |bomb| format!("HloModule m, x={bomb}")),
        ("layout", |bomb| format!("HloModule m, entry_computation_layout={{{bomb}")),
        ("shape", |bomb| entry(&format!("a = {bomb}"))),
        ("operand", |bomb| entry(&format!("a = f32[2] add({bomb}"))),
        ("literal", |bomb| entry(&format!("a = f32[2] constant({bomb}"))),
        ("attribute", |bomb| entry(&format!("a = f32[2] add(p, p), x={bomb}"))),
        ("dictionary", |bomb| entry(&format!("a = f32[2] add(p, p), backend_config={bomb}"))),
        ("body", |bomb| format!("HloModule m\ne {{\n{bomb}")),
    ];
    let bombs =
        ["(", "{", "[", "({[", "\"", "'", "/*", "/* ", "{\"", "(f32[2],", "b(", "add(", "//"];
    for (place, text) in places {
        for bomb in bombs {
            let what = format!("{bomb:?} in {place}");
            let kinds = survive(&what, text(&fill(bomb, SIZE / 4)).as_bytes());
            assert!(kinds[0].is_some() || bomb == "//", "{what} is no module");
        }
    }
}

#[test]
fn every_line_leaves_something_open() {
    let _alone = alone();
    for line in [
        "  a = f32[2] constant({\n",
        "  a = f32[2] add(p, p), x=\"\n",
        "  a = f32[2] add(p, p) /*\n",
        "  a = (f32[2],\n",
        "  a = f32[2] add(p,\n",
        "  a = f32[2] call(p), to_apply={\n",
        "  a = f32[2] add(p, p), backend_config={\n",
        "}\nc {\n",
        "}\nc (\n",
        "c (x: \"\n}\n",
        "  a = f32[2] add(add(1 2\n",
    ] {
        survive(line, entry(&fill(line, SIZE / 2)).as_bytes());
    }
}

#[test]
fn deep_but_closed() {
    let _alone = alone();
    let nest = |open: &str, core: &str, close: &str, depth: usize| {
        format!("{}{core}{}", open.repeat(depth), close.repeat(depth))
    };
    for depth in [10, 8_000, 9_000, 100_000] {
        let shape = entry(&format!("a = {} after-all()", nest("(", "f32[2]", ")", depth)));
        let nested = entry(&format!("a = f32[2] {}", nest("negate(", "p", ")", depth)));
        let typed = entry(&format!("a = f32[2] {}", nest("negate(f32[2] ", "p", ")", depth)));
        let braces = entry(&format!("a = f32[2] negate(p), x={}", nest("{", "", "}", depth)));
        let sharding =
            entry(&format!("a = f32[2] negate(p), sharding={}", nest("{", "", "}", depth)));
        let literal = entry(&format!("a = f32[2] constant({})", nest("{", "1", "}", depth)));
        let block = "{ q = f32[2] parameter(0) r = f32[2] call(q), to_apply=";
        let blocks = entry(&format!("a = f32[2] call(p), to_apply={}", {
            nest(block, "{ q = f32[2] parameter(0) }", " }", depth.min(20_000))
        }));
        // Each block is read ahead for the shape that the call around it leaves out.
        let shapeless = blocks.replace("= f32[2] call", "= call");
        let lines = blocks.replace("{ q", "{\n q").replace(") r", ")\n r");
        let start = "{ q = f32[2] parameter(0) r = ((f32[2]), f32[2]) call-start(q), to_apply=";
        let starts = entry(&format!("a = ((f32[2]), f32[2]) call-start(p), to_apply={}", {
            nest(start, "{ q = f32[2] parameter(0) }", " }", depth.min(20_000))
        }));
        let groups = entry(&format!("a = f32[2] negate(p), replica_groups={}", {
            nest("{", "1", "}", depth)
        }));
        for (what, text) in [
            ("shape", shape),
            ("nested operands", nested),
            ("typed nested operands", typed),
            ("braces", braces),
            ("sharding", sharding),
            ("literal", literal),
            ("blocks", blocks),
            ("blocks without shapes", shapeless),
            ("blocks on lines", lines),
            ("blocks of starts", starts),
            ("groups", groups),
        ] {
            let kinds = survive(&format!("{what} {depth} deep"), text.as_bytes());
            assert!(depth > 10 || kinds[0].is_none(), "{what} {depth} deep: {kinds:?}");
        }
    }
}

#[test]
fn many_of_everything() {
    let _alone = alone();
    let tuple = |count: usize| format!("({})", vec!["f32[2]"; count].join(", "));
    let wide = format!("a = {} tuple({})", tuple(100_000), vec!["p"; 100_000].join(", "));
    let elements: String =
        (0..30_000).map(|i| format!("g{i} = f32[2] get-tuple-element(a), index={i}\n")).collect();
    let paths: String = (0..30_000).map(|i| format!("h{i} = f32[2] negate(a#{i})\n")).collect();
    let numbered = |line: &dyn Fn(usize) -> String, count| (0..count).map(line).collect::<String>();
    let computations =
        numbered(&|i| format!("c{i} {{\n ROOT q = f32[] parameter(0)\n}}\n"), 30_000);
    let texts = [
        ("tuple", entry(&wide)),
        ("tuple elements", entry(&format!("{wide}\n{elements}"))),
        ("tuple paths", entry(&format!("{wide}\n{paths}"))),
        ("modules", fill("HloModule m\nENTRY e {\n ROOT p = f32[] parameter(0)\n}\n", SIZE)),
        ("computations", format!("HloModule m\n{computations}")),
        ("same names", entry(&fill("a = f32[2] negate(p)\n", SIZE))),
        ("one line", entry(&numbered(&|i| format!("a{i} = f32[2] negate(p) "), 40_000))),
        ("blank lines", entry(&fill("\n", SIZE))),
        ("commas", entry(&format!("a = f32[2] add(p, p{})", fill(",", SIZE)))),
        ("attributes", entry(&format!("a = f32[2] negate(p){}", fill(", x=1", SIZE)))),
        ("types without names", entry(&format!("a = f32[2] tuple({}p)", fill("f32[2], ", SIZE)))),
        (
            "opcodes without operands",
            entry(&format!("a = f32[2] tuple({}p)", fill("add(1 2), ", SIZE))),
        ),
        (
            "empty blocks",
            entry(&format!(
                "a = f32[2] custom-call(p), called_computations={{{}}}",
                fill("{},", SIZE)
            )),
        ),
        (
            "blocks",
            entry(&format!(
                "a = f32[2] custom-call(p), called_computations={{{}}}",
                fill("{q = f32[] parameter(0)},", SIZE)
            )),
        ),
        (
            "unknown operands",
            entry(&numbered(&|i| format!("a{i} = f32[2] negate(b{i})\n"), 30_000)),
        ),
        (
            "cycles",
            entry(&numbered(
                &|i| format!("a{i} = f32[2] negate(b{i})\nb{i} = f32[2] negate(a{i})\n"),
                15_000,
            )),
        ),
        (
            "long cycle",
            entry(&numbered(&|i| format!("a{i} = f32[2] negate(a{})\n", (i + 1) % 30_000), 30_000)),
        ),
        (
            "computations that call themselves",
            format!(
                "HloModule m\n{}",
                numbered(
                    &|i| { format!("c{i} {{\n ROOT q = f32[] call(), to_apply=c{i}\n}}\n") },
                    20_000
                )
            ),
        ),
        (
            "control predecessors",
            entry(&format!("a = f32[2] negate(p), control-predecessors={{{}}}", fill("b, ", SIZE))),
        ),
        (
            "nested parameters",
            entry(&format!(
                "a = tuple({})",
                numbered(&|i| format!("f32[] parameter({}), ", 100_000 - i), 60_000)
            )),
        ),
        ("parameters", entry(&fill("q = f32[2] parameter(1)\n", SIZE))),
        (
            "parameter numbers",
            entry(&numbered(&|i| format!("q{i} = f32[2] parameter({})\n", i / 2), 30_000)),
        ),
        (
            "starts",
            entry(&numbered(
                &|i| format!("s{i} = ((f32[2]), f32[2], u32[]) negate-start(p)\n"),
                15_000,
            )),
        ),
        ("roots", entry(&numbered(&|i| format!("ROOT r{i} = f32[2] negate(p)\n"), 30_000))),
        ("one name", entry(&format!("{} = f32[2] negate(p)", fill("a", SIZE)))),
        ("carriage returns", entry(&fill("a = f32[2] negate(p)\r", SIZE))),
        ("NUL", entry(&fill("\0", SIZE))),
    ];
    for (what, text) in texts {
        survive(what, text.as_bytes());
    }
    survive("bytes that are no text", &vec![0xff; SIZE]);
    let mut text = entry("a = f32[2] custom-call(p), custom_call_target=\"").into_bytes();
    text.extend(vec![0xfe; SIZE]);
    text.extend(b"\"\n}\n");
    survive("a string that is no text", &text);
}

#[test]
fn chains_of_tuple_paths_are_bounded() {
    let _alone = alone();
    let depth = 4_000;
    let shape = format!("{}f32[2]{}", "(".repeat(depth), ")".repeat(depth));
    let name = "n".repeat(2_000);
    for name in ["t", &name] {
        let path = "#0".repeat(depth);
        let lines: String = (0..20)
            .map(|i| format!("{name}{i} = {shape} custom-call(p), custom_call_target=\"x\"\n a{i} = f32[2] negate({name}{i}{path})\n"))
            .collect();
        // Two bytes of a path are a row with its name.
        survive_with("a chain of tuple paths", entry(&lines).as_bytes(), 2 * BYTES_PER_BYTE);
    }
}

#[test]
fn shapes_that_hold_themselves_many_times_over() {
    let _alone = alone();
    let mut lines = String::from("  t0 = tuple(p, p)\n");
    for i in 1..200 {
        lines.push_str(&format!("  t{i} = tuple(t{j}, t{j})\n", j = i - 1));
    }
    survive("doubling tuples", entry(&lines).as_bytes());
    lines.push_str("  w = while(t199), condition=c, body=b\n  s = select(p, t199, t199)\n");
    survive("doubling tuples in use", entry(&lines).as_bytes());
}

#[test]
fn numbers_cost_nothing() {
    let _alone = alone();
    for number in
        ["0", "-1", "2147483648", "4294967295", "9223372036854775807", "18446744073709551616"]
    {
        let many = "9".repeat(10_000);
        for number in [number, &many] {
            let lines = [
                format!("a = f32[{number}] negate(p)"),
                format!("a = f32[{number},{number}]{{1,0:T({number},128)}} negate(p)"),
                format!("a = f32[<={number}] constant({{...}})"),
                format!("a = s32[{number}] iota(), iota_dimension={number}"),
                format!("a = f32[2] parameter({number})"),
                format!(
                    "a = f32[2] all-reduce(p), replica_groups=[{number},{number}]<=[{number}]T({number})"
                ),
                format!(
                    "a = f32[2] all-reduce(p), replica_groups=[{number},{number}]<=[{number},{number}]T(1,0)"
                ),
                format!("a = f32[2] negate(p), sharding={{devices=[{number}]<=[{number}]}}"),
                format!(
                    "a = f32[2] negate(p), sharding={{mesh['a'={number}], [{{'a':({number}){number}}}]}}"
                ),
                format!(
                    "a = f32[2] pad(p, p), padding={number}_{number}_{number}x{number}_{number}"
                ),
                format!(
                    "a = f32[2] reduce-window(p, p), window={{size={number} stride={number} pad={number}_{number} lhs_dilate={number} rhs_dilate={number}}}, to_apply=x"
                ),
                format!("a = f32[2] slice(p), slice={{[{number}:{number}:{number}]}}"),
                format!(
                    "a = f32[2] negate(p), metadata={{op_name=\"x\" source_line={number} stack_frame_id={number}}}"
                ),
                format!("a = f32[2] negate(p#{number})"),
                format!("a = f32[2] get-tuple-element(p), index={number}"),
                format!("a = f32[2] constant({number})"),
                format!("a = f8e4m3fn[2] constant({{{number}e{number}, -{number}.{number}}})"),
            ];
            for line in lines {
                survive(&line, entry(&line).as_bytes());
            }
            let header = format!(
                "HloModule m, num_partitions={number}, replica_count={number}, input_output_alias={{ {{{number}}}: ({number}, {{{number}}}) }}\nENTRY e {{\n ROOT p = f32[] parameter(0)\n}}\n"
            );
            survive(&header, header.as_bytes());
        }
    }
}

#[test]
fn changed_texts_take_no_more_memory() {
    let _alone = alone();
    let probes = support::reading::probes();
    let mut random = Random(3);
    for _ in 0..3_000 {
        let probe = &probes[random.below(probes.len())];
        let seed = random.next();
        let mut text = probe.text.clone().into_bytes();
        for _ in 0..3 {
            text = mutate(&text, &mut Random(seed));
        }
        survive(&format!("{} changed by {seed}", probe.id), &text);
    }
}

/// Reads `text` as pieces of a module: the heap stays in proportion, and the module is sound.
fn survive_pieces(what: &str, text: &[u8]) {
    let source = Source::from_slice(text);
    let (peak, read) = HEAP.peak_of(|| {
        let pieces = hlofast::text::fragment(&source)?;
        parse(pieces, &Options::default()).ok()
    });
    let bound = text.len() * BYTES_PER_BYTE + AT_LEAST;
    assert!(peak <= bound, "{what}: {peak} bytes of heap for {} of text", text.len());
    if let Some(module) = &read {
        check_invariants(module);
        exercise(module);
    }
}

#[test]
fn pieces_take_time_and_memory_in_proportion() {
    let _alone = alone();
    let line = "%a = f32[2] add(%b, %c)\n";
    let times = (1 << 20) / line.len();
    let texts = [
        ("one line many times", line.repeat(times)),
        ("one name in a second listing", format!("{}{line}", line.repeat(2))),
        ("blank lines", format!("{line}{}", "\n".repeat(1 << 20))),
        ("braces", format!("{line}{}", "}\n".repeat(1 << 19))),
        ("headers", format!("{line}{}", "ENTRY e {\n".repeat(1 << 16))),
        ("a long cut line", format!("%a = f32[2] add({}", "%b, ".repeat(1 << 18))),
        ("cut lines", "%a = f32[2] add(%b,\n".repeat(1 << 15)),
        ("lines that continue none", format!("%a = f32[2] add(%b,\n{}", "%c,\n".repeat(1 << 18))),
        ("open shapes", format!("{line}{}", "%a = ((((((((((((\n".repeat(1 << 15))),
        ("one open shape", format!("{line}%a = {}", "(".repeat(1 << 20))),
        ("equal signs", format!("{line}{}", "=".repeat(1 << 20))),
        ("dots", format!("%a = f32[2] add({}", "...".repeat(1 << 18))),
        ("escapes", format!("{line}{}", "\x1b[".repeat(1 << 19))),
        ("quotes", format!("{line}{}", ">".repeat(1 << 20))),
        ("numbers", format!("{line}{}", "1:".repeat(1 << 19))),
        ("operands", format!("%a = f32[2] tuple({})\n{line}", "%b, ".repeat(1 << 17))),
        ("names", (0..1 << 15).map(|n| format!("%a{n} = f32[2] add(%b{n}, %c{n})\n")).collect()),
        (
            "calls",
            (0..1 << 14).map(|n| format!("%a{n} = f32[] call(), to_apply=%c{n}\n")).collect(),
        ),
    ];
    for (what, text) in texts {
        survive_pieces(what, text.as_bytes());
    }
}
