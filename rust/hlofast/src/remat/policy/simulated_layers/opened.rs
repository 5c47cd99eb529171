//! The rows of an entry computation as the operations of a program that has not been scheduled: fusions of the forward
//! pass are opened, and what XLA adds after scheduling is left out.

use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row, ShapeId};
use crate::memory::{joins_in_place, only_slices};
use crate::remat::policy::value::{MOST_LEAVES, Value};
use hashbrown::HashSet;
use std::ops::Range;

/// Limit on the operations: with so many, a search that tries as few policies as it may takes some seconds.
const MOST: usize = 1 << 15;
/// Limit on what they read.
const MOST_READ: usize = 1 << 19;

/// An operation: a row, a row inside of its fusion, or an element of its result.
#[derive(Clone, Debug)]
pub struct Op {
    /// The row of the entry computation in which it runs.
    pub outer: Row,
    /// The row itself.
    pub row: Row,
    pub opcode: Opcode,
    pub shape: ShapeId,
    pub reads: Vec<u32>,
    /// Whether it is an element of the result of another operation.
    pub is_element: bool,
}

/// The operations of an entry computation.
#[derive(Debug)]
pub struct Opened {
    pub ops: Vec<Op>,
    /// By operation: those that read it and are needed.
    pub users: Vec<Vec<u32>>,
    /// By operation: whether the result of the program needs it.
    pub is_live: Vec<bool>,
    /// The operations that make the result.
    pub root: Vec<u32>,
    /// How much more they may read.
    left: usize,
    /// The computations in which asynchronous collectives start or end.
    carriers: HashSet<ComputationId, BuildMix>,
}

impl Opened {
    /// Those of `rows`, whose fusions are opened where `opens` says so; None if there are too many.
    pub fn new(module: &Module, rows: Range<u32>, opens: impl Fn(Row) -> bool) -> Option<Self> {
        let mut own = Opened {
            ops: Vec::new(),
            users: Vec::new(),
            is_live: Vec::new(),
            root: Vec::new(),
            left: MOST_READ,
            carriers: carriers(module),
        };
        let mut results: Vec<Value> = Vec::with_capacity(rows.len());
        for row in rows.clone().map(Row) {
            let given = given(module, row, (rows.start, &results));
            results.push(own.result(module, row, row, &given, &opens)?);
        }
        let root = module.computation(module.entry()).root.checked_sub(rows.start)?;
        own.root = own.leaves(std::slice::from_ref(results.get(root as usize)?))?;
        own.find_live();
        Some(own)
    }

    /// Whether a fusion is opened. One that hands on a collective which has started carries it beside its own work.
    fn is_opened(
        &self,
        module: &Module,
        row: Row,
        given: &[Value],
        opens: &impl Fn(Row) -> bool,
    ) -> bool {
        let Some(called) = module.called(row, CallRole::Calls) else { return false };
        let is_handle = |value: &Value| matches!(value, Value::Nothing);
        opens(row) || given.iter().any(is_handle) || self.carriers.contains(&called)
    }

    fn push(&mut self, op: Op) -> Option<u32> {
        self.ops.push(op);
        u32::try_from(self.ops.len()).ok().filter(|count| *count as usize <= MOST)?.checked_sub(1)
    }

