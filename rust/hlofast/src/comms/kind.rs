//! Kinds of collectives, and what each sends.

use crate::ir::Opcode;

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CollectiveKind {
    /// Everyone gets the sum (or what the reducer makes) of everyone's array.
    AllReduce,
    /// Everyone gets everyone's part.
    AllGather,
    /// Everyone gets a part of the sum.
    ReduceScatter,
    /// Everyone sends each other one a part.
    AllToAll,
    /// The same with parts of different sizes.
    RaggedAllToAll,
    /// Everyone sends to one other.
    CollectivePermute,
    /// One sends to all.
    CollectiveBroadcast,
    /// One sends, another receives.
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

    /// The kind of instructions with `opcode`: those that do the work or start it.
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

    /// Its name in tables: HLO's where there is one.
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

    /// Whether it is made of transfers from one device to one other, for which the number of
    /// devices does not matter.
    pub fn is_point_to_point(self) -> bool {
        matches!(self, CollectiveKind::CollectivePermute | CollectiveKind::SendReceive)
    }

    /// The bytes of the whole array that the collective is about: of an all-gather what it makes,
    /// of all others what it is given.
    pub fn payload(self, payload_in: u64, payload_out: u64) -> u64 {
        match self {
            CollectiveKind::AllGather => payload_out,
            _ => payload_in,
        }
    }

    /// Bytes that each device sends when `group_size` devices exchange a whole array of `payload`
    /// bytes (see [`CollectiveKind::payload`]) around a ring, rounded down.
    ///
    /// An all-reduce sends 2(n-1)/n of the array (a reduce-scatter and an all-gather), all-gather,
    /// reduce-scatter and all-to-all (n-1)/n, a permute and a send all of it. A broadcast passes
    /// it on along the ring: (n-1)/n on average. Group sizes of 0 and 1 send nothing.
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
