"""Notes on the device of a context."""

from __future__ import annotations

from hlofast._context import GIVEN, other_backend
from hlofast._result import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._context import Context
    from hlofast._module import Module
    from hlofast.devices import Device


def assumed_device(context: Context) -> Iterator[Note]:
    """A note if a file name gives a compute capability that several built-in devices have."""
    device, source = context.device, context.sources.get("device", GIVEN)
    if device is None or source == GIVEN:
        return
    chip = next((name for name in device.aliases if f".{name}_gpu_" in source), None)
    if chip is None:
        return
    from hlofast import devices

    capability = device.value("compute_capability")
    alike = [
        name
        for name, other in devices.built_in().items()
        if capability is not None and other.value("compute_capability") == capability
    ]
    if len(alike) > 1:
        others = ", ".join(name for name in alike if name != device.name)
        yield Note(
            "assumed-device",
            f"{source} names {chip}, which is {device.name} (assumed) or {others}; give --device",
        )


def about_backend(module: Module, device: str | Device | None) -> Iterator[Note]:
    """A note if the module was compiled for another backend than the device's."""
    text = None if device is None else other_backend(module, device)
    if text is not None:
        yield Note("other-backend", text)
