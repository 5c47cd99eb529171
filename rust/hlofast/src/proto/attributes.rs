//! The attributes that belong to an opcode, in XLA's order.

use super::computation::Scope;
use super::out::Out;
use super::record::{Record, Store, repeated};
use super::wire::{Fault, Read};
use super::{convolution, literal, shape, sharding, words};
use crate::ir::{ElementKind, Opcode};

/// Every field that this file writes.
const OWN: u128 = repeated(&[
    9, 11, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34,
    45, 47, 48, 49, 50, 51, 52, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 65, 66, 67, 69, 70, 71, 72,
    73, 74, 75, 76, 77, 79, 80, 81, 85, 87, 90, 91, 92, 93, 94, 95, 96, 97, 98, 100,
]);

/// Appends `, key=`.
pub(super) fn key(out: &mut Out<'_>, name: &[u8]) {
    out.push(b", ");
    out.push(name);
    out.byte(b'=');
}

fn integer(out: &mut Out<'_>, name: &[u8], value: i64) {
    key(out, name);
    out.integer(value);
}

fn flag(out: &mut Out<'_>, fields: &Record<'_, '_>, number: u32, name: &[u8]) {
    if fields.is_set(number) {
        key(out, name);
        out.push(b"true");
    }
}

fn list(out: &mut Out<'_>, fields: &Record<'_, '_>, number: u32, name: &[u8]) -> Read<()> {
    key(out, name);
    out.byte(b'{');
    let mut count = 0;
    fields.integers(number, |value| {
        if count > 0 {
            out.byte(b',');
        }
        count += 1;
        out.integer(value);
        Ok(())
    })?;
    out.byte(b'}');
    Ok(())
}

fn list_if_any(out: &mut Out<'_>, fields: &Record<'_, '_>, number: u32, name: &[u8]) -> Read<()> {
    let start = out.text.len();
    if fields.has(number) {
        list(out, fields, number, name)?;
        if out.text.ends_with(b"={}") {
            out.text.truncate(start);
        }
    }
    Ok(())
}

fn string(out: &mut Out<'_>, name: &[u8], value: &[u8]) {
    key(out, name);
    out.string(value);
}

/// Appends `, name=word` for an enumeration that `words` spell; unknown numbers are faults.
pub(super) fn word(
    out: &mut Out<'_>,
    name: &[u8],
    fields: &Record<'_, '_>,
    code: i64,
    words: &[&str],
) -> Read<()> {
    let found = usize::try_from(code).ok().and_then(|code| words.get(code));
    let Some(found) = found else {
        let name = String::from_utf8_lossy(name);
        return Err(Fault::new(fields.message(), format!("{name} of unknown value {code}")));
    };
    key(out, name);
    out.push(found.as_bytes());
    Ok(())
}

/// Appends the attributes of an instruction whose opcode is `opcode`.
pub(super) fn write<'a>(
    out: &mut Out<'a>,
    scope: &Scope<'a, '_>,
    opcode: Opcode,
    fields: &Record<'a, '_>,
) -> Read<()> {
    use Opcode as O;
    if !fields.has_any(OWN) && !says_something_always(opcode) {
        return Ok(());
    }
    match opcode {
        O::Parameter => return parameter(out, fields),
        O::GetTupleElement => {
            integer(out, b"index", fields.integer(13));
            return Ok(());
        }
        O::Broadcast | O::Transpose | O::Reverse | O::Reduce | O::Map => {
            return list(out, fields, 14, b"dimensions");
        }
        O::Iota => {
            let dimension = fields.list(14)?.first().copied().unwrap_or_default();
            integer(out, b"iota_dimension", dimension);
            return Ok(());
        }
        O::Reshape => {
            if let Some(dimension) = fields.list(14)?.first() {
                integer(out, b"inferred_dimension", *dimension);
            }
            return Ok(());
        }
        O::Slice => return slice(out, fields),
        O::DynamicSlice => return list(out, fields, 20, b"dynamic_slice_sizes"),
        O::Pad => return pad(out, fields),
        O::Compare => return compare(out, scope, fields),
        O::Dot | O::ScaledDot => {
            dot(out, fields.bytes(30).unwrap_or_default())?;
            return precision(out, fields);
        }
        O::RaggedDot => return ragged_dot(out, fields),
        O::Convolution | O::CustomCall => return windowed(out, fields, opcode),
        O::ReduceWindow | O::SelectAndScatter => return convolution::window(out, fields),
        O::Gather => return gather(out, fields),
        O::Scatter => return scatter(out, fields),
        O::Fusion => {
            if let Some(kind) = fields.text(11) {
                key(out, b"kind");
                out.push(&super::metadata::clean_name(kind));
            }
            return aliasing(out, fields);
        }
        _ => {}
    }
    collective(out, opcode, fields)?;
    other(out, opcode, fields)
}

