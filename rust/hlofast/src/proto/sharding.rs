//! `OpSharding`, meshes and device groups as text.

use super::out::Out;
use super::record::{List, Store, repeated};
use super::shape::MAX_DEPTH;
use super::wire::{Fault, Read};

const REPLICATED: i64 = 0;
const MAXIMAL: i64 = 1;
const TUPLE: i64 = 2;
const OTHER: i64 = 3;

fn type_word(code: i64) -> Option<&'static [u8]> {
    Some(match code {
        REPLICATED => b"replicated",
        MAXIMAL => b"maximal",
        4 => b"manual",
        5 => b"unknown",
        6 => b"unreduced",
        _ => return None,
    })
}

/// Appends `{devices=[2,2]<=[4]}` or a similar sharding.
pub(super) fn write(out: &mut Out<'_>, sharding: &[u8], depth: u32) -> Read<()> {
    if depth >= MAX_DEPTH {
        return Err(Fault::new(sharding, "a sharding nested deeper than 100"));
    }
    let mut store = Store::default();
    let fields = store.read(sharding, repeated(&[3, 4, 5, 7, 8, 9, 10]))?;
    if let Some(named) = fields.bytes(14) {
        return write_named(out, named);
    }
    let code = fields.integer(1);
    out.byte(b'{');
    match code {
        TUPLE => {
            for (index, element) in fields.messages(5).enumerate() {
                if index > 0 {
                    out.push(b", ");
                    super::shape::index_comment(out, index);
                }
                write(out, element, depth + 1)?;
            }
            out.byte(b'}');
            return Ok(());
        }
        MAXIMAL => {
            let devices = fields.list(4)?;
            let [device] = &devices[..] else {
                return Err(Fault::new(sharding, "a maximal sharding without exactly one device"));
            };
            out.push(b"maximal device=");
            out.integer(*device);
        }
        OTHER => write_tiles(out, &fields)?,
        _ => match type_word(code) {
            Some(word) => out.push(word),
            None => return Err(Fault::new(sharding, format!("a sharding of unknown type {code}"))),
        },
    }
    if fields.is_set(11) {
        out.push(if fields.is_set(13) { b" shard_like " } else { b" shard_as " });
        out.integer(fields.integer(12));
    }
    write_metadata(out, fields.messages(7).collect(), b" ")?;
    out.byte(b'}');
    Ok(())
}

fn write_tiles(out: &mut Out<'_>, fields: &super::record::Record<'_, '_>) -> Read<()> {
    let (dimensions, devices) = (fields.list(3)?, fields.list(4)?);
    let (reshape, order) = (fields.list(9)?, fields.list(10)?);
    let product = |sizes: &[i64]| {
        sizes.iter().try_fold(1i64, |all, size| all.checked_mul(*size).filter(|all| *all > 0))
    };
    let count = if reshape.is_empty() { Some(devices.len() as i64) } else { product(&reshape) };
    if count.is_none() || product(&dimensions) != count {
        let message = "a sharding with different numbers of tiles and devices";
        return Err(Fault::new(fields.message(), message));
    }
    if count == Some(1) {
        // XLA reads tiles for a single device as no tiles.
        out.push(b"replicated");
        return Ok(());
    }
    out.push(b"devices=[");
    out.plain_integers(&dimensions);
    out.byte(b']');
    if reshape.is_empty() {
        out.plain_integers(&devices);
    } else {
        write_iota(out, &reshape, &order, fields.message())?;
    }
    if fields.is_set(6) {
        out.push(b" last_tile_dim_replicate");
    }
    for (index, code) in fields.list(8)?.iter().copied().enumerate() {
        out.push(if index == 0 { b" last_tile_dims={" } else { b", " });
        match type_word(code) {
            Some(word) => out.push(word),
            None => {
                return Err(Fault::new(fields.message(), format!("tiles of unknown type {code}")));
            }
        }
    }
    if fields.has(8) {
        out.byte(b'}');
    }
    Ok(())
}

/// Writes `<=[4,2]T(1,0)`, without `T` for one dimension.
fn write_iota(out: &mut Out<'_>, reshape: &[i64], order: &[i64], message: &[u8]) -> Read<()> {
    if order.len() != reshape.len() {
        return Err(Fault::new(message, "a device order that does not match its sizes"));
    }
    out.push(b"<=[");
    out.plain_integers(reshape);
    out.byte(b']');
    if reshape.len() > 1 {
        out.push(b"T(");
        out.plain_integers(order);
        out.byte(b')');
    }
    Ok(())
}

/// Writes ` metadata={...}`, or a list if there are several.
fn write_metadata(out: &mut Out<'_>, metadata: Vec<&[u8]>, separator: &[u8]) -> Read<()> {
    if metadata.is_empty() {
        return Ok(());
    }
    out.push(separator);
    out.push(b"metadata=");
    if let ([entry], b" ") = (metadata.as_slice(), separator) {
        return super::metadata::write(out, entry, &[]).map(drop);
    }
    for (index, entry) in metadata.iter().enumerate() {
        out.push(if index == 0 { b"{" } else { b", " });
        super::metadata::write(out, entry, &[])?;
    }
    out.byte(b'}');
    Ok(())
}

