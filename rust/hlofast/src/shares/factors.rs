//! The factors of instructions: dimensions of operands and results that are split together.

/// When an instruction passes shardings on, and in which direction (`op_priority_propagation.cc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// From the start, both ways: it only passes elements on or is elementwise.
    Simple,
    /// From the start, but first only from operands to results: slices at an index.
    Slice,
    /// Not at first, and then first only from the result to the operand.
    Broadcast,
    /// Not at first, and dimensions that it combines last.
    Other,
}

/// Dimensions of operands and results that are split together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor<'t> {
    pub operands: &'t [u32],
    pub results: &'t [u32],
    /// Elements that the dimensions have in common, where a reshape merges dimensions; else 0.
    pub size: i64,
    /// Whether devices need nothing of each other where these dimensions are split.
    pub is_through: bool,
}

impl<'t> Factor<'t> {
    /// All its dimensions, those of operands first.
    pub fn members(&self) -> impl Iterator<Item = u32> + 't {
        self.operands.iter().chain(self.results).copied()
    }
}

/// Where a factor lies in the list of members.
#[derive(Clone, Copy, Debug)]
struct Place {
    results: u32,
    end: u32,
    size: i64,
    is_through: bool,
}

/// The factors of all instructions, which are in the order in which Shardy visits them.
#[derive(Debug, Default)]
pub(super) struct Ties {
    /// Dimensions, factor by factor.
    members: Vec<u32>,
    factors: Vec<Place>,
    /// The end of each instruction in `factors`.
    instructions: Vec<(u32, Kind)>,
}

impl Ties {
    /// Number of instructions.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// When instruction `at` passes shardings on.
    pub fn kind(&self, at: usize) -> Kind {
        self.instructions[at].1
    }

    /// The factors of instruction `at`.
    pub fn of(&self, at: usize) -> impl Iterator<Item = Factor<'_>> {
        let start = at.checked_sub(1).map_or(0, |before| self.instructions[before].0 as usize);
        (start..self.instructions[at].0 as usize).map(|factor| {
            let first = factor.checked_sub(1).map_or(0, |before| self.factors[before].end);
            let Place { results, end, size, is_through } = self.factors[factor];
            Factor {
                operands: &self.members[first as usize..results as usize],
                results: &self.members[results as usize..end as usize],
                size,
                is_through,
            }
        })
    }

    /// Adds a factor; one of a single dimension ties nothing.
    pub fn factor(
        &mut self,
        operands: impl IntoIterator<Item = Option<u32>>,
        results: impl IntoIterator<Item = Option<u32>>,
        is_through: bool,
    ) {
        self.sized(operands, results, (0, is_through));
    }

    /// Adds a factor of dimensions that a reshape merges, by the elements that they have in common.
    pub fn sized(
        &mut self,
        operands: impl IntoIterator<Item = Option<u32>>,
        results: impl IntoIterator<Item = Option<u32>>,
        (size, is_through): (i64, bool),
    ) {
        let before = self.members.len();
        self.members.extend(operands.into_iter().flatten());
        let middle = self.members.len() as u32;
        self.members.extend(results.into_iter().flatten());
        if self.members.len() > before + 1 {
            let end = self.members.len() as u32;
            self.factors.push(Place { results: middle, end, size, is_through });
        } else {
            self.members.truncate(before);
        }
    }

    /// Ends an instruction.
    pub fn end(&mut self, kind: Kind) {
        let last = self.instructions.last().map_or(0, |(end, _)| *end);
        let end = self.factors.len() as u32;
        if end > last {
            self.instructions.push((end, kind));
        }
    }
}
