//! Whatever the bytes, every decoder returns: a value or an error whose span lies in the text.
//! What decoders print, they read back as the same value.

use hlofast::ir::decode::*;
use hlofast::ir::{Header, Opcode, ShapeId, ShapeInterner, ShapeTable};
use hlofast::parse::shape::parse_shape;
use hlofast::text::{Cursor, Span};
use proptest::prelude::*;

/// Every key with a decoder of its own, and values that it accepts.
const VALUES: &[(&str, &str)] = &[
    ("dimensions", "{0,1,/*x*/2}"),
    ("index", "-3"),
    ("is_stable", "true"),
    ("epsilon", "1.5e-3"),
    ("to_apply", "%add.1"),
    ("calls", "{ ROOT %a = f32[] parameter(0) }"),
    ("branch_computations", "{%a, { ROOT b = s32[] constant(1) }}"),
    ("control-predecessors", "{%a, b}"),
    ("operand_precision", "{highest,default}"),
    ("direction", "LT"),
    ("custom_call_target", "\"a\\\"\\377\\u00e9\\x41\""),
    ("backend_config", "{\"a\":{\"b\":\"}\"}}"),
    ("backend_config", "\"\\004\\000\""),
    ("window", "{size=3x3 stride=1x2 pad=-1_1x0_0 lhs_dilate=1x1 rhs_dilate=1x1 rhs_reversal=0x1}"),
    ("dim_labels", "b01f_01io->b01f"),
    ("padding", "0_0_0x2_-1_1"),
    ("slice", "{[0:3], [0:4:2]}"),
    ("slice_sizes", "{{1,2},{3}}"),
    ("source_target_pairs", "{{0,1},{1,0}}"),
    ("replica_groups", "{{0,1},{2,3}}"),
    ("replica_groups", "[2,4]<=[2,2,2]T(2,0,1)"),
    ("replica_groups", "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(2)2}"),
    ("sharding", "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dims={manual} metadata={op_name=\"x\"}}"),
    ("sharding", "{{devices=[2,2]0,1,2,3 shard_as 1}, {maximal device=3}, {unreduced=max}}"),
    ("sharding", "{mesh['a'=2,'b'=4], [{'a'}, {'b':(2)2, ?}], manual={'b':(1)2}, shard_like 2}"),
    ("metadata", "{op_type=\"add\" op_name=\"a/b\", source_line=3 profile_type={1} other={x}}"),
    ("frontend_attributes", "{a=\"b\",c.d-e={mesh = <[\"f\"=2]>}}"),
    ("operand_layout_constraints", "{f32[2]{0:T(8)}, (s32[], b(f32[2]))}"),
    ("output_to_operand_aliasing", "{{0}: (1, {2,3}), {}: (0, {}, must-alias)}"),
    ("result_accuracy", "{tolerance={atol=1, rtol=0.5, ulps=2}}"),
    ("origin", "{(({\"v1\"}, {\"v2\" {0,1}}), {})}"),
    ("statistics", "{visualizing_index=1,a=1.5}"),
    ("domain", "{kind=\"sharding\", entry={replicated}, exit={maximal device=0}}"),
    ("sparsity_config", "{lhs={sparsity=2x4 dimension=1 stride=3}}"),
    ("input_output_alias", "{ {0}: (1, {}, must-alias), {1}: 2 }"),
    ("buffer_donor", "{ (1, {}), (2, {0}) }"),
    ("entry_computation_layout", "{(f32[2]{0}, s32[])->(f32[2], pred[])}"),
    ("allow_spmd_sharding_propagation_to_output", "{true,false}"),
    ("origin_recovery_table", "{ {\"a\" {0}} : {\"b\"}, \"HloModule m\" {} : {} }"),
    ("debug_attributes", "{{\"a\"}:({log_mode=default},{op_id=1}),{}:{}}"),
];

