"""The module inside an entry of JAX's compilation cache."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlofast
from conftest import FIXTURES
from test_cli import hlofast_command

CACHE = FIXTURES / "jax_cache"
ENTRY = CACHE / "jit_step-zlib-cache"
PLAIN = zlib.decompress(ENTRY.read_bytes())
TRUTH = json.loads((CACHE / "truth.json").read_text())


@pytest.mark.parametrize("name", ["jit_step-zlib-cache", "jit_step-zstd-cache"])
def test_the_module_is_the_compiled_one(name: str) -> None:
    module = hlofast.load(CACHE / name)
    assert module.name == "jit_step"
    # JAX prints some header attributes that the cache lacks.
    compiled = hlofast.load(CACHE / "jit_step.txt")
    lines = [[(one.name, one.opcode, one.shape) for one in own] for own in (module, compiled)]
    assert [*map(str, lines[0])] == [*map(str, lines[1])]
    assert module.operand_names() == compiled.operand_names()
    assert module.cost(xla=True).flops == TRUTH["flops"]


def test_parts_of_an_entry() -> None:
    whole = hlofast.loads(PLAIN)
    # The length of IFRT's description has two bytes here.
    start = 6 + ((PLAIN[4] & 0x7F) | PLAIN[5] << 7)
    # Before IFRT's description: the seconds and the executable; the executable alone.
    assert hlofast.loads(PLAIN[:4] + PLAIN[start:]).same_program(whole)
    assert hlofast.loads(PLAIN[start:]).same_program(whole)


def test_a_cache_is_scanned_like_a_dump(tmp_path: Path) -> None:
    path = tmp_path / "jit_step-129d6891-cache"
    path.write_bytes(ENTRY.read_bytes())
    done = hlofast_command("summary", path)
    assert (done.returncode, "jit_step" in done.stdout) == (0, True)
    programs = hlofast_command("scan", tmp_path)
    assert (programs.returncode, "jit_step" in programs.stdout) == (0, True)


def test_entries_without_a_module_are_refused() -> None:
    for content in (PLAIN[:200], PLAIN[:6] + bytes(300), bytes(4) + b"\x0a\x10" + b"x" * 16):
        with pytest.raises(hlofast.ParseError, match=r"contains no HLO module|binary data|ends"):
            hlofast.loads(content)
    with pytest.raises(hlofast.ParseError, match="zlib"):
        hlofast.loads(ENTRY.read_bytes()[:-40])
    bomb = zlib.compress(bytes(50_000_000))
    with pytest.raises(hlofast.ParseError, match="more than 1000000 bytes"):
        hlofast.loads(bomb, max_bytes=1_000_000)


@settings(max_examples=300)
@given(st.integers(0, len(PLAIN) - 1), st.integers(0, 255), st.integers(0, len(PLAIN)))
def test_damaged_entries_are_read_or_refused(place: int, byte: int, end: int) -> None:
    damaged = bytearray(PLAIN)
    damaged[place] = byte
    for content in (bytes(damaged), bytes(damaged[:end])):
        try:
            module = hlofast.loads(content)
        except hlofast.ParseError:
            continue
        assert len(module) > 0
