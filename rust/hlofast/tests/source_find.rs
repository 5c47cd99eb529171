//! Modules found in other text, with their places.

use crate::support::reading;
use hlofast::text::{Source, find_modules, modules};
use proptest::prelude::*;

const MODULE: &str = "HloModule jit_f, is_scheduled=true\n\n\
%c (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  \
ROOT %s = f32[] add(%a, %b)\n}\n\n\
ENTRY main {\n  ROOT %p = f32[2]{0} parameter(0), metadata={op_name=\"a\"}\n}";

fn texts(text: &str) -> Vec<String> {
    let modules = modules(&Source::from_slice(text.as_bytes()));
    let modules = modules.unwrap_or_default();
    let whole = modules.iter().map(|m| String::from_utf8_lossy(m.source.bytes()).into_owned());
    // The break of a module's last line belongs to it (source_open.rs); here only the extent counts.
    whole.map(|text| text.strip_suffix('\n').map_or(text.clone(), str::to_owned)).collect()
}

fn lines(text: &str) -> Vec<u64> {
    find_modules(text.as_bytes()).iter().map(|place| place.lines_before + 1).collect()
}

#[test]
fn a_page_with_prose_on_both_sides() {
    let page = include_str!("data/page.txt");
    let places = find_modules(page.as_bytes());
    assert_eq!(places.len(), 1);
    let start = page.find("\nHloModule jit_step").unwrap() + 1;
    let end = page.find("\n\nThat is all").unwrap();
    assert_eq!(places[0].span, start..end);
    assert_eq!(places[0].lines_before, 8);
    assert_eq!((&places[0].label, &places[0].cleaned), (&None, &None));
}

#[test]
fn the_seed_page() {
    let Some(folder) = reading::seeds() else { return };
    let text = reading::seed_text(&folder, "003");
    let places = find_modules(&text);
    assert_eq!(places.len(), 1);
    assert_eq!(places[0].lines_before + 1, 124);
    assert_eq!(places[0].span, 5788..text.trim_ascii_end().len());
}

#[test]
fn several_modules_in_one_text() {
    let text = format!("{MODULE}\n\n\n{MODULE}\n{MODULE}{MODULE}");
    assert_eq!(texts(&text), [MODULE; 4]);
    assert_eq!(lines(&text), [1, 14, 25, 35]);
}

#[test]
fn a_dictionary_over_several_lines() {
    // JAX's kernels print their estimate like this.
    let config = "{\"a\": {\n\"flops\":1,\n\"b\": {\n\"c\":2\n}}, \"d\": true}";
    let call = format!(
        "ROOT %p = f32[2] custom-call(), custom_call_target=\"t\", backend_config={config}"
    );
    let text = format!("{MODULE}\n{}", MODULE.replace("ROOT %p = f32[2]{0} parameter(0)", &call));
    let parts = texts(&format!("{text}\n\nthanks"));
    assert_eq!(parts.len(), 2);
    assert!(parts[1].ends_with("\"a\"}\n}"), "{}", parts[1]);
}

#[test]
fn markdown_fences_and_indentation() {
    assert_eq!(texts(&format!("see:\n```\n{MODULE}\n```\nthanks }}\n}}\n")), [MODULE]);
    let indented = MODULE.replace('\n', "\n    ");
    let text = format!("see:\n\n    {indented}\n\nthanks\n}}\n");
    assert_eq!(texts(&text), [indented]);
    let quoted = MODULE.replace('\n', "\n> ");
    assert_eq!(texts(&format!("> {quoted}\n\nthanks")), [MODULE]);
    assert_eq!(texts(&format!("R\"({MODULE}\n)\";")), [MODULE]);
    assert_eq!(texts(&format!("<pre>{MODULE}</pre>\n<p>}}</p>\n}}\n")), [MODULE]);
}

#[test]
fn the_source_of_a_page() {
    let escaped = MODULE
        .replace('&', "&amp;")
        .replace('>', "&gt;")
        .replace('<', "&lt;")
        .replace('"', "&quot;");
    assert_eq!(texts(&format!("<html><pre>\n{escaped}\n</pre>")), [MODULE]);
    // Entities in text that is not escaped are its own.
    let own = MODULE.replace("\"a\"", "\"-&gt;\"");
    assert_eq!(texts(&own), [own]);
}

