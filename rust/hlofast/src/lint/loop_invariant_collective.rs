//! `loop-invariant-collective`: collectives in a loop whose operands do not change.
//!
//! So do collectives of an inner loop that send the same in each iteration of an outer one: a loop over microbatches
//! around one over layers gathers the weights of each layer for each microbatch.

use super::finding::Measure;
use super::loop_changes::{Changes, Constancy};
use super::program::{Program, bytes, counted, form, grouped};
use super::site::{Rule, Site};
use crate::comms::{Collective, CollectiveKind, Device, Offsets, bits, devices};
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
    let starts = Starts::new(program);
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
            change == Some(Constancy::Kept)
        };
        if collective.trip_count.is_none_or(|trips| trips > 1) && is_kept(innermost) {
            match Repeated::new(program, &starts, number, collective, *innermost) {
                Some(own) => repeated.push(own),
                None => sites.extend(site(program, number, collective, *innermost, true)),
            }
        } else {
            let kept: Vec<Row> = outer.iter().rev().copied().filter(is_kept).collect();
            let repeats = kept.iter().filter_map(|own| trips_of(program, *own));
            let repeats = repeats.fold(1, u64::saturating_mul);
            let first = kept
                .iter()
                .find_map(|own| Repeated::new(program, &starts, number, collective, *own));
            repeated.extend(first.map(|own| Repeated { is_nested: true, repeats, ..own }));
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
    /// Executions that send the same values each time that `around` runs: iterations of all loops that do not
    /// change them.
    repeats: u64,
    /// Payload in all executions.
    total: u64,
    /// All executions in the step.
    count: u64,
    /// How often `around` runs.
    calls: u64,
    phase: Phase,
    values: Values,
}

/// What collectives that send the same values have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Values {
    origin: Origin,
    around: Row,
    /// The axes along which the collective sends.
    axes: u64,
    /// The kind: permutes pass the same around a ring as a gather sends at once.
    kind: &'static str,
}

/// What a value is computed from.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Origin {
    row: Row,
    /// The index path in the result of `row`.
    path: Vec<u32>,
    /// The parts that are taken of it, the last one first.
    parts: Vec<Part>,
}

/// A part that a dynamic-slice takes: its dimensions of more than one element, and by dimension where it starts on
/// each device, if that is not 0 and does not depend on a counter.
type Part = (Vec<Option<i64>>, Vec<(usize, Vec<i128>)>);

impl Repeated {
    fn new(
        program: &Program<'_>,
        starts: &Starts<'_>,
        number: usize,
        collective: &Collective,
        around: Row,
    ) -> Option<Self> {
        let module = program.module;
        let trips = trips_of(program, around)?;
        let runs = program.runs_of(collective);
        let operand = Row(*module.operands(collective.row).first()?);
        let kind = match collective.kind {
            CollectiveKind::CollectivePermute => CollectiveKind::AllGather,
            kind => kind,
        };
        let values = Values {
            origin: origin(module, starts, operand, around),
            around,
            axes: bits(program.parts(number).iter()),
            kind: kind.as_str(),
        };
        Some(Self {
            number,
            around,
            is_nested: false,
            trips,
            repeats: trips,
            total: runs.times(collective.payload()?)?,
            count: runs.count?,
            calls: program.runs(around).count?.max(1),
            phase: runs.phase,
            values,
        })
    }
}

/// The iterations of a loop that has several.
fn trips_of(program: &Program<'_>, around: Row) -> Option<u64> {
    let loops = &program.cost.loops;
    let at = loops.binary_search_by_key(&around, |own| own.row).ok()?;
    loops.get(at)?.trip_count.count.filter(|trips| *trips > 1)
}

/// Where dynamic-slices start on each device.
struct Starts<'a> {
    offsets: Offsets<'a>,
    devices: Vec<Device>,
}

impl<'a> Starts<'a> {
    fn new(program: &Program<'a>) -> Self {
        let count = program.device_count().unwrap_or(1);
        let devices = devices(&program.collectives.context, 0..count);
        Self { offsets: Offsets::new(program.module), devices }
    }

    /// The part that the dynamic-slice at `trail` takes.
    fn part(&self, module: &Module, trail: &Trail) -> Part {
        let array = module.shapes().array(module.shape(trail.row));
        let sizes = array.map(|own| own.dimensions().map(|own| own.bound()).collect::<Vec<_>>());
        let start = |index: usize| {
            let starts = self.offsets.values(trail.operand(module, index)?, &self.devices)?;
            starts.iter().any(|start| *start != 0).then_some((index, starts))
        };
        let starts = (1..module.operands(trail.row).len()).filter_map(start);
        (
            sizes.unwrap_or_default().into_iter().filter(|size| *size != Some(1)).collect(),
            starts.collect(),
        )
    }
}

/// Limit on the permutes, slices and loops between a collective and what the outer loop keeps.
const MOST_STEPS: usize = 32;

