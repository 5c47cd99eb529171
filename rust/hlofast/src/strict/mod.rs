//! Strict mode: accepts exactly what XLA's own parser accepts.
//!
//! The tolerant reader builds the module. Then a checker reads the text again, token by token as
//! XLA does, and looks up shapes and operands in the module. A module that passes is therefore
//! exactly the module that tolerant reading gives.

mod computation;
mod header;
mod instruction;
mod lexer;
mod literal;
mod memory;
mod mesh;
mod newer;
mod number;
mod operands;
mod semantics;
mod shape;
mod sharding;
mod string;
mod structured;
mod value;

use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::{ComputationId, Module, ShapeId, ShapeInterner};
use crate::parse::Strictness;
use crate::text::Span;
use hashbrown::{HashMap, HashSet};
use lexer::{Kind, Lexer};
use newer::{NEWEST_CONSTRUCTS, Newer};

/// Maximum nesting of instructions, literals and blocks, as in XLA.
const MAX_NESTING: usize = crate::parse::shape::MAX_DEPTH;

type Build = memory::BuildText;

/// Checks that XLA's parser, in the version that `strictness` selects, accepts `module`'s text.
pub fn check(module: &Module, strictness: Strictness) -> Result<()> {
    if strictness == Strictness::Tolerant {
        return Ok(());
    }
    if module.source().follows_mark() {
        let message = "the text starts with a byte order mark, which XLA does not accept";
        return Err(ParseError::new(ErrorKind::UnexpectedCharacter, Span::at(0), message));
    }
    Checker::new(module, strictness).module()
}

/// The state of a check.
pub(super) struct Checker<'a> {
    module: &'a Module,
    text: &'a [u8],
    strictness: Strictness,
    lexer: Lexer<'a>,
    /// Computations defined so far.
    computations: HashMap<&'a [u8], ComputationId, Build>,
    /// Computations written as blocks, by the offset of their brace.
    blocks: HashMap<u32, ComputationId, Build>,
    depth: usize,
    /// Shapes of declarations, separate from the module's own table.
    declared: ShapeInterner,
    declared_texts: HashMap<&'a [u8], ShapeId, Build>,
    /// Pairs of declared and actual shapes known to be compatible.
    compatible: HashSet<(ShapeId, ShapeId), Build>,
    /// For each shape of the module's table, whether its text in the table passed.
    passed: Vec<bool>,
    passed_values: memory::PassedValues,
    /// Whether the text is a single instruction.
    single: bool,
    /// Rows of the operands of the instructions being read, innermost last.
    operands: Vec<u32>,
    rows: computation::Rows,
    next_computation: usize,
    /// Rows by name, for the computation that starts at row `names_of`, up to row `names_until`.
    names: HashMap<&'a [u8], u32, Build>,
    names_of: u32,
    names_until: u32,
    asynchronous: semantics::Asynchronous,
}

impl<'a> Checker<'a> {
    fn new(module: &'a Module, strictness: Strictness) -> Self {
        let text = module.text();
        let mut blocks = HashMap::default();
        for (id, computation) in module.computations().iter().enumerate() {
            if computation.is_inline {
                blocks.insert(computation.body.start, ComputationId(id as u32));
            }
        }
        Self {
            module,
            text,
            strictness,
            lexer: Lexer::new(text, 0),
            computations: HashMap::default(),
            blocks,
            depth: 0,
            declared: ShapeInterner::default(),
            declared_texts: HashMap::default(),
            compatible: HashSet::default(),
            passed: vec![false; module.shapes().len()],
            passed_values: memory::PassedValues::default(),
            single: false,
            operands: Vec::new(),
            rows: computation::Rows::default(),
            next_computation: 0,
            names: HashMap::default(),
            names_of: u32::MAX,
            names_until: 0,
            asynchronous: semantics::Asynchronous::default(),
        }
    }

    fn is_newest(&self) -> bool {
        self.strictness == Strictness::Newest
    }

    /// Whether a construct unknown to jaxlib 0.10.2 is allowed.
    fn allows(&self, construct: Newer) -> bool {
        self.is_newest() && NEWEST_CONSTRUCTS.contains(&construct)
    }

    #[inline]
    fn kind(&self) -> Kind {
        self.lexer.kind
    }

    #[inline]
    fn advance(&mut self) {
        self.lexer.advance();
    }

    /// Skips the current token if it is of `kind`.
    #[inline]
    fn eat(&mut self, kind: Kind) -> bool {
        let is_next = self.lexer.kind == kind;
        if is_next {
            self.lexer.advance();
        }
        is_next
    }

    /// Skips the current token if it is the identifier `word`.
    fn eat_word(&mut self, word: &[u8]) -> bool {
        let is_next = self.lexer.kind == Kind::Ident && self.lexer.word() == word;
        if is_next {
            self.lexer.advance();
        }
        is_next
    }

