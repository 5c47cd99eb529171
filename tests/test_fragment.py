"""Pieces of a program, as people paste them, are read as fragments and say so."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlofast
from conftest import FIXTURES
from test_cli import document, hlofast_command

WHOLE = (FIXTURES / "train_step.after_optimizations.txt").read_text()
BODY = "\n".join(WHOLE.splitlines()[1:])
BODY = BODY[BODY.index("\n%") + 1 :]
"""The computations of a real train step, without header and tables."""
EXCERPT = """ENTRY main.152 {
  constant.27 = f32[] constant(1)
  broadcast.28 = f32[1,71]{1,0} broadcast(constant.27), dimensions={}
  iota.29 = s32[71]{0} iota(), iota_dimension=0
  ...
  constant.15 = f32[3,3]{1,0} constant({ { 1, 0, 0 }, { 0, 1, 0 }, { 0, 0, -1 } })
  dot.95 = f32[1,71,75,71,3]{4,3,2,1,0} dot(scatter.89, constant.15), lhs_contracting_dims={4}, rhs_contracting_dims={0}
  reshape.96 = f32[1,1,71,75,71,3]{5,4,3,2,1,0} reshape(dot.95)
}
"""
"""From https://github.com/jax-ml/jax/issues/23548."""


def written(module: hlofast.Module) -> list[tuple[str, str, str, list[str]]]:
    """Name, opcode, shape and operands of every instruction in the text."""
    return [
        (one.name, one.opcode, str(one.shape), [operand.name for operand in one.operands])
        for one in module
        if not one.is_implicit
    ]


@pytest.mark.parametrize(
    "prefix",
    [
        "{:>5}\t",
        "{}: ",
        "> ",
        "dump/module_0001.jit_f.txt:{}:",
        "I0521 12:04:45.88{:03} 9 h.cc:1] ",
    ],
)
def test_decorated_lines_are_those_of_the_program(prefix: str) -> None:
    whole = hlofast.loads(WHOLE)
    lines = BODY.splitlines()
    text = "\n".join(prefix.format(number) + line for number, line in enumerate(lines, 100))
    fragment = hlofast.loads(text)
    assert fragment.is_fragment
    assert not whole.is_fragment
    assert written(fragment) == written(whole)
    assert fragment.entry.name == whole.entry.name
    assert hlofast.find_modules(text)[0].module == fragment


def test_an_excerpt_with_lines_left_out(tmp_path: Path) -> None:
    path = tmp_path / "issue.txt"
    path.write_text(EXCERPT)
    module = hlofast.load(path)
    assert module.is_fragment
    scatter = next(one for one in module if one.name == "scatter.89")
    assert (scatter.is_implicit, scatter.opcode) == (True, "parameter")
    assert scatter.parameter_number is None
    assert scatter.shape.bytes is None
    facts = {fact.name: fact.value for fact in module.summary().facts}
    assert facts["instructions"] == 6
    assert facts["fragment"] == (
        "a place where lines were left out, one operand without its instruction"
    )
    assert [note.code for note in module.cost().notes][0] == "fragment"
    assert [module[int(row)].name for row in module.cost().unknown] == ["dot.95"]
    (note,) = module.show("scatter.89").notes
    assert "no line" in note.text
    # Bytes of known arrays count; those of the placeholder are not invented.
    assert module.cost().bytes_accessed > 4 * 71 * 75 * 71 * 3
    assert module.graph() is not None


def test_figures_of_whole_programs_are_refused() -> None:
    module = hlofast.loads(EXCERPT)
    refused = (
        module.memory,
        module.verdict,
        module.remat,
        module.stages,
        module.report,
        lambda: module.time("a100"),
        lambda: module.trace(device="a100"),
        lambda: module.cost().mfu(1.0, 1e12),
    )
    for figure in refused:
        with pytest.raises(hlofast.FragmentError, match="of a fragment is unknown: the text lacks"):
            figure()


def test_collectives_of_single_lines() -> None:
    line = (
        "  %all-reduce.1 = f32[256]{0} all-reduce(f32[256]{0} %p), channel_id=1, "
        "replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%sum\n"
        "  %all-gather.1 = f32[1024]{0} all-gather(%q), channel_id=2, replica_groups=[2,4]<=[8], "
        "dimensions={0}, use_global_device_ids=true\n"
    )
    module = hlofast.loads(line)
    rows = module.collectives(mesh="data=2,model=4").to_pylist()
    assert [(row["kind"], row["payload"], row["axes"]) for row in rows] == [
        ("all-reduce", 1024, "model"),
        ("all-gather", 4096, "model"),
    ]


