//! What the attribution leaves to the compiler: collectives of unsure size, and lookups in tables.

use super::spread::How;
use super::symbols::Seed;
use super::{Attributed, Role};
use crate::comms::DeviceGroups;
use crate::ir::{Opcode, Row};
use std::collections::HashMap;

/// A lookup of rows in a table, which the partitioner can split in several ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Rows of the whole table.
    pub rows: i64,
    /// Mesh axes that divide the other dimension of the table, by index.
    pub axes: Vec<usize>,
}

impl Attributed<'_> {
    /// Collectives with dimensions that are attributed by an assumption, or to nothing.
    pub fn unsure(&self) -> Vec<Row> {
        self.collectives_with(|how| how != How::Followed)
    }

    /// Collectives with dimensions that are attributed to nothing.
    pub fn unattributed(&self) -> Vec<Row> {
        self.collectives_with(|how| how == How::Constant)
    }

    /// Collectives with a dimension of several elements that is attributed in such a way.
    fn collectives_with(&self, is_meant: impl Fn(How) -> bool) -> Vec<Row> {
        let (module, places) = (self.spread.module, &self.spread.places);
        let has_one = |row: &Row| {
            (0..places.leaves(*row)).filter_map(|leaf| places.leaf(*row, leaf)).any(|slot| {
                slot.dims().any(|dim| {
                    let how = self.spread.how.get(dim as usize);
                    places.size(dim) > 1 && how.is_some_and(|how| is_meant(*how))
                })
            })
        };
        let is_collective = |row: &Row| {
            let opcode = module.opcode(*row);
            DeviceGroups::has_groups(opcode)
                || matches!(opcode, Opcode::CollectivePermute | Opcode::CollectivePermuteStart)
        };
        module.rows().filter(is_collective).filter(has_one).collect()
    }

    /// Whether arrays of positions by positions are written to memory.
    pub fn is_quadratic(&self) -> bool {
        let module = self.spread.module;
        let own = self.found.iter().filter(|found| found.role == Role::Sequence);
        let roots: Vec<u32> = own.map(|found| found.root).collect();
        let is_position = |dim: u32| {
            let factors = self.spread.get(dim).unwrap_or_default();
            factors.iter().any(|own| roots.contains(&self.spread.symbols.root(own.symbol).0))
        };
        let is_fused = |row: Row| {
            let callers = module.callers(module.computation_of(row));
            callers.iter().any(|caller| module.opcode(Row(*caller)) == Opcode::Fusion)
        };
        module.rows().filter(|row| module.opcode(*row) != Opcode::Parameter).any(|row| {
            let slot = self.spread.places.array(row);
            let twice =
                slot.is_some_and(|slot| slot.dims().filter(|dim| is_position(*dim)).count() > 1);
            twice && !is_fused(row)
        })
    }

    /// The lookups in tables that are entry parameters.
    pub fn lookups(&self) -> Vec<Lookup> {
        let module = self.spread.module;
        // By symbol and number of dimensions: the first seed. By parameter: all of its seeds.
        let mut first: HashMap<(u32, usize), &Seed> = HashMap::new();
        let mut by_row: HashMap<Row, Vec<&Seed>> = HashMap::new();
        for seed in &self.seeds.all {
            let root = self.spread.symbols.root(seed.symbol).0;
            first.entry((root, seed.rank())).or_insert(seed);
            by_row.entry(seed.row).or_default().push(seed);
        }
        let of_row = |row: Row| {
            let table = self.spread.operand(row, 0)?;
            let along = self.spread.integers(row, "start_index_map").first().copied()?;
            let dim = table.at(usize::try_from(along).ok()?)?;
            let [factor] = self.spread.get(dim)? else { return None };
            let root = self.spread.symbols.root(factor.symbol).0;
            let seed = *first.get(&(root, table.len()))?;
            let others = by_row.get(&seed.row)?.iter();
            let others = others.filter(|own| own.dimension != seed.dimension);
            let axes = others.flat_map(|own| own.axes.iter().copied()).collect();
            let rows = self.spread.symbols.all.get(root as usize)?.size;
            Some(Lookup { rows, axes })
        };
        let gathers = module.rows().filter(|row| module.opcode(*row) == Opcode::Gather);
        gathers.filter_map(of_row).collect()
    }
}
