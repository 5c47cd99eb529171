//! Facts about a run that the text does not contain.

use crate::comms::Mesh;
use crate::cost;
use crate::flow::{AttributionOptions, SourceOptions};
use crate::time::Device;

/// Facts about a run that the text does not contain, and choices of the names to show. All are
/// optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    /// How costs are counted: XLA's way or as executed, the rule for shape sizes, and costs of
    /// custom calls.
    pub cost: cost::Options,
    /// How phases are found: rules that apply before names.
    pub attribution: AttributionOptions,
    /// The devices as a mesh; None uses the mesh derived from the text.
    pub mesh: Option<Mesh>,
    /// The chip.
    pub device: Option<Device>,
    /// Memory of one device, in bytes.
    pub hbm: Option<i64>,
    /// The frame of a stack that tables show, and which files belong to libraries.
    pub sources: SourceOptions,
    /// Whether scopes leave out the numbers of layers, so that layers are summed as one.
    pub merges_layers: bool,
}
