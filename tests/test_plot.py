"""`Module.plot`: charts for notebooks, which reports show too."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hlofast


@pytest.fixture(scope="module")
def module(train_step: Path) -> hlofast.Module:
    pytest.importorskip("bokeh")
    return hlofast.load(train_step)


def sources(figure: Any, glyph: str) -> list[dict[str, Any]]:
    """The columns of the glyphs of a kind, and which of them is which property."""
    drawn = []
    for renderer in figure.renderers:
        if type(renderer.glyph).__name__ == glyph:
            data = dict(renderer.data_source.data)
            data["_glyph"] = renderer.glyph
            drawn.append(data)
    return drawn


def test_memory_is_the_timeline_by_class(module: hlofast.Module) -> None:
    memory = module.memory()
    areas = sources(module.plot.memory(), "VAreaStep")
    highest = areas[-1]["above"]
    assert list(highest) == memory.timeline.tolist()
    assert list(areas[0]["below"]) == [0] * len(memory.timeline)
    for lower, upper in pairwise(areas):
        assert list(lower["above"]) == list(upper["below"])


def test_long_schedules_keep_their_peak() -> None:
    pytest.importorskip("bokeh")
    lines = ["  x0 = f32[8]{0} parameter(0)"]
    lines += [f"  x{n} = f32[8]{{0}} negate(x{n - 1})" for n in range(1, 9000)]
    lines[5000] = "  x5000 = f32[9999]{0} broadcast(x4999), dimensions={}"
    lines[5001] = "  x5001 = f32[8]{0} slice(x5000), slice={[0:8]}"
    text = "HloModule long, is_scheduled=true\n\nENTRY e {\n" + "\n".join(lines) + "\n}\n"
    module = hlofast.loads(text)
    areas = sources(module.plot.memory(), "VAreaStep")
    assert len(areas[-1]["above"]) < 2100
    assert max(areas[-1]["above"]) == module.memory().live_peak > 9999 * 4


def test_the_roofline_has_what_runs_by_itself(module: hlofast.Module) -> None:
    time = module.time("tpu-v5e")
    seconds = time.column("seconds")
    figure = module.plot.roofline("tpu-v5e")
    dots = [
        dict(zip(data, row, strict=True))
        for data in (
            {key: value for key, value in source.items() if key != "_glyph"}
            for source in sources(figure, "Scatter")
        )
        for row in zip(*data.values(), strict=True)
    ]
    names = {dot["name"] for dot in dots}
    fusions = {
        instruction.name
        for instruction in module.entry.instructions
        if instruction.opcode == "fusion"
    }
    assert names & fusions
    inner = {
        instruction.name
        for fusion in module.entry.instructions
        if fusion.opcode == "fusion"
        for called in fusion.called_computations
        for instruction in called.instructions
    }
    assert not names & (inner - {instruction.name for instruction in module.entry.instructions})
    for dot in dots:
        assert dot["seconds"] == seconds[dot["instruction"]]
        assert dot["speed"] == dot["flops"] / dot["seconds"]
        assert dot["intensity"] == dot["flops"] / dot["bytes"]
    (roof,) = sources(figure, "Line")
    assert max(roof["y"]) == time.device.per_jax_device("flops.bf16")
    assert "FLOPs per step" in module.plot.roofline().yaxis[0].axis_label


def test_collectives_stand_where_they_run(module: hlofast.Module) -> None:
    mesh = hlofast.Mesh({"data": 2, "model": 4})
    table = module.collectives(mesh)
    for options in ({}, {"device": "tpu-v5e"}):
        figure = module.plot.collectives(mesh, **options)
        bars = sources(figure, "Quad")
        assert sorted(n for bar in bars for n in bar["name"]) == sorted(table["name"])
        assert all(end >= start for b in bars for start, end in zip(b["first"], b["last"]))
        assert set(figure.yaxis[0].major_label_overrides.values()) == {"data", "model"}


@pytest.mark.parametrize("by", ["flops", "bytes_accessed"])
def test_scopes_nest_and_add_up(module: hlofast.Module, by: str) -> None:
    boxes: dict[str, tuple[int, int, int]] = {}
    for source in sources(module.plot.scopes(by), "Quad"):
        for name, depth, left, right in zip(
            source["scope"], source["depth"], source["left"], source["right"], strict=True
        ):
            boxes[name] = (depth, left, right)
    assert boxes.pop("whole step") == (0, 0, getattr(module.cost(), by))
    assert len(boxes) > 10
    for name, (depth, left, right) in boxes.items():
        # Scopes that are all of their parent are one box with it.
        parents = [other for other in boxes if name.startswith(f"{other}/")]
        assert len(parents) == depth - 1
        if parents:
            parent = boxes[max(parents, key=len)]
            assert parent[0] == depth - 1
            assert parent[1] <= left < right <= parent[2]
    assert sum(right - left for depth, left, right in boxes.values() if depth == 1) <= getattr(
        module.cost(), by
    )
    with pytest.raises(ValueError, match="flops or bytes_accessed"):
        module.plot.scopes("seconds")


def test_without_bokeh_it_is_said_what_to_install(
    train_step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "bokeh"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'hlofast\[report\]'"):
        hlofast.load(train_step).plot.memory()


def test_without_bokeh_a_report_has_tables_and_says_so(
    train_step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    made = hlofast.load(train_step).report()
    assert "Charts are static images: charts need bokeh" in made.html
    assert 'id="block-bokeh"' not in made.html
