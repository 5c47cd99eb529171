//! Phases and names for values without a name.
//!
//! Compilers do not name most of the instructions that they add: copies between memory spaces,
//! slices in flight, clones of loops, converted weights. Such a row gets its phase from the first
//! of these that applies:
//!
//! 1. the rows inside it: a fusion takes the phase of its matmuls, or else the latest phase of its
//!    rows; a loop takes the phase of its body if all of the body has one phase;
//! 2. the row whose value it moves, if it only moves a value: evicting and fetching a value does
//!    not change its phase;
//! 3. its operands and its users: the row's phase is not earlier than the phases of its operands,
//!    nor later than the phases of its users. If these differ, a row before the turn takes the
//!    phase of its operands, and a row after the turn the phase of its users. The turn is the row
//!    at which the schedule begins backward or recomputed work on the data. A collective that adds
//!    belongs to the work whose results it adds, and one that gathers to the work that waits for
//!    the whole, wherever they run;
//! 4. the loop, branch or call around it.
//!
//! If no row has a name, `structure` first gives the rows of the entry their phases.
//!
//! A parameter of the entry has the phase of the first row that reads it. The remaining rows are
//! unattributed.

use super::attribution::Attribution;
use super::moved::{MOST_MOVES, moved_operand, moves, step_back, wrapped};
use super::origin::Place;
use super::phase::Phase;
use super::ranks::{
    BACKWARD, Bound, FORWARD, Inside, LATE, NO_BOUND, NONE, RECOMPUTE, between, bit, of_fusion,
    of_loop, phase_of, rank,
};
use super::structure::{self, Basis};
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use std::ops::Range;
use std::sync::OnceLock;

/// Phases of all rows, in the first context of their computation.
#[derive(Clone, Debug, Default)]
pub struct Whose {
    /// By row: its phase, from its name or else from the rules above.
    pub phase: Vec<Phase>,
    /// By row: the row whose name and source describe its value, often the row itself. Empty if
    /// each row describes itself.
    told_by: Vec<Row>,
    /// By row: whether backward or recomputed work reads its value, through rows that move it.
    late_reads: OnceLock<Vec<bool>>,
    /// By computation: the row at which backward or recomputed work on the data begins.
    pub turn: Vec<Option<Row>>,
    /// The evidence for the phases.
    pub basis: Basis,
}

struct Finder<'a> {
    module: &'a Module,
    attribution: &'a Attribution,
    whose: Whose,
    inside: Vec<Inside>,
    /// By computation: the phase of its callers.
    around: Vec<Bound>,
    /// Remaining steps for following moved values.
    steps: usize,
    is_scheduled: bool,
    /// Room for the bounds of one computation.
    bounds: [Vec<Bound>; 2],
    /// Room for the rows of one computation that have no phase.
    open: Vec<u32>,
}

impl Whose {
    /// The phases of `module`; `attribution` holds the phases that names give.
    pub(super) fn new(module: &Module, attribution: &Attribution) -> Whose {
        let rows = module.row_count();
        let computations = module.computations().len();
        let whose = Whose {
            phase: attribution.phase.get(..rows).unwrap_or_default().to_vec(),
            told_by: Vec::new(),
            late_reads: OnceLock::new(),
            turn: vec![None; computations],
            basis: Basis::Names,
        };
        if whose.phase.len() < rows {
            return Whose { phase: vec![Phase::Unattributed; rows], ..whose };
        }
        let mut finder = Finder {
            module,
            attribution,
            whose,
            inside: vec![Inside::default(); computations],
            around: vec![NO_BOUND; computations],
            steps: rows.saturating_mul(32).saturating_add(1 << 20),
            is_scheduled: module.is_scheduled(),
            bounds: Default::default(),
            open: Vec::new(),
        };
        let ids: Vec<ComputationId> = reached(attribution).collect();
        let is_data = data_parameters(module);
        if finder.whose.phase.iter().all(|phase| *phase == Phase::Unattributed) {
            let (phases, basis) = structure::phases(module, &ids, &is_data);
            let rows = module.computation(module.entry()).rows();
            for (row, phase) in rows.zip(phases) {
                finder.whose.phase[row as usize] = phase;
            }
            finder.whose.basis = basis;
        } else {
            for id in ids.iter().rev() {
                finder.look_inside(*id);
            }
        }
        for id in &ids {
            finder.complete(*id, &is_data);
        }
        finder.whose
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.phase.capacity()
            + 4 * self.told_by.capacity()
            + self.late_reads.get().map_or(0, Vec::capacity)
            + self.turn.capacity() * size_of::<Option<Row>>()
    }

