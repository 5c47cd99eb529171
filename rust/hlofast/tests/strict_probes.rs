//! Strict mode agrees with jaxlib 0.10.2 on every probe (`tests/probes/verdicts.jsonl.gz`).

use flate2::read::GzDecoder;
use hlofast::parse::Strictness;
use hlofast::text::Source;
use hlofast::{Options, parse};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Read;
use std::path::PathBuf;

fn tests_folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests"].iter().collect()
}

fn decompressed(path: &PathBuf) -> Vec<u8> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).expect("the file is part of the repository");
    GzDecoder::new(file).read_to_end(&mut text).expect("the file is gzip");
    text
}

struct Probe {
    id: String,
    text: String,
    accepted: bool,
    message: String,
}

fn probes() -> Vec<Probe> {
    let bytes = decompressed(&tests_folder().join("probes").join("verdicts.jsonl.gz"));
    let lines = String::from_utf8(bytes).expect("verdicts are UTF-8");
    lines
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).expect("a verdict is a JSON object");
            let field = |key: &str| row[key].as_str().unwrap_or_default().to_string();
            Probe {
                id: field("id"),
                text: field("text"),
                accepted: row["verdict"] == "accept",
                message: format!("{} {}", field("verdict"), field("message")),
            }
        })
        .collect()
}

fn read(text: &str, strictness: Strictness) -> hlofast::Result<hlofast::ir::Module> {
    parse(Source::from_slice(text.as_bytes()), &Options { strictness, ..Options::default() })
}

/// Probes on which strict mode differs from jaxlib, and why.
const DISAGREEMENTS: &[(&str, &str)] = &[];

#[test]
fn strict_mode_accepts_what_jaxlib_accepts() {
    let probes = probes();
    let mut report = String::new();
    let mut wrong = 0;
    for probe in &probes {
        let strict = read(&probe.text, Strictness::Jaxlib);
        let tolerant = read(&probe.text, Strictness::Tolerant);
        if strict.is_ok() {
            assert!(tolerant.is_ok(), "{}: strict reads it, tolerant does not", probe.id);
        }
        let known = DISAGREEMENTS.iter().any(|(id, _)| *id == probe.id);
        if (strict.is_ok() == probe.accepted) == known {
            wrong += 1;
            let ours = strict.err().map_or("accept".to_string(), |error| format!("{error:?}"));
            let who = if tolerant.is_ok() { "" } else { " [tolerant]" };
            let _ = writeln!(report, "{}{who}: XLA {}; here {ours}", probe.id, probe.message);
        }
    }
    println!("{} probes, {} agree", probes.len(), probes.len() - wrong);
    assert!(wrong == 0, "{wrong} of {} probes disagree:\n{report}", probes.len());
}
