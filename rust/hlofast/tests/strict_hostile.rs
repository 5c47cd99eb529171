//! Strict mode on texts made to hurt, and on rare but legal spellings.

use hlofast::ir::Module;
use hlofast::ir::decode::decode;
use hlofast::parse::Strictness;
use hlofast::print::{PrintOptions, to_text};
use hlofast::text::Source;
use hlofast::{ErrorKind, Options, Result, parse};
use std::fmt::Write as _;

/// The smallest stack that threads of servers have.
const SMALL_STACK: usize = 128 << 10;

fn read_as(text: &str, strictness: Strictness) -> Result<Module> {
    parse(Source::from_slice(text.as_bytes()), &Options { strictness, ..Options::default() })
}

fn read(text: &str) -> Result<Module> {
    read_as(text, Strictness::Jaxlib)
}

fn kind(text: &str) -> Option<ErrorKind> {
    read(text).err().map(|error| error.kind())
}

fn entry(lines: &str) -> String {
    format!("HloModule m\n\nENTRY e {{\n  p = f32[2]{{0}} parameter(0)\n{lines}\n}}\n")
}

fn on_a_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().stack_size(SMALL_STACK).spawn(work);
    thread.expect("a thread starts").join().expect("no test panics on it")
}

/// `count` instructions and one that names them all as control predecessors, `spelled` by number.
fn predecessors(count: usize, spelled: impl Fn(usize) -> String) -> String {
    let mut lines = String::new();
    for index in 0..count {
        let _ = writeln!(lines, "  a{index} = f32[2]{{0}} negate(p)");
    }
    let names: Vec<String> = (0..count).map(spelled).collect();
    let names = names.join(", ");
    let _ = write!(lines, "  ROOT r = f32[2]{{0}} negate(p), control-predecessors={{{names}}}");
    entry(&lines)
}

#[test]
fn many_control_predecessors() {
    // Looking each up among all of them would not end while anyone waits.
    let count = 100_000;
    assert_eq!(kind(&predecessors(count, |index| format!("a{index}"))), None);
    assert_eq!(kind(&predecessors(count, |index| format!("%a{}", count - 1 - index))), None);
}

#[test]
fn control_predecessors_repeat_and_must_come_before() {
    assert_eq!(kind(&predecessors(4, |index| format!("a{}", index / 2))), None);
    let own = predecessors(4, |index| if index == 2 { "r".into() } else { format!("a{index}") });
    // The tolerant reader already refuses a cycle.
    assert_eq!(kind(&own), Some(ErrorKind::UnknownInstruction));
    let later = entry(
        "  a = f32[2]{0} negate(p), control-predecessors={p, b, p}\n  ROOT b = f32[2]{0} negate(p)",
    );
    assert_eq!(kind(&later), Some(ErrorKind::ForwardReference));
}

#[test]
fn comments_around_a_parameter_number() {
    for payload in ["/*(*/ 0", "0 /*)*/", " 0 ", "/*(*/0/*(7)*/"] {
        let text =
            format!("HloModule m\n\nENTRY e {{\n  ROOT p = f32[2]{{0}} parameter({payload})\n}}\n");
        assert_eq!(kind(&text), None, "parameter({payload})");
    }
    let gap = "HloModule m\n\nENTRY e {\n  ROOT p = f32[2]{0} parameter(/*(0*/ 1)\n}\n";
    assert_eq!(kind(gap), Some(ErrorKind::ParameterGap));
}

