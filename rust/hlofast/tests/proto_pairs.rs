//! Protos beside the texts that XLA wrote of the same modules: equal, but for what one of the two
//! does not have.

use crate::support::reading;
use hlofast::ir::{Module, Row};
use hlofast::print::{PrintOptions, shape_to_text, to_text};
use hlofast::proto;
use hlofast::text::{OpenOptions, Source};
use std::path::PathBuf;

/// Header attributes that protos do not have, or only beside a device assignment.
const ONLY_TEXT: [&[u8]; 7] = [
    b"allow_spmd_sharding_propagation_to_parameters",
    b"allow_spmd_sharding_propagation_to_output",
    b"alias_passthrough_params",
    b"num_partitions",
    b"replica_count",
    b"origin_recovery_table",
    b"debug_attributes",
];

/// Its translation tells where the parts of lines are; without that the same must come out.
fn module_of_proto(bytes: &[u8]) -> Module {
    let source = hlofast::unpack(bytes.to_vec().into(), &OpenOptions::default()).unwrap();
    assert!(source.is_translated());
    let plain = module_of_text(source.bytes());
    let module = hlofast::parse(source, &hlofast::Options::default()).unwrap();
    // A translation does not tell where attribute values end; they are found in the text.
    let columns = |module: &Module| {
        let mut columns = module.columns().clone();
        columns.value_ends.clear();
        columns.value_offsets.clear();
        format!("{columns:?}")
    };
    assert!(columns(&module) == columns(&plain));
    for row in module.rows() {
        assert!(module.attributes(row).eq(plain.attributes(row)));
    }
    assert_eq!(module.all_calls(), plain.all_calls());
    assert_eq!(module.control_predecessors(), plain.control_predecessors());
    module
}

fn module_of_text(bytes: &[u8]) -> Module {
    hlofast::parse(Source::from_slice(bytes), &hlofast::Options::default()).unwrap()
}

fn header(module: &Module) -> Vec<(&[u8], &[u8])> {
    let attributes = module.header().attributes.iter();
    let named = attributes.map(|(key, value)| (module.bytes(*key), module.bytes(*value)));
    named.filter(|(key, _)| !ONLY_TEXT.contains(key)).collect()
}

fn is_elided(module: &Module, row: Row) -> bool {
    let payload = module.bytes(module.opcode_and_payload(row).1);
    module.opcode(row) == hlofast::ir::Opcode::Constant && payload.trim_ascii() == b"{...}"
}

/// Every column and every attribute of both modules, in the order of rows.
fn assert_equal(own: &Module, theirs: &Module, what: &str) {
    assert_eq!(own.name(), theirs.name(), "{what}");
    assert_eq!(header(own), header(theirs), "{what}");
    let tables = |module: &Module| {
        let header = module.header();
        let spans =
            [header.file_names, header.function_names, header.file_locations, header.stack_frames];
        spans.map(|span| module.bytes(span).trim_ascii().to_vec())
    };
    assert_eq!(tables(own), tables(theirs), "{what}");
    assert_eq!(own.row_count(), theirs.row_count(), "{what}");
    assert_eq!(own.columns().opcodes, theirs.columns().opcodes, "{what}");
    assert_eq!(own.columns().flags, theirs.columns().flags, "{what}");
    assert_eq!(own.columns().operand_offsets, theirs.columns().operand_offsets, "{what}");
    assert_eq!(own.columns().operands, theirs.columns().operands, "{what}");
    assert_eq!(own.all_calls(), theirs.all_calls(), "{what}");
    assert_eq!(own.control_predecessors(), theirs.control_predecessors(), "{what}");
    assert_eq!(own.entry(), theirs.entry(), "{what}");
    for (a, b) in own.computations().iter().zip(theirs.computations()) {
        assert_eq!(own.bytes(a.name), theirs.bytes(b.name), "{what}");
        assert_eq!((a.rows(), a.root), (b.rows(), b.root), "{what}");
        assert_eq!(own.bytes(a.execution_thread), theirs.bytes(b.execution_thread), "{what}");
    }
    for row in own.rows() {
        let name = String::from_utf8_lossy(own.instruction_name(row)).into_owned();
        assert_eq!(own.instruction_name(row), theirs.instruction_name(row), "{what} {name}");
        let shape = |module: &Module| {
            String::from_utf8(shape_to_text(module, module.shape(row), true)).unwrap()
        };
        assert_eq!(shape(own), shape(theirs), "{what} {name}");
        let attributes = |module: &Module| -> Vec<(String, String)> {
            let text = |span| String::from_utf8_lossy(module.bytes(span)).into_owned();
            module
                .attributes(row)
                .map(|attribute| (text(attribute.key), text(attribute.value)))
                .collect()
        };
        let (mut a, mut b) = (attributes(own), attributes(theirs));
        a.sort();
        b.sort();
        assert_eq!(a, b, "{what} {name}");
        if !is_elided(theirs, row) {
            let payload = |module: &Module| {
                String::from_utf8_lossy(module.bytes(module.opcode_and_payload(row).1)).into_owned()
            };
            assert_eq!(payload(own), payload(theirs), "{what} {name}");
        }
    }
}

#[test]
fn every_probe_that_xla_accepts() {
    let path = reading::tests_folder().join("fixtures/protos/probes.jsonl.gz");
    let lines = String::from_utf8(reading::read(&path)).unwrap();
    let mut count = 0;
    for line in lines.lines() {
        let pair: serde_json::Value = serde_json::from_str(line).unwrap();
        let field = |key: &str| pair[key].as_str().unwrap();
        let proto = reading::base64(field("proto"));
        let own = module_of_proto(&proto);
        let theirs = module_of_text(field("text").as_bytes());
        let is_sugared =
            theirs.rows().any(|row| theirs.flags(row) & hlofast::ir::Flags::SUGAR != 0);
        if is_sugared {
            // Sugar hides computations and their names, which protos have.
            continue;
        }
        assert_equal(&own, &theirs, field("id"));
        count += 1;
    }
    assert!(count >= 2000, "{count}");
}

/// The protos among the fixtures, each beside its text.
fn dumped() -> Vec<(PathBuf, PathBuf)> {
    let folder = reading::tests_folder().join("fixtures/dump_folders");
    let mut pairs = Vec::new();
    for backend in ["cpu", "tpu"] {
        for proto in reading::files(&folder.join(backend), ".hlo.pb.gz") {
            let text = proto.to_string_lossy().replace(".hlo.pb.gz", ".txt.gz");
            pairs.push((proto, PathBuf::from(text)));
        }
    }
    pairs
}

#[test]
fn every_dump() {
    let pairs = dumped();
    assert!(pairs.len() >= 4);
    for (proto, text) in pairs {
        let (proto, text) = (reading::read(&proto), reading::read(&text));
        let (own, theirs) = (module_of_proto(&proto), module_of_text(&text));
        assert_equal(&own, &theirs, "dump");
        assert_eq!(own.num_partitions(), theirs.num_partitions());
        // Byte for byte too, but for the header and elided literals.
        let translated = proto::to_text(&proto).unwrap().text;
        let lines = |text: &[u8]| -> Vec<String> {
            let text = String::from_utf8(text.to_vec()).unwrap();
            text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
        };
        let (a, b) = (lines(&translated), lines(&text));
        assert_eq!(a.len(), b.len());
        for (a, b) in a.iter().zip(&b).skip(1).filter(|(_, b)| !b.contains("constant({...})")) {
            assert_eq!(a, b);
        }
        let print = |module: &Module| to_text(module, &PrintOptions::default());
        assert!(!print(&own).is_empty());
    }
}
