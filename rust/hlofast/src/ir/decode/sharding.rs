//! Shardings of all generations: device lists, iota tiles, named mesh axes.

use super::iota::{DeviceOrder, Iota};
use super::mesh::{AxisReference, Mesh};
use super::metadata::Metadata;

/// `sharding={...}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharding<'a> {
    /// One sharding; on a tuple-shaped instruction it holds for every leaf.
    Single(Box<LeafSharding<'a>>),
    /// One sharding per leaf.
    Tuple(Vec<LeafSharding<'a>>),
}

/// The sharding of one array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafSharding<'a> {
    /// How the array is placed on the devices.
    pub placement: Placement<'a>,
    /// The group of arrays to which propagation gives equal or similar shardings, if any.
    pub group: Option<ShardGroup>,
    /// Where the sharding comes from.
    pub metadata: Vec<Metadata<'a>>,
}

/// `shard_as N` and `shard_like N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardGroup {
    /// All arrays of the group get exactly the same sharding.
    As(i64),
    /// All arrays of the group get similar shardings.
    Like(i64),
}

/// How partial results are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// By summation.
    #[default]
    Sum,
    /// By the maximum.
    Max,
    /// By the minimum.
    Min,
}

impl Reduction {
    pub(super) fn from_word(word: &[u8]) -> Option<Self> {
        match word {
            b"sum" | b"SUM" => Some(Reduction::Sum),
            b"max" | b"MAX" => Some(Reduction::Max),
            b"min" | b"MIN" => Some(Reduction::Min),
            _ => None,
        }
    }

    /// The word in HLO text.
    pub fn as_str(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Max => "max",
            Reduction::Min => "min",
        }
    }
}

/// The meaning of a trailing dimension of a tile grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubgroupKind {
    /// Devices of the subgroup hold the same data.
    Replicated,
    /// The program partitions the data itself.
    Manual,
    /// One device.
    Maximal,
    /// Each device holds a partial result.
    Unreduced,
}

impl SubgroupKind {
    pub(super) fn from_word(word: &[u8]) -> Option<Self> {
        match word {
            b"replicated" => Some(SubgroupKind::Replicated),
            b"manual" => Some(SubgroupKind::Manual),
            b"maximal" => Some(SubgroupKind::Maximal),
            b"unreduced" => Some(SubgroupKind::Unreduced),
            _ => None,
        }
    }

    /// The word in HLO text.
    pub fn as_str(self) -> &'static str {
        match self {
            SubgroupKind::Replicated => "replicated",
            SubgroupKind::Manual => "manual",
            SubgroupKind::Maximal => "maximal",
            SubgroupKind::Unreduced => "unreduced",
        }
    }
}

/// How an array is placed on the devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement<'a> {
    /// Every device holds the whole array.
    Replicated,
    /// The program partitions the array itself.
    Manual,
    /// Not known yet.
    Unknown,
    /// Every device holds a partial result.
    Unreduced(Reduction),
    /// One device holds the whole array.
    Maximal(i64),
    /// Divided into tiles.
    Tiled(Tiles),
    /// Divided along named mesh axes.
    Named(NamedSharding<'a>),
}

/// A grid of tiles and the devices that hold them. The number of tiles and the number of devices
/// may differ; XLA's parser accepts the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Number of tiles along each dimension of the array, then the sizes of the subgroups.
    pub dimensions: Vec<i64>,
    /// The devices in row-major order of the grid.
    pub devices: DeviceOrder,
    /// The meaning of the trailing dimensions, which are not dimensions of the array.
    pub subgroups: Vec<SubgroupKind>,
}

/// Shardings by axis name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSharding<'a> {
    /// The devices.
    pub mesh: Mesh<'a>,
    /// For each dimension of the array, the axes that divide it, major first.
    pub dimensions: Vec<NamedDimension<'a>>,
    /// Axes along which the array is explicitly replicated.
    pub replicated: Vec<AxisReference<'a>>,
    /// Axes along which devices hold partial results, and how these are combined.
    pub unreduced: Option<(Reduction, Vec<AxisReference<'a>>)>,
    /// Axes along which the program partitions the array itself.
    pub manual: Vec<AxisReference<'a>>,
    /// A word instead of lists: the whole array is `replicated`, `manual` or `unreduced`.
    pub whole: Option<SubgroupKind>,
}

/// The axes that divide one dimension.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedDimension<'a> {
    /// The axes, major first.
    pub axes: Vec<AxisReference<'a>>,
    /// `?`: propagation may add axes.
    pub is_open: bool,
}

