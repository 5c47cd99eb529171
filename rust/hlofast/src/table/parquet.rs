//! Tables as Parquet files. Each column keeps its kind, unit, heading and documentation as metadata, so
//! that the file describes itself.

use super::columns::{Columns, Texts, Values};
use super::field::Field;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, LargeStringArray, RecordBatch,
    RecordBatchOptions, UInt32Array,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Schema};
use arrow_select::filter::filter_record_batch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::arrow_writer::compute_leaves;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::Compression;
use parquet::file::properties::{
    DEFAULT_MAX_ROW_GROUP_ROW_COUNT, EnabledStatistics, WriterProperties,
};
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::Arc;

/// Why a file is not one that [`parquet`] writes.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Rows that are read at once.
const BATCH: usize = 1 << 14;
/// Rows of a group, as in the writer's default.
const GROUP: usize = DEFAULT_MAX_ROW_GROUP_ROW_COUNT;

/// `columns` as a Parquet file; unknown and absent values become null.
pub fn parquet(columns: &Columns) -> Result<Vec<u8>> {
    let fields: Vec<_> = columns.iter().map(|(field, values)| described(field, values)).collect();
    let schema = Arc::new(Schema::new(fields));
    if !(1..=GROUP).contains(&columns.len()) {
        let arrays = columns.iter().map(|(field, values)| array(field, values)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(columns.len()));
        return written(&[RecordBatch::try_new_with_options(schema, arrays, &options)?]);
    }
    // One column at a time, so that only one is in memory both as it was and as Arrow holds it.
    let mut file = Vec::new();
    let writer = ArrowWriter::try_new(&mut file, Arc::clone(&schema), Some(properties()))?;
    let (mut writer, writers) = writer.into_serialized_writer()?;
    let mut group = writer.next_row_group()?;
    let writers = writers.create_column_writers(0)?;
    for ((field, (own, values)), mut writer) in
        schema.fields().iter().zip(columns.iter()).zip(writers)
    {
        for leaf in compute_leaves(field, &array(own, values))? {
            writer.write(&leaf)?;
        }
        writer.close()?.append_to_row_group(&mut group)?;
    }
    group.close()?;
    writer.close()?;
    Ok(file)
}

/// The columns of `like` that are in `names`, from a Parquet file. Columns that are missing from the
/// file or from `names`, and values of another type, are unknown or absent.
pub fn of_parquet(file: &[u8], like: &Columns, names: &HashSet<String>) -> Result<Columns> {
    let builder = builder(file)?;
    let rows = usize::try_from(builder.metadata().file_metadata().num_rows())?;
    let fields = builder.schema().fields().iter().map(|field| field.name().as_str());
    let present: Vec<&str> = fields.filter(|name| names.contains(*name)).collect();
    let mask = ProjectionMask::columns(builder.parquet_schema(), present);
    let reader = builder.with_projection(mask).build()?;
    let batches: Vec<RecordBatch> = reader.collect::<std::result::Result<_, _>>()?;
    let mut read = Columns::default();
    for (field, values) in like.iter() {
        let parts: Option<Vec<&ArrayRef>> =
            batches.iter().map(|batch| batch.column_by_name(&field.name)).collect();
        read.push(field.clone(), filled(field, values, &parts.unwrap_or_default(), rows));
    }
    Ok(read)
}

/// A Parquet file without the rows whose text in `column` is in `gone`, and how many rows are left.
pub fn parquet_without(
    file: &[u8],
    column: &str,
    gone: &HashSet<String>,
) -> Result<(usize, Vec<u8>)> {
    let reader = builder(file)?.build()?;
    let mut kept = Vec::new();
    for batch in reader {
        let batch = batch?;
        let texts = batch.column_by_name(column).map(texts).unwrap_or_default();
        let is_kept = |text: &Option<&str>| Some(!text.is_some_and(|text| gone.contains(text)));
        let mask: BooleanArray = texts.iter().map(is_kept).collect();
        kept.push(filter_record_batch(&batch, &mask)?);
    }
    let rows = kept.iter().map(RecordBatch::num_rows).sum();
    Ok((rows, written(&kept)?))
}

fn builder(file: &[u8]) -> Result<ParquetRecordBatchReaderBuilder<Bytes>> {
    let file = Bytes::copy_from_slice(file);
    Ok(ParquetRecordBatchReaderBuilder::try_new(file)?.with_batch_size(BATCH))
}

/// Batches of one schema as a file; nothing without any.
fn written(batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, first.schema(), Some(properties()))?;
    for batch in batches {
        writer.write(batch)?;
    }
    writer.close()?;
    Ok(file)
}

fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_created_by(concat!("hlofast ", env!("CARGO_PKG_VERSION")).to_owned())
        .build()
}

