//! Modules that recompute values for late users instead of keeping them.
//!
//! A copy of the value's producer is inserted right before its first late user. Copies read their
//! operands through an `opt-barrier` that also takes a value computed shortly before the copy (see
//! `late.rs`), so that no pass merges a copy with its original or hoists it. All late users of one
//! [`Recompute`] share one copy; pass several requests to give distant users copies of their own.
//!
//! Copies are called `x.remat`, `x.remat2` and so on. Copies keep all properties of their originals
//! except control predecessors and channels: the operation name still identifies the program's
//! operation, and the suffix marks the repetition. Computations that belong to one instruction (of
//! fusions and asynchronous operations) are copied with it; reducers and the like are shared.
//! Asynchronous pairs are copied as pairs; an all-gather that fusions start and end is copied as a
//! plain all-gather.
//!
//! Negative zero is written `-0.0`, since XLA's parser reads the `-0` that XLA prints as 0.
//!
//! Values that a loop stacks into its state are handled by [`Recompute::FromStack`].

pub(super) mod asynchronous;
mod barriers;
mod copy;
mod copyable;
mod error;
mod fresh;
mod fused;
mod late;
mod overwritten;
mod places;
mod shapes;
mod stack;

pub use error::RewriteError;

use super::handed_on::{self, member};
use crate::edit::{Edit, apply};
use crate::ir::{ComputationId, Module, Opcode, Row};
use crate::print::{CopyPrinter, PrintOptions, Renaming, literal_with_signs, to_text};
use crate::text::Source;
use fresh::Fresh;
use late::Lateness;
use overwritten::Buffers;
use shapes::Shapes;
use std::collections::{HashMap, HashSet};

/// One operand of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Use {
    /// The instruction.
    pub user: Row,
    /// The operand position.
    pub operand: usize,
}

/// What to recompute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// A copy of an instruction replaces it as operand of some of its users. Users of the
    /// instruction's value behind tuples and optimization barriers count as its users; if all users
    /// behind a barrier get copies, the barrier passes on the copies' inputs instead.
    ForUsers {
        /// The instruction whose result is kept too long.
        producer: Row,
        /// Instructions that `producer` depends on and that are copied with it. Their operands are
        /// kept instead of the producer's result. Starts of asynchronous operations may be omitted.
        chain: Vec<Row>,
        /// The users that get the copy; all in the producer's computation.
        uses: Vec<Use>,
    },
    /// A loop stacks a value for a later loop, and the value is computed from a smaller value. The
    /// smaller value is stacked instead, and the value is recomputed where slices of the stack are
    /// read. Shapes change in the state of both loops.
    FromStack {
        /// The dynamic-update-slice that writes the stack, in the loop's body or in a fusion of the
        /// body that does nothing else.
        update: Row,
        /// The value to stack instead, in the loop's body. All rows between `source` and the
        /// stacked value are copied to each reader of the stack.
        source: Row,
    },
}

/// A copy in the new module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The original, in the old module.
    pub original: Row,
    /// The copy's name in the new module.
    pub name: Vec<u8>,
}

/// A new module and its copies.
#[derive(Debug)]
pub struct Rewritten {
    /// The new module.
    pub module: Module,
    /// The requested copies, excluding barriers and instructions inside fusions.
    pub copies: Vec<Copied>,
}

/// The module that recomputes the values requested in `recomputes`. If an instruction cannot be
/// rewritten, returns an error that names the instruction and the reason.
pub fn rewrite(module: &Module, recomputes: &[Recompute]) -> Result<Rewritten, RewriteError> {
    let mut plan = Plan::new(module);
    for recompute in recomputes {
        if let Recompute::ForUsers { producer, chain, .. } = recompute {
            chain.iter().chain([producer]).for_each(|row| plan.note_behind(*row));
        }
    }
    for recompute in recomputes {
        match recompute {
            Recompute::ForUsers { producer, chain, uses } => {
                plan.for_users(*producer, chain, uses)?;
            }
            Recompute::FromStack { update, source } => plan.restack(*update, *source)?,
        }
    }
    plan.finish()
}

