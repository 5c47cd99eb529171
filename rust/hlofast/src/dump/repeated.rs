//! Reuses results for files with identical bytes: hosts dump the same program, and passes that
//! change nothing dump the same module. The result of one file holds for the others if each
//! contains exactly one module and no neighbouring file adds information.

use super::analyse::ModuleTables;
use crate::time::Device;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Recent results. Files that are read concurrently are analysed separately.
#[derive(Debug, Default)]
pub struct Repeated {
    /// Bytes that may be kept.
    limit: usize,
    state: Mutex<State>,
}

type Digest = [u8; 16];

#[derive(Debug, Default)]
struct State {
    kept: HashMap<Digest, Kept>,
    /// Oldest first.
    order: VecDeque<Digest>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    device: Option<Device>,
    result: Arc<Found>,
    bytes: usize,
}

/// The result of a file.
#[derive(Debug)]
pub(super) struct Found {
    /// The tables of its one module.
    pub analysed: ModuleTables,
    /// Bytes of its text.
    pub text_bytes: u64,
}

impl Repeated {
    /// The default for scans, in bytes.
    pub const USUAL: usize = 16 << 20;

    /// Keeps about `limit` bytes; 0 keeps nothing.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    /// The result of a file with this digest, if it was analysed for this device.
    pub(super) fn get(&self, digest: &Digest, device: Option<&Device>) -> Option<Arc<Found>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = state.kept.get(digest).filter(|kept| kept.device.as_ref() == device)?;
        Some(Arc::clone(&kept.result))
    }

    /// Keeps the result of a file, evicting the oldest ones for space.
    pub(super) fn put(
        &self,
        digest: Digest,
        device: Option<&Device>,
        analysed: &ModuleTables,
        text_bytes: u64,
    ) {
        if analysed.heap_bytes() > self.limit / 4 {
            return;
        }
        let analysed = analysed.with_rows();
        let bytes = analysed.heap_bytes() + size_of::<Kept>() + 4 * size_of::<Digest>();
        let result = Arc::new(Found { analysed, text_bytes });
        let kept = Kept { device: device.cloned(), result, bytes };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes += bytes;
        match state.kept.insert(digest, kept) {
            Some(other) => state.bytes -= other.bytes,
            None => state.order.push_back(digest),
        }
        while state.bytes > self.limit {
            let Some(oldest) = state.order.pop_front() else { break };
            state.bytes -= state.kept.remove(&oldest).map_or(0, |kept| kept.bytes);
        }
    }
}
