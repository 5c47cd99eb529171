//! Files with the same bytes: hosts dump the same program, and passes that change nothing the same
//! module. What was found in one of them holds for the others.

use super::analyse::Analysed;
use crate::time::Device;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What was found lately in files that are one module, and which of these are being read.
#[derive(Debug, Default)]
pub struct Repeated {
    /// Bytes that may be kept.
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first.
    kept: VecDeque<Kept>,
    bytes: usize,
    under_way: Vec<UnderWay>,
}

/// The bytes of files and the device that they are analysed for.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    digest: [u8; 16],
    device: Option<Device>,
}

#[derive(Debug)]
struct Kept {
    key: Key,
    /// None: nothing that could be shared, so every file is read for itself.
    common: Option<Arc<Common>>,
}

#[derive(Debug)]
struct UnderWay {
    key: Key,
    file: u32,
    /// Files with the same bytes.
    waiting: Vec<u32>,
    common: Option<Arc<Common>>,
}

/// What was found in a file.
#[derive(Debug)]
pub(super) struct Common {
    /// The tables of its one module.
    pub analysed: Analysed,
    /// Bytes of its text.
    pub text_bytes: u64,
}

/// What is known of a file with the bytes of another.
#[derive(Debug)]
pub(super) enum Seen {
    /// What was found in the other.
    Before(Arc<Common>),
    /// The other is being read.
    UnderWay,
    /// Nothing; now it is the one being read.
    Not,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.common.as_ref().map_or(0, |common| common.analysed.heap_bytes()) + size_of::<Self>()
    }
}

impl Repeated {
    /// Keeps about `limit` bytes; 0 shares nothing.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of `file`, whose bytes have this digest, if it is analysed for `device`.
    pub(super) fn begin(&self, file: u32, digest: &[u8; 16], device: Option<&Device>) -> Seen {
        if self.limit == 0 {
            return Seen::Not;
        }
        let key = Key { digest: *digest, device: device.cloned() };
        let mut state = self.state();
        // The same bytes mostly come again soon.
        if let Some(kept) = state.kept.iter().rev().find(|kept| kept.key == key) {
            return kept.common.as_ref().map_or(Seen::Not, |own| Seen::Before(Arc::clone(own)));
        }
        if let Some(other) = state.under_way.iter_mut().find(|other| other.key == key) {
            other.waiting.push(file);
            return Seen::UnderWay;
        }
        state.under_way.push(UnderWay { key, file, waiting: Vec::new(), common: None });
        Seen::Not
    }

    /// Keeps what was found in `file` if it is one whose bytes may come again.
    pub(super) fn put(&self, file: u32, analysed: &Analysed, text_bytes: u64) {
        let is_under_way = self.state().under_way.iter().any(|own| own.file == file);
        if !is_under_way || analysed.heap_bytes() > self.limit / 4 {
            return;
        }
        let common = Arc::new(Common { analysed: analysed.clone(), text_bytes });
        if let Some(own) = self.state().under_way.iter_mut().find(|own| own.file == file) {
            own.common = Some(common);
        }
    }

    /// Says that `file` is no longer being read, for whatever reason. The files that waited for it
    /// are to be read now.
    pub fn end(&self, file: u32) -> Vec<u32> {
        let mut state = self.state();
        let Some(at) = state.under_way.iter().position(|own| own.file == file) else {
            return Vec::new();
        };
        let UnderWay { key, waiting, common, .. } = state.under_way.swap_remove(at);
        let kept = Kept { key, common };
        state.bytes += kept.bytes();
        state.kept.push_back(kept);
        while state.bytes > self.limit {
            let Some(oldest) = state.kept.pop_front() else { break };
            state.bytes -= oldest.bytes();
        }
        waiting
    }
}
