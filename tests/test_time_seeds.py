"""Time of the seed documents: their compilers' estimates, Alpa's costs, no unknown figures."""

import subprocess
import sys

import pytest

import hlofast
from conftest import Seeds


def read(seeds: Seeds, number: str) -> hlofast.Module:
    (part,) = hlofast.find_modules(seeds.path(number).read_bytes())
    return part.module


def test_the_tpu_compilers_cycles_add_up(seeds: Seeds) -> None:
    module = read(seeds, "003")
    time = module.time("tpu-v5e", estimates="compiler")
    cycles = time.column("compiler_seconds") * 1.5e9
    assert round(float(cycles[cycles == cycles].sum())) == 377_129
    assert set(time.exposed) == {"data", "model"} or time.mesh is not None
    assert time.unknown == ()


def test_alpas_costs_of_the_collectives(seeds: Seeds) -> None:
    time = read(seeds, "002").time("a100", mesh={"a": 2, "b": 8}, collectives="alpa")
    costs = [row["seconds"] * row["multiplicity"] for row in time.collectives]
    assert len(costs) == 43
    assert sum(costs) == pytest.approx(101_295_561.03, abs=0.01)


def test_the_gpu_step_by_axis(seeds: Seeds) -> None:
    module = read(seeds, "002")
    time = module.time("a100", mesh=hlofast.Mesh({"a": 2, "b": 8}, hosts=2))
    wire: dict[str, float] = {}
    for row in time.collectives:
        wire[row["axes"]] = wire.get(row["axes"], 0) + row["wire_bytes"] * row["multiplicity"]
    assert wire == {"a": pytest.approx(45_505_540), "b": pytest.approx(557_899_776)}
    # Two hosts: axis a goes over the network, axis b stays inside.
    assert time.exposed["a"] >= 45_505_540 / 25e9
    assert time.exposed["b"] >= 557_899_776 / 300e9
    assert time.unknown == ()
    assert 0 < time.mfu < 1
    parts = time.compute_seconds + time.memory_seconds + time.other_seconds
    assert parts + sum(time.exposed.values()) == pytest.approx(time.step_seconds)


def test_timing_loads_no_numpy(seeds: Seeds) -> None:
    code = (
        "import sys; from hlofast.cli import main; main(sys.argv[1:]); "
        "print('numpy' in sys.modules, file=sys.stderr)"
    )
    arguments = ["time", "--device", "a100", "--by", "opcode", str(seeds.path("002"))]
    command = [sys.executable, "-P", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"
