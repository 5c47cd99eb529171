//! Alpa's counters of collectives.

use crate::ir::{Module, Opcode, Row, ShapeView};

/// The counters of Alpa's `count_communication_primitives`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlpaCounters {
    /// Instructions with a channel id.
    pub total: u64,
    /// All-reduces, synchronous or asynchronous.
    pub all_reduce: u64,
    /// All-gathers.
    pub all_gather: u64,
    /// Reduce-scatters.
    pub reduce_scatter: u64,
    /// All-to-alls.
    pub all_to_all: u64,
}

/// Counts as Alpa does; with `ignore_scalars`, all-reduces whose first operand is an f32 or f16
/// scalar are left out.
pub fn alpa_counters(module: &Module, ignore_scalars: bool) -> AlpaCounters {
    let mut counters = AlpaCounters::default();
    let rows = module.rows().filter(|row| !module.is_implicit(*row));
    for row in rows {
        let opcode = module.opcode(row);
        let is_reduce = matches!(opcode, Opcode::AllReduce | Opcode::AllReduceStart);
        if is_reduce && ignore_scalars && is_float_scalar(module, row) {
            continue;
        }
        counters.total += u64::from(module.attribute(row, "channel_id").is_some());
        match opcode {
            Opcode::AllReduce | Opcode::AllReduceStart => counters.all_reduce += 1,
            Opcode::AllGather | Opcode::AllGatherStart => counters.all_gather += 1,
            Opcode::ReduceScatter => counters.reduce_scatter += 1,
            Opcode::AllToAll => counters.all_to_all += 1,
            _ => {}
        }
    }
    counters
}

fn is_float_scalar(module: &Module, row: Row) -> bool {
    let Some(operand) = module.operands(row).first() else { return false };
    match module.shapes().get(module.shape(Row(*operand))) {
        ShapeView::Array(array) => {
            array.rank() == 0 && matches!(array.element_type.as_str(), "f32" | "f16")
        }
        _ => false,
    }
}

/// The channels of the all-reduces that Alpa skips in every microbatch but the last. These
/// all-reduces reach the root only through tuples, slices and bitcasts. In Alpa's form: `.5.12.`.
pub fn grad_sync_channel_ids(module: &Module) -> String {
    let root = Row(module.computation(module.entry()).root);
    let mut channels = Vec::new();
    let mut seen = vec![false; module.computation(module.entry()).rows().len()];
    let first = module.computation(module.entry()).first_row;
    let mut stack = vec![root];
    while let Some(row) = stack.pop() {
        let place = row.0.checked_sub(first).and_then(|at| seen.get_mut(at as usize));
        if place.is_none_or(|seen| std::mem::replace(seen, true)) {
            continue;
        }
        match module.opcode(row) {
            Opcode::Tuple | Opcode::Slice | Opcode::Bitcast => {
                let operands = module.operands(row).iter().rev();
                stack.extend(operands.map(|operand| Row(*operand)));
            }
            Opcode::AllReduce => {
                let channel = module.attribute_bytes(row, "channel_id").unwrap_or_default();
                channels.push(String::from_utf8_lossy(channel).into_owned());
            }
            _ => {}
        }
    }
    let mut text = String::from(".");
    for channel in channels {
        text.push_str(&channel);
        text.push('.');
    }
    text
}
