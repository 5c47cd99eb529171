//! Edits: a new module from an old module, with some of its text replaced.
//!
//! Nothing mutates. Edits become patches of the text, and the patched text is parsed again, so the
//! parser rejects operands that no longer exist and names that are taken. Instructions that no edit
//! touches keep their text byte for byte. Inserted text may take any form that HLO allows.

use crate::error::ParseError;
use crate::ir::{Attributes, ComputationId, Flags, Module, Opcode, Row};
use crate::text::{Cursor, Source, Span};
use std::fmt;

/// One change. Rows belong to the module to which the edits are applied, and must be written in its
/// text, not only implied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Adds one or several lines of instructions in front of `row`.
    InsertBefore {
        /// The instruction that comes next.
        row: Row,
        /// The instructions' text.
        text: Vec<u8>,
    },
    /// Makes operand `index` of `row` the instruction called `name`.
    ReplaceOperand {
        /// The user.
        row: Row,
        /// The operand's index.
        index: usize,
        /// Name of the new operand, without `%`.
        name: Vec<u8>,
    },
    /// Gives `row` another result shape.
    ReplaceShape {
        /// The instruction.
        row: Row,
        /// The shape's text.
        shape: Vec<u8>,
    },
    /// Gives a constant another literal.
    ReplaceLiteral {
        /// The constant.
        row: Row,
        /// The literal's text.
        literal: Vec<u8>,
    },
    /// Sets an attribute of `row`, or removes it.
    SetAttribute {
        /// The instruction.
        row: Row,
        /// The attribute's name.
        key: Vec<u8>,
        /// The value's text; None removes the attribute.
        value: Option<Vec<u8>>,
    },
    /// Makes `row` the root of its computation.
    MarkRoot {
        /// The new root.
        row: Row,
    },
    /// Removes `row`. Its users must get other operands in the same list of edits.
    Remove {
        /// The instruction.
        row: Row,
    },
    /// Replaces `(parameters) -> shape` of a computation; no effect where the text has no
    /// signature.
    ChangeSignature {
        /// The computation.
        computation: ComputationId,
        /// The new signature's text.
        signature: Vec<u8>,
    },
    /// Adds a computation in front of another.
    InsertComputation {
        /// The computation that comes next.
        before: ComputationId,
        /// The new computation's text.
        text: Vec<u8>,
    },
    /// Removes a computation that nothing calls any more.
    RemoveComputation {
        /// The computation.
        computation: ComputationId,
    },
    /// Sets an attribute of the module's header, or removes it.
    SetHeaderAttribute {
        /// The attribute's name.
        key: Vec<u8>,
        /// The value's text; None removes the attribute.
        value: Option<Vec<u8>>,
    },
}

/// Why edits could not be applied.
#[derive(Clone, Debug)]
pub enum EditError {
    /// Edit number `edit` names an instruction, operand, attribute or computation that is not
    /// written in the text.
    NotInText {
        /// Position in the list of edits.
        edit: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// Two edits change the same text.
    Conflict {
        /// The bytes of the original text that both change.
        at: Span,
    },
    /// The edited text is not a valid module; the error's spans refer to that text.
    Invalid(ParseError),
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EditError::NotInText { edit, reason } => write!(f, "edit {edit}: {reason}"),
            EditError::Conflict { at } => write!(f, "two edits change the text at {at:?}"),
            EditError::Invalid(error) => write!(f, "the edited text is invalid: {error}"),
        }
    }
}

impl std::error::Error for EditError {}

/// Applies `edits` to `module` and returns the new module.
pub fn apply(module: &Module, edits: &[Edit]) -> Result<Module, EditError> {
    let text = edited_text(module, edits)?;
    let source = Source::new(text.into());
    crate::parse(source, &crate::Options::default()).map_err(EditError::Invalid)
}

/// The text of `module` after `edits`.
pub fn edited_text(module: &Module, edits: &[Edit]) -> Result<Vec<u8>, EditError> {
    let mut patches = Vec::with_capacity(edits.len());
    for (index, edit) in edits.iter().enumerate() {
        patches_of(module, edit, &mut patches)
            .map_err(|reason| EditError::NotInText { edit: index, reason })?;
    }
    patches.sort_by_key(|patch| (patch.at.start, patch.kind, patch.at.end));
    let text = module.text();
    let mut out =
        Vec::with_capacity(text.len() + patches.iter().map(|p| p.text.len()).sum::<usize>());
    let mut done = 0;
    let mut removed_to = 0;
    for patch in patches {
        let (start, end) = (patch.at.start as usize, patch.at.end as usize);
        if start < done {
            // Changes inside removed text are dropped.
            if end <= removed_to {
                continue;
            }
            return Err(EditError::Conflict { at: patch.at });
        }
        out.extend_from_slice(text.get(done..start).unwrap_or_default());
        out.extend_from_slice(&patch.text);
        done = end;
        if patch.kind == Kind::Removal {
            removed_to = end;
        }
    }
    out.extend_from_slice(text.get(done..).unwrap_or_default());
    Ok(out)
}

