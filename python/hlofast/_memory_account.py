"""XLA's accounting of a program's memory, and the device memory with which it is compared.

HBM, fast on-chip memory and host memory have a figure each; only the figure for HBM is
compared with the HBM of a device.
"""

from __future__ import annotations

from hlofast import _core
from hlofast._core import Field
from hlofast._result import Section
from hlofast._units import read_bytes
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._memory import Memory
    from hlofast._module import Module
    from hlofast._policies import Policies
    from hlofast.devices import Device

_FIELDS = (
    Field("word", "part", "The kind of memory, as `CompiledMemoryStats` names it."),
    Field("index", "memory_space", "The memory space: 0 is HBM, 5 is host memory."),
    Field(
        "bytes",
        "bytes",
        "Bytes of this part; unknown if the text does not give them.",
        nullable=True,
    ),
    Field("text", "made_of", "What the part is made of.", label="made of"),
)
_NOT_TOLD = "not in the text"
_HOST = 5
_PARTS = (
    ("argument", 0, "parameters"),
    ("output", 0, "results, and the pointer table of their tuple"),
    ("alias", 0, "results in the memory of donated parameters"),
    ("temp", 0, "temporaries and constants as assigned; libtpu's own figure is often larger"),
    ("generated_code", 0, _NOT_TOLD),
    ("constant", 0, "constants, part of temp"),
    ("heap", 0, "temporaries at the peak in the largest heap"),
    ("peak", 0, "argument + output - alias, host and device; constant; heap"),
    ("host_argument", _HOST, "parameters"),
    ("host_output", _HOST, "results"),
    ("host_alias", _HOST, "results in the memory of donated parameters"),
    ("host_temp", _HOST, "temporaries at the peak"),
    ("host_generated_code", _HOST, _NOT_TOLD),
)  # fmt: skip


def account(memory: Memory) -> Section:
    """Every figure of `compiled.memory_analysis()`, and its parts."""
    known = memory._account()
    rows = []
    for part, space, made_of in _PARTS if known else ():
        size = known.get(f"{part}_size_in_bytes")
        if part == "peak":
            size = known["peak_memory_in_bytes"]
        elif part == "temp":
            size = _temp(memory, known)
        elif part == "heap":
            space = known["heap_memory_space"]
        if space != _HOST or size or memory.backend == "tpu":
            rows.append((part, space, size, made_of))
    return Section("xla", "XLA's memory accounting", of_rows(_FIELDS, rows), is_whole=True)


def _temp(memory: Memory, known: dict[str, int]) -> int:
    """Bytes in HBM that are neither parameters nor results."""
    allocated = memory.allocated_in_hbm
    stays = known["argument_size_in_bytes"] + known["output_size_in_bytes"]
    stays -= known["alias_size_in_bytes"]
    if allocated is None or memory.backend != "tpu":
        return known["constant_size_in_bytes"] + known["hbm_heap_size_in_bytes"]
    return allocated - stays


FILES = ("-buffer-assignment.txt", "-memory-usage-report.txt")
"""Endings of the names of files with allocations, which replace `.txt`."""


def beside(path: str | None) -> tuple[bytes | None, str | None]:
    """Returns content and path of the file with allocations beside a local dump, if there is one.

    Raises `OSError` for a file that cannot be read.
    """
    if path is None or "://" in path or not path.endswith(".txt"):
        return None, None
    for end in FILES:
        near = path.removesuffix(".txt") + end
        try:
            with open(near, "rb") as file:  # noqa: PTH123 - pathlib is not loaded.
                return file.read(), near
        except FileNotFoundError:
            continue
    return None, None


def packing(module: Module, device: str | Device | None) -> tuple[int, int, int] | None:
    """Bytes of the packed heap of HBM, of its fragmentation and of the tables of tuples.

    XLA packs programs that nearly fill the memory of `device` with more care. If the device is
    unknown, the smallest memory of a TPU is assumed.
    """
    from hlofast import devices

    usable = None if device is None else _bytes_of(devices.get(device), "hbm_usable_bytes")
    try:
        return _core._packing(module, usable=usable)
    except (ValueError, OverflowError):
        return None


def _bytes_of(device: Device, figure: str) -> int | None:
    """The bytes of a figure of one JAX device; None if unknown."""
    if device.value(figure) is None:
        return None
    try:
        return int(device.per_jax_device(figure))
    except ValueError:
        return None


def hbm_of(module: Module, device: Device | None) -> tuple[int, str] | None:
    """Returns the bytes that a program may use on the device, with provenance; None if unknown.

    A budget in the context takes precedence.
    """
    from hlofast._context import hbm_for

    told = hbm_for(module, None)
    if told is not None:
        return int(read_bytes(told)), "configuration"
    if device is None:
        return None
    for figure in ("hbm_usable_bytes", "hbm_bytes"):
        if device.value(figure) is not None:
            usable = _bytes_of(device, figure)
            return None if usable is None else (usable, "exact")
    return None


def before(memory: Memory) -> Policies | None:
    """The model of a step before XLA has scheduled it; None of other modules and memory spaces."""
    if memory.module.is_scheduled or memory.space not in (0, None):
        return None
    try:
        return memory.module.remat().policies
    except (ValueError, OverflowError):
        # Memory that cannot be counted, or sizes beyond 64 bits: `Memory` says so itself.
        return None


def needed(memory: Memory) -> tuple[int, str] | None:
    """`Memory.needed`."""
    allocated = memory.allocated_in_hbm
    if allocated is not None:
        is_told = memory.allocated is not None and memory.allocated.default_bytes is not None
        return allocated, "exact" if is_told else "modelled"
    parts = memory._account()
    if parts and memory.backend == "tpu" and memory.module.is_scheduled:
        return parts["hbm_peak_in_bytes"], "bound"
    if memory.peak_before is not None:
        return memory.peak_before.peak, "modelled"
    if memory.space not in (0, None) or memory._shares() is not None:
        return None
    return memory.live_peak, "bound" if memory._data.doubts()["unknown_sizes"] else "modelled"


def table_bytes(device: str | Device | None) -> int | None:
    """Returns the size in bytes to which a TPU rounds up the pointer tables of tuples.

    None for other devices. Raises `UnknownDeviceError` for an unknown device name.
    """
    if device is None:
        return None
    from hlofast import devices

    known = devices.get(device)
    if known.backend != "tpu":
        return None
    size = known.value("tuple_table_bytes")
    return None if size is None else int(size)


def value_name(name: str, index: str) -> str:
    """The display name of a value: `while.85{9}`."""
    return name if index == "{}" else f"{name}{index}"
