//! `where(...)`: conditions in Python terms, evaluated in one pass in Rust.

use crate::column::Column;
use crate::computation::Computation;
use crate::held::{Held, same_module};
use crate::sequence::no_such;
use crate::shape::{Shape, shape_text};
use hlofast::ir::{ComputationId, ElementType, Opcode, Row, ShapeInterner, ShapeView};
use hlofast::parse::shape::parse_shape;
use hlofast::select::Selection;
use hlofast::text::Cursor;
use pyo3::exceptions::{PyKeyError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::Arc;

/// The conditions of `where`, as given in Python.
pub struct Conditions<'a, 'py> {
    pub opcode: Option<&'a Bound<'py, PyAny>>,
    pub computation: Option<&'a Bound<'py, PyAny>>,
    pub name: Option<&'a Bound<'py, PyString>>,
    pub op_name: Option<&'a Bound<'py, PyAny>>,
    pub source_file: Option<&'a Bound<'py, PyAny>>,
    pub source_line: Option<i32>,
    pub shape: Option<&'a Bound<'py, PyAny>>,
    pub element_type: Option<&'a Bound<'py, PyAny>>,
    pub min_bytes: Option<i64>,
    pub max_bytes: Option<i64>,
    pub is_root: Option<bool>,
    pub is_implicit: Option<bool>,
}

/// A single value, or every item of an iterable.
fn one_or_many<'py>(value: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let is_one = value.is_instance_of::<PyString>()
        || value.is_instance_of::<Computation>()
        || value.is_instance_of::<Shape>();
    if is_one {
        return Ok(vec![value.clone()]);
    }
    value.try_iter()?.collect()
}

fn words(value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let word = |item: Bound<'_, PyAny>| Ok(item.cast::<PyString>()?.to_string_lossy().into_owned());
    one_or_many(value)?.into_iter().map(word).collect()
}

/// The error for an unknown `word`; it suggests similar known words.
fn unknown(py: Python<'_>, what: &str, word: &str, known: Vec<&str>) -> PyErr {
    let near = || -> PyResult<Vec<String>> {
        py.import("difflib")?.call_method1("get_close_matches", (word, known))?.extract()
    };
    let near = near().unwrap_or_default();
    let hint = match near.is_empty() {
        true => String::new(),
        false => format!("; near: {}", near.join(", ")),
    };
    PyValueError::new_err(format!("{word:?} is not a known {what}{hint}"))
}

/// Checks an opcode, because a misspelt opcode would silently match nothing.
fn check_opcode(py: Python<'_>, held: &Held, word: &str) -> PyResult<()> {
    let module = &held.core;
    let is_opcode = |word: &str| {
        Opcode::from_bytes(word.as_bytes()).is_some_and(|opcode| opcode != Opcode::Unknown)
    };
    let stem = ["-start", "-update", "-done"].iter().find_map(|suffix| word.strip_suffix(suffix));
    if is_opcode(word)
        || stem.is_some_and(is_opcode)
        || module.rows().any(|row| {
            module.opcode(row) == Opcode::Unknown && module.opcode_text(row) == word.as_bytes()
        })
    {
        return Ok(());
    }
    let known = Opcode::ALL.iter().filter(|opcode| **opcode != Opcode::Unknown);
    Err(unknown(py, "opcode", word, known.map(|opcode| opcode.as_str()).collect()))
}

/// Checks that a text is a shape, because other text would silently match nothing.
fn check_shape(py: Python<'_>, text: &str) -> PyResult<()> {
    let mut cursor = Cursor::new(text.as_bytes());
    let read = parse_shape(&mut cursor, &mut ShapeInterner::default());
    if read.is_ok() && cursor.skip_space().is_ok() && cursor.is_at_end() {
        return Ok(());
    }
    let word = text.split('[').next().unwrap_or_default();
    let types: Vec<&str> =
        ElementType::ALL.iter().map(|element_type| element_type.as_str()).collect();
    match types.contains(&word) || !text.contains('[') {
        true => Err(PyValueError::new_err(format!("{text:?} is not a shape such as f32[8,4]"))),
        false => Err(unknown(py, "element type", word, types)),
    }
}

