//! Hand-written kernels: what they multiply, and how fast.
//!
//! A custom call states FLOPs (its author's estimate, the shapes of a kernel known by name, or the
//! user) but not the units that do them. FLOPs of a kernel that has two operands to multiply are
//! matrix work, at the peak of the type that [`multiplied_type`] finds, times an efficiency.

use crate::cost::custom_call::{CustomCallCost, CustomCallKind};
use crate::ir::{ElementKind, ElementType, Module, Row};

/// Share of the peak that attention kernels reach on TPU. Assumed: MaxText's and AXLearn's
/// published steps fit if their splash attention runs at about this rate (16B on v5e-256, 7B on
/// v5e-256 and v4-1024).
const TPU_ATTENTION: f64 = 0.4;
/// Share of the peak that attention kernels reach on GPU. Assumed: FlashAttention-2 reaches 0.5 to
/// 0.73 on A100 (Dao, 2023) and 0.35 on H100, FlashAttention-3 up to 0.75 there (Shah et al., 2024).
const GPU_ATTENTION: f64 = 0.5;
/// Share of the peak that other kernels reach. Assumed to be that of attention on TPU: no clock is
/// known for them.
const OTHER_KERNEL: f64 = 0.4;

/// Whether FLOPs of this kind of call are work of kernels, and of none that vector units alone do.
pub(super) fn is_kernel(module: &Module, row: Row, call: &CustomCallCost) -> bool {
    match call.kind {
        CustomCallKind::AttentionForward | CustomCallKind::AttentionBackward => true,
        CustomCallKind::Kernel | CustomCallKind::Library | CustomCallKind::Unknown => {
            matrices(module, row).count() >= 2
        }
        _ => false,
    }
}

/// The share of the peak that a kernel is assumed to reach.
pub(super) fn efficiency(call: &CustomCallCost, is_tpu: bool) -> f64 {
    match call.kind {
        CustomCallKind::AttentionForward | CustomCallKind::AttentionBackward if is_tpu => {
            TPU_ATTENTION
        }
        CustomCallKind::AttentionForward | CustomCallKind::AttentionBackward => GPU_ATTENTION,
        _ => OTHER_KERNEL,
    }
}

/// The type that a kernel multiplies: the narrowest of its float operands of rank 2 or more that
/// have 16 bits or more; smaller types are multiplied as such only if no operand is wider, for
/// kernels widen quantised weights. Kernels keep sums and statistics in wider types.
pub(super) fn multiplied_type(module: &Module, row: Row) -> Option<ElementType> {
    let wide = matrices(module, row).filter(|kind| kind.bits() >= 16);
    let wide = wide.min_by_key(|kind| kind.bits());
    wide.or_else(|| matrices(module, row).max_by_key(|kind| kind.bits()))
}

/// Types of the operands that may be multiplied as matrices: floats, and integers of up to 8 bits.
fn matrices(module: &Module, row: Row) -> impl Iterator<Item = ElementType> {
    let shapes = module.shapes();
    let operands = module.operands(row).iter();
    let arrays = operands.filter_map(|operand| shapes.array(module.shape(Row(*operand))));
    arrays.filter(|array| array.rank() >= 2).map(|array| array.element_type).filter(|kind| {
        match kind.kind() {
            ElementKind::Float => true,
            ElementKind::Signed | ElementKind::Unsigned => kind.bits() <= 8,
            _ => false,
        }
    })
}
