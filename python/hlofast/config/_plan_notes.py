"""Notes of a plan: why nothing fits, what would, and what limits the plan."""

from __future__ import annotations

from hlofast._result import Note
from hlofast._text import names
from hlofast._verdict_figures import short_bytes
from hlofast.config import _instances, _plan_meshes, _torus
from hlofast.config._memory import state
from hlofast.config._plan import HOST_SHARE, STATE, Searched
from hlofast.config._time import JUDGED

_SPREAD = 1.25
"""Bytes of the state on all devices over those of one copy, above which not all devices shard it:
weights that stay whole, such as norms, are a small part."""
_NARROW = "bfloat16"
"""The type of weights and moments that is proposed where the state is what takes most."""


def notes_of(searched: Searched, refusal: str | None, ties: list[Note]) -> tuple[Note, ...]:
    """Why nothing fits, and what limits the plan.

    `refusal` is why the config's own choice is not compared, `ties` are the notes on choices that
    are as good as the best.
    """
    notes = []
    if not searched.best:
        cut = searched.cut_at is not None
        among = f" among the {_plan_meshes.MOST_MESHES:,} meshes that are searched" if cut else ""
        most = max(searched.excluded.values(), key=lambda own: own.candidates, default=None)
        if most is None or most.why in searched.unmodelled:
            why = searched.gap if most is None else most.reason
            if most is None and searched.sizes.dropped:
                why = f"no mesh of {searched.devices:,} devices divides the weights and the batch"
            text = f"no choice can be planned{among}; {why or 'no axis of the mesh is modelled'}"
        else:
            text = f"no choice fits{among}; mostly: {most.reason}{_way_out(searched)}"
        notes.append(Note("nothing-fits", text))
        if searched.excluded or searched.sizes.dropped:
            notes += _batches(searched)
    notes += overridden(searched)
    unchecked = [row for row in searched.effective.notes if row["kind"] == "not-checked"]
    notes += [Note("not-checked", row["text"]) for row in unchecked]
    if searched.best and searched.untimed is not None:
        text = (
            f"step times are not modelled: {searched.untimed}; choices are ranked without it, "
            "as if matmuls ran at the rate of bfloat16"
        )
        notes.append(Note("untimed", text))
    elif searched.device.name not in JUDGED:
        text = f"the step model was not evaluated on {searched.device.name}"
        notes.append(Note("judged", text))
    if searched.best and searched.best[0].candidate.is_split:
        notes.append(Note("splits-torus", searched.front.split))
    if refusal is not None:
        text = f"the config's own choice is not compared: {refusal}"
        notes.append(Note("own-choice", text))
    notes += ties
    notes += _slices(searched)
    if searched.best and searched.best[0].candidate.state.values:
        text = (
            "rounding of weights and moments to a narrower type is not modelled: updates "
            "below the type's precision are lost, which may change the training"
        )
        notes.append(Note("state-types", text))
    left = searched.unmodelled_axes
    if left:
        text = f"no size is chosen for mesh axes that are not modelled: {names(left)}"
        notes.append(Note("mesh", text))
    if (cut_at := searched.cut_at) is not None:
        text = (
            f"only {_plan_meshes.MOST_MESHES:,} meshes are searched: all with fewer than "
            f"{cut_at} axes above 1, and not all with {cut_at}"
        )
        notes.append(Note("mesh", text))
    if any(own.host for own in searched.best[:1]):
        text = (
            f"offloaded values may take {HOST_SHARE:.0%} of the host memory of a device, which "
            "is assumed; their moves are assumed to overlap with the work of all layers"
        )
        notes.append(Note("host", text))
    return tuple(notes)


def overridden(searched: Searched) -> list[Note]:
    """What a plan takes in place of what the name of the instance says."""
    instance, kind = searched.effective.instance, searched.device.name
    given = _instances.overridden(instance, searched.devices)
    notes = [] if given is None else [Note("overridden", given)]
    if instance.device not in (None, kind):
        text = f"figures are those of {kind}, but the name says {instance.device}"
        notes.append(Note("overridden", text))
    return notes


def _way_out(searched: Searched) -> str:
    """What the choice that takes least is short of, and what would make it fit."""
    least = {own.reason: own.least for own in searched.excluded.values() if own.least}
    # Where the state fits on some mesh, it is not what is short.
    whole = {reason: own for reason, own in least.items() if reason != STATE}
    if not least:
        return ""
    needed, mesh = min((whole or least).values())
    narrow = None
    if len(searched.states) == 1:
        narrow = searched.narrowing(_NARROW)
    more = "" if narrow is None else f"; {narrow} would fit (--state-dtype {_NARROW})"
    if not whole:
        everything = sum(state(searched.implied({}))[:3])
        if needed * searched.devices > _SPREAD * everything:
            return (
                f". The state takes {short_bytes(needed)} or more per device ({mesh}): no size of "
                f"an axis that divides the weights shards it further{more}"
            )
        devices = -(-needed * searched.devices // searched.usable)
        return (
            f". The state takes {short_bytes(needed)} or more per device ({mesh}): "
            f"{devices:,} or more such devices could hold it{more}"
        )
    return (
        f". A device needs {short_bytes(needed)} or more ({mesh}), of "
        f"{short_bytes(searched.usable)} usable: more devices or shorter sequences need less{more}"
    )


def _batches(searched: Searched) -> list[Note]:
    """The nearest batches that every mesh divides, if the given one leaves out meshes."""
    given, devices = searched.sequences, searched.devices
    if given is None or given % devices == 0:
        return []
    below = given // devices * devices
    near = [f"{own:,}" for own in (below, below + devices) if own]
    text = (
        f"{given:,} sequences of a step do not divide on all meshes of {devices:,} devices; "
        f"{' or '.join(near)} do (--batch)"
    )
    return [Note("batch", text)]


def _slices(searched: Searched) -> list[Note]:
    """Whether there are slices, or whole nodes, with so many devices."""
    instance = searched.effective.instance
    nodes = _instances.broken_nodes(instance, searched.devices)
    # The nodes of an instance are of its own kind of device.
    if nodes is not None and searched.device.name == instance.device:
        return [Note("slice", nodes)]
    chips = int(searched.devices / searched.devices_per_chip / searched.slices)
    text = _torus.no_slice(searched.device.name, chips)
    if text is None:
        return []
    most = _torus.largest(searched.device.name) or chips
    if chips > most:
        slices = -(-searched.devices // int(searched.devices_per_chip * most))
        text += f": plan {slices:,} slices (--slices {slices})"
    return [Note("slice", text, chips=most)]
