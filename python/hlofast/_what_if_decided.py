"""What of a change the compiled text decides, and what the compiler may choose otherwise.

Sizes follow from the text, choices of the compiler do not: whether a matmul passes shards around
a ring, how sums of scalars are combined, and, where the model of the partitioner
(`_what_if_lookup.py`) does not make the collectives of the text, how a lookup is split. A
collective that such a choice makes is undecided if the change can alter the choice. Thresholds are
those of the programs of `what_if_models.py` that rules may be made for, with a margin.
"""

from __future__ import annotations

import re
from math import prod

from hlofast import _memory
from hlofast._what_if_heads import of_one_head
from hlofast._what_if_lookup import of_lookup
from hlofast._what_if_padding import is_halo
from hlofast._what_if_waiting import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from hlofast._module import Module
    from hlofast._what_if import WhatIf

    Work = tuple[list[tuple[int, float]], list[int]]

LOOKUP = "lookup"
MATMUL = "matmul"
PADDING = "padding"
SCALARS = "scalars"
ONE = "one"
SIZE = "size"
RESHARD = "reshard"
SCORES = "scores"
POLICY = "policy"
LOOPS = "loops"
FAST = "fast"
DERIVED = "derived"
PART = "part"
ORDER = "order"
WHY = {
    LOOKUP: "the partitioner may split the table lookup differently",
    MATMUL: "the compiler may pass shards of matmuls around a ring, or stop doing so",
    PADDING: "shards of sums may be padded differently, or sums not scattered",
    SCALARS: "sums of scalars may be combined differently",
    ONE: "dimensions of one element, which compiled shapes lack, grow or vanish",
    RESHARD: "operands of a matmul are resharded along other axes, which may change",
    SIZE: "sizes are attributed by an assumption, or to nothing",
    LOOPS: "loops over sequences have trip counts that are literals of the program",
    POLICY: "the compiler fuses, schedules and combines anew under another policy",
    ORDER: "values wait at the peak for matmuls that the compiler may run earlier",
    SCORES: "arrays of positions by positions may be fused differently",
    DERIVED: "sizes that no parameter explains look derived from the changed one",
    PART: "a part of the step is not tied to the batch, and may follow it",
    FAST: "arrays may change between fast memory and HBM, and fast memory holds many of them",
}
"""By reason: why the text does not decide."""

_FEW_TOKENS = 0.26
"""Tokens by rows of the table, per device along the axes that divide its width, below which the
partitioner exchanges tokens: half of the smallest ratio at which a fitted program does not."""
_MANY_TOKENS = 2.0
"""The ratio above which it exchanges the table: twice the largest ratio at which one does not."""
_RING = 8
"""Devices along an axis from which on matmuls pass shards around a ring in all fitted programs;
from three to seven it depends on the places of the devices."""
_FEW_SHARDS = 2
"""Devices up to which sums are scattered however narrow shards become."""
_WEIGHTS = frozenset(("weight", "gradient"))
_SCALARS = 4096
"""Bytes of collectives of scalars at most."""
_SMALL = 0.01
"""The share of FLOPs that may be of unsure matmuls in a figure: the error of a change stays below
it where these are divided by two as many devices, or not at all."""
_LITTLE = 0.75
"""The share of a batch up to which fewer sequences have to show in the FLOPs of matmuls."""
_FOLLOWS = 0.1
"""The share of the batch's change below which FLOPs do not follow it."""
MOSTLY = 0.8
"""The share of the change that the FLOPs of a whole step follow; its optimizer may have some."""


def undecided(result: WhatIf) -> dict[str, str]:
    """Returns a reason, a key of `WHY`, by name of each collective that is not decided."""
    found = dict(_Choices(result).collectives())
    # What puts rows of padded shards back in their places follows the shards.
    moved_back = {name: found[own] for name, own in result._padding.halos.items() if own in found}
    return moved_back | found


