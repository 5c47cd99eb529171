"""`hlofast.oom` on texts that are cut, mutated, hostile or huge."""

import io
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import hlofast
import message_texts
from conftest import LONG
from hlofast._messages.api import try_stream
from message_texts import ALL
from test_messages import GIVEN, figures


class TestHostile:
    @pytest.mark.parametrize("name", ["easydel166", "jax13428", "xla_docs_e1001", "levanter424"])
    def test_a_message_may_be_cut_anywhere(self, name: str) -> None:
        content = (GIVEN / f"{name}.txt").read_bytes()
        whole = figures(hlofast.oom(content))
        for end in range(0, len(content), 23):
            found = try_stream(io.BytesIO(content[:end]))
            if found is not None:
                str(found)
                for key, text in figures(found).items():
                    # A number that is cut is a shorter number.
                    assert key in whole
                    assert str(whole[key]).startswith(str(text)[:1])
            try_stream(io.BytesIO(content[end:]))

    @given(some.data())
    def test_mutated_messages_raise_nothing_else(self, data: Any) -> None:
        text = bytearray(data.draw(some.sampled_from(sorted(ALL.values()))).encode())
        for _ in range(data.draw(some.integers(0, 6))):
            at = data.draw(some.integers(0, len(text)))
            part = data.draw(
                some.one_of(
                    some.binary(max_size=8),
                    some.sampled_from(
                        [
                            b"(",
                            b"{",
                            b'"',
                            b"\n",
                            b"\\n",
                            b"Size: ",
                            b"9" * 30,
                            b"[SPMD] ",
                            b"\x1b[",
                        ]
                    ),
                )
            )
            text[at : at + data.draw(some.integers(0, 20))] = part
        found = try_stream(io.BytesIO(bytes(text)))
        if found is not None:
            json.loads(found.to_json())
            assert str(found)

    @pytest.mark.parametrize(
        "text",
        [
            "Ran" + " " * 500_000 + "out of memory",
            'RESOURCE_EXHAUSTED\n  1. Size: 2G\n Operator: op_name="' + 'a\\"' * 200_000,
            "Allocation type: HLO temp XLA label: x = " + "(" * 500_000,
            "would exceed memory (size=2) :: #a [" * 20_000,
            "{" * 200_000 + ' "log": "RESOURCE_EXHAUSTED',
            "[SPMD] Involuntary full rematerialization. The compiler cannot go from sharding "
            + "{" * 300_000,
            "Used " * 200_000 + "BufferAssignment OOM Debugging",
        ],
    )
    def test_no_text_takes_long(self, text: str) -> None:
        start = time.process_time()
        try_stream(io.BytesIO(text.encode()))
        assert time.process_time() - start < 5

    def test_a_long_log_takes_one_pass(self) -> None:
        """A tenth of the log takes a tenth of the time, whatever surrounds the message."""
        lines = 1_000_000 if LONG else 200_000
        line = "2025-01-01 00:00:00.000000: I xla/service/some_file.cc:123] Compiling with memory\n"
        content = (line * lines + message_texts.TPU_2019 + line * 1000).encode()
        start = time.process_time()
        found = hlofast.oom(content)
        seconds = time.process_time() - start
        assert found.cause == "padding"
        assert found.messages[0].line == lines + 2
        assert len(content) / seconds > 15e6  # Measured: 120 MB/s on one core.

    def test_a_flood_of_messages_keeps_its_beginning_and_its_end(self) -> None:
        from hlofast._messages.find import Finder

        text = "".join(f"RESOURCE_EXHAUSTED: message {n} of many\n" for n in range(40_000))
        finder = Finder(io.BytesIO(text.encode()), most_first=100_000, most_last=50_000)
        found = b"".join(own.content for own in finder)
        assert len(found) < 40 << 20
        assert b"message 0 of" in found
        assert b"message 39999 of" in found

    def test_long_lists_are_counted(self) -> None:
        head, _, entry = (GIVEN / "easydel166.txt").read_text().partition("  1. Size")
        text = head + "".join(f"  {n}. Size{entry}" for n in range(1, 30_001))
        messages = hlofast.oom(text)
        (own,) = messages.messages
        assert (len(own.entries), own.left) == (20_000, 10_000)
        assert "more" in {note.code for note in messages.notes}
