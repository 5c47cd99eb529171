"""What a step whose layers are not scanned needs under other checkpoint policies."""

from __future__ import annotations

import re
import statistics
import sys

import pytest

import hlofast
from conftest import FIXTURES
from test_policies import BUILT_IN, errors_of

sys.path.insert(0, str(FIXTURES))
import policy_texts


@pytest.fixture(scope="module")
def texts() -> dict[str, bytes]:
    """By program without scans: its text without checkpointing."""
    return policy_texts.unpack("unrolled")


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, int]]:
    """By program and policy: bytes at the peak of the program compiled under the policy."""
    return policy_texts.peaks()


@pytest.fixture(scope="module")
def dense(texts) -> hlofast.Module:
    """A transformer of four layers on v5e."""
    return hlofast.loads(texts["unrolled_v5e_8"])


def test_peaks_are_those_of_the_compiled_programs(texts, compiled):
    errors = []
    for program, text in texts.items():
        policies = hlofast.loads(text).remat().policies
        assert policies.peak == compiled[program]["none"], program
        for policy, name in BUILT_IN.items():
            if peak := compiled[program].get(policy):
                errors.append(abs(policies.policy(name).peak / peak - 1))
    assert len(errors) >= 3 * 7
    assert statistics.median(errors) <= 0.03


def test_what_a_layer_leaves_to_the_next_is_kept_once(texts, compiled):
    # XLA adds in float32 and writes bfloat16; both were counted: 3 to 7 % too high.
    for program in ("unrolled_gelu_v5e_4", "unrolled_v5p_8"):
        policies = hlofast.loads(texts[program]).remat().policies
        for policy, name in BUILT_IN.items():
            assert abs(policies.policy(name).peak / compiled[program][policy] - 1) <= 0.02


def test_the_first_layer_keeps_the_order_of_its_backward_work(texts, compiled):
    # In the text gradients of weights of all layers run among the backward work of the first one. All of
    # that counted at one step: 21 % too high.
    policies = hlofast.loads(texts["unrolled_v5e_8"]).remat().policies
    for policy, name in BUILT_IN.items():
        own = policies.policy(name).peak
        assert abs(own / compiled["unrolled_v5e_8"][policy] - 1) <= 0.03


def test_gradients_of_the_head_do_not_wait_for_layers(texts, compiled):
    # They did, with the gradient of the logits in memory while the last layer ran again: 11 % too high.
    policies = hlofast.loads(texts["unrolled_moe_v5p_8"]).remat().policies
    for policy in ("nothing", "dots"):
        own = policies.policy(BUILT_IN[policy]).peak
        assert abs(own / compiled["unrolled_moe_v5p_8"][policy] - 1) <= 0.03


def test_rings_make_room_before_they_run(texts, compiled):
    # Weights are split over all 16 devices. XLA makes room for what products with them add up before the
    # scores of the last layer: without it 15 % too low.
    policies = hlofast.loads(texts["unrolled_fsdp_v5e_16"]).remat().policies
    for policy in ("nothing", "plain_dots"):
        own = policies.policy(BUILT_IN[policy]).peak
        assert abs(own / compiled["unrolled_fsdp_v5e_16"][policy] - 1) <= 0.06


def test_sums_that_are_last_free_what_they_can(texts, compiled):
    # With nothing saved XLA adds up at once the gradients that free a value of the forward pass, with the
    # scores saved none; rings read what they multiply from memory. With neither: 17 % too high.
    policies = hlofast.loads(texts["unrolled_v6e_8"]).remat().policies
    for policy, name in BUILT_IN.items():
        own = policies.policy(name).peak
        assert abs(own / compiled["unrolled_v6e_8"][policy] - 1) <= 0.06


def test_every_layer_recomputes_its_matmuls(dense):
    policies = dense.remat().policies
    nothing, dots = policies.policy("nothing_saveable"), policies.policy("dots_saveable")
    assert dots.recomputed_flops == 0
    # On one device: queries, keys and values, scores and their use, output, gate and up.
    rows, width, part, heads, length, depth = 8 * 2048, 2048, 1024, 8, 2048, 128
    attention = rows * width * (part + 2 * 256) + 2 * rows * heads * length * depth
    products = attention + rows * part * width + 2 * rows * width * 4096
    assert nothing.recomputed_flops == 4 * 2 * products
    assert nothing.kept < dots.kept < policies.peak
    assert nothing.peak < dots.peak < policies.peak * 1.05


def test_values_of_all_layers_are_one_row(dense):
    policies = dense.remat().policies
    rows = policies.savable.to_pylist()
    up = next(row for row in rows if row["shape"] == "bf16[8,2048,4096]")
    assert up["bytes"] == 4 * 8 * 2048 * 4096 * 2
    own = policies.policy(save=[up["name"]])
    assert own.kept == policies.policy("nothing_saveable").kept + up["bytes"]
    offloaded = policies.policy(offload=[up["name"]])
    assert offloaded.on_host == up["bytes"]


