//! `copied-parameter`: parameters that the step copies into another order of dimensions before it uses
//! them, and results that it copies back into the order of the parameter.
//!
//! Arguments come in the order in which the program holds them, so a parameter that is read in another
//! order is copied in every step. Compiled with parameters in the order that XLA chooses, the copies are
//! gone (`tests/oracle/judge_advice.py`). Not reported: a parameter that a loop, a gather or a collective
//! also reads as it is stored, because one of the two orders needs the copy (matmuls and elementwise
//! work read either); a parameter whose order is not one that compilers choose on their own, because the
//! program has asked for it; and activations, whose transposes become part of matmuls that then take longer
//! (`tests/oracle/layout_pairs.py`).

use super::finding::Measure;
use super::program::{Program, bytes, counted, form};
use super::site::{Rule, Site};
use crate::comms::donated;
use crate::ir::decode::Alias;
use crate::ir::{ArrayShape, CallRole, ElementType, Module, Opcode, Row};
use std::collections::HashMap;

pub(super) const RULE: Rule = Rule {
    code: "copied-parameter",
    what: "parameters that every step copies into another order of dimensions",
    measure: Measure::Traffic,
    find,
    message,
    remedy: "let XLA choose the layout of the parameters: pass Format(Layout.AUTO, sharding) of \
             jax.experimental.layout to jax.jit as in_shardings and out_shardings of the parameters \
             and their updates, then convert the parameters once to the input_formats of the \
             compiled step; or store them in the order in which they are read (layers on the first \
             dimension, vocabulary first in tables); the peak may rise, because the parameters are \
             then read from HBM instead of on-chip copies, and other programs that take the \
             parameters must use the same order",
};

/// The size of the smallest copies that count.
const LEAST: u64 = 1 << 16;
/// The least share of the step's time that all copies take.
const LEAST_SHARE: f64 = 0.005;
/// Limit on the rows that hold one parameter in its own order.
const MOST_STEPS: usize = 512;
/// Limit on the rows of a fusion that is examined.
const MOST_FUSED: usize = 256;

/// What a row does with a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// It hands on the parameter or a part of it, in its order.
    HandsOn,
    /// It only copies the parameter or a part of it into another order.
    Copies,
    /// It computes element by element or multiplies, in whatever order.
    AnyOrder,
    /// It reads the parameter in the order in which it is stored.
    AsStored,
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    let Some(step) = program.step_seconds().filter(|_| module.is_scheduled()) else { return };
    // By parameter: the rows that copy it.
    let mut copied: Vec<(Row, Vec<Row>)> = Vec::new();
    // If the step donates its state, the other parameters are inputs, which come anew.
    let state = donated(module);
    for row in module.parameters(module.entry()) {
        let number = module.parameter_number(row).unwrap_or(u64::MAX);
        if program.bytes(row) >= LEAST
            && (state.is_empty() || state.binary_search(&number).is_ok())
            && is_usual(module, row)
            && let Some(copies) = copies(program, row).filter(|copies| !copies.is_empty())
        {
            copied.push((row, copies));
        }
    }
    if copied.is_empty() {
        return;
    }
    let mut replaced = Replaced::new(module, &copied);
    for (alias, back) in returned(program) {
        if let Some((_, copies)) =
            replaced.by(module, back, alias).and_then(|at| copied.get_mut(at))
        {
            copies.push(back);
        }
    }
    let mut found = Vec::new();
    let mut all = 0.0;
    for (parameter, copies) in copied {
        for copy in copies {
            let runs = program.runs(copy);
            let Some(seconds) = program.seconds(copy) else { continue };
            let mut site = Site::new(copy).runs(&runs);
            site.bytes = runs.times(program.bytes(copy).saturating_mul(2));
            site.seconds = Some(seconds);
            site.parameters = vec![parameter];
            site.is_anywhere = true;
            all += seconds;
            found.push(site);
        }
    }
    if all >= LEAST_SHARE * step {
        sites.append(&mut found);
    }
}

