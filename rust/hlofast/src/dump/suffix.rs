//! The suffixes of dumped files: the text after the module name.

use super::kind::{Kind, Stage};
use super::name::is_digits;

/// The meaning of a suffix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Suffix<'a> {
    pub kind: Kind,
    pub stage: Option<Stage>,
    pub step: Option<u32>,
    pub pipeline: &'a str,
    pub after: &'a str,
    pub before: &'a str,
}

/// File formats of a module.
const FORMS: [&str; 5] = ["txt", "hlo.pb", "hlo", "pbtxt", "riegeli"];

/// Renderings of a module.
const RENDERS: [&str; 5] = ["top_level.html", "dot", "html", "url", "svg"];

/// The text after the stage in the names of memory files.
const MEMORY: [&str; 4] =
    ["-buffer-assignment-values", "-buffer-assignment", "-live-range", "-memory-usage-report"];

/// Whole suffixes, most of which are also names of files for a whole process.
const FIXED: [(&str, Kind); 30] = [
    ("debug_options", Kind::Config),
    ("config.pbtxt", Kind::Config),
    ("metadata.textproto", Kind::Config),
    ("execution_options.txt", Kind::Config),
    ("hlo_module_config.txt", Kind::Config),
    ("target_arguments.txt", Kind::Config),
    ("tpu_comp_env.txt", Kind::Config),
    ("flagfile", Kind::Config),
    ("transfer_stats.txt", Kind::Config),
    ("basic_compiler_metadata.txt", Kind::Config),
    ("gpu_target_config.pbtxt", Kind::Config),
    ("autotune_results.pbtxt", Kind::Config),
    ("compile_options.pb", Kind::Config),
    ("compile_options.textproto", Kind::Config),
    ("topology.pb", Kind::Config),
    ("topology.textproto", Kind::Config),
    ("schedule.txt", Kind::Schedule),
    ("schedule.pb", Kind::Schedule),
    ("thunk_sequence.txt", Kind::Schedule),
    ("thunk_sequence_after_thunk_passes.txt", Kind::Schedule),
    ("thunk_metadata.txt", Kind::Schedule),
    ("thunk_metadata.pb", Kind::Schedule),
    ("priority_fusion_dump.txt", Kind::Schedule),
    ("priority_fusion_dump.pb", Kind::Schedule),
    ("fdo_profile", Kind::Schedule),
    ("buffer_debug_log", Kind::Snapshot),
    ("ptx", Kind::Code),
    ("spv", Kind::Code),
    ("module.mlir", Kind::Ir),
    ("mlir-passes.log", Kind::Code),
];

/// Endings that identify a file whatever precedes them.
const ENDINGS: [(&str, Kind); 24] = [
    ("hlo_proto.pb", Kind::Module),
    ("hlo.pb", Kind::Module),
    (".ll", Kind::Code),
    (".ptx", Kind::Code),
    (".spv", Kind::Code),
    (".o", Kind::Code),
    (".cubin", Kind::Code),
    (".hsaco", Kind::Code),
    (".s", Kind::Code),
    (".bc", Kind::Code),
    (".mlir-passes.log", Kind::Code),
    ("-pre-optimization.mlir", Kind::Code),
    ("-post-optimization.mlir", Kind::Code),
    ("-post-lowering.mlir", Kind::Code),
    (".ttir.txt", Kind::Code),
    (".mlir", Kind::Ir),
    (".jaxpr", Kind::Ir),
    (".dot", Kind::Render),
    (".html", Kind::Render),
    (".url", Kind::Render),
    (".svg", Kind::Render),
    ("_fusion.pyz", Kind::Render),
    (".hlo_snapshot.pb", Kind::Snapshot),
    (".hlo", Kind::Fragment),
];

/// File name endings of archives.
const ARCHIVES: [&str; 6] = [".tar", ".tgz", ".txz", ".zip", ".7z", ".whl"];

