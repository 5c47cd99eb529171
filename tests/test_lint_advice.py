"""Advice of `Module.lint`: where a rule stays silent, which remedy it gives, in which order."""

from __future__ import annotations

import pytest

import hlofast
import lint_programs as programs
from conftest import FIXTURES, Seeds
from lint_programs import ADD, ALL, codes, lint, only

WEIGHT = programs.RECOMPUTED.replace("s = f32[16,32] sine(x)", "s = f32[16,32] copy(x)")


def test_recomputed_gathers_of_weights_are_no_finding() -> None:
    # The gradient of the layer's input needs the weight too.
    assert WEIGHT != programs.RECOMPUTED
    assert codes(programs.RECOMPUTED) == ["recomputed-collectives"]
    assert codes(WEIGHT) == []


def test_memory_that_keeping_results_would_take() -> None:
    finding = only(lint(programs.RECOMPUTED))
    assert finding.figures["kept_bytes"] == 64 * 32 * 4
    assert finding.figures["wire_bytes"] == 48 * 32 * 4
    assert finding.message.endswith(
        "keeping the results from the forward pass takes 8,192 B per device"
    )
    assert "if that memory is free" in finding.remedy


def test_layers_and_accumulation_steps_count_what_is_kept_at_once() -> None:
    # Two accumulation steps of eight layers: the results of eight layers are kept at once.
    finding = only(lint(programs.ACCUMULATED, before=programs.ACCUMULATION))
    assert finding.code == "recomputed-collectives"
    assert finding.figures["executions"] == 16
    assert finding.bytes == 16 * 64 * 32 * 4
    assert finding.figures["kept_bytes"] == 8 * 64 * 32 * 4


SIZE_1 = (
    programs.SLICED_REDUCTION.replace("f32[64,32]", "f32[1,64,32]{2,1,0:T(8,128)}")
    .replace(
        "f32[16,32] dynamic-slice(r, at, zero)", "f32[1,16,32] dynamic-slice(r, zero, at, zero)"
    )
    .replace("dynamic_slice_sizes={16,32}", "dynamic_slice_sizes={1,16,32}")
)


def test_missed_reduce_scatter_names_the_cause_on_tpus() -> None:
    finding = only(lint(SIZE_1))
    assert finding.code == "missed-reduce-scatter"
    assert "dimension of size 1" in finding.remedy
    # Other compilers keep a reduce-scatter of such an array.
    other = only(lint(SIZE_1.replace("{2,1,0:T(8,128)}", "")))
    assert "dimension of size 1" not in other.remedy
    for one in (finding, other):
        assert "psum_scatter" in one.remedy
        assert "with_sharding_constraint" not in one.remedy


def test_missed_reduce_scatter_in_programs_for_several_slices() -> None:
    table = "row = s32[1] dynamic-slice(table, id)"
    of_slice = (
        'slice = u32[] custom-call(), custom_call_target="SliceId"\n  n = u32[] constant(4)\n'
        "  first = u32[] multiply(slice, n)\n  place = u32[] add(first, id)\n  "
    )
    text = programs.SLICED_REDUCTION.replace(table, of_slice + table.replace("id)", "place)"))
    text = text.replace(
        "s32[4] constant({0, 16, 32, 48})", "s32[8] constant({0,16,32,48,0,16,32,48})"
    )
    assert "SliceId" in text
    assert codes(text) == ["missed-reduce-scatter"]


THREE = f"""
  p = f32[64,32] parameter(0)
  x = f32[64,32] sine(p)
  a = f32[64,32] all-reduce(x), {ALL}, to_apply=add, metadata={{op_name="NAME"}}
  n = f32[64,32] negate(x)
  b = f32[64,32] all-reduce(n), {ALL.replace("id=1", "id=2")}, to_apply=add, metadata={{op_name="NAME"}}
  c = f32[64,32] cosine(x)
  d = f32[64,32] all-reduce(c), {ALL.replace("id=1", "id=3")}, to_apply=add, metadata={{op_name="NAME"}}
  ab = f32[64,32] add(a, b)
  s = f32[64,32] add(ab, d)
  ROOT r = f32[64,32] negate(s)
"""
BACKWARD = "jit(f)/transpose(jvp(M))/dot_general"


