//! The tests of what the crate offers: one program, so that the crate is linked once. A file that
//! needs a process for itself is a program of its own in `Cargo.toml`.
//!
//! `cargo test --test all memory::` runs those of `memory.rs`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod analyses;
mod attributes;
mod comms_hostile;
mod cost_hostile;
mod custom_call;
mod decode_corpus;
mod decode_groups;
mod decode_header;
mod decode_literals;
mod decode_properties;
mod decode_values;
mod dump_names;
mod dump_survey;
mod edit;
mod flow_contexts;
mod flow_phases;
mod fuzz_replay;
mod infer;
mod matmul;
mod memory;
mod memory_files;
mod memory_listed;
mod memory_live_ranges;
mod memory_tpu;
mod mesh_axes;
mod mesh_derive;
mod mesh_partition;
mod parse_dependencies;
mod parse_errors;
mod parse_fixtures;
mod parse_paths;
mod print_fixtures;
mod print_generated;
mod print_probes;
mod print_text;
mod profiles;
mod proto_hostile;
mod proto_pairs;
mod proto_write;
mod remat_plan;
mod remat_report;
mod rewrite;
mod rewrite_barriers;
mod rewrite_fixtures;
mod rewrite_properties;
mod rewrite_stacks;
mod shares;
mod source_find;
mod source_fragment;
mod source_open;
mod strict_hostile;
mod strict_probes;
mod support;
mod time;
mod trip_count;
mod trip_count_properties;

/// A file that nothing names would not be compiled, and nobody would be told.
#[test]
fn every_file_is_named() {
    let names = |text: &str, before: &str, after: &str| -> Vec<String> {
        let name = |line: &str| Some(line.strip_prefix(before)?.strip_suffix(after)?.to_string());
        text.lines().filter_map(name).collect()
    };
    let folder = support::reading::tests_folder().join("../rust/hlofast/tests");
    let assert_named = |folder: &std::path::Path, mut named: Vec<String>| {
        named.sort();
        let stem =
            |path: &std::path::PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
        let mut stems: Vec<String> =
            support::reading::files(folder, ".rs").iter().map(stem).collect();
        stems.sort();
        assert_eq!(stems, named, "{}: files, and those that are named", folder.display());
    };
    let (_, programs) = include_str!("../Cargo.toml").split_once("[[test]]").unwrap();
    let mut named = names(include_str!("all.rs"), "mod ", ";");
    named.retain(|name| name != "support");
    named.extend(names(programs, "name = \"", "\""));
    assert_named(&folder, named);
    let mut shared = names(include_str!("support/mod.rs"), "pub mod ", ";");
    shared.push("mod".to_string());
    shared.extend(names(include_str!("parse_hostile.rs"), "#[path = \"support/", ".rs\"]"));
    assert_named(&folder.join("support"), shared);
}
