//! What to recompute, written down in JSON by names.
//!
//! A list of `{"producer": name, "chain": [name, ...], "uses": [[name, operand], ...]}`
//! and `{"update": name, "source": name}`.

use hlofast::ir::{Module, Row};
use hlofast::remat::{Recompute, Use};
use serde_json::Value;

/// The recomputations that `value` asks of `module`.
pub fn read(module: &Module, value: &Value) -> Result<Vec<Recompute>, String> {
    value
        .as_array()
        .ok_or("a list is wanted")?
        .iter()
        .map(|entry| recompute(module, entry))
        .collect()
}

fn recompute(module: &Module, value: &Value) -> Result<Recompute, String> {
    if !value["update"].is_null() {
        return Ok(Recompute::FromStack {
            update: row(module, &value["update"])?,
            source: row(module, &value["source"])?,
        });
    }
    let list = |key: &str| value[key].as_array().cloned().unwrap_or_default();
    let uses = list("uses");
    Ok(Recompute::ForUsers {
        producer: row(module, &value["producer"])?,
        chain: list("chain").iter().map(|name| row(module, name)).collect::<Result<_, _>>()?,
        uses: uses.iter().map(|entry| a_use(module, entry)).collect::<Result<_, _>>()?,
    })
}

fn a_use(module: &Module, value: &Value) -> Result<Use, String> {
    let operand = value[1].as_u64().ok_or("an operand number is wanted")? as usize;
    Ok(Use { user: row(module, &value[0])?, operand })
}

fn row(module: &Module, name: &Value) -> Result<Row, String> {
    let name = name.as_str().ok_or("a name is wanted")?;
    let rows = module.find_instructions(name.as_bytes());
    rows.first().map(|row| Row(*row)).ok_or(format!("there is no {name}"))
}

/// Values of `module` with several users, each to be computed again for its last user; at most
/// `most` of them, spread over the module.
pub fn for_last_users(module: &Module, most: usize) -> Vec<Recompute> {
    let mut recomputes = Vec::new();
    let is_computed = |row: &Row| {
        use hlofast::ir::Opcode::*;
        !module.is_implicit(*row)
            && !matches!(module.opcode(*row), Constant | GetTupleElement | Iota | Parameter | Tuple)
    };
    for row in module.rows().filter(is_computed) {
        let users = module.users().get(row.0);
        let (Some(first), Some(last)) = (users.first(), users.last()) else { continue };
        if first == last {
            continue;
        }
        let user = Row(*last);
        let operands = module.operands(user).iter().enumerate();
        let uses = operands
            .filter(|(_, operand)| **operand == row.0)
            .map(|(operand, _)| Use { user, operand })
            .collect();
        recomputes.push(Recompute::ForUsers { producer: row, chain: Vec::new(), uses });
    }
    let step = recomputes.len().div_ceil(most.max(1)).max(1);
    recomputes.into_iter().step_by(step).collect()
}

/// Those of `wanted` that can be done one by one, and why the others cannot.
pub fn possible(module: &Module, wanted: Vec<Recompute>) -> (Vec<Recompute>, Vec<String>) {
    let (mut possible, mut refused) = (Vec::new(), Vec::new());
    for recompute in wanted {
        match hlofast::remat::rewrite(module, std::slice::from_ref(&recompute)) {
            Ok(_) => possible.push(recompute),
            Err(error) => refused.push(error.to_string()),
        }
    }
    (possible, refused)
}
