//! `MemoryData`: the core's live ranges of a module, which `hlofast._memory` formats as text and
//! tables.

use crate::column::Column;
use crate::held::Stage;
use crate::module::Module;
use crate::table_builder::to_list;
use hlofast::ir::Row;
use hlofast::memory::{
    Constants, Memory, MemoryError, Options, Order, Rule, Sizes, Space, Tables, donatable,
    read_file, xla_account,
};
use hlofast::table;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::Arc;

/// Kind, columns, total bytes, bytes in the default memory space, step of the peak, bytes at the
/// peak.
type FileParts<'py> =
    (&'static str, Bound<'py, PyList>, Option<i64>, Option<i64>, Option<u32>, Option<i64>);

/// The live ranges of a module, computed by `Module.memory`.
#[pyclass(frozen, module = "hlofast._core")]
pub struct MemoryData {
    stage: Arc<Stage>,
    memory: Arc<Memory>,
}

impl MemoryData {
    /// The core's live ranges.
    pub fn core(&self) -> &Memory {
        &self.memory
    }
}

fn choice<T: Copy>(word: &str, what: &str, all: &[(&str, T)]) -> PyResult<T> {
    let entry = all.iter().find(|(name, _)| *name == word);
    entry.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<String> = all.iter().map(|(name, _)| format!("{name:?}")).collect();
        PyValueError::new_err(format!("{what} must be one of {}, not {word:?}", words.join(", ")))
    })
}

/// The rule named `word`.
pub fn rule_called(word: &str) -> PyResult<Rule> {
    let rules = [Rule::InPlace, Rule::Values, Rule::Xla].map(|rule| (rule.as_str(), rule));
    choice(word, "rule", &rules)
}

fn failed(error: MemoryError) -> PyErr {
    match error {
        MemoryError::TooLarge => PyOverflowError::new_err(error.to_string()),
        MemoryError::TooManyParts => PyValueError::new_err(error.to_string()),
    }
}

/// Analyses the memory of `module`.
///
/// `space` is the number of a memory space, or None for all. Raises `ValueError` for an unknown
/// option or if memory cannot be counted.
#[pyfunction]
#[pyo3(signature = (module, *, rule, sizes, constants, space, schedule))]
pub fn _memory(
    module: &Bound<'_, Module>,
    rule: &str,
    sizes: &str,
    constants: &str,
    space: Option<i64>,
    schedule: &str,
) -> PyResult<MemoryData> {
    let all_sizes = [Sizes::Device, Sizes::Logical].map(|sizes| (sizes.as_str(), sizes));
    let all_constants =
        [Constants::LastUse, Constants::Program].map(|constants| (constants.as_str(), constants));
    let options = Options {
        rule: rule_called(rule)?,
        sizes: choice(sizes, "sizes", &all_sizes)?,
        constants: choice(constants, "constants", &all_constants)?,
        space: space.map_or(Space::All, Space::One),
        order: choice(schedule, "schedule", &Order::ALL.map(|order| (order.as_str(), order)))?,
    };
    let stage = Arc::clone(&module.get().held.stage);
    let memory = module.py().detach(|| {
        if options == Options::default() {
            return stage.memory().map(Arc::clone);
        }
        stage.memory_with(&options).map(Arc::new)
    });
    Ok(MemoryData { stage, memory: memory.map_err(failed)? })
}

/// Returns XLA's memory account of `module`: bytes by name.
///
/// `table_bytes` is the size to which a device rounds the pointer tables of tuples, if known.
#[pyfunction]
#[pyo3(signature = (module, *, table_bytes=None))]
pub fn _xla_memory<'py>(
    module: &Bound<'py, Module>,
    table_bytes: Option<u32>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = module.py();
    let stage = &module.get().held.stage;
    let account = py.detach(|| match table_bytes.map(Tables::Rounded) {
        None => stage.account().copied(),
        tables => xla_account(stage.module(), tables),
    });
    let account = account.map_err(failed)?;
    let dictionary = PyDict::new(py);
    dictionary.set_item("argument_size_in_bytes", account.device.argument)?;
    dictionary.set_item("output_size_in_bytes", account.device.output)?;
    dictionary.set_item("alias_size_in_bytes", account.device.alias)?;
    dictionary.set_item("host_argument_size_in_bytes", account.host.argument)?;
    dictionary.set_item("host_output_size_in_bytes", account.host.output)?;
    dictionary.set_item("host_alias_size_in_bytes", account.host.alias)?;
    dictionary.set_item("constant_size_in_bytes", account.constants)?;
    dictionary.set_item("heap_size_in_bytes", account.heap)?;
    dictionary.set_item("heap_memory_space", account.heap_space)?;
    dictionary.set_item("peak_memory_in_bytes", account.peak)?;
    dictionary.set_item("host_temp_size_in_bytes", account.on_host.bytes)?;
    dictionary.set_item("hbm_heap_size_in_bytes", account.hbm.bytes)?;
    dictionary.set_item("fast_heap_size_in_bytes", account.fast.bytes)?;
    dictionary.set_item("hbm_peak_in_bytes", account.hbm_peak())?;
    dictionary.set_item("fast_peak_in_bytes", account.fast_peak())?;
    dictionary.set_item("host_peak_in_bytes", account.host_peak())?;
    Ok(dictionary)
}

