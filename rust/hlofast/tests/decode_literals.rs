//! Literals: splitting into leaves, decoding, and what they refuse.

use hlofast::ir::decode::{
    Extent, Literal, LiteralData, marker_sizes, self_typed_leaves, unescape,
};
use hlofast::ir::{ShapeId, ShapeInterner, ShapeTable};
use hlofast::parse::shape::parse_shape;
use hlofast::text::Cursor;
use hlofast::{ErrorKind, Result};

fn shape(text: &str) -> (ShapeTable, ShapeId) {
    let mut interner = ShapeInterner::default();
    let id = parse_shape(&mut Cursor::new(text.as_bytes()), &mut interner)
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    (interner.into_table(), id)
}

fn read(shape_text: &str, payload: &str) -> Result<Vec<LiteralData>> {
    let (shapes, id) = shape(shape_text);
    let literal = Literal::split(payload.as_bytes(), &shapes, id)?;
    (0..literal.leaves.len()).map(|leaf| literal.decode(leaf, &shapes)).collect()
}

fn leaf(shape_text: &str, payload: &str) -> LiteralData {
    match read(shape_text, payload) {
        Ok(mut leaves) if leaves.len() == 1 => leaves.remove(0),
        other => panic!("{shape_text} {payload}: {other:?}"),
    }
}

