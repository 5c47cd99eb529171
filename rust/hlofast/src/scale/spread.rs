//! Spreads sizes from the entry parameters over the module.
//!
//! Each instruction ties dimensions of its operands and results together. What is known of one side
//! is written to the other, in both directions, until nothing changes. Then weaker rules apply, one
//! instruction at a time, and what still is unknown counts as constant.

use super::places::{Places, Slot};
use super::size::{Dim, Factor, Symbol, Symbols, size_of};
use crate::comms::{GroupContext, Mesh};
use crate::flow::trip_count::TripCount;
use crate::ir::{ComputationId, Flags, Module, Opcode, Row};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// How a dimension was attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum How {
    Unknown,
    /// From entry parameters through the operations.
    Followed,
    /// By a rule that another program could contradict.
    Assumed,
    /// Taken as constant.
    Constant,
}

/// How sure the rules are that apply, from the surest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trust {
    /// Dimensions stay what they are, or are multiplied by one mesh axis.
    Same,
    /// A dimension is split by sizes.
    Split,
    /// Dimensions are dealt out over several axes or parts of them, or cut.
    Dealt,
}

/// The state of the search.
pub(super) struct Spread<'m> {
    pub module: &'m Module,
    pub places: Places<'m>,
    pub mesh: Option<&'m Mesh>,
    pub context: GroupContext,
    pub symbols: Symbols,
    /// By dimension.
    pub dims: Vec<Option<Box<[Factor]>>>,
    pub how: Vec<How>,
    /// Rows whose dimensions contradict each other.
    pub conflicts: Vec<Row>,
    /// (symbol, computation) of slices of one element.
    pub sliced: Vec<(u32, ComputationId)>,
    /// Dimensions of which one element is sliced, and that were unknown then.
    pub open_slices: BTreeSet<(u32, ComputationId)>,
    /// Loops, and the root of the symbol that has one element per iteration.
    pub loops: (Vec<(Row, TripCount)>, HashMap<Row, u32>),
    /// By dimension: whether no entry parameter determines the array.
    pub free: Vec<bool>,
    /// Whether sizes spread to such arrays.
    fills_free: bool,
    /// Slices that together are their whole source, put together again later: rows, and the source.
    pub tiles: HashMap<Row, Row>,
    /// Which rules apply: sure ones come first, so that what several ways lead to is found the sure way.
    pub trust: Trust,
    /// What new dimensions count as.
    pub stage: How,
    queue: VecDeque<Row>,
    is_queued: Vec<bool>,
    /// The row that is being visited.
    pub current: Row,
    /// Row of each dimension's leaf.
    rows: Vec<Row>,
}

impl<'m> Spread<'m> {
    pub fn new(module: &'m Module, places: Places<'m>, mesh: Option<&'m Mesh>) -> Self {
        let count = places.sizes.len();
        let mut rows = Vec::with_capacity(count);
        for row in module.rows() {
            for leaf in 0..places.leaves(row) {
                let rank = places.leaf(row, leaf).map_or(0, Slot::len);
                rows.extend(std::iter::repeat_n(row, rank));
            }
        }
        let context = GroupContext::of(module);
        let context = mesh.map_or(context, |mesh| context.with_mesh(mesh));
        Self {
            module,
            places,
            mesh,
            context,
            symbols: Symbols::default(),
            dims: vec![None; count],
            how: vec![How::Unknown; count],
            conflicts: Vec::new(),
            sliced: Vec::new(),
            open_slices: BTreeSet::new(),
            loops: (Vec::new(), HashMap::new()),
            free: Vec::new(),
            fills_free: false,
            tiles: HashMap::new(),
            trust: Trust::Same,
            stage: How::Followed,
            queue: VecDeque::new(),
            is_queued: vec![false; module.row_count()],
            current: Row(0),
            rows,
        }
    }

