"""Figures of one device from modules before partitioning, against the same programs compiled."""

import lzma
import pathlib

import pytest

import hlofast
from hlofast._shares import shares

FIXTURES = pathlib.Path(__file__).parent / "fixtures" / "shares"
NAMES = sorted(path.name.removesuffix(".before.txt.xz") for path in FIXTURES.glob("*.before.*"))
OPEN = {"k_one_side": 0.0, "same_call": 0.5}
"""Programs in which XLA chooses what to gather, and the share that is determined."""
WHOLE = """HloModule m, num_partitions=8

ENTRY e {
  x = f32[4096,4096] parameter(0)
  ROOT y = f32[4096,4096] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


LOOKUP = """HloModule m, num_partitions=4

add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}

ENTRY e {{
  table = f32[{words},512] parameter(0), sharding={{devices=[1,4]<=[4]}}
  tokens = s32[{tokens},1] parameter(1), sharding={{devices=[4,1]<=[4]}}
  rows = f32[{tokens},512] gather(table, tokens), offset_dims={{1}}, collapsed_slice_dims={{0}},
    start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,512}}
  zero = f32[] constant(0)
  ROOT sums = f32[{tokens}] reduce(rows, zero), dimensions={{1}}, to_apply=add
}}
"""


GRADIENT = """HloModule m, num_partitions=4

add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}

ENTRY e {{
  table = f32[100,64] parameter(0), sharding={{replicated}}
  tokens = {tokens} parameter(1), sharding={{devices={tiles}<=[4]}}
  weight = f32[64,8] parameter(2), sharding={{devices=[4,1]<=[4]}}
  above = f32[16,32,8] parameter(3), sharding={{replicated}}
  places = s32[16,32,1] {places}
  rows = f32[16,32,64] gather(table, places), offset_dims={{2}}, collapsed_slice_dims={{0}},
    start_index_map={{0}}, index_vector_dim=2, slice_sizes={{1,64}}
  gradient = f32[64,8] dot(rows, above), lhs_contracting_dims={{0,1}}, rhs_contracting_dims={{0,1}}
  new = f32[64,8] add(weight, gradient)
  zero = f32[] constant(0)
  sums = f32[16,32] reduce(rows, zero), dimensions={{2}}, to_apply=add
  ROOT both = (f32[16,32], f32[64,8]) tuple(sums, new)
}}
"""
"""A gradient of the width of looked-up rows, whose batch is split along the same devices."""

SHARED = """HloModule m, num_partitions=4

add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }

