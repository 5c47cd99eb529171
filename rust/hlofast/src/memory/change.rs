//! The peak of a program after a change: results that take the memory of parameters, and arrays that
//! become smaller or are not made at all.
//!
//! Only what the change names is changed. Everything else is as in the text: its schedule, its fusions, and
//! the place of every other value. XLA's account (`xla.rs`) is made of that program anew, so memory
//! that becomes free is given to other values as XLA would give it: a result that is not donated stays
//! allocated throughout, and temporaries of the step live in it until it is written; once it takes the
//! memory of a parameter, these need memory of their own. So donating frees less than the bytes of the results.

use super::values::Reader;
use super::xla::{Sizes, packed_account};
use super::{Frame, MemoryError, Tables};
use crate::flow::Place;
use crate::ir::decode::Alias;
use crate::ir::{Module, Row, ShapeId};
use std::collections::HashMap;

/// Arrays that become smaller together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alike {
    /// The elements that each of them has.
    pub elements: u64,
    /// A dimension that each of them has.
    pub dimension: u64,
    /// By how much their bytes are divided.
    pub parts: u64,
    /// The bits of an element of those that have more.
    pub bits: Option<u32>,
}

/// Arrays of one shape that take other bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// Their shape.
    pub shape: ShapeId,
    /// The bytes that each of them takes.
    pub bytes: u64,
}

/// An array that is not made: what is computed from it reads the array that it is made from, which so lives as long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spared {
    /// The row that makes it.
    pub row: Row,
    /// Its shape, if the row makes several arrays.
    pub shape: ShapeId,
    /// The array that it is made from.
    pub from: Place,
}

impl Spared {
    /// The values of the array that it is made from, and of each array of its shape.
    fn values<'a>(
        &'a self,
        reader: &'a Reader<'_>,
        of: &'a [u32],
    ) -> Option<impl Iterator<Item = (u32, u32)> + 'a> {
        let module = reader.module;
        let from = node(reader, &self.from)?;
        let nodes = reader.nodes.of(reader.steps.of(self.row.0)?);
        let (first, from) = (nodes.start, of[from as usize]);
        let whole = module.shape(self.row);
        let is_own = move |node: &u32| {
            reader.shapes.shape_at(module, whole, node - first) == self.shape
                && of[*node as usize] == *node
        };
        Some(nodes.filter(is_own).map(move |node| (from, node)))
    }
}

/// A change of the values of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Results that take the memory of parameters.
    pub donated: Vec<Alias>,
    /// Arrays that become smaller.
    pub divided: Vec<Alike>,
    /// Arrays that take other bytes.
    pub resized: Vec<Resized>,
    /// Arrays that have the shape of one of `resized` by chance, and keep their bytes.
    pub kept: Vec<Place>,
    /// Arrays that the program then does not make.
    pub spared: Vec<Spared>,
}

impl Change {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        let is_resized = !self.divided.is_empty() || !self.resized.is_empty();
        self.donated.is_empty() && self.spared.is_empty() && !is_resized
    }

    /// Adds `other`.
    pub fn add(&mut self, other: Change) {
        self.donated.extend(other.donated);
        self.resized.extend(other.resized);
        self.kept.extend(other.kept);
        self.kept.sort_by(|a, b| (a.row.0, &a.path).cmp(&(b.row.0, &b.path)));
        self.kept.dedup();
        self.spared.extend(other.spared);
        for alike in other.divided {
            if !self.divided.contains(&alike) {
                self.divided.push(alike);
            }
        }
    }

    /// The bytes of arrays of `shape`, which are `bytes` before the change.
    fn bytes(&self, module: &Module, shape: ShapeId, bytes: i64) -> i64 {
        let Some(array) = module.shapes().array(shape).filter(|_| !self.divided.is_empty()) else {
            return bytes;
        };
        let has = |size: u64| {
            let mut sizes = (0..array.rank()).filter_map(|at| array.dimension(at)?.bound());
            sizes.any(|own| u64::try_from(own) == Ok(size))
        };
        let elements = array.elements();
        let is_own = |own: &&Alike| elements == Some(own.elements) && has(own.dimension);
        let Some(own) = self.divided.iter().find(is_own) else { return bytes };
        let bits = i64::from(array.element_type.bits());
        let most = own.bits.map_or(bits, |most| bits.min(i64::from(most)));
        match i64::try_from(own.parts) {
            Ok(parts) if parts > 0 && most < bits => {
                let narrow = i128::from(bytes) * i128::from(most) / i128::from(bits);
                i64::try_from(narrow).unwrap_or(bytes) / parts
            }
            Ok(parts) if parts > 0 => bytes / parts,
            _ => bytes,
        }
    }
}

