//! Which rows of an entry computation belong to the forward pass, which to the backward pass.

use super::{Side, is_given, is_large};
use crate::flow::Phase;
use crate::ir::{Module, Opcode, Row};
use crate::remat::policy::unrolled::Unrolled;
use std::ops::Range;

/// By row: its side and layer.
pub struct Sides {
    first: u32,
    of: Vec<(Side, Option<u32>)>,
}

/// Whether a row moves what another row makes, so that it is on the side of that.
fn moves(opcode: Opcode) -> bool {
    use Opcode::{
        AsyncDone, AsyncStart, AsyncUpdate, Bitcast, CollectivePermuteDone, CollectivePermuteStart,
        Copy, CopyDone, CopyStart, CustomCall, GetTupleElement, Tuple,
    };
    matches!(
        opcode,
        AsyncDone
            | AsyncStart
            | AsyncUpdate
            | Bitcast
            | CollectivePermuteDone
            | CollectivePermuteStart
            | Copy
            | CopyDone
            | CopyStart
            | CustomCall
            | GetTupleElement
            | Tuple
    )
}

impl Sides {
    pub fn new(
        module: &Module,
        rows: Range<u32>,
        unrolled: &Unrolled,
        phase_of: impl Fn(Row) -> Phase,
    ) -> Self {
        let count = rows.len();
        let row = |at: usize| Row(rows.start + at as u32);
        let read = |at: usize| {
            let own = module.operands(row(at)).iter();
            own.filter_map(|from| Some(from.checked_sub(rows.start)? as usize))
                .filter(move |from| *from < at)
        };
        let opcode = |at: usize| module.opcode(row(at));
        let phase = |at: usize| phase_of(row(at));
        let is_weights = |at: usize| matches!(opcode(at), Opcode::Convert | Opcode::AllGather);
        let starts = |at: usize| module.instruction_name(row(at)).starts_with(b"async");
        // Names of fusions are those of one of their operations, so small values and weights do not count.
        let mut is_late = vec![false; count];
        for at in 0..count {
            let is_plain = !is_given(opcode(at)) && !is_weights(at) && opcode(at) != Opcode::Copy;
            let is_own = is_plain && !starts(at) && has_large(module, row(at));
            is_late[at] =
                phase(at) == Phase::Backward && is_own || read(at).any(|own| is_late[own]);
        }
        let mut is_forward = vec![false; count];
        for at in (0..count).rev() {
            let is_plain = !moves(opcode(at)) && !is_weights(at);
            if phase(at) == Phase::Forward && is_plain && !is_late[at] && !is_given(opcode(at)) {
                is_forward[at] = true;
            }
            if is_forward[at] {
                read(at).for_each(|from| is_forward[from] = true);
            }
        }
        let mut of: Vec<(Side, Option<u32>)> = Vec::with_capacity(count);
        for (at, is_forward) in is_forward.iter().enumerate() {
            let given = |own: &usize| is_given(opcode(*own));
            let reads = || read(at).filter(|own| !given(own));
            let side = match phase(at) {
                _ if *is_forward => Side::Forward,
                Phase::Optimizer => Side::Other,
                Phase::Backward => Side::Backward,
                _ if reads().all(|own| of[own].0 == Side::Other) => Side::Other,
                _ => Side::Backward,
            };
            let (layer, is_known) = unrolled.layer_of_row(row(at));
            let layer = layer.filter(|_| !is_given(opcode(at)));
            let like = layer.or_else(|| {
                let is_unnamed = moves(opcode(at)) || !is_known;
                let own = reads().filter(|from| is_unnamed && of[*from].0 == side);
                let own = own.filter_map(|from| of[from].1);
                if side == Side::Forward { own.max() } else { own.min() }
            });
            of.push((side, like));
        }
        Sides { first: rows.start, of }
    }

    fn of(&self, row: Row) -> Option<(Side, Option<u32>)> {
        self.of.get(row.0.checked_sub(self.first)? as usize).copied()
    }

    pub fn side(&self, row: Row) -> Side {
        self.of(row).map_or(Side::Other, |(side, _)| side)
    }

    pub fn layer(&self, row: Row) -> Option<u32> {
        self.of(row).and_then(|(_, layer)| layer)
    }
}

/// Whether a row makes a large array.
fn has_large(module: &Module, row: Row) -> bool {
    module.shapes().leaves(module.shape(row)).any(|leaf| is_large(module, leaf))
}
