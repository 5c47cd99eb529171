//! `Column`: a read-only one-dimensional buffer over memory owned by a module.
#![allow(unsafe_code, reason = "the buffer protocol hands out raw pointers")]

use hlofast::Provenance;
use hlofast::flow::Phase;
use hlofast::ir::{Opcode, ShapeId};
use hlofast::table;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMemoryView};
use std::any::Any;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

/// An element type whose slices can be exposed as a buffer of `FORMAT`.
///
/// # Safety
/// The type must have no padding, the size of the integer that `FORMAT` names, and only
/// values that are valid as that integer.
pub unsafe trait Item: Copy {
    const FORMAT: Format;
}

/// Element formats, by their `struct` codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Bool,
    U8,
    I32,
    U32,
    I64,
    U64,
    F64,
}

impl Format {
    fn code(self) -> &'static CStr {
        match self {
            Format::Bool => c"?",
            Format::U8 => c"B",
            Format::I32 => c"i",
            Format::U32 => c"I",
            Format::I64 => c"q",
            Format::U64 => c"Q",
            Format::F64 => c"d",
        }
    }

    fn size(self) -> usize {
        match self {
            Format::Bool | Format::U8 => 1,
            Format::I32 | Format::U32 => 4,
            Format::I64 | Format::U64 | Format::F64 => 8,
        }
    }
}

macro_rules! items {
    ($($type:ty = $format:ident,)*) => {
        // SAFETY: plain numbers, or `repr(u8)` and `repr(transparent)` wrappers of the integer that
        // the format names.
        $(unsafe impl Item for $type { const FORMAT: Format = Format::$format; })*
    };
}

items! {
    bool = Bool,
    u8 = U8,
    i32 = I32,
    u32 = U32,
    i64 = I64,
    u64 = U64,
    f64 = F64,
    Opcode = U8,
    Phase = U8,
    Provenance = U8,
    ShapeId = U32,
}

/// A read-only column of numbers or flags. The memory is valid as long as this object exists.
///
/// `numpy.asarray(column)` creates an array over the same memory, without a copy.
#[pyclass(frozen, module = "hlofast._core")]
pub struct Column {
    /// The owner of the memory. The owner is a clone of the `Arc` that shares the memory, so no
    /// code can get a mutable reference.
    owner: Arc<dyn Any + Send + Sync>,
    data: *const u8,
    format: Format,
    /// The number of items, in the form that the buffer protocol needs; stored so that views can
    /// point to it.
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

// SAFETY: the memory behind `data` is immutable and owned by `owner`, which is Send and Sync.
unsafe impl Send for Column {}
// SAFETY: as above; no method writes.
unsafe impl Sync for Column {}

impl Column {
    /// The slice of `owner` that `project` returns.
    pub fn project<O, T>(owner: &Arc<O>, project: impl for<'a> FnOnce(&'a O) -> &'a [T]) -> Self
    where
        O: Any + Send + Sync,
        T: Item,
    {
        let slice = project(owner);
        Self {
            data: slice.as_ptr().cast(),
            format: T::FORMAT,
            shape: [slice.len() as ffi::Py_ssize_t],
            strides: [T::FORMAT.size() as ffi::Py_ssize_t],
            owner: Arc::clone(owner) as Arc<dyn Any + Send + Sync>,
        }
    }

    /// A column that owns its values.
    pub fn of<T: Item + Send + Sync + 'static>(values: Vec<T>) -> Self {
        Self::project(&Arc::new(values), |values| &values[..])
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.shape[0] as usize
    }