/// Texts whose constructs nest `depth` levels deep.
fn nested(depth: usize) -> Vec<(&'static str, String)> {
    let nest = |open: &str, core: &str, close: &str| {
        format!("{}{core}{}", open.repeat(depth), close.repeat(depth))
    };
    let tuple = nest("(", "f32[]", ")");
    vec![
        ("operands", entry(&format!("  ROOT a = f32[2]{{0}} {}", nest("negate(", "p", ")")))),
        ("typed operands", {
            entry(&format!("  ROOT a = f32[2]{{0}} {}", nest("negate(f32[2]{0} ", "p", ")")))
        }),
        ("tuple literals", {
            entry(&format!("  ROOT a = {tuple} constant({})", nest("(", "1", ")")))
        }),
        ("shapes", entry(&format!("  a = {tuple} tuple(p)\n  ROOT b = {tuple} copy(a)"))),
        ("typed literals", {
            entry(&format!(
                "  ROOT a = f32[2]{{0}} negate(p), literal={}",
                nest("(", "f32[] 1", ")")
            ))
        }),
        ("dictionaries", {
            let value = nest("{", "", "}");
            entry(&format!("  ROOT a = f32[2]{{0}} negate(p), backend_config={value}"))
        }),
        ("array literals", {
            entry(&format!("  ROOT a = f32[2]{{0}} constant({})", nest("{", "1", "}")))
        }),
        ("shardings", {
            entry(&format!(
                "  ROOT a = f32[2]{{0}} negate(p), sharding={}",
                nest("{", "replicated", "}")
            ))
        }),
        ("origins", {
            let value = nest("(", "{\"a\" {}}", ")");
            entry(&format!("  ROOT a = f32[2]{{0}} negate(p), origin={{{value}}}"))
        }),
    ]
}

/// Asks for what walks the nesting: every attribute's value, and the printed text.
fn walk(module: &Module) -> usize {
    let mut readable = 0;
    for row in module.rows() {
        for attribute in module.attributes(row) {
            let (key, value) = (module.bytes(attribute.key), module.bytes(attribute.value));
            readable += usize::from(decode(key, module.opcode(row), value).is_ok());
        }
    }
    module.shape_bytes_column();
    readable + to_text(module, &PrintOptions::default()).len()
}

#[test]
fn nesting_needs_no_large_stack() {
    for depth in [490, 8_000, 20_000] {
        for (what, text) in nested(depth) {
            let kinds = on_a_small_stack(move || {
                let tolerant = read_as(&text, Strictness::Tolerant);
                if let Ok(module) = &tolerant {
                    assert!(walk(module) > 0, "something is printed");
                }
                let kind_in =
                    |strictness| read_as(&text, strictness).err().map(|error| error.kind());
                [kind_in(Strictness::Jaxlib), kind_in(Strictness::Newest)]
            });
            assert_eq!(kinds[0], kinds[1], "{what}, {depth} deep");
            let legal = ["operands", "typed operands", "tuple literals"].contains(&what);
            if legal && depth <= 8_000 {
                assert_eq!(kinds[0], None, "{what}, {depth} deep");
            } else if legal {
                assert!(kinds[0].is_some(), "{what}, {depth} deep");
            }
        }
    }
}

#[test]
fn a_value_that_passed_says_nothing_about_others() {
    let lines = |values: &[&str]| {
        let lines: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(index, value)| format!("  a{index} = f32[2]{{0}} negate(p), {value}"))
            .collect();
        entry(&format!("{}\n  ROOT r = f32[2]{{0}} negate(p)", lines.join("\n")))
    };
    let legal = [
        "sharding={replicated}",
        "sharding={{replicated} // }\n}",
        "frontend_attributes={a=\"1\",b={x}}",
        "backend_config={\"a\":{\"b\":[1]}}",
        "backend_config={\"a\":{\"b\":[1]}} /* } */",
        "backend_config={\"a\":{\"b\":[1]}} // }",
    ];
    for first in legal {
        for second in legal {
            assert_eq!(kind(&lines(&[first, first, second])), None, "{first} {second}");
        }
        // Each fault stands behind bytes that passed.
        for fault in ["}", "{", " x", ", sharding={replicated,}", ", frontend_attributes={a=1}"] {
            let faulty = format!("sharding={{replicated}}{fault}");
            assert!(kind(&lines(&["sharding={replicated}", first, &faulty])).is_some(), "{faulty}");
        }
    }
    let unlike = ["frontend_attributes={}", "backend_config={}", "sharding={}"];
    assert_eq!(kind(&lines(&unlike)), kind(&lines(&unlike[2..])));
    // The same bytes under another attribute are another value.
    let taken = lines(&["backend_config={x}", "frontend_attributes={x}"]);
    assert_eq!(kind(&taken), kind(&lines(&["frontend_attributes={x}"])));
    assert!(kind(&taken).is_some());
}