#[test]
fn log_prefixes_are_cut_off() {
    for prefix in [
        "I0521 12:04:45.88348# 1509 hlo.cc:18#] ",
        "2024-05-21 12:04:45.88348#: I external/xla/hlo.cc:186] ",
        "2024-05-21T12:04:45.88348#Z stdout F ",
        "INFO:absl:",
        "(train pid=123#, ip=10.0.0.1) ",
        "[1,0]<stdout>:",
    ] {
        let mut log = String::from("I0521 12:04:40.000000 1509 main.cc:1] starting\n");
        for (number, line) in MODULE.lines().enumerate() {
            let prefix = prefix.replace('#', &(number % 10).to_string());
            log.push_str(&prefix);
            log.push_str(line);
            log.push('\n');
        }
        log.push_str("I0521 12:04:50.000000 1509 main.cc:2] done\n");
        let source = Source::from_slice(log.as_bytes()).with_path("log");
        let modules = modules(&source).expect("a module");
        assert_eq!(modules.len(), 1, "{prefix}");
        let part = &modules[0].source;
        assert_eq!(String::from_utf8_lossy(part.bytes()), format!("{MODULE}\n"), "{prefix}");
        assert_eq!((part.path(), part.lines_before()), (Some("log"), 1));
        // Every byte knows where it comes from.
        for (at, &byte) in part.bytes().iter().enumerate() {
            assert_eq!(log.as_bytes()[part.offset_in_file(at)], byte, "{prefix} at {at}");
        }
        assert_eq!(part.column_in_file(1, 1), prefix.len() as u64 + 1);
        assert_eq!(part.column_in_file(4, 3), prefix.len() as u64 + 3);
    }
}

#[test]
fn lines_of_other_threads_become_empty() {
    let mut log = String::new();
    for line in MODULE.lines() {
        log.push_str(&format!("I0521 12:04:45.883483 1509 hlo.cc:186] {line}\n"));
        log.push_str("W0521 12:04:45.883484 77 other.cc:9] late } {\n");
    }
    let parts = texts(&log);
    assert_eq!(parts.len(), 1);
    assert_eq!(
        parts[0].replace("\n\n", "\n"),
        MODULE.replace("\n\n", "\n\n\n").replace("\n\n", "\n")
    );
    assert_eq!(parts[0].lines().count(), 2 * MODULE.lines().count() - 1);
}

#[test]
fn a_prefix_before_the_first_line_only() {
    assert_eq!(texts(&format!("compiled: {MODULE}\nnext: 3\n")), [MODULE]);
    assert_eq!(texts(&format!("I0521 12:04:45.883483 1509 a.cc:1] {MODULE}\n")), [MODULE]);
    assert_eq!(texts("The HloModule of this step, which\nis long\n"), [""; 0]);
    assert_eq!(texts("HloModule dumps:\nnone\n"), ["HloModule dumps:"; 1]);
    assert_eq!(texts("We read\nHloModule dumps\nand more\n"), [""; 0]);
}

#[test]
fn frames_of_a_dump_to_standard_output() {
    let frame =
        |name: &str, body: &str| format!("*** Begin {name} ***\n{body}\n*** End {name} ***\n");
    let text = format!(
        "start\n{}{}{}",
        frame("module_0001.jit_f.before_optimizations.txt", MODULE),
        frame("module_0001.jit_f.buffer-assignment.txt", "BufferAssignment:\n}\n"),
        frame("module_0001.jit_f.after_optimizations.txt", MODULE),
    );
    let modules = modules(&Source::from_slice(text.as_bytes())).expect("modules");
    let labels: Vec<_> = modules.iter().filter_map(|module| module.label.as_deref()).collect();
    assert_eq!(
        labels,
        ["module_0001.jit_f.before_optimizations.txt", "module_0001.jit_f.after_optimizations.txt"]
    );
    assert_eq!(texts(&text), [MODULE; 2]);
}

