//! `Shape` and `Layout`.

use crate::classes::restorer;
use crate::held::Held;
use hlofast::ir::shape::Dimension;
use hlofast::ir::{ElementType, Layout as CoreLayout, ShapeId, ShapeTable, ShapeView};
use hlofast::print;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// A shape: an array's element type, dimensions and layout, or a tuple of shapes.
#[pyclass(frozen, module = "hlofast._core")]
pub struct Shape {
    pub held: Arc<Held>,
    pub id: ShapeId,
}

impl Shape {
    fn table(&self) -> &ShapeTable {
        self.held.core.shapes()
    }

    fn other(&self, id: ShapeId) -> Shape {
        Shape { held: Arc::clone(&self.held), id }
    }

    fn dimensions_of(&self) -> Vec<Dimension> {
        self.table().array(self.id).map(|array| array.dimensions().collect()).unwrap_or_default()
    }
}

/// The canonical text of a shape; text longer than about `limit` characters is cut and ends in
/// `...`.
pub fn shape_text(held: &Held, id: ShapeId, limit: usize) -> String {
    hlofast::table::shape_text(&held.core, id, limit)
}

#[pymethods]
impl Shape {
    /// The shape number in its module.
    #[getter]
    fn id(&self) -> u32 {
        self.id.0
    }

    /// Whether it is an array; scalars, tokens and opaque values are arrays.
    #[getter]
    fn is_array(&self) -> bool {
        matches!(self.table().get(self.id), ShapeView::Array(_))
    }

    /// Whether it is a tuple.
    #[getter]
    fn is_tuple(&self) -> bool {
        matches!(self.table().get(self.id), ShapeView::Tuple(_))
    }

    /// Whether it is a buffer that contains an array.
    #[getter]
    fn is_buffer(&self) -> bool {
        matches!(self.table().get(self.id), ShapeView::Buffer(_))
    }

    /// The name of the element type, such as `f32`; None for tuples and buffers.
    #[getter]
    fn element_type(&self) -> Option<&'static str> {
        self.table().array(self.id).map(|array| array.element_type.as_str())
    }

    /// The sizes of the dimensions; for dynamic dimensions the bound, or None without a bound.
    #[getter]
    fn dimensions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.dimensions_of().into_iter().map(Dimension::bound))
    }

    /// For each dimension, whether it is dynamic, with a size known only at run time.
    #[getter]
    fn dynamic_dimensions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let dynamic = |dimension: Dimension| !matches!(dimension, Dimension::Static(_));
        PyTuple::new(py, self.dimensions_of().into_iter().map(dynamic))
    }

    /// Number of dimensions; None for tuples and buffers.
    #[getter]
    fn rank(&self) -> Option<usize> {
        self.table().array(self.id).map(|array| array.rank())
    }

    /// The layout; None if the text does not give one.
    #[getter]
    fn layout(&self) -> Option<Layout> {
        self.table().array(self.id).and_then(|array| array.layout).cloned().map(Layout)
    }

    /// The shapes of a tuple's elements, or of a buffer's content.
    #[getter]
    fn elements<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let children = match self.table().get(self.id) {
            ShapeView::Tuple(children) => children.to_vec(),
            ShapeView::Buffer(inner) => vec![inner],
            ShapeView::Array(_) => Vec::new(),
        };
        let shapes: PyResult<Vec<_>> =
            children.into_iter().map(|id| Bound::new(py, self.other(id))).collect();
        PyTuple::new(py, shapes?)
    }

    /// Returns the shapes of all leaves, in order.
    fn leaves<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let leaves = self.table().leaves(self.id).map(|id| Bound::new(py, self.other(id)));
        PyTuple::new(py, leaves.collect::<PyResult<Vec<_>>>()?)
    }

    /// Number of leaves: 1 for an array.
    #[getter]
    fn leaf_count(&self) -> u32 {
        self.table().leaf_count(self.id)
    }

    /// Number of elements of an array, with dynamic dimensions at their bound; None if unknown.
    #[getter]
    fn element_count(&self) -> Option<u64> {
        self.table().array(self.id).and_then(|array| array.elements())
    }

    /// Unpadded bytes of all leaves; None if a dimension has no bound.
    #[getter]
    fn bytes(&self) -> Option<u64> {
        self.table().logical_bytes(self.id)
    }

    /// Returns whether both have the same structure, element types and sizes; layouts may differ.
    fn is_compatible(&self, other: &Bound<'_, Shape>) -> bool {
        let other = other.get();
        self.table().is_compatible(self.id, other.table(), other.id)
    }

    fn __len__(&self) -> PyResult<usize> {
        let children = self.table().tuple(self.id);
        children
            .map(<[_]>::len)
            .ok_or_else(|| PyTypeError::new_err("only tuple shapes have a length"))
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __getitem__(&self, index: isize) -> PyResult<Shape> {
        let children = self.table().tuple(self.id).unwrap_or_default();
        let position = if index < 0 { index + children.len() as isize } else { index };
        let child = usize::try_from(position).ok().and_then(|i| children.get(i));
        child
            .map(|id| self.other(*id))
            .ok_or_else(|| PyIndexError::new_err("tuple element index out of range"))
    }

    fn __str__(&self) -> String {
        shape_text(&self.held, self.id, usize::MAX)
    }

    fn __repr__(&self) -> String {
        format!("<Shape {}>", shape_text(&self.held, self.id, 100))
    }

    fn _repr_html_(&self) -> String {
        format!(
            "<code>{}</code>",
            crate::html::escape(shape_text(&self.held, self.id, 400).as_bytes())
        )
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Shape>().is_ok_and(|other| {
            let other = other.get();
            match Arc::ptr_eq(&self.held, &other.held) {
                true => self.id == other.id,
                false => self.__str__() == other.__str__(),
            }
        })
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        shape_text(&self.held, self.id, 256).hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let builder = restorer(py, "_restore_shape")?;
        let module = crate::module::Module::object(py, &self.held)?;
        Ok((builder, (module, self.id.0)).into_pyobject(py)?.into_any())
    }
}

