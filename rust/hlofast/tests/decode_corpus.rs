//! Every attribute, header value, table and constant of the fixtures and of the probes that XLA
//! accepts has a typed value.

use crate::support::reading::{Probe, files_below, probes, read, tests_folder};
use hlofast::ir::decode::*;
use hlofast::ir::{Module, Opcode};
use hlofast::text::Source;
use hlofast::{Options, ParseError, parse};
use std::collections::BTreeMap;

/// What was decoded, and what could not be.
#[derive(Default)]
struct Report {
    attributes: usize,
    constants: usize,
    frames: usize,
    faults: Vec<String>,
}

impl Report {
    fn fault(&mut self, origin: &str, what: &[u8], text: &[u8], error: &str) {
        let text: String = String::from_utf8_lossy(text).chars().take(200).collect();
        self.faults.push(format!("{origin}: {}={text}: {error}", String::from_utf8_lossy(what)));
    }

    fn outcome<T>(&mut self, origin: &str, what: &[u8], text: &[u8], value: Result<T, ParseError>) {
        if let Err(error) = value {
            self.fault(origin, what, text, &error.to_string());
        }
    }

    fn module(&mut self, origin: &str, module: &Module) {
        for (key, value) in &module.header().attributes {
            let (key, value) = (module.bytes(*key), module.bytes(*value));
            let decoded = decode_header(key, value);
            if matches!(decoded, Ok(HeaderValue::Plain(AttributeValue::Raw(_)))) {
                self.fault(origin, key, value, "not known");
            }
            self.outcome(origin, key, value, decoded);
        }
        let frames = StackFrames::of_module(module);
        self.frames += frames.as_ref().map_or(0, StackFrames::len);
        self.outcome(origin, b"tables", b"", frames);
        for row in module.rows() {
            let opcode = module.opcode(row);
            for attribute in module.attributes(row) {
                let (key, value) = (module.bytes(attribute.key), module.bytes(attribute.value));
                self.attributes += 1;
                let decoded = decode(key, opcode, value);
                if matches!(decoded, Ok(AttributeValue::Raw(_))) {
                    self.fault(origin, key, value, "not known");
                }
                self.outcome(origin, key, value, decoded);
            }
            if opcode == Opcode::Constant {
                self.constants += 1;
                let payload = module.bytes(module.opcode_and_payload(row).1);
                let shapes = module.shapes();
                let decoded = Literal::split(payload, shapes, module.shape(row)).and_then(|l| {
                    (0..l.leaves.len()).try_for_each(|leaf| l.decode(leaf, shapes).map(|_| ()))
                });
                self.outcome(origin, b"constant", payload, decoded);
            }
        }
    }
}

fn check(report: &Report) {
    assert!(
        report.faults.is_empty(),
        "{} faults:\n{}",
        report.faults.len(),
        report.faults.join("\n")
    );
}

#[test]
fn fixtures() {
    let folder = tests_folder().join("fixtures");
    let paths = [".txt", ".txt.gz"].map(|suffix| files_below(&folder, suffix));
    let (mut report, mut modules) = (Report::default(), 0);
    for path in paths.concat() {
        let text = read(&path);
        if !text.starts_with(b"HloModule") {
            continue;
        }
        let origin = path.display().to_string();
        match parse(Source::from_slice(&text), &Options::default()) {
            Ok(module) => {
                modules += 1;
                report.module(&origin, &module);
            }
            Err(error) => report.faults.push(format!("{origin}: {error}")),
        }
    }
    check(&report);
    assert!(modules >= 10, "only {modules} modules");
    assert!(report.attributes > 10_000, "only {} attributes", report.attributes);
    assert!(report.constants > 100 && report.frames > 100);
}

/// A constant that holds no value at all, of which XLA makes 0; and an instruction without a
/// name, whose payload the module does not find.
const WITHOUT_VALUE: &[&str] = &["literals/scalar/s32/,", "single/f32[] constant(1)"];

#[test]
fn probes_that_xla_accepts() {
    let (mut report, mut accepted) = (Report::default(), 0);
    for Probe { id, text, .. } in probes().into_iter().filter(|probe| probe.is_accepted) {
        if WITHOUT_VALUE.contains(&id.as_str()) {
            continue;
        }
        // What the module reader itself makes of the probes is not the question here.
        if let Ok(module) = parse(Source::from_slice(text.as_bytes()), &Options::default()) {
            accepted += 1;
            report.module(&id, &module);
        }
    }
    check(&report);
    assert!(accepted > 300, "only {accepted} probes");
}

/// Values by instruction and attribute.
type Values = BTreeMap<(Vec<u8>, Vec<u8>), String>;

/// What XLA's re-print must keep: constants as bytes, some attributes as values.
fn kept(module: &Module) -> Values {
    let mut kept = Values::new();
    for row in module.rows() {
        let opcode = module.opcode(row);
        let name = module.instruction_name(row).to_vec();
        if opcode == Opcode::Constant {
            let payload = module.bytes(module.opcode_and_payload(row).1);
            let shapes = module.shapes();
            let literal = Literal::split(payload, shapes, module.shape(row));
            let data = literal.and_then(|literal| {
                let leaves = 0..literal.leaves.len();
                leaves.map(|leaf| literal.decode(leaf, shapes)).collect::<Result<Vec<_>, _>>()
            });
            if let Ok(data) = data
                && data.iter().all(|leaf| leaf.extent == Extent::Full)
            {
                kept.insert((name.clone(), b"constant".to_vec()), format!("{data:02x?}"));
            }
        }
        for attribute in module.attributes(row) {
            let (key, value) = (module.bytes(attribute.key), module.bytes(attribute.value));
            let value = match decode(key, opcode, value) {
                // XLA prints groups and meshes in other words; the devices must be the same.
                Ok(AttributeValue::ReplicaGroups(groups)) => groups.expand(1000).map(|lists| {
                    lists.iter().map(|group| format!("{group:?}")).collect::<String>()
                }),
                value => KEPT.contains(&key).then(|| format!("{value:?}")),
            };
            if let Some(value) = value {
                kept.insert((name.clone(), key.to_vec()), value);
            }
        }
    }
    kept
}

/// Attributes that XLA does not rewrite.
const KEPT: &[&[u8]] =
    &[b"window", b"padding", b"slice", b"source_target_pairs", b"custom_call_target"];

/// Constants that XLA reads as other values than they say: it takes `-0` for an integer, lets
/// large ones wrap before they become floats, and mixes up the NaNs of complex numbers.
const MISREAD: &[&str] = &[
    "numbers/float/-0",
    "literals/scalar/f32/18446744073709551615",
    "literals/scalar/c64/(nan(0x1), 0)",
    "literals/scalar/c64/(0, nan(0x1))",
];

#[test]
fn xla_prints_the_same_values() {
    let (mut compared, mut differ) = (0, Vec::new());
    for Probe { id, text, printed, .. } in probes() {
        let Some(long) = printed else { continue };
        let read = |text: &str| parse(Source::from_slice(text.as_bytes()), &Options::default());
        let (Ok(module), Ok(printed)) = (read(&text), read(&long)) else { continue };
        let theirs = kept(&printed);
        for (place, ours) in kept(&module) {
            let Some(theirs) = theirs.get(&place).filter(|_| !MISREAD.contains(&id.as_str()))
            else {
                continue;
            };
            compared += 1;
            if ours != *theirs {
                let key = String::from_utf8_lossy(&place.1).into_owned();
                differ.push(format!("{id} {key}\n  text:  {ours}\n  print: {theirs}"));
            }
        }
    }
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
    assert!(compared > 300, "only {compared} compared");
}
