//! `StagesData`: the core's pipeline stages, which `hlofast._stages` makes into tables.

use crate::held::Stage;
use crate::table_builder::to_list;
use hlofast::ir::{Module, Row, ShapeId};
use hlofast::print::plain_shape_within;
use hlofast::stages::{Options, Stages};
use hlofast::table::{Columns, Origin, narrow, number, row_or_none};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::Arc;

/// Characters of a shape in a table; of longer ones the middle is left out.
const SHAPE_LIMIT: usize = 120;

/// The pipeline stages of a module.
#[pyclass(frozen, module = "hlofast._core")]
pub struct StagesData {
    stage: Arc<Stage>,
    found: Stages,
}

impl StagesData {
    pub fn new(stage: Arc<Stage>, most_moved: Option<f64>) -> PyResult<Self> {
        let mut options = Options::default();
        if let Some(share) = most_moved {
            if !(0.0..=1.0).contains(&share) {
                let text = format!("most_moved is a share from 0 to 1, not {share}");
                return Err(PyValueError::new_err(text));
            }
            options.most_moved = share;
        }
        let found = stage.stages_with(&options);
        Ok(Self { stage, found })
    }

    fn module(&self) -> &Module {
        self.stage.module()
    }

    fn name(&self, row: Row) -> Vec<u8> {
        self.module().instruction_name(row).to_vec()
    }

    fn shape(&self, shape: ShapeId) -> Vec<u8> {
        plain_shape_within(self.module().shapes(), shape, SHAPE_LIMIT)
    }

    fn section_name(&self, section: Option<u32>) -> Vec<u8> {
        let section = section.and_then(|id| self.found.sections.get(id as usize));
        section.map(|section| section.bounds.name.clone().into_bytes()).unwrap_or_default()
    }

    fn values<'py>(&self, py: Python<'py>, rows: &[Row]) -> PyResult<Bound<'py, PyList>> {
        let module = self.module();
        let each = || rows.iter().copied();
        let bytes = module.shape_bytes_column();
        let mut table = Columns::default();
        table.rows("instruction", each());
        table.texts("name", each().map(|row| self.name(row)));
        table.texts("shape", each().map(|row| self.shape(module.shape(row))));
        table.numbers("bytes", each().map(|row| bytes[row.0 as usize]));
        Origin::new(module).columns(each(), &mut table);
        to_list(py, table)
    }
}

