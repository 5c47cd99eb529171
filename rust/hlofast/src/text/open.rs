//! Turns the bytes of a file into the texts of its modules.

use super::find::{find_modules, starts_with_module};
use super::source::{SharedBytes, Source};
use super::{Span, decompress, foreign};
use crate::error::{ErrorKind, ParseError, Result};
use std::ops::Range;

/// How to open input.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions<'a> {
    /// The name of the input in messages.
    pub path: Option<&'a str>,
    /// Limit on the decompressed size in bytes ([`super::DEFAULT_MAX_BYTES`] if None).
    pub max_bytes: Option<u64>,
}

/// The text of one module in a file.
#[derive(Clone, Debug)]
pub struct FoundModule {
    /// The text, which knows its place in the file.
    pub source: Source,
    /// The file name with which a dump to standard output announces the module.
    pub label: Option<Box<str>>,
}

/// The text of `bytes`, decompressed if compressed and without byte order mark; an error if it
/// cannot be text.
pub fn unpack(bytes: SharedBytes, options: &OpenOptions<'_>) -> Result<Source> {
    let output = decompress(&bytes, options.max_bytes)?;
    let source = match output {
        Some(output) => Source::new(output.into()),
        None => Source::new(bytes),
    };
    let source = match options.path {
        Some(path) => source.with_path(path),
        None => source,
    };
    let text = source.bytes();
    if let Some(error) = foreign::unreadable(text) {
        return Err(error);
    }
    if text.starts_with(b"\xef\xbb\xbf") { Ok(source.part(3..text.len(), 0)) } else { Ok(source) }
}

/// Every module in `source`, at least one.
pub fn modules(source: &Source) -> Result<Vec<FoundModule>> {
    let text = source.bytes();
    let places = find_modules(text);
    if places.is_empty() {
        return Err(foreign::explain(text));
    }
    let modules = places.into_iter().map(|place| {
        let label = place.label.and_then(|label| text.get(label));
        let end = place.span.end;
        let span = with_line_break(text, place.span);
        let source = match place.cleaned {
            Some(mut cleaned) => {
                cleaned.text.extend_from_slice(text.get(end..span.end).unwrap_or_default());
                source.cleaned_part(cleaned.text, cleaned.lines, place.lines_before)
            }
            None => source.part(span, place.lines_before),
        };
        FoundModule { source, label: label.map(|label| String::from_utf8_lossy(label).into()) }
    });
    Ok(modules.collect())
}

/// `span` extended by the line break after it, which ends the module's last line.
fn with_line_break(text: &[u8], span: Range<usize>) -> Range<usize> {
    let behind = text.get(span.end..).unwrap_or_default();
    let breaks: [&[u8]; 2] = [b"\n", b"\r\n"];
    let line_break = breaks.into_iter().find(|line_break| behind.starts_with(line_break));
    span.start..span.end + line_break.map_or(0, <[u8]>::len)
}

/// Every module in `bytes`: [`unpack`], then [`modules`].
pub fn open(bytes: SharedBytes, options: &OpenOptions<'_>) -> Result<Vec<FoundModule>> {
    modules(&unpack(bytes, options)?)
}

/// Reads the one module of `source` with `read`, which must fail on text after a module.
///
/// Text that begins with a module goes to `read` directly, so that usual files are not searched.
/// Only if `read` fails is the text searched for modules. An error carries the text that its span
/// refers to.
pub fn read_one<T>(
    source: &Source,
    mut read: impl FnMut(Source) -> Result<T>,
) -> std::result::Result<T, (ParseError, Source)> {
    let whole = |error| (error, source.clone());
    let mut first = None;
    if starts_with_module(source.bytes()) {
        match read(source.clone()) {
            Ok(value) => return Ok(value),
            Err(error) => first = Some(error),
        }
    }
    let modules = modules(source).map_err(whole)?;
    let [module] = modules.as_slice() else { return Err(whole(several(&modules))) };
    let text = module.source.bytes();
    match first {
        // Only blanks surround the module, so the first error is returned.
        Some(error) if text.trim_ascii().len() == source.bytes().trim_ascii().len() => {
            Err(whole(error))
        }
        _ => read(module.source.clone()).map_err(|error| (error, module.source.clone())),
    }
}

#[cold]
fn several(modules: &[FoundModule]) -> ParseError {
    let names: Vec<String> = modules.iter().take(4).map(name).collect();
    let more = if modules.len() > names.len() { ", ..." } else { "" };
    ParseError::new(
        ErrorKind::SeveralModules,
        Span::EMPTY,
        format!("{} modules where one was expected: {}{more}", modules.len(), names.join(", ")),
    )
    .with_help("choose one by name or number (from 0), or use find_modules to get them all")
}

fn name(module: &FoundModule) -> String {
    let text = module.source.bytes();
    let header = text.strip_prefix(b"HloModule").unwrap_or_default().trim_ascii_start();
    let name = header.split(|&byte| !super::is_identifier_byte(byte)).find(|name| !name.is_empty());
    match name {
        Some(name) => String::from_utf8_lossy(name).chars().take(80).collect(),
        None => format!("(line {})", module.source.lines_before() + 1),
    }
}
