"""Scopes, phases and specs of texts in messages, by the rules for modules.

The texts are put into small modules of their own, so that names are split, phases recognised and
shardings read by the same code as those of programs.
"""

from __future__ import annotations

from hlofast._messages.classes import without_parameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hlofast._context import Context
    from hlofast._core import Mesh, Sharding

MOST = 4_096
"""Operation names that are read; the largest allocations come first in every message."""


def places(
    names: Sequence[str | None], context: Context | None
) -> list[tuple[str | None, str | None]]:
    """Returns scope and phase of operation names; None for a lack."""
    from hlofast._module import loads

    found: list[tuple[str | None, str | None]] = [(None, None)] * len(names)
    rows, lines = [], []
    for number, name in enumerate(names[:MOST]):
        if name is None or not _is_plain(name):
            continue
        rows.append(number)
        lines.append(
            f'  v{number} = f32[] custom-call(), custom_call_target="x", '
            f'metadata={{op_name="{without_parameters(name)}"}}'
        )
    if not rows:
        return found
    lines[-1] = lines[-1].replace("  v", "  ROOT v", 1)
    text = "HloModule m\n\nENTRY e {\n" + "\n".join(lines) + "\n}\n"
    try:
        module = loads(text)
        if context is not None:
            module = module.with_context(
                rules=context.rules, merge_layers=context.merge_layers, libraries=context.libraries
            )
        table = module.memory().values()
    except ValueError:
        return found
    columns = (table.values(column) for column in ("name", "scope", "phase"))
    for own, scope, phase in zip(*columns, strict=True):
        found[int(own[1:])] = scope, None if phase == "unattributed" else phase
    return found


def _is_plain(name: str) -> bool:
    return name.isprintable() and '"' not in name and "\\" not in name and len(name) < 16_000


def sharding(text: str | None, shape: str | None) -> tuple[Sharding | None, int | None]:
    """Reads a sharding of an array, and the bytes of the array; None for what cannot be read."""
    from hlofast._module import loads

    if text is None:
        return None, None
    own = f", sharding={text}" if text.startswith(("{", "[")) else ""
    for array in (shape, "f32[1]"):
        if array is None:
            continue
        try:
            module = loads(f"HloModule m\n\nENTRY e {{\n  ROOT p = {array} parameter(0){own}\n}}\n")
            instruction = module["p"]
            size = instruction.shape.bytes if array is shape else None
            return instruction.sharding, size
        except (ValueError, KeyError):
            continue
    return None, None


def spec(own: Sharding | None, mesh: Mesh | None) -> str | None:
    """Returns a sharding in the axis names of a mesh; None without a mesh or if they do not fit."""
    if own is None or mesh is None:
        return None
    try:
        found = own.spec(mesh)
    except ValueError:
        return None
    return None if found.reason is not None else str(found)


def whole_shape(shape: str | None, own: Sharding | None) -> str | None:
    """Returns the shape of the whole array for that of one device; None if it cannot be told.

    Dimensions that are not a multiple of their tiles are rounded up on the devices, so the result
    is exact or too large.
    """
    from hlofast._messages.classes import dimensions, element_type

    if shape is None or own is None:
        return None
    sizes, tiles = dimensions(shape), own.tile_dimensions
    if tiles is None:
        whole = sizes if own.kind in ("replicated", "maximal") else None
    else:
        is_of_it = len(tiles) == len(sizes)
        whole = tuple(a * b for a, b in zip(sizes, tiles, strict=True)) if is_of_it else None
    if whole is None:
        return None
    return f"{element_type(shape)}[{','.join(map(str, whole))}]"
