//! What analyses are told about a run and the text does not say.

use crate::comms::Mesh;
use crate::cost;
use crate::flow::AttributionOptions;
use crate::time::Device;

/// What is known of a run besides the text. Nothing of it is needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    /// How costs are counted: XLA's way or as executed, whose sizes of shapes, what custom calls
    /// cost.
    pub cost: cost::Options,
    /// How phases are found: rules that are tried before names.
    pub attribution: AttributionOptions,
    /// The devices as a mesh; without it the mesh that the text speaks of.
    pub mesh: Option<Mesh>,
    /// The chip.
    pub device: Option<Device>,
    /// Bytes of memory that there are on a device.
    pub hbm: Option<i64>,
}