def unsure_share(work: Work, changed: Module) -> float:
    """Returns the share of FLOPs of matmuls that may compute more or less; 0 if it is small."""
    _, unsure = work
    flops = _matmul_flops(changed) if unsure else {}
    share = sum(flops.get(row, 0) for row in unsure) / (sum(flops.values()) or 1)
    return share if share > _SMALL else 0.0


def missing_flops(work: Work, changed: Module) -> int:
    """Returns the FLOPs that shapes and trip counts of matmuls do not tell."""
    factors, _ = work
    flops = _matmul_flops(changed) if factors else {}
    return round(sum((factor - 1) * flops.get(row, 0) for row, factor in factors))


def ignores_batch(result: WhatIf) -> bool:
    """Returns whether matmuls compute as much although the batch changes.

    The program then counts sequences in loops of its own, as pipelines do.
    """
    share = result._followed
    return share is not None and abs(share) < _FOLLOWS


def followed(result: WhatIf) -> float | None:
    """Returns which share of a change of the batch the FLOPs of matmuls follow.

    None if the batch stays. Small changes, and changes together with others, are judged by twice
    the batch.
    """
    own = {number: size for number, size in result.asked.items()
           if size != result.symbols[number].size
           and result._renamed.get(number, result.symbols[number].role) == "batch"}  # fmt: skip
    if not own:
        return None
    before = sum(_matmul_flops(result.module).values())
    more = _more(result, own)
    is_alone = result.new_mesh is None and all(
        number in own or size == result.symbols[number].size
        for number, size in result.asked.items()
    )
    changed = result.changed
    if not is_alone or _LITTLE < more < 1 / _LITTLE:
        from hlofast._module import Module

        own = {number: 2 * result.symbols[number].size for number in own}
        more = _more(result, own)
        try:
            changed = Module(result._scaling.apply(own.items(), None)[0])
        except (ValueError, OverflowError):
            return None  # The mesh does not divide twice the batch.
    after = sum(_matmul_flops(changed).values())
    return (after / before - 1) / (more - 1) if before > 0 else None


def _more(result: WhatIf, sizes: dict[int, int]) -> float:
    """Returns by what all batches together grow."""
    return prod(size / result.symbols[number].size for number, size in sizes.items())


def growth(result: WhatIf) -> float:
    """Returns by what the batch grows; 1 if it stays."""
    return _more(result, {
        number: size for number, size in result.asked.items()
        if result._renamed.get(number, result.symbols[number].role) == "batch"
    })  # fmt: skip


def is_in_part(result: WhatIf) -> bool:
    """Returns whether the FLOPs of matmuls follow a part of a change of the batch, or nothing."""
    share = result._followed
    return share is not None and share < MOSTLY


def flops_between(result: WhatIf) -> tuple[int, int] | None:
    """Returns FLOPs after the change without and with the work that nothing ties to it.

    What is too little to be told is allowed for. None if the text ties all work to it.
    """
    least = round(result.changed.cost().flops + result.moves_work)
    most = least
    share = result._followed
    if share is not None and is_in_part(result):
        more = growth(result)
        most = round(least * more / (1 + share * (more - 1)))
    if result._derived.share:
        # What is not in matmuls grows at most as often as what changes.
        others = least - sum(_matmul_flops(result.changed).values())
        most += result._derived.more_flops
        most += round(others * (result._derived.growth - 1))
    if most == least:
        return None
    least, most = sorted((least, most))
    return round(least * (1 - _SMALL)), round(most * (1 + _SMALL))


def grows_from_one(result: WhatIf) -> bool:
    """Returns whether a device of another mesh has several sequences instead of one.

    Compiled shapes then lack the batch, and matmuls that pass shards around a ring may seem to
    compute less: on `held_fsdp_v6e` FLOPs are up to 33 % off.
    """
    return result.new_mesh is not None and _Choices(result).grows_from_one()


