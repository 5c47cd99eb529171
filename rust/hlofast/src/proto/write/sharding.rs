//! Shardings of all forms, meshes and device groups.

use super::metadata::metadata;
use super::wire::Message;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::decode::{
    AxisLookup, AxisReference, DeviceOrder, Iota, LeafSharding, Mesh, NamedSharding, Placement,
    Reduction, ReplicaGroups, ShardGroup, Sharding, SubgroupKind, Tiles,
};
use crate::text::Span;

const MAXIMAL: i64 = 1;
const TUPLE: i64 = 2;
const OTHER: i64 = 3;
const MANUAL: i64 = 4;
const UNKNOWN: i64 = 5;
const UNREDUCED: i64 = 6;

fn fault(message: impl Into<Box<str>>) -> ParseError {
    ParseError::new(ErrorKind::InvalidSharding, Span::EMPTY, message)
}

/// Encodes an `OpSharding`.
pub(super) fn sharding(sharding: &Sharding<'_>) -> Result<Message> {
    match sharding {
        Sharding::Single(only) => leaf(only),
        Sharding::Tuple(leaves) => {
            let mut message = Message::default();
            message.integer(1, TUPLE);
            for part in leaves {
                message.message(5, leaf(part)?);
            }
            Ok(message)
        }
    }
}

fn leaf(sharding: &LeafSharding<'_>) -> Result<Message> {
    let mut message = Message::default();
    let kind = match &sharding.placement {
        Placement::Replicated => 0,
        Placement::Manual => MANUAL,
        Placement::Unknown => UNKNOWN,
        Placement::Unreduced(reduction) => {
            let given = crate::ir::decode::given_reduction(&sharding.metadata);
            if *reduction != Reduction::Sum && given != Some(*reduction) {
                // The message has no field for the reduction, so it is stored in metadata, as in
                // XLA.
                let mut carrier = Message::default();
                carrier.text(1, b"sdy::reduction_op");
                carrier.text(2, reduction.as_str().to_ascii_uppercase().as_bytes());
                message.message(7, carrier);
            }
            UNREDUCED
        }
        Placement::Maximal(device) => {
            message.integers(4, [*device]);
            MAXIMAL
        }
        Placement::Tiled(tiles) => {
            tiled(&mut message, tiles)?;
            OTHER
        }
        Placement::Named(named) => {
            if sharding.group.is_some() {
                return Err(fault("shard_as and shard_like are not possible in mesh shardings"));
            }
            message.message(14, self::named(named, sharding)?);
            return Ok(message);
        }
    };
    message.integer(1, kind);
    if let Some(group) = sharding.group {
        let (number, is_like) = match group {
            ShardGroup::As(number) => (number, false),
            ShardGroup::Like(number) => (number, true),
        };
        message.flag(11, true);
        message.integer(12, number);
        message.flag(13, is_like);
    }
    for entry in &sharding.metadata {
        message.message(7, metadata(entry)?);
    }
    Ok(message)
}

fn tiled(message: &mut Message, tiles: &Tiles) -> Result<()> {
    let counts = crate::ir::decode::product(tiles.dimensions.iter().copied());
    if counts.is_none() || counts == Some(0) || counts != tiles.devices.len() {
        return Err(fault("a sharding with different numbers of tiles and devices"));
    }
    message.integers(3, tiles.dimensions.iter().copied());
    match &tiles.devices {
        DeviceOrder::List(devices) => message.integers(4, devices.iter().copied()),
        DeviceOrder::Iota(order) => iota(message, (9, 10), order)?,
    }
    match tiles.subgroups.as_slice() {
        [SubgroupKind::Replicated] => message.flag(6, true),
        kinds => message.integers(
            8,
            kinds.iter().map(|kind| match kind {
                SubgroupKind::Replicated => 0,
                SubgroupKind::Maximal => MAXIMAL,
                SubgroupKind::Manual => MANUAL,
                SubgroupKind::Unreduced => UNREDUCED,
            }),
        ),
    }
    Ok(())
}

