//! Where devices lie on the torus of a slice: the shape of the slice, and the sides that mesh axes
//! and groups take up.
//!
//! * A slice of `n` chips has the sides of the smallest sum, which are the shapes that Google
//!   rents: 16×16 for 256 chips of a 2-D torus, 4×4×8 for 128 chips of a 3-D torus.
//! * JAX (`mesh_utils.create_device_mesh`) lays mesh axes on whole sides, the last axis first and
//!   each on as many sides as possible. Program device numbers follow the mesh, so the same
//!   rule tells the place of each axis.
//! * A group that fills no whole sides is a ring through neighbours.
//! * Devices that share a chip lie on a further side. Its link joins no chips: arrays of more than
//!   one chip go over the links between chips, at their rate.

/// The devices of a box with sides of these lengths; None beyond 64 bits.
pub(super) fn devices_of<'a>(sides: impl IntoIterator<Item = &'a u64>) -> Option<u64> {
    sides.into_iter().try_fold(1u64, |all, side| all.checked_mul(*side))
}

/// Limit on the sides of one group.
pub const MOST_SIDES: usize = 4;

/// One side of a box of devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Side {
    /// Devices along the side.
    pub length: f64,
    /// Whether the last device is a neighbour of the first.
    pub wraps: bool,
    /// Whether the side joins the devices of one chip.
    pub is_chip: bool,
}

/// The box of devices in which a group exchanges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sides {
    list: [Side; MOST_SIDES],
    /// Links, one way each, over which a device receives at the same time.
    pub lanes: f64,
}

impl Sides {
    /// The sides with these lengths; further sides than [`MOST_SIDES`] are left out.
    pub fn new(sides: impl IntoIterator<Item = Side>) -> Self {
        let none = Side { length: 1.0, wraps: false, is_chip: false };
        let mut list = [none; MOST_SIDES];
        let long = sides.into_iter().filter(|side| side.length > 1.0);
        for (place, side) in list.iter_mut().zip(long) {
            *place = side;
        }
        let mut made = Self { list, lanes: 0.0 };
        let between_chips = made.iter().filter(|side| !side.is_chip);
        made.lanes = between_chips.map(|side| if side.wraps { 2.0 } else { 1.0 }).sum();
        made.lanes = made.lanes.max(1.0);
        made
    }

    /// One side of `length` devices.
    pub fn ring(length: u64, wraps: bool) -> Self {
        Self::new([Side { length: length as f64, wraps, is_chip: false }])
    }

    /// The same sides with at most this many lanes.
    pub fn with_lanes(mut self, lanes: f64) -> Self {
        self.lanes = self.lanes.min(lanes.max(1.0));
        self
    }

    /// The sides of more than one device.
    pub fn iter(&self) -> impl Iterator<Item = Side> + '_ {
        self.list.iter().copied().filter(|side| side.length > 1.0)
    }

    /// Number of sides.
    pub fn count(&self) -> usize {
        self.iter().count()
    }

    /// Hops to the farthest device.
    pub fn reach(&self) -> f64 {
        let hops = |side: Side| {
            if side.wraps { (side.length / 2.0).floor().max(1.0) } else { side.length - 1.0 }
        };
        self.iter().map(hops).sum()
    }
}

/// The sides of a box of `count` devices in `dimensions` dimensions, ascending: whole numbers of
/// the smallest sum.
pub fn box_of(count: u64, dimensions: u8) -> Vec<u64> {
    if dimensions <= 1 {
        return vec![count.max(1)];
    }
    let mut best: Option<Vec<u64>> = None;
    let mut side = 1u64;
    // The shortest side is at most the root.
    while side.saturating_pow(u32::from(dimensions)) <= count && side <= LONGEST_SIDE {
        if count.is_multiple_of(side) {
            let mut sides = vec![side];
            sides.extend(box_of(count / side, dimensions - 1));
            let sum = |sides: &Vec<u64>| sides.iter().sum::<u64>();
            if best.as_ref().is_none_or(|best| sum(&sides) < sum(best)) {
                best = Some(sides);
            }
        }
        side += 1;
    }
    let mut best = best.unwrap_or_else(|| vec![count.max(1)]);
    best.sort_unstable();
    best
}

/// Limit on the search for the shortest side; the largest slices have sides of 24.
const LONGEST_SIDE: u64 = 256;

/// The place of each mesh axis on the sides of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The sides of the slice in devices.
    pub shape: Vec<u64>,
    /// The side between the devices of one chip (an index into `shape`), if any.
    pub chip: Option<usize>,
    /// By mesh axis: the sides it fills (indices into `shape`); None if it fills no whole sides.
    pub axes: Vec<Option<Vec<usize>>>,
}

impl Layout {
    /// Lays mesh axes of these sizes (within one slice) on a slice of `shape`, whose side `chip`
    /// joins the devices of one chip.
    pub fn new(shape: Vec<u64>, chip: Option<usize>, axes: &[u64]) -> Self {
        let mut taken = vec![false; shape.len()];
        let mut places: Vec<Option<Vec<usize>>> = vec![None; axes.len()];
        for (place, size) in places.iter_mut().zip(axes).rev() {
            if *size <= 1 {
                *place = Some(Vec::new());
                continue;
            }
            let found = subsets(shape.len()).find(|sides| {
                sides.iter().all(|side| taken.get(*side) == Some(&false))
                    && devices_of(sides.iter().filter_map(|side| shape.get(*side))) == Some(*size)
            });
            for side in found.iter().flatten() {
                if let Some(is_taken) = taken.get_mut(*side) {
                    *is_taken = true;
                }
            }
            *place = found;
        }
        Self { shape, chip, axes: places }
    }

    /// The sides that these mesh axes fill together; None if one of them fills no whole sides.
    pub fn sides_of(&self, axes: impl IntoIterator<Item = usize>) -> Option<Vec<usize>> {
        let mut all = Vec::new();
        for axis in axes {
            all.extend(self.axes.get(axis)?.as_ref()?);
        }
        Some(all)
    }

    /// The lengths of these sides.
    pub fn lengths(&self, sides: &[usize]) -> Vec<u64> {
        sides.iter().filter_map(|side| self.shape.get(*side).copied()).collect()
    }
}

/// All subsets of `count` sides, the largest first and then by index, as JAX tries them.
fn subsets(count: usize) -> impl Iterator<Item = Vec<usize>> {
    let count = count.min(MOST_SIDES);
    let of_size = move |size: usize| {
        let mut found: Vec<Vec<usize>> = (0..(1u32 << count))
            .filter(|mask| mask.count_ones() as usize == size)
            .map(|mask| (0..count).filter(|side| (mask >> side) & 1 == 1).collect())
            .collect();
        found.sort();
        found
    };
    (1..=count).rev().flat_map(of_size)
}
