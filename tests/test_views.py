"""Views of modules: comparing, hashing, pickling, arguments out of range."""

import copy
import gzip
import pickle

import numpy
import pytest

import hlofast
from hlofast import _core

TEXT = """\
HloModule step, num_partitions=4

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT add = f32[] add(a, b), metadata={op_name="sum" source_file="a.py" source_line=-3}
}

ENTRY main {
  p = f32[8]{0} parameter(0), metadata={op_name="x" source_file="a.py" source_line=7}
  zero = f32[] constant(0)
  ROOT out = f32[] reduce(p, zero), dimensions={0}, to_apply=sum
}
"""
OTHER = TEXT.replace("constant(0)", "constant(1)")


@pytest.mark.parametrize(
    "restore", [_core._restore_instruction, _core._restore_computation, _core._restore_shape]
)
def test_numbers_out_of_range_are_refused(restore) -> None:
    module = hlofast.loads(TEXT)
    assert restore(module, 0) is not None
    for number in (100, 2**32 - 1):
        with pytest.raises(ValueError, match="not"):
            restore(module, number)


def test_attributes_are_unhashable_as_dictionaries_are() -> None:
    attributes = hlofast.loads(TEXT)["out"].attributes
    assert attributes == hlofast.loads(OTHER)["out"].attributes
    assert attributes == dict(attributes)
    with pytest.raises(TypeError, match="unhashable"):
        hash(attributes)


def test_views_of_another_module_are_refused() -> None:
    module, same, other = hlofast.loads(TEXT), hlofast.loads(TEXT), hlofast.loads(OTHER)
    with pytest.raises(ValueError, match="another module"):
        module.where(computation=other.entry)
    with pytest.raises(ValueError, match="another module"):
        module.where(computation=[module.entry, other.entry])
    with pytest.raises(ValueError, match="not in the sequence"):
        module.instructions.index(other["zero"])
    with pytest.raises(ValueError, match="not in the sequence"):
        module.computations.index(other.entry)
    # A module read from the same text is the same.
    assert len(module.where(computation=same.entry)) == 3
    assert module.instructions.index(same["zero"]) == module["zero"].row
    assert module.computations.index(same.entry) == module.entry.index


def test_equality_is_remembered_but_right() -> None:
    module, same, other = hlofast.loads(TEXT), hlofast.loads(TEXT), hlofast.loads(OTHER)
    for _ in range(2):
        assert module == same
        assert same == module
        assert module != other
        assert other != same
    del same
    # What takes the place of the deleted module in memory is not taken for it.
    for _ in range(50):
        assert module != hlofast.loads(OTHER)
        assert module == hlofast.loads(TEXT)


def test_pickles_keep_how_and_where_it_was_read() -> None:
    broken = TEXT.replace("constant(0)", "constant(0), dimensions={0,")
    text = (
        "a log\n" + broken + "\n\nHloModule last\n\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
    )
    parts = hlofast.find_modules(text, path="log.txt", on_error="collect")
    assert [part.module is not None for part in parts] == [True, True]
    first, last = (part.module for part in parts)
    assert first is not None
    assert last is not None
    for module in (first, last):
        again = pickle.loads(pickle.dumps(module))
        assert again == module
        assert again.path == "log.txt"
        assert [str(e) for e in again.errors] == [str(e) for e in module.errors]
        assert [e.offset for e in again.errors] == [e.offset for e in module.errors]
        assert [i.text_line for i in again] == [i.text_line for i in module]
        assert [c.text_line for c in again.computations] == [
            c.text_line for c in module.computations
        ]
        assert pickle.dumps(again) == pickle.dumps(module)
    assert first.errors
    assert last["x"].text_line == text[: text.index("ROOT x")].count("\n") + 1
    assert copy.copy(last) is last


def test_pickles_keep_places_behind_log_prefixes() -> None:
    text = "".join(f"I0101 10:00:00.000000 7 dump.cc:1] {line}\n" for line in TEXT.splitlines())
    module = hlofast.loads("before\n" + text.replace("step", "step, is_scheduled=maybe"))
    again = pickle.loads(pickle.dumps(module))
    assert again["zero"].text_line == module["zero"].text_line
    faults = []
    for each in (module, again):
        with pytest.raises(hlofast.ParseError) as caught:
            each.header["is_scheduled"]
        faults.append((caught.value.line, caught.value.column, caught.value.offset))
    assert faults[0] == faults[1]


