//! Meshes derived from a module's text.

use hlofast::comms::{DerivedMesh, MeshSource, derive_mesh};
use hlofast::ir::Module;
use hlofast::text::Source;
use hlofast::{Options, parse};

fn module(text: &str) -> Module {
    parse(Source::from_slice(text.as_bytes()), &Options::default()).unwrap()
}

fn derived(text: &str) -> Option<DerivedMesh> {
    derive_mesh(&module(text))
}

/// (mesh, source, invented names, evidence, ignored)
fn facts(text: &str) -> Option<(String, &'static str, bool, u64, u64)> {
    let derived = derived(text)?;
    let source = derived.source.as_str();
    Some((
        derived.mesh.to_text(),
        source,
        derived.invented_names,
        derived.evidence,
        derived.ignored,
    ))
}

fn parameters(shardings: &[&str]) -> String {
    let mut text = "HloModule m, num_partitions=16\n\nENTRY e {\n".to_owned();
    for (i, sharding) in shardings.iter().enumerate() {
        text += &format!("  p{i} = f32[16,16]{{1,0}} parameter({i}), sharding={sharding}\n");
    }
    text + "  ROOT r = f32[16,16]{1,0} add(p0, p0)\n}\n"
}

#[test]
fn lists_of_devices_on_two_axes() {
    let ring = "0,8,1,9,2,10,3,11,4,12,5,13,6,14,7,15";
    let text = parameters(&[
        "{replicated}",
        &format!("{{devices=[8,1,2]{ring} last_tile_dim_replicate}}"),
        &format!("{{devices=[1,8,2]{ring} last_tile_dim_replicate}}"),
        "{devices=[2,1,8]0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 last_tile_dim_replicate}",
    ]);
    let expected = ("axis_0=2,axis_1=8".to_owned(), "entry_shardings", true, 3, 0);
    assert_eq!(facts(&text), Some(expected));
}

#[test]
fn common_refinement() {
    let text =
        parameters(&["{devices=[4,4]<=[16]}", "{devices=[2,1,8]<=[16] last_tile_dims={manual}}"]);
    let expected = ("axis_0=2,axis_1=2,axis_2=4".to_owned(), "entry_shardings", true, 2, 0);
    assert_eq!(facts(&text), Some(expected));
    // 2 x 6 and 3 x 4 have no common axes; the tiling with more attributes wins.
    let text = parameters(&[
        "{devices=[2,6]<=[12]}",
        "{devices=[3,4]<=[12]}",
        "{devices=[4,3]<=[3,4]T(1,0)}",
    ]);
    let expected = ("axis_0=3,axis_1=4".to_owned(), "entry_shardings", true, 2, 1);
    assert_eq!(facts(&text), Some(expected));
}

#[test]
fn an_order_without_arithmetic_is_kept() {
    let text = parameters(&["{devices=[2,4]0,1,3,2,6,7,5,4}"]);
    let derived = derived(&text).unwrap();
    assert_eq!(
        (derived.mesh.to_text().as_str(), derived.mesh.device(2)),
        ("axis_0=2,axis_1=4", Some(3))
    );
}

#[test]
fn names_come_first() {
    let named = "{mesh['data'=2,'model'=8], [{'data'}, {'model'}]}";
    let text = parameters(&["{devices=[4,4]<=[16]}", named, named, "{mesh['x'=16], [{'x'}, {}]}"]);
    let expected = ("data=2,model=8".to_owned(), "named_shardings", false, 2, 1);
    assert_eq!(facts(&text), Some(expected));
    let permuted = "{mesh['a'=2,'b'=8], device_ids=([8,2]T(1,0)), [{'a'}, {}]}";
    let derived = derived(&parameters(&[permuted])).unwrap();
    assert_eq!((derived.mesh.device(1), derived.source), (Some(2), MeshSource::NamedShardings));
    assert_eq!(facts(&parameters(&["{maximal_mesh[device_id=1]}", "{replicated}"])), None);
}

