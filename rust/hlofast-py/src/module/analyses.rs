//! The analyses of a module: each is a function in the Python file of its name.

use super::Module;
use crate::mesh::Mesh;
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What `function` of the Python module `module` says to `arguments`.
fn call<'py>(
    slf: &Bound<'py, Module>,
    module: &str,
    function: &str,
    arguments: impl PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    slf.py().import(module)?.getattr(function)?.call1(arguments)
}

#[pymethods]
impl Module {
    /// What the module is: status, backend, signature with bytes, donation, counts; `shapes` is
    /// how many of the largest shapes to list.
    #[pyo3(signature = (*, shapes=10))]
    fn summary<'py>(&self, py: Python<'py>, shapes: usize) -> PyResult<Bound<'py, PyDict>> {
        crate::summary::summary(py, &self.held, shapes)
    }

    /// The mesh that the text speaks of: its source, and whether the names of the axes are in the
    /// text, are in the result. None if nothing in it names several devices.
    fn mesh(&self, py: Python<'_>) -> Option<Mesh> {
        py.detach(|| self.held.stage.derived_mesh().cloned()).map(Mesh::from)
    }

    /// What the module costs: FLOPs, transcendentals and bytes, of every instruction and in all.
    ///
    /// As executed, or with `xla` as XLA's `HloCostAnalysis` counts; `backend` (cpu, gpu, tpu) says
    /// whose sizes of shapes are meant, the module's own by default; `float32` adds up in XLA's
    /// order in 32-bit floats. `custom_calls` maps targets to functions that say what calls cost
    /// (see `hlofast.register_custom_call`), `rules` are pairs of pattern and phase, or a TOML file
    /// of them.
    #[pyo3(signature = (*, xla=false, backend=None, float32=false, custom_calls=None, rules=None))]
    fn cost<'py>(
        slf: &Bound<'py, Self>,
        xla: bool,
        backend: Option<&str>,
        float32: bool,
        custom_calls: Option<&Bound<'py, PyAny>>,
        rules: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(slf, "hlofast._cost", "cost", (slf, xla, backend, float32, custom_calls, rules))
    }

    /// The matrix products and convolutions: dots, TPU convolutions that are dots, GEMM calls of
    /// libraries and real convolutions, one row per instruction and phase in which it is executed.
    /// `flops` is that of all executions, `flops_once` of one; `rules` as for `cost`. Where
    /// `is_lower_bound` is 1, a loop of unknown trip count counts once. Products of unknown size
    /// are not here, but in `Cost.unknown_products`.
    #[pyo3(signature = (*, rules=None))]
    fn matmuls<'py>(
        slf: &Bound<'py, Self>,
        rules: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::cost(slf, false, None, false, None, rules)?.call_method0("matmuls")
    }

    /// The collectives: what is sent between devices, along which axes of `mesh`, by which
    /// instructions and how often. Without `mesh` the axes are those of the mesh that the text
    /// speaks of, if it does; `rules` as for `cost`. See `hlofast.Collectives`.
    #[pyo3(signature = (mesh=None, *, rules=None))]
    fn collectives<'py>(
        slf: &Bound<'py, Self>,
        mesh: Option<&Bound<'py, PyAny>>,
        rules: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(slf, "hlofast._collectives", "collectives", (slf, mesh, rules))
    }

    /// Findings: what a change to the model, its sharding or its checkpoint policy would save, with
    /// the instructions that prove it, those with most at stake first. `mesh` and `rules` as for
    /// `collectives`; `options` are thresholds, see `hlofast.Findings`.
    #[pyo3(signature = (mesh=None, *, rules=None, **options))]
    fn lint<'py>(
        slf: &Bound<'py, Self>,
        mesh: Option<&Bound<'py, PyAny>>,
        rules: Option<&Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(slf, "hlofast._lint", "lint", (slf, mesh, rules, options))
    }

    /// What is computed again for the backward pass, what is kept for it instead, and what becomes
    /// of gathered arrays; and what to compute again so that `hbm` bytes (or `"16GiB"`) are enough
    /// at the peak, in which time on `device`. The axes are those of `mesh`, otherwise of the mesh
    /// that the text speaks of; `rules` as for `cost`; `rule`, by which peaks are counted, is one of
    /// `memory`'s. See `hlofast.Remat`.
    #[pyo3(signature = (hbm=None, device=None, *, mesh=None, rules=None, rule=None))]
    fn remat<'py>(
        slf: &Bound<'py, Self>,
        hbm: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        mesh: Option<&Bound<'py, PyAny>>,
        rules: Option<&Bound<'py, PyAny>>,
        rule: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(slf, "hlofast._remat", "remat", (slf, hbm, device, mesh, rules, rule))
    }

    /// What Alpa's pipeline markers cut the module into: sections, what goes from forward to
    /// backward, from stage to stage and from mesh to mesh, micro-batches, and how many more of
    /// them fit into `hbm` bytes (or `"16GiB"`), or those of `device`, on each of `devices` devices
    /// that share the stage. A cheaper boundary may move at most the share `most_moved` of the
    /// forward section's FLOPs to the stage before. See `hlofast.Stages`.
    #[pyo3(signature = (hbm=None, device=None, *, devices=1, most_moved=None))]
    fn stages<'py>(
        slf: &Bound<'py, Self>,
        hbm: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        devices: i64,
        most_moved: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(slf, "hlofast._stages", "stages", (slf, hbm, device, devices, most_moved))
    }

    /// How long the module takes on `device`: a name (`"tpu-v5p"`), or a `hlofast.devices.Device`.
    ///
    /// `mesh` names the axes and says where hosts and slices end: a `hlofast.Mesh`, text like
    /// `data=2,model=4` or a mapping; without hosts and slices all devices are one level, without
    /// `mesh` the one that the text speaks of is used. `estimates` is `model`, `roofline` or
    /// `compiler`; `collectives` is `topology`, `speed-of-light`, `alpa` or measurements (see
    /// `hlofast.devices.read_measurements`). A `hlofast.devices.UnknownDeviceError` for a name that
    /// is not known.
    #[pyo3(signature = (device, *, mesh=None, estimates="model", collectives=None))]
    fn time<'py>(
        slf: &Bound<'py, Self>,
        device: &Bound<'py, PyAny>,
        mesh: Option<&Bound<'py, PyAny>>,
        estimates: &str,
        collectives: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(slf, "hlofast._time", "time", (slf, device, mesh, estimates, collectives))
    }

    /// The simulated schedule on `device` as a trace for timeline viewers, written to `path` if that
    /// is given: its name ends in `.json` (Chrome's Trace Event Format) or `.pftrace` (Perfetto's
    /// protobuf), and in `.gz` if it is compressed.
    ///
    /// `device`, `mesh`, `estimates` and `collectives` are those of `time`. `iterations` says how
    /// many iterations of a loop are shown one by one, by default as many as fit well; slices
    /// shorter than `min_duration` seconds are left out. A `ValueError` for other names, and for a
    /// step longer than a trace can hold.
    #[pyo3(signature = (path=None, *, device, mesh=None, estimates="model", collectives=None, iterations=None, min_duration=0.0))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python method")]
    fn trace<'py>(
        slf: &Bound<'py, Self>,
        path: Option<&Bound<'py, PyAny>>,
        device: &Bound<'py, PyAny>,
        mesh: Option<&Bound<'py, PyAny>>,
        estimates: &str,
        collectives: Option<&Bound<'py, PyAny>>,
        iterations: Option<&Bound<'py, PyAny>>,
        min_duration: f64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = (slf, path, device, mesh, estimates, collectives, iterations, min_duration);
        call(slf, "hlofast._trace", "trace", arguments)
    }

    /// Instructions and what they use, to be laid out elsewhere: those of `computation` (a name; by
    /// default the entry), or what is at most `depth` operands or users away from `around` (an
    /// instruction, its row or its name). `inside` says which called computations are shown inside
    /// their callers: of `fusions`, `all` or `none`. A `KeyError` for unknown names.
    #[pyo3(signature = (computation=None, *, around=None, depth=2, inside="fusions"))]
    fn graph<'py>(
        slf: &Bound<'py, Self>,
        computation: Option<&Bound<'py, PyAny>>,
        around: Option<&Bound<'py, PyAny>>,
        depth: i64,
        inside: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(slf, "hlofast._graph", "graph", (slf, computation, around, depth, inside))
    }

    /// What is alive when: the peak, the values alive there, the bytes alive at every step.
    ///
    /// `rule` says which values share memory: `in_place` also results and the operands they may
    /// replace, `values` as XLA's live-range file, `xla` as the account of compiled TPU programs.
    /// `sizes` are those of the `device` (tiles, padding) or `logical`; `constants` stay to their
    /// `last_use` or the whole `program`; `space` is a memory space by number or name (hbm, vmem,
    /// host), or `all`; `schedule` is the text's order, a `post_order`, or a `list` schedule that
    /// frees memory early; by default the text's. `device` is the TPU for XLA's account:
    /// a name, or a `hlofast.devices.Device`. A `hlofast.devices.UnknownDeviceError` for a name
    /// that no device has.
    #[pyo3(signature = (*, rule="in_place", sizes="device", constants="last_use", space=None, schedule=None, device=None))]
    fn memory<'py>(
        slf: &Bound<'py, Self>,
        rule: &str,
        sizes: &str,
        constants: &str,
        space: Option<&Bound<'py, PyAny>>,
        schedule: Option<&str>,
        device: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(
            slf,
            "hlofast._memory",
            "memory",
            (slf, rule, sizes, constants, space, schedule, device),
        )
    }

    /// What differs in `other`, whatever instructions are called there and in whatever order they
    /// stand: what came, went and changed, and what that does to cost, memory and collectives.
    /// Without `layouts` or `backend_config` those do not count; with `schedule` the order does,
    /// where both modules are scheduled. `mesh` and `rules` as for `collectives`. See
    /// `hlofast.Diff`.
    #[pyo3(signature = (other, *, layouts=true, backend_config=true, schedule=false, mesh=None,
        rules=None))]
    fn diff<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, Self>,
        layouts: bool,
        backend_config: bool,
        schedule: bool,
        mesh: Option<&Bound<'py, PyAny>>,
        rules: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(
            slf,
            "hlofast._diff",
            "compare",
            (slf, other, layouts, backend_config, schedule, mesh, rules),
        )
    }

    /// A page about the module for a browser, and its HTML in a notebook: a `hlofast.Report`.
    ///
    /// `path` is a file to write it to. `device` (a name or a `hlofast.devices.Device`) and `mesh`
    /// as for `time`; without a device the page says that times are unknown. `config`: a
    /// `hlofast.Declaration`, a selected config or the path of a TOML declaration, as for
    /// `hlofast.check`. `plots=False` leaves the charts out; they need bokeh, and the page says
    /// so where it is missing.
    #[pyo3(signature = (path=None, *, device=None, mesh=None, config=None, plots=true))]
    fn report<'py>(
        slf: &Bound<'py, Self>,
        path: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        mesh: Option<&Bound<'py, PyAny>>,
        config: Option<&Bound<'py, PyAny>>,
        plots: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(slf, "hlofast._report", "of_module", (slf, path, device, mesh, config, plots))
    }

    /// Charts of the module as bokeh figures: `memory()`, `roofline()`, `collectives()`,
    /// `scopes()`. See `hlofast.Plot`.
    #[getter]
    fn plot<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        call(slf, "hlofast._report.charts", "Plot", (slf,))
    }
}
