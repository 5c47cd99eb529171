//! Device groups of collectives, in one form for all spellings.

use super::digits::{Digit, complement, normalise, numbers, product, regular};
use super::spellings::{Lift, owned, pattern};
use crate::error::Result;
use crate::ir::decode::{AttributeValue, ReplicaGroups, decode};
use crate::ir::{Module, Opcode, Row};
use std::fmt::Write as _;

/// The meaning of the numbers in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupMode {
    /// Replicas; every partition has its own groups.
    CrossReplica,
    /// Partitions; every replica has its own groups.
    CrossPartition,
    /// Replicas, each with all of its partitions.
    CrossReplicaAndPartition,
    /// Devices: `replica * partitions + partition`.
    FlattenedId,
}

impl GroupMode {
    /// XLA's rule: without a channel the numbers are replicas. With a channel they are partitions
    /// if the collective has no `use_global_device_ids`, replicas if it is false, and devices if it
    /// is true.
    pub fn from_attributes(has_channel: bool, use_global_device_ids: Option<bool>) -> Self {
        match (has_channel, use_global_device_ids) {
            (_, Some(true)) => GroupMode::FlattenedId,
            (false, _) => GroupMode::CrossReplica,
            (true, None) => GroupMode::CrossPartition,
            (true, Some(false)) => GroupMode::CrossReplicaAndPartition,
        }
    }

    /// XLA's name of the mode.
    pub fn as_str(self) -> &'static str {
        match self {
            GroupMode::CrossReplica => "cross_replica",
            GroupMode::CrossPartition => "cross_partition",
            GroupMode::CrossReplicaAndPartition => "cross_replica_and_partition",
            GroupMode::FlattenedId => "flattened_id",
        }
    }
}

/// The number of devices that a module runs on, if its text tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupContext {
    /// `replica_count` of the header; None if absent.
    pub replica_count: Option<u64>,
    /// `num_partitions` of the header; None if absent.
    pub num_partitions: Option<u64>,
    /// Number of devices from a mesh or from other groups, used if the header has no counts.
    pub device_count: Option<u64>,
}

impl GroupContext {
    /// The counts in the module's header.
    pub fn of(module: &Module) -> Self {
        let count = |key: &str| {
            let text = std::str::from_utf8(module.bytes(module.header_attribute(key)?)).ok()?;
            text.trim().parse::<u64>().ok().filter(|count| *count > 0)
        };
        Self {
            replica_count: count("replica_count"),
            num_partitions: count("num_partitions"),
            device_count: None,
        }
    }

    /// The context with the device count of `mesh`, unless a count is known already.
    pub fn with_mesh(self, mesh: &super::Mesh) -> Self {
        Self { device_count: self.device_count.or(Some(mesh.device_count())), ..self }
    }

    /// Whether the header names neither replicas nor partitions. XLA omits counts of 1, but dumps
    /// of some years omit both counts.
    pub fn header_is_silent(&self) -> bool {
        self.replica_count.is_none() && self.num_partitions.is_none()
    }

    /// Replicas and partitions; if only one is present, the other is 1.
    pub(super) fn counts(&self) -> Option<(u64, u64)> {
        if self.header_is_silent() {
            return None;
        }
        let (replicas, partitions) =
            (self.replica_count.unwrap_or(1), self.num_partitions.unwrap_or(1));
        let total = replicas.checked_mul(partitions)?;
        i64::try_from(total).ok().map(|_| (replicas, partitions))
    }

    /// Partition and replica of device `device`.
    pub(crate) fn place_of(&self, device: u64) -> (u64, u64) {
        if self.header_is_silent() {
            // The program has only partitions or only replicas, so device numbers are
            // numbers of partitions or of replicas.
            return (device, device);
        }
        let partitions = self.num_partitions.unwrap_or(1).max(1);
        (device % partitions, device / partitions)
    }

