//! Facts about a program that rules use, each computed once.

use super::finding::{Falls, Measure};
use super::replicated_parameter::parameter_arrays;
use super::site::Site;
use super::{Known, Options};
use crate::comms::{
    AxisMatch, AxisPart, Collective, Collectives, DeviceGroups, GroupMode, Mesh, Partitioned,
    PermuteMatch, Varying,
};
use crate::cost::custom_call::{CustomCallKind, custom_call_target, known_target};
use crate::cost::{Cost, Executions};
use crate::flow::walk::Walk;
use crate::flow::{Attribution, Phase, Sources};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, ElementKind, ElementType, Module, Opcode, Row};
use crate::memory::Change;
use crate::remat::{Residual, residuals};
use crate::summary;
use hashbrown::HashMap;
use std::cell::{Cell, OnceCell};

/// How many fusions lie around each other.
const MOST_FUSIONS: usize = 8;
/// Limit on the findings whose peak after the change is counted: each takes as long as the account.
const MOST_PEAKS: u32 = 16;
/// Limit on the devices of a group that is expanded.
const MOST_DEVICES: usize = 1 << 14;

/// A program with its analyses.
pub(super) struct Program<'a> {
    pub module: &'a Module,
    pub cost: &'a Cost,
    pub attribution: &'a Attribution,
    pub collectives: &'a Collectives,
    pub options: &'a Options,
    pub walk: Walk<'a>,
    executions: Executions<'a>,
    /// By computation: whether it runs inside a loop of unknown trip count. Empty if none does.
    open: Vec<bool>,
    known: &'a Known<'a>,
    /// By computation: its position in a depth-first walk over calls from the entry.
    reached: OnceCell<Vec<u32>>,
    /// By groups: the devices of the first group.
    members: Vec<OnceCell<Option<Vec<u64>>>>,
    /// Payload and ring wire bytes of all calls of all collectives.
    payload: u64,
    wire: u64,
    parameter_bytes: OnceCell<u64>,
    has_phases: OnceCell<bool>,
    products: OnceCell<Vec<Row>>,
    matmul_flops: OnceCell<u64>,
    varying: OnceCell<Option<Varying>>,
    inputs: OnceCell<Option<Varying>>,
    residuals: OnceCell<Vec<Residual>>,
    /// Collectives that send activations in f32 (`float32_activations.rs`), which other rules leave out.
    pub streams: OnceCell<Vec<Site>>,
    /// The all-to-alls that move scores of attention (`resharded_scores.rs`), which other rules leave out.
    pub resharded: OnceCell<Vec<usize>>,
    /// Peaks after a change that were counted.
    peaks: Cell<u32>,
}

/// How often an instruction runs.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    /// Executions in all phases together; None beyond 64 bits.
    pub count: Option<u64>,
    /// The first phase.
    pub phase: Phase,
    /// The true count may be higher.
    pub is_lower_bound: bool,
}

impl Runs {
    /// `amount` in all executions.
    pub fn times(&self, amount: u64) -> Option<u64> {
        amount.checked_mul(self.count?)
    }
}

impl<'a> Program<'a> {
    pub fn new(
        module: &'a Module,
        cost: &'a Cost,
        attribution: &'a Attribution,
        collectives: &'a Collectives,
        known: &'a Known<'a>,
        options: &'a Options,
    ) -> Self {
        let mut program = Self {
            module,
            cost,
            attribution,
            collectives,
            options,
            walk: Walk::new(module),
            executions: Executions::new(module, cost, attribution),
            open: open_computations(module, cost),
            known,
            reached: OnceCell::new(),
            members: collectives.groups.iter().map(|_| OnceCell::new()).collect(),
            payload: 0,
            wire: 0,
            parameter_bytes: OnceCell::new(),
            has_phases: OnceCell::new(),
            products: OnceCell::new(),
            matmul_flops: OnceCell::new(),
            varying: OnceCell::new(),
            inputs: OnceCell::new(),
            residuals: OnceCell::new(),
            streams: OnceCell::new(),
            resharded: OnceCell::new(),
            peaks: Cell::new(0),
        };
        for collective in &collectives.collectives {
            let runs = program.runs_of(collective);
            let add = |sum: u64, bytes: Option<u64>| {
                sum.saturating_add(bytes.and_then(|bytes| runs.times(bytes)).unwrap_or(0))
            };
            program.payload = add(program.payload, collective.payload());
            program.wire = add(program.wire, collective.ring_wire_bytes());
        }
        program
    }

