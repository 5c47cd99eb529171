"""The timed work of hlofast and of XLA on a module."""

from collections.abc import Callable
from typing import Any

import hlofast

DEVICES = {"tpu": "tpu-v5p", "gpu": "h100", "cpu": "h100", None: "h100"}
"""A device with all figures for each backend; `time` refuses a device of another backend."""
FIGURES = ("flops", "transcendentals", "bytes_read", "bytes_written", "multiplicity")
ATTRIBUTES = ("phase", "scope")


def plain(data: bytes) -> Any:
    return hlofast.loads(data, threads=1)


def with_columns(data: bytes) -> Any:
    """Parses and derives every column, including users."""
    module = hlofast.loads(data, threads=1)
    for name in module.columns:
        module.columns[name]
    return module


def strict(data: bytes) -> Any:
    """Parses, decoding and checking every attribute."""
    return hlofast.loads(data, threads=1, strict=True)


def decoded(data: bytes) -> Any:
    """A module with users and attributes (op_name, source file and line) decoded, as in XLA's
    modules, but without costs, because a module keeps computed costs.
    """
    module = hlofast.loads(data)
    module.cost(xla=True)
    _ = module.columns.op_name
    return module


def count(module: Any) -> Any:
    """FLOPs, transcendentals, bytes by memory space, multiplicities, as arrays and totals."""
    cost = module.cost()
    return cost, [cost.columns[name] for name in FIGURES], cost.memory_spaces


def attribute(module: Any) -> Any:
    """The same, and phase, scope and source of every instruction."""
    cost, figures, spaces = count(module)
    sources = module.columns.source_file, module.columns.source_line
    return cost, figures, spaces, [cost.columns[name] for name in ATTRIBUTES], sources


def device_for(data: bytes) -> str:
    return DEVICES[hlofast.loads(data).summary().backend]


def step(module: Any, device: str) -> Any:
    """Results of `collectives`, `time` and `lint`; `module` must be fresh."""
    return module.collectives(), module.time(device=device), module.lint()


def peak(module: Any) -> Any:
    """Live ranges, live bytes at every step, and the peak."""
    memory = module.memory()
    return memory.live_peak, memory.timeline


def xla_parser() -> Callable[[str], Any]:
    """XLA's parser, as jaxlib ships it."""
    from jaxlib import _hlo

    parse: Callable[[str], Any] = _hlo.hlo_module_from_text
    return parse


def xla_cost_analysis() -> Callable[[Any], dict[str, float]]:
    """XLA's HloCostAnalysis with the sizes of its CPU client, which needs jaxlib but not JAX."""
    from jaxlib import _jax, xla_client

    client = xla_client.make_cpu_client()
    return lambda module: _jax.hlo_module_cost_analysis(client, module)
