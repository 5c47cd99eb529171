"""What `Module.what_if()` takes dimensions for: width, heads and vocabulary beside what can change."""

import pytest

import hlofast
from conftest import FIXTURES
from test_cli import hlofast_command, validated


def of_role(module: hlofast.Module) -> dict[str, dict[str, int]]:
    """By role: the size of each parameter's symbol."""
    found: dict[str, dict[str, int]] = {}
    for own in module.what_if().symbols:
        found.setdefault(own.role, {})[own.name] = own.size
    return found


def sharded(name: str) -> hlofast.Module:
    return hlofast.load(FIXTURES / "sharded" / f"{name}.txt.gz")


@pytest.mark.parametrize(
    ("name", "width", "vocabulary", "heads"),
    [
        ("decoder_v5p_16", 4096, 32000, {4096, 1024}),
        # A device has half a head of the keys, in no dimension of its own.
        ("decoder_v5e_256", 8192, 32000, {8192}),
        ("decoder_v6e_4", 1024, 8192, {1024, 512}),
        ("accumulated_v6e_8", 1024, 8192, {1024, 512}),
    ],
)
def test_the_roles_of_a_decoder(name: str, width: int, vocabulary: int, heads: set[int]) -> None:
    found = of_role(sharded(name))
    assert set(found["width"].values()) == {width}
    assert set(found["vocabulary"].values()) == {vocabulary}
    assert set(found["heads"].values()) == heads
    # What lies between the two matmuls of an MLP is neither.
    assert any(name.endswith("['up']") for name in found["other"])
    assert not any("up" in own for own in (*found["heads"], *found["vocabulary"]))


def test_the_second_dimension_of_an_input_that_matmuls_sum_with_weights_is_the_width() -> None:
    module = sharded("layers_v6e_8")
    found = of_role(module)
    assert found["width"]["value"] == 1024
    assert "sequence" not in found
    with pytest.raises(ValueError, match="not the width of the model"):
        module.what_if(sequence="2x")


@pytest.mark.parametrize(
    ("name", "axis", "stages"),
    [
        ("maxtext_dumps/8b_stages.txt.xz", "axis_0", 4),
        ("sharded/pipeline_v5e_8.txt.gz", "axis_1", 4),
        ("sharded/pipeline_v5p_8.txt.gz", "axis_1", 2),
    ],
)
def test_layers_in_stages_cannot_change(name: str, axis: str, stages: int) -> None:
    why = rf"layers: .* along {axis}, whose {stages} devices .* layers in pipelined stages cannot"
    with pytest.raises(ValueError, match=why):
        hlofast.load(FIXTURES / name).what_if(layers="2x")


# Shards of tokens go round a ring, experts lie along an axis, and layers are written one by one.
@pytest.mark.parametrize("name", ["ring_v6e_16", "experts_v6e_8", "mlp_unrolled_plain"])
def test_layers_without_loops_or_stages(name: str) -> None:
    with pytest.raises(ValueError, match="layers: no loop takes one slice of stacked parameters"):
        sharded(name).what_if(layers="2x")


SUM = """\
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
PLACES = """\
HloModule step, is_scheduled=true, input_output_alias={ {}: (1, {}, may-alias) }

ENTRY main {
  tokens = s32[4,16] parameter(0), metadata={op_name="tokens"}
  places = f32[16,8] parameter(1), metadata={op_name="positions"}
  value = f32[4,16] convert(tokens)
  wide = f32[4,16,8] broadcast(value), dimensions={0,1}
  own = f32[4,16,8] broadcast(places), dimensions={1,2}
  both = f32[4,16,8] add(wide, own)
  zero = f32[] constant(0)
  ROOT sum = f32[16,8] reduce(both, zero), dimensions={0}, to_apply=add
}
"""


def test_a_sequence_that_is_a_dimension_of_weights_stays_one_with_a_note() -> None:
    """A table of positions has a row for each, and no matmul sums them."""
    text = PLACES.replace("\n\nENTRY", "\n\n" + SUM + "\nENTRY")
    result = hlofast.loads(text).what_if(sequence="2x")
    told = {note.code: note.text for note in result.notes}
    assert "a dimension of positions too" in told["shared-sequence"]
    assert "vocabulary" not in {own.role for own in result.symbols}


def test_each_role_says_why() -> None:
    path = FIXTURES / "sharded" / "decoder_v5p_16.txt.gz"
    (own,) = validated("what-if", hlofast_command("what-if", "--json", path).stdout)["results"]
    said = {(row["role"], row["evidence"]) for row in own["tables"]["symbols"]}
    assert ("vocabulary", "number of rows of a lookup by tokens") in said
    assert ("width", "row length of a lookup by tokens") in said
    assert ("heads", "batch dimension of token-by-token matmuls") in said


def test_stacks_that_are_copied_as_bytes_are_layers() -> None:
    """The compiler copies a stack of weights to fast memory in parts of bytes."""
    module = sharded("accumulated_v6e_8")
    symbols = module.what_if().symbols
    (layers,) = (own for own in symbols if own.role == "layers")
    assert layers.size == 8
    assert not [own for own in symbols if own.role == "other" and own.size == 8]
    before, after = (own.cost().flops for own in (module, module.what_if(layers="2x").changed))
    assert after > 1.7 * before
