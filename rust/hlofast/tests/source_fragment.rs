//! Pieces of a module as people paste them.

use crate::support::exercise::exercise;
use crate::support::invariants::check_invariants;
use crate::support::mutate::{Random, mutate};
use hlofast::ir::{Fragment, Module, Row};
use hlofast::parse::Strictness;
use hlofast::text::{Source, fragment};
use hlofast::{ErrorKind, Options, parse};
use proptest::prelude::*;

const BODY: &str = "%fused (p.0: f32[8,16]) -> f32[8,16] {
  %p.0 = f32[8,16]{1,0} parameter(0)
  ROOT %n = f32[8,16]{1,0} negate(f32[8,16]{1,0} %p.0), metadata={op_name=\"f/neg\" source_line=3}
}

ENTRY %main (a: f32[8,16], b: f32[16,4]) -> (f32[8,4], f32[]) {
  %a = f32[8,16]{1,0} parameter(0)
  %b = f32[16,4]{1,0} parameter(1)
  %f = f32[8,16]{1,0} fusion(%a), kind=kLoop, calls=%fused
  %d = f32[8,4]{1,0} dot(f32[8,16]{1,0} %f, f32[16,4]{1,0} %b), lhs_contracting_dims={1}
  %c = f32[] constant(0)
  ROOT %t = (f32[8,4]{1,0}, f32[]) tuple(%d, %c)
}
";

fn read(text: &str) -> Option<Module> {
    let source = fragment(&Source::from_slice(text.as_bytes()))?;
    let module = parse(source, &Options::default()).ok()?;
    check_invariants(&module);
    Some(module)
}

#[track_caller]
fn lacks(text: &str) -> Fragment {
    read(text).unwrap().fragment().unwrap()
}

/// Name, opcode, leaves of the shape and operands of an instruction.
type Line = (String, String, u32, Vec<String>);

fn lines(module: &Module) -> Vec<Line> {
    let name = |row| String::from_utf8_lossy(module.instruction_name(row)).into_owned();
    let line = |row| {
        let operands = module.operands(row).iter().map(|row| name(Row(*row))).collect();
        let leaves = module.shapes().leaf_count(module.shape(row));
        (name(row), module.opcode(row).as_str().to_owned(), leaves, operands)
    };
    module.rows().filter(|row| !module.is_implicit(*row)).map(line).collect()
}

fn whole() -> Module {
    parse(Source::from_slice(BODY.as_bytes()), &Options::default()).unwrap()
}

fn prefixed(prefix: impl Fn(usize) -> String) -> String {
    let lines = BODY.lines().enumerate();
    lines.map(|(number, line)| format!("{}{line}\n", prefix(number + 1))).collect()
}

#[test]
fn decorated_lines_are_those_of_the_module() {
    let texts = [
        prefixed(|number| format!("{number}: ")),
        prefixed(|number| format!("{number:>6}\t")),
        prefixed(|number| format!("dump/module_0001.jit_f.txt:{number}:")),
        prefixed(|_| "> ".to_owned()),
        prefixed(|_| "> > ".to_owned()),
        prefixed(|number| format!("{number} | ")),
        prefixed(|number| format!("I0521 12:04:45.88{number:02}    1509 hlo.cc:186] ")),
        prefixed(|number| format!("2024-05-21 12:04:{number:02},883 - INFO - ")),
        prefixed(|_| "[rank0]: ".to_owned()),
        prefixed(|number| format!("\x1b[36m(train pid={number})\x1b[0m ")),
        format!("What is this?\n\n```\n{BODY}```\nThanks!"),
        BODY.replace("  %", "  \x1b[1m%").replace(" = ", "\x1b[0m = "),
        BODY.replace("  ", "\u{a0} "),
        BODY.replace('\n', "\r\n"),
    ];
    for text in texts {
        let module = read(&text).unwrap_or_else(|| panic!("not read: {text}"));
        assert_eq!(lines(&module), lines(&whole()), "{text}");
        assert_eq!(module.name(), b"module_main", "{text}");
        let lacks = module.fragment().unwrap();
        assert_eq!((lacks.operands, lacks.computations, lacks.unread), (0, 0, 0), "{text}");
    }
}

