"""Rules that follow along which mesh axes devices hold different values: small programs.

What real compilers make of planted faults is in `test_lint_planted.py`.
"""

import pytest

import hlofast
from hlofast import Finding
from lint_programs import ADD

MESH = hlofast.Mesh({"data": 2, "model": 2})
HEADER = "num_partitions=4, input_output_alias={ {0}: (1, {}, may-alias) }"
DATA = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"
MODEL = "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"
ALONG_DATA = "channel_id=1, replica_groups={{0,2},{1,3}}, use_global_device_ids=true"
ALONG_MODEL = "channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true"
TIMES = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"

# The batch is sharded along data, the weight not at all: each model rank does the same.
PRODUCT = f"""
  x = f32[64,256] parameter(0), sharding={DATA}
  w = f32[256,128] parameter(1), sharding={{replicated}}
  id = u32[] partition-id()
  y = f32[64,128] dot(x, w), {TIMES}
  v = f32[256,128] negate(w)
  ROOT r = (f32[256,128], f32[64,128]) tuple(v, y)
"""


def lint(body: str, *, header: str = HEADER, before: str = ADD) -> list[Finding]:
    text = f"HloModule m, {header}\n\n{before}\n\nENTRY e {{\n{body}\n}}\n"
    return list(hlofast.loads(text, strict=True).lint(MESH))


def replicated(body: str, *, header: str = HEADER, before: str = ADD) -> list[Finding]:
    findings = lint(body, header=header, before=before)
    return [finding for finding in findings if finding.code == "replicated-compute"]


def test_equal_operands() -> None:
    [finding] = replicated(PRODUCT)
    flops = 2 * 64 * 256 * 128
    assert finding.names == ("y",)
    assert finding.figures == {"replicated_flops": flops, "devices": 2}
    assert finding.flops == flops // 2
    assert "all 2 devices along model" in finding.message
    assert "50.00 %" in finding.message
    assert "with_sharding_constraint" in finding.remedy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The weight is sharded along model.
        ("sharding={replicated}", f"sharding={MODEL}"),
        # The batch is sharded along both axes.
        (DATA, "{devices=[4,1]<=[4]}"),
        # Nothing says how the weight is sharded.
        (", sharding={replicated}", ""),
        # Each rank multiplies its own part of the weight.
        ("dot(x, w)", "dot(x, own)"),
        # Each rank draws its own numbers.
        ("dot(x, w)", "dot(x, noise)"),
        # The weight came from a neighbour, which only one device has.
        ("dot(x, w)", "dot(x, moved)"),
        # A matmul of weights alone.
        ("dot(x, w)", "dot(u, w)"),
    ],
)
def test_different_operands(old: str, new: str) -> None:
    more = """
  lo = f32[] constant(0)
  hi = f32[] constant(1)
  noise = f32[256,128] rng(lo, hi), distribution=rng_uniform
  moved = f32[256,128] collective-permute(w), channel_id=2, source_target_pairs={{0,1}}
  zero = s32[] constant(0)
  part = s32[] convert(id)
  wide = f32[512,128] concatenate(w, w), dimensions={0}
  own = f32[256,128] dynamic-slice(wide, part, zero), dynamic_slice_sizes={256,128}
  u = f32[64,256] slice(big), slice={[0:64], [0:256]}
"""
    text = PRODUCT.replace("  id =", "  big = f32[256,256] constant({...})\n  id =")
    text = text.replace("  y =", more + "  y =")
    assert [finding.names for finding in replicated(text)] == [("y",)]
    assert old in text
    assert replicated(text.replace(old, new)) == []


@pytest.mark.parametrize(
    ("sharding", "pairs", "is_found"),
    [
        # All devices of a model rank swap the same weight.
        ("{replicated}", "{0,1},{1,0},{2,3},{3,2}", True),
        # What differs along data differs along model once each device has the part of another place.
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", "{0,2},{2,0},{1,3},{3,1}", True),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", "{0,0},{1,2},{2,1},{3,3}", False),
        # Two devices get zeros.
        ("{replicated}", "{0,1},{2,3}", False),
    ],
)
def test_moved_operands(sharding: str, pairs: str, is_found: bool) -> None:
    moved = (
        f"moved = f32[256,128] collective-permute(w), channel_id=2, source_target_pairs={{{pairs}}}"
    )
    text = PRODUCT.replace("sharding={replicated}", f"sharding={sharding}")
    text = text.replace("  y =", f"  {moved}\n  y =").replace("dot(x, w)", "dot(x, moved)")
    assert bool(replicated(text)) == is_found


