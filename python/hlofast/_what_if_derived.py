"""Sizes that a program derives from the size of an input, and that the text does not tie to it.

Two strided convolutions make T/4 positions of T frames, and the compiler tiles them in shapes that
tell nothing of T. All work behind them then keeps its size when the sequence changes. Such work is
found by what it lacks: matmuls of activations that have the batch, and neither grow nor have a
dimension of another input. A size of these matmuls that no parameter explains and that is a
fraction of the sequence is taken to follow it: the module is attributed again with a parameter of
that size beside the array that has it. What still does not grow leaves FLOPs and peak a range.
"""

from __future__ import annotations

from functools import cache
from math import prod
from operator import ne

from hlofast import _core
from hlofast._what_if_symbols import Symbol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from hlofast._core import Instruction, Mesh, Shape
    from hlofast._module import Module

    Tagged = list[tuple[int, str]]
    """The dimensions of an array: size, and the letters of what they follow."""

_FACTORS = {"s": 5, "b": 3, "o": 7}
"""By letter: by what sizes are multiplied to see what a dimension follows. `s` is what changes, `b`
other dimensions of inputs, `o` all other parameters."""
_TAGS = sorted(
    (5**s * 3**b * 7**o, "s" * s + "b" * b + "o" * o)
    for s in range(3)
    for b in range(3)
    for o in range(3)
)
"""The ratios that follow, and their letters."""
_SMALL = 0.01
"""The share of FLOPs up to which it does not matter that matmuls keep their sizes."""
_ALIKE = 0.001
"""The share of FLOPs by which a matmul that keeps them may differ."""
_FEWEST = 64
"""The largest number of elements of the sequence for one of a derived dimension."""
_LEAST = 8
"""The fewest positions: smaller dimensions are parts of others, such as groups of heads."""
_BORDER = 2
"""Elements that windows without padding cut off at most."""
_ROUNDS = 2
"""How many sizes are tied at most."""
_PREFIX = "hlofast.derived"
"""How the names of added instructions begin."""


class Derived:
    """What of a change follows the input by assumption, or not at all."""

    __slots__ = ("followed", "growth", "more_flops", "power", "share", "sizes")

    def __init__(self) -> None:
        self.followed: list[tuple[int, int, int]] = []
        """Sizes that are taken to follow: before, after, and the size that they follow."""
        self.sizes: list[int] = []
        """Sizes that look derived and stay."""
        self.share = 0.0
        """The share of FLOPs of matmuls with these sizes; 0 if it is small."""
        self.more_flops = 0
        """FLOPs that these matmuls have more if the sizes follow; negative if they shrink."""
        self.power = 1
        """How often a matmul has such a size at most."""
        self.growth = 1.0
        """The new size of what changes by the old."""


