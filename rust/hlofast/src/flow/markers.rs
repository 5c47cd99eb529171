//! Alpa's pipeline sections, between pairs of marker instructions.
//!
//! A marker is a custom call `pipeline_marker` (`xla_fallback_pipeline_marker`) that returns its
//! only operand, a tuple. Its operation name, `layer_1$start` or `layer_1$end`, gives the name of
//! the section and whether the marker starts or ends it. With newer JAX the marker is nested in one
//! or two computations, and the entry contains only a `call`.

use super::contexts::Contexts;
use super::phase::Phase;
use crate::ir::{Module, Opcode, Row};
use std::collections::HashMap;

/// A section of the entry computation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The name in both markers.
    pub name: String,
    /// Backward for names that match `*_backward`, optimizer for `*apply_grad*`, otherwise forward.
    pub phase: Phase,
    /// The first marker's row in the entry, or the row of the call that leads to the marker.
    pub start: Row,
    /// The last marker's row in the entry, or the row of the call that leads to the marker.
    pub end: Option<Row>,
}

/// The sections of a module and the entry's rows in each.
#[derive(Clone, Debug, Default)]
pub struct Sections {
    /// The sections, in the order of their first markers.
    pub sections: Vec<Section>,
    /// Section of each row of the entry computation; `Sections::NONE` outside sections.
    pub of_row: Vec<u32>,
}

impl Sections {
    /// The value in `of_row` for rows outside sections.
    pub const NONE: u32 = u32::MAX;

    /// Whether there is no section.
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    /// The section of `row`, if it is a row of the entry computation.
    pub fn section_of(&self, module: &Module, row: Row) -> Option<&Section> {
        let first = module.computation(module.entry()).first_row;
        let section = *self.of_row.get(row.0.checked_sub(first)? as usize)?;
        self.sections.get(section as usize)
    }
}

/// Limit on the calls between the entry and a marker.
const DEEPEST: u32 = 4;

/// Whether `row` is a marker itself.
pub fn is_marker(module: &Module, row: Row) -> bool {
    if module.opcode(row) != Opcode::CustomCall || module.operands(row).len() != 1 {
        return false;
    }
    const PRINTED: &[u8] = b", custom_call_target=";
    let tail = module.bytes(module.tail(row));
    let value = match tail.strip_prefix(PRINTED) {
        Some(value) => Some(value),
        None => module.attribute_bytes(row, "custom_call_target"),
    };
    let name = value.and_then(|value| value.strip_prefix(b"\""));
    name.is_some_and(|name| {
        name.starts_with(b"pipeline_marker\"")
            || name.starts_with(b"xla_fallback_pipeline_marker\"")
    })
}

/// A row and the place from which the entry reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reached {
    /// The row of the entry that calls `row`, directly or not, or is `row` itself.
    pub place: Row,
    /// The row itself.
    pub row: Row,
    /// Number of calls between `place` and `row`.
    pub calls: u32,
}

/// The `rows` (in text order) that the entry reaches through at most `DEEPEST` calls, sorted by
/// place. Only the first row of each computation is followed.
pub fn through_calls(module: &Module, rows: impl Iterator<Item = Row>) -> Vec<Reached> {
    let mut reached = Vec::new();
    let mut is_seen = Vec::new();
    for row in rows {
        is_seen.resize(module.computations().len(), false);
        let mut level = vec![module.computation_of(row)];
        if level == [module.entry()] {
            reached.push(Reached { place: row, row, calls: 0 });
            continue;
        }
        for calls in 1..=DEEPEST {
            let mut next = Vec::new();
            for id in level {
                if std::mem::replace(&mut is_seen[id.0 as usize], true) {
                    continue;
                }
                for caller in module.callers(id).iter().map(|row| Row(*row)) {
                    if module.opcode(caller) != Opcode::Call {
                        continue;
                    }
                    match module.computation_of(caller) {
                        above if above == module.entry() => {
                            reached.push(Reached { place: caller, row, calls });
                        }
                        above => next.push(above),
                    }
                }
            }
            level = next;
        }
    }
    reached.sort_unstable();
    reached
}

/// The markers, sorted by where the entry reaches them.
pub fn markers(module: &Module) -> Vec<Reached> {
    through_calls(module, module.rows().filter(|row| is_marker(module, *row)))
}

/// The section name and the mark (`start` or `end`) of a marker.
pub fn name_and_mark(module: &Module, marker: Row) -> Option<(String, String)> {
    let columns = module.metadata_columns();
    let id = usize::try_from(columns.op_name[marker.0 as usize]).ok()?;
    let name = module.bytes(*columns.op_names.get(id)?);
    let (name, mark) = std::str::from_utf8(name).ok()?.rsplit_once('$')?;
    Some((name.to_string(), mark.to_string()))
}

