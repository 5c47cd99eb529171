//! Parses the names of files in dump directories.
//!
//! XLA writes `[TIMESTAMP.]module_ID[.NAME][.cl_CHANGELIST].SUFFIX`. The module name may contain
//! dots and is omitted if the file name would become too long, so suffixes are matched from the
//! right and the rest is the name.

use super::kind::{Kind, Stage};
use super::suffix::{self, Suffix};

/// A parsed file name. Texts are parts of the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileName<'a> {
    /// Microseconds since 1970, if the dump has time stamps.
    pub timestamp: Option<u64>,
    /// The number of the module, unique within one process.
    pub module_id: Option<u64>,
    /// The name of the module; empty if the file name omits it.
    pub module_name: &'a str,
    /// The changelist of the compiler that wrote the file (`cl_N`, TPU only).
    pub changelist: Option<u64>,
    /// The kind of file, according to the name.
    pub kind: Kind,
    /// The stage of compilation; for a memory file, the stage of its module.
    pub stage: Option<Stage>,
    /// Number of the pass within its module.
    pub step: Option<u32>,
    /// The pipeline of the pass, or the pass of an intermediate dump.
    pub pipeline: &'a str,
    /// The pass before the dump; for an intermediate dump the step just completed.
    pub after: &'a str,
    /// The next pass.
    pub before: &'a str,
    /// The text after the module name, without compression suffixes.
    pub suffix: &'a str,
    /// The text before the suffix, equal for related files: `module_0001.jit_step.cl_7`.
    pub stem: &'a str,
}

/// Parses `name`. Unrecognised names have kind [`Kind::Other`].
pub fn parse(name: &str) -> FileName<'_> {
    let plain = without_compression(name);
    if let Some(file_name) = jax_ir(plain) {
        return file_name;
    }
    let (timestamp, rest) = timestamp(plain);
    let Some((module_id, rest)) = module_prefix(rest) else { return unprefixed(plain, rest) };
    let base = FileName { timestamp, module_id: Some(module_id), ..FileName::default() };
    let Some(rest) = rest.strip_prefix('.') else {
        return FileName { stem: plain, ..base };
    };
    finish(base, plain, rest)
}

/// The name without `.gz`, `.xz` or `.zst`.
pub fn without_compression(name: &str) -> &str {
    let endings = [".gz", ".xz", ".zst", ".zstd"];
    endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

/// Splits `rest`, the text after `module_ID.`, into the fields of `base`.
fn finish<'a>(base: FileName<'a>, plain: &'a str, rest: &'a str) -> FileName<'a> {
    let (head, parts) = match suffix::find(rest) {
        Some((start, parts)) => {
            (rest.get(..start).unwrap_or_default().trim_end_matches('.'), parts)
        }
        None => last_part(rest),
    };
    let (module_name, changelist) = changelist(head);
    let suffix = rest.get(head.len()..).unwrap_or_default().trim_start_matches('.');
    let stem = plain.strip_suffix(suffix).unwrap_or(plain).trim_end_matches('.');
    fill(FileName { module_name, changelist, suffix, stem, ..base }, parts)
}

fn fill<'a>(base: FileName<'a>, parts: Suffix<'a>) -> FileName<'a> {
    FileName {
        kind: parts.kind,
        stage: parts.stage,
        step: parts.step,
        pipeline: parts.pipeline,
        after: parts.after,
        before: parts.before,
        ..base
    }
}

/// An unknown suffix starts at the last dot.
fn last_part(rest: &str) -> (&str, Suffix<'_>) {
    (rest.rsplit_once('.').map_or(rest, |(head, _)| head), Suffix::default())
}

/// A name without `module_ID`: a file for the whole process, or a file that a person saved.
fn unprefixed<'a>(plain: &'a str, rest: &'a str) -> FileName<'a> {
    if let Some(file_name) = snapshot(plain, rest) {
        return file_name;
    }
    if let Some(parts) = suffix::whole(rest) {
        return fill(FileName { suffix: rest, ..FileName::default() }, parts);
    }
    let file_name = finish(FileName::default(), plain, rest);
    match file_name.kind {
        // A saved file may have any name; only its ending is significant.
        Kind::Other => FileName { module_name: "", changelist: None, stem: plain, ..file_name },
        _ => file_name,
    }
}

/// `module_NAME.execution_N.hlo_snapshot.pb` and `snapshot.RUN.pb`, which have no number.
fn snapshot<'a>(plain: &'a str, rest: &'a str) -> Option<FileName<'a>> {
    let run = rest.strip_prefix("snapshot.").and_then(|rest| rest.strip_suffix(".pb"));
    let is_run = |run: &str| is_digits(run.strip_prefix('-').unwrap_or(run));
    if run.is_some_and(is_run) {
        return Some(FileName { kind: Kind::Snapshot, suffix: rest, ..FileName::default() });
    }
    let base = FileName::default();
    let file_name = finish(base, plain, rest.strip_prefix("module_")?);
    (file_name.kind == Kind::Snapshot).then_some(file_name)
}

/// `jax_ir0001_NAME_STAGE.mlir`, which JAX_DUMP_IR_TO writes.
fn jax_ir(plain: &str) -> Option<FileName<'_>> {
    let rest = plain.strip_prefix("jax_ir")?;
    let digits = leading_digits(rest);
    let name = rest.get(digits..)?.strip_prefix('_')?.strip_suffix(".mlir")?;
    let (module_name, after) = name.rsplit_once('_').unwrap_or((name, ""));
    (digits > 0).then(|| FileName { kind: Kind::Ir, module_name, after, ..FileName::default() })
}

/// Sixteen digits and a dot.
fn timestamp(name: &str) -> (Option<u64>, &str) {
    match name.split_once('.') {
        Some((digits, rest)) if digits.len() == 16 && is_digits(digits) => {
            (digits.parse().ok(), rest)
        }
        _ => (None, name),
    }
}

/// `module_` and at least four digits, and the rest.
fn module_prefix(name: &str) -> Option<(u64, &str)> {
    let rest = name.strip_prefix("module_")?;
    let digits = leading_digits(rest);
    let (number, rest) = rest.split_at_checked(digits)?;
    (digits >= 4 && (rest.is_empty() || rest.starts_with('.'))).then_some(())?;
    Some((number.parse().ok()?, rest))
}

/// The name of a module and the number in its `.cl_N`.
fn changelist(head: &str) -> (&str, Option<u64>) {
    let (name, last) = head.rsplit_once('.').unwrap_or(("", head));
    match last.strip_prefix("cl_").filter(|digits| is_digits(digits)) {
        Some(digits) => (name, digits.parse().ok()),
        None => (head, None),
    }
}

pub(super) fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn leading_digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}
