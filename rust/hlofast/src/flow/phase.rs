//! Phases of a training step, as JAX's operation names tell them.
//!
//! | a full name has | phase |
//! |---|---|
//! | `rematted_computation` | recompute |
//! | `remat(...)` below `transpose(...)` (2022 and 2023) | recompute or backward, by data flow |
//! | `transpose(...)` | backward |
//! | `jvp(...)` and none of these | forward |
//! | a call such as `jit(step)` first, none of these | not differentiated: see below |
//! | anything else, or nothing | unattributed |
//!
//! What is not differentiated is forward work in a module without backward work (inference). With
//! backward work it is optimizer work, see `dataflow` for the exceptions. `remat2` and `remat`
//! as the last component of an undifferentiated name are JAX's barrier around residuals, which
//! computes nothing: unattributed. What a compiler called `x.remat` is recomputed work where only
//! backward work uses it, see `clones`.

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
    /// What becomes of the gradients.
    Optimizer,
    /// The text does not tell.
    #[default]
    Unattributed,
}

impl Phase {
    /// Every phase, by its code.
    pub const ALL: [Phase; 5] =
        [Phase::Forward, Phase::Backward, Phase::Recompute, Phase::Optimizer, Phase::Unattributed];

    /// The word tables, rules and JSON use.
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

/// What a name alone tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum NameClass {
    Forward,
    Backward,
    Recompute,
    /// Recompute or backward: data flow decides.
    Either,
    /// JAX's, not differentiated: the module decides.
    Plain,
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

/// A user's rules: the phase of instructions whose full name a pattern matches.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<(Regex, Phase)>,
}

impl PartialEq for Rules {
    /// The same patterns in the same order for the same phases.
    fn eq(&self, other: &Self) -> bool {
        let same = |(one, other): (&(Regex, Phase), &(Regex, Phase))| {
            one.0.as_str() == other.0.as_str() && one.1 == other.1
        };
        self.rules.len() == other.rules.len() && self.rules.iter().zip(&other.rules).all(same)
    }
}

/// A pattern that is no regular expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Which rule, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: {}", self.index, self.message)
    }
}

impl std::error::Error for RuleError {}

impl Rules {
    /// Rules in the order in which they are tried; the first whose pattern is found anywhere in
    /// the name decides. Patterns are regular expressions without look-around and
    /// back-references, so that matching takes time linear in the name.
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

    /// The phase that the rules give the scope, which is a full name.
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
