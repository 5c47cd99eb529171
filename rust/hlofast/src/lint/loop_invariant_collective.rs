//! `loop-invariant-collective`: collectives in a loop whose operands do not change.
//!
//! So do collectives of an inner loop that send the same in each iteration of an outer one: a loop over microbatches
//! around one over layers gathers the weights of each layer for each microbatch.

use super::finding::Measure;
use super::loop_changes::{Change, Changes};
use super::program::{Program, bytes, counted, form, grouped};
use super::site::{Rule, Site};
use crate::comms::{Collective, CollectiveKind, bits};
use crate::flow::Phase;
use crate::flow::walk::{Trail, converts};
use crate::ir::{CallRole, Module, Opcode, Row};
use std::cmp::Reverse;

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
    let mut changes = Changes::new(program.module);
    let mut repeated = Vec::new();
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        let sends = collective.group_size != Some(1);
        if !collective.is_in_loop || !sends {
            continue;
        }
        let loops = changes.loops(collective.outer);
        let Some((innermost, outer)) = loops.split_first() else { continue };
        let mut is_kept = |around: &Row| {
            let change = changes.of_operands(collective.row, collective.outer, *around);
            change == Some(Change::Kept)
        };
        if collective.trip_count.is_none_or(|trips| trips > 1) && is_kept(innermost) {
            match Repeated::new(program, number, collective, *innermost) {
                Some(own) => repeated.push(own),
                None => sites.extend(site(program, number, collective, *innermost, true)),
            }
        } else if let Some(around) = outer.iter().rev().copied().find(is_kept) {
            let own = Repeated::new(program, number, collective, around);
            repeated.extend(own.map(|own| Repeated { is_nested: true, ..own }));
        }
    }
    sites.extend(repeated_sites(program, repeated));
}

/// A collective that sends equal data in each iteration of the loop `around`.
struct Repeated {
    number: usize,
    around: Row,
    /// Whether the collective is in a loop inside `around`.
    is_nested: bool,
    /// Iterations of `around`.
    trips: u64,
    /// Payload in all executions.
    total: u64,
    /// Executions in all iterations of `around`.
    count: u64,
    phase: Phase,
    /// What its operands are computed from, and the axes along which it sends.
    origin: (Row, u64),
}

impl Repeated {
    fn new(
        program: &Program<'_>,
        number: usize,
        collective: &Collective,
        around: Row,
    ) -> Option<Self> {
        let module = program.module;
        let loops = &program.cost.loops;
        let at = loops.binary_search_by_key(&around, |own| own.row).ok()?;
        let trips = loops.get(at)?.trip_count.count.filter(|trips| *trips > 1)?;
        let runs = program.runs_of(collective);
        let operand = Row(*module.operands(collective.row).first()?);
        let axes = bits(program.parts(number).iter());
        Some(Self {
            number,
            around,
            is_nested: false,
            trips,
            total: runs.times(collective.payload()?)?,
            count: runs.count?,
            phase: runs.phase,
            origin: (origin(module, operand, around), axes),
        })
    }

    /// Whether `other` sends the same values.
    fn is_like(&self, other: &Repeated) -> bool {
        (self.origin, self.around) == (other.origin, other.around)
    }
}

/// Limit on the permutes and loops between a collective and what the outer loop keeps.
const MOST_STEPS: usize = 32;

/// What `row` is computed from, which loops inside the loop `around` take parts of and pass around rings.
fn origin(module: &Module, row: Row, around: Row) -> Row {
    // Parts that the counter of a loop chooses: others may differ from each other.
    let moves = |opcode| converts(opcode) || opcode == Opcode::DynamicSlice;
    let mut trail = Trail::new(row).follow(module, moves);
    for _ in 0..MOST_STEPS {
        let next = match (module.opcode(trail.row), trail.path()) {
            (
                Opcode::CollectivePermute
                | Opcode::CollectivePermuteStart
                | Opcode::CollectivePermuteDone,
                _,
            ) => module.operands(trail.row).first().map(|row| Row(*row)),
            (Opcode::Parameter, &[element]) => first_element(module, trail.row, element, around),
            _ => None,
        };
        let Some(next) = next else { break };
        trail = Trail::new(next).follow(module, moves);
    }
    trail.row
}

/// The first value of element `index` of the state of the loop whose body has the parameter `row`, a loop inside
/// `around`.
fn first_element(module: &Module, row: Row, index: u32, around: Row) -> Option<Row> {
    let body = module.computation_of(row);
    let &[inner] = module.callers(body) else { return None };
    let is_inner = inner != around.0 && module.called(Row(inner), CallRole::Body) == Some(body);
    let tuple = Row(*module.operands(Row(inner)).first().filter(|_| is_inner)?);
    module.operands(tuple).get(index as usize).map(|row| Row(*row))
}

