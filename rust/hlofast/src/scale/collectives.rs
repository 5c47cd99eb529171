//! Collectives that change sizes, and rules that apply only where no better evidence exists.

use super::places::Slot;
use super::size::{Factor, MOST_AXES, fraction_of};
use super::spread::{Spread, Trust};
use crate::comms::{AxisPart, DeviceGroups};
use crate::ir::{Opcode, Row};

impl Spread<'_> {
    /// The mesh axes among whose devices a collective exchanges.
    fn axes_of(&self, row: Row) -> Option<Vec<AxisPart>> {
        let groups = DeviceGroups::of_row(self.module, row, &self.context).ok()?;
        Some(self.mesh?.axes_of(&groups).parts().to_vec())
    }

    /// Whether devices exchange along one whole axis.
    fn is_one_axis(&self, axes: &[AxisPart]) -> bool {
        let whole = |part: &AxisPart| {
            self.mesh.and_then(|mesh| mesh.axes().get(part.axis)).map(|axis| axis.size)
        };
        matches!(axes, [part] if whole(part) == Some(part.size))
    }

    /// An all-gather multiplies a dimension by the sizes of its axes, a reduce-scatter divides it.
    pub(super) fn collective(&mut self, row: Row) {
        let opcode = self.module.opcode(row);
        let along = self.integers(row, "dimensions").first().copied().unwrap_or(0);
        let Ok(along) = usize::try_from(along) else { return };
        let count = self.module.operands(row).len();
        let first = if opcode == Opcode::AllGatherStart { count } else { 0 };
        let axes = self.axes_of(row).unwrap_or_default();
        let is_sure = self.trust == Trust::Dealt || self.is_one_axis(&axes);
        let up = if opcode == Opcode::ReduceScatter { -1 } else { 1 };
        for index in 0..count {
            let (Some(operand), Some(result)) =
                (self.operand(row, index), self.places.leaf(row, first + index))
            else {
                continue;
            };
            if first > 0
                && let Some(held) = self.places.leaf(row, index)
            {
                self.same_arrays(operand, held);
            }
            for (place, (from, to)) in operand.dims().zip(result.dims()).enumerate() {
                if place != along {
                    self.same(from, to);
                    continue;
                }
                for (from, to, up) in [(from, to, up), (to, from, -up)] {
                    let Some(value) = self.get(from).filter(|_| is_sure) else { continue };
                    if let Some(value) = self.with_axes(value, &axes, up) {
                        self.set(to, value);
                    }
                }
            }
        }
    }

    /// An all-to-all.
    pub(super) fn exchange(&mut self, row: Row) {
        if self.trust == Trust::Dealt {
            self.count_devices(row);
            self.elementwise(row);
        }
    }

    /// An all-to-all along a dimension with one element per device: the dimension counts devices.
    pub(super) fn count_devices(&mut self, row: Row) {
        let along = self.integers(row, "dimensions").first().copied();
        let along = along.and_then(|along| usize::try_from(along).ok());
        let (Some(along), Some(result)) = (along, self.places.array(row)) else { return };
        let axes = self.axes_of(row).unwrap_or_default();
        let Some(value) = self.with_axes(&[Factor::constant(1)], &axes, 1) else { return };
        if value.first().is_none_or(Factor::is_constant) {
            return;
        }
        for slot in [Some(result), self.operand(row, 0)].into_iter().flatten() {
            if let Some(dim) = slot.at(along).filter(|dim| self.get(*dim).is_none()) {
                self.set(dim, value.clone());
            }
        }
    }

    /// A slice of an all-reduce, or an update that only an all-reduce reads, written as a
    /// reduce-scatter or an all-gather would be: one dimension is divided by the axes.
    pub(super) fn shard(&mut self, row: Row, whole: Slot, part: Slot) {
        let Some(axes) = self.all_reduce_of(row).and_then(|own| self.axes_of(own)) else { return };
        let devices = axes.iter().try_fold(1u64, |all, part| all.checked_mul(part.size));
        let Some(devices) = devices.and_then(|all| i64::try_from(all).ok()).filter(|n| *n > 1)
        else {
            return;
        };
        for (whole, part) in whole.dims().zip(part.dims()) {
            if self.places.size(part).checked_mul(devices) != Some(self.places.size(whole)) {
                continue;
            }
            for (from, to, up) in [(whole, part, -1), (part, whole, 1)] {
                if self.get(to).is_none()
                    && let Some(value) = self.get(from)
                    && let Some(value) = self.with_axes(value, &axes, up)
                {
                    self.set(to, value);
                }
            }
        }
    }

    /// The all-reduce that a slice reads, or that reads an update.
    fn all_reduce_of(&self, row: Row) -> Option<Row> {
        let module = self.module;
        let is_one = |row: &Row| module.opcode(*row) == Opcode::AllReduce;
        if module.opcode(row) == Opcode::DynamicSlice {
            let mut source = Row(*module.operands(row).first()?);
            for _ in 0..4 {
                if !matches!(module.opcode(source), Opcode::Bitcast | Opcode::GetTupleElement) {
                    break;
                }
                source = Row(*module.operands(source).first()?);
            }
            return Some(source).filter(is_one);
        }
        let users = |row: Row| module.users().get(row.0).iter().map(|user| Row(*user));
        let inside = users(row).find(is_one);
        inside.or_else(|| {
            let id = module.computation_of(row);
            let is_root = module.computation(id).root == row.0;
            let callers = module.callers(id).iter().filter(|_| is_root).map(|caller| Row(*caller));
            callers.flat_map(users).find(is_one)
        })
    }

    /// The dimension times the sizes of axes, or divided by them.
    fn with_axes(&self, dim: &[Factor], axes: &[AxisPart], up: i8) -> Option<Vec<Factor>> {
        let mesh = self.mesh?;
        let mut dim = dim.to_vec();
        for part in axes {
            let size = i64::try_from(part.size).ok()?;
            let axis = part.axis;
            let is_whole = mesh.axes().get(axis).is_some_and(|own| own.size == part.size);
            let has = |factor: &&mut Factor| factor.axes.get(axis).is_some_and(|own| *own * up < 0);
            let place = dim.iter_mut().position(|factor| has(&factor)).unwrap_or(0);
            let factor = dim.get_mut(place)?;
            if !is_whole || axis >= MOST_AXES {
                *factor = if up > 0 { factor.scaled(size, 1)? } else { factor.scaled(1, size)? };
                continue;
            }
            let exponent = factor.axes.get_mut(axis)?;
            *exponent = exponent.checked_add(up)?;
            factor.size = if up > 0 {
                factor.size.checked_mul(size)?
            } else if factor.size % size == 0 {
                factor.size / size
            } else {
                return None;
            };
        }
        Some(dim)
    }

    /// For an instruction with dimensions that nothing else determines.
    pub(super) fn weak_rule(&mut self, row: Row) {
        match self.module.opcode(row) {
            Opcode::DynamicSlice | Opcode::Slice | Opcode::Pad => {
                let (Some(operand), Some(result)) = (self.operand(row, 0), self.places.array(row))
                else {
                    return;
                };
                // All devices take the same part, except where its place is computed.
                let is_dealt = self.module.opcode(row) == Opcode::DynamicSlice;
                for (from, to) in operand.dims().zip(result.dims()) {
                    self.fraction(from, to, is_dealt);
                }
            }
            Opcode::DynamicUpdateSlice => {
                let (Some(update), Some(result)) = (self.operand(row, 1), self.places.array(row))
                else {
                    return;
                };
                for (from, to) in result.dims().zip(update.dims()) {
                    self.fraction(from, to, true);
                }
            }
            Opcode::Concatenate => {
                let Some(result) = self.places.array(row) else { return };
                for index in 0..self.module.operands(row).len() {
                    let Some(operand) = self.operand(row, index) else { continue };
                    for (from, to) in result.dims().zip(operand.dims()) {
                        self.fraction(from, to, false);
                    }
                }
            }
            Opcode::CustomCall => {
                // Kernels mostly keep the shape of an operand.
                for leaf in 0..self.places.leaves(row) {
                    let Some(result) = self.places.leaf(row, leaf) else { continue };
                    for index in 0..self.module.operands(row).len() {
                        if let Some(operand) = self.operand(row, index)
                            && self.places.sizes(operand) == self.places.sizes(result)
                        {
                            self.same_arrays(operand, result);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// One of two dimensions is a fraction of the other: the share of some mesh axes if it may be
    /// dealt out to devices and only one choice of axes has the right size, a fixed fraction
    /// otherwise.
    fn fraction(&mut self, a: u32, b: u32, is_dealt: bool) {
        let (from, to) = match (self.get(a).is_some(), self.get(b).is_some()) {
            (true, false) => (a, b),
            (false, true) => (b, a),
            _ => return,
        };
        let (old, new) = (self.places.size(from), self.places.size(to));
        if old <= 0 || new <= 0 || old == new {
            return;
        }
        if old == 1 || new == 1 {
            self.set(to, vec![Factor::constant(new)]);
            return;
        }
        let Some(dim) = self.get(from).map(<[Factor]>::to_vec) else { return };
        let (large, small, up) = if old > new { (old, new, -1) } else { (new, old, 1) };
        if is_dealt
            && large % small == 0
            && let Some(axes) = self.only_axes(large / small)
            && let Some(value) = self.with_axes(&dim, &axes, up)
        {
            self.set(to, value);
            return;
        }
        if let Some(value) = fraction_of(&dim, new, old) {
            self.set(to, value);
        }
    }

    /// The mesh axes whose sizes multiply to `size`, if there is one choice only.
    fn only_axes(&self, size: i64) -> Option<Vec<AxisPart>> {
        let axes = self.mesh?.axes();
        if axes.len() > MOST_AXES {
            return None;
        }
        let mut found = None;
        for choice in 1u32..1 << axes.len() {
            let own = axes.iter().enumerate().filter(|(axis, _)| choice >> axis & 1 == 1);
            let own: Vec<AxisPart> =
                own.map(|(axis, own)| AxisPart { axis, before: 1, size: own.size }).collect();
            if own.iter().any(|part| part.size == 1) {
                continue;
            }
            let product = own.iter().try_fold(1u64, |all, part| all.checked_mul(part.size));
            if product == u64::try_from(size).ok() {
                if found.is_some() {
                    return None;
                }
                found = Some(own);
            }
        }
        found
    }
}
