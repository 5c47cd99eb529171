"""`custom_mesh_and_rule`: the file whose mesh and logical axis rules replace those of a run.

MaxText has it since 0.2.1. It reads `custom_mesh_and_rule/NAME.yml` beside its `base.yml` after all
other sources, and takes `mesh_axes`, `logical_axis_rules` and `data_sharding` from it
(`set_derived_and_validate_values` of its `types.py`).
"""

from __future__ import annotations

import os.path

from hlofast._names import meant
from hlofast.config.maxtext import _yaml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast.config._front import Sources
    from hlofast.config.maxtext._settings import Settings

KEY = "custom_mesh_and_rule"
_FOLDER = KEY
_SUFFIX = ".yml"
_REPLACED = ("mesh_axes", "logical_axis_rules", "data_sharding")
_NONE = ("", None)


class Custom:
    """The file that was read for a run, if it names one."""

    __slots__ = ("entries", "name", "place")

    def __init__(
        self, name: Any = "", place: str = "", entries: dict[str, _yaml.Entry] | None = None
    ) -> None:
        self.name = name
        self.place = place
        self.entries = entries or {}


def found(settings: Settings, folders: list[str], sources: Sources) -> Custom:
    """Reads the file that a run names; raises `ConfigError` if there is none.

    `folders` are those of the run's files; the last one is that of `base.yml`.
    """
    name = settings.values.get(KEY)
    if name in _NONE:
        return Custom()
    where = settings.origins[KEY].place
    if not isinstance(name, str):
        raise _yaml.fault("invalid-value", f"{KEY} must be a single value", where)
    known: set[str] = set()
    if settings.known is not None:
        for folder in reversed(folders):
            place = os.path.join(folder, _FOLDER)
            names = _names(place)
            known.update(names)
            if name in names:
                path = os.path.join(place, f"{name}{_SUFFIX}")
                with sources.opened(path) as file:
                    text = file.read(_yaml.MOST_BYTES + 1)
                return Custom(name, path, _yaml.read(text, path))
    if known:
        near = meant(name, known) or ";"
        message = f"no {KEY} {name!r}{near} known: {', '.join(sorted(known))}"
    else:
        message = (
            f"{KEY} {name!r}: its mesh and rules are in a folder {_FOLDER} beside MaxText's "
            "base.yml, which was not found: give that base.yml (--base)"
        )
    raise _yaml.fault("unknown-rule", message, where)


def _names(folder: str) -> set[str]:
    try:
        return {name[: -len(_SUFFIX)] for name in os.listdir(folder) if name.endswith(_SUFFIX)}
    except OSError:
        return set()  # MaxText before 0.2.1 has no such folder; `found` then says what it needs.


def apply(settings: Settings) -> None:
    """Replaces mesh and rules; raises `ConfigError` for a name whose file was not read."""
    from hlofast.config.maxtext._settings import FILE, Origin

    name, custom = settings.values.get(KEY), settings.custom
    if name in _NONE:
        return
    if name != custom.name:
        message = f"{KEY} {name!r} was not read: give it when the config is read"
        raise _yaml.fault("unknown-rule", message, None)
    for key in _REPLACED:
        if key in custom.entries:
            entry = custom.entries[key]
            settings.put(key, entry.value, Origin(FILE, f"{custom.place}:{entry.line}"))
