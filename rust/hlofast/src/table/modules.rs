//! The tables that describe modules as a whole: the module, its computations, its instructions.

use super::{Columns, Field, Origin, common, narrow, number, shape_text};
use crate::cost::Cost;
use crate::flow::{Attribution, Callers};
use crate::ir::{ComputationId, Module, Opcode, Row};
use crate::summary::Summary;

/// One row per computation: the cost of one execution, and how often the totals count it.
pub fn computations(module: &Module, cost: &Cost, summary: &Summary) -> Columns {
    let uses = &summary.computations;
    let name = |id: ComputationId| module.computation_name(id);
    let each = || uses.iter();
    let of = |id: ComputationId| cost.computations.get(id.0 as usize).copied().unwrap_or_default();
    let runs = |id: ComputationId| cost.executions.get(id.0 as usize).copied().flatten();
    let mut table = Columns::default();
    table.texts(
        common::computation().renamed("computation", "The name of the computation."),
        each().map(|usage| name(usage.computation)),
    );
    table.texts(
        Field::word(
            "role",
            "The role of the computation: entry, body, condition, branch and so on.",
        ),
        each().map(|usage| usage.role.as_str()),
    );
    table.numbers(common::instructions(), each().map(|usage| usage.instructions as i64));
    table.numbers(
        Field::count("callers", "Instructions that call the computation."),
        each().map(|usage| usage.callers as i64),
    );
    table
        .numbers(common::multiplicity(), each().map(|usage| runs(usage.computation).unwrap_or(-1)));
    table.numbers(common::flops_once(), each().map(|usage| narrow(of(usage.computation).flops)));
    let transcendentals = each().map(|usage| narrow(of(usage.computation).transcendentals));
    table.numbers(common::once(common::transcendentals()), transcendentals);
    table.numbers(
        common::once(common::bytes_read()),
        each().map(|usage| narrow(of(usage.computation).bytes_read)),
    );
    table.numbers(
        common::once(common::bytes_written()),
        each().map(|usage| narrow(of(usage.computation).bytes_written)),
    );
    table
}

/// One row per instruction: its description and origin, the cost of one execution, and how often
/// the totals count it.
pub fn instructions(origin: &Origin<'_>, cost: &Cost, attribution: &Attribution) -> Columns {
    let module = origin.module;
    let each = || (0..module.row_count() as u32).map(Row);
    let at = |row: Row| row.0 as usize;
    let mut table = Columns::default();
    table.rows(common::instruction(), each());
    table.texts(common::name(), each().map(|row| module.instruction_name(row)));
    let opcode = |row: Row| match module.opcode(row) {
        Opcode::Unknown => module.opcode_text(row),
        opcode => opcode.as_str().as_bytes(),
    };
    table.texts(common::opcode(), each().map(opcode));
    let place = |row: Row| module.computation_name(module.computation_of(row));
    table.texts(common::computation(), each().map(place));
    table.flags(
        Field::flag(
            "is_implicit",
            "Whether the instruction is implied by the text rather than written.",
        )
        .label("implicit"),
        each().map(|row| module.is_implicit(row)),
    );
    let mut left = module.text().len().saturating_mul(8).saturating_add(1 << 20);
    let shape = |row: Row| {
        let text = shape_text(module, module.shape(row), left.clamp(16, 4096));
        left = left.saturating_sub(text.len());
        text
    };
    table.texts(common::shape(), each().map(shape));
    let bytes = module.shape_bytes_column();
    table.numbers(
        common::shape_bytes(),
        each().map(|row| bytes.get(at(row)).copied().unwrap_or(-1)),
    );
    let mut counts = |field, values: &[i64]| {
        table.numbers(field, each().map(|row| values.get(at(row)).copied().unwrap_or(-1)));
    };
    counts(common::flops_once(), &cost.flops);
    counts(common::once(common::transcendentals()), &cost.transcendentals);
    counts(common::once(common::bytes_read()), &cost.bytes_read);
    counts(common::once(common::bytes_written()), &cost.bytes_written);
    let runs = |row: Row| cost.executions.get(module.computation_of(row).0 as usize).copied();
    table.numbers(common::multiplicity(), each().map(|row| runs(row).flatten().unwrap_or(-1)));
    let known = |row: Row| cost.provenance.get(at(row)).map_or("", |known| known.as_str());
    table.texts(common::provenance(), each().map(known));
    let phases = attribution.phases(module);
    let phase = |row: Row| phases.get(at(row)).map_or("", |phase| phase.as_str());
    table.texts(common::phase(), each().map(phase));
    let scopes = origin.scopes(attribution);
    let scope = |row: Row| attribution.scope.get(at(row)).copied().unwrap_or(0);
    table.written(common::scope(), each(), |row, out| scopes.write(scope(row), out));
    origin.columns(each(), &mut table);
    table
}

/// How many parameters a finding names.
const SHOWN: usize = 8;

/// How many calls of the line of a finding are named, and how many of its places are looked at.
const CALLS: (usize, usize) = (4, 64);

