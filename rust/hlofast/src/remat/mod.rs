//! Rematerialisation: recomputed instructions, residuals, and rewritten modules that recompute
//! values instead of keeping them.
//!
//! Start at [`report`], [`plan()`] and [`rewrite()`].

mod candidates;
mod counted;
mod dependence;
mod handed_on;
mod plan;
mod report;
mod residuals;
pub mod rewrite;
mod twins;

pub use candidates::{Candidate, candidates};
pub use counted::Counting;
pub use dependence::parameters_read;
pub use plan::{Entry, Plan, PlanOptions, Price, measure, plan};
pub use report::{Gather, GatherFate, Recomputed, RecomputedBy, Report, report};
pub use residuals::{Residual, ResidualKind, residuals};
pub use rewrite::{Copied, Recompute, RewriteError, Rewritten, Use, rewrite};
