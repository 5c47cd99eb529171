//! What the symbols of parameters stand for beside batch, sequence and layers: width, heads,
//! vocabulary.
//!
//! Matmuls tell: tokens are what has the batch or the sequence among its dimensions, weights are what
//! has neither. A matmul of tokens with weights sums a width or makes one; a matmul of tokens with
//! tokens, as in attention, runs once for each head; rows of weights that tokens look up are a
//! vocabulary. Names of parameters count only against that: tables of positions have no vocabulary.

use super::Role;
use super::size::CONSTANT;
use super::spread::Spread;
use super::symbols::Seeds;
use crate::cost::custom_call::custom_call_cost;
use crate::cost::matmul::ContractionKind;
use crate::ir::{Module, Opcode, Row};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Why a symbol has its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It is the first dimension of an input.
    First,
    /// It is the second dimension of an input.
    Second,
    /// A loop takes one slice of parameters per iteration.
    Sliced,
    /// A loop takes one slice of an input per iteration.
    SlicedInput,
    /// Tokens look up rows of this length.
    Row,
    /// A loop over layers passes tokens of this length on, which matmuls with weights sum or make.
    Carried,
    /// It is as long as a width, but not as heads or the vocabulary, and divided over the same axes.
    LikeWidth,
    /// A matmul of tokens with tokens runs once for each.
    Attention,
    /// A kernel of attention takes it beside positions and features.
    Kernel,
    /// Tokens look up as many rows.
    Rows,
    /// Weights make it from tokens, and it is as long as the rows that tokens look up.
    LikeRows,
    /// It is a dimension of parameters.
    Parameters,
}

impl Evidence {
    /// The words that tables show.
    pub fn as_str(self) -> &'static str {
        match self {
            Evidence::First => "first dimension of an input",
            Evidence::Second => "second dimension of an input",
            Evidence::Sliced => "a loop reads one slice per iteration",
            Evidence::SlicedInput => "a loop reads one slice of an input per iteration",
            Evidence::Row => "row length of a lookup by tokens",
            Evidence::Carried => "carried between layers, contracted with weights",
            Evidence::LikeWidth => "size and sharding of the width",
            Evidence::Attention => "batch dimension of token-by-token matmuls",
            Evidence::Kernel => "batch dimension of an attention kernel",
            Evidence::Rows => "number of rows of a lookup by tokens",
            Evidence::LikeRows => "output of weights, as long as a lookup by tokens has rows",
            Evidence::Parameters => "a dimension of parameters",
        }
    }
}

/// What instructions do with a symbol, as bits.
type Facts = u8;
/// Matmuls of tokens with weights sum it.
const SUMMED: Facts = 1;
/// Matmuls of tokens with weights make it.
const MADE: Facts = 1 << 1;
/// Matmuls of tokens with tokens run once for each.
const COUNTED: Facts = 1 << 2;
/// Kernels of attention run once for each.
const IN_KERNELS: Facts = 1 << 3;
/// Tokens look up so many rows.
const ROWS: Facts = 1 << 4;
/// Tokens look up rows of this length.
const ROW: Facts = 1 << 5;
/// Every loop over layers passes it on beside tokens.
const CARRIED: Facts = 1 << 6;

/// What instructions do with the symbols that are neither batch, sequence nor layers.
struct Uses<'a, 'm> {
    spread: &'a Spread<'m>,
    /// The roots of batch and sequence, and of all symbols with a role.
    tokens: HashSet<u32>,
    known: HashSet<u32>,
    facts: HashMap<u32, Facts>,
    /// By symbol: another that is the same dimension.
    same: HashMap<u32, u32>,
}

impl<'a, 'm> Uses<'a, 'm> {
    fn new(spread: &'a Spread<'m>, tokens: HashSet<u32>, known: HashSet<u32>) -> Self {
        Self { spread, tokens, known, facts: HashMap::new(), same: HashMap::new() }
    }

