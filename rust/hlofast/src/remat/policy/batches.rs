//! Batch dimensions of products that are gone from the shapes of one device.
//!
//! A partitioned program has the shapes of one device. Where each device has one stage, expert or example, the
//! dimension that is split, which `jax.vmap` often adds, has the size 1 there, and XLA drops it. To JAX it is a
//! batch dimension of a product if both operands have it. Then both differ along the mesh axes that split it, and
//! nothing is added up along these. If one operand has it, only this one differs. If it is summed up, the sum of the
//! product crosses these axes; so does the sum over stages of products of stages, which XLA makes one product of.

use super::graph::Graph;
use super::named::{components, equation, is_named_product};
use super::products::Products;
use super::scans::is_rearrangement;
use super::{Policies, SavableKind};
use crate::comms::{Partitioned, Varying, shifts};
use crate::flow::walk::{Trail, converts};
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use hashbrown::{HashMap, HashSet};
use memchr::memmem;
use std::cell::OnceCell;

/// Limit on the values that are followed from a product to its sum.
const MOST_STEPS: usize = 64;
/// What a component of operation names contains inside `jax.vmap`, as `jvp(vmap())` does.
const MAPPED: &[u8] = b"vmap(";
/// The component of operation names inside a program that is partitioned by hand, whose shapes are those that
/// JAX sees.
const BY_HAND: &[u8] = b"shard_map";

impl Policies {
    /// Finds the batch dimensions of products under `jax.vmap` that a scheduled text does not show.
    pub(crate) fn find_batches(&mut self, program: &Partitioned<'_>) {
        let module = program.module;
        if module.num_partitions() == Some(1) {
            return;
        }
        let unrolled = self.unrolled.as_ref().map(|own| &own.graph);
        let unrolled = unrolled.map(|graph| (graph, Products::new(module, graph)));
        // What surely differs, and what may.
        let varying = OnceCell::new();
        let varying = || varying.get_or_init(|| [Varying::least(program), Varying::new(program)]);
        let mut known = None;
        for value in self.savable.iter_mut().filter(|own| own.kind == SavableKind::Product) {
            let (graph, products) = match &unrolled {
                Some((graph, products)) => (*graph, products),
                None => {
                    let scan = &self.scans[value.scan as usize];
                    (&scan.body, &scan.recomputed.products)
                }
            };
            let Some(product) = products.of[value.node as usize] else { continue };
            let row = graph.nodes[product as usize].row;
            if !components(module, row).any(|part| memmem::find(part, MAPPED).is_some()) {
                continue;
            }
            let both = || {
                let (both, shifts) = (varying().each_ref(), shifts(program));
                let shift = |row| shifts.get(&row).copied();
                both.map(|own| own.as_ref().map(|own| Batches::new(module, own, shift)))
            };
            let [least, most] = known
                .get_or_insert_with(both)
                .each_ref()
                .map(|own| own.as_ref().and_then(|own| own.has_batch(graph, product)));
            value.kind = match most {
                Some(true) if least == most => SavableKind::BatchedProduct,
                Some(false) if least == most => SavableKind::Product,
                _ => SavableKind::MappedProduct,
            };
        }
    }
}

/// What tells batch dimensions.
struct Batches<'a> {
    module: &'a Module,
    varying: &'a Varying,
    /// By name and line of a product that is computed in steps between which parts of an operand or of the result go
    /// round: the axes of the ring.
    rings: HashMap<(i32, i32), u64, BuildMix>,
}

impl<'a> Batches<'a> {
    /// `shift` gives the axes along which a collective-permute shifts values, if they are known.
    fn new(module: &'a Module, varying: &'a Varying, shift: impl Fn(Row) -> Option<u64>) -> Self {
        use Opcode::{CollectivePermute, CollectivePermuteStart};
        let mut rings: HashMap<(i32, i32), u64, BuildMix> = HashMap::default();
        for row in module.rows() {
            let is_permute =
                matches!(module.opcode(row), CollectivePermute | CollectivePermuteStart);
            if is_permute && is_named_product(module, row) {
                let along = shift(row).unwrap_or(varying.all());
                *rings.entry(place(module, row)).or_default() |= along;
            }
        }
        Self { module, varying, rings }
    }

