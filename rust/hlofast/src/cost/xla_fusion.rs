//! Bytes of fusions as XLA counts them: results, constants, and the bytes read of each operand.

use super::facts::Fact;
use super::traffic::is_in_flight;
use super::xla::{Engine, Number, Properties, size};
use crate::ir::size::Backend;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};

impl<N: Number> Engine<'_, N> {
    pub(super) fn fusion(&self, row: Row, fact: Option<&Fact>) -> Properties<N> {
        let module = self.rules.module;
        let Some(&Fact::Fusion { callee: id, is_custom }) = fact else {
            return Properties { bytes: self.default_bytes(row), ..Properties::default() };
        };
        if is_custom {
            for inner in module.computation(id).rows().map(Row) {
                match module.opcode(inner) {
                    Opcode::Gather => {
                        let bytes = self.gather_bytes(inner, self.facts.get(inner.0));
                        return Properties { bytes, ..Properties::default() };
                    }
                    Opcode::Scatter => {
                        let mut cost = self.work(inner, Opcode::Scatter, None);
                        cost.bytes = self.scatter_bytes(inner, self.facts.get(inner.0));
                        return cost;
                    }
                    _ => {}
                }
            }
        }
        let mut cost = self.cost.computations[id.0 as usize];
        cost.bytes = self.fusion_bytes(row, id);
        cost.optimal_seconds = N::default();
        cost
    }

    /// Whether a collective overlaps other work in fused computation `id`; libtpu counts only the
    /// other work.
    pub(super) fn is_async(&self, id: ComputationId) -> bool {
        let name = self.rules.module.computation_name(id);
        self.backend == Backend::Tpu && name.starts_with(b"async_collective_fusion")
    }

    fn fusion_bytes(&self, row: Row, id: ComputationId) -> N {
        let module = self.rules.module;
        let shapes = module.shapes();
        let root = Row(module.computation(id).root);
        let is_async = self.is_async(id);
        let mut bytes = N::default();
        let written = |value: Row, whole: i64| match module.opcode(value) {
            Opcode::DynamicUpdateSlice => self.rules.operand(value, 1).size,
            _ => whole,
        };
        match shapes.tuple(module.shape(row)) {
            None => bytes = bytes.plus(size(written(root, self.rules.shape(row).size))),
            Some(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let value = match module.opcode(root) {
                        Opcode::Tuple => module.operands(root).get(index).map(|row| Row(*row)),
                        _ => None,
                    };
                    if self.rules.shapes[element.0 as usize].is_tuple {
                        for leaf in shapes.leaves(*element) {
                            bytes = bytes.plus(size(self.rules.shapes[leaf.0 as usize].size));
                        }
                        continue;
                    }
                    if is_async && value.is_some_and(|value| is_in_flight(module, value)) {
                        continue;
                    }
                    let whole = self.rules.shapes[element.0 as usize].size;
                    bytes = bytes.plus(size(value.map_or(whole, |value| written(value, whole))));
                }
            }
        }
        if N::IS_EXACT {
            bytes = bytes.plus(N::of(self.constant_bytes(id)));
        } else {
            for constant in self.facts.constants(id) {
                bytes = bytes.plus(size(self.rules.shape(Row(*constant)).size));
            }
        }
        for parameter in self.facts.parameters(module, id).iter().map(|row| Row(*row)) {
            let mut users = module.users().get(parameter.0).iter().map(|row| Row(*row));
            if is_async && users.all(|user| user == root || is_in_flight(module, user)) {
                continue;
            }
            bytes = bytes.plus(N::of(self.parameter_bytes(parameter)));
        }
        bytes
    }

    /// Sizes of the large constants of computation `id`, added up once.
    fn constant_bytes(&self, id: ComputationId) -> i128 {
        let mut known = self.constants.borrow_mut();
        *known.entry(id.0).or_insert_with(|| {
            let sizes = self.facts.constants(id).iter().map(|row| self.rules.shape(Row(*row)).size);
            sizes.map(|size| i128::from(size.max(0))).sum()
        })
    }

    fn parameter_bytes(&self, parameter: Row) -> i128 {
        let module = self.rules.module;
        let shape = module.shape(parameter);
        if !self.rules.shape(parameter).is_tuple {
            return self.read_bytes(parameter);
        }
        let mut sum = 0i128;
        let mut stack = vec![(shape, parameter)];
        while let Some((shape, value)) = stack.pop() {
            match module.shapes().tuple(shape) {
                None => sum = sum.saturating_add(self.read_bytes(value)),
                Some(elements) => {
                    let taken = elements_taken(module, value, elements.len());
                    stack.extend(elements.iter().copied().zip(taken));
                }
            }
        }
        sum
    }

    /// `FusionParameterReadBytes`: each slice counts its size, each broadcast or reshape counts the
    /// whole, and all other users together count the whole once.
    pub(super) fn read_bytes(&self, value: Row) -> i128 {
        let module = self.rules.module;
        let mut bytes = 0i128;
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            let whole = i128::from(self.rules.shape(value).size.max(0));
            let mut is_read = false;
            for user in module.users().get(value.0).iter().map(|row| Row(*row)) {
                let more = match module.opcode(user) {
                    Opcode::Fusion => match self.nested_reads(value, user, &mut pending) {
                        Some(more) => more,
                        None => self.once(&mut is_read, whole),
                    },
                    Opcode::Broadcast | Opcode::Reshape => whole,
                    _ => match self.sliced(value, user) {
                        Some(taken) => taken,
                        None => self.once(&mut is_read, whole),
                    },
                };
                bytes = bytes.saturating_add(more);
            }
        }
        bytes
    }

    fn once(&self, is_done: &mut bool, bytes: i128) -> i128 {
        if std::mem::replace(is_done, true) { 0 } else { bytes }
    }

    /// Bytes of `value` that `user` takes by slicing; None if it takes all.
    fn sliced(&self, value: Row, user: Row) -> Option<i128> {
        let module = self.rules.module;
        let is_first = module.operands(user).first() == Some(&value.0);
        match module.opcode(user) {
            Opcode::Slice => Some(i128::from(self.rules.shape(user).size.max(0))),
            Opcode::DynamicSlice if is_first => {
                Some(i128::from(self.rules.shape(user).size.max(0)))
            }
            Opcode::DynamicUpdateSlice if is_first => Some(0),
            _ => None,
        }
    }

    /// Bytes of `value` read as an operand of nested fusion `fusion`, on behalf of the fusion's
    /// users; 0 without users. If the first operand of the fusion's root is any parameter, slices
    /// of the fusion count as slices of `value`; otherwise the reads inside the fusion count once.
    /// Inner parameters still to visit go to `pending`. None if the fusion cannot be followed.
    fn nested_reads(&self, value: Row, fusion: Row, pending: &mut Vec<Row>) -> Option<i128> {
        let module = self.rules.module;
        let id = module.called(fusion, CallRole::Calls)?;
        let root = Row(module.computation(id).root);
        let parameters = self.facts.parameters(module, id);
        let steps = 1 + parameters.len() as u64;
        self.budget.set(self.budget.get().checked_sub(steps)?);
        let mut bytes = 0i128;
        for (index, operand) in module.operands(fusion).iter().enumerate() {
            if *operand != value.0 {
                continue;
            }
            let Some(parameter) = parameters.get(index) else { continue };
            let first = module.operands(root).first();
            let is_followed_out =
                first.is_none_or(|first| module.opcode(Row(*first)) == Opcode::Parameter);
            let mut is_read = false;
            for user in module.users().get(fusion.0).iter().map(|row| Row(*row)) {
                let sliced = if is_followed_out { self.sliced(fusion, user) } else { None };
                match (sliced, module.opcode(user)) {
                    (Some(taken), _) => bytes = bytes.saturating_add(taken),
                    (None, Opcode::DynamicSlice | Opcode::DynamicUpdateSlice)
                        if is_followed_out =>
                    {
                        let whole = i128::from(self.rules.shape(fusion).size.max(0));
                        bytes = bytes.saturating_add(self.once(&mut is_read, whole));
                    }
                    _ if !std::mem::replace(&mut is_read, true) => pending.push(Row(*parameter)),
                    _ => {}
                }
            }
        }
        Some(bytes)
    }
}

/// For each element of tuple `value`, its first get-tuple-element, or `value` if it has none.
pub(super) fn elements_taken(module: &Module, value: Row, length: usize) -> Vec<Row> {
    let mut taken = vec![value; length];
    for user in module.users().get(value.0).iter().rev().map(|row| Row(*row)) {
        if let Some(slot) = module.tuple_index(user).and_then(|index| taken.get_mut(index)) {
            *slot = user;
        }
    }
    taken
}
