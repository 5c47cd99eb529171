//! The grammar of file names in dump directories.

use hlofast::dump::{FileName, Kind, Stage, name::parse};
use proptest::prelude::*;

/// Kind, stage, id, module name, changelist, step of a name, in short.
fn short(name: &str) -> String {
    let parsed = parse(name);
    let mut words = vec![parsed.kind.as_str().to_owned()];
    words.extend(parsed.stage.map(|stage| stage.as_str().to_owned()));
    words.extend(parsed.timestamp.map(|time| format!("t{time}")));
    words.extend(parsed.module_id.map(|id| format!("#{id}")));
    words.extend((!parsed.module_name.is_empty()).then(|| parsed.module_name.to_owned()));
    words.extend(parsed.changelist.map(|number| format!("cl{number}")));
    words.extend(parsed.step.map(|step| format!("@{step}")));
    for (sign, word) in [("|", parsed.pipeline), ("<", parsed.after), (">", parsed.before)] {
        words.extend((!word.is_empty()).then(|| format!("{sign}{word}")));
    }
    words.join(" ")
}

#[test]
fn names_of_every_kind() {
    let mut wrong = Vec::new();
    for (name, expected) in [
        ("module_0000.jit_f.before_optimizations.txt", "module before #0 jit_f"),
        ("module_0000.jit_f.before_optimizations.txt.gz", "module before #0 jit_f"),
        ("module_0012.jit_f.cpu_after_optimizations.hlo.pb", "module after #12 jit_f"),
        ("module_12345.jit_f.after_optimizations.hlo.pb.gz", "module after #12345 jit_f"),
        ("module_0001.jit_f.sm_8.0_gpu_after_optimizations.txt", "module after #1 jit_f"),
        ("module_0001.jit_f.sm_90_gpu_after_optimizations.txt", "module after #1 jit_f"),
        ("module_0001.jit_f.gfx942_gpu_after_optimizations.txt", "module after #1 jit_f"),
        ("module_0001.jit_f._gpu_after_optimizations.txt", "module after #1 jit_f"),
        ("module_0000.jit_f.cl_933746096.after_codegen.txt", "module codegen #0 jit_f cl933746096"),
        (
            "module_0000.jit_f.cl_7.after_optimizations_before_buffer_assignment.txt",
            "module after-before-buffer-assignment #0 jit_f cl7",
        ),
        (
            "module_0000.jit_f.cl_933746096.oom_intermediate_module.txt",
            "module after #0 jit_f cl933746096",
        ),
        (
            "module_0000.jit_f.cl_7.after_optimizations_after_buffer_assignment.txt",
            "module after-buffer-assignment #0 jit_f cl7",
        ),
        ("module_0003.jit_f.after_spmd_partitioner.txt", "module partitioned #3 jit_f"),
        (
            "module_0003.jit_f.before_config_assignment.txt",
            "module before-config-assignment #3 jit_f",
        ),
        (
            "1700000000000001.module_0003.jit_f.before_optimizations.txt",
            "module before t1700000000000001 #3 jit_f",
        ),
        // The name holds dots, or digits that look like a step.
        ("module_0001.jit__lambda_.7.after_optimizations.txt", "module after #1 jit__lambda_.7"),
        (
            "module_0001.pmap__unnamed_wrapped_function_.186875.cl_9.after_optimizations.txt",
            "module after #1 pmap__unnamed_wrapped_function_.186875 cl9",
        ),
        (
            "module_0001.SyncTensorsGraph.212.0004.a-b.after_c_d.before_pipeline-end.txt",
            "module pass #1 SyncTensorsGraph.212 @4 |a-b <c_d >pipeline-end",
        ),
        // The name was left out.
        ("module_0001.before_optimizations.txt", "module before #1"),
        ("module_0001.cl_5.0001.p.after_a.before_b.txt", "module pass #1 cl5 @1 |p <a >b"),
        // A pass may be called like a stage.
        (
            "module_0001.f.0031.p.after_x.before_optimizations.hlo.pb",
            "module pass #1 f @31 |p <x >optimizations",
        ),
        (
            "module_0001.f.0004.copy-insertion.after_adding_copies_to_resolve_interference.txt",
            "module in-pass #1 f @4 |copy-insertion <after_adding_copies_to_resolve_interference",
        ),
        ("module_0001.f.0004.p.after_a.before_b.dot", "render pass #1 f @4 |p <a >b"),
        ("module_0001.f.after_optimizations.html", "render after #1 f"),
        ("module_0001.f.after_optimizations.top_level.html", "render after #1 f"),
        ("module_0001.f.autotuner_3.gemm.1.before.txt", "fragment #1 f"),
        ("module_0001.f.loop_fusion.hlo", "fragment #1 f"),
        ("module_0001.f.triton_fusion_numerics_verifier_failed_7.original.hlo", "fragment #1 f"),
        ("module_0001.f.cpu_after_optimizations-buffer-assignment.txt", "memory after #1 f"),
        (
            "module_0001.f.sm_9.0_gpu_after_optimizations-buffer-assignment-values.txt",
            "memory after #1 f",
        ),
        ("module_0001.f.after_optimizations-live-range.txt.gz", "memory after #1 f"),
        ("module_0001.f.after_optimizations-memory-usage-report.pb.gz", "memory after #1 f"),
        ("module_0001.f.debug_options", "config #1 f"),
        ("module_0001.f.config.pbtxt", "config #1 f"),
        ("module_0001.metadata.textproto", "config #1"),
        ("module_0001.f.cl_3.target_arguments.txt", "config #1 f cl3"),
        ("module_0001.f.cl_3.tpu_comp_env.txt", "config #1 f cl3"),
        ("module_0001.f.gpu_target_config.pbtxt", "config #1 f"),
        ("flagfile", "config"),
        ("jit_f.schedule.txt", "schedule jit_f"),
        ("module_0001.f.thunk_sequence.txt", "schedule #1 f"),
        ("module_0001.f.priority_fusion_dump.pb", "schedule #1 f"),
        ("module_0001.f.ir-no-opt.ll", "code #1 f"),
        ("module_0001.f.kernel_1.ir-with-opt.ll", "code #1 f.kernel_1"),
        ("module_0001.f.ptx", "code #1 f"),
        ("module_0001.f.obj-file.2.o", "code #1 f"),
        ("module_0001.f.fusion.3.ttir.txt", "code #1 f.fusion"),
        ("module_0001.f.cudnn_fusion_gemm.json", "code #1 f"),
        ("module_0001.f.gpu_command_buffer_0x7f.dot", "code #1 f"),
        ("module_0001.f.k-post-optimization.mlir", "code #1 f"),
        ("module_0001.f.mlir-passes.log", "code #1 f"),
        ("module_0001.f.execution_0002.hlo_snapshot.pb", "snapshot #1 f"),
        ("module_f.execution_2.hlo_snapshot.pb", "snapshot f"),
        ("snapshot.-1831388721.pb", "snapshot"),
        ("module_0001.f.execution_2.hlo_unoptimized_snapshot.txt", "snapshot #1 f"),
        ("jax_ir0001_jit_f_compile.mlir", "ir jit_f <compile"),
        ("module.mlir", "ir"),
        ("compile_options.pb", "config"),
        ("dumps.tar.gz", "archive"),
        ("jit_f.hlo_proto.pb", "module jit_f"),
        ("train_step.after_optimizations.txt", "module after train_step"),
        ("notes.txt", "other"),
        ("module_0001", "other #1"),
        ("module_01.f.before_optimizations.txt", "module before module_01.f"),
        ("", "other"),
    ] {
        if short(name) != expected {
            wrong.push((name, short(name), expected));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn siblings_share_their_stem() {
    let stem = |name| parse(name).stem;
    let stems = [
        "module_0001.f.cl_3.after_optimizations.txt",
        "module_0001.f.cl_3.after_optimizations-live-range.txt.gz",
        "module_0001.f.cl_3.0002.p.after_a.before_b.hlo.pb",
        "module_0001.f.cl_3.target_arguments.txt",
    ];
    assert_eq!(stems.map(stem), ["module_0001.f.cl_3"; 4]);
}

proptest! {
    /// What is put into a name comes out of it, whatever the module is called.
    #[test]
    fn a_name_is_taken_apart_as_it_was_put_together(
        id in 0u64..100_000,
        timestamp in proptest::option::of(1_000_000_000_000_000u64..9_999_999_999_999_999),
        name in "[a-zA-Z_][a-zA-Z0-9_<>-]{0,12}(\\.[0-9]{1,6})?",
        changelist in proptest::option::of(0u64..1_000_000_000),
        step in 0u32..20_000,
        pipeline in "[a-z_-]{1,12}", after in "[a-z0-9_-]{1,12}", before in "[a-z0-9_-]{1,12}",
        packed in prop::sample::select(vec!["", ".gz", ".xz", ".zst"]),
    ) {
        let mut head = timestamp.map_or(String::new(), |time| format!("{time}."));
        head += &format!("module_{id:04}.{name}");
        head += &changelist.map_or(String::new(), |number| format!(".cl_{number}"));
        let text = format!("{head}.{step:04}.{pipeline}.after_{after}.before_{before}.txt{packed}");
        let expected = FileName {
            timestamp,
            module_id: Some(id),
            module_name: &name,
            changelist,
            kind: Kind::Module,
            stage: Some(Stage::Pass),
            step: Some(step),
            pipeline: &pipeline,
            after: &after,
            before: &before,
            suffix: parse(&text).suffix,
            stem: &head,
        };
        prop_assert_eq!(parse(&text), expected);
        let text = format!("{head}.cpu_after_optimizations.hlo.pb{packed}");
        let parsed = parse(&text);
        prop_assert_eq!(
            (parsed.module_id, parsed.module_name, parsed.changelist, parsed.stage, parsed.stem),
            (Some(id), name.as_str(), changelist, Some(Stage::After), head.as_str())
        );
    }

    /// Any name gives an answer.
    #[test]
    fn any_name_is_read(name in "\\PC*|(module_[0-9.]*|[a-z_.]*after_|\\.|[0-9]{4}|txt|pb|gz|é)*") {
        let parsed = parse(&name);
        prop_assert!(name.contains(parsed.module_name) && name.contains(parsed.suffix));
    }
}
