"""AXLearn's own golden configs: weights as AXLearn initialises them, and named refusals."""

import lzma
import random
import tarfile
from io import BytesIO
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, LONG
from decoders import LAYER, decoder, on
from hlofast.config import Config

ENVY, QWEN = "envy-Switch-Base", "qwen3-30B-A3B-bs8m-seq8k"
SIGMOID = "gala-sigmoid-7B-4k-hybridnorm-alibi-sp-rp"
SPEECH = "conformer-l-rnnt"
RESNETS = {"ResNet-18": 11_689_512, "ResNet-34": 21_797_672, "ResNet-50": 25_557_032,
           "ResNet-101": 44_549_160, "ResNet-152": 60_192_808}  # fmt: skip
"""Weights that torchvision publishes; AXLearn's goldens hold the moving statistics besides."""
ABSURD: list[Any] = [
    None, -1, 0, 10**30, "x", [], [1], [1, "a"], [[1, 2], [3]], 2.5, True, {"klass": "my.Thing"}
]  # fmt: skip
MULTIPLICATIONS = {"ResNet-18": 1.81e9, "ResNet-34": 3.66e9, "ResNet-50": 4.09e9,
                   "ResNet-101": 7.80e9, "ResNet-152": 11.51e9}  # fmt: skip
"""Multiplications of one image of 224 by 224, as torchvision publishes them."""


