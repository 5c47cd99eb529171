"""`Declaration`: the intended properties of a program."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hlofast._core import Mesh
from hlofast._names import meant
from hlofast._toml import read_count, read_file, read_size, read_tables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike
    from typing import Any

Spec = tuple[tuple[str, ...], ...]
"""The mesh axes that shard each dimension of an array; empty for an unsharded dimension."""

PLACES = ("device", "host")
_STEP = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|([^\]]*))\]|([^.\[\]]+)")
_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([\d, ]*)\]")
_LONGEST_LIST = 1_000_000


def path_of(name: str) -> str:
    """Converts a parameter's name to a path: `state['layers'].w[0]` becomes `state/layers/w/0`."""
    steps = ["".join(groups) for groups in _STEP.findall(name)]
    return "/".join(steps) or name


@dataclass(frozen=True)
class DeclaredParameter:
    """The intended sharding of all parameters whose path matches a pattern."""

    pattern: str
    """A regular expression for the whole path, such as `.*/layers/query`."""
    spec: Spec
    """The axes that shard each dimension; dimensions beyond its end are not sharded."""
    shape: tuple[int, ...] | None = None
    """The sizes over all devices; None if the declaration does not give them."""

    def matches(self, path: str) -> bool:
        """Whether the pattern matches the parameter at `path`."""
        return re.fullmatch(self.pattern, path) is not None


@dataclass(frozen=True)
class DeclaredValue:
    """A value that the checkpoint policy keeps from forward to backward in every layer."""

    name: str
    """Its name in the policy."""
    layer_bytes: int
    """Bytes per layer, micro-batch and device."""
    place: str = "device"
    """Where it is kept: `device` or `host`."""


@dataclass(frozen=True)
class Prediction:
    """A predicted figure of the program."""

    value: int
    """Per device, and per step if it counts work."""
    source: str
    """The source of the prediction."""


@dataclass(frozen=True)
class Declaration:
    """The intended properties of a program: mesh, shardings, policy, loops and predicted figures.

    Created from TOML by `Declaration.load` and `Declaration.loads`, or from an AXLearn config.
    Fields that are None or empty are not compared.
    """

    source: str = "the declaration"
    """The declaration's name in messages: a file's name, or a config and its instance."""
    mesh: Mesh | None = None
    """The mesh; its last axis varies fastest."""
    batch_axes: tuple[str, ...] = ()
    """The axes that shard the batch."""
    moved_axes: tuple[str, ...] = ()
    """Axes along which activations travel beside those that shard weights alone: experts, or the
    tokens of a sequence in attention. Configs tell them; TOML has no key for them."""
    parameters: tuple[DeclaredParameter, ...] = ()
    """Declared parameters; the first pattern that matches a parameter applies."""
    has_all_weights: bool = False
    """Whether `parameters` are all weights of the model: any other is an error. Configs tell it;
    TOML has no key for it."""
    kept: tuple[DeclaredValue, ...] | None = None
    """Values the policy keeps; None if not declared, empty if it keeps nothing by name."""
    carry_bytes: int | None = None
    """Bytes of the carry that the loop over layers keeps per layer, as `jax.lax.scan` does."""
    layers: int | None = None
    """Trip count of the loop over layers."""
    accumulation_steps: int | None = None
    """Micro-batches per step."""
    batch: int | None = None
    """Sequences of a step on all devices."""
    sequence: int | None = None
    """Tokens of a sequence."""
    dtype: str | None = None
    """The element type of activations, as XLA writes it: `bf16`."""
    matmul_type: str | None = None
    """The type that quantised matmuls multiply (`s8`), empty where none are quantised. Configs tell
    it; TOML has no key for it."""
    fuses_attention: bool | None = None
    """Whether attention is a kernel. Configs tell it; TOML has no key for it."""
    donates: bool = False
    """Whether the step donates its state; not compared if not."""
    available: int | None = None
    """Memory of one device, in bytes."""
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    """Predicted figures by name, one of `PREDICTIONS`."""
    gaps: tuple[tuple[str, str], ...] = ()
    """Properties that could not be declared: place and reason."""

    def parameter(self, path: str) -> DeclaredParameter | None:
        """The declaration of the parameter at `path`, or None."""
        return next((parameter for parameter in self.parameters if parameter.matches(path)), None)

    @staticmethod
    def load(path: str | PathLike[str]) -> Declaration:
        """Reads a declaration from a TOML file.

        Raises `OSError`, or `ValueError` if the file is invalid or declares nothing.
        """
        text, source = read_file(path)
        declared = Declaration.loads(text, source=source)
        if declared == Declaration(source=source):
            # A check against nothing would pass.
            tables = ", ".join(f"[{key}]" for key in _Reader.KEYS)
            raise ValueError(f"{source}: declares nothing; give at least one of {tables}")
        return declared

    @staticmethod
    def loads(text: str, *, source: str = "the declaration") -> Declaration:
        """Reads a declaration from TOML `text`; raises `ValueError` if it is invalid."""
        tables = read_tables(text, source)
        try:
            return _Reader(tables).declaration(source)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        except RecursionError:  # From showing a value.
            raise ValueError(f"{source}: nested too deeply") from None


