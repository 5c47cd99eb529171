//! Live ranges and peaks: the seed with known figures, every rule, texts that mean harm.

use crate::support::reading;
use hlofast::ir::Module;
use hlofast::memory::{
    Classes, Constants, Memory, MemoryError, Options, Order, Rule, Sizes, Space, memory,
};
use std::fmt::Write;

fn read(text: &str) -> Module {
    reading::parse(text.as_bytes()).unwrap()
}

fn analysed(module: &Module, options: Options) -> Memory {
    memory(module, &options).unwrap()
}

fn at<'a>(module: &'a Module, memory: &Memory) -> &'a str {
    std::str::from_utf8(module.instruction_name(memory.peak_row().unwrap())).unwrap()
}

#[test]
fn the_seed_with_the_gathered_weights() {
    let Some(folder) = reading::seeds() else { return };
    let module = reading::seed(&folder, "003");
    let logical = Options {
        sizes: Sizes::Logical,
        constants: Constants::Program,
        space: Space::All,
        ..Options::default()
    };
    let values = analysed(&module, Options { rule: Rule::Values, ..logical });
    assert_eq!((values.peak.bytes, at(&module, &values)), (23_072_812, "all-reduce"));
    let in_place = analysed(&module, logical);
    assert_eq!((in_place.peak.bytes, at(&module, &in_place)), (18_878_510, "fusion"));
    let device = Options { rule: Rule::Values, ..Options::default() };
    assert_eq!(analysed(&module, device).peak.bytes, 23_073_792);
}

const CHAIN: &str = "HloModule m, is_scheduled=true

ENTRY e {
  p = f32[100] parameter(0)
  c = f32[] constant(2)
  a = f32[100] negate(p)
  b = f32[100] exponential(a)
  d = f32[50] slice(b), slice={[0:50]}
  ROOT r = f32[50] broadcast(c), dimensions={}
}
";

#[test]
fn rules_differ_where_a_result_replaces_an_operand() {
    let module = read(CHAIN);
    let values = analysed(&module, Options { rule: Rule::Values, ..Options::default() });
    // At b: p, c, a and b; with sharing b takes the place of a.
    assert_eq!(values.timeline, [400, 404, 804, 1204, 1004, 604]);
    let shared = analysed(&module, Options::default());
    assert_eq!(shared.timeline, [400, 404, 804, 804, 1004, 604]);
    assert_eq!((shared.peak.step, shared.peak.bytes), (4, 1004));
    let program = Options { constants: Constants::Program, ..Options::default() };
    assert_eq!(analysed(&module, program).timeline, [404, 404, 804, 804, 1004, 604]);
}

#[test]
fn one_memory_space_or_all() {
    let text = "HloModule m, is_scheduled=true

ENTRY e {
  p = f32[8,128]{1,0:T(8,128)} parameter(0)
  a = f32[8,128]{1,0:T(8,128)S(1)} copy(p)
  b = f32[3,5]{1,0:T(8,128)} custom-call(a), custom_call_target=\"f\"
  ROOT h = f32[3,5]{1,0:T(8,128)S(5)} copy(b)
}
";
    let module = read(text);
    let of = |space, sizes| analysed(&module, Options { space, sizes, ..Options::default() });
    assert_eq!(of(Space::One(0), Sizes::Device).timeline, [4096, 4096, 8192, 8192]);
    assert_eq!(of(Space::One(0), Sizes::Logical).timeline, [4096, 4096, 4156, 4156]);
    assert_eq!(of(Space::One(1), Sizes::Device).timeline, [0, 4096, 4096, 0]);
    assert_eq!(of(Space::One(5), Sizes::Device).timeline, [0, 0, 0, 4096]);
    assert_eq!(of(Space::All, Sizes::Device).timeline, [4096, 8192, 12288, 12288]);
}

#[test]
fn donated_parameters_and_aliases_that_contradict() {
    let text = |aliases: &str| {
        format!(
            "HloModule m, is_scheduled=true{aliases}\n\nENTRY e {{\n  p = f32[100] parameter(0)\n  \
             q = f32[7] parameter(1)\n  a = f32[100] negate(p)\n  ROOT t = (f32[100], f32[7]) \
             tuple(a, q)\n}}\n"
        )
    };
    let figures = |aliases: &str| {
        let module = read(&text(aliases));
        let memory = analysed(&module, Options::default());
        (
            memory.peak.bytes,
            memory.doubts.contradictory_aliases,
            memory.doubts.has_unreadable_aliases,
        )
    };
    assert_eq!(figures(""), (844, 0, false));
    assert_eq!(figures(", input_output_alias={ {0}: (0, {}, may-alias) }"), (444, 0, false));
    // Another size, no such parameter, no such result.
    for alias in ["{1}: (0, {})", "{0}: (9, {})", "{5}: (0, {})", "{0}: (0, {3})"] {
        let header = format!(", input_output_alias={{ {alias} }}");
        assert_eq!(figures(&header), (844, 1, false), "{alias}");
    }
}

