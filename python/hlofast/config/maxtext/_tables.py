"""The tables of this front: MaxText's defaults and the sizes of its models."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_read: dict[str, dict[str, Any]] = {}


def _table(name: str) -> dict[str, Any]:
    if name not in _read:
        import tomllib

        path = f"{__file__[: -len('_tables.py')]}{name}.toml"
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib would slow the start of the verb
            _read[name] = tomllib.load(file)
    return _read[name]


def defaults() -> dict[str, Any]:
    """Defaults of the keys that figures depend on."""
    values: dict[str, Any] = _table("defaults")["values"]
    return values


def other_versions() -> tuple[str, ...]:
    """Keys that figures depend on and that MaxText has in other versions alone."""
    return tuple(_table("defaults")["other_versions"])


def version() -> str:
    """The commit of MaxText that the defaults were read at."""
    return str(_table("defaults")["commit"])[:12]


def model(name: str) -> dict[str, Any] | None:
    """The keys of a model, or None if the table does not have it."""
    return _table("models").get(name)


def models() -> list[str]:
    """The names of all models of the table."""
    return list(_table("models"))
