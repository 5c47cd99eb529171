"""Rules of `Module.lint` and what compilers do on their own: nothing that a program can change."""

from __future__ import annotations

import pytest

import hlofast
import lint_programs as programs
from conftest import FIXTURES
from lint_programs import ADD, ALL, codes, lint, only

SCHEDULED = "num_partitions=4, is_scheduled=true"


def test_gathers_that_the_compiler_repeats_for_memory() -> None:
    assert codes(programs.SAME_GATHER) == ["gathered-twice"]
    cloned = programs.SAME_GATHER.replace("  b = ", "  a.remat = ").replace(
        "(a, b)", "(a, a.remat)"
    )
    assert codes(cloned) == []


def test_arrays_of_one_result_are_different_arrays() -> None:
    gathered = f"""
      x = f32[16,32] parameter(0)
      y = f32[16,32] parameter(1)
      both = (f32[16,32], f32[16,32]) sort(x, y), dimensions={{0}}, to_apply=less
      first = f32[16,32] get-tuple-element(both), index=0
      last = f32[16,32] get-tuple-element(both), index=1
      a = f32[64,32] all-gather(first), {ALL}, dimensions={{0}}
      b = f32[64,32] all-gather(last), {ALL.replace("id=1", "id=2")}, dimensions={{0}}
      ROOT t = (f32[64,32], f32[64,32]) tuple(a, b)
    """
    less = """
      less {
        a = f32[] parameter(0)
        b = f32[] parameter(1)
        c = f32[] parameter(2)
        d = f32[] parameter(3)
        ROOT r = pred[] compare(a, b), direction=LT
      }
    """
    assert codes(gathered, before=less) == []
    assert codes(gathered.replace("index=1", "index=0"), before=less) == ["gathered-twice"]


PERMUTED = """
  x = f32[1024,256] parameter(0)
  s = f32[1024,256] sine(x), metadata={op_name="jit(f)/jvp(M)/sin"}
  start = (f32[1024,256], f32[1024,256], u32[], u32[]) collective-permute-start(s), channel_id=1,
    source_target_pairs={{0,1},{1,2},{2,3},{3,0}}, metadata={op_name="jit(f)/jvp(M)/NAME"}
  ROOT done = f32[1024,256] collective-permute-done(start)
"""


@pytest.mark.parametrize(
    ("name", "found"), [("ppermute", ["not-overlapped"]), ("dot_general", []), ("roll", [])]
)
def test_permutes_that_the_program_does_not_spell(name: str, found: list[str]) -> None:
    assert codes(PERMUTED.replace("NAME", name), before="", header=SCHEDULED) == found


def test_permutes_without_a_name() -> None:
    nameless = PERMUTED.replace(', metadata={op_name="jit(f)/jvp(M)/NAME"}', "")
    assert codes(nameless, before="", header=SCHEDULED) == []
    # No instruction has a name, so that nothing tells who wrote the permute.
    bare = nameless.replace(', metadata={op_name="jit(f)/jvp(M)/sin"}', "")
    assert codes(bare, before="", header=SCHEDULED) == ["not-overlapped"]


KEPT_BY_ONE = f"""
  x = f32[64,32] parameter(0)
  at = s32[16,1] parameter(1)
  new = f32[16,32] parameter(2)
  a = f32[64,32] all-reduce(x), {ALL}, to_apply=add
  id = u32[] partition-id()
  is_other = pred[] convert(id)
  others = pred[64,32] broadcast(is_other), dimensions={{}}
  zero = f32[] constant(0)
  zeros = f32[64,32] broadcast(zero), dimensions={{}}
  kept = f32[64,32] select(others, zeros, a)
  sum = f32[64,32] scatter(kept, at, new), update_window_dims={{1}}, inserted_window_dims={{0}},
    scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
  b = f32[64,32] all-reduce(sum), {ALL.replace("id=1", "id=2")}, to_apply=add
  ROOT r = f32[64,32] negate(b)
"""


