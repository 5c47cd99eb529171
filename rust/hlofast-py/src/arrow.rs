//! The Arrow C data interface: tables as record batches that other libraries read directly.
#![allow(unsafe_code, reason = "the interface is two C structs with release callbacks")]

use crate::column::Column;
use crate::field::Field;
use crate::text_column::TextColumn;
use hlofast::table::{self, Columns, Values};
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

/// A column, or the struct of all columns, as plain data.
#[derive(Clone)]
struct Array {
    name: CString,
    /// Kind, unit, heading and documentation, encoded as the specification says; empty if none.
    metadata: Vec<u8>,
    format: &'static std::ffi::CStr,
    length: usize,
    null_count: i64,
    /// Buffers and their owners, which keep the memory allocated. A null pointer stands for an
    /// absent buffer.
    buffers: Vec<(Option<Owner>, *const c_void)>,
    children: Vec<Array>,
    dictionary: Option<Box<Array>>,
}

// SAFETY: the pointers refer to immutable memory held by the Send and Sync owners next to them.
unsafe impl Send for Array {}

/// A buffer that owns a vector.
fn owned<T: Send + Sync + 'static>(values: Vec<T>) -> (Option<Owner>, *const c_void) {
    let owner = Arc::new(values);
    let data = owner.as_ptr().cast();
    (Some(owner), data)
}

/// The `private_data` of a schema.
struct SchemaParts {
    _name: CString,
    _metadata: Vec<u8>,
    children: Vec<*mut ArrowSchema>,
    dictionary: *mut ArrowSchema,
}

/// The `private_data` of an array.
struct ArrayParts {
    _owners: Vec<Option<Owner>>,
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    dictionary: *mut ArrowArray,
}

impl Array {
    fn schema(&self) -> ArrowSchema {
        let child = |field: &Array| Box::into_raw(Box::new(field.schema()));
        let mut parts = Box::new(SchemaParts {
            _name: self.name.clone(),
            _metadata: self.metadata.clone(),
            children: self.children.iter().map(child).collect(),
            dictionary: self.dictionary.as_deref().map_or(null_mut(), child),
        });
        ArrowSchema {
            format: self.format.as_ptr(),
            name: parts._name.as_ptr(),
            metadata: match parts._metadata.is_empty() {
                true => std::ptr::null(),
                false => parts._metadata.as_ptr().cast(),
            },
            flags: 2, // Nullable.
            child_count: parts.children.len() as i64,
            children: parts.children.as_mut_ptr(),
            dictionary: parts.dictionary,
            release: Some(release_schema),
            private_data: Box::into_raw(parts).cast(),
        }
    }

    fn array(&self) -> ArrowArray {
        let child = |field: &Array| Box::into_raw(Box::new(field.array()));
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

/// Releases a schema made by `Array::schema`.
unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: consumers pass the struct made here (or a moved copy of it) once; `private_data` is
    // the box from `Array::schema`, and children are boxes that only this function frees.
    unsafe {
        let Some(schema) = schema.as_mut().filter(|schema| schema.release.is_some()) else {
            return;
        };
        let parts = Box::from_raw(schema.private_data.cast::<SchemaParts>());
        for child in
            parts.children.iter().chain((!parts.dictionary.is_null()).then_some(&parts.dictionary))
        {
            // A consumer that moves a child out marks the child as released.
            drop(Box::from_raw(*child));
        }
        schema.release = None;
    }
}

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: `release` is still set, and nothing uses the value afterwards.
            unsafe { release(self) }
        }
    }
}

/// Releases an array made by `Field::array`.
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
            // SAFETY: `release` is still set, and nothing uses the value afterwards.
            unsafe { release(self) }
        }
    }
}

/// The `private_data` of a stream: the schema, and the batch until it is taken.
struct StreamParts {
    table: Array,
    is_taken: bool,
}

unsafe extern "C" fn stream_schema(stream: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: called on an unreleased stream made here, with room for a schema.
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
    // SAFETY: consumers pass the struct made here (or a moved copy) once.
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
            // SAFETY: `release` is still set, and nothing uses the value afterwards.
            unsafe { release(self) }
        }
    }
}

// SAFETY: the memory behind the pointers is owned by the struct, and immutable or used by one
// thread at a time, as the interface demands.
unsafe impl Send for ArrowSchema {}
// SAFETY: as above.
unsafe impl Send for ArrowArray {}
// SAFETY: as above.
unsafe impl Send for ArrowArrayStream {}

