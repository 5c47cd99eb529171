//! The tree of scopes: every full operation name as a path of components.

use crate::ir::Module;
use crate::ir::intern::hash_bytes;
use crate::text::Span;
use hashbrown::HashTable;

/// Components of operation names that stand for what JAX runs, and not for a scope of the program.
pub(crate) const STEPS: [&[u8]; 7] = [
    b"while",
    b"body",
    b"cond",
    b"closed_call",
    b"eval_jaxpr",
    b"checkpoint",
    b"rematted_computation",
];

/// The JAX transformations that the components of a path name, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(pub u8);

impl Marks {
    /// The first component is a call such as `jit(step)`.
    pub const CALL: u8 = 1;
    /// `jvp(...)`.
    pub const JVP: u8 = 2;
    /// `transpose(...)`.
    pub const TRANSPOSE: u8 = 4;
    /// `rematted_computation`.
    pub const REMATTED: u8 = 8;
    /// `remat(...)` below `transpose(...)`: recompute or backward work of JAX in 2022 and 2023.
    pub const REMAT: u8 = 16;
    /// The last component is JAX's barrier around residuals: `remat` or `remat2`.
    pub const BARRIER: u8 = 32;

    pub fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    /// Whether the path indicates a phase.
    pub fn says_something(self) -> bool {
        self.0 & !Self::BARRIER != 0
    }

    /// The marks of a path of one component.
    pub fn of_first(component: &[u8]) -> Marks {
        Marks(0).with(true, component)
    }

    /// The marks of a path extended by `component`; `self` are the marks of the path before.
    fn with(self, is_first: bool, component: &[u8]) -> Marks {
        let before = Marks(self.0 & !Self::BARRIER);
        // Operations that XLA combined, `(transpose(jvp())/mul:add)`, take the marks of the first.
        if let Some(inside) = component.strip_prefix(b"(").and_then(|c| c.strip_suffix(b")")) {
            let first = &inside[..outside_brackets(inside, b':')];
            let mut marks = before;
            let mut at = 0;
            while at < first.len() {
                let end = component_end(first, at);
                marks = marks.with_one(is_first && at == 0, &first[at..end]);
                at = end + 1;
            }
            return marks;
        }
        before.with_one(is_first, component)
    }

    fn with_one(self, is_first: bool, component: &[u8]) -> Marks {
        let mut marks = self.0 & !Self::BARRIER;
        let mut rest = component;
        let mut wrappers = 0;
        // `vmap(transpose(jvp(name)))`: transformations around a name.
        while let Some(open) = rest.iter().position(|b| !is_word_byte(*b)) {
            if open == 0 || rest[open] != b'(' {
                break;
            }
            match &rest[..open] {
                b"jvp" => marks |= Self::JVP,
                b"transpose" => marks |= Self::TRANSPOSE,
                b"remat" if marks & Self::TRANSPOSE != 0 => marks |= Self::REMAT,
                _ => {}
            }
            wrappers += 1;
            rest = &rest[open + 1..];
        }
        let closing = rest.iter().rev().take_while(|b| **b == b')').count().min(wrappers);
        match &rest[..rest.len() - closing] {
            b"rematted_computation" => marks |= Self::REMATTED,
            b"remat" | b"remat2" if wrappers == 0 => marks |= Self::BARRIER,
            _ => {}
        }
        if is_first && wrappers > 0 && component.ends_with(b")") {
            marks |= Self::CALL;
        }
        Marks(marks)
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// One scope.
#[derive(Clone, Copy, Debug)]
struct Scope {
    parent: u32,
    depth: u32,
    component: Span,
    /// Length of the path's text, saturating.
    length: u32,
    marks: Marks,
}

/// Scopes as interned paths. Scope 0 is the root with the empty path, for rows without a name.
#[derive(Clone, Debug)]
pub struct ScopeTree {
    scopes: Vec<Scope>,
    ids: HashTable<(u64, u32)>,
}

impl Default for ScopeTree {
    fn default() -> Self {
        let root =
            Scope { parent: 0, depth: 0, component: Span::EMPTY, length: 0, marks: Marks(0) };
        Self { scopes: vec![root], ids: HashTable::new() }
    }
}

impl ScopeTree {
    /// The scope of rows without a name.
    pub const ROOT: u32 = 0;

    /// Makes room for `count` more scopes.
    pub(super) fn reserve(&mut self, count: usize) {
        self.scopes.reserve(count);
        self.ids.reserve(count, |entry| entry.0);
    }

    /// Number of scopes, the root included.
    #[allow(clippy::len_without_is_empty, reason = "the root always exists")]
    pub fn len(&self) -> usize {
        self.scopes.len()
    }

    /// The parent of `scope`; the root is its own parent.
    pub fn parent(&self, scope: u32) -> u32 {
        self.scopes[scope as usize].parent
    }

    /// Number of components of the path.
    pub fn depth(&self, scope: u32) -> u32 {
        self.scopes[scope as usize].depth
    }

    /// The last component of the path, as written in the text (with escapes).
    pub fn component<'a>(&self, module: &'a Module, scope: u32) -> &'a [u8] {
        module.bytes(self.scopes[scope as usize].component)
    }

