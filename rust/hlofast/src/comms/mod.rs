//! Communication between devices: meshes, device groups of collectives, and the payload, mesh axes,
//! tensor kind and call count of each collective.
//!
//! Start at [`collectives`] for payloads, at [`Mesh`] for axes, at [`along`] for both.

mod along;
mod alpa;
mod axes;
mod axis_bits;
mod collective;
mod derive;
mod digits;
mod find;
mod fit;
mod groups;
mod kind;
mod loops;
mod mesh;
mod moved;
mod moves;
mod offsets;
mod partition;
mod partitioned;
mod permute;
mod shardy;
mod spellings;
mod varying;

pub use along::{Along, Network, along};
pub use alpa::{AlpaCounters, alpa_counters, grad_sync_channel_ids};
pub use axes::{AxisMatch, AxisPart, Mismatch};
pub(crate) use axis_bits::{MOST_AXES, bits, shifts};
pub use collective::{
    Collective, Collectives, CrossMeshReduction, collectives, cross_mesh_reduction,
};
pub use derive::{DerivedMesh, MeshSource, derive_mesh};
pub use find::{host_transfers, is_cross_mesh_reduce};
pub use fit::{device_count, fits, is_named_by};
pub use groups::{DeviceGroups, GroupContext, GroupMode, GroupSpan};
pub use kind::CollectiveKind;
pub(crate) use loops::LoopPlaces;
pub use loops::Overlap;
pub use mesh::{AxisSpan, Mesh, MeshAxis, MeshError};
pub use moved::{Moved, Piece};
pub(crate) use offsets::{Device, Offsets, devices};
pub use partition::{DimensionSpec, PartitionSpec};
pub(crate) use partitioned::{Partitioned, axes_text, donated};
pub use permute::PermuteMatch;
pub(crate) use varying::Varying;
