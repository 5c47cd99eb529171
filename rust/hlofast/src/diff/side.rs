//! One of the two modules: the order of its rows, their uses and their labels.

use super::hash::Mixer;
use super::{Options, left_out};
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use crate::print::{Seen, Spacing, row_order, write_literal, write_value};

/// How much of two instructions has to agree; each level demands less than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Opcode, shape, payload and attributes.
    Exact,
    /// Opcode and shape without layout.
    Shape,
    /// Opcode.
    Opcode,
    /// The position among other rows; nothing else has to agree.
    Place,
}

/// Stands for an absent row or computation.
pub(super) const NONE: u32 = u32::MAX;

/// One module with the tables that matching needs.
pub(super) struct Side<'a> {
    pub(super) module: &'a Module,
    pub(super) mixer: Mixer,
    /// All rows, operands before users, computation by computation as in the module.
    pub(super) order: Vec<u32>,
    /// By row: start of its uses in `edges`; one entry more than there are rows.
    edge_starts: Vec<u32>,
    /// (user, operand number) of every use.
    edges: Vec<(u32, u32)>,
    /// Labels of all rows at `Level::Exact`, `Shape` and `Opcode`.
    labels: [Vec<u64>; 3],
    /// By shape, ignoring layouts: a number that is equal for equal shapes of both modules.
    plain_shapes: Vec<usize>,
}

impl<'a> Side<'a> {
    /// `shapes` are numbers of the module's shapes, equal for equal shapes of both modules: with
    /// and without layouts.
    pub(super) fn new(
        module: &'a Module,
        mixer: Mixer,
        shapes: (&[usize], &[usize]),
        options: &Options,
    ) -> Self {
        let mut order = Vec::with_capacity(module.row_count());
        for id in 0..module.computations().len() as u32 {
            order.extend(row_order(module, ComputationId(id)).into_iter().map(|row| row.0));
        }
        let (edge_starts, edges) = edges(module);
        let labels = labels(module, mixer, shapes, options);
        Self { module, mixer, order, edge_starts, edges, labels, plain_shapes: shapes.1.to_vec() }
    }

    /// The number of the shape of `row` without layout; equal for equal shapes of both modules.
    pub(super) fn plain_shape(&self, row: u32) -> Option<usize> {
        self.plain_shapes.get(self.module.shape(Row(row)).0 as usize).copied()
    }

    /// The rows of computation `id`, operands before users.
    pub(super) fn rows(&self, id: u32) -> &[u32] {
        let rows = self.module.computation(ComputationId(id)).rows();
        self.order.get(rows.start as usize..rows.end as usize).unwrap_or_default()
    }

    /// The uses of `row`: (user, operand number).
    pub(super) fn uses(&self, row: u32) -> &[(u32, u32)] {
        let at = |i: usize| self.edge_starts.get(i).copied().unwrap_or_default() as usize;
        self.edges.get(at(row as usize)..at(row as usize + 1)).unwrap_or_default()
    }

    pub(super) fn operands(&self, row: u32) -> &'a [u32] {
        self.module.operands(Row(row))
    }

    pub(super) fn opcode(&self, row: u32) -> Opcode {
        self.module.opcode(Row(row))
    }

    /// Whether `row` is a fusion or a call, which only runs the computation that it calls.
    pub(super) fn is_transparent(&self, row: u32) -> bool {
        matches!(self.opcode(row), Opcode::Fusion | Opcode::Call)
    }

    pub(super) fn is_root(&self, row: u32) -> bool {
        self.module.flags(Row(row)) & crate::ir::Flags::ROOT != 0
    }

    /// The labels of all rows at `level`; empty if only the position counts.
    pub(super) fn labels(&self, level: Level) -> &[u64] {
        match level {
            Level::Exact => &self.labels[0],
            Level::Shape => &self.labels[1],
            Level::Opcode => &self.labels[2],
            Level::Place => &[],
        }
    }

    pub(super) fn label(&self, level: Level, row: u32) -> u64 {
        self.labels(level).get(row as usize).copied().unwrap_or_default()
    }
}

