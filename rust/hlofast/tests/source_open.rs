//! From file bytes to module texts, and from faults to what people read.

use hlofast::text::{
    ErrorPlace, LineIndex, OpenOptions, Source, Span, find_modules, open, read_one,
};
use hlofast::text::{render, unpack};
use hlofast::{ErrorKind, ParseError, Result};
use proptest::prelude::*;
use std::io::Write;

const MODULE: &str = "HloModule jit_f\n\nENTRY main {\n  ROOT p = f32[] parameter(0)\n}\n";

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).expect("in memory");
    encoder.finish().expect("in memory")
}

fn texts(bytes: &[u8]) -> Result<Vec<String>> {
    let options = OpenOptions { path: Some("a.txt"), max_bytes: Some(10_000) };
    let modules = open(bytes.to_vec().into(), &options)?;
    assert!(modules.iter().all(|module| module.source.path() == Some("a.txt")));
    Ok(modules.iter().map(|m| String::from_utf8_lossy(m.source.bytes()).into_owned()).collect())
}

/// Stands for the parser: one module, nothing after it.
fn read(source: Source) -> Result<String> {
    let text = String::from_utf8_lossy(source.bytes()).into_owned();
    let end = text.find("\n}").map_or(text.len(), |end| end + 2);
    let rest = text[end..].trim_ascii_start();
    if !rest.is_empty() {
        let span = Span::new(text.len() - rest.len(), text.len());
        return Err(ParseError::new(ErrorKind::TrailingText, span, "text after the module"));
    }
    if let Some(at) = text.find("broken") {
        return Err(ParseError::new(ErrorKind::InvalidShape, Span::new(at, at + 6), "broken"));
    }
    Ok(text)
}

#[test]
fn compressed_and_marked_text() {
    let zstd = zstd::stream::encode_all(MODULE.as_bytes(), 1).unwrap();
    let marked = [b"\xef\xbb\xbf", MODULE.as_bytes()].concat();
    for bytes in [MODULE.as_bytes().to_vec(), gzip(MODULE.as_bytes()), zstd, gzip(&marked), marked]
    {
        assert_eq!(texts(&bytes).unwrap(), [MODULE]);
    }
    let two = format!("{MODULE}\n{MODULE}");
    assert_eq!(texts(&gzip(two.as_bytes())).unwrap(), [MODULE, MODULE]);
    // The byte order mark counts in offsets, not in columns.
    let marked = [b"\xef\xbb\xbf", MODULE.as_bytes()].concat();
    let modules = open(marked.into(), &OpenOptions::default()).unwrap();
    assert_eq!((modules[0].source.offset(), modules[0].source.lines_before()), (3, 0));
}

#[test]
fn every_refusal_has_its_kind_and_help() {
    let proto = gzip(b"\x0a\x05jit_f\x12\x04main\x1a\x06\x0a\x04main\x28\x03\x30\x03");
    for (bytes, kind) in [
        (b"".to_vec(), ErrorKind::NoModule),
        (b"hello\n".to_vec(), ErrorKind::NoModule),
        (gzip(b"hello\n"), ErrorKind::NoModule),
        (b"module @m {\n}\n".to_vec(), ErrorKind::NotHlo),
        (proto, ErrorKind::NotHlo),
        (b"\xff\xfeH\0l\0o\0".to_vec(), ErrorKind::NotHlo),
        (gzip(&[b'x'; 10_001]), ErrorKind::TooLarge),
        (gzip(MODULE.as_bytes())[..30].to_vec(), ErrorKind::InvalidCompression),
    ] {
        let error = texts(&bytes).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.help().is_some(), "{error}");
        let shown = render(&Source::from_slice(&bytes).with_path("a.txt"), &error, false);
        let expected = format!("a.txt: error: {}\nhelp: ", error.message());
        assert!(shown.starts_with(&expected), "{shown}");
    }
}

#[test]
fn the_usual_file_is_read_as_it_is() {
    let mut seen = Vec::new();
    let result = read_one(&Source::from_slice(MODULE.as_bytes()), |source| {
        seen.push(source.bytes().len());
        read(source)
    });
    assert_eq!((result.unwrap().as_str(), seen), (MODULE, vec![MODULE.len()]));
}