/// A byte range of the text and its replacement.
struct Patch {
    at: Span,
    text: Vec<u8>,
    kind: Kind,
}

/// The kind of a patch. Patches that start at the same place apply in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// New text before an instruction, its `ROOT` included.
    Insertion,
    /// `ROOT` before an instruction.
    Mark,
    /// Deletes a whole instruction or computation.
    Removal,
    Replacement,
}

impl Patch {
    fn new(at: Span, text: Vec<u8>) -> Self {
        Self { at, text, kind: Kind::Replacement }
    }
}

type Reason = &'static str;

fn patches_of(module: &Module, edit: &Edit, patches: &mut Vec<Patch>) -> Result<(), Reason> {
    match edit {
        Edit::InsertBefore { row, text } => {
            let at = written(module, *row)?.start as usize;
            let mut text = text.trim_ascii().to_vec();
            text.push(b'\n');
            text.extend_from_slice(indentation(module.text(), at));
            patches.push(Patch { at: Span::at(at), text, kind: Kind::Insertion });
        }
        Edit::ReplaceOperand { row, index, name } => {
            written(module, *row)?;
            let slot = operand_span(module, *row, *index)?;
            let marked = module.bytes(slot).contains(&b'%');
            let mark: &[u8] = if marked || crate::print::needs_percent(name) { b"%" } else { b"" };
            patches.push(Patch::new(slot, [mark, name].concat()));
        }
        Edit::ReplaceShape { row, shape } => {
            written(module, *row)?;
            let at = shape_span(module, *row)?;
            patches.push(Patch::new(at, [shape.trim_ascii(), b" "].concat()));
        }
        Edit::ReplaceLiteral { row, literal } => {
            written(module, *row)?;
            if module.opcode(*row) != Opcode::Constant {
                return Err("only constants have literals");
            }
            let at = module.opcode_and_payload(*row).1;
            patches.push(Patch::new(at, literal.trim_ascii().to_vec()));
        }
        Edit::SetAttribute { row, key, value } => {
            written(module, *row)?;
            let tail = module.tail(*row);
            let list = Attributes::of_text(module, tail).map(|a| (a.key, a.value));
            patches.extend(set_attribute(module, list, tail.start, key, value.as_deref()));
        }
        Edit::MarkRoot { row } => mark_root(module, *row, patches)?,
        Edit::Remove { row } => {
            patches.push(removal(module, written(module, *row)?));
        }
        Edit::ChangeSignature { computation, signature } => {
            let target = module.computations().get(computation.0 as usize);
            let target = target.ok_or("there is no such computation")?;
            if !target.signature.is_empty() {
                patches.push(Patch::new(target.signature, signature.trim_ascii().to_vec()));
            }
        }
        Edit::InsertComputation { before, text } => {
            let target = module.computations().get(before.0 as usize);
            let target = target.ok_or("there is no such computation")?;
            if target.is_inline || target.is_implicit || target.header.is_empty() {
                return Err("the computation is not written as a block of its own");
            }
            let text = [text.trim_ascii(), b"\n\n"].concat();
            let at = Span::at(target.header.start as usize);
            patches.push(Patch { at, text, kind: Kind::Insertion });
        }
        Edit::RemoveComputation { computation } => {
            let target = module.computations().get(computation.0 as usize);
            let target = target.ok_or("there is no such computation")?;
            let is_apart = !target.is_inline && !target.is_implicit && !target.header.is_empty();
            if !is_apart || !target.execution_thread.is_empty() {
                return Err("only a computation in a plain block of its own can be removed");
            }
            let at = Span::new(target.header.start as usize, target.body.end as usize);
            patches.push(removal(module, at));
        }
        Edit::SetHeaderAttribute { key, value } => {
            let header = module.header();
            if header.span.is_empty() {
                return Err("the text has no header");
            }
            let list = header.attributes.iter().copied();
            let from = header.attributes.first().map_or(header.span.end, |(key, _)| {
                let before = module.text().get(..key.start as usize).unwrap_or_default();
                memchr::memrchr(b',', before).map_or(key.start, |comma| comma as u32)
            });
            patches.extend(set_attribute(module, list, from, key, value.as_deref()));
        }
    }
    Ok(())
}