/// Whether text has attributes of `opcode` that a proto may leave out, being 0 or empty.
fn says_something_always(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(
        opcode,
        O::AllGather
            | O::AllGatherStart
            | O::AllReduce
            | O::AllReduceStart
            | O::AllToAll
            | O::BatchNormGrad
            | O::BatchNormInference
            | O::BatchNormTraining
            | O::Broadcast
            | O::CollectiveBroadcast
            | O::CollectivePermute
            | O::CollectivePermuteStart
            | O::Convolution
            | O::CustomCall
            | O::DynamicSlice
            | O::Fft
            | O::Gather
            | O::GetTupleElement
            | O::Iota
            | O::Map
            | O::Pad
            | O::RaggedAllToAll
            | O::Reduce
            | O::ReducePrecision
            | O::ReduceScatter
            | O::Reverse
            | O::Rng
            | O::RngBitGenerator
            | O::RngGetAndUpdateState
            | O::Scan
            | O::Scatter
            | O::Slice
            | O::Topk
            | O::Transpose
    )
}

fn parameter(out: &mut Out<'_>, fields: &Record<'_, '_>) -> Read<()> {
    let mut store = Store::default();
    let Some(replication) = fields.text(61) else { return Ok(()) };
    let mut count = 0;
    store.read(replication, repeated(&[1]))?.integers(1, |flag| {
        out.push(if count == 0 { b", parameter_replication={" } else { b"," });
        count += 1;
        out.push(if flag != 0 { b"true" } else { b"false" });
        Ok(())
    })?;
    if count > 0 {
        out.byte(b'}');
    }
    Ok(())
}

fn slice(out: &mut Out<'_>, fields: &Record<'_, '_>) -> Read<()> {
    let mut ranges = Vec::new();
    for range in fields.messages(17) {
        let mut store = Store::default();
        let range = store.read(range, 0)?;
        ranges.push((range.integer(1), range.integer(2), range.integer(3)));
    }
    let has_strides = ranges.iter().any(|(.., stride)| *stride != 1);
    key(out, b"slice");
    out.byte(b'{');
    for (index, (start, limit, stride)) in ranges.into_iter().enumerate() {
        out.push(if index == 0 { b"[" } else { b", [" });
        out.integer(start);
        out.byte(b':');
        out.integer(limit);
        if has_strides {
            out.byte(b':');
            out.integer(stride);
        }
        out.byte(b']');
    }
    out.byte(b'}');
    Ok(())
}

fn pad(out: &mut Out<'_>, fields: &Record<'_, '_>) -> Read<()> {
    let mut dimensions = Vec::new();
    let mut store = Store::default();
    let config = store.read(fields.bytes(21).unwrap_or_default(), repeated(&[1]))?;
    for dimension in config.messages(1) {
        let mut store = Store::default();
        let dimension = store.read(dimension, 0)?;
        dimensions.push((dimension.integer(1), dimension.integer(2), dimension.integer(3)));
    }
    let has_interior = dimensions.iter().any(|(.., interior)| *interior != 0);
    key(out, b"padding");
    for (index, (low, high, interior)) in dimensions.into_iter().enumerate() {
        if index > 0 {
            out.byte(b'x');
        }
        out.integer(low);
        out.byte(b'_');
        out.integer(high);
        if has_interior {
            out.byte(b'_');
            out.integer(interior);
        }
    }
    Ok(())
}

fn compare(out: &mut Out<'_>, scope: &Scope<'_, '_>, fields: &Record<'_, '_>) -> Read<()> {
    if let Some(direction) = fields.text(63) {
        key(out, b"direction");
        out.push(&super::metadata::clean_name(direction));
    }
    let Some(kind) = fields.text(72) else { return Ok(()) };
    let code = scope.operand_type(fields)?;
    let usual: &[u8] = match shape::element_type(code).map(|found| found.kind()) {
        Some(ElementKind::Float | ElementKind::Complex) => b"FLOAT",
        Some(ElementKind::Signed) => b"SIGNED",
        Some(ElementKind::Unsigned | ElementKind::Predicate) => b"UNSIGNED",
        _ => b"",
    };
    if kind != usual {
        key(out, b"type");
        out.push(&super::metadata::clean_name(kind));
    }
    Ok(())
}

