"""The parts of a model: parameters, matmuls, and values that backward needs.

`Builder` collects them while it walks through a config. Each class of modules has a function that
adds its parts: see `register_module`; AXLearn's are in `_modules.py`.
"""

from __future__ import annotations

from hlofast.config._tree import Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Axes: TypeAlias = "tuple[str, ...]"
    Spec: TypeAlias = "tuple[Axes, ...]"
    Feature: TypeAlias = "tuple[int, Axes]"
    Module: TypeAlias = "Callable[[Builder], None]"

LARGEST_SIZE = 1 << 40
"""Limit on the dimensions of a model, which keeps integers small enough for fast arithmetic."""
MOST_PARTS = 20_000
ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
"""Bytes per element, by the last part of JAX's name of the type."""
DEFAULT_DTYPE = "float32"
"""The default type of AXLearn's layers and trainers."""

_registered: dict[str, Module] = {}


class UnmodelledError(ValueError):
    """A module that is not modelled: its config lacks a value or has an unsupported one."""


class Parameter:
    """An array of weights; `copies` counts the arrays of layers that are not stacked in one array.

    `path` is its path in the model's state, with `*` for a layer's number. `sharding` lists the
    mesh axes that shard each dimension of `shape`.
    """

    __slots__ = (
        "class_name", "copies", "dtype", "layers", "module", "path", "shape", "sharding", "stacked",
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
        stacked: int,
    ) -> None:
        self.stacked = stacked
        """Number of leading dimensions of `shape` that count layers."""
        self.path = path
        self.module = module
        self.class_name = class_name
        self.shape = shape
        self.sharding = sharding
        self.dtype = dtype
        self.layers = layers
        """Number of layers whose weights the copies hold together; 1 outside of layers."""
        self.copies = copies

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        total = self.copies
        for size in self.shape:
            total *= size
        return total

    @property
    def axes(self) -> Axes:
        """All mesh axes that shard it."""
        return tuple(axis for axes in self.sharding for axis in axes)


class Product:
    """A matmul per token, in each of `layers`.

    `kept_by` lists groups of values: backward need not recompute the matmul if it keeps all values
    of one group. `is_needed` tells whether backward needs the result at all. `contracted` lists the
    dimensions of one layer's weights that the matmul sums over. Matmuls with the same `joint` share
    their input, whose gradient is one sum. Attention has no `parameter`.
    """

    __slots__ = (
        "contracted", "is_attention", "is_needed", "joint", "kept_by", "layers",
        "multiplications", "name", "parameter", "remat",
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
    ) -> None:
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


class Value:
    """A value of one layer that backward may need, with `features` elements per token.

    `name` is its checkpoint name, if it has one; `key` identifies it among the layer's values.
    """

    __slots__ = (
        "features", "is_batched", "is_needed", "is_product", "is_whole", "itemsize", "key",
        "layers", "name", "remat",
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
    ) -> None:
        self.key = key
        self.name = name
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


class Gap:
    """A part of a config that is not modelled."""

    __slots__ = ("klass", "path", "why")

    def __init__(self, path: str, klass: str | None, why: str) -> None:
        self.path = path
        self.klass = klass
        self.why = why


class Unit:
    """A module with a `remat_spec`: backward recomputes the module from its input, `layers` times.

    `spec` is the `remat_spec`; `width` is the number of elements per token of the input.
    """

    __slots__ = ("layers", "path", "spec", "width")

    def __init__(self, path: str, spec: Config, layers: int, width: int) -> None:
        self.path = path
        self.spec = spec
        self.layers = layers
        self.width = width


