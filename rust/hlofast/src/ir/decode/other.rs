//! Rarer values: aliasing, origins, statistics, accuracies, sparsity, domains.

use super::scan::{
    DEPTH_LIMIT, Trailing, float, integer, integers, invalid, invalid_since, key, list, string,
    whole, word,
};
use super::sharding::Sharding;
use super::sharding_read::sharding;
use crate::error::{ErrorKind, Result};
use crate::text::Cursor;
use smallvec::SmallVec;
use std::borrow::Cow;

/// A path into a tuple. Few tuples are nested.
pub type ShapeIndex = SmallVec<[i64; 2]>;

/// One entry of `output_to_operand_aliasing` or `input_output_alias`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Path into the result.
    pub output_index: ShapeIndex,
    /// Operand or parameter number.
    pub number: i64,
    /// Path into that operand or parameter.
    pub index: ShapeIndex,
    /// `must-alias` instead of `may-alias`.
    pub must_alias: bool,
}

/// `{}`, `{0}`, `{0,1}`, `{0,}`.
pub(crate) fn shape_index(cursor: &mut Cursor<'_>) -> Result<ShapeIndex> {
    integers(cursor, Trailing::Comma)
}

/// `(number, index[, kind])`.
pub(crate) fn alias_target(cursor: &mut Cursor<'_>) -> Result<(i64, ShapeIndex, bool)> {
    cursor.expect(b'(', "before the aliased parameter")?;
    let number = integer(cursor)?;
    cursor.expect(b',', "after the parameter number")?;
    let index = shape_index(cursor)?;
    let mut must_alias = false;
    if cursor.eat(b',')? {
        cursor.skip_space()?;
        let start = cursor.position();
        must_alias = match word(cursor, "may-alias or must-alias")? {
            b"may-alias" | b"may_alias" => false,
            b"must-alias" | b"must_alias" => true,
            _ => {
                let message = "expected may-alias or must-alias";
                return Err(invalid_since(cursor, start, ErrorKind::InvalidHeader, message));
            }
        };
    }
    cursor.expect(b')', "after the aliased parameter")?;
    Ok((number, index, must_alias))
}

/// `{ {0}: (1, {}), {1}: (2, {0}, must-alias) }`.
pub(crate) fn decode_aliases(value: &[u8]) -> Result<Vec<Alias>> {
    let mut aliases = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Comma, |cursor| {
            let output_index = shape_index(cursor)?;
            cursor.expect(b':', "after the output index")?;
            cursor.skip_space()?;
            let (number, index, must_alias) = if cursor.peek() == b'(' {
                alias_target(cursor)?
            } else {
                // Texts of 2020 and before give only the number.
                (integer(cursor)?, ShapeIndex::new(), false)
            };
            aliases.push(Alias { output_index, number, index, must_alias });
            Ok(())
        })
    })?;
    Ok(aliases)
}

/// An instruction of the original program and the path into its result.
pub type OriginalValue<'a> = (Cow<'a, [u8]>, ShapeIndex);

/// A piece of `origin={...}`: the tree written as a flat sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPart<'a> {
    /// An opening parenthesis: a tuple starts.
    Open,
    /// A closing parenthesis.
    Close,
    /// A leaf: the original instruction and the path into its result, if known.
    Leaf(Option<OriginalValue<'a>>),
}

/// `origin={...}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    /// `{[synthetic_call]}`.
    SyntheticCall,
    /// The original value of each leaf.
    Tree(Vec<OriginPart<'a>>),
}

/// `{"name" {0,1}}` or `{}`.
pub(crate) fn original_array<'a>(cursor: &mut Cursor<'a>) -> Result<Option<OriginalValue<'a>>> {
    cursor.expect(b'{', "at the start of an original value")?;
    if cursor.eat(b'}')? {
        return Ok(None);
    }
    let name = string(cursor)?;
    cursor.skip_space()?;
    let index = if cursor.peek() == b'{' { shape_index(cursor)? } else { ShapeIndex::new() };
    cursor.expect(b'}', "at the end of an original value")?;
    Ok(Some((name, index)))
}

