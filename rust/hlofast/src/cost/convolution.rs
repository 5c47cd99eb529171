//! FLOPs of convolutions as XLA counts them: multiplications with an input element count,
//! multiplications with padding or a dilation hole do not. The count is a closed form, so its time
//! does not depend on the sizes.

use crate::ir::decode::{AttributeValue, DimensionLabel, DimensionLabels, WindowDimension, decode};
use crate::ir::{ArrayShape, Module, Opcode, Row};

/// The number of (kernel tap, output position) pairs that read an input element, along one spatial
/// dimension. `input`, `kernel` and `output` are sizes. None if one is negative, a step is not
/// positive, or the count overflows 128 bits.
///
/// Tap `k` of output `o` reads position `o * stride - padding_low + k * window_dilation` of the
/// dilated input; it counts if that position is a multiple of `base_dilation` and the quotient is
/// an index of the input. XLA loops over taps and outputs, with two shortcuts that give the same
/// number.
pub(crate) fn valid_positions(
    input: i64,
    kernel: i64,
    output: i64,
    window: &WindowDimension,
) -> Option<u64> {
    if input < 0 || kernel < 0 || output < 0 {
        return None;
    }
    let steps = [window.stride, window.window_dilation, window.base_dilation];
    if input == 0 || kernel == 0 || output == 0 {
        return Some(0);
    }
    if steps.iter().any(|step| *step <= 0) {
        return None;
    }
    few_taps(input, kernel, output, window).or_else(|| any_taps(input, kernel, output, window))
}

/// `valid_positions` of small windows, tap by tap, which is faster; None for other windows. Sizes
/// and steps are positive.
fn few_taps(input: i64, kernel: i64, output: i64, window: &WindowDimension) -> Option<u64> {
    const MOST_TAPS: i64 = 16;
    const LARGEST: i64 = 1 << 30;
    let numbers = [input, output, window.stride, window.window_dilation, window.padding_low];
    let is_large = |number: &i64| !(-LARGEST..=LARGEST).contains(number);
    if kernel > MOST_TAPS || window.base_dilation != 1 || numbers.iter().any(is_large) {
        return None;
    }
    // Outputs o with 0 <= o * stride + from < input.
    let outputs = |tap: i64| {
        let from = tap * window.window_dilation - window.padding_low;
        let before = |limit: i64| match limit - from {
            ..=0 => 0,
            space => ((space - 1) / window.stride + 1).min(output),
        };
        before(input) - before(0)
    };
    u64::try_from((0..kernel).map(outputs).sum::<i64>()).ok()
}

/// `valid_positions` in closed form. Sizes and steps are positive.
fn any_taps(input: i64, kernel: i64, output: i64, window: &WindowDimension) -> Option<u64> {
    let pairs = Pairs {
        kernel: i128::from(kernel),
        output: i128::from(output),
        stride: i128::from(window.stride),
        dilation: i128::from(window.window_dilation),
        modulus: i128::from(window.base_dilation),
        residue: i128::from(window.padding_low),
    };
    let last = i128::from(input - 1).checked_mul(pairs.modulus)?.checked_add(pairs.residue)?;
    let count = pairs.up_to(last)? - pairs.up_to(pairs.residue.checked_sub(1)?)?;
    u64::try_from(count).ok()
}

/// Pairs of `k < kernel` and `o < output` with `stride * o + dilation * k` congruent to `residue`.
struct Pairs {
    kernel: i128,
    output: i128,
    stride: i128,
    dilation: i128,
    modulus: i128,
    residue: i128,
}

