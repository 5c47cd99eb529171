//! Small frozen records: windows, paddings, slices, dimension labels, aliases.

use hlofast::ir::decode as core;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[pyclass(frozen, eq, hash, get_all, module = "hlofast._core")]
        #[derive(Clone, PartialEq, Eq, Hash)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        #[pymethods]
        impl $name {
            fn __repr__(&self) -> String {
                let fields = [$(format!(concat!(stringify!($field), "={}"), self.$field),)*];
                format!("{}({})", stringify!($name), fields.join(", "))
            }
        }

        impl From<&core::$name> for $name {
            fn from(value: &core::$name) -> Self {
                Self { $($field: value.$field,)* }
            }
        }
    };
}

record! {
    /// One dimension of `window={...}`.
    WindowDimension {
        /// Size of the window in this dimension.
        size: i64,
        /// Step between two positions of the window.
        stride: i64,
        /// Padding before the data.
        padding_low: i64,
        /// Padding after the data.
        padding_high: i64,
        /// Spacing of the data's elements: 1 for no dilation.
        base_dilation: i64,
        /// Spacing of the window's elements: 1 for no dilation.
        window_dilation: i64,
        /// Whether the window is reversed in this dimension.
        reversal: bool,
    }
}

record! {
    /// One dimension of `padding=`.
    PaddingDimension {
        /// Padding before the data.
        low: i64,
        /// Padding after the data.
        high: i64,
        /// Padding between two elements.
        interior: i64,
    }
}

record! {
    /// One dimension of `slice={...}`.
    SliceDimension {
        /// Index of the first element.
        start: i64,
        /// Index after the last element.
        limit: i64,
        /// Step between two elements.
        stride: i64,
    }
}

/// The roles of a convolution's dimensions.
///
/// Each dimension is `batch`, `feature`, `input_feature`, `output_feature`, `unmapped` or the
/// number of a spatial dimension.
#[pyclass(frozen, module = "hlofast._core")]
pub struct DimensionLabels(pub core::DimensionLabels);

fn labels<'py>(py: Python<'py>, all: &[core::DimensionLabel]) -> PyResult<Bound<'py, PyTuple>> {
    let label = |label: &core::DimensionLabel| -> PyResult<Bound<'py, PyAny>> {
        Ok(match label {
            core::DimensionLabel::Batch => "batch".into_pyobject(py)?.into_any(),
            core::DimensionLabel::Feature => "feature".into_pyobject(py)?.into_any(),
            core::DimensionLabel::InputFeature => "input_feature".into_pyobject(py)?.into_any(),
            core::DimensionLabel::OutputFeature => "output_feature".into_pyobject(py)?.into_any(),
            core::DimensionLabel::Unmapped => "unmapped".into_pyobject(py)?.into_any(),
            core::DimensionLabel::Spatial(number) => number.into_pyobject(py)?.into_any(),
        })
    };
    PyTuple::new(py, all.iter().map(label).collect::<PyResult<Vec<_>>>()?)
}

#[pymethods]
impl DimensionLabels {
    /// The roles of the input's dimensions.
    #[getter]
    fn lhs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        labels(py, &self.0.lhs)
    }

    /// The roles of the kernel's dimensions.
    #[getter]
    fn rhs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        labels(py, &self.0.rhs)
    }

    /// The roles of the result's dimensions.
    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        labels(py, &self.0.output)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<DimensionLabels>().is_ok_and(|other| self.0 == other.get().0)
    }

    fn __hash__(&self) -> usize {
        self.0.lhs.len() ^ self.0.spatial_rank() << 8
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let [lhs, rhs, output] = [self.lhs(py)?, self.rhs(py)?, self.output(py)?];
        Ok(format!("DimensionLabels(lhs={lhs}, rhs={rhs}, output={output})"))
    }
}

/// A part of a result that shares memory with a part of a parameter or operand.
#[pyclass(frozen, eq, module = "hlofast._core")]
#[derive(PartialEq)]
pub struct Alias(pub core::Alias);

#[pymethods]
impl Alias {
    /// Shape index (tuple path) of the part of the result.
    #[getter]
    fn output_index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.output_index)
    }

    /// Number of the parameter (in a module header) or operand (of an instruction).
    #[getter]
    fn number(&self) -> i64 {
        self.0.number
    }

    /// Shape index (tuple path) of the part of the parameter or operand.
    #[getter]
    fn index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.index)
    }

    /// Whether sharing is required, not merely allowed.
    #[getter]
    fn must_alias(&self) -> bool {
        self.0.must_alias
    }

    fn __hash__(&self) -> i64 {
        self.0.number
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "Alias(output_index={}, number={}, index={}, must_alias={})",
            self.output_index(py)?,
            self.0.number,
            self.index(py)?,
            self.0.must_alias
        ))
    }
}
