"""AXLearn's rematerialisation policies."""

from __future__ import annotations

from hlofast.config._patterns import PatternError
from hlofast.config._policies import OFFLOADED, RECOMPUTED, SAVED, Policy, UnknownPolicyError
from hlofast.config._tree import Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hlofast.config._parts import Value

_ATTENTION = ".*([qkvo]_proj|context)"
_FUJI = "axlearn.experiments.text.gpt.fuji."
_COMBINED = "axlearn.common.utils.combine_remat_policies"
_FLASH = "axlearn.common.flash_attention.remat.policy"
"""The policy that AXLearn's `save_or_offload_flash_attention_policy` returns: its default saves."""
CHOSEN = {
    **{
        name: f"jax.checkpoint_policies.{name}"
        for name in ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")
    },
    "offload_dots_saveable_policy": f"{_FUJI}offload_dots_saveable_policy",
    "offload_attention_proj_policy": f"{_FUJI}offload_attention_proj_policy",
    "save_or_offload_flash_attention_policy": _FLASH,
}
"""The policies with a name that a plan may choose, by this name, as configs print them."""
_DEEPEST = 8
"""Limit on combinations of combinations of policies."""
_BY_NAMES = {
    "axlearn.common.attention._save_and_offload_only_these_names_regex",
    "axlearn.common.attention.save_and_offload_only_these_names_regex",
    "axlearn.common.utils.save_and_offload_only_these_names_regex",
}
_JAX = ("jax._src.ad_checkpoint.", "jax.checkpoint_policies.", "jax.ad_checkpoint.")
_THESE_NAMES = tuple(f"{prefix}save_only_these_names" for prefix in _JAX)
_DOTS = ("dots_saveable", "checkpoint_dots")
_DOTS_WITHOUT_BATCH = ("dots_with_no_batch_dims_saveable", "checkpoint_dots_with_no_batch_dims")


class _Combined(Policy):
    """AXLearn's combination: what the first policy recomputes is left to the second."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Policy, second: Policy) -> None:
        super().__init__(f"{first.text}; else {second.text}")
        self._first = first
        self._second = second

    @property
    def kept(self) -> set[str]:
        """The fates other than `recomputed` that values may have."""
        return self._first.kept | self._second.kept

    def fate(self, value: Value) -> str:
        """The fate of `value` if backward needs it."""
        first = self._first.fate(value)
        return self._second.fate(value) if first == RECOMPUTED else first


def policy_of(spec: Config) -> Policy:
    """The policy of a `remat_spec`; raises `UnknownPolicyError` if it is not modelled."""
    return _read(spec.get("policy"))


def _read(policy: Any, depth: int = 0) -> Policy:
    if policy is None:
        return Policy("nothing is kept")
    if isinstance(policy, str):
        return named(policy)
    function = policy.get("fn") if isinstance(policy, Config) else policy
    if isinstance(policy, Config) and function == _COMBINED:
        if depth == _DEEPEST:
            raise UnknownPolicyError(f"policies are combined more than {_DEEPEST} times")
        combined = _Combined(
            _read(policy.get("policy_1"), depth + 1), _read(policy.get("policy_2"), depth + 1)
        )
        if len(combined.kept) > 1:
            # AXLearn fails at values that one policy saves and the other offloads.
            raise UnknownPolicyError("a policy that saves and one that offloads are combined")
        return combined
    if isinstance(policy, Config) and function in _THESE_NAMES:
        return _these_names(policy)
    if not isinstance(policy, Config) or str(function) not in _BY_NAMES:
        raise UnknownPolicyError(f"the policy {function} is not modelled")
    saved, offloaded = (
        _pattern(policy, f"names_which_can_be_{fate}") for fate in (SAVED, OFFLOADED)
    )
    words = [
        f"{pattern} {fate}" for pattern, fate in ((saved, SAVED), (offloaded, OFFLOADED)) if pattern
    ]
    try:
        return Policy(", ".join(words) or "nothing is kept", saved=saved, offloaded=offloaded)
    except PatternError as error:
        raise UnknownPolicyError(f"the policy has an unsupported pattern: {error}") from None


def _these_names(policy: Config) -> Policy:
    """JAX's own policy, which saves the values with the listed names."""
    names = policy.get("names_which_can_be_saved")
    listed = names.to_python() if isinstance(names, Config) else names
    if not isinstance(listed, (list, tuple)) or not all(isinstance(name, str) for name in listed):
        raise UnknownPolicyError("names_which_can_be_saved must be a list of names")
    return these_names(listed, ())


def these_names(saved: Sequence[str], offloaded: Sequence[str]) -> Policy:
    """The policy that saves and offloads the values with exactly these names."""
    patterns = [
        "|".join("".join(map(_exact, name)) for name in names) or None
        for names in (saved, offloaded)
    ]
    words = [
        f"{', '.join(names)} {fate}"
        for names, fate in ((saved, SAVED), (offloaded, OFFLOADED))
        if names
    ]
    return Policy(", ".join(words) or "nothing is kept", saved=patterns[0], offloaded=patterns[1])


def _exact(letter: str) -> str:
    """A regular expression for this character."""
    return letter if letter.isalnum() or letter == "_" else f"\\{letter}"


def _pattern(config: Config, key: str) -> str | None:
    pattern = config.get(key)
    if pattern is not None and not isinstance(pattern, str):
        raise UnknownPolicyError(f"{key} must be a regular expression")
    return pattern


def named(name: str) -> Policy:
    """The policy that a config names; raises `UnknownPolicyError` if it is not modelled."""
    if name == f"{_FUJI}offload_dots_saveable_policy":
        return Policy("results of all matmuls offloaded", products=OFFLOADED)
    if name == f"{_FUJI}offload_attention_proj_policy":
        return Policy(f"{_ATTENTION} offloaded", offloaded=_ATTENTION)
    if name == _FLASH:
        return Policy("results of flash kernels saved", saved=".*flash_residuals")
    prefix, _, last = name.rpartition(".")
    if f"{prefix}." in _JAX:
        if last == "nothing_saveable":
            return Policy("nothing is kept")
        if last == "everything_saveable":
            return Policy("everything is kept", everything=True)
        if last in _DOTS:
            return Policy("results of all matmuls saved", products=SAVED)
        if last in _DOTS_WITHOUT_BATCH:
            text = "results of matmuls without batch dimensions saved"
            return Policy(text, products=SAVED, has_batched=False)
    raise UnknownPolicyError(f"the policy {name} is not modelled")