    /// Skips the current token if it is the reserved word `word`.
    fn eat_keyword(&mut self, word: &[u8]) -> bool {
        let is_next = self.lexer.is_keyword(word);
        if is_next {
            self.lexer.advance();
        }
        is_next
    }

    /// Requires a token of `kind`.
    #[inline]
    fn expect(&mut self, kind: Kind, what: &str) -> Result<()> {
        if self.eat(kind) { Ok(()) } else { Err(self.expected(what)) }
    }

    /// The error "expected WHAT" at the current token.
    #[cold]
    fn expected(&self, what: &str) -> ParseError {
        self.error(ErrorKind::ExpectedToken, &format!("expected {what}"))
    }

    /// An error at the current token; an invalid token is reported first.
    #[cold]
    fn error(&self, kind: ErrorKind, message: &str) -> ParseError {
        match self.lexer.kind {
            Kind::Error => self.lexer.error(),
            Kind::End => ParseError::new(
                ErrorKind::UnexpectedEnd,
                Span::at(self.text.len()),
                format!("{message}, but the text ends"),
            ),
            _ => ParseError::new(kind, self.lexer.span(), message),
        }
    }

    /// Reads a name; returns its span.
    #[inline]
    fn name(&mut self) -> Result<Span> {
        if !matches!(self.lexer.kind, Kind::Name | Kind::Ident) {
            return Err(self.error(ErrorKind::ExpectedName, "expected a name"));
        }
        let span = self.lexer.span();
        self.lexer.advance();
        Ok(span)
    }

    fn bytes(&self, span: Span) -> &'a [u8] {
        self.text.get(span.range()).unwrap_or_default()
    }

    fn integer(&mut self) -> Result<i64> {
        if self.lexer.kind != Kind::Int {
            return Err(self.error(ErrorKind::InvalidAttribute, "expected an integer"));
        }
        let value = self.lexer.value;
        self.lexer.advance();
        Ok(value)
    }

    fn string(&mut self) -> Result<Span> {
        if self.lexer.kind != Kind::String {
            return Err(self.error(ErrorKind::InvalidAttribute, "expected a string"));
        }
        let span = self.lexer.span();
        self.lexer.advance();
        Ok(span)
    }

    fn boolean(&mut self) -> Result<bool> {
        match self.lexer.word() {
            b"true" if self.lexer.kind == Kind::Keyword => self.advance(),
            b"false" if self.lexer.kind == Kind::Keyword => {
                self.advance();
                return Ok(false);
            }
            _ => return Err(self.error(ErrorKind::InvalidAttribute, "expected true or false")),
        }
        Ok(true)
    }

    /// Reads `open item, item close`; no comma before the closing token.
    fn list(
        &mut self,
        open: Kind,
        close: Kind,
        mut item: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<usize> {
        self.expect(open, spelled(open))?;
        let mut count = 0;
        if self.kind() != close {
            loop {
                item(self)?;
                count += 1;
                if !self.eat(Kind::Comma) {
                    break;
                }
            }
        }
        self.expect(close, spelled(close))?;
        Ok(count)
    }

    /// Reads `{1, 2}`; returns the number of integers.
    fn integer_list(&mut self) -> Result<usize> {
        self.list(Kind::LeftBrace, Kind::RightBrace, |checker| checker.integer().map(drop))
    }

    /// Reads `{1, 2,}`: the numbers of a shape index, with an optional trailing comma.
    fn shape_index(&mut self, index: &mut Vec<i64>) -> Result<()> {
        index.clear();
        self.expect(Kind::LeftBrace, "'{' before a shape index")?;
        while self.kind() != Kind::RightBrace {
            index.push(self.integer()?);
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightBrace, "'}' after a shape index")
    }

    /// Calls `read` one nesting level deeper.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_NESTING {
            return Err(ParseError::new(
                ErrorKind::TooDeep,
                self.lexer.span(),
                format!("nesting deeper than {MAX_NESTING} levels"),
            ));
        }
        self.depth += 1;
        // Recursion is as deep as the nesting in the text, so it must not depend on the size of the
        // thread's stack.
        let result = stacker::maybe_grow(64 << 10, 1 << 20, || read(self));
        self.depth -= 1;
        result
    }
}

fn spelled(kind: Kind) -> &'static str {
    match kind {
        Kind::LeftBrace => "'{' to start a list",
        Kind::RightBrace => "',' or '}' in a list",
        Kind::LeftSquare => "'[' to start a list",
        Kind::RightSquare => "',' or ']' in a list",
        Kind::LeftParen => "'(' to start a list",
        Kind::RightParen => "',' or ')' in a list",
        _ => "a list",
    }
}