    /// The roots of the symbols of a dimension.
    fn roots(&self, dim: u32) -> impl Iterator<Item = u32> {
        let factors = self.spread.get(dim).unwrap_or_default().iter();
        let symbols = factors.map(|own| own.symbol).filter(|symbol| *symbol != CONSTANT);
        symbols.map(|symbol| self.spread.symbols.root(symbol).0)
    }

    fn has_tokens(&self, dim: u32) -> bool {
        self.roots(dim).any(|root| self.tokens.contains(&root))
    }

    /// The symbols of dimensions that have no tokens and no role.
    fn others(&self, dims: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let dims = dims.into_iter().filter(|dim| !self.has_tokens(*dim));
        let roots = dims.flat_map(|dim| self.roots(dim));
        roots.filter(|root| !self.known.contains(root)).collect()
    }

    fn note(&mut self, dims: impl IntoIterator<Item = u32>, fact: Facts) {
        for root in self.others(dims) {
            *self.facts.entry(root).or_default() |= fact;
        }
    }

    /// The symbol that stands for all that are the same dimension.
    fn kin(&self, mut symbol: u32) -> u32 {
        while let Some(next) = self.same.get(&symbol) {
            symbol = *next;
        }
        symbol
    }

    /// Two dimensions are the same, though the shares of devices are attributed in two ways.
    fn tie(&mut self, a: u32, b: u32) {
        let one = |dim: u32| match self.spread.get(dim) {
            Some([factor]) if factor.symbol != CONSTANT => {
                Some(self.spread.symbols.root(factor.symbol).0)
            }
            _ => None,
        };
        let (Some(a), Some(b)) = (one(a), one(b)) else { return };
        let size = |root: u32| self.spread.symbols.all.get(root as usize).map(|own| own.size);
        if self.known.contains(&a) || self.known.contains(&b) || size(a) != size(b) {
            return;
        }
        let (first, second) = (self.kin(a), self.kin(b));
        // Both point to the first at once, so that chains stay short.
        for own in [a, b, second] {
            if own != first {
                self.same.insert(own, first);
            }
        }
    }

    /// A matmul: of tokens with weights, or of tokens with tokens.
    fn matmul(&mut self, row: Row) {
        let Some(own) = self.spread.product(row) else { return };
        for (l, r) in &own.summed {
            self.tie(*l, *r);
        }
        let has = |mut dims: Vec<u32>, side: &[(u32, u32)], summed: Vec<u32>| {
            dims.extend(side.iter().map(|(own, _)| *own));
            dims.extend(summed);
            dims.into_iter().any(|dim| self.has_tokens(dim))
        };
        let is_left = has(
            own.batch.iter().map(|own| own[0]).collect(),
            &own.left,
            own.summed.iter().map(|own| own.0).collect(),
        );
        let is_right = has(
            own.batch.iter().map(|own| own[1]).collect(),
            &own.right,
            own.summed.iter().map(|own| own.1).collect(),
        );
        match (is_left, is_right) {
            (true, true) => {
                let has = |side: &[(u32, u32)]| side.iter().any(|(dim, _)| self.has_tokens(*dim));
                let sums_tokens = has(&own.summed);
                let is_by_token = own.batch.iter().flatten().any(|dim| self.has_tokens(*dim));
                // Scores of positions by positions have the heads that share keys on one side.
                if !sums_tokens && has(&own.left) && has(&own.right) {
                    let free = own.left.iter().chain(&own.right).map(|(dim, _)| *dim);
                    self.note(free.collect::<Vec<_>>(), COUNTED);
                }
                // Gradients of experts' weights sum tokens for each expert.
                if is_by_token || !sums_tokens {
                    self.note(own.batch.into_iter().flatten(), COUNTED);
                }
            }
            (true, false) | (false, true) => {
                self.note(own.summed.iter().flat_map(|(l, r)| [*l, *r]), SUMMED);
                let made = if is_left { &own.right } else { &own.left };
                self.note(made.iter().flat_map(|(own, result)| [*own, *result]), MADE);
            }
            (false, false) => {}
        }
    }

