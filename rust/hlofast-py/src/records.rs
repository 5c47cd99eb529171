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
        /// Size.
        size: i64,
        /// Distance between two positions.
        stride: i64,
        /// Padding before the data.
        padding_low: i64,
        /// Padding after the data.
        padding_high: i64,
        /// Distance between two elements of the data.
        base_dilation: i64,
        /// Distance between two elements of the window.
        window_dilation: i64,
        /// Whether the window is read backwards.
        reversal: bool,
    }
}

record! {
    /// One dimension of `padding=`.
    PaddingDimension {
        /// Before the data.
        low: i64,
        /// After the data.
        high: i64,
        /// Between two elements.
        interior: i64,
    }
}

record! {
    /// One dimension of `slice={...}`.
    SliceDimension {
        /// First element.
        start: i64,
        /// One past the last element.
        limit: i64,
        /// Distance between two elements.
        stride: i64,
    }
}

/// The roles of the dimensions of a convolution: for each dimension `batch`, `feature`,
/// `input_feature`, `output_feature`, `unmapped` or the number of a spatial dimension.
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
    /// Of the input.
    #[getter]
    fn lhs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        labels(py, &self.0.lhs)
    }

    /// Of the kernel.
    #[getter]
    fn rhs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        labels(py, &self.0.rhs)
    }

    /// Of the result.
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

/// A part of a result that shares memory with a part of a parameter (or operand).
#[pyclass(frozen, eq, module = "hlofast._core")]
#[derive(PartialEq)]
pub struct Alias(pub core::Alias);

#[pymethods]
impl Alias {
    /// Path into the result.
    #[getter]
    fn output_index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.output_index)
    }

    /// Number of the parameter (in a module header) or operand (of an instruction).
    #[getter]
    fn number(&self) -> i64 {
        self.0.number
    }

    /// Path into the parameter or operand.
    #[getter]
    fn index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.index)
    }

    /// Whether sharing is required rather than allowed.
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
