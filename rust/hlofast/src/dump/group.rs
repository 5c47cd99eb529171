//! Groups files into programs: one compilation of one module in one process.

use super::host::host;
use super::kind::{Kind, Stage};
use super::name::{self, FileName};
use super::walk::Found;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Stands for an absent program.
pub const NONE: u32 = u32::MAX;

/// One compilation of one module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The key that is unique within a scan: directories and the common part of the file names.
    pub key: String,
    /// Index of the given path that contains the program.
    pub root: u32,
    /// The folder of its files, relative to the given path.
    pub folder: String,
    /// The host or process that wrote the files, according to directory names; empty if unknown.
    pub host: String,
    /// Microseconds since 1970, if names have a time stamp.
    pub timestamp: Option<u64>,
    /// The number of the module.
    pub module_id: Option<u64>,
    /// The name of the module; empty if no file has it.
    pub module_name: String,
    /// The changelist of the compiler that wrote the files.
    pub changelist: Option<u64>,
    /// Its files, by number, ascending.
    pub files: Vec<u32>,
    /// The file that represents the program: the last stage available.
    pub canonical: Option<u32>,
    /// The module before optimisation.
    pub before: Option<u32>,
    /// The module after optimisation.
    pub after: Option<u32>,
    /// If the compiler gave the modules before and after optimisation different numbers: the
    /// program that holds the other of the two modules.
    pub partner: Option<u32>,
}

impl Program {
    /// The order of two programs in tables.
    pub(super) fn order(&self, other: &Program) -> Ordering {
        let of = |program: &Program| (program.root, program.module_id, program.timestamp);
        let folders = || self.folder.cmp(&other.folder);
        let keys = || self.key.cmp(&other.key);
        let (own, others) = (of(self), of(other));
        own.0.cmp(&others.0).then_with(folders).then_with(|| own.cmp(&others)).then_with(keys)
    }
}

/// The programs of some files.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// In the order of their keys.
    pub list: Vec<Program>,
    /// By file: the number of its program, or [`NONE`].
    pub of_file: Vec<u32>,
}

/// The parts of a file name that all files of a program share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    root: u32,
    folder: String,
    timestamp: Option<u64>,
    module_id: Option<u64>,
    name: String,
}

