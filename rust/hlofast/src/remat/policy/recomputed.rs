//! What a backward body recomputes from stacks and weights, and which values of the forward body that
//! is.
//!
//! The backward body of a layer gets the gradient of the layer's result as an element of its state
//! that every iteration changes. What does not depend on such an element is the forward pass once
//! more: cheap work on stacked values, and under `jax.checkpoint` matmuls and collectives too. Each
//! expensive value among these is a value of the forward body, found by operation name, source line
//! and size. With that, any policy can be asked of a text compiled under any other: a value that is
//! recomputed in the text and saved by the policy leaves the backward body, and takes with it what
//! only it needed.

use super::graph::Graph;
use super::hosted::is_fetched;
use super::is_collective;
use super::kernels::kept_bytes;
use super::named::{components, is_checkpointed, is_named_recomputed, is_step};
use super::products::Products;
use super::scans::{is_heavy, node_of};
use super::stacks::is_unchanged;
use crate::ir::intern::BuildMix;
use crate::ir::{Dimension, ElementType, Module, Opcode, Row};
use crate::memory::LiveValue;
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// Values of fewer bytes do not matter.
const LEAST: i64 = 1024;
/// Components of operation names that tell values apart.
pub const COMPONENTS: usize = 3;

/// Where a backward body is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A scheduled text.
    Scheduled,
    /// A text that is not scheduled.
    Laid,
    /// Such a text, in which stacks replace what the body recomputes (`laid_checkpoints.rs`).
    Opened,
}

/// What a backward body recomputes.
#[derive(Debug, Default)]
pub struct Recomputed {
    /// By node of the backward body: whether it is part of the forward pass.
    is_again: Vec<bool>,
    /// By node of the backward body: the expensive value of the forward body that it recomputes.
    twin: Vec<Option<u32>>,
    /// By node of the forward body: the step at which the backward body recomputes it.
    at: Vec<Option<u32>>,
    /// Expensive values of the forward body that the gradients need and that are recomputed, with
    /// the last step that reads them.
    pub needs: Vec<(u32, u32)>,
    /// The products of the forward body.
    pub products: Products,
    /// By node of the forward body: whether it is made from weights and constants alone.
    pub is_fixed: Vec<bool>,
    /// By node of the forward body: whether it is a collective that gathers weights and that the gradients
    /// need in the same form, so that the backward body runs it whatever is recomputed.
    is_anyway: Vec<bool>,
    /// Whether the layers are under `jax.checkpoint`; not if they are laid out as if they were not.
    pub is_checkpointed: bool,
    /// Whether a loop in the layers is under `jax.checkpoint` inside.
    pub checkpoints_in_loops: bool,
    /// The products that such a loop recomputes, whatever the policy of the layers.
    pub in_loops: Vec<Row>,
    /// By node of the backward body: whether the gradients read it, also through cheap work.
    is_read: Vec<bool>,
    /// Live ranges of recomputed values: node of the backward body, bytes, steps.
    live: Vec<(u32, i64, RangeInclusive<u32>)>,
}

