"""Compares declared with compiled shardings of parameters, and the resulting bytes."""

from __future__ import annotations

import math
import re

from hlofast._check.comparison import AGREES, ERROR, NOTE, WARNING, Comparison
from hlofast._check.program import Parameter, Program
from hlofast._text import counted, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._check.declaration import Spec

_SHOWN = 5
_FLOATS = ("f", "bf")
"""How the names of element types of weights begin."""


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
    weights = undeclared_weights(program)
    if weights:
        yield _undeclared(weights, ERROR, "among the weights and their optimizer state, the config "
                          "does not have ")  # fmt: skip
    known = {parameter.row for parameter in weights}
    others = [own for own in program.parameters if own.declared is None and own.row not in known]
    if others:
        yield _undeclared(others, NOTE, "no pattern matches ")


def _undeclared(parameters: list[Parameter], severity: str, why: str) -> Comparison:
    size = sum(parameter.bytes for parameter in parameters)
    return Comparison(
        "parameter-undeclared",
        severity,
        counted(len(parameters), "parameter"),
        "not declared",
        f"{size:,} B",
        f"{why}{names([parameter.path for parameter in parameters], most=_SHOWN)}",
        size,
        parameters[0].row,
    )


def undeclared_weights(program: Program) -> list[Parameter]:
    """Weights, and optimizer state of them, that a declaration of all weights lacks.

    They are floating-point arrays in the same place as declared ones: below the same path, or
    without one, below the same first name.
    """
    if not program.declaration.has_all_weights:
        return []
    places: dict[str, set[str]] = {}
    for parameter in program.parameters:
        if parameter.declared is not None:
            found = re.fullmatch(parameter.declared.pattern, parameter.path)
            place = (found and found.lastindex and found[1]) or ""
            first = parameter.path.removeprefix(place).partition("/")[0]
            places.setdefault(place, set()).add(first)
    return [
        own
        for own in program.parameters
        if own.declared is None and own.dimensions and own.element_type.startswith(_FLOATS)
        and any(
            own.path.startswith(place)
            and (place or own.path.partition("/")[0] in firsts)
            for place, firsts in places.items()
        )
    ]  # fmt: skip


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