impl Pairs {
    /// The number of pairs whose sum is at most `limit`.
    fn up_to(&self, limit: i128) -> Option<i128> {
        if limit < 0 {
            return Some(0);
        }
        // For a given k, the matching values of o form one residue class modulo `period`, or do not
        // exist.
        let (common, _) = extended_gcd(self.stride, self.modulus);
        let period = self.modulus / common;
        let (common_k, inverse_k) = extended_gcd(self.dilation, common);
        if self.residue % common_k != 0 {
            return Some(0);
        }
        // k = first_k + step_k * t
        let step_k = common / common_k;
        let first_k = ((self.residue / common_k) % step_k).checked_mul(inverse_k % step_k)?;
        let first_k = first_k.rem_euclid(step_k);
        if first_k >= self.kernel {
            return Some(0);
        }
        let terms = (self.kernel - 1 - first_k) / step_k + 1;
        // o = base + slope * t modulo period
        let (_, inverse) = extended_gcd(self.stride / common, period);
        let inverse = inverse.rem_euclid(period);
        let start = self.residue.checked_sub(self.dilation.checked_mul(first_k)?)? / common;
        let base = start.rem_euclid(period).checked_mul(inverse)?.rem_euclid(period);
        let way = self.dilation.checked_mul(step_k)? / common;
        let slope = (-way).rem_euclid(period).checked_mul(inverse)?.rem_euclid(period);
        // The remaining limit is rest - fall * t. As t grows, all outputs fit at first, then only
        // outputs up to a bound, then none.
        let rest = limit.checked_sub(self.dilation.checked_mul(first_k)?)?;
        let fall = self.dilation.checked_mul(step_k)?;
        let until = |bound: i128| {
            let terms_above = rest.checked_sub(bound)?.div_euclid(fall).saturating_add(1);
            Some(terms_above.clamp(0, terms))
        };
        let full_end = until(self.stride.checked_mul(self.output - 1)?)?;
        let part_end = until(0)?;
        // Outputs o = c modulo period in 0..=x: floor((x - c) / period) - floor((-1 - c) / period).
        let below = floor_sum(part_end, period, -slope, (-1i128).checked_sub(base)?)?;
        let full = floor_sum(full_end, period, -slope, self.output.checked_sub(1 + base)?)?;
        // In the remaining terms x = floor((rest - fall * t) / stride).
        let wide = self.stride.checked_mul(period)?;
        let line = fall.checked_add(self.stride.checked_mul(slope)?)?;
        let from = rest.checked_sub(self.stride.checked_mul(base)?)?;
        let part = floor_sum(part_end, wide, -line, from)?
            .checked_sub(floor_sum(full_end, wide, -line, from)?)?;
        full.checked_add(part)?.checked_sub(below)
    }
}

/// The greatest common divisor of positive `a` and `b`, and the factor `f` with `a * f` congruent
/// to the divisor modulo `b`.
fn extended_gcd(a: i128, b: i128) -> (i128, i128) {
    let (mut old, mut new) = ((a, 1i128), (b, 0i128));
    while new.0 != 0 {
        let quotient = old.0 / new.0;
        (old, new) = (new, (old.0 - quotient * new.0, old.1 - quotient * new.1));
    }
    old
}

/// Sum of `floor((slope * t + start) / divisor)` for `t` in `0..terms`, in as many steps as
/// Euclid's algorithm takes. The divisor must be positive. None on 128-bit overflow.
fn floor_sum(terms: i128, divisor: i128, slope: i128, start: i128) -> Option<i128> {
    let mut sum = 0i128;
    let (mut terms, mut divisor, mut slope, mut start) = (terms, divisor, slope, start);
    let mut sign = 1i128;
    while terms > 0 {
        // Multiples of the divisor are summed in closed form.
        let pairs = terms.checked_mul(terms - 1)? / 2;
        let whole = pairs.checked_mul(slope.div_euclid(divisor))?;
        let whole = whole.checked_add(terms.checked_mul(start.div_euclid(divisor))?)?;
        sum = sum.checked_add(sign.checked_mul(whole)?)?;
        (slope, start) = (slope.rem_euclid(divisor), start.rem_euclid(divisor));
        let top = slope.checked_mul(terms - 1)?.checked_add(start)?;
        let height = top / divisor;
        if height == 0 {
            break;
        }
        // Count lattice points under the line from the other axis: with `height` rows,
        // terms * height - sum over rows j of ceil(((j + 1) * divisor - start) / slope).
        sum = sum.checked_add(sign.checked_mul(terms.checked_mul(height)?)?)?;
        // ceil(y / slope) = floor((y + slope - 1) / slope)
        let next = divisor.checked_sub(start)?.checked_add(slope - 1)?;
        (terms, divisor, slope, start) = (height, slope, divisor, next);
        sign = -sign;
    }
    Some(sum)
}

