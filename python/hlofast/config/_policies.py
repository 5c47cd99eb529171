"""Rematerialisation policies, and the values of a layer that they keep."""

from __future__ import annotations

import re

from hlofast.config._patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hlofast.config._parts import Value

_NAMES = re.compile(r"[A-Za-z_]\w*(\|[A-Za-z_]\w*)*", re.ASCII)
SAVED, OFFLOADED, RECOMPUTED = "saved", "offloaded", "recomputed"


class UnknownPolicyError(ValueError):
    """A policy that is not modelled."""


def _matching(pattern: str) -> Callable[[str], bool]:
    """Whether the whole of a name matches; raises `PatternError` for an invalid pattern."""
    if _NAMES.fullmatch(pattern):
        # Plans have many policies by names, and no automaton is as fast.
        return frozenset(pattern.split("|")).__contains__
    return Pattern(pattern).fullmatch


class Policy:
    """A rematerialisation policy; `fate(value)` is `saved`, `offloaded` or `recomputed`."""

    __slots__ = (
        "_everything", "_has_batched", "_offloaded", "_products", "_saved", "offloads_inputs",
        "text",
    )  # fmt: skip

    def __init__(
        self,
        text: str,
        *,
        saved: str | None = None,
        offloaded: str | None = None,
        products: str | None = None,
        has_batched: bool = True,
        everything: bool = False,
        offloads_inputs: bool = False,
    ) -> None:
        self.text = text
        """A description of the policy."""
        self.offloads_inputs = offloads_inputs
        """Whether it keeps the inputs of layers in host memory."""
        self._saved = None if saved is None else _matching(saved)
        self._offloaded = None if offloaded is None else _matching(offloaded)
        self._products = products
        self._has_batched = has_batched
        self._everything = everything

    @property
    def kept(self) -> set[str]:
        """The fates other than `recomputed` that values may have."""
        saves = self._everything or self._saved is not None or self._products == SAVED
        offloads = self._offloaded is not None or self._products == OFFLOADED
        return {fate for fate, has in ((SAVED, saves), (OFFLOADED, offloads)) if has}

    def fate(self, value: Value) -> str:
        """The fate of `value` if backward needs it."""
        if self._everything:
            # The parts of a whole value are kept, not the value itself.
            return RECOMPUTED if value.is_whole else SAVED
        if value.is_product and self._products is not None:
            return self._products if self._has_batched or not value.is_batched else RECOMPUTED
        if value.name is not None:
            names = (value.name, *value.others)
            # Saving takes precedence over offloading, as in JAX's own policies.
            if self._saved is not None and any(map(self._saved, names)):
                return SAVED
            if self._offloaded is not None and any(map(self._offloaded, names)):
                return OFFLOADED
        return RECOMPUTED


KEEP_EVERYTHING = Policy("no rematerialisation", everything=True)