    /// The source file and line of each row.
    pub fn sources(&self) -> &Sources {
        self.known.sources
    }

    /// How often `row` runs.
    pub fn runs(&self, row: Row) -> Runs {
        let executions = self.executions.of(row);
        self.sum(row, &executions)
    }

    /// How often `collective` runs.
    pub fn runs_of(&self, collective: &Collective) -> Runs {
        self.sum(collective.outer, &collective.executions)
    }

    fn sum(&self, row: Row, executions: &[crate::cost::PhaseExecutions]) -> Runs {
        let count = executions
            .iter()
            .try_fold(0u64, |sum, entry| sum.checked_add(u64::try_from(entry.count?).ok()?));
        Runs {
            count,
            phase: executions.first().map_or(Phase::Unattributed, |entry| entry.phase),
            is_lower_bound: count.is_none() || self.is_open(self.module.computation_of(row)),
        }
    }

    /// A sort key in the order in which calls from the entry reach rows. Row numbers follow the
    /// order of computations in the text, which differs between spellings of one program.
    pub fn place(&self, row: Row) -> (u32, Row) {
        let reached = self.reached.get_or_init(|| reached(self.module));
        let computation = self.module.computation_of(row).0 as usize;
        (reached.get(computation).copied().unwrap_or(u32::MAX), row)
    }

    /// Whether any phase is known.
    pub fn has_phases(&self) -> bool {
        *self.has_phases.get_or_init(|| {
            let phases = &self.attribution.phase;
            crate::ir::work::count(phases.len());
            phases.iter().any(|phase| *phase != Phase::Unattributed)
        })
    }

    /// Whether computation `id` runs inside a loop of unknown trip count.
    pub fn is_open(&self, id: ComputationId) -> bool {
        self.open.get(id.0 as usize).copied().unwrap_or(false)
    }

    /// Whether at least the configured share is at stake; true if the amount at stake is unknown.
    pub fn matters(&self, site: &Site, measure: Measure) -> bool {
        let (value, total) = match measure {
            Measure::Payload => (site.bytes, self.payload),
            Measure::Wire => (site.bytes, self.wire),
            Measure::Memory | Measure::Parameters | Measure::Arrays => {
                (site.bytes, self.parameter_bytes())
            }
            Measure::Traffic => (site.bytes, self.traffic()),
            Measure::None => (site.flops, self.matmul_flops()),
        };
        let least = match measure.is_memory() {
            true => self.options.min_replicated_share,
            false => self.options.min_share,
        };
        let is_enough = |value: u64| value > 0 && value as f64 >= least * total as f64;
        value.is_none_or(is_enough)
    }

    /// FLOPs of all matmuls of the step.
    pub fn matmul_flops(&self) -> u64 {
        *self.matmul_flops.get_or_init(|| {
            let flops = |row: Row| self.runs(row).times(self.product_flops(row)?);
            self.products().filter_map(flops).fold(0, u64::saturating_add)
        })
    }

    /// Bytes of all parameters of the entry on one device.
    pub fn parameter_bytes(&self) -> u64 {
        *self.parameter_bytes.get_or_init(|| {
            let module = self.module;
            if !self.is_partitioned() {
                let arrays = parameter_arrays(self).into_iter();
                return arrays.map(|array| array.bytes).fold(0, u64::saturating_add);
            }
            module.parameters(module.entry()).into_iter().fold(0, |sum, row| {
                let bytes = module.shapes().logical_bytes(module.shape(row));
                bytes.unwrap_or(0).saturating_add(sum)
            })
        })
    }

    /// Bytes that the step reads from and writes to memory.
    pub fn traffic(&self) -> u64 {
        let totals = &self.cost.totals;
        let bytes = totals.bytes_read.saturating_add(totals.bytes_written);
        u64::try_from(bytes).unwrap_or(0)
    }

    /// The outermost fusion around `row`, or `row` itself.
    pub fn scheduled(&self, row: Row) -> Row {
        let module = self.module;
        let mut outer = row;
        for _ in 0..MOST_FUSIONS {
            match *module.callers(module.computation_of(outer)) {
                [caller] if module.opcode(Row(caller)) == Opcode::Fusion => outer = Row(caller),
                _ => break,
            }
        }
        outer
    }