    /// A lookup of rows by tokens.
    fn lookup(&mut self, row: Row) {
        let (Some(table), Some(indices)) =
            (self.spread.operand(row, 0), self.spread.operand(row, 1))
        else {
            return;
        };
        let is_by_tokens = indices.dims().any(|dim| self.has_tokens(dim));
        if !is_by_tokens || table.dims().any(|dim| self.has_tokens(dim)) {
            return;
        }
        let along = self.spread.integers(row, "start_index_map");
        let is_along = |index: usize| along.contains(&(index as i64));
        let dims: Vec<(usize, u32)> = table.dims().enumerate().collect();
        for (wanted, fact) in [(true, ROWS), (false, ROW)] {
            let own = dims.iter().filter(|(index, _)| is_along(*index) == wanted);
            self.note(own.map(|(_, dim)| *dim), fact);
        }
    }

    /// A kernel of attention: its operands are tokens by heads by features, in some order, and
    /// features come last.
    fn kernel(&mut self, row: Row) {
        let module = self.spread.module;
        let contraction = custom_call_cost(module, row).contraction;
        if contraction.is_none_or(|own| own.kind != ContractionKind::FusedAttention) {
            return;
        }
        for index in 0..module.operands(row).len() {
            let Some(slot) = self.spread.operand(row, index).filter(|slot| slot.len() >= 3) else {
                continue;
            };
            if slot.dims().any(|dim| self.has_tokens(dim)) {
                self.note(slot.dims().take(slot.len() - 1), IN_KERNELS);
            }
        }
    }

    /// What every loop over layers passes on beside tokens.
    fn carried(&mut self, loops: &HashMap<Row, u32>) {
        let mut all: Option<HashSet<u32>> = None;
        let mut rows: Vec<Row> = loops.keys().copied().collect();
        rows.sort_unstable();
        for row in rows {
            let places = &self.spread.places;
            let slots = (0..places.leaves(row)).filter_map(|leaf| places.leaf(row, leaf));
            // Arrays with an element per layer are kept, not passed on.
            let is_passed = |slot: &super::places::Slot| {
                let mut roots = slot.dims().flat_map(|dim| self.roots(dim));
                slot.dims().any(|dim| self.has_tokens(dim))
                    && !roots.any(|root| self.known.contains(&root) && !self.tokens.contains(&root))
            };
            let own: HashSet<u32> = slots
                .filter(is_passed)
                .flat_map(|slot| self.others(slot.dims()))
                .map(|root| self.kin(root))
                .collect();
            all = match all {
                _ if own.is_empty() => all,
                None => Some(own),
                Some(all) => Some(all.intersection(&own).copied().collect()),
            };
        }
        for root in all.unwrap_or_default() {
            *self.facts.entry(root).or_default() |= CARRIED;
        }
    }

    /// Goes over the module.
    fn read(&mut self, loops: &HashMap<Row, u32>) {
        let module: &Module = self.spread.module;
        for row in module.rows() {
            match module.opcode(row) {
                Opcode::Dot | Opcode::Convolution => self.matmul(row),
                Opcode::Gather => self.lookup(row),
                Opcode::CustomCall => self.kernel(row),
                _ => {}
            }
        }
        self.carried(loops);
        let mut facts: HashMap<u32, Facts> = HashMap::new();
        for (root, own) in &self.facts {
            *facts.entry(self.kin(*root)).or_default() |= own;
        }
        self.facts = facts;
    }

    fn of(&self, root: u32) -> Facts {
        self.facts.get(&self.kin(root)).copied().unwrap_or_default()
    }
}

