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
use arrow_schema::{ArrowError, DataType, Schema};
use arrow_select::filter::filter_record_batch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;

/// Rows that are read at once.
const BATCH: usize = 1 << 14;

/// Writes `columns` to a new file; unknown and absent values become null.
pub fn write_parquet(columns: &Columns, path: &Path) -> Result<()> {
    let (fields, arrays): (Vec<_>, Vec<_>) =
        columns.iter().map(|(field, values)| column(field, values)).unzip();
    let options = RecordBatchOptions::new().with_row_count(Some(columns.len()));
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new_with_options(schema, arrays, &options).map_err(of_arrow)?;
    write(path, [Ok(batch)].into_iter()).map(|_| ())
}

/// Reads the columns of `like` that are in `names` from a file. Columns that are missing from the file
/// or from `names`, and values of another type, are unknown or absent.
pub fn read_parquet(path: &Path, like: &Columns, names: &HashSet<String>) -> Result<Columns> {
    let builder = builder(path)?;
    let rows = builder.metadata().file_metadata().num_rows();
    let rows = usize::try_from(rows).map_err(|_| Error::from(ErrorKind::InvalidData))?;
    let wanted = |name: &str| names.contains(name);
    let fields = builder.schema().fields().iter();
    let present: Vec<&str> =
        fields.map(|field| field.name().as_str()).filter(|name| wanted(name)).collect();
    let mask = ProjectionMask::columns(builder.parquet_schema(), present);
    let reader = builder.with_projection(mask).with_batch_size(BATCH).build();
    let batches: Vec<RecordBatch> =
        reader.map_err(of_parquet)?.collect::<std::result::Result<_, _>>().map_err(of_arrow)?;
    let mut read = Columns::default();
    for (field, values) in like.iter() {
        let parts: Option<Vec<&ArrayRef>> =
            batches.iter().map(|batch| batch.column_by_name(&field.name)).collect();
        read.push(field.clone(), filled(field, values, &parts.unwrap_or_default(), rows));
    }
    Ok(read)
}

/// Copies a file without the rows whose text in `column` is in `gone`. Returns how many rows are left;
/// without any, no file is written.
pub fn copy_parquet_without(
    source: &Path,
    target: &Path,
    column: &str,
    gone: &HashSet<String>,
) -> Result<usize> {
    let reader = builder(source)?.with_batch_size(BATCH).build().map_err(of_parquet)?;
    let kept = |batch: std::result::Result<RecordBatch, ArrowError>| {
        let batch = batch.map_err(of_arrow)?;
        let Some(texts) = batch.column_by_name(column).map(texts) else { return Ok(batch) };
        let mask: BooleanArray =
            texts.iter().map(|text| Some(!text.is_some_and(|text| gone.contains(text)))).collect();
        filter_record_batch(&batch, &mask).map_err(of_arrow)
    };
    let batches: Vec<RecordBatch> = reader.map(kept).collect::<Result<_>>()?;
    let rows = batches.iter().map(RecordBatch::num_rows).sum();
    if rows > 0 {
        write(target, batches.into_iter().map(Ok))?;
    }
    Ok(rows)
}

fn builder(path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    ParquetRecordBatchReaderBuilder::try_new(File::open(path)?).map_err(of_parquet)
}

fn write(path: &Path, batches: impl Iterator<Item = Result<RecordBatch>>) -> Result<()> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_created_by(concat!("hlofast ", env!("CARGO_PKG_VERSION")).to_owned());
    let mut file = Some(File::create(path)?);
    let mut writer = None;
    for batch in batches {
        let batch = batch?;
        if let Some(file) = file.take() {
            let properties = Some(properties.clone().build());
            let own = ArrowWriter::try_new(file, batch.schema(), properties);
            writer = Some(own.map_err(of_parquet)?);
        }
        if let Some(writer) = &mut writer {
            writer.write(&batch).map_err(of_parquet)?;
        }
    }
    writer.map_or(Ok(()), |writer| writer.close().map(drop).map_err(of_parquet))
}

/// A column as Arrow describes and holds it.
fn column(field: &Field, values: &Values) -> (arrow_schema::Field, ArrayRef) {
    let array: ArrayRef = match values {
        Values::Rows(rows) => Arc::new(UInt32Array::from_iter_values(rows.iter().copied())),
        Values::Numbers(numbers) => match field.unknown() {
            Some(unknown) => {
                let known = numbers.iter().map(|value| (*value != unknown).then_some(*value));
                Arc::new(known.collect::<Int64Array>())
            }
            None => Arc::new(Int64Array::from_iter_values(numbers.iter().copied())),
        },
        Values::Reals(reals) => {
            let known = reals.iter().map(|value| (!value.is_nan()).then_some(*value));
            Arc::new(known.collect::<Float64Array>())
        }
        Values::Flags(flags) => Arc::new(BooleanArray::from(flags.clone())),
        texts @ (Values::Texts(_) | Values::Runs(_)) => {
            let all = texts.texts().into_iter().flatten();
            let known = |text: &&[u8]| !field.is_nullable || !text.is_empty();
            let all = all.map(|text| Some(text).filter(known).map(String::from_utf8_lossy));
            Arc::new(all.collect::<LargeStringArray>())
        }
    };
    let own = arrow_schema::Field::new(&*field.name, array.data_type().clone(), true);
    let metadata = field.metadata().map(|(key, value)| (key.to_owned(), value.into_owned()));
    (own.with_metadata(HashMap::from(metadata)), array)
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

fn of_parquet(error: ParquetError) -> Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<Error>() {
            Ok(error) => *error,
            Err(inner) => Error::new(ErrorKind::InvalidData, inner),
        },
        error => Error::new(ErrorKind::InvalidData, error),
    }
}

fn of_arrow(error: ArrowError) -> Error {
    match error {
        ArrowError::ExternalError(inner) => match inner.downcast::<ParquetError>() {
            Ok(error) => of_parquet(*error),
            Err(inner) => Error::new(ErrorKind::InvalidData, inner),
        },
        error => Error::new(ErrorKind::InvalidData, error),
    }
}
