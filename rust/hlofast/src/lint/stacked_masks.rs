//! `stacked-masks`: masks of all iterations of a loop, and values that small arrays give, kept for its backward pass,
//! which could recompute them from what is at hand.
//!
//! The gradient of `jnp.where` needs the condition, and JAX saves it with the shape of the values that are
//! chosen; a scan saves it for all iterations. It does so also for a mask that is the same in all layers, such
//! as that of attention in blocks: it computes the masks of all blocks in a loop of their own before the
//! layers. Neither JAX nor XLA weighs what recomputing them costs.
//!
//! The search starts at the stacks that loops write. What a loop writes there counts if it is computed, element by
//! element, from iotas, constants, counters of loops, the number of the device, and arrays of integers or
//! bits that are much smaller: positions, segments, keys of random numbers, labels. A mask
//! that depends on activations, as that of a ReLU does, has no such origin. Floating-point values count too if arrays
//! that are much smaller give them: JAX keeps the exponentials of decays, which it could compute from sums.
//! One-hot matrices that matmuls multiply are those of `one-hot-matmul`.

use super::finding::{Falls, Measure};
use super::one_hot_matmul;
use super::program::{Program, bytes, counted, form};
use super::site::{Rule, Site};
use crate::flow::walk::{Trail, converts, is_kept};
use crate::ir::{
    CallRole, Dimension, ElementKind, ElementType, HOST_SPACE, Module, Opcode, Row, ShapeId,
    ShapeView,
};
use crate::memory::Resized;
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};

pub(super) const RULE: Rule = Rule {
    code: "stacked-masks",
    what: "masks of all iterations of a loop, kept although they could be recomputed",
    measure: Measure::Arrays,
    find,
    message,
    remedy: "compute the mask, or the value, and apply it in one function under jax.checkpoint(..., \
             prevent_cse=False), whose arguments are the values and what the mask is computed from: \
             jax.checkpoint(lambda scores, step: jnp.where(mask_of(step), scores, -1e30), \
             prevent_cse=False); JAX then saves what the mask is computed from and \
             recomputes it in the backward pass; without prevent_cse=False, which is safe inside \
             loops, the recomputed mask takes memory of its own",
};

/// The size of the smallest stacks that count.
const LEAST: u64 = 1 << 20;
/// An array counts as small if a mask has this many times its elements: what is saved instead of the mask then
/// takes little. XLA packs up to 32 elements of a mask into one of an array of integers, which is the mask itself.
const SMALLER: u64 = 64;
/// Limit on the rows from which one mask is computed, and on those of all masks. Random numbers take some
/// hundred rows.
const MOST_ROWS: usize = 1 << 12;
const MOST_ROWS_OF_ALL: usize = 1 << 16;

/// Limits on the stacks that are examined, and on the lines of which XLA's account is made.
const MOST_STACKS: usize = 512;
const MOST_JUDGED: usize = 64;

/// What a mask is computed from, as bits.
const COUNTER: u64 = 1;
const DEVICE: u64 = 2;
const INTEGERS: u64 = 4;
const RANDOM: u64 = 8;
const FLOATS: u64 = 16;
const WORDS: [(u64, &str); 5] = [
    (COUNTER, "the loop's counter"),
    (DEVICE, "the number of the device"),
    (INTEGERS, "small arrays and scalars"),
    (RANDOM, "the key of random numbers"),
    (FLOATS, "floating-point arrays that are much smaller"),
];
/// Where the key of a site has the shape of the first stack and the number of the line; below is what masks are
/// computed from.
const SHAPE_AT: u32 = 8;
const LINE_AT: u32 = 40;

/// A stack that a loop writes.
struct Stack {
    /// The loop.
    outer: Row,
    shape: ShapeId,
    mask: Option<Mask>,
}

/// What a loop writes into a stack, if what it is computed from is at hand.
#[derive(Clone, Copy)]
struct Mask {
    /// The row that makes it.
    made: Row,
    /// What it is computed from.
    origins: u64,
    /// How many times each element is written.
    spread: u64,
}

/// The line on which masks are made, and what they are computed from.
type Line = (i32, i32, u64);

/// What arrays have in common that one change makes smaller: type and dimensions, in any layout.
type Sizes = (ElementType, Vec<Dimension>);