    /// The scope of the first `depth` components, or `scope` itself if it is not deeper.
    pub fn at_depth(&self, scope: u32, depth: u32) -> u32 {
        let mut scope = scope;
        while self.depth(scope) > depth {
            scope = self.parent(scope);
        }
        scope
    }

    /// `at_depth` of every scope. Parents precede their children.
    pub fn all_at_depth(&self, depth: u32) -> Vec<u32> {
        let mut result: Vec<u32> = Vec::with_capacity(self.scopes.len());
        for (id, scope) in self.scopes.iter().enumerate() {
            let above = if scope.depth > depth { result[scope.parent as usize] } else { id as u32 };
            result.push(above);
        }
        result
    }

    /// The path: its components joined by `/`, as written in the text.
    pub fn path(&self, module: &Module, scope: u32) -> Vec<u8> {
        let mut spans = Vec::with_capacity(self.depth(scope) as usize);
        let mut at = scope;
        while at != Self::ROOT {
            spans.push(self.scopes[at as usize].component);
            at = self.parent(at);
        }
        let mut path = Vec::new();
        for span in spans.iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(module.bytes(*span));
        }
        path
    }

    /// Whether the path of `scope` ends with the components of `name`.
    pub(super) fn path_ends_with(&self, module: &Module, scope: u32, name: &[u8]) -> bool {
        let (mut at, mut rest) = (scope, name);
        loop {
            if at == Self::ROOT {
                return false;
            }
            let component = self.component(module, at);
            let Some(before) = rest.strip_suffix(component) else { return false };
            match before.strip_suffix(b"/") {
                Some(before) => rest = before,
                None => return before.is_empty(),
            }
            at = self.parent(at);
        }
    }

    pub(super) fn marks(&self, scope: u32) -> Marks {
        self.scopes[scope as usize].marks
    }

    pub(super) fn length(&self, scope: u32) -> u32 {
        self.scopes[scope as usize].length
    }

    /// The child of `parent` named `component`, added if missing.
    fn child(&mut self, module: &Module, parent: u32, component: Span) -> u32 {
        let bytes = module.bytes(component);
        let hash = hash_bytes(bytes)
            ^ u64::from(parent).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        let scopes = &self.scopes;
        let same = |entry: &(u64, u32)| {
            let scope = &scopes[entry.1 as usize];
            entry.0 == hash && scope.parent == parent && module.bytes(scope.component) == bytes
        };
        if let Some((_, scope)) = self.ids.find(hash, same) {
            return *scope;
        }
        let above = self.scopes[parent as usize];
        let id = self.scopes.len() as u32;
        self.scopes.push(Scope {
            parent,
            depth: above.depth + 1,
            component,
            length: above.length.saturating_add(component.len() as u32 + 1),
            marks: above.marks.with(parent == Self::ROOT, bytes),
        });
        self.ids.insert_unique(hash, (hash, id), |entry| entry.0);
        id
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.scopes.capacity() * size_of::<Scope>() + self.ids.capacity() * 16
    }
}

