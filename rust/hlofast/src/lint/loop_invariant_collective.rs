//! `loop-invariant-collective`: collectives in a loop whose operands do not change.

use super::finding::Measure;
use super::program::{Program, bytes, counted, form, grouped};
use super::site::{Rule, Site};
use crate::comms::{Collective, CollectiveKind};
use crate::flow::walk::{Trail, converts, is_kept};
use crate::ir::intern::BuildMix;
use crate::ir::{Call, CallRole, ComputationId, Module, Opcode, Row};
use std::cell::OnceCell;
use std::collections::HashMap;

pub(super) const RULE: Rule = Rule {
    code: "loop-invariant-collective",
    what: "loop-invariant collectives inside a loop",
    measure: Measure::Payload,
    find,
    message,
    remedy: "hoist the collective out of the loop: run it before lax.scan or lax.fori_loop and \
             pass the result in (gathered weights then stay in memory in full during the loop)",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    // By loop body: how its rows change.
    let mut known: HashMap<ComputationId, Vec<Change>, BuildMix> = HashMap::default();
    let varying = OnceCell::new();
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        let sends = collective.group_size != Some(1);
        if !collective.is_in_loop || !sends || collective.trip_count.is_some_and(|n| n < 2) {
            continue;
        }
        let module = program.module;
        let body = module.computation_of(collective.outer);
        let &[around] = module.callers(body) else { continue };
        if module.called(Row(around), CallRole::Body) != Some(body) {
            continue;
        }
        let rows = known.entry(body).or_insert_with(|| {
            let varying = varying.get_or_init(|| varying_computations(module));
            changes(module, body, varying)
        });
        let first = module.computation(body).first_row;
        let operands = module.operands(collective.outer);
        let change = operands.iter().map(|row| {
            let at = row.checked_sub(first).and_then(|at| rows.get(at as usize));
            at.copied().unwrap_or(Change::Changes)
        });
        if change.max() == Some(Change::Kept) {
            sites.extend(site(program, number, collective, Row(around)));
        }
    }
}

/// How a row of a loop body changes between iterations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// Computed from constants only. Loops that send such values come from compilers, not from
    /// programs.
    Constant,
    /// Computed from values that the loop passes on unchanged.
    Kept,
    /// The row may change.
    Changes,
}

/// By row of loop body `body`: how the row changes.
fn changes(module: &Module, body: ComputationId, varying: &[bool]) -> Vec<Change> {
    use Opcode::*;
    let computation = module.computation(body);
    let mut rows = vec![Change::Changes; computation.rows().len()];
    let place = |row: u32| row.checked_sub(computation.first_row).map(|at| at as usize);
    for row in module.post_order(body) {
        let operands = module.operands(Row(row));
        let most = || {
            let known = |row: &u32| place(*row).and_then(|at| rows.get(at)).copied();
            operands.iter().map(|row| known(row).unwrap_or(Change::Changes)).max()
        };
        let is_state = || operands.first().is_some_and(|row| module.opcode(Row(*row)) == Parameter);
        let change = match module.opcode(Row(row)) {
            GetTupleElement if is_state() => {
                let index = module.tuple_index(Row(row));
                match index.is_some_and(|index| is_kept(module, body, index)) {
                    true => Change::Kept,
                    false => Change::Changes,
                }
            }
            Constant | Iota | PartitionId | ReplicaId => Change::Constant,
            Parameter | AfterAll => Change::Changes,
            opcode if varies(opcode) => Change::Changes,
            _ if calls_varying(module.calls(Row(row)), varying) => Change::Changes,
            _ => most().unwrap_or(Change::Changes),
        };
        if let Some(slot) = place(row).and_then(|at| rows.get_mut(at)) {
            *slot = change;
        }
    }
    rows
}

/// Opcodes whose result comes from outside or may differ from call to call.
fn varies(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Rng | RngBitGenerator
            | RngGetAndUpdateState
            | Infeed
            | Outfeed
            | Recv
            | RecvDone
            | Send
            | SendDone
            | CustomCall
            | Unknown
    )
}

