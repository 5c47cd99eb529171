//! Sizes of dimensions as products of symbols.
//!
//! A dimension is an ordered product of factors, major first: a merged dimension keeps the order of
//! what was merged, so that a later reshape can split it again. A factor is a symbol, perhaps with a
//! constant added, times a fraction, divided or multiplied by sizes of mesh axes. Symbols that meet
//! in one dimension are one symbol; `Symbols` joins them.

/// Most mesh axes that a factor can count.
pub(super) const MOST_AXES: usize = 8;
/// The symbol of a constant factor.
pub(super) const CONSTANT: u32 = u32::MAX;
/// Most nested sums of symbols that are evaluated.
const MOST_NESTED: u32 = 32;

/// `(symbol + shift) * times / parts`, times each mesh axis to its exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Factor {
    pub symbol: u32,
    pub shift: i64,
    pub times: i64,
    pub parts: i64,
    pub axes: [i8; MOST_AXES],
    /// The size in the module.
    pub size: i64,
}

/// A dimension: factors, major first, at least one.
pub(super) type Dim = Vec<Factor>;

impl Factor {
    pub fn constant(size: i64) -> Self {
        Self { symbol: CONSTANT, shift: 0, times: size, parts: 1, axes: [0; MOST_AXES], size }
    }

    pub fn of_symbol(symbol: u32, size: i64) -> Self {
        Self { symbol, shift: 0, times: 1, parts: 1, axes: [0; MOST_AXES], size }
    }

    /// Whether nothing that may change is in the factor.
    pub fn is_constant(&self) -> bool {
        self.symbol == CONSTANT && self.axes == [0; MOST_AXES]
    }

    /// Whether the factor is one element of a symbol.
    pub fn is_one(&self) -> bool {
        self.size == 1 && self.symbol != CONSTANT
    }

    /// The factor with its fraction in lowest terms.
    pub fn reduced(mut self) -> Self {
        let common = gcd(self.times, self.parts);
        self.times /= common;
        self.parts /= common;
        self
    }

    /// The factor times `times / parts`; None if the size is not whole or overflows.
    pub fn scaled(mut self, times: i64, parts: i64) -> Option<Self> {
        self.times = self.times.checked_mul(times)?;
        self.parts = self.parts.checked_mul(parts)?;
        self = self.reduced();
        let size = self.size.checked_mul(times)?;
        if parts == 0 || size % parts != 0 {
            return None;
        }
        self.size = size / parts;
        Some(self)
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a.max(1)).unwrap_or(1)
}

/// The product of the factors' sizes.
pub(super) fn size_of(dim: &[Factor]) -> Option<i64> {
    dim.iter().try_fold(1i64, |size, factor| size.checked_mul(factor.size))
}

/// The dimension with constants multiplied into the factor before them, without factors of 1.
pub(super) fn tidy(factors: Vec<Factor>) -> Dim {
    let mut dim: Dim = Vec::with_capacity(factors.len());
    for factor in factors {
        if factor.is_constant() {
            if let Some(last) = dim.last_mut()
                && let Some(merged) = last.scaled(factor.size, 1)
            {
                *last = merged;
                continue;
            }
            if factor.size == 1 {
                continue;
            }
        }
        dim.push(factor);
    }
    if dim.is_empty() {
        dim.push(Factor::constant(1));
    }
    dim
}

/// `times / parts` of a dimension: the first factor that allows it changes.
pub(super) fn fraction_of(dim: &[Factor], times: i64, parts: i64) -> Option<Dim> {
    let common = gcd(times, parts);
    let (times, parts) = (times / common, parts / common);
    let (place, scaled) = dim
        .iter()
        .enumerate()
        .find_map(|(place, factor)| Some((place, factor.scaled(times, parts)?)))?;
    let mut dim = dim.to_vec();
    *dim.get_mut(place)? = scaled;
    Some(dim)
}