def test_pickles_keep_strictness() -> None:
    # Only read as a module by XLA's rules: nothing else announces one.
    alone = "ROOT x = f32[] parameter(0)"
    for strict in (True, "newest", None):
        module = hlofast.loads(alone, strict=strict)
        again = pickle.loads(pickle.dumps(module))
        assert (again, again.names()) == (module, module.names())
        options = module.__reduce__()[1][1]
        assert options["strict"] == (strict or False)
    packed = hlofast.loads(gzip.compress(TEXT.encode()), path="a.txt.gz", on_error="collect")
    again = pickle.loads(pickle.dumps(packed))
    assert (again, again.path, again.errors) == (packed, "a.txt.gz", ())
    assert again.__reduce__()[1][1]["on_error"] == "collect"


def test_lines_below_one_are_unknown() -> None:
    module = hlofast.loads(TEXT)
    add, p = module["add"], module["p"]
    assert module.columns.source_line[[add.row, p.row]].tolist() == [0, 7]
    assert add.source is not None
    assert add.source.line == 0


@pytest.mark.parametrize("key", ["num_partitions", "replica_count"])
def test_counts_that_cannot_be_read_are_not_one(key: str) -> None:
    assert (
        getattr(hlofast.loads("HloModule m\n\nENTRY e {\n ROOT x = f32[] parameter(0)\n}"), key)
        == 1
    )
    text = f"HloModule m, {key}={2**70}\n\nENTRY e {{\n ROOT x = f32[] parameter(0)\n}}\n"
    module = hlofast.loads(text)
    for ask in (lambda: getattr(module, key), module.summary):
        with pytest.raises(hlofast.ParseError, match=f"{key} is not a 64-bit integer") as caught:
            ask()
        assert caught.value.offset == text.index(str(2**70))


@pytest.mark.parametrize("number", [2**31, 2**40])
def test_large_parameter_numbers(number: int) -> None:
    module = hlofast.loads(f"HloModule m\n\nENTRY e {{\n ROOT x = f32[] parameter({number})\n}}\n")
    assert module["x"].parameter_number == number
    assert module.columns.parameter_number.tolist() == [number]


def test_offsets_of_implicit_rows_lie_behind_the_text() -> None:
    module = hlofast.loads(
        "HloModule m\n\nENTRY e {\n  p = f32[4]{0} parameter(0)\n"
        "  s = ((f32[4]{0}), f32[4]{0}) copy-start(p)\n"
        "  a = ((f32[4]{0}), f32[8]{0}) all-gather-start(p), dimensions={0}\n"
        "  t = ((f32[4]{0}), f32[4]{0}) all-to-all-start(p), dimensions={0}\n"
        "  ROOT d = f32[4]{0} all-to-all-done(t)\n}\n"
    )
    columns = module.columns
    implicit = columns.flags & 2 != 0
    assert implicit.any()
    for name in ("name_starts", "tail_starts", "tail_ends"):
        assert ((columns[name] >= module.text_bytes) == implicit).all()
    assert "text_bytes" in columns.describe()["name_starts"]


def test_any_number_of_threads_is_bounded() -> None:
    module = hlofast.loads(TEXT)
    for threads in (0, 1, 10**9):
        assert hlofast.loads(TEXT, threads=threads) == module


def test_same_program() -> None:
    module = hlofast.loads(TEXT)
    for form in ("long", "short"):
        printed = hlofast.loads(module.to_text(form=form))
        assert (printed == module) == (printed.text == module.text)
        assert printed.same_program(module)
        assert module.same_program(printed)
    assert hlofast.loads(module.to_text(form="long")) != module
    assert not module.same_program(hlofast.loads(OTHER))
    moved = hlofast.loads(TEXT.replace("source_line=7", "source_line=8"))
    assert not module.same_program(moved)
    assert module.same_program(moved, metadata=False)
    laid = TEXT.replace("f32[8]{0}", "f32[8,2]{1,0}")
    row_major, column_major = (
        hlofast.loads(laid.replace("{1,0}", order)) for order in ("{1,0}", "{0,1}")
    )
    assert not row_major.same_program(column_major)
    assert row_major.same_program(column_major, layouts=False)
    with pytest.raises(TypeError):
        module.same_program(TEXT)  # type: ignore[arg-type]


def test_columns_have_one_dimension() -> None:
    assert hlofast.Column(numpy.arange(3)).tolist() == [0, 1, 2]
    for buffer in (numpy.zeros((2, 2)), numpy.zeros((1, 3, 1), dtype=numpy.uint8)):
        with pytest.raises(ValueError, match="one dimension"):
            hlofast.Column(buffer)
    for other in (numpy.array(3), "text"):
        with pytest.raises(TypeError, match="numbers"):
            hlofast.Column(other)
