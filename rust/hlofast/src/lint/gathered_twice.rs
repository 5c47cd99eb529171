//! `gathered-twice`: an all-gather of an array that every device already holds.
//!
//! Either each device's part was sliced from an array that all devices of the group hold, or the
//! same part is gathered twice along the same devices in one phase. The part may have passed a function
//! of each element meanwhile, which devices can apply to the whole array. Not reported: a second gather
//! in a later phase, which saves memory, a gather behind an optimization barrier, a gather of unknown
//! phase in a program with phases, a gather inside a fusion, which the compiler repeats to overlap
//! it with a matmul, and a gather that the compiler repeats because the step needs too much memory
//! (`x.remat`).

use super::finding::Measure;
use super::program::{Program, bytes, counted, form};
use super::site::{Rule, Site};
use crate::comms::{Collective, CollectiveKind};
use crate::comms::{Offsets, devices};
use crate::flow::walk::{Trail, converts};
use crate::flow::{Phase, is_compiler_clone};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Opcode, Row};
use std::collections::{HashMap, HashSet};

pub(super) const RULE: Rule = Rule {
    code: "gathered-twice",
    what: "an all-gather of an array that every device already holds",
    measure: Measure::Payload,
    find,
    message,
    remedy: "gather the array once and reuse it: do not constrain it to a sharded spec between \
             two uses that both need it in full",
};

/// The remedy where a function lies between.
const APPLY: &str = "gather the array once and apply the element-wise function to the gathered \
                     array on every device, instead of gathering its result";

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let offsets = Offsets::new(program.module);
    let mut gathered: Vec<(Likeness, usize)> = Vec::new();
    // What gathers would gather without the functions that their operands have passed.
    let mut changed: Vec<(Likeness, usize)> = Vec::new();
    let makers = makers(program);
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        let is_gather =
            collective.kind == CollectiveKind::AllGather && collective.peeled_from.is_none();
        if !is_gather || collective.group_size.is_none_or(|size| size < 2) {
            continue;
        }
        let operand = operand(program, collective).map(Trail::new);
        if let Some((evidence, is_changed)) = held_already(program, &offsets, &makers, collective) {
            sites.extend(site(program, number, collective, evidence, is_changed));
        } else if let Some((likeness, trail)) =
            operand.and_then(|operand| likeness(program, collective, operand))
        {
            gathered.push((likeness, number));
            let before = before_function(program, &trail);
            let before = before.and_then(|before| self::likeness(program, collective, before));
            changed.extend(before.map(|(likeness, _)| (likeness, number)));
        }
    }
    gathered.sort_unstable();
    let is_known = |phase: Phase| phase != Phase::Unattributed || !program.has_phases();
    let mut add = |phase: Phase, earlier: usize, later: usize, is_changed: bool| {
        let all = &program.collectives.collectives;
        if let (Some(earlier), Some(collective)) = (all.get(earlier), all.get(later))
            && !is_carried(earlier)
            && !is_carried(collective)
            && is_known(phase)
            && !is_compiler_clone(program.module, earlier.row)
            && !is_compiler_clone(program.module, collective.row)
        {
            sites.extend(site(program, later, collective, vec![earlier.row], is_changed));
            return true;
        }
        false
    };
    let mut is_found: HashSet<_, BuildMix> = HashSet::default();
    for pair in gathered.windows(2) {
        let [(first, earlier), (second, later)] = pair else { continue };
        crate::ir::work::count(1);
        if first == second && add(first.6, *earlier, *later, false) {
            is_found.insert(*later);
        }
    }
    for (likeness, later) in changed {
        let at = gathered.partition_point(|(other, _)| *other < likeness);
        if let Some((_, first)) = gathered.get(at).filter(|(other, _)| *other == likeness)
            && !is_found.contains(&later)
        {
            add(likeness.6, *first, later, true);
        }
    }
}

