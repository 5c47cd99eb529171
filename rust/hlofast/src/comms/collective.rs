//! Collectives in one normalised form.

use super::find::{self, CollectiveRows, frontend_attribute};
use super::groups::{DeviceGroups, GroupContext};
use super::kind::CollectiveKind;
use super::loops::{LoopPlaces, Overlap};
use super::moved::{Moved, Mover, Piece};
use crate::cost::{Cost, Executions, PhaseExecutions, RowExecutions};
use crate::flow::origin::End;
use crate::flow::{Attribution, Phase};
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::intern::{BuildMix, hash_bytes};
use crate::ir::{Module, Opcode, Row, ShapeId};
use hashbrown::{HashMap, HashTable};
use std::ops::Range;

/// A collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// What the collective does.
    pub kind: CollectiveKind,
    /// The kind of its instruction. A compiler may write an all-gather as an all-reduce of arrays
    /// that are zero except for one shard each, and a reduce-scatter as an all-reduce and a slice.
    pub written_as: CollectiveKind,
    /// The instruction, or its start if it is asynchronous.
    pub row: Row,
    /// All its instructions, as a range of [`Collectives::members`]. If several fusions overlap
    /// computation with one collective, each fusion contains one of its instructions.
    pub members: Range<u32>,
    /// The scheduled instruction: `row`, or the fusion or async-start around it.
    pub outer: Row,
    /// The instruction that waits for the result, if the collective is asynchronous and ends in the
    /// computation of `outer`.
    pub done: Option<Row>,
    /// `channel_id`.
    pub channel: Option<i64>,
    /// Bytes of its operands on one device; None if unbounded.
    pub payload_in: Option<u64>,
    /// Bytes of its result on one device.
    pub payload_out: Option<u64>,
    /// Index of its device groups in [`Collectives::groups`]; None for permutes, transfers and
    /// cross-mesh reductions.
    pub groups: Option<u32>,
    /// Devices in one group; None if unknown.
    pub group_size: Option<u64>,
    /// For a permute or transfer: source-target pairs, as a range of [`Collectives::pairs`].
    pub pairs: Range<u32>,
    /// The tensor kind of most of its bytes.
    pub moved: Moved,
    /// The arrays that the collective moves, as a range of [`Collectives::pieces`].
    pub pieces: Range<u32>,
    /// Call count by phase.
    pub executions: RowExecutions,
    /// Whether the phase comes from users or operands because the collective has no name.
    pub is_phase_inferred: bool,
    /// Trip count of the innermost loop around it; None if unknown or outside loops.
    pub trip_count: Option<u64>,
    /// Whether the collective is inside a loop.
    pub is_in_loop: bool,
    /// If the collective was peeled off a loop: the index of the collective that remains inside the
    /// loop.
    pub peeled_from: Option<u32>,
    /// The work scheduled between its start and its end.
    pub overlap: Option<Overlap>,
}

impl Collective {
    /// Bytes of the full array: the result of an all-gather, the operands of any other collective.
    pub fn payload(&self) -> Option<u64> {
        if self.kind == CollectiveKind::AllGather {
            return self.payload_out;
        }
        self.payload_in.or_else(|| self.payload_of_result())
    }

    /// The payload of a fragment's collective, whose operands may be unknown: by its kind, the
    /// result is the array or one shard of it.
    fn payload_of_result(&self) -> Option<u64> {
        use CollectiveKind::{
            AllReduce, AllToAll, CollectiveBroadcast, CollectivePermute, ReduceScatter,
        };
        match self.kind {
            _ if self.kind != self.written_as => None,
            AllReduce | AllToAll | CollectivePermute | CollectiveBroadcast => self.payload_out,
            ReduceScatter => self.payload_out?.checked_mul(self.group_size?),
            _ => None,
        }
    }

    /// Bytes that each device sends in a ring; see [`CollectiveKind::ring_wire_bytes`].
    pub fn ring_wire_bytes(&self) -> Option<u64> {
        if self.kind.is_point_to_point() {
            return self.payload();
        }
        Some(self.kind.ring_wire_bytes(self.payload()?, self.group_size?))
    }
}

