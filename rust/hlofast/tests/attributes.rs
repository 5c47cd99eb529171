//! What the table of attributes says of one attribute holds wherever attributes are read and
//! written: decoded, checked, in protobufs and back.

use crate::support::reading;
use hlofast::ir::decode::{AttributeValue, decode};
use hlofast::parse::Strictness;
use hlofast::text::Source;
use hlofast::{ErrorKind, Options, proto};

/// A module of earlier years with `line` before its root.
fn module(line: &str) -> String {
    format!(
        "HloModule m\n\n%add (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  \
         %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}}\n\n\
         ENTRY %e (x: f32[2]) -> f32[2] {{\n  %x = f32[2]{{0}} parameter(0)\n  {line}\n  \
         ROOT %y = f32[2]{{0}} negate(%x)\n}}\n"
    )
}

/// How the only attribute `key` of the module reads.
fn decoded<'m>(module: &'m hlofast::ir::Module, key: &str) -> AttributeValue<'m> {
    let first = module.rows().find_map(|row| Some((row, module.attribute(row, key)?)));
    let (row, span) = first.unwrap();
    decode(key.as_bytes(), module.opcode(row), module.bytes(span)).unwrap()
}

/// What strict reading, of the newest XLA too, says of the text.
fn refused(text: &str) -> ErrorKind {
    [Strictness::Jaxlib, Strictness::Newest]
        .map(|strictness| {
            let options = Options { strictness, ..Options::default() };
            hlofast::parse(Source::from_slice(text.as_bytes()), &options).unwrap_err().kind()
        })
        .into_iter()
        .reduce(|kind, other| if kind == other { kind } else { panic!("{kind:?} and {other:?}") })
        .unwrap()
}

/// The text of the module as XLA would print it once it has read its protobuf.
fn through_protobuf(module: &hlofast::ir::Module) -> String {
    let written = proto::from_module(module).unwrap();
    assert_eq!(written.left_out, []);
    String::from_utf8(proto::to_text(&written.bytes).unwrap().text).unwrap()
}

#[test]
fn attributes_of_earlier_years_become_those_of_today() {
    let cases = [
        (
            "%r = f32[2]{0} all-reduce(%x), all_reduce_id=3, replica_groups={{0}}, to_apply=%add",
            "all_reduce_id",
            AttributeValue::Integer(3),
            "%r = f32[2]{0} all-reduce(%x), channel_id=3, replica_groups={{0}}, to_apply=%add",
        ),
        (
            "%s = (f32[2]{0}, f32[2]{0}, u32[]) copy-start(%x), is_cross_program_prefetch=true",
            "is_cross_program_prefetch",
            AttributeValue::Boolean(true),
            "%s = (f32[2]{0}, f32[2]{0}, u32[]) copy-start(%x), cross_program_prefetch_index=0",
        ),
    ];
    for (line, key, value, today) in cases {
        let text = module(line);
        let parsed = reading::parse(text.as_bytes()).unwrap();
        assert_eq!(decoded(&parsed, key), value);
        assert_eq!(refused(&text), ErrorKind::UnexpectedAttribute, "{key}");
        let again = through_protobuf(&parsed);
        assert!(again.contains(&format!("{today}\n")), "{key}\n{again}");
    }
}

#[test]
fn keys_alike_and_long_ones_are_told_apart() {
    let (long, longer) = ("k".repeat(70_000), "k".repeat(70_001));
    let line = format!(
        "%r = f32[2]{{0}} negate(%x), sharking={{1}}, {longer}=6, {long}=5, sharding={{2}}"
    );
    let text = module(&line);
    let module = hlofast::parse(Source::from_slice(text.as_bytes()), &Options::default()).unwrap();
    let row = module.rows().find(|row| module.instruction_name(*row) == b"r").unwrap();
    let expected = [("sharking", "{1}"), (&longer[..], "6"), (&long[..], "5"), ("sharding", "{2}")];
    for (key, value) in expected {
        assert_eq!(module.attribute_bytes(row, key), Some(value.as_bytes()));
    }
    for key in ["sharping", "shard", "k", ""] {
        assert_eq!(module.attribute_bytes(row, key), None);
    }
    let read = module.attributes(row).map(|attribute| {
        let [key, value] = [attribute.key, attribute.value].map(|span| module.bytes(span));
        (std::str::from_utf8(key).unwrap(), std::str::from_utf8(value).unwrap())
    });
    assert_eq!(read.collect::<Vec<_>>(), expected);
}
