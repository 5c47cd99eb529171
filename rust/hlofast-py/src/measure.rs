//! `MeasuredData`: what of a profile belongs to a module, which `hlofast._profile` presents; and
//! profiles of columns that Python read.

use crate::column::Column;
use crate::held::Stage;
use crate::module::Module;
use crate::profile::ProfileData;
use crate::table_builder::to_list;
use hlofast::measure::{Measured, measure};
use hlofast::profile::{
    DeviceKind, Events, Launch, Loaded, NONE, Names, Profile, ProfiledDevice, Program, Track,
    TrackKind,
};
use hlofast::table;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// Builds a profile from columns that Python read, as those of Parquet files.
///
/// `devices` are host number, name and kind; `tracks` device number, name and kind; `programs` name
/// and number; `columns` are track, program, instruction name, label (-1 for none), start and length
/// in picoseconds, each a buffer of 64-bit integers; `launches` are device, program, start and length
/// in picoseconds. Raises `ValueError` for numbers out of range.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn _profile_of_columns(
    py: Python<'_>,
    hosts: Vec<String>,
    devices: Vec<(u32, String, String)>,
    tracks: Vec<(u32, String, String)>,
    programs: Vec<(String, Option<u64>)>,
    names: Vec<String>,
    columns: Vec<Bound<'_, PyAny>>,
    launches: Vec<(u32, u32, i64, i64)>,
) -> PyResult<ProfileData> {
    let wrong = |what: &str| PyValueError::new_err(format!("{what} is out of range"));
    let columns: Vec<Vec<i64>> = columns
        .iter()
        .map(|column| PyBuffer::<i64>::get(column)?.to_vec(py))
        .collect::<PyResult<_>>()?;
    let [track, program, op, label, start, length] = &columns[..] else {
        return Err(PyValueError::new_err("six columns are needed"));
    };
    let count = track.len();
    if columns.iter().any(|column| column.len() != count) {
        return Err(PyValueError::new_err("columns must be of one length"));
    }
    let mut texts = Names::default();
    let numbers: Vec<u32> = names.iter().map(|name| texts.number(name)).collect();
    let index = |value: i64, limit: usize, what: &str| match usize::try_from(value) {
        Ok(at) if at < limit => Ok(at as u32),
        Err(_) => Ok(NONE),
        Ok(_) => Err(wrong(what)),
    };
    let named = |value: i64| {
        let at = index(value, numbers.len(), "a name")?;
        Ok::<u32, PyErr>(numbers.get(at as usize).copied().unwrap_or(NONE))
    };
    let mut events = Events::default();
    for at in 0..count {
        let of = index(track[at], tracks.len(), "a track")?;
        if of == NONE {
            return Err(wrong("a track"));
        }
        let program = index(program[at], programs.len(), "a program")?;
        events.push(of, program, named(op[at])?, named(label[at])?, start[at], length[at]);
    }
    if tracks.iter().any(|track| track.0 as usize >= devices.len())
        || devices.iter().any(|device| device.0 as usize >= hosts.len())
        || launches
            .iter()
            .any(|launch| launch.0 as usize >= devices.len() || launch.1 as usize >= programs.len())
    {
        return Err(wrong("a device"));
    }
    let devices = devices.into_iter().map(|(host, name, kind)| ProfiledDevice {
        host,
        name: name.into(),
        kind: match kind.as_str() {
            "tpu" => DeviceKind::Tpu,
            "gpu" => DeviceKind::Gpu,
            "cpu" => DeviceKind::Cpu,
            _ => DeviceKind::Other,
        },
        ..ProfiledDevice::default()
    });
    let tracks = tracks.into_iter().map(|(device, name, kind)| Track {
        device,
        name: name.into(),
        kind: match kind.as_str() {
            "async" => TrackKind::Async,
            "stream" => TrackKind::Stream,
            _ => TrackKind::Ops,
        },
    });
    let programs = programs.into_iter().map(|(name, id)| Program { name: name.into(), id });
    let launches = launches.into_iter().map(|(device, program, start_ps, duration_ps)| Launch {
        device,
        program,
        start_ps,
        duration_ps,
        run: None,
    });
    let mut profile = Profile {
        hosts: hosts.into_iter().map(Into::into).collect(),
        devices: devices.collect(),
        tracks: tracks.collect(),
        programs: programs.collect(),
        names: texts,
        events,
        launches: launches.collect(),
        steps: Vec::new(),
    };
    profile.sort();
    Ok(ProfileData::of(Loaded::of(profile)))
}