def test_several_pieces_all_count() -> None:
    dot = "%dot.{0} = f32[8,8] dot(f32[8,8] %a, f32[8,8] %b), lhs_contracting_dims={{1}}\n"
    twice = dot.format(1) + "--\n" + dot.format(1)
    assert hlofast.loads(dot.format(1)).cost().flops == 2 * 8**3
    assert hlofast.loads(twice).cost().flops == 2 * 2 * 8**3


def test_the_body_of_a_fusion_alone() -> None:
    module = hlofast.loads(
        "%fused_computation.3 (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        "  ROOT %n = f32[8]{0} negate(%p)\n}\n"
    )
    assert module.is_fragment
    assert module.entry.name == "fused_computation.3"


def test_strict_modes_and_other_text_are_refused() -> None:
    for strict in (True, "newest"):
        with pytest.raises(hlofast.ParseError):
            hlofast.loads(EXCERPT, strict=strict)
    for text in ("a log\nof lines\n", "the op %a = f32[2] add(%b, %c) fails\n in my model\n"):
        with pytest.raises(hlofast.ParseError, match="no HLO module found"):
            hlofast.loads(text)


def test_damaged_modules_stay_errors() -> None:
    damaged = WHOLE.replace("tuple(", "tuple(%gone, ", 1)
    with pytest.raises(hlofast.ParseError, match="gone"):
        hlofast.loads(damaged)
    with pytest.raises(hlofast.ParseError):
        hlofast.loads(WHOLE[: len(WHOLE) // 2])


def test_a_module_cut_at_the_edge_of_a_terminal() -> None:
    whole = hlofast.loads(WHOLE)
    cut = hlofast.loads("\n".join(line[:120] for line in WHOLE.splitlines()))
    assert cut.is_fragment
    assert cut._lacks is not None
    assert cut._lacks["cut"] > 100
    assert cut.name == whole.name
    lines = [(name, opcode, shape) for name, opcode, shape, _ in written(cut)]
    every = [(name, opcode, shape) for name, opcode, shape, _ in written(whole)]
    # Shapes of large tuples reach beyond the edge.
    assert set(lines) <= set(every)
    assert len(lines) > 0.9 * len(every)
    operands = {name: own for name, _, _, own in written(whole)}
    assert all(
        operands[name][: len(known)] == known
        for name, _, _, own in written(cut)
        if (known := [one for one in own if not one.startswith("missing.")]) is not None
    )


def test_fragments_are_pickled_with_what_they_lack() -> None:
    module = hlofast.loads(f"see\n> {EXCERPT.replace(chr(10), chr(10) + '> ')}")
    again = pickle.loads(pickle.dumps(module))
    assert again.is_fragment
    assert again._lacks == module._lacks
    assert again == module


def test_the_command_line_says_what_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "issue.txt"
    path.write_text(EXCERPT)
    done = hlofast_command(path)
    assert done.returncode == 0
    assert "pieces of a program" in done.stdout
    assert f"hlofast summary {path}" in done.stdout
    for verb in ("summary", "cost", "collectives", "matmuls", "lint", "graph"):
        assert hlofast_command(verb, path).returncode == 0, verb
    shown = document("summary", path)["results"][0]
    assert shown["notes"][0]["code"] == "fragment"
    extra = {"report": ("-o", tmp_path / "page.html"), "what-if": ("--batch", "2x")}
    for verb in ("memory", "remat", "report", "what-if"):
        refused = hlofast_command(verb, path, *extra.get(verb, ()))
        assert refused.returncode == 3, verb
        assert re.search("fragment is unknown", refused.stderr), verb


LINES = st.sampled_from(
    [*EXCERPT.splitlines(), "}", "...", "> x", "```", "HloModule m", "%a = f32["]
)
PREFIXES = st.sampled_from(["", "> ", "7: ", "f.txt:3:", "\x1b[1m", "I0521 12:04:45.88 1 h.cc:1] "])


@settings(max_examples=300)
@given(st.lists(st.tuples(PREFIXES, LINES, st.integers(0, 130)), max_size=30))
def test_any_mixture_is_read_or_refused(lines: list[tuple[str, str, int]]) -> None:
    text = "\n".join(prefix + line[:width] for prefix, line, width in lines)
    try:
        module = hlofast.loads(text)
    except hlofast.ParseError:
        return
    assert module.cost().flops >= 0
    assert module.summary().facts
    assert module.collectives() is not None
    assert len(module.to_text()) > 0
