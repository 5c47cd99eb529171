//! Layers without a loop as XLA for TPUs would run them under a policy.
//!
//! XLA orders a program by three schedulers and takes the order with the lowest peak by its own count
//! (`memory/listed.rs`). Without a loop the order is most of the peak: one order runs gradients of weights at once,
//! another after all layers, with all that they read in memory until then. So the program of the policy is made from
//! the text (`program.rs`): the rows of the forward pass without what only the backward pass reads, a copy of
//! what is recomputed, with weights gathered once more, and for each layer a barrier behind the gradient that enters its
//! backward part, from which these copies and the backward part read. The lowest of its three peaks, plus
//! the difference between the text's peak and that of the text's own program, is the peak of the policy.
//!
//! Values are those of the rows of the text, so XLA's fusions stay as they are, but for scores of attention that the
//! forward pass has in a wider type if nothing keeps them (`unrolled.rs`). What the latency hiding scheduler moves
//! after that is not followed: where products run in loops around rings it moves all of them, so such texts have the
//! account of `unrolled.rs` alone. So have those that do not show which gradient enters a layer, and those that are in
//! the list's order already, where gradients run at once. Judged by `benches/policy_accuracy.py`.

mod opened;
mod program;
mod sides;

use super::Fate;
use super::chip::Chip;
use super::unrolled::Unrolled;
use crate::cost::Backend;
use crate::flow::{Attribution, has_compiler_clones};
use crate::ir::intern::BuildMix;
use crate::ir::{ElementKind, Module, Opcode, Row, ShapeId};
use crate::memory::{Scheduled, Scheduler, size_of};
use hashbrown::{HashMap, HashSet};
use opened::Opened;
use program::Program;
use sides::Sides;

/// Elements of a value that goes from one layer to the next, at least.
const LARGE: u64 = 1 << 18;
/// Work of one outcome for each operation and each value that it reads, in nodes that other models visit. One takes
/// about 0.5 µs, so a search that tries as many policies as its limit of work allows takes about 4 s.
const WORK: usize = 56;
/// Limit on the layers.
const MOST_LAYERS: usize = 1 << 12;

/// The bytes of scores that the forward pass has in a wider type if nothing keeps them.
#[derive(Clone, Copy, Debug)]
struct Wide {
    /// Those of the wider type.
    whole: i64,
    /// Other bytes in memory while they are computed.
    beside: i64,
    /// The same if they are kept in their own type.
    beside_kept: i64,
}

/// The layers of an entry computation, from which programs of policies are made.
#[derive(Debug)]
pub struct SimulatedLayers {
    opened: Opened,
    /// By operation: its side of the program.
    sides: Vec<Side>,
    /// By operation: its layer; those of the optimizer have none.
    layers: Vec<Option<u32>>,
    /// By operation: bytes of its value.
    bytes: Vec<i64>,
    /// By operation: whether activations go into it, not weights and constants alone.
    is_value: Vec<bool>,
    /// By operation: whether parameters go into it.
    is_of_parameters: Vec<bool>,
    /// By operation: whether a layer hands it to the next one.
    is_boundary: Vec<bool>,
    /// By operation that is handed on in a narrower type: that.
    narrow: HashMap<u32, u32, BuildMix>,
    /// By layer: the gradients that enter its backward part.
    entering: HashMap<u32, Vec<u32>, BuildMix>,
    wide: HashMap<u32, Wide, BuildMix>,
    /// By savable value: its operations.
    members: Vec<Vec<u32>>,
    /// Bytes of the parameters of the program.
    parameters: i64,
    /// By how much the text's peak is above that of its own rows.
    beyond: i64,
}

/// The order with the lowest peak.
struct Lowest {
    most: i64,
    /// The row that runs at the peak.
    row: Row,
    scheduler: Scheduler,
}

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Forward,
    Backward,
    Other,
}