#[test]
fn missing_operands_and_computations_are_counted() {
    let text = "%f = f32[8]{0} fusion(f32[8]{0} %a, %b), kind=kLoop, calls=%gone\n\
                %g = f32[8]{0} add(%f, %b)\n";
    let found = lacks(text);
    assert_eq!((found.operands, found.computations), (2, 1));
    let module = read(text).unwrap();
    let bytes = |name: &str| {
        let is_named = |row: &Row| module.instruction_name(*row) == name.as_bytes();
        module.shapes().logical_bytes(module.shape(module.rows().find(is_named).unwrap()))
    };
    // The use gives one shape; the other is unknown, not invented.
    assert_eq!((bytes("a"), bytes("b")), (Some(32), None));
}

#[test]
fn lines_that_say_that_others_were_left_out() {
    for gap in ["...", "  …", "  // ...", "  [...]", "  ... 200 lines ...", "<snip>", "--", "⋮"]
    {
        let lines = "a = f32[2] parameter(0)";
        let text = format!("ENTRY e {{\n  {lines}\n{gap}\n  ROOT b = f32[2] negate(z)\n}}\n");
        let found = lacks(&text);
        assert_eq!((found.pieces.gaps, found.operands), (1, 1), "{gap}");
    }
    let found = lacks("%f = f32[8] fusion(%a, ...), kind=kLoop, ...\n%g = f32[8] add(...), ...\n");
    assert_eq!((found.operands, found.unread, found.pieces.cut), (3, 0, 0));
}

#[test]
fn cut_lines_lose_what_was_cut_into() {
    let cut: String =
        BODY.lines().map(|line| format!("{}\n", &line[..line.len().min(60)])).collect();
    let module = read(&cut).unwrap();
    assert_eq!(module.fragment().unwrap().pieces.cut, 2);
    let (short, long) = (lines(&module), lines(&whole()));
    assert_eq!(short.len(), long.len());
    for (short, long) in short.iter().zip(&long) {
        assert_eq!((&short.0, &short.1, short.2), (&long.0, &long.1, long.2));
    }
    // What is left of the operands of `negate` and `dot`.
    assert_eq!((short[1].3.len(), short[5].3.len()), (1, 1));
    // A module that is cut at the edge of a terminal is read too; one that is damaged is not.
    assert!(read(&format!("HloModule m, is_scheduled=true\n\n{cut}")).is_some());
    let damaged = format!("HloModule m, is_scheduled=true\n\n{}", BODY.replace("%a)", "%z)"));
    assert!(read(&damaged).is_none());
}

#[test]
fn wrapped_lines_are_joined() {
    for width in [40, 57, 72] {
        let wrap = |line: &str| {
            let pieces = line.as_bytes().chunks(width);
            let pieces: Vec<_> = pieces.map(|one| String::from_utf8_lossy(one)).collect();
            pieces.join("\n") + "\n"
        };
        let line = BODY.lines().find(|line| line.contains("dot(")).unwrap();
        let module = read(&wrap(line.trim())).unwrap();
        let (name, opcode, _, operands) = lines(&module).swap_remove(0);
        assert_eq!((&*name, &*opcode, operands.len()), ("d", "dot", 2), "{width}");
        assert_eq!(module.fragment().unwrap().pieces.cut, 0, "{width}");
    }
}

#[test]
fn rows_of_a_profile() {
    let time = "6.3 usec (         0.0 optimal) ::       1.2GFLOP/s ::   ";
    let row = |text: &str| {
        format!(
            "\t  23436 cycles (18.98% 19Σ) ::  {time} ::     2.2GiB/s ::      0.5B/cycle :: {text}\n"
        )
    };
    let text = [
        "Execution profile for main: (1.2 us @ f_nom)\n".to_owned(),
        row("[total]"),
        row("%f.1 = f32[8]{0} fusion(f32[8]{0} %a), kind=kLoop, calls=%fused_computation"),
        row(
            "%d.1 = f32[8,8]{1,0} dot(f32[8,6]{1,0} %x, f32[6,8]{1,0} %w), lhs_contracting_dims={1}",
        ),
        row("%a.1 = f32[8,8]{1,0} add(f32[8,8]{1,0} %d.1, f32[8,8]{1,0} %d.1)"),
    ];
    let module = read(&text.concat()).unwrap();
    let names: Vec<_> = lines(&module).into_iter().map(|line| line.0).collect();
    assert_eq!(names, ["f.1", "d.1", "a.1"]);
}

