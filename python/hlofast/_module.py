"""`Module`, the functions that read one, and its analyses.

Every analysis is a function in the file of its name, imported on its first call, so that a program
that reads one small dump loads nothing else. `import hlofast._cost as own` takes 0.2 µs on later
calls, `from hlofast._cost import cost` 1.2 µs: Python raises and drops an error each time.
"""

from __future__ import annotations

import os

from hlofast import _core
from hlofast.errors import ParseError

TYPE_CHECKING = False  # Importing typing would take longer than reading a small dump.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal, Unpack

    from hlofast._check import Declaration
    from hlofast._collectives import Collectives
    from hlofast._context import Context, MeshLike, Told
    from hlofast._core import Computation, FoundModule, Instruction
    from hlofast._cost import Cost, Rules
    from hlofast._custom_calls import CustomCallFunction
    from hlofast._diff import Diff
    from hlofast._graph import Graph
    from hlofast._lint import Findings
    from hlofast._matmuls import Matmuls
    from hlofast._measurements import Measurements
    from hlofast._memory import Memory
    from hlofast._profile import Measured
    from hlofast._profiles import Profile
    from hlofast._remat import Remat
    from hlofast._report import Report
    from hlofast._report.charts import Plot
    from hlofast._show import Shown
    from hlofast._stages import Stages
    from hlofast._summary import Summary
    from hlofast._time import Time
    from hlofast._trace import Trace
    from hlofast._verdict import Verdict
    from hlofast._what_if import Sizes, WhatIf
    from hlofast.config import EffectiveConfig
    from hlofast.devices import Device
    from hlofast.table import Table


