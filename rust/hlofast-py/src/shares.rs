//! The share of one device in a module before partitioning, which `hlofast._shares` presents.

use crate::module::Module;
use crate::table_builder::to_list;
use hlofast::shares::Shares;
use hlofast::table::{shared_arrays, shared_products};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Number of devices that the shapes of `module` cover together; 1 if they are the shapes of one
/// device.
#[pyfunction]
pub fn _devices_together(module: &Bound<'_, Module>) -> u64 {
    let held = &module.get().held;
    module.py().detach(|| held.stage.devices_together())
}

/// The share of one device; tables without rows if the shapes already are the shapes of one device.
#[pyfunction]
pub fn _shares<'py>(module: &Bound<'py, Module>) -> PyResult<Bound<'py, PyDict>> {
    let py = module.py();
    let stage = &module.get().held.stage;
    let own = Shares { devices: 1, ..Shares::default() };
    let shares = py.detach(|| stage.shares()).unwrap_or(&own);
    let module = stage.module();
    let dict = PyDict::new(py);
    dict.set_item("devices", shares.devices)?;
    dict.set_item("is_written", shares.is_written)?;
    for (name, arrays) in [
        ("parameters", &shares.parameters),
        ("results", &shares.results),
        ("annotated", &shares.annotated),
    ] {
        dict.set_item(name, to_list(py, shared_arrays(module, arrays))?)?;
    }
    dict.set_item("products", to_list(py, shared_products(module, &shares.products))?)?;
    Ok(dict)
}
