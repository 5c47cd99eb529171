"""Constants as NumPy arrays."""

import numpy as np
import pytest

import hlofast


def constant(shape: str, literal: str) -> hlofast.Literal:
    text = f"HloModule m\n\nENTRY e {{\n  ROOT c = {shape} constant({literal})\n}}\n"
    parsed = hlofast.loads(text)["c"].literal
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    ("shape", "text", "dtype", "values"),
    [
        ("f32[]", "1.5", "float32", 1.5),
        (
            "f32[2,2]{1,0}",
            "{ { 1, -inf }, { nan, 0.1 } }",
            "float32",
            [[1, -np.inf], [np.nan, 0.1]],
        ),
        ("f64[2]", "{0.1, 1e300}", "float64", [0.1, 1e300]),
        ("f16[2]", "{0.5, -2}", "float16", [0.5, -2]),
        ("s32[3]{0}", "{1, -2, 3}", "int32", [1, -2, 3]),
        ("s64[1]", "{-9223372036854775808}", "int64", [-(2**63)]),
        ("u64[1]", "{18446744073709551615}", "uint64", [2**64 - 1]),
        ("s4[3]", "{-8, 0, 7}", "int8", [-8, 0, 7]),
        ("u4[2]", "{15, 1}", "uint8", [15, 1]),
        ("pred[2]", "{true, 0}", "bool", [True, False]),
        ("c64[2]", "{(1, 2), (-0.5, 0)}", "complex64", [1 + 2j, -0.5]),
        ("c128[1]", "{(1, -1)}", "complex128", [1 - 1j]),
        ("bf16[2]", "{1, -2}", "uint16", [0x3F80, 0xC000]),
        ("f8e5m2[2]", "{1, -2}", "uint8", [0x3C, 0xC0]),
        ("f32[0]", "{}", "float32", []),
        ("s32[2,0]", "{ {}, {} }", "int32", [[], []]),
    ],
)
def test_arrays(shape: str, text: str, dtype: str, values: object) -> None:
    literal = constant(shape, text)
    expected = np.array(values, dtype)
    assert literal.array.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(literal.array, expected, strict=True)
    assert not literal.array.flags.writeable
    assert (literal.extent, literal.is_elided) == ("full", False)
    assert literal.leaves == (literal,)
    assert literal.text == str(literal) == text


def test_an_array_outlives_its_module() -> None:
    array = constant("s32[4]", "{1,2,3,4}").array
    assert array.sum() == 10


@pytest.mark.parametrize(
    ("shape", "text", "values"),
    [("f32[1000]{0}", "{...}", []), ("s32[2,3]", "{ { 1, 2, 3 }, {...} }", [1, 2, 3])],
)
def test_elided_literals_give_what_is_written(shape: str, text: str, values: list[int]) -> None:
    literal = constant(shape, text)
    assert (literal.extent, literal.is_elided) == ("elided", True)
    assert literal.array.tolist() == values


def test_one_element_for_a_whole_array() -> None:
    literal = constant("s32[4]", "7")
    assert (literal.extent, literal.array.tolist()) == ("first only", [7])


def test_tuples() -> None:
    literal = constant("(f32[], (s32[2], pred[]))", "( 1, ( {2, 3}, true ) )")
    assert literal.extent is None
    assert [str(leaf.shape) for leaf in literal.leaves] == ["f32[]", "s32[2]", "pred[]"]
    assert [leaf.array.tolist() for leaf in literal.leaves] == [1.0, [2, 3], True]
    assert [leaf.text for leaf in literal.leaves] == ["1", "{2, 3}", "true"]
    assert len({literal, *literal.leaves}) == 4
    assert not literal.is_elided
    with pytest.raises(TypeError, match="leaves"):
        literal.array
    assert constant("(f32[2], s32[])", "( {...}, 1 )").is_elided


def test_faults_are_found_when_asked() -> None:
    literal = constant("s32[2]", "{1, x}")
    assert repr(literal) == "<Literal s32[2] {1, x}>"
    with pytest.raises(hlofast.ParseError) as caught:
        literal.array
    assert (caught.value.line, caught.value.kind) == (4, "invalid-literal")


def test_shapes_that_share_parts_are_cut() -> None:
    # Lines repeat the shape of others; their texts together would be far longer than the module.
    large = [f"  t{k + 1} = tuple(t{k}, t{k})" for k in range(14)]
    many = [f"  u{k} = tuple(t14, {', '.join(['t0'] * k)})" for k in range(1, 100)]
    lines = ["HloModule m", "ENTRY e {", "  t0 = f32[] parameter(0)", *large, *many, "}"]
    module = hlofast.loads("\n".join(lines))
    assert str(module["t2"].shape) == "((f32[], f32[]), (f32[], f32[]))"
    assert str(module["u5"].shape).endswith(", f32[], f32[], f32[], /*index=5*/f32[])")
    assert module.where(shape="(f32[], f32[])").tolist() == [1]
    whole = sum(len(str(shape)) for shape in module.shapes)
    table = sum(len(text) for text in {row["shape"] for row in module.table().to_pylist()})
    assert table < 3 << 20 < whole
