//! What lies below some folders: the files, what each is, and the programs they belong to.

use super::group::{NONE, Program, Programs, programs};
use super::kind::{Kind, Stage};
use super::name::{self, FileName};
use super::sniff::{Content, HEAD, sniff};
use super::walk::{Found, Trouble, reason, walk};
use crate::text::{Compression, decompress_head};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The files below some folders, by path.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The files, and the folders that could not be entered.
    pub found: Vec<Found>,
    /// By file: what it is, by its name or else by its first bytes.
    pub kinds: Vec<Kind>,
    /// The programs.
    pub programs: Programs,
}

impl Survey {
    /// Looks at everything below `roots`. Files whose name says nothing are opened, since a dump may
    /// have been saved under any name.
    pub fn new(roots: &[PathBuf]) -> Self {
        let mut found = walk(roots);
        let mut kinds = Vec::with_capacity(found.len());
        for file in &mut found {
            let kind = match name::parse(&file.name).kind {
                _ if file.is_folder => Kind::Folder,
                Kind::Other if file.trouble.is_none() => kind_by_content(file),
                kind => kind,
            };
            kinds.push(kind);
        }
        let names = found.iter().zip(&kinds);
        let names: Vec<FileName<'_>> =
            names.map(|(file, kind)| FileName { kind: *kind, ..name::parse(&file.name) }).collect();
        let roots: Vec<String> =
            roots.iter().map(|root| root.to_string_lossy().into_owned()).collect();
        let programs = programs(&found, &names, &roots);
        Self { kinds, programs, found }
    }

    /// The name of a file, taken apart; its kind is the one that was found out.
    pub fn name(&self, file: u32) -> FileName<'_> {
        let found = &self.found[file as usize];
        FileName { kind: self.kinds[file as usize], ..name::parse(&found.name) }
    }

    /// The program of a file.
    pub fn program_of(&self, file: u32) -> Option<&Program> {
        let number = *self.programs.of_file.get(file as usize)?;
        (number != NONE).then(|| &self.programs.list[number as usize])
    }
}

impl Survey {
    /// XLA's buffer assignment of the module in a file, if there is one beside it.
    pub fn buffer_assignment(&self, file: u32) -> Option<&Found> {
        if !self.name(file).stage.is_some_and(Stage::is_after) {
            return None;
        }
        let own = name::without_compression(&self.found[file as usize].name);
        let own = own.strip_suffix(".txt")?;
        let is_beside = |other: &&Found| {
            let other = name::without_compression(&other.name);
            other.strip_prefix(own) == Some("-buffer-assignment.txt")
        };
        let files = self.program_of(file)?.files.iter();
        files.map(|other| &self.found[*other as usize]).find(is_beside)
    }
}

/// What a file is by its first bytes; what the system refuses is noted.
fn kind_by_content(file: &mut Found) -> Kind {
    match head(&file.path) {
        Ok(head) => match sniff(&head) {
            Content::Hlo | Content::Proto => Kind::Module,
            Content::HloInside => Kind::Log,
            Content::Memory => Kind::Memory,
            Content::Mlir => Kind::Ir,
            Content::Archive => Kind::Archive,
            _ => Kind::Other,
        },
        Err(error) => {
            file.trouble = Some(Trouble::Failed(reason(&error)));
            Kind::Other
        }
    }
}

/// The first bytes of a file, of a compressed one those of what is in it.
pub fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(HEAD);
    File::open(path)?.take(HEAD as u64).read_to_end(&mut bytes)?;
    // What cannot be decompressed is looked at when it is read.
    Ok(match Compression::of(&bytes) {
        Some(_) => decompress_head(&bytes, HEAD),
        None => bytes,
    })
}