/// By computation: whether equal arguments may give different results.
fn varying_computations(module: &Module) -> Vec<bool> {
    let mut varying = vec![false; module.computations().len()];
    for id in module.computation_post_order().iter().copied() {
        let rows = module.computation(id).rows();
        let own = &module.columns().opcodes[rows.start as usize..rows.end as usize];
        let calls = &module.all_calls()[module.calls_within(id)];
        varying[id.0 as usize] =
            own.iter().any(|opcode| varies(*opcode)) || calls_varying(calls, &varying);
    }
    varying
}

fn calls_varying(calls: &[Call], varying: &[bool]) -> bool {
    let is_varying = |id: ComputationId| varying.get(id.0 as usize).copied().unwrap_or(true);
    calls.iter().any(|call| is_varying(call.computation))
}

fn site(
    program: &Program<'_>,
    number: usize,
    collective: &Collective,
    around: Row,
) -> Option<Site> {
    let runs = program.runs_of(collective);
    let payload = collective.payload()?;
    let mut site = Site::new(collective.row).runs(&runs).of(number);
    site.evidence.push(around);
    site.key = u64::from(collective.groups.unwrap_or(u32::MAX));
    // Enclosing loops still need one execution each; only repetitions in this loop are saved.
    let spared = match (runs.count, collective.trip_count) {
        (Some(count), Some(trips)) if trips > 0 => Some(count - count / trips),
        _ => None,
    };
    let exchanged = exchanged(program, number, collective);
    let lookups = exchanged.iter().filter_map(|own| program.runs_of(own).times(own.payload()?));
    let lookups = lookups.fold(0, u64::saturating_add);
    site.evidence.extend(exchanged.iter().map(|own| own.row));
    let repeated = spared.and_then(|spared| payload.checked_mul(spared));
    site.bytes = repeated.map(|repeated| repeated.saturating_add(lookups));
    // The seconds of the lookups' collectives are those of their own.
    site.seconds = site.bytes.zip(repeated).and_then(|(all, repeated)| {
        let whole = runs.times(payload)?.max(1) as f64;
        let own = program.collective_seconds(number)? * repeated as f64 / whole;
        Some(if repeated == 0 { own } else { own * all as f64 / repeated as f64 })
    });
    site = site
        .sum("payload_bytes", site_bytes(payload, spared))
        .sum("spared_executions", spared.unwrap_or(0))
        .sum("exchanged_bytes", lookups)
        .sum("held_bytes", collective.payload_out.unwrap_or(0))
        .sum("replaced_bytes", replaced(program, collective, !exchanged.is_empty()))
        .common("trip_count", collective.trip_count.unwrap_or(0));
    Some(site)
}

/// Exchanges of what is looked up in the parts of the table that `collective` gathers, in the same loop: rows
/// of the whole table need none.
fn exchanged<'a>(
    program: &Program<'a>,
    number: usize,
    collective: &Collective,
) -> Vec<&'a Collective> {
    let module = program.module;
    let body = module.computation_of(collective.outer);
    let origin = |trail: Trail| {
        let mut trail = trail.follow(module, converts);
        // The copy in fast memory for the next iteration is made of an element that is kept.
        if module.opcode(trail.row) == Opcode::Parameter
            && let &[element] = trail.path()
            && let Some(next) = next_element(module, trail.row, element)
        {
            trail = Trail::new(next).follow(module, converts);
        }
        (trail.row, trail.path().to_vec())
    };
    let Some(&shard) = module.operands(collective.row).first() else { return Vec::new() };
    let table = origin(Trail::new(Row(shard)));
    let parts = program.parts(number);
    let is_lookup = |(other, own): &(usize, &Collective)| {
        let has_axes = !parts.is_empty() && program.parts(*other) == parts;
        own.kind == CollectiveKind::AllToAll
            && (own.groups == collective.groups || has_axes)
            && module.computation_of(own.outer) == body
            && module.operands(own.row).first().is_some_and(|row| {
                let found = lookup(program, Trail::new(Row(*row)), &mut { MOST_STEPS });
                found.is_some_and(|found| origin(found) == table)
            })
    };
    let all = &program.collectives.collectives;
    if collective.kind != CollectiveKind::AllGather {
        return Vec::new();
    }
    all.iter().enumerate().filter(is_lookup).map(|(_, own)| own).collect()
}

