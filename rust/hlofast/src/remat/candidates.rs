//! Which residuals could be recomputed: for each residual the instructions to copy.

use super::handed_on::{before_barrier, behind, is_for_barriers};
use super::residuals::Residual;
use super::rewrite::asynchronous::{async_gather, reads};
use super::rewrite::{Recompute, Use};
use crate::cost::{Backend, device_sizes};
use crate::flow::origin::{End, Place, Through, origins};
use crate::flow::{Attribution, Phase};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Module, Opcode, Row};
use hashbrown::{HashMap, HashSet};

/// Limit on the instructions that one candidate copies, and on the uses of an instruction that are
/// followed.
const MOST_COPIED: usize = 16;
const MOST_USES: usize = 4096;
/// Limit on the operands and users that are examined for all candidates of a module.
const MOST_WORK: usize = 1 << 24;
/// Limit on the depth of nested computations that are examined.
const DEEPEST: u32 = 8;

/// How a residual could be recomputed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The number of the residual.
    pub residual: u32,
    /// The request for [`super::rewrite()`]; empty if there is an obstacle.
    pub recomputes: Vec<Recompute>,
    /// The instructions that run again, except instructions that only pass values on.
    pub again: Vec<Row>,
    /// The computation in which they run.
    pub place: ComputationId,
    /// Where the residual's value is kept: parts of results that hold the value or copies of it.
    pub held: Vec<Place>,
    /// Bytes of the values to keep instead.
    pub kept_instead: i64,
    /// The reason why there is no request.
    pub obstacle: Option<&'static str>,
}

impl Candidate {
    /// A candidate for a residual, without a request yet.
    fn of(module: &Module, residual: &Residual) -> Self {
        Self {
            residual: 0,
            recomputes: Vec::new(),
            again: Vec::new(),
            place: module.computation_of(residual.place.row),
            held: vec![residual.place.clone()],
            kept_instead: 0,
            obstacle: None,
        }
    }
}

/// One candidate for each of `residuals`.
pub fn candidates(
    module: &Module,
    attribution: &Attribution,
    residuals: &[Residual],
) -> Vec<Candidate> {
    let mut finder = Finder {
        module,
        attribution,
        sizes: device_sizes(module, Backend::of_module(module)),
        last_reads: HashMap::default(),
        dear: HashMap::default(),
        work: MOST_WORK,
    };
    let find = |(number, residual): (usize, &Residual)| {
        let outcome = match residual.stacked {
            _ if residual.is_in_flight => {
                Err("its all-gather is still in flight, and fusions carry the state of the gather")
            }
            Some(_) => finder.smaller_stack(residual),
            None => finder.for_users(residual),
        };
        let mut candidate = outcome.unwrap_or_else(|reason| Candidate {
            obstacle: Some(reason),
            ..Candidate::of(module, residual)
        });
        candidate.residual = number as u32;
        candidate
    };
    residuals.iter().enumerate().map(find).collect()
}

type Outcome = Result<Candidate, &'static str>;

/// Where a value is held, and its late readers.
struct Held {
    /// By row to copy: its late uses.
    reads: Vec<(Row, Vec<Use>)>,
    /// Every part of a result that holds the value or a copy of it.
    places: Vec<Place>,
}

struct Finder<'a> {
    module: &'a Module,
    attribution: &'a Attribution,
    /// By shape: bytes.
    sizes: Vec<i64>,
    /// By row: the last row of its computation that reads its value.
    last_reads: HashMap<Row, u32, BuildMix>,
    /// By row: why the row is expensive to recompute; None if it is cheap.
    dear: HashMap<Row, Option<&'static str>, BuildMix>,
    /// Remaining budget of operands and users to examine.
    work: usize,
}

