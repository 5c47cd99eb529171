//! Finds values that must share a buffer, as in XLA's alias analysis.
//!
//! These are loop state, results of branches, operands that an instruction overwrites in place
//! (dynamic-update-slice, scatter, all-reduce-start, fusions around them, and operands in
//! `output_to_operand_aliasing`), and parameters that results alias.

use super::schedule::nth_call;
use super::values::Reader;
use crate::ir::decode::{Alias, AttributeValue, decode};
use crate::ir::size::ShapeCost;
use crate::ir::{CallRole, Module, Opcode, Row, ShapeId};
use memchr::memmem::Finder;
use std::ops::Range;
use std::sync::LazyLock;

/// Disjoint sets of values.
#[derive(Clone, Debug)]
pub(super) struct Sets {
    parents: Vec<u32>,
}

impl Sets {
    pub fn new(count: usize) -> Self {
        Self { parents: (0..count as u32).collect() }
    }

    /// The representative of the set of `item`.
    #[inline]
    pub fn find(&mut self, item: u32) -> u32 {
        let mut at = item;
        loop {
            let parent = self.parents[at as usize];
            if parent == at {
                return at;
            }
            let next = self.parents[parent as usize];
            self.parents[at as usize] = next;
            at = next;
        }
    }

    /// Joins two sets; the earlier representative stays.
    pub fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        let (first, second) = (a.min(b), a.max(b));
        self.parents[second as usize] = first;
    }
}

/// The aliases of parameters and results in the module's header.
#[derive(Clone, Debug, Default)]
pub(super) struct Donations {
    /// Pairs of (node of the entry's root, node of a parameter).
    pub pairs: Vec<(u32, u32)>,
    /// Number of entries that name a missing part of the result, a missing parameter, or parts of
    /// different sizes.
    pub contradictory: u32,
    /// Whether the header's entries could not be read.
    pub is_unreadable: bool,
}

impl Donations {
    pub fn new(reader: &Reader<'_>) -> Self {
        let module = reader.module;
        let mut donations = Donations::default();
        let Some(aliases) = module.aliases() else {
            donations.is_unreadable = module.header_attribute("input_output_alias").is_some();
            return donations;
        };
        donations.add(reader, aliases);
        donations
    }

    /// Adds `aliases` to those of the header.
    pub fn add(&mut self, reader: &Reader<'_>, aliases: &[Alias]) {
        let module = reader.module;
        let parameters = parameters_by_number(module);
        let costs = module.shape_costs();
        let root = module.computation(module.entry()).root;
        for alias in aliases {
            match donated_pair(reader, &parameters, root, alias, costs) {
                Some((pair, true)) => self.pairs.push(pair),
                // A result cannot take memory of a different size.
                Some((_, false)) | None => self.contradictory += 1,
            }
        }
    }

    /// Joins results and the parameters whose memory they take.
    pub fn join(&self, values: &[u32], sets: &mut Sets) {
        for (result, parameter) in &self.pairs {
            sets.join(values[*result as usize], values[*parameter as usize]);
        }
    }
}

/// (number, row) of the entry's parameters, sorted.
fn parameters_by_number(module: &Module) -> Vec<(u64, u32)> {
    let rows = module.computation(module.entry()).rows();
    let mut parameters: Vec<(u64, u32)> =
        rows.filter_map(|row| Some((module.parameter_number(Row(row))?, row))).collect();
    parameters.sort_unstable();
    parameters
}

/// The two nodes, and whether they have the same size.
fn donated_pair(
    reader: &Reader<'_>,
    parameters: &[(u64, u32)],
    root: u32,
    alias: &Alias,
    costs: &[ShapeCost],
) -> Option<((u32, u32), bool)> {
    let number = u64::try_from(alias.number).ok()?;
    let at = parameters.binary_search_by_key(&number, |entry| entry.0).ok()?;
    let row = parameters.get(at)?.1;
    let node = |row: u32, path: &[i64]| {
        let (node, shape) =
            reader.shapes.at_path(reader.module, reader.module.shape(Row(row)), path)?;
        Some((reader.nodes.of(reader.steps.of(row)?).start + node, shape))
    };
    let (result, result_shape) = node(root, &alias.output_index)?;
    let (parameter, parameter_shape) = node(row, &alias.index)?;
    // Shapes may differ: XLA only requires the same size.
    let bytes = |shape: ShapeId| costs.get(shape.0 as usize).map(|cost| cost.leaves);
    let is_same = result_shape == parameter_shape || bytes(result_shape) == bytes(parameter_shape);
    Some(((result, parameter), is_same))
}

