"""`WhatIf`: a step with another batch, sequence, number of layers, mesh or policy, not compiled."""

from __future__ import annotations

from hlofast import (
    _core,
    _memory,
    _shares,
    _what_if_decided,
    _what_if_derived,
    _what_if_lookup,
    _what_if_notes,
    _what_if_order,
    _what_if_padding,
    _what_if_rings,
    _what_if_symbols,
    _what_if_wire,
)
from hlofast._context import mesh_for, read_mesh
from hlofast._core import Field
from hlofast._names import meant
from hlofast._result import Fact, Note, Result, Section
from hlofast._what_if_figures import figures_of, under
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # Verbs print results; importing typing would slow their start.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from hlofast._context import MeshLike
    from hlofast._core import Mesh
    from hlofast._module import Module
    from hlofast._policy import Policy

    Size = int | str
    Sizes = Size | Mapping[str, Size]

ROLES = ("batch", "sequence", "layers")
"""The roles of symbols that can change."""

_FIGURES = (
    ("xla_peak", "bytes", "XLA peak"),
    ("live_peak", "bytes", "live peak"),
    ("allocated_in_hbm", "bytes", "allocated in HBM"),
    ("flops", "flops", "FLOP"),
    ("wire_bytes", "bytes", "wire bytes"),
    ("step_seconds", "seconds", "step time"),
    ("exposed_seconds", "seconds", "exposed communication"),
)
_SIDES = {"least": "at least", "most": "at most"}
"""The ends of the names of figures, where labels have other words."""
_PEAKS = ("xla_peak", "live_peak", "allocated_in_hbm")
_DOCS = {
    "xla_peak": "Bytes that XLA counts as `peak_memory_in_bytes`",
    "live_peak": "Live bytes at the peak",
    "allocated_in_hbm": "Bytes that XLA allocates in HBM, fragmentation included",
    "flops": "FLOPs of a step on one device",
    "wire_bytes": "Bytes that each device sends per step, assuming rings",
    "step_seconds": "Modelled step time",
    "exposed_seconds": "Modelled exposed communication per step",
}
_CHANGES = (
    Field("word", "figure", "The figure."),
    Field("text", "before", "The figure of the module as compiled.", nullable=True),
    Field("text", "after", "The figure after the change.", nullable=True),
    Field("ratio", "ratio", "After divided by before.", nullable=True),
)
_SYMBOLS = (
    Field("word", "role",
          "Batch, sequence, layers, accumulation, width, heads, vocabulary, or other."),
    Field("text", "name", "The entry parameter with the shortest name that has the symbol."),
    Field("count", "size", "The size over all devices, as compiled."),
    Field("count", "new_size", "The size after the change.", label="new size"),
    Field("count", "shift", "Offset that is added to the parameter's dimension to get the size.",
          signed=True),
    Field("text", "axes", "Mesh axes that divide the symbol in a parameter.", nullable=True),
    Field("count", "parameters", "Entry parameters with the symbol."),
    Field("count", "dimensions", "Dimensions of instructions that contain the symbol."),
    Field("count", "loops", "Loops that run once per element."),
    Field("text", "evidence", "Why the symbol has its role."),
)  # fmt: skip