fn sizes(module: &Module, shape: ShapeId) -> Option<Sizes> {
    let array = module.shapes().array(shape)?;
    Some((array.element_type, array.dimensions().collect()))
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    if !program.is_partitioned() || !module.is_scheduled() {
        return;
    }
    let stacks = stacks(program);
    if stacks.iter().all(|stack| stack.mask.is_none()) {
        return;
    }
    let Some(peak) = program.peak() else { return };
    let columns = module.metadata_columns();
    let mut lines: Vec<(Line, Vec<&Stack>)> = Vec::new();
    for stack in &stacks {
        let Some(Mask { made, origins, .. }) = stack.mask else { continue };
        let (file, line) = program.sources().place(columns, made);
        match lines.iter_mut().find(|own| own.0 == (file, line, origins)) {
            Some((_, own)) => own.push(stack),
            None => lines.push(((file, line, origins), vec![stack])),
        }
    }
    let least = program.options.min_replicated_share * peak as f64;
    let mut judged = 0;
    let mut recomputed = HashSet::new();
    for (number, ((_, _, origins), own)) in lines.iter().enumerate() {
        let mut found = own.iter().filter_map(|stack| site(program, stack));
        let Some(mut site) = found.next() else { continue };
        for other in found {
            site.subjects.extend(other.subjects);
            site.evidence.extend(other.evidence);
            site.bytes = site.bytes.zip(other.bytes).map(|(own, more)| own.saturating_add(more));
            site.places += 1;
        }
        // Neither the stacks nor what is read from them, which takes no more, would be seen.
        let most = site.bytes.unwrap_or(0).saturating_mul(2);
        if (most as f64) < least || judged == MOST_JUDGED {
            continue;
        }
        judged += 1;
        site.change.resized = without(module, own, &stacks);
        let mut more = recomputed.clone();
        let again = again(module, own, &mut more);
        site.falls = program.memory_falls(&site.change).map(|falls| less(falls, again));
        let falls = site.peak().unwrap_or(0);
        if (falls as f64) < least {
            continue;
        }
        recomputed = more;
        let shape = own.first().map_or(0, |stack| stack.shape.0);
        site.key = (number as u64) << LINE_AT | u64::from(shape) << SHAPE_AT | origins;
        site.is_anywhere = true;
        sites.push(site);
    }
}

fn site(program: &Program<'_>, stack: &Stack) -> Option<Site> {
    let made = stack.mask?.made;
    let mut site = Site::new(made).runs(&program.runs(made));
    site.evidence.push(stack.outer);
    site.bytes = Some(program.module.shapes().logical_bytes(stack.shape)?);
    // What reads the mask may take less memory too once it is computed there.
    site.is_lower_bound = true;
    Some(site)
}

/// The stacks of `own` gone. What is read from them shrinks to what a mask is before it is spread: fusions that
/// use it spread it. The account knows arrays by shape, so that each shrinks by the part that the masks are of all
/// stacks of that shape.
fn without(module: &Module, own: &[&Stack], all: &[Stack]) -> Vec<Resized> {
    let shapes = module.shapes();
    let mut parts: HashMap<Sizes, (u64, u64)> = HashMap::new();
    let mut layers: HashMap<Sizes, u64> = HashMap::new();
    for stack in all {
        let Some(sizes) = sizes(module, stack.shape) else { continue };
        let is_own = own.iter().any(|other| std::ptr::eq(*other, stack));
        let part = parts.entry(sizes.clone()).or_default();
        *part = (part.0 + u64::from(is_own), part.1 + 1);
        let spread = stack.mask.filter(|_| is_own).map_or(1, |mask| mask.spread);
        let least = layers.entry(layer(&sizes)).or_insert(spread);
        *least = spread.min(*least);
    }
    let left = |shape: ShapeId| {
        let sizes = sizes(module, shape)?;
        let bytes = u128::from(shapes.logical_bytes(shape)?);
        let left = match parts.get(&sizes) {
            Some((gone, whole)) => bytes * u128::from(whole - gone) / u128::from(*whole),
            None => bytes / u128::from(*layers.get(&without_ones(&sizes))?),
        };
        (left < bytes).then_some(Resized { shape, bytes: u64::try_from(left).ok()? })
    };
    shapes.ids().filter_map(left).collect()
}