/// The kind of an archive, or of a file whose whole name is a suffix.
pub(super) fn whole(name: &str) -> Option<Suffix<'_>> {
    if ARCHIVES.iter().any(|ending| name.ends_with(ending)) {
        return Some(of_kind(Kind::Archive));
    }
    FIXED.iter().find(|(suffix, _)| *suffix == name).map(|(_, kind)| of_kind(*kind))
}

/// The start and meaning of the suffix of `rest`. Suffixes are matched from the right. Suffixes of
/// passes come first, because a pass may have the name of a stage.
pub(super) fn find(rest: &str) -> Option<(usize, Suffix<'_>)> {
    let starts = || Starts { rest, at: Some(rest.len()) };
    let first = |of: fn(&str) -> Option<Suffix<'_>>| {
        starts().find_map(|start| Some((start, of(rest.get(start..)?)?)))
    };
    first(pass)
        .or_else(|| first(stage))
        .or_else(|| first(fixed))
        .or_else(|| first(fragment))
        .or_else(|| first(snapshot))
        .or_else(|| code(rest))
        .or_else(|| first(in_pass))
        .or_else(|| ending(rest))
}

/// Starts of the parts of a dotted text, from the right.
struct Starts<'a> {
    rest: &'a str,
    at: Option<usize>,
}

impl Iterator for Starts<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let end = self.at?;
        if end == 0 && !self.rest.is_empty() {
            return None;
        }
        let before = self.rest.get(..end.saturating_sub(1))?;
        let start = before.rfind('.').map_or(0, |dot| dot + 1);
        self.at = (start > 0).then_some(start);
        Some(start)
    }
}

fn of_kind(kind: Kind) -> Suffix<'static> {
    Suffix { kind, ..Suffix::default() }
}

/// `0012.PIPELINE.after_PASS.before_PASS` and a format.
fn pass(text: &str) -> Option<Suffix<'_>> {
    let (stem, kind) = formed(text)?;
    let (step, rest) = step(stem)?;
    let (head, before) = rest.rsplit_once(".before_")?;
    let (pipeline, after) = head.split_once(".after_")?;
    let suffix = Suffix { kind, step: Some(step), pipeline, after, before, ..Suffix::default() };
    (!pipeline.is_empty()).then_some(Suffix { stage: Some(Stage::Pass), ..suffix })
}

/// `0004.PASS.STEP_NAME` and a format.
fn in_pass(text: &str) -> Option<Suffix<'_>> {
    let (stem, kind) = formed(text)?;
    let (step, rest) = step(stem)?;
    let (pipeline, after) = rest.split_once('.')?;
    let plain = |word: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        !word.is_empty() && word.bytes().all(is_plain) && !is_digits(word)
    };
    (plain(pipeline) && plain(after)).then_some(Suffix {
        kind,
        stage: Some(Stage::InPass),
        step: Some(step),
        pipeline,
        after,
        ..Suffix::default()
    })
}

/// At least four digits and a dot.
fn step(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = text.split_once('.')?;
    (digits.len() >= 4 && is_digits(digits)).then_some(())?;
    Some((digits.parse().ok()?, rest))
}

/// The text before the format, and the kind that the format implies.
fn formed(text: &str) -> Option<(&str, Kind)> {
    let cut = |form: &str| text.strip_suffix(form)?.strip_suffix('.');
    let module = FORMS.iter().find_map(|form| cut(form)).map(|stem| (stem, Kind::Module));
    module.or_else(|| RENDERS.iter().find_map(|form| cut(form)).map(|stem| (stem, Kind::Render)))
}

/// A stage and a format, or one of the memory files of that stage.
fn stage(text: &str) -> Option<Suffix<'_>> {
    if let Some((stem, kind)) = formed(text)
        && let Some(stage) = stage_of(stem)
    {
        return Some(Suffix { kind, stage: Some(stage), ..Suffix::default() });
    }
    let (stem, form) = text.rsplit_once('.')?;
    matches!(form, "txt" | "pb").then_some(())?;
    let stem = MEMORY.iter().find_map(|ending| stem.strip_suffix(ending))?;
    let stage = stage_of(stem)?;
    Some(Suffix { kind: Kind::Memory, stage: Some(stage), ..Suffix::default() })
}

