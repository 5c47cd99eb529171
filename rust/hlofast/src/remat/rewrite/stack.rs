//! Values stacked into loop state: instead of computed values, the loop stacks the smaller value
//! they are computed from, and the readers of the stack recompute the values.

use super::asynchronous::reads;
use super::copy::push_line;
use super::copyable::obstacle;
use super::fused::{Inside, Reader, Writer, is_slice, writer};
use super::places::{Fill, Places};
use super::{Plan, RewriteError, Use};
use crate::edit::Edit;
use crate::ir::{ArrayShape, CallRole, Dimension, Flags, Layout, Module, Opcode, Row};
use crate::print::{Renaming, array_to_text_in, layout_to_text, shape_to_text};
use std::collections::HashSet;

/// The text of an array shape, with and without its layout.
#[derive(Clone, Debug)]
pub(super) struct ShapeText {
    pub full: Vec<u8>,
    pub bare: Vec<u8>,
}

/// The value that is stacked instead.
struct Shard<'a> {
    row: Row,
    shape: ArrayShape<'a>,
    /// The shape of the new stack, and of one slice of it.
    stack: ShapeText,
    slice: ShapeText,
    /// The instructions from the shard up to the stacked value.
    chain: Vec<Row>,
    /// The instructions inside the fusion that writes the stack, up to the slice.
    inner: Vec<Row>,
    writer: Writer,
}

impl<'a> Plan<'a> {
    /// Makes `update` stack `source` instead of a value computed from `source`.
    pub(super) fn restack(&mut self, update: Row, source: Row) -> Result<(), RewriteError> {
        let module = self.module;
        for row in [update, source] {
            if row.0 as usize >= module.row_count() || module.is_implicit(row) {
                return Err(RewriteError::NoSuchInstruction { row });
            }
        }
        let writer = writer(module, update)?;
        if module.computation_of(writer.row) != module.computation_of(source) {
            let reason = "it is not in the computation where the stack is written";
            return Err(RewriteError::new(module, source, reason));
        }
        let shard = self.shard(writer, source)?;
        let places = Places::of_stack(module, &writer)?;
        let mut computed = shard.chain.iter().chain(&shard.inner);
        if places.fills.iter().any(|fill| fill.is_zero)
            && let Some(row) = computed.find(|row| !keeps_zero(module, **row))
        {
            let reason = "a slice that no iteration writes would not stay zero";
            return Err(RewriteError::new(module, *row, reason));
        }
        for row in &places.arrays {
            if !self.shapes.change_array(*row) {
                return Err(RewriteError::new(
                    module,
                    *row,
                    "two changes to its stack are requested",
                ));
            }
            if *row != writer.row {
                self.edits.push(Edit::ReplaceShape { row: *row, shape: shard.stack.full.clone() });
            }
        }
        for (row, element) in &places.elements {
            self.shapes.change_element(*row, *element, shard.stack.clone());
        }
        for fill in &places.fills {
            self.fill(fill, &shard);
        }
        self.write_shard(&shard, &places)?;
        for reader in &places.readers {
            self.read_shard(reader, &shard)?;
        }
        Ok(())
    }

