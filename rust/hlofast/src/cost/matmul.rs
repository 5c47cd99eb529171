//! Contractions: dots, ragged dots, convolutions and GEMM calls as batch, M, N and K.

use super::convolution::Convolution;
use super::custom_call::custom_call_cost;
use crate::Provenance;
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{ArrayShape, ElementKind, ElementType, Module, Opcode, Row, ShapeId};

/// The kind of instruction that performs a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContractionKind {
    /// `dot` or `scaled-dot`.
    Dot,
    /// `ragged-dot`: each row of the left side is multiplied with one group of the right side.
    RaggedDot,
    /// A `convolution` that is a matmul: TPU programs write dots this way. Every output position
    /// reads one input position.
    ConvolutionAsDot,
    /// A `convolution` whose outputs read several input positions, or a library call that computes
    /// such a convolution.
    Convolution,
    /// A library matmul.
    Gemm,
    /// A library matmul over several groups.
    GroupedGemm,
    /// All matmuls of a fused attention call.
    FusedAttention,
}

impl ContractionKind {
    /// The name used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ContractionKind::Dot => "dot",
            ContractionKind::RaggedDot => "ragged_dot",
            ContractionKind::ConvolutionAsDot => "convolution_as_dot",
            ContractionKind::Convolution => "convolution",
            ContractionKind::Gemm => "gemm",
            ContractionKind::GroupedGemm => "grouped_gemm",
            ContractionKind::FusedAttention => "fused_attention",
        }
    }
}

/// A sum of products over a shared dimension: `batch` products of an M by K and a K by N matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contraction {
    /// Number of independent matmuls; groups of grouped convolutions count here.
    pub batch: u64,
    /// Rows: free dimensions of the left side; for convolutions, batch times output positions.
    pub m: u64,
    /// Columns: free dimensions of the right side; for convolutions, output features.
    pub n: u64,
    /// Summed elements; for convolutions, taps times input features of a group.
    pub k: u64,
    /// Element type of the left side.
    pub lhs_type: ElementType,
    /// Element type of the right side.
    pub rhs_type: ElementType,
    /// Element type of the result.
    pub output_type: ElementType,
    /// Element type of the accumulator: from `algorithm`, from the library's rule for these
    /// operands, or else the result's type, because HLO does not state an accumulation type.
    pub accumulation_type: ElementType,
    /// FLOPs: two per multiply-add, eight if the elements are complex. `2 * batch * m * n * k`,
    /// except where convolutions skip padding and kernels skip masked blocks.
    pub flops: i64,
    /// The kind of instruction.
    pub kind: ContractionKind,
    /// Where the dimensions come from.
    pub provenance: Provenance,
}

/// `row` as a contraction, if its sizes are known: `dot`, `scaled-dot`, `ragged-dot`,
/// `convolution`, and custom calls that are matmuls or convolutions.
pub fn contraction(module: &Module, row: Row) -> Option<Contraction> {
    match module.opcode(row) {
        Opcode::Dot | Opcode::ScaledDot => dot(module, row),
        Opcode::RaggedDot => ragged_dot(module, row),
        Opcode::Convolution => convolution(module, row),
        Opcode::CustomCall => custom_call_cost(module, row).contraction,
        _ => None,
    }
}

/// All that decides the sizes of a matmul: the shapes of its operands and of its result, its opcode
/// and its attributes without metadata.
pub(super) type Alike<'a> = ([ShapeId; 3], Opcode, &'a [u8]);

/// What `row` has in common with rows of the same sizes; None if metadata are not the last of its
/// attributes, so that the others are not one text.
pub(super) fn alike(module: &Module, row: Row) -> Option<Alike<'_>> {
    let &[left, right] = module.operands(row) else { return None };
    let shapes = [module.shape(Row(left)), module.shape(Row(right)), module.shape(row)];
    Some((shapes, module.opcode(row), module.attributes_before_metadata(row)?))
}

/// The shape of operand `index` of `row`, if it is an array.
pub(crate) fn operand_array(module: &Module, row: Row, index: usize) -> Option<ArrayShape<'_>> {
    let operand = *module.operands(row).get(index)?;
    module.shapes().array(module.shape(Row(operand)))
}

/// Dimension numbers by role.
#[derive(Clone, Debug, Default)]
pub(crate) struct DotDimensions {
    pub(crate) lhs_contracting: Vec<i64>,
    pub(crate) rhs_contracting: Vec<i64>,
    pub(crate) lhs_batch: Vec<i64>,
    pub(crate) rhs_batch: Vec<i64>,
    /// Group dimensions of the right side.
    pub(crate) rhs_group: Vec<i64>,
}

