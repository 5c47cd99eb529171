"""`Policy`: what a step would need under one checkpoint policy."""

from __future__ import annotations

from hlofast import _policy_code, _text
from hlofast import _policy_fields as fields
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hlofast._policies import Policies

EVERYTHING = "everything_saveable"
PLAIN_DOTS = "dots_with_no_batch_dims_saveable"
MAPPED = "mapped_matmul"
"""The kind of values of which a text does not tell whether `PLAIN_DOTS` saves them."""
BUILT_IN = {
    "nothing_saveable": (),
    PLAIN_DOTS: ("matmul",),
    "dots_saveable": ("matmul", "batched_matmul", MAPPED),
    EVERYTHING: (
        "matmul", "batched_matmul", MAPPED, "ragged_matmul", "kernel", "collective", "other",
    ),
}  # fmt: skip
"""The policies of JAX that are modelled by name, and the kinds of values that they save."""

RECOMPUTED, SAVED, OFFLOADED = range(3)
"""The fates of a value."""


class Policy:
    """What a step needs under one checkpoint policy. All figures are modelled."""

    __slots__ = ("_figures", "_policies", "fates", "name")

    def __init__(self, policies: Policies, name: str, fates: Sequence[int]) -> None:
        self.name = name
        """The name: a policy of JAX, `chosen`, `smallest` where none fits, or `own`."""
        self.fates: tuple[int, ...] = tuple(fates)
        """By row of `Policies.savable`: 0 recomputed, 1 saved, 2 moved to host memory."""
        self._policies = policies
        self._figures = policies._data.outcome(list(fates))

    @property
    def peak(self) -> int:
        """Bytes at the peak of device memory."""
        return int(self._figures["peak"])

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the memory that was given; None without one.

        A policy that needs more host memory than a device has does not fit either.
        """
        hbm, host = self._policies.hbm, self._policies.host_memory
        if host is not None and self.on_host > host:
            return False
        return None if hbm is None else self.peak <= hbm

    @property
    def kept(self) -> int:
        """Bytes kept from the forward to the backward loops, with the inputs of the layers."""
        return int(self._figures["kept"])

    @property
    def on_host(self) -> int:
        """Bytes kept in host memory."""
        return int(self._figures["on_host"])

    @property
    def recomputed_flops(self) -> int | None:
        """FLOPs of matmuls and kernels that a step recomputes; None if unknown."""
        flops: int | None = self._figures["flops"]
        return flops

    @property
    def recomputed_wire_bytes(self) -> int | None:
        """Bytes that each device sends for recomputation in a step; None if unknown."""
        sent: int | None = self._figures["wire_bytes"]
        return sent

    @property
    def recomputed_seconds(self) -> float | None:
        """Seconds of the recomputed work; None if unknown.

        Concurrent transfers count only the time that the step waits for them.
        """
        seconds: float | None = self._figures["seconds"]
        return seconds

    @property
    def moving_seconds(self) -> float | None:
        """Seconds in which values move to host memory and back in a step; None if unknown."""
        seconds: float | None = self._figures["moving"]
        return seconds

    @property
    def waiting_seconds(self) -> float | None:
        """Seconds by which these moves lengthen the step; None if unknown.

        The values of one layer move while another layer runs, and half of its work hides them.
        Moves that nothing waits for slow the step by 2 % of their time, as they take HBM bandwidth.
        """
        seconds: float | None = self._figures["waiting"]
        return seconds

    @property
    def storing_seconds(self) -> float | None:
        """Seconds by which storing what it keeps lengthens the step; None if unknown.

        Less than zero if the step as compiled stores more.
        """
        storing: float | None = self._figures["storing"]
        return storing

    @property
    def relief_seconds(self) -> float | None:
        """Seconds that the step saves by using less memory; None if unknown.

        When memory is tight, XLA recomputes values by itself and starts transfers late. 0 if the
        policy needs more than the device has, or keeps the same values as the step as compiled.
        """
        pressure, own = self._policies._pressure, self._policies
        if not pressure:
            return pressure
        is_same = self._keeps == own.as_compiled._keeps
        return 0.0 if is_same or self.peak > own._most_relieved else pressure

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step under the policy; None if unknown.

        The step as compiled, without what it recomputes itself, and `added_seconds`.
        """
        as_is, added = self._policies._bare_seconds, self.added_seconds
        return None if as_is is None or added is None else max(0.0, as_is + added)

    @property
    def added_seconds(self) -> float | None:
        """Seconds of recomputation, waiting, storing, minus memory relief; None if unknown."""
        more = (self.recomputed_seconds, self.waiting_seconds, self.storing_seconds)
        known = [part for part in more if part is not None]
        relief = self.relief_seconds
        return None if relief is None or len(known) < len(more) else sum(known) - relief

    @property
    def saved(self) -> Table:
        """The values that it keeps and the backward pass needs: rows of `Policies.savable`."""
        return self._policies._rows(self.saved_numbers)

    @property
    def saved_numbers(self) -> tuple[int, ...]:
        """The rows of `Policies.savable` that it keeps and the backward pass needs."""
        return tuple(self._figures["saved"])

    def is_offloaded(self, number: int) -> bool:
        """Whether it moves the value in this row of `Policies.savable` to host memory."""
        return self.fates[number] == OFFLOADED

    @property
    def recomputed_collectives(self) -> Table:
        """The recomputed collectives by mesh axes and kind, with the bytes that a step sends.

        Columns: `axes` (None if unknown), `kind`, `collectives`, `wire_bytes` (None if unknown).
        """
        sent: dict[int, int | None] = self._figures["sent"]
        groups: dict[tuple[str | None, str], list[int | None]] = {}
        for row in self._policies.collectives():
            if row["instruction"] in sent:
                group = groups.setdefault((row["axes"], row["kind"]), [])
                group.append(sent[row["instruction"]])
        rows = []
        for key, own in groups.items():
            known = [size for size in own if size is not None]
            rows.append((*key, len(own), sum(known) if len(known) == len(own) else None))
        return of_rows(fields.AGAIN, sorted(rows, key=lambda own: (-(own[-1] or 0), str(own))))

    @property
    def again(self) -> tuple[int, ...]:
        """The rows of the module that are recomputed: matmuls, collectives and other heavy work."""
        return tuple(self._figures["again"])

    @property
    def built_in(self) -> str | None:
        """The policy of JAX that keeps the same values; None if none does."""
        return next((name for name in self.names if name in BUILT_IN), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The modelled policies of JAX, and the chosen one, that keep the same values."""
        known = self._policies._built_in
        if self._policies.chosen is not None:
            known.append(self._policies.chosen)
        return tuple(own.name for own in known if own._keeps == self._keeps)

    @property
    def counted(self) -> str:
        """The policy of JAX that keeps the same values, or how many values it saves and moves."""
        moved = sum(self.is_offloaded(at) for at in self.saved_numbers)
        saved = _text.counted(len(self.saved_numbers) - moved, "value")
        more = f" and moves {moved} to host memory" if moved else ""
        return self.built_in or f"a policy that saves {saved}{more}"

    @property
    def described(self) -> str:
        """The name; for one's own policy, the values that it saves and moves to host memory."""
        if self.name != "own":
            return self.name
        rows = self._policies.savable.to_pylist()
        names = _policy_code.shown_names(self._policies.module, rows)
        pairs = zip(("save", "offload"), self._kept_names(names), strict=True)
        parts = [f"{verb} {_text.names(own)}" for verb, own in pairs if own]
        return "own: " + ("; ".join(parts) or "save nothing")

    def _kept_names(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """The names of the values that it saves, and of those that it moves to host memory."""
        kept: tuple[dict[str, None], dict[str, None]] = ({}, {})
        for at in self.saved_numbers:
            kept[self.is_offloaded(at)][names[at]] = None
        return list(kept[0]), list(kept[1])

    @property
    def _keeps(self) -> list[tuple[int, int]]:
        """What is kept, and where."""
        return [(at, self.fates[at]) for at in self.saved_numbers]

    @property
    def code(self) -> str:
        """The policy as Python code, with a comment for each value that must be named."""
        return _policy_code.code(self)

    @property
    def code_shown(self) -> tuple[str, list[str]]:
        """The heading of the code, and its lines."""
        return f"Policy `{self.name}` as code", self.code.splitlines()

    def _outcome(self) -> tuple[object, ...]:
        return (
            self.peak,
            self._policies._fitting(self.peak, self.fits),
            self.kept,
            self.on_host,
            self.recomputed_flops,
            self.recomputed_wire_bytes,
            self.recomputed_seconds,
            self.waiting_seconds,
            self.storing_seconds,
            self.relief_seconds,
            self.step_seconds,
        )

    def _row(self) -> tuple[object, ...]:
        at = self._figures["at"]
        same = ", ".join(name for name in self.names if name != self.name)
        return (self.name, *self._outcome(), None if at < 0 else at, same or None)

    def __repr__(self) -> str:
        return f"<Policy {self.name}: peak {self.peak:,} B>"


def gaining(policies: Iterable[Policy], chosen: Policy | None) -> Iterator[Policy]:
    """The policies that are faster than all before, and the chosen one."""
    least = float("inf")
    for policy in policies:
        seconds = policy.added_seconds
        if seconds is None or seconds < least or policy is chosen:
            least = least if seconds is None else min(least, seconds)
            yield policy
