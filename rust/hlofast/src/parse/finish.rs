//! Resolution and checks at the end of a computation (forward references, root, parameters) and at
//! the end of the module (called computations, entry).

use super::operands::{Operand, unknown_instruction};
use super::reader::{Queued, Reader};
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::module::NO_METADATA;
use crate::ir::{
    Call, Columns, Computation, ComputationId, Csr, Flags, Fragment, Header, Module, Opcode, Row,
    ShapeTable,
};
use crate::text::{Source, Span};
use std::sync::OnceLock;

impl Reader<'_> {
    /// Resolves the open references of the finished computation and appends its record.
    pub(super) fn finish_computation(
        &mut self,
        mut computation: Computation,
    ) -> Result<ComputationId> {
        let place =
            if computation.header.is_empty() { computation.name } else { computation.header };
        if !self.pending.is_empty() {
            self.resolve_pending()?;
        }
        self.check_parameters()?;
        let rows = self.first_row..self.next_row();
        if rows.is_empty() {
            let error = ParseError::new(
                ErrorKind::InvalidComputation,
                place,
                "a computation needs at least one instruction",
            );
            return Err(error);
        }
        computation.first_row = rows.start;
        computation.end_row = rows.end;
        computation.root = self.root.unwrap_or(rows.end - 1);
        self.columns.flags[computation.root as usize] |= Flags::ROOT;
        if computation.is_marked_entry {
            self.entry = Some(self.computations.len() as u32);
        }
        let name = computation.name;
        self.register_computation(computation).ok_or_else(|| {
            ParseError::new(
                ErrorKind::DuplicateComputation,
                name,
                "a computation of this name is already defined",
            )
        })
    }

    /// Appends the record of a finished computation; None if its name is taken.
    pub(super) fn register_computation(
        &mut self,
        computation: Computation,
    ) -> Option<ComputationId> {
        let id = self.computations.len() as u32;
        let at = (computation.name.start as usize, computation.name.len());
        self.computation_names.push((at.0 as u32, at.1 as u32));
        // Names in the arena are generated, so no text refers to them.
        if at.0 < self.arena_base() {
            let hash = self.keys.hash(self.whole, at.0, at.1);
            let scope = &mut self.computation_scope;
            if scope.insert(&self.computation_names[..], self.whole, at, hash, id).is_some() {
                return None;
            }
        }
        self.computations.push(computation);
        Some(ComputationId(id))
    }

    /// Resolves operands and control predecessors that are used before their definition.
    #[cold]
    fn resolve_pending(&mut self) -> Result<()> {
        let mut unresolved = Vec::new();
        for pending in std::mem::take(&mut self.pending) {
            let name = (pending.name.start as usize, pending.name.len());
            match (self.lookup(name), pending.slot) {
                (Some(row), Some(slot)) => self.columns.operands[slot as usize] = row,
                (Some(row), None) => {
                    self.control_predecessors.push((Row(pending.row), Row(row)));
                }
                (None, slot) if self.missing.is_some() => {
                    let Some(slot) = slot else { continue };
                    let name = self.bytes(pending.name).to_vec();
                    self.columns.operands[slot as usize] = self.push_placeholder(&name, None)?;
                }
                (None, slot) => {
                    let error = unknown_instruction(self.text, pending.name);
                    if !self.options.collect_errors {
                        return Err(error);
                    }
                    self.keep(error);
                    unresolved.extend(slot);
                }
            }
        }
        if !unresolved.is_empty() {
            self.drop_operands();
        }
        self.control_predecessors.sort_by_key(|(row, _)| *row);
        self.check_cycles()
    }

    /// Removes unresolved operand slots (only when errors are collected).
    fn drop_operands(&mut self) {
        let columns = &mut self.columns;
        let first = self.first_row as usize;
        let start = columns.operand_offsets[first] as usize;
        let old: Vec<u32> = columns.operands.split_off(start);
        let offsets: Vec<u32> = columns.operand_offsets.split_off(first);
        columns.operand_offsets.push(start as u32);
        for pair in offsets.windows(2) {
            let range = pair[0] as usize - start..pair[1] as usize - start;
            columns.operands.extend(old[range].iter().filter(|row| **row != u32::MAX));
            columns.operand_offsets.push(columns.operands.len() as u32);
        }
    }

    /// Checks that forward references do not close a cycle; no valid program has one.
    fn check_cycles(&mut self) -> Result<()> {
        let first = self.first_row;
        let count = (self.next_row() - first) as usize;
        let offsets = &self.columns.operand_offsets[first as usize..];
        let operands = &self.columns.operands;
        let edges = |row: usize| &operands[offsets[row] as usize..offsets[row + 1] as usize];
        // Control predecessors are dependencies too; as edges of a row, they follow its operands.
        let pairs = &self.control_predecessors;
        let first_pair = pairs.partition_point(|(row, _)| row.0 < first);
        let inside = pairs[first_pair..].iter().map(|(row, before)| (row.0 - first, before.0));
        let predecessors = Csr::from_sorted(count, inside);
        let closing = closing_edges(count, |row, index| {
            let operands = edges(row);
            let dependency = operands
                .get(index)
                .or_else(|| predecessors.get(row as u32).get(index - operands.len()));
            dependency.map(|dependency| (*dependency - first) as usize)
        });
        if closing.is_empty() {
            return Ok(());
        }
        let mut cut_pairs = Vec::new();
        for (row, index) in closing {
            let operand_count = edges_of(&self.columns, first + row as u32);
            let pair = index
                .checked_sub(operand_count)
                .map(|nth| first_pair + predecessors.offsets[row] as usize + nth);
            let row = first + row as u32;
            let error = ParseError::new(
                ErrorKind::UnknownInstruction,
                self.place_of(row),
                "this instruction depends on itself",
            );
            if !self.options.collect_errors {
                return Err(error);
            }
            self.keep(error);
            // The dependency is dropped, so that all analyses see an acyclic graph.
            match pair {
                Some(pair) => cut_pairs.push(pair),
                None => {
                    let slot = self.columns.operand_offsets[row as usize] as usize + index;
                    self.columns.operands[slot] = u32::MAX;
                }
            }
        }
        cut_pairs.sort_unstable();
        let mut cut = cut_pairs.into_iter().peekable();
        let mut index = 0;
        self.control_predecessors.retain(|_| {
            index += 1;
            cut.next_if_eq(&(index - 1)).is_none()
        });
        self.drop_operands();
        Ok(())
    }

    /// The span of the name of `row`; for an implicit row, of the name of the instruction in the
    /// text that implies it.
    fn place_of(&self, row: u32) -> Span {
        let from = row as usize;
        let written = (from..self.columns.flags.len())
            .take(64)
            .find(|row| self.columns.flags[*row] & Flags::IMPLICIT == 0);
        let Some(row) = written else { return Span::at(self.text.len()) };
        self.row_name(row as u32)
    }

    /// Checks that the parameter numbers of a computation are distinct.
    fn check_parameters(&mut self) -> Result<()> {
        if self.missing.is_some() {
            return Ok(());
        }
        let in_order = |p: &[(u64, u32)]| p.windows(2).all(|w| w[0].0 < w[1].0);
        if in_order(&self.parameters) {
            return Ok(());
        }
        self.parameters.sort_unstable();
        let pair = self.parameters.windows(2).find(|w| w[0].0 == w[1].0);
        let Some((first, second)) = pair.map(|w| (w[0], w[1])) else { return Ok(()) };
        let error = ParseError::new(
            ErrorKind::DuplicateParameter,
            self.place_of(second.1),
            format!("two parameters of this computation have number {}", second.0),
        )
        .with_related(self.place_of(first.1));
        if !self.options.collect_errors {
            return Err(error);
        }
        self.keep(error);
        Ok(())
    }

    /// Reads the computation wrapped by async sugar: parameters for the operands, and the
    /// instruction.
    pub(super) fn read_wrapped(&mut self, queued: Queued) -> Result<()> {
        let Queued::Wrapped { depth, call, start, opcode, tail, calls, blocks } = queued else {
            return Ok(());
        };
        self.depth = depth;
        let place = self.row_name(start.0);
        let shapes = &self.shapes.table;
        let result = shapes.tuple(self.columns.shapes[start.0 as usize]).and_then(|elements| {
            let inputs = shapes.tuple(*elements.first()?)?;
            Some((inputs.to_vec(), *elements.get(1)?))
        });
        let Some((inputs, result)) = result else {
            return Err(ParseError::new(
                ErrorKind::InvalidAsync,
                place,
                "the result of an asynchronous start must be ((operands), result, ...)",
            ));
        };
        self.start_computation();
        let mut operands = Vec::with_capacity(inputs.len());
        for (number, shape) in inputs.into_iter().enumerate() {
            let name = format!("param_{number}");
            let payload = number.to_string();
            let row =
                self.push_implicit(name.as_bytes(), Opcode::Parameter, shape, &payload, &[])?;
            operands.push(Operand::Row(row));
        }
        let tail_start = tail.start;
        let tail = self.text[tail.range()].to_vec();
        let stem = self.bytes(place).to_vec();
        let name = [&stem[..], b".wrapped"].concat();
        self.push_calls(calls, blocks);
        let row = self.push_implicit_with_tail(&name, opcode, result, "", &operands, &tail)?;
        self.columns.flags[row as usize] |= Flags::SUGAR;
        let written = self.columns.metadata_starts[start.0 as usize];
        if written != NO_METADATA {
            self.columns.metadata_starts[row as usize] =
                self.columns.tail_starts[row as usize] + (written - tail_start);
        }
        let name = [b"async_wrapped.", &stem[..]].concat();
        let computation = Computation {
            name: self.append_to_arena(&name)?,
            is_implicit: true,
            ..Computation::default()
        };
        let id = self.finish_computation(computation)?;
        self.calls[call as usize].computation = id;
        Ok(())
    }

    /// Resolves calls of computations defined later; finds the entry.
    fn finish_calls(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending_calls);
        let (mut unresolved, mut is_late) = (false, self.has_late_calls);
        // Sugar replaces the computation that it wraps. XLA omits that computation from the text
        // even if others call it too, and then cannot read its own text.
        let is_sugared = || self.columns.flags.iter().any(|flags| flags & Flags::SUGAR != 0);
        let may_be_hidden = !pending.is_empty() && is_sugared();
        for (call, name) in &pending {
            match self.find_computation(*name) {
                Some(id) => {
                    let call = &mut self.calls[*call as usize];
                    call.computation = ComputationId(id);
                    // With several threads, another thread may have read a computation that
                    // precedes its caller.
                    is_late |= self.computations[id as usize].end_row > call.row.0;
                }
                None => {
                    let shown = String::from_utf8_lossy(self.bytes(*name)).into_owned();
                    let mut error = ParseError::new(
                        ErrorKind::UnknownComputation,
                        *name,
                        format!("no computation of this module is called {shown}"),
                    );
                    if may_be_hidden {
                        error = error.with_help(
                            "text omits the computation that an asynchronous instruction such as \
                             negate-start wraps, even if others call it; read the protobuf",
                        );
                    }
                    if !self.options.collect_errors {
                        return Err(error);
                    }
                    self.keep(error);
                    unresolved = true;
                }
            }
        }
        let unknown = |call: &Call| call.computation.0 == u32::MAX;
        if unresolved || self.calls.iter().any(unknown) {
            self.calls.retain(|call| !unknown(call));
        }
        if is_late { self.check_recursion() } else { Ok(()) }
    }

    /// Checks that no computation calls itself; forward references allow that.
    fn check_recursion(&mut self) -> Result<()> {
        let calls = &self.calls;
        let starts: Vec<usize> = self
            .computations
            .iter()
            .map(|c| calls.partition_point(|call| call.row.0 < c.first_row))
            .collect();
        let closing = closing_edges(starts.len(), |id, index| {
            let end = starts.get(id + 1).copied().unwrap_or(calls.len());
            calls[starts[id]..end].get(index).map(|call| call.computation.0 as usize)
        });
        if closing.is_empty() {
            return Ok(());
        }
        for (id, index) in closing {
            let error = ParseError::new(
                ErrorKind::InvalidComputation,
                self.place_of(self.calls[starts[id] + index].row.0),
                "this calls the computation that it is part of",
            );
            if !self.options.collect_errors {
                return Err(error);
            }
            self.keep(error);
            self.calls[starts[id] + index].computation = ComputationId(u32::MAX);
        }
        self.calls.retain(|call| call.computation.0 != u32::MAX);
        Ok(())
    }

    /// The contents of a module, except its source.
    pub(super) fn into_parts(mut self) -> Result<Parts> {
        self.finish_calls()?;
        let last = self.computations.iter().rposition(|c| !c.is_inline && !c.is_implicit);
        let Some(entry) = self.entry.or(last.map(|id| id as u32)) else {
            let error = ParseError::new(
                ErrorKind::NoModule,
                Span::at(self.text.len()),
                "the module has no computation",
            );
            return Err(self.errors.into_iter().next().unwrap_or(error));
        };
        // The body of a fusion without its caller reads as a module, also for XLA.
        let alone = &self.computations[entry as usize];
        let is_body = self.bytes(alone.name).starts_with(b"fused_computation");
        let lonely = self.header.span.is_empty() && !alone.is_marked_entry && is_body;
        if self.header.name.is_empty() {
            let name = self.bytes(self.computations[entry as usize].name);
            let name = [b"module_", name].concat();
            self.header.name = self.append_to_arena(&name)?;
        }
        let mut columns = self.columns;
        columns.opcodes.shrink_to_fit();
        columns.flags.shrink_to_fit();
        columns.shapes.shrink_to_fit();
        columns.name_starts.shrink_to_fit();
        columns.name_lengths.shrink_to_fit();
        columns.tail_starts.shrink_to_fit();
        columns.tail_ends.shrink_to_fit();
        columns.metadata_starts.shrink_to_fit();
        columns.value_ends.shrink_to_fit();
        columns.value_offsets.shrink_to_fit();
        columns.operand_offsets.shrink_to_fit();
        columns.operands.shrink_to_fit();
        self.calls.shrink_to_fit();
        self.computations.shrink_to_fit();
        self.control_predecessors.shrink_to_fit();
        self.arena.shrink_to_fit();
        Ok(Parts {
            arena: self.arena,
            header: self.header,
            computations: self.computations,
            entry: ComputationId(entry),
            columns,
            calls: self.calls,
            control_predecessors: self.control_predecessors,
            shapes: self.shapes.into_table(),
            errors: match self.missing {
                Some(_) => Vec::new(),
                None => self.errors,
            },
            fragment: match self.missing {
                Some(missing) => Some(missing.lacks),
                None => lonely.then(Fragment::default),
            },
        })
    }
}