impl SimulatedLayers {
    /// Those of a scheduled module with the peak `peak`; None if the text does not tell enough of them, if XLA has
    /// rematerialised it by itself, or if its layers are checkpointed.
    pub fn new(
        module: &Module,
        unrolled: &Unrolled,
        sizes: &[i64],
        attribution: &Attribution,
        (peak, chip): (i64, Option<Chip>),
    ) -> Option<Self> {
        let is_plain = !unrolled.is_checkpointed() && !has_compiler_clones(module);
        if !is_plain || Backend::of_module(module) != Backend::Tpu {
            return None;
        }
        let phases = attribution.phases(module);
        let phase = |row: Row| phases.get(row.0 as usize).copied().unwrap_or_default();
        let rows = module.computation(module.entry()).rows();
        let in_loop = |row: u32| module.opcode(Row(row)) == Opcode::While;
        if unrolled.is_in_loop() || rows.clone().any(in_loop) {
            return None;
        }
        let of_rows = Sides::new(module, rows.clone(), unrolled, phase);
        let is_forward = |row: Row| of_rows.side(row) == Side::Forward;
        let opened = Opened::new(module, rows.clone(), is_forward)?;
        let mut own = Self {
            sides: opened.ops.iter().map(|op| of_rows.side(op.outer)).collect(),
            layers: Vec::new(),
            bytes: opened
                .ops
                .iter()
                .map(|op| match module.shapes().tuple(op.shape) {
                    Some(_) => 0,
                    None => size_of(module, op.shape, sizes),
                })
                .collect(),
            is_value: Vec::new(),
            is_of_parameters: Vec::new(),
            is_boundary: vec![false; opened.ops.len()],
            narrow: HashMap::default(),
            entering: HashMap::default(),
            wide: HashMap::default(),
            members: Vec::new(),
            parameters: 0,
            beyond: 0,
            opened,
        };
        let is_parameter = |at: &usize| own.opened.ops[*at].opcode == Opcode::Parameter;
        let every = (0..own.opened.ops.len()).filter(is_parameter);
        own.parameters = every.map(|at| own.bytes[at]).fold(0, i64::saturating_add);
        own.find_values(unrolled);
        own.find_layers(unrolled, &of_rows);
        own.find_boundaries(module);
        let by_row: HashMap<(Row, Row), u32, BuildMix> = (0u32..)
            .zip(&own.opened.ops)
            .filter(|(at, op)| !op.is_element && own.is_forward(*at))
            .map(|(at, op)| ((op.row, op.outer), at))
            .collect();
        own.members = unrolled
            .members()
            .map(|rows| rows.filter_map(|row| by_row.get(&row).copied()).collect())
            .collect();
        for (row, whole, [beside, beside_kept]) in unrolled.wide() {
            let Some(at) = by_row.get(&row).copied() else { continue };
            // On v6e XLA writes one array of them.
            let wide = match chip {
                Some(Chip::V6e) => Wide { whole, beside: 0, beside_kept: whole },
                _ => {
                    let narrow = own.bytes[at as usize];
                    let beside = beside.saturating_add(narrow).saturating_sub(whole);
                    Wide { whole, beside, beside_kept }
                }
            };
            own.wide.insert(at, wide);
        }
        own.find_entering(module);
        let again = own.again(&[]);
        let layers: HashSet<u32, BuildMix> = again
            .is_again
            .iter()
            .zip(&own.layers)
            .filter_map(|(is, own)| own.filter(|_| *is))
            .collect();
        if layers.is_empty() || layers.iter().any(|layer| !own.entering.contains_key(layer)) {
            return None;
        }
        let as_is = own.lowest(module, None)?;
        if as_is.scheduler == Scheduler::List {
            return None;
        }
        own.beyond = peak.checked_sub(as_is.most)?;
        for fate in [Fate::Recomputed, Fate::Saved] {
            own.program(module, Some(&vec![fate; own.members.len()]))?;
        }
        Some(own)
    }

    /// What one outcome takes, in nodes that others visit.
    pub fn work(&self) -> usize {
        WORK * (self.opened.ops.len() + self.opened.reads())
    }

    fn is_forward(&self, at: u32) -> bool {
        self.sides[at as usize] == Side::Forward && !is_given(self.opened.ops[at as usize].opcode)
    }

    /// The peak under a policy and the row that runs there; None if the policy gives no program.
    pub fn highest(&self, module: &Module, fates: &[Fate]) -> Option<(i64, Row)> {
        let lowest = self.lowest(module, Some(fates))?;
        Some((lowest.most.saturating_add(self.beyond), lowest.row))
    }