    /// The matmuls with known FLOPs: dots, convolutions and library calls.
    pub fn products(&self) -> impl Iterator<Item = Row> + '_ {
        let find = || {
            let opcodes = self.module.columns().opcodes.iter().zip(0..);
            let products =
                opcodes.filter(|(opcode, _)| opcode.is_matmul() || **opcode == Opcode::CustomCall);
            let has_flops = |row: &Row| self.cost.flops.get(row.0 as usize).is_some_and(|n| *n > 0);
            let products = products.map(|(_, row)| Row(row)).filter(has_flops);
            products.filter(|row| is_product(self.module, *row)).collect()
        };
        self.products.get_or_init(find).iter().copied()
    }

    /// FLOPs of one execution of the matmul in `row`.
    pub fn product_flops(&self, row: Row) -> Option<u64> {
        u64::try_from(*self.cost.flops.get(row.0 as usize)?).ok()
    }

    /// Modelled seconds of all executions of the scheduled instruction that contains `row`; None
    /// without a device or if the time is unknown.
    pub fn seconds(&self, row: Row) -> Option<f64> {
        let module = self.module;
        let mut row = row;
        // Computations call each other without cycles, so the way up ends.
        while let &[caller] = module.callers(module.computation_of(row))
            && module.opcode(Row(caller)) == Opcode::Fusion
        {
            row = Row(caller);
        }
        let once = *(self.known.time)()?.rows.seconds.get(row.0 as usize)?;
        (once > 0.0).then_some(once * self.runs(row).count? as f64)
    }

    /// By how much memory falls after `change`; None if nothing changes, or if it is unknown.
    pub fn memory_falls(&self, change: &Change) -> Option<Falls> {
        if change.is_empty() || self.peaks.get() == MOST_PEAKS {
            return None;
        }
        self.peaks.set(self.peaks.get() + 1);
        (self.known.memory_falls)(change)
    }

    /// The peak of memory in XLA's account; None if unknown.
    pub fn peak(&self) -> Option<u64> {
        (self.known.peak)()
    }

    /// Whether the device has this much free memory; true if it is unknown.
    pub fn fits(&self, bytes: u64) -> bool {
        (self.known.free)().is_none_or(|free| i128::from(free) >= i128::from(bytes))
    }

    /// Modelled seconds of one step; None without a device or if the time is unknown.
    pub fn step_seconds(&self) -> Option<f64> {
        let seconds = (self.known.time)()?.simulation.step.seconds;
        (seconds > 0.0).then_some(seconds)
    }

    /// Seconds in which HBM moves `bytes`; None without a device.
    pub fn moving_seconds(&self, bytes: u64) -> Option<f64> {
        Some(bytes as f64 / (self.known.time)()?.rows.bytes_per_second?)
    }

    /// Seconds in which `bytes` go between the device and its host; None without a device, or if its
    /// bandwidth is unknown.
    pub fn host_seconds(&self, bytes: u64) -> Option<f64> {
        Some(bytes as f64 / (self.known.time)()?.rows.host_bytes_per_second?)
    }

    /// Modelled seconds of all executions of collective `number`; None without a device or if the
    /// time is unknown.
    pub fn collective_seconds(&self, number: usize) -> Option<f64> {
        let collective = self.collectives.collectives.get(number)?;
        let entry = (self.known.time)()?.communications.get(number)?;
        let once = entry.estimate.seconds;
        let is_known = entry.missing.is_none() && once > 0.0;
        is_known.then_some(once * self.runs_of(collective).count? as f64)
    }

    /// Devices that run the program; None if unknown.
    pub fn device_count(&self) -> Option<u64> {
        self.collectives.context.devices().or_else(|| Some(self.mesh()?.device_count()))
    }

    /// The backend that the module was compiled for, if the text shows it.
    pub fn compiled_for(&self) -> Option<summary::Backend> {
        self.known.backend
    }

    /// Whether the module is the program of one device, so that its shapes are shapes of shards.
    pub fn is_partitioned(&self) -> bool {
        self.known.is_partitioned
    }

    /// ` on all 8 devices together`, for figures of a program that is not partitioned; else nothing.
    pub fn together(&self) -> String {
        match self.device_count() {
            Some(devices) if devices > 1 && !self.is_partitioned() => {
                format!(" on all {} devices together", grouped(devices))
            }
            _ => String::new(),
        }
    }

    /// The mesh whose axes messages name.
    pub fn mesh(&self) -> Option<&Mesh> {
        (self.known.mesh)()
    }

    fn partitioned(&self) -> Partitioned<'_> {
        let is_partitioned = self.is_partitioned();
        let (module, collectives) = (self.module, self.collectives);
        Partitioned { module, mesh: self.mesh(), collectives, is_partitioned }
    }

    /// The axes along which devices hold different values; None without a mesh, or if the program
    /// is too large to follow.
    pub fn varying(&self) -> Option<&Varying> {
        self.varying.get_or_init(|| Varying::new(&self.partitioned())).as_ref()
    }

    /// What is computed from the inputs of a program that is not partitioned; None as for `varying`.
    pub fn inputs(&self) -> Option<&Varying> {
        self.inputs.get_or_init(|| Varying::of_inputs(&self.partitioned())).as_ref()
    }

    /// The values that forward code computes and backward code reads.
    pub fn residuals(&self) -> &[Residual] {
        let find = || residuals(self.module, self.cost, self.attribution);
        self.residuals.get_or_init(find)
    }

    /// The axes of collective `number`; empty without a mesh.
    pub fn parts(&self, number: usize) -> &[AxisPart] {
        (self.known.along)().get(number).map_or(&[][..], |place| &place.parts)
    }

    /// The name that the framework gives `row`.
    pub fn op_name(&self, row: Row) -> Option<&[u8]> {
        let columns = self.module.metadata_columns();
        let index = usize::try_from(*columns.op_name.get(row.0 as usize)?).ok()?;
        Some(self.module.bytes(*columns.op_names.get(index)?))
    }

    /// The file, the line and the name of the operation of `row`, which the same operation of all layers shares.
    pub fn written(&self, row: Row) -> (i32, i32, &[u8]) {
        let (file, line) = self.sources().place(self.module.metadata_columns(), row);
        (file, line, self.op_name(row).unwrap_or_default())
    }

    /// Payload bytes of all calls of all collectives.
    pub fn payload(&self) -> u64 {
        self.payload
    }

    /// By collective: a number shared by all collectives along the same mesh axes, permutes
    /// included. Without axes, collectives with the same groups share a number. None if neither
    /// axes nor groups are known.
    pub fn links(&self) -> Vec<Option<u32>> {
        #[derive(PartialEq, Eq, Hash)]
        enum Link<'a> {
            Axes(&'a [AxisPart]),
            Groups(u32),
        }
        let places = (self.known.along)();
        let mut numbers: HashMap<Link<'_>, u32, BuildMix> = HashMap::default();
        let link = |(number, collective): (usize, &Collective)| {
            let axes = places.get(number).map_or(&[][..], |place| &place.parts);
            let link = match collective.groups {
                _ if !axes.is_empty() => Link::Axes(axes),
                groups => Link::Groups(groups?),
            };
            let next = numbers.len() as u32;
            Some(*numbers.entry(link).or_insert(next))
        };
        self.collectives.collectives.iter().enumerate().map(link).collect()
    }

    /// `along model (4 devices)`; without axes, `over` and the groups.
    pub fn along(&self, collective: &Collective) -> String {
        let groups = collective.groups.and_then(|at| self.collectives.groups.get(at as usize));
        match groups {
            Some(groups) => self.groups_text(groups),
            None => self.pairs_text(collective),
        }
    }

    /// `along model +1` for a permute; without axes the pairs of devices.
    fn pairs_text(&self, collective: &Collective) -> String {
        let range = collective.pairs.start as usize..collective.pairs.end as usize;
        let pairs = self.collectives.pairs.get(range).unwrap_or_default();
        if pairs.is_empty() {
            return "between devices that the text does not name".to_owned();
        }
        if let Some(mesh) = self.mesh() {
            let mode = GroupMode::from_attributes(collective.channel.is_some(), None);
            match mesh.permute_of(pairs, mode, &self.collectives.context) {
                PermuteMatch::Nothing | PermuteMatch::NoSubset(_) => {}
                matched => return format!("along {}", mesh.permute_text(&matched)),
            }
        }
        let shown: Vec<String> =
            pairs.iter().take(4).map(|(from, to)| format!("{from}→{to}")).collect();
        let more = if pairs.len() > shown.len() { ", …" } else { "" };
        format!("between devices {}{more}", shown.join(", "))
    }

    /// `along model (4 devices)`; without axes, `over all 8 devices` or `over 4 devices of` and the
    /// groups.
    pub fn groups_text(&self, groups: &DeviceGroups) -> String {
        let size = groups.group_size();
        let devices = match size {
            Some(size) => format!("{size} devices"),
            None => "all devices".to_owned(),
        };
        if let Some(mesh) = self.mesh()
            && let axes @ AxisMatch::Axes { .. } = mesh.axes_of(groups)
        {
            return format!("along {} ({devices})", mesh.match_text(&axes));
        }
        if groups.is_everyone() {
            return match size {
                Some(size) => format!("over all {size} devices"),
                None => format!("over {devices}"),
            };
        }
        let mut text = groups.to_text();
        if let Some((cut, _)) = text.char_indices().nth(60) {
            text.truncate(cut);
            text.push('…');
        }
        format!("over {devices} of {text}")
    }

    /// The devices of the first group of `collective`, numbered as in the program; None if unknown
    /// or too many.
    pub fn members(&self, collective: &Collective) -> Option<&[u64]> {
        let at = collective.groups? as usize;
        let groups = self.collectives.groups.get(at)?;
        let first = || groups.expand(MOST_DEVICES)?.into_iter().next();
        self.members.get(at)?.get_or_init(first).as_deref()
    }

    /// The devices of all groups of `collective`, numbered as in the program; None if unknown or too many.
    pub fn groups(&self, collective: &Collective) -> Option<Vec<Vec<u64>>> {
        self.collectives.groups.get(collective.groups? as usize)?.expand(MOST_DEVICES)
    }

    /// The unpadded bytes of the result of `row`; 0 if unknown.
    pub fn bytes(&self, row: Row) -> u64 {
        self.module.shapes().logical_bytes(self.module.shape(row)).unwrap_or(0)
    }

    /// The elements of the array `row`.
    pub fn elements(&self, row: Row) -> Option<u64> {
        self.module.shapes().array(self.module.shape(row))?.elements()
    }
}

