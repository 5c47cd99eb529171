"""Figures of accelerators: `get("tpu-v5e")`, `names()`, `load("mine.toml")`.

`devices.toml` holds the built-in figures, each with its source. Figures without a source are left
out, and a result that needs such a figure names it; supply it with `Device.replace` or in a TOML
file of the same form.
"""

from __future__ import annotations

from _collections_abc import Iterator, Mapping

from hlofast import _core
from hlofast._measurements import Measurements, read_measurements
from hlofast._numbers import is_number, is_whole

TYPE_CHECKING = False  # The command line reads devices; importing typing would slow its start.
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any, NoReturn

__all__ = [
    "FIGURES", "CollectiveTime", "Device", "DeviceTable", "Figure", "Measurements",
    "UnknownDeviceError", "UnknownFigureError", "built_in", "get", "load", "names",
    "read_measurements", "read_target_config", "table",
]  # fmt: skip

FIGURES: dict[str, str] = {
    "hbm_bytes": "HBM of the chip, in bytes",
    "hbm_usable_bytes": "HBM that programs may use, in bytes",
    "tuple_table_bytes": "bytes to which the pointer table of a tuple is rounded up",
    "hbm_bandwidth": "HBM bandwidth, in bytes per second",
    "hbm_achieved_bandwidth": "HBM bandwidth in the compiler's cost model (TPU) or that kernels "
    "reach (GPU), in bytes per second",
    "hbm_latency": "HBM latency in the compiler's cost model, in seconds",
    "fast_memory_bytes": "VMEM of a TPU, last-level cache of a GPU, in bytes",
    "fast_memory_bandwidth": "bandwidth of the fast memory, in bytes per second",
    "clock": "clock of the compute units, in hertz",
    "cores": "TensorCores of a TPU, multiprocessors of a GPU, NeuronCores of a Trainium",
    "jax_devices": "JAX devices per chip",
    "matrix_units": "systolic arrays of a TPU",
    "matrix_unit_size": "rows and columns of one systolic array",
    "matrix_unit_minimum_rows": "rows below which loading weights takes longer than the matmul",
    "matrix_unit_latency": "cycles until a matmul returns its first results",
    "matrix_unit_restart": "cycles between the matmuls of two windows",
    "vector_operations": "operations per cycle and core on vectors of 1024 elements",
    "launch": "seconds to launch one kernel",
    "compute_capability": "compute capability of an NVIDIA chip, such as 9.0",
    "matmul_efficiency": "share of the peak that large matmuls of 16-bit floats reach on a GPU",
    "topology": "torus-2d, torus-3d, switch or fully-connected",
    "wraparound_multiple": "a torus axis wraps around if its length is a multiple of this",
    "link_count": "links of one chip to its neighbours or its switch",
    "link_bandwidth": "bandwidth of one link in one direction, in bytes per second",
    "link_latency": "seconds per hop",
    "link_efficiency": "share of the links' bandwidth that large collectives reach on GPUs",
    "collective_latency": "seconds of an all-reduce of a few bytes among the GPUs of a host",
    "network_bandwidth": "network bandwidth per chip between hosts or slices, in bytes per second",
    "network_latency": "seconds per message between hosts or slices",
    "slice_wait": "growth of the step time from waiting for other slices, per doubling of their "
    "number: a factor of e^value",
    "network_launch": "seconds to launch one collective between hosts",
    "network_round_trip": "round-trip time between hosts, in seconds",
    "network_chunk_preparation": "seconds to prepare one chunk of 4 MiB",
    "network_achieved_bandwidth": "network bandwidth that collectives reach, in bytes per second",
    "chips_per_host": "chips of one host",
    "host_bandwidth": "bandwidth between a chip and its host in one direction, in bytes per second",
    "host_memory_bytes": "memory of one host, in bytes",
}
"""Every figure of a device except its peaks in `flops`, with meaning and unit."""

