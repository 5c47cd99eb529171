//! Edits give new modules; what they do not touch keeps its text.

use crate::support::generate::generate;
use crate::support::round_trip::{dumps, parse};
use hlofast::edit::{Edit, EditError, apply, edited_text};
use hlofast::ir::{Module, Opcode, Row};

const TEXT: &str =
    "HloModule m, is_scheduled=true, entry_computation_layout={(f32[2]{0})->f32[2]{0}}

%f (q: f32[2]) -> f32[2] {
  %q = f32[2]{0} parameter(0)
  ROOT %n = f32[2]{0} negate(f32[2]{0} %q), metadata={op_name=\"a, b\"}
}

ENTRY %e (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %a = f32[2]{0} add(%p, /* one */ %p), metadata={op_name=\"x\"}, backend_config={\"a\":1}
  ROOT %c = f32[2]{0} fusion(%a), kind=kLoop, calls=%f
}
";

fn row(module: &Module, name: &str) -> Row {
    Row(module.find_instructions(name.as_bytes())[0])
}

fn line(module: &Module, name: &str) -> String {
    String::from_utf8_lossy(module.instruction_text(row(module, name))).into_owned()
}

#[test]
fn a_value_is_computed_again_next_to_its_user() {
    let module = parse(TEXT.as_bytes());
    let user = row(&module, "c");
    let edits = [
        Edit::InsertBefore { row: user, text: b"%a.remat = f32[2]{0} add(%p, %p)".to_vec() },
        Edit::ReplaceOperand { row: user, index: 0, name: b"a.remat".to_vec() },
    ];
    let edited = apply(&module, &edits).expect("the edits fit");
    assert_eq!(edited.row_count(), module.row_count() + 1);
    assert_eq!(line(&edited, "c"), "ROOT %c = f32[2]{0} fusion(%a.remat), kind=kLoop, calls=%f");
    assert_eq!(line(&edited, "a"), line(&module, "a"));
    assert_eq!(edited.operands(row(&edited, "c")), [row(&edited, "a.remat").0]);
    let text = String::from_utf8_lossy(edited.text()).into_owned();
    assert!(text.contains("\n  %a.remat = f32[2]{0} add(%p, %p)\n  ROOT %c"));
    // The original is untouched.
    assert_eq!(module.text(), TEXT.as_bytes());
}

#[test]
fn shapes_operands_and_signatures_change_in_place() {
    let module = parse(TEXT.as_bytes());
    let f = module.find_computation(b"f").expect("f");
    let edits = [
        Edit::ReplaceShape { row: row(&module, "n"), shape: b"f32[2]{0:T(256)}".to_vec() },
        Edit::ReplaceOperand { row: row(&module, "a"), index: 1, name: b"a2".to_vec() },
        Edit::InsertBefore { row: row(&module, "a"), text: b"a2 = f32[2] copy(p)\n".to_vec() },
        Edit::ChangeSignature { computation: f, signature: b"(q: f32[2]) -> f32[2]{0}".to_vec() },
        Edit::SetAttribute { row: row(&module, "a"), key: b"metadata".to_vec(), value: None },
        Edit::SetAttribute {
            row: row(&module, "c"),
            key: b"kind".to_vec(),
            value: Some(b"kInput".to_vec()),
        },
        Edit::SetAttribute {
            row: row(&module, "p"),
            key: b"sharding".to_vec(),
            value: Some(b"{replicated}".to_vec()),
        },
        Edit::SetHeaderAttribute { key: b"is_scheduled".to_vec(), value: None },
        Edit::SetHeaderAttribute { key: b"num_partitions".to_vec(), value: Some(b"4".to_vec()) },
        Edit::InsertComputation { before: f, text: b"%g { ROOT %z = f32[] constant(0) }".to_vec() },
    ];
    let edited = apply(&module, &edits).expect("the edits fit");
    assert_eq!(
        line(&edited, "a"),
        "%a = f32[2]{0} add(%p, /* one */ %a2), backend_config={\"a\":1}"
    );
    assert_eq!(
        line(&edited, "n"),
        "ROOT %n = f32[2]{0:T(256)} negate(f32[2]{0} %q), metadata={op_name=\"a, b\"}"
    );
    assert_eq!(line(&edited, "p"), "%p = f32[2]{0} parameter(0), sharding={replicated}");
    assert_eq!(edited.attribute_bytes(row(&edited, "c"), "kind"), Some(&b"kInput"[..]));
    assert!(!edited.is_scheduled());
    assert_eq!(edited.num_partitions(), Some(4));
    assert_eq!(edited.computations().len(), 3);
    let f = edited.find_computation(b"f").expect("f");
    assert_eq!(edited.bytes(edited.computation(f).signature), b"(q: f32[2]) -> f32[2]{0}");
}

#[test]
fn an_instruction_goes_and_another_becomes_the_root() {
    let module = parse(TEXT.as_bytes());
    let edits = [
        Edit::Remove { row: row(&module, "c") },
        Edit::MarkRoot { row: row(&module, "a") },
        // Lost with the instruction.
        Edit::ReplaceOperand { row: row(&module, "c"), index: 0, name: b"p".to_vec() },
    ];
    let edited = apply(&module, &edits).expect("the edits fit");
    let entry = edited.computation(edited.entry());
    assert_eq!(edited.instruction_name(Row(entry.root)), b"a");
    assert!(line(&edited, "a").starts_with("ROOT %a = "));
    assert_eq!(edited.row_count(), module.row_count() - 1);
}

#[test]
fn a_computation_goes_and_another_comes_in_its_place() {
    let module = parse(TEXT.as_bytes());
    let computation = module.find_computation(b"f").expect("f");
    let edits = [
        Edit::RemoveComputation { computation },
        Edit::InsertComputation {
            before: computation,
            text: b"%g { ROOT %z = f32[2]{0} parameter(0) }".to_vec(),
        },
        Edit::SetAttribute {
            row: row(&module, "c"),
            key: b"calls".to_vec(),
            value: Some(b"%g".to_vec()),
        },
    ];
    let edited = apply(&module, &edits).expect("the edits fit");
    assert!(edited.find_computation(b"f").is_none());
    assert_eq!(edited.computations().len(), 2);
    assert!(line(&edited, "c").ends_with("calls=%g"));
    // What is still called cannot go.
    let called = [Edit::RemoveComputation { computation }];
    assert!(matches!(apply(&module, &called), Err(EditError::Invalid(_))));
    let nowhere = [Edit::RemoveComputation { computation: hlofast::ir::ComputationId(9) }];
    assert!(matches!(apply(&module, &nowhere), Err(EditError::NotInText { .. })));
}

#[test]
fn faults_are_errors() {
    let module = parse(TEXT.as_bytes());
    let error_of = |edit| apply(&module, &[edit]).err();
    let invalid = Edit::Remove { row: row(&module, "a") };
    assert!(matches!(error_of(invalid), Some(EditError::Invalid(_))));
    let missing = Edit::ReplaceOperand { row: row(&module, "a"), index: 2, name: b"p".to_vec() };
    assert!(matches!(error_of(missing), Some(EditError::NotInText { edit: 0, .. })));
    let literal = Edit::ReplaceLiteral { row: row(&module, "a"), literal: b"1".to_vec() };
    assert!(matches!(error_of(literal), Some(EditError::NotInText { .. })));
    let beyond = Edit::Remove { row: Row(1000) };
    assert!(matches!(error_of(beyond), Some(EditError::NotInText { .. })));
    let twice = |name: &str| Edit::ReplaceOperand {
        row: row(&module, "a"),
        index: 0,
        name: name.as_bytes().to_vec(),
    };
    let conflict = apply(&module, &[twice("p"), twice("q")]).err();
    assert!(matches!(conflict, Some(EditError::Conflict { .. })));
    let implied =
        parse(b"HloModule m\nENTRY e { p = (f32[]) parameter(0)\n n = f32[] negate(p#0) }");
    let edit = Edit::Remove { row: Row(1) };
    assert!(implied.is_implicit(Row(1)));
    assert!(matches!(apply(&implied, &[edit]), Err(EditError::NotInText { .. })));
}

#[test]
fn no_edits_give_the_text_back() {
    for (_, text) in dumps() {
        let module = parse(&text);
        assert!(edited_text(&module, &[]).expect("nothing to do") == text);
    }
}

/// Every operand in turn is replaced by itself, and a copy put in front of every instruction.
#[test]
fn edits_reach_every_instruction_of_generated_modules() {
    let mut replaced = 0;
    for seed in 0..200 {
        let module = parse(generate(seed, 12).text.as_bytes());
        let mut edits = Vec::new();
        let mut inserted = 0;
        for row in module.rows().filter(|row| !module.is_implicit(*row)) {
            if module.computation(module.computation_of(row)).is_inline {
                continue;
            }
            inserted += 1;
            let text = format!("%extra.{} = f32[] constant(1)", row.0).into_bytes();
            edits.push(Edit::InsertBefore { row, text });
            for (index, operand) in module.operands(row).iter().enumerate() {
                let operand = Row(*operand);
                if !module.is_implicit(operand) && module.opcode(row) != Opcode::AsyncStart {
                    let name = module.instruction_name(operand).to_vec();
                    edits.push(Edit::ReplaceOperand { row, index, name });
                    replaced += 1;
                }
            }
        }
        let edited = apply(&module, &edits).expect("the edits fit");
        assert_eq!(edited.row_count(), module.row_count() + inserted);
        for row in module.rows().filter(|row| !module.is_implicit(*row)) {
            let name = module.instruction_name(row);
            let rows = edited.find_instructions(name);
            let same = |other: &u32| {
                edited.opcode(Row(*other)) == module.opcode(row)
                    && edited.operands(Row(*other)).len() == module.operands(row).len()
            };
            assert!(rows.iter().any(same), "seed {seed}");
        }
    }
    assert!(replaced > 500);
}
