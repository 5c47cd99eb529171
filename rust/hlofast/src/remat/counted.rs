//! The memory that a module needs at its peak, under one of several rules.

use super::residuals::shape_at;
use crate::cost::Backend;
use crate::flow::origin::Place;
use crate::ir::intern::BuildMix;
use crate::ir::{FAST_SPACE, HOST_SPACE, Module, Row};
use crate::memory::{
    Memory, MemoryError, Options, Order, Rule, Space, Tables, memory, xla_account,
};
use hashbrown::HashSet;

/// How the peak is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counting {
    /// How live ranges are counted. Under [`Rule::Xla`], the peak is the HBM peak of XLA's own
    /// account (`XlaAccount::hbm_peak`), for the module's own order and sizes.
    pub memory: Options,
    /// For [`Rule::Xla`]: how the device rounds pointer tables, if known.
    pub tables: Option<Tables>,
}

impl Counting {
    /// How to count a peak that is compared with the memory of a device: XLA's account for scheduled
    /// TPU modules, live bytes for other modules.
    pub fn usual(module: &Module, tables: Option<Tables>) -> Self {
        let is_compiled = Backend::of_module(module) == Backend::Tpu && module.is_scheduled();
        let is_counted = is_compiled && xla_account(module, tables).is_ok();
        let rule = if is_counted { Rule::Xla } else { Rule::InPlace };
        Self { memory: Options { rule, ..Options::default() }, tables }
    }
}

/// The memory that a module needs at its peak.
pub(super) struct AtPeak<'a> {
    /// Bytes at the peak.
    pub peak: i64,
    /// The memory space with the most bytes at the peak.
    pub space: i64,
    step: u32,
    /// Live ranges.
    memory: Memory,
    module: &'a Module,
}

/// Counts the memory that `module` needs.
pub(super) fn count<'a>(
    module: &'a Module,
    counting: &Counting,
) -> Result<AtPeak<'a>, MemoryError> {
    let options = &counting.memory;
    if options.rule != Rule::Xla {
        let memory = memory(module, options)?;
        let space = match options.space {
            Space::One(space) => space,
            Space::All => 0,
        };
        let (peak, step) = (memory.peak.bytes, memory.peak.step);
        return Ok(AtPeak { peak, space, step, memory, module });
    }
    let account = xla_account(module, counting.tables)?;
    let space = Space::One(0);
    let memory = memory(module, &Options { space, order: Order::Text, ..*options })?;
    Ok(AtPeak { peak: account.hbm_peak(), space: 0, step: account.hbm.step, memory, module })
}

impl AtPeak<'_> {
    /// The instruction that runs at the peak.
    pub fn peak_row(&self) -> Option<Row> {
        self.memory.sequence().get(self.step as usize).map(|row| Row(*row))
    }

    /// The values that take memory at the peak: instructions and parts of their results.
    pub fn alive(&self, module: &Module) -> HashSet<(Row, u32), BuildMix> {
        let live = self.memory.live_at(module, self.step).into_iter();
        live.filter(|value| value.bytes > 0).map(|value| (value.row, value.part)).collect()
    }

    /// Whether the value at `place` is in `values`.
    pub fn is_one_of(
        &self,
        module: &Module,
        place: &Place,
        values: &HashSet<(Row, u32), BuildMix>,
    ) -> bool {
        let part = part(module, place);
        let maker = part.and_then(|part| self.memory.maker_of(place.row, part));
        maker.is_some_and(|maker| values.contains(&maker))
    }

    /// Where a value is kept if it takes no counted memory.
    pub fn kept_elsewhere(&self, held: &[Place]) -> Option<&'static str> {
        let shapes = self.module.shapes();
        let arrays = held.iter().filter_map(|place| shapes.array(shape_at(self.module, place)?));
        let mut spaces = arrays.map(|array| array.layout.map_or(0, |layout| layout.memory_space));
        let first = spaces.next()?;
        if first == self.space || spaces.any(|space| space == self.space) {
            return None;
        }
        Some(match first {
            FAST_SPACE => "kept in fast memory",
            HOST_SPACE => "kept in host memory",
            0 => "kept in main memory",
            _ => "kept in another memory space",
        })
    }
}

/// The number of the part of the row's result at `place`.
pub(super) fn part(module: &Module, place: &Place) -> Option<u32> {
    let shapes = module.shapes();
    let mut shape = module.shape(place.row);
    let mut part = 0u32;
    for index in place.path.iter().rev() {
        let elements = shapes.tuple(shape)?;
        let before = elements.get(..*index as usize)?;
        let parts = before.iter().map(|element| shapes.node_count(*element));
        part = parts.fold(part.checked_add(1)?, u32::saturating_add);
        shape = *elements.get(*index as usize)?;
    }
    Some(part)
}
