"""Sections of `Cost`."""

from __future__ import annotations

from hlofast import _text
from hlofast._core import Field
from hlofast._matmuls import instructions_of, key_field
from hlofast._result import Section
from hlofast._shares import every, shares
from hlofast._shares import sections as device_sections
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from hlofast._cost import Cost

KEYS = ("phase", "scope", "source", "source_file", "opcode", "dtype", "computation")
"""Keys of totals."""
_FLOPS_SHARE = Field(
    "ratio", "flops_share", "Share of the total FLOPs.", label="share", nullable=True
)
_BYTES_SHARE = Field(
    "ratio", "bytes_share", "Share of the total bytes.", label="share", nullable=True
)
_NOT_EXACT = Field(
    "ratio",
    "not_exact",
    "Share of the row's FLOPs that are not exact: modelled, from a library's configuration, or in "
    "loops of unknown trip count.",
    nullable=True,
)
_EXECUTED_ONLY = (
    Field("bytes", "bytes_read", "Bytes read from memory space 0.", nullable=True),
    Field("bytes", "bytes_written", "Bytes written to memory space 0.", nullable=True),
    Field("bytes", "other_bytes_read", "Bytes read from other spaces.", nullable=True),
    Field("bytes", "other_bytes_written", "Bytes written to other spaces.", nullable=True),
    Field("flops", "exact_flops", "FLOPs that are known exactly.", nullable=True),
)
"""Columns that a count as XLA does lacks."""
_SHOWN = (
    "key", "instructions", "flops", "flops_share", "not_exact", "transcendentals", "bytes_accessed",
    "bytes_share", "measured_seconds",
)  # fmt: skip
_PROVENANCE = (
    Field("word", "provenance", "Provenance of the FLOPs."),
    Field("flops", "flops", "FLOPs of this provenance.", label="FLOP", adds_up=True),
    _FLOPS_SHARE,
)
_COMPARED = (
    Field("word", "figure", "The figure compared."),
    Field("number", "executed", "The figure as executed.", label="as executed"),
    Field("number", "xla", "The figure of XLA's HloCostAnalysis.", label="XLA"),
    Field(
        "ratio",
        "share",
        "XLA's figure over the figure as executed.",
        label="XLA / executed",
        nullable=True,
    ),
)
_LOOPS = ("name", "trip_count", "multiplicity", "provenance", "reason")
_BRANCHES = ("name", "branch", "computation", "is_counted", "flops", "bytes_accessed")


def sections(
    cost: Cost, by: str, depth: int, explain: bool, *, all_of_them: bool = False
) -> Iterator[Section]:
    """The sections that have rows, or all sections."""
    counted_once = " (counted once)" if cost.xla else ""
    yield _groups(cost, by, depth)
    yield Section("loops", f"Loops{counted_once}", _loops(cost), _LOOPS)
    branches = cost.branches
    yield Section("branches", "Branches, one execution each", branches, _BRANCHES)
    if not cost.xla:
        yield Section("provenance", "FLOPs by provenance", _provenance(cost))
        spaces = cost.memory_spaces
        if len(spaces) > 1 or all_of_them:
            yield Section("memory_spaces", "By memory space", spaces)
        yield Section("unpriced", "Custom calls of unknown cost (0 FLOPs counted)", cost.unpriced)
        for name, title, rows in (
            ("unknown_products", "Matmuls of unknown size", cost._data.unknown_products()),
            ("unknown", "Instructions of unknown cost", cost._data.unknown_rows()),
        ):
            if len(rows) or all_of_them:
                yield Section(name, title, instructions_of(cost.module, rows.tolist()))
        own = every(cost.module) if all_of_them else shares(cost.module)
        yield from device_sections(own, ("products",))
    if explain:
        yield _compared(cost)
        yield _explained(cost)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _groups(cost: Cost, by: str, depth: int) -> Section:
    """Totals by a key with their shares, most FLOPs first."""
    grouped = cost.by(by, depth=depth)
    flops, moved = grouped.values("flops"), grouped.values("bytes_accessed")
    columns: list[tuple[Field, Sequence[Any]]] = []
    for name in (by, "instructions", "flops", "transcendentals", "bytes_accessed"):
        field = key_field(by) if name == by else grouped.field(name)
        columns.append((field, grouped.values(name)))
    nothing = [None] * len(grouped)
    for own in _EXECUTED_ONLY:
        columns.append((own, nothing if cost.xla else grouped.values(own.name)))
    exact = nothing if cost.xla else grouped.values("exact_flops")
    rows = zip(flops, exact, strict=True)
    not_exact = [None if own is None else _share(every - own, every) for every, own in rows]
    if not cost.xla and cost.module._told is not None:
        from hlofast._profile_columns import seconds_by
        from hlofast._profile_fields import OF_CALLS

        measured = seconds_by(cost.module, by, depth)
        if measured is not None:
            columns.append((OF_CALLS, [measured.get(own) for own in grouped.values(by)]))
    columns += [
        (_FLOPS_SHARE, [_share(own, cost.flops) for own in flops]),
        (_BYTES_SHARE, [_share(own, cost.bytes_accessed) for own in moved]),
        (_NOT_EXACT, not_exact),
    ]
    order = sorted(range(len(grouped)), key=lambda row: (-flops[row], -moved[row]))
    known = {field.name for field, _ in columns}
    shown = [name for name in _SHOWN if name in known and not (cost.xla and name == "not_exact")]
    to = f" to depth {depth}" if by == "scope" else ""
    return Section("groups", f"By {by.replace('_', ' ')}{to}", Table.of(columns).take(order), shown)


def _loops(cost: Cost) -> Table:
    """The loops: unknown trip counts first, then by number of iterations."""
    loops = cost.loops
    trips, starts = loops.values("trip_count"), loops.values("multiplicity")

    def order(row: int) -> tuple[bool, int]:
        return trips[row] is not None, -(trips[row] or 1) * (starts[row] or 1)

    return loops.take(sorted(range(len(loops)), key=order))


def _provenance(cost: Cost) -> Table:
    """FLOPs by provenance."""
    rows = [(how, flops) for how, flops in cost.flops_by_provenance.items() if flops]
    return of_rows(_PROVENANCE, [(*row, _share(row[1], cost.flops)) for row in rows])


def _compared(cost: Cost) -> Section:
    """XLA's totals beside the totals as executed."""
    xla = cost.module.cost(xla=True, backend=cost.backend)
    rows = [
        (name, own, other, _share(other, own))
        for name in ("flops", "transcendentals", "bytes_accessed")
        for own, other in [(getattr(cost, name), getattr(xla, name))]
    ]
    return Section("xla", "As executed and by XLA's HloCostAnalysis", of_rows(_COMPARED, rows))


def _explained(cost: Cost) -> Section:
    """Where and why XLA's figures differ in this module."""
    table = cost.explain()
    paragraphs = [
        (
            f"{row['rule']}: {_text.counted(row['instructions'], 'instruction')}",
            (("XLA", row["xla"]), ("hlofast", row["executed"])),
        )
        for row in table
        if row["instructions"]
    ]
    title = "Differences from XLA in this module"
    return Section("explain", title, table, paragraphs=paragraphs)
