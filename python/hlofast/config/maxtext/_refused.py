"""Values that MaxText refuses or ignores, which hlofast tells instead of modelling them."""

from __future__ import annotations

from hlofast._names import meant
from hlofast.config._parts import LARGEST_SIZE, FailsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hlofast.config._tree import Config
    from hlofast.devices import Device

    Note = tuple[str, str | None, str]

_RINGS = {"hybrid_ring_64x4": [1, 4, 64], "hybrid_ring_32x8": [1, 8, 32]}
"""Custom meshes, with the sizes that axes inside a slice have (`is_valid_custom_mesh` of MaxText's
`max_utils.py`)."""
_QUANTIZATIONS = (
    "int8", "intmp", "int4", "fp4", "fp8", "fp8_full", "fp8_gpu", "fp8_nanoo", "nanoo_fp8",
    "fp8_e4m3", "fp8_e5m2", "aqt_fp8", "aqt_fp8_full", "te_no_quant", "te_fp8_delayedscaling",
    "te_fp8_currentscaling", "te_mxfp8", "te_nvfp4", "te_nvfp4_no_rht", "serve_fp8_weight",
)  # fmt: skip
"""`QuantizationType` of MaxText 0.2.5, and `_get_quant_config` of its `quantizations.py`."""
_MULTIPLIED = {"int8": "s8"}
"""What the matmuls of layers multiply. XLA widens narrower types, and f8, where a device cannot
multiply them; the other quantizations keep a wide type for a part of the matmuls."""
GPU_KERNELS = ("cudnn_flash_te", "cudnn_flash_jax")
"""Kernels of attention that need cuDNN: `attention_op.py` of MaxText 0.2.5 imports Transformer
Engine for the first, which a GPU build alone has, and JAX stops at the second without cuDNN."""
_NONE = (None, "", "none")
_MOST_PER_DEVICE = 1e9


def fits_ring(config: Config, inner: Sequence[int]) -> bool:
    """Whether axes of these sizes inside a slice are those of the run's custom mesh, if any."""
    custom = config.get("custom_mesh")
    return custom in _NONE or sorted(set(inner)) == _RINGS.get(str(custom))


def has_ring(config: Config, slices: int) -> bool:
    """Whether MaxText reads `custom_mesh` (`create_device_mesh` of its `maxtext_utils.py`)."""
    is_read = slices > 1 or bool(config.get("allow_split_physical_axes"))
    return is_read and config.get("custom_mesh") not in _NONE


def ring(config: Config, slices: int, inner: Sequence[int]) -> list[Note]:
    """What MaxText makes of `custom_mesh` on axes of these sizes inside a slice."""
    custom = config.get("custom_mesh")
    if custom in _NONE:
        return []
    near = meant(str(custom), _RINGS) or ";"
    known = "" if custom in _RINGS else f"{near} known: {', '.join(_RINGS)}"
    kind, text = "mesh", f"custom_mesh {custom!r} reorders devices, which is not modelled"
    if not has_ring(config, slices):
        kind = "no-effect"
        text = "on one slice, MaxText reads custom_mesh only with allow_split_physical_axes=true"
        text += f"; {custom!r} is not a custom mesh{known}" if known else ""
    elif known:
        kind, text = "fails", f"MaxText fails here: no custom_mesh {custom!r}{known}"
    elif not fits_ring(config, inner):
        kind = "fails"
        wide = [size for size in inner if size > 1]
        text = (
            f"MaxText fails here: custom_mesh {custom!r} takes axes of "
            f"{' and '.join(map(str, _RINGS[custom][1:]))} devices inside a slice, not {wide}"
        )
    return [(kind, "custom_mesh", text)]


def matmul_type(config: Config) -> str | None:
    """The type that quantised matmuls multiply, empty without; None if unknown."""
    kind = config.get("quantization")
    return "" if kind in _NONE else _MULTIPLIED.get(str(kind))


def quantization(config: Config) -> list[tuple[str, str]]:
    """Why MaxText refuses `quantization`, if it does."""
    kind = config.get("quantization")
    if kind in (*_NONE, *_QUANTIZATIONS):
        return []
    near = meant(str(kind), _QUANTIZATIONS) or ";"
    why = f"no quantization {kind!r}{near} known: {', '.join(_QUANTIZATIONS)}"
    return [("quantization", str(FailsError("MaxText", why)))]


def indexer(config: Config) -> list[tuple[str, str]]:
    """Why MaxText refuses `use_indexer`, if it does (`types.py` of 0.2.5)."""
    if config.get("use_indexer") is not True:
        return []
    kernel = config.get("attention")
    why = None
    if config.get("attention_type") not in ("mla", "compressed"):
        why = "use_indexer needs attention_type=mla"
    elif config.get("q_lora_rank") == 0:
        why = "use_indexer needs a q_lora_rank"
    elif kernel != "dot_product" and not (kernel == "flash" and config.get("use_tokamax_splash")):
        why = f"use_indexer with attention {kernel!r}: take dot_product, or flash with "
        why += "use_tokamax_splash=true"
    return [] if why is None else [("use_indexer", str(FailsError("MaxText", why)))]


def attention(config: Config, device: Device) -> str | None:
    """Why MaxText fails at `attention` on a kind of device, if it does."""
    kernel = config.get("attention")
    if kernel not in GPU_KERNELS or device.backend == "gpu":
        return None
    why = f"attention {kernel!r} needs cuDNN, which {device.name} lacks; take flash"
    return str(FailsError("MaxText", why))


def batch(config: Config) -> list[tuple[str, str, bool]]:
    """Path and reason of values that make no batch, and whether MaxText itself fails at them."""
    found = []
    steps = config.get("gradient_accumulation_steps")
    if type(steps) is not int or not 0 < steps <= LARGEST_SIZE:
        found.append(("gradient_accumulation_steps", steps, type(steps) is not int or steps < 1))
    each = config.get("per_device_batch_size")
    is_number = isinstance(each, (int, float)) and not isinstance(each, bool)
    if not is_number or not 0 < each < _MOST_PER_DEVICE:
        found.append(("per_device_batch_size", each, not is_number or not each > 0))
    return [
        (key, str(FailsError("MaxText", why)) if fails else why, fails)
        for key, value, fails in found
        for why in (f"{key} is {value!r}",)
    ]
