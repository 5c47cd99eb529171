//! Operation names: complete names, and relative names that continue the name of a call site.
//!
//! New JAX lowers every function once and names its instructions relative to the function; the call
//! site holds the rest (`jit(step)/transpose(jvp())/while/body/closed_call` calls a computation
//! with `checkpoint/mlp/mul`). A relative name may look complete (`jit(_where)/select_n`), so a
//! name is complete only if its first component is a call, such as `jit(step)`, and also begins a
//! name of the entry computation.

use super::scope::{Marks, PathReader, ScopeTree, component_end, name_parts};
use crate::ir::derived_metadata::MetadataColumns;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row};
use crate::text::Span;
use hashbrown::{HashMap, HashSet};

/// The scope is unknown because the name needs a prefix.
pub(super) const RELATIVE: u32 = u32::MAX;

/// The distinct operation names of a module and their scopes.
pub(super) struct Names<'a> {
    module: &'a Module,
    columns: &'a MetadataColumns,
    /// The scope of each complete name; `RELATIVE` for relative names.
    complete: Vec<u32>,
    /// Scopes of relative names by (prefix, name).
    relative: HashMap<(u32, u32), u32, BuildMix>,
    reader: PathReader,
}

impl<'a> Names<'a> {
    /// Reads every distinct name of `module` once.
    pub fn new(module: &'a Module, scopes: &mut ScopeTree) -> Self {
        let columns = module.metadata_columns();
        let mut names = Self {
            module,
            columns,
            complete: vec![RELATIVE; columns.op_names.len()],
            relative: HashMap::default(),
            reader: PathReader::default(),
        };
        // Most names add one component, some add a few.
        scopes.reserve(columns.op_names.len() + columns.op_names.len() / 4);
        let roots = names.roots();
        let mut last: &[u8] = b"";
        for (id, span) in columns.op_names.iter().enumerate() {
            let name = module.bytes(*span);
            if !roots.is_empty() && !begins_with(name, last) {
                let first = first_component(name);
                // The first component is empty, and so not a call, if the name begins with a slash.
                if !roots.contains(first) {
                    continue;
                }
                // A component that ends at a slash has no open bracket, so the same bytes are a
                // component in other names too.
                last = if first.len() < name.len() { first } else { b"" };
            }
            names.complete[id] = names.read(scopes, ScopeTree::ROOT, *span);
        }
        names
    }

    /// The calls with which names of the entry computation begin.
    fn roots(&self) -> HashSet<&'a [u8], BuildMix> {
        let mut roots = HashSet::default();
        let mut is_seen = vec![false; self.columns.op_names.len()];
        let rows = self.module.computation(self.module.entry()).rows();
        for row in rows {
            let Some(id) = self.id(Row(row)) else { continue };
            if std::mem::replace(&mut is_seen[id as usize], true) {
                continue;
            }
            let first = first_component(self.module.bytes(self.columns.op_names[id as usize]));
            if roots.contains(first) {
                continue;
            }
            let marks = Marks::of_first(first);
            if marks.has(Marks::CALL) && !marks.has(Marks::JVP | Marks::TRANSPOSE) {
                roots.insert(first);
            }
        }
        roots
    }

    /// The number of the name of `row`.
    #[inline]
    pub fn id(&self, row: Row) -> Option<u32> {
        u32::try_from(self.columns.op_name[row.0 as usize]).ok()
    }

    /// Whether name `id` needs a prefix.
    #[inline]
    pub fn is_relative(&self, id: u32) -> bool {
        self.complete[id as usize] == RELATIVE
    }

    /// The length of name `id` in bytes.
    pub fn length(&self, id: u32) -> usize {
        self.columns.op_names[id as usize].len()
    }

    /// The scope of name `id` in a computation whose names continue `prefix`.
    #[inline]
    pub fn scope(&mut self, scopes: &mut ScopeTree, prefix: u32, id: u32) -> u32 {
        let complete = self.complete[id as usize];
        if complete != RELATIVE {
            return complete;
        }
        if let Some(scope) = self.relative.get(&(prefix, id)) {
            return *scope;
        }
        let scope = self.read(scopes, prefix, self.columns.op_names[id as usize]);
        self.relative.insert((prefix, id), scope);
        scope
    }

    /// Like `scope`, for a computation that an operation named `prefix` applies to elements: a name
    /// equal to the end of the prefix is not repeated.
    pub fn applied_scope(&mut self, scopes: &mut ScopeTree, prefix: u32, id: u32) -> u32 {
        let name = self.module.bytes(self.columns.op_names[id as usize]);
        if self.is_relative(id) && scopes.path_ends_with(self.module, prefix, name) {
            return prefix;
        }
        self.scope(scopes, prefix, id)
    }

    /// The scope of `name`; of names joined by `;`, the first that indicates a phase, otherwise the
    /// first.
    fn read(&mut self, scopes: &mut ScopeTree, prefix: u32, name: Span) -> u32 {
        let Self { module, reader, .. } = self;
        let bytes = module.bytes(name);
        if memchr::memchr(b';', bytes).is_none() {
            return reader.scope(scopes, module, prefix, name);
        }
        let mut parts = name_parts(bytes, name).filter(|part| !part.is_empty());
        let Some(first) = parts.next() else { return prefix };
        let first = reader.scope(scopes, module, prefix, first);
        if scopes.marks(first).says_something() {
            return first;
        }
        for part in parts {
            let scope = reader.scope(scopes, module, prefix, part);
            if scopes.marks(scope).says_something() {
                return scope;
            }
        }
        first
    }
}

/// Whether `name` also begins with `first`, the first component of a longer path; false if `first`
/// is empty.
fn begins_with(name: &[u8], first: &[u8]) -> bool {
    let rest = name.strip_prefix(first).filter(|_| !first.is_empty());
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// The first component of a path.
fn first_component(name: &[u8]) -> &[u8] {
    &name[..component_end(name, 0)]
}
