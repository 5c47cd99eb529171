//! `TraceData`: the core's trace of a module, which `hlofast._trace` writes into files.

use crate::column::Column;
use crate::memory::MemoryData;
use crate::text_column::TextColumn;
use crate::time::{TimeData, Timed};
use hlofast::ir::Row;
use hlofast::trace::{Described, Options, ShownLoop, Trace, Track, write_chrome, write_perfetto};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

/// The schedule of a module as slices and samples, as made by `Module.trace`.
#[pyclass(frozen, module = "hlofast._core")]
pub struct TraceData {
    timed: Arc<Timed>,
    trace: Trace,
}

/// The trace of a module that has been timed; bytes alive are those of `memory`.
#[pyfunction]
#[pyo3(signature = (time, memory=None, *, iterations=None, min_seconds=0.0))]
pub fn _trace(
    time: &Bound<'_, TimeData>,
    memory: Option<&Bound<'_, MemoryData>>,
    iterations: Option<u64>,
    min_seconds: f64,
) -> PyResult<TraceData> {
    let timed = Arc::clone(&time.get().timed);
    let memory = memory.map(|memory| memory.get().core());
    let options = Options { iterations, min_seconds };
    let trace =
        time.py().detach(|| timed.stage.trace(&timed.time, &timed.device, memory, &options));
    let trace = trace.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(TraceData { timed, trace })
}

/// Bytes go to a Python function; what it raises is kept.
struct Receiver<'py> {
    write: Bound<'py, PyAny>,
    raised: Option<PyErr>,
}

impl Write for Receiver<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.write.call1((PyBytes::new(self.write.py(), bytes),)) {
            Ok(_) => Ok(bytes.len()),
            Err(error) => {
                self.raised = Some(error);
                Err(io::Error::other("the receiver raised"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes handed to Python at once.
const PART: usize = 1 << 20;

#[pymethods]
impl TraceData {
    /// Hands the trace to `write` in parts: `json` or `pftrace`. `facts` are told of the module.
    fn write(
        &self,
        form: &str,
        facts: Vec<(String, String)>,
        write: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let Timed { stage, time, .. } = &*self.timed;
        let (core, cost, found) = (stage.module(), stage.cost(), stage.collectives());
        let described =
            Described::new(core, cost, found, &time.communications, &self.trace, &facts);
        let mut receiver = Receiver { write, raised: None };
        let mut parts = BufWriter::with_capacity(PART, &mut receiver);
        let written = match form {
            "json" => write_chrome(&described, &mut parts),
            "pftrace" => write_perfetto(&described, &mut parts),
            _ => return Err(PyValueError::new_err("form is \"json\" or \"pftrace\"")),
        };
        let written = written.and_then(|()| parts.flush());
        // What is left after a failure has nowhere to go.
        drop(parts.into_parts());
        match receiver.raised {
            Some(error) => Err(error),
            None => Ok(written?),
        }
    }

    /// One row per track.
    fn tracks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let tracks = &self.trace.tracks;
        let list = PyList::empty(py);
        let names = tracks.iter().map(|track| track.name.as_bytes().into()).collect();
        list.append(("track", Bound::new(py, TextColumn::new_from(names, None))?))?;
        let counts = |of: fn(&Track) -> u64| {
            Column::of::<i64>(tracks.iter().map(|track| of(track) as i64).collect())
        };
        let seconds = |of: fn(&Track) -> f64| Column::of::<f64>(tracks.iter().map(of).collect());
        let columns = [
            ("slices", counts(|track| track.slices)),
            ("seconds", seconds(|track| track.seconds)),
            ("left_out", counts(|track| track.left_out)),
            ("left_out_seconds", seconds(|track| track.left_out_seconds)),
        ];
        for (name, column) in columns {
            list.append((name, Bound::new(py, column)?))?;
        }
        Ok(list)
    }

    /// One row per loop: instruction, name, trip_count (-1: not known), shown.
    fn loops<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let loops = &self.trace.loops;
        let list = PyList::empty(py);
        let rows = Column::of(loops.iter().map(|found| found.row.0).collect());
        list.append(("instruction", Bound::new(py, rows)?))?;
        let name = |row: Row| self.timed.stage.module().instruction_name(row).into();
        let names = loops.iter().map(|found| name(found.row)).collect();
        list.append(("name", Bound::new(py, TextColumn::new_from(names, None))?))?;
        let narrow = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let trips = |found: &ShownLoop| found.trip_count.map_or(-1, narrow);
        let trips = Column::of::<i64>(loops.iter().map(trips).collect());
        list.append(("trip_count", Bound::new(py, trips)?))?;
        let shown = Column::of::<i64>(loops.iter().map(|found| narrow(found.shown)).collect());
        list.append(("shown", Bound::new(py, shown)?))?;
        Ok(list)
    }

    /// The most bytes alive; None where they are not counted.
    #[getter]
    fn peak(&self) -> Option<i64> {
        self.trace.samples.iter().map(|sample| sample.bytes).max()
    }

    /// Samples of bytes alive.
    #[getter]
    fn samples(&self) -> usize {
        self.trace.samples.len()
    }

    /// Calls shown as a whole since the trace would be too large.
    #[getter]
    fn not_played(&self) -> u64 {
        self.trace.not_played
    }
}
