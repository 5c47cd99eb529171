//! Supplies the bytes of files.

use super::walk::Found;
use memchr::memmem;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read};
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Supplies the contents of files, from disk or from the caller's storage.
pub trait Store: Debug + Send + Sync {
    /// The first `most` bytes of a file.
    fn read(&self, file: &Found, most: u64) -> io::Result<Vec<u8>>;

    /// Whether the first `most` bytes of a file contain `word`.
    fn contains(&self, file: &Found, most: u64, word: &[u8]) -> io::Result<bool> {
        Ok(memmem::find(&self.read(file, most)?, word).is_some())
    }

    /// How many files are best read concurrently.
    fn at_once(&self) -> usize {
        1
    }
}

/// The results of `read` for all numbers below `count`, on as many threads as `store` prefers.
pub(super) fn all<T: Send>(
    store: &dyn Store,
    count: usize,
    read: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let numbers = iter::repeat_with(|| next.fetch_add(1, Relaxed)).take_while(|at| *at < count);
        numbers.map(|at| (at, read(at))).collect::<Vec<_>>()
    };
    let mut results = thread::scope(|scope| {
        let others = 1..store.at_once().min(count);
        // If a thread cannot be started, the existing threads do the work.
        let others = others.filter_map(|_| thread::Builder::new().spawn_scoped(scope, work).ok());
        let others: Vec<_> = others.collect();
        let mut results = work();
        results.extend(others.into_iter().filter_map(|thread| thread.join().ok()).flatten());
        results
    });
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Files that the system opens by their paths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Store for Disk {
    fn read(&self, file: &Found, most: u64) -> io::Result<Vec<u8>> {
        let opened = File::open(&file.path)?;
        let expected = opened.metadata()?.len().saturating_add(1).min(most);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(expected).unwrap_or(usize::MAX))?;
        opened.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn contains(&self, file: &Found, most: u64, word: &[u8]) -> io::Result<bool> {
        contains(File::open(&file.path)?.take(most), word)
    }
}

/// Whether `reader` supplies `word`, without holding all that it supplies.
pub(super) fn contains(mut reader: impl Read, word: &[u8]) -> io::Result<bool> {
    const PIECE: usize = 1 << 20;
    let mut held = Vec::with_capacity(PIECE + word.len());
    let finder = memmem::Finder::new(word);
    loop {
        let before = held.len();
        reader.by_ref().take(PIECE as u64).read_to_end(&mut held)?;
        if finder.find(&held).is_some() {
            return Ok(true);
        }
        if held.len() == before {
            return Ok(false);
        }
        // The word may begin at the end of this piece.
        held.drain(..held.len().saturating_sub(word.len()));
    }
}
