//! Time: formulas of collectives, windows of the TPU compiler, schedules; hostile texts.

use hlofast::ir::Module;
use hlofast::text::Source;
use hlofast::time::collective::{Kind, Network, on_network, on_two_levels};
use hlofast::time::{Device, Time, Topology, windows};
use hlofast::{Analyses, Context, Options as ParseOptions, parse};

fn parsed(text: &str) -> Module {
    parse(Source::from_slice(text.as_bytes()), &ParseOptions::default()).unwrap()
}

fn device() -> Device {
    Device {
        name: "toy".to_owned(),
        peaks: vec![("f32".to_owned(), 1e9), ("bf16".to_owned(), 1e9)],
        hbm_bandwidth: Some(1e9),
        jax_devices: Some(1.0),
        topology: Some(Topology::Switch),
        link_count: Some(1.0),
        link_bandwidth: Some(1e6),
        link_latency: Some(0.0),
        ..Device::default()
    }
}

fn timed(module: &Module, device: Device) -> Time {
    let context = Context { device: Some(device), ..Context::default() };
    Analyses::with(module, context).time().expect("a device").clone()
}

fn close(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * left.abs().max(right.abs())
}

#[test]
fn wire_bytes_are_shares_of_the_buffer() {
    let shares = [
        (Kind::AllReduce, 1.75),
        (Kind::AllGather, 0.875),
        (Kind::ReduceScatter, 0.875),
        (Kind::AllToAll, 0.875),
        (Kind::Permute, 1.0),
        (Kind::Broadcast, 1.0),
    ];
    for (kind, share) in shares {
        assert!(close(kind.wire_share(8), share));
        assert!(close(kind.wire_share(1), 0.0));
    }
}

#[test]
fn one_level_of_two_is_that_level() {
    let near = Network::Switch { bandwidth: 4.0, latency: 0.5 };
    let far = Network::Switch { bandwidth: 1.0, latency: 2.0 };
    for kind in [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll] {
        let inside = on_two_levels(kind, 64.0, (8, near), (1, far));
        assert_eq!(inside, on_network(kind, 64.0, 8, near));
        let across = on_two_levels(kind, 64.0, (1, near), (8, far));
        assert_eq!(across, on_network(kind, 64.0, 8, far));
    }
}

#[test]
fn latency_and_transfer_add_up() {
    let network = Network::Ring { bandwidth: 10.0, latency: 1.0, directions: 1.0 };
    let estimate = on_network(Kind::AllGather, 80.0, 8, network);
    assert!(close(estimate.latency, 7.0));
    assert!(close(estimate.seconds, 7.0 + 70.0 / 10.0));
    assert!(close(estimate.bandwidth, 10.0));
    let both = Network::Ring { bandwidth: 10.0, latency: 1.0, directions: 2.0 };
    assert!(close(on_network(Kind::AllGather, 80.0, 8, both).seconds, 4.0 + 3.5));
}

#[test]
fn windows_are_read_as_the_compiler_wrote_them() {
    let text = |config: &str| {
        format!(
            "HloModule m\nENTRY %e (p: f32[8,128]) -> f32[8,128] {{\n  %p = f32[8,128]{{1,0}} \
             parameter(0)\n  ROOT %n = f32[8,128]{{1,0}} negate(%p), backend_config={config}\n}}\n"
        )
    };
    let read = |config: &str| {
        let module = parsed(&text(config));
        let row = module.rows().last().unwrap();
        windows(&module, row)
    };
    let config = r#"{"window_config":{"kernel_window_bounds":["4","2"],"output_window_bounds":["2","3"],"input_window_bounds":["1","1"],"estimated_cycles":"77","iteration_bounds":["5","1"]}}"#;
    let windows = read(config).unwrap();
    assert!(close(windows.iterations, 5.0));
    assert!(close(windows.output, 6.0 * 1024.0));
    assert!(close(windows.kernel, 8.0 * 1024.0));
    assert_eq!(windows.estimated_cycles, Some(77.0));
    let none = read(&config.replace("77", "18446744073709551615")).unwrap();
    assert_eq!(none.estimated_cycles, None);
    assert_eq!(read(r#"{"flag_configs":[]}"#), None);
    assert_eq!(read(r#"{"window_config":{"iteration_bounds":["0"]}}"#), None);
    assert_eq!(read(r#"{"window_config":{"iteration_bounds":["-9223372036854775808"]}}"#), None);
    assert!(read(r#"{"window_config":"none"}"#).is_none());
}

#[test]
fn nested_loops_of_any_length_take_no_time_to_play() {
    let mut text = String::from("HloModule m, is_scheduled=true\n");
    text.push_str(
        "%b0 (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n  ROOT %n = f32[8]{0} \
         negate(%p)\n}\n%c (p: f32[8]) -> pred[] {\n  %p = f32[8]{0} parameter(0)\n  ROOT %k = \
         pred[] custom-call(%p), custom_call_target=\"decide\"\n}\n",
    );
    for level in 1..40 {
        text.push_str(&format!(
            "%b{level} (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0}} parameter(0)\n  ROOT %w = \
             f32[8]{{0}} while(%p), condition=%c, body=%b{}, \
             backend_config={{\"known_trip_count\":{{\"n\":\"9223372036854775807\"}}}}\n}}\n",
            level - 1
        ));
    }
    text.push_str(
        "ENTRY %e (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n  ROOT %r = f32[8]{0} \
         call(%p), to_apply=%b39\n}\n",
    );
    let time = timed(&parsed(&text), device());
    assert!(time.simulation.step.seconds > 1e300);
    assert!(time.simulation.executions.contains(&u64::MAX));
}

#[test]
fn a_branch_that_is_given_twice_runs_once() {
    let module = parsed(
        "HloModule m\n%b (p: f32[1000]) -> f32[1000] {\n  %p = f32[1000]{0} parameter(0)\n  ROOT \
         %n = f32[1000]{0} negate(%p)\n}\nENTRY %e (i: pred[], p: f32[1000]) -> f32[1000] {\n  %i \
         = pred[] parameter(0)\n  %p = f32[1000]{0} parameter(1)\n  ROOT %c = f32[1000]{0} \
         conditional(%i, %p, %p), true_computation=%b, false_computation=%b\n}\n",
    );
    let time = timed(&module, device());
    assert!(close(time.simulation.step.seconds, 8e-6));
    assert_eq!(time.simulation.executions.iter().filter(|runs| **runs == 1).count(), 2);
}

#[test]
fn the_step_is_the_sum_of_its_parts() {
    let module = parsed(
        "HloModule m, is_scheduled=true, num_partitions=4\nENTRY %e (p: f32[1000]) -> f32[4000] \
         {\n  %p = f32[1000]{0} parameter(0)\n  %n = f32[1000]{0} negate(%p)\n  ROOT %g = \
         f32[4000]{0} all-gather(%n), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, \
         use_global_device_ids=true\n}\n",
    );
    let step = timed(&module, device()).simulation.step;
    let exposed: f64 = step.exposed.iter().sum();
    assert!(close(step.seconds, step.compute + step.memory + step.other + exposed));
    assert!(close(step.seconds, 8e-6 + 12e-3));
}
