"""The code of checkpoint policies: which values are named where, and the spelling of trainers."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import _policy_code

sys.path.insert(0, str(FIXTURES))
import gpu_texts
import policy_texts

SOURCE = FIXTURES / "policy_models.py"
KERNEL = re.compile(r'(make_\w+)\(\.\.\., residual_checkpoint_name="(\w+)"\)')
NAMED = re.compile(r'x = checkpoint_name\(x, "(\w+)"\)  # (.*)')


@pytest.fixture(scope="module")
def texts() -> dict[str, bytes]:
    """By program: its text without checkpointing."""
    return policy_texts.unpack("texts")


@pytest.fixture(scope="module")
def dense(texts) -> hlofast.Module:
    """A transformer on v5e that does not fit without checkpointing."""
    return hlofast.loads(texts["dense_v5e_8"])


@pytest.fixture(scope="module")
def pair(texts) -> hlofast.Policies:
    """An encoder and a decoder, whose layers call the same attention three times."""
    return hlofast.loads(texts["pair_v5e_8"], device="tpu-v5e").remat().policies


@pytest.fixture(scope="module")
def variants() -> dict[str, hlofast.Policies]:
    """By program: the policies of layers with attention kernels."""
    texts = policy_texts.unpack("variants")
    return {
        name: hlofast.loads(text, device="tpu-v5e").remat(hbm="16GiB").policies
        for name, text in texts.items()
        if "flash" in name or "splash" in name
    }


def test_code_names_each_saved_value_or_the_policy_of_jax(dense):
    policies = dense.remat().policies
    assert (
        "policy = jax.checkpoint_policies.nothing_saveable"
        in policies.policy("nothing_saveable").code
    )
    product = next(
        at for at, kind in enumerate(policies.savable.values("kind")) if kind == "matmul"
    )
    code = policies.policy(save=[product]).code
    assert code.count("checkpoint_name(") == 1 and "policy_models.py:" in code
    assert "save_only_these_names(" in code
    compile(code, "policy", "exec")


class TestLinesWithSeveralValues:
    def matmuls(self, pair, line: int) -> list[int]:
        rows = pair.savable.to_pylist()
        return [
            at
            for at, row in enumerate(rows)
            if row["source_line"] == line and row["kind"] != "other"
        ]

    def test_one_name_serves_all_of_them(self, pair):
        line = pair.savable.to_pylist()[pair.policy("dots_saveable").saved_numbers[0]]
        every = self.matmuls(pair, line["source_line"])
        assert len(every) == 3
        policy = pair.policy(save=every)
        ((name, place),) = NAMED.findall(policy.code)
        assert f"policy_models.py:{line['source_line']}, each of the 3 results" in place
        assert policy.code.count(f"'{name}'") == 1
        # The name is accepted, and means all of them.
        assert pair.policy(save=[name]).saved_numbers == policy.saved_numbers

    def test_calls_tell_them_apart_where_one_is_kept(self, pair):
        rows = pair.savable.to_pylist()
        line = rows[pair.policy("dots_saveable").saved_numbers[0]]["source_line"]
        source = SOURCE.read_text().splitlines()
        places = set()
        for at in self.matmuls(pair, line):
            ((name, place),) = NAMED.findall(pair.policy(save=[at]).code)
            called = re.search(r"in the call from \S+policy_models\.py:(\d+)", place)[1]
            assert "attention(" in source[int(called) - 1]
            scope = rows[at]["op_name"].split("/")[-2]
            assert name.startswith(scope)
            places.add(place)
        assert len(places) == 3

    def test_their_order_tells_them_apart_without_call_stacks(self, texts):
        text = re.sub(rb" stack_frame_id=\d+", b"", texts["pair_v5e_8"])
        text = re.sub(rb'(source_file|source_line)=("[^"]*"|\d+) ?', b"", text)
        text = text.replace(b"op_name=", b'source_file="m.py" source_line=7 op_name=')
        policies = hlofast.loads(text).remat().policies
        rows = policies.savable.to_pylist()
        line = [at for at, row in enumerate(rows) if row["kind"] not in ("other", "input")]
        for number in (0, len(line) - 1):
            ((_, place),) = NAMED.findall(policies.policy(save=[line[number]]).code)
            words = f"m.py:7, result {number + 1} of the {len(line)} of this line, in the order of"
            assert words in place

    def test_every_product_of_a_line_is_named(self, texts):
        """A line with two einsums: the name goes to the results of both."""
        text = re.sub(rb" stack_frame_id=\d+", b"", texts["dense_v5e_8"])
        text = re.sub(rb'(source_file|source_line)=("[^"]*"|\d+) ?', b"", text)
        for scope, einsum in ((b"attention", b"bqd,dk->bqk"), (b"mlp", b"bd,df->bf")):
            name = rb'op_name=("[^"]*/' + scope + rb")/dot_general"
            place = b'source_file="m.py" source_line=7 op_name='
            text = re.sub(name, place + rb"\1/" + einsum + b"/dot_general", text)
        policies = hlofast.loads(text).remat().policies
        rows = policies.savable.to_pylist()
        line = [at for at, row in enumerate(rows) if row["source_line"] == 7]
        other = next(at for at, row in enumerate(rows) if row["kind"] == "batched_matmul")
        named = dict(NAMED.findall(policies.policy(save=[*line, other]).code))
        (place,) = {own for name, own in named.items() if "_line_" in name}
        told = "each of the 6 results of this line, the products alone, each by this name: einsum "
        assert told in place and "bqd,dk->bqk" in place and "einsum bd,df->bf" in place

    def test_calls_and_order_tell_several_products_of_each_call_apart(self, pair):
        """A line that computes several products and is called several times, as a generator of
        projections is."""
        line = pair.savable.to_pylist()[pair.policy("dots_saveable").saved_numbers[0]]
        own = self.matmuls(pair, line["source_line"])
        rows = pair.savable.to_pylist()
        # Each product twice.
        twice = [rows[at] for at in own for _ in range(2)]
        line = list(range(len(twice)))
        weights = {at: f"p[{at % 2}]" for at in line}
        told = _policy_code._apart(pair.module, twice, line, weights)
        assert len(set(told.values())) == len(twice)
        for at, words in told.items():
            assert words.startswith("in the call from ")
            assert words.endswith(f", with the weight p[{at % 2}] in one of the layers")
        told = _policy_code._apart(pair.module, twice, line, {})
        assert len(set(told.values())) == len(twice)
        for at, words in told.items():
            assert words.startswith(f"result {at % 2 + 1} of the 2 of this line in the call from ")
            assert words.endswith(", in the order of execution")

    def test_shapes_are_those_of_the_program_or_of_the_device(self, dense):
        policies = dense.remat().policies
        at = policies.policy("dots_saveable").saved_numbers[0]
        shape = policies.savable.to_pylist()[at]["shape"]
        ((_, place),) = NAMED.findall(policies.policy(save=[at]).code)
        assert place.startswith(f"{shape} on the device  ")
        before = policy_texts.unpack("lowered")["dense_v5e_8.none"]
        policies = hlofast.loads(before).remat().policies
        at = policies.policy("dots_saveable").saved_numbers[0]
        shape = policies.savable.to_pylist()[at]["shape"]
        ((_, place),) = NAMED.findall(policies.policy(save=[at]).code)
        assert place.startswith(f"{shape}  ")

    def test_one_of_them_on_the_host_is_told_apart(self, pair):
        line = pair.savable.to_pylist()[pair.policy("dots_saveable").saved_numbers[0]]
        first, *others = self.matmuls(pair, line["source_line"])
        found = NAMED.findall(pair.policy(save=others, offload=[first]).code)
        assert len(found) == 3 and all("in the call from " in place for _, place in found)

    def test_a_name_that_two_files_would_share_is_not_given(self, texts):
        text = re.sub(rb" stack_frame_id=\d+", b"", texts["dense_v5e_8"])
        text = re.sub(rb'(source_file|source_line)=("[^"]*"|\d+) ?', b"", text)
        for scope in (b"attention", b"mlp"):
            place = b'source_file="' + scope + b'/x.py" source_line=9 '
            text = re.sub(
                rb'(op_name="[^"]*/' + scope + rb"/[^\"]*\")",
                place.replace(b"\\", b"") + rb"\1",
                text,
            )
        policies = hlofast.loads(text).remat().policies
        rows = policies.savable.to_pylist()
        line = [at for at, row in enumerate(rows) if row["kind"] not in ("other", "input")]
        named = NAMED.findall(policies.policy(save=line[1:]).code)
        assert len(dict(named)) == len(named) == len(line) - 1
        assert not any("_line_" in name for name, _ in named)
        assert all(re.search(r"/x\.py:9.*, result \d of the \d", place) for _, place in named)

    def test_a_value_without_a_line_is_named_by_its_instruction(self, texts):
        text = re.sub(rb" stack_frame_id=\d+", b"", texts["dense_v5e_8"])
        text = re.sub(rb'(source_file|source_line)=("[^"]*"|\d+) ?', b"", text)
        policies = hlofast.loads(text).remat().policies
        at = policies.policy("dots_saveable").saved_numbers[0]
        ((_, place),) = NAMED.findall(policies.policy(save=[at]).code)
        row = policies.savable.to_pylist()[at]
        opcode = policies.module[row["instruction"]].opcode
        told = f"{row['shape']} on the device  result of {opcode} %{row['name']}, for which the text has no line"
        assert place.startswith(told)

    def test_a_product_is_told_from_the_sum_of_its_line(self, texts):
        told = ": einsum bd,df->bf"
        # Transformations are not in the program's line.
        for scope, ending in ((b"", ""), (b"bd,df->bf/", told), (b"jvp(bd,df->bf)/", told)):
            own = re.sub(
                rb"(op_name=\"[^\"]*)/dot_general",
                rb"\1/" + scope + b"dot_general",
                texts["dense_v5e_8"],
            )
            policies = hlofast.loads(own).remat().policies
            rows = policies.savable.to_pylist()
            for at, row in enumerate(rows):
                places = [place for _, place in NAMED.findall(policies.policy(save=[at]).code)]
                if row["kind"] in ("matmul", "batched_matmul"):
                    assert all(f", the product alone{ending}" in place for place in places)
                else:
                    assert not any("product" in place for place in places)


class TestKernels:
    """Names outside a kernel do not reach what its backward pass reads."""

    def results(self, policies: hlofast.Policies) -> list[int]:
        return [at for at, kind in enumerate(policies.savable.values("kind")) if kind == "kernel"]

    def test_splash_attention_names_its_results_itself(self, variants):
        policies = variants["splash_v5p_8"]
        results = self.results(policies)
        assert all(policies.savable.values("is_nameable"))
        code = policies.policy(save=results).code
        ((maker, name),) = KERNEL.findall(code)
        assert maker == "make_splash_mha" and code.count("checkpoint_name(x") == 0
        assert f"save_only_these_names('{name}')" in code
        assert policies.policy(save=name).saved_numbers == tuple(results)
        compile(code, "policy", "exec")
        moved = policies.policy(offload=name)
        assert moved.on_host == sum(policies.savable.values("bytes")[at] for at in results)
        assert f"names_which_can_be_offloaded=['{name}']" in moved.code

    def test_other_kernels_are_kept_by_their_primitive(self, variants):
        policies = variants["flash_v5e_8"]
        matmul = policies.savable.values("kind").index("matmul")
        code = policies.policy(save=[matmul, *self.results(policies)]).code
        (name,) = re.findall(r'checkpoint_name\(x, "(\w+)"\)', code)
        asked: list[str] = []
        jax = SimpleNamespace(
            checkpoint_policies=SimpleNamespace(
                save_only_these_names=lambda *names: lambda *_, **__: asked.extend(names)
            )
        )
        known: dict[str, object] = {"jax": jax}
        exec("\n".join(code.splitlines()[2:-2]), known)
        for primitive in ("pallas_call", "custom_vjp_call"):
            assert known["policy"](SimpleNamespace(name=primitive)) is True
        assert known["policy"](SimpleNamespace(name="dot_general")) is None and asked == [name]

    def test_no_policy_moves_them_to_host_memory(self, variants):
        policies = variants["flash_v5e_8"]
        with pytest.raises(
            ValueError, match="no policy of JAX moves the results of flash_attention"
        ):
            policies.policy(offload=self.results(policies))

    def test_a_name_after_a_kernel_keeps_its_output_alone(self, variants):
        policies = variants["flash_v5e_8"]
        shapes = policies.savable.values("shape")
        output = [at for at in self.results(policies) if shapes[at].startswith("bf16")]
        policy = policies.policy(offload=output)
        assert "def policy(" not in policy.code and policy.code.count("checkpoint_name(x") == 1
        assert policy.recomputed_flops == policies.policy("nothing_saveable").recomputed_flops

    def test_results_of_a_kernel_are_kept_together(self, variants):
        moved = set()
        for name, policies in variants.items():
            results = self.results(policies)
            for policy in policies.best:
                (fate,) = {policy.fates[at] for at in results}
                moved |= {name} if fate == 2 else set()
        assert moved and all("splash" in name for name in moved)


def test_maxtext_names_the_results_of_attention():
    path = FIXTURES / "maxtext_dumps" / "16b.txt.xz"
    policies = hlofast.load(path).remat().policies
    rows = policies.savable.to_pylist()
    kernels = [at for at, row in enumerate(rows) if row["kind"] == "kernel"]
    assert len(kernels) == 2
    assert policies.policy(save=kernels).code.splitlines() == [
        "remat_policy: 'custom'", "decoder_layer_input: 'device'", "context: 'device'",
    ]  # fmt: skip
    assert policies.policy(offload=kernels).code.endswith("\ncontext: 'offload'")


def test_matmuls_that_xla_merges_on_gpus_are_told():
    """It multiplies the weights of keys and values at once; the text has the line of one of them."""
    policies = hlofast.loads(gpu_texts.texts()["gelu", "none"]).remat().policies
    rows = policies.savable.to_pylist()
    merged = [at for at, row in enumerate(rows) if row["shape"] == "bf16[4096,8192]"]
    told = "XLA computes 2 matmuls as one here: name the result of each"
    assert told in policies.policy(save=merged).code
    others = [at for at, row in enumerate(rows) if "matmul" in row["kind"] and at not in merged]
    assert others and told not in policies.policy(save=others).code


def test_maxtext_calls_values_as_its_config_does():
    """In the frontier, in policies of one's own, and for `--save`."""
    path = FIXTURES / "maxtext_dumps" / "8b_stages.txt.xz"
    policies = hlofast.load(path, device="tpu-v5p").remat(hbm="30GiB").policies
    own = policies.policy(save=["query_proj", "mlpwi_1"], offload="out_proj")
    assert own.described == "own: save query_proj, mlpwi_1; offload out_proj"
    assert "query_proj: 'device'\nmlpwi_1: 'device'\nout_proj: 'offload'" in own.code
    shown = {name for row in policies.frontier for name in (row["saved"] or "").split(", ")}
    assert "query_proj" in shown and not any("linears" in name for name in shown)


