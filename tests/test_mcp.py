"""`hlofast mcp`: thirty questions asked as an agent asks them, about five programs.

Expected answers come from the Python API, and are looked for in the line that has to hold them.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT
from hlofast import _text
from hlofast._mcp import compare
from hlofast._mcp.answer import MOST_TOKENS, tokens
from hlofast._mcp.tools import MORE_DOC, TOOLS
from hlofast._programs import programs as programs_of
from mcp_client import DECODER, DUMP, GPU, LARGE, LOG, PROFILE, RUN, STEP, ask, filled

assert compare  # Its tools are registered.
V5E: dict[str, Any] = {"device": "tpu-v5e", "mesh": "data=2,model=4"}
A100 = {"path": GPU, "device": "a100", "profile": PROFILE}
DECODER_ON = {"path": DECODER, "device": "tpu-v5e", "mesh": "data=32,model=8"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("root"))


class Programs:
    """The five programs through the Python API."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.step = hlofast.load(root / STEP, **V5E)
        self.dump = hlofast.load(programs_of(root / DUMP)[0].files[0].path)
        self.tpu = hlofast.load(programs_of(root / "tpu")[0].files[0].path)
        self.decoder = hlofast.load(root / DECODER, device="tpu-v5e", mesh="data=32,model=8")
        self.gpu = hlofast.load(root / GPU, device="a100", profile=root / PROFILE)
        self.large = hlofast.load(root / LARGE, device="tpu-v5e")


def largest(values: dict[str, float]) -> str:
    return max(values, key=values.__getitem__)