class Module(_core.Module):
    """A parsed HLO module: an immutable sequence of instructions.

    Created by `hlofast.load`, `loads`, `find_modules` and `from_jax`.
    """

    __slots__ = ()

    @property
    def context(self) -> Context:
        """Facts about the run, passed by the caller or found in the dump folder.

        Analyses use the context for arguments that the caller omits. See `hlofast.Context`. Raises
        `ValueError` if the passed values do not fit the module, such as a mesh with another number
        of devices.
        """
        import hlofast._context as own

        return self._context(lambda: own.resolved(self))

    def with_context(self, context: Context | None = None, /, **changes: Unpack[Told]) -> Module:
        """Returns the same module in another context, or with some values of its context changed.

        Both modules share the text and all results that do not depend on the difference. `changes`
        are arguments of `hlofast.Context`. Raises `ValueError` for values that do not fit the
        module.
        """
        from hlofast._context import Context, told_in

        base = context or told_in(self) or Context()
        changed = Module(self, base.replace(**changes) if changes else base)
        changed.context  # noqa: B018 - raises if the context does not fit the module.
        return changed

    def table(self) -> Table:
        """Returns the instruction table: one row per instruction, including implied ones."""
        from hlofast.table import Table

        return Table(_core._instruction_columns(self))

    def summary(self) -> Summary:
        """Summarises the module: status, backend, signature with bytes, donation, counts.

        See `hlofast.Summary`.
        """
        import hlofast._summary as own

        return own.Summary(self)

    def verdict(
        self, device: str | Device | None = None, *, mesh: MeshLike | None = None
    ) -> Verdict:
        """Returns the verdict: step time, MFU, peak memory, exposed communication, what to change.

        `device` and `mesh` default to the context's. Figures that need a device or a mesh
        are unknown without it, and notes name the missing argument. See `hlofast.Verdict`.
        """
        from hlofast._fragment import refuse
        from hlofast._verdict import verdict

        refuse(self, "the verdict")
        return verdict(self, device, mesh)

    def show(self, name: str) -> Shown:
        """Returns an instruction or a computation in context: definition, operands and users.

        `COMPUTATION/NAME` selects one of several instructions of the same name. Raises `ValueError`
        with the candidates for an ambiguous name, `KeyError` for an unknown one. See
        `hlofast.Shown`.
        """
        from hlofast._show import show

        return show(self, name)

    def cost(
        self,
        *,
        xla: bool = False,
        backend: str | None = None,
        float32: bool = False,
        custom_calls: Mapping[str, CustomCallFunction] | None = None,
        rules: Rules | None = None,
        peak_flops: float | str | None = None,
    ) -> Cost:
        """Counts FLOPs, transcendentals and bytes of every instruction and of the module.

        Counts are as executed; with `xla`, they follow XLA's `HloCostAnalysis`. `backend` (cpu,
        gpu, tpu) selects the backend whose shape sizes count, by default the module's own.
        `float32` adds in XLA's order in 32-bit floats. `custom_calls` maps targets to functions
        that return the cost of a call (see `hlofast.register_custom_call`). `rules` are pairs of
        pattern and phase, or a TOML file of them. `peak_flops` is the peak of a device, in FLOP/s
        or as `"197T"`; by default the 16-bit peak of the context's device. If the context has a
        measured step time, the facts include MFU and HFU.
        """
        import hlofast._context as known
        import hlofast._cost as own

        rules = known.rules_for(self, rules)
        return own.cost(self, xla, backend, float32, custom_calls, rules, peak_flops)

    def matmuls(self, *, rules: Rules | None = None) -> Matmuls:
        """Returns the matmuls and convolutions, one row per instruction and phase.

        These are dots, TPU convolutions that are dots, library GEMM calls and true convolutions.
        `flops` counts all calls, `flops_once` one call; `rules` as for `cost`. Where
        `is_lower_bound` is set, a loop of unknown trip count counts once. Matmuls of unknown size
        are listed in `Matmuls.unknown` instead.
        """
        return self.cost(rules=rules).matmuls()

    def collectives(
        self, mesh: MeshLike | None = None, *, rules: Rules | None = None
    ) -> Collectives:
        """Returns the collectives: payload, mesh axes and call counts.

        `mesh` may be text such as `data=2,model=4`, a mapping or a JAX mesh; by default the
        context's. `rules` as for `cost`. See `hlofast.Collectives`.
        """
        import hlofast._collectives as own
        import hlofast._context as known

        return own.collectives(self, known.mesh_for(self, mesh), known.rules_for(self, rules))

    def lint(
        self, mesh: MeshLike | None = None, *, rules: Rules | None = None, **options: float
    ) -> Findings:
        """Returns findings: changes to the model, its sharding or checkpoint policy, and savings.

        Each finding has the instructions that are its evidence; the most costly come first. `mesh`
        and `rules` as for `collectives`; `options` are thresholds, see `hlofast.Findings`.
        """
        import hlofast._context as known
        import hlofast._lint as own

        return own.lint(self, known.mesh_for(self, mesh), known.rules_for(self, rules), options)

    def remat(
        self,
        hbm: int | str | None = None,
        device: str | Device | None = None,
        *,
        mesh: MeshLike | None = None,
        rules: Rules | None = None,
        rule: str | None = None,
    ) -> Remat:
        """Returns recomputation, residuals and all-gathers of a step, and a rematerialisation plan.

        The plan chooses values to rematerialise so that the peak fits `hbm` bytes (or `"16GiB"`),
        with the time that they take on `device`. Axes are the axes of `mesh`, by default the
        context's. `rules` as for `cost`; `rule`, which counts peaks, as for `memory`. See
        `hlofast.Remat`.
        """
        from hlofast import _context as known
        from hlofast._fragment import refuse
        from hlofast._remat import remat

        refuse(self, "rematerialisation")
        budget, chip = known.hbm_for(self, hbm), known.device_for(self, device)
        place, phases = known.mesh_for(self, mesh), known.rules_for(self, rules)
        return remat(self, budget, chip, place, phases, rule)

    def what_if(
        self,
        *,
        batch: Sizes | None = None,
        sequence: Sizes | None = None,
        layers: Sizes | None = None,
        mesh: MeshLike | None = None,
        policy: str | None = None,
        save: Iterable[int | str] | str = (),
        offload: Iterable[int | str] | str = (),
    ) -> WhatIf:
        """Returns the step with other sizes, a result with a changed module; nothing is compiled.

        Sizes are those of all devices together: a number, or a multiple of the compiled size such
        as `"2x"`, or a mapping from a part of a parameter's name to one of these, if several
        parameters differ; `"128:256"` changes dimensions of inputs with 128 elements, whatever
        role they have. `mesh` gives new sizes of axes that the module's mesh has. `policy`,
        `save` and `offload` are a checkpoint policy, as for `hlofast.Policies.policy`. Raises
        `ValueError` if a size cannot change, with the reason. See `hlofast.WhatIf`.
        """
        from hlofast._fragment import refuse
        from hlofast._what_if import WhatIf

        refuse(self, "a change of sizes")
        given = {"batch": batch, "sequence": sequence, "layers": layers}
        sizes = {role: size for role, size in given.items() if size is not None}
        return WhatIf(self, sizes, mesh, policy, save, offload)

    def stages(
        self,
        hbm: int | str | None = None,
        device: str | Device | None = None,
        *,
        devices: int = 1,
        most_moved: float | None = None,
    ) -> Stages:
        """Returns the pipeline stages that Alpa's markers delimit.

        Sections, residuals from forward to backward, traffic between stages and between meshes,
        micro-batches, and the number of further micro-batches that fit `hbm` bytes (or `"16GiB"`),
        or the memory of `device`, on each of the `devices` devices that share the stage. A cheaper
        boundary may move at most the share `most_moved` of the forward section's FLOPs to the
        previous stage. See `hlofast.Stages`.
        """
        from hlofast._context import device_for, hbm_for
        from hlofast._fragment import refuse
        from hlofast._stages import stages

        refuse(self, "the pipeline stage")
        budget, chip = hbm_for(self, hbm), device_for(self, device)
        return stages(self, budget, chip, devices, most_moved)

    def time(
        self,
        device: str | Device | None = None,
        *,
        mesh: MeshLike | None = None,
        estimates: str = "model",
        collectives: str | Measurements | None = None,
    ) -> Time:
        """Models the step time on `device`, a name (`"tpu-v5p"`) or a `Device`.

        `device` defaults to the context's; raises `ValueError` if neither is known. `mesh` names
        the axes and the boundaries of hosts and slices: a `hlofast.Mesh`, text such as
        `data=2,model=4`, a mapping or a JAX mesh, by default the context's. Without hosts and
        slices all devices form one level. `estimates` is `model`, `roofline` or `compiler`;
        `collectives` is `topology`, `speed-of-light`, `alpa` or measurements (see
        `hlofast.devices.read_measurements`). Raises `hlofast.devices.UnknownDeviceError` for an
        unknown name.
        """
        from hlofast._context import mesh_for, required_device
        from hlofast._fragment import refuse
        from hlofast._time import time

        refuse(self, "the step time")
        chip = required_device(self, device)
        return time(self, chip, mesh_for(self, mesh), estimates, collectives)

    def profile(
        self,
        profile: str | os.PathLike[str] | Profile | None = None,
        *,
        device: str | Device | None = None,
        mesh: MeshLike | None = None,
    ) -> Measured:
        """Returns the time that a profile measured: by instruction, phase, scope, mesh axis.

        `profile` is a profile from `hlofast.load_profile` or its path, by default the context's.
        With a `device`, by default the context's, the result also has modelled time.
        `mesh` as for `collectives`. Raises `ValueError` without a profile, and for a profile whose
        events name no instruction of the module. See `hlofast.Measured`.
        """
        from hlofast._profile import profiled

        return profiled(self, profile, device, mesh)

    def trace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        device: str | Device | None = None,
        mesh: MeshLike | None = None,
        estimates: str = "model",
        collectives: str | Measurements | None = None,
        iterations: int | None = None,
        min_duration: float | str = 0.0,
    ) -> Trace:
        """Returns the simulated schedule on `device` as a trace for timeline viewers.

        With `path` the trace is also written to a file, whose name ends in `.json` (Chrome's Trace
        Event Format) or `.pftrace` (Perfetto's protobuf), followed by `.gz` for compression.

        `device`, `mesh`, `estimates` and `collectives` as for `time`. `iterations` is the number of
        loop iterations that are shown one by one, by default as many as fit. Slices shorter than
        `min_duration` seconds are left out. Raises `ValueError` for other file names, and for a
        step longer than a trace can hold.
        """
        from hlofast._context import mesh_for, required_device
        from hlofast._fragment import refuse
        from hlofast._trace import trace

        refuse(self, "the schedule")
        chip, place = required_device(self, device), mesh_for(self, mesh)
        return trace(self, path, chip, place, estimates, collectives, iterations, min_duration)

    def graph(
        self,
        computation: str | Computation | None = None,
        *,
        around: Instruction | str | int | None = None,
        distance: int = 2,
        inside: str = "fusions",
    ) -> Graph:
        """Returns a graph of instructions for layout tools.

        It has the instructions of `computation` (a name; by default the entry), or the instructions
        at most `distance` operands or users away from `around` (an instruction, its row or its
        name). `inside` selects the called computations that are shown inside their callers:
        computations of `fusions`, `all` or `none`. Raises `KeyError` for unknown names.
        """
        from hlofast._graph import graph

        return graph(self, computation, around, distance, inside)

    def memory(
        self,
        *,
        rule: str = "in_place",
        sizes: str = "device",
        constants: str = "last_use",
        space: int | str | None = None,
        schedule: str | None = None,
        device: str | Device | None = None,
    ) -> Memory:
        """Returns live ranges: the peak, the values live there, the live bytes at every step.

        `rule` selects which values share memory: `in_place` lets results also reuse the buffers of
        operands, `values` follows XLA's live-range file, `xla` the account of compiled TPU
        programs. `sizes` are `device` sizes (tiling, padding) or `logical`. `constants` stay live
        until their `last_use` or for the whole `program`. `space` is a memory space by number or
        name (hbm, vmem, host), or `all`. `schedule` is the `text` order (default) or a
        `post_order`. `device` is the TPU for XLA's memory accounting, a name or a
        `hlofast.devices.Device`. Raises `hlofast.devices.UnknownDeviceError` for an unknown name.
        """
        import hlofast._memory as own

        return own.memory(self, rule, sizes, constants, space, schedule, device)

    def diff(
        self,
        other: Module,
        *,
        layouts: bool = True,
        backend_config: bool = True,
        schedule: bool = False,
        mesh: MeshLike | None = None,
        rules: Rules | None = None,
    ) -> Diff:
        """Compares the module with `other`, regardless of instruction names and order.

        The result has added, removed and changed instructions, and the effect on cost, memory and
        collectives. `layouts=False` and `backend_config=False` ignore layouts and configurations;
        `schedule=True` also compares the order, if both modules are scheduled. `mesh` and `rules`
        as for `collectives`. See `hlofast.Diff`.
        """
        from hlofast._diff import diff

        options: dict[str, Any] = {"layouts": layouts, "backend_config": backend_config}
        return diff(self, other, **options, schedule=schedule, mesh=mesh, rules=rules)

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        device: str | Device | None = None,
        mesh: MeshLike | None = None,
        config: Declaration | EffectiveConfig | str | os.PathLike[str] | None = None,
        plots: bool = True,
    ) -> Report:
        """Returns an HTML page about the module, which notebooks show: a `hlofast.Report`.

        `path` is a file to write it to. `device` and `mesh` are as for `time`; without a device,
        times are unknown. `config` is a `hlofast.Declaration`, a selected config or the path of a
        TOML declaration, as for `hlofast.check`. `plots=False` leaves out the charts, which need
        bokeh.
        """
        from hlofast._fragment import refuse
        from hlofast._report import of_module

        refuse(self, "the report")
        return of_module(self, path, device, mesh, config, plots)

    @property
    def plot(self) -> Plot:
        """Charts of the module: `memory()`, `roofline()`, `collectives()` and `scopes()`.

        Each returns a bokeh figure. See `hlofast.Plot`.
        """
        from hlofast._report.charts import Plot

        return Plot(self)


