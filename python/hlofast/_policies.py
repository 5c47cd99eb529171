"""`Policies`: what a step would need under other checkpoint policies, without compiling it."""

from __future__ import annotations

from hlofast import _policy_code, _policy_notes, devices
from hlofast import _policy_fields as fields
from hlofast._names import meant
from hlofast._policy import (
    BUILT_IN,
    EVERYTHING,
    MAPPED,
    OFFLOADED,
    PLAIN_DOTS,
    RECOMPUTED,
    SAVED,
    Policy,
    gaining,
)
from hlofast._policy_matching import matching
from hlofast._policy_remedies import FIELDS as REMEDIES
from hlofast._policy_remedies import in_words, remedies
from hlofast._result import Note, Section
from hlofast._text import Whole
from hlofast.table import Table, of_rows, with_columns, with_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hlofast._core import PolicyData
    from hlofast._module import Module
    from hlofast._remat import Remat
    from hlofast._report.chart import Chart


MARGIN = 0.1
"""The share of the memory that a chosen policy leaves free. On the programs of
`benches/policy_accuracy.py` XLA needs at most this much more than modelled in 90 % of cases."""

MARGIN_BEFORE = 0.15
"""The share that it leaves free in a module that XLA has not scheduled, where the bytes of the step
itself are modelled too (`benches/policy_accuracy.py`)."""

OFFLOAD_GAIN = 0.01
"""The share of the step's time that moving values to the host has to save: less than that is not
worth a transfer whose time is modelled from the bandwidth alone."""

FITTING_GAIN = 0.05
"""The share of the step's time that checkpointing has to save where the step fits without: modelled
changes of step times are 5 points from clocks at the median (`benches/h100_steps.py`)."""

_AS_IS = "as compiled"
_CHOSEN = "chosen"
_SMALLEST = "smallest"
"""The name of the policy with the lowest peak where none fits: no answer, so not chosen."""
_FATES = ("recomputed", "saved", "offloaded")
_UNUSED = "not needed"


