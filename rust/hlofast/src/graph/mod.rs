//! What follows from the graph alone: how often instructions run, and whom they belong to.

pub mod attribution;
pub mod contexts;
mod dataflow;
mod linear;
mod names;
pub mod phase;
pub mod scope;
mod trace;
pub mod trip_count;
mod values;

pub use attribution::{Attribution, AttributionOptions, attribution};
pub use contexts::{Contexts, Edge, Node, NodeId, multiplicities};
pub use phase::{Phase, RuleError, Rules};
pub use scope::ScopeTree;
