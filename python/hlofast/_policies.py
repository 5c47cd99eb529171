"""`Policies`: what a step would need under other checkpoint policies, without compiling it."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._memory import quiet
from hlofast._names import meant
from hlofast._result import Note, Section
from hlofast._text import Whole, printable
from hlofast.table import Table, of_rows, with_columns, with_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from hlofast._core import PolicyData
    from hlofast._module import Module

    Row = dict[str, Any]

MARGIN = 0.1
"""The share of the memory that a chosen policy leaves free. On the programs of
`benches/policy_accuracy.py` XLA needs at most this much more than modelled in 90 % of cases."""

BUILT_IN = {
    "nothing_saveable": (),
    "dots_with_no_batch_dims_saveable": ("matmul",),
    "dots_saveable": ("matmul", "batched_matmul"),
}
"""The policies of JAX that are modelled by name, and the kinds of values that they save."""

_AS_IS = "as compiled"
_CHOSEN = "chosen"
_RECOMPUTED, _SAVED, _OFFLOADED = range(3)
_FATES = ("recomputed", "saved", "offloaded")
_UNUSED = "not needed"

_STEPS = frozenset(("while", "body", "cond", "closed_call", "checkpoint", "rematted_computation"))
"""Components of operation names that do not name a scope of the program."""

FIELDS = (
    Field("word", "policy", "The checkpoint policy of the layers."),
    Field("bytes", "peak", "Bytes at the peak of device memory; modelled, as compiled counted."),
    Field("word", "fits", "Whether the peak is within the memory: yes or no.", nullable=True),
    Field("bytes", "kept", "Bytes kept from the forward to the backward loops over layers."),
    Field("bytes", "on_host", "Bytes kept in host memory.", label="on host", nullable=True),
    Field(
        "flops",
        "recomputed_flops",
        "FLOPs of matmuls that a step recomputes, on top of the step as compiled.",
        label="recomputed FLOP",
        nullable=True,
    ),
    Field(
        "bytes",
        "recomputed_wire_bytes",
        "Bytes that each device sends for recomputation in a step, around rings.",
        label="recomputed wire B",
        nullable=True,
    ),
    Field(
        "seconds",
        "recomputed_seconds",
        "Modelled time of the recomputed work of a step, without overlap and host transfers.",
        label="recomputation time",
        nullable=True,
    ),
    Field("instruction", "at", "The instruction that runs at the peak.", nullable=True),
)
_FATE = Field(
    "word",
    "fate",
    "What the shown policy does: recomputed, saved, offloaded, or not needed.",
    nullable=True,
)
_CODE = (Field("index", "number", "The line's number."), Field("text", "code", "A line of code."))
_ERROR = (
    "peaks under other policies are modelled: on 43 scanned programs compiled for TPUs under six "
    "policies each the median error is 2.6 %, 70 % are within 5 %, and 94 % within 12 %"
)
_ERROR_UNROLLED = (
    "peaks under other policies are modelled: on 15 programs without scans compiled for TPUs the "
    "median error is 5.8 %, 85 % of the fitted and 73 % of the held-out peaks are within 12 %, and "
    "the worst error is 26 %"
)
_HIDDEN = (
    "the layers are checkpointed already, so values that this policy does not save are not in the "
    "text; other policies need the text of the step without jax.checkpoint, which XLA writes even "
    "if the step does not fit"
)


_SCANNED = (
    "layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)",
    "x, _ = jax.lax.scan(layer, x, weights)",
)
_UNROLLED = (
    "layer = jax.checkpoint(layer, policy=policy)",
    "for weights in layers:",
    "    x = layer(x, weights)",
)
"""How a program applies a policy to its layers. Without a loop the barriers of `prevent_cse` are
needed: otherwise XLA finds that recomputed values are there already."""


class Policy:
    """What a step needs under one checkpoint policy. All figures are modelled."""

    __slots__ = ("_figures", "_policies", "fates", "name")

    def __init__(self, policies: Policies, name: str, fates: Sequence[int]) -> None:
        self.name = name
        """The name: a policy of JAX, `chosen`, or `own`."""
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
        """Whether the peak is within the memory that was given; None without one."""
        hbm = self._policies.hbm
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
        """FLOPs of matmuls that a step recomputes; None beyond 64 bits."""
        flops: int | None = self._figures["flops"]
        return flops

    @property
    def recomputed_wire_bytes(self) -> int | None:
        """Bytes that each device sends for recomputation in a step; None if unknown."""
        sent: int | None = self._figures["wire_bytes"]
        return sent

    @property
    def recomputed_seconds(self) -> float | None:
        """Seconds of the recomputed work, without overlap and host transfers; None if unknown."""
        seconds: float | None = self._figures["seconds"]
        return seconds

    @property
    def saved(self) -> Table:
        """The values that it saves and the backward pass needs: rows of `Policies.savable`."""
        return self._policies._rows(self._figures["saved"])

    @property
    def again(self) -> tuple[int, ...]:
        """The rows of the module that are recomputed: matmuls, collectives and other heavy work."""
        return tuple(self._figures["again"])

    @property
    def built_in(self) -> str | None:
        """The policy of JAX that keeps the same values; None if none does."""
        if any(self.fates[at] == _OFFLOADED for at in self._figures["saved"]):
            return None
        return _same(self)

    @property
    def code(self) -> str:
        """The policy as Python code, with a comment for each value that has to be named."""
        return _code(self)

    def _row(self) -> tuple[object, ...]:
        fits = None if self.fits is None else "yes" if self.fits else "no"
        at = self._figures["at"]
        return (
            self.name,
            self.peak,
            fits,
            self.kept,
            self.on_host,
            self.recomputed_flops,
            self.recomputed_wire_bytes,
            self.recomputed_seconds,
            None if at < 0 else at,
        )

    def __repr__(self) -> str:
        return f"<Policy {self.name}: peak {self.peak:,} B>"


class Policies:
    """The layers of a step, and what the step needs under other checkpoint policies."""

    __slots__ = ("_chosen", "_data", "_savable", "hbm", "is_checkpointed", "module")

    def __init__(self, module: Module, data: PolicyData, hbm: int | None) -> None:
        self.module = module
        """The module."""
        self.hbm = hbm
        """Bytes of memory to fit; None if unknown."""
        self.is_checkpointed = data.is_checkpointed()
        """Whether the layers are checkpointed in the step as it is."""
        self._data = data
        self._savable: Table | None = None
        self._chosen: Policy | None = None

    @property
    def is_scanned(self) -> bool:
        """Whether the layers are scanned; otherwise the program repeats them without a loop."""
        instructions = self.module.instructions
        return any(instructions[row].opcode == "while" for row, _ in self._data.loops())

    @property
    def peak(self) -> int:
        """Bytes at the peak of the step as it is, as `Memory` counts them."""
        return self._data.peak()

    @property
    def savable(self) -> Table:
        """The values of a layer that a policy could save, in the order of the forward loop.

        `kind` is `matmul`, `batched_matmul` (with batch dimensions), `collective` or `other`;
        `bytes` are those of all layers on one device.
        """
        if self._savable is None:
            self._savable = Table(self._data.savable())
        return self._savable

    def policy(
        self,
        name: str | None = None,
        *,
        save: Iterable[int | str] | str = (),
        offload: Iterable[int | str] | str = (),
    ) -> Policy:
        """Returns what the step needs under a policy of JAX, or under one's own.

        `name` is `nothing_saveable`, `dots_with_no_batch_dims_saveable` or `dots_saveable`. `save`
        and `offload` add values: rows of `savable`, or texts that are an instruction's name, a
        source line (`model.py:88`) or part of an operation name. Raises `ValueError` if nothing
        matches, and for policies that save what a checkpointed step does not contain.
        """
        if name is not None and name not in BUILT_IN:
            hint = meant(name, BUILT_IN) or ";"
            raise ValueError(f"no policy {name!r}{hint} known: {', '.join(BUILT_IN)}")
        if name is not None and name not in self._known:
            raise ValueError(f"{name} is unknown: {_HIDDEN}")
        save = (save,) if isinstance(save, str) else save
        offload = (offload,) if isinstance(offload, str) else offload
        kinds = BUILT_IN.get(name or "", ())
        fates = [_SAVED if kind in kinds else _RECOMPUTED for kind in self.savable.values("kind")]
        is_own = name is None
        for wanted, fate in ((save, _SAVED), (offload, _OFFLOADED)):
            for one in wanted:
                is_own = True
                for row in self._matching(one):
                    fates[row] = fate
        return Policy(self, "own" if is_own else str(name), fates)

    @property
    def _known(self) -> tuple[str, ...]:
        """The policies of JAX that can be modelled."""
        return ("nothing_saveable",) if self.is_checkpointed else tuple(BUILT_IN)

    def _matching(self, wanted: int | str) -> list[int]:
        rows = self.savable.to_pylist()
        if isinstance(wanted, int):
            if not 0 <= wanted < len(rows):
                raise ValueError(f"no value {wanted}; there are {len(rows)} values to save")
            return [wanted]

        if not wanted:
            raise ValueError("a value to save must not be an empty text")

        def matches(row: Row) -> bool:
            place = f"{row['source_file']}:{row['source_line']}"
            ends = place == wanted or place.endswith(f"/{wanted}")
            return ends or row["name"] == wanted or wanted in (row["op_name"] or "")

        # Other values are cheap to recompute; a text means them only by name or line.
        found = [at for at, row in enumerate(rows) if matches(row)]
        heavy = [at for at in found if rows[at]["kind"] != "other"]
        if not found:
            raise ValueError(
                f"no value to save matches {wanted!r}: give an instruction, a source line such as "
                "model.py:88 or part of an operation name; see the table `savable`"
            )
        return heavy or found

    @property
    def chosen(self) -> Policy | None:
        """The policy that recomputes least and needs at most 90 % of the memory.

        Every set of matmuls is tried if there are at most ten; beyond, values are added and
        exchanged one by one. If nothing fits, it is the policy that is nearest. None without a
        memory to fit, and if the step fits as it is.
        """
        if self.hbm is None or self.peak <= self.hbm:
            return None
        if self._chosen is None:
            fates = self._data.choose(int(self.hbm * (1 - MARGIN)))
            self._chosen = Policy(self, _CHOSEN, fates)
        return self._chosen

    @property
    def table(self) -> Table:
        """One row per policy: as compiled, the policies of JAX, and the chosen one."""
        fits = None if self.hbm is None else "yes" if self.peak <= self.hbm else "no"
        as_is = (_AS_IS, self.peak, fits, self._data.kept(), None, 0, 0, 0.0, None)
        rows: list[tuple[object, ...]] = [as_is]
        rows += [self.policy(name)._row() for name in self._known]
        if self.chosen is not None:
            rows.append(self.chosen._row())
        return of_rows(FIELDS, rows)

    @property
    def notes(self) -> tuple[Note, ...]:
        """How far the figures are from what XLA needs."""
        notes = [Note("policy-error", _ERROR if self.is_scanned else _ERROR_UNROLLED)]
        if self.chosen is not None and self.hbm is not None:
            if self.chosen.fits:
                text = f"the chosen policy leaves {MARGIN:.0%} of the memory free for these errors"
                notes.append(Note("margin", text.replace("%", " %")))
            else:
                notes.append(self._missing(self.chosen, self.chosen.peak - self.hbm))
        if self.is_checkpointed:
            notes.append(Note("checkpointed", _HIDDEN))
        return tuple(notes)

    def _missing(self, lowest: Policy, missing: int) -> Note:
        """What no policy saves, and what would."""
        groups = {row["class"]: row["bytes"] for row in quiet(self.module).by("class")}
        state = int(groups.get("parameter") or 0)
        text = (
            f"no policy fits: the nearest needs {missing:,} B more than there are; parameters "
            f"and optimizer state are {state:,} B (shard them over more devices, or keep the "
            f"optimizer state in bf16), what layers keep {lowest.kept:,} B (less with a smaller "
            "batch per device, gradient accumulation, or a sharded sequence)"
        )
        figures = {"missing": missing, "state": state, "inputs": lowest.kept}
        return Note("no-policy-fits", text, **figures)

    def sections(self, policy: Policy | None = None) -> tuple[Section, ...]:
        """The policies, the values that `policy` or the chosen one saves, and its code."""
        table, shown = self.table, policy or self.chosen
        if policy is not None:
            rows = [tuple(row.values()) for row in table]
            table = of_rows(FIELDS, [*rows, policy._row()])
        names = [own for own in table.columns if any(v is not None for v in table.values(own))]
        policies = Section(
            "policies", "Checkpoint policies of the layers", table, names, is_whole=True
        )
        fates: Sequence[int] = () if shown is None else shown.fates
        words: list[str | None] = [_FATES[fate] for fate in fates] or [None] * len(self.savable)
        if shown is not None:
            needed = set(shown._figures["saved"])
            for at, fate in enumerate(shown.fates):
                if fate != _RECOMPUTED and at not in needed:
                    words[at] = _UNUSED
        savable = with_source(with_columns(self.savable, [(_FATE, words)]))
        # First the values whose recomputation is work.
        order = sorted(savable, key=lambda row: (row["kind"] == "other", -(row["bytes"] or 0)))
        fields = [field for field, _ in savable._described()]
        savable = of_rows(fields, [tuple(row.values()) for row in order])
        title = "Values of a layer that a policy could save"
        columns = "name kind shape bytes fate source".split()
        values = Section("savable", title, savable, columns, figure="bytes")
        lines = [] if shown is None else shown.code.splitlines()
        head = "" if shown is None else f"Policy `{shown.name}` as code"
        own = [(head, [("", Whole(line)) for line in lines])] if lines else []
        code = Section("code", "Code", of_rows(_CODE, enumerate(lines, 1)), paragraphs=own)
        return (policies, values, code)

    def _rows(self, numbers: Sequence[int]) -> Table:
        rows = self.savable.to_pylist()
        fields = [field for field, _ in self.savable._described()]
        return of_rows(fields, [tuple(rows[at].values()) for at in numbers])


def _code(policy: Policy) -> str:
    """The code of a policy: a policy of JAX if it saves the same values, otherwise names."""
    rows = policy.saved.to_pylist()
    numbers = policy._figures["saved"]
    offloaded = {at for at in numbers if policy.fates[at] == _OFFLOADED}
    prefix = "jax.checkpoint_policies."
    lines: list[str] = []
    if policy.built_in is not None:
        call = f"policy = {prefix}{policy.built_in}"
    else:
        lines.append("from jax.ad_checkpoint import checkpoint_name")
        names = _value_names(rows)
        for name, row in zip(names, rows, strict=True):
            place = f"  {row['source_file']}:{row['source_line']}" if row["source_file"] else ""
            # Names of files come from the dump: a line break in one must not become code.
            comment = printable(f"{row['shape']}{place}")
            lines.append(f'x = checkpoint_name(x, "{name}")  # {comment}')
        kept = [name for at, name in zip(numbers, names, strict=True) if at not in offloaded]
        moved = [name for at, name in zip(numbers, names, strict=True) if at in offloaded]
        if moved:
            call = (
                f"policy = {prefix}save_and_offload_only_these_names("
                f"names_which_can_be_saved={kept}, names_which_can_be_offloaded={moved}, "
                'offload_src="device", offload_dst="pinned_host")'
            )
        else:
            call = f"policy = {prefix}save_only_these_names({', '.join(map(repr, kept))})"
    return "\n".join([*lines, call, *(_SCANNED if policy._policies.is_scanned else _UNROLLED)])


def _same(policy: Policy) -> str | None:
    """The policy of JAX under which the same values are kept."""
    saved = policy._figures["saved"]
    for name in policy._policies._known:
        if policy._policies.policy(name)._figures["saved"] == saved:
            return name
    return None


def _value_names(rows: Sequence[Row]) -> list[str]:
    """A name for each value: its scope or file, and its line, made distinct."""
    names: list[str] = []
    for row in rows:
        parts = (row["op_name"] or "").split("/")[:-1]
        scope = [part for part in parts if part.isidentifier() and part not in _STEPS]
        stem = (row["source_file"] or "").rpartition("/")[2].partition(".")[0]
        base = "_".join(scope[-2:]) or (stem if stem.isidentifier() else "value")
        line = f"_{row['source_line']}" if row["source_line"] else ""
        name, count = base + line, 1
        while name in names:
            count += 1
            name = f"{base}{line}_{count}"
        names.append(name)
    return names