    /// The lowest peak of three orders under a policy, or of the text as it is.
    fn lowest(&self, module: &Module, fates: Option<&[Fate]>) -> Option<Lowest> {
        let Program { rows, of, bytes } = self.program(module, fates)?;
        let name = |at: u32| module.instruction_name(of[at as usize]);
        let peaks = Scheduler::ALL.map(|own| (Scheduled::peak(&rows, &bytes, own, name), own));
        let ((most, at), scheduler) = peaks.into_iter().min_by_key(|((most, _), _)| *most)?;
        let most = most.saturating_add(self.parameters);
        Some(Lowest { most, row: of[at? as usize], scheduler })
    }

    fn find_values(&mut self, unrolled: &Unrolled) {
        let values: HashSet<Row, BuildMix> = unrolled.rows_of_values().collect();
        for (at, op) in self.opened.ops.iter().enumerate() {
            let is_free = is_given(op.opcode);
            let read = |of: &[bool]| op.reads.iter().any(|from| of[*from as usize]);
            let is_seed = self.sides[at] == Side::Forward && values.contains(&op.row);
            let is_value = !is_free && (is_seed || read(&self.is_value));
            let is_of_parameters = op.opcode == Opcode::Parameter || read(&self.is_of_parameters);
            self.is_value.push(is_value);
            self.is_of_parameters.push(is_of_parameters);
        }
    }

    fn find_layers(&mut self, unrolled: &Unrolled, of_rows: &Sides) {
        for (at, op) in self.opened.ops.iter().enumerate() {
            let is_own = op.row != op.outer;
            let layer = match self.sides[at] {
                _ if is_given(op.opcode) => None,
                _ if op.is_element => self.layers[op.reads[0] as usize],
                Side::Forward => {
                    let (named, is_known) = unrolled.layer_of_row(op.row);
                    let read = || {
                        let read = op.reads.iter().filter(|from| self.is_forward(**from));
                        read.filter_map(|from| self.layers[*from as usize]).max()
                    };
                    let inner = named.or_else(|| if is_known { None } else { read() });
                    let may_be_rows = !is_known || is_own && op.opcode == Opcode::Fusion;
                    inner.or_else(|| of_rows.layer(op.outer).filter(|_| may_be_rows))
                }
                Side::Backward => of_rows.layer(op.outer),
                Side::Other => None,
            };
            self.layers.push(layer);
        }
    }

    /// Finds what layers hand to the next ones, in the type in which it is in memory.
    fn find_boundaries(&mut self, module: &Module) {
        let count = self.opened.ops.len() as u32;
        // By layer: its first operation that is not about weights, which XLA gathers early.
        let mut first: HashMap<u32, u32, BuildMix> = HashMap::default();
        let is_of_values = |at: &u32| self.is_forward(*at) && self.is_value[*at as usize];
        for at in (0..count).filter(is_of_values) {
            if let Some(layer) = self.layers[at as usize] {
                first.entry(layer).or_insert(at);
            }
        }
        let rank = |layer: Option<u32>| layer.and_then(|layer| first.get(&layer).copied());
        let is_live = |at: &u32| self.opened.is_live[*at as usize];
        for at in (0..count).filter(is_live) {
            let op = &self.opened.ops[at as usize];
            let own = self.layers[at as usize];
            let may_be = own.is_none() || matches!(op.opcode, Opcode::Add | Opcode::Convert);
            let is_own = self.is_forward(at) && self.is_value[at as usize];
            if !is_own || !may_be || !is_large(module, op.shape) {
                continue;
            }
            let goes_on = |user: &&u32| {
                let next = self.layers[**user as usize];
                let is_later = rank(own).zip(rank(next)).is_none_or(|(own, next)| own < next);
                let reader = &self.opened.ops[**user as usize];
                self.is_forward(**user)
                    && self.is_value[**user as usize]
                    && next != own
                    && is_later
                    && (is_large(module, reader.shape) || reader.opcode == Opcode::Reduce)
            };
            self.is_boundary[at as usize] =
                self.opened.users[at as usize].iter().any(|u| goes_on(&u));
        }
        for at in 0..count as usize {
            let op = &self.opened.ops[at];
            let [from] = op.reads[..] else { continue };
            let is_wider = self.bytes[at] > self.bytes[from as usize];
            let is_inner = op.row != op.outer && op.opcode == Opcode::Convert;
            if is_inner && is_wider && self.is_boundary[at] && self.is_boundary[from as usize] {
                self.is_boundary[at] = false;
            }
        }
        for at in 0..count {
            let op = &self.opened.ops[at as usize];
            if !self.is_boundary[at as usize] || op.opcode == Opcode::Convert {
                continue;
            }
            let is_narrow = |user: &&u32| {
                let reader = &self.opened.ops[**user as usize];
                reader.opcode == Opcode::Convert
                    && reader.outer == op.outer
                    && self.is_boundary[**user as usize]
                    && self.bytes[**user as usize] < self.bytes[at as usize]
            };
            if let Some(narrow) =
                self.opened.users[at as usize].iter().find(|u| is_narrow(u)).copied()
            {
                self.is_boundary[at as usize] = false;
                self.narrow.insert(at, narrow);
            }
        }
    }

