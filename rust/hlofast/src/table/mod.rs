//! Tables: the results of analyses as named columns, and their serialised forms.

mod buffers;
mod changes;
mod collectives;
mod columns;
pub mod common;
mod costs;
mod facts;
mod field;
mod matmuls;
mod measured;
mod memory_files;
mod modules;
mod packed;
mod parquet;
mod planned;
mod profiled;
mod remat;
mod scopes;
mod shared;
mod staged;
mod text;
mod timed;

pub use buffers::buffers;
pub use changes::{changes, pairs};
pub use collectives::Sent;
pub use columns::{Columns, Texts, Values};
pub use costs::{
    branches, computation_costs, cost_groups, departures, loops, memory_spaces, unpriced,
};
pub use facts::{Origin, narrow, number, row_or_none, shape_text, write_index};
pub use field::{Field, Kind};
pub use matmuls::matmuls;
pub use measured::{measured_collectives, runs, unjoined};
pub use memory_files::memory_file;
pub use modules::{calls, computations, findings, instructions};
pub use parquet::{of_parquet, parquet, parquet_without};
pub use planned::{candidates, savable};
pub use profiled::{
    device_field, duration_field, host_field, profiled_devices, profiled_launches, profiled_lines,
    profiled_modules, profiled_programs, profiled_steps, seconds, start_field,
};
pub use remat::{gathers, recomputed, remat, residuals};
pub use scopes::{SCOPE_BYTES, ScopeTexts};
pub use shared::{shared_arrays, shared_products};
pub use staged::{cross_mesh, divisions, markers, sections, stage_values, stash};
pub(crate) use text::json_text;
pub use text::{csv, json_lines};
pub use timed::{communications, shown_loops, tracks};
