//! Converts shardings of all generations to a partition spec: the mesh axes of each dimension.

use super::axes::{AxisPart, Mismatch};
use super::derive::of_written;
use super::digits::{Digit, Permutation, numbers};
use super::groups::EXPANSION_LIMIT;
use super::mesh::{Mesh, MeshAxis, Order};
use crate::ir::decode::{
    AxisReference, DeviceOrder, LeafSharding, NamedSharding, Placement, Reduction, SubgroupKind,
    Tiles,
};

/// The axes that shard one dimension of an array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DimensionSpec {
    /// The axes, major first.
    pub axes: Vec<AxisPart>,
    /// Whether propagation may add axes.
    pub is_open: bool,
}

/// How an array is sharded over a mesh. It is replicated along all axes not named here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionSpec {
    /// The axes of each dimension; empty if the array is replicated and the sharding does not state
    /// the rank.
    pub dimensions: Vec<DimensionSpec>,
    /// Axes along which devices hold partial results, in mesh order.
    pub unreduced: Vec<AxisPart>,
    /// How the partial results are combined.
    pub reduction: Reduction,
    /// Axes that the program handles manually, in mesh order.
    pub manual: Vec<AxisPart>,
}

impl Mesh {
    /// The sharding expressed in axes of this mesh: the same tiles on the same devices. The error
    /// says why this is impossible.
    pub fn partition_spec(&self, sharding: &LeafSharding<'_>) -> Result<PartitionSpec, Mismatch> {
        match &sharding.placement {
            Placement::Replicated => Ok(PartitionSpec::default()),
            Placement::Manual => Ok(PartitionSpec { manual: self.all(), ..Default::default() }),
            Placement::Unreduced(reduction) => Ok(self.all_unreduced(*reduction)),
            Placement::Unknown => Err(Mismatch::Unknown),
            Placement::Maximal(device) => Err(Mismatch::SingleDevice(*device)),
            Placement::Tiled(tiles) => self.tiles_spec(tiles),
            Placement::Named(named) => self.named_spec(named),
        }
    }

    /// All axes with more than one device.
    fn all(&self) -> Vec<AxisPart> {
        let axes = self.axes().iter().enumerate().filter(|(_, axis)| axis.size > 1);
        axes.map(|(axis, MeshAxis { size, .. })| AxisPart { axis, before: 1, size: *size })
            .collect()
    }

    fn all_unreduced(&self, reduction: Reduction) -> PartitionSpec {
        PartitionSpec { unreduced: self.all(), reduction, ..Default::default() }
    }

    fn tiles_spec(&self, tiles: &Tiles) -> Result<PartitionSpec, Mismatch> {
        let sizes = tiles.dimensions.iter().map(|size| u64::try_from(*size).ok());
        let sizes: Vec<u64> = sizes.collect::<Option<_>>().ok_or(Mismatch::Malformed)?;
        let total = sizes.iter().try_fold(1u64, |total, size| total.checked_mul(*size));
        let total = total.filter(|total| *total > 0).ok_or(Mismatch::Malformed)?;
        if tiles.devices.len() != Some(total) {
            return Err(Mismatch::Malformed);
        }
        self.check_count(total)?;
        let is_replicated_last = tiles.subgroups.last() == Some(&SubgroupKind::Replicated);
        let block = if is_replicated_last { sizes.last().copied().unwrap_or(1) } else { 1 };
        let order = self
            .by_digits(&tiles.devices)
            .map_or_else(|| self.by_list(&tiles.devices, total, block), Ok)?;
        let mut spec = PartitionSpec::default();
        let mut stride = total;
        for (i, size) in sizes.iter().enumerate() {
            stride /= size;
            let axes = match order.devices_in_order(Digit { stride, size: *size }) {
                _ if *size == 1 => Vec::new(),
                Some(positions) => self.parts_in_order(&positions).ok_or(Mismatch::Irregular)?,
                None => return Err(Mismatch::Irregular),
            };
            match tiles.subgroups.get(i.wrapping_sub(tiles.array_rank())) {
                None => spec.dimensions.push(DimensionSpec { axes, is_open: false }),
                Some(SubgroupKind::Replicated) => {}
                Some(SubgroupKind::Manual) => spec.manual.extend(axes),
                Some(SubgroupKind::Unreduced) => spec.unreduced.extend(axes),
                Some(SubgroupKind::Maximal) => return Err(Mismatch::Irregular),
            }
        }
        spec.manual.sort_unstable();
        spec.unreduced.sort_unstable();
        Ok(spec)
    }

