//! Replica groups in their three generations, stored in the compact form of the text.

use super::iota::{Iota, iota, product, square_list, write_list};
use super::mesh::{AxisReference, Mesh, at_mesh, axis_references, mesh};
use super::scan::{Trailing, integer, invalid_since, list, whole};
use crate::error::{ErrorKind, Result};
use crate::text::Cursor;

/// Lists of integers: one flat column, and the offset at which each list begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntegerLists {
    /// One entry more than lists.
    pub offsets: Vec<u32>,
    /// The integers of all lists.
    pub items: Vec<i64>,
}

impl Default for IntegerLists {
    fn default() -> Self {
        Self { offsets: vec![0], items: Vec::new() }
    }
}

impl IntegerLists {
    /// Number of lists.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is no list.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// List `index`.
    pub fn get(&self, index: usize) -> Option<&[i64]> {
        let start = *self.offsets.get(index)? as usize;
        self.items.get(start..*self.offsets.get(index + 1)? as usize)
    }

    /// The lists.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[i64]> {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }

    pub(crate) fn close_list(&mut self) {
        self.offsets.push(self.items.len() as u32);
    }
}

/// The device groups of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaGroups<'a> {
    /// `{}`: one group of all devices.
    Everyone,
    /// `{{0,1},{2,3}}`.
    Lists(IntegerLists),
    /// `[2,4]<=[4,2]T(1,0)`.
    Iota {
        /// Number of groups.
        groups: i64,
        /// Devices in each group.
        group_size: i64,
        /// The device order that is divided into groups.
        order: Iota,
    },
    /// `mesh['a'=2,'b'=4] {'b'}`.
    Mesh {
        /// The devices.
        mesh: Mesh<'a>,
        /// The axes along which the devices of one group differ.
        axes: Vec<AxisReference<'a>>,
    },
}

impl<'a> ReplicaGroups<'a> {
    /// Number of groups; None if a mesh lacks the axes or the number does not fit 64 bits.
    pub fn group_count(&self) -> Option<u64> {
        match self {
            ReplicaGroups::Everyone => Some(1),
            ReplicaGroups::Lists(lists) => Some(lists.len() as u64),
            ReplicaGroups::Iota { groups, .. } => u64::try_from(*groups).ok(),
            ReplicaGroups::Mesh { mesh, .. } => {
                mesh.device_count()?.checked_div(self.group_size()?)
            }
        }
    }

    /// Devices per group; None if group sizes differ, for `Everyone` (the number of devices is not
    /// written here), or if it does not fit 64 bits.
    pub fn group_size(&self) -> Option<u64> {
        match self {
            ReplicaGroups::Everyone => None,
            ReplicaGroups::Lists(lists) => {
                let mut sizes = lists.iter().map(<[i64]>::len);
                let first = sizes.next()?;
                sizes.all(|size| size == first).then_some(first as u64)
            }
            ReplicaGroups::Iota { group_size, .. } => u64::try_from(*group_size).ok(),
            ReplicaGroups::Mesh { mesh, axes } => {
                let lookup = mesh.lookup();
                let sizes: Option<Vec<i64>> = axes.iter().map(|axis| lookup.size(axis)).collect();
                product(sizes?)
            }
        }
    }

    /// For iota and mesh groups: an order of positions; cut into equal parts, it gives the groups.
    /// A mesh with its own device order still has to map positions to devices.
    fn positions(&self) -> Option<Iota> {
        match self {
            ReplicaGroups::Iota { order, groups, group_size } => {
                let fits = product([*groups, *group_size]) == order.len();
                fits.then(|| order.clone())
            }
            ReplicaGroups::Mesh { mesh, axes } => {
                let split = mesh.split(axes)?;
                let mut order = split.others();
                // Within a group XLA iterates over the axes in mesh order; parts of one axis keep
                // the order in which they are written.
                let lookup = mesh.lookup();
                let mut grouped: Vec<(usize, u32)> = Vec::with_capacity(axes.len());
                for (axis, dimension) in axes.iter().zip(&split.dimensions) {
                    grouped.push((lookup.axis(axis)?, *dimension));
                }
                grouped.sort_by_key(|(axis, _)| *axis);
                order.extend(grouped.into_iter().map(|(_, dimension)| dimension));
                Some(split.iota(order))
            }
            _ => None,
        }
    }