/// Number of operands of `row`.
fn edges_of(columns: &Columns, row: u32) -> usize {
    let at = row as usize;
    (columns.operand_offsets[at + 1] - columns.operand_offsets[at]) as usize
}

/// A finished parse.
pub(super) struct Parts {
    arena: Vec<u8>,
    header: Header,
    computations: Vec<Computation>,
    entry: ComputationId,
    columns: Columns,
    calls: Vec<Call>,
    control_predecessors: Vec<(Row, Row)>,
    shapes: ShapeTable,
    pub(super) errors: Vec<ParseError>,
    fragment: Option<Fragment>,
}

impl Parts {
    pub(super) fn row_count(&self) -> usize {
        self.columns.opcodes.len()
    }

    /// Builds the frozen module.
    pub(super) fn into_module(self, source: Source) -> Module {
        Module {
            source,
            arena: self.arena,
            header: self.header,
            computations: self.computations,
            entry: self.entry,
            columns: self.columns,
            calls: self.calls,
            control_predecessors: self.control_predecessors,
            shapes: self.shapes,
            errors: self.errors,
            fragment: self.fragment,
            derived: OnceLock::new(),
        }
    }
}

/// Edges whose removal makes the graph acyclic, as (node, index): the targets of node `n` are
/// `edge(n, 0)`, `edge(n, 1)`, ...
fn closing_edges(
    nodes: usize,
    edge: impl Fn(usize, usize) -> Option<usize>,
) -> Vec<(usize, usize)> {
    const NEW: u8 = 0;
    const OPEN: u8 = 1;
    const DONE: u8 = 2;
    let mut state = vec![NEW; nodes];
    let mut stack: Vec<(usize, usize)> = Vec::new();
    let mut closing = Vec::new();
    for root in 0..nodes {
        if state[root] != NEW {
            continue;
        }
        state[root] = OPEN;
        stack.push((root, 0));
        while let Some((node, index)) = stack.last_mut() {
            let next = edge(*node, *index);
            *index += 1;
            match next {
                None => {
                    state[*node] = DONE;
                    stack.pop();
                }
                Some(next) => match state.get(next) {
                    Some(&OPEN) => closing.push((*node, *index - 1)),
                    Some(&NEW) => {
                        state[next] = OPEN;
                        stack.push((next, 0));
                    }
                    _ => {}
                },
            }
        }
    }
    closing
}
