//! Dump directories: what `--xla_dump_to` and its relatives leave behind.
//!
//! [`name`] says what a file is by its name, [`sniff`] by its first bytes; [`walk()`] finds the
//! files, [`group`] makes programs of them, [`Survey`] is all of it; [`store`] has their bytes, [`read()`] reads one file and
//! [`bulk`] many.

mod analyse;
pub mod bulk;
pub mod group;
mod host;
mod kind;
pub mod name;
mod neighbours;
mod read;
mod repeated;
mod rows;
pub mod sniff;
pub mod store;
mod suffix;
mod survey;
mod target;
pub mod walk;

pub use analyse::{
    AnalysisOptions, Beside, ModuleTables, OutOfTime, Place, TableKind, Tables, analyse,
    hexadecimal,
};
pub use group::{Program, Programs, programs};
pub use kind::{Kind, Stage, Status};
pub use name::FileName;
pub use neighbours::Neighbours;
pub use read::{Outcome, ReadOptions, file_rows, read};
pub use repeated::Repeated;
pub use rows::{columns_of, program_rows};
pub use survey::Survey;
pub use walk::{Found, Trouble, walk};
