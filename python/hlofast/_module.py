"""`Module` and how one is read: compiled text and columns, and the analyses over them.

Every analysis is a function in the file of its name, which is imported when it is first called: a
program that reads one small dump loads nothing else.
"""

from __future__ import annotations

import os

from hlofast import _core
from hlofast.errors import ParseError

TYPE_CHECKING = False  # Importing typing would take longer than reading a small dump.
if TYPE_CHECKING:
    from collections.abc import Mapping
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
    from hlofast._remat import Remat
    from hlofast._report import Report
    from hlofast._report.charts import Plot
    from hlofast._show import Shown
    from hlofast._stages import Stages
    from hlofast._summary import Summary
    from hlofast._time import Time
    from hlofast._trace import Trace
    from hlofast._verdict import Verdict
    from hlofast.config import EffectiveConfig
    from hlofast.devices import Device
    from hlofast.table import Table


class Module(_core.Module):
    """A parsed HLO module: frozen, a sequence of instructions.

    `hlofast.load`, `loads`, `find_modules` and `from_jax` make modules.
    """

    __slots__ = ()

    @property
    def context(self) -> Context:
        """What is known of the run: what was told, and what the dump and its folder say.

        Analyses take from it what they are not given. See `hlofast.Context`; a `ValueError` if what
        was told is not of this module, like a mesh of another number of devices.
        """
        from hlofast._context import resolved

        return self._context(lambda: resolved(self))

    def with_context(self, context: Context | None = None, /, **changes: Unpack[Told]) -> Module:
        """The same module in another context, or with these changes of what it was told.

        Both share the text and whatever was computed that does not depend on the difference.
        `changes` are arguments of `hlofast.Context`. A `ValueError` for what is not of this module.
        """
        from hlofast._context import Context, told_in

        base = context or told_in(self) or Context()
        changed = Module(self, base.replace(**changes) if changes else base)
        changed.context  # noqa: B018 - what is not of this module is refused here.
        return changed

    def table(self) -> Table:
        """The instruction table: one row per instruction, implied ones included."""
        from hlofast.table import Table

        return Table(_core._instruction_columns(self))

    def summary(self) -> Summary:
        """What the module is: status, backend, signature with bytes, donation, counts.

        See `hlofast.Summary`.
        """
        from hlofast._summary import Summary

        return Summary(self)

    def verdict(
        self, device: str | Device | None = None, *, mesh: MeshLike | None = None
    ) -> Verdict:
        """What comes first: step time, MFU, peak memory, exposed communication, what to change.

        `device` and `mesh` are those of the context unless they are given; figures that need one
        are unknown without it, and notes say what gives them. See `hlofast.Verdict`.
        """
        from hlofast._verdict import verdict

        return verdict(self, device, mesh)

    def show(self, name: str) -> Shown:
        """An instruction or a computation in context: what it is, what it reads, who reads it.

        Of several instructions of one name `COMPUTATION/NAME` is one; a `ValueError` says which
        there are, a `KeyError` that there is none. See `hlofast.Shown`.
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
        """What the module costs: FLOPs, transcendentals and bytes, of every instruction and in all.

        As executed, or with `xla` as XLA's `HloCostAnalysis` counts; `backend` (cpu, gpu, tpu) says
        whose sizes of shapes are meant, the module's own by default; `float32` adds up in XLA's
        order in 32-bit floats. `custom_calls` maps targets to functions that say what calls cost
        (see `hlofast.register_custom_call`), `rules` are pairs of pattern and phase, or a TOML file
        of them. `peak_flops` is what a device could do, in FLOP per second or as
        `"197T"`; without it that of the
        context's device for 16-bit floats is meant. If the context knows how long a step took, the
        facts say how much of the peak it uses.
        """
        from hlofast._context import rules_for
        from hlofast._cost import cost

        rules = rules_for(self, rules)
        return cost(self, xla, backend, float32, custom_calls, rules, peak_flops)

    def matmuls(self, *, rules: Rules | None = None) -> Matmuls:
        """The matrix products and convolutions, one row per instruction and phase.

        These are dots, TPU convolutions that are dots, GEMM calls of libraries and real
        convolutions. `flops` is that of all executions, `flops_once` of one; `rules` as for `cost`.
        Where `is_lower_bound` holds, a loop of unknown trip count counts once. Products of unknown
        size are not here, but in `Matmuls.unknown`.
        """
        return self.cost(rules=rules).matmuls()

    def collectives(
        self, mesh: MeshLike | None = None, *, rules: Rules | None = None
    ) -> Collectives:
        """The collectives: what is sent between devices, along which axes of `mesh`, how often.

        `mesh` may be text like `data=2,model=4`, a mapping or a JAX mesh; without it that of the
        context is used. `rules` as for `cost`. See `hlofast.Collectives`.
        """
        from hlofast._collectives import collectives
        from hlofast._context import mesh_for, rules_for

        return collectives(self, mesh_for(self, mesh), rules_for(self, rules))

    def lint(
        self, mesh: MeshLike | None = None, *, rules: Rules | None = None, **options: float
    ) -> Findings:
        """What a change to the model, its sharding or its checkpoint policy would save.

        Each finding has the instructions that prove it; those with most at stake come first. `mesh`
        and `rules` as for `collectives`; `options` are thresholds, see `hlofast.Findings`.
        """
        from hlofast._context import mesh_for, rules_for
        from hlofast._lint import lint

        return lint(self, mesh_for(self, mesh), rules_for(self, rules), options)

    def remat(
        self,
        hbm: int | str | None = None,
        device: str | Device | None = None,
        *,
        mesh: MeshLike | None = None,
        rules: Rules | None = None,
        rule: str | None = None,
    ) -> Remat:
        """What is computed again for the backward pass, and what is kept for it instead.

        Also what becomes of gathered arrays, and what to compute again so that `hbm` bytes (or
        `"16GiB"`) are enough at the peak, in which time on `device`. The axes are those of `mesh`,
        otherwise of the context's; `rules` as for `cost`; `rule`, by which peaks
        are counted, is one of `memory`'s. See `hlofast.Remat`.
        """
        from hlofast import _context as known
        from hlofast._remat import remat

        budget, chip = known.hbm_for(self, hbm), known.device_for(self, device)
        place, phases = known.mesh_for(self, mesh), known.rules_for(self, rules)
        return remat(self, budget, chip, place, phases, rule)

    def stages(
        self,
        hbm: int | str | None = None,
        device: str | Device | None = None,
        *,
        devices: int = 1,
        most_moved: float | None = None,
    ) -> Stages:
        """What Alpa's pipeline markers cut the module into.

        Sections, what goes from forward to backward, from stage to stage and from mesh to mesh,
        micro-batches, and how many more of them fit into `hbm` bytes (or `"16GiB"`), or those of
        `device`, on each of `devices` devices that share the stage. A cheaper boundary may move at
        most the share `most_moved` of the forward section's FLOPs to the stage before. See
        `hlofast.Stages`.
        """
        from hlofast._context import device_for, hbm_for
        from hlofast._stages import stages

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
        """How long the module takes on `device`: a name (`"tpu-v5p"`) or a `Device`.

        Without `device` that of the context is meant; a `ValueError` says that there is none.
        `mesh` names the axes and says where hosts and slices end: a `hlofast.Mesh`, text like
        `data=2,model=4`, a mapping or a JAX mesh, by default that of the context; without hosts and
        slices all devices are one level. `estimates` is `model`, `roofline` or `compiler`;
        `collectives` is `topology`, `speed-of-light`, `alpa` or measurements (see
        `hlofast.devices.read_measurements`). A `hlofast.devices.UnknownDeviceError` for a name that
        is not known.
        """
        from hlofast._context import mesh_for, required_device
        from hlofast._time import time

        chip = required_device(self, device)
        return time(self, chip, mesh_for(self, mesh), estimates, collectives)

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
        """The simulated schedule on `device` as a trace for timeline viewers.

        It is written to `path` if that is given: its name ends in `.json` (Chrome's Trace Event
        Format) or `.pftrace` (Perfetto's protobuf), and in `.gz` if it is compressed.

        `device`, `mesh`, `estimates` and `collectives` are those of `time`. `iterations` says how
        many iterations of a loop are shown one by one, by default as many as fit well; slices
        shorter than `min_duration` seconds are left out. A `ValueError` for other names, and for a
        step longer than a trace can hold.
        """
        from hlofast._context import mesh_for, required_device
        from hlofast._trace import trace

        chip, place = required_device(self, device), mesh_for(self, mesh)
        return trace(self, path, chip, place, estimates, collectives, iterations, min_duration)

    def graph(
        self,
        computation: str | Computation | None = None,
        *,
        around: Instruction | str | int | None = None,
        depth: int = 2,
        inside: str = "fusions",
    ) -> Graph:
        """Instructions and what they use, to be laid out elsewhere.

        Those of `computation` (a name; by default the entry), or what is at most `depth` operands
        or users away from `around` (an instruction, its row or its name). `inside` says which
        called computations are shown inside their callers: of `fusions`, `all` or `none`. A
        `KeyError` for unknown names.
        """
        from hlofast._graph import graph

        return graph(self, computation, around, depth, inside)

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
        """What is alive when: the peak, the values alive there, the bytes alive at every step.

        `rule` says which values share memory: `in_place` also results and the operands they may
        replace, `values` as XLA's live-range file, `xla` as the account of compiled TPU programs.
        `sizes` are those of the `device` (tiles, padding) or `logical`; `constants` stay to their
        `last_use` or the whole `program`; `space` is a memory space by number or name (hbm, vmem,
        host), or `all`; `schedule` is the text's order, a `post_order`, or a `list` schedule that
        frees memory early; by default the text's. `device` is the TPU for XLA's account:
        a name, or a `hlofast.devices.Device`. A `hlofast.devices.UnknownDeviceError` for a name
        that no device has.
        """
        from hlofast._context import device_for
        from hlofast._memory import memory

        chip = device_for(self, device)
        return memory(self, rule, sizes, constants, space, schedule, chip)

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
        """What differs in `other`, whatever instructions are called there and however ordered.

        What came, went and changed, and what that does to cost, memory and collectives. Without
        `layouts` or `backend_config` those do not count; with `schedule` the order does, where both
        modules are scheduled. `mesh` and `rules` as for `collectives`. See `hlofast.Diff`.
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
        """A page about the module for a browser, and its HTML in a notebook: a `hlofast.Report`.

        `path` is a file to write it to. `device` (a name or a `hlofast.devices.Device`) and `mesh`
        as for `time`; without a device the page says that times are unknown. `config`: a
        `hlofast.Declaration`, a selected config or the path of a TOML declaration, as for
        `hlofast.check`. `plots=False` leaves the charts out; they need bokeh, and the page says
        so where it is missing.
        """
        from hlofast._report import of_module

        return of_module(self, path, device, mesh, config, plots)

    @property
    def plot(self) -> Plot:
        """Charts of the module as bokeh figures.

        These are `memory()`, `roofline()`, `collectives()` and `scopes()`. See `hlofast.Plot`.
        """
        from hlofast._report.charts import Plot

        return Plot(self)


_core._register_error_class(ParseError)
_core._register_module_class(Module)


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
    """The module in the file `path`; compressed files and protobufs are recognised.

    Of a protobuf what the text that XLA prints for it has is read; the fields that text does not
    have are listed in `protobuf_fields_not_in_text`, as pairs of a field and what it is.

    `module` chooses one of several by name or number. `strict=True` accepts what jaxlib 0.10.2
    accepts and decodes every value, `strict="newest"` follows newer XLA; both judge the whole
    text, without looking for a module in it. `on_error="collect"` goes on after a fault: see
    `Module.errors`. `max_bytes` bounds what decompression may give. `threads` is how many threads
    large texts may take, by default one per processor but at most 8; results never depend on it.
    A path with `://` in it is opened by fsspec (the extra `remote`), with `storage_options`.

    `context` is what is known of the run, the arguments of `hlofast.Context`: `mesh`, `device`,
    `hosts`, `slices`, `rules`, `hbm`, `step_seconds`. A `ValueError` for a mesh or a device that is
    not the module's.
    """
    name = os.fspath(path)
    options: dict[str, Any] = {"module": module, "strict": strict, "on_error": on_error}
    options |= {"max_bytes": max_bytes, "threads": threads, "context": _told(context)}
    if "://" not in name:
        return _checked(_core._load(name, **options))
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
    """The module in `text`; the other arguments are those of `load`.

    `path` is what messages call it; `Module.context` looks beside such a file where there is one.
    """
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
    """Every module in `text`, which may be a page, a log or a framed dump.

    The arguments are those of `loads`; the fault of a module that cannot be read stands in its
    place. A context that is not of one of the modules is refused when that is analysed.
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
    """The module, if what was told is of it."""
    if module._told is not None:
        module.context  # noqa: B018 - raises
    return module
