//! One stage for the analyses of a module: made once, shared between contexts, equal to what the
//! functions behind them say.

use hlofast::comms::Mesh;
use hlofast::cost::custom_call::{CustomCallCost, CustomCallKind};
use hlofast::cost::{self, GroupKey};
use hlofast::flow::{AttributionOptions, Phase, Rules};
use hlofast::ir::{Module, Row};
use hlofast::memory::{self, Rule};
use hlofast::text::Source;
use hlofast::time::Device;
use hlofast::{Analyses, Context, Options, Provenance, lint, parse, stages, time};
use std::ptr;
use std::sync::Arc;

const STEP: &str = "HloModule step, num_partitions=8, is_scheduled=true

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,4] parameter(1)
  y = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  k = f32[8,4] custom-call(y), custom_call_target=\"mine\"
  ROOT r = f32[8,4] all-reduce(k), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=sum
}
";

fn module() -> Module {
    parse(Source::from_slice(STEP.as_bytes()), &Options::default()).unwrap()
}

fn row(module: &Module, name: &str) -> u32 {
    module.find_instructions(name.as_bytes())[0]
}

fn mesh(text: &str) -> Option<Mesh> {
    Some(Mesh::parse(text).unwrap())
}

/// That the custom call takes a million FLOPs.
fn told(module: &Module) -> cost::Options {
    let call = CustomCallCost {
        flops: Some(1_000_000),
        transcendentals: None,
        bytes_read: None,
        bytes_written: None,
        provenance: Provenance::Modelled,
        contraction: None,
        kind: CustomCallKind::Unknown,
        reason: "stated",
    };
    cost::Options { overrides: vec![(row(module, "k"), call)], ..Default::default() }
}

fn device() -> Device {
    Device {
        peaks: vec![("f32".to_owned(), 1e9)],
        hbm_bandwidth: Some(1e9),
        jax_devices: Some(1.0),
        ..Device::default()
    }
}

#[test]
fn every_result_is_made_once() {
    let module = module();
    let analyses = Analyses::new(&module);
    assert!(ptr::eq(analyses.facts(), analyses.facts()));
    assert!(ptr::eq(analyses.cost(), analyses.cost()));
    assert!(ptr::eq(analyses.attribution(), analyses.attribution()));
    assert!(ptr::eq(analyses.uncertain(), analyses.uncertain()));
    assert!(ptr::eq(analyses.bytes_accessed(), analyses.bytes_accessed()));
    // What collectives are sent along is made of the collectives that were found before.
    let collectives = Arc::clone(analyses.collectives());
    assert!(Arc::ptr_eq(&collectives, &analyses.sent().collectives));
    assert!(ptr::eq(analyses.memory().unwrap(), analyses.memory().unwrap()));
    assert!(ptr::eq(analyses.account().unwrap(), analyses.account().unwrap()));
    assert!(ptr::eq(analyses.remat(), analyses.remat()));
    assert!(ptr::eq(analyses.lint(), analyses.lint()));
    assert!(ptr::eq(analyses.stages(), analyses.stages()));
    assert!(ptr::eq(analyses.summary(), analyses.summary()));
}

#[test]
fn threads_that_race_get_the_same_result() {
    let analyses = Arc::new(Analyses::new(Arc::new(module())));
    let find = |analyses: &Analyses<Arc<Module>>| {
        let memory = analyses.memory().unwrap();
        (ptr::from_ref(analyses.sent()).addr(), ptr::from_ref(memory).addr())
    };
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let analyses = Arc::clone(&analyses);
            std::thread::spawn(move || find(&analyses))
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), find(&analyses));
    }
}

#[test]
fn contexts_share_what_does_not_depend_on_them() {
    let module = module();
    let plain = Analyses::new(&module);
    let on_mesh = plain.with_context(Context { mesh: mesh("a=2,b=4"), ..Context::default() });
    let priced = plain.with_context(Context { cost: told(&module), ..Context::default() });
    // Whoever asks first: here the contexts made later.
    assert!(ptr::eq(on_mesh.cost(), plain.cost()));
    assert!(Arc::ptr_eq(on_mesh.collectives(), plain.collectives()));
    assert!(ptr::eq(on_mesh.remat(), plain.remat()));
    assert!(!ptr::eq(on_mesh.sent(), plain.sent()));
    assert_eq!(on_mesh.sent().along[0].axes, "b");
    assert!(ptr::eq(priced.facts(), plain.facts()));
    assert!(ptr::eq(priced.attribution(), plain.attribution()));
    assert!(ptr::eq(priced.memory().unwrap(), plain.memory().unwrap()));
    assert!(!Arc::ptr_eq(priced.collectives(), plain.collectives()));
    assert_eq!(priced.cost().totals.flops, plain.cost().totals.flops + 1_000_000);
    let timed =
        on_mesh.with_context(Context { device: Some(device()), ..on_mesh.context().clone() });
    assert!(ptr::eq(timed.sent(), on_mesh.sent()));
}

