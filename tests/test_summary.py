"""`module.summary()`: status, backend, signature, counts."""

import pickle
from pathlib import Path

import pytest

import hlofast
from conftest import FIXTURES
from test_cli import document, hlofast_command, validated


def test_counts_add_up(train_step: Path) -> None:
    module = hlofast.load(train_step)
    summary = module.summary()
    counts = summary.values
    opcodes = summary.opcodes
    assert sum(opcodes["instructions"]) == counts["instructions"]
    assert sum(opcodes["entry_instructions"]) == counts["entry_instructions"]
    by_opcode = {row["opcode"]: row["instructions"] for row in opcodes}
    assert sum(summary.fusions["instructions"]) == by_opcode["fusion"]
    assert sum(summary.custom_calls["instructions"]) == by_opcode["custom-call"]
    assert sum(summary.parameters["bytes"]) == counts["parameter_bytes"]
    assert sum(summary.outputs["bytes"]) == counts["output_bytes"]


def test_example_dump(train_step: Path) -> None:
    summary = hlofast.load(train_step).summary()
    assert (summary.status, summary.backend) == ("scheduled", "tpu")
    # Six weights and moments, updated in place; then the batch.
    assert summary.parameters.values("donated") == [True] * 6 + [False] * 2
    assert summary.outputs.values("aliased_parameter")[:6] == list(range(6))
    assert summary.values["aliases"] == 6


HEADER = "HloModule m\n"
ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n"
FUSED = "f {\n  p = f32[8] parameter(0)\n  ROOT n = f32[8] negate(p)\n}\n"


def entry(instruction: str) -> str:
    return f"ENTRY main {{\n  x = f32[8] parameter(0)\n  ROOT y = f32[8] {instruction}\n}}\n"


STATUS = {
    "unoptimised": HEADER + entry("negate(x)"),
    "unoptimised, replicated": HEADER + entry("negate(x), sharding={replicated}"),
    "annotated": HEADER + entry("negate(x), sharding={devices=[2]0,1}"),
    "annotated, newest form": HEADER + entry("negate(x), sharding={mesh['a'=2], [{'a'}]}"),
    "annotated, by a call": HEADER + entry('custom-call(x), custom_call_target="Sharding"'),
    "annotated, manual collectives": (
        HEADER
        + ADD
        + "ENTRY main {\n  x = f32[8] parameter(0)\n"
        + '  s = f32[8] custom-call(x), custom_call_target="SPMDFullToShardShape"\n'
        + "  ROOT y = f32[8] all-reduce(s), channel_id=1, to_apply=add\n}\n"
    ),
    "partitioned": HEADER + ADD + entry("all-reduce(x), channel_id=1, to_apply=add"),
    "partitioned, by its name": HEADER + entry("negate(x)").replace("main", "main.7_spmd"),
    # Dumps from inside the partitioner, before its cleanup.
    "partitioned, shardings left": (
        HEADER + ADD + entry("all-reduce(x), channel_id=1, to_apply=add, sharding={devices=[2]0,1}")
    ),
    "partitioned, renamed, shardings left": (
        HEADER + entry("negate(x), sharding={devices=[2]0,1}").replace("main", "main.7_spmd")
    ),
    "optimised": HEADER + FUSED + entry("fusion(x), kind=kLoop, calls=f"),
    "optimised, by a library": HEADER + entry('custom-call(x), custom_call_target="__cublas$gemm"'),
    "scheduled": "HloModule m, is_scheduled=true\n" + entry("negate(x)"),
}


@pytest.mark.parametrize("case", STATUS)
def test_status(case: str) -> None:
    summary = hlofast.loads(STATUS[case]).summary()
    assert summary.status == case.partition(",")[0]
    assert summary.values["status_reason"]
    assert summary.is_whole == (summary.status in ("unoptimised", "annotated"))
    assert summary.is_unfused == (summary.status not in ("optimised", "scheduled"))


def test_sharding_in_a_string_is_not_a_sharding() -> None:
    text = entry('negate(x), metadata={op_name="f, sharding={devices=[2]0,1}"}')
    assert hlofast.loads(HEADER + text).summary().status == "unoptimised"


BACKEND = {
    "gpu": 'custom-call(x), custom_call_target="__cudnn$softmax"',
    "tpu": 'custom-call(x), custom_call_target="tpu_custom_call"',
    "cpu": 'negate(x), backend_config={"outer_dimension_partitions":["2"]}',
    "neuron": 'custom-call(x), custom_call_target="AwsNeuronRmsNorm"',
}


@pytest.mark.parametrize("backend", BACKEND)
def test_backend(backend: str) -> None:
    summary = hlofast.loads(HEADER + entry(BACKEND[backend])).summary()
    assert summary.backend == backend
    assert summary.values["backend_reason"]


def test_tiled_layouts_are_tpu() -> None:
    text = HEADER + entry("negate(x)").replace("f32[8]", "f32[8]{0:T(256)}")
    assert hlofast.loads(text).summary().backend == "tpu"


def test_no_evidence_is_no_backend() -> None:
    summary = hlofast.loads(HEADER + entry("negate(x)")).summary()
    assert (summary.backend, summary.values["backend_reason"]) == (None, None)
    (backend,) = [fact for fact in summary.facts if fact.name.startswith("backend")]
    assert (backend.value, backend.provenance) == (None, "unknown")


