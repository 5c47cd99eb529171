"""A choice of a plan as a mesh rule of AXLearn."""

from __future__ import annotations

from hlofast.config._parts import LARGEST_SIZE
from hlofast.config.axlearn._policies import CHOSEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hlofast.config._plan_space import Candidate, Option
    from hlofast.config._tree import Config

_JAX = "jax.checkpoint_policies."
_CALLED = {
    "save_or_offload_flash_attention_policy": (
        "axlearn.common.flash_attention.remat.save_or_offload_flash_attention_policy()"
    )
}
BATCHES = (
    "input.input_dispatcher.global_logical_batch_size",
    "input.batcher.global_batch_size",
)
"""The global batch in configs of AXLearn's trainers: of the input dispatcher, which deals it out to
hosts, if there is one; else of the batcher."""
_BY_NAMES = "save_and_offload_only_these_names_regex"
"""AXLearn's policy by names, in `axlearn.common.utils`."""


def rule(config: Config, candidate: Candidate, instance: str) -> list[str]:
    """The entry of `mesh_rules` in Python, one line each."""
    names = axes(config)
    shape = _shape(candidate.mesh.get(axis, 1) for axis in names)
    outer = candidate.outer
    if sum(size > 1 for size in outer.values()) > 1:
        # AXLearn finds slices along one axis by itself.
        inner = _shape(candidate.mesh.get(axis, 1) // outer.get(axis, 1) for axis in names)
        across = _shape(outer.get(axis, 1) for axis in names)
        shape = f"HybridMeshShape(ici_mesh_shape={inner}, dcn_mesh_shape={across})"
    modifiers = [f"MeshShapeModifier.default_config().set(mesh_shape={shape})"]
    remat = []
    for path in candidate.option.policies:
        specified = config.get(f"{path}.remat_spec")
        prevents = bool(specified.get("prevent_cse", True)) if specified is not None else True
        remat += [
            f'    "{path}": RematSpec(',
            f"        prevent_cse={prevents},",
            *(f"        {line}" for line in _policy(candidate.option)),
            "    ),",
        ]
    if remat:
        modifiers += [
            "RematSpecModifier.default_config().set(remat_policies={",
            *remat,
            "})",
        ]
    if candidate.steps > 1:
        steps = candidate.steps
        modifiers.append(
            f"GradientAccumulationModifier.default_config().set(grad_acc_steps={steps})"
        )
    lines = [f'("{instance}", ChainConfigModifier.default_config().set(config_modifiers=[']
    lines += [
        f"    {line}," if line.endswith(")") and not line.startswith("    ") else f"    {line}"
        for line in modifiers
    ]
    # No modifier sets types, or the batch.
    values = {
        path: str(value).replace("jax.numpy", "jnp")
        for path, value in candidate.state.values.items()
    }
    where, sequences = batch(config)
    if sequences != candidate.sequences:
        values[where or BATCHES[-1]] = str(candidate.sequences)
    return [*(f"# In the trainer's config: {own}" for own in map(" = ".join, values.items())),
            *lines, "])),"]  # fmt: skip


def batch(config: Config) -> tuple[str | None, int | None]:
    """Where a trainer's config has the sequences of a step, and how many; None if it has none."""
    for path in BATCHES:
        size = config.get(path)
        if type(size) is int and 0 < size <= LARGEST_SIZE:
            return path, size
    return None, None


def _shape(sizes: Iterable[int]) -> str:
    return f"({', '.join(map(str, sizes))},)"


def axes(config: Config) -> list[str]:
    """The names of the mesh axes."""
    names = config.get("mesh_axis_names")
    listed = names.to_python() if names is not None and hasattr(names, "to_python") else names
    return [own for own in listed if isinstance(own, str)] if isinstance(listed, list) else []


def _policy(option: Option) -> list[str]:
    if option.is_named:
        path = CHOSEN[option.name]
        # The function that returns the policy is called; the others are policies.
        return [f"policy={_CALLED.get(option.name, path)},"]
    if not option.saved and not option.offloaded:
        return [f"policy={_JAX}nothing_saveable,"]
    kept = [
        f"    {line}"
        for fate, names in (("saved", option.saved), ("offloaded", option.offloaded))
        for line in _pattern(f"names_which_can_be_{fate}", names)
    ]
    places = ['    offload_src="device",', '    offload_dst="pinned_host",']
    return [f"policy=config_for_function({_BY_NAMES}).set(", *kept, *places, "),"]


def _pattern(key: str, names: tuple[str, ...]) -> list[str]:
    """A regular expression for these names as an argument in Python, one name a line."""
    # Kernels of other devices give the same name with another prefix.
    names = tuple(".*flash_residuals" if own.endswith(".flash_residuals") else own for own in names)
    if len(names) < 2:
        return [f"{key}={names[0] if names else None!r},"]
    parts = [*(f"{name}|" for name in names[:-1]), names[-1]]
    return [f"{key}=(", *(f"    {part!r}" for part in parts), "),"]