/// The end of the component of `name` that starts at `start`: the next `/` outside brackets, or the
/// end of `name`. Old JAX writes parameters into names: `dot_general[dimension_numbers=(/)]`. An
/// unclosed bracket extends to the end.
pub(super) fn component_end(name: &[u8], start: usize) -> usize {
    let mut depth = 0u32;
    let mut ends_at = |at: usize| {
        match name[at] {
            b'/' => return depth == 0,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        false
    };
    let (words, _) = name[start..].as_chunks();
    for (index, word) in words.iter().enumerate() {
        let mut marks = slashes_and_brackets(u64::from_le_bytes(*word));
        while marks != 0 {
            let at = start + 8 * index + marks.trailing_zeros() as usize / 8;
            if ends_at(at) {
                return at;
            }
            marks &= marks - 1;
        }
    }
    (start + 8 * words.len()..name.len()).find(|at| ends_at(*at)).unwrap_or(name.len())
}

/// The top bit of each byte of `word` that is a slash or a bracket; bytes after such a byte may be
/// set too.
fn slashes_and_brackets(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & ONES << 7;
    let all = |byte: u8| ONES * u64::from(byte);
    let is = |byte: u8, ignored: u8| zeros((word ^ all(byte)) & !all(ignored));
    // Opening and closing parentheses differ in one bit; so do square brackets and braces.
    is(b'/', 0) | is(b'(', 1) | is(b'[', 0x20) | is(b']', 0x20)
}

/// The parts of names that XLA merged: `first;second`.
pub(super) fn name_parts(name: &[u8], span: Span) -> impl Iterator<Item = Span> {
    let mut start = 0;
    let mut is_done = false;
    std::iter::from_fn(move || {
        if is_done {
            return None;
        }
        let rest = &name[start..];
        let end =
            memchr::memchr(b';', rest).map_or(name.len(), |_| start + outside_brackets(rest, b';'));
        let part = Span::new(span.start as usize + start, span.start as usize + end);
        is_done = end >= name.len();
        start = end + 1;
        Some(part)
    })
}

/// The index of the first `mark` outside brackets in `name`, or the length of `name`.
fn outside_brackets(name: &[u8], mark: u8) -> usize {
    let mut depth = 0u32;
    for (offset, byte) in name.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ if *byte == mark && depth == 0 => return offset,
            _ => {}
        }
    }
    name.len()
}

/// Adds paths to a tree. Consecutive names mostly share a prefix, so the components of the last
/// name are kept.
#[derive(Debug, Default)]
pub(super) struct PathReader {
    base: u32,
    last: Span,
    /// For each component of `last`: where it ends and its scope.
    ends: Vec<(u32, u32)>,
}

impl PathReader {
    /// The scope of the path `name` below `base`.
    pub fn scope(&mut self, tree: &mut ScopeTree, module: &Module, base: u32, name: Span) -> u32 {
        let bytes = module.bytes(name);
        if base == self.base {
            let common = common_prefix(bytes, module.bytes(self.last));
            let known = |end: u32| {
                let end = end as usize;
                end <= common && (end == bytes.len() || bytes.get(end) == Some(&b'/'))
            };
            while self.ends.last().is_some_and(|(end, _)| !known(*end)) {
                self.ends.pop();
            }
        } else {
            self.ends.clear();
            self.base = base;
        }
        self.last = name;
        let (mut at, mut scope) =
            self.ends.last().map_or((0, base), |(end, scope)| (*end as usize + 1, *scope));
        while at < bytes.len() {
            let end = component_end(bytes, at);
            if end > at {
                let start = name.start as usize;
                scope = tree.child(module, scope, Span::new(start + at, start + end));
                self.ends.push((end as u32, scope));
            }
            at = end + 1;
        }
        scope
    }
}

/// The length of the common prefix of `a` and `b`.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let (words_a, _) = a.as_chunks::<8>();
    let (words_b, _) = b.as_chunks::<8>();
    let words = words_a.iter().zip(words_b).take_while(|(a, b)| a == b).count();
    let same = a.iter().zip(b).skip(8 * words).take_while(|(a, b)| a == b).count();
    8 * words + same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_end_where_they_do_byte_by_byte() {
        const BYTES: &[u8] = b"a_/([{)]}Yy;\xaf\xdb";
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut next = |below: usize| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as usize % below
            };
            let length = next(40);
            // Mostly letters, so that components extend over several machine words.
            let byte = |at: usize| if at < BYTES.len() { BYTES[at] } else { b'x' };
            let name: Vec<u8> = (0..length).map(|_| byte(next(5 * BYTES.len()))).collect();
            let start = next(length + 1);
            let mut depth = 0u32;
            let end = (start..length).find(|at| {
                match name[*at] {
                    b'(' | b'[' | b'{' => depth += 1,
                    b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                name[*at] == b'/' && depth == 0
            });
            let text = String::from_utf8_lossy(&name);
            assert_eq!(component_end(&name, start), end.unwrap_or(length), "{text} from {start}");
        }
    }
}