impl Finder<'_> {
    fn bytes(&self, row: Row) -> i64 {
        self.sizes[self.module.shape(row).0 as usize].max(0)
    }

    fn is_late(&self, row: Row) -> bool {
        matches!(self.attribution.phase[row.0 as usize], Phase::Backward | Phase::Recompute)
    }

    fn users(&self, row: Row) -> impl Iterator<Item = Row> + '_ {
        self.module.users().get(row.0).iter().map(|user| Row(*user))
    }

    /// Finds the copies for the late users of a residual.
    fn for_users(&mut self, residual: &Residual) -> Outcome {
        let Held { reads, places } = self.late_reads(&residual.place)?;
        if reads.is_empty() {
            return Err("no instruction that could use a copy reads it");
        }
        let first = reads.iter().flat_map(|(_, uses)| uses).map(|usage| usage.user).min();
        let Some(first) = first else { return Err("nothing reads it") };
        let mut candidate = Candidate { held: places, ..Candidate::of(self.module, residual) };
        let mut kept: HashSet<Row, BuildMix> = HashSet::default();
        for (value, uses) in reads {
            let (members, instead) = self.chain(value, residual.place.row, first)?;
            kept.extend(instead);
            let again = members.iter().filter(|row| !hands_on(self.module.opcode(**row)));
            candidate.again.extend(again);
            let chain = members.into_iter().filter(|row| *row != value).collect();
            candidate.recomputes.push(Recompute::ForUsers { producer: value, chain, uses });
        }
        let sizes = kept.into_iter().map(|row| self.bytes(row));
        candidate.kept_instead = sizes.fold(0, i64::saturating_add);
        if candidate.kept_instead >= residual.bytes {
            return Err("its inputs take the same memory");
        }
        Ok(candidate)
    }

    /// The places of the value at `place`, and its late uses.
    fn late_reads(&mut self, place: &Place) -> Result<Held, &'static str> {
        let module = self.module;
        let mut reads: HashMap<Row, Vec<Use>, BuildMix> = HashMap::default();
        let mut seen: HashSet<Place, BuildMix> = HashSet::default();
        // Places to visit; the flag tells whether a place is behind a barrier, or in a tuple that
        // only backward code reads.
        let mut stack = vec![(place.clone(), false)];
        while let Some((at, is_late_here)) = stack.pop() {
            if seen.len() > MOST_USES {
                return Err("it has too many uses to follow");
            }
            if !seen.insert(at.clone()) {
                continue;
            }
            let mut uses = Vec::new();
            let users: Vec<Row> = self.users(at.row).collect();
            for user in users {
                let looked_at = self.module.operands(user).len() + self.users(user).count() + 1;
                match self.work.checked_sub(looked_at) {
                    Some(left) => self.work = left,
                    None => return Err("the module has too many uses to follow them all"),
                }
                let mut path = at.path.clone();
                match module.opcode(user) {
                    Opcode::GetTupleElement => {
                        let index = module.tuple_index(user).and_then(|i| u32::try_from(i).ok());
                        if index.is_some() && path.pop() == index {
                            stack.push((Place { row: user, path }, is_late_here));
                        }
                    }
                    Opcode::Bitcast | Opcode::Copy => {
                        stack.push((Place { row: user, path }, is_late_here));
                    }
                    Opcode::CopyStart => {
                        path.push(0);
                        stack.push((Place { row: user, path }, is_late_here));
                    }
                    Opcode::CopyDone if path.pop() == Some(0) => {
                        stack.push((Place { row: user, path }, is_late_here));
                    }
                    Opcode::OptBarrier => {
                        let is_late_here = is_late_here || self.is_late(user);
                        stack.push((Place { row: user, path }, is_late_here));
                    }
                    Opcode::Tuple if is_for_barriers(module, user) => {
                        let is_late_here = is_late_here || self.is_late_tuple(user);
                        let operands = (0u32..).zip(module.operands(user));
                        for (index, _) in operands.filter(|(_, row)| **row == at.row.0) {
                            let path = at.path.iter().copied().chain([index]).collect();
                            stack.push((Place { row: user, path }, is_late_here));
                        }
                    }
                    opcode if path.is_empty() => {
                        let phase = self.attribution.phase[user.0 as usize];
                        let is_late = match opcode {
                            Opcode::Tuple => self.is_late_tuple(user),
                            _ if is_late_here => phase != Phase::Forward,
                            _ => self.is_late(user),
                        };
                        let operands = module.operands(user).iter().enumerate();
                        let reading = operands.filter(|(_, row)| is_late && **row == at.row.0);
                        uses.extend(reading.map(|(operand, _)| Use { user, operand }));
                    }
                    _ => {}
                }
            }
            if !uses.is_empty() {
                // The instruction to copy is the operand of the barrier.
                let value = before_barrier(module, at.row).last().copied().unwrap_or(at.row);
                reads.entry(value).or_default().extend(uses);
            }
        }
        let mut reads: Vec<(Row, Vec<Use>)> = reads.into_iter().collect();
        for (_, uses) in &mut reads {
            uses.sort_unstable_by_key(|usage| (usage.user, usage.operand));
            uses.dedup();
        }
        reads.sort_unstable_by_key(|(row, _)| *row);
        let mut places: Vec<Place> = seen.into_iter().collect();
        places.sort_unstable_by(|a, b| (a.row, &a.path).cmp(&(b.row, &b.path)));
        Ok(Held { reads, places })
    }

    /// Whether a tuple is only for backward code.
    fn is_late_tuple(&self, tuple: Row) -> bool {
        let phase = |row: Row| self.attribution.phase[row.0 as usize];
        let is_early = |row: Row| matches!(phase(row), Phase::Forward);
        !is_early(tuple)
            && !self.users(tuple).any(is_early)
            && (self.is_late(tuple) || self.users(tuple).any(|user| self.is_late(user)))
    }

    /// The instructions to copy for `value`, back to at least `maker`, and the values to keep
    /// instead. Several chains of cheap instructions may lead back to `maker`; the result is the
    /// chain that keeps the fewest bytes.
    fn chain(
        &mut self,
        value: Row,
        maker: Row,
        late: Row,
    ) -> Result<(Vec<Row>, Vec<Row>), &'static str> {
        let mut members = vec![value];
        let mut stuck: HashSet<Row, BuildMix> = HashSet::default();
        let mut best: Option<(i64, Vec<Row>, Vec<Row>)> = None;
        if let Some(reason) = self.dear(value) {
            return Err(reason);
        }
        loop {
            let mut frontier: Vec<Row> = Vec::new();
            for member in &members {
                for operand in reads(self.module, *member, |_| false) {
                    let before = before_barrier(self.module, operand);
                    let operand = before.last().copied().unwrap_or(operand);
                    if !members.contains(&operand) && !frontier.contains(&operand) {
                        frontier.push(operand);
                    }
                }
            }
            let is_whole = members.contains(&maker);
            if !is_whole {
                // First goes back to the maker through rows that only pass the value on.
                let way = |row: &&Row| **row == maker || passes(self.module.opcode(**row));
                let next = frontier.iter().filter(way).max_by_key(|row| **row == maker).copied();
                let Some(next) = next.filter(|_| members.len() < MOST_COPIED) else {
                    return Err("too many instructions lie between its producer and its readers");
                };
                if let Some(reason) = self.dear(next) {
                    return Err(reason);
                }
                members.push(next);
                continue;
            }
            frontier.retain(|row| !self.is_alive(*row, late));
            let bytes = frontier.iter().map(|row| self.bytes(*row)).fold(0, i64::saturating_add);
            if best.as_ref().is_none_or(|(least, _, _)| bytes < *least) {
                best = Some((bytes, members.clone(), frontier.clone()));
            }
            if bytes == 0 || members.len() >= MOST_COPIED {
                break;
            }
            let open = frontier.iter().filter(|row| !stuck.contains(*row));
            let by_size = |row: &&Row| (hands_on(self.module.opcode(**row)), self.bytes(**row));
            let Some(next) = open.max_by_key(by_size).copied() else { break };
            match self.dear_before(next) {
                None => members.push(next),
                Some(_) => {
                    stuck.insert(next);
                }
            }
        }
        let Some((_, members, frontier)) = best else {
            return Err("too many instructions would have to be copied");
        };
        Ok((members, frontier))
    }

    /// Whether the value of `row` is live at `late` even without a copy.
    fn is_alive(&mut self, row: Row, late: Row) -> bool {
        let free = [Opcode::Parameter, Opcode::Constant, Opcode::Iota, Opcode::PartitionId];
        let mut at = row;
        while hands_on(self.module.opcode(at)) {
            match self.module.operands(at).first() {
                Some(operand) if self.module.opcode(at) != Opcode::Tuple => at = Row(*operand),
                _ => break,
            }
        }
        free.contains(&self.module.opcode(at)) || self.last_read(row, 0) >= late.0
    }

    fn last_read(&mut self, row: Row, depth: u32) -> u32 {
        if let Some(known) = self.last_reads.get(&row) {
            return *known;
        }
        let users: Vec<Row> = self.users(row).collect();
        let mut last = row.0;
        for user in users {
            last = last.max(match self.module.opcode(user) {
                Opcode::Bitcast if depth < DEEPEST => self.last_read(user, depth + 1),
                Opcode::Tuple | Opcode::OptBarrier => self.last_read_behind(row, user),
                _ => user.0,
            });
        }
        self.last_reads.insert(row, last);
        last
    }

    /// The last row that reads the value of `row` after tuple or barrier `user` has passed it on.
    fn last_read_behind(&self, row: Row, user: Row) -> u32 {
        let operands = self.module.operands(user).iter().enumerate();
        let mine = operands.filter(|(_, operand)| **operand == row.0);
        let all_behind = mine.filter_map(|(operand, _)| behind(self.module, user, operand));
        let reads = all_behind.flat_map(|behind| behind.reads).map(|(reader, _)| reader.0);
        reads.max().unwrap_or(user.0).max(user.0)
    }

    /// Why `row` is expensive to recompute; None if it is cheap.
    fn dear(&mut self, row: Row) -> Option<&'static str> {
        let module = self.module;
        *self.dear.entry(row).or_insert_with(|| dear(module, row, 0))
    }

    /// Why the operand that `row` slices is expensive to recompute. Slicing again would keep the
    /// whole operand.
    fn dear_before(&mut self, row: Row) -> Option<&'static str> {
        let module = self.module;
        let mut at = row;
        while module.opcode(at) == Opcode::GetTupleElement {
            let Some(operand) = module.operands(at).first() else { break };
            at = Row(*operand);
        }
        self.dear(at)
    }

    /// A smaller value to stack instead.
    fn smaller_stack(&self, residual: &Residual) -> Outcome {
        let module = self.module;
        let through = Through { conversions: true, ..Through::default() };
        let stack_origins = origins(module, residual.place.clone(), through);
        let update = stack_origins.ends.iter().find_map(|end| match end {
            End::Computed(row) if module.opcode(*row) == Opcode::DynamicUpdateSlice => Some(*row),
            _ => None,
        });
        let Some(update) = update else {
            return Err("the instruction that writes the stack is unknown");
        };
        // Compilers fuse the write of a stack, but the replacement value has to exist in the loop's
        // body.
        let mut fusion = None;
        let mut place = module.computation_of(update);
        if let [caller] = module.callers(place) {
            let caller = Row(*caller);
            if module.opcode(caller) == Opcode::Fusion {
                fusion = Some(caller);
                place = module.computation_of(caller);
            }
        }
        let Some(slice) = module.operands(update).get(1).map(|row| Row(*row)) else {
            return Err("the instruction that writes the stack is unknown");
        };
        let mut best: Option<(Row, usize)> = None;
        let mut passed = Vec::new();
        let mut at = slice;
        for _ in 0..2 * MOST_COPIED {
            let opcode = module.opcode(at);
            let outer = fusion.filter(|_| module.computation_of(at) != place);
            at = if let (Opcode::Parameter, Some(fusion)) = (opcode, outer) {
                let number = module.parameter_number(at).and_then(|n| usize::try_from(n).ok());
                let operand = number.and_then(|number| module.operands(fusion).get(number));
                let Some(operand) = operand else { break };
                passed.push(fusion);
                Row(*operand)
            } else if let Some(gather) = async_gather(module, at) {
                passed.push(at);
                gather.operand
            } else if is_step(opcode) {
                let Some(operand) = module.operands(at).first() else { break };
                passed.push(at);
                Row(*operand)
            } else {
                break;
            };
            let least = best.map_or(self.bytes(slice), |(row, _)| self.bytes(row));
            let is_array = module.shapes().array(module.shape(at)).is_some();
            if is_array && self.bytes(at) < least && module.computation_of(at) == place {
                best = Some((at, passed.len()));
            }
        }
        let Some((source, count)) = best else {
            return Err("no smaller value is known that the stacked value is computed from");
        };
        let slots = self.bytes(slice).max(1);
        let kept = i128::from(residual.bytes) * i128::from(self.bytes(source)) / i128::from(slots);
        passed.truncate(count);
        passed.retain(|row| !hands_on(module.opcode(*row)) && module.computation_of(*row) == place);
        // Of a fusion that writes the stack, only the stacked part runs again.
        passed.retain(|row| Some(*row) != fusion);
        Ok(Candidate {
            recomputes: vec![Recompute::FromStack { update, source }],
            again: passed,
            place,
            kept_instead: i64::try_from(kept).unwrap_or(i64::MAX),
            ..Candidate::of(module, residual)
        })
    }
}

