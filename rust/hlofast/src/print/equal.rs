//! Structural equality: whether two modules are the same program, however they are written.

use super::implied::header_attributes;
use super::names::is_valid_name;
use super::order::row_order;
use super::shape::{shape_classes, text_lengths};
use super::value::{Spacing, write_literal, write_tokens, write_value};
use super::{Callers, Seen, implicit_callers, is_metadata, shape_to_text, thread_of};
use crate::ir::{Call, Computation, ComputationId, Flags, Module, Opcode, Row, ShapeId};
use std::collections::HashMap;
use std::fmt;

/// Properties to compare besides the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EqualityOptions {
    /// Compare layouts.
    pub layouts: bool,
    /// Compare `metadata`, `origin` and stack-frame tables.
    pub metadata: bool,
    /// Compare `backend_config`.
    pub backend_config: bool,
}

impl Default for EqualityOptions {
    fn default() -> Self {
        Self { layouts: true, metadata: true, backend_config: true }
    }
}

/// The first difference found between two modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    message: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Difference {}

/// Whether `a` and `b` are the same program: names, opcodes, shapes, operands, calls, attributes by
/// key and value, roots, entry, header. The order of rows matters in scheduled modules only, and
/// there not in fusions, which have no schedule. These do not matter: the order of computations,
/// spacing, comments, which rows are implicit, and whether the text writes defaults (default
/// layouts, `replica_count=1`, the entry's layout). Names of implicit rows and names that XLA
/// rejects may differ.
pub fn structurally_equal(a: &Module, b: &Module) -> Result<(), Difference> {
    structurally_equal_with(a, b, &EqualityOptions::default())
}

/// Like `structurally_equal`, for the parts that `options` select.
pub fn structurally_equal_with(
    a: &Module,
    b: &Module,
    options: &EqualityOptions,
) -> Result<(), Difference> {
    let mut comparison = Comparison {
        a,
        b,
        options,
        shapes: shape_classes(a.shapes(), b.shapes(), options.layouts),
        rows: vec![NONE; a.row_count()],
        rows_back: vec![NONE; b.row_count()],
        computations: vec![NONE; a.computations().len()],
        computations_back: vec![NONE; b.computations().len()],
        callers: (implicit_callers(a), implicit_callers(b)),
        is_fused: a.computations_in_fusions(),
        queue: Vec::new(),
    };
    comparison.headers()?;
    comparison.pair_computations()?;
    comparison.drain()?;
    comparison.pair_the_rest()?;
    comparison.check_all_paired()?;
    comparison.control()
}

const NONE: u32 = u32::MAX;

struct Comparison<'a> {
    a: &'a Module,
    b: &'a Module,
    options: &'a EqualityOptions,
    /// Numbers of the shapes of both sides, equal for equivalent shapes.
    shapes: (Vec<usize>, Vec<usize>),
    /// The row of `b` for each row of `a`, and vice versa.
    rows: Vec<u32>,
    rows_back: Vec<u32>,
    computations: Vec<u32>,
    computations_back: Vec<u32>,
    /// Callers of implicit computations on either side.
    callers: (Callers, Callers),
    /// Whether only fusions call a computation of `a`.
    is_fused: Vec<bool>,
    /// Paired rows still to be compared.
    queue: Vec<(Row, Row)>,
}

fn different<T>(what: &str, a: &[u8], b: &[u8]) -> Result<T, Difference> {
    let show = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes.get(..200).unwrap_or(bytes)).into_owned();
        if bytes.len() > 200 { text + "..." } else { text }
    };
    Err(Difference { message: format!("{what}: {} against {}", show(a), show(b)) })
}

fn same_number(what: &str, a: usize, b: usize) -> Result<(), Difference> {
    if a == b {
        Ok(())
    } else {
        different(what, a.to_string().as_bytes(), b.to_string().as_bytes())
    }
}

/// The text of a shape, unless it is long.
fn short_shape(module: &Module, id: ShapeId, layouts: bool) -> Vec<u8> {
    match text_lengths(module.shapes(), layouts).get(id.0 as usize) {
        Some(length) if *length < 10_000 => shape_to_text(module, id, layouts),
        _ => b"a large tuple".to_vec(),
    }
}

