//! The tables that describe modules as a whole: the module, its computations, its instructions.

use super::{Columns, Origin, ScopeTexts, narrow, number, shape_text};
use crate::cost::Cost;
use crate::flow::Attribution;
use crate::ir::{ComputationId, Module, Opcode, Row};
use crate::summary::Summary;

/// One row per computation: what one execution costs, and how often the totals count it.
pub fn computations(module: &Module, cost: &Cost, summary: &Summary) -> Columns {
    let uses = &summary.computations;
    let name = |id: ComputationId| module.computation_name(id);
    let each = || uses.iter();
    let of = |id: ComputationId| cost.computations.get(id.0 as usize).copied().unwrap_or_default();
    let runs = |id: ComputationId| cost.executions.get(id.0 as usize).copied().flatten();
    let mut table = Columns::default();
    table.texts("computation", each().map(|usage| name(usage.computation)));
    table.texts("role", each().map(|usage| usage.role.as_str()));
    table.numbers("instructions", each().map(|usage| usage.instructions as i64));
    table.numbers("callers", each().map(|usage| usage.callers as i64));
    table.numbers("multiplicity", each().map(|usage| runs(usage.computation).unwrap_or(-1)));
    table.numbers("flops", each().map(|usage| narrow(of(usage.computation).flops)));
    let transcendentals = each().map(|usage| narrow(of(usage.computation).transcendentals));
    table.numbers("transcendentals", transcendentals);
    table.numbers("bytes_read", each().map(|usage| narrow(of(usage.computation).bytes_read)));
    table.numbers("bytes_written", each().map(|usage| narrow(of(usage.computation).bytes_written)));
    table
}

/// One row per instruction: what it is, where it comes from, what one execution costs, and how often
/// the totals count it.
pub fn instructions(module: &Module, cost: &Cost, attribution: &Attribution) -> Columns {
    let each = || (0..module.row_count() as u32).map(Row);
    let at = |row: Row| row.0 as usize;
    let mut table = Columns::default();
    table.rows("instruction", each());
    table.texts("name", each().map(|row| module.instruction_name(row)));
    let opcode = |row: Row| match module.opcode(row) {
        Opcode::Unknown => module.opcode_text(row),
        opcode => opcode.as_str().as_bytes(),
    };
    table.texts("opcode", each().map(opcode));
    let place = |row: Row| module.computation_name(module.computation_of(row));
    table.texts("computation", each().map(place));
    table.flags("is_implicit", each().map(|row| module.is_implicit(row)));
    let mut left = module.text().len().saturating_mul(8).saturating_add(1 << 20);
    let shape = |row: Row| {
        let text = shape_text(module, module.shape(row), left.clamp(16, 4096));
        left = left.saturating_sub(text.len());
        text
    };
    table.texts("shape", each().map(shape));
    let bytes = module.shape_bytes_column();
    table.numbers("shape_bytes", each().map(|row| bytes.get(at(row)).copied().unwrap_or(-1)));
    let mut counts = |name, values: &[i64]| {
        table.numbers(name, each().map(|row| values.get(at(row)).copied().unwrap_or(-1)));
    };
    counts("flops", &cost.flops);
    counts("transcendentals", &cost.transcendentals);
    counts("bytes_read", &cost.bytes_read);
    counts("bytes_written", &cost.bytes_written);
    let runs = |row: Row| cost.executions.get(module.computation_of(row).0 as usize).copied();
    table.numbers("multiplicity", each().map(|row| runs(row).flatten().unwrap_or(-1)));
    let known = |row: Row| cost.provenance.get(at(row)).map_or("", |known| known.as_str());
    table.texts("provenance", each().map(known));
    let phase = |row: Row| attribution.phase.get(at(row)).map_or("", |phase| phase.as_str());
    table.texts("phase", each().map(phase));
    let scopes = ScopeTexts::new(module, &attribution.scopes);
    let scope = |row: Row| attribution.scope.get(at(row)).copied().unwrap_or(0);
    table.texts("scope", each().map(|row| scopes.text(scope(row))));
    Origin::new(module).columns(each(), &mut table);
    table
}

/// One row per finding, those with most at stake first.
pub fn findings(module: &Module, findings: &[crate::lint::Finding]) -> Columns {
    let origin = Origin::new(module);
    let each = || findings.iter();
    let first = |finding: &crate::lint::Finding| finding.rows.first().copied();
    let mut table = Columns::default();
    table.texts("code", each().map(|finding| finding.code.as_str()));
    table.texts("message", each().map(|finding| &finding.message));
    table.texts("remedy", each().map(|finding| finding.remedy));
    table.numbers("instruction", each().map(|finding| super::row_or_none(first(finding))));
    let name = |row: Row| module.instruction_name(row);
    table.texts("name", each().map(|finding| first(finding).map_or(&b""[..], name)));
    table.numbers("places", each().map(|finding| number(Some(finding.places))));
    table.numbers("bytes", each().map(|finding| number(finding.bytes)));
    table.texts("bytes_are", each().map(|finding| finding.measure.as_str()));
    table.numbers("flops", each().map(|finding| number(finding.flops)));
    table.flags("is_lower_bound", each().map(|finding| finding.is_lower_bound));
    table.texts("provenance", each().map(|finding| finding.provenance.as_str()));
    let file = |row: Row| origin.source_file(row).unwrap_or_default();
    table.texts("source_file", each().map(|f| first(f).map(file).unwrap_or_default()));
    let line = |row: Row| origin.source_line(row);
    table.numbers("source_line", each().map(|f| first(f).map_or(-1, line)));
    table
}
