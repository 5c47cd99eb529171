//! `replicated-parameter`: large replicated floating-point parameters in a program that shards
//! others.

use super::finding::Measure;
use super::program::{Program, bytes, counted, form, percent};
use super::site::{Rule, Site};
use crate::comms::{Mesh, donated};
use crate::flow::walk::is_kept;
use crate::flow::{Phase, Place};
use crate::ir::decode::{AttributeValue, LeafSharding, Placement, SubgroupKind, decode};
use crate::ir::intern::BuildMix;
use crate::ir::{
    ArrayShape, CallRole, ElementKind, ElementType, Module, Opcode, Row, ShapeId, ShapeView,
};
use crate::memory::{Resized, Spared};
use crate::remat::ResidualKind;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};

pub(super) const RULE: Rule = Rule {
    code: "replicated-parameter",
    what: "large replicated parameters in a program that shards others",
    measure: Measure::Parameters,
    find,
    message,
    remedy: "shard the parameter along these axes too: add them to its PartitionSpec, on a \
             dimension that they divide (parameters and optimizer state along the data axis: ZeRO, \
             FSDP); a parameter that a step then needs in full is gathered",
};

/// How devices hold one array.
#[derive(Clone, Copy)]
struct Held {
    /// Devices that hold the same part.
    copies: u64,
    /// Number of distinct parts.
    parts: u64,
}

/// An array of a parameter.
pub(super) struct ParameterArray {
    row: Row,
    /// How devices hold it; None if the text does not tell.
    held: Option<Held>,
    /// Whether it may be part of the model or of the optimizer's state.
    is_state: bool,
    /// Bytes on one device; before partitioning, of the whole array if `held` is None.
    pub bytes: u64,
}

/// The arrays of the parameters of the entry.
pub(super) fn parameter_arrays(program: &Program<'_>) -> Vec<ParameterArray> {
    let (module, devices) = (program.module, program.device_count().unwrap_or(1));
    // Many parameters share few distinct shardings.
    let mut known: HashMap<&[u8], Option<Vec<Held>>, BuildMix> = HashMap::default();
    let mut arrays = Vec::new();
    for row in module.parameters(module.entry()) {
        let text = module.attribute_bytes(row, "sharding");
        let held = text.map(|text| &*known.entry(text).or_insert_with(|| held(text, devices)));
        let held = held.and_then(|held| held.as_deref()).unwrap_or_default();
        let shapes = module.shapes();
        for (index, leaf) in shapes.leaves(module.shape(row)).enumerate() {
            let ShapeView::Array(array) = shapes.get(leaf) else { continue };
            let held = held.get(index.min(held.len().saturating_sub(1))).copied();
            let parts = held.filter(|_| !program.is_partitioned()).map_or(1, |held| held.parts);
            arrays.push(ParameterArray {
                row,
                held,
                is_state: array.element_type.kind() == ElementKind::Float && array.rank() > 0,
                bytes: array.logical_bytes().unwrap_or(0).div_ceil(parts.max(1)),
            });
        }
    }
    arrays
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    if program.device_count().is_none_or(|devices| devices < 2) {
        return;
    }
    let arrays = parameter_arrays(program).into_iter().filter(|array| array.is_state);
    let arrays = arrays.filter_map(|array| Some((array.row, array.held?, array.bytes)));
    let arrays: Vec<(Row, Held, u64)> = arrays.collect();
    if arrays.iter().all(|(_, held, _)| held.parts < 2) {
        return;
    }
    // If the step donates its state, only donated parameters count, because the others are inputs.
    let state = donated(module);
    let least = program.options.min_share * program.parameter_bytes() as f64;
    let shared: HashSet<ShapeId> =
        arrays.iter().filter(|own| own.1.copies < 2).map(|own| module.shape(own.0)).collect();
    let (mut alike, mut kept, mut saved_for) = (None, None, None);
    let phases = &program.attribution.whose(module).phase;
    for (row, held, bytes) in arrays {
        let saved = bytes - bytes / held.copies.max(1);
        let number = module.parameter_number(row).unwrap_or(u64::MAX);
        if !state.is_empty() && state.binary_search(&number).is_err() {
            continue;
        }
        if held.copies < 2 || (saved as f64) < least || saved == 0 {
            continue;
        }
        let mut site = Site::new(row)
            .sum("held_bytes", bytes)
            .sum("saved_bytes", saved)
            .common("copies", held.copies)
            .common("parts", held.parts);
        site.bytes = Some(saved);
        let alike = alike.get_or_insert_with(|| shapes_alike(program));
        site.change.resized = resized(module, row, held.copies, (alike, &shared));
        if phases.get(row.0 as usize) != Some(&Phase::Optimizer) {
            let kept = kept.get_or_insert_with(|| kept_by_loops(program));
            let stacks = converted(module, row, held.copies, (alike, kept));
            let less = |own: &Resized| {
                module.shapes().logical_bytes(own.shape).unwrap_or(0).saturating_sub(own.bytes)
            };
            if !stacks.is_empty() {
                let all = stacks.iter().map(less).fold(0, u64::saturating_add);
                site = site.sum("stack_bytes", all);
            }
            site.change.resized.extend(stacks);
        }
        if !site.change.resized.is_empty() {
            let activations = saved_for.get_or_insert_with(|| activations(program));
            site.change.kept = by_chance(&site.change.resized, activations);
        }
        if !site.change.resized.is_empty() && state.binary_search(&number).is_ok() {
            site.change.spared.extend(copied(module, row));
        }
        site.key = held.copies;
        site.is_anywhere = true;
        sites.push(site);
    }
}