/// The node of the array at `place`; None if the schedule has no such row.
fn node(reader: &Reader<'_>, place: &Place) -> Option<u32> {
    let path: Vec<i64> = place.path.iter().rev().map(|index| i64::from(*index)).collect();
    let shape = reader.module.shape(place.row);
    let (offset, _) = reader.shapes.at_path(reader.module, shape, &path)?;
    Some(reader.nodes.of(reader.steps.of(place.row.0)?).start + offset)
}

/// Values are packed anew if the peak falls by this part of it.
const FALL_PART: i64 = 32;

/// The memory of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// The HBM peak in XLA's account.
    pub peak: i64,
    /// The bytes that XLA allocates in HBM, gaps between values among them; None if [`Packing`] is, and where
    /// values are not packed.
    ///
    /// [`Packing`]: super::Packing
    pub allocated: Option<i64>,
}

/// The memory of `module` after `change`, whose HBM peak is `peak` before, on a device with `usable` bytes of HBM,
/// if it is known. The text order is the schedule; `frame` is the frame of the module in that order. Values are
/// packed only if the peak falls by a part of it, and if XLA packs them fast.
pub fn memory_after(
    module: &Module,
    frame: &Frame,
    (tables, usable): (Option<Tables>, Option<i64>),
    change: &Change,
    peak: i64,
) -> Result<Needed, MemoryError> {
    let frame = frame.marked();
    let donating = (!change.donated.is_empty()).then(|| frame.donating(module, &change.donated));
    let frame = donating.as_ref().unwrap_or(frame);
    // Where parts of the change resize one shape differently, the largest bytes count: the peak falls at least so far.
    let mut resized: HashMap<ShapeId, i64> = HashMap::new();
    for own in &change.resized {
        let Ok(bytes) = i64::try_from(own.bytes) else { continue };
        resized.entry(own.shape).and_modify(|most| *most = bytes.max(*most)).or_insert(bytes);
    }
    let changed = |shape, bytes| {
        let own = resized.get(&shape).copied();
        own.unwrap_or_else(|| change.bytes(module, shape, bytes))
    };
    let reader = frame.reader(module);
    let mut sizes = Sizes::new(module, frame, changed);
    if !change.kept.is_empty() {
        let before = Sizes::new(module, frame, |_, bytes| bytes);
        for node in change.kept.iter().filter_map(|place| node(&reader, place)) {
            let value = frame.layout.values[node as usize] as usize;
            sizes.bytes[value] = before.bytes[value];
        }
    }
    let spared = change.spared.iter().filter_map(|own| own.values(&reader, &frame.layout.values));
    let spared: Vec<(u32, u32)> = spared.flatten().collect();
    sizes.leave_out(spared.iter().map(|(_, user)| *user));
    let lasting = (!spared.is_empty()).then(|| frame.lasting(&spared));
    let frame = lasting.as_ref().unwrap_or(frame);
    let most = peak - peak / FALL_PART;
    let (account, packing) = packed_account(module, frame, sizes, (tables, usable), most)?;
    Ok(Needed {
        peak: account.hbm_peak(),
        allocated: packing.and_then(|packing| packing.allocated(&account)),
    })
}
