//! Device meshes with named axes, and references to axes or parts of them.

use super::iota::{DeviceOrder, Iota, iota, product, write_list};
use super::scan::{Trailing, at_string, integer, invalid_since, list, string, word};
use super::string::escape_into;
use crate::error::{ErrorKind, Result};
use crate::text::Cursor;
use std::borrow::Cow;
use std::collections::HashMap;

/// `mesh['a'=2,'b'=4], device_ids=(...)` or `maximal_mesh[device_id=1]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh<'a> {
    /// Name and size of each axis, major first.
    pub axes: Vec<(Cow<'a, [u8]>, i64)>,
    /// The order of the devices; None = 0, 1, 2, ...
    pub device_ids: Option<DeviceOrder>,
    /// The device of a `maximal_mesh`: one device, no axes.
    pub maximal: Option<i64>,
}

/// A mesh axis, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisReference<'a> {
    /// Name of the axis, or its number in decimal if no axis has that name.
    pub name: Cow<'a, [u8]>,
    /// For a part: the product of the sizes before it within the axis, and its size.
    pub part: Option<(i64, i64)>,
}

/// The axes of a mesh by name.
pub struct AxisLookup<'m> {
    axes: &'m [(Cow<'m, [u8]>, i64)],
    numbers: HashMap<&'m [u8], usize>,
}

impl AxisLookup<'_> {
    /// The number of the axis that `reference` means.
    pub fn axis(&self, reference: &AxisReference<'_>) -> Option<usize> {
        self.numbers.get(reference.name.as_ref()).copied().or_else(|| {
            let number: usize = std::str::from_utf8(&reference.name).ok()?.parse().ok()?;
            (number < self.axes.len()).then_some(number)
        })
    }

    /// The size of the axis or part that `reference` means.
    pub fn size(&self, reference: &AxisReference<'_>) -> Option<i64> {
        let (_, full) = self.axes.get(self.axis(reference)?)?;
        Some(reference.part.map_or(*full, |(_, size)| size))
    }
}

/// A mesh reshaped so that every referenced axis or part is a dimension of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SplitMesh {
    /// The sizes.
    pub sizes: Vec<i64>,
    /// The dimension of each reference.
    pub dimensions: Vec<u32>,
}

impl<'a> Mesh<'a> {
    /// Number of devices; None if it does not fit 64 bits.
    pub fn device_count(&self) -> Option<u64> {
        product(self.axes.iter().map(|(_, size)| *size))
    }

    /// An index of the axes by name.
    pub fn lookup(&self) -> AxisLookup<'_> {
        let mut numbers = HashMap::with_capacity(self.axes.len());
        for (number, (name, _)) in self.axes.iter().enumerate() {
            numbers.entry(name.as_ref()).or_insert(number);
        }
        AxisLookup { axes: &self.axes, numbers }
    }

    /// The device at flat position `index` of the mesh.
    pub fn device(&self, index: u64) -> Option<i64> {
        match (&self.device_ids, self.maximal) {
            (_, Some(device)) => (index == 0).then_some(device),
            (Some(order), None) => order.get(index),
            (None, None) => {
                (index < self.device_count()?).then(|| i64::try_from(index).ok()).flatten()
            }
        }
    }

    /// Splits the axes so that each of `references` is one dimension. None if a reference names an
    /// unknown axis, its part does not divide the axis, or two references overlap.
    pub(crate) fn split<'r>(
        &self,
        references: impl IntoIterator<Item = &'r AxisReference<'a>>,
    ) -> Option<SplitMesh>
    where
        'a: 'r,
    {
        // (axis, start, end, reference): an interval of divisors, [pre, pre * size).
        let mut wanted = Vec::new();
        let lookup = self.lookup();
        for (i, reference) in references.into_iter().enumerate() {
            let axis = lookup.axis(reference)?;
            let full = self.axes.get(axis)?.1;
            let (before, size) = reference.part.unwrap_or((1, full));
            let end = before.checked_mul(size).filter(|_| before > 0 && size > 0)?;
            wanted.push((axis, before, end, i));
        }
        let mut dimensions = vec![0u32; wanted.len()];
        wanted.sort_unstable();
        let mut sizes = Vec::new();
        let mut wanted = wanted.into_iter().peekable();
        for (axis, (_, full)) in self.axes.iter().enumerate() {
            let mut done = 1i64;
            while let Some((_, start, end, i)) = wanted.next_if(|next| next.0 == axis) {
                if start < done || start % done != 0 || full % end != 0 {
                    return None;
                }
                if start != done {
                    sizes.push(start / done);
                }
                *dimensions.get_mut(i)? = sizes.len() as u32;
                sizes.push(end / start);
                done = end;
            }
            if done != *full {
                sizes.push(full / done);
            }
        }
        Some(SplitMesh { sizes, dimensions })
    }

    /// Appends the canonical text.
    pub fn write(&self, text: &mut Vec<u8>) {
        if let Some(device) = self.maximal {
            text.extend_from_slice(format!("maximal_mesh[device_id={device}]").as_bytes());
            return;
        }
        text.extend_from_slice(b"mesh[");
        for (i, (name, size)) in self.axes.iter().enumerate() {
            text.extend_from_slice(if i > 0 { b",'" } else { b"'" });
            escape_into(name, text);
            text.extend_from_slice(format!("'={size}").as_bytes());
        }
        text.push(b']');
        if let Some(order) = &self.device_ids {
            text.extend_from_slice(b", device_ids=(");
            match order {
                DeviceOrder::Iota(iota) => iota.write(text),
                DeviceOrder::List(list) => write_list(text, list.iter().copied()),
            }
            text.push(b')');
        }
    }
}