fn dot(out: &mut Out<'_>, numbers: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let numbers = store.read(numbers, repeated(&[1, 2, 3, 4]))?;
    list_if_any(out, &numbers, 3, b"lhs_batch_dims")?;
    list(out, &numbers, 1, b"lhs_contracting_dims")?;
    list_if_any(out, &numbers, 4, b"rhs_batch_dims")?;
    list(out, &numbers, 2, b"rhs_contracting_dims")
}

fn ragged_dot(out: &mut Out<'_>, fields: &Record<'_, '_>) -> Read<()> {
    let mut store = Store::default();
    let numbers = store.read(fields.bytes(90).unwrap_or_default(), repeated(&[2, 3]))?;
    dot(out, numbers.bytes(1).unwrap_or_default())?;
    list_if_any(out, &numbers, 2, b"lhs_ragged_dims")?;
    list_if_any(out, &numbers, 3, b"rhs_group_dims")?;
    precision(out, fields)
}

fn precision(out: &mut Out<'_>, fields: &Record<'_, '_>) -> Read<()> {
    let mut store = Store::default();
    let Some(config) = fields.text(51) else { return Ok(()) };
    let config = store.read(config, repeated(&[1]))?;
    let operands = config.list(1)?;
    if operands.iter().any(|code| *code != 0) {
        key(out, b"operand_precision");
        for (index, code) in operands.iter().enumerate() {
            out.byte(if index == 0 { b'{' } else { b',' });
            let found = usize::try_from(*code).ok().and_then(|code| words::PRECISIONS.get(code));
            let Some(found) = found else {
                let message = format!("a precision of unknown value {code}");
                return Err(Fault::new(config.message(), message));
            };
            out.push(found.as_bytes());
        }
        out.byte(b'}');
    }
    match config.integer(2) {
        0 => Ok(()),
        code => word(out, b"algorithm", &config, code, &words::ALGORITHMS),
    }
}

/// Convolutions and custom calls.
fn windowed<'a>(out: &mut Out<'a>, fields: &Record<'a, '_>, opcode: Opcode) -> Read<()> {
    convolution::window(out, fields)?;
    if let Some(numbers) = fields.bytes(16) {
        convolution::dimension_labels(out, numbers)?;
    }
    for (number, name) in [(50, &b"feature_group_count"[..]), (58, b"batch_group_count")] {
        // Less than 1 is read as 1, which is not written.
        if fields.integer(number) > 1 {
            integer(out, name, fields.integer(number));
        }
    }
    precision(out, fields)?;
    if opcode == Opcode::Convolution {
        return convolution::sparsity(out, fields);
    }
    if fields.integer(75) != 0 {
        word(out, b"padding_type", fields, fields.integer(75), &words::PADDING_TYPES)?;
    }
    string(out, b"custom_call_target", fields.bytes(28).unwrap_or_default());
    if fields.is_set(56) {
        key(out, b"operand_layout_constraints");
        out.byte(b'{');
        for (index, operand) in fields.messages(57).enumerate() {
            if index > 0 {
                out.push(b", ");
            }
            shape::write(out, operand, shape::Style::Full, 0)?;
        }
        out.byte(b'}');
    }
    flag(out, fields, 65, b"custom_call_has_side_effect");
    if let Some(value) = fields.bytes(8) {
        key(out, b"literal");
        literal::write(out, value, true, 0)?;
    }
    aliasing(out, fields)?;
    if fields.integer(76) != 0 {
        word(out, b"schedule", fields, fields.integer(76), &words::SCHEDULES)?;
    }
    if fields.integer(77) > 1 {
        word(out, b"api_version", fields, fields.integer(77), &words::API_VERSIONS)?;
    }
    Ok(())
}

