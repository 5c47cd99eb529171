//! Modules written as protobufs and read again: the same modules, but for what protobufs lack.

use crate::support::mutate::{Random, mutate};
use crate::support::reading;
use hlofast::ir::{Module, Row};
use hlofast::print::{
    Difference, FingerprintOptions, PrintOptions, fingerprint, structurally_equal, to_text,
};
use hlofast::proto::{self, NOT_IN_PROTO};
use hlofast::text::{ErrorPlace, OpenOptions, Source};
use hlofast::{ErrorKind, ParseError};
use proptest::prelude::*;
use std::collections::HashSet;
use std::path::Path;
use std::sync::LazyLock;

fn module_of_proto(bytes: Vec<u8>) -> Result<Module, ParseError> {
    let source = hlofast::unpack(bytes.into(), &OpenOptions::default())?;
    assert!(source.is_translated());
    hlofast::parse(source, &hlofast::Options::default())
}

/// `module` read again from its canonical text without the header attributes `keys`.
fn without(module: &Module, keys: &[&str]) -> Module {
    let text = to_text(module, &PrintOptions::default());
    let rest = text.iter().position(|byte| *byte == b'\n').unwrap();
    let mut out = b"HloModule %".to_vec();
    out.extend_from_slice(module.name());
    for (key, value) in &module.header().attributes {
        let (key, value) = (module.bytes(*key), module.bytes(*value));
        if !keys.iter().any(|left_out| left_out.as_bytes() == key) {
            out.extend_from_slice(&[b", ", key, b"=", value].concat());
        }
    }
    out.extend_from_slice(&text[rest..]);
    reading::parse(&out).unwrap()
}

/// Both without what only one of them can have.
fn comparable(own: &Module, again: &Module) -> (Module, Module) {
    let mut only_text: Vec<&str> = NOT_IN_PROTO.iter().map(|(key, _)| *key).collect();
    only_text.retain(|key| *key != "input_output_alias");
    // Protobufs always have one.
    if own.header_attribute("entry_computation_layout").is_none() {
        only_text.push("entry_computation_layout");
    }
    (without(own, &only_text), without(again, &only_text))
}

/// Whether some instructions share a name, which protobufs cannot have.
fn shares_names(module: &Module) -> bool {
    let mut seen = HashSet::new();
    module.rows().any(|row| !seen.insert(module.instruction_name(row)))
}

/// Whether the difference is one of spelling, or in names that had to change. Fingerprints see what
/// is behind.
fn is_spelling(own: &Module, difference: &Difference) -> bool {
    let text = difference.to_string();
    text.contains("attribute backend_config: \"") || text.contains("names: ") && shares_names(own)
}

