//! Finds collectives and the instructions that belong to each of them.

use super::kind::CollectiveKind;
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Module, Opcode, Row};
use std::collections::HashMap;

/// One collective: its instructions and its scheduled row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CollectiveRows {
    /// The kind of its instruction.
    pub kind: CollectiveKind,
    /// The instruction, or its start if it is asynchronous.
    pub row: Row,
    /// The scheduled row: `row` itself, or the async-start or fusion around it.
    pub outer: Row,
    /// Further instructions of the same collective.
    pub others: Vec<Row>,
    /// The row that waits for its result, if that is not `outer`.
    pub done: Option<Row>,
}

/// Nested wrappers are followed to this depth.
const DEEPEST_WRAPPER: usize = 8;
/// Limit on call sites; a collective with more is counted at its own row instead of at each call
/// site.
const MOST_PLACES: usize = 64;

/// The collectives of `module`, in the order of their scheduled rows.
pub(super) fn collectives(module: &Module) -> Vec<CollectiveRows> {
    let mut rows = Vec::new();
    // All rows of one computation have the same scheduled rows.
    let mut last = None;
    // By opcode, so that other rows are only looked up.
    let mut may_be = [false; Opcode::ALL.len()];
    for (may_be, opcode) in may_be.iter_mut().zip(Opcode::ALL) {
        *may_be = matches!(opcode, Opcode::CustomCall | Opcode::Send | Opcode::Recv)
            || CollectiveKind::of_opcode(*opcode).is_some();
    }
    let opcodes = (0u32..).zip(&module.columns().opcodes);
    for (row, _) in opcodes.filter(|(_, opcode)| may_be[**opcode as usize]) {
        let row = Row(row);
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
    parts.finish(module)
}

/// The kind of collective that `row` is or starts; None for transfers between host and device.
#[inline]
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

/// Whether `row` is one of Alpa's cross-mesh reductions: `__builtin$CrossMeshAllReduce`.
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

/// The sends and receives of `module` between device and host; these are not collectives.
pub fn host_transfers(module: &Module) -> Vec<Row> {
    let is_transfer = |row: &Row| {
        matches!(module.opcode(*row), Opcode::Send | Opcode::Recv)
            && kind_of(module, *row).is_none()
    };
    module.rows().filter(is_transfer).collect()
}

/// The kind of collective that a send or receive between TPU slices belongs to.
fn megascale_kind(module: &Module, row: Row) -> Option<CollectiveKind> {
    Some(match frontend_attribute(module, row, b"_xla_megascale_transfer_type")? {
        b"ALL_REDUCE" => CollectiveKind::AllReduce,
        b"REDUCE_SCATTER" => CollectiveKind::ReduceScatter,
        b"ALL_GATHER" => CollectiveKind::AllGather,
        b"ALL_TO_ALL" => CollectiveKind::AllToAll,
        _ => CollectiveKind::SendReceive,
    })
}

/// The raw text of a frontend attribute between its quotes.
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

/// The scheduled rows of computation `id`: one for each call site of the fused or asynchronous
/// computation. Empty if collectives in `id` have to be counted at their own rows: `id` is also
/// called in other ways, is reached twice from one call site, or has more than `MOST_PLACES` call
/// sites.
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
            // Deeper nests are represented by the wrapper at the depth limit.
            if is_wrapped && depth < DEEPEST_WRAPPER {
                level.push(id);
            } else {
                outer.push(row);
            }
        }
        // One execution of a row reached twice runs the collective more than once.
        if has_twice(&mut level) || has_twice(&mut outer) {
            return Vec::new();
        }
    }
    outer
}

/// Sorts `items` and returns whether two are equal.
fn has_twice<T: Ord>(items: &mut [T]) -> bool {
    items.sort_unstable();
    items.windows(2).any(|pair| pair[0] == pair[1])
}

/// The fusions and async-starts that call computation `id`; None if it has other callers or too
/// many.
fn wrappers(module: &Module, id: ComputationId) -> Option<Vec<Row>> {
    let callers = module.callers(id);
    // An asynchronous computation has three callers per call site.
    if callers.len() > 3 * MOST_PLACES {
        return None;
    }
    let mut wrappers = Vec::new();
    for caller in callers.iter().map(|row| Row(*row)) {
        match module.opcode(caller) {
            Opcode::Fusion | Opcode::AsyncStart => wrappers.push(caller),
            Opcode::AsyncUpdate | Opcode::AsyncDone => {}
            _ => return None,
        }
    }
    Some(wrappers)
}

/// The role of a fused collective in a chain of fusions that overlap it with computation.
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
    collectives: Vec<CollectiveRows>,
    /// The collectives in flight: their index by scheduled computation, and by chain, channel or
    /// rendezvous.
    open: HashMap<(ComputationId, Vec<u8>), usize, BuildMix>,
    /// Chains of fusions: the indices of the collectives by computation of the start and by chain,
    /// in the order of their starts.
    chains: HashMap<(ComputationId, Vec<u8>), Vec<usize>, BuildMix>,
    /// Links of chains that start in another computation: chain, kind, instruction, scheduled row.
    strays: Vec<(Vec<u8>, CollectiveKind, Row, Row)>,
}

