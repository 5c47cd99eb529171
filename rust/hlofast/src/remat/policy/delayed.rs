//! What waits until after the backward loop on v5e and v6e, in the order of the list scheduler.
//!
//! Where weights are gathered in rings, the gradient of the head is made in a ring too. The permute that ends the ring
//! frees nothing, so the list scheduler runs it after the backward loop. To hide the permute, the latency hiding
//! scheduler runs the whole ring right before it: the gradient of the logits and the head's input are in memory while
//! the layers run backward. It delays rings in the backward body in the same way (`share`), and on v5e it fills the
//! wait with a gather that only the loss reads, so that the float32 logits wait as well. In the text of a program that
//! does not fit, XLA has rematerialised these logits after the backward loop (`restored`). Found in dumps of the passes
//! of libtpu 0.0.42 on the programs in `tests/fixtures/policy_rings.py`, and of the ring alone on those in
//! `policy_exchanged.py`.

use super::base::Changes;
use super::chip::Chip;
use super::counted::{Counted, OrderOf};
use super::scans::Scan;
use super::waiting::readers;
use crate::flow::without_clone_number;
use crate::ir::intern::BuildMix;
use crate::ir::{FAST_SPACE, Module, Opcode, Row};
use crate::memory::Scheduler::List;
use crate::memory::{LiveValue, Memory};
use hashbrown::HashSet;
use std::ops::RangeInclusive;

/// Values of fewer bytes do not matter.
const LEAST: i64 = 1 << 20;

type Change = (RangeInclusive<u32>, i64);
type Rows = HashSet<Row, BuildMix>;

/// What waits if the module is in the order of the list scheduler.
#[derive(Debug, Default)]
pub struct Delayed {
    /// The rows of rings that end after the backward loop.
    pub rings: Rows,
    /// The changes of bytes if these rows run after the backward loop.
    pub held: Vec<Change>,
    /// The changes of bytes if XLA had not rematerialised what is read after the backward loop.
    pub restored: Vec<Change>,
    /// The share of the gradients of an MLP that waits for the gradient of the scores; None if not known.
    pub share: Option<f64>,
}

/// The share of the gradients of an MLP's weights that waits for the gradient of the scores, by chip. All three rings
/// of `dense_v5e_16`, `long_v5e_16` and `rings_long_v5e_16` do; one of three of `dense_v6e_8`, `long_v6e_8` and
/// `rings_long_v6e_16`, where permutes take less time. None for chips whose latency hiding scheduler is not modelled.
fn share(chip: Option<Chip>) -> Option<f64> {
    match chip {
        Some(Chip::V5e) => Some(1.0),
        Some(Chip::V6e) => Some(1.0 / 3.0),
        _ => None,
    }
}

impl Delayed {
    /// What changes in the order of a scheduler. As XLA's memory scheduler counts it, that is what XLA has
    /// rematerialised behind the loop; as a program is compiled in the list's order, the rings.
    pub fn of_order(
        module: &Module,
        (memory, values): (&Memory, &[LiveValue]),
        scans: &[Scan],
        (sizes, Counted { chip, order, .. }): (&[i64], Counted<'_>),
    ) -> Self {
        let place = Place::new(module, memory, scans).filter(|_| share(chip).is_some());
        let Some(place) = place else { return Self::default() };
        let is_list = matches!(order, OrderOf::Scheduled(List) | OrderOf::Compiled(List));
        let rings = if is_list { place.rings(scans) } else { Rows::default() };
        match order {
            OrderOf::Scheduled(_) => {
                Delayed { rings, restored: place.restored(values, is_list), ..Self::default() }
            }
            _ => Delayed { held: place.held(values, &rings, sizes), ..Self::default() },
        }
    }

    /// Adds the changes that do not depend on the policy.
    pub fn add_to(&self, bytes: &mut Changes<'_>) {
        let every = self.held.iter().chain(&self.restored);
        every.for_each(|(steps, size)| bytes.add(steps.clone(), *size));
    }

    /// What changes in the text's order if the `rings` of the list's order wait.
    pub fn of_text(
        module: &Module,
        (memory, values): (&Memory, &[LiveValue]),
        scans: &[Scan],
        (rings, chip): (Option<&Rows>, Option<Chip>),
    ) -> Self {
        let place = Place::new(module, memory, scans).filter(|_| share(chip).is_some());
        let Some((place, rings)) = place.zip(rings) else { return Self::default() };
        let restored = match chip {
            Some(Chip::V5e) => place.restored(values, false),
            _ => Vec::new(),
        };
        let held = place.held(values, rings, &[]);
        Delayed { held, restored, share: share(chip), ..Self::default() }
    }
}

/// The rows around the backward loops, in one order.
struct Place<'a> {
    module: &'a Module,
    memory: &'a Memory,
    rows: std::ops::Range<u32>,
    /// The last step of the forward loops, the first and the last of the backward loops.
    fore: u32,
    start: u32,
    end: u32,
}

