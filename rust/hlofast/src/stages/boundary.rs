//! The values that a stage receives from the previous stage, and the nearby cut that would send
//! fewer bytes, if any.

use super::elements::{Elements, Source};
use super::{Options, RowCosts, row_bytes};
use crate::flow::{Phase, source_of};
use crate::ir::{ElementKind, Module, Opcode, Row};

/// The values that the first forward section receives per micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// The section.
    pub section: u32,
    /// Float parameters that are not state: activations, whose gradients are sent back.
    pub received: Vec<Row>,
    /// Bytes of the received values.
    pub received_bytes: u64,
    /// Other parameters that are not state: tokens, labels, masks.
    pub inputs: Vec<Row>,
    /// Bytes of the inputs.
    pub input_bytes: u64,
    /// FLOPs of the section.
    pub flops: i128,
    /// The cheapest alternative cut; None if none sends less.
    pub cut: Option<Cut>,
    /// Whether the search stopped early, so that there may be a better cut.
    pub is_partial: bool,
}

/// An alternative boundary: some instructions move to the previous stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The last instruction that moves.
    pub after: Row,
    /// The values sent at this cut.
    pub values: Vec<Row>,
    /// Bytes of the sent values.
    pub bytes: u64,
    /// FLOPs of the moved instructions.
    pub moved_flops: i128,
    /// Number of moved instructions.
    pub moved: u32,
}

/// Maximum steps of the search.
const MOST_STEPS: usize = 1 << 26;

pub(super) fn boundary(
    elements: &Elements<'_>,
    costs: &RowCosts,
    options: &Options,
) -> Option<Boundary> {
    let module = elements.module;
    let sections = elements.sections.sections.iter();
    let section = sections.clone().position(|section| section.phase == Phase::Forward)? as u32;
    let start = elements.sections.sections[section as usize].start;
    let mut boundary = Boundary {
        section,
        received: Vec::new(),
        received_bytes: 0,
        inputs: Vec::new(),
        input_bytes: 0,
        flops: 0,
        cut: None,
        is_partial: false,
    };
    let mut is_received = Vec::new();
    for element in elements.of_marker(start) {
        let source = source_of(module, element, false);
        let is_input = elements.source(source) == Source::Input;
        let is_activation = is_input && is_float(module, element);
        is_received.push(is_activation);
        if !is_input {
            continue;
        }
        let bytes = row_bytes(module, element)?;
        let (rows, sum) = match is_activation {
            true => (&mut boundary.received, &mut boundary.received_bytes),
            false => (&mut boundary.inputs, &mut boundary.input_bytes),
        };
        rows.push(source);
        *sum = sum.checked_add(bytes)?;
    }
    let search = Search::new(elements, costs, section, &is_received);
    boundary.flops = search.flops.iter().fold(0, |sum: i128, flops| sum.saturating_add(*flops));
    let limit = (boundary.flops as f64 * options.most_moved) as i128;
    (boundary.cut, boundary.is_partial) = search.cheapest(limit, boundary.received_bytes);
    Some(boundary)
}

fn is_float(module: &Module, row: Row) -> bool {
    let array = module.shapes().array(module.shape(row));
    let kind = array.map(|array| array.element_type.kind());
    matches!(kind, Some(ElementKind::Float | ElementKind::Complex))
}

