"""What a policy adds to a step, part by part: transfers, reductions, copies and stacks that change.

The steps are those of ``unlike4_models.py`` without checkpointing. Times are compared with times of
rows of the same text, not with those of a compiled program.
"""

from __future__ import annotations

import functools
import re
import sys

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import devices

sys.path.insert(0, str(FIXTURES))
import policy_texts

BUILT_IN = policy_texts.BUILT_IN


@functools.cache
def module(program):
    return hlofast.loads(policy_texts.unpack("unlike4")[f"{program}.none"])


def policy(program, name, device):
    return module(program).remat(device=device).policies.policy(BUILT_IN[name])


def taken(program, device):
    """By name of a row: seconds of all its runs."""
    table = module(program).time(device).table()
    return dict(zip(table.values("name"), table.values("total_seconds"), strict=True))


@functools.cache
def computations(program):
    """By computation: the lines of its instructions by name."""
    found, own = {}, {}
    for line in module(program).text.splitlines():
        if header := re.match(r"(?:ENTRY )?%([\w.-]+) .*{$", line):
            own = found.setdefault(header[1], {})
        elif row := re.match(r" +(?:ROOT )?%([\w.-]+) = ", line):
            own[row[1]] = line
    return found


@functools.cache
def fusions(program):
    """By name of a fusion: the lines of its computation by name."""
    bodies = computations(program)
    rows = [row for own in bodies.values() for row in own.items() if " fusion(" in row[1]]
    return {name: bodies[re.search(r"calls=%([\w.-]+)", line)[1]] for name, line in rows}


def again(program, found):
    """The names of rows of loops that run again, whole fusions of rows in them."""
    outer = {row: name for name, own in fusions(program).items() for row in own}
    names = {module(program)[row].name for row in found.again}
    for _ in range(2):  # A product may be in a fusion of a fusion.
        names = {outer.get(name, name) for name in names}
    return names


@pytest.mark.parametrize("name", BUILT_IN)
def test_collectives_send_what_runs_again_in_place_of_a_stack(name):
    """With slower links, dropping the stacks that they read saves no more."""
    plain = devices.get("tpu-v5p")
    slow = plain.replace(link_bandwidth=plain["link_bandwidth"].value / 4)
    before, after = (policy("switch", name, own) for own in (plain, slow))
    assert after.storing_seconds == pytest.approx(before.storing_seconds, rel=1e-6)
    assert after.recomputed_seconds > before.recomputed_seconds


def test_reductions_of_a_kept_product_read_it():
    """In the forward loop one fusion makes scores, maxima and exponentials, in 12 layers."""
    device = devices.get("tpu-v5e")
    scores = 16 * 12 * 512 * 512
    bytes_moved = 12 * scores * (2 + 4)  # Scores are read in bfloat16, exponentials written.
    least = bytes_moved / device["hbm_bandwidth"].value
    kept, dropped = (policy("bert", name, device) for name in ("dots", "nothing"))
    assert kept.recomputed_flops == 0 < dropped.recomputed_flops
    assert least < kept.recomputed_seconds < dropped.recomputed_seconds


def test_exponentials_that_their_fusion_leaves_are_read_again():
    """The gradient of the scores reads as many bytes if the fusion runs again as from the stack."""
    device = devices.get("tpu-v5e")
    seconds = taken("bert", device)
    bodies = fusions("bert").items()
    stored = [own for own, body in bodies if "dynamic-update-slice(" in "".join(body.values())]
    moved = [own for own, body in bodies if own.startswith(("constant_dynamic", "dynamic-slice"))]
    gradients = computations("bert")
    lines = [row for own in gradients.values() for row in own.items() if " fusion(" in row[1]]
    [gradient] = [
        seconds[own]
        for own, line in lines
        if " = bf16[16,12,512,512]{" in line and (seconds[own] or 0) > 0.005
    ]
    known = sum(seconds[own] or 0 for own in {*stored, *moved})
    dropped = -policy("bert", "nothing", device).storing_seconds
    assert dropped < known + 0.2 * gradient


def test_weights_of_grouped_heads_are_written_again_for_a_product():
    """Without a product that other products wait for, each gradient makes its weights itself."""
    device = devices.get("tpu-v5p")
    seconds = taken("maxtext", device)
    text = module("maxtext").text
    lines = [line for line in text.splitlines() if " = bf16[16,4,2,4,4096,4096]{" in line]
    [weights] = [line.split(" = ")[0].split("%")[-1] for line in lines if " fusion(" in line]
    nothing, plain = (policy("maxtext", name, device) for name in ("nothing", "plain_dots"))
    products = sum(seconds[row] for row in again("maxtext", nothing) - again("maxtext", plain))
    assert products > 0.03 and seconds[weights] > 0.03
    more = nothing.recomputed_seconds - plain.recomputed_seconds
    assert more == pytest.approx(products + seconds[weights], rel=0.05)


def test_copies_into_other_layouts_run_again():
    """Both halves of a product are copied out of it for the forward loop, and again for gradients."""
    device = devices.get("tpu-v6e")
    seconds = taken("microbatches", device)
    lines = [row for own in computations("microbatches").values() for row in own.items()]
    copies = [
        own
        for own, line in lines
        if " = bf16[2,2048,11264]{" in line and " copy(" in line and "/jvp()/" in line
    ]
    assert copies and all(seconds[own] > 0.01 for own in copies)
    text = module("microbatches").text
    for line in (line for own, line in lines if own in copies):
        text = text.replace(line, line.replace(" copy(", " bitcast("))
    whole = policy("microbatches", "nothing", device).recomputed_seconds
    policies = hlofast.loads(text).remat(device=device).policies
    without = policies.policy(BUILT_IN["nothing"]).recomputed_seconds
    assert whole - without == pytest.approx(sum(seconds[own] for own in copies), rel=0.05)