class Scaling:
    """A module with an attribution, and the changes that can be made of it."""

    def __init__(self, module: Module, mesh: Mesh | None) -> None:
        self.module = module
        self.mesh = mesh
        self.data = _core._scale(module, mesh)
        self.symbols = [Symbol(at, fields) for at, fields in enumerate(self.data.symbols())]
        self.added: list[tuple[str, int]] = []
        """Name of each added parameter, and its new size."""
        self.text = module
        self._is_quadratic = False

    def __getstate__(self) -> dict[str, Any]:
        # The attribution of the core stays in its process, and is recomputed in the other.
        return {name: value for name, value in vars(self).items() if name != "data"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.data = _core._scale(self.text, self.mesh)

    def apply(self, asked: Iterable[tuple[int, int]], mesh: Mesh | None) -> Any:
        """Returns what `_core` makes of new sizes, without the instructions that were added."""
        if not self.added:
            return self.data.apply(list(asked), mesh)
        own = self._numbers()
        sizes = [(own[number], size) for number, size in asked]
        sizes += [(own[name], size) for name, size in self.added]
        changed, rounded, loops, groups, (factors, unsure) = self.data.apply(sizes, mesh)
        from hlofast._module import Module

        plain = _without(Module(changed))
        at = _rows(plain)
        names = changed.names()
        moved = [(at[names[old]], by) for old, by in factors if names[old] in at]
        still = [at[names[old]] for old in unsure if names[old] in at]
        return plain, rounded, loops, groups, (moved, still)

    def choices(self) -> Any:
        """Returns the choices of `_core`, with rows of the module itself."""
        unsure, unattributed, lookups, is_quadratic = self.data.choices()
        if self.added:
            at = _rows(self.module)
            names = self.text.names()
            unsure = [at[names[own]] for own in unsure if names[own] in at]
            unattributed = [at[names[own]] for own in unattributed if names[own] in at]
        return unsure, unattributed, lookups, is_quadratic or self._is_quadratic

    def _numbers(self) -> dict[int | str, int]:
        """By number of a symbol, or name of an added parameter: its number as attributed anew."""
        found: dict[int | str, int] = {}
        by_place: dict[tuple[str, int], int] = {}
        for number, fields in enumerate(self.data.symbols()):
            for place in fields[3]:
                by_place[place] = number
                if place[0].startswith(_PREFIX):
                    found[place[0]] = number
        for own in self.symbols:
            if own.parameters and own.parameters[0] in by_place:
                found[own.number] = by_place[own.parameters[0]]
        return found

    def probed(self, wanted: set[int], beside: set[int]) -> dict[str, list[Tagged]]:
        """By name of an instruction: what the dimensions of its arrays follow."""
        letters = {own.number: "s" if own.number in wanted else "b" if own.number in beside else "o"
                   for own in self.symbols}  # fmt: skip
        sizes = {own.number: own.size * _FACTORS[letters[own.number]] for own in self.symbols}
        if self.added:
            own = self._numbers()
            known = self.data.symbols()
            sizes = {own[number]: size for number, size in sizes.items() if number in own}
            sizes |= {own[name]: known[own[name]][1] * _FACTORS["s"] for name, _ in self.added}
        after = {own.name: own.shape for own in self.data.apply(list(sizes.items()), None)[0]
                 .instructions}  # fmt: skip
        return {
            own.name: list(_tagged(own.shape, after[own.name]))
            for own in self.module.instructions
            if own.name in after
        }

    def look_for_squares(self, changed: Module) -> None:
        """Notes whether arrays in memory have what changes in two dimensions."""
        shapes = {own.name: own.shape for own in changed.instructions}
        self._is_quadratic = any(
            own.shape.is_array
            and sum(map(ne, own.shape.dimensions or (), shapes[own.name].dimensions or ())) > 1
            and not _is_fused(own)
            for own in self.module.instructions
            if own.name in shapes
        )

    def tie(self, value: Instruction, place: int, size: int, new: int) -> None:
        """Attributes the module again where dimension `place` of `value` is a parameter's."""
        number = len(self.added)
        lines = self.text.text.split("\n")
        at = self.text.instructions[value.name].text_line
        assert at is not None
        own = f"{value.shape.element_type}[{','.join(map(str, value.shape.dimensions))}]"
        name = f"{_PREFIX}.{number}"
        parameter = len(self.text.entry.parameters)
        lines[at:at] = [
            f"  %{name} = f32[{size}] parameter({parameter}), sharding={{replicated}}, "
            f'metadata={{op_name="{name}"}}',
            f"  %{name}.spread = {own} broadcast(%{name}), dimensions={{{place}}}",
            f"  %{name}.tie = {own} add(%{value.name}, %{name}.spread)",
        ]
        from hlofast._module import loads

        text = loads("\n".join(lines).encode("utf-8", "surrogateescape"))
        self.text = text.with_context(self.module.context)
        self.data = _core._scale(self.text, self.mesh)
        self.added.append((name, new))


def _without(module: Module) -> Module:
    """Returns a module without added instructions."""
    from hlofast._module import loads

    mark = f"%{_PREFIX}."
    lines = [own for own in module.text.split("\n") if not own.lstrip().startswith(mark)]
    return loads("\n".join(lines).encode("utf-8", "surrogateescape"))


def _rows(module: Any) -> dict[str, int]:
    """By name: the number of an instruction in the module."""
    return {name: row for row, name in enumerate(module.names())}


def _is_fused(own: Instruction) -> bool:
    return any(caller.opcode == "fusion" for caller in own.computation.callers)


def _tagged(before: Shape, after: Shape) -> Iterator[Tagged]:
    """Yields the dimensions of each array, without those of one element."""
    pairs = [(before, after)]
    if not before.is_array:
        pairs = list(zip(before.leaves(), after.leaves(), strict=True))
    for own, new in pairs:
        if own.is_array and own.rank == new.rank:
            sizes = zip(own.dimensions or (), new.dimensions or (), strict=True)
            yield [(size, _tag(size, now)) for size, now in sizes if size and now and size > 1]


@cache
def _tag(size: int, now: int) -> str:
    """Returns the letters of what a dimension follows; empty if nothing."""
    if now <= size:
        return ""
    # A constant that is added to a size moves the ratio a little.
    return min(_TAGS, key=lambda own: abs(now / (size * own[0]) - 1))[1]


def find(
    scaling: Scaling,
    asked: dict[int, int],
    renamed: dict[int, str],
    new_mesh: Mesh | None,
) -> Derived:
    """Returns what of a change follows by assumption or not at all; ties sizes in `scaling`."""
    derived = Derived()
    symbols = scaling.symbols
    wanted = {
        number
        for number, size in asked.items()
        if size != symbols[number].size
        and (symbols[number].role == "sequence" or number in renamed)
        and renamed.get(number) != "layers"
    }
    if not wanted:
        return derived
    first = min(wanted)
    derived.growth = asked[first] / symbols[first].size
    # The batch may be the second dimension of other inputs.
    batches = {own.size for own in symbols if own.role == "batch"}
    beside = {
        own.number
        for own in symbols
        if own.role in ("batch", "sequence") and own.size in batches and own.number not in wanted
    }
    own = [(number, asked[number]) for number in wanted]
    for _ in range(_ROUNDS + 1):
        try:
            changed = scaling.apply(own, None)[0]
            if scaling.added:
                scaling.look_for_squares(changed)
            same = _same(scaling.module, changed)
            if sum(same.values()) <= _SMALL * sum(_flops(scaling.module).values()):
                return derived
            tags = scaling.probed(wanted, beside)
            stays = _Stays(scaling, tags, same, wanted, beside)
            if stays.share <= _SMALL:
                return derived
            is_last = len(scaling.added) == _ROUNDS
            if is_last or not _tie(scaling, stays, asked, new_mesh, derived):
                break
        except (ValueError, OverflowError):
            return derived  # Sizes that the mesh does not divide, or that are too large.
    derived.share = stays.share
    derived.sizes = sorted(stays.sizes, key=lambda size: -stays.sizes[size])
    derived.power = max(stays.powers.values())
    derived.more_flops = sum(
        round(flops * (derived.growth ** stays.powers[row] - 1))
        for row, flops in stays.flops.items()
    )
    return derived


def _tie(
    scaling: Scaling,
    stays: _Stays,
    asked: dict[int, int],
    new_mesh: Mesh | None,
    derived: Derived,
) -> bool:
    """Ties the size with most work that is a fraction of what changes; returns whether one is."""
    mesh = scaling.mesh.shape if scaling.mesh is not None else {}
    known = {size for size, _, _ in derived.followed}
    for size in sorted(stays.positions, key=lambda size: -stays.positions[size]):
        for number in sorted(stays.wanted):
            symbol = scaling.symbols[number]
            shards = prod(mesh.get(axis, 1) for axis in symbol.axes)
            new = _scaled(size, symbol.size, asked[number])
            # On another mesh the shares of devices are others, which the added size does not have.
            if new is None and shards > 1 and new_mesh in (None, scaling.mesh):
                new = _scaled(size, symbol.size // shards, asked[number] // shards)
            found = None if size in known else stays.holder(size)
            if new is not None and found is not None:
                scaling.tie(*found, size, new)
                derived.followed.append((size, new, symbol.size))
                return True
    return False


def _scaled(size: int, old: int, new: int) -> int | None:
    """Returns the new size of a fraction of `old`, less a border; None if it is none."""
    for border in range(_BORDER + 1):
        whole = size + border
        if old % whole == 0 and 1 < old // whole <= _FEWEST and new % (old // whole) == 0:
            # Elements are cut off a dimension of many, not of few.
            if border and size < _FEWEST:
                return None
            return new // (old // whole) - border
    return None


class _Stays:
    """The matmuls of activations that do not grow with an input."""

    def __init__(
        self,
        scaling: Scaling,
        tags: dict[str, list[Tagged]],
        same: dict[int, int],
        wanted: set[int],
        beside: set[int],
    ) -> None:
        self.tags = tags
        self.wanted = wanted
        self.module = scaling.module
        self.positions: dict[int, int] = {}
        """By size of positions that nothing explains: the FLOPs of matmuls with them."""
        self.merged: dict[int, int] = {}
        """By size of a batch that is merged with positions: the FLOPs of matmuls with it."""
        self.flops: dict[int, int] = {}
        self.powers: dict[int, int] = {}
        before = _flops(scaling.module)
        total = sum(before.values()) or 1
        own = {scaling.symbols[number].size for number in wanted}
        mesh = scaling.mesh.shape if scaling.mesh is not None else {}
        batches = set()
        for number in beside:
            symbol = scaling.symbols[number]
            batches |= {symbol.size, symbol.size // prod(mesh.get(axis, 1) for axis in symbol.axes)}
        self.has_one = 1 in batches
        """Whether a device has one sequence, whose dimension shapes may lack."""
        rows = [row for row in before if self._arrays(row) is not None]
        for row in rows:
            self._look(row, before[row], own, batches)
        for row in rows:
            arrays = self._arrays(row) or []
            count = sum(self._is_open(*dimension) for array in arrays for dimension in array)
            if count and row in same:
                self.flops[row] = same[row]
                # Both operands, or an operand and the result, have a dimension.
                self.powers[row] = max(count // 2, 1)
        self.share = sum(self.flops.values()) / total

    @property
    def sizes(self) -> dict[int, int]:
        """By size that nothing explains: the FLOPs of matmuls with it."""
        return self.merged | self.positions

    def _arrays(self, row: int) -> list[Tagged] | None:
        """The arrays that a matmul reads and makes."""
        own = self.module.instructions[row]
        found = [self.tags.get(one.name) for one in (*own.operands, own)]
        return [array for arrays in found for array in arrays or ()] if all(found) else None

    def _look(self, row: int, flops: int, own: set[int], batches: set[int]) -> None:
        """Notes the positions of activations that a matmul multiplies with weights."""
        arrays = self._arrays(row) or []
        if len(arrays) != 3:
            return
        *operands, result = arrays
        for rows, weights in (operands, reversed(operands)):
            if not all(set(tag) == {"o"} or not tag for _, tag in weights):
                continue
            if not any(tag for _, tag in weights):
                continue
            known = {size for size, tag in weights if not tag}
            has_batch = any("b" in tag for _, tag in rows)
            for size, tag in result:
                if not tag and size >= _LEAST and size not in known:
                    # Without a batch a device has one, or the dimension may be merged of both.
                    # What no operand has is what windows leave of positions.
                    if has_batch or any(size % one == 0 for one in batches):
                        self.positions[size] = self.positions.get(size, 0) + flops
                elif tag == "b" and (size, tag) in rows:
                    parts = [size // one for one in batches if one and size % one == 0]
                    if any(_is_fraction(part, whole) for part in parts for whole in own):
                        self.merged[size] = self.merged.get(size, 0) + flops

    def _is_open(self, size: int, tag: str) -> bool:
        return (not tag and size in self.positions) or (tag == "b" and size in self.merged)

    def holder(self, size: int) -> tuple[Instruction, int] | None:
        """Returns the largest array of the entry computation with these positions, and where."""
        best: tuple[int, Instruction, int] | None = None
        for own in self.module.entry.instructions:
            arrays = self.tags.get(own.name, [])
            if len(arrays) != 1 or not own.shape.is_array or own.opcode == "parameter":
                continue
            (array,) = arrays
            if sum(dimension == (size, "") for dimension in array) != 1 or own.text_line is None:
                continue
            letters = "".join(tag for _, tag in array)
            if "s" in letters or not ("b" in letters or self.has_one):
                continue
            many = [at for at, one in enumerate(own.shape.dimensions or ()) if one and one > 1]
            is_largest = best is None or (own.shape.bytes or 0) > best[0]
            if len(many) == len(array) and is_largest:
                best = own.shape.bytes or 0, own, many[array.index((size, ""))]
        return None if best is None else best[1:]


def _is_fraction(part: int, whole: int) -> bool:
    if part <= 1:
        return False
    return part % whole == 0 or (whole % part == 0 and whole // part <= _FEWEST)


def _flops(module: Module) -> dict[int, int]:
    """By row: the FLOPs of a matmul in a step."""
    table = _module(module).matmuls()
    flops: dict[int, int] = {}
    for row, own in zip(table.values("instruction"), table.values("flops"), strict=True):
        flops[row] = flops.get(row, 0) + (own or 0)
    return flops


def _same(module: Module, changed: Module) -> dict[int, int]:
    """By row: the FLOPs of a matmul that keeps them."""
    after, rows, names = _flops(changed), _rows(changed), module.names()
    return {
        row: flops
        for row, flops in _flops(module).items()
        if abs(after.get(rows.get(names[row], -1), 0) - flops) <= flops * _ALIKE
    }


def _module(module: Any) -> Module:
    from hlofast._module import Module

    return module if isinstance(module, Module) else Module(module)
