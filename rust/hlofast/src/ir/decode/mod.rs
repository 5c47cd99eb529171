//! Typed values of attributes: pure functions over the bytes of one value.
//!
//! Start at [`decode`]. Every decoder is linear in the text, bounded in depth, and never does work
//! proportional to a number in the text. Spans in errors are relative to the value; callers shift
//! them. Values borrow from the text.

mod frames;
mod groups;
mod header;
mod iota;
mod literal;
mod mesh;
mod metadata;
mod other;
mod scan;
mod sharding;
mod sharding_read;
mod sharding_text;
mod small_float;
mod string;
mod window;

pub use frames::{Frame, Frames, Positions, StackFrames};
pub use groups::{IntegerLists, ReplicaGroups};
pub use header::{
    BufferDonor, DebugAttribute, EntryLayout, HeaderValue, OriginRecovery, decode_header,
    first_duplicate_alias,
};
pub(crate) use iota::product;
pub use iota::{DeviceOrder, Iota};
pub use literal::{Extent, Literal, LiteralData, LiteralLeaf, self_typed_leaves};
pub use mesh::{AxisLookup, AxisReference, Mesh};
pub use metadata::{FrontendAttribute, Metadata, metadata_string};
pub use other::{
    Alias, Domain, Origin, OriginPart, OriginalValue, ResultAccuracy, ShapeIndex, Sparsity,
    SparsityConfig, Statistics,
};
pub use scan::DEPTH_LIMIT;
pub use sharding::{
    LeafSharding, NamedDimension, NamedSharding, Placement, Reduction, ShardGroup, Sharding,
    SubgroupKind, Tiles,
};
pub(crate) use sharding_read::given_reduction;
pub(crate) use small_float::float_value;
pub use string::{escape, escape_into, marker_sizes, quote, unescape, unescape_or_copy};
pub use window::{
    DimensionLabel, DimensionLabels, PaddingDimension, SliceDimension, WindowDimension,
};

use super::attribute::{Grammar, Key};
use super::opcode::Opcode;
use crate::error::Result;
use crate::text::{Cursor, is_identifier_byte};
use scan::{
    Trailing, boolean, bytes, float, integer, integers, list, name, printed_integers, string,
    whole, word,
};
use std::borrow::Cow;