    /// Whether a product has a batch dimension that is gone; None if the text does not tell.
    fn has_batch(&self, graph: &Graph, product: u32) -> Option<bool> {
        let module = self.module;
        let row = graph.nodes[product as usize].row;
        let &[left, right] = module.operands(row) else { return None };
        let differing = |operand: u32| self.varying.differing(module, Row(operand));
        let both = differing(left)? & differing(right)?;
        // Which parts meet in a ring is not followed.
        let ring = self.rings.get(&place(module, row)).copied().unwrap_or(0);
        let both = both & !ring;
        if both == 0 {
            return Some(false);
        }
        if ring != 0 || components(module, row).any(|part| part == BY_HAND) {
            return None;
        }
        let is_batch = both & !self.summed(graph, product) != 0;
        let is_gone = |operand: &u32| has_lost_dimension(module, Row(*operand));
        if is_batch || ![left, right].iter().any(is_gone) {
            return Some(is_batch);
        }
        // An equation may sum up the dimension itself.
        equation(module, row).is_none().then_some(true)
    }

    /// The axes along which partial results of a product are added up.
    fn summed(&self, graph: &Graph, product: u32) -> u64 {
        use Opcode::{Add, AllReduce, Convert, CustomCall, ReduceScatter};
        let (mut axes, mut open, mut at) = (0, vec![product], 0);
        let mut known: HashSet<u32, BuildMix> = HashSet::default();
        while let Some(node) = open.get(at).copied().filter(|_| at < MOST_STEPS) {
            at += 1;
            for user in graph.users(node) {
                let own = &graph.nodes[*user as usize];
                let is_step = match own.opcode {
                    AllReduce | ReduceScatter => {
                        axes |= self.varying.along(own.row);
                        true
                    }
                    Add | Convert => true,
                    CustomCall => is_named_product(self.module, own.row),
                    opcode => is_rearrangement(opcode),
                };
                let is_next = is_step && own.element.is_none() && open.len() < MOST_STEPS;
                if is_next && known.insert(*user) {
                    open.push(*user);
                }
            }
        }
        axes
    }
}

/// The name and the line of a row.
fn place(module: &Module, row: Row) -> (i32, i32) {
    let columns = module.metadata_columns();
    let of = |column: &[i32]| column.get(row.0 as usize).copied().unwrap_or(-1);
    (of(&columns.op_name), of(&columns.source_line))
}

/// Whether a value is a parameter of the program of which a device has one element of a dimension that is split.
fn has_lost_dimension(module: &Module, row: Row) -> bool {
    let through = |opcode| {
        use Opcode::{AllGather, DynamicSlice, Slice};
        converts(opcode) || matches!(opcode, AllGather | DynamicSlice | Slice)
    };
    let source = Trail::new(row).follow(module, through);
    let is_parameter = module.opcode(source.row) == Opcode::Parameter
        && module.computation_of(source.row) == module.entry()
        && source.path().is_empty();
    let Some(array) = module.shapes().array(module.shape(source.row)).filter(|_| is_parameter)
    else {
        return false;
    };
    let text = module.attribute_bytes(source.row, "sharding").unwrap_or_default();
    let Ok(AttributeValue::Sharding(sharding)) = decode(b"sharding", Opcode::Parameter, text)
    else {
        return false;
    };
    let tiles = sharding.leaf(0).and_then(|leaf| leaf.tile_dimensions()).unwrap_or_default();
    tiles.iter().enumerate().any(|(at, parts)| {
        let size = array.dimension(at).and_then(|dimension| dimension.bound());
        *parts > 1 && size == Some(1)
    })
}