/// What becomes element `index` of the state of the loop whose body has the parameter `row`.
fn next_element(module: &Module, row: Row, index: u32) -> Option<Row> {
    let body = module.computation_of(row);
    let &[around] = module.callers(body) else { return None };
    let is_body = module.called(Row(around), CallRole::Body) == Some(body);
    let root = Row(module.computation(body).root);
    module.operands(root).get(index as usize).filter(|_| is_body).map(|row| Row(*row))
}

/// Limit on the rows between an exchange and a lookup.
const MOST_STEPS: u32 = 64;

/// The table whose rows the value at `trail` is, perhaps masked and summed over devices.
fn lookup(program: &Program<'_>, trail: Trail, left: &mut u32) -> Option<Trail> {
    use Opcode::*;
    *left = left.checked_sub(1)?;
    let module = program.module;
    let trail = trail.follow(module, converts);
    let opcode = module.opcode(trail.row);
    match opcode {
        Gather => trail.operand(module, 0),
        AllReduce | AllReduceStart | AllReduceDone => {
            lookup(program, trail.operand(module, 0)?, left)
        }
        _ if opcode.is_elementwise() => (0..module.operands(trail.row).len())
            .find_map(|index| lookup(program, trail.operand(module, index)?, left)),
        _ => None,
    }
}

/// The bytes of the operands of `collective` that the loop holds for it alone, or for lookups too.
fn replaced(program: &Program<'_>, collective: &Collective, is_looked_up: bool) -> u64 {
    let module = program.module;
    let is_only = |row: &&u32| {
        let mut at = Row(**row);
        loop {
            if module.users().get(at.0).len() > 1 && !is_looked_up {
                return false;
            }
            match (module.opcode(at), module.operands(at).first()) {
                (Opcode::CopyStart | Opcode::CopyDone, Some(next)) => at = Row(*next),
                (opcode, _) => return opcode == Opcode::GetTupleElement,
            }
        }
    };
    let operands = module.operands(collective.outer).iter().filter(is_only);
    operands.fold(0, |sum, row| sum.saturating_add(program.bytes(Row(*row))))
}

fn site_bytes(payload: u64, spared: Option<u64>) -> u64 {
    payload.saturating_mul(spared.unwrap_or(0))
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let Some(collective) = site.collective(program) else {
        return String::new();
    };
    let kind = collective.kind.as_str();
    let what = counted(site.places, kind, &format!("{kind}s"));
    let along = program.along(collective);
    let repeats = form(site.places, "runs", "run");
    let exchanged = match site.figure("exchanged_bytes") {
        0 => String::new(),
        exchanged => format!(
            ", {} of it of exchanges after lookups in parts of the same table",
            bytes(exchanged)
        ),
    };
    let held = site.figure("held_bytes");
    let instead = match site.figure("replaced_bytes") {
        0 => String::new(),
        replaced if replaced >= held => String::new(),
        replaced => format!(
            " in place of {} that the loop holds now: the peak rises by at most {}",
            bytes(replaced),
            bytes(held - replaced)
        ),
    };
    match site.bytes {
        Some(spared) => format!(
            "{what} {along} {repeats} with unchanged operands in each of {} loop iterations: all \
             executions but the first send the same data again, {} of payload per step{exchanged}; \
             during the loop the {} {} per device{instead}",
            grouped(site.figure("trip_count")),
            bytes(spared),
            form(site.places, "result then takes", "results then take"),
            bytes(held),
        ),
        None => format!(
            "{what} {along} {repeats} with unchanged operands in every iteration of a loop of \
             unknown trip count: all executions but the first send the same data again",
        ),
    }
}
