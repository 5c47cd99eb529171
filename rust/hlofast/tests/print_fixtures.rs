//! Printing the dumps of the fixtures and reading them again.

use crate::support::round_trip::{all_print_options, check_round_trip, dumps, parse};
use hlofast::ir::{Flags, Row};
use hlofast::print::{FingerprintOptions, PrintOptions, fingerprint, to_text};

#[test]
fn every_form_of_every_dump_reads_as_the_same_module() {
    let dumps = dumps();
    assert!(dumps.len() >= 10, "the fixtures are missing");
    let forms = all_print_options();
    for (index, (name, text)) in dumps.iter().enumerate() {
        let module = parse(text);
        // Every form over the whole set, the two defaults for each dump.
        let folded = PrintOptions { fold: true, ..PrintOptions::default() };
        for options in
            [PrintOptions::default(), folded].iter().chain(forms.iter().skip(index % 8).step_by(8))
        {
            let printed = check_round_trip(&module, options);
            assert!(!printed.is_empty(), "{name}");
        }
    }
}

#[test]
fn canonical_text_is_its_own_canonical_text() {
    for (name, text) in dumps() {
        let options = PrintOptions::default();
        let once = to_text(&parse(&text), &options);
        let twice = to_text(&parse(&once), &options);
        assert!(once == twice, "{name}");
    }
}

#[test]
fn fingerprints_survive_every_form_of_text() {
    let options = FingerprintOptions::default();
    let mut seen = std::collections::HashMap::new();
    for (name, text) in dumps() {
        let module = parse(&text);
        let print = fingerprint(&module, &options);
        for fold in [false, true] {
            let text = to_text(&module, &PrintOptions { fold, ..PrintOptions::default() });
            assert_eq!(fingerprint(&parse(&text), &options), print, "{name}");
        }
        let bare = PrintOptions { metadata: false, ..PrintOptions::default() };
        assert_eq!(fingerprint(&parse(&to_text(&module, &bare)), &options), print, "{name}");
        seen.entry(print).or_insert_with(Vec::new).push(name);
    }
    assert!(seen.len() > 5);
}

#[test]
fn instructions_are_given_back_byte_for_byte() {
    for (name, text) in dumps() {
        let module = parse(&text);
        for row in module.rows().filter(|row| !module.is_implicit(*row)) {
            let shown = module.instruction_text(row);
            let is_marked = module.flags(row) & Flags::MARKED_ROOT != 0;
            assert_eq!(shown.starts_with(b"ROOT "), is_marked, "{name}");
            let bare = shown.strip_prefix(b"ROOT ").unwrap_or(shown);
            let bare = bare.strip_prefix(b"%").unwrap_or(bare);
            assert!(bare.starts_with(module.instruction_name(row)), "{name}");
        }
        for id in 0..module.computations().len() as u32 {
            let id = hlofast::ir::ComputationId(id);
            let computation = module.computation(id);
            if computation.is_implicit {
                continue;
            }
            // A computation is its header, its instructions with space between them, and a brace.
            let whole = module.computation_span(id);
            let mut at = computation.header.end;
            assert!(module.text()[whole.range()].starts_with(module.bytes(computation.header)));
            for row in computation.rows().map(Row).filter(|row| !module.is_implicit(*row)) {
                let span = module.instruction_span(row);
                let between = &module.text()[at as usize..span.start as usize];
                assert!(between.trim_ascii().is_empty(), "{name}");
                at = span.end;
            }
            let rest = &module.text()[at as usize..whole.end as usize];
            assert!(rest.trim_ascii().starts_with(b"}"), "{name}");
        }
    }
}
