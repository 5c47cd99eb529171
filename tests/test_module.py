"""Modules, computations, instructions and their sequences, through the public interface."""

import copy
import inspect
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import hlofast

TEXT = """\
HloModule step, is_scheduled=true, num_partitions=4, replica_count=2, entry_computation_layout={(f32[8,4]{1,0})->(f32[8,4]{1,0}, f32[])}

FileNames
1 "/code/train.py"

FunctionNames
1 "main"
2 "loss"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10 end_line=10 column=1 end_column=9}
2 {file_name_id=1 function_name_id=2 line=20 end_line=21 column=3 end_column=5}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%sum (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  %b.1 = f32[] parameter(1)
  ROOT %add.1 = f32[] add(f32[] %a.1, f32[] %b.1), metadata={op_name="jit(f)/sum" stack_frame_id=2}
}

ENTRY %main (p.1: f32[8,4]) -> (f32[8,4], f32[]) {
  %p.1 = f32[8,4]{1,0} parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
  %zero = f32[] constant(0)
  %add.1 = f32[8,4]{1,0} add(f32[8,4]{1,0} %p.1, f32[8,4]{1,0} %p.1), metadata={op_name="jit(f)/a" source_file="a.py" source_line=7}
  %reduce.1 = f32[] reduce(f32[8,4]{1,0} %add.1, f32[] %zero), dimensions={0,1}, to_apply=%sum
  %all-reduce.1 = f32[8,4]{1,0} all-reduce(f32[8,4]{1,0} %add.1), replica_groups=[2,2]<=[4], to_apply=%sum, control-predecessors={%reduce.1}, backend_config={"a":[1,2]}
  ROOT %out = (f32[8,4]{1,0}, f32[]) tuple(f32[8,4]{1,0} %all-reduce.1, f32[] %reduce.1), frontend_attributes={k="v<1>"}
}
"""


@pytest.fixture
def module() -> hlofast.Module:
    return hlofast.loads(TEXT)


def test_module_facts(module: hlofast.Module) -> None:
    assert module.name == "step"
    assert (module.num_partitions, module.replica_count, module.is_scheduled) == (4, 2, True)
    assert module.entry.name == "main"
    assert module.instruction_count == len(module) == len(list(module)) == 9
    assert module.errors == ()
    assert module.text == TEXT
    assert module.text_bytes == len(TEXT)
    assert module.nbytes > 0
    assert repr(module) == "<Module step: 9 instructions in 2 computations>"


def test_sequences(module: hlofast.Module) -> None:
    computations = module.computations
    assert [c.name for c in computations] == ["sum", "main"] == computations.names()
    assert computations["sum"] == computations[0] == computations[-2]
    assert "sum" in computations
    assert module.entry in computations
    assert "x" not in computations
    assert [c.name for c in reversed(computations)] == ["main", "sum"]
    assert isinstance(computations, Sequence)
    instructions = module.entry.instructions
    assert [i.name for i in instructions[1:3]] == ["zero", "add.1"]
    assert [i.name for i in instructions[::-2]] == ["out", "reduce.1", "zero"]
    assert instructions["out"].index == 5
    assert instructions.index("zero") == instructions.index(instructions[1]) == 1
    assert instructions.count(instructions[1]) == 1
    assert list(module.entry) == list(instructions)
    assert next(reversed(module.entry)).name == "out"
    with pytest.raises(IndexError):
        instructions[6]
    with pytest.raises(TypeError):
        instructions[1.5]
    with pytest.raises(KeyError):
        instructions["x"]


def test_a_name_in_two_computations_is_ambiguous(module: hlofast.Module) -> None:
    assert module["zero"].computation == module.entry
    with pytest.raises(KeyError, match=r"add\.1.*sum, main"):
        module["add.1"]
    assert "add.1" in module
    assert module.computations["sum"]["add.1"] != module.entry["add.1"]


def test_large_computations_find_names() -> None:
    lines = "\n".join(f"  a.{i} = f32[] constant({i})" for i in range(300))
    module = hlofast.loads(
        f"HloModule big\nENTRY e {{\n{lines}\n  ROOT r = f32[] negate(a.7)\n}}\n"
    )
    assert module["a.250"].row == module.entry["a.250"].index == 250
    assert "a.300" not in module
    assert [user.name for user in module["a.7"].users] == ["r"]


