//! Analyses of the graph alone: how often instructions run, and their phase and scope.

pub mod attribution;
mod clones;
pub mod contexts;
mod dataflow;
mod follow;
pub mod frames;
mod layers;
mod linear;
pub mod markers;
mod model_code;
pub(crate) mod moved;
mod names;
pub mod origin;
pub mod phase;
mod ranks;
pub mod scope;
pub mod source;
mod structure;
pub mod trip_count;
mod updates;
mod values;
mod whose;

pub use attribution::{Attribution, AttributionOptions, attribution};
pub(crate) use clones::{has_compiler_clones, is_compiler_clone};
pub use contexts::{Contexts, Edge, Node, NodeId, multiplicities};
pub use frames::{FrameChoice, SourceOptions, Sources, is_library};
pub use layers::without_layer_numbers;
pub use markers::{Section, Sections, sections};
pub use origin::{End, Origins, Place, Through, origins};
pub use phase::{Phase, RuleError, Rules};
pub use scope::ScopeTree;
pub use source::source_of;
pub use structure::Basis;
pub(crate) use updates::updates;
pub(crate) use values::Values;
pub use whose::Whose;
