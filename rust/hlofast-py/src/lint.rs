//! Findings as plain Python values, which `hlofast._lint` wraps in objects.

use crate::held::{Stage, text};
use crate::table_builder::to_list;
use hlofast::lint::{Finding, Options};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Returns the name and description of each lint rule.
#[pyfunction]
pub fn _lint_rules() -> Vec<(&'static str, &'static str)> {
    hlofast::lint::rules().collect()
}

/// Returns the default thresholds, by name.
#[pyfunction]
pub fn _lint_options(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let options = Options::default();
    let dict = PyDict::new(py);
    dict.set_item("min_share", options.min_share)?;
    dict.set_item("min_replicated_share", options.min_replicated_share)?;
    dict.set_item("min_undonated_bytes", options.min_undonated_bytes)?;
    dict.set_item("overlap_flops_per_byte", options.overlap_flops_per_byte)?;
    dict.set_item("order_flops_per_byte", options.order_flops_per_byte)?;
    Ok(dict)
}

/// Applies `given` to the default thresholds; an unknown name raises `ValueError`.
fn read_options(given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let mut options = Options::default();
    for (name, value) in given {
        let name: String = name.extract()?;
        let share = || {
            let share: f64 = value.extract()?;
            if share.is_finite() && share >= 0.0 {
                return Ok(share);
            }
            Err(PyValueError::new_err(format!("{name} must be 0 or more, not {share}")))
        };
        match name.as_str() {
            "min_share" => options.min_share = share()?,
            "min_replicated_share" => options.min_replicated_share = share()?,
            "min_undonated_bytes" => options.min_undonated_bytes = value.extract()?,
            "overlap_flops_per_byte" => options.overlap_flops_per_byte = share()?,
            "order_flops_per_byte" => options.order_flops_per_byte = value.extract()?,
            _ => return Err(PyValueError::new_err(format!("unknown option {name:?}"))),
        }
    }
    Ok(options)
}

/// Returns a dictionary per finding, and the table of findings.
pub fn findings<'py>(
    py: Python<'py>,
    stage: &Stage,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
    let options = options.map(read_options).transpose()?;
    let made;
    let report = match options.filter(|options| *options != Options::default()) {
        None => py.detach(|| stage.lint()),
        Some(options) => {
            made = py.detach(|| stage.lint_with(&options));
            &made
        }
    };
    let (origin, callers) = (stage.origin(), stage.callers());
    let list = PyList::empty(py);
    for finding in &report.findings {
        let dict = describe(py, finding)?;
        let names = finding.rows.iter().map(|row| text(py, origin.module.instruction_name(*row)));
        dict.set_item("names", names.collect::<PyResult<Vec<_>>>()?)?;
        let row = finding.source.as_ref();
        let file = row.and_then(|row| origin.source_file(*row));
        let is_own = row.is_none_or(|row| finding.rows.contains(row));
        dict.set_item("source_is_of_maker", !is_own)?;
        let line = row.map(|row| origin.source_line(*row)).filter(|line| *line > 0);
        let line = line.filter(|_| file.is_some());
        dict.set_item("source_file", file.map(|file| String::from_utf8_lossy(file).into_owned()))?;
        dict.set_item("source_line", line)?;
        dict.set_item("called_at", hlofast::table::calls(&callers, finding))?;
        let (mut values, mut renamed) = (Vec::new(), Vec::new());
        for row in &finding.parameters {
            let own = origin.argument_name(*row);
            let name = String::from_utf8_lossy(&own).into_owned();
            if *own != *origin.module.instruction_name(*row) {
                renamed.push(name.clone());
            }
            values.push((row.0, name));
        }
        dict.set_item("values", values)?;
        dict.set_item("renamed", renamed)?;
        list.append(dict)?;
    }
    Ok((list, to_list(py, hlofast::table::findings(&origin, &callers, &report.findings))?))
}

fn describe<'py>(py: Python<'py>, finding: &Finding) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("code", finding.code)?;
    dict.set_item("message", &finding.message)?;
    dict.set_item("remedy", finding.remedy)?;
    dict.set_item("rows", finding.rows.iter().map(|row| row.0).collect::<Vec<_>>())?;
    dict.set_item("places", finding.places)?;
    dict.set_item("bytes", finding.bytes)?;
    dict.set_item("bytes_are", finding.measure.as_str())?;
    dict.set_item("bytes_of", finding.measure.of())?;
    dict.set_item("is_of_all_devices", finding.is_of_all_devices())?;
    dict.set_item("peak_bytes", finding.falls.map(|falls| falls.peak))?;
    dict.set_item("allocated_bytes", finding.falls.and_then(|falls| falls.allocated))?;
    dict.set_item("flops", finding.flops)?;
    dict.set_item("seconds", finding.seconds)?;
    let figures = PyDict::new(py);
    for figure in &finding.figures {
        figures.set_item(figure.name, figure.value)?;
    }
    dict.set_item("figures", figures)?;
    let phases: Vec<&str> = finding.phases.iter().map(|phase| phase.as_str()).collect();
    dict.set_item("phases", phases)?;
    dict.set_item("is_lower_bound", finding.is_lower_bound)?;
    dict.set_item("provenance", finding.provenance.as_str())?;
    Ok(dict)
}