impl SplitMesh {
    /// The dimensions that no reference took, in mesh order.
    pub fn others(&self) -> Vec<u32> {
        let mut free = vec![true; self.sizes.len()];
        for dimension in &self.dimensions {
            if let Some(free) = free.get_mut(*dimension as usize) {
                *free = false;
            }
        }
        free.iter().enumerate().filter(|(_, free)| **free).map(|(i, _)| i as u32).collect()
    }

    /// The iota over the mesh's positions with its dimensions in this order.
    pub fn iota(self, order: Vec<u32>) -> Iota {
        Iota { reshape: self.sizes, transpose: order }
    }
}

impl AxisReference<'_> {
    /// Appends the canonical text: `'a'` or `'a':(2)4`.
    pub fn write(&self, text: &mut Vec<u8>) {
        text.push(b'\'');
        escape_into(&self.name, text);
        text.push(b'\'');
        if let Some((before, size)) = self.part {
            text.extend_from_slice(format!(":({before}){size}").as_bytes());
        }
    }
}

/// Whether a mesh is next.
pub(crate) fn at_mesh(cursor: &mut Cursor<'_>) -> Result<bool> {
    cursor.skip_space()?;
    let mut ahead = *cursor;
    Ok(matches!(ahead.identifier(), b"mesh" | b"maximal_mesh"))
}

/// Reads a mesh with its device order, and a comma after it if there is one.
pub(crate) fn mesh<'a>(cursor: &mut Cursor<'a>, kind: ErrorKind) -> Result<Mesh<'a>> {
    let mut mesh = Mesh { axes: Vec::new(), device_ids: None, maximal: None };
    if word(cursor, "mesh")? == b"maximal_mesh" {
        cursor.expect(b'[', "after maximal_mesh")?;
        let start = cursor.position();
        if word(cursor, "device_id")? != b"device_id" {
            return Err(invalid_since(cursor, start, kind, "expected device_id"));
        }
        cursor.expect(b'=', "after device_id")?;
        mesh.maximal = Some(integer(cursor)?);
        cursor.expect(b']', "at the end of the mesh")?;
    } else {
        list(cursor, (b'[', b']'), Trailing::Nothing, |cursor| {
            let name = string(cursor)?;
            cursor.expect(b'=', "after the name of a mesh axis")?;
            let start = cursor.position();
            let size = integer(cursor)?;
            if size < 0 {
                return Err(invalid_since(cursor, start, kind, "a mesh axis has a negative size"));
            }
            mesh.axes.push((name, size));
            Ok(())
        })?;
    }
    let comma = cursor.eat(b',')?;
    cursor.skip_space()?;
    if comma && cursor.rest().starts_with(b"device_ids") {
        cursor.advance(b"device_ids".len());
        cursor.expect(b'=', "after device_ids")?;
        cursor.expect(b'(', "at the start of the device order")?;
        cursor.skip_space()?;
        let order = if cursor.peek() == b'[' {
            let order = iota(cursor, kind)?;
            cursor.expect(b')', "at the end of the device order")?;
            DeviceOrder::Iota(order)
        } else {
            let mut devices = Vec::new();
            while !cursor.eat(b')')? {
                if !devices.is_empty() {
                    cursor.expect(b',', "between device numbers")?;
                }
                devices.push(integer(cursor)?);
            }
            DeviceOrder::List(devices)
        };
        mesh.device_ids = Some(order);
        cursor.eat(b',')?;
    }
    Ok(mesh)
}

/// Reads one axis reference.
pub(crate) fn axis_reference<'a>(cursor: &mut Cursor<'a>) -> Result<AxisReference<'a>> {
    let name = string(cursor)?;
    let mut part = None;
    if cursor.eat(b':')? {
        cursor.expect(b'(', "before the size in front of a sub-axis")?;
        let before = integer(cursor)?;
        cursor.expect(b')', "after the size in front of a sub-axis")?;
        part = Some((before, integer(cursor)?));
    }
    Ok(AxisReference { name, part })
}

/// Reads `{'a', 'b':(2)2}`; with `open`, a last `?` is allowed and reported.
pub(crate) fn axis_references<'a>(
    cursor: &mut Cursor<'a>,
    open: bool,
) -> Result<(Vec<AxisReference<'a>>, bool)> {
    let mut axes = Vec::new();
    let mut is_open = false;
    list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
        if is_open {
            return Err(cursor.expected("}", "after '?'"));
        }
        if open && !at_string(cursor)? && cursor.peek() == b'?' {
            cursor.advance(1);
            is_open = true;
            return Ok(());
        }
        axes.push(axis_reference(cursor)?);
        Ok(())
    })?;
    Ok((axes, is_open))
}