class Parts:
    """The parts of a model."""

    __slots__ = (
        "gaps", "head", "masks", "parameters", "products", "scratch", "units", "values", "visited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.products: list[Product] = []
        self.values: list[Value] = []
        self.scratch: list[tuple[tuple[Feature, ...], int]] = []
        """Scratch memory of a layer's kernels: features per token and bytes per element."""
        self.units: dict[str, Unit] = {}
        self.gaps: list[Gap] = []
        self.masks: list[Gap] = []
        """Attention modules whose mask is not modelled."""
        self.head: Feature | None = None
        """Size of the vocabulary, and the axes that shard the logits."""
        self.visited: set[str] = set()


class Builder:
    """Collects the parts of one module of a config.

    `config` is the module's part of the config, `path` the path of its parameters in the model's
    state, and `width` the number of elements per token of its input.
    """

    __slots__ = (
        "_copies", "_layers", "_parts", "_remat", "_stack", "config", "itemsize", "owner", "path",
        "sequence", "settings", "width",
    )  # fmt: skip

    def __init__(
        self,
        config: Config,
        parts: Parts,
        *,
        path: str = "",
        width: int = 0,
        sequence: int | None = None,
        itemsize: int = 2,
        layers: int = 1,
        copies: int = 1,
        stack: tuple[int, ...] = (),
        remat: str | None = None,
        owner: str = "",
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.path = path
        self.width = width
        self.sequence = sequence
        """Tokens per sequence; None if the config does not tell."""
        self.itemsize = itemsize
        """Bytes per element of activations."""
        self.owner = owner
        """Name of the class that prefixes the checkpoint names of values."""
        self.settings = settings or {}
        """Settings that the enclosing modules pass down."""
        self._parts = parts
        self._layers = layers
        self._copies = copies
        self._stack = stack
        self._remat = remat

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
        divided = _checked_sharding(tuple(sharding or ()), len(shape), name)
        for size in shape:
            checked_size(size, name)
        dtype = str(self.settings.get("dtype") or DEFAULT_DTYPE)
        item_size(dtype, "dtype")
        self._parts.parameters.append(
            Parameter(
                path,
                self.config.path,
                self.config.class_name or "",
                self._stack + shape,
                ((),) * len(self._stack) + divided,
                dtype,
                self._layers,
                self._copies,
                len(self._stack),
            )
        )
        self._bounded()
        return path

    def product(
        self,
        name: str,
        parameter: str | None,
        multiplications: int,
        *,
        kept_by: tuple[tuple[str, ...], ...] = (),
        is_needed: bool = True,
        is_attention: bool = False,
        contracted: tuple[int, ...] = (0,),
        joint: str | None = None,
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
            )
        )
        self._bounded()

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

    def key(self, name: str) -> str:
        """The key of a value of this module, for `kept_by`."""
        return f"{self.path}:{name}"

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
    ) -> None:
        """Adds the parts of the module `config`, with paths below `name`.

        `layers` is the number of such modules; their weights are `stacked` in one array, or
        `numbered`, with one array each.
        """
        path = "/".join(part for part in (self.path, name) if part)
        width = self.width if width is None else width
        remat, spec = self._remat, config.get("remat_spec")
        if isinstance(spec, Config):
            if remat is None:
                remat = config.path
                times = self._layers * layers
                self._parts.units[remat] = Unit(remat, spec, times, width)
            else:
                self.gap("a remat_spec inside a rematerialised module is not modelled", spec)
        inner = Builder(
            config,
            self._parts,
            path=path,
            width=width,
            sequence=self.sequence,
            itemsize=self.itemsize,
            layers=self._layers * layers,
            copies=self._copies * (layers if numbered else 1),
            stack=(*self._stack, layers) if stacked else self._stack,
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

    def gap(self, why: str, config: Config | None = None) -> None:
        """Records that a part is not modelled."""
        part = self.config if config is None else config
        self._parts.gaps.append(Gap(part.path, part.klass, why))
        self._parts.visited.update(inner.path for inner in part.configs())

    def unknown_mask(self, why: str) -> None:
        """Records that the mask of an attention module is not modelled."""
        self._parts.masks.append(Gap(self.config.path, self.config.klass, why))

    def _bounded(self) -> None:
        parts = self._parts
        if len(parts.parameters) + len(parts.products) + len(parts.values) > MOST_PARTS:
            raise UnmodelledError(f"more than {MOST_PARTS:,} parts")


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


def _checked_sharding(sharding: Spec, rank: int, name: str) -> Spec:
    """Returns `sharding` extended to all dimensions of an array of this rank, as JAX reads it."""
    if any(sharding[rank:]):
        raise UnmodelledError(f"{name} has {rank} dimensions, but its spec has {len(sharding)}")
    divided = sharding[:rank] + ((),) * (rank - len(sharding))
    axes = [axis for part in divided for axis in part]
    for axis in axes:
        if axes.count(axis) > 1:
            raise UnmodelledError(f"the spec of {name} names {axis!r} more than once")
    return divided


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
    from hlofast.config import _modules

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


def parts_of(config: Config) -> Parts:
    """The parts of the model of a trainer's config, or of a model's config."""
    from hlofast.config import _modules

    model = config.get("model")
    trainer = config if isinstance(model, Config) else None
    parts = Parts()
    root = model if isinstance(model, Config) else config
    sequence = None if trainer is None else trainer.get("input.source.max_sequence_length")
    builder = Builder(
        root,
        parts,
        sequence=sequence if type(sequence) is int and 0 < sequence <= LARGEST_SIZE else None,
        itemsize=compute_size(config) or ITEM_SIZES[DEFAULT_DTYPE],
    )
    _build(builder)
    for part in root.configs():
        # A part with a class that was not visited may have weights.
        if part.klass is None or part.path in parts.visited:
            continue
        if part.klass not in _modules.WITHOUT_PARAMETERS:
            builder.gap("the class is not modelled here", part)
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
    lists: tuple[list[Any], ...] = (parts.parameters, parts.products, parts.values)
    before = [len(some) for some in lists]
    try:
        function(builder)
    except (ValueError, OverflowError) as fault:
        for some, length in zip(lists, before, strict=True):
            del some[length:]
        builder.gap(str(fault))