/// Divides a product into dimensions of `sizes`. A factor that lies in two dimensions scales the
/// major dimension: what is sharded or repeated are blocks of adjacent elements. None if a factor
/// would lie in two and may not be cut.
pub(super) fn split(factors: &[Factor], sizes: &[i64], may_cut: bool) -> Option<Vec<Dim>> {
    let mut rest = factors.iter().copied().peekable();
    let mut carried: Option<Factor> = None;
    let mut dims = Vec::with_capacity(sizes.len());
    for (place, wanted) in sizes.iter().enumerate() {
        let mut own = Vec::new();
        let mut size = 1i64;
        if *wanted == 1
            && carried.is_none()
            && let Some(one) = rest.next_if(|factor| factor.size == 1)
        {
            own.push(one);
        }
        while size < *wanted {
            let factor = carried.take().or_else(|| rest.next())?;
            let needed = wanted / size;
            if wanted % size != 0 {
                return None;
            }
            if factor.size <= needed {
                size = size.checked_mul(factor.size)?;
                own.push(factor);
            } else if factor.size % needed == 0 && (may_cut || factor.is_constant()) {
                let minor = factor.size / needed;
                own.push(factor.scaled(1, minor)?);
                carried = Some(Factor::constant(minor));
                size = *wanted;
            } else {
                return None;
            }
        }
        if size != *wanted {
            return None;
        }
        if place + 1 == sizes.len() {
            own.extend(carried.take());
            own.extend(rest.by_ref());
        }
        dims.push(tidy(own));
    }
    let fits = dims.iter().zip(sizes).all(|(dim, size)| size_of(dim) == Some(*size));
    fits.then_some(dims)
}

/// What is known of one symbol.
#[derive(Clone, Debug, Default)]
pub(super) struct Symbol {
    /// The size of the whole array's dimension in the module.
    pub size: i64,
    /// The sum that the symbol stands for.
    pub sum: Option<Vec<Dim>>,
    /// An input of which it is a dimension, but not the first: the row of the entry parameter.
    pub input: Option<u32>,
}

/// All symbols; joined symbols have one root each.
#[derive(Default)]
pub(super) struct Symbols {
    /// Parent, and what has to be added to the parent's size.
    parents: Vec<(u32, i64)>,
    pub all: Vec<Symbol>,
}

impl Symbols {
    pub fn add(&mut self, symbol: Symbol) -> u32 {
        let id = self.parents.len() as u32;
        self.parents.push((id, 0));
        self.all.push(symbol);
        id
    }

    /// The root of `symbol`, and what has to be added to the root's size.
    pub fn root(&self, mut symbol: u32) -> (u32, i64) {
        let mut shift = 0i64;
        while let Some((parent, more)) = self.parents.get(symbol as usize)
            && *parent != symbol
        {
            shift = shift.saturating_add(*more);
            symbol = *parent;
        }
        (symbol, shift)
    }

    /// Joins the symbols of two dimensions that are equal; false if they contradict each other.
    pub fn join(&mut self, a: &[Factor], b: &[Factor]) -> bool {
        let same_sizes = |(a, b): (&Factor, &Factor)| a.size == b.size;
        if a.len() != b.len() || !a.iter().zip(b).all(same_sizes) {
            return a.iter().chain(b).all(Factor::is_constant);
        }
        a.iter().zip(b).fold(true, |agree, (a, b)| self.join_factors(a, b) && agree)
    }

    fn join_factors(&mut self, a: &Factor, b: &Factor) -> bool {
        if a.symbol == CONSTANT || b.symbol == CONSTANT {
            return a.symbol == b.symbol && a.axes == b.axes;
        }
        if (a.times, a.parts, a.axes) != (b.times, b.parts, b.axes) {
            return false;
        }
        let ((a_root, a_shift), (b_root, b_shift)) = (self.root(a.symbol), self.root(b.symbol));
        // root_b + b_shift + b.shift == root_a + a_shift + a.shift
        let difference = a_shift + a.shift - b_shift - b.shift;
        if a_root == b_root {
            return difference == 0;
        }
        let size = |root: u32| self.all.get(root as usize).map_or(0, |symbol| symbol.size);
        if size(a_root).saturating_add(difference) != size(b_root) {
            return false;
        }
        // Sums stay roots only if nothing else defines the size.
        let is_sum = |root: u32| self.all.get(root as usize).is_some_and(|s| s.sum.is_some());
        let (child, parent, shift) = if is_sum(a_root) && !is_sum(b_root) {
            (a_root, b_root, -difference)
        } else {
            (b_root, a_root, difference)
        };
        if let Some(slot) = self.parents.get_mut(child as usize) {
            *slot = (parent, shift);
        }
        let input = self.all.get(child as usize).and_then(|own| own.input);
        if let Some(slot) = self.all.get_mut(parent as usize) {
            slot.input = slot.input.or(input);
        }
        true
    }

