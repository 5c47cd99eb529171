"""What a profile measured, in verdicts and at the head of pages: beside the modelled figures."""

from __future__ import annotations

from hlofast import _text as output
from hlofast._result import Fact, Note
from hlofast._verdict_figures import Figure, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hlofast._core import Field
    from hlofast._profile import Measured

MODELLED = {
    "measured_step": "step",
    "measured_bound": "bound",
    "measured_mfu": "mfu",
    "measured_hfu": "hfu",
    "measured_exposed": "exposed",
    "measured_exposed_share": "exposed_share",
    "measured_exposed_axes": "exposed_axes",
}
"""Measured facts, and the modelled facts of the same figures."""

_ALONE = ("step", "mfu", "exposed")
"""Modelled facts that are said to be so without measured ones."""


def figures(measured: Measured) -> list[Figure]:
    """Returns the measured step time, MFU, exposed communication and idle time."""
    runs, devices = len(measured.runs), len(measured.devices)
    note = (
        f"measured: median run of {output.counted(runs, 'run')} on "
        f"{output.counted(devices, 'device')}; bound by {measured.bound}"
    )
    step = measured.step_seconds
    found = [Figure("measured_step", "Step time", step, seconds(step), note, "measured")]
    used = measured.utilization
    if used is not None:
        note = f"of the measured step; HFU {output.share(used.hfu, 1)}"
        text = str(output.share(used.mfu, 1))
        how = "bound" if used.is_lower_bound else "measured"
        found.append(Figure("measured_mfu", "MFU", used.mfu, text, note, how))
    waited = measured.exposed_seconds
    note = f"measured: {output.share(waited, step)} of the step"
    if axes := exposed_by_axis(measured):
        note += f": {axes}"
    label = "Exposed communication"
    found.append(Figure("measured_exposed", label, waited, seconds(waited), note, "measured"))
    idle = measured.idle_seconds
    note = f"measured: {output.share(idle, step)} of the step, in which nothing runs"
    found.append(Figure("measured_idle", "Idle", idle, seconds(idle), note, "measured"))
    return found


def renamed(figures: Iterable[Figure]) -> Iterator[Figure]:
    """The figures of a verdict, modelled ones that have a measured one beside them named so."""
    for figure in figures:
        if figure.key in MODELLED.values():
            label = figure.label if figure.label.isupper() else figure.label.lower()
            figure.label = f"Modelled {label}"
            figure.note = figure.note.replace("; modelled, not measured", "")
        yield figure


def exposed_by_axis(measured: Measured) -> str:
    """Returns the exposed communication by mesh axis as text: `data 4.07 ms, model 1.2 ms`."""
    parts = measured.exposed.items()
    return ", ".join(f"{axes} {output.seconds(own)}" for axes, own in parts if own)


def details(measured: Measured, fields: dict[str, Field]) -> Iterator[Fact]:
    """The other measured facts of a verdict."""
    yield Fact(fields["measured_bound"], measured.bound, "measured")
    used = measured.utilization
    if used is not None:
        how = "bound" if used.is_lower_bound else "measured"
        yield Fact(fields["measured_hfu"], used.hfu, how)
    step = measured.step_seconds
    if step and measured.exposed_seconds:
        yield Fact(fields["measured_exposed_share"], measured.exposed_seconds / step, "measured")
        yield Fact(fields["measured_exposed_axes"], exposed_by_axis(measured), "measured")
    if step:
        yield Fact(fields["measured_idle_share"], measured.idle_seconds / step, "measured")


def notes(measured: Measured) -> Iterator[Note]:
    """The notes of `measured` that matter beside modelled figures."""
    for note in measured.notes:
        if note.code == "other-device":
            text = "the profile was recorded on another kind of device than the modelled one"
            yield Note("other-device", text)
        elif note.code != "no-device":
            yield note


def beside(
    facts: Sequence[Fact], fields: Iterable[Field], modelled: Mapping[str, str] = MODELLED
) -> tuple[tuple[str, str], ...]:
    """Returns facts as pairs of label and text, measured and modelled figures on one line each.

    `fields` are those of all possible facts.
    """
    labels = {field.name: field.label for field in fields}
    known = {fact.name: fact for fact in facts}
    step = known.get("measured_step")
    is_measured = step is not None and step.provenance == "measured"
    pairs = {name: own for name, own in modelled.items() if is_measured and name in known}
    shown = []
    for fact in facts:
        if fact.name in pairs.values():
            continue
        text, label = output.known_as(fact), fact.field.label
        other = known.get(pairs.get(fact.name, ""))
        if fact.name in pairs:
            text += " measured"
            if label.startswith("measured"):
                label = labels[pairs[fact.name]]
        elif (
            not label.startswith("Modelled")
            and fact.value is not None
            and fact.name in (modelled.values() if is_measured else _ALONE)
        ):
            text += " modelled"
        if other is not None and other.value is not None:
            comma = ";" if "," in text else ","
            text += f"{comma} {output.known_as(other)} modelled"
        shown.append((label, text))
    return tuple(shown)


def heads(figures: Iterable[Figure]) -> list[tuple[Figure, Figure | None]]:
    """Returns the figures to show, measured ones with the modelled figure of the same kind."""
    known = {figure.key: figure for figure in figures}
    pairs = {name: own for name, own in MODELLED.items() if name in known}
    return [
        (figure, known.get(pairs.get(figure.key, "")))
        for figure in known.values()
        if figure.key not in pairs.values()
    ]
