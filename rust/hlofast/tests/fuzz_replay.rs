//! Replays the corpus of the fuzz targets (`rust/fuzz`): what they do, on a stable toolchain.

use crate::support::reading::with_context;
use crate::support::{compare, exercise, invariants, memory_file, profile, reading};

#[test]
fn the_corpus_of_the_fuzzer_reads_without_a_panic() {
    let folder = reading::tests_folder().join("fixtures/fuzz_corpus");
    let mut inputs = reading::files(&folder, "");
    inputs.retain(|path| path.is_file());
    assert!(inputs.len() > 50, "the corpus is missing");
    let mut modules = 0;
    for path in inputs {
        let text = reading::read(&path);
        with_context(&path.to_string_lossy(), &text, || {
            compare::read_in_every_way("", &text, false).ok();
            let collected = compare::read_in_every_way("", &text, true);
            for module in collected.iter().chain(reading::parse(&text).iter()) {
                invariants::check_invariants(module);
                exercise::exercise(module);
                modules += 1;
            }
        });
    }
    assert!(modules > 50, "hardly any text of the corpus is a module");
}

#[test]
fn protos_of_the_corpus_cut_off_and_changed() {
    let inputs = reading::files(&reading::tests_folder().join("fixtures/fuzz_corpus/protos"), "");
    assert!(inputs.len() > 30, "the corpus is missing");
    let mut modules = 0;
    for path in inputs {
        let whole = reading::read(&path);
        modules += usize::from(read_proto(&whole));
        for at in 0..whole.len() {
            read_proto(&whole[..at]);
            let mut changed = whole.clone();
            changed[at] = changed[at].wrapping_add(1);
            read_proto(&changed);
        }
    }
    assert!(modules > 30, "hardly any proto of the corpus is a module");
}

/// What the fuzz target `proto` does; whether the bytes are a module.
fn read_proto(bytes: &[u8]) -> bool {
    let Ok(translation) = hlofast::proto::to_text(bytes) else { return false };
    let Ok(module) = reading::parse(&translation.text) else { return false };
    invariants::check_invariants(&module);
    true
}

#[test]
fn the_corpus_of_memory_files_reads_without_a_panic() {
    let inputs =
        reading::files(&reading::tests_folder().join("fixtures/fuzz_corpus/memory_files"), "");
    let (mut accepted, mut refused) = (0, 0);
    for path in &inputs {
        let input = reading::read(path);
        with_context(&path.to_string_lossy(), &input, || match memory_file::read(&input) {
            Some(_) => accepted += 1,
            None => refused += 1,
        });
    }
    assert!(accepted >= 6 && refused >= 12, "{accepted} read, {refused} refused");
}

#[test]
fn profiles_of_the_corpus_cut_off_and_changed() {
    let inputs = reading::files(&reading::tests_folder().join("fixtures/fuzz_corpus/profiles"), "");
    assert!(inputs.len() >= 5, "the corpus is missing");
    for path in inputs {
        let whole = reading::read(&path);
        assert!(profile::read(&whole), "{}", path.display());
        for at in 0..whole.len() {
            profile::read(&whole[..at]);
            for change in [1, 0x7f, 0x80] {
                let mut changed = whole.clone();
                changed[at] = changed[at].wrapping_add(change);
                profile::read(&changed);
            }
        }
    }
}
