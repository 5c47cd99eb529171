"""`Matmuls`: the matmuls of a module, in rows and totals."""

from __future__ import annotations

from hlofast import _text
from hlofast._core import Field
from hlofast._result import Fact, Note, Result, Section
from hlofast._shares import labelled, note
from hlofast.table import Table, shares, with_columns, with_source

TYPE_CHECKING = False  # The command line lists products; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._core import Column, TextColumn
    from hlofast._module import Module

KEYS = {
    "phase": "phase",
    "scope": "scope",
    "source": "source",
    "source_file": "source_file",
    "kind": "kind",
    "dtype": "types",
    "provenance": "provenance",
}
"""Keys of totals, with their columns."""
_INSTRUCTIONS = Field("count", "instructions", "Number of instructions.", adds_up=True)
_SHARE = Field("ratio", "share", "Share of the FLOPs of all matmuls.", nullable=True)
_TYPES = Field(
    "text", "types", "Types of operands and result, and of the accumulator if different."
)
_UNSIZED = (
    Field("instruction", "instruction", "Row number of the instruction."),
    Field("word", "opcode", "The opcode."),
    Field("shape", "shape", "The shape of the result."),
)
_FIRST = ("name", "m", "n", "k", "batch", "kind", "types", "multiplicity")
_LAST = ("flops", "share", "provenance", "phase")


_KEY_KINDS = {"scope": "scope", "source": "path", "source_file": "path"}


def key_field(by: str) -> Field:
    """Returns the field of the key column of totals by `by`."""
    kind, label = _KEY_KINDS.get(by, "text"), by.replace("_", " ")
    return Field(kind, "key", "The value of the key.", label=label, nullable=True)


