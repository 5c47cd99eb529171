//! `Literal`: the values of a constant, decoded on access.

use crate::column::Column;
use crate::columns::as_array;
use crate::errors::to_python;
use crate::held::{Held, hash_of, same_module, text_or_bytes};
use crate::shape::Shape;
use hlofast::ParseError;
use hlofast::ir::decode::{Extent, Literal as CoreLiteral, LiteralData};
use hlofast::ir::{ElementKind, ElementType, Opcode, Row, ShapeId, ShapeView};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use std::sync::Arc;

/// The values of a constant: the literal of an array, or of a tuple of arrays.
#[pyclass(frozen, module = "hlofast._core")]
pub struct Literal {
    held: Arc<Held>,
    row: u32,
    /// The index of one leaf of a tuple; None for the whole literal.
    leaf: Option<usize>,
}

/// The NumPy type of the decoded elements. NumPy lacks types for small floats, so their bits are
/// returned in the low bits of an unsigned integer.
fn numpy_type(element_type: ElementType) -> String {
    let bytes = element_type.storage_bits() / 8;
    let letter = match element_type.kind() {
        ElementKind::Predicate => 'b',
        ElementKind::Signed => 'i',
        ElementKind::Unsigned | ElementKind::Opaque => 'u',
        ElementKind::Complex => 'c',
        ElementKind::Float => match element_type {
            ElementType::F16 | ElementType::F32 | ElementType::F64 => 'f',
            _ => 'u',
        },
    };
    format!("<{letter}{bytes}")
}

impl Literal {
    /// The literal of `row`; None unless it is a constant.
    pub fn of(held: &Arc<Held>, row: Row) -> Option<Self> {
        (held.core.opcode(row) == Opcode::Constant).then(|| Self {
            held: Arc::clone(held),
            row: row.0,
            leaf: None,
        })
    }

    fn payload(&self) -> &[u8] {
        self.held.core.bytes(self.held.core.opcode_and_payload(Row(self.row)).1)
    }

    fn fault(&self, error: ParseError) -> PyErr {
        let start = self.held.core.opcode_and_payload(Row(self.row)).1.start;
        to_python(self.held.core.source(), &error.shifted(start))
    }

    fn split(&self) -> PyResult<CoreLiteral<'_>> {
        let core = &self.held.core;
        CoreLiteral::split(self.payload(), core.shapes(), core.shape(Row(self.row)))
            .map_err(|error| self.fault(error))
    }

    fn shape_id(&self) -> PyResult<ShapeId> {
        let whole = self.held.core.shape(Row(self.row));
        let Some(leaf) = self.leaf else { return Ok(whole) };
        Ok(self.split()?.leaves.get(leaf).map_or(whole, |leaf| leaf.shape))
    }

    /// Decodes the array; None for a tuple.
    fn data(&self, py: Python<'_>) -> PyResult<Option<LiteralData>> {
        let shapes = self.held.core.shapes();
        let leaf = match self.leaf {
            Some(leaf) => leaf,
            None if shapes.tuple(self.shape_id()?).is_some() => return Ok(None),
            None => 0,
        };
        let literal = self.split()?;
        let data = py.detach(|| literal.decode(leaf, shapes));
        data.map(Some).map_err(|error| self.fault(error))
    }
}

#[pymethods]
impl Literal {
    /// The shape of the array or tuple.
    #[getter]
    fn shape(&self) -> PyResult<Shape> {
        Ok(Shape { held: Arc::clone(&self.held), id: self.shape_id()? })
    }