    /// The value to stack instead of the value that `writer` stacks.
    fn shard(&self, writer: Writer, source: Row) -> Result<Shard<'a>, RewriteError> {
        let module = self.module;
        let refused = |reason| Err(RewriteError::new(module, writer.row, reason));
        let array = |row| module.shapes().array(module.shape(row));
        let (Some(stack), Some(slice), Some(shape)) =
            (array(writer.row), array(writer.slice), array(source))
        else {
            return refused("it stacks values other than arrays");
        };
        let is_static = |shape: &ArrayShape<'_>| {
            shape.dimensions().all(|size| matches!(size, Dimension::Static(_)))
        };
        if ![&stack, &slice, &shape].into_iter().all(is_static) {
            return refused("it stacks values of dynamic size");
        }
        if !is_slice(module, writer.row, writer.slice) {
            return refused("it does not write one whole slice of its first dimension");
        }
        let Some(Dimension::Static(length)) = stack.dimension(0) else {
            return refused("it stacks values of dynamic size");
        };
        let space = |shape: &ArrayShape<'_>| shape.layout.map_or(0, |layout| layout.memory_space);
        let inner = match writer.parameter {
            Some(parameter) => chain_between(module, parameter, writer.slice)?,
            None => Vec::new(),
        };
        // The whole chain may lie inside the fusion.
        let chain = match writer.value == source && !inner.is_empty() {
            true => Vec::new(),
            false => chain_between(module, source, writer.value)?,
        };
        Ok(Shard {
            row: source,
            shape,
            stack: widened(&shape, length, space(&stack)),
            slice: widened(&shape, 1, space(&shape)),
            chain,
            inner,
            writer,
        })
    }

    /// Gives the loop an initial stack of the new shape.
    fn fill(&mut self, fill: &Fill, shard: &Shard<'_>) {
        let base = self.fresh.copy_of(self.module.instruction_name(fill.row));
        let shape = &shard.stack.full;
        let mut text = Vec::new();
        if fill.is_zero {
            let zero = self.fresh.name(&[&base, &b"_zero"[..]].concat());
            let element_type = shard.shape.element_type.as_str().as_bytes();
            let literal: &[u8] = if element_type == b"pred" { b"false" } else { b"0" };
            push_line(&mut text, &[&zero, b" = ", element_type, b"[] constant(", literal, b")"]);
            let operand = [b" broadcast(%", &zero[..], b"), dimensions={}"].concat();
            push_line(&mut text, &[&base, b" = ", shape, &operand]);
        } else {
            let call = b" custom-call(), custom_call_target=\"AllocateBuffer\"";
            push_line(&mut text, &[&base, b" = ", shape, call]);
        }
        let (row, index) = (fill.tuple, fill.element);
        self.edits.push(Edit::InsertBefore { row, text });
        self.edits.push(Edit::ReplaceOperand { row, index, name: base });
        self.replaced.insert(Use { user: row, operand: index });
        self.originals.insert(fill.row);
    }

    /// Writes the shard into the stack: at the place of the old write, or earlier if the shard is
    /// no longer available there.
    fn write_shard(&mut self, shard: &Shard<'_>, places: &Places) -> Result<(), RewriteError> {
        let module = self.module;
        let writer = &shard.writer;
        let mut place = writer.row;
        let mut stack = module.instruction_name(writer.stack).to_vec();
        let metadata = metadata_of(module, writer.row);
        let mut text = Vec::new();
        if module.is_scheduled()
            && let Some(by) = self.buffers(writer.row)?.overwriter(shard.row, writer.row)
        {
            // The loop's state is available from the start, although its element may get a name
            // only later.
            let state = module.operands(writer.stack).first().map(|state| Row(*state));
            let element = module.tuple_index(writer.stack);
            let (Some(state), Some(element)) = (state, element) else {
                return Err(RewriteError::overwritten(module, shard.row, by));
            };
            let id = module.computation_of(writer.row);
            let is_read =
                places.readers.iter().any(|reader| module.computation_of(reader.row) == id);
            let last = shard.row.max(writer.index).max(writer.rest).max(state);
            place = self.next_written(last);
            if is_read || self.buffers(writer.row)?.overwriter(shard.row, place).is_some() {
                return Err(RewriteError::overwritten(module, shard.row, by));
            }
            stack = self.fresh.name(&[&stack[..], b"_stack"].concat());
            let state = module.instruction_name(state);
            let index = element.to_string();
            let operand = [b" get-tuple-element(%", state, b"), index=", index.as_bytes()].concat();
            push_line(&mut text, &[&stack, b" = ", &shard.stack.full, &operand]);
        }
        let name = module.instruction_name(writer.row);
        let slice = self.fresh.name(&[name, b"_shard"].concat());
        let source = [b"(%", module.instruction_name(shard.row), b")"].concat();
        let reshaping = self.reshaping();
        let slice_shape = &shard.slice.full;
        push_line(&mut text, &[&slice, b" = ", slice_shape, reshaping, &source, &metadata]);
        let mut operands = [b"(%", &stack[..], b", %", &slice].concat();
        push_indices(module, &mut operands, writer.index, writer.rest, shard.shape.rank());
        let opcode = b" dynamic-update-slice";
        let full = &shard.stack.full;
        push_line(&mut text, &[name, b" = ", full, opcode, &operands, b")", &metadata]);
        self.edits.push(Edit::InsertBefore { row: place, text });
        self.edits.push(Edit::Remove { row: writer.row });
        if let Some(computation) = module.called(writer.row, CallRole::Calls) {
            self.edits.push(Edit::RemoveComputation { computation });
        }
        for operand in 0..module.operands(writer.row).len() {
            self.replaced.insert(Use { user: writer.row, operand });
        }
        self.originals.extend(&shard.chain);
        if place != writer.row {
            self.originals.insert(writer.stack);
        }
        Ok(())
    }

    /// The first instruction of the text after `row`.
    fn next_written(&self, row: Row) -> Row {
        let end = self.module.computation(self.module.computation_of(row)).end_row;
        let mut rows = (row.0 + 1..end).map(Row);
        rows.find(|row| !self.module.is_implicit(*row)).unwrap_or(row)
    }

    /// Makes `reader` take a slice of the new stack and compute the value for its users from the
    /// slice.
    fn read_shard(&mut self, reader: &Reader, shard: &Shard<'_>) -> Result<(), RewriteError> {
        let module = self.module;
        let metadata = metadata_of(module, reader.slice);
        let name = module.instruction_name(reader.slice);
        let slice = self.fresh.name(&[name, b"_shard"].concat());
        let operand = reader.inside.as_ref().map_or(0, |inside| inside.operand);
        let stack = module.operands(reader.row).get(operand).map_or(reader.row, |row| Row(*row));
        let mut operands = [b" dynamic-slice(%", module.instruction_name(stack)].concat();
        push_indices(module, &mut operands, reader.index, reader.rest, shard.shape.rank());
        operands.extend_from_slice(b"), dynamic_slice_sizes={1");
        for size in shard.shape.dimensions().filter_map(Dimension::bound) {
            operands.extend_from_slice(format!(",{size}").as_bytes());
        }
        operands.push(b'}');
        let mut text = Vec::new();
        push_line(&mut text, &[&slice, b" = ", &shard.slice.full, &operands, &metadata]);
        let mut renaming = Renaming::default();
        let whole = self.fresh.copy_of(module.instruction_name(shard.row));
        let shape = shape_to_text(module, module.shape(shard.row), true);
        let from = [b"(%", &slice[..], b")"].concat();
        let reshaping = self.reshaping();
        push_line(&mut text, &[&whole, b" = ", &shape, reshaping, &from, &metadata]);
        renaming.rows.insert(shard.row.0, whole);
        // A fusion may read one memory space and write another; a single instruction may not.
        let value = shard.writer.value;
        let space = space_of(module, shard.writer.slice);
        let mut is_elsewhere = shard.writer.parameter.is_some() && space_of(module, value) != space;
        let writes_anywhere =
            matches!(module.opcode(value), Opcode::AllGather | Opcode::Convert | Opcode::Copy);
        if is_elsewhere && writes_anywhere && value != shard.row {
            renaming.spaces.insert(value.0, space);
            is_elsewhere = false;
        }
        self.copy_all(&shard.chain, &mut renaming, &mut text)?;
        if let Some(parameter) = shard.writer.parameter {
            let mut value_name = renaming.rows.get(&value.0).cloned().unwrap_or_default();
            if is_elsewhere {
                let moved = self.fresh.copy_of(module.instruction_name(value));
                let shape = array_to_text_in(module, module.shape(value), space);
                let from = [b" copy(%", &value_name[..], b")"].concat();
                push_line(&mut text, &[&moved, b" = ", &shape, &from, &metadata]);
                value_name = moved;
            }
            let value = value_name;
            renaming.rows.insert(parameter.0, value);
            self.copy_all(&shard.inner, &mut renaming, &mut text)?;
        }
        let mut result = renaming.rows.remove(&shard.writer.slice.0).unwrap_or_default();
        if module.shape(shard.writer.slice) != module.shape(reader.slice) {
            // A copy of the array in another memory space or layout.
            let moved = self.fresh.copy_of(name);
            let shape = shape_to_text(module, module.shape(reader.slice), true);
            let from = [b" copy(%", &result[..], b")"].concat();
            push_line(&mut text, &[&moved, b" = ", &shape, &from, &metadata]);
            result = moved;
        }
        self.edits.push(Edit::InsertBefore { row: reader.row, text });
        match &reader.inside {
            Some(inside) => self.pass_slice(reader, inside, result),
            None => self.replace_everywhere(reader.row, &result),
        }
        Ok(())
    }

    /// Replaces `row` by `name` in all its users.
    fn replace_everywhere(&mut self, row: Row, name: &[u8]) {
        let module = self.module;
        for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
            for (index, read) in module.operands(user).iter().enumerate() {
                if *read == row.0 && self.replaced.insert(Use { user, operand: index }) {
                    let name = name.to_vec();
                    self.edits.push(Edit::ReplaceOperand { row: user, index, name });
                }
            }
        }
        self.originals.insert(row);
    }

    /// Makes a fusion take the slice `name` instead of the stack.
    fn pass_slice(&mut self, reader: &Reader, inside: &Inside, name: Vec<u8>) {
        let module = self.module;
        let (row, index) = (reader.row, inside.operand);
        self.edits.push(Edit::ReplaceOperand { row, index, name });
        // The compiler's configuration was for reading the stack.
        let key = b"backend_config".to_vec();
        self.edits.push(Edit::SetAttribute { row, key, value: None });
        self.replaced.insert(Use { user: row, operand: index });
        let shape = module.shape(reader.slice);
        let shape = ShapeText {
            full: shape_to_text(module, shape, true),
            bare: shape_to_text(module, shape, false),
        };
        for parameter in &inside.parameters {
            self.shapes.change_parameter(*parameter, shape.clone());
        }
        for (slice, parameter) in &inside.slices {
            let is_root = module.flags(*slice) & Flags::ROOT != 0;
            let root: &[u8] = if is_root { b"ROOT %" } else { b"%" };
            let name = module.instruction_name(*slice);
            let from = [b" bitcast(%", module.instruction_name(*parameter), b")"].concat();
            let metadata = metadata_of(module, *slice);
            let text = [root, name, b" = ", &shape.full, &from, &metadata].concat();
            self.edits.push(Edit::InsertBefore { row: *slice, text });
            self.edits.push(Edit::Remove { row: *slice });
        }
    }

    /// The opcode that adds a dimension of size one. In scheduled modules layouts are final, so a
    /// bitcast is used.
    fn reshaping(&self) -> &'static [u8] {
        if self.module.is_scheduled() { b" bitcast" } else { b" reshape" }
    }
}

