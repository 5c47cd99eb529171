//! Profiles: hostile sizes and nesting, and what holds of every profile that is read.

use crate::support::profile;
use crate::support::wire::Message;
use hlofast::ErrorKind;
use hlofast::profile::{File, Loaded, is_profile, load};
use proptest::prelude::*;

fn read(bytes: Vec<u8>) -> Result<Loaded, ErrorKind> {
    let file = File { bytes: bytes.into(), path: None };
    load(&[file], None).map_err(|(_, error)| error.kind())
}

/// A space with one plane of one line.
fn space(plane: &str, line: &str, events: &[Message]) -> Vec<u8> {
    let mut own = Message::new().bytes(2, line);
    for event in events {
        own = own.bytes(4, event);
    }
    Message::new().bytes(1, Message::new().bytes(2, plane).bytes(3, own)).0
}

#[test]
fn a_million_events() {
    let event = Message::new().number(1, 1).number(2, 7).number(3, 5);
    let events = vec![event; 1_000_000];
    let loaded = read(space("/device:TPU:0", "XLA Ops", &events)).unwrap();
    assert_eq!(loaded.profile.events.len(), events.len());
    let ends = "]}";
    let event = r#"{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1,"name":"a"}"#;
    let name = r#"{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:GPU:0"}}"#;
    let line = r#"{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"Stream #1"}}"#;
    let mut text = format!("{{\"traceEvents\":[{name},{line}");
    for _ in 0..1_000_000 {
        text.push(',');
        text.push_str(event);
    }
    let loaded = read((text + ends).into_bytes()).unwrap();
    assert_eq!(loaded.profile.events.len(), 1_000_000);
}

/// Each event on a device, of a program and with a name of its own: work stays linear.
#[test]
fn everything_different() {
    let name = |id: i64, text: String| {
        Message::new().number(1, id).bytes(2, Message::new().number(1, id).bytes(2, text))
    };
    let text = |id: i64, value: String| Message::new().number(1, id).bytes(5, value);
    let mut line = Message::new().bytes(2, "thread");
    for at in 0..100_000 {
        let event = Message::new()
            .number(2, at)
            .bytes(4, text(1, format!("op{at}")))
            .bytes(4, text(2, format!("jit_f{at}")))
            .bytes(4, Message::new().number(1, 3).number(4, at))
            .bytes(4, Message::new().number(1, 4).number(4, 9))
            .bytes(4, Message::new().number(1, 5).number(4, at));
        line = line.bytes(4, event);
    }
    let mut plane = Message::new().bytes(2, "/host:CPU").bytes(3, line);
    let names = ["hlo_op", "hlo_module", "device_ordinal", "program_id", "run_id"];
    for (id, own) in (1..).zip(names) {
        plane = plane.bytes(5, name(id, own.to_owned()));
    }
    let loaded = read(Message::new().bytes(1, plane).0).unwrap();
    assert_eq!(loaded.profile.devices.len(), 100_000);
    assert_eq!(loaded.profile.programs.len(), 100_000);
    assert_eq!(loaded.profile.launches.len(), 100_000);
    hlofast::table::profiled_programs(&loaded);
    hlofast::table::profiled_devices(&loaded);
}

/// Sums of times that fit 64 bits one by one.
#[test]
fn the_longest_events() {
    let longest = |at| Message::new().number(2, at).number(3, i64::MAX);
    let events: Vec<Message> = [i64::MIN, -1, 0, i64::MAX].map(longest).to_vec();
    for (plane, line) in [("/device:TPU:0", "XLA Modules"), ("/device:GPU:0", "Stream #1")] {
        assert!(profile::read(&space(plane, line, &events)));
    }
}

