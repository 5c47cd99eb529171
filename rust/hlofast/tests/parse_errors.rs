//! Every kind of error that reading produces: where it points and what it says.

use crate::support::invariants::check_invariants;
use crate::support::reading::{modules, parse, parse_all};
use hlofast::ErrorKind::{self, *};
use hlofast::ir::{ComputationId, Row};
use hlofast::text::{ErrorPlace, Source};

/// Kinds that other tests show: those of strict mode and decoders, and of opening files.
const ELSEWHERE: &[(ErrorKind, &str)] = &[
    (InvalidProto, "proto_hostile: messages, not text"),
    (InvalidString, "decoders: an invalid escape"),
    (InvalidName, "strict: names XLA would change"),
    (UnknownOpcode, "strict"),
    (ShapeMismatch, "strict"),
    (ForwardReference, "strict"),
    (ParameterGap, "strict"),
    (DuplicateAttribute, "strict"),
    (UnexpectedAttribute, "strict"),
    (MissingAttribute, "strict"),
    (InvalidAttribute, "decoders"),
    (InvalidLiteral, "decoders"),
    (InvalidSharding, "decoders"),
    (NotHlo, "opening: other formats"),
    (SeveralModules, "opening: one module asked for"),
    (InvalidCompression, "opening: damaged archives"),
    (TooLarge, "a text of 4 GiB, or more faults than are listed"),
    (TooDeep, "hostile texts: bombs of brackets"),
];

/// Kind, line and column of the fault, part of the message, text.
const CASES: &[(ErrorKind, u64, u64, &str, &str)] = &[
    (UnexpectedCharacter, 2, 13, "'/'", "e {\n  a = f32[] / add(), x=1\n}"),
    (UnexpectedEnd, 1, 15, "the text ends", "HloModule m, x"),
    (UnclosedString, 2, 23, "unclosed string", "e {\n  a = f32[] rng(), x=y\"z\n}"),
    (UnclosedComment, 2, 3, "unclosed comment", "e {\n  /* a = f32[] rng()\n}"),
    (UnclosedBracket, 1, 3, "never closed", "e {\n  a = f32[] parameter(0)\n"),
    (MismatchedBracket, 2, 23, "']'", "e {\n  a = f32[] constant({]\n}"),
    (InvalidNumber, 2, 11, "64 bits", "e {\n  a = f32[99999999999999999999] rng()\n}"),
    (ExpectedName, 2, 3, "instruction's name", "e {\n  = f32[] rng()\n}"),
    (ExpectedToken, 2, 5, "'='", "e {\n  a f32[] rng()\n}"),
    (ExpectedOpcode, 2, 13, "opcode", "e {\n  a = f32[] (b)\n}"),
    (InvalidShape, 2, 8, "not an element type", "e {\n  a = (x32[], f32[]) rng()\n}"),
    (InvalidLayout, 2, 16, "layout", "e {\n  a = f32[2]{0 1} rng()\n}"),
    (CannotInferShape, 2, 7, "shape", "e {\n  a = iota(), iota_dimension=0\n}"),
    (InvalidOperand, 3, 21, "operand", "e {\n  a = f32[] parameter(0)\n  b = f32[] negate( =)\n}"),
    (UnknownInstruction, 2, 20, "called nobody", "e {\n  a = f32[] negate(nobody)\n}"),
    (UnknownComputation, 2, 31, "called none", "e {\n  a = f32[] call(), to_apply=%none\n}"),
    (OperandCount, 3, 13, "2 operands", "e {\n  a = f32[] parameter(0)\n  b = f32[] add(a)\n}"),
    (DuplicateInstruction, 3, 3, "twice", "e {\n  a = f32[] rng()\n  a = f32[] rng()\n}"),
    (DuplicateComputation, 4, 1, "twice", "e {\n  a = f32[] rng()\n}\ne {\n  a = f32[] rng()\n}"),
    (
        DuplicateParameter,
        3,
        3,
        "number 0",
        "e {\n  a = f32[] parameter(0)\n  b = f32[] parameter(0)\n}",
    ),
    (DuplicateRoot, 3, 3, "ROOT", "e {\n  ROOT a = f32[] rng()\n  ROOT b = f32[] rng()\n}"),
    (
        DuplicateEntry,
        4,
        1,
        "ENTRY",
        "ENTRY e {\n  a = f32[] rng()\n}\nENTRY f {\n  a = f32[] rng()\n}",
    ),
    (InvalidHeader, 1, 1, "module's name", "HloModule ,\ne {\n  a = f32[] rng()\n}"),
    (InvalidComputation, 1, 1, "at least one", "e {\n}"),
    (
        InvalidAsync,
        3,
        3,
        "asynchronous",
        "e {\n  a = f32[] parameter(0)\n  b = f32[] negate-start(a)\n}",
    ),
    (TrailingText, 4, 1, "end of the module", "e {\n  a = f32[] rng()\n}\n]"),
    (NoModule, 1, 12, "no computation", "HloModule m"),
];