/// The operand of the function of each element that computes the array at `trail`, whose other
/// operands are constants.
fn before_function(program: &Program<'_>, trail: &Trail) -> Option<Trail> {
    let module = program.module;
    let mut trail = trail.clone();
    let mut is_function = false;
    // A chain of functions is one function.
    for _ in 0..MOST_FUNCTIONS {
        let next = trail.clone().follow(module, converts);
        if !module.opcode(next.row).is_elementwise() {
            break;
        }
        let mut arrays = (0..module.operands(next.row).len()).filter_map(|index| {
            let operand = next.operand(module, index)?;
            let source = operand
                .clone()
                .follow(module, |opcode| converts(opcode) || opcode == Opcode::Broadcast);
            (module.opcode(source.row) != Opcode::Constant).then_some(operand)
        });
        match (arrays.next(), arrays.next()) {
            (Some(only), None) => trail = only,
            _ => break,
        }
        is_function = true;
    }
    is_function.then_some(trail)
}

/// Limit on the functions between an array and what is gathered.
const MOST_FUNCTIONS: usize = 16;

/// Whether the collective lies inside a fusion.
fn is_carried(collective: &Collective) -> bool {
    collective.outer != collective.row
}

/// The properties that two gathers of the same array share: operand and its place in the operand's
/// result, devices, dimension, result bytes, computation and phase.
type Likeness = (Row, Vec<u32>, u32, Vec<u8>, Option<u64>, ComputationId, Phase);

/// The operand of a gather with exactly one operand.
fn operand(program: &Program<'_>, collective: &Collective) -> Option<Row> {
    let pieces = collective.pieces.start as usize..collective.pieces.end as usize;
    match program.collectives.pieces.get(pieces)? {
        [piece] => Some(piece.row),
        _ => None,
    }
}

/// The likeness of a gather of the array at `trail`, and where that array comes from.
fn likeness(
    program: &Program<'_>,
    collective: &Collective,
    mut trail: Trail,
) -> Option<(Likeness, Trail)> {
    let module = program.module;
    // An optimization barrier keeps its result and its operand apart on purpose.
    while module.opcode(trail.row) != Opcode::OptBarrier {
        let before = trail.row;
        let mut next = trail.clone();
        if !next.step(module, converts) || next.row == before {
            break;
        }
        let is_barrier = module.opcode(next.row) == Opcode::OptBarrier;
        if is_barrier {
            break;
        }
        trail = next;
    }
    let dimensions = module.attribute_bytes(collective.row, "dimensions").unwrap_or_default();
    let likeness = (
        trail.row,
        trail.path().to_vec(),
        collective.groups?,
        dimensions.to_vec(),
        collective.payload_out,
        module.computation_of(collective.outer),
        program.runs_of(collective).phase,
    );
    Some((likeness, trail))
}

/// Arrays that all devices of a group hold: by groups and row, the first collective that computes
/// the array.
type Makers = HashMap<(Option<u32>, Row), usize, BuildMix>;

fn makers(program: &Program<'_>) -> Makers {
    let mut makers = Makers::default();
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        if matches!(collective.kind, CollectiveKind::AllGather | CollectiveKind::AllReduce) {
            for row in std::iter::once(collective.row).chain(collective.done) {
                makers.entry((collective.groups, row)).or_insert(number);
            }
        }
    }
    makers
}

/// The slice that `collective` gathers and the collective that computed the sliced array, if all
/// devices of the group already hold the whole array; and whether a function of each element lies
/// between.
fn held_already(
    program: &Program<'_>,
    offsets: &Offsets<'_>,
    makers: &Makers,
    collective: &Collective,
) -> Option<(Vec<Row>, bool)> {
    let module = program.module;
    let mut slice = Trail::new(operand(program, collective)?).follow(module, converts);
    let before = before_function(program, &slice);
    let is_changed = before.is_some();
    if let Some(before) = before {
        slice = before.follow(module, converts);
    }
    if module.opcode(slice.row) != Opcode::DynamicSlice {
        return None;
    }
    let whole = slice.operand(module, 0)?.follow(module, converts);
    let size = collective.group_size?;
    if program.elements(slice.row)?.checked_mul(size) != program.elements(whole.row) {
        return None;
    }
    let source = makers.get(&(collective.groups, whole.row))?;
    let source = program.collectives.collectives.get(*source)?;
    let devices =
        devices(&program.collectives.context, program.members(collective)?.iter().copied());
    let (_, mut starts) = offsets.parts(&slice, &devices)?;
    let count = starts.len();
    starts.sort_unstable();
    starts.dedup();
    (starts.len() == count).then(|| (vec![slice.row, source.row], is_changed))
}

