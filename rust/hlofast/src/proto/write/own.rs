//! The fields that belong to an opcode.

use super::Writer;
use super::convolution;
use super::custom_call;
use super::keys::{Keys, code_of};
use super::shape::Style;
use super::sharding;
use super::wire::Message;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::decode::{Alias, AttributeValue as V, ResultAccuracy};
use crate::ir::{Opcode, Row};
use crate::proto::words;
use crate::text::Span;

/// Appends them to `fields`.
pub(super) fn write(
    writer: &mut Writer<'_>,
    fields: &mut Message,
    keys: &mut Keys<'_>,
    row: Row,
) -> Result<()> {
    use Opcode as O;
    match writer.module.opcode(row) {
        O::Broadcast
        | O::Transpose
        | O::Reverse
        | O::Reduce
        | O::Map
        | O::Concatenate
        | O::GetDimensionSize
        | O::SetDimensionSize => fields.integers(14, keys.integers("dimensions")?),
        O::Iota => list_of_one(fields, keys, "iota_dimension")?,
        O::Reshape => list_of_one(fields, keys, "inferred_dimension")?,
        O::GetTupleElement => integer(fields, 13, keys, "index")?,
        O::Slice => slice(fields, keys)?,
        O::DynamicSlice => fields.integers(20, keys.integers("dynamic_slice_sizes")?),
        O::Pad => pad(fields, keys)?,
        O::Compare => {
            fields.text(63, keys.word("direction")?.unwrap_or_default());
            fields.text(72, keys.word("type")?.unwrap_or_default());
        }
        O::Dot | O::ScaledDot => {
            fields.message(30, dot(keys)?);
            precision(fields, keys)?;
        }
        O::RaggedDot => {
            let mut numbers = Message::default();
            numbers.message(1, dot(keys)?);
            numbers.integers(2, keys.integers("lhs_ragged_dims")?);
            numbers.integers(3, keys.integers("rhs_group_dims")?);
            fields.message(90, numbers);
            precision(fields, keys)?;
        }
        O::Convolution => {
            convolution::write(fields, keys)?;
            precision(fields, keys)?;
        }
        O::CustomCall => {
            convolution::shared(fields, keys)?;
            precision(fields, keys)?;
            custom_call::write(writer, fields, keys)?;
            aliasing(fields, keys)?;
        }
        O::ReduceWindow | O::SelectAndScatter => convolution::window(fields, keys)?,
        O::Gather => gather(fields, keys)?,
        O::Scatter => scatter(fields, keys)?,
        O::Fusion => {
            fields.text(11, keys.word("kind")?.unwrap_or_default());
            aliasing(fields, keys)?;
        }
        O::Sort => {
            fields.integers(14, keys.integers("dimensions")?);
            fields.flag(60, keys.flag("is_stable")?);
        }
        O::Topk => {
            integer(fields, 81, keys, "k")?;
            // XLA takes the largest unless the text says otherwise.
            let largest = keys.peek("largest").is_none() || keys.flag("largest")?;
            fields.flag(85, largest);
            fields.flag(60, keys.flag("is_stable")?);
        }
        O::Scan => {
            fields.integers(14, keys.integers("dimensions")?);
            integer(fields, 95, keys, "num_carries")?;
            fields.flag(94, keys.flag("is_reverse")?);
            let associative = keys.with("is_associative", |value| match value {
                V::Boolean(value) => Ok(Some(if value { 1 } else { 2 })),
                _ => Ok(None),
            })?;
            fields.integer(96, associative.unwrap_or_default());
        }
        O::Call => {
            fields.flag(89, keys.flag("is_composite")?);
            aliasing(fields, keys)?;
        }
        O::Send | O::SendDone | O::Recv | O::RecvDone => {
            channel(writer, fields, keys)?;
            fields.flag(47, keys.flag("is_host_transfer")?);
        }
        O::AsyncStart => {
            fields.text(79, &keys.text("async_execution_thread")?);
            aliasing(fields, keys)?;
        }
        O::AsyncUpdate | O::AsyncDone => {
            // Their thread is that of the start that their operands lead to.
            keys.take("async_execution_thread");
            aliasing(fields, keys)?;
        }
        O::CopyStart => {
            if let Some(index) = keys.integer("cross_program_prefetch_index")? {
                fields.present(80, index);
            }
        }
        O::Domain => domain(fields, keys)?,
        O::AllReduce
        | O::AllReduceStart
        | O::AllGather
        | O::AllGatherStart
        | O::ReduceScatter
        | O::AllToAll
        | O::RaggedAllToAll
        | O::CollectiveBroadcast
        | O::CollectivePermute
        | O::CollectivePermuteStart => collective(writer, fields, keys, row)?,
        opcode => simple(writer, fields, keys, row, opcode)?,
    }
    Ok(())
}