/// Returns the packing of the HBM heap in XLA: bytes of the packed heap, of its fragmentation and
/// of the pointer tables of tuples. None for modules whose heap cannot be packed.
///
/// `usable` is the HBM that the device has for programs, in bytes, if known.
#[pyfunction]
#[pyo3(signature = (module, *, usable=None))]
pub fn _packing(
    module: &Bound<'_, Module>,
    usable: Option<i64>,
) -> PyResult<Option<(i64, i64, i64)>> {
    let stage = &module.get().held.stage;
    let packing = module.py().detach(|| stage.packing_with(usable));
    let packing = packing.map_err(failed)?;
    Ok(packing.map(|packing| (packing.heap, packing.fragmentation, packing.tables)))
}

/// Reads one of XLA's memory files: kind, columns, total bytes, bytes in the default memory space,
/// step of the peak, bytes at the peak.
#[pyfunction]
pub fn _memory_file<'py>(module: &Bound<'py, Module>, content: &[u8]) -> PyResult<FileParts<'py>> {
    let py = module.py();
    let core = &module.get().held.core;
    let file =
        read_file(core, content).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let list = to_list(py, table::memory_file(core, &file.rows))?;
    let totals = (file.total_bytes, file.default_bytes);
    Ok((file.kind.as_str(), list, totals.0, totals.1, file.peak_step, file.peak_bytes))
}

#[pymethods]
impl MemoryData {
    /// Live bytes at the peak.
    #[getter]
    fn live_peak(&self) -> i64 {
        self.memory.peak.bytes
    }

    /// The row that runs at the peak; None if there is none.
    #[getter]
    fn peak_row(&self) -> Option<u32> {
        self.memory.peak_row().map(|row| row.0)
    }

    /// The step of the peak.
    #[getter]
    fn peak_step(&self) -> u32 {
        self.memory.peak.step
    }

    /// The most bytes in the timeline, and the row that runs at that step.
    #[getter]
    fn highest(&self) -> (i64, Option<u32>) {
        let memory = &self.memory;
        let highest = memory.highest();
        (highest.bytes, memory.sequence().get(highest.step as usize).copied())
    }

    /// The backend whose shape sizes were counted: cpu, gpu or tpu.
    #[getter]
    fn backend(&self) -> &'static str {
        self.memory.backend.as_str()
    }

    /// Live bytes at every step, as a column.
    fn timeline(&self) -> Column {
        Column::project(&self.memory, |memory| &memory.timeline[..])
    }

    /// The row that runs at every step, as a column.
    fn sequence(&self) -> Column {
        Column::project(&self.memory, |memory| memory.sequence())
    }

    /// The step at which `row` runs; None if it takes no step.
    fn step_of(&self, row: u32) -> Option<u32> {
        self.memory.step_of(Row(row))
    }

    /// Problems of the module and omissions from the figures: counts and rows by name.
    fn doubts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let doubts = &self.memory.doubts;
        let dictionary = PyDict::new(py);
        dictionary.set_item("is_unscheduled", doubts.is_unscheduled)?;
        dictionary.set_item("disordered", doubts.disordered)?;
        dictionary.set_item("mismatched", doubts.mismatched)?;
        dictionary.set_item("contradictory_aliases", doubts.contradictory_aliases)?;
        dictionary.set_item("has_unreadable_aliases", doubts.has_unreadable_aliases)?;
        dictionary.set_item("unknown_sizes", &doubts.unknown_sizes)?;
        dictionary.set_item("repeated_calls", &doubts.repeated_calls)?;
        dictionary.set_item("lacks_layouts", doubts.lacks_layouts)?;
        Ok(dictionary)
    }

    /// The evidence for the phases of values.
    #[getter]
    fn phases_are_by(&self, py: Python<'_>) -> &'static str {
        let stage = &self.stage;
        py.detach(|| stage.attribution().whose(stage.module()).basis.as_str())
    }

    /// Row and bytes of each array of a parameter that could be donated and is not.
    fn donatable(&self, py: Python<'_>) -> Vec<(u32, i64)> {
        let stage = &self.stage;
        // Before partitioning, shapes cover all devices.
        let parameters = py.detach(|| {
            let is_known = stage.is_partitioned();
            if is_known { donatable(stage.module(), stage.attribution()) } else { Vec::new() }
        });
        parameters.iter().map(|entry| (entry.row.0, entry.bytes)).collect()
    }

    /// The peak and its row if the values of `buffer` took no memory.
    fn peak_without(&self, py: Python<'_>, buffer: u32) -> (i64, Option<u32>) {
        let memory = &self.memory;
        let peak = py.detach(|| memory.peak_without(buffer));
        (peak.bytes, memory.sequence().get(peak.step as usize).copied())
    }

    /// Fields and columns of the values live at `step`, largest first; without `step`, of all
    /// values.
    #[pyo3(signature = (step=None))]
    fn live<'py>(&self, py: Python<'py>, step: Option<u32>) -> PyResult<Bound<'py, PyList>> {
        let (core, memory) = (self.stage.module(), &*self.memory);
        let columns = py.detach(|| {
            let values = match step {
                Some(step) => memory.live_at(core, step),
                None => memory.all_values(core),
            };
            table::buffers(&self.stage.origin(), memory, self.stage.attribution(), &values)
        });
        to_list(py, columns)
    }
}
