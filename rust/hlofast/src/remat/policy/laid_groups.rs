//! Scans over groups of layers in a module that is not scheduled: what `groups.rs` finds in scheduled
//! modules, by the steps and bytes of the layout.
//!
//! The loops over layers lie in the bodies of the loops over groups, which are laid out like any other.
//! What a group hands to them by slicing is in memory: the layers of a group in the stacks of all groups,
//! and its weights.

use super::NoPolicies;
use super::graph::Graph;
use super::groups::{
    Group, Link, Spans, chain, has_layers_beside, links, read_beside, span, stacks,
};
use super::layout::{Layout, Steps};
use super::pairs::{Pair, looped, trips_of};
use super::scans::Scan;
use crate::ir::{Opcode, Row};

/// The loops over groups in a graph.
pub struct Around<'a> {
    pub graph: &'a Graph,
    pub steps: &'a Steps,
    /// The result of the forward loop.
    pub whole: u32,
    pub pair: &'a Pair,
}

/// A body with the steps of its nodes.
pub type Laid = (Graph, Steps);

impl Layout<'_> {
    /// Adds the scans over layers in two loops over groups. An error if the model does not cover them.
    pub fn add_groups(&mut self, around: &Around<'_>) -> Result<(), NoPolicies> {
        let found = self.scans_of_groups(around).ok_or(NoPolicies::Nested(around.pair.forward))?;
        self.scans.extend(found);
        let is_covered = |row: &Row| {
            let is_its =
                |scan: &Scan| scan.backward == *row || scan.is_again && scan.forward == *row;
            self.scans.iter().any(is_its)
        };
        match around.pair.inner[1].iter().find(|row| !is_covered(row)) {
            None => Ok(()),
            Some(row) => Err(NoPolicies::Nested(*row)),
        }
    }

    fn scans_of_groups(&mut self, around: &Around<'_>) -> Option<Vec<Scan>> {
        let pair = around.pair;
        let mut fore = self.bodies.remove(&pair.forward)?;
        let mut aft = self.bodies.remove(&pair.backward)?;
        let cost = self.cost;
        let links = links(&fore.0, &aft.0, &pair.read, |row| trips_of(cost, row) == Some(1));
        let mut scans = Vec::new();
        for (inner, own) in &links {
            scans.push(self.inner(around, *inner, [&fore, &aft], own)?);
        }
        if has_layers_beside(&aft.0) {
            // Groups under `jax.checkpoint` recompute such layers, which the model does not know.
            if links.is_empty() {
                return None;
            }
            fore.0.cut();
            aft.0.cut();
            scans.push(self.between(around, &read_beside(&links, &pair.read), [fore, aft])?);
        }
        Some(scans)
    }

    /// The scan of a pair of loops over the layers of a group.
    fn inner(
        &mut self,
        around: &Around<'_>,
        pair: [Row; 2],
        [fore, aft]: [&Laid; 2],
        links: &[Link],
    ) -> Option<Scan> {
        let trips = pair.map(|row| trips_of(self.cost, row));
        let layers = trips[0].filter(|_| trips[0] == trips[1])?;
        let all = trips_of(self.cost, around.pair.forward)?.checked_mul(layers)?;
        let body = self.bodies.remove(&pair[0])?;
        let back = self.bodies.remove(&pair[1])?;
        let whole = result(&fore.0, pair[0])?;
        let of_all = |link: &Link| self.held(around.graph, around.steps, around.whole, link.outer);
        let of_fore = |_: &Link, element: u32| {
            self.held(&fore.0, &fore.1, whole, element).into_iter().collect()
        };
        let of_aft = |link: &Link| self.slices(aft, &link.chains[1]);
        let stacks =
            stacks(&body.0, layers, links, (of_all, of_fore, of_aft, |_: &Link| Vec::new()));
        let group = Group {
            outer: [around.pair.forward, around.pair.backward],
            layers: i64::try_from(layers).ok()?,
            steps: *fore.1.all.start()..=*aft.1.all.end(),
            forward_end: *fore.1.all.end(),
            fore: span(&stacks, |stack| &stack.fore).unwrap_or_else(|| body.1.all.clone()),
            aft: span(&stacks, |stack| &stack.aft).unwrap_or_else(|| back.1.all.clone()),
        };
        let mut scan = self.joined(pair, [body, back], stacks, (all, None))?;
        scan.group = Some(group);
        Some(scan)
    }

    /// Bytes and steps of slices that the body of a group takes out of stacks.
    fn slices(&self, (graph, steps): &Laid, chain: &[u32]) -> Spans {
        let in_memory = chain.iter().filter(|node| graph.shared.contains(*node));
        let spans = in_memory.map(|node| {
            let runs = steps.runs[*node as usize];
            let last = steps.last[*node as usize].unwrap_or(runs);
            (self.bytes(graph, *node), runs..=last)
        });
        spans.collect()
    }
}

/// Marks what the body of a group hands to its loops over layers by slicing: it is in memory.
pub fn mark_slices(graph: &mut Graph) {
    let values = graph.states.values().flatten().filter_map(|value| value.node());
    let is_slice = |node: &u32| {
        let chain = chain(graph, *node);
        let opcode = chain.last().map(|last| graph.nodes[*last as usize].opcode);
        graph.nodes[*node as usize].element.is_none() && opcode == Some(Opcode::DynamicSlice)
    };
    let slices: Vec<u32> = values.filter(is_slice).collect();
    graph.shared.extend(slices);
}

/// The result of a loop in a graph.
fn result(graph: &Graph, row: Row) -> Option<u32> {
    let loops = looped(graph);
    let at = loops.binary_search_by_key(&row, |own| own.0).ok()?;
    Some(loops[at].1)
}
