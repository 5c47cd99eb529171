//! The description of a column. A [`Field`] is written once, beside the code that fills the column;
//! NumPy, Arrow, JSON, SQL, the command line, pages, schemas and the reference all read it.

use std::borrow::Cow;

/// The meaning of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The row number of an instruction.
    Instruction,
    /// A number that identifies a channel, a step, a line, a memory space or the like.
    Index,
    /// A count.
    Count,
    /// A size or an amount of data.
    Bytes,
    /// Floating-point operations, excluding transcendental functions.
    Flops,
    /// A time.
    Seconds,
    /// Floating-point operations per second.
    FlopRate,
    /// Bytes per second.
    ByteRate,
    /// A fraction: 1 is the whole.
    Ratio,
    /// A number without a unit.
    Number,
    /// True or false.
    Flag,
    /// Any text.
    Text,
    /// One of a few words that hlofast defines.
    Word,
    /// The name of an instruction, a computation, a module or an array.
    Name,
    /// The text of a shape.
    Shape,
    /// Axes of a mesh, joined by `,`.
    Axes,
    /// The names that the framework puts around an operation, joined by `/`.
    Scope,
    /// A file.
    Path,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 18] = [
        Kind::Instruction,
        Kind::Index,
        Kind::Count,
        Kind::Bytes,
        Kind::Flops,
        Kind::Seconds,
        Kind::FlopRate,
        Kind::ByteRate,
        Kind::Ratio,
        Kind::Number,
        Kind::Flag,
        Kind::Text,
        Kind::Word,
        Kind::Name,
        Kind::Shape,
        Kind::Axes,
        Kind::Scope,
        Kind::Path,
    ];

    /// The name used in schemas and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Instruction => "instruction",
            Kind::Index => "index",
            Kind::Count => "count",
            Kind::Bytes => "bytes",
            Kind::Flops => "flops",
            Kind::Seconds => "seconds",
            Kind::FlopRate => "flop_rate",
            Kind::ByteRate => "byte_rate",
            Kind::Ratio => "ratio",
            Kind::Number => "number",
            Kind::Flag => "flag",
            Kind::Text => "text",
            Kind::Word => "word",
            Kind::Name => "name",
            Kind::Shape => "shape",
            Kind::Axes => "axes",
            Kind::Scope => "scope",
            Kind::Path => "path",
        }
    }

    /// The kind called `word`.
    pub fn from_word(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// The unit of the values; empty without a unit.
    pub fn unit(self) -> &'static str {
        match self {
            Kind::Bytes => "B",
            Kind::Flops => "FLOP",
            Kind::Seconds => "s",
            Kind::FlopRate => "FLOP/s",
            Kind::ByteRate => "B/s",
            _ => "",
        }
    }

    /// Whether the values are real numbers, with NaN for unknown ones.
    pub fn is_real(self) -> bool {
        matches!(self, Kind::Seconds | Kind::Ratio | Kind::FlopRate | Kind::ByteRate)
    }

    /// Whether the values are texts.
    pub fn is_text(self) -> bool {
        use Kind::{Axes, Name, Path, Scope, Shape, Text, Word};
        matches!(self, Text | Word | Name | Shape | Axes | Scope | Path)
    }

    /// Whether the values are amounts, which may be added up.
    pub fn is_amount(self) -> bool {
        use Kind::{ByteRate, Bytes, Count, Flag, FlopRate, Flops, Number, Ratio, Seconds};
        let is_rate = matches!(self, FlopRate | ByteRate);
        is_rate || matches!(self, Count | Bytes | Flops | Seconds | Ratio | Number | Flag)
    }
}

/// The description of a column: its name, its values, their documentation, whether values may be
/// unknown, and whether they add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name, which is the same in every output.
    pub name: Cow<'static, str>,
    /// The kind of its values.
    pub kind: Kind,
    /// One sentence about the values.
    pub doc: Cow<'static, str>,
    /// The heading for people; empty if the name serves. See [`Field::heading`].
    pub label: Cow<'static, str>,
    /// Whether a value may be unknown or absent.
    pub is_nullable: bool,
    /// Whether values may be negative.
    pub is_signed: bool,
    /// Whether the sum over all rows is meaningful, so that totals include it.
    pub adds_up: bool,
}

impl Field {
    /// A column `name` of `kind` with documentation `doc`: never unknown, not summed.
    pub const fn new(kind: Kind, name: &'static str, doc: &'static str) -> Self {
        let (name, doc, label) = (Cow::Borrowed(name), Cow::Borrowed(doc), Cow::Borrowed(""));
        Self { name, kind, doc, label, is_nullable: false, is_signed: false, adds_up: false }
    }

    /// A column of texts known at run time.
    pub fn of(kind: Kind, name: String, doc: String, label: String) -> Self {
        let (name, doc, label) = (name.into(), doc.into(), label.into());
        Self { name, kind, doc, label, is_nullable: false, is_signed: false, adds_up: false }
    }

    /// Sets the heading.
    #[must_use]
    pub fn label(mut self, label: &'static str) -> Self {
        self.label = Cow::Borrowed(label);
        self
    }

    /// Allows unknown or absent values.
    #[must_use]
    pub fn nullable(mut self) -> Self {
        self.is_nullable = true;
        self
    }

    /// Allows negative values.
    #[must_use]
    pub fn signed(mut self) -> Self {
        self.is_signed = true;
        self
    }

    /// Marks values that add up over rows.
    #[must_use]
    pub fn summed(mut self) -> Self {
        self.adds_up = true;
        self
    }

    /// The same field with another name and documentation.
    #[must_use]
    pub fn renamed(mut self, name: &'static str, doc: &'static str) -> Self {
        (self.name, self.doc) = (Cow::Borrowed(name), Cow::Borrowed(doc));
        self
    }

    /// The heading for people.
    pub fn heading(&self) -> Cow<'_, str> {
        match &*self.label {
            "" if self.name.contains('_') => self.name.replace('_', " ").into(),
            "" => Cow::Borrowed(&self.name),
            label => Cow::Borrowed(label),
        }
    }

    /// The metadata that Arrow and Parquet keep with the column: kind, unit, heading and documentation.
    pub fn metadata(&self) -> [(&'static str, Cow<'_, str>); 4] {
        [
            ("kind", self.kind.as_str().into()),
            ("unit", self.kind.unit().into()),
            ("label", self.heading()),
            ("doc", Cow::Borrowed(&self.doc)),
        ]
    }

    /// The number that represents an unknown value in a column of integers; None if values are
    /// never unknown.
    pub fn unknown(&self) -> Option<i64> {
        let sentinel = if self.is_signed { i64::MIN } else { -1 };
        (self.is_nullable && !self.kind.is_text()).then_some(sentinel)
    }
}

macro_rules! constructors {
    ($($function:ident $kind:ident,)*) => {
        impl Field {
            $(
                #[doc = concat!("A column of [`Kind::", stringify!($kind), "`].")]
                pub const fn $function(name: &'static str, doc: &'static str) -> Self {
                    Self::new(Kind::$kind, name, doc)
                }
            )*
        }
    };
}

constructors! {
    instruction Instruction,
    index Index,
    count Count,
    bytes Bytes,
    flops Flops,
    seconds Seconds,
    flop_rate FlopRate,
    byte_rate ByteRate,
    ratio Ratio,
    number Number,
    flag Flag,
    text Text,
    word Word,
    name Name,
    shape Shape,
    axes Axes,
    scope Scope,
    path Path,
}
