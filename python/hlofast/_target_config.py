"""XLA's description of a GPU, `gpu_target_config.pbtxt`, as a device.

XLA writes the file beside every module that it compiles for a GPU: `GpuTargetConfigProto` in text
form (xla/stream_executor/device_description.proto).
"""

from __future__ import annotations

import re

from hlofast.devices import Device, DeviceTable, Figure

TYPE_CHECKING = False  # The command line reads descriptions; importing typing would slow it.
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

NAME = "gpu_target_config.pbtxt"
MOST_BYTES = 1 << 20
"""Size of a description that is read; real ones have 6 kB."""
_DEPTH = 32
_TOKEN = re.compile(
    r'\s+|#[^\n]*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[A-Za-z_][\w.]*|[-+]?[\w.]+(?:[-+]\d+)?|.',
    re.DOTALL,
)
_FIGURES = {
    "hbm_bytes": ("device_memory_size", 1.0),
    "hbm_bandwidth": ("memory_bandwidth", 1.0),
    "fast_memory_bytes": ("l2_cache_size", 1.0),
    "clock": ("clock_rate_ghz", 1e9),
    "cores": ("core_count", 1.0),
}
"""Figures of a device: the field of `gpu_device_info`, and the factor to hlofast's unit."""
_NEEDED = ("cores", "clock")
_MATRIX = {"s8": 2, "f16": 10, "tf32": 11, "f64": 12, "bf16": 16, "f8": 20, "f4": 32}
"""Keys of `matrix_unit_description.rate_infos`: numbers of xla.PrimitiveType."""
_F32 = 11
_RATES: dict[str, tuple[dict[str, int], str]] = {
    # Dense operations per clock and multiprocessor (NVIDIA) or compute unit (AMD).
    "7.0": ({"f16": 1024, "f64": 64}, "NVIDIA Tesla V100 GPU Architecture whitepaper"),
    "7.5": ({"f16": 1024, "s8": 2048}, "NVIDIA Turing GPU Architecture whitepaper"),
    "8.0": (
        {"bf16": 2048, "f16": 2048, "tf32": 1024, "f64": 128, "s8": 4096, "s4": 8192},
        "NVIDIA A100 Tensor Core GPU Architecture whitepaper",
    ),
    "8.6": (
        {"bf16": 1024, "f16": 1024, "tf32": 512, "s8": 2048},
        "NVIDIA A10 datasheet",
    ),
    "8.9": (
        {"bf16": 1024, "f16": 1024, "tf32": 512, "f8": 2048, "s8": 2048},
        "NVIDIA L4 datasheet",
    ),
    "9.0": (
        {"bf16": 4096, "f16": 4096, "tf32": 2048, "f64": 256, "f8": 8192, "s8": 8192},
        "NVIDIA H100 Tensor Core GPU Architecture whitepaper",
    ),
    "10.0": (
        {"bf16": 8192, "f16": 8192, "f8": 16384, "f4": 32768},
        "NVIDIA DGX B200 datasheet",
    ),
    "gfx90a": ({"bf16": 1024, "f16": 1024, "s8": 1024}, "AMD CDNA 2 architecture whitepaper"),
    "gfx942": (
        {"bf16": 2048, "f16": 2048, "tf32": 1024, "f64": 256, "f8": 4096, "s8": 4096},
        "AMD CDNA 3 architecture whitepaper",
    ),
    "gfx950": (
        {"bf16": 4096, "f16": 4096, "f8": 8192, "s8": 8192, "f4": 16384},
        "AMD CDNA 4 architecture whitepaper",
    ),
}
"""By compute capability or architecture: rates, with their source."""
_LINKS = (
    *("topology", "link_count", "link_bandwidth", "link_latency", "network_bandwidth"),
    *("link_efficiency", "collective_latency"),
    *("network_latency", "network_launch", "network_round_trip", "network_chunk_preparation"),
    *("network_achieved_bandwidth", "chips_per_host"),
)
"""Figures of the links between chips, which a description lacks."""
_MEASURED = ("launch", "matmul_efficiency")
"""Figures measured on chips of a generation, which a description lacks."""


