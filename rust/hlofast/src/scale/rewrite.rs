//! Writes a module's text with new sizes.

use super::fast::Leaving;
use super::moves::Needless;
use super::size::{Factor, MOST_AXES, Sizes, tidy};
use super::windows::with_windows;
use super::{Attributed, ScaleError, Scaled, Work};
use crate::comms::{DeviceGroups, Mesh};
use crate::edit::{Edit, apply};
use crate::ir::decode::{AttributeValue, DimensionLabel, WindowDimension, decode};
use crate::ir::{ComputationId, FAST_SPACE, Flags, Module, Opcode, Row, ShapeId, ShapeView};
use crate::print::shape_to_text;
use std::collections::BTreeSet;

/// Larger dimensions are refused.
const MOST_SIZE: i64 = 1 << 48;

/// The changed module.
pub(super) fn write(
    attributed: &Attributed<'_>,
    sizes: &Sizes<'_>,
    mesh: Option<&Mesh>,
    leaving: &Leaving,
) -> Result<Scaled, ScaleError> {
    let mut writer = Writer::new(attributed, sizes, mesh, leaving)?;
    let module = attributed.spread.module;
    if !leaving.is_empty() {
        writer.needless = Needless::find(&attributed.spread, |row| writer.places(row));
    }
    let removed = writer.needless.rows.iter().map(|row| Edit::Remove { row: *row });
    let calls = writer.needless.computations.iter();
    let calls = calls.map(|id| Edit::RemoveComputation { computation: *id });
    writer.edits = removed.chain(calls).collect();
    let mut computations = BTreeSet::new();
    for row in module.rows().filter(|row| !module.is_implicit(*row)) {
        if writer.needless.rows.contains(&row) {
            continue;
        }
        if writer.is_changed(row) || writer.leaves_fast_memory(row) {
            let shape = writer.shape(row, true);
            writer.edits.push(Edit::ReplaceShape { row, shape });
            let is_root = module.flags(row) & Flags::ROOT != 0;
            if is_root || module.opcode(row) == Opcode::Parameter {
                computations.insert(module.computation_of(row));
            }
            if module.opcode(row) == Opcode::Constant {
                writer.edits.push(Edit::ReplaceLiteral { row, literal: b"{...}".to_vec() });
            }
        }
        writer.attributes(row);
        writer.operands(row);
    }
    writer.control();
    for computation in &computations {
        let signature = writer.signature(*computation);
        writer.edits.push(Edit::ChangeSignature { computation: *computation, signature });
    }
    writer.loops();
    writer.header(computations.contains(&module.entry()));
    let changed = apply(module, &writer.edits).map_err(ScaleError::Edit)?;
    Ok(Scaled {
        module: changed,
        rounded: writer.rounded,
        removed: writer.needless.rows.into_iter().collect(),
        assumed_loops: writer.assumed_loops,
        unchanged_groups: writer.unchanged_groups,
        work: Work::default(),
    })
}

struct Writer<'a, 'm> {
    attributed: &'a Attributed<'m>,
    sizes: &'a Sizes<'a>,
    /// The new mesh, if it differs.
    mesh: Option<&'a Mesh>,
    module: &'m Module,
    /// The new size of each dimension.
    new: Vec<i64>,
    leaving: &'a Leaving,
    /// Moves between memories that vanish.
    needless: Needless,
    edits: Vec<Edit>,
    rounded: usize,
    assumed_loops: Vec<Row>,
    unchanged_groups: Vec<Row>,
}