def test_code_in_the_spelling_of_flax():
    path = FIXTURES / "frames" / "linen.cpu.txt.xz"
    policies = hlofast.load(path).remat().policies
    assert "nn.remat(Layer, policy=policy, prevent_cse=False)" in policies.policy().code


def test_code_in_the_spelling_of_axlearn(texts):
    text = texts["dense_v5e_8"].decode()
    scope = "layer[TransformerLayer]/feed_forward[TransformerFeedForwardLayer]/linear1_0[Linear]"
    text = text.replace("/mlp/", f"/{scope}/")
    text = text.replace("/attention/", "/layer[TransformerLayer]/self_attention[Attention]/")
    policies = hlofast.loads(text).remat().policies
    code = policies.policy(save=["linear1_0"]).code
    assert "names_which_can_be_saved='.*linear1_0'" in code
    assert "names_which_can_be_offloaded=None" in code and "RematSpec(" in code
    compile(code, "policy", "exec")
    moved = policies.policy(offload=["linear1_0"]).code
    assert "names_which_can_be_offloaded='.*linear1_0'" in moved
    assert "checkpoint_name(" in policies.policy(offload="layer_input").code
    nothing = policies.policy("nothing_saveable").code
    assert "RematSpec(prevent_cse=False" in nothing and "nothing_saveable" in nothing
    # A value whose name is not known is spelled in JAX.
    assert "checkpoint_name(" in policies.policy(save=["self_attention"]).code


def test_code_in_the_spelling_of_maxtext(texts):
    text = texts["dense_v5e_8"].decode()
    text = text.replace("tests/fixtures/policy_models.py", "src/maxtext/layers/linears.py")
    text = text.replace('"_mlp"', '"MlpBlock.__call__"')
    policies = hlofast.loads(text).remat().policies
    rows = policies.savable.to_pylist()
    mlp = [at for at, row in enumerate(rows) if "/mlp/dot_general" in (row["op_name"] or "")]
    mlp = [at for at in mlp if rows[at]["kind"] == "matmul"]
    code = policies.policy(save=mlp[:1]).code.splitlines()
    assert code[:2] == ["remat_policy: 'custom'", "decoder_layer_input: 'device'"]
    assert code[2].startswith("mlpw") and code[2].endswith(": 'device'")
    assert policies.policy(offload=mlp[:1]).code.endswith(": 'offload'")
    assert policies.policy("nothing_saveable").code == "remat_policy: 'full'"
    moved = policies.policy(offload="layer_input").code.splitlines()
    assert moved == ["remat_policy: 'custom'", "decoder_layer_input: 'offload'"]
    assert "checkpoint_name(" in policies.policy(save=["attention/dot_general"]).code
