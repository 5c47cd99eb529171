//! Model code that runs outside of the differentiated part of a step: targets, references,
//! evaluations, second updates.
//!
//! Such work may depend on the backward pass through updated parameters, so data flow alone would
//! call it optimizer work. It is known by the code that it shares with differentiated work: the
//! scopes (`jit(update)/jvp(Net)/block/dot_general`, `jit(update)/Net/block/dot_general`), or, of
//! matmuls and convolutions, the source line. An optimizer shares no scopes. It may share the line of a
//! function that all matmuls call, but multiplies gradients with gradients there, and not with data.

use super::contexts::Contexts;
use super::phase::NameClass;
use super::scope::{STEPS, ScopeTree};
use crate::ir::intern::{BuildMix, hash_bytes};
use crate::ir::{Module, Opcode, Row};
use hashbrown::HashSet;

/// Limit on the components of a path that is compared.
const DEEPEST: u32 = 64;
/// Number of names from which a path is known wherever it is called.
const ENOUGH: usize = 2;

/// Further such components. They may stand around one call of a function and not around another.
const CALLS: [&[u8]; 4] = [b"scan", b"core_call", b"shard_map", b"custom_vjp_call"];

/// Transformations around a name.
const AROUND: [&[u8]; 4] = [b"jvp", b"transpose", b"vmap", b"remat"];

/// Makes undifferentiated positions model code where differentiated ones share their scopes or, if
/// products, their line. `class` has the class of each position.
pub(super) fn mark_model_code(
    module: &Module,
    contexts: &Contexts,
    scopes: &ScopeTree,
    scope: &[u32],
    class: &mut [NameClass],
) {
    let is_model = by_scopes(module, scopes, scope, class);
    for (class, scope) in class.iter_mut().zip(scope) {
        if *class == NameClass::Plain && is_model[*scope as usize] {
            *class = NameClass::Model;
        }
    }
    by_lines(module, contexts, class);
}

/// For each scope, whether its path is that of differentiated work.
fn by_scopes(module: &Module, scopes: &ScopeTree, scope: &[u32], class: &[NameClass]) -> Vec<bool> {
    let mut own = vec![NameClass::Unknown; scopes.len()];
    for (scope, class) in scope.iter().zip(class) {
        own[*scope as usize] = *class;
    }
    let of_class = |wanted: NameClass| {
        let own = &own;
        (0..scopes.len() as u32).filter(move |scope| own[*scope as usize] == wanted)
    };
    // Paths from the outermost name, and those from the differentiated function inwards.
    let mut whole: HashSet<u64, BuildMix> = HashSet::default();
    let mut inner: HashSet<u64, BuildMix> = HashSet::default();
    // Paths of one parent have the same names.
    let mut is_met = vec![false; scopes.len()];
    for scope in of_class(NameClass::Forward) {
        if std::mem::replace(&mut is_met[scopes.parent(scope) as usize], true) {
            continue;
        }
        let mut differentiated = None;
        let outermost = walk(module, scopes, scope, |names, is_jvp| {
            if is_jvp && names.count > 0 {
                differentiated = Some(names);
            }
        });
        if let Some(names) = differentiated {
            whole.extend(outermost.map(|names| names.hash));
            if names.count >= ENOUGH {
                inner.insert(names.hash);
            }
        }
    }
    let mut is_model = vec![false; scopes.len()];
    if whole.is_empty() {
        return is_model;
    }
    let mut of_parent: Vec<Option<bool>> = vec![None; scopes.len()];
    for scope in of_class(NameClass::Plain) {
        let known = &mut of_parent[scopes.parent(scope) as usize];
        is_model[scope as usize] = *known.get_or_insert_with(|| {
            let mut is_known = false;
            let outermost = walk(module, scopes, scope, |names, _| {
                is_known |= names.count >= ENOUGH && inner.contains(&names.hash);
            });
            is_known || outermost.is_some_and(|names| whole.contains(&names.hash))
        });
    }
    is_model
}

/// The names of a path from its end.
#[derive(Clone, Copy, Default)]
struct PathNames {
    count: usize,
    hash: u64,
}

/// Calls `at` with the names from each component of the path of `scope` on, without the operation
/// itself, and whether that component says `jvp`, from the innermost to the outermost; returns all
/// names. `None` for a path that is too deep.
fn walk(
    module: &Module,
    scopes: &ScopeTree,
    scope: u32,
    mut at: impl FnMut(PathNames, bool),
) -> Option<PathNames> {
    if scopes.depth(scope) > DEEPEST {
        return None;
    }
    let mut names = PathNames::default();
    let mut scope = scopes.parent(scope);
    while scope != ScopeTree::ROOT {
        let (name, is_jvp) = inside(scopes.component(module, scope));
        if let Some(name) = name {
            let mixed = names.hash.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            names = PathNames { count: names.count + 1, hash: mixed ^ hash_bytes(name) };
        }
        at(names, is_jvp);
        scope = scopes.parent(scope);
    }
    Some(names)
}

/// The name that a component gives to code of the program, if any, and whether it is differentiated.
fn inside(component: &[u8]) -> (Option<&[u8]>, bool) {
    let (mut rest, mut is_jvp) = (component, false);
    while let Some(open) = memchr::memchr(b'(', rest) {
        // A call of a function, `jit(silu)`, says nothing of where it is called.
        if !AROUND.contains(&&rest[..open]) {
            return (None, is_jvp);
        }
        is_jvp |= &rest[..open] == b"jvp";
        rest = rest[open + 1..].strip_suffix(b")").unwrap_or(&rest[open + 1..]);
    }
    let is_branch = rest.starts_with(b"branch_") && rest.ends_with(b"_fun");
    let is_scope = |name: &&[u8]| {
        !name.is_empty() && !is_branch && !STEPS.contains(name) && !CALLS.contains(name)
    };
    (Some(rest).filter(is_scope), is_jvp)
}

/// Marks products on a line of differentiated products.
fn by_lines(module: &Module, contexts: &Contexts, class: &mut [NameClass]) {
    let columns = module.metadata_columns();
    let products = || {
        let rows = contexts.nodes.iter().flat_map(|node| {
            let rows = module.computation(node.computation).rows();
            (node.start as usize..).zip(rows)
        });
        rows.filter(|(_, row)| {
            matches!(module.opcode(Row(*row)), Opcode::Dot | Opcode::Convolution)
        })
    };
    let line = |row: u32| {
        let (file, line) = (columns.source_file[row as usize], columns.source_line[row as usize]);
        (file >= 0 && line > 0).then_some((file, line))
    };
    if !products().any(|(at, _)| class[at] == NameClass::Plain) {
        return;
    }
    let differentiated = products().filter(|(at, _)| class[*at] == NameClass::Forward);
    let lines: HashSet<(i32, i32), BuildMix> =
        differentiated.filter_map(|(_, row)| line(row)).collect();
    for (at, row) in products() {
        if class[at] == NameClass::Plain && line(row).is_some_and(|line| lines.contains(&line)) {
            class[at] = NameClass::Line;
        }
    }
}