/// Groups `files` by name. `roots` are the given paths as shown to people; keys contain them only
/// if there are several.
///
/// `names` are the parsed names of `files`; if the first bytes of a file tell more than its name,
/// the kind follows from the bytes.
pub fn programs(files: &[Found], names: &[FileName<'_>], roots: &[String]) -> Programs {
    let mut keys: Vec<Option<Key>> = files.iter().zip(names).map(|(f, n)| key(f, n)).collect();
    adopt(&mut keys, names);
    let mut numbers: HashMap<Key, u32> = HashMap::new();
    let mut programs = Programs { list: Vec::new(), of_file: vec![NONE; files.len()] };
    for (file, key) in keys.into_iter().enumerate() {
        let Some(key) = key else { continue };
        let (file_name, list) = (&names[file], &mut programs.list);
        let number = *numbers.entry(key).or_insert_with_key(|key| {
            list.push(Program {
                root: key.root,
                folder: key.folder.clone(),
                timestamp: key.timestamp,
                module_id: key.module_id,
                module_name: key.name.clone(),
                ..Program::default()
            });
            list.len() as u32 - 1
        });
        let program = &mut programs.list[number as usize];
        program.files.push(file as u32);
        program.changelist = program.changelist.or(file_name.changelist);
        programs.of_file[file] = number;
    }
    for program in &mut programs.list {
        program.key = key_text(program, files, roots);
        program.host = host(&program.folder, &program.module_name);
        choose(program, files, names);
    }
    sort(&mut programs);
    attach(&mut programs, files, names);
    pair(&mut programs.list);
    programs
}

/// The key that `file` shares with other files of its program; None for files of a whole process.
fn key(file: &Found, name: &FileName<'_>) -> Option<Key> {
    if file.is_folder {
        return None;
    }
    let is_module = matches!(name.kind, Kind::Module | Kind::Memory);
    let (root, folder) = (file.root, file.folder.clone());
    let (timestamp, module_id) = (name.timestamp, name.module_id);
    if module_id.is_none() {
        // A file saved under a custom name is a program of its own, with its memory files.
        let stem = if name.module_name.is_empty() { name.stem } else { name.module_name };
        let own = if stem.is_empty() { name::without_compression(&file.name) } else { stem };
        return is_module.then(|| Key { root, folder, timestamp, module_id, name: own.to_owned() });
    }
    Some(Key { root, folder, timestamp, module_id, name: name.module_name.to_owned() })
}

/// Files without a time stamp or module name join the program that matches the rest of their key,
/// if there is only one.
fn adopt(keys: &mut [Option<Key>], names: &[FileName<'_>]) {
    let mut full: HashMap<(u32, String, u64), Vec<Key>> = HashMap::new();
    for (key, name) in keys.iter().zip(names) {
        let Some(key) = key else { continue };
        let Some(id) = key.module_id else { continue };
        if matches!(name.kind, Kind::Module | Kind::Memory) {
            let entry = full.entry((key.root, key.folder.clone(), id)).or_default();
            if !entry.contains(key) && entry.len() < 64 {
                entry.push(key.clone());
            }
        }
    }
    for key in keys.iter_mut().flatten() {
        let Some(id) = key.module_id else { continue };
        let Some(known) = full.get(&(key.root, key.folder.clone(), id)) else { continue };
        // Names of kernels and fusions come between the module name and the suffix.
        let is_name = |other: &Key| {
            key.name.is_empty()
                || key.name == other.name
                || key.name.strip_prefix(&other.name).is_some_and(|rest| rest.starts_with('.'))
        };
        let fits = |other: &&Key| {
            !other.name.is_empty()
                && is_name(other)
                && (key.timestamp.is_none() || other.timestamp == key.timestamp)
        };
        if known.contains(key) && !key.name.is_empty() {
            continue;
        }
        let longest = known.iter().filter(fits).map(|other| other.name.len()).max();
        let is_longest = |other: &&Key| Some(other.name.len()) == longest;
        let mut fitting = known.iter().filter(fits).filter(is_longest);
        if let (Some(only), None) = (fitting.next(), fitting.next()) {
            *key = only.clone();
        }
    }
}

/// The key of the program that a log, found as `log`, announces as `label`.
pub fn label_key(log: &Found, label: &str, roots: &[String]) -> String {
    let name = name::parse(label);
    let number = name.module_id.map(|id| format!("module_{id:04}"));
    let parts = [name.timestamp.map(|time| time.to_string()), number];
    let own = if name.module_name.is_empty() { name.stem } else { name.module_name };
    let parts = parts.into_iter().flatten().chain((!own.is_empty()).then(|| own.to_owned()));
    let mut places = key_folders(log.root, &log.folder, roots);
    places.push(parts.collect::<Vec<_>>().join("."));
    places.join("/")
}

/// The start of a key: the given path if there are several, and the directory below it.
fn key_folders(root: u32, folder: &str, roots: &[String]) -> Vec<String> {
    let root = roots.get(root as usize).filter(|_| roots.len() > 1);
    let root = root.map(|root| root.trim_end_matches('/').to_owned());
    let root = root.filter(|root| !root.is_empty());
    root.into_iter().chain((!folder.is_empty()).then(|| folder.to_owned())).collect()
}

fn key_text(program: &Program, files: &[Found], roots: &[String]) -> String {
    let mut parts = key_folders(program.root, &program.folder, roots);
    let mut stem = String::new();
    if let Some(timestamp) = program.timestamp {
        stem = format!("{timestamp}.");
    }
    match program.module_id {
        Some(id) => stem.push_str(&format!("module_{id:04}")),
        None => {
            let file = program.files.first().and_then(|file| files.get(*file as usize));
            let own = file.map_or("", |file| name::without_compression(&file.name));
            stem.push_str(if program.module_name.is_empty() { own } else { "" });
        }
    }
    if !program.module_name.is_empty() {
        if program.module_id.is_some() {
            stem.push('.');
        }
        stem.push_str(&program.module_name);
    }
    parts.push(stem);
    parts.join("/")
}

/// How well a file represents its program; None if the file cannot represent it.
fn rank(name: &FileName<'_>) -> Option<(u32, u32, bool)> {
    (name.kind == Kind::Module).then_some(())?;
    let stage = name.stage.map_or(1, |stage| 2 * stage.rank() + 2);
    let is_text = !name.suffix.ends_with("pb");
    Some((stage, name.step.unwrap_or(0), is_text))
}

/// Selects the canonical file and the files before and after optimisation.
fn choose(program: &mut Program, files: &[Found], names: &[FileName<'_>]) {
    let best = |holds: &dyn Fn(&FileName<'_>) -> bool| {
        let ranked = program.files.iter().filter_map(|file| {
            let name = names.get(*file as usize).filter(|name| holds(name))?;
            let is_there = files.get(*file as usize)?.trouble.is_none();
            is_there.then_some((rank(name)?, *file))
        });
        // On a tie, the first file.
        ranked.max_by_key(|(rank, file)| (*rank, std::cmp::Reverse(*file))).map(|(_, file)| file)
    };
    let canonical = best(&|_| true);
    let before = best(&|name| name.stage == Some(Stage::Before));
    let after = best(&|name| name.stage.is_some_and(Stage::is_after));
    (program.canonical, program.before, program.after) = (canonical, before, after);
}

fn sort(programs: &mut Programs) {
    let mut order: Vec<u32> = (0..programs.list.len() as u32).collect();
    let list = &programs.list;
    order.sort_by(|a, b| list[*a as usize].order(&list[*b as usize]));
    let mut places = vec![0u32; order.len()];
    for (place, number) in order.iter().enumerate() {
        places[*number as usize] = place as u32;
    }
    for number in programs.of_file.iter_mut().filter(|number| **number != NONE) {
        *number = places[*number as usize];
    }
    programs.list =
        order.iter().map(|number| std::mem::take(&mut programs.list[*number as usize])).collect();
}

/// `NAME.schedule.txt` has no number: it joins the only program of that name in its directory.
fn attach(programs: &mut Programs, files: &[Found], names: &[FileName<'_>]) {
    let mut by_name: HashMap<(u32, &str, &str), Option<u32>> = HashMap::new();
    for (number, program) in programs.list.iter().enumerate() {
        let key = (program.root, program.folder.as_str(), program.module_name.as_str());
        let slot = by_name.entry(key).or_insert(Some(number as u32));
        if *slot != Some(number as u32) {
            *slot = None;
        }
    }
    let mut attached = Vec::new();
    for (file, (listed, name)) in files.iter().zip(names).enumerate() {
        let is_loose = programs.of_file[file] == NONE && !name.module_name.is_empty();
        let key = (listed.root, listed.folder.as_str(), name.module_name);
        if is_loose && let Some(Some(number)) = by_name.get(&key) {
            attached.push((file as u32, *number));
        }
    }
    for (file, number) in attached {
        programs.of_file[file as usize] = number;
        let program = &mut programs.list[number as usize];
        let at = program.files.partition_point(|other| *other < file);
        program.files.insert(at, file);
    }
}

/// The TPU compiler may renumber a module after optimisation: a program that only has a module
/// before optimisation is paired with the next program of that name that only has a module after
/// it.
fn pair(programs: &mut [Program]) {
    const NEAR: u64 = 8;
    let mut halves: HashMap<(u32, String, String), Vec<u32>> = HashMap::new();
    for (number, program) in programs.iter().enumerate() {
        if program.module_id.is_some()
            && !program.module_name.is_empty()
            && program.before.is_some() != program.after.is_some()
        {
            let key = (program.root, program.folder.clone(), program.module_name.clone());
            halves.entry(key).or_default().push(number as u32);
        }
    }
    for numbers in halves.values() {
        for pair in numbers.windows(2) {
            let (first, second) = (&programs[pair[0] as usize], &programs[pair[1] as usize]);
            let distance = second.module_id.unwrap_or(0).abs_diff(first.module_id.unwrap_or(0));
            let fits = first.before.is_some() && second.after.is_some() && distance <= NEAR;
            if fits && first.partner.is_none() {
                programs[pair[0] as usize].partner = Some(pair[1]);
                programs[pair[1] as usize].partner = Some(pair[0]);
            }
        }
    }
}