/// Writes `{mesh['a'=2,'b'=2], [{'a'}, {'b'}]}`.
fn write_named(out: &mut Out<'_>, sharding: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let fields = store.read(sharding, repeated(&[3, 4, 5, 6, 7]))?;
    let mesh = Mesh::read(fields.bytes(2).unwrap_or_default())?;
    let dimensions: Vec<&[u8]> = fields.messages(3).collect();
    let axes = |number: u32| -> Vec<&[u8]> { fields.messages(number).collect() };
    let (replicated, unreduced, manual) = (axes(4), axes(5), axes(7));
    let is_plain = dimensions.is_empty();
    let others = |lists: [&Vec<&[u8]>; 2]| lists.iter().all(|list| list.is_empty());
    let metadata: Vec<&[u8]> = fields.messages(6).collect();
    let word: Option<&[u8]> = if !is_plain {
        None
    } else if others([&unreduced, &manual]) && replicated.is_empty() && mesh.maximal.is_none() {
        Some(b"replicated")
    } else if others([&replicated, &manual]) && mesh.is_all(&unreduced) {
        Some(b"unreduced")
    } else if others([&replicated, &unreduced]) && mesh.is_all(&manual) {
        Some(b"manual")
    } else {
        None
    };
    let reduction: &[u8] = match fields.integer(8) {
        1 => b"max",
        2 => b"min",
        _ => b"",
    };
    out.byte(b'{');
    mesh.write(out)?;
    match word {
        Some(word) if reduction.is_empty() => {
            out.push(b", ");
            out.push(word);
        }
        _ => {
            write_dimensions(out, &mesh, &dimensions)?;
            write_axes_named(out, &mesh, b"replicated", b"", &replicated)?;
            write_axes_named(out, &mesh, b"unreduced", reduction, &unreduced)?;
            write_axes_named(out, &mesh, b"manual", b"", &manual)?;
        }
    }
    write_metadata(out, metadata, b", ")?;
    out.byte(b'}');
    Ok(())
}

fn write_dimensions(out: &mut Out<'_>, mesh: &Mesh<'_>, dimensions: &[&[u8]]) -> Read<()> {
    for (index, dimension) in dimensions.iter().enumerate() {
        out.push(if index == 0 { b", [{" } else { b", {" });
        let mut store = Store::default();
        let fields = store.read(dimension, repeated(&[1]))?;
        let mut count = 0;
        for axis in fields.messages(1) {
            if count > 0 {
                out.push(b", ");
            }
            count += 1;
            mesh.write_axis(out, axis)?;
        }
        if !fields.is_set(2) {
            out.push(if count > 0 { b", ?" } else { b"?" });
        }
        out.byte(b'}');
    }
    if !dimensions.is_empty() {
        out.byte(b']');
    }
    Ok(())
}

fn write_axes_named(
    out: &mut Out<'_>,
    mesh: &Mesh<'_>,
    name: &[u8],
    reduction: &[u8],
    axes: &[&[u8]],
) -> Read<()> {
    if axes.is_empty() {
        return Ok(());
    }
    out.push(b", ");
    out.push(name);
    out.byte(b'=');
    out.push(reduction);
    mesh.write_axes(out, axes, b", ")
}

/// A mesh whose axes are referred to by index.
struct Mesh<'a> {
    axes: Vec<(&'a [u8], i64)>,
    devices: List,
    reshape: List,
    order: List,
    /// The only device of a mesh without axes.
    maximal: Option<i64>,
    message: &'a [u8],
}