class WhatIf(Result):
    """A step as compiled and with other sizes: `Module.what_if(...)`.

    Shapes, trip counts and device groups are those of the new sizes. Which instructions there are,
    how they are fused, scheduled and laid out, and what the compiler rematerialises stays as
    compiled.
    """

    __slots__ = (
        "_choices", "_coverage", "_derived", "_figures", "_follows", "_found", "_in_order", "_open",
        "_pads", "_reasons", "_renamed", "_ringing", "_scaled", "_scaling", "asked", "changed",
        "mesh", "module", "new_mesh", "policy", "symbols",
    )  # fmt: skip

    VERB = "what-if"
    FACTS = (
        Field("text", "change", "The sizes that change."),
        *(
            field
            for name, kind, label in _FIGURES
            for field in (
                Field(kind, f"{name}_before", f"{_DOCS[name]}, as compiled.",
                      label=f"{label} before"),
                Field(kind, f"{name}_after", f"{_DOCS[name]}, after the change.",
                      label=f"{label} after"),
            )
        ),
        Field("flops", "flops_least", "FLOPs after the change, if what the text does not tie to it "
              "does not follow it.", label="FLOP after, at least"),
        Field("flops", "flops_most", "FLOPs after the change, if that follows it.",
              label="FLOP after, at most"),
        Field("bytes", "wire_bytes_modelled", "Wire bytes after the change, if the compiler makes "
              "the collectives that are modelled.", label="wire bytes after, modelled"),
        Field("bytes", "wire_bytes_decided", "Wire bytes after the change of the collectives that "
              "the text decides; the others add to them.", label="wire bytes after, at least"),
        Field("bytes", "xla_peak_least", "Lower end of the XLA peak after the change, from the "
              "errors of similar changes whose peak the text does not decide.",
              label="XLA peak after, at least"),
        Field("bytes", "xla_peak_most", "Upper end of the XLA peak after the change, from the same "
              "errors.", label="XLA peak after, at most"),
        Field("bytes", "hbm", "Memory of a device.", label="HBM"),
        Field("flag", "fits", "Whether the changed step fits the memory."),
    )  # fmt: skip

    def __init__(
        self,
        module: Module,
        sizes: Mapping[str, Sizes],
        mesh: MeshLike | None,
        policy: str | None,
        save: Iterable[int | str] | str,
        offload: Iterable[int | str] | str,
    ) -> None:
        self.module = module
        """The module as compiled."""
        self.mesh: Mesh | None = mesh_for(module, None) or module.context.mesh or module.mesh()
        """The mesh of the module as compiled."""
        self._scaling = _what_if_derived.Scaling(module, self.mesh)
        self.symbols = self._scaling.symbols
        """Roles of dimensions: those with a role first."""
        self._renamed: dict[int, str] = {}
        """By number of the symbol: the role that the user says it has, if it has another."""
        self.asked: dict[int, int] = {}
        """By number of the symbol: its new size."""
        for role, wanted in sizes.items():
            self.asked |= _what_if_symbols.wanted(self, role, wanted)
        self.new_mesh: Mesh | None = None if mesh is None else self._mesh(read_mesh(mesh))
        """The new mesh; None if it stays."""
        self._derived = _what_if_derived.find(
            self._scaling, self.asked, self._renamed, self.new_mesh
        )
        self._coverage = self._scaling.data.coverage()
        self._choices = self._scaling.choices()
        self._scaled = self._scaling.apply(self.asked.items(), self.new_mesh)
        self.changed: Module = self._with_context()
        """The changed module, to be analysed like any other. It is not a program to run."""
        is_given = policy is not None or save or offload
        self.policy: Policy | None = self._policy(policy, save, offload) if is_given else None
        """The checkpoint policy after the change; None if it stays."""
        self._figures: dict[str, tuple[Any, Any]] | None = None
        self._open: dict[str, str] | None = None
        self._found: list[_what_if_lookup.Lookups | None] = []
        self._follows: list[float | None] = []
        self._pads: _what_if_padding.Padding | None = None
        self._reasons: list[str] | None = None
        self._ringing: _what_if_rings.Rings | None = None
        self._in_order: Module | None = None

    def _mesh(self, given: Mesh) -> Mesh:
        """The new mesh: axes that are not given keep their sizes."""
        if (devices := _shares.devices_together(self.module)) > 1:
            raise ValueError(
                f"the mesh cannot change: the text is not partitioned yet, and its shapes, those "
                f"of {devices:,} devices together, are the same on every mesh; take the text after "
                "optimisation"
            )
        if self.mesh is None:
            raise ValueError("the mesh of the module is unknown: give it with mesh= or --mesh")
        old, new = self.mesh.shape, given.shape
        unknown = [name for name in new if name not in old]
        if unknown:
            hint = meant(unknown[0], list(old)) or ";"
            known = ", ".join(old)
            raise ValueError(f"the module has no mesh axis {unknown[0]!r}{hint} known: {known}")
        if grown := [name for name, size in new.items() if old[name] == 1 < size]:
            raise ValueError(
                f"the text does not tell what the mesh axis {grown[0]!r} splits, because the axis "
                "has one device there; take the text of a mesh with at least two along it"
            )
        return _core.Mesh({name: new.get(name, size) for name, size in old.items()})

    def _with_context(self) -> Module:
        from hlofast._module import Module

        context = self.module.context
        mesh = self.new_mesh or self.mesh
        changed = Module(self._scaled[0])
        return changed.with_context(context.replace(mesh=mesh, profile=None))

    def _policy(
        self,
        name: str | None,
        save: Iterable[int | str] | str,
        offload: Iterable[int | str] | str,
    ) -> Policy:
        remat = self.changed.remat()
        if remat.policies is None:
            raise ValueError(remat.no_policies)
        return remat.policies.policy(name, save=save, offload=offload)

    @property
    def _sent(self) -> dict[str, int | None]:
        """By name of a collective: the bytes that a device sends after the change."""
        table = self.changed.collectives()
        return dict(zip(table.values("name"), table.values("wire_bytes"), strict=True))

    @property
    def _lookups(self) -> _what_if_lookup.Lookups | None:
        """What the partitioner makes of lookups in a table after the change; None if unknown."""
        if not self._found:
            self._found.append(_what_if_lookup.find(self))
        return self._found[0]

    @property
    def _padding(self) -> _what_if_padding.Padding:
        self._pads = self._pads or _what_if_padding.Padding(self)
        return self._pads

    @property
    def _rings(self) -> _what_if_rings.Rings:
        self._ringing = self._ringing or _what_if_rings.Rings(self)
        return self._ringing

    @property
    def _ordered(self) -> Module:
        """The changed module in the order that its peaks have."""
        if self._in_order is None:
            self._in_order = _what_if_order.ordered(self)
        return self._in_order

    @property
    def undecided(self) -> dict[str, str]:
        """By name: the collectives that the compiler may choose differently, and the reason.

        Reasons are `lookup`, `loops`, `matmul`, `one`, `padding`, `reshard`, `scalars` and `size`.
        """
        if self._open is None:
            self._open = _what_if_decided.undecided(self)
        return self._open

    @property
    def _is_open(self) -> bool:
        """Whether the text does not decide all wire bytes."""
        return bool(self.undecided) or (self._lookups is not None and bool(self._lookups.padded))

    @property
    def peak_undecided(self) -> list[str]:
        """The reasons why the compiler may need another peak; empty if the text decides it."""
        if self._reasons is None:
            self._reasons = _what_if_decided.peak(self)
        return self._reasons

    @property
    def ignores_batch(self) -> bool:
        """Whether matmuls compute as much although the batch changes: the text does not decide."""
        return _what_if_decided.ignores_batch(self)

    @property
    def _followed(self) -> float | None:
        """The share of a change of the batch that FLOPs of matmuls follow; None without one."""
        if not self._follows:
            self._follows.append(_what_if_decided.followed(self))
        return self._follows[0]

    @property
    def flops_undecided(self) -> float:
        """The share of FLOPs in matmuls that may compute more or less; 0 if the text decides."""
        if self.ignores_batch or _what_if_decided.grows_from_one(self):
            return 1.0
        return _what_if_decided.unsure_share(self._work, self.changed)

    @property
    def moves_work(self) -> int:
        """FLOPs after the change that the shapes and trip counts of `changed` lack."""
        return _what_if_decided.missing_flops(self._work, self.changed)

    @property
    def time_undecided(self) -> bool:
        """Whether matmuls after the change differ from those whose time `changed` has."""
        return (
            bool(self.flops_undecided)
            or self.flops_between is not None
            or _what_if_decided.is_much(self.moves_work, self.changed)
        )

    @property
    def flops_between(self) -> tuple[int, int] | None:
        """The minimum and maximum FLOPs after the change, where parts of the step may follow it."""
        return _what_if_decided.flops_between(self)

    @property
    def _work(self) -> tuple[list[tuple[int, float]], list[int]]:
        """Factors of the work of matmuls by row, and rows of those whose work is unsure."""
        factors, unsure = self._scaled[4]
        return factors, unsure

    @property
    def figures(self) -> dict[str, tuple[Any, Any]]:
        """By figure: its value as compiled and after the change; None if unknown."""
        if self._figures is None:
            before, after = figures_of(self.module), figures_of(self.changed)
            if self._ordered is not self.changed:
                peaks = figures_of(self._ordered)
                after |= {name: peaks[name] for name in _PEAKS}
            after["flops"] += self.moves_work
            if self.flops_undecided:
                after["flops"] = None
            if self.time_undecided:
                after |= dict.fromkeys(("step_seconds", "exposed_seconds"))
            if self.policy is not None:
                under(self.policy, after)
                if self.policy._policies.is_modelled:
                    # The text is of all devices together, the policy and the peaks of one.
                    before = dict.fromkeys(before) | {"xla_peak": before["xla_peak"]}
                    after = dict.fromkeys(after) | {"xla_peak": self.policy.peak}
            if self._is_open or self.policy is not None:
                after["wire_bytes"] = None
            elif self._lookups is not None and after["wire_bytes"] is not None:
                after["wire_bytes"] = sum(own or 0 for own in _what_if_wire.after(self).values())
            self._figures = {name: (before[name], after[name]) for name, _, _ in _FIGURES}
        return self._figures

    def __repr__(self) -> str:
        return f"<WhatIf of {self.title}: {self.change}>"

    @property
    def title(self) -> str:
        """The name of the module."""
        return self.module.name

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The change, and figures before and after it."""
        values: list[tuple[str, Any, str]] = [("change", self.change, "configuration")]
        between = self._between("xla_peak") if self.peak_undecided else None
        for name, (before, after) in self.figures.items():
            how = "exact" if name in ("flops", "wire_bytes") else "modelled"
            values += [(f"{name}_before", before, how), (f"{name}_after", after, "modelled")]
            if name == "wire_bytes" and self._is_open and self.policy is None:
                table = self.wire_bytes
                modelled = [row["modelled"] for row in table]
                if None not in modelled and not self.ignores_batch:
                    values.append(("wire_bytes_modelled", sum(modelled), "modelled"))
                decided = sum(row["decided"] or 0 for row in table)
                values.append(("wire_bytes_decided", decided, "modelled"))
            if name == "flops" and (ends := self.flops_between) is not None:
                names = ("flops_least", "flops_most")
                values += ((*own, "modelled") for own in zip(names, ends, strict=True))
            if name == "xla_peak" and between is not None:
                names = ("xla_peak_least", "xla_peak_most")
                values += ((*own, "modelled") for own in zip(names, between, strict=True))
        known, needed = _memory.quiet(self.changed).hbm, self.needed
        if known is not None and needed is not None:
            is_sure = needed[1] <= known[0] or needed[0] > known[0]
            fits = needed[1] <= known[0] if is_sure else None
            values += [("hbm", *known), ("fits", fits, "modelled")]
        facts = self._facts(value for value in values if value[1] is not None)
        if max(self.devices_together) == 1:
            return facts
        labels = {name: label for name, _, label in _FIGURES if name not in self._of_one}
        told = []
        for fact in facts:
            name, _, side = fact.name.rpartition("_")
            end = _SIDES.get(side, side)
            if name in labels:
                covered = _shares.covering(fact.field)
                field = fact.field.replace(label=f"{labels[name]}{covered} {end}")
                fact = Fact(field, fact.value, fact.provenance)
            elif name == "xla_peak":
                # In `memory` the XLA peak of such a text is that of all devices together.
                field = fact.field.replace(label=f"modelled peak of one device {end}")
                fact = Fact(field, fact.value, fact.provenance)
            told.append(fact)
        return tuple(told)

    @property
    def devices_together(self) -> tuple[int, int]:
        """Devices whose work the text covers together, before and after the change."""
        return _shares.devices_together(self.module), _shares.devices_together(self.changed)

    @property
    def _of_one(self) -> tuple[str, ...]:
        """The figures that are those of one device, where the text covers all devices together."""
        is_modelled = _memory.quiet(self.module).peak_before is not None
        return _PEAKS if is_modelled else ()

    def _between(self, figure: str) -> tuple[int, int] | None:
        """What a figure of memory may be after the change; None if unknown."""
        before, after = self.figures[figure]
        if after is None or not self.peak_undecided:
            return None if after is None else (after, after)
        decided = _what_if_decided
        modules = (self.module, self.changed)
        # What XLA's peak counts may be the heap of fast memory, which need not grow with a size.
        is_fast = figure == "xla_peak" and any(decided.counts_fast_memory(own) for own in modules)
        return decided.between(self, after, before, is_fast)

    @property
    def needed(self) -> tuple[int, int] | None:
        """The minimum and maximum memory that the changed step may need; None if unknown."""
        if max(self.devices_together) > 1 and not self._of_one:
            return None  # Bytes of all devices together.
        return self._between("allocated_in_hbm") or self._between("xla_peak")

    @property
    def is_changed(self) -> bool:
        """Whether a size, the mesh or the policy differs from the module's."""
        return (
            any(self.symbols[number].size != size for number, size in self.asked.items())
            or (self.new_mesh is not None and self.new_mesh != self.mesh)
            or self.policy is not None
        )

    @property
    def change(self) -> str:
        """The change as a text: `batch 32 → 64, layers 12 → 24`."""
        parts = []
        for number, size in self.asked.items():
            symbol = self.symbols[number]
            # Another input may be as long, and stay.
            stays = [
                own
                for own in self.symbols
                if (own.role, own.size) == (symbol.role, symbol.size)
                and self.asked.get(own.number) != size
            ]
            word = ""
            if stays and number not in self._renamed:
                word = f" of {_what_if_symbols.word_for(symbol, stays)}"
            role = self._renamed.get(number, symbol.role)
            part = f"{role}{word} {symbol.size:,} → {size:,}"
            if part not in parts:
                parts.append(part)
        if self.new_mesh is not None and self.mesh is not None:
            for name, old in self.mesh.shape.items():
                new = self.new_mesh.shape[name]
                if old != new:
                    parts.append(f"{name} {old:,} → {new:,}")
        if self.policy is not None:
            parts.append(f"policy {self.policy.described}")
        return ", ".join(parts) or "none"

    @property
    def wire_bytes(self) -> Table:
        """Wire bytes by mesh axes, before and after; `undecided` says which collectives lack."""
        return _what_if_wire.by_axes(self)

    @property
    def symbol_table(self) -> Table:
        """Roles of dimensions, with the sizes before and after.

        Symbols that differ from one before only in their parameters come last: most are one
        dimension of the program that the shares of devices hide.
        """
        seen: set[tuple[str, int, str]] = set()
        repeats = []
        for own in self.symbols:
            kind = own.role, own.size, "×".join(own.axes)
            repeats.append(kind in seen)
            seen.add(kind)
        rows = [
            (
                own.role,
                own.name,
                own.size,
                self.asked.get(own.number, own.size),
                own.shift,
                "×".join(own.axes) or None,
                len(own.parameters),
                own.dimensions,
                own.loops,
                own.evidence,
            )
            for is_repeat in (False, True)
            for own, repeats_one in zip(self.symbols, repeats, strict=True)
            if repeats_one is is_repeat
        ]
        return of_rows(_SYMBOLS, rows)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Assumptions behind the figures, and dimensions that cannot be attributed."""
        return tuple(_what_if_notes.notes(self))

    def sections(self) -> tuple[Section, ...]:
        """Returns wire bytes by mesh axes, and the symbols."""
        symbols = ("role", "name", "size", "new_size", "axes", "dimensions", "evidence")
        return (
            Section("wire_bytes", "Wire bytes by mesh axes", self.wire_bytes, is_whole=True),
            Section("symbols", "Roles of dimensions", self.symbol_table, symbols),
        )