/// The typed value of an attribute. XLA's defaults for absent attributes are not filled in.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue<'a> {
    /// `true` or `false`.
    Boolean(bool),
    /// `{true,false}`.
    Booleans(Vec<bool>),
    /// An integer.
    Integer(i64),
    /// A number.
    Float(f64),
    /// `{1,2}`.
    Integers(Vec<i64>),
    /// `{{0,1},{2}}`.
    IntegerLists(IntegerLists),
    /// `{{0,1},{1,0}}`: source and target of each transfer.
    SourceTargetPairs(Vec<(i64, i64)>),
    /// The content of a string; any bytes.
    Text(Cow<'a, [u8]>),
    /// A brace dictionary as written (`backend_config={...}`).
    Dictionary(&'a [u8]),
    /// An enumeration's word as written.
    Word(&'a [u8]),
    /// Several words of an enumeration.
    Words(Vec<&'a [u8]>),
    /// The name of a computation, without `%`, or the text of an inline one, with braces.
    Computation(&'a [u8]),
    /// Several computations.
    Computations(Vec<&'a [u8]>),
    /// Names of instructions, without `%`.
    Names(Vec<&'a [u8]>),
    /// One record per dimension of a window.
    Window(Vec<WindowDimension>),
    /// Roles of the dimensions of a convolution.
    DimensionLabels(DimensionLabels),
    /// One record per dimension of a pad.
    Padding(Vec<PaddingDimension>),
    /// One record per dimension of a slice.
    Slice(Vec<SliceDimension>),
    /// The device groups of a collective.
    ReplicaGroups(ReplicaGroups<'a>),
    /// How arrays are sharded over devices.
    Sharding(Sharding<'a>),
    /// Where the instruction comes from.
    Metadata(Box<Metadata<'a>>),
    /// The framework's own attributes.
    FrontendAttributes(Vec<FrontendAttribute<'a>>),
    /// The text of a shape.
    Shape(&'a [u8]),
    /// The texts of several shapes.
    Shapes(Vec<&'a [u8]>),
    /// The text of a literal with its own shapes (`literal=` of custom calls).
    Literal(&'a [u8]),
    /// Which operands share memory with the result.
    Aliases(Vec<Alias>),
    /// The required accuracy of the result.
    ResultAccuracy(ResultAccuracy<'a>),
    /// The values of the original program that the result holds.
    Origin(Origin<'a>),
    /// Numbers attached by tools; None for `{}`.
    Statistics(Option<Statistics<'a>>),
    /// The shardings on both sides of a domain instruction.
    Domain(Box<Domain<'a>>),
    /// N:M sparsity of a convolution.
    SparsityConfig(SparsityConfig),
    /// The value, as written, of an unknown attribute, or of a known attribute in a form of old
    /// texts.
    Raw(&'a [u8]),
}

/// The typed value of attribute `key` of an instruction with `opcode`. Unknown attributes are
/// `Raw`; known attributes that cannot be read are errors.
pub fn decode<'a>(key: &[u8], opcode: Opcode, value: &'a [u8]) -> Result<AttributeValue<'a>> {
    match Key::from_bytes(key) {
        Some(key) => decode_as(key.grammar(opcode), value),
        None => Ok(AttributeValue::Raw(value)),
    }
}

/// Decodes `value` by `grammar`.
pub(crate) fn decode_as(grammar: Grammar, value: &[u8]) -> Result<AttributeValue<'_>> {
    use AttributeValue as V;
    Ok(match grammar {
        Grammar::Integers => V::Integers(match printed_integers(value) {
            Some(values) => values,
            None => whole(value, |c| integers(c, Trailing::Nothing))?,
        }),
        Grammar::IntegerLists => V::IntegerLists(whole(value, groups::integer_lists)?),
        Grammar::Pairs => V::SourceTargetPairs(decode_pairs(value)?),
        Grammar::Groups => V::ReplicaGroups(groups::decode_replica_groups(value)?),
        Grammar::Integer | Grammar::Int32 => V::Integer(whole(value, integer)?),
        Grammar::Boolean => V::Boolean(whole(value, boolean)?),
        Grammar::Booleans => V::Booleans(decode_booleans(value)?),
        Grammar::Float => V::Float(whole(value, float)?),
        Grammar::Computation => decode_calls(value)?,
        Grammar::Computations => V::Computations(decode_computations(value)?),
        Grammar::Names => V::Names(decode_names(value)?),
        Grammar::Word(_) => V::Word(whole(value, |c| word(c, "a word"))?),
        Grammar::Precision => V::Words(decode_words(value)?),
        Grammar::Text => V::Text(whole(value, string)?),
        Grammar::BackendConfig => match value.trim_ascii_start().first() {
            Some(b'{') => V::Dictionary(whole(value, dictionary)?),
            _ => V::Text(whole(value, string)?),
        },
        Grammar::Window => V::Window(window::decode_window(value)?),
        Grammar::DimLabels => V::DimensionLabels(window::decode_dimension_labels(value)?),
        Grammar::Padding => V::Padding(window::decode_padding(value)?),
        Grammar::Slice => V::Slice(window::decode_slice(value)?),
        Grammar::Sharding => V::Sharding(sharding_read::decode_sharding(value)?),
        Grammar::Metadata => V::Metadata(Box::new(metadata::decode_metadata(value)?)),
        Grammar::Frontend => V::FrontendAttributes(metadata::decode_frontend_attributes(value)?),
        Grammar::Shape => V::Shape(value.trim_ascii()),
        Grammar::Shapes => V::Shapes(decode_shapes(value)?),
        Grammar::Literal => V::Literal(value.trim_ascii()),
        Grammar::Aliasing => V::Aliases(other::decode_aliases(value)?),
        Grammar::Accuracy => V::ResultAccuracy(other::decode_result_accuracy(value)?),
        Grammar::Origin => V::Origin(other::decode_origin(value)?),
        Grammar::Statistics => V::Statistics(other::decode_statistics(value)?),
        Grammar::Domain => V::Domain(Box::new(other::decode_domain(value)?)),
        Grammar::Sparsity => V::SparsityConfig(other::decode_sparsity_config(value)?),
    })
}

fn dictionary<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    cursor.skip_space()?;
    let span = cursor.dictionary()?;
    Ok(bytes(cursor, span))
}

fn decode_pairs(value: &[u8]) -> Result<Vec<(i64, i64)>> {
    let mut pairs = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            cursor.expect(b'{', "at the start of a pair")?;
            let source = integer(cursor)?;
            cursor.expect(b',', "between source and target")?;
            let target = integer(cursor)?;
            cursor.expect(b'}', "after source and target")?;
            pairs.push((source, target));
            Ok(())
        })
    })?;
    Ok(pairs)
}

fn decode_booleans(value: &[u8]) -> Result<Vec<bool>> {
    let mut values = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            values.push(boolean(cursor)?);
            Ok(())
        })
    })?;
    Ok(values)
}

fn decode_words(value: &[u8]) -> Result<Vec<&[u8]>> {
    let mut words = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            words.push(word(cursor, "a word")?);
            Ok(())
        })
    })?;
    Ok(words)
}

/// A name, or a computation in braces.
fn computation<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    cursor.skip_space()?;
    if cursor.peek() != b'{' {
        return name(cursor);
    }
    let span = cursor.balanced()?;
    Ok(bytes(cursor, span))
}

/// One computation; several without braces, which XLA prints for some `calls=`, are accepted.
fn decode_calls(value: &[u8]) -> Result<AttributeValue<'_>> {
    whole(value, |cursor| {
        let mut all = vec![computation(cursor)?];
        while cursor.eat(b',')? {
            all.push(computation(cursor)?);
        }
        Ok(match all.as_slice() {
            [name] => AttributeValue::Computation(name),
            _ => AttributeValue::Computations(all),
        })
    })
}

