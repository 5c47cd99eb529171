//! Strict mode agrees with jaxlib 0.10.2 on every probe (`tests/probes/verdicts.jsonl.gz`).

use crate::support::reading::{files_below, probes, read as content, tests_folder};
use hlofast::parse::Strictness;
use hlofast::text::{OpenOptions, Source};
use hlofast::{Options, parse};
use std::fmt::Write as _;

fn read(text: &str, strictness: Strictness) -> hlofast::Result<hlofast::ir::Module> {
    parse(Source::from_slice(text.as_bytes()), &Options { strictness, ..Options::default() })
}

/// Probes on which strict mode differs from jaxlib, and why.
const DISAGREEMENTS: &[(&str, &str)] = &[];

#[test]
#[allow(clippy::print_stdout, reason = "the agreement count is worth seeing")]
fn strict_mode_accepts_what_jaxlib_accepts() {
    let probes = probes();
    let mut report = String::new();
    let mut wrong = 0;
    for probe in &probes {
        let strict = read(&probe.text, Strictness::Jaxlib);
        let tolerant = read(&probe.text, Strictness::Tolerant);
        if strict.is_ok() {
            assert!(tolerant.is_ok(), "{}: strict reads it, tolerant does not", probe.id);
        }
        let known = DISAGREEMENTS.iter().any(|(id, _)| *id == probe.id);
        let agrees = strict.is_ok() == probe.is_accepted;
        if agrees && known {
            let _ = writeln!(report, "{}: agrees after all; take it off the list", probe.id);
        }
        if !agrees && !known {
            wrong += 1;
            let ours = strict.err().map_or("accept".to_string(), |error| format!("{error:?}"));
            let who = if tolerant.is_ok() { "" } else { " [tolerant]" };
            let _ = writeln!(report, "{}{who}: XLA {}; here {ours}", probe.id, probe.verdict);
        }
    }
    println!("{} probes, {} agree", probes.len(), probes.len() - wrong);
    assert!(report.is_empty(), "{wrong} of {} probes disagree:\n{report}", probes.len());
}

/// The ids in the lists called `key` of `newest.toml`.
fn newest(key: &str) -> Vec<String> {
    let path = tests_folder().join("probes").join("newest.toml");
    let text = std::fs::read_to_string(path).expect("the table of newer constructs is there");
    let mut ids = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(" = [") {
            inside = name == key;
        } else if line == "]" {
            inside = false;
        } else if let Some(id) = line.trim().strip_suffix("\",").and_then(|l| l.strip_prefix('"'))
            && inside
        {
            ids.push(id.replace("\\\"", "\"").replace("\\\\", "\\"));
        }
    }
    ids
}

#[test]
fn newest_mode_knows_what_is_newer() {
    let probes = probes();
    let mut report = String::new();
    for (key, wanted) in [("accepted", true), ("rejected", false)] {
        let ids = newest(key);
        assert!(!ids.is_empty());
        for id in ids {
            let probe = probes.iter().find(|probe| probe.id == id).expect("the probe is there");
            let result = read(&probe.text, Strictness::Newest);
            if result.is_ok() != wanted {
                let _ = writeln!(
                    report,
                    "{id}: wanted {wanted}, got {:?}\n{}",
                    result.err(),
                    probe.text
                );
            } else if wanted {
                assert!(read(&probe.text, Strictness::Tolerant).is_ok(), "{id}: tolerant");
            }
        }
    }
    assert!(report.is_empty(), "{report}");
}

