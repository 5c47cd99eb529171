//! Seconds of one kernel on a GPU.
//!
//! * A kernel with matmuls takes its launch, then the longer of its tiles (`gpu_products.rs`) and
//!   the transfer of its bytes.
//! * Any other kernel takes its launch, the transfer of its bytes at the achieved bandwidth, and
//!   the work of its elements, which the transfer does not hide on the measured chip: elements
//!   reduced along the fastest dimension or across it, elements written in another order than they
//!   are computed, and transcendentals.
//!
//! The rates are elements per cycle and core. Those of Ampere were fitted on one half of the
//! instructions of a training step measured on A100 (`tests/fixtures/a100`, NVIDIA JAX-Toolbox, Apache
//! License 2.0) by `benches/fit_a100.py`, those of Hopper on the kernels of six train steps measured
//! on H100 (`tests/fixtures/h100`) by `benches/fit_h100.py`; each was judged on what was left out. Other
//! GPUs are assumed to be like Ampere, newer ones of NVIDIA like Hopper.

use super::device::Device;
use super::tpu::Load;
use crate::cost::integers;
use crate::ir::{CallRole, Module, Opcode, Row};

/// The compute capability of Hopper.
const HOPPER_CAPABILITY: f64 = 9.0;

/// Elements per cycle and core, apart from `launch`.
struct Rates {
    /// Reduced along the fastest dimension.
    along: f64,
    /// Reduced across the fastest dimension.
    across: f64,
    /// Written transposed by a kernel that reduces.
    turned: f64,
    /// Written transposed by a kernel that computes element by element (`kLoop`).
    looped: f64,
    /// Written by a kernel that cuts its result in slices.
    sliced: f64,
    transcendentals: f64,
    /// The launch of a kernel that reduces, over that of others.
    launch: f64,
}

const AMPERE: Rates = Rates {
    along: 12.2,
    across: 2.82,
    turned: 0.941,
    looped: 0.623, // as on Hopper: the measured step has no such kernel
    sliced: 2.16,
    transcendentals: 22.2,
    launch: 1.35,
};
const HOPPER: Rates = Rates {
    along: 1162.0,
    across: 35.5,
    turned: 0.604,
    looped: 0.623,
    sliced: 1.54,
    transcendentals: 155.0,
    launch: 1.52,
};

impl Rates {
    fn of(device: &Device) -> &'static Rates {
        match device.compute_capability {
            Some(capability) if capability >= HOPPER_CAPABILITY => &HOPPER,
            _ => &AMPERE,
        }
    }
}

/// What a kernel does besides moving its bytes, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shape {
    pub reduces: bool,
    pub along: f64,
    pub across: f64,
    pub turned: f64,
    pub looped: f64,
    pub sliced: f64,
}

/// Seconds of a kernel by resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub seconds: f64,
    pub compute: f64,
    pub memory: f64,
    pub launch: f64,
}

/// The kernel of `row`: a fusion by what it fuses, any other instruction by itself.
pub(super) fn shape(module: &Module, row: Row) -> Shape {
    let mut shape = Shape::default();
    let fused = match module.opcode(row) {
        Opcode::Fusion => module.called(row, CallRole::Calls),
        _ => None,
    };
    let Some(id) = fused else {
        reduction(module, row, &mut shape);
        return shape;
    };
    for inner in module.computation(id).rows() {
        reduction(module, Row(inner), &mut shape);
    }
    if module.attribute_bytes(row, "kind") == Some(b"kLoop") {
        let rows = module.computation(id).rows().map(Row);
        let turning =
            rows.filter(|row| module.opcode(*row) == Opcode::Transpose && turns(module, *row));
        shape.looped = turning.map(|row| elements(module, row)).fold(0.0, f64::max);
    }
    let root = Row(module.computation(id).root);
    let roots: Vec<Row> = match module.opcode(root) {
        Opcode::Tuple => module.operands(root).iter().copied().map(Row).collect(),
        _ => vec![root],
    };
    let cuts = roots.iter().filter(|root| module.opcode(**root) == Opcode::Slice).count();
    for root in roots {
        match module.opcode(root) {
            Opcode::Transpose if shape.reduces && turns(module, root) => {
                shape.turned += elements(module, root);
            }
            Opcode::Slice if cuts > 1 => shape.sliced += elements(module, root),
            _ => {}
        }
    }
    shape
}

/// Adds the reduced elements of `row`, if it is a reduction.
fn reduction(module: &Module, row: Row, shape: &mut Shape) {
    if module.opcode(row) != Opcode::Reduce {
        return;
    }
    let Some(operand) = module.operands(row).first().copied().map(Row) else { return };
    shape.reduces = true;
    let shapes = module.shapes();
    let Some(array) = shapes.array(module.shape(operand)) else { return };
    let last = array.rank() as i64 - 1;
    let order = array.layout.and_then(|layout| layout.minor_to_major.first().copied());
    let minor = order.unwrap_or(last);
    let reduced = elements(module, operand);
    match integers(module, row, "dimensions").unwrap_or_default().contains(&minor) {
        true => shape.along += reduced,
        false => shape.across += reduced,
    }
}

/// Whether a transpose moves the fastest dimension.
fn turns(module: &Module, row: Row) -> bool {
    let order = integers(module, row, "dimensions").unwrap_or_default();
    order.last().is_some_and(|last| *last != order.len() as i64 - 1)
}

/// Elements of the arrays of `row`'s result.
fn elements(module: &Module, row: Row) -> f64 {
    let shapes = module.shapes();
    let arrays = shapes.leaves(module.shape(row)).filter_map(|leaf| shapes.array(leaf));
    arrays.filter_map(|array| array.elements()).map(|count| count as f64).sum()
}

/// The time of a kernel. `vector` is the least time of its vector work.
pub(super) fn spent(device: &Device, load: &Load, shape: &Shape, vector: f64) -> Spent {
    let launch = device.launch.unwrap_or(0.0);
    let moved = load.hbm_read + load.hbm_written;
    let achieved = device.share(device.hbm_achieved_bandwidth.or(device.hbm_bandwidth));
    let clock = device.share(device.cores).zip(device.clock).map(|(cores, clock)| cores * clock);
    let rates = Rates::of(device);
    let work = shape.along / rates.along
        + shape.across / rates.across
        + shape.turned / rates.turned
        + shape.looped / rates.looped
        + shape.sliced / rates.sliced
        + load.transcendentals / rates.transcendentals;
    let work = clock.map_or(0.0, |rate| work / rate).max(vector);
    if load.work.matrix_flops > 0.0 {
        let product = load.work.product;
        // Kernels whose shapes are unknown reach the share of large matmuls.
        let share = device.matmul_efficiency.unwrap_or(1.0).min(1.0);
        let tiles = match product.tiles > 0.0 {
            true => product.tiles.max(load.work.matrix_seconds),
            false => load.work.matrix_seconds / share,
        };
        let share = if product.memory > 0.0 { product.memory } else { 1.0 };
        let rate = device.share(device.hbm_bandwidth).map(|rate| rate * share);
        // Operands and result of a matmul move at least as fast as those of other kernels.
        let rate = rate.unwrap_or(f64::INFINITY).max(achieved.unwrap_or(0.0));
        let (compute, memory) = (tiles + work, moved / rate);
        let start = launch + product.start;
        return Spent { seconds: start + compute.max(memory), compute, memory, launch: start };
    }
    let launch = if shape.reduces { rates.launch * launch } else { launch };
    let memory = achieved.map_or(0.0, |rate| moved / rate);
    Spent { seconds: launch + memory + work, compute: work, memory, launch }
}
