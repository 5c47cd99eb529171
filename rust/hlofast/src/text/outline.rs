//! Positions of the parts of instructions. The writer of a text records them, so that the reader
//! need not search for them.

use super::Span;

/// The lines of a text that are instructions in the printed form, in text order. Lines may be
/// missing; lines with control predecessors always are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    pub lines: Vec<OutlinedLine>,
    /// The operands of the lines, as line numbers counted from the computation's first line.
    pub operands: Vec<u32>,
    /// The computations that the lines call.
    pub calls: Vec<OutlinedCall>,
    /// The headers of computations.
    pub headers: Vec<OutlinedHeader>,
}

/// `ENTRY %name (a: shape) -> shape {`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutlinedHeader {
    /// From the start of the line to just after the brace.
    pub whole: Span,
    pub name: Span,
    /// The parentheses and the rest of the signature.
    pub signature: Span,
    /// The start of the result shape, which ends with the signature.
    pub result: u32,
    /// The number of the shape, as in `OutlinedLine`.
    pub shape: u32,
}

/// `ROOT %name = shape opcode(operands), key=value, metadata={...}`; all are offsets in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutlinedLine {
    /// Where the line begins, after the indentation of two spaces.
    pub start: u32,
    /// The line's number, counted from the first line of the computation.
    pub row: u32,
    /// Where the name begins and ends.
    pub name: u32,
    pub name_end: u32,
    /// The end of the shape, which begins after ` = `.
    pub shape_end: u32,
    /// The number of the shape; equal numbers mean equal text.
    pub shape: u32,
    /// The parentheses around the operands.
    pub open: u32,
    pub close: u32,
    /// Where the value of `metadata` begins; `u32::MAX` without metadata.
    pub metadata: u32,
    /// The newline.
    pub end: u32,
    /// The end of its operands in `Outline::operands`; they begin at the end of the previous line's
    /// operands.
    pub operands_end: u32,
    /// Where its calls end in `Outline::calls`.
    pub calls_end: u32,
}

/// `key=%name`, or one name of `key={%name, %name}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutlinedCall {
    pub key: Span,
    pub name: Span,
}
