//! What follows from the graph alone: how often instructions run, and whom they belong to.

mod linear;
mod trace;
pub mod trip_count;