/// Whether `row` is a matmul; false for library calls that do other work.
fn is_product(module: &Module, row: Row) -> bool {
    use CustomCallKind::*;
    if module.opcode(row) != Opcode::CustomCall {
        return true;
    }
    let target = custom_call_target(module, row);
    let known = target.and_then(|target| known_target(&target));
    known.is_some_and(|known| {
        matches!(
            known.kind,
            Gemm | GroupedGemm | Convolution | AttentionForward | AttentionBackward
        )
    })
}

/// By computation: whether it runs inside a loop of unknown trip count.
fn open_computations(module: &Module, cost: &Cost) -> Vec<bool> {
    if cost.loops.iter().all(|entry| entry.trip_count.count.is_some()) {
        return Vec::new();
    }
    let is_unknown = |row: Row| {
        let at = cost.loops.binary_search_by_key(&row, |entry| entry.row).ok();
        at.and_then(|at| cost.loops.get(at)).is_some_and(|entry| entry.trip_count.count.is_none())
    };
    let mut open = vec![false; module.computations().len()];
    // Callees come first in post-order; reversed, callers are done before their callees.
    for id in module.computation_post_order().iter().rev() {
        let is_open = open[id.0 as usize];
        for call in &module.all_calls()[module.calls_within(*id)] {
            open[call.computation.0 as usize] |= is_open || is_unknown(call.row);
        }
    }
    open
}

