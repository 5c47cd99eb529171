"""All probes in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from .base import Probe

SECTIONS = (
    "lexical",
    "header",
    "tables",
    "structure",
    "instructions",
    "shapes",
    "opcodes",
    "attributes",
    "structured",
    "groups",
    "sharding",
    "literals",
    "semantics",
    "inference",
    "async_sugar",
    "history",
    "newest",
)

def all_probes() -> Iterator[Probe]:
    """Every probe; an id that two probes share is an error of the tables."""
    seen: set[str] = set()
    for section in SECTIONS:
        for probe in import_module(f".{section}", __package__).probes():
            if probe.id in seen:
                raise ValueError(f"two probes share the id {probe.id!r}")
            seen.add(probe.id)
            yield probe