/// The uses of every row, by row.
fn edges(module: &Module) -> (Vec<u32>, Vec<(u32, u32)>) {
    let columns = module.columns();
    let mut starts = vec![0u32; module.row_count() + 1];
    for operand in &columns.operands {
        if let Some(count) = starts.get_mut(*operand as usize + 1) {
            *count += 1;
        }
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    let mut next = starts.clone();
    let mut edges = vec![(0, 0); columns.operands.len()];
    for row in module.rows() {
        for (index, operand) in module.operands(row).iter().enumerate() {
            let Some(at) = next.get_mut(*operand as usize) else { continue };
            if let Some(edge) = edges.get_mut(*at as usize) {
                *edge = (row.0, index as u32);
            }
            *at += 1;
        }
    }
    (starts, edges)
}

fn labels(
    module: &Module,
    mixer: Mixer,
    (shapes, plain_shapes): (&[usize], &[usize]),
    options: &Options,
) -> [Vec<u64>; 3] {
    let mut labels: [Vec<u64>; 3] = Default::default();
    labels.iter_mut().for_each(|column| column.reserve_exact(module.row_count()));
    let mut buffer = Vec::new();
    for row in module.rows() {
        let mut hash = mixer.start(1);
        match module.opcode(row) {
            Opcode::Unknown => hash.bytes(module.opcode_text(row)),
            opcode => hash.word(opcode as u64),
        }
        labels[2].push(hash.finish());
        let number = |of: &[usize]| of.get(module.shape(row).0 as usize).copied().unwrap_or(0);
        let mut with_shape = hash;
        with_shape.word(number(plain_shapes) as u64);
        labels[1].push(with_shape.finish());
        hash.word(number(shapes) as u64);
        hash.word(module.operands(row).len() as u64);
        match module.opcode(row) {
            Opcode::Parameter => hash.word(module.parameter_number(row).unwrap_or(u64::MAX)),
            Opcode::Constant => {
                buffer.clear();
                let payload = module.bytes(module.opcode_and_payload(row).1);
                write_literal(&mut buffer, payload, Spacing::Tight);
                hash.bytes(&buffer);
            }
            _ => {}
        }
        // Hashes are added, because the order of attributes has no meaning.
        let mut sum = 0u64;
        let mut seen = Seen::default();
        for attribute in module.attributes(row) {
            let key = module.bytes(attribute.key);
            if left_out(module, row, key, options) || !seen.is_new(key) {
                continue;
            }
            let value = module.bytes(attribute.value);
            let mut pair = mixer.start(2);
            pair.bytes(key);
            if is_tight(value) {
                pair.bytes(value);
            } else {
                buffer.clear();
                write_value(&mut buffer, key, value, Spacing::Tight);
                pair.bytes(&buffer);
            }
            sum = sum.wrapping_add(pair.finish());
        }
        hash.word(sum);
        labels[0].push(hash.finish());
    }
    labels
}

/// Whether writing `value` without optional whitespace leaves it unchanged.
fn is_tight(value: &[u8]) -> bool {
    !value.iter().any(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'/'))
}

/// The calls of `row` as (role, callee), sorted by role; calls of one role are in text order.
pub(super) fn callees(module: &Module, row: u32) -> Vec<(&'static str, u32)> {
    let calls = module.calls(Row(row)).iter();
    let mut calls: Vec<_> = calls.map(|call| (call.role.as_str(), call.computation.0)).collect();
    calls.sort_by_key(|call| call.0);
    calls
}

/// Whether attribute `key` of `row` names called computations.
pub(super) fn is_call(module: &Module, row: Row, key: &[u8]) -> bool {
    CallRole::from_key(key)
        .is_some_and(|role| module.calls(row).iter().any(|c| c.role.as_str() == role.as_str()))
}
