//! Why a module cannot be rewritten.

use crate::edit::EditError;
use crate::ir::{Module, Row};
use std::fmt;

/// Why a module cannot be rewritten as requested.
#[derive(Clone, Debug)]
pub enum RewriteError {
    /// The row does not exist, or the text only implies it.
    NoSuchInstruction {
        /// The row.
        row: Row,
    },
    /// An instruction cannot be rewritten as requested.
    Refused {
        /// The instruction's row.
        row: Row,
        /// Its name.
        name: String,
        /// The reason, in which "it" means the instruction.
        reason: &'static str,
    },
    /// The operand of a copy is overwritten before the copy would run.
    Overwritten {
        /// The row of the operand.
        row: Row,
        /// Its name.
        name: String,
        /// The name of the instruction that overwrites it.
        by: String,
    },
    /// Two copies would have to wait for each other.
    Cycle,
    /// The edits do not fit the text.
    Edit(EditError),
}

impl RewriteError {
    pub(super) fn new(module: &Module, row: Row, reason: &'static str) -> Self {
        let name = String::from_utf8_lossy(module.instruction_name(row)).into_owned();
        RewriteError::Refused { row, name, reason }
    }

    pub(super) fn overwritten(module: &Module, row: Row, by: Row) -> Self {
        let name = |row| String::from_utf8_lossy(module.instruction_name(row)).into_owned();
        RewriteError::Overwritten { row, name: name(row), by: name(by) }
    }
}

impl fmt::Display for RewriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RewriteError::NoSuchInstruction { row } => {
                write!(f, "there is no instruction {} in the text", row.0)
            }
            RewriteError::Refused { name, reason, .. } => write!(f, "%{name}: {reason}"),
            RewriteError::Overwritten { name, by, .. } => {
                write!(f, "%{name}: %{by} takes its memory before a copy could read it")
            }
            RewriteError::Cycle => write!(f, "two copies would have to wait for each other"),
            RewriteError::Edit(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for RewriteError {}