fn gather(out: &mut Out<'_>, fields: &Record<'_, '_>) -> Read<()> {
    let mut store = Store::default();
    let numbers = store.read(fields.bytes(33).unwrap_or_default(), repeated(&[1, 2, 3, 5, 6]))?;
    list(out, &numbers, 1, b"offset_dims")?;
    list(out, &numbers, 2, b"collapsed_slice_dims")?;
    list(out, &numbers, 3, b"start_index_map")?;
    list_if_any(out, &numbers, 5, b"operand_batching_dims")?;
    list_if_any(out, &numbers, 6, b"start_indices_batching_dims")?;
    integer(out, b"index_vector_dim", numbers.integer(4));
    list(out, fields, 34, b"slice_sizes")?;
    flag(out, fields, 67, b"indices_are_sorted");
    Ok(())
}

fn scatter(out: &mut Out<'_>, fields: &Record<'_, '_>) -> Read<()> {
    let mut store = Store::default();
    let numbers = store.read(fields.bytes(48).unwrap_or_default(), repeated(&[1, 2, 3, 5, 6]))?;
    list(out, &numbers, 1, b"update_window_dims")?;
    list(out, &numbers, 2, b"inserted_window_dims")?;
    list(out, &numbers, 3, b"scatter_dims_to_operand_dims")?;
    list_if_any(out, &numbers, 5, b"input_batching_dims")?;
    list_if_any(out, &numbers, 6, b"scatter_indices_batching_dims")?;
    integer(out, b"index_vector_dim", numbers.integer(4));
    flag(out, fields, 67, b"indices_are_sorted");
    flag(out, fields, 69, b"unique_indices");
    Ok(())
}

/// `output_to_operand_aliasing={{0}: (1, {})}`.
fn aliasing(out: &mut Out<'_>, fields: &Record<'_, '_>) -> Read<()> {
    if !fields.has(74) {
        return Ok(());
    }
    key(out, b"output_to_operand_aliasing");
    out.byte(b'{');
    for (index, alias) in fields.messages(74).enumerate() {
        let mut store = Store::default();
        let alias = store.read(alias, repeated(&[1, 3]))?;
        if index > 0 {
            out.push(b", ");
        }
        out.integers(&alias.list(1)?);
        out.push(b": (");
        out.integer(alias.integer(2));
        out.push(b", ");
        out.integers(&alias.list(3)?);
        out.byte(b')');
    }
    out.byte(b'}');
    Ok(())
}

/// Channels, groups and pairs.
fn collective(out: &mut Out<'_>, opcode: Opcode, fields: &Record<'_, '_>) -> Read<()> {
    use Opcode as O;
    // Before channels had one name, all-reduce had a field of its own.
    let channel = fields.integer(26).max(fields.integer(45));
    if channel > 0 {
        integer(out, b"channel_id", channel);
    }
    match opcode {
        O::AllReduce
        | O::AllReduceStart
        | O::AllGather
        | O::AllGatherStart
        | O::ReduceScatter
        | O::AllToAll
        | O::RaggedAllToAll
        | O::CollectiveBroadcast => {
            key(out, b"replica_groups");
            sharding::write_groups(out, fields)?;
            flag(out, fields, 56, b"constrain_layout");
            flag(out, fields, 100, b"has_dynamic_root");
        }
        O::CollectivePermute | O::CollectivePermuteStart => {
            key(out, b"source_target_pairs");
            out.byte(b'{');
            for (index, pair) in fields.messages(52).enumerate() {
                let mut store = Store::default();
                let pair = store.read(pair, 0)?;
                out.push(if index == 0 { b"" } else { b"," });
                out.integers(&[pair.integer(1), pair.integer(2)]);
            }
            out.byte(b'}');
            let sizes = fields.list(20)?;
            if !sizes.is_empty() {
                key(out, b"slice_sizes");
                out.byte(b'{');
                out.integers(&sizes);
                out.byte(b'}');
            }
        }
        O::Domain => {
            // Field 54 belongs to the operand's side, which the text calls the exit.
            for (number, name) in
                [(55, &b", domain={kind=\"sharding\", entry="[..]), (54, b", exit=")]
            {
                out.push(name);
                sharding::write(out, fields.bytes(number).unwrap_or_default(), 0)?;
            }
            out.byte(b'}');
        }
        _ => {}
    }
    Ok(())
}