/// Which of these XLA reads was found by giving it random texts, beyond the probes.
#[test]
fn shapes_and_marks_as_xla_takes_them() {
    let module =
        |shape: &str| format!("HloModule m\nENTRY e {{\n  ROOT p = {shape} parameter(0)\n}}\n");
    let reshape = |from: &str, to: &str| {
        let parameter = format!("p = {from} parameter(0)\n  ROOT r = {to} reshape(p)");
        module("s").replace("ROOT p = s parameter(0)", &parameter)
    };
    for (text, is_accepted) in [
        (module("f32[2,3]{0,0}"), true),
        (module("(f32[2,3]{1,0}, s32[])"), true),
        (module("(f32[2,3]{0,0}, s32[])"), false),
        (module("(s32[], (f32[2,3]{5,7}))"), false),
        (reshape("f32[120]", "f32[?,12,10]"), true),
        (reshape("f32[121]", "f32[?,12,10]"), false),
        (reshape("f32[?]", "f32[12,10]"), true),
        (format!("\u{feff}{}", module("f32[]")), false),
    ] {
        for strictness in [Strictness::Jaxlib, Strictness::Newest] {
            let options = Options { strictness, ..Options::default() };
            let bytes = text.clone().into_bytes().into();
            let source = hlofast::unpack(bytes, &OpenOptions::default()).unwrap();
            let result = parse(source, &options);
            assert_eq!(result.is_ok(), is_accepted, "{text}: {:?}", result.err());
        }
        assert!(read(text.trim_start_matches('\u{feff}'), Strictness::Tolerant).is_ok());
    }
}

#[test]
fn asynchronous_operations_of_newer_xla() {
    let shared = "HloModule m\nw {\n  x = f32[4]{0} parameter(0)\n  ROOT y = f32[4]{0} negate(x)\n}\n\
        ENTRY e {\n  p = f32[4]{0} parameter(0)\n  \
        a = ((f32[4]{0}), f32[4]{0}, s32[]) async-start(p), calls=w\n  \
        b = ((f32[4]{0}), f32[4]{0}, s32[]) async-start(p), calls=w\n  \
        c = f32[4]{0} async-done(a)\n  d = f32[4]{0} async-done(b)\n  \
        ROOT r = f32[4]{0} add(c, d)\n}\n";
    let late = "HloModule m\nENTRY e {\n  p = f32[4]{0} parameter(0)\n  \
        s = ((f32[4]{0}, f32[4]{0}), f32[], s32[]) dot-start(), lhs_contracting_dims={0}, \
        rhs_contracting_dims={0}\n  ROOT r = f32[] dot-done(s, p, p)\n}\n";
    for text in [shared, late] {
        assert!(read(text, Strictness::Jaxlib).is_err(), "{text}");
        for strictness in [Strictness::Newest, Strictness::Tolerant] {
            read(text, strictness).unwrap_or_else(|error| panic!("{strictness:?}: {error}"));
        }
    }
    // Operands come at once or late, not in part.
    assert!(read(&late.replace("dot-start()", "dot-start(p)"), Strictness::Newest).is_err());
}

#[test]
fn strict_mode_reads_real_dumps() {
    let folder = |name: &str| tests_folder().join("fixtures").join(name);
    let paths = ["dumps", "dump_folders"].map(|name| files_below(&folder(name), ".txt.gz"));
    let mut read = 0;
    for path in paths.concat() {
        let text = content(&path);
        if !text.starts_with(b"HloModule") {
            continue;
        }
        read += 1;
        let options = Options { strictness: Strictness::Jaxlib, ..Options::default() };
        let result = parse(Source::from_slice(&text), &options);
        assert!(result.is_ok(), "{}: {:?}", path.display(), result.err());
    }
    assert!(read >= 10, "only {read} dumps");
}

#[test]
fn a_lone_minus_in_a_table_is_an_error() {
    let text = "HloModule m\n\nFileNames\n- \"a\"\n\nENTRY e {\n  p = f32[] parameter(0)\n}\n";
    for strictness in [Strictness::Tolerant, Strictness::Jaxlib, Strictness::Newest] {
        assert!(read(text, strictness).is_err());
    }
}

#[test]
fn deep_nesting_needs_no_deep_stack() {
    for depth in [450, 20_000] {
        let (open, close) = ("(".repeat(depth), ")".repeat(depth));
        let bodies = [
            format!("ROOT r = f32[] {}p{close}", "abs(".repeat(depth)),
            format!("ROOT c = {open}s32[]{close} constant({open}1{close})"),
        ];
        for body in bodies {
            let text = format!("HloModule m\nENTRY e {{\n p = f32[] parameter(0)\n {body}\n}}\n");
            let small_stack = std::thread::Builder::new().stack_size(1 << 20);
            let result = small_stack.spawn(move || read(&text, Strictness::Newest).is_ok());
            let accepted = result.expect("a thread starts").join().expect("no panic");
            assert_eq!(accepted, depth < 500, "depth {depth}");
        }
    }
}