#[test]
fn unscheduled_and_disordered_modules_say_so() {
    let module = read(&CHAIN.replace(", is_scheduled=true", ""));
    assert!(analysed(&module, Options::default()).doubts.is_unscheduled);
    let memory = analysed(&read(CHAIN), Options::default());
    assert_eq!(memory.doubts, hlofast::memory::Doubts::default());
}

#[test]
fn sizes_beyond_64_bits() {
    let text = "HloModule m, is_scheduled=true

ENTRY e {
  a = f32[2000000000,1000000000] parameter(0)
  ROOT b = f32[2000000000,1000000000] negate(a)
}
";
    let module = read(text);
    assert_eq!(memory(&module, &Options::default()).unwrap_err(), MemoryError::TooLarge);
    let text = text.replace("2000000000,1000000000", "20000000000,1000000000");
    let memory = analysed(&read(&text), Options::default());
    assert_eq!((memory.peak.bytes, memory.doubts.unknown_sizes), (0, vec![0, 1]));
}

/// Tuples whose shapes are only implied: each line doubles the parts.
#[test]
fn shapes_that_double() {
    let mut text = String::from("HloModule m\n\nENTRY e {\n  a0 = f32[] parameter(0)\n");
    for level in 1..60 {
        let below = level - 1;
        let _ = writeln!(text, "  a{level} = tuple(a{below}, a{below})");
    }
    text += "  ROOT r = f32[] get-tuple-element(a1), index=0\n}\n";
    if let Ok(module) = reading::parse(text.as_bytes()) {
        assert_eq!(memory(&module, &Options::default()).unwrap_err(), MemoryError::TooManyParts);
    }
}

/// Computations that are called over and over run once here.
#[test]
fn calls_that_double() {
    let mut text = String::from(
        "HloModule m\n\nf0 {\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] add(p, p)\n}\n\n",
    );
    for level in 1..=200 {
        let below = level - 1;
        let _ = write!(
            text,
            "f{level} {{\n  p = f32[8] parameter(0)\n  a = f32[8] call(p), to_apply=f{below}\n  \
             ROOT r = f32[8] call(a), to_apply=f{below}\n}}\n\n"
        );
    }
    text += "ENTRY e {\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] call(p), to_apply=f200\n}\n";
    let memory = analysed(&read(&text), Options::default());
    assert_eq!(memory.sequence().len(), 2 + 3 * 200 + 2);
    assert_eq!(memory.doubts.repeated_calls.len(), 200);
}

/// A tuple of very many elements, handed through a loop, stays in proportion to the text.
#[test]
fn a_wide_loop() {
    let count = 20_000;
    let types = vec!["f32[8]"; count].join(", ");
    let list = |name: &str| {
        let names: Vec<String> = (0..count).map(|index| format!("{name}{index}")).collect();
        names.join(", ")
    };
    let mut text =
        format!("HloModule m, is_scheduled=true\n\nb {{\n  p = ({types}) parameter(0)\n");
    for index in 0..count {
        let _ = writeln!(text, "  g{index} = f32[8] get-tuple-element(p), index={index}");
        let _ = writeln!(text, "  n{index} = f32[8] negate(g{index})");
    }
    let _ = writeln!(text, "  ROOT t = ({types}) tuple({})\n}}\n", list("n"));
    let _ = write!(
        text,
        "c {{\n  p = ({types}) parameter(0)\n  ROOT r = pred[] constant(false)\n}}\n\n\
         ENTRY e {{\n  p = ({types}) parameter(0)\n  \
         ROOT w = ({types}) while(p), condition=c, body=b\n}}\n"
    );
    let memory = analysed(&read(&text), Options::default());
    assert_eq!(memory.doubts.mismatched, 0);
    let bytes = 32 * count as i64;
    assert!(memory.peak.bytes >= bytes && memory.peak.bytes < 3 * bytes, "{}", memory.peak.bytes);
}

/// Whatever the text, there is a figure or an error.
#[test]
fn any_dump_has_a_figure() {
    for dump in reading::dumps() {
        let Ok(module) = reading::parse(&dump.bytes) else { continue };
        for rule in [Rule::Values, Rule::InPlace] {
            for space in [Space::One(0), Space::All] {
                let memory = memory(&module, &Options { rule, space, ..Options::default() });
                let memory = memory.unwrap_or_else(|error| panic!("{}: {error}", dump.name));
                assert_eq!(memory.timeline.len(), memory.sequence().len());
                assert_eq!(memory.doubts.mismatched, 0, "{}", dump.name);
                assert!(memory.timeline.iter().all(|bytes| *bytes >= 0), "{}", dump.name);
            }
        }
    }
}

