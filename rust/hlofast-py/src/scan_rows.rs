//! Tables of scans from the contents of datasets: their columns, and rows from Python values.

use crate::field::Field;
use crate::scan::ScanTable;
use hlofast::dump::{Survey, TableKind, columns_of, program_rows};
use hlofast::table::{Columns, Texts, Values, of_parquet, parquet_without};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;

/// The columns of a scan table, without rows.
fn empty(table: &str) -> PyResult<Columns> {
    if table == "programs" {
        return Ok(program_rows(&Survey::empty(), &Columns::default()));
    }
    let kind = TableKind::ALL.iter().find(|kind| kind.as_str() == table);
    kind.map(|kind| columns_of(*kind)).ok_or_else(|| PyKeyError::new_err(table.to_owned()))
}

/// Returns the fields of the scan table `table`.
///
/// Raises `ValueError` for an unknown table.
#[pyfunction]
pub fn _scan_fields(table: &str) -> PyResult<Vec<Field>> {
    Ok(empty(table)?.into_iter().map(|(core, _)| Field { core }).collect())
}

/// Creates a table from the values of its columns, with None for unknown or absent values.
///
/// All values of an omitted column are unknown or absent.
#[pyfunction]
pub fn _scan_rows(table: &str, length: usize, columns: &Bound<'_, PyDict>) -> PyResult<ScanTable> {
    fn each<T: Clone + for<'py> FromPyObjectOwned<'py>>(
        values: Option<Bound<'_, PyAny>>,
        length: usize,
        missing: T,
    ) -> PyResult<Vec<T>> {
        let Some(values) = values else { return Ok(vec![missing; length]) };
        let value = |value: PyResult<Bound<'_, PyAny>>| {
            let value = value?;
            if value.is_none() { Ok(missing.clone()) } else { value.extract().map_err(Into::into) }
        };
        values.try_iter()?.map(value).collect()
    }
    let mut filled = Columns::default();
    for (field, values) in empty(table)? {
        let given = columns.get_item(&*field.name)?;
        let values = match values {
            Values::Rows(_) => Values::Rows(each(given, length, u32::MAX)?),
            Values::Numbers(_) => Values::Numbers(each(given, length, -1)?),
            Values::Reals(_) => Values::Reals(each(given, length, f64::NAN)?),
            Values::Flags(_) => Values::Flags(each(given, length, false)?),
            Values::Texts(_) | Values::Runs(_) => {
                let mut texts = Texts::default();
                each(given, length, String::new())?
                    .iter()
                    .for_each(|text| texts.push(text.as_bytes()));
                Values::Texts(texts)
            }
        };
        if values.len() != length {
            return Err(PyValueError::new_err(format!(
                "column {} has {} rows",
                field.name,
                values.len()
            )));
        }
        filled.push(field, values);
    }
    Ok(ScanTable { columns: Arc::new(filled) })
}

/// Reads the columns `names` of scan table `table` from a Parquet file; the values of all others are
/// unknown or absent.
///
/// Raises `ValueError` if the file is damaged.
#[pyfunction]
pub fn _of_parquet(
    py: Python<'_>,
    table: &str,
    file: &[u8],
    names: HashSet<String>,
) -> PyResult<ScanTable> {
    let like = empty(table)?;
    let read = py.detach(|| of_parquet(file, &like, &names));
    Ok(ScanTable { columns: Arc::new(read.map_err(faulty)?) })
}

/// Returns a Parquet file without the rows whose text in `column` is in `values`, and how many rows are
/// left.
///
/// Raises `ValueError` if the file is damaged.
#[pyfunction]
pub fn _parquet_without<'py>(
    py: Python<'py>,
    file: &[u8],
    column: &str,
    values: HashSet<String>,
) -> PyResult<(usize, Bound<'py, PyBytes>)> {
    let left = py.detach(|| parquet_without(file, column, &values));
    let (rows, file) = left.map_err(faulty)?;
    Ok((rows, PyBytes::new(py, &file)))
}

/// The exception for a Parquet file that cannot be read or written.
pub fn faulty(error: Box<dyn Error + Send + Sync>) -> PyErr {
    PyValueError::new_err(error.to_string())
}
