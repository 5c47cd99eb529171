//! XLA's own memory files, joined to their module; files of other modules and broken ones.

use crate::support::reading;
use hlofast::ir::Module;
use hlofast::memory::{FileKind, Options, Rule, Space, XlaFile, memory, read_file};
use std::path::{Path, PathBuf};

const FILES: [&str; 3] = ["live-range", "buffer-assignment", "memory-usage-report"];

fn program(name: &str) -> PathBuf {
    reading::tests_folder().join("fixtures/live_ranges").join(name)
}

fn module(program: &Path) -> Module {
    reading::parse(&reading::read(&program.join("after_optimizations.txt.gz"))).unwrap()
}

fn content(program: &Path, file: &str) -> Vec<u8> {
    reading::read(&program.join(format!("{file}.txt.gz")))
}

#[test]
fn every_file_of_every_program() {
    let folder = reading::tests_folder().join("fixtures/live_ranges");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let module = module(&path);
        let read = |file: &str| {
            read_file(&module, &content(&path, file))
                .unwrap_or_else(|error| panic!("{} {file}: {error}", path.display()))
        };
        let [ranges, assignment, report] = FILES.map(read);
        check_ranges(&module, &ranges, &path);
        assert_eq!(assignment.kind, FileKind::BufferAssignment);
        assert!(assignment.rows.iter().all(|row| row.is_exact && row.offset >= 0));
        assert_eq!(assignment.total_bytes, report.total_bytes, "{}", path.display());
        assert_eq!(report.kind, FileKind::UsageReport);
        count += 1;
    }
    assert!(count >= 45, "{count}");
}

fn check_ranges(module: &Module, file: &XlaFile, path: &Path) {
    let options = Options { rule: Rule::Values, space: Space::All, ..Options::default() };
    let own = memory(module, &options).unwrap();
    assert_eq!(file.peak_bytes, Some(own.peak.bytes), "{}", path.display());
    assert_eq!(file.peak_step, Some(own.peak.step), "{}", path.display());
    let values = own.all_values(module);
    assert_eq!(values.len(), file.rows.len());
    let find = |row: &hlofast::memory::FileRow| {
        let same = values.iter().find(|v| Some(v.row) == row.row && v.path == row.path);
        let same = same.unwrap();
        assert_eq!((i64::from(same.first_step), i64::from(same.last_step)), row.steps);
        assert_eq!(same.bytes, row.bytes);
    };
    file.rows.iter().for_each(find);
}

#[test]
fn files_of_other_modules() {
    let own = module(&program("momentum_step"));
    for file in FILES {
        let error = read_file(&own, &content(&program("spectra"), file)).unwrap_err();
        assert!(error.message.contains("another module"), "{file}: {error}");
        assert!(error.line > 0, "{file}: {error}");
    }
    // The same program with and without donation: names agree, the order of steps does not.
    let error = read_file(&own, &content(&program("momentum_step_undonated"), "live-range"));
    assert!(error.is_err());
}

#[test]
fn an_edited_file_is_foreign() {
    let folder = program("swapped");
    let module = module(&folder);
    let edited = |file: &str, from: &str, to: &str| {
        let text = String::from_utf8(content(&folder, file)).unwrap();
        assert!(text.contains(from), "{file} {from}");
        read_file(&module, text.replacen(from, to, 1).as_bytes()).unwrap_err().message
    };
    let edits = [
        ("buffer-assignment", "f32[256,64]{1,0}", "f32[256,65]{1,0}", "another module"),
        ("buffer-assignment", "(size=65536", "(size=165536", "outside of its allocation"),
        ("buffer-assignment", "allocation 0", "Total bytes used: 9\nallocation 0", "add up to"),
        ("buffer-assignment", "<0 left.1", "<0 left.2", "another module"),
        ("live-range", "    0:", "    0:x", "another module"),
        ("live-range", "65536 bytes", "65537 bytes", "another module"),
        ("live-range", "copy{}:2-5", "copy{}:5-2", "ends before it begins"),
        ("live-range", "copy{}:2-5", "copy{}:2-8", "another module"),
        ("memory-usage-report", "f32[256,64]", "f32[256,65]", "another module"),
    ];
    for (file, from, to, message) in edits {
        let refusal = edited(file, from, to);
        assert!(refusal.contains(message), "{file} {from}: {refusal}");
    }
}

#[test]
fn no_such_file() {
    let module = module(&program("swapped"));
    for text in ["", "HloModule m", "BufferAssignment:\n", "Memory Space: x\n", "HloLiveRange\n"] {
        assert!(read_file(&module, text.as_bytes()).is_err(), "{text}");
    }
    let huge = "BufferAssignment:\nallocation 0: size 9223372036854775807, constant:\n\
                allocation 1: size 9223372036854775807, constant:\n";
    assert!(read_file(&module, huge.as_bytes()).unwrap_err().message.contains("64 bits"));
}

/// Cut and changed anywhere, a file is read or refused.
#[test]
fn broken_files() {
    let folder = program("filled_in_loop");
    let module = module(&folder);
    for file in FILES {
        let text = content(&folder, file);
        for at in (0..text.len()).step_by(7) {
            let _ = read_file(&module, &text[..at]);
            let mut changed = text.clone();
            changed[at] = b"0{}<,:- \n9\xff"[at % 11];
            let _ = read_file(&module, &changed);
        }
    }
}
