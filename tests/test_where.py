"""`module.where(...)` against the same conditions written as Python loops."""

import re
from pathlib import Path

import numpy
import pytest

import hlofast
from test_module import TEXT


@pytest.fixture
def module(train_step: Path) -> hlofast.Module:
    return hlofast.load(train_step)


def rows(module: hlofast.Module, condition) -> list[int]:
    return [i.row for i in module if condition(i)]


def test_no_condition_gives_every_row(module: hlofast.Module) -> None:
    selected = module.where()
    assert isinstance(selected, numpy.ndarray)
    assert selected.dtype == numpy.uint32
    assert selected.tolist() == list(range(len(module)))


def test_opcodes_and_computations(module: hlofast.Module) -> None:
    assert (
        rows(module, lambda i: i.opcode == "fusion") == module.where(opcode="fusion").tolist() != []
    )
    several = module.where(opcode=["add", "multiply"])
    assert several.tolist() == rows(module, lambda i: i.opcode in ("add", "multiply")) != []
    entry = module.entry
    for wanted in (entry, entry.name, [entry.name, entry]):
        assert module.where(computation=wanted).tolist() == [i.row for i in entry]
    with pytest.raises(KeyError):
        module.where(computation="no such computation")


def test_unknown_opcodes_are_found_as_written() -> None:
    module = hlofast.loads(
        "HloModule m\nENTRY e {\n  a = f32[] parameter(0)\n  ROOT b = f32[] brand-new(a)\n}\n"
    )
    assert module.where(opcode="brand-new").tolist() == [1]
    with pytest.raises(ValueError, match="is not a known opcode"):
        module.where(opcode="unknown")


def test_what_no_row_can_have_is_an_error_that_names_near_words(module: hlofast.Module) -> None:
    message = r"'?\"?all-gathr\"?'? is not a known opcode; near: .*all-gather"
    with pytest.raises(ValueError, match=message):
        module.where(opcode=["add", "all-gathr"])
    with pytest.raises(ValueError, match="is not a shape"):
        module.where(shape="notashape")
    with pytest.raises(ValueError, match=r"not a known element type; near: .*bf16"):
        module.where(shape="bfl16[8]")
    assert module.where(opcode=["dot-start", "scaled-dot"]).tolist() == []
    assert module.where(min_bytes=10**30).tolist() == []
    everything = module.where(min_bytes=-(10**30), max_bytes=10**30)
    assert everything.tolist() == module.where(min_bytes=0).tolist()


def test_texts(module: hlofast.Module) -> None:
    def op_name(i) -> str:
        return (i.metadata and i.metadata.op_name) or ""

    word = "dot_general"
    assert module.where(op_name=word).tolist() == rows(module, lambda i: word in op_name(i)) != []
    pattern = re.compile(r"jvp\(.*\)/dot_general$")
    assert module.where(op_name=pattern).tolist() == rows(
        module, lambda i: pattern.search(op_name(i))
    )
    part = module[3].name[:4]
    assert module.where(name=part).tolist() == rows(module, lambda i: part in i.name)
    with pytest.raises(TypeError):
        module.where(op_name=3)


def test_sources() -> None:
    module = hlofast.loads(TEXT)
    assert module.where(source_file="train").tolist() == [module.computations["sum"]["add.1"].row]
    assert module.where(source_line=7).tolist() == [module.entry["add.1"].row]
    assert module.where(source_file="a.py", source_line=8).tolist() == []


def test_shapes(module: hlofast.Module) -> None:
    shape = module.entry.parameters[0].shape
    assert module.where(shape=shape).tolist() == rows(module, lambda i: i.shape == shape) != []
    assert module.where(shape=str(shape)).tolist() == module.where(shape=shape).tolist()
    bare = str(shape).partition("{")[0]
    selected = module.where(shape=bare)
    assert selected.tolist() == rows(module, lambda i: str(i.shape).partition("{")[0] == bare)
    assert module.where(element_type="s32").tolist() == rows(
        module, lambda i: i.shape.element_type == "s32"
    )
    with pytest.raises(ValueError, match="f33"):
        module.where(element_type="f33")


def test_bytes_and_flags(module: hlofast.Module) -> None:
    sizes = module.columns.shape_bytes
    middle = int(numpy.median(sizes))
    assert module.where(min_bytes=middle).tolist() == numpy.flatnonzero(sizes >= middle).tolist()
    selected = module.where(min_bytes=1, max_bytes=middle)
    assert selected.tolist() == numpy.flatnonzero((sizes >= 1) & (sizes <= middle)).tolist()
    assert module.where(is_root=True).tolist() == rows(module, lambda i: i.is_root)
    assert module.where(is_implicit=False).tolist() == rows(module, lambda i: not i.is_implicit)


def test_all_conditions_must_hold(module: hlofast.Module) -> None:
    selected = module.where(opcode="parameter", computation=module.entry, min_bytes=100)
    assert selected.tolist() == rows(
        module,
        lambda i: (
            i.opcode == "parameter" and i.computation == module.entry and i.shape.bytes >= 100
        ),
    )
    assert len(selected) > 0