const LITERALS: &[(&str, &str)] = &[
    ("f32[2,2]", "{ { 1, -2.5e3 }, { nan, inf } }"),
    ("f32[2]", "{1, ...}"),
    ("c64[2]", "{(1, 2), (nan(0x1), 4)}"),
    ("(f32[], (s8[2], pred[1]), ())", "( 1, ( {1, -1}, {true} ), () )"),
    ("(f32[2], u4[])", "(f32[2], u4[]) ( {1, 2}, 3 )"),
    ("f8e4m3fn[1000000000]", "{...}"),
];

fn within(error: &hlofast::ParseError, text: &[u8]) {
    let span = error.span();
    assert!(span.start <= span.end && span.end as usize <= text.len(), "{error:?} {text:?}");
}

fn shape(text: &str) -> (ShapeTable, ShapeId) {
    let mut interner = ShapeInterner::default();
    let id = parse_shape(&mut Cursor::new(text.as_bytes()), &mut interner)
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    (interner.into_table(), id)
}

/// Decodes `text` as attribute `key`, uses what comes out, and reads back what it prints.
fn attribute(key: &str, text: &[u8]) -> bool {
    let mut accepted = false;
    for opcode in [Opcode::Add, Opcode::CollectivePermute] {
        let value = match decode(key.as_bytes(), opcode, text) {
            Ok(value) => value,
            Err(error) => {
                within(&error, text);
                continue;
            }
        };
        accepted = true;
        let printed = match &value {
            AttributeValue::ReplicaGroups(groups) => {
                let all = groups.expand(1000);
                let first = groups.device(0, 0);
                if let Some(lists) = &all {
                    let listed = lists.get(0).and_then(|group| group.first().copied());
                    assert_eq!(listed, first);
                }
                let last = groups.group_count().and_then(|count| count.checked_sub(1));
                let _ = groups.device(last.unwrap_or(u64::MAX), u64::MAX);
                groups.to_text()
            }
            AttributeValue::Sharding(sharding) => {
                let _ = sharding.is_replicated();
                for leaf in sharding.leaves() {
                    let _ = (leaf.tile_dimensions(), leaf.devices(1000), leaf.device_count());
                }
                sharding.to_text()
            }
            AttributeValue::Metadata(metadata) => metadata.to_text(),
            _ => continue,
        };
        let again = decode(key.as_bytes(), opcode, &printed);
        assert_eq!(again.as_ref(), Ok(&value), "{}", String::from_utf8_lossy(&printed));
    }
    match decode_header(key.as_bytes(), text) {
        Ok(HeaderValue::EntryLayout(layout)) => {
            let _ = layout.intern(&mut ShapeInterner::default(), parse_shape);
        }
        Ok(_) => accepted = true,
        Err(error) => within(&error, text),
    }
    accepted
}

fn literal(shapes: &ShapeTable, id: ShapeId, text: &[u8]) -> bool {
    let _ = self_typed_leaves(text).map_err(|error| within(&error, text));
    let literal = match Literal::split(text, shapes, id) {
        Ok(literal) => literal,
        Err(error) => {
            within(&error, text);
            return false;
        }
    };
    assert_eq!(literal.leaves.len(), shapes.leaf_count(id) as usize);
    let mut complete = true;
    for leaf in 0..literal.leaves.len() {
        match literal.decode(leaf, shapes) {
            Ok(data) => {
                let (extent, elements) = literal.elements(leaf, shapes).expect("it was decoded");
                assert_eq!((extent, elements.len()), (data.extent, data.count));
                let size = data.element_type.storage_bits() as usize / 8;
                assert_eq!(data.bytes.len(), size * data.count);
                assert!(data.count <= text.len());
            }
            Err(error) => {
                within(&error, text);
                complete = false;
            }
        }
    }
    complete
}

