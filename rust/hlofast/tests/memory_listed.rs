//! The order of XLA's list scheduler: what frees most runs first.

use crate::support::reading;
use hlofast::cost::{Backend, device_sizes};
use hlofast::ir::Module;
use hlofast::memory::{Memory, Options, Rule, Scheduler, memory, memory_listed};

fn listed(text: &str) -> (Module, Memory) {
    scheduled(text, Scheduler::List)
}

fn scheduled(text: &str, scheduler: Scheduler) -> (Module, Memory) {
    let module = reading::parse(text.as_bytes()).unwrap();
    let own = memory(&module, &Options::default()).unwrap();
    let sizes = device_sizes(&module, Backend::of_module(&module));
    let listed = memory_listed(&module, &own, &sizes, (scheduler, Rule::InPlace)).unwrap();
    assert_eq!(listed.doubts.disordered, 0);
    assert_eq!(listed.sequence().len(), own.sequence().len());
    (module, listed)
}

fn names<'a>(module: &'a Module, memory: &Memory) -> Vec<&'a str> {
    let rows = memory.sequence().iter();
    let name = |row: &u32| module.instruction_name(hlofast::ir::Row(*row));
    rows.map(|row| std::str::from_utf8(name(row)).unwrap()).collect()
}

#[test]
fn a_value_that_can_be_freed_does_not_wait() {
    // In the text both large values are in memory at once.
    let text = "HloModule m, is_scheduled=true

ENTRY e {
  p = f32[4096]{0} parameter(0)
  large.1 = f32[4096]{0} negate(p)
  large.2 = f32[4096]{0} abs(p)
  small.1 = f32[4]{0} slice(large.1), slice={[0:4]}
  small.2 = f32[4]{0} slice(large.2), slice={[0:4]}
  ROOT r = f32[4]{0} add(small.1, small.2)
}
";
    let (module, memory) = listed(text);
    let order = ["p", "large.2", "small.2", "large.1", "small.1", "r"];
    assert_eq!(names(&module, &memory), order);
    assert_eq!(memory.peak.bytes, 2 * 16384 + 2 * 16);
}

#[test]
fn bodies_are_ordered_too_and_moves_to_fast_memory_follow_their_readers() {
    let text = "HloModule m, is_scheduled=true

body {
  s = (s32[], f32[4096]{0}, f32[4]{0}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4096]{0} get-tuple-element(s), index=1
  y = f32[4]{0} get-tuple-element(s), index=2
  start = (f32[4]{0:S(1)}, f32[4]{0}, u32[]) copy-start(y)
  large.1 = f32[4096]{0} negate(x)
  large.2 = f32[4096]{0} abs(x)
  small.1 = f32[4]{0} slice(large.1), slice={[0:4]}
  small.2 = f32[4]{0} slice(large.2), slice={[0:4]}
  done = f32[4]{0:S(1)} copy-done(start)
  sum = f32[4]{0} add(small.1, small.2)
  new = f32[4]{0} add(sum, done)
  ROOT t = (s32[], f32[4096]{0}, f32[4]{0}) tuple(i, x, new)
}

condition {
  s.1 = (s32[], f32[4096]{0}, f32[4]{0}) parameter(0)
  ROOT c = pred[] constant(false)
}

ENTRY e {
  p = (s32[], f32[4096]{0}, f32[4]{0}) parameter(0)
  ROOT w = (s32[], f32[4096]{0}, f32[4]{0}) while(p), condition=condition, body=body
}
";
    let (module, memory) = listed(text);
    let names = names(&module, &memory);
    let at = |name: &str| names.iter().position(|own| *own == name).unwrap();
    assert_eq!([at("large.2") + 1, at("large.1") + 1], [at("small.2"), at("small.1")]);
    assert_eq!([at("start") + 1, at("done") + 1], [at("done"), at("new")]);
    assert_eq!(names.last(), Some(&"w"));
}