    fn check_count(&self, total: u64) -> Result<(), Mismatch> {
        let count = self.device_count();
        let per_slice = self.slices().map(|slices| count / slices);
        if total == count || per_slice == Some(total) {
            return Ok(());
        }
        Err(Mismatch::DeviceCount { groups: total, mesh: count })
    }

    /// Maps places in the tile grid to positions in the mesh by digits.
    fn by_digits(&self, devices: &DeviceOrder) -> Option<Permutation> {
        let Order::Digits(order) = self.order() else { return None };
        Permutation::from_order(devices)?.then(order)
    }

    /// Like `by_digits`, but looks up every device; the order within runs of `block` is ignored.
    fn by_list(
        &self,
        devices: &DeviceOrder,
        total: u64,
        block: u64,
    ) -> Result<Permutation, Mismatch> {
        let mut list = match devices {
            DeviceOrder::List(list) => numbers(list).ok_or(Mismatch::Malformed)?,
            DeviceOrder::Iota(iota) => {
                let is_listed = matches!(self.order(), Order::Table { .. });
                if !is_listed && total > EXPANSION_LIMIT as u64 {
                    return Err(Mismatch::TooLarge);
                }
                let reader = Permutation::of_iota(iota).ok_or(Mismatch::Malformed)?;
                (0..total).map(|place| reader.device(place)).collect()
            }
        };
        for device in &mut list {
            let unknown = Mismatch::UnknownDevice(i64::try_from(*device).unwrap_or(i64::MAX));
            *device = self.position(*device).ok_or(unknown)?;
        }
        let block = usize::try_from(block.max(1)).map_err(|_| Mismatch::TooLarge)?;
        for run in list.chunks_mut(block) {
            run.sort_unstable();
        }
        Permutation::of_list(&list).ok_or(Mismatch::Irregular)
    }

    /// The axes that make up these digits of the position, in the order of the digits.
    fn parts_in_order(&self, positions: &[Digit]) -> Option<Vec<AxisPart>> {
        let mut parts: Vec<AxisPart> = Vec::new();
        for digit in positions {
            for part in self.parts_of_positions(std::slice::from_ref(digit))? {
                match parts.last_mut() {
                    Some(above)
                        if above.axis == part.axis && above.before * above.size == part.before =>
                    {
                        above.size *= part.size;
                    }
                    _ => parts.push(part),
                }
            }
        }
        Some(parts)
    }