/// The collectives of a module, in the order of their scheduled rows.
#[derive(Clone, Debug, Default)]
pub struct Collectives {
    /// The collectives.
    pub collectives: Vec<Collective>,
    /// The instructions of the collectives.
    pub members: Vec<Row>,
    /// Distinct groups of devices.
    pub groups: Vec<DeviceGroups>,
    /// Sources and targets of permutes.
    pub pairs: Vec<(i64, i64)>,
    /// The arrays that the collectives move.
    pub pieces: Vec<Piece>,
    /// The device counts that the groups depend on.
    pub context: GroupContext,
}

impl Collectives {
    /// Bytes held on the heap, excluding irregular groups.
    pub fn heap_bytes(&self) -> usize {
        self.collectives.capacity() * size_of::<Collective>()
            + self.members.capacity() * size_of::<Row>()
            + self.groups.capacity() * size_of::<DeviceGroups>()
            + self.pairs.capacity() * 16
            + self.pieces.capacity() * size_of::<Piece>()
    }
}

/// The collectives of `module`, normalised: each is one entry, whether written as a single
/// instruction, as start and done, in an asynchronous computation, or in one or several fusions.
pub fn collectives(module: &Module, cost: &Cost, attribution: &Attribution) -> Collectives {
    let mut all = Collectives { context: GroupContext::of(module), ..Collectives::default() };
    let all_rows = find::collectives(module);
    if all_rows.is_empty() {
        return all;
    }
    let is_receive = |row: &Row| module.opcode(*row) == Opcode::Recv;
    let transfers = all_rows
        .iter()
        .flat_map(|rows| rows.others.iter().copied().filter(is_receive).map(|row| (row, rows.row)));
    let transfers = transfers.collect();
    let mut reader = Reader {
        module,
        executions: Executions::new(module, cost, attribution),
        mover: Mover::new(module, attribution, &transfers),
        places: LoopPlaces::new(module, cost),
        attribution,
        groups: GroupTexts::default(),
        pairs: PairTexts::default(),
    };
    for rows in all_rows {
        let collective = reader.read(rows, &mut all);
        all.collectives.push(collective);
    }
    super::loops::link_peeled(module, &reader.places, &mut all);
    all
}

/// Cache of groups: each distinct text is read once, and equal groups share an index.
#[derive(Default)]
struct GroupTexts {
    /// Room for a key of `by_text`.
    key: Vec<u8>,
    by_text: HashMap<Vec<u8>, Option<u32>, BuildMix>,
    /// By the canonical text of the groups and their number of devices.
    by_form: HashMap<(String, Option<u64>), u32, BuildMix>,
}

struct Reader<'a> {
    module: &'a Module,
    executions: Executions<'a>,
    mover: Mover<'a>,
    places: LoopPlaces<'a>,
    attribution: &'a Attribution,
    groups: GroupTexts,
    pairs: PairTexts<'a>,
}

/// Cache of pairs: each distinct text is read once, and equal texts share their range of pairs.
#[derive(Default)]
struct PairTexts<'a> {
    ranges: HashTable<(&'a [u8], Range<u32>)>,
}

impl<'a> PairTexts<'a> {
    /// Where the pairs of `text` are in `all`: `{{0,1},{1,2}}`; none if unreadable.
    fn range(&mut self, text: Option<&'a [u8]>, all: &mut Vec<(i64, i64)>) -> Range<u32> {
        let Some(text) = text else { return 0..0 };
        let hash = hash_bytes(text);
        if let Some((_, range)) = self.ranges.find(hash, |(known, _)| *known == text) {
            return range.clone();
        }
        let decoded = decode(b"source_target_pairs", Opcode::CollectivePermute, text);
        let range = match decoded {
            Ok(AttributeValue::SourceTargetPairs(pairs)) => extend(all, pairs.into_iter()),
            _ => 0..0,
        };
        self.ranges.insert_unique(hash, (text, range.clone()), |(text, _)| hash_bytes(text));
        range
    }
}