# Sharded along model, and collected.
SHARDED = PRODUCT.replace(
    "  w = f32[256,128] parameter(1), sharding={replicated}",
    f"  own = f32[256,64] parameter(1), sharding={MODEL}\n"
    f"  w = f32[256,128] all-gather(own), {ALONG_MODEL}, dimensions={{1}}",
).replace("v = f32[256,128] negate(w)", "v = f32[256,64] negate(own)").replace(
    "(f32[256,128], f32", "(f32[256,64], f32"
)  # fmt: skip


def test_gathered_operands_are_equal() -> None:
    [finding] = replicated(SHARDED)
    assert "along model" in finding.message
    # Along data the parts of the weight differ still.
    assert replicated(SHARDED.replace(ALONG_MODEL, ALONG_DATA)) == []


def test_a_reduced_batch_is_equal() -> None:
    summed = f"s = f32[64,256] all-reduce(x), {ALONG_DATA}, to_apply=add"
    text = PRODUCT.replace("  y =", f"  {summed}\n  y =").replace("dot(x, w)", "dot(s, w)")
    [finding] = replicated(text)
    assert finding.figures["devices"] == 4
    assert "along data×model" in finding.message


LOOP = """
body {
  p = (s32[], f32[64,256], f32[256,256]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64,256] get-tuple-element(p), index=1
  w = f32[256,256] get-tuple-element(p), index=2
  one = s32[] constant(1)
  n = s32[] add(i, one)
  y = f32[64,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  NEXT
  ROOT t = (s32[], f32[64,256], f32[256,256]) tuple(n, y, v)
}
condition {
  p = (s32[], f32[64,256], f32[256,256]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  most = s32[] constant(3)
  ROOT c = pred[] compare(i, most), direction=LT
}
"""
AROUND = f"""
  x = f32[64,256] parameter(0), sharding={DATA}
  w = f32[256,256] parameter(1), sharding={{replicated}}
  zero = s32[] constant(0)
  s = (s32[], f32[64,256], f32[256,256]) tuple(zero, x, w)
  l = (s32[], f32[64,256], f32[256,256]) while(s), condition=condition, body=body
  y = f32[64,256] get-tuple-element(l), index=1
  v = f32[256,256] get-tuple-element(l), index=2
  ROOT r = (f32[256,256], f32[64,256]) tuple(v, y)
"""


def test_in_a_loop() -> None:
    kept = LOOP.replace("NEXT", "v = f32[256,256] negate(w)")
    header = HEADER + ", is_scheduled=true"
    [finding] = replicated(AROUND, header=header, before=kept)
    assert finding.figures["replicated_flops"] == 3 * 2 * 64 * 256 * 256
    # From the second iteration on, the weight is another on every device.
    moved = LOOP.replace(
        "NEXT",
        "v = f32[256,256] collective-permute(w), channel_id=2, source_target_pairs={{0,1}}",
    )
    assert replicated(AROUND, header=header, before=moved) == []


GATHERED = f"""
  x = f32[64,256] parameter(0), sharding={DATA}
  w = f32[256,256] parameter(1), sharding={{replicated}}
  id = u32[] partition-id()
  h = f32[64,256] tanh(x), metadata={{op_name="jit(f)/jvp(M)/tanh"}}
  g = f32[128,256] all-gather(h), {ALONG_DATA}, dimensions={{0}},
    metadata={{op_name="jit(f)/jvp(M)/dot_general"}}
  v = f32[256,256] negate(w)
  ROOT r = (f32[256,256], f32[128,256]) tuple(v, g)
"""


def test_batch_gathered() -> None:
    [finding] = [own for own in lint(GATHERED) if own.code == "batch-gathered"]
    assert finding.names == ("g",)
    assert (finding.bytes, finding.bytes_are) == (128 * 256 * 4, "payload")
    assert finding.figures["wire_bytes"] == 64 * 256 * 4
    assert "along data (2 devices), which shards the batch" in finding.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Along another axis.
        (ALONG_DATA, ALONG_MODEL),
        # The program asks for it.
        ("M)/dot_general", "M)/all_gather"),
        # A weight.
        ("tanh(x)", "slice(w), slice={[0:64], [0:256]}"),
        # For a gradient: nothing is multiplied twice.
        ("jvp(M)/dot_general", "transpose(jvp(M))/dot_general"),
    ],
)
def test_batch_not_gathered(old: str, new: str) -> None:
    assert old in GATHERED
    codes = [finding.code for finding in lint(GATHERED.replace(old, new))]
    assert "batch-gathered" not in codes