_TEXTS = {"topology"}
_COUNTS = {"cores", "jax_devices", "matrix_units", "matrix_unit_size", "wraparound_multiple"}
_COUNTS |= {"link_count", "chips_per_host", "matrix_unit_minimum_rows", "vector_operations"}
_COUNTS |= {"tuple_table_bytes"}
_TOPOLOGIES = {"torus-2d": 2, "torus-3d": 3, "switch": 1, "fully-connected": 1}
"""By topology: the axes that a collective may share."""
_BACKENDS = ("tpu", "gpu", "neuron", "cpu", "other")
_LARGEST = 1.7976931348623157e308
"""The largest double. The core takes figures as doubles, but integers in TOML may be larger."""
_KEYS = {"label", "backend", "aliases", "base", "flops"}


FITTED = "fitted on "
"""How the sources of figures that were fitted on a profile begin."""


class Figure:
    """A value and its source."""

    __slots__ = ("source", "value")

    def __init__(self, value: float | str, source: str) -> None:
        self.value = value
        self.source = source

    def __repr__(self) -> str:
        return f"Figure({self.value!r}, source={self.source!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Figure):
            return NotImplemented
        return (self.value, self.source) == (other.value, other.source)

    def __hash__(self) -> int:
        return hash((self.value, self.source))


class UnknownFigureError(ValueError):
    """A result needs a figure of a device that is not known.

    `device` is the name of the device, `figure` the name of the missing figure.
    """

    def __init__(self, device: str, figure: str) -> None:
        super().__init__(
            f"{figure} of {device} is not known; supply it with Device.replace({figure}=...) or in "
            f"a TOML file of devices"
        )
        self.device = device
        self.figure = figure

    def __reduce__(self) -> tuple[object, ...]:
        return UnknownFigureError, (self.device, self.figure)