/// Writes `module`, reads that and compares; the bytes.
fn check(module: &Module, what: &str) -> Vec<u8> {
    let written = proto::from_module(module).unwrap_or_else(|error| panic!("{what}: {error}"));
    let again = module_of_proto(written.bytes.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (own, same) = comparable(module, &again);
    if let Err(difference) = structurally_equal(&own, &same) {
        assert!(is_spelling(module, &difference), "{what}: {difference}");
    }
    let options = FingerprintOptions {
        metadata: true,
        backend_config: false,
        ..FingerprintOptions::default()
    };
    assert_eq!(fingerprint(&own, &options), fingerprint(&same, &options), "{what}");
    is_stable(&again, what);
    written.bytes
}

/// Checks that what was read from a protobuf is the same when it is written and read again.
fn is_stable(module: &Module, what: &str) {
    let once = proto::from_module(module).unwrap_or_else(|error| panic!("{what}: {error}"));
    let again = module_of_proto(once.bytes.clone()).unwrap();
    let twice = proto::from_module(&again).unwrap();
    assert!(once.bytes == twice.bytes, "{what}: not the same when written again");
}

/// Probes that XLA's reader of text takes and its reader of protobufs would not, or whose values
/// are not known.
const REFUSED: &[&str] = &[
    "header/replica_count/0",
    "header/num_partitions/0",
    "layout/minor_to_major/{0,0}",
    "layout/minor_to_major/{5,7}",
    "layout/minor_to_major/{-1,0}",
    "layout/minor_to_major/{18446744073709551615,0}",
    "layout/other-shapes/f32[2,3,4]{1,2,3}",
    "int/reduce-precision.exponent_bits/2147483648",
    "int/reduce-precision.exponent_bits/-9223372036854775808",
    "int/reduce-precision.mantissa_bits/2147483648",
    "int/reduce-precision.mantissa_bits/-9223372036854775808",
    "accuracy/{tolerance={ulps=1.5}}",
    "literal-attribute/s32[2]{0} {...}",
    "groups/iota/[2,2]<=[8]",
    "groups/iota/[2,2]<=[2]",
    "groups/iota/[2,2]<=[2,2]T(0,0)",
    "groups/iota/[-2,2]<=[4]",
    "groups/iota/[2,2]<=[-4]",
    "groups/iota/[2,2]<=[0]",
    "groups/mesh/mesh['a'=2,'b'=2], device_ids=([2,2]T(1)) {'a'}",
    "sharding/tiled/{devices=[2,2]0,1}",
    "sharding/tiled/{devices=[2,1]0,1,2}",
    "sharding/tiled/{devices=[2,2]<=[8]}",
    "sharding/tiled/{devices=[2,2]<=[2]}",
    "sharding/tiled/{devices=[0]0,1}",
    "sharding/tiled/{devices=[2,2]<=[2,2]T(0,0)}",
    "literals/scalar/s32/,",
    "literals/rank/s32[3]/{1, ...}",
    "literals/rank/s32[3]/{1, 2, 3, ...}",
    "literals/rank/c64[2]/{(1,2), ...}",
    "literals/rank/s32[2,2]/{{1,2}, ...}",
    "literals/rank/s32[2,1,2]/{{{1,2}}, ...}",
    "literals/tuples/(s32[], f32[2])/(1, {...})",
    "literals/tuples/((s32[2], s32[2]), s32[])/((), 3)",
    "literals/tuples/(token[])/()",
    "literals/tuples/b(f32[2])/{1,2}",
    "semantics/tuple-shape-depth-100",
    "semantics/tuple-shape-depth-400",
    "async/sugar/shape-first-other-count",
    "async/sugar/shape-first-empty",
    "async/operands/add-start(p0, p0, p0)",
    "async/operands/iota-start(p0), iota_dimension=0",
    "newest/iota-product/larger",
    "newest/iota-product/smaller",
    "newest/device-count/too-few",
    "newest/device-count/too-many",
];

#[test]
fn every_probe_that_xla_accepts() {
    let (mut count, mut refused) = (0, Vec::new());
    for probe in reading::probes().into_iter().filter(|probe| probe.is_accepted) {
        let Ok(module) = reading::parse(probe.text.as_bytes()) else { continue };
        count += 1;
        match proto::from_module(&module) {
            // Spelt as nobody prints it: what is read from it has the usual spelling.
            Ok(written) => is_stable(&module_of_proto(written.bytes).unwrap(), &probe.id),
            Err(error) => {
                assert!(!error.message().is_empty());
                assert!(error.span().end as usize <= module.text().len(), "{}", probe.id);
                refused.push(probe.id);
            }
        }
    }
    assert!(count >= 2000, "{count}");
    let known: HashSet<&str> = REFUSED.iter().copied().collect();
    let other: Vec<&String> = refused.iter().filter(|id| !known.contains(id.as_str())).collect();
    assert!(other.is_empty(), "{other:#?}");
    assert_eq!(refused.len(), known.len());
}

/// Shapes of the entry layout are texts of their own: what was read at a place of one of them says
/// nothing about that place in the next.
#[test]
fn entry_layouts_whose_shapes_look_alike() {
    let shapes = ["f32[3,3,16,8]{3,2,1,0}", "f32[3,3,1,16]{3,2,1,0}", "f32[3,3,16,1]{2,3,1,0}"];
    let tuples: Vec<String> = shapes.iter().map(|shape| format!("({shape}, s32[])")).collect();
    // Layouts share slots by chance, so there are many of them.
    let orders = (0..64).map(|at| format!("f32[8,128]{{1,0:T({},128)}}", 10 + at));
    let shapes: Vec<String> = tuples.into_iter().chain(orders).collect();
    let mut text = format!(
        "HloModule m, entry_computation_layout={{({})->{}}}\n\nENTRY e {{\n",
        shapes.join(", "),
        shapes[1]
    );
    for (number, shape) in shapes.iter().enumerate() {
        let root = if number == 1 { "ROOT " } else { "" };
        text += &format!("  {root}p{number} = {shape} parameter({number})\n");
    }
    text += "}\n";
    let module = reading::parse(text.as_bytes()).unwrap();
    let written = proto::from_module(&module).unwrap();
    let again = module_of_proto(written.bytes).unwrap();
    structurally_equal(&module, &again).unwrap();
}

#[test]
fn every_module_of_the_fixtures() {
    let mut count = 0;
    let folder = reading::tests_folder().join("fixtures");
    let mut named: Vec<(String, Source)> = reading::modules();
    for (name, suffix) in [
        ("sharded", ".txt.gz"),
        ("rewrites", ".txt.gz"),
        ("stand_ins", ".txt.xz"),
        ("dump_folders/cpu", "optimizations.txt.gz"),
        ("dump_folders/tpu", "optimizations.txt.gz"),
    ] {
        for path in reading::files(&folder.join(name), suffix) {
            let bytes = std::fs::read(&path).unwrap().into();
            let modules = hlofast::text::open(bytes, &OpenOptions::default()).unwrap();
            let name = path.display().to_string();
            named.extend(modules.into_iter().map(|module| (name.clone(), module.source)));
        }
    }
    for (name, source) in named {
        let module = hlofast::parse(source, &hlofast::Options::default()).unwrap();
        check(&module, &name);
        count += 1;
    }
    assert!(count >= 110, "{count}");
}

/// The lines of the text that a protobuf reads as, without the header: bytes are compared by what
/// they mean, since numbers of instructions are free.
fn lines(proto: &[u8]) -> Vec<String> {
    let text = String::from_utf8(proto::to_text(proto).unwrap().text).unwrap();
    text.lines().skip(1).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn compare_with_xla(text: &[u8], theirs: &[u8], what: &str) {
    let module = reading::parse(text).unwrap();
    let mut own = lines(&proto::from_module(&module).unwrap().bytes);
    let mut theirs = lines(theirs);
    // XLA orders computations by ids that text does not have.
    own.sort();
    theirs.sort();
    assert_eq!(own.len(), theirs.len(), "{what}");
    for (own, theirs) in own.iter().zip(&theirs) {
        // Values that the text elides are there in XLA's own protobuf alone.
        assert!(own == theirs || own.contains("constant({...})"), "{what}\n{own}\n{theirs}");
    }
}

#[test]
fn protobufs_say_what_those_of_xla_say() {
    let path = reading::tests_folder().join("fixtures/protos/probes.jsonl.gz");
    let all = String::from_utf8(reading::read(&path)).unwrap();
    let mut count = 0;
    for line in all.lines() {
        let pair: serde_json::Value = serde_json::from_str(line).unwrap();
        let (id, text) = (pair["id"].as_str().unwrap(), pair["text"].as_str().unwrap());
        let module = reading::parse(text.as_bytes()).unwrap();
        let is_sugared =
            module.rows().any(|row| module.flags(row) & hlofast::ir::Flags::SUGAR != 0);
        if is_sugared || proto::from_module(&module).is_err() {
            // Sugar hides computations and their names; some labels that XLA prints nobody reads.
            let is_known = is_sugared || REFUSED.contains(&id) || id.starts_with("dim-labels/");
            assert!(is_known, "{id}");
            continue;
        }
        let theirs = reading::base64(pair["proto"].as_str().unwrap());
        compare_with_xla(text.as_bytes(), &theirs, id);
        count += 1;
    }
    assert!(count >= 2000, "{count}");
}

#[test]
fn dumps_say_what_those_of_xla_say() {
    let folder = reading::tests_folder().join("fixtures/dump_folders");
    let mut count = 0;
    for proto in ["cpu", "tpu"].iter().flat_map(|b| reading::files(&folder.join(b), ".hlo.pb.gz")) {
        let text = proto.to_string_lossy().replace(".hlo.pb.gz", ".txt.gz");
        let (theirs, text) = (reading::read(&proto), reading::read(Path::new(&text)));
        compare_with_xla(&text, &theirs, &proto.to_string_lossy());
        count += 1;
    }
    assert!(count >= 4);
}

fn refused(text: &str, place: (u64, u64), kind: ErrorKind, message: &str) {
    let module = reading::parse(text.as_bytes()).unwrap();
    let error = proto::from_module(&module).unwrap_err();
    assert!(error.message().contains(message), "{error}");
    assert_eq!(error.kind(), kind, "{error}");
    let actual = ErrorPlace::new(module.source(), &error);
    assert_eq!((actual.line, actual.column), place, "{error}");
}

/// A module whose one instruction behind `p = f32[4]` is `line`, on line 5.
fn with(line: &str) -> String {
    format!("HloModule m\n\nENTRY e {{\n  p = f32[4]{{0}} parameter(0)\n  {line}\n}}\n")
}

#[test]
fn what_has_no_field_is_named_with_its_place() {
    use ErrorKind as K;
    for (line, column, kind, message) in [
        ("ROOT r = f32[4]{0} negate(p), speed=3", 33, K::UnexpectedAttribute, "speed of negate"),
        ("ROOT r = f32[4]{0} frobnicate(p)", 22, K::UnknownOpcode, "frobnicate is not an opcode"),
        (
            "ROOT r = f32[4]{0} negate(p), metadata={op_name=\"a\" creator=4}",
            42,
            K::UnexpectedAttribute,
            "creator in metadata",
        ),
        (
            "ROOT r = f32[4]{0} negate(p), metadata={source_line=99999999999}",
            42,
            K::InvalidAttribute,
            "source_line 99999999999",
        ),
        ("ROOT r = f32[3]{0} constant({1, ...})", 31, K::InvalidLiteral, "elided"),
        (
            "ROOT r = f32[4]{0} negate(p), sharding={devices=[3]<=[2]}",
            42,
            K::InvalidSharding,
            "different numbers of tiles and devices",
        ),
        (
            "ROOT r = f32[4]{0} negate(p), sharding={mesh['a'=4], [{'b'}]}",
            42,
            K::InvalidSharding,
            "no axis b",
        ),
        (
            "ROOT r = pred[4]{0} compare(p, p), direction=EQ, direction=NE",
            52,
            K::DuplicateAttribute,
            "direction is given twice",
        ),
        (
            "ROOT r = f32[4]{0} fft(p), fft_type=XFT, fft_length={4}",
            39,
            K::InvalidAttribute,
            "no number for XFT",
        ),
        ("ROOT r = f32[4]{1} negate(p)", 12, K::InvalidLayout, "does not order the 1 dimensions"),
    ] {
        refused(&with(line), (5, column), kind, message);
    }
    let header = |attribute: &str| with("ROOT r = f32[4]{0} negate(p)").replace("m\n\n", attribute);
    refused(&header("m, speed=3\n\n"), (1, 14), K::UnexpectedAttribute, "speed of a module");
    refused(
        &header("m, num_partitions=9999999999\n\n"),
        (1, 29),
        K::InvalidHeader,
        "lists every device",
    );
}

#[test]
fn what_xla_loses_is_listed() {
    let text = "HloModule m, allow_spmd_sharding_propagation_to_output={true}\n\nENTRY e {\n  \
        p = f32[4]{0} parameter(0)\n  ROOT r = f32[4]{0} all-to-all(p), channel_id=0, \
        replica_groups={{0,1}}, dimensions={0}\n}\n";
    let module = reading::parse(text.as_bytes()).unwrap();
    let left_out = proto::from_module(&module).unwrap().left_out;
    let words: Vec<&str> = left_out.iter().map(|(_, what)| what.as_str()).collect();
    assert_eq!(words.len(), 2);
    assert!(words[0].starts_with("allow_spmd_sharding_propagation_to_output"));
    assert!(words[1].starts_with("a channel_id below 1"));
    assert_eq!(module.bytes(left_out[1].0), b"0");
}

/// The field holds all sizes in one list; each slice has as many as what it is cut from has
/// dimensions.
#[test]
fn slices_of_a_permutation_stay_apart() {
    let array = ("f32[256,64]{1,0}", "(s32[], s32[])");
    let several = ("f32[256,64]{1,0}", "((s32[], s32[]), (s32[], s32[]))");
    let tuple = "(f32[256,64]{1,0}, f32[512]{0})";
    let each = (tuple, "((s32[], s32[]), (s32[]))");
    let several_each = (tuple, "(((s32[], s32[]), (s32[], s32[])), ((s32[])))");
    for ((data, starts), sizes) in [
        (array, "{{128,32}}"),
        (several, "{{128,32},{64,16}}"),
        (each, "{{128,32},{100}}"),
        (several_each, "{{128,32},{64,16},{100}}"),
    ] {
        let text = format!(
            "HloModule m\n\nENTRY e {{\n  in = {data} parameter(0)\n  out = {data} parameter(1)\n  \
             from = {starts} parameter(2)\n  to = {starts} parameter(3)\n  ROOT r = {data} \
             collective-permute(in, out, from, to), channel_id=1, source_target_pairs={{{{0,1}}}}, \
             slice_sizes={sizes}\n}}\n"
        );
        let module = reading::parse(text.as_bytes()).unwrap();
        let written = proto::from_module(&module).unwrap();
        let again = module_of_proto(written.bytes).unwrap();
        let root = Row(again.computation(again.entry()).root);
        let read_back = again.bytes(again.attribute(root, "slice_sizes").unwrap());
        assert_eq!(String::from_utf8_lossy(read_back), sizes);
        assert!(data == tuple || written.left_out.is_empty());
    }
}

#[test]
fn elided_constants_have_no_value() {
    let text = with("ROOT r = f32[400]{0} constant({...})");
    let module = reading::parse(text.as_bytes()).unwrap();
    let again = module_of_proto(check(&module, "elided")).unwrap();
    let root = Row(again.computation(again.entry()).root);
    assert_eq!(again.bytes(again.opcode_and_payload(root).1), b"{...}");
}

#[test]
fn wrapped_is_read_too() {
    let module = reading::parse(with("ROOT r = f32[4]{0} negate(p)").as_bytes()).unwrap();
    let bytes = proto::from_module(&module).unwrap().bytes;
    let inner = proto::to_text(&bytes).unwrap();
    assert_eq!(proto::to_text(&proto::wrapped(&bytes)).unwrap(), inner);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_texts_are_written_or_refused(number in any::<prop::sample::Index>(), seed in any::<u64>()) {
        static PROBES: LazyLock<Vec<reading::Probe>> = LazyLock::new(reading::probes);
        let probes = &*PROBES;
        let text = probes[number.index(probes.len())].text.as_bytes();
        let Ok(module) = reading::parse(&mutate(text, &mut Random(seed))) else { return Ok(()) };
        match proto::from_module(&module) {
            Ok(written) => {
                if let Ok(again) = module_of_proto(written.bytes) {
                    is_stable(&again, &String::from_utf8_lossy(module.text()));
                }
            }
            Err(error) => {
                prop_assert!(error.span().end as usize <= module.text().len());
                let _ = ErrorPlace::new(module.source(), &error);
            }
        }
    }
}
