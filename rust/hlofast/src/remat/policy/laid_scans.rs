//! The scans of a module that is not scheduled: loops that are laid out, and the stacks between them.

use super::inner::is_only_stacked;
use super::laid_groups::{Around, Laid};
use super::late::Late;
use super::layout::{Layout, stays};
use super::named::loops_around;
use super::pairs::trips_of;
use super::recomputed::{Origin, Recomputed};
use super::scans::{Read, Scan, Stack};
use super::scores::products_of;
use super::stacks::stacked;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, Opcode, Row};
use hashbrown::HashMap;
use std::collections::BTreeMap;

impl Layout<'_> {
    /// The scan of two loops of a graph, of which one reads these stacks of the other.
    pub fn between(
        &mut self,
        around: &Around<'_>,
        read: &[(u32, u32)],
        bodies: [Laid; 2],
    ) -> Option<Scan> {
        let body = &bodies[0].0;
        let mut stacks: BTreeMap<u32, Stack> = BTreeMap::new();
        for (element, read_as) in read {
            if let Some(stack) = stacks.get_mut(element) {
                stack.read_as.push(*read_as);
                continue;
            }
            let Some(node) = stacked(body, *element) else { continue };
            let held = self.held(around.graph, around.steps, around.whole, *element);
            let Some((bytes, live)) = held else { continue };
            stacks.insert(*element, Stack::new(body, node, *read_as, bytes, live));
        }
        let (pair, mut stacks) = (around.pair, stacks.into_values().collect::<Vec<Stack>>());
        let trips = trips_of(self.cost, pair.forward)?;
        // XLA converts the weights of all layers before the loops, so they are in memory under any policy.
        if self.is_plain(pair) && stacks.iter().any(|own| !own.is_weight) {
            stacks.retain(|own| !own.is_weight);
        }
        if stacks.is_empty() {
            return None;
        }
        let given = self.residuals.remove(&pair.backward);
        let mut residuals = given.as_ref().map(|_| Vec::new());
        let steps = *bodies[0].1.all.start()..=*bodies[1].1.all.end();
        let known = stacks.iter().zip(0usize..).map(|(own, at)| (own.node, at));
        let known: HashMap<u32, usize, BuildMix> = known.collect();
        for (node, element) in given.into_iter().flatten() {
            if let Some(at) = known.get(&node) {
                stacks[*at].read_as.push(element);
                continue;
            }
            let layers = i64::try_from(trips).unwrap_or(i64::MAX);
            let bytes = self.own_bytes(body, node).saturating_mul(layers);
            self.add(steps.clone(), bytes);
            stacks.push(Stack::new(body, node, element, bytes, steps.clone()));
            residuals.iter_mut().for_each(|own| own.push(node));
        }
        residuals.iter_mut().for_each(|own| own.sort_unstable());
        self.joined([pair.forward, pair.backward], bodies, stacks, (trips, residuals))
    }

    /// The scan of a forward and a backward loop with these bodies and stacks, over `trips` layers.
    /// `residuals` are those of [`Scan`].
    pub fn joined(
        &mut self,
        [forward, backward]: [Row; 2],
        [(mut body, body_steps), (mut back, back_steps)]: [Laid; 2],
        mut stacks: Vec<Stack>,
        (trips, residuals): (u64, Option<Vec<u32>>),
    ) -> Option<Scan> {
        let module = self.module;
        if stacks.is_empty() {
            return None;
        }
        for own in [&mut body, &mut back] {
            let bytes: Vec<(u32, i64)> =
                (0..own.nodes.len() as u32).map(|node| (node, self.bytes(own, node))).collect();
            own.own_bytes.extend(bytes);
        }
        let use_of = |node: usize| back_steps.of_use(&back, node as u32);
        let loops = loops_around(module, backward);
        let origin = if residuals.is_some() { Origin::Opened } else { Origin::Laid };
        let mut recomputed =
            Recomputed::new(module, use_of, &mut body, &back, (&[], origin, loops));
        let body_id = module.called(forward, CallRole::Body)?;
        body.keep_passing(self.cost, body_id, |body, node| self.bytes_of_shape(body, node));
        for node in 0..back.nodes.len() as u32 {
            let opcode = back.nodes[node as usize].opcode;
            if stays(&back, node) && opcode != Opcode::DynamicUpdateSlice {
                let runs = back_steps.runs[node as usize];
                let last = back_steps.last[node as usize].unwrap_or(runs);
                let steps = back_steps.held_from(node)..=last;
                recomputed.add_live(&back, node, self.bytes(&back, node), steps);
            }
        }
        let mut leaves: HashMap<u32, u32, BuildMix> = HashMap::default();
        for (number, node) in (0u32..).zip(&back.nodes) {
            leaves.extend(node.element.map(|element| (element, number)));
        }
        for stack in &mut stacks {
            if is_only_stacked(&body, stack.node) && stack.fore.is_empty() {
                let runs = body_steps.runs[stack.node as usize];
                let last = body_steps.last[stack.node as usize].unwrap_or(runs);
                let steps = body_steps.held_from(stack.node)..=last;
                stack.fore.push((self.bytes(&body, stack.node), steps));
            }
            let leaves = stack.read_as.iter().filter_map(|element| leaves.get(element));
            stack.is_read = leaves.clone().any(|leaf| recomputed.is_read(*leaf));
            let users = leaves.flat_map(|leaf| back.users(*leaf));
            let read = |user: &u32| {
                let step = back_steps.of_use(&back, *user);
                let for_loop = back.nodes[*user as usize].opcode == Opcode::DynamicSlice
                    && back.shared.contains(user)
                    && back.users(*user).iter().any(|own| back.within.contains_key(own));
                let copies = for_loop.then(|| {
                    let last = back_steps.last[*user as usize].unwrap_or(step);
                    vec![(self.bytes(&back, *user), back_steps.held_from(*user)..=last)]
                });
                let feeds_product = !products_of(&back, *user).is_empty();
                // An exchange does not change the bytes of a device, unlike a gather.
                let is_exchanged = back.nodes[*user as usize].opcode == Opcode::CollectivePermute
                    && self.bytes(&back, *user) == self.bytes(&body, stack.node);
                let users = back.users(*user).iter().filter(|_| is_exchanged);
                let steps = users.map(|user| back_steps.of_use(&back, *user));
                let ends = steps.clone().min().zip(steps.max());
                let exchanged = ends.map(|(first, last)| (*user, first..=last));
                Read { step, last: step, late: step, feeds_product, for_loop, copies, exchanged }
            };
            stack.reads = users.map(read).collect();
        }
        Some(Scan {
            forward,
            backward,
            trips,
            in_loop: trips,
            group: None,
            is_again: false,
            body,
            back,
            body_id,
            back_id: module.called(backward, CallRole::Body)?,
            stacks,
            stack_rows: Vec::new(),
            stack_nodes: Vec::new(),
            recomputed,
            body_steps: body_steps.all,
            back_steps: back_steps.all,
            late: Late::default(),
            is_in_rings: false,
            handed_on: Vec::new(),
            widened: body_steps.widened,
            residuals,
        })
    }
}
