//! The Arrow C data interface: tables as record batches that other libraries read directly.
#![allow(unsafe_code, reason = "the interface is two C structs with release callbacks")]

use crate::column::Column;
use crate::text_column::TextColumn;
use hlofast::table::{Columns, Values};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::any::Any;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

type Owner = Arc<dyn Any + Send + Sync>;

/// `struct ArrowSchema` of the specification.
#[repr(C)]
struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    child_count: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

/// `struct ArrowArray` of the specification.
#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    buffer_count: i64,
    child_count: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

/// `struct ArrowArrayStream` of the specification.
#[repr(C)]
struct ArrowArrayStream {
    get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    private_data: *mut c_void,
}

/// One column (or the struct of all), as plain data.
#[derive(Clone)]
struct Field {
    name: CString,
    format: &'static std::ffi::CStr,
    length: usize,
    null_count: i64,
    /// Null pointers are absent buffers; owners keep the others alive.
    buffers: Vec<(Option<Owner>, *const c_void)>,
    children: Vec<Field>,
    dictionary: Option<Box<Field>>,
}

// SAFETY: the pointers are to immutable memory that the Send and Sync owners beside them keep.
unsafe impl Send for Field {}

/// A buffer that is a vector.
fn owned<T: Send + Sync + 'static>(values: Vec<T>) -> (Option<Owner>, *const c_void) {
    let owner = Arc::new(values);
    let data = owner.as_ptr().cast();
    (Some(owner), data)
}

/// What `private_data` of a schema points to.
struct SchemaParts {
    _name: CString,
    children: Vec<*mut ArrowSchema>,
    dictionary: *mut ArrowSchema,
}

/// What `private_data` of an array points to.
struct ArrayParts {
    _owners: Vec<Option<Owner>>,
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    dictionary: *mut ArrowArray,
}

impl Field {
    fn schema(&self) -> ArrowSchema {
        let child = |field: &Field| Box::into_raw(Box::new(field.schema()));
        let mut parts = Box::new(SchemaParts {
            _name: self.name.clone(),
            children: self.children.iter().map(child).collect(),
            dictionary: self.dictionary.as_deref().map_or(null_mut(), child),
        });
        ArrowSchema {
            format: self.format.as_ptr(),
            name: parts._name.as_ptr(),
            metadata: std::ptr::null(),
            flags: 2, // Nullable.
            child_count: parts.children.len() as i64,
            children: parts.children.as_mut_ptr(),
            dictionary: parts.dictionary,
            release: Some(release_schema),
            private_data: Box::into_raw(parts).cast(),
        }
    }

    fn array(&self) -> ArrowArray {
        let child = |field: &Field| Box::into_raw(Box::new(field.array()));
        let mut parts = Box::new(ArrayParts {
            _owners: self.buffers.iter().map(|(owner, _)| owner.clone()).collect(),
            buffers: self.buffers.iter().map(|(_, data)| *data).collect(),
            children: self.children.iter().map(child).collect(),
            dictionary: self.dictionary.as_deref().map_or(null_mut(), child),
        });
        ArrowArray {
            length: self.length as i64,
            null_count: self.null_count,
            offset: 0,
            buffer_count: parts.buffers.len() as i64,
            child_count: parts.children.len() as i64,
            buffers: parts.buffers.as_mut_ptr(),
            children: parts.children.as_mut_ptr(),
            dictionary: parts.dictionary,
            release: Some(release_array),
            private_data: Box::into_raw(parts).cast(),
        }
    }
}

/// Releases a schema that `Field::schema` made.
unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: consumers pass the struct we made (or a moved copy of it) once; `private_data` is
    // the box from `Field::schema`, and children are boxes that only we free.
    unsafe {
        let Some(schema) = schema.as_mut().filter(|schema| schema.release.is_some()) else {
            return;
        };
        let parts = Box::from_raw(schema.private_data.cast::<SchemaParts>());
        for child in
            parts.children.iter().chain((!parts.dictionary.is_null()).then_some(&parts.dictionary))
        {
            // Consumers may have moved a child out; then it is marked as released.
            drop(Box::from_raw(*child));
        }
        schema.release = None;
    }
}

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: not released yet, and this is the last use.
            unsafe { release(self) }
        }
    }
}

/// Releases an array that `Field::array` made.
unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: as for `release_schema`.
    unsafe {
        let Some(array) = array.as_mut().filter(|array| array.release.is_some()) else { return };
        let parts = Box::from_raw(array.private_data.cast::<ArrayParts>());
        for child in
            parts.children.iter().chain((!parts.dictionary.is_null()).then_some(&parts.dictionary))
        {
            drop(Box::from_raw(*child));
        }
        array.release = None;
    }
}

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: not released yet, and this is the last use.
            unsafe { release(self) }
        }
    }
}

/// What `private_data` of a stream points to: the schema, and the batch until it is taken.
struct StreamParts {
    table: Field,
    is_taken: bool,
}

