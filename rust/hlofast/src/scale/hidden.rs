//! Sizes that a program computes before it is compiled: the capacity of experts.
//!
//! Tokens are sent to experts through arrays of tokens × experts × capacity. The capacity is a number
//! that the program computed; in the text it begins with an iota, and nothing ties it to a parameter.
//! It is taken to be `tokens · k / experts`, rounded up, with k as in the module.

use super::size::{CONSTANT, Factor, Symbol};
use super::spread::Spread;
use crate::ir::{Opcode, Row};

/// Larger multiples are taken for an accident.
const MOST: i64 = 16;
/// More experts are taken for another dimension.
const MOST_EXPERTS: i64 = 1024;

impl Spread<'_> {
    /// Gives sizes that only iotas have symbols, and those of capacities their formula.
    pub(super) fn hidden(&mut self) {
        let mut found = Vec::new();
        for row in self.module.rows().filter(|row| self.module.opcode(*row) == Opcode::Iota) {
            let along = self.integers(row, "iota_dimension").first().copied();
            let dim = along
                .and_then(|along| usize::try_from(along).ok())
                .and_then(|along| self.places.array(row)?.at(along));
            let Some(dim) = dim.filter(|dim| self.get(*dim).is_none()) else { continue };
            let size = self.places.size(dim);
            if size > 1 {
                let symbol = self.symbols.add(Symbol { size, sum: None });
                found.push(symbol);
                self.current = row;
                self.set(dim, vec![Factor::of_symbol(symbol, size)]);
                self.drain();
            }
        }
        for symbol in found {
            let root = self.symbols.root(symbol).0;
            let formula = self.module.rows().find_map(|row| self.capacity(row, root));
            if let (Some(formula), Some(own)) = (formula, self.symbols.all.get_mut(root as usize))
                && own.size == formula.size
            {
                own.sum = Some(vec![vec![formula]]);
            }
        }
    }

    /// The formula of the symbol if `row` is an array of tokens × experts × capacity.
    fn capacity(&self, row: Row, symbol: u32) -> Option<Factor> {
        let slot = self.places.array(row)?;
        let known = slot.dims().filter_map(|dim| match self.get(dim) {
            Some([factor])
                if factor.symbol != CONSTANT && (factor.times, factor.parts) == (1, 1) =>
            {
                Some((self.symbols.root(factor.symbol).0, *factor))
            }
            _ => None,
        });
        let known: Vec<(u32, Factor)> = known.collect();
        let (_, own) = known.iter().find(|(root, _)| *root == symbol)?;
        for (root, experts) in known.iter().filter(|(root, own)| *root != symbol && own.shift == 0)
        {
            let count = self.symbols.all.get(*root as usize)?.size;
            if !(2..=MOST_EXPERTS).contains(&count) {
                continue;
            }
            let all = own.size.checked_mul(count)?;
            for (other, tokens) in &known {
                let is_other = *other != symbol && *other != *root && tokens.axes == [0; _];
                if is_other
                    && tokens.size > own.size
                    && tokens.size > experts.size
                    && all % tokens.size == 0
                    && all / tokens.size <= MOST
                {
                    return tokens.scaled(all / tokens.size, count);
                }
            }
        }
        None
    }
}