impl<'a> Reader<'a> {
    fn read(&mut self, rows: CollectiveRows, all: &mut Collectives) -> Collective {
        let module = self.module;
        let executions = self.executions_of(&rows);
        let CollectiveRows { kind: written_as, row, outer, others, done } = rows;
        let operands = data_operands(module, row);
        let sum = |rows: &[Row]| {
            rows.iter().try_fold(0u64, |sum, row| {
                sum.checked_add(module.shapes().logical_bytes(module.shape(*row))?)
            })
        };
        let result = result_shape(module, row);
        let start = all.pieces.len();
        let mut collective = Collective {
            kind: written_as,
            written_as,
            row,
            members: extend(&mut all.members, std::iter::once(row).chain(others)),
            outer,
            done,
            channel: integer_attribute(module, row, "channel_id"),
            payload_in: sum(&operands),
            payload_out: result.and_then(|shape| module.shapes().logical_bytes(shape)),
            groups: None,
            group_size: None,
            pairs: 0..0,
            moved: Moved::Other,
            pieces: 0..0,
            is_phase_inferred: self.is_inferred(&executions, row, outer),
            executions,
            trip_count: None,
            is_in_loop: false,
            peeled_from: None,
            overlap: done.and_then(|done| self.places.overlap(outer, done)),
        };
        self.read_groups(&mut collective, all);
        let mut sources = operands;
        if written_as == CollectiveKind::AllReduce {
            if let Some(parts) =
                gathered_parts(module, &self.mover, &sources, collective.group_size)
            {
                collective.kind = CollectiveKind::AllGather;
                collective.payload_in = sum(&parts);
                sources = parts;
            } else if let Some(bytes) = scattered_bytes(module, &collective) {
                collective.kind = CollectiveKind::ReduceScatter;
                collective.payload_out = Some(bytes);
            }
        }
        for (index, source) in sources.into_iter().enumerate() {
            let is_gradient = self.mover.is_gradient(row, index as u32);
            self.mover.pieces(source, is_gradient, &mut all.pieces);
        }
        collective.pieces = start as u32..all.pieces.len() as u32;
        collective.moved = most_moved(&all.pieces[start..]);
        if let Some(place) = self.places.innermost(outer) {
            collective.is_in_loop = true;
            collective.trip_count = place;
        }
        collective
    }

    /// The call count comes from the scheduled row. Phase and scope come from the collective itself
    /// if it has a name. A fusion may overlap a nameless all-gather with a product of another phase;
    /// the phase is then that of the row that uses the gathered array.
    fn executions_of(&self, rows: &CollectiveRows) -> RowExecutions {
        let (row, outer) = (rows.row, rows.outer);
        let mut executions = self.executions.of(outer);
        let [entry] = &mut executions[..] else { return executions };
        if row == outer {
            return executions;
        }
        let own = self.attribution.phase[row.0 as usize];
        if own != Phase::Unattributed {
            entry.phase = own;
            entry.scope = self.attribution.scope[row.0 as usize];
        } else if rows.kind == CollectiveKind::AllGather
            && let Some(phase) = self.phase_of_users(rows.done.unwrap_or(outer))
        {
            entry.phase = phase;
        }
        executions
    }

