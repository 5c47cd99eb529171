//! Reuses results for files with identical bytes: hosts dump the same program, and passes that
//! change nothing dump the same module. The result of one file applies to another with the same
//! bytes if both contain exactly one module and no neighbouring file adds information.

use super::analyse::ModuleTables;
use super::names::AxisNames;
use crate::comms::DerivedMesh;
use crate::time::Device;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Recent results. Files that are read concurrently are analysed separately.
#[derive(Debug, Default)]
pub struct Repeated {
    /// Maximum bytes kept.
    limit: usize,
    /// The sizes that several files have; no other file can repeat one.
    sizes: OnceLock<HashSet<u64>>,
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
    result: Arc<OfFile>,
    bytes: usize,
}

/// The result of a file.
#[derive(Debug)]
pub(super) struct OfFile {
    /// The tables of its one module.
    pub analysed: ModuleTables,
    /// The mesh of the module before optimisation, if the text does not name its axes.
    before: Option<DerivedMesh>,
    /// Bytes of the file's text.
    pub text_bytes: u64,
}

impl Repeated {
    /// The default for scans, in bytes.
    pub const USUAL: usize = 16 << 20;

    /// Keeps up to `limit` bytes of results; 0 keeps nothing.
    pub fn new(limit: usize) -> Self {
        Self { limit, sizes: OnceLock::new(), state: Mutex::default() }
    }

    fn may_repeat(&self, names: AxisNames<'_>) -> bool {
        let found = &names.survey.found;
        let sizes = self.sizes.get_or_init(|| {
            let mut met = HashSet::new();
            found.iter().map(|entry| entry.bytes).filter(|bytes| !met.insert(*bytes)).collect()
        });
        found.get(names.file as usize).is_some_and(|entry| sizes.contains(&entry.bytes))
    }

    /// The result of a file with this digest, if the file was analysed for this device and with the
    /// same axis names.
    pub(super) fn get(
        &self,
        digest: &Digest,
        device: Option<&Device>,
        names: AxisNames<'_>,
    ) -> Option<Arc<OfFile>> {
        let result = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = state.kept.get(digest).filter(|kept| kept.device.as_ref() == device)?;
            Arc::clone(&kept.result)
        };
        let holds = !result.analysed.lacks_axis_names || result.before.as_ref() == names.mesh();
        holds.then_some(result)
    }

    /// Keeps the result of a file and evicts the oldest results for space.
    pub(super) fn put(
        &self,
        digest: Digest,
        device: Option<&Device>,
        names: AxisNames<'_>,
        analysed: &ModuleTables,
        text_bytes: u64,
    ) {
        if analysed.heap_bytes() > self.limit / 4 || !self.may_repeat(names) {
            return;
        }
        let analysed = analysed.with_rows();
        let bytes = analysed.heap_bytes() + size_of::<Kept>() + 4 * size_of::<Digest>();
        let before = if analysed.lacks_axis_names { names.mesh().cloned() } else { None };
        let result = Arc::new(OfFile { analysed, before, text_bytes });
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
