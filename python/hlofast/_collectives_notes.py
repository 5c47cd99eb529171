"""Notes of `Collectives`."""

from __future__ import annotations

from hlofast import _text
from hlofast._result import Note

NO_AXES = "no axis subset"
"""The `axes` of collectives whose groups match no mesh axes."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._collectives import Collectives


def notes(collectives: Collectives) -> Iterator[Note]:
    """The notes, in order."""
    module = collectives.module
    host = [collectives.module[row].name for row in collectives.host_transfers]
    if (summary := module.summary()).is_whole:
        yield Note(
            "global",
            f"the module is {summary.status}: the partitioner, which inserts most collectives, "
            "has not run yet; the bytes that a device sends in a step are unknown",
        )
    if len(collectives):
        yield from _about_mesh(collectives)
        yield from _about_rows(collectives)
    if host:
        transfers = _text.counted(len(host), "transfer")
        text = f"{transfers} between device and host, not listed here: {_text.names(host)}"
        yield Note("host-transfers", text, transfers=len(host))
    if not module.is_scheduled and any(row is not None for row in collectives.values("done")):
        yield Note(
            "unscheduled",
            "the module is not scheduled: text order may differ from execution order, so overlap "
            "is unknown",
        )


def _about_mesh(collectives: Collectives) -> Iterator[Note]:
    mesh = collectives.mesh
    if mesh is None:
        yield Note(
            "no-mesh",
            "the text names no mesh, so axes are unknown: give one, such as data=2,model=4",
        )
        return
    if not collectives.has_network:
        yield Note(
            "one-level",
            "the mesh does not give the number of hosts or slices, so every axis counts as one "
            "network level",
        )
    if mesh.invented_names:
        yield Note(
            "invented-names",
            "the text does not name the mesh axes: give a mesh such as data=2,model=4",
        )
    if (against := contradiction(collectives)) is not None:
        yield against
    mismatches = collectives.mismatches
    if len(mismatches):
        reasons = ", ".join(sorted(set(mismatches.values("reason"))))
        yield Note(
            "no-axis-subset",
            f"{_counted(mismatches.values('name'))} with groups that match no mesh axes: {reasons}",
            collectives=len(mismatches),
        )


def contradiction(collectives: Collectives) -> Note | None:
    """Returns a note if no collective follows whole axes of a mesh that the caller gave.

    Groups of all devices follow the axes of every mesh, so they do not count.
    """
    mesh, module = collectives.mesh, collectives.module
    if mesh is None or collectives.mesh_source != "given":
        return None
    own = module.mesh()
    columns = (collectives.values(name) for name in ("axes", "group_size"))
    axes = [
        text or ""
        for text, size in zip(*columns, strict=True)
        if 1 < (size or 0) < mesh.device_count
    ]
    if own is None or not axes or not all(":(" in text or text == NO_AXES for text in axes):
        return None
    text = (
        f"no collective follows whole axes of the mesh {mesh}; the text has {own}: is the order or "
        "the size of an axis wrong?"
    )
    return Note("contradicts-mesh", text, collectives=len(axes))


def _about_rows(collectives: Collectives) -> Iterator[Note]:
    rows = collectives.to_pylist()

    def names(of: list[bool]) -> list[str]:
        return list(dict.fromkeys(r["name"] for r, holds in zip(rows, of, strict=True) if holds))

    written = names([row["kind"] != row["written_as"] for row in rows])
    if written:
        yield Note(
            "written-as",
            f"listed by what they do, not by opcode: {_counted(written)}",
            collectives=len(written),
        )
    peeled = _peeled(collectives)
    if peeled:
        words = [
            f"{name} ({'unknown' if inside is None else f'{inside:,}'} inside, {count:,} outside)"
            for name, inside, count in peeled
        ]
        yield Note(
            "peeled",
            f"iterations of {_text.counted(len(peeled), 'collective')} were peeled off the loop: "
            f"{_text.names(words)}",
            collectives=len(peeled),
            peeled=sum(count for _, _, count in peeled),
        )
    lower = names([row["is_lower_bound"] for row in rows])
    if lower:
        yield Note(
            "lower-bound",
            f"{_counted(lower)} in loops of unknown trip count, counted once",
            collectives=len(lower),
        )
    idle = names([row["multiplicity"] == 0 for row in rows])
    if idle:
        yield Note(
            "not-executed",
            f"{_counted(idle)} not executed: in a branch that is not the costliest, in a loop "
            "without iterations, or in a computation that is never called",
            collectives=len(idle),
        )
    inferred = names([row["is_phase_inferred"] for row in rows])
    if inferred:
        yield Note(
            "phase-inferred",
            f"{_counted(inferred)} without an operation name: the phase is that of the user or "
            "producer of the array",
            collectives=len(inferred),
        )
    unknown = names([None in (row["total_wire_bytes"], row["total_payload"]) for row in rows])
    if unknown:
        yield Note(
            "unknown",
            f"{_counted(unknown)} of unknown size or groups, left out of totals",
            collectives=len(unknown),
        )


def _counted(names: list[str]) -> str:
    return f"{_text.counted(len(names), 'collective')} ({_text.names(names)})"


def _peeled(collectives: Collectives) -> list[tuple[str, int | None, int]]:
    """Per collective of a loop: its name, calls inside the loop, and calls peeled off it."""
    inside: dict[str, int | None] = {}
    outside: dict[str, int] = {}
    for row in collectives:
        before, more = inside.get(row["name"], 0), row["multiplicity"]
        inside[row["name"]] = None if before is None or more is None else before + more
        if row["peeled_from"] is not None:
            name = collectives.module[row["peeled_from"]].name
            outside[name] = outside.get(name, 0) + (row["multiplicity"] or 0)
    return [(name, inside.get(name), count) for name, count in outside.items()]