#[test]
fn orders_hold_the_same_instructions() {
    for dump in reading::dumps() {
        let Ok(module) = reading::parse(&dump.bytes) else { continue };
        let sequence = |order| {
            let memory = analysed(&module, Options { order, ..Options::default() });
            assert_eq!(memory.doubts.disordered, 0, "{} {order:?}", dump.name);
            let mut rows = memory.sequence().to_vec();
            rows.sort_unstable();
            rows
        };
        let text = sequence(Order::Text);
        assert_eq!(sequence(Order::PostOrder), text, "{}", dump.name);
    }
}

/// Two chains that both grow before they shrink: one after the other takes half as much.
#[test]
fn a_post_order_finishes_one_chain_first() {
    let mut text = String::from("HloModule m\n\nENTRY e {\n  p = f32[] parameter(0)\n");
    for chain in ["a", "b"] {
        let _ = writeln!(text, "  {chain}0 = f32[1000] broadcast(p), dimensions={{}}");
    }
    for chain in ["a", "b"] {
        let _ = writeln!(text, "  {chain}1 = f32[10] slice({chain}0), slice={{[0:10]}}");
    }
    text += "  ROOT r = f32[10] add(a1, b1)\n}\n";
    let module = read(&text);
    let peak = |order| analysed(&module, Options { order, ..Options::default() }).peak.bytes;
    assert_eq!(peak(Order::Text), 4 + 8000 + 40);
    assert_eq!(peak(Order::PostOrder), 4 + 4000 + 80);
}

fn classes(text: &str) -> Vec<(String, &'static str)> {
    let module = read(text);
    let memory = analysed(&module, Options::default());
    let analyses = hlofast::Analyses::new(&module);
    let classes = Classes::new(&module, &memory, analyses.attribution());
    let name = |row| String::from_utf8_lossy(module.instruction_name(row)).into_owned();
    let values = memory.all_values(&module);
    values.iter().map(|value| (name(value.row), classes.of(value).as_str())).collect()
}

#[test]
fn what_values_are_for() {
    let text = "HloModule m, is_scheduled=true, num_partitions=2

s {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT a = f32[] add(x, y)
}

ENTRY e {
  w = f32[8,4] parameter(0), metadata={op_name=\"state.params['w']\"}
  mu = f32[8,4] parameter(1), metadata={op_name=\"state.opt_state[0].mu['w']\"}
  b = f32[16] parameter(2), metadata={op_name=\"batch\"}
  c = f32[] constant(2)
  v = bf16[8,4] convert(w)
  g = bf16[16,4] all-gather(v), dimensions={0}, channel_id=1, replica_groups={{0,1}}
  h = f32[16] cosine(b), metadata={op_name=\"jit(f)/jvp(M)/cos\"}
  t = f32[16] sine(h), metadata={op_name=\"jit(f)/jvp(M)/sin\"}
  d = f32[16] negate(t), metadata={op_name=\"jit(f)/jvp(M)/neg\"}
  q = f32[16] multiply(d, h), metadata={op_name=\"jit(f)/transpose(jvp(M))/mul\"}
  k = f32[8,4] custom-call(q, g), custom_call_target=\"f\", metadata={op_name=\"jit(f)/transpose(jvp(M))/k\"}
  u = f32[3] custom-call(k), custom_call_target=\"f\"
  o = f32[8,4] custom-call(k, u, c), custom_call_target=\"f\", metadata={op_name=\"jit(f)/sub\"}
  ROOT r = (f32[8,4], f32[8,4]) tuple(o, mu)
}
";
    let classes = classes(text);
    let of = |name: &str| classes.iter().find(|entry| entry.0 == name).unwrap().1;
    assert_eq!(of("w"), "parameter");
    assert_eq!(of("mu"), "optimizer_state");
    assert_eq!(of("c"), "constant");
    assert_eq!(of("g"), "gathered_weight");
    assert_eq!(of("h"), "residual");
    assert_eq!(of("t"), "temporary");
    assert_eq!(of("k"), "gradient");
    // Without a name: between backward and optimizer work.
    assert_eq!(of("u"), "temporary");
    assert_eq!(of("o"), "output");
}

#[test]
fn without_the_largest_buffer() {
    let module = read(CHAIN);
    let memory = analysed(&module, Options::default());
    let largest = memory.live_at(&module, memory.peak.step).remove(0);
    assert_eq!(largest.bytes, 400);
    let next = memory.peak_without(largest.buffer);
    assert_eq!((next.step, next.bytes), (4, 604));
    assert_eq!(memory.peak_without(u32::MAX), memory.peak);
}