def test_instruction_facts(module: hlofast.Module) -> None:
    entry = module.entry
    add, reduce, collective = entry["add.1"], entry["reduce.1"], entry["all-reduce.1"]
    assert (add.opcode, add.row, add.index, add.is_root, add.is_implicit) == (
        "add",
        5,
        2,
        False,
        False,
    )
    assert [o.name for o in add.operands] == ["p.1", "p.1"]
    assert [u.name for u in entry["p.1"].users] == ["add.1"]
    assert [u.name for u in add.users] == ["reduce.1", "all-reduce.1"]
    assert reduce.calls == (("to_apply", module.computations["sum"]),)
    assert reduce.called_computations.names() == ["sum"]
    assert [c.name for c in module.computations["sum"].callers] == ["reduce.1", "all-reduce.1"]
    assert [i.name for i in collective.control_predecessors] == ["reduce.1"]
    assert [i.name for i in reduce.control_successors] == ["all-reduce.1"]
    assert entry["p.1"].parameter_number == 0
    assert add.parameter_number is None
    assert entry["zero"].literal.text == "0"
    assert add.literal is None
    assert entry["out"].text.startswith("ROOT %out = (f32[8,4]")
    assert entry["zero"].text == "%zero = f32[] constant(0)"
    assert entry["zero"].text_line == TEXT[: TEXT.index("%zero")].count("\n") + 1
    assert repr(add) == "<Instruction add.1: f32[8,4]{1,0} add>"


def test_attributes(module: hlofast.Module) -> None:
    reduce, collective = module["reduce.1"], module["all-reduce.1"]
    assert isinstance(reduce.attributes, Mapping)
    assert list(reduce.attributes) == ["dimensions", "to_apply"]
    assert reduce.attributes["dimensions"] == (0, 1)
    assert reduce.attributes["to_apply"] == module.computations["sum"]
    assert reduce.attributes.raw("dimensions") == "{0,1}"
    assert reduce.attributes.get("nothing") is None
    assert "dimensions" in reduce.attributes
    assert 3 not in reduce.attributes
    with pytest.raises(KeyError):
        reduce.attributes["nothing"]
    groups = collective.attributes["replica_groups"]
    assert (len(groups), groups.group_size, groups.kind) == (2, 2, "iota")
    assert groups[1] == groups[-1] == (2, 3)
    assert groups.expand() == ((0, 1), (2, 3))
    assert collective.backend_config == '{"a":[1,2]}'
    assert collective.backend_config_json == {"a": [1, 2]}
    assert module["out"].frontend_attributes == {"k": "v<1>"}
    assert reduce.frontend_attributes == {}
    sharding = module["p.1"].sharding
    assert sharding is not None
    assert reduce.sharding is None
    assert (sharding.kind, sharding.tile_dimensions, sharding.devices()) == (
        "tiled",
        (2, 1),
        (0, 1, 2, 3),
    )


def test_metadata_and_stack_frames(module: hlofast.Module) -> None:
    written = module.entry["add.1"]
    assert written.metadata is not None
    assert written.metadata.op_name == "jit(f)/a"
    assert str(written.source) == "a.py:7"
    framed = module.computations["sum"].root
    assert framed is not None
    assert framed.metadata is not None
    assert str(framed.source) == "/code/train.py:20"
    frames = framed.metadata.stack_frames
    assert [(f.function, f.line, f.end_line) for f in frames] == [
        ("loss", 20, 21),
        ("main", 10, 10),
    ]
    assert module["zero"].metadata is None
    assert module["zero"].source is None


def test_header(module: hlofast.Module) -> None:
    assert module.header["num_partitions"] == 4
    assert module.header["is_scheduled"] is True
    assert module.header["entry_computation_layout"]["parameters"] == ("f32[8,4]{1,0}",)


def test_shapes(module: hlofast.Module) -> None:
    shape = module["out"].shape
    assert str(shape) == "(f32[8,4]{1,0}, f32[])"
    assert (len(shape), shape.is_tuple, shape.bytes, shape.leaf_count) == (2, True, 132, 2)
    assert shape[0] == module["p.1"].shape == shape[-2]
    assert (shape[0].element_type, shape[0].dimensions, shape[0].rank) == ("f32", (8, 4), 2)
    assert shape[0].layout is not None
    assert shape[0].layout.minor_to_major == (1, 0)
    assert shape[0] == hlofast.loads(TEXT.replace("step", "other"))["p.1"].shape
    assert len({shape[0], module["p.1"].shape}) == 1


