//! `Module.summary()`: the core's summary as plain Python values.

use crate::held::{Held, text};
use crate::module::header_count;
use crate::shape::shape_text;
use hlofast::ir::decode::metadata_string;
use hlofast::ir::{Module, Row};
use hlofast::summary::{NameCount, Options, Port, Summary};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

/// Limit on the text of a shape; longer texts are cut.
const SHAPE_TEXT: usize = 200;

/// The facts of a module's summary, without its tables, as the dictionary that `hlofast.Summary`
/// describes.
pub fn summary<'py>(py: Python<'py>, held: &Held) -> PyResult<Bound<'py, PyDict>> {
    let module = &*held.core;
    let summary = py.detach(|| held.stage.summary());
    let dict = PyDict::new(py);
    dict.set_item("status", summary.status.value.as_str())?;
    dict.set_item("status_reason", summary.status.reason.as_str())?;
    dict.set_item("backend", summary.backend.as_ref().map(|guess| guess.value.as_str()))?;
    dict.set_item("backend_reason", summary.backend.as_ref().map(|guess| guess.reason.as_str()))?;
    dict.set_item("is_scheduled", module.is_scheduled())?;
    let partitions = header_count(module, "num_partitions", module.num_partitions())?;
    dict.set_item("num_partitions", partitions)?;
    let replicas = header_count(module, "replica_count", module.replica_count())?;
    dict.set_item("replica_count", replicas)?;
    dict.set_item("text_bytes", module.text().len())?;
    dict.set_item("counts", counts(py, module, summary)?)?;
    let entry = text(py, module.computation_name(module.entry()))?;
    dict.set_item("entry", entry)?;
    dict.set_item("parameter_bytes", total(&summary.signature.parameters))?;
    dict.set_item("output_bytes", total(&summary.signature.outputs))?;
    dict.set_item("donation", donation(py, summary)?)?;
    Ok(dict)
}

/// The rows of a table of the summary.
pub fn rows<'py>(py: Python<'py>, held: &Held, table: &str) -> PyResult<Bound<'py, PyList>> {
    let module = &*held.core;
    if table == "shapes" {
        let summary = py.detach(|| held.stage.summary_with(&Options { shapes: usize::MAX }));
        return shapes(py, held, &summary);
    }
    let summary = py.detach(|| held.stage.summary());
    let named = |name: &'static str, counts: &[NameCount]| {
        let rows = counts.iter().map(|count| {
            row(py, |dict| {
                dict.set_item(name, text(py, &count.name)?)?;
                dict.set_item("instructions", count.instructions)
            })
        });
        list(py, rows)
    };
    match table {
        "parameters" => parameters(py, held, summary),
        "outputs" => outputs(py, held, summary),
        "opcodes" => list(
            py,
            summary.opcodes.iter().map(|count| {
                row(py, |dict| {
                    dict.set_item("opcode", &count.opcode)?;
                    dict.set_item("instructions", count.instructions)?;
                    dict.set_item("entry_instructions", count.entry_instructions)
                })
            }),
        ),
        "fusions" => named("kind", &summary.fusions),
        "custom_calls" => named("target", &summary.custom_calls),
        "computations" => {
            let written = summary.computations.iter();
            let written =
                written.filter(|usage| !module.computation(usage.computation).is_implicit);
            let rows = written.map(|usage| {
                row(py, |dict| {
                    dict.set_item("name", text(py, module.computation_name(usage.computation))?)?;
                    dict.set_item("instructions", usage.instructions)?;
                    dict.set_item("role", usage.role.as_str())?;
                    dict.set_item("callers", usage.callers)
                })
            });
            list(py, rows)
        }
        _ => Err(PyValueError::new_err(format!("a summary has no table {table:?}"))),
    }
}

fn shapes<'py>(py: Python<'py>, held: &Held, summary: &Summary) -> PyResult<Bound<'py, PyList>> {
    let rows = summary.shapes.iter().map(|count| {
        row(py, |dict| {
            dict.set_item("shape", shape_text(held, count.shape, SHAPE_TEXT))?;
            dict.set_item("bytes", count.bytes)?;
            dict.set_item("instructions", count.instructions)?;
            dict.set_item("instruction", text(py, held.core.instruction_name(count.first))?)
        })
    });
    list(py, rows)
}

