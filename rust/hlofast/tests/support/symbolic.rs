//! What a module computes, as one number: expressions are hashed, barriers looked through, and
//! names, channels and metadata left out.

use hlofast::ir::{CallRole, ComputationId, Module, Opcode, Row};
use hlofast::print::shape_to_text;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// The value of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Tuple(Rc<Vec<Value>>),
}

impl Value {
    fn number(&self) -> u64 {
        match self {
            Value::Number(number) => *number,
            Value::Tuple(parts) => {
                let mut hasher = DefaultHasher::new();
                parts.iter().for_each(|part| part.number().hash(&mut hasher));
                hasher.finish()
            }
        }
    }
}

/// The number of what the entry computation returns.
pub fn of_module(module: &Module) -> u64 {
    let mut computations = HashMap::new();
    for id in module.computation_post_order().iter().copied() {
        let number = of_computation(module, id, &computations);
        computations.insert(id, number);
    }
    computations[&module.entry()]
}

fn of_computation(module: &Module, id: ComputationId, known: &HashMap<ComputationId, u64>) -> u64 {
    let mut values: HashMap<u32, Value> = HashMap::new();
    for row in module.post_order(id) {
        let row = Row(row);
        let operands: Vec<Value> =
            module.operands(row).iter().map(|operand| values[operand].clone()).collect();
        let value = match (module.opcode(row), operands.first()) {
            (Opcode::OptBarrier, Some(operand)) => operand.clone(),
            (Opcode::Tuple, _) => Value::Tuple(Rc::new(operands)),
            (Opcode::GetTupleElement, Some(Value::Tuple(parts))) => {
                parts[module.tuple_index(row).unwrap()].clone()
            }
            _ => Value::Number(of_row(module, row, &operands, known)),
        };
        values.insert(row.0, value);
    }
    values[&module.computation(id).root].number()
}

fn of_row(
    module: &Module,
    row: Row,
    operands: &[Value],
    known: &HashMap<ComputationId, u64>,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    module.opcode_text(row).hash(&mut hasher);
    shape_to_text(module, module.shape(row), true).hash(&mut hasher);
    operands.iter().for_each(|operand| operand.number().hash(&mut hasher));
    if operands.is_empty() {
        let payload = module.bytes(module.opcode_and_payload(row).1);
        // Copies spell zeros with a sign so that XLA's parser keeps it.
        let words = payload.split(|byte| b" ,{}()".contains(byte));
        let words = words.map(|word| if word == b"-0.0" { b"-0" } else { word });
        words.for_each(|word| word.hash(&mut hasher));
    }
    for call in module.calls(row) {
        (call.role.as_str(), known[&call.computation]).hash(&mut hasher);
    }
    for attribute in module.attributes(row) {
        let key = module.bytes(attribute.key);
        let is_left_out =
            matches!(key, b"channel_id" | b"metadata" | b"control-predecessors" | b"origin");
        if !is_left_out && CallRole::from_key(key).is_none() {
            (key, module.bytes(attribute.value)).hash(&mut hasher);
        }
    }
    hasher.finish()
}
