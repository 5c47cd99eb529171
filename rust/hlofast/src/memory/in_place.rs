//! Which values XLA's buffer assignment may put into the memory of an operand.

use super::share::{FEW, FusedUses, element_of, is_listed, lists_of, may_share, overwrites};
use super::values::Reader;
use crate::ir::intern::BuildMix;
use crate::ir::{Opcode, Row, ShapeId};
use hashbrown::{HashMap, HashSet};
use std::cell::{Cell, RefCell};

const MOST_LOOKS: usize = 1 << 24;

/// By step of an instruction with many operands: the value and the index of each, ascending.
type Places = HashMap<u32, Vec<(u32, u32)>, BuildMix>;

/// Decides which instructions run in place. Operands are not looked through for each result, so that wide
/// instructions take time in proportion to their width.
pub(super) struct InPlace<'a> {
    reader: &'a Reader<'a>,
    values: &'a [u32],
    /// By node.
    shapes: &'a [ShapeId],
    fused: RefCell<FusedUses>,
    places: RefCell<Places>,
    /// How many more operands and bytes may be examined.
    looks: Cell<usize>,
    /// Whether a row may have a list of what it overwrites.
    may_list: bool,
    /// The last row that was looked at, and its list: the operands of a row are looked at one after another.
    listed: Cell<(Row, Option<&'a [u8]>)>,
}

impl<'a> InPlace<'a> {
    pub fn new(reader: &'a Reader<'a>, values: &'a [u32], shapes: &'a [ShapeId]) -> Self {
        // A small multiple of the operands and bytes of the text; few programs need this many.
        let looks = Cell::new(MOST_LOOKS.max(16 * reader.module.text().len()));
        let may_list = reader.module.may_have("backend_config");
        let (fused, places) = (RefCell::default(), RefCell::default());
        let listed = Cell::new((Row(u32::MAX), None));
        InPlace { reader, values, shapes, fused, places, looks, may_list, listed }
    }

    /// Whether the instruction that defines `user` may write `user` over `operand`, whose live
    /// range ends at that instruction.
    pub fn shares(&self, operand: u32, user: u32) -> bool {
        let step = self.reader.nodes.steps[user as usize];
        let row = Row(self.reader.steps.rows[step as usize]);
        let count = self.reader.module.operands(row).len();
        if count > FEW {
            let of_step = |(value, index): &(u32, u32)| (*value == operand).then_some(*index);
            let mut places = self.places.borrow_mut();
            let own = places.entry(step).or_insert_with(|| self.sorted_operands(step));
            let first = own.partition_point(|(value, _)| *value < operand);
            let mut indices = own[first..].iter().map_while(of_step);
            return indices
                .any(|index| self.is_looked_at(1) && self.is_written_over(index as usize, user));
        }
        self.reader.module.operands(row).iter().enumerate().any(|(index, other)| {
            self.is_looked_at(1)
                && self.value_of(*other, step) == Some(operand)
                && self.is_written_over(index, user)
        })
    }

    /// The value and the index of each operand that is an array, ascending.
    fn sorted_operands(&self, step: u32) -> Vec<(u32, u32)> {
        let row = Row(self.reader.steps.rows[step as usize]);
        let operands = self.reader.module.operands(row).iter().zip(0..);
        let place = |(other, index): (&u32, u32)| Some((self.value_of(*other, step)?, index));
        let mut places: Vec<(u32, u32)> = operands.filter_map(place).collect();
        places.sort_unstable();
        places
    }

    /// The value of `row`, an operand of the instruction at `step`; None if it comes later.
    #[inline]
    fn value_of(&self, row: u32, step: u32) -> Option<u32> {
        let from = self.reader.steps.of(row).filter(|from| *from < step)?;
        let node = *self.reader.nodes.firsts.get(from as usize)?;
        self.values.get(node as usize).copied()
    }

    /// Whether the instruction that defines `user` may write `user` over operand `index`.
    pub fn is_written_over(&self, index: usize, user: u32) -> bool {
        let Reader { module, steps, nodes, .. } = *self.reader;
        let step = nodes.steps[user as usize];
        let row = Row(steps.rows[step as usize]);
        let operands = module.operands(row);
        let operand = Row(operands[index]);
        if module.opcode(operand) == Opcode::Constant
            || !self.is_looked_at(module.bytes(module.tail(row)).len())
        {
            return false;
        }
        let element = element_of(self.reader, module.shape(row), step, user);
        let fused = &mut self.fused.borrow_mut();
        let listed = || {
            if self.listed.get().0 != row {
                self.listed.set((row, lists_of(self.reader.module, row)));
            }
            let lists = self.listed.get().1?;
            Some(is_listed(lists, operands.len(), index, element))
        };
        self.may_list.then(listed).flatten().unwrap_or_else(|| {
            let opcode = module.opcode(row);
            may_share(opcode)
                && module.shape(operand) == self.shape_of(user)
                && overwrites(module, row.0, opcode, index, element, operands, fused)
        })
    }

    /// Takes `size` from the remaining budget; false if less is left.
    pub fn is_looked_at(&self, size: usize) -> bool {
        let left = self.looks.get().checked_sub(size);
        self.looks.set(left.unwrap_or(0));
        left.is_some()
    }

    /// The shape of a value.
    #[inline]
    pub fn shape_of(&self, value: u32) -> ShapeId {
        self.shapes[value as usize]
    }

    /// The part of `each_overwrite` for an instruction with many results and `operands`, which have an
    /// index and a value: operands that are taken are not looked at for each result.
    pub fn each_of_many(
        &self,
        users: impl Iterator<Item = u32>,
        operands: Vec<(usize, u32)>,
        each: &mut impl FnMut(u32, u32),
    ) {
        let mut taken = HashSet::<u32, BuildMix>::default();
        // Those before it are taken.
        let mut first = 0;
        for user in users {
            while operands.get(first).is_some_and(|(_, value)| taken.contains(value)) {
                first += 1;
            }
            let mut left = operands.iter().skip(first).take_while(|_| self.is_looked_at(1));
            let is_free = |(index, value): &&(usize, u32)| {
                !taken.contains(value) && self.is_written_over(*index, user)
            };
            if let Some((_, value)) = left.find(is_free) {
                taken.insert(*value);
                each(*value, user);
            }
        }
    }
}