    /// Whether dimensions of two inputs are equally long, or one has one more: tokens and their targets are
    /// often one array that is cut at either end.
    pub fn has_inputs_of_one_length(&self) -> bool {
        let mut known: Vec<(i64, u32)> =
            self.all.iter().filter_map(|own| Some((own.size, own.input?))).collect();
        known.retain(|(size, _)| *size > 1);
        known.sort_unstable();
        known.dedup();
        let of_two = |one: &(i64, u32), other: &(i64, u32)| {
            one.1 != other.1 && other.0.saturating_sub(one.0) <= 1
        };
        // Sorted by size, two inputs whose sizes differ by at most one are next to each other somewhere.
        known.windows(2).any(|pair| of_two(&pair[0], &pair[1]))
    }

    /// Whether two dimensions belong to different inputs.
    pub fn are_of_two_inputs(&self, a: &[Factor], b: &[Factor]) -> bool {
        let input = |own: &Factor| self.all.get(self.root(own.symbol).0 as usize)?.input;
        a.iter().zip(b).any(|(a, b)| match (input(a), input(b)) {
            (Some(a), Some(b)) => a != b,
            _ => false,
        })
    }
}

/// New sizes of symbols and mesh axes.
pub(super) struct Sizes<'a> {
    pub symbols: &'a Symbols,
    /// By root: the new size.
    pub changed: std::collections::HashMap<u32, i64>,
    /// Sizes of the mesh axes, old and new.
    pub axes: Vec<(i64, i64)>,
}

impl Sizes<'_> {
    /// The new size of a symbol.
    pub fn of_symbol(&self, symbol: u32, nested: u32) -> Option<i64> {
        let (root, shift) = self.symbols.root(symbol);
        let known = self.symbols.all.get(root as usize)?;
        let size = match (self.changed.get(&root), &known.sum) {
            (Some(size), _) => *size,
            (None, Some(sum)) if nested < MOST_NESTED => {
                sum.iter().try_fold(0i64, |total, dim| {
                    total.checked_add(self.of_dim_nested(dim, nested + 1)?.0)
                })?
            }
            _ => known.size,
        };
        size.checked_add(shift)
    }

    /// The new size of a dimension, and whether the division leaves no remainder.
    pub fn of_dim(&self, dim: &[Factor]) -> Option<(i64, bool)> {
        self.of_dim_nested(dim, 0)
    }

    fn of_dim_nested(&self, dim: &[Factor], nested: u32) -> Option<(i64, bool)> {
        let (mut above, mut below) = (1i128, 1i128);
        for factor in dim {
            let symbol = match factor.symbol {
                CONSTANT => 1,
                symbol => self.of_symbol(symbol, nested)?.checked_add(factor.shift)?,
            };
            above = above.checked_mul(i128::from(symbol))?.checked_mul(factor.times.into())?;
            below = below.checked_mul(factor.parts.into())?;
            for (axis, exponent) in factor.axes.iter().enumerate() {
                let size = self.axes.get(axis).map_or(1, |(_, new)| i128::from(*new));
                for _ in 0..exponent.unsigned_abs() {
                    if *exponent > 0 {
                        above = above.checked_mul(size)?;
                    } else {
                        below = below.checked_mul(size)?;
                    }
                }
            }
        }
        if below <= 0 || above <= 0 {
            return None;
        }
        let size = i64::try_from((above + below - 1) / below).ok()?;
        Some((size, above % below == 0))
    }
}