def texts() -> dict[str, str]:
    packed = lzma.decompress((FIXTURES / "goldens.tar.xz").read_bytes())
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        return {
            member.name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


TEXTS = texts()
NAMES = sorted(name.removesuffix(".txt") for name in TEXTS if not name.endswith("_init.txt"))


def golden(name: str) -> Config:
    return hlofast.config.loads(TEXTS[f"{name}.txt"])


def larger() -> Config:
    """envy-Switch-XXL: envy-Switch-Base with the sizes that AXLearn's `envy.py` gives it."""
    values: dict[str, Any] = {"model.decoder.dim": 8192, "model.decoder.transformer.num_layers": 12}
    for at in range(2):
        layer = f"{LAYER}.layer[{at}]"
        attention = f"{layer}.self_attention.attention"
        values[f"{attention}.num_heads"] = 64
        values[f"{attention}.input_linear.input_linear.num_kv_heads"] = 8
        values[f"{layer}.feed_forward.hidden_dim.scale"] = 2.5
    values[f"{LAYER}.layer[1].feed_forward.num_experts"] = 64
    values[f"{LAYER}.layer[1].feed_forward.input_dim"] = 8192
    return golden(ENVY).replace(values)


def initialised(name: str) -> dict[str, tuple[int, ...]]:
    """Shapes by path as AXLearn's `*_init.txt` has them; constants have none."""
    rows = {}
    for line in TEXTS[f"{name}_init.txt"].splitlines():
        path, _, sizes = line.partition(":")
        rows[path] = tuple(map(int, sizes.split(","))) if sizes.strip() else ()
    return rows


def reasons(config: Config) -> dict[str, str]:
    return {row["path"]: row["why"] for row in config.unmodelled()}


class TestWeights:
    @pytest.mark.parametrize("name", [*NAMES, "envy-Switch-XXL"])
    def test_paths_and_shapes_are_those_that_axlearn_initialises(self, name: str) -> None:
        config = larger() if name == "envy-Switch-XXL" else golden(name)
        shapes = {
            row["path"]: tuple(map(int, row["shape"].split(","))) for row in config.parameters()
        }
        expected = initialised(name)
        assert shapes.keys() == expected.keys()
        for path, shape in expected.items():
            # AXLearn prints one layer's shape, without dimensions that count layers.
            assert shapes[path][len(shapes[path]) - len(shape) :] == shape

    def test_published_counts(self) -> None:
        # The count of the weights of Qwen/Qwen3-30B-A3B on the Hugging Face hub.
        assert golden(QWEN).parameter_count() == 30_532_122_624
        for name, count in RESNETS.items():
            rows = list(golden(name).parameters())
            weights = [row["elements"] for row in rows if "/moving_" not in row["path"]]
            assert sum(weights) == count

    def test_counts_by_hand(self) -> None:
        attention = 1536 * 36 * 128 + 1536 * 12 * 128 + 2 * 128 + 1536
        norms = 2 * 1536
        dense = 3 * 1536 * 6144 + norms
        experts = 1536 * 128 + 128 * 3 * 1536 * 6144 + norms
        layers = 6 * (2 * attention + dense + experts)
        assert golden(ENVY).parameter_count() == layers + 32768 * 1536 + 1536
        # Gulati et al. 2020 publish 118.8 million weights of Conformer (L).
        assert golden(SPEECH).parameter_count() == pytest.approx(118.8e6, rel=0.005)


class TestExperts:
    def test_without_dropped_tokens(self) -> None:
        step = golden(QWEN).select("tpu-v5p-1024")
        verdict = step.verdict()
        assert verdict.status == "fits" and verdict.step_seconds is not None
        flops = {row["product"]: row for row in step.flops().table}
        # Eight of 128 experts compute a token.
        gate = flops["decoder/transformer/repeat/layer/feed_forward/wi_0_weight"]
        assert gate["multiplications"] == 8 * 2048 * 768
        values = {row["name"]: row for row in verdict.memory.activations if row["name"]}
        owner = "TransformerFeedForwardDropFreeMoE"
        for name in ("linear1_0", "gate_weights", "gate_assignment"):
            assert values[f"{owner}.{name}"]["fate"] == "offloaded"
        assert values["tpu_attention.flash_residuals"]["fate"] == "saved"
        tokens = 2 * 8192
        assert values[f"{owner}.linear1_1"]["bytes"] == tokens * 8 * 768 * 2

    def test_kernels_are_not_matmuls_of_policies(self) -> None:
        policy = f"{LAYER}.remat_spec['policy']"
        config = golden(QWEN).without("mesh_rules")
        config = config.with_value(policy, "jax.checkpoint_policies.dots_saveable")
        rows = config.select("tpu-v5p-1024").flops().table
        again = {row["product"].rpartition("/")[2] for row in rows if row["recomputed"]}
        assert {"wi_0_weight", "wi_1_weight", "wo_weight"} <= again
        assert "gate_weight" not in again

    def test_the_mesh_rule_that_replaces_the_kernel(self) -> None:
        effective = golden(QWEN).select("gpu-p5.48xlarge-512")
        path = f"{LAYER}.feed_forward"
        assert str(effective.config[f"{path}.gmm_backend"]) == "<GMMBackend.TOKAMAX: 'TOKAMAX'>"
        assert effective.config[f"{path}.num_experts"] == 128
        assert effective.config[f"{path}.load_balance_loss_weight"] == 0.001
        assert not any(row["kind"] == "not-modelled" for row in effective.notes)

    def test_traffic_along_experts_is_refused(self) -> None:
        shape = [1, 16, 4, 8, 1, 1]
        config = golden(QWEN).without("mesh_rules").with_value("mesh_shape", shape)
        verdict = config.select("tpu-v5p-1024").verdict()
        why = (
            "TransformerFeedForwardDropFreeMoE sends no tokens along 'expert', to the devices of other "
            "experts; AXLearn's ApproximateTokenDropFreeMoE does"
        )
        assert (f"{LAYER}.feed_forward", why) in verdict.gaps
        assert verdict.memory.state_bytes is not None

    def test_masks_of_a_capacity_are_refused(self) -> None:
        step = golden(ENVY).select("tpu-v5p-1024")
        (why,) = [why for path, why in step.verdict().gaps if "masks" in why]
        assert "TransformerFeedForwardMoE" in why and "Top2Gating" in why
        memory = step.memory()
        # Experts over 16 devices, and their inner sizes over 16.
        assert memory.state_bytes is not None and memory.saved_bytes is None
        assert step.verdict().step_seconds is None
        # The slots of two experts for a token.
        rows = {row["product"]: row for row in step.flops().table}
        own = rows["decoder/transformer/repeat/layer/layer1/feed_forward/wi_0_weight"]
        assert own["multiplications"] == 2 * 1536 * 6144
        assert all(row["recomputed"] == 0 for row in rows.values() if row["product"] != "attention")

    def test_other_gates_are_refused_by_name(self) -> None:
        klass = f"{LAYER}.feed_forward.gating.klass"
        config = golden(QWEN).with_value(klass, "my.Gating")
        assert config.parameter_count() is None
        assert "the gating my.Gating is not modelled" in reasons(config)[f"{LAYER}.feed_forward"]


class TestPoliciesInside:
    """What `tests/oracle/check_nested_policies.py` shows of compiled steps."""

    def test_an_inner_policy_without_a_barrier_has_no_effect(self) -> None:
        inner = golden(ENVY)
        for at in range(2):
            inner = inner.without(f"{LAYER}.layer[{at}].remat_spec")
        one, other = (own.select("tpu-v5p-1024") for own in (golden(ENVY), inner))
        assert one.flops().executed == other.flops().executed

    def test_a_barrier_is_refused(self) -> None:
        path = f"{LAYER}.layer[0].remat_spec"
        config = golden(ENVY).with_value(f"{path}['prevent_cse']", True)
        assert "prevent_cse inside a rematerialised module" in reasons(config)[path]
        assert config.parameter_count() is None


class TestSigmoid:
    def test_all_figures_are_those_of_softmax(self) -> None:
        klass = f"{LAYER}.self_attention.attention.klass"
        softmax = golden(SIGMOID).with_value(klass, "axlearn.common.attention.MultiheadAttention")
        one, other = (own.select("tpu-v5p-1024").verdict() for own in (golden(SIGMOID), softmax))
        assert one.step_seconds == other.step_seconds is not None
        assert one.expected_peak_bytes == other.expected_peak_bytes is not None
        assert one.flops.executed == other.flops.executed
        values = {row["name"]: row["fate"] for row in one.memory.activations if row["name"]}
        assert values["SigmoidAttention.context"] == "saved"


class TestImages:
    @pytest.mark.parametrize("name", MULTIPLICATIONS)
    def test_operations_of_an_image(self, name: str) -> None:
        flops = golden(name).select("tpu-v4-1024").flops()
        assert flops.tokens is not None and flops.matmul is not None
        each = flops.matmul / flops.tokens / 6
        assert each == pytest.approx(MULTIPLICATIONS[name], abs=5e6)
        assert flops.six_n_t is None

    def test_what_is_missing(self) -> None:
        (why,) = [why for path, why in reasons(golden("ResNet-50")).items() if path == "model"]
        assert "ImageClassificationModel: activations of convolutions" in why
        verdict = golden("ResNet-50").select("tpu-v4-1024").verdict()
        assert verdict.status == "unknown" and verdict.step_seconds is None

    def test_the_state_on_a_mesh(self) -> None:
        config = golden("ResNet-50").with_value("mesh_axis_names", ["data", "model"])
        memory = config.with_value("mesh_shape", [8, 2]).select("local", devices=16).memory()
        assert memory.state_bytes is not None and memory.saved_bytes is None
        # Weights and the trace of their gradients, those of convolutions over two devices.
        assert 25_610_152 * 4 < memory.state_bytes < 2 * 25_610_152 * 4

    def test_images_of_unknown_size(self) -> None:
        config = golden("ResNet-50").without("input.processor.image_size")
        assert config.parameter_count() == 25_610_152
        assert config.select("tpu-v4-1024").flops().matmul is None

    @pytest.mark.parametrize(
        ("path", "value", "why"),
        [
            ("stem.klass", "axlearn.vision.resnet.StemV1", "StemV1 is not modelled"),
            ("stage.block.squeeze_excitation.se_ratio", 0.25, "squeeze_excitation"),
            ("stage.block.downsample.downsample_op", "maxpool", "downsample_op"),
            ("num_blocks_per_stage", [3, 10**9], "more than 1,000 blocks"),
        ],
    )
    def test_what_is_refused_by_name(self, path: str, value: Any, why: str) -> None:
        config = golden("ResNet-50").with_value(f"model.backbone.{path}", value)
        assert config.parameter_count() is None
        assert any(why in text for text in reasons(config).values())


class TestSpeech:
    def test_what_is_missing(self) -> None:
        why = reasons(golden(SPEECH))
        assert "ASRModel: the frames of a step are not modelled" in why["model"]
        assert golden(SPEECH).select("tpu-v4-1024").flops().matmul is None


class TestPipelines:
    def pipelined(self, stage: str) -> Config:
        config = decoder(layers=4, stack="stacked")
        path = "model.decoder.transformer"
        return config.replace(
            {
                f"{path}.klass": "axlearn.common.attention.PipelinedTransformerLayer",
                f"{path}.num_stages": 2,
                f"{path}.num_microbatches": 4,
                f"{path}.stage": {"klass": f"axlearn.common.attention.{stage}TransformerLayer"},
            }
        )

    @pytest.mark.parametrize("stage", ["Stacked", "Repeated"])
    def test_weights_lie_along_the_pipeline(self, stage: str) -> None:
        config = self.pipelined(stage)
        assert config.parameter_count() == decoder(layers=4).parameter_count()
        rows = [row for row in config.parameters() if "/pipeline/" in row["path"]]
        assert len(rows) == 7
        assert all(row["partition_spec"].startswith("PartitionSpec('pipeline'") for row in rows)
        one, two = (on(config, pipeline=size).memory()["parameters"] for size in (1, 2))
        held = sum(row["bytes"] for row in rows)
        assert one is not None and two is not None and one - two == held // 2

    def test_what_is_missing(self) -> None:
        step = on(self.pipelined("Stacked"), pipeline=2)
        why = dict(step.verdict().gaps)["model.decoder.transformer"]
        assert "time of 2 pipeline stages with 4 micro-batches are not modelled" in why
        assert step.flops().model == on(decoder(layers=4, stack="stacked"), fsdp=2).flops().model
        assert step.memory().saved_bytes is None and step.verdict().step_seconds is None

    def test_stages_that_do_not_divide(self) -> None:
        config = self.pipelined("Stacked").with_value("model.decoder.transformer.num_stages", 3)
        assert "3 stages do not divide 4 layers" in reasons(config)["model.decoder.transformer"]


@pytest.mark.parametrize("name", NAMES)
def test_absurd_values_are_refused_and_never_break(name: str) -> None:
    config, chance = golden(name), random.Random(name)
    paths = [str(path) for path, _ in config.leaves()]
    for _ in range(LONG * 250 + 50):
        path = chance.choice(paths)
        if chance.random() < 0.3 and "." in path:
            path = path.rpartition(".")[0]
        try:
            changed = config.with_value(path, chance.choice(ABSURD))
        except (KeyError, TypeError, ValueError):
            continue
        changed.parameter_count()
        changed.select("tpu-v5p-1024").verdict()
        assert all(row["why"] for row in changed.unmodelled())