def test_layouts_and_dynamic_dimensions() -> None:
    text = "f32[<=8,?,3]{2,1,0:T(8,128)(2,1)E(4)S(1)}"
    shape = hlofast.loads(f"HloModule m\nENTRY e {{\n  ROOT p = {text} parameter(0)\n}}\n")[
        "p"
    ].shape
    assert str(shape) == text
    assert shape.dimensions == (8, None, 3)
    assert shape.dynamic_dimensions == (True, True, False)
    layout = shape.layout
    assert layout is not None
    assert (layout.tiles, layout.element_bits, layout.memory_space) == (((8, 128), (2, 1)), 4, 1)


def test_orders(module: hlofast.Module) -> None:
    assert module.post_order().names() == ["sum", "main"]
    order = module.entry.post_order().names()
    assert sorted(order) == sorted(module.entry.names())
    assert all(order.index(o.name) < order.index(i.name) for i in module.entry for o in i.operands)


def test_bulk_lists_agree_with_walking(module: hlofast.Module) -> None:
    assert module.names() == [i.name for i in module]
    assert module.opcodes() == [i.opcode for i in module]
    assert module.operand_names() == [[o.name for o in i.operands] for i in module]
    entry = module.entry
    assert entry.operand_names() == [[o.name for o in i.operands] for i in entry]


def test_views_are_equal_by_module_and_id(module: hlofast.Module) -> None:
    other = hlofast.loads(TEXT)
    assert module == other
    assert hash(module) == hash(other)
    assert module["zero"] == other["zero"]
    assert len({module["zero"], other["zero"]}) == 1
    assert module.entry == other.entry
    assert len({module.entry, other.entry}) == 1
    changed = hlofast.loads(TEXT.replace("constant(0)", "constant(1)"))
    assert module != changed
    assert module["zero"] != changed["zero"]
    assert module.entry != changed.entry


def test_views_cannot_be_changed(module: hlofast.Module) -> None:
    for view in (
        module,
        module.entry,
        module["zero"],
        module["zero"].shape,
        module["zero"].attributes,
    ):
        with pytest.raises((AttributeError, TypeError)):
            view.name = "x"  # type: ignore[union-attr]


def test_pickle_and_copy(module: hlofast.Module) -> None:
    again = pickle.loads(pickle.dumps(module))
    assert again == module
    assert again.names() == module.names()
    for view in (module["zero"], module.entry, module["out"].shape):
        assert pickle.loads(pickle.dumps(view)) == view
    views = (
        module.header,
        module.entry["add.1"].attributes,
        module["p.1"].shape.layout,
        module.entry["add.1"].metadata,
        module.computations,
        module.computations[::-1],
        module.instructions,
        module.entry.instructions,
        module.entry.instructions[1:1],
        module["out"].operands,
        module["zero"].users,
    )
    for view in views:
        for other in (pickle.loads(pickle.dumps(view)), copy.copy(view), copy.deepcopy(view)):
            assert other == view
            assert type(other) is type(view)
    assert pickle.loads(pickle.dumps(module["out"].operands)).names() == [
        "all-reduce.1",
        "reduce.1",
    ]
    assert copy.copy(module) is module
    assert copy.deepcopy(module) is module
    assert copy.deepcopy(module["zero"]) == module["zero"]


def test_html_is_escaped(module: hlofast.Module) -> None:
    views = (
        module,
        module.computations,
        module.entry,
        module["out"].attributes,
        module["out"].shape,
    )
    for view in views:
        html = view._repr_html_()
        assert html.startswith("<")
        assert "v<1>" not in html
    assert "v&lt;1&gt;" in module["out"].attributes._repr_html_()


def test_the_caption_tells_the_instructions_left_out() -> None:
    lines = "".join(f"  a{number} = f32[] parameter({number})\n" for number in range(100))
    module = hlofast.loads(f"HloModule m\n\nENTRY e {{\n{lines}  ROOT t = () tuple()\n}}\n")
    assert "first 30 of 101 instructions" in module.instructions._repr_html_()


def test_sources() -> None:
    data = TEXT.encode()
    modules = [hlofast.loads(source) for source in (TEXT, data, bytearray(data), memoryview(data))]
    assert all(module == modules[0] for module in modules)
    mutable = bytearray(data)
    module = hlofast.loads(mutable)
    mutable[:] = b"x" * len(mutable)
    assert module.text == TEXT
    with pytest.raises(TypeError):
        hlofast.loads(3)  # type: ignore[arg-type]


