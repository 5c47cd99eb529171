//! Scopes as texts. Names may be long and deep, and the texts of all prefixes of a name take space
//! quadratic in its length. Therefore only scopes of rows become text, and texts have a maximum
//! length.

use crate::flow::{ScopeTree, without_layer_numbers};
use crate::ir::Module;
use crate::ir::decode::unescape_or_copy;
use smallvec::SmallVec;
use std::borrow::Cow;

/// The maximum length of a scope's text in bytes, excluding the ellipsis.
pub const SCOPE_BYTES: usize = 4096;

/// The scopes of a module and where their texts are cut.
pub struct ScopeTexts<'a> {
    module: &'a Module,
    scopes: &'a ScopeTree,
    /// Whether texts leave out the numbers of layers.
    merges_layers: bool,
    /// By scope: the scope whose text is shown. A scope that is too long maps to its first prefix
    /// that is too long; other scopes map to themselves or, if layers are merged, to the first
    /// scope with the same text.
    shown: Vec<u32>,
}

impl<'a> ScopeTexts<'a> {
    /// The texts of the `scopes` of `module`; `merges_layers` leaves layer numbers out.
    pub fn new(module: &'a Module, scopes: &'a ScopeTree, merges_layers: bool) -> Self {
        let mut shown: Vec<u32> = Vec::with_capacity(scopes.len());
        let mut lengths: Vec<usize> = Vec::with_capacity(scopes.len());
        // Lengths of the paths, each with the `/` that would follow. Parents precede their
        // children.
        for id in 0..scopes.len() as u32 {
            let parent = scopes.parent(id) as usize;
            let above = lengths.get(parent).copied().unwrap_or(0);
            let own = scopes.component(module, id).len();
            let is_cut = above > SCOPE_BYTES + 1;
            let is_root = id == ScopeTree::ROOT;
            lengths.push(if is_cut || is_root { above } else { above.saturating_add(own + 1) });
            shown.push(if is_cut { shown[parent] } else { id });
        }
        if merges_layers {
            let merged = scopes.merged_layers(module);
            shown.iter_mut().for_each(|scope| *scope = merged[*scope as usize]);
        }
        Self { module, scopes, merges_layers, shown }
    }

    /// The scope whose text stands for `scope`; scopes that differ only beyond the cut share a
    /// text.
    pub fn shown(&self, scope: u32) -> u32 {
        self.shown.get(scope as usize).copied().unwrap_or(ScopeTree::ROOT)
    }

    /// Components joined by `/`, without the escapes of the text, cut with an ellipsis.
    pub fn text(&self, scope: u32) -> Vec<u8> {
        let mut text = Vec::new();
        self.write(scope, &mut text);
        text
    }

    /// Appends the text of a scope.
    pub fn write(&self, scope: u32, out: &mut Vec<u8>) {
        let start = out.len();
        if self.write_plain(scope, out).is_none() {
            out.truncate(start);
            self.write_changed(scope, out);
        }
    }

    /// Appends the text of a scope that is neither cut nor changed, as most are; None for others.
    fn write_plain(&self, scope: u32, out: &mut Vec<u8>) -> Option<()> {
        if self.merges_layers || self.shown(scope) != scope {
            return None;
        }
        let up = |at: &u32| (*at != ScopeTree::ROOT).then(|| self.scopes.parent(*at));
        let path = || std::iter::successors(Some(scope), up).filter(|at| *at != ScopeTree::ROOT);
        let component = |at: u32| self.scopes.component(self.module, at);
        let length = path().map(|at| component(at).len() + 1).sum::<usize>().saturating_sub(1);
        if length > SCOPE_BYTES {
            return None;
        }
        let first = out.len();
        out.resize(first + length, b'/');
        let text = &mut out[first..];
        let mut end = length;
        for at in path() {
            let own = component(at);
            let start = end.checked_sub(own.len())?;
            text.get_mut(start..end)?.copy_from_slice(own);
            end = start.saturating_sub(1);
        }
        memchr::memchr(b'\\', text).is_none().then_some(())
    }

    fn write_changed(&self, scope: u32, out: &mut Vec<u8>) {
        let mut at = self.shown(scope);
        let mut components: SmallVec<[Cow<'_, [u8]>; 16]> = SmallVec::new();
        let is_prefix = self.scopes.depth(at) < self.scopes.depth(scope);
        while at != ScopeTree::ROOT {
            let own = self.scopes.component(self.module, at);
            components.push(match self.merges_layers {
                true => without_layer_numbers(own),
                false => Cow::Borrowed(own),
            });
            at = self.scopes.parent(at);
        }
        let start = out.len();
        for component in components.iter().rev() {
            if out.len() > start {
                out.push(b'/');
            }
            let before = out.len();
            unescape_or_copy(component, out);
            out.truncate((start + SCOPE_BYTES + 1).max(before));
        }
        if is_prefix || out.len() > start + SCOPE_BYTES {
            cut(out, start);
        }
    }
}

/// Cuts the text from `start` on between characters and adds an ellipsis.
fn cut(text: &mut Vec<u8>, start: usize) {
    let mut end = (start + SCOPE_BYTES).min(text.len());
    let is_inside = |at: usize| text.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    // A character has at most four bytes; a longer sequence is not UTF-8.
    for _ in 0..3 {
        if end > start && is_inside(end) {
            end -= 1;
        }
    }
    text.truncate(end);
    text.extend_from_slice("…".as_bytes());
}
