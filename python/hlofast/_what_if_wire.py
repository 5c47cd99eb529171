"""Wire bytes of `WhatIf` by mesh axes, and what of them the text decides."""

from __future__ import annotations

from hlofast import _what_if_decided
from hlofast._core import Field
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._module import Module
    from hlofast._what_if import WhatIf

    Sent = dict[str | None, int | None]

_AXES = (
    Field("text", "axes", "The mesh axes along which collectives run.", nullable=True),
    Field("bytes", "before", "Wire bytes as compiled.", nullable=True),
    Field(
        "bytes",
        "after",
        "Wire bytes after the change; unknown if the compiler may choose other collectives.",
        nullable=True,
    ),
    Field("ratio", "ratio", "After divided by before.", nullable=True),
    Field(
        "bytes",
        "decided",
        "Wire bytes after the change of the collectives that the text decides; the others add to "
        "them.",
        label="at least",
        nullable=True,
    ),
    Field(
        "bytes",
        "modelled",
        "Wire bytes after the change if the compiler makes the collectives that are modelled.",
        nullable=True,
    ),
    Field(
        "text",
        "undecided",
        "Why the other collectives are not decided; the notes explain the terms.",
        nullable=True,
    ),
)


def sent_by(module: Module) -> Sent:
    """Returns the bytes that each device sends in a step, by mesh axes."""
    table = module.collectives().by("axes")
    return dict(zip(table.values("axes"), table.values("total_wire_bytes"), strict=True))


def after(result: WhatIf) -> Sent:
    """By mesh axes: bytes of each device if all collectives but those of lookups stay."""
    sent = sent_by(result.changed)
    table = result.changed.collectives()
    axes_of = dict(zip(table.values("name"), table.values("axes"), strict=True))
    if (lookups := result._lookups) is not None:
        for name, axes in axes_of.items():
            if (size := sent.get(axes)) is not None:
                sent[axes] = size - lookups.removed.get(name, 0)
        for axes, size in lookups.sent.items():
            known = sent.get(axes, 0)
            sent[axes] = None if known is None else known + size
    for axes, size in _exchanged(result):
        if (known := sent.get(axes)) is not None:
            sent[axes] = known + size
    rings = result._rings
    for name, size in rings.removed.items():
        axes = axes_of[name]
        if (known := sent.get(axes)) is not None:
            sent[axes] = known - size
    for axes, size in rings.sent.items():
        if (known := sent.get(axes, 0)) is not None:
            sent[axes] = known + size
    for name, padding in result._padding.more.items():
        if (lookups is None or name not in lookups.removed) and name not in rings.removed:
            for axes, size in padding:
                known = sent.get(axes, 0)
                sent[axes] = None if known is None else known + size
    sent = {axes: size for axes, size in sent.items() if size != 0}
    if result.policy is not None:
        for policy, sign in ((result.policy, 1), (result.policy._policies.as_compiled, -1)):
            for row in policy.recomputed_collectives:
                axes, own = row["axes"], row["wire_bytes"]
                known = sent.get(axes, 0)
                sent[axes] = None if None in (own, known) else known + sign * own
    return sent


def _exchanged(result: WhatIf) -> Iterator[tuple[str | None, int]]:
    """By all-to-all: mesh axes, and bytes that the changed text lacks.

    One sends as much as it receives: where no dimension of its operand could be attributed, its
    result says how much.
    """
    changed, module, lookups = result.changed, result.module, result._lookups
    known = lookups.removed if lookups is not None else {}
    for row in changed.collectives()._ordered():
        if row["kind"] != "all-to-all" or row["written_as"] != "all-to-all":
            continue
        if row["name"] in known:
            continue
        own = changed.instructions[row["name"]]
        operand = own.operands[0].shape
        if len(own.operands) != 1 or not own.shape.bytes or own.shape.bytes == operand.bytes:
            continue
        if operand.dimensions == module.instructions[row["name"]].operands[0].shape.dimensions:
            total = row["total_wire_bytes"] or 0
            yield row["axes"], total * own.shape.bytes // (operand.bytes or 1) - total


def by_axes(result: WhatIf) -> Table:
    """Returns wire bytes by mesh axes, before and after."""
    before, sent = sent_by(result.module), after(result)
    open_bytes, reasons = _open(result)
    # Another choice of these may send along any axes.
    anywhere = _what_if_decided.ANYWHERE.intersection(result.undecided.values())
    names = sorted({*before, *sent}, key=lambda own: (-(sent.get(own) or 0), str(own)))
    rows = []
    for axes in names:
        old, new = before.get(axes, 0), sent.get(axes, 0)
        decided = None if new is None else new - open_bytes.get(axes, 0)
        if anywhere:
            reasons.setdefault(axes, set()).update(anywhere)
        if result.policy is not None:
            reasons[axes], decided = {_what_if_decided.POLICY}, None
        modelled = None if result.policy is not None else new
        if axes in reasons:
            new = None
        ratio = new / old if old and new is not None else None
        why = ", ".join(sorted(reasons.get(axes, ()))) or None
        rows.append((axes, old, new, ratio, decided, modelled, why))
    return of_rows(_AXES, rows)


def _open(result: WhatIf) -> tuple[dict[str | None, int], dict[str | None, set[str]]]:
    """By mesh axes: the bytes that are not decided, and why."""
    open_bytes: dict[str | None, int] = {}
    reasons: dict[str | None, set[str]] = {}
    lookups = result._lookups
    removed = lookups.removed if lookups is not None else {}
    rings = result._rings
    for axes, size in rings.sent.items():
        open_bytes[axes] = size
        reasons[axes] = {_what_if_decided.MATMUL}
    for row in result.changed.collectives()._ordered() if result.undecided else ():
        reason = result.undecided.get(row["name"])
        if reason is not None:
            axes, size = row["axes"], row["total_wire_bytes"] or 0
            if row["name"] in rings.removed:
                continue
            open_bytes[axes] = open_bytes.get(axes, 0) + size - removed.get(row["name"], 0)
            reasons.setdefault(axes, set()).add(reason)
            if row["name"] not in removed:
                for where, more in result._padding.more.get(row["name"], ()):
                    open_bytes[where] = open_bytes.get(where, 0) + more
    if lookups is not None:
        for axes in lookups.padded if lookups.is_sure else lookups.sent:
            open_bytes[axes] = open_bytes.get(axes, 0) + lookups.sent.get(axes, 0)
        for axes in lookups.padded:
            reasons.setdefault(axes, set()).add(_what_if_decided.PADDING)
    return open_bytes, reasons
