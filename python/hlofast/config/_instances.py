"""Reads instance names: the number and kind of devices, and the number of slices.

Names have the form that AXLearn's mesh selectors match, such as `tpu-v5litepod-256-4`. The unit of
the number in a name depends on the kind of device; `Instance.why` explains the reading.
"""

from __future__ import annotations

from hlofast.config._values import Frozen

_TPUS = {
    "v2": (None, 1, "cores, one device each"),
    "v3": (None, 1, "cores, one device each"),
    "v4": ("tpu-v4", 2, "cores, two per device"),
    "v5litepod": ("tpu-v5e", 1, "chips, one device each"),
    "v5e": ("tpu-v5e", 1, "chips, one device each"),
    "v5p": ("tpu-v5p", 2, "cores, two per device"),
    "v6e": ("tpu-v6e", 1, "chips, one device each"),
    "7x": ("tpu-v7", 1, "devices, two per chip"),
    "v7x": ("tpu-v7", 1, "devices, two per chip"),
}
"""By generation: the device, the units per device, and the unit that the name counts.

Cloud TPU names count TensorCores for v2 to v5p and chips for later generations; v4 and v5p join the
two cores of a chip into one device.
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
"""Logical NeuronCores per machine: 16 chips with 4 logical cores of two physical cores each."""
MOST_DEVICES = 1 << 40

_FORMS = (
    "names have a form such as tpu-v5p-64, gpu-p5.48xlarge-64 or neuron-trn2.48xlarge-64; MaxText "
    "also takes v5p-64"
)


class Instance(Frozen):
    """An instance name and the devices that it stands for."""

    __slots__ = ("name", "why", "device", "devices", "slices", "devices_per_host", "readings")  # noqa: RUF023 - the order of the parameters

    name: str
    why: str
    """How the number of devices was found, or why it is not known."""
    device: str | None
    """The device's name in `hlofast.devices`; None if that table lacks the device."""
    devices: int | None
    """Number of devices; None if the name does not tell."""
    slices: int
    """Number of slices; 1 except for multi-slice TPUs."""
    devices_per_host: int | None
    """Devices per host; None if the name does not tell."""
    readings: tuple[tuple[int, str], ...]
    """If the name is ambiguous: each possible number of devices, with the corresponding reading."""

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


def broken_nodes(instance: Instance, devices: int) -> str | None:
    """The reason if devices fill some nodes whole and one in part; None otherwise."""
    each = instance.devices_per_host
    if each is None or devices <= each or devices % each == 0:
        return None
    return f"{devices:,} devices are not a whole number of nodes of {each}"


def overridden(instance: Instance, devices: int | None) -> str | None:
    """A sentence if the given number of devices is not that of the name; None otherwise."""
    if devices is None or instance.devices in (None, devices):
        return None
    text = f"{devices:,} devices are given, but the name says {instance.devices:,}"
    return f"{text} ({instance.why})"


def read(name: str) -> Instance:
    """Reads an instance name."""
    kind, _, rest = name.partition("-")
    if kind == "tpu":
        return _tpu(name, rest)
    if kind == "gpu":
        return _gpu(name, rest)
    if kind == "neuron":
        return _neuron(name, rest)
    return Instance(name, f"not a known kind of instance: {_FORMS}")


def named(device: str, devices: int, slices: int = 1) -> str:
    """The name of an instance with this many JAX devices in all.

    GPUs whose machines have no name here are named by the kind of device: `gpu-gb200-64`. Raises
    `ValueError` if no name is known for the kind of device, if slices do not divide it, or for
    slices of GPUs.
    """
    if slices > 1 and _is_gpu(device):
        raise ValueError(
            f"{device} has no slices: JAX takes each node for one, and a plan lays axes on nodes "
            "by itself; leave --slices out"
        )
    if devices % slices:
        raise ValueError(f"{slices:,} slices do not divide {devices:,} devices")
    for generation, (known, unit, _) in _TPUS.items():
        if known == device:
            total = devices // slices * unit
            return f"tpu-{generation}-{total}" + (f"-{slices}" if slices > 1 else "")
    for machine, known in _GPUS.items():
        if known == device:
            return f"gpu-{machine}-{devices}"
    if _is_gpu(device):
        return f"gpu-{device}-{devices}"
    raise ValueError(f"no instance name is known for {device}: give --instance")


def _is_gpu(device: str) -> bool:
    from hlofast import devices

    return device in devices.names() and devices.get(device).backend == "gpu"


def _count(text: str) -> int | None:
    """The positive number in a name; None for other text and for more than 12 digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        return None
    return int(text) or None


def _tpu(name: str, rest: str) -> Instance:
    generation, *numbers = rest.split("-")
    if generation not in _TPUS:
        return Instance(name, f"unknown TPU generation {generation!r}: {_FORMS}")
    device, unit, counted = _TPUS[generation]
    counts = [_count(number) for number in numbers]
    total, slices = (*counts, 1, 1)[:2] if len(counts) == 1 else (*counts, None, None)[:2]
    if len(counts) not in (1, 2) or total is None or slices is None:
        message = (
            f"TPU names have the form tpu-{generation}-NUMBER or tpu-{generation}-NUMBER-SLICES"
        )
        return Instance(name, message, device=device)
    if total % unit:
        message = f"{total} is not a multiple of {unit}: the number counts {counted}"
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
    device = _GPUS.get(machine) or (machine if _is_gpu(machine) else None)
    if devices is None or not machine:
        message = "GPU names have the form gpu-MACHINE-NUMBER or gpu-DEVICE-NUMBER"
        return Instance(name, message, device=device)
    devices_per_host = _GPUS_OF_HOST if machine in _GPUS else _of_host(device)
    return Instance(
        name, f"{devices:,} GPUs", device=device, devices=devices, devices_per_host=devices_per_host
    )


def _of_host(gpu: str | None) -> int | None:
    """GPUs of a host; None if the table of devices does not tell."""
    from hlofast import devices

    count = None if gpu is None else devices.get(gpu).value("chips_per_host")
    return None if count is None else int(count)


def _neuron(name: str, rest: str) -> Instance:
    machine, _, number = rest.rpartition("-")
    count = _count(number)
    if count is None or not machine:
        return Instance(name, "Neuron names have the form neuron-MACHINE-NUMBER")
    device = "trainium2" if machine.startswith("trn2") else None
    cores = _NEURON_DEVICES.get(machine.partition(".")[0])
    readings = [(count, f"{count:,} devices")]
    if cores is not None:
        readings.append((count * cores, f"{count:,} machines of {cores} devices"))
    shown = " or ".join(words for _, words in readings)
    why = f"the name does not say whether it counts devices or machines: {shown}"
    return Instance(name, why, device=device, readings=tuple(readings))
