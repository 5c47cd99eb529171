//! The program of a policy: its rows, as XLA's schedulers see them.

use super::{Side, SimulatedLayers, is_given};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use crate::memory::Scheduled;
use crate::remat::policy::Fate;
use hashbrown::{HashMap, HashSet};

/// The rows of a program, each after its operands, and the bytes of its values.
pub struct Program {
    pub rows: Vec<Scheduled>,
    /// By row: the row of the text that it stands for.
    pub of: Vec<Row>,
    pub bytes: Vec<i64>,
}

/// What runs again under a policy.
pub struct Again {
    /// By operation: whether it runs again.
    pub is_again: Vec<bool>,
    /// By operation: whether the policy saves it.
    is_saved: Vec<bool>,
    /// By operation: whether the backward part reads it when it runs again.
    is_read: Vec<bool>,
}

/// A row of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A parameter or constant.
    Given(u32),
    /// A row of the text.
    Row(Row),
    /// The part of it that runs again.
    Copy(Row),
    /// A value of a row that makes several.
    Part(u32, Form),
    /// What the backward part of a layer waits for.
    Barrier(u32),
    /// A value behind a barrier.
    Behind(u32, u32),
    Root,
}

/// Which value of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// The one of the text.
    Own,
    /// The one that is recomputed.
    Again,
    /// That of the text, behind the barrier of a layer.
    Behind(u32),
}

/// By operation and form: the row that a reader of its value reads, and the value.
type AtHand = HashMap<(u32, Form), (u32, Option<u32>), BuildMix>;

/// Who reads a value.
#[derive(Clone, Copy)]
struct Reader {
    layer: Option<u32>,
    /// Whether it runs in the backward pass or after it.
    is_behind: bool,
}

impl SimulatedLayers {
    /// Whether layers can compute a value again: it is theirs, no other layer has it, and nothing keeps it.
    fn may_run(&self, at: u32, is_saved: &[bool]) -> bool {
        let own = at as usize;
        self.is_forward(at)
            && self.layers[own].is_some()
            && !self.is_boundary[own]
            && !is_saved[own]
            && (self.is_value[own] || self.is_of_parameters[own])
    }

    /// What runs again if the savable values have these fates.
    pub(super) fn again(&self, fates: &[Fate]) -> Again {
        let count = self.opened.ops.len();
        let mut is_saved = vec![false; count];
        let saved = self.members.iter().zip(fates).filter(|(_, fate)| **fate != Fate::Recomputed);
        saved.flat_map(|(nodes, _)| nodes).for_each(|at| is_saved[*at as usize] = true);
        let may_run = |at: u32| self.may_run(at, &is_saved);
        let mut is_read = vec![false; count];
        let mut open = Vec::new();
        for (at, op) in self.opened.ops.iter().enumerate() {
            let is_reader = self.opened.is_live[at] && self.sides[at] != Side::Forward;
            if is_reader && !is_given(op.opcode) {
                for from in op.reads.iter().filter(|from| may_run(**from)) {
                    is_read[*from as usize] = true;
                    open.push(*from);
                }
            }
        }
        let mut is_again = vec![false; count];
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut is_again[at as usize], true) {
                continue;
            }
            let op = &self.opened.ops[at as usize];
            for from in self.read_again(at) {
                let other = &self.opened.ops[from as usize];
                // What a fusion makes of constants runs with it.
                let is_inside = other.outer == op.outer
                    && other.row != other.outer
                    && !self.is_boundary[from as usize]
                    && !is_saved[from as usize];
                if may_run(from) || is_inside {
                    open.push(from);
                }
            }
        }
        Again { is_again, is_saved, is_read }
    }

    /// What an operation reads when it runs again: values that layers hand on in the type in which they are kept.
    fn read_again(&self, at: u32) -> impl Iterator<Item = u32> + '_ {
        let own = self.opened.ops[at as usize].reads.iter();
        own.map(move |from| match self.narrow.get(from) {
            Some(narrow) if *narrow != at => *narrow,
            _ => *from,
        })
    }

    /// The program of a policy, or that of the text as it is; None if rows would wait for each other.
    pub(super) fn program(&self, module: &Module, fates: Option<&[Fate]>) -> Option<Program> {
        let again = fates.map_or_else(
            || {
                let none = vec![false; self.opened.ops.len()];
                Again { is_again: none.clone(), is_saved: none.clone(), is_read: none }
            },
            |fates| self.again(fates),
        );
        let mut own = Builder {
            layers: self,
            again,
            is_policy: fates.is_some(),
            made: HashMap::default(),
            copied: HashMap::default(),
            kept: HashMap::default(),
            known: HashMap::default(),
            rows: Vec::new(),
            of: Vec::new(),
            bytes: Vec::new(),
        };
        own.find_needs();
        own.add_rows()?;
        own.in_order(module)
    }
}