unsafe extern "C" fn stream_schema(stream: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: called on an unreleased stream of ours with room for a schema to move into.
    unsafe {
        let parts = &*(*stream).private_data.cast::<StreamParts>();
        out.write(parts.table.schema());
    }
    0
}

unsafe extern "C" fn stream_next(stream: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    // SAFETY: as above; one thread at a time may use a stream. An all-zero array has no release
    // callback, which marks the end.
    unsafe {
        let parts = &mut *(*stream).private_data.cast::<StreamParts>();
        match std::mem::replace(&mut parts.is_taken, true) {
            false => out.write(parts.table.array()),
            true => out.cast::<u8>().write_bytes(0, size_of::<ArrowArray>()),
        }
    }
    0
}

unsafe extern "C" fn stream_error(_stream: *mut ArrowArrayStream) -> *const c_char {
    std::ptr::null()
}

unsafe extern "C" fn release_stream(stream: *mut ArrowArrayStream) {
    // SAFETY: consumers pass the struct we made (or a moved copy) once.
    unsafe {
        let Some(stream) = stream.as_mut().filter(|stream| stream.release.is_some()) else {
            return;
        };
        drop(Box::from_raw(stream.private_data.cast::<StreamParts>()));
        stream.release = None;
    }
}

impl Drop for ArrowArrayStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: not released yet, and this is the last use.
            unsafe { release(self) }
        }
    }
}

// SAFETY: what the pointers lead to is owned by the struct and immutable or used by one thread
// at a time, as the interface demands.
unsafe impl Send for ArrowSchema {}
// SAFETY: as above.
unsafe impl Send for ArrowArray {}
// SAFETY: as above.
unsafe impl Send for ArrowArrayStream {}

/// Strings as one buffer with 64-bit offsets.
fn strings<'a>(name: CString, length: usize, texts: impl Iterator<Item = &'a [u8]>) -> Field {
    let mut offsets: Vec<i64> = Vec::with_capacity(length + 1);
    let mut data = Vec::new();
    offsets.push(0);
    for text in texts {
        data.extend_from_slice(String::from_utf8_lossy(text).as_bytes());
        offsets.push(data.len() as i64);
    }
    let buffers = vec![(None, std::ptr::null()), owned(offsets), owned(data)];
    let (children, dictionary) = (Vec::new(), None);
    Field { name, format: c"U", length, null_count: 0, buffers, children, dictionary }
}

fn numbers(name: CString, column: &Column) -> Field {
    let (owner, data) = column.memory();
    Field {
        name,
        format: column.arrow_format(),
        length: column.len(),
        null_count: 0,
        buffers: vec![(None, std::ptr::null()), (Some(owner), data.cast())],
        children: Vec::new(),
        dictionary: None,
    }
}

fn field(name: &str, column: &Bound<'_, PyAny>) -> PyResult<Field> {
    let name = CString::new(name).map_err(|_| PyValueError::new_err("NUL in a column name"))?;
    if let Ok(column) = column.cast::<Column>() {
        return Ok(numbers(name, column.get()));
    }
    let column = column
        .cast::<TextColumn>()
        .map_err(|_| PyTypeError::new_err("a table's columns are Column or TextColumn"))?;
    let (py, column) = (column.py(), column.get());
    Ok(py.detach(|| texts(name, column)))
}

/// The texts of `column`, as a dictionary where it is made of codes.
fn texts(name: CString, column: &TextColumn) -> Field {
    let Some((codes, values)) = column.dictionary() else {
        let texts = (0..column.len()).map(|i| column.bytes(i).unwrap_or_default());
        return strings(name, column.len(), texts);
    };
    let mut field = numbers(name, codes);
    let values = strings(CString::default(), values.len(), values.iter().map(|v| &v[..]));
    // Codes that number no value are nulls.
    let mut valid = vec![0u8; column.len().div_ceil(8)];
    for index in 0..column.len() {
        match column.bytes(index) {
            Some(_) => valid[index / 8] |= 1 << (index % 8),
            None => field.null_count += 1,
        }
    }
    if field.null_count > 0 {
        field.buffers[0] = owned(valid);
    }
    field.dictionary = Some(Box::new(values));
    field
}

/// Which of `values` are there, as a bitmap, and how many are not.
fn validity(values: impl Iterator<Item = bool>) -> (Vec<u8>, i64) {
    let (mut bits, mut missing) = (Vec::new(), 0);
    for (index, is_there) in values.enumerate() {
        if index % 8 == 0 {
            bits.push(0);
        }
        match bits.last_mut() {
            Some(byte) if is_there => *byte |= 1 << (index % 8),
            _ => missing += 1,
        }
    }
    (bits, missing)
}