impl<'a, 'm> Writer<'a, 'm> {
    fn new(
        attributed: &'a Attributed<'m>,
        sizes: &'a Sizes<'a>,
        mesh: Option<&'a Mesh>,
        leaving: &'a Leaving,
    ) -> Result<Self, ScaleError> {
        let spread = &attributed.spread;
        let refused = |reason: &str| ScaleError::Refused(reason.to_owned());
        let mut new = Vec::with_capacity(spread.dims.len());
        let mut rounded = 0;
        // Dimensions of one element vanish in compiled programs, so those that grow may be found in
        // several dimensions of one array: they count once.
        let mut ones: Vec<(u32, [i8; MOST_AXES])> = Vec::new();
        let mut array = None;
        for (place, (dim, old)) in spread.dims.iter().zip(&spread.places.sizes).enumerate() {
            let Some(dim) = dim else {
                new.push(*old);
                continue;
            };
            if *old == 0 {
                new.push(0);
                continue;
            }
            let own = Some(spread.places.array_of(place));
            if array != own {
                ones.clear();
                array = own;
            }
            let once;
            let mut dim: &[Factor] = dim;
            if dim.iter().any(Factor::is_one) {
                let mut is_new = |factor: &Factor| {
                    let own = (spread.symbols.root(factor.symbol).0, factor.axes);
                    let is_new = !factor.is_one() || !ones.contains(&own);
                    if factor.is_one() && is_new {
                        ones.push(own);
                    }
                    is_new
                };
                once = tidy(dim.iter().copied().filter(|factor| is_new(factor)).collect());
                dim = &once;
            }
            let (size, is_whole) = sizes
                .of_dim(dim)
                .ok_or_else(|| refused("a dimension would be smaller than 1, or too large"))?;
            if size > MOST_SIZE {
                return Err(refused("the new sizes are too large"));
            }
            rounded += usize::from(!is_whole && size != *old);
            new.push(size);
        }
        let is_other = sizes.axes.iter().any(|(old, new)| old != new);
        if is_other && spread.module.replica_count() != Some(1) {
            return Err(refused("the mesh of a program with replicas cannot change"));
        }
        Ok(Self {
            attributed,
            sizes,
            mesh: mesh.filter(|_| is_other),
            module: spread.module,
            new,
            leaving,
            needless: Needless::default(),
            edits: Vec::new(),
            rounded,
            assumed_loops: Vec::new(),
            unchanged_groups: Vec::new(),
        })
    }

    /// The sizes of array `leaf` of `row`.
    fn leaf(&self, row: Row, leaf: usize) -> &[i64] {
        let slot = self.attributed.spread.places.leaf(row, leaf);
        slot.and_then(|slot| self.new.get(slot.start as usize..(slot.start + slot.rank) as usize))
            .unwrap_or_default()
    }

    fn old(&self, row: Row, leaf: usize) -> &[i64] {
        let places = &self.attributed.spread.places;
        places.leaf(row, leaf).map(|slot| places.sizes(slot)).unwrap_or_default()
    }

    fn is_changed(&self, row: Row) -> bool {
        let leaves = self.attributed.spread.places.leaves(row);
        (0..leaves).any(|leaf| self.leaf(row, leaf) != self.old(row, leaf))
    }

    /// The new text of the shape of `row`.
    fn shape(&self, row: Row, layouts: bool) -> Vec<u8> {
        let (mut text, mut leaf) = (Vec::new(), 0);
        let shapes = self.module.shapes();
        // Shapes to write, or the text that closes a tuple.
        let mut open: Vec<Result<ShapeId, &[u8]>> = vec![Ok(self.module.shape(row))];
        while let Some(next) = open.pop() {
            match next.map(|id| (id, shapes.get(id))) {
                Err(words) => text.extend_from_slice(words),
                Ok((_, ShapeView::Tuple(parts))) => {
                    text.push(b'(');
                    open.push(Err(b")"));
                    for (index, part) in parts.iter().enumerate().rev() {
                        open.push(Ok(*part));
                        if index > 0 {
                            open.push(Err(b", "));
                        }
                    }
                }
                Ok((id, _)) => {
                    let old = shape_to_text(self.module, id, layouts);
                    let new = with_sizes(&old, self.leaf(row, leaf));
                    if self.leaving.has(row, leaf) && self.is_fast(id) {
                        text.extend_from_slice(&without_space(&new));
                    } else {
                        text.extend_from_slice(&new);
                    }
                    leaf += 1;
                }
            }
        }
        text
    }

    fn leaves_fast_memory(&self, row: Row) -> bool {
        let leaves = self.attributed.spread.places.leaves(row);
        !self.leaving.is_empty() && (0..leaves).any(|leaf| self.leaving.has(row, leaf))
    }