/// The bytes of what one iteration recomputes: a mask is spread by what uses it, but what is computed with one is an
/// array. Of arrays with equal sizes the narrowest alone are taken to be written, and the others to be fused into what
/// reads them, as in `hybrid.stacked_mask` of `benches/advice_accuracy.py`, whatever lines make them
/// (`retention.stacked_decay`). `known` has the sizes of those of other lines.
fn again(module: &Module, own: &[&Stack], known: &mut HashSet<Vec<Dimension>>) -> u64 {
    let mut values: HashMap<Vec<Dimension>, BTreeMap<u64, u64>> = HashMap::new();
    for stack in own.iter().filter(|own| own.mask.is_some_and(|mask| mask.origins & FLOATS != 0)) {
        let Some((_, sizes)) = sizes(module, stack.shape) else { continue };
        let first = sizes.first().and_then(|own| u64::try_from(own.bound()?).ok());
        let bytes = module.shapes().logical_bytes(stack.shape).unwrap_or(0);
        *values.entry(sizes).or_default().entry(bytes / first.unwrap_or(1).max(1)).or_default() +=
            1;
    }
    let new = values.into_iter().filter(|(sizes, _)| known.insert(sizes.clone()));
    let narrowest =
        new.filter_map(|(_, own)| own.first_key_value().map(|(own, count)| (*own, *count)));
    narrowest.fold(0, |sum, (bytes, count)| sum.saturating_add(bytes.saturating_mul(count)))
}

/// `falls` without `bytes`.
fn less(falls: Falls, bytes: u64) -> Falls {
    let allocated = falls.allocated.map(|own| own.saturating_sub(bytes));
    Falls { peak: falls.peak.saturating_sub(bytes), allocated, ..falls }
}

/// The sizes of one iteration's part of a stack.
fn layer(sizes: &Sizes) -> Sizes {
    without_ones(&(sizes.0, sizes.1.get(1..).unwrap_or_default().to_vec()))
}

fn without_ones((kind, all): &Sizes) -> Sizes {
    (*kind, all.iter().copied().filter(|own| own.bound() != Some(1)).collect())
}

/// The large stacks that loops write.
fn stacks(program: &Program<'_>) -> Vec<Stack> {
    let module = program.module;
    let mut stacks = Vec::new();
    let mut left = MOST_ROWS_OF_ALL;
    let multiplied = OnceCell::new();
    let opcodes = module.columns().opcodes.iter().zip(0..);
    for (_, row) in opcodes.filter(|(opcode, _)| **opcode == Opcode::While) {
        let outer = Row(row);
        let Some(body) = module.called(outer, CallRole::Body) else { continue };
        let root = Row(module.computation(body).root);
        if module.opcode(root) != Opcode::Tuple {
            continue;
        }
        for (index, element) in module.operands(root).iter().enumerate() {
            let shape = module.shape(Row(*element));
            if stacks.len() == MOST_STACKS {
                return stacks;
            }
            if !is_large(module, shape) || is_kept(module, body, index) {
                continue;
            }
            let written = Trail::new(Row(*element)).follow(module, converts);
            if module.opcode(written.row) != Opcode::DynamicUpdateSlice {
                continue;
            }
            let mask = written.operand(module, 1).and_then(|value| {
                let mut search = Search::new(module, &value, left)?;
                let origins = search.origins(value.clone());
                left = left.saturating_sub(search.seen.len());
                let origins = origins?;
                let line = one_hot_matmul::line(program, value.clone());
                let is_multiplied = line.is_some_and(|line| {
                    multiplied.get_or_init(|| one_hot_matmul::lines(program)).contains(&line)
                });
                (!is_multiplied).then(|| Mask { origins, ..made(program, value) })
            });
            let mask = mask.filter(|_| !is_result(module, outer, index));
            stacks.push(Stack { outer, shape, mask });
        }
    }
    stacks
}

/// Whether arrays of `shape` are large, and lie on the device.
fn is_large(module: &Module, shape: ShapeId) -> bool {
    let Some(array) = module.shapes().array(shape) else { return false };
    array.layout.is_none_or(|layout| layout.memory_space != HOST_SPACE)
        && array.logical_bytes().is_some_and(|bytes| bytes >= LEAST)
}

