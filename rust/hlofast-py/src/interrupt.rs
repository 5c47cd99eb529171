//! Ctrl-C in the command line: ends the process also while the main thread is inside the core.
//!
//! Python calls handlers of signals between two steps of its own, so that an interrupt waits for a
//! call into the core to return. A thread that needs no interpreter lock waits for the interrupt and
//! gives the main thread a moment to act on it; then it removes temporary files and ends the process.
#![allow(unsafe_code, reason = "`_exit` of the C library has no safe wrapper in std")]

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether Python's handler has run, so that the main thread is on its way out.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
/// Temporary files and folders that exist now.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Ends the process with `code` soon after an interrupt. Does nothing where a caller has set another
/// handler, such as a shell that starts a background job with interrupts ignored, outside the main
/// thread, and on systems without pipes of this kind.
#[pyfunction]
pub fn _watch_interrupts(py: Python<'_>, code: i32) -> PyResult<()> {
    #[cfg(unix)]
    return watch::start(py, code);
    #[cfg(not(unix))]
    {
        let _ = (py, code);
        Ok(())
    }
}

/// Notes a temporary file or folder, or that it is gone.
#[pyfunction]
pub fn _temporary(path: PathBuf, exists: bool) {
    let mut all = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|own| *own != path);
    if exists {
        all.push(path);
    }
}

/// The handler of interrupts: like Python's own, which leaves no trace that it ran.
#[pyfunction]
#[pyo3(signature = (*_arguments))]
fn interrupted(_arguments: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
    IS_TAKEN.store(true, Ordering::SeqCst);
    Err(PyKeyboardInterrupt::new_err(()))
}

#[cfg(unix)]
mod watch {
    use super::{IS_TAKEN, TEMPORARY};
    use pyo3::prelude::*;
    use std::ffi::c_int;
    use std::io::{PipeReader, Read};
    use std::os::fd::IntoRawFd;
    use std::sync::PoisonError;
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Duration;

    /// How long the main thread may take to act on an interrupt. Python does so between two steps,
    /// within milliseconds, and the whole end is to take less than 0.3 s.
    const GRACE: Duration = Duration::from_millis(150);
    /// How long it may then take to end: it removes what it was writing, but may also wait for calls
    /// into the core on other threads.
    const END: Duration = Duration::from_secs(1);

    unsafe extern "C" {
        /// Ends the process without what libraries registered for its end: other threads still use
        /// their memory.
        safe fn _exit(code: c_int) -> !;
    }

    pub(super) fn start(py: Python<'_>, code: i32) -> PyResult<()> {
        // `signal` would import `enum` and convert its constants, for a millisecond.
        let signal = py.import("_signal")?;
        let interrupt = signal.getattr("SIGINT")?;
        let usual = signal.getattr("default_int_handler")?;
        if !signal.call_method1("getsignal", (&interrupt,))?.is(&usual) {
            return Ok(());
        }
        let handler = wrap_pyfunction!(super::interrupted, py)?;
        if signal.call_method1("signal", (&interrupt, handler)).is_err() {
            return Ok(()); // Not the main thread.
        }
        let number: u8 = interrupt.extract()?;
        let (reader, writer) = std::io::pipe()?;
        let waiting = move || wait(reader, number, code);
        let thread = thread::Builder::new().name("hlofast interrupt".to_owned());
        if thread.stack_size(64 << 10).spawn(waiting).is_ok() {
            let writer = writer.into_raw_fd();
            py.import("os")?.call_method1("set_blocking", (writer, false))?;
            signal.call_method1("set_wakeup_fd", (writer,))?;
        }
        Ok(())
    }

    /// Waits for the interrupt `number`; the interpreter writes the numbers of signals to the pipe.
    fn wait(mut signals: PipeReader, number: u8, code: i32) {
        let mut signal = [0];
        while signals.read_exact(&mut signal).is_ok() {
            if signal[0] == number {
                thread::sleep(GRACE);
                if IS_TAKEN.load(Ordering::SeqCst) {
                    thread::sleep(END);
                }
                end(code);
            }
        }
    }

    fn end(code: i32) -> ! {
        // Held to the end, so that no file appears.
        let all = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
        for path in all.iter() {
            // The process ends here and can report nothing, so a file that cannot be removed stays.
            let _ = match path.is_dir() {
                true => std::fs::remove_dir_all(path),
                false => std::fs::remove_file(path),
            };
        }
        _exit(code)
    }
}