_core._register_error_class(ParseError)
_core._register_module_class(Module)


def _is_file(text: str) -> bool:
    """Whether a text is the name of a file; names are shorter than PATH_MAX of Linux."""
    return len(text) < 4096 and os.path.isfile(text)  # noqa: PTH113 - pathlib is not loaded.


def load(
    path: str | os.PathLike[str],
    *,
    module: str | int | None = None,
    strict: Literal[False, True, "newest"] | None = None,
    on_error: Literal["raise", "collect"] = "raise",
    max_bytes: int | None = None,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **context: Unpack[Told],
) -> Module:
    """Reads the module in the file `path`; compressed files and protobufs are recognised.

    A protobuf is read like the text that XLA prints for it; `protobuf_fields_not_in_text` lists the
    fields that this text lacks, as pairs of field and description.

    `module` chooses one of several modules by name or number. `strict=True` accepts what jaxlib
    0.10.2 accepts and decodes every value, `strict="newest"` follows newer XLA; both parse the
    whole text as one module instead of searching it for modules. `on_error="collect"` continues
    after a fault: see `Module.errors`. `max_bytes` limits the size of decompressed text. `threads`
    is the number of threads for large texts, by default one per processor up to 8; it does not
    change results. A path with `://` is opened by fsspec (the extra `remote`) with
    `storage_options`.

    A text of instruction lines or computations without a module, as people paste them, is read as
    a fragment (`Module.is_fragment`): line numbers, quote marks, log prefixes and colours are
    removed, and operands that no line defines become placeholders.

    `context` describes the run with the arguments of `hlofast.Context`: `mesh`, `device`, `hosts`,
    `slices`, `rules`, `hbm`, `step_seconds`. Raises `ValueError` for a mesh or device that does not
    fit the module.
    """
    try:
        name = os.fsdecode(path)
    except TypeError as error:
        what = "hlofast.loads reads a text, hlofast.from_jax a lowered or compiled function"
        raise TypeError(f"{error}; {what}") from None
    if "\n" in name:
        raise ValueError("load reads the file at a path, and this is a text; use hlofast.loads")
    options: dict[str, Any] = {"module": module, "strict": strict, "on_error": on_error}
    options |= {"max_bytes": max_bytes, "threads": threads, "context": _told(context)}
    if "://" not in name:
        try:
            return _checked(_core._load(name, **options))
        except IsADirectoryError as error:
            what = "is a folder; hlofast.scan reads dump directories"
            raise IsADirectoryError(error.errno, what, name) from None
    from hlofast import _remote

    return _checked(_core._loads(_remote.read(name, storage_options), path=name, **options))


