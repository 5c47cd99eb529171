"""Compares how matmuls and attention are computed."""

from __future__ import annotations

from hlofast._check.comparison import AGREES, ERROR, Comparison

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._check.program import Program

_NARROW = ("s8", "u8", "s4", "u4", "f8", "f4")
"""Starts of the element types that quantised matmuls multiply."""


def kinds(program: Program) -> Iterator[Comparison]:
    """The type that matmuls multiply, and whether attention is a kernel."""
    rows = program.module.matmuls().to_pylist()
    if rows:
        yield from _types(program.declaration.matmul_type, rows)
        yield from _attention(program, rows)


def _types(declared: str | None, rows: list[dict[str, Any]]) -> Iterator[Comparison]:
    """Whether matmuls multiply the declared type, or none is quantised."""
    if declared is None:
        return
    wanted = (declared,) if declared else _NARROW
    narrow = [
        row
        for row in rows
        if any(str(row[side]).startswith(wanted) for side in ("lhs_dtype", "rhs_dtype"))
    ]
    if not narrow and not declared:
        return
    told = declared or "not quantised"
    found = f"{len(narrow):,} of {len(rows):,} matmuls"
    severity, message, row = AGREES, f"{found} multiply {declared}", None
    if not declared:
        severity, message = ERROR, f"{found} are quantised"
    elif not narrow:
        severity, message = ERROR, f"{found} multiply {declared}: the program is not quantised"
    if severity == ERROR:
        row = (narrow or rows)[0]["instruction"]
    yield Comparison("matmul-types", severity, "type of matmuls", told, found, message, None, row)


def _attention(program: Program, rows: list[dict[str, Any]]) -> Iterator[Comparison]:
    """Whether attention is a kernel as declared; not compared with kernels of unknown kind."""
    declared = program.declaration.fuses_attention
    if declared is None:
        return
    kernels = [row for row in rows if row["kind"] == "fused_attention"]
    if declared and not kernels and len(program.module.cost()._data.unknown_products()):
        return
    row = kernels[0]["instruction"] if kernels else None
    severity, message = ERROR, "attention runs in a kernel, which keeps no scores"
    if declared == bool(kernels):
        severity, message = AGREES, "as declared"
    elif declared:
        message = "no attention kernel is in the program: it computes scores of all positions"
    words = ("matmuls", "a kernel")
    told, found = words[declared], words[bool(kernels)]
    yield Comparison("attention", severity, "attention", told, found, message, None, row)
