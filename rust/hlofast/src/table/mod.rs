//! Tables: the results of analyses as named columns, and columns in forms that others read.

mod buffers;
mod changes;
mod collectives;
mod columns;
pub mod common;
mod facts;
mod field;
mod matmuls;
mod modules;
mod packed;
mod remat;
mod scopes;
mod text;

pub use buffers::buffers;
pub use changes::{changes, pairs};
pub use collectives::Sent;
pub use columns::{Columns, Texts, Values};
pub use facts::{Origin, index_text, narrow, number, row_or_none, shape_text};
pub use field::{Field, Kind};
pub use matmuls::matmuls;
pub use modules::{computations, findings, instructions};
pub use remat::{gathers, recomputed, remat, residuals};
pub use scopes::{SCOPE_BYTES, ScopeTexts};
pub(crate) use text::json_text;
pub use text::{csv, json_lines};
