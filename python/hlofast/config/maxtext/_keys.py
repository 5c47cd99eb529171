"""The keys that MaxText takes: those of its `base.yml`, and since 0.2 further fields of its config.

MaxText 0.2 stops at a key that no class of its `types.py` has (`_prepare_for_pydantic` of its
`pyconfig.py`); `base.yml` 0.2.5 lacks 165 of these fields. Before, all keys were in `base.yml`.
"""

from __future__ import annotations

import os.path
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._front import Sources

_TYPES = "types.py"
"""The file beside `base.yml` that declares the fields."""
_FIELD = re.compile(rb"^  ([A-Za-z_]\w*)[ ]*:", re.M)
"""A field of a class, which MaxText's sources indent by two spaces."""
_MOST_BYTES = 1 << 22
"""Limit on the size of that file; that of 0.2.5 has 0.3 MB."""


class Keys:
    """The keys of a run whose `base.yml` is at hand."""

    def __init__(self, base: frozenset[str], folder: str | None, sources: Sources) -> None:
        self.base = base
        """Those of `base.yml`."""
        self._folder = folder
        self._sources = sources
        self._fields: frozenset[str] | None = None

    def __contains__(self, key: str) -> bool:
        return key in self.base or key in self._others()

    @property
    def is_whole(self) -> bool:
        """Whether the fields are known too."""
        return bool(self._others())

    def _others(self) -> frozenset[str]:
        """The fields of `types.py`; none if it is not there."""
        if self._fields is None:
            self._fields = frozenset()
            if self._folder is not None:
                try:
                    with self._sources.opened(os.path.join(self._folder, _TYPES)) as file:
                        text = file.read(_MOST_BYTES)
                except (OSError, ValueError):
                    text = b""  # MaxText 0.1 has no such file; then `base.yml` has all keys.
                self._fields = frozenset(own.decode() for own in _FIELD.findall(text))
        return self._fields
