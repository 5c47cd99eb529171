//! What files beside a dump say about the chip that it is for.

use super::group::NONE;
use super::store::all;
use super::survey::Survey;
use super::walk::Found;
use crate::text::{Compression, decompress};

/// More of such a file is not read.
const MOST: u64 = 1 << 20;

/// Names of the files that describe the target, without what compresses them.
const NAMES: [&str; 2] = ["target_arguments.txt", "gpu_target_config.pbtxt"];

impl Survey {
    /// By program: what the files beside it say about its chip, the first description there is.
    pub fn targets(&self) -> Vec<Option<String>> {
        let mut targets: Vec<Option<String>> = vec![None; self.programs.list.len()];
        let mut folders: Vec<(u32, &str, String)> = Vec::new();
        let is_description = |(_, found): &(usize, &Found)| {
            let name = super::name::without_compression(&found.name);
            found.trouble.is_none() && NAMES.iter().any(|ending| name.ends_with(ending))
        };
        let files: Vec<(usize, &Found)> =
            self.found.iter().enumerate().filter(is_description).collect();
        let chip = |at: usize| self.description(files[at].1).and_then(|text| chip(&text));
        let chips = all(&*self.store, files.len(), chip);
        for ((file, found), chip) in files.iter().copied().zip(chips) {
            let Some(chip) = chip else { continue };
            match self.programs.of_file.get(file).copied().unwrap_or(NONE) {
                NONE => folders.push((found.root, &found.folder, chip)),
                program => {
                    targets[program as usize].get_or_insert(chip);
                }
            }
        }
        // A description without a module's number is for the whole process.
        for (program, target) in self.programs.list.iter().zip(&mut targets) {
            if target.is_none() {
                let is_here = |(root, folder, _): &&(u32, &str, String)| {
                    *root == program.root && *folder == program.folder
                };
                *target = folders.iter().find(is_here).map(|(_, _, chip)| chip.clone());
            }
        }
        targets
    }

    fn description(&self, found: &Found) -> Option<String> {
        let mut bytes = self.store.read(found, MOST).ok()?;
        if Compression::of(&bytes).is_some() {
            bytes = decompress(&bytes, Some(MOST)).ok()??;
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The name of the chip in a description: that of a device of the built-in table, or the words of the
/// description where they are new.
fn chip(text: &str) -> Option<String> {
    let Some(version) = value(text, "version") else {
        return value(text, "device_description_str");
    };
    let variant = value(text, "variant").unwrap_or_default();
    let is_lite = variant == "lite";
    // As libtpu 0.0.51 writes them when it compiles for the topologies of these names.
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

/// The value of the first `key: value`, without quotes.
fn value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let value = line.trim().strip_prefix(key)?.strip_prefix(':')?.trim().trim_matches('"');
        (!value.is_empty() && value.len() < 100).then(|| value.to_owned())
    })
}
