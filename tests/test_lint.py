"""`Module.lint`: findings with their evidence and what is at stake."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import hlofast
import lint_programs as programs
from conftest import FIXTURES
from hlofast import Findings
from lint_programs import ADD, ALL, PAIRS, codes, lint, only


def test_missed_reduce_scatter() -> None:
    finding = only(lint(programs.SLICED_REDUCTION))
    assert finding.code == "missed-reduce-scatter"
    assert finding.names == ("r", "part")
    # 8,192 B among 4: 2 * 3/4 of it as an all-reduce, 3/4 as a reduce-scatter.
    assert finding.figures == {
        "wire_bytes": 12_288,
        "wire_bytes_after": 6_144,
        "live_bytes": 8_192,
        "live_bytes_after": 2_048,
        "group_size": 4,
    }
    assert (finding.bytes, finding.bytes_are, finding.flops) == (6_144, "wire", None)
    assert finding.provenance == "modelled"
    assert "12,288 B" in finding.message
    assert "reduce-scatter" in finding.message
    assert "psum_scatter" in finding.remedy


ARITHMETIC = programs.SLICED_REDUCTION.replace(
    "row = s32[1] dynamic-slice(table, id), dynamic_slice_sizes={1}\n  at = s32[] reshape(row)",
    "i = s32[] convert(id)\n  rows = s32[] constant(16)\n  at = s32[] multiply(i, rows)",
)
HALVES = (
    programs.SLICED_REDUCTION.replace(ALL, PAIRS)
    .replace("{0, 16, 32, 48}", "{0, 32, 0, 32}")
    .replace("f32[16,32]", "f32[32,32]")
    .replace("{16,32}", "{32,32}")
)
ASYNCHRONOUS_REDUCTION = programs.SLICED_REDUCTION.replace(
    f"all-reduce(x), {ALL}, to_apply=add",
    f"all-reduce-start(x), {ALL}, to_apply=add\n  q = f32[64,32] all-reduce-done(r)",
).replace("dynamic-slice(r, at", "dynamic-slice(q, at")


@pytest.mark.parametrize("text", [ARITHMETIC, HALVES, ASYNCHRONOUS_REDUCTION])
def test_missed_reduce_scatter_written_otherwise(text: str) -> None:
    assert codes(text) == ["missed-reduce-scatter"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Two devices of the group take the same part.
        ("{0, 16, 32, 48}", "{0, 0, 32, 32}"),
        # The parts are those of other groups of devices.
        (ALL, PAIRS),
        # Everyone takes the same part.
        ("dynamic-slice(r, at, zero)", "dynamic-slice(r, zero, zero)"),
        # The whole result is needed too.
        ("ROOT part", "n = f32[64,32] negate(r)\n  ROOT part"),
        # The part is not one of four.
        ("f32[16,32] dynamic-slice(r, at, zero), dynamic_slice_sizes={16,32}",
         "f32[8,32] dynamic-slice(r, at, zero), dynamic_slice_sizes={8,32}"),
        # Nothing says which part it is.
        ("table = s32[4] constant({0, 16, 32, 48})", "table = s32[4] parameter(1)"),
    ],
)  # fmt: skip
def test_no_missed_reduce_scatter(old: str, new: str) -> None:
    text = programs.SLICED_REDUCTION.replace(old, new)
    assert text != programs.SLICED_REDUCTION
    assert codes(text) == []


def test_slice_inside_the_fusion_of_the_reduction_is_a_reduce_scatter() -> None:
    fused = """
      f {
        x = f32[64,32] parameter(0)
        at = s32[] parameter(1)
        zero = s32[] constant(0)
        r = f32[64,32] all-reduce(x), GROUPS, to_apply=add
        ROOT part = f32[16,32] dynamic-slice(r, at, zero), dynamic_slice_sizes={16,32}
      }
    """.replace("GROUPS", ALL)
    entry = f"""
      x = f32[64,32] parameter(0)
      {programs.PART}
      ROOT part = f32[16,32] fusion(x, at), kind=kOutput, calls=f
    """
    assert codes(entry, before=ADD + fused) == []


def test_reduced_twice() -> None:
    finding = only(lint(programs.ADDED_REDUCTIONS))
    assert finding.code == "reduced-twice"
    assert finding.names == ("a", "b", "s")
    assert (finding.bytes, finding.bytes_are) == (8_192, "payload")
    assert finding.figures["wire_bytes"] == 12_288


def test_reduced_twice_within_one_all_reduce() -> None:
    findings = lint(programs.CONCATENATED_REDUCTIONS, before=ADD + programs.SUM)
    finding = only(findings)
    assert finding.code == "reduced-twice"
    assert finding.names == ("r", "a", "b", "s")
    assert finding.bytes == 8_192


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # One is needed for itself.
        ("ROOT s", "n = f32[64,32] negate(b)\n  ROOT s"),
        # Among different devices.
        (f"all-reduce(y), {ALL}", f"all-reduce(y), {PAIRS}"),
        # Products of sums are no sums.
        ("add(a, b)", "multiply(a, b)"),
        # Nothing to add twice.
        ("add(a, b)", "add(a, y)"),
    ],
)
def test_not_reduced_twice(old: str, new: str) -> None:
    text = programs.ADDED_REDUCTIONS.replace(old, new)
    assert text != programs.ADDED_REDUCTIONS
    assert codes(text) == []


def test_maxima_are_not_reduced_twice() -> None:
    assert codes(programs.ADDED_REDUCTIONS, before=programs.MAXIMUM) == []


def test_same_gathered_twice() -> None:
    finding = only(lint(programs.SAME_GATHER))
    assert finding.code == "gathered-twice"
    assert finding.names == ("b", "a")
    assert finding.bytes == 64 * 32 * 2
    assert finding.figures["wire_bytes"] == 48 * 32 * 2


def test_part_of_what_is_held_is_gathered() -> None:
    finding = only(lint(programs.GATHER_OF_PART))
    assert finding.code == "gathered-twice"
    assert finding.names == ("again", "part", "whole")
    assert finding.bytes == 64 * 32 * 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # A barrier says that the second is meant.
        ("a = bf16", "k = bf16[16,32] opt-barrier(c)\n  a = bf16"),
        # Another dimension.
        ("{0}\n  ROOT", "{1}\n  ROOT"),
        # Another array.
        ("c = bf16", "n = bf16[16,32] add(c, other)\n  c = bf16"),
    ],
)
def test_not_gathered_twice(old: str, new: str) -> None:
    text = programs.SAME_GATHER.replace(old, new)
    if "barrier" in new:
        text = text.replace("all-gather(c), channel_id=1", "all-gather(k), channel_id=1")
    elif "add" in new:
        added = "n = bf16[16,32] add(c, other)"
        parameter = "other = bf16[16,32] parameter(1)"
        text = text.replace(f"  {added}\n", "")
        text = text.replace("convert(x)", f"convert(x)\n  {parameter}\n  {added}")
        text = text.replace("all-gather(c), channel_id=2", "all-gather(n), channel_id=2")
    else:
        text = text.replace(
            "bf16[64,32] all-gather(c), channel_id=2", "bf16[16,128] all-gather(c), channel_id=2"
        )
        text = text.replace("(bf16[64,32], bf16[64,32]) tuple", "(bf16[64,32], bf16[16,128]) tuple")
    assert codes(text) == []


def test_functions_of_what_is_held_are_gathered() -> None:
    changed = """convert(x)
      two = bf16[] constant(2)
      twos = bf16[16,32] broadcast(two), dimensions={}
      m = bf16[16,32] multiply(twos, c)
      n = bf16[16,32] tanh(m)"""
    text = programs.SAME_GATHER.replace("convert(x)", changed)
    text = text.replace("all-gather(c), channel_id=2", "all-gather(n), channel_id=2")
    finding = only(lint(text))
    assert finding.code == "gathered-twice"
    assert finding.names == ("b", "a")
    assert finding.bytes == 64 * 32 * 2
    assert "gathers an element-wise function of an array that every device" in finding.message
    assert finding.remedy.startswith("gather the array once and apply the element-wise function")
    # Of a part that was cut from the whole array.
    part = programs.GATHER_OF_PART.replace("part = f32[16,32]", "cut = f32[16,32]")
    part = part.replace("  again =", "  part = f32[16,32] sine(cut)\n  again =")
    finding = only(lint(part))
    assert (finding.names, finding.bytes) == (("again", "cut", "whole"), 64 * 32 * 4)
    assert "an element-wise function of" in finding.message
    # Two functions of an array that nobody gathers.
    other = text.replace("all-gather(c), channel_id=1", "all-gather(o), channel_id=1")
    other = other.replace("      n = bf16", "      o = bf16[16,32] sine(c)\n      n = bf16")
    assert codes(other) == []


def test_gathering_again_in_another_phase_is_a_choice() -> None:
    names = {1: "jit(f)/jvp(M)/dot", 2: "jit(f)/transpose(jvp(M))/dot"}
    text = programs.SAME_GATHER
    for channel, name in names.items():
        before = f"channel_id={channel}, replica_groups={{{{0,1,2,3}}}}"
        text = text.replace(before, f'{before}, metadata={{op_name="{name}"}}')
    assert codes(text) == []
    # Nobody knows in which phase the second one is.
    second = f', metadata={{op_name="{names[2]}"}}'
    assert second in text
    assert codes(text.replace(second, "")) == []


def test_recomputed_collectives() -> None:
    finding = only(lint(programs.RECOMPUTED))
    assert finding.code == "recomputed-collectives"
    assert finding.names == ("b",)
    assert finding.phases == ("recompute",)
    assert finding.bytes == 8_192
    assert finding.figures["group_payload_bytes"] == 16_384
    assert "50.00 %" in finding.message
    assert "checkpoint" in finding.remedy
    text = programs.RECOMPUTED.replace("rematted_computation/", "")
    assert "rematted" not in text
    assert codes(text) == []


def test_low_precision_in_f32() -> None:
    findings = lint(programs.WIDE_PRODUCT, before="")
    assert [finding.code for finding in findings] == ["low-precision-in-f32"] * 2
    product, gradient = findings
    # The gradient of the parameter is made in f32 too.
    assert (product.names, gradient.names) == (("y", "w"), ("dw",))
    assert [finding.flops for finding in findings] == [2 * 64 * 256 * 128] * 2
    assert "50.00 %" in product.message
    assert "preferred_element_type" in product.remedy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The parameter is wide.
        ("w = bf16", "w = f32"),
        # The product is not.
        ("c = f32[256,128] convert(w)", "x16 = bf16[64,256] convert(x)"),
        # What is converted is not the parameter.
        ("convert(w)", "convert(v)"),
    ],
)
def test_no_low_precision_in_f32(old: str, new: str) -> None:
    text = programs.WIDE_PRODUCT.replace(old, new).replace("v)\n", "v)\n")
    if "x16" in new:
        text = text.replace("dot(x, c)", "dot(x16, w)")
    if "convert(v)" in new:
        text = text.replace("c = f32", "v = bf16[256,128] negate(w)\n  c = f32")
    assert codes(text, before="") == []


def test_one_hot_matmul() -> None:
    finding = only(lint(programs.ONE_HOT))
    assert finding.code == "one-hot-matmul"
    assert finding.names == ("y", "hot")
    assert finding.flops == 2 * 64 * 1024 * 128
    assert (finding.bytes, finding.bytes_are) == (None, None)
    assert "jnp.take" in finding.remedy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # A mask of what is smaller.
        ("direction=EQ", "direction=LT"),
        # The unit matrix.
        ("broadcast(ids)", "broadcast(j)"),
        # Equality of two arrays.
        ("broadcast(i)", "broadcast(k)"),
    ],
)
def test_no_one_hot_matmul(old: str, new: str) -> None:
    more = "i = s32[1024] iota(), iota_dimension=0"
    text = programs.ONE_HOT.replace(old, new).replace(
        more, f"{more}\n  j = s32[64] iota(), iota_dimension=0\n  k = s32[1024] parameter(2)"
    )
    assert codes(text) == []


def test_shifted_one_hot_inside_a_fusion() -> None:
    inside = programs.ONE_HOT.replace("ROOT y = f32[64,128] dot(h, table), lhs_contracting_dims={1}, "
                                      "rhs_contracting_dims={0}", "ROOT b = f32[64,1024] bitcast(h)")  # fmt: skip
    inside = inside.replace("table = f32[1024,128] parameter(1)", "shift = s32[1024] parameter(1)")
    inside = inside.replace(
        "columns = s32[64,1024] broadcast(i)",
        "j = s32[1024] add(i, shift)\n  columns = s32[64,1024] broadcast(j)",
    )
    entry = """
      ids = s32[64] parameter(0)
      table = f32[1024,128] parameter(1)
      first = s32[] parameter(2)
      shift = s32[1024] broadcast(first), dimensions={}
      h = f32[64,1024] fusion(ids, shift), kind=kLoop, calls=hot
      ROOT y = f32[64,128] dot(h, table), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    """
    finding = only(lint(entry, before=f"hot {{{inside}}}"))
    assert (finding.code, finding.names) == ("one-hot-matmul", ("y", "hot"))


SCHEDULED = "is_scheduled=true, num_partitions=4"
SHARDED = 'custom-call(b), custom_call_target="Sharding", sharding={replicated}'


def test_replicated_parameter() -> None:
    findings = lint(programs.REPLICATED, header=SCHEDULED)
    assert [finding.code for finding in findings] == ["replicated-parameter"] * 2
    everywhere, pairs = findings
    megabyte = 1 << 20
    assert everywhere.names == ("b",)
    assert (everywhere.bytes, everywhere.bytes_are) == (3 * megabyte, "memory")
    assert everywhere.figures == {"held_bytes": 4 * megabyte, "saved_bytes": 3 * megabyte,
                                  "copies": 4, "parts": 1}  # fmt: skip
    assert pairs.names == ("c",)
    assert pairs.bytes == megabyte


def test_replicated_parameter_before_partitioning() -> None:
    # The same program: its shapes are those of all devices.
    whole = programs.REPLICATED.replace("f32[1024,256]", "f32[4096,256]")
    whole = whole.replace("f32[2048,256]", "f32[4096,256]")
    after = lint(programs.REPLICATED, header=SCHEDULED)
    for more in ("", "\n  n = u32[] partition-id()"):
        body = whole.replace("ROOT", f"k = f32[4096,256] {SHARDED}{more}\n  ROOT", 1)
        before = lint(body, header="num_partitions=4")
        assert [finding.figures for finding in before] == [finding.figures for finding in after]


def test_sharding_across_slices_names_their_network() -> None:
    text = f"HloModule m, {SCHEDULED}\n\nENTRY e {{\n{programs.REPLICATED}\n}}\n"
    slow = "goes over the network between them, so shard along the axes inside a slice first"
    mesh = {"data": 2, "model": 2}
    for slices, expected in ((1, [False, False]), (2, [True, False])):
        findings = hlofast.loads(text, mesh=mesh, slices=slices).lint().of("replicated-parameter")
        # Over all devices, and over pairs of devices along an axis that the sharding does not name.
        assert len(findings) == 2
        assert (slow in findings[0].message) == expected[0]
    inside = hlofast.loads(text, mesh={"data": 4}, slices=1).lint().of("replicated-parameter")
    assert all(slow not in finding.message for finding in inside)


def test_no_replicated_parameter() -> None:
    # Nobody shards anything.
    text = programs.REPLICATED.replace("{devices=[4,1]<=[4]}", "{replicated}")
    text = text.replace("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", "{replicated}")
    assert codes(text, header=SCHEDULED) == []
    # One device.
    assert codes(programs.REPLICATED, header="is_scheduled=true") != []
    # What the step does not give back is input.
    alias = "input_output_alias={ {0}: (0, {}, may-alias) }"
    assert codes(programs.REPLICATED, header=f"{SCHEDULED}, {alias}") == []
    assert codes(programs.REPLICATED, header=f"{SCHEDULED}, {alias.replace('(0', '(1')}") == [
        "replicated-parameter"
    ]


def test_undonated_state() -> None:
    finding = only(lint(programs.UNDONATED, header=SCHEDULED))
    assert finding.code == "undonated-state"
    # The weight and its moment of 1 MiB each; the batch and the step counter do not count as state.
    assert finding.names == ("w", "m")
    assert finding.figures["undonated_bytes"] == 2 << 20
    assert (finding.bytes, finding.bytes_are) == (2 << 20, "memory")
    assert "2 parameters of 2,097,152 B" in finding.message
    assert "donate_argnums" in finding.remedy
    found = lint(programs.UNDONATED, header=SCHEDULED, min_undonated_bytes=(2 << 20) + 1)
    assert found.counts() == {}


def test_undonated_state_is_no_more_than_all_parameters() -> None:
    # On TPUs small arrays take whole tiles.
    text = """HloModule m, is_scheduled=true

    ENTRY e {
      w = f32[1024,512]{1,0:T(8,128)} parameter(0), metadata={op_name="state['w']"}
      b = f32[100]{0:T(128)} parameter(1), metadata={op_name="state['b']"}
      nw = f32[1024,512]{1,0:T(8,128)} add(w, w), metadata={op_name="jit(step)/transpose(jvp(x))/add"}
      vw = f32[1024,512]{1,0:T(8,128)} subtract(w, nw), metadata={op_name="jit(step)/sub"}
      vb = f32[100]{0:T(128)} add(b, b), metadata={op_name="jit(step)/sub"}
      ROOT t = (f32[1024,512]{1,0:T(8,128)}, f32[100]{0:T(128)}) tuple(vw, vb)
    }
    """
    finding = only(hlofast.loads(text, strict=True).lint().of("undonated-state"))
    assert finding.figures["undonated_bytes"] == finding.figures["parameter_bytes"] == 4 * 524416
    assert "100.00 % of all parameter bytes" in finding.message


ALIASED = "input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }"


@pytest.mark.parametrize(
    ("header", "old", "new"),
    [
        (f"{SCHEDULED}, {ALIASED}", "", ""),
        (f"{SCHEDULED}, buffer_donor={{ (0, {{}}), (1, {{}}) }}", "", ""),
        # Results of other types.
        (SCHEDULED, "ROOT r = (f32[512,512], f32[512,512], s32[]) tuple(nw, nm, nc)",
         "hw = bf16[512,512] convert(nw)\n  hm = bf16[512,512] convert(nm)\n"
         "  ROOT r = (bf16[512,512], bf16[512,512], s32[]) tuple(hw, hm, nc)"),
        # Gradients instead of new state: a matmul lies between.
        (SCHEDULED, "tuple(nw, nm, nc)", "tuple(g, g, nc)"),
        # Before partitioning.
        ("num_partitions=4", "", ""),
    ],
)  # fmt: skip
def test_no_undonated_state(header: str, old: str, new: str) -> None:
    text = programs.UNDONATED.replace(old, new)
    assert "undonated-state" not in codes(text, header=header)


def test_a_cache_is_state_and_an_activation_is_none() -> None:
    finding = only(lint(programs.CACHE, header=SCHEDULED))
    assert finding.code == "undonated-state"
    assert finding.names == ("cache",)
    assert finding.bytes == 4 << 20
    # x + x.w has the shape of x, but no backward pass follows.
    assert codes(programs.RESIDUAL_STREAM, header=SCHEDULED) == []


def test_not_overlapped() -> None:
    finding = only(lint(programs.ASYNCHRONOUS, header=SCHEDULED))
    assert finding.code == "not-overlapped"
    assert finding.names == ("start", "done")
    assert finding.bytes == 4096 * 256 * 4
    assert finding.figures["overlapped_flops"] == 0
    # Without a schedule nobody knows what runs in between.
    assert codes(programs.ASYNCHRONOUS) == []
    lines = programs.ASYNCHRONOUS.splitlines()
    done = next(line for line in lines if "done =" in line)
    product = next(line for line in lines if "dot(" in line)
    overlapped = programs.ASYNCHRONOUS.replace(done, "").replace(product, f"{product}\n{done}")
    assert codes(overlapped, header=SCHEDULED) == []
    findings = lint(overlapped, header=SCHEDULED, overlap_flops_per_byte=1000.0)
    assert only(findings).figures["overlapped_flops"] == 2 * 1024 * 256 * 256


def test_full_rematerialisation() -> None:
    finding = only(lint(programs.GATHERED_AND_CUT))
    assert finding.code == "full-rematerialisation"
    assert finding.names == ("whole", "part")
    # The devices can exchange their parts by an all-to-all instead.
    assert finding.figures["payload_bytes_after"] == 16 * 64 * 4
    assert (finding.bytes, finding.bytes_are) == ((64 - 16) * 64 * 4, "payload")
    assert finding.figures["live_bytes_after"] == 64 * 64
    needed = programs.GATHERED_AND_CUT.replace("ROOT", "n = f32[64,64] negate(whole)\n  ROOT")
    assert codes(needed) == []
    same = programs.GATHERED_AND_CUT.replace("(whole, at, zero)", "(whole, zero, zero)")
    assert codes(same) == []


def test_loop_invariant_collective() -> None:
    finding = only(lint(programs.IN_LOOP, before=ADD + programs.LOOP))
    assert finding.code == "loop-invariant-collective"
    assert finding.names == ("r", "l")
    assert finding.figures == {
        "payload_bytes": 7 * 8_192,
        "spared_executions": 7,
        "held_bytes": 8_192,
        "replaced_bytes": 0,
        "exchanged_bytes": 0,
        "trip_count": 8,
    }
    assert finding.message.endswith("during the loop the result then takes 8,192 B per device")
    assert finding.bytes == 7 * 8_192


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # What is reduced changes.
        ("negate(w)", "negate(sum)"),
        # It is another part of the stack each time.
        ("half = f32[64,32] negate(w)",
         "zero = s32[] constant(0)\n  d = f32[1,64,32] dynamic-slice(stack, i, zero, zero),"
         " dynamic_slice_sizes={1,64,32}\n  half = f32[64,32] reshape(d)"),
        # Compilers send constants along.
        ("negate(w)", "broadcast(f), dimensions={}"),
        # The weight is updated in the loop.
        ("tuple(next, w, stack", "tuple(next, more, stack"),
        # It runs once.
        ("constant(8)", "constant(1)"),
    ],
)  # fmt: skip
def test_no_loop_invariant_collective(old: str, new: str) -> None:
    loop = programs.LOOP.replace(old, new).replace("  one =", "  f = f32[] constant(2)\n  one =")
    assert loop != programs.LOOP
    assert codes(programs.IN_LOOP, before=ADD + loop) == []


def test_loop_of_unknown_trip_count() -> None:
    loop = programs.LOOP.replace("n = s32[] constant(8)", "n = s32[] parameter(1)")
    loop = programs.LOOP.replace("direction=LT", "direction=NE").replace("add(i, one)", "negate(i)")
    finding = only(lint(programs.IN_LOOP, before=ADD + loop))
    assert finding.code == "loop-invariant-collective"
    assert (finding.bytes, finding.is_lower_bound) == (None, True)
    assert "unknown trip count" in finding.message


def test_places_of_one_line_are_one_finding() -> None:
    place = 'metadata={source_file="m.py" source_line=7}'
    text = programs.ONE_HOT.replace("ROOT y", "y")
    product = "dot(h, table), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    text = text.replace(
        f"y = f32[64,128] {product}",
        "".join(f"y{n} = f32[64,128] {product}, {place}\n" for n in range(3))
        + "ROOT t = (f32[64,128], f32[64,128], f32[64,128]) tuple(y0, y1, y2)",
    )
    finding = only(lint(text))
    assert finding.places == 3
    assert finding.flops == 3 * 2 * 64 * 1024 * 128
    assert finding.names == ("y0", "y1", "y2", "hot")
    assert (finding.source_file, finding.source_line) == ("m.py", 7)


def test_thresholds() -> None:
    assert lint(programs.SLICED_REDUCTION).options == {
        "min_share": 0.001,
        "min_replicated_share": 0.02,
        "min_undonated_bytes": 1 << 20,
        "overlap_flops_per_byte": 1.0,
        "order_flops_per_byte": 1000,
    }
    # Half of what is sent is at stake.
    assert len(lint(programs.SLICED_REDUCTION, min_share=0.5)) == 1
    assert len(lint(programs.SLICED_REDUCTION, min_share=0.51)) == 0
    assert len(lint(programs.REPLICATED, header=SCHEDULED, min_replicated_share=0.3)) == 1
    with pytest.raises(TypeError, match="colour"):
        lint(programs.ONE_HOT, colour=1.0)
    with pytest.raises(ValueError, match="min_share"):
        lint(programs.ONE_HOT, min_share=float("nan"))


def test_mesh_names_the_axes() -> None:
    text = f"HloModule m, num_partitions=4\n{ADD}\nENTRY e {{{programs.SLICED_REDUCTION}}}"
    module = hlofast.loads(text)
    assert "along model (4 devices)" in only(module.lint(hlofast.Mesh({"model": 4}))).message
    assert "along a×b (4 devices)" in only(module.lint(hlofast.Mesh({"a": 2, "b": 2}))).message


def test_order_and_table() -> None:
    text = programs.SLICED_REDUCTION.replace("ROOT part", "part")
    text += programs.ADDED_REDUCTIONS.replace("x = f32[64,32] parameter(0)", "").replace(
        "parameter(1)", "parameter(1)"
    ).replace("[64,32]", "[640,32]").replace("(x)", "(z)").replace(
        "y = ", "z = f32[640,32] parameter(2)\n  y = "
    )  # fmt: skip
    findings = lint(text)
    assert [finding.code for finding in findings] == ["reduced-twice", "missed-reduce-scatter"]
    table = findings.table()
    assert table["bytes"].tolist() == [81_920, 6_144]
    assert table["bytes_are"].tolist() == ["payload", "wire"]
    assert table.values("flops") == [None, None]
    assert table["message"].tolist() == [finding.message for finding in findings]
    assert len(table) == len(findings) == 2
    assert findings.counts() == {"reduced-twice": 1, "missed-reduce-scatter": 1}
    assert findings.of("reduced-twice") == (findings[0],)
    with pytest.raises(ValueError, match="code must be one of"):
        findings.of("colour")
    restored = pickle.loads(pickle.dumps(findings))
    assert list(restored) == list(findings)
    assert "reduced-twice" in repr(findings)
    assert findings[0].message in repr(findings[0])
    assert len(lint("ROOT p = f32[] parameter(0)")) == 0


def dumps() -> list[Path]:
    folders = [FIXTURES / "dumps", FIXTURES / "seedlike", FIXTURES / "sharded"]
    return [path for folder in folders for path in sorted(folder.glob("*.txt.gz"))]


@pytest.mark.parametrize("path", dumps(), ids=lambda path: str(path.name))
def test_what_is_found_in_dumps_is_consistent(path: Path) -> None:
    for part in hlofast.find_modules(path.read_bytes()):
        assert part.module is not None
        module = part.module
        findings = module.lint()
        assert set(findings.counts()) <= set(Findings.CODES)
        total = sum(size or 0 for size in module.collectives().values("total_payload"))
        products = sum(flops or 0 for flops in module.matmuls().values("flops"))
        for finding in findings:
            assert len(set(finding.instructions)) == len(finding.instructions)
            assert finding.places >= 1
            assert finding.message
            assert finding.remedy
            if finding.bytes_are == "payload" and finding.bytes is not None:
                assert 0 < finding.bytes <= total
            if finding.flops is not None:
                assert 0 < finding.flops <= products
        assert list(module.lint()) == list(findings)
