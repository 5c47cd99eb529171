//! Names of mesh axes that only the module before optimisation has. The names are in its header, so
//! only the start of the file is read, once per program.

use super::store::{Disk, Store};
use super::survey::Survey;
use super::walk::Found;
use crate::comms::{DerivedMesh, derive_mesh};
use crate::text::{Compression, Source, decompress, decompress_head};
use crate::{Options, parse, proto};
use memchr::{memchr, memmem};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes to read from the start of a file, in growing steps, until its first line ends. The header
/// of a program with 500 arrays takes 20 kB.
const STEPS: [u64; 3] = [1 << 16, 1 << 20, 1 << 24];

/// Maximum size of a protobuf, which has to be read whole because its header may be anywhere.
const MOST_PROTO: u64 = 1 << 30;

/// The header attribute that names axes.
const MESHES: &[u8] = b"xla.sdy.meshes";

/// A minimal body that turns a header into a module.
const BODY: &[u8] = b"\nENTRY e { ROOT p = f32[] parameter(0) }";

/// By program: the mesh of its module before optimisation, once that module was read.
pub type MeshesBefore = Arc<[OnceLock<Option<DerivedMesh>>]>;

impl Survey {
    /// The module before optimisation of the program of `file`; None if `file` is that module.
    pub fn before(&self, file: u32) -> Option<u32> {
        let program = self.program_of(file)?;
        let partner = || self.programs.list.get(program.partner? as usize)?.before;
        program.before.or_else(partner).filter(|before| *before != file)
    }

    /// The mesh that the module before optimisation names; None if there is no such module or it
    /// cannot be read.
    pub fn mesh_before(&self, file: u32) -> Option<&DerivedMesh> {
        let before = self.found.get(self.before(file)? as usize)?;
        let number = *self.programs.of_file.get(file as usize)?;
        let read = || mesh_in(before, &*self.store);
        self.meshes_before.get(number as usize)?.get_or_init(read).as_ref()
    }
}

/// The source of axis names for a module.
#[derive(Clone, Copy, Debug)]
pub struct AxisNames<'a> {
    /// The survey that contains the module.
    pub survey: &'a Survey,
    /// The file of the module.
    pub file: u32,
}

impl<'a> AxisNames<'a> {
    /// The mesh of the module before optimisation.
    pub fn mesh(self) -> Option<&'a DerivedMesh> {
        self.survey.mesh_before(self.file)
    }

    /// A digest of that mesh.
    pub fn digest(self) -> String {
        let mesh = self.mesh().map(|before| format!("{:?}", before.mesh));
        mesh.map_or(String::new(), |mesh| format!("{:016x}", xxh3_64(mesh.as_bytes())))
    }
}

/// The mesh that the header of the module in the file at `path` names; None if the header names no
/// mesh or cannot be read.
pub fn header_mesh(path: &Path) -> Option<DerivedMesh> {
    mesh_in(&Found::listed(path.to_owned(), &[]), &Disk)
}

fn mesh_in(found: &Found, store: &dyn Store) -> Option<DerivedMesh> {
    let mut text = header(found, store)?;
    memmem::find(&text, MESHES)?;
    text.extend_from_slice(BODY);
    let module = parse(Source::from_slice(&text), &Options::default()).ok()?;
    derive_mesh(&module)
}

/// The first line of a module's text.
fn header(found: &Found, store: &dyn Store) -> Option<Vec<u8>> {
    for most in STEPS {
        let bytes = store.read(found, most).ok()?;
        let is_cut = bytes.len() as u64 >= most;
        let mut head = match Compression::of(&bytes) {
            Some(_) => decompress_head(&bytes, most as usize),
            None => bytes,
        };
        if head.starts_with(b"HloModule") {
            if let Some(end) = memchr(b'\n', &head) {
                head.truncate(end);
                return Some(head);
            }
        } else if proto::is_proto(&head) {
            return header_of_proto(found, store);
        } else if !head.is_empty() {
            return None;
        }
        // A compressed file may need more bytes to begin with.
        if !is_cut && (head.len() as u64) < most {
            return None;
        }
    }
    None
}

/// The first line of a protobuf written as text; None if the protobuf names no meshes.
fn header_of_proto(found: &Found, store: &dyn Store) -> Option<Vec<u8>> {
    let bytes = store.read(found, MOST_PROTO).ok()?;
    let bytes = decompress(&bytes, Some(MOST_PROTO)).ok()?.unwrap_or(bytes);
    memmem::find(&bytes, MESHES)?;
    let mut text = proto::to_text(&bytes).ok()?.text;
    text.truncate(memchr(b'\n', &text)?);
    Some(text)
}