/// What a profile measured of a module, computed by `Module.profile`.
#[pyclass(frozen, module = "hlofast._core")]
pub struct MeasuredData {
    stage: Arc<Stage>,
    measured: Arc<Measured>,
    profile: Arc<Profile>,
}

/// Measures `module` in `profile`; None if no event names an instruction of the module.
#[pyfunction]
#[pyo3(signature = (module, profile, *, mesh=None, program=None))]
pub fn _measure(
    module: &Bound<'_, Module>,
    profile: &Bound<'_, ProfileData>,
    mesh: Option<&Bound<'_, crate::mesh::Mesh>>,
    program: Option<u32>,
) -> Option<MeasuredData> {
    let held = module.get().held.on_mesh(mesh.map(|mesh| &mesh.get().core));
    let stage = Arc::clone(&held.stage);
    let profile = Arc::clone(&profile.get().loaded.profile);
    let measured = module.py().detach(|| {
        let sent = stage.sent();
        let axes: Vec<&str> = sent.along.iter().map(|along| along.axes.as_str()).collect();
        measure(stage.module(), stage.collectives(), &axes, &profile, program)
    })?;
    Some(MeasuredData { stage, measured: Arc::new(measured), profile })
}

#[pymethods]
impl MeasuredData {
    /// Name and number of the program.
    #[getter]
    fn program(&self) -> (String, Option<u64>) {
        let program = &self.profile.programs[self.measured.program as usize];
        (program.name.to_string(), program.id)
    }

    /// Seconds of the step: all, computing, communicating, exposed, copies, other, idle.
    fn step(&self) -> (f64, f64, f64, f64, f64, f64, f64) {
        let step = &self.measured.step;
        let (compute, communication) = (step.compute, step.communication);
        let parts = (step.exposed, step.copies, step.other, step.idle);
        (step.duration, compute, communication, parts.0, parts.1, parts.2, parts.3)
    }

    /// Mesh axes, seconds of communication along them, exposed seconds.
    fn axes(&self) -> Vec<(String, f64, f64)> {
        let axes = &self.measured.step.axes;
        axes.iter().map(|axis| (axis.axes.clone(), axis.seconds, axis.exposed)).collect()
    }

    /// Seconds of device time: in events that name an instruction, in all events, in events outside
    /// whole runs.
    fn joined(&self) -> (f64, f64, f64) {
        let measured = &self.measured;
        (measured.joined_seconds, measured.device_seconds, measured.outside_seconds)
    }

    /// Seconds in the step of each collective of the module, once each, and the exposed part; NaN
    /// for those without an event.
    fn collective_seconds(&self) -> Vec<(f64, f64)> {
        self.measured.collectives.clone()
    }

    /// Returns a table with one row per collective.
    fn collectives<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let stage = &self.stage;
        let table = table::measured_collectives(stage.module(), stage.sent(), &self.measured);
        to_list(py, table)
    }

    /// The per-instruction column `name`.
    fn column(&self, name: &str) -> PyResult<Column> {
        let rows = |of: fn(&Measured) -> &[f64]| Column::project(&self.measured, of);
        Ok(match name {
            "seconds" => rows(|m| &m.rows.seconds),
            "calls" => rows(|m| &m.rows.calls),
            "least" => rows(|m| &m.rows.least),
            "median" => rows(|m| &m.rows.median),
            "most" => rows(|m| &m.rows.most),
            _ => return Err(PyKeyError::new_err(name.to_owned())),
        })
    }

    /// Returns a table with one row per run and device.
    fn runs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::runs(&self.measured, &self.profile))
    }

    /// Returns a table of the events that name no instruction.
    fn unjoined<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, table::unjoined(&self.measured))
    }
}