    /// The text as written; `bytes` if it is not UTF-8. Empty for a leaf of an elided tuple.
    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self.leaf {
            None => text_or_bytes(py, self.payload().trim_ascii()),
            Some(leaf) => text_or_bytes(py, self.split()?.text(leaf).unwrap_or_default()),
        })
    }

    /// The literals of a tuple's arrays, in order; for an array, the literal itself.
    #[getter]
    fn leaves<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, this) = (slf.py(), slf.get());
        if this.leaf.is_some() || this.held.core.shapes().tuple(this.shape_id()?).is_none() {
            return PyTuple::new(py, [slf]);
        }
        let leaves = (0..this.split()?.leaves.len()).map(|leaf| {
            Bound::new(py, Self { held: Arc::clone(&this.held), row: this.row, leaf: Some(leaf) })
        });
        PyTuple::new(py, leaves.collect::<PyResult<Vec<_>>>()?)
    }

    /// How much of the array the text gives; None for tuples.
    ///
    /// `full`, `elided` (`...` stands for omitted elements) or `first only` (one element without
    /// braces for a whole array; XLA sets the others to 0).
    #[getter]
    fn extent(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        Ok(self.data(py)?.map(|data| match data.extent {
            Extent::Full => "full",
            Extent::Elided => "elided",
            Extent::FirstOnly => "first only",
        }))
    }

    /// Whether elements of the array, or of any leaf, were elided when the text was printed.
    #[getter]
    fn is_elided(&self, py: Python<'_>) -> PyResult<bool> {
        if let Some(data) = self.data(py)? {
            return Ok(data.extent == Extent::Elided);
        }
        let (literal, shapes) = (self.split()?, self.held.core.shapes());
        for leaf in 0..literal.leaves.len() {
            let (extent, _) = literal.elements(leaf, shapes).map_err(|error| self.fault(error))?;
            if extent == Extent::Elided {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The elements as a read-only NumPy array.
    ///
    /// It has the dimensions of the shape if the text gives all elements; otherwise it is
    /// one-dimensional and holds the elements given. `pred` is bool; integers narrower than a byte
    /// are int8 or uint8; `f16`, `f32`, `f64`, `c64` and `c128` are NumPy's own types; other floats
    /// are given as their bits (uint16 for `bf16`, uint8 for smaller types), and `shape` names the
    /// type.
    ///
    /// Raises `TypeError` for a tuple: use its `leaves`.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Some(data) = self.data(py)? else {
            return Err(PyTypeError::new_err("a tuple is not an array: use its leaves"));
        };
        let LiteralData { element_type, extent, count, bytes } = data;
        let array = as_array(Bound::new(py, Column::of(bytes))?)?;
        let array = array.call_method1("view", (numpy_type(element_type),))?;
        let dimensions = self.dimensions()?;
        let product = dimensions.iter().try_fold(1usize, |product, d| product.checked_mul(*d));
        if extent == Extent::Full && product == Some(count) {
            return array.call_method1("reshape", (PyTuple::new(py, dimensions)?,));
        }
        Ok(array)
    }

    fn __str__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.text(py)?.str()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Literal>().is_ok_and(|other| {
            let other = other.get();
            (self.row, self.leaf) == (other.row, other.leaf) && same_module(&self.held, &other.held)
        })
    }

    fn __hash__(&self) -> u64 {
        let leaf = self.leaf.map_or(0, |leaf| leaf as u32 + 1);
        hash_of(&self.held, 5, self.row ^ leaf.rotate_left(16))
    }

    fn __repr__(&self) -> PyResult<String> {
        const SHOWN: usize = 60;
        let shape = crate::shape::shape_text(&self.held, self.shape_id()?, SHOWN);
        let literal = self.split()?;
        let written = match self.leaf {
            None => self.payload().trim_ascii(),
            Some(leaf) => literal.text(leaf).unwrap_or_default(),
        };
        let mut text =
            String::from_utf8_lossy(written.get(..SHOWN).unwrap_or(written)).into_owned();
        if written.len() > SHOWN {
            text.push_str("...");
        }
        Ok(format!("<Literal {shape} {text}>"))
    }
}

impl Literal {
    /// The sizes of the array's dimensions, dynamic ones at their bound.
    fn dimensions(&self) -> PyResult<Vec<usize>> {
        let shapes = self.held.core.shapes();
        let array = match shapes.get(self.shape_id()?) {
            ShapeView::Buffer(inner) => shapes.array(inner),
            _ => shapes.array(self.shape_id()?),
        };
        let sizes = array.iter().flat_map(|array| array.dimensions());
        let sizes = sizes.map(|size| size.bound().and_then(|size| usize::try_from(size).ok()));
        // A dimension without a bound never matches an element count.
        Ok(sizes.map(|size| size.unwrap_or(usize::MAX)).collect())
    }
}
