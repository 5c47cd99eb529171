//! Where the bytes of files come from.

use super::walk::Found;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read};

/// Where the bytes of files come from: the disk, or whatever the caller has.
pub trait Store: Debug + Send + Sync {
    /// The first bytes of a file, all of them if they are not more than `most`.
    fn read(&self, found: &Found, most: u64) -> io::Result<Vec<u8>>;
}

/// Files that the system opens by their paths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Store for Disk {
    fn read(&self, found: &Found, most: u64) -> io::Result<Vec<u8>> {
        let file = File::open(&found.path)?;
        let expected = file.metadata()?.len().saturating_add(1).min(most);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(expected).unwrap_or(usize::MAX))?;
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