/// Opcodes with few fields of their own, and those with none.
fn simple(
    writer: &mut Writer<'_>,
    fields: &mut Message,
    keys: &mut Keys<'_>,
    row: Row,
    opcode: Opcode,
) -> Result<()> {
    use Opcode as O;
    match opcode {
        O::Infeed => fields.text(27, &keys.text("infeed_config")?),
        O::Outfeed => {
            fields.text(22, &keys.text("outfeed_config")?);
            let shape = keys.with("outfeed_shape", |value| match value {
                V::Shape(text) => writer.shape_of_text(text).map(Some),
                _ => Ok(None),
            })?;
            if let Some(shape) = shape {
                fields.element(29, &shape);
            } else if let Some(sent) = writer.module.operands(row).first() {
                // Without one XLA sends what the operand is.
                let shape = writer.module.shape(Row(*sent));
                fields.element(29, writer.shapes.get(shape, Style::Full)?);
            }
        }
        O::BatchNormTraining | O::BatchNormInference | O::BatchNormGrad => {
            let epsilon = keys.with("epsilon", |value| {
                Ok(if let V::Float(value) = value { Some(value) } else { None })
            })?;
            fields.single(24, epsilon.unwrap_or_default() as f32);
            integer(fields, 25, keys, "feature_index")?;
        }
        O::ReducePrecision => {
            small(fields, 18, keys, "exponent_bits")?;
            small(fields, 19, keys, "mantissa_bits")?;
        }
        O::Rng => fields.integer(23, keys.code("distribution", &words::DISTRIBUTIONS)?),
        O::RngBitGenerator => {
            fields.integer(70, keys.code("algorithm", &words::RANDOM_ALGORITHMS)?);
        }
        O::RngGetAndUpdateState => integer(fields, 66, keys, "delta")?,
        O::Fft => {
            fields.integer(31, keys.code("fft_type", &words::FFT_TYPES)?);
            fields.integers(32, keys.integers("fft_length")?);
        }
        O::Cholesky => {
            let mut options = Message::default();
            options.flag(1, keys.flag("lower")?);
            fields.message(62, options);
        }
        O::TriangularSolve => {
            let mut options = Message::default();
            options.flag(1, keys.flag("left_side")?);
            options.flag(2, keys.flag("lower")?);
            options.flag(3, keys.flag("unit_diagonal")?);
            options.integer(4, keys.code("transpose_a", &words::TRANSPOSES)?);
            fields.message(59, options);
        }
        _ => result_accuracy(fields, keys)?,
    }
    Ok(())
}

pub(super) fn integer(
    fields: &mut Message,
    number: u32,
    keys: &mut Keys<'_>,
    key: &str,
) -> Result<()> {
    fields.integer(number, keys.integer(key)?.unwrap_or_default());
    Ok(())
}

/// A number of 32 bits.
fn small(fields: &mut Message, number: u32, keys: &mut Keys<'_>, key: &str) -> Result<()> {
    let value = keys.with(key, |value| match value {
        V::Integer(value) if i32::try_from(value).is_ok() => Ok(Some(value)),
        _ => Ok(None),
    })?;
    fields.integer(number, value.unwrap_or_default());
    Ok(())
}

