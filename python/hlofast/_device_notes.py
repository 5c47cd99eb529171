"""Notes on the device of a context."""

from __future__ import annotations

from hlofast._context import GIVEN
from hlofast._result import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._context import Context


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