/// The edits so far, with the facts needed to avoid conflicts between them.
struct Plan<'a> {
    module: &'a Module,
    fresh: Fresh,
    printer: CopyPrinter<'a>,
    lateness: HashMap<ComputationId, Lateness<'a>>,
    /// Buffers of a scheduled module.
    buffers: Option<Buffers>,
    edits: Vec<Edit>,
    copies: Vec<Copied>,
    /// Shapes of loop state.
    shapes: Shapes,
    /// Uses that read a copy.
    replaced: HashSet<Use>,
    /// Originals; originals without remaining users are removed.
    originals: HashSet<Row>,
    /// By original: the inputs of its copies.
    inputs: HashMap<Row, Vec<Row>>,
    /// Rows that new text reads.
    read: HashSet<Row>,
    /// Rows behind barriers that hold values of originals; no copy may wait for such a row.
    behind: HashSet<Row>,
}

impl<'a> Plan<'a> {
    fn new(module: &'a Module) -> Self {
        Self {
            module,
            fresh: Fresh::new(module),
            printer: CopyPrinter::new(module),
            lateness: HashMap::new(),
            buffers: None,
            edits: Vec::new(),
            copies: Vec::new(),
            shapes: Shapes::default(),
            replaced: HashSet::new(),
            originals: HashSet::new(),
            inputs: HashMap::new(),
            read: HashSet::new(),
            behind: HashSet::new(),
        }
    }