def test_donation_of_parts() -> None:
    text = """\
HloModule m, input_output_alias={ {0}: (1, {}, must-alias), {1}: (0, {1}) }, buffer_donor={ (0, {0}) }

ENTRY main {
  p = (f32[4], f32[8]) parameter(0)
  q = f32[2] parameter(1)
  a = f32[8] get-tuple-element(p), index=1
  ROOT r = (f32[2], f32[8]) tuple(q, a)
}
"""
    summary = hlofast.loads(text).summary()
    donation = {"aliases": 2, "must_alias": 1, "aliased_bytes": 8 + 32, "buffer_donors": 1}
    assert {name: summary.values[name] for name in donation} == donation
    assert summary.parameters.values("donated") == [True, True]
    assert summary.outputs.values("aliased_parameter") == [1, 0]
    assert summary.outputs.values("instruction") == ["q", "a"]


def test_roles_of_computations() -> None:
    text = """\
HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

cond {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT lt = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[8]) tuple(j, v)
}

lonely {
  ROOT p = f32[] parameter(0)
}

ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  f = f32[] constant(0)
  start = (s32[], f32[8]) tuple(zero, x)
  loop = (s32[], f32[8]) while(start), condition=cond, body=body
  v = f32[8] get-tuple-element(loop), index=1
  ROOT sum = f32[] reduce(v, f), dimensions={0}, to_apply=add
}
"""
    roles = {c["name"]: c["role"] for c in hlofast.loads(text).summary().computations}
    assert roles == {
        "add": "applied",
        "cond": "condition",
        "body": "body",
        "lonely": "unused",
        "main": "entry",
    }


def test_implicit_rows_are_not_counted() -> None:
    text = HEADER + entry("negate(x)").replace("negate(x)", "abs(f32[8] negate(x))")
    counts = hlofast.loads(text).summary().values
    assert (counts["instructions"], counts["implicit_instructions"]) == (2, 1)


def test_unknown_opcodes_are_counted_by_their_word() -> None:
    summary = hlofast.loads(HEADER + entry("frobnicate(x)")).summary()
    row = {"opcode": "frobnicate", "instructions": 1, "entry_instructions": 1}
    assert row in summary.opcodes.to_pylist()


def test_all_shapes_the_largest_first() -> None:
    module = hlofast.loads(
        HEADER
        + "ENTRY main {\n"
        + "".join(f"  p{n} = f32[{n + 1}] parameter({n})\n" for n in range(30))
        + "  ROOT t = (f32[30]) tuple(p29)\n}\n"
    )
    assert module.summary().shapes.values("bytes") == [4 * (n + 1) for n in range(30)][::-1]


def test_the_command_prints_the_result(train_step: Path) -> None:
    (part,) = hlofast.find_modules(train_step.read_bytes())
    assert part.module is not None
    summary = part.module.summary()
    printed = hlofast_command("summary", train_step).stdout.splitlines()
    assert printed[1].split() == ["file", str(train_step)]
    assert [printed[0], *printed[2:]] == [*str(summary).splitlines(), ""]
    (result,) = document("summary", train_step)["results"]
    (own,) = validated("summary", summary.to_json())["results"]
    assert {name: result[name] for name in own} == own
    assert result["facts"]["parameter_bytes"] == {
        "value": 9_044_480,
        "unit": "B",
        "provenance": "exact",
    }


def test_html_escapes_names() -> None:
    text = HEADER + entry('negate(x), metadata={op_name="q"}').replace(
        "parameter(0)", 'parameter(0), metadata={op_name="<b>"}'
    )
    html = hlofast.loads(text).summary()._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "32 B" in html


def test_pickled_summaries_are_the_same(train_step: Path) -> None:
    summary = hlofast.load(train_step).summary()
    assert str(pickle.loads(pickle.dumps(summary))) == str(summary)


@pytest.mark.parametrize(
    ("sharding", "replicated"),
    [
        ("sharding={replicated}", 32),
        ("sharding={devices=[8]<=[8]}", 0),
        ("sharding={devices=[x]}", None),
        ("backend_config={}", None),
    ],
)
def test_replicated_parameters_count_where_shardings_can_be_read(
    sharding: str, replicated: int | None
) -> None:
    text = f"HloModule m\nENTRY e {{ ROOT p = f32[8]{{0}} parameter(0), {sharding} }}"
    facts = {fact.name: fact.value for fact in hlofast.loads(text).summary().facts}
    assert facts.get("replicated_bytes") == replicated
    assert hlofast.loads(text).report(plots=False).verdict["flops"] == 0


def test_devices_are_held_against_the_backend_of_the_summary() -> None:
    dumps = sorted(FIXTURES.glob("sharded/*.txt.gz")) + sorted(FIXTURES.glob("*.txt.gz"))
    modules = [hlofast.load(path) for path in dumps]
    assert len(modules) > 40
    for module in modules:
        compiled = module.summary().backend
        assert module._misfit("another") == (None if compiled == "cpu" else compiled)
        assert compiled is None or module._misfit(compiled) is None