/// Whether the program returns element `index` of loop `outer`.
fn is_result(module: &Module, outer: Row, index: usize) -> bool {
    let root = module.computation(module.entry()).root;
    let users = module.users();
    let own =
        users.get(outer.0).iter().filter(|user| module.tuple_index(Row(**user)) == Some(index));
    let mut open: Vec<u32> = own.copied().collect();
    let mut known: HashSet<u32> = open.iter().copied().collect();
    while let Some(row) = open.pop() {
        if row == root || users.get(row).contains(&root) {
            return true;
        }
        let moved = users.get(row).iter().filter(|own| converts(module.opcode(Row(**own))));
        for own in moved {
            if known.len() < MOST_ROWS && known.insert(*own) {
                open.push(*own);
            }
        }
    }
    outer.0 == root
}

/// The row that makes the mask at `value`, before it is spread and put into a stack.
fn made(program: &Program<'_>, value: Trail) -> Mask {
    let module = program.module;
    let spreads = |opcode| converts(opcode) || opcode == Opcode::Broadcast;
    let start = value.row;
    let made = value.follow(module, spreads).row;
    let elements = |row: Row| program.elements(row).filter(|own| *own > 0);
    let spread = elements(start).zip(elements(made)).map_or(1, |(all, own)| (all / own).max(1));
    let place = program.sources().place(module.metadata_columns(), made);
    Mask { made: if place.0 >= 0 { made } else { start }, origins: 0, spread }
}

/// Whether `opcode` computes its result element by element, or only moves elements.
fn computes(opcode: Opcode) -> bool {
    use Opcode::*;
    opcode.is_elementwise()
        || converts(opcode)
        || matches!(
            opcode,
            Broadcast
                | Concatenate
                | DynamicSlice
                | Gather
                | Pad
                | Reverse
                | RngBitGenerator
                | Slice
        )
}

/// Whether `row` packs bits into integers, as XLA does with masks that one fusion makes and others read.
fn packs(module: &Module, row: Row) -> bool {
    let applied =
        module.called(row, CallRole::ToApply).filter(|_| module.opcode(row) == Opcode::Reduce);
    applied.is_some_and(|own| module.opcode(Row(module.computation(own).root)) == Opcode::Or)
}

/// The search for what a mask is computed from.
struct Search<'a> {
    module: &'a Module,
    /// The elements of the largest array that counts as small.
    small: u64,
    most: usize,
    /// Whether the values are floating-point numbers: not masks, but what is computed with one, such as decays.
    is_of_floats: bool,
    seen: HashSet<(Row, Vec<u32>, Vec<Row>)>,
}

impl<'a> Search<'a> {
    /// A search for the mask at `value`, through at most `most` rows.
    fn new(module: &'a Module, value: &Trail, most: usize) -> Option<Self> {
        let array = module.shapes().array(shape(module, value)?)?;
        let (elements, is_of_floats) =
            (array.elements()?, array.element_type.kind() == ElementKind::Float);
        let (small, most) = (elements / SMALLER, most.min(MOST_ROWS));
        Some(Self { module, small, most, is_of_floats, seen: HashSet::new() })
    }

    /// What the value at `start` is computed from; None if it is from anything else, or from constants alone.
    fn origins(&mut self, start: Trail) -> Option<u64> {
        let module = self.module;
        let mut origins = 0;
        let mut has_iota = false;
        // What a small array is computed from need not be at hand.
        let mut waiting = vec![(start, false)];
        while let Some((trail, is_for_small)) = waiting.pop() {
            let trail = trail.follow(module, |_| false);
            let row = trail.row;
            if self.seen.len() >= self.most {
                return None;
            }
            if !self.seen.insert((row, trail.path().to_vec(), trail.calls().to_vec())) {
                continue;
            }
            let own = self.small(&trail);
            let is_small = own.is_some();
            match module.opcode(row) {
                Opcode::Constant => {}
                Opcode::Iota => has_iota = true,
                Opcode::PartitionId | Opcode::ReplicaId => origins |= DEVICE,
                _ if is_for_small && !is_small => origins |= INTEGERS,
                _ if own == Some(Small::Floats) => origins |= FLOATS,
                opcode if computes(opcode) || packs(module, row) => {
                    if opcode == Opcode::RngBitGenerator || is_random(module, &trail) {
                        origins |= RANDOM;
                    }
                    let operands = 0..module.operands(row).len();
                    let operands = operands.filter_map(|at| trail.operand(module, at));
                    waiting.extend(operands.map(|operand| (operand, is_small)));
                }
                _ if own == Some(Small::Number) && is_state(module, &trail) => origins |= COUNTER,
                _ if is_small => origins |= INTEGERS,
                _ if is_state(module, &trail) => {
                    // What an iteration hands on to the next.
                    waiting.extend(handed_on(module, &trail)?.map(|before| (before, false)));
                }
                _ => return None,
            }
        }
        // Keys are small arrays of integers too.
        if origins & RANDOM != 0 {
            origins &= !INTEGERS;
        }
        (origins != 0 || has_iota).then_some(origins)
    }