def loads(
    text: str | bytes | bytearray | memoryview,
    *,
    path: str | None = None,
    module: str | int | None = None,
    strict: Literal[False, True, "newest"] | None = None,
    on_error: Literal["raise", "collect"] = "raise",
    max_bytes: int | None = None,
    threads: int | None = None,
    **context: Unpack[Told],
) -> Module:
    """Reads the module in `text`; further arguments are the arguments of `load`.

    `path` names the text in messages; if it is a file, `Module.context` searches its folder.
    """
    if isinstance(text, str) and _is_file(text):
        raise ValueError(f"loads reads a text, and {text!r} names a file; use hlofast.load")
    made = _core._loads(
        text,
        path=path,
        module=module,
        strict=strict,
        on_error=on_error,
        max_bytes=max_bytes,
        threads=threads,
        context=_told(context),
    )
    return _checked(made)


def find_modules(
    text: str | bytes | bytearray | memoryview,
    *,
    path: str | None = None,
    strict: Literal[False, True, "newest"] | None = None,
    on_error: Literal["raise", "collect"] = "raise",
    max_bytes: int | None = None,
    threads: int | None = None,
    **context: Unpack[Told],
) -> list[FoundModule]:
    """Reads every module in `text`, which may be a web page, a log or a framed dump.

    The arguments are those of `loads`. A module that cannot be read is listed with its error. A
    context that does not fit a module raises an error when that module is analysed.
    """
    return _core._find_modules(
        text,
        path=path,
        strict=strict,
        on_error=on_error,
        max_bytes=max_bytes,
        threads=threads,
        context=_told(context),
    )


def _told(context: Told) -> Context | None:
    if not context:
        return None
    from hlofast._context import context_of

    return context_of(context)


def _checked(module: Module) -> Module:
    """Returns the module; raises `ContextError` if its context does not fit."""
    if module._told is not None:
        module.context  # noqa: B018 - raises
    return module
