"""Parts of steps on profiles whose times are chosen: TPU lines, GPU streams, hostile ones."""

import random

import pytest

import hlofast
from xplane_writer import Event, Plane, space

US = 1_000_000
"""Picoseconds in a microsecond."""
TEXT = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

body {
  carried = (s32[], f32[128,128]) parameter(0)
  count = s32[] get-tuple-element(carried), index=0
  one = s32[] constant(1)
  next = s32[] add(count, one)
  value = f32[128,128] get-tuple-element(carried), index=1
  inner = f32[128,128] dot(value, value), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = (s32[], f32[128,128]) tuple(next, inner)
}

condition {
  tested = (s32[], f32[128,128]) parameter(0)
  reached = s32[] get-tuple-element(tested), index=0
  most = s32[] constant(2)
  ROOT less = pred[] compare(reached, most), direction=LT
}

ENTRY main {
  p = f32[128,128] parameter(0)
  zero = s32[] constant(0)
  start = f32[128,128] all-reduce-start(p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=sum
  first = f32[128,128] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  done = f32[128,128] all-reduce-done(start)
  begun = (s32[], f32[128,128]) tuple(zero, first)
  loop = (s32[], f32[128,128]) while(begun), condition=condition, body=body
  looped = f32[128,128] get-tuple-element(loop), index=1
  reduced = f32[128,128] all-reduce(looped), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, to_apply=sum
  ROOT last = f32[128,128] add(reduced, done)
}
"""


def step() -> hlofast.Module:
    return hlofast.loads(TEXT, mesh="data=2,model=4")


def ops(begin: int, scale: int = 1) -> list[Event]:
    """One step on the line XLA Ops, 100 units long, in units of `scale` microseconds."""
    unit = scale * US
    spans = [
        ("start", 0, 1), ("first", 1, 19), ("done", 20, 10),  # The transfer lasts from 0 to 30.
        ("loop", 30, 40), ("inner", 32, 15), ("inner", 50, 18),  # 7 of the loop are its own.
        ("reduced", 72, 20), ("last", 95, 5),  # 2 and 3 idle before them.
    ]  # fmt: skip
    return [Event(name, begin + at * unit, length * unit) for name, at, length in spans]


def tpu(number: int, begins: list[int], scales: list[int], *, is_async: bool) -> Plane:
    plane = Plane(f"/device:TPU:{number}", number).stats(device_type_string="TPU v5 lite")
    runs = list(zip(begins, scales, strict=True))
    modules = [Event("jit_step(77)", begin, 100 * scale * US) for begin, scale in runs]
    plane.line("XLA Modules", modules)
    plane.line("XLA Ops", [event for run in runs for event in ops(*run)])
    if is_async:
        plane.line(
            "Async XLA Ops", [Event("start", begin, 30 * scale * US) for begin, scale in runs]
        )
    return plane


@pytest.mark.parametrize("is_async", [True, False])
def test_the_parts_of_a_tpu_step(is_async: bool) -> None:
    plane = tpu(0, [0, 1000 * US, 2000 * US], [1, 3, 2], is_async=is_async)
    measured = step().profile(hlofast.load_profile(space([plane])))
    assert measured.step_seconds == pytest.approx(200e-6)  # The median of 100, 300 and 200.
    rows = {(row["part"], row["axes"]): row["measured_seconds"] for row in measured.tables["parts"]}
    # In units of 2 us: 19 of the first transfer are hidden behind `first`, 11 exposed.
    assert rows["compute", None] == pytest.approx(2e-6 * (19 + 15 + 18 + 5))
    assert rows["exposed", "model"] == pytest.approx(2e-6 * 11)
    assert rows["exposed", "data"] == pytest.approx(2e-6 * 20)
    assert rows["other", None] == pytest.approx(2e-6 * 7)
    assert rows["idle", None] == pytest.approx(2e-6 * 5)
    axes = {row["axes"]: row for row in measured.tables["axes"]}
    assert axes["model"]["seconds"] == pytest.approx(2e-6 * 30)
    assert axes["model"]["hidden_seconds"] == pytest.approx(2e-6 * 19)
    seconds = {measured.module[row["instruction"]].name: row for row in measured.table()}
    assert seconds["inner"]["measured_seconds"] == pytest.approx(2e-6 * 33)
    assert seconds["inner"]["calls"] == 2
    assert seconds["loop"]["measured_seconds"] == pytest.approx(2e-6 * 7)
    assert seconds["first"]["least_seconds"] == pytest.approx(19e-6)
    assert seconds["first"]["most_seconds"] == pytest.approx(57e-6)
    gaps = [run["gap_seconds"] for run in measured.runs]
    assert gaps == [None, pytest.approx(900e-6), pytest.approx(700e-6)]


def test_devices_are_averaged_and_the_slowest_is_named() -> None:
    planes = [tpu(0, [0], [1], is_async=True), tpu(1, [0], [2], is_async=True)]
    measured = step().profile(hlofast.load_profile(space(planes)))
    assert measured.step_seconds == pytest.approx(150e-6)
    facts = {fact.name: fact.value for fact in measured.facts}
    assert facts["devices"] == 2
    assert "TPU:1" in facts["slowest_device"]
    assert {note.code for note in measured.notes} >= {"spread"}


def gpu(kernels: list[tuple[str, str, str | None, int, int]]) -> Plane:
    """A plane of streams; kernels are stream, name, instruction, begin and length in us."""
    plane = Plane("/device:GPU:0", 1)
    for stream in sorted({kernel[0] for kernel in kernels}):
        events = [
            Event(
                name, begin * US, length * US,
                {"hlo_op": op, "hlo_module": "jit_step", "program_id": 5} if op else {},
            )
            for own, name, op, begin, length in kernels
            if own == stream
        ]  # fmt: skip
        plane.line(stream, events)
    return plane


def test_streams_of_a_gpu_overlap_and_kernels_of_one_instruction_add_up() -> None:
    kernels = []
    for begin in (0, 200, 400):
        kernels += [
            ("Stream #7(Compute)", "gemm", "first", begin, 20),
            ("Stream #7(Compute)", "gemm_splitk", "first", begin + 20, 5),
            ("Stream #9(Compute)", "ncclDevKernel_AllReduce", "start", begin + 10, 40),
            ("Stream #7(Compute)", "memset", None, begin + 60, 3),
            ("Stream #7(Compute)", "add", "last", begin + 70, 10),
        ]
    measured = step().profile(hlofast.load_profile(space([gpu(kernels)])))
    assert len(measured.runs) == 3  # Nothing marks them: found by their repetition.
    assert measured.step_seconds == pytest.approx(80e-6)
    rows = {(row["part"], row["axes"]): row["measured_seconds"] for row in measured.tables["parts"]}
    assert rows["compute", None] == pytest.approx(38e-6)
    assert rows["exposed", "model"] == pytest.approx(25e-6)
    seconds = {measured.module[row["instruction"]].name: row for row in measured.table()}
    assert seconds["first"]["measured_seconds"] == pytest.approx(25e-6)
    assert seconds["first"]["calls"] == 2
    (rest,) = measured.tables["unjoined"].to_pylist()
    assert (rest["label"], rest["events"]) == ("memset", 3)
    assert rest["seconds"] == pytest.approx(9e-6)
    assert measured.joined_share == pytest.approx(75 / 78)


def test_runs_of_other_programs_do_not_count() -> None:
    plane = tpu(0, [0, 1000 * US], [1, 1], is_async=True)
    plane.line("XLA Modules", [Event("jit_other(78)", 300 * US, 50 * US)])
    measured = step().profile(hlofast.load_profile(space([plane])))
    assert len(measured.runs) == 2
    facts = {fact.name: fact.value for fact in measured.facts}
    assert facts["program"] == "jit_step (77)"


@pytest.mark.parametrize("seed", range(20))
def test_any_times_give_parts_that_add_up(seed: int) -> None:
    chance = random.Random(seed)
    far = chance.choice([10**3, 10**9, 2**62])
    names = ["start", "done", "first", "loop", "inner", "reduced", "last", "unknown"]

    def events() -> list[Event]:
        return [
            Event(chance.choice(names), chance.randrange(far), chance.randrange(far))
            for _ in range(chance.randrange(1, 60))
        ]

    plane = Plane("/device:TPU:0").line("XLA Ops", events()).line("Async XLA Ops", events())
    if chance.random() < 0.7:
        launched = [
            Event("jit_step(1)", chance.randrange(far), chance.randrange(far)) for _ in range(4)
        ]
        plane.line("XLA Modules", launched)
    try:
        measured = step().profile(hlofast.load_profile(space([plane])))
    except ValueError as error:
        assert "names an instruction" in str(error)  # noqa: PT017 - some have none.
        return
    for run in measured.runs:
        parts = ("compute", "exposed", "copy", "other", "idle")
        whole = sum(run[f"{part}_seconds"] for part in parts)
        assert whole == pytest.approx(run["seconds"], rel=1e-6, abs=1e-12)
        assert all(run[f"{part}_seconds"] >= 0 for part in parts)
    assert str(measured)
    assert measured.to_json()