#[test]
fn other_text_is_not_a_fragment() {
    let texts = [
        "",
        "The op %add = f32[2] add(%a, %b) fails.\nSo does %b = f32[2] negate(%c).\nWhy?\n",
        "x = f(3)\ny = g(x)\n",
        "  XLA label: %fusion.11 = f32[8] fusion(%a), kind=kLoop\n%a = f32[] add(%b, %c)\n",
        "digraph G {\n a [label=\"%x = f32[2] add(%a, %b)\"];\n}\n",
        "%0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>\n",
    ];
    for text in texts {
        assert!(fragment(&Source::from_slice(text.as_bytes())).is_none(), "{text}");
    }
    // A whole module is never shortened to pieces.
    let whole = format!("HloModule m, is_scheduled=true\n\n{BODY}");
    assert!(fragment(&Source::from_slice(whole.as_bytes())).is_none());
}

#[test]
fn strict_modes_refuse_fragments() {
    let source = fragment(&Source::from_slice(b"%g = f32[8]{0} add(%f, %b)\n")).unwrap();
    for strictness in [Strictness::Jaxlib, Strictness::Newest] {
        let options = Options { strictness, ..Options::default() };
        assert_eq!(parse(source.clone(), &options).unwrap_err().kind(), ErrorKind::NoModule);
    }
}

#[test]
fn lines_keep_their_places_in_the_file() {
    let text = "see\n> %a.1 = f32[2] add(%x, %y)\n> ...\n> %b.1 = f32[2] add(%a.1, %y)\n\
                > %c = f32[2] negate(%b.1)\n";
    let source = fragment(&Source::from_slice(text.as_bytes())).unwrap();
    let at = source.bytes().windows(4).position(|window| window == b"%b.1").unwrap();
    assert_eq!(source.offset_in_file(at), text.find("%b.1").unwrap());
    assert_eq!(source.bytes().iter().take(at).filter(|byte| **byte == b'\n').count(), 3);
}

#[test]
fn second_definitions_begin_another_computation() {
    let module = read(&"%a.1 = f32[2] add(%x, %y)\n".repeat(3)).unwrap();
    assert_eq!(module.computations().len(), 3);
    assert_eq!(module.fragment().unwrap().unread, 0);
}

/// Lines that look like HLO, damaged and decorated.
fn mangled(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let log = "I0521 12:04:45.88  1 h.cc:1] ";
    let marks = ["> ", "12: ", "", "", "\x1b[1m", "a.txt:3:", log, "  "];
    let header = "%fused (p: f32[]) -> f32[] {\n";
    let extra = ["...\n", "}\n", "ENTRY e {\n", header, "HloModule m\n", "```\n", "text\n"];
    let mut text = Vec::new();
    for line in BODY.lines() {
        text.extend_from_slice(marks[random.below(marks.len())].as_bytes());
        let end = if random.below(4) == 0 { random.below(line.len() + 1) } else { line.len() };
        text.extend_from_slice(line.as_bytes().get(..end).unwrap_or_default());
        text.push(b'\n');
        if random.below(5) == 0 {
            text.extend_from_slice(extra[random.below(extra.len())].as_bytes());
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_pieces_never_break_anything(seed: u64, times in 0usize..4) {
        let mut text = mangled(seed);
        let mut random = Random(seed ^ 1);
        for _ in 0..times {
            text = mutate(&text, &mut random);
        }
        let source = Source::from_slice(&text);
        if let Some(source) = fragment(&source) {
            let lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
            prop_assert!(lines(source.bytes()) <= lines(&text));
            if let Ok(module) = parse(source, &Options::default()) {
                prop_assert!(module.fragment().is_some());
                check_invariants(&module);
                exercise(&module);
            }
        }
    }
}