    fn is_fast(&self, id: ShapeId) -> bool {
        let layout = self.module.shapes().array(id).and_then(|array| array.layout);
        layout.is_some_and(|layout| layout.memory_space == FAST_SPACE)
    }

    /// The text of the shape of `row`, an array: as compiled, and after the change.
    fn places(&self, row: Row) -> Option<[Vec<u8>; 2]> {
        let shape = self.module.shape(row);
        self.module.shapes().array(shape)?;
        Some([shape_to_text(self.module, shape, true), self.shape(row, true)])
    }

    fn signature(&self, id: ComputationId) -> Vec<u8> {
        let mut text = b"(".to_vec();
        for (index, row) in self.module.parameters(id).into_iter().enumerate() {
            if index > 0 {
                text.extend_from_slice(b", ");
            }
            text.extend_from_slice(self.module.instruction_name(row));
            text.extend_from_slice(b": ");
            text.extend_from_slice(&self.shape(row, false));
        }
        text.extend_from_slice(b") -> ");
        text.extend_from_slice(&self.shape(Row(self.module.computation(id).root), false));
        text
    }

    /// Operands that are written with shapes are written without; what is not moved any more is read
    /// where it is.
    fn operands(&mut self, row: Row) {
        let module = self.module;
        let operands = module.operands(row);
        if operands.is_empty() {
            return;
        }
        let has_shapes = module.bytes(module.opcode_and_payload(row).1).contains(&b'[');
        for (index, operand) in operands.iter().enumerate() {
            let operand = Row(*operand);
            let source = self.needless.source(operand);
            let is_bare = has_shapes && self.is_changed(operand) && !module.is_implicit(operand);
            if source.is_some() || is_bare {
                let name = module.instruction_name(source.unwrap_or(operand)).to_vec();
                self.edits.push(Edit::ReplaceOperand { row, index, name });
            }
        }
    }

    /// Nothing waits for moves that vanish.
    fn control(&mut self) {
        let module = self.module;
        let is_needless = |row: &Row| self.needless.rows.contains(row);
        let mut changed = Vec::new();
        for pairs in module.control_predecessors().chunk_by(|(row, _), (next, _)| row == next) {
            let Some((row, _)) = pairs.first() else { continue };
            if is_needless(row) || !pairs.iter().any(|(_, own)| is_needless(own)) {
                continue;
            }
            let rest = pairs.iter().map(|(_, own)| own).filter(|own| !is_needless(own));
            let names: Vec<Vec<u8>> =
                rest.map(|own| [b"%", module.instruction_name(*own)].concat()).collect();
            let value = [b"{", names.join(&b", "[..]).as_slice(), b"}"].concat();
            changed.push((*row, (!names.is_empty()).then_some(value)));
        }
        for (row, value) in changed {
            self.set(row, "control-predecessors", value);
        }
    }

    fn set(&mut self, row: Row, key: &str, value: Option<Vec<u8>>) {
        self.edits.push(Edit::SetAttribute { row, key: key.as_bytes().to_vec(), value });
    }