PREDICTIONS = {
    "state_bytes": "bytes of the program's parameters except the batch",
    "offloaded_bytes": "bytes kept in host memory from forward to backward",
    "gathered_bytes": "bytes of weights gathered in a step",
    "flops": "FLOPs of matmuls in a step",
    "peak_bytes": "lower bound of the bytes at the peak",
    "expected_peak_bytes": "expected bytes at the peak",
}
"""Figures that can be predicted, all per device."""


class _Reader:
    """Converts the tables of a TOML file to a declaration."""

    KEYS = ("mesh", "model", "parameters", "kept", "predicted", "limits")

    def __init__(self, tables: dict[str, Any]) -> None:
        _only(tables, self.KEYS, "the file")
        self.tables = tables

    def declaration(self, source: str) -> Declaration:
        mesh, batch_axes = self.mesh()
        model = self.table(
            "model",
            (
                "layers",
                "accumulation_steps",
                "carry_bytes",
                "batch",
                "sequence",
                "dtype",
                "donates",
            ),
        )
        dtype = _text(model, "dtype", "model")
        if dtype is not None and element_bits(dtype) is None:
            raise ValueError(f"model.dtype: unknown element type {dtype!r}")
        donates = model.get("donates", False)
        if not isinstance(donates, bool):
            raise ValueError("model.donates must be true or false")
        names = set() if mesh is None else set(mesh.axis_names)
        parameters = tuple(self.parameters(names))
        kept = tuple(self.kept()) if "kept" in self.tables else None
        carry = model.get("carry_bytes")
        return Declaration(
            source=source,
            mesh=mesh,
            batch_axes=batch_axes,
            parameters=parameters,
            kept=kept,
            carry_bytes=None if carry is None else read_size(carry, "model.carry_bytes"),
            layers=_positive(model, "layers", "model"),
            accumulation_steps=_positive(model, "accumulation_steps", "model"),
            batch=_positive(model, "batch", "model"),
            sequence=_positive(model, "sequence", "model"),
            dtype=dtype,
            donates=donates,
            available=self.available(),
            predictions=self.predictions(source),
        )

    def table(self, name: str, keys: Iterable[str]) -> dict[str, Any]:
        table = self.tables.get(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"{name} must be a table")
        _only(table, keys, name)
        return table

    def rows(self, name: str, keys: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
        rows = self.tables.get(name, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"{name} must be an array of tables: [[{name}]]")
        for number, row in enumerate(rows):
            _only(row, keys, f"{name}[{number}]")
        return [(f"{name}[{number}]", row) for number, row in enumerate(rows)]

    def mesh(self) -> tuple[Mesh | None, tuple[str, ...]]:
        table = self.table("mesh", ("axes", "slices", "hosts", "batch_axes"))
        if not table:
            return None, ()
        axes = table.get("axes")
        if not isinstance(axes, dict) or not all(_is_count(size) for size in axes.values()):
            raise ValueError(
                "mesh.axes must map axis names to sizes, such as { data = 2, model = 4 }"
            )
        try:
            mesh = Mesh(
                axes,
                hosts=_positive(table, "hosts", "mesh"),
                slices=_positive(table, "slices", "mesh"),
            )
        except (OverflowError, ValueError) as error:
            raise ValueError(f"mesh: {error}") from None
        batch_axes = table.get("batch_axes", [])
        if not isinstance(batch_axes, list) or not all(
            isinstance(axis, str) for axis in batch_axes
        ):
            raise ValueError("mesh.batch_axes must be a list of axis names")
        for name in batch_axes:
            if name not in axes:
                raise ValueError(f"mesh.batch_axes: no axis {name!r}{meant(name, axes)}")
        return mesh, tuple(batch_axes)

    def parameters(self, axes: set[str]) -> Iterable[DeclaredParameter]:
        for place, row in self.rows("parameters", ("name", "spec", "shape")):
            pattern = _text(row, "name", place)
            if pattern is None:
                raise ValueError(f"{place} has no name")
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"{place}.name is not a regular expression: {error}") from None
            shape = row.get("shape")
            if shape is not None and not (isinstance(shape, list) and all(map(_is_count, shape))):
                raise ValueError(f"{place}.shape must be a list of sizes")
            spec = tuple(_dimension(entry, axes, place) for entry in _list(row, "spec", place))
            yield DeclaredParameter(pattern, spec, None if shape is None else tuple(shape))

    def kept(self) -> Iterable[DeclaredValue]:
        for place, row in self.rows("kept", ("name", "shape", "bytes", "place")):
            name = _text(row, "name", place)
            if name is None:
                raise ValueError(f"{place} has no name")
            if ("shape" in row) == ("bytes" in row):
                raise ValueError(f"{place} needs either shape or bytes, per layer and device")
            where = row.get("place", "device")
            if where not in PLACES:
                raise ValueError(f"{place}.place must be one of {', '.join(PLACES)}, not {where!r}")
            if "bytes" in row:
                size = read_size(row["bytes"], f"{place}.bytes")
            else:
                size = shape_bytes(_text(row, "shape", place) or "", f"{place}.shape")
            yield DeclaredValue(name, size, where)

    def available(self) -> int | None:
        table = self.table("limits", ("hbm",))
        return read_size(table["hbm"], "limits.hbm") if "hbm" in table else None

    def predictions(self, source: str) -> dict[str, Prediction]:
        table = self.table("predicted", PREDICTIONS)
        predictions = {}
        for name, value in table.items():
            read = read_count if name == "flops" else read_size
            number = read(value, f"predicted.{name}")
            predictions[name] = Prediction(number, source)
        return predictions


