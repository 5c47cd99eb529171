"""A message beside its module: allocations as instructions, live ranges, and a plan."""

from __future__ import annotations

from hlofast import _text
from hlofast._messages.advice import Advice
from hlofast._policy_fields import error_of
from hlofast._result import Note, Section
from hlofast._shares import TOGETHER, devices_together, note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._memory import Memory
    from hlofast._messages.entries import Entry
    from hlofast._messages.message import Message
    from hlofast._module import Module

_NONE = (None, None, None, None, None)


class Joined:
    """The joins of messages to one module, computed once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.memory: Memory | None = None
        """None if the memory of the module cannot be analysed; `no_memory` says why."""
        self.no_memory = ""
        self._found: dict[int, list[tuple[Any, ...]]] = {}
        try:
            from hlofast._memory import quiet

            self.memory = quiet(module)
            self._values = list(self.memory.values())
            self._live = {(row["name"], row["index"]) for row in self.memory.live}
        except (ValueError, OverflowError) as error:
            self.memory, self.no_memory = None, str(error)
            self._values, self._live = [], set()
        self._by_name: dict[str, list[dict[str, Any]]] = {}
        for row in self._values:
            self._by_name.setdefault(row["name"], []).append(row)
        self._by_op: dict[str, list[dict[str, Any]]] = {}
        for row in self._values:
            if row["op_name"] is not None:
                self._by_op.setdefault(row["op_name"], []).append(row)
        self._rows = {name: row for row, name in enumerate(module.table().values("name"))}

    @property
    def _of_one(self) -> bool:
        """Whether live values are those of one device, as the message's figures are."""
        return devices_together(self.module) == 1

    def of(self, message: Message) -> list[tuple[Any, ...]]:
        """Returns instruction row, first and last step, at the peak and class, by allocation."""
        found = self._found.get(id(message))
        if found is None:
            found = self._found[id(message)] = [self._entry(own) for own in message.entries]
        return found

    def _entry(self, entry: Entry) -> tuple[Any, ...]:
        rows = self._by_name.get(entry.name or "", [])
        if not rows and entry.op_name is not None:
            rows = self._by_op.get(entry.op_name, [])
        shape = _bare(entry.shape)
        same = [row for row in rows if shape is None or _bare(row["shape"]) == shape]
        if not same:
            # The module may be of another pass: its instruction, without a live range.
            row = self._rows.get(entry.name or "")
            if row is not None and not rows:
                return (row, None, None, None, None)
            return _NONE
        own = same[0]
        at_peak = any((row["name"], row["index"]) in self._live for row in same)
        told = own["instruction"], own["first_step"], own["last_step"]
        return (*told, "yes" if at_peak else "no", own["class"])

    def facts(self, main: Message | None) -> Iterator[tuple[str, Any, str]]:
        """Yields what the module allocates, its peak, and how many allocations are joined."""
        if self.memory is not None:
            needed = self.memory.needed
            if self.memory.allocated_in_hbm is not None and needed is not None:
                yield "allocated_in_hbm", needed[0], needed[1]
            if self.memory.peak_before is not None:
                yield "modelled_peak", self.memory.peak_before.peak, "modelled"
            elif self._of_one:
                yield "live_peak", self.memory.live_peak, "modelled"
        if main is not None:
            yield "joined", sum(own[0] is not None for own in self.of(main)), "exact"

    def notes(self, main: Message) -> Iterator[Note]:
        """Yields why joins are missing."""
        joined = [own[0] is not None for own in self.of(main)]
        if joined and not all(joined):
            text = (
                f"{joined.count(False):,} of {len(joined):,} allocations are not in module "
                f"{self.module.name}: it may be of another pass, or of another program"
            )
            yield Note("not_joined", text, missing=joined.count(False), listed=len(joined))
        if self.no_memory:
            yield Note("no_memory", f"live ranges unknown: {self.no_memory}")
        elif (own := note(self.module)) is not None:
            yield Note(own.code, f"module {self.module.name}: {own.text}", **own.figures)
        if self.memory is not None and (before := self.memory.peak_before) is not None:
            yield Note("modelled-peak", f"module {self.module.name}: {error_of(before)}")

    def sections(self) -> tuple[Section, ...]:
        """The classes of values that are live at the module's peak, and these values."""
        if self.memory is None:
            return ()
        groups, live, *_ = self.memory.sections()
        together = "" if self._of_one else TOGETHER
        title = f"Module {self.module.name}{together} at its peak, by class"
        return (
            Section("peak", title, groups.table, groups.columns),
            Section("live", live.title, live.table, live.columns),
        )

    def advice(self, message: Message) -> list[Advice]:
        """Returns what `remat` says lowers the peak, if the message is about temporaries.

        A checkpoint policy that fits, otherwise a plan of single values.
        """
        limit = message.figures.get("limit")
        if message.space not in ("hbm", "gpu") or self.memory is None or not self.memory.live_peak:
            return []
        try:
            plan = self.module.remat(hbm=None if limit is None else limit.bytes)
            if not len(plan.residuals):
                return []
            policies = plan.policies
            chosen = None if policies is None else policies.chosen
            # Where the model lets the step fit as it is, the chosen policy may be a faster one.
            is_lower = policies is not None and chosen and chosen.peak < policies.peak
            if policies is not None and chosen is not None and chosen.fits and is_lower:
                text = (
                    f"put the layers of module {self.module.name} under jax.checkpoint with "
                    f"{chosen.counted}: its peak goes from {_text.size(policies.peak)} to about "
                    f"{_text.size(chosen.peak)}, which fits (modelled; hlofast remat --hbm "
                    f"{plan.hbm} gives the code)"
                )
                return [Advice("residuals", text, policies.peak - chosen.peak)]
            if not self._of_one:
                return []  # A plan would be for the bytes of all devices together.
            saved = plan.peak - plan.peak_after
            outcome = "" if plan.fits is None else ", which fits" if plan.fits else ", not enough"
            steps = len(plan.steps)
        except (ValueError, OverflowError, MemoryError):
            return []
        if saved <= 0:
            return []
        text = (
            f"rematerialise {_text.counted(steps, 'value')} of module {self.module.name}: its peak "
            f"goes from {_text.size(plan.peak)} to {_text.size(plan.peak_after)}{outcome} "
            "(hlofast remat --plan lists them)"
        )
        return [Advice("residuals", text, saved)]


def _bare(shape: str | None) -> str | None:
    """A shape without its layout."""
    return None if shape is None else shape.partition("{")[0].replace(" ", "")
