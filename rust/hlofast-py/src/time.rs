//! `TimeData`: the core's time model of a module, which `hlofast._time` formats as text and tables.

use crate::column::Column;
use crate::cost::{Stated, overrides};
use crate::held::Stage;
use crate::mesh::Mesh;
use crate::module::Module;
use crate::policy::Timing;
use crate::table_builder::to_list;
use hlofast::ir::Module as CoreModule;
use hlofast::table;
use hlofast::time::collective::{self, Group, Kind};
use hlofast::time::gpu_collectives;
use hlofast::time::{Device, Estimates, Model, Options, Time, Topology, pressure};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// A module, its times and the device they are modelled for.
pub struct Timed {
    pub stage: Arc<Stage>,
    pub time: Time,
    pub device: Device,
    /// Executions outside fusions; -1 for more than 64 bits.
    multiplicity: Vec<i64>,
    bound: Vec<u8>,
    provenance: Vec<u8>,
}

/// The modelled time of a module, computed by `Module.time`.
#[pyclass(frozen, module = "hlofast._core")]
pub struct TimeData {
    pub timed: Arc<Timed>,
}

/// A device by name, backend, topology, figures and peaks.
pub type DeviceParts = (String, String, Option<String>, Vec<(String, f64)>, Vec<(String, f64)>);

/// Models the time of `module` on a device.
#[pyfunction]
#[pyo3(signature = (module, device, *, mesh=None, estimates="model", model="topology", measured=None, custom_calls=None))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn _time(
    module: &Bound<'_, Module>,
    device: DeviceParts,
    mesh: Option<&Bound<'_, Mesh>>,
    estimates: &str,
    model: &str,
    measured: Option<Vec<(u32, f64)>>,
    custom_calls: Option<Vec<Stated>>,
) -> PyResult<TimeData> {
    let held = module.get().held.on_mesh(mesh.map(|mesh| &mesh.get().core));
    let held = held.with_context(|context| {
        if let Some(calls) = custom_calls {
            context.cost.overrides = overrides(calls);
        }
    });
    let stage = Arc::clone(&held.stage);
    let options = Options {
        device: device_of(device),
        mesh: None,
        estimates: match estimates {
            "model" => Estimates::Model,
            "roofline" => Estimates::Roofline,
            "compiler" => Estimates::Compiler,
            _ => {
                let message = "estimates must be \"model\", \"roofline\" or \"compiler\"";
                return Err(PyValueError::new_err(message));
            }
        },
        model: match model {
            "topology" => Model::Topology,
            "speed-of-light" => Model::SpeedOfLight,
            "alpa" => Model::Alpa,
            _ => {
                let message = "collectives must be \"topology\", \"speed-of-light\" or \"alpa\"";
                return Err(PyValueError::new_err(message));
            }
        },
        measured: measured.unwrap_or_default(),
    };
    let timed = module.py().detach(|| {
        let time = stage.time_with(&options);
        let multiplicity = multiplicity(stage.module(), &time.simulation.executions);
        let bound = time.rows.bound.iter().map(|bound| *bound as u8).collect();
        let provenance = time.rows.provenance.iter().map(|known| *known as u8).collect();
        let device = options.device;
        Timed { stage, time, device, multiplicity, bound, provenance }
    });
    Ok(TimeData { timed: Arc::new(timed) })
}

impl TimeData {
    /// What policies are priced with. Waits that a lack of memory explains are left out of the seconds:
    /// a policy that needs less has none.
    pub fn timing(&self) -> Timing {
        let (stage, time) = (&self.timed.stage, &self.timed.time);
        let (module, collectives) = (stage.module(), stage.collectives());
        let pressure = pressure(module, collectives, &time.simulation);
        let played = time.simulation.computations.iter().zip(&pressure.waited);
        let mut seconds = self.seconds_alone();
        for (own, (_, exposed)) in collectives.collectives.iter().zip(&time.simulation.collectives)
        {
            // What is asynchronous takes what the step waits for it.
            let Some(done) = own.done else { continue };
            let waited = pressure.waited.get(module.computation_of(done).0 as usize);
            let exposed = if waited.is_some_and(|own| *own > 0.0) { 0.0 } else { *exposed };
            for row in [own.row, own.outer] {
                let known = seconds.get_mut(row.0 as usize).filter(|own| own.is_finite());
                if let Some(slot) = known {
                    *slot = slot.min(exposed);
                }
            }
        }
        Timing {
            seconds,
            played: played.map(|(split, waited)| (split.seconds - waited).max(0.0)).collect(),
            bounds: time.rows.roofline_seconds.clone(),
            flop_bounds: time.rows.peak_seconds.clone(),
            byte_bounds: time.rows.bandwidth_seconds.clone(),
            bytes_per_second: time.rows.bytes_per_second,
            pressure: pressure.seconds,
        }
    }

    /// Seconds of one execution of each row; for collectives, seconds on the network. NaN if
    /// unknown.
    pub fn seconds_alone(&self) -> Vec<f64> {
        let time = &self.timed.time;
        let mut seconds = time.rows.seconds.clone();
        for (collective, entry) in
            self.timed.stage.collectives().collectives.iter().zip(&time.communications)
        {
            let known = if entry.missing.is_some() { f64::NAN } else { entry.estimate.seconds };
            for row in [collective.row, collective.outer] {
                if let Some(slot) = seconds.get_mut(row.0 as usize) {
                    *slot = known;
                }
            }
        }
        seconds
    }
}

/// Converts a device to the core's `Device`.
pub fn device_of((name, backend, topology, figures, peaks): DeviceParts) -> Device {
    let (is_tpu, is_gpu) = (backend == "tpu", backend == "gpu");
    let mut device = Device { name, backend, is_tpu, is_gpu, peaks, ..Device::default() };
    device.topology = topology.and_then(|word| Topology::from_word(&word));
    for (figure, value) in &figures {
        // The model ignores figures that it does not know; they are only shown to users.
        device.set(figure, *value);
    }
    device
}