/// The metadata of `field`, packed as Arrow wants it.
fn metadata(field: &table::Field) -> Vec<u8> {
    let pairs = field.metadata();
    let number = |length: usize| i32::try_from(length).unwrap_or(0).to_ne_bytes();
    let mut bytes = number(pairs.len()).to_vec();
    for text in pairs.iter().flat_map(|(key, value)| [*key, &**value]) {
        bytes.extend_from_slice(&number(text.len()));
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

type Buffer = (Option<Owner>, *const c_void);

const ABSENT: Buffer = (None, std::ptr::null());

/// A column without a name.
fn plain(format: &'static std::ffi::CStr, length: usize, buffers: Vec<Buffer>) -> Array {
    Array {
        name: CString::default(),
        metadata: Vec::new(),
        format,
        length,
        null_count: 0,
        buffers,
        children: Vec::new(),
        dictionary: None,
    }
}

/// Strings as one buffer with 64-bit offsets.
fn strings<'a>(length: usize, texts: impl Iterator<Item = &'a [u8]>) -> Array {
    let mut offsets: Vec<i64> = Vec::with_capacity(length + 1);
    let mut data = Vec::new();
    offsets.push(0);
    for text in texts {
        data.extend_from_slice(String::from_utf8_lossy(text).as_bytes());
        offsets.push(data.len() as i64);
    }
    plain(c"U", length, vec![ABSENT, owned(offsets), owned(data)])
}

impl Array {
    /// Adds nulls where `known` is false.
    fn with_nulls(mut self, known: impl Iterator<Item = bool>) -> Self {
        let (bits, missing) = bitmap(known);
        if missing > 0 {
            (self.null_count, self.buffers[0]) = (missing, owned(bits));
        }
        self
    }

    /// Adds the name and metadata of `field`.
    fn described(mut self, field: &table::Field) -> PyResult<Self> {
        self.name = CString::new(&*field.name)
            .map_err(|_| PyValueError::new_err("NUL in a column name"))?;
        self.metadata = metadata(field);
        Ok(self)
    }
}

/// Packs one bit per value, lowest bit first; returns the bits and the number of false values.
fn bitmap(values: impl Iterator<Item = bool>) -> (Vec<u8>, i64) {
    let (mut bits, mut missing) = (Vec::new(), 0);
    for (index, is_set) in values.enumerate() {
        if index % 8 == 0 {
            bits.push(0);
        }
        match bits.last_mut() {
            Some(byte) if is_set => *byte |= 1 << (index % 8),
            _ => missing += 1,
        }
    }
    (bits, missing)
}

/// Exports a column from Python; unknown and absent values become null.
fn column(field: &table::Field, column: &Bound<'_, PyAny>) -> PyResult<Array> {
    if let Ok(numbers) = column.cast::<Column>() {
        let numbers = numbers.get();
        let array = match numbers.is_flags() {
            true => {
                let (bits, _) = bitmap((0..numbers.len()).map(|at| numbers.integer(at) == Some(1)));
                plain(c"b", numbers.len(), vec![ABSENT, owned(bits)])
            }
            false => numbers_of(numbers),
        };
        let array = match field.is_nullable {
            true => array.with_nulls((0..numbers.len()).map(|at| numbers.is_known(at, field))),
            false => array,
        };
        return array.described(field);
    }
    let texts = column
        .cast::<TextColumn>()
        .map_err(|_| PyTypeError::new_err("a table's columns are Column or TextColumn"))?;
    let (py, texts) = (texts.py(), texts.get());
    py.detach(|| texts_of(texts, field.is_nullable)).described(field)
}

fn numbers_of(column: &Column) -> Array {
    let (owner, data) = column.memory();
    plain(column.arrow_format(), column.len(), vec![ABSENT, (Some(owner), data.cast())])
}

/// Exports the texts of `column`, dictionary-encoded if it has codes.
fn texts_of(column: &TextColumn, is_nullable: bool) -> Array {
    let known = |text: Option<&[u8]>| text.is_some_and(|text| !(is_nullable && text.is_empty()));
    let valid = (0..column.len()).map(|at| known(column.bytes(at)));
    let Some((codes, values)) = column.dictionary() else {
        let texts = (0..column.len()).map(|at| column.bytes(at).unwrap_or_default());
        return strings(column.len(), texts).with_nulls(valid);
    };
    // Codes without a value become nulls too.
    let mut array = numbers_of(codes).with_nulls(valid);
    let values = strings(values.len(), values.iter());
    array.dictionary = Some(Box::new(values));
    array
}

/// Exports a column of `owner`; unknown and absent values become null.
fn core_column(owner: &Arc<Columns>, field: &table::Field, values: &Values) -> PyResult<Array> {
    let shared = |data: *const c_void| (Some(Arc::clone(owner) as Owner), data);
    let array = match values {
        Values::Rows(rows) => plain(c"I", rows.len(), vec![ABSENT, shared(rows.as_ptr().cast())]),
        Values::Numbers(numbers) => {
            let array = plain(c"l", numbers.len(), vec![ABSENT, shared(numbers.as_ptr().cast())]);
            match field.unknown() {
                Some(unknown) => array.with_nulls(numbers.iter().map(|value| *value != unknown)),
                None => array,
            }
        }
        Values::Reals(reals) => {
            let array = plain(c"g", reals.len(), vec![ABSENT, shared(reals.as_ptr().cast())]);
            array.with_nulls(reals.iter().map(|value| !value.is_nan()))
        }
        Values::Flags(flags) => {
            let (bits, _) = bitmap(flags.iter().copied());
            plain(c"b", flags.len(), vec![ABSENT, owned(bits)])
        }
        texts @ (Values::Texts(_) | Values::Runs(_)) => {
            let all = || texts.texts().into_iter().flatten();
            let as_they_are = match texts {
                Values::Texts(texts) if !texts.is_empty() => texts.as_utf8(),
                _ => None,
            };
            let array = match as_they_are {
                Some((data, bounds)) => {
                    let buffers = [bounds.as_ptr().cast(), data.as_ptr().cast()].map(shared);
                    plain(c"U", texts.len(), [ABSENT].into_iter().chain(buffers).collect())
                }
                None => strings(texts.len(), all()),
            };
            match field.is_nullable {
                true => array.with_nulls(all().map(|text| !text.is_empty())),
                false => array,
            }
        }
    };
    array.described(field)
}

/// Exports the columns of a core table as one struct; unknown and absent values become null.
fn core_table(columns: &Arc<Columns>) -> PyResult<Array> {
    let children = columns.iter().map(|(field, values)| core_column(columns, field, values));
    Ok(structure(children.collect::<PyResult<_>>()?, columns.len()))
}

fn structure(children: Vec<Array>, length: usize) -> Array {
    Array { children, ..plain(c"+s", length, vec![ABSENT]) }
}

/// Returns an `arrow_array_stream` capsule with `columns` as its only batch.
pub fn stream_of<'py>(py: Python<'py>, columns: &Arc<Columns>) -> PyResult<Bound<'py, PyCapsule>> {
    stream(py, py.detach(|| core_table(columns))?)
}