/// The rows that copy `parameter` into another order; None if another row reads it as it is stored.
fn copies(program: &Program<'_>, parameter: Row) -> Option<Vec<Row>> {
    let module = program.module;
    let mut copies = Vec::new();
    let mut seen = vec![parameter];
    let mut next = 0;
    while let Some(row) = seen.get(next).copied() {
        next += 1;
        for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
            crate::ir::work::count(1);
            match reads(module, user) {
                Reads::AsStored => return None,
                Reads::AnyOrder => {}
                Reads::Copies if program.bytes(user) < LEAST => {}
                Reads::Copies => {
                    if !copies.contains(&user) {
                        copies.push(user);
                    }
                }
                Reads::HandsOn => {
                    if !seen.contains(&user) {
                        seen.push(user);
                    }
                }
            }
            if seen.len() + copies.len() > MOST_STEPS {
                return None;
            }
        }
    }
    Some(copies)
}

fn reads(module: &Module, row: Row) -> Reads {
    use Opcode::*;
    let opcode = module.opcode(row);
    match opcode {
        Copy | Transpose => match moves(module, row) {
            true => Reads::Copies,
            false => Reads::HandsOn,
        },
        CopyStart | CopyDone | Slice | Bitcast | GetTupleElement | OptBarrier | AddDependency
        | AsyncUpdate | AsyncDone => Reads::HandsOn,
        CustomCall
            if module.attribute_bytes(row, "custom_call_target") == Some(b"\"ConcatBitcast\"") =>
        {
            Reads::HandsOn
        }
        AsyncStart => {
            let called = module.calls(row).first().map(|call| module.computation(call.computation));
            match called.map(|called| module.opcode(Row(called.root))) {
                Some(Slice | Copy) => Reads::HandsOn,
                _ => Reads::AsStored,
            }
        }
        // A parameter that the step returns.
        Tuple if module.computation(module.computation_of(row)).root == row.0 => Reads::AnyOrder,
        Fusion => of_fusion(module, row),
        Convert => Reads::HandsOn,
        _ if opcode.is_elementwise() || opcode.is_matmul() => Reads::AnyOrder,
        _ => Reads::AsStored,
    }
}

/// What the rows of a fusion do.
#[derive(Default)]
struct Content {
    /// Rows that are left to examine.
    left: usize,
    moves: bool,
    computes: bool,
    multiplies: bool,
    /// Whether a row reads in an order that matters.
    is_ordered: bool,
}

impl Content {
    fn add(&mut self, module: &Module, fusion: Row) {
        use Opcode::*;
        let rows = module.called(fusion, CallRole::Calls).map(|id| module.computation(id).rows());
        let Some(rows) = rows.filter(|rows| rows.len() <= self.left) else {
            self.is_ordered = true;
            return;
        };
        self.left -= rows.len();
        crate::ir::work::count(rows.len());
        for row in rows.map(Row) {
            match module.opcode(row) {
                Copy | Transpose => self.moves |= moves(module, row),
                Parameter | Constant | Tuple | GetTupleElement | Bitcast | Slice => {}
                Fusion => self.add(module, row),
                Broadcast | Reshape | Iota | Reduce | Pad => self.computes = true,
                opcode if opcode.is_matmul() => self.multiplies = true,
                opcode if opcode.is_elementwise() => self.computes = true,
                _ => self.is_ordered = true,
            }
        }
    }
}

fn of_fusion(module: &Module, row: Row) -> Reads {
    let mut content = Content { left: MOST_FUSED, ..Content::default() };
    content.add(module, row);
    match content {
        Content { is_ordered: true, .. } => Reads::AsStored,
        Content { multiplies: true, .. } => Reads::AnyOrder,
        Content { computes: false, moves: true, .. } => Reads::Copies,
        // A convert hands on the parameter in another type.
        Content { moves: false, .. } if module.operands(row).len() == 1 => Reads::HandsOn,
        Content { computes: false, .. } => Reads::HandsOn,
        _ => Reads::AnyOrder,
    }
}