impl<'a> Place<'a> {
    fn new(module: &'a Module, memory: &'a Memory, scans: &[Scan]) -> Option<Self> {
        let last = scans.iter().max_by_key(|scan| *scan.back_steps.end())?;
        let rows = module.computation(module.computation_of(last.backward)).rows();
        let is_grouped = scans.iter().any(|scan| scan.group.is_some());
        (!is_grouped).then_some(Self {
            module,
            memory,
            rows,
            fore: scans.iter().map(Scan::forward_end).max()?,
            start: scans.iter().map(|scan| *scan.back_steps.start()).min()?,
            end: *last.back_steps.end(),
        })
    }

    fn is_before(&self, row: Row) -> bool {
        self.memory.step_of(row).is_some_and(|step| step < self.start)
    }

    fn is_after(&self, row: Row) -> bool {
        self.memory.step_of(row).is_some_and(|step| step > self.end)
    }

    /// Values that rows of this place make and that take memory.
    fn large<'v>(&self, values: &'v [LiveValue]) -> impl Iterator<Item = &'v LiveValue> {
        self.made(values).filter(|own| own.bytes >= LEAST)
    }

    /// Values that rows of this place make.
    fn made<'v>(&self, values: &'v [LiveValue]) -> impl Iterator<Item = &'v LiveValue> {
        values.iter().filter(|own| {
            self.rows.contains(&own.row.0) && self.module.opcode(own.row) != Opcode::Parameter
        })
    }

    /// The rows of rings that read nothing of a backward loop and whose last permute is after it.
    fn rings(&self, scans: &[Scan]) -> Rows {
        let module = self.module;
        let loops: Rows = scans.iter().map(|scan| scan.backward).collect();
        let is_loop = |row: u32| loops.contains(&Row(row));
        let mut depends = Rows::default();
        for row in self.rows.clone() {
            let mut operands = module.operands(Row(row)).iter();
            if is_loop(row) || operands.any(|own| depends.contains(&Row(*own))) {
                depends.insert(Row(row));
            }
        }
        // Rows that nothing needs before the end of the loop, and rows that such permutes need.
        let (mut free, mut needed, mut found) = (Rows::default(), Rows::default(), Rows::default());
        for row in self.rows.clone().rev().map(Row) {
            let is_late = self.memory.step_of(row).is_some_and(|step| step > self.fore);
            if !is_late || module.opcode(row) == Opcode::Parameter || is_loop(row.0) {
                continue;
            }
            let is_after = self.is_after(row);
            if is_after || module.users().get(row.0).iter().all(|own| free.contains(&Row(*own))) {
                free.insert(row);
            }
            let is_end = module.opcode(row) == Opcode::CollectivePermuteStart && is_after;
            let is_needed = needed.contains(&row) && free.contains(&row);
            if is_needed || (is_end && !depends.contains(&row)) {
                found.insert(row);
                needed.extend(module.operands(row).iter().map(|own| Row(*own)));
            }
        }
        found
    }

    /// What `rings` read stays until they run, and what they make is not there before. What the text has in fast
    /// memory is in device memory while it waits, if `sizes` tells its bytes.
    fn held(&self, values: &[LiveValue], rings: &Rows, sizes: &[i64]) -> Vec<Change> {
        let bytes_of = |own: &LiveValue| match sizes.get(own.shape.0 as usize) {
            Some(size) if own.memory_space == FAST_SPACE => *size,
            _ => own.bytes,
        };
        let read = self.read_by(rings);
        let is_read = |own: &LiveValue| {
            let part = own.path.first().copied();
            read.contains(&(own.row, part)) || read.contains(&(own.row, None))
        };
        let early = self.made(values).filter(|own| own.first_step < self.end);
        let changes = early.filter(|own| bytes_of(own) >= LEAST).filter_map(|own| {
            if rings.contains(&own.row) {
                return Some((own.first_step..=own.last_step.min(self.end), -own.bytes));
            }
            let is_longer = own.last_step < self.end && is_read(own);
            is_longer.then(|| (own.last_step + 1..=self.end, bytes_of(own)))
        });
        changes.collect()
    }

    /// The results that `rings` read, with the element of a tuple; None for all of a result.
    fn read_by(&self, rings: &Rows) -> HashSet<(Row, Option<u32>), BuildMix> {
        let operands = |row: Row| self.module.operands(row).iter().map(|own| (Row(*own), None));
        let mut open: Vec<(Row, Option<u32>)> =
            rings.iter().flat_map(|row| operands(*row)).collect();
        let mut read = HashSet::default();
        while let Some((row, part)) = open.pop() {
            if !read.insert((row, part)) {
                continue;
            }
            match self.module.opcode(row) {
                Opcode::Bitcast => open.extend(operands(row)),
                Opcode::Tuple => match part {
                    Some(part) => open.extend(operands(row).nth(part as usize)),
                    None => open.extend(operands(row)),
                },
                Opcode::GetTupleElement => {
                    let part = self.module.tuple_index(row).and_then(|own| u32::try_from(own).ok());
                    open.extend(operands(row).map(|(of, _)| (of, part)));
                }
                _ => {}
            }
        }
        read
    }

    /// Where XLA has rematerialised a value for a row after the backward loop, the value itself is in memory in a
    /// program that fits, and not what it is recomputed from. The list scheduler runs that row before the loop, as it
    /// frees the value.
    fn restored(&self, values: &[LiveValue], is_list: bool) -> Vec<Change> {
        let name = |row: Row| self.module.instruction_name(row);
        let rows = || self.rows.clone().map(Row);
        let early = rows().filter(|row| self.is_before(*row));
        let originals: HashSet<&[u8], BuildMix> =
            early.map(|row| without_clone_number(name(row))).collect();
        let is_clone = |row: &Row| {
            let original = without_clone_number(name(*row));
            self.is_after(*row) && original != name(*row) && originals.contains(original)
        };
        let again: Rows = rows().filter(is_clone).collect();
        let is_again = |row: &Row| again.contains(row);
        let mut more = 0i64;
        for own in self.large(values).filter(|_| !again.is_empty()) {
            let is_over = own.first_step < self.start && own.last_step > self.end;
            if !is_over && !is_again(&own.row) {
                continue;
            }
            let Some(mut readers) = readers(self.module, own) else { continue };
            readers.retain(|row| self.is_after(*row));
            match is_again(&own.row) {
                true if !is_list && !readers.iter().all(is_again) => {
                    more = more.saturating_add(own.bytes);
                }
                false if !readers.is_empty() && readers.iter().all(is_again) => {
                    more = more.saturating_sub(own.bytes);
                }
                _ => {}
            }
        }
        if is_list || more > 0 { vec![(self.start..=self.end, more)] } else { Vec::new() }
    }
}