class Matmuls(Result, Table):
    """The matmuls and convolutions of a module: `Module.matmuls()`.

    One row per matmul and phase in which it is executed; `fields` describes the columns. Matmuls of
    unknown size are in `unknown` instead.
    """

    __slots__ = ("_loops", "_unknown", "module")

    VERB = "matmuls"
    FACTS = (
        Field("count", "matmuls", "Matmuls and convolutions; each instruction counts once."),
        Field("flops", "flops", "Known FLOPs of all calls.", label="FLOP"),
    )

    def __init__(
        self,
        module: Module,
        columns: Iterable[tuple[Field, Column | TextColumn]],
        unknown: list[int],
        loops: list[str],
    ) -> None:
        self._keep(columns)
        self.module = module
        """The module."""
        self._unknown = unknown
        self._loops = loops

    @property
    def is_lower_bound(self) -> bool:
        """Whether there are matmuls of unknown size or in loops of unknown trip count."""
        return bool(self._unknown) or any(self.values("is_lower_bound"))

    @property
    def unknown(self) -> Table:
        """Matmuls and convolutions of unknown size."""
        return instructions_of(self.module, self._unknown)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Number of matmuls, and their FLOPs."""
        matmuls, flops = self.FACTS
        known = {"modelled", "from_backend_config"} & set(self.values("provenance"))
        how = "bound" if self.is_lower_bound else "exact"
        if how == "exact" and known:
            how = "modelled" if "modelled" in known else "configuration"
        facts = (
            Fact(matmuls, len(set(self.values("instruction")))),
            Fact(flops, self._flops(), how),
        )
        return labelled(self.module, facts, ("flops",))

    def _flops(self) -> int:
        return sum(own or 0 for own in self.values("flops"))

    @property
    def notes(self) -> tuple[Note, ...]:
        """Assumptions and gaps behind the figures."""
        notes = [own] if (own := note(self.module)) is not None else []
        rows = zip(self.values("instruction"), self.values("is_lower_bound"), strict=True)
        if (inside := len({row for row, is_bound in rows if is_bound})) and self._loops:
            text = (
                f"{_text.counted(inside, 'matmul')} inside loops of unknown trip count, counted "
                f"once: {_text.names(self._loops)}"
            )
            notes.append(Note("unknown-trip-count", text, products=inside, loops=len(self._loops)))
        beyond = sum(runs is None for runs in self.values("multiplicity"))
        if beyond:
            rows_of = _text.counted(beyond, "matmul")
            text = f"{rows_of} with a call count beyond 64 bits, left out of the FLOPs"
            notes.append(Note("overflow", text, products=beyond))
        return (*notes, *unknown_products(self.module, self._unknown))

    def sections(self, by: str | None = None, depth: int | None = None) -> tuple[Section, ...]:
        """The matmuls, or totals by `by` (one of `KEYS`); `depth` truncates scopes."""
        own = self._groups(by, depth) if by is not None else self._products()
        unknown = Section("unknown_products", "Matmuls of unknown size", self.unknown)
        return (own, unknown) if self._unknown else (own,)

    def every_section(self) -> tuple[Section, ...]:
        """All tables: matmuls, totals, matmuls of unknown size."""
        unknown = Section("unknown_products", "Matmuls of unknown size", self.unknown)
        return (self._products(), self._groups("phase", None), unknown)

    def _products(self) -> Section:
        """The matmuls with types, source and share, most FLOPs first."""
        flop_shares = shares(self.values("flops"), self._flops())
        table = with_columns(with_source(self), [(_TYPES, self._types()), (_SHARE, flop_shares)])
        bound = ("is_lower_bound",) if any(self.values("is_lower_bound")) else ()
        place = "source" if any(own is not None for own in table.values("source")) else "scope"
        measured = [name for name in ("measured_seconds", "flops_per_second") if name in self]
        shown = (*_FIRST, *bound, *_LAST[:2], *measured, *_LAST[2:], place)
        title = "Matmuls by FLOPs"
        ordered = table.sort_by("flops", descending=True)
        return Section("matmuls", title, ordered, shown, figure="flops")

    def _types(self) -> list[str]:
        names = ("lhs_dtype", "rhs_dtype", "output_dtype", "accumulation_dtype")
        return [
            f"{left} {right} -> {result}" + ("" if sums == result else f" ({sums})")
            for left, right, result, sums in zip(*map(self.values, names), strict=True)
        ]

    def _keys(self, by: str, depth: int | None) -> list[Any]:
        if by == "dtype":
            return self._types()
        keys = (with_source(self) if by == "source" else self).values(KEYS[by])
        if by != "scope" or depth is None:
            return keys
        return [None if own is None else to_depth(own, depth) or None for own in keys]

    def _groups(self, by: str, depth: int | None) -> Section:
        """Totals by a key with their shares, most FLOPs first."""
        keyed = with_columns(self, [(key_field(by), self._keys(by, depth))])
        grouped = keyed.by("key", totals=["flops"])
        members: dict[object, set[int]] = {}
        for key, row in zip(keyed.values("key"), self.values("instruction"), strict=True):
            members.setdefault(key, set()).add(row)
        measured = {}
        if "measured_seconds" in self:
            times = keyed.by("key", totals=["measured_seconds"])
            measured = {"measured_seconds": times.values("measured_seconds")}
        whole = self._flops()
        parts = [own / whole if own and whole else None for own in grouped.values("flops")]
        table = Table.of(
            [
                (grouped.field("key"), grouped.values("key")),
                (_INSTRUCTIONS, [len(rows) for rows in members.values()]),
                *((grouped.field(name), grouped.values(name)) for name in ("flops", "unknown")),
                *((self.field(name), own) for name, own in measured.items()),
                (_SHARE, parts),
            ]
        ).sort_by("flops", descending=True)
        to = f" to depth {depth}" if by == "scope" and depth is not None else ""
        return Section(
            "groups",
            f"By {by.replace('_', ' ')}{to}",
            table,
            ("key", "instructions", "flops", "share", *measured),
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.module, Table(self._described()), self._unknown, self._loops)


def _restored(module: Module, table: Table, unknown: list[int], loops: list[str]) -> Matmuls:
    return Matmuls(module, table._described(), unknown, loops)


def to_depth(scope: str, depth: int) -> str:
    """Returns the first components of a scope; slashes inside brackets do not split it."""
    open_brackets = slashes = 0
    for at, character in enumerate(scope):
        if character in "([{":
            open_brackets += 1
        elif character in ")]}":
            open_brackets = max(open_brackets - 1, 0)
        elif character == "/" and not open_brackets:
            slashes += 1
            if slashes == depth:
                return scope[:at]
    return scope if depth else ""


def instructions_of(module: Module, rows: list[int]) -> Table:
    """Returns a table of these instructions with opcode and shape."""
    instructions = [module[row] for row in rows]
    columns = (rows, [own.opcode for own in instructions], [str(own.shape) for own in instructions])
    return Table.of(zip(_UNSIZED, columns, strict=True))


def unknown_products(module: Module, rows: list[int]) -> tuple[Note, ...]:
    """Returns a note on matmuls of unknown size, which totals leave out."""
    if not rows:
        return ()
    # Further names are only counted.
    shown = _text.names([module[row].name for row in rows[: _text.SHOWN_NAMES]], len(rows))
    text = f"{_text.counted(len(rows), 'matmul')} of unknown size, left out of totals: {shown}"
    return (Note("unknown-products", text, products=len(rows)),)
