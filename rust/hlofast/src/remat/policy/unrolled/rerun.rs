//! What runs again in unrolled layers under a policy.

use super::Unrolled;
use crate::ir::Opcode;
use crate::ir::intern::BuildMix;
use crate::remat::policy::Fate;
use crate::remat::policy::origins::Origin;
use crate::remat::policy::scans::is_heavy;
use hashbrown::HashSet;

/// What runs again.
pub struct Again {
    /// By node.
    pub fate: Vec<Fate>,
    pub is_needed: Vec<bool>,
    /// By node: the last step of the text that needs it again; None if only recomputation does.
    pub last: Vec<Option<u32>>,
    /// By node: the last recomputed node that reads it.
    pub read_by: Vec<u32>,
    /// By node that is kept: the last step that needs it.
    pub until: Vec<u32>,
    /// By layer: nodes that run again and stay in memory, in order.
    pub heavy: Vec<Vec<u32>>,
    /// Cheap values that are computed once when their layer runs again, with their layers: results of
    /// softmaxes for a product which runs again and for the products of the backward pass, and what rings read.
    /// Then the node whose readers need it.
    pub shared: Vec<(u32, u32, u32)>,
}

impl Unrolled {
    /// What runs again if the savable values have these fates.
    pub fn again(&self, fates: &[Fate]) -> Again {
        let count = self.graph.nodes.len();
        let mut again = Again {
            fate: vec![Fate::Recomputed; count],
            is_needed: vec![false; count],
            last: vec![None; count],
            read_by: vec![0; count],
            until: vec![0; count],
            heavy: vec![Vec::new(); self.layers.count()],
            shared: Vec::new(),
        };
        let mut is_residual = vec![false; count];
        // By node: whether it is a product that runs again for others that do.
        let mut is_again = vec![false; count];
        // By node: a product that waits, which reads it through cheap work.
        let mut waiting: Vec<Option<u32>> = vec![None; count];
        let mut is_new: HashSet<u32, BuildMix> = HashSet::default();
        // What `account_softmax` tells the steps of.
        let softmaxes = self.softmaxes.iter().filter(|_| self.remade.is_none());
        let softmaxes = softmaxes.map(|own| &own.softmax);
        let of_plain: HashSet<u32, BuildMix> =
            softmaxes.clone().flat_map(|own| [own.exponentials, own.weights]).collect();
        let written = softmaxes.filter(|own| own.is_written).map(|own| own.exponentials);
        let written: HashSet<u32, BuildMix> = written.collect();
        for (nodes, fate) in self.members.iter().zip(fates) {
            nodes.iter().for_each(|node| again.fate[*node as usize] = *fate);
        }
        for own in &self.residuals {
            let at = own.node as usize;
            again.is_needed[at] = true;
            is_residual[at] = true;
            again.last[at] = again.last[at].max(Some(*own.rest.end()));
        }
        for (node, last) in self.remade.iter().flat_map(|own| &own.needs) {
            let at = *node as usize;
            again.is_needed[at] = true;
            again.last[at] = again.last[at].max(Some(*last));
        }
        for node in (0..count as u32).rev() {
            let at = node as usize;
            if !again.is_needed[at] || !self.is_again(&again, node) {
                continue;
            }
            let layer = self.layer[at].unwrap_or(0) as usize;
            let is_heavy = is_heavy(self.graph.nodes[at].opcode);
            if is_heavy {
                again.heavy[layer].push(node);
            }
            // A product that only gradients of weights need waits for these.
            let is_matmul = self.graph.nodes[at].opcode.is_matmul();
            is_again[at] = is_matmul && again.read_by[at] > 0;
            let is_read = || self.graph.users(node).iter().any(|own| is_again[*own as usize]);
            let is_rings = is_residual[at] && self.is_in_ring[at] && !is_heavy;
            let is_softmax = is_residual[at] && self.is_softmax[at] && !of_plain.contains(&node);
            waiting[at] = match is_heavy {
                true => Some(node).filter(|_| is_matmul && !is_again[at]),
                false => self.graph.users(node).iter().find_map(|own| waiting[*own as usize]),
            };
            let is_summed = is_softmax && self.is_summed(node);
            if is_rings || is_summed || is_softmax && is_read() {
                again.shared.push((node, layer as u32, node));
            }
            let is_written = is_summed || written.contains(&node) && again.last[at].is_some();
            // What a product that waits reads is written when the gradient of the softmax is computed from
            // other values; without such a product the gradient's fusion makes it.
            if let Some(product) = waiting[at].filter(|_| is_residual[at] && !is_heavy) {
                let is_its = |own: &u32| {
                    let own = *own as usize;
                    let is_made = self.is_softmax[own] && !is_residual[own];
                    is_made && self.bytes[at] >= self.bytes[own] / 2
                };
                let of = self.graph.operands(product).iter().copied();
                let of = of.filter(|own| !of_plain.contains(own));
                let of: Vec<u32> = of.filter(|own| is_its(own) && is_new.insert(*own)).collect();
                again.shared.extend(of.into_iter().map(|own| (own, layer as u32, node)));
            }
            let (last, read_by) = (again.last[at], again.read_by[at]);
            for operand in self.graph.operands(node) {
                let operand = self.kept_as(*operand) as usize;
                again.is_needed[operand] = true;
                again.until[operand] = again.until[operand].max(self.starts[layer]);
                if is_heavy || is_rings || is_written {
                    again.read_by[operand] = again.read_by[operand].max(node);
                } else {
                    again.last[operand] = again.last[operand].max(last);
                    again.read_by[operand] = again.read_by[operand].max(read_by);
                }
            }
        }
        again.heavy.iter_mut().for_each(|nodes| nodes.reverse());
        again
    }

    /// Whether a value is the exponentials of a softmax, which one operation of XLA writes with their sum.
    fn is_summed(&self, node: u32) -> bool {
        let opcode = |node: u32| self.graph.nodes[node as usize].opcode;
        let mut users = self.graph.users(node).iter();
        opcode(node) == Opcode::Exponential && users.any(|own| opcode(*own) == Opcode::Reduce)
    }

    /// The node in whose place a value is kept: XLA adds in float32, and what a layer leaves to the next
    /// one is in memory in the program's type.
    fn kept_as(&self, node: u32) -> u32 {
        let is_held = |at: usize| self.is_boundary[at] && self.ends[at].is_some();
        let at = node as usize;
        if !self.is_boundary[at] || self.ends[at].is_some() {
            return node;
        }
        let mut users = self.graph.users(node).iter().copied();
        let narrow = users.find(|user| {
            let is_convert = self.graph.nodes[*user as usize].opcode == Opcode::Convert;
            is_convert && is_held(*user as usize) && self.bytes[*user as usize] <= self.bytes[at]
        });
        narrow.unwrap_or(node)
    }

    /// Whether a needed node runs again, instead of being kept.
    pub fn is_again(&self, again: &Again, node: u32) -> bool {
        let at = node as usize;
        self.layer[at].is_some()
            && !self.is_boundary[at]
            && again.fate[at] == Fate::Recomputed
            && self.origins[at] != Origin::Constants
            && self.graph.nodes[at].element.is_none()
    }
}