#[test]
fn shardy_meshes_of_the_header() {
    let header = |meshes: &str| {
        format!(
            "HloModule m, frontend_attributes={{xla.sdy.meshes={meshes}}}\n\nENTRY e {{\n  \
             ROOT p = f32[4]{{0}} parameter(0), sharding={{devices=[4]<=[4]}}\n}}\n"
        )
    };
    let expected = |text: &str| Some((text.to_owned(), "shardy_meshes", false, 1, 0));
    let single = header("{mesh = #sdy.mesh<[\"data\"=2, \"model\"=4]>}");
    assert_eq!(facts(&single), expected("data=2,model=4"));
    let quoted = header("\"{mesh = #sdy.mesh<[\\\"da,ta\\\"=2]>}\"");
    assert_eq!(facts(&quoted), expected("da,ta=2"));
    let ordered = header("{mesh = #sdy.mesh<[\"a\"=2, \"b\"=2], device_ids=[0, 2, 1, 3]>}");
    assert_eq!(derived(&ordered).unwrap().mesh.device(1), Some(2));
    let several = header(
        "{empty = #sdy.mesh<[]>, maximal = #sdy.mesh<[], device_ids=[1]>, m = #sdy.mesh<[\"a\"=4]>}",
    );
    assert_eq!(facts(&several), expected("a=4"));
    // Not a mesh, so the shardings decide.
    for broken in [
        "{mesh = #sdy.mesh<[\"a\"=-1]>}",
        "{mesh = #sdy.mesh<[\"a\"}",
        "{mesh = #sdy.mesh<[\"a\"=2, \"a\"=2]>}",
        "{}",
    ] {
        let expected = ("axis_0=4".to_owned(), "entry_shardings", true, 1, 0);
        assert_eq!(facts(&header(broken)), Some(expected), "{broken}");
    }
}

#[test]
fn groups_where_there_are_no_shardings() {
    let reduce = |groups: &[&str]| {
        let mut text = "HloModule m\n\nadd {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\nENTRY e {\n  p = f32[4]{0} parameter(0)\n".to_owned();
        for (i, groups) in groups.iter().enumerate() {
            let root = if i + 1 == groups.len() { "ROOT " } else { "" };
            text += &format!(
                "  {root}r{i} = f32[4]{{0}} all-reduce(p), channel_id={}, replica_groups={groups}, use_global_device_ids=true, to_apply=add\n",
                i + 1
            );
        }
        text + "}\n"
    };
    let expected = |text: &str| Some((text.to_owned(), "replica_groups", true, 2, 0));
    let text = reduce(&["{{0,1,2,3},{4,5,6,7}}", "[4,2]<=[2,4]T(1,0)"]);
    assert_eq!(facts(&text), expected("axis_0=2,axis_1=4"));
    let text =
        reduce(&["mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_2'}", "{{0,1},{2,3},{4,5},{6,7}}"]);
    assert_eq!(facts(&text), expected("axis_0=2,axis_1=2,axis_2=2"));
    let text = reduce(&["mesh['data'=2,'model'=4] {'model'}", "mesh['data'=2,'model'=4] {'data'}"]);
    let named = ("data=2,model=4".to_owned(), "named_shardings", false, 2, 0);
    assert_eq!(facts(&text), Some(named));
    assert_eq!(facts(&reduce(&["{}"])), None);
    let text = reduce(&["[1000000000,1000000000]<=[1000000000000000000]", "[1,1]<=[-5]"]);
    let large = ("axis_0=1000000000,axis_1=1000000000".to_owned(), "replica_groups", true, 1, 1);
    assert_eq!(facts(&text), Some(large));
}

#[test]
fn one_axis_is_cut_by_groups() {
    let text = |groups: &str, devices: u64| {
        format!(
            "HloModule m, num_partitions={devices}\n\nENTRY e {{\n  p = f32[16]{{0}} parameter(0), \
             sharding={{devices=[{devices}]<=[{devices}]}}\n  ROOT r = f32[16]{{0}} all-to-all(p), \
             channel_id=1, replica_groups={groups}, dimensions={{0}}\n}}\n"
        )
    };
    let fact = |mesh: &str, source| Some((mesh.to_owned(), source, true, 1, 0));
    let cut = facts(&text("{{0,1,2,3},{4,5,6,7}}", 8));
    assert_eq!(cut, fact("axis_0=2,axis_1=4", "replica_groups"));
    assert_eq!(facts(&text("[1,8]<=[8]", 8)), fact("axis_0=8", "entry_shardings"));
    // Over a different number of devices than the parameters.
    assert_eq!(facts(&text("{{0,1},{2,3}}", 8)), fact("axis_0=8", "entry_shardings"));
}

#[test]
fn shardings_of_several_slices() {
    let text = |partitions: u64| {
        parameters(&["{devices=[4,16]<=[64]}"])
            .replace("num_partitions=16", &format!("num_partitions={partitions}"))
    };
    let slices = |partitions| derived(&text(partitions)).unwrap().mesh.slices();
    assert_eq!([16, 64, 32, 24, 1].map(slices), [Some(4), None, Some(2), None, None]);
}
