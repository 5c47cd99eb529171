//! Sizes that a program computes before it is compiled: the capacity of experts.
//!
//! Tokens are sent to experts through arrays of tokens × experts × capacity. The capacity is a number
//! that the program computed; in the text it begins with an iota, and nothing ties it to a parameter.
//! It is taken to be `tokens · k / experts`, rounded up, with k as in the module.

use super::size::{CONSTANT, Factor, Symbol};
use super::spread::Spread;
use crate::ir::{Opcode, Row};
use std::collections::HashSet;

/// Larger multiples are taken for an accident.
const MOST: i64 = 16;
/// More experts are taken for another dimension.
const MOST_EXPERTS: i64 = 1024;

impl Spread<'_> {
    /// Gives sizes that only iotas have symbols, and those of capacities their formula.
    pub(super) fn hidden(&mut self) {
        let mut found = HashSet::new();
        for row in self.module.rows().filter(|row| self.module.opcode(*row) == Opcode::Iota) {
            let along = self.integers(row, "iota_dimension").first().copied();
            let dim = along
                .and_then(|along| usize::try_from(along).ok())
                .and_then(|along| self.places.array(row)?.at(along));
            let Some(dim) = dim.filter(|dim| self.get(*dim).is_none()) else { continue };
            let size = self.places.size(dim);
            if size > 1 {
                let symbol = self.symbols.add(Symbol { size, ..Symbol::default() });
                found.insert(symbol);
                self.current = row;
                self.set(dim, vec![Factor::of_symbol(symbol, size)]);
                self.drain();
            }
        }
        // Symbols that turned out to be others have those for a root.
        let mut found: HashSet<u32> =
            found.into_iter().map(|symbol| self.symbols.root(symbol).0).collect();
        for row in self.module.rows() {
            if found.is_empty() {
                return;
            }
            let Some(known) = self.known(row) else { continue };
            for (symbol, own) in &known {
                if found.contains(symbol)
                    && let Some(formula) = self.capacity(&known, *symbol, own)
                {
                    found.remove(symbol);
                    let own = self.symbols.all.get_mut(*symbol as usize);
                    if let Some(own) = own.filter(|own| own.size == formula.size) {
                        own.sum = Some(vec![vec![formula]]);
                    }
                }
            }
        }
    }

    /// Roots and factors of the dimensions of `row` that are one symbol.
    fn known(&self, row: Row) -> Option<Vec<(u32, Factor)>> {
        let slot = self.places.array(row)?;
        crate::ir::work::count(slot.len());
        let known = slot.dims().filter_map(|dim| match self.get(dim) {
            Some([factor])
                if factor.symbol != CONSTANT && (factor.times, factor.parts) == (1, 1) =>
            {
                Some((self.symbols.root(factor.symbol).0, *factor))
            }
            _ => None,
        });
        Some(known.collect())
    }

    /// The formula of `symbol` in an array of tokens × experts × capacity.
    fn capacity(&self, known: &[(u32, Factor)], symbol: u32, own: &Factor) -> Option<Factor> {
        for (root, experts) in known.iter().filter(|(root, own)| *root != symbol && own.shift == 0)
        {
            let count = self.symbols.all.get(*root as usize)?.size;
            if !(2..=MOST_EXPERTS).contains(&count) {
                continue;
            }
            let all = own.size.checked_mul(count)?;
            for (other, tokens) in known {
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

#[cfg(test)]
mod tests {
    use crate::ir::work::steps_of;
    use crate::scale::Attributed;
    use crate::{parse, text};
    use std::fmt::Write;

    /// Steps for a program with `count` iotas.
    fn steps(count: usize) -> usize {
        let mut program = String::from("HloModule m\n\nENTRY e {\n");
        for number in 0..count {
            let _ = writeln!(program, "  i{number} = s32[7]{{0}} iota(), iota_dimension=0");
        }
        program.push_str("  ROOT t = () tuple()\n}\n");
        let source = text::Source::from_slice(program.as_bytes());
        let module = parse(source, &crate::Options::default()).unwrap();
        steps_of(|| Attributed::new(&module, None).map(|_| ())).0
    }

    #[test]
    fn many_iotas_take_linear_work() {
        let (less, more) = (steps(500), steps(2000));
        assert!(less > 0 && more < 5 * less, "{less} steps for 500 iotas, {more} for 2000");
    }
}