fn singles(data: &LiteralData) -> Vec<f32> {
    data.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn bytes(shape_text: &str, payload: &str) -> Vec<u8> {
    leaf(shape_text, payload).bytes
}

#[test]
fn arrays() {
    assert_eq!(singles(&leaf("f32[]", "-1.5e2")), [-150.0]);
    assert_eq!(singles(&leaf("f32[3]", "{1, -inf 2,,}")), [1.0, f32::NEG_INFINITY, 2.0]);
    let square = leaf("f32[2,2]", "/*x*/ { { 1, 2 }, /*i0=1*/{ 3, 4 } }");
    assert_eq!((singles(&square), square.count), (vec![1.0, 2.0, 3.0, 4.0], 4));
    assert_eq!(square.extent, Extent::Full);
    for (shape, text) in
        [("f32[0]", "{}"), ("f32[0,3]", "{}"), ("f32[2,0]", "{ {}, {  } }"), ("f32[<=0]", "{}")]
    {
        assert_eq!((leaf(shape, text).count, leaf(shape, text).extent), (0, Extent::Full));
    }
}

#[test]
fn elements_of_every_kind() {
    assert_eq!(bytes("pred[5]", "{1, 0, true, false, -7}"), [1, 0, 1, 0, 1]);
    assert_eq!(bytes("s4[2]", "{-8, 7}"), [0xf8, 7]);
    assert_eq!(bytes("u2[2]", "{3, 0}"), [3, 0]);
    assert_eq!(bytes("s16[]", "-2"), [0xfe, 0xff]);
    assert_eq!(bytes("u64[]", "-1"), [0xff; 8]);
    assert_eq!(bytes("s64[]", "18446744073709551615"), [0xff; 8]);
    assert_eq!(bytes("bf16[2]", "{1, -0}"), [0x80, 0x3f, 0, 0x80]);
    assert_eq!(bytes("f16[]", "nan(0x3)"), [0x03, 0x7c]);
    assert_eq!(bytes("f4e2m1fn[3]", "{0.5, -6, 5}"), [1, 0xf, 6]);
    assert_eq!(bytes("f8e4m3fn[]", "448"), [0x7e]);
    let complex = leaf("c64[2]", "{(1, -2), (inf,/*i*/0.5)}");
    assert_eq!(singles(&complex), [1.0, -2.0, f32::INFINITY, 0.5]);
    assert_eq!(complex.count, 2);
    assert_eq!(bytes("c128[]", "(0, 1)")[8..], 1f64.to_le_bytes());
}

#[test]
fn values_that_do_not_fit() {
    for (shape, text) in [
        ("s8[]", "128"),
        ("u8[]", "-1"),
        ("s32[]", "1.5"),
        ("s32[]", "true"),
        ("f16[]", "65520"),
        ("f32[]", "nan(0x0)"),
        ("f32[]", "(1, 2)"),
        ("c64[]", "1"),
        ("c64[]", "(1)"),
        ("s64[]", "18446744073709551616"),
        ("token[]", "1"),
    ] {
        let error = read(shape, text).expect_err(text);
        assert!(error.span().end as usize <= text.len(), "{error:?}");
    }
}

#[test]
fn braces_must_fit_the_shape() {
    for (shape, text) in [
        ("f32[3]", "{1, 2}"),
        ("f32[3]", "{1, 2, 3, 4}"),
        ("f32[2,2]", "{1, 2}"),
        ("f32[2]", "{{1, 2}}"),
        ("f32[2,2]", "{{1, 2}}"),
        ("f32[]", "{1}"),
        ("f32[2]", "{1, 2} 3"),
        ("f32[2]", "{1, 2"),
        ("f32[2]", ""),
        ("f32[2]", "{..., 1}"),
        ("(f32[], f32[])", "(1)"),
        ("(f32[], f32[])", "(1, 2, 3)"),
        ("(f32[])", "1"),
        ("(f32[])", "{1}"),
    ] {
        assert!(read(shape, text).is_err(), "{shape} {text}");
    }
}

#[test]
fn what_is_held_is_bounded_by_the_text() {
    let elided = leaf("f32[1000000,1000000]", "{...}");
    assert_eq!((elided.extent, elided.count, elided.bytes.capacity()), (Extent::Elided, 0, 0));
    let started = leaf("f32[1000000000]", "{1, 2, ...}");
    assert_eq!((started.extent, singles(&started)), (Extent::Elided, vec![1.0, 2.0]));
    let first = leaf("f32[1000000000]", "7");
    assert_eq!((first.extent, singles(&first)), (Extent::FirstOnly, vec![7.0]));
    let deep = "{".repeat(200_000);
    assert_eq!(read("f32[2]", &deep).unwrap_err().kind(), ErrorKind::UnclosedBracket);
}

#[test]
fn tuples() {
    let leaves = read("(f32[2], (s32[], pred[]), ())", "( {1, 2}, ( 3 true ), () )").unwrap();
    assert_eq!(leaves.iter().map(|l| l.count).collect::<Vec<_>>(), [2, 1, 1]);
    assert_eq!(leaves[1].bytes, 3i32.to_le_bytes());
    for text in ["{...}", "({...}, ({ ... }))", "()"] {
        let leaves = read("(f32[9], (s32[4]))", text).unwrap();
        assert_eq!(leaves.len(), 2, "{text}");
        assert!(leaves.iter().all(|leaf| leaf.extent == Extent::Elided), "{text}");
    }
    let leaves = read("(c64[], f32[])", "((1, 2), 3)").unwrap();
    assert_eq!(leaves[0].bytes.len(), 8);
}

#[test]
fn texts_are_available_without_decoding() {
    let (shapes, id) = shape("f32[2,2]");
    let literal = Literal::split(b"{ { 1e3, nan }, {-0, 4} }", &shapes, id).unwrap();
    let (extent, elements) = literal.elements(0, &shapes).unwrap();
    assert_eq!((extent, elements), (Extent::Full, vec![&b"1e3"[..], b"nan", b"-0", b"4"]));
}

#[test]
fn old_texts_repeat_the_shape() {
    assert_eq!(singles(&leaf("f32[1,2]", "f32[1,2] { { 1, 2 } }")), [1.0, 2.0]);
    assert_eq!(singles(&leaf("f32[1,2]", "f32[1,2]{1,0} { { 1, 2 } }")), [1.0, 2.0]);
    let leaves = read("(f32[], s32[1])", "(f32[], s32[1]) ( 1, {2} )").unwrap();
    assert_eq!(leaves[1].bytes, 2i32.to_le_bytes());
}

#[test]
fn self_typed_literals() {
    let leaves = self_typed_leaves(b"( s32[2]{0} {1, 2}, ( f32[] 0.1 ), ())").unwrap();
    assert_eq!(leaves, [(&b"s32[2]{0}"[..], &b"{1, 2}"[..]), (b"f32[]", b"0.1")]);
    assert_eq!(self_typed_leaves(b"pred[] true").unwrap(), [(&b"pred[]"[..], &b"true"[..])]);
    assert!(self_typed_leaves(b"(((").is_err() && self_typed_leaves(b"f32[] 1 2").is_err());
}

#[test]
fn marker_sizes_are_little_endian_integers() {
    let content =
        unescape(br"\004\000\000\000\000\000\000\000\000\000\270\006\000\000\000\000").unwrap();
    assert_eq!(marker_sizes(&content), Some(vec![4, 0x06b8_0000]));
    assert_eq!(marker_sizes(b"SUM;0$1$"), Some(vec![i64::from_le_bytes(*b"SUM;0$1$")]));
    assert_eq!(marker_sizes(b"1234567"), None);
}
