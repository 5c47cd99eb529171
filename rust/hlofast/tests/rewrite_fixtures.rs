//! Programs that XLA compiled and ran, as they were and rewritten: the rewriting is the one that
//! XLA judged, and the peaks of what XLA scheduled are the ones it found.

use crate::support::reading::{read, tests_folder};
use crate::support::recipe;
use crate::support::round_trip::{check_round_trip, parse};
use hlofast::ir::{Module, Opcode, Row};
use hlofast::memory::{Options, Rule, memory};
use hlofast::remat::{Recompute, Use, rewrite};
use serde_json::Value;
use std::path::PathBuf;

fn folder() -> PathBuf {
    tests_folder().join("fixtures/rewrites")
}

fn rows() -> Vec<Value> {
    let index = std::fs::read_to_string(folder().join("index.jsonl")).unwrap();
    index.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(row: &Value, file: &str) -> Vec<u8> {
    read(&folder().join(row["name"].as_str().unwrap()).join(format!("{file}.txt.gz")))
}

#[test]
fn modules_are_rewritten_as_xla_judged_them() {
    let rows = rows();
    assert!(rows.len() >= 10);
    for row in rows {
        let module = parse(&text(&row, "module"));
        let wanted = recipe::read(&module, &row["recipe"]).unwrap();
        let rewritten = rewrite(&module, &wanted).unwrap();
        assert!(rewritten.module.text() == text(&row, "rewritten"), "{}", row["name"]);
        assert!(!rewritten.copies.is_empty());
        check_round_trip(&rewritten.module, &Default::default());
    }
}

#[test]
fn results_stay_and_peaks_fall() {
    let options = Options { rule: Rule::Values, ..Options::default() };
    for row in rows() {
        let mut peaks = Vec::new();
        for when in ["before", "after"] {
            let module = parse(&text(&row, &format!("scheduled_{when}")));
            let memory = memory(&module, &options).unwrap();
            let recorded = row[format!("peak_{when}")].as_i64().unwrap();
            assert_eq!(memory.peak.bytes, recorded, "{} {when}", row["name"]);
            peaks.push(memory.peak.bytes);
        }
        assert!(peaks[1] < peaks[0], "{}", row["name"]);
        assert!(row["difference"].as_f64().unwrap() <= 1e-6, "{}", row["name"]);
    }
}

/// Bytes of main memory alive at the peak of what a TPU compiler made.
fn peak(module: &Module) -> i64 {
    memory(module, &Options::default()).unwrap().peak.bytes
}

fn row(module: &Module, name: &str) -> Row {
    Row(*module.find_instructions(name.as_bytes()).first().expect(name))
}

/// The text is that of issue 25010 of JAX with the tensor named after the constraint, for v5e:2x4.
#[test]
fn the_gathered_norm_is_gathered_again() {
    let module = parse(&read(&tests_folder().join("fixtures/sharded/norm_v4_named_after.txt.gz")));
    let kept = module.rows().find(|row| module.opcode(*row) == Opcode::ReducePrecision).unwrap();
    let gather = Row(module.operands(kept)[0]);
    assert_eq!(module.opcode(gather), Opcode::AllGather);
    let uses = module.users().get(kept.0).iter().flat_map(|user| {
        let operands = module.operands(Row(*user)).iter().enumerate();
        let reads = operands.filter(|(_, operand)| **operand == kept.0);
        reads.map(|(operand, _)| Use { user: Row(*user), operand }).collect::<Vec<_>>()
    });
    let wanted = Recompute::ForUsers { producer: kept, chain: vec![gather], uses: uses.collect() };
    let result = rewrite(&module, &[wanted]).unwrap();
    check_round_trip(&result.module, &Default::default());
    let names: Vec<&[u8]> = result.copies.iter().map(|copy| copy.name.as_slice()).collect();
    // Nothing early reads it in this program, so that the originals are gone.
    assert_eq!(names.len(), 2);
    assert!(result.module.find_instructions(module.instruction_name(gather)).is_empty());
    let shards = |module: &Module, gather: Row| {
        let array = module.shapes().array(module.shape(Row(module.operands(gather)[0]))).unwrap();
        array.dimensions().filter_map(|size| size.bound()).collect::<Vec<_>>()
    };
    let again = Row(result.module.find_instructions(names[0])[0]);
    assert_eq!(shards(&result.module, again), [1, 512, 1024]);
    let last_early = module.operands(row(&module, "fusion.2"))[0];
    let before = result.module.find_instructions(module.instruction_name(Row(last_early)))[0];
    assert!(again.0 > before, "gathered after the other operand of its first user is made");
}

/// Six slices of 4096 rows become six of 512, and one gathered slice lives while it is read.
#[test]
fn a_stack_of_gathers_of_a_compiled_program_holds_shards() {
    let module = parse(&read(&folder().join("tpu_stacked_gathers.txt.gz")));
    let gather = module.rows().find(|row| module.opcode(*row) == Opcode::AllGather).unwrap();
    let source = Row(module.operands(gather)[0]);
    let mut updates = module.rows().filter(|row| {
        let wanted = Recompute::FromStack { update: *row, source };
        rewrite(&module, &[wanted]).is_ok()
    });
    let update = updates.next().unwrap();
    assert_eq!((module.opcode(update), updates.next()), (Opcode::DynamicUpdateSlice, None));
    let result = rewrite(&module, &[Recompute::FromStack { update, source }]).unwrap();
    check_round_trip(&result.module, &Default::default());
    let slice = 4096 * 1024 * 2;
    let saved = peak(&module) - peak(&result.module);
    assert!(saved >= 6 * (slice - slice / 8) - 2 * slice, "{saved}");
}
