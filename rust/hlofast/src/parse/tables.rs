//! The tables of stack frames after a module's header.

use super::reader::Reader;
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::{Cursor, Span};

impl Reader<'_> {
    /// Reads `FileNames`, `FunctionNames`, `FileLocations`, `StackFrames`: all four or none.
    pub(super) fn read_tables(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        const KEYWORDS: [&[u8]; 4] =
            [b"FileNames", b"FunctionNames", b"FileLocations", b"StackFrames"];
        let mut sections = [Span::EMPTY; 4];
        for (index, keyword) in KEYWORDS.iter().enumerate() {
            cursor.skip_space()?;
            let start = cursor.position();
            if cursor.identifier() != *keyword {
                cursor.set_position(start);
                if index == 0 {
                    return Ok(());
                }
                let shown = String::from_utf8_lossy(keyword);
                return Err(ParseError::new(
                    ErrorKind::InvalidHeader,
                    Span::new(start, (start + 1).min(cursor.end())),
                    format!("expected the table {shown}: all four tables are needed, or none"),
                ));
            }
            let from = cursor.position();
            let mut end = from;
            loop {
                cursor.skip_space()?;
                match cursor.peek() {
                    b'"' | b'\'' => {
                        cursor.string()?;
                    }
                    b'{' => {
                        cursor.balanced()?;
                    }
                    b'-' | b'0'..=b'9' => {
                        // A lone minus is not an integer and is not consumed.
                        if cursor.integer()?.is_none() {
                            break;
                        }
                    }
                    _ => break,
                }
                end = cursor.position();
            }
            sections[index] = Span::new(from, end);
        }
        let header = &mut self.header;
        [header.file_names, header.function_names, header.file_locations, header.stack_frames] =
            sections;
        header.has_tables = true;
        Ok(())
    }
}