fn list_of_one(fields: &mut Message, keys: &mut Keys<'_>, key: &str) -> Result<()> {
    let value = keys.integer(key)?;
    fields.integers(14, value);
    Ok(())
}

fn slice(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let ranges = keys.with("slice", |value| {
        Ok(if let V::Slice(ranges) = value { Some(ranges) } else { None })
    })?;
    for range in ranges.into_iter().flatten() {
        let mut message = Message::default();
        message.integer(1, range.start);
        message.integer(2, range.limit);
        message.integer(3, range.stride);
        fields.message(17, message);
    }
    Ok(())
}

fn pad(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let dimensions = keys.with("padding", |value| {
        Ok(if let V::Padding(dimensions) = value { Some(dimensions) } else { None })
    })?;
    let mut config = Message::default();
    for dimension in dimensions.into_iter().flatten() {
        let mut message = Message::default();
        message.integer(1, dimension.low);
        message.integer(2, dimension.high);
        message.integer(3, dimension.interior);
        config.message(1, message);
    }
    fields.message(21, config);
    Ok(())
}

fn dot(keys: &mut Keys<'_>) -> Result<Message> {
    let mut numbers = Message::default();
    numbers.integers(1, keys.integers("lhs_contracting_dims")?);
    numbers.integers(2, keys.integers("rhs_contracting_dims")?);
    numbers.integers(3, keys.integers("lhs_batch_dims")?);
    numbers.integers(4, keys.integers("rhs_batch_dims")?);
    Ok(numbers)
}

fn precision(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let mut config = Message::default();
    let codes = keys.with("operand_precision", |value| match value {
        V::Words(words) => {
            let codes = words.into_iter().map(|word| code_of(word, &words::PRECISIONS));
            codes.collect::<Result<Vec<i64>>>().map(Some)
        }
        _ => Ok(None),
    })?;
    config.integers(1, codes.into_iter().flatten());
    config.integer(2, keys.code("algorithm", &words::ALGORITHMS)?);
    fields.message(51, config);
    Ok(())
}

fn gather(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let mut numbers = Message::default();
    numbers.integers(1, keys.integers("offset_dims")?);
    numbers.integers(2, keys.integers("collapsed_slice_dims")?);
    numbers.integers(3, keys.integers("start_index_map")?);
    integer(&mut numbers, 4, keys, "index_vector_dim")?;
    numbers.integers(5, keys.integers("operand_batching_dims")?);
    numbers.integers(6, keys.integers("start_indices_batching_dims")?);
    fields.message(33, numbers);
    fields.integers(34, keys.integers("slice_sizes")?);
    fields.flag(67, keys.flag("indices_are_sorted")?);
    Ok(())
}

fn scatter(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let mut numbers = Message::default();
    numbers.integers(1, keys.integers("update_window_dims")?);
    numbers.integers(2, keys.integers("inserted_window_dims")?);
    numbers.integers(3, keys.integers("scatter_dims_to_operand_dims")?);
    integer(&mut numbers, 4, keys, "index_vector_dim")?;
    numbers.integers(5, keys.integers("input_batching_dims")?);
    numbers.integers(6, keys.integers("scatter_indices_batching_dims")?);
    fields.message(48, numbers);
    fields.flag(67, keys.flag("indices_are_sorted")?);
    fields.flag(69, keys.flag("unique_indices")?);
    Ok(())
}

/// `OutputOperandAliasing`, one for each pair.
fn aliasing(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let aliases = keys.with("output_to_operand_aliasing", |value| {
        Ok(if let V::Aliases(aliases) = value { Some(aliases) } else { None })
    })?;
    for Alias { output_index, number, index, .. } in aliases.into_iter().flatten() {
        let mut message = Message::default();
        message.integers(1, output_index);
        message.integer(2, number);
        message.integers(3, index);
        fields.message(74, message);
    }
    Ok(())
}