def test_a_product_is_one_row_however_a_layer_writes_it(texts, dense):
    rows = dense.remat().policies.savable.to_pylist()
    # In three of four layers XLA puts the queries into another memory.
    (queries,) = (row for row in rows if row["shape"] == "bf16[8,2048,1024]" and is_product(row))
    assert queries["bytes"] == 4 * 8 * 2048 * 1024 * 2
    up = b"%convolution.253 = bf16[8,2048,4096]{2,1,0:T(8,128)(2,1)}"
    text = texts["unrolled_v5e_8"]
    assert text.count(up) == 1
    at = next(at for at, row in enumerate(rows) if row["shape"] == "bf16[8,2048,4096]")
    for form, count in (
        (b"bf16[8,2048,32,128]{3,2,1,0:T(8,128)(2,1)}", 4),
        (b"bf16[8,2048,4096,1]{2,1,3,0:T(8,128)(2,1)}", 4),
        # Of another size, as after a split: no other layer has it, and all others have one more.
        (b"bf16[8,2048,8192]{2,1,0:T(8,128)(2,1)}", 5),
    ):
        changed = text.replace(up, up.partition(b"bf16")[0] + form)
        own = hlofast.loads(changed).remat().policies.savable.to_pylist()
        assert [row["name"] for row in own] == [row["name"] for row in rows]
        assert own[at]["bytes"] == count * 8 * 2048 * 4096 * 2
        assert own[at]["shape"] == rows[at]["shape"]


def test_weights_tell_products_of_one_place_apart_where_layers_run_them_otherwise(texts):
    """XLA runs gate and up of the last layer in the other order; here both are of one call."""
    text = re.sub(rb"stack_frame_id=82\b", b"stack_frame_id=84", texts["unrolled_v5e_8"])
    policies = hlofast.loads(text).remat().policies
    rows = policies.savable.to_pylist()
    own = [at for at, row in enumerate(rows) if row["shape"] == "bf16[8,2048,4096]"]
    own = [at for at in own if is_product(rows[at])]
    ups, gates = (225, 239, 253, 269), (227, 241, 255, 267)
    for at, others in zip(own, (gates, ups), strict=True):
        policy = policies.policy(save=[at])
        again = {policies.module[row].name for row in policy.again}
        found = {number for number in ups + gates if f"convolution.{number}" in again}
        assert found == set(others)
    code = [policies.policy(save=[at]).code for at in own]
    for name, lines in zip(("up", "gate"), code, strict=True):
        assert f"with the weight parameters['layers'][0]['{name}'] in one of the layers" in lines


def is_product(row: dict[str, object]) -> bool:
    return row["kind"] in ("matmul", "batched_matmul")


def test_the_code_shows_the_loop_over_layers(dense):
    policies = dense.remat().policies
    assert not policies.is_scanned
    code = policies.policy("nothing_saveable").code
    place = "tests/fixtures/policy_models.py:277"
    assert code.splitlines() == [
        "policy = jax.checkpoint_policies.nothing_saveable",
        f"# one jax.checkpoint around all of a layer: _layer (called at {place})",
        "layer = jax.checkpoint(layer, policy=policy)",
        "for weights in layers:",
        "    x = layer(x, weights)",
    ]
    compile(code, "policy", "exec")


def test_the_chosen_policy_recomputes_less_than_nothing_saveable(dense):
    policies = dense.remat(hbm="6GiB", device="tpu-v5e").policies
    assert policies.peak > policies.hbm
    chosen, nothing = policies.chosen, policies.policy("nothing_saveable")
    assert chosen.fits and chosen.recomputed_seconds < nothing.recomputed_seconds


@pytest.fixture(scope="module")
def nameless(texts) -> hlofast.Module:
    """The same transformer in a plain Python loop, without scopes."""
    return hlofast.loads(policy_texts.without_scopes(texts["unrolled_v5e_8"]))


def test_layers_of_a_plain_loop_are_found_by_structure(texts):
    for program, text in texts.items():
        named = hlofast.loads(text).remat().policies
        policies = hlofast.loads(policy_texts.without_scopes(text)).remat().policies
        assert policies is not None, program
        assert not policies.is_scanned and not policies.is_checkpointed
        assert policies.peak == named.peak
        own, other = (each.policy("nothing_saveable") for each in (policies, named))
        assert own.recomputed_flops == other.recomputed_flops, program
        # A layer may begin one sum earlier or later.
        assert own.kept == pytest.approx(other.kept, rel=0.34), program


def test_a_plain_loop_recomputes_what_numbered_layers_do(nameless, dense):
    policies = nameless.remat().policies
    up = [
        [row["bytes"] for row in own.savable if row["shape"] == "bf16[8,2048,4096]"]
        for own in (policies, dense.remat().policies)
    ]
    assert up[0] == up[1] == 2 * [4 * 8 * 2048 * 4096 * 2]
    for name in BUILT_IN.values():
        own = policies.policy(name)
        assert own.peak == pytest.approx(dense.remat().policies.policy(name).peak, rel=0.06)


@pytest.fixture(scope="module")
def checkpointed() -> dict[str, bytes]:
    """By program and policy: texts of plain loops over layers under `jax.checkpoint`."""
    return policy_texts.unpack("nameless")


def test_peaks_asked_of_checkpointed_layers(checkpointed, compiled):
    errors = errors_of(checkpointed, compiled)
    assert len(errors) >= 12
    assert statistics.median(errors) <= 0.05
    assert sum(error <= 0.12 for error in errors) >= 0.75 * len(errors)


def test_checkpointed_layers_say_what_they_recompute(checkpointed):
    figures, exact = policy_texts.pairs("nameless"), 0
    for name, text in checkpointed.items():
        now = hlofast.loads(text).remat().policies.as_compiled
        known = figures[tuple(name.split("."))]
        assert 0 < now.recomputed_flops <= known["flops"], name
        exact += now.recomputed_flops == known["flops"]
        assert now.peak == pytest.approx(known["peak"], rel=0.01), name
    # Of some texts the second product of attention is not found.
    assert exact >= 4
