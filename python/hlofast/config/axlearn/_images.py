"""The parts of AXLearn's classifiers of images: ResNet (`axlearn.vision.resnet`).

A token is one image. Weights and the FLOPs of convolutions are modelled; activations and the rate
of convolutions are not.
"""

from __future__ import annotations

from hlofast.config._parts import LARGEST_SIZE, UnmodelledError, checked_size
from hlofast.config._tree import Config
from hlofast.config.axlearn._builder import register_module, sharding_of
from hlofast.config.axlearn._modules import axlearn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config.axlearn._builder import Builder

    Size = tuple[int, int]

_VISION = "axlearn.vision."
_POOLED = ((3, 3), (2, 2), ((1, 1), (1, 1)))
"""Window, strides and padding of the maximum at the end of the stem."""
_LAST = ((), (), (), ("model",))
"""The spec of convolutions in AXLearn's code: the channels of the results along `model`."""
_BOTTLENECK = 4
"""Channels of a bottleneck's results over those inside it."""
_MOST_BLOCKS = 1000


@register_module(f"{_VISION}image_classification.ImageClassificationModel")
def _classifier(builder: Builder) -> None:
    backbone = builder.part("backbone")
    if backbone.klass != f"{_VISION}resnet.ResNet":
        raise UnmodelledError(f"the backbone {backbone.klass} is not modelled")
    image = builder.settings.get("image")
    size: Size = (0, 0)
    if isinstance(image, list) and len(image) == 2 and all(map(_is_size, image)):
        size = (image[0], image[1])
        builder.of_images()
    builder.missing(
        "activations of convolutions and their rate are not modelled, so memory beyond the state "
        "and the step are unknown; weights and FLOPs are modelled"
    )
    builder.enter(backbone, "backbone", settings={"image": size})
    channels = _channels(backbone)[-1]
    settings = {
        "outputs": builder.size("num_classes"), "name": "classifier", "is_needed": True,
        "joint": None,
    }  # fmt: skip
    builder.enter(builder.part("classifier"), "classifier", width=channels, settings=settings)


def _channels(backbone: Config) -> list[int]:
    """Channels of the stem and of each stage."""
    hidden = checked_size(backbone.get("hidden_dim", 64), "hidden_dim")
    factor = _BOTTLENECK if _is_bottleneck(backbone) else 1
    return [hidden, *(hidden * factor * 2**at for at in range(len(_blocks(backbone))))]


def _is_bottleneck(backbone: Config) -> bool:
    return bool(backbone.get("stage.block.klass") == f"{_VISION}resnet.Bottleneck")


def _blocks(backbone: Config) -> list[int]:
    given = backbone.get("num_blocks_per_stage")
    blocks = given.to_python() if isinstance(given, Config) else (given or [])
    if not isinstance(blocks, list) or len(blocks) >= 20:
        raise UnmodelledError(f"num_blocks_per_stage is {blocks!r}")
    for count in blocks:
        if checked_size(count, "num_blocks_per_stage") > _MOST_BLOCKS:
            raise UnmodelledError(f"more than {_MOST_BLOCKS:,} blocks")
    return blocks


@register_module(f"{_VISION}resnet.ResNet")
def _resnet(builder: Builder) -> None:
    config = builder.config
    size: Size = builder.settings.get("image") or (0, 0)
    builder.covered(builder.part("stem"))
    builder.covered(builder.part("stage"))
    widths = _channels(config)
    stem = builder.part("stem")
    if stem.class_name != "StemV0":
        raise UnmodelledError(f"the stem {stem.klass} is not modelled")
    channels = checked_size(stem.get("input_dim", 3), "input_dim")
    size = _convolution(builder, stem, "conv", "stem/conv1", channels, widths[0], size)
    _norm(builder, stem, "stem/norm1", widths[0])
    size = _reduced(size, *_POOLED)
    block = builder.part("stage.block")
    if block.class_name not in ("Bottleneck", "BasicBlock"):
        raise UnmodelledError(f"the block {block.klass} is not modelled")
    if block.get("squeeze_excitation.se_ratio", 0):
        raise UnmodelledError("squeeze_excitation is not modelled")
    if block.get("downsample.downsample_op", "conv") != "conv":
        raise UnmodelledError("downsample_op other than conv is not modelled")
    channels = widths[0]
    for at, count in enumerate(_blocks(config)):
        for index in range(count):
            stride = 2 if at > 0 and index == 0 else 1
            path = f"stage{at}/block{index}"
            size = _block(builder, block, path, channels, widths[at + 1], stride, size)
            channels = widths[at + 1]