fn channel(writer: &mut Writer<'_>, fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let mut place = Span::EMPTY;
    let span = keys.peek("channel_id");
    if let Some(channel) = keys.integer("channel_id")? {
        if channel <= 0 {
            place = span.unwrap_or_default();
        }
        fields.integer(26, channel);
    }
    if place != Span::EMPTY {
        writer.leave_out(place, "a channel_id below 1, which protobufs read as none");
    }
    Ok(())
}

fn collective(
    writer: &mut Writer<'_>,
    fields: &mut Message,
    keys: &mut Keys<'_>,
    row: Row,
) -> Result<()> {
    use Opcode as O;
    let opcode = writer.module.opcode(row);
    channel(writer, fields, keys)?;
    if matches!(opcode, O::CollectivePermute | O::CollectivePermuteStart) {
        let pairs = keys.with("source_target_pairs", |value| {
            Ok(if let V::SourceTargetPairs(pairs) = value { Some(pairs) } else { None })
        })?;
        for (source, target) in pairs.into_iter().flatten() {
            let mut pair = Message::default();
            pair.integer(1, source);
            pair.integer(2, target);
            fields.message(52, pair);
        }
        let span = keys.peek("slice_sizes");
        let sizes = keys.with("slice_sizes", |value| {
            Ok(if let V::IntegerLists(lists) = value { Some(lists) } else { None })
        })?;
        if let Some(lists) = sizes {
            if lists.len() > 1 {
                let what = "which of the slice_sizes belong together";
                writer.leave_out(span.unwrap_or_default(), what);
            }
            fields.integers(20, lists.items);
        }
        return Ok(());
    }
    keys.with("replica_groups", |value| match value {
        V::ReplicaGroups(groups) => sharding::replica_groups(fields, &groups).map(Some),
        _ => Ok(None),
    })?;
    match opcode {
        O::CollectiveBroadcast => fields.flag(100, keys.flag("has_dynamic_root")?),
        O::RaggedAllToAll | O::AllToAll => {
            fields.flag(56, keys.flag("constrain_layout")?);
            fields.integers(14, keys.integers("dimensions")?);
        }
        _ => {
            fields.flag(56, keys.flag("constrain_layout")?);
            fields.flag(71, keys.flag("use_global_device_ids")?);
            if let Some(span) = keys.take("mode") {
                writer.leave_out(span, "the mode of a collective, which XLA derives");
            }
            if !matches!(opcode, O::AllReduce | O::AllReduceStart) {
                fields.integers(14, keys.integers("dimensions")?);
            }
        }
    }
    Ok(())
}

fn domain(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let sides = keys.with("domain", |value| match value {
        V::Domain(domain) if domain.kind.as_ref() == b"sharding" => {
            Ok(Some((sharding::sharding(&domain.exit)?, sharding::sharding(&domain.entry)?)))
        }
        _ => Ok(None),
    })?;
    if let Some((exit, entry)) = sides {
        // The field that is called the entry belongs to the operand's side, the text's exit.
        fields.message(54, exit);
        fields.message(55, entry);
    }
    Ok(())
}

fn result_accuracy(fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    let accuracy = keys.with("result_accuracy", |value| match value {
        V::ResultAccuracy(accuracy) => accuracy_proto(&accuracy).map(Some),
        _ => Ok(None),
    })?;
    if let Some(accuracy) = accuracy {
        fields.message(91, accuracy);
    }
    Ok(())
}

fn accuracy_proto(accuracy: &ResultAccuracy<'_>) -> Result<Message> {
    let mut message = Message::default();
    match accuracy {
        ResultAccuracy::Mode(word) => {
            message.present(1, code_of(word, &["default", "highest"])?);
        }
        ResultAccuracy::Tolerance { atol, rtol, ulps } => {
            let whole = *ulps as i64;
            if whole as f64 != *ulps {
                let text = format!("ulps={ulps} is no whole number, which its field needs");
                return Err(ParseError::new(ErrorKind::InvalidAttribute, Span::EMPTY, text));
            }
            let mut tolerance = Message::default();
            tolerance.double(1, *atol);
            tolerance.double(2, *rtol);
            tolerance.integer(3, whole);
            message.message(2, tolerance);
        }
    }
    Ok(message)
}
