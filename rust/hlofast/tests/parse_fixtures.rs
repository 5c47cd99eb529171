//! Every dump among the fixtures, beside what XLA's own parser sees in it.

use crate::support::{invariants, reading};
use hlofast::ir::{Flags, Module, Row};
use serde_json::Value;
use std::collections::BTreeMap;

/// Opcode and operand names of each instruction, by its name.
type Instructions = BTreeMap<String, (String, Vec<String>)>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What XLA sees, by computation.
fn xla_view(view: &Value) -> BTreeMap<String, Instructions> {
    let string = |value: &Value| value.as_str().unwrap().to_string();
    let computations = view["computations"].as_array().unwrap().iter();
    let instruction = |value: &Value| {
        let operands = value[2].as_array().unwrap().iter().map(string).collect();
        (string(&value[0]), (string(&value[1]), operands))
    };
    computations
        .map(|computation| {
            let instructions = computation["instructions"].as_array().unwrap();
            (string(&computation["name"]), instructions.iter().map(instruction).collect())
        })
        .collect()
}

/// What we see, by computation.
fn our_view(module: &Module) -> BTreeMap<String, Instructions> {
    let name = |row: u32| text(module.instruction_name(Row(row)));
    let instruction = |row: u32| {
        let operands = module.operands(Row(row)).iter().map(|operand| name(*operand)).collect();
        (name(row), (module.opcode(Row(row)).as_str().to_string(), operands))
    };
    let computations = module.computations().iter();
    computations
        .map(|c| (text(module.bytes(c.name)), c.rows().map(instruction).collect()))
        .collect()
}

/// Computations that only asynchronous sugar implies, as multisets of opcodes: XLA names them and
/// their instructions anew.
fn shapes_of(views: &[&Instructions]) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = views
        .iter()
        .map(|instructions| {
            let mut opcodes: Vec<String> =
                instructions.values().map(|(opcode, _)| opcode.clone()).collect();
            opcodes.sort();
            opcodes
        })
        .collect();
    all.sort();
    all
}

#[test]
fn every_dump_is_what_xla_sees() {
    let mut compared = 0;
    let mut instructions = 0;
    for dump in reading::dumps() {
        let path = dump.path.to_string_lossy();
        let stem = path.strip_suffix(".gz").unwrap_or(&path).strip_suffix(".txt").unwrap();
        let view = std::path::PathBuf::from(format!("{stem}.xla.json.gz"));
        if !view.exists() {
            continue;
        }
        let view: Value = serde_json::from_slice(&reading::read(&view)).unwrap();
        let module = reading::parse(&dump.bytes).unwrap();
        invariants::check_invariants(&module);
        assert_eq!(text(module.name()), view["module"].as_str().unwrap(), "{}", dump.name);
        let (ours, xla) = (our_view(&module), xla_view(&view));
        for computation in module.computations().iter().filter(|c| !c.is_implicit) {
            let name = text(module.bytes(computation.name));
            let Some(known) = xla.get(&name) else { panic!("{}: {name} is not XLA's", dump.name) };
            let mut own = ours[&name].clone();
            // Rows that only the text's short forms imply have names of our own.
            let implied = computation.rows().filter(|row| {
                let flags = module.flags(Row(*row));
                flags & Flags::IMPLICIT != 0
            });
            for row in implied {
                own.remove(&text(module.instruction_name(Row(row))));
            }
            for (instruction, facts) in &own {
                assert_eq!(Some(facts), known.get(instruction), "{}: {instruction}", dump.name);
            }
            instructions += own.len();
            assert_eq!(computation.rows().len(), known.len(), "{}: {name}", dump.name);
        }
        let written = |name: &String| {
            module
                .computations()
                .iter()
                .any(|c| !c.is_implicit && text(module.bytes(c.name)) == *name)
        };
        let rest = |views: &BTreeMap<String, Instructions>| {
            let views: Vec<&Instructions> =
                views.iter().filter(|(name, _)| !written(name)).map(|(_, view)| view).collect();
            shapes_of(&views)
        };
        assert_eq!(rest(&ours), rest(&xla), "{}: implied computations", dump.name);
        let counts = &view["counts"];
        assert_eq!(Some(module.computations().len() as u64), counts["computations"].as_u64());
        assert_eq!(Some(module.row_count() as u64), counts["instructions"].as_u64());
        compared += 1;
    }
    assert!(compared >= 20, "only {compared} dumps have XLA's view beside them");
    assert!(instructions > 20_000, "only {instructions} instructions were compared");
}

#[test]
fn seedlike_texts_hold_their_facts() {
    let mut checked = 0;
    for dump in reading::dumps() {
        let path = dump.path.to_string_lossy();
        let Some(stem) = path.strip_suffix(".txt.gz") else { continue };
        let facts = std::path::PathBuf::from(format!("{stem}.facts.json"));
        if !facts.exists() {
            continue;
        }
        let facts: Value = serde_json::from_slice(&reading::read(&facts)).unwrap();
        let mine: Vec<_> =
            reading::modules().into_iter().filter(|(name, _)| *name == dump.name).collect();
        for (_, source) in mine {
            let module = reading::parse(source.bytes()).unwrap();
            let number = |key: &str| facts[key].as_u64();
            if let Some(instructions) = number("instructions") {
                assert_eq!(module.instruction_count() as u64, instructions, "{}", dump.name);
                checked += 1;
            }
            if let Some(computations) = number("computations") {
                let written = module.computations().iter().filter(|c| !c.is_implicit).count();
                assert_eq!(written as u64, computations, "{}", dump.name);
                checked += 1;
            }
        }
    }
    assert!(checked >= 4, "the facts say too little");
}
