"""Declarations of the decoders among the sharded fixtures, taken from their source."""

from typing import Any

NAMES = ("query", "key", "value", "mixed")


def declaration(
    axes: dict[str, int],
    *,
    layers: int,
    width: int,
    hidden: int,
    heads: int,
    groups: int,
    batch: int,
    sequence: int,
    depth: int = 128,
    vocabulary: int = 32_000,
    accumulate: int = 1,
    remat: str = "names",
    slices: int = 1,
    is_stacked: bool = True,
    more: str = "",
) -> str:
    """The TOML of a decoder of `tests/fixtures/sharded_models.py` on a mesh with these axes."""
    batch_axes = [name for name in ("slice", "data", "fsdp") if name in axes]
    fsdp = "fsdp" if "fsdp" in axes else ""
    model = "model" if "model" in axes else ""
    narrow = model if groups % axes.get("model", 1) == 0 else ""
    specs = {
        ".*/norm.*|.*/count": [],
        ".*/embedding": [model, fsdp],
        ".*/head": [fsdp, model],
        ".*/(query|gate|up)": [fsdp, model],
        ".*/(key|value)": [fsdp, narrow],
        ".*/(output|down)": [model, fsdp],
    }
    if is_stacked:
        layer = ".*/("
        specs = {name: ["", *spec] if layer in name else spec for name, spec in specs.items()}
    rows = batch // accumulate
    for name in batch_axes:
        rows //= axes[name]
    split = axes.get("model", 1)
    carry = 2 * rows * sequence * width
    wide = heads * depth // split
    thin = groups * depth // (split if narrow or not model else 1)
    sizes = {"query": wide, "key": thin, "value": thin, "mixed": wide}
    place = "host" if remat == "offload" else "device"
    kept = {name: sizes[name] for name in NAMES} if remat in ("offload", "names") else {}
    lines = [
        "[mesh]",
        f"axes = {{ {', '.join(f'{name} = {size}' for name, size in axes.items())} }}",
        f"batch_axes = {batch_axes}",
        f"slices = {slices}",
        "[model]",
        f"layers = {layers}",
        f"accumulation_steps = {accumulate}",
        f"carry_bytes = {carry}",
    ]
    for pattern, spec in specs.items():
        lines += ["[[parameters]]", f"name = '{pattern}'", f"spec = {spec}"]
    for name, size in kept.items():
        lines += ["[[kept]]", f'name = "{name}"', f'place = "{place}"']
        lines += [f'shape = "bf16[{rows},{sequence},{size}]"']
    if not kept:
        lines.insert(0, "kept = []")
    return "\n".join([*lines, more])


TINY: dict[str, Any] = {
    "width": 256,
    "hidden": 1024,
    "heads": 8,
    "groups": 4,
    "depth": 32,
    "vocabulary": 1024,
}
SMALL: dict[str, Any] = {
    "width": 1024,
    "hidden": 4096,
    "heads": 8,
    "groups": 4,
    "vocabulary": 8192,
}
SEVEN: dict[str, Any] = {"width": 4096, "hidden": 14336, "heads": 32, "groups": 8}
SEVENTY: dict[str, Any] = {"width": 8192, "hidden": 28672, "heads": 64, "groups": 8}

PROGRAMS: dict[str, dict[str, Any]] = {
    "offload_v6e_256": {"axes": {"fsdp": 256}, "layers": 80, "batch": 256, "sequence": 2048, "remat": "offload", **SEVENTY},
    "offload_v5e_16": {"axes": {"fsdp": 16}, "layers": 32, "batch": 16, "sequence": 2048, "remat": "offload", **SEVEN},
    "decoder_v5p_16": {"axes": {"fsdp": 4, "model": 4}, "layers": 32, "batch": 8, "sequence": 4096, **SEVEN},
    "decoder_v5e_256": {"axes": {"fsdp": 32, "model": 8}, "layers": 80, "batch": 64, "sequence": 2048, "remat": "full", **SEVENTY},
    "accumulated_v6e_8": {"axes": {"data": 2, "fsdp": 2, "model": 2}, "layers": 8, "batch": 32, "sequence": 1024, "accumulate": 4, **SMALL},
    "slices_v5e_64": {"slices": 4, "axes": {"slice": 4, "fsdp": 16}, "layers": 8, "batch": 64, "sequence": 1024, "remat": "full", **SMALL},
    "decoder_cpu_2x4": {"axes": {"data": 2, "model": 4}, "layers": 4, "batch": 16, "sequence": 128, **TINY},
    "decoder_cpu_2x2x2": {"axes": {"data": 2, "fsdp": 2, "model": 2}, "layers": 4, "batch": 16, "sequence": 128, "accumulate": 2, "remat": "full", **TINY},
    "decoder_v5p_2": {"axes": {"model": 2}, "layers": 4, "batch": 4, "sequence": 1024, "remat": "dots", **SMALL},
    "decoder_cpu_8": {"is_stacked": False, "axes": {"fsdp": 8}, "layers": 2, "batch": 16, "sequence": 128, **TINY},
}  # fmt: skip
"""The fixtures in `tests/fixtures/sharded/` by name, as their catalogue makes them."""


def toml(name: str, **changes: Any) -> str:
    """The declaration of a fixture, with some of it changed."""
    return declaration(**{**PROGRAMS[name], **changes})
