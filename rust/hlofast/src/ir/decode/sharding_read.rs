//! The reader of shardings.

use super::iota::{DeviceOrder, iota, square_list};
use super::mesh::{at_mesh, axis_references, mesh};
use super::metadata::{Metadata, metadata};
use super::scan::{Trailing, integer, invalid_since, list, whole, word};
use super::sharding::{
    LeafSharding, NamedDimension, NamedSharding, Placement, Reduction, ShardGroup, Sharding,
    SubgroupKind, Tiles,
};
use crate::error::{ErrorKind, Result};
use crate::ir::dtype::ElementType;
use crate::text::Cursor;

const KIND: ErrorKind = ErrorKind::InvalidSharding;

/// `sharding={...}`.
pub(crate) fn decode_sharding(value: &[u8]) -> Result<Sharding<'_>> {
    whole(value, sharding)
}

/// Reads a sharding with its braces.
pub(crate) fn sharding<'a>(cursor: &mut Cursor<'a>) -> Result<Sharding<'a>> {
    cursor.skip_space()?;
    let mut ahead = *cursor;
    ahead.expect(b'{', "at the start of the sharding")?;
    ahead.skip_space()?;
    if !matches!(ahead.peek(), b'{' | b'}') {
        return Ok(Sharding::Single(Box::new(leaf(cursor)?)));
    }
    let mut leaves = Vec::new();
    list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
        leaves.push(leaf(cursor)?);
        Ok(())
    })?;
    Ok(Sharding::Tuple(leaves))
}

fn leaf<'a>(cursor: &mut Cursor<'a>) -> Result<LeafSharding<'a>> {
    cursor.expect(b'{', "at the start of a sharding")?;
    if at_mesh(cursor)? { named(cursor) } else { words(cursor) }
}

/// The words of a first- or second-generation sharding, which may come in any order.
#[derive(Default)]
struct Words {
    replicated: bool,
    manual: bool,
    unknown: bool,
    maximal: bool,
    unreduced: Option<Reduction>,
    dimensions: Option<Vec<i64>>,
    devices: Option<DeviceOrder>,
    subgroups: Vec<SubgroupKind>,
}

fn words<'a>(cursor: &mut Cursor<'a>) -> Result<LeafSharding<'a>> {
    let start = cursor.position().saturating_sub(1);
    let mut words = Words::default();
    let mut group = None;
    let mut origins = Vec::new();
    while !cursor.eat(b'}')? {
        let at = cursor.position();
        match cursor.peek() {
            b'[' => {
                // Texts of 2018 have the tile's shape in front: `f32[5,10]`.
                cursor.balanced()?;
                continue;
            }
            b'-' | b'0'..=b'9' => {
                words.devices = Some(DeviceOrder::List(device_list(cursor)?));
                continue;
            }
            _ => {}
        }
        match word(cursor, "a word of a sharding")? {
            b"replicated" => words.replicated = true,
            b"manual" => words.manual = true,
            b"unknown" => words.unknown = true,
            b"maximal" => words.maximal = true,
            b"unreduced" => {
                let op = if cursor.eat(b'=')? { reduction(cursor)? } else { Reduction::Sum };
                words.unreduced = Some(op);
            }
            b"device" => {
                cursor.expect(b'=', "after device")?;
                words.devices = Some(DeviceOrder::List(vec![integer(cursor)?]));
            }
            b"devices" => {
                cursor.expect(b'=', "after devices")?;
                words.dimensions = Some(square_list(cursor)?);
                cursor.skip_space()?;
                if cursor.eat_bytes(b"<=") {
                    words.devices = Some(DeviceOrder::Iota(iota(cursor, KIND)?));
                }
            }
            b"last_tile_dim_replicate" => words.subgroups = vec![SubgroupKind::Replicated],
            b"last_tile_dims" => {
                cursor.expect(b'=', "after last_tile_dims")?;
                words.subgroups = subgroups(cursor)?;
            }
            b"shard_as" => group = Some(ShardGroup::As(integer(cursor)?)),
            b"shard_like" => group = Some(ShardGroup::Like(integer(cursor)?)),
            b"metadata" => {
                cursor.expect(b'=', "after metadata")?;
                origins = metadata_list(cursor)?;
            }
            other if ElementType::from_bytes(other).is_some() => {}
            _ => return Err(invalid_since(cursor, at, KIND, "unknown word in a sharding")),
        }
    }
    let mut placement = placement(cursor, start, words)?;
    if let (Placement::Unreduced(op), Some(given)) = (&mut placement, given_reduction(&origins)) {
        *op = given;
    }
    Ok(LeafSharding { placement, group, metadata: origins })
}