/// The shapes of a convolution by role: input, kernel and output of the forward convolution.
pub(crate) struct Convolution<'a> {
    pub(crate) input: ArrayShape<'a>,
    pub(crate) kernel: ArrayShape<'a>,
    pub(crate) output: ArrayShape<'a>,
    labels: DimensionLabels,
    window: Vec<WindowDimension>,
    feature_groups: i64,
    batch_groups: i64,
}

/// One spatial dimension of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpatialDimension {
    pub(crate) input: i64,
    pub(crate) kernel: i64,
    pub(crate) output: i64,
    /// The number of (tap, output position) pairs that read an input element.
    pub(crate) valid: i128,
}

impl<'a> Convolution<'a> {
    /// The convolution that the attributes of `row` describe, with these array shapes. None if an
    /// attribute is missing or does not match the shapes.
    pub(crate) fn new(
        module: &Module,
        row: Row,
        input: ArrayShape<'a>,
        kernel: ArrayShape<'a>,
        output: ArrayShape<'a>,
    ) -> Option<Self> {
        let value = |key: &str| {
            let text = module.attribute_bytes(row, key)?;
            Some(decode(key.as_bytes(), Opcode::Convolution, text).ok())
        };
        let AttributeValue::DimensionLabels(labels) = value("dim_labels")?? else { return None };
        let window = match value("window") {
            None => Vec::new(),
            Some(Some(AttributeValue::Window(window))) => window,
            Some(_) => return None,
        };
        let count = |key: &str| match value(key) {
            None => Some(1),
            Some(Some(AttributeValue::Integer(count))) if count > 0 => Some(count),
            Some(_) => None,
        };
        let feature_groups = count("feature_group_count")?;
        let batch_groups = count("batch_group_count")?;
        let fits = labels.lhs.len() == input.rank()
            && labels.rhs.len() == kernel.rank()
            && labels.output.len() == output.rank()
            && (window.is_empty() || window.len() == labels.spatial_rank());
        fits.then_some(Self { input, kernel, output, labels, window, feature_groups, batch_groups })
    }

    fn size(
        shape: &ArrayShape<'_>,
        labels: &[DimensionLabel],
        label: DimensionLabel,
    ) -> Option<i64> {
        shape.dimension(DimensionLabels::position(labels, label)?)?.bound()
    }

    pub(crate) fn batch(&self) -> Option<i64> {
        Self::size(&self.input, &self.labels.lhs, DimensionLabel::Batch)
    }

    pub(crate) fn input_features(&self) -> Option<i64> {
        Self::size(&self.input, &self.labels.lhs, DimensionLabel::Feature)
    }

    pub(crate) fn output_features(&self) -> Option<i64> {
        Self::size(&self.output, &self.labels.output, DimensionLabel::Feature)
    }

    pub(crate) fn feature_groups(&self) -> i64 {
        self.feature_groups
    }

    pub(crate) fn batch_groups(&self) -> i64 {
        self.batch_groups
    }

    /// The spatial dimensions in the window's order; empty without a window.
    pub(crate) fn spatial(&self) -> Option<Vec<SpatialDimension>> {
        let dimension = |(index, window): (usize, &WindowDimension)| {
            let label = DimensionLabel::Spatial(u8::try_from(index).ok()?);
            let input = Self::size(&self.input, &self.labels.lhs, label)?;
            let kernel = Self::size(&self.kernel, &self.labels.rhs, label)?;
            let output = Self::size(&self.output, &self.labels.output, label)?;
            let valid = i128::from(valid_positions(input, kernel, output, window)?);
            Some(SpatialDimension { input, kernel, output, valid })
        };
        self.window.iter().enumerate().map(dimension).collect()
    }