def test_sums_that_one_device_keeps_until_they_are_reduced_again() -> None:
    finding = only(lint(KEPT_BY_ONE))
    assert finding.code == "reduced-twice"
    assert finding.names[:2] == ("a", "b")
    assert finding.figures["arrays"] == 2
    assert finding.bytes == 64 * 32 * 4
    assert "sum the gradients of a parameter" in finding.remedy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The first sum is needed for itself.
        ("ROOT r = f32[64,32] negate(b)", "ROOT r = f32[64,32] add(b, a)"),
        # The others have ones.
        ("zeros = f32[64,32] broadcast(zero)", "zeros = f32[64,32] sine(x), metadata={}"),
        # The second sum is over other devices.
        ("channel_id=2, replica_groups={{0,1,2,3}}", "channel_id=2, replica_groups={{0,1},{2,3}}"),
        # What is kept does not depend on the device.
        ("convert(id)", "constant(true)"),
    ],
)
def test_not_kept_by_one_device(old: str, new: str) -> None:
    text = KEPT_BY_ONE.replace(old, new).replace(", metadata={}, dimensions={}", "")
    assert text != KEPT_BY_ONE
    assert "reduced-twice" not in codes(text)


LARGE = f"""
  s = f32[1024,1024,HEIGHT] parameter(0), sharding={{replicated}}
  t = f32[1024,1024,8] parameter(1), sharding={{devices=[4,1,1]<=[4]}}
  c = f32[1024,1024,8] sine(t)
  a = f32[1024,1024,8] all-reduce(c), {ALL}, to_apply=add
  b = f32[1024,1024,8] all-reduce(t), {ALL.replace("id=1", "id=2")}, to_apply=add
  u = f32[1024,1024,8] add(a, b)
  n = f32[1024,1024,HEIGHT] negate(s)
  ROOT r = (f32[1024,1024,HEIGHT], f32[1024,1024,8]) tuple(n, u)
"""


def test_findings_about_memory_lead_where_the_step_does_not_fit() -> None:
    ordered = {}
    for height in (8, 2048):
        body = LARGE.replace("HEIGHT", str(height))
        text = f"HloModule m, {SCHEDULED}\n\n{ADD}\n\nENTRY e {{\n{body}\n}}\n"
        found = hlofast.loads(text, device="tpu-v5e").lint()
        ordered[height] = [own.bytes_are for own in found]
        assert {own.code for own in found} == {"reduced-twice", "replicated-parameter"}
        notes = [note.code for note in found.notes]
        assert ("memory-first" in notes) is (height == 2048)
    assert ordered == {8: ["payload", "memory"], 2048: ["memory", "payload"]}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("jit(f)/transpose(jvp(M))/sharding_constraint", ["full-rematerialisation"]),
        ("jit(f)/jvp(M)/dot_general", ["full-rematerialisation"]),
        # The partitioner computes the shard of a weight's gradient from what it gathers.
        ("jit(f)/transpose(jvp(M))/dot_general", []),
    ],
)
def test_gathers_for_gradients_of_weights(name: str, found: list[str]) -> None:
    gather = f'all-gather(x), {ALL}, dimensions={{1}}, metadata={{op_name="{name}"}}'
    text = programs.GATHERED_AND_CUT.replace(f"all-gather(x), {ALL}, dimensions={{1}}", gather)
    assert text != programs.GATHERED_AND_CUT
    assert codes(text) == found


def test_gathers_without_a_name_beside_named_work() -> None:
    named = 'sine(p), metadata={op_name="jit(f)/transpose(jvp(M))/sin"}'
    text = programs.GATHERED_AND_CUT.replace(
        "x = f32[64,16] parameter(0)",
        f"p = f32[64,16] parameter(0)\n  x = f32[64,16] {named}",
    )
    assert codes(text) == []
    assert codes(text.replace(named, "sine(p)")) == ["full-rematerialisation"]


def test_a_step_that_does_not_fit_is_not_said_to_be_fine() -> None:
    body = "  x = f32[4294967296] parameter(0)\n  ROOT y = f32[4294967296] negate(x)"
    text = f"HloModule m, is_scheduled=true\n\nENTRY e {{\n{body}\n}}\n"
    found = hlofast.loads(text, device="tpu-v5e").lint()
    assert [note.code for note in found.notes] == ["too-large"]
    small = hlofast.loads(text.replace("4294967296", "1024"), device="tpu-v5e").lint()
    assert [note.code for note in small.notes] == ["nothing-to-change"]


def test_samplers_gather_a_few_numbers_in_f32() -> None:
    module = hlofast.load(FIXTURES / "dumps" / "tpu_decode.after.txt.gz", device="tpu-v5e")
    assert module.lint().of("float32-activations") == ()


def test_scopes_are_no_names_of_parameters() -> None:
    path = next((FIXTURES / "a100").glob("*.hlo.pb.xz"))
    values = [name for own in hlofast.load(path).lint() for name in own.values]
    assert "state.mdl_vars['params']['lm']['softmax']['logits_ffn']['linear']['w']" in values
    assert all(")/" not in name for name in values)