fn product(sizes: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    let mut product = 1u64;
    for size in sizes {
        product = product.checked_mul(size?)?;
    }
    Some(product)
}

fn size(shape: &ArrayShape<'_>, dimension: usize) -> Option<u64> {
    u64::try_from(shape.dimension(dimension)?.bound()?).ok()
}

/// Product of the sizes of the listed dimensions; None if one does not exist.
fn listed(shape: &ArrayShape<'_>, dimensions: &[i64]) -> Option<u64> {
    product(dimensions.iter().map(|d| size(shape, usize::try_from(*d).ok()?)))
}

/// Product of the sizes of all dimensions that are not in any of the lists.
fn unlisted(shape: &ArrayShape<'_>, lists: &[&[i64]]) -> Option<u64> {
    let mut is_free = vec![true; shape.rank()];
    for dimension in lists.iter().copied().flatten() {
        if let Some(free) = usize::try_from(*dimension).ok().and_then(|d| is_free.get_mut(d)) {
            *free = false;
        }
    }
    let free = is_free.iter().enumerate().filter(|(_, free)| **free);
    product(free.map(|(dimension, _)| size(shape, dimension)))
}

pub(crate) struct DotShapes<'a> {
    pub(crate) lhs: ArrayShape<'a>,
    pub(crate) rhs: ArrayShape<'a>,
    pub(crate) output: ElementType,
}

/// `2 * batch * m * n * k`; None on 64-bit overflow.
pub(crate) fn product_flops(batch: u64, m: u64, n: u64, k: u64) -> Option<i64> {
    if batch == 0 || m == 0 || n == 0 || k == 0 {
        return Some(0);
    }
    [batch, m, n, k]
        .into_iter()
        .try_fold(2i64, |product, size| product.checked_mul(i64::try_from(size).ok()?))
}

/// FLOPs of multiply-adds of elements of `element_type` that count two each: a complex one takes
/// four real multiplications and four additions.
pub(crate) fn real_flops(flops: i64, element_type: ElementType) -> Option<i64> {
    match element_type.kind() {
        ElementKind::Complex => flops.checked_mul(4),
        _ => Some(flops),
    }
}

/// The contraction of two arrays along `dimensions`.
pub(crate) fn dot_of(
    shapes: &DotShapes<'_>,
    dimensions: &DotDimensions,
    kind: ContractionKind,
    provenance: Provenance,
) -> Option<Contraction> {
    let DotShapes { lhs, rhs, output } = shapes;
    let batch = listed(lhs, &dimensions.lhs_batch)?;
    let k = listed(lhs, &dimensions.lhs_contracting)?;
    let m = unlisted(lhs, &[&dimensions.lhs_batch, &dimensions.lhs_contracting])?;
    let taken: [&[i64]; 3] =
        [&dimensions.rhs_batch, &dimensions.rhs_contracting, &dimensions.rhs_group];
    let n = unlisted(rhs, &taken)?;
    Some(Contraction {
        batch,
        m,
        n,
        k,
        lhs_type: lhs.element_type,
        rhs_type: rhs.element_type,
        output_type: *output,
        accumulation_type: *output,
        flops: real_flops(product_flops(batch, m, n, k)?, lhs.element_type)?,
        kind,
        provenance,
    })
}

/// The dimension numbers of attribute `key`: empty if absent, None if unreadable.
pub(crate) fn dimensions(module: &Module, row: Row, key: &str) -> Option<Vec<i64>> {
    let Some(text) = module.attribute_bytes(row, key) else { return Some(Vec::new()) };
    match decode(key.as_bytes(), module.opcode(row), text).ok()? {
        AttributeValue::Integers(dimensions) => Some(dimensions),
        _ => None,
    }
}

pub(crate) fn dot_dimensions(module: &Module, row: Row) -> Option<DotDimensions> {
    Some(DotDimensions {
        lhs_contracting: dimensions(module, row, "lhs_contracting_dims")?,
        rhs_contracting: dimensions(module, row, "rhs_contracting_dims")?,
        lhs_batch: dimensions(module, row, "lhs_batch_dims")?,
        rhs_batch: dimensions(module, row, "rhs_batch_dims")?,
        rhs_group: dimensions(module, row, "rhs_group_dims")?,
    })
}

fn dot_shapes(module: &Module, row: Row) -> Option<DotShapes<'_>> {
    Some(DotShapes {
        lhs: operand_array(module, row, 0)?,
        rhs: operand_array(module, row, 1)?,
        output: module.shapes().array(module.shape(row))?.element_type,
    })
}

