//! Seconds of every executed row: a roofline for all devices; on TPU also a model of its compiler
//! and the compiler's own estimate, on GPU a model of its kernels.

use super::device::Device;
use super::gpu;
use super::tpu::{self, Load};
use super::windows::{Windows, windows};
use super::work::{Work, Works};
use crate::Provenance;
use crate::cost::{Backend, Cost, ShapeCost, SpaceBytes, packed_costs};
use crate::flow::updates;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row, ShapeId};
use std::collections::HashMap;
use std::rc::Rc;

/// The limit of a row's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Bound {
    /// The row takes no time of its own.
    #[default]
    None,
    /// Matrix or vector units.
    Compute,
    /// Moving data, including the wait for it.
    Memory,
    /// Links between devices.
    Communication,
    /// The time to launch the instruction.
    Launch,
    /// A required figure is unknown.
    Unknown,
}

impl Bound {
    /// Every bound, by its code.
    pub const ALL: [Bound; 6] = [
        Bound::None,
        Bound::Compute,
        Bound::Memory,
        Bound::Communication,
        Bound::Launch,
        Bound::Unknown,
    ];

    /// The name used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Bound::None => "none",
            Bound::Compute => "compute",
            Bound::Memory => "memory",
            Bound::Communication => "communication",
            Bound::Launch => "launch",
            Bound::Unknown => "unknown",
        }
    }
}

/// Columns over the rows of a module; seconds are per execution.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Seconds by the model: `tpu.rs` on TPU, `gpu.rs` on GPU, otherwise the roofline. 0 for rows that take no time.
    pub seconds: Vec<f64>,
    /// Lower bound: the larger of computing at the peak and moving HBM bytes at full bandwidth.
    pub roofline_seconds: Vec<f64>,
    /// The part of `seconds` in which units compute; moving data may overlap it.
    pub compute_seconds: Vec<f64>,
    /// The part of `seconds` in which data moves or is waited for.
    pub memory_seconds: Vec<f64>,
    /// Computing at the peak: no estimate is below it.
    pub peak_seconds: Vec<f64>,
    /// Moving HBM bytes at full bandwidth.
    pub bandwidth_seconds: Vec<f64>,
    /// `estimated_cycles` divided by the clock; NaN without an estimate.
    pub compiler_seconds: Vec<f64>,
    /// HBM bytes per second of the device.
    pub bytes_per_second: Option<f64>,
    /// Bytes per second between the device and its host.
    pub host_bytes_per_second: Option<f64>,
    /// The limit of each row's time.
    pub bound: Vec<Bound>,
    /// Provenance of the seconds.
    pub provenance: Vec<Provenance>,
    /// Required figures that the device lacks, each once.
    pub unknown_figures: Vec<String>,
}

/// Times every row of `module` outside fusions on its own.
pub fn rows(module: &Module, cost: &Cost, device: &Device) -> Rows {
    let count = module.row_count();
    let backend = if device.is_tpu { Backend::Tpu } else { cost.backend };
    let mut timer = Timer {
        module,
        cost,
        device,
        works: Works::new(module, cost, device),
        shapes: packed_costs(module, backend),
        kernels: HashMap::new(),
        updates: HashMap::new(),
        other: 0,
        result: Rows {
            seconds: vec![0.0; count],
            roofline_seconds: vec![0.0; count],
            compute_seconds: vec![0.0; count],
            memory_seconds: vec![0.0; count],
            peak_seconds: vec![0.0; count],
            bandwidth_seconds: vec![0.0; count],
            compiler_seconds: vec![f64::NAN; count],
            bytes_per_second: device.share(device.hbm_bandwidth).filter(|rate| *rate > 0.0),
            host_bytes_per_second: device.share(device.host_bandwidth).filter(|rate| *rate > 0.0),
            bound: vec![Bound::None; count],
            provenance: vec![Provenance::Exact; count],
            unknown_figures: Vec::new(),
        },
    };
    for (computation, runs) in module.computations().iter().zip(runs_by_itself(module)) {
        if runs {
            computation.rows().for_each(|row| timer.row(Row(row)));
        }
    }
    timer.result
}