/// The element type and the sizes of a shape.
type Likeness = (ElementType, SmallVec<[Option<i64>; 4]>);
type Alike = HashMap<Likeness, Vec<ShapeId>, BuildMix>;

fn likeness(array: &ArrayShape<'_>) -> Likeness {
    (array.element_type, array.dimensions().map(|own| own.bound()).collect())
}

/// The shapes of a partitioned program by element type and sizes; none of another program.
fn shapes_alike(program: &Program<'_>) -> Alike {
    let shapes = program.module.shapes();
    let mut alike = Alike::default();
    for id in shapes.ids().filter(|_| program.is_partitioned()) {
        if let Some(array) = shapes.array(id) {
            alike.entry(likeness(&array)).or_default().push(id);
        }
    }
    alike
}

/// The arrays that shrink with parameter `row` once it is sharded across `copies` devices: its gradient and
/// what the optimizer computes have its sizes and its type. None if other parameters, of `shared`, have
/// them too, or if the parameter holds several arrays.
fn resized(
    module: &Module,
    row: Row,
    copies: u64,
    (alike, shared): (&Alike, &HashSet<ShapeId>),
) -> Vec<Resized> {
    let Some(own) = module.shapes().array(module.shape(row)) else { return Vec::new() };
    let Some(like) = alike.get(&likeness(&own)) else { return Vec::new() };
    if like.iter().any(|shape| shared.contains(shape)) {
        return Vec::new();
    }
    let bytes = own.logical_bytes().unwrap_or(0).div_ceil(copies.max(1));
    like.iter().map(|shape| Resized { shape: *shape, bytes }).collect()
}

/// The activations that are kept for the backward pass, by shape.
fn activations(program: &Program<'_>) -> HashMap<ShapeId, Vec<Place>> {
    let mut places: HashMap<ShapeId, Vec<Place>> = HashMap::new();
    for own in program.residuals() {
        if own.kind == ResidualKind::Activation {
            places.entry(own.shape).or_default().push(own.place.clone());
        }
    }
    places
}

/// Those of `activations` that have the shape of an array that shrinks: stacks of hidden values, such as
/// layers × rows × tokens × width, may have the sizes of a stack of weights.
fn by_chance(resized: &[Resized], activations: &HashMap<ShapeId, Vec<Place>>) -> Vec<Place> {
    resized.iter().filter_map(|own| activations.get(&own.shape)).flatten().cloned().collect()
}

/// The stacks that loops over layers read and do not change, if the program is partitioned; none of the shape of a
/// parameter, since that may be one.
fn kept_by_loops(program: &Program<'_>) -> HashSet<ShapeId> {
    let module = program.module;
    let opcodes = module.columns().opcodes.iter().zip(0..);
    let loops = opcodes.filter(|(opcode, _)| **opcode == Opcode::While && program.is_partitioned());
    let mut shapes = HashSet::new();
    for body in loops.filter_map(|(_, row)| module.called(Row(row), CallRole::Body)) {
        let next = module.operands(Row(module.computation(body).root)).iter().enumerate();
        let kept = next.filter(|(index, _)| is_kept(module, body, *index));
        shapes.extend(kept.map(|(_, row)| module.shape(Row(*row))));
    }
    for row in module.parameters(module.entry()) {
        shapes.remove(&module.shape(row));
    }
    shapes
}

/// The arrays of `kept` that are the weights `row` in another type: a loop takes the part of a layer out of a stack
/// before this part is gathered, so that the stack is sharded as the weights are.
fn converted(
    module: &Module,
    row: Row,
    copies: u64,
    (alike, kept): (&Alike, &HashSet<ShapeId>),
) -> Vec<Resized> {
    use ElementType::*;
    let shapes = module.shapes();
    let Some(own) = shapes.array(module.shape(row)) else { return Vec::new() };
    let (kind, sizes) = likeness(&own);
    let others = [F32, Bf16, F16].into_iter().filter(|other| *other != kind);
    let like = others.filter_map(|other| alike.get(&(other, sizes.clone()))).flatten();
    let less = |shape: &ShapeId| {
        let bytes = shapes.logical_bytes(*shape).unwrap_or(0).div_ceil(copies.max(1));
        Resized { shape: *shape, bytes }
    };
    like.filter(|shape| kept.contains(shape)).map(less).collect()
}

