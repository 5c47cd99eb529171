"""Modules from JAX's lowered and compiled functions; this file never imports JAX."""

from __future__ import annotations

from hlofast._context import Context, misfit, read_mesh
from hlofast._core import Mesh
from hlofast._module import Module, find_modules, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Unpack

    from hlofast._context import Told

_DEEPEST = 64
"""Limit on the levels of containers that are searched for shardings, because a tree may contain
itself.
"""


def from_jax(stage: Any, **context: Unpack[Told]) -> Module:
    """Returns the module of a lowered or compiled JAX function.

    `jax.jit(f).lower(...)` returns the program before optimisation; `.compile()` on it returns the
    optimised program. The mesh is taken from the shardings of a compiled function. `context` holds
    further facts about the run, the arguments of `hlofast.Context`.
    """
    module = _module_of(stage)
    told = Context(**context)
    if told.mesh is None and (mesh := _mesh_of(stage, module)) is not None:
        placed = mesh.placed(hosts=told.hosts, slices=told.slices)
        values = told._values() | {"mesh": placed}
        told = Context._of(values, told.sources | {"mesh": "shardings"})
    return module.with_context(told) if told != Context() else module


def _module_of(stage: Any) -> Module:
    if isinstance(stage, str | bytes):
        raise TypeError("got text: use loads(text)")
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


def _mesh_of(stage: Any, module: Module) -> Mesh | None:
    """The largest mesh in a compiled function's shardings, if it fits the module's devices."""
    largest: Mesh | None = None
    for name in ("input_shardings", "output_shardings"):
        try:
            shardings = getattr(stage, name, None)
        except Exception:  # Backends without shardings raise various errors.
            continue
        for mesh in _meshes(shardings, _DEEPEST):
            if largest is None or mesh.device_count > largest.device_count:
                largest = mesh
    is_fitting = (
        largest is not None and largest.device_count > 1 and misfit(module, largest) is None
    )
    return largest if is_fitting else None


def _meshes(tree: Any, depth: int) -> Iterator[Mesh]:
    """Yields the meshes of the named shardings in nested containers."""
    if depth and isinstance(tree, dict):
        tree = tuple(tree.values())
    if depth and isinstance(tree, tuple | list):
        for branch in tree:
            yield from _meshes(branch, depth - 1)
    elif getattr(getattr(tree, "mesh", None), "axis_names", None):
        try:
            yield read_mesh(tree.mesh)
        except (TypeError, ValueError):
            return


def _only(text: str) -> Module:
    """The first module of `text`; a program may hold one per partition."""
    modules = find_modules(text)
    if len(modules) < 2 or modules[0].module is None:
        return loads(text)
    return modules[0].module