def test_errors() -> None:
    text = "HloModule x\nENTRY e {\n  a = f32[2] add(%b, %c)\n}\n"
    with pytest.raises(hlofast.ParseError) as caught:
        hlofast.loads(text, path="x.txt")
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.path, error.line, error.column, error.kind) == (
        "x.txt",
        3,
        19,
        "unknown-instruction",
    )
    assert text[error.offset : error.end_offset] == "b"
    assert str(error).startswith("x.txt:3:19: ")
    assert "^" in error.excerpt
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.line == 3


def test_errors_can_be_collected() -> None:
    text = "HloModule x\nENTRY e {\n  a = f32[2] parameter(0)\n  b = f32[2] add(a, %missing)\n  ROOT c = f32[2] negate(a)\n}\n"
    module = hlofast.loads(text, on_error="collect")
    assert [error.line for error in module.errors] == [4]
    assert "c" in module
    assert module["c"].is_root


def test_unreadable_files_and_bad_arguments(tmp_path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        hlofast.load(tmp_path / "absent.txt")
    assert caught.value.filename == str(tmp_path / "absent.txt")
    with pytest.raises(ValueError, match="strict"):
        hlofast.loads(TEXT, strict="very")
    with pytest.raises(ValueError, match="on_error"):
        hlofast.loads(TEXT, on_error="ignore")


def test_several_modules_in_one_file(tmp_path) -> None:
    path = tmp_path / "two.txt"
    path.write_text(TEXT + "\n" + TEXT.replace("HloModule step", "HloModule other"))
    with pytest.raises(hlofast.ParseError) as caught:
        hlofast.load(path)
    assert caught.value.kind == "several-modules"
    assert hlofast.load(path, module="other").name == "other"
    assert hlofast.load(path, module=0).name == "step"
    with pytest.raises(hlofast.ParseError) as caught:
        hlofast.load(path, module="third")
    assert caught.value.kind == "no-module"
    parts = hlofast.find_modules(path.read_text())
    assert [f.module.name for f in parts if f.module] == ["step", "other"]
    assert [f.line for f in parts] == [1, TEXT.count("\n") + 2]
    assert parts[1].module is not None
    assert parts[1].module["zero"].text_line == parts[1].line + TEXT[: TEXT.index("%zero")].count(
        "\n"
    )


def test_every_way_to_a_module_makes_the_same_class(module: hlofast.Module, tmp_path: Path) -> None:
    path = tmp_path / "step.txt"
    path.write_text(TEXT)
    (part,) = hlofast.find_modules(TEXT)
    ways = (
        hlofast.load(path),
        hlofast.loads(TEXT),
        part.module,
        module.entry.module,
        module[0].module,
        pickle.loads(pickle.dumps(module)),
        pickle.loads(pickle.dumps(module[0])).module,
        copy.copy(module),
    )
    for made in ways:
        assert type(made) is hlofast.Module
        assert made.same_program(module)
    assert {hash(made) for made in ways if made == module} == {hash(module)}
    with pytest.raises(TypeError):
        hlofast.Module(TEXT)  # type: ignore[arg-type]


def test_every_analysis_says_what_it_does() -> None:
    analyses = {name: value for name, value in vars(hlofast.Module).items() if name[0] != "_"}
    assert {"cost", "time", "memory", "remat", "plot"} <= analyses.keys()
    for value in analyses.values():
        assert value.__doc__
        if not isinstance(value, property):
            signature = inspect.signature(value)
            assert signature.return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize(
    "text",
    [
        "ENTRY e {\n p = f32[4]{0} parameter(0)\n ROOT n = f32[4]{0} custom-call(p), "
        'custom_call_target="x", backend_config={\n"a":1\n}\n}\n',
        "ENTRY e {\n p = f32[4]{0} parameter(0)\n /* a comment\n} with a brace */\n"
        " ROOT n = f32[4]{0} negate(p)\n}\n",
        "ENTRY e {\n p = f32[4]{0} parameter(0)\n // a comment\n ROOT n = f32[4]{0} negate(p) /*\n}\n*/\n}\n",
    ],
)
def test_a_brace_at_the_start_of_a_line_does_not_end_a_text_without_header(text):
    for options in ({}, {"strict": True}, {"on_error": "collect"}):
        module = hlofast.loads(text, **options)
        assert len(module.instructions) == 2
        assert not module.errors


def test_layouts_pickle_whole() -> None:
    text = "f32[8,128]{1,0:T(8,128)(2,1)L(2)#(u8)*(u16)E(4)S(3)SC(0:4)M(8)}"
    module = hlofast.loads(f"HloModule m\nENTRY e {{\n  ROOT p = {text} parameter(0)\n}}\n")
    layout = module["p"].shape.layout
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout
    assert str(again) == str(layout) == text.removeprefix("f32[8,128]")


def test_pickles_of_views_name_what_is_there(module: hlofast.Module) -> None:
    reduced: Any = module.entry.instructions.__reduce__()
    restore, (_, rows) = reduced
    assert restore(module, rows) == module.entry.instructions
    with pytest.raises(ValueError, match="9 instructions, not 9"):
        restore(module, [0, 9])
    reduced = module.entry["add.1"].metadata.__reduce__()
    with pytest.raises(ValueError, match="no metadata"):
        reduced[0](module, module["zero"].row)


def test_load_takes_paths_and_loads_takes_texts(tmp_path: Path) -> None:
    path = tmp_path / "step.txt"
    path.write_text(TEXT)
    assert hlofast.load(bytes(path)) == hlofast.load(path) == hlofast.loads(TEXT)
    with pytest.raises(ValueError, match=r"this is a text; use hlofast\.loads"):
        hlofast.load(TEXT)
    with pytest.raises(ValueError, match=r"names a file; use hlofast\.load$"):
        hlofast.loads(str(path))
    with pytest.raises(IsADirectoryError, match=r"hlofast\.scan reads dump directories") as raised:
        hlofast.load(tmp_path)
    assert raised.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError):
        hlofast.load(tmp_path / "none.txt")
    with pytest.raises(TypeError, match=r"not int; hlofast\.loads reads a text, hlofast\.from_jax"):
        hlofast.load(3)
    with pytest.raises(hlofast.ParseError, match="no HLO module found"):
        hlofast.loads("step.txt")


