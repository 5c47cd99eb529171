//! Python bindings of hlofast: the only crate that uses PyO3.

mod arrow;
mod attributes;
mod classes;
mod collectives;
mod column;
mod columns;
mod computation;
mod cost;
mod diff;
mod errors;
mod field;
mod heap;
mod held;
mod html;
mod instruction;
mod interrupt;
mod lint;
mod literal;
mod loading;
mod measure;
mod memory;
mod mesh;
mod metadata;
mod module;
mod names;
mod plan;
mod policy;
mod profile;
mod programs;
mod proto;
mod records;
mod remat;
mod restore;
mod scale;
mod scan;
mod scan_rows;
mod select;
mod sequence;
mod shape;
mod sharding;
mod shares;
mod stages;
mod summary;
mod survey;
mod table;
mod table_builder;
mod text_column;
mod time;
mod trace;
mod values;

use pyo3::prelude::*;

/// The compiled part of the package `hlofast`.
// PyO3 would declare that the module needs no interpreter lock. All classes are frozen and results are
// computed behind `OnceLock`, but no free-threaded interpreter has run the tests yet.
#[pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use crate::arrow::{_arrow_array, _arrow_schema, _arrow_stream};
    #[pymodule_export]
    use crate::attributes::Attributes;
    #[pymodule_export]
    use crate::classes::{_register_error_class, _register_module_class};
    #[pymodule_export]
    use crate::collectives::CollectivesData;
    #[pymodule_export]
    use crate::column::Column;
    #[pymodule_export]
    use crate::columns::Columns;
    #[pymodule_export]
    use crate::computation::Computation;
    #[pymodule_export]
    use crate::cost::{_cost, CostData};
    #[pymodule_export]
    use crate::diff::{_diff, DiffData};
    #[pymodule_export]
    use crate::field::{_restore_field, Field};
    #[pymodule_export]
    use crate::instruction::Instruction;
    #[pymodule_export]
    use crate::interrupt::{_temporary, _watch_interrupts};
    #[pymodule_export]
    use crate::lint::{_lint_options, _lint_rules};
    #[pymodule_export]
    use crate::literal::Literal;
    #[pymodule_export]
    use crate::loading::{_find_modules, _load, _loads, _neighbours, _restore_module, FoundModule};
    #[pymodule_export]
    use crate::measure::{_measure, _profile_of_columns, MeasuredData};
    #[pymodule_export]
    use crate::memory::{_memory, _memory_file, _packing, _xla_memory, MemoryData};
    #[pymodule_export]
    use crate::mesh::{_restore_mesh, AxisMatch, Mesh, PartitionSpec};
    #[pymodule_export]
    use crate::metadata::{Metadata, SourceLocation, StackFrame};
    #[pymodule_export]
    use crate::module::Module;
    #[pymodule_export]
    use crate::plan::PlanData;
    #[pymodule_export]
    use crate::policy::PolicyData;
    #[pymodule_export]
    use crate::profile::{
        _is_profile, _load_profile, _profile_runs, ProfileData, ProfileEvent, ProfileEvents,
        ProfileLine, ProfilePlane,
    };
    #[pymodule_export]
    use crate::proto::_proto;
    #[pymodule_export]
    use crate::records::{
        Alias, DimensionLabels, PaddingDimension, SliceDimension, WindowDimension,
    };
    #[pymodule_export]
    use crate::remat::RematData;
    #[pymodule_export]
    use crate::restore::{
        _restore_attributes, _restore_computation, _restore_computations, _restore_instruction,
        _restore_instructions, _restore_metadata, _restore_shape,
    };
    #[pymodule_export]
    use crate::scale::{_scale, ScaleData};
    #[pymodule_export]
    use crate::scan::{
        _concatenated, _scan_part, _scan_table, _scan_words, _survey, _survey_listing,
        _survey_part, ScanData, ScanPart, ScanTable, SurveyData,
    };
    #[pymodule_export]
    use crate::scan_rows::{_of_parquet, _parquet_without, _scan_fields, _scan_rows};
    #[pymodule_export]
    use crate::sequence::{
        ComputationIterator, ComputationSequence, InstructionIterator, InstructionSequence,
    };
    #[pymodule_export]
    use crate::shape::{_restore_layout, Layout, Shape};
    #[pymodule_export]
    use crate::sharding::{ReplicaGroups, Sharding};
    #[pymodule_export]
    use crate::shares::{_devices_together, _shares};
    #[pymodule_export]
    use crate::stages::StagesData;
    #[pymodule_export]
    use crate::table::_instruction_columns;
    #[pymodule_export]
    use crate::text_column::TextColumn;
    #[pymodule_export]
    use crate::time::{_collective_time, _time, TimeData};
    #[pymodule_export]
    use crate::trace::{_trace, TraceData};
    use hlofast::Provenance;
    use hlofast::flow::Phase;
    use hlofast::ir::{CallRole, ElementType, Opcode};
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::classes::register_core(module);
        let py = module.py();
        let opcodes = Opcode::ALL.iter().map(|opcode| opcode.as_str());
        module.add("opcodes", PyTuple::new(py, opcodes)?)?;
        let types = ElementType::ALL.iter().map(|kind| kind.as_str());
        module.add("element_types", PyTuple::new(py, types.collect::<Vec<_>>())?)?;
        let roles = CallRole::ALL.iter().map(|role| role.as_str());
        module.add("phases", PyTuple::new(py, Phase::ALL.map(Phase::as_str))?)?;
        module.add("provenances", PyTuple::new(py, Provenance::ALL.map(Provenance::as_str))?)?;
        let fields = PyTuple::new(py, hlofast::proto::NOT_IN_TEXT)?;
        module.add("protobuf_fields_not_in_text", fields)?;
        let kinds = hlofast::table::Kind::ALL.map(hlofast::table::Kind::as_str);
        module.add("kinds", PyTuple::new(py, kinds)?)?;
        module.add("call_roles", PyTuple::new(py, roles)?)?;
        module.add("_version", env!("CARGO_PKG_VERSION"))?;
        module.add("error_kinds", PyTuple::new(py, crate::errors::kinds())?)
    }
}
