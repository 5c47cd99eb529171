//! Errors as plain data: a kind, a span and a message. Lines, columns and excerpts are computed
//! only when someone asks (`text::excerpt`).

use crate::text::Span;
use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The kind of a fault: stable and machine-readable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind { $($(#[$doc])* $name,)* }

        impl ErrorKind {
            /// Every kind, in declaration order.
            pub const ALL: &'static [ErrorKind] = &[$(ErrorKind::$name,)*];

            /// The stable name that Python shows as `ParseError.kind`.
            pub fn as_str(self) -> &'static str {
                match self { $(ErrorKind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// A byte that cannot start a token here.
    UnexpectedCharacter = "unexpected-character",
    /// The text ends inside a construct.
    UnexpectedEnd = "unexpected-end",
    /// A string without its closing quote.
    UnclosedString = "unclosed-string",
    /// A comment without its end.
    UnclosedComment = "unclosed-comment",
    /// An opening bracket without its closing one.
    UnclosedBracket = "unclosed-bracket",
    /// A closing bracket that closes nothing, or the wrong kind.
    MismatchedBracket = "mismatched-bracket",
    /// A string with an invalid escape.
    InvalidString = "invalid-string",
    /// A number that cannot be read or is out of range.
    InvalidNumber = "invalid-number",
    /// A name was expected.
    ExpectedName = "expected-name",
    /// A name that XLA would change to make it valid or unique.
    InvalidName = "invalid-name",
    /// A particular token was expected.
    ExpectedToken = "expected-token",
    /// An opcode was expected.
    ExpectedOpcode = "expected-opcode",
    /// An opcode this XLA does not know (strict mode only).
    UnknownOpcode = "unknown-opcode",
    /// A shape that cannot be read.
    InvalidShape = "invalid-shape",
    /// A layout that cannot be read or does not fit its shape.
    InvalidLayout = "invalid-layout",
    /// The result shape is omitted and no rule gives it.
    CannotInferShape = "cannot-infer-shape",
    /// Declared and actual shape differ.
    ShapeMismatch = "shape-mismatch",
    /// An operand list that cannot be read.
    InvalidOperand = "invalid-operand",
    /// An operand or predecessor that no instruction of the computation defines.
    UnknownInstruction = "unknown-instruction",
    /// A called computation that the module does not define.
    UnknownComputation = "unknown-computation",
    /// A use before its definition (strict mode only).
    ForwardReference = "forward-reference",
    /// The wrong number of operands.
    OperandCount = "operand-count",
    /// Two instructions of one computation share a name.
    DuplicateInstruction = "duplicate-instruction",
    /// Two computations share a name.
    DuplicateComputation = "duplicate-computation",
    /// Two parameters of one computation share a number.
    DuplicateParameter = "duplicate-parameter",
    /// Parameter numbers with a gap.
    ParameterGap = "parameter-gap",
    /// More than one ROOT in a computation.
    DuplicateRoot = "duplicate-root",
    /// More than one ENTRY in a module.
    DuplicateEntry = "duplicate-entry",
    /// An attribute given twice.
    DuplicateAttribute = "duplicate-attribute",
    /// An attribute this opcode does not take (strict mode only).
    UnexpectedAttribute = "unexpected-attribute",
    /// A required attribute is missing (strict mode only).
    MissingAttribute = "missing-attribute",
    /// An attribute value that cannot be read.
    InvalidAttribute = "invalid-attribute",
    /// A literal that cannot be read or does not fit its shape.
    InvalidLiteral = "invalid-literal",
    /// A sharding that cannot be read.
    InvalidSharding = "invalid-sharding",
    /// A module header that cannot be read.
    InvalidHeader = "invalid-header",
    /// A computation that cannot be read.
    InvalidComputation = "invalid-computation",
    /// Asynchronous instructions that do not fit together.
    InvalidAsync = "invalid-async",
    /// Text after the module.
    TrailingText = "trailing-text",
    /// Input that is another format: StableHLO, MLIR, jaxpr, a protobuf.
    NotHlo = "not-hlo",
    /// No module in the input.
    NoModule = "no-module",
    /// Several modules where one was asked for.
    SeveralModules = "several-modules",
    /// Input beyond a size limit.
    TooLarge = "too-large",
    /// Nesting beyond the depth limit.
    TooDeep = "too-deep",
    /// A protobuf that cannot be read, or that holds no sound module.
    InvalidProto = "invalid-proto",
    /// Compressed input that cannot be decompressed.
    InvalidCompression = "invalid-compression",
}

/// One fault in the input. One word wide, so that results stay cheap on the hot path.
#[derive(Clone, PartialEq, Eq)]
pub struct ParseError(Box<Fault>);

#[derive(Clone, PartialEq, Eq)]
struct Fault {
    kind: ErrorKind,
    span: Span,
    related: Option<Span>,
    message: Box<str>,
    help: Option<Box<str>>,
}

/// The result of functions that read text.
pub type Result<T> = std::result::Result<T, ParseError>;

impl ParseError {
    /// A fault of `kind` at `span` (byte offsets into the module's text).
    #[cold]
    pub fn new(kind: ErrorKind, span: Span, message: impl Into<Box<str>>) -> Self {
        Self(Box::new(Fault { kind, span, related: None, message: message.into(), help: None }))
    }

    /// Adds one line of advice.
    #[must_use]
    #[cold]
    pub fn with_help(mut self, help: impl Into<Box<str>>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Adds a second place related to the fault, such as the first definition.
    #[must_use]
    #[cold]
    pub fn with_related(mut self, related: Span) -> Self {
        self.0.related = Some(related);
        self
    }

    /// Moves the spans by `delta` bytes; used when a value was decoded on its own.
    #[must_use]
    #[cold]
    pub fn shifted(mut self, delta: u32) -> Self {
        self.0.span = self.0.span.shifted(delta);
        self.0.related = self.0.related.map(|span| span.shifted(delta));
        self
    }

    /// What is wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The place of the fault: byte offsets into the module's text.
    pub fn span(&self) -> Span {
        self.0.span
    }

    /// A second place related to the fault, if any.
    pub fn related(&self) -> Option<Span> {
        self.0.related
    }

    /// The message, without place or excerpt.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// One line of advice, if any.
    pub fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }
}

impl fmt::Debug for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParseError({}, {:?}, {:?})", self.0.kind.as_str(), self.0.span, self.0.message)
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at byte {})", self.0.message, self.0.span.start)
    }
}

impl std::error::Error for ParseError {}