class Policies:
    """The layers of a step, and what the step needs under other checkpoint policies."""

    __slots__ = (
        "_as_compiled", "_chosen", "_data", "_found", "_frontier", "_remat", "_remedies",
        "_savable", "_usable", "hbm", "host_memory", "is_checkpointed", "module", "step_seconds",
    )  # fmt: skip

    def __init__(self, remat: Remat, data: PolicyData, hbm: int | None, usable: int | None) -> None:
        self._remat = remat
        self._data = data
        self.module: Module = remat.module
        """The module."""
        self.hbm = hbm
        """Bytes of memory to fit; None if unknown."""
        device = None if remat.device is None else devices.get(remat.device)
        self.host_memory = None if device is None else device.host_memory
        """Bytes of host memory for each device; None if unknown."""
        self.is_checkpointed = data.is_checkpointed()
        """Whether the layers are checkpointed in the step as it is."""
        self.step_seconds: float | None = None
        """Modelled seconds of the step as compiled; None without a device or a schedule."""
        if device is not None and not self.is_modelled:
            self.step_seconds = self.module.time(device, mesh=remat.mesh).step_seconds
        self._savable: Table | None = None
        self._remedies: Table | None = None
        self._usable = usable
        self._as_compiled: Policy | None = None
        self._chosen: tuple[Policy | None] | None = None
        self._found: list[Policy] | None = None
        self._frontier: tuple[Policy, ...] | None = None

    def __repr__(self) -> str:
        return f"<Policies of {self.module.name}: {self.peak:,} B at the peak as compiled>"

    @property
    def is_scanned(self) -> bool:
        """Whether the layers are scanned; otherwise the program repeats them without a loop."""
        instructions = self.module.instructions
        return any(instructions[row].opcode == "while" for row, _ in self._data.loops())

    @property
    def backend(self) -> str | None:
        """The backend of the compiler, otherwise that of the device; None if neither is known."""
        device = self._remat.device
        of_device = None if device is None else devices.get(device).backend
        return self.module.summary().backend or of_device

    @property
    def iteration(self) -> str:
        """What a policy is applied to: `layer`, `time step` (of a recurrence) or `pipeline tick`.

        All iterations of a scan over time, or over the ticks of a pipeline, use the same weights.
        """
        return self._data.iteration()

    @property
    def has_loops(self) -> bool:
        """Whether a loop runs in each layer: over parts of attention, over time, over experts."""
        return self._data.has_loops()

    @property
    def is_grouped(self) -> bool:
        """Whether the layers are scanned in groups: a scan over layers inside a scan."""
        return self._data.grouped() != "no"

    @property
    def has_checkpointed_groups(self) -> bool:
        """Whether the layers are scanned in groups that are under `jax.checkpoint` themselves."""
        return self._data.grouped() == "checkpointed"

    @property
    def is_modelled(self) -> bool:
        """Whether the module is not scheduled, so that the peak as it is is modelled too."""
        return self._data.is_modelled()

    @property
    def margin(self) -> float:
        """The share of the memory that the chosen policy leaves free if it can."""
        return MARGIN_BEFORE if self.is_modelled else MARGIN

    @property
    def peak(self) -> int:
        """Bytes at the peak of the step as it is, as `Memory` counts them.

        In a module that is not scheduled the peak is modelled.
        """
        return self._data.peak()

    @property
    def savable(self) -> Table:
        """The values of a layer that a policy could save, in the order of the forward loop.

        `kind` is `matmul`, `batched_matmul` (with batch dimensions, or a convolution),
        `mapped_matmul` (under `jax.vmap`, and the text does not tell which of these),
        `ragged_matmul` (`jax.lax.ragged_dot`), `kernel` (a result of a custom call), `collective`,
        `other` or `input` (of a layer: kept on the device or moved to host memory, not recomputed);
        `bytes` are those of all layers on one device, `is_kept` tells what the step as it is keeps,
        and `is_nameable` what `checkpoint_name` reaches.
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

        `name` is `nothing_saveable`, `dots_with_no_batch_dims_saveable`, `dots_saveable`, or, if
        the layers are not checkpointed, `everything_saveable`; the second one only if the text
        tells which matmuls have batch dimensions. `save` and `offload` add values:
        rows of `savable`, or texts that are an instruction's name, a source line (`model.py:88`) or
        whole words of an operation name (`mlp/dot_general`); `layer_input` is what layers get
        from the layers before them. Raises `ValueError` if nothing matches, if a value is both
        saved and moved, and for results of kernels that no policy can move.
        """
        if name is not None and name not in BUILT_IN:
            hint = meant(name, BUILT_IN) or ";"
            raise ValueError(f"no policy {name!r}{hint} known: {', '.join(BUILT_IN)}")
        why_not = self._unknown.get(name or "")
        if why_not is not None:
            raise ValueError(why_not)
        if offload and self._data.grouped() == "yes":
            raise ValueError(fields.GROUPS_ON_HOST)
        save = (save,) if isinstance(save, str) else save
        offload = (offload,) if isinstance(offload, str) else offload
        kinds = BUILT_IN.get(name or "", ())
        fates = [SAVED if kind in kinds else RECOMPUTED for kind in self.savable.values("kind")]
        is_own = name is None
        rows = self.savable.to_pylist() if save or offload else []
        saved: set[int] = set()
        for wanted, fate in ((save, SAVED), (offload, OFFLOADED)):
            for one in wanted:
                is_own = True
                for at in matching(self.module, rows, one):
                    if fate == OFFLOADED and at in saved:
                        value = rows[at]["name"]
                        raise ValueError(f"{value} cannot be both saved and moved to host memory")
                    fates[at] = fate
                    saved.update([at] if fate == SAVED else [])
        if offload:
            for kernel, at in _policy_code.kept_by_primitive(rows, fates).items():
                own = [
                    fates[other] for other, row in enumerate(rows) if row["instruction"] == kernel
                ]
                if OFFLOADED in own:
                    raise ValueError(
                        f"no policy of JAX moves the results of {rows[at]['name']} to host memory, "
                        "because they cannot be named; save or recompute them"
                    )
        return Policy(self, "own" if is_own else str(name), fates)

    @property
    def _built_in(self) -> list[Policy]:
        """The policies of JAX that can be modelled from the text."""
        unknown = self._unknown
        return [self.policy(name) for name in BUILT_IN if name not in unknown]

    @property
    def _unknown(self) -> dict[str, str]:
        """Why the text does not show what policies of JAX keep, by their names."""
        unknown = {}
        mapped = sum(kind == MAPPED for kind in self.savable.values("kind"))
        if mapped:
            unknown[PLAIN_DOTS] = fields.UNDER_VMAP.format(count=mapped, policy=PLAIN_DOTS)
        if self.is_checkpointed:
            unknown[EVERYTHING] = fields.NOT_EVERYTHING
        elif self._data.checkpoints_in_loops():
            unknown[EVERYTHING] = fields.NOT_EVERYTHING_INSIDE
        return unknown

    @property
    def as_compiled(self) -> Policy:
        """The policy of the step as it is, with what its layers recompute already.

        Its `peak` is modelled too; `Policies.peak` is that of the text.
        """
        if self._as_compiled is None:
            self._as_compiled = Policy(self, _AS_IS, self._data.as_is())
        return self._as_compiled

    @property
    def chosen(self) -> Policy | None:
        """The policy that costs least time and leaves `margin` of the memory free.

        Values are recomputed, saved, or moved to host memory where that makes the step at least 1 %
        faster than the best policy without moves. Every policy of the matmuls and kernels is tried
        if there are few; beyond, values change their fates one by one and in pairs. If nothing
        fits, it is the policy with the lowest peak, named `smallest`. None without a memory to fit,
        and if the step fits as it is and the policy would not make it faster, or without
        checkpointed layers not 5 % faster: storing values can take longer than recomputing them.
        """
        if self.hbm is None:
            return None
        if self._chosen is None:
            best = self._best(int(self.hbm * (1 - self.margin)))
            if best is not None and not best.fits:
                lowest = min(best, self.as_compiled, key=lambda own: own.peak)
                best = Policy(self, _SMALLEST, lowest.fates)
            self._chosen = (None if best is None or not self._is_better(best) else best,)
        return self._chosen[0]

    def _best(self, budget: int) -> Policy | None:
        """The policy that costs least time within a budget; None if it is known to gain nothing."""
        is_needed = self.is_checkpointed or self.hbm is None or self.peak > self.hbm
        if not is_needed and all((own.added_seconds or 0) >= 0 for own in self._built_in):
            return None
        best = self._fastest(budget, moves=False)
        if not is_needed:
            # Memory is not short, so moving values away gains nothing.
            return best
        moving = self._fastest(budget, moves=True)
        return moving if self._gains(best, moving) else best

    def _fastest(self, budget: int, *, moves: bool) -> Policy:
        """The fastest policy within a budget that its search or that for the frontier finds."""
        found = Policy(self, _CHOSEN, self._data.choose(budget, moves))
        for own in self._searched:
            is_allowed = own.peak <= budget and (moves or not own.on_host)
            before, after = found.added_seconds, own.added_seconds
            if is_allowed and before is not None and after is not None and after < before:
                found = Policy(self, _CHOSEN, own.fates)
        return found

    @property
    def _searched(self) -> list[Policy]:
        """What the search for the frontier finds."""
        if self._found is None:
            found = self._data.frontier(self._budget)
            self._found = [Policy(self, "own", own) for own in found]
        return self._found

    def _is_better(self, chosen: Policy) -> bool:
        """Whether the step does not fit as it is, or `chosen` fits and makes it faster."""
        if self.hbm is not None and self.peak > self.hbm:
            return True
        own, now = chosen.added_seconds, self.as_compiled.added_seconds
        if not chosen.fits or chosen._keeps == self.as_compiled._keeps:
            return False
        if not self.is_checkpointed:
            if own is None or now is None or self.step_seconds is None:
                return False
            return now - own >= FITTING_GAIN * self.step_seconds
        if own is None or now is None:
            own, now = chosen.recomputed_flops, self.as_compiled.recomputed_flops
        return own is not None and now is not None and own < now

    @property
    def _bare_seconds(self) -> float | None:
        """Modelled seconds of the step without what its policy adds; None if unknown."""
        added = self.as_compiled.added_seconds
        if self.step_seconds is None or added is None:
            return None
        return max(0.0, self.step_seconds - added)

    @property
    def _pressure(self) -> float | None:
        """Seconds that the step loses for lack of memory; None if unknown."""
        pressure: float | None = self._data.pressure_seconds()
        return pressure

    @property
    def _most_relieved(self) -> int:
        """The largest peak that is relieved: what the device has, or less than as compiled."""
        known = [own for own in (self.hbm, self._usable) if own is not None]
        return max(known) if known else self.as_compiled.peak - 1

    @property
    def _budget(self) -> int | None:
        return None if self.hbm is None else int(self.hbm * (1 - self.margin))

    def _fitting(
        self, peak: int, is_fitting: bool | None, *, is_modelled: bool = True
    ) -> str | None:
        """Whether a peak fits, as a word; `tight` within the margin for the model's error."""
        if is_fitting is None:
            return None
        if not is_fitting:
            return "no"
        is_tight = is_modelled and self._budget is not None and peak > self._budget
        return "tight" if is_tight else "yes"

    def _gains(self, without: Policy, with_moves: Policy) -> bool:
        """Whether moving values to the host makes enough of a difference."""
        if self._budget is not None and without.peak > self._budget:
            return with_moves.peak < without.peak
        before, after = without.step_seconds, with_moves.step_seconds
        if before is None or after is None or before == float("inf"):
            return False
        return before - after >= OFFLOAD_GAIN * before

    @property
    def best(self) -> tuple[Policy, ...]:
        """The policies that no other one beats in both peak and time, by ascending peak.

        They reach from the lowest peak to the peak of the step as it is, and contain the chosen
        policy. Policies that differ by less than a 64th of all work are left out.
        """
        if self._frontier is None:
            found, chosen = [*self._searched], self.chosen
            if chosen is not None and all(own._keeps != chosen._keeps for own in found):
                found.append(chosen)
            self._frontier = tuple(gaining(sorted(found, key=lambda own: own.peak), chosen))
        return self._frontier

    @property
    def frontier(self) -> Table:
        """Memory against step time: one row per policy of `best`."""
        names = _policy_code.shown_names(self.module, self.savable.to_pylist())
        rows = []
        for number, policy in enumerate(self.best):
            kept = policy._kept_names(names)
            texts = [", ".join(own) or None for own in (*kept, policy.names)]
            rows.append((number, *policy._outcome(), *texts))
        return of_rows(fields.FRONTIER, rows)

    def collectives(self) -> Table:
        """The collectives of the step as it is."""
        return self.module.collectives(self._remat.mesh)

    @property
    def table(self) -> Table:
        """As compiled, the policies of JAX, and the chosen one; one row if they keep the same."""
        return self._table([])

    def _table(self, more: Iterable[Policy]) -> Table:
        now = self.as_compiled
        storing = None if now.storing_seconds is None else 0.0
        again: tuple[object, ...] = (0, 0, 0.0)
        if self._runs_again:
            again = (now.recomputed_flops, now.recomputed_wire_bytes, now.recomputed_seconds)
        is_fitting = None if self.hbm is None else self.peak <= self.hbm
        figures = (
            self.peak,
            self._fitting(self.peak, is_fitting, is_modelled=self.is_modelled),
            self._data.kept() if self.is_scanned else now.kept,
            now.on_host,
            *again,
            now.waiting_seconds,
            storing,
            now.relief_seconds,
            self.step_seconds,
        )
        every, same = self._built_in, None
        if every[-1].name == EVERYTHING and every[-1]._keeps == now._keeps:
            # The figures of the text are better than modelled ones.
            same = every.pop().name
        rows: list[tuple[object, ...]] = [(_AS_IS, *figures, None, same)]
        shown: list[Policy] = []
        for policy in (*every, *([] if self.chosen is None else [self.chosen])):
            if policy.name != same and all(own._keeps != policy._keeps for own in shown):
                shown.append(policy)
        # What was asked for is shown even if a row of another name keeps the same.
        names = [policy.name for policy in shown]
        rows += [own._row() for own in (*shown, *(own for own in more if own.name not in names))]
        return of_rows(fields.POLICIES, rows)

    @property
    def notes(self) -> tuple[Note, ...]:
        """How far the figures are from what XLA needs, and what they do not cover."""
        return tuple(_policy_notes.notes(self))

    @property
    def remedies(self) -> Table | None:
        """Where no policy fits: what would, with the bytes of each change.

        None if one fits, or if only host memory is too small.

        A change is enough if it leaves the memory free that a chosen policy leaves (`margin`).

        Columns: `change` (batch, accumulation, mesh, dtype), `factor`, `saved`, `peak`, `enough`,
        `how`.
        """
        lowest = self.chosen
        if lowest is None or lowest.fits or self.hbm is None or lowest.peak <= self.hbm:
            return None
        if self._remedies is None:
            available = int(self.hbm * (1 - self.margin))
            self._remedies = remedies(lowest, lowest.peak - available)
        return self._remedies

    @property
    def way_out(self) -> str | None:
        """What is missing where no policy fits, and the changes that would do; None if one fits."""
        lowest, table = self.chosen, self.remedies
        if lowest is None or lowest.fits or self.hbm is None:
            return None
        missing = lowest.peak - self.hbm
        if missing <= 0 or table is None:
            return "no checkpoint policy fits: the host memory is too small for the closest one"
        text = f"no checkpoint policy fits: the closest one exceeds the memory by {missing:,} B"
        ways = in_words(table, self.hbm)
        return f"{text}; {ways}" if ways else text

    @property
    def code_shown(self) -> tuple[str, list[str]] | None:
        """A heading and the lines of the chosen policy's code; no lines where no policy fits."""
        lowest = self.chosen
        if lowest is None or lowest.fits or self.hbm is None:
            return None if lowest is None else lowest.code_shown
        need = f"its peak is {lowest.peak:,} B of {self.hbm:,} B"
        if lowest.peak <= self.hbm:
            need = f"it keeps {lowest.on_host:,} B of {self.host_memory:,} B in host memory"
        least = f"`{lowest.name}` needs the least memory of all policies"
        if self.peak < lowest.peak:
            least = (
                f"the step as compiled needs less than any other policy; `{lowest.name}` is next"
            )
        return f"No code: {least} and does not fit ({need})", []

    @property
    def _runs_again(self) -> bool:
        """Whether a policy of the text recomputes values."""
        is_whole = self.is_checkpointed or self.has_checkpointed_groups
        return is_whole or self._data.checkpoints_in_loops()

    def sections(
        self, policy: Policy | None = None, *, frontier: bool = False
    ) -> tuple[Section, ...]:
        """The policies, the code of `policy` or the chosen one, and what else would help.

        Then, with `frontier` or if there is a chosen policy, the best policies of all budgets; the
        values that could be saved; and the collectives that the policy recomputes.
        """
        shown = policy or self.chosen
        table = self._table([] if policy is None else [policy])
        policies = Section(
            "policies",
            f"Checkpoint policies of the {self.iteration}s",
            table,
            fields.known_columns(table),
            is_whole=True,
        )
        fates: Sequence[int] = () if shown is None else shown.fates
        words: list[str | None] = [_FATES[fate] for fate in fates] or [None] * len(self.savable)
        if shown is not None:
            needed, kinds = set(shown.saved_numbers), self.savable.values("kind")
            for at, fate in enumerate(shown.fates):
                if kinds[at] == "input":
                    # Nothing recomputes it.
                    words[at] = _FATES[max(fate, SAVED)]
                elif fate != RECOMPUTED and at not in needed:
                    words[at] = _UNUSED
        savable = with_source(with_columns(self.savable, [(fields.FATE, words)]))
        # First the values whose recomputation is work.
        order = sorted(savable, key=lambda row: (row["kind"] == "other", -(row["bytes"] or 0)))
        described = [field for field, _ in savable._described()]
        savable = of_rows(described, [tuple(row.values()) for row in order])
        title = f"Values of a {self.iteration} that a policy could save"
        columns = "name kind shape bytes is_kept fate source".split()
        if not self.is_checkpointed:
            columns.remove("is_kept")
        values = Section("savable", title, savable, columns, figure="bytes")
        head, lines = (self if policy is None else policy).code_shown or ("", [])
        own = [(head, [("", Whole(line)) for line in lines])] if head else []
        table = of_rows(fields.CODE, enumerate(lines, 1))
        code = Section("code", "Code", table, paragraphs=own)
        again = of_rows(fields.AGAIN, ()) if shown is None else shown.recomputed_collectives
        recomputed = Section(
            "recomputed_collectives",
            "Collectives that the policy recomputes",
            again,
            paragraphs=None if len(again) else (),
        )
        known = self.remedies
        is_enough = known is None or "yes" in known.values("enough")
        helps = Section(
            "remedies",
            "What would make the step fit" if is_enough else "Largest savings, none of them enough",
            of_rows(REMEDIES, ()) if known is None else known,
            paragraphs=None if known else (),
        )
        best: list[Section] = []
        if frontier or self.chosen is not None:
            table = self.frontier
            title = "Best policies, memory against time"
            best.append(
                Section("frontier", title, table, fields.known_columns(table), figure="peak")
            )
        # The answer comes first: the policies, what to write, and what else would help.
        return (policies, code, helps, *best, values, recomputed)

    def _repr_html_(self) -> str:
        from hlofast._html import sections

        return sections(self.sections(frontier=True), self.notes, self.module, self._chart)

    @property
    def _chart(self) -> Chart | None:
        """Memory against time of the best policies; None if there is nothing to compare."""
        if self.is_modelled or len(self.best) < 2:
            return None
        from hlofast._report.charts import frontier

        return frontier(self)

    def _rows(self, numbers: Sequence[int]) -> Table:
        rows = self.savable.to_pylist()
        described = [field for field, _ in self.savable._described()]
        return of_rows(described, [tuple(rows[at].values()) for at in numbers])