/// A number of bytes; numbers beyond 64 bits are clamped.
pub fn clamped(value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    if value.is_none() {
        return Ok(None);
    }
    match value.extract::<i64>() {
        Ok(number) => Ok(Some(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            Ok(Some(if value.gt(0)? { i64::MAX } else { i64::MIN }))
        }
        Err(error) => Err(error),
    }
}

/// For each of `texts`, whether it contains `condition` or matches it, if it is a compiled pattern.
fn matching(texts: &Bound<'_, PyAny>, condition: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
    let search = condition.getattr_opt("search")?;
    let mut wanted = Vec::with_capacity(texts.len()?);
    for text in texts.try_iter()? {
        let text = text?;
        wanted.push(match &search {
            Some(search) => !search.call1((text,))?.is_none(),
            None => {
                let part = condition.cast::<PyString>().map_err(|_| {
                    PyTypeError::new_err("expected a str or a compiled regular expression")
                })?;
                text.contains(part)?
            }
        });
    }
    Ok(wanted)
}

fn computation_ids(held: &Arc<Held>, value: &Bound<'_, PyAny>) -> PyResult<Vec<ComputationId>> {
    let id = |item: Bound<'_, PyAny>| -> PyResult<ComputationId> {
        if let Ok(computation) = item.cast::<Computation>() {
            let computation = computation.get();
            return match same_module(held, &computation.held) {
                true => Ok(computation.id),
                false => Err(PyValueError::new_err("the computation belongs to another module")),
            };
        }
        let name = item.cast::<PyString>()?.to_string_lossy().into_owned();
        let known = held.core.find_computation(name.as_bytes());
        known.ok_or_else(|| PyKeyError::new_err(no_such("computation", &name)))
    };
    one_or_many(value)?.into_iter().map(id).collect()
}

fn shapes_of(held: &Held, conditions: &Conditions<'_, '_>) -> PyResult<Option<Vec<bool>>> {
    let table = held.core.shapes();
    let mut wanted: Option<Vec<bool>> = None;
    if let Some(value) = conditions.shape {
        let mut texts = Vec::new();
        for item in one_or_many(value)? {
            let text = item.str()?.to_string_lossy().into_owned();
            if item.is_instance_of::<PyString>() {
                check_shape(value.py(), &text)?;
            }
            texts.push(text.replace(' ', ""));
        }
        // Longer texts cannot match, even with spaces and comments.
        let longest = texts.iter().map(String::len).max().unwrap_or_default();
        let limit = longest.saturating_mul(8).saturating_add(64);
        // `f32[8]` matches any layout.
        let same = |id| {
            let text = shape_text(held, id, limit).replace(' ', "");
            texts.iter().any(|wanted| {
                *wanted == text
                    || (text.starts_with(wanted.as_str())
                        && text.as_bytes().get(wanted.len()) == Some(&b'{'))
            })
        };
        wanted = Some(held.core.shapes_where(same));
    }
    if let Some(value) = conditions.element_type {
        let mut types = Vec::new();
        for word in words(value)? {
            let known = ElementType::from_bytes(word.as_bytes());
            types.push(known.ok_or_else(|| {
                PyValueError::new_err(format!("{word:?} is not an element type"))
            })?);
        }
        let same = |id| match table.get(id) {
            ShapeView::Array(array) => types.contains(&array.element_type),
            ShapeView::Tuple(_) | ShapeView::Buffer(_) => false,
        };
        let of_type = held.core.shapes_where(same);
        wanted = Some(match wanted {
            Some(wanted) => wanted.iter().zip(of_type).map(|(a, b)| *a && b).collect(),
            None => of_type,
        });
    }
    Ok(wanted)
}

/// The rows that meet all `conditions`.
pub fn rows_where(
    py: Python<'_>,
    held: &Arc<Held>,
    op_names: impl FnOnce() -> PyResult<Py<PyAny>>,
    source_files: impl FnOnce() -> PyResult<Py<PyAny>>,
    conditions: &Conditions<'_, '_>,
) -> PyResult<Column> {
    let boxed = |word: String| word.into_bytes().into_boxed_slice();
    let selection = Selection {
        opcodes: conditions
            .opcode
            .map(|value| {
                let words = words(value)?;
                words.iter().try_for_each(|word| check_opcode(py, held, word))?;
                Ok::<_, PyErr>(words.into_iter().map(boxed).collect())
            })
            .transpose()?,
        computations: conditions
            .computation
            .map(|value| computation_ids(held, value))
            .transpose()?,
        op_names: conditions
            .op_name
            .map(|value| matching(op_names()?.bind(py), value))
            .transpose()?,
        source_files: conditions
            .source_file
            .map(|value| matching(source_files()?.bind(py), value))
            .transpose()?,
        source_lines: conditions.source_line.map(|line| line..line.saturating_add(1)),
        shapes: shapes_of(held, conditions)?,
        min_bytes: conditions.min_bytes,
        max_bytes: conditions.max_bytes,
        name: conditions.name.map(|name| boxed(name.to_string_lossy().into_owned())),
        is_root: conditions.is_root,
        is_implicit: conditions.is_implicit,
    };
    let place = |row: Row| held.stage.sources().place(held.core.metadata_columns(), row);
    Ok(Column::of(py.detach(|| held.core.rows_where(&selection, &place))))
}