/// `shape` with an additional first and slowest dimension of `length`, in memory space `space`.
fn widened(shape: &ArrayShape<'_>, length: i64, space: i64) -> ShapeText {
    let mut bare = shape.element_type.as_str().as_bytes().to_vec();
    bare.extend_from_slice(format!("[{length}").as_bytes());
    for size in shape.dimensions().filter_map(Dimension::bound) {
        bare.extend_from_slice(format!(",{size}").as_bytes());
    }
    bare.push(b']');
    let mut full = bare.clone();
    if let Some(layout) = shape.layout {
        let order = layout.minor_to_major.iter().map(|dimension| dimension.saturating_add(1));
        let minor_to_major = order.chain([0]).collect();
        let wide = Layout { minor_to_major, memory_space: space, ..layout.clone() };
        full.extend_from_slice(&layout_to_text(&wide));
    }
    ShapeText { full, bare }
}

/// All rows from `source` (exclusive) to `last` on which `last` depends, operands first.
fn chain_between(module: &Module, source: Row, last: Row) -> Result<Vec<Row>, RewriteError> {
    let mut order = Vec::new();
    let mut met = HashSet::from([source, last]);
    let read = |row| reads(module, row, |_| false).into_iter();
    if source == last {
        return Err(RewriteError::new(module, source, "it is the value that is stacked already"));
    }
    let mut stack = vec![(last, read(last))];
    let mut reaches = false;
    while let Some((row, operands)) = stack.last_mut() {
        match operands.next() {
            Some(operand) => {
                reaches |= operand == source;
                if met.insert(operand) {
                    stack.push((operand, read(operand)));
                }
            }
            None => {
                let row = *row;
                if module.is_implicit(row) {
                    return Err(RewriteError::NoSuchInstruction { row });
                }
                if module.opcode(row) == Opcode::Parameter {
                    let reason = "the stacked value also depends on this parameter";
                    return Err(RewriteError::new(module, row, reason));
                }
                if let Some(reason) = obstacle(module, row) {
                    return Err(RewriteError::new(module, row, reason));
                }
                order.push(row);
                stack.pop();
            }
        }
    }
    if !reaches {
        return Err(RewriteError::new(module, source, "the stacked value is not computed from it"));
    }
    Ok(order)
}