/// The written attributes that are not graph edges, by key.
fn plain_attributes<'a>(
    module: &'a Module,
    row: Row,
    options: &EqualityOptions,
) -> Vec<(&'a [u8], Vec<u8>)> {
    let calls = module.calls(row);
    let mut attributes: Vec<(&[u8], Vec<u8>)> = Vec::new();
    let mut seen = Seen::default();
    for attribute in module.attributes(row) {
        let key = module.bytes(attribute.key);
        if !seen.is_new(key) {
            continue;
        }
        let is_edge = key == b"control-predecessors"
            || crate::ir::CallRole::from_key(key)
                .is_some_and(|role| calls.iter().any(|c| c.role.as_str() == role.as_str()));
        let is_left_out = !options.metadata && is_metadata(key)
            || !options.backend_config && key == b"backend_config";
        if !is_edge && !is_left_out {
            attributes.push((key, tight(key, module.bytes(attribute.value))));
        }
    }
    attributes.sort_by(|x, y| x.0.cmp(y.0));
    attributes
}

fn tight(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    write_value(&mut out, key, value, Spacing::Tight);
    out
}

impl Comparison<'_> {
    fn headers(&self) -> Result<(), Difference> {
        if self.a.name() != self.b.name() {
            return different("module names", self.a.name(), self.b.name());
        }
        let read = |module| header_attributes(module, self.options.layouts, self.options.metadata);
        let (a, b) = (read(self.a), read(self.b));
        same_number("header attributes", a.len(), b.len())?;
        for (x, y) in a.iter().zip(&b) {
            if x.0 != y.0 {
                return different("header attributes", x.0, y.0);
            }
            if x.1 != y.1 {
                let what = format!("header attribute {}", String::from_utf8_lossy(x.0));
                return different(&what, &x.1, &y.1);
            }
        }
        if !self.options.metadata {
            return Ok(());
        }
        let tables = |module: &Module| {
            let header = module.header();
            let mut out = Vec::new();
            let sections = [
                header.file_names,
                header.function_names,
                header.file_locations,
                header.stack_frames,
            ];
            for section in sections {
                write_tokens(&mut out, module.bytes(section), Spacing::Tight, false);
                out.push(b'\n');
            }
            (header.has_tables, out)
        };
        let (a, b) = (tables(self.a), tables(self.b));
        if a == b { Ok(()) } else { different("stack-frame tables", &a.1, &b.1) }
    }

    /// Pairs computations that both texts name. Implicit and inline computations are paired later,
    /// by the calls that lead to them.
    fn pair_computations(&mut self) -> Result<(), Difference> {
        same_number("computations", self.computations.len(), self.computations_back.len())?;
        let is_named = |c: &Computation| !c.is_inline && !c.is_implicit;
        let by_name: HashMap<&[u8], u32> = self
            .b
            .computations()
            .iter()
            .zip(0..)
            .map(|(c, id)| (self.b.bytes(c.name), id))
            .collect();
        for (computation, id) in self.a.computations().iter().zip(0..) {
            let name = self.a.bytes(computation.name);
            if !is_named(computation) {
                continue;
            }
            match by_name.get(name) {
                Some(other) => {
                    self.pair_computation(ComputationId(id), ComputationId(*other))?;
                }
                // A computation that is not found may be inline or implicit on the other side.
                None if self.b.computations().iter().all(is_named) => {
                    return different("computations", name, b"(none)");
                }
                None => {}
            }
        }
        self.pair_computation(self.a.entry(), self.b.entry())
    }

    fn pair_computation(&mut self, a: ComputationId, b: ComputationId) -> Result<(), Difference> {
        let (Some(forth), Some(back)) =
            (self.computations.get_mut(a.0 as usize), self.computations_back.get_mut(b.0 as usize))
        else {
            return Ok(());
        };
        if (*forth, *back) == (b.0, a.0) {
            return Ok(());
        }
        let names = (self.a.computation_name(a), self.b.computation_name(b));
        if (*forth, *back) != (NONE, NONE) {
            return different("computations in the same place", names.0, names.1);
        }
        (*forth, *back) = (b.0, a.0);
        let (ca, cb) = (self.a.computation(a), self.b.computation(b));
        let what = format!("rows of computation {}", String::from_utf8_lossy(names.0));
        same_number(&what, ca.rows().len(), cb.rows().len())?;
        let thread = |module: &Module, id, callers| {
            let text = module.bytes(thread_of(module, id, callers));
            let text = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
            if text == b"main" { Vec::new() } else { text.to_vec() }
        };
        if ca.execution_thread != cb.execution_thread || ca.is_implicit || cb.is_implicit {
            let (x, y) = (thread(self.a, a, &self.callers.0), thread(self.b, b, &self.callers.1));
            if x != y {
                return different("execution threads", &x, &y);
            }
        }
        self.pair_row(Row(ca.root), Row(cb.root))?;
        let (pa, pb) = (self.a.parameters(a), self.b.parameters(b));
        same_number("parameters", pa.len(), pb.len())?;
        for (x, y) in pa.into_iter().zip(pb) {
            self.pair_row(x, y)?;
        }
        self.pair_by_name(a, b)
    }

    /// Pairs explicit rows by name; in scheduled modules, their order has to agree.
    fn pair_by_name(&mut self, a: ComputationId, b: ComputationId) -> Result<(), Difference> {
        let explicit = |module: &Module, row: Row| {
            !module.is_implicit(row) && is_valid_name(module.instruction_name(row))
        };
        let rows_b = row_order(self.b, b);
        let by_name: HashMap<&[u8], Row> = rows_b
            .into_iter()
            .filter(|row| explicit(self.b, *row))
            .map(|row| (self.b.instruction_name(row), row))
            .collect();
        let has_schedule = self.a.is_scheduled() && self.is_fused.get(a.0 as usize) == Some(&false);
        let mut last = None;
        for row in row_order(self.a, a) {
            if !explicit(self.a, row) {
                continue;
            }
            let Some(other) = by_name.get(self.a.instruction_name(row)) else { continue };
            self.pair_row(row, *other)?;
            if has_schedule && last.is_some_and(|last| last > *other) {
                return different("the schedule", self.a.instruction_name(row), b"earlier");
            }
            last = Some(*other);
        }
        Ok(())
    }

    fn pair_row(&mut self, a: Row, b: Row) -> Result<(), Difference> {
        let (Some(forth), Some(back)) =
            (self.rows.get_mut(a.0 as usize), self.rows_back.get_mut(b.0 as usize))
        else {
            return Ok(());
        };
        if (*forth, *back) == (b.0, a.0) {
            return Ok(());
        }
        if (*forth, *back) != (NONE, NONE) {
            let names = (self.a.instruction_name(a), self.b.instruction_name(b));
            return different("instructions in the same place", names.0, names.1);
        }
        (*forth, *back) = (b.0, a.0);
        self.queue.push((a, b));
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Difference> {
        while let Some((a, b)) = self.queue.pop() {
            self.compare(a, b).map_err(|difference| {
                let name = String::from_utf8_lossy(self.a.instruction_name(a));
                Difference { message: format!("instruction {name}: {}", difference.message) }
            })?;
        }
        Ok(())
    }

    fn compare(&mut self, ra: Row, rb: Row) -> Result<(), Difference> {
        let (a, b) = (self.a, self.b);
        let names = (a.instruction_name(ra), b.instruction_name(rb));
        let are_written = !a.is_implicit(ra) && !b.is_implicit(rb);
        if are_written && names.0 != names.1 && is_valid_name(names.0) && is_valid_name(names.1) {
            return different("names", names.0, names.1);
        }
        let opcode = |module: &'_ Module, row| match module.opcode(row) {
            Opcode::Unknown => module.opcode_text(row).to_vec(),
            known => known.as_str().as_bytes().to_vec(),
        };
        let opcodes = (opcode(a, ra), opcode(b, rb));
        if opcodes.0 != opcodes.1 {
            return different("opcodes", &opcodes.0, &opcodes.1);
        }
        let class = |classes: &[usize], id: ShapeId| classes.get(id.0 as usize).copied();
        if class(&self.shapes.0, a.shape(ra)) != class(&self.shapes.1, b.shape(rb)) {
            let layouts = self.options.layouts;
            return different(
                "shapes",
                &short_shape(a, a.shape(ra), layouts),
                &short_shape(b, b.shape(rb), layouts),
            );
        }
        let root = Flags::ROOT;
        same_number(
            "roots",
            usize::from(a.flags(ra) & root != 0),
            usize::from(b.flags(rb) & root != 0),
        )?;
        same_number("operands", a.operands(ra).len(), b.operands(rb).len())?;
        for (x, y) in a.operands(ra).iter().zip(b.operands(rb)) {
            self.pair_row(Row(*x), Row(*y))?;
        }
        if matches!(a.opcode(ra), Opcode::Constant | Opcode::Parameter) {
            let literal = |module: &Module, row| {
                let mut out = Vec::new();
                let payload = module.bytes(module.opcode_and_payload(row).1);
                write_literal(&mut out, payload, Spacing::Tight);
                out
            };
            let number = (a.parameter_number(ra), b.parameter_number(rb));
            let payloads = (literal(a, ra), literal(b, rb));
            if number.0 != number.1 || number.0.is_none() && payloads.0 != payloads.1 {
                return different("payloads", &payloads.0, &payloads.1);
            }
        }
        let edges = |call: &Call| (call.role.as_str(), call.computation);
        let sorted = |module: &Module, row| {
            let mut calls: Vec<_> = module.calls(row).iter().map(edges).collect();
            calls.sort_by_key(|call| call.0);
            calls
        };
        let calls = (sorted(a, ra), sorted(b, rb));
        same_number("called computations", calls.0.len(), calls.1.len())?;
        for (x, y) in calls.0.into_iter().zip(calls.1) {
            if x.0 != y.0 {
                return different("called computations", x.0.as_bytes(), y.0.as_bytes());
            }
            self.pair_computation(x.1, y.1)?;
        }
        let attributes =
            (plain_attributes(a, ra, self.options), plain_attributes(b, rb, self.options));
        let keys = |list: &[(&[u8], Vec<u8>)]| {
            list.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(&b' ')
        };
        let key_lists = (keys(&attributes.0), keys(&attributes.1));
        if key_lists.0 != key_lists.1 {
            return different("attributes", &key_lists.0, &key_lists.1);
        }
        for (x, y) in attributes.0.iter().zip(&attributes.1) {
            if x.1 != y.1 {
                let what = format!("attribute {}", String::from_utf8_lossy(x.0));
                return different(&what, &x.1, &y.1);
            }
        }
        Ok(())
    }

    /// Rows that nothing uses and whose names may differ are paired by their order.
    fn pair_the_rest(&mut self) -> Result<(), Difference> {
        if !self.rows.contains(&NONE) {
            return Ok(());
        }
        for id in 0..self.computations.len() as u32 {
            let Some(other) = self.computations.get(id as usize).copied().filter(|o| *o != NONE)
            else {
                continue;
            };
            let rows = row_order(self.a, ComputationId(id)).into_iter().rev();
            let mut others = row_order(self.b, ComputationId(other));
            for row in rows {
                let is_open = |known: &[u32], row: Row| known.get(row.0 as usize) == Some(&NONE);
                if !is_open(&self.rows, row) {
                    continue;
                }
                while others.last().is_some_and(|other| !is_open(&self.rows_back, *other)) {
                    others.pop();
                }
                let Some(other) = others.pop() else { return Ok(()) };
                self.pair_row(row, other)?;
                self.drain()?;
            }
        }
        Ok(())
    }

    fn check_all_paired(&self) -> Result<(), Difference> {
        if let Some(id) = self.computations.iter().position(|other| *other == NONE) {
            let name = self.a.computation_name(ComputationId(id as u32));
            return different("computations", name, b"(none)");
        }
        if let Some(row) = self.rows.iter().position(|other| *other == NONE) {
            let name = self.a.instruction_name(Row(row as u32));
            return different("instructions", name, b"(none)");
        }
        Ok(())
    }

    fn control(&self) -> Result<(), Difference> {
        let mut a: Vec<(u32, u32)> = Vec::new();
        for (row, predecessor) in self.a.control_predecessors() {
            let map = |row: Row| self.rows.get(row.0 as usize).copied().unwrap_or(NONE);
            a.push((map(*row), map(*predecessor)));
        }
        let mut b: Vec<(u32, u32)> =
            self.b.control_predecessors().iter().map(|(row, p)| (row.0, p.0)).collect();
        a.sort_unstable();
        b.sort_unstable();
        a.dedup();
        b.dedup();
        if a == b {
            return Ok(());
        }
        same_number("control predecessors", a.len(), b.len())?;
        Err(Difference { message: "the control predecessors differ".to_string() })
    }
}
