"""Properties of the time model, over every module of the fixtures and several devices."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hlofast
from hlofast import devices
from hlofast.devices import Device, Figure

FIXTURES = Path(__file__).parent / "fixtures"
SUFFIXES = (".txt", ".txt.gz", ".txt.xz")
CHIPS = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "a100", "h100", "mi300x", "trainium2")
ESTIMATES = ("model", "roofline", "compiler")
RATES = (
    *("hbm_bandwidth", "hbm_achieved_bandwidth", "fast_memory_bandwidth"),
    *("link_bandwidth", "network_bandwidth"),
)
SLACK = 1 + 1e-9


def modules() -> list[Path]:
    """HLO texts; not the memory files beside them."""
    found = [
        path
        for folder in ("dumps", "peaks", "sharded", "a100")
        for path in sorted((FIXTURES / folder).iterdir())
        if path.name.endswith(SUFFIXES) and ".buffers." not in path.name
    ]
    assert len(found) > 150
    return found


def chips_for(module: hlofast.Module) -> Iterator[Device]:
    """Devices of the module's backend."""
    for name in CHIPS:
        chip = devices.get(name)
        try:
            module.time(chip)
        except hlofast.ContextError:
            continue
        yield chip


def faster(chip: Device, figure: str) -> Device | None:
    """The chip with a figure, or with all peaks, a quarter higher; None if it is unknown."""
    if figure == "flops":
        peaks = {name: Figure(peak.value * 1.25, "test") for name, peak in chip.flops.items()}
        return Device(chip.name, dict(chip.items()), peaks, backend=chip.backend)
    value = chip.value(figure)
    return None if value is None else chip.replace(**{figure: value * 1.25})


def faults(time: hlofast.Time) -> Iterator[str]:
    """What contradicts itself in one timing."""
    used = time._used()
    if used is not None:
        for name in ("mfu", "hfu", "matmul_mfu", "matmul_hfu"):
            if not 0 <= getattr(used, name) <= SLACK:
                yield f"{name} is {getattr(used, name)}"
    own = time.compute_seconds + time.memory_seconds + time.other_seconds
    if own + sum(time.exposed.values()) != pytest.approx(time.step_seconds, rel=1e-9):
        yield "the parts do not add up to the step"
    names = ("seconds", "compute_seconds", "memory_seconds", "bound")
    for row in zip(*(time._data.column(name) for name in names), strict=True):
        seconds, compute, memory, bound = row
        if max(compute, memory) > seconds * SLACK:
            yield f"a part of {seconds} s takes {max(compute, memory)} s"
        if (bound == 1 and compute < memory) or (bound == 2 and memory < compute):
            yield f"bound {bound}: computing {compute} s, moving {memory} s"


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.name)
def test_times_do_not_contradict_themselves(path: Path) -> None:
    module = hlofast.load(path)
    for chip in chips_for(module):
        for estimates in ESTIMATES:
            found = list(faults(module.time(chip, estimates=estimates)))
            assert found == [], (chip.name, estimates)
        step = module.time(chip).step_seconds
        for figure in (*RATES, "flops"):
            better = faster(chip, figure)
            if better is not None:
                assert module.time(better).step_seconds <= step * SLACK, (chip.name, figure)