    /// The phase of the first named row that uses `row`, directly or through nameless rows.
    fn phase_of_users(&self, row: Row) -> Option<Phase> {
        const MOST_ROWS: usize = 64;
        const MOST_USERS: usize = 1024;
        let module = self.module;
        let mut seen = 0;
        let mut queue = vec![row];
        let mut next = 0;
        while let Some(row) = queue.get(next).copied().filter(|_| next < MOST_ROWS) {
            next += 1;
            for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
                seen += 1;
                if seen > MOST_USERS {
                    return None;
                }
                let phase = self.attribution.phase[user.0 as usize];
                if phase != Phase::Unattributed {
                    return Some(phase);
                }
                if queue.len() < MOST_ROWS && !queue.contains(&user) {
                    queue.push(user);
                }
            }
        }
        None
    }

    /// Whether `executions` have a phase that the name of neither `row` nor `outer` gives.
    fn is_inferred(&self, executions: &[PhaseExecutions], row: Row, outer: Row) -> bool {
        let gives = |phase: Phase| {
            [row, outer].iter().any(|row| self.attribution.phase[row.0 as usize] == phase)
        };
        let known = executions.iter().map(|entry| entry.phase);
        known.filter(|phase| *phase != Phase::Unattributed).any(|phase| !gives(phase))
    }

    fn read_groups(&mut self, collective: &mut Collective, all: &mut Collectives) {
        let module = self.module;
        let row = collective.row;
        match module.opcode(row) {
            Opcode::CollectivePermute | Opcode::CollectivePermuteStart => {
                let pairs = module.attribute_bytes(row, "source_target_pairs");
                collective.pairs = self.pairs.range(pairs, &mut all.pairs);
            }
            Opcode::Send | Opcode::Recv => {
                let pairs = frontend_attribute(module, row, b"_xla_send_recv_source_target_pairs");
                collective.pairs = self.pairs.range(pairs, &mut all.pairs);
            }
            Opcode::CustomCall => {
                let meshes = cross_mesh_reduction(module, row).map(|reduction| reduction.meshes);
                collective.group_size = meshes.map(|ids| ids.len() as u64);
            }
            _ => {
                let key = &mut self.groups.key;
                key.clear();
                for name in ["replica_groups", "use_global_device_ids"] {
                    key.extend_from_slice(module.attribute_bytes(row, name).unwrap_or_default());
                    key.push(0);
                }
                key.push(u8::from(collective.channel.is_some()));
                let context = &all.context;
                let groups = &mut all.groups;
                let GroupTexts { by_text, by_form, key } = &mut self.groups;
                let index = *by_text.entry_ref(&key[..]).or_insert_with(|| {
                    let read = DeviceGroups::of_row(module, row, context).ok()?;
                    let form = (read.to_text(), read.device_count());
                    let index = by_form.entry(form).or_insert_with(|| {
                        groups.push(read);
                        groups.len() as u32 - 1
                    });
                    Some(*index)
                });
                collective.groups = index;
                let groups = index.and_then(|index| all.groups.get(index as usize));
                collective.group_size = groups.and_then(DeviceGroups::group_size);
            }
        }
    }
}

/// Appends `items` to `list` and returns their range.
fn extend<T>(list: &mut Vec<T>, items: impl Iterator<Item = T>) -> Range<u32> {
    let start = list.len() as u32;
    list.extend(items);
    start..list.len() as u32
}

fn most_moved(pieces: &[Piece]) -> Moved {
    let mut sums = [0u64; Moved::ALL.len()];
    for piece in pieces {
        sums[piece.moved as usize] = sums[piece.moved as usize].saturating_add(piece.bytes.max(1));
    }
    let most = sums.iter().copied().max().unwrap_or(0);
    let moved = Moved::ALL.into_iter().find(|moved| sums[*moved as usize] == most && most > 0);
    moved.unwrap_or_default()
}

fn integer_attribute(module: &Module, row: Row, key: &str) -> Option<i64> {
    let text = std::str::from_utf8(module.attribute_bytes(row, key)?).ok()?;
    text.trim().parse().ok()
}

/// The operands that are sent.
fn data_operands(module: &Module, row: Row) -> Vec<Row> {
    let operands = module.operands(row);
    let count = match module.opcode(row) {
        // After the data come the output buffer, offsets and sizes; for a send, a token.
        Opcode::RaggedAllToAll | Opcode::Send => operands.len().min(1),
        Opcode::Recv => 0,
        // In place: after the data come the target buffer and the offsets in both.
        Opcode::CollectivePermute | Opcode::CollectivePermuteStart
            if module.attribute(row, "slice_sizes").is_some() =>
        {
            operands.len().min(1)
        }
        _ => operands.len(),
    };
    operands[..count].iter().map(|operand| Row(*operand)).collect()
}