impl Recomputed {
    /// What the backward body `back` recomputes of the forward body `body`, whose sums of partial
    /// products get the bytes of the program's values. `step_of` gives the step at which a node of the
    /// backward body runs, or is used last if it is cheap. Names tell whether the layers are checkpointed; before
    /// optimisation products that gradients do not change tell it too. `sizes` are the bytes of shapes, `loops` the
    /// loops around the body in names.
    pub fn new(
        module: &Module,
        step_of: impl Fn(usize) -> u32,
        body: &mut Graph,
        back: &Graph,
        (sizes, origin, loops): (&[i64], Origin, usize),
    ) -> Self {
        let is_again = again(module, back, loops);
        let products = Products::new(module, body);
        body.wider = products.wider(module, body);
        let is_checkpointed = match origin {
            Origin::Scheduled => is_checkpointed(module, back, loops),
            Origin::Laid => is_checkpointed(module, back, loops) || runs_again(back, &is_again),
            Origin::Opened => false,
        };
        let twin = match is_checkpointed {
            true => twins(module, body, &products, back, &is_again),
            false => vec![None; back.nodes.len()],
        };
        kernel_results(body, back, &twin, sizes);
        let is_inside = |(node, row): (&u32, &Row)| {
            let own = back.nodes[*node as usize].row;
            is_named_recomputed(module, own, usize::MAX)
                && !is_named_recomputed(module, *row, loops)
        };
        let inside = || back.within.iter().filter(|own| is_inside(*own)).map(|(node, _)| *node);
        let products_of = |node: u32| {
            let own = &back.nodes[node as usize];
            let first = own.opcode.is_matmul().then_some(own.row);
            first.into_iter().chain(back.further(node).iter().copied())
        };
        let is_named = |row: &Row| is_named_recomputed(module, *row, usize::MAX);
        let mut in_loops: Vec<Row> = inside().flat_map(products_of).filter(is_named).collect();
        in_loops.sort_unstable();
        in_loops.dedup();
        let mut found = Recomputed {
            at: vec![None; body.nodes.len()],
            is_read: vec![false; back.nodes.len()],
            is_again,
            twin,
            is_fixed: is_fixed(module, body),
            products,
            is_checkpointed,
            checkpoints_in_loops: inside().next().is_some(),
            in_loops,
            ..Recomputed::default()
        };
        // By node: the last step at which gradients read it.
        let mut read: Vec<Option<u32>> = vec![None; back.nodes.len()];
        let mut gathered: HashMap<Gathered, u32, BuildMix> = HashMap::default();
        for node in (0..back.nodes.len() as u32).rev() {
            let at = node as usize;
            let last = match found.is_again[at] {
                false => Some(step_of(at)),
                true => read[at],
            };
            if found.is_again[at] && last.is_some() {
                gathered_as(module, back, node).into_iter().for_each(|key| {
                    *gathered.entry(key).or_default() += 1;
                });
            }
            if let Some(forward) = found.twin[at] {
                found.set_step(body, forward, step_of(at));
                // Gradients need weights anyway.
                if let Some(last) = last.filter(|_| !found.is_fixed[forward as usize]) {
                    found.needs.push((forward, last));
                }
                continue;
            }
            if last.is_none() {
                continue;
            }
            found.is_read[at] = true;
            for operand in back.operands(node) {
                let operand = &mut read[*operand as usize];
                *operand = (*operand).max(last);
            }
        }
        found.is_anyway = vec![false; body.nodes.len()];
        for node in (0..body.nodes.len() as u32).filter(|node| found.is_fixed[*node as usize]) {
            let known = gathered_as(module, body, node).and_then(|key| gathered.get_mut(&key));
            if let Some(left) = known.filter(|left| **left > 0) {
                *left -= 1;
                found.is_anyway[node as usize] = true;
            }
        }
        found
    }

    /// Whether the backward body runs a collective of the forward body for the gradients in any case.
    pub fn is_anyway(&self, node: u32) -> bool {
        self.is_anyway.get(node as usize).copied().unwrap_or(false)
    }

    /// Notes the step at which a value of the forward body is recomputed, with its partial products.
    fn set_step(&mut self, body: &Graph, node: u32, step: u32) {
        let mut stack = vec![node];
        while let Some(node) = stack.pop() {
            let own = &body.nodes[node as usize];
            if own.element.is_some() || self.at[node as usize] >= Some(step) {
                continue;
            }
            self.at[node as usize] = Some(step);
            stack.extend(self.products.parts(body, node));
        }
    }