def read(text: str, name: str, known: DeviceTable) -> Device:
    """Returns the device that the description `text` of the file `name` describes.

    Figures are those of the file. Peaks are those of its matrix units, or, in files without them,
    cores times clock times the rate that the manufacturer gives for the compute capability; unknown
    for other architectures. Measured figures are those of the device in `known` with the same
    compute capability, and links those of one that also has as many cores; of several, the one with
    the nearest bandwidth. Sources say which. Raises `ValueError` for other text.
    """
    fields = _message(_tokens(text, name), name, 0)
    about = _one(fields, "gpu_device_info")
    label = _one(fields, "device_description_str") or _one(about or {}, "name")
    if not isinstance(about, dict) or not isinstance(label, str) or not label.strip():
        raise ValueError(f"{name}: not a description of a GPU: no gpu_device_info with a name")
    figures: dict[str, Figure] = {}
    for figure, (field, unit) in _FIGURES.items():
        if (value := _number(about, field)) is not None:
            value *= unit
            figures[figure] = Figure(int(value) if figure == "cores" else value, name)
    if (links := _number(_one(about, "device_interconnect_info"), "active_links")) is not None:
        figures["link_count"] = Figure(int(links), name)
    figures["jax_devices"] = Figure(1, "JAX: a device is a GPU")
    kind = _architecture(about)
    if kind is not None and _CAPABILITY.fullmatch(kind):
        figures["compute_capability"] = Figure(float(kind), name)
    peaks = _peaks(about, figures, kind, name)
    _borrow(figures, kind, known)
    slug = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:80] or "gpu"
    return Device(slug, figures, peaks, label=label.strip()[:80], backend="gpu")


def read_file(path: str, known: DeviceTable) -> Device:
    """Returns the device that the file describes; raises `OSError` or `ValueError`."""
    import zlib
    from lzma import LZMAError

    from hlofast._files import decompressing

    name = path.replace("\\", "/").rpartition("/")[2]
    # Sources of figures name the kind of file; the context names the file itself.
    name = NAME if NAME in name else name
    try:
        with decompressing(path) as file:
            text = file.read(MOST_BYTES + 1).decode("utf-8", "replace")
    except (EOFError, LZMAError, zlib.error) as error:
        raise ValueError(f"{name}: cannot be decompressed: {error}") from None
    return read(text, name, known)


def _architecture(about: Mapping[str, Any]) -> str | None:
    """The compute capability (`8.0`), or the architecture of an AMD chip (`gfx942`)."""
    capability = _one(about, "cuda_compute_capability")
    if isinstance(capability, dict):
        major, minor = _number(capability, "major"), _number(capability, "minor")
        return None if major is None else f"{major:.0f}.{minor or 0:.0f}"
    name = _one(_one(about, "rocm_compute_capability") or {}, "gcn_arch_name")
    return name.partition(":")[0] if isinstance(name, str) else None


def _peaks(
    about: Mapping[str, Any], figures: Mapping[str, Figure], kind: str | None, name: str
) -> dict[str, Figure]:
    cores, clock = (float(figures[key].value) if key in figures else 0.0 for key in _NEEDED)
    peaks: dict[str, Figure] = {}

    def add(peak: str, value: float, source: str) -> None:
        if 0 < value < 1e30:
            peaks.setdefault(peak, Figure(value, source))

    units = _rates(about, "matrix_unit_description")
    for peak, key in _MATRIX.items():
        if key in units:
            source = f"{name}: 2 x cores x matrix units x operations per clock x their clock"
            add(peak, 2 * cores * units[key], source)
    scalar = _rates(about, "scalar_unit_description")
    if _F32 in scalar:
        source = f"{name}: 2 x cores x scalar units x operations per clock x their clock"
        add("f32", 2 * cores * scalar[_F32], source)
    if (lanes := _number(about, "fpus_per_core")) is not None:
        source = f"{name}: 2 x cores x fpus_per_core x clock"
        add("f32", 2 * cores * lanes * clock, source)
    rates, whence = _RATES.get(kind or "", ({}, ""))
    for peak, rate in {} if units else rates.items():
        source = f"assumed: cores x clock of {name} x {rate} per clock and core ({whence})"
        add(peak, cores * clock * rate, source)
    return peaks