impl<'a> Sharding<'a> {
    /// The sharding of leaf `index`.
    pub fn leaf(&self, index: usize) -> Option<&LeafSharding<'a>> {
        match self {
            Sharding::Single(leaf) => Some(leaf),
            Sharding::Tuple(leaves) => leaves.get(index),
        }
    }

    /// The shardings in the text: a single sharding, or one per leaf.
    pub fn leaves(&self) -> &[LeafSharding<'a>] {
        match self {
            Sharding::Single(leaf) => std::slice::from_ref(leaf),
            Sharding::Tuple(leaves) => leaves,
        }
    }

    /// Whether every device holds all of every leaf.
    pub fn is_replicated(&self) -> bool {
        self.leaves().iter().all(LeafSharding::is_replicated)
    }
}

impl LeafSharding<'_> {
    /// Whether every device holds all of the array.
    pub fn is_replicated(&self) -> bool {
        match &self.placement {
            Placement::Replicated => true,
            Placement::Tiled(tiles) => {
                tiles.dimensions.iter().take(tiles.array_rank()).all(|size| *size == 1)
                    && tiles.subgroups.iter().all(|kind| *kind == SubgroupKind::Replicated)
            }
            Placement::Named(named) => {
                let lookup = named.mesh.lookup();
                let cut = |axes: &[AxisReference<'_>]| {
                    axes.iter().any(|axis| lookup.size(axis) != Some(1))
                };
                let plain = matches!(named.whole, None | Some(SubgroupKind::Replicated));
                plain
                    && named.mesh.maximal.is_none()
                    && !named.dimensions.iter().any(|dimension| cut(&dimension.axes))
                    && !cut(&named.manual)
                    && !named.unreduced.as_ref().is_some_and(|(_, axes)| cut(axes))
            }
            _ => false,
        }
    }

    /// Number of tiles along each dimension of the array; None if the array is not divided or the
    /// sharding does not tell its number of dimensions.
    pub fn tile_dimensions(&self) -> Option<Vec<i64>> {
        match &self.placement {
            Placement::Tiled(tiles) => {
                Some(tiles.dimensions.iter().take(tiles.array_rank()).copied().collect())
            }
            Placement::Named(named) if named.whole.is_none() && named.mesh.maximal.is_none() => {
                let lookup = named.mesh.lookup();
                let tiles = |dimension: &NamedDimension<'_>| {
                    let mut sizes = dimension.axes.iter().map(|axis| lookup.size(axis));
                    sizes.try_fold(1i64, |tiles, size| tiles.checked_mul(size?))
                };
                named.dimensions.iter().map(tiles).collect()
            }
            _ => None,
        }
    }

    /// Number of devices that the sharding names; None if it names no devices.
    pub fn device_count(&self) -> Option<u64> {
        match &self.placement {
            Placement::Maximal(_) => Some(1),
            Placement::Tiled(tiles) => tiles.devices.len(),
            Placement::Named(named) => named.mesh.device_count(),
            _ => None,
        }
    }

    /// The devices in row-major order of the tile grid (subgroups are its last dimension), None for
    /// more than `limit` devices or if the sharding names no devices.
    pub fn devices(&self, limit: usize) -> Option<Vec<i64>> {
        let count = self.device_count()?;
        if count > u64::try_from(limit).ok()? {
            return None;
        }
        let look_up = |order: &Iota, mesh: Option<&Mesh<'_>>| {
            let reader = order.reader()?;
            let device = |index| {
                let position = reader.get(index)?;
                mesh.map_or_else(|| i64::try_from(position).ok(), |mesh| mesh.device(position))
            };
            (0..count).map(device).collect()
        };
        match &self.placement {
            Placement::Maximal(device) => Some(vec![*device]),
            Placement::Tiled(Tiles { devices: DeviceOrder::List(list), .. }) => Some(list.clone()),
            Placement::Tiled(Tiles { devices: DeviceOrder::Iota(order), .. }) => {
                look_up(order, None)
            }
            Placement::Named(named) => look_up(&named.order()?, Some(&named.mesh)),
            _ => None,
        }
    }
}

impl Tiles {
    /// Number of dimensions that belong to the array.
    pub fn array_rank(&self) -> usize {
        self.dimensions.len().saturating_sub(self.subgroups.len())
    }
}

impl NamedSharding<'_> {
    /// The order of mesh positions: axes of the dimensions first, then all other axes in mesh
    /// order.
    fn order(&self) -> Option<Iota> {
        let split = self.mesh.split(self.dimensions.iter().flat_map(|d| &d.axes))?;
        let mut order = split.dimensions.clone();
        order.extend(split.others());
        Some(split.iota(order))
    }
}
