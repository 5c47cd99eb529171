//! Finds the chip that a dump was compiled for in the files beside it.

use super::group::NONE;
use super::store::all;
use super::survey::Survey;
use super::walk::Found;
use crate::text::{Compression, decompress};

/// Maximum bytes that are read of such a file.
const MOST: u64 = 1 << 20;

/// Names of files that describe the target, without compression suffixes.
const NAMES: [&str; 2] = ["target_arguments.txt", "gpu_target_config.pbtxt"];

/// Whether a file with this name describes the target.
pub(super) fn is_description(name: &str) -> bool {
    let name = super::name::without_compression(name);
    NAMES.iter().any(|ending| name.ends_with(ending))
}

impl Survey {
    /// By program: its chip, from the first description beside it.
    pub fn targets(&self) -> Vec<Option<String>> {
        self.target_files().into_iter().map(|target| target.map(|(chip, _)| chip)).collect()
    }

    /// By program: its chip and the number of the file that names it.
    pub(super) fn target_files(&self) -> Vec<Option<(String, u32)>> {
        let mut targets: Vec<Option<(String, u32)>> = vec![None; self.programs.list.len()];
        let mut folders: Vec<(u32, &str, (String, u32))> = Vec::new();
        let is_readable =
            |(_, file): &(usize, &Found)| file.trouble.is_none() && is_description(&file.name);
        let files: Vec<(usize, &Found)> =
            self.found.iter().enumerate().filter(is_readable).collect();
        let chip = |at: usize| self.description(files[at].1).and_then(|text| chip(&text));
        let chips = all(&*self.store, files.len(), chip);
        for ((file, listed), chip) in files.iter().copied().zip(chips) {
            let Some(chip) = chip else { continue };
            let target = (chip, file as u32);
            match self.programs.of_file.get(file).copied().unwrap_or(NONE) {
                NONE => folders.push((listed.root, &listed.folder, target)),
                program => {
                    targets[program as usize].get_or_insert(target);
                }
            }
        }
        for (program, target) in self.programs.list.iter().zip(&mut targets) {
            // A description without a module number is for the whole process.
            if target.is_none() {
                let is_here = |(root, folder, _): &&(u32, &str, (String, u32))| {
                    *root == program.root && *folder == program.folder
                };
                *target = folders.iter().find(is_here).map(|(_, _, target)| target.clone());
            }
            if target.is_none() {
                *target = program.files.iter().find_map(|file| {
                    Some((chip_of_name(&self.found.get(*file as usize)?.name)?, *file))
                });
            }
        }
        targets
    }

    fn description(&self, file: &Found) -> Option<String> {
        let mut bytes = self.store.read(file, MOST).ok()?;
        if Compression::of(&bytes).is_some() {
            bytes = decompress(&bytes, Some(MOST)).ok()??;
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The name of the chip in a description: a device of the built-in table, or, for unknown chips,
/// the name as the description spells it.
fn chip(text: &str) -> Option<String> {
    let Some(version) = value(text, "version") else {
        return value(text, "device_description_str");
    };
    let variant = value(text, "variant").unwrap_or_default();
    let is_lite = variant == "lite";
    // The spellings that libtpu 0.0.51 writes when it compiles for the topologies of these names.
    Some(match (version.strip_prefix("TPU_VERSION_").unwrap_or(&version), is_lite) {
        ("JELLYFISH", false) => "v2".to_owned(),
        ("DRAGONFISH", false) => "v3".to_owned(),
        ("PUFFERFISH", false) => "v4".to_owned(),
        ("VIPERFISH", true) => "v5e".to_owned(),
        ("VIPERFISH", false) => "v5p".to_owned(),
        ("GHOSTLITE", _) => "v6e".to_owned(),
        _ => format!("{version} {variant}").trim().to_owned(),
    })
}

/// The chip in the name of a module compiled for GPUs: `sm_8.0` in
/// `module_0001.jit_step.sm_8.0_gpu_after_optimizations.txt`. The name is an alias in the built-in
/// table if only one device has that compute capability.
fn chip_of_name(name: &str) -> Option<String> {
    let rest = super::name::without_compression(name);
    let (head, _) = rest.split_once("_gpu_after_optimizations")?;
    let at = head.rfind("sm_").into_iter().chain(head.rfind("gfx")).max()?;
    let word = head.get(at..)?;
    let is_whole = at == 0 || head.get(..at)?.ends_with('.');
    (is_whole && word.len() < 100).then(|| word.to_owned())
}

/// The value of the first `key: value`, without quotes.
fn value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let value = line.trim().strip_prefix(key)?.strip_prefix(':')?.trim().trim_matches('"');
        (!value.is_empty() && value.len() < 100).then(|| value.to_owned())
    })
}