def _block(
    builder: Builder, block: Config, path: str, inputs: int, outputs: int, stride: int, size: Size
) -> Size:
    """Adds one block; returns the size of its result."""
    strides = (stride, stride)
    if block.class_name == "Bottleneck":
        inner = outputs // _BOTTLENECK
        _own(builder, f"{path}/conv1", inputs, inner, size)
        _norm(builder, block, f"{path}/norm1", inner)
        after = _convolution(
            builder, block, "conv", f"{path}/conv2", inner, inner, size, strides=strides
        )
        _norm(builder, block, f"{path}/norm2", inner)
        _own(builder, f"{path}/conv3", inner, outputs, after)
        _norm(builder, block, f"{path}/norm3", outputs)
    else:
        after = _convolution(
            builder, block, "conv", f"{path}/conv1", inputs, outputs, size, strides=strides
        )
        _norm(builder, block, f"{path}/norm1", outputs)
        _convolution(builder, block, "conv", f"{path}/conv2", outputs, outputs, after)
        _norm(builder, block, f"{path}/norm2", outputs)
    if stride > 1 or inputs != outputs:
        _own(builder, f"{path}/downsample/conv", inputs, outputs, after)
        _norm(builder, block, f"{path}/downsample/norm", outputs)
    return after


def _own(builder: Builder, path: str, inputs: int, outputs: int, results: Size) -> None:
    """Adds a convolution of single positions, with the spec that AXLearn writes in its code."""
    weight = builder.parameter(f"{path}/weight", (1, 1, inputs, outputs), _LAST)
    _product(builder, path, weight, (1, 1), inputs, outputs, results)


def _convolution(
    builder: Builder, owner: Config, key: str, path: str, inputs: int, outputs: int, size: Size,
    strides: Size | None = None,
) -> Size:  # fmt: skip
    """Adds the convolution `key` of a module; returns the size of its result."""
    config = owner.get(key)
    if not isinstance(config, Config):
        raise UnmodelledError(f"{key} is not set")
    window, own = _pair(config, "window", (1, 1)), _pair(config, "strides", (1, 1))
    if config.get("num_input_dim_groups", 1) != 1 or config.get("bias", True):
        raise UnmodelledError(f"groups or a bias of {key} are not modelled")
    given = config.get("padding")
    padding = given.to_python() if isinstance(given, Config) else given
    if not isinstance(padding, list) or len(padding) != 2 or not all(map(_is_pair, padding)):
        raise UnmodelledError(f"padding {padding!r} of {key} is not modelled")
    after = _reduced(size, window, strides or own, tuple(map(tuple, padding)))
    weight = builder.parameter(
        f"{path}/weight", (*window, inputs, outputs), sharding_of(config, "param_partition_spec")
    )
    _product(builder, path, weight, window, inputs, outputs, after)
    return after


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value <= LARGEST_SIZE


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(own) is int and 0 <= own <= LARGEST_SIZE for own in value)
    )


def _product(
    builder: Builder, path: str, weight: str, window: Size, inputs: int, outputs: int, after: Size
) -> None:
    """Adds the multiplications of one image."""
    builder.product(
        path, weight, window[0] * window[1] * inputs * outputs * after[0] * after[1],
        contracted=(0, 1, 2),
    )  # fmt: skip


def _pair(config: Config, key: str, default: Size) -> Size:
    given = config.get(key)
    pair = given.to_python() if isinstance(given, Config) else given
    if pair is None:
        return default
    if not isinstance(pair, list) or len(pair) != 2:
        raise UnmodelledError(f"{key} is {pair!r}")
    return checked_size(pair[0], key), checked_size(pair[1], key)


def _reduced(size: Size, window: Size, strides: Size, padding: tuple[Size, ...]) -> Size:
    """The size of what a window makes of an image; 0 if the image is not known."""
    rows, columns = (
        max(0, (own + sum(sides) - extent) // stride + 1) if own else 0
        for own, extent, stride, sides in zip(size, window, strides, padding, strict=True)
    )
    return rows, columns


def _norm(builder: Builder, owner: Config, path: str, width: int) -> None:
    norm = owner.get("norm")
    if not isinstance(norm, Config):
        raise UnmodelledError("norm is not set")
    builder.enter(norm, path, width=width)


@axlearn("layers.BatchNorm")
def _batch_norm(builder: Builder) -> None:
    """Scale and bias, and the moving statistics that evaluation reads."""
    for name in ("scale", "bias", "moving_mean", "moving_variance"):
        builder.parameter(name, (builder.width,))
