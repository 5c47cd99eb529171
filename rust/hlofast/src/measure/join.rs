//! Which program of a profile a module is, and which of its rows the events name.

use crate::ir::{Module, Row};
use crate::profile::{NONE, Profile};

/// The program of a module and the rows of its instructions.
pub(super) struct Joined {
    /// Index in [`Profile::programs`].
    pub(super) program: u32,
    /// By number of a name: the row, or [`NONE`].
    rows: Vec<u32>,
}

impl Joined {
    /// The row of the instruction named `op`, or [`NONE`].
    pub(super) fn row(&self, op: u32) -> u32 {
        self.rows.get(op as usize).copied().unwrap_or(NONE)
    }
}

/// Joins `module` with the program whose instructions it has: among programs of the module's name,
/// or else among all, the one with most joined time. None if no event names an instruction of it.
pub(super) fn join(module: &Module, profile: &Profile, wanted: Option<u32>) -> Option<Joined> {
    let rows: Vec<u32> = (0..profile.names.len() as u32)
        .map(|number| row_named(module, profile.names.get(number).unwrap_or_default()))
        .collect();
    let events = &profile.events;
    let mut joined = vec![0i128; profile.programs.len()];
    let mut total = vec![0i128; profile.programs.len()];
    for at in 0..events.len() {
        let Some(sum) = total.get_mut(events.program[at] as usize) else { continue };
        let length = i128::from(events.duration_ps[at].max(1));
        *sum += length;
        if events.op[at] != NONE && rows[events.op[at] as usize] != NONE {
            joined[events.program[at] as usize] += length;
        }
    }
    let name = module.name();
    let is_same = |at: &usize| {
        let program = profile.programs[*at].name.as_bytes();
        program == name || normal(program) == normal(name)
    };
    let candidates = 0..profile.programs.len();
    let program = match wanted {
        Some(program) => Some(program as usize),
        None => {
            let same: Vec<usize> = candidates.clone().filter(is_same).collect();
            // A program of another name has to have most of its time in instructions of this one.
            let others = candidates.filter(|at| 2 * joined[*at] > total[*at]);
            let best = |list: Vec<usize>| {
                list.into_iter().filter(|at| joined[*at] > 0).max_by_key(|at| joined[*at])
            };
            best(same).or_else(|| best(others.collect()))
        }
    };
    let program = program.filter(|at| joined.get(*at).is_some_and(|time| *time > 0))?;
    Some(Joined { program: program as u32, rows })
}

/// The name without the number that XLA or a profiler appends: `jit_step.12` and `jit_step(12)`
/// are `jit_step`.
fn normal(name: &[u8]) -> &[u8] {
    let name = match name.iter().position(|byte| *byte == b'(') {
        Some(at) => &name[..at],
        None => name,
    };
    match name.iter().rposition(|byte| *byte == b'.') {
        Some(at) if name[at + 1..].iter().all(u8::is_ascii_digit) => &name[..at],
        _ => name,
    }
}

/// The row of the instruction `name`, or [`NONE`]. Of several it is the one outside fusions and
/// reducers, which a profiler sees.
fn row_named(module: &Module, name: &str) -> u32 {
    let name = name.strip_prefix('%').unwrap_or(name);
    let rows = module.find_instructions(name.as_bytes());
    let is_explicit = |row: &&u32| !module.is_implicit(Row(**row));
    let entry = module.computation(module.entry()).rows();
    let in_entry = rows.iter().find(|row| entry.contains(row));
    in_entry.or_else(|| rows.iter().find(is_explicit)).or(rows.first()).copied().unwrap_or(NONE)
}
