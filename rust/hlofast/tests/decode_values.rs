//! Typed attribute values: the forms of the language reference, one by one.

use hlofast::ErrorKind;
use hlofast::ir::Opcode;
use hlofast::ir::decode::*;
use std::borrow::Cow;

fn value<'a>(key: &str, text: &'a str) -> AttributeValue<'a> {
    decode(key.as_bytes(), Opcode::Add, text.as_bytes())
        .unwrap_or_else(|error| panic!("{key}={text}: {error}"))
}

fn fails(key: &str, text: &str) -> ErrorKind {
    match decode(key.as_bytes(), Opcode::Add, text.as_bytes()) {
        Ok(value) => panic!("{key}={text} was read as {value:?}"),
        Err(error) => {
            assert!(error.span().end as usize <= text.len(), "{key}={text}: {error:?}");
            error.kind()
        }
    }
}

fn text(bytes: &str) -> Cow<'_, [u8]> {
    Cow::Borrowed(bytes.as_bytes())
}

#[test]
fn plain_values() {
    use AttributeValue as V;
    assert_eq!(value("is_stable", "true"), V::Boolean(true));
    assert_eq!(value("lower", " false "), V::Boolean(false));
    assert_eq!(value("index", "17"), V::Integer(17));
    assert_eq!(value("inferred_dimension", "-1"), V::Integer(-1));
    assert_eq!(value("channel_id", "/*a*/ 3 // b"), V::Integer(3));
    assert_eq!(value("epsilon", "1e-05"), V::Float(1e-5));
    assert_eq!(value("epsilon", "1."), V::Float(1.0));
    assert_eq!(value("dimensions", "{0, 2,/*x*/1}"), V::Integers(vec![0, 2, 1]));
    assert_eq!(value("lhs_batch_dims", "{}"), V::Integers(vec![]));
    assert_eq!(value("direction", "LT"), V::Word(b"LT"));
    assert_eq!(value("custom_call_target", r#""x\"y""#), V::Text(text("x\"y")));
    assert_eq!(value("custom_call_target", "'a'"), V::Text(text("a")));
    assert_eq!(value("operand_precision", "{default, HIGHEST}"), {
        V::Words(vec![b"default", b"HIGHEST"])
    });
    assert_eq!(value("to_apply", "%add.1"), V::Computation(b"add.1"));
    assert_eq!(value("to_apply", "{ ROOT a = f32[] parameter(0) }"), {
        V::Computation(b"{ ROOT a = f32[] parameter(0) }")
    });
    assert_eq!(value("branch_computations", "{%a, b}"), V::Computations(vec![b"a", b"b"]));
    assert_eq!(value("control-predecessors", "{%a, b}"), V::Names(vec![b"a", b"b"]));
    assert_eq!(value("parameter_replication", "{true,false}"), V::Booleans(vec![true, false]));
    assert_eq!(value("source_target_pairs", "{{0,1},{1,0}}"), {
        V::SourceTargetPairs(vec![(0, 1), (1, 0)])
    });
    assert_eq!(value("no_such_key", "{{{"), V::Raw(b"{{{"));
    assert_eq!(value("outfeed_shape", "f32[2]{0}"), V::Shape(b"f32[2]{0}"));
    assert_eq!(
        value("operand_layout_constraints", "{f32[2,3]{1,0}, (s32[], b(f32[2])), u8 [2]}"),
        { V::Shapes(vec![b"f32[2,3]{1,0}", b"(s32[], b(f32[2]))", b"u8 [2]"]) }
    );
    for (key, bad) in [
        ("is_stable", "1"),
        ("is_stable", "True"),
        ("index", "1_0"),
        ("index", "x"),
        ("index", "99999999999999999999"),
        ("dimensions", "0"),
        ("dimensions", "{0,}"),
        ("dimensions", "{0} 1"),
        ("epsilon", "infinity"),
        ("source_target_pairs", "{{0,1,2}}"),
        ("custom_call_target", "plain"),
        ("custom_call_target", r#""\q""#),
    ] {
        fails(key, bad);
    }
}

#[test]
fn slice_sizes_depend_on_the_opcode() {
    let lists = decode(b"slice_sizes", Opcode::CollectivePermute, b"{{1,2},{3}}").unwrap();
    let AttributeValue::IntegerLists(lists) = lists else { panic!("{lists:?}") };
    assert_eq!(lists.iter().collect::<Vec<_>>(), [&[1, 2][..], &[3]]);
    let sizes = decode(b"slice_sizes", Opcode::Gather, b"{1,2}").unwrap();
    assert_eq!(sizes, AttributeValue::Integers(vec![1, 2]));
}

#[test]
fn backend_config_is_text_or_dictionary() {
    use AttributeValue as V;
    let dictionary = r#"{"a":{"b":"}"}, 'it''s' // no comment}"#;
    assert_eq!(value("backend_config", dictionary), V::Dictionary(dictionary.as_bytes()));
    assert_eq!(value("backend_config", r#""\004\000\377""#), {
        V::Text(Cow::Borrowed(b"\x04\x00\xff"))
    });
    fails("backend_config", "{} {}");
}

#[test]
fn windows() {
    let AttributeValue::Window(dimensions) =
        value("window", "{pad=1_2x-3_0 size=2x3 rhs_reversal=1x0 lhs_dilate=4x5 stride=6x7}")
    else {
        panic!()
    };
    assert_eq!(
        dimensions[0],
        WindowDimension {
            size: 2,
            stride: 6,
            padding_low: 1,
            padding_high: 2,
            base_dilation: 4,
            window_dilation: 1,
            reversal: true,
        }
    );
    assert_eq!(dimensions[1].padding_low, -3);
    assert_eq!(value("window", "{}"), AttributeValue::Window(vec![]));
    assert_eq!(value("window", "{size=1 rhs_dilate=2}"), {
        let dimension = WindowDimension { window_dilation: 2, ..WindowDimension::default() };
        AttributeValue::Window(vec![dimension])
    });
    for bad in
        ["{size=2,stride=2}", "{size=2x2 stride=1}", "{size=1 size=1}", "{x=1}", "{pad=0_0_1}", "{"]
    {
        fails("window", bad);
    }
}

#[test]
fn paddings_and_slices() {
    assert_eq!(value("padding", "0_0_0x2_-1_1x3_4"), {
        let dimension = |low, high, interior| PaddingDimension { low, high, interior };
        AttributeValue::Padding(vec![dimension(0, 0, 0), dimension(2, -1, 1), dimension(3, 4, 0)])
    });
    assert_eq!(value("padding", ""), AttributeValue::Padding(vec![]));
    assert_eq!(value("slice", "{[0:3], [1:4:2]}"), {
        let dimension = |start, limit, stride| SliceDimension { start, limit, stride };
        AttributeValue::Slice(vec![dimension(0, 3, 1), dimension(1, 4, 2)])
    });
    assert_eq!(value("slice", "{}"), AttributeValue::Slice(vec![]));
    for (key, bad) in
        [("padding", "1"), ("padding", "1_1x"), ("padding", "1 _1"), ("slice", "{[1]}")]
    {
        fails(key, bad);
    }
}

#[test]
fn dimension_labels() {
    use DimensionLabel::*;
    let AttributeValue::DimensionLabels(labels) = value("dim_labels", "b01f_01io->bf01") else {
        panic!()
    };
    assert_eq!(labels.lhs, [Batch, Spatial(0), Spatial(1), Feature]);
    assert_eq!(labels.rhs, [Spatial(0), Spatial(1), InputFeature, OutputFeature]);
    assert_eq!(labels.spatial_rank(), 2);
    assert_eq!(DimensionLabels::position(&labels.output, Spatial(1)), Some(3));
    let AttributeValue::DimensionLabels(labels) = value("dim_labels", "?bf_io->bf?") else {
        panic!()
    };
    assert_eq!(labels.lhs, [Unmapped, Batch, Feature]);
    for bad in ["b0f_0io", "bbf_io->bf", "b0f_io->bf", "bf_oi->b", "b0f _0io->b0f"] {
        fails("dim_labels", bad);
    }
}

#[test]
fn metadata() {
    let written = r#"{op_type="add" op_name="jit(f)/add" source_file="/a/\"b.py", source_line=7 profile_type={1,2} new_key={x "}"} stack_frame_id=3 a=b/1}"#;
    let error = fails("metadata", written);
    assert_eq!(error, ErrorKind::UnexpectedCharacter);
    let written = written.replace(" a=b/1", " a=-7");
    let AttributeValue::Metadata(metadata) = value("metadata", &written) else { panic!() };
    assert_eq!(metadata.op_name, Some(text("jit(f)/add")));
    assert_eq!(metadata.source_file, Some(text("/a/\"b.py")));
    assert_eq!(metadata.source_line, Some(7));
    assert_eq!(metadata.profile_type, Some(vec![1, 2]));
    assert_eq!(metadata.stack_frame_id, Some(3));
    assert_eq!(metadata.other, [(&b"new_key"[..], &br#"{x "}"}"#[..]), (&b"a"[..], &b"-7"[..]),]);
    assert_eq!(metadata_string(written.as_bytes(), b"op_name"), Some(text("jit(f)/add")));
    assert_eq!(metadata_string(written.as_bytes(), b"scheduling_name"), None);
    let printed = metadata.to_text();
    let again = decode(b"metadata", Opcode::Add, &printed).unwrap();
    assert_eq!(again, AttributeValue::Metadata(metadata));
    assert_eq!(value("metadata", "{}"), AttributeValue::Metadata(Box::default()));
    assert_eq!(fails("metadata", "{source_line=1 source_line=2}"), ErrorKind::DuplicateAttribute);
}

#[test]
fn frontend_attributes() {
    let AttributeValue::FrontendAttributes(attributes) = value(
        "frontend_attributes",
        r#"{a.b-c="x\ny",xla.sdy.meshes={mesh = #sdy.mesh<["f"=2]>}}"#,
    ) else {
        panic!()
    };
    assert_eq!(attributes[0].key, b"a.b-c");
    assert_eq!(attributes[0].value, text("x\ny"));
    assert!(attributes[1].is_dictionary);
    assert_eq!(attributes[1].value, text(r#"{mesh = #sdy.mesh<["f"=2]>}"#));
    for bad in ["{a=1}", "{a=b}", r#"{a="x" b="y"}"#] {
        fails("frontend_attributes", bad);
    }
}

#[test]
fn rarer_values() {
    use AttributeValue as V;
    let AttributeValue::Aliases(aliases) = value("output_to_operand_aliasing", "{{1}: (0, {2,})}")
    else {
        panic!()
    };
    assert_eq!(
        aliases,
        [Alias {
            output_index: vec![1].into(),
            number: 0,
            index: vec![2].into(),
            must_alias: false
        }]
    );
    assert_eq!(value("result_accuracy", "{mode=highest}"), {
        V::ResultAccuracy(ResultAccuracy::Mode(b"highest"))
    });
    assert_eq!(value("result_accuracy", "{tolerance={atol=0.5, ulps=2}}"), {
        V::ResultAccuracy(ResultAccuracy::Tolerance { atol: 0.5, rtol: 0.0, ulps: 2.0 })
    });
    assert_eq!(value("origin", "{[synthetic_call]}"), V::Origin(Origin::SyntheticCall));
    let AttributeValue::Origin(Origin::Tree(parts)) =
        value("origin", r#"{(({"v1"}, {"v2" {0,1}}), {})}"#)
    else {
        panic!()
    };
    use OriginPart::*;
    assert_eq!(
        parts,
        [
            Open,
            Open,
            Leaf(Some((text("v1"), vec![].into()))),
            Leaf(Some((text("v2"), vec![0, 1].into()))),
            Close,
            Leaf(None),
            Close,
        ]
    );
    let deep = format!("{{{}", "(".repeat(100_000));
    assert_eq!(fails("origin", &deep), ErrorKind::TooDeep);
    assert_eq!(value("statistics", "{}"), V::Statistics(None));
    assert_eq!(value("statistics", "{visualizing_index=1,a=1.5}"), {
        V::Statistics(Some(Statistics { visualizing_index: 1, values: vec![(b"a", 1.5)] }))
    });
    let AttributeValue::SparsityConfig(config) =
        value("sparsity_config", "{lhs={sparsity=2x4 dimension=1 stride=3} rhs={}}")
    else {
        panic!()
    };
    assert_eq!(config.lhs, Some(Sparsity { kept: 2, block: 4, dimension: 1, stride: 3 }));
    assert_eq!(config.rhs, Some(Sparsity::default()));
    let AttributeValue::Domain(domain) =
        value("domain", r#"{kind="sharding", entry={maximal device=0}, exit={replicated}}"#)
    else {
        panic!()
    };
    assert_eq!(domain.kind, text("sharding"));
    assert!(domain.exit.is_replicated() && !domain.entry.is_replicated());
}