    fn decoded(&self, row: Row, key: &str) -> Option<AttributeValue<'m>> {
        let value = self.module.attribute_bytes(row, key)?;
        decode(key.as_bytes(), self.module.opcode(row), value).ok()
    }

    fn operand(&self, row: Row, index: usize) -> Option<Row> {
        self.module.operands(row).get(index).map(|row| Row(*row))
    }

    fn attributes(&mut self, row: Row) {
        let first = self.operand(row, 0);
        match self.module.opcode(row) {
            Opcode::Slice => {
                if let Some(first) =
                    first.filter(|own| self.is_changed(row) || self.is_changed(*own))
                {
                    self.slice(row, first);
                }
            }
            Opcode::DynamicSlice if self.is_changed(row) => {
                let value = braces(self.leaf(row, 0).iter());
                self.set(row, "dynamic_slice_sizes", Some(value));
            }
            Opcode::Gather => {
                if let Some(first) = first.filter(|own| self.is_changed(*own)) {
                    self.window_sizes(row, first);
                }
            }
            Opcode::Pad => {
                if let Some(first) =
                    first.filter(|own| self.is_changed(row) || self.is_changed(*own))
                {
                    self.padding(row, first);
                }
            }
            Opcode::Convolution | Opcode::ReduceWindow => self.window(row),
            Opcode::CustomCall => {
                let operands = self.module.operands(row).iter().map(|row| Row(*row));
                let operands: Vec<Row> = operands.collect();
                if self.module.attribute(row, "operand_layout_constraints").is_some()
                    && operands.iter().any(|row| self.is_changed(*row))
                {
                    let shapes: Vec<Vec<u8>> =
                        operands.iter().map(|row| self.shape(*row, true)).collect();
                    let value = [b"{", shapes.join(&b", "[..]).as_slice(), b"}"].concat();
                    self.set(row, "operand_layout_constraints", Some(value));
                }
            }
            _ => {}
        }
        self.notes(row);
        if let Some(mesh) = self.mesh {
            self.on_mesh(row, mesh);
        }
    }

    /// The compiler's notes on windows.
    fn notes(&mut self, row: Row) {
        let operands = self.module.operands(row).iter().map(|row| Row(*row));
        let all: Vec<Row> = operands.chain([row]).collect();
        if self.module.opcode(row) == Opcode::While || !all.iter().any(|row| self.is_changed(*row))
        {
            return;
        }
        let elements = |sizes: &[i64]| sizes.iter().fold(1.0, |all, size| all * *size as f64);
        let (mut old, mut new) = (0.0, 0.0);
        for row in &all {
            for leaf in 0..self.attributed.spread.places.leaves(*row) {
                old += elements(self.old(*row, leaf));
                new += elements(self.leaf(*row, leaf));
            }
        }
        let pairs = self.old(row, 0).iter().zip(self.leaf(row, 0));
        let sizes: Vec<(i64, i64)> = pairs.map(|(old, new)| (*old, *new)).collect();
        let value = self.module.attribute_bytes(row, "backend_config");
        if let Some(value) =
            value.and_then(|value| with_windows(value, &sizes, new / f64::max(old, 1.0)))
        {
            self.set(row, "backend_config", Some(value));
        }
    }

    fn slice(&mut self, row: Row, operand: Row) {
        let Some(AttributeValue::Slice(dims)) = self.decoded(row, "slice") else { return };
        let mut words = Vec::new();
        for (index, dim) in dims.iter().enumerate() {
            let at = |sizes: &[i64]| sizes.get(index).copied().unwrap_or(1);
            let (whole, part) = (at(self.leaf(operand, 0)), at(self.leaf(row, 0)));
            let old = at(self.old(operand, 0));
            let span = (part - 1).saturating_mul(dim.stride).saturating_add(1);
            let last = whole.saturating_sub(span).max(0);
            let start = if dim.start == 0 {
                0
            } else if dim.limit == old {
                last
            } else {
                let scaled = i128::from(dim.start) * i128::from(whole) / i128::from(old.max(1));
                i64::try_from(scaled).unwrap_or(0).clamp(0, last)
            };
            let limit = start.saturating_add(span);
            words.push(match dim.stride {
                1 => format!("[{start}:{limit}]"),
                stride => format!("[{start}:{limit}:{stride}]"),
            });
        }
        self.set(row, "slice", Some(format!("{{{}}}", words.join(", ")).into_bytes()));
    }

    fn window_sizes(&mut self, row: Row, operand: Row) {
        let Some(AttributeValue::Integers(old)) = self.decoded(row, "slice_sizes") else { return };
        let pairs = self.old(operand, 0).iter().zip(self.leaf(operand, 0));
        let sizes =
            old.iter().zip(pairs).map(
                |(size, (before, after))| {
                    if size == before { *after } else { (*size).min(*after) }
                },
            );
        let value = braces(sizes.collect::<Vec<i64>>().iter());
        self.set(row, "slice_sizes", Some(value));
    }

    fn padding(&mut self, row: Row, operand: Row) {
        let Some(AttributeValue::Padding(dims)) = self.decoded(row, "padding") else { return };
        let mut words = Vec::new();
        for (index, dim) in dims.iter().enumerate() {
            let at = |sizes: &[i64]| sizes.get(index).copied().unwrap_or(1);
            let (from, to) = (at(self.leaf(operand, 0)), at(self.leaf(row, 0)));
            let inner = dim.interior.saturating_mul(from.saturating_sub(1));
            let all = to.saturating_sub(from).saturating_sub(inner);
            let (low, high) = match (dim.low, dim.high) {
                (low, high) if low.saturating_add(high) == all => (low, high),
                (low, 0) if low != 0 => (all, 0),
                (0, _) => (0, all),
                (low, _) => (low, all.saturating_sub(low)),
            };
            words.push(match dim.interior {
                0 => format!("{low}_{high}"),
                interior => format!("{low}_{high}_{interior}"),
            });
        }
        self.set(row, "padding", Some(words.join("x").into_bytes()));
    }

    /// The numbers of a window follow the dimension over which it goes.
    fn window(&mut self, row: Row) {
        let Some(AttributeValue::Window(mut dims)) = self.decoded(row, "window") else { return };
        let mut is_other = false;
        for (index, dim) in dims.iter_mut().enumerate() {
            let Some((old, new)) = self.window_span(row, index) else { continue };
            if old == new || old < 2 || dim.size < 2 {
                continue;
            }
            let follow = |number: i64| match number {
                _ if number == old => new,
                _ if number == old - 1 => new - 1,
                _ if number == 2 * old - 1 => 2 * new - 1,
                _ => number,
            };
            dim.size = follow(dim.size);
            dim.padding_low = follow(dim.padding_low);
            dim.padding_high = follow(dim.padding_high);
            if dim.base_dilation == old && old > 1 {
                dim.base_dilation = new.max(1);
                dim.stride = if dim.stride == old - 1 { (new - 1).max(1) } else { dim.stride };
            } else if dim.stride == old && dim.base_dilation == old - 1 {
                dim.stride = new.max(1);
                dim.base_dilation = (new - 1).max(1);
            }
            is_other = true;
        }
        if is_other {
            let value = window_text(&dims);
            self.set(row, "window", Some(value));
        }
    }

    /// Old and new size of the dimension over which dimension `index` of a window goes.
    fn window_span(&self, row: Row, index: usize) -> Option<(i64, i64)> {
        let (operand, dimension) = if self.module.opcode(row) == Opcode::Convolution {
            let Some(AttributeValue::DimensionLabels(labels)) = self.decoded(row, "dim_labels")
            else {
                return None;
            };
            let wanted = DimensionLabel::Spatial(u8::try_from(index).ok()?);
            (self.operand(row, 1)?, labels.rhs.iter().position(|own| *own == wanted)?)
        } else {
            (self.operand(row, 0)?, index)
        };
        let old = *self.old(operand, 0).get(dimension)?;
        Some((old, *self.leaf(operand, 0).get(dimension)?))
    }

    /// Device groups, transfers and shardings.
    fn on_mesh(&mut self, row: Row, mesh: &Mesh) {
        let opcode = self.module.opcode(row);
        if DeviceGroups::has_groups(opcode) {
            match self.attributed.groups(row, mesh) {
                Some(value) => self.set(row, "replica_groups", Some(value)),
                None => self.unchanged_groups.push(row),
            }
        } else if matches!(opcode, Opcode::CollectivePermute | Opcode::CollectivePermuteStart) {
            match self.attributed.pairs(row, mesh) {
                Some(value) => self.set(row, "source_target_pairs", Some(value)),
                None => self.unchanged_groups.push(row),
            }
        }
        if self.module.attribute(row, "sharding").is_some() {
            let is_entry = opcode == Opcode::Parameter
                && self.module.computation_of(row) == self.module.entry()
                && self.attributed.spread.places.leaves(row) == 1;
            let value = is_entry
                .then(|| self.attributed.sharding(row, self.old(row, 0).len(), mesh))
                .flatten();
            self.set(row, "sharding", value);
        }
    }

    /// Trip counts, as the compiler's note in `backend_config`.
    fn loops(&mut self) {
        for (row, trip) in &self.attributed.loops {
            let Some(trips) = self.attributed.trips(*row, trip, self.sizes) else { continue };
            let count = trips.count;
            if trips.is_assumed {
                self.assumed_loops.push(*row);
            }
            let note = format!("\"known_trip_count\":{{\"n\":\"{count}\"}}");
            let config = self.module.backend_config_json(*row);
            let value = match config {
                Some(serde_json::Value::Object(mut config)) => {
                    config.insert(
                        "known_trip_count".to_owned(),
                        serde_json::json!({"n": count.to_string()}),
                    );
                    serde_json::Value::Object(config).to_string()
                }
                _ => format!("{{{note}}}"),
            };
            self.set(*row, "backend_config", Some(value.into_bytes()));
        }
    }

    fn header(&mut self, is_entry_changed: bool) {
        let module = self.module;
        if is_entry_changed && module.header_attribute("entry_computation_layout").is_some() {
            let entry = module.entry();
            let shapes: Vec<Vec<u8>> =
                module.parameters(entry).into_iter().map(|row| self.shape(row, true)).collect();
            let root = self.shape(Row(module.computation(entry).root), true);
            let value = [b"{(", shapes.join(&b", "[..]).as_slice(), b")->", &root, b"}"].concat();
            let key = b"entry_computation_layout".to_vec();
            self.edits.push(Edit::SetHeaderAttribute { key, value: Some(value) });
        }
        if let Some(mesh) = self.mesh {
            let value = Some(mesh.device_count().to_string().into_bytes());
            let key = b"num_partitions".to_vec();
            self.edits.push(Edit::SetHeaderAttribute { key, value });
        }
    }
}

