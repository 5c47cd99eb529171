"""The figures that `WhatIf` compares: of a module, and under another checkpoint policy."""

from __future__ import annotations

from hlofast import _memory, _shares, _what_if_wire

TYPE_CHECKING = False  # Verbs print results; importing typing would slow their start.
if TYPE_CHECKING:
    from typing import Any

    from hlofast._module import Module
    from hlofast._policy import Policy


def figures_of(module: Module) -> dict[str, Any]:
    """Returns the figures of a module by name; None if unknown."""
    memory = _memory.quiet(module)
    known = {fact.name: fact.value for fact in memory.facts}
    if memory.peak_before is not None:
        # What `remat` and `memory` say of the text; peaks in its own order are not those of XLA.
        known |= {"xla_peak": memory.peak_before.peak, "live_peak": None}
    sent = _what_if_wire.sent_by(module).values()
    figures: dict[str, Any] = {
        "xla_peak": known.get("xla_peak"),
        "live_peak": known.get("live_peak"),
        "allocated_in_hbm": known.get("allocated_in_hbm"),
        "flops": module.cost().flops,
        "wire_bytes": None if None in sent else sum(own or 0 for own in sent),
        "step_seconds": None,
        "exposed_seconds": None,
    }
    if module.context.device is not None:
        time = module.time()
        figures["step_seconds"] = time.step_seconds
        figures["exposed_seconds"] = sum(time.exposed.values())
    if _shares.devices_together(module) > 1:
        # The partitioner, which inserts most collectives, has not run yet.
        figures |= {"wire_bytes": None, "exposed_seconds": None}
    return figures


def under(policy: Policy, figures: dict[str, Any]) -> None:
    """Changes the figures of a module to those under a checkpoint policy."""
    as_is = policy._policies.as_compiled
    moved = policy.peak - (figures["xla_peak"] or policy._policies.peak)
    figures["xla_peak"] = policy.peak
    figures["live_peak"] = None
    if figures["allocated_in_hbm"] is not None:
        figures["allocated_in_hbm"] += moved
    new, old = policy.recomputed_flops, as_is.recomputed_flops
    is_known = None not in (new, old, figures["flops"])
    figures["flops"] = figures["flops"] + new - old if is_known else None
    figures["step_seconds"] = policy.step_seconds
    figures["exposed_seconds"] = None
