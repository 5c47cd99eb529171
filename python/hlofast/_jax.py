"""Modules straight from JAX, which this file never imports."""

from __future__ import annotations

from typing import Any

from hlofast._core import find_modules, loads
from hlofast._module import Module


def from_jax(stage: Any) -> Module:
    """The module of a lowered or compiled JAX function.

    `jax.jit(f).lower(...)` gives the program before optimisation, `.compile()` on it the one after.
    """
    if isinstance(stage, str | bytes):
        raise TypeError("this is text: use loads(text)")
    if hasattr(stage, "runtime_executable"):
        text = stage.as_text()
        if text is None:
            raise ValueError("this backend does not show the text of compiled programs")
        return _only(text)
    if hasattr(stage, "compiler_ir"):
        return _only(stage.compiler_ir(dialect="hlo").as_hlo_text())
    if hasattr(stage, "lower"):
        raise TypeError("not lowered yet: pass f.lower(arguments), or f.lower(arguments).compile()")
    if hasattr(stage, "as_hlo_text"):
        return _only(stage.as_hlo_text())
    if hasattr(stage, "to_string"):
        return _only(stage.to_string())
    raise TypeError(f"expected what jax.jit(f).lower(...) returns, got {type(stage).__name__}")


def _only(text: str) -> Module:
    """The module of `text`, the first of several (a program may hold one per partition)."""
    found = find_modules(text)
    if len(found) < 2 or found[0].module is None:
        return loads(text)
    return found[0].module
