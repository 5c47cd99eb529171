"""The parts of a model that all fronts describe: parameters, matmuls, values that backward needs.

A front fills `Parts` from its configs (`_front.py`); memory, traffic, FLOPs and time are computed
from them.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Axes: TypeAlias = "tuple[str, ...]"
    Spec: TypeAlias = "tuple[Axes, ...]"
    Feature: TypeAlias = "tuple[int, Axes]"

LARGEST_SIZE = 1 << 40
"""Limit on the dimensions of a model, which keeps integers small enough for fast arithmetic."""
MOST_PARTS = 20_000
ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
"""Bytes per element, by the last part of JAX's name of the type."""


class UnmodelledError(ValueError):
    """A module that is not modelled: its config lacks a value or has an unsupported one."""


class FailsError(UnmodelledError):
    """A module that the trainer itself cannot run."""

    def __init__(self, trainer: str, why: str) -> None:
        super().__init__(f"{trainer} fails here: {why}")


class Parameter:
    """An array of weights; `copies` counts the arrays of layers that are not stacked in one array.

    `path` is its path in the model's state, with `*` for a layer's number. `sharding` lists the
    mesh axes that shard each dimension of `shape`.
    """

    __slots__ = (
        "apart", "axes", "class_name", "copies", "dtype", "elements", "last", "layers", "module",
        "path", "shape", "sharding", "stack",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        module: str,
        class_name: str,
        shape: tuple[int, ...],
        sharding: Spec,
        dtype: str,
        layers: int,
        copies: int,
        stack: tuple[int, ...],
        *,
        apart: Axes = (),
        last: Axes = (),
    ) -> None:
        self.apart = apart
        """Axes along which it is never gathered: tokens travel to the device of their expert."""
        self.last = last
        """Axes along which it is gathered in a collective of its own, after all others."""
        self.stack = stack
        """The dimensions of `shape` that count layers."""
        self.path = path
        self.module = module
        self.class_name = class_name
        self.shape = shape
        self.sharding = sharding
        self.dtype = dtype
        self.layers = layers
        """Number of layers whose weights the copies hold together; 1 outside of layers."""
        self.copies = copies
        self.elements = copies * math.prod(shape)
        """Elements of all copies."""
        self.axes = tuple(axis for axes in sharding for axis in axes)
        """All mesh axes that shard it."""

    @property
    def of_layer(self) -> list[Feature]:
        """Size and sharding of the dimensions of one layer's weights."""
        dimensions = enumerate(zip(self.shape, self.sharding, strict=True))
        return [own for at, own in dimensions if at not in self.stack]