fn phase_of(name: &str) -> Phase {
    if name.ends_with("_backward") {
        Phase::Backward
    } else if name.contains("apply_grad") {
        Phase::Optimizer
    } else {
        Phase::Forward
    }
}

/// The sections of `module`; empty without markers.
///
/// An instruction belongs to a section if it depends on the section's first marker, with no other
/// marker in between. An instruction that depends on no marker belongs to the first section that
/// uses it.
pub fn sections(module: &Module) -> Sections {
    const NONE: u32 = Sections::NONE;
    let markers = markers(module);
    let mut sections = Sections::default();
    if markers.is_empty() {
        return sections;
    }
    let rows = module.computation(module.entry()).rows();
    let first = rows.start;
    // The section that users of a row inherit, and whether the row is barred from taking a user's
    // section.
    let mut inherited = vec![NONE; rows.len()];
    let mut is_fixed = vec![false; rows.len()];
    sections.of_row = vec![NONE; rows.len()];
    let mut by_name: HashMap<String, u32> = HashMap::new();
    let mut next_marker = markers.iter().peekable();
    for row in rows.clone() {
        let at = (row - first) as usize;
        let from_operands = module
            .operands(Row(row))
            .iter()
            .filter_map(|operand| inherited.get(operand.checked_sub(first)? as usize))
            .find(|section| **section != NONE)
            .copied();
        let marker = next_marker.next_if(|marker| marker.place.0 == row);
        while next_marker.next_if(|marker| marker.place.0 == row).is_some() {}
        let named = marker.and_then(|marker| name_and_mark(module, marker.row));
        is_fixed[at] = marker.is_some() || module.opcode(Row(row)) == Opcode::Parameter;
        match named {
            Some((name, mark)) if mark == "start" => {
                let section = sections.sections.len() as u32;
                let phase = phase_of(&name);
                by_name.insert(name.clone(), section);
                sections.sections.push(Section { name, phase, start: Row(row), end: None });
                inherited[at] = section;
                sections.of_row[at] = section;
            }
            Some((name, _)) => {
                let section = from_operands.or_else(|| by_name.get(&name).copied());
                sections.of_row[at] = section.unwrap_or(NONE);
                if let Some(section) = section.and_then(|s| sections.sections.get_mut(s as usize)) {
                    section.end = Some(Row(row));
                }
            }
            None => {
                inherited[at] = from_operands.unwrap_or(NONE);
                sections.of_row[at] = inherited[at];
            }
        }
    }
    // Rows that depend on no marker, such as constants, take a user's section; results of markers
    // do not.
    for row in rows.clone() {
        let is_result = module.opcode(Row(row)) == Opcode::GetTupleElement
            && module.operands(Row(row)).iter().any(|operand| {
                operand
                    .checked_sub(first)
                    .is_some_and(|at| is_fixed.get(at as usize) == Some(&true))
            });
        is_fixed[(row - first) as usize] |= is_result;
    }
    for row in rows.rev() {
        let at = (row - first) as usize;
        let section = sections.of_row[at];
        let is_start = sections.sections.get(section as usize).is_some_and(|s| s.start == Row(row));
        if section == NONE || is_start {
            continue;
        }
        for operand in module.operands(Row(row)) {
            let Some(at) = operand.checked_sub(first).map(|at| at as usize) else { continue };
            if inherited.get(at) == Some(&NONE) && is_fixed.get(at) == Some(&false) {
                sections.of_row[at] = section;
            }
        }
    }
    sections
}

/// The phase of each position by sections, including computations that the entry calls. A
/// computation called from sections of different phases is unattributed.
pub(super) fn section_phases(
    module: &Module,
    contexts: &Contexts,
    sections: &Sections,
) -> Vec<Phase> {
    let mut phases = vec![Phase::Unattributed; contexts.positions];
    let of_row = |row: Row| sections.section_of(module, row).map(|section| section.phase);
    let mut of_node: Vec<Option<Phase>> = vec![None; contexts.nodes.len()];
    for edge in &contexts.edges {
        let row = module.all_calls()[edge.call as usize].row;
        let caller = match edge.caller {
            0 => of_row(row).unwrap_or_default(),
            caller => of_node[caller as usize].unwrap_or_default(),
        };
        let callee = &mut of_node[edge.callee as usize];
        *callee = Some(match *callee {
            Some(known) if known != caller => Phase::Unattributed,
            _ => caller,
        });
    }
    for (id, node) in contexts.nodes.iter().enumerate() {
        for row in module.computation(node.computation).rows() {
            let at = contexts.position(module, id as u32, Row(row));
            phases[at] = match id {
                0 => of_row(Row(row)).unwrap_or_default(),
                _ => of_node[id].unwrap_or_default(),
            };
        }
    }
    phases
}
