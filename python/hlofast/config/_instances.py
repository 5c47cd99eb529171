"""What the name of an instance says: how many devices it has, of which kind, on how many slices.

The names are those that AXLearn's mesh selectors match, `tpu-v5litepod-256-4`. What the number in
a name counts differs by kind; each reading is given as the reason that people see.
"""

from __future__ import annotations

from hlofast.config._values import Frozen

_TPUS = {
    "v2": (None, 1, "cores, each of them a device"),
    "v3": (None, 1, "cores, each of them a device"),
    "v4": ("tpu-v4", 2, "cores, two of them one device"),
    "v5litepod": ("tpu-v5e", 1, "chips, each of them a device"),
    "v5e": ("tpu-v5e", 1, "chips, each of them a device"),
    "v5p": ("tpu-v5p", 2, "cores, two of them one device"),
    "v6e": ("tpu-v6e", 1, "chips, each of them a device"),
    "7x": ("tpu-v7", 1, "devices, two of them on one chip"),
    "v7x": ("tpu-v7", 1, "devices, two of them on one chip"),
}
"""By generation: the device, how much of what the name counts is one device, what it counts.

Cloud TPU names v2 to v5p by TensorCores and later ones by chips; v4 and v5p join the two cores of
a chip into one device.
"""
_GPUS = {
    "p4de.24xlarge": "a100",
    "p5.48xlarge": "h100",
    "p5e.48xlarge": "h200",
    "p5en.48xlarge": "h200",
    "p6-b200.48xlarge": "b200",
    "a3-highgpu-8g": "h100",
    "a3-megagpu-8g": "h100",
    "a3-ultragpu-8g": "h200",
    "a4-highgpu-8g": "b200",
}
"""The GPUs of machine types, as AWS and Google Cloud list them; each machine has eight."""
_GPUS_OF_HOST = 8
_NEURON_DEVICES = {"trn2": 64, "trn2n": 64}
"""Logical NeuronCores of a machine: 16 chips with 4 each, two physical cores joined."""
MOST_DEVICES = 1 << 40


class Instance(Frozen):
    """An instance name and what it says."""

    __slots__ = ("name", "why", "device", "devices", "slices", "devices_per_host", "readings")  # noqa: RUF023 - the order of the parameters

    name: str
    why: str
    """How the number of devices was found, or why not."""
    device: str | None
    """The device's name in `hlofast.devices`; None if it has no entry there, or is not known."""
    devices: int | None
    """How many devices; None if the name does not say."""
    slices: int
    """On how many slices the devices lie; 1 for what is no multi-slice TPU."""
    devices_per_host: int | None
    """How many devices a host has; None where the name does not say."""
    readings: tuple[tuple[int, str], ...]
    """Where the name may mean several things: the numbers of devices, and what each would mean."""

    def __init__(
        self,
        name: str,
        why: str,
        device: str | None = None,
        devices: int | None = None,
        slices: int = 1,
        devices_per_host: int | None = None,
        readings: tuple[tuple[int, str], ...] = (),
    ) -> None:
        super().__init__(name, why, device, devices, slices, devices_per_host, readings)

    def __repr__(self) -> str:
        count = "unknown" if self.devices is None else f"{self.devices:,}"
        return f"<Instance {self.name}: {count} devices>"


def read(name: str) -> Instance:
    """What `name` says."""
    kind, _, rest = name.partition("-")
    if kind == "tpu":
        return _tpu(name, rest)
    if kind == "gpu":
        return _gpu(name, rest)
    if kind == "neuron":
        return _neuron(name, rest)
    return Instance(name, "names of this kind are not known: tpu-, gpu- and neuron- are")


def _count(text: str) -> int | None:
    """The number in a name; None for what is none, or is beyond any machine."""
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        return None
    return int(text) or None


def _tpu(name: str, rest: str) -> Instance:
    generation, *numbers = rest.split("-")
    if generation not in _TPUS:
        return Instance(name, f"no TPU generation {generation!r} is known")
    device, unit, counted = _TPUS[generation]
    counts = [_count(number) for number in numbers]
    total, slices = (*counts, 1, 1)[:2] if len(counts) == 1 else (*counts, None, None)[:2]
    if len(counts) not in (1, 2) or total is None or slices is None:
        message = f"the name of a TPU is tpu-{generation}-NUMBER or tpu-{generation}-NUMBER-SLICES"
        return Instance(name, message, device=device)
    if total % unit:
        message = f"{total} is no number of {counted}"
        return Instance(name, message, device=device, slices=slices)
    why = f"{total:,} {counted}"
    if slices > 1:
        why += f", on each of {slices:,} slices"
    return Instance(
        name, why, device=device, devices=_bounded(total // unit * slices), slices=slices
    )


def _bounded(devices: int) -> int | None:
    return devices if devices <= MOST_DEVICES else None


def _gpu(name: str, rest: str) -> Instance:
    machine, _, number = rest.rpartition("-")
    devices = _count(number)
    device = _GPUS.get(machine)
    if devices is None or not machine:
        return Instance(name, "the name of GPUs is gpu-MACHINE-NUMBER", device=device)
    devices_per_host = _GPUS_OF_HOST if device else None
    return Instance(
        name, f"{devices:,} GPUs", device=device, devices=devices, devices_per_host=devices_per_host
    )


def _neuron(name: str, rest: str) -> Instance:
    machine, _, number = rest.rpartition("-")
    count = _count(number)
    if count is None or not machine:
        return Instance(name, "the name of Neuron devices is neuron-MACHINE-NUMBER")
    device = "trainium2" if machine.startswith("trn2") else None
    cores = _NEURON_DEVICES.get(machine.partition(".")[0])
    readings = [(count, f"{count:,} devices")]
    if cores is not None:
        readings.append((count * cores, f"{count:,} machines of {cores} devices"))
    shown = " or ".join(words for _, words in readings)
    why = f"the name does not say whether it counts devices or machines: {shown}"
    return Instance(name, why, device=device, readings=tuple(readings))