def device_of(remat: Remat) -> tuple[str, str] | None:
    """The name and the backend of the device, if it is known."""
    device = None if remat.device is None else devices.get(remat.device)
    return None if device is None else (device.name, device.backend)


def policies_of(remat: Remat) -> Policies | str:
    """The policies of a step, or why none can be modelled."""
    device = None if remat.device is None else devices.get(remat.device)
    hbm = remat.hbm
    host: tuple[float, int | None] | None = None
    usable: int | None = None
    if device is not None:
        bandwidth = [device.value(own) for own in ("host_bandwidth", "jax_devices")]
        if None not in bandwidth:
            host = (device.per_jax_device("host_bandwidth"), device.host_memory)
        from hlofast._memory_account import hbm_of

        of_device = hbm_of(remat.module, device)
        usable = None if of_device is None else of_device[0]
        hbm = usable if hbm is None else hbm
    # Times of rows without a schedule are those of neither one device nor fusions.
    seconds = remat._time() if remat.module.is_scheduled else None
    try:
        data = remat._data.policies(seconds, host, device=device_of(remat))
    except ValueError as error:
        reason, *rows = error.args
        loops = [remat.module.instructions[row].name for row in rows]
        return fields.REASONS[reason].format(*loops)
    policies = Policies(remat, data, hbm, usable)
    least = policies.policy("nothing_saveable")
    if not policies.is_checkpointed and least.kept > policies.as_compiled.kept:
        return fields.REASONS["other-layers"].format(policies.iteration + "s")
    return policies
