"""What the version of MaxText decides, as its `base.yml` shows it: by the keys that it has.

Keys by version, from the `base.yml` of each wheel, 0.1.0 and 0.2.0 to 0.2.5. Without a `base.yml` a
run is one of the newest version, 0.2.5, unless a function says otherwise.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._tree import Config


def has(config: Config, key: str) -> bool:
    """Whether the run's version has a key; true without a `base.yml`."""
    known: frozenset[str] | None = getattr(config, "base_keys", None)
    return known is None or key in known
