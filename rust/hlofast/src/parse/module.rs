//! The module around the instructions: header, computations, bodies.

#![allow(unsafe_code, reason = "enters code compiled for CPU features that were detected")]

use super::line::Line;
use super::reader::{Queued, Reader};
use super::shape::{parse_shape, starts_shape};
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::Computation;
use crate::ir::attributes::{read_value, skip_to_value};
use crate::text::kernel::{Kernel, KernelChoice, LineMasks, Portable};
use crate::text::{Cursor, Span, is_identifier_byte};

/// Maximum nesting of blocks that replace computation names, well beyond what strict modes (and
/// XLA) read. Each level reads its text once more, so `Reader::block_budget` limits depth times
/// length.
const MAX_BLOCKS: u32 = 256;

/// Levels without a limit on text.
const FREE_BLOCKS: u32 = 12;

impl Reader<'_> {
    /// Reads the whole text.
    pub(super) fn read_module(&mut self) -> Result<()> {
        let mut cursor = self.cursor(0);
        if let Err(error) = self.read_header(&mut cursor) {
            let at = (error.span().start as usize).max(cursor.position());
            self.collect(error)?;
            self.header.span = Span::new(0, at);
            let next = self.unclosed.resume.take().map(|(line, _)| line);
            cursor.set_position(next.unwrap_or_else(|| self.next_line(at)));
        }
        self.read_computations(&mut cursor)
    }

    /// Reads computations from the cursor to the end of the text.
    pub(super) fn read_computations(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        loop {
            cursor.skip_space()?;
            if cursor.is_at_end() {
                return Ok(());
            }
            let start = cursor.position();
            if let Err(error) = self.read_computation(cursor) {
                let at = start.max(cursor.position());
                let again = self.may_read_again(&error, at);
                self.collect(error)?;
                // The fault may have been reported at the brace itself.
                let next = || self.after_computation(start.max(at.saturating_sub(1)));
                cursor.set_position(if again { next() } else { usize::MAX });
            }
        }
    }

    /// Keeps `error` and continues if errors are collected.
    fn collect(&mut self, error: ParseError) -> Result<()> {
        if !self.options.collect_errors {
            return Err(error);
        }
        self.keep(error);
        Ok(())
    }

    /// Whether reading may continue at `at` after `error`. Text that the faulty read skipped is
    /// read again; a budget limits the total for all faults to a few times the text.
    fn may_read_again(&mut self, error: &ParseError, at: usize) -> bool {
        use ErrorKind::{UnclosedBracket, UnclosedComment, UnclosedString, UnexpectedEnd};
        let reached = match error.kind() {
            UnclosedBracket | UnclosedComment | UnclosedString | UnexpectedEnd => self.text.len(),
            _ => (error.span().end as usize).max(self.reached),
        };
        let reached = self.unclosed.resume.map_or(reached, |(_, reached)| reached);
        let enough = self.budget > 0;
        self.budget = self.budget.saturating_sub(reached.saturating_sub(at));
        enough
    }

    /// The start of the line after `at`.
    fn next_line(&self, at: usize) -> usize {
        let rest = self.text.get(at..).unwrap_or_default();
        memchr::memchr(b'\n', rest).map_or(self.text.len(), |skip| at + skip + 1)
    }

    /// The position after the next line that contains only a closing brace.
    fn after_computation(&self, from: usize) -> usize {
        let mut at = from;
        while let Some(skip) = memchr::memmem::find(&self.text[at..], b"\n}") {
            at += skip + 2;
            if !matches!(self.text.get(at), Some(b'"' | b'\'' | b'\\')) {
                break;
            }
        }
        let is_closed = at != from;
        if is_closed { at } else { self.text.len() }
    }

    /// Reads `HloModule name, key=value, ...` and the tables; reads nothing if the text has no
    /// header.
    pub(super) fn read_header(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        cursor.skip_space()?;
        let start = cursor.position();
        if cursor.identifier() != b"HloModule" {
            cursor.set_position(start);
            return Ok(());
        }
        let Some(name) = cursor.name()? else {
            return Err(ParseError::new(
                ErrorKind::InvalidHeader,
                Span::new(start, cursor.position()),
                "expected the module's name after HloModule",
            ));
        };
        self.header.name = name;
        let mut masks = std::mem::take(&mut self.masks);
        if let Some(end) = self.header_attributes_line(cursor.position(), &mut masks) {
            cursor.set_position(end);
        }
        self.masks = masks;
        loop {
            let end = cursor.position();
            cursor.skip_space()?;
            if cursor.peek() != b',' {
                cursor.set_position(end);
                break;
            }
            cursor.advance(1);
            cursor.skip_space()?;
            let at = cursor.position();
            while is_identifier_byte(cursor.peek()) && !cursor.is_at_end() {
                cursor.advance(1);
            }
            let key = cursor.span_since(at);
            if key.is_empty() {
                return Err(cursor.expected("a header attribute's name", "after ','"));
            }
            cursor.expect(b'=', "after a header attribute's name")?;
            let word = &self.text[key.range()];
            skip_to_value(cursor, word)?;
            self.check_closed(cursor.position())?;
            let value = read_value(cursor, word)?;
            if value.is_empty() {
                return Err(cursor.expected("a value", "after '='"));
            }
            self.header.attributes.push((key, value));
        }
        self.header.span = Span::new(start, cursor.position());
        self.read_tables(cursor)
    }

    /// Reads `ENTRY? name signature? { instructions }` and the computations that its instructions
    /// queue.
    fn read_computation(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        let computation = match self.header_line(cursor) {
            Some(computation) => computation,
            None => match self.read_computation_header(cursor)? {
                Some(computation) => computation,
                None => return self.read_single_instruction(cursor),
            },
        };
        let mut computation = computation;
        let body = cursor.position() - 1;
        self.check_computation(&computation)?;
        self.depth = 0;
        let position = self.read_body(cursor.position(), &mut computation, body)?;
        cursor.set_position(position);
        match read_execution_thread(cursor) {
            Ok(thread) => computation.execution_thread = thread,
            Err(error) => {
                self.collect(error)?;
                cursor.set_position(self.next_line(position));
            }
        }
        let finished = self.finish_computation(computation).map(|_| ());
        finished.or_else(|error| self.collect(error))?;
        self.read_queue()
    }

    /// Reads a header in any form, up to the opening brace; None if the text is a single
    /// instruction.
    pub(super) fn read_computation_header(
        &mut self,
        cursor: &mut Cursor<'_>,
    ) -> Result<Option<Computation>> {
        let start = cursor.position();
        let mut computation = Computation::default();
        if cursor.identifier() == b"ENTRY" && cursor.peek() != b':' {
            computation.is_marked_entry = true;
        } else {
            cursor.set_position(start);
        }
        let is_first = self.is_first_part && self.computations.is_empty();
        let Some(name) = cursor.name()? else {
            if is_first && self.header.span.is_empty() && starts_shape(cursor) {
                return Ok(None);
            }
            return Err(self.trailing_text(cursor));
        };
        computation.name = name;
        cursor.skip_space()?;
        let at = cursor.position();
        if cursor.peek() == b'(' {
            cursor.balanced()?;
            cursor.skip_space()?;
            if !cursor.eat_bytes(b"->") {
                return Err(cursor.expected("'->'", "after a computation's parameters"));
            }
            parse_shape(cursor, &mut self.shapes)?;
            computation.signature = cursor.span_since(at);
            cursor.skip_space()?;
        }
        if cursor.peek() == b'{' && !cursor.is_at_end() {
            cursor.advance(1);
            computation.header = cursor.span_since(start);
            return Ok(Some(computation));
        }
        if computation.signature.is_empty() && !computation.is_marked_entry {
            let end = cursor.position();
            cursor.set_position(start);
            if is_first && self.header.span.is_empty() {
                return Ok(None);
            }
            if !is_first {
                return Err(self.trailing_text(cursor));
            }
            cursor.set_position(end);
        }
        Err(cursor.expected("{", "at the beginning of a computation's body"))
    }

    /// Reads a one-line header as XLA prints it, and moves the cursor past its brace.
    fn header_line(&mut self, cursor: &mut Cursor<'_>) -> Option<Computation> {
        let start = cursor.position();
        let mut masks = std::mem::take(&mut self.masks);
        let known = self.outlined_header(start);
        let computation = known.or_else(|| self.computation_line(start, &mut masks));
        self.masks = masks;
        cursor.set_position(computation.as_ref()?.header.end as usize);
        computation
    }

    #[cold]
    fn trailing_text(&self, cursor: &Cursor<'_>) -> ParseError {
        let at = cursor.position();
        let span = Span::new(at, (at + 1).min(cursor.end()));
        if self.is_first_part && self.computations.is_empty() {
            return ParseError::new(
                ErrorKind::InvalidComputation,
                span,
                "expected a computation's name",
            );
        }
        ParseError::new(
            ErrorKind::TrailingText,
            span,
            "expected a computation or the end of the module",
        )
    }

    /// Checks that the computation's name and entry mark are new.
    fn check_computation(&mut self, computation: &Computation) -> Result<()> {
        let name = computation.name;
        if let Some(known) = self.find_computation(name) {
            let shown = String::from_utf8_lossy(&self.text[name.range()]).into_owned();
            return Err(ParseError::new(
                ErrorKind::DuplicateComputation,
                name,
                format!("computation {shown} is defined twice"),
            )
            .with_related(self.computations[known as usize].name));
        }
        if computation.is_marked_entry
            && let Some(entry) = self.entry
        {
            return Err(ParseError::new(
                ErrorKind::DuplicateEntry,
                computation.header,
                "the module already has an ENTRY",
            )
            .with_related(self.computations[entry as usize].header));
        }
        Ok(())
    }

    /// Reads instructions from `position` to the closing brace; returns the position after it.
    pub(super) fn read_body(
        &mut self,
        position: usize,
        computation: &mut Computation,
        open: usize,
    ) -> Result<usize> {
        self.reserve_from(position);
        self.start_computation();
        let mut masks = std::mem::take(&mut self.masks);
        let end = match self.kernel {
            // SAFETY: `KernelChoice::detect` found the features that these functions are compiled
            // for.
            #[cfg(target_arch = "x86_64")]
            KernelChoice::Avx512 => unsafe { self.body_avx512(position, open, &mut masks) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            KernelChoice::Avx2 => unsafe { self.body_avx2(position, open, &mut masks) },
            // SAFETY: the portable kernel needs no features.
            KernelChoice::Portable => unsafe { self.body::<Portable>(position, open, &mut masks) },
        };
        self.masks = masks;
        let end = match end {
            Ok(end) => end,
            Err(error) => {
                // Instructions read so far are kept, as if the body ended with the text.
                self.collect(error)?;
                computation.body = Span::new(open, self.text.len());
                return Ok(self.text.len());
            }
        };
        computation.body = Span::new(open, end + 1);
        Ok(end + 1)
    }

    /// # Safety
    /// The CPU must have the features named.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2,pclmulqdq,bmi1,bmi2,popcnt,lzcnt"
    )]
    unsafe fn body_avx512(
        &mut self,
        position: usize,
        open: usize,
        masks: &mut LineMasks,
    ) -> Result<usize> {
        // SAFETY: this function enables the kernel's features.
        unsafe { self.body::<crate::text::kernel::Avx512>(position, open, masks) }
    }

    /// # Safety
    /// The CPU must have the features named.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,pclmulqdq,bmi1,bmi2,popcnt,lzcnt")]
    unsafe fn body_avx2(
        &mut self,
        position: usize,
        open: usize,
        masks: &mut LineMasks,
    ) -> Result<usize> {
        // SAFETY: this function enables the kernel's features.
        unsafe { self.body::<crate::text::kernel::Avx2>(position, open, masks) }
    }

    /// Loops over the instructions; returns the offset of the closing brace.
    ///
    /// # Safety
    /// The CPU must have the features of `K`.
    #[inline(always)]
    unsafe fn body<K: Kernel>(
        &mut self,
        position: usize,
        open: usize,
        masks: &mut LineMasks,
    ) -> Result<usize> {
        let mut at = position;
        loop {
            let byte = loop {
                match self.text.get(at) {
                    Some(b' ' | b'\n' | b'\r' | b'\t') => at += 1,
                    Some(byte) => break *byte,
                    None => return Err(unclosed_body(open)),
                }
            };
            if byte == b'}' {
                return Ok(at);
            }
            if let Some(next) = self.outlined_lines::<K>(at)? {
                at = next;
                continue;
            }
            let mark = self.options.collect_errors.then(|| self.mark());
            let read = match at >= self.general_until && byte != b'/' {
                // SAFETY: the caller guarantees the features.
                true => unsafe { self.line::<K>(at, masks) },
                false => Ok(Line::Other),
            };
            match read {
                Ok(Line::Read(next)) => {
                    at = next;
                    continue;
                }
                Ok(Line::Other) => match self.general_instruction(at) {
                    Ok(next) => at = next,
                    Err(error) => at = self.recover(error, mark, at)?,
                },
                Err(error) => at = self.recover(error, mark, at)?,
            }
        }
    }

    /// Skips comments, then reads an instruction unless the body ends after them.
    #[cold]
    #[inline(never)]
    fn general_instruction(&mut self, at: usize) -> Result<usize> {
        let mut cursor = self.cursor(at);
        cursor.skip_space()?;
        if cursor.peek() == b'}' || cursor.is_at_end() {
            return Ok(cursor.position());
        }
        if let Err(error) = self.check_closed(cursor.position()) {
            // The instruction is read nevertheless, to intern its shapes as the fast path does,
            // because all ways of reading a text must give equal tables.
            let read = self.instruction(cursor.position());
            let reached = read.map_or(self.text.len(), |end| end);
            self.unclosed.resume = self.unclosed.resume.map(|(line, at)| (line, at.max(reached)));
            return Err(error);
        }
        self.instruction(cursor.position())
    }

    /// After a fault, continues at the next line if faults are collected.
    #[cold]
    #[inline(never)]
    fn recover(
        &mut self,
        error: ParseError,
        mark: Option<super::reader::Mark>,
        at: usize,
    ) -> Result<usize> {
        let again = self.may_read_again(&error, at);
        self.collect(error)?;
        if let Some(mark) = mark {
            self.take_back(&mark);
            self.root = self.root.filter(|root| *root < self.next_row());
        }
        let next = self.unclosed.resume.take().map(|(line, _)| line);
        Ok(if again { next.unwrap_or_else(|| self.next_line(at)) } else { self.text.len() })
    }

    pub(super) fn start_computation(&mut self) {
        self.scope.clear();
        self.parameters.clear();
        self.indexed_parameters = 0;
        self.tuple_elements.clear();
        self.anonymous.clear();
        self.anonymous_keys.clear();
        self.tuple_element_keys.clear();
        self.single_parameters.clear();
        self.pending.clear();
        self.first_row = self.next_row();
        self.root = None;
    }

    /// Reads the queued computations, and computations that these queue in turn.
    pub(super) fn read_queue(&mut self) -> Result<()> {
        while let Some(queued) = self.queue.pop_front() {
            self.has_late_calls = true;
            let read = match queued {
                Queued::Inline { call, body, depth } => self.read_inline(call, body, depth),
                Queued::Wrapped { .. } => self.read_wrapped(queued),
            };
            read.or_else(|error| self.collect(error))?;
        }
        Ok(())
    }

    /// Reads a block `{...}` in place of a computation's name.
    fn read_inline(&mut self, call: u32, body: Span, depth: u32) -> Result<()> {
        if depth >= MAX_BLOCKS {
            return Err(ParseError::new(
                ErrorKind::TooDeep,
                Span { start: body.start, end: body.start + 1 },
                format!("computations nest deeper than {MAX_BLOCKS} levels"),
            ));
        }
        // The first levels do not count against the budget, however much text they contain.
        if depth >= FREE_BLOCKS {
            self.block_budget = self.block_budget.checked_sub(body.len()).ok_or_else(|| {
                let start = Span { start: body.start, end: body.start + 1 };
                let message = "too much text in nested computations";
                ParseError::new(ErrorKind::TooDeep, start, message)
            })?;
        }
        self.depth = depth + 1;
        let edge = self.calls[call as usize];
        let mut name = self.bytes(self.row_name(edge.row.0)).to_vec();
        name.push(b'.');
        name.extend_from_slice(edge.role.as_str().as_bytes());
        name.extend_from_slice(format!(".{}", body.start).as_bytes());
        let mut computation = Computation {
            name: self.append_to_arena(&name)?,
            is_inline: true,
            ..Computation::default()
        };
        let open = body.start as usize;
        computation.header = Span::new(open, open + 1);
        // The fast path already failed on the line where the block starts, but not on later lines.
        if !self.options.force_general {
            let rest = &self.text[body.range()];
            self.general_until = open + memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        }
        self.read_body(open + 1, &mut computation, open)?;
        let id = self.finish_computation(computation)?;
        self.calls[call as usize].computation = id;
        Ok(())
    }

    /// Reads text that is a single instruction: a module with one computation, in which unknown
    /// typed operands become parameters.
    fn read_single_instruction(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        self.start_computation();
        let mark = self.mark();
        self.single_instruction = true;
        let read = self.single_instruction(cursor);
        self.single_instruction = false;
        if let Err(error) = read {
            self.take_back(&mark);
            return Err(error);
        }
        self.read_queue()?;
        cursor.skip_space()?;
        if !cursor.is_at_end() {
            return Err(self.trailing_text(cursor));
        }
        Ok(())
    }

    fn single_instruction(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        let mut ahead = *cursor;
        let marked = ahead.identifier() == b"ROOT";
        if !marked {
            ahead = *cursor;
        }
        let named = ahead.name()?.is_some() && {
            ahead.eat(b':')?;
            ahead.eat(b'=')?
        };
        let start = cursor.position();
        if named {
            cursor.set_position(self.instruction(start)?);
        } else if starts_shape(cursor) {
            self.right_hand_side(cursor, None)?;
        } else {
            return Err(ParseError::new(
                ErrorKind::NoModule,
                Span::new(start, (start + 1).min(cursor.end())),
                "not HLO: expected HloModule, a computation or an instruction",
            ));
        }
        let computation = Computation {
            name: self.append_to_arena(b"entry")?,
            header: Span::at(start),
            body: Span::new(start, cursor.position()),
            ..Computation::default()
        };
        self.finish_computation(computation).map(|_| ())
    }
}

/// Reads `, execution_thread="name"` after a computation.
fn read_execution_thread(cursor: &mut Cursor<'_>) -> Result<Span> {
    let before = *cursor;
    cursor.skip_space()?;
    if cursor.peek() == b',' {
        cursor.advance(1);
        cursor.skip_space()?;
        if cursor.identifier() == b"execution_thread" {
            cursor.expect(b'=', "after execution_thread")?;
            cursor.skip_space()?;
            if !matches!(cursor.peek(), b'"' | b'\'') {
                return Err(cursor.expected("a string", "after execution_thread="));
            }
            return cursor.string();
        }
        return Err(cursor.expected("execution_thread", "after a computation"));
    }
    *cursor = before;
    Ok(Span::EMPTY)
}

/// The error for a body that reaches to the end of the text, as most that were cut off have one.
#[cold]
fn unclosed_body(open: usize) -> ParseError {
    ParseError::new(
        ErrorKind::UnclosedBracket,
        Span::new(open, open + 1),
        "the body of this computation is never closed",
    )
    .with_help(super::CUT_OFF)
}
