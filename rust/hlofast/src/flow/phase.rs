//! Phases of a training step, derived from JAX's operation names.
//!
//! | a full name contains | phase |
//! |---|---|
//! | `rematted_computation` | recompute |
//! | `remat(...)` below `transpose(...)` (2022 and 2023) | recompute or backward, by data flow |
//! | `transpose(...)` | backward |
//! | `jvp(...)` and none of the above | forward |
//! | a call such as `jit(step)` first and none of the above | not differentiated: see below |
//! | anything else, or no name | unattributed |
//!
//! Undifferentiated work is forward in a module without backward work (inference). With backward
//! work it is optimizer work; see `dataflow` and `model_code` for the exceptions. `remat2` or `remat` as the last
//! component of an undifferentiated name is JAX's barrier around residuals, which computes nothing
//! and is unattributed. An instruction that a compiler named `x.remat` is recompute if only
//! backward work uses it; see `clones`.

use super::scope::Marks;
use crate::ir::Module;
use regex_lite::Regex;
use std::fmt;

/// The part of a training step that an instruction belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// The primal computation, and all of an inference program.
    Forward,
    /// Cotangents and gradients.
    Backward,
    /// Forward work repeated for the backward pass.
    Recompute,
    /// Updates from the gradients.
    Optimizer,
    /// Unknown from the text.
    #[default]
    Unattributed,
}

impl Phase {
    /// Every phase, by its code.
    pub const ALL: [Phase; 5] =
        [Phase::Forward, Phase::Backward, Phase::Recompute, Phase::Optimizer, Phase::Unattributed];

    /// The name used in tables, rules and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Recompute => "recompute",
            Phase::Optimizer => "optimizer",
            Phase::Unattributed => "unattributed",
        }
    }

    /// The phase called `word`.
    pub fn from_word(word: &str) -> Option<Phase> {
        Phase::ALL.into_iter().find(|phase| phase.as_str() == word)
    }
}

/// The phase that a name alone indicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum NameClass {
    Forward,
    Backward,
    Recompute,
    /// Recompute or backward: data flow decides.
    Either,
    /// A JAX name without differentiation: the module decides.
    Plain,
    /// The same, of code that is differentiated elsewhere: see `model_code`.
    Model,
    /// `Plain`, of a product on a line of differentiated ones: model code if it multiplies a value that does
    /// not depend on the backward pass.
    Line,
    Unknown,
}

impl NameClass {
    pub fn of(marks: Marks) -> NameClass {
        if marks.has(Marks::REMATTED) {
            NameClass::Recompute
        } else if marks.has(Marks::REMAT) {
            NameClass::Either
        } else if marks.has(Marks::TRANSPOSE) {
            NameClass::Backward
        } else if marks.has(Marks::JVP) {
            NameClass::Forward
        } else if marks.has(Marks::CALL) && !marks.has(Marks::BARRIER) {
            NameClass::Plain
        } else {
            NameClass::Unknown
        }
    }
}

/// A user's rules: the phase of instructions whose full name matches a pattern.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<(Regex, Phase)>,
}

impl PartialEq for Rules {
    /// Equal if patterns, phases and order are equal.
    fn eq(&self, other: &Self) -> bool {
        let same = |(left, right): (&(Regex, Phase), &(Regex, Phase))| {
            left.0.as_str() == right.0.as_str() && left.1 == right.1
        };
        self.rules.len() == other.rules.len() && self.rules.iter().zip(&other.rules).all(same)
    }
}

/// A pattern that is not a regular expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Index of the rule, from 0.
    pub index: usize,
    /// What is wrong with the pattern.
    pub message: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: {}", self.index, self.message)
    }
}

impl std::error::Error for RuleError {}

impl Rules {
    /// Rules in order of precedence; the first whose pattern matches anywhere in the name applies.
    /// Patterns are regular expressions without look-around and back-references, so matching is
    /// linear in the name.
    pub fn new<'p>(rules: impl IntoIterator<Item = (&'p str, Phase)>) -> Result<Rules, RuleError> {
        let compile = |(index, (pattern, phase)): (usize, (&str, Phase))| {
            let regex = Regex::new(pattern);
            let regex = regex.map_err(|e| RuleError { index, message: e.to_string() })?;
            Ok((regex, phase))
        };
        let rules: Result<_, _> = rules.into_iter().enumerate().map(compile).collect();
        Ok(Rules { rules: rules? })
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The phase that the rules give to a scope's full name.
    pub(super) fn phase(
        &self,
        module: &Module,
        scopes: &super::ScopeTree,
        scope: u32,
    ) -> Option<Phase> {
        if self.is_empty() {
            return None;
        }
        let path = scopes.path(module, scope);
        let path = String::from_utf8_lossy(&path);
        self.rules.iter().find(|(regex, _)| regex.is_match(&path)).map(|(_, phase)| *phase)
    }
}