fn dot(module: &Module, row: Row) -> Option<Contraction> {
    let shapes = dot_shapes(module, row)?;
    let dimensions = dot_dimensions(module, row)?;
    let contraction = dot_of(&shapes, &dimensions, ContractionKind::Dot, Provenance::Exact)?;
    let algorithm = module.attribute_bytes(row, "algorithm");
    let accumulation = algorithm.and_then(algorithm_type).unwrap_or(contraction.accumulation_type);
    Some(Contraction { accumulation_type: accumulation, ..contraction })
}

/// The accumulation type in the name of a dot algorithm: `dot_bf16_bf16_f32_x3` accumulates in f32.
fn algorithm_type(name: &[u8]) -> Option<ElementType> {
    let mut types = name.split(|byte| *byte == b'_').filter_map(ElementType::from_bytes);
    let first = types.next()?;
    // A name lists one or two operand types and then the accumulation type.
    Some(types.next_back().unwrap_or(first))
}

/// XLA undercounts ragged dots. Each element of the ragged dimension (free, contracted or batch) is
/// multiplied with the right side of one group.
fn ragged_dot(module: &Module, row: Row) -> Option<Contraction> {
    let shapes = dot_shapes(module, row)?;
    let dimensions = dot_dimensions(module, row)?;
    dot_of(&shapes, &dimensions, ContractionKind::RaggedDot, Provenance::Exact)
}

fn convolution(module: &Module, row: Row) -> Option<Contraction> {
    let convolution = Convolution::of_row(module, row)?;
    convolution_contraction(&convolution, Provenance::Exact)
}

/// A convolution as a contraction: `ConvolutionAsDot` if it is equivalent to a dot.
pub(crate) fn convolution_contraction(
    convolution: &Convolution<'_>,
    provenance: Provenance,
) -> Option<Contraction> {
    let unsigned = |value: i64| u64::try_from(value).ok();
    let flops = convolution.flops()?;
    let (feature_groups, batch_groups) =
        (unsigned(convolution.feature_groups())?, unsigned(convolution.batch_groups())?);
    let output_type = convolution.output.element_type;
    let mut contraction = Contraction {
        batch: feature_groups.checked_mul(batch_groups)?,
        m: unsigned(convolution.batch()?)? / batch_groups,
        n: unsigned(convolution.output_features()?)? / feature_groups / batch_groups,
        k: unsigned(convolution.input_features()?)? / feature_groups,
        lhs_type: convolution.input.element_type,
        rhs_type: convolution.kernel.element_type,
        output_type,
        accumulation_type: output_type,
        flops,
        kind: ContractionKind::ConvolutionAsDot,
        provenance,
    };
    let whole = contraction;
    for dimension in convolution.spatial()? {
        let (input, kernel, output) =
            (unsigned(dimension.input)?, unsigned(dimension.kernel)?, unsigned(dimension.output)?);
        let valid = u64::try_from(dimension.valid).ok()?;
        // The indices that are multiplied with each other decide the dimension's role in a matmul.
        let (role, size) = if input == output && kernel == output && valid == output {
            (&mut contraction.batch, output)
        } else if kernel == 1 && valid == output {
            (&mut contraction.m, output)
        } else if input == 1 && kernel == output && valid == output {
            (&mut contraction.n, output)
        } else if output == 1 && input == kernel && valid == kernel {
            (&mut contraction.k, kernel)
        } else {
            contraction.kind = ContractionKind::Convolution;
            break;
        };
        *role = role.checked_mul(size)?;
    }
    if contraction.kind == ContractionKind::ConvolutionAsDot
        && product_flops(contraction.batch, contraction.m, contraction.n, contraction.k)
            == Some(flops)
    {
        contraction.flops = real_flops(flops, contraction.lhs_type)?;
        return Some(contraction);
    }
    // In a convolution over several input positions, every output position is a row, and the sum
    // runs over every tap of every feature.
    let flops = real_flops(flops, whole.lhs_type)?;
    let mut real = Contraction { kind: ContractionKind::Convolution, flops, ..whole };
    for dimension in convolution.spatial()? {
        real.m = real.m.checked_mul(unsigned(dimension.output)?)?;
        real.k = real.k.checked_mul(unsigned(dimension.kernel)?)?;
    }
    Some(real)
}

/// The type in which libraries accumulate products of these operands: f32 for floats of at most 16
/// bits, s32 for integers of at most 8 bits.
pub(crate) fn library_accumulation(lhs: ElementType, output: ElementType) -> ElementType {
    match lhs.kind() {
        ElementKind::Float if lhs.bits() <= 16 => ElementType::F32,
        ElementKind::Signed | ElementKind::Unsigned if lhs.bits() <= 8 => ElementType::S32,
        _ => output,
    }
}