    fn value<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        if index >= self.len() {
            return Err(PyIndexError::new_err("column index out of range"));
        }
        // SAFETY: `data` points to `len` items of the size given by `format`, aligned like the
        // original slice, and `index` was just checked.
        unsafe {
            Ok(match self.format {
                Format::Bool => {
                    (self.data.add(index).read() != 0).into_pyobject(py)?.to_owned().into_any()
                }
                Format::U8 => self.data.add(index).read().into_pyobject(py)?.into_any(),
                Format::I32 => {
                    self.data.cast::<i32>().add(index).read().into_pyobject(py)?.into_any()
                }
                Format::U32 => {
                    self.data.cast::<u32>().add(index).read().into_pyobject(py)?.into_any()
                }
                Format::I64 => {
                    self.data.cast::<i64>().add(index).read().into_pyobject(py)?.into_any()
                }
                Format::U64 => {
                    self.data.cast::<u64>().add(index).read().into_pyobject(py)?.into_any()
                }
                Format::F64 => {
                    self.data.cast::<f64>().add(index).read().into_pyobject(py)?.into_any()
                }
            })
        }
    }

    /// The owner and the start of the memory.
    pub fn memory(&self) -> (Arc<dyn Any + Send + Sync>, *const u8) {
        (Arc::clone(&self.owner), self.data)
    }

    /// Whether the items are flags.
    pub fn is_flags(&self) -> bool {
        self.format == Format::Bool
    }

    /// Whether item `index` of a column of `field` is known.
    pub fn is_known(&self, index: usize, field: &table::Field) -> bool {
        if self.format == Format::F64 && index < self.len() {
            // SAFETY: as in `value`.
            return !(field.is_nullable
                && unsafe { self.data.cast::<f64>().add(index).read() }.is_nan());
        }
        field.unknown().is_none() || self.integer(index) != field.unknown()
    }

    /// Item `index`, if it exists and is an integer.
    pub fn integer(&self, index: usize) -> Option<i64> {
        if index >= self.len() {
            return None;
        }
        // SAFETY: as in `value`.
        unsafe {
            Some(match self.format {
                Format::Bool | Format::U8 => i64::from(self.data.add(index).read()),
                Format::I32 => i64::from(self.data.cast::<i32>().add(index).read()),
                Format::U32 => i64::from(self.data.cast::<u32>().add(index).read()),
                Format::I64 => self.data.cast::<i64>().add(index).read(),
                Format::U64 => i64::try_from(self.data.cast::<u64>().add(index).read()).ok()?,
                Format::F64 => return None,
            })
        }
    }

    /// Copies the items of `rows` to a new column.
    ///
    /// # Safety
    /// `T` is the type named by the format, and every row is less than `len`.
    unsafe fn gathered<T: Item + Send + Sync + 'static>(&self, rows: &[usize]) -> Self {
        // SAFETY: as in `value`; callers guarantee the type and the rows.
        Self::of(rows.iter().map(|row| unsafe { self.data.cast::<T>().add(*row).read() }).collect())
    }

    /// The format string of the Arrow C data interface.
    pub fn arrow_format(&self) -> &'static CStr {
        match self.format {
            // Arrow packs flags as bits; `arrow.rs` packs them.
            Format::Bool => c"b",
            Format::U8 => c"C",
            Format::I32 => c"i",
            Format::U32 => c"I",
            Format::I64 => c"l",
            Format::U64 => c"L",
            Format::F64 => c"g",
        }
    }

    fn dtype(&self) -> &'static str {
        match self.format {
            Format::Bool => "bool",
            Format::U8 => "uint8",
            Format::I32 => "int32",
            Format::U32 => "uint32",
            Format::I64 => "int64",
            Format::U64 => "uint64",
            Format::F64 => "float64",
        }
    }
}

/// Copies the flags of a buffer of bools; None for other buffers.
fn flags(buffer: &Bound<'_, PyAny>) -> Option<PyResult<Column>> {
    let view = buffer.py().get_type::<PyMemoryView>().call1((buffer,)).ok()?;
    if view.getattr("format").ok()?.extract::<String>().ok()? != "?" {
        return None;
    }
    Some(view.call_method0("tolist").and_then(|list| list.extract()).map(Column::of::<bool>))
}