/// What `row` is computed from, which loops inside the loop `around` take parts of and pass around rings.
fn origin(module: &Module, starts: &Starts<'_>, row: Row, around: Row) -> Origin {
    let mut trail = Trail::new(row).follow(module, converts);
    let mut parts = Vec::new();
    for _ in 0..MOST_STEPS {
        let next = match (module.opcode(trail.row), trail.path()) {
            (Opcode::DynamicSlice, _) => {
                let Some(whole) = trail.operand(module, 0) else { break };
                parts.push(starts.part(module, &trail));
                trail = whole.follow(module, converts);
                continue;
            }
            (
                Opcode::CollectivePermute
                | Opcode::CollectivePermuteStart
                | Opcode::CollectivePermuteDone,
                _,
            ) => module.operands(trail.row).first().map(|row| Row(*row)),
            (Opcode::Parameter, &[element]) => initial_value(module, trail.row, element, around),
            _ => None,
        };
        let Some(next) = next else { break };
        trail = Trail::new(next).follow(module, converts);
    }
    Origin { row: trail.row, path: trail.path().to_vec(), parts }
}

/// The first value of element `index` of the state of the loop whose body has the parameter `row`, a loop inside
/// `around`.
fn initial_value(module: &Module, row: Row, index: u32, around: Row) -> Option<Row> {
    let body = module.computation_of(row);
    let &[inner] = module.callers(body) else { return None };
    let is_inner = inner != around.0 && module.called(Row(inner), CallRole::Body) == Some(body);
    let tuple = Row(*module.operands(Row(inner)).first().filter(|_| is_inner)?);
    module.operands(tuple).get(index as usize).map(|row| Row(*row))
}

/// The sites of repeated collectives. Of those that send the same values, as the forward and the backward pass do, one
/// gather before the loop is left, or the permutes of one pass.
fn repeated_sites(program: &Program<'_>, mut repeated: Vec<Repeated>) -> Vec<Site> {
    let key = |own: &Repeated| (Reverse(own.total), own.number);
    repeated.sort_by(|a, b| a.values.cmp(&b.values).then_with(|| key(a).cmp(&key(b))));
    let mut sites = Vec::new();
    let mut nested = Vec::new();
    for alike in repeated.chunk_by(|own, other| own.values == other.values) {
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
    let part = |all: u64| if is_left { all / own.repeats.max(1) } else { 0 };
    let mut site = Site::new(collective.row).runs(&program.runs_of(collective)).of(own.number);
    site.evidence.push(own.around);
    site.bytes = Some(own.total - part(own.total));
    site.key = own.trips | NESTED;
    site.remedy = is_gather(collective).then_some(BEFORE_ALL);
    let held = part(own.count) / own.calls;
    let site = site
        .sum("payload_bytes", own.total - part(own.total))
        .sum("spared_executions", own.count - part(own.count))
        .sum("held_bytes", collective.payload_out?.saturating_mul(held))
        .common("trip_count", own.trips);
    Some(site)
}

/// Whether `collective` gathers, at once or by passing parts around a ring.
fn is_gather(collective: &Collective) -> bool {
    matches!(collective.kind, CollectiveKind::AllGather | CollectiveKind::CollectivePermute)
}

/// The part of the key of sites in inner loops.
const NESTED: u64 = 1 << 63;
const BEFORE_ALL: &str = "if the device has room for the gathered weights, gather the weights of all layers \
     before the loop over microbatches: convert them to the type in which they are multiplied, constrain the result \
     with jax.lax.with_sharding_constraint to a sharding without these axes, and let the function of the inner \
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
            && let Some(next) = following_value(module, trail.row, element)
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
fn following_value(module: &Module, row: Row, index: u32) -> Option<Row> {
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
        let kept = match held {
            0 => String::new(),
            _ => format!(
                "; {} once before these loops, the values take {} per device",
                if is_gather(collective) { "gathered" } else { "sent" },
                bytes(held)
            ),
        };
        return format!(
            "{what} {along} {repeats} in a loop inside a loop of {} iterations, such as one over microbatches, and \
             {} the same data in each of these iterations: {} of payload per step are repeated{kept}",
            grouped(site.figure("trip_count")),
            form(site.places, "sends", "send"),
            bytes(site.bytes.unwrap_or(0)),
        );
    }
    let kept = match held {
        0 => String::new(),
        _ => format!(
            "; during the loop the {} {} per device{instead}",
            form(site.places, "result then takes", "results then take"),
            bytes(held)
        ),
    };
    match site.bytes {
        Some(spared) => format!(
            "{what} {along} {repeats} with unchanged operands in each of {} loop iterations: all \
             executions but the first send the same data again, {} of payload per step{exchanged}{kept}",
            grouped(site.figure("trip_count")),
            bytes(spared),
        ),
        None => format!(
            "{what} {along} {repeats} with unchanged operands in every iteration of a loop of \
             unknown trip count: all executions but the first send the same data again",
        ),
    }
}