class Product:
    """A matmul per token, in each of `layers`.

    `kept_by` lists groups of values: backward need not recompute the matmul if it keeps all values
    of one group. `is_needed` tells whether backward needs the result at all. `contracted` lists the
    dimensions of one layer's weights that the matmul sums over. Matmuls with the same `joint` share
    their input, whose gradient is one sum. Attention has no `parameter`.
    """

    __slots__ = (
        "contracted", "is_attention", "is_needed", "is_routed", "joint", "kept_by", "layers",
        "mask_gradients", "multiplications", "name", "parameter", "remat", "window",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        parameter: str | None,
        multiplications: int,
        *,
        layers: int,
        remat: str | None,
        kept_by: tuple[tuple[str, ...], ...],
        is_needed: bool,
        is_attention: bool,
        contracted: tuple[int, ...],
        joint: str,
        window: int | None = None,
        is_routed: bool = False,
        mask_gradients: int = 0,
    ) -> None:
        self.mask_gradients = mask_gradients
        """Matmuls of backward, where a router's mask is multiplied; 0 for all others, which have
        two. Such a matmul only moves rows: `StepFlops.routing` counts it."""
        self.is_routed = is_routed
        """Whether experts compute it: `Parts.moves` has its traffic of activations."""
        self.window = window
        """Earlier tokens that a token attends to, itself included; None for all of them."""
        self.contracted = contracted
        self.joint = joint
        self.name = name
        self.parameter = parameter
        self.multiplications = multiplications
        """Per token; for attention, per pair of tokens."""
        self.layers = layers
        self.remat = remat
        self.kept_by = kept_by
        self.is_needed = is_needed
        self.is_attention = is_attention

    def pairs(self, length: int) -> int:
        """Pairs of tokens of a sequence that causal attention multiplies."""
        if self.window is None or self.window >= length:
            return length * length // 2
        return self.window * length - self.window * self.window // 2

    def slowest_pairs(self, length: int, shards: int) -> int:
        """The pairs that all shards of a sequence would multiply, if each had those of the last."""
        return shards * (self.pairs(length) - self.pairs(length - length // shards))


class Value:
    """A value of one layer that backward may need, with `features` elements per token.

    `name` is its checkpoint name, if it has one, and `others` are further ones of the same value;
    `key` identifies it among the layer's values.
    """

    __slots__ = (
        "features", "is_batched", "is_needed", "is_product", "is_whole", "itemsize", "key",
        "layers", "name", "others", "remat",
    )  # fmt: skip

    def __init__(
        self,
        key: str,
        name: str | None,
        features: tuple[Feature, ...],
        *,
        itemsize: int,
        layers: int,
        remat: str | None,
        is_product: bool,
        is_needed: bool,
        is_whole: bool,
        is_batched: bool,
        others: tuple[str, ...] = (),
    ) -> None:
        self.key = key
        self.name = name
        self.others = others
        self.features = features
        self.itemsize = itemsize
        self.layers = layers
        self.remat = remat
        self.is_product = is_product
        self.is_needed = is_needed
        self.is_batched = is_batched
        """For the result of a matmul: whether it has batch dimensions, as in attention."""
        self.is_whole = is_whole
        """Whether the value is needed only to compute named values, which are parts of it."""


class Move:
    """Activations that one collective moves in each of `layers`, forward and in backward.

    Backward runs the collective of the gradient, `backward`. It also repeats the forward one,
    unless it keeps all values of one group of `kept_by`.
    """

    __slots__ = (
        "axes", "backward", "features", "forward", "itemsize", "kept_by", "layers", "name", "remat",
        "whole",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        forward: str | None,
        backward: str | None,
        axes: Axes,
        features: tuple[Feature, ...],
        *,
        itemsize: int,
        layers: int,
        remat: str | None,
        kept_by: tuple[tuple[str, ...], ...],
        whole: bool,
    ) -> None:
        self.name = name
        self.forward = forward
        """The kind of the collective; None if forward has none."""
        self.backward = backward
        self.axes = axes
        self.features = features
        """Features per token."""
        self.itemsize = itemsize
        self.layers = layers
        self.remat = remat
        self.kept_by = kept_by
        self.whole = whole
        """Whether the array holds the tokens of all devices along the axes, not those of one."""


class Gap:
    """A part of a config that is not modelled."""

    __slots__ = ("fails", "klass", "path", "why")

    def __init__(self, path: str, klass: str | None, why: str | Exception) -> None:
        self.path = path
        self.klass = klass
        self.why = str(why)
        self.fails = isinstance(why, FailsError)
        """Whether the trainer cannot run it."""


class Unit:
    """A rematerialised module: backward recomputes it from its input, `layers` times.

    `feature` is the size of the input per token, with its sharding.
    """

    __slots__ = ("feature", "layers", "path")

    def __init__(self, path: str, layers: int, feature: Feature) -> None:
        self.path = path
        self.layers = layers
        self.feature = feature


class Pipeline:
    """Stages that run the layers of a model, each on a part of the batch at a time.

    Layers are those of the stages in turn, `repeats` times over. In each iteration, every stage
    runs its next layers on one micro-batch, or on nothing while the pipeline fills or drains.
    """

    __slots__ = ("axis", "bubble", "iterations", "layers", "microbatches", "repeats", "stages")

    def __init__(
        self, axis: str, stages: int, repeats: int, layers: int, microbatches: int
    ) -> None:
        self.axis = axis
        """The mesh axis of the stages."""
        self.stages = stages
        self.repeats = repeats
        self.layers = layers
        """Layers of a stage in one iteration."""
        self.microbatches = microbatches
        self.bubble = stages - 1
        """Iterations of a stage on nothing."""
        self.iterations = microbatches * repeats + self.bubble

    def kept(self, size: int) -> int:
        """Bytes that a device keeps for all iterations, of those of all layers and sequences."""
        return size * self.iterations // (self.microbatches * self.stages * self.repeats)


class Parts:
    """The parts of a model."""

    __slots__ = (
        "attentions", "causal_shards", "gaps", "head", "head_tiles", "is_staged", "masks",
        "moved_axes", "moves", "multiplies_once", "parameters", "pipeline", "products", "scratch",
        "units", "unmoved", "values",
    )  # fmt: skip

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.products: list[Product] = []
        self.values: list[Value] = []
        self.moves: list[Move] = []
        """Activations that collectives move beside those that products with weights imply."""
        self.moved_axes: set[str] = set()
        """Mesh axes of a sequence's tokens along which `moves` has the traffic of attention."""
        self.causal_shards = 1
        """Devices that each compute attention of a consecutive part of a sequence, of which the
        last has the most earlier tokens; 1 where all have equal work."""
        self.scratch: list[tuple[tuple[Feature, ...], int]] = []
        """Scratch memory of a layer's kernels: features per token and bytes per element."""
        self.attentions: list[tuple[str | None, list[tuple[Feature, ...]]]] = []
        """Attention modules: the rematerialised module that each is in, and the features per token
        of the values that its backward pass holds at once."""
        self.pipeline: Pipeline | None = None
        """The stages of the layers, if they lie on several devices and are modelled."""
        self.is_staged = False
        """Whether the layers are stages on several devices; compiled programs name them apart."""
        self.units: dict[str, Unit] = {}
        self.unmoved: set[str] = set()
        """Reasons why the traffic of the model is not known."""
        self.gaps: list[Gap] = []
        self.masks: list[Gap] = []
        """Attention modules whose mask is not modelled."""
        self.head: Feature | None = None
        """Size of the vocabulary, and the axes that shard the logits."""
        self.head_tiles = 1
        """Parts of the batch whose logits are computed one after the other."""
        self.multiplies_once = True
        """Whether each weight multiplies a token once: not in convolutions."""


class Collector:
    """Adds the parts of one module, or of `layers` equal modules, whose paths begin with `path`.

    What collectors of all trainers share. `remat` is the unit in which the module is recomputed.
    """

    __slots__ = ("_layers", "_parts", "_remat", "path")

    def __init__(self, parts: Parts, path: str, layers: int, remat: str | None) -> None:
        self.path = path
        self._parts = parts
        self._layers = layers
        self._remat = remat

    def attends(self, held: list[tuple[Feature, ...]]) -> None:
        """Adds the values that this attention module's backward pass holds at once."""
        self._parts.attentions.append((self._remat, held))

    def key(self, name: str) -> str:
        """The key of a value of this module, for `kept_by`."""
        return f"{self.path}:{name}"

    def product(
        self,
        name: str,
        parameter: str | None,
        multiplications: int,
        kept_by: tuple[tuple[str, ...], ...] = (),
        *,
        is_needed: bool = True,
        is_attention: bool = False,
        contracted: tuple[int, ...] = (0,),
        joint: str | None = None,
        window: int | None = None,
        is_routed: bool = False,
        mask_gradients: int = 0,
    ) -> None:
        """Adds a matmul; `multiplications` counts per token, for attention per pair of tokens."""
        self._parts.products.append(
            Product(
                name,
                parameter,
                multiplications,
                layers=self._layers,
                remat=self._remat,
                kept_by=kept_by,
                is_needed=is_needed,
                is_attention=is_attention,
                contracted=contracted,
                joint=self.key(name) if joint is None else joint,
                window=window,
                is_routed=is_routed,
                mask_gradients=mask_gradients,
            )
        )
        self._bounded()

    def moves(
        self,
        name: str,
        forward: str | None,
        backward: str | None,
        axes: Axes,
        *features: Feature,
        itemsize: int,
        kept_by: tuple[tuple[str, ...], ...] = (),
        whole: bool = False,
    ) -> None:
        """Adds activations that a collective moves: its kinds, mesh axes and features per token."""
        self._parts.moves.append(
            Move(
                self.key(name),
                forward,
                backward,
                axes,
                features,
                itemsize=itemsize,
                layers=self._layers,
                remat=self._remat,
                kept_by=kept_by,
                whole=whole,
            )
        )

    def _bounded(self) -> None:
        parts = self._parts
        if len(parts.parameters) + len(parts.products) + len(parts.values) > MOST_PARTS:
            raise UnmodelledError(f"more than {MOST_PARTS:,} parts")


def checked_size(value: object, name: str) -> int:
    """Returns `value` if it is a positive integer up to `LARGEST_SIZE`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnmodelledError(f"{name} is not set" if value is None else f"{name} is {value!r}")
    if not 0 < value <= LARGEST_SIZE:
        raise UnmodelledError(f"{name} is {value:,}")
    return value


def item_size(dtype: object, name: str) -> int:
    """Bytes per element of the type that configs print as `dtype`; `name` is the field's name."""
    size = ITEM_SIZES.get(dtype.rpartition(".")[2]) if isinstance(dtype, str) else None
    if size is None:
        raise UnmodelledError(f"{name} {dtype!r} is not modelled")
    return size


def checked_sharding(sharding: Spec, rank: int, name: str) -> Spec:
    """Returns `sharding` extended to all dimensions of an array of this rank, as JAX reads it."""
    if any(sharding[rank:]):
        raise UnmodelledError(f"{name} has {rank} dimensions, but its spec has {len(sharding)}")
    divided = sharding[:rank] + ((),) * (rank - len(sharding))
    axes = [axis for part in divided for axis in part]
    for axis in axes:
        if axes.count(axis) > 1:
            raise UnmodelledError(f"the spec of {name} names {axis!r} more than once")
    return divided