/// Attributes whose field says all.
fn other<'a>(out: &mut Out<'a>, opcode: Opcode, fields: &Record<'a, '_>) -> Read<()> {
    use Opcode as O;
    if opcode == O::AllGather || opcode == O::AllGatherStart {
        list_if_any(out, fields, 14, b"dimensions")?;
    }
    flag(out, fields, 71, b"use_global_device_ids");
    if opcode != O::AllGather && opcode != O::AllGatherStart {
        list_if_any(out, fields, 14, b"dimensions")?;
    }
    flag(out, fields, 47, b"is_host_transfer");
    match opcode {
        O::Infeed => {
            if let Some(config) = fields.text(27) {
                string(out, b"infeed_config", config);
            }
        }
        O::Outfeed => {
            if let Some(sent) = fields.bytes(29) {
                key(out, b"outfeed_shape");
                shape::write(out, sent, shape::Style::Full, 0)?;
            }
            if let Some(config) = fields.text(22) {
                string(out, b"outfeed_config", config);
            }
        }
        O::BatchNormTraining | O::BatchNormInference | O::BatchNormGrad => {
            key(out, b"epsilon");
            literal::write_single(out, fields.float(24));
            integer(out, b"feature_index", fields.integer(25));
        }
        O::ReducePrecision => {
            integer(out, b"exponent_bits", fields.integer(18));
            integer(out, b"mantissa_bits", fields.integer(19));
        }
        O::Rng => {
            word(out, b"distribution", fields, fields.integer(23), &words::DISTRIBUTIONS)?;
        }
        O::RngBitGenerator => {
            word(out, b"algorithm", fields, fields.integer(70), &words::RANDOM_ALGORITHMS)?;
        }
        O::RngGetAndUpdateState => integer(out, b"delta", fields.integer(66)),
        O::Fft => {
            word(out, b"fft_type", fields, fields.integer(31), &words::FFT_TYPES)?;
            list(out, fields, 32, b"fft_length")?;
        }
        O::Cholesky => {
            let mut store = Store::default();
            let options = store.read(fields.bytes(62).unwrap_or_default(), 0)?;
            flag(out, &options, 1, b"lower");
        }
        O::TriangularSolve => {
            let mut store = Store::default();
            let options = store.read(fields.bytes(59).unwrap_or_default(), 0)?;
            flag(out, &options, 1, b"left_side");
            flag(out, &options, 2, b"lower");
            flag(out, &options, 3, b"unit_diagonal");
            if options.integer(4) != 0 {
                word(out, b"transpose_a", &options, options.integer(4), &words::TRANSPOSES)?;
            }
        }
        O::Topk => {
            integer(out, b"k", fields.integer(81));
            key(out, b"largest");
            out.push(if fields.is_set(85) { b"true" } else { b"false" });
            flag(out, fields, 60, b"is_stable");
        }
        O::Sort => flag(out, fields, 60, b"is_stable"),
        O::Scan => {
            integer(out, b"num_carries", fields.integer(95));
            flag(out, fields, 94, b"is_reverse");
            match fields.integer(96) {
                1 => out.push(b", is_associative=true"),
                2 => out.push(b", is_associative=false"),
                _ => {}
            }
        }
        O::AsyncStart | O::AsyncUpdate | O::AsyncDone => {
            let thread = fields.text(79).filter(|thread| *thread != b"main");
            if let Some(thread) = thread.filter(|_| opcode == O::AsyncStart) {
                string(out, b"async_execution_thread", thread);
            }
        }
        // An older flag stands for the first prefetch.
        O::CopyStart if fields.has(80) || fields.is_set(73) => {
            integer(out, b"cross_program_prefetch_index", fields.integer(80));
        }
        _ => {}
    }
    if let Some(accuracy) = fields.bytes(91) {
        result_accuracy(out, accuracy)?;
    }
    aliasing(out, fields)
}

/// `result_accuracy={mode=highest}`, or its tolerance.
fn result_accuracy(out: &mut Out<'_>, message: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let accuracy = store.read(message, 0)?;
    if let Some(tolerance) = accuracy.bytes(2) {
        let mut store = Store::default();
        let tolerance = store.read(tolerance, 0)?;
        out.push(b", result_accuracy={tolerance={atol=");
        literal::write_figure(out, tolerance.double(1));
        out.push(b",rtol=");
        literal::write_figure(out, tolerance.double(2));
        out.push(b",ulps=");
        out.integer(tolerance.integer(3));
        out.push(b"}}");
    } else if accuracy.integer(1) == 1 {
        out.push(b", result_accuracy={mode=highest}");
    }
    Ok(())
}
