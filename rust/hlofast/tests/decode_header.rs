//! Header attributes and stack frame tables.

use hlofast::ErrorKind;
use hlofast::ir::decode::*;
use hlofast::ir::{Header, ShapeInterner};
use hlofast::parse::shape::parse_shape;
use hlofast::text::Span;

fn header<'a>(key: &str, text: &'a str) -> HeaderValue<'a> {
    decode_header(key.as_bytes(), text.as_bytes()).unwrap_or_else(|e| panic!("{key}={text}: {e}"))
}

#[test]
fn plain_values() {
    use AttributeValue as V;
    assert_eq!(header("is_scheduled", "true"), HeaderValue::Plain(V::Boolean(true)));
    assert_eq!(header("num_partitions", "8"), HeaderValue::Plain(V::Integer(8)));
    let key = "allow_spmd_sharding_propagation_to_output";
    assert_eq!(header(key, "true"), HeaderValue::Plain(V::Boolean(true)));
    assert_eq!(header(key, "{true,false}"), HeaderValue::Plain(V::Booleans(vec![true, false])));
    assert_eq!(header("new_one", "{x}"), HeaderValue::Plain(V::Raw(b"{x}")));
}

#[test]
fn aliases_and_donors() {
    let text = "{ {0}: (1, {}, must-alias), {1,0}: (2, {3}), {}: (0, {}, may-alias), }";
    let HeaderValue::Aliases(aliases) = header("input_output_alias", text) else { panic!() };
    let alias = |output: &[i64], number, index: &[i64], must_alias| Alias {
        output_index: output.into(),
        number,
        index: index.into(),
        must_alias,
    };
    assert_eq!(
        aliases,
        [alias(&[0], 1, &[], true), alias(&[1, 0], 2, &[3], false), alias(&[], 0, &[], false),]
    );
    assert_eq!(first_duplicate_alias(&aliases), None);
    let HeaderValue::Aliases(old) = header("input_output_alias", "{ {0}: 3, {0}: 4 }") else {
        panic!()
    };
    assert_eq!((old[0].number, first_duplicate_alias(&old)), (3, Some(1)));
    assert_eq!(header("input_output_alias", "{}"), HeaderValue::Aliases(vec![]));
    assert_eq!(header("buffer_donor", "{ (1, {}), (2, {0,}) }"), {
        HeaderValue::BufferDonors(vec![
            BufferDonor { parameter: 1, index: vec![].into() },
            BufferDonor { parameter: 2, index: vec![0].into() },
        ])
    });
    assert!(decode_header(b"input_output_alias", b"{ {0}: (1, {}, sometimes) }").is_err());
}

