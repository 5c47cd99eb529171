//! Single lines of HLO as people paste them: which are instructions, which say that others were
//! left out, and how to end those that were cut.

use super::block::is_shape;
use super::{is_identifier_byte, is_identifier_start};
use memchr::{memchr, memchr_iter, memmem};
use std::borrow::Cow;

/// How far into a line an instruction may begin; the prefixes of log writers and profiles are
/// shorter.
const LONGEST_PREFIX: usize = 1024;

/// Where the instruction `ROOT? %name = shape opcode(` begins in `line`, whatever is before it.
pub(super) fn instruction_start(line: &[u8]) -> Option<usize> {
    let near = line.get(..LONGEST_PREFIX).unwrap_or(line);
    memchr_iter(b'=', near).take(8).find_map(|equals| start_before(line, equals))
}

/// Where an instruction begins whose `=` is at `equals`.
fn start_before(line: &[u8], equals: usize) -> Option<usize> {
    let before = line.get(..equals)?;
    let head = before.trim_ascii_end();
    let length = head.iter().rev().take_while(|byte| is_identifier_byte(**byte)).count();
    let mut start = head.len().checked_sub(length)?;
    if length == 0 {
        return None;
    }
    let is_marked = start > 0 && line.get(start - 1) == Some(&b'%');
    if is_marked {
        start -= 1;
    } else if !is_identifier_start(*line.get(start)?) || before.len() == head.len() {
        // Assignments of other languages and options have no blank before the sign.
        return None;
    }
    let value = line.get(equals + 1..)?.trim_ascii_start();
    let rest = value.get(shape_length(value)?..)?;
    let opcode = rest.trim_ascii_start();
    let word = opcode.iter().take_while(|byte| is_identifier_byte(**byte)).count();
    let is_opcode = opcode.first().is_some_and(|byte| byte.is_ascii_lowercase());
    if !is_opcode || opcode.len() == rest.len() || opcode.get(word) != Some(&b'(') {
        return None;
    }
    let head = line.get(..start)?;
    let before_root = head.trim_ascii_end().strip_suffix(b"ROOT");
    let is_root = before_root
        .is_some_and(|before| before.last().is_none_or(|byte| !is_identifier_byte(*byte)));
    Some(if is_root { before_root.map_or(start, <[u8]>::len) } else { start })
}

/// The length of the shape that `value` begins with.
fn shape_length(value: &[u8]) -> Option<usize> {
    let length = match value.first()? {
        b'(' => return closing(value).map(|end| end + 1),
        _ if is_shape(value) => closing_from(value, memchr(b'[', value)?)? + 1,
        _ => return None,
    };
    match value.get(length) {
        Some(b'{') => closing_from(value, length).map(|end| end + 1),
        _ => Some(length),
    }
}

fn closing_from(value: &[u8], open: usize) -> Option<usize> {
    closing(value.get(open..)?).map(|end| open + end)
}

/// The bracket that closes the one that `text` begins with.
fn closing(text: &[u8]) -> Option<usize> {
    let mut scan = Scan::default();
    text.iter().enumerate().find_map(|(at, byte)| {
        scan.step(*byte);
        (scan.depth == 0 && at > 0).then_some(at)
    })
}

/// Brackets and strings up to a place in a line.
#[derive(Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Scan {
    fn step(&mut self, byte: u8) {
        if self.in_string {
            self.in_string = self.is_escaped || byte != b'"';
            self.is_escaped = !self.is_escaped && byte == b'\\';
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'(' | b'[' | b'{' => self.depth += 1,
            b')' | b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// Whether a line says that others were left out: three dots, alone or before a remark.
pub(super) fn is_elision(own: &[u8]) -> bool {
    if own == b"--" || own == "⋮".as_bytes() {
        return true;
    }
    let is_mark = |byte: &u8| matches!(byte, b'#' | b'/' | b'[' | b'(' | b'<' | b'*' | b' ');
    let marks = own.iter().take_while(|byte| is_mark(byte)).count();
    let rest = own.get(marks..).unwrap_or_default();
    let starts: [&[u8]; 4] = [b"...", "…".as_bytes(), b"snip>", b"snip]"];
    starts.iter().any(|start| rest.starts_with(start))
}

/// `line` without the dots that replace operands and attributes. `constant({...})` is what XLA
/// itself writes.
pub(super) fn without_elisions(line: &[u8]) -> Cow<'_, [u8]> {
    const DOTS: [&[u8]; 2] = [b"...", "…".as_bytes()];
    if DOTS.iter().all(|dots| memmem::find(line, dots).is_none()) {
        return Cow::Borrowed(line);
    }
    let mut copy: Vec<u8> = Vec::with_capacity(line.len());
    let mut scan = Scan::default();
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        let rest = line.get(at..).unwrap_or_default();
        let dots = DOTS.iter().find(|dots| rest.starts_with(dots));
        let is_literal = || copy.ends_with(b"constant({");
        if let Some(dots) = dots
            && !scan.in_string
            && !is_literal()
        {
            // Further dots, and the comma that announced what was left out.
            let more = rest.iter().skip(dots.len()).take_while(|byte| **byte == b'.').count();
            copy.truncate(copy.trim_ascii_end().len());
            if copy.last() == Some(&b',') {
                copy.pop();
            }
            at += dots.len() + more;
            continue;
        }
        scan.step(byte);
        copy.push(byte);
        at += 1;
    }
    Cow::Owned(copy)
}

