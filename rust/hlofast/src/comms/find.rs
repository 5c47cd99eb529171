//! Which instructions are collectives, and which of them are one.

use super::kind::CollectiveKind;
use crate::ir::{ComputationId, Module, Opcode, Row};
use std::collections::HashMap;

/// One collective: where it is written and what stands for it in the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// What its instruction is.
    pub kind: CollectiveKind,
    /// Its instruction, or the one that starts it.
    pub row: Row,
    /// The row that stands for it in a computation that is scheduled: `row` itself, or what wraps
    /// it: an async-start or a fusion.
    pub outer: Row,
    /// Further instructions that are the same collective.
    pub others: Vec<Row>,
    /// The row after which its result is there, where that is another one than `outer`.
    pub done: Option<Row>,
}

/// Wrappers in wrappers are followed this deep.
const DEEPEST_WRAPPER: usize = 8;
/// A collective that would stand at more places than this is counted where it is written.
const MOST_PLACES: usize = 64;

/// The collectives of `module`, in the order of the rows that stand for them.
pub(super) fn collectives(module: &Module) -> Vec<Found> {
    let mut rows = Vec::new();
    // What stands for the rows of one computation is the same for all of them.
    let mut last = None;
    for row in module.rows() {
        if let Some(kind) = kind_of(module, row) {
            let id = module.computation_of(row);
            let outer = match last.take() {
                Some((of, outer)) if of == id => outer,
                _ => outer_rows(module, id),
            };
            if outer.is_empty() {
                rows.push((row, row, kind));
            }
            rows.extend(outer.iter().map(|outer| (*outer, row, kind)));
            last = Some((id, outer));
        }
    }
    rows.sort_unstable();
    let mut parts = Parts::default();
    for (outer, row, kind) in rows {
        parts.add(module, kind, row, outer);
    }
    parts.found
}

/// The kind of collective that `row` is or starts; None for transfers between host and device.
fn kind_of(module: &Module, row: Row) -> Option<CollectiveKind> {
    match module.opcode(row) {
        Opcode::CustomCall => {
            is_cross_mesh_reduce(module, row).then_some(CollectiveKind::CrossMeshAllReduce)
        }
        Opcode::Send | Opcode::Recv => {
            if let Some(kind) = megascale_kind(module, row) {
                return Some(kind);
            }
            (!is_host_transfer(module, row)).then_some(CollectiveKind::SendReceive)
        }
        opcode => CollectiveKind::of_opcode(opcode),
    }
}

/// Whether `row` is one of Alpa's reductions over meshes: `__builtin$CrossMeshAllReduce`.
pub fn is_cross_mesh_reduce(module: &Module, row: Row) -> bool {
    module.opcode(row) == Opcode::CustomCall
        && module
            .attribute_bytes(row, "custom_call_target")
            .is_some_and(|target| target.ends_with(b"CrossMeshAllReduce\""))
}

/// Whether `row` sends to the host or receives from it.
fn is_host_transfer(module: &Module, row: Row) -> bool {
    module.attribute_bytes(row, "is_host_transfer") == Some(b"true")
}

/// The sends and receives of `module` between device and host, which are no collectives.
pub fn host_transfers(module: &Module) -> Vec<Row> {
    let is_transfer = |row: &Row| {
        matches!(module.opcode(*row), Opcode::Send | Opcode::Recv)
            && kind_of(module, *row).is_none()
    };
    module.rows().filter(is_transfer).collect()
}

/// What a send or receive between the slices of a TPU system is part of.
fn megascale_kind(module: &Module, row: Row) -> Option<CollectiveKind> {
    Some(match frontend_attribute(module, row, b"_xla_megascale_transfer_type")? {
        b"ALL_REDUCE" => CollectiveKind::AllReduce,
        b"REDUCE_SCATTER" => CollectiveKind::ReduceScatter,
        b"ALL_GATHER" => CollectiveKind::AllGather,
        b"ALL_TO_ALL" => CollectiveKind::AllToAll,
        _ => CollectiveKind::SendReceive,
    })
}

/// The text of a frontend attribute, as it stands between its quotes.
pub(super) fn frontend_attribute<'a>(module: &'a Module, row: Row, key: &[u8]) -> Option<&'a [u8]> {
    let text = module.attribute_bytes(row, "frontend_attributes")?;
    let at = memchr::memmem::find_iter(text, key).find(|at| {
        let before = at.checked_sub(1).and_then(|at| text.get(at));
        before.is_none_or(|byte| b"{, \n".contains(byte))
            && text[at + key.len()..].starts_with(b"=\"")
    })?;
    let value = &text[at + key.len() + 2..];
    Some(&value[..memchr::memchr(b'"', value)?])
}

/// The rows that stand for those of computation `id` where computations are scheduled: one for
/// each place that calls the fusion or the asynchronous computation that it is. None where only the
/// rows themselves stand for all of their executions: `id` is called in other ways too, or twice by
/// one place, or at so many places that listing each would be work out of proportion.
fn outer_rows(module: &Module, id: ComputationId) -> Vec<Row> {
    let mut level = vec![id];
    let mut outer = Vec::new();
    for depth in 0..=DEEPEST_WRAPPER {
        let mut above: Vec<Row> = Vec::new();
        for id in &level {
            let Some(wrappers) = wrappers(module, *id) else { return Vec::new() };
            above.extend(wrappers);
        }
        if above.len() + outer.len() > MOST_PLACES {
            return Vec::new();
        }
        level.clear();
        for row in above {
            let id = module.computation_of(row);
            let is_wrapped = wrappers(module, id).is_some_and(|rows| !rows.is_empty());
            // Deeper nests stand for themselves where they were left.
            if is_wrapped && depth < DEEPEST_WRAPPER {
                level.push(id);
            } else {
                outer.push(row);
            }
        }
        // One execution of what was reached twice is more than one of the collective.
        if has_twice(&mut level) || has_twice(&mut outer) {
            return Vec::new();
        }
    }
    outer
}