/// `{1,2}`.
fn braces<'a>(numbers: impl Iterator<Item = &'a i64>) -> Vec<u8> {
    let words: Vec<String> = numbers.map(i64::to_string).collect();
    format!("{{{}}}", words.join(",")).into_bytes()
}

/// The text of an array's shape without its memory space, which is then HBM.
fn without_space(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    text.replace(":S(1)}", "}").replace("S(1)", "").into_bytes()
}

/// The text of an array's shape with other fixed sizes.
fn with_sizes(text: &[u8], sizes: &[i64]) -> Vec<u8> {
    let (Some(start), Some(end)) = (memchr::memchr(b'[', text), memchr::memchr(b']', text)) else {
        return text.to_vec();
    };
    let (Some(before), Some(inside), Some(after)) =
        (text.get(..=start), text.get(start + 1..end), text.get(end..))
    else {
        return text.to_vec();
    };
    let words: Vec<Vec<u8>> = inside
        .split(|byte| *byte == b',')
        .enumerate()
        .map(|(index, word)| match sizes.get(index) {
            Some(size) if *size >= 0 => size.to_string().into_bytes(),
            _ => word.to_vec(),
        })
        .collect();
    [before, words.join(&b","[..]).as_slice(), after].concat()
}

/// `{size=8x2 stride=7x1 pad=0_0x1_1 lhs_dilate=8x1 rhs_reversal=0x1}`, without defaults.
fn window_text(dims: &[WindowDimension]) -> Vec<u8> {
    let part = |key: &str, word: &dyn Fn(&WindowDimension) -> String, default: &str| {
        let words: Vec<String> = dims.iter().map(word).collect();
        let is_default = words.iter().all(|word| word == default);
        (!is_default).then(|| format!("{key}={}", words.join("x")))
    };
    let parts = [
        part("size", &|dim| dim.size.to_string(), ""),
        part("stride", &|dim| dim.stride.to_string(), "1"),
        part("pad", &|dim| format!("{}_{}", dim.padding_low, dim.padding_high), "0_0"),
        part("lhs_dilate", &|dim| dim.base_dilation.to_string(), "1"),
        part("rhs_dilate", &|dim| dim.window_dilation.to_string(), "1"),
        part("rhs_reversal", &|dim| u8::from(dim.reversal).to_string(), "0"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{{{}}}", parts.join(" ")).into_bytes()
}
