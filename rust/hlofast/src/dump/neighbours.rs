//! Facts about one module from the other files in its dump directory. A survey of the directory
//! finds the same facts, but this code examines only the relevant names.

use super::kind::{Kind, Stage};
use super::name;
use super::store::Disk;
use super::survey::Survey;
use super::target::is_description;
use super::walk::{Found, sort};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files beside a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// The chip, named as in [`Survey::targets`], and the file that names the chip.
    pub target: Option<(String, PathBuf)>,
    /// The module before optimisation; None if the module itself is not optimised.
    pub before: Option<PathBuf>,
}

impl Neighbours {
    /// The files beside `path`; empty if there is no such file.
    pub fn of(path: &Path) -> Self {
        Self::look_up(path).unwrap_or_default()
    }

    fn look_up(path: &Path) -> Option<Self> {
        let own = path.file_name()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        if !path.is_file() {
            return None;
        }
        let roots = [folder.to_string_lossy().into_owned()];
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).ok()?.flatten() {
            let text = entry.file_name().to_string_lossy().into_owned();
            let parsed = name::parse(&text);
            // Programs are paired by the modules that they have before and after optimisation.
            let is_end = |stage: Stage| stage == Stage::Before || stage.is_after();
            let is_end = parsed.kind == Kind::Module && parsed.stage.is_some_and(is_end);
            if entry.file_name() == own || is_end || is_description(&text) {
                files.push(Found::listed(entry.path(), &roots));
            }
        }
        sort(&mut files);
        let survey = Survey::from_listing(files, &roots, Arc::new(Disk));
        let at = survey.found.iter().position(|file| file.path.file_name() == Some(own))?;
        let number = *survey.programs.of_file.get(at)?;
        let file = |file: u32| survey.found.get(file as usize).map(|listed| listed.path.clone());
        survey.programs.list.get(number as usize)?;
        let target = survey.target_files().swap_remove(number as usize);
        let target = target.and_then(|(chip, from)| Some((chip, file(from)?)));
        let before = survey.before(at as u32).and_then(file);
        Some(Self { target, before })
    }
}