/// What entry parameters say of a symbol.
#[derive(Default)]
struct Seen {
    axes: BTreeSet<usize>,
    is_of_weights: bool,
    is_place: bool,
}

impl Spread<'_> {
    /// Adds the roles width, heads and vocabulary to `roles`, which has those of batch, sequence, layers
    /// and accumulation.
    /// `inputs` are the parameters that hold a batch.
    pub(super) fn other_roles(
        &self,
        seeds: &Seeds,
        loops: &HashMap<Row, u32>,
        inputs: &[Row],
        roles: &mut BTreeMap<u32, (Role, Evidence)>,
    ) {
        // By symbol: the axes that divide it, whether weights have it, and whether a name says that
        // it counts positions, which are looked up, too.
        let mut all: BTreeMap<u32, Seen> = BTreeMap::new();
        for seed in &seeds.all {
            let own = all.entry(self.symbols.root(seed.symbol).0).or_default();
            own.axes.extend(&seed.axes);
            own.is_of_weights |= !inputs.contains(&seed.row);
            let name = seed.name.to_ascii_lowercase();
            own.is_place |= name.contains("position") || name.contains("pos_emb");
        }
        // The second dimension of an input is a width if weights share it and matmuls sum it with
        // them, so it does not tell tokens.
        let is_open = |(root, (role, _)): (&u32, &(Role, Evidence))| {
            *role == Role::Sequence && all.get(root).is_some_and(|own| own.is_of_weights)
        };
        let open: HashSet<u32> =
            roles.iter().filter(|own| is_open(*own)).map(|(r, _)| *r).collect();
        let is_token = |role: Role| matches!(role, Role::Batch | Role::Sequence);
        let tokens =
            roles.iter().filter(|(root, (role, _))| is_token(*role) && !open.contains(root));
        let tokens: HashSet<u32> = tokens.map(|(root, _)| *root).collect();
        let known = roles.keys().filter(|root| !open.contains(root)).copied().collect();
        let mut uses = Uses::new(self, tokens, known);
        uses.read(loops);
        for root in &open {
            if uses.of(*root) & (SUMMED | MADE) != 0 {
                roles.remove(root);
            }
        }
        all.retain(|root, _| !roles.contains_key(root));
        let mut found: BTreeMap<u32, (Role, Evidence)> = BTreeMap::new();
        for (own, seen) in &all {
            let facts = uses.of(*own);
            let is_used = facts & (SUMMED | MADE) != 0;
            let role = if facts & ROWS != 0 && !seen.is_place {
                (Role::Vocabulary, Evidence::Rows)
            } else if facts & COUNTED != 0 {
                (Role::Heads, Evidence::Attention)
            } else if facts & IN_KERNELS != 0 {
                (Role::Heads, Evidence::Kernel)
            } else if facts & ROW != 0 {
                (Role::Width, Evidence::Row)
            } else if facts & CARRIED != 0 && is_used {
                (Role::Width, Evidence::Carried)
            } else {
                continue;
            };
            found.insert(*own, role);
        }
        let like = |own: u32, seen: &Seen| (self.size_of_symbol(own), seen.axes.clone());
        let mut known: HashSet<(Role, (i64, BTreeSet<usize>))> = HashSet::new();
        for (own, (role, _)) in &found {
            known.extend(all.get(own).map(|seen| (*role, like(*own, seen))));
        }
        for (own, seen) in &all {
            let facts = uses.of(*own);
            if found.contains_key(own) {
                continue;
            }
            let is_like = |role: Role| known.contains(&(role, like(*own, seen)));
            if is_like(Role::Width) && !is_like(Role::Heads) && !is_like(Role::Vocabulary) {
                found.insert(*own, (Role::Width, Evidence::LikeWidth));
            } else if facts & MADE != 0 && is_like(Role::Vocabulary) {
                found.insert(*own, (Role::Vocabulary, Evidence::LikeRows));
            }
        }
        roles.extend(found);
    }
}