type Described<'py> = (Bound<'py, Field>, Bound<'py, PyAny>);

fn table(columns: &[Described<'_>], length: usize) -> PyResult<Array> {
    let children = columns.iter().map(|(field, own)| column(&field.get().core, own));
    let children: Vec<Array> = children.collect::<PyResult<_>>()?;
    if children.iter().any(|child| child.length != length) {
        return Err(PyValueError::new_err("the columns of a table must have equal lengths"));
    }
    Ok(structure(children, length))
}

/// Returns an `arrow_array_stream` capsule with one record batch.
#[pyfunction]
pub fn _arrow_stream<'py>(
    py: Python<'py>,
    columns: Vec<Described<'py>>,
    length: usize,
) -> PyResult<Bound<'py, PyCapsule>> {
    stream(py, table(&columns, length)?)
}

fn stream(py: Python<'_>, table: Array) -> PyResult<Bound<'_, PyCapsule>> {
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

/// Returns an `arrow_schema` capsule.
#[pyfunction]
pub fn _arrow_schema<'py>(
    py: Python<'py>,
    columns: Vec<Described<'py>>,
    length: usize,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, table(&columns, length)?.schema(), c"arrow_schema")
}

/// Returns capsules `arrow_schema` and `arrow_array`: the table as one struct array.
#[pyfunction]
pub fn _arrow_array<'py>(
    py: Python<'py>,
    columns: Vec<Described<'py>>,
    length: usize,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    let table = table(&columns, length)?;
    Ok((
        PyCapsule::new_with_value(py, table.schema(), c"arrow_schema")?,
        PyCapsule::new_with_value(py, table.array(), c"arrow_array")?,
    ))
}
