//! `float32-activations`: activations that collectives send in f32 though the program computes in
//! 16 bits: most weights have 16 bits, or most matmuls return 16-bit values, as with f32 master
//! weights that each step converts.
//!
//! Compilers for TPUs multiply f32 activations in bf16 all the same, so that only the bytes show that
//! a program computes in f32. Where the result is only used after a convert to 16 bits, the compiler
//! chose f32 for the sum; gathers and all-to-alls add nothing up, so the program could convert before them
//! what it converts after them. Maxima and sums over features are statistics, which norms, routers and losses
//! compute in f32 on purpose.
//!
//! Where activations or matmuls are f32, so is what is kept for the backward pass. `float32-residuals` then stays
//! silent, and this rule promises by how much memory falls, too. Of values that are f32 only until the program
//! converts what is sent, it promises nothing of memory.

use super::batch_gathered;
use super::constraint::is_constraint;
use super::cut::results;
use super::finding::Measure;
use super::float32_residuals::{
    Place, Products, computes_in_16_bits, enters_softmax, is_stream, narrowed,
};
use super::program::{Program, bytes, counted, element_type, form, is_narrow, percent};
use super::resharded_scores;
use super::site::{Rule, Site};
use crate::comms::donated;
use crate::comms::{Collective, CollectiveKind, Moved};
use crate::cost::Backend;
use crate::flow::Phase;
use crate::flow::walk::{Passes, Trail, Use, converts, uses};
use crate::ir::{CallRole, ElementKind, ElementType, Module, Opcode, Row, ShapeView};
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

pub(super) const RULE: Rule = Rule {
    code: "float32-activations",
    what: "activations that collectives send in f32 although weights or matmuls are 16-bit",
    measure: Measure::Payload,
    find,
    message,
    remedy: "compute activations in 16 bits: convert the inputs of the layers, \
             the result of the embedding and what is added to activations or multiplies them, such \
             as positions, biases and scales (x.astype(jnp.bfloat16); in Flax, dtype=jnp.bfloat16), \
             and convert the f32 results of norms and softmaxes back; activations are then \
             rounded to 16 bits",
};

/// The remedy where matmuls multiply f32 values though others do not: JAX makes the other side f32 too.
const BOTH: &str = "convert to 16 bits both sides of the matmuls whose results are f32, the activation \
                    and the weight (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16); in Flax, \
                    dtype=jnp.bfloat16): one f32 side makes the other and the result f32; convert \
                    the f32 results of norms and softmaxes back; activations are then rounded to \
                    16 bits";

/// The remedy where every use of what is sent ends in a cast to 16 bits.
const EARLIER: &str = "convert before the values are sent: put the cast to 16 bits \
                       (x.astype(jnp.bfloat16)) before what moves them (with_sharding_constraint, \
                       all_gather, all_to_all), which is now between the f32 value and its cast";

/// The least payload of one collective per step. Samplers gather a few numbers in f32.
const LEAST: u64 = 1 << 16;

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    sites.extend_from_slice(streams(program));
}

/// The places of this rule.
pub(super) fn streams<'a>(program: &'a Program<'_>) -> &'a [Site] {
    program.streams.get_or_init(|| {
        let mut sites = Vec::new();
        find_streams(program, &mut sites);
        sites
    })
}