/// By computation: whether its rows run one after the other; false inside fusions and for
/// computations applied per element.
fn runs_by_itself(module: &Module) -> Vec<bool> {
    let mut runs = vec![false; module.computations().len()];
    let entry = module.entry();
    let calls = module.all_calls().iter();
    let called = calls.filter(|call| {
        use Opcode::{AsyncStart, Call, Conditional, While};
        matches!(module.opcode(call.row), AsyncStart | Call | Conditional | While)
    });
    for id in called.map(|call| call.computation).chain([entry]) {
        if let Some(place) = runs.get_mut(id.0 as usize) {
            *place = true;
        }
    }
    runs
}

struct Timer<'a> {
    module: &'a Module,
    cost: &'a Cost,
    device: &'a Device,
    works: Works<'a>,
    shapes: Vec<ShapeCost>,
    /// By fused computation: what a kernel of it does.
    kernels: HashMap<ComputationId, gpu::Shape>,
    /// By fused computation: the updates in place that make its results.
    updates: HashMap<ComputationId, Rc<[Option<Row>]>>,
    /// Lower bound for the start of the next row's entries in `cost.other_memory`.
    other: usize,
    result: Rows,
}

/// Whether rows with `opcode` only name, group or contain other work, or run asynchronously.
fn takes_no_time(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Parameter
            | Constant
            | GetTupleElement
            | Tuple
            | Bitcast
            | Domain
            | AfterAll
            | AddDependency
            | OptBarrier
            | While
            | Conditional
            | Call
            | AsyncStart
            | AsyncUpdate
            | AsyncDone
            | PartitionId
            | ReplicaId
    )
}

