//! Values of unrolled layers that a policy keeps, each in one form.

use super::Unrolled;
use super::rerun::Again;
use crate::ir::Opcode;
use crate::ir::intern::BuildMix;
use crate::remat::policy::origins::Origin;
use hashbrown::HashMap;

/// A value that is kept.
pub struct Kept {
    /// Its node.
    pub at: usize,
    /// The last step that needs it or another form of it.
    pub until: u32,
    /// The last step at which the text has it or another form of it; None if it has none in memory.
    pub end: Option<u32>,
}

impl Unrolled {
    /// The values that are kept for recomputation or for backward work.
    pub fn kept_values(&self, again: &Again) -> Vec<Kept> {
        let is_kept = |at: usize| {
            let is_value = self.origins[at] == Origin::Values && !self.is_spread(at as u32);
            again.is_needed[at] && is_value && !self.is_again(again, at as u32)
        };
        let mut kept = Vec::new();
        // By node: what its other forms, which come after it, need.
        let mut forms: HashMap<usize, (u32, Option<u32>), BuildMix> = HashMap::default();
        for at in (0..self.graph.nodes.len()).rev().filter(|at| is_kept(*at)) {
            let mut until = again.until[at].max(again.last[at].unwrap_or(0));
            let mut end = self.ends[at];
            if let Some((other, other_end)) = forms.remove(&at) {
                (until, end) = (until.max(other), end.max(other_end));
            }
            match self.form_of(at as u32).filter(|own| is_kept(*own)) {
                Some(first) => {
                    let own = forms.entry(first).or_default();
                    *own = (own.0.max(until), own.1.max(end));
                }
                None => kept.push(Kept { at, until, end }),
            }
        }
        kept
    }

    /// Whether a node is a bias or scale for all rows of a value, which is part of what reads it.
    fn is_spread(&self, node: u32) -> bool {
        let is_weight = |own: &u32| self.origins[*own as usize] == Origin::Weight;
        self.graph.nodes[node as usize].opcode == Opcode::Broadcast
            && self.graph.operands(node).iter().all(is_weight)
    }

    /// The value of which a node is another form with as many bytes, such as a wider type that counts in its narrow
    /// one: XLA keeps one of both.
    fn form_of(&self, node: u32) -> Option<usize> {
        let own = &self.graph.nodes[node as usize];
        let [first] = self.graph.operands(node) else { return None };
        let is_form = matches!(own.opcode, Opcode::Convert | Opcode::Broadcast);
        let is_alike = self.bytes[*first as usize] == self.bytes[node as usize];
        (is_form && is_alike && own.element.is_none()).then_some(*first as usize)
    }
}
