//! XLA's memory files from hostile hands: the fuzz target and the replay of its corpus share it.

use hlofast::memory::{XlaFile, read_file};
use hlofast::text::Source;
use hlofast::{Options, parse};

/// What stands between a module and the file that is to be read with it.
const SEPARATOR: &[u8] = b"\n%%%\n";

/// Reads `input`, a module and one of its memory files; None if it is not both. Only panics, hangs,
/// memory out of proportion and rows that do not exist are faults here.
pub fn read(input: &[u8]) -> Option<XlaFile> {
    let at = input.windows(SEPARATOR.len()).position(|bytes| bytes == SEPARATOR)?;
    let (text, file) = (&input[..at], &input[at + SEPARATOR.len()..]);
    let module = parse(Source::from_slice(text), &Options::default()).ok()?;
    let result = read_file(&module, file);
    let lines = file.iter().filter(|byte| **byte == b'\n').count() as u32 + 1;
    match result {
        Ok(xla_file) => {
            assert!(xla_file.rows.len() <= file.len());
            for row in &xla_file.rows {
                assert!(row.row.is_none_or(|row| (row.0 as usize) < module.row_count()));
                assert!(row.bytes >= -1 && row.offset >= -1 && row.allocation >= -1);
                assert!(row.steps.0 >= -1 && row.steps.0 <= row.steps.1);
            }
            Some(xla_file)
        }
        Err(error) => {
            assert!(error.line <= lines && !error.message.is_empty());
            None
        }
    }
}
