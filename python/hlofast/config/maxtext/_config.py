"""`MaxTextConfig`: the effective values of a MaxText run."""

from __future__ import annotations

from hlofast._names import meant
from hlofast.config import _values
from hlofast.config._paths import Attribute
from hlofast.config._tree import SETTINGS, Config, Leaf
from hlofast.config.maxtext import _settings, _yaml
from hlofast.config.maxtext._logged import LoggedFlops, logged
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast.config._paths import Key
    from hlofast.config._tree import Children
    from hlofast.config._values import Value
    from hlofast.config.maxtext._settings import Settings


class MaxTextConfig(Config):
    """The effective values of a MaxText run, each with the place that it comes from.

    Keys are those of `base.yml`; lists read as tuples. `with_value` replaces a value as an argument
    of the command line would, and derives other values again.
    """

    __slots__ = ("_raw", "base_keys", "settings_notes")

    _FRONT = "maxtext"

    def __init__(self, raw: Settings) -> None:
        """Internal: use `hlofast.config.load`."""
        effective = _settings.derived(raw)
        self._raw = raw
        self.base_keys = raw.known
        """The keys of the run's `base.yml`; None without one."""
        self.settings_notes = tuple(effective.notes)
        """Kind, key and text of notes on the values."""
        children: Children = {
            Attribute(key): _node(value, effective.origins[key].line)
            for key, value in sorted(effective.values.items())
        }
        super().__init__(children, path=raw.file)

    def settings(self) -> Table:
        """All effective values, with their origin."""
        effective = _settings.derived(self._raw)
        rows = []
        for key, value in sorted(effective.values.items()):
            origin = effective.origins[key]
            rows.append((key, _yaml.write(value), origin.kind, origin.place))
        return of_rows(SETTINGS, rows)

    def origin(self, key: str) -> tuple[str, str]:
        """The origin of a value and its place: `("override", "dtype=float32")`.

        Raises `KeyError` if the config has no value of that name.
        """
        effective = _settings.derived(self._raw)
        if key not in effective.origins:
            raise KeyError(f"the config has no {key!r}{meant(str(key), effective.origins)}")
        origin = effective.origins[key]
        return origin.kind, origin.place

    def logged_flops(self, *, causal: bool = True) -> LoggedFlops:
        """FLOPs of a step per device as the log of MaxText 0.2.5 prints them.

        A `base.yml` of 0.2.1 or before gets the formulas of these versions, which count half of the
        square of a window, and keys and values that are one as two.

        `causal` counts half of the square of attention, as MaxText does since July 2025 (pull
        request 1988); `False` counts all of it, as it did before. Raises `ValueError` if the values
        do not allow it.
        """
        return logged(self, causal=causal)

    def to_text(self) -> str:
        """All values that are not derived, as YAML."""
        values = sorted(self._raw.values.items())
        lines = [f"{_yaml.key_of(key)}: {_yaml.write(value)}" for key, value in values]
        return "\n".join(lines) + ("\n" if lines else "")

    def _with(self, keys: tuple[Key, ...], value: Value | Config) -> Config:
        key, *rest = keys
        if rest or isinstance(value, Config) or not isinstance(key, str):
            raise KeyError("only whole values of MaxText configs can be replaced")
        raw = self._raw.copy()
        raw.put(str(key), _listed(value), _settings.Origin(_settings.OVERRIDE, "with_value"))
        return MaxTextConfig(raw)

    def without(self, *paths: object) -> Config:
        """The values as a plain config without these; figures need a `MaxTextConfig`."""
        return Config(dict(self._children), path=self._path).without(*paths)

    def __reduce__(self) -> tuple[object, ...]:
        return MaxTextConfig, (self._raw,)


def _node(value: Any, line: int | None) -> Children | Leaf:
    """The node of a value: lists of lists and dictionaries have parts, all else is one value."""
    if isinstance(value, list) and value and all(isinstance(own, list) for own in value):
        return {index: _node(own, line) for index, own in enumerate(value)}
    if isinstance(value, dict) and value:
        return {str(key): _node(own, line) for key, own in value.items()}
    plain = _tupled(value)
    return Leaf(plain, _values.write(plain), line)


def _tupled(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tupled, value))
    return value


def _listed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_listed(own) for own in value]
    return value