    /// The row that describes element `path` (outermost first) of the state of `caller`, a loop
    /// without a name: the row in the loop's body that computes the element.
    pub fn writer(&self, module: &Module, caller: Row, path: &[u32]) -> Option<Row> {
        let body = module.called(caller, CallRole::Body)?;
        let root = Row(module.computation(body).root);
        let mut at = Place { row: root, path: path.iter().rev().copied().collect() };
        for _ in 0..MOST_MOVES {
            if at.row != root && self.phase[at.row.0 as usize] != Phase::Unattributed {
                return Some(self.told_by(at.row));
            }
            if !step_back(module, &mut at) {
                return None;
            }
        }
        None
    }

    /// Whether backward or recomputed work reads the value of `row`, through rows that move it.
    pub fn is_read_late(&self, module: &Module, attribution: &Attribution, row: Row) -> bool {
        let find = || {
            let mut late = vec![false; module.row_count()];
            for row in reached(attribution).flat_map(|id| module.computation(id).rows().rev()) {
                let is_late = |user: &u32| match moves(module, Row(*user)) {
                    true => late[*user as usize],
                    false => LATE & 1 << rank(self.phase[*user as usize]) != 0,
                };
                late[row as usize] = module.users().get(row).iter().any(is_late);
            }
            late
        };
        self.late_reads.get_or_init(find).get(row.0 as usize) == Some(&true)
    }

    /// The row whose name and source describe the value of `row`, often the row itself.
    pub fn told_by(&self, row: Row) -> Row {
        self.told_by.get(row.0 as usize).copied().unwrap_or(row)
    }

    /// Whether `row` runs at or after the turn of its computation.
    pub fn is_after_turn(&self, module: &Module, row: Row) -> bool {
        let turn = self.turn.get(module.computation_of(row).0 as usize).copied().flatten();
        turn.is_some_and(|turn| row >= turn)
    }
}

/// The computations that the entry reaches, callers first.
fn reached(attribution: &Attribution) -> impl Iterator<Item = ComputationId> + '_ {
    let contexts = &attribution.contexts;
    let is_first = |node: &&super::Node| {
        contexts.nodes.get(contexts.first_node(node.computation) as usize) == Some(*node)
    };
    contexts.nodes.iter().filter(is_first).map(|node| node.computation)
}

