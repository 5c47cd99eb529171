//! Decoded attribute values as Python objects.

use crate::computation::Computation;
use crate::held::{Held, text, text_or_bytes};
use crate::metadata::Metadata;
use crate::records::{Alias, DimensionLabels, PaddingDimension, SliceDimension, WindowDimension};
use crate::sequence::{Ids, InstructionSequence};
use crate::sharding::{ReplicaGroups, Sharding};
use hlofast::ir::decode::{
    AttributeValue as V, HeaderValue, Origin, OriginPart, OriginalValue, ResultAccuracy, Sparsity,
};
use hlofast::ir::{ComputationId, Row};
use hlofast::text::Span;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::Arc;

type Object<'py> = Bound<'py, PyAny>;

fn texts<'py>(py: Python<'py>, all: &[&[u8]]) -> PyResult<Object<'py>> {
    let texts: PyResult<Vec<_>> = all.iter().map(|bytes| text(py, bytes)).collect();
    Ok(PyTuple::new(py, texts?)?.into_any())
}

fn records<'py, T, R>(py: Python<'py>, all: &[T]) -> PyResult<Object<'py>>
where
    R: for<'t> From<&'t T> + pyo3::PyClass + Into<PyClassInitializer<R>>,
{
    let records: PyResult<Vec<_>> =
        all.iter().map(|value| Bound::new(py, R::from(value))).collect();
    Ok(PyTuple::new(py, records?)?.into_any())
}

/// The computations that `row` calls through attribute `key`, or `names` as text if the calls do
/// not match them.
fn computations<'py>(
    py: Python<'py>,
    held: &Arc<Held>,
    row: Option<Row>,
    key: &[u8],
    names: &[&[u8]],
) -> PyResult<Vec<Object<'py>>> {
    let calls = row.map(|row| held.core.calls(row)).unwrap_or_default();
    let called: Vec<ComputationId> = calls
        .iter()
        .filter(|call| call.role.as_str().as_bytes() == key)
        .map(|call| call.computation)
        .collect();
    if called.len() == names.len() {
        let view = |id| Computation { held: Arc::clone(held), id };
        return called.into_iter().map(|id| Ok(Bound::new(py, view(id))?.into_any())).collect();
    }
    names.iter().map(|name| Ok(text(py, name)?.into_any())).collect()
}

/// Converts an instruction attribute's value to a Python object.
pub fn to_python<'py>(
    py: Python<'py>,
    held: &Arc<Held>,
    row: Option<Row>,
    key: &[u8],
    span: Span,
    value: V<'_>,
) -> PyResult<Object<'py>> {
    match value {
        V::Boolean(value) => value.into_bound_py_any(py),
        V::Booleans(values) => Ok(PyTuple::new(py, values)?.into_any()),
        V::Integer(value) => value.into_bound_py_any(py),
        V::Float(value) => value.into_bound_py_any(py),
        V::Integers(values) => Ok(PyTuple::new(py, values)?.into_any()),
        V::IntegerLists(lists) => {
            let lists: PyResult<Vec<_>> = lists.iter().map(|list| PyTuple::new(py, list)).collect();
            Ok(PyTuple::new(py, lists?)?.into_any())
        }
        V::SourceTargetPairs(pairs) => Ok(PyTuple::new(py, pairs)?.into_any()),
        V::Text(content) => Ok(text_or_bytes(py, &content)),
        V::Dictionary(written) | V::Shape(written) | V::Literal(written) | V::Raw(written) => {
            Ok(text_or_bytes(py, written))
        }
        V::Word(word) => Ok(text(py, word)?.into_any()),
        V::Words(words) | V::Shapes(words) => texts(py, &words),
        V::Computation(name) => {
            let mut computations = computations(py, held, row, key, &[name])?;
            Ok(computations.remove(0))
        }
        V::Computations(names) => {
            Ok(PyTuple::new(py, computations(py, held, row, key, &names)?)?.into_any())
        }
        V::Names(names) => match row {
            Some(row) if key == b"control-predecessors" => {
                let pairs = held.core.control_predecessors().iter();
                let rows = pairs.filter(|(of, _)| *of == row).map(|(_, before)| before.0);
                let ids = Ids::List(rows.collect());
                InstructionSequence { held: Arc::clone(held), ids }.into_bound_py_any(py)
            }
            _ => texts(py, &names),
        },
        V::Window(dimensions) => records::<_, WindowDimension>(py, &dimensions),
        V::DimensionLabels(labels) => DimensionLabels(labels).into_bound_py_any(py),
        V::Padding(dimensions) => records::<_, PaddingDimension>(py, &dimensions),
        V::Slice(dimensions) => records::<_, SliceDimension>(py, &dimensions),
        V::ReplicaGroups(_) => ReplicaGroups { held: Arc::clone(held), span }.into_bound_py_any(py),
        V::Sharding(_) => {
            Sharding { held: Arc::clone(held), span, leaf: None }.into_bound_py_any(py)
        }
        V::Metadata(_) => match row {
            Some(row) => Metadata::at(held, row, span).into_bound_py_any(py),
            None => Ok(text_or_bytes(py, held.core.bytes(span))),
        },
        V::FrontendAttributes(attributes) => {
            let all = PyDict::new(py);
            for attribute in attributes {
                all.set_item(text(py, attribute.key)?, text_or_bytes(py, &attribute.value))?;
            }
            Ok(all.into_any())
        }
        V::Aliases(aliases) => {
            let aliases = aliases.into_iter().map(|alias| Bound::new(py, Alias(alias)));
            Ok(PyTuple::new(py, aliases.collect::<PyResult<Vec<_>>>()?)?.into_any())
        }
        V::ResultAccuracy(accuracy) => {
            let fields = PyDict::new(py);
            match accuracy {
                ResultAccuracy::Mode(word) => fields.set_item("mode", text(py, word)?)?,
                ResultAccuracy::Tolerance { atol, rtol, ulps } => {
                    fields.set_item("atol", atol)?;
                    fields.set_item("rtol", rtol)?;
                    fields.set_item("ulps", ulps)?;
                }
            }
            Ok(fields.into_any())
        }
        V::Origin(origin) => origin_to_python(py, &origin),
        V::Statistics(None) => Ok(PyDict::new(py).into_any()),
        V::Statistics(Some(statistics)) => {
            let fields = PyDict::new(py);
            fields.set_item("visualizing_index", statistics.visualizing_index)?;
            for (name, value) in statistics.values {
                fields.set_item(text(py, name)?, value)?;
            }
            Ok(fields.into_any())
        }
        V::Domain(domain) => {
            let fields = PyDict::new(py);
            fields.set_item("kind", text(py, &domain.kind)?)?;
            fields.set_item("entry", text(py, &domain.entry.to_text())?)?;
            fields.set_item("exit", text(py, &domain.exit.to_text())?)?;
            Ok(fields.into_any())
        }
        V::SparsityConfig(config) => {
            let fields = PyDict::new(py);
            for (side, sparsity) in [("lhs", config.lhs), ("rhs", config.rhs)] {
                if let Some(Sparsity { kept, block, dimension, stride }) = sparsity {
                    let numbers = PyDict::new(py);
                    numbers.set_item("kept", kept)?;
                    numbers.set_item("block", block)?;
                    numbers.set_item("dimension", dimension)?;
                    numbers.set_item("stride", stride)?;
                    fields.set_item(side, numbers)?;
                }
            }
            Ok(fields.into_any())
        }
    }
}