/// Sorts `items`; whether two are the same.
fn has_twice<T: Ord>(items: &mut [T]) -> bool {
    items.sort_unstable();
    items.windows(2).any(|pair| pair[0] == pair[1])
}

/// The fusions and async-starts that call computation `id`; None if something else does too, or
/// too many do.
fn wrappers(module: &Module, id: ComputationId) -> Option<Vec<Row>> {
    let callers = module.callers(id);
    // An asynchronous computation has three callers at each place.
    if callers.len() > 3 * MOST_PLACES {
        return None;
    }
    let mut found = Vec::new();
    for caller in callers.iter().map(|row| Row(*row)) {
        match module.opcode(caller) {
            Opcode::Fusion | Opcode::AsyncStart => found.push(caller),
            Opcode::AsyncUpdate | Opcode::AsyncDone => {}
            _ => return None,
        }
    }
    Some(found)
}

/// What a fused collective is within a chain of fusions that carry one collective along while
/// they compute something else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    Start,
    Middle,
    Done,
}

fn link_of(module: &Module, row: Row) -> Option<Link> {
    for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
        if module.opcode(user) == Opcode::CustomCall {
            match module.attribute_bytes(user, "custom_call_target") {
                Some(b"\"AsyncCollectiveStart\"") => return Some(Link::Start),
                Some(b"\"AsyncCollectiveDone\"") => return Some(Link::Done),
                _ => {}
            }
        }
    }
    let config = module.attribute_bytes(row, "backend_config")?;
    memchr::memmem::find(config, b"async_collective_fusion_config").map(|_| Link::Middle)
}

#[derive(Default)]
struct Parts {
    found: Vec<Found>,
    /// By scheduled computation and chain, channel or rendezvous: the collective under way.
    open: HashMap<(ComputationId, Vec<u8>), usize>,
}

impl Parts {
    fn add(&mut self, module: &Module, kind: CollectiveKind, row: Row, outer: Row) {
        let place = module.computation_of(outer);
        let opcode = module.opcode(row);
        let is_transfer = matches!(opcode, Opcode::Send | Opcode::Recv);
        let link = match module.opcode(outer) {
            Opcode::Fusion => link_of(module, row),
            _ => None,
        };
        let rendezvous = || {
            frontend_attribute(module, row, b"_xla_host_transfer_rendezvous").map(<[u8]>::to_vec)
        };
        // Programs written with shard_map have one channel for everything.
        let chain = || frontend_attribute(module, row, b"chain_id").map(<[u8]>::to_vec);
        let channel = || module.attribute_bytes(row, "channel_id").map(<[u8]>::to_vec);
        let key =
            if is_transfer { rendezvous().or_else(channel) } else { chain().or_else(channel) };
        let key = key.map(|key| (place, key));
        match (link, is_transfer, key) {
            (Some(Link::Start), _, Some(key)) => {
                self.open.insert(key, self.found.len());
            }
            (Some(Link::Middle | Link::Done), _, Some(key)) => {
                if let Some(open) = self.open.get(&key) {
                    let found = &mut self.found[*open];
                    found.others.push(row);
                    if link == Some(Link::Done) {
                        found.done = Some(outer);
                        self.open.remove(&key);
                    }
                    return;
                }
            }
            (_, true, Some(key)) => {
                if let Some(open) = self.open.get(&key) {
                    let found = &mut self.found[*open];
                    let is_pair = module.opcode(found.row) != opcode
                        && !found.others.iter().any(|other| module.opcode(*other) == opcode);
                    if is_pair {
                        found.others.push(row);
                        // What is sent says how much; what is received, when it is there.
                        if opcode == Opcode::Send {
                            found.others.pop();
                            found.others.push(found.row);
                            found.row = row;
                        } else {
                            found.done = done_row(module, row);
                        }
                        return;
                    }
                }
                self.open.insert(key, self.found.len());
            }
            _ => {}
        }
        let done = if link.is_some() { None } else { done_row(module, outer) };
        self.found.push(Found { kind, row, outer, others: Vec::new(), done });
    }
}

/// The row that waits for what `start` began.
fn done_row(module: &Module, start: Row) -> Option<Row> {
    let mut at = start;
    for _ in 0..DEEPEST_WRAPPER {
        let waits = |user: &Row| {
            use Opcode::*;
            match module.opcode(start) {
                AllReduceStart => module.opcode(*user) == AllReduceDone,
                AllGatherStart => module.opcode(*user) == AllGatherDone,
                CollectivePermuteStart => module.opcode(*user) == CollectivePermuteDone,
                AsyncStart => matches!(module.opcode(*user), AsyncUpdate | AsyncDone),
                Send => module.opcode(*user) == SendDone,
                Recv => module.opcode(*user) == RecvDone,
                _ => false,
            }
        };
        let users = module.users().get(at.0).iter().map(|user| Row(*user));
        at = users.filter(waits).min()?;
        if module.opcode(at) != Opcode::AsyncUpdate {
            return Some(at);
        }
    }
    None
}