LOGITS = f"""
  x = f32[64,256] parameter(0), sharding={DATA}
  w = f32[256,4096] parameter(1), sharding={{replicated}}
  id = u32[] partition-id()
  y = f32[64,4096] dot(x, w), {TIMES}
  low = f32[] constant(-inf)
  m = f32[64] reduce(y, low), dimensions={{1}}, to_apply=most
  v = f32[256,4096] negate(w)
  ROOT r = (f32[256,4096], f32[64]) tuple(v, m)
"""
MOST = "most { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] maximum(a, b) }"


def test_logits_in_full() -> None:
    [finding] = [own for own in lint(LOGITS, before=MOST) if own.code == "logits-in-full"]
    assert finding.names == ("y", "m")
    assert finding.bytes == 64 * 4096 * 4 // 2
    assert finding.figures == {
        "held_bytes": 64 * 4096 * 4,
        "devices": 2,
        "vocabulary": 4096,
    }


# The table is sharded, and the parts of the logits are gathered.
IN_PARTS = (
    LOGITS.replace("sharding={replicated}", f"sharding={MODEL}")
    .replace("256,4096", "256,2048")
    .replace("y = f32[64,4096]", "part = f32[64,2048]")
    .replace(
        "  low =", f"  y = f32[64,4096] all-gather(part), {ALONG_MODEL}, dimensions={{1}}\n  low ="
    )
)


def test_logits_that_are_gathered_in_full() -> None:
    [finding] = [own for own in lint(IN_PARTS, before=MOST) if own.code == "logits-in-full"]
    assert finding.names == ("part", "y", "m")
    assert finding.bytes == 64 * 4096 * 4 // 2
    assert finding.figures["held_bytes"] == 64 * 4096 * 4
    assert "all-gathered, and so replicated on all 2 devices along model" in finding.message


def test_logits_of_other_tokens_that_are_gathered() -> None:
    # The batch is gathered, and the vocabulary stays sharded.
    gather = f"all-gather(part), {ALONG_MODEL}, dimensions={{1}}"
    of_batch = f"all-gather(part), {ALONG_DATA}, dimensions={{0}}"
    text = IN_PARTS.replace(gather, of_batch).replace("64,4096", "128,2048")
    text = text.replace("f32[64]", "f32[128]")
    assert text.count("[128,2048]") == 1
    codes = [own.code for own in lint(text, before=MOST)]
    assert "logits-in-full" not in codes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The vocabulary is sharded.
        ("sharding={replicated}", f"sharding={MODEL}"),
        # A router has few experts.
        ("4096", "1024"),
        # Scores of attention: both sides are activations.
        ("dot(x, w)", "dot(x, keys)"),
        # A sum, not the first step of a softmax.
        ("to_apply=most", "to_apply=add"),
    ],
)
def test_no_logits_in_full(old: str, new: str) -> None:
    keys = "  keys = f32[256,4096] broadcast(row), dimensions={0}\n"
    row = "  row = f32[256] slice(first), slice={[0:256]}\n"
    first = "  flat = f32[16384] reshape(x)\n  first = f32[256] slice(flat), slice={[0:256]}\n"
    text = LOGITS.replace("  y =", first + row + keys + "  y =")
    assert "logits-in-full" in [own.code for own in lint(text, before=MOST + ADD)]
    assert old in text
    codes = [own.code for own in lint(text.replace(old, new), before=MOST + ADD)]
    assert "logits-in-full" not in codes


def test_calls_that_never_end_are_given_up() -> None:
    """Computations that call each other too deeply give no finding and take no time."""
    chain = "\n".join(
        f"call_{n} {{ p = f32[64,256] parameter(0)  ROOT r = f32[64,256] call(p), to_apply=call_{n + 1} }}"
        for n in reversed(range(500))
    )
    last = "call_500 { p = f32[64,256] parameter(0)  ROOT r = f32[64,256] negate(p) }\n"
    text = PRODUCT.replace("  y =", "  c = f32[64,256] call(x), to_apply=call_0\n  y =")
    text = text.replace("dot(x, w)", "dot(c, w)")
    assert replicated(text, before=last + chain) == []