#[test]
fn entry_layout() {
    let text = "{(f32[2]{0:T(8,128)}, /*index=1*/(s32[], token[]))->(f32[2]{0}, pred [])}";
    let HeaderValue::EntryLayout(layout) = header("entry_computation_layout", text) else {
        panic!()
    };
    assert_eq!(layout.parameters, [&b"f32[2]{0:T(8,128)}"[..], b"(s32[], token[])"]);
    assert_eq!(layout.result, b"(f32[2]{0}, pred [])");
    let mut interner = ShapeInterner::default();
    let (parameters, result) = layout.intern(&mut interner, parse_shape).unwrap();
    let table = interner.into_table();
    assert_eq!(table.leaf_count(parameters[1]), 2);
    assert_eq!(table.tuple(result).map(<[_]>::len), Some(2));
    for bad in ["{()}", "{()->}", "()->f32[]", "{(f32)->f32[]}"] {
        assert!(decode_header(b"entry_computation_layout", bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn recovery_table_and_debug_attributes() {
    let text = r#"{
      {"a" {0}} : {"b"}, "HloModule \"m\"
ENTRY e { ... }"
      {} : {"c"}
    }"#;
    let HeaderValue::OriginRecovery(entries) = header("origin_recovery_table", text) else {
        panic!()
    };
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0].removed, Some((b"a".as_slice().into(), vec![0].into())));
    assert!(entries[0].module.as_ref().is_some_and(|m| m.starts_with(b"HloModule \"m\"\n")));
    assert_eq!((&entries[1].removed, &entries[1].module), (&None, &None));
    let text = r#"{{"a"}:{log_mode=default,callback_id=3},{"b"}:({op_id=1},{partitioned=true})}"#;
    let HeaderValue::DebugAttributes(attributes) = header("debug_attributes", text) else {
        panic!()
    };
    assert_eq!(
        attributes[0].records,
        [[(&b"log_mode"[..], &b"default"[..]), (&b"callback_id"[..], &b"3"[..]),]]
    );
    assert_eq!(attributes[1].records.len(), 2);
}

const FILES: &str = "\n1 \"/a/b.py\"\n7 \"c\\\"d\"\n";
const FUNCTIONS: &str = "1 \"f\" 2 \"main.<locals>.g\"";
const LOCATIONS: &str =
    "1 {file_name_id=1 function_name_id=2 line=10 end_line=11 column=2 end_column=31}
2 {function_name_id=1, file_name_id=2, end_line=4, line=4, column=0, end_column=9}
3 {file_name_id=9 function_name_id=0 line=5 end_line=5 column=1 end_column=1}";

fn tables(frames: &str) -> hlofast::Result<StackFrames> {
    let mut text = String::new();
    let mut add = |part: &str| {
        let start = text.len();
        text.push_str(part);
        Span::new(start, text.len())
    };
    let header = Header {
        file_names: add(FILES),
        function_names: add(FUNCTIONS),
        file_locations: add(LOCATIONS),
        stack_frames: add(frames),
        has_tables: true,
        ..Header::default()
    };
    StackFrames::of_header(&header, |span| &text.as_bytes()[span.range()])
}

#[test]
fn frames_resolve_through_their_parents() {
    let tables =
        tables("1 {file_location_id=1 parent_frame_id=1} 2 {parent_frame_id=2 file_location_id=2}")
            .unwrap();
    let stack: Vec<Frame<'_>> = tables.resolve(2).collect();
    assert_eq!(stack.len(), 2);
    assert_eq!((stack[0].file, stack[0].function), (&b"c\"d"[..], &b"f"[..]));
    assert_eq!(stack[0].positions, Positions { line: 4, end_line: 4, column: 0, end_column: 9 });
    assert_eq!(stack[1].function, b"main.<locals>.g");
    assert_eq!(stack[1].positions.end_column, 31);
    assert_eq!(tables.resolve(1).count(), 1);
    for id in [0, 3, -1, i64::MIN, i64::MAX] {
        assert_eq!(tables.resolve(id).count(), 0, "{id}");
    }
    assert_eq!(tables.first_dangling(), Some("location 3 names file 9".to_string()));
}

#[test]
fn broken_references_and_cycles_end() {
    let tables = tables(
        "1 {file_location_id=3 parent_frame_id=3} 2 {file_location_id=99 parent_frame_id=2} \
         3 {file_location_id=-9223372036854775808 parent_frame_id=-9223372036854775808}",
    )
    .unwrap();
    assert_eq!(tables.resolve(1).count(), 3);
    let first = tables.frame(1).unwrap();
    assert_eq!((first.file, first.function, first.positions.line), (&b""[..], &b""[..], 5));
    assert_eq!(tables.frame(2).unwrap().positions, Positions::default());
    assert_eq!(tables.resolve(3).count(), 1);
}

#[test]
fn tables_with_faults() {
    let start = FILES.len() + FUNCTIONS.len() + LOCATIONS.len();
    for (text, kind) in [
        ("1 {file_location_id=1}", ErrorKind::InvalidHeader),
        ("1 {file_location_id=1 parent_frame_id=1 x=1}", ErrorKind::InvalidHeader),
        ("1 {file_location_id=1 file_location_id=1}", ErrorKind::InvalidHeader),
        ("x", ErrorKind::ExpectedToken),
        ("1", ErrorKind::UnexpectedEnd),
    ] {
        let error = tables(text).unwrap_err();
        assert_eq!(error.kind(), kind, "{text}");
        assert!(error.span().start as usize >= start, "{text}: {error:?}");
    }
    let none = StackFrames::of_header(&Header::default(), |_| &b"garbage"[..]).unwrap();
    assert!(none.is_empty());
}
