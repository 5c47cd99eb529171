"""Whether profiles read as `jax.profiler.ProfileData` reads them.

Run in an environment that has hlofast and jax::

    python tests/oracle/check_profiles.py [FILE...]

Compares planes, lines, events with their names, times and stats, and the modules, which all have to
load. Without files it makes some: programs on CPU devices, and planes shaped like those of TPUs and
GPUs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import hlofast

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))
SCRIPT = TESTS / "fixtures" / "make_profiles.py"


def made(folder: Path) -> list[Path]:
    """Profiles of the fixtures' programs, recorded anew, and synthetic ones."""
    from xplane_writer import Event, Plane, space

    files = []
    for name, devices in (("sharded", 8), ("several", 1)):
        flags = f"--xla_force_host_platform_device_count={devices}"
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        own = folder / name
        command = [sys.executable, str(SCRIPT), name, str(own)]
        subprocess.run(command, env=environment, check=True)
        files += sorted(own.rglob("*.xplane.pb"))
    shared = {"program_id": 2**64 - 5, "flops": 12.5, "tf_op": "jit(f)/add"}
    events = [
        Event("%a = f32[] add()", at * 7, 5, {"device_offset_ps": at, "hlo_op": "a"}, shared, "a")
        for at in range(-3, 2000)
    ]
    plane = Plane("/device:TPU:0", 3).stats(device_type_string="TPU v4", peak=-2)
    plane.line("XLA Ops", events, timestamp_ns=12).line("Steps", events[:3], timestamp_ns=-7)
    (folder / "tpu.xplane.pb").write_bytes(space([plane, Plane("empty")], errors=["late"]))
    return [*files, folder / "tpu.xplane.pb"]


def texts(stats: dict[str, object]) -> dict[str, object]:
    """Stats with bytes as texts, as ProfileData gives them."""
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in stats.items()
    }


def differences(path: Path) -> tuple[list[str], int]:
    """What differs, and how many events were compared."""
    from jax.profiler import ProfileData

    found: list[str] = []
    profile = hlofast.load_profile(path)
    compared = 0

    def same(what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            found.append(f"{what}: {ours!r}, ProfileData has {theirs!r}")

    planes = list(ProfileData.from_file(str(path)).planes)
    same("planes", [plane.name for plane in profile.planes], [plane.name for plane in planes])
    for plane, other in zip(profile.planes, planes, strict=False):
        same(f"{plane.name} stats", texts(plane.stats), dict(other.stats))
        lines = list(other.lines)
        same(plane.name, [line.name for line in plane.lines], [line.name for line in lines])
        for line, other_line in zip(plane.lines, lines, strict=False):
            others = list(other_line.events)
            same(f"{plane.name}, {line.name}", len(line.events), len(others))
            for at, (event, their) in enumerate(zip(line.events, others, strict=False)):
                what = f"{plane.name}, {line.name}, event {at}"
                same(f"{what} name", event.name, their.name)
                # ProfileData cuts times to whole nanoseconds, and has no stats of an event's kind.
                start = line.timestamp_ns + int(event.offset_ps / 1000)
                same(f"{what} start", float(start), their.start_ns)
                same(f"{what} duration", float(event.duration_ps // 1000), their.duration_ns)
                same(f"{what} stats", texts(event.stats), dict(their.stats))
                compared += 1
    same("modules", len(profile.modules), len(profile.module_table))
    return found, compared


def main() -> int:
    """Prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    with tempfile.TemporaryDirectory() as folder:
        files = parser.parse_args().files or made(Path(folder))
        bad = 0
        for path in files:
            found, compared = differences(path)
            print(f"{path.name}: {compared} events, {len(found)} differences")
            print("".join(f"  {line}\n" for line in found[:10]), end="")
            bad += bool(found)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
