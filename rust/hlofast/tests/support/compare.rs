//! Equality of what two ways of reading one text found.

use hlofast::ir::{Flags, Module, Row};
use hlofast::{Options, ParseError, parse, text::Source};

/// The ways of reading that must all find the same.
pub fn ways() -> [(&'static str, Options); 4] {
    let default = Options::default();
    [
        ("general path", Options { force_general: true, ..default }),
        ("portable kernel", Options { force_scalar: true, ..default }),
        ("two threads", Options { threads: 2, parallel_from: 1, ..default }),
        ("five threads", Options { threads: 5, parallel_from: 1, ..default }),
    ]
}

/// Reads `text` in every way; fails unless all agree. What the usual way found.
pub fn read_in_every_way(what: &str, text: &[u8], collect: bool) -> Result<Module, ParseError> {
    let source = Source::from_slice(text);
    let usual = Options { collect_errors: collect, ..Options::default() };
    let first = parse(source.clone(), &usual);
    for (way, options) in ways() {
        let options = Options { collect_errors: collect, ..options };
        let second = parse(source.clone(), &options);
        if let Err(difference) = same_result(&first, &second) {
            panic!("{way}: {difference}\n{what}\n{}", String::from_utf8_lossy(text));
        }
    }
    first
}

fn same_result(
    a: &Result<Module, ParseError>,
    b: &Result<Module, ParseError>,
) -> Result<(), String> {
    match (a, b) {
        (Ok(a), Ok(b)) => same_module(a, b),
        (Err(a), Err(b)) if a == b => Ok(()),
        (Err(a), Err(b)) => Err(format!("{a:?}, but {b:?}")),
        (a, b) => Err(format!("{:?}, but {:?}", a.as_ref().err(), b.as_ref().err())),
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, a: &T, b: &T) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: {a:?}, but {b:?}")) }
}

/// Whether two readings of one text are one module, id for id.
pub fn same_module(a: &Module, b: &Module) -> Result<(), String> {
    expect("errors", &a.errors(), &b.errors())?;
    expect("header", &format!("{:?}", a.header()), &format!("{:?}", b.header()))?;
    expect("name", &a.name(), &b.name())?;
    expect("entry", &a.entry(), &b.entry())?;
    expect("rows", &a.row_count(), &b.row_count())?;
    let records = |m: &Module| -> Vec<String> {
        m.computations().iter().map(|c| format!("{c:?} {:?}", m.bytes(c.name))).collect()
    };
    expect("computations", &records(a), &records(b))?;
    for row in a.rows() {
        same_row(a, b, row).map_err(|what| {
            let line = |m: &Module| {
                let span = m.name_span(row).to(m.tail(row));
                String::from_utf8_lossy(m.bytes(span)).into_owned()
            };
            format!("{what}\n  in {:?}\n  or {:?}", line(a), line(b))
        })?;
    }
    expect("calls", &a.all_calls(), &b.all_calls())?;
    expect("control predecessors", &a.control_predecessors(), &b.control_predecessors())?;
    expect("shapes", &format!("{:?}", a.shapes()), &format!("{:?}", b.shapes()))
}

fn same_row(a: &Module, b: &Module, row: Row) -> Result<(), String> {
    expect("opcode", &a.opcode(row), &b.opcode(row))?;
    expect("name", &a.instruction_name(row), &b.instruction_name(row))?;
    expect("name span", &a.name_span(row), &b.name_span(row))?;
    expect("operands", &a.operands(row), &b.operands(row))?;
    expect("shape", &a.shape(row), &b.shape(row))?;
    expect("flags", &a.flags(row), &b.flags(row))?;
    expect("tail", &a.tail(row), &b.tail(row))?;
    expect("text of the tail", &a.bytes(a.tail(row)), &b.bytes(b.tail(row)))?;
    if a.flags(row) & Flags::IMPLICIT == 0 {
        let attributes = |m: &Module| m.attributes(row).collect::<Vec<_>>();
        expect("attributes", &attributes(a), &attributes(b))?;
    }
    Ok(())
}