    /// What a row results in, if its operands are `given`.
    fn result(
        &mut self,
        module: &Module,
        row: Row,
        outer: Row,
        given: &[Value],
        opens: &impl Fn(Row) -> bool,
    ) -> Option<Value> {
        let first = || given.first().cloned().unwrap_or_default();
        let opcode = module.opcode(row);
        Some(match opcode {
            Opcode::Tuple => Value::many(given.to_vec()),
            Opcode::GetTupleElement => {
                first().element(module.tuple_index(row).unwrap_or(usize::MAX))
            }
            Opcode::Bitcast | Opcode::AsyncUpdate => first(),
            Opcode::CopyStart => Value::many(vec![first(), first()]),
            Opcode::CopyDone => first().element(0),
            Opcode::AsyncStart if only_slices(module, row) => first(),
            Opcode::AllReduceDone => first(),
            Opcode::AsyncDone | Opcode::AllGatherDone | Opcode::CollectivePermuteDone => {
                match first() {
                    Value::Many(many) => many.elements.get(1).cloned().unwrap_or_default(),
                    own => own,
                }
            }
            Opcode::CustomCall if joins_in_place(module, row) => first(),
            Opcode::CustomCall => match target(module, row) {
                // The collective in it is that of the row in which it ends.
                b"\"AsyncCollectiveStart\"" => {
                    let from = first().node().and_then(|own| self.ops[own as usize].reads.first());
                    let rest = module.shapes().tuple(module.shape(row)).map_or(0, <[_]>::len);
                    let mut all = vec![Value::Nothing; rest.max(1)];
                    all[0] = from.map_or(Value::Nothing, |own| Value::One(*own));
                    Value::many(all)
                }
                b"\"AsyncCollectiveDone\"" => {
                    let is_its = |own: &u32| self.ops[*own as usize].outer == outer;
                    let own = given.iter().filter_map(Value::node).rfind(is_its);
                    own.map_or(Value::Nothing, Value::One)
                }
                _ => self.opaque(module, row, outer, given)?,
            },
            Opcode::Fusion if row == outer && self.is_opened(module, row, given, opens) => {
                let called = module.called(row, CallRole::Calls)?;
                let computation = module.computation(called);
                let rows = computation.rows();
                self.left = self.left.checked_sub(rows.len())?;
                let mut inner: Vec<Value> = Vec::with_capacity(rows.len());
                for own in rows.clone().map(Row) {
                    let value = match module.opcode(own) {
                        Opcode::Parameter => {
                            let number =
                                module.parameter_number(own).and_then(|n| usize::try_from(n).ok());
                            number.and_then(|n| given.get(n)).cloned().unwrap_or_default()
                        }
                        _ => {
                            let read = self::given(module, own, (rows.start, &inner));
                            self.result(module, own, outer, &read, opens)?
                        }
                    };
                    inner.push(value);
                }
                let root = computation.root.checked_sub(rows.start)?;
                inner.get(root as usize).cloned().unwrap_or_default()
            }
            _ => self.opaque(module, row, outer, given)?,
        })
    }

    /// A row that is not opened; it reads all leaves of its operands.
    fn opaque(&mut self, module: &Module, row: Row, outer: Row, given: &[Value]) -> Option<Value> {
        let (opcode, shape) = (module.opcode(row), module.shape(row));
        let reads = self.leaves(given)?;
        let whole = Op { outer, row, opcode, shape, reads, is_element: false };
        let own = self.push(whole.clone())?;
        let Some(parts) = module.shapes().tuple(shape) else { return Some(Value::One(own)) };
        let starts = matches!(
            opcode,
            Opcode::AsyncStart | Opcode::AllGatherStart | Opcode::CollectivePermuteStart
        );
        let mut all = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            all.push(match given.first() {
                // The operand of what has started.
                Some(first) if starts && number == 0 => first.clone(),
                // Tuples in tuples are not followed.
                _ if module.shapes().tuple(*part).is_some() => return None,
                _ => {
                    let element =
                        Op { shape: *part, reads: vec![own], is_element: true, ..whole.clone() };
                    Value::One(self.push(element)?)
                }
            });
        }
        Some(Value::many(all))
    }

    /// The operations whose values these are; None if there are too many.
    fn leaves(&mut self, of: &[Value]) -> Option<Vec<u32>> {
        let (mut leaves, mut visits) = (Vec::new(), 0);
        of.iter().for_each(|value| value.leaves(&mut leaves, &mut visits));
        self.left = self.left.checked_sub(leaves.len() + of.len())?;
        (visits < MOST_LEAVES).then_some(leaves)
    }

    /// How much all of them read.
    pub fn reads(&self) -> usize {
        MOST_READ - self.left
    }

    fn find_live(&mut self) {
        self.is_live = vec![false; self.ops.len()];
        self.users = vec![Vec::new(); self.ops.len()];
        let mut open = self.root.clone();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut self.is_live[at as usize], true) {
                open.extend(&self.ops[at as usize].reads);
            }
        }
        for (at, op) in (0u32..).zip(&self.ops).filter(|(at, _)| self.is_live[*at as usize]) {
            op.reads.iter().for_each(|from| self.users[*from as usize].push(at));
        }
    }
}

/// The operands of a row, if the rows of its computation from `first` have these results.
fn given(module: &Module, row: Row, (first, results): (u32, &[Value])) -> Vec<Value> {
    let read = |from: &u32| results.get(from.checked_sub(first)? as usize).cloned();
    module.operands(row).iter().map(|from| read(from).unwrap_or_default()).collect()
}

fn target(module: &Module, row: Row) -> &[u8] {
    module.attribute_bytes(row, "custom_call_target").unwrap_or_default()
}

/// The computations in which asynchronous collectives start or end.
fn carriers(module: &Module) -> HashSet<ComputationId, BuildMix> {
    let is_end = |row: &Row| {
        let is_call = module.opcode(*row) == Opcode::CustomCall;
        is_call && target(module, *row).starts_with(b"\"AsyncCollective")
    };
    module.rows().filter(is_end).map(|row| module.computation_of(row)).collect()
}