impl Timer<'_> {
    fn row(&mut self, row: Row) {
        let at = row.0 as usize;
        let opcode = self.module.opcode(row);
        if takes_no_time(opcode) {
            return;
        }
        let written = if self.device.is_tpu { windows(self.module, row) } else { None };
        let load = self.load(row, written.as_ref());
        if let (Some(cycles), Some(clock)) =
            (written.and_then(|windows| windows.estimated_cycles), self.device.clock)
        {
            self.result.compiler_seconds[at] = cycles / clock;
        }
        let moved = load.hbm_read + load.hbm_written;
        let is_free = moved == 0.0 && load.work == Work::default() && written.is_none();
        if is_free {
            return;
        }
        let ideal = self.ideal(&load);
        self.result.roofline_seconds[at] = ideal.0.max(ideal.1);
        (self.result.peak_seconds[at], self.result.bandwidth_seconds[at]) = ideal;
        let model = match self.device.is_tpu {
            _ if load.work.kernel_seconds > 0.0 => self.kernel(&load),
            true => tpu::spent(self.device, &load, written.as_ref()),
            false => None,
        };
        let mut launch = if model.is_none() { self.device.launch.unwrap_or(0.0) } else { 0.0 };
        let (seconds, compute, memory) = match model {
            Some(spent) => (spent.seconds, spent.compute, spent.memory),
            None if self.device.is_gpu => {
                let shape = self.shape(row);
                let vector = (ideal.0 - load.work.matrix_seconds).max(0.0);
                let spent = gpu::spent(self.device, &load, &shape, vector);
                launch = spent.launch;
                (spent.seconds, spent.compute, spent.memory)
            }
            None => (launch + ideal.0.max(ideal.1), ideal.0, ideal.1),
        };
        // Nothing computes faster than the peak.
        let (seconds, compute) = (seconds.max(ideal.0), compute.max(ideal.0));
        self.result.seconds[at] = seconds;
        self.result.compute_seconds[at] = compute;
        self.result.memory_seconds[at] = memory;
        let is_known = !load.work.lacks_peak && self.device.hbm_bandwidth.is_some();
        self.result.bound[at] = match () {
            () if !is_known || load.work.is_unknown => Bound::Unknown,
            () if launch > compute.max(memory) => Bound::Launch,
            () if compute > memory => Bound::Compute,
            () => Bound::Memory,
        };
        self.result.provenance[at] = match () {
            () if !is_known || load.work.is_unknown => Provenance::Unknown,
            () if load.work.is_assumed => Provenance::Assumed,
            () => Provenance::Modelled,
        };
        self.note_unknown(&load, model.is_none());
    }

    /// What the kernel of `row` does; fusions may share a computation.
    fn shape(&mut self, row: Row) -> gpu::Shape {
        let fused = match self.module.opcode(row) {
            Opcode::Fusion => self.module.called(row, CallRole::Calls),
            _ => None,
        };
        match fused {
            None => gpu::shape(self.module, row),
            Some(id) => *self.kernels.entry(id).or_insert_with(|| gpu::shape(self.module, row)),
        }
    }

    /// A hand-written kernel computes at the rate that is assumed for it, while HBM bytes move.
    fn kernel(&self, load: &Load) -> Option<tpu::Spent> {
        let device = self.device;
        let rate = device.share(device.hbm_achieved_bandwidth.or(device.hbm_bandwidth))?;
        let launch = if device.is_tpu { 0.0 } else { device.launch.unwrap_or(0.0) };
        let compute = load.work.kernel_seconds;
        let memory = (load.hbm_read + load.hbm_written) / rate;
        Some(tpu::Spent { seconds: launch + compute.max(memory), compute, memory })
    }

    /// Seconds of computing and of moving HBM bytes, both at the device's peak. Vector work counts
    /// at the peak of 32-bit floats on GPU, and at that of 16-bit floats, which is higher, if this
    /// is all that is known.
    fn ideal(&self, load: &Load) -> (f64, f64) {
        let vector = match self.device.is_tpu {
            true => self.device.peak(&["bf16"]),
            false => self.device.peak(&["f32", "bf16"]),
        };
        let vector = vector.map_or(0.0, |peak| load.work.vector_operations / peak);
        let moved = load.hbm_read + load.hbm_written;
        let memory = self.device.share(self.device.hbm_bandwidth).map_or(0.0, |rate| moved / rate);
        (load.work.matrix_seconds + vector, memory)
    }

    fn note_unknown(&mut self, load: &Load, is_roofline: bool) {
        let device = self.device;
        let mut note = |is_missing: bool, figure: &str| {
            let known = &mut self.result.unknown_figures;
            if is_missing && !known.iter().any(|name| name == figure) {
                known.push(figure.to_owned());
            }
        };
        note(device.hbm_bandwidth.is_none(), "hbm_bandwidth");
        note(device.jax_devices.is_none(), "jax_devices");
        note(load.work.lacks_peak, "flops");
        if device.is_tpu && is_roofline {
            note(device.clock.is_none(), "clock");
            note(device.cores.is_none(), "cores");
            note(device.hbm_latency.is_none(), "hbm_latency");
            note(device.vector_operations.is_none(), "vector_operations");
        }
    }

    /// The bytes and work of `row`.
    fn load(&mut self, row: Row, windows: Option<&Windows>) -> Load {
        let at = row.0 as usize;
        let of_rows = |column: &[i64]| column.get(at).copied().unwrap_or(0);
        let of = |column: &[i64]| of_rows(column) as f64;
        let other = &self.cost.other_memory;
        // Computations are visited in the order of their rows.
        while other.get(self.other).is_some_and(|entry| entry.row < row.0) {
            self.other += 1;
        }
        let entries = other[self.other..].iter().take_while(|entry| entry.row == row.0);
        let of_space = |space: u8, of: fn(&SpaceBytes) -> i64| -> f64 {
            let own = entries.clone().filter(|entry| entry.memory_space == space);
            own.map(|entry| of(entry) as f64).sum()
        };
        let written = entries.clone().map(|entry| entry.written.max(0));
        let written = written.fold(of_rows(&self.cost.bytes_written), i64::saturating_add);
        let (result_elements, result_bits, is_native, is_tiled) =
            self.result(row, windows, written);
        Load {
            hbm_read: of(&self.cost.bytes_read),
            hbm_written: of(&self.cost.bytes_written),
            fast_read: of_space(1, |entry| entry.read),
            common_read: of_space(3, |entry| entry.read),
            common_written: of_space(3, |entry| entry.written),
            result_elements,
            result_bits,
            is_native,
            is_tiled,
            is_tuple: self.module.shapes().tuple(self.module.shape(row)).is_some(),
            is_copy: self.module.opcode(row) == Opcode::Copy,
            transcendentals: of(&self.cost.transcendentals),
            is_transposition: self.is_transposition(row),
            is_fusion: self.module.opcode(row) == Opcode::Fusion,
            work: self.works.row(row),
        }
    }

    /// Whether `row` is a copy to a layout with another minor dimension.
    fn is_transposition(&self, row: Row) -> bool {
        if self.module.opcode(row) != Opcode::Copy {
            return false;
        }
        let shapes = self.module.shapes();
        let minor = |row: Row| {
            let layout = shapes.array(self.module.shape(row))?.layout?;
            layout.minor_to_major.first().copied()
        };
        let operand = self.module.operands(row).first();
        operand.is_some_and(|operand| minor(Row(*operand)) != minor(row))
    }

    /// By array of the result of `row`: the share of its elements that is written, None if all are;
    /// empty if it updates nothing in place. `written` is what `row` writes, in bytes: less than its
    /// result if it can update in place.
    fn shares(&mut self, row: Row, written: i64) -> Vec<Option<f64>> {
        let fused = self.module.called(row, CallRole::Calls);
        let updates = match fused.filter(|_| self.module.opcode(row) == Opcode::Fusion) {
            None => updates(self.module, row).into(),
            // Fusions may share a computation.
            Some(id) => {
                let found = self.updates.entry(id);
                Rc::clone(found.or_insert_with(|| updates(self.module, row).into()))
            }
        };
        if updates.iter().all(Option::is_none) {
            return Vec::new();
        }
        let shapes = self.module.shapes().leaves(self.module.shape(row));
        let results = shapes.map(|shape| self.shape_cost(shape));
        let results: Vec<ShapeCost> = results.collect();
        let whole = results.iter().fold(0i64, |sum, own| sum.saturating_add(own.size.max(0)));
        if written >= whole {
            return Vec::new();
        }
        let share = |(update, whole): (&Option<Row>, &ShapeCost)| {
            let part = *self.module.operands((*update)?).get(1)?;
            let part = self.shape_cost(self.module.shape(Row(part))).elements.max(0);
            Some((part as f64 / whole.elements.max(1) as f64).min(1.0))
        };
        updates.iter().zip(&results).map(share).collect()
    }

    fn shape_cost(&self, shape: ShapeId) -> ShapeCost {
        self.shapes.get(shape.0 as usize).copied().unwrap_or_default()
    }

    /// Elements (with padding) and element bits of the main result array of `row`, whether the
    /// array fills vector registers, and whether it has their layout. The main array of a matmul is
    /// the array closest in size to its windows; otherwise, it is the largest array and, on a tie,
    /// the array with the fewest bits. Of an array that is updated in place, the part that is written
    /// counts. `written` is what `row` writes, in bytes.
    fn result(
        &mut self,
        row: Row,
        windows: Option<&Windows>,
        written: i64,
    ) -> (f64, f64, bool, bool) {
        let shapes = self.module.shapes();
        let mut best = (0.0, 32.0, true, true);
        let product = windows.filter(|windows| windows.kernel > 0.0);
        let all = product.map(|windows| windows.output * windows.iterations);
        let mut nearest = f64::INFINITY;
        let shares = self.shares(row, written);
        for (at, leaf) in shapes.leaves(self.module.shape(row)).enumerate() {
            let Some(array) = shapes.array(leaf) else { continue };
            let bits = f64::from(array.element_type.storage_bits().max(1));
            let cost = self.shape_cost(leaf);
            let padded = cost.size.max(0) as f64 * 8.0 / bits;
            let elements = padded * shares.get(at).copied().flatten().unwrap_or(1.0);
            let is_better = match all {
                Some(all) => {
                    let distance = (elements.max(1.0) / all.max(1.0)).ln().abs();
                    let is_nearer = distance < nearest;
                    nearest = nearest.min(distance);
                    is_nearer
                }
                None => elements > best.0 || (elements == best.0 && bits < best.1),
            };
            if is_better {
                let is_padded = padded != cost.elements as f64;
                let tile = array.layout.and_then(|layout| layout.tiles.first());
                let is_tiled = tile.is_some_and(|tile| matches!(tile[..], [8, 128] | [1024]));
                let is_native = is_tiled && !is_padded && bits == 32.0;
                best = (elements, bits, is_native, is_tiled);
            }
        }
        best
    }
}