impl Finder<'_> {
    fn rank(&self, row: u32) -> u8 {
        rank(self.whose.phase[row as usize])
    }

    /// Collects the phases inside a computation, whose callees are known, and gives its calls the
    /// phases of the rows inside them.
    fn look_inside(&mut self, id: ComputationId) {
        let module = self.module;
        let mut inside = Inside::default();
        let calls = &module.all_calls()[module.calls_within(id)];
        for calls in calls.chunk_by(|one, other| one.row == other.row) {
            let Some(row) = calls.first().map(|call| call.row) else { continue };
            let opcode = module.opcode(row);
            if !runs_others(opcode) {
                continue;
            }
            let mut called = Inside::default();
            for call in calls.iter().filter(|call| call.role != CallRole::Condition) {
                let callee = self.inside[call.computation.0 as usize];
                called.all |= callee.all;
                called.products |= callee.products;
            }
            if self.rank(row.0) == NONE {
                let given = match opcode {
                    Opcode::While | Opcode::Conditional | Opcode::Call => of_loop(called),
                    _ => of_fusion(called),
                };
                self.whose.phase[row.0 as usize] = phase_of(given);
            }
            inside.all |= called.all;
            inside.products |= called.products;
        }
        // Without branches, which the processor could not predict.
        let rows = module.computation(id).rows();
        let rows = rows.start as usize..rows.end as usize;
        let opcodes = &module.columns().opcodes[rows.clone()];
        for (opcode, phase) in opcodes.iter().zip(&self.whose.phase[rows]) {
            let own = bit(*phase);
            let (all, products) = (!is_from_nothing(*opcode), is_product(*opcode));
            inside.all |= own & u8::from(all).wrapping_neg();
            inside.products |= own & u8::from(products).wrapping_neg();
        }
        self.inside[id.0 as usize] = inside;
    }

    /// Gives phases to the rows of a computation, whose callers are known.
    fn complete(&mut self, id: ComputationId, is_data: &[bool]) {
        let module = self.module;
        let rows = module.computation(id).rows();
        // Most computations are fused, and all of their rows have one phase.
        let ranks = self.ranks(rows.clone());
        if ranks & LATE != 0 && self.is_scheduled {
            self.find_turn(id, is_data);
        }
        if ranks & 1 << NONE != 0 {
            let mut open = std::mem::take(&mut self.open);
            open.clear();
            open.extend(rows.filter(|row| self.rank(*row) == NONE));
            self.follow_moves(&open);
            // Parameters of called computations have no phase of their own.
            let is_entry = id == module.entry();
            open.retain(|row| self.rank(*row) == NONE);
            let is_open = |row: &u32| is_entry || module.opcode(Row(*row)) != Opcode::Parameter;
            if open.iter().any(is_open) {
                self.complete_open(id, &open);
            }
            self.open = open;
        }
        for call in &module.all_calls()[module.calls_within(id)] {
            let own = (self.rank(call.row.0), call.row.0);
            let around = &mut self.around[call.computation.0 as usize];
            if call.computation != id && around.0 == NONE {
                *around = own;
            }
        }
    }

    /// The ranks of `rows`, one bit for each.
    fn ranks(&self, rows: Range<u32>) -> u8 {
        let phases = &self.whose.phase[rows.start as usize..rows.end as usize];
        // Bits by phase, because ranks would be looked up for every row.
        let met = phases.iter().fold(0u8, |met, phase| met | 1 << *phase as u8);
        let is_met = |phase: &Phase| met & 1 << *phase as u8 != 0;
        Phase::ALL.iter().filter(|phase| is_met(phase)).fold(0, |all, own| all | 1 << rank(*own))
    }

    /// Gives phases to `open`, the rows of a computation that have none.
    fn complete_open(&mut self, id: ComputationId, open: &[u32]) {
        let rows = self.module.computation(id).rows();
        let [mut low, mut high] = std::mem::take(&mut self.bounds);
        self.low(rows.clone(), open, &mut low);
        self.high(rows.clone(), open, &mut high);
        let around = self.around[id.0 as usize];
        let turn = self.whose.turn[id.0 as usize];
        let is_entry = id == self.module.entry();
        for row in open.iter().copied() {
            if moves(self.module, Row(row)) {
                continue;
            }
            let opcode = self.module.opcode(Row(row));
            let at = (row - rows.start) as usize;
            let given = match opcode {
                Opcode::Parameter if !is_entry => continue,
                _ => match collects(self.module, Row(row)) {
                    Some(true) if high[at].0 != NONE => high[at],
                    Some(false) if low[at].0 != NONE => low[at],
                    _ => between(low[at], high[at], turn.is_some_and(|turn| row >= turn.0)),
                },
            };
            let given = if given.0 == NONE { around } else { given };
            self.give(row, given, opcode != Opcode::Parameter && module_lacks_name(self, row));
        }
        self.follow_moves(open);
        for row in open.iter().copied() {
            if self.rank(row) == NONE && moves(self.module, Row(row)) {
                let at = (row - rows.start) as usize;
                let given = between(low[at], high[at], false);
                let given = if given.0 == NONE { around } else { given };
                self.give(row, given, true);
            }
        }
        self.bounds = [low, high];
    }

    fn give(&mut self, row: u32, (rank, giver): Bound, is_described: bool) {
        if rank == NONE {
            return;
        }
        self.whose.phase[row as usize] = phase_of(rank);
        if is_described {
            let told_by = &mut self.whose.told_by;
            if told_by.is_empty() {
                *told_by = self.module.rows().collect();
            }
            if let Some(described) = told_by.get(giver as usize).copied() {
                told_by[row as usize] = described;
            }
        }
    }

    /// The first row of late work that depends on data, after all forward products. Data are the
    /// parameters that the program does not replace. Late rows before all forward products, such as
    /// indices computed from the batch or gathered weights, wait for nothing.
    fn find_turn(&mut self, id: ComputationId, is_data: &[bool]) {
        let module = self.module;
        let is_entry = id == module.entry();
        let rows = module.computation(id).rows();
        let is_forward =
            |row: &u32| self.rank(*row) == FORWARD && self.holds_forward_products(*row);
        let last = match self.whose.basis {
            Basis::Names => match rows.clone().rev().find(is_forward) {
                Some(last) => last,
                None => return,
            },
            _ => rows.start,
        };
        let mut depends = vec![false; rows.len()];
        for row in rows.clone() {
            let at = (row - rows.start) as usize;
            depends[at] = if module.opcode(Row(row)) == Opcode::Parameter {
                let number = module.parameter_number(Row(row));
                let number = number.and_then(|number| usize::try_from(number).ok());
                !is_entry || number.and_then(|number| is_data.get(number)) != Some(&false)
            } else {
                let operands = module.operands(Row(row)).iter();
                let before = operands.filter_map(|row| row.checked_sub(rows.start));
                let mut known = before.filter_map(|at| depends.get(at as usize));
                known.any(|depends| *depends)
            };
            let is_late = matches!(self.rank(row), RECOMPUTE | BACKWARD);
            if row >= last && is_late && depends[at] && !moves(self.module, Row(row)) {
                self.whose.turn[id.0 as usize] = Some(Row(row));
                return;
            }
        }
    }

    /// Whether the products in `row` are forward work.
    fn holds_forward_products(&self, row: u32) -> bool {
        let module = self.module;
        if is_product(module.opcode(Row(row))) {
            return self.rank(row) == FORWARD;
        }
        let called = module.calls(Row(row)).iter();
        let all = called.map(|call| self.inside[call.computation.0 as usize].products);
        all.fold(0, |all, products| all | products) == 1 << FORWARD
    }

    /// Gives those of `rows` that move a value the phase of the row that computed it.
    fn follow_moves(&mut self, rows: &[u32]) {
        let module = self.module;
        for row in rows.iter().copied() {
            if self.rank(row) != NONE {
                continue;
            }
            let giver = match module.opcode(Row(row)) {
                Opcode::AsyncStart | Opcode::AsyncDone
                    if wrapped(module, Row(row)) == Some(Opcode::DynamicUpdateSlice) =>
                {
                    self.updated(row)
                }
                opcode if ends(opcode) => {
                    let start = module.operands(Row(row)).first().copied();
                    start.filter(|start| self.rank(*start) != NONE)
                }
                _ if moves(self.module, Row(row)) => self.moved(row),
                _ => None,
            };
            if let Some(giver) = giver {
                self.give(row, (self.rank(giver), giver), true);
            }
        }
    }

    /// The row with a phase whose value `row` moves.
    fn moved(&mut self, row: u32) -> Option<u32> {
        // Most values come from a row that has a phase.
        let first = moved_operand(self.module, Row(row)).map(|first| first.0);
        if let Some(first) = first.filter(|first| self.rank(*first) != NONE) {
            self.steps = self.steps.checked_sub(1)?;
            return Some(first);
        }
        let mut at = Place::from(Row(row));
        for _ in 0..MOST_MOVES {
            self.steps = self.steps.checked_sub(1)?;
            if !step_back(self.module, &mut at) {
                return None;
            }
            if self.rank(at.row.0) != NONE {
                return Some(at.row.0);
            }
        }
        None
    }

    /// The row that gives an asynchronous update of a slice its phase: the source of the written
    /// value, or else of the updated array.
    fn updated(&mut self, row: u32) -> Option<u32> {
        let module = self.module;
        let operands = module.operands(Row(row));
        let operands = match module.opcode(Row(row)) {
            Opcode::AsyncStart => operands,
            _ => return operands.first().copied().filter(|start| self.rank(*start) != NONE),
        };
        let order = operands.get(1).into_iter().chain(operands.first());
        for operand in order.copied() {
            if self.rank(operand) != NONE {
                return Some(operand);
            }
            let given = self.moved(operand);
            if given.is_some() {
                return given;
            }
        }
        None
    }

    /// By row of `open`, those of `rows` without a phase: the latest phase among the values it is computed from.
    fn low(&self, rows: Range<u32>, open: &[u32], low: &mut Vec<Bound>) {
        let module = self.module;
        low.clear();
        low.resize(rows.len(), NO_BOUND);
        for row in open.iter().copied() {
            if is_from_nothing(module.opcode(Row(row))) {
                continue;
            }
            let given = |operand: u32| {
                let own = self.rank(operand);
                match own {
                    NONE => low[(operand - rows.start) as usize],
                    _ if is_from_nothing(module.opcode(Row(operand))) => NO_BOUND,
                    own => (own, operand),
                }
            };
            let before = module.operands(Row(row)).iter().copied();
            let before = before.filter(|operand| (rows.start..row).contains(operand));
            let known = before.map(given).filter(|bound| bound.0 != NONE);
            low[(row - rows.start) as usize] =
                known.max_by_key(|bound| bound.0).unwrap_or(NO_BOUND);
        }
    }

    /// By row of `open`, those of `rows` without a phase: the earliest phase among its users.
    fn high(&self, rows: Range<u32>, open: &[u32], high: &mut Vec<Bound>) {
        let module = self.module;
        high.clear();
        high.resize(rows.len(), NO_BOUND);
        for row in open.iter().copied().rev() {
            let mut bound = NO_BOUND;
            for user in module.users().get(row).iter().copied() {
                let own = self.rank(user);
                let given = match own {
                    NONE => match user.checked_sub(rows.start) {
                        Some(at) => high.get(at as usize).copied().unwrap_or(NO_BOUND),
                        None => NO_BOUND,
                    },
                    own => (own, user),
                };
                if given.0 < bound.0 {
                    bound = given;
                }
            }
            high[(row - rows.start) as usize] = bound;
        }
    }
}