    fn lateness(&mut self, id: ComputationId) -> &Lateness<'a> {
        let module = self.module;
        self.lateness.entry(id).or_insert_with(|| Lateness::new(module, id))
    }

    fn for_users(
        &mut self,
        producer: Row,
        chain: &[Row],
        uses: &[Use],
    ) -> Result<(), RewriteError> {
        let copied = copy::set_to_copy(self.module, producer, chain)?;
        self.check_uses(producer, uses)?;
        let Some(first) = uses.iter().map(|usage| usage.user).min() else {
            return Err(RewriteError::new(self.module, producer, "no user was named for the copy"));
        };
        if self.module.is_scheduled() {
            let module = self.module;
            self.buffers(producer)?.check(module, &copied, first)?;
        }
        let id = self.module.computation_of(producer);
        self.lateness(id);
        let tie = self.lateness.get(&id).and_then(|late| late.tie(producer, uses, &self.behind));
        let Some(tie) = tie else {
            let reason =
                "no value that could delay a copy is computed between it and its late users";
            return Err(RewriteError::new(self.module, producer, reason));
        };
        let mut renaming = Renaming::default();
        // What is cheap is copied where XLA may still move it: in a schedule it has its place.
        let copied = match self.module.is_scheduled() {
            true => copied,
            false => copy::with_cheap(self.module, copied),
        };
        let mut text = self.barrier(producer, tie, &copied, &mut renaming)?;
        self.copy_all(&copied, &mut renaming, &mut text)?;
        let name = renaming.rows.remove(&producer.0).unwrap_or_default();
        self.edits.push(Edit::InsertBefore { row: first, text });
        for usage in uses {
            self.edits.push(Edit::ReplaceOperand {
                row: usage.user,
                index: usage.operand,
                name: name.clone(),
            });
        }
        self.originals.extend(copied);
        Ok(())
    }

    /// Records the rows behind barriers that hold the value of `row`.
    fn note_behind(&mut self, row: Row) {
        let module = self.module;
        if row.0 as usize >= module.row_count() {
            return;
        }
        for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
            let operands = module.operands(user).iter().enumerate();
            for (operand, _) in operands.filter(|(_, operand)| **operand == row.0) {
                let behind = handed_on::behind(module, user, operand);
                self.behind.extend(behind.into_iter().flat_map(|behind| behind.rows));
            }
        }
    }

    /// The module's buffers; an error about `row` if they cannot be followed.
    fn buffers(&mut self, row: Row) -> Result<&Buffers, RewriteError> {
        if self.buffers.is_none() {
            self.buffers = Buffers::new(self.module);
        }
        let reason = "the module's buffers cannot be followed";
        self.buffers.as_ref().ok_or_else(|| RewriteError::new(self.module, row, reason))
    }

    /// Checks that `uses` are uses of `producer` and that no other copy already replaces them.
    fn check_uses(&mut self, producer: Row, uses: &[Use]) -> Result<(), RewriteError> {
        let module = self.module;
        for usage in uses {
            if usage.user.0 as usize >= module.row_count() || module.is_implicit(usage.user) {
                return Err(RewriteError::NoSuchInstruction { row: usage.user });
            }
            let refused = |reason| Err(RewriteError::new(module, usage.user, reason));
            if module.computation_of(usage.user) != module.computation_of(producer) {
                return refused("it is not in the computation of the instruction to copy");
            }
            let operand =
                module.operands(usage.user).get(usage.operand).map(|operand| Row(*operand));
            let read = operand.map(|operand| member(module, operand, |row| row == producer));
            if read != Some(producer) {
                return refused("its operand is not the instruction to copy");
            }
            if module.is_scheduled() && usage.user <= producer {
                return refused("it is scheduled before the instruction to copy");
            }
            if !self.replaced.insert(*usage) {
                return refused("two copies are requested for one of its operands");
            }
        }
        Ok(())
    }

    /// Removes originals without users, applies the edits and reorders instructions so that
    /// definitions precede uses.
    fn finish(mut self) -> Result<Rewritten, RewriteError> {
        let pairs = self.module.control_predecessors();
        let waited_for = pairs.iter().map(|(_, before)| *before).collect();
        let removed = self.empty_barriers(&waited_for);
        self.remove_unused(&waited_for, removed);
        self.shapes.edit(self.module, &self.replaced, &mut self.edits);
        self.keep_signs();
        let mut edited = apply(self.module, &self.edits).map_err(RewriteError::Edit)?;
        if !is_ordered(&edited) && !self.module.is_scheduled() {
            let text = to_text(&edited, &PrintOptions { fold: true, ..PrintOptions::default() });
            let source = Source::new(text.into());
            edited = crate::parse(source, &crate::Options::default())
                .map_err(|error| RewriteError::Edit(crate::edit::EditError::Invalid(error)))?;
        }
        if !is_ordered(&edited) && is_ordered(self.module) {
            return Err(RewriteError::Cycle);
        }
        Ok(Rewritten { module: edited, copies: self.copies })
    }

    /// XLA's parser loses the sign of negative zeros as XLA prints them, so they are written in
    /// full.
    fn keep_signs(&mut self) {
        let module = self.module;
        for row in module.rows() {
            if module.opcode(row) == Opcode::Constant
                && !module.is_implicit(row)
                && let Some(literal) = literal_with_signs(module, row)
            {
                self.edits.push(Edit::ReplaceLiteral { row, literal });
            }
        }
    }

    /// An original that nothing reads would still be scheduled.
    fn remove_unused(&mut self, waited_for: &HashSet<Row>, mut removed: HashSet<Row>) {
        let module = self.module;
        let mut originals: Vec<Row> = std::mem::take(&mut self.originals).into_iter().collect();
        originals.sort_unstable();
        for row in originals.into_iter().rev() {
            if removed.contains(&row) || self.read.contains(&row) {
                continue;
            }
            // The end of a gather that a fusion starts has to stay.
            let is_end = asynchronous::async_gather(module, row).is_some();
            let is_root = is_end || module.flags(row) & crate::ir::Flags::ROOT != 0;
            let is_used = module.users().get(row.0).iter().any(|user| {
                let operands = module.operands(Row(*user)).iter().enumerate();
                let mut reads = operands.filter(|(_, operand)| **operand == row.0);
                let is_kept = |operand| !self.replaced.contains(&Use { user: Row(*user), operand });
                !removed.contains(&Row(*user)) && reads.any(|(operand, _)| is_kept(operand))
            });
            if !is_root && !is_used && !waited_for.contains(&row) {
                removed.insert(row);
                self.edits.push(Edit::Remove { row });
            }
        }
    }
}

/// Whether every operand precedes its users.
fn is_ordered(module: &Module) -> bool {
    module.rows().all(|row| {
        module.is_implicit(row) || module.operands(row).iter().all(|operand| *operand < row.0)
    })
}