    fn device_at(&self, position: u64) -> Option<i64> {
        match self {
            ReplicaGroups::Mesh { mesh, .. } => mesh.device(position),
            _ => i64::try_from(position).ok(),
        }
    }

    /// Device `index` of group `group`; computed by arithmetic for compact groups. None if there is
    /// no such device, and for `Everyone`.
    pub fn device(&self, group: u64, index: u64) -> Option<i64> {
        if let ReplicaGroups::Lists(lists) = self {
            let list = lists.get(usize::try_from(group).ok()?)?;
            return list.get(usize::try_from(index).ok()?).copied();
        }
        let size = self.group_size()?;
        if index >= size || group >= self.group_count()? {
            return None;
        }
        let flat = group.checked_mul(size)?.checked_add(index)?;
        self.device_at(self.positions()?.get(flat)?)
    }

    /// All groups as lists of devices; None for `Everyone`, for groups that cannot be resolved, and
    /// for more than `limit` devices in total.
    pub fn expand(&self, limit: usize) -> Option<IntegerLists> {
        if let ReplicaGroups::Lists(lists) = self {
            return (lists.items.len() <= limit).then(|| lists.clone());
        }
        let (count, size) = (self.group_count()?, self.group_size()?);
        let total = count.checked_mul(size)?;
        let bound = u64::try_from(limit).ok()?.min(u64::from(u32::MAX));
        // An empty group has no devices but still takes one offset.
        if total > bound || count > bound {
            return None;
        }
        let order = self.positions()?;
        let reader = order.reader()?;
        let mut lists = IntegerLists::default();
        for group in 0..count {
            for index in 0..size {
                lists.items.push(self.device_at(reader.get(group * size + index)?)?);
            }
            lists.close_list();
        }
        Some(lists)
    }

    /// The canonical text.
    pub fn to_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        match self {
            ReplicaGroups::Everyone => text.extend_from_slice(b"{}"),
            ReplicaGroups::Lists(lists) => {
                text.push(b'{');
                for (i, list) in lists.iter().enumerate() {
                    text.extend_from_slice(if i > 0 { b",{" } else { b"{" });
                    write_list(&mut text, list.iter().copied());
                    text.push(b'}');
                }
                text.push(b'}');
            }
            ReplicaGroups::Iota { groups, group_size, order } => {
                text.extend_from_slice(format!("[{groups},{group_size}]<=").as_bytes());
                order.write(&mut text);
            }
            ReplicaGroups::Mesh { mesh, axes } => {
                mesh.write(&mut text);
                text.extend_from_slice(b" {");
                for (i, axis) in axes.iter().enumerate() {
                    if i > 0 {
                        text.push(b',');
                    }
                    axis.write(&mut text);
                }
                text.push(b'}');
            }
        }
        text
    }
}

/// `{{0,1},{2}}`.
pub(crate) fn integer_lists(cursor: &mut Cursor<'_>) -> Result<IntegerLists> {
    let mut lists = IntegerLists::default();
    list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            cursor.printed_integers(&mut lists.items);
            lists.items.push(integer(cursor)?);
            Ok(())
        })?;
        lists.close_list();
        Ok(())
    })?;
    Ok(lists)
}

/// `replica_groups=` of any generation.
pub(crate) fn decode_replica_groups(value: &[u8]) -> Result<ReplicaGroups<'_>> {
    whole(value, |cursor| {
        if at_mesh(cursor)? {
            let mesh = mesh(cursor, ErrorKind::InvalidAttribute)?;
            let (axes, _) = axis_references(cursor, false)?;
            return Ok(ReplicaGroups::Mesh { mesh, axes });
        }
        if cursor.peek() != b'[' {
            let lists = integer_lists(cursor)?;
            let everyone = lists.is_empty();
            return Ok(if everyone {
                ReplicaGroups::Everyone
            } else {
                ReplicaGroups::Lists(lists)
            });
        }
        let start = cursor.position();
        let sizes = square_list(cursor)?;
        cursor.skip_space()?;
        if !cursor.eat_bytes(b"<=") {
            return Err(cursor.expected("<=", "after the number and size of the groups"));
        }
        let order = iota(cursor, ErrorKind::InvalidAttribute)?;
        let &[groups, group_size] = sizes.as_slice() else {
            let message = "expected the number of groups and the size of a group";
            return Err(invalid_since(cursor, start, ErrorKind::InvalidAttribute, message));
        };
        Ok(ReplicaGroups::Iota { groups, group_size, order })
    })
}
