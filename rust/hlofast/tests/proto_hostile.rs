//! Protobufs that are cut off, broken or made to do harm: an error with its place, and work in
//! proportion to the bytes.

use crate::support::wire::{Message, computation, instruction, module, negation, shape};
use crate::support::{invariants, reading};
use hlofast::proto::{is_proto, to_text};
use hlofast::text::OpenOptions;
use hlofast::{ErrorKind, ParseError};
use proptest::prelude::*;

fn text(message: &Message) -> Result<String, ParseError> {
    to_text(&message.0).map(|translation| String::from_utf8(translation.text).unwrap())
}

#[track_caller]
fn refused(message: &Message, what: &str) {
    let error = text(message).unwrap_err();
    assert!(error.message().contains(what), "{error}");
    assert!(error.message().contains("at byte"), "{error}");
    assert_eq!(error.kind(), ErrorKind::InvalidProto);
    assert!(error.span().start as usize <= message.0.len());
}

#[test]
fn a_module_by_hand() {
    let expected = "HloModule m\n\n\
        ENTRY %e (p: f32[2]) -> f32[2] {\n  \
        %p = f32[2]{0} parameter(0)\n  \
        ROOT %r = f32[2]{0} negate(%p)\n}\n";
    assert_eq!(text(&negation()).unwrap(), expected);
    // Alone, and inside of every message that XLA puts around it.
    let proto = Message::new().bytes(1, negation());
    let snapshot = Message::new().bytes(1, &proto).bytes(4, "cpu");
    // Arguments, the result and the platform have the numbers of a module's own fields.
    let literal = || Message::new().bytes(1, Message::new().0);
    let ran = Message::new().bytes(1, &proto).bytes(2, literal()).bytes(3, literal());
    let ran = ran.bytes(4, "cpu");
    let mut delimited = Message::new();
    delimited.varint(proto.0.len() as u64);
    delimited.0.extend_from_slice(&proto.0);
    delimited.0.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x0b, 1, 2, 3, 4]);
    for container in [&proto, &snapshot, &ran, &delimited] {
        assert_eq!(text(container).unwrap(), expected);
        assert!(is_proto(&container.0));
    }
    assert!(is_proto(&negation().0));
}

#[test]
fn what_is_no_protobuf() {
    for text in [&b"HloModule m\n"[..], b"\n\nHloModule m\n\nENTRY e {\n", b"", b"\n", b"\x0a"] {
        assert!(!is_proto(text));
    }
    let other = Message::new().bytes(1, "\u{1}name").bytes(2, "value");
    let error = text(&other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHlo);
    assert!(error.message().contains("contains no HLO module"), "{error}");
}

#[test]
fn ids_that_lead_nowhere() {
    let parameter = || instruction(0, "p", "parameter");
    let negate = |id, operand| instruction(id, "r", "negate").packed(36, &[operand]);
    let entry = |instructions: &[Message]| module(0, &[computation(0, "e", 1, instructions)]);
    refused(&entry(&[parameter(), negate(1, 7)]), "id 7 is not an instruction before");
    refused(&entry(&[parameter(), negate(1, 1)]), "id 1 is not an instruction before");
    refused(&entry(&[negate(1, 0), parameter()]), "id 0 is not an instruction before");
    refused(&entry(&[parameter(), parameter()]), "two instructions with id 0");
    refused(&entry(&[parameter()]), "root's id 1");
    refused(&entry(&[]), "without instructions");
    refused(&entry(&[parameter(), negate(-1, 0)]), "negative id");
    let call = |callee| instruction(1, "r", "call").packed(36, &[0]).packed(38, &[callee]);
    refused(&entry(&[parameter(), call(0)]), "id 0 is not a computation before");
    refused(&entry(&[parameter(), call(5)]), "id 5 is not a computation before");
    let two = [computation(0, "a", 0, &[parameter()]), computation(0, "b", 0, &[parameter()])];
    refused(&module(0, &two), "two computations with id 0");
    refused(&module(3, &two[..1]), "entry's id 3");
    // Ids of far more than there are instructions take no memory.
    let far = entry(&[instruction(0x7fff_fff0, "p", "parameter"), negate(1, 0x7fff_fff0)]);
    assert!(text(&far).is_ok());
    let twice = [instruction(5_000, "p", "parameter"), instruction(5_000, "q", "parameter")];
    refused(&entry(&twice), "two instructions with id 5000");
}

#[test]
fn schedules_that_do_not_fit() {
    let with = |ids: &[i64]| {
        let sequence = Message::new().bytes(2, Message::new().packed(1, ids));
        Message(negation().0).bytes(7, Message::new().bytes(1, sequence))
    };
    assert!(text(&with(&[0, 1])).unwrap().contains("is_scheduled=true"));
    refused(&with(&[0]), "1 of 2 instructions");
    refused(&with(&[0, 0]), "an instruction twice");
    refused(&with(&[0, 9]), "unknown id 9");
}

