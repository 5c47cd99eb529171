//! Follows one element of loop state to all its uses, through tuples, loops and barriers.

use super::RewriteError;
use super::copyable::target;
use super::fused::{Reader, Writer, fused_reader, is_slice};
use crate::ir::{CallRole, ComputationId, Flags, Module, Opcode, Row};
use std::collections::BTreeSet;

/// The initial value of a loop's stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    /// The tuple that initialises the loop.
    pub tuple: Row,
    /// The index of the stack in the tuple.
    pub element: usize,
    /// The row that computes the stack's initial value.
    pub row: Row,
    /// Whether the initial value is zero everywhere; otherwise its content is undefined.
    pub is_zero: bool,
}

/// The places of a stack.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Rows whose result is the stack.
    pub arrays: BTreeSet<Row>,
    /// Tuples that hold the stack, with its index in each.
    pub elements: BTreeSet<(Row, usize)>,
    pub fills: Vec<Fill>,
    /// Instructions that read slices of the stack.
    pub readers: Vec<Reader>,
}

enum Place {
    Array(Row),
    Element(Row, usize),
}

impl Places {
    /// The places of the stack that `update` writes into. An error if a use needs the shape of the
    /// stack.
    pub fn of_stack(module: &Module, writer: &Writer) -> Result<Self, RewriteError> {
        let mut search = Search { module, writer, places: Places::default(), pending: Vec::new() };
        search.meet(Place::Array(writer.row));
        while let Some(place) = search.pending.pop() {
            match place {
                Place::Array(row) => search.array(row)?,
                Place::Element(row, element) => search.element(row, element)?,
            }
        }
        let places = search.places;
        if places.readers.is_empty() {
            return Err(RewriteError::new(
                module,
                writer.row,
                "nothing reads a slice of its stack",
            ));
        }
        Ok(places)
    }
}

struct Search<'a> {
    module: &'a Module,
    writer: &'a Writer,
    places: Places,
    pending: Vec<Place>,
}