fn row<'py>(
    py: Python<'py>,
    fill: impl FnOnce(&Bound<'py, PyDict>) -> PyResult<()>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    fill(&dict)?;
    Ok(dict)
}

fn list<'py>(
    py: Python<'py>,
    rows: impl Iterator<Item = PyResult<Bound<'py, PyDict>>>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}

fn counts<'py>(
    py: Python<'py>,
    module: &Module,
    summary: &Summary,
) -> PyResult<Bound<'py, PyDict>> {
    let entry = summary.computations.get(module.entry().0 as usize);
    row(py, |dict| {
        dict.set_item("computations", module.computation_count())?;
        dict.set_item("instructions", summary.instructions)?;
        dict.set_item("implicit_instructions", summary.implicit_instructions)?;
        dict.set_item("entry_instructions", entry.map_or(0, |usage| usage.instructions))?;
        dict.set_item("distinct_shapes", module.shapes().len())
    })
}

/// None for the core's -1.
fn known(bytes: i64) -> Option<i64> {
    (bytes >= 0).then_some(bytes)
}

/// The sum over all ports; None if the bytes of a port are unknown or the sum overflows.
fn total(ports: &[Port]) -> Option<i64> {
    ports.iter().try_fold(0i64, |sum, port| sum.checked_add(known(port.bytes)?))
}

fn port<'py>(py: Python<'py>, held: &Held, port: &Port) -> PyResult<Bound<'py, PyDict>> {
    let name = port.row.map(|row| text(py, held.core.instruction_name(row))).transpose()?;
    row(py, |dict| {
        dict.set_item("number", port.number)?;
        dict.set_item("instruction", name)?;
        dict.set_item("shape", shape_text(held, port.shape, SHAPE_TEXT))?;
        dict.set_item("bytes", known(port.bytes))
    })
}

fn parameters<'py>(
    py: Python<'py>,
    held: &Held,
    summary: &Summary,
) -> PyResult<Bound<'py, PyList>> {
    let signature = &summary.signature;
    let donated = summary.donation.donated(signature);
    let rows = signature.parameters.iter().zip(donated).map(|(parameter, donated)| {
        let dict = port(py, held, parameter)?;
        dict.set_item("op_name", op_name(py, &held.core, parameter.row)?)?;
        dict.set_item("donated", donated)?;
        Ok(dict)
    });
    list(py, rows)
}

fn outputs<'py>(py: Python<'py>, held: &Held, summary: &Summary) -> PyResult<Bound<'py, PyList>> {
    let signature = &summary.signature;
    let aliased = summary.donation.aliased_parameters(signature);
    let rows = signature.outputs.iter().zip(aliased).map(|(output, aliased)| {
        let dict = port(py, held, output)?;
        dict.set_item("aliased_parameter", aliased)?;
        Ok(dict)
    });
    list(py, rows)
}

/// The framework's name of an argument, such as `params['w']`.
fn op_name<'py>(
    py: Python<'py>,
    module: &Module,
    row: Option<Row>,
) -> PyResult<Option<Bound<'py, PyString>>> {
    let metadata = row.and_then(|row| module.attribute_bytes(row, "metadata"));
    let name = metadata.and_then(|value| metadata_string(value, b"op_name"));
    name.map(|name| text(py, &name)).transpose()
}

fn donation<'py>(py: Python<'py>, summary: &Summary) -> PyResult<Bound<'py, PyDict>> {
    let donation = &summary.donation;
    row(py, |dict| {
        dict.set_item("aliases", donation.aliases.len())?;
        dict.set_item("must_alias", donation.aliases.iter().filter(|a| a.must_alias).count())?;
        dict.set_item("aliased_bytes", donation.aliased_bytes)?;
        dict.set_item("buffer_donors", donation.donors.len())
    })
}
