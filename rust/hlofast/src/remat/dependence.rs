//! The parameters of the program on which a result depends.

use crate::flow::origin::{Path, Place};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use hashbrown::HashSet;

/// Limit on the parts of results that are visited, and on the nesting of tuples.
const MOST_PLACES: usize = 1 << 20;
const DEEPEST_PATH: usize = 32;

/// The parameters of the entry computation that `rows` depend on, ascending; None if the search
/// exceeds its limits.
///
/// Tuples are taken apart. For other instructions that call computations, every result depends on
/// every operand, so the answer may contain too many parameters but never too few.
pub fn parameters_read(module: &Module, rows: &[Row]) -> Option<Vec<Row>> {
    let mut seen: HashSet<Place, BuildMix> = HashSet::default();
    let mut callers: HashSet<Row, BuildMix> = HashSet::default();
    let mut inside: Vec<Row> = rows.to_vec();
    let mut stack: Vec<Place> = Vec::new();
    while let Some(row) = inside.pop() {
        let computation = module.computation_of(row);
        if computation == module.entry() {
            stack.push(row.into());
        } else {
            let rows = module.callers(computation).iter().map(|row| Row(*row));
            inside.extend(rows.filter(|row| callers.insert(*row)));
        }
    }
    let mut parameters = Vec::new();
    while let Some(place) = stack.pop() {
        if seen.len() >= MOST_PLACES || place.path.len() > DEEPEST_PATH {
            return None;
        }
        if !seen.insert(place.clone()) {
            continue;
        }
        let row = place.row;
        let operands = || module.operands(row).iter().map(|operand| Row(*operand));
        let whole = |row: Row| Place::from(row);
        match module.opcode(row) {
            Opcode::Parameter => parameters.push(row),
            Opcode::GetTupleElement => {
                let index = module.tuple_index(row).and_then(|index| u32::try_from(index).ok());
                let path = place.path.iter().copied().chain(index).collect();
                stack.extend(operands().map(|row| Place { row, path: Path::clone(&path) }));
            }
            Opcode::Tuple => {
                let mut path = place.path.clone();
                let index = path.pop().and_then(|index| usize::try_from(index).ok());
                match index.and_then(|index| operands().nth(index)) {
                    Some(row) => stack.push(Place { row, path }),
                    None => stack.extend(operands().map(whole)),
                }
            }
            Opcode::OptBarrier => {
                stack.extend(operands().map(|row| Place { row, path: place.path.clone() }));
            }
            _ => stack.extend(operands().map(whole)),
        }
    }
    parameters.sort_unstable();
    parameters.dedup();
    Some(parameters)
}