/// The dimensions of more than one element in memory, the slowest first, each as the dimension of the
/// array that `of` gives.
fn order(array: &ArrayShape<'_>, of: impl Fn(i64) -> Option<i64>) -> Option<Vec<i64>> {
    let is_long = |dimension: &i64| {
        let size = usize::try_from(*dimension).ok().and_then(|at| array.dimension(at));
        size.is_some_and(|size| size.bound() != Some(1))
    };
    let mut order: Vec<i64> = match array.layout {
        Some(layout) => layout.minor_to_major.iter().copied().rev().collect(),
        None => (0..array.rank() as i64).collect(),
    };
    order.retain(is_long);
    order.into_iter().map(of).collect()
}

/// Whether a compiler would store parameter `row` so if nobody asks for an order: the dimensions in
/// turn, or the last two exchanged because the last one is small.
fn is_usual(module: &Module, row: Row) -> bool {
    let array = module.shapes().array(module.shape(row));
    let Some(mut order) = array.and_then(|array| order(&array, Some)) else { return false };
    if order.is_sorted() {
        return true;
    }
    if let [.., second, last] = order.as_mut_slice() {
        std::mem::swap(second, last);
    }
    order.is_sorted()
}

/// Whether copy or transpose `row` changes the order of the elements in memory.
fn moves(module: &Module, row: Row) -> bool {
    let shapes = module.shapes();
    let operand = module.operands(row).first().and_then(|row| {
        let array = shapes.array(module.shape(Row(*row)))?;
        order(&array, Some)
    });
    let permutation = (module.opcode(row) == Opcode::Transpose)
        .then(|| module.attribute_bytes(row, "dimensions"))
        .flatten()
        .map(numbers);
    let of = |dimension: i64| match &permutation {
        Some(permutation) => permutation.get(usize::try_from(dimension).ok()?).copied(),
        None => Some(dimension),
    };
    let own = shapes.array(module.shape(row)).and_then(|array| order(&array, of));
    own.is_some() && operand.is_some() && own != operand
}

/// The numbers of `{1,0}`.
fn numbers(text: &[u8]) -> Vec<i64> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let parts = text.trim_matches(['{', '}']).split(',');
    parts.filter_map(|part| part.trim().parse().ok()).collect()
}

/// What arrays have in common that may replace each other: element type, sizes and order.
type Form = (ElementType, Vec<Option<i64>>, Option<Vec<i64>>);

fn form_of(module: &Module, row: Row) -> Option<Form> {
    crate::ir::work::count(1);
    let array = module.shapes().array(module.shape(row))?;
    let sizes = array.dimensions().map(|dimension| dimension.bound()).collect();
    Some((array.element_type, sizes, order(&array, Some)))
}

/// The parameters that results may replace, by their place in the list of copied ones.
struct Replaced {
    by_number: HashMap<u64, (usize, Form)>,
    /// Those that no result replaces yet, the first on top.
    free: HashMap<Form, Vec<usize>>,
    is_taken: Vec<bool>,
}

impl Replaced {
    fn new(module: &Module, copied: &[(Row, Vec<Row>)]) -> Self {
        let mut by_number = HashMap::new();
        let mut free: HashMap<Form, Vec<usize>> = HashMap::new();
        for (at, (parameter, copies)) in copied.iter().enumerate().rev() {
            let Some(own) = form_of(module, *parameter) else { continue };
            if let Some(number) = module.parameter_number(*parameter) {
                by_number.insert(number, (at, own.clone()));
            }
            if !copies.iter().any(|copy| form_of(module, *copy).as_ref() == Some(&own)) {
                free.entry(own).or_default().push(at);
            }
        }
        Self { by_number, free, is_taken: vec![false; copied.len()] }
    }

    /// The parameter that the result `back` may replace; `alias` is the number of the parameter whose
    /// memory it takes. One result replaces one parameter.
    fn by(&mut self, module: &Module, back: Row, alias: Option<u64>) -> Option<usize> {
        let own = form_of(module, back)?;
        let at = match alias {
            Some(alias) => self.by_number.get(&alias).filter(|(_, form)| *form == own)?.0,
            None => {
                let free = self.free.get_mut(&own)?;
                let taken = &self.is_taken;
                std::iter::from_fn(|| free.pop()).find(|at| taken.get(*at) == Some(&false))?
            }
        };
        *self.is_taken.get_mut(at)? = true;
        Some(at)
    }
}

