//! Products that the compiler runs more often than the program does.
//!
//! XLA for TPUs may put a matmul into the fusion of each user instead of storing its result. Copies multiply
//! equal operands: operands are compared through the fusions that hold them, up to values of the computation
//! that calls these fusions, which are equal only to themselves.

use crate::flow::{Attribution, Phase};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Layout, Module, Opcode, Row};
use hashbrown::HashMap;

/// Limit on the rows that are compared for two products.
const MOST_ROWS: usize = 512;
/// Limit on the fusions inside each other.
const MOST_DEPTH: usize = 16;
/// Limit on the products with which another one of the same computation and shape is compared.
const MOST_FIRST: usize = 64;

/// Rows of products in fusions that repeat another product of the computation around the fusions.
/// Ascending.
///
/// Products whose names mark them as recomputation are left out.
pub fn repeated_products(module: &Module, attribution: &Attribution) -> Vec<Row> {
    let mut frames = Frames { module, list: Vec::new(), of: HashMap::default() };
    let mut first: HashMap<(ComputationId, i64), Vec<Place>, BuildMix> = HashMap::default();
    let mut repeated = Vec::new();
    let is_recomputed = |row: Row| attribution.phase.get(row.0 as usize) == Some(&Phase::Recompute);
    let is_product = |row: &Row| module.opcode(*row).is_matmul() && !is_recomputed(*row);
    for row in module.rows().filter(is_product) {
        let Some((place, around)) = frames.place_of(row) else { continue };
        let known = first.entry((around, module.shape_elements(module.shape(row)))).or_default();
        let is_again = known.iter().any(|own| {
            let mut left = MOST_ROWS;
            frames.are_equal(*own, place, &mut left)
        });
        if is_again {
            repeated.push(row);
        } else if known.len() < MOST_FIRST {
            known.push(place);
        }
    }
    repeated
}

/// A row, and the fusion through which it is reached; None outside fusions.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    row: Row,
    frame: Option<u32>,
}

/// Fusions inside each other: each with the one around it.
struct Frames<'a> {
    module: &'a Module,
    list: Vec<Place>,
    of: HashMap<(Row, Option<u32>), u32, BuildMix>,
}

impl Frames<'_> {
    fn enter(&mut self, fusion: Place) -> u32 {
        let number = self.list.len() as u32;
        let frame = *self.of.entry((fusion.row, fusion.frame)).or_insert(number);
        if frame == number {
            self.list.push(fusion);
        }
        frame
    }

    /// Where a product is, and the computation around its fusions; None outside fusions, and where several
    /// fusions share it.
    fn place_of(&mut self, row: Row) -> Option<(Place, ComputationId)> {
        let module = self.module;
        let mut callers = Vec::new();
        let mut around = module.computation_of(row);
        while let [caller] = *module.callers(around) {
            if module.opcode(Row(caller)) != Opcode::Fusion || callers.len() == MOST_DEPTH {
                break;
            }
            callers.push(Row(caller));
            around = module.computation_of(Row(caller));
        }
        let fusions = callers.iter().rev();
        let inner =
            fusions.fold(None, |frame, own| Some(self.enter(Place { row: *own, frame })))?;
        let callers = module.callers(around);
        let is_shared = callers.len() > 1
            && callers
                .iter()
                .take(MOST_FIRST)
                .any(|caller| module.opcode(Row(*caller)) == Opcode::Fusion);
        (!is_shared).then_some((Place { row, frame: Some(inner) }, around))
    }

    /// The row that computes the value of `place`, through parameters and results of fusions and through
    /// rows that only move a value.
    fn source(&mut self, mut place: Place, left: &mut usize) -> Place {
        let module = self.module;
        while *left > 0 {
            *left -= 1;
            let first = module.operands(place.row).first().map(|own| Row(*own));
            let next = match module.opcode(place.row) {
                Opcode::Bitcast
                    if first.is_some_and(|own| is_transpose(module, own, place.row)) =>
                {
                    None
                }
                Opcode::Bitcast | Opcode::Copy | Opcode::CopyStart | Opcode::CopyDone => {
                    first.map(|row| Place { row, ..place })
                }
                Opcode::Parameter => self.outside(place),
                Opcode::Fusion => self.root(place),
                Opcode::GetTupleElement => self.element(place),
                _ => None,
            };
            match next {
                Some(next) => place = next,
                None => return place,
            }
        }
        place
    }

    /// The operand that a fusion's parameter stands for.
    fn outside(&self, parameter: Place) -> Option<Place> {
        let fusion = self.list.get(parameter.frame? as usize)?;
        let number = self.module.parameter_number(parameter.row)?;
        let operand = self.module.operands(fusion.row).get(usize::try_from(number).ok()?)?;
        Some(Place { row: Row(*operand), frame: fusion.frame })
    }

    /// The root of what a fusion calls.
    fn root(&mut self, fusion: Place) -> Option<Place> {
        let called = self.module.called(fusion.row, CallRole::Calls)?;
        let frame = self.enter(fusion);
        Some(Place { row: Row(self.module.computation(called).root), frame: Some(frame) })
    }

    /// The value in the tuple that a fusion returns.
    fn element(&mut self, element: Place) -> Option<Place> {
        let module = self.module;
        let from = Row(*module.operands(element.row).first()?);
        if module.opcode(from) != Opcode::Fusion {
            return None;
        }
        let root = self.root(Place { row: from, ..element })?;
        let own = module.operands(root.row).get(module.tuple_index(element.row)?)?;
        (module.opcode(root.row) == Opcode::Tuple).then_some(Place { row: Row(*own), ..root })
    }

    fn are_equal(&mut self, one: Place, other: Place, left: &mut usize) -> bool {
        let mut open = vec![(one, other)];
        while let Some((one, other)) = open.pop() {
            if one == other {
                continue;
            }
            let (one, other) = (self.source(one, left), self.source(other, left));
            if one == other {
                continue;
            }
            let count = self.module.operands(one.row).len();
            if *left <= count || !is_same_work(self.module, one.row, other.row) {
                return false;
            }
            *left -= count;
            let operands =
                self.module.operands(one.row).iter().zip(self.module.operands(other.row));
            open.extend(
                operands
                    .map(|(a, b)| (Place { row: Row(*a), ..one }, Place { row: Row(*b), ..other })),
            );
        }
        true
    }
}

