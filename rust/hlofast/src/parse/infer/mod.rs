//! Infers omitted result shapes by XLA's shape inference rules.
//!
//! Start at [`infer`]: a table from opcodes to rules, which are in one file per family. A rule
//! gives a layout only if XLA copies it from an operand; otherwise the result has none. All
//! arithmetic is checked, and no rule does work proportional to a number in the text.

mod called;
mod contraction;
mod dimension;
mod elementwise;
mod indexing;
mod linear;
mod reduction;
mod request;
mod structural;
mod windowed;

pub use request::{Attribute, Callee, Request, Signature, Signatures};

use crate::error::Result;
use crate::ir::{Opcode, ShapeId, ShapeInterner};
use request::{Context, cannot};

/// Infers the result shape of `request`. An error whose span is `Span::EMPTY` concerns the whole
/// instruction; other errors point into an attribute.
pub fn infer(request: &Request<'_>, interner: &mut ShapeInterner) -> Result<ShapeId> {
    let mut context = Context { request, interner };
    rule(request.opcode).map_or_else(|| Err(cannot(request.opcode)), |rule| rule(&mut context))
}

type Rule = fn(&mut Context<'_, '_>) -> Result<ShapeId>;

/// The rule for `opcode`; None if XLA has none.
fn rule(opcode: Opcode) -> Option<Rule> {
    use Opcode::*;
    Some(match opcode {
        Abs | Real | Imag | Ceil | Floor | RoundNearestAfz | RoundNearestEven | Cbrt | Erf
        | IsFinite | CountLeadingZeros | Popcnt | Not | Negate | Sign | Acos | Acosh | Asin
        | Asinh | Atanh | ExponentialMinusOne | Exponential | Log | LogPlusOne | Logistic
        | Sqrt | Rsqrt | Tanh | Sine | Sinh | Cosine | Cosh | Tan => elementwise::unary,
        Add | Subtract | Multiply | Mulhi | Divide | Remainder | Maximum | Minimum | Power
        | Atan2 | Complex | And | Or | Xor | ShiftLeft | ShiftRightArithmetic
        | ShiftRightLogical | Compare => elementwise::binary,
        Clamp => elementwise::clamp,
        Select => elementwise::select,
        Copy | Domain | AddDependency => structural::first_operand,
        Tuple => structural::tuple,
        GetTupleElement => structural::get_tuple_element,
        AfterAll => structural::after_all,
        PartitionId | ReplicaId => structural::device_number,
        Broadcast => structural::broadcast,
        Transpose => structural::transpose,
        Reverse => structural::reverse,
        Pad => structural::pad,
        Concatenate => structural::concatenate,
        GetDimensionSize => structural::get_dimension_size,
        SetDimensionSize => structural::set_dimension_size,
        Topk => structural::top_k,
        Sort => structural::sort,
        Gather => indexing::gather,
        Scatter => indexing::scatter,
        Dot => contraction::dot,
        ScaledDot => contraction::scaled_dot,
        RaggedDot => contraction::ragged_dot,
        Convolution => windowed::convolution,
        ReduceWindow => windowed::reduce_window,
        SelectAndScatter => windowed::select_and_scatter,
        Fft => linear::fft,
        Cholesky => linear::cholesky,
        TriangularSolve => linear::triangular_solve,
        Reduce => reduction::reduce,
        BatchNormTraining | BatchNormInference | BatchNormGrad => reduction::batch_norm,
        Call => called::call,
        While => called::while_loop,
        Conditional => called::conditional,
        Map => called::map,
        Scan => called::scan,
        _ => return None,
    })
}