fn site(
    program: &Program<'_>,
    number: usize,
    collective: &Collective,
    evidence: Vec<Row>,
    is_changed: bool,
) -> Option<Site> {
    let runs = program.runs_of(collective);
    let payload = runs.times(collective.payload()?)?;
    let mut site = Site::new(collective.row)
        .runs(&runs)
        .sum("payload_bytes", payload)
        .sum("wire_bytes", runs.times(collective.ring_wire_bytes()?)?)
        .of(number);
    site.evidence.extend(evidence);
    site.bytes = Some(payload);
    site.key = u64::from(collective.groups?) << 1 | u64::from(is_changed);
    site.remedy = is_changed.then_some(APPLY);
    Some(site)
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let along = site.collective(program);
    let what = match site.remedy {
        Some(_) => form(
            site.places,
            "gathers an element-wise function of an array",
            "gather element-wise functions of arrays",
        ),
        None => form(site.places, "gathers an array", "gather arrays"),
    };
    format!(
        "{} {} {what} that every device already holds: {} of payload per step, {} on the wire",
        counted(site.places, "all-gather", "all-gathers"),
        along.map(|collective| program.along(collective)).unwrap_or_default(),
        bytes(site.figure("payload_bytes")),
        bytes(site.figure("wire_bytes")),
    )
}

#[cfg(test)]
mod tests {
    use crate::ir::work::steps_of;
    use crate::{comms, cost, flow, lint, parse, text};
    use std::fmt::Write;

    /// Numbers of findings and of steps where one value is gathered `count` times.
    fn gathered(count: usize) -> (usize, usize) {
        let mut program = String::from(
            "HloModule m, num_partitions=2\n\nENTRY e {\n  p = f32[2]{0} parameter(0)\n",
        );
        for number in 0..count {
            let _ = writeln!(
                program,
                "  g{number} = f32[4]{{0}} all-gather(p), channel_id={}, dimensions={{0}}, \
                 replica_groups={{{{0,1}}}}, use_global_device_ids=true",
                number + 1
            );
        }
        program.push_str("  ROOT t = () tuple()\n}\n");
        let source = text::Source::from_slice(program.as_bytes());
        let module = parse(source, &crate::Options::default()).unwrap();
        let facts = cost::Facts::of_module(&module);
        let cost = cost::cost(&module, &facts, &cost::Options::default());
        let attribution = flow::attribution(&module, &flow::AttributionOptions::default());
        let all = comms::collectives(&module, &cost, &attribution);
        let (steps, findings) = steps_of(|| {
            let options = lint::Options::default();
            let known = lint::Known {
                mesh: &|| None,
                along: &|| &[],
                sources: &flow::Sources::default(),
                time: &|| None,
                is_partitioned: true,
                backend: None,
                peak: &|| None,
                free: &|| None,
                memory_falls: &|_| None,
            };
            lint::lint(&module, &cost, &attribution, &all, &known, &options)
        });
        (findings.findings.iter().map(|finding| finding.places as usize).max().unwrap_or(0), steps)
    }

    #[test]
    fn one_value_gathered_many_times_takes_linear_work() {
        let ((few, less), (many, more)) = (gathered(500), gathered(2000));
        assert_eq!((few, many), (499, 1999));
        assert!(more < 5 * less, "{less} steps for 500 gathers, {more} for 2000");
    }
}
