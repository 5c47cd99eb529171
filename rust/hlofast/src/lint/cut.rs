//! Results of collectives that are only used through dynamic-slices.

use super::program::Program;
use super::site::Site;
use crate::comms::{Collective, CollectiveKind};
use crate::comms::{Device, Offsets};
use crate::flow::walk::{Trail, Use, Walk, conversions, uses};
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{Module, Opcode, Row};

/// An array that only dynamic-slices use.
pub(super) struct Cut<'a> {
    /// The number of the collective that produces it.
    pub number: usize,
    pub collective: &'a Collective,
    /// Devices per group.
    pub group_size: u64,
    pub result: Row,
    /// The elements of the array.
    pub elements: u64,
    pub slices: Vec<Use>,
}

impl<'a> Cut<'a> {
    /// All such results of collectives of `kind` over several devices.
    pub fn all(
        program: &'a Program<'_>,
        kind: CollectiveKind,
    ) -> impl Iterator<Item = Cut<'a>> + 'a {
        let collectives = program.collectives.collectives.iter().enumerate();
        let wanted = collectives.filter(move |(_, collective)| collective.kind == kind);
        wanted.flat_map(move |(number, collective)| {
            let rows = results(program.module, collective).into_iter();
            rows.filter_map(move |result| {
                Some(Cut {
                    number,
                    collective,
                    group_size: collective.group_size.filter(|size| *size > 1)?,
                    slices: slices(&program.walk, result)?,
                    elements: program.elements(result)?,
                    result,
                })
            })
        })
    }

    /// A place to report; the slices, or the fusions around them, are the evidence.
    pub fn site(&self, program: &Program<'_>) -> Option<Site> {
        let mut site = Site::new(self.collective.row)
            .runs(&program.runs_of(self.collective))
            .common("group_size", self.group_size)
            .of(self.number);
        let shown = |used: &Use| *used.calls.first().unwrap_or(&used.row);
        site.evidence.extend(self.slices.iter().map(shown));
        site.key = u64::from(self.collective.groups?);
        Some(site)
    }
}

/// The arrays that `collective` produces, in the computation it is scheduled in.
pub(super) fn results(module: &Module, collective: &Collective) -> Vec<Row> {
    let row = collective.done.unwrap_or(collective.outer);
    if module.shapes().tuple(module.shape(row)).is_none() {
        return vec![row];
    }
    let users = module.users().get(row.0).iter().map(|user| Row(*user));
    users.filter(|user| module.tuple_index(*user).is_some()).collect()
}

/// The dimension along which the all-gather `collective` puts the parts of devices together.
pub(super) fn gathered_dimension(module: &Module, collective: &Collective) -> Option<usize> {
    let text = module.attribute_bytes(collective.row, "dimensions")?;
    let decoded = decode(b"dimensions", Opcode::AllGather, text).ok()?;
    let AttributeValue::Integers(dimensions) = decoded else { return None };
    let &[dimension] = dimensions.as_slice() else { return None };
    usize::try_from(dimension).ok()
}

/// The dynamic-slices that use `row`; None if it has other uses.
fn slices(walk: &Walk<'_>, row: Row) -> Option<Vec<Use>> {
    let is_slice =
        |used: &Use| used.operand == 0 && walk.module.opcode(used.row) == Opcode::DynamicSlice;
    uses(walk, row, conversions, is_slice).filter(|slices| !slices.is_empty())
}

/// The dimension along which all of `slices` cut, and the start of each device's part on `devices`;
/// None if the slices differ or their starts are unknown.
pub(super) fn same_parts(
    offsets: &Offsets<'_>,
    slices: &[Use],
    devices: &[Device],
) -> Option<(usize, Vec<i128>)> {
    let mut parts =
        slices.iter().map(|used| offsets.parts(&Trail::within(used.row, &used.calls), devices));
    let first = parts.next()??;
    parts.all(|other| other.as_ref() == Some(&first)).then_some(first)
}