fn find_streams(program: &Program<'_>, sites: &mut Vec<Site>) {
    use CollectiveKind::*;
    let module = program.module;
    if program.cost.backend == Backend::Cpu && module.is_scheduled() {
        return;
    }
    let is_master = !has_narrow_weights(program);
    if is_master && !computes_in_16_bits(program) {
        return;
    }
    let Some(varying) = program.varying() else { return };
    // Where weights are f32, softmaxes and losses are not all that is f32 on purpose.
    let products = is_master.then(|| Products::new(program));
    let wide = products.as_ref().map(|products| products.wide(program)).unwrap_or_default();
    let is_wide_forward = !wide.is_empty();
    let from = sites.len();
    let mut others = Vec::new();
    let scores = resharded_scores::moved(program);
    let sums = OnceCell::new();
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        let is_wanted = matches!(collective.kind, AllReduce | ReduceScatter | AllGather | AllToAll);
        // With one sharding, scores are not sent at all, nor are queries, keys and values that follow them. Where
        // weights have 16 bits, nothing tells those from other values, so no all-to-all counts.
        let follows = products.is_none() && collective.kind == AllToAll && !scores.is_empty();
        if follows || scores.binary_search(&number).is_ok() {
            continue;
        }
        if !is_wanted || collective.moved != Moved::Activation {
            others.push(number);
            continue;
        }
        let operands = module.operands(collective.row);
        let is_wide = |row: &u32| element_type(module, Row(*row)) == Some(ElementType::F32);
        let is_batch = |row: &u32| varying.is_from_batch(module, Row(*row));
        let is_statistic = |row: &u32| {
            let made = Trail::new(Row(*row)).follow(module, converts);
            module.opcode(made.row) == Opcode::Reduce
        };
        let enters = |row: &Row| enters_softmax(program, *row);
        if collective.kind == AllGather && results(module, collective).iter().all(enters) {
            continue;
        }
        let is_narrowed = is_narrowed(program, collective);
        let is_moved = is_narrowed
            && matches!(collective.kind, AllGather | AllToAll)
            && batch_gathered::gathered(program, number) == 0;
        let is_other = |products: &Products<'_>| {
            !operands.iter().any(|row| is_stream(program, products, &Trail::new(Row(*row))))
        };
        if !operands.iter().all(is_wide)
            || !operands.iter().any(is_batch)
            || operands.iter().all(is_statistic)
            || !is_moved && (is_narrowed || products.as_ref().is_some_and(is_other))
        {
            others.push(number);
            continue;
        }
        let runs = program.runs_of(collective);
        let Some(payload) = collective.payload().and_then(|payload| runs.times(payload)) else {
            continue;
        };
        if payload < LEAST {
            continue;
        }
        let mut site = Site::new(collective.row).runs(&runs).of(number);
        let joined = joined(program, collective, sums.get_or_init(|| sums_by_row(program)));
        let joined = runs.times(joined).unwrap_or(0).min(payload);
        site.bytes = Some(joined + (payload - joined) / 2);
        site = site.sum("payload_bytes", payload);
        if joined > 0 {
            site = site.sum("joined_bytes", joined);
        }
        site.kind = Some(collective.kind);
        // One stream of activations in f32 shows at every collective that moves it.
        site.is_anywhere = true;
        if is_moved {
            site.key = 1;
            site.remedy = Some(EARLIER);
        }
        sites.push(site);
    }
    let wide = widened(program, products.is_some(), wide, sites.get(from..).unwrap_or_default());
    for number in others {
        let collective = &program.collectives.collectives[number];
        sites.extend(of_products(program, &wide, number, collective));
    }
    if is_wide_forward {
        let products = sites.iter_mut().skip(from).filter(|site| site.key == 0);
        products.for_each(|site| site.remedy = Some(BOTH));
    }
    // At least one activation besides gradients. What another collective adds up is of the kind of that.
    let is_sum = |row: &u32| {
        let made = Trail::new(Row(*row)).follow(module, moves);
        matches!(module.opcode(made.row), Opcode::AllReduce | Opcode::AllReduceDone)
    };
    let is_activation = |site: &Site| {
        site.collective(program).is_some_and(|own| {
            own.moved == Moved::Activation && !module.operands(own.row).iter().all(is_sum)
        })
    };
    if !sites.iter().skip(from).any(is_activation) {
        sites.truncate(from);
    }
    // The memory falls once, whatever shows the fault, so that one place has the change of all. Residuals are read for
    // it here, as `float32-residuals` does only without these places, or where they are too small for a finding.
    if let Some(site) = sites.iter_mut().skip(from).find(|site| site.key == 0) {
        site.change = narrowed(program, &wide);
    }
}

/// The all-reduces whose groups are known, by each row that returns their results.
fn sums_by_row<'a>(program: &Program<'a>) -> HashMap<Row, &'a Collective> {
    let all = program.collectives.collectives.iter();
    let sums = all.filter(|own| own.kind == CollectiveKind::AllReduce && own.groups.is_some());
    sums.flat_map(|own| std::iter::once(own.row).chain(own.done).map(move |row| (row, own)))
        .collect()
}

/// Bytes of f32 arrays whose sums over devices the program only adds to 16-bit sums over the same devices. Once both
/// have 16 bits, XLA adds the arrays first and sums the result over devices (`all-reduce-reassociate`).
fn joined(program: &Program<'_>, collective: &Collective, sums: &HashMap<Row, &Collective>) -> u64 {
    let module = program.module;
    let is_other = |made: &Trail| {
        let shapes = module.shapes();
        let shape = match made.path() {
            [] => Some(module.shape(made.row)),
            [at] => {
                shapes.tuple(module.shape(made.row)).and_then(|own| own.get(*at as usize).copied())
            }
            _ => None,
        };
        let array = shape.and_then(|shape| shapes.array(shape));
        array.is_some_and(|array| is_narrow(array.element_type))
            && sums
                .get(&made.row)
                .is_some_and(|own| own.groups == collective.groups && own.row != collective.row)
    };
    let is_joined = |used: &Use| {
        let other = Trail::within(used.row, &used.calls);
        let other = other.operand(module, 1 - used.operand.min(1));
        module.opcode(used.row) == Opcode::Add
            && other.is_some_and(|own| is_other(&own.follow(module, converts)))
    };
    let keeps = |module: &Module, row: Row, operand: usize| {
        operand == 0 && (converts(module.opcode(row)) || is_constraint(module, row))
    };
    let bytes = |result: &Row| {
        let at = module.tuple_index(*result).unwrap_or(0);
        let sent = module.operands(collective.row).get(at).map(|row| Row(*row));
        let sent = sent.filter(|row| element_type(module, *row) == Some(ElementType::F32))?;
        let uses = uses(&program.walk, *result, keeps, is_joined)?;
        (!uses.is_empty()).then(|| program.bytes(sent))
    };
    let is_sum = collective.kind == CollectiveKind::AllReduce;
    results(module, collective).iter().filter(|_| is_sum).filter_map(bytes).sum()
}