/// `(name, index)`, or None.
fn original<'py>(py: Python<'py>, value: Option<&OriginalValue<'_>>) -> PyResult<Object<'py>> {
    match value {
        Some((name, index)) => (text(py, name)?, PyTuple::new(py, index)?).into_bound_py_any(py),
        None => Ok(py.None().into_bound(py)),
    }
}

/// Nested tuples of `(name, index)`; a str for `synthetic_call`.
fn origin_to_python<'py>(py: Python<'py>, origin: &Origin<'_>) -> PyResult<Object<'py>> {
    let Origin::Tree(parts) = origin else { return "synthetic_call".into_bound_py_any(py) };
    let mut stack: Vec<Vec<Object<'py>>> = vec![Vec::new()];
    for part in parts {
        match part {
            OriginPart::Open => stack.push(Vec::new()),
            OriginPart::Close => {
                let done = stack.pop().unwrap_or_default();
                let tuple = PyTuple::new(py, done)?.into_any();
                match stack.last_mut() {
                    Some(outer) => outer.push(tuple),
                    None => stack.push(vec![tuple]),
                }
            }
            OriginPart::Leaf(value) => {
                let leaf = original(py, value.as_ref())?;
                if let Some(top) = stack.last_mut() {
                    top.push(leaf);
                }
            }
        }
    }
    let mut all = stack.into_iter().flatten();
    Ok(all.next().unwrap_or_else(|| py.None().into_bound(py)))
}

/// Converts a header attribute's value to a Python object.
pub fn header_to_python<'py>(
    py: Python<'py>,
    held: &Arc<Held>,
    key: &[u8],
    span: Span,
    value: HeaderValue<'_>,
) -> PyResult<Object<'py>> {
    match value {
        HeaderValue::Plain(value) => to_python(py, held, None, key, span, value),
        HeaderValue::Aliases(aliases) => to_python(py, held, None, key, span, V::Aliases(aliases)),
        HeaderValue::BufferDonors(donors) => {
            let donors = donors.into_iter().map(|donor| {
                (donor.parameter, PyTuple::new(py, donor.index)?).into_bound_py_any(py)
            });
            Ok(PyTuple::new(py, donors.collect::<PyResult<Vec<_>>>()?)?.into_any())
        }
        HeaderValue::EntryLayout(layout) => {
            let fields = PyDict::new(py);
            fields.set_item("parameters", texts(py, &layout.parameters)?)?;
            fields.set_item("result", text(py, layout.result)?)?;
            Ok(fields.into_any())
        }
        HeaderValue::OriginRecovery(entries) => {
            let all = PyList::empty(py);
            for entry in entries {
                let fields = PyDict::new(py);
                fields.set_item("removed", original(py, entry.removed.as_ref())?)?;
                fields.set_item("replacing", original(py, entry.replacing.as_ref())?)?;
                let module = entry.module.as_deref().map(|module| text(py, module)).transpose()?;
                fields.set_item("module", module)?;
                all.append(fields)?;
            }
            Ok(all.to_tuple().into_any())
        }
        HeaderValue::DebugAttributes(attributes) => {
            let all = PyList::empty(py);
            for attribute in attributes {
                let records = PyList::empty(py);
                for record in attribute.records {
                    let fields = PyDict::new(py);
                    for (name, value) in record {
                        fields.set_item(text(py, name)?, text(py, value)?)?;
                    }
                    records.append(fields)?;
                }
                let value = original(py, attribute.value.as_ref())?;
                all.append((value, records.to_tuple()))?;
            }
            Ok(all.to_tuple().into_any())
        }
    }
}