/// Whether `row` has no name of its own.
fn module_lacks_name(finder: &Finder<'_>, row: u32) -> bool {
    let scope = finder.attribution.scope.get(row as usize).copied();
    scope.is_none_or(|scope| scope == super::ScopeTree::ROOT)
}

/// Whether `row` gathers (true) or adds (false) between devices; None for other rows.
fn collects(module: &Module, row: Row) -> Option<bool> {
    let opcode = match module.opcode(row) {
        Opcode::AsyncStart => wrapped(module, row)?,
        opcode => opcode,
    };
    match opcode {
        Opcode::AllGather | Opcode::AllGatherStart => Some(true),
        Opcode::AllReduce | Opcode::AllReduceStart | Opcode::ReduceScatter => Some(false),
        _ => None,
    }
}

/// Whether `opcode` multiplies matrices.
fn is_product(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Dot | Opcode::Convolution)
}

/// Whether the result of `opcode` does not depend on data.
fn is_from_nothing(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Parameter | Opcode::Constant | Opcode::Iota)
}

/// Whether `opcode` ends the asynchronous operation that its operand started.
fn ends(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::AsyncDone
            | Opcode::AsyncUpdate
            | Opcode::AllGatherDone
            | Opcode::AllReduceDone
            | Opcode::CollectivePermuteDone
            | Opcode::RecvDone
            | Opcode::SendDone
    )
}

/// Whether `opcode` runs the computations that it calls; others apply them to elements.
fn runs_others(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::While | Opcode::Conditional | Opcode::Call | Opcode::Fusion | Opcode::AsyncStart
    )
}

/// By parameter number: whether the entry parameter holds data, which is true if the program does
/// not replace it. If the program replaces no parameter, all hold data.
fn data_parameters(module: &Module) -> Vec<bool> {
    let mut is_data = Vec::new();
    for alias in module.aliases().unwrap_or_default() {
        let Ok(number) = usize::try_from(alias.number) else { continue };
        // A number too large for any parameter must not cost memory.
        if number >= module.row_count() {
            continue;
        }
        if is_data.len() <= number {
            is_data.resize(number + 1, true);
        }
        // If a part of a tuple is replaced, the rest may or may not be replaced.
        is_data[number] &= !alias.index.is_empty();
    }
    is_data
}