/// Writes the sizes and the permutation of an order into two fields.
fn iota(message: &mut Message, numbers: (u32, u32), order: &Iota) -> Result<()> {
    // XLA does not check this and accesses memory out of bounds for an invalid order.
    if order.reader().is_none() {
        return Err(fault("a device order that is not a permutation"));
    }
    message.integers(numbers.0, order.reshape.iter().copied());
    message.integers(numbers.1, order.transpose.iter().map(|axis| i64::from(*axis)));
    Ok(())
}

fn named(sharding: &NamedSharding<'_>, leaf: &LeafSharding<'_>) -> Result<Message> {
    let mut message = Message::default();
    let lookup = sharding.mesh.lookup();
    message.message(2, mesh(&sharding.mesh)?);
    for dimension in &sharding.dimensions {
        let mut entry = Message::default();
        axes(&mut entry, 1, &lookup, &dimension.axes)?;
        entry.flag(2, !dimension.is_open);
        message.message(3, entry);
    }
    axes(&mut message, 4, &lookup, &sharding.replicated)?;
    let all = |message: &mut Message, number| {
        for place in 0..sharding.mesh.axes.len() as i64 {
            let mut axis = Message::default();
            axis.integer(1, place);
            message.message(number, axis);
        }
    };
    if let Some((reduction, listed)) = &sharding.unreduced {
        axes(&mut message, 5, &lookup, listed)?;
        message.integer(
            8,
            match reduction {
                Reduction::Sum => 0,
                Reduction::Max => 1,
                Reduction::Min => 2,
            },
        );
    }
    axes(&mut message, 7, &lookup, &sharding.manual)?;
    match sharding.whole {
        Some(SubgroupKind::Unreduced) => all(&mut message, 5),
        Some(SubgroupKind::Manual) => all(&mut message, 7),
        _ => {}
    }
    for entry in &leaf.metadata {
        message.message(6, metadata(entry)?);
    }
    Ok(message)
}

fn axes(
    message: &mut Message,
    number: u32,
    lookup: &AxisLookup<'_>,
    references: &[AxisReference<'_>],
) -> Result<()> {
    for reference in references {
        let Some(place) = lookup.axis(reference) else {
            let name = String::from_utf8_lossy(&reference.name);
            return Err(fault(format!("the mesh has no axis {name}")));
        };
        let mut axis = Message::default();
        axis.integer(1, place as i64);
        if let Some((before, size)) = reference.part {
            let mut part = Message::default();
            part.integer(1, before);
            part.integer(2, size);
            axis.message(2, part);
        }
        message.message(number, axis);
    }
    Ok(())
}

fn mesh(mesh: &Mesh<'_>) -> Result<Message> {
    let mut message = Message::default();
    if let Some(device) = mesh.maximal {
        message.integers(2, [device]);
        return Ok(message);
    }
    for (name, size) in &mesh.axes {
        let mut axis = Message::default();
        axis.text(1, name);
        axis.integer(2, *size);
        message.message(1, axis);
    }
    match &mesh.device_ids {
        None => {}
        Some(DeviceOrder::List(devices)) => message.integers(2, devices.iter().copied()),
        Some(DeviceOrder::Iota(order)) => {
            let mut transform = Message::default();
            iota(&mut transform, (1, 2), order)?;
            message.message(3, transform);
        }
    }
    Ok(message)
}

/// Writes the groups of a collective into the field of their form.
pub(super) fn replica_groups(fields: &mut Message, groups: &ReplicaGroups<'_>) -> Result<()> {
    let mut message = Message::default();
    match groups {
        ReplicaGroups::Everyone => fields.message(87, message),
        ReplicaGroups::Lists(lists) => {
            for list in lists.iter() {
                let mut group = Message::default();
                group.integers(1, list.iter().copied());
                message.message(1, group);
            }
            fields.message(87, message);
        }
        ReplicaGroups::Iota { groups, group_size, order } => {
            let counts = crate::ir::decode::product([*groups, *group_size]);
            if counts.is_none() || counts != order.len() {
                return Err(fault("groups that do not use all devices of their order"));
            }
            message.integer(1, *groups);
            message.integer(2, *group_size);
            iota(&mut message, (3, 4), order)?;
            fields.message(92, message);
        }
        ReplicaGroups::Mesh { mesh: devices, axes: along } => {
            message.message(1, mesh(devices)?);
            axes(&mut message, 2, &devices.lookup(), along)?;
            fields.message(93, message);
        }
    }
    Ok(())
}
