//! What several test files share.

pub mod compare;
pub mod exercise;
pub mod generate;
pub mod invariants;
pub mod loops;
pub mod memory_file;
pub mod mutate;
pub mod profile;
pub mod reading;
pub mod recipe;
pub mod remat;
pub mod round_trip;
pub mod symbolic;
pub mod wire;