/// A reduction other than the sum is stored as `metadata={op_type="sdy::reduction_op" ...}`.
pub(crate) fn given_reduction(origins: &[Metadata<'_>]) -> Option<Reduction> {
    let origin = origins.iter().find(|m| m.op_type.as_deref() == Some(b"sdy::reduction_op"))?;
    Reduction::from_word(origin.op_name.as_deref()?)
}

/// Chooses the placement that the words mean; the order of the cases is XLA's precedence.
fn placement<'a>(cursor: &Cursor<'_>, start: usize, words: Words) -> Result<Placement<'a>> {
    let fail = |message: &str| Err(invalid_since(cursor, start, KIND, message));
    let count = words.devices.as_ref().map(DeviceOrder::len);
    if words.maximal && !words.replicated {
        return match (count, words.devices) {
            (Some(Some(1)), Some(order)) => match order.get(0) {
                Some(device) => Ok(Placement::Maximal(device)),
                None => fail("the device number is out of range"),
            },
            _ => fail("a maximal sharding needs exactly one device"),
        };
    }
    let plain = match (words.replicated, words.manual, words.unknown, words.unreduced) {
        (true, ..) => Some(Placement::Replicated),
        (_, true, ..) => Some(Placement::Manual),
        (_, _, true, _) => Some(Placement::Unknown),
        (.., Some(op)) => Some(Placement::Unreduced(op)),
        _ => None,
    };
    if let Some(placement) = plain {
        return Ok(placement);
    }
    let (Some(dimensions), Some(devices)) = (words.dimensions, words.devices) else {
        return fail("expected devices=[...], replicated, maximal, manual, unreduced or unknown");
    };
    if words.subgroups.len() > dimensions.len() {
        return fail("there are more subgroups than dimensions");
    }
    Ok(Placement::Tiled(Tiles { dimensions, devices, subgroups: words.subgroups }))
}

/// `0,1,2`: the device list of the first generation.
fn device_list(cursor: &mut Cursor<'_>) -> Result<Vec<i64>> {
    let mut devices = Vec::new();
    cursor.printed_integers(&mut devices);
    devices.push(integer(cursor)?);
    while cursor.eat(b',')? {
        devices.push(integer(cursor)?);
    }
    Ok(devices)
}

fn reduction(cursor: &mut Cursor<'_>) -> Result<Reduction> {
    cursor.skip_space()?;
    let at = cursor.position();
    Reduction::from_word(word(cursor, "sum, max or min")?)
        .ok_or_else(|| invalid_since(cursor, at, KIND, "expected sum, max or min"))
}

fn subgroups(cursor: &mut Cursor<'_>) -> Result<Vec<SubgroupKind>> {
    let mut kinds = Vec::new();
    list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
        cursor.skip_space()?;
        let at = cursor.position();
        match SubgroupKind::from_word(word(cursor, "a kind of subgroup")?) {
            Some(kind) => kinds.push(kind),
            None => {
                let message = "expected replicated, manual, maximal or unreduced";
                return Err(invalid_since(cursor, at, KIND, message));
            }
        }
        Ok(())
    })?;
    Ok(kinds)
}

/// `{...}` or `{{...}, {...}}`.
fn metadata_list<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<Metadata<'a>>> {
    let mut ahead = *cursor;
    ahead.expect(b'{', "at the start of the metadata")?;
    ahead.skip_space()?;
    if ahead.peek() != b'{' {
        return Ok(vec![metadata(cursor)?]);
    }
    let mut all = Vec::new();
    list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
        all.push(metadata(cursor)?);
        Ok(())
    })?;
    Ok(all)
}

/// Reads a mesh sharding after its opening brace.
fn named<'a>(cursor: &mut Cursor<'a>) -> Result<LeafSharding<'a>> {
    let start = cursor.position();
    let mesh = mesh(cursor, KIND)?;
    let mut named = NamedSharding {
        mesh,
        dimensions: Vec::new(),
        replicated: Vec::new(),
        unreduced: None,
        manual: Vec::new(),
        whole: None,
    };
    let mut group = None;
    let mut origins = Vec::new();
    cursor.eat(b',')?;
    cursor.skip_space()?;
    if cursor.peek() == b'[' {
        list(cursor, (b'[', b']'), Trailing::Nothing, |cursor| {
            let (axes, is_open) = axis_references(cursor, true)?;
            named.dimensions.push(NamedDimension { axes, is_open });
            Ok(())
        })?;
    }
    loop {
        while cursor.eat(b',')? {}
        if cursor.eat(b'}')? {
            break;
        }
        let at = cursor.position();
        let word = word(cursor, "a word of a sharding")?;
        let has_value = cursor.eat(b'=')?;
        match (word, has_value) {
            (b"replicated", false) => named.whole = Some(SubgroupKind::Replicated),
            (b"manual", false) => named.whole = Some(SubgroupKind::Manual),
            (b"unreduced", false) => {
                named.whole = Some(SubgroupKind::Unreduced);
                named.unreduced = Some((Reduction::Sum, Vec::new()));
            }
            (b"replicated", true) => named.replicated = axis_references(cursor, false)?.0,
            (b"manual", true) => named.manual = axis_references(cursor, false)?.0,
            (b"unreduced", true) => {
                cursor.skip_space()?;
                let op = if cursor.peek() == b'{' { Reduction::Sum } else { reduction(cursor)? };
                cursor.skip_space()?;
                let axes = if cursor.peek() == b'{' {
                    axis_references(cursor, false)?.0
                } else {
                    named.whole = Some(SubgroupKind::Unreduced);
                    Vec::new()
                };
                named.unreduced = Some((op, axes));
            }
            (b"shard_as", false) => group = Some(ShardGroup::As(integer(cursor)?)),
            (b"shard_like", false) => group = Some(ShardGroup::Like(integer(cursor)?)),
            (b"metadata", true) => origins = metadata_list(cursor)?,
            _ => return Err(invalid_since(cursor, at, KIND, "unknown word in a sharding")),
        }
    }
    let lists = !(named.dimensions.is_empty()
        && named.replicated.is_empty()
        && named.manual.is_empty()
        && named.unreduced.as_ref().is_none_or(|(_, axes)| axes.is_empty()));
    if named.whole.is_some() && lists {
        let message = "a sharding of the whole array cannot list axes too";
        return Err(invalid_since(cursor, start, KIND, message));
    }
    Ok(LeafSharding { placement: Placement::Named(named), group, metadata: origins })
}