/// XLA's names of the stages of compilation.
fn stage_of(word: &str) -> Option<Stage> {
    Some(match word {
        "before_optimizations" | "before_optimization" => Stage::Before,
        "after_optimizations" | "cpu_after_optimizations" => Stage::After,
        // libtpu writes it when a program does not fit; it equals `after_optimizations`.
        "oom_intermediate_module" => Stage::After,
        "after_optimizations_before_buffer_assignment" => Stage::AfterBeforeBuffers,
        "after_optimizations_after_buffer_assignment" => Stage::AfterBuffers,
        "after_codegen" => Stage::Codegen,
        "after_spmd_partitioner" => Stage::Partitioned,
        "before_config_assignment" => Stage::BeforeConfigAssignment,
        _ => {
            let target = word.strip_suffix("_gpu_after_optimizations")?;
            // `sm_8.0` contains a dot; the part after it alone is not a target.
            let is_target = target.is_empty()
                || target.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
            let is_one =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
            let is_short = target.matches('.').count() <= usize::from(target.starts_with("sm_"));
            (is_target && is_short && target.bytes().all(is_one)).then_some(Stage::After)?
        }
    })
}

fn fixed(text: &str) -> Option<Suffix<'_>> {
    FIXED.iter().find(|(suffix, _)| *suffix == text).map(|(_, kind)| of_kind(*kind))
}

/// Modules of autotuners and verifiers.
fn fragment(text: &str) -> Option<Suffix<'_>> {
    let tuner = text.strip_prefix("autotuner_").and_then(|rest| {
        let rest = rest.strip_suffix(".before.txt").or_else(|| rest.strip_suffix(".after.txt"))?;
        rest.split_once('.').filter(|(number, name)| is_digits(number) && !name.is_empty())
    });
    let verifier = text.starts_with("triton_fusion_numerics_verifier_failed_");
    (tuner.is_some() || verifier).then(|| of_kind(Kind::Fragment))
}

/// `execution_0001.hlo_snapshot.pb` and its variants.
fn snapshot(text: &str) -> Option<Suffix<'_>> {
    let (number, rest) = text.strip_prefix("execution_")?.split_once('.')?;
    let forms = ["hlo_snapshot.pb", "hlo_unoptimized_snapshot.pb", "hlo_unoptimized_snapshot.txt"];
    (is_digits(number) && forms.contains(&rest)).then(|| of_kind(Kind::Snapshot))
}

/// Generated code with names of several parts.
fn code(rest: &str) -> Option<(usize, Suffix<'_>)> {
    let is_code = |part: &str| {
        part.starts_with("ir-no-opt") || part.starts_with("ir-with-opt") || part == "obj-file"
    };
    let command_buffer = |part: &str| part.starts_with("gpu_command_buffer_");
    let cudnn = |part: &str| part.starts_with("cudnn_fusion_");
    let starts = Starts { rest, at: Some(rest.len()) };
    let part_at = |start: usize| rest.get(start..)?.split('.').next();
    starts.into_iter().find_map(|start| {
        let part = part_at(start)?;
        let text = rest.get(start..)?;
        let starts_code = is_code(part)
            || command_buffer(part) && text.ends_with(".dot")
            || cudnn(part) && text.ends_with(".json");
        starts_code.then(|| (start, of_kind(Kind::Code)))
    })
}

/// Files identified by their ending. The part before it belongs to the suffix: a kernel, a fusion.
fn ending(rest: &str) -> Option<(usize, Suffix<'_>)> {
    let (ending, kind) = ENDINGS.iter().find(|(ending, _)| rest.ends_with(ending))?;
    let stem = rest.strip_suffix(ending)?;
    if *kind == Kind::Module {
        return (stem.is_empty() || stem.ends_with('.')).then_some((stem.len(), of_kind(*kind)));
    }
    Some((stem.rfind('.').map_or(0, |dot| dot + 1), of_kind(*kind)))
}