/// Copies the items of a buffer of `T`; None for other buffers.
fn copied<T: Item + pyo3::buffer::Element + Send + Sync + 'static>(
    buffer: &Bound<'_, PyAny>,
) -> Option<PyResult<Column>> {
    let items = PyBuffer::<T>::get(buffer).ok()?;
    Some(match items.dimensions() {
        1 => items.to_vec(buffer.py()).map(Column::of),
        count => Err(PyValueError::new_err(format!("a column has one dimension, not {count}"))),
    })
}

#[pymethods]
impl Column {
    /// A copy of a one-dimensional buffer of numbers, such as a NumPy array.
    ///
    /// Raises `ValueError` for other dimensions, `TypeError` for other types.
    #[new]
    fn new(buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        flags(buffer)
            .or_else(|| copied::<i64>(buffer))
            .or_else(|| copied::<f64>(buffer))
            .or_else(|| copied::<i32>(buffer))
            .or_else(|| copied::<u32>(buffer))
            .or_else(|| copied::<u8>(buffer))
            .or_else(|| copied::<u64>(buffer))
            .unwrap_or_else(|| Err(PyTypeError::new_err("expected a buffer of numbers")))
    }

    fn __len__(&self) -> usize {
        self.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let index = if index < 0 { index + self.shape[0] } else { index };
        self.value(py, usize::try_from(index).unwrap_or(usize::MAX))
    }

    /// Returns the items as a list.
    #[pyo3(name = "tolist")]
    pub fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for index in 0..self.len() {
            list.append(self.value(py, index)?)?;
        }
        Ok(list)
    }

    /// Returns the items of `rows`, in that order, as a column of the same type.
    ///
    /// Raises `IndexError` for a row that does not exist.
    pub fn take(&self, rows: Vec<usize>) -> PyResult<Self> {
        if rows.iter().any(|row| *row >= self.len()) {
            return Err(PyIndexError::new_err("row out of range"));
        }
        // SAFETY: each type matches its format, and the rows were just checked.
        Ok(unsafe {
            match self.format {
                Format::Bool => self.gathered::<bool>(&rows),
                Format::U8 => self.gathered::<u8>(&rows),
                Format::I32 => self.gathered::<i32>(&rows),
                Format::U32 => self.gathered::<u32>(&rows),
                Format::I64 => self.gathered::<i64>(&rows),
                Format::U64 => self.gathered::<u64>(&rows),
                Format::F64 => self.gathered::<f64>(&rows),
            }
        })
    }

    /// The element type as a NumPy name, such as `int64`.
    #[getter(dtype)]
    fn dtype_name(&self) -> &'static str {
        self.dtype()
    }

    /// Bytes of the items.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len() * self.format.size()
    }

    fn __repr__(&self) -> String {
        format!("<hlofast.Column of {} {}>", self.len(), self.dtype())
    }

    /// # Safety
    /// `view` comes from the interpreter: valid and ours to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("columns are read-only"));
        }
        let this = slf.get();
        let wants = |flag: c_int| flags & flag == flag;
        let format = if wants(ffi::PyBUF_FORMAT) {
            this.format.code().as_ptr().cast_mut()
        } else {
            c_null()
        };
        // The arrays are stored in this object, which the view keeps alive; nobody writes through
        // them.
        let shape = if wants(ffi::PyBUF_ND) { this.shape.as_ptr().cast_mut() } else { c_null() };
        let strides =
            if wants(ffi::PyBUF_STRIDES) { this.strides.as_ptr().cast_mut() } else { c_null() };
        // SAFETY: `view` was checked and is lent by the interpreter; `obj` takes a new reference,
        // released by `PyBuffer_Release`; the memory is valid while that reference exists.
        unsafe {
            (*view).buf = this.data.cast_mut().cast::<c_void>();
            (*view).len = this.shape[0] * this.strides[0];
            (*view).readonly = 1;
            (*view).itemsize = this.strides[0];
            (*view).format = format;
            (*view).ndim = 1;
            (*view).shape = shape;
            (*view).strides = strides;
            (*view).suboffsets = c_null();
            (*view).internal = c_null();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}

fn c_null<T>() -> *mut T {
    std::ptr::null_mut()
}