struct Builder<'a> {
    layers: &'a SimulatedLayers,
    again: Again,
    is_policy: bool,
    /// By row of the text: the operations whose values it makes.
    made: HashMap<Row, Vec<u32>, BuildMix>,
    /// By row of the text: the operations in it that run again.
    copied: HashMap<Row, Vec<u32>, BuildMix>,
    /// By layer: what its barrier holds beside gradients.
    kept: HashMap<u32, Vec<u32>, BuildMix>,
    /// By row of the program: its number.
    known: HashMap<Key, u32, BuildMix>,
    rows: Vec<Scheduled>,
    of: Vec<Row>,
    bytes: Vec<i64>,
}

impl Builder<'_> {
    /// Whether others can read the value of an operation that runs again: what a fusion makes of constants runs in each
    /// row that needs it.
    fn is_rerun(&self, at: u32) -> bool {
        self.again.is_again[at as usize] && self.layers.may_run(at, &self.again.is_saved)
    }

    /// The form in which a reader takes the value of an operation.
    fn form(&self, at: u32, reader: Reader) -> Form {
        let own = self.layers;
        let opcode = own.opened.ops[at as usize].opcode;
        let is_held =
            |layer: &u32| self.is_policy && reader.is_behind && own.entering.contains_key(layer);
        let layer = reader.layer.filter(is_held);
        if is_given(opcode) {
            return match layer {
                Some(layer) if opcode == Opcode::Parameter => Form::Behind(layer),
                _ => Form::Own,
            };
        }
        if self.is_rerun(at) && reader.is_behind {
            return Form::Again;
        }
        let is_kept = own.is_boundary[at as usize] || self.again.is_saved[at as usize];
        match layer {
            Some(layer) if own.is_forward(at) && is_kept => Form::Behind(layer),
            _ => Form::Own,
        }
    }

    fn reader(&self, at: u32) -> Reader {
        let own = self.layers;
        let is_behind = own.sides[at as usize] != Side::Forward;
        let layer = own.layers[at as usize].filter(|_| own.sides[at as usize] == Side::Backward);
        Reader { layer, is_behind }
    }

    /// The layer of the operations of one row: that of the last, as names in a fusion may be those of another layer
    /// that computes the same.
    fn layer_of(&self, inside: &[u32]) -> Option<u32> {
        inside.iter().rev().find_map(|at| self.layers.layers[*at as usize])
    }

    /// The operations of one row that these need.
    fn inside(&self, row: Row, of: &[u32]) -> Vec<u32> {
        let ops = &self.layers.opened.ops;
        let mut known: HashSet<u32, BuildMix> = HashSet::default();
        let mut open = of.to_vec();
        while let Some(at) = open.pop() {
            if ops[at as usize].outer == row && known.insert(at) {
                open.extend(&ops[at as usize].reads);
            }
        }
        let mut inside: Vec<u32> = known.into_iter().collect();
        inside.sort_unstable();
        inside
    }

    /// Finds which values rows of the text still make, what runs again, and what barriers hold.
    fn find_needs(&mut self) {
        let own = self.layers;
        let ops = &own.opened.ops;
        let count = ops.len() as u32;
        let mut is_wanted = vec![false; count as usize];
        let mut is_inside = is_wanted.clone();
        let mut open: Vec<u32> = own.opened.root.clone();
        let mut is_kept: HashSet<(u32, u32), BuildMix> = HashSet::default();
        let keep = |kept: &mut HashMap<u32, Vec<u32>, BuildMix>,
                    is_kept: &mut HashSet<(u32, u32), BuildMix>,
                    form: Form,
                    at: u32| {
            if let Form::Behind(layer) = form
                && is_kept.insert((layer, at))
            {
                kept.entry(layer).or_default().push(at);
            }
        };
        for at in (0..count).filter(|at| self.again.is_again[*at as usize]) {
            self.copied.entry(ops[at as usize].outer).or_default().push(at);
        }
        let mut copied: Vec<(Row, Vec<u32>)> =
            self.copied.iter().map(|(row, inside)| (*row, inside.clone())).collect();
        copied.sort_unstable_by_key(|(row, _)| *row);
        for (row, inside) in copied {
            let reader = Reader { layer: self.layer_of(&inside), is_behind: true };
            for from in inside.iter().flat_map(|at| own.read_again(*at)) {
                let is_inside =
                    ops[from as usize].outer == row && self.again.is_again[from as usize];
                let form = self.form(from, reader);
                if !is_inside && form != Form::Again {
                    keep(&mut self.kept, &mut is_kept, form, from);
                    open.push(from);
                }
            }
        }
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut is_wanted[at as usize], true) {
                continue;
            }
            let row = ops[at as usize].outer;
            self.made.entry(row).or_default().push(at);
            let reader = self.reader(at);
            let mut inner = vec![at];
            while let Some(at) = inner.pop() {
                if std::mem::replace(&mut is_inside[at as usize], true) {
                    continue;
                }
                for from in ops[at as usize].reads.iter().copied() {
                    if ops[from as usize].outer == row {
                        inner.push(from);
                        continue;
                    }
                    let form = self.form(from, reader);
                    if form != Form::Again {
                        keep(&mut self.kept, &mut is_kept, form, from);
                        open.push(from);
                    }
                }
            }
        }
        self.made.values_mut().for_each(|own| own.sort_unstable());
        self.kept.values_mut().for_each(|own| own.sort_unstable());
    }

    fn push(&mut self, key: Key, of: Row) -> u32 {
        let next = self.rows.len() as u32;
        match self.known.entry(key) {
            hashbrown::hash_map::Entry::Occupied(own) => *own.get(),
            hashbrown::hash_map::Entry::Vacant(own) => {
                own.insert(next);
                self.rows.push(Scheduled::default());
                self.of.push(of);
                next
            }
        }
    }

    fn value(&mut self, bytes: i64) -> u32 {
        self.bytes.push(bytes);
        self.bytes.len() as u32 - 1
    }

    /// Adds all rows, in the order of the text; then what they read.
    fn add_rows(&mut self) -> Option<()> {
        let own = self.layers;
        let ops = &own.opened.ops;
        let mut at_hand = AtHand::default();
        for at in (0..ops.len() as u32).filter(|at| is_given(ops[*at as usize].opcode)) {
            let row = self.push(Key::Given(at), ops[at as usize].outer);
            at_hand.insert((at, Form::Own), (row, None));
        }
        let mut made: Vec<(Row, Vec<u32>)> = std::mem::take(&mut self.made).into_iter().collect();
        made.retain(|(_, own)| own.iter().any(|at| !is_given(ops[*at as usize].opcode)));
        made.sort_unstable_by_key(|(row, _)| *row);
        let mut copied: Vec<(Row, Vec<u32>)> =
            std::mem::take(&mut self.copied).into_iter().collect();
        copied.sort_unstable_by_key(|(key, _)| *key);
        let mut barriers: Vec<u32> = own.entering.keys().copied().collect();
        barriers.sort_unstable();
        // What each row makes.
        for (row, values) in &made {
            let number = self.push(Key::Row(*row), *row);
            self.make(number, *row, values, (Form::Own, &mut at_hand));
        }
        for (row, inside) in &copied {
            let number = self.push(Key::Copy(*row), *row);
            let is_read = |at: &&u32| {
                let mut users = own.opened.users[**at as usize].iter();
                let is_again = |user: &u32| {
                    self.again.is_again[*user as usize] && ops[*user as usize].outer != *row
                };
                self.is_rerun(**at) && (self.again.is_read[**at as usize] || users.any(is_again))
            };
            let values: Vec<u32> = inside.iter().filter(is_read).copied().collect();
            self.make(number, *row, &values, (Form::Again, &mut at_hand));
        }
        if self.is_policy {
            for layer in &barriers {
                let of = ops[own.entering[layer][0] as usize].outer;
                let barrier = self.push(Key::Barrier(*layer), of);
                let held = self.kept.get(layer).cloned().unwrap_or_default();
                for at in own.entering[layer].iter().chain(&held) {
                    let Some((row, value)) = at_hand.get(&(*at, Form::Own)).copied() else {
                        continue;
                    };
                    self.read(barrier, row, value);
                }
                for at in held {
                    let Some((_, value)) = at_hand.get(&(at, Form::Own)).copied() else { continue };
                    let row = self.push(Key::Behind(at, *layer), of);
                    self.read(row, barrier, value);
                    at_hand.insert((at, Form::Behind(*layer)), (row, value));
                }
            }
        }
        // What each row reads.
        for (row, values) in &made {
            let number = self.known[&Key::Row(*row)];
            let is_made = |at: &&u32| !is_given(ops[**at as usize].opcode);
            let Some(first) = values.iter().find(is_made) else { continue };
            let reader = self.reader(*first);
            for inner in self.inside(*row, values) {
                for from in &ops[inner as usize].reads {
                    if ops[*from as usize].outer != *row || is_given(ops[*from as usize].opcode) {
                        let (other, value) = *at_hand.get(&(*from, self.form(*from, reader)))?;
                        self.read(number, other, value);
                    }
                }
            }
        }
        for (row, inside) in &copied {
            let number = self.known[&Key::Copy(*row)];
            let layer = self.layer_of(inside);
            let reader = Reader { layer, is_behind: true };
            let mut waits = false;
            for inner in inside {
                for from in own.read_again(*inner) {
                    if inside.binary_search(&from).is_ok() {
                        continue;
                    }
                    let form = self.form(from, reader);
                    let (other, value) = *at_hand.get(&(from, form))?;
                    waits |= form != Form::Own;
                    self.read(number, other, value);
                }
            }
            let barrier = layer.and_then(|own| self.known.get(&Key::Barrier(own)).copied());
            if let Some(barrier) = barrier.filter(|_| !waits) {
                self.read(number, barrier, None);
            }
        }
        let root = self.push(Key::Root, own.opened.ops.last()?.outer);
        for at in &own.opened.root {
            let form = self.form(*at, self.reader(*at));
            let (row, value) = *at_hand.get(&(*at, form))?;
            self.read(root, row, value);
        }
        Some(())
    }

    fn read(&mut self, reader: u32, row: u32, value: Option<u32>) {
        let own = &mut self.rows[reader as usize];
        own.operands.push(row);
        own.reads.extend(value);
    }

    /// Adds the values that a row makes.
    fn make(
        &mut self,
        number: u32,
        row: Row,
        values: &[u32],
        (form, at_hand): (Form, &mut AtHand),
    ) {
        let own = self.layers;
        let is_one = values.len() == 1;
        for at in values {
            let wide = own.wide.get(at).filter(|_| self.is_policy && form == Form::Own);
            let is_again = self.again.is_again[*at as usize];
            let is_saved = self.again.is_saved[*at as usize];
            let (size, beside) = match wide {
                Some(wide) if is_again => (wide.whole, wide.beside),
                Some(wide) if is_saved => (own.bytes[*at as usize], wide.beside_kept),
                _ => (own.bytes[*at as usize], 0),
            };
            let value = self.value(size);
            self.rows[number as usize].makes.push(value);
            if beside > 0 {
                let beside = self.value(beside);
                self.rows[number as usize].makes.push(beside);
            }
            let place = match is_one {
                true => number,
                false => {
                    let part = self.push(Key::Part(*at, form), row);
                    self.read(part, number, Some(value));
                    part
                }
            };
            at_hand.insert((*at, form), (place, Some(value)));
        }
    }

    /// The rows, each after its operands, the last of them the root; None if rows wait for each other.
    fn in_order(self, module: &Module) -> Option<Program> {
        let count = self.rows.len();
        let mut place: Vec<Option<u32>> = vec![None; count];
        let mut is_open = vec![false; count];
        let mut order: Vec<u32> = Vec::with_capacity(count);
        for end in 0..count as u32 {
            let mut open = vec![end];
            while let Some(at) = open.last().copied() {
                if place[at as usize].is_some() {
                    open.pop();
                } else if std::mem::replace(&mut is_open[at as usize], true) {
                    place[at as usize] = Some(order.len() as u32);
                    order.push(at);
                    open.pop();
                } else {
                    let own = self.rows[at as usize].operands.iter().rev();
                    for from in own.filter(|from| place[**from as usize].is_none()) {
                        if is_open[*from as usize] {
                            return None;
                        }
                        open.push(*from);
                    }
                }
            }
        }
        let root = count.checked_sub(1)? as u32;
        order.retain(|at| *at != root);
        order.push(root);
        let mut place = vec![0u32; count];
        for (new, at) in (0u32..).zip(&order) {
            place[*at as usize] = new;
        }
        let rows = order.iter().map(|at| {
            let mut row = self.rows[*at as usize].clone();
            let mut known: HashSet<u32, BuildMix> = HashSet::default();
            row.operands.retain(|from| known.insert(*from));
            row.operands.iter_mut().for_each(|from| *from = place[*from as usize]);
            let is_one = row.makes.len() == 1;
            let array = module.shapes().array(module.shape(self.of[*at as usize]));
            row.is_scalar = is_one && array.and_then(|own| own.elements()) == Some(1);
            row
        });
        let rows = rows.collect();
        let of = order.iter().map(|at| self.of[*at as usize]).collect();
        Some(Program { rows, of, bytes: self.bytes })
    }
}
