"""User-defined costs of custom calls: `register_custom_call`."""

from __future__ import annotations

from _collections_abc import Mapping
from operator import index

TYPE_CHECKING = False  # The command line counts costs; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import overload

    from hlofast._core import Instruction
    from hlofast._module import Module

    CustomCallFunction = Callable[[Instruction], Mapping[str, int | None] | None]
    Stated = list[tuple[int, int | None, int | None, int | None, int | None]]

_STATED = ("flops", "transcendentals", "bytes_read", "bytes_written")
_registered: dict[str, CustomCallFunction] = {}


if TYPE_CHECKING:

    @overload
    def register_custom_call(target: str, function: CustomCallFunction) -> CustomCallFunction: ...
    @overload
    def register_custom_call(
        target: str, function: None = None
    ) -> Callable[[CustomCallFunction], CustomCallFunction]: ...


def register_custom_call(
    target: str, function: CustomCallFunction | None = None
) -> CustomCallFunction | Callable[[CustomCallFunction], CustomCallFunction]:
    """Registers the cost of custom calls to `target` for all later `Module.cost` and `Module.time`.

    `function` takes the `Instruction` and returns a mapping with any of `flops`,
    `transcendentals`, `bytes_read` and `bytes_written` (integers, per call), or None to use
    hlofast's own figures. It also works as a decorator:
    `@hlofast.register_custom_call("my_kernel")`. The figures count as modelled. `Module.time`
    takes `flops` as matrix work of a hand-written kernel if two or more operands are matrices.

    Without `flops` the call keeps its unknown cost and stays in `Cost.unpriced`. Without
    `transcendentals`, the call has none. `bytes_read` and `bytes_written` must be given together;
    without them the bytes of operands and results count. `Module.cost` raises `ValueError` for
    unknown figures and for values below 0 or beyond 64 bits, and `TypeError` for values that are
    not integers; both errors name the instruction.
    """
    if function is None:

        def register(function: CustomCallFunction) -> CustomCallFunction:
            return register_custom_call(target, function)

        return register
    _registered[target] = function
    return function


def unregister_custom_call(target: str) -> None:
    """Removes the function for `target`; raises `KeyError` if there is none."""
    del _registered[target]


def stated(module: Module, functions: Mapping[str, CustomCallFunction] | None) -> Stated | None:
    """Returns the costs of custom calls from `functions`, then from registered functions.

    None if there are no functions.
    """
    known = {**_registered, **(functions or {})}
    if not known:
        return None
    rows: Stated = []
    for row in module.where(opcode="custom-call").tolist():
        instruction = module[row]
        function = known.get(instruction.attributes.get("custom_call_target"))
        figures = None if function is None else function(instruction)
        if figures is None:
            continue
        unknown = set(figures) - set(_STATED)
        if unknown:
            raise ValueError(
                f"{instruction.name}: unknown figures {', '.join(sorted(unknown))}; allowed: "
                f"{', '.join(_STATED)}"
            )
        values = [_figure(instruction, name, figures.get(name)) for name in _STATED]
        if (values[2] is None) != (values[3] is None):
            raise ValueError(
                f"{instruction.name}: bytes_read and bytes_written must be given together"
            )
        rows.append((row, values[0], values[1], values[2], values[3]))
    return rows


def _figure(instruction: Instruction, name: str, value: int | None) -> int | None:
    """Returns a figure of a function, checked."""
    if value is None:
        return None
    try:
        number = index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(
            f"{instruction.name}: {name} must be an integer, not {value!r} ({kind})"
        ) from None
    if not 0 <= number < 2**63:
        raise ValueError(f"{instruction.name}: {name} must be from 0 to 2**63 - 1, not {number}")
    return number