fn multiplicity(module: &CoreModule, executions: &[u64]) -> Vec<i64> {
    let mut column = Vec::with_capacity(module.row_count());
    for (computation, runs) in module.computations().iter().zip(executions) {
        column.resize(computation.end_row as usize, i64::try_from(*runs).unwrap_or(-1));
    }
    column
}

#[pymethods]
impl TimeData {
    /// The per-instruction column `name`.
    fn column(&self, name: &str) -> PyResult<Column> {
        let timed = &self.timed;
        let rows = |of: fn(&Timed) -> &[f64]| Column::project(timed, of);
        Ok(match name {
            "seconds" => rows(|t| &t.time.rows.seconds),
            "roofline_seconds" => rows(|t| &t.time.rows.roofline_seconds),
            "compute_seconds" => rows(|t| &t.time.rows.compute_seconds),
            "memory_seconds" => rows(|t| &t.time.rows.memory_seconds),
            "compiler_seconds" => rows(|t| &t.time.rows.compiler_seconds),
            "start_seconds" => rows(|t| &t.time.simulation.start),
            "end_seconds" => rows(|t| &t.time.simulation.end),
            "exposed_seconds" => rows(|t| &t.time.simulation.exposed),
            "taken_seconds" => rows(|t| &t.time.simulation.taken),
            "multiplicity" => Column::project(timed, |t| &t.multiplicity[..]),
            "bound" => Column::project(timed, |t| &t.bound[..]),
            "provenance" => Column::project(timed, |t| &t.provenance[..]),
            _ => return Err(PyKeyError::new_err(name.to_owned())),
        })
    }

    /// Unknown figures that the model needs.
    #[getter]
    fn unknown_figures(&self) -> Vec<String> {
        self.timed.time.rows.unknown_figures.clone()
    }

    /// The mesh as text; None without a mesh.
    #[getter]
    fn mesh(&self) -> Option<String> {
        self.timed.stage.mesh().map(hlofast::comms::Mesh::to_text)
    }

    /// The source of the mesh.
    #[getter]
    fn mesh_source(&self) -> &'static str {
        self.timed.stage.mesh_source()
    }

    /// Seconds of the step: total, computing, moving data and other; then exposed communication by
    /// axes.
    fn step(&self) -> (f64, f64, f64, f64, Vec<(String, f64)>) {
        let simulation = &self.timed.time.simulation;
        let step = &simulation.step;
        let exposed = simulation.axes.iter().cloned().zip(step.exposed.iter().copied());
        (step.seconds, step.compute, step.memory, step.other, exposed.collect())
    }

    /// Rows of loops that are counted once because their trip count is unknown.
    fn open_loops(&self) -> Vec<u32> {
        self.timed.time.simulation.open_loops.iter().map(|row| row.0).collect()
    }

    /// Rows of conditionals, each with the computation that is counted.
    fn branches(&self) -> Vec<(u32, u32)> {
        let branches = &self.timed.time.simulation.branches;
        branches.iter().map(|(row, computation)| (row.0, computation.0)).collect()
    }

    /// Returns a table with one row per collective.
    fn collectives<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let timed = &self.timed;
        let collectives = &timed.stage.collectives().collectives;
        let core = timed.stage.module();
        to_list(py, table::communications(core, &timed.time, collectives, &timed.multiplicity))
    }
}

/// Returns seconds, wire bytes, seconds independent of the size, and wire bytes per second of one
/// collective.
///
/// Raises `ValueError` for a missing figure or an unknown kind.
#[pyfunction]
#[pyo3(signature = (device, kind, payload, group_size, *, near=None, axes=None, model="topology", communicators=1, alpha=1.0, beta=1.0))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn _collective_time(
    device: DeviceParts,
    kind: &str,
    payload: f64,
    group_size: u64,
    near: Option<u64>,
    axes: Option<u64>,
    model: &str,
    communicators: u64,
    alpha: f64,
    beta: f64,
) -> PyResult<(f64, f64, f64, f64)> {
    let kind = Kind::from_word(kind)
        .ok_or_else(|| PyValueError::new_err(format!("unknown kind of collective {kind:?}")))?;
    let device = device_of(device);
    let near = near.unwrap_or_else(|| gpu_collectives::default_near(&device, group_size));
    let near = near.clamp(1, group_size.max(1));
    let missing = |figure: &'static str| PyValueError::new_err(figure);
    let wire = kind.wire_share(group_size) * payload;
    match model {
        "topology" => {
            let sides = collective::sides_on(&device, near, axes.unwrap_or(1)).map_err(missing)?;
            let group = Group { size: group_size, near, sides, hops: 1 };
            let estimate =
                gpu_collectives::on_device(&device, kind, payload, group).map_err(missing)?;
            Ok((estimate.seconds, estimate.wire_bytes, estimate.latency, estimate.bandwidth))
        }
        "speed-of-light" => {
            let hosts = group_size.div_ceil(near.max(1));
            let seconds = collective::speed_of_light(&device, kind, payload, hosts, communicators)
                .map_err(missing)?;
            Ok((seconds, wire, 0.0, 0.0))
        }
        "alpa" => {
            let cost = collective::alpa(kind, payload, group_size, alpha, beta);
            let cost =
                cost.ok_or_else(|| PyValueError::new_err("Alpa has no formula for this kind"))?;
            Ok((cost, wire, alpha, 0.0))
        }
        _ => {
            let message = "model must be \"topology\", \"speed-of-light\" or \"alpa\"";
            Err(PyValueError::new_err(message))
        }
    }
}