impl Search<'_> {
    fn meet(&mut self, place: Place) {
        let is_new = match place {
            Place::Array(row) => self.places.arrays.insert(row),
            Place::Element(row, element) => self.places.elements.insert((row, element)),
        };
        if is_new {
            self.pending.push(place);
        }
    }

    fn refused<T>(&self, row: Row, reason: &'static str) -> Result<T, RewriteError> {
        if self.module.is_implicit(row) {
            return Err(RewriteError::NoSuchInstruction { row });
        }
        Err(RewriteError::new(self.module, row, reason))
    }

    /// Continues the search from `row`, whose result is the stack.
    fn array(&mut self, row: Row) -> Result<(), RewriteError> {
        let module = self.module;
        let operand = module.operands(row).first().map(|operand| Row(*operand));
        if module.is_implicit(row) {
            return Err(RewriteError::NoSuchInstruction { row });
        }
        match (module.opcode(row), operand) {
            _ if row == self.writer.row => self.meet(Place::Array(self.writer.stack)),
            (Opcode::Copy | Opcode::OptBarrier, Some(operand)) => self.meet(Place::Array(operand)),
            (Opcode::GetTupleElement, Some(operand)) => match module.tuple_index(row) {
                Some(element) => self.meet(Place::Element(operand, element)),
                None => return self.refused(row, "the index of the element it takes is unknown"),
            },
            _ => return self.refused(row, "the stack comes from it, and it is not loop state"),
        }
        if module.flags(row) & Flags::ROOT != 0 {
            return self.refused(row, "it returns the stack");
        }
        for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
            let uses = module.operands(user).iter().enumerate();
            for (index, _) in uses.filter(|(_, operand)| **operand == row.0) {
                match (module.opcode(user), index) {
                    _ if user == self.writer.row => {
                        if index != self.writer.operand {
                            return self.refused(user, "it needs the stack in its original shape");
                        }
                        self.meet(Place::Array(user));
                    }
                    (Opcode::Tuple, _) => self.meet(Place::Element(user, index)),
                    (Opcode::Copy | Opcode::OptBarrier, 0) => self.meet(Place::Array(user)),
                    (Opcode::DynamicSlice, 0) => self.reader(row, user)?,
                    (Opcode::Fusion, _) => {
                        let reader = fused_reader(module, user, index)?;
                        self.places.readers.push(reader);
                    }
                    _ => return self.refused(user, "it needs the stack in its original shape"),
                }
            }
        }
        Ok(())
    }

    /// A dynamic-slice has to take one whole slice of the first dimension.
    fn reader(&mut self, stack: Row, row: Row) -> Result<(), RewriteError> {
        let module = self.module;
        let waited_for = module.control_predecessors().iter().any(|(_, before)| *before == row);
        let is_root = module.flags(row) & Flags::ROOT != 0;
        let index = module.operands(row).get(1).map(|index| Row(*index));
        match index.filter(|_| is_slice(module, stack, row) && !waited_for && !is_root) {
            Some(index) => {
                let rest = module.operands(row).get(2).map_or(index, |rest| Row(*rest));
                self.places.readers.push(Reader { row, index, rest, slice: row, inside: None });
            }
            None => return self.refused(row, "it needs the stack in its original shape"),
        }
        Ok(())
    }

    /// Continues from a tuple that holds the stack.
    fn element(&mut self, row: Row, element: usize) -> Result<(), RewriteError> {
        let module = self.module;
        let id = module.computation_of(row);
        let operand = module.operands(row).first().map(|operand| Row(*operand));
        if module.is_implicit(row) {
            return Err(RewriteError::NoSuchInstruction { row });
        }
        match (module.opcode(row), operand) {
            (Opcode::Tuple, _) => match module.operands(row).get(element).map(|part| Row(*part)) {
                Some(part) => match fill(module, part) {
                    Some(is_zero) => {
                        self.places.fills.push(Fill { tuple: row, element, row: part, is_zero });
                    }
                    None => self.meet(Place::Array(part)),
                },
                None => return self.refused(row, "it has no such element"),
            },
            (Opcode::OptBarrier, Some(operand)) => self.meet(Place::Element(operand, element)),
            (Opcode::While, Some(operand)) => {
                self.meet(Place::Element(operand, element));
                self.inside(row, element)?;
            }
            (Opcode::Parameter, _) => match self.only_loop(id) {
                Some(caller) => self.meet(Place::Element(caller, element)),
                None => {
                    return self.refused(row, "the stack comes from it, and it is not loop state");
                }
            },
            _ => return self.refused(row, "the stack comes from it, and it is not loop state"),
        }
        if module.flags(row) & Flags::ROOT != 0 {
            match self.only_loop(id) {
                Some(caller) if module.called(caller, CallRole::Body) == Some(id) => {
                    self.meet(Place::Element(caller, element));
                }
                _ => return self.refused(row, "it returns the stack"),
            }
        }
        for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
            match module.opcode(user) {
                Opcode::GetTupleElement => match module.tuple_index(user) {
                    Some(index) if index == element => self.meet(Place::Array(user)),
                    Some(_) => {}
                    None => {
                        return self.refused(user, "the index of the element it takes is unknown");
                    }
                },
                Opcode::OptBarrier | Opcode::While => self.meet(Place::Element(user, element)),
                _ => return self.refused(user, "it needs the stack in its original shape"),
            }
        }
        Ok(())
    }

    /// Continues the search inside loop `row`: at the parameters of its body and condition, and at
    /// the body's root.
    fn inside(&mut self, row: Row, element: usize) -> Result<(), RewriteError> {
        let module = self.module;
        for role in [CallRole::Body, CallRole::Condition] {
            let called = module.called(row, role).filter(|id| self.only_loop(*id) == Some(row));
            let Some(id) = called else {
                return self.refused(row, "its computations have other callers");
            };
            let &[parameter] = module.parameters(id).as_slice() else {
                return self.refused(row, "its computations do not take its state");
            };
            self.meet(Place::Element(parameter, element));
            if role == CallRole::Body {
                self.meet(Place::Element(Row(module.computation(id).root), element));
            }
        }
        Ok(())
    }

    /// The loop that calls computation `id`, if it is the only caller.
    fn only_loop(&self, id: ComputationId) -> Option<Row> {
        match self.module.callers(id) {
            [caller] if self.module.opcode(Row(*caller)) == Opcode::While => Some(Row(*caller)),
            _ => None,
        }
    }
}

/// Whether `row` initialises stacks: Some(true) for zeros, Some(false) for uninitialised memory.
fn fill(module: &Module, row: Row) -> Option<bool> {
    if module.is_implicit(row) {
        return None;
    }
    match module.opcode(row) {
        Opcode::Broadcast => {
            let value = Row(*module.operands(row).first()?);
            let payload = module.bytes(module.opcode_and_payload(value).1);
            let text = std::str::from_utf8(payload).ok()?.trim();
            let is_zero = text == "false" || text.parse::<f64>().is_ok_and(|value| value == 0.0);
            (module.opcode(value) == Opcode::Constant && is_zero).then_some(true)
        }
        Opcode::CustomCall => (target(module, row)? == b"AllocateBuffer").then_some(false),
        _ => None,
    }
}