def is_much(flops: int, changed: Module) -> bool:
    """Returns whether these FLOPs are too many of a module's to be left out of its time."""
    return abs(flops) > _SMALL * changed.cost().flops


def _matmul_flops(module: Module) -> dict[int, int]:
    """By row: the FLOPs of a matmul in a step."""
    table = module.matmuls()
    flops: dict[int, int] = {}
    # Calls in several phases have a row each.
    for row, own in zip(table.values("instruction"), table.values("flops"), strict=True):
        flops[row] = flops.get(row, 0) + (own or 0)
    return flops


ANYWHERE = frozenset((LOOKUP, RESHARD, SCALARS))
"""Reasons with which other axes may be used than in the module."""
OFF = {
    SCORES: (-0.41, 0.48),
    MATMUL: (-0.41, 0.48),
    ONE: (-0.41, 0.05),
    POLICY: (-0.12, 0.12),
    ORDER: (0, 0.07),
    DERIVED: (-0.07, 0.07),
}
"""By reason: smallest and largest error of the peak in changes of the fitted programs."""
_MOVED = 0.46
"""The share of the bytes in fast memory that the compiler may place otherwise: the largest error in
nine changes of the batch of `layers_v6e_8`, `decoder_v5e_2` and `decoder_v6e_4` of `sharded/`,
compiled, whose peaks or allocated bytes are off by at most 46 % of these bytes."""
_MUCH = 0.05
"""The share of the memory in HBM above which such bytes leave a peak undecided, and of the peak
above which bytes that wait there do."""


def moved(result: WhatIf) -> int:
    """Returns the bytes that the compiler may move between fast memory and HBM."""
    if not result.is_changed:
        return 0
    return round(_MOVED * max(_fast(own) for own in (result.module, result.changed)))


def counts_fast_memory(module: Module) -> bool:
    """Returns whether XLA's peak of a module counts the heap of fast memory."""
    return _account(module).get("heap_memory_space", 0) != 0 and bool(_fast(module))


def _fast(module: Module) -> int:
    """The bytes in fast memory at once."""
    return _account(module).get("fast_peak_in_bytes") or 0


def _account(module: Module) -> dict[str, int]:
    return _memory.quiet(module)._account()


def _peak_of(module: Module) -> int | None:
    return _memory.quiet(module).xla_peak


def between(result: WhatIf, needed: int, before: int | None, is_fast: bool) -> tuple[int, int]:
    """Returns what modelled bytes may be, from the errors of changes with the same reasons.

    If all sizes change one way, they are not less, or not more, than the bytes `before`: of the 52
    pairs of compiled variants in `what_if/records.jsonl` that differ in one of batch, sequence and
    layers, none needs less HBM with more of it. With `is_fast` they count the heap of fast memory,
    which may be as much smaller or larger as arrays may move.
    """
    reasons = result.peak_undecided
    errors = [OFF[own] for own in reasons if own in OFF]
    low, high = (
        min((own[0] for own in errors), default=0),
        max((own[1] for own in errors), default=0),
    )
    least, most = int(needed / (1 + high)), int(needed / (1 + low))
    if ORDER in reasons:
        least = min(least, max(needed - waiting(result._ordered), 0))
    slack = moved(result) if FAST in reasons or is_fast else 0
    if FAST in reasons:
        least, most = max(least - slack, 0), most + slack
    if before is not None:
        # What is not tied to the change may follow it.
        more = growth(result) if PART in reasons else 1.0
        if result._derived.share:
            more *= result._derived.growth**result._derived.power
        if more < 1:
            least = min(least, int(before * more))
        elif more > 1:
            most = max(most, int(before * more) + slack)
    slack = slack if is_fast else 0
    if before is not None and (sign := way(result)):
        if sign > 0:
            least, most = max(least, before - slack), max(most, before)
        else:
            least, most = min(least, before), min(most, before + slack)
    return least, most


