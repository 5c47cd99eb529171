//! What several test files share.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod generate;

use hlofast::ir::Module;
use hlofast::print::{EqualityOptions, Form, PrintOptions, structurally_equal_with, to_text};
use hlofast::text::Source;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Reads `text`; panics with the place and message if that fails.
pub fn parse(text: &[u8]) -> Module {
    match hlofast::parse(Source::from_slice(text), &hlofast::Options::default()) {
        Ok(module) => module,
        Err(error) => {
            let start = (error.span().start as usize).min(text.len());
            let from = text[..start].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            let to =
                text[start..].iter().position(|b| *b == b'\n').map_or(text.len(), |n| start + n);
            let line = String::from_utf8_lossy(&text[from..to]);
            panic!("{}: {line}", error.message());
        }
    }
}

/// The folder of the fixtures that Rust and Python tests share.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// Name and text of every dump among the fixtures.
pub fn dumps() -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for folder in ["", "dumps", "seedlike"] {
        let Ok(entries) = std::fs::read_dir(fixtures().join(folder)) else { continue };
        for entry in entries {
            let path = entry.expect("a readable fixture").path();
            let name = path.file_name().expect("a readable fixture").to_string_lossy().into_owned();
            let bytes = || std::fs::read(&path).expect("a readable fixture");
            if name.ends_with(".txt") {
                found.push((name, bytes()));
            } else if name.ends_with(".txt.gz") {
                let mut text = Vec::new();
                flate2::read::MultiGzDecoder::new(&bytes()[..])
                    .read_to_end(&mut text)
                    .expect("a readable fixture");
                found.push((name, text));
            }
        }
    }
    // Pages and logs that only hold a module somewhere are for the tests of finding them.
    found.retain(|(_, text)| text.starts_with(b"HloModule"));
    found.sort();
    found
}

/// Every combination of print options.
pub fn all_print_options() -> Vec<PrintOptions> {
    let mut all = Vec::new();
    for bits in 0..64u32 {
        let bit = |n: u32| bits & (1 << n) != 0;
        all.push(PrintOptions {
            form: if bit(0) { Form::Short } else { Form::Long },
            operand_shapes: bit(1),
            layouts: !bit(2),
            metadata: !bit(3),
            backend_config: !bit(4),
            fold: bit(5),
        });
    }
    all
}

/// What stays comparable in text printed with `options`.
pub fn comparable(options: &PrintOptions) -> EqualityOptions {
    EqualityOptions {
        layouts: options.layouts,
        metadata: options.metadata,
        backend_config: options.backend_config,
    }
}

/// Prints, reads and compares; the printed text.
pub fn check_round_trip(module: &Module, options: &PrintOptions) -> Vec<u8> {
    let text = to_text(module, options);
    let again = parse(&text);
    if let Err(difference) = structurally_equal_with(module, &again, &comparable(options)) {
        let shown = String::from_utf8_lossy(&text);
        panic!("{difference}\n{options:?}\n{}", &shown[..shown.len().min(3000)]);
    }
    text
}