    /// Finds the live ranges of recomputed values among those of the backward body's rows.
    pub fn find_live<'a>(&mut self, back: &Graph, values: impl Iterator<Item = &'a LiveValue>) {
        for value in values.filter(|value| value.bytes >= LEAST) {
            let Some(node) = node_of(back, value) else { continue };
            self.add_live(back, node, value.bytes, value.first_step..=value.last_step);
        }
    }

    /// Adds the live range of a value of the backward body, if it is a recomputed one.
    pub fn add_live(&mut self, back: &Graph, node: u32, bytes: i64, steps: RangeInclusive<u32>) {
        if self.is_again[node as usize] && back.nodes[node as usize].element.is_none() {
            self.live.push((node, bytes, steps));
        }
    }

    /// Whether gradients read the element of the state that `leaf` is.
    pub fn is_read(&self, leaf: u32) -> bool {
        self.is_read.get(leaf as usize).copied().unwrap_or(false)
    }

    /// The step at which the text recomputes a value of the forward body.
    pub fn step_of(&self, node: u32) -> Option<u32> {
        self.at.get(node as usize).copied().flatten()
    }

    /// The values of the forward body that the backward body recomputes.
    pub fn twins(&self) -> Vec<u32> {
        self.twin.iter().flatten().copied().collect()
    }

    /// Live ranges of recomputed values that are not needed when the values of the forward body for
    /// which `is_kept` holds are read from memory.
    pub fn superfluous<'a>(
        &'a self,
        back: &Graph,
        is_kept: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (i64, RangeInclusive<u32>)> + 'a {
        let mut is_needed: Vec<bool> = self.is_again.iter().map(|is_again| !is_again).collect();
        if !self.live.is_empty() {
            for node in (0..back.nodes.len() as u32).rev() {
                let at = node as usize;
                if is_needed[at] && self.twin[at].is_some_and(&is_kept) {
                    is_needed[at] = false;
                }
                if is_needed[at] {
                    back.operands(node).iter().for_each(|own| is_needed[*own as usize] = true);
                }
            }
        }
        let live = self.live.iter().filter(move |(node, ..)| !is_needed[*node as usize]);
        live.map(|(_, bytes, steps)| (*bytes, steps.clone()))
    }
}

/// By node of a body: whether it is made from weights and constants alone.
fn is_fixed(module: &Module, body: &Graph) -> Vec<bool> {
    let mut is_fixed: Vec<bool> = Vec::with_capacity(body.nodes.len());
    for (number, node) in (0u32..).zip(&body.nodes) {
        is_fixed.push(match node.element {
            Some(_) => is_unchanged(body, number) || is_counter(module, body, number),
            None => body.operands(number).iter().all(|own| is_fixed[*own as usize]),
        });
    }
    is_fixed
}

/// Whether a backward body computes products of the forward pass: not in a loop in the layer, which may be
/// checkpointed itself.
pub fn runs_again(back: &Graph, is_again: &[bool]) -> bool {
    (0u32..).zip(&back.nodes).zip(is_again).any(|((number, node), is_again)| {
        *is_again && node.opcode.is_matmul() && !back.within.contains_key(&number)
    })
}

/// By node of a backward body: whether it is part of the forward pass.
pub fn again(module: &Module, back: &Graph, loops: usize) -> Vec<bool> {
    let mut is_again: Vec<bool> = Vec::with_capacity(back.nodes.len());
    for (number, node) in (0u32..).zip(&back.nodes) {
        let is_own = if node.element.is_some() {
            is_unchanged(back, number)
                || is_counter(module, back, number)
                || is_fetched(back, number)
        } else {
            // Compilers fetch weights an iteration ahead, as elements of the state that change.
            let is_named = || is_named_recomputed(module, back.named_by(number), loops);
            back.operands(number).iter().all(|own| is_again[*own as usize]) || is_named()
        };
        is_again.push(is_own);
    }
    is_again
}

/// Whether an element of the state is one integer.
fn is_counter(module: &Module, graph: &Graph, node: u32) -> bool {
    let array = module.shapes().array(graph.nodes[node as usize].shape);
    array.is_some_and(|array| {
        let is_integer = matches!(array.element_type, ElementType::S32 | ElementType::U32);
        is_integer && array.dimensions().next().is_none()
    })
}

/// Sets the bytes of recomputed kernels to those of the results that only the backward body reads.
/// Kernels write statistics into whole lanes, of which one is read.
fn kernel_results(body: &mut Graph, back: &Graph, twin: &[Option<u32>], sizes: &[i64]) {
    for (number, node) in (0u32..).zip(&back.nodes) {
        let is_unread = node.opcode == Opcode::CustomCall && twin[number as usize].is_none();
        let kernel = node.whole.filter(|_| is_unread).and_then(|whole| twin[whole as usize]);
        let Some(kernel) = kernel.filter(|_| !back.users(number).is_empty()) else { continue };
        let known = body.own_bytes.entry(kernel).or_default();
        *known = known.saturating_add(kept_bytes(back, number, sizes));
    }
}

