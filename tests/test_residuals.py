"""What `Module.remat` says is kept, and where, beside what the text of a train step keeps.

The truth is `fixtures/residuals` by `residual_truth.py`, which reads the schedule and no phase of
hlofast's.
"""

import collections
import io
import json
import lzma
import pathlib
import sys
import tarfile
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))

import residual_truth  # lies among the fixtures

FOLDER = FIXTURES / "residuals"
SPACES = {0: "device", 5: "host"}


def records() -> dict[str, dict[str, Any]]:
    lines = lzma.decompress((FOLDER / "truth.jsonl.xz").read_bytes()).splitlines()
    return {record["name"]: record for record in map(json.loads, lines)}


def texts(archive: str) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO((FOLDER / archive).read_bytes())) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                found[pathlib.Path(member.name).name.removesuffix(".txt")] = content.read()
    return found


def difference(text: bytes, record: dict[str, Any]) -> collections.Counter[str]:
    """Values lost, added, of another size or in another place, and how many there are."""
    step = residual_truth.Step(text.decode())
    alive = {(row["instruction"], tuple(row["index"])): row for row in record["alive"]}
    said = {}
    for row in hlofast.loads(text).remat().residuals.to_pylist():
        path = tuple(int(part) for part in row["index"].strip("{}").split(",") if part)
        said[step.source(row["name"], path)] = row
    count = collections.Counter(alive=len(alive))
    for key, row in said.items():
        # Smaller values are parts of the loss, which the truth leaves out.
        count["added"] += key not in alive and row["bytes"] >= residual_truth.LEAST
    for key, row in alive.items():
        if key not in said:
            count["lost"] += 1
            continue
        off = abs(said[key]["bytes"] - row["tiled_bytes"])
        count["size"] += off > 0.01 * row["tiled_bytes"]
        count["place"] += SPACES.get(said[key]["memory_space"], "fast") != row["space"]
        count["host"] += row["space"] == "host"
    return count


@pytest.mark.parametrize("archive", ["texts.tar.xz", "held_out.tar.xz"])
def test_every_value_is_found_where_it_lives(archive: str) -> None:
    truth, total = records(), collections.Counter[str]()
    programs = texts(archive)
    assert len(programs) == 40
    for name, text in programs.items():
        count = difference(text, truth[name])
        wrong = {key: value for key, value in count.items() if key not in ("alive", "host")}
        assert not any(wrong.values()), (name, wrong)
        total += count
    assert total["alive"] >= 500
    assert total["host"] >= 30


STEP = """\
HloModule step, is_scheduled=true, input_output_alias={{ {{0}}: (0, {{}}, may-alias) }}

ENTRY e {{
  w = f32[8,8]{{1,0}} parameter(0), metadata={{op_name="state['w']"}}
  x = f32[8,8]{{1,0}} parameter(1), metadata={{op_name="batch['x']"}}
  h = f32[8,8]{{1,0:S(1)}} dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, metadata={{op_name="jit(step)/jvp(m)/dot_general"}}
{kept}
  loss = f32[8,8]{{1,0}} sine(h), metadata={{op_name="jit(step)/jvp(m)/sin"}}
  d = f32[8,8]{{1,0}} cosine(loss), metadata={{op_name="jit(step)/transpose(jvp(m))/cos"}}
{fetched}
  g = f32[8,8]{{1,0}} dot(last, d), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, metadata={{op_name="jit(step)/transpose(jvp(m))/dot_general"}}
  n = f32[8,8]{{1,0}} subtract(w, g), metadata={{op_name="jit(step)/sub"}}
  ROOT r = (f32[8,8]{{1,0}}, f32[8,8]{{1,0}}) tuple(n, loss)
}}
"""
EVICTED = """\
  out = (f32[8,8]{{1,0{space}}}, f32[8,8]{{1,0:S(1)}}, u32[]) copy-start(h)
  kept = f32[8,8]{{1,0{space}}} copy-done(out)"""
WHOLE = """\
  back = (f32[8,8]{{1,0:S(1)}}, f32[8,8]{{1,0{space}}}, u32[]) copy-start(kept)
  last = f32[8,8]{{1,0:S(1)}} copy-done(back)"""
PARTS = """\
  s0 = ((f32[8,8]{{1,0{space}}}), f32[4,8]{{1,0:S(1)}}, s32[]) slice-start(kept), slice={{[0:4], [0:8]}}
  s1 = ((f32[8,8]{{1,0{space}}}), f32[4,8]{{1,0:S(1)}}, s32[]) slice-start({second}), slice={{[4:8], [0:8]}}
  d0 = f32[4,8]{{1,0:S(1)}} slice-done(s0)
  d1 = f32[4,8]{{1,0:S(1)}} slice-done(s1)
  last = f32[8,8]{{1,0:S(1)}} custom-call(d0, d1), custom_call_target="ConcatBitcast\""""


def kept_by(kept: str, fetched: str, **texts: str) -> list[tuple[str, str, int]]:
    text = STEP.format(kept=kept.format(**texts), fetched=fetched.format(**texts))
    rows = hlofast.loads(text).remat().residuals.to_pylist()
    return [
        (row["name"], row["index"], row["memory_space"]) for row in rows if row["name"] != "loss"
    ]


@pytest.mark.parametrize("fetched", [WHOLE, PARTS])
@pytest.mark.parametrize(("space", "number"), [("", 0), (":S(5)", 5)])
def test_an_evicted_value_stays_the_value(fetched: str, space: str, number: int) -> None:
    assert kept_by(EVICTED, fetched, space=space, second="kept") == [("h", "{}", number)]


def test_parts_of_several_values_are_a_value_of_their_own() -> None:
    second = '  other = f32[8,8]{{1,0}} negate(h), metadata={{op_name="jit(step)/jvp(m)/neg"}}'
    kept = kept_by(f"{EVICTED}\n{second}", PARTS, space="", second="other")
    assert sorted(kept) == [("h", "{}", 0), ("other", "{}", 0)]


def test_a_parameter_that_is_fetched_is_no_residual() -> None:
    kept = "  kept = f32[8,8]{{1,0}} bitcast(w)"
    assert kept_by(kept, PARTS, space="", second="kept") == []


def test_forward_work_that_runs_late_keeps_what_it_reads() -> None:
    late = '  last = f32[8,8]{{1,0}} exponential(h), metadata={{op_name="jit(step)/jvp(m)/exp"}}'
    assert kept_by("", late) == [("h", "{}", 1)]


def test_the_note_says_what_the_host_keeps() -> None:
    text = STEP.format(kept=EVICTED.format(space=":S(5)"), fetched=WHOLE.format(space=":S(5)"))
    remat = hlofast.loads(text).remat()
    (note,) = [note for note in remat.notes if note.code == "on-host"]
    assert "1 residual of 256 B is kept in host memory" in str(note)
