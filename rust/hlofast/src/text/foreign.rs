//! Errors for input that is not HLO text: the kind of input and what to do about it.

use crate::error::{ErrorKind, ParseError};
use crate::text::Span;
use memchr::memmem;

/// Limit on the bytes of the input that are examined.
const LOOK: usize = 64 << 10;

const AS_TEXT: &str = "in JAX: lowered.as_text(\"hlo\") or compiled.as_text() gives HLO text";
const DUMP: &str = "dump again with XLA_FLAGS=\"--xla_dump_to=DIR --xla_dump_hlo_as_text\"";
const UNPACK: &str = "decompress it first; gzip, xz and zstd are read as they are";

/// The error for input in which no module was found.
#[cold]
pub fn explain(bytes: &[u8]) -> ParseError {
    let (kind, message, help) = recognise(bytes);
    ParseError::new(kind, Span::EMPTY, message).with_help(help)
}

/// The error for input that cannot even be searched, or None.
pub(super) fn unreadable(bytes: &[u8]) -> Option<ParseError> {
    let marks: [&[u8]; 3] = [b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"];
    marks.iter().any(|mark| bytes.starts_with(mark)).then(|| explain(bytes))
}

fn recognise(bytes: &[u8]) -> (ErrorKind, &'static str, &'static str) {
    use ErrorKind::{NoModule, NotHlo};
    let head = bytes.get(..LOOK).unwrap_or(bytes);
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    if bytes.is_empty() {
        return (NoModule, "the input is empty", "check that the dump was written to the end");
    }
    // The byte order mark of UTF-32 begins with the mark of UTF-16.
    if head.starts_with(b"\xff\xfe\0\0") || head.starts_with(b"\0\0\xfe\xff") {
        return (NotHlo, "this is UTF-32 text", "save it as UTF-8");
    }
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return (
            NotHlo,
            "this is UTF-16 text",
            "save it as UTF-8 (Windows PowerShell redirection writes UTF-16)",
        );
    }
    if head.starts_with(b"ML\xefR") {
        return (NotHlo, "this is MLIR bytecode (StableHLO), not HLO text", AS_TEXT);
    }
    let packed: [&[u8]; 6] =
        [b"PK\x03\x04", b"BZh", b"\x04\x22\x4d\x18", b"7z\xbc\xaf", b"\x1f\x9d", b"\x5d\0\0"];
    if packed.iter().any(|magic| head.starts_with(magic)) {
        return (NotHlo, "this is an archive or an unsupported compression format", UNPACK);
    }
    if head.get(257..262) == Some(b"ustar") {
        return (NotHlo, "this is a tar archive", "unpack it and give the files");
    }
    if head.iter().any(|&byte| byte < 32 && !matches!(byte, 7..=13 | 27)) {
        return (NotHlo, "this is binary data, not HLO text", DUMP);
    }
    if text.is_empty() {
        return (NoModule, "the input is blank", "check that the dump was written to the end");
    }
    let has = |needle: &str| memmem::find(head, needle.as_bytes()).is_some();
    if text.starts_with(b"Failed to serialize HLO module proto") {
        return (NoModule, "XLA could not serialize this module and wrote only a notice", DUMP);
    }
    if text.starts_with(b"version https://git-lfs") {
        return (NoModule, "this is a Git LFS pointer, not the file", "run: git lfs pull");
    }
    if starts_with_any(text, &["{ lambda", "{lambda", "{ \u{1b}[34m\u{1b}[22m\u{1b}[1mlambda"]) {
        let help = "a jaxpr comes before compilation; jax.jit(f).lower(...).compile().as_text() \
                    gives HLO text";
        return (NotHlo, "this is a jaxpr, not HLO text", help);
    }
    if has("stablehlo.") || has("mhlo.") || has("chlo.") {
        return (NotHlo, "this is StableHLO (MLIR), not HLO text", AS_TEXT);
    }
    let mlir =
        ["module @", "module {", "module attributes", "func.func", "#map", "#loc", "\"builtin."];
    if starts_with_any(text, &mlir) || has("func.func ") {
        return (NotHlo, "this is MLIR, not HLO text", AS_TEXT);
    }
    if matches!(text.first(), Some(b'{' | b'[')) && has("\"traceEvents\"") {
        let help = "give the *.xplane.pb next to it; hlofast summary shows what the trace holds";
        return (NoModule, "this is a profile in Chrome's trace format, without modules", help);
    }
    if starts_with_any(text, &["hlo_module {", "hlo {"]) || has("computations {") {
        return (NotHlo, "this is an HLO protobuf in text form, not HLO text", DUMP);
    }
    if starts_with_any(text, &["; ModuleID", "source_filename", "target datalayout"]) {
        let help = "give the *after_optimizations.txt file of the same dump";
        return (NotHlo, "this is LLVM IR, not HLO text", help);
    }
    if starts_with_any(text, &["BufferAssignment:", "HloLiveRange", "Memory Space:"]) {
        let help = "give the *after_optimizations.txt file of the same dump";
        return (NotHlo, "this is a memory report that XLA writes next to a module", help);
    }
    if starts_with_any(text, &["digraph"]) {
        return (NotHlo, "this is a graph drawing (DOT), not HLO text", DUMP);
    }
    let start: Vec<u8> = text.iter().take(16).map(u8::to_ascii_lowercase).collect();
    if start.starts_with(b"<!doctype html") || start.starts_with(b"<html") {
        let help = "save the dump itself, or copy the module's text into a file";
        return (NoModule, "this HTML page contains no HLO module", help);
    }
    (NoModule, "no HLO module found", "a module begins with a line \"HloModule NAME, ...\"")
}