/// Joins the values that must share a buffer, whatever is donated.
pub(super) fn join_aliases(reader: &Reader<'_>, values: &[u32], sets: &mut Sets) {
    let mut join = |a: u32, b: u32| sets.join(values[a as usize], values[b as usize]);
    // Where attributes have to be found again, the text is searched once: most modules lack this one.
    let module = reader.module;
    let has_listed =
        !module.columns().value_ends.is_empty() || LISTED.find(module.text()).is_some();
    let overwriting = Overwriting { reader, has_listed, depth: 0 };
    let mut pairs = Vec::new();
    for (step, row) in (0u32..).zip(&reader.steps.rows) {
        let opcode = reader.module.opcode(Row(*row));
        match opcode {
            Opcode::While => {
                for nodes in loop_nodes(reader, step, *row).into_iter().flatten() {
                    join_ranges(reader.nodes.of(step), nodes, &mut join);
                }
            }
            Opcode::Conditional => {
                let mut number = 0;
                while let Some(id) = nth_call(reader.module, Row(*row), opcode, number) {
                    number += 1;
                    let root = reader.module.computation(id).root;
                    if reader.steps.callers[id.0 as usize].0 == *row
                        && let Some(root) = reader.steps.of(root)
                    {
                        join_ranges(reader.nodes.of(step), reader.nodes.of(root), &mut join);
                    }
                }
            }
            _ if may_overwrite(opcode) => {
                pairs.clear();
                overwriting.pairs(*row, &mut pairs);
                let result = reader.nodes.of(step);
                for pair in &pairs {
                    let Some(operand) = reader.operand(step, pair.operand) else { continue };
                    if pair.operand_node < operand.len() as u32
                        && pair.result_node < result.len() as u32
                    {
                        join(operand.start + pair.operand_node, result.start + pair.result_node);
                    }
                }
            }
            _ => {}
        }
    }
}

fn join_ranges(a: Range<u32>, b: Range<u32>, join: &mut impl FnMut(u32, u32)) {
    if a.len() == b.len() {
        a.zip(b).for_each(|(a, b)| join(a, b));
    }
}

/// The nodes that share memory with a loop's result: its initial value, the parameters of body and
/// condition, and the body's result.
fn loop_nodes(reader: &Reader<'_>, step: u32, row: u32) -> [Option<Range<u32>>; 4] {
    let module = reader.module;
    let nodes = |row: u32| Some(reader.nodes.of(reader.steps.of(row)?));
    let callee = |role| {
        let id = module.called(Row(row), role)?;
        (reader.steps.callers[id.0 as usize].0 == row).then_some(id)
    };
    let parameter = |role| {
        let rows = module.computation(callee(role)?).rows();
        let is_first = |row: &u32| module.parameter_number(Row(*row)) == Some(0);
        nodes(rows.into_iter().find(is_first)?)
    };
    let root = callee(CallRole::Body).and_then(|id| nodes(module.computation(id).root));
    [reader.operand(step, 0), parameter(CallRole::Condition), parameter(CallRole::Body), root]
}

/// A part of an operand that a part of the result overwrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InPlace {
    pub operand: usize,
    pub operand_node: u32,
    pub result_node: u32,
}

#[inline]
fn may_overwrite(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        AllReduceStart
            | AsyncStart
            | CollectivePermute
            | CollectivePermuteStart
            | CustomCall
            | DynamicUpdateSlice
            | Fusion
            | RaggedAllToAll
            | Scatter
            | SetDimensionSize
    )
}

/// Limit on the depth of nested fusions that are examined.
const DEEPEST_FUSION: u32 = 4;
/// Instructions inside fusions with more parts than this are not examined part by part.
const WIDEST_NESTED: u32 = 64;