#[test]
fn lengths_beyond_the_file() {
    let whole = space("/device:TPU:0", "XLA Ops", &[Message::new().number(1, 1)]);
    let mut huge = whole.clone();
    huge.extend([0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
    assert_eq!(read(huge).err(), Some(ErrorKind::InvalidProto));
    // An event that claims more than its line has.
    let line = Message::new().bytes(2, "XLA Ops").0;
    let line = [&line[..], &[0x22, 0x7f, 8, 1]].concat();
    let plane = Message::new().bytes(2, "/device:TPU:0").bytes(3, line);
    assert_eq!(read(Message::new().bytes(1, plane).0).err(), Some(ErrorKind::InvalidProto));
    assert!(is_profile(&whole));
}

#[test]
fn nested_values_in_traces() {
    let deep = "[".repeat(1 << 20);
    let text = format!("{{\"traceEvents\":[],\"a\":{deep}");
    assert_eq!(read(text.into_bytes()).err(), Some(ErrorKind::TooDeep));
    let text = format!("{{\"traceEvents\":[{{\"args\":{{\"a\":{deep}");
    assert_eq!(read(text.into_bytes()).err(), Some(ErrorKind::TooDeep));
    for text in ["{\"traceEvents\":[{\"ts\":\"", "{\"traceEvents\":[{\"ts\":1e999}]}x"] {
        read(text.as_bytes().to_vec()).ok();
    }
}

fn arbitrary_stat() -> impl Strategy<Value = Message> {
    let value = prop_oneof![
        any::<i64>().prop_map(|value| (3, Some(value), String::new())),
        any::<i64>().prop_map(|value| (4, Some(value), String::new())),
        (0..12i64).prop_map(|value| (7, Some(value), String::new())),
        "[a-z.0-9%= ]{0,8}".prop_map(|text| (5, None, text)),
        "[a-z.0-9]{0,8}".prop_map(|text| (8, None, text)),
    ];
    (0..12i64, value).prop_map(|(id, (field, number, text))| {
        let own = Message::new().number(1, id);
        match number {
            Some(number) => own.number(field, number),
            None => own.bytes(field, text),
        }
    })
}

fn arbitrary_event() -> impl Strategy<Value = Message> {
    let stats = prop::collection::vec(arbitrary_stat(), 0..4);
    (0..4i64, any::<i64>(), any::<i64>(), any::<bool>(), stats).prop_map(
        |(id, start, length, aggregated, stats)| {
            let own = Message::new().number(1, id).number(if aggregated { 5 } else { 2 }, start);
            stats.iter().fold(own.number(3, length), |own, stat| own.bytes(4, stat))
        },
    )
}

fn arbitrary_plane() -> impl Strategy<Value = Message> {
    const NAMES: &[&str] =
        &["/device:TPU:0", "/device:TPU:0 SparseCore 1", "/device:GPU:3", "/host:CPU", "x"];
    const LINES: &[&str] =
        &["XLA Ops", "XLA Modules", "Steps", "Async XLA Ops", "Stream #1", "Sparse Core Ops", ""];
    let line = (prop::sample::select(LINES), any::<i64>());
    let line = (line, prop::collection::vec(arbitrary_event(), 0..6));
    let line = line.prop_map(|((name, timestamp), events)| {
        let own = Message::new().bytes(2, name).number(3, timestamp);
        events.iter().fold(own, |own, event| own.bytes(4, event))
    });
    (prop::sample::select(NAMES), prop::collection::vec(line, 0..4)).prop_map(|(name, lines)| {
        let own = Message::new().number(1, 1).bytes(2, name);
        let own = lines.iter().fold(own, |own, line| own.bytes(3, line));
        let keys = [
            "hlo_op",
            "hlo_module",
            "program_id",
            "run_id",
            "device_ordinal",
            "step_num",
            "_p",
            "_c",
            "_pt",
            "_ct",
        ];
        let own = (1..).zip(keys).fold(own, |own, (id, key)| {
            let metadata = Message::new().number(1, id).bytes(2, key);
            own.bytes(5, Message::new().number(1, id).bytes(2, metadata))
        });
        let kinds = ["jit_f(7)", "%a.1 = f32[] add()", "end: a.1", "3"];
        (0..).zip(kinds).fold(own, |own, (id, kind)| {
            let metadata = Message::new().number(1, id).bytes(2, kind);
            own.bytes(4, Message::new().number(1, id).bytes(2, metadata))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the numbers are, columns fit together and times do not overflow.
    #[test]
    fn any_space(planes in prop::collection::vec(arbitrary_plane(), 1..4)) {
        let space = planes.iter().fold(Message::new(), |own, plane| own.bytes(1, plane));
        prop_assert!(profile::read(&space.0));
    }

    #[test]
    fn any_bytes_after_a_plane(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut space = space("/device:TPU:0", "XLA Ops", &[]);
        space.extend(bytes);
        profile::read(&space);
    }
}