/// How a value is recognised, from the most particular to the least.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Likeness {
    Frame,
    Scope,
    Line,
}

/// By node of the backward body: the expensive value of the forward body that it recomputes.
fn twins(
    module: &Module,
    body: &Graph,
    products: &Products,
    back: &Graph,
    is_again: &[bool],
) -> Vec<Option<u32>> {
    let mut twin: Vec<Option<u32>> = vec![None; back.nodes.len()];
    let mut wanted = expensive(back, &Products::new(module, back));
    wanted.retain(|(node, _)| is_again[*node as usize]);
    let known = expensive(body, products);
    let mut is_taken = vec![false; body.nodes.len()];
    for likeness in [Likeness::Frame, Likeness::Scope, Likeness::Line] {
        let mut by_key: HashMap<Key<'_>, Vec<u32>, BuildMix> = HashMap::default();
        for (node, of) in known.iter().rev().filter(|(node, _)| !is_taken[*node as usize]) {
            by_key.entry(key(module, body, *node, *of, likeness)).or_default().push(*node);
        }
        for (node, of) in &wanted {
            if twin[*node as usize].is_some() {
                continue;
            }
            let key = key(module, back, *node, *of, likeness);
            if let Some(found) = by_key.get_mut(&key).and_then(Vec::pop) {
                twin[*node as usize] = Some(found);
                is_taken[found as usize] = true;
            }
        }
    }
    twin
}

/// The expensive values of a body, each with the node that names it: for sums of partial products a
/// product.
pub fn expensive(graph: &Graph, products: &Products) -> Vec<(u32, u32)> {
    let is_value = |node: &u32| {
        let (at, own) = (*node as usize, &graph.nodes[*node as usize]);
        let is_dear = products.of[at].is_some() || is_heavy(own.opcode);
        own.element.is_none() && !products.is_part[at] && is_dear
    };
    let values = (0..graph.nodes.len() as u32).filter(is_value);
    values.map(|node| (node, products.of[node as usize].unwrap_or(node))).collect()
}

/// A collective of weights: its opcode, the dimensions of its result, and its line of the source.
type Gathered = (u16, Vec<Dimension>, (i32, i32));

fn gathered_as(module: &Module, graph: &Graph, node: u32) -> Option<Gathered> {
    let own = &graph.nodes[node as usize];
    if !is_collective(own.opcode) {
        return None;
    }
    let array = module.shapes().array(own.shape)?;
    let columns = module.metadata_columns();
    let at = |column: &[i32]| column.get(own.row.0 as usize).copied().unwrap_or(-1);
    // Without a line, any two collectives of the same shape would be alike.
    let line = (at(&columns.source_file), at(&columns.source_line));
    if line.0 < 0 {
        return None;
    }
    Some((own.opcode as u16, array.dimensions().collect(), line))
}

#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    opcode: u16,
    elements: u64,
    names: [&'a [u8]; COMPONENTS],
    line: (i32, i32),
    frame: i32,
}

fn key<'a>(module: &'a Module, graph: &Graph, node: u32, of: u32, likeness: Likeness) -> Key<'a> {
    // A result of a kernel has the kernel's name.
    let own = &graph.nodes[graph.nodes[of as usize].whole.unwrap_or(of) as usize];
    let opcode = match own.opcode {
        opcode if opcode.is_matmul() => Opcode::Dot,
        opcode => opcode,
    };
    let shape = module.shapes().array(graph.nodes[node as usize].shape);
    let elements = shape.and_then(|array| array.elements()).unwrap_or(0);
    let columns = module.metadata_columns();
    let at = |column: &[i32]| column.get(own.row.0 as usize).copied().unwrap_or(-1);
    let count = if likeness == Likeness::Line { 1 } else { COMPONENTS };
    let mut names: [&[u8]; COMPONENTS] = Default::default();
    let scopes = components(module, own.row).filter(|name| !is_step(name));
    names.iter_mut().zip(scopes.take(count)).for_each(|(place, name)| *place = name);
    Key {
        opcode: opcode as u16,
        elements,
        names,
        line: (at(&columns.source_file), at(&columns.source_line)),
        frame: if likeness == Likeness::Frame { at(&columns.frame) } else { -1 },
    }
}