/// Finds the parts of operands that instructions overwrite.
#[derive(Clone, Copy)]
struct Overwriting<'r, 'm> {
    reader: &'r Reader<'m>,
    /// Whether the module's text contains `output_to_operand_aliasing`.
    has_listed: bool,
    /// The number of fusions around the instructions.
    depth: u32,
}

impl Overwriting<'_, '_> {
    /// The same settings, one fusion deeper.
    fn deeper(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    /// The parts of operands that `row` overwrites, appended to `pairs`.
    fn pairs(self, row: u32, pairs: &mut Vec<InPlace>) {
        let Self { reader, has_listed, .. } = self;
        let module = reader.module;
        let shape = module.shape(Row(row));
        let operands = module.operands(Row(row));
        let whole = |operand| InPlace { operand, operand_node: 0, result_node: 0 };
        match module.opcode(Row(row)) {
            Opcode::DynamicUpdateSlice | Opcode::SetDimensionSize => pairs.push(whole(0)),
            Opcode::RaggedAllToAll => pairs.push(whole(1)),
            opcode @ (Opcode::Scatter | Opcode::AllReduceStart) => {
                let count = match opcode {
                    // Operands are targets, indices and updates, with as many updates as targets.
                    Opcode::Scatter => operands.len() / 2,
                    _ => operands.len(),
                };
                if count == 1 {
                    pairs.push(whole(0));
                    return;
                }
                for operand in 0..count {
                    if let Some(node) = reader.shapes.element(module, shape, operand) {
                        pairs.push(InPlace { operand, operand_node: 0, result_node: node.start });
                    }
                }
            }
            opcode @ (Opcode::CollectivePermute | Opcode::CollectivePermuteStart) => {
                if operands.len() != 4 {
                    return;
                }
                let result = match opcode {
                    Opcode::CollectivePermute => Some(0..reader.shapes.count(shape)),
                    _ => reader.shapes.element(module, shape, 1),
                };
                let count = operands.get(1).map(|row| reader.shapes.count(module.shape(Row(*row))));
                if let (Some(result), Some(count)) = (result, count) {
                    pairs.extend((0..count.min(result.len() as u32)).map(|node| InPlace {
                        operand: 1,
                        operand_node: node,
                        result_node: result.start + node,
                    }));
                }
            }
            Opcode::Fusion => {
                self.fused_pairs(row, pairs);
                if has_listed {
                    listed_pairs(reader, row, shape, pairs);
                }
            }
            Opcode::CustomCall if has_listed => listed_pairs(reader, row, shape, pairs),
            // The attributes of most of these have to be found again.
            Opcode::AsyncStart
                if has_listed && LISTED.find(module.bytes(module.tail(Row(row)))).is_some() =>
            {
                listed_pairs(reader, row, shape, pairs);
            }
            _ => {}
        }
    }

    /// A fusion overwrites a parameter if its result is an in-place update of that parameter,
    /// looking through tuples, their elements and bitcasts.
    fn fused_pairs(self, row: u32, pairs: &mut Vec<InPlace>) {
        let Self { reader, depth, .. } = self;
        let module = reader.module;
        let Some(callee) = module.called(Row(row), CallRole::Calls) else { return };
        let root = module.computation(callee).root;
        let shape = module.shape(Row(row));
        if module.shapes().tuple(shape).is_none() {
            if let Some((operand, operand_node)) = self.updated(root, 0) {
                pairs.push(InPlace { operand, operand_node, result_node: 0 });
            }
            return;
        }
        if module.opcode(Row(root)) != Opcode::Tuple {
            // A scatter of several arrays, or a nested fusion: the parts of its result are the
            // parts of this fusion's result.
            let mut inner = Vec::new();
            if may_overwrite(module.opcode(Row(root))) && depth < DEEPEST_FUSION {
                self.deeper().pairs(root, &mut inner);
            }
            for pair in inner {
                let source = (|| {
                    let source = *module.operands(Row(root)).get(pair.operand)?;
                    self.parameter_behind(source, pair.operand_node)
                })();
                if let Some((operand, operand_node)) = source {
                    pairs.push(InPlace { operand, operand_node, result_node: pair.result_node });
                }
            }
            return;
        }
        for (index, source) in module.operands(Row(root)).iter().enumerate() {
            let Some(nodes) = reader.shapes.element(module, shape, index) else { return };
            if nodes.len() != 1 {
                continue;
            }
            if let Some((operand, operand_node)) = self.updated(*source, 0) {
                pairs.push(InPlace { operand, operand_node, result_node: nodes.start });
            }
        }
    }

    /// The parameter, and the node in it, that node `node` of `row` overwrites; `row` is inside a
    /// fusion.
    fn updated(self, row: u32, node: u32) -> Option<(usize, u32)> {
        let (row, node) = look_through(self.reader, row, node)?;
        let (row, node) = self.overwritten(row, node)?;
        self.parameter_behind(row, node)
    }

    /// The parameter, and the node in it, from which node `node` of `row` comes, looking through
    /// one nested fusion that works in place.
    fn parameter_behind(self, row: u32, node: u32) -> Option<(usize, u32)> {
        let module = self.reader.module;
        let (mut row, mut node) = look_through(self.reader, row, node)?;
        if module.opcode(Row(row)) == Opcode::Fusion {
            (row, node) = self.overwritten(row, node)?;
            (row, node) = look_through(self.reader, row, node)?;
        }
        let number = module.parameter_number(Row(row))?;
        Some((usize::try_from(number).ok()?, node))
    }

    /// The instruction and node that node `node` of `row` overwrites.
    fn overwritten(self, row: u32, node: u32) -> Option<(u32, u32)> {
        let Self { reader, depth, .. } = self;
        let is_wide = reader.shapes.count(reader.module.shape(Row(row))) > WIDEST_NESTED;
        if !may_overwrite(reader.module.opcode(Row(row))) || depth >= DEEPEST_FUSION || is_wide {
            return None;
        }
        let mut pairs = Vec::new();
        self.deeper().pairs(row, &mut pairs);
        let pair = pairs.iter().find(|pair| pair.result_node == node)?;
        Some((*reader.module.operands(Row(row)).get(pair.operand)?, pair.operand_node))
    }
}

/// The attribute that lists what results overwrite.
const KEY: &str = "output_to_operand_aliasing";
static LISTED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(KEY));

