//! Surveys as plain values for other processes, and files whose bytes come from Python.

use hlofast::dump::group::NONE;
use hlofast::dump::store::{Disk, Store};
use hlofast::dump::{Found, Kind, Program, Programs, Survey, Trouble};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The store that supplies file contents: the function `read`, or the disk.
pub fn store(read: Option<Py<PyAny>>) -> Arc<dyn Store> {
    match read {
        Some(read) => Arc::new(Callable { read }),
        None => Arc::new(Disk),
    }
}

#[derive(Debug)]
struct Callable {
    read: Py<PyAny>,
}

impl Store for Callable {
    fn read(&self, entry: &Found, most: u64) -> io::Result<Vec<u8>> {
        let read = |py: Python<'_>| -> PyResult<Vec<u8>> {
            let bytes = self.read.call1(py, (entry.path.as_os_str(), most))?;
            let bytes = bytes.extract::<PyBackedBytes>(py)?;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            Ok(bytes[..bytes.len().min(most)].to_vec())
        };
        let reason = |py: Python<'_>, error: PyErr| {
            let text = error.value(py).to_string();
            if text.is_empty() { error.to_string() } else { text }
        };
        // The interpreter may be shutting down while a thread is still reading.
        Python::try_attach(|py| read(py).map_err(|error| reason(py, error)))
            .unwrap_or_else(|| Err("the interpreter has ended".to_owned()))
            .map_err(io::Error::other)
    }

    /// A thread that reads through Python mostly waits for the network or the disk.
    fn at_once(&self) -> usize {
        16
    }
}

/// A file: path, root, folder, name, bytes, modification time, whether it is a folder, trouble
/// (whether it failed, and why), index of its kind, index of its program.
type PackedFile =
    (OsString, u32, String, String, u64, u64, bool, Option<(bool, String)>, usize, Option<u32>);

/// A program: key, root, folder, host, module name, files, the module before optimisation, partner.
type PackedProgram = (String, u32, String, String, String, Vec<u32>, Option<u32>, Option<u32>);

/// Files, programs, root paths, number of files to read.
pub type PackedSurvey = (Vec<PackedFile>, Vec<PackedProgram>, Vec<String>, usize);

/// Part of a survey as plain values: everything needed to read its files.
pub fn packed(survey: Survey) -> PackedSurvey {
    let Survey { found, kinds, programs, roots, own, .. } = survey;
    let files = found.into_iter().zip(kinds).zip(programs.of_file);
    let files = files.map(|((entry, kind), program)| {
        let Found { path, root, folder, name, bytes, modified, is_folder, trouble } = entry;
        let trouble = trouble.map(|trouble| match trouble {
            Trouble::Failed(reason) => (true, reason),
            Trouble::Skipped(reason) => (false, reason),
        });
        let path = path.into_os_string();
        let program = (program != NONE).then_some(program);
        (path, root, folder, name, bytes, modified, is_folder, trouble, kind as usize, program)
    });
    let programs = programs.list.into_iter().map(|program| {
        let Program { key, root, folder, host, module_name, files, before, partner, .. } = program;
        (key, root, folder, host, module_name, files, before, partner)
    });
    (files.collect(), programs.collect(), roots, own)
}

/// Restores part of a survey from its plain values; None if they are inconsistent.
pub fn unpacked(packed: PackedSurvey, store: Arc<dyn Store>) -> Option<Survey> {
    let (files, programs, roots, own) = packed;
    let (mut entries, mut kinds, mut of_file) = (Vec::new(), Vec::new(), Vec::new());
    let count = files.len();
    for file in files {
        let (path, root, folder, name, bytes, modified, is_folder, trouble, kind, program) = file;
        let trouble = trouble.map(|(has_failed, reason)| match has_failed {
            true => Trouble::Failed(reason),
            false => Trouble::Skipped(reason),
        });
        let path = PathBuf::from(path);
        entries.push(Found { path, root, folder, name, bytes, modified, is_folder, trouble });
        kinds.push(*Kind::ALL.get(kind)?);
        of_file.push(program.unwrap_or(NONE));
    }
    let list = programs.into_iter().map(|program| {
        let (key, root, folder, host, module_name, files, before, partner) = program;
        let named = Program { key, root, folder, host, module_name, ..Program::default() };
        Program { files, before, partner, ..named }
    });
    let list: Vec<Program> = list.collect();
    let fits = own <= count
        && of_file.iter().all(|program| *program == NONE || (*program as usize) < list.len())
        && list.iter().flat_map(|program| &program.files).all(|file| (*file as usize) < count);
    let meshes_before = list.iter().map(|_| OnceLock::new()).collect();
    let programs = Programs { list, of_file };
    fits.then_some(Survey { found: entries, kinds, programs, roots, own, store, meshes_before })
}
