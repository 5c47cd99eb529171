"""Collects the parts of AXLearn's models.

`Builder` collects them while it walks through a config. Each class of modules has a function that
adds its parts: see `register_module`; AXLearn's own are in `_modules.py`.
"""

from __future__ import annotations

from hlofast.config._parts import (
    ITEM_SIZES,
    LARGEST_SIZE,
    Collector,
    Gap,
    Parameter,
    Parts,
    Unit,
    UnmodelledError,
    Value,
    checked_sharding,
    checked_size,
    item_size,
)
from hlofast.config._traffic import EXCHANGE
from hlofast.config._tree import Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from hlofast.config._parts import Axes, Feature, Spec

    Module: TypeAlias = "Callable[[Builder], None]"

DEFAULT_DTYPE = "float32"
"""The default type of AXLearn's layers and trainers."""

_registered: dict[str, Module] = {}


class ModelParts(Parts):
    """The parts of an AXLearn model, with the config of each rematerialised module."""

    __slots__ = (
        "exchanged", "experts", "has_whole", "is_of_images", "missing", "specs", "visited",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.specs: dict[str, Config] = {}
        """The `remat_spec` of each unit, by the unit's path."""
        self.visited: set[str] = set()
        self.missing: list[Gap] = []
        """Parts whose weights are modelled, and whose activations and time are not."""
        self.exchanged: dict[tuple[Axes, Axes], tuple[str, int]] = {}
        """Axes along which tokens are exchanged for heads, and those that shard heads anyway: the
        module with the fewest heads, and their number."""
        self.has_whole = False
        """Whether an attention layer has no such exchange."""
        self.experts: tuple[str, dict[str, str]] | None = None
        """The path of a layer of routed experts in the config, and why it is not modelled along
        mesh axes."""
        self.is_of_images = False
        """Whether a sequence is one image of known size."""


class Builder(Collector):
    """Collects the parts of one module of a config.

    `config` is the module's part of the config, `path` the path of its parameters in the model's
    state, and `width` the number of elements per token of its input.
    """

    __slots__ = (
        "_copies", "_stack", "config", "itemsize", "owner", "sequence", "settings", "width",
    )  # fmt: skip

    _parts: ModelParts

    def __init__(
        self,
        config: Config,
        parts: ModelParts,
        *,
        path: str = "",
        width: int = 0,
        sequence: int | None = None,
        itemsize: int = 2,
        layers: int = 1,
        copies: int = 1,
        stack: tuple[Feature, ...] = (),
        remat: str | None = None,
        owner: str = "",
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(parts, path, layers, remat)
        self.config = config
        self.width = width
        self.sequence = sequence
        """Tokens per sequence; None if the config does not tell."""
        self.itemsize = itemsize
        """Bytes per element of activations."""
        self.owner = owner
        """Name of the class that prefixes the checkpoint names of values."""
        self.settings = settings or {}
        """Settings that the enclosing modules pass down."""
        self._copies = copies
        self._stack = stack
        """Sizes of the dimensions that count layers, with the axes that shard them."""

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the config; `default` if it is absent or None."""
        value = self.config.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer of the config."""
        return checked_size(self.get(key, default), key)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean of the config."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise UnmodelledError(f"{key} is {value!r}, not True or False")
        return value

    def setting(self, key: str) -> Any:
        """A setting that an enclosing module passes down."""
        if key not in self.settings:
            raise UnmodelledError("a module of this class is not modelled in this place")
        return self.settings[key]

    def sharding(self, key: str = "param_partition_spec") -> Spec | None:
        """A partition spec of the config: the axes that shard each dimension."""
        return sharding_of(self.config, key)

    def part(self, key: str) -> Config:
        """A required part of the config."""
        part = self.config.get(key)
        if not isinstance(part, Config):
            raise UnmodelledError(f"{key} is not set")
        return part

    def parameter(self, name: str, shape: tuple[int, ...], sharding: Spec | None = None) -> str:
        """Adds weights with the `shape` and `sharding` of one layer; returns their path."""
        path = f"{self.path}/{name}" if self.path else name
        divided = checked_sharding(tuple(sharding or ()), len(shape), name)
        for size in shape:
            checked_size(size, name)
        dtype = str(self.settings.get("dtype") or DEFAULT_DTYPE)
        item_size(dtype, "dtype")
        self._parts.parameters.append(
            Parameter(
                path,
                self.config.path,
                self.config.class_name or "",
                tuple(size for size, _ in self._stack) + shape,
                tuple(axes for _, axes in self._stack) + divided,
                dtype,
                self._layers,
                self._copies,
                tuple(range(len(self._stack))),
            )
        )
        self._bounded()
        return path

    def value(
        self,
        key: str,
        features: tuple[Feature, ...],
        *,
        name: str | None = None,
        itemsize: int | None = None,
        is_product: bool = False,
        is_needed: bool = True,
        is_whole: bool = False,
        is_batched: bool = False,
    ) -> None:
        """Adds a value that backward may need; `is_whole` if backward needs only its parts."""
        self._parts.values.append(
            Value(
                f"{self.path}:{key}",
                name,
                features,
                itemsize=self.itemsize if itemsize is None else itemsize,
                layers=self._layers,
                remat=self._remat,
                is_product=is_product,
                is_needed=is_needed,
                is_whole=is_whole,
                is_batched=is_batched,
            )
        )
        self._bounded()

    def enter(
        self,
        config: Config,
        name: str = "",
        *,
        width: int | None = None,
        owner: str | None = None,
        settings: dict[str, Any] | None = None,
        layers: int = 1,
        stacked: bool = False,
        numbered: bool = False,
        stages: Feature | None = None,
    ) -> None:
        """Adds the parts of the module `config`, with paths below `name`.

        `layers` is the number of such modules; their weights are `stacked` in one array, or
        `numbered`, with one array each. `stages` are stacked in each of these arrays: their number,
        with the axes that shard them.
        """
        path = "/".join(part for part in (self.path, name) if part)
        width = self.width if width is None else width
        stack, outer = self._stack, self._layers
        if stages is not None:
            stack, outer = (*stack, stages), outer * stages[0]
        remat, spec = self._remat, config.get("remat_spec")
        if isinstance(spec, Config):
            if remat is None:
                remat = config.path
                self._parts.units[remat] = Unit(remat, outer * layers, (width, ()))
                self._parts.specs[remat] = spec
            elif spec.get("prevent_cse") is not False:
                why = "a remat_spec with prevent_cse inside a rematerialised module"
                self.gap(f"{why} is not modelled", spec)
            # Otherwise the outer policy decides: XLA merges what both recompute.
        inner = Builder(
            config,
            self._parts,
            path=path,
            width=width,
            sequence=self.sequence,
            itemsize=self.itemsize,
            layers=outer * layers,
            copies=self._copies * (layers if numbered else 1),
            stack=(*stack, (layers, ())) if stacked else stack,
            remat=remat,
            owner=self.owner if owner is None else owner,
            settings={**self.settings, **(settings or {})},
        )
        _build(inner)

    def child(self, key: str, name: str | None = None, **settings: Any) -> None:
        """Adds the parts of the module `key` of the config, if there is one."""
        config = self.config.get(key)
        if isinstance(config, Config):
            self.enter(config, key if name is None else name, **settings)

    def scratch(self, features: tuple[Feature, ...], itemsize: int) -> None:
        """Adds scratch memory that a kernel takes per token."""
        self._parts.scratch.append((features, itemsize))

    def head(self, parameter: str, width: int, vocabulary: int, axes: Axes) -> None:
        """Adds the matmul that computes the logits, which `axes` shard."""
        self.product("logits", parameter, width * vocabulary, contracted=(1,))
        self._parts.head = (vocabulary, axes)

    def exchanges(
        self,
        name: str,
        along: Axes,
        features: tuple[Feature, ...],
        kept_by: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        """Adds a value of heads whose tokens all-to-alls exchange for heads, or back."""
        self.moves(
            name, EXCHANGE, EXCHANGE, along, *features, itemsize=self.itemsize, kept_by=kept_by
        )
        heads, axes = features[0]
        exchanged, key = self._parts.exchanged, (along, axes)
        if key not in exchanged or heads < exchanged[key][1]:
            exchanged[key] = self.config.path, heads
        self._parts.moved_axes.update(along)

    def has_whole(self) -> None:
        """Records that the module's attention reads whole sequences without an exchange."""
        self._parts.has_whole = True

    def gap(self, why: str | Exception, config: Config | None = None) -> None:
        """Records that a part is not modelled."""
        part = self.config if config is None else config
        self._parts.gaps.append(Gap(part.path, part.klass, why))
        self._parts.visited.update(inner.path for inner in part.configs())

    def missing(self, why: str) -> None:
        """Records that activations and time of the module are not modelled; its weights are."""
        self._parts.missing.append(Gap(self.config.path, self.config.klass, why))

    def covered(self, config: Config) -> None:
        """Records that a part of the config, with all in it, needs no function of its own."""
        self._parts.visited.update(inner.path for inner in config.configs())

    def routed(self, reasons: dict[str, str]) -> None:
        """Records that the module routes tokens to experts; `reasons` are those of `experts`."""
        self._parts.experts = self.config.path, reasons

    def of_images(self) -> None:
        """Records that a sequence is one image, whose positions share the weights."""
        self._parts.is_of_images = True
        self._parts.multiplies_once = False

    def unknown_mask(self, why: str) -> None:
        """Records that the mask of an attention module is not modelled."""
        self._parts.masks.append(Gap(self.config.path, self.config.klass, why))


def sharding_of(config: Config, key: str) -> Spec | None:
    """A partition spec of `config`: the axes that shard each dimension."""
    try:
        spec = config.partition_spec(key)
    except TypeError as error:
        raise UnmodelledError(str(error)) from None
    if spec is None:
        return None
    return tuple(
        () if part is None or part == "UNCONSTRAINED"
        else (part,) if isinstance(part, str) else tuple(part)
        for part in spec.dimensions
    )  # fmt: skip


def register_module(klass: str) -> Callable[[Module], Module]:
    """Registers the decorated function to model modules of `klass` in every config.

    `klass` is the class name as configs print it. The function adds the module's parameters,
    matmuls and values to a `Builder`; a `ValueError` that it raises says why a module is not
    modelled:

        @hlofast.config.register_module("my.layers.Gate")
        def gate(builder):
            weight = builder.parameter("weight", (builder.width, 8))
            builder.product("gate", weight, 8 * builder.width)
    """

    def register(function: Module) -> Module:
        _registered[klass] = function
        return function

    return register


def registered(klass: str | None) -> Module | None:
    """The function that models modules of `klass`, or None."""
    from hlofast.config.axlearn import _experts, _images, _modules, _speech

    del _experts, _images, _speech  # They register their modules.
    if klass in _modules.WITHOUT_PARAMETERS:
        return _modules.nothing
    return None if klass is None else _registered.get(klass)


def compute_size(config: Config) -> int | None:
    """Bytes per element of a trainer's compute type; None if it is not modelled."""
    dtype = config.get("train_dtype")
    try:
        return item_size(DEFAULT_DTYPE if dtype is None else dtype, "train_dtype")
    except UnmodelledError:
        return None


def parts_of(config: Config) -> ModelParts:
    """The parts of the model of a trainer's config, or of a model's config."""
    from hlofast.config.axlearn import _modules

    model = config.get("model")
    trainer = config if isinstance(model, Config) else None
    parts = ModelParts()
    root = model if isinstance(model, Config) else config
    sequence = None if trainer is None else trainer.get("input.source.max_sequence_length")
    image = None if trainer is None else trainer.get("input.processor.image_size")
    builder = Builder(
        root,
        parts,
        sequence=sequence if type(sequence) is int and 0 < sequence <= LARGEST_SIZE else None,
        itemsize=compute_size(config) or ITEM_SIZES[DEFAULT_DTYPE],
        settings={"image": image.to_python()} if isinstance(image, Config) else None,
    )
    _build(builder)
    for part in root.configs():
        # A part with a class that was not visited may have weights.
        if part.klass is None or part.path in parts.visited:
            continue
        if part.klass not in _modules.WITHOUT_PARAMETERS:
            builder.gap("the class is not modelled here", part)
    if parts.has_whole:
        parts.moved_axes.clear()
    return parts


def _build(builder: Builder) -> None:
    config = builder.config
    parts = builder._parts
    parts.visited.add(config.path)
    function = registered(config.klass)
    if function is None:
        builder.gap("the class is not modelled")
        return
    dtype = config.get("dtype")
    if dtype is not None:
        # Inner layers inherit the type unless they set their own.
        builder.settings = {**builder.settings, "dtype": dtype}
    lists: tuple[list[Any], ...] = (parts.parameters, parts.products, parts.values, parts.moves)
    before = [len(some) for some in lists]
    try:
        function(builder)
    except (ValueError, OverflowError) as fault:
        for some, length in zip(lists, before, strict=True):
            del some[length:]
        builder.gap(fault)
