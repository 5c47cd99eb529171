//! Dump directories: the files that `--xla_dump_to` and related flags write.
//!
//! [`name`] identifies a file by its name, [`sniff`] by its first bytes; [`walk()`] finds the
//! files, [`group`] forms programs, and [`Survey`] combines these; [`store`] provides bytes,
//! [`read()`] reads one file and [`bulk`] many.

mod analyse;
pub mod bulk;
pub mod group;
mod host;
mod kind;
pub mod name;
mod names;
mod neighbours;
mod profiles;
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
pub use names::{AxisNames, MeshesBefore, header_mesh};
pub use neighbours::Neighbours;
pub use profiles::{Run, profiles};
pub use read::{Outcome, ReadOptions, file_rows, read};
pub use repeated::Repeated;
pub use rows::{columns_of, program_rows};
pub use survey::Survey;
pub use walk::{Found, Trouble, walk};