/// Rows that copy a result of the step into another order, with the number of the parameter whose
/// memory the result takes.
fn returned(program: &Program<'_>) -> Vec<(Option<u64>, Row)> {
    let module = program.module;
    let root = Row(module.computation(module.entry()).root);
    if module.opcode(root) != Opcode::Tuple {
        return Vec::new();
    }
    let aliases = aliases(module);
    let mut found = Vec::new();
    for (number, row) in module.operands(root).iter().enumerate() {
        let mut row = Row(*row);
        // An asynchronous copy brings the result from on-chip memory.
        while matches!(module.opcode(row), Opcode::CopyDone | Opcode::CopyStart | Opcode::Bitcast)
            && let Some(operand) = module.operands(row).first()
        {
            row = Row(*operand);
        }
        if reads(module, row) == Reads::Copies && program.bytes(row) >= LEAST {
            found.push((aliases.get(&(number as i64)).copied(), row));
        }
    }
    found
}

/// By index of the result: the number of the parameter whose memory it takes.
fn aliases(module: &Module) -> HashMap<i64, u64> {
    let pair = |alias: &Alias| match alias.output_index.as_slice() {
        [index] => Some((*index, u64::try_from(alias.number).ok()?)),
        _ => None,
    };
    module.aliases().unwrap_or_default().iter().filter_map(pair).collect()
}

/// `bf16[256,512]{1,0}`: the shape of `row` without its tiles.
fn shape(module: &Module, row: Row) -> String {
    let text = module.bytes(module.shapes().text(module.shape(row)));
    let text = String::from_utf8_lossy(text).into_owned();
    match text.split_once(':') {
        Some((order, _)) => format!("{order}}}"),
        None => text,
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let largest = match (site.parameters.first(), site.subjects.first()) {
        (Some(from), Some(to)) => {
            let (from, to) = (shape(program.module, *from), shape(program.module, *to));
            format!(", the largest from {from} to {to}")
        }
        _ => String::new(),
    };
    let count = site.parameters.len() as u64;
    format!(
        "every step copies {} into another order of dimensions before use, or {} result back: {} {} \
         and {} {}{largest}",
        counted(count, "parameter", "parameters"),
        form(count, "its", "their"),
        counted(site.places, "copy", "copies"),
        form(site.places, "reads", "read"),
        form(site.places, "writes", "write"),
        bytes(site.bytes.unwrap_or(0)),
    )
}

#[cfg(test)]
mod tests {
    use super::Replaced;
    use crate::ir::Row;
    use crate::ir::work::steps_of;
    use crate::{parse, text};
    use std::fmt::Write;

    /// What `count` results of one shape replace, and the steps to find it.
    fn replaced(count: usize) -> (Vec<Option<usize>>, usize) {
        let mut program = String::from("HloModule m\n\nENTRY e {\n");
        for number in 0..count {
            let _ = writeln!(program, "  p{number} = f32[4,8]{{1,0}} parameter({number})");
        }
        for number in 0..count {
            let _ = writeln!(program, "  c{number} = f32[4,8]{{0,1}} copy(p{number})");
        }
        program.push_str("  b = f32[4,8]{1,0} copy(c0)\n  ROOT t = () tuple()\n}\n");
        let source = text::Source::from_slice(program.as_bytes());
        let module = parse(source, &crate::Options::default()).unwrap();
        let row = |at: usize| Row(at as u32);
        let copied: Vec<_> = (0..count).map(|at| (row(at), vec![row(count + at)])).collect();
        let (steps, found) = steps_of(|| {
            let mut replaced = Replaced::new(&module, &copied);
            let mut found = vec![replaced.by(&module, row(2 * count), Some(1))];
            found.extend((0..count).map(|_| replaced.by(&module, row(2 * count), None)));
            found
        });
        (found, steps)
    }

    #[test]
    fn each_result_replaces_another_parameter_in_linear_work() {
        let (found, less) = replaced(500);
        let expected = [Some(1), Some(0)].into_iter().chain((2..500).map(Some)).chain([None]);
        assert!(found.into_iter().eq(expected));
        let (_, more) = replaced(2000);
        assert!(less > 0 && more < 5 * less, "{less} steps for 500 results, {more} for 2000");
    }
}
