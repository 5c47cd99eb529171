"""Choices that `Plan.like` takes: read from text, checked, and their parts in one form."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hlofast._names import meant
from hlofast._numbers import is_number
from hlofast.config._plan_meshes import ONE_DEVICE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    Choice = dict[str, float | str]

OWN = "own"
"""The config's own choice: all of it, or its policy alone."""
NUMBERS = ("batch", "accumulation")
"""Sequences of a step per device and accumulation step, and accumulation steps."""
WORDS = ("policy", "state")
_MESH = "mesh"
"""Sizes of axes under one name: a mapping, or text as the column `mesh` of a plan has it."""
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_MOST = 1e9
EXAMPLE = "fsdp=64,tensor=4,policy=full"
_MAPPING = "{'fsdp': 64, 'tensor': 4, 'policy': 'full'}"


class ChoiceError(ValueError):
    """Text or parts that are not a choice, or name what is not known."""


def read_choice(text: str) -> Choice:
    """Reads a choice such as `fsdp=64,policy=full`; raises `ChoiceError` for other text.

    `mesh=` may precede the axes, which `:` may separate: `mesh=data=4:fsdp=16,policy=full`.
    """
    choice: Choice = {}
    last = ""
    parts = [axis for part in text.split(",") for axis in _axes(part.strip())]
    for part in parts:
        key, equals, value = part.strip().partition("=")
        if last == "policy" and key and not equals:
            # Names of policies that the plan lists: `save one two, offload three`.
            choice[last] = f"{choice[last]}, {key}"
            continue
        last = key
        if key in choice:
            raise ChoiceError(f"{key} is given twice")
        if not equals and key == OWN:
            choice[key] = 1
        elif (key in WORDS and value) or (key == _MESH and value == ONE_DEVICE):
            choice[key] = value
        elif key and key != OWN and _NUMBER.fullmatch(value):
            choice[key] = float(value) if "." in value else int(value)
        else:
            raise ChoiceError(f"{part!r} is not NAME=VALUE: write a choice as {EXAMPLE}, or own")
    return choice


def _axes(part: str) -> list[str]:
    """The axes of a part that is a mesh of several devices, else the part."""
    key, equals, mesh = part.partition("=")
    return mesh.split(":") if equals and key == _MESH and mesh != ONE_DEVICE else [part]


def checked(choice: object, axes: Collection[str], devices: int) -> Choice:
    """The parts of a choice on a number of devices, whose mesh has these axes.

    Raises `TypeError` for what is neither text nor a mapping, and `ChoiceError` for parts that are
    not known, or have values that they cannot have.
    """
    if isinstance(choice, str):
        parts: Mapping[Any, Any] = _flat(read_choice(choice), axes)
    elif isinstance(choice, Mapping):
        parts = _flat(choice, axes)
    else:
        message = f"a choice must be a mapping such as {_MAPPING}, or text such as {EXAMPLE!r}"
        raise TypeError(f"{message}, not {choice!r}")
    known = {*axes, *NUMBERS, *WORDS, OWN, _MESH}
    for key in parts:
        if key not in known:
            near = meant(str(key), known) or ";"
            names = ", ".join(sorted(known))
            message = f"{key!r} is not a choice{near} known: {names}; for example {EXAMPLE}"
            raise ChoiceError(message)
    if OWN in parts:
        if len(parts) > 1:
            raise ChoiceError(f"{OWN} is a whole choice: give it alone")
        if not is_number(parts[OWN]) or parts[OWN] != 1:
            message = f"{OWN} is a whole choice: give {{'{OWN}': 1}}, or '{OWN}' as text"
            raise ChoiceError(f"{message}, not {parts[OWN]!r}")
    return {key: _value(key, value, devices) for key, value in parts.items()}


def _flat(choice: Mapping[Any, Any], every: Collection[str]) -> Mapping[Any, Any]:
    """The parts of a choice, with the axes of its mesh among them; `every` are all axes."""
    if _MESH not in choice:
        return choice
    mesh = choice[_MESH]
    axes = mesh
    if isinstance(mesh, str):
        axes = dict.fromkeys(every, 1) if mesh == ONE_DEVICE else read_choice(mesh)
    others = (*NUMBERS, *WORDS, OWN, _MESH)
    # No axes would leave the mesh to the plan, which only a choice without a mesh means.
    if not isinstance(axes, Mapping) or not axes or not axes.keys().isdisjoint(others):
        example = "{'fsdp': 64, 'tensor': 4} or 'fsdp=64,tensor=4'"
        accepted = f"{example}, or {ONE_DEVICE!r}"
        raise ChoiceError(f"{_MESH} must be sizes of axes, such as {accepted}, not {mesh!r}")
    rest = {key: value for key, value in choice.items() if key != _MESH}
    twice = axes.keys() & rest.keys()
    if twice:
        raise ChoiceError(f"{min(twice, key=str)} is given twice")
    return {**axes, **rest}


def _value(key: str, value: Any, devices: int) -> float | str:
    """The value of a part that is known."""
    if key in WORDS:
        if not isinstance(value, str) or not value:
            raise ChoiceError(f"{key} must be a name, not {value!r}")
        return value
    if key == "batch":
        if not is_number(value) or not 0 < value < _MOST:
            raise ChoiceError(f"{key} must be a number of sequences above 0, not {value!r}")
        return float(value) if value != int(value) else int(value)
    most = int(_MOST) if key == "accumulation" else devices
    if not is_number(value) or not 0 < value <= most or value != int(value):
        raise ChoiceError(f"{key} must be a whole number from 1 to {most:,}, not {value!r}")
    return int(value)