/// The lines that call the function whose line is that of `finding`, if several lines call it:
/// `model.py:9`, or `model.py:9 from model.py:21` if line 9 is one of a shared function too.
pub fn calls(callers: &Callers<'_>, finding: &crate::lint::Finding) -> Vec<String> {
    let places = usize::try_from(finding.places).unwrap_or(usize::MAX);
    let own = finding.rows.iter().take(places.min(CALLS.1)).copied();
    let mut texts: Vec<String> = Vec::new();
    for row in finding.source.into_iter().chain(own) {
        let call =
            |(file, line): &(&[u8], i64)| format!("{}:{line}", String::from_utf8_lossy(file));
        let text = callers.of(row).iter().map(call).collect::<Vec<_>>().join(" from ");
        if texts.len() < CALLS.0 && !text.is_empty() && !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

/// One row per finding; findings with more at stake come first.
pub fn findings(
    origin: &Origin<'_>,
    callers: &Callers<'_>,
    findings: &[crate::lint::Finding],
) -> Columns {
    let module = origin.module;
    let each = || findings.iter();
    let first = |finding: &crate::lint::Finding| finding.rows.first().copied();
    let mut table = Columns::default();
    let name = |row: Row| module.instruction_name(row);
    table.texts(Field::word("code", "The rule of the finding."), each().map(|f| f.code));
    let doc = "The first instruction of the finding.";
    let field = common::name().renamed("name", doc).nullable();
    table.texts(field, each().map(|finding| first(finding).map_or(&b""[..], name)));
    let doc = "The row number of the finding's first instruction.";
    let field = common::instruction().renamed("instruction", doc).nullable();
    table.numbers(field, each().map(|finding| super::row_or_none(first(finding))));
    let field = Field::count("instructions", "Instructions that are its evidence.");
    table.numbers(field, each().map(|finding| finding.rows.len() as i64));
    let field = Field::count("places", "Places that the finding combines.");
    table.numbers(field, each().map(|finding| number(Some(finding.places))));
    let doc = "Bytes at stake per step and device.";
    table.numbers(Field::bytes("bytes", doc).nullable(), each().map(|f| number(f.bytes)));
    let doc = "Bytes by which the peak of memory falls if what the finding names changes and all \
               else stays.";
    let peaks = each().map(|f| number(f.falls.map(|falls| falls.peak)));
    table.numbers(Field::bytes("peak_bytes", doc).nullable(), peaks);
    let doc =
        "Bytes by which what XLA allocates falls with that change, gaps in its heap among them.";
    let allocated = each().map(|f| number(f.falls.and_then(|falls| falls.allocated)));
    table.numbers(Field::bytes("allocated_bytes", doc).nullable(), allocated);
    let doc = "What the bytes are: wire, payload, memory or traffic.";
    let field = Field::word("bytes_are", doc).nullable();
    table.texts(field, each().map(|finding| finding.measure.as_str()));
    let field = Field::flops("flops", "FLOPs at stake per step.").label("FLOP").nullable();
    table.numbers(field, each().map(|finding| number(finding.flops)));
    let doc = "Modelled seconds that the bytes or FLOPs at stake take per step, without overlap; \
               unknown for bytes of memory.";
    let field = Field::seconds("seconds", doc).label("at stake").nullable();
    table.reals(field, each().map(|finding| finding.seconds.unwrap_or(f64::NAN)));
    let named = |row: &Row| origin.argument_name(*row);
    let values = |finding: &crate::lint::Finding| {
        let names: Vec<_> = finding.parameters.iter().take(SHOWN).map(named).collect();
        names.join(&b", "[..])
    };
    let doc = "Names of the parameters that the finding is about (first 8).";
    let field = Field::text("values", doc).nullable();
    table.texts(field, each().map(values));
    let phases = |finding: &crate::lint::Finding| {
        let phases: Vec<&str> = finding.phases.iter().map(|phase| phase.as_str()).collect();
        phases.join("+")
    };
    let field = Field::word("phase", "The phases of the places, joined by +.").nullable();
    table.texts(field, each().map(phases));
    let file = |row: Row| origin.source_file(row).unwrap_or_default();
    let files = each().map(|finding| finding.source.map(file).unwrap_or_default());
    table.texts(common::source_file(), files);
    let line = |row: Row| origin.source_line(row);
    table.numbers(common::source_line(), each().map(|f| f.source.map_or(-1, line)));
    let called_at = |finding: &crate::lint::Finding| {
        let texts: Vec<String> = calls(callers, finding);
        texts.join(", ")
    };
    let doc = "The lines that call it, if it is a line of a function that several lines call, and \
               where those are called from if they are lines of such a function too.";
    table.texts(Field::text("called_at", doc).nullable(), each().map(called_at));
    table.flags(common::is_lower_bound(), each().map(|finding| finding.is_lower_bound));
    let doc = "Provenance of what is at stake.";
    table.texts(Field::word("provenance", doc), each().map(|f| f.provenance.as_str()));
    table.texts(
        Field::text("message", "What was found, with its figures."),
        each().map(|f| &f.message),
    );
    table.texts(Field::text("remedy", "What to change."), each().map(|f| f.remedy));
    table
}