def way(result: WhatIf) -> int:
    """Returns 1 if sizes only grow, -1 if they only shrink, 0 if neither or more changes."""
    asked = result.asked.items()
    signs = {(new > old) - (new < old) for number, new in asked
             if (old := result.symbols[number].size) != new}  # fmt: skip
    is_alone = result.policy is None and result.new_mesh in (None, result.mesh)
    return signs.pop() if len(signs) == 1 and is_alone else 0


def peak(result: WhatIf) -> list[str]:
    """Returns the reasons why the text does not decide the peak."""
    return list(_Choices(result).of_peak())


class _Choices:
    """What the compiler chose in a module, and may choose after a change."""

    def __init__(self, result: WhatIf) -> None:
        self.result = result
        self.rows: list[dict[str, Any]] = list(result.module.collectives()._ordered())
        self.sent: dict[str, int | None] | None = None
        self.unsure, self.unattributed, self.lookups, self.is_quadratic = result._choices
        self.old: Mapping[str, int] = result.mesh.shape if result.mesh is not None else {}
        new_mesh = result.new_mesh or result.mesh
        self.new: Mapping[str, int] = new_mesh.shape if new_mesh is not None else {}
        self.is_mesh = any(self.old[name] != self.new[name] for name in self.old)
        self.of_role = {
            role: [own for own in result.symbols if own.role == role]
            for role in ("batch", "sequence")
        }
        self.tokens = self._tokens(lambda own: own.size), self._tokens(self._size)
        changed = [own for own in result.symbols if self._size(own) != own.size]
        self.is_input = any(own.role in self.of_role for own in changed)
        self.is_sequence = any(own.role == "sequence" for own in changed)
        self.is_layers = any(own.role == "layers" for own in changed)

    def _size(self, symbol: Any) -> int:
        return int(self.result.asked.get(symbol.number, symbol.size))

    def _tokens(self, size: Any) -> int:
        batch = max((size(own) for own in self.of_role["batch"]), default=1)
        return int(batch * max((size(own) for own in self.of_role["sequence"]), default=1))

    def collectives(self) -> Iterator[tuple[str, str]]:
        """Yields name and reason."""
        if not self.is_mesh and not self.is_input:
            layers = (row for row in self.rows if not of_lookup(row)) if self.is_layers else ()
            yield from ((row["name"], SIZE) for row in layers if self._size_reason(row))
            return
        if self.result.ignores_batch:
            yield from ((row["name"], LOOPS) for row in self.rows)
            return
        is_one, is_lookup = self._one(), self._is_lookup_open()
        sums = {row["axes"] for row in self.rows if _is_scalar(row)}
        halos = {row["axes"] for row in self.rows if is_halo(row)}
        lookups = self.result._lookups
        known = {*lookups.removed, *lookups.kept} if lookups is not None else set()
        padding = self.result._padding
        again, split = of_one_head(self.result, self.rows)
        for row in self.rows:
            reason = None
            if padding.halos.get(row["name"]) in padding.known:
                continue  # It follows the shards.
            is_gradient = row["name"] in padding.known & padding.scattered
            if lookups is not None and row["name"] in known:
                if not lookups.is_sure:
                    yield row["name"], LOOKUP
                elif row["axes"] in lookups.padded and row["kind"] == "reduce-scatter":
                    yield row["name"], PADDING
                elif (
                    self.is_mesh
                    and row["instruction"] in self.unsure
                    and _is_of_table(row)
                    and row["name"] not in padding.known
                    and not self._sums_whole(row, lookups.parts.get(row["name"]))
                ):
                    yield row["name"], SIZE  # What it sums beside is not known.
                continue  # What the partitioner makes of it is known.
            if (is_one and not _is_scalar(row)) or row["name"] in again:
                reason = ONE
            elif of_lookup(row):
                reason = LOOKUP if is_lookup else None
            elif self.is_mesh and _is_scalar(row):
                reason = SCALARS if len(sums) > 1 and self._is_one_device() else None
            elif self.is_mesh and self._may_turn(row) and not self._shares_batch(row):
                reason = MATMUL
            elif self.is_mesh and _reshards(row):
                reason = RESHARD
            elif self.is_mesh and self._may_be_padded(row, halos):
                reason = PADDING
            if reason is None and not split.isdisjoint(re.split("[×:]", row["axes"] or "")):
                reason = ONE
            if reason is None and not is_gradient:
                reason = self._size_reason(row)
            if reason is not None:
                yield row["name"], reason

    def _sums_whole(self, row: dict[str, Any], parts: list[int] | None) -> bool:
        """Whether what is summed beside `parts` is as large as parameters that all devices hold."""
        if parts is None:
            return False
        module = self.result.module
        whole = {
            own.shape.dimensions
            for own in module.entry.parameters
            if own.sharding is not None and own.sharding.is_replicated and own.shape.is_array
        }
        operands = enumerate(module.instructions[row["instruction"]].operands)
        beside = [own.shape for place, own in operands if place not in parts]
        return all(own.rank == 0 or own.dimensions in whole for own in beside)

    def _is_one_device(self) -> bool:
        """Whether an axis has one device before or after: sums along it then vanish or appear."""
        return any(1 in (self.old[axis], self.new[axis]) for axis in self.old
                   if self.old[axis] != self.new[axis])  # fmt: skip

    def _may_be_padded(self, row: dict[str, Any], halos: set[str | None]) -> bool:
        """Whether a collective may be padded, or put rows back, in a way that is not known."""
        padding = self.result._padding
        if row["name"] in padding.open:
            return True
        if row["name"] in padding.known:
            return False
        if row["kind"] == "reduce-scatter":
            is_large = self.new.get(row["axes"] or "", _FEW_SHARDS + 1) > _FEW_SHARDS
            return is_large or row["axes"] in halos or row["name"] in padding.scattered
        return is_halo(row)

    def _size_reason(self, row: dict[str, Any]) -> str | None:
        """`SIZE` if the change may give a collective another size than the changed text has.

        On the same mesh weights and their sums keep their sizes, and of others all fitted ones that
        are attributed by an assumption are right. Where dimensions are attributed to nothing, the
        changed text has them as they were, whatever flows into them.
        """
        if _is_scalar(row):
            return None
        if self.is_mesh or (of_lookup(row) and not _is_of_table(row)):
            return SIZE if row["instruction"] in self.unsure else None
        if row["tensor_kind"] in _WEIGHTS or _is_of_table(row):
            return None
        return SIZE if row["instruction"] in self.unattributed else None

    def of_peak(self) -> Iterator[str]:
        """Yields the reasons why the peak is undecided."""
        if self.result.policy is not None:
            yield POLICY
        if self._one():
            yield ONE
        if self.result._derived.share or self.result._derived.followed:
            yield DERIVED
        if is_in_part(self.result):
            yield PART
        if self.is_sequence and self.is_quadratic:
            yield SCORES
        if self.is_mesh and any(self._may_turn(row) for row in self.rows if not of_lookup(row)):
            yield MATMUL
        changed = self.result._ordered
        if self.result.is_changed and waiting(changed) > _MUCH * (_peak_of(changed) or 0):
            yield ORDER
        needed = self.result.figures["allocated_in_hbm"][1]
        if needed is not None and moved(self.result) > _MUCH * needed:
            yield FAST

    def _sequences(self) -> Iterator[tuple[int, int]]:
        """Yields the sequences of a device before and after, by input."""
        for own in self.of_role["batch"]:
            before = own.size // prod(self.old.get(axis, 1) for axis in own.axes)
            yield before, self._size(own) // prod(self.new.get(axis, 1) for axis in own.axes)

    def _one(self) -> bool:
        """Whether a device has one sequence before or after, and another number otherwise."""
        own = self._sequences()
        return any(before != after and min(before, after) <= 1 for before, after in own)

    def grows_from_one(self) -> bool:
        """Whether a device of another mesh has several sequences instead of one."""
        return self.is_mesh and any(before <= 1 < after for before, after in self._sequences())

    def _is_lookup_open(self) -> bool:
        """Whether the partitioner may split lookups otherwise."""
        own = [row for row in self.rows if of_lookup(row)]
        batch = {axis for symbol in self.of_role["batch"] for axis in symbol.axes}
        before, after = self.tokens
        if not own:
            return False
        if self.is_mesh and any(_deals(row) for row in own):
            return True
        for rows, axes in self.lookups:
            if not batch.intersection(axes):
                continue
            was, now = (
                tokens / prod(mesh.get(axis, 1) for axis in axes) / rows
                for tokens, mesh in ((before, self.old), (after, self.new))
            )
            is_far = max(was, now) <= _FEW_TOKENS or min(was, now) >= _MANY_TOKENS
            if is_far or (was == now and not self.is_mesh):
                continue
            if self.is_mesh or len(self.lookups) > 1:
                return True
            moves_tokens = any(_is_backward(row) and self._grows(row) for row in own)
            if now > was if moves_tokens else now < was:
                return True
        return False

    def _grows(self, row: dict[str, Any]) -> bool:
        """Whether the bytes of a collective follow the number of tokens."""
        if self.sent is None:
            self.sent = self.result._sent
        return bool(self.sent.get(row["name"]) != row["wire_bytes"])

    def _shares_batch(self, row: dict[str, Any]) -> bool:
        """Whether a collective of weights has an axis that divides the batch with others.

        Rings multiply shards of weights with the rows of as many devices: none is made where more
        axes divide the rows, in fitted programs and in eight steps compiled to see that.
        """
        axis = row["axes"]
        if row["kind"] == "collective-permute" or row["tensor_kind"] not in _WEIGHTS:
            return False
        return any(axis in own.axes for own in self.of_role["batch"]) and all(
            any(mesh.get(other, 1) > 1 for other in own.axes if other != axis)
            for own in self.of_role["batch"]
            if axis in own.axes
            for mesh in (self.old, self.new)
        )

    def _may_turn(self, row: dict[str, Any]) -> bool:
        """Whether a collective of weights may become a ring of transfers, or the reverse."""
        kind, axes = row["kind"], row["axes"] or ""
        is_ring = kind == "collective-permute" and "dot_general" in (row["op_name"] or "")
        if not is_ring and kind not in ("all-gather", "reduce-scatter"):
            return False
        if axes not in self.old:
            return False
        sizes = self.old[axes], self.new[axes]
        if is_ring and min(sizes) >= _RING:
            return False
        # `dot_handler.cc` of XLA's partitioner makes a ring only if it saves more than two of its
        # transfers take: never on two devices.
        return max(sizes) > 2


def _is_backward(row: dict[str, Any]) -> bool:
    return "scatter" in (row["op_name"] or "").rpartition("/")[2]


def _is_of_table(row: dict[str, Any]) -> bool:
    """Whether a collective sums the gradient of a table."""
    return _is_backward(row) and str(row["kind"]) in ("all-reduce", "reduce-scatter")


def _is_scalar(row: dict[str, Any]) -> bool:
    return row["kind"] == "all-reduce" and (row["payload"] or 0) <= _SCALARS


def _reshards(row: dict[str, Any]) -> bool:
    """Whether a matmul is made along other axes than those that divide its operands.

    Programs in whose texts one is, `moe_v5e` and `vision_v5e`, have others on other meshes.
    """
    is_across = "×" in (row["axes"] or "") and row["kind"] in ("all-reduce", "collective-permute")
    return is_across and (row["op_name"] or "").endswith("dot_general")


def _deals(row: dict[str, Any]) -> bool:
    """Whether a collective deals shards out over parts of axes, or transfers along several."""
    axes = row["axes"] or "?"
    return ":" in axes or "?" in axes or (row["kind"] == "collective-permute" and "×" in axes)
