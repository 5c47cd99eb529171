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
_KERNEL = "fused_attention"


def matmul_types(program: Program) -> Iterator[Comparison]:
    """Whether matmuls multiply the type of the declared quantisation, if any."""
    declared = program.declaration.matmul_type
    if declared is None:
        return
    rows = program.module.matmuls().to_pylist()
    wanted = (declared,) if declared else _NARROW
    narrow = [row for row in rows if _multiplies(row, wanted)]
    if not rows or (not narrow and not declared):
        return
    types = sorted(
        {str(row[side]) for row in narrow or rows for side in ("lhs_dtype", "rhs_dtype")}
    )
    found = ", ".join(own for own in types if own in ("bf16", "f32", "f16") or own[:2] in _NARROW)
    subject, told = "type of matmuls", f"{declared}..." if declared else "not quantised"
    if declared and narrow:
        share = f"{len(narrow):,} of {len(rows):,} matmuls multiply {declared}"
        yield Comparison("matmul-types", AGREES, subject, told, found, share)
        return
    first = (narrow or rows)[0]["instruction"]
    message = (
        f"{len(narrow):,} of {len(rows):,} matmuls are quantised"
        if narrow
        else f"none of {len(rows):,} matmuls multiplies {declared}: the program is not quantised"
    )
    yield Comparison("matmul-types", ERROR, subject, told, found, message, None, first)


def _multiplies(row: dict[str, Any], starts: tuple[str, ...]) -> bool:
    return any(str(row[side]).startswith(starts) for side in ("lhs_dtype", "rhs_dtype"))


def attention(program: Program) -> Iterator[Comparison]:
    """Whether attention is a kernel as declared."""
    declared = program.declaration.fuses_attention
    if declared is None:
        return
    rows = program.module.matmuls().to_pylist()
    kernels = [row for row in rows if row["kind"] == _KERNEL]
    if not rows:
        return
    words = ("matmuls", "a kernel")
    told, found = words[declared], words[bool(kernels)]
    row = kernels[0]["instruction"] if kernels else None
    if declared == bool(kernels):
        yield Comparison("attention", AGREES, "attention", told, found, "as declared", None, row)
        return
    message = (
        "attention runs in a kernel, which keeps no scores"
        if kernels
        else "no attention kernel is in the program: scores of positions by positions are computed"
    )
    yield Comparison("attention", ERROR, "attention", told, found, message, None, row)