fn tables(text: &[u8]) {
    let span = Span::new(0, text.len());
    for table in 0..4 {
        let mut header = Header { has_tables: true, ..Header::default() };
        match table {
            0 => header.file_names = span,
            1 => header.function_names = span,
            2 => header.file_locations = span,
            _ => header.stack_frames = span,
        }
        match StackFrames::of_header(&header, |span| &text[span.range()]) {
            Ok(frames) => {
                let _ = frames.first_dangling();
                for id in [-1, 0, 1, 2, i64::MAX] {
                    assert!(frames.resolve(id).count() <= frames.len());
                }
            }
            Err(error) => within(&error, text),
        }
    }
}

/// Bytes that the language gives a meaning to, more often than others.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => prop::sample::select(b"{}()[]<=>,:'\"\\/*#+-._ \n?xT0123456789aebfinu".to_vec()),
        1 => any::<u8>(),
    ]
}

#[derive(Clone, Debug)]
enum Change {
    Replace(usize, u8),
    Insert(usize, u8),
    Remove(usize, usize),
    Repeat(usize, usize),
    Number(usize, i64),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>().prop_map(|index| index.index(1 << 16));
    let at = at.boxed();
    prop_oneof![
        (at.clone(), byte()).prop_map(|(at, byte)| Change::Replace(at, byte)),
        (at.clone(), byte()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        (at.clone(), 1..8usize).prop_map(|(at, length)| Change::Remove(at, length)),
        (at.clone(), 1..20usize).prop_map(|(at, length)| Change::Repeat(at, length)),
        (at, prop_oneof![any::<i64>(), Just(1 << 40), Just(0), Just(-1)])
            .prop_map(|(at, number)| Change::Number(at, number)),
    ]
}

fn changed(text: &str, changes: &[Change]) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    for change in changes {
        let length = text.len();
        let place = |at: &usize| at % length.max(1);
        match change {
            Change::Replace(at, byte) if length > 0 => text[place(at)] = *byte,
            Change::Insert(at, byte) => text.insert(place(at), *byte),
            Change::Remove(at, count) => {
                text.drain(place(at)..(place(at) + count).min(length));
            }
            Change::Repeat(at, count) => {
                let part = text[place(at)..(place(at) + count).min(length)].to_vec();
                text.splice(place(at)..place(at), part);
            }
            Change::Number(at, number) => {
                let start = place(at);
                let digits = text[start..].iter().take_while(|b| b.is_ascii_digit()).count();
                text.splice(start..start + digits, number.to_string().into_bytes());
            }
            Change::Replace(..) => {}
        }
    }
    text
}

#[test]
fn the_unchanged_values_are_accepted() {
    for (key, text) in VALUES {
        assert!(attribute(key, text.as_bytes()), "{key}={text}");
    }
    for (shape_text, text) in LITERALS {
        let (shapes, id) = shape(shape_text);
        assert!(literal(&shapes, id, text.as_bytes()), "{shape_text} {text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_survived(text in prop::collection::vec(byte(), 0..80)) {
        for (key, _) in VALUES {
            attribute(key, &text);
        }
        for (shape_text, _) in LITERALS {
            let (shapes, id) = shape(shape_text);
            literal(&shapes, id, &text);
        }
        tables(&text);
        let _ = metadata_string(&text, b"op_name");
        let _ = unescape(&text).map_err(|error| within(&error, &text));
        let escaped = escape(&text);
        let again = unescape(&escaped);
        prop_assert_eq!(again.as_deref(), Ok(text.as_slice()));
    }

    #[test]
    fn changed_values_are_survived(changes in prop::collection::vec(change(), 1..5)) {
        for (key, text) in VALUES {
            attribute(key, &changed(text, &changes));
        }
        for (shape_text, text) in LITERALS {
            let (shapes, id) = shape(shape_text);
            literal(&shapes, id, &changed(text, &changes));
        }
        let table = "1 {file_location_id=1 parent_frame_id=1} 2 {file_location_id=1 parent_frame_id=3}";
        tables(&changed(table, &changes));
        let _ = metadata_string(&changed("{op_name=\"a\" op_type=\"b\"}", &changes), b"op_type");
    }
}