#[test]
fn strings_may_hold_modules_and_braces() {
    let nested = MODULE.replace('"', "\\\"");
    let table = format!("origin_recovery_table={{ {{\"a\"}} : {{\"b\"}}, \"\n{nested}\n\" }}");
    let text = MODULE.replace("is_scheduled=true", &table);
    assert_eq!(texts(&format!("text\n{text}\n\n{MODULE}\n")), [text.as_str(), MODULE]);
    let string = MODULE.replace("op_name=\"a\"", "op_name=\"a\n}\n\nmore\n}\"");
    assert_eq!(texts(&format!("{string}\nprose")), [string]);
}

#[test]
fn headers_over_lines_tables_and_inline_bodies() {
    let text = "HloModule m,\n  is_scheduled=true,\n  frontend_attributes={\n    a=b\n  }\n\n\
        FileNames\n1 \"a.py\"\n\nFunctionNames\n1 \"f\"\n\nFileLocations\n\
        1 {file_name_id=1 function_name_id=1 line=1}\n\nStackFrames\n1 {file_location_id=1}\n\n\
        // a note\nc { ROOT p = f32[2]{0} parameter(0) }\n\n\
        %d (x: f32[2]{0}) -> f32[2]{0} { ROOT %x = f32[2]{0} parameter(0) }\n\
        ENTRY e {\n  ROOT p = f32[] parameter(0) }, execution_thread=\"host\"";
    assert_eq!(texts(&format!("# notes\n{text}\n\nprose\n")), [text]);
}

#[test]
fn headerless_text() {
    let body = MODULE.split_once("\n\n").unwrap().1;
    assert_eq!(texts(body), [body]);
    assert_eq!(texts(&format!("the body:\n\n{body}\n\nthanks\n}}\n")), [body]);
    assert_eq!(lines(&format!("the body:\n\n{body}\n")), [3]);
    let entry = "ENTRY e {\n  ROOT p = f32[] parameter(0)\n}";
    assert_eq!(texts(&format!("// note\n{entry}\n")), [entry]);
    let single = "c (x: f32[]) -> f32[] {\n  ROOT x = f32[] parameter(0)\n}";
    assert_eq!(texts(&format!("{single}\n")), [single]);
    let instruction = "ROOT %x = (f32[2]{0}, s32[]) tuple(%a, %b)";
    assert_eq!(texts(&format!("{instruction}\n")), [instruction]);
    assert_eq!(texts("x = f32[2]{0} parameter(0)"), ["x = f32[2]{0} parameter(0)"]);
    for other in ["x = np.zeros(3)", "a[0] = 1", "namespace {\nint x;\n}", "%0 = stablehlo.add %a"]
    {
        assert_eq!(texts(other), [""; 0], "{other}");
    }
}

#[test]
fn truncated_modules_are_found() {
    for cut in [MODULE.len() - 1, MODULE.len() - 20, 120, 30] {
        let text = MODULE[..cut].trim_end();
        assert_eq!(texts(&format!("text\n{text}")), [text], "cut at {cut}");
        if cut > 100 {
            assert_eq!(texts(&format!("{text}\n\n{MODULE}\n")), [text, MODULE], "cut at {cut}");
        }
    }
    // An unclosed string in a header or a body swallows nothing.
    let open = MODULE.replace("is_scheduled=true", "a=\"b");
    assert_eq!(
        texts(&format!("{open}\n{}", MODULE.replace('"', "")))[0].lines().next(),
        open.lines().next()
    );
}

/// Texts that make a naive search read the rest of the text again and again.
#[test]
fn no_text_is_read_again_and_again() {
    let mut texts = Vec::new();
    for piece in [
        "HloModule a, \\\"\n",
        "x: HloModule a, b={\"\n",
        "1: HloModule a, b=\\\"\n2: \n",
        "> HloModule a, b={\n",
        "x: HloModule a\n",
        "%x {\n/*",
        "ENTRY e {\n",
        "HloModule m\nENTRY e {\n  a = \"\n}\n\\\"",
        "ENTRY e {\n  %a = f32[] add(), b=\"\\\"\n}\n",
        "*** Begin HloModule ",
        "HloModule ",
        "\"\n}",
    ] {
        texts.push(piece.repeat(2_000_000 / piece.len()));
    }
    let tail = "\n}\n".repeat(500_000);
    texts.push(format!("HloModule m\nENTRY e {{\n  a = \"{tail}"));
    texts.push(format!("HloModule m\nENTRY e {{\n  a = \"\\\"{tail}\"\n"));
    for text in texts {
        // A quadratic search of two megabytes would take hours.
        let places = find_modules(text.as_bytes());
        assert!(places.iter().all(|place| place.span.end <= text.len()));
    }
}

