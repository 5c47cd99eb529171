//! Everything that can be asked of a module, asked: the fuzz targets and the tests of hostile
//! texts share it. Only panics, hangs and memory out of proportion are faults here.

use hlofast::comms::{Mesh, alpa_counters, grad_sync_channel_ids, host_transfers};
use hlofast::cost::explain::explain;
use hlofast::cost::{GroupKey, Options, Totals};
use hlofast::diff::diff;
use hlofast::ir::decode::{
    AttributeValue, Literal, ReplicaGroups, Sharding, StackFrames, decode, decode_header,
    metadata_string,
};
use hlofast::ir::{Module, Opcode, Row};
use hlofast::print::{Form, PrintOptions, to_text};
use hlofast::time::{Device, Topology};
use hlofast::{Analyses, Context};

/// Most devices that are listed one by one.
const LIMIT: usize = 1000;

/// Computes every column and decodes every value of `module`. How many values could be read.
pub fn exercise(module: &Module) -> usize {
    let mut readable = 0;
    for row in module.rows() {
        readable += exercise_row(module, row);
    }
    for (key, value) in &module.header().attributes {
        readable += usize::from(decode_header(module.bytes(*key), module.bytes(*value)).is_ok());
    }
    if let Ok(frames) = StackFrames::of_module(module) {
        readable += frames.resolve(frames.len() as i64).count();
        frames.first_dangling();
    }
    for (index, computation) in module.computations().iter().enumerate() {
        let name = module.bytes(computation.name);
        readable += usize::from(module.find_computation(name).is_some());
        let id = hlofast::ir::ComputationId(index as u32);
        readable += module.parameters(id).len();
        let root = module.instruction_name(Row(computation.root));
        readable += usize::from(module.find_in_computation(id, root).is_some());
        if index > 20 {
            break;
        }
    }
    module.users();
    module.leaf_offsets();
    module.shape_bytes_column();
    module.computation_column();
    module.heap_bytes();
    readable += exercise_printer(module);
    readable += hlofast::flow::trip_count::trip_counts(module).len();
    readable += exercise_cost(module);
    readable += diff(module, module, &Default::default()).pairs.len();
    readable + Analyses::new(module).summary().instructions
}

/// Costs in both ways, and their groups, which add up to the module.
fn exercise_cost(module: &Module) -> usize {
    let plain = Analyses::new(module);
    let leaves: u64 =
        module.rows().map(|row| u64::from(module.shapes().leaf_count(module.shape(row)))).sum();
    let mut groups = 0;
    for is_xla in [false, true] {
        let is_float32 = is_xla && leaves < 1 << 20;
        let cost = Options { is_xla, is_float32, ..Options::default() };
        let analyses = plain.with_context(Context { cost, ..Context::default() });
        let (cost, attribution) = (analyses.cost(), analyses.attribution());
        let is_known = cost.executions.iter().all(Option::is_some);
        let scope = |merges_layers| GroupKey::Scope { depth: 2, merges_layers };
        for key in [GroupKey::Phase, scope(false), scope(true), GroupKey::Source] {
            let grouped = analyses.cost_by(key);
            let mut sum = Totals::default();
            for group in &grouped {
                sum.flops = sum.flops.saturating_add(group.totals.flops);
                sum.bytes_read = sum.bytes_read.saturating_add(group.totals.bytes_read);
                sum.bytes_written = sum.bytes_written.saturating_add(group.totals.bytes_written);
            }
            let total = &cost.totals;
            if is_known && !attribution.contexts.is_cyclic {
                assert_eq!(
                    (sum.flops, sum.bytes_read, sum.bytes_written),
                    (total.flops, total.bytes_read, total.bytes_written),
                    "{key:?}"
                );
            }
            groups += grouped.len();
        }
        groups += cost.memory_spaces(module).len();
        if !is_xla {
            groups += exercise_collectives(&analyses);
            groups += exercise_stages(&analyses);
        }
    }
    groups + explain(module).len()
}