/// The copy of the donated parameter `row` that only keeps its old value from the new one: devices compute parts of the
/// new value and gather them into the memory of the parameter, where other parts are still read. A device that has one
/// part writes it over the old one.
fn copied(module: &Module, row: Row) -> Option<Spared> {
    let &[user] = module.users().get(row.0) else { return None };
    let own = Spared { row: Row(user), shape: module.shape(row), from: row.into() };
    let is_copy = module.opcode(own.row) == Opcode::Copy && module.shape(own.row) == own.shape;
    is_copy.then_some(own)
}

/// How devices hold each leaf of the sharding `text`; None if unknown.
fn held(text: &[u8], devices: u64) -> Option<Vec<Held>> {
    let AttributeValue::Sharding(sharding) = decode(b"sharding", Opcode::Parameter, text).ok()?
    else {
        return None;
    };
    Some(sharding.leaves().iter().map(|leaf| held_leaf(leaf, devices)).collect())
}

fn held_leaf(leaf: &LeafSharding<'_>, devices: u64) -> Held {
    let nothing = Held { copies: 1, parts: 1 };
    let parts = || {
        let tiles = leaf.tile_dimensions()?;
        tiles.into_iter().try_fold(1u64, |parts, n| parts.checked_mul(u64::try_from(n).ok()?))
    };
    match &leaf.placement {
        Placement::Replicated => Held { copies: devices, parts: 1 },
        Placement::Tiled(tiles)
            if tiles.subgroups.iter().all(|kind| *kind == SubgroupKind::Replicated) =>
        {
            let all = leaf.device_count().unwrap_or(1);
            match parts() {
                Some(parts) if parts > 0 => Held { copies: (all / parts).max(1), parts },
                _ => nothing,
            }
        }
        Placement::Named(named) if named.manual.is_empty() && named.unreduced.is_none() => {
            let all = leaf.device_count().unwrap_or(1);
            match parts() {
                Some(parts) if parts > 0 => Held { copies: (all / parts).max(1), parts },
                _ if leaf.is_replicated() => Held { copies: all, parts: 1 },
                _ => nothing,
            }
        }
        _ => nothing,
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let copies = site.figure("copies");
    format!(
        "{} of {} per device {} replicated on {copies} devices{}: sharding across them saves {} \
         per device, {} of all parameter bytes{}{}",
        counted(site.places, "parameter", "parameters"),
        bytes(site.figure("held_bytes")),
        form(site.places, "is", "are"),
        program.mesh().map(|mesh| axes(mesh, copies)).unwrap_or_default(),
        bytes(site.figure("saved_bytes")),
        percent(site.figure("saved_bytes"), program.parameter_bytes()),
        program.mesh().map(|mesh| between_slices(mesh, copies)).unwrap_or_default(),
        falls(site.peak(), site.figure("stack_bytes") > 0),
    )
}

/// By how much the peak falls. A constraint inside a loop that gathers weights leaves no trace where they are whole.
fn falls(peak: Option<u64>, has_stacks: bool) -> String {
    let stacks = match has_stacks {
        true => {
            ", and the stacks of weights in another type that loops read (those that a constraint \
                 inside the loop gathers stay whole)"
        }
        false => "",
    };
    match peak {
        Some(peak) => format!(
            "; the peak of memory falls by {}, with their gradients and what the optimizer computes{stacks}; \
             what a step gathers takes memory for a while",
            bytes(peak)
        ),
        None => {
            ". This is the memory of parameters alone: gradients are then sharded too, and what a \
                 step gathers takes memory for a while"
                .to_owned()
        }
    }
}

/// What sharding across `size` devices sends over the slow network, if these may be in several slices.
fn between_slices(mesh: &Mesh, size: u64) -> String {
    let Some(slices) = mesh.slices().filter(|slices| *slices > 1) else { return String::new() };
    let axes = mesh.axes().iter().enumerate();
    let own: Vec<usize> = axes.filter(|(_, axis)| axis.size == size).map(|(at, _)| at).collect();
    let crosses = |axis: usize| mesh.axis_span(axis).slices.is_none_or(|span| span.blocks > 1);
    let is_within =
        size <= mesh.device_count() / slices && (own.is_empty() || !own.into_iter().any(crosses));
    if is_within {
        return String::new();
    }
    format!(
        "; these devices may be in {slices} slices: what a step gathers across slices goes over the \
         network between them, so shard along the axes inside a slice first"
    )
}

/// All axes if `size` is the number of all devices, otherwise the only axis of that size.
fn axes(mesh: &Mesh, size: u64) -> String {
    if mesh.device_count() == size {
        let names: Vec<&str> = mesh
            .axes()
            .iter()
            .filter(|axis| axis.size > 1)
            .map(|axis| axis.name.as_str())
            .collect();
        return format!(" ({})", names.join("×"));
    }
    let mut fitting = mesh.axes().iter().filter(|axis| axis.size == size);
    match (fitting.next(), fitting.next()) {
        (Some(axis), None) => format!(" ({})", axis.name),
        _ => String::new(),
    }
}
