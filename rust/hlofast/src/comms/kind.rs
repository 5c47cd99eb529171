//! Kinds of collectives and the bytes each sends.

use crate::ir::Opcode;

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CollectiveKind {
    /// Every device gets the sum (or other reduction) of all devices' arrays.
    AllReduce,
    /// Every device gets all devices' shards.
    AllGather,
    /// Every device gets a shard of the reduction.
    ReduceScatter,
    /// Every device sends a different part to every other device.
    AllToAll,
    /// An all-to-all with parts of different sizes.
    RaggedAllToAll,
    /// Every device sends to one other device.
    CollectivePermute,
    /// One device sends to all others.
    CollectiveBroadcast,
    /// One device sends, another receives.
    SendReceive,
    /// Alpa's reduction across the meshes of a pipeline.
    CrossMeshAllReduce,
}

impl CollectiveKind {
    /// Every kind, by its code.
    pub const ALL: [CollectiveKind; 9] = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
        CollectiveKind::RaggedAllToAll,
        CollectiveKind::CollectivePermute,
        CollectiveKind::CollectiveBroadcast,
        CollectiveKind::SendReceive,
        CollectiveKind::CrossMeshAllReduce,
    ];

    /// The kind of collective that `opcode` performs or starts.
    #[inline]
    pub fn of_opcode(opcode: Opcode) -> Option<CollectiveKind> {
        Some(match opcode {
            Opcode::AllReduce | Opcode::AllReduceStart => CollectiveKind::AllReduce,
            Opcode::AllGather | Opcode::AllGatherStart => CollectiveKind::AllGather,
            Opcode::ReduceScatter => CollectiveKind::ReduceScatter,
            Opcode::AllToAll => CollectiveKind::AllToAll,
            Opcode::RaggedAllToAll => CollectiveKind::RaggedAllToAll,
            Opcode::CollectivePermute | Opcode::CollectivePermuteStart => {
                CollectiveKind::CollectivePermute
            }
            Opcode::CollectiveBroadcast => CollectiveKind::CollectiveBroadcast,
            Opcode::Send | Opcode::Recv => CollectiveKind::SendReceive,
            _ => return None,
        })
    }

    /// The name in tables: HLO's name if there is one.
    pub fn as_str(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all-reduce",
            CollectiveKind::AllGather => "all-gather",
            CollectiveKind::ReduceScatter => "reduce-scatter",
            CollectiveKind::AllToAll => "all-to-all",
            CollectiveKind::RaggedAllToAll => "ragged-all-to-all",
            CollectiveKind::CollectivePermute => "collective-permute",
            CollectiveKind::CollectiveBroadcast => "collective-broadcast",
            CollectiveKind::SendReceive => "send-recv",
            CollectiveKind::CrossMeshAllReduce => "cross-mesh-all-reduce",
        }
    }

    /// Whether the collective consists of transfers between two devices, whose cost does not depend
    /// on the group size.
    pub fn is_point_to_point(self) -> bool {
        matches!(self, CollectiveKind::CollectivePermute | CollectiveKind::SendReceive)
    }

    /// Bytes that each device sends when `group_size` devices exchange a full array of `payload`
    /// bytes (see [`super::Collective::payload`]) in a ring, rounded down.
    ///
    /// An all-reduce sends 2(n-1)/n of the array (a reduce-scatter and an all-gather); all-gather,
    /// reduce-scatter and all-to-all send (n-1)/n; a permute or send sends the whole array. A
    /// broadcast passes the array along the ring: (n-1)/n on average. Group sizes of 0 and 1 send
    /// nothing.
    pub fn ring_wire_bytes(self, payload: u64, group_size: u64) -> u64 {
        let part = |rounds: u128| {
            let Some(others) = group_size.checked_sub(1) else { return 0 };
            let sent = rounds * u128::from(payload) * u128::from(others) / u128::from(group_size);
            u64::try_from(sent).unwrap_or(u64::MAX)
        };
        match self {
            CollectiveKind::AllReduce | CollectiveKind::CrossMeshAllReduce => part(2),
            CollectiveKind::CollectivePermute | CollectiveKind::SendReceive => payload,
            _ => part(1),
        }
    }
}
