//! `Column`: a read-only one-dimensional buffer over memory that a module owns.
#![allow(unsafe_code, reason = "the buffer protocol hands out raw pointers")]

use hlofast::Provenance;
use hlofast::flow::Phase;
use hlofast::ir::{Opcode, ShapeId};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::any::Any;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

/// A type whose slices may be shown as a buffer of `FORMAT`.
///
/// # Safety
/// The type must have no padding, no invalid views as the plain integer that `FORMAT` names, and
/// that integer's size.
pub unsafe trait Item: Copy {
    const FORMAT: Format;
}

/// Element formats, by their `struct` codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
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
            Format::U8 => 1,
            Format::I32 | Format::U32 => 4,
            Format::I64 | Format::U64 | Format::F64 => 8,
        }
    }
}

macro_rules! items {
    ($($type:ty = $format:ident,)*) => {
        // SAFETY: plain numbers, or `repr(u8)` and `repr(transparent)` wrappers of the integer
        // the format names.
        $(unsafe impl Item for $type { const FORMAT: Format = Format::$format; })*
    };
}

items! {
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

/// A read-only column of integers over memory that stays alive as long as this object.
///
/// `numpy.asarray(column)` makes an array over the same memory, without a copy.
#[pyclass(frozen, module = "hlofast._core")]
pub struct Column {
    /// What owns the memory. Nothing ever gets a mutable reference to it, since this is a clone
    /// of the `Arc` that shares it.
    owner: Arc<dyn Any + Send + Sync>,
    data: *const u8,
    format: Format,
    /// In items, as the buffer protocol wants it; here so that views can point to it.
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

// SAFETY: the memory behind `data` is immutable and owned by `owner`, which is Send and Sync.
unsafe impl Send for Column {}
// SAFETY: as above; no method writes.
unsafe impl Sync for Column {}

impl Column {
    /// The slice that `project` finds in `owner`.
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

    /// A column of its own.
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
        // SAFETY: `data` points to `len` items of the size `format` gives, aligned as the slice
        // it came from, and `index` was just checked.
        unsafe {
            Ok(match self.format {
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

    /// Item `index` if it exists and is an integer.
    pub fn integer(&self, index: usize) -> Option<i64> {
        if index >= self.len() {
            return None;
        }
        // SAFETY: as in `value`.
        unsafe {
            Some(match self.format {
                Format::U8 => i64::from(self.data.add(index).read()),
                Format::I32 => i64::from(self.data.cast::<i32>().add(index).read()),
                Format::U32 => i64::from(self.data.cast::<u32>().add(index).read()),
                Format::I64 => self.data.cast::<i64>().add(index).read(),
                Format::U64 => i64::try_from(self.data.cast::<u64>().add(index).read()).ok()?,
                Format::F64 => return None,
            })
        }
    }

    /// The items of `rows` as a column of their own.
    ///
    /// # Safety
    /// `T` is what the format names, and every row is below `len`.
    unsafe fn gathered<T: Item + Send + Sync + 'static>(&self, rows: &[usize]) -> Self {
        // SAFETY: as in `value`, by what is demanded of callers.
        Self::of(rows.iter().map(|row| unsafe { self.data.cast::<T>().add(*row).read() }).collect())
    }

    /// The format string of the Arrow C data interface.
    pub fn arrow_format(&self) -> &'static CStr {
        match self.format {
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
            Format::U8 => "uint8",
            Format::I32 => "int32",
            Format::U32 => "uint32",
            Format::I64 => "int64",
            Format::U64 => "uint64",
            Format::F64 => "float64",
        }
    }
}

/// The items of a buffer of `T`, copied; None if it holds something else.
fn copied<T: Item + pyo3::buffer::Element + Send + Sync + 'static>(
    buffer: &Bound<'_, PyAny>,
) -> Option<PyResult<Column>> {
    let items = PyBuffer::<T>::get(buffer).ok()?;
    Some(match items.dimensions() {
        1 => items.to_vec(buffer.py()).map(Column::of),
        count => {
            Err(PyValueError::new_err(format!("a column has one dimension, the buffer {count}")))
        }
    })
}

#[pymethods]
impl Column {
    /// A copy of a one-dimensional buffer of numbers, such as a NumPy array.
    #[new]
    fn new(buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        copied::<i64>(buffer)
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

    /// The items as a list of int.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for index in 0..self.len() {
            list.append(self.value(py, index)?)?;
        }
        Ok(list)
    }

    /// The items with these numbers, in this order, as a column of the same type.
    pub fn take(&self, rows: Vec<usize>) -> PyResult<Self> {
        if rows.iter().any(|row| *row >= self.len()) {
            return Err(PyIndexError::new_err("row out of range"));
        }
        // SAFETY: the types are those of the formats, and the rows were just checked.
        Ok(unsafe {
            match self.format {
                Format::U8 => self.gathered::<u8>(&rows),
                Format::I32 => self.gathered::<i32>(&rows),
                Format::U32 => self.gathered::<u32>(&rows),
                Format::I64 => self.gathered::<i64>(&rows),
                Format::U64 => self.gathered::<u64>(&rows),
                Format::F64 => self.gathered::<f64>(&rows),
            }
        })
    }

    /// The element type's NumPy name.
    #[getter(dtype)]
    fn dtype_name(&self) -> &'static str {
        self.dtype()
    }

    /// Bytes of the memory shown.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len() * self.format.size()
    }

    fn __repr__(&self) -> String {
        format!("<hlofast.Column of {} {}>", self.len(), self.dtype())
    }

    /// # Safety
    /// `view` is the interpreter's: valid and ours to fill.
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
        // The arrays live in this object, which the view keeps alive; nobody writes through them.
        let shape = if wants(ffi::PyBUF_ND) { this.shape.as_ptr().cast_mut() } else { c_null() };
        let strides =
            if wants(ffi::PyBUF_STRIDES) { this.strides.as_ptr().cast_mut() } else { c_null() };
        // SAFETY: `view` was checked and is the interpreter's to lend; `obj` takes a new reference
        // that `PyBuffer_Release` gives back; the memory is valid while that reference lives.
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