impl<'a> Mesh<'a> {
    fn read(message: &'a [u8]) -> Read<Mesh<'a>> {
        let mut store = Store::default();
        let fields = store.read(message, repeated(&[1, 2]))?;
        let mut axes = Vec::new();
        for axis in fields.messages(1) {
            let mut store = Store::default();
            let axis = store.read(axis, 0)?;
            axes.push((axis.bytes(1).unwrap_or_default(), axis.integer(2)));
        }
        let devices = fields.list(2)?;
        let mut mesh = Mesh {
            maximal: devices.first().copied().filter(|_| axes.is_empty()),
            axes,
            devices,
            reshape: List::default(),
            order: List::default(),
            message,
        };
        if let Some(transform) = fields.bytes(3) {
            let mut store = Store::default();
            let transform = store.read(transform, repeated(&[1, 2]))?;
            (mesh.reshape, mesh.order) = (transform.list(1)?, transform.list(2)?);
        }
        Ok(mesh)
    }

    /// Whether `axes` are all whole axes of the mesh, in order.
    fn is_all(&self, axes: &[&[u8]]) -> bool {
        let is_whole = |(index, axis): (usize, &&[u8])| {
            let mut store = Store::default();
            let Ok(axis) = store.read(axis, 0) else { return false };
            axis.integer(1) == index as i64 && !axis.has(2)
        };
        !axes.is_empty() && axes.len() == self.axes.len() && axes.iter().enumerate().all(is_whole)
    }

    /// Writes `mesh['a'=2,'b'=4]`, followed by the device order if it is not the default.
    fn write(&self, out: &mut Out) -> Read<()> {
        if let Some(device) = self.maximal {
            out.push(b"maximal_mesh[device_id=");
            out.integer(device);
            out.byte(b']');
            return Ok(());
        }
        out.push(b"mesh[");
        for (index, (name, size)) in self.axes.iter().enumerate() {
            if index > 0 {
                out.byte(b',');
            }
            write_axis_name(out, name)?;
            out.byte(b'=');
            out.integer(*size);
        }
        out.byte(b']');
        if !self.devices.is_empty() {
            out.push(b", device_ids=(");
            out.plain_integers(&self.devices);
            out.byte(b')');
        } else if self.reshape.len() > 1 {
            out.push(b", device_ids=([");
            out.plain_integers(&self.reshape);
            out.push(b"]T(");
            out.plain_integers(&self.order);
            out.push(b"))");
        }
        Ok(())
    }

    fn write_axes(&self, out: &mut Out<'_>, axes: &[&[u8]], comma: &[u8]) -> Read<()> {
        out.byte(b'{');
        for (index, axis) in axes.iter().enumerate() {
            if index > 0 {
                out.push(comma);
            }
            self.write_axis(out, axis)?;
        }
        out.byte(b'}');
        Ok(())
    }

    /// Writes `'a'`, or `'a':(1)2` for a part of an axis.
    fn write_axis(&self, out: &mut Out<'_>, axis: &[u8]) -> Read<()> {
        let mut store = Store::default();
        let fields = store.read(axis, 0)?;
        let number = fields.integer(1);
        let known = usize::try_from(number).ok().and_then(|number| self.axes.get(number));
        let Some((name, _)) = known else {
            let at = if axis.is_empty() { self.message } else { axis };
            let message = format!("axis {number} of a mesh of {} axes", self.axes.len());
            return Err(Fault::new(at, message));
        };
        write_axis_name(out, name)?;
        if let Some(part) = fields.bytes(2) {
            let mut store = Store::default();
            let part = store.read(part, 0)?;
            out.push(b":(");
            out.integer(part.integer(1));
            out.byte(b')');
            out.integer(part.integer(2));
        }
        Ok(())
    }
}

fn write_axis_name(out: &mut Out<'_>, name: &[u8]) -> Read<()> {
    out.limit_reference(name)?;
    out.byte(b'\'');
    out.escaped(name);
    out.byte(b'\'');
    Ok(())
}

/// Appends the groups of a collective: fields 92, 93, 49, 87, in the order in which XLA looks for
/// them.
pub(super) fn write_groups(out: &mut Out<'_>, fields: &super::record::Record<'_, '_>) -> Read<()> {
    let mut store = Store::default();
    if let Some(iota) = fields.bytes(92) {
        return write_iota_groups(out, iota);
    }
    if let Some(list) = fields.bytes(93) {
        let list = store.read(list, repeated(&[2]))?;
        let mesh = Mesh::read(list.bytes(1).unwrap_or_default())?;
        mesh.write(out)?;
        out.byte(b' ');
        let axes: Vec<&[u8]> = list.messages(2).collect();
        return mesh.write_axes(out, &axes, b",");
    }
    if fields.has(49) {
        return write_group_list(out, fields.messages(49));
    }
    let list = store.read(fields.bytes(87).unwrap_or_default(), repeated(&[1]))?;
    // Until 2025, the field for lists could contain the compact form.
    match list.bytes(2) {
        Some(iota) => write_iota_groups(out, iota),
        None => write_group_list(out, list.messages(1)),
    }
}

fn write_group_list<'a>(out: &mut Out<'_>, groups: impl Iterator<Item = &'a [u8]>) -> Read<()> {
    out.byte(b'{');
    for (index, group) in groups.enumerate() {
        if index > 0 {
            out.byte(b',');
        }
        let mut store = Store::default();
        out.integers(&store.read(group, repeated(&[1]))?.list(1)?);
    }
    out.byte(b'}');
    Ok(())
}

fn write_iota_groups(out: &mut Out<'_>, iota: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let fields = store.read(iota, repeated(&[3, 4]))?;
    out.byte(b'[');
    out.integer(fields.integer(1));
    out.byte(b',');
    out.integer(fields.integer(2));
    out.byte(b']');
    write_iota(out, &fields.list(3)?, &fields.list(4)?, iota)
}