    /// Finds the gradients that enter the backward parts of layers: what these read of other backward work that does not
    /// wait for the layer, and that comes from the loss, to which the last layer hands its result.
    fn find_entering(&mut self, module: &Module) {
        let again = self.again(&[]);
        let count = self.opened.ops.len() as u32;
        // By layer: its bit in the sets below.
        let mut bits: HashMap<u32, usize, BuildMix> = HashMap::default();
        for layer in self.layers.iter().flatten() {
            let next = bits.len();
            bits.entry(*layer).or_insert(next);
        }
        if bits.len() > MOST_LAYERS {
            return;
        }
        let words = bits.len().div_ceil(64);
        let bit = |layer: u32| (bits[&layer] / 64, 1u64 << (bits[&layer] % 64));
        let is_handed =
            |at: &u32| self.is_boundary[*at as usize] && self.layers[*at as usize].is_some();
        let Some(last) = (0..count).rev().find(is_handed) else { return };
        let mut is_behind_loss = vec![false; count as usize];
        for at in last..count {
            let mut read = self.opened.ops[at as usize].reads.iter();
            is_behind_loss[at as usize] =
                at == last || read.any(|from| is_behind_loss[*from as usize]);
        }
        // By operation: the layers whose barriers it waits for.
        let mut waits = vec![0u64; words * count as usize];
        for at in 0..count {
            let op = &self.opened.ops[at as usize];
            if !self.opened.is_live[at as usize] || self.is_forward(at) {
                continue;
            }
            let start = words * at as usize;
            for from in op.reads.iter().map(|from| *from as usize) {
                for word in 0..words {
                    waits[start + word] |= waits[words * from + word];
                }
                if let Some(layer) = self.layers[from].filter(|_| again.is_again[from]) {
                    let (word, bit) = bit(layer);
                    waits[start + word] |= bit;
                }
            }
            // All of its own layer's backward part is behind the barrier.
            let is_behind = self.sides[at as usize] == Side::Backward;
            if let Some(layer) = self.layers[at as usize].filter(|_| is_behind) {
                let (word, bit) = bit(layer);
                waits[start + word] |= bit;
            }
        }
        let mut known: HashSet<(u32, u32), BuildMix> = HashSet::default();
        for at in (0..count).filter(|at| self.opened.is_live[*at as usize]) {
            let Some(layer) = self.layers[at as usize] else { continue };
            if self.sides[at as usize] != Side::Backward {
                continue;
            }
            let (word, bit) = bit(layer);
            for from in &self.opened.ops[at as usize].reads {
                let source = *from as usize;
                let op = &self.opened.ops[source];
                let enters = self.sides[source] == Side::Backward
                    && op.outer != self.opened.ops[at as usize].outer
                    && self.layers[source] != Some(layer)
                    && is_behind_loss[source]
                    && is_large(module, op.shape)
                    && waits[words * source + word] & bit == 0;
                if enters && known.insert((layer, *from)) {
                    self.entering.entry(layer).or_default().push(*from);
                }
            }
        }
    }
}

/// Whether an operation is a parameter or a constant.
fn is_given(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Parameter | Opcode::Constant)
}

/// Whether an array is as large as what goes from layer to layer, and of floating-point numbers.
fn is_large(module: &Module, shape: ShapeId) -> bool {
    module.shapes().array(shape).is_some_and(|own| {
        own.element_type.kind() == ElementKind::Float
            && own.elements().is_some_and(|count| count >= LARGE)
    })
}