def test_all_arrays_of_a_sum_count() -> None:
    finding = only(lint(THREE))
    assert finding.code == "reduced-twice"
    assert finding.figures["arrays"] == 3
    assert finding.bytes == 2 * 64 * 32 * 4
    assert finding.places == 1
    assert finding.names == ("a", "b", "d", "ab", "s")
    assert finding.message.startswith("3 arrays are all-reduced separately")
    # The third array is needed for itself: two are left.
    text = THREE.replace("ROOT r = f32[64,32] negate(s)", "e = f32[64,32] multiply(d, d)\n"
                         "  ROOT r = (f32[64,32], f32[64,32]) tuple(s, e)")  # fmt: skip
    assert only(lint(text)).figures["arrays"] == 2
    # The sum of two is needed for itself: the third is reduced apart.
    text = THREE.replace("negate(s)", "multiply(s, ab)")
    assert only(lint(text)).figures["arrays"] == 2


def test_three_arrays_added_inside_fusions() -> None:
    fused = """
      f {
        p = f32[64,32] parameter(0)
        q = f32[64,32] parameter(1)
        r = f32[64,32] parameter(2)
        pq = f32[64,32] add(p, q)
        ROOT s = f32[64,32] add(pq, r)
      }
    """
    text = THREE.replace("ab = f32[64,32] add(a, b)\n", "")
    text = text.replace("add(ab, d)", "fusion(a, b, d), kind=kLoop, calls=f")
    finding = only(lint(text, before=ADD + fused))
    assert (finding.figures["arrays"], finding.names) == (3, ("a", "b", "d", "s"))


def test_gradients_of_activations_are_fused_projections() -> None:
    finding = only(lint(THREE.replace("NAME", BACKWARD)))
    assert "fuse the matmuls that read the activation" in finding.remedy
    assert "fuse" not in only(lint(THREE)).remedy
    # A sum that becomes a parameter's new value is the gradient of a weight.
    text = THREE.replace("NAME", BACKWARD).replace("ROOT r = f32[64,32] negate(s)", "w = f32[64,32] "
        'parameter(1)\n  ROOT r = f32[64,32] subtract(w, s), metadata={op_name="jit(f)/sub"}')  # fmt: skip
    alias = "num_partitions=4, input_output_alias={ {}: (1, {}, may-alias) }"
    assert "fuse" not in only(lint(text, header=alias)).remedy


def test_long_sums_take_little_work() -> None:
    lines = ["x0 = f32[8] parameter(0)", f"sum0 = f32[8] all-reduce(x0), {ALL}, to_apply=add"]
    for number in range(1, 400):
        lines.append(f"x{number} = f32[8] negate(x{number - 1})")
        lines.append(f"a{number} = f32[8] all-reduce(x{number}), {ALL}, to_apply=add")
        lines.append(f"sum{number} = f32[8] add(sum{number - 1}, a{number})")
    lines[-1] = "ROOT " + lines[-1]
    finding = only(lint("\n".join(f"  {line}" for line in lines)))
    # Arrays are joined one by one, in a limited number of rounds.
    assert finding.figures["arrays"] == 17


def test_seeds(seeds: Seeds) -> None:
    found = hlofast.load(seeds.path("002")).lint().of("recomputed-collectives")
    assert found[0].figures["kept_bytes"] == found[0].bytes == 100_663_296
    found = hlofast.load(seeds.path("003")).lint().of("missed-reduce-scatter")
    # One sequence of the batch of two lies on each of the devices along data.
    assert "dimension of size 1" in found[0].remedy


TORUS = 'to_apply=add, backend_config={"collective_algorithm_config":{"strategy":"StrategyND"}}'


def test_reductions_over_a_torus_are_no_missed_reduce_scatters() -> None:
    # Such an all-reduce takes as long as a reduce-scatter, and XLA writes it for both.
    assert codes(SIZE_1.replace("to_apply=add", TORUS)) == []
    # Nothing is known to help arrays without a dimension of size 1 on TPUs.
    tiled = programs.SLICED_REDUCTION.replace("x = f32[64,32]", "x = f32[64,32]{1,0:T(8,128)}")
    assert tiled != programs.SLICED_REDUCTION
    assert codes(tiled) == []


KEPT_GATHER = f"""
  x = TYPE[PART,32] parameter(0)
  y = TYPE[PART,32] add(x, x), metadata={{op_name="jit(f)/jvp(M)/checkpoint/add"}}
  a = TYPE[FULL,32] all-gather(y), {ALL}, dimensions={{0}},
    metadata={{op_name="jit(f)/jvp(M)/checkpoint/all_gather"}}
  h = TYPE[FULL,32] negate(a), metadata={{op_name="jit(f)/jvp(M)/checkpoint/neg"}}
  g = TYPE[FULL,32] multiply(h, h), metadata={{op_name="jit(f)/transpose(jvp(M))/mul"}}
  ROOT b = TYPE[FULL,32] multiply(a, g), metadata={{op_name="jit(f)/transpose(jvp(M))/mul"}}
"""