/// The places of matmuls of f32 values: `wide`, whose results show it, and those of `sites`, which send gradients in
/// f32. The compiler rounds results that only matmuls read, but not what is added up between devices.
fn widened(
    program: &Program<'_>,
    is_master: bool,
    mut wide: HashSet<Place>,
    sites: &[Site],
) -> HashSet<Place> {
    let columns = program.module.metadata_columns();
    let rows = sites.iter().filter(|_| is_master).flat_map(|own| own.subjects.first());
    let rows = rows.filter(|row| program.runs(**row).phase == Phase::Backward);
    wide.extend(rows.map(|row| program.sources().place(columns, *row)).filter(|own| own.0 >= 0));
    wide
}

/// What else a collective sends in f32 because of a matmul of f32 values, at one of the places `wide`: its
/// gradients, shards of its operands that pass around a ring, and functions of its result.
fn of_products(
    program: &Program<'_>,
    wide: &HashSet<Place>,
    number: usize,
    collective: &Collective,
) -> Option<Site> {
    let module = program.module;
    if wide.is_empty() {
        return None;
    }
    let is_of = |row: &&u32| {
        let row = Row(**row);
        element_type(module, row) == Some(ElementType::F32)
            && program.elements(row).is_some_and(|elements| elements >= LEAST / 4)
            && made_at(program, wide, Trail::new(row), &mut { MOST_STEPS })
    };
    let own = module.operands(collective.row).iter().filter(is_of);
    let bytes = own.fold(0u64, |sum, row| sum.saturating_add(program.bytes(Row(*row))));
    let all = module.operands(collective.row).iter();
    let all = all.fold(0u64, |sum, row| sum.saturating_add(program.bytes(Row(*row))));
    let runs = program.runs_of(collective);
    let payload = collective.payload().and_then(|payload| runs.times(payload))?;
    let part = u128::from(payload) * u128::from(bytes) / u128::from(all.max(1));
    let part = u64::try_from(part).ok().filter(|part| *part >= LEAST)?;
    let mut site = Site::new(collective.row).runs(&runs).of(number);
    site.bytes = Some(part / 2);
    site = site.sum("payload_bytes", part);
    site.kind = Some(collective.kind);
    site.is_anywhere = true;
    Some(site)
}

/// Limit on the rows between a collective and a matmul.
const MOST_STEPS: u32 = 64;

/// [`made_at`], for as many rows as are between a collective and a matmul.
pub(super) fn is_made_at(program: &Program<'_>, wide: &HashSet<Place>, trail: Trail) -> bool {
    !wide.is_empty() && made_at(program, wide, trail, &mut { MOST_STEPS })
}

/// Whether the f32 value at `trail` is the result of a matmul at one of the places `wide`, a function of
/// each element of such a result, or several of them side by side.
fn made_at(program: &Program<'_>, wide: &HashSet<Place>, trail: Trail, left: &mut u32) -> bool {
    let module = program.module;
    let Some(next) = left.checked_sub(1) else { return false };
    *left = next;
    let trail = trail.follow(module, moves);
    let row = trail.row;
    let opcode = module.opcode(row);
    if let Some(before) = summand(module, &trail) {
        return made_at(program, wide, before, left);
    }
    if element_type(module, row) != Some(ElementType::F32) {
        return false;
    }
    let is_at = || wide.contains(&program.sources().place(module.metadata_columns(), row));
    let is_product = opcode.is_matmul()
        || program.op_name(row).is_some_and(|name| name.ends_with(b"dot_general"));
    if is_product {
        return is_at();
    }
    let joins = matches!(opcode, Opcode::Concatenate | Opcode::Pad | Opcode::DynamicUpdateSlice);
    (opcode.is_elementwise() || joins)
        && (0..module.operands(row).len()).any(|index| {
            trail.operand(module, index).is_some_and(|next| made_at(program, wide, next, left))
        })
}