#[test]
fn shapes_and_literals_that_do_not_fit() {
    let constant = |shape: Message, literal: Message| {
        let instruction = Message::new().bytes(1, "c").bytes(2, "constant").bytes(3, shape);
        module(0, &[computation(0, "e", 0, &[instruction.bytes(8, literal)])])
    };
    let array = |sizes: &[i64]| Message::new().number(2, 4).packed(3, sizes);
    let huge = array(&[1 << 40, 1 << 40]);
    refused(&constant(array(&[2]), Message::new().bytes(1, &huge)), "too many elements");
    let many = array(&[1 << 40]);
    refused(&constant(array(&[2]), Message::new().bytes(1, &many)), "0 values");
    refused(&constant(array(&[-2]), Message::new()), "dimension of size -2");
    refused(&constant(Message::new().number(2, 99), Message::new()), "element type 99");
    // Without elements there may be any number of rows.
    let empty = array(&[1 << 40, 0]);
    assert!(text(&constant(empty.clone(), Message::new().bytes(1, &empty))).is_ok());
    let layout = |order: &[i64]| array(&[2, 2]).bytes(5, Message::new().packed(1, order));
    refused(&constant(layout(&[1, 1]), Message::new()), "a dimension twice");
    refused(&constant(layout(&[2, 0]), Message::new()), "does not have");
    refused(&constant(layout(&[0]), Message::new()), "a layout of 1 dimensions");
    let deep = (0..1000).fold(shape(), |inside, _| Message::new().number(2, 13).bytes(4, inside));
    refused(&constant(deep, Message::new()), "deeper than 100");
}

#[test]
fn literals_are_whole_and_stand_in_memory_order() {
    let shape = |order: &[i64]| {
        let layout = Message::new().packed(1, order);
        Message::new().number(2, 4).packed(3, &[2, 6]).bytes(5, layout)
    };
    let text_of = |order: &[i64], values: &[i64]| {
        let literal = Message::new().bytes(1, shape(order)).packed(4, values);
        let instruction =
            Message::new().bytes(1, "c").bytes(2, "constant").bytes(3, shape(&[1, 0]));
        text(&module(0, &[computation(0, "e", 0, &[instruction.bytes(8, literal)])])).unwrap()
    };
    let rows = "constant({ { 1, 2, 3, 4, 5, 6 }, { -1, -2, -3, -4, -5, -6 } })";
    let by_row = [1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6];
    assert!(text_of(&[1, 0], &by_row).contains(rows));
    let by_column = [1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6];
    assert!(text_of(&[0, 1], &by_column).contains(rows));
}

