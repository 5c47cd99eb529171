//! Texts to read: fixtures, probes and seed documents.

use hlofast::ir::Module;
use hlofast::text::{OpenOptions, Source};
use hlofast::{Options, ParseError};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The repository's folder of tests and fixtures.
pub fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// The content of a file, decompressed if its name ends in `.gz`.
pub fn read(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut text = Vec::new();
    flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap();
    text
}

/// A text to read.
pub struct Text {
    /// What a failing test calls it.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Where it was read from.
    pub path: PathBuf,
}

/// The files in `folder` whose names end in `suffix`, sorted.
pub fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    paths.sort();
    paths
}

/// The same of `folder` and all folders in it.
pub fn files_below(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut paths = files(folder, suffix);
    let inside = files(folder, "").into_iter().filter(|path| path.is_dir());
    paths.extend(inside.flat_map(|path| files_below(&path, suffix)));
    paths
}

/// The dumps among the fixtures.
pub fn dumps() -> Vec<Text> {
    let folder = tests_folder().join("fixtures");
    let mut paths = files(&folder, ".txt");
    paths.retain(|path| path.to_string_lossy().contains("train_step"));
    paths.extend(files(&folder.join("dumps"), ".txt.gz"));
    paths.extend(files(&folder.join("seedlike"), ".txt.gz"));
    assert!(paths.len() > 20, "fixtures are missing");
    let named = |path: PathBuf| Text {
        name: path.file_name().unwrap().to_string_lossy().into_owned(),
        bytes: read(&path),
        path,
    };
    paths.into_iter().map(named).collect()
}

/// The modules inside the dumps: texts around them are taken away.
pub fn modules() -> Vec<(String, Source)> {
    let mut all = Vec::new();
    for text in dumps() {
        let options = OpenOptions { path: Some(&text.name), max_bytes: None };
        for module in hlofast::text::open(text.bytes.into(), &options).unwrap() {
            all.push((text.name.clone(), module.source));
        }
    }
    all
}

/// A probe of one feature, with the verdict of jaxlib 0.10.2.
pub struct Probe {
    /// Its name.
    pub id: String,
    /// The text.
    pub text: String,
    /// Whether jaxlib accepts it.
    pub is_accepted: bool,
    /// What jaxlib says of it.
    pub verdict: String,
    /// The long text that jaxlib prints of it, if it accepts it.
    pub printed: Option<String>,
}

/// All probes.
pub fn probes() -> Vec<Probe> {
    let lines = String::from_utf8(read(&tests_folder().join("probes/verdicts.jsonl.gz"))).unwrap();
    let probes: Vec<Probe> = lines
        .lines()
        .map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = |key: &str| value[key].as_str().unwrap_or_default().to_string();
            Probe {
                id: text("id"),
                text: text("text"),
                is_accepted: value["verdict"] == "accept",
                verdict: format!("{} {}", text("verdict"), text("message")),
                printed: value["long"].as_str().map(str::to_string),
            }
        })
        .collect();
    assert!(probes.len() > 1500, "probes are missing");
    probes
}

/// Reads `text` with the default options.
pub fn parse(text: &[u8]) -> Result<Module, ParseError> {
    hlofast::parse(Source::from_slice(text), &Options::default())
}

/// Reads `text`, collecting errors.
pub fn parse_all(text: &[u8]) -> Result<Module, ParseError> {
    let options = Options { collect_errors: true, ..Options::default() };
    hlofast::parse(Source::from_slice(text), &options)
}

/// Runs `check`; if it panics, says for which text.
pub fn with_context(what: &str, text: &[u8], check: impl FnOnce()) {
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    if let Err(panic) = checked {
        let shown = &text[..text.len().min(4000)];
        eprintln!("{what}\n{}", String::from_utf8_lossy(shown));
        std::panic::resume_unwind(panic);
    }
}

/// The folder of the seed documents: `HLOFAST_SEEDS`, else `shared/seeds` beside the checkout.
/// Says so if there is none.
pub fn seeds() -> Option<PathBuf> {
    let folder = match std::env::var("HLOFAST_SEEDS") {
        Ok(named) => PathBuf::from(named),
        Err(_) => tests_folder().join("../../shared/seeds"),
    };
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no seed documents (set HLOFAST_SEEDS or put them in ../shared/seeds)");
    None
}

/// The seed document whose name starts with `prefix`.
pub fn seed_text(folder: &Path, prefix: &str) -> Vec<u8> {
    let named = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(prefix);
    read(&files(folder, ".txt").into_iter().find(named).unwrap())
}

/// The module in the seed document whose name starts with `prefix`.
pub fn seed(folder: &Path, prefix: &str) -> Module {
    let options = OpenOptions { path: None, max_bytes: None };
    let modules = hlofast::text::open(seed_text(folder, prefix).into(), &options).unwrap();
    let source = modules.into_iter().next().unwrap().source;
    hlofast::parse(source, &Options::default()).unwrap()
}

/// The bytes that `text` spells in base 64.
pub fn base64(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        bits = bits << 6 | alphabet.iter().position(|letter| *letter == byte).unwrap() as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