/// The layout in the braces after an array shape.
#[pyclass(frozen, eq, module = "hlofast._core")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Layout(CoreLayout);

#[pymethods]
impl Layout {
    /// Dimension numbers from fastest-varying to slowest.
    #[getter]
    fn minor_to_major<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.minor_to_major.iter())
    }

    /// The tiles, outermost first; None in a tile combines the dimension with the next minor one.
    #[getter]
    fn tiles<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let tiles = self.0.tiles.iter().map(|tile| {
            PyTuple::new(py, tile.iter().map(|size| (*size != i64::MIN).then_some(*size)))
        });
        PyTuple::new(py, tiles.collect::<PyResult<Vec<_>>>()?)
    }

    /// Memory space; 0 is the default.
    #[getter]
    fn memory_space(&self) -> i64 {
        self.0.memory_space
    }

    /// Bits of one packed element; 0 if elements are not packed.
    #[getter]
    fn element_bits(&self) -> i64 {
        self.0.element_bits
    }

    /// The end of the array is padded to a multiple of this many elements.
    #[getter]
    fn tail_padding_alignment(&self) -> i64 {
        self.0.tail_padding_alignment
    }

    /// Element type of the indices of legacy sparse layouts; None if not given.
    #[getter]
    fn index_type(&self) -> Option<&'static str> {
        self.0.index_type.map(|kind| kind.as_str())
    }

    /// Element type of the pointers of legacy sparse layouts; None if not given.
    #[getter]
    fn pointer_type(&self) -> Option<&'static str> {
        self.0.pointer_type.map(|kind| kind.as_str())
    }

    /// Split dimensions and their split points.
    #[getter]
    fn splits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let splits = self.0.splits.iter().map(|(dimension, indices)| {
            (*dimension, PyTuple::new(py, indices.iter())?).into_pyobject(py)
        });
        PyTuple::new(py, splits.collect::<PyResult<Vec<_>>>()?)
    }

    /// Bytes of dynamic-shape metadata before the data.
    #[getter]
    fn metadata_prefix_bytes(&self) -> i64 {
        self.0.metadata_prefix_bytes
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }

    fn __str__(&self) -> String {
        let text = print::layout_to_text(&self.0);
        if text.is_empty() { "{}".to_owned() } else { String::from_utf8_lossy(&text).into_owned() }
    }

    fn __repr__(&self) -> String {
        format!("<Layout {}>", self.__str__())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let layout = &self.0;
        let splits = layout.splits.iter().map(|(dimension, at)| (*dimension, at.to_vec()));
        let parts: LayoutParts = (
            layout.minor_to_major.to_vec(),
            layout.tiles.iter().map(|tile| tile.to_vec()).collect(),
            layout.tail_padding_alignment,
            layout.index_type.map(|kind| kind.as_str().to_owned()),
            layout.pointer_type.map(|kind| kind.as_str().to_owned()),
            layout.element_bits,
            layout.memory_space,
            splits.collect(),
            layout.metadata_prefix_bytes,
            layout.had_level_types,
        );
        Ok((restorer(py, "_restore_layout")?, (parts,)).into_pyobject(py)?.into_any())
    }
}

/// The fields of a layout, in order; restoring a layout needs no module.
type LayoutParts = (
    Vec<i64>,
    Vec<Vec<i64>>,
    i64,
    Option<String>,
    Option<String>,
    i64,
    i64,
    Vec<(i64, Vec<i64>)>,
    i64,
    bool,
);

/// Restores a pickled layout.
#[pyfunction]
pub fn _restore_layout(parts: LayoutParts) -> PyResult<Layout> {
    let (order, tiles, tail, index, pointer, bits, space, splits, prefix, had_levels) = parts;
    let element_type = |name: Option<String>| {
        let find = |name: String| {
            let known = ElementType::from_bytes(name.as_bytes());
            known.ok_or_else(|| PyValueError::new_err(format!("no element type {name:?}")))
        };
        name.map(find).transpose()
    };
    Ok(Layout(CoreLayout {
        minor_to_major: order.into(),
        tiles: tiles.into_iter().map(Vec::into_boxed_slice).collect(),
        tail_padding_alignment: tail,
        index_type: element_type(index)?,
        pointer_type: element_type(pointer)?,
        element_bits: bits,
        memory_space: space,
        splits: splits.into_iter().map(|(dimension, at)| (dimension, at.into())).collect(),
        metadata_prefix_bytes: prefix,
        had_level_types: had_levels,
    }))
}
