//! What devices get from others by collective-permutes.

use super::axis_bits::{MOST_AXES, MOST_DEVICES, apart};
use super::partitioned::Partitioned;
use super::{CollectiveKind, Mesh};
use crate::ir::Row;
use crate::ir::intern::BuildMix;
use std::collections::HashMap;

/// The collective-permutes of a program.
pub(crate) struct Moves {
    /// By row: its number among the collectives.
    numbers: HashMap<Row, usize, BuildMix>,
    /// By row: by position of a device in the mesh, that of the device whose value it gets, if it gets any. Empty
    /// if the pairs do not fit the mesh, or if there are too many devices.
    sources: HashMap<Row, Vec<Option<u64>>, BuildMix>,
    /// By row: the axes last asked for, and those found. Loops are followed several times.
    known: HashMap<Row, (u64, u64), BuildMix>,
}

impl Moves {
    pub fn new(program: &Partitioned<'_>) -> Self {
        let all = program.collectives.collectives.iter().enumerate();
        let permutes = all.filter(|(_, own)| own.kind == CollectiveKind::CollectivePermute);
        let numbers = permutes.map(|(number, own)| (own.row, number)).collect();
        Self { numbers, sources: HashMap::default(), known: HashMap::default() }
    }

    /// The axes along which devices hold different results of a permute, if they hold different operands along
    /// those of `mask`; None if unknown. And how many steps it took to find out.
    pub fn differing(
        &mut self,
        program: &Partitioned<'_>,
        row: Row,
        mask: u64,
    ) -> (Option<u64>, usize) {
        let Some(mesh) = program.mesh else { return (None, 0) };
        let number = self.numbers.get(&row).copied();
        let find = || number.and_then(|own| sources(program, mesh, own)).unwrap_or_default();
        let sources = self.sources.entry(row).or_insert_with(find);
        if sources.is_empty() {
            return (None, 0);
        }
        let known = self.known.entry(row).or_insert_with(|| (mask, differing(mesh, sources, mask)));
        if known.0 != mask {
            *known = (mask, differing(mesh, sources, mask));
        }
        (Some(known.1), sources.len())
    }
}

fn sources(program: &Partitioned<'_>, mesh: &Mesh, number: usize) -> Option<Vec<Option<u64>>> {
    if mesh.device_count() > MOST_DEVICES {
        return None;
    }
    let all = program.collectives;
    let range = &all.collectives.get(number)?.pairs;
    let pairs = all.pairs.get(range.start as usize..range.end as usize)?;
    let mut sources = vec![None; mesh.device_count() as usize];
    for (source, target) in pairs {
        let position = |device: i64| mesh.position(u64::try_from(device).ok()?);
        *sources.get_mut(position(*target)? as usize)? = Some(position(*source)?);
    }
    (!pairs.is_empty()).then_some(sources)
}

/// The axes along which neighbours get values that differ, where values differ along the axes of `mask`.
fn differing(mesh: &Mesh, sources: &[Option<u64>], mask: u64) -> u64 {
    let axes = mesh.axes().iter().enumerate().take(MOST_AXES);
    let digits: Vec<(u64, u64)> = axes
        .filter(|(axis, _)| mask & (1 << axis) != 0)
        .filter_map(|(axis, own)| Some((mesh.stride(axis)?.max(1), own.size.max(1))))
        .collect();
    // A value depends on the coordinates along these axes of the device that it comes from.
    let value = |source: u64| {
        digits.iter().fold(0, |value, (stride, size)| value + source / stride % size * stride)
    };
    let values: Vec<Option<u64>> = sources.iter().map(|own| own.map(value)).collect();
    apart(mesh, &values)
}