#[test]
fn a_proto_of_references_is_not_a_bomb() {
    // Two bytes for each operand, 60,000 for its name.
    let name = "n".repeat(60_000);
    let parameter = instruction(0, &name, "parameter");
    let tuple = instruction(1, "t", "tuple").packed(36, &vec![0; 60_000]);
    let error = text(&module(0, &[computation(0, "e", 1, &[parameter, tuple])])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}

#[test]
fn lengths_that_are_only_claimed() {
    for length in [1u64 << 20, 1 << 40, u64::MAX] {
        let mut message = Message::new().bytes(1, "m");
        message.varint(3 << 3 | 2);
        message.varint(length);
        message.0.extend_from_slice(&negation().0);
        let error = text(&message).unwrap_err();
        assert!(error.message().contains("bytes where"), "{error}");
    }
}

#[test]
fn names_that_text_cannot_have() {
    let parameter = instruction(0, "a b\"\n", "parameter");
    let root = instruction(1, "1x", "negate").packed(36, &[0]);
    let module = module(0, &[computation(0, "e{", 1, &[parameter, root])]);
    let text = text(&module).unwrap();
    assert!(text.contains("%a_b__ = ") && text.contains("%_1x = ") && text.contains("%e_ ("));
    reading::parse(text.as_bytes()).unwrap();
}

fn sample() -> Vec<u8> {
    let folder = reading::tests_folder().join("fixtures/dump_folders/cpu");
    reading::read(&folder.join("module_0000.jit_train_step.before_optimizations.hlo.pb.gz"))
}

/// Reads bytes as a user would; nothing but an error may come of it.
fn open(bytes: &[u8]) -> Result<hlofast::ir::Module, ParseError> {
    let source = hlofast::unpack(bytes.to_vec().into(), &OpenOptions::default())?;
    hlofast::parse(source, &hlofast::Options::default())
}

#[test]
fn cut_off_anywhere() {
    let whole = sample();
    for end in (0..whole.len()).step_by(97) {
        let error = open(&whole[..end]).unwrap_err();
        assert!(!error.message().is_empty());
        if end > 8 {
            assert!(
                matches!(error.kind(), ErrorKind::InvalidProto | ErrorKind::NotHlo),
                "{end} {error:?}"
            );
        }
    }
}

/// The module may be whole where what stands behind it is not.
#[test]
fn cut_off_behind_the_module() {
    let folder = reading::tests_folder().join("fixtures/dump_folders/cpu");
    let name = "module_0000.jit_train_step.cpu_after_optimizations.hlo.pb.gz";
    let whole = reading::read(&folder.join(name));
    assert!(open(&whole).unwrap().source().buffer_assignment().is_some());
    for behind in [1, 100, 10_000] {
        let error = open(&whole[..whole.len() - behind]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidProto, "{behind}: {error:?}");
    }
    let snapshot = |module: &[u8]| Message::new().bytes(1, module).bytes(2, vec![0; 50]).0;
    assert!(open(&snapshot(&whole)).is_ok());
    let cut = snapshot(&whole);
    let error = open(&cut[..cut.len() - 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidProto);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_changed_anywhere(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = sample();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(module) = open(&bytes) {
            invariants::check_invariants(&module);
        }
    }

    #[test]
    fn any_bytes_inside_a_module(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let parameter = instruction(0, "p", "parameter");
        let broken = Message([parameter.0.clone(), bytes.clone()].concat());
        let _ = text(&module(0, &[computation(0, "e", 0, &[parameter, broken])]));
        let _ = to_text(&bytes);
        let _ = to_text(&module(0, &[Message(bytes)]).0);
    }
}

/// A computation that one asynchronous instruction wraps and another calls: XLA's text shows the
/// call and hides the computation, which XLA then cannot read back.
#[test]
fn what_asynchronous_sugar_hides_from_others() {
    let start = |id: i64, name: &str, operand: i64, callee: i64| {
        let results = Message::new().number(2, 13).bytes(4, shape());
        let results = Message::new().number(2, 13).bytes(4, results).bytes(4, shape());
        let start = Message::new().bytes(1, name).bytes(2, "async-start").bytes(3, results);
        start.number(35, id).packed(36, &[operand]).packed(38, &[callee])
    };
    let done = |id: i64, name: &str| instruction(id, name, "async-done").packed(36, &[id - 1]);
    let negate = [instruction(0, "x", "parameter"), instruction(1, "n", "negate").packed(36, &[0])];
    let call = [
        instruction(0, "q", "parameter"),
        instruction(1, "c", "call").packed(36, &[0]).packed(38, &[1]),
    ];
    let entry = [
        instruction(0, "p", "parameter"),
        start(1, "s", 0, 2),
        done(2, "d"),
        start(3, "t", 2, 1),
        done(4, "u"),
    ];
    let computations = [
        computation(1, "callee", 1, &negate),
        computation(2, "wrapped", 1, &call),
        computation(3, "e", 4, &entry),
    ];
    let proto = module(3, &computations);
    let source = hlofast::unpack(proto.0.into(), &OpenOptions::default()).unwrap();
    let read = hlofast::parse(source, &hlofast::Options::default()).unwrap();
    assert_eq!(read.computations().len(), 3);
    assert_eq!(read.all_calls().len(), 3);
    let text = "HloModule m\n\nENTRY %e (p: f32[2]) -> f32[2] {\n  %p = f32[2]{0} parameter(0)\n  \
                %s = ((f32[2]{0}), f32[2]{0}) call-start(%p), to_apply=%callee\n  \
                %d = f32[2]{0} call-done(%s)\n  \
                %t = ((f32[2]{0}), f32[2]{0}) negate-start(%d)\n  \
                ROOT %u = f32[2]{0} negate-done(%t)\n}\n";
    let error = reading::parse(text.as_bytes()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownComputation);
    assert!(error.help().is_some_and(|help| help.contains("protobuf")), "{error:?}");
    let plain = "e {\n  a = f32[] call(), to_apply=%none\n}\n";
    assert_eq!(reading::parse(plain.as_bytes()).unwrap_err().help(), None);
}

/// What is dropped for a fault leaves operands what they are.
#[test]
fn collected_faults_of_a_proto() {
    let twice = [
        instruction(0, "p", "parameter"),
        instruction(1, "a", "negate").packed(36, &[0]),
        instruction(2, "a", "cosine").packed(36, &[1]),
        instruction(3, "b", "sine").packed(36, &[1]),
        instruction(4, "r", "add").packed(36, &[1, 3]),
    ];
    let proto = module(0, &[computation(0, "e", 4, &twice)]);
    let read = |collect_errors: bool| {
        let bytes = proto.0.clone().into();
        let source = hlofast::unpack(bytes, &OpenOptions::default()).unwrap();
        let options = hlofast::Options { collect_errors, ..hlofast::Options::default() };
        hlofast::parse(source, &options)
    };
    assert_eq!(read(false).unwrap_err().kind(), ErrorKind::DuplicateInstruction);
    let module = read(true).unwrap();
    assert_eq!(module.errors().len(), 1);
    assert_eq!(module.columns().operands, [0, 1, 1, 2]);
}
