//! The files below some directories, their kinds, and the programs they belong to.

use super::group::{NONE, Program, Programs, label_key, programs};
use super::kind::Kind;
use super::name::{self, FileName};
use super::names::MeshesBefore;
use super::sniff::{Content, HEAD, sniff};
use super::store::{Disk, Store, all};
use super::walk::{Found, Trouble, below_directories, reason, walk, without_datasets};
use crate::text::{Compression, decompress_head};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Files by path.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The files, and the directories that could not be read.
    pub found: Vec<Found>,
    /// By file: its kind, from its name or else its first bytes.
    pub kinds: Vec<Kind>,
    /// The programs.
    pub programs: Programs,
    /// The given paths that contain the files, as shown to people.
    pub roots: Vec<String>,
    /// Number of files to read, counted from the first; further files are only context.
    pub own: usize,
    /// Supplies the bytes of the files.
    pub store: Arc<dyn Store>,
    /// By program: the mesh of its module before optimisation, read on first use.
    pub meshes_before: MeshesBefore,
}

impl Survey {
    /// Surveys everything below `roots`.
    pub fn new(roots: &[PathBuf]) -> Self {
        let names: Vec<String> =
            roots.iter().map(|root| root.to_string_lossy().into_owned()).collect();
        Self::from_listing(walk(roots), &names, Arc::new(Disk))
    }

    /// A survey without files.
    pub fn empty() -> Self {
        Self::from_listing(Vec::new(), &[], Arc::new(Disk))
    }

    /// Surveys listed files; `roots` are the paths that contain them, as shown to people. Files
    /// with an unknown kind of name are opened, because a dump may be saved under any name. A root
    /// that is a file stands for the directory that contains it.
    /// Datasets written by hlofast are not entered.
    pub fn from_listing(files: Vec<Found>, roots: &[String], store: Arc<dyn Store>) -> Self {
        let (mut files, roots) = below_directories(without_datasets(files), roots);
        let kind = |file: &Found| match file.is_folder {
            true => Kind::Folder,
            false => name::parse(&file.name).kind,
        };
        let mut kinds: Vec<Kind> = files.iter().map(kind).collect();
        let is_unclear = |at: &usize| kinds[*at] == Kind::Other && files[*at].trouble.is_none();
        let unclear: Vec<usize> = (0..files.len()).filter(is_unclear).collect();
        let by_content = |at: usize| kind_by_content(&files[unclear[at]], &*store);
        for (at, kind) in unclear.iter().zip(all(&*store, unclear.len(), by_content)) {
            match kind {
                Ok(kind) => kinds[*at] = kind,
                Err(error) => files[*at].trouble = Some(Trouble::Failed(reason(&error))),
            }
        }
        let names = files.iter().zip(&kinds);
        let names: Vec<FileName<'_>> =
            names.map(|(file, kind)| FileName { kind: *kind, ..name::parse(&file.name) }).collect();
        let programs = programs(&files, &names, &roots);
        let own = files.len();
        let meshes_before = programs.list.iter().map(|_| OnceLock::new()).collect();
        Self { kinds, programs, found: files, roots, own, store, meshes_before }
    }

    /// A survey of some of the files, for reading elsewhere. It includes neighbouring files and
    /// facts about programs, so that reading gives the same result. Also returns the numbers of the
    /// programs in this survey.
    pub fn part(&self, range: Range<usize>) -> (Self, Vec<u32>) {
        let range = range.start.min(self.own)..range.end.min(self.own);
        let beside = range.clone().flat_map(|file| self.beside(file as u32));
        let beside: BTreeSet<u32> =
            beside.filter(|file| !range.contains(&(*file as usize))).collect();
        let own = range.len();
        let files: Vec<u32> = range.map(|file| file as u32).chain(beside).collect();
        let new_numbers: HashMap<u32, u32> = files.iter().copied().zip(0..).collect();
        let new_number = |file: u32| new_numbers.get(&file).copied();
        let of = |file: &u32| self.programs.of_file.get(*file as usize).copied().unwrap_or(NONE);
        let numbers: BTreeSet<u32> =
            files.iter().map(of).filter(|number| *number != NONE).collect();
        let numbers: Vec<u32> = numbers.into_iter().collect();
        let place = |number: u32| numbers.binary_search(&number).map_or(NONE, |at| at as u32);
        let list = numbers.iter().map(|number| {
            let program = &self.programs.list[*number as usize];
            let mut files: Vec<u32> =
                program.files.iter().filter_map(|file| new_number(*file)).collect();
            files.sort_unstable();
            Program {
                files,
                canonical: program.canonical.and_then(new_number),
                before: program.before.and_then(new_number),
                after: program.after.and_then(new_number),
                partner: program.partner.map(place).filter(|partner| *partner != NONE),
                key: program.key.clone(),
                folder: program.folder.clone(),
                host: program.host.clone(),
                module_name: program.module_name.clone(),
                ..*program
            }
        });
        let list = list.collect();
        let of_file = files.iter().map(|file| place(of(file))).collect();
        let survey = Self {
            found: files.iter().map(|file| self.found[*file as usize].clone()).collect(),
            kinds: files.iter().map(|file| self.kinds[*file as usize]).collect(),
            programs: Programs { list, of_file },
            roots: self.roots.clone(),
            own,
            store: Arc::clone(&self.store),
            meshes_before: numbers.iter().map(|_| OnceLock::new()).collect(),
        };
        (survey, numbers)
    }

