//! Builds the text of copies.

use super::asynchronous::{AsyncGather, async_gather, reads};
use super::copyable::{is_done, is_start, obstacle};
use super::fresh::channel_of;
use super::{Copied, Plan, RewriteError};
use crate::edit::Edit;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use crate::print::{Renaming, shape_to_text};
use crate::remat::handed_on::member;
use std::collections::HashSet;

/// Limit on conversions in a row that are examined.
const MOST_CHEAP: u32 = 8;

/// The set to copy: `producer`, `chain` and the starts of their done instructions, operands first.
pub(super) fn set_to_copy(
    module: &Module,
    producer: Row,
    chain: &[Row],
) -> Result<Vec<Row>, RewriteError> {
    let mut members = HashSet::new();
    let mut pending: Vec<Row> = [&[producer], chain].concat();
    while let Some(row) = pending.pop() {
        if row.0 as usize >= module.row_count() || module.is_implicit(row) {
            return Err(RewriteError::NoSuchInstruction { row });
        }
        if module.computation_of(row) != module.computation_of(producer) {
            let reason = "it is not in the computation of the other instructions to copy";
            return Err(RewriteError::new(module, row, reason));
        }
        if let Some(reason) = obstacle(module, row) {
            return Err(RewriteError::new(module, row, reason));
        }
        if members.insert(row) && is_done(module.opcode(row)) {
            let start = module.operands(row).first().map(|start| Row(*start));
            match start.filter(|start| is_start(module.opcode(*start))) {
                Some(start) => pending.push(start),
                None => return Err(RewriteError::new(module, row, "its start cannot be found")),
            }
        }
    }
    let order = operands_first(module, producer, &members);
    if order.len() < members.len() {
        let unused = members.iter().find(|row| !order.contains(row)).copied();
        let reason = "no other instruction to copy depends on it";
        return Err(RewriteError::new(module, unused.unwrap_or(producer), reason));
    }
    let has_end = |start: &Row| {
        order.iter().any(|row| {
            is_done(module.opcode(*row)) && module.operands(*row).first() == Some(&start.0)
        })
    };
    match order.iter().find(|row| is_start(module.opcode(**row)) && !has_end(row)) {
        Some(row) => Err(RewriteError::new(
            module,
            *row,
            "it is only the start of an asynchronous operation",
        )),
        None => Ok(order),
    }
}

/// The members that `producer` depends on through members, operands first.
fn operands_first(module: &Module, producer: Row, members: &HashSet<Row>) -> Vec<Row> {
    let mut order = Vec::new();
    let mut met = HashSet::from([producer]);
    let reads = |row| reads(module, row, |row| members.contains(&row)).into_iter();
    let mut stack = vec![(producer, reads(producer))];
    while let Some((row, operands)) = stack.last_mut() {
        match operands.next() {
            Some(operand) => {
                if members.contains(&operand) && met.insert(operand) {
                    stack.push((operand, reads(operand)));
                }
            }
            None => {
                order.push(*row);
                stack.pop();
            }
        }
    }
    order
}

/// `copied` with what its members read and what costs nothing to recompute: broadcast scalars,
/// iotas, and conversions of these. Behind a barrier XLA would keep them in memory.
pub(super) fn with_cheap(module: &Module, copied: Vec<Row>) -> Vec<Row> {
    let mut met: HashSet<Row> = copied.iter().copied().collect();
    let mut order = Vec::with_capacity(copied.len());
    for row in copied {
        for operand in module.operands(row).iter().map(|operand| Row(*operand)) {
            push_cheap(module, operand, &mut met, &mut order);
        }
        order.push(row);
    }
    order
}

/// Appends `row` after its cheap operands, if it is cheap and not in `met`.
fn push_cheap(module: &Module, row: Row, met: &mut HashSet<Row>, order: &mut Vec<Row>) {
    if met.contains(&row) || !is_cheap(module, row, 0) {
        return;
    }
    met.insert(row);
    for operand in module.operands(row).iter().map(|operand| Row(*operand)) {
        push_cheap(module, operand, met, order);
    }
    order.push(row);
}

