"""Static, offline performance and memory debugger for XLA training steps.

`load(path)` and `loads(text)` read one module, `find_modules(text)` all modules of a page or log,
`from_jax(compiled)` what JAX lowered or compiled, `scan(folder)` everything in dump directories.
"""

from __future__ import annotations

from _collections_abc import Mapping, Sequence

from hlofast._core import (
    Alias,
    Attributes,
    AxisMatch,
    Column,
    Columns,
    Computation,
    ComputationSequence,
    DimensionLabels,
    FoundModule,
    Instruction,
    InstructionSequence,
    Layout,
    Literal,
    Mesh,
    Metadata,
    Module,
    PaddingDimension,
    PartitionSpec,
    ReplicaGroups,
    Shape,
    Sharding,
    SliceDimension,
    SourceLocation,
    StackFrame,
    TextColumn,
    WindowDimension,
    call_roles,
    element_types,
    find_modules,
    load,
    loads,
    opcodes,
    phases,
    protobuf_fields_not_in_text,
    provenances,
)
from hlofast.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast import config, devices, ray
    from hlofast._check import (
        Check,
        Comparison,
        Declaration,
        DeclaredParameter,
        DeclaredValue,
        Expectations,
        Prediction,
        check,
    )
    from hlofast._collectives import Collectives
    from hlofast._cost import Cost, Utilization, register_custom_call, unregister_custom_call
    from hlofast._diff import Diff, diff
    from hlofast._graph import Graph
    from hlofast._history import History, history
    from hlofast._jax import from_jax
    from hlofast._lint import Finding, Findings
    from hlofast._memory import Memory
    from hlofast._programs import fingerprints
    from hlofast._remat import Remat
    from hlofast._report import Report, report
    from hlofast._report.charts import Plot
    from hlofast._scan import Scan, open_dataset, scan
    from hlofast._stages import Stages
    from hlofast._time import Time
    from hlofast._trace import Trace
    from hlofast.table import Table

    __version__: str

__all__ = [
    "Alias",
    "Attributes",
    "AxisMatch",
    "Check",
    "Collectives",
    "Column",
    "Columns",
    "Comparison",
    "Computation",
    "ComputationSequence",
    "Cost",
    "Declaration",
    "DeclaredParameter",
    "DeclaredValue",
    "Diff",
    "DimensionLabels",
    "Expectations",
    "Finding",
    "Findings",
    "FoundModule",
    "Graph",
    "History",
    "Instruction",
    "InstructionSequence",
    "Layout",
    "Literal",
    "Memory",
    "Mesh",
    "Metadata",
    "Module",
    "PaddingDimension",
    "ParseError",
    "PartitionSpec",
    "Plot",
    "Prediction",
    "Remat",
    "ReplicaGroups",
    "Report",
    "Scan",
    "Shape",
    "Sharding",
    "SliceDimension",
    "SourceLocation",
    "StackFrame",
    "Stages",
    "Table",
    "TextColumn",
    "Time",
    "Trace",
    "Utilization",
    "WindowDimension",
    "__version__",
    "call_roles",
    "check",
    "config",
    "devices",
    "diff",
    "element_types",
    "find_modules",
    "fingerprints",
    "from_jax",
    "history",
    "load",
    "loads",
    "opcodes",
    "open_dataset",
    "phases",
    "protobuf_fields_not_in_text",
    "provenances",
    "ray",
    "register_custom_call",
    "report",
    "scan",
    "unregister_custom_call",
]

_OF_CHECK = frozenset(
    """
    Check Comparison Declaration DeclaredParameter DeclaredValue Expectations Prediction check
    """.split()
)

Sequence.register(InstructionSequence)
Sequence.register(ComputationSequence)
Mapping.register(Attributes)
Mapping.register(Columns)


def __getattr__(name: str) -> object:
    value: object
    if name == "__version__":
        from importlib.metadata import version

        value = version("hlofast")
    elif name == "from_jax":
        from hlofast._jax import from_jax as value
    elif name in {"Cost", "Utilization", "register_custom_call", "unregister_custom_call"}:
        from hlofast import _cost

        value = getattr(_cost, name)
    elif name in {"Diff", "diff"}:
        from hlofast import _diff

        value = getattr(_diff, name)
    elif name == "Graph":
        from hlofast import _graph

        value = _graph.Graph
    elif name in {"History", "history"}:
        from hlofast import _history

        value = getattr(_history, name)
    elif name == "fingerprints":
        from hlofast import _programs

        value = _programs.fingerprints
    elif name == "Memory":
        from hlofast import _memory

        value = _memory.Memory
    elif name in {"config", "devices", "ray"}:
        from importlib import import_module

        value = import_module(f"hlofast.{name}")
    elif name in _OF_CHECK:
        from hlofast import _check

        value = getattr(_check, name)
    elif name == "Collectives":
        from hlofast import _collectives

        value = _collectives.Collectives
    elif name in {"Finding", "Findings"}:
        from hlofast import _lint

        value = getattr(_lint, name)
    elif name == "Remat":
        from hlofast import _remat

        value = _remat.Remat
    elif name in {"Report", "report"}:
        from hlofast import _report

        value = getattr(_report, name)
    elif name == "Plot":
        from hlofast._report import charts

        value = charts.Plot
    elif name in {"Scan", "open_dataset", "scan"}:
        from hlofast import _scan

        value = getattr(_scan, name)
    elif name == "Stages":
        from hlofast import _stages

        value = _stages.Stages
    elif name == "Time":
        from hlofast import _time

        value = _time.Time
    elif name == "Trace":
        from hlofast import _trace

        value = _trace.Trace
    elif name == "Table":
        from hlofast import table

        value = table.Table
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