fn starts_with_any(text: &[u8], starts: &[&str]) -> bool {
    starts.iter().any(|start| text.starts_with(start.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], kind: ErrorKind, message: &str, help: &str) {
        let error = explain(bytes);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(message), "{error}");
        assert!(error.help().is_some_and(|text| text.contains(help)), "{:?}", error.help());
        assert_eq!(error.span(), Span::EMPTY);
    }

    #[test]
    fn other_formats_are_named() {
        use ErrorKind::{NoModule, NotHlo};
        let lowered = b"module @jit_f attributes {mhlo.num_partitions = 1 : i32} {\n  func.func public @main(%arg0: tensor<2xf32>) {\n    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>\n";
        check(lowered, NotHlo, "StableHLO", "compiled.as_text()");
        check(b"#map = affine_map<(d0) -> (d0)>\nmodule {\n", NotHlo, "MLIR", "as_text(\"hlo\")");
        check(b"ML\xefR\x06StableHLO", NotHlo, "bytecode", "as_text");
        check(b"{ lambda ; a:f32[3]. let b:f32[3] = sin a in (b,) }", NotHlo, "jaxpr", "lower(");
        check(b"hlo_module {\n  name: \"m\"\n", NotHlo, "text form", "xla_dump_hlo_as_text");
        check(b"name: \"m\"\ncomputations {\n  name: \"e\"\n", NotHlo, "text form", "as_text");
        check(b"; ModuleID = 'm'\n", NotHlo, "LLVM", "after_optimizations");
        check(b"BufferAssignment:\nallocation 0", NotHlo, "memory report", "after_optimizations");
        check(b"{\"traceEvents\":[]}", NoModule, "trace format", "xplane.pb");
        check(b"digraph G {\n", NotHlo, "DOT", "as_text");
        check(b"BZh91AY&SY", NotHlo, "compression", "decompress");
        check(b"PK\x03\x04\x14", NotHlo, "archive", "decompress");
        check(b"\x89\x01\x02\x03\0\0", NotHlo, "binary", "xla_dump");
        check(b"\xff\xfeH\0l\0o\0", NotHlo, "UTF-16", "UTF-8");
        check(b"\xff\xfe\0\0H\0\0\0", NotHlo, "UTF-32", "UTF-8");
        check(b"\0\0\xfe\xff\0\0\0H", NotHlo, "UTF-32", "UTF-8");
        check(b"", NoModule, "empty", "dump");
        check(b"\xef\xbb\xbf\r\n \n", NoModule, "blank", "dump");
        check(b"<!DOCTYPE html>\n<html><body>404</body>", NoModule, "HTML", "save");
        check(b"version https://git-lfs.github.com/spec/v1", NoModule, "LFS", "git lfs pull");
        check(b"Failed to serialize HLO module proto.", NoModule, "notice", "as_text");
        check(b"batch_axis_names[0]: 'data'\n", NoModule, "no HLO module", "HloModule");
        let mut tar = vec![b'a'; 600];
        tar[257..262].copy_from_slice(b"ustar");
        check(&tar, NotHlo, "tar", "unpack");
    }
}
