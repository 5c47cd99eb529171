//! Windows, dimension labels and sparsity.

use super::wire::Message;
use crate::ir::decode::{
    DimensionLabel, DimensionLabels, Sparsity, SparsityConfig, WindowDimension,
};

/// Encodes a `SparsityConfig`.
pub(super) fn sparsity(config: SparsityConfig) -> Message {
    let mut message = Message::default();
    for (number, side) in [(1, config.lhs), (2, config.rhs)] {
        if let Some(Sparsity { kept, block, dimension, stride }) = side {
            let mut tensor = Message::default();
            tensor.integer(1, kept);
            tensor.integer(2, block);
            tensor.integer(3, dimension);
            tensor.integer(4, stride);
            message.message(number, tensor);
        }
    }
    message
}

/// Encodes a `Window`.
pub(super) fn window(dimensions: Vec<WindowDimension>) -> Message {
    let mut window = Message::default();
    for dimension in dimensions {
        let mut message = Message::default();
        message.integer(1, dimension.size);
        message.integer(2, dimension.stride);
        message.integer(3, dimension.padding_low);
        message.integer(4, dimension.padding_high);
        message.integer(5, dimension.window_dilation);
        message.integer(6, dimension.base_dilation);
        message.flag(7, dimension.reversal);
        window.message(1, message);
    }
    window
}

/// Encodes `ConvolutionDimensionNumbers`.
pub(super) fn dimension_numbers(labels: &DimensionLabels) -> Message {
    use DimensionLabel as L;
    let mut message = Message::default();
    let sides = [
        (&labels.lhs, 11, [(7, L::Batch), (8, L::Feature)]),
        (&labels.rhs, 6, [(3, L::InputFeature), (4, L::OutputFeature)]),
        (&labels.output, 12, [(9, L::Batch), (10, L::Feature)]),
    ];
    let spatial = |label: &DimensionLabel| match label {
        L::Spatial(number) => Some(usize::from(*number) + 1),
        _ => None,
    };
    let all = labels.lhs.iter().chain(&labels.rhs).chain(&labels.output);
    let rank = all.filter_map(spatial).max().unwrap_or_default();
    for (side, number, roles) in sides {
        for (field, label) in roles {
            // XLA reads a missing label as dimension 0.
            let place = DimensionLabels::position(side, label).unwrap_or_default();
            message.integer(field, place as i64);
        }
        // The number is negative if this side lacks the spatial dimension.
        message.integers(
            number,
            (0..rank).map(|index| {
                let place = DimensionLabels::position(side, L::Spatial(index as u8));
                place.map_or(-1, |place| place as i64)
            }),
        );
    }
    message
}
