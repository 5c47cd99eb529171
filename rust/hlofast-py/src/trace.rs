//! `TraceData`: the core's trace of a module, which `hlofast._trace` writes into files.

use crate::memory::MemoryData;
use crate::table_builder::to_list;
use crate::time::{TimeData, Timed};
use hlofast::table::{shown_loops, tracks};
use hlofast::trace::{Described, Options, Trace, write_chrome, write_perfetto};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

/// The schedule of a module as slices and samples, created by `Module.trace`.
#[pyclass(frozen, module = "hlofast._core")]
pub struct TraceData {
    timed: Arc<Timed>,
    trace: Trace,
}

/// Creates the trace of a timed module, with live bytes from `memory` if given.
///
/// Raises `ValueError` if the step is too long for a trace.
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

/// Passes bytes to a Python function and keeps the exception that it raises.
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

/// Bytes passed to Python at once.
const PART: usize = 1 << 20;

#[pymethods]
impl TraceData {
    /// Passes the trace to `write` in parts.
    ///
    /// `form` is `json` or `pftrace`; `facts` describe the module in the trace.
    fn write(
        &self,
        form: &str,
        facts: Vec<(String, String)>,
        write: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let Timed { stage, time, .. } = &*self.timed;
        let (origin, cost, collectives) = (stage.origin(), stage.cost(), stage.collectives());
        let described =
            Described::new(origin, cost, collectives, &time.communications, &self.trace, &facts);
        let mut receiver = Receiver { write, raised: None };
        let mut parts = BufWriter::with_capacity(PART, &mut receiver);
        let written = match form {
            "json" => write_chrome(&described, &mut parts),
            "pftrace" => write_perfetto(&described, &mut parts),
            _ => return Err(PyValueError::new_err("form must be \"json\" or \"pftrace\"")),
        };
        let written = written.and_then(|()| parts.flush());
        // After a failure the remaining bytes are discarded.
        drop(parts.into_parts());
        match receiver.raised {
            Some(error) => Err(error),
            None => Ok(written?),
        }
    }

    /// Returns a table with one row per track.
    fn tracks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, tracks(&self.trace.tracks))
    }

    /// Returns a table with one row per loop: instruction, name, trip_count (-1 if unknown), shown.
    fn loops<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, shown_loops(self.timed.stage.module(), &self.trace.loops))
    }

    /// The highest number of live bytes; None if live bytes were not counted.
    #[getter]
    fn peak(&self) -> Option<i64> {
        self.trace.samples.iter().map(|sample| sample.bytes).max()
    }

    /// Number of samples of live bytes.
    #[getter]
    fn samples(&self) -> usize {
        self.trace.samples.len()
    }

    /// Number of calls shown as a single slice because the trace would otherwise be too large.
    #[getter]
    fn not_played(&self) -> u64 {
        self.trace.not_played
    }
}