def _rates(about: Mapping[str, Any], field: str) -> dict[int, float]:
    """By element type: units of a core times their operations per clock times their clock."""
    found: dict[int, float] = {}
    for entry in (_one(about, field) or {}).get("rate_infos", ()):
        value = _one(entry, "value") if isinstance(entry, dict) else None
        key = _number(entry, "key")
        parts = [_number(value, part) for part in ("units_per_core", "ops_per_clock")]
        clock = _number(value, "clock_rate_ghz")
        if key is not None and clock is not None and None not in parts:
            units, operations = parts
            found[int(key)] = (units or 0) * (operations or 0) * clock * 1e9
    return found


def _borrow(figures: dict[str, Figure], kind: str | None, known: DeviceTable) -> None:
    """Adds what built-in devices of the same generation have and a description lacks."""
    alike = [device for device in known.values() if _ARCHITECTURES.get(device.name) == kind]
    bandwidth = float(figures["hbm_bandwidth"].value) if "hbm_bandwidth" in figures else 0.0
    cores = figures["cores"].value if "cores" in figures else None

    def distance(device: Device) -> tuple[bool, float]:
        rate = float(device.value("hbm_bandwidth") or 0.0)
        return device.value("cores") != cores, abs(rate - bandwidth)

    alike.sort(key=distance)
    if not alike:
        return
    nearest = alike[0]
    source = f"assumed: as on {nearest.name}"
    for figure in (*_MEASURED, *(_LINKS if nearest.value("cores") == cores else ())):
        if figure in nearest:
            figures.setdefault(figure, Figure(nearest[figure].value, source))
    reached, peak = nearest.value("hbm_achieved_bandwidth"), nearest.value("hbm_bandwidth")
    if reached and peak and bandwidth:
        share = f"{source}, the same share of the peak"
        figures["hbm_achieved_bandwidth"] = Figure(bandwidth * reached / peak, share)


_CAPABILITY = re.compile(r"\d{1,3}\.\d{1,3}")
_ARCHITECTURES = {
    "v100": "7.0", "a100": "8.0", "a100-40gb": "8.0", "a100-pcie": "8.0", "h100": "9.0",
    "h100-pcie": "9.0", "h200": "9.0", "b200": "10.0", "gb200": "10.0", "b300": "10.3",
    "mi250": "gfx90a", "mi300x": "gfx942", "mi350x": "gfx950",
}  # fmt: skip


def _tokens(text: str, name: str) -> Iterator[str]:
    if len(text) > MOST_BYTES:
        raise ValueError(f"{name}: larger than {MOST_BYTES:,} bytes")
    for match in _TOKEN.finditer(text):
        token = match.group()
        if not token.isspace() and not token.startswith("#") and token not in ",;":
            yield token


def _message(tokens: Iterator[str], name: str, depth: int) -> dict[str, list[Any]]:
    """The fields of a message up to its closing brace; every field is a list of its values."""
    if depth > _DEPTH:
        raise ValueError(f"{name}: messages nest deeper than {_DEPTH} levels")
    fields: dict[str, list[Any]] = {}
    for token in tokens:
        if token in "}>":
            return fields
        if not (token[0].isalpha() or token[0] == "_"):
            raise ValueError(f"{name}: not a protobuf in text form, at {token[:40]!r}")
        value = next(tokens, "")
        if value == ":":
            value = next(tokens, "")
        if value in ("{", "<"):
            fields.setdefault(token, []).append(_message(tokens, name, depth + 1))
        elif value == "[":
            for one in tokens:
                if one == "]":
                    break
                fields.setdefault(token, []).append(one)
        elif value:
            fields.setdefault(token, []).append(value)
    return fields


def _one(fields: Any, field: str) -> Any:
    """The last value of a field, as protobufs define it; strings without quotes."""
    values = fields.get(field) if isinstance(fields, dict) else None
    value = values[-1] if values else None
    is_text = isinstance(value, str) and value[:1] in ("'", '"')
    return value[1:-1] if is_text and value is not None else value


def _number(fields: Any, field: str) -> float | None:
    """A number above 0 and finite; None for anything else."""
    value = _one(fields, field)
    try:
        number = float(value) if isinstance(value, str) and len(value) < 40 else 0.0
    except ValueError:
        return None
    return number if 0 < number < 1e30 else None
