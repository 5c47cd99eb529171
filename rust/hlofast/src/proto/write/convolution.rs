//! Windows, dimension labels and sparsity.

use super::keys::Keys;
use super::wire::Message;
use crate::error::Result;
use crate::ir::decode::{AttributeValue as V, DimensionLabel, DimensionLabels, Sparsity};
use crate::proto::words;

/// The fields of a convolution.
pub(super) fn write(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let has_window = keys.peek("window").is_some();
    shared(fields, keys)?;
    // XLA asks for one, which text leaves out where it says nothing.
    if !has_window {
        fields.message(15, Message::default());
    }
    fields.integer(97, keys.code("convolution_kind", &words::CONVOLUTION_KINDS)?);
    let config = keys.with("sparsity_config", |value| {
        Ok(if let V::SparsityConfig(config) = value { Some(config) } else { None })
    })?;
    let mut message = Message::default();
    let sides = config.map_or([None, None], |config| [config.lhs, config.rhs]);
    for (number, side) in [1, 2].into_iter().zip(sides) {
        if let Some(Sparsity { kept, block, dimension, stride }) = side {
            let mut tensor = Message::default();
            tensor.integer(1, kept);
            tensor.integer(2, block);
            tensor.integer(3, dimension);
            tensor.integer(4, stride);
            message.message(number, tensor);
        }
    }
    fields.message(98, message);
    Ok(())
}

/// What custom calls have too.
pub(super) fn shared(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    window(fields, keys)?;
    if let Some(labels) = keys.with("dim_labels", |value| match value {
        V::DimensionLabels(labels) => Ok(Some(dimension_numbers(&labels))),
        _ => Ok(None),
    })? {
        fields.message(16, labels);
    }
    for (number, key) in [(50, "feature_group_count"), (58, "batch_group_count")] {
        fields.integer(number, keys.integer(key)?.unwrap_or(1));
    }
    Ok(())
}

/// `Window`.
pub(super) fn window(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let dimensions = keys.with("window", |value| {
        Ok(if let V::Window(dimensions) = value { Some(dimensions) } else { None })
    })?;
    let Some(dimensions) = dimensions else { return Ok(()) };
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
    fields.message(15, window);
    Ok(())
}

/// `ConvolutionDimensionNumbers`.
fn dimension_numbers(labels: &DimensionLabels) -> Message {
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
            // XLA takes a label that is not there for that of dimension 0.
            let place = DimensionLabels::position(side, label).unwrap_or_default();
            message.integer(field, place as i64);
        }
        // Below zero for a spatial dimension that this side does not have.
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
