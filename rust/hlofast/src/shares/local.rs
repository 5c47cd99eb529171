//! What one device holds and computes of every value of a module before partitioning.

use super::exchanged::{Exchanged, exchanged};
use super::parts::Mask;
use super::spread::Spread;
use super::{bytes, contracted, product, whole_bytes};
use crate::comms::Mesh;
use crate::cost::matmul::{contraction, dot_dimensions};
use crate::flow::Contexts;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use hashbrown::HashMap;

/// A matmul as one device runs it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalProduct {
    /// FLOPs of one call.
    pub flops: i64,
    /// Bytes of operands that the device has to gather first, by operand.
    pub gathered: [i64; 2],
    /// From how many devices; 1 if they are not gathered.
    pub ways: [i64; 2],
    /// Dimensions of the result that are longer than 1 on the device.
    pub rank: usize,
    /// Whether the shardings determine the FLOPs.
    pub is_determined: bool,
    /// Whether devices add up partial results.
    pub is_partial: bool,
}

/// The bytes of values, and the matmuls, of one device. Where a computation has several callers, the
/// largest figures of all.
#[derive(Debug)]
pub struct Local {
    /// By leaf of the rows' results, in row order.
    bytes: Vec<i64>,
    /// By row that is a matmul.
    products: HashMap<Row, LocalProduct, BuildMix>,
    exchanged: Exchanged,
    /// Devices that the shapes cover together.
    pub devices: u64,
}

impl Local {
    /// The share of one device of `devices`, whose arrays lie on `mesh`. None if the module is too
    /// large. With one device, shapes are those of the device.
    pub fn new(module: &Module, mesh: Option<&Mesh>, devices: u64) -> Option<Self> {
        let offsets = module.leaf_offsets();
        let count = usize::try_from(offsets.last().copied().unwrap_or(0)).ok()?;
        let mut local = Local {
            bytes: Vec::new(),
            products: HashMap::default(),
            exchanged: Exchanged::default(),
            devices,
        };
        // Shapes with many leaves that many rows share are far larger than the text.
        if count > module.text().len().saturating_mul(16).saturating_add(1 << 20) {
            return None;
        }
        local.bytes = vec![0; count];
        let contexts = Contexts::by_call(module);
        let spread = match (devices, mesh.filter(|mesh| mesh.device_count() == devices)) {
            (2.., Some(mesh)) => Spread::new(module, &contexts, mesh),
            _ => None,
        };
        let Some(spread) = spread else {
            for row in module.rows() {
                let leaves = module.shapes().leaves(module.shape(row));
                for (at, shape) in (offsets[row.0 as usize] as usize..).zip(leaves) {
                    local.bytes[at] = whole_bytes(module, shape);
                }
                if let Some(product) = contraction(module, row) {
                    let flops = product.flops;
                    let array = module.shapes().array(module.shape(row));
                    let rank = array.map_or(0, |array| {
                        array.dimensions().filter(|size| size.bound() != Some(1)).count()
                    });
                    let is_determined = devices < 2;
                    let own = LocalProduct { flops, rank, is_determined, ..Default::default() };
                    local.products.insert(row, own);
                }
            }
            return Some(local);
        };
        for node in 0..contexts.nodes.len() as u32 {
            if !contexts.is_reached(node) {
                continue;
            }
            for row in module.computation(contexts.nodes[node as usize].computation).rows() {
                let leaves = module.shapes().leaves(module.shape(Row(row)));
                let values = spread.values.of(node, row);
                for ((at, shape), value) in
                    (offsets[row as usize] as usize..).zip(leaves).zip(values)
                {
                    let own = bytes(&spread, shape, value, devices).device;
                    local.bytes[at] = local.bytes[at].max(own);
                }
                if let Some(own) = product_of(&spread, node, Row(row), devices) {
                    let known = local.products.entry(Row(row)).or_default();
                    if own.flops >= known.flops {
                        *known = own;
                    }
                }
            }
        }
        local.exchanged = exchanged(&spread, &contexts);
        Some(local)
    }

    /// Bytes that one device holds of leaf `leaf` of a row's result.
    pub fn bytes(&self, module: &Module, row: Row, leaf: usize) -> i64 {
        let offsets = module.leaf_offsets();
        let at = offsets.get(row.0 as usize).map(|at| *at as usize + leaf);
        at.and_then(|at| self.bytes.get(at)).copied().unwrap_or(0)
    }

    /// The numbers of the operands that devices exchange before they compute an elementwise row.
    pub fn exchanged(&self, row: Row) -> &[u32] {
        self.exchanged.get(&row).map_or(&[], Vec::as_slice)
    }