@pytest.mark.parametrize(
    ("element", "rows", "is_advised"),
    [("f32", 1024, True), ("f32", 256, False), ("s32", 1024, False)],
)
def test_small_gathers_and_gathers_of_integers_get_no_advice(
    element: str, rows: int, is_advised: bool
) -> None:
    body = KEPT_GATHER.replace("TYPE", element).replace("FULL", str(rows))
    body = body.replace("PART", str(rows // 4))
    text = f"HloModule m, is_scheduled=true, num_partitions=4\n\n{ADD}\n\nENTRY e {{\n{body}\n}}\n"
    statements = hlofast.loads(text).remat().statements
    (stated,) = [own for own in statements if own.code == "gather-kept"]
    assert stated.figures["bytes"] == rows * 32 * 4
    assert (stated.advice is not None) is is_advised


def test_nothing_to_change_is_said_and_a_remedy_is_said_once() -> None:
    empty = "HloModule m{}\n\nENTRY e {{\n  ROOT x = f32[8] parameter(0)\n}}\n"
    notes = hlofast.loads(empty.format(", is_scheduled=true")).lint().notes
    assert [note.code for note in notes] == ["nothing-to-change"]
    # A text before optimisation cannot say so.
    (note,) = hlofast.loads(empty.format("")).lint().notes
    assert note.code == "unfinished"
    assert "need the text after optimisation" in note.text
    module = hlofast.load(FIXTURES / "dumps" / "tpu_decode.after.txt.gz")
    shown = str(module.lint())
    repeated = [own for own in module.lint() if own.code == "loop-invariant-collective"]
    assert len(repeated) > 1
    assert len({own.remedy for own in repeated}) == 1
    assert shown.count(repeated[0].remedy) == 1
    assert shown.count("as above (loop-invariant-collective)") == len(repeated) - 1
    remedies = [own.remedy for own in module.verdict().statements if own.code == repeated[0].code]
    assert remedies[1:] == [""] * (len(repeated) - 1)


def copied(text: str) -> tuple[hlofast.Finding, ...]:
    return hlofast.loads(text, strict=True, device="tpu-v5e").lint().of("copied-parameter")


def test_parameters_copied_into_another_order() -> None:
    finding = only(copied(programs.COPIED_PARAMETER))
    size = 1024 * 16384 * 2
    assert finding.names == ("c", "r")
    assert finding.values == ("params['table']",)
    assert (finding.bytes, finding.bytes_are) == (4 * size, "traffic")
    assert finding.seconds is not None
    assert finding.seconds > 4 * size / 819e9
    assert finding.message == (
        "every step copies 1 parameter into another order of dimensions before use, or its result "
        "back: 2 copies read and write 134,217,728 B, the largest from bf16[1024,16384]{1,0} to "
        "bf16[1024,16384]{0,1}"
    )
    assert "Layout.AUTO" in finding.remedy
    # The same by a fusion that only copies, from a stack of layers.
    fused = """HloModule m, is_scheduled=true

    moved {
      p = bf16[1024,512,24]{1,2,0} parameter(0)
      c = bf16[1024,512,24]{1,0,2} copy(p)
      ROOT b = bf16[24,1024,512]{2,1,0} bitcast(c)
    }

    ENTRY e {
      w = bf16[1024,512,24]{1,2,0} parameter(0)
      ROOT f = bf16[24,1024,512]{2,1,0} fusion(w), kind=kLoop, calls=moved
    }
    """
    assert only(copied(fused)).names == ("f",)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Into other memory, in the same order.
        ("{0,1} copy(w)", "{1,0:S(1)} copy(w)"),
        # Another gather reads the parameter as it is stored.
        (
            "  n = ",
            """  h = bf16[8192,16384]{1,0} gather(w, i), offset_dims={1}, collapsed_slice_dims={0},
              start_index_map={0}, index_vector_dim=1, slice_sizes={1,16384}
              n = """,
        ),
        # An input that the step does not replace comes anew every time.
        ("(0, {}, may-alias)", "(1, {}, may-alias)"),
        # The program asked for another order, and the compiler copies all the same.
        ("1024,16384]{1,0} parameter(0)", "1024,16384]{0,1} parameter(0)"),
    ],
)
def test_copies_that_another_order_does_not_spare(old: str, new: str) -> None:
    text = programs.COPIED_PARAMETER.replace(old, new)
    assert text != programs.COPIED_PARAMETER
    assert copied(text) == ()


def test_copies_without_a_device_have_no_seconds_and_no_finding() -> None:
    assert not hlofast.loads(programs.COPIED_PARAMETER).lint().of("copied-parameter")
