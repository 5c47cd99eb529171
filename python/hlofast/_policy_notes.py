"""Notes about checkpoint policies: errors of the figures, and what these do not cover."""

from __future__ import annotations

from hlofast import _policy_fields as fields
from hlofast import _policy_units, devices
from hlofast._policy import EVERYTHING, MAPPED, PLAIN_DOTS
from hlofast._result import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._policies import Policies
    from hlofast._policy import Policy

SIMPLE_LOSS = 0.01
"""By what share of the step a policy of JAX may be slower than the chosen one and be named beside
it: less than the error of modelled steps (`benches/policy_accuracy.py`)."""


def notes(policies: Policies) -> Iterator[Note]:
    """The notes, in order."""
    yield from _of_loops(policies)
    units = _policy_units.note_of(policies)
    if units is not None:
        yield Note("policy-units", units[0], **units[1])
    shared = _policy_units.shared_names(policies)
    if shared is not None:
        yield Note("policy-names", shared[0], peak=shared[1].peak)
    yield from of_errors(policies)
    yield from _of_unknown(policies)
    chosen, hbm = policies.chosen, policies.hbm
    if hbm is not None and chosen is None and policies.peak <= hbm:
        yield Note("fits", "the step fits as compiled, and no checkpoint policy makes it faster")
    if chosen is None or hbm is None:
        return
    if not chosen.fits:
        yield _missing(policies, chosen.peak - hbm)
    elif chosen.peak <= hbm * (1 - policies.margin):
        free = f"{policies.margin:.0%}".replace("%", " %")
        text = f"the chosen policy leaves {free} of the memory free for these errors"
        accepted = fields.ACCEPTED_BEFORE if policies.is_modelled else fields.ACCEPTED
        yield Note("margin", f"{text}: {accepted}")
    else:
        free = f"{1 - chosen.peak / hbm:.1%}".replace("%", " %")
        text = f"the chosen policy leaves only {free} of the memory free for these errors"
        yield Note("tight", f"{text}: it may not fit")
    yield from _simpler(policies, chosen, hbm)
    device = None if policies._remat.device is None else devices.get(policies._remat.device)
    if chosen.on_host and device is not None:
        figures = [device.value("host_bandwidth"), device.source("host_bandwidth")]
        text = fields.MOVING.format(bandwidth=figures[0], source=figures[1])
        yield Note("moving", text)


def _of_loops(policies: Policies) -> Iterator[Note]:
    """What the scan runs over, if that is not layers."""
    text = {"time step": fields.OVER_TIME, "pipeline tick": fields.OVER_TICKS}
    if policies.iteration in text:
        instructions = policies.module.instructions
        row, trips = max(policies._data.loops(), key=lambda own: own[1])
        loop = instructions[row].name
        told = text[policies.iteration].format(loop=loop, trips=trips)
        yield Note("policy-iterations", told, trips=trips)


def of_errors(policies: Policies) -> Iterator[Note]:
    """How far peaks and step times are off, or why step times are unknown."""
    yield Note("policy-error", fields.error_of(policies))
    if policies.step_seconds is None:
        text = fields.NO_SCHEDULE if policies.is_modelled else fields.NO_DEVICE
        yield Note("policy-steps", text)
    elif policies.as_compiled.step_seconds is not None:
        yield Note("policy-steps", fields.STEPS)
        yield Note("policy-steps-error", fields.steps_error_of(policies))
    else:
        yield Note("policy-steps", fields.NO_STEPS)


def _of_unknown(policies: Policies) -> Iterator[Note]:
    """What figures cover, and why other figures, and a policy of JAX, are unknown."""
    own = policies.as_compiled.recomputed_flops if policies._runs_again else 0
    whole = sum(flops or 0 for flops in policies._remat.recomputed.values("flops"))
    together = policies._remat.module.summary().devices_together
    if own is not None and own * together < whole:
        text = fields.OTHER_FLOPS if together == 1 else fields.OTHER_FLOPS_TOGETHER
        text = text.format(whole=whole, own=own, devices=together)
        yield Note("policy-recomputed", text)
    why_not = policies._unknown
    if EVERYTHING in why_not:
        yield Note("policy-everything", why_not[EVERYTHING])
    if PLAIN_DOTS in why_not:
        kinds = policies.savable.values("kind")
        plain = [at for at, kind in enumerate(kinds) if kind == "matmul"]
        mapped = [at for at, kind in enumerate(kinds) if kind == MAPPED]
        low, high = (policies.policy(save=own).peak for own in (plain, plain + mapped))
        text = f"{why_not[PLAIN_DOTS]}: {fields.BETWEEN.format(low=low, high=high)}"
        yield Note("policy-vmap", text, count=len(mapped), low=low, high=high)
    known = [policies.as_compiled, *policies._built_in]
    if any(own.recomputed_flops is None for own in known):
        yield Note("policy-flops", fields.NO_KERNELS)
    if policies.is_modelled and together > 1:
        yield Note("policy-collectives", fields.NO_COLLECTIVES)
    elif any(own.recomputed_wire_bytes is None for own in known):
        yield Note("policy-collectives", fields.NO_WIRE_BYTES)
    elif any(own.recomputed_wire_bytes for own in known):
        yield Note("policy-collectives", fields.WIRE_BYTES)


def _simpler(policies: Policies, chosen: Policy, hbm: int) -> Iterator[Note]:
    """A policy of JAX that fits and is hardly slower than the chosen one, which names values."""
    step = chosen.step_seconds
    if not chosen.fits or step is None or not 0 < step < float("inf"):
        return
    best: Policy | None = None
    for own in policies._built_in:
        if own.name == EVERYTHING or own.step_seconds is None:
            continue
        if own._keeps == chosen._keeps:
            return  # The chosen policy is one of JAX.
        is_close = own.step_seconds <= step * (1 + SIMPLE_LOSS)
        is_faster = best is None or own.step_seconds < (best.step_seconds or step)
        if is_close and is_faster and own.peak <= hbm * (1 - policies.margin):
            best = own
    if best is None or best.step_seconds is None:
        return
    loss = best.step_seconds / step - 1
    is_judged = fields.steps_error_of(policies) != fields.STEPS_NOT_JUDGED
    yield Note(
        "simpler",
        f"{best.name} fits too, without names for values; its step is modelled "
        f"{100 * max(loss, 0.0):.1f} % slower"
        + (", less than the error of modelled steps" if is_judged else ""),
        slower=loss,
    )


def _missing(policies: Policies, missing: int) -> Note:
    """What no policy saves, and what would."""
    table = policies.remedies
    ways = [] if table is None else table.to_pylist()
    figures = {f"by_{row['change']}": row["saved"] for row in ways}
    return Note("no-policy-fits", policies.way_out or "", missing=missing, **figures)