    fn named_spec(&self, named: &NamedSharding<'_>) -> Result<PartitionSpec, Mismatch> {
        if let Some(device) = named.mesh.maximal {
            return Err(Mismatch::SingleDevice(device));
        }
        let reduction = named.unreduced.as_ref().map_or(Reduction::Sum, |(op, _)| *op);
        match named.whole {
            Some(SubgroupKind::Replicated) => return Ok(PartitionSpec::default()),
            Some(SubgroupKind::Manual) => {
                return Ok(PartitionSpec { manual: self.all(), ..Default::default() });
            }
            Some(SubgroupKind::Unreduced) => return Ok(self.all_unreduced(reduction)),
            Some(SubgroupKind::Maximal) => return Err(Mismatch::Malformed),
            None => {}
        }
        let cuts_nothing = named.dimensions.iter().all(|dimension| dimension.axes.is_empty())
            && named.manual.is_empty()
            && named.unreduced.as_ref().is_none_or(|(_, axes)| axes.is_empty());
        let unnamed = DimensionSpec::default();
        if cuts_nothing {
            let open = |is_open| DimensionSpec { is_open, ..unnamed.clone() };
            let dimensions = named.dimensions.iter().map(|d| open(d.is_open)).collect();
            return Ok(PartitionSpec { dimensions, ..Default::default() });
        }
        let theirs = of_written(&named.mesh).ok_or(Mismatch::Malformed)?;
        self.check_count(theirs.device_count())?;
        let order = match (theirs.order(), self.order()) {
            (Order::Digits(theirs), Order::Digits(ours)) => {
                theirs.then(ours).ok_or(Mismatch::Irregular)?
            }
            _ => {
                let total = theirs.device_count();
                let in_order = || DeviceOrder::Iota(Permutation::identity(total).to_iota());
                self.by_list(&theirs.device_order().unwrap_or_else(in_order), total, 1)?
            }
        };
        let lookup = named.mesh.lookup();
        let axes = |references: &[AxisReference<'_>]| {
            let mut parts: Vec<AxisPart> = Vec::new();
            for reference in references {
                let axis = lookup.axis(reference).ok_or(Mismatch::Malformed)?;
                let full = theirs.axes().get(axis).ok_or(Mismatch::Malformed)?.size;
                let part = match reference.part {
                    None => AxisPart { axis, before: 1, size: full },
                    Some((before, size)) => AxisPart {
                        axis,
                        before: u64::try_from(before).map_err(|_| Mismatch::Malformed)?,
                        size: u64::try_from(size).map_err(|_| Mismatch::Malformed)?,
                    },
                };
                let digit = theirs.position_digit(&part).ok_or(Mismatch::Malformed)?;
                if digit.size > 1 {
                    let positions = order.devices_in_order(digit).ok_or(Mismatch::Irregular)?;
                    parts.extend(self.parts_in_order(&positions).ok_or(Mismatch::Irregular)?);
                }
            }
            Ok(parts)
        };
        let mut spec = PartitionSpec { reduction, ..Default::default() };
        for dimension in &named.dimensions {
            let axes = axes(&dimension.axes)?;
            spec.dimensions.push(DimensionSpec { axes, is_open: dimension.is_open });
        }
        spec.manual = axes(&named.manual)?;
        if let Some((_, references)) = &named.unreduced {
            spec.unreduced = axes(references)?;
        }
        spec.manual.sort_unstable();
        spec.unreduced.sort_unstable();
        Ok(spec)
    }

    /// `P('data', None, ('x', 'model'), unreduced={'y'})`.
    pub fn spec_text(&self, spec: &PartitionSpec) -> String {
        let quoted = |part: &AxisPart| format!("'{}'", self.part_text(part));
        let join = |parts: &[AxisPart]| parts.iter().map(quoted).collect::<Vec<_>>().join(", ");
        let dimension =
            |dimension: &DimensionSpec| match (dimension.axes.as_slice(), dimension.is_open) {
                ([], false) => "None".to_owned(),
                ([], true) => "?".to_owned(),
                ([only], false) => quoted(only),
                (axes, false) => format!("({})", join(axes)),
                (axes, true) => format!("({}, ?)", join(axes)),
            };
        let mut words: Vec<String> = spec.dimensions.iter().map(dimension).collect();
        if !spec.unreduced.is_empty() {
            let op = match spec.reduction {
                Reduction::Sum => "",
                other => other.as_str(),
            };
            words.push(format!("unreduced={op}{{{}}}", join(&spec.unreduced)));
        }
        if !spec.manual.is_empty() {
            words.push(format!("manual={{{}}}", join(&spec.manual)));
        }
        format!("P({})", words.join(", "))
    }
}