/// A patch that deletes `at` and the whitespace after it.
fn removal(module: &Module, at: Span) -> Patch {
    let rest = module.text().get(at.end as usize..).unwrap_or_default();
    let space = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let at = Span::new(at.start as usize, at.end as usize + space);
    Patch { at, text: Vec::new(), kind: Kind::Removal }
}

/// The span of `row`'s text; an error for rows that the text only implies.
fn written(module: &Module, row: Row) -> Result<Span, Reason> {
    if row.0 as usize >= module.row_count() {
        return Err("there is no such instruction");
    }
    if module.is_implicit(row) {
        return Err("the instruction is only implied by the text");
    }
    Ok(module.instruction_span(row))
}

/// The whitespace that indents the line of `at`; empty if other text precedes `at` on its line.
fn indentation(text: &[u8], at: usize) -> &[u8] {
    let before = text.get(..at).unwrap_or_default();
    let line = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    let line = before.get(line..).unwrap_or_default();
    if line.iter().all(u8::is_ascii_whitespace) { line } else { b"" }
}

/// The span of operand `index`, including its shape.
fn operand_span(module: &Module, row: Row, index: usize) -> Result<Span, Reason> {
    let payload = module.opcode_and_payload(row).1;
    let mut cursor = Cursor::within(module.text(), payload);
    let mut slots = Vec::new();
    let read = (|| {
        loop {
            cursor.skip_space()?;
            let start = cursor.position();
            let mut end = start;
            while !cursor.is_at_end() && cursor.peek() != b',' {
                match cursor.peek() {
                    b'(' | b'[' | b'{' => {
                        cursor.balanced()?;
                    }
                    _ => cursor.advance(1),
                }
                end = cursor.position();
                cursor.skip_space()?;
            }
            if end > start {
                slots.push(Span::new(start, end));
            }
            if cursor.is_at_end() {
                return Ok::<(), ParseError>(());
            }
            cursor.advance(1);
        }
    })();
    if read.is_err() || slots.len() != module.operands(row).len() {
        return Err("the operand list cannot be matched with the operands");
    }
    slots.get(index).copied().ok_or("there is no such operand")
}

/// The span from the result shape (or where it would stand) to the opcode.
fn shape_span(module: &Module, row: Row) -> Result<Span, Reason> {
    let opcode = module.opcode_and_payload(row).0;
    let name = module.name_span(row);
    if opcode.start <= name.start {
        let start = module.instruction_span(row).start;
        return Ok(Span { start, end: opcode.start });
    }
    let between = Span { start: name.end, end: opcode.start };
    let mut cursor = Cursor::within(module.text(), between);
    let _ = cursor.eat(b':');
    match (cursor.eat(b'='), cursor.skip_space()) {
        (Ok(true), Ok(())) => Ok(Span { start: cursor.position() as u32, end: opcode.start }),
        _ => Err("the instruction has no '='"),
    }
}

/// The patch that sets or removes `key` in a list of attributes; `from` is the position of the
/// list's first comma.
fn set_attribute(
    module: &Module,
    list: impl Iterator<Item = (Span, Span)>,
    from: u32,
    key: &[u8],
    value: Option<&[u8]>,
) -> Option<Patch> {
    let mut end = from;
    for (known, old) in list {
        if module.bytes(known) == key {
            return Some(match value {
                Some(value) => Patch::new(old, value.to_vec()),
                None => Patch::new(Span { start: end, end: old.end }, Vec::new()),
            });
        }
        end = old.end;
    }
    let text = [b", ", key, b"=", value?].concat();
    Some(Patch::new(Span::at(end as usize), text))
}

/// Moves the word `ROOT` to `row`.
fn mark_root(module: &Module, row: Row, patches: &mut Vec<Patch>) -> Result<(), Reason> {
    let at = written(module, row)?;
    let computation = module.computation(module.computation_of(row));
    let old = Row(computation.root);
    if old == row && module.flags(row) & Flags::MARKED_ROOT != 0 {
        return Ok(());
    }
    if module.flags(old) & Flags::MARKED_ROOT != 0 {
        let span = module.instruction_span(old);
        let mut cursor = Cursor::within(module.text(), span);
        cursor.advance(b"ROOT".len());
        if cursor.skip_space().is_err() {
            return Err("the text after the old root's ROOT cannot be read");
        }
        let mark = Span::new(span.start as usize, cursor.position());
        patches.push(Patch::new(mark, Vec::new()));
    }
    let at = Span::at(at.start as usize);
    patches.push(Patch { at, text: b"ROOT ".to_vec(), kind: Kind::Mark });
    Ok(())
}