    /// Spreads everything, after the entry parameters have been set.
    pub fn run(&mut self) {
        self.tie_results();
        self.find_tiles();
        if self.symbols.has_inputs_of_one_length() {
            self.free = self.find_free();
        }
        self.settle(Trust::Same);
        // Dimensions that count devices come first: a split by size alone would miss them.
        for row in self.module.rows() {
            if self.module.opcode(row) == Opcode::AllToAll {
                self.current = row;
                self.count_devices(row);
            }
        }
        self.settle(Trust::Split);
        self.settle(Trust::Dealt);
        if !self.free.is_empty() {
            self.fills_free = true;
            self.settle(Trust::Dealt);
        }
        self.loops = self.find_loops();
        self.drain();
        // A dimension of one element that nothing determines hinders the others of a reshape.
        for dim in 0..self.dims.len() as u32 {
            if self.places.size(dim) == 1 && self.get(dim).is_none() {
                self.set(dim, vec![Factor::constant(1)]);
            }
        }
        self.drain();
        self.stage = How::Assumed;
        for row in self.module.rows() {
            if self.is_open(row) {
                self.current = row;
                self.weak_rule(row);
                self.drain();
            }
        }
        self.hidden();
        self.stage = How::Constant;
        for dim in 0..self.dims.len() as u32 {
            if self.get(dim).is_none() {
                let size = self.places.size(dim);
                if size >= 0 {
                    self.set(dim, vec![Factor::constant(size)]);
                    self.drain();
                }
            }
        }
    }

    /// Applies the rules of this trust and above to all rows.
    fn settle(&mut self, trust: Trust) {
        self.trust = trust;
        for row in self.module.rows() {
            self.enqueue(row);
        }
        self.drain();
    }

    /// Whether a dimension of `row` or of an operand is unknown.
    fn is_open(&self, row: Row) -> bool {
        self.any_dim(row, |dim| self.get(dim).is_none())
    }

    /// Whether a dimension of `row` or of an operand is such.
    pub(super) fn any_dim(&self, row: Row, is: impl Fn(u32) -> bool) -> bool {
        let operands = self.module.operands(row).iter().map(|operand| Row(*operand));
        operands.chain([row]).any(|row| {
            (0..self.places.leaves(row)).any(|leaf| {
                let slot = self.places.leaf(row, leaf);
                slot.is_some_and(|slot| slot.dims().any(&is))
            })
        })
    }

    pub fn drain(&mut self) {
        while let Some(row) = self.queue.pop_front() {
            if let Some(slot) = self.is_queued.get_mut(row.0 as usize) {
                *slot = false;
            }
            self.current = row;
            self.link(row);
            self.rule(row);
        }
    }

    fn enqueue(&mut self, row: Row) {
        if let Some(slot) = self.is_queued.get_mut(row.0 as usize)
            && !std::mem::replace(slot, true)
        {
            self.queue.push_back(row);
        }
    }

    pub fn get(&self, dim: u32) -> Option<&[Factor]> {
        self.dims.get(dim as usize)?.as_deref()
    }

    /// Sets a dimension, or joins it with what it is already.
    pub fn set(&mut self, dim: u32, value: Dim) {
        if size_of(&value) != Some(self.places.size(dim)) || (self.is_free(dim) && !self.fills_free)
        {
            return;
        }
        if let Some(Some(known)) = self.dims.get(dim as usize) {
            if self.stage != How::Followed
                || (self.fills_free
                    && self.symbols.are_of_two_inputs(known, &value)
                    && self.meets_free())
            {
                return;
            }
            if !self.symbols.join(known, &value) {
                self.conflicts.push(self.current);
            }
            return;
        }
        let index = dim as usize;
        if let (Some(slot), Some(how)) = (self.dims.get_mut(index), self.how.get_mut(index)) {
            *slot = Some(value.into_boxed_slice());
            *how = self.stage;
        }
        let Some(row) = self.rows.get(index).copied() else { return };
        self.enqueue_around(row);
    }

    fn enqueue_around(&mut self, row: Row) {
        let module = self.module;
        self.enqueue(row);
        for user in module.users().get(row.0) {
            self.enqueue(Row(*user));
        }
        for operand in module.operands(row) {
            self.enqueue(Row(*operand));
        }
        let is_root = module.flags(row) & Flags::ROOT != 0;
        if is_root || module.opcode(row) == Opcode::Parameter {
            for caller in module.callers(module.computation_of(row)) {
                self.enqueue(Row(*caller));
            }
        }
    }

    /// Makes a symbol that stands for the sum of dimensions.
    pub fn sum(&mut self, parts: Vec<Dim>, size: i64) -> Factor {
        Factor::of_symbol(self.symbols.add(Symbol { size, sum: Some(parts), input: None }), size)
    }

    /// Two dimensions are the same.
    pub fn same(&mut self, a: u32, b: u32) {
        if a == b || self.places.size(a) != self.places.size(b) {
            return;
        }
        match (self.get(a), self.get(b)) {
            (Some(a), None) => {
                let value = a.to_vec();
                self.set(b, value);
            }
            (None, Some(b)) => {
                let value = b.to_vec();
                self.set(a, value);
            }
            (Some(_), Some(value)) if self.stage == How::Followed => {
                let value = value.to_vec();
                self.set(a, value);
            }
            _ => {}
        }
    }