/// A column of `owner`; what is unknown or absent becomes null.
fn nullable(owner: &Arc<Columns>, name: &str, values: &Values) -> PyResult<Field> {
    let name = CString::new(name).map_err(|_| PyValueError::new_err("NUL in a column name"))?;
    let shared = |data: *const c_void| (Some(Arc::clone(owner) as Owner), data);
    let (format, data, (bits, null_count)) = match values {
        Values::Rows(rows) => (c"I", shared(rows.as_ptr().cast()), (Vec::new(), 0)),
        Values::Numbers(numbers) => {
            let known = validity(numbers.iter().map(|value| *value >= 0));
            (c"l", shared(numbers.as_ptr().cast()), known)
        }
        Values::Reals(reals) => {
            let known = validity(reals.iter().map(|value| !value.is_nan()));
            (c"g", shared(reals.as_ptr().cast()), known)
        }
        Values::Flags(flags) => {
            let (bits, _) = validity(flags.iter().map(|flag| *flag != 0));
            (c"b", owned(bits), (Vec::new(), 0))
        }
        texts @ (Values::Texts(_) | Values::Runs(_)) => {
            let all = || texts.texts().into_iter().flatten();
            let (bits, null_count) = validity(all().map(|text| !text.is_empty()));
            let as_they_are = match texts {
                Values::Texts(texts) if !texts.is_empty() => texts.as_utf8(),
                _ => None,
            };
            let mut field = match as_they_are {
                Some((data, bounds)) => Field {
                    name,
                    format: c"U",
                    length: texts.len(),
                    null_count: 0,
                    buffers: vec![
                        (None, std::ptr::null()),
                        shared(bounds.as_ptr().cast()),
                        shared(data.as_ptr().cast()),
                    ],
                    children: Vec::new(),
                    dictionary: None,
                },
                None => strings(name, texts.len(), all()),
            };
            if null_count > 0 {
                (field.null_count, field.buffers[0]) = (null_count, owned(bits));
            }
            return Ok(field);
        }
    };
    let valid = if null_count > 0 { owned(bits) } else { (None, std::ptr::null()) };
    let (length, buffers) = (values.len(), vec![valid, data]);
    let (children, dictionary) = (Vec::new(), None);
    Ok(Field { name, format, length, null_count, buffers, children, dictionary })
}

/// The columns of a core table as one struct; what is unknown or absent becomes null.
fn nullable_table(columns: &Arc<Columns>) -> PyResult<Field> {
    let fields = columns.iter().map(|(name, values)| nullable(columns, name, values));
    Ok(structure(fields.collect::<PyResult<_>>()?, columns.len()))
}

fn structure(children: Vec<Field>, length: usize) -> Field {
    Field {
        name: CString::default(),
        format: c"+s",
        length,
        null_count: 0,
        buffers: vec![(None, std::ptr::null())],
        children,
        dictionary: None,
    }
}

/// A capsule `arrow_array_stream` of the one batch that `columns` are.
pub fn stream_of<'py>(py: Python<'py>, columns: &Arc<Columns>) -> PyResult<Bound<'py, PyCapsule>> {
    stream(py, py.detach(|| nullable_table(columns))?)
}

fn table(columns: &[(String, Bound<'_, PyAny>)], length: usize) -> PyResult<Field> {
    let fields: Vec<Field> =
        columns.iter().map(|(name, column)| field(name, column)).collect::<PyResult<_>>()?;
    if fields.iter().any(|field| field.length != length) {
        return Err(PyValueError::new_err("a table's columns have one length"));
    }
    Ok(structure(fields, length))
}

/// A capsule `arrow_array_stream` of one record batch.
#[pyfunction]
pub fn _arrow_stream<'py>(
    py: Python<'py>,
    columns: Vec<(String, Bound<'py, PyAny>)>,
    length: usize,
) -> PyResult<Bound<'py, PyCapsule>> {
    stream(py, table(&columns, length)?)
}

fn stream(py: Python<'_>, table: Field) -> PyResult<Bound<'_, PyCapsule>> {
    let parts = Box::new(StreamParts { table, is_taken: false });
    let stream = ArrowArrayStream {
        get_schema: Some(stream_schema),
        get_next: Some(stream_next),
        get_last_error: Some(stream_error),
        release: Some(release_stream),
        private_data: Box::into_raw(parts).cast(),
    };
    PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
}

/// A capsule `arrow_schema`.
#[pyfunction]
pub fn _arrow_schema<'py>(
    py: Python<'py>,
    columns: Vec<(String, Bound<'py, PyAny>)>,
    length: usize,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, table(&columns, length)?.schema(), c"arrow_schema")
}

/// Capsules `arrow_schema` and `arrow_array`: the table as one struct array.
#[pyfunction]
pub fn _arrow_array<'py>(
    py: Python<'py>,
    columns: Vec<(String, Bound<'py, PyAny>)>,
    length: usize,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    let table = table(&columns, length)?;
    Ok((
        PyCapsule::new_with_value(py, table.schema(), c"arrow_schema")?,
        PyCapsule::new_with_value(py, table.array(), c"arrow_array")?,
    ))
}