    /// What the value at `trail` is, if it is small and not a part of the activations.
    fn small(&self, trail: &Trail) -> Option<Small> {
        use ElementKind::*;
        let array = self.module.shapes().array(shape(self.module, trail)?)?;
        if array.elements()? > self.small {
            return None;
        }
        match (array.rank(), array.element_type.kind()) {
            (0, Signed | Unsigned) => Some(Small::Number),
            (0, _) | (_, Predicate | Signed | Unsigned) => Some(Small::Other),
            (_, Float) if self.is_of_floats => Some(Small::Floats),
            _ => None,
        }
    }
}

/// A value that may be saved instead of a mask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Small {
    /// An integer.
    Number,
    /// Another scalar, or an array of integers or bits.
    Other,
    /// An array of floating-point numbers.
    Floats,
}

/// The shape of the value at `trail`.
fn shape(module: &Module, trail: &Trail) -> Option<ShapeId> {
    trail.path().iter().rev().try_fold(module.shape(trail.row), |shape, index| {
        let ShapeView::Tuple(parts) = module.shapes().get(shape) else { return None };
        parts.get(*index as usize).copied()
    })
}

/// Whether the value at `trail` mixes bits, as random numbers are made.
fn is_random(module: &Module, trail: &Trail) -> bool {
    let array = module.shapes().array(module.shape(trail.row));
    let is_unsigned = array.is_some_and(|own| own.element_type.kind() == ElementKind::Unsigned);
    module.opcode(trail.row) == Opcode::Xor && is_unsigned
}

/// The loop to whose state the value at `trail` belongs, and the index in it.
fn state(module: &Module, trail: &Trail) -> Option<(Row, u32)> {
    let &[index] = trail.path() else { return None };
    let body = module.computation_of(trail.row);
    let &[outer] = module.callers(body) else { return None };
    let is_body = module.opcode(trail.row) == Opcode::Parameter
        && module.opcode(Row(outer)) == Opcode::While
        && module.called(Row(outer), CallRole::Body) == Some(body);
    is_body.then_some((Row(outer), index))
}

fn is_state(module: &Module, trail: &Trail) -> bool {
    state(module, trail).is_some()
}

/// What the first iteration and the others find in the state at `trail`.
fn handed_on(module: &Module, trail: &Trail) -> Option<impl Iterator<Item = Trail>> {
    let (outer, index) = state(module, trail)?;
    let element = |tuple: Row| {
        let is_tuple = module.opcode(tuple) == Opcode::Tuple;
        let element = module.operands(tuple).get(index as usize).filter(|_| is_tuple);
        element.map(|row| Trail::new(Row(*row)))
    };
    let body = module.computation(module.computation_of(trail.row));
    let first = Trail::new(Row(*module.operands(outer).first()?)).follow(module, |_| false);
    Some([element(first.row)?, element(Row(body.root))?].into_iter())
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let shapes = program.module.shapes();
    let shape = u32::try_from(site.key >> SHAPE_AT & u64::from(u32::MAX)).unwrap_or(0);
    let text = String::from_utf8_lossy(program.module.bytes(shapes.text(ShapeId(shape))));
    let text = text.split('{').next().unwrap_or_default().to_owned();
    let origins = WORDS.iter().filter(|(bit, _)| site.key & bit != 0);
    let origins: Vec<&str> = origins.map(|(_, words)| *words).collect();
    let origins = match &origins[..] {
        [] => "positions alone".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    };
    let (kind, each) = match site.key & FLOATS {
        0 => ("masks", "each mask"),
        _ => ("values", "each"),
    };
    format!(
        "{} the {kind} of all iterations of a loop: {}, {} {text}; {each} could be recomputed from \
         {origins}{}",
        counted(site.places, "stack holds", "stacks hold"),
        bytes(site.bytes.unwrap_or(0)),
        form(site.places, "of shape", "the first of shape"),
        site.peak().map(falls).unwrap_or_default(),
    )
}

/// By how much the peak falls.
fn falls(peak: u64) -> String {
    format!("; the peak of memory then falls by at least {}", bytes(peak))
}
