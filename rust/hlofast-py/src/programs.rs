//! The programs of a dump directory as plain Python values, for `hlofast._programs`.

use hlofast::dump::{Kind, Stage, Survey};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::collections::HashSet;

/// Returns the programs of a survey that have modules to read, each with its modules by stage.
pub fn program_files<'py>(py: Python<'py>, survey: &Survey) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for program in &survey.programs.list {
        let is_module = |file: &u32| {
            let listed = &survey.found[*file as usize];
            survey.name(*file).kind == Kind::Module && listed.trouble.is_none()
        };
        let Some(canonical) = program.canonical.filter(is_module) else { continue };
        // The canonical file comes first, because the first form of a stage is used.
        let others = program.files.iter().copied().filter(|file| *file != canonical);
        let mut seen = HashSet::new();
        let files = PyList::empty(py);
        for file in [canonical].into_iter().chain(others).filter(is_module) {
            let name = survey.name(file);
            let stage = name.stage.map_or("", Stage::as_str);
            if !seen.insert((stage, name.step, name.after)) {
                continue;
            }
            let entry = PyDict::new(py);
            entry.set_item("path", survey.found[file as usize].text())?;
            entry.set_item("stage", stage)?;
            entry.set_item("step", name.step.map_or(-1, i64::from))?;
            entry.set_item("pipeline", name.pipeline)?;
            entry.set_item("after", name.after)?;
            entry.set_item("before", name.before)?;
            files.append(entry)?;
        }
        let entry = PyDict::new(py);
        entry.set_item("key", &program.key)?;
        entry.set_item("host", &program.host)?;
        entry.set_item("module_id", program.module_id)?;
        entry.set_item("name", &program.module_name)?;
        entry.set_item("files", files)?;
        list.append(entry)?;
    }
    Ok(list)
}