/// A line with an end.
pub(super) struct Repaired<'a> {
    pub(super) text: Cow<'a, [u8]>,
    /// Whether the line ended inside an operand list or an attribute.
    pub(super) is_cut: bool,
}

/// Ends an instruction or a module header that was cut: what was cut into is left out, since the
/// rest of a name may be the name of something else.
pub(super) fn repair(line: &[u8]) -> Repaired<'_> {
    let line = line.trim_ascii_end();
    let mut scan = Scan::default();
    // The last comma between attributes, the last one between operands, the operands' parenthesis.
    let (mut attribute, mut operand, mut open) = (None, None, None);
    for (at, &byte) in line.iter().enumerate() {
        let (depth, was_string) = (scan.depth, scan.in_string);
        scan.step(byte);
        if was_string {
            continue;
        }
        match byte {
            b',' if depth == 0 => attribute = Some(at),
            b',' if depth == 1 && open.is_some() => operand = Some(at),
            // The first parenthesis directly after a word is the operand list.
            b'(' if depth == 0 && at > 0 && is_identifier_byte(line[at - 1]) => {
                (open, operand) = (Some(at), None);
            }
            b')' if depth == 1 => open = None,
            _ => {}
        }
    }
    if scan.depth == 0 && !scan.in_string && !ends_in_key(line, attribute) {
        return Repaired { text: Cow::Borrowed(line), is_cut: false };
    }
    let keep = |end: usize| line.get(..end).unwrap_or_default();
    let text = match (open, attribute) {
        (Some(open), _) => [keep(operand.unwrap_or(open + 1)), b")"].concat(),
        (None, Some(comma)) => keep(comma).to_vec(),
        (None, None) => line.to_vec(),
    };
    Repaired { text: Cow::Owned(text), is_cut: true }
}

/// Whether what follows the last comma between attributes is not `key=value`.
fn ends_in_key(line: &[u8], comma: Option<usize>) -> bool {
    let Some(rest) = comma.and_then(|comma| line.get(comma + 1..)) else { return false };
    let rest = rest.trim_ascii();
    match memchr(b'=', rest) {
        Some(equals) => rest.len() == equals + 1,
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(line: &str) -> Option<&str> {
        instruction_start(line.as_bytes()).map(|at| &line[at..])
    }

    fn repaired(line: &str) -> String {
        String::from_utf8(repair(line.as_bytes()).text.into_owned()).unwrap()
    }

    #[test]
    fn instructions_are_found_behind_anything() {
        assert_eq!(start("  %x = f32[2]{0} add(%a, %b)"), Some("%x = f32[2]{0} add(%a, %b)"));
        assert_eq!(
            start("12: ROOT x.1 = (f32[], s32[2]) tuple(a)"),
            Some("ROOT x.1 = (f32[], s32[2]) tuple(a)")
        );
        assert_eq!(start("a=b y = pred[] compare(c, d)"), Some("y = pred[] compare(c, d)"));
        for prose in [
            "x = f(3)",
            "n = s[0] + g(1)",
            "k=f32[2] add(a)",
            "if x == f32[2] then",
            "%0 = stablehlo.add %a : tensor<2xf32>",
            "",
        ] {
            assert_eq!(start(prose), None, "{prose}");
        }
    }

    #[test]
    fn dots_are_left_out() {
        let cases = [
            ("f(%a, ...), kind=kLoop, ...", "f(%a), kind=kLoop"),
            ("f(…), calls=%c", "f(), calls=%c"),
            ("constant({...})", "constant({...})"),
            ("f(), metadata={op_name=\"a...b\"}", "f(), metadata={op_name=\"a...b\"}"),
            ("f(%a, %b, .....", "f(%a, %b"),
        ];
        for (line, cleaned) in cases {
            assert_eq!(without_elisions(line.as_bytes()).as_ref(), cleaned.as_bytes(), "{line}");
        }
    }

    #[test]
    fn cut_lines_end_before_the_cut() {
        let whole = "%x = (f32[2], s32[]) fusion(%a, f32[2]{0} %b), kind=kLoop, calls=%c, metadata={op_name=\"f(\"}";
        assert_eq!(repaired(whole), whole);
        // Inside the metadata, its key, `calls`, the second operand, the first.
        for (cut, kept) in [(90, 67), (72, 67), (60, 57)] {
            assert_eq!(repaired(&whole[..cut]), &whole[..kept]);
        }
        assert_eq!(repaired(&whole[..43]), "%x = (f32[2], s32[]) fusion(%a)");
        assert_eq!(repaired(&whole[..29]), "%x = (f32[2], s32[]) fusion()");
    }
}