/// Collectives, on the mesh that the text speaks of and on one that it need not fit, what is found
/// in them and how long they take.
fn exercise_collectives(plain: &Analyses<&Module>) -> usize {
    let (module, all) = (plain.module(), plain.collectives());
    for collective in &all.collectives {
        let pieces = collective.pieces.start as usize..collective.pieces.end as usize;
        assert!(all.pieces.get(pieces).is_some());
        let members = collective.members.start as usize..collective.members.end as usize;
        assert!(all.members.get(members).is_some_and(|rows| rows.contains(&collective.row)));
        assert!(!collective.executions.is_empty());
        collective.ring_wire_bytes();
    }
    let mut sum = host_transfers(module).len() + grad_sync_channel_ids(module).len();
    sum += alpa_counters(module, true).total.min(1 << 40) as usize;
    let given = Mesh::parse("data=2,model=4").and_then(|mesh| mesh.with_slices(2)).ok();
    for mesh in [None, given] {
        let context = Context { mesh, device: Some(device()), ..Context::default() };
        let analyses = plain.with_context(context);
        assert_eq!(analyses.sent().along.len(), all.collectives.len());
        let options = hlofast::lint::Options { min_share: 0.0, ..Default::default() };
        let lint = analyses.lint_with(&options);
        for finding in &lint.findings {
            assert!(finding.rows.iter().all(|row| (row.0 as usize) < module.row_count()));
        }
        sum += lint.findings.len();
        sum += analyses.time().map_or(0, |time| time.simulation.axes.len());
    }
    sum
}

/// Pipeline stages, whatever share of the work may move.
fn exercise_stages(analyses: &Analyses<&Module>) -> usize {
    let module = analyses.module();
    let stages = analyses.stages_with(&hlofast::stages::Options { most_moved: 1.0 });
    for item in &stages.stash {
        assert!((item.source.0 as usize) < module.row_count());
    }
    stages.markers.len() + stages.sections.len() + stages.stash.len()
}

/// A chip of which enough is known to time everything.
fn device() -> Device {
    let mut device = Device {
        is_tpu: true,
        peaks: vec![("bf16".to_owned(), 1e14), ("s8".to_owned(), 2e14)],
        topology: Some(Topology::Torus(3)),
        ..Device::default()
    };
    let figures = [
        ("hbm_bandwidth", 1e12),
        ("clock", 1e9),
        ("cores", 1.0),
        ("jax_devices", 1.0),
        ("hbm_latency", 1e-6),
        ("vector_operations", 2.0),
        ("matrix_unit_size", 128.0),
        ("wraparound_multiple", 4.0),
        ("link_bandwidth", 1e11),
        ("network_bandwidth", 1e10),
    ];
    for (name, value) in figures {
        assert!(device.set(name, value), "{name}");
    }
    device
}

/// Every form of the printer; shapes that hold themselves many times over print at that length, so
/// they are left out.
fn exercise_printer(module: &Module) -> usize {
    let leaves: u64 =
        module.rows().map(|row| u64::from(module.shapes().leaf_count(module.shape(row)))).sum();
    if leaves > 1 << 20 {
        return 0;
    }
    let printed = |form, fold| {
        let options = PrintOptions { form, fold, operand_shapes: false, ..PrintOptions::default() };
        to_text(module, &options).len()
    };
    printed(Form::Long, false).min(printed(Form::Short, true))
}

fn exercise_row(module: &Module, row: Row) -> usize {
    let mut readable = 0;
    let opcode = module.opcode(row);
    for attribute in module.attributes(row) {
        let (key, value) = (module.bytes(attribute.key), module.bytes(attribute.value));
        if let Ok(decoded) = decode(key, opcode, value) {
            readable += 1;
            look_inside(&decoded);
        }
        if key == b"metadata" {
            readable += usize::from(metadata_string(value, b"op_name").is_some());
        }
    }
    readable += usize::from(hlofast::cost::matmul::contraction(module, row).is_some());
    if opcode == Opcode::CustomCall {
        let cost = hlofast::cost::custom_call::custom_call_cost(module, row);
        readable += usize::from(cost.flops.is_some());
    }
    if opcode == Opcode::Constant {
        let (_, payload) = module.opcode_and_payload(row);
        let shape = module.shape(row);
        if let Ok(literal) = Literal::split(module.bytes(payload), module.shapes(), shape) {
            for index in 0..literal.leaves.len() {
                readable += usize::from(literal.decode(index, module.shapes()).is_ok());
            }
        }
    }
    readable
}

fn look_inside(value: &AttributeValue<'_>) {
    match value {
        AttributeValue::ReplicaGroups(groups) => groups_inside(groups),
        AttributeValue::Sharding(sharding) => sharding_inside(sharding),
        AttributeValue::Metadata(metadata) => {
            metadata.to_text();
        }
        _ => {}
    }
}

fn groups_inside(groups: &ReplicaGroups<'_>) {
    groups.group_count();
    groups.group_size();
    groups.device(0, 0);
    groups.expand(LIMIT);
    groups.to_text();
}

fn sharding_inside(sharding: &Sharding<'_>) {
    sharding.to_text();
    sharding.is_replicated();
    for leaf in sharding.leaves() {
        leaf.device_count();
        leaf.tile_dimensions();
        leaf.devices(LIMIT);
    }
}