/// Whether a bitcast reads the elements of `from` in another order: between equal dimensions in different
/// layouts.
fn is_transpose(module: &Module, from: Row, to: Row) -> bool {
    let array = |row: Row| module.shapes().array(module.shape(row));
    let Some((from, to)) = array(from).zip(array(to)) else { return false };
    let order = |layout: Option<&Layout>| layout.map(|own| own.minor_to_major.clone());
    from.is_compatible(&to) && order(from.layout) != order(to.layout)
}

/// Whether two rows compute equal values of equal operands.
fn is_same_work(module: &Module, one: Row, other: Row) -> bool {
    if one == other {
        return is_plain(module.opcode(one));
    }
    let opcode = module.opcode(one);
    let has_operands =
        !module.operands(one).is_empty() || matches!(opcode, Opcode::Constant | Opcode::Iota);
    if opcode != module.opcode(other)
        || !has_operands
        || module.operands(one).len() != module.operands(other).len()
        || !is_plain(opcode)
    {
        return false;
    }
    let array = |row: Row| module.shapes().array(module.shape(row));
    let are_alike = match (array(one), array(other)) {
        (Some(one), Some(other)) => one.is_compatible(&other),
        _ => module.shape(one) == module.shape(other),
    };
    if !are_alike {
        return false;
    }
    if opcode == Opcode::Constant {
        let payload = |row: Row| module.bytes(module.opcode_and_payload(row).1);
        return payload(one) == payload(other);
    }
    let called = |row: Row| module.calls(row).iter().map(|call| call.computation);
    called(one).eq(called(other)) && attributes(module, one).eq(attributes(module, other))
}

/// Whether equal operands give equal results. Gathers between devices do, and are copied too.
fn is_plain(opcode: Opcode) -> bool {
    use Opcode::{
        AllGather, AllGatherDone, AllGatherStart, Broadcast, Concatenate, Constant, DynamicSlice,
        Gather, GetTupleElement, Iota, Pad, Reduce, Reshape, Reverse, Slice, Transpose,
    };
    opcode.is_elementwise()
        || opcode.is_matmul()
        || matches!(
            opcode,
            AllGather
                | AllGatherDone
                | AllGatherStart
                | Broadcast
                | Concatenate
                | Constant
                | DynamicSlice
                | Gather
                | GetTupleElement
                | Iota
                | Pad
                | Reduce
                | Reshape
                | Reverse
                | Slice
                | Transpose
        )
}

/// Attributes that a result depends on.
fn attributes(module: &Module, row: Row) -> impl Iterator<Item = (&[u8], &[u8])> {
    let about: [&[u8]; 7] = [
        b"channel_id",
        b"metadata",
        b"backend_config",
        b"frontend_attributes",
        b"control-predecessors",
        b"to_apply",
        b"sharding",
    ];
    let pairs = module.attributes(row).map(|own| (module.bytes(own.key), module.bytes(own.value)));
    pairs.filter(move |(name, _)| !about.contains(name))
}
