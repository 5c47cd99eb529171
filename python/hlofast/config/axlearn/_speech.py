"""The parts of AXLearn's models of speech: conformers (`axlearn.audio`, `common.conformer`).

Weights are modelled. The frames of a step follow from the length of the audio, which the model does
not read, so operations and activations are unknown.
"""

from __future__ import annotations

from hlofast.config._parts import UnmodelledError, checked_size
from hlofast.config._tree import Config
from hlofast.config.axlearn._builder import register_module, sharding_of
from hlofast.config.axlearn._modules import axlearn, projected, scales

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config.axlearn._builder import Builder

_AUDIO = "axlearn.audio."
_GATES = 4
"""Gates of an LSTM cell."""


@register_module(f"{_AUDIO}model_asr.ASRModel")
def _model(builder: Builder) -> None:
    builder.missing(
        "the frames of a step are not modelled, so operations, activations and step are unknown; "
        "weights are modelled"
    )
    width = checked_size(builder.config.get("encoder.dim"), "encoder.dim")
    builder.child("encoder", width=width)
    builder.child("decoder", width=width)


@register_module(f"{_AUDIO}encoder_asr.ASREncoder")
def _encoder(builder: Builder) -> None:
    feature = builder.part("feature")
    channels = checked_size(feature.get("output_dim"), "output_dim")
    filters = checked_size(feature.get("frontend.num_filters"), "num_filters")
    builder.enter(feature, "feature", width=channels)
    strides = feature.get("subsampler.conv.strides")
    if not isinstance(strides, Config):
        raise UnmodelledError("subsampler.conv.strides is not set")
    stride = checked_size(strides.get("[1]"), "strides")
    for _ in range(2):
        filters = -(-filters // stride)
    context = builder.part("context")
    _linear(builder, context, "input_linear", "context", channels * filters, builder.width)
    builder.enter(context, "context")


@register_module(f"{_AUDIO}encoder_asr.SpeechFeatureLayer")
def _feature(builder: Builder) -> None:
    subsampler = builder.part("subsampler")
    builder.covered(builder.config)
    if subsampler.class_name != "ConvSubSampler":
        raise UnmodelledError(f"the subsampler {subsampler.klass} is not modelled")
    convolution = subsampler.get("conv")
    window = None if not isinstance(convolution, Config) else convolution.get("window")
    if not isinstance(convolution, Config) or not isinstance(window, Config):
        raise UnmodelledError("subsampler.conv has no window")
    inputs = checked_size(subsampler.get("input_dim", 1), "input_dim")
    for name in ("conv1", "conv2"):
        shape = (*(checked_size(own, "window") for own in window.to_python()), inputs)
        spec = sharding_of(convolution, "param_partition_spec") or ()
        builder.parameter(f"subsampler/{name}/weight", (*shape, builder.width), spec)
        if convolution.get("bias", True):
            builder.parameter(f"subsampler/{name}/bias", (builder.width,), spec[3:])
        inputs = builder.width


@register_module(f"{_AUDIO}encoder_asr.SpeechContextNetwork")
def _context(builder: Builder) -> None:
    builder.child("context")


@axlearn("conformer.RepeatedConformerLayer")
def _repeated(builder: Builder) -> None:
    builder.child("layer", "repeat/layer", layers=builder.size("num_layers"), stacked=True)


@axlearn("conformer.ConformerLayer")
def _layer(builder: Builder) -> None:
    for key in ("ff_start", "ff_end", "self_attention", "lconv", "norm"):
        builder.child(key)


@axlearn("conformer.LConvLayer")
def _convolutional(builder: Builder) -> None:
    width, config = builder.width, builder.config
    builder.covered(builder.part("conv"))
    builder.child("linear1_norm")
    for at in range(2):
        _linear(builder, config, "linear1", "", width, width, f"linear1_{at}")
    convolution = builder.part("conv")
    window = checked_size(convolution.get("window"), "window")
    spec = sharding_of(convolution, "param_partition_spec") or ()
    builder.parameter("conv/weight", (window, 1, width), spec)
    if convolution.get("bias", True):
        builder.parameter("conv/bias", (width,), spec[2:])
    builder.child("conv_norm")
    _linear(builder, config, "linear2", "", width, width)


@axlearn("attention.MultiheadAttentionXL")
def _attention(builder: Builder) -> None:
    heads = builder.size("num_heads")
    depth = builder.width // heads
    for name in ("u_bias", "v_bias"):
        builder.parameter(name, (heads, depth))
    projected(builder, heads, depth)
    scales(builder, depth)
    relative = builder.part("relative_pos_linear")
    builder.covered(relative)
    spec = sharding_of(relative, "param_partition_spec") or ()
    builder.parameter("r_proj/weight", (builder.width, heads, depth), spec)


@register_module(f"{_AUDIO}decoder_asr.TransducerDecoderModel")
def _transducer(builder: Builder) -> None:
    config, vocabulary = builder.config, builder.size("vocab_size")
    joint, inner = builder.size("joint_dim"), builder.size("lm_dim")
    _linear(builder, config, "am_proj", "", builder.width, joint)
    # AXLearn gives this projection no bias, whatever its config says.
    _linear(builder, config, "lm_proj", "", inner, joint, has_bias=False)
    network = builder.part("prediction_network")
    builder.covered(network)
    builder.covered(builder.part("transducer"))
    embedded = checked_size(network.get("emb_dim"), "emb_dim")
    table, cell = network.get("embedding"), network.get("rnn_cell")
    if not isinstance(table, Config) or not isinstance(cell, Config):
        raise UnmodelledError("prediction_network has no embedding or rnn_cell")
    if cell.class_name != "LSTMCell" or cell.get("output_proj") is not None:
        raise UnmodelledError(f"the cell {cell.klass} is not modelled")
    spec = sharding_of(table, "param_partition_spec") or ()
    path = "prediction_network"
    builder.parameter(f"{path}/embedding/weight", (vocabulary, embedded), spec)
    projection = cell.get("input_proj")
    spec = ()
    if isinstance(projection, Config):
        spec = sharding_of(projection, "param_partition_spec") or ()
    shape = (embedded + inner, _GATES, inner)
    builder.parameter(f"{path}/rnn/input_proj/weight", shape, spec)
    if isinstance(projection, Config) and projection.get("bias", True):
        builder.parameter(f"{path}/rnn/input_proj/bias", shape[1:], (*spec[:1], *spec[2:]))
    transducer = builder.part("transducer")
    _linear(builder, transducer, "proj", "transducer", joint, vocabulary)


@register_module(f"{_AUDIO}decoder_asr.CTCDecoderModel")
def _ctc(builder: Builder) -> None:
    vocabulary = builder.size("vocab_size")
    _linear(builder, builder.config, "lm_head", "", builder.width, vocabulary)


def _linear(
    builder: Builder, owner: Config, key: str, path: str, inputs: int, outputs: int,
    name: str | None = None, *, has_bias: bool = True,
) -> None:  # fmt: skip
    """Adds the weights of the linear layer `key`."""
    config = owner.get(key)
    if not isinstance(config, Config):
        raise UnmodelledError(f"{key} is not set")
    builder.covered(config)
    spec = sharding_of(config, "param_partition_spec") or ()
    whole = "/".join(part for part in (path, name or key) if part)
    builder.parameter(f"{whole}/weight", (inputs, outputs), spec)
    if has_bias and config.get("bias", True):
        builder.parameter(f"{whole}/bias", (outputs,), spec[1:])
