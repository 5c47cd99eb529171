"""`Message`: one out-of-memory message as its text gives it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._messages.amounts import Amount
    from hlofast._messages.entries import Entry
    from hlofast._messages.files import Allocation

ON_CHIP = frozenset(("vmem", "cmem", "tilespmem", "spmem"))
"""Fast memories of the chip: of TensorCores, of the chip, of SparseCore tiles, shared by these."""
SCALAR = frozenset(("smem", "sflag"))
"""Memories of scalars and of flags."""
HEADS = ("requested", "used", "limit", "exceeded", "free", "total")
"""Figures that tell one failure from another."""
_COMPARED = 60
"""Characters of a sentence that are compared."""
MOST_ENTRIES = 20_000
"""Entries of one list of allocations that are kept."""


class Message:
    """One failure in a log."""

    __slots__ = (
        "allocations", "allocator", "backend", "chunks", "code", "count", "entries", "figures",
        "has_end", "is_hint", "is_space_assumed", "last_at", "left", "line", "lines", "parts",
        "percents", "program", "space", "stage", "text", "where",
    )  # fmt: skip

    def __init__(self, backend: str | None, stage: str | None, line: int, at: int) -> None:
        self.backend = backend
        """`tpu`, `gpu`, `cpu` (the host), or None if the text does not tell."""
        self.stage = stage
        """`compile`, `load` or `run`; None if the text does not tell."""
        self.space: str | None = None
        """The memory: `hbm`, `vmem`, `smem`, `tilespmem`, …; `gpu`, `host`."""
        self.is_hint = False
        """Whether the text says that this is not a failure: the program tries something else."""
        self.is_space_assumed = False
        """Whether the text does not name the memory."""
        self.figures: dict[str, Amount] = {}
        """Figures by name."""
        self.parts: dict[tuple[str, str], Amount | None] = {}
        """Figures of accounts: by account (`usage hbm`, `requirement hbm`, …) and part."""
        self.percents: dict[str, float] = {}
        """Shares that the text gives, in per cent."""
        self.entries: list[Entry] = []
        """The listed allocations."""
        self.chunks: list[tuple[int, int]] = []
        """Chunks that an allocator has given away: how many, and the bytes of each."""
        self.allocations: list[Allocation] = []
        """The allocations of a buffer assignment, whose values are the entries."""
        self.left = 0
        """Entries beyond `MOST_ENTRIES`."""
        self.program: str | None = None
        """The program that was loaded."""
        self.where: str | None = None
        """The instruction, allocation or array that the text names."""
        self.code: str | None = None
        """The error code, such as `E1000`."""
        self.allocator: dict[str, int] = {}
        """Counts in statistics of an allocator."""
        self.line = line
        """The line of the file where it begins."""
        self.lines = [line]
        """The first lines of all its occurrences."""
        self.count = 1
        """How often the file has it."""
        self.has_end = False
        """Whether the sentence that ends the report of this failure has been read."""
        self.last_at = at
        """Where its last phrase ends, in characters from the beginning of the file."""
        self.text: str | None = None
        """Its first sentence."""

    @property
    def kind(self) -> str:
        """Backend and stage, such as `tpu-compile`, or `host`."""
        if self.space == "host" or self.backend == "cpu":
            return "host"
        if self.backend is None:
            return "unknown"
        return self.backend if self.stage is None else f"{self.backend}-{self.stage}"

    @property
    def exceeded(self) -> int | None:
        """Bytes that are missing: as written, or from the figures; None if unknown.

        Not below 0: with enough free memory in pieces, nothing is missing in sum.
        """
        figures = self.figures
        if "exceeded" in figures:
            return figures["exceeded"].bytes
        need = figures.get("used") or figures.get("requested") or figures.get("rematerialized_to")
        have = (
            figures.get("free") or figures.get("limit") or figures.get("rematerialization_target")
        )
        if "in_use" in figures and "limit" in figures and "free" not in figures:
            have = None
        if need is None or have is None:
            return None
        return max(need.bytes - have.bytes, 0)

    def add(self, entry: Entry) -> None:
        """Adds an allocation to the list."""
        if len(self.entries) < MOST_ENTRIES:
            self.entries.append(entry)
        else:
            self.left += 1

    def heads(self) -> tuple[object, ...]:
        """Kind, memory and the figures that tell one failure from another."""
        own = (self.figures.get(name) for name in HEADS)
        return (self.kind, self.space, *(None if one is None else one.key for one in own))

    def repeats(self, other: Message) -> bool:
        """Whether `other` may be the same failure, told again in full or in part."""
        if self.kind != other.kind or self.space != other.space:
            return False
        if self.program != other.program and self.program and other.program:
            return False
        shared = self.figures.keys() & other.figures.keys()
        if not shared and not (self.entries and other.entries):
            # Without any figure, the sentences have to be equal.
            is_empty = not (other.figures or other.entries or other.parts)
            return is_empty and (self.text or "").startswith((other.text or "")[:_COMPARED])
        if any(self.figures[name] != other.figures[name] for name in shared):
            return False
        pairs = self.parts.keys() & other.parts.keys()
        if any(self.parts[name] != other.parts[name] for name in pairs):
            return False
        few, many = sorted((self.entries, other.entries), key=len)
        return all(a.key == b.key for a, b in zip(few[:-1], many, strict=False))

    def absorb(self, other: Message) -> None:
        """Takes over another telling of the same failure."""
        self.count += other.count
        self.lines += other.lines[:1000]
        for name, figure in other.figures.items():
            self.figures.setdefault(name, figure)
        for pair, part in other.parts.items():
            self.parts.setdefault(pair, part)
        self.percents = other.percents | self.percents
        self.allocator = other.allocator | self.allocator
        self.chunks = self.chunks or other.chunks
        if len(other.entries) > len(self.entries):
            self.entries, self.left = other.entries, other.left
        for name in ("program", "where", "code", "text"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(other, name))

    def all_figures(self) -> Iterator[tuple[str, Amount]]:
        """Yields every figure with its name, those of accounts too."""
        yield from self.figures.items()
        for (account, part), figure in self.parts.items():
            if figure is not None:
                yield f"{account}: {part}", figure