/// The memory space of the array `row`.
fn space_of(module: &Module, row: Row) -> i64 {
    let array = module.shapes().array(module.shape(row));
    array.and_then(|array| array.layout).map_or(0, |layout| layout.memory_space)
}

/// Whether `row` maps zeros to zeros.
fn keeps_zero(module: &Module, row: Row) -> bool {
    use Opcode::*;
    matches!(
        module.opcode(row),
        Abs | AllGather
            | AllGatherDone
            | AllGatherStart
            | AllToAll
            | Asin
            | Asinh
            | Atanh
            | Bitcast
            | Cbrt
            | Ceil
            | CollectivePermute
            | Convert
            | Copy
            | CopyDone
            | CopyStart
            | Erf
            | ExponentialMinusOne
            | Floor
            | GetTupleElement
            | LogPlusOne
            | Negate
            | ReducePrecision
            | Reshape
            | Reverse
            | RoundNearestAfz
            | RoundNearestEven
            | Sign
            | Sine
            | Sinh
            | Slice
            | Sqrt
            | Tan
            | Tanh
            | Transpose
    )
}

/// `, %index` for the first dimension and for `rank` others. Slices span the other dimensions,
/// where any index is clamped to zero.
fn push_indices(module: &Module, out: &mut Vec<u8>, index: Row, rest: Row, rank: usize) {
    for index in std::iter::once(index).chain(std::iter::repeat_n(rest, rank)) {
        out.extend_from_slice(b", %");
        out.extend_from_slice(module.instruction_name(index));
    }
}

fn metadata_of(module: &Module, row: Row) -> Vec<u8> {
    let metadata = module.attribute_bytes(row, "metadata");
    metadata.map(|value| [b", metadata=", value].concat()).unwrap_or_default()
}