def shape_bytes(text: str, place: str) -> int:
    """Bytes of an array such as `bf16[2,1024]`; other text raises `ValueError` with `place`."""
    match = _SHAPE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise ValueError(f"{place} must be an array such as bf16[2,1024], not {text!r}")
    bits = element_bits(match[1])
    if bits is None:
        raise ValueError(f"{place}: unknown element type {match[1]!r}")
    count = 1
    for size in filter(None, match[2].split(",")):
        count *= int(size)
        if count >= 2**66:
            break
    if count * bits >= 2**66:
        raise ValueError(f"{place} is too large")
    return -(-count * bits // 8)


def element_bits(name: str) -> int | None:
    """Bits of an XLA element type; None for other names."""
    import hlofast

    if name not in hlofast.element_types or name in ("tuple", "token", "opaque"):
        return None
    shape = hlofast.loads(f"HloModule m\nENTRY e {{ ROOT p = {name}[8] parameter(0) }}")[0].shape
    return shape.bytes


def _only(table: Mapping[str, Any], keys: Iterable[str], place: str) -> None:
    unknown = [key for key in table if key not in keys]
    if unknown:
        raise ValueError(f"{place}: unknown key {unknown[0]!r}; known keys: {', '.join(keys)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63


def _positive(table: Mapping[str, Any], key: str, place: str) -> int | None:
    value = table.get(key)
    if value is not None and not _is_count(value):
        raise ValueError(f"{place}.{key} must be a positive integer")
    return value


def _text(table: Mapping[str, Any], key: str, place: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{place}.{key} must be a string")
    return value


def _list(table: Mapping[str, Any], key: str, place: str) -> list[Any]:
    value = table.get(key)
    if not isinstance(value, list) or len(value) > _LONGEST_LIST:
        raise ValueError(f"{place}.{key} must be a list with one entry per dimension")
    return value


def _dimension(entry: object, axes: set[str], place: str) -> tuple[str, ...]:
    names = [entry] if isinstance(entry, str) else entry
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f'{place}.spec: entries must be an axis, a list of axes, or ""')
    split = tuple(name for name in names if name)
    unknown = [name for name in split if name not in axes]
    if unknown:
        hint = meant(unknown[0], sorted(axes))
        raise ValueError(f"{place}.spec: the mesh has no axis {unknown[0]!r}{hint}")
    return split