/// The shape of a collective's result.
fn result_shape(module: &Module, row: Row) -> Option<ShapeId> {
    let shape = module.shape(row);
    let element = |index: usize| module.shapes().tuple(shape)?.get(index).copied();
    match module.opcode(row) {
        Opcode::AllGatherStart | Opcode::CollectivePermuteStart => element(1),
        Opcode::Send | Opcode::Recv => element(0),
        _ => Some(shape),
    }
}

/// The shards, if each operand of an all-reduce is zero except for one shard per device of a group.
fn gathered_parts(
    module: &Module,
    mover: &Mover<'_>,
    operands: &[Row],
    group_size: Option<u64>,
) -> Option<Vec<Row>> {
    let part = |operand: &Row| {
        let End::Computed(row) = mover.one_origin(*operand)? else { return None };
        let [target, update, ..] = *module.operands(row) else { return None };
        if module.opcode(row) != Opcode::DynamicUpdateSlice {
            return None;
        }
        let End::Constant(target) = mover.one_origin(Row(target))? else { return None };
        let elements = module.elements_column();
        let (whole, part) = (elements[row.0 as usize], elements[update as usize]);
        let is_one_each = i128::from(part) * i128::from(group_size?) == i128::from(whole);
        (is_one_each && is_zero(module, target)).then_some(Row(update))
    };
    if operands.is_empty() {
        return None;
    }
    operands.iter().map(part).collect()
}

/// Whether `row` is a zero constant or the broadcast of one.
fn is_zero(module: &Module, row: Row) -> bool {
    let row = match module.opcode(row) {
        Opcode::Broadcast => match module.operands(row).first() {
            Some(operand) => Row(*operand),
            None => return false,
        },
        _ => row,
    };
    let (_, payload) = module.opcode_and_payload(row);
    let text = module.bytes(payload).trim_ascii();
    let text = text.strip_prefix(b"(").unwrap_or(text);
    let text = text.strip_suffix(b")").unwrap_or(text);
    module.opcode(row) == Opcode::Constant
        && matches!(text.trim_ascii(), b"0" | b"-0" | b"0.0" | b"false")
}

/// Limit on the uses of a fused all-reduce that are examined.
const MOST_USES: usize = 4096;

/// Bytes of one device's shard, if a fused all-reduce is only used through slices of such shards.
fn scattered_bytes(module: &Module, collective: &Collective) -> Option<u64> {
    if module.opcode(collective.outer) != Opcode::Fusion {
        return None;
    }
    let bytes = module.shapes().logical_bytes(module.shape(collective.outer))?;
    let size = collective.group_size.filter(|size| *size > 1)?;
    let mut level = vec![collective.row];
    let mut slices = 0;
    let mut steps = 0;
    while let Some(row) = level.pop() {
        for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
            steps += 1;
            if steps > MOST_USES {
                return None;
            }
            match module.opcode(user) {
                Opcode::GetTupleElement | Opcode::Bitcast => level.push(user),
                Opcode::DynamicSlice => slices += 1,
                _ => return None,
            }
        }
    }
    let is_part = bytes.checked_mul(size) == collective.payload_in && slices > 0;
    is_part.then_some(bytes)
}

/// One of Alpa's reductions across the meshes of a pipeline, which run different programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossMeshReduction {
    /// `SUM`, `AND` or `OR`, as written.
    pub operation: String,
    /// The numbers of the meshes.
    pub meshes: Vec<u64>,
}

/// Reads a cross-mesh reduction from the backend_config of `row`: `SUM;0$1$`. None if it has
/// another form.
pub fn cross_mesh_reduction(module: &Module, row: Row) -> Option<CrossMeshReduction> {
    let config = module.backend_config(row)?;
    let text = std::str::from_utf8(&config).ok()?;
    let (operation, meshes) = text.split_once(';')?;
    let meshes = meshes.split_terminator('$').map(|id| id.parse().ok()).collect::<Option<_>>()?;
    Some(CrossMeshReduction { operation: operation.to_string(), meshes })
}