#[test]
fn every_kind_is_shown_here_or_elsewhere() {
    for kind in ErrorKind::ALL {
        let here = CASES.iter().filter(|case| case.0 == *kind).count();
        let elsewhere = ELSEWHERE.iter().filter(|case| case.0 == *kind).count();
        assert_eq!(here.min(1) + elsewhere, 1, "{kind:?}");
    }
}

#[test]
fn errors_say_what_and_where() {
    let mut wrong = Vec::new();
    for (kind, line, column, message, text) in CASES {
        let error = match parse(text.as_bytes()) {
            Err(error) => error,
            Ok(_) => {
                wrong.push(format!("{kind:?}: accepted {text:?}"));
                continue;
            }
        };
        let place = ErrorPlace::new(&Source::from_slice(text.as_bytes()), &error);
        let actual = (error.kind(), place.line, place.column);
        if actual != (*kind, *line, *column) || !error.message().contains(message) {
            wrong.push(format!("{kind:?}: {actual:?} {:?} for {text:?}", error.message()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_error_can_also_be_collected() {
    for (kind, _, _, _, text) in CASES {
        let alone = parse(text.as_bytes()).unwrap_err();
        match parse_all(text.as_bytes()) {
            Ok(module) => {
                check_invariants(&module);
                assert_eq!(module.errors().first(), Some(&alone), "{kind:?}");
            }
            Err(error) => assert_eq!(error, alone, "{kind:?}"),
        }
    }
}

fn names(text: &str) -> (Vec<String>, Vec<ErrorKind>) {
    let module = parse_all(text.as_bytes()).unwrap();
    check_invariants(&module);
    let name = |row| String::from_utf8_lossy(module.instruction_name(row)).into_owned();
    (module.rows().map(name).collect(), module.errors().iter().map(|e| e.kind()).collect())
}

#[test]
fn what_follows_a_fault_is_read() {
    let text = "HloModule m\n\nc {\n  a = f32[] parameter(0)\n  b = f32[] %%\n  d = f32[] negate(a)\n\
                ROOT e = f32[] negate(missing)\n}\n\nbroken (\n  x\n}\n\nENTRY f {\n  a = f32[] rng()\n  \
                a = f32[] rng()\n  ROOT g = f32[] call(a), to_apply=c\n}\n";
    let (rows, kinds) = names(text);
    assert_eq!(rows, ["a", "d", "e", "a", "g"]);
    assert_eq!(kinds.len(), 4, "{kinds:?}");
    assert!(kinds.contains(&UnknownInstruction) && kinds.contains(&DuplicateInstruction));
}

#[test]
fn cycles_are_reported_once_and_cut() {
    let (rows, kinds) = names(
        "e {\n  x = f32[] add(y, p)\n  y = f32[] negate(x)\n  z = f32[] negate(z)\n  \
         p = f32[] parameter(0)\n}",
    );
    assert_eq!(rows, ["x", "y", "z", "p"]);
    assert_eq!(kinds, [UnknownInstruction, UnknownInstruction]);
    let module = parse_all(
        b"c {\n  a = f32[] call(), to_apply=d\n}\nd {\n  b = f32[] call(), to_apply=c\n}\n",
    );
    let module = module.unwrap();
    check_invariants(&module);
    assert_eq!(module.errors().len(), 1);
    assert_eq!(module.all_calls().len(), 1, "one of two calls closes the circle");
}

#[test]
fn a_body_that_ends_with_the_text_is_kept() {
    let (rows, kinds) = names("HloModule m\nc {\n  a = f32[] rng()\n}\ne {\n  b = f32[] rng()\n");
    assert_eq!(rows, ["a", "b"]);
    assert_eq!(kinds, [UnclosedBracket]);
}

/// Without an ENTRY the last computation is the entry, as XLA has it; that the header describes
/// another is told.
#[test]
fn text_cut_between_computations_is_told() {
    let mut cuts = 0;
    for (dump, source) in modules() {
        let module = parse(source.bytes()).unwrap();
        if module.header_attribute("entry_computation_layout").is_none() {
            continue;
        }
        let border = |id: ComputationId| {
            let mut rows = module.parameters(id);
            rows.push(Row(module.computation(id).root));
            rows
        };
        let of_entry = border(module.entry());
        let is_alike = |(a, b): (&Row, &Row)| {
            module.shapes().is_compatible(module.shape(*a), module.shapes(), module.shape(*b))
        };
        for id in (0..module.entry().0).map(ComputationId) {
            let computation = module.computation(id);
            if computation.is_implicit || computation.is_inline {
                continue;
            }
            let cut = &source.bytes()[..computation.body.end as usize];
            let own = border(id);
            // The whole program may stand in a function of its own, which the entry calls.
            let is_program = own.len() == of_entry.len() && own.iter().zip(&of_entry).all(is_alike);
            let fault = parse(cut).unwrap().missing_entry().map(|error| error.kind());
            let expected = (!is_program).then_some(InvalidComputation);
            let name = String::from_utf8_lossy(module.bytes(computation.name));
            assert_eq!(fault, expected, "{dump} after {name}");
            cuts += usize::from(!is_program);
        }
    }
    assert!(cuts > 1000, "{cuts}");
    for (layout, is_whole) in [
        ("f32[2]{0})->f32[2]{0}", true),
        ("f32[<=2]{0})->f32[2]{0:T(256)}", true),
        ("f32[2]{0})->f32[3]{0}", false),
        ("f32[2]{0}, f32[2]{0})->f32[2]{0}", false),
        (")->f32[2]{0}", false),
        ("bf16[2]{0})->f32[2]{0}", false),
        // A layout that cannot be read proves nothing.
        ("f32[2]{0}", true),
    ] {
        let text = format!(
            "HloModule m, entry_computation_layout={{({layout}}}\n\n\
             f {{\n  a = f32[2]{{0}} parameter(0)\n}}\n"
        );
        let text = if layout == "f32[2]{0}" { text.replace("={(", "={") } else { text };
        let fault = parse(text.as_bytes()).unwrap().missing_entry();
        assert_eq!(fault.is_none(), is_whole, "{text}");
        if let Some(fault) = fault {
            let place = ErrorPlace::new(&Source::from_slice(text.as_bytes()), &fault);
            assert_eq!((place.line, place.column), (5, 2), "{text}");
            assert!(fault.message().contains("the last one, f, does not match"), "{fault:?}");
            assert!(
                parse(text.replace("f {", "ENTRY f {").as_bytes())
                    .unwrap()
                    .missing_entry()
                    .is_none()
            );
        }
    }
}

/// What is never closed in an instruction, and which of its bytes that is.
const UNCLOSED: &[(&str, &str)] = &[
    ("r = f32[2]{0} reduce(p, z), dimensions={1, to_apply=add", "{1"),
    ("r = f32[2]{0} reduce(p, z), dimensions={1", "{1"),
    ("r = f32[2]{0} transpose(p), metadata={op_name=\"a\" source_file=\"b\"", "{op"),
    ("r = f32[2]{0} negate(p), metadata={op_name=\"a source_file=\"b\"}", "\"}"),
    ("r = f32[2]{0} custom-call(p), custom_call_target=\"a", "\"a"),
    (
        "r = f32[2]{0} custom-call(p), custom_call_target=\"a\", backend_config={\"a\":{\"b\":1}",
        "{\"a",
    ),
    ("r = f32[2]{0} call(p), called_computations={add", "{add"),
    ("r = f32[2]{0} add(p, p", "(p"),
    ("r = f32[2]{0} negate(p), sharding={devices=[2,1<=[2]", "[2,1"),
];

fn with_unclosed(instruction: &str, metadata: &str) -> String {
    let mut text = String::from(
        "HloModule m\n\nadd {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  \
         ROOT s = f32[] add(x, y)\n}\n\nENTRY e {\n  p = f32[2]{0} parameter(0)\n",
    );
    text.push_str(&format!("  {instruction}\n"));
    for number in 0..8 {
        text.push_str(&format!("  n{number} = f32[2]{{0}} negate(p){metadata}\n"));
    }
    text.push_str("  ROOT t = f32[2]{0} negate(p)\n}\n\nlater (a: f32[]) -> f32[] {\n  ");
    text.push_str("a = f32[] parameter(0)\n  ROOT b = f32[] negate(a)\n}\n");
    text
}

#[test]
fn what_is_never_closed_is_reported_where_it_opens_and_costs_one_instruction() {
    for metadata in ["", ", metadata={op_name=\"jit(f)/neg\" source_file=\"a.py\" source_line=3}"] {
        for (instruction, at) in UNCLOSED {
            let text = with_unclosed(instruction, metadata);
            let error = parse(text.as_bytes()).expect_err(instruction);
            let place = ErrorPlace::new(&Source::from_slice(text.as_bytes()), &error);
            assert_eq!(place.line, 11, "{instruction}: {error:?}");
            let rest = &text[error.span().start as usize..];
            assert!(rest.starts_with(at) || *at == "(p", "{instruction}: {error:?}");
            let module = parse_all(text.as_bytes()).expect(instruction);
            check_invariants(&module);
            assert_eq!(module.errors().len(), 1, "{instruction}: {:?}", module.errors());
            assert_eq!(module.rows().len(), 15, "{instruction}");
            assert_eq!(module.computations().len(), 3, "{instruction}");
        }
    }
}

#[test]
fn what_the_last_instruction_never_closes_is_reported_there_too() {
    for end in ["", "\n\nlater (a: f32[]) -> f32[] {\n  ROOT a = f32[] parameter(0)\n}\n"] {
        let text = format!(
            "e {{\n  p = f32[2]{{0}} parameter(0)\n  t = f32[2]{{0}} slice(p), slice={{[0:2]\n}}{end}"
        );
        let error = parse(text.as_bytes()).unwrap_err();
        assert_eq!((error.kind(), &text[error.span().range()]), (UnclosedBracket, "{"));
        assert_eq!(error.span().start as usize, text.find("{[0").unwrap());
    }
    let text = "HloModule m, entry_computation_layout={(f32[2]{0})->f32[2]{0}\n\n\
                ENTRY e {\n  ROOT p = f32[2]{0} parameter(0)\n}\n";
    let error = parse(text.as_bytes()).unwrap_err();
    assert_eq!(error.span().start as usize, text.find("{(").unwrap());
    assert_eq!(parse_all(text.as_bytes()).unwrap().rows().len(), 1);
}

#[test]
fn what_strings_and_dictionaries_hold_is_no_fault_beside_one() {
    let quiet = "  q = f32[2]{0} custom-call(p), custom_call_target=\"x\", backend_config=\"\n  \
                 ROOT %a = f32[2]{0} add(b, c)\n}\n\"\n";
    let text = format!(
        "e {{\n  p = f32[2]{{0}} parameter(0)\n{quiet}  r = f32[2]{{0}} negate(none)\n}}\n"
    );
    let error = parse(text.as_bytes()).unwrap_err();
    assert_eq!((error.kind(), &text[error.span().range()]), (UnknownInstruction, "none"));
}

#[test]
fn many_that_are_never_closed_are_found_in_work_proportional_to_the_text() {
    for line in ["  a = f32[] rng(), x={1\n", "  a = f32[] rng(), x=\"\n", "  a {{{\n", "a {\n"] {
        let text = format!("e {{\n{}}}\n", line.repeat(200_000));
        parse(text.as_bytes()).unwrap_err();
        let _ = parse_all(text.as_bytes());
    }
}

#[test]
fn computations_nest_a_hundred_deep() {
    let nested = |depth: usize| {
        let mut block = String::from("{ p = f32[] parameter(0) ROOT r = f32[] negate(p) }");
        for _ in 1..depth {
            block =
                format!("{{ p = f32[] parameter(0) ROOT r = f32[] call(p), to_apply={block} }}");
        }
        format!(
            "HloModule m\nENTRY e {{ p = f32[] parameter(0) ROOT r = f32[] call(p), to_apply={block} }}"
        )
    };
    let module = parse(nested(100).as_bytes()).unwrap();
    check_invariants(&module);
    assert_eq!(module.computations().len(), 101);
    assert_eq!(parse(nested(300).as_bytes()).unwrap_err().kind(), TooDeep);
}