/// A column as Arrow describes it.
fn described(field: &Field, values: &Values) -> arrow_schema::Field {
    let kind = match values {
        Values::Rows(_) => DataType::UInt32,
        Values::Numbers(_) => DataType::Int64,
        Values::Reals(_) => DataType::Float64,
        Values::Flags(_) => DataType::Boolean,
        Values::Texts(_) | Values::Runs(_) => DataType::LargeUtf8,
    };
    let metadata = field.metadata().map(|(key, value)| (key.to_owned(), value.into_owned()));
    arrow_schema::Field::new(&*field.name, kind, true).with_metadata(HashMap::from(metadata))
}

/// A column as Arrow holds it.
fn array(field: &Field, values: &Values) -> ArrayRef {
    match values {
        Values::Rows(rows) => Arc::new(UInt32Array::from_iter_values(rows.iter().copied())),
        Values::Numbers(numbers) => {
            let unknown = field.unknown();
            let nulls =
                unknown.map(|unknown| nulls(numbers.len(), |index| numbers[index] != unknown));
            Arc::new(Int64Array::new(ScalarBuffer::from(numbers.clone()), nulls))
        }
        Values::Reals(reals) => {
            let nulls = nulls(reals.len(), |index| !reals[index].is_nan());
            Arc::new(Float64Array::new(ScalarBuffer::from(reals.clone()), Some(nulls)))
        }
        Values::Flags(flags) => Arc::new(BooleanArray::from(flags.clone())),
        texts @ (Values::Texts(_) | Values::Runs(_)) => {
            let all = || texts.texts().into_iter().flatten();
            let array = match texts {
                Values::Texts(texts) => as_written(field, texts.clone()),
                Values::Runs(runs) => as_written(field, Texts::of_runs(runs)),
                _ => None,
            };
            let known = |text: &&[u8]| !field.is_nullable || !text.is_empty();
            let readable =
                || all().map(|text| Some(text).filter(known).map(String::from_utf8_lossy));
            Arc::new(array.unwrap_or_else(|| readable().collect::<LargeStringArray>()))
        }
    }
}

/// Which of `count` values are known.
fn nulls(count: usize, is_known: impl Fn(usize) -> bool) -> NullBuffer {
    NullBuffer::new(BooleanBuffer::collect_bool(count, is_known))
}

/// Texts in UTF-8 as Arrow holds them.
fn as_written(field: &Field, texts: Texts) -> Option<LargeStringArray> {
    let count = texts.len();
    let (all, bounds) = texts.into_parts();
    if bounds.is_empty() {
        return None;
    }
    let nulls = field.is_nullable.then(|| nulls(count, |index| bounds[index] < bounds[index + 1]));
    let offsets = OffsetBuffer::new(ScalarBuffer::from(bounds));
    LargeStringArray::try_new(offsets, Buffer::from(all), nulls).ok()
}

/// The values of a column like `like` from the arrays that hold its parts.
fn filled(field: &Field, like: &Values, parts: &[&ArrayRef], rows: usize) -> Values {
    fn each<'a, T: Clone>(
        parts: &[&'a ArrayRef],
        rows: usize,
        missing: T,
        values: impl Fn(&'a ArrayRef) -> Option<Vec<T>>,
    ) -> Vec<T> {
        let known: Option<Vec<Vec<T>>> = parts.iter().map(|array| values(array)).collect();
        let known = known.map(|parts| parts.concat()).filter(|all| all.len() == rows);
        known.unwrap_or_else(|| vec![missing; rows])
    }
    match like {
        Values::Rows(_) => Values::Rows(each(parts, rows, u32::MAX, |array| {
            let array = array.as_primitive_opt::<UInt32Type>()?;
            Some(array.iter().map(|value| value.unwrap_or(u32::MAX)).collect())
        })),
        Values::Numbers(_) => {
            let unknown = field.unknown().unwrap_or(-1);
            Values::Numbers(each(parts, rows, unknown, |array| {
                let array = array.as_primitive_opt::<Int64Type>()?;
                Some(array.iter().map(|value| value.unwrap_or(unknown)).collect())
            }))
        }
        Values::Reals(_) => Values::Reals(each(parts, rows, f64::NAN, |array| {
            let array = array.as_primitive_opt::<Float64Type>()?;
            Some(array.iter().map(|value| value.unwrap_or(f64::NAN)).collect())
        })),
        Values::Flags(_) => Values::Flags(each(parts, rows, false, |array| {
            Some(array.as_boolean_opt()?.iter().map(|value| value == Some(true)).collect())
        })),
        Values::Texts(_) | Values::Runs(_) => {
            let mut all = Texts::default();
            for text in each(parts, rows, None, |array| Some(texts(array))) {
                all.push(text.unwrap_or_default().as_bytes());
            }
            Values::Texts(all)
        }
    }
}

/// The texts of a column; none if it has another type.
fn texts(array: &ArrayRef) -> Vec<Option<&str>> {
    match array.data_type() {
        DataType::LargeUtf8 => array.as_string::<i64>().iter().collect(),
        DataType::Utf8 => array.as_string::<i32>().iter().collect(),
        _ => vec![None; array.len()],
    }
}