/// The part of a forward section that depends on the values it receives.
struct Search<'a> {
    module: &'a Module,
    /// Its rows, in text order, starting with the received values.
    rows: Vec<Row>,
    /// By place in `rows`: the places of its operands.
    operands: Vec<Vec<u32>>,
    /// By place: the places of its users, except users that only backward code needs.
    users: Vec<Vec<u32>>,
    /// By place: whether the stage sends the value on, wherever the cut is.
    is_sent_on: Vec<bool>,
    /// By place: FLOPs of the row alone.
    flops: Vec<i128>,
    /// By place: bytes to send; None if unbounded.
    bytes: Vec<Option<u64>>,
    /// The places of the received values.
    sources: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(
        elements: &Elements<'a>,
        costs: &RowCosts,
        section: u32,
        is_received: &[bool],
    ) -> Search<'a> {
        let module = elements.module;
        let bounds = &elements.sections.sections[section as usize];
        let mut search = Search {
            module,
            rows: Vec::new(),
            operands: Vec::new(),
            users: Vec::new(),
            is_sent_on: Vec::new(),
            flops: Vec::new(),
            bytes: Vec::new(),
            sources: Vec::new(),
        };
        let mut place_of = std::collections::HashMap::new();
        for row in elements.rows().filter(|row| elements.section(*row) == Some(section)) {
            if row == bounds.start || Some(row) == bounds.end {
                continue;
            }
            let index = elements.index_in(row, bounds.start);
            let is_source = index
                .is_some_and(|index| is_received.get(index as usize).copied().unwrap_or_default());
            let mut operands: Vec<u32> = Vec::new();
            for operand in module.operands(row) {
                operands.extend(place_of.get(operand).copied());
            }
            operands.sort_unstable();
            operands.dedup();
            if !is_source && operands.is_empty() {
                continue;
            }
            let place = search.rows.len() as u32;
            place_of.insert(row.0, place);
            for operand in &operands {
                search.users[*operand as usize].push(place);
            }
            search.rows.push(row);
            search.operands.push(operands);
            search.users.push(Vec::new());
            search.is_sent_on.push(false);
            search.flops.push(costs.of(row).flops);
            search.bytes.push(row_bytes(module, row));
            if is_source {
                search.sources.push(place);
            }
        }
        // Residuals would move with the instructions that compute them.
        let backward =
            elements.sections.sections.iter().filter(|section| section.phase == Phase::Backward);
        let stash: std::collections::HashSet<u32> = backward
            .flat_map(|section| elements.of_marker(section.start))
            .filter_map(|element| elements.index_in(element, bounds.end?))
            .collect();
        for (index, element) in
            bounds.end.map(|end| elements.of_marker(end)).into_iter().flatten().enumerate()
        {
            if let Some(place) = place_of.get(&element.0)
                && !stash.contains(&(index as u32))
            {
                search.is_sent_on[*place as usize] = true;
            }
        }
        search.leave_out_what_only_backward_reads();
        search
    }

    /// Drops users whose results only backward code reads, because they would move with their
    /// operands.
    fn leave_out_what_only_backward_reads(&mut self) {
        let mut leads_on = self.is_sent_on.clone();
        for place in (0..self.rows.len()).rev() {
            leads_on[place] |= self.users[place].iter().any(|user| leads_on[*user as usize]);
        }
        // If no value is sent on, forward users cannot be distinguished from backward users.
        if leads_on.contains(&true) {
            for users in &mut self.users {
                users.retain(|user| leads_on[*user as usize]);
            }
        }
    }

    /// The cut that sends the fewest bytes, if fewer than `most`, among cuts that move at most
    /// `limit` FLOPs; on a tie, the cut that moves the least. Candidates are a cut after each
    /// instruction, moving only the instructions it depends on, and a cut between any two
    /// consecutive instructions of the text.
    fn cheapest(&self, limit: i128, most: u64) -> (Option<Cut>, bool) {
        let mut best: Option<Cut> = None;
        let mut steps = 0;
        let mut is_partial = false;
        let mut in_prefix = vec![false; self.rows.len()];
        let mut prefix = Vec::new();
        let mut prefix_flops = 0i128;
        let mut stamps = vec![u32::MAX; self.rows.len()];
        for place in 0..self.rows.len() as u32 {
            in_prefix[place as usize] = true;
            prefix.push(place);
            prefix_flops = prefix_flops.saturating_add(self.flops[place as usize]);
            if self.is_source(place) || self.hands_on(place) {
                continue;
            }
            if steps > MOST_STEPS {
                is_partial = true;
                break;
            }
            if let Some(needed) = self.needed(place, limit, &mut stamps, &mut steps) {
                let is_in = |other: u32| stamps[other as usize] == place;
                self.consider(place, &needed, is_in, most, &mut best, &mut steps);
            }
            if prefix_flops <= limit {
                let is_in = |other: u32| in_prefix[other as usize];
                self.consider(place, &prefix, is_in, most, &mut best, &mut steps);
            }
        }
        (best, is_partial)
    }

    fn is_source(&self, place: u32) -> bool {
        self.sources.binary_search(&place).is_ok()
    }

    fn hands_on(&self, place: u32) -> bool {
        let opcode = self.module.opcode(self.rows[place as usize]);
        matches!(opcode, Opcode::GetTupleElement | Opcode::Tuple | Opcode::Bitcast)
    }

    /// `place` and all rows it depends on; None if they exceed `limit` FLOPs.
    fn needed(
        &self,
        place: u32,
        limit: i128,
        stamps: &mut [u32],
        steps: &mut usize,
    ) -> Option<Vec<u32>> {
        let mut needed = vec![place];
        let mut next = 0;
        let mut flops = 0i128;
        stamps[place as usize] = place;
        while let Some(at) = needed.get(next).copied() {
            next += 1;
            *steps += 1 + self.operands[at as usize].len();
            flops = flops.saturating_add(self.flops[at as usize]);
            if flops > limit || *steps > MOST_STEPS {
                return None;
            }
            for operand in &self.operands[at as usize] {
                if stamps[*operand as usize] != place {
                    stamps[*operand as usize] = place;
                    needed.push(*operand);
                }
            }
        }
        Some(needed)
    }

    fn consider(
        &self,
        after: u32,
        moved: &[u32],
        is_in: impl Fn(u32) -> bool,
        most: u64,
        best: &mut Option<Cut>,
        steps: &mut usize,
    ) {
        // Received values that the moved part does not need are sent as well.
        let sources = self.sources.iter().copied().filter(|at| !is_in(*at));
        let mut values = Vec::new();
        let mut bytes = 0u64;
        let limit = best.as_ref().map_or(most, |best| best.bytes.saturating_add(1)).min(most);
        let mut flops = 0i128;
        let mut count = 0;
        for at in moved.iter().copied().chain(sources) {
            let users = &self.users[at as usize];
            *steps += 1 + users.len();
            if is_in(at) && !self.is_source(at) {
                flops = flops.saturating_add(self.flops[at as usize]);
                count += 1;
            }
            if !self.is_sent_on[at as usize] && users.iter().all(|user| is_in(*user)) {
                continue;
            }
            let Some(sum) = self.bytes[at as usize].and_then(|size| bytes.checked_add(size)) else {
                return;
            };
            bytes = sum;
            values.push(self.rows[at as usize]);
            if bytes >= limit {
                return;
            }
        }
        let is_better = best
            .as_ref()
            .is_none_or(|best| (bytes, flops, count) < (best.bytes, best.moved_flops, best.moved));
        if is_better {
            values.sort_unstable();
            let after = self.rows[after as usize];
            *best = Some(Cut { after, values, bytes, moved_flops: flops, moved: count });
        }
    }
}
