//! Converts the core's columns to columns of `hlofast.table.Table`.

use crate::column::Column;
use crate::field::Field;
use crate::text_column::TextColumn;
use hlofast::table::{Columns, Values};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Fields and columns, as `hlofast.table.Table` takes them.
pub fn to_list<'py>(py: Python<'py>, columns: Columns) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (core, values) in columns {
        let field = Bound::new(py, Field { core })?;
        let column = match values {
            Values::Rows(values) => Column::of(values),
            Values::Numbers(values) => Column::of(values),
            Values::Reals(values) => Column::of(values),
            Values::Flags(values) => Column::of(values),
            texts @ (Values::Texts(_) | Values::Runs(_)) => {
                let texts = match texts {
                    Values::Texts(texts) => texts,
                    runs => runs.texts().into_iter().flatten().collect(),
                };
                list.append((field, Bound::new(py, TextColumn::new_from(texts, None))?))?;
                continue;
            }
        };
        list.append((field, Bound::new(py, column)?))?;
    }
    Ok(list)
}