/// Loops around a link of a chain are followed to this depth.
const DEEPEST_LOOP: usize = 8;

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
        // Programs written with shard_map use one channel for all collectives.
        let chain = || frontend_attribute(module, row, b"chain_id").map(<[u8]>::to_vec);
        let channel = || module.attribute_bytes(row, "channel_id").map(<[u8]>::to_vec);
        let key = match (is_transfer, link) {
            (true, _) => rendezvous().or_else(channel),
            (false, Some(_)) => chain().or_else(channel),
            (false, None) => None,
        };
        let key = key.map(|key| (place, key));
        match (link, is_transfer, key) {
            (Some(Link::Start), _, Some(key)) => {
                self.chains.entry(key.clone()).or_default().push(self.collectives.len());
                self.open.insert(key, self.collectives.len());
            }
            (Some(Link::Middle | Link::Done), _, Some(key)) => {
                if let Some(open) = self.open.get(&key) {
                    let rows = &mut self.collectives[*open];
                    rows.others.push(row);
                    if link == Some(Link::Done) {
                        rows.done = Some(outer);
                        self.open.remove(&key);
                    }
                    return;
                }
                if link == Some(Link::Middle) {
                    self.strays.push((key.1, kind, row, outer));
                    return;
                }
            }
            (_, true, Some(key)) => {
                if let Some(open) = self.open.get(&key) {
                    let rows = &mut self.collectives[*open];
                    let is_pair = module.opcode(rows.row) != opcode
                        && !rows.others.iter().any(|other| module.opcode(*other) == opcode);
                    if is_pair {
                        rows.others.push(row);
                        // The send has the payload, the receive has the end.
                        if opcode == Opcode::Send {
                            rows.others.pop();
                            rows.others.push(rows.row);
                            rows.row = row;
                        } else {
                            rows.done = done_row(module, row);
                        }
                        return;
                    }
                }
                self.open.insert(key, self.collectives.len());
            }
            _ => {}
        }
        let done = if link.is_some() { None } else { done_row(module, outer) };
        self.collectives.push(CollectiveRows { kind, row, outer, others: Vec::new(), done });
    }

    /// All collectives in the order of their scheduled rows. A chain may run through a loop: its
    /// start and its done are beside the loop, and its links inside belong to it. A link without
    /// such a chain is a collective of its own.
    fn finish(mut self, module: &Module) -> Vec<CollectiveRows> {
        for (chain, kind, row, outer) in std::mem::take(&mut self.strays) {
            match self.chain_around(module, &chain, outer) {
                Some(index) => self.collectives[index].others.push(row),
                None => {
                    let others = Vec::new();
                    self.collectives.push(CollectiveRows { kind, row, outer, others, done: None });
                }
            }
        }
        self.pair_across_computations(module);
        self.collectives.sort_by_key(|rows| rows.outer);
        self.collectives
    }

    /// Adds the receives that lack a send to the send of the same rendezvous that lacks a receive.
    /// Between slices, a loop may send in every iteration what is received behind the loop.
    fn pair_across_computations(&mut self, module: &Module) {
        let rendezvous = |rows: &CollectiveRows| {
            frontend_attribute(module, rows.row, b"_xla_host_transfer_rendezvous")
        };
        let is_alone = |rows: &CollectiveRows, opcode: Opcode| {
            rows.others.is_empty() && module.opcode(rows.row) == opcode
        };
        let mut sends: HashMap<&[u8], usize, BuildMix> = HashMap::default();
        for (index, rows) in self.collectives.iter().enumerate() {
            if is_alone(rows, Opcode::Send)
                && let Some(key) = rendezvous(rows)
            {
                sends.entry(key).or_insert(index);
            }
        }
        if sends.is_empty() {
            return;
        }
        let mut received: Vec<(usize, Row)> = Vec::new();
        self.collectives.iter().for_each(|rows| {
            if is_alone(rows, Opcode::Recv)
                && let Some(send) = rendezvous(rows).and_then(|key| sends.get(key))
            {
                received.push((*send, rows.row));
            }
        });
        for (send, row) in &received {
            let rows = &mut self.collectives[*send];
            rows.others.push(*row);
            // The end of the send only says that the array has left.
            rows.done = None;
        }
        received.sort_by_key(|(_, row)| *row);
        let is_paired = |rows: &CollectiveRows| {
            received.binary_search_by_key(&rows.row, |(_, row)| *row).is_ok()
        };
        self.collectives.retain(|rows| !is_paired(rows));
    }

    /// The collective of `chain` that is in flight while the loop, branch or call around `outer`
    /// runs.
    fn chain_around(&self, module: &Module, chain: &[u8], outer: Row) -> Option<usize> {
        let mut level = vec![module.computation_of(outer)];
        for _ in 0..DEEPEST_LOOP {
            let callers = level.iter().flat_map(|id| module.callers(*id));
            let callers: Vec<Row> = callers.take(MOST_PLACES).map(|row| Row(*row)).collect();
            for caller in &callers {
                let key = (module.computation_of(*caller), chain.to_vec());
                let all = self.chains.get(&key).map(Vec::as_slice).unwrap_or_default();
                // A start ends the chain before it, so only the last start can be in flight.
                let before = all.partition_point(|at| self.collectives[*at].outer < *caller);
                let last = before.checked_sub(1).map(|at| all[at]);
                let is_around =
                    |at: &usize| self.collectives[*at].done.is_some_and(|done| *caller < done);
                if let Some(index) = last.filter(is_around) {
                    return Some(index);
                }
            }
            level = callers.iter().map(|row| module.computation_of(*row)).collect();
        }
        None
    }
}

/// The row that waits for `start`.
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