    /// The matmul that a row is.
    pub fn product(&self, row: Row) -> Option<LocalProduct> {
        self.products.get(&row).copied()
    }
}

/// One call of a matmul on one device.
fn product_of(spread: &Spread<'_>, node: u32, row: Row, devices: u64) -> Option<LocalProduct> {
    let module = spread.module;
    let flops = i128::from(contraction(module, row)?.flops);
    let whole = || LocalProduct {
        flops: i64::try_from(flops).unwrap_or(i64::MAX),
        ..LocalProduct::default()
    };
    let Some(own) = product(spread, node, row, flops, (devices, true)) else {
        return Some(whole());
    };
    let mut local = LocalProduct {
        flops: i64::try_from(own.most).unwrap_or(i64::MAX),
        is_determined: own.is_determined(),
        ..LocalProduct::default()
    };
    let [lhs, rhs] = module.operands(row) else { return Some(local) };
    let value = |row: u32| {
        let values = spread.values.of(node, row);
        (values.len() == 1).then_some(values.start)
    };
    let (Some(lhs), Some(rhs), Some(out)) = (value(*lhs), value(*rhs), value(row.0)) else {
        return Some(local);
    };
    let Some((left, right)) = contracted(module, row) else { return Some(local) };
    let along = |value: usize, dimensions: &[usize]| -> Mask {
        let masks = &spread.masks[spread.dimensions(value)];
        dimensions.iter().filter_map(|at| masks.get(*at)).fold(0, |all, mask| all | mask)
    };
    let along = [along(lhs, &left), along(rhs, &right)];
    let summed = along[0] & along[1];
    local.is_partial = summed & !spread.used(out) != 0;
    local.ways = [1, 1];
    local.rank = rank(spread, out);
    let Some(own) = free(spread, row, [lhs, rhs], out) else { return Some(local) };
    for (at, (operand, other)) in [(lhs, rhs), (rhs, lhs)].into_iter().enumerate() {
        let (free, kept) = own[at];
        // Parts of the sum that only this side is split in, and parts of the result that lie otherwise.
        let split = along[at] & !summed & spread.used(other);
        let missing = split | free & !kept & (spread.used(other) | !spread.used(out));
        if missing != 0 {
            let operand_row = module.operands(row)[at];
            let held = bytes(spread, module.shape(Row(operand_row)), operand, devices).device;
            let ways = i64::try_from(spread.parts.size(missing)).unwrap_or(1);
            local.gathered[at] = held.saturating_mul(ways);
            local.ways[at] = ways;
        }
    }
    Some(local)
}

/// The dimensions of a value that are longer than 1 on a device.
fn rank(spread: &Spread<'_>, value: usize) -> usize {
    let dimensions = spread.dimensions(value);
    let sizes = spread.sizes[dimensions.clone()].iter().zip(&spread.masks[dimensions]);
    let is_long =
        |(size, mask): &(&i64, &Mask)| i128::from(**size) > i128::from(spread.parts.size(**mask));
    sizes.filter(is_long).count()
}

/// By operand of a dot: the parts of its free dimensions, and those of the dimensions of the result that these
/// become. None for other products.
fn free(
    spread: &Spread<'_>,
    row: Row,
    operands: [usize; 2],
    out: usize,
) -> Option<[(Mask, Mask); 2]> {
    if spread.module.opcode(row) != Opcode::Dot {
        return None;
    }
    let lists = dot_dimensions(spread.module, row)?;
    let result = &spread.masks[spread.dimensions(out)];
    let mut first = lists.lhs_batch.len();
    let bound =
        [(lists.lhs_batch, lists.lhs_contracting), (lists.rhs_batch, lists.rhs_contracting)];
    let mut found = [(0, 0); 2];
    for (own, (operand, (batch, contracted))) in
        found.iter_mut().zip(operands.into_iter().zip(bound))
    {
        let masks = &spread.masks[spread.dimensions(operand)];
        let is_free = |at: &i64| !batch.contains(at) && !contracted.contains(at);
        let masks = (0..).zip(masks).filter(|(at, _)| is_free(at)).map(|(_, mask)| *mask);
        let masks: Vec<Mask> = masks.collect();
        let end = first.checked_add(masks.len()).filter(|end| *end <= result.len())?;
        own.0 = masks.iter().fold(0, |all, mask| all | mask);
        own.1 = result[first..end].iter().fold(0, |all, mask| all | mask);
        first = end;
    }
    Some(found)
}