/// The sites of repeated collectives. Of those that send the same values, as the forward and the backward pass do, one
/// gather before the loop is left, or the permutes of one pass.
fn repeated_sites(program: &Program<'_>, mut repeated: Vec<Repeated>) -> Vec<Site> {
    repeated.sort_by_key(|own| (own.origin, own.around, Reverse(own.total), own.number));
    let mut sites = Vec::new();
    let mut nested = Vec::new();
    for alike in repeated.chunk_by(Repeated::is_like) {
        let kind = |own: &Repeated| Some(program.collectives.collectives.get(own.number)?.kind);
        let gather = alike.iter().find(|own| kind(own) == Some(CollectiveKind::AllGather));
        let of_phase = |phase: Phase| {
            let own = alike.iter().filter(|own| own.phase == phase);
            own.fold(0, |sum: u64, own| sum.saturating_add(own.total))
        };
        let most = alike.iter().map(|own| own.phase).max_by_key(|phase| of_phase(*phase));
        for own in alike {
            let is_left = match gather {
                Some(gather) => gather.number == own.number,
                None => most == Some(own.phase),
            };
            if own.is_nested {
                nested.extend(nested_site(program, own, is_left));
            } else if let Some(it) = program.collectives.collectives.get(own.number) {
                sites.extend(site(program, own.number, it, own.around, is_left));
            }
        }
    }
    // The weights of all layers of a large model are more than a device can hold.
    if program.fits(nested.iter().fold(0, |sum, own| sum.saturating_add(own.figure("held_bytes"))))
    {
        sites.extend(nested);
    }
    sites
}

/// A collective in a loop inside another one. Once per iteration of the inner loop, it `is_left`.
fn nested_site(program: &Program<'_>, own: &Repeated, is_left: bool) -> Option<Site> {
    let collective = program.collectives.collectives.get(own.number)?;
    let part = |all: u64| if is_left { all / own.trips } else { 0 };
    let mut site = Site::new(collective.row).runs(&program.runs_of(collective)).of(own.number);
    site.evidence.push(own.around);
    site.bytes = Some(own.total - part(own.total));
    site.key = own.trips | NESTED;
    site.remedy = Some(BEFORE_ALL);
    let site = site
        .sum("payload_bytes", own.total - part(own.total))
        .sum("spared_executions", own.count - part(own.count))
        .sum("held_bytes", collective.payload_out?.saturating_mul(part(own.count)))
        .common("trip_count", own.trips);
    Some(site)
}

/// The part of the key of sites in inner loops.
const NESTED: u64 = 1 << 63;
const BEFORE_ALL: &str = "if that memory is free, gather the weights of all layers before the loop over microbatches: \
     convert them to the type in which they are multiplied, constrain the result with \
     jax.lax.with_sharding_constraint to a sharding without these axes, and let the function of the inner \
     lax.scan use it; otherwise take fewer and larger microbatches";

fn site(
    program: &Program<'_>,
    number: usize,
    collective: &Collective,
    around: Row,
    is_left: bool,
) -> Option<Site> {
    let runs = program.runs_of(collective);
    let payload = collective.payload()?;
    let mut site = Site::new(collective.row).runs(&runs).of(number);
    site.evidence.push(around);
    site.key = u64::from(collective.groups.unwrap_or(u32::MAX));
    // Enclosing loops still need one execution each; only repetitions in this loop are saved.
    let spared = match (runs.count, collective.trip_count) {
        (Some(count), Some(trips)) if trips > 0 && is_left => Some(count - count / trips),
        (Some(count), Some(trips)) if trips > 0 => Some(count),
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
    let replaced = replaced(program, collective, !exchanged.is_empty());
    site = site
        .sum("payload_bytes", site_bytes(payload, spared))
        .sum("spared_executions", spared.unwrap_or(0))
        .sum("exchanged_bytes", lookups)
        .sum("held_bytes", collective.payload_out.filter(|_| is_left).unwrap_or(0))
        .sum("replaced_bytes", if is_left { replaced } else { 0 })
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
                let found = lookup(program, Trail::new(Row(*row)), &mut { MOST_ROWS });
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
const MOST_ROWS: u32 = 64;

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
    if site.key & NESTED != 0 {
        return format!(
            "{what} {along} {repeats} in a loop inside a loop of {} iterations, such as one over microbatches, and \
             {} the same data in each of these iterations: {} of payload per step are repeated; gathered once before \
             both loops, these values take {} per device",
            grouped(site.figure("trip_count")),
            form(site.places, "sends", "send"),
            bytes(site.bytes.unwrap_or(0)),
            bytes(held),
        );
    }
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