proptest! {
    #[test]
    fn any_bytes(text in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&text)?;
    }

    #[test]
    fn any_pieces(pieces in prop::collection::vec(prop::sample::select(vec![
        MODULE, "HloModule m", "HloModule ", "\n", "}", "{", "\"", "\\", "  ", "> ", "ENTRY e {\n",
        "ROOT p = f32[] parameter(0)", ", ", "a=b", "I0521 1:2 3 a.cc:1] ", "/*", "*/", "//",
        "*** Begin x ***\n", "%c (x: f32[]) -> f32[] {\n", "é", "&gt;", "-&gt;", "FileNames\n",
    ]), 0..40)) {
        check(pieces.concat().as_bytes())?;
    }

    #[test]
    fn prose_changes_nothing(before in "[a-z .\n]{0,80}", after in "[a-z .\n]{0,80}") {
        let text = format!("{before}\n{MODULE}\n{after}");
        prop_assert_eq!(texts(&text), [MODULE]);
        prop_assert_eq!(lines(&text), [before.matches('\n').count() as u64 + 2]);
    }
}

/// Spans ascend, lie in the text and have the lines before them that are claimed.
fn check(text: &[u8]) -> Result<(), TestCaseError> {
    let mut floor = 0;
    let source = Source::from_slice(text);
    for place in find_modules(text) {
        prop_assert!(floor <= place.span.start && place.span.start < place.span.end);
        prop_assert!(place.span.end <= text.len());
        floor = place.span.end;
        let lines = text[..place.span.start].iter().filter(|&&byte| byte == b'\n').count();
        prop_assert_eq!(lines as u64, place.lines_before);
        if let Some(cleaned) = place.cleaned {
            let copy = source.cleaned_part(cleaned.text, cleaned.lines, place.lines_before);
            prop_assert_eq!(copy.offset(), place.span.start);
            prop_assert!(copy.offset_in_file(copy.bytes().len()) <= place.span.end + 8);
        }
    }
    Ok(())
}

/// Headerless texts in which a line inside an instruction begins with a closing brace.
const BRACES_AT_LINE_STARTS: &[&str] = &[
    "ENTRY e {\n p = f32[4]{0} parameter(0)\n ROOT n = f32[4]{0} custom-call(p), \
     custom_call_target=\"x\", backend_config={\n\"a\":1\n}\n}",
    "ENTRY e {\n p = f32[4]{0} parameter(0)\n n = f32[4]{0} custom-call(p), \
     custom_call_target=\"x\", backend_config={\n\"a\":1\n}\n ROOT m = f32[4]{0} negate(n)\n}",
    "ENTRY e {\n p = f32[4]{0} parameter(0)\n z = f32[] constant(0)\n ROOT n = f32[] reduce(p, z), \
     to_apply={\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b)\n}, \
     dimensions={0}\n}",
    "ENTRY e {\n ROOT n = s32[2,2]{1,0} constant({\n{1,2},\n{3,4}\n})\n}",
];

#[test]
fn computations_without_a_header_end_where_their_brackets_do() {
    for module in BRACES_AT_LINE_STARTS {
        assert_eq!(texts(module), [*module]);
        let two = format!("{module}\n\nother {{\n  ROOT p = f32[] parameter(0)\n}}");
        assert_eq!(texts(&two), [two.as_str()]);
        let around = format!("before\n\n{module}\n\nafter it\n");
        assert_eq!(texts(&around), [*module]);
    }
    // A brace too many belongs to nothing.
    let module = "ENTRY e {\n  ROOT p = f32[] parameter(0)\n}";
    assert_eq!(texts(&format!("{module}\n}}\n")), [module]);
}
