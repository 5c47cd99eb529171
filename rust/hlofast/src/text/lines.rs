//! Lines and columns of byte offsets, computed on demand.

use std::ops::Range;

/// Bytes between two entries of the character count.
const BLOCK: usize = 4096;

/// Where the lines of a text begin. Lines and columns count from 1; columns are characters.
#[derive(Clone, Debug, Default)]
pub struct LineIndex {
    /// Offsets of the line breaks.
    breaks: Vec<u32>,
    /// Characters before each block, so that computing a column on a line of megabytes reads one
    /// block only. Empty if every character is one byte.
    characters: Vec<u32>,
}

impl LineIndex {
    /// Indexes `text` (one pass).
    pub fn new(text: &[u8]) -> Self {
        let breaks = memchr::memchr_iter(b'\n', text).map(|at| at as u32).collect();
        let mut characters = Vec::new();
        if !text.is_ascii() {
            let mut count = 0;
            for block in text.chunks(BLOCK) {
                characters.push(count);
                count += starts(block);
            }
        }
        Self { breaks, characters }
    }

    /// Line and column of `offset`.
    pub fn place(&self, text: &[u8], offset: usize) -> (u64, u64) {
        let offset = offset.min(text.len());
        let line = self.breaks.partition_point(|&at| (at as usize) < offset);
        let start = self.line_start(line);
        let column = self.characters_before(text, offset) - self.characters_before(text, start);
        (line as u64 + 1, u64::from(column) + 1)
    }

    /// The line that holds `offset`, without its line break.
    pub fn line_range(&self, text: &[u8], offset: usize) -> Range<usize> {
        let line = self.breaks.partition_point(|&at| (at as usize) < offset);
        let start = self.line_start(line);
        let mut end = self.breaks.get(line).map_or(text.len(), |&at| at as usize);
        if end > start && text.get(end - 1) == Some(&b'\r') {
            end -= 1;
        }
        start..end
    }

    /// Number of line breaks.
    pub fn line_breaks(&self) -> usize {
        self.breaks.len()
    }

    fn line_start(&self, line: usize) -> usize {
        match line.checked_sub(1).and_then(|before| self.breaks.get(before)) {
            Some(&at) => at as usize + 1,
            None => 0,
        }
    }

    fn characters_before(&self, text: &[u8], offset: usize) -> u32 {
        match self.characters.get(offset / BLOCK) {
            Some(&before) => {
                let from = offset / BLOCK * BLOCK;
                before + starts(text.get(from..offset).unwrap_or_default())
            }
            // The offset is the end of a text that fills its last block.
            None => match self.characters.last() {
                Some(&before) => {
                    let from = (self.characters.len() - 1) * BLOCK;
                    before + starts(text.get(from..offset).unwrap_or_default())
                }
                None => offset as u32,
            },
        }
    }
}

/// Characters that begin in `bytes`. A stray continuation byte belongs to the character before it.
fn starts(bytes: &[u8]) -> u32 {
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_characters_not_bytes() {
        let text = "aé\n漢b\n".as_bytes();
        let index = LineIndex::new(text);
        let places: Vec<_> = [0, 1, 3, 4, 7, 8, 9].map(|at| index.place(text, at)).to_vec();
        assert_eq!(places, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1)]);
        assert_eq!(index.line_breaks(), 2);
    }

    #[test]
    fn blocks_agree_with_counting() {
        let mut text = "é".repeat(BLOCK + 7);
        text.push('\n');
        text.push_str(&"漢x".repeat(BLOCK));
        while !text.len().is_multiple_of(BLOCK) {
            text.push('.');
        }
        let index = LineIndex::new(text.as_bytes());
        let (mut line, mut column) = (1, 1);
        for (at, character) in text.char_indices() {
            assert_eq!(index.place(text.as_bytes(), at), (line, column), "at {at}");
            column += 1;
            if character == '\n' {
                (line, column) = (line + 1, 1);
            }
        }
        assert_eq!(index.place(text.as_bytes(), text.len()), (line, column));
    }

    #[test]
    fn ranges_leave_line_ends_out() {
        let text = b"ab\r\n\ncd";
        let index = LineIndex::new(text);
        assert_eq!(index.line_range(text, 1), 0..2);
        assert_eq!(index.line_range(text, 3), 0..2);
        assert_eq!(index.line_range(text, 4), 4..4);
        assert_eq!(index.line_range(text, 7), 5..7);
        assert_eq!(LineIndex::new(b"").line_range(b"", 0), 0..0);
    }
}
