"""Finds the size that explains many differences: batch, sequence, element type or widths.

A step compiled for twice the batch keeps twice the bytes of every value, has twice the FLOPs and
another peak. Only the size that differs is reported, and all other figures are compared with a
declaration of the program's size.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from fractions import Fraction

from hlofast._check.comparison import ERROR, WARNING, Comparison
from hlofast._check.declaration import Prediction, element_bits
from hlofast._check.kept import crossing, kept_values
from hlofast._check.program import Program
from hlofast._context import devices_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._check.declaration import Declaration
    from hlofast._check.program import Parameter

MOST_PAIRS = 3
"""Limit on the differing dimensions that a message lists."""


def differing_sizes(program: Program) -> tuple[list[Comparison], Declaration | None]:
    """The sizes that differ, and the declaration with the sizes of the program.

    The declaration is None if no size differs.
    """
    if not program.is_partitioned:
        return [], None
    findings: list[Comparison] = []
    tokens, ratio = Fraction(1), Fraction(1)
    widths = _widths(program)
    findings += widths
    for finding, factor in _tokens(program):
        findings.append(finding)
        tokens *= factor
    for finding, factor in _element_type(program):
        findings.append(finding)
        ratio *= factor
    if not findings:
        for finding, factor in _common_ratio(program):
            findings.append(finding)
            ratio *= factor
    if not findings:
        return [], None
    if widths:
        return findings, _without_sizes(program)
    return findings, _scaled(program.declaration, tokens, ratio)


def _scaled(declaration: Declaration, tokens: Fraction, ratio: Fraction) -> Declaration:
    """`declaration` with `tokens` times the tokens, in elements `ratio` times as wide."""

    def times(size: int) -> int:
        return int(size * tokens * ratio)

    kept = None
    if declaration.kept is not None:
        kept = tuple(
            dataclasses.replace(value, layer_bytes=times(value.layer_bytes))
            for value in declaration.kept
        )
    carry = declaration.carry_bytes
    predictions = {
        name: prediction
        for name, prediction in declaration.predictions.items()
        # Attention and the peak do not grow with the tokens alone.
        if name == "state_bytes" or (name == "flops" and tokens == 1)
    }
    for name, factor in (("offloaded_bytes", tokens * ratio), ("gathered_bytes", ratio)):
        if name in declaration.predictions:
            known = declaration.predictions[name]
            predictions[name] = Prediction(int(known.value * factor), known.source)
    return dataclasses.replace(
        declaration,
        kept=kept,
        carry_bytes=None if carry is None else times(carry),
        predictions=predictions,
    )


def _without_sizes(program: Program) -> Declaration:
    """The declaration without figures that depend on the sizes of the model."""
    declaration = program.declaration
    pairs = {pair for _, differing in _differing(program) for pair in differing}
    layers = declaration.layers
    if len(pairs) == 1 and {size for size, _ in pairs} == {layers}:
        ((_, layers),) = pairs
    return dataclasses.replace(
        declaration,
        layers=layers,
        kept=None,
        carry_bytes=None,
        predictions={},
        parameters=tuple(
            dataclasses.replace(parameter, shape=None) for parameter in declaration.parameters
        ),
    )


def _times(factor: Fraction) -> str:
    return f"{factor}" if factor.denominator == 1 else f"{float(factor):.4g}"


def _size(
    subject: str, declared: str, compiled: str, message: str, row: int | None = None
) -> Comparison:
    return Comparison("sizes", ERROR, subject, declared, compiled, message, None, row)


def _tokens(program: Program) -> Iterator[tuple[Comparison, Fraction]]:
    """Batch and sequence length of the token inputs, each with its factor, if they differ."""
    declaration = program.declaration
    batch, length = declaration.batch, declaration.sequence
    if batch is None or length is None:
        return
    tokens = _token_input(program, batch, length)
    if tokens is None:
        return
    parameter, rows, columns = tokens
    for name, declared, compiled in (("batch", batch, rows), ("sequence", length, columns)):
        if compiled == declared:
            continue
        factor = Fraction(compiled, declared)
        message = (
            f"{name} {compiled:,} against {declared:,}: every activation takes {_times(factor)} "
            "times the declared bytes; FLOPs and the peak, which follow, are not compared"
        )
        finding = _size(name, f"{declared:,}", f"{compiled:,}", message, parameter.row)
        yield finding, factor


def _token_input(program: Program, batch: int, length: int) -> tuple[Parameter, int, int] | None:
    """The input with tokens, with its sequences on all devices and their length.

    It is an undeclared integer parameter of two dimensions: a parameter with the declared sizes if
    there is one, otherwise the largest.
    """
    mesh = program.declaration.mesh
    compiled = devices_of(program.module)
    slices = 1 if mesh is None else mesh.device_count // compiled
    found: list[tuple[Parameter, int, int]] = []
    for parameter in program.parameters:
        if parameter.declared is not None or len(parameter.dimensions) != 2:
            continue
        if not parameter.element_type.startswith(("s", "u")):
            continue
        rows, columns = program.sizes(parameter)
        tiles = () if parameter.sharding is None else parameter.sharding.tile_dimensions or ()
        if math.prod(tiles) <= compiled:
            # A program for one of several slices has only the sequences of its slice.
            rows *= slices
        # Labels are the tokens after the first.
        columns = length if columns == length + 1 else columns
        found.append((parameter, rows, columns))
    for candidate in found:
        if candidate[1:] == (batch, length):
            return candidate
    return max(found, key=lambda each: each[1] * each[2], default=None)


def _element_type(program: Program) -> Iterator[tuple[Comparison, Fraction]]:
    """The type of most values kept for backward, if it differs from the declared type."""
    declared = program.declaration.dtype
    if declared is None:
        return
    sizes: Counter[str] = Counter()
    first: dict[str, int] = {}
    for kept in crossing(program) or ():
        element = kept.shape.partition("[")[0]
        if element.startswith(("f", "bf")):
            sizes[element] += kept.layer_bytes
            first.setdefault(element, kept.row)
    if not sizes:
        return
    ((compiled, _),) = sizes.most_common(1)
    wide, narrow = element_bits(compiled), element_bits(declared)
    if compiled == declared or wide is None or narrow is None:
        return
    factor = Fraction(wide, narrow)
    message = (
        f"values are computed in {compiled} instead of {declared}: activations and gathered "
        f"weights take {_times(factor)} times the declared bytes; the peak is not compared"
    )
    yield _size("element type", declared, compiled, message, first[compiled]), factor


def _common_ratio(program: Program) -> Iterator[tuple[Comparison, Fraction]]:
    """A factor on the declared bytes that makes all kept values agree.

    None if they agree as declared.
    """
    declaration = program.declaration
    declared = [value.layer_bytes for value in declaration.kept or ()]
    if declaration.carry_bytes:
        declared.append(declaration.carry_bytes)
    compiled = crossing(program)
    # With only one size, any other size would be a multiple of it.
    if len(set(declared)) < 2 or not compiled or _agree(program):
        return
    sizes = {kept.layer_bytes for kept in compiled}
    if any(size in sizes for size in declared):
        return
    for size in sorted(sizes):
        factor = Fraction(size, max(declared))
        if factor == 1 or not 1 / 64 <= factor <= 64:
            continue
        scaled = Program(_scaled(declaration, factor, Fraction(1)), program.module)
        if _agree(scaled):
            message = (
                f"every value that is kept takes {_times(factor)} times the declared bytes: is the "
                "program compiled for the declared batch, sequence length, width and element type?"
            )
            row = next(kept.row for kept in compiled if kept.layer_bytes == size)
            yield (
                _size("kept values", "1 time", f"{_times(factor)} times", message, row),
                factor,
            )
            return


def _agree(program: Program) -> bool:
    return all(each.severity not in (ERROR, WARNING) for each in kept_values(program))


def _differing(program: Program) -> list[tuple[Parameter, set[tuple[int, int]]]]:
    """Parameters whose shape is not the declared one: declared and compiled dimensions."""
    found = []
    for parameter in program.parameters:
        declared = None if parameter.declared is None else parameter.declared.shape
        compiled = program.compiled_sizes(parameter)
        if declared is None or compiled is None or len(declared) != len(compiled):
            continue
        pairs = {
            (size, other)
            for size, other in zip(declared, compiled, strict=True)
            # Shards of uneven dimensions are padded.
            if other < size or 2 * other > 3 * size
        }
        if pairs:
            found.append((parameter, pairs))
    return found


def _widths(program: Program) -> list[Comparison]:
    """Dimensions of parameters that differ from the declared shapes: one comparison or none."""
    differing = _differing(program)
    if not differing:
        return []
    pairs = Counter(pair for _, own in differing for pair in own)
    ((first, _), *_) = pairs.most_common(1)
    shown = [f"{other:,} instead of {size:,}" for (size, other), _ in pairs.most_common(MOST_PAIRS)]
    known = [each for each in program.parameters if each.declared and each.declared.shape]
    is_layers = {size for size, _ in pairs} == {program.declaration.layers}
    message = (
        f"{len(differing):,} of {len(known):,} parameters have dimensions of {', '.join(shown)}; "
        "kept values, gathered bytes, FLOPs and the peak, which follow, are not compared"
    )
    subject = "layers" if is_layers else "width"
    row = differing[0][0].row
    return [_size(subject, f"{first[0]:,}", f"{first[1]:,}", message, row)]
