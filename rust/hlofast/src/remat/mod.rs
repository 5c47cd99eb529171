//! Rematerialisation: recomputed instructions, residuals, and rewritten modules that recompute
//! values instead of keeping them.
//!
//! Start at [`report`], [`plan()`], [`rewrite()`] and, for checkpoint policies of scans,
//! [`policy::Policies`].

mod candidates;
mod counted;
mod dependence;
mod described;
mod handed_on;
mod plan;
pub mod policy;
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