ENTRY e {
  x = f32[64,64] parameter(0), sharding={devices=[4,1]<=[4]}
  y = f32[64,64] parameter(1), sharding={devices=[1,4]<=[4]}
  zero = f32[] constant(0)
  zeros = f32[64,64] broadcast(zero), dimensions={}
  first = f32[64,64] maximum(x, zeros)
  second = f32[64,64] maximum(y, zeros)
  sums = f32[64] reduce(second, zero), dimensions={1}, to_apply=add
  ROOT both = (f32[64,64], f32[64]) tuple(first, sums)
}
"""


def load(name):
    return hlofast.loads(lzma.decompress((FIXTURES / f"{name}.txt.xz").read_bytes()))


def facts(result):
    return {fact.name: fact for fact in result.facts}


@pytest.mark.parametrize("name", NAMES)
def test_replicated_parameters_are_as_compiled(name):
    before, after = (
        load(own).lint().of("replicated-parameter") for own in (f"{name}.before", name)
    )
    assert [own.figures for own in before] == [own.figures for own in after]


@pytest.mark.parametrize("name", NAMES)
def test_one_device_is_as_compiled(name):
    before, after = load(f"{name}.before"), load(name)
    own, compiled = shares(before), after.summary().values
    assert own.devices == 8
    held = facts(before.memory())
    assert held["device_argument_bytes"].value == compiled["parameter_bytes"]
    assert held["device_argument_bytes"].provenance == "exact"
    assert held["device_output_bytes"].value == compiled["output_bytes"]
    _, least, most = own.flops
    flops = facts(after.matmuls())["flops"].value
    assert own.determined == pytest.approx(OPEN.get(name, 1.0))
    assert (least < most) == (name in OPEN)
    assert least <= flops <= most
    assert shares(after) is None


def test_what_xla_decides_is_not_called_exact():
    assert facts(load("tp.before").memory())["device_output_bytes"].provenance == "exact"
    assert facts(load("tp_noout.before").memory())["device_output_bytes"].provenance == "modelled"
    cost = facts(load("same_call.before").cost())
    assert cost["device_matmul_flops"].provenance == "bound"
    assert cost["device_matmul_flops_most"].value > cost["device_matmul_flops"].value
    assert cost["determined_share"].value == pytest.approx(0.5)


@pytest.mark.parametrize("text", [WHOLE, None], ids=["no shardings", "sharded"])
def test_all_devices_are_not_set_against_one(text):
    module = load("fsdp_tp.before") if text is None else hlofast.loads(text)
    module = module.with_context(device="tpu-v5e", hbm="1MiB")
    verdict = module.verdict()
    figures = {figure.key: figure for figure in verdict.figures}
    for key in ("step", "mfu", "peak", "exposed"):
        assert figures[key].value is None, key
        assert "shapes are those of 8 devices together" in figures[key].note
    assert "does-not-fit" not in {statement.code for statement in verdict.statements}
    assert figures["flops"].label == "FLOPs of all devices"
    assert facts(verdict)["device"].value == "tpu-v5e"
    for result in (module.memory(), module.cost(), module.time()):
        assert "global" in {note.code for note in result.notes}
        for fact in result.facts:
            if fact.field.kind in ("bytes", "flops") and "device_" not in fact.name:
                assert fact.field.label.endswith(" of all devices"), fact.name
            elif fact.field.kind == "seconds":
                # Seconds do not add up over devices, and no device takes them in a step.
                assert fact.field.label.endswith(" of one device alone"), fact.name
    assert "mfu" not in facts(module.time())
    with pytest.raises(ValueError, match="8 devices together"):
        module.time().utilization


def test_mfu_needs_shardings():
    used = load("fsdp_tp.before").cost().mfu(1.0, 1e12)
    assert used.num_devices == 8
    with pytest.raises(ValueError, match="no shardings are written"):
        hlofast.loads(WHOLE).cost().mfu(1.0, 1e12)


def test_the_program_of_one_device_keeps_its_figures():
    module = hlofast.loads(WHOLE.replace("m, num_partitions=8", "m"))
    assert module.summary().devices_together == 1
    verdict = module.with_context(device="tpu-v5e").verdict()
    assert {figure.key for figure in verdict.figures if figure.value is None} == set()
    assert "global" not in {note.code for note in module.memory().notes}


def test_figures_inside_shard_map_are_said_to_be_of_one_device():
    (said,) = (n.text for n in load("shard_map.before").cost().notes if n.code == "global")
    assert said.endswith("together, except inside shard_map, whose shapes are those of one device")
    (said,) = (n.text for n in load("tp.before").cost().notes if n.code == "global")
    assert said.endswith("together")


@pytest.mark.parametrize(("words", "tokens", "ways"), [(4096, 64, 1), (8, 8192, 4)])
def test_a_lookup_is_split_as_the_larger_of_table_and_indices(words, tokens, ways):
    # Both would be split along the same devices. Sums over a split dimension are whole on each device.
    module = hlofast.loads(LOOKUP.format(words=words, tokens=tokens))
    output = facts(module.memory())["device_output_bytes"]
    assert (output.value, output.provenance) == (4 * tokens // ways, "modelled")


@pytest.mark.parametrize(
    ("tokens", "tiles", "places", "ways"),
    [
        ("s32[16,32]", "[4,1]", "broadcast(tokens), dimensions={0,1}", 1),
        ("s32[16,32,1]", "[4,1,1]", "add(tokens, tokens)", 4),
    ],
    ids=["broadcast", "elementwise"],
)
def test_a_broadcast_passes_its_split_on_last(tokens, tiles, places, ways):
    # The gradient's width reaches the rows first, and their sums are whole on each device. Shardy's own
    # propagation of both programs says the same.
    text = GRADIENT.format(tokens=tokens, tiles=tiles, places=places)
    output = facts(hlofast.loads(text).memory())["device_output_bytes"]
    assert output.value == 4 * 16 * 32 // ways + 4 * 64 * 8 // 4


def test_a_constant_ties_none_of_its_users():
    output = facts(hlofast.loads(SHARED).memory())["device_output_bytes"]
    assert output.value == 4 * 64 * 64 // 4 + 4 * 64
