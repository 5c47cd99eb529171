//! Names in printed text: unique in their scope and valid for XLA's parser.

use super::copy::Renaming;
use crate::ir::{ComputationId, ElementType, Flags, Module, Opcode, Row};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// The names that differ from names in the module.
#[derive(Default)]
pub(crate) struct Names {
    rows: HashMap<u32, Vec<u8>>,
    computations: HashMap<u32, Vec<u8>>,
    /// Names that override all other names.
    pub(super) renaming: Renaming,
}

/// Whether `row` is an implicit get-tuple-element, which folded text writes as `%x#0`.
pub(crate) fn is_tuple_path(module: &Module, row: Row) -> bool {
    module.is_implicit(row) && module.opcode(row) == Opcode::GetTupleElement
}

/// Whether XLA's parser accepts `name` as the name of an instruction.
pub(crate) fn is_valid_name(name: &[u8]) -> bool {
    !name.contains(&b'#')
        && ElementType::from_bytes(name).is_none()
        && (!name.starts_with(b"__") || name.starts_with(b"__xla_"))
}

/// Whether `name` needs its `%`, to differ from a keyword, a type or a number.
pub(crate) fn needs_percent(name: &[u8]) -> bool {
    const KEYWORDS: [&[u8]; 19] = [
        b"true",
        b"false",
        b"inf",
        b"nan",
        b"HloModule",
        b"ENTRY",
        b"ROOT",
        b"FileLocations",
        b"FileNames",
        b"FunctionNames",
        b"StackFrames",
        b"maximal",
        b"replicated",
        b"manual",
        b"last_tile_dim_replicate",
        b"shard_as",
        b"shard_like",
        b"unknown",
        b"unreduced",
    ];
    KEYWORDS.contains(&name) || ElementType::from_bytes(name).is_some()
}

impl Names {
    /// The names for printing `module`, with tuple paths folded or as instructions.
    pub(crate) fn new(module: &Module, fold: bool) -> Self {
        let mut names = Self::default();
        for (index, computation) in module.computations().iter().enumerate() {
            names.name_rows(module, ComputationId(index as u32), fold);
            if computation.is_inline || computation.is_implicit {
                names.computations.insert(index as u32, Vec::new());
            }
        }
        if !names.computations.is_empty() {
            names.name_computations(module);
        }
        names
    }

    fn name_rows(&mut self, module: &Module, id: ComputationId, fold: bool) {
        let changes = |row: Row| {
            if module.flags(row) & Flags::IMPLICIT != 0 {
                return !(fold && is_tuple_path(module, row));
            }
            !is_valid_name(module.instruction_name(row))
        };
        let rows = || module.computation(id).rows().map(Row);
        let changed: Vec<Row> = rows().filter(|row| changes(*row)).collect();
        if changed.is_empty() {
            return;
        }
        let kept = rows().filter(|row| !changes(*row)).map(|row| module.instruction_name(row));
        let mut taken: HashSet<Cow<'_, [u8]>> = kept.map(Cow::Borrowed).collect();
        let computation = module.computation(id);
        for row in changed {
            let old = module.instruction_name(row);
            let mut wanted = valid_name(old);
            if computation.is_implicit && module.opcode(row) == Opcode::Parameter {
                // XLA makes names unique within a module: repeated `param_0`s would be renamed to
                // names that the text already has, such as `param_0.5`.
                wanted = [module.bytes(computation.name), b".", &wanted].concat();
            }
            let name = unique(wanted, &mut taken);
            if name != old {
                self.rows.insert(row.0, name);
            }
        }
    }

    fn name_computations(&mut self, module: &Module) {
        let all = || module.computations().iter().enumerate();
        let written = all().filter(|(_, c)| !c.is_inline && !c.is_implicit);
        let mut taken: HashSet<Cow<'_, [u8]>> =
            written.map(|(_, c)| Cow::Borrowed(module.bytes(c.name))).collect();
        for (index, computation) in all().filter(|(_, c)| c.is_inline || c.is_implicit) {
            let name = unique(valid_name(module.bytes(computation.name)), &mut taken);
            self.computations.insert(index as u32, name);
        }
    }

    /// The name of `row`.
    pub(crate) fn row<'a>(&'a self, module: &'a Module, row: Row) -> &'a [u8] {
        match self.renaming.rows.get(&row.0).or_else(|| self.rows.get(&row.0)) {
            Some(name) => name,
            None => module.instruction_name(row),
        }
    }

    /// The name of computation `id`.
    pub(crate) fn computation<'a>(&'a self, module: &'a Module, id: ComputationId) -> &'a [u8] {
        let renamed = self.renaming.computations.get(&id.0);
        match renamed.or_else(|| self.computations.get(&id.0)) {
            Some(name) => name,
            None => module.computation_name(id),
        }
    }
}

/// `name` with the smallest change that makes it valid.
fn valid_name(name: &[u8]) -> Vec<u8> {
    let mut name: Vec<u8> =
        name.iter().map(|byte| if *byte == b'#' { b'_' } else { *byte }).collect();
    if !is_valid_name(&name) {
        if name.starts_with(b"__") {
            let underscores = name.iter().take_while(|byte| **byte == b'_').count();
            name.drain(..underscores - 1);
        }
        if ElementType::from_bytes(&name).is_some() {
            name.push(b'_');
        }
    }
    name
}

/// `name`, with a number if it is taken; marks the result as taken.
fn unique(name: Vec<u8>, taken: &mut HashSet<Cow<'_, [u8]>>) -> Vec<u8> {
    let mut candidate = name.clone();
    let mut count = 0u64;
    while taken.contains(&candidate[..]) {
        count += 1;
        candidate.clone_from(&name);
        candidate.extend_from_slice(format!(".{count}").as_bytes());
    }
    taken.insert(Cow::Owned(candidate.clone()));
    candidate
}
