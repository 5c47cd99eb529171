//! What `CostData` counted, and the columns made of it so far.

use crate::held::Held;
use hlofast::comms::{Collectives, collectives};
use hlofast::cost::Cost;
use hlofast::flow::{Attribution, AttributionOptions, Rules, attribution};
use std::sync::{Arc, OnceLock};

/// What was counted, and the columns made of it so far.
pub struct Counted {
    pub held: Arc<Held>,
    pub cost: Arc<Cost>,
    /// The custom calls whose FLOPs the caller states, ascending.
    pub stated: Vec<u32>,
    pub rules: Rules,
    pub attribution: OnceLock<Attribution>,
    pub multiplicity: OnceLock<Vec<i64>>,
    pub bytes_accessed: OnceLock<Vec<i64>>,
    pub provenance: OnceLock<Vec<u8>>,
    pub phase: OnceLock<Vec<u8>>,
}

impl Counted {
    pub fn attribution(&self) -> &Attribution {
        if self.rules.is_empty() {
            return self.held.attribution();
        }
        self.attribution.get_or_init(|| {
            let options = AttributionOptions { rules: self.rules.clone() };
            attribution(&self.held.core, &options)
        })
    }

    /// The collectives; those of the text alone are found once per module.
    pub fn collectives(&self) -> Arc<Collectives> {
        if self.rules.is_empty() && Arc::ptr_eq(&self.cost, self.held.cost()) {
            return Arc::clone(self.held.collectives());
        }
        Arc::new(collectives(&self.held.core, &self.cost, self.attribution()))
    }

    /// By row: how often the totals count it; -1 beyond 64 bits.
    pub fn multiplicity(&self) -> &[i64] {
        self.multiplicity.get_or_init(|| {
            let core = &self.held.core;
            let mut column = Vec::with_capacity(core.row_count());
            for (computation, count) in core.computations().iter().zip(&self.cost.executions) {
                column.resize(computation.end_row as usize, count.unwrap_or(-1));
            }
            column
        })
    }

    /// By row: bytes read and written in all memory spaces.
    pub fn bytes_accessed(&self) -> &[i64] {
        if self.cost.is_xla {
            return &self.cost.bytes_accessed;
        }
        self.bytes_accessed.get_or_init(|| {
            let read = self.cost.bytes_read.iter();
            let mut column: Vec<i64> = read
                .zip(&self.cost.bytes_written)
                .map(|(read, written)| read.saturating_add(*written))
                .collect();
            for entry in &self.cost.other_memory {
                let bytes = &mut column[entry.row as usize];
                *bytes = bytes.saturating_add(entry.read).saturating_add(entry.written);
            }
            column
        })
    }

    pub fn provenance(&self) -> &[u8] {
        self.provenance
            .get_or_init(|| self.cost.provenance.iter().map(|known| *known as u8).collect())
    }

    pub fn phase(&self) -> &[u8] {
        self.phase.get_or_init(|| {
            let phases = &self.attribution().phase[..self.held.core.row_count()];
            phases.iter().map(|phase| *phase as u8).collect()
        })
    }
}
