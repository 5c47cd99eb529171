"""Messages of compilers and allocators: every figure, every listed buffer, the cause.

`fixtures/messages/truth.json` says what each message contains and what causes it. The messages in
`held_out/` and then those in `second/` judged the reader before it had seen any of them;
`first_contact.json` has the scores of those days, which are the honest ones for messages of
tomorrow. The reader is called through `messages_adapter.read`.
"""

from __future__ import annotations

import functools
import json
import pathlib

import pytest

import messages_adapter

MESSAGES = pathlib.Path(__file__).parent / "fixtures" / "messages"
SPLITS = {"seen": MESSAGES, "held_out": MESSAGES / "held_out", "second": MESSAGES / "second"}
ENOUGH = 0.9  # The share of causes that has to be right.


def truths(split):
    """The records of one half."""
    return json.loads((SPLITS[split] / "truth.json").read_text())


CASES = [(split, one) for split in SPLITS for one in truths(split)]
every_message = pytest.mark.parametrize(
    ("split", "truth"), CASES, ids=[f"{split}-{one['file'].split('.')[0]}" for split, one in CASES]
)


@functools.cache
def what_is_read(split, file):
    """The reader's answer for one message."""
    return messages_adapter.read(SPLITS[split] / file)


def in_bytes(value):
    """A value of truth.json; of a size, its bytes."""
    return value["bytes"] if isinstance(value, dict) else value


@every_message
def test_every_figure_is_read(split, truth):
    answer = what_is_read(split, truth["file"])["figures"]
    expected = {name: size["bytes"] for name, size in truth["figures"].items()}
    assert {name: answer.get(name) for name in expected} == expected


@every_message
def test_every_listed_buffer_is_read(split, truth):
    answer = what_is_read(split, truth["file"])["buffers"]
    assert len(answer) == len(truth["buffers"])
    for found, expected in zip(answer, truth["buffers"], strict=True):
        known = {name: in_bytes(value) for name, value in expected.items()}
        assert {name: found.get(name) for name in known} == known


@every_message
def test_every_reshard_of_a_warning_is_read(split, truth):
    expected = truth.get("warnings", [])
    found = what_is_read(split, truth["file"]).get("warnings", [])
    names = list(expected[0]) if expected else []
    assert [{name: one[name] for name in names} for one in found] == expected


@every_message
def test_the_memory_that_ran_out_is_named(split, truth):
    assert what_is_read(split, truth["file"])["memory_space"] == truth["memory_space"]


@pytest.mark.parametrize("split", SPLITS)
def test_the_cause_is_right_for_nearly_all(split):
    records = truths(split)
    wrong = {
        one["file"]: (answer, one["cause"])
        for one in records
        if (answer := what_is_read(split, one["file"])["cause"]) not in [one["cause"], *one["also"]]
    }
    assert len(wrong) <= (1 - ENOUGH) * len(records), wrong