/// Whether `row` is made from scalars or from nothing.
fn is_cheap(module: &Module, row: Row, depth: u32) -> bool {
    if depth == MOST_CHEAP || module.is_implicit(row) {
        return false;
    }
    let operands = module.operands(row);
    match module.opcode(row) {
        Opcode::Iota => true,
        Opcode::Broadcast => operands.iter().all(|operand| {
            let array = module.shapes().array(module.shape(Row(*operand)));
            array.is_some_and(|array| array.elements() == Some(1))
        }),
        Opcode::Convert | Opcode::Reshape | Opcode::Bitcast => {
            operands.iter().all(|operand| is_cheap(module, Row(*operand), depth + 1))
        }
        _ => false,
    }
}

impl Plan<'_> {
    /// The text of a barrier around `tie` and all outside operands of `copied`, and the names under
    /// which copies read these operands. Constants need no barrier if there is another operand.
    pub(super) fn barrier(
        &mut self,
        producer: Row,
        tie: Row,
        copied: &[Row],
        renaming: &mut Renaming,
    ) -> Result<Vec<u8>, RewriteError> {
        let module = self.module;
        let mut inputs = Vec::new();
        let mut met: HashSet<Row> = copied.iter().copied().collect();
        for row in copied {
            let operands = reads(module, *row, |row| copied.contains(&row)).into_iter();
            inputs.extend(operands.filter(|operand| met.insert(*operand)));
        }
        let constants = inputs.iter().filter(|row| module.opcode(**row) == Opcode::Constant);
        if constants.count() < inputs.len() {
            inputs.retain(|row| module.opcode(*row) != Opcode::Constant);
        }
        if inputs.is_empty() {
            let reason = "it has no operands, so no barrier can delay a copy of it";
            return Err(RewriteError::new(module, producer, reason));
        }
        let base = self.fresh.copy_of(module.instruction_name(producer));
        let metadata = module.attribute_bytes(producer, "metadata");
        let metadata = metadata.map(|value| [b", metadata=", value].concat()).unwrap_or_default();
        let tied: Vec<Row> = match inputs.contains(&tie) {
            true => inputs.clone(),
            false => inputs.iter().copied().chain([tie]).collect(),
        };
        self.read.extend(&tied);
        for row in copied {
            self.inputs.entry(*row).or_default().extend(&inputs);
        }
        let mut shape = b"(".to_vec();
        let mut names = Vec::new();
        for (index, row) in tied.iter().enumerate() {
            if module.is_implicit(*row) {
                return Err(RewriteError::NoSuchInstruction { row: *row });
            }
            if index > 0 {
                shape.extend_from_slice(b", ");
                names.extend_from_slice(b", ");
            }
            shape.extend_from_slice(&shape_to_text(module, module.shape(*row), true));
            names.push(b'%');
            names.extend_from_slice(module.instruction_name(*row));
        }
        shape.push(b')');
        let tuple = self.fresh.name(&[&base, &b"_inputs"[..]].concat());
        let barrier = self.fresh.name(&[&base, &b"_barrier"[..]].concat());
        let mut text = Vec::new();
        push_line(&mut text, &[&tuple, b" = ", &shape, b" tuple(", &names, b")", &metadata]);
        push_line(
            &mut text,
            &[&barrier, b" = ", &shape, b" opt-barrier(%", &tuple, b")", &metadata],
        );
        for (index, row) in inputs.iter().enumerate() {
            let name = self.fresh.name(&[&base, &b"_input"[..]].concat());
            let index = index.to_string();
            push_line(
                &mut text,
                &[
                    &name,
                    b" = ",
                    &shape_to_text(module, module.shape(*row), true),
                    b" get-tuple-element(%",
                    &barrier,
                    b"), index=",
                    index.as_bytes(),
                    &metadata,
                ],
            );
            renaming.rows.insert(row.0, name);
        }
        renaming.rows.insert(producer.0, base);
        Ok(text)
    }

    /// Appends copies of `copied` to `text`, and edits that add the computations they need.
    pub(super) fn copy_all(
        &mut self,
        copied: &[Row],
        renaming: &mut Renaming,
        text: &mut Vec<u8>,
    ) -> Result<(), RewriteError> {
        let module = self.module;
        for row in copied {
            // If an operand is read behind a barrier and is copied too, the copy reads the copied
            // operand.
            for operand in module.operands(*row).iter().map(|operand| Row(*operand)) {
                let original = member(module, operand, |row| copied.contains(&row));
                if let Some(name) = renaming.rows.get(&original.0).cloned() {
                    renaming.rows.insert(operand.0, name);
                }
            }
            if let Some(parts) = async_gather(module, *row) {
                let line = self.plain_gather(*row, parts, renaming)?;
                push_line(text, &[&line]);
                continue;
            }
            self.rename(*row, renaming)?;
            for id in self.owned_computations(*row) {
                self.copy_computation(id, renaming)?;
            }
            let (line, lent) = self.printer.instruction(*row, std::mem::take(renaming));
            *renaming = lent;
            push_line(text, &[&line]);
            let name = renaming.rows.get(&row.0).cloned().unwrap_or_default();
            self.copies.push(Copied { original: *row, name });
        }
        Ok(())
    }

    /// The gather that fusion `row` ends, written as a plain gather with the fusion's shape.
    fn plain_gather(
        &mut self,
        row: Row,
        parts: AsyncGather,
        renaming: &mut Renaming,
    ) -> Result<Vec<u8>, RewriteError> {
        let module = self.module;
        let name = renaming.rows.entry(row.0);
        let name = name.or_insert_with(|| self.fresh.copy_of(module.instruction_name(row))).clone();
        let operand = renaming.rows.get(&parts.operand.0).cloned();
        let operand = operand.unwrap_or_else(|| module.instruction_name(parts.operand).to_vec());
        renaming.rows.insert(parts.gather.0, name.clone());
        renaming.rows.insert(parts.parameter.0, operand);
        renaming.shapes.insert(parts.gather.0, module.shape(row));
        self.rename(parts.gather, renaming)?;
        let (line, lent) = self.printer.instruction(parts.gather, std::mem::take(renaming));
        *renaming = lent;
        self.copies.push(Copied { original: row, name });
        Ok(line)
    }

    /// Names the copy of `row`, unless the copy already has a name, and gives it a channel if `row`
    /// has one.
    fn rename(&mut self, row: Row, renaming: &mut Renaming) -> Result<(), RewriteError> {
        let module = self.module;
        let name = renaming.rows.entry(row.0);
        name.or_insert_with(|| self.fresh.copy_of(module.instruction_name(row)));
        if channel_of(module, row).is_none() {
            return Ok(());
        }
        // A done instruction uses the channel of its start.
        let start = module.operands(row).first().filter(|_| is_done(module.opcode(row)));
        let known = start.and_then(|start| renaming.channels.get(start)).copied();
        let Some(channel) = known.or_else(|| self.fresh.channel()) else {
            return Err(RewriteError::new(module, row, "no channel is left for a copy"));
        };
        renaming.channels.insert(row.0, channel);
        Ok(())
    }

    /// Computations that only `row` may call: XLA requires a single caller for each.
    fn owned_computations(&self, row: Row) -> Vec<ComputationId> {
        let module = self.module;
        let calls = module.calls(row).iter().filter(|call| call.role == CallRole::Calls);
        let owned = calls.filter(|_| {
            matches!(module.opcode(row), Opcode::Fusion | Opcode::AsyncStart | Opcode::AsyncDone)
        });
        owned.map(|call| call.computation).collect()
    }

    /// Adds copies of computation `id` and of computations that belong to its instructions.
    fn copy_computation(
        &mut self,
        id: ComputationId,
        renaming: &mut Renaming,
    ) -> Result<(), RewriteError> {
        // The depth is bounded, because `obstacle` has walked these calls before.
        let module = self.module;
        if renaming.computations.contains_key(&id.0) {
            return Ok(());
        }
        let name = self.fresh.copy_of(module.computation_name(id));
        renaming.computations.insert(id.0, name);
        for row in module.computation(id).rows().map(Row) {
            if !module.is_implicit(row) {
                self.rename(row, renaming)?;
            }
            for inner in self.owned_computations(row) {
                self.copy_computation(inner, renaming)?;
            }
        }
        let (text, lent) = self.printer.computation(id, std::mem::take(renaming));
        *renaming = lent;
        self.edits.push(Edit::InsertComputation { before: id, text });
        Ok(())
    }
}

/// Appends `%` and `parts` as a line.
pub(super) fn push_line(text: &mut Vec<u8>, parts: &[&[u8]]) {
    if !text.is_empty() {
        text.extend_from_slice(b"\n  ");
    }
    if !parts.first().is_some_and(|part| part.starts_with(b"%")) {
        text.push(b'%');
    }
    parts.iter().for_each(|part| text.extend_from_slice(part));
}
