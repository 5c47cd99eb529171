//! The arrays that pass through markers, and their origins.

use super::constant_of;
use crate::flow::{Phase, Sections, source_of};
use crate::ir::{Module, Opcode, Row};
use std::collections::HashSet;

/// The origin of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A parameter that the stage keeps between steps.
    State,
    /// Another parameter.
    Input,
    /// A constant.
    Constant,
    /// Computed by a section.
    Section(u32),
    /// Computed outside all sections.
    Elsewhere,
}

/// Facts about the entry computation that the analyses of stages share.
pub(super) struct Elements<'a> {
    pub module: &'a Module,
    pub sections: &'a Sections,
    /// Parameters of the entry that the optimizer sections read: the stage keeps them between
    /// steps. Other parameters come with each micro-batch.
    state: HashSet<Row>,
}

impl<'a> Elements<'a> {
    pub fn new(module: &'a Module, sections: &'a Sections) -> Self {
        let mut elements = Elements { module, sections, state: HashSet::new() };
        let of_phase =
            |phase| sections.sections.iter().filter(move |section| section.phase == phase);
        elements.state = of_phase(Phase::Optimizer)
            .flat_map(|section| elements.of_marker(section.start))
            .map(|element| source_of(module, element, false))
            .filter(|source| module.opcode(*source) == Opcode::Parameter)
            .collect();
        elements
    }

    /// The rows of the entry.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = Row> + use<> {
        self.module.computation(self.module.entry()).rows().map(Row)
    }

    /// The section of a row of the entry.
    pub fn section(&self, row: Row) -> Option<u32> {
        let first = self.module.computation(self.module.entry()).first_row;
        let section = *self.sections.of_row.get(row.0.checked_sub(first)? as usize)?;
        (section != Sections::NONE).then_some(section)
    }

    /// Whether section `id` is a forward section.
    pub fn is_forward(&self, id: u32) -> bool {
        let section = self.sections.sections.get(id as usize);
        section.is_some_and(|section| section.phase == Phase::Forward)
    }

    /// The parameters that the stage keeps between steps.
    pub fn state(&self) -> &HashSet<Row> {
        &self.state
    }

    /// The arrays that enter the marker at `place`: the operands of a call, or of a marker's tuple.
    pub fn of_marker(&self, place: Row) -> Vec<Row> {
        let operands = self.module.operands(place);
        let tuple = match (self.module.opcode(place), operands) {
            (Opcode::CustomCall, [tuple]) => self.module.operands(Row(*tuple)),
            (Opcode::CustomCall, _) => &[],
            _ => operands,
        };
        tuple.iter().map(|row| Row(*row)).collect()
    }

    /// The index of the row `element` at the marker at `place`.
    pub fn index_in(&self, element: Row, place: Row) -> Option<u32> {
        let is_element = self.module.opcode(element) == Opcode::GetTupleElement
            && self.module.operands(element) == [place.0];
        let index = self.module.tuple_index(element).filter(|_| is_element)?;
        u32::try_from(index).ok()
    }

    /// The index of the row `element` at a forward section's last marker.
    pub fn forward_index(&self, element: Row) -> Option<u32> {
        let sections = self.sections.sections.iter();
        let mut ends = sections
            .filter(|section| section.phase == Phase::Forward)
            .filter_map(|section| section.end);
        ends.find_map(|end| self.index_in(element, end))
    }

    /// The origin of the value of `source`, looking through rows that only pass it on.
    pub fn source(&self, source: Row) -> Source {
        match self.module.opcode(source) {
            Opcode::Parameter if self.state.contains(&source) => Source::State,
            Opcode::Parameter => Source::Input,
            _ if constant_of(self.module, source).is_some() => Source::Constant,
            _ => self.section(source).map_or(Source::Elsewhere, Source::Section),
        }
    }
}