    /// All dimensions of two arrays are the same; false if their ranks differ.
    pub fn same_arrays(&mut self, a: Slot, b: Slot) -> bool {
        if a.rank != b.rank {
            return false;
        }
        for (a, b) in a.dims().zip(b.dims()) {
            self.same(a, b);
        }
        true
    }

    /// Leaves that have the same value on both sides of calls, tuples and asynchronous operations.
    fn link(&mut self, row: Row) {
        let module = self.module;
        let operands: Vec<Row> = module.operands(row).iter().map(|row| Row(*row)).collect();
        match module.opcode(row) {
            Opcode::GetTupleElement => {
                let (Some(tuple), Some(index)) = (operands.first(), module.tuple_index(row)) else {
                    return;
                };
                if let Some(first) = module.shapes().first_leaf(module.shape(*tuple), index) {
                    self.same_leaves(*tuple, first as usize, row, 0);
                }
            }
            Opcode::Tuple => {
                let mut first = 0;
                for operand in operands {
                    self.same_leaves(row, first, operand, 0);
                    first += self.places.leaves(operand);
                }
            }
            Opcode::While => {
                if let Some(start) = operands.first() {
                    self.same_leaves(row, 0, *start, 0);
                }
                for call in module.calls(row) {
                    if let Some(parameter) = module.parameters(call.computation).first() {
                        self.same_leaves(row, 0, *parameter, 0);
                    }
                    if call.role == crate::ir::CallRole::Body {
                        let root = Row(module.computation(call.computation).root);
                        self.same_leaves(row, 0, root, 0);
                    }
                }
            }
            Opcode::Fusion | Opcode::Call => self.link_call(row, &operands, 0),
            Opcode::AsyncStart => {
                let taken = operands.iter().map(|operand| self.places.leaves(*operand)).sum();
                let mut first = 0;
                for operand in &operands {
                    self.same_leaves(row, first, *operand, 0);
                    first += self.places.leaves(*operand);
                }
                self.link_call(row, &operands, taken);
            }
            Opcode::AsyncUpdate => {
                if let Some(start) = operands.first() {
                    self.same_leaves(row, 0, *start, 0);
                }
            }
            Opcode::AsyncDone => {
                if let Some(start) = self.start_of(row) {
                    let count = |operand: &u32| self.places.leaves(Row(*operand));
                    let taken = module.operands(start).iter().map(count).sum();
                    self.same_leaves(start, taken, row, 0);
                }
            }
            Opcode::Conditional => {
                for (call, operand) in module.calls(row).iter().zip(operands.iter().skip(1)) {
                    if let Some(parameter) = module.parameters(call.computation).first() {
                        self.same_leaves(*operand, 0, *parameter, 0);
                    }
                    let root = Row(module.computation(call.computation).root);
                    self.same_leaves(row, 0, root, 0);
                }
            }
            _ => {}
        }
    }

    /// The start of an asynchronous operation, behind its updates.
    pub fn start_of(&self, row: Row) -> Option<Row> {
        let mut start = Row(*self.module.operands(row).first()?);
        for _ in 0..64 {
            if self.module.opcode(start) != Opcode::AsyncUpdate {
                break;
            }
            start = Row(*self.module.operands(start).first()?);
        }
        (self.module.opcode(start) == Opcode::AsyncStart).then_some(start)
    }

    fn link_call(&mut self, row: Row, operands: &[Row], first: usize) {
        let Some(call) = self.module.calls(row).first() else { return };
        let parameters = self.module.parameters(call.computation);
        for (operand, parameter) in operands.iter().zip(parameters) {
            self.same_leaves(*operand, 0, parameter, 0);
        }
        let root = Row(self.module.computation(call.computation).root);
        self.same_leaves(row, first, root, 0);
    }

    /// As many leaves as both rows have, from these leaves on.
    pub(super) fn same_leaves(&mut self, a: Row, from_a: usize, b: Row, from_b: usize) {
        let rest = |row: Row, from: usize| self.places.leaves(row).saturating_sub(from);
        for leaf in 0..rest(a, from_a).min(rest(b, from_b)) {
            let slots = (self.places.leaf(a, from_a + leaf), self.places.leaf(b, from_b + leaf));
            if let (Some(a), Some(b)) = slots {
                self.same_arrays(a, b);
            }
        }
    }
}
