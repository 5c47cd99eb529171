//! The orders of XLA's memory schedulers.

use crate::support::reading;
use hlofast::cost::{Backend, device_sizes};
use hlofast::ir::Module;
use hlofast::memory::{Memory, Options, Rule, Scheduler, memory, memory_listed};

fn listed(text: &str) -> (Module, Memory) {
    scheduled(text, Scheduler::List, true)
}

fn scheduled(text: &str, scheduler: Scheduler, are_deferred: bool) -> (Module, Memory) {
    let module = reading::parse(text.as_bytes()).unwrap();
    let own = memory(&module, &Options::default()).unwrap();
    let sizes = device_sizes(&module, Backend::of_module(&module));
    let listed =
        memory_listed(&module, &own, &sizes, (scheduler, Rule::InPlace, are_deferred)).unwrap();
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
    let (module, memory) = listed(include_str!("../../../tests/fixtures/orders/freeing.txt"));
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

/// Four chains that meet in one result: `b` and `c` have more bytes, `d` more users below it.
const MEETING: &str = include_str!("../../../tests/fixtures/orders/meeting.txt");

#[test]
fn a_post_order_walks_to_operands_in_their_order() {
    let (module, memory) = scheduled(MEETING, Scheduler::PostOrder, false);
    let order = ["p", "a", "c", "b", "d", "e1", "e2", "r"];
    assert_eq!(names(&module, &memory), order);
}

#[test]
fn the_depth_first_scheduler_goes_to_shared_values_then_to_bytes_then_by_name() {
    let (module, memory) = scheduled(MEETING, Scheduler::DepthFirst, false);
    let order = ["p", "d", "e1", "e2", "b", "c", "a", "r"];
    assert_eq!(names(&module, &memory), order);
}

#[test]
fn a_clone_that_xla_rematerialised_stands_for_its_original() {
    let text = "HloModule m, is_scheduled=true

ENTRY e {
  p = f32[4096]{0} parameter(0)
  large = f32[4096]{0} negate(p)
  small = f32[4]{0} slice(large), slice={[0:4]}
  other = f32[4]{0} slice(p), slice={[0:4]}
  large.remat = f32[4096]{0} negate(p)
  last = f32[4]{0} slice(large.remat), slice={[4:8]}
  ROOT r = (f32[4]{0}, f32[4]{0}, f32[4]{0}) tuple(small, other, last)
}
";
    for scheduler in [Scheduler::List, Scheduler::DepthFirst] {
        let (module, memory) = scheduled(text, scheduler, false);
        let names = names(&module, &memory);
        let at = |name: &str| names.iter().position(|own| *own == name).unwrap();
        assert!(at("large") < at("large.remat"), "{scheduler:?}");
        assert_eq!(at("large.remat") + 1, at("last"), "{scheduler:?}");
    }
}

#[test]
fn an_array_of_one_constant_is_made_where_it_is_read() {
    let text = "HloModule m, is_scheduled=true

ENTRY e {
  p = f32[8192]{0} parameter(0)
  c = f32[] constant(0)
  large = f32[8192]{0} negate(p)
  zeros = f32[4096]{0} broadcast(c), dimensions={}
  small = f32[4]{0} slice(large), slice={[0:4]}
  ROOT r = (f32[4096]{0}, f32[4]{0}) tuple(zeros, small)
}
";
    for are_deferred in [false, true] {
        let (module, memory) = scheduled(text, Scheduler::List, are_deferred);
        let names = names(&module, &memory);
        let at = |name: &str| names.iter().position(|own| *own == name).unwrap();
        assert_eq!(at("small") < at("zeros"), are_deferred);
    }
}