#[test]
fn one_module_among_other_text() {
    for text in [format!("notes\n\n{MODULE}"), format!("{MODULE}\nnotes\n")] {
        let read = read_one(&Source::from_slice(text.as_bytes()), read).unwrap();
        // With the line break of its last line.
        assert_eq!(read, MODULE);
    }
    // So it is where every line of a log has something before it.
    let prefix = "I0521 12:04:45.883483 1509 hlo.cc:186] ";
    let logged = |text: &str| text.replace('\n', &format!("\n{prefix}"));
    let text = format!("{prefix}{}", logged(&format!("{MODULE}done\n")));
    assert_eq!(read_one(&Source::from_slice(text.as_bytes()), read).unwrap(), MODULE);
    let broken = MODULE.replace("f32[]", "broken");
    for text in [broken.clone(), format!("notes\n\n{broken}"), format!("{broken}\nnotes\n")] {
        let source = Source::from_slice(text.as_bytes()).with_path("a.txt");
        let (error, source) = read_one(&source, read).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidShape);
        let place = ErrorPlace::new(&source, &error);
        assert_eq!(place.offset, text.find("broken").unwrap());
        assert!(place.excerpt.ends_with("         ^^^^^^"), "{}", place.excerpt);
    }
}

#[test]
fn several_modules_are_listed() {
    let text = format!("{MODULE}\n{}", MODULE.replace("jit_f", "jit_g"));
    let (error, _) = read_one(&Source::from_slice(text.as_bytes()), read).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SeveralModules);
    assert_eq!(error.message(), "2 modules where one was expected: jit_f, jit_g");
    assert!(error.help().unwrap().contains("find_modules"));
    let (error, _) = read_one(&Source::from_slice(b"nothing"), read).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoModule);
}

#[test]
fn places_in_a_log_are_those_of_the_log() {
    let mut log = String::from("start\n");
    for line in MODULE.replace("f32[]", "broken").lines() {
        log.push_str(&format!("I0521 12:04:45.883483 1509 hlo.cc:186] {line}\n"));
    }
    let source = Source::from_slice(log.as_bytes()).with_path("log");
    let (error, source) = read_one(&source, read).unwrap_err();
    let place = ErrorPlace::new(&source, &error);
    let at = log.find("broken").unwrap();
    assert_eq!((place.offset, place.end_offset), (at, at + 6));
    let start = log[..at].rfind('\n').unwrap() + 1;
    assert_eq!((place.line, place.column), (5, (at - start + 1) as u64));
    assert!(render(&source, &error, false).starts_with(&format!("log:5:{}: error:", place.column)));
}

proptest! {
    #[test]
    fn any_input(bytes in prop::collection::vec(any::<u8>(), 0..200), magic in 0usize..6) {
        let magics: [&[u8]; 6] = [
            b"", b"\x1f\x8b\x08\0", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x0a", b"\xef\xbb\xbf",
        ];
        let bytes = [magics[magic], bytes.as_slice()].concat();
        if let Err(error) = texts(&bytes) {
            prop_assert!(error.help().is_some());
        }
    }

    #[test]
    fn damaged_gzip(at in 0usize..100, byte in any::<u8>()) {
        let mut packed = gzip(MODULE.as_bytes());
        let at = at % packed.len();
        packed[at] = byte;
        if let Ok(source) = unpack(packed.into(), &OpenOptions::default()) {
            prop_assert!(!find_modules(source.bytes()).is_empty() || at < 3);
        }
    }

    #[test]
    fn any_place(
        text in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..400),
            "[a\t\n\re\u{301}漢é\u{202e}]{0,400}".prop_map(String::into_bytes),
        ],
        start in 0usize..450,
        length in 0usize..450,
        color in any::<bool>(),
    ) {
        let error = ParseError::new(
            ErrorKind::InvalidShape, Span::new(start, start + length), "a\nb",
        )
        .with_related(Span::new(length, length + 1));
        let source = Source::from_slice(&text);
        let index = LineIndex::new(&text);
        let place = ErrorPlace::with_index(&source, &index, &error);
        prop_assert_eq!(&place, &ErrorPlace::new(&source, &error));
        prop_assert!(place.line >= 1 && place.column >= 1);
        prop_assert!((place.line, place.column) <= (place.end_line, place.end_column));
        prop_assert!(place.offset <= place.end_offset && place.end_offset <= text.len());
        let breaks = text[..place.offset].iter().filter(|&&byte| byte == b'\n').count() as u64;
        prop_assert_eq!(place.line, breaks + 1);
        let shown = render(&source, &error, color);
        prop_assert_eq!(shown.lines().count(), 6);
        let harmless = !shown.contains(['\t', '\r', '\0', '\u{202e}', '\u{7}']);
        prop_assert!(harmless, "{shown:?}");
        prop_assert!(shown.lines().all(|line| line.chars().count() < 220));
    }
}