def memory(module: hlofast.Module) -> hlofast.Memory:
    """The live ranges, on the device of the module's context."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Doubts about figures, which the answer has as notes.
        return module.memory(device=module.context.device)


def peak_value(module: hlofast.Module) -> tuple[str, str]:
    """The largest value at the peak: its name, its bytes."""
    row = module.memory().live.top(1, "bytes").row(0)
    return row["name"], f"{row['bytes']:,}"


def top_matmul(module: hlofast.Module) -> tuple[str, ...]:
    row = module.matmuls().top(1, "flops").row(0)
    return module[row["instruction"]].name, *(f"{row[own]:,}" for own in ("m", "n", "k", "flops"))


def top_collective(module: hlofast.Module) -> tuple[str, ...]:
    row = module.collectives().top(1, "total_wire_bytes").row(0)
    return module[row["instruction"]].name, row["kind"], f"{row['total_wire_bytes']:,}"


def group(table: hlofast.Table, key: str, value: str, *columns: str) -> tuple[str, ...]:
    (row,) = (row for row in table if row[key] == value)
    return value, *(f"{row[column]:,}" for column in columns)


def values(result: Any) -> dict[str, Any]:
    return {fact.name: fact.value for fact in result.facts}


def plan() -> Any:
    return hlofast.config.loads(
        "model_name: llama3.1-8b\nper_device_batch_size: 2\n", path=RUN
    ).plan("v5p-64")


Expected = Callable[[Programs], tuple[str, ...]]
QUESTIONS: tuple[tuple[str, str, dict[str, Any], Expected], ...] = (
    # Question; tool; arguments; what one line of the answer has to hold.
    ("How long does a step take on v5e chips?",
     "verdict", {"path": STEP, **V5E},
     lambda of: ("step time: ", _text.seconds(of.step.time().step_seconds), "modelled")),
    ("How much memory was missing, as the log says?",
     "oom", {"path": LOG},
     lambda of: ("over the limit: ", f"{values(hlofast.oom(of.root / LOG))['exceeded']:,} B")),
    ("How well does it use the chips?",
     "verdict", {"path": STEP, **V5E},
     lambda of: ("MFU: ", _text.share(of.step.time().utilization.mfu, 1), "modelled")),
    ("Which mesh axis does it wait for most, and how long?",
     "time", {"path": STEP, **V5E},
     lambda of: ("exposed | " + largest(of.step.time().exposed),
                 _text.seconds(max(of.step.time().exposed.values())))),
    ("How many instructions are in step.txt?",
     "files", {"path": STEP},
     lambda of: ("jit_train_step", f"{of.step.instruction_count:,}")),
    ("How many all-gathers are there?",
     "find", {"path": STEP, "opcode": ["all-gather"]},
     lambda of: ("instructions: ", str(len(of.step.where(opcode="all-gather"))))),
    ("Which collective sends most bytes?",
     "table", {"path": STEP, **V5E, "analysis": "collectives", "table": "collectives", "top": 1,
               "sort": "-total_wire_bytes"},
     lambda of: top_collective(of.step)),
    ("How much is sent along the axis model?",
     "collectives", {"path": STEP, **V5E, "by": "axis"},
     lambda of: group(of.step.collectives().by("axes"), "axes", "model", "total_wire_bytes")),
    ("How many FLOPs has the backward pass?",
     "cost", {"path": STEP, "by": "phase"},
     lambda of: group(of.step.cost().by("phase"), "phase", "backward", "flops")),
    ("What is the largest matmul, and its size?",
     "table", {"path": STEP, "analysis": "matmuls", "table": "matmuls", "sort": "-flops",
               "top": 1},
     lambda of: top_matmul(of.step)),
    ("What is the shape of while.29?",
     "show", {"path": STEP, "name": "while.29"},
     lambda of: ("shape: ", _text.label(str(of.step.instructions["while.29"].shape), 60)[:20])),
    ("How many bytes are live at the peak?",
     "memory", {"path": STEP, **V5E},
     lambda of: ("live peak: ", f"{of.step.memory().live_peak:,} B")),
    ("Which value is the largest there?",
     "table", {"path": STEP, **V5E, "analysis": "memory", "table": "live", "sort": "-bytes",
               "top": 1},
     lambda of: peak_value(of.step)),
    ("Which program does the folder dump hold?",
     "files", {"path": DUMP},
     lambda of: (programs_of(of.root / DUMP)[0].name,
                 os.path.relpath(programs_of(of.root / DUMP)[0].files[0].path, of.root))),
    ("For which backend was it compiled?",
     "verdict", {"path": DUMP},
     lambda of: ("backend: ", str(of.dump.summary().backend))),
    ("How many FLOPs does it take on a CPU?",
     "cost", {"path": DUMP},
     lambda of: ("FLOP: ", f"{of.dump.cost().flops:,}")),
    ("How many bytes of parameters are live at its peak?",
     "memory", {"path": DUMP, "by": "class"},
     lambda of: group(of.dump.memory().by("class"), "class", "parameter", "bytes")),
    ("How does the live peak differ on a TPU?",
     "diff", {"before": DUMP, "after": "tpu"},
     lambda of: ("jit_train_step", f"{of.dump.memory().live_peak:,}",
                 f"{of.tpu.memory().live_peak:,}")),
    ("How many collectives does the decoder have, as executed?",
     "collectives", DECODER_ON,
     lambda of: ("calls: ", f"{sum(of.decoder.collectives().values('multiplicity')):,}")),
    ("What should be changed in it first?",
     "lint", DECODER_ON,
     lambda of: (f"{of.decoder.lint()[0].code}: ",)),
    ("Which scope has most FLOPs?",
     "cost", {**DECODER_ON, "by": "scope", "top": 1},
     lambda of: (_text.label(of.decoder.cost().by("scope").top(1, "flops").row(0)["scope"]),
                 f"{of.decoder.cost().by('scope').top(1, 'flops').row(0)['flops']:,}")),
    ("What is its peak on a chip?",
     "verdict", DECODER_ON,
     lambda of: ("peak memory: ", f"{memory(of.decoder).allocated_in_hbm:,} B", "modelled")),
    ("How often does its longest loop run?",
     "table", {**DECODER_ON, "analysis": "cost", "table": "loops", "sort": "-trip_count",
               "top": 1},
     lambda of: (f"{max(row['trip_count'] for row in of.decoder.cost().tables['loops']):,}",)),
    ("How long was a step of the GPU run, measured?",
     "verdict", A100,
     lambda of: ("step time: ", f"{_text.seconds(of.gpu.profile().step_seconds)} measured")),
    ("How long was it idle?",
     "verdict", A100,
     lambda of: ("idle: ", _text.seconds(of.gpu.profile().idle_seconds))),
    ("Which finding there is worth most?",
     "lint", {**A100, "top": 1},
     lambda of: (f"{of.gpu.lint()[0].code}: ", _text.quantity(of.gpu.lint()[0].flops, "FLOP"))),
    ("Does the large step fit on v5e chips?",
     "memory", {"path": LARGE, "device": "tpu-v5e"},
     lambda of: ("fits: ", "yes" if memory(of.large).allocated_in_hbm <= memory(of.large).hbm[0] else "no")),
    ("Which checkpoint policy fits 15.75 GiB, and at which peak?",
     "remat", {"path": LARGE, "device": "tpu-v5e", "hbm": "15.75GiB"},
     lambda of: (f"{of.large.with_context(hbm='15.75GiB').remat().policies.chosen.peak:,}",)),
    ("Does it keep below a peak of 1 GiB?",
     "check", {"path": LARGE, "device": "tpu-v5e", "expect": "peak.max = '1GiB'"},
     lambda of: ("ok: ", "no")),
    ("Which mesh is fastest for run.yml on 32 v5p chips?",
     "plan", {"path": RUN, "instance": "v5p-64"},
     lambda of: ("mesh: ", plan().best["mesh"])),
)  # fmt: skip


@pytest.fixture(scope="module")
def asked(root: Path) -> tuple[list[Any], list[Any]]:
    return ask(root, [(tool, arguments) for _, tool, arguments, _ in QUESTIONS])


@pytest.fixture(scope="module")
def programs(root: Path) -> Programs:
    return Programs(root)


def test_there_are_thirty_questions_about_five_programs() -> None:
    assert len(QUESTIONS) == 30
    assert len({question for question, *_ in QUESTIONS}) == 30
    paths = {arguments.get("path") for _, _, arguments, _ in QUESTIONS}
    assert {STEP, DUMP, DECODER, GPU, LARGE} <= paths


@pytest.mark.parametrize("number", range(len(QUESTIONS)), ids=lambda own: QUESTIONS[own][0])
def test_the_answer_is_that_of_the_api(
    number: int, asked: tuple[list[Any], list[Any]], programs: Programs
) -> None:
    _, _, _, expected = QUESTIONS[number]
    result = asked[1][number]
    (content,) = result.content
    assert not result.is_error, content.text
    assert tokens(content.text) <= MOST_TOKENS
    wanted = expected(programs)
    assert all(wanted), wanted
    lines = [line for line in content.text.split("\n") if all(part in line for part in wanted)]
    assert lines, (wanted, content.text)


def test_answers_are_short(
    asked: tuple[list[Any], list[Any]], record_property: pytest.RecordProperty
) -> None:
    sizes = [tokens(result.content[0].text) for result in asked[1]]
    figures = {"median": statistics.median(sizes), "largest": max(sizes), "sum": sum(sizes)}
    for name, value in figures.items():
        record_property(f"tokens_{name}", value)
    print(f"tokens per answer: {figures}; of each: {sizes}")
    assert statistics.median(sizes) <= 600
    assert max(sizes) <= MOST_TOKENS


def test_tools_describe_themselves(asked: tuple[list[Any], list[Any]]) -> None:
    tools, _ = asked
    assert [tool.name for tool in tools] == [*TOOLS, "more"]
    used = {tool for _, tool, _, _ in QUESTIONS}
    assert used >= set(TOOLS) - {"more"}
    for tool in tools:
        assert 20 <= len(tool.description) <= 100, tool.name
        assert tool.annotations.read_only_hint
        schema = tool.input_schema
        assert schema["additionalProperties"] is False
        assert all(own["description"] for own in schema["properties"].values())
        assert set(schema["required"]) <= set(schema["properties"])
    listed = json.dumps([tool.model_dump(exclude_none=True) for tool in tools])
    print(f"tokens of the list of tools: {tokens(listed)}")
    assert tokens(listed) <= 8_000


def test_the_page_lists_the_tools() -> None:
    page = CHECKOUT / "docs" / "agents.md"
    rows = "".join(f"| `{name}` | {tool.doc} |\n" for name, tool in TOOLS.items())
    table = f"| tool | answer |\n|---|---|\n{rows}| `more` | {MORE_DOC} |\n"
    shown, count = re.subn(
        r"<!-- tools -->\n.*?<!-- /tools -->",
        lambda _: f"<!-- tools -->\n{table}<!-- /tools -->",
        page.read_text(),
        flags=re.DOTALL,
    )
    assert count == 1
    changed = shown != page.read_text()
    if os.environ.get("BLESS"):
        page.write_text(shown)
    assert not changed