class Device(Mapping[str, Figure]):
    """One kind of chip: a mapping from names in `FIGURES` to `Figure`, without unknown figures.

    `device.value("hbm_bandwidth")` returns the bare value or None; `device.require(...)` raises
    `UnknownFigureError` instead of returning None. `device.flops["bf16"]` is a peak in dense
    operations per second. All figures are per chip; `device.per_jax_device("hbm_bandwidth")`
    divides by `jax_devices`.
    """

    __slots__ = ("_figures", "aliases", "backend", "flops", "label", "name")

    def __init__(
        self,
        name: str,
        figures: Mapping[str, Figure],
        flops: Mapping[str, Figure],
        *,
        label: str = "",
        backend: str = "other",
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.label = label or name
        self.backend = backend
        self.aliases = aliases
        self.flops = dict(flops)
        self._figures = dict(figures)

    def __getitem__(self, key: str) -> Figure:
        return self._figures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return NotImplemented
        return (self.name, self._figures, self.flops) == (other.name, other._figures, other.flops)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        peaks = ", ".join(f"{key} {peak.value:.4g}" for key, peak in self.flops.items())
        bandwidth = self.value("hbm_bandwidth")
        memory = "unknown" if bandwidth is None else f"{bandwidth:.4g} bytes/s"
        return f"<Device {self.name}: {self.label}; FLOP/s {peaks or 'unknown'}; HBM {memory}>"

    def value(self, figure: str) -> Any:
        """The value of `figure`, or None if it is not known; raises `KeyError` for other names.

        Peaks are named like `flops.bf16`.
        """
        known = self._find(figure)
        return None if known is None else known.value

    def source(self, figure: str) -> str | None:
        """The source of `figure`, or None if the figure is not known."""
        known = self._find(figure)
        return None if known is None else known.source

    def require(self, figure: str) -> Any:
        """The value of `figure`; raises `UnknownFigureError` if it is not known."""
        value = self.value(figure)
        if value is None:
            raise UnknownFigureError(self.name, figure)
        return value

    def per_jax_device(self, figure: str) -> float:
        """The share of one JAX device in a figure of the chip.

        Raises `UnknownFigureError` if the figure or `jax_devices` is not known.
        """
        return float(self.require(figure)) / float(self.require("jax_devices"))

    @property
    def host_memory(self) -> int | None:
        """Bytes of host memory for each JAX device; None if unknown."""
        figures = [
            self.value(own) for own in ("host_memory_bytes", "chips_per_host", "jax_devices")
        ]
        if None in figures:
            return None
        memory, chips, devices = map(float, figures)
        return int(memory / chips / devices)

    def replace(
        self,
        *,
        flops: Mapping[str, float] | None = None,
        source: str = "given by the caller",
        **figures: float | str | None,
    ) -> Device:
        """Returns a copy with these figures, which come from `source`; None removes a figure.

        Raises `ValueError` for a name that is not in `FIGURES` or an invalid value.
        """
        changed = dict(self._figures)
        for key, value in figures.items():
            if value is None and key in FIGURES:
                changed.pop(key, None)
            else:
                changed[key] = Figure(_checked(self.name, key, value), source)
        peaks = dict(self.flops)
        for key, value in (flops or {}).items():
            peaks[key] = Figure(_positive(f"{self.name}: flops.{key}", value), source)
        return Device(
            self.name, changed, peaks, label=self.label, backend=self.backend, aliases=self.aliases
        )

    def collective_time(
        self,
        kind: str,
        payload: float,
        group_size: int,
        *,
        near: int | None = None,
        axes: int | None = None,
        model: str = "topology",
        communicators: int = 1,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> CollectiveTime:
        """The modelled time of one collective among chips of this kind.

        `kind` is the HLO opcode. `payload` is the bytes of the whole array: the result of an
        all-gather, the operand of other collectives. `near` is the number of devices of the group
        on one host (switches) or slice (torus); the remaining devices are reached over the network.
        By default, a group fills hosts of `chips_per_host` GPUs, and is on one slice of a torus.
        `axes` is the number of torus axes that share the work (default 1).

        Models: `topology` (ring, torus, switch or hierarchy, with latency and bandwidth from the
        figures), `speed-of-light` (XLA's model for several GPU hosts, with `communicators`
        concurrent groups), `alpa` (Alpa's costs with `alpha` and `beta`, not in seconds). Raises
        `UnknownFigureError` if a figure is missing, and `ValueError` for an unknown kind or model,
        and for sizes that the group or the torus does not have.
        """
        if not 0 <= payload <= _LARGEST or group_size < 1:
            raise ValueError(f"no collective of {payload} bytes among {group_size} devices")
        if near is not None and not 1 <= near <= group_size:
            raise ValueError(f"near is from 1 to the {group_size} devices of the group, not {near}")
        most = _TOPOLOGIES.get(str(self.value("topology")), 1)
        if axes is not None and not 1 <= axes <= most:
            limit = f"from 1 to {most}" if most > 1 else "1"
            raise ValueError(f"axes is {limit} on {self.name}, not {axes}")
        try:
            estimate = _core._collective_time(
                self._parts(),
                kind,
                payload,
                group_size,
                near=near,
                axes=axes,
                model=model,
                communicators=communicators,
                alpha=alpha,
                beta=beta,
            )
        except ValueError as error:
            if str(error) in FIGURES:
                raise UnknownFigureError(self.name, str(error)) from None
            raise
        return CollectiveTime(*estimate)

    def _parts(
        self,
    ) -> tuple[str, str, str | None, list[tuple[str, float]], list[tuple[str, float]]]:
        """The device in the form that the core takes."""
        figures = [(key, float(f.value)) for key, f in self.items() if not isinstance(f.value, str)]
        peaks = [(key, float(peak.value)) for key, peak in self.flops.items()]
        return self.name, self.backend, self.value("topology"), figures, peaks

    def _find(self, figure: str) -> Figure | None:
        if figure.startswith("flops."):
            return self.flops.get(figure[len("flops.") :])
        if figure not in FIGURES:
            raise KeyError(figure)
        return self._figures.get(figure)


class CollectiveTime:
    """The modelled time of a collective, with its parts."""

    __slots__ = ("alpha_seconds", "bytes_per_second", "seconds", "wire_bytes")

    def __init__(
        self, seconds: float, wire_bytes: float, alpha_seconds: float, bytes_per_second: float
    ) -> None:
        self.seconds = seconds
        """Total seconds; for the model `alpa`, its cost, which has no unit."""
        self.wire_bytes = wire_bytes
        """Bytes that each device sends in a ring or over a switch."""
        self.alpha_seconds = alpha_seconds
        """The part of `seconds` that does not depend on the size."""
        self.bytes_per_second = bytes_per_second
        """Wire bytes divided by the remaining seconds.

        0 without wire bytes or in a model without bandwidth.
        """

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"CollectiveTime({figures})"


class DeviceTable(Mapping[str, Device]):
    """Devices by name. `get` and `[ ]` also accept aliases; letter case does not matter."""

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self._devices = dict(devices)
        self._names = {_folded(name): name for name in self._devices}
        for name, device in self._devices.items():
            for alias in device.aliases:
                self._names.setdefault(_folded(alias), name)

    def __getitem__(self, name: str) -> Device:
        canonical = self._names.get(_folded(name))
        if canonical is None:
            from hlofast._names import meant

            hint = meant(str(name), list(self._devices))
            known = ", ".join(self._devices)
            raise UnknownDeviceError(f"unknown device {name!r}; known devices: {known}{hint}")
        return self._devices[canonical]

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _folded(name) in self._names

    def __repr__(self) -> str:
        return f"<DeviceTable: {', '.join(self._devices)}>"


class UnknownDeviceError(KeyError, ValueError):
    """No device has this name."""

    def __str__(self) -> str:
        return str(self.args[0])


_built_in: DeviceTable | None = None


def _built_in_table() -> DeviceTable:
    global _built_in
    if _built_in is None:
        with open(f"{__file__[: -len('devices.py')]}devices.toml", encoding="utf-8") as file:
            _built_in = DeviceTable(_read(file.read(), "devices.toml", {}))
    return _built_in


def built_in() -> DeviceTable:
    """The built-in devices."""
    return _built_in_table()


def names() -> tuple[str, ...]:
    """The names of the built-in devices."""
    return tuple(_built_in_table())


def get(device: str | Device) -> Device:
    """Returns the built-in device with this name or alias; returns a `Device` unchanged.

    Raises `UnknownDeviceError` (a `KeyError` and a `ValueError`) for an unknown name.
    """
    if not isinstance(device, (str, Device)):
        raise TypeError(f"device must be a name or a Device, not {device!r}")
    return device if isinstance(device, Device) else _built_in_table()[device]


def load(path: str | PathLike[str]) -> DeviceTable:
    """Returns the built-in devices together with the devices of a TOML file.

    Each table of the file is a device. A table with the name or an alias of a built-in device
    overrides the figures that it lists; any other table starts from the device that it names as
    `base`, or empty. A cell is a value or `{ value = ..., source = "..." }`; the source defaults to
    the file. Raises `ValueError` for a name that is not in `FIGURES` and for invalid TOML.
    """
    from hlofast._toml import read_file

    return DeviceTable(_read(*read_file(path), _built_in_table()))


def read_target_config(path: str | PathLike[str]) -> Device:
    """Returns the GPU that XLA's file `gpu_target_config.pbtxt` describes, compressed or not.

    Memory, bandwidth, cache, clock and cores are those of the file. Peaks are computed from its
    matrix units, or, in files of older XLA without them, from cores, clock and the manufacturer's
    rate per core; the source of a figure says which, and begins with `assumed` for the latter. The
    links of a chip with the cores of a built-in device are assumed to be those of that device.
    Raises `ValueError` for other files.
    """
    from hlofast import _target_config

    return _target_config.read_file(str(path), _built_in_table())


def table(devices: Mapping[str, Device] | None = None) -> Any:
    """Returns a `Table` with one row per figure of `devices`, by default the built-in devices.

    Columns: device, figure, value (a number), text (for figures that are words, such as the
    topology), source. If a figure is not known, the last three are None.
    """
    from hlofast._core import Field
    from hlofast.table import of_rows

    fields = (
        Field("name", "device", "The device."),
        Field("name", "figure", "The figure, as `hlofast.devices.FIGURES` and peaks name it."),
        Field("number", "value", "The number, in the unit given in `FIGURES`.", nullable=True),
        Field("word", "text", "The value of a figure that is a word.", nullable=True),
        Field("text", "source", "The source of the value.", nullable=True),
    )
    rows: list[tuple[str, str, float | None, str | None, str | None]] = []
    for name, device in (_built_in_table() if devices is None else devices).items():
        cells = [(f"flops.{key}", figure) for key, figure in device.flops.items()]
        for key, cell in (*cells, *((key, device._find(key)) for key in FIGURES)):
            if cell is None:
                rows.append((name, key, None, None, None))
            elif isinstance(cell.value, str):
                rows.append((name, key, None, cell.value, cell.source))
            else:
                rows.append((name, key, cell.value, None, cell.source))
    return of_rows(fields, rows)


def _folded(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _read(text: str, path: str, known: Mapping[str, Device]) -> dict[str, Device]:
    from hlofast._toml import read_tables

    tables = read_tables(text, path)
    sources = tables.pop("sources", {})
    if not isinstance(sources, dict) or not all(
        isinstance(source, str) for source in sources.values()
    ):
        raise ValueError(f"{path}: sources must be a table of strings")
    devices = dict(known)
    for name, cells in tables.items():
        if not isinstance(cells, dict):
            _refuse(path, name, "a device must be a table")
        base = cells.get("base", name)
        if not isinstance(base, str):
            _refuse(path, name, "base must be the name of a device")
        if "base" in cells and base not in known and base not in devices:
            _refuse(path, name, f"base {base!r} is not a known device")
        start = known[base] if base in known else devices.get(base)
        key = start.name if start is not None and "base" not in cells else name
        devices[key] = _device(path, key, cells, sources, start)
    return devices


def _device(
    path: str, name: str, cells: dict[str, Any], sources: dict[str, str], start: Device | None
) -> Device:
    def figure(key: str, cell: Any) -> Figure:
        value, source = cell, path
        if isinstance(cell, dict):
            if "value" not in cell or set(cell) - {"value", "source"}:
                _refuse(path, name, f"{key} must be a value or {{ value = ..., source = ... }}")
            value, source = cell["value"], cell.get("source", path)
            if not isinstance(source, str):
                _refuse(path, name, f"the source of {key} must be a string")
        where = f"{path}: {name}"
        is_peak = key.startswith("flops.")
        checked = _positive(f"{where}: {key}", value) if is_peak else _checked(where, key, value)
        return Figure(checked, sources.get(source, source))

    figures = {} if start is None else dict(start)
    peaks = {} if start is None else dict(start.flops)
    for key, cell in cells.items():
        if key == "flops":
            if not isinstance(cell, dict):
                _refuse(path, name, "flops must be a table of peaks by element type")
            peaks.update({kind: figure(f"flops.{kind}", peak) for kind, peak in cell.items()})
        elif key not in _KEYS:
            figures[key] = figure(key, cell)
    backend = cells.get("backend", "other" if start is None else start.backend)
    if backend not in _BACKENDS:
        _refuse(path, name, f"backend must be one of {', '.join(_BACKENDS)}")
    is_same = start is not None and start.name == name
    aliases = cells.get("aliases", start.aliases if start is not None and is_same else ())
    if not isinstance(aliases, list | tuple) or not all(
        isinstance(alias, str) for alias in aliases
    ):
        _refuse(path, name, "aliases must be a list of names")
    label = cells.get("label", start.label if start is not None and is_same else name)
    if not isinstance(label, str):
        _refuse(path, name, "label must be a string")
    return Device(name, figures, peaks, label=label, backend=backend, aliases=tuple(aliases))


def _refuse(path: str, name: str, message: str) -> NoReturn:
    raise ValueError(f"{path}: {name}: {message}")


def _checked(where: str, key: str, value: Any) -> float | str:
    if key not in FIGURES:
        raise ValueError(f"{where}: unknown figure {key!r}; known figures: {', '.join(FIGURES)}")
    if key in _TEXTS:
        if not isinstance(value, str) or value not in _TOPOLOGIES:
            raise ValueError(f"{where}: {key} must be one of {', '.join(_TOPOLOGIES)}")
        return str(value)
    number = _positive(f"{where}: {key}", value)
    if key in _COUNTS:
        if number != int(number):
            raise ValueError(f"{where}: {key} must be an integer, not {value!r}")
        return int(number)
    return number


def _positive(where: str, value: Any) -> float:
    number: float | None = None
    if is_number(value):
        number = int(value) if is_whole(value) else float(value)
    if number is None or not 0 < number <= _LARGEST:
        is_shown = number is not None or isinstance(value, str)
        shown = repr(value) if is_shown else type(value).__name__
        raise ValueError(f"{where} must be a positive number, not {shown}")
    return number