/// What devices or the iterations of a loop add up to the value at `trail`.
fn summand(module: &Module, trail: &Trail) -> Option<Trail> {
    let row = trail.row;
    let element = trail.path().first().map(|element| *element as usize);
    match module.opcode(row) {
        Opcode::AllReduce | Opcode::AllReduceStart | Opcode::AllReduceDone => {
            trail.operand(module, element.unwrap_or(0))
        }
        Opcode::While => {
            let body = module.called(row, CallRole::Body)?;
            let &next = module.operands(Row(module.computation(body).root)).get(element?)?;
            Some(Trail::new(Row(next)))
        }
        _ => None,
    }
}

/// What changes no value.
fn moves(opcode: Opcode) -> bool {
    converts(opcode) && opcode != Opcode::Convert
        || matches!(opcode, Opcode::Slice | Opcode::DynamicSlice | Opcode::AllToAll)
}

/// Whether most bytes of floating-point parameters are of 16-bit types. If the step donates its
/// state, only donated parameters count, because the others are inputs. What only the optimizer reads, such
/// as f32 moments of 16-bit weights, is not a weight.
fn has_narrow_weights(program: &Program<'_>) -> bool {
    let module = program.module;
    let phases = &program.attribution.whose(module).phase;
    let (mut narrow, mut all) = (0u64, 0u64);
    let state = donated(module);
    for row in module.parameters(module.entry()) {
        let number = module.parameter_number(row).unwrap_or(u64::MAX);
        let is_state = phases.get(row.0 as usize) == Some(&Phase::Optimizer);
        if is_state || !state.is_empty() && state.binary_search(&number).is_err() {
            continue;
        }
        for leaf in module.shapes().leaves(module.shape(row)) {
            let ShapeView::Array(array) = module.shapes().get(leaf) else { continue };
            if array.element_type.kind() != ElementKind::Float {
                continue;
            }
            let bytes = array.logical_bytes().unwrap_or(0);
            all = all.saturating_add(bytes);
            if array.element_type.bits() == 16 {
                narrow = narrow.saturating_add(bytes);
            }
        }
    }
    narrow > all / 2
}

/// Whether every use of the result converts it to 16 bits. Partitioners may gather a norm's result before
/// its scale and its cast, so that some arithmetic may lie between a gather and the cast.
fn is_narrowed(program: &Program<'_>, collective: &Collective) -> bool {
    use CollectiveKind::*;
    let module = program.module;
    let keeps = |module: &Module, row: Row, operand: usize| {
        operand == 0 && converts(module.opcode(row)) && module.opcode(row) != Opcode::Convert
    };
    let scales = |module: &Module, row: Row, operand: usize| {
        let opcode = module.opcode(row);
        matches!(opcode, Opcode::Multiply | Opcode::Divide | Opcode::Add | Opcode::Subtract)
            || operand == 0 && converts(opcode) && opcode != Opcode::Convert
    };
    let passes: Passes = match collective.kind {
        AllGather | AllToAll => scales,
        _ => keeps,
    };
    let narrows = |used: &Use| {
        module.opcode(used.row) == Opcode::Convert
            && element_type(module, used.row).is_some_and(|own| own.bits() <= 16)
    };
    results(module, collective)
        .iter()
        .all(|row| uses(&program.walk, *row, passes, narrows).is_some_and(|uses| !uses.is_empty()))
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let Some(collective) = site.collective(program) else {
        return String::new();
    };
    let kind = site.kind.map_or("collective", |kind| kind.as_str());
    let payload = site.figure("payload_bytes");
    let along = match site.places {
        1 => format!(" {}", program.along(collective)),
        _ => String::new(),
    };
    let narrow = match has_narrow_weights(program) {
        true => "weights are 16-bit",
        false => "matmuls return 16-bit values",
    };
    let joined = match site.figure("joined_bytes") {
        0 => " of it".to_owned(),
        joined => format!(
            " of the rest; {} join 16-bit sums over the same devices and are not sent",
            bytes(joined)
        ),
    };
    let falls = match site.peak().unwrap_or(0) {
        0 => String::new(),
        peak => format!(
            "; what is kept from forward to backward then takes less, and the peak of memory falls by at least {}",
            bytes(peak)
        ),
    };
    format!(
        "{}{along} {} activations in f32 although most {narrow}: {} of payload per step, {} of \
         all collectives; 16-bit values send half{joined}{falls}",
        counted(site.places, kind, &format!("{kind}s")),
        form(site.places, "sends", "send"),
        bytes(payload),
        percent(payload, program.payload()),
    )
}
