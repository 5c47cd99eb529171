//! Finds instructions that compute an equal value from equal inputs: recomputation that no name
//! marks.

use crate::cost::custom_call::{custom_call_target, known_target};
use crate::flow::{Attribution, Phase};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Module, Opcode, Row};
use hashbrown::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

/// Rows that repeat an earlier row of their computation, each paired with the earlier row.
///
/// Only matmuls, reductions, sorts, collectives, library calls and fusions count; custom calls that
/// only mark, move or join values do not. The first row of
/// a pair is forward work or nameless, the second is backward work or nameless; both have the same
/// opcode, attributes (ignoring names, layout annotations and channels), called computations and,
/// looking through barriers, operands.
pub(super) fn twins(module: &Module, attribution: &Attribution) -> Vec<(Row, Row)> {
    let mut numbers = Numbers {
        module,
        of_row: vec![0; module.row_count()],
        of_computation: vec![0; module.computations().len()],
        hasher: BuildMix,
    };
    for id in module.computation_post_order().iter().copied() {
        numbers.number(id);
    }
    let mut twins = Vec::new();
    for id in (0..module.computations().len() as u32).map(ComputationId) {
        let mut first: HashMap<u64, Row, BuildMix> = HashMap::default();
        for row in module.computation(id).rows().map(Row).filter(|row| is_work(module, *row)) {
            let number = numbers.of_row[row.0 as usize];
            let phase = |row: Row| attribution.phase[row.0 as usize];
            match first.get(&number) {
                Some(twin)
                    if matches!(phase(*twin), Phase::Forward | Phase::Unattributed)
                        && matches!(phase(row), Phase::Backward | Phase::Unattributed) =>
                {
                    twins.push((row, *twin));
                }
                Some(_) => {}
                None => {
                    first.insert(number, row);
                }
            }
        }
    }
    twins
}

fn is_work(module: &Module, row: Row) -> bool {
    use Opcode::*;
    // An instruction without operands creates a buffer or queries the device.
    if module.operands(row).is_empty() {
        return false;
    }
    if module.opcode(row) == CustomCall {
        let target = custom_call_target(module, row);
        return target.and_then(|own| known_target(&own)).is_none_or(|known| known.kind.is_work());
    }
    matches!(
        module.opcode(row),
        Dot | RaggedDot
            | Convolution
            | Reduce
            | ReduceWindow
            | Sort
            | Fusion
            | AllGather
            | AllReduce
            | ReduceScatter
            | AllToAll
            | Gather
            | Scatter
    )
}

/// Value numbers: equal for equal computations.
struct Numbers<'a> {
    module: &'a Module,
    of_row: Vec<u64>,
    of_computation: Vec<u64>,
    hasher: BuildMix,
}

impl Numbers<'_> {
    fn number(&mut self, id: ComputationId) {
        let module = self.module;
        for row in module.computation(id).rows() {
            self.of_row[row as usize] = self.number_of(Row(row));
        }
        let root = module.computation(id).root;
        self.of_computation[id.0 as usize] = self.of_row[root as usize];
    }

    fn number_of(&self, row: Row) -> u64 {
        let module = self.module;
        let operands = module.operands(row);
        let operand = |index: usize| operands.get(index).map(|row| self.of_row[*row as usize]);
        match module.opcode(row) {
            Opcode::OptBarrier | Opcode::Copy | Opcode::Bitcast => {
                return operand(0).unwrap_or_default();
            }
            Opcode::GetTupleElement => {
                // An element of a barrier around a tuple is the element of the tuple.
                if let Some(element) = self.element(row) {
                    return element;
                }
            }
            _ => {}
        }
        let mut hasher = self.hasher.build_hasher();
        (module.opcode(row) as u8).hash(&mut hasher);
        module.shape(row).0.hash(&mut hasher);
        for operand in operands {
            self.of_row[*operand as usize].hash(&mut hasher);
        }
        match module.opcode(row) {
            // Values that differ on every execution equal only themselves.
            Opcode::Parameter if module.computation_of(row) == module.entry() => {
                row.0.hash(&mut hasher)
            }
            Opcode::Parameter => module.parameter_number(row).hash(&mut hasher),
            Opcode::Rng | Opcode::Infeed | Opcode::Recv | Opcode::RngGetAndUpdateState => {
                row.0.hash(&mut hasher);
            }
            Opcode::Constant => {
                let (_, payload) = module.opcode_and_payload(row);
                module.bytes(payload).hash(&mut hasher);
            }
            _ => {}
        }
        for attribute in module.attributes(row) {
            let ignored: &[&[u8]] = &[
                b"metadata",
                b"backend_config",
                b"frontend_attributes",
                b"channel_id",
                b"calls",
                b"to_apply",
                b"control-predecessors",
                b"sharding",
            ];
            let name = module.bytes(attribute.key);
            if !ignored.contains(&name) {
                name.hash(&mut hasher);
                module.bytes(attribute.value).hash(&mut hasher);
            }
        }
        for call in module.calls(row) {
            self.of_computation[call.computation.0 as usize].hash(&mut hasher);
        }
        hasher.finish()
    }

    fn element(&self, row: Row) -> Option<u64> {
        let module = self.module;
        let mut from = Row(*module.operands(row).first()?);
        while module.opcode(from) == Opcode::OptBarrier {
            from = Row(*module.operands(from).first()?);
        }
        if module.opcode(from) != Opcode::Tuple {
            return None;
        }
        let element = module.operands(from).get(module.tuple_index(row)?)?;
        Some(self.of_row[*element as usize])
    }
}