    /// Number of devices; None if unknown.
    pub fn devices(&self) -> Option<u64> {
        match self.counts() {
            Some((replicas, partitions)) => Some(replicas * partitions),
            None => self.device_count,
        }
    }
}

/// How the devices of one group are spread over blocks of consecutive devices (hosts, slices).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupSpan {
    /// Number of blocks that a group touches.
    pub blocks: u64,
    /// Devices of the group in each block.
    pub per_block: u64,
}

/// The groups of a collective. Regular groups are stored as a few numbers, however many devices
/// they hold; other groups are stored as written. Order within groups and of groups is not kept.
#[derive(Clone, Debug)]
pub struct DeviceGroups {
    form: Form,
    mode: GroupMode,
    /// Replicas and partitions; (1, 1) if the numbers are device numbers anyway.
    counts: (u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One group of all devices; their number is unknown.
    Everyone,
    /// The digits of the device number that vary within a group.
    Regular { digits: Vec<Digit>, device_count: u64 },
    /// Lists of numbers as `mode` defines them, ascending.
    Lists(Vec<Vec<u64>>),
    /// Iota or mesh groups that are irregular or invalid.
    Written(ReplicaGroups<'static>),
}

/// Whether both are the same set of groups; irregular groups are compared by the numbers in the
/// text.
impl PartialEq for DeviceGroups {
    fn eq(&self, other: &Self) -> bool {
        let same_numbers = self.mode == other.mode && self.counts == other.counts;
        self.form == other.form
            && (same_numbers || matches!(self.form, Form::Everyone | Form::Regular { .. }))
    }
}

impl Eq for DeviceGroups {}

impl DeviceGroups {
    /// The groups that `replica_groups` (None if the attribute is missing) describe in a module.
    ///
    /// Without groups, all devices form one group. So does `{{0}}` if more than one participant is
    /// known: every participant has to be in a group, and Alpa's fork of XLA wrote this for "all
    /// devices". Otherwise `{{0}}` is a group of one.
    pub fn new(
        groups: Option<&ReplicaGroups<'_>>,
        mode: GroupMode,
        context: &GroupContext,
    ) -> Self {
        let lift = Lift { mode, counts: context.counts() };
        let members = lift.members().or(context.device_count);
        let make = |form| Self { form, mode, counts: lift.counts.unwrap_or((1, 1)) };
        let everyone = || match members {
            Some(members) => lift.regular(&normalise(all(members)).unwrap_or_default(), members),
            None => Form::Everyone,
        };
        let groups = match groups {
            None | Some(ReplicaGroups::Everyone) => return make(everyone()),
            Some(groups) => groups,
        };
        if let ReplicaGroups::Lists(lists) = groups {
            let is_lone_zero = lists.len() == 1 && lists.items == [0];
            if is_lone_zero && members.is_some_and(|members| members > 1) {
                return make(everyone());
            }
            return lift.lists(lists, groups);
        }
        match pattern(groups) {
            Some((digits, members)) => lift.sized(digits, members, groups),
            None => make(Form::Written(owned(groups))),
        }
    }

    /// Whether instructions with this opcode have groups.
    pub fn has_groups(opcode: Opcode) -> bool {
        use Opcode as O;
        has_global_ids(opcode)
            || matches!(opcode, O::AllToAll | O::RaggedAllToAll | O::CollectiveBroadcast)
    }

    /// The groups of the collective in `row`: `replica_groups`, `channel_id` and
    /// `use_global_device_ids` of its attributes.
    pub fn of_row(module: &Module, row: Row, context: &GroupContext) -> Result<Self> {
        let opcode = module.opcode(row);
        let (mut groups, mut has_channel, mut global) = (None, false, None);
        for attribute in module.attributes(row) {
            let value = module.bytes(attribute.value);
            match module.bytes(attribute.key) {
                b"channel_id" => has_channel = true,
                b"use_global_device_ids" => global = Some(value == b"true"),
                b"replica_groups" => {
                    let decoded = decode(b"replica_groups", opcode, value)
                        .map_err(|error| error.shifted(attribute.value.start))?;
                    if let AttributeValue::ReplicaGroups(decoded) = decoded {
                        groups = Some(decoded);
                    }
                }
                _ => {}
            }
        }
        // All-reduce, all-gather and reduce-scatter have the attribute; XLA omits `false`.
        if has_channel && global.is_none() && has_global_ids(opcode) {
            global = Some(false);
        }
        Ok(Self::new(groups.as_ref(), GroupMode::from_attributes(has_channel, global), context))
    }

    /// The meaning of the numbers in the text.
    pub fn mode(&self) -> GroupMode {
        self.mode
    }

    /// Whether all devices are one group.
    pub fn is_everyone(&self) -> bool {
        match &self.form {
            Form::Everyone => true,
            Form::Regular { digits, device_count } => product(digits) == *device_count,
            _ => self.group_count() == Some(1) && self.counts == (1, 1),
        }
    }

    /// Number of groups; None for invalid groups.
    pub fn group_count(&self) -> Option<u64> {
        let written = match &self.form {
            Form::Everyone => return Some(1),
            Form::Regular { digits, device_count } => return Some(device_count / product(digits)),
            Form::Lists(lists) => lists.len() as u64,
            Form::Written(groups) => groups.group_count()?,
        };
        let (replicas, partitions) = self.counts;
        match self.mode {
            GroupMode::CrossReplica => written.checked_mul(partitions),
            GroupMode::CrossPartition => written.checked_mul(replicas),
            _ => Some(written),
        }
    }

    /// Devices in each group, or in the largest; None for invalid groups and for one group of all
    /// devices whose number is unknown.
    pub fn group_size(&self) -> Option<u64> {
        let written = match &self.form {
            Form::Everyone => return None,
            Form::Regular { digits, .. } => return Some(product(digits)),
            Form::Lists(lists) => lists.iter().map(Vec::len).max().unwrap_or(0) as u64,
            Form::Written(groups) => groups.group_size()?,
        };
        match self.mode {
            GroupMode::CrossReplicaAndPartition => written.checked_mul(self.counts.1),
            _ => Some(written),
        }
    }

    /// Whether all groups have the same size.
    pub fn is_uniform(&self) -> bool {
        match &self.form {
            Form::Lists(lists) => {
                let mut sizes = lists.iter().map(Vec::len);
                let first = sizes.next();
                sizes.all(|size| Some(size) == first)
            }
            _ => true,
        }
    }

    /// Devices in all groups together.
    pub fn device_count(&self) -> Option<u64> {
        match &self.form {
            Form::Everyone => None,
            Form::Regular { device_count, .. } => Some(*device_count),
            Form::Lists(lists) => {
                let written: usize = lists.iter().map(Vec::len).sum();
                let (replicas, partitions) = self.counts;
                let factor = match self.mode {
                    GroupMode::CrossPartition => replicas,
                    GroupMode::FlattenedId => 1,
                    _ => partitions,
                };
                (written as u64).checked_mul(factor)
            }
            Form::Written(_) => self.group_count()?.checked_mul(self.group_size()?),
        }
    }

    /// All groups as device numbers, each ascending, ordered by first device; None for invalid
    /// groups, for one group of all devices whose number is unknown, and for more than `limit`
    /// devices in total.
    pub fn expand(&self, limit: usize) -> Option<Vec<Vec<u64>>> {
        let total = self.device_count()?;
        if total > limit as u64 || self.group_count()? > limit as u64 {
            return None;
        }
        let mut groups = match &self.form {
            Form::Everyone => return None,
            Form::Regular { digits, device_count } => {
                let offsets = values(digits);
                let starts = values(&complement(digits, *device_count)?);
                let group = |start: &u64| offsets.iter().map(|offset| start + offset).collect();
                return Some(starts.iter().map(group).collect());
            }
            Form::Lists(lists) => self.lifted(lists.clone())?,
            Form::Written(groups) => {
                let lists = groups.expand(limit)?;
                self.lifted(lists.iter().map(numbers).collect::<Option<_>>()?)?
            }
        };
        for group in &mut groups {
            group.sort_unstable();
        }
        groups.sort_unstable();
        Some(groups)
    }

    /// Converts groups of numbers as `mode` defines them to groups of devices.
    fn lifted(&self, lists: Vec<Vec<u64>>) -> Option<Vec<Vec<u64>>> {
        let (replicas, partitions) = self.counts;
        let device =
            |replica: u64, partition: u64| replica.checked_mul(partitions)?.checked_add(partition);
        let mut groups = Vec::new();
        match self.mode {
            GroupMode::FlattenedId => return Some(lists),
            GroupMode::CrossPartition => {
                for replica in 0..replicas {
                    for list in &lists {
                        groups.push(list.iter().map(|p| device(replica, *p)).collect());
                    }
                }
            }
            GroupMode::CrossReplica => {
                for partition in 0..partitions {
                    for list in &lists {
                        groups.push(list.iter().map(|r| device(*r, partition)).collect());
                    }
                }
            }
            GroupMode::CrossReplicaAndPartition => {
                for list in &lists {
                    let all = list.iter().flat_map(|r| (0..partitions).map(|p| device(*r, p)));
                    groups.push(all.collect());
                }
            }
        }
        groups.into_iter().collect()
    }

    /// The canonical text of the groups: `{}` for all devices, `[4,2]<=[2,4]T(1,0)` for regular
    /// groups, `{{0,3},{1,2}}` otherwise.
    pub fn to_text(&self) -> String {
        let text = match &self.form {
            Form::Everyone => return "{}".to_owned(),
            Form::Regular { .. } if self.is_everyone() => return "{}".to_owned(),
            Form::Regular { digits, device_count } => {
                return iota_text(digits, *device_count);
            }
            Form::Lists(lists) => lists_text(lists),
            Form::Written(groups) => String::from_utf8_lossy(&groups.to_text()).into_owned(),
        };
        if self.counts == (1, 1) || self.mode == GroupMode::FlattenedId {
            return text;
        }
        // The numbers are not device numbers, so the mode is appended.
        format!("{text} {}", self.mode.as_str())
    }

    /// Blocks of `block` consecutive devices that each group touches, and its devices in each. None
    /// if groups differ, or are irregular and too large to expand.
    pub fn span(&self, block: u64) -> Option<GroupSpan> {
        if block == 0 {
            return None;
        }
        if let Form::Regular { digits, .. } = &self.form
            && let Some(span) = span_of(digits, block)
        {
            return Some(span);
        }
        let limit = if self.is_written_out() { usize::MAX } else { EXPANSION_LIMIT };
        lists_span(&self.expand(limit)?, block)
    }

    pub(super) fn from_parts(form: Form, mode: GroupMode, counts: (u64, u64)) -> Self {
        Self { form, mode, counts }
    }

    /// Whether the text lists every device: work per device is then bounded by the text's length.
    pub(super) fn is_written_out(&self) -> bool {
        let names_devices = self.mode == GroupMode::FlattenedId || self.counts == (1, 1);
        matches!(self.form, Form::Lists(_)) && names_devices
    }

    /// Groups of devices within which these digits (normalised) vary.
    pub(super) fn regular(digits: Vec<Digit>, device_count: u64) -> Self {
        let form = Form::Regular { digits, device_count };
        Self { form, mode: GroupMode::FlattenedId, counts: (1, 1) }
    }

    /// Groups from lists of device numbers.
    pub(super) fn of_lists(mut lists: Vec<Vec<u64>>) -> Self {
        if let Some((digits, device_count)) = regular(&mut lists) {
            return Self::regular(digits, device_count);
        }
        lists.sort_unstable();
        Self { form: Form::Lists(lists), mode: GroupMode::FlattenedId, counts: (1, 1) }
    }

    pub(super) fn form(&self) -> &Form {
        &self.form
    }
}

/// Irregular groups of up to this many devices are expanded for comparison.
pub(super) const EXPANSION_LIMIT: usize = 1 << 16;

fn has_global_ids(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(
        opcode,
        O::AllReduce | O::AllReduceStart | O::AllGather | O::AllGatherStart | O::ReduceScatter
    )
}

pub(super) fn all(count: u64) -> Vec<Digit> {
    vec![Digit { stride: 1, size: count }]
}

/// Blocks of `block` numbers that each group with varying `digits` (normalised) touches; None if
/// groups differ.
pub(super) fn span_of(digits: &[Digit], block: u64) -> Option<GroupSpan> {
    let mut span = GroupSpan { blocks: 1, per_block: 1 };
    for digit in digits {
        if block.is_multiple_of(digit.end()) {
            span.per_block *= digit.size;
        } else if digit.stride.is_multiple_of(block) {
            span.blocks *= digit.size;
        } else if block.is_multiple_of(digit.stride) && digit.end().is_multiple_of(block) {
            span.per_block *= block / digit.stride;
            span.blocks *= digit.end() / block;
        } else {
            return None;
        }
    }
    Some(span)
}

/// Like `span_of`, for listed groups, each ascending; linear in the lists.
pub(super) fn lists_span(groups: &[Vec<u64>], block: u64) -> Option<GroupSpan> {
    let mut common: Option<GroupSpan> = None;
    for group in groups {
        let mut blocks: Vec<u64> = group.iter().map(|device| device / block).collect();
        blocks.sort_unstable();
        let mut runs = blocks.chunk_by(|a, b| a == b).map(<[u64]>::len);
        let per_block = runs.next()?;
        let mut span = GroupSpan { blocks: 1, per_block: per_block as u64 };
        for run in runs {
            if run != per_block {
                return None;
            }
            span.blocks += 1;
        }
        if *common.get_or_insert(span) != span {
            return None;
        }
    }
    common
}

/// All numbers with these digits, ascending; their count is the product of the sizes.
pub(super) fn values(digits: &[Digit]) -> Vec<u64> {
    let mut values = vec![0u64];
    for digit in digits {
        let above = std::mem::take(&mut values);
        for base in above {
            values.extend((0..digit.size).map(|i| base + i * digit.stride));
        }
    }
    values
}

/// `{{0,3},{1,2}}`.
fn lists_text(lists: &[Vec<u64>]) -> String {
    let mut text = String::from("{");
    for (at, list) in lists.iter().enumerate() {
        text.push_str(if at == 0 { "{" } else { ",{" });
        for (at, number) in list.iter().enumerate() {
            text.push_str(if at == 0 { "" } else { "," });
            let _ = write!(text, "{number}"); // Writing to a string does not fail.
        }
        text.push('}');
    }
    text.push('}');
    text
}

/// The groups within which `digits` vary, in XLA's iota notation.
fn iota_text(digits: &[Digit], device_count: u64) -> String {
    let size = product(digits);
    let rest = complement(digits, device_count).unwrap_or_default();
    let mut chain: Vec<Digit> = digits.iter().chain(&rest).copied().collect();
    chain.sort_unstable_by_key(|digit| std::cmp::Reverse(*digit));
    let at = |digit: &Digit| chain.iter().position(|other| other == digit).unwrap_or(0);
    let order: Vec<usize> = rest.iter().chain(digits).map(at).collect();
    let groups = device_count / size;
    if order.is_sorted() {
        return format!("[{groups},{size}]<=[{device_count}]");
    }
    let join = |words: Vec<String>| words.join(",");
    let reshape = join(chain.iter().map(|digit| digit.size.to_string()).collect());
    let transpose = join(order.iter().map(usize::to_string).collect());
    format!("[{groups},{size}]<=[{reshape}]T({transpose})")
}