    /// The parsed name of a file, with the kind that was determined.
    pub fn name(&self, file: u32) -> FileName<'_> {
        let entry = &self.found[file as usize];
        FileName { kind: self.kinds[file as usize], ..name::parse(&entry.name) }
    }

    /// The program of a file.
    pub fn program_of(&self, file: u32) -> Option<&Program> {
        let number = *self.programs.of_file.get(file as usize)?;
        (number != NONE).then(|| &self.programs.list[number as usize])
    }
}

/// Limit on the possibly identical files that are read in succession.
const MOST_ALIKE: usize = 16;

impl Survey {
    /// How many files, starting with this one, may be modules with identical bytes, which XLA
    /// writes around passes that change nothing. Candidates have the same size and are neighbours
    /// or have one file between them, because XLA may write a protobuf beside each text. 1 if
    /// nothing suggests identical files.
    pub fn alike(&self, file: usize) -> usize {
        let files = self.found.get(file..).unwrap_or_default();
        let kinds = self.kinds.get(file..).unwrap_or_default();
        let size = |at: usize| match kinds.get(at) {
            Some(Kind::Module) => files.get(at).map(|entry| entry.bytes),
            _ => None,
        };
        let has_twin = |at: usize| {
            let own = size(at);
            own.is_some() && (own == size(at - 1) || at > 1 && own == size(at - 2))
        };
        let last = (2..MOST_ALIKE).take_while(|at| has_twin(*at)).last();
        match last {
            Some(last) if size(0).is_some() && size(1).is_some() => last + 1,
            _ if size(0).is_some() && has_twin(1) => 2,
            _ => 1,
        }
    }

    /// XLA's memory files about the module in a file.
    pub fn memory_files(&self, module: u32) -> impl Iterator<Item = &Found> {
        self.memory_of(module).map(|memory| &self.found[memory as usize])
    }

    fn memory_of(&self, module: u32) -> impl Iterator<Item = u32> {
        let program = self.program_of(module);
        let files = program.map_or(&[][..], |program| &program.files[..]);
        let is_about = move |memory: &u32| {
            // Most files are excluded by their kind. Names cost more: every module asks for all files
            // of its program.
            self.kinds[*memory as usize] == Kind::Memory
                && self.is_named_after(*memory, module)
                && self.module_of(*memory) == Some(module)
        };
        files.iter().copied().filter(is_about)
    }

    /// The module that a memory file describes: the name of the memory file begins with the name of
    /// the module. A text is preferred to a protobuf.
    pub fn module_of(&self, memory: u32) -> Option<u32> {
        if self.kinds[memory as usize] != Kind::Memory {
            return None;
        }
        let is_module = |file: &&u32| self.kinds[**file as usize] == Kind::Module;
        let modules = self.program_of(memory)?.files.iter().filter(is_module);
        let named = modules.filter(|module| self.is_named_after(memory, **module));
        named.min_by_key(|file| self.name(**file).suffix.ends_with("pb")).copied()
    }

    /// The other files needed to read a file: for a module its memory files and the module before
    /// optimisation, for a memory file its module.
    fn beside(&self, file: u32) -> Vec<u32> {
        self.memory_of(file).chain(self.module_of(file)).chain(self.before(file)).collect()
    }

    /// Whether the name of a memory file extends the name of a module.
    fn is_named_after(&self, memory: u32, module: u32) -> bool {
        let name = |file: u32| name::without_compression(&self.found[file as usize].name);
        let own = name(module);
        let stem = [".hlo.pb", ".pb", ".hlo.txt", ".txt", ".hlo"];
        let stem = stem.iter().find_map(|end| own.strip_suffix(end)).unwrap_or(own);
        name(memory).strip_prefix(stem).is_some_and(|rest| rest.starts_with('-'))
    }

    /// The key of the program that a log announces as `label`.
    pub fn label_key(&self, log: u32, label: &str) -> String {
        label_key(&self.found[log as usize], label, &self.roots)
    }
}

/// The kind of a file by its first bytes.
fn kind_by_content(file: &Found, store: &dyn Store) -> io::Result<Kind> {
    Ok(match sniff(&head(file, store)?) {
        Content::Hlo | Content::Proto => Kind::Module,
        Content::HloInside => Kind::Log,
        Content::Memory => Kind::Memory,
        Content::Mlir => Kind::Ir,
        Content::Archive => Kind::Archive,
        _ => Kind::Other,
    })
}

/// The first bytes of a file, after decompression.
pub(super) fn head(file: &Found, store: &dyn Store) -> io::Result<Vec<u8>> {
    let bytes = store.read(file, HEAD as u64)?;
    // Decompression errors are reported when the file is read.
    Ok(match Compression::of(&bytes) {
        Some(_) => decompress_head(&bytes, HEAD),
        None => bytes,
    })
}