/// For each computation its position in a depth-first walk over calls from the entry; `u32::MAX` if
/// the entry does not reach the computation.
fn reached(module: &Module) -> Vec<u32> {
    let mut order = vec![u32::MAX; module.computations().len()];
    let mut next = 0;
    let mut waiting = vec![module.entry()];
    while let Some(id) = waiting.pop() {
        let Some(place @ &mut u32::MAX) = order.get_mut(id.0 as usize) else { continue };
        *place = next;
        next += 1;
        let calls = &module.all_calls()[module.calls_within(id)];
        waiting.extend(calls.iter().rev().map(|call| call.computation));
    }
    order
}

/// The element type of an array; None for tuples.
pub(super) fn element_type(module: &Module, row: Row) -> Option<ElementType> {
    module.shapes().array(module.shape(row)).map(|array| array.element_type)
}

/// Whether a type is one of floating-point numbers of 16 bits or fewer.
pub(super) fn is_narrow(element_type: ElementType) -> bool {
    element_type.kind() == ElementKind::Float && element_type.bits() <= 16
}

/// `12,582,912`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12,582,912 B`.
pub(super) fn bytes(number: u64) -> String {
    format!("{} B", grouped(number))
}

/// `1 all-reduce`, `12 all-reduces`.
pub(super) fn counted(count: u64, singular: &str, plural: &str) -> String {
    format!("{} {}", grouped(count), form(count, singular, plural))
}

/// `singular` for a count of 1, else `plural`.
pub(super) fn form<'a>(count: u64, singular: &'a str, plural: &'a str) -> &'a str {
    if count == 1 { singular } else { plural }
}

/// `31.60 %`; 0 of 0 is 0 %.
pub(super) fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    format!("{share:.2} %")
}