pub(crate) fn decode_origin(value: &[u8]) -> Result<Origin<'_>> {
    whole(value, |cursor| {
        cursor.expect(b'{', "at the start of the origin")?;
        if cursor.eat(b'[')? {
            let start = cursor.position();
            if word(cursor, "synthetic_call")? != b"synthetic_call" {
                let message = "expected synthetic_call";
                return Err(invalid_since(cursor, start, ErrorKind::InvalidAttribute, message));
            }
            cursor.expect(b']', "after synthetic_call")?;
            cursor.expect(b'}', "at the end of the origin")?;
            return Ok(Origin::SyntheticCall);
        }
        let mut parts = Vec::new();
        let mut depth = 0usize;
        loop {
            cursor.skip_space()?;
            match cursor.peek() {
                b'(' => {
                    cursor.advance(1);
                    depth += 1;
                    if depth > DEPTH_LIMIT {
                        return Err(invalid(cursor, ErrorKind::TooDeep, "the origin is too deep"));
                    }
                    parts.push(OriginPart::Open);
                }
                b')' if depth > 0 => {
                    cursor.advance(1);
                    depth -= 1;
                    parts.push(OriginPart::Close);
                }
                b',' => cursor.advance(1),
                b'{' => parts.push(OriginPart::Leaf(original_array(cursor)?)),
                b'}' => {
                    cursor.advance(1);
                    // XLA accepts unclosed parentheses.
                    parts.extend(std::iter::repeat_n(OriginPart::Close, depth));
                    return Ok(Origin::Tree(parts));
                }
                _ => return Err(cursor.expected("an original value", "")),
            }
        }
    })
}

/// `statistics={visualizing_index=0,name=1.5}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics<'a> {
    /// Which of the values to show.
    pub visualizing_index: i64,
    /// Name and value of each statistic.
    pub values: Vec<(&'a [u8], f64)>,
}

pub(crate) fn decode_statistics(value: &[u8]) -> Result<Option<Statistics<'_>>> {
    let mut statistics = None;
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            let key = key(cursor)?;
            match &mut statistics {
                // The first entry is the index, whatever its key.
                None => {
                    let visualizing_index = integer(cursor)?;
                    statistics = Some(Statistics { visualizing_index, values: Vec::new() });
                }
                Some(statistics) => statistics.values.push((key, float(cursor)?)),
            }
            Ok(())
        })
    })?;
    Ok(statistics)
}

/// `result_accuracy={...}`.
#[derive(Clone, Debug, PartialEq)]
pub enum ResultAccuracy<'a> {
    /// `{mode=highest}`; the word as written.
    Mode(&'a [u8]),
    /// `{tolerance={atol=.. rtol=.. ulps=..}}`; 0 where not given.
    Tolerance {
        /// Absolute.
        atol: f64,
        /// Relative.
        rtol: f64,
        /// In units in the last place.
        ulps: f64,
    },
}

pub(crate) fn decode_result_accuracy(value: &[u8]) -> Result<ResultAccuracy<'_>> {
    whole(value, |cursor| {
        cursor.expect(b'{', "at the start of the accuracy")?;
        cursor.skip_space()?;
        let start = cursor.position();
        let accuracy = match key(cursor)? {
            b"mode" => ResultAccuracy::Mode(word(cursor, "a mode")?),
            b"tolerance" => {
                let mut numbers = [0f64; 3];
                list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
                    cursor.skip_space()?;
                    let start = cursor.position();
                    let slot = match key(cursor)? {
                        b"atol" => &mut numbers[0],
                        b"rtol" => &mut numbers[1],
                        b"ulps" => &mut numbers[2],
                        _ => {
                            let message = "expected atol, rtol or ulps";
                            let kind = ErrorKind::InvalidAttribute;
                            return Err(invalid_since(cursor, start, kind, message));
                        }
                    };
                    *slot = float(cursor)?;
                    Ok(())
                })?;
                let [atol, rtol, ulps] = numbers;
                ResultAccuracy::Tolerance { atol, rtol, ulps }
            }
            _ => {
                let message = "expected mode or tolerance";
                return Err(invalid_since(cursor, start, ErrorKind::InvalidAttribute, message));
            }
        };
        cursor.expect(b'}', "at the end of the accuracy")?;
        Ok(accuracy)
    })
}