#[test]
fn rules_are_equal_if_their_patterns_and_phases_are() {
    let module = module();
    let rules =
        |pattern, phase| AttributionOptions { rules: Rules::new([(pattern, phase)]).unwrap() };
    let of = |attribution| Context { attribution, ..Context::default() };
    let forward = Analyses::with(&module, of(rules(".*", Phase::Forward)));
    let same = forward.with_context(of(rules(".*", Phase::Forward)));
    assert!(ptr::eq(same.attribution(), forward.attribution()));
    for other in [rules("^$", Phase::Forward), rules(".*", Phase::Backward), Default::default()] {
        let other = forward.with_context(of(other));
        assert!(!ptr::eq(other.attribution(), forward.attribution()));
        assert!(ptr::eq(other.cost(), forward.cost()));
    }
}

#[test]
fn the_mesh_is_the_given_one_or_that_of_the_text() {
    let module = module();
    let plain = Analyses::new(&module);
    assert_eq!(plain.mesh_source(), "replica_groups");
    assert_eq!(plain.mesh().unwrap().device_count(), 8);
    let given = plain.with_context(Context { mesh: mesh("a=2,b=4"), ..Context::default() });
    assert_eq!((given.mesh_source(), given.mesh().cloned()), ("given", mesh("a=2,b=4")));
    let text = "HloModule m\n\nENTRY e {\n  ROOT p = f32[2] parameter(0)\n}\n";
    let alone = parse(Source::from_slice(text.as_bytes()), &Options::default()).unwrap();
    let alone = Analyses::new(alone);
    assert_eq!((alone.mesh_source(), alone.mesh()), ("none", None));
}

#[test]
fn results_are_those_of_the_functions() {
    let module = module();
    let context = Context { mesh: mesh("a=2,b=4"), device: Some(device()), ..Context::default() };
    let analyses = Analyses::with(&module, context.clone());
    let (cost, attribution) = (analyses.cost(), analyses.attribution());
    assert_eq!(
        analyses.cost_by(GroupKey::Opcode).len(),
        cost::group(&module, cost, attribution, analyses.sources(), GroupKey::Opcode).len()
    );
    assert_eq!(analyses.multiplicity().len(), module.row_count());
    let y = row(&module, "y") as usize;
    assert_eq!(analyses.multiplicity()[y], 1);
    assert_eq!(analyses.bytes_accessed()[y], 4 * (8 * 16 + 16 * 4 + 8 * 4));
    let collectives = analyses.collectives();
    let options = lint::Options { min_share: 0.0, ..Default::default() };
    let (mesh, along) = (|| analyses.mesh(), || &analyses.sent().along[..]);
    let known = lint::Known {
        mesh: &mesh,
        along: &along,
        sources: analyses.sources(),
        time: &|| None,
        peak: &|| None,
        free: &|| None,
        memory_falls: &|_| None,
        is_partitioned: analyses.is_partitioned(),
        backend: analyses.identity().backend.as_ref().map(|guess| guess.value),
    };
    let direct = lint::lint(&module, cost, attribution, collectives, &known, &options);
    assert_eq!(analyses.lint_with(&options).findings, direct.findings);
    let options = time::Options { device: device(), mesh: context.mesh, ..Default::default() };
    let direct = time::time(&module, cost, collectives, &options);
    let timed = analyses.time().unwrap();
    assert_eq!(timed.simulation.step.seconds.to_bits(), direct.simulation.step.seconds.to_bits());
    assert!(timed.simulation.step.seconds > 0.0);
    assert!(Analyses::new(&module).time().is_none());
    let options = memory::Options { rule: Rule::Values, ..Default::default() };
    let direct = memory::memory(&module, &options).unwrap();
    assert_eq!(analyses.memory_with(&options).unwrap().timeline, direct.timeline);
    assert_eq!(analyses.account().unwrap().peak, memory::xla_account(&module, None).unwrap().peak);
    let direct = stages::stages(&module, cost, attribution, &stages::Options::default());
    assert_eq!(analyses.stages().sections, direct.sections);
    let trace = analyses.trace(
        timed,
        &device(),
        analyses.memory().ok().map(AsRef::as_ref),
        &Default::default(),
    );
    assert!(!trace.unwrap().samples.is_empty());
}

#[test]
fn a_plan_takes_the_memory_of_the_context_where_no_budget_is_given() {
    let module = module();
    let plain = Analyses::new(&module);
    let peak = plain.plan(None, &Default::default()).unwrap();
    assert_eq!(peak.fits, None);
    for (hbm, fits) in [(peak.before, true), (peak.before - 1, false)] {
        let told = plain.with_context(Context { hbm: Some(hbm), ..Context::default() });
        assert_eq!(told.plan(None, &Default::default()).unwrap().fits, Some(fits));
        let options = hlofast::remat::PlanOptions { budget: Some(1 << 40), ..Default::default() };
        assert_eq!(told.plan(None, &options).unwrap().fits, Some(true));
    }
}

#[test]
fn what_the_context_tells_is_not_unknown() {
    let text = STEP.replace("\"mine\"", "\"__cublas$gemm\"");
    let module = parse(Source::from_slice(text.as_bytes()), &Options::default()).unwrap();
    let plain = Analyses::new(&module);
    assert_eq!(plain.unknown_products(), [Row(row(&module, "k"))]);
    let priced = plain.with_context(Context { cost: told(&module), ..Context::default() });
    assert_eq!(priced.unknown_products(), []);
}