fn hands_on(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::GetTupleElement | Opcode::Tuple | Opcode::Bitcast)
}

/// Whether the result of `opcode` has the value of its operand, perhaps at another place in memory.
fn passes(opcode: Opcode) -> bool {
    hands_on(opcode) || matches!(opcode, Opcode::Copy | Opcode::CopyStart | Opcode::CopyDone)
}

/// Whether `opcode` computes its result from its first operand alone.
fn is_step(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        AllGather
            | AllGatherDone
            | AllGatherStart
            | Bitcast
            | BitcastConvert
            | Broadcast
            | Convert
            | Copy
            | CopyDone
            | CopyStart
            | ReducePrecision
            | Reshape
            | Transpose
    )
}

/// Why `row`, or a computation that it calls, does more than move, convert or combine elements.
fn dear(module: &Module, row: Row, depth: u32) -> Option<&'static str> {
    use Opcode::*;
    if async_gather(module, row).is_some() {
        return None;
    }
    match module.opcode(row) {
        Dot | RaggedDot | Convolution => Some("it is computed by a matmul"),
        While | Conditional | Call => Some("it is computed by a loop, a conditional or a call"),
        CustomCall => Some("it is computed by a custom call"),
        AllReduce | AllReduceStart | AllReduceDone | ReduceScatter | AllToAll => {
            Some("it is computed by a collective other than an all-gather")
        }
        Sort | Scatter | Gather | Fft | Cholesky | TriangularSolve => {
            Some("it is computed by a sort, a scatter, a gather or linear algebra")
        }
        Parameter if depth == 0 => Some("it is a parameter"),
        Fusion | AsyncStart if depth < DEEPEST => module.calls(row).iter().find_map(|call| {
            let rows = module.computation(call.computation).rows();
            rows.map(Row).find_map(|row| dear(module, row, depth + 1))
        }),
        Fusion | AsyncStart => Some("its computations are nested too deeply"),
        _ => None,
    }
}
