"""Columns: NumPy arrays over the module's memory."""

import gc
import weakref
from pathlib import Path

import numpy
import pytest

import hlofast
from test_module import TEXT

FOLDED = """\
HloModule folded
ENTRY e {
  p = (f32[2], (s32[3], pred[])) parameter(0)
  a = f32[2] get-tuple-element(p), index=0
  ROOT n = f32[2] add(a, f32[2] negate(a))
}
"""


@pytest.fixture(params=["small", "folded", "train_step"])
def module(request: pytest.FixtureRequest, train_step: Path) -> hlofast.Module:
    if request.param == "train_step":
        return hlofast.load(train_step)
    return hlofast.loads(TEXT if request.param == "small" else FOLDED)


def test_columns_agree_with_views(module: hlofast.Module) -> None:
    columns = module.columns
    rows = list(module)
    assert [hlofast.opcodes[code] for code in columns.opcode] == [i.opcode for i in rows]
    assert columns.shape.tolist() == [i.shape.id for i in rows]
    assert columns.computation.tolist() == [i.computation.index for i in rows]
    assert columns.shape_bytes.tolist() == [
        -1 if i.shape.bytes is None else i.shape.bytes for i in rows
    ]
    assert columns.rank.tolist() == [-1 if i.shape.rank is None else i.shape.rank for i in rows]
    assert columns.elements.tolist() == [
        -1 if i.shape.element_count is None else i.shape.element_count for i in rows
    ]
    numbers = [-1 if i.parameter_number is None else i.parameter_number for i in rows]
    assert columns.parameter_number.tolist() == numbers
    assert (columns.flags & 1).astype(bool).tolist() == [i.is_root for i in rows]
    for name, code, row in zip(module.names(), columns.element_type, rows):
        expected = {254: None, 255: None}.get(code, row.shape.element_type)
        assert row.shape.element_type == expected, name


def test_lists_agree_with_views(module: hlofast.Module) -> None:
    columns = module.columns
    for items, offsets, of in (
        (columns.operands, columns.operand_offsets, "operands"),
        (columns.users, columns.user_offsets, "users"),
    ):
        assert len(offsets) == len(module) + 1
        for row, instruction in enumerate(module):
            expected = [other.row for other in getattr(instruction, of)]
            assert items[offsets[row] : offsets[row + 1]].tolist() == expected
    leaves = [i.shape.leaf_count for i in module]
    assert numpy.diff(columns.leaf_offsets).tolist() == leaves
    calls = [(i.row, c.index, role) for i in module for role, c in i.calls]
    roles = [hlofast.call_roles[role] for role in columns.call_role]
    assert list(zip(columns.call_row, columns.call_computation, roles)) == calls


def test_metadata_columns_agree_with_views(module: hlofast.Module) -> None:
    columns = module.columns
    for instruction, name, file, line in zip(
        module, columns.op_name, columns.source_file, columns.source_line
    ):
        metadata, source = instruction.metadata, instruction.source
        assert (module.op_names[name] if name >= 0 else None) == (metadata and metadata.op_name)
        assert (module.source_files[file] if file >= 0 else None) == (source and source.file)
        if source is not None:
            assert line == source.line
    assert len(set(module.op_names)) == len(module.op_names)
    assert len(set(module.source_files)) == len(module.source_files)


def test_op_names_hidden_in_strings_are_not_taken() -> None:
    fake = r"metadata={op_name=\"fake\"}"
    text = (
        "HloModule m\nENTRY e {\n"
        f'  a = f32[] custom-call(), custom_call_target="x, {fake}", metadata={{op_name="a"}}\n'
        '  b = f32[] custom-call(), custom_call_target="t", backend_config={"x":{"metadata={op_name":1}}\n'
        "  ROOT c = f32[] custom-call(), custom_call_target='metadata={op_name=\"c\"}'\n}\n"
    )
    module = hlofast.loads(text)
    names = [module.op_names[i] if i >= 0 else None for i in module.columns.op_name]
    assert (
        names == [i.metadata.op_name if i.metadata else None for i in module] == ["a", None, None]
    )


def test_arrays_are_views_of_rust_memory(module: hlofast.Module) -> None:
    for name in module.columns:
        array = module.columns[name]
        assert isinstance(array, numpy.ndarray), name
        assert not array.flags.writeable and not array.flags.owndata
        with pytest.raises(ValueError):
            array.flags.writeable = True
        assert array is module.columns[name] is getattr(module.columns, name)
        buffer = module.columns.buffer(name)
        assert buffer.tolist() == array.tolist()
        view = memoryview(buffer)
        assert view.readonly and view.shape == array.shape and view.itemsize == array.itemsize


def test_arrays_share_memory() -> None:
    columns = hlofast.loads(TEXT).columns
    first, second = (numpy.asarray(columns.buffer("operands")) for _ in range(2))
    assert numpy.shares_memory(first, second)


def test_arrays_outlive_the_module() -> None:
    module = hlofast.loads(TEXT)
    expected = {name: module.columns[name].tolist() for name in module.columns}
    arrays = {name: module.columns[name] for name in module.columns}
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    # Memory that was freed would be reused by now.
    others = [hlofast.loads(TEXT.replace("step", f"step{i}")).columns.users for i in range(50)]
    assert {name: array.tolist() for name, array in arrays.items()} == expected
    assert len(others) == 50


def test_columns_of_a_computation(module: hlofast.Module) -> None:
    flat = {"operands", "users", "call_row", "call_computation", "call_role"}
    flat |= {"control_row", "control_predecessor"}
    for computation in module.computations:
        start, end = computation[0].row, computation[-1].row + 1
        for name in module.columns:
            whole, part = module.columns[name], computation.columns[name]
            if name in flat:
                assert part.tolist() == whole.tolist()
            else:
                assert part.tolist() == whole[start : end + name.endswith("_offsets")].tolist()


def test_columns_are_a_mapping_and_frozen(module: hlofast.Module) -> None:
    columns = module.columns
    assert list(columns) == list(columns.keys()) == list(columns.describe())
    assert "opcode" in columns and "nothing" not in columns and len(columns) == len(list(columns))
    assert set(columns.keys()) <= set(dir(columns))
    with pytest.raises(KeyError):
        columns["nothing"]
    with pytest.raises(AttributeError):
        columns.nothing
    with pytest.raises(AttributeError):
        columns.opcode = 3  # type: ignore[misc]
    assert module.columns is columns
