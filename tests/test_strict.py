"""Strict modes through Python: XLA's stored verdicts, without XLA."""

import gzip
import json
import tomllib
from pathlib import Path

import pytest

import hlofast

PROBES = Path(__file__).parent / "probes"


# XLA drops operands that these opcodes have no use for; here the text's operands are kept.
KEPT = {
    "dropped/opcode-word/defined-other-shape",
    "opcodes/dot/inferred-one-operand-more",
    "opcodes/dot/one-operand-more",
    "opcodes/rng-bit-generator/one-operand-more",
    "semantics/dot-of-three",
}


def accepts(text: str, strict: object) -> bool:
    try:
        hlofast.loads(text, strict=strict)
    except hlofast.ParseError:
        return False
    return True


@pytest.fixture(scope="module")
def verdicts() -> list[dict[str, object]]:
    with gzip.open(PROBES / "verdicts.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_strict_accepts_what_xla_accepts(verdicts) -> None:
    differing = [
        row["id"]
        for row in verdicts
        if accepts(row["text"], strict=True) != (row["verdict"] == "accept")
    ]
    assert differing == []


def test_tolerant_and_newest_accept_what_xla_accepts(verdicts) -> None:
    accepted = {row["id"]: row["text"] for row in verdicts if row["verdict"] == "accept"}
    assert len(accepted) > 500
    assert [name for name, text in accepted.items() if not accepts(text, strict=False)] == []
    refused = {name for name, text in accepted.items() if not accepts(text, strict="newest")}
    # Newer XLA counts the devices of shardings and replica groups.
    about_devices = ("newest/", "groups/iota/", "sharding/tiled/")
    assert [name for name in refused if not name.startswith(about_devices)] == []


def test_newest_follows_its_table(verdicts) -> None:
    table = tomllib.loads((PROBES / "newest.toml").read_text())
    texts = {row["id"]: row["text"] for row in verdicts}
    for construct in table["construct"]:
        for expected, key in ((True, "accepted"), (False, "rejected")):
            for probe in construct.get(key, []):
                assert accepts(texts[probe], strict="newest") == expected, probe


def test_names_opcodes_and_operands_are_those_of_xla(verdicts) -> None:
    compared, differing = 0, []
    for row in verdicts:
        if row["verdict"] != "accept":
            continue
        module = hlofast.loads(row["text"], strict=True)
        # XLA names what the text only implies, and orders as it likes.
        if any(i.is_implicit for i in module) or any(c.is_inline for c in module.computations):
            continue
        seen = {
            c.name: {i.name: [i.opcode, [o.name for o in i.operands]] for i in c}
            for c in module.computations
        }
        of_xla = {
            name: {i[0]: [i[1], i[2]] for i in instructions}
            for name, instructions in row["computations"]
        }
        if seen.keys() == of_xla.keys() and all(seen[n].keys() == of_xla[n].keys() for n in seen):
            compared += 1
            if seen != of_xla:
                differing.append(row["id"])
    assert compared > 500
    assert set(differing) == KEPT


def test_results_do_not_depend_on_threads() -> None:
    block = "c{k} {{\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] add(p, p)\n}}\n\n"
    text = "HloModule m\n\n" + "".join(block.format(k=k) for k in range(4000))
    text += "ENTRY e {\n  ROOT p = f32[8] parameter(0)\n}\n"
    single, four = (hlofast.loads(text, threads=threads) for threads in (1, 4))
    assert {n: single.columns[n].tolist() for n in single.columns} == {
        n: four.columns[n].tolist() for n in four.columns
    }
    assert single.names() == four.names()
    broken = text.replace("add(p, p)", "add(p, q)")
    faults = []
    for threads in (1, 4):
        with pytest.raises(hlofast.ParseError) as caught:
            hlofast.loads(broken, threads=threads)
        faults.append((caught.value.line, caught.value.column, caught.value.kind))
    assert faults[0] == faults[1]
