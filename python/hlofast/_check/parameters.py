"""Compares declared with compiled shardings of parameters, and the resulting bytes."""

from __future__ import annotations

import math

from hlofast._check.comparison import AGREES, ERROR, NOTE, WARNING, Comparison
from hlofast._check.program import Parameter, Program
from hlofast._text import counted, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._check.declaration import Spec

_SHOWN = 5


def shardings(program: Program) -> Iterator[Comparison]:
    """Compares the sharding of each declared parameter.

    Reports missing and undeclared parameters.
    """
    if program.declaration.mesh is None or not program.declaration.parameters:
        return
    for parameter in program.parameters:
        if parameter.declared is not None:
            yield _sharding(program, parameter)
    matched = {id(parameter.declared) for parameter in program.parameters}
    for declared in program.declaration.parameters:
        if id(declared) in matched:
            continue
        is_hidden = any(declared.matches(parameter.path) for parameter in program.parameters)
        reason = (
            "an earlier pattern matches it" if is_hidden else "the program has no such parameter"
        )
        yield Comparison(
            "parameter-missing",
            WARNING,
            declared.pattern,
            spec_text(declared.spec),
            "no such parameter",
            f"no parameter is left for this pattern: {reason}",
        )
    others = [parameter for parameter in program.parameters if parameter.declared is None]
    if others:
        size = sum(parameter.bytes for parameter in others)
        shown = names([parameter.path for parameter in others], most=_SHOWN)
        yield Comparison(
            "parameter-undeclared",
            NOTE,
            counted(len(others), "parameter"),
            "not declared",
            f"{size:,} B",
            f"no pattern matches {shown}",
            size,
            others[0].row,
        )


def _sharding(program: Program, parameter: Parameter) -> Comparison:
    assert parameter.declared is not None
    assert program.declaration.mesh is not None
    rank = len(parameter.dimensions)
    declared = _normal(program, parameter.declared.spec, rank)
    surplus = [axes for axes in parameter.declared.spec[rank:] if axes]
    if surplus:
        return Comparison(
            "parameter-sharding",
            ERROR,
            parameter.path,
            spec_text(parameter.declared.spec),
            counted(rank, "dimension"),
            f"the declared spec has {len(parameter.declared.spec)} entries",
            None,
            parameter.row,
        )
    wanted = declared_bytes(program, parameter)
    sharding = parameter.sharding
    if sharding is None and program.module.num_partitions > 1:
        return Comparison(
            "parameter-sharding",
            NOTE,
            parameter.path,
            spec_text(declared),
            "unknown",
            "the text does not give the sharding of this parameter",
            None,
            parameter.row,
            "unknown",
        )
    spec = None if sharding is None else sharding.spec(program.declaration.mesh)
    if spec is not None and spec.reason is not None:
        return _differs(parameter, declared, f"along no axes: {spec.reason}", wanted)
    dimensions = () if spec is None else spec.dimensions
    entries = tuple(
        () if entry is None else (entry,) if isinstance(entry, str) else entry
        for entry in dimensions
    )
    compiled = _normal(program, entries, rank)
    if compiled == declared:
        return Comparison(
            "parameter-sharding",
            AGREES,
            parameter.path,
            spec_text(declared),
            spec_text(compiled),
            f"{parameter.bytes:,} B on each device",
            0,
            parameter.row,
        )
    return _differs(parameter, declared, spec_text(compiled), wanted)


def _differs(parameter: Parameter, declared: Spec, compiled: str, wanted: int) -> Comparison:
    more = parameter.bytes - wanted
    if more > 0:
        message = f"{parameter.bytes:,} B on each device instead of {wanted:,} B"
    elif more < 0:
        message = f"{parameter.bytes:,} B on each device, less than the {wanted:,} B declared"
    else:
        message = f"a different sharding, with the same {wanted:,} B on each device"
    return Comparison(
        "parameter-sharding",
        ERROR,
        parameter.path,
        spec_text(declared),
        compiled,
        message,
        max(more, 0),
        parameter.row,
    )


def declared_bytes(program: Program, parameter: Parameter) -> int:
    """Bytes of a parameter on one device under the declared sharding."""
    spec = () if parameter.declared is None else parameter.declared.spec
    sizes = program.sizes(parameter)
    padded = (*spec, *[()] * len(sizes))
    parts = (-(-size // program.shards(axes)) for size, axes in zip(sizes, padded, strict=False))
    return -(-math.prod(parts) * parameter.bits // 8)


def _normal(program: Program, spec: Spec, rank: int) -> Spec:
    """`spec` without axes of one device, one entry per dimension."""
    entries = [program.split(axes) for axes in spec[:rank]]
    return tuple(entries + [()] * (rank - len(entries)))


def spec_text(spec: Spec) -> str:
    """A partition spec as JAX writes it."""

    def entry(axes: tuple[str, ...]) -> str:
        if len(axes) == 1:
            return repr(axes[0])
        return repr(axes) if axes else "None"

    if not any(spec):
        return "replicated"
    return f"P({', '.join(entry(axes) for axes in spec)})"
