//! Sources of text, and scanning. This room knows nothing of HLO's structure.

mod block;
mod cursor;
mod decompress;
mod excerpt;
mod find;
mod foreign;
mod fragment;
pub(crate) mod kernel;
mod lines;
mod open;
mod outline;
mod piece;
mod prefix;
mod source;
mod span;

pub(crate) use block::{is_computation, is_instruction, line};
pub use cursor::{Cursor, is_identifier_byte, is_identifier_start};
pub use decompress::{Compression, DEFAULT_MAX_BYTES, decompress, decompress_head};
pub use excerpt::{ErrorPlace, render};
pub use find::{Cleaned, Found, find_modules, starts_with_module};
pub use foreign::explain as explain_no_module;
pub use fragment::{Pieces, fragment};
pub use lines::LineIndex;
pub use open::{FoundModule, OpenOptions, modules, open, read_one, unpack};
pub(crate) use outline::{Outline, OutlinedCall, OutlinedHeader, OutlinedLine};
pub use source::{LineOrigin, SharedBytes, Source};
pub use span::Span;