def test_results_and_their_parts_say_what_they_are(train_step: Path) -> None:
    """No repr is that of `object`, and an unknown table is named beside the known tables."""
    module = hlofast.load(train_step, device="tpu-v5e")
    verdict = module.verdict()
    changed = module.what_if(batch="2x")
    for own in (*verdict.figures, *verdict.statements, module.remat().policies, changed):
        assert " object at 0x" not in repr(own), type(own)
    assert f": {changed.change}>" in repr(changed)
    assert "Step time" in repr(verdict.figures[0])
    with pytest.raises(KeyError, match="no table 'loop'; did you mean loops"):
        module.cost().tables["loop"]


@pytest.mark.parametrize("size", [True, [1 << 30], None.__class__])
def test_a_memory_is_a_number_or_a_text(size: Any) -> None:
    with pytest.raises(TypeError, match="is not a number of bytes such as 16GiB"):
        hlofast.loads(TEXT, hbm=size)


@pytest.mark.parametrize("name", ["cost", "memory", "time", "verdict", "collectives", "remat", "matmuls", "lint",
                                  "stages", "summary", "what_if"])  # fmt: skip
def test_results_go_to_other_processes(train_step: Path, name: str) -> None:
    """`Pool.map` may return what an analysis returns."""
    module = hlofast.load(train_step, device="tpu-v5p", mesh="data=2,model=4", hbm="60GiB")
    result = getattr(module, name)()
    said = str(result)
    for pickled in (result, getattr(module, name)()):  # As shown, and as made.
        again = pickle.loads(pickle.dumps(pickled))
        assert (type(again), str(again)) == (type(result), said)
        assert again.to_dict() == result.to_dict()


def test_options_of_results_go_to_other_processes(train_step: Path) -> None:
    module = hlofast.load(train_step)
    for result in (
        module.cost(xla=True, float32=True),
        module.cost(rules=[("while", "forward")], peak_flops="197T"),
        module.memory(rule="values", sizes="logical", space="vmem", device="v6e"),
        module.time("v5e", estimates="roofline", collectives="alpa"),
    ):
        again = pickle.loads(pickle.dumps(result))
        assert again.to_dict() == result.to_dict()