#[pymethods]
impl StagesData {
    /// Names and columns of the table of markers.
    fn markers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let each = || self.found.markers.iter();
        let mut table = Columns::default();
        table.rows("instruction", each().map(|marker| marker.row));
        table.texts("name", each().map(|marker| self.name(marker.row)));
        table.rows("place", each().map(|marker| marker.place));
        table.texts("place_name", each().map(|marker| self.name(marker.place)));
        table.numbers("calls", each().map(|marker| i64::from(marker.calls)));
        table.texts("section", each().map(|marker| marker.name.clone().into_bytes()));
        table.texts("mark", each().map(|marker| marker.mark.clone().into_bytes()));
        table.numbers("arrays", each().map(|marker| marker.leaves.len() as i64));
        let sum = |leaves: &[Option<u64>]| {
            leaves.iter().try_fold(0u64, |sum, bytes| sum.checked_add((*bytes)?))
        };
        table.numbers("bytes", each().map(|marker| number(sum(&marker.leaves))));
        let agrees = each().map(|marker| {
            let said = marker.sizes.as_ref()?.iter().map(|size| u64::try_from(*size).ok());
            Some(said.eq(marker.leaves.iter().copied()))
        });
        table.numbers("agrees", agrees.map(|agrees| agrees.map_or(-1, i64::from)));
        to_list(py, table)
    }

    /// By marker: the sizes that its configuration says.
    fn marker_sizes(&self) -> Vec<Option<Vec<i64>>> {
        self.found.markers.iter().map(|marker| marker.sizes.clone()).collect()
    }

    /// Names and columns of the table of sections.
    fn sections<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let each = || self.found.sections.iter();
        let mut table = Columns::default();
        table.texts("section", each().map(|section| section.bounds.name.clone().into_bytes()));
        table.texts("phase", each().map(|section| section.bounds.phase.as_str()));
        table.rows("start", each().map(|section| section.bounds.start));
        table.numbers("end", each().map(|section| row_or_none(section.bounds.end)));
        table.numbers("instructions", each().map(|section| section.instructions as i64));
        table.numbers("products", each().map(|section| number(Some(section.products))));
        table.numbers("product_flops", each().map(|section| narrow(section.product_flops)));
        table.numbers("flops", each().map(|section| narrow(section.flops)));
        table.numbers("bytes_in", each().map(|section| number(section.bytes_in)));
        table.numbers("bytes_out", each().map(|section| number(section.bytes_out)));
        let peaks = self.found.memory.as_ref().map(|memory| &memory.peaks[..]).unwrap_or_default();
        let peak = |section: usize| peaks.get(section).copied().flatten().unwrap_or(-1);
        table.numbers("peak", (0..self.found.sections.len()).map(peak));
        to_list(py, table)
    }

    /// Names and columns of the table of what stays from forward to backward.
    fn stash<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let each = || self.found.stash.iter();
        let mut table = Columns::default();
        let index = |index: Option<u32>| index.map_or(-1, i64::from);
        table.numbers("index", each().map(|item| i64::from(item.index)));
        table.numbers("forward_index", each().map(|item| index(item.forward_index)));
        table.texts("section", each().map(|item| self.section_name(Some(item.section))));
        table.texts("kind", each().map(|item| item.kind.as_str()));
        table.texts("shape", each().map(|item| self.shape(item.shape)));
        table.numbers("bytes", each().map(|item| number(item.bytes)));
        table.rows("instruction", each().map(|item| item.source));
        table.texts("name", each().map(|item| self.name(item.source)));
        let opcode = |row: Row| self.module().opcode_text(row).to_vec();
        table.texts("opcode", each().map(|item| opcode(item.source)));
        table.numbers("weight", each().map(|item| row_or_none(item.weight)));
        let name = |row: Option<Row>| row.map(|row| self.name(row)).unwrap_or_default();
        table.texts("weight_name", each().map(|item| name(item.weight)));
        let widened =
            each().map(|item| item.widened_from.map_or("", |from| from.as_str()).as_bytes());
        table.texts("widened_from", widened.map(<[u8]>::to_vec));
        Origin::new(self.module()).columns(each().map(|item| item.source), &mut table);
        to_list(py, table)
    }

    /// Names and columns of the table of reductions over meshes.
    fn cross_mesh<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let each = || self.found.cross_mesh.iter();
        let mut table = Columns::default();
        table.rows("instruction", each().map(|one| one.row));
        table.texts("name", each().map(|one| self.name(one.row)));
        table.rows("place", each().map(|one| one.place));
        table.texts("place_name", each().map(|one| self.name(one.place)));
        table.texts("section", each().map(|one| self.section_name(one.section)));
        let operation = each().map(|one| one.reduction.as_ref().map(|found| &found.operation));
        table.texts("operation", operation.map(|word| word.cloned().unwrap_or_default()));
        let meshes = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let meshes = each().map(|one| one.reduction.as_ref().map(|found| meshes(&found.meshes)));
        table.texts("meshes", meshes.map(|text| text.unwrap_or_default()));
        table.texts("shape", each().map(|one| self.shape(one.shape)));
        table.numbers("bytes", each().map(|one| number(one.bytes)));
        to_list(py, table)
    }

    /// Names and columns of the table of divisions by the number of micro-batches.
    fn divisions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let each = || self.found.micro_batches.divisions.iter();
        let mut table = Columns::default();
        table.rows("instruction", each().map(|one| one.row));
        table.texts("name", each().map(|one| self.name(one.row)));
        table.rows("constant", each().map(|one| one.constant));
        table.texts("constant_name", each().map(|one| self.name(one.constant)));
        table.reals("divisor", each().map(|one| one.divisor));
        Origin::new(self.module()).columns(each().map(|one| one.row), &mut table);
        to_list(py, table)
    }

    /// How many micro-batches a step has; None if unknown.
    #[getter]
    fn micro_batches(&self) -> Option<u64> {
        self.found.micro_batches.count
    }

    /// What the first forward section gets, and the cheapest cut nearby; None without one.
    fn boundary<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(boundary) = &self.found.boundary else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("section", &self.found.sections[boundary.section as usize].bounds.name)?;
        dict.set_item("received", self.values(py, &boundary.received)?)?;
        dict.set_item("received_bytes", boundary.received_bytes)?;
        dict.set_item("inputs", self.values(py, &boundary.inputs)?)?;
        dict.set_item("input_bytes", boundary.input_bytes)?;
        dict.set_item("flops", boundary.flops)?;
        dict.set_item("is_partial", boundary.is_partial)?;
        let cut = match &boundary.cut {
            None => None,
            Some(cut) => {
                let found = PyDict::new(py);
                found.set_item("after", cut.after.0)?;
                found.set_item("values", self.values(py, &cut.values)?)?;
                found.set_item("bytes", cut.bytes)?;
                found.set_item("moved_flops", cut.moved_flops)?;
                found.set_item("moved_instructions", cut.moved)?;
                Some(found)
            }
        };
        dict.set_item("cut", cut)?;
        Ok(Some(dict))
    }

    /// Bytes of state, stash, copies of weights in that, and the peak of a micro-batch without
    /// the state; None if memory cannot be analysed.
    fn memory(&self) -> Option<(u64, u64, u64, Option<i64>)> {
        let memory = self.found.memory.as_ref()?;
        Some((memory.state, memory.stash, memory.weight_copies, memory.working_peak))
    }
}
