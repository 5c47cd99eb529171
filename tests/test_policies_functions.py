"""Layers whose program calls several functions for each: one `jax.checkpoint` around all, or each."""

from __future__ import annotations

import json
import sys

import pytest

import hlofast
from conftest import FIXTURES
from hlofast._policy_units import peaks_apart

sys.path.insert(0, str(FIXTURES))
import policy_texts

BUILT_IN = {
    "nothing": "nothing_saveable",
    "dots": "dots_saveable",
    "plain_dots": "dots_with_no_batch_dims_saveable",
}
KINDS = ("functions", "scopes")


@pytest.fixture(scope="module")
def texts() -> dict[str, bytes]:
    """The texts of `function_models.py` by PROGRAM.POLICY."""
    return policy_texts.unpack("functions")


@pytest.fixture(scope="module")
def hbm() -> dict[tuple[str, str], int]:
    """By program and policy: the peak of XLA's own account."""
    lines = (FIXTURES / "policies" / "functions.jsonl").read_text().splitlines()
    return {(own["program"], own["policy"]): own["used"] for own in map(json.loads, lines)}


def policies_of(text: bytes) -> hlofast.Policies:
    policies = hlofast.loads(text).remat().policies
    assert policies is not None
    return policies


@pytest.mark.parametrize("kind", KINDS)
def test_peaks_are_those_of_one_checkpoint_and_of_one_each(texts, hbm, kind):
    policies = policies_of(texts[f"{kind}_each.none"])
    for policy, name in BUILT_IN.items():
        apart, together = peaks_apart(policies, [policies.policy(name)])[name]
        assert together == policies.policy(name).peak
        for how, own in (("each", apart), ("together", together)):
            error = own / hbm[f"{kind}_{how}", policy] - 1
            assert abs(error) <= 0.07, (policy, how)
    # What attention leaves to the MLP is kept too.
    apart, together = peaks_apart(policies, [policies.policy(BUILT_IN["nothing"])])[
        BUILT_IN["nothing"]
    ]
    assert apart > 1.2 * together


@pytest.mark.parametrize("kind", KINDS)
def test_code_and_note_say_what_one_checkpoint_is_around(texts, kind):
    policies = policies_of(texts[f"{kind}_together.none"])
    names = {"functions": "attention", "scopes": "attn"}[kind], "mlp"
    lines = policies.policy("nothing_saveable").code.splitlines()
    at = lines.index("def layer(x, weights):  # one jax.checkpoint around all of a layer together")
    for line, name in zip(lines[at + 1 :], names, strict=False):
        assert line.startswith(f"    x = ...  # {name} (called at ")
    assert lines[at + 3] == "    return x"
    (note,) = (own for own in policies.notes if own.code == "policy-units")
    peak = policies.policy("nothing_saveable").peak
    assert f"instead of {peak:,} B" in note.text
    assert note.figures["nothing_saveable"] > peak
    compile("\n".join(lines), "policy", "exec")


@pytest.mark.parametrize("how", ["each", "together"])
def test_a_text_with_checkpoints_tells_what_they_are_around(texts, how):
    policies = policies_of(texts[f"functions_{how}.plain_dots"])
    assert policies.is_checkpointed
    units, is_ambiguous = policies._data.units()
    names = [name.rpartition(".")[2] for _, name, *_ in units]
    assert names == {"each": ["attention", "mlp"], "together": ["both"]}[how]
    assert not is_ambiguous and len(policies._data.loops()) == len(names)
    assert all(own.code != "policy-units" for own in policies.notes)
    code = policies.policy("nothing_saveable").code
    words = {"each": "around each by itself: attention", "together": "all of a layer: both"}
    assert words[how] in code