    /// Two FLOPs for each multiply-add with an input element.
    pub(crate) fn flops(&self) -> Option<i64> {
        let features = self.input_features()? / self.feature_groups;
        let batch = self.batch()? / self.batch_groups;
        let mut flops = i128::from(features)
            .checked_mul(i128::from(self.output_features()?))?
            .checked_mul(i128::from(batch))?
            .checked_mul(2)?;
        for dimension in self.spatial()? {
            flops = flops.checked_mul(dimension.valid)?;
        }
        i64::try_from(flops).ok()
    }
}

/// FLOPs of `row`, a `convolution`, as XLA counts them.
pub fn convolution_flops(module: &Module, row: Row) -> Option<i64> {
    Convolution::of_row(module, row)?.flops()
}

impl<'a> Convolution<'a> {
    /// The convolution of `row`, whose opcode is `convolution`.
    pub(crate) fn of_row(module: &'a Module, row: Row) -> Option<Self> {
        let [input, kernel] = module.operands(row) else { return None };
        let shape = |row: Row| module.shapes().array(module.shape(row));
        Self::new(module, row, shape(Row(*input))?, shape(Row(*kernel))?, shape(row)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same count, computed by looping over taps and outputs.
    fn looped(input: i64, kernel: i64, output: i64, window: &WindowDimension) -> u64 {
        let mut count = 0;
        for tap in 0..kernel {
            for position in 0..output {
                let at =
                    position * window.stride - window.padding_low + tap * window.window_dilation;
                let index = at / window.base_dilation;
                if index * window.base_dilation == at && index >= 0 && index < input {
                    count += 1;
                }
            }
        }
        count
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

        #[test]
        fn equals_the_loop(
            (input, kernel, output) in (0i64..24, 0i64..24, 0i64..24),
            (stride, window_dilation, base_dilation) in (1i64..13, 1i64..13, 1i64..13),
            padding_low in -30i64..60,
        ) {
            let window = WindowDimension {
                size: kernel, stride, padding_low, base_dilation, window_dilation,
                ..WindowDimension::default()
            };
            prop_assert_eq!(
                valid_positions(input, kernel, output, &window),
                Some(looped(input, kernel, output, &window))
            );
            if input > 0 && kernel > 0 && output > 0 {
                let closed = any_taps(input, kernel, output, &window);
                prop_assert_eq!(closed, Some(looped(input, kernel, output, &window)));
            }
        }

        #[test]
        fn sums_of_floors(
            terms in 0i128..40, divisor in 1i128..40, slope in -90i128..90, start in -200i128..200,
        ) {
            let expected: i128 = (0..terms).map(|t| (slope * t + start).div_euclid(divisor)).sum();
            prop_assert_eq!(floor_sum(terms, divisor, slope, start), Some(expected));
        }

        #[test]
        fn any_numbers_end(
            sizes in any::<[i64; 3]>(), steps in any::<[i64; 3]>(), padding_low in any::<i64>(),
        ) {
            let window = WindowDimension {
                stride: steps[0], window_dilation: steps[1], base_dilation: steps[2], padding_low,
                ..WindowDimension::default()
            };
            let _ = valid_positions(sizes[0], sizes[1], sizes[2], &window);
        }
    }

    #[test]
    fn sizes_that_no_loop_could_count() {
        let n = 1i64 << 40;
        let plain = WindowDimension { size: n, ..WindowDimension::default() };
        assert_eq!(valid_positions(n, n, 1, &plain), Some(1 << 40));
        // A batch dimension written as a spatial dimension has as many pairs as elements.
        let n = 1i64 << 30;
        let batch = WindowDimension {
            size: n,
            stride: n - 1,
            base_dilation: n,
            ..WindowDimension::default()
        };
        assert_eq!(valid_positions(n, n, n, &batch), Some(1 << 30));
    }
}