/// N:M sparsity of one operand of a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sparsity {
    /// Elements kept in each block.
    pub kept: i64,
    /// Elements of a block.
    pub block: i64,
    /// The dimension that is divided into blocks.
    pub dimension: i64,
    /// Distance between the elements of a block.
    pub stride: i64,
}

/// `sparsity_config={lhs={...} rhs={...}}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SparsityConfig {
    /// Sparsity of the input.
    pub lhs: Option<Sparsity>,
    /// Sparsity of the kernel.
    pub rhs: Option<Sparsity>,
}

pub(crate) fn decode_sparsity_config(value: &[u8]) -> Result<SparsityConfig> {
    whole(value, |cursor| {
        let mut config = SparsityConfig::default();
        cursor.expect(b'{', "at the start of the sparsity")?;
        while !cursor.eat(b'}')? {
            let start = cursor.position();
            let side = key(cursor)?;
            let slot = match side {
                b"lhs" => &mut config.lhs,
                b"rhs" => &mut config.rhs,
                _ => {
                    let message = "expected lhs or rhs";
                    return Err(invalid_since(cursor, start, ErrorKind::InvalidAttribute, message));
                }
            };
            let mut sparsity = Sparsity::default();
            cursor.expect(b'{', "at the start of an operand's sparsity")?;
            while !cursor.eat(b'}')? {
                let start = cursor.position();
                match key(cursor)? {
                    b"sparsity" => {
                        sparsity.kept = integer(cursor)?;
                        cursor.expect(b'x', "between the two numbers")?;
                        sparsity.block = integer(cursor)?;
                    }
                    b"dimension" => sparsity.dimension = integer(cursor)?,
                    b"stride" => sparsity.stride = integer(cursor)?,
                    _ => {
                        let message = "expected sparsity, dimension or stride";
                        let kind = ErrorKind::InvalidAttribute;
                        return Err(invalid_since(cursor, start, kind, message));
                    }
                }
            }
            *slot = Some(sparsity);
        }
        Ok(config)
    })
}

/// `domain={kind="sharding", entry={...}, exit={...}}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain<'a> {
    /// The kind of domain.
    pub kind: Cow<'a, [u8]>,
    /// The sharding on the way in.
    pub entry: Sharding<'a>,
    /// The sharding on the way out.
    pub exit: Sharding<'a>,
}

pub(crate) fn decode_domain(value: &[u8]) -> Result<Domain<'_>> {
    whole(value, |cursor| {
        let (mut kind, mut entry, mut exit) = (None, None, None);
        cursor.expect(b'{', "at the start of the domain")?;
        loop {
            while cursor.eat(b',')? {}
            if cursor.eat(b'}')? {
                break;
            }
            let start = cursor.position();
            match key(cursor)? {
                b"kind" => kind = Some(string(cursor)?),
                b"entry" => entry = Some(sharding(cursor)?),
                b"exit" => exit = Some(sharding(cursor)?),
                _ => {
                    let message = "expected kind, entry or exit";
                    return Err(invalid_since(cursor, start, ErrorKind::InvalidAttribute, message));
                }
            }
        }
        match (kind, entry, exit) {
            (Some(kind), Some(entry), Some(exit)) => Ok(Domain { kind, entry, exit }),
            _ => Err(cursor.expected("kind, entry and exit", "in a domain")),
        }
    })
}
