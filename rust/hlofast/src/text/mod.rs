//! Text: where bytes come from and how they are scanned. Knows nothing of HLO's structure.

mod cursor;
pub(crate) mod kernel;
mod decompress;
mod excerpt;
mod lines;
mod source;
mod span;

pub use cursor::{Cursor, is_identifier_byte, is_identifier_start};
pub use decompress::{Compression, DEFAULT_MAX_BYTES, decompress};
pub use excerpt::{ErrorPlace, render};
pub use lines::LineIndex;
pub use source::{SharedBytes, Source};
pub use span::Span;
