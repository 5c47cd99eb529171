//! Rematerialisation: what is computed again, what is kept for the backward pass instead, and new
//! modules that compute again what others keep.
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
