"""Collects the parts of a MaxText model.

A `Builder` stands for one module, or for as many equal modules as a scan stacks in one array.
Logical axes of weights and activations are those that MaxText's layers name; the run's rules turn
them into mesh axes.
"""

from __future__ import annotations

import math

from hlofast.config._parts import (
    Collector,
    Parameter,
    Parts,
    UnmodelledError,
    Value,
    checked_size,
    item_size,
)
from hlofast.config.maxtext._sharding import Rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hlofast.config._parts import Axes, Feature
    from hlofast.config._tree import Config

    Names = tuple[str | None, ...]

_BATCH, _LENGTH = "activation_batch", "activation_norm_length"


class Run:
    """Checked values of a run, which all of its modules share."""

    __slots__ = (
        "block", "config", "dtype", "itemsize", "mesh", "parts", "rules", "unmodelled", "weights",
    )  # fmt: skip

    def __init__(self, config: Config, mesh: Mapping[str, int]) -> None:
        self.mesh = mesh
        self.config = config
        self.parts = Parts()
        self.unmodelled: list[tuple[str, str]] = []
        """Keys and reasons of parts whose activations are not modelled; their weights are."""
        self.parts.is_staged = mesh.get("stage", 1) > 1
        self.rules = Rules(config)
        self.block = str(config.get("decoder_block"))
        self.dtype = str(config.get("dtype"))
        self.itemsize = item_size(self.dtype, "dtype")
        """Bytes per element of activations."""
        self.weights = str(config.get("weight_dtype"))
        """The type of weights."""
        item_size(self.weights, "weight_dtype")

    def size(self, key: str, least: int = 1) -> int:
        """An integer value of at least `least`."""
        value = self.config.get(key)
        return 0 if least == 0 and value == 0 else checked_size(value, key)

    def flag(self, key: str) -> bool:
        """A boolean value."""
        value = self.config.get(key, False)
        if not isinstance(value, bool):
            raise UnmodelledError(f"{key} is {value!r}, not true or false")
        return value

    def get(self, key: str) -> Any:
        """A value."""
        return self.config.get(key)

    def axes(self, *names: str) -> Axes:
        """The mesh axes of the last of an activation's logical axes, after batch and length."""
        return self.rules.spec(names)[-1]

    def cut(self, axes: Axes) -> Axes:
        """Those of these axes that have more than one device."""
        return tuple(axis for axis in axes if self.mesh.get(axis, 1) > 1)

    def shards(self, axes: Axes) -> int:
        """The devices along these axes."""
        return math.prod(self.mesh.get(axis, 1) for axis in axes)

    @property
    def has_experts(self) -> bool:
        """Whether tokens are routed to experts."""
        count = self.config.get("num_experts")
        return isinstance(count, int) and count > 1

    @property
    def expert_axes(self) -> Axes:
        """The mesh axes of several devices along which experts lie."""
        return self.cut(self.rules.spec(("exp",))[0])

    @property
    def width(self) -> Feature:
        """The size of activations between layers, with its sharding.

        Axes that shard tokens between layers and heads within them (`tensor_sequence`) take the
        place of those that shard widths: as many bytes lie on a device, and travel.
        """
        _, tokens, width = self._between
        within = self.token_axes[1]
        return self.size("emb_dim"), (*width, *(axis for axis in tokens if axis not in within))

    @property
    def token_axes(self) -> tuple[Axes, Axes]:
        """The mesh axes that shard the sequences of a batch, and their tokens within layers."""
        batch, tokens, _ = self._between
        within = self.rules.spec((_BATCH, "activation_length_no_exp"))[1]
        return batch, tuple(axis for axis in tokens if axis in within)

    @property
    def _between(self) -> tuple[Axes, ...]:
        """The mesh axes of activations between layers: of sequences, tokens and widths."""
        return self.rules.spec((_BATCH, _LENGTH, "activation_embed"))


class Builder(Collector):
    """Adds the parts of one module, whose weights lie below `path`."""

    __slots__ = ("_copies", "_stack", "run")

    def __init__(
        self,
        run: Run,
        path: str,
        *,
        layers: int = 1,
        stack: str | None = None,
        remat: str | None = None,
    ) -> None:
        super().__init__(run.parts, path, layers, remat)
        self.run = run
        self._stack = stack
        """The logical axis of the layers that are stacked; None for an array per layer."""
        self._copies = 1 if stack is not None else layers

    def inner(self, name: str) -> Builder:
        """The builder of a module inside this one."""
        return Builder(
            self.run, f"{self.path}/{name}", layers=self._layers, stack=self._stack,
            remat=self._remat,
        )  # fmt: skip

    def weights(
        self,
        name: str,
        shape: tuple[int, ...],
        names: Names,
        dtype: str | None = None,
        *,
        apart: Axes = (),
        last: Axes = (),
    ) -> str:
        """Adds weights with these logical axes; returns their path."""
        for size in shape:
            checked_size(size, name)
        path = f"{self.path}/{name}"
        stack: tuple[int, ...] = ()
        if self._stack is not None:
            scanned = self.run.get("param_scan_axis")
            if scanned not in (0, 1):
                raise UnmodelledError(f"param_scan_axis {scanned!r} is not modelled")
            at = min(scanned, len(shape))
            shape = (*shape[:at], self._layers, *shape[at:])
            names = (*names[:at], self._stack, *names[at:])
            stack = (at,)
        self._parts.parameters.append(
            Parameter(
                path,
                "decoder_block",
                self.run.block,
                shape,
                self.run.rules.spec(names),
                dtype or self.run.weights,
                self._layers,
                self._copies,
                stack,
                apart=apart,
                last=last,
            )
        )
        self._bounded()
        return path

    def norm(self, name: str, width: int, dtype: str | None = None, *, bias: bool = False) -> None:
        """Adds a norm."""
        for own in ("scale", "bias") if bias else ("scale",):
            self.weights(f"{name}/{own}", (width,), ("norm",), dtype)

    def value(
        self,
        name: str,
        *features: Feature,
        saved_as: str | None = None,
        itemsize: int | None = None,
        is_product: bool = False,
        is_needed: bool = True,
        is_batched: bool = False,
        also: tuple[str, ...] = (),
    ) -> None:
        """Adds a value of a layer; `saved_as` and `also` are its checkpoint names."""
        self._parts.values.append(
            Value(
                self.key(name),
                saved_as,
                features,
                itemsize=self.run.itemsize if itemsize is None else itemsize,
                layers=self._layers,
                remat=self._remat,
                is_product=is_product,
                is_needed=is_needed,
                is_whole=False,
                is_batched=is_batched,
                others=also,
            )
        )
        self._bounded()
