"""Static, offline performance and memory debugger for XLA training steps.

`load(path)` and `loads(text)` read one module, `find_modules(text)` all modules of a page or log,
`from_jax(compiled)` a program that JAX lowered or compiled, `scan(folder)` whole dump directories,
`load_profile(path)` what ran on devices.
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
    PaddingDimension,
    PartitionSpec,
    ProfileEvent,
    ProfileEvents,
    ProfileLine,
    ProfilePlane,
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
    opcodes,
    phases,
    protobuf_fields_not_in_text,
    provenances,
)
from hlofast._module import Module, find_modules, load, loads
from hlofast.errors import ContextError, FragmentError, ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast import config, devices, ray
    from hlofast._calibration import Calibration
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
    from hlofast._context import Context
    from hlofast._cost import Cost
    from hlofast._custom_calls import register_custom_call, unregister_custom_call
    from hlofast._diff import Diff, diff
    from hlofast._graph import Graph
    from hlofast._history import History, history
    from hlofast._jax import from_jax
    from hlofast._lint import Finding, Findings
    from hlofast._matmuls import Matmuls
    from hlofast._memory import Memory
    from hlofast._messages.api import oom
    from hlofast._messages.result import Messages
    from hlofast._policies import Policies
    from hlofast._policy import Policy
    from hlofast._profile import Measured
    from hlofast._profile_summary import ProfileSummary
    from hlofast._profiles import Profile, load_profile
    from hlofast._programs import fingerprints
    from hlofast._remat import Remat
    from hlofast._report import Report, report
    from hlofast._report.charts import Plot
    from hlofast._scan import Scan, open_dataset, scan
    from hlofast._show import Shown
    from hlofast._stages import Stages
    from hlofast._summary import Summary
    from hlofast._time import Time
    from hlofast._trace import Trace
    from hlofast._utilization import Utilization
    from hlofast._verdict import Verdict
    from hlofast._what_if import WhatIf
    from hlofast.table import Table

    __version__: str

__all__ = [
    "Alias", "Attributes", "AxisMatch", "Calibration", "Check", "Collectives", "Column", "Columns",
    "Comparison",
    "Computation", "ComputationSequence", "Context", "ContextError", "Cost", "Declaration",
    "DeclaredParameter", "DeclaredValue", "Diff", "DimensionLabels", "Expectations", "Finding",
    "Findings", "FoundModule", "FragmentError", "Graph", "History", "Instruction",
    "InstructionSequence", "Layout", "Literal", "Matmuls", "Measured", "Memory", "Mesh", "Messages",
    "Metadata", "Module", "PaddingDimension", "ParseError", "PartitionSpec", "Plot", "Policies",
    "Policy", "Prediction",
    "Profile", "ProfileEvent", "ProfileEvents", "ProfileLine", "ProfilePlane", "ProfileSummary",
    "Remat", "ReplicaGroups", "Report", "Scan", "Shape", "Sharding", "Shown", "SliceDimension",
    "SourceLocation", "StackFrame", "Stages", "Summary", "Table", "TextColumn", "Time", "Trace",
    "Utilization", "Verdict", "WhatIf",
    "WindowDimension", "__version__", "call_roles", "check", "config",
    "devices", "diff", "element_types", "find_modules", "fingerprints", "from_jax", "history",
    "load", "load_profile", "loads", "oom", "opcodes", "open_dataset", "phases",
    "protobuf_fields_not_in_text", "provenances", "ray", "register_custom_call", "report", "scan",
    "unregister_custom_call",
]  # fmt: skip

# Imported on first use, so that reading one small dump starts quickly.
_MODULES = frozenset(("config", "devices", "ray"))
_NAMES_BY_MODULE = {
    "_check": "Check Comparison Declaration DeclaredParameter DeclaredValue Expectations "
    "Prediction check",
    "_calibration": "Calibration",
    "_collectives": "Collectives",
    "_context": "Context",
    "_cost": "Cost",
    "_custom_calls": "register_custom_call unregister_custom_call",
    "_diff": "Diff diff",
    "_graph": "Graph",
    "_history": "History history",
    "_jax": "from_jax",
    "_lint": "Finding Findings",
    "_matmuls": "Matmuls",
    "_memory": "Memory",
    "_messages.api": "oom",
    "_messages.result": "Messages",
    "_policies": "Policies",
    "_policy": "Policy",
    "_profile": "Measured",
    "_profile_summary": "ProfileSummary",
    "_profiles": "Profile load_profile",
    "_programs": "fingerprints",
    "_remat": "Remat",
    "_report": "Report report",
    "_report.charts": "Plot",
    "_scan": "Scan open_dataset scan",
    "_show": "Shown",
    "_stages": "Stages",
    "_summary": "Summary",
    "_time": "Time",
    "_utilization": "Utilization",
    "_verdict": "Verdict",
    "_what_if": "WhatIf",
    "_trace": "Trace",
    "table": "Table",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

Sequence.register(InstructionSequence)
Sequence.register(ComputationSequence)
Sequence.register(ProfileEvents)
Mapping.register(Attributes)
Mapping.register(Columns)


def __getattr__(name: str) -> object:
    value: object
    if name == "__version__":
        from importlib.metadata import version

        value = version("hlofast")
    elif name in _MODULE_OF or name in _MODULES:
        from importlib import import_module

        module = import_module(f"hlofast.{_MODULE_OF.get(name, name)}")
        value = module if name in _MODULES else getattr(module, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # The names that this module imports for itself are not offered for completion.
    special = [name for name in globals() if name.startswith("_")]
    return sorted({*special, *__all__, *_MODULES, "errors"})