/// The pairs in `output_to_operand_aliasing`.
fn listed_pairs(reader: &Reader<'_>, row: u32, shape: ShapeId, pairs: &mut Vec<InPlace>) {
    let module = reader.module;
    let Some(bytes) = module.attribute_bytes(Row(row), KEY) else { return };
    let Ok(AttributeValue::Aliases(aliases)) =
        decode(KEY.as_bytes(), module.opcode(Row(row)), bytes)
    else {
        return;
    };
    for alias in aliases {
        let pair = || {
            let operand = usize::try_from(alias.number).ok()?;
            let operand_row = *module.operands(Row(row)).get(operand)?;
            let operand_shape = module.shape(Row(operand_row));
            Some(InPlace {
                operand,
                operand_node: reader.shapes.at_path(module, operand_shape, &alias.index)?.0,
                result_node: reader.shapes.at_path(module, shape, &alias.output_index)?.0,
            })
        };
        pairs.extend(pair());
    }
}

/// The origin of node `node` of `row`, through tuples, their elements and bitcasts.
fn look_through(reader: &Reader<'_>, row: u32, node: u32) -> Option<(u32, u32)> {
    let module = reader.module;
    let (mut row, mut node) = (row, node);
    for _ in 0..256 {
        match module.opcode(Row(row)) {
            Opcode::Bitcast if node == 0 => row = *module.operands(Row(row)).first()?,
            Opcode::GetTupleElement => {
                let operand = *module.operands(Row(row)).first()?;
                let index = module.tuple_index(Row(row))?;
                let nodes = reader.shapes.element(module, module.shape(Row(operand)), index)?;
                node = node.checked_add(nodes.start)?;
                row = operand;
            }
            Opcode::Tuple if node > 0 => {
                let path = reader.shapes.path(module, module.shape(Row(row)), node);
                let index = *path.first()? as usize;
                let nodes = reader.shapes.element(module, module.shape(Row(row)), index)?;
                node = node.checked_sub(nodes.start)?;
                row = *module.operands(Row(row)).get(index)?;
            }
            _ => return Some((row, node)),
        }
    }
    None
}
