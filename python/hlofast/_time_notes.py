"""Notes of `Time`."""

from __future__ import annotations

from hlofast import _text
from hlofast._collectives import MESH_SOURCES
from hlofast._collectives_notes import NO_AXES
from hlofast._context import GIVEN, ran_on, told_in
from hlofast._cost_facts import assumed_flops
from hlofast._device_notes import about_backend, assumed_device
from hlofast._result import Note
from hlofast._shares import note
from hlofast._time_parts import fits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._time import Time


def notes(time: Time) -> Iterator[Note]:
    """The notes, in order."""
    context = time.module.context
    source = context.sources.get("device", GIVEN)
    if source != GIVEN and context.device == time.device:
        yield Note("found-device", f"device taken from {source} next to the dump")
        yield from assumed_device(context)
    yield from about_backend(time.module, time.device)
    told = told_in(time.module)
    if told is not None and told.profile is not None and not ran_on(time.module, time.device):
        yield Note(
            "other-device",
            f"the profile was recorded on another kind of device than {time.device.name}: measured "
            "and modelled times are not of the same machine",
        )
    together = note(time.module)
    if together is not None:
        yield together
        yield Note(
            "one-device",
            "times are for one device that does the work of all devices; the step on several "
            "devices is unknown: give the text after optimisation",
        )
    yield from _unknown(time)
    yield from _unsure(time)
    for source in fits_of(time.device):
        yield Note("calibrated", f"the rates of {time.device.name} are {source}")
    summary = time.module.summary()
    if not time.module.is_scheduled:
        yield Note("unscheduled", "the module is not scheduled: instructions run in text order")
    if summary.is_unfused:
        yield Note("unfused", summary._fewer_bytes)
    if len(time.collectives):
        yield from _about_mesh(time)
    if time.device.backend == "tpu" and time.estimates != "roofline":
        yield Note(
            "compiler-scale",
            "times of instructions other than matmuls and kernels follow the TPU compiler's own "
            "estimates, which are longer than hardware times of HBM-bound instructions; "
            "--estimates roofline gives a lower bound",
        )


OTHER_SLICES = "other slices"
"""The wait for other slices among the axes of exposed time."""


def _unknown(time: Time) -> Iterator[Note]:
    figures, loops = time.unknown, time.open_loops
    if figures:
        yield Note(
            "unknown-figures",
            f"unknown: {', '.join(figures)}; times that need them count as 0 s",
            figures=len(figures),
        )
    if loops:
        yield Note(
            "open-loops",
            f"unknown: trip counts of {_text.names(loops)}, counted as one iteration",
            loops=len(loops),
        )


def _unsure(time: Time) -> Iterator[Note]:
    kernels, branches = time.unpriced, time.assumed_branches
    if kernels:
        count = _text.counted(len(kernels), "instruction")
        yield Note(
            "unpriced",
            f"{count} of unknown work (first: {kernels[0]}), timed by the bytes that they move: "
            "the step is at least this long",
            instructions=len(kernels),
        )
    if branches:
        yield Note(
            "assumed-branches",
            f"{_text.counted(len(branches), 'conditional')}: the longest branch is assumed to run",
            conditionals=len(branches),
        )
    yield from assumed_flops(time.module.cost())
    if not time.module.cost()._data.has_scopes:
        yield Note(
            "recompute-unknown",
            "no instruction has an op_name: recomputation is unknown, so MFU equals HFU",
        )


def _about_mesh(time: Time) -> Iterator[Note]:
    if time.mesh is None:
        yield Note("no-mesh", "mesh unknown: all collectives share one set of links")
    elif time.mesh_source not in (None, GIVEN):
        words = MESH_SOURCES[time.mesh_source or GIVEN]
        yield Note("derived-mesh", f"mesh {time.mesh} is derived from {words}")
    misfits = sum(axes == NO_AXES for axes in time.collectives.values("axes"))
    if misfits:
        yield Note(
            "no-axes",
            f"{_text.counted(misfits, 'collective')} with groups that match no axes of mesh "
            f"{time.mesh}: `hlofast collectives` says why",
            collectives=misfits,
        )
    if not time.has_network and OTHER_SLICES not in time.exposed:
        per_host = time.device.value("chips_per_host")
        if time.device.backend == "gpu" and per_host is not None:
            text = f"hosts unknown: devices are assumed to fill hosts of {per_host} in order"
        else:
            text = "hosts and slices unknown: all devices count as one network level"
        yield Note("one-level", text)
    if OTHER_SLICES in time.exposed:
        yield Note(
            "other-slices",
            "the wait for other slices (slice_wait, from published steps) is added to the "
            "transfers between slices",
        )