fn decode_computations(value: &[u8]) -> Result<Vec<&[u8]>> {
    let mut all = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            all.push(computation(cursor)?);
            Ok(())
        })
    })?;
    Ok(all)
}

fn decode_names(value: &[u8]) -> Result<Vec<&[u8]>> {
    let mut names = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            names.push(name(cursor)?);
            Ok(())
        })
    })?;
    Ok(names)
}

/// Skips the text of one shape: word, brackets, layout; or a tuple or buffer.
pub(crate) fn shape_text<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    cursor.skip_space()?;
    let start = cursor.position();
    if cursor.peek() != b'(' {
        while is_identifier_byte(cursor.peek()) {
            cursor.advance(1);
        }
        cursor.skip_space()?;
    }
    if cursor.position() == start && cursor.peek() != b'(' || !matches!(cursor.peek(), b'[' | b'(')
    {
        return Err(cursor.expected("a shape", ""));
    }
    let is_array = cursor.balanced()?.range().next().is_some_and(|at| cursor.text()[at] == b'[');
    let end = cursor.position();
    if is_array {
        cursor.skip_space()?;
        if cursor.peek() == b'{' {
            cursor.balanced()?;
        } else {
            cursor.set_position(end);
        }
    }
    Ok(cursor.since(start))
}

fn decode_shapes(value: &[u8]) -> Result<Vec<&[u8]>> {
    let mut shapes = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            shapes.push(shape_text(cursor)?);
            Ok(())
        })
    })?;
    Ok(shapes)
}
